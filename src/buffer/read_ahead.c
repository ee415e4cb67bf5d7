/*-------------------------------------------------------------------------
 *
 * read_ahead.c
 *	  Reads pages of runs from donors before the server asks for them.
 *
 * For each window of a run (stream.h) the directory is looked up, the page
 * cache is asked, and the source is chosen for all of the window (choice.h):
 *
 *	donors		The pages that donors have are requested in batches, which are
 *				on their way while the process works.  The kernel is asked to
 *				read the others.
 *	file		All pages are read from the file, even those that donors have,
 *				so that the kernel recognizes a sequential read.
 *
 * A mixture page by page would be slower than either, since it has neither
 * batches nor the kernel's read-ahead.
 *
 * A read of several pages is a window of its own in a process that reads
 * nothing ahead: in an I/O worker, which sees only parts of streams, and while
 * remote_bp.read_ahead is 0.
 *
 * Pages that the server announces by POSIX_FADV_WILLNEED, as bitmap scans and
 * recovery do, are requested when there are half as many as the server looks
 * ahead by default, or when the first of them is read.
 *
 * Where donors' memory is on this host, reads are copies, and there is nothing
 * to wait for: only the source is chosen.
 *
 * remote has the pages that are on their way (remote/ahead.c).  A copy is used
 * only if a lookup, made when the page is really read, finds the slot and the
 * hash with which it was requested.  If the copy does not match the hash, the
 * page is read from the slot again: an entry can go and come back, with the
 * same slot and the same hash.  If that does not match either, the usual rule
 * applies.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>


#include "base/compat.h"
#include "base/geometry.h"
#include "base/guc.h"
#include "base/injection_point.h"
#include "base/libc.h"
#include "base/stats.h"
#include "buffer/buffer.h"
#include "buffer/buffer_internal.h"
#include "buffer/read_ahead.h"
#include "buffer/stream.h"
#include "common/clock.h"
#include "remote/remote.h"

/*
 * Other reads wait behind a window, which may take no more than a part of
 * io_timeout.
 */
#define WINDOW_PART			8
#define WINDOW_MIN			8

/*
 * Pages: 64 MB, more than a kernel reads ahead.  That is twice read_ahead_kb of the
 * device, which is 8 MB on some.
 */
#define FAR_AHEAD			8192

/* A read of so many pages is a window.  (A stream's first reads are shorter.) */
#define READ_MIN			8

static RbpStreams streams;
static RbpStream *noted;		/* of the last read */

/* Of each stream the window that is read, and the next */
static RbpWindow windows[RBP_STREAMS][2];

/* For reads that are windows of their own */
static RbpWindow read_window;

/*
 * For two injection points: remember how a page is requested, and take it for what the
 * directory has now.
 */
static void
ignore_lookup(const RbpPageId *page, RbpLookup *lookup, bool requested)
{
	static struct
	{
		RbpPageId	page;
		RbpLookup	lookup;
		uint32		generation;
	}			seen[RBP_AHEAD_BATCHES * RBP_AHEAD_PAGES], *at;
	bool		always = RBP_INJECTION_POINT("read-ahead-no-lookup");
	RbpPageRef	ref = rbp_page_ref(page);
	RbpVersion	now;
	bool		same;
	bool		old;

	if (!always && !RBP_INJECTION_POINT("prefetch-old-generation"))
		return;
	at = &seen[page->block % lengthof(seen)];
	rbp_directory_note_version(rbp_dir, &ref, &now);
	same = rbp_page_equal(&at->page, page);
	old = same && at->generation != now.generation;
	/* what was requested under an old generation is remembered, to be taken */
	if (requested && (always || !old))
	{
		at->page = *page;
		at->lookup = *lookup;
		at->generation = now.generation;
	}
	else if (!requested && (always ? same : old))
		*lookup = at->lookup;
}

bool
rbp_read_ahead_wants(const RbpLookup *lookup)
{
	return rbp_guc_read_ahead > 0 && lookup->where == RBP_REMOTE &&
		!rbp_remote_slot_local(lookup->slot) && !rbp_compat_is_io_worker();
}

