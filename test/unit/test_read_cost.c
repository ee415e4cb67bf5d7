/*-------------------------------------------------------------------------
 *
 * test_read_cost.c
 *	  Where reads are to come from, by what they have cost.
 *
 *-------------------------------------------------------------------------
 */
#include "buffer/read_cost.h"

#include "tap.h"

#define US			INT64_C(1000)
#define MS			INT64_C(1000000)
#define ROUNDS		4000
#define CAPTURE		(10 * US)	/* what capturing a page takes, about */

enum
{
	NEAR,
	FAR
};

/* A world in which reads cost that, and of 1,000 pages so many are cached. */
typedef struct World
{
	int64_t		ask;
	int64_t		cached;
	int64_t		disk;
	int64_t		donor;
	int			per_thousand;
	bool		no_bypass;
	bool		keeps;
} World;

typedef struct Seen
{
	int			asked;
	int			donor;			/* reads from it */
	int			file;
	int			disk;			/* of these, not cached */
	int			kept;
	int64_t		ns;
} Seen;

static int64_t now;

static Seen
live(RbpReadCost *cost, const World *world, int way, int rounds)
{
	Seen		seen = {0};

	for (int i = 0; i < rounds; i++)
	{
		/* spread alike, and not in step with the samples */
		bool		cached = (i * 619) % 1000 < world->per_thousand;
		RbpSource	source = rbp_read_cost_choose(cost, way, !world->no_bypass, world->keeps);
		bool		file = source == RBP_SOURCE_FILE;
		int64_t		ns;

		now += 10 * US;
		if (source == RBP_SOURCE_ASK)
		{
			seen.asked++;
			seen.ns += world->ask;
			rbp_read_cost_asked(cost, 1, cached, world->ask);
			file = way == RBP_NO_TRANSPORT ||
				((cached || !world->no_bypass) && rbp_read_cost_prefer_file(cost, way, cached, world->keeps, 1, now));
		}
		if (file)
		{
			seen.file++;
			seen.disk += !cached;
			ns = cached ? world->cached : world->disk;
			if (source == RBP_SOURCE_ASK)
				rbp_read_cost_file(cost, 1, cached, ns);
		}
		else
		{
			seen.donor++;
			ns = world->donor;
			rbp_read_cost_donor(cost, way, 1, ns);
		}
		seen.ns += ns;
		/* one from a donor is in the tier */
		if (file)
			seen.kept += rbp_read_cost_worth_capturing(cost, cached);
	}
	return seen;
}

/* From a start; what the second half of the rounds brought. */
static Seen
settle(RbpReadCost *cost, const World *world, int way)
{
	(void) live(cost, world, way, ROUNDS);
	return live(cost, world, way, ROUNDS);
}

