/*-------------------------------------------------------------------------
 *
 * share.c
 *	  How leases share memory that is scarce.
 *
 * Shares.  All leases have equal shares, of whatever purpose and client they
 * are; what one does not want of its share is the others' (max-min fairness).
 * Shared is the memory of donors that are up, less what these want back.  A
 * lease that was not renewed for half of its TTL claims no more than it has:
 * its holder may be dead.
 *
 * Granting.  Free memory goes to leases that are short of their share first,
 * temp before buffer, and among these to who has waited longest.  Clients ask
 * once a second or so, hence what is free is kept for who is first until it
 * asks.  Shares are whole regions; what does not divide goes in the same order,
 * when nobody is short of a share (Lease.turn).
 *
 * Taking back.  What leases are short of, and what no donor has free or is
 * cleaning, is asked back from leases that have a region more than their share
 * or several, the largest first (Holding.shared; see broker_reclaim_update()).
 * It is never asked back for a part of a region, nor for a turn, so it ends when
 * shares are equal but for one region.  A temp lease keeps what it has, as long
 * as no other temp lease is short of a share that buffer leases cannot fill.
 * It is asked then, but not taken from by force: that would cost queries, and
 * all that is at stake is another one's speed.
 *
 * Everything here runs under broker.lock.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/model.h"
#include "broker/broker/reclaim.h"
#include "broker/broker/share.h"
#include "broker/broker/state.h"
#include "broker/common/log.h"
#include "common/clock.h"

#include <stdlib.h>
#include <string.h>

/* What there is to share. */
typedef struct Memory
{
	int64_t		total;			/* bytes that may be leased */
	int64_t		free;			/* of these, not leased: clean */
	int64_t		coming;			/* likewise: dirty */
	int64_t		unit;			/* the smallest region; 0: there are none */
} Memory;

static Memory
count_memory(int64_t now)
{
	Memory		memory = {.unit = 0};

	for (BrokerDonor *donor = broker.donors; donor != NULL; donor = donor->next)
	{
		int			limit = broker_donor_limit(donor);
		int			clean = broker_donor_free_regions(donor, now);

		if (limit == 0 || broker_donor_status(donor, now) != DONOR_UP)
			continue;
		memory.total += limit * donor->region_size;
		memory.free += clean * donor->region_size;
		if (limit - donor->nleased > clean)
			memory.coming += (limit - donor->nleased - clean) * donor->region_size;
		if (memory.unit == 0 || donor->region_size < memory.unit)
			memory.unit = donor->region_size;
	}
	return memory;
}

/*
 * What the lease has of the memory that is shared; notes for each holding how
 * much of it that is.
 */
static int64_t
count_present(const BrokerLease *lease, int64_t now)
{
	int64_t		bytes = 0;

	for (BrokerHolding *h = lease->holdings; h != NULL; h = h->next)
	{
		int			wanted_back = h->asked > h->shared ? h->asked - h->shared : 0;

		h->kept = broker_donor_status(h->donor, now) == DONOR_UP ?
			h->regions - wanted_back : 0;
		bytes += h->kept * h->donor->region_size;
	}
	return bytes;
}

static bool
is_silent(const BrokerLease *lease, int64_t now)
{
	return lease->deadline - now < lease->ttl_ms / 2;
}

static int64_t
round_up(int64_t bytes, int64_t unit)
{
	return bytes > 0 ? (bytes + unit - 1) / unit * unit : 0;
}

/*
 * What the lease would have of the memory that is shared.  It is to have
 * elsewhere what its donors want back, but not what donors hold that are away.
 */
static int64_t
claim(const BrokerLease *lease, int64_t now, int64_t unit)
{
	int64_t		bytes = lease->wanted;

	if (is_silent(lease, now))
		return round_up(bytes < lease->present ? bytes : lease->present, unit);
	for (const BrokerHolding *h = lease->holdings; h != NULL; h = h->next)
	{
		if (broker_donor_status(h->donor, now) >= DONOR_AWAY)
			bytes -= h->regions * h->donor->region_size;
	}
	return round_up(bytes, unit);
}

