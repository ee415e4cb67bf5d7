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
 * Staging is always first.  The order of the others is the right one for most
 * machines, and what a server that has measured nothing begins with.  But a
 * donor on the same host may be faster than the page cache, a local disk
 * faster than a network, and a question to the page cache takes time, too.  So
 * there is one choice with two arms, the donor and the file, by what they have
 * cost.  The page cache is a property of the file: a page that it has costs
 * less, a share of the pages is missing in it, and a question tells which.
 *
 * Costs.  An average is a value and the number of pages that it stands for, up
 * to a limit; a process that was stopped counts as eight times the average at
 * most.  It is a mean over time, not over reads: a disk that serves a hundred
 * reads at once and then stalls is as slow as all of that together.  All
 * averages are in shared memory, by file system and by transport, so that a
 * new process begins with what the others know.  A process adds to them when
 * it has measured enough.  Only the share that is missing is its own, too,
 * since that differs between tables.
 *
 * Arms.  The arm with the lower cost is taken; to change it, the other one
 * must be 15 % faster.  Pages by themselves, pages of runs, and temporary blocks have
 * costs of their own.  A run is cut into windows, each of which comes from one
 * source: the holes that donors have in it are charged with a wait for the
 * disk.
 *
 * Questions.  With m, the share of pages that is missing, a page by itself is
 * read in the cheapest of these ways:
 *
 *		donor, no question	donor
 *		file, no question	(1 - m) * cached + m * missing
 *		question			question + (1 - m) * min(cached, donor) +
 *							m * min(missing, donor)
 *
 * Where the page cache has nearly all pages, the file needs no look-up either:
 * pages are read straight from it, as a server without the tier would.  So are
 * runs that the page cache has, or for which the disk is faster.  One read in
 * some is planned nevertheless, to see whether that is still right.
 *
 * Trials.  The arm that is not used is tried for one part in 200 of the time
 * that is spent on reading, by all processes together, and what was known of
 * it before counts for less then, so that a change is noticed.  Donors are tried by
 * page, or by window.  In a run, a single window tells nothing about the
 * file: the kernel reads ahead for the window that waits for the disk, and
 * those behind it find that in the page cache.  So the file is tried for 20 ms, by
 * all processes, since several may read a run together.
 *
 * Admission.  A page is worth capturing if a later read of it from a donor
 * would save more than the capture takes, provided that this read would go to
 * the disk; what is cached now is missing then as often as other pages are
 * now.  Captures take a small part of the time that the disk takes.  Of other
 * pages, one in a few is captured nevertheless, so that the tier fills
 * gradually before it is needed.
 *
 *-------------------------------------------------------------------------
 */
#include "base/choice.h"

#include <string.h>

/* The first values, by order of magnitude */
static const int64_t file_guess[RBP_COSTS] = {
	[RBP_COST_PAGE] = 100000,[RBP_COST_RUN] = 12000,
	[RBP_COST_TEMP_WRITE] = 30000,[RBP_COST_TEMP_READ] = 30000,
	[RBP_COST_CACHED_PAGE] = 2000,[RBP_COST_CACHED_RUN] = 1500,
	[RBP_COST_QUESTION] = 300,[RBP_COST_MISSING] = RBP_ALL / 2
};
static const int64_t donor_guess[RBP_COSTS] = {
	[RBP_COST_PAGE] = 20000,[RBP_COST_RUN] = 6000,
	[RBP_COST_TEMP_WRITE] = 20000,[RBP_COST_TEMP_READ] = 20000
};

/*
 * An average is one word: the value, in parts of 1 / FRACTION, and the number of
 * pages that it stands for in its low bits; 0: nothing is known.
 */
#define WEIGHT_BITS			13
#define WEIGHT(a)			((int64_t) ((a) & ((1U << WEIGHT_BITS) - 1)))
#define VALUE(a)			((int64_t) ((a) >> WEIGHT_BITS))
#define FRACTION			256
#define OUTLIER				8

#define WEIGHT_MAX			1024
#define RUN_WEIGHT_MAX		4096	/* as the kernel reads far ahead */
#define SHARED_WEIGHT_MAX	256 /* of the share that is missing; */
#define SHARE_WEIGHT_MAX	64	/* of the process's own one */
#define SHARE_WEIGHT_FIRST	16	/* of what it has from others */

