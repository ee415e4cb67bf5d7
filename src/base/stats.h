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
 * All counters: suffix of the enum value, and column of remote_bp_stat or of
 * remote_bp_stat_spill, in the order of the columns.
 */
#define RBP_TIER_COUNTERS(X) \
	X(HITS, hits)				/* pages read from donors */ \
	X(STAGED_HITS, staged_hits) /* pages read from the staging region */ \
	X(MISSES, misses)			/* pages read from the file, tier in use */ \
	X(PAGE_CACHE_READS, page_cache_reads)	/* misses served by the page cache */ \
	X(DISK_READS, disk_reads)	/* misses read from disk; for the other ones, the page cache was not asked */ \
	X(PAGE_CACHE_FIRST, page_cache_first)	/* misses: the page cache had it, a donor too */ \
	X(PAGE_CACHE_FILLS, page_cache_fills)	/* misses: trials of the disk */ \
	X(BYPASSED, bypassed)		/* misses: the disk is faster than the donor */ \
	X(CAPTURES, captures)		/* victims copied to staging */ \
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
	X(EVICTIONS, evictions)		/* live pages evicted to make room */ \
	X(INVALIDATIONS, invalidations) /* entries dropped by a write */ \
	X(GENERATIONS, generations) /* relation forks truncated or dropped */ \
	X(RACES, races)				/* slot reused while it was read */ \
	X(HASH_FAILURES, hash_failures) /* content did not match its hash */ \
	X(TIMEOUTS, timeouts)		/* waits that reached io_timeout */ \
	X(IO_ERRORS, io_errors)		/* other failed reads from donors */ \
	X(FALLBACKS, fallbacks)		/* entries found, yet read from disk */ \
	X(DONOR_DOWN, donor_down)	/* fallbacks: the donor is down */ \
	X(OVER_LIMIT, over_limit)	/* fallbacks: max_connections is reached */ \
	X(BELOW_THRESHOLD, below_threshold) /* fallbacks: fewer reads than connect_threshold */ \
	X(COMPARED, compared)		/* hits compared with the disk */ \
	X(MISMATCHES, mismatches)	/* compared hits that differ from the disk */ \
	X(BYTES_READ, bytes_read)	/* from donors */ \
	X(BYTES_WRITTEN, bytes_written)	/* to donors */ \
	X(DISK_WRITES, disk_writes) /* relation pages written to disk */ \
	X(PREFETCHES_SAVED, prefetches_saved)	/* prefetches of the server
											 * dropped: the tier has the page */

#define RBP_SPILL_COUNTERS(X) \
	X(SPILL_WRITES, writes)	/* temporary blocks written to donors */ \
	X(SPILL_READS, reads) /* temporary blocks read from donors */ \
	X(SPILL_READ_AHEAD, read_ahead)	/* blocks read from donors before they were asked for */ \
	X(SPILL_STAGED_READS, staged_reads)	/* read while in staging */ \
	X(SPILL_LOCAL, local) /* blocks put into the real file: no room on donors */ \
	X(SPILL_BYPASSED, bypassed)	/* blocks put into the real file: it is faster */ \
	X(SPILL_RESCUED, rescued) /* blocks put into the real file: a donor failed */ \
	X(SPILL_EVACUATED, evacuated) /* blocks moved to give memory back */ \
	X(SPILL_MIRROR_READS, mirror_reads)	/* blocks read from the second copy */ \
	X(SPILL_HASH_FAILURES, hash_failures) /* copies that did not match */ \
	X(SPILL_LOST, lost)			/* reads that failed: EIO */

/* What version 1.1 has added to remote_bp_stat, at its end. */
#define RBP_TIER_COUNTERS_1_1(X) \
	X(READ_AHEAD, read_ahead)	/* pages requested from donors before they were asked for */ \
	X(READ_AHEAD_USED, read_ahead_used) /* of these, those that were used */

typedef enum RbpCounter
{
#define RBP_COUNTER_ENUM(sym, name) RBP_COUNT_##sym,
	RBP_TIER_COUNTERS(RBP_COUNTER_ENUM)
	RBP_SPILL_COUNTERS(RBP_COUNTER_ENUM)
	RBP_TIER_COUNTERS_1_1(RBP_COUNTER_ENUM)
#undef RBP_COUNTER_ENUM
	RBP_NUM_COUNTERS
} RbpCounter;

#define RBP_NUM_TIER_COUNTERS	RBP_COUNT_SPILL_WRITES

