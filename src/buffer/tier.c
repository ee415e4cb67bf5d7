/*-------------------------------------------------------------------------
 *
 * tier.c
 *	  The buffer tier's policy: hit, miss, capture, invalidate.
 *
 * Concurrency and coherence
 * -------------------------
 * Disk is the truth.  The directory's entry (P, h) says "P's content on disk
 * hashes to h"; src/README.md has the whole argument.  This file's part:
 *
 * The shadow array has one RbpShadow for each shared buffer: "when this frame
 * was last read from or written to disk, it was page P, and P's content on
 * disk then hashed to h, at write stamp s and generation g".  It is a claim
 * about the disk and not about the frame: whoever finds bytes, anywhere, that
 * hash to h while s and g have not moved has found the page as it is on disk.
 * So a frame that was dropped, zeroed or superseded by another frame in the
 * meantime does no harm: either its bytes still hash to h and the claim is
 * still true, or the capture is skipped.
 *
 * A frame's shadow is written only by the process that does I/O on the frame,
 * which the server makes exclusive (BM_IO_IN_PROGRESS), and read by that process,
 * or by one that has the buffer pinned and its content locked exclusively, so
 * that there is no I/O on it.  So it needs no lock of its own.
 *
 * Read of page Q into frame F that holds victim P:
 *	1. capture P from F, if its claim holds and the directory has not got it:
 *	   copy to a staging slot, hash the copy (never the frame, which may get
 *	   hint bits at any time), verify it if all we know is what one read of
 *	   the disk gave, and insert under the partition lock, where stamp and
 *	   generation are checked again.  But if P is Q, what F holds was refused
 *	   by the server: nothing that was seen of Q is believed any more;
 *	2. sample Q's stamp and generation, before anything is read;
 *	3. serve Q from staging or a donor if the directory has it and the bytes
 *	   hash to what it says; else from disk;
 *	4. F's shadow is now the claim about Q.
 *
 * Write of page P from frame F: bump P's stamp and drop its entry, copy F to
 * a private bounce buffer, write the bounce buffer, and make the claim about
 * the bounce buffer's bytes.  Writing from the copy costs some 0.2 us and
 * makes the claim exact: the frame may get hint bits during the write.
 *
 * On clusters with data checksums the server itself writes from a private
 * copy, whose pd_checksum differs from the frame's.  The frame is found by
 * its tag then; its claim is marked, so that a capture sets the checksum on
 * the staged copy before it hashes it.
 *
 * Nothing here waits but for LWLocks that are held for well below a
 * microsecond, for the disk as always, and for donors until a deadline.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/checksum.h"
#include "storage/pg_shmem.h"
#include "storage/proc.h"

#include "base/compat.h"
#include "base/geometry.h"
#include "base/guc.h"
#include "base/hash.h"
#include "base/libc.h"
#include "base/lock.h"
#include "base/mutation.h"
#include "base/page_cache.h"
#include "base/relfile.h"
#include "base/stats.h"
#include "buffer/buffer.h"
#include "buffer/buffer_internal.h"
#include "buffer/directory.h"
#include "buffer/page.h"
#include "buffer/pusher.h"
#include "buffer/read_cost.h"
#include "buffer/space.h"
#include "buffer/staging.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"

StaticAssertDecl(BLCKSZ == RBP_PAGE_SIZE && BLCKSZ == RBP_HASH_BYTES,
				 "remote_bp is made for 8 KiB blocks");

/* What direct I/O would want, and a page of memory. */
#define IO_ALIGN			4096

/*
 * Pages are moved: without any getting on for so long, others get their turn.
 * A batch has as much, since no query waits for it, and is not begun with less:
 * a donor that is not late shall not be taken for late.
 */
#define MOVE_PATIENCE_NS	INT64CONST(50000000)

#define SHADOW_VALID		0x01
#define SHADOW_CHECKSUM		0x02	/* pd_checksum differs in the frame */
#define SHADOW_READ			0x04	/* a read of the disk gave it, unverified */

/* Without SHADOW_VALID: why not. */
#define SHADOW_CACHED		0x08	/* the page cache had it */
#define SHADOW_SLOW			0x10	/* donors are not enough quicker than the
									 * disk, where it came from */
#define SHADOW_POLICY		0x20	/* somebody has said so */

typedef struct RbpShadow
{
	RbpPageId	page;
	uint32		flags;			/* SHADOW_* */
	RbpVersion	version;
} RbpShadow;

typedef struct RbpTierShared
{
	pg_atomic_uint32 in_use;	/* has had memory: keep the books */
	pg_atomic_uint32 lost_track;	/* cannot be trusted any more */
} RbpTierShared;

RbpDirectory *rbp_dir = NULL;
RbpStaging *rbp_staging = NULL;

static RbpTierShared *shared = NULL;
static RbpShadow *shadows = NULL;

/* Was the page in the page cache before it was read? */
typedef enum Cached
{
	CACHED_UNKNOWN,
	CACHED_NO,
	CACHED_YES,
	CACHED_PRESUMED				/* not asked: nearly all are */
} Cached;

/* One page of a request that is being served. */
typedef struct ReadPage
{
	char	   *buf;
	RbpPageId	id;
	RbpLookup	lookup;
	RbpVersion	version;
	bool		served;
	bool		from_file;		/* on purpose, though a donor may have it */
	Cached		cached;			/* in the page cache */
	int			io;				/* index of its remote request, -1 if none */
} ReadPage;

/*
 * What this process wrote last, and where the copy is: see
 * capture_before_extend().
 */
static struct
{
	bool		valid;
	RbpPageId	page;
	RbpVersion	version;
	const char *copy;
}			last_write;

/* What reads have cost this process. */
static RbpReadCost read_cost;
static int	straight_reads = 0;	/* pages that read_straight() may read yet */

/* It reads pages to bring them into the tier, whatever that costs. */
static bool prewarming = false;

/* It reads little, and no connection to a donor is worth that. */
static bool unconnected = false;

static char bounce_space[RBP_MAX_BATCH * BLCKSZ + IO_ALIGN];
static char compare_space[BLCKSZ + IO_ALIGN];

#define bounce			((char *) TYPEALIGN(IO_ALIGN, bounce_space))
#define compare_page	((char *) TYPEALIGN(IO_ALIGN, compare_space))

/*
 * ---- set-up ---------------------------------------------------------------
 */

static uint32
max_slots(void)
{
	return (uint32) rbp_guc_buffer_tier_max_size * (1024 * 1024 / BLCKSZ);
}

static uint32
staging_slots(void)
{
	return (uint32) rbp_guc_staging_size / (BLCKSZ / 1024);
}

uint32
rbp_tier_max_extents(void)
{
	return max_slots() / RBP_EXTENT_PAGES;
}

/* Each structure begins at a cache line, the staging region at a page. */
Size
rbp_tier_shmem_size(void)
{
	Size		size = MAXALIGN(sizeof(RbpTierShared));

	size = add_size(size, mul_size(sizeof(RbpShadow), NBuffers));
	size = add_size(size, rbp_directory_size(max_slots(), staging_slots()));
	size = add_size(size, rbp_staging_size(staging_slots()));
	return add_size(size, 4 * PG_CACHE_LINE_SIZE + IO_ALIGN);
}

