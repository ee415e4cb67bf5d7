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
 *	2. Note Q's stamp and generation, before anything is read.
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
#include "buffer/capture.h"
#include "buffer/directory.h"
#include "buffer/frame.h"
#include "buffer/page.h"
#include "buffer/read_ahead.h"
#include "buffer/read_cost.h"
#include "buffer/relation_stats.h"
#include "buffer/space.h"
#include "buffer/staging.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"

/* Was the page in the page cache before it was read? */
typedef enum Cached
{
	CACHED_UNKNOWN,
	CACHED_NO,
	CACHED_YES,
	CACHED_PRESUMED				/* not asked, since nearly all pages are
								 * cached */
} Cached;

/* One page of a request that is being served. */
typedef struct ReadPage
{
	char	   *buf;
	RbpPageId	id;
	RbpLookup	lookup;
	RbpVersion	version;
	bool		served;
	bool		prefer_file;	/* a donor has it, but the file is read */
	bool		failed;			/* it was requested ahead, and did not come */
	Cached		cached;			/* in the page cache */
	int			io;				/* index of its RbpRemoteIo, -1 if none */
} ReadPage;

/* Consecutive pages of a file, RBP_MAX_BATCH at most, that are read together. */
typedef struct ReadRun
{
	int			fd;
	const RbpRelFile *file;
	RbpCacheView *cache;		/* what is known of the file's page cache */
	off_t		offset;			/* of the first page */
	ReadPage   *pages;
	int			n;
	RbpWindow  *window;			/* that has the first page, or NULL */
	bool		presumed;		/* what the tier has of it is not looked up */
} ReadRun;

RbpReadCost rbp_read_cost;

static int	fast_path_reads = 0;	/* pages that read_fast_path() may still
									 * read */

static bool unconnected = false;	/* see rbp_tier_set_unconnected() */

static char compare_buffer[BLCKSZ + RBP_IO_ALIGN];

#define compare_page	((char *) TYPEALIGN(RBP_IO_ALIGN, compare_buffer))

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
	if (rbp_directory_drop_if_same(rbp_dir, &page->id, &page->lookup))
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
 * Look the page up, and serve it if it is staged.  If the pusher has moved it
 * meanwhile, so that the bytes do not verify, look it up once more: it should
 * be remote then.
 */
