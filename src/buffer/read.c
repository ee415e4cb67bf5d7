/*-------------------------------------------------------------------------
 *
 * read.c
 *	  Reads of pages: from staging, from donors, or from the file.
 *
 * Read of page Q into frame F that holds victim P:
 *	1. Capture P from F, if F's claim holds and the directory does not have P:
 *	   copy F to a staging slot, hash the copy (never the frame, which may get
 *	   hint bits at any time), verify it if the claim stems from a single read
 *	   of the disk, and insert it under the partition lock, where stamp and
 *	   generation are checked again.  But if P is Q, the server refused the
 *	   content of F: then distrust everything that was read of Q so far.
 *	2. Note Q's stamp and generation, before Q is looked up or read.
 *	3. Serve Q from staging or a donor, if the directory has Q and the bytes
 *	   hash to the hash of the entry; otherwise read it from disk.  Bytes that
 *	   were read ahead (read_ahead.c) are used like those of a donor.
 *	4. Store the claim about Q in F's shadow.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/bufpage.h"

#include "base/choice.h"
#include "base/geometry.h"
#include "base/guc.h"
#include "base/hash.h"
#include "base/injection_point.h"
#include "base/libc.h"
#include "base/page_cache.h"
#include "base/relfile.h"
#include "base/stats.h"
#include "buffer/buffer.h"
#include "buffer/buffer_internal.h"
#include "buffer/directory.h"
#include "buffer/frame.h"
#include "buffer/page.h"
#include "buffer/read_ahead.h"
#include "buffer/relation_stats.h"
#include "buffer/staging.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"

/* One page of a request that is being served. */
typedef struct ReadPage
{
	char	   *buf;
	RbpPageRef	ref;
	RbpLookup	lookup;
	RbpVersion	version;
	RbpCounter	outcome;		/* of its read; until it is served, that of a
								 * read of the file, as far as is known */
	bool		prefer_file;	/* a donor has it, but the file is read */
} ReadPage;

/* Consecutive pages of a file, RBP_MAX_BATCH at most, that are read together. */
typedef struct ReadRun
{
	int			fd;
	const RbpRelFile *file;
	RbpCacheView *cache;		/* what is known of the file's page cache */
	int			fs;				/* number of its file system */
	off_t		offset;			/* of the first page */
	ReadPage   *pages;
	int			n;
	RbpWindow  *window;			/* that has the first page, or NULL */
	bool		blind;			/* the page cache cannot tell what it has */
	uint32		skip_reason;	/* of all pages, as RBP_SHADOW_*; 0: each has
								 * its own */
	int64		read_at;		/* when the last page was read */
} ReadRun;

/* Numbers of pages, by their outcomes */
typedef int Outcomes[RBP_COUNT_CAPTURES];

static char compare_page[BLCKSZ] pg_attribute_aligned(RBP_IO_ALIGN);

/*
 * Time that announcements have taken since the last read.  It is a part of what their
 * source costs: an announcement takes the kernel longer than the read of the page, which
 * it has fetched by then.
 */
static int64 announcing_ns = 0;

/* Is the page in its buffer, without the file? */
static inline bool
is_served(const ReadPage *page)
{
	return page->outcome == RBP_COUNT_DONOR || page->outcome == RBP_COUNT_STAGED;
}

static inline void
set_cached(ReadPage *page, bool cached)
{
	page->outcome = cached ? RBP_COUNT_PAGE_CACHE : RBP_COUNT_DISK;
}

/* Do the bytes in buf match the hash of the directory entry? */
static inline bool
verify(const ReadPage *page)
{
	return rbp_hash_page(page->buf) == page->lookup.hash ||
		RBP_INJECTION_POINT("no-verify");
}

/*
 * Handle a failed verification.  Returns true if the entry has only moved, so
 * that the caller can look it up again.  Otherwise the entry is dropped.
 */
static bool
verify_failed_by_race(const ReadPage *page)
{
	if (rbp_directory_drop_if_same(rbp_dir, &page->ref.id, &page->lookup))
	{
		rbp_stats_count(RBP_COUNT_HASH_FAILURES, 1);
		if (page->lookup.where == RBP_REMOTE)
			rbp_remote_wrong_bytes(page->lookup.slot);
		return false;
	}
	rbp_stats_count(RBP_COUNT_RACES, 1);
	return true;
}

/*
 * Note the page's version, look it up, and serve it if it is staged.  If the
 * pusher has moved it meanwhile, so that the bytes do not verify, look it up once
 * more: it should be remote then.
 */
