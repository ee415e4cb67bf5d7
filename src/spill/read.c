/*-------------------------------------------------------------------------
 *
 * read.c
 *	  Reading temporary blocks from donors.
 *
 * Where a read is a copy within this host (shm), it is done at once, into the
 * caller's buffer if that takes a whole block.  Over a network blocks are read
 * ahead, since most temporary files are read sequentially.  A window is up to
 * WINDOW_PAGES blocks of one file, which are one transfer if their slots are
 * adjacent.  When the reader enters a window the next one is submitted, so
 * that it arrives while the query works on this one; windows start small and
 * double.  A merge reads many runs in turn, so there are many windows.  A
 * window that was read to its end is evicted first, then the least recently
 * used one. (The numbers come from traces of merges, whose last passes read
 * runs of 10 to 30 blocks.)
 *
 * The blocks of a window are those that were written one after the other: see
 * submit_window().
 *
 * A window holds copies, which may be out of date.  A page is used only if the
 * table still says that the block is in the slot that it came from, and only
 * if it matches the hash that the table has now.
 *
 * A block that does not arrive is requested again, over a new connection if
 * necessary, and from its second copy if there is one, until
 * remote_bp.temp_io_timeout has passed: there is no disk to fall back to.  If
 * the query is canceled this ends early, and the block is not lost; where the
 * cancellation cannot be raised, it continues.
 *
 * Everything here is local to the process.  No lock is held while waiting for
 * a donor.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>
#include <unistd.h>

#include "miscadmin.h"

#include "base/geometry.h"
#include "base/guc.h"
#include "base/hash.h"
#include "base/stats.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"
#include "spill/spill_internal.h"
#include "spill/table.h"

#define WINDOWS				64
#define WINDOW_PAGES		16
#define WINDOW_FIRST		8
#define RETRY_US			5000

#define shared		rbp_spill_shared

typedef struct Window
{
	RbpSpillHandle handle;		/* RBP_SPILL_NO_FILE: unused */
	int			n;
	uint32		next;			/* block that is likely to be read after the
								 * window, or NO_BLOCK */
	bool		next_submitted; /* the window that begins there was submitted */
	bool		ahead;			/* submitted before its first block was
								 * requested */
	RbpRemoteBatch *batch;		/* in progress */
	uint64		last_use;		/* for eviction */
	uint32		blocks[WINDOW_PAGES];
	uint32		slots[WINDOW_PAGES];
	uint64		hashes[WINDOW_PAGES];	/* by the table, when it was submitted */
	bool		verified[WINDOW_PAGES];
	bool		valid[WINDOW_PAGES];	/* once verified: the page matches its
										 * hash */
	RbpRemoteIo ios[WINDOW_PAGES];
} Window;

static Window windows[WINDOWS];
static uint64 lru_clock = 0;
static int	nwindows = 0;		/* in use */

/* The windows' pages, and after them cached_page(); mapped when first needed. */
static char *window_memory = NULL;

/* The block in cached_page(), kept for reads of parts of it. */
static RbpSpilledBlock cached;
static bool cached_valid = false;

static inline bool
same_file(RbpSpillHandle a, RbpSpillHandle b)
{
	return a.index == b.index && a.serial == b.serial;
}