void
rbp_tier_first_use(void)
{
	pg_atomic_write_u32(&shared->in_use, 1);
	pg_memory_barrier();
	rbp_residency_changed(InvalidOid);
}

/* The directory's part in extents that come and go. */

static bool
extent_absent(uint32 extent)
{
	return rbp_directory_extent_absent(rbp_dir, extent);
}

static void
extent_online(uint32 extent, uint32 region)
{
	rbp_directory_extent_online(rbp_dir, extent, region);
	/* there may be room now for what is to be kept */
	rbp_residency_changed(InvalidOid);
}

static void
extent_offline(uint32 extent)
{
	rbp_directory_extent_close(rbp_dir, extent);
}

static uint64
region_heat(uint32 region)
{
	return rbp_directory_account(rbp_dir, region).heat;
}

static uint64
region_used(uint32 region)
{
	return rbp_directory_account(rbp_dir, region).used;
}

static bool
forget_some(void)
{
	return rbp_directory_collect(rbp_dir, RBP_COLLECT_MAX) > 0;
}

static void
extent_drain(uint32 extent)
{
	rbp_directory_extent_drain(rbp_dir, extent);
}

static void
extent_undrain(uint32 extent)
{
	rbp_directory_extent_undrain(rbp_dir, extent);
}

static uint64
extent_used(uint32 extent)
{
	return rbp_directory_extent_used(rbp_dir, extent);
}

/*
 * Read a batch of the extent's pages, from its slot *next on, into staging,
 * where they are the directory's and the pusher's to write elsewhere.  What
 * does not hash to what it should be stays where it is.  False if there is no
 * room in staging, or nothing of it could be read in time; *next is as it was
 * unless all could be.
 */
static bool
move_batch(uint32 extent, uint32 *next, int64 now)
{
	/* most of staging is for the pages that queries give up */
	uint32		share = staging_slots() / 4;
	uint32		busy = rbp_staging_busy(rbp_staging);
	RbpMovable	pages[RBP_MAX_BATCH];
	RbpRemoteIo ios[RBP_MAX_BATCH];
	uint32		staged[RBP_MAX_BATCH];
	uint32		from = *next;
	int			nstaged = 0;
	int			nread = 0;
	int			n;

	if (busy >= share)
		return false;
	while (nstaged < (int) Min(share - busy, RBP_MAX_BATCH) &&
		   (staged[nstaged] = rbp_staging_get(rbp_staging)) != RBP_NO_STAGING_SLOT)
		nstaged++;
	n = nstaged == 0 ? 0 :
		rbp_directory_movable(rbp_dir, extent, next, pages, nstaged);
	for (int i = 0; i < n; i++)
	{
		ios[i].slot = pages[i].at.slot;
		ios[i].buf = rbp_staging_page(rbp_staging, staged[i]);
	}
	if (n > 0)
		rbp_remote_read(ios, n, now, now + MOVE_PATIENCE_NS);
	for (int i = 0; i < nstaged; i++)
	{
		bool		is_read = i < n && ios[i].status == RBP_OK;

		nread += is_read;
		if (is_read && rbp_hash_page(ios[i].buf) == pages[i].at.hash &&
			rbp_directory_restage(rbp_dir, &pages[i], staged[i]) == RBP_INSERTED)
			rbp_pusher_notify(rbp_staging_ready(rbp_staging, staged[i]));
		else
			rbp_staging_put(rbp_staging, staged[i]);
	}
	if (nstaged == 0 || nread < n)
		*next = from;
	return nstaged > 0 && (n == 0 || nread > 0);
}

static uint32
extent_evacuate(uint32 extent, int64 deadline_ns)
{
	uint32		next = 0;
	int64		progress = rbp_now_ns();

	while (next < RBP_EXTENT_PAGES)
	{
		int64		now = rbp_now_ns();

		/* a donor that is not asked now need not be waited for, nor counted */
		if (now + MOVE_PATIENCE_NS > deadline_ns ||
			now - progress > MOVE_PATIENCE_NS ||
			!rbp_remote_usable(RBP_POOL_BUFFER, now) ||
			!rbp_remote_slot_writable(RBP_EXTENT_SLOT(extent)))
			return RBP_EXTENT_PAGES - next;
		if (move_batch(extent, &next, now))
			progress = now;
		else
		{
			rbp_pusher_wake();
			pg_usleep(1000);
		}
	}
	return 0;
}

const RbpRemotePoolOps rbp_tier_pool_ops = {
	.absent = extent_absent,
	.online = extent_online,
	.offline = extent_offline,
	.used = region_used,
	.heat = region_heat,
	.drain = extent_drain,
	.undrain = extent_undrain,
	.evacuate = extent_evacuate,
	.extent_used = extent_used,
	.has_copies = true,
	.forget = forget_some,
};

/* Take the next piece of the arena, aligned. */
static void *
take(char **arena, Size size, Size align)
{
	char	   *mem = (char *) TYPEALIGN(align, *arena);

	*arena = mem + size;
	return mem;
}

void
rbp_tier_shmem_init(void *mem)
{
	char	   *arena = mem;
	uint32		slots = max_slots();
	RbpTierShared *sh = take(&arena, sizeof(RbpTierShared), PG_CACHE_LINE_SIZE);
	RbpShadow  *sd = take(&arena, sizeof(RbpShadow) * NBuffers,
						  PG_CACHE_LINE_SIZE);
	void	   *dir = take(&arena, rbp_directory_size(slots, staging_slots()),
						   PG_CACHE_LINE_SIZE);
	void	   *staging = take(&arena, rbp_staging_size(staging_slots()), IO_ALIGN);

	pg_atomic_init_u32(&sh->in_use, 0);
	pg_atomic_init_u32(&sh->lost_track, 0);
	memset(sd, 0, sizeof(RbpShadow) * NBuffers);
	rbp_dir = rbp_directory_init(dir, slots, staging_slots(),
								 rbp_lock_tranche("RemoteBpPartition"));
	rbp_directory_set_keep_max(rbp_dir, rbp_guc_keep_max_pages());
	rbp_staging = rbp_staging_init(staging, staging_slots());
	rbp_read_cost_init(&read_cost);
	shadows = sd;
	shared = sh;
}

void
rbp_tier_stand_down(void)
{
	shared = NULL;
	shadows = NULL;
	rbp_dir = NULL;
	rbp_staging = NULL;
}

/*
 * Is the tier's shared memory there?  A child may have detached all of it
 * (the syslogger does).
 */
static inline bool
has_shmem(void)
{
	return shared != NULL && UsedShmemSegAddr != NULL;
}

bool
rbp_tier_attached(void)
{
	return has_shmem() && MyProc != NULL &&
		pg_atomic_read_u32(&shared->in_use) != 0;
}

void
rbp_tier_lost_track(const char *why)
{
	if (!has_shmem())
		return;
	rbp_directory_bump_all(rbp_dir);
	if (pg_atomic_exchange_u32(&shared->lost_track, 1) != 0)
		return;
	/* reporting checks for interrupts, which must not end the file call */
	HOLD_INTERRUPTS();
	ereport(LOG,
			(errmsg("remote_bp is off until the server restarts: %s", why)));
	RESUME_INTERRUPTS();
}

