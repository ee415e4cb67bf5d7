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

typedef struct StatsHistogram
{
	pg_atomic_uint64 bucket[RBP_LATENCY_BUCKETS];
	pg_atomic_uint64 sum_ns;
} StatsHistogram;

typedef struct StatsStripe
{
	pg_atomic_uint64 counter[RBP_NUM_COUNTERS];
	StatsHistogram latency[RBP_NUM_LATENCIES];
} StatsStripe;

/* Size of a stripe, padded to avoid false sharing */
#define STRIPE_SIZE		CACHELINEALIGN(sizeof(StatsStripe))

typedef struct StatsHeader
{
	LWLock		lock;			/* protects all of the header */
	uint32		nstripes;
	TimestampTz reset_time;
	char		last_error[RBP_LAST_ERROR_LEN]; /* "": none */
	TimestampTz last_error_at;
	uint64		base_counter[RBP_NUM_COUNTERS];
	RbpHistogram base_latency[RBP_NUM_LATENCIES];
} StatsHeader;

const char *const rbp_counter_names[RBP_NUM_COUNTERS] = {
#define RBP_COUNTER_NAME(sym, name) #name,
	RBP_TIER_COUNTERS(RBP_COUNTER_NAME)
	RBP_SPILL_COUNTERS(RBP_COUNTER_NAME)
	RBP_TIER_COUNTERS_1_1(RBP_COUNTER_NAME)
#undef RBP_COUNTER_NAME
};

const char *const rbp_latency_names[RBP_NUM_LATENCIES] = {
#define RBP_LATENCY_NAME(sym, name) #name,
	RBP_LATENCIES(RBP_LATENCY_NAME)
#undef RBP_LATENCY_NAME
};

/* NULL before attach */
static StatsHeader *header = NULL;
static char *stripes = NULL;

static uint32
stripe_count(void)
{
	return (uint32) rbp_compat_max_procs();
}

Size
rbp_stats_shmem_size(void)
{
	Size		size = CACHELINEALIGN(sizeof(StatsHeader));

	/* one line more, because mem need not begin at one */
	size = add_size(size, PG_CACHE_LINE_SIZE);
	return add_size(size, mul_size(stripe_count(), STRIPE_SIZE));
}

void
rbp_stats_shmem_init(void *mem)
{
	StatsHeader *h = (StatsHeader *) CACHELINEALIGN(mem);

	memset(h, 0, CACHELINEALIGN(sizeof(StatsHeader)) +
		   stripe_count() * STRIPE_SIZE);
	LWLockInitialize(&h->lock, rbp_lock_tranche("remote_bp_stats"));
	h->nstripes = stripe_count();
	h->reset_time = GetCurrentTimestamp();
	stripes = (char *) h + CACHELINEALIGN(sizeof(StatsHeader));
	header = h;
}

bool
rbp_stats_attached(void)
{
	return header != NULL;
}

static inline StatsStripe *
stripe_at(uint32 i)
{
	return (StatsStripe *) (stripes + i * STRIPE_SIZE);
}

/* This process's stripe, or NULL where nothing can be counted. */
static inline StatsStripe *
my_stripe(void)
{
	uint32		number;

	if (unlikely(MyProc == NULL || stripes == NULL))
		return NULL;
	number = (uint32) rbp_compat_procno();
	if (unlikely(number >= header->nstripes))
		return NULL;
	return stripe_at(number);
}

/* Only the stripe's owner writes, so a load and a store are enough. */
static inline void
bump(pg_atomic_uint64 *value, uint64 n)
{
	pg_atomic_write_u64(value, pg_atomic_read_u64(value) + n);
}

void
rbp_stats_count(RbpCounter counter, uint64 n)
{
	StatsStripe *stripe = my_stripe();

	if (stripe != NULL)
		bump(&stripe->counter[counter], n);
}

