/*-------------------------------------------------------------------------
 *
 * tier.c
 *	  The buffer tier as a whole: its shared memory, its state, and its size.
 *
 * Concurrency and coherence
 * -------------------------
 * The disk is authoritative.  The directory's entry (P, h) says "P's content
 * on disk hashes to h"; src/README.md has the whole argument.  read.c,
 * write.c and capture.c each implement a part of it, and frame.h explains the
 * claims about frames.
 *
 * These functions only wait for LWLocks that are held for well below a
 * microsecond, for the disk as without the tier, and for donors until a
 * deadline.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/pg_shmem.h"
#include "storage/proc.h"

#include "base/compat.h"
#include "base/geometry.h"
#include "base/guc.h"
#include "base/hash.h"
#include "base/injection_point.h"
#include "base/kept.h"
#include "base/layout.h"
#include "base/lock.h"
#include "base/relfile.h"
#include "base/stats.h"
#include "base/workers.h"
#include "buffer/buffer.h"
#include "buffer/buffer_internal.h"
#include "buffer/directory.h"
#include "buffer/frame.h"
#include "buffer/page.h"
#include "buffer/staging.h"
#include "common/clock.h"
#include "remote/remote.h"

#define SYNC_REPORT_NS	INT64CONST(60000000000) /* between reports of failed
												 * syncs */

StaticAssertDecl(BLCKSZ == RBP_PAGE_SIZE && BLCKSZ == RBP_HASH_BYTES,
				 "remote_bp is made for 8 KiB blocks");

RbpTierShared *rbp_tier_shared = NULL;
RbpDirectory *rbp_dir = NULL;
RbpStaging *rbp_staging = NULL;
RbpShadow  *rbp_shadows = NULL;
RbpShadow	rbp_no_frame;

bool		rbp_tier_unconnected = false;
bool		rbp_tier_prewarming = false;

/*
 * ---- set-up -----------------------------------------------------------------
 */