static void
lookup_page(ReadPage *page)
{
	for (int attempt = 0; attempt < 2; attempt++)
	{
		page->lookup = attempt == 0 ?
			rbp_directory_begin_read(rbp_dir, &page->ref, &page->version) :
			rbp_directory_lookup(rbp_dir, &page->ref, false);
		if (page->lookup.where != RBP_STAGED)
			return;
		memcpy(page->buf, rbp_staging_page(rbp_staging, page->lookup.slot),
			   BLCKSZ);
		if (verify(page))
		{
			page->outcome = RBP_COUNT_STAGED;
			return;
		}
		if (!verify_failed_by_race(page))
			break;
	}
	page->lookup.where = RBP_ABSENT;
}

/*
 * Compare a page that is about to be returned with the disk.  Returns false
 * if it differs, so that the caller reads the page from disk.
 */
static bool
compare_with_disk(const ReadRun *run, int i)
{
	const RbpRelFile *file = run->file;
	const ReadPage *page = &run->pages[i];
	ssize_t		n = rbp_libc.pread(run->fd, compare_page, BLCKSZ, run->offset + (off_t) i * BLCKSZ);
	char		where[160];

	rbp_stats_count(RBP_COUNT_COMPARED, 1);
	if (n == BLCKSZ && memcmp(compare_page, page->buf, BLCKSZ) == 0)
		return true;

	rbp_stats_count(RBP_COUNT_MISMATCHES, 1);
	(void) rbp_directory_drop_if_same(rbp_dir, &page->ref.id, &page->lookup);
	if (page->lookup.where == RBP_REMOTE)
		rbp_remote_slot_name(page->lookup.slot, where, sizeof(where));
	else
		snprintf(where, sizeof(where), "staging slot %u", page->lookup.slot);
	/* reporting checks for interrupts, which must not end the file call */
	HOLD_INTERRUPTS();
	if (n != BLCKSZ)
		ereport(LOG,
				(errmsg("remote_bp mismatch: block %u of relation fork %u/%u/%u/%u in %s is not on disk (%zd bytes read)",
						page->ref.id.block, file->spc, file->db, file->rel,
						file->fork, where, n)));
	else
		ereport(LOG,
				(errmsg("remote_bp mismatch: block %u of relation fork %u/%u/%u/%u in %s differs from disk: LSN %X/%X, on disk %X/%X",
						page->ref.id.block, file->spc, file->db, file->rel,
						file->fork, where,
						LSN_FORMAT_ARGS(PageGetLSN((Page) page->buf)),
						LSN_FORMAT_ARGS(PageGetLSN((Page) compare_page)))));
	RESUME_INTERRUPTS();
	return false;
}

/*
 * Choose the file for a page that a donor has.  reason: the counter of these.
 */
static void
set_prefer_file(ReadPage *page, RbpCounter reason)
{
	page->prefer_file = true;
	rbp_stats_count(reason, 1);
	if (reason == RBP_COUNT_BYPASSED)
		rbp_remote_count_bypassed(page->lookup.slot, 1);
}

/* May the page cache be asked about the file? */
static inline bool
is_askable(const ReadRun *run)
{
	return rbp_guc_read_from != RBP_READ_DONOR && !(run->cache->tested && !run->cache->reliable);
}

/*
 * Ask the page cache about the pages of the run.  Returns false if it cannot
 * answer, or not yet.
 */
static bool
ask_page_cache(const ReadRun *run)
{
	bool		cached[RBP_MAX_BATCH];
	int			ncached = 0;

	if (!is_askable(run) ||
		!rbp_page_cache_ask(run->fd, run->cache, run->offset, run->n, cached))
		return false;
	for (int i = 0; i < run->n; i++)
	{
		if (!is_served(&run->pages[i]))
			set_cached(&run->pages[i], cached[i]);
		ncached += cached[i];
	}
	rbp_choice_asked(run->fs, run->n, ncached);
	return true;
}

/*
 * Choose where to read the pages from, which are in no window.  Pages that
 * donors have, but that should come from the file, are marked.  transport: the
 * one to the donor of the first remote page, or RBP_NO_TRANSPORT.
 */
