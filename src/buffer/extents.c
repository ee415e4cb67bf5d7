/*-------------------------------------------------------------------------
 *
 * extents.c
 *	  What remote asks about extents of the buffer tier, and moving pages out of
 *	  extents that are drained.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/geometry.h"
#include "base/hash.h"
#include "base/stats.h"
#include "buffer/buffer.h"
#include "buffer/buffer_internal.h"
#include "buffer/directory.h"
#include "buffer/relation_stats.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"

/*
 * Time limit when pages are moved.  If no page was moved for this long, the
 * evacuation of the extent ends, so that others get their turn.  Reading a batch
 * gets this much time, too, and so does writing it, since no query waits for
 * that; it is not started with less, lest a healthy donor be taken for a slow one.
 */
#define MOVE_PATIENCE_NS	INT64CONST(50000000)

static uint64
region_heat(uint32 region, uint64 *used)
{
	return rbp_directory_heat(rbp_dir, region, used);
}

static uint64
extent_count(uint32 extent)
{
	return rbp_directory_extent_used(rbp_dir, extent);
}

static uint32
drop_extents(uint32 *extents, uint32 n)
{
	rbp_directory_drop_extents(rbp_dir, extents, n);
	return n;
}

/*
 * Copy a batch of the extent's pages, from its slot *next on, to slots of other
 * extents.  Each page is served from its old slot until the copy is there, and
 * one that cannot be copied stays.  Returns false if reads or writes failed, and
 * no page was moved.  *next is advanced only if all of it could.
 */
static bool
move_batch(uint32 extent, uint32 *next, int64 now)
{
	static char bufs[RBP_MAX_BATCH][BLCKSZ] pg_attribute_aligned(RBP_IO_ALIGN);
	RbpMovable	pages[RBP_MAX_BATCH];
	RbpRemoteIo ios[RBP_MAX_BATCH];
	uint32		from = *next;
	int			n = rbp_directory_movable(rbp_dir, extent, next, pages, RBP_MAX_BATCH);
	int			failed = 0;
	int			copies = 0;
	int			moved = 0;
	bool		usable;

	for (int i = 0; i < n; i++)
	{
		ios[i].slot = pages[i].at.slot;
		ios[i].buf = bufs[i];
	}
	if (n > 0)
		rbp_remote_transfer(ios, n, false, now, now + MOVE_PATIENCE_NS);
	for (int i = 0; i < n; i++)
	{
		RbpEvicted	evicted;

		if (ios[i].status != RBP_OK)
			failed++;
		else if (rbp_hash_page(ios[i].buf) == pages[i].at.hash)
		{
			ios[copies].buf = ios[i].buf;
			ios[copies].slot = rbp_directory_reserve(rbp_dir, &pages[i].page, &evicted);
			rbp_pusher_count_evicted(&evicted);
			if (ios[copies].slot != RBP_INVALID_SLOT)
				pages[copies++] = pages[i];
		}
	}
	now = rbp_now_ns();
	usable = rbp_remote_usable(RBP_POOL_BUFFER, now);
	if (copies > 0 && usable)
		rbp_remote_transfer(ios, copies, true, now, now + MOVE_PATIENCE_NS);
	for (int i = 0; i < copies; i++)
	{
		if (!usable || ios[i].status != RBP_OK)
		{
			rbp_directory_unreserve(rbp_dir, ios[i].slot);
			failed++;
		}
		else if (rbp_directory_move(rbp_dir, &pages[i], ios[i].slot) == RBP_INSERTED)
		{
			moved++;
			rbp_stats_count(RBP_COUNT_PUSHES, 1);
		}
		else
			rbp_stats_count(RBP_COUNT_PUSH_STALE, 1);
	}
	rbp_relation_stats_settle();
	if (failed > 0)
		*next = from;
	return failed == 0 || moved > 0;
}

static uint32
extent_evacuate(uint32 extent, int64 deadline_ns)
{
	uint32		next = 0;
	int64		progress = rbp_now_ns();

	while (next < RBP_EXTENT_PAGES)
	{
		int64		now = rbp_now_ns();

		/*
		 * do not wait for a donor that is not asked at the moment, and do not
		 * count this against it
		 */
		if (now + MOVE_PATIENCE_NS > deadline_ns ||
			now - progress > MOVE_PATIENCE_NS ||
			!rbp_remote_usable(RBP_POOL_BUFFER, now) ||
			!rbp_remote_slot_writable(RBP_EXTENT_SLOT(extent)))
			return RBP_EXTENT_PAGES - next;
		if (move_batch(extent, &next, now))
			progress = now;
		else
			pg_usleep(1000);
	}
	return 0;
}

const RbpRemotePoolOps rbp_tier_pool_ops = {
	.came_online = rbp_tier_came_online,
	.heat = region_heat,
	.count = extent_count,
	.evacuate = extent_evacuate,
	.drop = drop_extents,
};