RbpTaken
rbp_read_ahead_take(const RbpPageId *page, RbpLookup *lookup, char *buf,
					int64 *deadline_ns)
{
	RbpTaken	taken;

	ignore_lookup(page, lookup, false);
	if (lookup->where != RBP_REMOTE)
		return RBP_TAKEN_NOTHING;
	taken = rbp_ahead_take(RBP_POOL_BUFFER, lookup->slot, lookup->hash, buf, deadline_ns);
	if (taken == RBP_TAKEN_PAGE)
		rbp_stats_count(RBP_COUNT_READ_AHEAD_USED, 1);
	else if (taken == RBP_TAKEN_MISMATCH)
		rbp_stats_count(RBP_COUNT_RACES, 1);
	return taken;
}

/*
 * ---- windows ---------------------------------------------------------------
 */

/* What the tier has of a window */
typedef struct Survey
{
	RbpLookup	lookups[RBP_READ_AHEAD_MAX];
	int			readable;		/* pages that may be requested */
	int			absent;			/* pages behind the last one that it has */
} Survey;

/*
 * Look the pages of the window up.  What is ahead may be beyond the file.  If the
 * page cache has most pages that donors have, too, the kernel reads the whole run
 * ahead, and a mixture saves nothing: then each piece that donors have not is a hole,
 * cached or not.
 */
static void
survey_tier(RbpWindow *w, bool ahead, Survey *s)
{
	RbpPageId	id = w->first;
	RbpPageRef	refs[RBP_READ_AHEAD_MAX];
	bool		absent = false;
	bool		missing = false;
	int			pieces = 0;
	int			ncached = 0;	/* of what donors have */

	s->readable = s->absent = 0;
	for (int i = 0; i < w->n; i++, id.block++)
		refs[i] = rbp_page_ref(&id);
	rbp_directory_prefetch(rbp_dir, refs, w->n);
	for (int i = 0; i < w->n; i++)
	{
		RbpLookup  *lookup = &s->lookups[i];

		*lookup = rbp_directory_lookup(rbp_dir, &refs[i], false);
		if (lookup->where == RBP_ABSENT)
		{
			absent = true;
			missing |= !(w->asked && w->cached[i]);
			s->absent++;
			continue;
		}
		pieces += absent;
		w->holes += missing;
		absent = missing = false;
		s->absent = 0;
		if (lookup->where != RBP_REMOTE)
			continue;
		ncached += w->asked && w->cached[i];
		if (w->remote++ == 0)
			w->transport = rbp_remote_slot_transport(lookup->slot);
		if (rbp_remote_slot_readable(lookup->slot))
			s->readable++;
		else
		{
			lookup->where = RBP_ABSENT;
			if (!w->mostly_cached)
				(void) rbp_remote_slot_worth(lookup->slot, w->fs, RBP_WORK_RUN, 1);
		}
	}
	w->absent = s->absent == w->n;
	pieces += absent && !ahead;
	w->holes += missing && !ahead;
	w->whole = s->readable == w->remote;
	if (ncached > w->remote / 2)
	{
		w->holes = pieces;
		w->whole = false;		/* what it takes tells nothing of donors */
	}
}

/*
 * Is the page missing in the page cache that is too far behind the window for the
 * kernel to have read it ahead?
 */
static bool
missing_ahead(const RbpReadFile *file, const RbpWindow *w)
{
	off_t		offset = (off_t) (w->first.block % RELSEG_SIZE + (uint32) w->n + FAR_AHEAD) * BLCKSZ;
	struct stat st;
	bool		cached = false;

	return fstat(file->fd, &st) == 0 && offset + BLCKSZ <= st.st_size &&
		rbp_page_cache_ask(file->fd, file->cache, offset, 1, &cached) && !cached;
}

/*
 * Ask the page cache about the window, if the settings allow it.  It has a run
 * if it has most of the window, and not because the kernel has read that ahead.
 */
static void
survey_page_cache(const RbpReadFile *file, RbpWindow *w)
{
	off_t		offset = (off_t) (w->first.block % RELSEG_SIZE) * BLCKSZ;
	int			cached = 0;
	int			end = 0;		/* behind the last one that is cached */

	w->asked = rbp_guc_read_from != RBP_READ_DONOR;
	for (int i = 0; w->asked && i < w->n; i += RBP_MAX_BATCH)
	{
		int			n = Min(w->n - i, RBP_MAX_BATCH);

		w->asked = rbp_page_cache_ask(file->fd, file->cache, offset + (off_t) i * BLCKSZ,
									  n, &w->cached[i]);
	}
	for (int i = 0; w->asked && i < w->n; i++)
		if (w->cached[i])
		{
			cached++;
			end = i + 1;
		}
	/* what is not may be beyond the end of the file */
	w->mostly_cached = end > w->n / 2 && cached >= end - end / 8 && !missing_ahead(file, w);
}