static void
test_sources(void)
{
	RbpReadCost cost;
	Seen		seen;
	World		world = {.ask = 250,.cached = 2 * US,.disk = 100 * US,.donor = 40 * US,.per_thousand = 1000};

	rbp_read_cost_init(&cost);
	seen = live(&cost, &world, FAR, 1);
	is_u64(seen.asked, 1, "a process that knows nothing asks");

	seen = settle(&cost, &world, FAR);
	ok(seen.donor <= 2, "all is cached, donor far: read from the file (%d times from the donor, to see)", seen.donor);
	ok(seen.asked < ROUNDS / 10, "... mostly without asking (%d times)", seen.asked);
	ok(seen.asked > 0, "... but now and then");
	ok(seen.kept > 0 && seen.kept < ROUNDS / 8, "... and captures now and then, asked as often (%d times)", seen.kept);

	world.per_thousand = 0;
	seen = settle(&cost, &world, FAR);
	ok(seen.donor > ROUNDS * 99 / 100, "nothing is cached any more: from the donor (%d times)", seen.donor);
	ok(seen.asked < ROUNDS / 10, "... mostly without asking (%d times)", seen.asked);

	world.per_thousand = 500;
	seen = settle(&cost, &world, FAR);
	ok(seen.asked > ROUNDS * 99 / 100, "half is: it asks (%d times)", seen.asked);
	ok(seen.disk <= 2, "... and does not go to disk, but to see what it takes (%d times)", seen.disk);

	/* nothing is cached, but there is room to */
	world.per_thousand = 0;
	world.keeps = true;
	seen = settle(&cost, &world, FAR);
	ok(seen.disk > ROUNDS / 4 && seen.disk < ROUNDS / 2, "the page cache has room: it is filled from the disk (%d times)", seen.disk);
	ok(seen.ns < 2 * ROUNDS * world.donor, "... for less than donors take");
	world.donor = 2 * US;
	seen = settle(&cost, &world, FAR);
	ok(seen.disk <= 2, "... but not if donors are as quick (%d times)", seen.disk);
	world.disk = 10 * MS;
	world.donor = 20 * US;
	rbp_read_cost_init(&cost);
	seen = live(&cost, &world, FAR, ROUNDS);
	ok(seen.disk <= 9, "... nor much from a disk that is slower by far (%d times)", seen.disk);
	world.disk = 100 * US;
	world.donor = 40 * US;
	world.no_bypass = true;
	seen = settle(&cost, &world, FAR);
	is_u64(seen.disk, 0, "... nor if the disk is not to be read instead");
	world.keeps = world.no_bypass = false;

	/* all is cached: nobody need be asked, but now and then */
	world.per_thousand = 1000;
	(void) settle(&cost, &world, FAR);
	ok(rbp_read_cost_fast_path(&cost, true) > 0, "all is cached: some pages straight from the file");
	rbp_read_cost_end_fast_path(&cost);
	ok(rbp_read_cost_choose(&cost, FAR, true, true) == RBP_SOURCE_ASK, "... and then it asks");
	world.per_thousand = 500;
	(void) settle(&cost, &world, FAR);
	is_u64((uint64_t) rbp_read_cost_fast_path(&cost, true), 0, "half is: none");

	/* the change is noticed soon */
	world.per_thousand = 1000;
	(void) settle(&cost, &world, FAR);
	world.per_thousand = 0;
	seen = live(&cost, &world, FAR, 200);
	ok(seen.disk < 40, "the page cache goes: few reads (%d) of the first 200 go to disk", seen.disk);
}

static void
test_near(void)
{
	RbpReadCost cost;
	Seen		seen;
	World		world = {.ask = 250,.cached = 2 * US,.disk = 100 * US,.donor = 1500,.per_thousand = 700};

	rbp_read_cost_init(&cost);
	seen = settle(&cost, &world, NEAR);
	ok(seen.donor > ROUNDS * 9 / 10, "a donor that is quicker than the page cache is read from (%d times)", seen.donor);

	/* each way has its own account */
	world.donor = 60 * US;
	seen = settle(&cost, &world, FAR);
	ok(seen.donor < ROUNDS * 4 / 10, "another that is slower is not (%d times)", seen.donor);
	world.donor = 1500;
	seen = live(&cost, &world, NEAR, 1000);
	ok(seen.donor > 900, "and the quick one still is (%d times)", seen.donor);

	/* what is cached but was taken to be slow is tried again */
	for (int i = 0; i < 100; i++)
		rbp_read_cost_file(&cost, 1, true, 500 * US);
	world.per_thousand = 700;
	world.donor = 60 * US;
	for (int i = 0; i < 200; i++)
	{
		now += 100 * MS;
		seen = live(&cost, &world, FAR, 100);
	}
	ok(seen.donor < 50, "a page cache that was slow once is used again (donors %d of 100)", seen.donor);

	/* a donor that becomes quick is noticed by samples */
	world.per_thousand = 1000;
	world.donor = 60 * US;
	(void) settle(&cost, &world, FAR);
	world.donor = 500;
	for (int i = 0; i < 200; i++)
	{
		now += 100 * MS;
		seen = live(&cost, &world, FAR, 100);
	}
	ok(seen.donor > 50, "one that has become quicker is used again (%d of 100)", seen.donor);
}

