/*-------------------------------------------------------------------------
 *
 * regions.c
 *	  Remote slots: which region of which donor carries a slot.
 *
 * There are two pools of extents, each with its own lease and owner: the
 * buffer tier and the temp quota.  Extents and slots share one numbering, and
 * donors and regions one table.  A region belongs to one pool, and is given
 * extents of that pool only.  A donor may have regions in both leases.
 *
 * Concurrency
 * -----------
 *
 * The lease worker changes RbpRemoteShared (the leases, the tables of donors
 * and regions, and the extent map: leases.c, retire.c and this file), under
 * remote_lock taken exclusively, by rbp_remote_begin_change().  Everyone reads it:
 *
 *	- The extent map is read without a lock, one 32-bit word at a time.  The
 *	  word may be out of date when it is used; the process then reads memory
 *	  that does not hold its page, which the hash reveals.  The temp quota
 *	  brings no extent back while a slot of it is still in use
 *	  (RbpRemotePoolOps.drop), so that nobody writes to another's slot.
 *	- Endpoints and credentials are copied under remote_lock shared, when a
 *	  process connects.  A connection remembers the serials of donor and
 *	  lease, and is closed when they have moved.
 *	- The deadlines, the donors' breakers and the counters are atomics.
 *
 * A region whose use was denied is marked, so that no process tries it again,
 * and the lease worker is told to ask the broker.  Whenever the lease worker
 * enters a region, even one that it had before, the region gets a new grant
 * number, which invalidates what a transport remembers of it (a key, a
 * mapping).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/geometry.h"
#include "base/guc.h"
#include "base/injection_point.h"
#include "base/lock.h"
#include "remote/remote.h"
#include "remote/remote_internal.h"
#define shared		rbp_remote_shared

/*
 * Limits on extents that get a region, or are looked at, per hold of the lock
 */
#define ONLINE_EXTENTS		8192
#define ONLINE_LOOKUPS		(16 * ONLINE_EXTENTS)

/* Likewise on extents that lose their region, approximately */
#define RETIRE_EXTENTS		8192

RbpRemoteShared *rbp_remote_shared = NULL;
const RbpRemotePoolOps *rbp_remote_pool_ops[RBP_POOLS];
uint32	   *rbp_remote_next_extent; /* follows the map in shared memory */
RbpSealed  *rbp_remote_sealed = NULL;
RbpSealer	rbp_remote_sealers[RBP_POOLS];

/*
 * ---- set-up --------------------------------------------------------------
 */

static Size
sealed_bytes(uint32 nextents)
{
	return rbp_guc_encrypt == RBP_ENCRYPT_OFF ? 0 :
		mul_size((Size) nextents * RBP_EXTENT_PAGES, sizeof(RbpSealed));
}

/*
 * RbpRemoteShared with its map, the lists of extents, their states, what is sealed of
 * their slots, and conn.c's memory.
 */
Size
rbp_remote_shmem_size(const uint32 max_extents[RBP_POOLS])
{
	Size		size = offsetof(RbpRemoteShared, map);

	for (int pool = 0; pool < RBP_POOLS; pool++)
	{
		size = add_size(size, mul_size(max_extents[pool], sizeof(pg_atomic_uint32) + sizeof(uint32)));
		size = add_size(size, MAXALIGN(rbp_extents_size(max_extents[pool])));
		size = add_size(size, sealed_bytes(max_extents[pool]));
	}
	return add_size(size, rbp_remote_conn_shmem_size());
}

/* Is it a part of a region of the buffer pool, as the extent's owner knows, too? */
static bool
maps_buffer(uint32 extent)
{
	uint32		word = pg_atomic_read_u32(&shared->map[extent]);
	int			r = MAP_REGION(word);

	return rbp_extent_region(&shared->leases[RBP_POOL_BUFFER].extents, extent) == r &&
		r < RBP_MAX_REGIONS && is_region_of(r, RBP_POOL_BUFFER) &&
		MAP_EXTENT(word) < shared->regions[r].extents;
}