static void
lookup_page(ReadPage *page)
{
	page->served = false;
	page->prefer_file = false;
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
 * Compare a page that is about to be returned with the disk.  Returns false
 * if it differs, so that the caller reads the page from disk.
 */
static bool
compare_with_disk(const ReadRun *run, int i)
{
	const RbpRelFile *file = run->file;
	const ReadPage *page = &run->pages[i];
	char	   *disk = compare_page;
	ssize_t		n = rbp_libc.pread(run->fd, disk, BLCKSZ, run->offset + (off_t) i * BLCKSZ);
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

/*
 * Count pages that are read from the file because the donors that have them are
 * slower; one of them is in that slot.
 */
static void
count_bypassed(uint32 slot, int n)
{
	rbp_stats_count(RBP_COUNT_BYPASSED, (uint64) n);
	rbp_remote_count_bypassed(slot, n);
}

/*
 * Choose the file for a page that a donor has, by these costs, and count the
 * reason.
 */
static void
set_prefer_file(ReadPage *page, const RbpReadCost *cost, int transport, bool filling)
{
	bool		bypassed = false;	/* is the disk faster than the donor? */

	if (page->cached == CACHED_UNKNOWN || page->cached == CACHED_NO)
		bypassed = rbp_read_cost_slower(cost, transport);
	else if (page->cached == CACHED_PRESUMED)
		bypassed = rbp_read_cost_from_disk(cost, transport);

	page->prefer_file = true;

	/* A read for none of these reasons only measures the disk: not counted. */
	if (filling)
		rbp_stats_count(RBP_COUNT_PAGE_CACHE_FILLS, 1);
	else if (bypassed)
		count_bypassed(page->lookup.slot, 1);
	else if (page->cached >= CACHED_YES)
		rbp_stats_count(RBP_COUNT_PAGE_CACHE_FIRST, 1);
}

/*
 * Ask the page cache about the pages of the run.  Returns false if it cannot
 * answer.
 */
static bool
ask_page_cache(const ReadRun *run, bool *cached)
{
	int64		start = rbp_read_cost_time_question(&rbp_read_cost) ? rbp_now_ns() : 0;
	int			ncached = 0;

	if (!rbp_page_cache_ask(run->fd, run->cache, run->offset, run->n, cached))
		return false;
	for (int i = 0; i < run->n; i++)
		ncached += cached[i];
	rbp_read_cost_asked(&rbp_read_cost, run->n, ncached,
						start == 0 ? 0 : rbp_now_ns() - start);
	return true;
}

/*
 * Choose where to read the pages from.  Pages that donors have, but that
 * should come from the file, are marked.  transport: the one to the donor of
 * the first remote page, or RBP_NO_TRANSPORT.
 *
 * page_cache_first:
 *	on		ask the page cache; pages that it has come from the file
 *	off		do not ask
 *	auto	rbp_read_cost_choose() says: donor, or file, or ask
 *
 * For all other pages the measured costs decide, but the disk is chosen only
 * where bypass allows it.
 */
static void
choose_sources(const ReadRun *run, int transport, int64 now)
{
	ReadPage   *pages = run->pages;
	bool		always = rbp_guc_page_cache_first == RBP_PAGE_CACHE_ON;
	bool		bypass = rbp_guc_bypass == RBP_BYPASS_AUTO;
	bool		keeps = rbp_page_cache_keeps();
	bool		cached[RBP_MAX_BATCH];
	RbpSource	source;

	/* called in any case, because it also counts reads and notes transport */
	source = rbp_read_cost_choose(&rbp_read_cost, transport, bypass, keeps);
	if (always)
		source = RBP_SOURCE_ASK;
	else if (rbp_guc_page_cache_first == RBP_PAGE_CACHE_AUTO &&
			 source == RBP_SOURCE_DONOR)
		return;
	if (rbp_guc_page_cache_first == RBP_PAGE_CACHE_OFF ||
		(source == RBP_SOURCE_ASK &&
		 !ask_page_cache(run, cached)))
	{
		/*
		 * the page cache cannot answer, or not yet: decide by the measured
		 * cost of reading the file
		 */
		for (int i = 0; i < run->n && bypass; i++)
			if (pages[i].lookup.where == RBP_REMOTE &&
				rbp_read_cost_prefer_file(&rbp_read_cost, transport, false, false, 1, now))
				set_prefer_file(&pages[i], &rbp_read_cost, transport, rbp_read_cost.filling);
		return;
	}
	for (int i = 0; i < run->n; i++)
	{
		if (source == RBP_SOURCE_FILE)
			pages[i].cached = CACHED_PRESUMED;
		else
			pages[i].cached = cached[i] ? CACHED_YES : CACHED_NO;
		if (pages[i].lookup.where != RBP_REMOTE)
			continue;
		if (source == RBP_SOURCE_FILE || (always && cached[i]) ||
			((bypass || cached[i]) &&
			 rbp_read_cost_prefer_file(&rbp_read_cost, transport, cached[i], keeps, 1, now)))
			set_prefer_file(&pages[i], &rbp_read_cost, transport, rbp_read_cost.filling);
	}
}

/* Is the run in a window whose source was chosen? */
static inline bool
in_chosen_window(const ReadRun *run)
{
	return run->window != NULL && run->window->source != RBP_WINDOW_ANY;
}

/*
 * Count the pages of a presumed window that donors have, as far as is known, if
 * it was read from the file for that reason: see set_prefer_file().
 */
static void
count_presumed(const ReadRun *run)
{
	static uint32 part = 0;		/* of a page, in parts of RBP_WINDOW_ALL */
	const RbpWindow *w = run->window;

	if (!rbp_read_cost_slower(&w->cost->reads, w->transport))
		return;
	part += (uint32) (run->n * w->share);
	if (part >= RBP_WINDOW_ALL)
		count_bypassed(w->slot, (int) (part / RBP_WINDOW_ALL));
	part %= RBP_WINDOW_ALL;
}

/*
 * The source of pages in a window was chosen for all of it.  What is known of
 * the page cache is known from then.
 */
static void
follow_window(const ReadRun *run)
{
	const RbpWindow *w = run->window;

	for (int i = 0; i < run->n; i++)
	{
		ReadPage   *page = &run->pages[i];
		uint32		at = page->id.block - w->first.block;

		if (page->served)
			continue;
		if (w->asked && at < (uint32) w->n)
			page->cached = w->cached[at] ? CACHED_YES : CACHED_NO;
		if (page->lookup.where == RBP_REMOTE &&
			(w->source == RBP_WINDOW_FILE ||
			 (at < (uint32) w->n && rbp_window_prefers_cache(w, (int) at))))
			set_prefer_file(page, &w->cost->reads, w->transport, w->filling);
	}
}

/* Count pages for the server, and for their relation. */
static inline void
count(const RbpRelFile *file, RbpCounter counter, RbpRelationItem item, int n)
{
	rbp_stats_count(counter, (uint64) n);
	rbp_relation_count(file, item, (uint64) n);
}

/* The same for the time of a read. */
static inline void
count_time(const RbpRelFile *file, RbpLatency op, RbpRelationItem item, int64 took)
{
	rbp_stats_latency(op, took);
	rbp_relation_count(file, item, (uint64) Max(took, 0));
}

/* Count pages that came from donors in that time. */
static void
count_hits(const RbpRelFile *file, int n, int64 took)
{
	count(file, RBP_COUNT_HITS, RBP_RELATION_HITS, n);
	rbp_stats_count(RBP_COUNT_BYTES_READ, (uint64) n * BLCKSZ);
	count_time(file, RBP_LATENCY_HIT, RBP_RELATION_HIT_NS, took);
}

/*
 * Count what reads of pages from donors have saved, compared with the file:
 * with what the file costs in a run, if they are part of one.  known: numbers
 * of the pages that came, by Cached.  took: the time that this process spent,
 * also if nothing came.
 */
static void
count_saved(const ReadRun *run, uint32 slot, const int *known, int64 took)
{
	int			missing = known[CACHED_NO];
	int			cached = known[CACHED_YES];
	int			unknown = known[CACHED_UNKNOWN] + known[CACHED_PRESUMED];
	const RbpReadCost *cost = &rbp_read_cost;

	if (in_chosen_window(run))
	{
		int			n = missing + cached + unknown;

		/* averages for all pages of such a window */
		if (run->window->cost->reads.disk_seen)
			cost = &run->window->cost->reads;
		cached = run->window->mostly_cached ? n : 0;
		missing = n - cached;
		unknown = 0;
	}
	rbp_remote_count_saved(slot, rbp_read_cost_saved(cost, missing, cached, unknown, took));
}

/* Serve pages that were read ahead.  Once a wait has failed, none is left. */
static void
take_read_ahead(const ReadRun *run, int64 start)
{
	int64		deadline = 0;
	uint32		slot = RBP_INVALID_SLOT;
	int			known[CACHED_PRESUMED + 1] = {0};
	int			nhits = 0;
	int64		took;
	bool		late = false;

	for (int i = 0; i < run->n; i++)
	{
		ReadPage   *page = &run->pages[i];
		RbpTaken	taken = RBP_TAKEN_LATE;

		if (page->served)
			continue;
		if (!late)
			taken = rbp_read_ahead_take(&page->id, &page->lookup, page->buf, &deadline);
		page->served = taken == RBP_TAKEN_PAGE;
		late = taken == RBP_TAKEN_LATE;
		page->failed = page->lookup.where == RBP_REMOTE && taken >= RBP_TAKEN_FAILURE;
		if (page->failed)
			rbp_stats_count(RBP_COUNT_FALLBACKS, 1);
		if (page->served || page->failed)
			slot = page->lookup.slot;
		nhits += page->served;
	}
	if (slot == RBP_INVALID_SLOT)
		return;
	took = rbp_now_ns() - start;
	if (nhits > 0)
		count_hits(run->file, nhits, took);
	/* if the page cache could be asked, it did not have what was announced */
	known[rbp_guc_page_cache_first != RBP_PAGE_CACHE_OFF && run->cache->reliable ?
		  CACHED_NO : CACHED_UNKNOWN] = nhits;
	count_saved(run, slot, known, took);
}

/*
 * Read the pages that donors have, except those that should come from the
 * file.  transport: the one to the donor of the first remote page.
 */
static void
read_from_donors(const ReadRun *run, int transport, int64 start)
{
	ReadPage   *pages = run->pages;
	RbpRemoteIo ios[RBP_MAX_BATCH];
	int			nios = 0;
	int			nhits = 0;
	int			known[CACHED_PRESUMED + 1] = {0};
	uint32		connects = rbp_remote_connects();
	int64		took;

	for (int i = 0; i < run->n; i++)
	{
		pages[i].io = -1;
		if (pages[i].served || pages[i].prefer_file || pages[i].failed || unconnected ||
			pages[i].lookup.where != RBP_REMOTE)
			continue;
		pages[i].io = nios;
		ios[nios].slot = pages[i].lookup.slot;
		ios[nios].buf = pages[i].buf;
		nios++;
	}
	if (nios == 0)
		return;
	/* do not charge the donor for the time spent on the page cache */
	if (rbp_guc_page_cache_first != RBP_PAGE_CACHE_OFF)
		start = rbp_now_ns();
	rbp_remote_read(ios, nios, start, start + rbp_guc_io_timeout_ns());
	for (int i = 0; i < run->n; i++)
	{
		if (pages[i].io < 0)
			continue;
		if (ios[pages[i].io].status == RBP_OK)
		{
			if (verify(&pages[i]))
			{
				pages[i].served = true;
				known[pages[i].cached]++;
				nhits++;
				continue;
			}
			(void) verify_failed_by_race(&pages[i]);
		}
		rbp_stats_count(RBP_COUNT_FALLBACKS, 1);
	}
	took = rbp_now_ns() - start;
	count_saved(run, ios[0].slot, known, took);
	if (nhits == 0)
		return;
	count_hits(run->file, nhits, took);

	/*
	 * connecting is not part of a read's cost: a rarely used donor would seem
	 * slow
	 */
	if (connects == rbp_remote_connects())
		rbp_read_cost_donor(&rbp_read_cost, transport, nios, took);
}

/* Serve pages from staging, and from donors unless the file is cheaper. */
static void
read_from_tier(const ReadRun *run, int64 start)
{
	int			nserved = 0;
	int			nstaged = 0;
	int			transport = RBP_NO_TRANSPORT;

	for (int i = 0; i < run->n; i++)
	{
		ReadPage   *page = &run->pages[i];

		lookup_page(page);
		if (page->served)
			nstaged++;
		else if (page->lookup.where == RBP_REMOTE && transport == RBP_NO_TRANSPORT)
			transport = rbp_remote_slot_transport(page->lookup.slot);
	}
	if (nstaged > 0)
	{
		int64		now = rbp_now_ns();

		count(run->file, RBP_COUNT_STAGED_HITS, RBP_RELATION_STAGED_HITS, nstaged);
		rbp_stats_latency(RBP_LATENCY_STAGED, now - start);
		start = now;
	}
	if (nstaged < run->n)
		take_read_ahead(run, start);
	for (int i = 0; i < run->n; i++)
		nserved += run->pages[i].served;
	if (nserved < run->n)
	{
		if (in_chosen_window(run))
			follow_window(run);
		else
			choose_sources(run, transport, start);
		read_from_donors(run, transport, start);
	}

	if (rbp_guc_compare_with_disk)
		for (int i = 0; i < run->n; i++)
			if (run->pages[i].served)
				run->pages[i].served = compare_with_disk(run, i);
}

/*
 * Set the frame's claim about a page that has just come from the file.  If
 * the directory has the page, its hash is taken over, which saves computing
 * one.  A page that is not worth capturing gets no claim, nor does one that the
 * tier is presumed to have.
 */
static void
claim_from_file(const ReadRun *run, ReadPage *page)
{
	uint32		skip_reason = rbp_skip_reason(&page->id, page->cached >= CACHED_YES,
											  run->presumed && run->window->share == RBP_WINDOW_ALL);

	if (skip_reason != 0)
	{
		if (rbp_is_frame(page->buf, BLCKSZ))
			rbp_shadow_of(page->buf)->flags = skip_reason;
	}
	else if (page->prefer_file)
	{
		page->version.hash = page->lookup.hash;
		rbp_remember_frame(page->buf, &page->id, &page->version, 0);
	}
	else
	{
		page->version.hash = rbp_hash_page(page->buf);
		rbp_remember_frame(page->buf, &page->id, &page->version, RBP_SHADOW_READ);
	}
}

/*
 * Count the first n pages, which took so many ns to read from the file.
 * update_costs: also update the costs of reads.
 */
static void
account_file(const ReadRun *run, int n, bool update_costs, int64 took)
{
	int			known[CACHED_PRESUMED + 1] = {0};

	count(run->file, RBP_COUNT_MISSES, RBP_RELATION_MISSES, n);
	for (int i = 0; i < n; i++)
		known[run->pages[i].cached]++;
	if (known[CACHED_YES] > 0)
		count(run->file, RBP_COUNT_PAGE_CACHE_READS, RBP_RELATION_PAGE_CACHE_READS, known[CACHED_YES]);
	if (known[CACHED_NO] > 0)
		count(run->file, RBP_COUNT_DISK_READS, RBP_RELATION_DISK_READS, known[CACHED_NO]);
	if (known[CACHED_NO] > 0)
		count_time(run->file, RBP_LATENCY_DISK, RBP_RELATION_DISK_NS, took);
	else if (known[CACHED_YES] > 0)
		rbp_stats_latency(RBP_LATENCY_PAGE_CACHE, took);
	else
		count_time(run->file, RBP_LATENCY_FILE, RBP_RELATION_FILE_NS, took);
	if (known[CACHED_NO] + known[CACHED_UNKNOWN] > 0 && update_costs && in_chosen_window(run))
		rbp_read_cost_waited(&rbp_read_cost, took * (known[CACHED_NO] + known[CACHED_UNKNOWN]) / n);

	/*
	 * The time tells a cost only if all pages came from the same source.
	 * Where the page cache cannot be asked, any read of the file counts as
	 * one of the disk.  Windows are measured as a whole.
	 */
	if (update_costs && !in_chosen_window(run) &&
		(known[CACHED_YES] == n || known[CACHED_NO] == n ||
		 (known[CACHED_UNKNOWN] == n &&
		  (rbp_guc_page_cache_first == RBP_PAGE_CACHE_OFF ||
		   !(run->cache->tested && run->cache->reliable)))))
		rbp_read_cost_file(&rbp_read_cost, n, known[CACHED_YES] == n, took);
}

/*
 * Read the run from the file; returns what preadv() returns.  claim: also set
 * the claims about the pages that were read completely.
 */
static ssize_t
read_from_file(const ReadRun *run, bool claim)
{
	struct iovec iov[RBP_MAX_BATCH];
	int64		start = rbp_now_ns();
	ssize_t		got;

	for (int i = 0; i < run->n; i++)
	{
		iov[i].iov_base = run->pages[i].buf;
		iov[i].iov_len = BLCKSZ;
	}
	got = rbp_libc_readv(run->fd, iov, run->n, run->offset);
	if (got >= BLCKSZ)
	{
		int			save_errno = errno;

		account_file(run, (int) (got / BLCKSZ), claim, rbp_now_ns() - start);
		for (int i = 0; claim && i < got / BLCKSZ; i++)
			claim_from_file(run, &run->pages[i]);
		if (claim && rbp_guc_page_cache_first != RBP_PAGE_CACHE_OFF)
			rbp_page_cache_learn(run->fd, run->cache, run->offset);
		errno = save_errno;
	}
	return got;
}

/*
 * Handle the victim of a frame that is about to be overwritten by a read of
 * these pages.  Returns what rbp_capture_victim() returns.
 *
 * If the victim is itself one of these pages, the server has either refused
 * its content, or dropped it from the frame, and reads the page again.  We
 * cannot tell which, so we distrust everything read of that page so far, here
 * or in another frame: its entry is dropped, its stamp bumped, and the page
 * is read from disk.
 */
static bool
handle_victim(const char *frame, const ReadRun *run)
{
	const RbpShadow *shadow = rbp_shadow_of(frame);
	bool		captured = false;
	int			i = run->n;

	if (shadow->flags & RBP_SHADOW_VALID)
		for (i = 0; i < run->n; i++)
			if (rbp_page_equal(&shadow->page, &run->pages[i].id))
				break;
	if (i == run->n || RBP_INJECTION_POINT("trust-reads"))
		captured = rbp_capture_victim(frame);
	else
	{
		(void) rbp_directory_invalidate(rbp_dir, &run->pages[i].id);
		rbp_stats_count(RBP_COUNT_SKIP_UNKNOWN, 1);
	}
	return captured;
}

/*
 * Read a page into a frame as a server without this extension would: no
 * directory lookup, no clock, and no claim, so that the page will not be
 * captured.  This is for the time when the page cache has nearly all pages
 * and keeps them.  Returns false if the page must not be read like this,
 * because the victim may be worth capturing, or because fast_path_reads is
 * used up: the next read asks the page cache whether this is still true.
 */
static inline bool
read_fast_path(int fd, const RbpRelFile *file, char *frame, off_t offset, ssize_t *got)
{
	RbpShadow  *shadow;

	if (fast_path_reads == 0 || rbp_tier_prewarming || rbp_guc_page_cache_first != RBP_PAGE_CACHE_AUTO ||
		!rbp_is_frame(frame, BLCKSZ))
		return false;
	shadow = rbp_shadow_of(frame);
	if (shadow->flags & RBP_SHADOW_VALID)
		return false;
	if (--fast_path_reads == 0)
		rbp_read_cost_end_fast_path(&rbp_read_cost);
	rbp_count_skip(shadow->flags);
	shadow->flags = 0;
	*got = rbp_libc.pread(fd, frame, BLCKSZ, offset);
	if (*got == BLCKSZ)
	{
		shadow->flags = RBP_SHADOW_CACHED;
		count(file, RBP_COUNT_MISSES, RBP_RELATION_MISSES, 1);
	}
	return true;
}

/* Initialize the pages of the run, which begins at that block. */
static void
name_pages(const ReadRun *run, uint16 space, BlockNumber block, char **bufs)
{
	for (int i = 0; i < run->n; i++)
	{
		ReadPage   *page = &run->pages[i];

		page->buf = bufs[i];
		page->served = false;
		page->prefer_file = false;
		page->failed = false;
		page->cached = CACHED_UNKNOWN;
		page->lookup.where = RBP_ABSENT;
		page->id = (RbpPageId)
		{
			.rel = run->file->rel,.block = block + i,.space = space,.fork = run->file->fork
		};
	}
}

static inline bool
has_claim(const char *buf)
{
	return rbp_is_frame(buf, BLCKSZ) && (rbp_shadow_of(buf)->flags & RBP_SHADOW_VALID) != 0;
}

/*
 * Capture the victims of the frames, which are about to be overwritten, if
 * the tier is usable.  Returns the time at which the read itself begins.
 */
static int64
handle_victims(const ReadRun *run, bool usable, int64 start)
{
	bool		captured = false;

	for (int i = 0; usable && i < run->n; i++)
	{
		/* for victim and wanted page, so that we wait for memory only once */
		rbp_directory_prefetch(rbp_dir, &run->pages[i].id);
		if (has_claim(run->pages[i].buf))
			rbp_directory_prefetch(rbp_dir, &rbp_shadow_of(run->pages[i].buf)->page);
	}
	for (int i = 0; usable && i < run->n; i++)
	{
		rbp_directory_prefetch_entry(rbp_dir, &run->pages[i].id);
		if (has_claim(run->pages[i].buf))
			rbp_directory_prefetch_entry(rbp_dir, &rbp_shadow_of(run->pages[i].buf)->page);
	}
	for (int i = 0; i < run->n; i++)
	{
		if (usable && rbp_is_frame(run->pages[i].buf, BLCKSZ))
			captured |= handle_victim(run->pages[i].buf, run);
		rbp_forget_frame(run->pages[i].buf);
	}
	if (captured)
	{
		int64		now = rbp_now_ns();

		rbp_stats_latency(RBP_LATENCY_CAPTURE, now - start);
		start = now;
	}
	return start;
}

/* Read one run; returns what rbp_tier_read() returns. */
static ssize_t
read_run(ReadRun *run, uint16 space)
{
	ReadPage   *pages = run->pages;
	RbpReadFile file = {.fd = run->fd,.cache = run->cache};
	int64		start = rbp_now_ns();
	bool		usable = space != RBP_INVALID_SPACE && rbp_tier_usable(start);
	ssize_t		total = 0;

	start = handle_victims(run, usable, start);

	/* Note stamps and generation before anything is read: see the top. */
	if (usable)
	{
		uint32		generation = rbp_directory_generation(rbp_dir, run->file->rel, space,
														  run->file->fork);

		for (int i = 0; i < run->n; i++)
		{
			pages[i].version.stamp = rbp_directory_stamp(rbp_dir, &pages[i].id);
			pages[i].version.generation = generation;
		}
		if (!unconnected)
			run->window = rbp_read_ahead_plan(&file, &pages[0].id, run->n);
		/* what was requested from donors must be taken, or it is in the way */
		run->presumed = run->window != NULL && run->window->presumed && !rbp_read_ahead_pending();
		if (run->presumed)
			count_presumed(run);
		else
			read_from_tier(run, start);
	}

	/* Read each run of misses between hits with one call. */
	for (int i = 0; i < run->n;)
	{
		ReadRun		misses = *run;
		ssize_t		got;

		if (pages[i].served)
		{
			pages[i].version.hash = pages[i].lookup.hash;
			rbp_remember_frame(pages[i].buf, &pages[i].id, &pages[i].version, 0);
			total += BLCKSZ;
			i++;
			continue;
		}
		misses.pages = &pages[i];
		misses.offset += (off_t) i * BLCKSZ;
		for (misses.n = 1; i + misses.n < run->n && !pages[i + misses.n].served;)
			misses.n++;
		got = read_from_file(&misses, usable);
		if (got < 0)
			return total > 0 ? total : got;
		total += got;
		if (got < (ssize_t) misses.n * BLCKSZ)
			break;				/* end of file, or interrupted by a signal */
		i += misses.n;
	}
	if (in_chosen_window(run))
		rbp_read_ahead_measured(run->window, run->n, rbp_now_ns() - start);
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

	if (iovcnt == 1 && iov->iov_len == BLCKSZ &&
		read_fast_path(fd, file, iov->iov_base, offset, &total))
		return total;

	space = rbp_space_get(file->spc, file->db);
	for (;;)
	{
		ssize_t		got;

		run.offset = offset + (off_t) pos;
		run.window = NULL;
		run.presumed = false;
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
	if (!rbp_page_cache_keeps())
		fast_path_reads = 0;
	else if (fast_path_reads == 0)
		fast_path_reads = rbp_read_cost_fast_path(&rbp_read_cost,
												  rbp_guc_bypass == RBP_BYPASS_AUTO);
	return total;
}

ssize_t
rbp_tier_read(int fd, const RbpRelFile *file, RbpCacheView *cache,
			  const struct iovec *iov, int iovcnt, off_t offset)
{
	ssize_t		got = read_pages(fd, file, cache, iov, iovcnt, offset);

	rbp_relation_stats_settle();
	return got;
}

/* Should a block that the server announces come from the tier, as looked up? */
static bool
comes_from_tier(const RbpLookup *lookup)
{
	if (lookup->where != RBP_REMOTE)
		return lookup->where == RBP_STAGED;
	return rbp_remote_slot_readable(lookup->slot) &&
		!(rbp_guc_bypass == RBP_BYPASS_AUTO &&
		  rbp_read_cost_slower(&rbp_read_cost, rbp_remote_slot_transport(lookup->slot)));
}

/* Request a block that the server announces, unless the page cache has it. */
static void
announce_block(int fd, RbpCacheView *cache, const RbpPageId *id, const RbpLookup *lookup)
{
	bool		cached = false;

	if (!rbp_read_ahead_wants(lookup))
		return;
	if (rbp_guc_page_cache_first == RBP_PAGE_CACHE_OFF ||
		!rbp_page_cache_ask(fd, cache, (off_t) (id->block % RELSEG_SIZE) * BLCKSZ, 1, &cached) ||
		!cached)
		rbp_read_ahead_announce(id, lookup);
}

bool
rbp_tier_announce(int fd, const RbpRelFile *file, RbpCacheView *cache,
				  BlockNumber block, int nblocks)
{
	uint16		space = rbp_space_find(file->spc, file->db);
	RbpPageId	id = {.rel = file->rel,.block = block,.space = space,.fork = file->fork};
	RbpLookup	lookups[RBP_MAX_BATCH];

	/* long advice is about a run, which is recognized by its reads */
	bool		request = nblocks <= RBP_MAX_BATCH && !unconnected;

	if (space == RBP_INVALID_SPACE || !rbp_tier_usable(rbp_now_ns()))
		return false;
	for (int i = 0; i < nblocks; i++, id.block++)
	{
		RbpLookup	lookup = rbp_directory_lookup(rbp_dir, &id, false);

		if (!comes_from_tier(&lookup))
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

void
rbp_tier_set_unconnected(void)
{
	unconnected = true;
}