bool
rbp_tier_unusable_reason(char *buf, Size len)
{
	if (!rbp_guc_enabled)
		strlcpy(buf, "remote_bp.enabled is off", len);
	else if (pg_atomic_read_u32(&shared->lost_track) != 0)
		strlcpy(buf, "remote_bp is off until the server restarts; the log says why", len);
	else
		return rbp_remote_unusable_reason(RBP_POOL_BUFFER, buf, len);
	return true;
}

/* May pages be served and captured now? */
static inline bool
tier_usable(int64 now)
{
	return rbp_guc_enabled && rbp_guc_use_tier != RBP_USE_TIER_OFF &&
		rbp_remote_usable(RBP_POOL_BUFFER, now) &&
		pg_atomic_read_u32(&shared->lost_track) == 0;
}

/*
 * ---- frames -----------------------------------------------------------------
 */

static inline bool
is_frame(const void *p, Size len)
{
	const char *c = p;

	return c >= BufferBlocks &&
		len <= (Size) NBuffers * BLCKSZ &&
		c <= BufferBlocks + (Size) NBuffers * BLCKSZ - len &&
		(c - BufferBlocks) % BLCKSZ == 0;
}

static inline RbpShadow *
shadow_of(const char *frame)
{
	return &shadows[(frame - BufferBlocks) / BLCKSZ];
}

bool
rbp_tier_is_frames(const struct iovec *iov, int iovcnt)
{
	for (int i = 0; i < iovcnt; i++)
		if (iov[i].iov_len == 0 || iov[i].iov_len % BLCKSZ != 0 ||
			!is_frame(iov[i].iov_base, iov[i].iov_len))
		{
			/* the mutation shows why private memory is not served */
			if (RBP_MUTATED(RBP_MUTATION_SERVE_PRIVATE) &&
				iov[i].iov_len > 0 && iov[i].iov_len % BLCKSZ == 0)
				continue;
			return false;
		}
	return true;
}

static void
forget_frame(const char *frame)
{
	if (is_frame(frame, BLCKSZ))
		shadow_of(frame)->flags = 0;
}

/* The claim about the frame's page; see the top of the file. */
static void
remember_frame(const char *frame, const RbpPageId *page,
			   const RbpVersion *version, uint32 flags)
{
	RbpShadow  *shadow;

	if (!is_frame(frame, BLCKSZ))
		return;
	shadow = shadow_of(frame);
	shadow->page = *page;
	shadow->version = *version;
	shadow->flags = SHADOW_VALID | flags;
}

/*
 * The frame that holds this page, by its tag, or NULL; gives up rather than
 * wait for the mapping lock.
 */
static char *
frame_by_tag(const RbpRelFile *file, BlockNumber block)
{
	BufferTag	tag;
	uint32		hash;
	LWLock	   *lock;
	int			buf_id;

	rbp_compat_tag(&tag, file->spc, file->db, file->rel,
				   (ForkNumber) file->fork, block);
	hash = BufTableHashCode(&tag);
	lock = BufMappingPartitionLock(hash);
	if (!LWLockConditionalAcquire(lock, LW_SHARED))
		return NULL;
	buf_id = BufTableLookup(&tag, hash);
	LWLockRelease(lock);
	return buf_id < 0 ? NULL : BufferBlocks + (Size) buf_id * BLCKSZ;
}

/*
 * ---- capture ----------------------------------------------------------------
 */

/*
 * Is what a read of the disk gave fit to be kept?  One read may give what the
 * disk does not hold; the server finds that out, if it can, and its next try
 * must find the disk.  This is what the server looks at, but that all zeros,
 * which prove nothing, do not pass, and that ignore_checksum_failure counts
 * for nothing.  A checksum vouches for the header.
 */
static bool
read_verified(char *copy, BlockNumber block)
{
	if (PageIsNew((Page) copy))
		return false;
	if (DataChecksumsEnabled())
		return pg_checksum_page(copy, block) ==
			((PageHeader) copy)->pd_checksum;
	return rbp_compat_page_verified(copy, block);
}

/* What somebody has said of the page's relation, or of its tablespace. */
static RbpPolicy
page_policy(const RbpPageId *page)
{
	RbpPolicy	policy = rbp_directory_policy(rbp_dir, page->rel, page->space);

	if (policy == RBP_POLICY_DEFAULT && rbp_residency_excludes(page->space))
		return RBP_POLICY_NONE;
	return policy;
}

/* Stage the bytes as the page, if the version's claim is about them. */
static RbpStageResult
stage(const char *bytes, const RbpPageId *page, const RbpVersion *version,
	  uint32 flags)
{
	uint32		slot;
	char	   *copy;

	/* An unlocked look spares the copy; insert_staged checks for good. */
	if (!RBP_MUTATED(RBP_MUTATION_NO_CAPTURE_STAMP) &&
		(rbp_directory_stamp(rbp_dir, page) != version->stamp ||
		 rbp_directory_generation(rbp_dir, page->rel, page->space,
								  page->fork) != version->generation))
	{
		rbp_stats_count(RBP_COUNT_SKIP_STALE, 1);
		return RBP_STAGE_STALE;
	}
	if (page_policy(page) == RBP_POLICY_NONE)
	{
		rbp_stats_count(RBP_COUNT_SKIP_POLICY, 1);
		return RBP_STAGE_REFUSED;
	}
	slot = rbp_staging_get(rbp_staging);
	if (slot == RBP_NO_STAGING_SLOT)
		return RBP_STAGE_FULL;
	copy = rbp_staging_page(rbp_staging, slot);
	memcpy(copy, bytes, BLCKSZ);
	if ((flags & SHADOW_CHECKSUM) && !PageIsNew((Page) copy) &&
		!RBP_MUTATED(RBP_MUTATION_NO_CHECKSUM))
		((PageHeader) copy)->pd_checksum = pg_checksum_page(copy, page->block);
	if (RBP_MUTATED(RBP_MUTATION_NO_CAPTURE_HASH) ||
		(RBP_MUTATED(RBP_MUTATION_NO_CHECKSUM) && (flags & SHADOW_CHECKSUM)))
	{
		RbpVersion	mutated = *version;

		mutated.hash = rbp_hash_page(copy);
		if (rbp_directory_insert_staged(rbp_dir, page, &mutated, slot) == RBP_INSERTED)
		{
			rbp_pusher_notify(rbp_staging_ready(rbp_staging, slot));
			return RBP_STAGE_DONE;
		}
		rbp_staging_put(rbp_staging, slot);
		return RBP_STAGE_REFUSED;
	}
	if (rbp_hash_page(copy) != version->hash ||
		((flags & SHADOW_READ) && !read_verified(copy, page->block) &&
		 !RBP_MUTATED(RBP_MUTATION_TRUST_READS)))
	{
		rbp_staging_put(rbp_staging, slot);
		rbp_stats_count(RBP_COUNT_SKIP_CHANGED, 1);
		return RBP_STAGE_REFUSED;
	}
	switch (rbp_directory_insert_staged(rbp_dir, page, version, slot))
	{
		case RBP_INSERTED:
			rbp_stats_count(RBP_COUNT_CAPTURES, 1);
			rbp_pusher_notify(rbp_staging_ready(rbp_staging, slot));
			return RBP_STAGE_DONE;
		case RBP_INSERT_PRESENT:
			rbp_stats_count(RBP_COUNT_SKIP_REMOTE, 1);
			rbp_staging_put(rbp_staging, slot);
			return RBP_STAGE_PRESENT;
		default:
			rbp_stats_count(RBP_COUNT_SKIP_STALE, 1);
			rbp_staging_put(rbp_staging, slot);
			return RBP_STAGE_REFUSED;
	}
}