static void
choose_sources(ReadRun *run, int transport, int64 start)
{
	RbpSource	source = rbp_choose_page(run->fs, transport, is_askable(run), start);
	bool		trial = source == RBP_SOURCE_TRIAL;
	bool		known = (trial || source == RBP_SOURCE_ASK) && ask_page_cache(run);
	bool		slow;			/* donors are slower than the disk */

	run->blind = !known && (!is_askable(run) || trial || source == RBP_SOURCE_ASK) &&
		rbp_guc_read_from != RBP_READ_DONOR;
	slow = source == RBP_SOURCE_FILE && transport != RBP_NO_TRANSPORT &&
		rbp_choose_file(run->fs, transport, RBP_WORK_PAGE, false);
	for (int i = 0; i < run->n && source != RBP_SOURCE_DONOR; i++)
	{
		ReadPage   *page = &run->pages[i];
		bool		cached = page->outcome == RBP_COUNT_PAGE_CACHE;

		if (!is_served(page) && page->lookup.where == RBP_REMOTE &&
			(source == RBP_SOURCE_FILE ||
			 rbp_choose_file(run->fs, transport, RBP_WORK_PAGE, cached) != (trial && !cached)))
			set_prefer_file(page, trial && !cached ? RBP_COUNT_PAGE_CACHE_FILLS :
							cached || (source == RBP_SOURCE_FILE && !slow) ? RBP_COUNT_PAGE_CACHE_FIRST :
							RBP_COUNT_BYPASSED);
	}
	if (source == RBP_SOURCE_FILE && (slow || is_askable(run)))
	{
		run->skip_reason = slow ? RBP_SHADOW_SLOW : RBP_SHADOW_CACHED;
		rbp_straight_begin(&run->cache->straight, run->fs, RBP_WORK_PAGE, 1, !slow);
	}
}

/*
 * The source of pages in a window was chosen for all of it.  What is known of
 * the page cache is known from then.
 */
static void
follow_window(ReadRun *run)
{
	const RbpWindow *w = run->window;

	/* it is timed: do not hash */
	if (w->trial)
		run->skip_reason = RBP_SHADOW_SLOW;
	for (int i = 0; i < run->n; i++)
	{
		ReadPage   *page = &run->pages[i];
		uint32		at = page->ref.id.block - w->first.block;

		if (is_served(page))
			continue;
		if (w->asked && at < (uint32) w->n)
			set_cached(page, w->cached[at]);

		/*
		 * a window that donors have nothing of says nothing of pages behind
		 * it
		 */
		if (page->lookup.where == RBP_REMOTE && w->file &&
			(w->remote > 0 || w->trial || w->mostly_cached))
			set_prefer_file(page, w->trial ? RBP_COUNT_PAGE_CACHE_FILLS :
							w->mostly_cached ? RBP_COUNT_PAGE_CACHE_FIRST : RBP_COUNT_BYPASSED);
	}
}

/*
 * Count reads of pages from donors, of which that slot's is one, and what they have
 * saved, compared with the file.  known: of the pages that came, what was known
 * before.  took: the time that this process spent, also if nothing came.
 */
static void
count_from_donors(const ReadRun *run, uint32 slot, const Outcomes known, int64 took, bool ahead)
{
	int			n = known[RBP_COUNT_DISK] + known[RBP_COUNT_PAGE_CACHE] + known[RBP_COUNT_FILE];
	int64		saved = rbp_choice_saved(run->fs, run->window != NULL ? RBP_WORK_RUN : RBP_WORK_PAGE,
										 known[RBP_COUNT_DISK], known[RBP_COUNT_FILE], took);

	if (n > 0)
		rbp_count_read(run->file, RBP_COUNT_DONOR, n, took);
	/* it is unknown when what was read ahead has come */
	rbp_remote_count_read(slot, n > 0 && !ahead ? took : -1, saved);
}

/* Serve pages that were read ahead.  Once a wait has failed, none is left. */
static void
take_read_ahead(ReadRun *run, int64 start)
{
	int64		deadline = 0;
	uint32		slot = RBP_INVALID_SLOT;
	Outcomes	known = {0};
	int			nhits = 0;
	int64		took;
	bool		late = false;

	for (int i = 0; i < run->n; i++)
	{
		ReadPage   *page = &run->pages[i];
		RbpTaken	taken = RBP_TAKEN_LATE;

		if (is_served(page))
			continue;
		if (!late)
			taken = rbp_read_ahead_take(&page->ref.id, &page->lookup, page->buf, &deadline);
		late = taken == RBP_TAKEN_LATE;

		/*
		 * the slot is to be read again after a mismatch, which proves nothing
		 * of it
		 */
		if (taken == RBP_TAKEN_NOTHING || taken == RBP_TAKEN_MISMATCH ||
			page->lookup.where != RBP_REMOTE)
			continue;
		slot = page->lookup.slot;
		if (taken == RBP_TAKEN_PAGE)
		{
			page->outcome = RBP_COUNT_DONOR;
			nhits++;
			continue;
		}
		/* it is not asked for once more */
		page->lookup.where = RBP_ABSENT;
		rbp_stats_count(RBP_COUNT_FALLBACKS, 1);
	}
	if (slot == RBP_INVALID_SLOT)
		return;
	run->read_at = rbp_now_ns();
	took = run->read_at - start;
	/* if the page cache could be asked, it did not have what was announced */
	known[rbp_guc_read_from != RBP_READ_DONOR && run->cache->reliable ?
		  RBP_COUNT_DISK : RBP_COUNT_FILE] = nhits;
	count_from_donors(run, slot, known, took, true);
}

