/*-------------------------------------------------------------------------
 *
 * test_choice.c
 *	  Where reads come from, by what they have cost, and what is captured.
 *
 *-------------------------------------------------------------------------
 */
#include "base/choice.c"

#include "random.h"
#include "tap.h"

#define US			INT64_C(1000)
#define MS			INT64_C(1000000)
#define ROUNDS		4000
#define NEAR		0
#define FAR			2
#define FIRST		0			/* file systems */
#define SECOND		1

int			rbp_guc_read_from = RBP_READ_AUTO;

static Shared memory;
static int64_t now;

/* A world in which reads cost that, and of 1,000 pages so many are cached. */
typedef struct World
{
	int			fs;
	int64_t		cached;
	int64_t		disk;
	int64_t		donor;
	int			per_thousand;
	int			stall_every;	/* reads of the disk; 0: never */
	int64_t		stall;			/* how long */
} World;

typedef struct Seen
{
	int			straight;
	int			asked;
	int			donor;			/* reads from it */
	int			file;
	int			disk;			/* of these, not cached */
	int			kept;
	int64_t		ns;
} Seen;

/* Of each file system, one file is read */
static RbpStraight straights[RBP_FILE_SYSTEMS];

/* A server starts. */
static void
start(void)
{
	rbp_choice_shmem_open(&memory, false);
	rbp_guc_read_from = RBP_READ_AUTO;
}

/* A process starts, in place of the one before. */
static void
start_process(void)
{
	memset(&own, 0, sizeof(own));
	memset(straights, 0, sizeof(straights));
}

/* Read so many pages, each by itself. */
static Seen
live(const World *w, int way, int rounds)
{
	static uint32_t disk_reads = 0;
	Seen		seen = {0};

	for (int i = 0; i < rounds; i++)
	{
		/* spread alike, and not in step with the samples */
		bool		cached = (i * 619) % 1000 < w->per_thousand;
		bool		straight = rbp_straight_left(&straights[w->fs], 0);
		bool		known = false;
		bool		file = straight;
		int64_t		file_ns = w->cached;

		if (straight)
		{
			straights[w->fs].left--;
			straights[w->fs].read++;
			seen.straight++;
		}
		else
		{
			RbpSource	source;

			if (straights[w->fs].read > 0)
				rbp_straight_end(&straights[w->fs], w->fs);
			source = rbp_choose_page(w->fs, way, true, now + seen.ns);
			known = source == RBP_SOURCE_ASK || source == RBP_SOURCE_TRIAL;
			file = source == RBP_SOURCE_FILE || way == RBP_NO_TRANSPORT;
			if (known)
			{
				seen.asked++;
				seen.ns += 250;
				rbp_choice_asked(w->fs, 1, cached);
				file |= rbp_choose_file(w->fs, way == RBP_NO_TRANSPORT ? FAR : way, RBP_WORK_PAGE, cached) !=
					(source == RBP_SOURCE_TRIAL && !cached);
			}
			if (source == RBP_SOURCE_FILE)
				rbp_straight_begin(&straights[w->fs], w->fs, RBP_WORK_PAGE, 1, false);
		}
		if (file && !cached)
			file_ns = w->disk + (w->stall_every > 0 && ++disk_reads % (uint32_t) w->stall_every == 0 ? w->stall : 0);
		if (file)
		{
			seen.file++;
			seen.disk += !cached;
			seen.ns += file_ns;
			if (known && !cached)
				rbp_choice_waited(file_ns);
			if (known && !cached)
				rbp_cost_add(w->fs, RBP_NO_TRANSPORT, RBP_COST_PAGE, 1, file_ns);
			if (!straight)
				seen.kept += rbp_worth_capturing(w->fs, cached);
		}
		else
		{
			seen.donor++;
			seen.ns += w->donor;
			rbp_cost_add(w->fs, way, RBP_COST_PAGE, 1, w->donor);
		}
	}
	now += seen.ns;
	return seen;
}

/* What happens when all is known */
static Seen
settle(const World *w, int way)
{
	(void) live(w, way, 10 * ROUNDS);
	return live(w, way, ROUNDS);
}

