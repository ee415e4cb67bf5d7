/*-------------------------------------------------------------------------
 *
 * read_ahead.c
 *	  Reads pages of runs from donors before the server asks for them.
 *
 * For each window of a run (stream.h) the directory is looked up, the page
 * cache is asked, and the source is chosen for all of the window:
 *
 *	donors		The pages that donors have are requested in batches, which are
 *				on their way while the process works.  The kernel is asked to
 *				read the others.
 *	file		All pages are read from the file, even those that donors have,
 *				so that the kernel recognizes a sequential read.
 *
 * A mixture page by page would be slower than either, since it has neither
 * batches nor the kernel's read-ahead.  run_cost.h has what the choice is made by.
 * Once several windows in turn have come from the file, some are not looked up:
 * see presume().
 *
 * A read of several pages is a window of its own in a process that reads
 * nothing ahead: in an I/O worker, which sees only parts of streams, and while
 * remote_bp.read_ahead is 0.
 *
 * Pages that the server announces by POSIX_FADV_WILLNEED, as bitmap scans and
 * recovery do, are gathered into batches, which are requested when they are
 * half as long as the server looks ahead by default, or when the first of
 * their pages is read.
 *
 * Where donors' memory is on this host, reads are copies, and there is nothing
 * to wait for: only the source is chosen.
 *
 * A copy is used only if a lookup, made when the page is really read, finds
 * the slot and the hash with which it was requested, and if it matches the
 * hash.  If it does not match, the slot may have had another page when it was
 * read, and have got this one since: an entry can go and come back, with the
 * same slot and the same hash.  So this proves nothing about the slot, and the
 * page is read from it again, now that the entry was just looked up; if that
 * does not match either, the usual rule applies.
 *
 * Copies belong to a transaction.  At its end those that were not used are
 * dropped, and their memory is returned to the system.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"

#include "base/compat.h"
#include "base/geometry.h"
#include "base/guc.h"
#include "base/hash.h"
#include "base/injection_point.h"
#include "base/libc.h"
#include "base/stats.h"
#include "buffer/buffer.h"
#include "buffer/buffer_internal.h"
#include "buffer/read_ahead.h"
#include "buffer/stream.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"

#define BATCHES				32
#define BATCH_PAGES			16

/*
 * So many windows alike are enough to presume others.  One of a kind that is
 * rare must not make those of the other kind be read from the file.
 */
#define ALIKE				4

/* Where the tier had nothing of the last window, look up every so many pages. */
#define PROBE_EVERY			8

/*
 * Other reads wait behind a window, which may take no more than a part of
 * io_timeout.
 */
#define WINDOW_PART			8
#define WINDOW_MIN			8

/* A read of so many pages is a window.  (A stream's first reads are shorter.) */
#define READ_MIN			8

/* Copies of pages of one fork, which were requested together */
typedef struct Batch
{
	bool		used;
	RbpRemoteBatch *transfer;	/* NULL once it has been waited for */
	RbpPageId	fork;			/* its block is not used */
	const RbpStream *stream;	/* whose window it is part of; NULL: announced */
	uint32		generation;		/* when it was requested */
	int			n;
	int			left;			/* copies not taken or dropped yet */
	uint64		last_use;
	BlockNumber low;			/* least and greatest of the blocks */
	BlockNumber high;
	BlockNumber blocks[BATCH_PAGES];	/* InvalidBlockNumber: not any more */
	uint64		hashes[BATCH_PAGES];
	RbpRemoteIo ios[BATCH_PAGES];
} Batch;

static Batch batches[BATCHES];
static int	nbatches = 0;		/* in use */
static uint64 batch_clock = 0;

/* The batches' pages; mapped when first needed */
static char *memory = NULL;
static bool memory_used = false;	/* in this transaction */

#define MEMORY_BYTES	((Size) BATCHES * BATCH_PAGES * BLCKSZ)

/* Pages that the server has announced, and that are not requested yet */
#define ANNOUNCED_MAX		8