/* Stage a victim; says whether that took a copy. */
static bool
stage_victim(const char *bytes, const RbpPageId *page, const RbpVersion *version,
			 uint32 flags)
{
	RbpStageResult result = stage(bytes, page, version, flags);

	/* nobody waits for room */
	if (result == RBP_STAGE_FULL)
		rbp_stats_count(RBP_COUNT_DROPS_FULL, 1);
	return result >= RBP_STAGE_REFUSED;
}

/*
 * Is the page not to be captured, that the page cache has, or had when it was
 * written (cached), or that came from the disk?  Then SHADOW_* says why; else 0.
 */
static uint32
why_not_capture(const RbpPageId *page, bool cached)
{
	RbpPolicy	policy;

	if (prewarming)
		return 0;
	if (rbp_guc_use_tier == RBP_USE_TIER_READ)
		return SHADOW_POLICY;
	policy = page_policy(page);
	if (policy == RBP_POLICY_NONE)
		return SHADOW_POLICY;
	if (policy == RBP_POLICY_KEEP || rbp_guc_page_cache_first == RBP_PAGE_CACHE_OFF ||
		(!cached && rbp_guc_bypass == RBP_BYPASS_OFF) ||
		rbp_read_cost_keep(&read_cost, cached))
		return 0;
	return cached ? SHADOW_CACHED : SHADOW_SLOW;
}

/* The frame's page is not captured, since its shadow has no claim: count why. */
static void
count_skip(uint32 flags)
{
	rbp_stats_count((flags & SHADOW_CACHED) ? RBP_COUNT_SKIP_CACHED :
					(flags & SHADOW_SLOW) ? RBP_COUNT_SKIP_SLOW :
					(flags & SHADOW_POLICY) ? RBP_COUNT_SKIP_POLICY :
					RBP_COUNT_SKIP_UNKNOWN, 1);
}

/*
 * The frame is about to be overwritten: capture what it holds.  Says whether
 * that took a copy.
 */
static bool
capture_victim(const char *frame)
{
	RbpShadow  *shadow = shadow_of(frame);

	if (!(shadow->flags & SHADOW_VALID))
	{
		count_skip(shadow->flags);
		return false;
	}
	if (rbp_directory_lookup(rbp_dir, &shadow->page, false).where != RBP_ABSENT)
	{
		rbp_stats_count(RBP_COUNT_SKIP_REMOTE, 1);
		return false;
	}
	return stage_victim(frame, &shadow->page, &shadow->version, shadow->flags);
}

/*
 * A frame whose claim is about another page is being written: the relation
 * is extended, the victim was zeroed before any call could see it.  If the
 * victim was dirty, this process wrote it just before, from the bounce buffer
 * or the server's own copy with the checksum, which still has it.
 */
static void
capture_before_extend(const char *frame, const RbpPageId *new_page)
{
	RbpShadow  *shadow = shadow_of(frame);

	if (!last_write.valid || !(shadow->flags & SHADOW_VALID) ||
		rbp_page_equal(&shadow->page, new_page) ||
		!rbp_page_equal(&shadow->page, &last_write.page) ||
		shadow->version.hash != last_write.version.hash)
		return;
	(void) stage_victim(last_write.copy, &last_write.page, &last_write.version, 0);
	last_write.valid = false;
}

/*
 * ---- reads --------------------------------------------------------------------
 */

/* Do the bytes in buf hash to what the directory says? */
static inline bool
verify(const ReadPage *page)
{
	return rbp_hash_page(page->buf) == page->lookup.hash ||
		RBP_MUTATED(RBP_MUTATION_NO_VERIFY);
}

/*
 * The bytes did not verify.  If the entry has only moved, say so, so that
 * the caller can look again.
 */
static bool
verify_failed_by_race(const ReadPage *page)
{
	if (rbp_directory_drop_if_same(rbp_dir, &page->id, &page->lookup))
	{
		rbp_stats_count(RBP_COUNT_HASH_FAILURES, 1);
		return false;
	}
	rbp_stats_count(RBP_COUNT_RACES, 1);
	return true;
}

/*
 * Look the page up; serve it if it is staged.  After the pusher has moved it
 * away under our hands it is remote: look once more.
 */
static void
lookup_page(ReadPage *page)
{
	page->served = false;
	page->from_file = false;
	page->cached = CACHED_UNKNOWN;
	for (int attempt = 0; attempt < 2; attempt++)
	{
		page->lookup = rbp_directory_lookup(rbp_dir, &page->id, attempt == 0);
		if (page->lookup.where != RBP_STAGED)
			return;
		memcpy(page->buf, rbp_staging_page(rbp_staging, page->lookup.slot),
			   BLCKSZ);
		if (verify(page))
		{
			page->served = true;
			return;
		}
		if (!verify_failed_by_race(page))
			break;
	}
	page->lookup.where = RBP_ABSENT;
}

/*
 * Compare a page that is about to be returned with the disk.  False if it
 * differs: then the disk's is to be read.
 */
static bool
compare_with_disk(int fd, const RbpRelFile *file, const ReadPage *page,
				  off_t offset)
{
	char	   *disk = compare_page;
	ssize_t		n = rbp_libc.pread(fd, disk, BLCKSZ, offset);
	char		where[160];

	rbp_stats_count(RBP_COUNT_COMPARED, 1);
	if (n == BLCKSZ && memcmp(disk, page->buf, BLCKSZ) == 0)
		return true;

	rbp_stats_count(RBP_COUNT_MISMATCHES, 1);
	(void) rbp_directory_drop_if_same(rbp_dir, &page->id, &page->lookup);
	if (page->lookup.where == RBP_REMOTE)
		rbp_remote_slot_name(page->lookup.slot, where, sizeof(where));
	else
		snprintf(where, sizeof(where), "staging slot %u", page->lookup.slot);
	/* reporting checks for interrupts, which must not end the file call */
	HOLD_INTERRUPTS();
	if (n != BLCKSZ)
		ereport(LOG,
				(errmsg("remote_bp mismatch: block %u of relation fork %u/%u/%u/%u in %s is not on disk (%zd bytes read)",
						page->id.block, file->spc, file->db, file->rel,
						file->fork, where, n)));
	else
		ereport(LOG,
				(errmsg("remote_bp mismatch: block %u of relation fork %u/%u/%u/%u in %s differs from disk: LSN %X/%X, on disk %X/%X",
						page->id.block, file->spc, file->db, file->rel,
						file->fork, where,
						LSN_FORMAT_ARGS(PageGetLSN((Page) page->buf)),
						LSN_FORMAT_ARGS(PageGetLSN((Page) disk)))));
	RESUME_INTERRUPTS();
	return false;
}

