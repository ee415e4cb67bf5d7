/*-------------------------------------------------------------------------
 *
 * stats.h
 *	  Counters and latency histograms in shared memory.
 *
 * Each process counts in a stripe of its own (by pgprocno), so that counting
 * is a plain store without contention; readers add the stripes up.  A reset
 * stores a baseline that readers subtract.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_STATS_H
#define RBP_STATS_H

#include "postgres.h"

#include "datatype/timestamp.h"

/*
 * How a read of relation pages or temporary blocks ends, and what else counts pages
 * and has a latency.  Each read or write is counted once, as its outcome.  Suffix of
 * the enum values; column of the pages; operation in remote_bp_stat_latency; column
 * of the time.  RbpUsage has the times of those before STAGED.
 */
#define RBP_OUTCOMES(X) \
	X(DONOR, hits, hit, hit_time)	/* from a donor, hash included */ \
	X(DISK, disk_reads, disk_read, disk_time)	/* a read of which the page cache
											 * had a part is one of the disk */ \
	X(FILE, misses, file_read, file_time)	/* the page cache was not asked: from
											 * there, or from the disk; the column
											 * is a sum, see rbp_stats_column() */ \
	X(SPILL_READS, spill_reads, spill_read, spill_read_time)	/* from donors */ \
	X(SPILL_WRITES, spill_writes, spill_write, spill_write_time)	/* to donors */ \
	X(STAGED, staged_hits, staged_hit, staged_time)	/* from the staging region */ \
	X(PAGE_CACHE, page_cache_reads, page_cache_read, page_cache_time) \
	X(CAPTURES, captures, capture, capture_time)	/* victims copied to
													 * staging; time that this
													 * adds to a read */

/*
 * The other counters: suffix of the enum value, and column of remote_bp_stat or, with
 * the prefix spill_, of remote_bp_stat_spill.
 */
#define RBP_TIER_COUNTERS(X) \
	X(PAGE_CACHE_FIRST, page_cache_first)	/* reads of the file: the page cache had
											 * it, a donor too */ \
	X(PAGE_CACHE_FILLS, page_cache_fills)	/* likewise: trials of the disk */ \
	X(BYPASSED, bypassed)		/* likewise: the disk is faster than the donor */ \
	X(SKIP_REMOTE, skips_remote)	/* victim was in the tier already, staged or remote */ \
	X(SKIP_UNKNOWN, skips_unknown)	/* frame had no claim */ \
	X(SKIP_STALE, skips_stale)	/* its stamp or generation has moved */ \
	X(SKIP_CHANGED, skips_changed)	/* frame differs from the disk */ \
	X(SKIP_CACHED, skips_cached)	/* the page cache has it, and keeps it */ \
	X(SKIP_SLOW, skips_slow)	/* donors are not enough faster than the disk */ \
	X(SKIP_POLICY, skips_policy)	/* excluded by a policy or setting */ \
	X(DROPS_FULL, drops_full)	/* no staging slot free */ \
	X(PUSHES, pushes)			/* pages written to donors and published */ \
	X(PUSH_STALE, pushes_stale) /* pushed, but out of date when published */ \
	X(PUSH_FAILED, pushes_failed)	/* write to the donor failed */ \
	X(PUSH_NO_SLOT, pushes_no_slot) /* no slot to push into */ \
	X(INVALIDATIONS, invalidations) /* entries dropped by a write */ \
	X(GENERATIONS, generations) /* relation forks truncated or dropped */ \
	X(RACES, races)				/* slot reused while it was read */ \
	X(HASH_FAILURES, hash_failures) /* content did not match its hash */ \
	X(TIMEOUTS, timeouts)		/* waits that reached io_timeout */ \
	X(IO_ERRORS, io_errors)		/* other failed reads from donors */ \
	X(FALLBACKS, fallbacks)		/* entries found, yet read from disk */ \
	X(DONOR_DOWN, donor_down)	/* fallbacks: the donor is down */ \
	X(OVER_LIMIT, over_limit)	/* fallbacks: max_connections is reached */ \
	X(BELOW_THRESHOLD, below_threshold) /* fallbacks: connecting was not worth it yet */ \
	X(COMPARED, compared)		/* hits compared with the disk */ \
	X(MISMATCHES, mismatches)	/* compared hits that differ from the disk */ \
	X(DISK_WRITES, disk_writes) /* relation pages written to disk */ \
	X(PREFETCHES_SAVED, prefetches_saved)	/* prefetches of the server
											 * dropped: the tier has the page */ \
	X(READ_AHEAD, read_ahead)	/* pages requested from donors before they were asked for */ \
	X(READ_AHEAD_USED, read_ahead_used) /* of these, those that were used */ \
	X(SEAL_FAILURES, seal_failures) /* of HASH_FAILURES, those of sealed pages */ \
	X(SPILL_READ_AHEAD, spill_read_ahead)	/* blocks read from donors before they were asked for */ \
	X(SPILL_LOCAL, spill_local) /* blocks put into the real file: no room on donors */ \
	X(SPILL_BYPASSED, spill_bypassed)	/* blocks put into the real file: it is faster */ \
	X(SPILL_RESCUED, spill_rescued) /* blocks put into the real file: a donor failed */ \
	X(SPILL_EVACUATED, spill_evacuated) /* blocks moved to give memory back */ \
	X(SPILL_MIRROR_READS, spill_mirror_reads)	/* blocks read from the second copy */ \
	X(SPILL_HASH_FAILURES, spill_hash_failures) /* copies that did not match */ \
	X(SPILL_SEAL_FAILURES, spill_seal_failures) /* of these, those that were sealed */ \
	X(SPILL_LOST, spill_lost)	/* reads that failed: EIO */