static void
test_pages(void)
{
	World		w = {.cached = 2 * US,.disk = 100 * US,.donor = 40 * US,.per_thousand = 1000};
	Seen		seen;

	start();
	start_process();
	seen = settle(&w, FAR);
	ok(seen.donor <= 8, "all is cached, donor far: read from the file (%d times from the donor, to see)", seen.donor);
	ok(seen.straight > ROUNDS * 9 / 10, "... straight (%d times)", seen.straight);
	ok(seen.asked > ROUNDS / 50, "... but now and then it asks (%d times)", seen.asked);
	ok(seen.kept > 0 && seen.kept < ROUNDS / 100, "... and captures (%d times)", seen.kept);
	ok(seen.ns < ROUNDS * (w.cached + 100), "... for hardly more than the page cache takes");

	/* another file is not known for that */
	memset(&straights[FIRST], 0, sizeof(straights[FIRST]));
	w.per_thousand = 0;
	seen = live(&w, FAR, 200);
	ok(seen.disk < 10, "the page cache has nothing of another file: few reads (%d) of the first 200 go to disk", seen.disk);
	w.per_thousand = 1000;
	(void) settle(&w, FAR);

	/* the change is noticed soon */
	w.per_thousand = 0;
	seen = live(&w, FAR, 200);
	ok(seen.disk < 64, "the page cache goes: few reads (%d) of the first 200 go to disk", seen.disk);
	seen = settle(&w, FAR);
	ok(seen.donor > ROUNDS * 98 / 100, "nothing is cached any more: from the donor (%d times)", seen.donor);
	ok(seen.asked < ROUNDS / 10, "... mostly without asking (%d times)", seen.asked);
	ok(seen.disk * w.disk < seen.ns / 50, "... and the disk is tried for a small part of the time (%d times)", seen.disk);

	w.per_thousand = 500;
	seen = settle(&w, FAR);
	ok(seen.asked > ROUNDS * 99 / 100, "half is: it asks (%d times)", seen.asked);
	ok(seen.disk * w.disk < seen.ns / 50, "... and hardly goes to disk (%d times)", seen.disk);

	/* a slow donor is bypassed, and used again */
	w.per_thousand = 0;
	w.donor = 5 * MS;
	seen = live(&w, FAR, 200);
	ok(seen.donor < 30, "a donor that becomes slow is bypassed at once (%d of 200 reads)", seen.donor);
	(void) settle(&w, FAR);
	seen = live(&w, FAR, 100 * ROUNDS);
	ok(seen.donor * w.donor < seen.ns / 50, "... and tried for a small part of the time (%d times)", seen.donor);
	w.donor = 40 * US;
	for (int i = 0; i < 1000 && live(&w, FAR, ROUNDS).donor < ROUNDS * 9 / 10; i++)
		;
	seen = live(&w, FAR, ROUNDS);
	ok(seen.donor > ROUNDS * 9 / 10, "one that becomes quick is used again (%d times)", seen.donor);

	/* one that was slow at first */
	start();
	start_process();
	w.per_thousand = 0;
	rbp_cost_add(FIRST, FAR, RBP_COST_PAGE, 1, 900 * US);
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE, 100, 100 * 100 * US);
	STORE(shared->trial_at[FIRST][RBP_WORK_PAGE], INT64_MAX);
	seen = live(&w, FAR, 500);
	ok(seen.donor > 400, "a donor whose first page was slow is tried at once (%d of 500 reads)", seen.donor);

	/* of two transports one is slower than the disk */
	w.per_thousand = 700;
	w.donor = 1500;
	seen = settle(&w, NEAR);
	ok(seen.file > ROUNDS * 69 / 100 && seen.donor > ROUNDS * 28 / 100, "a donor that is quicker than the page cache: that is read nevertheless (%d times)", seen.file);
	w.donor = 200 * US;
	seen = settle(&w, FAR);
	ok(seen.donor < ROUNDS / 100, "by another transport one that is slower than the disk is not (%d times)", seen.donor);
	w.donor = 1500;
	seen = live(&w, NEAR, 1000);
	ok(seen.donor > 250, "... and the quick one still is (%d times)", seen.donor);
}

/* Memory is plenty again: what only donors have gets into the page cache. */
static void
test_filling(void)
{
	World		w = {.cached = 2 * US,.disk = 300 * US,.donor = 20 * US};
	Seen		seen;

	start();
	start_process();
	(void) settle(&w, FAR);
	rbp_choice_set_cache_keeps(true);
	w.donor = 4 * US;
	(void) settle(&w, NEAR);
	seen = live(&w, NEAR, ROUNDS);
	ok(seen.disk * w.disk < seen.ns / 100, "not if donors are nearly as fast as the page cache (%d times)", seen.disk);
	w.donor = 20 * US;
	seen = live(&w, FAR, 20 * ROUNDS);
	ok(seen.disk > 20 * ROUNDS / 500, "the page cache keeps its pages: the disk is read, too (%d times)", seen.disk);
	(void) settle(&w, FAR);
	seen = live(&w, FAR, 20 * ROUNDS);
	ok(seen.disk * w.disk > seen.ns / 50 && seen.disk * w.disk < seen.ns / 15, "... for a part of the time (%d times)", seen.disk);
	w.donor = 90 * US;
	w.disk = 100 * US;
	(void) settle(&w, FAR);
	STORE(shared->average[FIRST][RBP_COST_PAGE], 0);
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE, 1000, 1000 * 1400 * US);
	seen = live(&w, FAR, 5 * ROUNDS);
	ok(seen.disk < 5 * ROUNDS / 20, "... no more while its average falls (%d times)", seen.disk);
	w.disk = 300 * US;
	w.donor = 20 * US;
	w.per_thousand = 1000;
	seen = settle(&w, FAR);
	ok(seen.straight > ROUNDS * 9 / 10, "... until it has all: then the tier costs nothing (%d times)", seen.straight);
	rbp_choice_set_cache_keeps(false);
}

/* What others have found out, and other file systems */
static void
test_shared(void)
{
	World		fast = {.fs = FIRST,.cached = 2 * US,.disk = 15 * US,.donor = 40 * US};
	World		slow = {.fs = SECOND,.cached = 2 * US,.disk = 400 * US,.donor = 40 * US};
	Seen		seen;

	start();
	start_process();
	is_u64((uint64_t) rbp_choice_file_system(77), FIRST, "a file system");
	is_u64((uint64_t) rbp_choice_file_system(0), SECOND, "another one");
	is_u64((uint64_t) rbp_choice_file_system(77), FIRST, "the first one again");
	for (uint64_t i = 100; i < 200; i++)
		(void) rbp_choice_file_system(i);
	is_u64((uint64_t) rbp_choice_file_system(1000), RBP_FILE_SYSTEMS - 1, "the last number is for all others");

	for (int i = 0; i < 100; i++)
	{
		(void) live(&fast, FAR, ROUNDS / 10);
		(void) live(&slow, FAR, ROUNDS / 10);
	}
	seen = live(&fast, FAR, ROUNDS);
	ok(seen.disk > ROUNDS * 98 / 100, "a fast disk is read (%d times)", seen.disk);
	seen = live(&slow, FAR, ROUNDS);
	ok(seen.donor > ROUNDS * 98 / 100, "a slow one is not, in the same process (%d times from donors)", seen.donor);
	for (int i = 0; i < 10; i++)
	{
		start_process();
		seen = live(&fast, FAR, 10);
		ok(seen.disk >= 9 || i > 0, "a new process begins with what others know (%d reads of the disk)", seen.disk);
		start_process();
		seen = live(&slow, FAR, 10);
		ok(seen.donor >= 2, "... of each file system (%d from donors)", seen.donor);
	}

	rbp_choice_shmem_open(&memory, true);
	start_process();
	ok(live(&fast, FAR, 10).disk >= 9, "and so does one after a crash");
	start();
	ok(!rbp_cost_known(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE), "a start of the server knows nothing");
}

