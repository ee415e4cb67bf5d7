/*-------------------------------------------------------------------------
 *
 * rbp_remote.c
 *	  Remote slots: which region of which donor carries a slot; the leases.
 *
 * There are two pools of extents, each with a lease and an owner of its own:
 * the buffer tier and the temp quota.  Extents and slots have one numbering,
 * donors and regions one table; a region is of one pool, and is given extents
 * of that pool only.  A donor may have regions in both leases.
 *
 * Concurrency
 * -----------
 * RemoteShared is changed by the lease worker (the leases, the tables of
 * donors and regions, the map of extents), under remote_lock taken
 * exclusively, and read by everyone:
 *
 *	- The extent map is read without a lock, one 32-bit word at a time.  What
 *	  a reader gets may be out of date by the time it is used; then it reads
 *	  memory that is not its own page's, and the hash tells.  The temp quota
 *	  brings no extent back of which somebody still has a slot
 *	  (RbpRemotePoolOps.absent), so that nobody writes to another's place.
 *	- Endpoints and credentials are copied under remote_lock shared, when a
 *	  process connects.  A connection remembers the serials of donor and
 *	  lease, and is closed when they have moved.
 *	- The deadlines, the donors' health and the counters are atomics.
 *
 * A region whose use was denied is marked, so that nobody tries it again,
 * and the lease worker is told to ask the broker.  When it enters a region,
 * also one that it had before, it gives it another grant number: what a
 * transport remembers of the region (a key, a mapping) is of no use then.
 *
 * Where content is nowhere else, a region that is to be given back is drained
 * first: marked under remote_lock, then emptied by the pool's owner with no
 * lock held, and retired if it is empty when looked at under remote_lock.
 *
 * rbp_remote_io.c has reads and writes, rbp_remote_conn.c the connections,
 * rbp_remote_health.c the donors' health.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"

#include "rbp_lock.h"
#include "rbp_mutation.h"
#include "rbp_pusher.h"
#include "rbp_remote_internal.h"

RemoteShared *rbp_remote_shared = NULL;

#define shared		rbp_remote_shared

/* An extent of which nothing came in this time: its donor does not answer */
#define STUCK_NS	INT64CONST(20000000)

static const RbpRemotePoolOps *pool_ops[RBP_POOLS];
static void (*before_use) (void) = NULL;

/*
 * ---- set-up -------------------------------------------------------------
 */

/* The size of RemoteShared; the connections' shared memory comes after it. */
static Size
map_end(const uint32 max_extents[RBP_POOLS])
{
	Size		extents = 0;

	for (int pool = 0; pool < RBP_POOLS; pool++)
		extents = add_size(extents, max_extents[pool]);
	return add_size(offsetof(RemoteShared, map),
					mul_size(sizeof(pg_atomic_uint32), extents));
}

Size
rbp_remote_shmem_size(const uint32 max_extents[RBP_POOLS])
{
	return add_size(map_end(max_extents), rbp_remote_conn_shmem_size());
}

static void
reset_donor_stats(Donor *d)
{
	for (int s = 0; s < RBP_DONOR_STRIPES; s++)
	{
		pg_atomic_init_u64(&d->stripes[s].reads, 0);
		pg_atomic_init_u64(&d->stripes[s].writes, 0);
		pg_atomic_init_u64(&d->stripes[s].failures, 0);
		pg_atomic_init_u64(&d->stripes[s].timeouts, 0);
		for (int b = 0; b < RBP_LATENCY_BUCKETS; b++)
			pg_atomic_init_u32(&d->stripes[s].latency[b], 0);
	}
}

