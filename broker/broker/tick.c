/*-------------------------------------------------------------------------
 *
 * tick.c
 *	  What time brings: leases expire, grace times end, donors are gone.
 *
 * Everything here runs under broker.lock.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/model.h"
#include "broker/broker/reclaim.h"
#include "broker/broker/share.h"
#include "broker/broker/state.h"
#include "broker/broker/tick.h"
#include "broker/common/log.h"
#include "common/clock.h"

#include <inttypes.h>

/* A donor that holds no lease and is silent for so long is forgotten. */
#define FORGET_AFTER_MS		(INT64_C(24) * 3600 * 1000)

/* A tick that comes later than this was held up by more than a busy machine. */
#define LATE_MS				2000

static void
earlier(int64_t *next, int64_t when)
{
	if (when < *next)
		*next = when;
}

/*
 * Time during which the broker itself did not run (a stopped process, a
 * paused machine) counts against nobody: holders and donors had no chance to
 * report.  Deadlines here decide no safety, donors have their own.
 */
static void
forgive(int64_t ms)
{
	rbp_log(RBP_LOG_WARNING, "the broker did not run for %" PRId64 " ms; deadlines move by that",
			ms);
	for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		lease->deadline += ms;
		for (BrokerHolding *h = lease->holdings; h != NULL; h = h->next)
		{
			if (h->taken_at != 0)
				h->taken_at += ms;
		}
	}
	for (BrokerDonor *donor = broker.donors; donor != NULL; donor = donor->next)
		donor->last_heard += ms;
}

int64_t
broker_tick(void)
{
	static int64_t planned = 0;
	int64_t		now = rbp_mono_ms();
	int64_t		next = now + 1000;
	BrokerLease *next_lease;
	BrokerDonor *next_donor;

	if (planned != 0 && now - planned > LATE_MS)
		forgive(now - planned);

	for (BrokerLease *lease = broker.leases; lease != NULL; lease = next_lease)
	{
		next_lease = lease->next;
		if (lease->deadline <= now)
		{
			int			regions = broker_lease_end(lease, LEASE_EXPIRED);

			rbp_log(RBP_LOG_INFO, "lease %s of %s (%d regions) has expired",
					lease->id, lease->client, regions);
			broker.counters.leases_expired++;
			continue;
		}
		earlier(&next, lease->deadline);
	}

	broker_share_update();
	for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		BrokerHolding *next_holding;

		for (BrokerHolding *holding = lease->holdings; holding != NULL;
			 holding = next_holding)
		{
			next_holding = holding->next;
			if (holding->taken_at == 0)
				continue;
			if (holding->taken_at <= now)
				broker_reclaim_take(lease, holding);
			else
				earlier(&next, holding->taken_at);
		}
	}

	for (BrokerDonor *donor = broker.donors; donor != NULL; donor = next_donor)
	{
		next_donor = donor->next;

		/* also spreads what remains of a deficit when leases have ended */
		if (donor->draining || donor->want_back > 0)
			broker_reclaim_update(donor);
		if (broker_donor_status(donor, now) != DONOR_GONE)
			continue;
		if (donor->nleased > 0)
		{
			int			lost = broker_donor_drop_leases(donor);

			rbp_log(RBP_LOG_WARNING, "donor %s has been silent for %" PRId64 " s: %d regions leave their leases",
					donor->id, (now - donor->last_heard) / 1000, lost);
			broker.counters.regions_lost += lost;
		}
		if (now - donor->last_heard >= FORGET_AFTER_MS)
		{
			rbp_log(RBP_LOG_INFO, "donor %s is forgotten", donor->id);
			broker_donor_forget(donor);
		}
	}
	planned = next;
	return next;
}
