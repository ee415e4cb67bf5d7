/*-------------------------------------------------------------------------
 *
 * retire.c
 *	  Regions that are given back: chosen, drained, evacuated, retired.
 *
 * Where content is moved first, a region is marked as draining under
 * remote_lock, evacuated by the pool's owner with no lock held, and retired if
 * it is empty when checked under remote_lock.  If the pool's content has copies
 * elsewhere, as the buffer tier's has on disk, the region is retired after a
 * while even if it is not empty.
 *
 * All of this runs in the lease worker, which alone changes the regions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/clock.h"
#include "remote/remote.h"
#include "remote/remote_internal.h"

/* If nothing of an extent is moved in this time, its donor does not answer */
#define STUCK_NS	INT64CONST(20000000)

#define shared		rbp_remote_shared

/* A region that may be given back. */
typedef struct Candidate
{
	int			region;
	uint64		value;			/* cost of moving or losing its content */
	uint64		donor_total;	/* extents of its donor; 0 to ignore the share */
	uint64		donor_left;		/* of these, left when earlier candidates are
								 * gone */
} Candidate;

static int
compare_values(uint64 a, uint64 b)
{
	return (a > b) - (a < b);
}

/*
 * Order in which candidates are retired: first those that are draining
 * already; then those whose donor has the largest share of its extents left,
 * then those whose donor has most extents left; then those with the lowest
 * value.
 */
static int
compare_candidates(const void *a, const void *b)
{
	const Candidate *ca = a;
	const Candidate *cb = b;
	int			order = (int) shared->regions[cb->region].draining -
	(int) shared->regions[ca->region].draining;

	if (order == 0)
		order = compare_values(cb->donor_left * ca->donor_total, ca->donor_left * cb->donor_total);
	if (order == 0)
		order = compare_values(cb->donor_left, ca->donor_left);
	if (order == 0)
		order = compare_values(ca->value, cb->value);
	return order != 0 ? order : ca->region - cb->region;
}

/*
 * Choose up to count regions of the pool, only of the donor unless that is
 * NULL.  Stores them in chosen, in the order of retirement, and returns their
 * number.  If content has copies and no donor is named, each donor gives up
 * the same share.
 */
static int
choose_regions(RbpPool pool, const char *donor, int count, int *chosen)
{
	const RbpRemotePoolOps *ops = rbp_remote_pool_ops[pool];
	Candidate  *candidates = palloc0(sizeof(Candidate) * RBP_MAX_REGIONS);
	uint64		total[RBP_MAX_DONORS] = {0};
	uint64		left[RBP_MAX_DONORS];
	int			n = 0;

	for (int r = 0; r < RBP_MAX_REGIONS; r++)
	{
		RbpRemoteRegion *region = &shared->regions[r];
		uint64		used;

		if (!is_region_of(r, pool) ||
			(donor != NULL &&
			 strcmp(shared->donors[region->donor].endpoint.donor, donor) != 0))
			continue;
		candidates[n].region = r;
		/* the less to be moved, or lost, the better */
		candidates[n].value = ops->heat((uint32) r, &used);
		if (!rbp_pool_has_copies(pool))
			candidates[n].value = used;
		n++;
		total[region->donor] += region->bytes / RBP_EXTENT_BYTES;
	}

	/*
	 * Sort by value, to find the order in which each donor would lose its
	 * regions, and what it would have left before each of them.  Sort by the
	 * share that is left then, so that all donors shrink in proportion.
	 */
	qsort(candidates, n, sizeof(*candidates), compare_candidates);
	if (rbp_pool_has_copies(pool) && donor == NULL)
	{
		memcpy(left, total, sizeof(left));
		for (int i = 0; i < n; i++)
		{
			RbpRemoteRegion *region = &shared->regions[candidates[i].region];

			candidates[i].donor_total = total[region->donor];
			candidates[i].donor_left = left[region->donor];
			left[region->donor] -= region->bytes / RBP_EXTENT_BYTES;
		}
		qsort(candidates, n, sizeof(*candidates), compare_candidates);
	}
	n = Min(n, count);
	for (int i = 0; i < n; i++)
		chosen[i] = candidates[i].region;
	pfree(candidates);
	return n;
}

static void
set_draining(RbpRemoteRegion *region, bool draining)
{
	RbpExtents *extents = &shared->leases[region->pool].extents;

	region->draining = draining;
	for (uint32 e = region->first; e != NO_EXTENT; e = rbp_remote_next_extent[e])
		if (draining)
			rbp_extent_drain(extents, e);
		else
			rbp_extent_undrain(extents, e);
}

/* Stop draining the pool's regions: the memory is wanted again. */
static void
undrain_all(RbpPool pool)
{
	uint32		since_yield = 0;

	rbp_remote_begin_change();
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
		if (is_region_of(r, pool) && shared->regions[r].draining)
		{
			rbp_remote_yield_lock(&since_yield, r);
			set_draining(&shared->regions[r], false);
			/* it may lack some extents */
			shared->leases[pool].short_of_extents = true;
		}
	rbp_remote_end_change();
}

/*
 * Evacuate these regions, with no lock held.
 *
 * A donor that nothing can be moved from is skipped until the next call, which
 * starts one region further, so that this donor does not use up the time of
 * the others.  If there are no copies, each call starts one region further
 * than the last, since all have to be emptied.  If there are, a region that
 * was denied or whose donor is down is not tried again.
 */
