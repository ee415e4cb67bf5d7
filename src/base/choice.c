/*-------------------------------------------------------------------------
 *
 * choice.c
 *	  Where a page or a temporary block is read from, and which pages are worth
 *	  capturing.
 *
 * The sources, in their order:
 *
 *		staging ------> page cache ------> donor ------> disk
 *		a copy of		if it has the		if one has	 has every page
 *		a victim,		page				the page
 *		in memory
 *					   \______ file ______________________/
 *
 * The order is fixed, except for the guard: donors that are slower than the
 * disk come behind it.  What the page cache has is read from there, always.
 *
 * Costs.  So one pair of averages decides: what a page that the page cache has
 * not costs on its disk, and from donors.  They are in shared memory, by file
 * system and by transport, so that a new process begins with what the others
 * know.  Pages by themselves, pages of runs, and temporary blocks have costs of
 * their own.  An average is a value and the number of pages that it stands for,
 * up to a limit; a process that was stopped counts as eight times the average at
 * most.  It is a mean over time, not over reads: a disk that serves a hundred
 * reads at once and then stalls is as slow as all of that together.  The first page that
 * a process reads after it has read from elsewhere may take three times as long as those
 * behind it, since all that serves it was idle, and so do the first 16 MB of a run,
 * which nobody has read ahead: they tell nothing of the source in use.  To change the
 * order, the other source must be 15 % faster.
 *
 * While a process does something else with the pages of a run, the kernel reads ahead.
 * So a wait for the disk is shorter by what the process takes longer between its reads
 * than others that were measured, down to a copy: an index range may wait for
 * nothing where a scan of the same disk waits for each page.
 *
 * Questions.  A question to the page cache takes time, too.  If nearly all
 * pages are there, as far as this process has seen, a page is read straight from
 * the file, without a question and without a look-up, as by a server that has no
 * tier; if nearly none is, from the donor.  One page in some is asked about
 * nevertheless.
 *
 * Runs are cut into windows, each of which comes from one source: the holes that
 * donors have in one are charged with a wait for the disk.
 *
 * Trials.  What is not used is tried for one part in 200 of the time that is
 * spent on reading, by all processes together, so that a change is noticed.
 * While the page cache keeps its pages, the disk is tried for one part in 20,
 * unless donors are nearly as fast: what it has read is in the page cache from then
 * on, as it would be in a server without the tier.  A trial lasts 20 ms, one of runs
 * 40 ms, and all processes take part in it: a few pages of one of them tell what a
 * source costs that is idle, not what it costs in use, when several wait for it and for
 * processors; the kernel reads ahead for the window of a run that waits for the
 * disk, and those behind it find that in the page cache; a process enters a
 * donor's memory in its page tables bit by bit.  What was known before a trial
 * counts little after it.  A machine may be slow for a tenth of a second, and what was in
 * use then seems expensive, long after it is not used any more: so once the order of the
 * two costs has changed, trials come soon, and each after twice the time of the one
 * before.  Runs are tried again soon, too, if the source in use has become
 * cheaper or more expensive by half: what is known of the other is of another load.
 *
 * Connections.  Nobody knows whether a process will read ten pages and end, or read
 * for days, so it rents before it buys: without a connection it reads from the file
 * what donors have, until it would have lost by that what connecting takes.  So it
 * loses no more than twice what it would if it had known.  What is not known of
 * donors costs nothing, so that somebody finds out; and a part of the file's time
 * is lost in any case, as what is known may be out of date.  Who begins a trial of donors
 * connects for it: nobody else may read their pages at all.
 *
 * Admission.  A page is worth capturing if a later read of it from a donor
 * would save more than the capture takes, provided that this read would go to
 * the disk; what is cached now is missing then as often as other pages are
 * now.  Captures take a small part of the time that the disk takes.  Of other
 * pages, one in a few is captured nevertheless, so that the tier fills
 * gradually before it is needed.  Where a disk gives a run so fast that only few of its
 * pages can be captured, most are read straight.
 *
 *-------------------------------------------------------------------------
 */
#include "base/choice.h"

#include <stdlib.h>
#include <string.h>
#include <sys/param.h>

#define ALL				1000000 /* a share of one */

/* The first values, by order of magnitude */
static const int64_t file_guess[RBP_COSTS] = {
	[RBP_COST_PAGE] = 100000,[RBP_COST_RUN] = 12000,
	[RBP_COST_TEMP_WRITE] = 30000,[RBP_COST_TEMP_READ] = 30000
};
static const int64_t donor_guess[RBP_COSTS] = {
	[RBP_COST_PAGE] = 20000,[RBP_COST_RUN] = 6000,
	[RBP_COST_TEMP_WRITE] = 20000,[RBP_COST_TEMP_READ] = 20000
};

/* What connecting takes: over shared memory, TCP, and RDMA */
static const int64_t connect_guess[RBP_TRANSPORTS] = {250000, 400000, 5000000};