static struct
{
	RbpPageId	fork;			/* its block is not used */
	BlockNumber blocks[ANNOUNCED_MAX];
	RbpLookup	lookups[ANNOUNCED_MAX];
}			announced;
static int	nannounced = 0;		/* apart: each transaction looks at it */

static RbpStreams streams;

/* What is known of each stream's run */
typedef struct Run
{
	bool		absent;			/* the tier had nothing of the last window */
	int			transport;		/* of the last window */
} Run;

static Run	runs[RBP_STREAMS];

/* Of each stream the window that is read, and the next */
static RbpWindow windows[RBP_STREAMS][2];

/* For reads that are windows of their own; and how many pages these had */
static Run	reads;
static RbpWindow read_window;
static uint32 read_pages = 0;

/* What windows have cost */
static RbpRunCost costs[RBP_WINDOW_KINDS];

/* The last windows that were looked up and are part of stretches */
static struct
{
	int			alike;			/* so many in turn, of one kind and fork */
	RbpRunCost *cost;			/* their kind's; NULL before the first */
	RbpPageId	fork;			/* its block is not used */
	int			transport;
	int			share;			/* as in RbpWindow */
	uint32		slot;
}			looked_up;

static inline char *
copy_of(const Batch *batch, int i)
{
	return memory + ((Size) (batch - batches) * BATCH_PAGES + (Size) i) * BLCKSZ;
}

/*
 * ---- batches ---------------------------------------------------------------
 */

/* Give up a batch.  One that is still on its way is not waited for. */
static void
drop_batch(Batch *batch)
{
	if (batch->transfer != NULL)
		rbp_remote_end(batch->transfer, rbp_now_ns());
	batch->transfer = NULL;
	batch->used = false;
	nbatches--;
}

static void
drop_copy(Batch *batch, int i)
{
	batch->blocks[i] = InvalidBlockNumber;
	if (--batch->left == 0)
		drop_batch(batch);
}

static void
drop_all(void)
{
	nannounced = 0;
	if (!memory_used)
		return;
	for (Batch *batch = batches; batch < batches + BATCHES; batch++)
		if (batch->used)
			drop_batch(batch);
	memory_used = false;
	/* return the pages' memory to the system */
	(void) madvise(memory, MEMORY_BYTES, MADV_DONTNEED);
}

static pg_attribute_hot void
at_transaction_end(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PARALLEL_ABORT:
			drop_all();
			break;
		default:
			break;
	}
}

/* For processes that end no transactions */
static void
at_exit(int code, Datum arg)
{
	drop_all();
}

Size
rbp_read_ahead_shmem_size(void)
{
	return RBP_WINDOW_KINDS * sizeof(RbpSharedRunCost);
}

void
rbp_read_ahead_shmem_init(void *mem)
{
	static bool registered = false;
	RbpSharedRunCost *shared = mem;

	memset(shared, 0, rbp_read_ahead_shmem_size());
	for (int i = 0; i < RBP_WINDOW_KINDS; i++)
		rbp_run_cost_init(&costs[i], (RbpWindowKind) i, &shared[i]);
	/* This is the postmaster, whose children inherit the callback. */
	if (!registered)
		RegisterXactCallback(at_transaction_end, NULL);
	registered = true;
}

/* Map the batches' memory, once in a process; false if that fails. */
static bool
map_memory(void)
{
	void	   *mem;

	if (memory != NULL)
		return true;
	mem = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return false;
	memory = mem;
	on_shmem_exit(at_exit, (Datum) 0);
	return true;
}

/*
 * An unused batch, or else one that was not used for long; NULL if there is
 * none, since the copies that were requested first are those that are needed
 * next.
 */