/*
 * Read the pages that donors have, except those that should come from the
 * file.  transport: the one to the donor of the first remote page.
 */
static void
read_from_donors(ReadRun *run, int transport, int64 start)
{
	ReadPage   *asked[RBP_MAX_BATCH];
	RbpRemoteIo ios[RBP_MAX_BATCH];
	int			nios = 0;
	int			nhits = 0;
	Outcomes	known = {0};
	RbpWork		work = run->window != NULL ? RBP_WORK_RUN : RBP_WORK_PAGE;
	uint32		connects = rbp_remote_connects();
	uint32		slot;			/* of the first page that came, or was asked
								 * for */
	int64		took;

	for (int i = 0; i < run->n; i++)
	{
		ReadPage   *page = &run->pages[i];

		if (is_served(page) || page->prefer_file || rbp_tier_unconnected ||
			page->lookup.where != RBP_REMOTE)
			continue;
		/* what pages of a window lose was counted when it was planned */
		if (!rbp_remote_slot_worth(page->lookup.slot, run->fs, work, run->window == NULL))
		{
			rbp_stats_count(RBP_COUNT_BELOW_THRESHOLD, 1);
			rbp_stats_count(RBP_COUNT_FALLBACKS, 1);
			continue;
		}
		ios[nios].slot = page->lookup.slot;
		ios[nios].buf = page->buf;
		asked[nios++] = page;
	}
	if (nios == 0)
		return;
	slot = ios[0].slot;
	/* do not charge the donor for the time spent on the page cache */
	if (rbp_guc_read_from != RBP_READ_DONOR)
		start = rbp_now_ns();
	rbp_remote_transfer(ios, nios, false, start, start + rbp_guc_io_timeout_ns());
	for (int i = 0; i < nios; i++)
	{
		if (ios[i].status == RBP_OK)
		{
			if (verify(asked[i]))
			{
				known[asked[i]->outcome]++;
				asked[i]->outcome = RBP_COUNT_DONOR;
				if (nhits++ == 0)
					slot = ios[i].slot;
				continue;
			}
			(void) verify_failed_by_race(asked[i]);
		}
		rbp_stats_count(RBP_COUNT_FALLBACKS, 1);
	}
	run->read_at = rbp_now_ns();
	took = run->read_at - start;
	count_from_donors(run, slot, known, took, false);

	/*
	 * Neither connecting nor waiting behind what was requested ahead is part
	 * of a read's cost: a rarely used donor would seem slow.  Windows are
	 * measured as a whole.
	 */
	if (nhits > 0 && connects == rbp_remote_connects() && run->window == NULL &&
		!rbp_ahead_waits(RBP_POOL_BUFFER))
		rbp_cost_add(run->fs, transport, RBP_COST_PAGE, nios, took);
}

/* Serve pages from staging, and from donors unless the file is cheaper. */
static void
read_from_tier(ReadRun *run, int64 start)
{
	int			nserved = 0;
	int			nstaged = 0;
	int			transport = RBP_NO_TRANSPORT;

	for (int i = 0; i < run->n; i++)
	{
		ReadPage   *page = &run->pages[i];

		lookup_page(page);
		if (is_served(page))
			nstaged++;
		else if (page->lookup.where == RBP_REMOTE && transport == RBP_NO_TRANSPORT)
			transport = rbp_remote_slot_transport(page->lookup.slot);
	}
	if (nstaged > 0)
	{
		int64		now = rbp_now_ns();

		rbp_count_read(run->file, RBP_COUNT_STAGED, nstaged, now - start);
		start = now;
	}
	if (nstaged < run->n)
		take_read_ahead(run, start);
	for (int i = 0; i < run->n; i++)
		nserved += is_served(&run->pages[i]);
	if (nserved < run->n)
	{
		if (run->window != NULL)
			follow_window(run);
		else
			choose_sources(run, transport, start);
		read_from_donors(run, transport, start);
	}

	if (rbp_guc_compare_with_disk)
		for (int i = 0; i < run->n; i++)
			if (is_served(&run->pages[i]) && !compare_with_disk(run, i))
				run->pages[i].outcome = RBP_COUNT_FILE;
}

/*
 * Set the frame's claim about a page that has just come from the file.  If
 * the directory has the page, its hash is taken over, which saves computing
 * one.  A page that is not worth capturing gets no claim.
 */
static void
claim_from_file(const ReadRun *run, ReadPage *page)
{
	uint32		skip_reason = run->skip_reason != 0 ? run->skip_reason :
	rbp_skip_reason(&page->ref.id, run->fs, page->outcome == RBP_COUNT_PAGE_CACHE);

	if (skip_reason != 0)
		rbp_shadow_of(page->buf)->flags = skip_reason;
	else if (page->prefer_file)
	{
		page->version.hash = page->lookup.hash;
		rbp_remember_frame(page->buf, &page->ref.id, &page->version, 0);
	}
	else
	{
		page->version.hash = rbp_hash_page(page->buf);
		rbp_remember_frame(page->buf, &page->ref.id, &page->version, RBP_SHADOW_READ);
	}
}