/*
 * An average is one word: the value, in parts of 1 / FRACTION, and the number of
 * pages that it stands for in its low bits; 0: nothing is known.
 */
#define WEIGHT_BITS			13
#define WEIGHT(a)			((int64_t) ((a) & ((1U << WEIGHT_BITS) - 1)))
#define VALUE(a)			((int64_t) ((a) >> WEIGHT_BITS))
#define FRACTION			256
#define OUTLIER				8

/*
 * The limits.  A disk may stall, and most trials of it are between its stalls.  In
 * runs the kernel reads far ahead, 8 MB on some devices, and a process that waits for
 * a processor does so for as long as some windows take: only pages of several such
 * pieces together tell their cost.
 */
#define RUN_WEIGHT_MAX		4096
#define WEIGHT_MAX			1024	/* of all others; processes that wait for
									 * a processor are rare, and cost much */
#define CONNECT_WEIGHT		8	/* of what connecting takes, from the first
								 * value on */
#define SHARE_WEIGHT_MAX	64	/* of the share that is missing */
#define KNOWN				32	/* fewer pages prove nothing, */
#define KNOWN_RUN			512 /* nor do fewer of runs */

/*
 * A process adds to the averages after so many pages, or so much time; the first
 * ones at once, and then as many as before, lest short processes add nothing but
 * what took long.
 */
#define ADD_PAGES			256
#define ADD_NS				200000
#define MEASURED_MAX_NS		INT64_C(60000000000)

/* For a difference of so many percent the order is changed. */
#define DIFFERENCE			15

/*
 * A question to the page cache takes so long.  It is not worth it if a wrong
 * guess would cost less in the mean.
 */
#define QUESTION			400

/* Trials: their share of the time, and their lengths */
#define TRIAL_PART			200
#define FIRST_PART			5	/* after a change of the order */
#define FILL_PART			20	/* of the disk, while the page cache keeps: */
#define FILL_READS			20	/* if so many reads from there make up for one
								 * of the disk; */
#define CACHED_COST			2000	/* each of which takes so long */
#define RARE_PART			2400	/* of files for temporary blocks, while it
									 * does not: few of them are still cached
									 * when they are read, all would not be */
#define TRIAL_PAGES			8
#define TRIAL_NS			INT64_C(20000000)
#define TRIAL_RUN_NS		INT64_C(40000000)
#define START_PAGES			2048	/* of a run, while the kernel begins to
									 * read ahead, */
#define START_NS			INT64_C(20000000)	/* if they took no longer */
#define TRIAL_FILE_BLOCKS	64

/*
 * Of a trial of donors the first blocks are not measured: that many can be on
 * their way, and only the writer of one more waits for the network.
 */
#define TRIAL_DONOR_BLOCKS	256
#define TRIAL_UNMEASURED	64

/*
 * Of pages whose source needs no question, one in so many is asked about, and
 * more of a file that the process has just begun to read.  An index scan reads a
 * page of the index and one of the table in turns: this is odd.
 */
#define ASK_EVERY			31
#define STRAIGHT_PAGES		(ASK_EVERY - 2) /* and the one before, and the one
											 * asked about */
#define STRAIGHT_RUN		401 /* odd, as the kernel reads ahead in powers of
								 * two */
#define TIME_EVERY			4	/* of such runs: two looks at the clock are 2
								 * % of a page */

/*
 * Temporary blocks to the arm in use of which one is measured.  It has no common
 * factor with the blocks that are sent together.
 */
#define MEASURE_EVERY		7
#define TEMP_BLOCKS			64	/* until the arm is chosen again */

/*
 * Capturing a page: two hashes, a copy, writing it to a donor, and the effect
 * of all that on the processor's caches.  It may take one part in CAPTURE_PART
 * of the time that the disk takes; unused time is saved up, up to CREDIT_MAX.
 */
#define CAPTURE_COST		10000
#define CAPTURE_PART		32
#define CREDIT_MAX			(16 * CAPTURE_COST)
#define CAPTURE_EVERY		13
#define CAPTURE_FEW			8	/* a run is read straight if less than one
								 * page in so many can be captured */

/* Of the file's time that part is lost at least without a connection. */
#define LOST_PART			64

/* Copying a page of a run that the kernel has read ahead */
#define COPY_COST			1200
#define PACE_WEIGHT_MAX		1024
#define PACE_MAX			20000	/* a longer time between two reads, as of
									 * a client that pauses, tells no more */

#define PLACES				(RBP_FILE_SYSTEMS + RBP_TRANSPORTS)