/* A disk that stalls is as slow as it is over time. */
static void
test_bursts(void)
{
	World		w = {.cached = 2 * US,.disk = 25 * US,.donor = 40 * US,.stall_every = 300,.stall = 92 * MS};
	Seen		seen;

	start();
	start_process();
	(void) settle(&w, FAR);
	seen = live(&w, FAR, 100 * ROUNDS);
	ok(seen.ns < 105 * ROUNDS * w.donor, "a disk that stalls now and then is not preferred for long (%d of %d reads, %.2f times the donor's time)",
	   seen.disk, 100 * ROUNDS, (double) seen.ns / (double) (100 * ROUNDS * w.donor));
}

/* On a busy machine a read waits for a processor now and then, 1,000 times as long. */
static void
test_busy(void)
{
	World		w = {.disk = 30 * US};
	int			donor = 0;
	Seen		seen;

	start();
	start_process();
	for (int i = 0; i < 100; i++)
	{
		w.donor = 5 * US;
		donor += live(&w, NEAR, 999).donor;
		w.donor = 5 * MS;
		donor += live(&w, NEAR, 1).donor;
	}
	ok(donor > 98000, "donors are read all the same (%d of 100000 reads)", donor);
	donor = 0;

	/* what is not used is tried by all at once */
	start();
	start_process();
	w = (World)
	{
		.disk = 30 * US,.donor = 200 * US
	};
	(void) settle(&w, FAR);
	for (int i = 0; i < 2000; i++)
		rbp_cost_add(FIRST, FAR, RBP_COST_PAGE, 1, 200 * US);
	now += 5000 * MS;
	STORE(shared->trial_at[FIRST][RBP_WORK_PAGE], 0);
	ok(rbp_choose_page(FIRST, FAR, false, now) == RBP_SOURCE_TRIAL, "a trial of donors");
	for (int i = 0; i < 7; i++)
		donor += rbp_choose_page(FIRST, FAR, false, now + 1000 * MS) == RBP_SOURCE_TRIAL;
	ok(donor == 7 && rbp_choose_page(FIRST, FAR, false, now + 1000 * MS) == RBP_SOURCE_FILE, "of eight pages, if that takes longer");
	start_process();
	ok(rbp_choose_page(FIRST, FAR, false, now + 19 * MS) == RBP_SOURCE_TRIAL, "another process takes part");
	ok(rbp_choose_page(FIRST, FAR, false, now + 21 * MS) == RBP_SOURCE_FILE, "until it is over");
	for (int i = 0; i < 300; i++)
		rbp_cost_add(FIRST, FAR, RBP_COST_PAGE, 1, 5 * US);
	now += 21 * MS;
	seen = live(&w, FAR, 10);
	ok(seen.donor == 10, "what it has told counts more than what was known before");

	/* a read of what is tried takes longer than a trial */
	start();
	start_process();
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE, 1000, 1000 * 30 * US);
	rbp_cost_add(FIRST, FAR, RBP_COST_PAGE, 100, 100 * 100 * MS);
	(void) rbp_choose_page(FIRST, FAR, false, now);
	start_process();
	STORE(shared->trial_at[FIRST][RBP_WORK_PAGE], 0);
	ok(rbp_choose_page(FIRST, FAR, false, now + 19000 * MS) == RBP_SOURCE_FILE, "the next trial is the later");
	ok(rbp_choose_page(FIRST, FAR, false, now + 21000 * MS) == RBP_SOURCE_TRIAL, "200 times as long");
}

static void
test_capture(void)
{
	World		w = {.cached = 2 * US,.disk = 100 * US,.donor = 40 * US,.per_thousand = 1000};
	int			kept = 0;
	Seen		seen;

	start();
	start_process();
	for (int i = 0; i < ROUNDS; i++)
	{
		rbp_cost_add(FIRST, FAR, RBP_COST_PAGE, 1, w.donor);
		kept += rbp_worth_capturing(FIRST, true);
	}
	STORE(shared->transport, FAR);
	ok(kept > 0 && kept <= ROUNDS / 8, "of what is only written few pages are captured (%d)", kept);
	seen = settle(&w, RBP_NO_TRANSPORT);
	is_u64((uint64_t) seen.donor, 0, "what no donor has comes from the file");
	ok(seen.straight > ROUNDS * 9 / 10, "... straight, if all is cached (%d times)", seen.straight);

	w.per_thousand = 800;
	seen = settle(&w, RBP_NO_TRANSPORT);
	ok(seen.asked > ROUNDS * 9 / 10, "a page cache that loses some is asked (%d times)", seen.asked);
	ok(seen.kept > ROUNDS / 10, "... and more is captured than else (%d)", seen.kept);
	ok(seen.kept * CAPTURE_COST < seen.ns / 10, "... but for a small part of the time");
	w.disk = 2000 * US;
	seen = settle(&w, RBP_NO_TRANSPORT);
	is_u64((uint64_t) seen.kept, ROUNDS, "a slow disk: all are captured, be they cached or not");
	w.per_thousand = 0;
	w.disk = 400 * US;
	seen = settle(&w, RBP_NO_TRANSPORT);
	ok(seen.kept > ROUNDS * 98 / 100, "nothing is cached: all are captured (%d)", seen.kept);
	w.disk = 100 * US;
	seen = settle(&w, RBP_NO_TRANSPORT);
	ok(seen.kept > ROUNDS / 4 && seen.kept < ROUNDS / 2, "... but not as many if the disk is quicker (%d)", seen.kept);
	kept = 0;
	for (int i = 0; i < ROUNDS; i++)
		kept += rbp_worth_capturing(FIRST, true);
	ok(kept < ROUNDS / 8, "nor many, read or written, that have not cost a read of the disk (%d)", kept);
	w.disk = 30 * US;
	seen = settle(&w, RBP_NO_TRANSPORT);
	ok(seen.kept <= ROUNDS / 8, "few are captured if the disk is as quick as donors (%d)", seen.kept);
}