/*
 * Update the costs of reads by n pages, which took so long.  That tells a cost only
 * if all came from the same source.  Where the page cache cannot be asked, any
 * read of the file counts as one of the disk.
 */
static void
update_file_costs(const ReadRun *run, int n, const Outcomes known, int64 took)
{
	bool		blind = run->blind && known[RBP_COUNT_FILE] == n;

	if (known[RBP_COUNT_DISK] > 0 || blind)
		rbp_choice_waited(took * (known[RBP_COUNT_DISK] + known[RBP_COUNT_FILE]) / n);
	if (blind)
		rbp_choice_asked(run->fs, n, 0);
	if (run->window == NULL && (known[RBP_COUNT_DISK] == n || blind))
		rbp_cost_add(run->fs, RBP_NO_TRANSPORT, RBP_COST_PAGE, n, took);
}

/*
 * Count the first n pages, which took so many ns to read from the file.  The time is
 * one of the disk if a page came from there, and of the page cache if all did that
 * are known.  update_costs: also update the costs of reads.
 */
static void
account_file(const ReadRun *run, int n, bool update_costs, int64 took)
{
	static const RbpCounter outcomes[] = {RBP_COUNT_DISK, RBP_COUNT_PAGE_CACHE, RBP_COUNT_FILE};
	Outcomes	known = {0};
	int64		time = took;

	for (int i = 0; i < n; i++)
		known[run->pages[i].outcome]++;
	for (int i = 0; i < lengthof(outcomes); i++)
		if (known[outcomes[i]] > 0)
		{
			rbp_count_read(run->file, outcomes[i], known[outcomes[i]], time);
			time = -1;
		}
	if (update_costs)
		update_file_costs(run, n, known, took);
}

static void
fill_iov(const ReadRun *run, struct iovec *iov)
{
	for (int i = 0; i < run->n; i++)
	{
		iov[i].iov_base = run->pages[i].buf;
		iov[i].iov_len = BLCKSZ;
	}
}

/*
 * Read the run from the file; returns what preadv() returns.  claim: also set
 * the claims about the pages that were read completely.
 */
static ssize_t
read_from_file(ReadRun *run, bool claim)
{
	struct iovec iov[RBP_MAX_BATCH];
	int64		start = rbp_now_ns();
	ssize_t		got;

	fill_iov(run, iov);
	got = rbp_libc_readv(run->fd, iov, run->n, run->offset);
	if (got >= BLCKSZ)
	{
		int			save_errno = errno;

		run->read_at = rbp_now_ns();
		account_file(run, (int) (got / BLCKSZ), claim, run->read_at - start);
		for (int i = 0; claim && i < got / BLCKSZ; i++)
			claim_from_file(run, &run->pages[i]);
		if (claim && rbp_guc_read_from != RBP_READ_DONOR)
			rbp_page_cache_learn(run->fd, run->cache, run->offset);
		errno = save_errno;
	}
	return got;
}

/*
 * Handle the victim of a frame, which a read of these pages is about to overwrite, and
 * which the frame's claim is about.  Returns what rbp_capture_victim() returns.
 *
 * If the victim is itself one of these pages, the server has either refused
 * its content, or dropped it from the frame, and reads the page again.  We
 * cannot tell which, so we distrust everything read of that page so far, here
 * or in another frame: its entry is dropped, its stamp bumped, and the page
 * is read from disk.
 */
static bool
handle_victim(const char *frame, const RbpPageRef *victim, const ReadRun *run)
{
	for (int i = 0; i < run->n; i++)
		if (rbp_page_equal(&victim->id, &run->pages[i].ref.id) && !RBP_INJECTION_POINT("trust-reads"))
		{
			(void) rbp_directory_invalidate(rbp_dir, &victim->id, true);
			rbp_stats_count(RBP_COUNT_SKIP_UNKNOWN, 1);
			return false;
		}
	return rbp_capture_victim(frame, victim);
}

/* Initialize the pages of the run, which begins at that block. */
static void
name_pages(const ReadRun *run, uint16 space, BlockNumber block, char **bufs)
{
	for (int i = 0; i < run->n; i++)
	{
		ReadPage   *page = &run->pages[i];
		RbpPageId	id = {.rel = run->file->rel,.block = block + i,.space = space,
		.fork = run->file->fork};

		page->buf = bufs[i];
		page->outcome = RBP_COUNT_FILE;
		page->prefer_file = false;
		page->lookup.where = RBP_ABSENT;
		page->ref = rbp_page_ref(&id);
	}
}