/* Zeros: nothing is known.  Atomics, each by itself. */
typedef struct Shared
{
	uint64_t	average[PLACES][RBP_COSTS];
	uint64_t	connect[RBP_TRANSPORTS];	/* averages of what that takes */
	uint64_t	device[RBP_FILE_SYSTEMS];	/* st_dev + 1; 0: unused */

	/* time spent, and when in that time the next trial is due */
	int64_t		spent[RBP_FILE_SYSTEMS][RBP_WORKS];
	int64_t		trial_at[RBP_FILE_SYSTEMS][RBP_WORKS];
	int32_t		trial_part[RBP_FILE_SYSTEMS][RBP_WORKS];	/* for which that is;
															 * below 0 if donors
															 * cost less when it was
															 * set */
	int64_t		trial_until[RBP_FILE_SYSTEMS][RBP_WORKS][2];	/* the ends of trials of
																 * files and donors */
	uint64_t	pace[RBP_FILE_SYSTEMS]; /* average of the time between reads
										 * of a page of runs, where these were
										 * measured */
	int64_t		trial_cost[RBP_FILE_SYSTEMS];	/* of the source in use, when
												 * runs of the other one were
												 * tried */
	int32_t		transport;		/* that was used last */
	int32_t		temp_transport; /* likewise, for temporary blocks; */
	int32_t		temp_fs;		/* and where their files are */
	int32_t		cache_keeps;	/* the page cache keeps its pages */
} Shared;

static Shared *shared;

uint32_t	rbp_straight_epoch = 0;

#define LOAD(word)			__atomic_load_n(&(word), __ATOMIC_RELAXED)
#define STORE(word, value)	__atomic_store_n(&(word), (value), __ATOMIC_RELAXED)

/* What a process has measured, and not added yet */
typedef struct Measured
{
	int			n;				/* pages */
	int			added;			/* pages that it has added, up to ADD_PAGES */
	int64_t		ns;
} Measured;

/* What is this process's own; all zeros at first */
static struct
{
	Measured	measured[PLACES][RBP_COSTS];
	int64_t		spent[RBP_FILE_SYSTEMS][RBP_WORKS]; /* not added yet */
	int64_t		spent_added[RBP_FILE_SYSTEMS][RBP_WORKS];
	uint64_t	missing[RBP_FILE_SYSTEMS];	/* an average */
	uint64_t	pace[RBP_FILE_SYSTEMS]; /* likewise */
	int			place;			/* that it has measured last, plus 1; */
	bool		idle[PLACES];	/* was a place so when measured last? */

	/* windows measured in a row, all of one place */
	int			run_place;		/* plus 1; 0: none yet */
	int			run_pages;
	int64_t		run_ns;
	bool		run_counts;		/* from its start on */
	bool		run_short[PLACES];	/* was the last row of a place too short? */

	/* was the disk faster than donors? */
	bool		disk[RBP_FILE_SYSTEMS][RBP_WORKS];
	int			unasked;		/* pages since the last question */
	uint32_t	runs;			/* that were read straight from the disk */
	int			trial_fs;		/* of the trial with pages left */
	int			trial_left;
	int			temp_left;		/* blocks until the arm is chosen again */
	int			temp_unmeasured;
	bool		temp_file;		/* where these go */
	uint32_t	temp_turn;
	uint32_t	captures;		/* decisions about these */
	int64_t		credit;			/* time that captures may take */
}			own;

size_t
rbp_choice_shmem_size(void)
{
	return sizeof(Shared);
}

void
rbp_choice_shmem_open(void *mem, bool found)
{
	shared = mem;
	memset(&own, 0, sizeof(own));
	if (found)
		return;
	memset(shared, 0, sizeof(*shared));
	for (int i = 0; i < RBP_TRANSPORTS; i++)
		shared->connect[i] = (uint64_t) (connect_guess[i] * FRACTION) << WEIGHT_BITS | CONNECT_WEIGHT;
}

