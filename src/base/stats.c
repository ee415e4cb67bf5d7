/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  Counters and latency histograms in shared memory.
 *
 * Shared memory holds one header, and one stripe for each PGPROC that a
 * process can own.  Each stripe is written by one process only, so counting
 * takes neither a lock nor an atomic read-modify-write.  The values of a
 * stripe only grow, and outlive the process: the next owner of the PGPROC
 * continues where the last one stopped (the lock of the PGPROC free list
 * orders the two).
 *
 * Readers sum up all stripes without stopping writers, so a sum is not the
 * state of a single instant.  A reset notes the current sums as a baseline,
 * which readers subtract; header->lock keeps baseline and sums consistent.
 * No process counts while holding it.
 *
 * A parallel worker counts some of it once more for its leader, atomically, so
 * that what a query has done is known in the process that runs it.
 *
 * A wrapper that runs in a signal handler may interrupt a count of its own
 * process between load and store, and then its own count is lost.  This is
 * tolerated; the subtraction in since() is guarded because of it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/lwlock.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/lock.h"
#include "base/stats.h"

/* The counters, and for each latency its buckets */
#define BUCKETS(op)		(RBP_NUM_COUNTERS + (op) * RBP_LATENCY_BUCKETS)
#define NUM_VALUES		BUCKETS(RBP_NUM_LATENCIES)

/*
 * workers is written by all parallel workers of the process; they also count in
 * stripes of their own, so it is in no sum of all processes.  base is written by
 * the process before it or a parallel worker of it counts for the first time, and
 * before pid.
 */
typedef struct StatsStripe
{
	pg_atomic_uint64 counter[NUM_VALUES];	/* buckets come last */
	pg_atomic_uint64 workers[RBP_NUM_USAGE_ITEMS];
	pg_atomic_uint64 base[RBP_NUM_USAGE_ITEMS]; /* what was there when the
												 * process started */
	pg_atomic_uint32 pid;		/* of the process that base is for */
} StatsStripe;

/* Size of a stripe, padded to avoid false sharing */
#define STRIPE_SIZE		CACHELINEALIGN(sizeof(StatsStripe))

typedef struct StatsHeader
{
	LWLock		lock;			/* protects all of the header */
	RbpStatsInfo info;
	uint64		base[NUM_VALUES];
} StatsHeader;

const char *const rbp_counter_names[RBP_NUM_COUNTERS] = {
#define PAGES_NAME(sym, pages, latency, time) [RBP_COUNT_##sym] = #pages,
#define TIME_NAME(sym, pages, latency, time) [RBP_COUNT_NS + RBP_LATENCY_##sym] = #time,
#define COUNTER_NAME(sym, name) [RBP_COUNT_##sym] = #name,
	RBP_OUTCOMES(PAGES_NAME)
	RBP_OUTCOMES(TIME_NAME)
	RBP_TIER_COUNTERS(COUNTER_NAME)
	[RBP_COUNT_EVICTIONS] = "evictions",
	[RBP_COUNT_SPILL_STAGED_READS] = "spill_staged_reads",
	[RBP_COUNT_NS + RBP_LATENCY_PUSH] = "push_time",
	[RBP_COUNT_NS + RBP_LATENCY_CONNECT] = "connect_time",
};

const char *const rbp_latency_names[RBP_NUM_LATENCIES] = {
#define LATENCY_NAME(sym, pages, latency, time) [RBP_LATENCY_##sym] = #latency,
	RBP_OUTCOMES(LATENCY_NAME)
	[RBP_LATENCY_PUSH] = "push",
	[RBP_LATENCY_CONNECT] = "connect",
};

/* NULL before attach */
static StatsHeader *header = NULL;
static char *stripes = NULL;

static uint64 counted = 0;		/* see rbp_stats_counted() */

Size
rbp_stats_shmem_size(void)
{
	return add_size(CACHELINEALIGN(sizeof(StatsHeader)), mul_size(rbp_compat_max_procs(), STRIPE_SIZE));
}

void
rbp_stats_shmem_init(void *mem)
{
	StatsHeader *h = mem;

	memset(h, 0, rbp_stats_shmem_size());
	LWLockInitialize(&h->lock, rbp_lock_tranche("remote_bp_stats"));
	h->info.reset_time = GetCurrentTimestamp();
	stripes = (char *) h + CACHELINEALIGN(sizeof(StatsHeader));
	header = h;
}