static Batch *
get_batch(void)
{
	Batch	   *oldest = batches;

	/* a request that is refused makes the others older, too */
	batch_clock++;

	for (Batch *batch = batches; batch < batches + BATCHES; batch++)
	{
		if (!batch->used)
			return batch;
		if (batch->last_use < oldest->last_use)
			oldest = batch;
	}
	if (batch_clock - oldest->last_use < BATCHES * BATCH_PAGES)
		return NULL;
	drop_batch(oldest);
	return oldest;
}

/*
 * Request pages of a fork: their blocks, and what the directory has of them.
 * stream: as in Batch.
 */
static void
request(const RbpPageId *fork, const RbpStream *stream, int n, const BlockNumber *blocks,
		const RbpLookup *lookups)
{
	Batch	   *batch;
	int64		now = rbp_now_ns();

	if (!map_memory())
		return;
	batch = get_batch();
	if (batch == NULL)
		return;
	batch->used = true;
	nbatches++;
	memory_used = true;
	batch->fork = *fork;
	batch->stream = stream;
	batch->generation = rbp_directory_generation(rbp_dir, fork->rel, fork->space, fork->fork);
	batch->n = batch->left = n;
	batch->last_use = batch_clock;
	batch->low = batch->high = blocks[0];
	for (int i = 0; i < n; i++)
	{
		batch->low = Min(batch->low, blocks[i]);
		batch->high = Max(batch->high, blocks[i]);
		batch->blocks[i] = blocks[i];
		batch->hashes[i] = lookups[i].hash;
		batch->ios[i].slot = lookups[i].slot;
		batch->ios[i].buf = copy_of(batch, i);
		batch->ios[i].status = RBP_CANCELED;
	}
	/* the connections exist: nothing is waited for */
	batch->transfer = rbp_remote_begin(batch->ios, n, false, 0, now, now);
	if (batch->transfer == NULL)
		drop_batch(batch);
	else
		rbp_stats_count(RBP_COUNT_READ_AHEAD, (uint64) n);
}

/* The batch with a copy of the page, at *at; NULL if there is none. */
static Batch *
find_copy(const RbpPageId *page, int *at)
{
	for (Batch *batch = batches; nbatches > 0 && batch < batches + BATCHES; batch++)
	{
		if (!batch->used || page->block < batch->low || page->block > batch->high ||
			!rbp_page_same_fork(&batch->fork, page))
			continue;
		for (int i = 0; i < batch->n; i++)
			if (batch->blocks[i] == page->block)
			{
				*at = i;
				return batch;
			}
	}
	return NULL;
}

/*
 * ---- announced pages --------------------------------------------------------
 */

static void
request_announced(void)
{
	int			n = nannounced;

	nannounced = 0;
	if (n > 0)
		request(&announced.fork, NULL, n, announced.blocks, announced.lookups);
}

static bool
is_announced(const RbpPageId *page)
{
	for (int i = 0; i < nannounced; i++)
		if (announced.blocks[i] == page->block && rbp_page_same_fork(&announced.fork, page))
			return true;
	return false;
}

bool
rbp_read_ahead_pending(void)
{
	return nbatches > 0 || nannounced > 0;
}

bool
rbp_read_ahead_wants(const RbpLookup *lookup)
{
	return rbp_guc_read_ahead > 0 && lookup->where == RBP_REMOTE &&
		!rbp_remote_slot_local(lookup->slot) && !rbp_compat_is_io_worker();
}

void
rbp_read_ahead_announce(const RbpPageId *page, const RbpLookup *lookup)
{
	int			at;

	if (is_announced(page) || find_copy(page, &at) != NULL)
		return;
	if (nannounced > 0 && !rbp_page_same_fork(&announced.fork, page))
		request_announced();
	announced.fork = *page;
	announced.blocks[nannounced] = page->block;
	announced.lookups[nannounced++] = *lookup;
	if (nannounced == ANNOUNCED_MAX)
		request_announced();
}

/*
 * ---- copies ------------------------------------------------------------------
 */

/*
 * Wait for the batch, which has that slot.  It must have io_timeout, lest a
 * donor that hangs be waited for without being noticed; so the deadline is a
 * little later.  A donor that is known to hang is not waited for.
 */