static inline bool
has_claim(const char *buf)
{
	return (rbp_shadow_of(buf)->flags & RBP_SHADOW_VALID) != 0;
}

/*
 * Capture the victims of the frames, which are about to be overwritten, if
 * the tier is usable.  Returns the time at which the read itself begins.
 */
static int64
handle_victims(const ReadRun *run, bool usable, int64 start)
{
	RbpPageRef	refs[2 * RBP_MAX_BATCH];	/* wanted pages, and victims */
	const RbpPageRef *victims[RBP_MAX_BATCH];	/* of the frames, or NULL */
	int			nrefs = 0;
	bool		captured = false;

	for (int i = 0; usable && i < run->n; i++)
		refs[nrefs++] = run->pages[i].ref;
	for (int i = 0; i < run->n; i++)
	{
		victims[i] = NULL;
		if (usable && has_claim(run->pages[i].buf))
		{
			refs[nrefs] = rbp_page_ref(&rbp_shadow_of(run->pages[i].buf)->page);
			victims[i] = &refs[nrefs++];
		}
	}
	/* for all of them, so that we wait for memory only once */
	rbp_directory_prefetch(rbp_dir, refs, nrefs);
	for (int i = 0; i < run->n; i++)
	{
		const char *frame = run->pages[i].buf;

		if (victims[i] != NULL)
			captured |= handle_victim(frame, victims[i], run);
		else if (usable)
			rbp_count_skip(rbp_shadow_of(frame)->flags);
		rbp_forget_frame(frame);
	}
	if (captured)
	{
		int64		now = rbp_now_ns();

		rbp_stats_latency(RBP_LATENCY_CAPTURES, now - start);
		start = now;
	}
	return start;
}

/*
 * ---- straight reads -----------------------------------------------------------
 */

/*
 * Are pages of the file from that block on read straight?  What was requested from donors
 * must be taken, or it is in the way.
 */
static inline bool
is_straight(const RbpCacheView *cache, BlockNumber block)
{
	return rbp_straight_left(&cache->straight, block) && !rbp_tier_prewarming &&
		!rbp_ahead_waits(RBP_POOL_BUFFER);
}

/*
 * If no frame's victim has a claim, count and forget the reasons, and return true.
 */
static bool
pass_victims(const struct iovec *iov, int iovcnt)
{
	for (int k = 0; k < iovcnt; k++)
		for (Size at = 0; at < iov[k].iov_len; at += BLCKSZ)
			if (has_claim((char *) iov[k].iov_base + at))
				return false;
	for (int k = 0; k < iovcnt; k++)
		for (Size at = 0; at < iov[k].iov_len; at += BLCKSZ)
		{
			rbp_count_skip(rbp_shadow_of((char *) iov[k].iov_base + at)->flags);
			rbp_forget_frame((char *) iov[k].iov_base + at);
		}
	return true;
}

/*
 * Read pages into frames as a server without this extension would: no
 * look-up and no claim, so that the pages will not be captured.  No clock either,
 * for most of them.
 */
static ssize_t
read_straight(int fd, const RbpRelFile *file, RbpCacheView *cache,
			  const struct iovec *iov, int iovcnt, off_t offset)
{
	RbpStraight *straight = &cache->straight;
	bool		timed = straight->timed && straight->left > 0;
	uint32		skip_reason = rbp_guc_read_from == RBP_READ_FILE ? RBP_SHADOW_POLICY :
	straight->cached ? RBP_SHADOW_CACHED : RBP_SHADOW_SLOW;
	int64		start = timed ? rbp_now_ns() - announcing_ns : 0;
	ssize_t		got = rbp_libc_readv(fd, iov, iovcnt, offset);
	int			n = (int) (got / BLCKSZ);

	announcing_ns = 0;
	if (n <= 0)
		return got;
	for (int k = 0, i = 0; k < iovcnt; k++)
		for (Size at = 0; at < iov[k].iov_len && i < n; at += BLCKSZ, i++)
			rbp_shadow_of((char *) iov[k].iov_base + at)->flags = skip_reason;
	if (straight->left > 0)
	{
		BlockNumber block = rbp_block_of(file, offset);

		if (straight->read == 0)
			straight->first = block;
		straight->next = block + (BlockNumber) n;
		straight->read += n;
		straight->left -= n;
	}
	rbp_count_read(file, RBP_COUNT_FILE, n, -1);
	if (timed)
	{
		int			fs = rbp_page_cache_file_system(fd, &cache->file_system);
		int64		took = rbp_now_ns() - start;

		rbp_choice_waited(took);
		rbp_cost_add(fs, RBP_NO_TRANSPORT, RBP_COST_RUN, n, took);
		if (straight->ended > 0)
			rbp_choice_pace(fs, n, start - straight->ended, true);
		straight->ended = start + took;
		/* it may turn out to be slow */
		if (straight->faster && !rbp_choose_disk(fs, RBP_WORK_RUN))
			straight->left = 0;
	}
	return got;
}

