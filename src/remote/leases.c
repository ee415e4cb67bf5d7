/*-------------------------------------------------------------------------
 *
 * leases.c
 *	  The leases, and the donors of their regions, for the lease worker.
 *
 * All of this but rbp_remote_watch_lease_worker() runs in the lease worker,
 * which alone changes the leases, the donors and the regions, with remote_lock
 * held exclusively.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/pmsignal.h"

#include "base/workers.h"
#include "common/clock.h"
#include "remote/remote.h"
#include "remote/remote_internal.h"

#define shared		rbp_remote_shared

#define RESTART_CHECK_NS	INT64CONST(500000000)

/*
 * The postmaster starts a worker that has ended again after a second.  But in
 * a smart shutdown it does not wake up for that, and looks only when something
 * else wakes it, or once a minute: too late for a lease, which the sessions
 * that go on may need.
 */
int64
rbp_remote_watch_lease_worker(void)
{
	if (rbp_worker_exists(RBP_WORKER_LEASE) ||
		!rbp_remote_usable(RBP_POOL_TEMP, rbp_now_ns()))
		return -1;
	SendPostmasterSignal(PMSIGNAL_BACKGROUND_WORKER_CHANGE);
	return RESTART_CHECK_NS;
}

/*
 * The index of the donor of that name; -1 if there is none.  No lock for the
 * names: only this process changes them.
 */
static int
find_donor(const char *donor)
{
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		if (strcmp(shared->donors[i].endpoint.donor, donor) == 0)
			return i;
	}
	return -1;
}

/*
 * Enter the donor into the table, if it is not there and there is room.  Caller
 * holds remote_lock exclusively.
 */
static void
enter_donor(RbpPool pool, const RbpEndpoint *endpoint)
{
	int			place = find_donor(endpoint->donor);
	bool		entered = place >= 0;
	RbpRemoteDonor *d;

	/* an empty entry is better than that of a donor that is gone */
	for (int i = 0; i < RBP_MAX_DONORS && !entered; i++)
	{
		d = &shared->donors[i];
		if (!donor_known(d) && d->nregions[RBP_POOL_BUFFER] == 0 &&
			d->nregions[RBP_POOL_TEMP] == 0 &&
			(place < 0 || (d->endpoint.donor[0] == '\0' &&
						   shared->donors[place].endpoint.donor[0] != '\0')))
			place = i;
	}
	if (place < 0)
		return;
	d = &shared->donors[place];
	if (!entered)
	{
		rbp_link_init(d);
		rbp_link_note_change(d);
	}
	if (memcmp(&d->endpoint, endpoint, sizeof(*endpoint)) != 0)
	{
		if (rbp_link_unresolved(&d->endpoint) != rbp_link_unresolved(endpoint))
			rbp_link_note_change(d);
		d->endpoint = *endpoint;
		pg_atomic_write_u32(&d->transport, 0);
		rbp_link_new_endpoint(d);
	}
	d->known[pool] = true;
}

/*
 * Retire those regions of the pool that are not granted any more, or all if it
 * is another lease.  kept: set for each grant whose region stays in use.  The
 * n grants are sorted by rbp_region_compare().
 */
static void
retire_ungranted(RbpPool pool, const RbpRegionGrant *sorted, int n, bool same_lease,
				 bool *kept)
{
	uint32		retired = 0;

	for (int r = 0; r < RBP_MAX_REGIONS; r++)
	{
		RbpRemoteRegion *region = &shared->regions[r];
		RbpRegionGrant key;
		const RbpRegionGrant *grant;

		if (!is_region_of(r, pool))
			continue;
		key = region_grant(region);
		grant = bsearch(&key, sorted, n, sizeof(*sorted), rbp_region_compare);
		if (same_lease && pg_atomic_read_u32(&region->denied) == 0 &&
			grant != NULL && grant->bytes == region->bytes)
		{
			kept[grant - sorted] = true;
			region->rev = grant->rev;
		}
		else
		{
			rbp_remote_yield_lock(&retired, r);
			rbp_remote_retire_region(r);
		}
	}
}