/* Many processes read a few pages each; some reads take long. */
static void
test_short_processes(void)
{
	start();
	for (int i = 0; i < 2000; i++)
	{
		start_process();
		for (int page = 0; page < 5; page++)
			rbp_cost_add(FIRST, NEAR, RBP_COST_PAGE, 1, (i * 5 + page) % 101 == 0 ? 300 * US : 5 * US);
	}
	ok(rbp_cost(FIRST, NEAR, RBP_COST_PAGE) < 20 * US, "short processes tell the mean (%d us)",
	   (int) (rbp_cost(FIRST, NEAR, RBP_COST_PAGE) / US));
	ok(LOAD(shared->spent[FIRST][RBP_WORK_PAGE]) > 2000 * 3 * 5 * US, "and spend time");
	start();
	rbp_guc_read_from = RBP_READ_DONOR;
	rbp_cost_add(FIRST, NEAR, RBP_COST_PAGE, 1000, 1000 * 5 * US);
	is_u64((uint64_t) LOAD(shared->spent[FIRST][RBP_WORK_PAGE]), 0, "but none of it is for trials if they do not choose");
}

/* The first page from a source that was idle takes long: what does it cost in use? */
static void
test_idle_sources(void)
{
	start();
	for (int i = 0; i < 50; i++)
	{
		start_process();
		for (int page = 0; page < 40; page++)
			rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE, 1, (page == 0 ? 180 : 60) * US);
		for (int page = 0; page < 8; page++)
			rbp_cost_add(FIRST, FAR, RBP_COST_PAGE, 1, (page == 0 ? 400 : 25) * US);
	}
	ok(rbp_cost(FIRST, FAR, RBP_COST_PAGE) < 30 * US, "trials tell what donors cost in use (%d us)",
	   (int) (rbp_cost(FIRST, FAR, RBP_COST_PAGE) / US));
	ok(!rbp_choose_file(FIRST, FAR, RBP_WORK_PAGE, false), "so donors are chosen");
	for (int i = 0; i < 5000; i++)
	{
		rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE, 1, 600 * US);
		rbp_cost_add(FIRST, FAR, RBP_COST_PAGE, 1, 250 * US);
	}
	ok(rbp_cost(FIRST, FAR, RBP_COST_PAGE) > 200 * US && rbp_cost(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE) > 500 * US,
	   "sources that take turns are not idle");
	for (int i = 0; i < 200; i++)
	{
		for (int page = 0; page < 10; page++)
			rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE, 1, 600 * US);
		rbp_cost_add(FIRST, FAR, RBP_COST_PAGE, 1, 3000 * US);
	}
	ok(rbp_choose_file(FIRST, FAR, RBP_WORK_PAGE, false), "donors that are slow, and read now and then, are found out");
}

/* What tells nothing of what runs cost */
static void
test_costs_of_runs(void)
{
	int64_t		before;

	start();
	start_process();
	for (int i = 0; i < 10; i++)
		rbp_cost_add(FIRST, FAR, RBP_COST_RUN, 500, 500 * 2 * US);
	ok(rbp_cost(FIRST, FAR, RBP_COST_RUN) == 2 * US, "what is read first of all counts");
	rbp_cost_add(FIRST, FAR, RBP_COST_RUN, 500, 500 * 20 * US);
	ok(rbp_cost(FIRST, FAR, RBP_COST_RUN) < 5 * US, "a window that waits for a processor does not make donors seem slow");
	for (int i = 0; i < 20; i++)
		rbp_cost_add(FIRST, FAR, RBP_COST_RUN, 500, 500 * 2 * US);
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN, 4096, 4096 * 5 * US);

	/* a trial of donors, and then more of the file */
	before = rbp_cost(FIRST, FAR, RBP_COST_RUN);
	for (int i = 0; i < 4; i++)
		rbp_cost_add(FIRST, FAR, RBP_COST_RUN, 500, 500 * 8 * US);
	ok(rbp_cost(FIRST, FAR, RBP_COST_RUN) == before, "the start of a run does not count");
	rbp_cost_add(FIRST, FAR, RBP_COST_RUN, 500, 500 * 8 * US);
	ok(rbp_cost(FIRST, FAR, RBP_COST_RUN) > before, "what comes behind it does");
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN, 500, 500 * 30 * US);
	ok(rbp_cost(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN) == 5 * US, "nor does that of the file");
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN, 500, 500 * 30 * US);
	ok(rbp_cost(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN) > 5 * US, "unless it takes long");

	/* a process that reads from the file until it has connected */
	before = rbp_cost(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN);
	start_process();
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN, 300, 300 * 20 * US);
	ok(rbp_cost(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN) == before, "the first pages of a new process do not count");

	/* rows that are always short */
	start();
	start_process();
	rbp_cost_add(FIRST, FAR, RBP_COST_RUN, 500, 500 * 2 * US);
	for (int i = 0; i < 3; i++)
	{
		rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN, 500, 500 * 5 * US);
		rbp_cost_add(FIRST, FAR, RBP_COST_RUN, 500, 500 * 4 * US);
	}
	ok(rbp_cost(FIRST, FAR, RBP_COST_RUN) > 2 * US, "rows that are always short count");
}

/* Is it worth to look at each page of a run? */
static void
test_captures_of_runs(void)
{
	start();
	start_process();
	rbp_cost_add(FIRST, NEAR, RBP_COST_RUN, 1000, 1000 * 2 * US);
	(void) rbp_choose_page(FIRST, NEAR, false, now);
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN, 1000, 1000 * 5 * US);
	ok(!rbp_worth_capturing_run(FIRST), "hardly any page of a fast run can be captured");
	rbp_cost_add(SECOND, RBP_NO_TRANSPORT, RBP_COST_RUN, 1000, 1000 * 300 * US);
	ok(rbp_worth_capturing_run(SECOND), "those of a slow run can");
	for (int i = 0; i < 10; i++)
		rbp_cost_add(FIRST, NEAR, RBP_COST_RUN, 9000, 9000 * 900 * US);
	ok(!rbp_worth_capturing_run(SECOND), "but not if donors are slower");
}