void
rbp_stats_latency(RbpLatency op, int64 ns)
{
	StatsStripe *stripe = my_stripe();

	if (stripe == NULL)
		return;
	if (ns < 0)
		ns = 0;
	/* in this order, so that no call is counted without its time */
	bump(&stripe->latency[op].sum_ns, (uint64) ns);
	bump(&stripe->latency[op].bucket[rbp_latency_bucket(ns)], 1);
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
rbp_histogram_quantile(const RbpHistogram *h, double q)
{
	uint64		total = 0;
	uint64		below = 0;
	double		rank;

	/*
	 * Sum up the buckets instead of using h->count: the two need not agree
	 * for a histogram that is being written to.
	 */
	for (int i = 0; i < RBP_LATENCY_BUCKETS; i++)
		total += h->bucket[i];
	if (total == 0)
		return 0;

	rank = Min(Max(q, 0.0), 1.0) * (double) total;
	for (int i = 0; i < RBP_LATENCY_BUCKETS; i++)
	{
		uint64		n = h->bucket[i];

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

/* Sums since server start, without subtracting the baseline. */
static void
sum_counters(uint64 counters[RBP_NUM_COUNTERS])
{
	memset(counters, 0, sizeof(uint64) * RBP_NUM_COUNTERS);
	for (uint32 s = 0; s < header->nstripes; s++)
	{
		StatsStripe *stripe = stripe_at(s);

		for (int i = 0; i < RBP_NUM_COUNTERS; i++)
			counters[i] += pg_atomic_read_u64(&stripe->counter[i]);
	}
}

static void
sum_latency(RbpLatency op, RbpHistogram *h)
{
	memset(h, 0, sizeof(RbpHistogram));
	for (uint32 s = 0; s < header->nstripes; s++)
	{
		StatsHistogram *mine = &stripe_at(s)->latency[op];

		for (int i = 0; i < RBP_LATENCY_BUCKETS; i++)
			h->bucket[i] += pg_atomic_read_u64(&mine->bucket[i]);
		h->sum_ns += pg_atomic_read_u64(&mine->sum_ns);
	}
}

static inline uint64
since(uint64 now, uint64 base)
{
	return now > base ? now - base : 0;
}

void
rbp_stats_sum(uint64 counters[RBP_NUM_COUNTERS])
{
	LWLockAcquire(&header->lock, LW_SHARED);
	sum_counters(counters);
	for (int i = 0; i < RBP_NUM_COUNTERS; i++)
		counters[i] = since(counters[i], header->base_counter[i]);
	LWLockRelease(&header->lock);
}

void
rbp_stats_histogram(RbpLatency op, RbpHistogram *h)
{
	const RbpHistogram *base;

	LWLockAcquire(&header->lock, LW_SHARED);
	base = &header->base_latency[op];
	sum_latency(op, h);
	for (int i = 0; i < RBP_LATENCY_BUCKETS; i++)
	{
		h->bucket[i] = since(h->bucket[i], base->bucket[i]);
		h->count += h->bucket[i];
	}
	h->sum_ns = since(h->sum_ns, base->sum_ns);
	LWLockRelease(&header->lock);
}

TimestampTz
rbp_stats_reset_time(void)
{
	TimestampTz when;

	LWLockAcquire(&header->lock, LW_SHARED);
	when = header->reset_time;
	LWLockRelease(&header->lock);
	return when;
}

void
rbp_stats_reset(void)
{
	LWLockAcquire(&header->lock, LW_EXCLUSIVE);
	sum_counters(header->base_counter);
	for (int op = 0; op < RBP_NUM_LATENCIES; op++)
		sum_latency((RbpLatency) op, &header->base_latency[op]);
	header->reset_time = GetCurrentTimestamp();
	header->last_error[0] = '\0';
	header->last_error_at = 0;
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
	vsnprintf(header->last_error, sizeof(header->last_error), fmt, args);
	va_end(args);
	header->last_error_at = GetCurrentTimestamp();
	LWLockRelease(&header->lock);
}

void
rbp_stats_last_error(char *buf, Size len, TimestampTz *at)
{
	LWLockAcquire(&header->lock, LW_SHARED);
	strlcpy(buf, header->last_error, len);
	*at = header->last_error_at;
	LWLockRelease(&header->lock);
}