/* Replace the pool's lease by another one. */
static void
adopt_lease(RbpPool pool, const RbpCredentials *cred)
{
	RbpPoolLease *lease = &shared->leases[pool];
	uint8		key[RBP_SEAL_KEY_LEN];
	bool		has_key = pg_strong_random(key, sizeof(key));

	lease->credentials = *cred;
	/* the last one will do, since versions go on */
	if (has_key)
		memcpy(lease->seal_key, key, sizeof(key));
	explicit_bzero(key, sizeof(key));
	lease->has_lease = true;
	rbp_link_make_stale(&lease->serial);
	/* who seals a page yet, with the old key, finds that the serial has moved */
	if (has_key && rbp_versions_run_out(&lease->versions))
	{
		memset(&rbp_remote_sealed[RBP_EXTENT_SLOT(lease->extents.first)], 0,
			   RBP_EXTENT_SLOT((Size) lease->extents.n) * sizeof(RbpSealed));
		lease->versions = (RbpSealVersions)
		{
			.highest = 1
		};
	}
	rbp_link_new_lease(pool);
}

/* Set the pool's donors to these and those of its regions. */
static void
set_donors(RbpPool pool, const RbpEndpoint *donors, int ndonors)
{
	bool		was_known[RBP_MAX_DONORS];

	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		was_known[i] = donor_known(&shared->donors[i]);
		shared->donors[i].known[pool] = shared->donors[i].nregions[pool] > 0;
	}
	for (int i = 0; i < ndonors; i++)
		enter_donor(pool, &donors[i]);
	/* if the other pool's lease has regions there, its connections stay */
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		if (was_known[i] == donor_known(&shared->donors[i]))
			continue;
		rbp_link_note_change(&shared->donors[i]);
		if (was_known[i])
			rbp_link_make_stale(&shared->donors[i].serial);
	}
}

/*
 * Enter the granted regions that are not in use yet; returns how many found no
 * room.
 */
static int
enter_regions(RbpPool pool, const RbpLeaseTerms *terms,
			  const RbpRegionGrant *sorted, const bool *kept)
{
	int			unused = 0;
	int			position = 0;
	int			donor = -1;

	for (int i = 0; i < terms->nregions; i++)
	{
		const RbpRegionGrant *grant = &terms->regions[i];
		const RbpRegionGrant *found = bsearch(grant, sorted, terms->nregions,
											  sizeof(*sorted), rbp_region_compare);

		if (kept[found - sorted])
			continue;
		/* often the same as before: regions are sorted by donor */
		if (donor < 0 || strcmp(shared->donors[donor].endpoint.donor, grant->donor) != 0)
			donor = find_donor(grant->donor);
		if (donor < 0 || !shared->donors[donor].known[pool] ||
			!rbp_remote_enter_region(pool, grant, donor, &position))
			unused++;
	}
	return unused;
}

int
rbp_remote_set_lease(RbpPool pool, const RbpLeaseTerms *terms)
{
	RbpPoolLease *lease = &shared->leases[pool];
	RbpRegionGrant *sorted = palloc(sizeof(*sorted) * (terms->nregions + 1));
	bool	   *kept = palloc0(terms->nregions + 1);
	bool		same;
	int			unused;

	if (terms->nregions > 0)
		memcpy(sorted, terms->regions, sizeof(*sorted) * terms->nregions);
	qsort(sorted, terms->nregions, sizeof(*sorted), rbp_region_compare);
	rbp_remote_begin_change();
	same = lease->has_lease &&
		memcmp(&lease->credentials, terms->cred, sizeof(*terms->cred)) == 0;
	retire_ungranted(pool, sorted, terms->nregions, same, kept);
	if (!same)
		adopt_lease(pool, terms->cred);
	set_donors(pool, terms->donors, terms->ndonors);

	pg_atomic_write_u64(&lease->deadline, (uint64) terms->deadline_ns);
	unused = enter_regions(pool, terms, sorted, kept);
	/* extents that were passed over may be free again */
	lease->online_pending = false;
	unused += rbp_remote_bring_online(pool);
	rbp_remote_end_change();
	pfree(sorted);
	pfree(kept);
	rbp_worker_wake(RBP_WORKER_PUSHER);
	return unused;
}

int
rbp_remote_extend_lease(RbpPool pool, int64 deadline_ns)
{
	int			unused = 0;

	pg_atomic_write_u64(&shared->leases[pool].deadline, (uint64) deadline_ns);

	/* extents of lost regions may be free by now */
	if (shared->leases[pool].short_of_extents)
	{
		rbp_remote_begin_change();
		unused = rbp_remote_bring_online(pool);
		rbp_remote_end_change();
	}
	return unused;
}