/* What is read straight, and for how long */
static void
test_stretches(void)
{
	static const int lengths[] = {64, 128, 256, 401, 401};
	RbpStraight straight = {0};
	int			timed = 0;

	start();
	start_process();
	rbp_cost_add(FIRST, NEAR, RBP_COST_RUN, 1000, 1000 * 2 * US);
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN, 1000, 1000 * 5 * US);
	for (int i = 0; i < 5; i++)
	{
		rbp_straight_begin(&straight, FIRST, RBP_WORK_RUN, 64, false);
		is_u64((uint64_t) straight.left, (uint64_t) lengths[i], "donors are faster: stretch %d", i);
		timed += straight.timed;
	}
	is_u64((uint64_t) timed, 2, "every fourth is timed");
	straight.length = 0;
	rbp_straight_begin(&straight, FIRST, RBP_WORK_RUN, 64, false);
	is_u64((uint64_t) straight.left, 64, "what does not go on with another is short");
	straight.next = 100;
	ok(rbp_straight_left(&straight, 100) && rbp_straight_left(&straight, 150), "a run goes on, with gaps");
	ok(!rbp_straight_left(&straight, 99) && !rbp_straight_left(&straight, 100000), "other reads are not part of it");
	rbp_choice_asked(FIRST, 1, 1);
	ok(rbp_straight_left(&straight, 100), "a page is found in the page cache");
	rbp_choice_asked(SECOND, 1, 0);
	ok(!rbp_straight_left(&straight, 100), "one is missing: look again");
	rbp_straight_begin(&straight, FIRST, RBP_WORK_RUN, 64, true);
	is_u64((uint64_t) straight.left, 401, "what is cached");
	ok(!straight.timed, "is not timed");
	straight.read = 401;
	rbp_straight_end(&straight, FIRST);
	is_u64((uint64_t) LOAD(shared->spent[FIRST][RBP_WORK_RUN]), 7000 * US, "nor is time spent");
}

static void
test_settings(void)
{
	start();
	start_process();
	rbp_straight_begin(&straights[FIRST], FIRST, RBP_WORK_PAGE, 1, true);
	ok(rbp_straight_left(&straights[FIRST], 0), "auto: straight");
	rbp_guc_read_from = RBP_READ_DONOR;
	ok(rbp_choose_page(FIRST, FAR, true, now) == RBP_SOURCE_DONOR && !rbp_choose_file(FIRST, FAR, RBP_WORK_RUN, true) &&
	   !rbp_straight_left(&straights[FIRST], 0), "donor: from donors");
	rbp_guc_read_from = RBP_READ_FILE;
	ok(rbp_straight_left(&straights[FIRST], 0), "file: straight from there");
	rbp_guc_read_from = RBP_READ_CACHE;
	ok(rbp_choose_page(FIRST, FAR, true, now) == RBP_SOURCE_ASK && rbp_choose_file(FIRST, FAR, RBP_WORK_PAGE, true) &&
	   !rbp_choose_file(FIRST, FAR, RBP_WORK_PAGE, false), "cache: the page cache, then donors");
	ok(rbp_choose_page(FIRST, FAR, false, now) == RBP_SOURCE_DONOR, "cache: donors if it cannot be asked");
	rbp_guc_read_from = RBP_READ_AUTO;
	is_u64((uint64_t) rbp_choice_saved(FIRST, RBP_WORK_PAGE, 1, 0, 10 * US), 0, "what is saved is not known yet");
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE, 1000, 1000 * 50 * US);
	is_u64((uint64_t) rbp_choice_saved(FIRST, RBP_WORK_PAGE, 2, 0, 10 * US), 90 * US, "two reads of the disk, less what was taken instead");
	is_u64((uint64_t) -rbp_choice_saved(FIRST, RBP_WORK_PAGE, 1, 0, 70 * US), 20 * US, "or lost, if that took longer");
	is_u64((uint64_t) rbp_choice_saved(FIRST, RBP_WORK_PAGE, 0, 2, 0), 50 * US, "what is not known is partly cached");
	is_u64((uint64_t) rbp_choice_saved(FIRST, RBP_WORK_PAGE, 0, 1, 0), 25 * US, "... also a single page");
}

/* Values at the edges of what is computed with. */
static void
test_extremes(void)
{
	start();
	start_process();
	for (int i = 0; i < ROUNDS; i++)
	{
		rbp_choice_asked(FIRST, 32, 0);
		rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_TEMP_READ, 1, 1);
		rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE, 1, INT64_MAX);
		rbp_cost_add(FIRST, NEAR, RBP_COST_PAGE, 1, -5);
	}
	ok(rbp_cost(FIRST, RBP_NO_TRANSPORT, RBP_COST_TEMP_READ) > 0 && rbp_cost(FIRST, NEAR, RBP_COST_PAGE) > 0 &&
	   rbp_cost(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE) == MEASURED_MAX_NS, "averages neither vanish nor wrap");
	is_u64((uint64_t) share_missing(FIRST), ALL, "nothing is cached");
	for (int i = 0; i < ROUNDS; i++)
		rbp_choice_asked(FIRST, 32, 32);
	is_u64((uint64_t) share_missing(FIRST), 0, "all is");
}

/*
 * Pages that are cached and pages that are not, in turns, as an index scan reads them,
 * after a scan of what is cached: those that are not are soon read from a donor.
 */