/*
 * Of the regions that a crash or an image has left, those of the buffer pool stay.  Their lists
 * and counts are made of the map again.  If a region does not have in it what it says, something was
 * overwritten, and all of its extents are closed.  Temporary data died with its
 * processes, and the broker ends their lease when a new one is requested.
 */
static void
reopen_regions(void)
{
	static uint32 mapped[RBP_MAX_REGIONS];
	RbpPoolLease *lease = &shared->leases[RBP_POOL_BUFFER];
	uint32		nregions = 0;

	memset(mapped, 0, sizeof(mapped));
	for (uint32 e = 0; e < lease->extents.top; e++)
		if (maps_buffer(e))
			mapped[rbp_extent_region(&lease->extents, e)]++;
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		shared->donors[i].known[RBP_POOL_TEMP] = false;
		memset(shared->donors[i].nregions, 0, sizeof(shared->donors[i].nregions));
	}
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
	{
		RbpRemoteRegion *region = &shared->regions[r];

		region->used = is_region_of(r, RBP_POOL_BUFFER) && region->donor < RBP_MAX_DONORS &&
			mapped[r] == region->extents && mapped[r] <= region->bytes / RBP_EXTENT_BYTES;
		region->first = region->cursor = NO_EXTENT;
		region->evacuated = false;
		pg_atomic_init_u32(&region->denied, 0);
		if (region->used)
		{
			shared->donors[region->donor].nregions[RBP_POOL_BUFFER]++;
			nregions++;
		}
	}
	pg_atomic_write_u32(&lease->nregions, nregions);
	lease->nfree = lease->extents.n;
	for (uint32 e = 0; e < lease->extents.top; e++)
		if (maps_buffer(e))
		{
			RbpRemoteRegion *region = word_region(pg_atomic_read_u32(&shared->map[e]));

			rbp_remote_next_extent[e] = region->first;
			region->first = e;
			lease->nfree--;
		}
		else
		{
			pg_atomic_write_u32(&shared->map[e], MAP_NONE);
			rbp_extent_close(&lease->extents, e);
		}
}

/* What is kept of the slots, and what an image says of them, stays, and is of no use. */
static void
init_lease(RbpPoolLease *lease, void *extents, uint32 first, uint32 n)
{
	RbpSealVersions versions = {
		.highest = rbp_guc_encrypt == RBP_ENCRYPT_OFF ? 0 : lease->versions.highest
	};

	memset(lease, 0, sizeof(*lease));
	lease->versions = versions;
	pg_atomic_init_u32(&lease->serial, 1);
	rbp_extents_init(&lease->extents, extents, first, n);
	lease->search_from = lease->lowest_free = first;
	lease->nfree = lease->room = n;
}

/*
 * Of what a crash has left, the lease of the buffer pool stays, with its regions, their
 * extents and donors.  They are whole (rbp_remote_begin_change()), unless they were
 * overwritten.
 */