bool
rbp_remote_run_deferred(RbpPool pool, int64 until_ns, int *unused)
{
	RbpPoolLease *lease = &shared->leases[pool];
	uint32		extents[RBP_DROP_MAX];

	*unused = 0;
	for (;;)
	{
		/* those of pages that have owners are asked for when they are wanted */
		bool		dropped = rbp_pool_has_copies(pool) &&
		rbp_remote_drop(pool, extents,
						rbp_extents_next_closed(&lease->extents, extents, RBP_DROP_MAX)) > 0;

		if (lease->online_pending || (dropped && lease->short_of_extents))
		{
			rbp_remote_begin_change();
			*unused += rbp_remote_bring_online(pool);
			rbp_remote_end_change();
		}
		if (!dropped && !lease->online_pending)
			return false;
		if (rbp_now_ns() >= until_ns)
			return true;
	}
}

bool
rbp_remote_get_lease(RbpPool pool, RbpCredentials *cred, int64 *deadline_ns)
{
	RbpPoolLease *lease = &shared->leases[pool];
	bool		has_lease;

	LWLockAcquire(&shared->remote_lock, LW_SHARED);
	has_lease = lease->has_lease;
	*cred = lease->credentials;
	*deadline_ns = (int64) pg_atomic_read_u64(&lease->deadline);
	LWLockRelease(&shared->remote_lock);
	return has_lease;
}

bool
rbp_remote_new_secret(RbpPool pool, uint8 secret[RBP_SECRET_LEN])
{
	static const uint8 none[RBP_SECRET_LEN];
	RbpPoolLease *lease = &shared->leases[pool];
	bool		chosen = true;

	if (memcmp(lease->new_secret, none, RBP_SECRET_LEN) == 0)
	{
		rbp_remote_begin_change();
		chosen = pg_strong_random(lease->new_secret, RBP_SECRET_LEN);
		rbp_remote_end_change();
	}
	memcpy(secret, lease->new_secret, RBP_SECRET_LEN);
	return chosen;
}

void
rbp_remote_change_secret(RbpPool pool, const RbpCredentials *cred)
{
	RbpPoolLease *lease = &shared->leases[pool];

	rbp_remote_begin_change();
	lease->credentials = *cred;
	explicit_bzero(lease->new_secret, RBP_SECRET_LEN);
	rbp_link_make_stale(&lease->serial);
	rbp_remote_end_change();
}

void
rbp_remote_set_broker(RbpPool pool, const RbpBrokerAccess *access)
{
	RbpPoolLease *lease = &shared->leases[pool];

	/* no lock to read it: only this process changes it */
	if (memcmp(&lease->broker, access, sizeof(*access)) == 0)
		return;
	rbp_remote_begin_change();
	lease->broker = *access;
	rbp_remote_end_change();
}

bool
rbp_remote_get_broker(RbpPool pool, RbpBrokerAccess *access)
{
	RbpPoolLease *lease = &shared->leases[pool];
	bool		known;

	LWLockAcquire(&shared->remote_lock, LW_SHARED);
	known = lease->has_lease && lease->broker.urls[0] != '\0';
	*access = lease->broker;
	LWLockRelease(&shared->remote_lock);
	return known;
}

void
rbp_remote_clear_lease(RbpPool pool)
{
	RbpPoolLease *lease = &shared->leases[pool];
	uint32		retired = 0;

	pg_atomic_write_u64(&lease->deadline, 0);
	rbp_remote_begin_change();
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
		if (is_region_of(r, pool))
		{
			rbp_remote_yield_lock(&retired, r);
			rbp_remote_retire_region(r);
		}
	explicit_bzero(&lease->credentials, sizeof(lease->credentials));
	explicit_bzero(lease->new_secret, RBP_SECRET_LEN);
	explicit_bzero(&lease->broker, sizeof(lease->broker));
	lease->has_lease = false;
	rbp_link_make_stale(&lease->serial);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		bool		was_known = donor_known(&shared->donors[i]);

		shared->donors[i].known[pool] = false;
		if (was_known && !donor_known(&shared->donors[i]))
			rbp_link_note_change(&shared->donors[i]);
	}
	rbp_remote_end_change();
	rbp_remote_conns_close(pool);
	rbp_worker_wake(RBP_WORKER_PUSHER);
}

bool
rbp_remote_key_used_up(RbpPool pool)
{
	return rbp_versions_run_out(&shared->leases[pool].versions);
}

bool
rbp_remote_donor_entered(const char *donor)
{
	return find_donor(donor) >= 0;
}

bool
rbp_remote_donor_is_down(const char *donor)
{
	int			i = find_donor(donor);

	return i >= 0 && donor_is_down(&shared->donors[i]);
}

bool
rbp_remote_take_recheck(RbpPool pool)
{
	pg_atomic_uint32 *recheck = &shared->leases[pool].recheck;

	return pg_atomic_read_u32(recheck) != 0 &&
		pg_atomic_exchange_u32(recheck, 0) != 0;
}