static void
test_in_turns(void)
{
	for (int phase = 0; phase < 2; phase++)
	{
		int			from_disk = 0;

		start();
		start_process();
		rbp_cost_add(FIRST, NEAR, RBP_COST_PAGE, 1000, 1000 * 5 * US);
		rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE, 1000, 1000 * 100 * US);
		for (int i = 0; i < ROUNDS; i++)
			rbp_choice_asked(FIRST, 1, 1);
		for (int i = 0; i < 10000; i++)
		{
			bool		cached = i % 2 == phase;
			RbpSource	source = RBP_SOURCE_FILE;

			if (rbp_straight_left(&straights[FIRST], 0))
			{
				straights[FIRST].left--;
				straights[FIRST].read++;
			}
			else
			{
				source = rbp_choose_page(FIRST, NEAR, true, now);
				if (source == RBP_SOURCE_ASK)
					rbp_choice_asked(FIRST, 1, cached);
				if (source == RBP_SOURCE_FILE)
					rbp_straight_begin(&straights[FIRST], FIRST, RBP_WORK_PAGE, 1, false);
			}
			from_disk += source == RBP_SOURCE_FILE && !cached && i > 5000;
		}
		is_u64((uint64_t) from_disk, 0, "phase %d: later, no page is read from the disk unasked", phase);
	}
}

/*
 * ---- runs -------------------------------------------------------------------------
 */

/* Read windows for so long; how many of 100 came from the file. */
static int
run(int64_t for_ns, RbpRunFacts f, int64_t donor, int64_t disk, int64_t cached)
{
	int64_t		until = now + for_ns;
	int			n = 0;
	int			files = 0;

	for (; now < until; n++)
	{
		bool		file = rbp_choice_trying(f.fs, RBP_SOURCE_TRIAL, now) || rbp_choose_run(&f, now) != RBP_SOURCE_DONOR;
		int64_t		ns = f.pages * (file ? (f.cached ? cached : disk) : donor);

		files += file;
		now += ns;
		if (!(file && f.cached))
			rbp_cost_add(f.fs, file ? RBP_NO_TRANSPORT : f.transport, RBP_COST_RUN, f.pages, ns);
	}
	return files * 100 / n;
}