void
rbp_remote_shmem_open(void *mem, bool found, const uint32 max_extents[RBP_POOLS],
					  const RbpRemotePoolOps *const ops[RBP_POOLS])
{
	RbpRemoteShared *sh = mem;
	uint32		nextents = max_extents[RBP_POOL_BUFFER] + max_extents[RBP_POOL_TEMP];
	char	   *mem_left = (char *) &sh->map[2 * (Size) nextents];
	uint32		first = 0;

	shared = sh;
	if (!found)
		memset(sh, 0, offsetof(RbpRemoteShared, map));
	rbp_remote_sealed = (RbpSealed *) mem_left;
	mem_left += sealed_bytes(nextents);
	for (int pool = 0; pool < RBP_POOLS; pool++)
		if (rbp_guc_encrypt != RBP_ENCRYPT_OFF && !rbp_sealer_init(&rbp_remote_sealers[pool]))
			ereport(FATAL,
					(errmsg("remote_bp: libcrypto has no AES-256-GCM"),
					 errhint("Set remote_bp.encrypt to \"off\".")));
	LWLockInitialize(&sh->remote_lock, rbp_lock_tranche("RemoteBpRemote"));
	for (int pool = 0; pool < RBP_POOLS; pool++)
	{
		RbpPoolLease *lease = &sh->leases[pool];

		rbp_remote_pool_ops[pool] = ops[pool];
		if (found && pool == RBP_POOL_BUFFER)
		{
			/* an image may be of a smaller tier */
			lease->extents.n = max_extents[pool];
			lease->extents.first = lease->search_from = lease->lowest_free = first;
			/* which has the versions of its pages' slots only */
			lease->versions.floor = lease->versions.highest;
			rbp_extents_reopen(&lease->extents, mem_left);
		}
		else
		{
			init_lease(lease, mem_left, first, max_extents[pool]);
			/* all MAP_NONE */
			memset(&sh->map[first], 0, max_extents[pool] * sizeof(sh->map[0]));
		}
		mem_left += MAXALIGN(rbp_extents_size(max_extents[pool]));
		first += max_extents[pool];
	}
	sh->nextents = nextents;
	rbp_remote_next_extent = (uint32 *) &sh->map[nextents];
	if (found)
		reopen_regions();

	pg_atomic_init_u32(&sh->stale, 0);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		pg_atomic_init_u32(&sh->donors[i].serial, 1);
		pg_atomic_init_u32(&sh->donors[i].transport, 0);
		pg_atomic_init_u32(&sh->donors[i].conn_slots, 0);
		rbp_link_init(&sh->donors[i]);
	}
	rbp_remote_conn_shmem_init(mem_left);
}

void
rbp_remote_pieces(RbpPiece pieces[RBP_REMOTE_PIECES])
{
	RbpExtents *x = &shared->leases[RBP_POOL_BUFFER].extents;
	const RbpPiece list[RBP_REMOTE_PIECES] = {
		{shared, offsetof(RbpRemoteShared, map)},
		{shared->map, x->n * sizeof(shared->map[0])},
		{x->states, x->n * sizeof(x->states[0])},
		{x->regions, x->n * sizeof(x->regions[0])},
	};

	memcpy(pieces, list, sizeof(list));
}

void *
rbp_remote_sealed_slot(uint32 slot)
{
	const RbpPoolLease *lease = &shared->leases[RBP_POOL_BUFFER];

	StaticAssertStmt(sizeof(RbpSealed) == RBP_SEALED_BYTES, "it is stored as it is");
	return rbp_any_sealed(&lease->versions) && slot < RBP_EXTENT_SLOT(lease->extents.n) ?
		&rbp_remote_sealed[slot] : NULL;
}

void
rbp_remote_forget_deadline(RbpPool pool)
{
	pg_atomic_write_u64(&shared->leases[pool].deadline, 0);
	/* a copy of the image must not have the same */
	explicit_bzero(shared->leases[pool].new_secret, RBP_SECRET_LEN);
}

bool
rbp_remote_has_lease(RbpPool pool)
{
	return shared->leases[pool].has_lease;
}

const RbpExtents *
rbp_remote_extents(RbpPool pool)
{
	return &shared->leases[pool].extents;
}

bool
rbp_remote_usable(RbpPool pool, int64 now)
{
	RbpPoolLease *lease = &shared->leases[pool];

	if (RBP_INJECTION_POINT("no-lease-check"))
		return pg_atomic_read_u64(&lease->deadline) != 0;
	return (int64) pg_atomic_read_u64(&lease->deadline) > now &&
		pg_atomic_read_u32(&lease->nregions) > 0;
}

void
rbp_remote_set_room(RbpPool pool, uint64 bytes)
{
	shared->leases[pool].room = (uint32) Min(bytes / RBP_EXTENT_BYTES, UINT32_MAX);
}

/* How many extents may still get a region. */
static uint32
extents_left(const RbpPoolLease *lease)
{
	uint32		used = lease->extents.n - lease->nfree;

	return used < lease->room ? Min(lease->nfree, lease->room - used) : 0;
}