static void
complete(Batch *batch, uint32 slot, int64 *deadline_ns)
{
	if (!rbp_remote_slot_readable(slot))
	{
		rbp_remote_end(batch->transfer, rbp_now_ns());
		batch->transfer = NULL;
		return;
	}
	if (*deadline_ns == 0)
		*deadline_ns = rbp_now_ns() + rbp_guc_io_timeout_ns() + rbp_guc_io_timeout_ns() / 16;
	rbp_remote_end(batch->transfer, *deadline_ns);
	batch->transfer = NULL;
}

/* May the copy be used for the page, by the lookup that was just made? */
static inline bool
agrees(const Batch *batch, int i, const RbpLookup *lookup)
{
	return lookup->where == RBP_REMOTE && lookup->slot == batch->ios[i].slot &&
		lookup->hash == batch->hashes[i];
}

RbpTaken
rbp_read_ahead_take(const RbpPageId *page, RbpLookup *lookup, char *buf,
					int64 *deadline_ns)
{
	int			i;
	Batch	   *batch;
	bool		moved;			/* the generation */
	RbpStatus	status;
	RbpLookup	copy;

	if (is_announced(page))
		request_announced();
	batch = find_copy(page, &i);
	if (batch == NULL)
		return RBP_TAKEN_NOTHING;
	moved = batch->generation != rbp_directory_generation(rbp_dir, page->rel, page->space, page->fork);
	if (!(agrees(batch, i, lookup) && !moved) &&
		!RBP_INJECTION_POINT("read-ahead-no-lookup") &&
		!(moved && RBP_INJECTION_POINT("prefetch-old-generation")))
	{
		/* after a truncation, all of the copies are void */
		if (moved)
			drop_batch(batch);
		else
			drop_copy(batch, i);
		return RBP_TAKEN_NOTHING;
	}
	if (batch->transfer != NULL)
		complete(batch, batch->ios[i].slot, deadline_ns);
	batch->last_use = ++batch_clock;
	status = batch->ios[i].status;
	copy.where = RBP_REMOTE;
	copy.slot = batch->ios[i].slot;
	copy.hash = batch->hashes[i];
	if (status == RBP_OK)
		memcpy(buf, copy_of(batch, i), BLCKSZ);
	drop_copy(batch, i);
	if (status == RBP_CANCELED)
		return RBP_TAKEN_NOTHING;	/* it was not sent */
	if (status != RBP_OK)
		return status == RBP_TIMEOUT ? RBP_TAKEN_LATE : RBP_TAKEN_FAILURE;
	if (rbp_hash_page(buf) != copy.hash)
	{
		rbp_stats_count(RBP_COUNT_RACES, 1);
		return RBP_TAKEN_NOTHING;	/* see above: read it again */
	}
	*lookup = copy;
	rbp_stats_count(RBP_COUNT_READ_AHEAD_USED, 1);
	return RBP_TAKEN_PAGE;
}

/* Drop what was left of the batches whose pages the stream's run has passed. */
static void
drop_passed(const RbpStream *stream, BlockNumber block)
{
	for (Batch *batch = batches; nbatches > 0 && batch < batches + BATCHES; batch++)
		if (batch->used && batch->stream == stream &&
			(batch->high < block || !rbp_page_same_fork(&batch->fork, &stream->fork)))
			drop_batch(batch);
}

/*
 * ---- windows ---------------------------------------------------------------
 */

/* What the tier has of a window */
typedef struct Survey
{
	RbpLookup	lookups[RBP_READ_AHEAD_MAX];
	int			remote;			/* pages that donors have */
	int			missing;		/* pages that the tier has not, with one that
								 * it has behind them */
	int			absent;			/* pages behind the last one that it has */
	uint32		slot;			/* of the first page that donors have */
} Survey;