static void
test_runs(void)
{
	RbpRunFacts f = {.fs = FIRST,.transport = FAR,.pages = 64,.remote = 64};
	RbpRunFacts cached = f;
	RbpRunFacts half = f;
	int			files;

	cached.cached = true;
	half.remote = 32;
	half.holes = 4;
	start();
	start_process();
	now = 100000 * MS;
	(void) run(1000 * MS, f, 4 * US, 8 * US, US);
	ok(rbp_cost_known(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN), "the file was tried");
	files = run(60000 * MS, f, 4 * US, 8 * US, US);
	ok(files <= 1, "donors are faster (%d %% from the file, to see)", files);
	files = run(1000 * MS, cached, 4 * US, 8 * US, US);
	is_u64((uint64_t) files, 100, "what is cached is read from the page cache");
	files = run(10000 * MS, f, 20 * US, 8 * US, US);
	ok(files >= 98, "a disk that is faster is read (%d %%)", files);
	files = run(100 * MS, f, 20 * US, 100 * US, US);
	ok(files <= 70, "one that becomes slow is left at once (%d %%)", files);
	files = run(60000 * MS, f, 20 * US, 100 * US, US);
	ok(files <= 1, "... and for good (%d %%)", files);
	(void) run(120000 * MS, f, 20 * US, 8 * US, US);
	files = run(10000 * MS, f, 20 * US, 8 * US, US);
	ok(files >= 98, "a disk that becomes fast is found (%d %%)", files);

	/* the machine is slow for a moment, and donors were in use */
	start();
	start_process();
	(void) run(60000 * MS, f, 4 * US, 6 * US, US);
	(void) run(100 * MS, f, 30 * US, 6 * US, US);
	ok(rbp_choose_disk(FIRST, RBP_WORK_RUN), "a slow moment makes donors seem slow");
	files = run(1000 * MS, f, 4 * US, 6 * US, US);
	ok(files <= 40, "but not for long (%d %%)", files);
	(void) run(20000 * MS, f, 4 * US, 6 * US, US);
	files = run(60000 * MS, f, 4 * US, 6 * US, US);
	ok(files <= 1, "and trials are as rare as before (%d %%)", files);

	/* the trial is for all */
	start();
	start_process();
	ok(rbp_choose_run(&f, now) == RBP_SOURCE_TRIAL && rbp_choice_trying(FIRST, RBP_SOURCE_TRIAL, now), "a trial");
	start_process();
	ok(rbp_choice_trying(FIRST, RBP_SOURCE_TRIAL, now + 39 * MS), "another process takes part");
	ok(!rbp_choice_trying(FIRST, RBP_SOURCE_TRIAL, now + 41 * MS), "until it is over");
	ok(!rbp_choice_trying(SECOND, RBP_SOURCE_TRIAL, now), "on another file system none does");
	rbp_guc_read_from = RBP_READ_DONOR;
	ok(!rbp_choice_trying(FIRST, RBP_SOURCE_TRIAL, now) && rbp_choose_run(&f, now) == RBP_SOURCE_DONOR, "nor one that reads from donors");
	rbp_guc_read_from = RBP_READ_AUTO;

	/* that of donors, too, after 200 times as long */
	start();
	start_process();
	rbp_cost_add(FIRST, FAR, RBP_COST_RUN, 1000, 1000 * 8 * US);
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN, 1000, 1000 * 4 * US);
	ok(rbp_choose_run(&f, now) == RBP_SOURCE_DONOR && rbp_choice_trying(FIRST, RBP_SOURCE_DONOR, now), "a trial of donors");
	start_process();
	ok(rbp_choose_run(&f, now + 39 * MS) == RBP_SOURCE_DONOR, "another process takes part");
	now += 41 * MS;
	ok(rbp_choose_run(&f, now) == RBP_SOURCE_FILE, "until it is over");
	files = run(8000 * MS, f, 8 * US, 4 * US, US);
	is_u64((uint64_t) files, 100, "for a while there is no other");
	files = run(8000 * MS, f, 8 * US, 4 * US, US);
	ok(files >= 98 && files < 100, "then there is (%d %%)", files);

	/* others have read at the same time, and do no more */
	start();
	start_process();
	rbp_cost_add(FIRST, FAR, RBP_COST_RUN, 4096, 4096 * 5 * US);
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN, 4096, 4096 * 15 * US);
	ok(rbp_choose_run(&f, now) == RBP_SOURCE_TRIAL, "a trial while donors take long");
	now += 1000 * MS;
	for (int i = 0; i < 40; i++)
		rbp_cost_add(FIRST, FAR, RBP_COST_RUN, 500, 500 * 4 * US);
	STORE(shared->trial_at[FIRST][RBP_WORK_RUN], LOAD(shared->spent[FIRST][RBP_WORK_RUN]) + 179 * 40 * MS);
	ok(rbp_choose_run(&f, now) == RBP_SOURCE_DONOR, "if they take a little less, no trial is due");
	for (int i = 0; i < 40; i++)
		rbp_cost_add(FIRST, FAR, RBP_COST_RUN, 500, 500 * 2 * US);
	STORE(shared->trial_at[FIRST][RBP_WORK_RUN], LOAD(shared->spent[FIRST][RBP_WORK_RUN]) + 181 * 40 * MS);
	ok(rbp_choose_run(&f, now) == RBP_SOURCE_DONOR, "if they take much less, one is due soon");
	STORE(shared->trial_at[FIRST][RBP_WORK_RUN], LOAD(shared->spent[FIRST][RBP_WORK_RUN]) + 179 * 40 * MS);
	ok(rbp_choose_run(&f, now) == RBP_SOURCE_TRIAL, "after a twentieth of the time");

	/* donors of which nothing is known are tried at once */
	start();
	start_process();
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN, 1000, 1000 * 2 * US);
	STORE(shared->trial_at[FIRST][RBP_WORK_RUN], INT64_MAX);
	ok(rbp_choose_run(&f, now) == RBP_SOURCE_DONOR && rbp_choice_trying(FIRST, RBP_SOURCE_DONOR, now), "unknown donors are tried at once");
	now += 41 * MS;
	ok(rbp_choose_run(&f, now) == RBP_SOURCE_FILE, "but not all the time");

	rbp_cost_add(FIRST, FAR, RBP_COST_RUN, 8, 8 * 900 * US);
	now += 4000 * MS;
	ok(rbp_choose_run(&f, now) == RBP_SOURCE_DONOR, "nor for good, when only few pages are known");

	/* the kernel reads ahead while a process works */
	start();
	start_process();
	rbp_cost_add(FIRST, FAR, RBP_COST_RUN, 1000, 1000 * 3 * US);
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN, 1000, 1000 * 5 * US);
	rbp_choice_pace(FIRST, 1000, 1000 * US, true);
	STORE(shared->trial_at[FIRST][RBP_WORK_RUN], INT64_MAX);
	STORE(shared->trial_part[FIRST][RBP_WORK_RUN], -1);
	ok(rbp_choose_run(&f, now) == RBP_SOURCE_DONOR, "donors are faster than the disk");
	start_process();
	rbp_choice_pace(FIRST, 64, 64 * 6 * US, false);
	ok(rbp_choose_run(&f, now) == RBP_SOURCE_FILE, "but who takes long between its reads does not wait for the disk");
	ok(rbp_choice_saved(FIRST, RBP_WORK_RUN, 2, 0, 6 * US) < 0, "so donors save it no time");
	start_process();
	rbp_choice_pace(FIRST, 64, 64 * 2 * US, false);
	ok(rbp_choose_run(&f, now) == RBP_SOURCE_DONOR, "who takes a little longer does");

	/* a client that pauses, and then trials, of some 20,000 pages */
	start();
	start_process();
	rbp_cost_add(FIRST, FAR, RBP_COST_RUN, 1000, 1000 * 7 * US);
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN, 1000, 1000 * 5 * US);
	STORE(shared->trial_at[FIRST][RBP_WORK_RUN], INT64_MAX);
	STORE(shared->trial_part[FIRST][RBP_WORK_RUN], 1);
	rbp_choice_pace(FIRST, 600, 10000 * MS, true);
	start_process();
	for (int i = 0; i < 300; i++)
		rbp_choice_pace(FIRST, 64, 64 * US, true);
	ok(rbp_choose_run(&f, now) == RBP_SOURCE_FILE, "a client that pauses does not make the disk seem slow to others");

	/* holes */
	start();
	start_process();
	rbp_cost_add(FIRST, FAR, RBP_COST_RUN, 1000, 1000 * 4 * US);
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN, 1000, 1000 * 6 * US);
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE, 1000, 1000 * 100 * US);
	STORE(shared->trial_at[FIRST][RBP_WORK_RUN], INT64_MAX);
	ok(rbp_choose_run(&f, now) == RBP_SOURCE_DONOR, "donors have all of a window");
	ok(rbp_choose_run(&half, now) == RBP_SOURCE_FILE, "one with holes costs a wait for the disk for each");
	half.holes = 1;
	half.remote = 60;
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN, 4096, 4096 * 50 * US);
	ok(rbp_choose_run(&half, now) == RBP_SOURCE_DONOR, "which pays if the file takes longer");
}

/*
 * A process is not connected.  After how many of so many reads, of n pages each, does
 * it connect?  -1: it does not
 */
static int
connects_after(int transport, RbpWork work, int n, int reads)
{
	int64_t		lost = 0;

	for (int i = 0; i < reads; i++)
		if (rbp_choose_connection(FIRST, transport, work, n, &lost))
			return i;
	return -1;
}

/* What is known: a page from the file, from donors over TCP, and connecting there */
static void
know(int64_t file, int64_t donor, int64_t connecting)
{
	start();
	start_process();
	for (int i = 0; i < 200; i++)
	{
		rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE, 100, 100 * file);
		rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_RUN, 100, 100 * file);
		rbp_cost_add(FIRST, 1, RBP_COST_PAGE, 100, 100 * donor);
		rbp_cost_add(FIRST, 1, RBP_COST_RUN, 100, 100 * donor);
		rbp_choice_connected(1, connecting);
	}
}