/*
 * Operations that have a latency histogram (remote_bp_stat_latency).  A read of
 * relation pages ends as one of the first five; one of which the page cache had
 * a part is one of the disk.
 */
#define RBP_LATENCIES(X) \
	X(HIT, hit)					/* from a donor, hash included */ \
	X(STAGED, staged_hit)		/* from staging */ \
	X(PAGE_CACHE, page_cache_read) \
	X(DISK, disk_read) \
	X(FILE, file_read)			/* the page cache was not asked: from there,
								 * or from the disk */ \
	X(CAPTURE, capture)			/* time that captures add to a read */ \
	X(PUSH, push)				/* a batch written to donors */ \
	X(CONNECT, connect)			/* connecting to a donor */ \
	X(SPILL_READ, spill_read)	/* a read of a temporary file, from donors */ \
	X(SPILL_WRITE, spill_write) /* a write to one, that goes to donors */

typedef enum RbpLatency
{
#define RBP_LATENCY_ENUM(sym, name) RBP_LATENCY_##sym,
	RBP_LATENCIES(RBP_LATENCY_ENUM)
#undef RBP_LATENCY_ENUM
	RBP_NUM_LATENCIES
} RbpLatency;

/*
 * Histogram buckets: 4 for each power of two of nanoseconds, so percentiles
 * are accurate to a quarter.  Bucket b covers [rbp_latency_lower(b),
 * rbp_latency_lower(b + 1)) ns; the last one is open-ended.
 */
#define RBP_LATENCY_BUCKETS		128

typedef struct RbpHistogram
{
	uint64		bucket[RBP_LATENCY_BUCKETS];
	uint64		count;
	uint64		sum_ns;
} RbpHistogram;

/*
 * What a process has done since it started, or a query: suffix of the enum value,
 * and column of remote_bp_stat_backend.  What the parallel workers of a process do
 * counts for it, too.
 */
#define RBP_USAGE_ITEMS(X) \
	X(HITS, hits) \
	X(STAGED_HITS, staged_hits) \
	X(MISSES, misses) \
	X(PAGE_CACHE_READS, page_cache_reads) \
	X(DISK_READS, disk_reads) \
	X(SPILL_READS, spill_reads) \
	X(SPILL_STAGED_READS, spill_staged_reads) \
	X(SPILL_WRITES, spill_writes) \
	X(HIT_NS, hit_time)			/* from here on: times */ \
	X(DISK_NS, disk_time) \
	X(FILE_NS, file_time) \
	X(SPILL_READ_NS, spill_read_time) \
	X(SPILL_WRITE_NS, spill_write_time)

typedef enum RbpUsageItem
{
#define RBP_USAGE_ENUM(sym, name) RBP_USAGE_##sym,
	RBP_USAGE_ITEMS(RBP_USAGE_ENUM)
#undef RBP_USAGE_ENUM
	RBP_NUM_USAGE_ITEMS
} RbpUsageItem;

#define RBP_FIRST_USAGE_TIME	RBP_USAGE_HIT_NS

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

extern int	rbp_latency_bucket(int64 ns);
extern int64 rbp_latency_lower(int bucket);

/* The q-quantile (0..1) in ns of a histogram, by interpolation; 0 if empty. */
extern int64 rbp_histogram_quantile(const RbpHistogram *h, double q);

/* Sums over all processes since the last reset. */
extern void rbp_stats_sum(uint64 counters[RBP_NUM_COUNTERS]);
extern void rbp_stats_histogram(RbpLatency op, RbpHistogram *h);
extern TimestampTz rbp_stats_reset_time(void);

/*
 * Parallel workers may count for this process from now on: note what its stripe
 * has from processes before it.
 */
extern void rbp_stats_lead(void);

/*
 * What this process has counted, from some moment on: for differences.  All zero
 * where nothing can be counted.
 */
extern void rbp_stats_usage(RbpUsage *usage);

/* The two parts of that: its own, and what its parallel workers have counted for it. */
extern void rbp_stats_own_usage(RbpUsage *usage);
extern void rbp_stats_workers_usage(RbpUsage *usage);

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

/* The last error; "" and 0 if there was none since the last reset. */
extern void rbp_stats_last_error(char *buf, Size len, TimestampTz *at);
extern void rbp_stats_reset(void);

extern const char *const rbp_counter_names[RBP_NUM_COUNTERS];
extern const char *const rbp_latency_names[RBP_NUM_LATENCIES];

#endif							/* RBP_STATS_H */
