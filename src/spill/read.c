/*-------------------------------------------------------------------------
 *
 * read.c
 *	  Reading temporary blocks from donors.
 *
 * Where a read is a copy within this host (shm), it is done at once.  Over a
 * network blocks are read ahead, since most temporary files are read
 * sequentially: remote has the pages on their way (remote/ahead.c).  A window is
 * a batch of these, which is one transfer if their slots are adjacent.  When
 * the reader enters a window the next one is submitted, so that it arrives
 * while the query works on this one; windows start small and double.
 *
 * The blocks of a window are those that were written one after the other: see
 * submit_window().
 *
 * A window holds copies, which may be out of date.  A page is used only if the
 * table still says that the block is in the slot that it came from, with the
 * hash that the page has.
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

#include "base/geometry.h"
#include "base/guc.h"
#include "base/hash.h"
#include "base/stats.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"
#include "spill/spill_internal.h"
#include "spill/table.h"

#define WINDOW_FIRST		8
#define RETRY_US			5000

/* How often a copy is read that does not match: the transfer may be at fault */
#define MISMATCHES			3

/* What is expected after a batch that was requested ahead */
typedef struct Window
{
	RbpSpillHandle handle;
	int			n;				/* its pages */
	uint32		next;			/* block that is likely to be read after it
								 * and was not requested yet, or NO_BLOCK */
} Window;

/* By the number of the batch; those of batches that are gone are hints. */
static Window windows[RBP_AHEAD_BATCHES];

static inline bool
same_file(RbpSpillHandle a, RbpSpillHandle b)
{
	return a.index == b.index && a.serial == b.serial;
}

/*
 * ---- one block, with retries -------------------------------------------
 */

static RbpStatus
read_copy(uint32 slot, int flags, int64 deadline_ns, char *page)
{
	RbpRemoteIo io = {.slot = slot,.buf = page,.status = RBP_CANCELED};
	RbpRemoteBatch *batch = rbp_remote_begin(&io, 1, false, flags, rbp_now_ns(), deadline_ns);

	if (batch != NULL)
		rbp_remote_end(batch, deadline_ns);
	return io.status;
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
	RbpSpillFile *file = rbp_spill_lock_block(b, false, true);

	if (file == NULL)
		return false;
	rbp_spill_file_unlock(file);
	rbp_stats_count(RBP_COUNT_SPILL_HASH_FAILURES, 1);
	rbp_remote_wrong_bytes(slot);
	return true;
}

bool
rbp_spill_fetch_page(const RbpSpilledBlock *b, int64 deadline_ns, char *page,
					 const char **reason)
{
	uint32		copies[2] = {b->slot, b->mirror};
	int			ncopies = b->mirror == NO_SLOT ? 1 : 2;
	int			mismatches[2] = {0, 0};

	*reason = NULL;
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
			RbpStatus	status;

			if (!rbp_remote_usable(RBP_POOL_TEMP, now))
			{
				*reason = "the lease has ended";
				continue;
			}
			if (mismatches[i] == MISMATCHES || rbp_remote_slot_donor(copies[i]) < 0)
			{
				*reason = *reason != NULL ? *reason :
					"the donor's memory is no longer leased";
				continue;
			}
			possible = true;
			status = read_copy(copies[i], flags,
							   leave_time ? now + (deadline_ns - now) / 2 : deadline_ns, page);
			if (status == RBP_OK && rbp_hash_page(page) == b->hash)
			{
				rbp_remote_count_read(copies[i], rbp_now_ns() - now, 0);
				if (copies[i] == b->mirror)
					rbp_stats_count(RBP_COUNT_SPILL_MIRROR_READS, 1);
				return true;
			}
			if (status == RBP_OK)
			{
				*reason = "its content does not match its hash";
				if (!confirm_mismatch(b, copies[i]))
					return false;
				mismatches[i]++;
			}
			else
				*reason = rbp_status_text(status);
		}
		if (possible && rbp_remote_interrupted() && rbp_remote_can_fail_with_eintr())
			*reason = NULL;
		if (*reason == NULL || !possible || rbp_now_ns() >= deadline_ns)
			return false;
		if (round > 0)
			pg_usleep(RETRY_US);
	}
}

/* Tell that the block cannot be read, and where it was. */
static void
report_unreadable(const char *name, const RbpSpilledBlock *b, const char *reason)
{
	char		donor[RBP_DONOR_TEXT_LEN];

	/* the slot may be unused by now, and its donor gone */
	rbp_remote_donor_text(slot_info(b->slot)->donor, donor, sizeof(donor));
	rbp_spill_block_lost(name,
						 "The block was in memory of that donor, not on a disk. Run the query again. With remote_bp.temp_mirror, temporary data is on two donors.",
						 "could not read block %u of temporary file \"%s\" from donor %s: %s",
						 b->block, name, donor, reason);
}

