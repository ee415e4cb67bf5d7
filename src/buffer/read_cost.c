/*-------------------------------------------------------------------------
 *
 * read_cost.c
 *	  What reads have cost this process lately, and so where the next one is
 *	  to come from.
 *
 * A page that a donor has may be in the page cache, too.  With m, the share
 * of pages that the page cache has not got, there are three ways to it:
 *
 *	ask first			ask + (1 - m) * min(cached, donor) + m * min(disk, donor)
 *	donor, straight		donor
 *	file, straight		(1 - m) * cached + m * disk
 *
 * The cheapest is taken.  What it is made of are averages of what this process
 * has seen, so a busy donor, a slow disk or a page cache that has become too
 * small count as they are, and a donor that is slower than the disk is passed by.
 * Where no question is asked, one in SAMPLE reads asks all the same, so that m
 * follows; one in twice as many where the file is so cheap that nothing else is
 * looked at.  When a question was asked, what is slower is taken all the same once in a
 * while, so that it is noticed when it is not slower any more.
 *
 * A page that is always read from a donor never gets into the page cache, even if
 * that has all the room that there is.  So while the page cache keeps what it
 * has, pages are read from the disk to fill it.  That may take as much time as donors
 * have taken longer than the page cache would have, so that reads take twice as long as
 * donors alone at most, as an average.
 *
 * Averages move by a sixteenth of the difference, m by a sixty-fourth.  An
 * outlier, when the process had to wait for a processor, counts as four times
 * the average at most: if it is the rule, the average gets there in no time.
 *
 *-------------------------------------------------------------------------
 */
#include "buffer/read_cost.h"

/* Before anything was seen; by order of magnitude. */
#define FIRST_ASK			300
#define FIRST_CACHED		2000
#define FIRST_DISK			100000
#define FIRST_DONOR			20000

#define SAMPLE				16
#define STRAIGHT			31
#define STRAIGHT_KEPT		4
#define SAMPLE_NS			INT64_C(50000000)
#define SAMPLE_PART			200

/*
 * What capturing a page costs: two hashes, a copy, the writing to a donor, and what
 * all of that takes from the processor's caches.
 */
#define CAPTURE_COST		10000

/*
 * Of the time that the disk takes, capturing may take a part of so many; what is
 * not used is kept for so many pages.
 */
#define CAPTURE_PART		32
#define CREDIT_MAX			(16 * CAPTURE_COST)

#define ONE					(1U << 20)
#define MISSING_WEIGHT		64	/* of the past */
#define TIME_WEIGHT			16

void
rbp_read_cost_init(RbpReadCost *cost)
{
	*cost = (RbpReadCost)
	{
		.ask = FIRST_ASK,.cached = FIRST_CACHED,.disk = FIRST_DISK,
		.missing = ONE / 2
	};
	for (int i = 0; i < RBP_WAYS; i++)
		cost->donor[i] = FIRST_DONOR;
}

/* The average with one more value. */
static inline void
follow(uint32_t *average, int64_t value)
{
	int64_t		most = (int64_t) *average * 4;

	if (value > most)
		value = most;
	if (value > UINT32_MAX / 8)
		value = UINT32_MAX / 8;
	*average += (int32_t) ((value - (int64_t) *average) / TIME_WEIGHT);
	if (*average < TIME_WEIGHT)
		*average = TIME_WEIGHT;
}