static void
test_capture(void)
{
	RbpReadCost cost;
	World		world = {.ask = 250,.cached = 2 * US,.disk = 100 * US,.donor = 40 * US,.per_thousand = 1000};
	int			kept = 0;
	Seen		seen;

	rbp_read_cost_init(&cost);
	for (int i = 0; i < ROUNDS; i++)
		kept += rbp_read_cost_worth_capturing(&cost, true);
	ok(kept > 0 && kept <= ROUNDS / 8, "of what is only written few pages are captured (%d)", kept);
	kept = 0;
	seen = settle(&cost, &world, RBP_NO_TRANSPORT);
	is_u64(seen.donor, 0, "what no donor has comes from the file");
	ok(seen.asked > 0 && seen.asked < ROUNDS / 10, "... and is asked about now and then (%d times)", seen.asked);
	for (int i = 0; i < ROUNDS; i++)
		kept += rbp_read_cost_worth_capturing(&cost, true);
	ok(kept > 0 && kept <= ROUNDS / 8, "a page cache that keeps all: few pages are captured (%d)", kept);

	world.per_thousand = 800;
	seen = settle(&cost, &world, RBP_NO_TRANSPORT);
	ok(seen.asked > ROUNDS * 9 / 10, "one that loses some is asked (%d times)", seen.asked);
	ok(seen.kept > ROUNDS / 10, "... and more is captured than else (%d)", seen.kept);
	ok(seen.kept * CAPTURE < seen.ns / 10, "... but for a small part of the time");
	world.disk = 2000 * US;
	(void) settle(&cost, &world, RBP_NO_TRANSPORT);
	seen = live(&cost, &world, RBP_NO_TRANSPORT, ROUNDS);
	is_u64(seen.kept, ROUNDS, "a slow disk: all are captured, be they cached or not");
	world.per_thousand = 0;
	world.disk = 400 * US;
	seen = settle(&cost, &world, RBP_NO_TRANSPORT);
	is_u64(seen.kept, ROUNDS, "nothing is cached: all are captured");
	world.disk = 100 * US;
	seen = settle(&cost, &world, RBP_NO_TRANSPORT);
	ok(seen.kept > ROUNDS / 4 && seen.kept < ROUNDS / 2, "... but not as many if the disk is quicker (%d)", seen.kept);
	kept = 0;
	for (int i = 0; i < ROUNDS; i++)
		kept += rbp_read_cost_worth_capturing(&cost, true);
	ok(kept < ROUNDS / 8, "nor many, read or written, that have not cost a read of the disk (%d)", kept);
	world.per_thousand = 800;

	/* the disk is tried, too; where it is as quick there is nothing to gain */
	world.disk = 30 * US;
	for (int i = 0; i < 200; i++)
	{
		now += 1000 * MS;
		seen = live(&cost, &world, FAR, 100);
	}
	ok(seen.donor <= 2, "a disk that is quicker than donors is read (donors %d times, to see)", seen.donor);
	seen = settle(&cost, &world, RBP_NO_TRANSPORT);
	ok(seen.kept <= ROUNDS / 8, "but few are captured if the disk is as quick as donors (%d)", seen.kept);
}