bool
rbp_stats_attached(void)
{
	return header != NULL;
}

static inline StatsStripe *
stripe_at(int i)
{
	return (StatsStripe *) (stripes + i * STRIPE_SIZE);
}

static inline uint64
usage_item(StatsStripe *stripe, int item)
{
	return pg_atomic_read_u64(&stripe->counter[item]) + pg_atomic_read_u64(&stripe->workers[item]);
}

/*
 * The stripe of MyProc, or NULL where nothing can be counted.  What the stripe has
 * is from processes before this one: note it.
 */
static StatsStripe *
take_stripe(void)
{
	StatsStripe *stripe;

	if (MyProc == NULL || stripes == NULL)
		return NULL;
	stripe = stripe_at(rbp_compat_procno());
	for (int i = 0; i < RBP_NUM_USAGE_ITEMS; i++)
		pg_atomic_write_u64(&stripe->base[i], usage_item(stripe, i));
	pg_write_barrier();
	pg_atomic_write_u32(&stripe->pid, (uint32) MyProcPid);
	return stripe;
}

/* This process's stripe, or NULL where nothing can be counted. */
static inline StatsStripe *
my_stripe(void)
{
	static StatsStripe *mine = NULL;
	static PGPROC *mine_of = NULL;

	if (unlikely(MyProc != mine_of))
	{
		mine = take_stripe();
		mine_of = MyProc;
	}
	return mine;
}

/*
 * Only the stripe's owner writes, so a load and a store are enough.  A parallel
 * worker keeps the PGPROC of its leader from being used by others.
 */
static inline void
bump(StatsStripe *stripe, int counter, uint64 n)
{
	pg_atomic_uint64 *value = &stripe->counter[counter];

	pg_atomic_write_u64(value, pg_atomic_read_u64(value) + n);
	counted++;
	if (unlikely(MyProc->lockGroupLeader != NULL && MyProc->lockGroupLeader != MyProc) &&
		counter < RBP_NUM_USAGE_ITEMS)
		pg_atomic_fetch_add_u64(&stripe_at(rbp_compat_procno_of(MyProc->lockGroupLeader))->workers[counter],
								(int64) n);
}

/* The time first, so that no call is counted without it. */
static inline void
bump_latency(StatsStripe *stripe, RbpLatency op, int64 ns)
{
	pg_atomic_uint64 *bucket = &stripe->counter[BUCKETS(op) + rbp_latency_bucket(ns)];

	bump(stripe, RBP_COUNT_NS + op, (uint64) Max(ns, 0));
	pg_atomic_write_u64(bucket, pg_atomic_read_u64(bucket) + 1);
}

void
rbp_stats_count(RbpCounter counter, uint64 n)
{
	StatsStripe *stripe = my_stripe();

	if (stripe != NULL)
		bump(stripe, counter, n);
}

void
rbp_stats_latency(RbpLatency op, int64 ns)
{
	StatsStripe *stripe = my_stripe();

	if (stripe != NULL)
		bump_latency(stripe, op, ns);
}

void
rbp_stats_outcome(RbpCounter outcome, int n, int64 ns)
{
	StatsStripe *stripe = my_stripe();

	if (stripe == NULL)
		return;
	bump(stripe, outcome, (uint64) n);
	if (ns >= 0)
		bump_latency(stripe, (RbpLatency) outcome, ns);
}

/*
 * Values below 4 ns have a bucket each; from there on, the two bits below
 * the highest one choose among the four buckets of a power of two.
 */
int
rbp_latency_bucket(int64 ns)
{
	int			log2;
	int			bucket;

	if (ns < 4)
		return ns < 0 ? 0 : (int) ns;
	log2 = pg_leftmost_one_pos64((uint64) ns);
	bucket = (log2 - 1) * 4 + (int) ((ns >> (log2 - 2)) & 3);
	return Min(bucket, RBP_LATENCY_BUCKETS - 1);
}

int64
rbp_latency_lower(int bucket)
{
	if (bucket < 4)
		return Max(bucket, 0);
	return (int64) (4 + bucket % 4) << (bucket / 4 - 1);
}