/* Does the tier have none of every PROBE_EVERY-th page of the window? */
static bool
seems_absent(const RbpWindow *w)
{
	RbpPageId	id = w->first;

	for (int i = 0; i < w->n; i += PROBE_EVERY, id.block += PROBE_EVERY)
		if (rbp_directory_lookup(rbp_dir, &id, false).where != RBP_ABSENT)
			return false;
	return true;
}

/* Look the pages of the window up. */
static void
survey_tier(RbpWindow *w, Survey *s)
{
	RbpPageId	id = w->first;

	s->remote = s->missing = s->absent = 0;
	w->transport = RBP_NO_TRANSPORT;
	for (int i = 0; i < w->n; i++, id.block++)
		rbp_directory_prefetch(rbp_dir, &id);
	id.block = w->first.block;
	for (int i = 0; i < w->n; i++, id.block++)
		rbp_directory_prefetch_entry(rbp_dir, &id);
	id.block = w->first.block;
	for (int i = 0; i < w->n; i++, id.block++)
	{
		RbpLookup  *lookup = &s->lookups[i];

		*lookup = rbp_directory_lookup(rbp_dir, &id, false);
		if (lookup->where == RBP_REMOTE && !rbp_remote_slot_readable(lookup->slot))
			lookup->where = RBP_ABSENT;
		if (lookup->where == RBP_ABSENT)
		{
			s->absent++;
			continue;
		}
		s->missing += s->absent;
		s->absent = 0;
		if (lookup->where != RBP_REMOTE)
			continue;
		s->remote++;
		if (s->remote > 1)
			continue;
		w->transport = rbp_remote_slot_transport(lookup->slot);
		s->slot = lookup->slot;
	}
}

/* Ask the page cache about the window, if the settings allow it. */
static void
survey_page_cache(const RbpReadFile *file, RbpWindow *w)
{
	off_t		offset = (off_t) (w->first.block % RELSEG_SIZE) * BLCKSZ;
	int			cached = 0;

	w->asked = rbp_guc_page_cache_first != RBP_PAGE_CACHE_OFF;
	for (int i = 0; w->asked && i < w->n; i += RBP_MAX_BATCH)
	{
		int			n = Min(w->n - i, RBP_MAX_BATCH);

		w->asked = rbp_page_cache_ask(file->fd, file->cache, offset + (off_t) i * BLCKSZ,
									  n, &w->cached[i]);
	}
	for (int i = 0; w->asked && i < w->n; i++)
		cached += w->cached[i];
	if (w->asked)
		rbp_read_cost_asked(&rbp_read_cost, w->n, cached, 0);
	w->mostly_cached = cached > w->n / 2;
}

/*
 * Choose the source of the window; length: pages of runs that this process has
 * read.
 */
static void
choose_source(RbpWindow *w, uint32 length, int64 now)
{
	RbpWindowFacts facts = {
		.n = w->n,
		.length = length,
		.transport = w->transport,
		.mostly_cached = w->mostly_cached,
		.cache_first = rbp_guc_page_cache_first == RBP_PAGE_CACHE_ON,
		.bypass = rbp_guc_bypass == RBP_BYPASS_AUTO,
		.keeps = rbp_page_cache_keeps()
	};

	w->source = rbp_run_cost_prefer_file(w->cost, &facts, now, &w->stretch) ?
		RBP_WINDOW_FILE : RBP_WINDOW_DONORS;
	w->filling = w->cost->reads.filling;
}

/* Request the pages of the window that are to come from donors. */
static void
request_pages(const RbpWindow *w, const RbpStream *stream, const Survey *s)
{
	BlockNumber blocks[BATCH_PAGES];
	RbpLookup	lookups[BATCH_PAGES];
	int			n = 0;

	for (int i = 0; i < w->n; i++)
	{
		RbpPageId	id = w->first;
		int			at;

		id.block += (BlockNumber) i;
		if (s->lookups[i].where == RBP_REMOTE &&
			!rbp_remote_slot_local(s->lookups[i].slot) && !rbp_window_prefers_cache(w, i) &&
			find_copy(&id, &at) == NULL)
		{
			blocks[n] = id.block;
			lookups[n++] = s->lookups[i];
		}
		if (n == BATCH_PAGES || (n > 0 && i == w->n - 1))
		{
			request(&w->first, stream, n, blocks, lookups);
			n = 0;
		}
	}
}

