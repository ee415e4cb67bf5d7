/*-------------------------------------------------------------------------
 *
 * regions.c
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
 * io.c has reads and writes, conn.c the connections,
 * health.c the donors' health.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"

#include "base/geometry.h"
#include "base/injection_point.h"
#include "base/lock.h"
#include "base/stats.h"
#include "common/clock.h"
#include "remote/remote.h"
#include "remote/remote_internal.h"
#include "transport/transport.h"

RemoteShared *rbp_remote_shared = NULL;

#define shared		rbp_remote_shared

/* An extent of which nothing came in this time: its donor does not answer */
#define STUCK_NS	INT64CONST(20000000)

/* Extents that get a region, or are looked at, under one hold of the lock */
#define BRING_EXTENTS		8192
#define BRING_LOOKS			(16 * BRING_EXTENTS)

/* Extents that lose theirs, likewise, about */
#define RETIRE_EXTENTS		8192

static const RbpRemotePoolOps *pool_ops[RBP_POOLS];
static void (*before_use) (void) = NULL;
static void (*wake) (void) = NULL;

/*
 * Of each extent of a region, the next one.  The lease worker's alone; follows
 * the map in shared memory.
 */
static uint32 *links;

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
	/* the map, and the links */
	return add_size(offsetof(RemoteShared, map),
					mul_size(2 * sizeof(pg_atomic_uint32), extents));
}

void
rbp_remote_set_wake(void (*callback) (void))
{
	wake = callback;
}

/* A duty is to be done at once. */
void
rbp_remote_wake(void)
{
	if (wake != NULL)
		wake();
}

Size
rbp_remote_shmem_size(const uint32 max_extents[RBP_POOLS])
{
	return add_size(map_end(max_extents), rbp_remote_conn_shmem_size());
}

static void
reset_donor_stats(RemoteDonor *d)
{
	for (int s = 0; s < RBP_DONOR_STRIPES; s++)
	{
		pg_atomic_init_u64(&d->stripes[s].reads, 0);
		pg_atomic_init_u64(&d->stripes[s].writes, 0);
		pg_atomic_init_u64(&d->stripes[s].failures, 0);
		pg_atomic_init_u64(&d->stripes[s].timeouts, 0);
		pg_atomic_init_u64(&d->stripes[s].bypassed, 0);
		pg_atomic_init_u64(&d->stripes[s].saved_ns, 0);
		for (int b = 0; b < RBP_LATENCY_BUCKETS; b++)
			pg_atomic_init_u32(&d->stripes[s].latency[b], 0);
	}
}

void
rbp_remote_shmem_init(void *mem,
					  const uint32 max_extents[RBP_POOLS],
					  const RbpRemotePoolOps *const ops[RBP_POOLS],
					  void (*before_first_use) (void))
{
	RemoteShared *sh = mem;

	shared = sh;
	for (int pool = 0; pool < RBP_POOLS; pool++)
		pool_ops[pool] = ops[pool];
	before_use = before_first_use;
	links = (uint32 *) ((char *) mem + offsetof(RemoteShared, map));
	for (int pool = 0; pool < RBP_POOLS; pool++)
		links += max_extents[pool];
	/* This is the postmaster, whose children inherit it. */
	rbp_transport_set_give_up(rbp_remote_give_up);
	memset(sh, 0, offsetof(RemoteShared, map) +
		   (map_end(max_extents) - offsetof(RemoteShared, map)) / 2);
	LWLockInitialize(&sh->remote_lock, rbp_lock_tranche("RemoteBpRemote"));
	for (int pool = 0; pool < RBP_POOLS; pool++)
	{
		PoolLease  *lease = &sh->leases[pool];

		pg_atomic_init_u32(&lease->serial, 1);
		pg_atomic_init_u64(&lease->deadline, 0);
		pg_atomic_init_u32(&lease->nregions, 0);
		pg_atomic_init_u32(&lease->recheck, 0);
		lease->first_extent = sh->nextents;
		sh->nextents += max_extents[pool];
		lease->end_extent = sh->nextents;
	}
	pg_atomic_init_u32(&sh->stale, 0);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		pg_atomic_init_u32(&sh->donors[i].serial, 1);
		pg_atomic_init_u32(&sh->donors[i].transport, 0);
		rbp_remote_conn_reset_donor(&sh->donors[i]);
		rbp_breaker_init(&sh->donors[i].breaker);
		rbp_remote_report_reset(&sh->donors[i]);
		reset_donor_stats(&sh->donors[i]);
	}
	for (int i = 0; i < RBP_MAX_REGIONS; i++)
		pg_atomic_init_u32(&sh->regions[i].denied, 0);
	/* MAP_NONE is 0 */
	for (int pool = 0; pool < RBP_POOLS; pool++)
	{
		PoolLease  *lease = &sh->leases[pool];

		lease->nfree = lease->end_extent - lease->first_extent;
		lease->look_at = lease->free_from = lease->first_extent;
	}
	rbp_remote_conn_shmem_init((char *) mem + map_end(max_extents));
}