/* Where the first n pages of the window are to be read from */
static void
choose_source(const RbpReadFile *file, RbpWindow *w, int n, int64 now)
{
	RbpRunFacts facts = {
		.fs = file->fs,.transport = w->transport,.pages = n,
		.remote = w->remote,.holes = w->holes,.cached = w->mostly_cached
	};
	RbpSource	source = rbp_choose_run(&facts, now);

	w->file = source != RBP_SOURCE_DONOR;
	w->trial = source == RBP_SOURCE_TRIAL;
}

/* Request the pages of the window that are to come from donors. */
static void
request_pages(const RbpWindow *w, const RbpStream *stream, Survey *s)
{
	RbpAheadRequest request = {.pool = RBP_POOL_BUFFER,.owner = stream};

	for (int i = 0; i < w->n; i++)
	{
		RbpPageId	id = w->first;
		RbpLookup  *lookup = &s->lookups[i];

		id.block += (BlockNumber) i;
		if (lookup->where == RBP_REMOTE && !rbp_remote_slot_local(lookup->slot) &&
			rbp_ahead_find(RBP_POOL_BUFFER, lookup->slot, lookup->hash) < 0)
		{
			ignore_lookup(&id, lookup, true);
			request.slots[request.n] = lookup->slot;
			request.hashes[request.n++] = lookup->hash;
			request.last = id.block;
		}
		if (request.n == RBP_AHEAD_PAGES || (request.n > 0 && i == w->n - 1))
		{
			(void) rbp_ahead_request(&request, 0, rbp_now_ns());
			request.n = 0;
		}
	}
}

