/*-------------------------------------------------------------------------
 *
 * rbp_spill_cost.c
 *	  Files or donors: where a temporary block costs less.
 *
 * A temporary file that fits in the page cache, or whose disk is quick, costs
 * less than a network.  Nothing tells that in advance: it depends on the memory that
 * is free, on the disk, and on how far the donors are.  So what writing and reading
 * blocks costs is measured, in the file and at donors, as averages that all
 * processes share, and blocks go where both together cost less.
 *
 * Now and then a run of blocks goes the other way, so that its costs stay
 * known.  A run that goes to a file while the page cache loses pages would tell
 * nothing: so few blocks stay cached until they are read, but all of them
 * would not.  So then there is none.
 *
 * Averages are written without a lock: a sample may be lost.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "rbp_guc.h"
#include "rbp_page_cache.h"
#include "rbp_spill_internal.h"

/*
 * Each so many-th operation is measured, with no common factor with a chunk's
 * size; and each that goes the other way, which are few.
 */
#define MEASURE_EACH			7
/* Blocks that go the same way before that is decided anew. */
#define RUN_BLOCKS				64
#define SAMPLE_EVERY_NS			INT64CONST(5000000000)
/* An average moves by this part, and by no sample to more than so many times itself. */
#define WEIGHT					32
#define OUTLIER					16
#define LOG_EVERY_NS			INT64CONST(60000000000)

#define shared		rbp_spill_shared

/* Where a block costs less, as this process has found last. */
static RbpSpillWhere lesser = RBP_SPILL_DONOR;

static uint32
average(RbpSpillWhere where, bool write)
{
	return pg_atomic_read_u32(&shared->cost[where][write ? 1 : 0]);
}

/* Of writing a block and reading it, in ns; 0: not known yet. */
static uint64
cost_of(RbpSpillWhere where)
{
	uint32		w = average(where, true);

	/* it may be written long before the first is read */
	return w == 0 ? 0 : (uint64) w + average(where, false);
}

double
rbp_spill_cost_us(RbpSpillWhere where)
{
	return shared == NULL ? 0 : (double) cost_of(where) / 1000;
}

void
rbp_spill_cost_shmem_init(SpillShared *sh)
{
	for (int where = 0; where < RBP_SPILL_WHERES; where++)
		for (int write = 0; write < 2; write++)
			pg_atomic_init_u32(&sh->cost[where][write], 0);
	pg_atomic_init_u64(&sh->sampled_at, 0);
}

int64
rbp_spill_cost_begin(RbpSpillWhere where)
{
	static uint32 turn = 0;

	if (where == lesser && ++turn % MEASURE_EACH != 0)
		return 0;
	return rbp_now_ns();
}

void
rbp_spill_cost_end(RbpSpillWhere where, bool write, int64 begun)
{
	pg_atomic_uint32 *cost;
	int64		avg;
	int64		ns;

	if (begun == 0)
		return;
	cost = &shared->cost[where][write ? 1 : 0];
	avg = (int64) pg_atomic_read_u32(cost);
	ns = Max(rbp_now_ns() - begun, 1);
	if (avg == 0)
		avg = Min(ns, 1000000);
	else
		avg += (Min(ns, avg * OUTLIER) - avg) / WEIGHT;
	pg_atomic_write_u32(cost, (uint32) Min(Max(avg, 1), PG_INT32_MAX));
}

bool
rbp_spill_prefer_file(void)
{
	static int	left = 0;		/* of the run */
	static bool file = false;
	uint64		file_cost;
	uint64		donor_cost;
	uint64		sampled_at;
	int64		now;

	if (rbp_guc_bypass == RBP_BYPASS_OFF)
		return false;
	if (left-- > 0)
		return file;
	left = RUN_BLOCKS - 1;
	file_cost = cost_of(RBP_SPILL_FILE);
	donor_cost = cost_of(RBP_SPILL_DONOR);
	if (file_cost == 0 || donor_cost == 0)
	{
		/* a run of each */
		file = donor_cost != 0;
		return file;
	}
	file = file_cost <= donor_cost;
	lesser = file ? RBP_SPILL_FILE : RBP_SPILL_DONOR;
	now = rbp_now_ns();
	sampled_at = pg_atomic_read_u64(&shared->sampled_at);
	if (now - (int64) sampled_at >= SAMPLE_EVERY_NS &&
		(file || rbp_page_cache_keeps()) &&
		pg_atomic_compare_exchange_u64(&shared->sampled_at, &sampled_at,
									   (uint64) now))
		file = !file;
	return file;
}

void
rbp_spill_cost_report(int64 now)
{
	static bool said = false;	/* files cost less */
	static int64 said_at = 0;
	uint64		file = cost_of(RBP_SPILL_FILE);
	uint64		donor = cost_of(RBP_SPILL_DONOR);
	bool		less = rbp_guc_bypass != RBP_BYPASS_OFF && file != 0 &&
		donor != 0 && file <= donor;

	if (less == said || (said_at != 0 && now - said_at < LOG_EVERY_NS))
		return;
	said = less;
	said_at = now;
	if (less)
		ereport(LOG,
				(errmsg("remote_bp: temporary blocks are written to files, where one costs %.1f us and at donors %.1f us",
						(double) file / 1000, (double) donor / 1000)));
	else
		ereport(LOG,
				(errmsg("remote_bp: temporary blocks are written to donors again, where one costs %.1f us and in files %.1f us",
						(double) donor / 1000, (double) file / 1000)));
}
