/*-------------------------------------------------------------------------
 *
 * cost.c
 *	  Whether a temporary block costs less in its file or at a donor.
 *
 * A temporary file that fits in the page cache, or whose disk is fast, costs
 * less than a network.  Nothing tells that in advance: it depends on free
 * memory, on the disk, and on the distance of the donors.  So the cost of
 * writing and reading blocks of temporary files is measured, in files and at
 * donors, as averages shared by all processes.  Blocks go where writing and
 * reading together cost less, and blocks of temporary tables follow them.
 *
 * From time to time a run of blocks goes the other way, so that the cost there
 * stays known.  While the page cache is losing pages, a run to files is rare:
 * its few blocks are still cached when they are read, which would not be true
 * of all blocks of a query, and so files would appear to cost less than they
 * do.
 *
 * The averages are written without a lock: a measurement may be lost.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/guc.h"
#include "base/injection_point.h"
#include "base/page_cache.h"
#include "common/clock.h"
#include "remote/remote.h"
#include "spill/spill.h"
#include "spill/spill_internal.h"
#include "common/pg_prng.h"

/*
 * One in this many blocks that go to the cheaper target is measured.  The
 * number has no common factor with the size of a chunk.  Blocks that go to the
 * other target are all measured.
 */
#define MEASURE_EVERY			7

/* Blocks that go to one target before the choice is made again. */
#define RUN_BLOCKS				64

/*
 * A trial run to donors.  Its first blocks are not measured: that many can be
 * in flight, and only the writer of one more has to wait for the network.
 */
#define DONOR_RUN_BLOCKS		256
#define DONOR_RUN_UNMEASURED	64

#define SAMPLE_NS				INT64CONST(5000000000)
#define SAMPLE_RARELY_NS		INT64CONST(60000000000)

/*
 * Most blocks cost a copy, and a few cost the wait for all of them.  Only
 * together are they meaningful, so an average is fed with the means of groups
 * of GROUP blocks.  It has the weight of WEIGHT such means, and a mean counts
 * as OUTLIER times the average at most: the process may just have waited for a
 * processor.
 */
#define GROUP					32
#define WEIGHT					32
#define OUTLIER					16

/*
 * A group has measurements of all processes, some of which may write few
 * blocks.  It is one word, with the number of measurements in the low bits and
 * their sum above.
 */
#define GROUP_BITS				12
#define GROUP_N(g)				((g) & ((UINT64CONST(1) << GROUP_BITS) - 1))
#define GROUP_SUM(g)			((g) >> GROUP_BITS)
#define MEASURED_MAX_NS			INT64CONST(60000000000)

/* The target is changed only for a difference of this many percent. */
#define DIFFERENCE				15

/* Time without files after one has refused a block */
#define REFUSED_NS				INT64CONST(10000000000)
#define LOG_EVERY_NS			INT64CONST(60000000000)

#define costs			rbp_spill_shared->costs

/* The cheaper target, as this process has last determined it. */
static RbpSpillTarget cheaper = RBP_SPILL_DONOR;

/* The current run: its target, and how many blocks are left of it. */
static RbpSpillTarget run_target = RBP_SPILL_DONOR;
static int	run_left = 0;
static int	run_unmeasured = 0;

static int64 file_refused_until = 0;

void
rbp_spill_cost_shmem_init(RbpSpillCosts *c)
{
	for (int target = 0; target < RBP_SPILL_TARGETS; target++)
		for (int write = 0; write < 2; write++)
		{
			pg_atomic_init_u32(&c->average[target][write], 0);
			pg_atomic_init_u32(&c->nmeasured[target][write], 0);
			pg_atomic_init_u64(&c->group[target][write], 0);
		}
	pg_atomic_init_u64(&c->sampled_at, 0);
}

static uint32
average(RbpSpillTarget target, bool write)
{
	return pg_atomic_read_u32(&costs->average[target][write ? 1 : 0]);
}

/*
 * The cost of writing and reading a block, in ns; of writing alone until reads
 * have been measured at both targets, as a file is written long before it is
 * read.
 */
static uint64
cost_of(RbpSpillTarget target)
{
	bool		reads = average(RBP_SPILL_FILE, false) != 0 &&
	average(RBP_SPILL_DONOR, false) != 0;

	return (uint64) average(target, true) + (reads ? average(target, false) : 0);
}

double
rbp_spill_cost_us(RbpSpillTarget target)
{
	return rbp_spill_shared == NULL ? 0 : (double) cost_of(target) / 1000;
}

/*
 * Is a block cheaper in a file?  The answer changes only if the difference is
 * large enough.
 */
static bool
file_is_cheaper(bool currently)
{
	uint64		file = cost_of(RBP_SPILL_FILE);
	uint64		donor = cost_of(RBP_SPILL_DONOR);

	return file * 100 <= donor * (currently ? 100 + DIFFERENCE : 100 - DIFFERENCE);
}