static inline uint32_t
lesser(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* What a read costs, if a page costs so much when cached, and when not. */
static inline uint32_t
mean(const RbpReadCost *cost, uint32_t cached, uint32_t missing)
{
	return (uint32_t) (((uint64_t) (ONE - cost->missing) * cached +
						(uint64_t) cost->missing * missing) / ONE);
}

RbpSource
rbp_read_cost_choose(RbpReadCost *cost, int way, bool bypass, bool keeps)
{
	uint32_t	disk = cost->disk;
	uint32_t	donor;
	uint32_t	file;
	uint32_t	ask;

	if (way != RBP_WAY_NONE)
		cost->way = way;
	if (++cost->turn % SAMPLE == 0)
		return RBP_SOURCE_ASK;
	donor = cost->donor[cost->way];
	/* not to be read although it is quicker: as if it were not */
	if (!bypass && disk < donor)
		disk = donor * 2;
	file = mean(cost, cost->cached, disk);
	ask = cost->ask + mean(cost, lesser(cost->cached, donor),
						   lesser(disk, donor));
	if (way == RBP_WAY_NONE)
		return ask < file ? RBP_SOURCE_ASK : RBP_SOURCE_FILE;
	if (donor <= ask && donor <= file &&
		!(keeps && bypass && cost->ask + cost->cached < donor))
		return RBP_SOURCE_DONOR;
	return ask < file ? RBP_SOURCE_ASK : RBP_SOURCE_FILE;
}

int
rbp_read_cost_straight(RbpReadCost *cost, bool bypass)
{
	uint32_t	turn = cost->turn;
	bool		file;

	cost->turn = 0;
	file = rbp_read_cost_choose(cost, cost->way, bypass, false) == RBP_SOURCE_FILE;
	cost->turn = turn;
	return file ? STRAIGHT : 0;
}

void
rbp_read_cost_ask_next(RbpReadCost *cost)
{
	cost->turn |= SAMPLE - 1;
	cost->straight = true;
}

bool
rbp_read_cost_prefer_file(RbpReadCost *cost, int way, bool cached, bool keeps,
						  int64_t now)
{
	uint32_t	file = cached ? cost->cached : cost->disk;
	uint32_t	gain = cost->cached + cost->ask;	/* less than that is none */
	bool		quicker = file < cost->donor[way];
	int64_t    *sampled = quicker ? &cost->donor_sampled[way] :
		cached ? &cost->cached_sampled : &cost->disk_sampled;
	int64_t		every = (int64_t) SAMPLE_PART *
		(quicker ? cost->donor[way] : file);

	cost->filling = false;
	if (keeps && !cached && !quicker && cost->disk_seen && cost->donor[way] > gain)
	{
		cost->balance += cost->donor[way] - gain;
		cost->filling = cost->balance >= file;
		if (cost->filling)
		{
			cost->balance -= file;
			return true;
		}
	}

	/* a sample takes no more than a small part of the time */
	if (every < SAMPLE_NS)
		every = SAMPLE_NS;
	if (*sampled == 0)
		*sampled = now;			/* one that hardly reads need not know */
	if (now - *sampled < every)
		return quicker;
	*sampled = now;
	return !quicker;
}

bool
rbp_read_cost_keep(RbpReadCost *cost, bool cached)
{
	uint32_t	donor = cost->donor[cost->way];
	uint32_t	gain = cost->disk > donor ? cost->disk - donor : 0;

	/* one that has hardly asked knows too little of what is missed */
	if (cost->credit >= CAPTURE_COST &&
		(!cached ? gain > CAPTURE_COST :
		 cost->asked >= MISSING_WEIGHT / 2 && mean(cost, 0, gain) > CAPTURE_COST))
	{
		cost->credit -= CAPTURE_COST;
		return true;
	}
	/* those that are looked at are few, then */
	if (cost->straight)
	{
		cost->straight = false;
		return ++cost->captures % STRAIGHT_KEPT == 0;
	}
	return ++cost->captures % SAMPLE == 0;
}

void
rbp_read_cost_asked(RbpReadCost *cost, int n, int ncached, int64_t ns)
{
	for (int i = 0; i < n; i++)
	{
		uint32_t	value = i < ncached ? 0 : ONE;
		uint32_t	weight = cost->asked < MISSING_WEIGHT ? ++cost->asked + 1 :
			MISSING_WEIGHT;

		/* rounded away from the old value, so that it gets to both ends */
		if (value < cost->missing)
			cost->missing -= (cost->missing - value + weight - 1) / weight;
		else
			cost->missing += (value - cost->missing + weight - 1) / weight;
	}
	if (ns > 0)
		follow(&cost->ask, ns / n);
}

void
rbp_read_cost_file(RbpReadCost *cost, int n, bool cached, int64_t ns)
{
	/* it was taken off as the average */
	if (!cached && cost->filling)
		cost->balance -= ns - (int64_t) n * cost->disk;
	cost->filling = false;
	if (!cached && !cost->disk_seen)
	{
		/* there are quicker disks and slower ones, by orders of magnitude */
		cost->disk = (uint32_t) (ns / n < TIME_WEIGHT ? TIME_WEIGHT :
								 ns / n > 16 * FIRST_DISK ? 16 * FIRST_DISK : ns / n);
		cost->disk_seen = true;
	}
	else
		follow(cached ? &cost->cached : &cost->disk, ns / n);
	if (!cached)
	{
		uint64_t	credit = cost->credit + (uint64_t) n * cost->disk / CAPTURE_PART;

		cost->credit = credit < CREDIT_MAX ? (uint32_t) credit : CREDIT_MAX;
	}
}

bool
rbp_read_cost_slower(const RbpReadCost *cost, int way)
{
	return cost->disk_seen && cost->disk < cost->donor[way];
}

bool
rbp_read_cost_from_disk(const RbpReadCost *cost, int way)
{
	return rbp_read_cost_slower(cost, way) && cost->missing > ONE / 2;
}

void
rbp_read_cost_donor(RbpReadCost *cost, int way, int n, int64_t ns)
{
	follow(&cost->donor[way], ns / n);
}

int64_t
rbp_read_cost_saved(const RbpReadCost *cost, int n, bool known_missing,
					int64_t ns)
{
	if (!cost->disk_seen)
		return 0;
	return (int64_t) n * (known_missing ? cost->disk :
						  mean(cost, cost->cached, cost->disk)) - ns;
}

bool
rbp_read_cost_time_question(const RbpReadCost *cost)
{
	return cost->turn % SAMPLE == 0;
}