/* Read one run; returns what rbp_tier_read() returns. */
static ssize_t
read_run(ReadRun *run, uint16 space)
{
	ReadPage   *pages = run->pages;
	RbpReadFile file = {.fd = run->fd,.fs = run->fs,.cache = run->cache};
	int64		begun = rbp_now_ns();
	bool		usable = space != RBP_INVALID_SPACE && rbp_tier_usable(begun);
	int64		start = handle_victims(run, usable, begun);
	ssize_t		total = 0;

	if (is_straight(run->cache, pages[0].ref.id.block))
	{
		struct iovec iov[RBP_MAX_BATCH];

		fill_iov(run, iov);
		return read_straight(run->fd, run->file, run->cache, iov, run->n, run->offset);
	}

	/* Stamps and generations are noted before anything is read: see the top. */
	run->read_at = start;
	if (usable)
	{
		if (!rbp_tier_unconnected)
			run->window = rbp_read_ahead_plan(&file, &pages[0].ref.id, run->n);
		/* what was requested from donors must be taken, or it is in the way */
		if (run->window == NULL || !run->window->absent || rbp_ahead_waits(RBP_POOL_BUFFER) ||
			pages[run->n - 1].ref.id.block - run->window->first.block >= (uint32) run->window->n)
			read_from_tier(run, start);
		else
		{
			for (int i = 0; i < run->n; i++)
				rbp_directory_note_version(rbp_dir, &pages[i].ref, &pages[i].version);
			follow_window(run);
		}
	}

	/* Read each run of misses between hits with one call. */
	for (int i = 0; i < run->n;)
	{
		ReadRun		misses = *run;
		ssize_t		got;

		if (is_served(&pages[i]))
		{
			pages[i].version.hash = pages[i].lookup.hash;
			rbp_remember_frame(pages[i].buf, &pages[i].ref.id, &pages[i].version, 0);
			total += BLCKSZ;
			i++;
			continue;
		}
		misses.pages = &pages[i];
		misses.offset += (off_t) i * BLCKSZ;
		for (misses.n = 1; i + misses.n < run->n && !is_served(&pages[i + misses.n]);)
			misses.n++;
		got = read_from_file(&misses, usable);
		run->read_at = misses.read_at;
		if (got < 0)
			return total > 0 ? total : got;
		total += got;
		if (got < (ssize_t) misses.n * BLCKSZ)
			break;				/* end of file, or interrupted by a signal */
		i += misses.n;
	}

	/*
	 * A page that came from a donor has a claim, one that was read straight
	 * has none: the victims of a run are a part of what its source costs.
	 */
	if (run->window != NULL)
	{
		run->window->pages += run->n;
		run->window->ns += run->read_at - begun + announcing_ns;
		if (run->window->ended > 0)
			run->window->between += begun - announcing_ns - run->window->ended;
		run->window->ended = run->read_at;
	}
	announcing_ns = 0;
	return total;
}

static ssize_t
read_pages(int fd, const RbpRelFile *file, RbpCacheView *cache,
		   const struct iovec *iov, int iovcnt, off_t offset)
{
	ReadPage	pages[RBP_MAX_BATCH];
	ReadRun		run = {.fd = fd,.file = file,.cache = cache,.pages = pages};
	char	   *bufs[RBP_MAX_BATCH];
	Size		pos = 0;
	ssize_t		total = 0;
	uint16		space;

	/* what is known of the victim is seldom in the processor's caches */
	__builtin_prefetch(rbp_shadow_of(iov[0].iov_base), 1);
	space = rbp_space_get(file->spc, file->db);
	run.fs = rbp_page_cache_file_system(fd, &cache->file_system);
	for (;;)
	{
		ssize_t		got;

		run.offset = offset + (off_t) pos;
		run.window = NULL;
		run.blind = false;
		run.skip_reason = 0;
		run.n = rbp_next_batch(iov, iovcnt, &pos, bufs);
		if (run.n == 0)
			break;
		name_pages(&run, space, rbp_block_of(file, run.offset), bufs);
		got = read_run(&run, space);
		if (got < 0)
			return total > 0 ? total : got;
		total += got;
		if (got < (ssize_t) run.n * BLCKSZ)
			return total;
	}
	return total;
}