static uint32
max_slots(void)
{
	return (uint32) (rbp_guc_buffer_tier_max_size + rbp_guc_tier_size_ahead()) * (1024 * 1024 / BLCKSZ);
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

/* What is kept over a crash: the state of the tier, the spaces, and the directory */
Size
rbp_tier_directory_size(void)
{
	return add_size(rbp_align_line(sizeof(RbpTierShared)),
					rbp_directory_size(max_slots(), staging_slots(), NBuffers));
}

void
rbp_tier_directory_open(void *mem, bool found)
{
	RbpTierShared *sh = mem;
	void	   *dir = (char *) mem + rbp_align_line(sizeof(RbpTierShared));

	/* all of it is zero at first but for this */
	pg_atomic_init_u32(&sh->wake_depth, PG_UINT32_MAX);
	pg_atomic_init_u32(&sh->consistent, 0);
	pg_atomic_init_u32(&sh->scanning, 0);
	pg_atomic_init_u32(&sh->has_hot_pages, 0);
	rbp_dir = rbp_directory_open(dir, found, rbp_remote_extents(RBP_POOL_BUFFER), staging_slots(), NBuffers,
								 rbp_lock_tranche("RemoteBpPartition"));
	rbp_directory_set_keep_max(rbp_dir, rbp_guc_keep_max_pages());
	rbp_tier_shared = sh;
	rbp_tier_image_load();
}

/* Claims of frames and staging; the staging region begins at a page. */
Size
rbp_tier_shmem_size(void)
{
	return add_size(add_size(mul_size(sizeof(RbpShadow), NBuffers), rbp_staging_size(staging_slots())),
					PG_CACHE_LINE_SIZE + RBP_IO_ALIGN);
}

void
rbp_tier_shmem_init(void *mem)
{
	char	   *arena = mem;

	rbp_shadows = rbp_layout_take(&arena, sizeof(RbpShadow) * NBuffers, PG_CACHE_LINE_SIZE);
	rbp_staging = rbp_staging_init(rbp_layout_take(&arena, rbp_staging_size(staging_slots()), RBP_IO_ALIGN),
								   staging_slots());
}

/*
 * A write that is under way need not be recorded: who makes a claim has seen
 * in_use, and gets to the page only after that write.
 */
void
rbp_tier_came_online(void)
{
	pg_atomic_write_u32(&rbp_tier_shared->in_use, 1);
	/* there may be room now for pages that should be kept */
	rbp_residency_changed(InvalidOid);
}

void
rbp_tier_stand_down(void)
{
	rbp_tier_shared = NULL;
	rbp_shadows = NULL;
	rbp_dir = NULL;
	rbp_staging = NULL;
}

/*
 * ---- state ------------------------------------------------------------------
 */

/* Is it there?  A child may have detached all of it (the syslogger does). */
static bool
has_shmem(void)
{
	return rbp_tier_shared != NULL && UsedShmemSegAddr != NULL;
}

bool
rbp_tier_records_writes(void)
{
	return has_shmem() && pg_atomic_read_u32(&rbp_tier_shared->in_use) != 0;
}

bool
rbp_tier_attached(void)
{
	return rbp_tier_records_writes() && MyProc != NULL;
}

void
rbp_tier_lost_track(const char *why)
{
	if (!has_shmem() || pg_atomic_exchange_u32(&rbp_tier_shared->lost_track, 1) != 0)
		return;
	rbp_kept_discard(why);
	/* reporting checks for interrupts, which must not end the file call */
	HOLD_INTERRUPTS();
	ereport(LOG,
			(errmsg("remote_bp is off until the server restarts: %s", why)));
	RESUME_INTERRUPTS();
}

/* The server reports each failure, so once a minute is enough here. */
void
rbp_tier_sync_failed(const char *call)
{
	static int64 next_report = 0;

	/*
	 * first: pages that the page cache has, from now on, may be newer than
	 * the disk
	 */
	rbp_kept_discard("a sync of relation files failed");
	if (!rbp_tier_records_writes())
		return;
	/* claims of frames have a generation, too */
	rbp_directory_bump_all(rbp_dir);
	if (rbp_now_ns() < next_report)
		return;
	next_report = rbp_now_ns() + SYNC_REPORT_NS;
	HOLD_INTERRUPTS();
	ereport(LOG,
			(errmsg("remote_bp: all pages of the tier are dropped, since %s failed for a relation file or directory", call)));
	RESUME_INTERRUPTS();
}

bool
rbp_tier_unusable_reason(char *buf, Size len)
{
	if (!rbp_guc_enabled)
		strlcpy(buf, "remote_bp.enabled is off", len);
	else if (pg_atomic_read_u32(&rbp_tier_shared->lost_track) != 0)
		strlcpy(buf, "remote_bp is off until the server restarts; the log says why", len);
	else
		return rbp_remote_unusable_reason(RBP_POOL_BUFFER, buf, len) ||
			rbp_worker_away(RBP_WORKER_PUSHER, buf, len);
	return true;
}

/*
 * Redo reads the disk: a page that is newer than it would make redo skip a record, and the
 * page be lost.  So before the server is consistent the process that redoes, and those
 * that may read for it, are not served.  All others read pages only when it is.
 */
static bool
is_consistent(void)
{
	static bool noted = false;

	if (likely(noted))
		return true;
	if (AmStartupProcess())
		noted = reachedConsistency;
	else
		noted = !rbp_compat_is_io_worker() || !RecoveryInProgress() ||
			pg_atomic_read_u32(&rbp_tier_shared->consistent) != 0;
	/* the checkpointer and the background writer run during recovery, too */
	if (noted && rbp_tier_write_evicts())
		pg_atomic_write_u32(&rbp_tier_shared->consistent, 1);
	return noted;
}

bool
rbp_tier_write_evicts(void)
{
	return MyBackendType != B_CHECKPOINTER && MyBackendType != B_BG_WRITER;
}

bool
rbp_tier_usable(int64 now)
{
	return is_consistent() && rbp_guc_enabled && rbp_guc_use_tier != RBP_USE_TIER_OFF &&
		rbp_remote_usable(RBP_POOL_BUFFER, now) &&
		pg_atomic_read_u32(&rbp_tier_shared->lost_track) == 0;
}

bool
rbp_tier_is_frames(const struct iovec *iov, int iovcnt)
{
	for (int i = 0; i < iovcnt; i++)
		if (iov[i].iov_len == 0 || iov[i].iov_len % BLCKSZ != 0 ||
			!rbp_is_frame(iov[i].iov_base, iov[i].iov_len))
		{
			/* the injection point shows why private memory is not served */
			if (RBP_INJECTION_POINT("serve-private") &&
				iov[i].iov_len > 0 && iov[i].iov_len % BLCKSZ == 0)
				continue;
			return false;
		}
	return true;
}

void
rbp_tier_invalidate(const RbpRelFile *file, BlockNumber block, BlockNumber nblocks)
{
	RbpPageId	page = {.rel = file->rel,.fork = file->fork};

	rbp_tier_note_fsync();
	if (!rbp_tier_records_writes())
		return;
	page.space = rbp_space_find(file->spc, file->db);
	if (page.space == RBP_INVALID_SPACE)
		return;
	if (nblocks > 0)
		rbp_stats_count(RBP_COUNT_GENERATIONS, 1);
	/* Generations are atomics: without a PGPROC no lock can be taken. */
	if (nblocks > RBP_FEW_BLOCKS || (nblocks > 0 && MyProc == NULL))
		rbp_directory_bump_generation(rbp_dir, page.rel, page.space, page.fork);
	else
		for (page.block = block; page.block - block < nblocks; page.block++)
			(void) rbp_directory_invalidate(rbp_dir, &page, false);
	/* the relation may have other files now */
	if (rbp_directory_policy(rbp_dir, page.rel, page.space) != RBP_POLICY_DEFAULT)
		rbp_residency_changed(file->db);
}

int
rbp_next_batch(const struct iovec *iov, int iovcnt, Size *pos, char **bufs)
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

/*
 * ---- prewarm ----------------------------------------------------------------
 */

bool
rbp_tier_name_page(const RbpRelFile *file, BlockNumber block, RbpPageRef *page)
{
	RbpPageId	id = {.rel = file->rel,.block = block,
	.space = rbp_space_get(file->spc, file->db),.fork = file->fork};

	*page = rbp_page_ref(&id);
	return id.space != RBP_INVALID_SPACE;
}

RbpPolicy
rbp_page_policy(const RbpPageId *page)
{
	RbpPolicy	policy = rbp_directory_policy(rbp_dir, page->rel, page->space);

	if (policy == RBP_POLICY_DEFAULT && rbp_residency_excludes(page->space))
		return RBP_POLICY_NONE;
	return policy;
}

bool
rbp_tier_wants(const RbpRelFile *file)
{
	RbpPageRef	page;

	return rbp_tier_name_page(file, 0, &page) && rbp_page_policy(&page.id) != RBP_POLICY_NONE;
}

bool
rbp_tier_has_block(const RbpRelFile *file, BlockNumber block, bool touch)
{
	RbpPageId	id = {.rel = file->rel,.block = block,
	.space = rbp_space_find(file->spc, file->db),.fork = file->fork};
	RbpPageRef	page = rbp_page_ref(&id);

	return id.space != RBP_INVALID_SPACE &&
		rbp_directory_lookup(rbp_dir, &page, touch).where != RBP_ABSENT;
}

bool
rbp_tier_keep_block(const RbpRelFile *file, BlockNumber block)
{
	RbpPageRef	page;

	return rbp_tier_name_page(file, block, &page) && rbp_directory_keep(rbp_dir, &page.id);
}

RbpRoom
rbp_tier_room(const RbpRelFile *file, BlockNumber block)
{
	RbpPageRef	page;

	return rbp_tier_name_page(file, block, &page) ? rbp_directory_room(rbp_dir, &page.id) : RBP_ROOM_NONE;
}

bool
rbp_tier_staging_is_busy(void)
{
	if (rbp_staging_busy(rbp_staging) <= rbp_staging_slots(rbp_staging) / 2)
		return false;
	rbp_worker_wake(RBP_WORKER_PUSHER);
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
	rbp_directory_counts(rbp_dir, pages);
	pages->max = (uint64) rbp_guc_buffer_tier_max_size * (1024 * 1024 / BLCKSZ);
}