void
rbp_remote_shmem_init(void *mem, bool found,
					  const uint32 max_extents[RBP_POOLS],
					  const RbpRemotePoolOps *const ops[RBP_POOLS],
					  void (*before_first_use) (void))
{
	RemoteShared *sh = mem;

	shared = sh;
	for (int pool = 0; pool < RBP_POOLS; pool++)
		pool_ops[pool] = ops[pool];
	before_use = before_first_use;
	if (found)
		return;
	/* This is the postmaster, whose children inherit it. */
	rbp_transport_set_give_up(rbp_remote_give_up);
	memset(sh, 0, map_end(max_extents));
	LWLockInitialize(&sh->remote_lock, rbp_lock_tranche("RemoteBpRemote"));
	for (int pool = 0; pool < RBP_POOLS; pool++)
	{
		PoolLease  *lease = &sh->leases[pool];

		pg_atomic_init_u32(&lease->serial, 1);
		pg_atomic_init_u64(&lease->deadline, 0);
		pg_atomic_init_u32(&lease->nregions, 0);
		pg_atomic_init_u32(&lease->suspicion, 0);
		lease->first_extent = sh->nextents;
		sh->nextents += max_extents[pool];
		lease->end_extent = sh->nextents;
	}
	pg_atomic_init_u32(&sh->stale, 0);
	pg_atomic_init_u32(&sh->avoided, 0);
	pg_atomic_init_u32(&sh->doubts, 0);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		pg_atomic_init_u32(&sh->donors[i].serial, 1);
		pg_atomic_init_u32(&sh->donors[i].transport, 0);
		rbp_remote_conn_reset_donor(&sh->donors[i]);
		rbp_remote_health_reset(&sh->donors[i]);
		rbp_remote_report_reset(&sh->donors[i]);
		reset_donor_stats(&sh->donors[i]);
	}
	for (int i = 0; i < RBP_MAX_REGIONS; i++)
		pg_atomic_init_u32(&sh->regions[i].denied, 0);
	for (uint32 e = 0; e < sh->nextents; e++)
		pg_atomic_init_u32(&sh->map[e], MAP_NONE);
	rbp_remote_conn_shmem_init((char *) mem + map_end(max_extents));
}

bool
rbp_remote_usable(RbpPool pool, int64 now)
{
	PoolLease  *lease = &shared->leases[pool];

	if (RBP_MUTATED(RBP_MUTATION_NO_LEASE_CHECK))
		return pg_atomic_read_u64(&lease->deadline) != 0;
	return (int64) pg_atomic_read_u64(&lease->deadline) > now &&
		pg_atomic_read_u32(&lease->nregions) > 0;
}

/*
 * ---- for the lease worker -----------------------------------------------------
 */

void
rbp_remote_set_lease_latch(Latch *latch)
{
	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	shared->lease_latch = latch;
	LWLockRelease(&shared->remote_lock);
}

/* Does the region carry the extent? */
static inline bool
carries(int r, uint32 extent)
{
	return MAP_REGION(pg_atomic_read_u32(&shared->map[extent])) == r;
}

/*
 * Take a region out of use: its content is not found any more from the first
 * store on, and when this returns no entry is left in it.  Caller holds
 * remote_lock exclusively.
 */
static void
retire_region(int r)
{
	Region	   *region = &shared->regions[r];
	PoolLease  *lease = &shared->leases[region->pool];

	for (uint32 e = lease->first_extent; e < lease->end_extent && region->extents > 0; e++)
	{
		if (!carries(r, e))
			continue;
		pool_ops[region->pool]->offline(e);
		pg_atomic_write_u32(&shared->map[e], MAP_NONE);
		region->extents--;
	}
	pg_write_barrier();			/* who sees another region in this place does
								 * not find it in the map */
	shared->donors[region->donor].nregions[region->pool]--;
	region->used = false;
	pg_atomic_fetch_sub_u32(&lease->nregions, 1);
}