ssize_t
rbp_tier_read(int fd, const RbpRelFile *file, RbpCacheView *cache,
			  const struct iovec *iov, int iovcnt, off_t offset)
{
	ssize_t		got = is_straight(cache, rbp_block_of(file, offset)) && pass_victims(iov, iovcnt) ?
	read_straight(fd, file, cache, iov, iovcnt, offset) :
	read_pages(fd, file, cache, iov, iovcnt, offset);

	rbp_relation_stats_settle();
	return got;
}

/*
 * Connect to the donor of an announced block if that is worth its price by now, as a
 * read of the slot does.  No later read would: the kernel reads the block, and then the
 * page cache has it.  Returns whether there is a connection.
 */
static bool
connect_for_announced(int fs, uint32 slot)
{
	RbpRemoteIo io = {.slot = slot,.buf = compare_page};
	int64		start = rbp_now_ns();

	if (rbp_tier_unconnected || !rbp_remote_slot_worth(slot, fs, RBP_WORK_PAGE, 1))
		return false;
	rbp_remote_transfer(&io, 1, false, start, start + rbp_guc_io_timeout_ns());
	return rbp_remote_slot_readable(slot);
}

/* Should a block that the server announces come from the tier, as looked up? */
static bool
comes_from_tier(int fs, const RbpLookup *lookup)
{
	int			transport;

	if (rbp_guc_read_from == RBP_READ_FILE)
		return false;
	if (lookup->where != RBP_REMOTE)
		return lookup->where == RBP_STAGED;
	if (!rbp_remote_slot_readable(lookup->slot) && !connect_for_announced(fs, lookup->slot))
		return false;
	transport = rbp_remote_slot_transport(lookup->slot);
	return rbp_remote_slot_local(lookup->slot) ?
		!rbp_choose_file(fs, transport, RBP_WORK_PAGE, false) :
		!rbp_choose_announced(fs, transport);
}

/* Request a block that the server announces, unless the page cache has it. */
static void
announce_block(int fd, RbpCacheView *cache, const RbpPageId *id, const RbpLookup *lookup)
{
	bool		cached = false;

	if (!rbp_read_ahead_wants(lookup))
		return;
	if (rbp_guc_read_from == RBP_READ_DONOR ||
		!rbp_page_cache_ask(fd, cache, (off_t) (id->block % RELSEG_SIZE) * BLCKSZ, 1, &cached) ||
		!cached)
		rbp_ahead_announce(lookup->slot, lookup->hash);
}

/* Does the tier have the blocks that are announced?  If so, request them. */
static bool
request_announced(int fd, const RbpRelFile *file, RbpCacheView *cache,
				  BlockNumber block, int nblocks)
{
	uint16		space = rbp_space_find(file->spc, file->db);
	RbpPageId	id = {.rel = file->rel,.block = block,.space = space,.fork = file->fork};
	RbpLookup	lookups[RBP_MAX_BATCH];
	int			fs = rbp_page_cache_file_system(fd, &cache->file_system);

	/* long advice is about a run, which is recognized by its reads */
	bool		request = nblocks <= RBP_MAX_BATCH && !rbp_tier_unconnected;

	if (space == RBP_INVALID_SPACE || !rbp_tier_usable(rbp_now_ns()))
		return false;
	for (int i = 0; i < nblocks; i++, id.block++)
	{
		RbpPageRef	ref = rbp_page_ref(&id);
		RbpLookup	lookup = rbp_directory_lookup(rbp_dir, &ref, false);

		if (!comes_from_tier(fs, &lookup))
			return false;		/* the kernel reads all of them */
		if (request)
			lookups[i] = lookup;
	}
	id.block = block;
	for (int i = 0; request && i < nblocks; i++, id.block++)
		announce_block(fd, cache, &id, &lookups[i]);
	if (rbp_guc_compare_with_disk)
		return false;			/* which the disk is read for */
	rbp_stats_count(RBP_COUNT_PREFETCHES_SAVED, nblocks);
	return true;
}

int
rbp_tier_announce(int fd, const RbpRelFile *file, RbpCacheView *cache,
				  off_t offset, off_t len)
{
	BlockNumber block = rbp_block_of(file, offset);
	int			nblocks = (int) (rbp_block_of(file, offset + len - 1) - block) + 1;
	bool		straight = rbp_straight_left(&cache->straight, block);
	uint32		connects = rbp_remote_connects();
	int			result = 0;
	int64		start;

	if (straight && !cache->straight.timed)
		return rbp_libc.posix_fadvise(fd, offset, len, POSIX_FADV_WILLNEED);
	start = rbp_now_ns();
	if (straight || !request_announced(fd, file, cache, block, nblocks))
		result = rbp_libc.posix_fadvise(fd, offset, len, POSIX_FADV_WILLNEED);
	/* connecting is no part of a source's cost */
	if (connects == rbp_remote_connects())
		announcing_ns += rbp_now_ns() - start;
	return result;
}
