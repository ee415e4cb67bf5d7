/*-------------------------------------------------------------------------
 *
 * read_cost.c
 *	  Recent costs of this process's reads, and the choice of the source of
 *	  the next one.
 *
 * A page that a donor has may be in the page cache, too.  With m, the share
 * of pages that the page cache does not have, there are three ways to read
 * it, with these mean costs:
 *
 *	ask first			ask + (1 - m) * min(cached, donor) + m * min(disk, donor)
 *	donor, no question	donor
 *	file, no question	(1 - m) * cached + m * disk
 *
 * The cheapest one is chosen.  The terms are averages of what this process
 * has measured, so a busy donor, a slow disk or a page cache that has become
 * too small are accounted for, and a donor that is slower than the disk is
 * bypassed.  When the page cache is not asked, one read in SAMPLE asks
 * nevertheless, to keep m up to date; on the fast path, where the directory
 * is not looked up either, fewer do.  When it is asked, the slower source is
 * used once in a while, to notice when it has become faster.
 *
 * A page that is always read from a donor never gets into the page cache,
 * even if there is plenty of room.  So while the page cache keeps what it
 * has, pages are read from disk to fill it.  The time for that is limited to
 * the time by which donors were slower than the page cache would have been.
 * So, on average, reads take at most twice as long as with donors alone.
 *
 * A new value moves an average by a sixteenth of the difference, and m by a
 * sixty-fourth.  An outlier, as when the process had to wait for a processor,
 * counts as four times the average at most; if such values persist, the
 * average reaches them quickly.
 *
 *-------------------------------------------------------------------------
 */
#include "buffer/read_cost.h"

/* Initial values, by order of magnitude */
#define FIRST_ASK			300
#define FIRST_CACHED		2000
#define FIRST_DISK			100000
#define FIRST_DONOR			20000

/*
 * An index scan reads a page of the index and one of the table in turns: of every
 * 16th read, all would be of one kind.  So both periods are primes.
 */
#define SAMPLE				13
#define FAST_PATH_READS			30	/* and the one that asks */
#define FAST_PATH_SAMPLE		4
#define SAMPLE_NS			INT64_C(50000000)
#define SAMPLE_PART			200

/*
 * Cost of capturing a page: two hashes, a copy, writing it to a donor, and
 * the effect of all that on the processor's caches
 */
#define CAPTURE_COST		10000

/*
 * Capturing may take one part in CAPTURE_PART of the time that the disk
 * takes; unused time is saved up for later pages, up to CREDIT_MAX.
 */
#define CAPTURE_PART		32
#define CREDIT_MAX			(16 * CAPTURE_COST)

#define ONE					(1U << 20)
#define MISSING_WEIGHT		64	/* weight of the old value */
#define TIME_WEIGHT			16

void
rbp_read_cost_init(RbpReadCost *cost)
{
	*cost = (RbpReadCost)
	{
		.ask = FIRST_ASK,.cached = FIRST_CACHED,.disk = FIRST_DISK,
			.missing = ONE / 2
	};
	for (int i = 0; i < RBP_READ_COST_TRANSPORTS; i++)
		cost->donor[i] = FIRST_DONOR;
}

/* Update an average with one more value. */
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

/*
 * Mean cost of a read, given the costs for pages that are cached, and that
 * are not.
 */
static inline uint32_t
mean(const RbpReadCost *cost, uint32_t cached, uint32_t missing)
{
	return (uint32_t) (((uint64_t) (ONE - cost->missing) * cached +
						(uint64_t) cost->missing * missing) / ONE);
}

RbpSource
rbp_read_cost_choose(RbpReadCost *cost, int transport, bool bypass, bool keeps)
{
	uint32_t	disk = cost->disk;
	uint32_t	donor;
	uint32_t	file;
	uint32_t	ask;

	if (transport != RBP_NO_TRANSPORT)
		cost->transport = transport;
	if (++cost->turn % SAMPLE == 0)
		return RBP_SOURCE_ASK;
	donor = cost->donor[cost->transport];
	/* the disk must not be chosen although it is faster: treat it as slower */
	if (!bypass && disk < donor)
		disk = donor * 2;
	file = mean(cost, cost->cached, disk);
	ask = cost->ask + mean(cost, lesser(cost->cached, donor),
						   lesser(disk, donor));
	if (transport == RBP_NO_TRANSPORT)
		return ask < file ? RBP_SOURCE_ASK : RBP_SOURCE_FILE;
	if (donor <= ask && donor <= file &&
		!(keeps && bypass && cost->ask + cost->cached < donor))
		return RBP_SOURCE_DONOR;
	return ask < file ? RBP_SOURCE_ASK : RBP_SOURCE_FILE;
}

