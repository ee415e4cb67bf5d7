/*-------------------------------------------------------------------------
 *
 * upkeep.c
 *	  Temporary files: evacuation, and files whose owner is gone.
 *
 * Evacuation moves blocks out of memory that is to be released.  The lease
 * worker does this while the extents are in use.  A block is read, written to
 * another place, and installed there if it has not changed meanwhile, which
 * its slot and hash tell.  A reader that has looked up the old slot and finds
 * something else there looks up the block again.
 *
 * The lease worker and the pusher never wait for a file's lock here: a backend
 * holds it while the disk takes a block, and a disk can stall.  A locked file
 * is left to the next round.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "base/geometry.h"
#include "base/stats.h"
#include "common/clock.h"
#include "spill/slots.h"
#include "spill/spill.h"
#include "spill/spill_internal.h"
#include "spill/table.h"

#define SWEEP_NS		INT64CONST(10000000000)

/* A block that is begun gets at least this time, even beyond the deadline. */
#define MIN_BLOCK_NS	INT64CONST(50000000)

#define shared			rbp_spill_shared

/*
 * Find the block in the slot.  False if there is none, or if the file is locked.
 */
static bool
find_block(uint32 slot, RbpSpilledBlock *b)
{
	RbpSpillFile *file;
	bool		found = false;

	/* read without the file's lock: a hint */
	b->handle = slot_info(slot)->handle;
	b->block = slot_info(slot)->block;
	file = rbp_spill_file_lock(b->handle, false, false);
	if (file == NULL)
		return false;
	b->value = rbp_spill_block_get(file, b->block);
	if (IS_SLOT(b->value))
	{
		b->slot = VALUE_SLOT(b->value);
		b->mirror = slot_info(b->slot)->mirror;
		b->hash = slot_info(b->slot)->hash;
		found = b->slot == slot || b->mirror == slot;
	}
	rbp_spill_file_unlock(file);
	return found;
}

/* If the real file cannot be written, the block stays where it is. */
static void
move_to_real_file(const RbpSpilledBlock *b, const char *page)
{
	RbpSpillFile *file = rbp_spill_lock_block(b, true, false);

	if (file == NULL)
		return;
	if (rbp_spill_to_real_file(file, b->block, page))
		rbp_stats_count(RBP_COUNT_SPILL_EVACUATED, 1);
	rbp_spill_file_unlock(file);
}

uint32
rbp_spill_evacuate(uint32 extent, int64 deadline_ns)
{
	static char page[BLCKSZ];
	static uint32 next_slot = 0;	/* offset at which the last call stopped,
									 * in any extent: a block that uses up the
									 * time must not be the first each time */
	uint32		start = next_slot;

	for (uint32 i = 0; i < RBP_EXTENT_PAGES; i++)
	{
		uint32		slot = RBP_EXTENT_SLOT(extent) + (start + i) % RBP_EXTENT_PAGES;
		RbpSpilledBlock b;
		const char *reason;
		int64		now = rbp_now_ns();
		int64		block_deadline = Min(now + rbp_spill_short_wait(),
										 Max(deadline_ns, now + MIN_BLOCK_NS));

		if (now >= deadline_ns)
			break;
		next_slot = (slot + 1) % RBP_EXTENT_PAGES;
		if (!find_block(slot, &b))
			continue;

		/*
		 * If the block cannot be read, continue with the next one; but if
		 * that has used up its time, the donor is not answering now.
		 */
		if (!rbp_spill_fetch_page(&b, block_deadline, page, &reason))
		{
			if (rbp_now_ns() >= block_deadline)
				break;
			continue;
		}

		/* If it can go nowhere, as with a full disk, the next one may. */
		if (!rbp_spill_move(&b, page, true, block_deadline))
			move_to_real_file(&b, page);
	}
	return (uint32) rbp_spill_slots_extent_filled(extent);
}

/*
 * ---- files whose owner is gone -----------------------------------------
 */

/*
 * A duty of the pusher: end quarantines of slots, report costs, free slots that
 * are reserved in memory that goes away, lest its extents stay out of use, and
 * remove files whose owner is gone.  A process unlinks its files before it ends, and a
 * restart of the server empties the table.  But files can be left over, say
 * because the directory was removed by hand, and nobody will ask for their
 * blocks again.  A temporary relation stays until it is dropped.
 */
int64
rbp_spill_sweep(void)
{
	static int64 next = 0;
	int64		now;
	RbpSpillHandle handle;

	if (shared == NULL)
		return SWEEP_NS;
	now = rbp_now_ns();
	if (now < next)
		return next - now;
	next = now + SWEEP_NS;
	rbp_spill_slots_tick(now);
	rbp_spill_cost_report(now);
	for (uint32 i = 0; rbp_spill_table_next(i, &handle);
		 i = handle.index + 1)
	{
		RbpSpillFile *file = rbp_spill_file_lock(handle, true, false);
		bool		left_over;

		if (file == NULL)
			continue;
		rbp_spill_free_useless(file);
		left_over = !file->relation && kill(file->owner, 0) != 0 && errno == ESRCH;
		rbp_spill_file_unlock(file);
		if (left_over)
			rbp_spill_forget_handle(handle);
	}
	return SWEEP_NS;
}

void
rbp_spill_get_usage(RbpSpillUsage *usage)
{
	memset(usage, 0, sizeof(*usage));
	if (shared == NULL)
		return;
	rbp_spill_slots_counts(usage);
	usage->files = rbp_spill_table_files();
}