/* A donor that is slower than the disk, where it may not be passed by. */
static void
test_no_bypass(void)
{
	RbpReadCost cost;
	World		world = {.ask = 250,.cached = 2 * US,.disk = 30 * US,.donor = 60 * US,.per_thousand = 500,.no_bypass = true};
	Seen		seen;

	rbp_read_cost_init(&cost);
	rbp_read_cost_file(&cost, 1, false, world.disk);
	seen = settle(&cost, &world, FAR);
	is_u64(seen.disk, 0, "a quicker disk is not read against the setting");
	ok(seen.file > ROUNDS / 3, "but the page cache is (%d times)", seen.file);
	world.per_thousand = 1000;
	(void) settle(&cost, &world, FAR);
	seen = live(&cost, &world, FAR, 1000);
	ok(seen.asked < 200, "straight, if it has everything (%d questions in 1000)", seen.asked);

	rbp_read_cost_init(&cost);
	is_u64(rbp_read_cost_saved(&cost, 1, 0, 0, 10 * US), 0, "what is saved is not known yet");
	for (int i = 0; i < 100; i++)
	{
		rbp_read_cost_file(&cost, 1, false, 50 * US);
		rbp_read_cost_file(&cost, 1, true, 2 * US);
	}
	ok(rbp_read_cost_saved(&cost, 2, 0, 0, 10 * US) > 80 * US, "two reads of the disk, less what was taken instead");
	ok(rbp_read_cost_saved(&cost, 1, 0, 0, 70 * US) < 0, "or lost, if that took longer");
	is_u64((uint64_t) rbp_read_cost_saved(&cost, 0, 2, 0, 0), 2 * cost.cached,
		   "of pages that the page cache has, only reads of that are saved");
	is_u64((uint64_t) -rbp_read_cost_saved(&cost, 0, 0, 0, 70 * US), 70 * US, "a wait for nothing is lost");
	ok(rbp_read_cost_saved(&cost, 0, 0, 2, 0) > rbp_read_cost_saved(&cost, 0, 2, 0, 0) &&
	   rbp_read_cost_saved(&cost, 0, 0, 2, 0) < rbp_read_cost_saved(&cost, 2, 0, 0, 0),
	   "what is not known to be there is partly there");
	is_u64((uint64_t) rbp_read_cost_saved(&cost, 1, 1, 1, 9 * US),
		   (uint64_t) (rbp_read_cost_saved(&cost, 1, 0, 0, 2 * US) + rbp_read_cost_saved(&cost, 0, 1, 0, 3 * US) +
					   rbp_read_cost_saved(&cost, 0, 0, 1, 4 * US)), "all of it adds up");
}

/* Values at the edges of what is computed with. */
static void
test_extremes(void)
{
	RbpReadCost cost;
	int			asks = 0;

	rbp_read_cost_init(&cost);
	for (int i = 0; i < ROUNDS; i++)
	{
		rbp_read_cost_asked(&cost, 32, 0, INT64_MAX / 64);
		rbp_read_cost_file(&cost, 1, true, 1);
		rbp_read_cost_file(&cost, 1, false, INT64_MAX / 64);
		rbp_read_cost_donor(&cost, NEAR, 1, INT64_MAX / 64);
	}
	ok(cost.cached > 0 && cost.disk > 100 * MS && cost.donor[NEAR] > 100 * MS, "averages neither vanish nor wrap");
	is_u64(cost.missing, 1U << 20, "nothing is cached");
	for (int i = 0; i < ROUNDS; i++)
	{
		rbp_read_cost_asked(&cost, 32, 32, 0);
		asks += rbp_read_cost_choose(&cost, NEAR, true, false) == RBP_SOURCE_ASK;
	}
	is_u64(cost.missing, 0, "all is");
	ok(asks >= ROUNDS / 16, "samples go on (%d)", asks);
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
		RbpReadCost cost;
		int			from_disk = 0;

		rbp_read_cost_init(&cost);
		for (int i = 0; i < ROUNDS; i++)
		{
			rbp_read_cost_donor(&cost, NEAR, 1, 5 * US);
			rbp_read_cost_file(&cost, 1, true, 2 * US);
			rbp_read_cost_file(&cost, 1, false, 100 * US);
			rbp_read_cost_asked(&cost, 1, 1, US / 3);
		}
		for (int i = 0; i < 10000; i++)
		{
			int			n = rbp_read_cost_fast_path(&cost, true);
			bool		cached;

			if (n > 0)
			{
				if (i > 5000)
					from_disk += n / 2;
				i += n;
				rbp_read_cost_end_fast_path(&cost);
			}
			cached = i % 2 == phase;
			switch (rbp_read_cost_choose(&cost, NEAR, true, false))
			{
				case RBP_SOURCE_ASK:
					rbp_read_cost_asked(&cost, 1, cached, US / 3);
					break;
				case RBP_SOURCE_FILE:
					from_disk += !cached && i > 5000;
					break;
				default:
					break;
			}
		}
		is_u64((uint64_t) from_disk, 0, "phase %d: later, no page is read from the disk unasked", phase);
	}
}

int
main(void)
{
	test_sources();
	test_near();
	test_capture();
	test_no_bypass();
	test_extremes();
	test_in_turns();
	return done_testing();
}