int
rbp_read_cost_fast_path(RbpReadCost *cost, bool bypass)
{
	uint32_t	turn = cost->turn;
	bool		file;

	cost->turn = 0;
	file = rbp_read_cost_choose(cost, cost->transport, bypass, false) == RBP_SOURCE_FILE;
	cost->turn = turn;
	return file ? FAST_PATH_READS : 0;
}

void
rbp_read_cost_end_fast_path(RbpReadCost *cost)
{
	cost->turn += SAMPLE - 1 - cost->turn % SAMPLE;
	cost->after_fast_path = true;
}

bool
rbp_read_cost_prefer_file(RbpReadCost *cost, int transport, bool cached, bool keeps,
						  int n, int64_t now)
{
	uint32_t	file = cached ? cost->cached : cost->disk;
	uint32_t	gain = cost->cached + cost->ask;	/* a smaller gain does not
													 * count */
	bool		faster = file < cost->donor[transport];
	int64_t    *sampled = faster ? &cost->donor_sampled[transport] :
	cached ? &cost->cached_sampled : &cost->disk_sampled;
	int64_t		every = (int64_t) SAMPLE_PART * n *
	(faster ? cost->donor[transport] : file);

	cost->filling = false;
	if (keeps && !cached && !faster && cost->disk_seen && cost->donor[transport] > gain)
	{
		cost->balance += cost->donor[transport] - gain;
		cost->filling = cost->balance >= file;
		if (cost->filling)
		{
			cost->balance -= file;
			return true;
		}
	}

	/* sampling takes no more than a small part of the time */
	if (every < SAMPLE_NS)
		every = SAMPLE_NS;
	if (*sampled == 0)
		*sampled = now;			/* a process that hardly reads needs no sample */
	if (now - *sampled < every)
		return faster;
	*sampled = now;
	return !faster;
}

bool
rbp_read_cost_worth_capturing(RbpReadCost *cost, bool cached)
{
	uint32_t	donor = cost->donor[cost->transport];
	uint32_t	gain = cost->disk > donor ? cost->disk - donor : 0;

	/*
	 * a process that has hardly asked knows too little about what is missing
	 */
	if (cost->credit >= CAPTURE_COST &&
		(!cached ? gain > CAPTURE_COST :
		 cost->asked >= MISSING_WEIGHT / 2 && mean(cost, 0, gain) > CAPTURE_COST))
	{
		cost->credit -= CAPTURE_COST;
		return true;
	}
	/* after the fast path few pages get here, so capture more of them */
	if (cost->after_fast_path)
	{
		cost->after_fast_path = false;
		return ++cost->captures % FAST_PATH_SAMPLE == 0;
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

		/* round away from the old value, so that both ends can be reached */
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
	/* the balance was charged with the average: correct that */
	if (!cached && cost->filling)
		cost->balance -= ns - (int64_t) n * cost->disk;
	cost->filling = false;
	if (!cached && !cost->disk_seen)
	{
		/*
		 * start from the first value: speeds of disks differ by orders of
		 * magnitude
		 */
		cost->disk = (uint32_t) (ns / n < TIME_WEIGHT ? TIME_WEIGHT :
								 ns / n > 16 * FIRST_DISK ? 16 * FIRST_DISK : ns / n);
		cost->disk_seen = true;
	}
	else
		follow(cached ? &cost->cached : &cost->disk, ns / n);
	if (!cached)
		rbp_read_cost_waited(cost, (int64_t) n * cost->disk);
}

void
rbp_read_cost_waited(RbpReadCost *cost, int64_t ns)
{
	uint64_t	credit = cost->credit + (uint64_t) ns / CAPTURE_PART;

	cost->credit = credit < CREDIT_MAX ? (uint32_t) credit : CREDIT_MAX;
}

bool
rbp_read_cost_slower(const RbpReadCost *cost, int transport)
{
	return cost->disk_seen && cost->disk < cost->donor[transport];
}

bool
rbp_read_cost_from_disk(const RbpReadCost *cost, int transport)
{
	return rbp_read_cost_slower(cost, transport) && cost->missing > ONE / 2;
}

void
rbp_read_cost_donor(RbpReadCost *cost, int transport, int n, int64_t ns)
{
	follow(&cost->donor[transport], ns / n);
}

int64_t
rbp_read_cost_saved(const RbpReadCost *cost, int missing, int cached, int unknown,
					int64_t ns)
{
	if (!cost->disk_seen)
		return 0;
	return (int64_t) missing * cost->disk + (int64_t) cached * cost->cached +
		(int64_t) unknown * mean(cost, cost->cached, cost->disk) - ns;
}

bool
rbp_read_cost_time_question(const RbpReadCost *cost)
{
	return cost->turn % SAMPLE == 0;
}