/* The page is to be read from the file although a donor has it. */
static void
set_from_file(ReadPage *page, int way)
{
	bool		bypassed = page->cached < CACHED_YES ?
		rbp_read_cost_slower(&read_cost, way) :
		page->cached == CACHED_PRESUMED && rbp_read_cost_from_disk(&read_cost, way);

	page->from_file = true;
	/* what the disk is read for to see how quick it is, is none of these */
	if (read_cost.filling)
		rbp_stats_count(RBP_COUNT_PAGE_CACHE_FILLS, 1);
	else if (bypassed)
	{
		rbp_stats_count(RBP_COUNT_BYPASSED, 1);
		rbp_remote_note_bypass(page->lookup.slot, 1, 0);
	}
	else if (page->cached >= CACHED_YES)
		rbp_stats_count(RBP_COUNT_PAGE_CACHE_FIRST, 1);
}

/* Ask the page cache; false if it does not tell. */
static bool
ask_page_cache(int fd, RbpCacheView *cache, off_t offset, int n, bool *cached)
{
	int64		start = rbp_read_cost_time_question(&read_cost) ? rbp_now_ns() : 0;
	int			ncached = 0;

	if (!rbp_page_cache_ask(fd, cache, offset, n, cached))
		return false;
	for (int i = 0; i < n; i++)
		ncached += cached[i];
	rbp_read_cost_asked(&read_cost, n, ncached,
						start == 0 ? 0 : rbp_now_ns() - start);
	return true;
}

/*
 * Ask the page cache about the pages, if that is worth it; those that donors
 * have and that are to come from the file all the same are marked.  way: by
 * which transport donors have the first of them, or RBP_WAY_NONE.
 */
static void
choose_sources(int fd, RbpCacheView *cache, ReadPage *pages, int n,
			   off_t offset, int way, int64 now)
{
	bool		always = rbp_guc_page_cache_first == RBP_PAGE_CACHE_ON;
	bool		bypass = rbp_guc_bypass == RBP_BYPASS_AUTO;
	bool		keeps = rbp_page_cache_keeps();
	bool		cached[RBP_MAX_BATCH];
	RbpSource	source;

	source = rbp_read_cost_choose(&read_cost, way, bypass, keeps);
	if (rbp_guc_page_cache_first == RBP_PAGE_CACHE_ON)
		source = RBP_SOURCE_ASK;
	else if (rbp_guc_page_cache_first == RBP_PAGE_CACHE_AUTO &&
			 source == RBP_SOURCE_DONOR)
		return;
	if (rbp_guc_page_cache_first == RBP_PAGE_CACHE_OFF ||
		(source == RBP_SOURCE_ASK &&
		 !ask_page_cache(fd, cache, offset, n, cached)))
	{
		/* it cannot be asked, or not yet: what a read of the file takes tells */
		for (int i = 0; i < n && bypass; i++)
			if (pages[i].lookup.where == RBP_REMOTE &&
				rbp_read_cost_prefer_file(&read_cost, way, false, false, now))
				set_from_file(&pages[i], way);
		return;
	}
	for (int i = 0; i < n; i++)
	{
		if (source == RBP_SOURCE_FILE)
			pages[i].cached = CACHED_PRESUMED;
		else
			pages[i].cached = cached[i] ? CACHED_YES : CACHED_NO;
		if (pages[i].lookup.where != RBP_REMOTE)
			continue;
		if (source == RBP_SOURCE_FILE || (always && cached[i]) ||
			((bypass || cached[i]) &&
			 rbp_read_cost_prefer_file(&read_cost, way, cached[i], keeps, now)))
			set_from_file(&pages[i], way);
	}
}

/* Serve what can be served from staging and donors, and is not cheaper to read. */
static void
read_from_tier(int fd, const RbpRelFile *file, RbpCacheView *cache,
			   ReadPage *pages, int n, off_t offset, int64 start)
{
	RbpRemoteIo ios[RBP_MAX_BATCH];
	int			nios = 0;
	int			nstaged = 0;
	int			nhits = 0;
	int			way = RBP_WAY_NONE;
	uint32		connects;

	for (int i = 0; i < n; i++)
	{
		lookup_page(&pages[i]);
		if (pages[i].served)
			nstaged++;
		else if (pages[i].lookup.where == RBP_REMOTE && way == RBP_WAY_NONE)
			way = rbp_remote_slot_transport(pages[i].lookup.slot);
	}
	if (nstaged > 0)
	{
		int64		now = rbp_now_ns();

		rbp_stats_count(RBP_COUNT_STAGED_HITS, nstaged);
		rbp_stats_latency(RBP_LATENCY_STAGED, now - start);
		start = now;
	}
	if (nstaged < n)
		choose_sources(fd, cache, pages, n, offset, way, start);
	for (int i = 0; i < n; i++)
	{
		pages[i].io = -1;
		if (pages[i].served || pages[i].from_file || unconnected ||
			pages[i].lookup.where != RBP_REMOTE)
			continue;
		pages[i].io = nios;
		ios[nios].slot = pages[i].lookup.slot;
		ios[nios].buf = pages[i].buf;
		nios++;
	}
	if (nios > 0)
	{
		/* what was done before is no cost of the donor's */
		if (rbp_guc_page_cache_first != RBP_PAGE_CACHE_OFF)
			start = rbp_now_ns();
		connects = rbp_remote_connects();
		rbp_remote_read(ios, nios, start, start + rbp_guc_io_timeout_ns());
		for (int i = 0; i < n; i++)
		{
			if (pages[i].io < 0)
				continue;
			if (ios[pages[i].io].status == RBP_OK)
			{
				if (verify(&pages[i]))
				{
					pages[i].served = true;
					nhits++;
					continue;
				}
				(void) verify_failed_by_race(&pages[i]);
			}
			rbp_stats_count(RBP_COUNT_FALLBACKS, 1);
		}
		if (nhits > 0)
		{
			int64		took = rbp_now_ns() - start;

			rbp_stats_count(RBP_COUNT_HITS, nhits);
			rbp_stats_count(RBP_COUNT_BYTES_READ, (uint64) nhits * BLCKSZ);
			rbp_stats_latency(RBP_LATENCY_HIT, took);
			/* one that is rarely used would seem to be slow */
			if (connects == rbp_remote_connects())
				rbp_read_cost_donor(&read_cost, way, nios, took);
			rbp_remote_note_bypass(ios[0].slot, 0,
								   rbp_read_cost_saved(&read_cost, nhits,
													   pages[0].cached == CACHED_NO,
													   took));
		}
	}

	if (rbp_guc_compare_with_disk)
		for (int i = 0; i < n; i++)
			if (pages[i].served)
				pages[i].served = compare_with_disk(fd, file, &pages[i],
													offset + (off_t) i * BLCKSZ);
}

/*
 * The claim about a page that has just come from the file.  The directory's
 * own, if it has the page: that needs no hash.  None if the page is not worth
 * capturing.
 */
static void
claim_from_file(ReadPage *page)
{
	uint32		why_not = why_not_capture(&page->id, page->cached >= CACHED_YES);

	if (why_not != 0)
	{
		if (is_frame(page->buf, BLCKSZ))
			shadow_of(page->buf)->flags = why_not;
	}
	else if (page->from_file)
	{
		page->version.hash = page->lookup.hash;
		remember_frame(page->buf, &page->id, &page->version, 0);
	}
	else
	{
		page->version.hash = rbp_hash_page(page->buf);
		remember_frame(page->buf, &page->id, &page->version, SHADOW_READ);
	}
}

