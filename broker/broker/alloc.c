/*-------------------------------------------------------------------------
 *
 * alloc.c
 *	  Who gets which region.
 *
 * A lease's next region comes from the donor that carries the
 * fewest of its regions, among equals from the one with the most to give: so
 * a new lease goes round by round over all donors, and a growing one fills up
 * donors that came later.  Spread in this way, a lost donor costs each client
 * the smallest share.
 *
 * Everything here runs under broker.lock.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/alloc.h"
#include "broker/broker/model.h"
#include "broker/broker/share.h"
#include "broker/broker/state.h"
#include "common/clock.h"

static int
first_clean(BrokerDonor *donor)
{
	int			i = donor->clean_hint;

	while (donor->regions[i].state != REGION_CLEAN)
		i++;
	donor->clean_hint = i + 1;
	return i;
}

int
broker_alloc_grant(BrokerLease *lease)
{
	int64_t		now = rbp_mono_ms();
	int			granted = 0;
	BrokerQueue	queue;

	if (lease->bytes < lease->wanted)
		broker_share_queue(lease, now, &queue);
	while (lease->bytes < lease->wanted)
	{
		BrokerDonor *best = NULL;
		int			best_held = 0;
		int			best_free = 0;

		for (BrokerDonor *donor = broker.donors; donor != NULL; donor = donor->next)
		{
			int			n = broker_donor_free_regions(donor, now);
			BrokerHolding *holding;
			int			held;

			if (n == 0)
				continue;
			holding = broker_lease_holding(lease, donor);
			held = holding ? holding->regions : 0;
			if (best == NULL || held < best_held ||
				(held == best_held && n > best_free))
			{
				best = donor;
				best_held = held;
				best_free = n;
			}
		}
		if (best == NULL || !broker_share_take(lease, best->region_size, &queue))
			break;
		broker_region_lease(best, first_clean(best), lease);
		granted++;
	}
	if (lease->bytes >= lease->wanted)
		lease->waiting_since = 0;
	else if (lease->waiting_since == 0)
		lease->waiting_since = now;
	broker.counters.regions_granted += granted;
	return granted;
}

bool
broker_alloc_more_coming(const BrokerLease *lease)
{
	int64_t		now = rbp_mono_ms();

	if (lease->bytes >= lease->wanted)
		return false;
	for (BrokerDonor *donor = broker.donors; donor != NULL; donor = donor->next)
	{
		if (donor->ndirty > 0 && broker_donor_status(donor, now) == DONOR_UP &&
			donor->nleased < broker_donor_limit(donor))
			return true;
	}
	return false;
}