/* In the order in which free memory is granted. */
static int
compare_turns(const void *a, const void *b)
{
	const BrokerLease *x = *(BrokerLease *const *) a;
	const BrokerLease *y = *(BrokerLease *const *) b;

	if (x->purpose != y->purpose)
		return x->purpose == PURPOSE_TEMP ? -1 : 1;
	if (x->waiting_since != y->waiting_since)
	{
		if (x->waiting_since == 0 || y->waiting_since == 0)
			return x->waiting_since != 0 ? -1 : 1;
		return x->waiting_since < y->waiting_since ? -1 : 1;
	}
	if (x->created != y->created)
		return x->created < y->created ? -1 : 1;
	return strcmp(x->id, y->id);
}

/* Whole units that a lease has less than a size. */
static int64_t
below(const BrokerLease *lease, int64_t size, int64_t unit)
{
	return size > lease->present ? (size - lease->present) / unit * unit : 0;
}

/* What the lease gets when all get this much, unless they claim less. */
static int64_t
portion(const BrokerLease *lease, int64_t level, bool spare_temp)
{
	int64_t		least = spare_temp && lease->purpose == PURPOSE_TEMP ? lease->present : 0;

	if (level < least)
		level = least;
	return level < lease->claim ? level : lease->claim;
}

/* Set share and turn of all leases, which are in the order of their turns. */
static void
divide(BrokerLease **leases, int n, const Memory *memory, bool spare_temp)
{
	int64_t		low = 0;
	int64_t		high = memory->total / memory->unit;
	int64_t		rest = memory->total;

	/* the highest level that there is memory for */
	while (low < high)
	{
		int64_t		middle = (low + high + 1) / 2;
		int64_t		sum = 0;

		for (int i = 0; i < n; i++)
			sum += portion(leases[i], middle * memory->unit, spare_temp);
		if (sum <= memory->total)
			low = middle;
		else
			high = middle - 1;
	}
	low *= memory->unit;
	for (int i = 0; i < n; i++)
	{
		leases[i]->share = portion(leases[i], low, spare_temp);
		leases[i]->turn = 0;
		rest -= leases[i]->share;
	}
	for (int i = 0; i < n && rest >= memory->unit; i++)
	{
		if (leases[i]->share != low || leases[i]->claim == low)
			continue;
		leases[i]->turn = memory->unit;
		rest -= memory->unit;
	}
}

/* Set share, turn, claim and present of all leases. */
static void
make_shares(const Memory *memory, int64_t now)
{
	BrokerLease **leases = calloc((size_t) broker.nleases + 1, sizeof(BrokerLease *));
	bool		temp_short = false;
	int			n = 0;

	if (leases == NULL)
	{
		rbp_log(RBP_LOG_ERROR, "out of memory");
		abort();
	}
	for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		leases[n++] = lease;
		lease->present = count_present(lease, now);
		lease->claim = memory->unit > 0 ? claim(lease, now, memory->unit) : 0;
		lease->share = lease->turn = 0;
	}
	if (memory->unit > 0)
	{
		qsort(leases, (size_t) n, sizeof(BrokerLease *), compare_turns);
		divide(leases, n, memory, false);
		for (int i = 0; i < n; i++)
			temp_short |= leases[i]->purpose == PURPOSE_TEMP &&
				below(leases[i], leases[i]->share, memory->unit) > 0;
		if (!temp_short)
			divide(leases, n, memory, true);
	}
	free(leases);
}

/* Up to a size: what the lease lacks, and can have now. */
static int64_t
lacks(const BrokerLease *lease, int64_t size, int64_t unit)
{
	int64_t		bytes = below(lease, size, unit);
	int64_t		room = round_up(lease->wanted - lease->bytes, unit);

	return bytes < room ? bytes : room;
}

void
broker_share_queue(const BrokerLease *lease, int64_t now, BrokerQueue *queue)
{
	Memory		memory = count_memory(now);

	memset(queue, 0, sizeof(*queue));
	queue->free = memory.free;
	queue->unit = memory.unit;
	if (memory.free == 0)
		return;
	make_shares(&memory, now);
	for (const BrokerLease *other = broker.leases; other != NULL; other = other->next)
	{
		int64_t		share;
		int64_t		turn;

		if (other == lease)
			continue;
		share = lacks(other, other->share, memory.unit);
		turn = lacks(other, other->share + other->turn, memory.unit) - share;
		queue->shares += share;
		queue->turns += turn;
		if (compare_turns(&other, &lease) < 0)
		{
			queue->shares_ahead += share;
			queue->turns_ahead += turn;
		}
	}
}

