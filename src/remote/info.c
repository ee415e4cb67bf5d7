/*-------------------------------------------------------------------------
 *
 * info.c
 *	  Data of donors and regions, for the views and the lease worker.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/clock.h"
#include "remote/remote.h"
#include "remote/remote_internal.h"

#define shared		rbp_remote_shared

RbpDonorInfo *
rbp_remote_donor_info(int *n)
{
	RbpDonorInfo *infos = palloc0(sizeof(RbpDonorInfo) * RBP_MAX_DONORS);

	*n = 0;
	LWLockAcquire(&shared->remote_lock, LW_SHARED);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		RbpRemoteDonor *d = &shared->donors[i];
		RbpDonorInfo *info = &infos[*n];

		if (d->endpoint.donor[0] == '\0')
			continue;
		(*n)++;
		info->endpoint = d->endpoint;
		info->transport = rbp_remote_transport_name(pg_atomic_read_u32(&d->transport));
		info->state = !donor_known(d) ? "gone" :
			rbp_link_unresolved(&d->endpoint) ? "unresolved" :
			donor_is_down(d) ? "down" : "ok";
		info->state_since = (TimestampTz) pg_atomic_read_u64(&d->state_since);
		rbp_remote_error_text(pg_atomic_read_u32(&d->links[ANY_LINK].error), info->last_error, sizeof(info->last_error));
		info->last_error_at = (TimestampTz) pg_atomic_read_u64(&d->links[ANY_LINK].error_at);
		info->connections = (int) pg_atomic_read_u32(&d->conn_slots);
		for (int r = 0; r < RBP_MAX_REGIONS; r++)
			if (shared->regions[r].used && shared->regions[r].donor == i)
			{
				uint64		used;

				(void) rbp_remote_pool_ops[shared->regions[r].pool]->heat((uint32) r, &used);
				info->leased_bytes += shared->regions[r].bytes;
				info->used_bytes += used * BLCKSZ;
			}
		for (int s = 0; s < RBP_DONOR_STRIPES; s++)
		{
			RbpDonorStripe *stripe = &d->stripes[s];

			for (int c = 0; c < RBP_DONOR_COUNTS; c++)
				info->counts[c] += pg_atomic_read_u64(&stripe->counts[c]);
			for (int b = 0; b < RBP_LATENCY_BUCKETS; b++)
				info->read_latency[b] += pg_atomic_read_u32(&stripe->latency[b]);
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
		RbpRemoteRegion *region = &shared->regions[r];
		RbpPoolLease *lease = &shared->leases[region->pool];
		RbpLeaseInfo *info = &infos[*n];

		if (!region->used)
			continue;
		(*n)++;
		strlcpy(info->lease, lease->credentials.lease, sizeof(info->lease));
		info->pool = region->pool;
		info->grant = region_grant(region);
		info->heat = rbp_remote_pool_ops[region->pool]->heat((uint32) r, &info->used_bytes);
		info->used_bytes *= BLCKSZ;
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
		memset(shared->donors[i].stripes, 0, sizeof(shared->donors[i].stripes));
	LWLockRelease(&shared->remote_lock);
}