static void
test_connections(void)
{
	int64_t		lost = 0;

	start();
	start_process();
	ok(connects_after(0, RBP_WORK_PAGE, 1, 10) > 0 && connects_after(1, RBP_WORK_PAGE, 1, 10) > connects_after(0, RBP_WORK_PAGE, 1, 10),
	   "while nothing is known, a process connects after some pages, later over TCP");
	is_u64((uint64_t) connects_after(2, RBP_WORK_PAGE, 1, 1000), 49, "over RDMA, later still");
	know(20 * US, 20 * US, 400 * US);
	is_u64((uint64_t) connects_after(1, RBP_WORK_PAGE, 1, 10), (uint64_t) -1, "a session that reads ten pages of a file as quick as donors does not connect");
	ok(connects_after(1, RBP_WORK_PAGE, 1, 10000) > 1000, "one that reads on does in the end, for a part of its time");
	know(334 * US, 20 * US, 400 * US);
	is_u64((uint64_t) connects_after(1, RBP_WORK_PAGE, 1, 10), 1, "on a disk of 3,000 reads a second the second read connects");
	is_u64((uint64_t) connects_after(1, RBP_WORK_RUN, 64, 10), 0, "the first window of a run does");
	know(12 * US, 6 * US, 400 * US);
	is_u64((uint64_t) connects_after(1, RBP_WORK_RUN, 64, 10), 1, "where it is not worth that, the second");

	/* while nothing is known of donors, they are taken for fast */
	start();
	start_process();
	rbp_cost_add(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE, 1, 5 * US);
	is_u64((uint64_t) connects_after(1, RBP_WORK_PAGE, 1, 1000), 79, "somebody finds out what unknown donors take");

	/* once it is worth it, it stays so, whatever others find out */
	know(1000 * US, 0, 900 * US);
	ok(rbp_choose_connection(FIRST, 1, RBP_WORK_PAGE, 1, &lost), "a process connects");
	for (int i = 0; i < 1000; i++)
		rbp_choice_connected(1, 100 * MS + 500 * US);
	ok(rbp_choose_connection(FIRST, 1, RBP_WORK_PAGE, 0, &lost), "it may go on when that has become more costly");
	lost = 0;
	is_u64((uint64_t) connects_after(1, RBP_WORK_PAGE, 1, 200), 100, "which is known to others");
	rbp_choice_connected(1, 60 * 1000 * MS);
	ok(connects_after(1, RBP_WORK_PAGE, 1, 200) >= 0, "one that was stopped meanwhile says little");

	/* donors that seemed slow once */
	know(100 * US, 150 * US, 400 * US);
	now += 10000 * MS;
	lost = 0;
	ok(rbp_choose_page(FIRST, 1, true, now) == RBP_SOURCE_TRIAL &&
	   rbp_choose_connection(FIRST, 1, RBP_WORK_PAGE, 1, &lost), "who begins a trial of donors connects for it");
	start_process();
	lost = 0;
	ok(rbp_choose_page(FIRST, 1, true, now) == RBP_SOURCE_TRIAL &&
	   !rbp_choose_connection(FIRST, 1, RBP_WORK_PAGE, 1, &lost), "another process, which only takes part, does not");
	know(150 * US, 100 * US, 400 * US);
	now += 10000 * MS;
	lost = 0;
	ok(rbp_choose_page(FIRST, 1, true, now) == RBP_SOURCE_TRIAL &&
	   !rbp_choose_connection(FIRST, 1, RBP_WORK_PAGE, 1, &lost), "nor does who begins a trial of the disk");

	/* settings */
	rbp_guc_read_from = RBP_READ_DONOR;
	ok(rbp_choose_connection(FIRST, 1, RBP_WORK_PAGE, 1, &lost), "who is to read from donors connects at once");
	rbp_guc_read_from = RBP_READ_AUTO;
}

/*
 * Processes that read some pages and end, in many worlds: none loses more than twice
 * what it would if it had known how many: then it would connect at once, or never.
 */
static void
test_loss(void)
{
	uint64_t	seed = 42;
	int			worse = 0;
	int			connected = 0;
	int			stayed = 0;

	for (int round = 0; round < ROUNDS; round++)
	{
		int64_t		file = (int64_t) (next_random(&seed) % 2000) * US / 4 + US;
		int64_t		donor = file * (int64_t) (next_random(&seed) % 100 + 1) / 100;
		int64_t		connecting = (int64_t) (next_random(&seed) % 10000 + 100) * US;
		int			n = (int) (next_random(&seed) % 400);
		int			at;
		int64_t		paid;
		int64_t		best;

		know(file, donor, connecting);
		/* what was measured, in this world, is what it takes */
		file = rbp_cost(FIRST, RBP_NO_TRANSPORT, RBP_COST_PAGE);
		donor = rbp_cost(FIRST, 1, RBP_COST_PAGE);
		connecting = connect_cost(1);
		at = connects_after(1, RBP_WORK_PAGE, 1, n);
		paid = at < 0 ? n * (file - donor) : at * (file - donor) + connecting;
		best = MIN(n * (file - donor), connecting);
		/* where donors are hardly faster, a part of the file's time is lost */
		worse += paid > MAX(2 * best, best + n * file / LOST_PART);
		connected += at >= 0;
		stayed += at < 0;
	}
	ok(connected > ROUNDS / 10 && stayed > ROUNDS / 10, "some processes connect, and some do not");
	is_u64((uint64_t) worse, 0, "no process loses more than twice what it must");
}

int
main(void)
{
	test_pages();
	test_shared();
	test_filling();
	test_bursts();
	test_busy();
	test_capture();
	test_short_processes();
	test_idle_sources();
	test_costs_of_runs();
	test_captures_of_runs();
	test_stretches();
	test_settings();
	test_extremes();
	test_in_turns();
	test_runs();
	test_connections();
	test_loss();
	return done_testing();
}