/* Have the kernel read the pages that the tier has not. */
static void
advise_kernel(const RbpReadFile *file, const RbpWindow *w, const Survey *s)
{
	off_t		offset = (off_t) (w->first.block % RELSEG_SIZE) * BLCKSZ;
	int			from = -1;

	for (int i = 0; i <= w->n; i++)
	{
		bool		missing = i < w->n && s->lookups[i].where == RBP_ABSENT &&
		!(w->asked && w->cached[i]);

		if (missing && from < 0)
			from = i;
		if (missing || from < 0)
			continue;
		(void) rbp_libc.posix_fadvise(file->fd, offset + (off_t) from * BLCKSZ,
									  (off_t) (i - from) * BLCKSZ, POSIX_FADV_WILLNEED);
		from = -1;
	}
}

/* Report what the pages of a window have cost, if most of them were read. */
static void
report_window(RbpWindow *w)
{
	if (w->n == 0 || w->source == RBP_WINDOW_ANY || w->pages < (w->n + 1) / 2)
		return;
	if (w->source == RBP_WINDOW_DONORS)
		rbp_read_cost_donor(&w->cost->reads, w->transport, w->pages, w->ns);
	else if (w->stretch != 0)
		rbp_run_cost_file(w->cost, w->stretch, w->pages, w->ns);
	else
	{
		/* one page on average, as the choice was made */
		w->cost->reads.filling = w->filling;
		rbp_read_cost_file(&w->cost->reads, 1, w->mostly_cached && !w->filling,
						   Max(w->ns / w->pages, 1));
	}
}

static bool
in_window(const RbpWindow *w, const RbpPageId *page)
{
	return w->n > 0 && rbp_page_same_fork(&w->first, page) &&
		page->block - w->first.block < (uint32) w->n;
}

/*
 * While a stretch lasts, and the last windows of the fork were part of it, more
 * are not looked up, since that takes time and most likely changes nothing: they
 * are read from the file.
 */
static bool
presume(RbpWindow *w)
{
	RbpRunCost *cost = looked_up.cost;

	w->presumed = looked_up.alike >= ALIKE && cost->until != 0 &&
		rbp_page_same_fork(&looked_up.fork, &w->first) && rbp_guc_bypass == RBP_BYPASS_AUTO;
	if (!w->presumed)
		return false;
	w->source = RBP_WINDOW_FILE;
	w->cost = cost;
	w->stretch = cost->until;
	w->transport = looked_up.transport;
	w->share = looked_up.share;
	w->slot = looked_up.slot;
	w->asked = w->mostly_cached = w->filling = false;
	return true;
}

/* The window, of n pages, was looked up: remember what others may be like. */
static void
note_looked_up(const RbpWindow *w, const Survey *s, int n)
{
	if (w->stretch == 0 || looked_up.cost != w->cost ||
		!rbp_page_same_fork(&looked_up.fork, &w->first))
		looked_up.alike = 0;
	if (w->stretch == 0)
		return;
	looked_up.alike = Min(looked_up.alike + 1, ALIKE);
	looked_up.cost = w->cost;
	looked_up.fork = w->first;
	looked_up.share = s->remote * RBP_WINDOW_ALL / n;
	looked_up.transport = w->transport;
	looked_up.slot = s->slot;
}

/*
 * Begin a window, of n pages from that one on; length: as in choose_source().
 * stream: what it is ahead of, or NULL if these pages are being read.
 */