/* Enter a region into the table, with no extents yet; -1 if there is no room. */
static int
enter_region(RbpPool pool, const RbpRegionGrant *grant, int donor)
{
	Region	   *region;
	int			r;

	for (r = 0; r < RBP_MAX_REGIONS && shared->regions[r].used; r++)
		 /* look on */ ;
	if (r == RBP_MAX_REGIONS || grant->bytes < RBP_EXTENT_BYTES ||
		grant->bytes / RBP_EXTENT_BYTES > 0xffff)
		return -1;
	region = &shared->regions[r];
	region->used = true;
	region->draining = false;
	region->pool = pool;
	region->donor = (uint16) donor;
	region->number = grant->region;
	region->bytes = grant->bytes;
	region->extents = 0;
	region->grant = ++shared->last_grant;
	pg_atomic_write_u32(&region->denied, 0);
	pg_atomic_write_u32(&region->closing, 0);
	shared->donors[donor].nregions[pool]++;
	pg_atomic_fetch_add_u32(&shared->leases[pool].nregions, 1);
	return r;
}

/* Is there a region in that place, and of that pool? */
static inline bool
is_region_of(int r, RbpPool pool)
{
	return shared->regions[r].used && shared->regions[r].pool == pool;
}

/*
 * Give extents to the regions that have not got all, one to each in turn: free
 * slots are taken in about that order, so that a pool that is not full yet
 * loads all donors alike.  Returns how many regions got none, which are out of
 * use again.  Caller holds remote_lock exclusively; the lease worker only.
 */
static int
bring_regions_online(RbpPool pool)
{
	const RbpRemotePoolOps *ops = pool_ops[pool];
	PoolLease  *lease = &shared->leases[pool];
	uint32		extent = lease->first_extent;
	static int	wanting[RBP_MAX_REGIONS];
	int			n = 0;
	int			unused = 0;
	bool		more = true;

	for (int r = 0; r < RBP_MAX_REGIONS; r++)
		if (is_region_of(r, pool) && !shared->regions[r].draining &&
			shared->regions[r].extents < shared->regions[r].bytes / RBP_EXTENT_BYTES)
			wanting[n++] = r;
	lease->short_of_extents = false;
	while (more)
	{
		more = false;
		for (int i = 0; i < n; i++)
		{
			Region	   *region = &shared->regions[wanting[i]];

			if (region->extents == region->bytes / RBP_EXTENT_BYTES)
				continue;
			while (extent < lease->end_extent &&
				   (pg_atomic_read_u32(&shared->map[extent]) != MAP_NONE ||
					(ops->absent != NULL && !ops->absent(extent))))
				extent++;
			if (extent == lease->end_extent)
			{
				/* some may become free without our doing */
				lease->short_of_extents = ops->absent != NULL;
				break;
			}
			pg_write_barrier(); /* the region is whole before it is found */
			pg_atomic_write_u32(&shared->map[extent],
								MAP_MAKE(wanting[i], region->extents));
			region->extents++;
			ops->online(extent);
			more = true;
		}
	}
	for (int i = 0; i < n; i++)
	{
		Region	   *region = &shared->regions[wanting[i]];

		if (region->extents > 0)
			continue;
		retire_region(wanting[i]);
		unused++;
	}
	return unused;
}

/*
 * A lease has no regions of the donor any more.  If the other one has, its
 * connections stay.
 */
static void
donor_left(int donor)
{
	if (!donor_known(&shared->donors[donor]))
		(void) rbp_remote_conns_stale(&shared->donors[donor].serial);
}

/*
 * The donor's place in the table, given out if it has none; -1 if there is
 * no room.  Caller holds remote_lock exclusively.
 */
static int
donor_place(RbpPool pool, const RbpEndpoint *endpoint)
{
	int			place = -1;

	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		Donor	   *d = &shared->donors[i];

		if (strcmp(d->endpoint.donor, endpoint->donor) == 0)
		{
			place = i;
			break;
		}
		/* an empty place is better than that of one that is gone */
		if (!donor_known(d) && d->nregions[RBP_POOL_BUFFER] == 0 &&
			d->nregions[RBP_POOL_TEMP] == 0 &&
			(place < 0 || (d->endpoint.donor[0] == '\0' &&
						   shared->donors[place].endpoint.donor[0] != '\0')))
			place = i;
	}
	if (place >= 0)
	{
		Donor	   *d = &shared->donors[place];

		if (strcmp(d->endpoint.donor, endpoint->donor) != 0)
		{
			reset_donor_stats(d);
			rbp_remote_report_reset(d);
		}
		if (memcmp(&d->endpoint, endpoint, sizeof(*endpoint)) != 0)
		{
			d->endpoint = *endpoint;
			pg_atomic_write_u32(&d->transport, 0);
			pg_atomic_write_u32(&d->troubles, 0);
			rbp_remote_conn_new_endpoint(d);
			rbp_remote_unavoid(d);
		}
		d->known[pool] = true;
	}
	return place;
}