int
rbp_choice_file_system(uint64_t device)
{
	int			i = 0;

	for (; i < RBP_FILE_SYSTEMS - 1; i++)
	{
		uint64_t	unused = 0;

		if (LOAD(shared->device[i]) == device + 1 ||
			__atomic_compare_exchange_n(&shared->device[i], &unused, device + 1, false,
										__ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
			unused == device + 1)
			break;
	}
	return i;
}

bool
rbp_choice_device(int fs, uint64_t *device)
{
	uint64_t	word = LOAD(shared->device[fs]);

	*device = word - 1;
	return word != 0;
}

/*
 * ---- averages -----------------------------------------------------------------
 */

static inline int
place(int fs, int transport)
{
	return transport == RBP_NO_TRANSPORT ? fs : RBP_FILE_SYSTEMS + transport;
}

/* The average with n more values, which are so much together */
static uint64_t
with_more(uint64_t average, int n, int64_t sum, int64_t limit, bool bounded)
{
	int64_t		mean = sum * FRACTION / n;
	int64_t		value = VALUE(average);
	int64_t		weight = MIN(WEIGHT(average) + n, limit);

	if (WEIGHT(average) == 0)
		value = mean;
	else
	{
		int64_t		change = (mean - value) * MIN(n, weight) / weight;

		value += bounded ? MIN(change, value * (OUTLIER - 1)) : change;
	}
	if (bounded)
		value = MAX(value, FRACTION);
	return (uint64_t) value << WEIGHT_BITS | (uint64_t) weight;
}

static inline uint64_t
average_of(int fs, int transport, RbpCost cost)
{
	return LOAD(shared->average[place(fs, transport)][cost]);
}

bool
rbp_cost_known(int fs, int transport, RbpCost cost)
{
	return average_of(fs, transport, cost) != 0;
}

int64_t
rbp_cost(int fs, int transport, RbpCost cost)
{
	uint64_t	average = average_of(fs, transport, cost);

	if (average == 0)
		return transport == RBP_NO_TRANSPORT ? file_guess[cost] : donor_guess[cost];
	return VALUE(average) / FRACTION;
}

/* Time was spent on that, a part of which is for trials if somebody chooses. */
static void
spend(int fs, RbpWork work, int64_t ns)
{
	if (rbp_guc_read_from != RBP_READ_AUTO)
		return;
	own.spent[fs][work] += ns;
	if (own.spent[fs][work] < MIN(own.spent_added[fs][work], ADD_NS))
		return;
	own.spent_added[fs][work] += own.spent[fs][work];
	(void) __atomic_fetch_add(&shared->spent[fs][work], own.spent[fs][work], __ATOMIC_RELAXED);
	own.spent[fs][work] = 0;
}

static inline RbpWork
work_of(RbpCost cost)
{
	return cost == RBP_COST_RUN ? RBP_WORK_RUN :
		cost == RBP_COST_TEMP_WRITE || cost == RBP_COST_TEMP_READ ? RBP_WORK_TEMP :
		RBP_WORK_PAGE;
}

/*
 * Note that pages were measured.  Was the source idle before?  One that always is
 * counts as one in use: nothing else tells what it costs.
 */
static bool
was_idle(int p)
{
	bool		idle = own.place != p + 1;
	bool		always = idle && own.idle[p];

	own.place = p + 1;
	own.idle[p] = idle;
	return idle && !always;
}

static inline bool
is_start(int pages, int64_t ns)
{
	return pages <= START_PAGES && ns <= START_NS;
}

/*
 * Note that a window was measured.  Does it tell nothing yet?  The kernel reads a run ahead
 * in steps that grow, each of which is waited for until it is some MB ahead.  Rows that are
 * always short count: that is what they take.  A new process's first row does not: it is
 * the file's, for as long as a connection is not worth its price.
 */
static bool
run_starts(int p, int n, int64_t ns)
{
	if (own.run_place != p + 1)
	{
		if (own.run_place != 0)
			own.run_short[own.run_place - 1] = is_start(own.run_pages, own.run_ns);
		own.run_counts = own.run_short[p];
		own.run_place = p + 1;
		own.run_pages = 0;
		own.run_ns = 0;
	}
	own.run_pages = MIN(own.run_pages, START_PAGES) + n;
	own.run_ns = MIN(own.run_ns, START_NS) + ns;
	return !own.run_counts && is_start(own.run_pages, own.run_ns);
}

/* If others add at the same time, this is lost; so little does not matter. */
void
rbp_cost_add(int fs, int transport, RbpCost cost, int n, int64_t ns)
{
	int			p = place(fs, transport);
	Measured   *m = &own.measured[p][cost];
	uint64_t	average = LOAD(shared->average[p][cost]);
	bool		disk = transport == RBP_NO_TRANSPORT;
	int64_t		limit = cost == RBP_COST_RUN ? RUN_WEIGHT_MAX : WEIGHT_MAX;
	bool		idle = was_idle(p);

	ns = MIN(MAX(ns, 0), MEASURED_MAX_NS);
	spend(fs, work_of(cost), ns);
	if (((idle && cost == RBP_COST_PAGE) || (cost == RBP_COST_RUN && run_starts(p, n, ns))) &&
		average != 0)
		return;
	m->n += n;
	m->ns += ns;
	if (m->n < m->added && m->ns < ADD_NS)
		return;
	if (work_of(cost) == RBP_WORK_TEMP)
	{
		STORE(shared->temp_fs, fs);
		if (!disk)
			STORE(shared->temp_transport, transport);
	}
	(void) __atomic_compare_exchange_n(&shared->average[p][cost], &average,
									   with_more(average, m->n, m->ns, limit, true),
									   false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	m->added = (int) MIN(m->added + m->n, ADD_PAGES);
	m->n = 0;
	m->ns = 0;
}

void
rbp_choice_pace(int fs, int n, int64_t ns, bool file)
{
	ns = MIN(ns, n * (int64_t) PACE_MAX);
	own.pace[fs] = with_more(own.pace[fs], n, ns, PACE_WEIGHT_MAX, true);
	if (file)
		STORE(shared->pace[fs], with_more(LOAD(shared->pace[fs]), n, ns, RUN_WEIGHT_MAX, true));
}

/* The share of pages that the process finds missing in the page cache */
static int64_t
share_missing(int fs)
{
	if (own.missing[fs] == 0)
		return ALL / 2;
	return (VALUE(own.missing[fs]) + FRACTION / 2) / FRACTION;
}

void
rbp_choice_asked(int fs, int n, int ncached)
{
	rbp_straight_epoch += ncached < n;
	own.missing[fs] = with_more(own.missing[fs], n, (int64_t) (n - ncached) * ALL,
								SHARE_WEIGHT_MAX, false);
	own.unasked = 0;
}

bool
rbp_choice_cache_keeps(void)
{
	return LOAD(shared->cache_keeps) != 0;
}

void
rbp_choice_set_cache_keeps(bool keeps)
{
	if (rbp_choice_cache_keeps() != keeps)
		STORE(shared->cache_keeps, keeps);
}

/*
 * ---- pages and runs -----------------------------------------------------------
 */

static inline RbpCost
cost_of(RbpWork work)
{
	return work == RBP_WORK_RUN ? RBP_COST_RUN : RBP_COST_PAGE;
}

/* What a page costs this process on the disk: one of a run, by its own pace */
static int64_t
disk_cost(int fs, RbpWork work)
{
	int64_t		cost = rbp_cost(fs, RBP_NO_TRANSPORT, cost_of(work));
	uint64_t	pace = work == RBP_WORK_RUN ? LOAD(shared->pace[fs]) : 0;

	if (WEIGHT(own.pace[fs]) < KNOWN || WEIGHT(pace) < KNOWN_RUN)
		return cost;
	return MAX(cost + (VALUE(pace) - VALUE(own.pace[fs])) / FRACTION, MIN(cost, COPY_COST));
}

/* Is the disk faster, if it was so far or not? */
static inline bool
faster(bool so_far, int64_t disk, int64_t donor)
{
	return disk * 100 < donor * (so_far ? 100 + DIFFERENCE : 100 - DIFFERENCE);
}

bool
rbp_choose_file(int fs, int transport, RbpWork work, bool cached)
{
	bool	   *disk = &own.disk[fs][work];

	if (cached || rbp_guc_read_from != RBP_READ_AUTO)
		return rbp_guc_read_from == RBP_READ_FILE ||
			(cached && rbp_guc_read_from != RBP_READ_DONOR);
	*disk = faster(*disk, disk_cost(fs, work), rbp_cost(fs, transport, cost_of(work)));
	return *disk;
}

/*
 * Is a trial due that takes so long, as trials are to take one part in so many of the
 * time?  If so, it is this process's, and next is for the one behind it, as trial_part.
 */
static bool
trial_due(int fs, RbpWork work, int part, int next, int64_t ns)
{
	int64_t		spent = LOAD(shared->spent[fs][work]);
	int64_t		at = LOAD(shared->trial_at[fs][work]);
	int			planned = abs(LOAD(shared->trial_part[fs][work]));

	if (at - spent > MAX(planned - part, 0) * ns || rbp_guc_read_from != RBP_READ_AUTO ||
		!__atomic_compare_exchange_n(&shared->trial_at[fs][work], &at, spent + abs(next) * ns,
									 false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return false;
	STORE(shared->trial_part[fs][work], next);
	return true;
}

/* The part of the time that is for trials of the disk, or else of donors */
static inline int
part_of(bool disk, int64_t disk_cost, int64_t donor_cost)
{
	return disk && rbp_choice_cache_keeps() && (donor_cost - CACHED_COST) * FILL_READS > disk_cost ? FILL_PART : TRIAL_PART;
}

/*
 * Does the source in use cost half as much again, or the reverse, as when runs of the
 * other one were tried?  Then others read at the same time that did not, or do no more,
 * and the two costs cannot be compared.
 */
static bool
load_differs(int fs, int64_t cost)
{
	int64_t		then = LOAD(shared->trial_cost[fs]);

	return then != 0 && (cost * 2 > then * 3 || cost * 3 < then * 2);
}

/*
 * Does a trial of the source go on that is not in use, or does one begin?  Many
 * processes take part, each for a part of its own time; who begins it tries some
 * pages, however long that takes.  On a busy machine a trial may tell little: then
 * another one follows soon.
 */
static bool
in_trial(int fs, int transport, RbpWork work, int64_t disk, int64_t donor, int64_t now)
{
	bool		donors = own.disk[fs][work];	/* are tried */
	uint64_t   *average = &shared->average[place(fs, donors ? transport : RBP_NO_TRANSPORT)][cost_of(work)];
	uint64_t	old = LOAD(*average);
	int64_t    *until = &shared->trial_until[fs][work][donors];
	int			planned = LOAD(shared->trial_part[fs][work]);
	bool		order = rbp_cost(fs, RBP_NO_TRANSPORT, cost_of(work)) > rbp_cost(fs, transport, cost_of(work));
	bool		changed = planned != 0 && (planned < 0) != order;
	int			part = part_of(!donors, disk, donor);
	int			last = planned == 0 ? part : MIN(abs(planned), part);
	int			next = changed ? FIRST_PART : MIN(2 * last, part);
	int64_t		few = work == RBP_WORK_RUN ? KNOWN_RUN : KNOWN;
	bool		known = WEIGHT(old) >= few;
	bool		early = work == RBP_WORK_RUN && load_differs(fs, donors ? disk : donor);
	int64_t		length = work == RBP_WORK_RUN ? TRIAL_RUN_NS : TRIAL_NS;
	int64_t		ns = MAX(donors ? donor : disk, length);

	if (work == RBP_WORK_PAGE && own.trial_fs == fs && own.trial_left > 0)
	{
		own.trial_left--;
		return true;
	}
	if (now < LOAD(*until))
		return true;
	part = changed ? FIRST_PART : early || !known ? FILL_PART : last;
	if (now - LOAD(*until) < (part - 1) * ns ||
		(!trial_due(fs, work, part, order ? -next : next, ns) && known))
		return false;
	STORE(*until, now + length);
	if (work == RBP_WORK_RUN)
		STORE(shared->trial_cost[fs], donors ? disk : donor);
	if (work == RBP_WORK_PAGE)
	{
		own.trial_fs = fs;
		own.trial_left = TRIAL_PAGES - 1;
	}
	/* what was known before is out of date */
	STORE(*average, VALUE(old) << WEIGHT_BITS | (uint64_t) MIN(WEIGHT(old), few));
	return true;
}

bool
rbp_choose_announced(int fs, int transport)
{
	return rbp_guc_read_from == RBP_READ_FILE ||
		(rbp_guc_read_from == RBP_READ_AUTO &&
		 faster(false, rbp_cost(fs, RBP_NO_TRANSPORT, RBP_COST_PAGE), rbp_cost(fs, transport, RBP_COST_RUN)));
}

RbpSource
rbp_choose_page(int fs, int transport, bool askable, int64_t now)
{
	bool		remote = transport != RBP_NO_TRANSPORT;
	bool		file = remote && rbp_choose_file(fs, transport, RBP_WORK_PAGE, false);
	int			last = LOAD(shared->transport);
	int64_t		m = share_missing(fs);

	if (rbp_guc_read_from == RBP_READ_DONOR || rbp_guc_read_from == RBP_READ_FILE)
		return rbp_guc_read_from == RBP_READ_DONOR ? RBP_SOURCE_DONOR : RBP_SOURCE_FILE;
	if (remote && transport != last)
		STORE(shared->transport, transport);
	if (remote && rbp_guc_read_from == RBP_READ_AUTO && in_trial(fs, transport, RBP_WORK_PAGE,
																 rbp_cost(fs, RBP_NO_TRANSPORT, RBP_COST_PAGE),
																 rbp_cost(fs, transport, RBP_COST_PAGE), now))
		return RBP_SOURCE_TRIAL;
	if (askable && (++own.unasked >= ASK_EVERY || rbp_guc_read_from == RBP_READ_CACHE))
		return RBP_SOURCE_ASK;
	if (file)
		return RBP_SOURCE_FILE;
	if (!askable)
		return remote ? RBP_SOURCE_DONOR : RBP_SOURCE_FILE;
	if (m * rbp_cost(fs, RBP_NO_TRANSPORT, RBP_COST_PAGE) < (int64_t) QUESTION * ALL)
		return RBP_SOURCE_FILE;
	if (remote && (ALL - m) * rbp_cost(fs, transport, RBP_COST_PAGE) < (int64_t) QUESTION * ALL)
		return RBP_SOURCE_DONOR;
	return RBP_SOURCE_ASK;
}

bool
rbp_choose_disk(int fs, RbpWork work)
{
	return rbp_choose_file(fs, LOAD(shared->transport), work, false);
}

bool
rbp_choice_trying(int fs, RbpSource source, int64_t now)
{
	return rbp_guc_read_from == RBP_READ_AUTO &&
		now < LOAD(shared->trial_until[fs][RBP_WORK_RUN][source == RBP_SOURCE_DONOR]);
}

RbpSource
rbp_choose_run(const RbpRunFacts *f, int64_t now)
{
	int64_t		disk = f->pages * disk_cost(f->fs, RBP_WORK_RUN);
	int64_t		both = f->remote * rbp_cost(f->fs, f->transport, RBP_COST_RUN) +
	(f->pages - f->remote) * disk_cost(f->fs, RBP_WORK_RUN) +
	f->holes * rbp_cost(f->fs, RBP_NO_TRANSPORT, RBP_COST_PAGE);
	bool	   *disk_faster = &own.disk[f->fs][RBP_WORK_RUN];

	STORE(shared->transport, f->transport);
	if (f->cached || rbp_guc_read_from != RBP_READ_AUTO)
		return rbp_choose_file(f->fs, f->transport, RBP_WORK_RUN, f->cached) ?
			RBP_SOURCE_FILE : RBP_SOURCE_DONOR;
	*disk_faster = faster(*disk_faster, disk, both);
	if (rbp_choice_trying(f->fs, RBP_SOURCE_DONOR, now))
		return RBP_SOURCE_DONOR;
	if (in_trial(f->fs, f->transport, RBP_WORK_RUN, disk / f->pages, both / f->pages, now))
		return *disk_faster ? RBP_SOURCE_DONOR : RBP_SOURCE_TRIAL;
	return *disk_faster ? RBP_SOURCE_FILE : RBP_SOURCE_DONOR;
}

/*
 * ---- connections --------------------------------------------------------------
 */

static inline int64_t
connect_cost(int transport)
{
	return VALUE(LOAD(shared->connect[transport])) / FRACTION;
}

bool
rbp_choose_connection(int fs, int transport, RbpWork work, int n, int64_t *lost)
{
	RbpCost		cost = cost_of(work);
	int64_t		file;
	int64_t		donor;
	bool		tries;

	if (*lost == INT64_MAX)
		return true;
	file = rbp_cost(fs, RBP_NO_TRANSPORT, cost);
	donor = rbp_cost_known(fs, transport, cost) ? rbp_cost(fs, transport, cost) : 0;
	tries = work == RBP_WORK_PAGE && own.disk[fs][work] && own.trial_fs == fs && own.trial_left > 0;
	*lost += n * MAX(file - donor, file / LOST_PART);
	if (*lost < connect_cost(transport) && !tries && rbp_guc_read_from == RBP_READ_AUTO)
		return false;
	*lost = INT64_MAX;
	return true;
}

void
rbp_choice_connected(int transport, int64_t ns)
{
	STORE(shared->connect[transport],
		  with_more(LOAD(shared->connect[transport]), 1,
					MIN(ns, OUTLIER * connect_cost(transport)), CONNECT_WEIGHT, true));
}

/*
 * ---- temporary blocks -----------------------------------------------------------
 */

/*
 * The cost of writing and reading a block; of writing alone until reads have been
 * measured at both, as a file is written long before it is read.
 */
static int64_t
temp_cost(int fs, bool file)
{
	int			transport = LOAD(shared->temp_transport);
	int			arm = file ? RBP_NO_TRANSPORT : transport;
	bool		reads = rbp_cost_known(fs, RBP_NO_TRANSPORT, RBP_COST_TEMP_READ) &&
	rbp_cost_known(fs, transport, RBP_COST_TEMP_READ);

	return rbp_cost(fs, arm, RBP_COST_TEMP_WRITE) +
		(reads ? rbp_cost(fs, arm, RBP_COST_TEMP_READ) : 0);
}

static inline bool
temp_cost_known(int fs, bool file)
{
	return rbp_cost_known(fs, file ? RBP_NO_TRANSPORT : LOAD(shared->temp_transport), RBP_COST_TEMP_WRITE);
}

int64_t
rbp_choice_temp_cost(bool file)
{
	int			fs = LOAD(shared->temp_fs);

	return temp_cost_known(fs, file) ? temp_cost(fs, file) : 0;
}

bool
rbp_choice_temp_file_cheaper(int fs, bool so_far)
{
	if (fs == RBP_UNKNOWN_FILE_SYSTEM)
		fs = LOAD(shared->temp_fs);
	if (!temp_cost_known(fs, true) || !temp_cost_known(fs, false))
		return so_far;
	return faster(so_far, temp_cost(fs, true), temp_cost(fs, false));
}

/* Choose the arm of the next temporary blocks. */
static void
choose_temp_arm(int fs)
{
	bool	   *file = &own.disk[fs][RBP_WORK_TEMP];
	int			part;

	*file = rbp_choice_temp_file_cheaper(fs, *file);
	own.temp_file = *file;
	own.temp_left = TEMP_BLOCKS;
	own.temp_unmeasured = 0;
	part = *file || rbp_choice_cache_keeps() ? TRIAL_PART : RARE_PART;
	/* files are tried when it is known what they are to be compared with */
	if (!temp_cost_known(fs, false) ||
		!trial_due(fs, RBP_WORK_TEMP, part, part,
				   (*file ? TRIAL_DONOR_BLOCKS : TRIAL_FILE_BLOCKS) * temp_cost(fs, !*file)))
		return;
	own.temp_file = !*file;
	own.temp_left = *file ? TRIAL_DONOR_BLOCKS : TRIAL_FILE_BLOCKS;
	own.temp_unmeasured = *file ? TRIAL_UNMEASURED : 0;
}

bool
rbp_choose_temp_file(int fs)
{
	if (fs == RBP_UNKNOWN_FILE_SYSTEM)
		fs = LOAD(shared->temp_fs);
	if (rbp_guc_read_from != RBP_READ_AUTO)
	{
		own.temp_left = own.temp_unmeasured = 0;
		return rbp_guc_read_from == RBP_READ_FILE;
	}
	if (own.temp_left == 0)
		choose_temp_arm(fs);
	own.temp_left--;
	if (own.temp_unmeasured > 0)
		own.temp_unmeasured--;
	return own.temp_file;
}

bool
rbp_choice_measures_temp(int fs, bool file, bool write)
{
	if (file == own.disk[fs][RBP_WORK_TEMP] && ++own.temp_turn % MEASURE_EVERY != 0)
		return false;
	return file || !write || own.temp_unmeasured == 0;
}

/*
 * ---- straight reads ---------------------------------------------------------------
 */

void
rbp_straight_end(RbpStraight *straight, int fs)
{
	RbpCost		cost = straight->run ? RBP_COST_RUN : RBP_COST_PAGE;
	int64_t		ns = straight->read * rbp_cost(fs, RBP_NO_TRANSPORT, cost);

	if (!straight->run)
	{
		/* after a whole stretch, the next page is asked about */
		own.unasked = straight->left > 0 ? own.unasked + straight->read : ASK_EVERY;
		spend(fs, RBP_WORK_PAGE, ns * share_missing(fs) / ALL);
	}
	else if (!straight->cached && !straight->timed)
	{
		spend(fs, RBP_WORK_RUN, ns);
		rbp_choice_waited(ns);
	}
	straight->read = straight->left = 0;
}

void
rbp_straight_begin(RbpStraight *straight, int fs, RbpWork work, int n, bool cached)
{
	bool		run = work == RBP_WORK_RUN;
	bool		disk_faster = rbp_choose_disk(fs, work);
	bool		goes_on = straight->run == run && (run || straight->epoch == rbp_straight_epoch);
	int			longer = goes_on ? 2 * straight->length : 0;

	if (rbp_guc_read_from != RBP_READ_AUTO)
		return;
	rbp_straight_end(straight, fs);

	/*
	 * Pages: what is known of the page cache may be known of other files, so
	 * the first stretch of a file is short, and each that ends with a page
	 * that is cached doubles the next.  Runs: donors that are faster, but
	 * have no page of this window, may have the pages behind it: look there
	 * soon, and later each time that they have not.
	 */
	straight->length = !run ? MIN(MAX(longer, 1), STRAIGHT_PAGES) :
		cached || disk_faster ? STRAIGHT_RUN : MIN(MAX(longer, n), STRAIGHT_RUN);
	straight->left = straight->length;
	straight->epoch = rbp_straight_epoch;
	straight->run = run;
	straight->cached = cached;
	straight->faster = disk_faster;
	straight->timed = run && !cached && own.runs++ % TIME_EVERY == 0;
	straight->ended = 0;
}

/*
 * ---- admission --------------------------------------------------------------------
 */

bool
rbp_worth_capturing(int fs, bool cached)
{
	int64_t		gain = rbp_cost(fs, RBP_NO_TRANSPORT, RBP_COST_PAGE) -
	rbp_cost(fs, LOAD(shared->transport), RBP_COST_PAGE);

	/* who has hardly asked knows too little of what is missing */
	if (cached)
		gain = WEIGHT(own.missing[fs]) < KNOWN / 2 ? 0 : share_missing(fs) * gain / ALL;
	if (gain > CAPTURE_COST && own.credit >= CAPTURE_COST)
	{
		own.credit -= CAPTURE_COST;
		return true;
	}
	return ++own.captures % CAPTURE_EVERY == 0;
}

bool
rbp_worth_capturing_run(int fs)
{
	return rbp_cost(fs, RBP_NO_TRANSPORT, RBP_COST_RUN) * CAPTURE_FEW > (int64_t) CAPTURE_PART * CAPTURE_COST &&
		!rbp_choose_disk(fs, RBP_WORK_RUN);
}

void
rbp_choice_waited(int64_t ns)
{
	own.credit = MIN(own.credit + ns / CAPTURE_PART, CREDIT_MAX);
}

int64_t
rbp_choice_saved(int fs, RbpWork work, int missing, int unknown, int64_t ns)
{
	int64_t		disk = disk_cost(fs, work);

	if (!rbp_cost_known(fs, RBP_NO_TRANSPORT, cost_of(work)))
		return 0;
	return (missing * ALL + unknown * share_missing(fs)) * disk / ALL - ns;
}