static void
begin_window(const RbpReadFile *file, RbpWindow *w, Run *run, const RbpStream *stream,
			 uint32 length, const RbpPageId *first, int n)
{
	Survey		s;
	int64		now = rbp_now_ns();

	report_window(w);
	for (int i = 0; i < RBP_WINDOW_KINDS; i++)
		rbp_run_cost_settle(&costs[i], now);
	w->first = *first;
	w->n = n;
	w->source = RBP_WINDOW_ANY;
	w->stretch = 0;
	w->cost = &costs[RBP_WINDOW_FULL];
	w->pages = 0;
	w->ns = 0;
	if (presume(w))
		return;
	if (run->absent && seems_absent(w))
		w->n = 0;
	survey_tier(w, &s);
	run->absent = s.absent == w->n;
	/* pages ahead that the tier has not may be beyond the end of the file */
	if (stream != NULL)
		w->n -= s.absent;
	else
		s.missing += s.absent;
	run->transport = w->transport;
	if (s.remote == 0)
		return;					/* the kernel reads ahead */
	w->cost = &costs[s.missing == 0 ? RBP_WINDOW_FULL : RBP_WINDOW_MIXED];
	survey_page_cache(file, w);
	choose_source(w, length, now);
	note_looked_up(w, &s, n);
	if (w->source != RBP_WINDOW_DONORS || stream == NULL)
		return;
	request_pages(w, stream, &s);
	/* the server's own reads would find nothing of it in the page cache */
	if (s.missing > 0 && !rbp_compat_direct_io())
		advise_kernel(file, w, &s);
}

/* The greatest window of a run */
static uint32
max_window(const Run *run)
{
	int64		max;

	if (run->transport == RBP_NO_TRANSPORT)
		return (uint32) rbp_guc_read_ahead;
	max = rbp_guc_io_timeout_ns() / ((int64) WINDOW_PART * Max(costs[RBP_WINDOW_FULL].reads.donor[run->transport], 1));
	return (uint32) Min(rbp_guc_read_ahead, Max(max, WINDOW_MIN));
}

/* The read is a window of its own, unless it is short. */
static RbpWindow *
plan_read(const RbpReadFile *file, const RbpPageId *first, int n)
{
	if (n < READ_MIN)
		return NULL;
	begin_window(file, &read_window, &reads, NULL, read_pages, first, n);
	read_pages += (uint32) n;
	return read_window.n > 0 ? &read_window : NULL;
}

RbpWindow *
rbp_read_ahead_plan(const RbpReadFile *file, const RbpPageId *first, int n)
{
	RbpStream  *stream;
	Run		   *run;
	RbpWindow  *pair;
	uint32		from;
	uint32		planned;

	if (rbp_tier_prewarming)
		return NULL;
	if (rbp_guc_read_ahead == 0 || rbp_compat_is_io_worker())
		return plan_read(file, first, n);
	stream = rbp_stream_note(&streams, first, (uint32) n);
	run = &runs[stream - streams.streams];
	pair = windows[stream - streams.streams];
	if (stream->window == 0)
	{
		/* forget those of the run before */
		for (int i = 0; i < 2; i++)
		{
			report_window(&pair[i]);
			pair[i].n = 0;
		}
		run->absent = false;
		run->transport = RBP_NO_TRANSPORT;
	}
	planned = rbp_stream_plan(stream, first->block, max_window(run), RELSEG_SIZE, &from);
	if (planned > 0)
	{
		RbpWindow  *w = in_window(&pair[0], first) ? &pair[1] : &pair[0];
		RbpPageId	ahead = *first;

		ahead.block = from;
		drop_passed(stream, first->block);
		begin_window(file, w, run, stream, stream->next - stream->start, &ahead, (int) planned);
	}
	return in_window(&pair[0], first) ? &pair[0] :
		in_window(&pair[1], first) ? &pair[1] : NULL;
}

void
rbp_read_ahead_measured(RbpWindow *window, int n, int64 ns)
{
	window->pages += n;
	window->ns += ns;
}