static bool
region_is_granted(const Region *region, const RbpRegionGrant *grants, int n)
{
	const char *donor = shared->donors[region->donor].endpoint.donor;

	for (int i = 0; i < n; i++)
		if (grants[i].region == region->number &&
			grants[i].bytes == region->bytes &&
			strcmp(grants[i].donor, donor) == 0)
			return true;
	return false;
}

int
rbp_remote_set_lease(RbpPool pool, const RbpCredentials *cred,
					 int64 deadline_ns,
					 const RbpEndpoint *donors, int ndonors,
					 const RbpRegionGrant *regions, int nregions)
{
	PoolLease  *lease = &shared->leases[pool];
	bool		same;
	bool		was_known[RBP_MAX_DONORS];
	int			unused = 0;
	int		   *entered = palloc(sizeof(int) * (nregions + 1));
	int			nentered = 0;

	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	same = lease->has_lease &&
		memcmp(&lease->credentials, cred, sizeof(*cred)) == 0;
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
		if (is_region_of(r, pool) &&
			(!same || pg_atomic_read_u32(&shared->regions[r].denied) != 0 ||
			 !region_is_granted(&shared->regions[r], regions, nregions)))
			retire_region(r);
	if (!same)
	{
		lease->credentials = *cred;
		lease->has_lease = true;
		(void) rbp_remote_conns_stale(&lease->serial);

		/* what was denied, or lost, may have been the old lease's */
		for (int i = 0; i < RBP_MAX_DONORS; i++)
		{
			pg_atomic_write_u64(&shared->donors[i].refused_until[pool], 0);
			pg_atomic_write_u64(&shared->donors[i].probe_at, 0);
		}
	}

	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		was_known[i] = shared->donors[i].known[pool];
		shared->donors[i].known[pool] = shared->donors[i].nregions[pool] > 0;
	}
	for (int i = 0; i < ndonors; i++)
		(void) donor_place(pool, &donors[i]);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
		if (was_known[i] && !shared->donors[i].known[pool])
			donor_left(i);

	if (nregions > 0 && pool == RBP_POOL_BUFFER)
		before_use();
	pg_atomic_write_u64(&lease->deadline, (uint64) deadline_ns);
	for (int i = 0; i < nregions; i++)
	{
		int			donor = -1;
		bool		have = false;

		for (int k = 0; k < RBP_MAX_DONORS && donor < 0; k++)
			if (shared->donors[k].known[pool] &&
				strcmp(shared->donors[k].endpoint.donor, regions[i].donor) == 0)
				donor = k;
		for (int r = 0; donor >= 0 && r < RBP_MAX_REGIONS && !have; r++)
			have = is_region_of(r, pool) &&
				shared->regions[r].donor == donor &&
				shared->regions[r].number == regions[i].region;
		if (have)
			continue;
		entered[nentered] = donor < 0 ? -1 : enter_region(pool, &regions[i], donor);
		if (entered[nentered] < 0)
			unused++;
		else
			nentered++;
	}
	unused += bring_regions_online(pool);
	rbp_remote_note_states();
	LWLockRelease(&shared->remote_lock);
	pfree(entered);
	rbp_pusher_wake();
	return unused;
}

void
rbp_remote_extend_lease(RbpPool pool, int64 deadline_ns)
{
	pg_atomic_write_u64(&shared->leases[pool].deadline, (uint64) deadline_ns);

	/* extents of regions that were lost may be free by now */
	if (shared->leases[pool].short_of_extents)
	{
		LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
		(void) bring_regions_online(pool);
		LWLockRelease(&shared->remote_lock);
	}
}

