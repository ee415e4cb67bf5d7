/*-------------------------------------------------------------------------
 *
 * reclaim.c
 *	  Who has to give some back.
 *
 * A donor that wants memory back (want_back, drain) has a
 * deficit: the leased regions that it may not have.  broker_reclaim_update() spreads
 * it over the holders: "asked" regions in their holdings.  A holder learns
 * that in its next answer (broker_reclaim_tell()), which starts the grace time; what
 * it has not released by then is taken (broker_tick()).  While a told request
 * is running it is not enlarged, lest the additional regions have a shorter
 * grace time or the first ones a longer; the rest is asked in a second round.
 * Buffer leases are asked before temp leases, and temp leases are spared first
 * when the need shrinks: the data of the latter has no copy on disk.  So a temp
 * lease is left alone as long as a buffer lease has a region there that could
 * be asked for in a later round.  What leases ask of each other is in
 * share.c, and comes on top: "shared" of a holding's "asked" regions.
 *
 * Everything here runs under broker.lock.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/model.h"
#include "broker/broker/reclaim.h"
#include "broker/broker/state.h"
#include "broker/common/log.h"
#include "common/clock.h"

/* Regions of the donor that are asked back, but not for others' share. */
static int
asked_back(BrokerDonor *donor)
{
	int			asked = 0;

	for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		BrokerHolding *holding = broker_lease_holding(lease, donor);

		if (holding == NULL)
			continue;
		/* what other leases are to get comes from those that were chosen for it */
		if (holding->asked < holding->shared && holding->taken_at == 0)
			holding->asked = holding->shared;
		if (holding->asked > holding->shared)
			asked += holding->asked - holding->shared;
	}
	return asked;
}

/*
 * Leave up to n regions that were asked back to leases of that purpose, to those that were
 * told or to those that were not.  How many that were.
 */
static int
spare(BrokerDonor *donor, BrokerPurpose purpose, bool told, int n)
{
	int			spared = 0;

	for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		BrokerHolding *holding = broker_lease_holding(lease, donor);
		int			here;

		if (holding == NULL || lease->purpose != purpose ||
			(holding->taken_at != 0) != told)
			continue;
		here = n - spared;
		if (here > holding->asked - holding->shared)
			here = holding->asked - holding->shared;
		if (here <= 0)
			continue;
		holding->asked -= here;
		spared += here;
		if (holding->asked == 0)
			holding->taken_at = 0;
	}
	return spared;
}

/* Ask one more back from whoever would keep the most; false if it is nobody's turn. */
static bool
ask_one_more(BrokerDonor *donor)
{
	BrokerHolding *best = NULL;
	BrokerPurpose best_purpose = PURPOSE_BUFFER;
	bool		buffer_later = false;

	for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		BrokerHolding *holding = broker_lease_holding(lease, donor);

		if (holding == NULL || holding->asked == holding->regions)
			continue;
		if (holding->taken_at != 0)
		{
			buffer_later |= lease->purpose == PURPOSE_BUFFER;
			continue;
		}
		if (best == NULL || lease->purpose < best_purpose ||
			(lease->purpose == best_purpose &&
			 holding->regions - holding->asked > best->regions - best->asked))
		{
			best = holding;
			best_purpose = lease->purpose;
		}
	}
	/* the rest after those that were told */
	if (best == NULL || (best_purpose == PURPOSE_TEMP && buffer_later))
		return false;
	best->asked++;
	return true;
}

void
broker_reclaim_update(BrokerDonor *donor)
{
	int			deficit = donor->nleased - broker_donor_limit(donor);
	int			asked = asked_back(donor);

	if (deficit < 0)
		deficit = 0;

	/* The need has shrunk: spare temp leases first, then who was not told. */
	for (int i = 0; i < 4 && asked > deficit; i++)
		asked -= spare(donor, i < 2 ? PURPOSE_TEMP : PURPOSE_BUFFER, i % 2 == 1,
					   asked - deficit);

	/* It has grown: one by one. */
	while (asked < deficit && ask_one_more(donor))
		asked++;
}

void
broker_reclaim_tell(BrokerLease *lease)
{
	for (BrokerHolding *holding = lease->holdings; holding != NULL;
		 holding = holding->next)
	{
		if (holding->asked > 0 && holding->taken_at == 0)
			holding->taken_at = rbp_mono_ms() + holding->donor->grace_ms;
	}
}

/*
 * The grace time is over.  Which regions are coldest only the holder knows;
 * take those with the highest numbers, which were granted last if the lease
 * grew in one go.
 */
void
broker_reclaim_take(BrokerLease *lease, BrokerHolding *holding)
{
	BrokerDonor *donor = holding->donor;
	int			count = holding->asked;

	/* for another lease's share, a temp lease gives what it can, and no more */
	if (lease->purpose == PURPOSE_TEMP && holding->shared > 0)
	{
		count -= holding->shared;
		holding->taken_at = rbp_mono_ms() + donor->grace_ms;
	}
	if (count <= 0)
		return;

	rbp_log(RBP_LOG_INFO, "lease %s: %d regions of donor %s are taken, their grace time is over",
			lease->id, count, donor->id);
	broker.counters.regions_taken += count;
	for (int i = donor->nregions - 1; i >= 0 && count > 0; i--)
	{
		if (donor->regions[i].lease == lease)
		{
			broker_region_unlease(donor, i);	/* may free the holding */
			count--;
		}
	}
	broker_reclaim_update(donor);
}