/* Operations that have a latency, and the ns that they took in total. */
typedef enum RbpLatency
{
#define RBP_LATENCY_ENUM(sym, pages, latency, time) RBP_LATENCY_##sym,
	RBP_OUTCOMES(RBP_LATENCY_ENUM)
#undef RBP_LATENCY_ENUM
	RBP_LATENCY_PUSH,			/* a batch written to donors */
	RBP_LATENCY_CONNECT,		/* connecting to a donor */
	RBP_NUM_LATENCIES
} RbpLatency;

/* An outcome has the same number as its latency. */
typedef enum RbpCounter
{
#define RBP_COUNTER_ENUM(sym, ...) RBP_COUNT_##sym,
	RBP_OUTCOMES(RBP_COUNTER_ENUM)
	RBP_COUNT_EVICTIONS,		/* live pages evicted to make room */
	RBP_COUNT_SPILL_STAGED_READS,	/* blocks read while in staging */
	RBP_COUNT_NS,				/* the times of RbpLatency, in its order */
	RBP_COUNT_NS_END = RBP_COUNT_NS + RBP_NUM_LATENCIES - 1,
	RBP_TIER_COUNTERS(RBP_COUNTER_ENUM)
#undef RBP_COUNTER_ENUM
	RBP_NUM_COUNTERS
} RbpCounter;

static inline bool
rbp_counter_is_time(int counter)
{
	return counter >= RBP_COUNT_NS && counter <= RBP_COUNT_NS_END;
}

/*
 * The value of a counter's column, in any view: misses are all reads of the file, and
 * any other column is what was counted.  (remote_bp_stat has two columns of bytes that
 * are sums of pages, too.)
 */
static inline uint64
rbp_stats_column(const uint64 *counters, int counter)
{
	return counter == RBP_COUNT_FILE ?
		counters[RBP_COUNT_FILE] + counters[RBP_COUNT_PAGE_CACHE] + counters[RBP_COUNT_DISK] :
		counters[counter];
}

/*
 * Histogram buckets: 4 for each power of two of nanoseconds, so percentiles
 * are accurate to a quarter.  Bucket b covers [rbp_latency_lower(b),
 * rbp_latency_lower(b + 1)) ns; the last one is open-ended.
 */
#define RBP_LATENCY_BUCKETS		128

/*
 * What a process has done since it started, or a query, or what was done for a
 * relation: the first counters.  What the parallel workers of a process do counts for
 * it, too.
 */
#define RBP_NUM_USAGE_ITEMS		(RBP_COUNT_NS + RBP_LATENCY_STAGED)

typedef struct RbpUsage
{
	uint64		item[RBP_NUM_USAGE_ITEMS];
} RbpUsage;

extern Size rbp_stats_shmem_size(void);
extern void rbp_stats_shmem_init(void *mem);

/* Has rbp_stats_shmem_init() been called in this process or an ancestor? */
extern bool rbp_stats_attached(void);

/* Count; no lock, no wait; a no-op without a PGPROC or before attach. */
extern void rbp_stats_count(RbpCounter counter, uint64 n);
extern void rbp_stats_latency(RbpLatency op, int64 ns);

/* Count n pages with that outcome, read in so many ns; -1: that is not known. */
extern void rbp_stats_outcome(RbpCounter outcome, int n, int64 ns);

extern int	rbp_latency_bucket(int64 ns);
extern int64 rbp_latency_lower(int bucket);

/* The q-quantile (0..1) in ns of a histogram, by interpolation; -1 if empty. */
extern int64 rbp_histogram_quantile(const uint64 buckets[RBP_LATENCY_BUCKETS], double q);

/* Sums over all processes since the last reset. */
extern void rbp_stats_sum(uint64 counters[RBP_NUM_COUNTERS]);
extern void rbp_stats_histogram(RbpLatency op, uint64 buckets[RBP_LATENCY_BUCKETS]);

/*
 * Parallel workers may count for this process from now on: note what its stripe
 * has from processes before it.
 */
extern void rbp_stats_lead(void);

/*
 * What this process has counted itself, or its parallel workers for it, or both, from
 * some moment on: for differences.  All zero where nothing can be counted.
 */
extern void rbp_stats_usage(RbpUsage *usage, bool own, bool workers);

/* A number that changes whenever this process itself counts something. */
extern uint64 rbp_stats_counted(void);

/* sum += to - from */
extern void rbp_stats_add_usage(RbpUsage *sum, const RbpUsage *to,
								const RbpUsage *from);

/*
 * What the process of that pid and PGPROC has done since it started; zero if it
 * has not counted yet.
 */
extern void rbp_stats_process_usage(int procno, int pid, RbpUsage *usage);

#define RBP_LAST_ERROR_LEN		512

/*
 * Store an error, for remote_bp_stat.  This may wait for a lock, so only the
 * lease worker and the pusher may call it.
 */
extern void rbp_stats_error(const char *fmt,...) pg_attribute_printf(1, 2);

typedef struct RbpStatsInfo
{
	TimestampTz reset_time;
	char		last_error[RBP_LAST_ERROR_LEN]; /* "": none since the reset */
	TimestampTz last_error_at;
} RbpStatsInfo;

extern void rbp_stats_info(RbpStatsInfo *info);
extern void rbp_stats_reset(void);

extern const char *const rbp_counter_names[RBP_NUM_COUNTERS];
extern const char *const rbp_latency_names[RBP_NUM_LATENCIES];

#endif							/* RBP_STATS_H */