uint32
rbp_remote_drop(RbpPool pool, uint32 *extents, uint32 n)
{
	uint32		dropped = n > 0 ? rbp_remote_pool_ops[pool]->drop(extents, n) : 0;

	rbp_extents_dropped(&shared->leases[pool].extents, extents, dropped);
	return dropped;
}

/*
 * Take the next extent that a region of the pool may have.  Returns NO_EXTENT
 * if there is none from search_from on, or *lookups, which is counted down, is
 * 0.  A region that gets all its extents at once gets adjacent ones as far as
 * possible.
 */
static uint32
take_extent(RbpPool pool, uint32 *lookups)
{
	RbpPoolLease *lease = &shared->leases[pool];

	while (*lookups > 0 && lease->search_from < lease->extents.first + lease->extents.n)
	{
		uint32		e = lease->search_from++;

		(*lookups)--;
		if (pg_atomic_read_u32(&shared->map[e]) != MAP_NONE)
			continue;

		/*
		 * where pages have owners, they are asked; others are dropped in
		 * steps
		 */
		if (!rbp_pool_has_copies(pool) &&
			rbp_extent_state(&lease->extents, e) == RBP_EXTENT_CLOSED)
			(void) rbp_remote_drop(pool, &e, 1);
		if (rbp_extent_state(&lease->extents, e) == RBP_EXTENT_ABSENT)
		{
			lease->nfree--;
			return e;
		}
		lease->lowest_free = Min(lease->lowest_free, e);
	}
	return NO_EXTENT;
}

void
rbp_remote_retire_region(int r)
{
	RbpRemoteRegion *region = &shared->regions[r];
	RbpPoolLease *lease = &shared->leases[region->pool];

	for (uint32 e = region->first, next; e != NO_EXTENT; e = next)
	{
		next = rbp_remote_next_extent[e];
		rbp_extent_close(&lease->extents, e);
		pg_atomic_write_u32(&shared->map[e], MAP_NONE);
		lease->lowest_free = Min(lease->lowest_free, e);
	}
	lease->nfree += region->extents;
	region->extents = 0;
	region->first = NO_EXTENT;
	pg_write_barrier();			/* whoever sees another region in this entry
								 * does not find it in the map */
	shared->donors[region->donor].nregions[region->pool]--;
	region->used = false;
	pg_atomic_fetch_sub_u32(&lease->nregions, 1);
}

void
rbp_remote_yield_lock(uint32 *extents, int r)
{
	*extents += shared->regions[r].extents;
	if (*extents < RETIRE_EXTENTS)
		return;
	*extents = 0;
	rbp_remote_end_change();
	rbp_remote_begin_change();
}

/*
 * Is the entry unused, and no page still counted for its former region?  A pool
 * without extents never had a region, and may have no shared memory to ask
 * (remote_bp.temp_tier_max_size = 0).
 */
static bool
is_vacant(int r)
{
	if (shared->regions[r].used)
		return false;
	for (int pool = 0; pool < RBP_POOLS; pool++)
	{
		uint64		used = 0;

		if (shared->leases[pool].extents.n > 0)
			(void) rbp_remote_pool_ops[pool]->heat((uint32) r, &used);
		if (used > 0)
			return false;
	}
	return true;
}

/*
 * In a second round, from RBP_MAX_REGIONS on, this also takes entries whose
 * former region's pages are still being dropped.  Until that is done, they
 * are counted for the new region.
 */