bool
broker_share_take(BrokerLease *lease, int64_t size, BrokerQueue *queue)
{
	int64_t		left = queue->free - size;
	int64_t		reserved = queue->shares + queue->turns;

	if (lacks(lease, lease->share, queue->unit) > 0)
		reserved = queue->shares_ahead;
	else if (lacks(lease, lease->share + lease->turn, queue->unit) > 0)
		reserved = queue->shares + queue->turns_ahead;
	if (left < reserved)
		return false;
	queue->free = left;
	lease->present += size;
	return true;
}

/*
 * Choose regions of this lease to be asked back: as many as it has too many of,
 * but no more than are needed, and from where it has most, so that it stays
 * spread.  Returns their bytes, which it has no more.
 */
static int64_t
choose_regions(BrokerLease *lease, int64_t need)
{
	int64_t		surplus = lease->present - lease->share;
	int64_t		chosen = 0;

	while (chosen < need)
	{
		BrokerHolding *best = NULL;

		for (BrokerHolding *h = lease->holdings; h != NULL; h = h->next)
		{
			if (h->kept == h->shared || h->donor->region_size > surplus - chosen)
				continue;
			if (best == NULL || h->kept - h->shared > best->kept - best->shared)
				best = h;
		}
		if (best == NULL)
			break;
		best->shared++;
		best->donor->sharing = true;
		chosen += best->donor->region_size;
	}
	lease->present -= chosen;
	return chosen;
}

/* The lease that has most above its share; NULL if none has a unit. */
static BrokerLease *
largest_surplus(BrokerPurpose purpose, int64_t unit)
{
	BrokerLease *best = NULL;

	for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		int64_t		surplus = lease->present - lease->share;

		if (lease->purpose == purpose && surplus >= unit &&
			(best == NULL || surplus > best->present - best->share))
			best = lease;
	}
	return best;
}

/*
 * need: bytes that are lacking; temp_need: of these, by temp leases, which are
 * first to get what buffer leases give.
 */
static void
choose_leases(int64_t need, int64_t temp_need, int64_t unit)
{
	static const BrokerPurpose order[] = {PURPOSE_BUFFER, PURPOSE_TEMP};

	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
	{
		BrokerLease *lease;

		if (order[i] == PURPOSE_TEMP && need > temp_need)
			need = temp_need;
		while (need > 0 && (lease = largest_surplus(order[i], unit)) != NULL)
		{
			int64_t		chosen = choose_regions(lease, need);

			need -= chosen;
			temp_need -= chosen;
			if (chosen == 0)	/* its regions are larger than its surplus */
				lease->present = lease->share;
		}
	}
}

static int
count_shared(const BrokerLease *lease)
{
	int			shared = 0;

	for (const BrokerHolding *h = lease->holdings; h != NULL; h = h->next)
		shared += h->shared;
	return shared;
}

void
broker_share_update(void)
{
	int64_t		now = rbp_mono_ms();
	Memory		memory = count_memory(now);
	int64_t		need = -(memory.free + memory.coming);
	int64_t		temp_need = need;
	bool		asked = false;

	for (const BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
		asked |= (lease->bytes < lease->wanted && !is_silent(lease, now)) ||
			count_shared(lease) > 0;
	if (!asked)
		return;

	make_shares(&memory, now);
	for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		int64_t		bytes = below(lease, lease->share, memory.unit);

		need += bytes;
		if (lease->purpose == PURPOSE_TEMP)
			temp_need += bytes;
		lease->told = count_shared(lease) > 0;
		for (BrokerHolding *h = lease->holdings; h != NULL; h = h->next)
		{
			h->donor->sharing |= h->shared > 0;
			h->shared = 0;
		}
	}
	choose_leases(need, temp_need, memory.unit);

	for (const BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		int			shared = count_shared(lease);

		if (shared > 0 && !lease->told)
			rbp_log(RBP_LOG_INFO, "lease %s of %s has more than its share of %lld MB: %d regions are asked back for others",
					lease->id, lease->client, (long long) (lease->share >> 20), shared);
	}
	for (BrokerDonor *donor = broker.donors; donor != NULL; donor = donor->next)
	{
		if (donor->sharing)
			broker_reclaim_update(donor);
		donor->sharing = false;
	}
}