/* Have the kernel read those of the first n pages that the tier has not. */
static void
advise_kernel(const RbpReadFile *file, const RbpWindow *w, int n, const Survey *s)
{
	off_t		offset = (off_t) (w->first.block % RELSEG_SIZE) * BLCKSZ;
	int			from = -1;

	for (int i = 0; i <= n; i++)
	{
		bool		missing = i < n && s->lookups[i].where == RBP_ABSENT &&
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

/*
 * Report what the pages of a window have cost, if most of them were read, and if the
 * process has not connected meanwhile.  What donors did not have is charged with
 * what the disk takes in the mean.
 */
static void
report_window(RbpWindow *w)
{
	if (w->n > 0 && w->pages >= (w->n + 1) / 2)
	{
		rbp_choice_pace(w->fs, w->pages, w->between, w->file && !w->mostly_cached);
		if (w->file && !w->mostly_cached)
			rbp_cost_add(w->fs, RBP_NO_TRANSPORT, RBP_COST_RUN, w->pages, w->ns);
		else if (!w->file && w->remote > 0 && w->whole && w->connects == rbp_remote_connects())
		{
			int64		disk = (w->n - w->remote) * rbp_cost(w->fs, RBP_NO_TRANSPORT, RBP_COST_RUN) +
			w->holes * rbp_cost(w->fs, RBP_NO_TRANSPORT, RBP_COST_PAGE);

			rbp_cost_add(w->fs, w->transport, RBP_COST_RUN, w->remote,
						 Max(w->ns * w->n / w->pages - disk, 0));
		}
	}
	w->n = 0;
}

static bool
in_window(const RbpWindow *w, const RbpPageId *page)
{
	return w->n > 0 && w->read_from == rbp_guc_read_from && rbp_page_same_fork(&w->first, page) &&
		page->block - w->first.block < (uint32) w->n;
}

/* The window, and what follows, is to be read straight from the file. */
static void
begin_straight(const RbpReadFile *file, const RbpWindow *w)
{
	RbpStraight *straight = &file->cache->straight;

	rbp_straight_begin(straight, file->fs, RBP_WORK_RUN, w->n, w->mostly_cached);
	straight->next = w->first.block;
	/* a trial is to tell what the file takes as it is read while it is used */
	straight->timed |= w->trial;
}

/*
 * Begin a window, of n pages from that one on.  stream: what it is ahead of, or
 * NULL if these pages are being read.
 */
static void
begin_window(const RbpReadFile *file, RbpWindow *w, const RbpStream *stream,
			 const RbpPageId *first, int n)
{
	Survey		s;
	RbpStraight *straight = &file->cache->straight;
	int64		now = rbp_now_ns();

	report_window(w);
	w->first = *first;
	w->fs = file->fs;
	w->read_from = rbp_guc_read_from;
	w->n = n;
	w->remote = w->holes = w->pages = 0;
	w->transport = RBP_NO_TRANSPORT;
	w->ns = w->between = w->ended = 0;
	w->connects = rbp_remote_connects();
	survey_page_cache(file, w);
	w->file = w->trial = w->absent = !w->mostly_cached && rbp_choice_trying(file->fs, RBP_SOURCE_TRIAL, now);
	if (w->trial)
	{
		begin_straight(file, w);
		return;
	}
	survey_tier(w, stream != NULL, &s);
	w->file = w->remote == 0;
	if (w->remote > 0)
		choose_source(file, w, stream == NULL ? w->n : w->n - s.absent, now);
	/* a process with no connection makes one for what is not cached */
	if (s.readable == 0 && w->mostly_cached)
		w->file = true;
	/* a read of it connects, or reads the file */
	if (!w->file && s.readable == 0)
		return;

	/*
	 * of what no donor has, some is captured, if that is worth looking at
	 * each page
	 */
	if (!w->file)
		straight->length = 0;
	else if (w->remote > 0 || w->mostly_cached ||
			 (!rbp_worth_capturing_run(file->fs) && rbp_page_policy(first) != RBP_POLICY_KEEP))
		begin_straight(file, w);
	if (w->file || stream == NULL)
		return;
	request_pages(w, stream, &s);
	/* the server's own reads would find nothing of it in the page cache */
	if (s.readable < w->n - s.absent && !rbp_compat_direct_io())
		advise_kernel(file, w, w->n - s.absent, &s);
}

/* The greatest window of a run, whose last one was that */
static uint32
max_window(const RbpWindow *last)
{
	int64		max;

	if (last == NULL || last->remote == 0)
		return (uint32) rbp_guc_read_ahead;
	max = rbp_guc_io_timeout_ns() / (WINDOW_PART * rbp_cost(last->fs, last->transport, RBP_COST_RUN));
	return (uint32) Min(rbp_guc_read_ahead, Max(max, WINDOW_MIN));
}

/*
 * Note a read.  If straight ones of the file have come to their end before it, it
 * may go on with their run.
 */
static void
note_read(const RbpReadFile *file, const RbpPageId *first, int n)
{
	RbpStraight *straight = &file->cache->straight;
	RbpPageId	before = *first;
	uint32		passed = first->block - straight->first;
	uint32		read = (uint32) straight->read;

	if (straight->left <= 0 && read > 0)
	{
		before.block = straight->first;
		rbp_straight_end(straight, file->fs);
		if (passed >= read && passed <= read + read / 8)
			(void) rbp_stream_note(&streams, &before, passed);
		else if (straight->run)
			straight->length = 0;
	}
	noted = rbp_stream_note(&streams, first, (uint32) n);
}

RbpWindow *
rbp_read_ahead_plan(const RbpReadFile *file, const RbpPageId *first, int n)
{
	RbpWindow  *pair;
	RbpWindow  *window;
	uint32		from;
	uint32		planned;

	if (rbp_tier_prewarming)
		return NULL;
	if (rbp_guc_read_ahead == 0 || rbp_compat_is_io_worker())
	{
		/* the read is a window of its own, unless it is short */
		if (n < READ_MIN)
			return NULL;
		begin_window(file, &read_window, NULL, first, n);
		return &read_window;
	}
	note_read(file, first, n);
	pair = windows[noted - streams.streams];
	/* forget those of the run before */
	for (int i = 0; noted->window == 0 && i < 2; i++)
	{
		if (!rbp_page_same_fork(&pair[i].first, first))
			rbp_ahead_drop(noted, UINT32_MAX);
		report_window(&pair[i]);
	}
	window = in_window(&pair[0], first) ? &pair[0] : in_window(&pair[1], first) ? &pair[1] : NULL;
	planned = rbp_stream_plan(noted, first->block, max_window(window), RELSEG_SIZE, &from);
	if (planned > 0)
	{
		RbpWindow  *w = window == &pair[0] ? &pair[1] : &pair[0];
		RbpPageId	ahead = *first;

		ahead.block = from;
		rbp_ahead_drop(noted, first->block);
		begin_window(file, w, noted, &ahead, (int) planned);
		if (in_window(w, first))
			window = w;
	}
	return window;
}