/* Count n pages that have come from the file in so many ns, and what they cost. */
static void
account_file(const RbpCacheView *cache, const ReadPage *pages, int n,
			 bool costs, int64 took)
{
	int			known[CACHED_PRESUMED + 1] = {0};

	rbp_stats_latency(RBP_LATENCY_DISK, took);
	rbp_stats_count(RBP_COUNT_MISSES, n);
	for (int i = 0; i < n; i++)
		known[pages[i].cached]++;
	if (known[CACHED_YES] > 0)
		rbp_stats_count(RBP_COUNT_PAGE_CACHE_READS, known[CACHED_YES]);
	if (known[CACHED_NO] > 0)
		rbp_stats_count(RBP_COUNT_DISK_READS, known[CACHED_NO]);
	/* where it cannot be asked, any read tells of the file */
	if (costs &&
		(known[CACHED_YES] == n || known[CACHED_NO] == n ||
		 (known[CACHED_UNKNOWN] == n &&
		  (rbp_guc_page_cache_first == RBP_PAGE_CACHE_OFF ||
		   !(cache->tried && cache->tells)))))
		rbp_read_cost_file(&read_cost, n, known[CACHED_YES] == n, took);
}

/*
 * Read the run of pages from the file.  Like preadv(), and the claims are made
 * for what came whole.
 */
static ssize_t
read_from_file(int fd, RbpCacheView *cache, ReadPage *pages, int n,
			   off_t offset, bool claim)
{
	struct iovec iov[RBP_MAX_BATCH];
	int64		start = rbp_now_ns();
	ssize_t		got;

	for (int i = 0; i < n; i++)
	{
		iov[i].iov_base = pages[i].buf;
		iov[i].iov_len = BLCKSZ;
	}
	/* pread() is what the server would have called for one page */
	got = n == 1 ? rbp_libc.pread(fd, pages[0].buf, BLCKSZ, offset) :
		rbp_libc.preadv(fd, iov, n, offset);
	if (got >= BLCKSZ)
	{
		int			save_errno = errno;

		account_file(cache, pages, (int) (got / BLCKSZ), claim,
					 rbp_now_ns() - start);
		for (int i = 0; claim && i < got / BLCKSZ; i++)
			claim_from_file(&pages[i]);
		if (claim && rbp_guc_page_cache_first != RBP_PAGE_CACHE_OFF)
			rbp_page_cache_learn(fd, cache, offset);
		errno = save_errno;
	}
	return got;
}

/*
 * The frame is about to be overwritten by a read of the n pages.  Says whether
 * its victim was copied.  A victim that is one of these pages was not valid,
 * because the server has refused it, or is not in the frame any more.  In
 * case it was refused, whatever was seen of the page so far, here or in
 * another frame, is not believed any more, and the page is read from disk.
 */
static bool
leave_frame(const char *frame, const ReadPage *pages, int n)
{
	const RbpShadow *shadow = shadow_of(frame);
	bool		captured = false;
	int			i = n;

	if (shadow->flags & SHADOW_VALID)
		for (i = 0; i < n; i++)
			if (rbp_page_equal(&shadow->page, &pages[i].id))
				break;
	if (i == n || RBP_MUTATED(RBP_MUTATION_TRUST_READS))
		captured = capture_victim(frame);
	else
	{
		(void) rbp_directory_invalidate(rbp_dir, &pages[i].id);
		rbp_stats_count(RBP_COUNT_SKIP_UNKNOWN, 1);
	}
	return captured;
}

/*
 * Read a page into a frame as a server without us would, since the page cache
 * has nearly all pages and keeps them: no look at the directory, no clock, and
 * no claim, so that it will not be captured.  False if it is not to be read so:
 * the victim may be worth a copy, or it is time to look.
 */
static inline bool
read_straight(int fd, char *frame, off_t offset, ssize_t *got)
{
	RbpShadow  *shadow;

	if (straight_reads == 0 || prewarming || rbp_guc_page_cache_first != RBP_PAGE_CACHE_AUTO ||
		!is_frame(frame, BLCKSZ))
		return false;
	shadow = shadow_of(frame);
	if (shadow->flags & SHADOW_VALID)
		return false;
	if (--straight_reads == 0)
		rbp_read_cost_ask_next(&read_cost);
	count_skip(shadow->flags);
	shadow->flags = 0;
	*got = rbp_libc.pread(fd, frame, BLCKSZ, offset);
	if (*got == BLCKSZ)
	{
		shadow->flags = SHADOW_CACHED;
		rbp_stats_count(RBP_COUNT_MISSES, 1);
	}
	return true;
}

/* At most RBP_MAX_BATCH pages; else like rbp_tier_read(). */
static ssize_t
read_batch(int fd, const RbpRelFile *file, RbpCacheView *cache, uint16 space,
		   BlockNumber block, char **bufs, int n, off_t offset)
{
	ReadPage	pages[RBP_MAX_BATCH];
	int64		start = rbp_now_ns();
	bool		usable = space != RBP_INVALID_SPACE && tier_usable(start);
	bool		captured = false;
	uint32		generation = 0;
	ssize_t		total = 0;
	int			i;
	for (i = 0; i < n; i++)
	{
		pages[i].buf = bufs[i];
		pages[i].served = false;
		pages[i].from_file = false;
		pages[i].cached = CACHED_UNKNOWN;
		pages[i].lookup.where = RBP_ABSENT;
		pages[i].id = (RbpPageId)
		{
			.rel = file->rel,.block = block + i,.space = space,.fork = file->fork
		};
		if (usable)
		{
			/* both of them, so that their cache misses overlap */
			rbp_directory_prefetch(rbp_dir, &pages[i].id);
			if (is_frame(bufs[i], BLCKSZ))
				rbp_directory_prefetch(rbp_dir, &shadow_of(bufs[i])->page);
		}
	}
	for (i = 0; i < n; i++)
	{
		if (usable && is_frame(bufs[i], BLCKSZ))
			captured |= leave_frame(bufs[i], pages, n);
		forget_frame(bufs[i]);
	}
	if (captured)
	{
		int64		now = rbp_now_ns();

		rbp_stats_latency(RBP_LATENCY_CAPTURE, now - start);
		start = now;
	}

	/* Stamps and generation before anything is read: see the top. */
	if (usable)
		generation = rbp_directory_generation(rbp_dir, file->rel, space,
											  file->fork);
	for (i = 0; usable && i < n; i++)
	{
		pages[i].version.stamp = rbp_directory_stamp(rbp_dir, &pages[i].id);
		pages[i].version.generation = generation;
	}
	if (usable)
		read_from_tier(fd, file, cache, pages, n, offset, start);

	/* Hits stay; each run of misses between them is one read. */
	for (i = 0; i < n;)
	{
		int			run = 0;
		ssize_t		got;

		if (pages[i].served)
		{
			pages[i].version.hash = pages[i].lookup.hash;
			remember_frame(pages[i].buf, &pages[i].id, &pages[i].version, 0);
			total += BLCKSZ;
			i++;
			continue;
		}
		while (i + run < n && !pages[i + run].served)
			run++;
		got = read_from_file(fd, cache, &pages[i], run,
							 offset + (off_t) i * BLCKSZ, usable);
		if (got < 0)
			return total > 0 ? total : got;
		total += got;
		if (got < (ssize_t) run * BLCKSZ)
			break;				/* end of file, or what a signal left */
		i += run;
	}
	return total;
}