static bool
map_windows(void)
{
	Size		size = ((Size) WINDOWS * WINDOW_PAGES + 1) * BLCKSZ;

	if (window_memory == NULL)
	{
		void	   *mem = mmap(NULL, size, PROT_READ | PROT_WRITE,
							   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (mem != MAP_FAILED)
		{
			window_memory = mem;
			for (int i = 0; i < WINDOWS; i++)
				windows[i].handle.index = RBP_SPILL_NO_FILE;
		}
	}
	return window_memory != NULL;
}

static inline char *
window_page(const Window *w, int i)
{
	return window_memory +
		((Size) (w - windows) * WINDOW_PAGES + (Size) i) * BLCKSZ;
}

static inline char *
cached_page(void)
{
	return window_memory + (Size) WINDOWS * WINDOW_PAGES * BLCKSZ;
}

/*
 * ---- one block, with retries -------------------------------------------
 */

const char	rbp_spill_interrupted[] = "the query was canceled";

static RbpStatus
read_copy(uint32 slot, int flags, int64 now, int64 deadline_ns, char *page)
{
	RbpRemoteIo io = {.slot = slot,.buf = page,.status = RBP_CANCELED};
	RbpRemoteBatch *batch;

	batch = rbp_remote_begin(&io, 1, false, flags, now, deadline_ns);
	if (batch != NULL)
		rbp_remote_end(batch, deadline_ns);
	return io.status;
}

/*
 * Is the block still in that slot?  If its file still exists and name is not
 * NULL, copies the file's name there.
 */
static bool
block_unchanged(const RbpSpilledBlock *b, char *name)
{
	RbpSpillFile *file = rbp_spill_file_lock(b->handle, false);
	bool		there;

	if (file == NULL)
		return false;
	there = rbp_spill_block_get(file, b->block) == SLOT_VALUE(b->slot) &&
		slot_info(b->slot)->hash == b->hash;
	if (name != NULL)
		strlcpy(name, file->name, RBP_SPILL_NAME_LEN);
	rbp_spill_file_unlock(file);
	return there;
}

/*
 * Called when the content of the slot, with a copy of the block, does not match
 * the block's hash.  Returns true, and counts a hash failure, if the block is
 * still there; else the slot may have been given to another block, which is
 * not an error.
 */
static bool
confirm_mismatch(const RbpSpilledBlock *b, uint32 slot)
{
	if (!block_unchanged(b, NULL))
		return false;
	rbp_stats_count(RBP_COUNT_SPILL_HASH_FAILURES, 1);
	rbp_remote_wrong_bytes(slot);
	return true;
}

/* The result of an attempt to read one copy of a block. */
typedef enum CopyResult
{
	COPY_READ,
	COPY_MOVED,					/* the block is no longer there */
	COPY_FAILED,				/* a retry may succeed */
	COPY_MISMATCH				/* a retry may succeed, if the transfer was at
								 * fault */
} CopyResult;

/*
 * Read the copy of the block in that slot.  On failure, *reason is set, for
 * messages.
 */
static CopyResult
read_one_copy(const RbpSpilledBlock *b, uint32 slot, int flags, int64 deadline_ns,
			  char *page, const char **reason)
{
	RbpStatus	status = read_copy(slot, flags, rbp_now_ns(), deadline_ns, page);

	if (status != RBP_OK)
	{
		*reason = rbp_status_text(status);
		return COPY_FAILED;
	}
	if (rbp_hash_page(page) == b->hash)
	{
		if (slot != b->slot)
			rbp_stats_count(RBP_COUNT_SPILL_MIRROR_READS, 1);
		return COPY_READ;
	}
	*reason = "its content does not match its hash";
	return confirm_mismatch(b, slot) ? COPY_MISMATCH : COPY_MOVED;
}

const char *
rbp_spill_fetch_page(const RbpSpilledBlock *b, int64 deadline_ns, char *page)
{
	const char *reason = NULL;
	uint32		copies[2] = {b->slot, b->mirror};
	int			ncopies = b->mirror == NO_SLOT ? 1 : 2;
	bool		unusable[2] = {false, false};
	int			mismatches = 0;

	for (int round = 0;; round++)
	{
		bool		possible = false;

		/*
		 * With two copies, the first round only tries donors that are known
		 * to answer.  An answer can be lost, so a wait takes at most half of
		 * the time that is left, and there is time to ask again.  Only
		 * retries of an only copy wait until the deadline.
		 */
		int			flags = ncopies == 2 && round == 0 ? 0 : RBP_REMOTE_PATIENT;
		bool		leave_time = ncopies == 2 || round == 0;

		for (int i = 0; i < ncopies; i++)
		{
			int64		now = rbp_now_ns();

			if (!rbp_remote_usable(RBP_POOL_TEMP, now))
			{
				reason = "the lease has ended";
				continue;
			}
			if (unusable[i] || rbp_remote_slot_donor(copies[i]) < 0)
			{
				unusable[i] = true;
				reason = reason != NULL ? reason :
					"the donor's memory is no longer leased";
				continue;
			}
			possible = true;
			switch (read_one_copy(b, copies[i], flags,
								  leave_time ? now + (deadline_ns - now) / 2 : deadline_ns,
								  page, &reason))
			{
				case COPY_READ:
					return NULL;
				case COPY_MOVED:
					return reason;
				case COPY_MISMATCH:
					unusable[i] = ++mismatches > 2 * ncopies;
					break;
				case COPY_FAILED:
					break;
			}
		}
		if (possible && rbp_remote_interrupted() && rbp_remote_can_fail_with_eintr())
			return rbp_spill_interrupted;
		if (!possible || rbp_now_ns() >= deadline_ns)
			return reason;
		if (round > 0)
			pg_usleep(RETRY_US);
	}
}

/* Tell that the block is lost, and where it was. */
static void
report_lost_block(const char *name, const RbpSpilledBlock *b, const char *reason)
{
	char		donor[RBP_DONOR_ID_LEN];
	char		address[RBP_ADDRESS_LEN];

	/* the slot may be unused by now, and its donor gone */
	rbp_remote_donor_name(slot_info(b->slot)->donor, donor, sizeof(donor));
	rbp_remote_donor_address(slot_info(b->slot)->donor, address, sizeof(address));
	rbp_spill_block_lost(name,
						 "The block was in memory of that donor, not on a disk. Run the query again. With remote_bp.temp_mirror, temporary data is on two donors.",
						 "could not read block %u of temporary file \"%s\" from donor \"%s\" (%s): %s",
						 b->block, name, donor, address, reason);
}

/* Read a whole page.  Returns what rbp_spill_fetch() returns. */
static int
fetch_with_retries(const RbpSpilledBlock *b, int64 deadline_ns, char *page)
{
	char		name[RBP_SPILL_NAME_LEN];
	const char *reason;

	reason = rbp_spill_fetch_page(b, deadline_ns, page);
	if (reason == NULL)
	{
		rbp_stats_count(RBP_COUNT_SPILL_READS, 1);
		return 1;
	}
	if (reason == rbp_spill_interrupted)
		return RBP_SPILL_INTERRUPTED;
	if (!block_unchanged(b, name))
		return 0;
	report_lost_block(name, b, reason);
	return -1;
}

/*
 * ---- windows -----------------------------------------------------------
 */

int64
rbp_spill_short_wait(void)
{
	return Min(rbp_guc_io_timeout_ns() * 10, rbp_guc_temp_io_timeout_ns());
}

/* Wait for the window's batch, if it is in progress. */
static void
complete_window(Window *w, int64 deadline_ns)
{
	if (w->batch != NULL)
		rbp_remote_end(w->batch, deadline_ns);
	w->batch = NULL;
}

/*
 * Give up a window.  A batch in progress is waited for briefly, which costs
 * less than abandoning it.
 */
static void
discard_window(Window *w, int64 deadline_ns)
{
	if (w->handle.index == RBP_SPILL_NO_FILE)
		return;
	complete_window(w, deadline_ns);
	w->handle.index = RBP_SPILL_NO_FILE;
	nwindows--;
}

void
rbp_spill_end_read_ahead(void)
{
	int64		deadline;

	cached_valid = false;
	if (nwindows == 0)
		return;
	deadline = rbp_now_ns() + Min(rbp_spill_short_wait(), RBP_SPILL_URGENT_NS);
	for (int i = 0; i < WINDOWS; i++)
		discard_window(&windows[i], deadline);
	/* return the pages' memory to the system */
	(void) madvise(window_memory, ((Size) WINDOWS * WINDOW_PAGES + 1) * BLCKSZ,
				   MADV_DONTNEED);
}

/* Find the window with the block, and its position there. */
static Window *
find_window(RbpSpillHandle handle, uint32 block, int *at)
{
	static Window *hint = windows;
	static int	hint_at = 0;

	if (nwindows == 0)
		return NULL;

	/* mostly it is the same block as in the last call, or the one after it */
	if (same_file(hint->handle, handle))
		for (*at = hint_at; *at < Min(hint_at + 2, hint->n); (*at)++)
			if (hint->blocks[*at] == block)
			{
				hint_at = *at;
				return hint;
			}
	for (Window *w = windows; w < windows + WINDOWS; w++)
	{
		if (!same_file(w->handle, handle))
			continue;
		for (*at = 0; *at < w->n; (*at)++)
			if (w->blocks[*at] == block)
			{
				hint = w;
				hint_at = *at;
				return w;
			}
	}
	return NULL;
}

/*
 * If a window expects the block to be read after it, return the window's
 * length, else 0.
 */
static int
window_before(RbpSpillHandle handle, uint32 block)
{
	for (int i = 0; i < WINDOWS && nwindows > 0; i++)
		if (same_file(windows[i].handle, handle) && windows[i].next == block)
			return windows[i].n;
	return 0;
}

/*
 * Find an unused window, or else discard the least recently used one other
 * than after.
 */
static Window *
get_free_window(const Window *after)
{
	Window	   *w = NULL;

	for (int i = 0; i < WINDOWS; i++)
	{
		if (windows[i].handle.index == RBP_SPILL_NO_FILE)
		{
			w = &windows[i];
			break;
		}
		if (&windows[i] != after && (w == NULL || windows[i].last_use < w->last_use))
			w = &windows[i];
	}
	discard_window(w, rbp_now_ns() + rbp_spill_short_wait());
	return w;
}

/*
 * Submit a read of up to n blocks from block on, as far as they are in slots,
 * in a new window.  NULL if the first one is not in a slot, or if the read
 * fails at once.
 *
 * The blocks are taken in the order in which they were written: a merge sort
 * reuses the blocks that it has read, and so scatters its result over the
 * file.  In a relation, or where that order is not known, they are
 * consecutive.
 *
 * after: the window that this one continues, read ahead of the reader; NULL if
 * the reader waits for the first block.
 */
static Window *
submit_window(RbpSpillHandle handle, uint32 block, int n, int flags,
			  int64 deadline_ns, const Window *after)
{
	uint32		blocks[WINDOW_PAGES];
	uint32		slots[WINDOW_PAGES];
	uint64		hashes[WINDOW_PAGES];
	RbpSpillFile *file = rbp_spill_file_lock(handle, false);
	bool		relation;
	Window	   *w;
	int			got;
	int64		now;

	if (file == NULL)
		return NULL;
	relation = file->relation;
	for (got = 0; got < n && block != NO_BLOCK; got++)
	{
		uint32		value = rbp_spill_block_get(file, block);

		if (!IS_SLOT(value))
			break;
		blocks[got] = block;
		slots[got] = VALUE_SLOT(value);
		hashes[got] = slot_info(slots[got])->hash;
		if (relation || slot_info(slots[got])->next == NO_BLOCK)
			block++;
		else
			block = slot_info(slots[got])->next;
		if (block == blocks[0])
			block = NO_BLOCK;	/* blocks that were written again have made
								 * the order circular */
	}
	rbp_spill_file_unlock(file);
	if (got == 0)
		return NULL;

	w = get_free_window(after);
	now = rbp_now_ns();
	w->n = n = got;
	w->next = block;
	w->next_submitted = false;
	w->ahead = after != NULL;
	w->last_use = ++lru_clock;
	for (int i = 0; i < n; i++)
	{
		w->blocks[i] = blocks[i];
		w->slots[i] = slots[i];
		w->hashes[i] = hashes[i];
		w->verified[i] = false;
		w->ios[i].slot = w->slots[i];
		w->ios[i].buf = window_page(w, i);
		w->ios[i].status = RBP_CANCELED;
	}
	w->handle = handle;
	nwindows++;
	rbp_spill_used_in_xact = true;
	w->batch = rbp_remote_begin(w->ios, n, false, flags, now, deadline_ns);
	if (w->batch == NULL)
	{
		discard_window(w, now);
		return NULL;
	}
	return w;
}

/*
 * Page i of a window, if it has the content of the block according to the
 * table.
 */
static char *
window_page_if_valid(Window *w, int i, const RbpSpilledBlock *b)
{
	char	   *page = window_page(w, i);

	if (w->slots[i] != b->slot || w->hashes[i] != b->hash)
		return NULL;			/* the block has been written again */
	if (w->ios[i].status != RBP_OK)
		return NULL;
	if (!w->verified[i])
	{
		w->valid[i] = rbp_hash_page(page) == b->hash;
		w->verified[i] = true;
		if (!w->valid[i])
			(void) confirm_mismatch(b, b->slot);
		else
		{
			rbp_stats_count(RBP_COUNT_SPILL_READS, 1);
			if (i > 0 || w->ahead)
				rbp_stats_count(RBP_COUNT_SPILL_READ_AHEAD, 1);
		}
	}
	return w->valid[i] ? page : NULL;
}

/*
 * ---- reads -------------------------------------------------------------
 */

/* The deadline of the first attempt, which leaves time for another one. */
static int64
first_attempt_deadline(int64 start_ns)
{
	return start_ns + rbp_guc_temp_io_timeout_ns() / 2;
}

/* Read a whole block from memory of this host. */
static int
fetch_direct(const RbpSpilledBlock *b, int64 start_ns, char *buf)
{
	RbpRemoteIo io = {.slot = b->slot,.buf = buf,.status = RBP_CANCELED};

	rbp_remote_read(&io, 1, start_ns, first_attempt_deadline(start_ns));
	if (io.status != RBP_OK || rbp_hash_page(buf) != b->hash)
		return fetch_with_retries(b, start_ns + rbp_guc_temp_io_timeout_ns(), buf);
	rbp_stats_count(RBP_COUNT_SPILL_READS, 1);
	return 1;
}

/* Submit the window after this one, unless there is one already. */
static void
read_ahead(Window *w, int64 deadline_ns)
{
	int			other;

	w->next_submitted = true;
	if (w->next != NO_BLOCK && find_window(w->handle, w->next, &other) == NULL)
		(void) submit_window(w->handle, w->next, Min(w->n * 2, WINDOW_PAGES), 0,
							 deadline_ns, w);
}

/*
 * The block's page in a window, which is submitted if necessary; NULL on
 * failure.
 */
static char *
page_in_window(const RbpSpilledBlock *b, bool relation, int64 start_ns)
{
	int64		short_deadline = start_ns + rbp_spill_short_wait();
	bool		only_copy = b->mirror == NO_SLOT;
	int64		deadline = only_copy ? first_attempt_deadline(start_ns) : short_deadline;
	int			at;
	Window	   *w = find_window(b->handle, b->block, &at);
	bool		sequential = true;
	char	   *page;

	if (w != NULL && (w->slots[at] != b->slot || w->hashes[at] != b->hash))
	{
		/* the block has changed since */
		discard_window(w, short_deadline);
		w = NULL;
	}
	if (w == NULL)
	{
		int			before = window_before(b->handle, b->block);

		w = submit_window(b->handle, b->block,
						  before > 0 ? Min(before * 2, WINDOW_PAGES) :
						  relation ? 1 : WINDOW_FIRST,
						  only_copy ? RBP_REMOTE_PATIENT : 0, deadline, NULL);
		at = 0;

		/*
		 * a single first block of a relation does not suggest a sequential
		 * read
		 */
		sequential = w != NULL && w->n > 1;
	}
	if (w == NULL)
		return NULL;
	w->last_use = ++lru_clock;
	if (sequential && !w->next_submitted)
		read_ahead(w, short_deadline);
	complete_window(w, deadline);
	page = window_page_if_valid(w, at, b);
	if (at == w->n - 1)
		w->last_use = 0;
	return page;
}

/* The block's page, or NULL with *result set as for rbp_spill_fetch(). */
static char *
get_page(const RbpSpilledBlock *b, bool relation, int64 start_ns, int *result)
{
	char	   *page = NULL;

	if (cached_valid && cached.block == b->block && cached.slot == b->slot &&
		cached.hash == b->hash && same_file(cached.handle, b->handle))
		return cached_page();
	if (!rbp_remote_slot_local(b->slot))
		page = page_in_window(b, relation, start_ns);
	if (page != NULL)
		return page;
	cached_valid = false;
	*result = fetch_with_retries(b, start_ns + rbp_guc_temp_io_timeout_ns(), cached_page());
	if (*result <= 0)
		return NULL;
	cached_valid = true;
	rbp_spill_used_in_xact = true;
	cached = *b;
	return cached_page();
}

int
rbp_spill_fetch(const RbpSpilledBlock *b, bool relation, uint32 start, uint32 n,
				char *buf)
{
	int64		start_ns = rbp_now_ns();
	int			result = 1;
	const char *page;

	if (n == BLCKSZ && rbp_remote_slot_local(b->slot))
		result = fetch_direct(b, start_ns, buf);
	else if (map_windows())
	{
		page = get_page(b, relation, start_ns, &result);
		if (page != NULL)
			memcpy(buf, page + start, n);
	}
	else
	{
		char		one[BLCKSZ];

		result = fetch_with_retries(b, start_ns + rbp_guc_temp_io_timeout_ns(), one);
		if (result > 0)
			memcpy(buf, one + start, n);
	}
	rbp_stats_latency(RBP_LATENCY_SPILL_READ, rbp_now_ns() - start_ns);
	return result;
}