/* A process adds to the averages after so many pages, or so much time */
#define ADD_PAGES			256
#define ADD_PAGES_YOUNG		8	/* to those that stand for few yet */
#define ADD_NS				200000
#define MEASURED_MAX_NS		INT64_C(60000000000)

/* For a difference of so many percent the arm is changed. */
#define DIFFERENCE			15
#define NEVER				INT64_C(1000000000000)	/* the cost of what must
													 * not be read */

/* Trials: their share of the time, their lengths, and the weight of what was
 * known before */
#define TRIAL_PART			200
#define TRIAL_PAGES			8
#define TRIAL_WEIGHT		32
#define TRIAL_RUN_NS		INT64_C(20000000)
#define TRIAL_RUN_WEIGHT	512
#define TRIAL_FILE_BLOCKS	64

/*
 * Of a trial of donors the first blocks are not measured: that many can be on
 * their way, and only the writer of one more waits for the network.
 */
#define TRIAL_DONOR_BLOCKS	256
#define TRIAL_UNMEASURED	64

/*
 * Of pages whose source needs no question, one in so many is asked about; and of
 * pages in runs that are read straight from the file, that many are.  An
 * index scan reads a page of the index and one of the table in turns, and the
 * kernel reads ahead in powers of two: these are odd.
 */
#define ASK_EVERY			31
#define STRAIGHT_PAGES		(ASK_EVERY - 1)
#define STRAIGHT_RUN		401

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

/* The share of missing pages from which on memory is scarce */
#define SCARCE				(RBP_ALL / 64)

#define PLACES				(RBP_FILE_SYSTEMS + RBP_TRANSPORT_COSTS)

/* All zeros: nothing is known.  Atomics, each by itself. */
typedef struct Shared
{
	uint64_t	average[PLACES][RBP_COSTS];
	uint64_t	device[RBP_FILE_SYSTEMS];	/* st_dev + 1; 0: unused */

	/* time spent, and when in that time the next trial is due */
	int64_t		spent[RBP_FILE_SYSTEMS][RBP_WORKS];
	int64_t		trial_at[RBP_FILE_SYSTEMS][RBP_WORKS];
	int64_t		file_until[RBP_FILE_SYSTEMS];	/* the end of a trial of runs */
	int32_t		transport;		/* that was used last */
	int32_t		temp_transport; /* likewise, for temporary blocks; */
	int32_t		temp_fs;		/* and where their files are */
} Shared;

static Shared *shared;

#define LOAD(word)			__atomic_load_n(&(word), __ATOMIC_RELAXED)
#define STORE(word, value)	__atomic_store_n(&(word), (value), __ATOMIC_RELAXED)

/* What is this process's own; all zeros at first */
static struct
{
	struct
	{
		int			n;
		int64_t		ns;
	}			measured[PLACES][RBP_COSTS];	/* and not added yet */
	int64_t		spent[RBP_FILE_SYSTEMS][RBP_WORKS]; /* likewise */
	uint64_t	missing[RBP_FILE_SYSTEMS];	/* an average */