bool
rbp_remote_get_lease(RbpPool pool, RbpCredentials *cred, int64 *deadline_ns)
{
	PoolLease  *lease = &shared->leases[pool];
	bool		has_lease;

	LWLockAcquire(&shared->remote_lock, LW_SHARED);
	has_lease = lease->has_lease;
	*cred = lease->credentials;
	*deadline_ns = (int64) pg_atomic_read_u64(&lease->deadline);
	LWLockRelease(&shared->remote_lock);
	return has_lease;
}

void
rbp_remote_clear_lease(RbpPool pool)
{
	PoolLease  *lease = &shared->leases[pool];

	pg_atomic_write_u64(&lease->deadline, 0);
	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
		if (is_region_of(r, pool))
			retire_region(r);
	memset(&lease->credentials, 0, sizeof(lease->credentials));
	lease->has_lease = false;
	(void) rbp_remote_conns_stale(&lease->serial);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
		shared->donors[i].known[pool] = false;
	rbp_remote_note_states();
	LWLockRelease(&shared->remote_lock);
	rbp_pusher_wake();
}

bool
rbp_remote_take_suspicion(RbpPool pool)
{
	pg_atomic_uint32 *suspicion = &shared->leases[pool].suspicion;

	return pg_atomic_read_u32(suspicion) != 0 &&
		pg_atomic_exchange_u32(suspicion, 0) != 0;
}

/*
 * ---- giving regions back ------------------------------------------------------
 */

/*
 * The sum over the extents of each region of the pool, into
 * sums[RBP_MAX_REGIONS].  A reading, unless the lease worker calls this:
 * nobody else changes the map.
 */
static void
sum_regions(uint64 *sums, RbpPool pool, uint64 (*fn) (uint32 extent))
{
	for (uint32 e = shared->leases[pool].first_extent;
		 e < shared->leases[pool].end_extent; e++)
	{
		uint32		word = pg_atomic_read_u32(&shared->map[e]);

		if (word != MAP_NONE)
			sums[MAP_REGION(word)] += fn(e);
	}
}

/* The same of all pools, for what each can tell; palloc'ed. */
static uint64 *
sum_used(void)
{
	uint64	   *sums = palloc0(sizeof(uint64) * RBP_MAX_REGIONS);

	for (int pool = 0; pool < RBP_POOLS; pool++)
		if (pool_ops[pool] != NULL)
			sum_regions(sums, (RbpPool) pool, pool_ops[pool]->used);
	return sums;
}

static uint64 *
sum_heat(void)
{
	uint64	   *sums = palloc0(sizeof(uint64) * RBP_MAX_REGIONS);

	for (int pool = 0; pool < RBP_POOLS; pool++)
		if (pool_ops[pool] != NULL)
			sum_regions(sums, (RbpPool) pool, pool_ops[pool]->heat);
	return sums;
}

/*
 * The region of the pool (and the donor, unless NULL) that is best given back:
 * one that is draining already, and of these, or else, the one with the least
 * value.  -1 if there is none but those taken already.
 */
static int
next_to_go(RbpPool pool, const char *donor, const uint64 *value,
		   const int *taken, int ntaken)
{
	int			best = -1;

	for (int r = 0; r < RBP_MAX_REGIONS; r++)
	{
		Region	   *region = &shared->regions[r];
		bool		is_taken = false;

		if (!is_region_of(r, pool) ||
			(donor != NULL &&
			 strcmp(shared->donors[region->donor].endpoint.donor, donor) != 0))
			continue;
		for (int t = 0; t < ntaken && !is_taken; t++)
			is_taken = taken[t] == r;
		if (is_taken)
			continue;
		if (best < 0 ||
			(region->draining && !shared->regions[best].draining) ||
			(region->draining == shared->regions[best].draining &&
			 value[r] < value[best]))
			best = r;
	}
	return best;
}