/* Read a whole page.  Returns what rbp_spill_fetch() returns. */
static int
fetch_with_retries(const RbpSpilledBlock *b, int64 deadline_ns, char *page)
{
	char		name[RBP_SPILL_NAME_LEN];
	const char *reason;
	RbpSpillFile *file;

	if (rbp_spill_fetch_page(b, deadline_ns, page, &reason))
	{
		rbp_stats_count(RBP_COUNT_SPILL_READS, 1);
		return 1;
	}
	if (reason == NULL)
		return RBP_SPILL_INTERRUPTED;
	file = rbp_spill_lock_block(b, false, true);
	if (file == NULL)
		return 0;
	strlcpy(name, file->name, sizeof(name));
	rbp_spill_file_unlock(file);
	report_unreadable(name, b, reason);
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

/*
 * If a window expects the block to be read after it, return the window's
 * length, else 0.
 */
static int
window_before(RbpSpillHandle handle, uint32 block)
{
	for (int i = 0; i < RBP_AHEAD_BATCHES; i++)
		if (same_file(windows[i].handle, handle) && windows[i].next == block)
			return windows[i].n;
	return 0;
}

/*
 * Submit a read of up to n blocks from block on, as far as they are in slots.
 * Returns the window's number, or -1 if the first one is not in a slot, or if
 * the read fails at once.
 *
 * The blocks are taken in the order in which they were written: a merge sort
 * reuses the blocks that it has read, and so scatters its result over the
 * file.  In a relation, or where that order is not known, they are
 * consecutive.
 *
 * ahead: nobody waits for the first block, which need not be read if it is in a
 * window.
 */
static int
submit_window(RbpSpillHandle handle, uint32 block, int n, int flags,
			  int64 deadline_ns, bool ahead)
{
	RbpAheadRequest request = {.pool = RBP_POOL_TEMP};
	RbpSpillFile *file = rbp_spill_file_lock(handle, false, true);
	uint32		first = block;
	int			w;

	if (file == NULL)
		return -1;
	for (; request.n < n && block != NO_BLOCK; request.n++)
	{
		uint32		value = rbp_spill_block_get(file, block);
		const RbpSpillSlotInfo *info;

		if (!IS_SLOT(value))
			break;
		info = slot_info(VALUE_SLOT(value));
		request.slots[request.n] = VALUE_SLOT(value);
		request.hashes[request.n] = info->hash;
		block = file->relation || info->next == NO_BLOCK ? block + 1 : info->next;
		if (block == first)
			block = NO_BLOCK;	/* blocks that were written again have made
								 * the order circular */
	}
	rbp_spill_file_unlock(file);
	if (request.n == 0 ||
		(ahead && rbp_ahead_find(RBP_POOL_TEMP, request.slots[0], request.hashes[0]) >= 0))
		return -1;
	w = rbp_ahead_request(&request, flags, deadline_ns);
	if (w >= 0)
		windows[w] = (Window)
	{
		.handle = handle,.n = request.n,.next = block
	};
	return w;
}

/*
 * ---- reads -------------------------------------------------------------
 */

/*
 * Read a whole block from a window, which is submitted if necessary; false on
 * failure.
 */
static bool
read_in_window(const RbpSpilledBlock *b, bool relation, int64 start_ns, char *page)
{
	int64		short_deadline = start_ns + rbp_spill_short_wait();
	bool		only_copy = b->mirror == NO_SLOT;
	int64		deadline = short_deadline;
	int			w = rbp_ahead_find(RBP_POOL_TEMP, b->slot, b->hash);
	bool		was_ahead = w >= 0;
	uint32		next;

	/* if there is no other copy, half of the time is left for another attempt */
	if (only_copy)
		deadline = start_ns + rbp_guc_temp_io_timeout_ns() / 2;
	if (w < 0)
	{
		int			before = window_before(b->handle, b->block);

		w = submit_window(b->handle, b->block,
						  before > 0 ? Min(before * 2, RBP_AHEAD_PAGES) :
						  relation ? 1 : WINDOW_FIRST,
						  only_copy ? RBP_REMOTE_PATIENT : 0, deadline, false);
		if (w < 0)
			return false;
	}
	next = windows[w].next;
	/* a single block of a relation suggests no sequential read */
	if (windows[w].n > 1 && next != NO_BLOCK)
	{
		windows[w].next = NO_BLOCK;
		(void) submit_window(b->handle, next, Min(windows[w].n * 2, RBP_AHEAD_PAGES), 0,
							 short_deadline, true);
	}
	switch (rbp_ahead_take(RBP_POOL_TEMP, b->slot, b->hash, page, &deadline))
	{
		case RBP_TAKEN_PAGE:
			rbp_stats_count(RBP_COUNT_SPILL_READS, 1);
			if (was_ahead)
				rbp_stats_count(RBP_COUNT_SPILL_READ_AHEAD, 1);
			return true;
		case RBP_TAKEN_AGAIN:
			return true;
		case RBP_TAKEN_MISMATCH:
			(void) confirm_mismatch(b, b->slot);
			return false;
		default:
			return false;
	}
}

/* Read a whole block.  Returns what rbp_spill_fetch() returns. */
static int
read_block(const RbpSpilledBlock *b, bool relation, int64 start_ns, char *page)
{
	if (!rbp_remote_slot_local(b->slot) && read_in_window(b, relation, start_ns, page))
		return 1;
	return fetch_with_retries(b, start_ns + rbp_guc_temp_io_timeout_ns(), page);
}

int
rbp_spill_fetch(const RbpSpilledBlock *b, bool relation, uint32 start, uint32 n,
				char *buf)
{
	int64		start_ns = rbp_now_ns();
	char		whole[BLCKSZ];
	int			result = read_block(b, relation, start_ns, n == BLCKSZ ? buf : whole);

	if (result > 0 && n < BLCKSZ)
		memcpy(buf, whole + start, n);
	rbp_stats_latency(RBP_LATENCY_SPILL_READS, rbp_now_ns() - start_ns);
	return result;
}