int64
rbp_spill_cost_begin(RbpSpillTarget target, bool write)
{
	static uint32 turn = 0;

	if (target == cheaper && ++turn % MEASURE_EVERY != 0)
		return 0;
	if (target == RBP_SPILL_DONOR && write && run_unmeasured > 0)
		return 0;
	return rbp_now_ns();
}

void
rbp_spill_cost_end(RbpSpillTarget target, bool write, int64 started)
{
	pg_atomic_uint32 *cost;
	pg_atomic_uint32 *nmeasured;
	int64		avg;
	int64		ns;
	uint32		n;

	if (started == 0)
		return;
	cost = &costs->average[target][write ? 1 : 0];
	nmeasured = &costs->nmeasured[target][write ? 1 : 0];
	avg = (int64) pg_atomic_read_u32(cost);
	ns = Min(Max(rbp_now_ns() - started, 1), MEASURED_MAX_NS);
	n = pg_atomic_read_u32(nmeasured);
	if (n < WEIGHT)
		pg_atomic_write_u32(nmeasured, ++n);
	else
	{
		pg_atomic_uint64 *group = &costs->group[target][write ? 1 : 0];
		uint64		g = ((uint64) ns << GROUP_BITS) + 1;

		g += pg_atomic_fetch_add_u64(group, g);
		/* one process takes the group, with what others have added since */
		if (GROUP_N(g) != GROUP)
			return;
		g = pg_atomic_exchange_u64(group, 0);
		ns = (int64) (GROUP_SUM(g) / Max(GROUP_N(g), 1));
	}
	if (avg == 0)
		avg = Min(ns, 1000000);
	else
		avg += (Min(ns, avg * OUTLIER) - avg) / n;
	pg_atomic_write_u32(cost, (uint32) Min(Max(avg, 1), PG_INT32_MAX));
}

/* Choose the target of the next run of blocks. */
static void
start_run(void)
{
	int64		now = rbp_now_ns();
	uint64		sampled_at;

	run_left = RUN_BLOCKS;
	run_unmeasured = 0;
	if (now < file_refused_until || average(RBP_SPILL_DONOR, true) == 0)
		run_target = RBP_SPILL_DONOR;
	else
	{
		bool		known = average(RBP_SPILL_FILE, true) != 0;

		cheaper = known && file_is_cheaper(cheaper == RBP_SPILL_FILE) ?
			RBP_SPILL_FILE : RBP_SPILL_DONOR;
		run_target = cheaper;
		sampled_at = pg_atomic_read_u64(&costs->sampled_at);
		if (now - (int64) sampled_at >=
			(!known || cheaper == RBP_SPILL_FILE || rbp_page_cache_keeps() ?
			 SAMPLE_NS : SAMPLE_RARELY_NS) &&
			pg_atomic_compare_exchange_u64(&costs->sampled_at, &sampled_at,
										   (uint64) now))
		{
			run_target = cheaper == RBP_SPILL_FILE ? RBP_SPILL_DONOR : RBP_SPILL_FILE;
			if (run_target == RBP_SPILL_DONOR)
			{
				run_left = DONOR_RUN_BLOCKS;
				run_unmeasured = DONOR_RUN_UNMEASURED;
			}
		}
	}
}

bool
rbp_spill_prefer_file(void)
{
	if (RBP_INJECTION_POINT("mix-spill"))
		return pg_prng_bool(&pg_global_prng_state);
	if (rbp_guc_bypass == RBP_BYPASS_OFF)
	{
		cheaper = RBP_SPILL_DONOR;
		run_left = run_unmeasured = 0;
		return false;
	}
	if (run_left == 0)
		start_run();
	run_left--;
	if (run_unmeasured > 0)
		run_unmeasured--;
	return run_target == RBP_SPILL_FILE;
}

void
rbp_spill_file_refused(void)
{
	file_refused_until = rbp_now_ns() + REFUSED_NS;
	run_left = 0;
}

void
rbp_spill_cost_report(int64 now)
{
	static bool file_reported = false;	/* what was logged last: files are
										 * cheaper */
	static int64 reported_at = 0;
	double		file;
	double		donor;

	if (rbp_guc_bypass == RBP_BYPASS_OFF ||
		average(RBP_SPILL_FILE, true) == 0 ||
		average(RBP_SPILL_DONOR, true) == 0 ||
		!rbp_remote_usable(RBP_POOL_TEMP, now) ||
		file_is_cheaper(file_reported) == file_reported ||
		(reported_at != 0 && now - reported_at < LOG_EVERY_NS))
		return;
	file_reported = !file_reported;
	reported_at = now;
	file = rbp_spill_cost_us(RBP_SPILL_FILE);
	donor = rbp_spill_cost_us(RBP_SPILL_DONOR);
	if (file_reported)
		ereport(LOG,
				(errmsg("remote_bp: temporary blocks are written to files"),
				 errdetail("Writing and reading a block takes %.1f us there, and %.1f us at donors.",
						   file, donor)));
	else
		ereport(LOG,
				(errmsg("remote_bp: temporary blocks are written to donors again"),
				 errdetail("Writing and reading a block takes %.1f us there, and %.1f us in files.",
						   donor, file)));
}