	/* was the file the faster arm, not cached and cached? */
	bool		file[RBP_FILE_SYSTEMS][RBP_WORKS][2];
	int			straight[RBP_FILE_SYSTEMS][RBP_WORKS];	/* pages left */
	bool		straight_timed[RBP_FILE_SYSTEMS];	/* those of runs */
	int			unasked;		/* pages since the last question */
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
rbp_choice_shmem_init(void *mem)
{
	shared = mem;
	memset(shared, 0, sizeof(*shared));
	memset(&own, 0, sizeof(own));
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

/*
 * ---- averages -----------------------------------------------------------------
 */

static inline int
place(int fs, int transport)
{
	return transport == RBP_NO_TRANSPORT ? fs : RBP_FILE_SYSTEMS + transport;
}

static inline int64_t
lesser(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t
greater(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* The average with n more values, which are so much together */
static uint64_t
with_more(uint64_t average, int n, int64_t sum, int64_t limit, bool bounded)
{
	int64_t		mean = sum * FRACTION / n;
	int64_t		value = VALUE(average);
	int64_t		weight = lesser(WEIGHT(average) + n, limit);

	if (WEIGHT(average) == 0)
		value = mean;
	else
	{
		int64_t		change = (mean - value) * lesser(n, weight) / weight;

		value += bounded ? lesser(change, value * (OUTLIER - 1)) : change;
	}
	if (bounded)
		value = greater(value, FRACTION);
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

/* Time was spent on that. */
static void
spend(int fs, RbpWork work, int64_t ns)
{
	own.spent[fs][work] += ns;
	if (own.spent[fs][work] < ADD_NS)
		return;
	(void) __atomic_fetch_add(&shared->spent[fs][work], own.spent[fs][work], __ATOMIC_RELAXED);
	own.spent[fs][work] = 0;
}

static inline RbpWork
work_of(RbpCost cost)
{
	return cost == RBP_COST_RUN || cost == RBP_COST_CACHED_RUN ? RBP_WORK_RUN :
		cost == RBP_COST_TEMP_WRITE || cost == RBP_COST_TEMP_READ ? RBP_WORK_TEMP :
		RBP_WORK_PAGE;
}

/* If others add at the same time, this is lost; so little does not matter. */
void
rbp_cost_add(int fs, int transport, RbpCost cost, int n, int64_t ns)
{
	int			p = place(fs, transport);
	uint64_t	average = LOAD(shared->average[p][cost]);
	bool		share = cost == RBP_COST_MISSING;
	int64_t		limit = cost == RBP_COST_RUN ? RUN_WEIGHT_MAX : share ? SHARED_WEIGHT_MAX : WEIGHT_MAX;

	ns = lesser(greater(ns, 0), MEASURED_MAX_NS);
	if (!share)
		spend(fs, work_of(cost), ns);
	own.measured[p][cost].n += n;
	own.measured[p][cost].ns += ns;
	if (own.measured[p][cost].n < (WEIGHT(average) < limit / 4 ? ADD_PAGES_YOUNG : ADD_PAGES) &&
		(share || own.measured[p][cost].ns < ADD_NS))
		return;
	if (work_of(cost) == RBP_WORK_TEMP)
	{
		STORE(shared->temp_fs, fs);
		if (transport != RBP_NO_TRANSPORT)
			STORE(shared->temp_transport, transport);
	}
	(void) __atomic_compare_exchange_n(&shared->average[p][cost], &average,
									   with_more(average, own.measured[p][cost].n,
												 own.measured[p][cost].ns, limit, !share),
									   false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	own.measured[p][cost].n = 0;
	own.measured[p][cost].ns = 0;
}

/* An average that will be tried again stands for less. */
static void
weaken(int fs, int transport, RbpCost cost, int64_t limit)
{
	uint64_t	average = average_of(fs, transport, cost);

	if (WEIGHT(average) > limit)
		STORE(shared->average[place(fs, transport)][cost],
			  (uint64_t) VALUE(average) << WEIGHT_BITS | (uint64_t) limit);
}

/* The share of pages that the process finds missing in the page cache */
static int64_t
share_missing(int fs)
{
	if (own.missing[fs] == 0)
		own.missing[fs] = (uint64_t) (rbp_cost(fs, RBP_NO_TRANSPORT, RBP_COST_MISSING) * FRACTION) << WEIGHT_BITS |
			(rbp_cost_known(fs, RBP_NO_TRANSPORT, RBP_COST_MISSING) ? SHARE_WEIGHT_FIRST : 1);
	return (VALUE(own.missing[fs]) + FRACTION / 2) / FRACTION;
}

void
rbp_choice_asked(int fs, int n, int ncached, int64_t ns)
{
	int64_t		missing = (int64_t) (n - ncached) * RBP_ALL;

	(void) share_missing(fs);
	own.missing[fs] = with_more(own.missing[fs], n, missing, SHARE_WEIGHT_MAX, false);
	own.unasked = 0;
	rbp_cost_add(fs, RBP_NO_TRANSPORT, RBP_COST_MISSING, n, missing);
	if (ns > 0)
		rbp_cost_add(fs, RBP_NO_TRANSPORT, RBP_COST_QUESTION, n, ns);
}

bool
rbp_choice_scarce(void)
{
	bool		known = false;

	for (int fs = 0; fs < RBP_FILE_SYSTEMS; fs++)
	{
		known |= rbp_cost_known(fs, RBP_NO_TRANSPORT, RBP_COST_MISSING);
		if (rbp_cost_known(fs, RBP_NO_TRANSPORT, RBP_COST_MISSING) &&
			rbp_cost(fs, RBP_NO_TRANSPORT, RBP_COST_MISSING) > SCARCE)
			return true;
	}
	return !known;
}

/*
 * ---- arms ---------------------------------------------------------------------
 */

static inline RbpCost
file_cost(RbpWork work, bool cached)
{
	return work == RBP_WORK_RUN ? (cached ? RBP_COST_CACHED_RUN : RBP_COST_RUN) :
		cached ? RBP_COST_CACHED_PAGE : RBP_COST_PAGE;
}

static inline RbpCost
donor_cost(RbpWork work)
{
	return work == RBP_WORK_RUN ? RBP_COST_RUN : RBP_COST_PAGE;
}

/* Is the file the faster arm, if it was so far or not? */
static inline bool
faster(bool so_far, int64_t file, int64_t donor)
{
	return file * 100 < donor * (so_far ? 100 + DIFFERENCE : 100 - DIFFERENCE);
}

/* What the file costs; a setting that prefers one arm overrides that. */
static int64_t
file_value(int fs, RbpCost cost, bool cached)
{
	switch (rbp_guc_read_from)
	{
		case RBP_READ_DONOR:
			return NEVER;
		case RBP_READ_FILE:
			return 0;
		case RBP_READ_CACHE:
			return cached ? 0 : NEVER;
		default:
			return rbp_cost(fs, RBP_NO_TRANSPORT, cost);
	}
}

bool
rbp_choose_file(int fs, int transport, RbpWork work, bool cached)
{
	bool	   *file = &own.file[fs][work][cached];

	*file = faster(*file, file_value(fs, file_cost(work, cached), cached),
				   rbp_cost(fs, transport, donor_cost(work)));
	return *file;
}

/* Is a trial due that takes so long?  If so, it is this process's. */
static bool
trial_due(int fs, RbpWork work, int64_t ns)
{
	int64_t		spent = LOAD(shared->spent[fs][work]);
	int64_t		at = LOAD(shared->trial_at[fs][work]);

	return spent >= at && rbp_guc_read_from == RBP_READ_AUTO &&
		__atomic_compare_exchange_n(&shared->trial_at[fs][work], &at, spent + TRIAL_PART * ns,
									false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* Is the page part of a trial of the arm that is not used? */
static bool
page_in_trial(int fs, int transport)
{
	bool		missing = rbp_choose_file(fs, transport, RBP_WORK_PAGE, false);
	bool		cached = rbp_choose_file(fs, transport, RBP_WORK_PAGE, true);

	/* the first reads from a donor may be slow: few of them prove nothing */
	if (own.trial_left == 0 &&
		((missing && WEIGHT(average_of(fs, transport, RBP_COST_PAGE)) < TRIAL_WEIGHT) ||
		 trial_due(fs, RBP_WORK_PAGE,
				   TRIAL_PAGES * rbp_cost(fs, missing ? transport : RBP_NO_TRANSPORT, RBP_COST_PAGE))))
	{
		own.trial_fs = fs;
		own.trial_left = TRIAL_PAGES;
		if (!missing)
			weaken(fs, RBP_NO_TRANSPORT, RBP_COST_PAGE, TRIAL_WEIGHT);
		if (!cached)
			weaken(fs, RBP_NO_TRANSPORT, RBP_COST_CACHED_PAGE, TRIAL_WEIGHT);
		if (missing && cached)
			weaken(fs, transport, RBP_COST_PAGE, TRIAL_WEIGHT);
	}
	if (own.trial_left == 0 || own.trial_fs != fs || rbp_guc_read_from != RBP_READ_AUTO)
		return false;
	own.trial_left--;
	return true;
}

/* The cheapest way to read a page of which nothing is known */
static RbpSource
cheapest(int fs, int transport, bool remote, bool askable)
{
	bool		if_cached = rbp_choose_file(fs, transport, RBP_WORK_PAGE, true);
	bool		if_missing = rbp_choose_file(fs, transport, RBP_WORK_PAGE, false);
	int64_t		donor = rbp_cost(fs, transport, RBP_COST_PAGE);
	int64_t		cached = file_value(fs, RBP_COST_CACHED_PAGE, true);
	int64_t		missing = file_value(fs, RBP_COST_PAGE, false);
	int64_t		m = share_missing(fs);
	int64_t		file;
	int64_t		ask;

	if (!askable)
		return if_missing ? RBP_SOURCE_FILE : RBP_SOURCE_DONOR;
	file = ((RBP_ALL - m) * cached + m * missing) / RBP_ALL;
	ask = rbp_cost(fs, RBP_NO_TRANSPORT, RBP_COST_QUESTION) +
		((RBP_ALL - m) * (if_cached ? cached : donor) + m * (if_missing ? missing : donor)) / RBP_ALL;
	if (remote && donor <= ask && donor <= file)
		return RBP_SOURCE_DONOR;
	/* a question is nothing to a disk, and whoever reads it should know */
	return ask < file || m * missing / RBP_ALL > cached ? RBP_SOURCE_ASK : RBP_SOURCE_FILE;
}

RbpSource
rbp_choose_page(int fs, int transport, bool askable)
{
	bool		remote = transport != RBP_NO_TRANSPORT;
	int			last = LOAD(shared->transport);

	if (remote && transport != last)
		STORE(shared->transport, transport);
	if (!remote)
		transport = last;
	else if (page_in_trial(fs, transport))
		return RBP_SOURCE_TRIAL;
	if (askable && (++own.unasked >= ASK_EVERY || rbp_guc_read_from == RBP_READ_CACHE))
		return RBP_SOURCE_ASK;
	return cheapest(fs, transport, remote, askable);
}

bool
rbp_choice_trying_file(int fs, int64_t now)
{
	return rbp_guc_read_from == RBP_READ_AUTO && now < LOAD(shared->file_until[fs]);
}

RbpSource
rbp_choose_run(const RbpRunFacts *f, int64_t now)
{
	int64_t		donor = rbp_cost(f->fs, f->transport, RBP_COST_RUN);
	int64_t		disk = rbp_cost(f->fs, RBP_NO_TRANSPORT, RBP_COST_RUN);
	int64_t		file = f->pages * file_value(f->fs, file_cost(RBP_WORK_RUN, f->cached), f->cached);
	int64_t		both = f->remote * donor + (f->pages - f->remote) * disk +
	f->holes * rbp_cost(f->fs, RBP_NO_TRANSPORT, RBP_COST_PAGE);
	bool	   *is_faster = &own.file[f->fs][RBP_WORK_RUN][f->cached];

	STORE(shared->transport, f->transport);
	*is_faster = faster(*is_faster, file, both);
	if (!trial_due(f->fs, RBP_WORK_RUN, *is_faster ? both : greater(file, TRIAL_RUN_NS)))
		return *is_faster ? RBP_SOURCE_FILE : RBP_SOURCE_DONOR;
	if (*is_faster)
	{
		weaken(f->fs, f->transport, RBP_COST_RUN, TRIAL_RUN_WEIGHT);
		return RBP_SOURCE_DONOR;
	}
	weaken(f->fs, RBP_NO_TRANSPORT, file_cost(RBP_WORK_RUN, f->cached), TRIAL_RUN_WEIGHT);
	if (!f->cached)
		STORE(shared->file_until[f->fs], now + TRIAL_RUN_NS);
	return RBP_SOURCE_TRIAL;
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

static bool
temp_file_cheaper(int fs, bool so_far)
{
	if (!temp_cost_known(fs, true) || !temp_cost_known(fs, false))
		return so_far;
	return faster(so_far, temp_cost(fs, true), temp_cost(fs, false));
}

bool
rbp_choice_temp_file_cheaper(bool so_far)
{
	return temp_file_cheaper(LOAD(shared->temp_fs), so_far);
}

/* Choose the arm of the next temporary blocks. */
static void
choose_temp_arm(int fs)
{
	bool	   *file = &own.file[fs][RBP_WORK_TEMP][false];

	*file = temp_file_cheaper(fs, *file);
	own.temp_file = *file;
	own.temp_left = TEMP_BLOCKS;
	own.temp_unmeasured = 0;
	/* files are tried when it is known what they are to be compared with */
	if (!temp_cost_known(fs, false) ||
		!trial_due(fs, RBP_WORK_TEMP,
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
	if (file == own.file[fs][RBP_WORK_TEMP][false] && ++own.temp_turn % MEASURE_EVERY != 0)
		return false;
	return file || !write || own.temp_unmeasured == 0;
}

/*
 * ---- straight reads ---------------------------------------------------------------
 */

void
rbp_straight_begin(int fs, RbpWork work, bool remote, bool cached, bool askable)
{
	int			transport = LOAD(shared->transport);

	if (rbp_guc_read_from != RBP_READ_AUTO)
		return;
	if (work == RBP_WORK_RUN ?
		!(cached && !remote) && !rbp_choose_file(fs, transport, work, cached) :
		!askable || cheapest(fs, transport, remote, askable) != RBP_SOURCE_FILE)
		return;
	own.straight[fs][work] = work == RBP_WORK_RUN ? STRAIGHT_RUN : STRAIGHT_PAGES;
	if (work == RBP_WORK_RUN)
		own.straight_timed[fs] = !cached;
}

bool
rbp_straight_left(int fs, RbpWork work)
{
	if (rbp_guc_read_from != RBP_READ_AUTO || own.straight[fs][work] == 0)
		return rbp_guc_read_from == RBP_READ_FILE;
	/* what is timed may turn out to be slow */
	return work != RBP_WORK_RUN || !own.straight_timed[fs] ||
		rbp_choose_file(fs, LOAD(shared->transport), work, false);
}

bool
rbp_straight_take(int fs, RbpWork work, int n)
{
	own.straight[fs][work] = own.straight[fs][work] > n ? own.straight[fs][work] - n : 0;
	if (work == RBP_WORK_PAGE)
		own.unasked += n;
	if (work == RBP_WORK_RUN && own.straight_timed[fs])
		return true;
	spend(fs, work, n * rbp_cost(fs, RBP_NO_TRANSPORT, file_cost(work, true)));
	return false;
}

/*
 * ---- admission --------------------------------------------------------------------
 */

bool
rbp_worth_capturing(int fs, RbpWork work, bool cached)
{
	int64_t		gain = rbp_cost(fs, RBP_NO_TRANSPORT, file_cost(work, false)) -
	rbp_cost(fs, LOAD(shared->transport), donor_cost(work));

	/* who has hardly asked knows too little of what is missing */
	if (cached)
		gain = share_missing(fs) * gain / RBP_ALL * (WEIGHT(own.missing[fs]) >= SHARE_WEIGHT_FIRST);
	if (gain > CAPTURE_COST && own.credit >= CAPTURE_COST)
	{
		own.credit -= CAPTURE_COST;
		return true;
	}
	return ++own.captures % CAPTURE_EVERY == 0;
}

void
rbp_choice_waited(int64_t ns)
{
	own.credit = lesser(own.credit + ns / CAPTURE_PART, CREDIT_MAX);
}

int64_t
rbp_choice_saved(int fs, RbpWork work, int missing, int cached, int unknown, int64_t ns)
{
	int64_t		disk = rbp_cost(fs, RBP_NO_TRANSPORT, file_cost(work, false));
	int64_t		cache = rbp_cost(fs, RBP_NO_TRANSPORT, file_cost(work, true));
	int64_t		m = share_missing(fs);

	if (!rbp_cost_known(fs, RBP_NO_TRANSPORT, file_cost(work, false)))
		return 0;
	return missing * disk + cached * cache +
		unknown * ((RBP_ALL - m) * cache + m * disk) / RBP_ALL - ns;
}