bool
rbp_remote_usable(RbpPool pool, int64 now)
{
	PoolLease  *lease = &shared->leases[pool];

	if (RBP_INJECTION_POINT("no-lease-check"))
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

/*
 * The next extent that a region of the pool may have, or NO_EXTENT: there is
 * none from look_at on, or *looks, which is counted down, is 0.  A region that
 * gets all its extents at once has neighbours, as far as can be.
 */
static uint32
take_extent(RbpPool pool, uint32 *looks)
{
	PoolLease  *lease = &shared->leases[pool];

	while (*looks > 0 && lease->look_at < lease->end_extent)
	{
		uint32		e = lease->look_at++;

		(*looks)--;
		if (pg_atomic_read_u32(&shared->map[e]) != MAP_NONE)
			continue;
		if (pool_ops[pool]->absent(e))
		{
			lease->nfree--;
			return e;
		}
		lease->free_from = Min(lease->free_from, e);
	}
	return NO_EXTENT;
}

/*
 * Take a region out of use: its content is not found any more from the first
 * store on, and when this returns nobody finds anything there.  Caller holds
 * remote_lock exclusively.
 */
static void
retire_region(int r)
{
	RemoteRegion *region = &shared->regions[r];
	PoolLease  *lease = &shared->leases[region->pool];

	for (uint32 e = region->first, next; e != NO_EXTENT; e = next)
	{
		next = links[e];
		pool_ops[region->pool]->offline(e);
		pg_atomic_write_u32(&shared->map[e], MAP_NONE);
		lease->free_from = Min(lease->free_from, e);
	}
	lease->nfree += region->extents;
	region->extents = 0;
	region->first = NO_EXTENT;
	pg_write_barrier();			/* who sees another region in this place does
								 * not find it in the map */
	shared->donors[region->donor].nregions[region->pool]--;
	region->used = false;
	pg_atomic_fetch_sub_u32(&lease->nregions, 1);
}

/*
 * Let others have remote_lock now and then while many regions are retired, or
 * begin or end to drain.
 * Nobody but the lease worker, that is us, changes the regions.
 */
static void
pause_retiring(uint32 *extents, int r)
{
	*extents += shared->regions[r].extents;
	if (*extents < RETIRE_EXTENTS)
		return;
	*extents = 0;
	LWLockRelease(&shared->remote_lock);
	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
}

/* Is the place free, and nothing counted for the region that was there? */
static bool
is_vacant(int r)
{
	if (shared->regions[r].used)
		return false;
	for (int pool = 0; pool < RBP_POOLS; pool++)
		if (pool_ops[pool] != NULL && pool_ops[pool]->used((uint32) r) > 0)
			return false;
	return true;
}

/*
 * Enter a region into the table, in a place from *from on, with no extents yet;
 * -1 if there is no room.  If need be, from RBP_MAX_REGIONS on, places are had
 * of regions whose pages are still being forgotten: what the new one is said
 * to hold includes them until then.
 */
static int
enter_region(RbpPool pool, const RbpRegionGrant *grant, int donor, int *from)
{
	RemoteRegion *region;
	int			r = 0;

	for (; *from < 2 * RBP_MAX_REGIONS; (*from)++)
	{
		r = *from % RBP_MAX_REGIONS;
		if (*from < RBP_MAX_REGIONS ? is_vacant(r) : !shared->regions[r].used)
			break;
	}
	if (*from == 2 * RBP_MAX_REGIONS || grant->bytes < RBP_EXTENT_BYTES ||
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
	region->first = NO_EXTENT;
	region->cursor = NO_EXTENT;
	region->moved = false;
	region->drain_by = 0;
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
 * loads all donors alike.  Stops after BRING_EXTENTS, and is to be called again
 * then.  Returns how many regions got none, which are out of use again.  Caller
 * holds remote_lock exclusively; the lease worker only.
 */
static int
bring_regions_online(RbpPool pool)
{
	const RbpRemotePoolOps *ops = pool_ops[pool];
	PoolLease  *lease = &shared->leases[pool];
	static int	wanting[RBP_MAX_REGIONS];
	uint32		looks = BRING_LOOKS;
	uint32		extent = 0;
	uint32		given = 0;
	uint32		coming;
	int			n = 0;
	int			unused = 0;

	if (!lease->bringing)
	{
		lease->look_at = Min(lease->look_at, lease->free_from);
		lease->free_from = lease->end_extent;
	}
	lease->short_of_extents = false;
	lease->bringing = false;
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
		if (is_region_of(r, pool) && !shared->regions[r].draining &&
			shared->regions[r].extents < shared->regions[r].bytes / RBP_EXTENT_BYTES)
			wanting[n++] = r;
	for (bool more = true; more && extent != NO_EXTENT;)
	{
		more = false;
		for (int i = 0; i < n && extent != NO_EXTENT; i++)
		{
			RemoteRegion *region = &shared->regions[wanting[i]];

			if (region->extents == region->bytes / RBP_EXTENT_BYTES)
				continue;
			if (given++ == BRING_EXTENTS)
				looks = 0;
			extent = lease->nfree == 0 ? NO_EXTENT : take_extent(pool, &looks);
			if (extent == NO_EXTENT)
			{
				/* some may become free, or absent, without our doing */
				lease->short_of_extents = true;
				lease->bringing = lease->nfree > 0 && looks == 0;
				break;
			}
			pg_write_barrier(); /* the region is whole before it is found */
			pg_atomic_write_u32(&shared->map[extent],
								MAP_MAKE(wanting[i], region->extents));
			links[extent] = region->first;
			region->first = extent;
			region->extents++;
			ops->online(extent, (uint32) wanting[i]);
			more = true;
		}
	}
	if (lease->bringing)
		return 0;

	/*
	 * Where extents are forgotten, each that is left is one to come, or has
	 * come since it was looked at.
	 */
	coming = ops->forget != NULL ? lease->nfree : 0;
	for (int i = 0; i < n; i++)
	{
		RemoteRegion *region = &shared->regions[wanting[i]];

		if (region->extents > 0)
			continue;
		if (coming > 0)
			coming--;
		else
		{
			retire_region(wanting[i]);
			unused++;
		}
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
		RemoteDonor *d = &shared->donors[i];

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
		RemoteDonor *d = &shared->donors[place];

		if (strcmp(d->endpoint.donor, endpoint->donor) != 0)
		{
			reset_donor_stats(d);
			rbp_remote_report_reset(d);
		}
		if (memcmp(&d->endpoint, endpoint, sizeof(*endpoint)) != 0)
		{
			d->endpoint = *endpoint;
			pg_atomic_write_u32(&d->transport, 0);
			rbp_remote_conn_new_endpoint(d);
			rbp_remote_donor_up(d);
			breaker_start_over(&d->breaker);
		}
		d->known[pool] = true;
	}
	return place;
}

/* Grants are sorted by donor and region, to find the regions that stay. */
static int
compare_grants(const void *a, const void *b)
{
	const RbpRegionGrant *ga = *(const RbpRegionGrant *const *) a;
	const RbpRegionGrant *gb = *(const RbpRegionGrant *const *) b;
	int			order = strcmp(ga->donor, gb->donor);

	if (order != 0)
		return order;
	return (ga->region > gb->region) - (ga->region < gb->region);
}

static const RbpRegionGrant *
find_grant(const RemoteRegion *region, const RbpRegionGrant **sorted, int n)
{
	RbpRegionGrant wanted = {.region = region->number};
	const RbpRegionGrant *key = &wanted;
	const RbpRegionGrant **found;

	strlcpy(wanted.donor, shared->donors[region->donor].endpoint.donor,
			sizeof(wanted.donor));
	found = bsearch(&key, sorted, n, sizeof(*sorted), compare_grants);
	return found != NULL && (*found)->bytes == region->bytes ? *found : NULL;
}

/* The grants, palloc'd, as find_grant() wants them. */
static const RbpRegionGrant **
sort_grants(const RbpLeaseTerms *terms)
{
	const RbpRegionGrant **sorted = palloc(sizeof(*sorted) * (terms->nregions + 1));

	for (int i = 0; i < terms->nregions; i++)
		sorted[i] = &terms->regions[i];
	qsort(sorted, terms->nregions, sizeof(*sorted), compare_grants);
	return sorted;
}

/*
 * Retire the pool's regions that are not granted any more, or all if that is
 * another lease.  held: of each grant, whether its region is in use and stays.
 */
static void
retire_others(RbpPool pool, const RbpLeaseTerms *terms,
			  const RbpRegionGrant **sorted, bool same_lease, bool *held)
{
	uint32		retired = 0;

	for (int r = 0; r < RBP_MAX_REGIONS; r++)
	{
		RemoteRegion *region = &shared->regions[r];
		const RbpRegionGrant *grant;

		if (!is_region_of(r, pool))
			continue;
		grant = find_grant(region, sorted, terms->nregions);
		if (same_lease && pg_atomic_read_u32(&region->denied) == 0 && grant != NULL)
			held[grant - terms->regions] = true;
		else
		{
			pause_retiring(&retired, r);
			retire_region(r);
		}
	}
}

/* The pool has another lease from here on. */
static void
take_over(RbpPool pool, const RbpCredentials *cred)
{
	PoolLease  *lease = &shared->leases[pool];

	lease->credentials = *cred;
	lease->has_lease = true;
	(void) rbp_remote_conns_stale(&lease->serial);

	/* what was denied, or lost, may have been the old lease's */
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		pg_atomic_write_u64(&shared->donors[i].refused_until[pool], 0);
		breaker_start_over(&shared->donors[i].breaker);
	}
}

/* The pool's donors are these, and those of its regions. */
static void
set_donors(RbpPool pool, const RbpEndpoint *donors, int ndonors)
{
	bool		was_known[RBP_MAX_DONORS];

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
}

/* Enter the regions that are not held; returns how many found no place. */
static int
enter_regions(RbpPool pool, const RbpLeaseTerms *terms, const bool *held)
{
	int			unused = 0;
	int			place = 0;

	for (int i = 0; i < terms->nregions; i++)
	{
		const RbpRegionGrant *grant = &terms->regions[i];
		int			donor = -1;

		if (held[i])
			continue;
		for (int k = 0; k < RBP_MAX_DONORS && donor < 0; k++)
			if (shared->donors[k].known[pool] &&
				strcmp(shared->donors[k].endpoint.donor, grant->donor) == 0)
				donor = k;
		if (donor < 0 || enter_region(pool, grant, donor, &place) < 0)
			unused++;
	}
	return unused;
}

int
rbp_remote_set_lease(RbpPool pool, const RbpLeaseTerms *terms)
{
	PoolLease  *lease = &shared->leases[pool];
	const RbpRegionGrant **sorted = sort_grants(terms);
	bool	   *held = palloc0(terms->nregions + 1);
	bool		same;
	int			unused;

	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	same = lease->has_lease &&
		memcmp(&lease->credentials, terms->cred, sizeof(*terms->cred)) == 0;
	retire_others(pool, terms, sorted, same, held);
	if (!same)
		take_over(pool, terms->cred);
	set_donors(pool, terms->donors, terms->ndonors);

	if (terms->nregions > 0 && pool == RBP_POOL_BUFFER)
		before_use();
	pg_atomic_write_u64(&lease->deadline, (uint64) terms->deadline_ns);
	unused = enter_regions(pool, terms, held);
	/* extents that were passed may be free again */
	lease->bringing = false;
	unused += bring_regions_online(pool);
	rbp_remote_note_states();
	LWLockRelease(&shared->remote_lock);
	pfree(sorted);
	pfree(held);
	rbp_remote_wake();
	return unused;
}

int
rbp_remote_extend_lease(RbpPool pool, int64 deadline_ns)
{
	int			unused = 0;

	pg_atomic_write_u64(&shared->leases[pool].deadline, (uint64) deadline_ns);

	/* extents of regions that were lost may be free by now */
	if (shared->leases[pool].short_of_extents)
	{
		LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
		unused = bring_regions_online(pool);
		LWLockRelease(&shared->remote_lock);
	}
	return unused;
}

bool
rbp_remote_tend(RbpPool pool, int64 until_ns, int *unused)
{
	const RbpRemotePoolOps *ops = pool_ops[pool];
	PoolLease  *lease = &shared->leases[pool];

	*unused = 0;
	for (;;)
	{
		bool		forgot = ops != NULL && ops->forget != NULL && ops->forget();

		if (lease->bringing || (forgot && lease->short_of_extents))
		{
			LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
			*unused += bring_regions_online(pool);
			LWLockRelease(&shared->remote_lock);
		}
		if (!forgot && !lease->bringing)
			return false;
		if (rbp_now_ns() >= until_ns)
			return true;
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

/* The lease worker has no other use for its connections than to move pages. */
static void
leave_donors(RbpPool pool)
{
	for (int i = 0; i < RBP_MAX_DONORS; i++)
		rbp_remote_conn_close(conn_index(pool, i));
}

void
rbp_remote_set_broker(RbpPool pool, const RbpBrokerAccess *access)
{
	PoolLease  *lease = &shared->leases[pool];

	/* the lease worker, that is us, alone changes it */
	if (memcmp(&lease->broker, access, sizeof(*access)) == 0)
		return;
	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	lease->broker = *access;
	LWLockRelease(&shared->remote_lock);
}

bool
rbp_remote_get_broker(RbpPool pool, RbpBrokerAccess *access)
{
	PoolLease  *lease = &shared->leases[pool];
	bool		known;

	LWLockAcquire(&shared->remote_lock, LW_SHARED);
	known = lease->has_lease && lease->broker.url[0] != '\0';
	*access = lease->broker;
	LWLockRelease(&shared->remote_lock);
	return known;
}

void
rbp_remote_clear_lease(RbpPool pool)
{
	PoolLease  *lease = &shared->leases[pool];
	uint32		retired = 0;

	pg_atomic_write_u64(&lease->deadline, 0);
	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
		if (is_region_of(r, pool))
		{
			pause_retiring(&retired, r);
			retire_region(r);
		}
	explicit_bzero(&lease->credentials, sizeof(lease->credentials));
	explicit_bzero(&lease->broker, sizeof(lease->broker));
	lease->has_lease = false;
	(void) rbp_remote_conns_stale(&lease->serial);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
		shared->donors[i].known[pool] = false;
	rbp_remote_note_states();
	LWLockRelease(&shared->remote_lock);
	leave_donors(pool);
	rbp_remote_wake();
}

bool
rbp_remote_take_recheck(RbpPool pool)
{
	pg_atomic_uint32 *recheck = &shared->leases[pool].recheck;

	return pg_atomic_read_u32(recheck) != 0 &&
		pg_atomic_exchange_u32(recheck, 0) != 0;
}

/*
 * ---- giving regions back ------------------------------------------------------
 */

/* A region that may be given back. */
typedef struct Candidate
{
	int			region;
	uint64		value;			/* what would have to be moved, or is lost */
	uint64		had;			/* by its donor, in extents; 0: never mind */
	uint64		left;			/* of these, when those before it have gone */
} Candidate;

static int
compare_values(uint64 a, uint64 b)
{
	return (a > b) - (a < b);
}

/*
 * Which one goes first: one that is draining already; of these, or else, one of
 * the donor to which the largest part of its own is left, or most; and of
 * these the one with the least value.
 */
static int
compare_candidates(const void *a, const void *b)
{
	const Candidate *ca = a;
	const Candidate *cb = b;
	int			order = (int) shared->regions[cb->region].draining -
		(int) shared->regions[ca->region].draining;

	if (order == 0)
		order = compare_values(cb->left * ca->had, ca->left * cb->had);
	if (order == 0)
		order = compare_values(cb->left, ca->left);
	if (order == 0)
		order = compare_values(ca->value, cb->value);
	return order != 0 ? order : ca->region - cb->region;
}

/*
 * Choose count regions of the pool, and of the donor unless that is NULL, into
 * chosen, in the order in which they are to go; returns how many there are.
 * Content with copies: if no donor is named, each gives up the same share.
 */
static int
choose_regions(RbpPool pool, const char *donor, int count, int *chosen)
{
	const RbpRemotePoolOps *ops = pool_ops[pool];
	Candidate  *candidates = palloc0(sizeof(Candidate) * RBP_MAX_REGIONS);
	uint64		had[RBP_MAX_DONORS] = {0};
	uint64		left[RBP_MAX_DONORS];
	int			n = 0;

	for (int r = 0; r < RBP_MAX_REGIONS; r++)
	{
		RemoteRegion *region = &shared->regions[r];

		if (!is_region_of(r, pool) ||
			(donor != NULL &&
			 strcmp(shared->donors[region->donor].endpoint.donor, donor) != 0))
			continue;
		candidates[n].region = r;
		/* the less is to be moved, or lost, the better */
		candidates[n++].value = ops->has_copies ? ops->heat((uint32) r) :
			ops->used((uint32) r);
		had[region->donor] += region->bytes / RBP_EXTENT_BYTES;
	}
	qsort(candidates, n, sizeof(*candidates), compare_candidates);
	if (ops->has_copies && donor == NULL)
	{
		memcpy(left, had, sizeof(left));
		for (int i = 0; i < n; i++)
		{
			RemoteRegion *region = &shared->regions[candidates[i].region];

			candidates[i].had = had[region->donor];
			candidates[i].left = left[region->donor];
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

/* Call fn for each extent of the region. */
static void
for_each_extent(int r, void (*fn) (uint32 extent))
{
	for (uint32 e = shared->regions[r].first; e != NO_EXTENT; e = links[e])
		fn(e);
}

/* Memory is wanted again after all. */
static void
undrain_all(RbpPool pool)
{
	uint32		undrained = 0;

	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
		if (is_region_of(r, pool) && shared->regions[r].draining)
		{
			pause_retiring(&undrained, r);
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
 * region: it must not take the others' time.  If there are copies, the first
 * region is emptied first otherwise, and one that was denied, or whose donor is
 * down, is left alone for good.  If there are none, all is to be moved, and
 * each call begins with another region.
 */
static void
evacuate(RbpPool pool, const int *regions, int n, int64 until_ns)
{
	static uint32 begins[RBP_POOLS] = {0};	/* one's turns are not the other's */
	uint32	   *begin = &begins[pool];
	uint32		from = *begin;
	const RbpRemotePoolOps *ops = pool_ops[pool];
	bool		stuck[RBP_MAX_DONORS] = {false};

	if (!ops->has_copies)
		(*begin)++;
	for (int i = 0; i < n; i++)
	{
		RemoteRegion *region = &shared->regions[regions[(from + (uint32) i) % (uint32) n]];
		int			donor = region->donor;

		if (ops->has_copies && region->moved)
			continue;
		if (region->cursor == NO_EXTENT)
			region->cursor = region->first;
		region->moved = region->cursor == NO_EXTENT;
		while (region->cursor != NO_EXTENT && !stuck[donor])
		{
			uint32		e = region->cursor;
			uint64		before = ops->extent_used(e);
			int64		now = rbp_now_ns();

			if (now >= until_ns)
				return;
			if (before > 0)
			{
				uint32		after = ops->evacuate(e, until_ns);

				if (ops->has_copies && after >= before)
					(*begin)++;
				if (ops->has_copies && after > 0)
				{
					/* anything else may pass before it has to go */
					region->moved = pg_atomic_read_u32(&region->denied) != 0 ||
						donor_is_down(&shared->donors[donor]);
					stuck[donor] = true;
					break;
				}
				stuck[donor] = after >= before && rbp_now_ns() - now >= STUCK_NS;
				if (after > 0 && !stuck[donor] && rbp_now_ns() >= until_ns)
					return;		/* go on with this one */
			}
			region->cursor = links[e];
			region->moved = region->cursor == NO_EXTENT;
		}
	}
}

/* Nothing of the region is in use.  Once it drains, that stays so. */
static bool
is_empty(int r)
{
	const RbpRemotePoolOps *ops = pool_ops[shared->regions[r].pool];

	for (uint32 e = shared->regions[r].first; e != NO_EXTENT; e = links[e])
		if (ops->extent_used(e) > 0)
			return false;
	return true;
}

/* Put nothing into these regions any more. */
static void
drain(RbpPool pool, const int *regions, int n, int64 drain_by)
{
	uint32		drained = 0;

	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		RemoteRegion *region = &shared->regions[regions[i]];

		if (region->draining)
		{
			/* whoever wants it now may have less time */
			region->drain_by = Min(region->drain_by, drain_by);
			continue;
		}
		pause_retiring(&drained, regions[i]);
		for_each_extent(regions[i], pool_ops[pool]->drain);
		region->draining = true;
		region->cursor = NO_EXTENT;
		region->moved = false;
		region->drain_by = drain_by;
	}
	LWLockRelease(&shared->remote_lock);
}

/*
 * Is the region, which was drained and evacuated, to go now?  If its content has no
 * copies, nothing comes to its end in it from now on.
 */
static bool
may_retire(int r, const RbpRemotePoolOps *ops)
{
	RemoteRegion *region = &shared->regions[r];

	if (ops->has_copies && !region->moved && rbp_now_ns() < region->drain_by)
		return false;

	/* what comes to its end now sees this, or is seen by is_empty() */
	(void) pg_atomic_exchange_u32(&region->closing, 1);
	if (ops->has_copies || is_empty(r))
		return true;
	pg_atomic_write_u32(&region->closing, 0);
	return false;
}

RbpRetired
rbp_remote_retire_coldest(RbpPool pool, const char *donor, int count,
						  RbpRegionGrant *given, int64 until_ns, int64 move_ns)
{
	const RbpRemotePoolOps *ops = pool_ops[pool];
	RbpRetired	result = {0, 0};
	int64		now = rbp_now_ns();
	uint32		retired = 0;
	int		   *chosen;
	int			nchosen;

	if (count == 0 && donor == NULL && ops->drain != NULL)
	{
		undrain_all(pool);
		leave_donors(pool);
	}
	count = Min(count, (int) pg_atomic_read_u32(&shared->leases[pool].nregions));
	if (count <= 0)
		return result;

	/* Nobody but the lease worker, that is us, changes the regions. */
	chosen = palloc(sizeof(int) * count);
	nchosen = choose_regions(pool, donor, count, chosen);
	if (ops->drain != NULL)
	{
		drain(pool, chosen, nchosen, now + move_ns);
		evacuate(pool, chosen, nchosen, until_ns);
	}
	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	for (int i = 0; i < nchosen; i++)
	{
		const RemoteRegion *region = &shared->regions[chosen[i]];
		RbpRegionGrant *grant = &given[result.given];

		pause_retiring(&retired, chosen[i]);
		if (ops->drain != NULL && !may_retire(chosen[i], ops))
			continue;
		strlcpy(grant->donor, shared->donors[region->donor].endpoint.donor,
				sizeof(grant->donor));
		grant->region = region->number;
		grant->bytes = region->bytes;
		result.given++;
		retire_region(chosen[i]);
	}
	LWLockRelease(&shared->remote_lock);
	result.draining = nchosen - result.given;

	if (ops->drain != NULL && result.draining == 0)
		leave_donors(pool);
	pfree(chosen);
	return result;
}

/*
 * ---- for the views --------------------------------------------------------
 */

RbpDonorInfo *
rbp_remote_donor_info(int *n)
{
	RbpDonorInfo *infos = palloc0(sizeof(RbpDonorInfo) * RBP_MAX_DONORS);

	*n = 0;
	LWLockAcquire(&shared->remote_lock, LW_SHARED);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		RemoteDonor *d = &shared->donors[i];
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
		info->connections = (int) pg_atomic_read_u32(&d->conn_slots);
		for (int r = 0; r < RBP_MAX_REGIONS; r++)
			if (shared->regions[r].used && shared->regions[r].donor == i)
			{
				info->leased_bytes += shared->regions[r].bytes;
				info->used_bytes += pool_ops[shared->regions[r].pool]->used((uint32) r) * BLCKSZ;
			}
		for (int s = 0; s < RBP_DONOR_STRIPES; s++)
		{
			DonorStripe *stripe = &d->stripes[s];

			info->reads += pg_atomic_read_u64(&stripe->reads);
			info->writes += pg_atomic_read_u64(&stripe->writes);
			info->failures += pg_atomic_read_u64(&stripe->failures);
			info->timeouts += pg_atomic_read_u64(&stripe->timeouts);
			info->bypassed += pg_atomic_read_u64(&stripe->bypassed);
			info->saved_ns += (int64) pg_atomic_read_u64(&stripe->saved_ns);
			for (int b = 0; b < RBP_LATENCY_BUCKETS; b++)
			{
				uint32		count = pg_atomic_read_u32(&stripe->latency[b]);

				info->read_latency.bucket[b] += count;
				info->read_latency.count += count;
			}
		}
	}
	LWLockRelease(&shared->remote_lock);
	return infos;
}

RbpLeaseInfo *
rbp_remote_lease_info(int *n)
{
	RbpLeaseInfo *infos = palloc0(sizeof(RbpLeaseInfo) * RBP_MAX_REGIONS);
	int64		now = rbp_now_ns();

	*n = 0;
	LWLockAcquire(&shared->remote_lock, LW_SHARED);
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
	{
		RemoteRegion *region = &shared->regions[r];
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
		info->used_bytes = pool_ops[region->pool]->used((uint32) r) * BLCKSZ;
		info->heat = pool_ops[region->pool]->heat((uint32) r);
		info->denied = pg_atomic_read_u32(&region->denied) != 0;
		info->remaining_ns = (int64) pg_atomic_read_u64(&lease->deadline) - now;
	}
	LWLockRelease(&shared->remote_lock);
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