int64
rbp_histogram_quantile(const uint64 buckets[RBP_LATENCY_BUCKETS], double q)
{
	uint64		total = 0;
	uint64		below = 0;
	double		rank;

	for (int i = 0; i < RBP_LATENCY_BUCKETS; i++)
		total += buckets[i];
	if (total == 0)
		return -1;

	rank = Min(Max(q, 0.0), 1.0) * (double) total;
	for (int i = 0; i < RBP_LATENCY_BUCKETS; i++)
	{
		uint64		n = buckets[i];

		if (n > 0 && (double) (below + n) >= rank)
		{
			double		lower = (double) rbp_latency_lower(i);
			double		width = (double) rbp_latency_lower(i + 1) - lower;

			return (int64) (lower + width * (rank - (double) below) / (double) n);
		}
		below += n;
	}
	return rbp_latency_lower(RBP_LATENCY_BUCKETS);
}

/* Sums of n values since server start, without subtracting the baseline. */
static void
sum_values(int first, int n, uint64 *sums)
{
	memset(sums, 0, sizeof(uint64) * n);
	for (int s = 0; s < rbp_compat_max_procs(); s++)
		for (int i = 0; i < n; i++)
			sums[i] += pg_atomic_read_u64(&stripe_at(s)->counter[first + i]);
}

static inline uint64
since(uint64 now, uint64 base)
{
	return now > base ? now - base : 0;
}

static void
sum_since_reset(int first, int n, uint64 *sums)
{
	LWLockAcquire(&header->lock, LW_SHARED);
	sum_values(first, n, sums);
	for (int i = 0; i < n; i++)
		sums[i] = since(sums[i], header->base[first + i]);
	LWLockRelease(&header->lock);
}

void
rbp_stats_sum(uint64 counters[RBP_NUM_COUNTERS])
{
	sum_since_reset(0, RBP_NUM_COUNTERS, counters);
}

void
rbp_stats_histogram(RbpLatency op, uint64 buckets[RBP_LATENCY_BUCKETS])
{
	sum_since_reset(BUCKETS(op), RBP_LATENCY_BUCKETS, buckets);
}

void
rbp_stats_lead(void)
{
	(void) my_stripe();
}

void
rbp_stats_usage(RbpUsage *usage, bool own, bool workers)
{
	StatsStripe *stripe = my_stripe();

	memset(usage, 0, sizeof(RbpUsage));
	for (int i = 0; stripe != NULL && i < RBP_NUM_USAGE_ITEMS; i++)
		usage->item[i] = (own ? pg_atomic_read_u64(&stripe->counter[i]) : 0) +
			(workers ? pg_atomic_read_u64(&stripe->workers[i]) : 0);
}

uint64
rbp_stats_counted(void)
{
	return counted;
}

void
rbp_stats_add_usage(RbpUsage *sum, const RbpUsage *to, const RbpUsage *from)
{
	for (int i = 0; i < RBP_NUM_USAGE_ITEMS; i++)
		sum->item[i] += since(to->item[i], from->item[i]);
}

void
rbp_stats_process_usage(int procno, int pid, RbpUsage *usage)
{
	StatsStripe *stripe = stripe_at(procno);

	memset(usage, 0, sizeof(RbpUsage));
	if (pg_atomic_read_u32(&stripe->pid) != (uint32) pid)
		return;
	pg_read_barrier();
	for (int i = 0; i < RBP_NUM_USAGE_ITEMS; i++)
		usage->item[i] = since(usage_item(stripe, i), pg_atomic_read_u64(&stripe->base[i]));
}

void
rbp_stats_reset(void)
{
	LWLockAcquire(&header->lock, LW_EXCLUSIVE);
	sum_values(0, NUM_VALUES, header->base);
	memset(&header->info, 0, sizeof(RbpStatsInfo));
	header->info.reset_time = GetCurrentTimestamp();
	LWLockRelease(&header->lock);
}

void
rbp_stats_error(const char *fmt,...)
{
	va_list		args;

	if (header == NULL)
		return;
	LWLockAcquire(&header->lock, LW_EXCLUSIVE);
	va_start(args, fmt);
	vsnprintf(header->info.last_error, RBP_LAST_ERROR_LEN, fmt, args);
	va_end(args);
	header->info.last_error_at = GetCurrentTimestamp();
	LWLockRelease(&header->lock);
}

void
rbp_stats_info(RbpStatsInfo *info)
{
	LWLockAcquire(&header->lock, LW_SHARED);
	*info = header->info;
	LWLockRelease(&header->lock);
}