/*
 * Cut a vector of whole pages into batches of page pointers: the next of
 * them, at most RBP_MAX_BATCH, from *pos bytes on.
 */
static int
next_batch(const struct iovec *iov, int iovcnt, Size *pos, char **bufs)
{
	Size		start = 0;
	int			n = 0;

	for (int i = 0; i < iovcnt && n < RBP_MAX_BATCH; i++)
	{
		Size		off = *pos > start ? *pos - start : 0;

		for (; off < iov[i].iov_len && n < RBP_MAX_BATCH; off += BLCKSZ)
			bufs[n++] = (char *) iov[i].iov_base + off;
		start += iov[i].iov_len;
	}
	*pos += (Size) n * BLCKSZ;
	return n;
}

ssize_t
rbp_tier_read(int fd, const RbpRelFile *file, RbpCacheView *cache,
			  BlockNumber block, const struct iovec *iov, int iovcnt,
			  off_t offset)
{
	uint16		space;
	char	   *bufs[RBP_MAX_BATCH];
	Size		pos = 0;
	ssize_t		total = 0;

	if (iovcnt == 1 && iov->iov_len == BLCKSZ &&
		read_straight(fd, iov->iov_base, offset, &total))
		return total;

	space = rbp_space_get(file->spc, file->db);
	for (;;)
	{
		Size		at = pos;
		int			n = next_batch(iov, iovcnt, &pos, bufs);
		ssize_t		got;

		if (n == 0)
		{
			if (!rbp_page_cache_keeps())
				straight_reads = 0;
			else if (straight_reads == 0)
				straight_reads = rbp_read_cost_straight(&read_cost,
														rbp_guc_bypass == RBP_BYPASS_AUTO);
			return total;
		}
		got = read_batch(fd, file, cache, space, block + at / BLCKSZ, bufs, n,
						 offset + (off_t) at);
		if (got < 0)
			return total > 0 ? total : got;
		total += got;
		if (got < (ssize_t) n * BLCKSZ)
			return total;
	}
}

bool
rbp_tier_has_blocks(const RbpRelFile *file, BlockNumber block, int nblocks)
{
	uint16		space = rbp_space_find(file->spc, file->db);

	if (space == RBP_INVALID_SPACE || rbp_guc_compare_with_disk ||
		!tier_usable(rbp_now_ns()))
		return false;
	for (int i = 0; i < nblocks; i++)
	{
		RbpPageId	id = {.rel = file->rel,.block = block + i,.space = space,
		.fork = file->fork};

		RbpLookup	lookup = rbp_directory_lookup(rbp_dir, &id, false);

		if (lookup.where == RBP_ABSENT ||
			(lookup.where == RBP_REMOTE &&
			 (!rbp_remote_slot_readable(lookup.slot) ||
			  (rbp_guc_bypass == RBP_BYPASS_AUTO &&
			   rbp_read_cost_slower(&read_cost, rbp_remote_slot_transport(lookup.slot))))))
			return false;
	}
	rbp_stats_count(RBP_COUNT_PREFETCHES_SAVED, nblocks);
	return true;
}

/*
 * ---- prewarm ------------------------------------------------------------------
 */

void
rbp_tier_set_unconnected(void)
{
	unconnected = true;
}

void
rbp_tier_set_prewarming(bool on)
{
	prewarming = on;
}

/* The page's name; false if it can have none. */
static bool
name_page(const RbpRelFile *file, BlockNumber block, RbpPageId *id)
{
	*id = (RbpPageId)
	{
		.rel = file->rel,.block = block,
		.space = rbp_space_get(file->spc, file->db),.fork = file->fork
	};
	return id->space != RBP_INVALID_SPACE;
}

bool
rbp_tier_wants(const RbpRelFile *file)
{
	RbpPageId	id;

	return name_page(file, 0, &id) && page_policy(&id) != RBP_POLICY_NONE;
}

bool
rbp_tier_has_block(const RbpRelFile *file, BlockNumber block)
{
	RbpPageId	id;

	return name_page(file, block, &id) &&
		rbp_directory_lookup(rbp_dir, &id, false).where != RBP_ABSENT;
}

bool
rbp_tier_keep_block(const RbpRelFile *file, BlockNumber block)
{
	RbpPageId	id;

	return name_page(file, block, &id) && rbp_directory_keep(rbp_dir, &id);
}

bool
rbp_tier_has_room(const RbpRelFile *file, BlockNumber block)
{
	RbpPageId	id;

	return name_page(file, block, &id) && rbp_directory_has_room(rbp_dir, &id);
}

bool
rbp_tier_staging_is_busy(void)
{
	if (rbp_staging_busy(rbp_staging) <= rbp_staging_slots(rbp_staging) / 2)
		return false;
	rbp_pusher_wake();
	return true;
}

bool
rbp_tier_is_full(void)
{
	return rbp_directory_is_full(rbp_dir);
}

void
rbp_tier_pages(RbpTierPages *pages)
{
	RbpDirectoryCounts counts;

	rbp_directory_counts(rbp_dir, &counts);
	pages->remote = counts.remote;
	pages->kept = counts.kept;
	pages->staged = counts.staged;
	pages->free = counts.free;
	pages->online = counts.online;
	pages->max = rbp_directory_max_slots(rbp_dir);
}

RbpStageResult
rbp_tier_prewarm_frame(const RbpRelFile *file, BlockNumber block,
					   const char *frame)
{
	const RbpShadow *shadow = shadow_of(frame);
	RbpPageId	id;

	if (!name_page(file, block, &id) || !(shadow->flags & SHADOW_VALID) ||
		!rbp_page_equal(&shadow->page, &id))
		return RBP_STAGE_REFUSED;
	return stage(frame, &id, &shadow->version, shadow->flags);
}

bool
rbp_tier_prewarm_begin(const RbpRelFile *file, BlockNumber block,
					   RbpVersion *version)
{
	RbpPageId	id;

	if (!name_page(file, block, &id))
		return false;
	version->stamp = rbp_directory_stamp(rbp_dir, &id);
	version->generation = rbp_directory_generation(rbp_dir, id.rel, id.space,
												   id.fork);
	return true;
}

RbpStageResult
rbp_tier_prewarm_page(const RbpRelFile *file, BlockNumber block,
					  const char *page, RbpVersion *version)
{
	RbpPageId	id;

	if (!name_page(file, block, &id))
		return RBP_STAGE_REFUSED;
	version->hash = rbp_hash_page(page);
	return stage(page, &id, version, SHADOW_READ);
}

/*
 * ---- writes -------------------------------------------------------------------
 */

/* As the server would have called it. */
static ssize_t
plain_write(int fd, const struct iovec *iov, int iovcnt, off_t offset)
{
	if (iovcnt == 1)
		return rbp_libc.pwrite(fd, iov[0].iov_base, iov[0].iov_len, offset);
	return rbp_libc.pwritev(fd, iov, iovcnt, offset);
}

