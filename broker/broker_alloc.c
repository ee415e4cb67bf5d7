/*-------------------------------------------------------------------------
 *
 * broker_alloc.c
 *	  Who gets which region, who has to give some back, and what time brings.
 *
 * Granting.  A lease's next region comes from the donor that carries the
 * fewest of its regions, among equals from the one with the most to give: so
 * a new lease goes round by round over all donors, and a growing one fills up
 * donors that came later.  Spread in this way, a lost donor costs each client
 * the smallest share.
 *
 * Taking back.  A donor that wants memory back (want_back, drain) has a
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
 * broker_share.c, and comes on top: "shared" of a holding's "asked" regions.
 *
 * Everything here runs under broker.lock.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "broker_state.h"

#include <inttypes.h>

/* A donor that holds no lease and is silent for so long is forgotten. */
#define FORGET_AFTER_MS		(INT64_C(24) * 3600 * 1000)

/* A tick that comes later than this was held up by more than a busy machine. */
#define LATE_MS				2000

int
broker_alloc_limit(const Donor *donor)
{
	int			limit;

	if (donor->draining)
		return 0;
	limit = donor->nregions - donor->want_back;
	return limit > 0 ? limit : 0;
}

int
broker_alloc_free(const Donor *donor, int64_t now)
{
	int			clean = donor->nregions - donor->nleased - donor->ndirty;
	int			limit = broker_alloc_limit(donor) - donor->nleased;

	if (broker_donor_status(donor, now) != DONOR_UP)
		return 0;
	if (clean < limit)
		limit = clean;
	return limit > 0 ? limit : 0;
}

static int
first_clean(Donor *donor)
{
	int			i = donor->clean_hint;

	while (donor->regions[i].state != REGION_CLEAN)
		i++;
	donor->clean_hint = i + 1;
	return i;
}

int
broker_alloc_grant(Lease *lease)
{
	int64_t		now = rbp_mono_ms();
	int			granted = 0;
	Queue		queue;

	if (lease->bytes < lease->wanted)
		broker_share_queue(lease, now, &queue);
	while (lease->bytes < lease->wanted)
	{
		Donor	   *best = NULL;
		int			best_held = 0;
		int			best_free = 0;

		for (Donor *donor = broker.donors; donor != NULL; donor = donor->next)
		{
			int			n = broker_alloc_free(donor, now);
			Holding    *holding;
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
broker_alloc_more_coming(const Lease *lease)
{
	int64_t		now = rbp_mono_ms();

	if (lease->bytes >= lease->wanted)
		return false;
	for (Donor *donor = broker.donors; donor != NULL; donor = donor->next)
	{
		if (donor->ndirty > 0 && broker_donor_status(donor, now) == DONOR_UP &&
			donor->nleased < broker_alloc_limit(donor))
			return true;
	}
	return false;
}

void
broker_reclaim_update(Donor *donor)
{
	static const struct
	{
		Purpose		purpose;
		bool		told;
	}			sparing[] = {
		{PURPOSE_TEMP, false}, {PURPOSE_TEMP, true},
		{PURPOSE_BUFFER, false}, {PURPOSE_BUFFER, true}
	};
	int			deficit = donor->nleased - broker_alloc_limit(donor);
	int			asked = 0;

	if (deficit < 0)
		deficit = 0;

	/* what other leases are to get comes from those that were chosen for it */
	for (Lease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		Holding    *holding = broker_lease_holding(lease, donor);

		if (holding == NULL)
			continue;
		if (holding->asked < holding->shared && holding->taken_at == 0)
			holding->asked = holding->shared;
		if (holding->asked > holding->shared)
			asked += holding->asked - holding->shared;
	}

	/* The need has shrunk: spare temp leases first, then who was not told. */
	for (size_t i = 0; i < sizeof(sparing) / sizeof(sparing[0]) && asked > deficit; i++)
	{
		for (Lease *lease = broker.leases; lease != NULL; lease = lease->next)
		{
			Holding    *holding = broker_lease_holding(lease, donor);
			int			spare;

			if (holding == NULL || lease->purpose != sparing[i].purpose ||
				(holding->taken_at != 0) != sparing[i].told)
				continue;
			spare = asked - deficit;
			if (spare > holding->asked - holding->shared)
				spare = holding->asked - holding->shared;
			if (spare <= 0)
				continue;
			holding->asked -= spare;
			asked -= spare;
			if (holding->asked == 0)
				holding->taken_at = 0;
		}
	}

	/* It has grown: one by one from whoever would keep the most. */
	while (asked < deficit)
	{
		Holding    *best = NULL;
		Purpose		best_purpose = PURPOSE_BUFFER;
		bool		buffer_later = false;

		for (Lease *lease = broker.leases; lease != NULL; lease = lease->next)
		{
			Holding    *holding = broker_lease_holding(lease, donor);

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
		if (best == NULL || (best_purpose == PURPOSE_TEMP && buffer_later))
			break;				/* the rest after those that were told */
		best->asked++;
		asked++;
	}
}

void
broker_reclaim_tell(Lease *lease)
{
	for (Holding *holding = lease->holdings; holding != NULL;
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
static void
take_regions(Lease *lease, Holding *holding)
{
	Donor	   *donor = holding->donor;
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
	for (Lease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		lease->deadline += ms;
		for (Holding *h = lease->holdings; h != NULL; h = h->next)
		{
			if (h->taken_at != 0)
				h->taken_at += ms;
		}
	}
	for (Donor *donor = broker.donors; donor != NULL; donor = donor->next)
		donor->last_heard += ms;
}

int64_t
broker_tick(void)
{
	static int64_t planned = 0;
	int64_t		now = rbp_mono_ms();
	int64_t		next = now + 1000;
	Lease	   *next_lease;
	Donor	   *next_donor;

	if (planned != 0 && now - planned > LATE_MS)
		forgive(now - planned);

	for (Lease *lease = broker.leases; lease != NULL; lease = next_lease)
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
	for (Lease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		Holding    *next_holding;

		for (Holding *holding = lease->holdings; holding != NULL;
			 holding = next_holding)
		{
			next_holding = holding->next;
			if (holding->taken_at == 0)
				continue;
			if (holding->taken_at <= now)
				take_regions(lease, holding);
			else
				earlier(&next, holding->taken_at);
		}
	}

	for (Donor *donor = broker.donors; donor != NULL; donor = next_donor)
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