bool
rbp_remote_enter_region(RbpPool pool, const RbpRegionGrant *grant, int donor, int *from)
{
	RbpRemoteRegion *region;
	int			r = 0;

	for (; *from < 2 * RBP_MAX_REGIONS; (*from)++)
	{
		r = *from % RBP_MAX_REGIONS;
		if (*from < RBP_MAX_REGIONS ? is_vacant(r) : !shared->regions[r].used)
			break;
	}
	if (*from == 2 * RBP_MAX_REGIONS || grant->bytes < RBP_EXTENT_BYTES ||
		grant->bytes / RBP_EXTENT_BYTES > 0xffff)
		return false;
	region = &shared->regions[r];
	region->used = true;
	region->draining = false;
	region->pool = pool;
	region->donor = (uint16) donor;
	region->number = grant->region;
	region->bytes = grant->bytes;
	region->rev = grant->rev;
	region->extents = 0;
	region->first = NO_EXTENT;
	region->cursor = NO_EXTENT;
	region->evacuated = false;
	region->drain_deadline = 0;
	region->grant = ++shared->last_grant;
	pg_atomic_write_u32(&region->denied, 0);
	pg_atomic_write_u32(&region->closing, 0);
	shared->donors[donor].nregions[pool]++;
	pg_atomic_fetch_add_u32(&shared->leases[pool].nregions, 1);
	return true;
}

/*
 * Extents are given to the regions in turn.  Free slots are taken in about
 * that order, so that a pool which is not full yet loads all donors evenly.
 */
int
rbp_remote_bring_online(RbpPool pool)
{
	const RbpRemotePoolOps *ops = rbp_remote_pool_ops[pool];
	RbpPoolLease *lease = &shared->leases[pool];
	static int	incomplete[RBP_MAX_REGIONS];
	uint32		lookups = ONLINE_LOOKUPS;
	uint32		extent = 0;
	uint32		given = 0;
	uint32		nfree = lease->nfree;
	uint32		expected;
	int			n = 0;
	int			unused = 0;

	if (!lease->online_pending)
	{
		lease->search_from = Min(lease->search_from, lease->lowest_free);
		lease->lowest_free = lease->extents.first + lease->extents.n;
	}
	lease->short_of_extents = false;
	lease->online_pending = false;
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
		if (is_region_of(r, pool) && !shared->regions[r].draining &&
			shared->regions[r].extents < shared->regions[r].bytes / RBP_EXTENT_BYTES)
			incomplete[n++] = r;
	for (bool more = true; more && extent != NO_EXTENT;)
	{
		more = false;
		for (int i = 0; i < n && extent != NO_EXTENT; i++)
		{
			RbpRemoteRegion *region = &shared->regions[incomplete[i]];

			if (region->extents == region->bytes / RBP_EXTENT_BYTES)
				continue;
			if (given++ == ONLINE_EXTENTS)
				lookups = 0;
			extent = extents_left(lease) == 0 ? NO_EXTENT : take_extent(pool, &lookups);
			if (extent == NO_EXTENT)
			{
				/*
				 * some may become free or absent later, without this
				 * process's doing
				 */
				lease->short_of_extents = true;
				lease->online_pending = lease->nfree > 0 && lookups == 0;
				break;
			}
			pg_write_barrier(); /* complete the region before it is found */
			pg_atomic_write_u32(&shared->map[extent],
								MAP_MAKE(incomplete[i], region->extents));
			rbp_remote_next_extent[extent] = region->first;
			region->first = extent;
			region->extents++;
			rbp_extent_bring_online(&lease->extents, extent, (uint32) incomplete[i],
									rbp_pool_has_copies(pool) ? RBP_EXTENT_FRESH : RBP_EXTENT_TOUCHED);
			more = true;
		}
	}
	if (lease->nfree < nfree && ops->came_online != NULL)
		ops->came_online();
	if (lease->online_pending)
		return 0;

	/*
	 * Where extents are dropped in steps, each remaining one will become
	 * available, or has done so since it was looked at.
	 */
	expected = rbp_pool_has_copies(pool) ? extents_left(lease) : 0;
	for (int i = 0; i < n; i++)
	{
		RbpRemoteRegion *region = &shared->regions[incomplete[i]];

		if (region->extents > 0)
			continue;
		if (expected > 0)
			expected--;
		else
		{
			rbp_remote_retire_region(incomplete[i]);
			unused++;
		}
	}
	return unused;
}