/* Call fn for each extent of the region. */
static void
for_each_extent(int r, void (*fn) (uint32 extent))
{
	PoolLease  *lease = &shared->leases[shared->regions[r].pool];

	for (uint32 e = lease->first_extent; e < lease->end_extent; e++)
		if (carries(r, e))
			fn(e);
}

/* Memory is wanted again after all. */
static void
undrain_all(RbpPool pool)
{
	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
		if (is_region_of(r, pool) && shared->regions[r].draining)
		{
			for_each_extent(r, pool_ops[pool]->undrain);
			shared->regions[r].draining = false;
			/* it may be one that had not got all of its extents */
			shared->leases[pool].short_of_extents = true;
		}
	LWLockRelease(&shared->remote_lock);
}

/*
 * Move what is in these regions elsewhere.  No lock is held.  A donor of which
 * nothing comes is left alone until the next call, which begins with another
 * region: it must not take the others' time.
 */
static void
evacuate(RbpPool pool, const int *regions, int n, int64 until_ns)
{
	static uint32 calls = 0;
	const RbpRemotePoolOps *ops = pool_ops[pool];
	PoolLease  *lease = &shared->leases[pool];
	bool		stuck[RBP_MAX_DONORS] = {false};
	int64		now;

	calls++;
	for (int i = 0; i < n; i++)
	{
		int			r = regions[(calls + (uint32) i) % (uint32) n];
		int			donor = shared->regions[r].donor;

		for (uint32 e = lease->first_extent; e < lease->end_extent; e++)
		{
			uint64		before;

			if (stuck[donor])
				break;
			if (!carries(r, e) || (before = ops->used(e)) == 0)
				continue;
			now = rbp_now_ns();
			if (now >= until_ns)
				return;
			stuck[donor] = ops->evacuate(e, until_ns) >= before &&
				rbp_now_ns() - now >= STUCK_NS;
		}
	}
}

/* Nothing of the region is in use.  Once it drains, that stays so. */
static bool
is_empty(int r)
{
	RbpPool		pool = shared->regions[r].pool;

	for (uint32 e = shared->leases[pool].first_extent;
		 e < shared->leases[pool].end_extent; e++)
		if (carries(r, e) && pool_ops[pool]->used(e) > 0)
			return false;
	return true;
}

int
rbp_remote_retire_coldest(RbpPool pool, const char *donor, int count,
						  RbpRegionGrant *given, int max,
						  int64 until_ns, int *draining)
{
	const RbpRemotePoolOps *ops = pool_ops[pool];
	bool		drains = ops != NULL && ops->evacuate != NULL;
	uint64	   *value;
	int		   *chosen;
	int			nchosen = 0;
	int			n = 0;

	if (draining != NULL)
		*draining = 0;
	if (count == 0 && donor == NULL && drains)
		undrain_all(pool);
	count = Min(count, max);
	if (count <= 0)
		return 0;

	value = drains ? sum_used() : sum_heat();
	chosen = palloc(sizeof(int) * count);
	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	while (nchosen < count)
	{
		int			r = next_to_go(pool, donor, value, chosen, nchosen);

		if (r < 0)
			break;
		chosen[nchosen++] = r;
		if (drains && !shared->regions[r].draining)
		{
			for_each_extent(r, ops->drain);
			shared->regions[r].draining = true;
		}
	}
	if (drains)
	{
		/* Nobody but the lease worker, that is us, changes the regions. */
		LWLockRelease(&shared->remote_lock);
		evacuate(pool, chosen, nchosen, until_ns);
		LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	}
	for (int i = 0; i < nchosen; i++)
	{
		Region	   *region = &shared->regions[chosen[i]];

		if (drains)
		{
			/* what comes to its end now sees this, or is seen by is_empty() */
			(void) pg_atomic_exchange_u32(&region->closing, 1);
			if (!is_empty(chosen[i]))
			{
				pg_atomic_write_u32(&region->closing, 0);
				continue;
			}
		}
		strlcpy(given[n].donor, shared->donors[region->donor].endpoint.donor,
				sizeof(given[n].donor));
		given[n].region = region->number;
		given[n].bytes = region->bytes;
		n++;
		retire_region(chosen[i]);
	}
	LWLockRelease(&shared->remote_lock);
	if (draining != NULL)
		*draining = nchosen - n;

	/* this process has no other use for these */
	if (drains && nchosen == n)
		for (int i = 0; i < RBP_MAX_DONORS; i++)
			rbp_remote_conn_close(conn_index(pool, i));
	pfree(value);
	pfree(chosen);
	return n;
}