void
rbp_tier_fork_changed(const RbpRelFile *file)
{
	uint16		space;

	/* No PGPROC needed: generations are atomics. */
	if (!has_shmem() || pg_atomic_read_u32(&shared->in_use) == 0)
		return;
	space = rbp_space_find(file->spc, file->db);
	if (space == RBP_INVALID_SPACE)
		return;
	rbp_directory_bump_generation(rbp_dir, file->rel, space, file->fork);
	rbp_stats_count(RBP_COUNT_GENERATIONS, 1);
	/* the relation may have other files now */
	if (rbp_directory_policy(rbp_dir, file->rel, space) != RBP_POLICY_DEFAULT)
		rbp_residency_changed(file->db);
}

/* Drop the entries of blocks that are about to be written. */
static void
invalidate_blocks(const RbpRelFile *file, uint16 space, BlockNumber block,
				  int n)
{
	for (int i = 0; i < n; i++)
	{
		RbpPageId	id = {.rel = file->rel,.block = block + i,.space = space,
		.fork = file->fork};

		if (rbp_directory_invalidate(rbp_dir, &id) != RBP_ABSENT)
			rbp_stats_count(RBP_COUNT_INVALIDATIONS, 1);
	}
}

/*
 * The frame whose claim a write of the page from buf will be, or NULL if the page is not
 * worth capturing, for which *why_not is set, or its frame not known.  What was worth
 * it before it was changed still is, if memory is scarce: else the tier would
 * lose what is written again and again.
 */
static char *
frame_to_claim(const RbpRelFile *file, const RbpPageId *page, char *buf,
			   bool scarce, uint32 *why_not)
{
	char	   *frame;

	*why_not = SHADOW_CACHED;
	if (!is_frame(buf, BLCKSZ) && !DataChecksumsEnabled())
		return NULL;
	*why_not = why_not_capture(page, true);
	if (*why_not == SHADOW_POLICY || (*why_not != 0 && !scarce))
		return NULL;
	frame = is_frame(buf, BLCKSZ) ? buf : frame_by_tag(file, page->block);
	if (frame == NULL || *why_not == 0)
		return frame;
	return (shadow_of(frame)->flags & SHADOW_VALID) &&
		rbp_page_equal(&shadow_of(frame)->page, page) ? frame : NULL;
}

/* Write at most RBP_MAX_BATCH whole pages, and make the claims about them. */
static ssize_t
write_batch(int fd, const RbpRelFile *file, uint16 space, BlockNumber block,
			char **bufs, int n, off_t offset)
{
	struct iovec iov[RBP_MAX_BATCH];
	RbpVersion	versions[RBP_MAX_BATCH];
	RbpPageId	ids[RBP_MAX_BATCH];
	char	   *frames[RBP_MAX_BATCH];	/* whose claim it will be */
	uint32		flags[RBP_MAX_BATCH];
	uint32		why_not;
	uint32		generation;
	ssize_t		result;
	bool		scarce = !rbp_page_cache_keeps();

	/* The bounce buffer is used by this write, whatever else it had. */
	for (int i = 0; i < n; i++)
	{
		ids[i] = (RbpPageId)
		{
			.rel = file->rel,.block = block + i,.space = space,.fork = file->fork
		};
		if (is_frame(bufs[i], BLCKSZ))
			capture_before_extend(bufs[i], &ids[i]);
	}
	last_write.valid = false;

	generation = rbp_directory_generation(rbp_dir, file->rel, space, file->fork);
	for (int i = 0; i < n; i++)
	{
		iov[i].iov_base = bufs[i];
		iov[i].iov_len = BLCKSZ;
		frames[i] = frame_to_claim(file, &ids[i], bufs[i], scarce, &why_not);
		flags[i] = 0;
		if (frames[i] == NULL)
		{
			/* no claim, so no copy either */
			if (is_frame(bufs[i], BLCKSZ))
				shadow_of(bufs[i])->flags = why_not;
			continue;
		}
		if (frames[i] != bufs[i])
			flags[i] = SHADOW_CHECKSUM;
		else
		{
			iov[i].iov_base = bounce + (Size) i * BLCKSZ;
			memcpy(iov[i].iov_base, bufs[i], BLCKSZ);
		}
		forget_frame(frames[i]);
		versions[i].hash = rbp_hash_page(iov[i].iov_base);
		versions[i].stamp = rbp_directory_stamp(rbp_dir, &ids[i]);
		versions[i].generation = generation;
	}

	result = plain_write(fd, iov, n, offset);

	for (int i = 0; i < n && (ssize_t) (i + 1) * BLCKSZ <= result; i++)
		if (frames[i] != NULL)
			remember_frame(frames[i], &ids[i], &versions[i], flags[i]);
	if (n == 1 && result == BLCKSZ && frames[0] != NULL)
	{
		last_write.valid = true;
		last_write.page = ids[0];
		last_write.version = versions[0];
		last_write.copy = iov[0].iov_base;
	}
	return result;
}

ssize_t
rbp_tier_write(int fd, const RbpRelFile *file, BlockNumber block,
			   const struct iovec *iov, int iovcnt, off_t offset)
{
	uint16		space;
	Size		len = 0;
	Size		pos = 0;
	bool		whole = offset % BLCKSZ == 0;
	ssize_t		total = 0;

	if (!has_shmem() || pg_atomic_read_u32(&shared->in_use) == 0)
		return plain_write(fd, iov, iovcnt, offset);

	space = rbp_space_get(file->spc, file->db);
	for (int i = 0; i < iovcnt; i++)
	{
		len += iov[i].iov_len;
		whole = whole && iov[i].iov_len % BLCKSZ == 0;
	}
	if (space == RBP_INVALID_SPACE || len == 0)
		return plain_write(fd, iov, iovcnt, offset);
	rbp_stats_count(RBP_COUNT_DISK_WRITES, (len + BLCKSZ - 1) / BLCKSZ);

	/* Without a PGPROC no lock can be taken: kill the whole fork. */
	if (MyProc == NULL)
	{
		rbp_tier_fork_changed(file);
		return plain_write(fd, iov, iovcnt, offset);
	}

	invalidate_blocks(file, space, block,
					  (int) ((offset % BLCKSZ + len + BLCKSZ - 1) / BLCKSZ));
	/* the mutation shows why the page that is prewarmed is locked */
	if (RBP_MUTATED(RBP_MUTATION_PREWARM_UNLOCKED))
		pg_usleep(20000);

	/* What is not whole pages cannot be claimed about, nor is it needed. */
	if (!whole || !tier_usable(rbp_now_ns()))
	{
		for (int i = 0; i < iovcnt; i++)
			for (Size off = 0; off < iov[i].iov_len; off += BLCKSZ)
				forget_frame((char *) iov[i].iov_base + off);
		last_write.valid = false;
		return plain_write(fd, iov, iovcnt, offset);
	}

	for (;;)
	{
		char	   *bufs[RBP_MAX_BATCH];
		Size		at = pos;
		int			n = next_batch(iov, iovcnt, &pos, bufs);
		ssize_t		done;

		if (n == 0)
			return total;
		done = write_batch(fd, file, space, block + at / BLCKSZ, bufs, n,
						   offset + (off_t) at);
		if (done < 0)
			return total > 0 ? total : done;
		total += done;
		if (done < (ssize_t) n * BLCKSZ)
			return total;
	}
}