static void
evacuate(RbpPool pool, const int *regions, int n, int64 until_ns)
{
	static uint32 offsets[RBP_POOLS] = {0}; /* separately for each pool */
	uint32	   *offset = &offsets[pool];
	uint32		from = *offset;
	const RbpRemotePoolOps *ops = rbp_remote_pool_ops[pool];
	bool		stuck[RBP_MAX_DONORS] = {false};
	bool		has_copies = rbp_pool_has_copies(pool);

	if (!has_copies)
		(*offset)++;
	for (int i = 0; i < n; i++)
	{
		RbpRemoteRegion *region = &shared->regions[regions[(from + (uint32) i) % (uint32) n]];
		int			donor = region->donor;

		if (has_copies && region->evacuated)
			continue;
		if (region->cursor == NO_EXTENT)
			region->cursor = region->first;
		region->evacuated = region->cursor == NO_EXTENT;
		while (region->cursor != NO_EXTENT && !stuck[donor])
		{
			uint32		e = region->cursor;
			uint64		before = ops->count(e);
			int64		now = rbp_now_ns();

			if (now >= until_ns)
				return;
			if (before > 0)
			{
				uint32		after = ops->evacuate(e, until_ns);

				if (has_copies && after >= before)
					(*offset)++;
				if (has_copies && after > 0)
				{
					/* any other failure may pass before the deadline */
					region->evacuated = pg_atomic_read_u32(&region->denied) != 0 ||
						donor_is_down(&shared->donors[donor]);
					stuck[donor] = true;
					break;
				}
				stuck[donor] = after >= before && rbp_now_ns() - now >= STUCK_NS;
				if (after > 0 && !stuck[donor] && rbp_now_ns() >= until_ns)
					return;		/* continue with this one next time */
			}
			region->cursor = rbp_remote_next_extent[e];
			region->evacuated = region->cursor == NO_EXTENT;
		}
	}
}

/* Is nothing of the region in use?  Stays so once the region is draining. */
static bool
is_empty(int r)
{
	const RbpRemotePoolOps *ops = rbp_remote_pool_ops[shared->regions[r].pool];

	for (uint32 e = shared->regions[r].first; e != NO_EXTENT; e = rbp_remote_next_extent[e])
		if (ops->count(e) > 0)
			return false;
	return true;
}

/* Mark these regions as draining: nothing is put into them any more. */
static void
drain(RbpPool pool, const int *regions, int n, int64 drain_deadline)
{
	uint32		since_yield = 0;

	rbp_remote_begin_change();
	for (int i = 0; i < n; i++)
	{
		RbpRemoteRegion *region = &shared->regions[regions[i]];

		if (region->draining)
		{
			/* the time allowed now may be shorter */
			region->drain_deadline = Min(region->drain_deadline, drain_deadline);
			continue;
		}
		rbp_remote_yield_lock(&since_yield, regions[i]);
		set_draining(region, true);
		region->cursor = NO_EXTENT;
		region->evacuated = false;
		region->drain_deadline = drain_deadline;
	}
	rbp_remote_end_change();
}

/*
 * May the region, which was drained and evacuated, be retired now?  If so and
 * if its content has no copies, no write to it is completed from now on.
 */
static bool
may_retire(int r)
{
	RbpRemoteRegion *region = &shared->regions[r];
	bool		has_copies = rbp_pool_has_copies(region->pool);

	if (has_copies && !region->evacuated && rbp_now_ns() < region->drain_deadline)
		return false;

	/* a write that completes now either sees this or is seen by is_empty() */
	(void) pg_atomic_exchange_u32(&region->closing, 1);
	if (has_copies || is_empty(r))
		return true;
	pg_atomic_write_u32(&region->closing, 0);
	return false;
}

RbpRetired
rbp_remote_retire_coldest(RbpPool pool, const char *donor, int count,
						  RbpRegionGrant *given, int64 until_ns, int64 move_ns)
{
	bool		moves = rbp_remote_pool_ops[pool]->evacuate != NULL;
	RbpRetired	result = {0, 0};
	int64		now = rbp_now_ns();
	uint32		since_yield = 0;
	int		   *chosen;
	int			nchosen;

	/*
	 * Nothing is to be given back: use draining regions again, and close this
	 * process's connections, which only serve to move content.
	 */
	if (count == 0 && donor == NULL && moves)
	{
		undrain_all(pool);
		rbp_remote_conns_close(pool);
	}
	count = Min(count, (int) pg_atomic_read_u32(&shared->leases[pool].nregions));
	if (count <= 0)
		return result;

	/* No lock: only this process changes the regions. */
	chosen = palloc(sizeof(int) * count);
	nchosen = choose_regions(pool, donor, count, chosen);
	if (moves)
	{
		drain(pool, chosen, nchosen, now + move_ns);
		evacuate(pool, chosen, nchosen, until_ns);
	}
	rbp_remote_begin_change();
	for (int i = 0; i < nchosen; i++)
	{
		rbp_remote_yield_lock(&since_yield, chosen[i]);
		if (moves && !may_retire(chosen[i]))
			continue;
		given[result.given++] = region_grant(&shared->regions[chosen[i]]);
		rbp_remote_retire_region(chosen[i]);
	}
	rbp_remote_end_change();
	result.draining = nchosen - result.given;

	if (moves && result.draining == 0)
		rbp_remote_conns_close(pool);
	pfree(chosen);
	return result;
}