/*
 * ---- for the views --------------------------------------------------------
 */

RbpDonorInfo *
rbp_remote_donor_info(int *n)
{
	RbpDonorInfo *infos = palloc0(sizeof(RbpDonorInfo) * RBP_MAX_DONORS);
	uint64	   *used = sum_used();

	*n = 0;
	LWLockAcquire(&shared->remote_lock, LW_SHARED);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		Donor	   *d = &shared->donors[i];
		RbpDonorInfo *info = &infos[*n];

		if (d->endpoint.donor[0] == '\0')
			continue;
		(*n)++;
		info->endpoint = d->endpoint;
		info->transport = rbp_remote_transport_name(pg_atomic_read_u32(&d->transport));
		info->state = rbp_remote_state_name(pg_atomic_read_u32(&d->state));
		info->state_since = (TimestampTz) pg_atomic_read_u64(&d->state_since);
		rbp_remote_last_error(d, info->last_error, sizeof(info->last_error),
							  &info->last_error_at);
		info->connections = (int) pg_atomic_read_u32(&d->places);
		for (int r = 0; r < RBP_MAX_REGIONS; r++)
			if (shared->regions[r].used && shared->regions[r].donor == i)
			{
				info->leased_bytes += shared->regions[r].bytes;
				info->used_bytes += used[r] * BLCKSZ;
			}
		for (int s = 0; s < RBP_DONOR_STRIPES; s++)
		{
			DonorStripe *stripe = &d->stripes[s];

			info->reads += pg_atomic_read_u64(&stripe->reads);
			info->writes += pg_atomic_read_u64(&stripe->writes);
			info->failures += pg_atomic_read_u64(&stripe->failures);
			info->timeouts += pg_atomic_read_u64(&stripe->timeouts);
			for (int b = 0; b < RBP_LATENCY_BUCKETS; b++)
			{
				uint32		count = pg_atomic_read_u32(&stripe->latency[b]);

				info->read_latency.bucket[b] += count;
				info->read_latency.count += count;
			}
		}
	}
	LWLockRelease(&shared->remote_lock);
	pfree(used);
	return infos;
}

RbpLeaseInfo *
rbp_remote_lease_info(int *n)
{
	RbpLeaseInfo *infos = palloc0(sizeof(RbpLeaseInfo) * RBP_MAX_REGIONS);
	uint64	   *used = sum_used();
	uint64	   *heat = sum_heat();
	int64		now = rbp_now_ns();

	*n = 0;
	LWLockAcquire(&shared->remote_lock, LW_SHARED);
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
	{
		Region	   *region = &shared->regions[r];
		PoolLease  *lease = &shared->leases[region->pool];
		RbpLeaseInfo *info = &infos[*n];

		if (!region->used)
			continue;
		(*n)++;
		strlcpy(info->lease, lease->credentials.lease, sizeof(info->lease));
		info->purpose = region->pool == RBP_POOL_BUFFER ? "buffer" : "temp";
		strlcpy(info->donor, shared->donors[region->donor].endpoint.donor,
				sizeof(info->donor));
		info->region = region->number;
		info->bytes = region->bytes;
		info->used_bytes = used[r] * BLCKSZ;
		info->heat = heat[r];
		info->remaining_ns = (int64) pg_atomic_read_u64(&lease->deadline) - now;
	}
	LWLockRelease(&shared->remote_lock);
	pfree(used);
	pfree(heat);
	return infos;
}

void
rbp_remote_stats_reset(void)
{
	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
		reset_donor_stats(&shared->donors[i]);
	LWLockRelease(&shared->remote_lock);
}
