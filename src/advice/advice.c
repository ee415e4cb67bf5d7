/*-------------------------------------------------------------------------
 *
 * advice.c
 *	  Observes reads and writes of pages, for simulations of the tier; and what
 *	  these tell.
 *
 * The wrappers of the file calls call in here before and after a read, after
 * a write, and when a fork is truncated or dropped.  A page is in the sample if
 * the upper half of the hash of its name is below shared->threshold; a process
 * does no more for other pages than that comparison, and a look at the frame.
 * For pages in the sample, it passes the event to the simulations itself.
 *
 * shared->frames has for each frame the number of the page in the sample that
 * was read into it, so that the victim of a read can be recognized.  The
 * process that does I/O on a frame writes its element.  An element can be out
 * of date: frames are reused without a read where relations are extended.
 * So the simulation compares frame and LSN, too.
 *
 * All reads are counted, too, so that the view tells their number whatever share
 * of them the sample had.  A process adds its count to shared->reads now and
 * then, since others write there, too, and when it ends.
 *
 * Locking: shared->lock protects all but the atomics and frames.  Events take
 * it only if it is free, and are counted as lost otherwise.  It is held for
 * some microseconds, except by the view and by a reset.  It is a leaf.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/pg_shmem.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "advice/advice.h"
#include "advice/simulation.h"
#include "base/choice.h"
#include "base/guc.h"
#include "base/lock.h"
#include "base/page_cache.h"
#include "base/process.h"
#include "base/relfile.h"
#include "base/sql.h"
#include "base/stats.h"
#include "buffer/buffer.h"
#include "buffer/page.h"
#include "common/clock.h"

PG_FUNCTION_INFO_V1(rbp_sql_advice);
PG_FUNCTION_INFO_V1(rbp_sql_advice_reset);
PG_FUNCTION_INFO_V1(rbp_sql_working_set);

/*
 * The largest share of pages that may be in the sample, so that observing
 * stays cheap if the largest size is small.
 */
#define MAX_RATE			0.25

#define PAGES_PER_MB		(1024 * 1024 / BLCKSZ)

/*
 * The largest size at first, in MB.  While more than that is read, it is doubled, up to
 * remote_bp.advice_max_size: the smaller it is, the more pages are in the sample.
 */
#define FIRST_SIZE			1024

/*
 * A read from a donor is assumed to take this long, in us, until one was
 * measured: between RDMA and a slow network
 */
#define ASSUMED_DONOR_US	20.0

#define BYTES_PER_MB		INT64CONST(1048576)

/* Reads of a process that are added to those of all at once */
#define COUNT_BATCH			64

/* What was found since the last reset */
typedef struct Report
{
	TimestampTz since;
	uint32		size;			/* the largest, MB; 0: nothing is observed */
	double		rate;			/* share of the pages that are in the sample */
	uint64		reads;			/* of all pages */
	uint64		events;			/* in the sample */
	uint64		lost;
	uint64		timed;			/* reads that the disk served, and their time */
	uint64		timed_ns;
	RbpSimCounts counts;		/* of the sample */
} Report;

typedef struct AdviceShared
{
	/* read by each call, hardly ever written */
	pg_atomic_uint32 threshold; /* 0: nothing is observed */

	LWLock		lock __attribute__((aligned(PG_CACHE_LINE_SIZE)));
	pg_atomic_uint64 lost;
	pg_atomic_uint64 reads;		/* of pages in the sample or not */
	int			max_size;		/* the setting; 0: nothing is observed */
	Report		report;			/* what is not elsewhere */
} AdviceShared;

static AdviceShared *shared = NULL;
static RbpSim *sim;
static uint16 *frames;			/* number of the page plus 1; 0: none */
static uint32 own_reads;		/* not yet in shared->reads */

Size
rbp_advice_shmem_size(void)
{
	Size		size = CACHELINEALIGN(sizeof(AdviceShared));

	size = add_size(size, CACHELINEALIGN(rbp_sim_bytes()));
	return add_size(size, mul_size(sizeof(uint16), NBuffers));
}

void
rbp_advice_shmem_init(void *mem)
{
	AdviceShared *sh = mem;

	/* the rest is zeros: memory that is not used is not touched */
	memset(sh, 0, sizeof(*sh));
	LWLockInitialize(&sh->lock, rbp_lock_tranche("RemoteBpAdvice"));
	sim = (RbpSim *) ((char *) mem + CACHELINEALIGN(sizeof(AdviceShared)));
	frames = (uint16 *) ((char *) sim + CACHELINEALIGN(rbp_sim_bytes()));
	shared = sh;
}

void
rbp_advice_stand_down(void)
{
	shared = NULL;
}

/*
 * ---- switching it on and off -------------------------------------------------------
 */

/*
 * The share of pages to observe.  The largest simulated cache has no more than
 * RBP_SIM_SLOTS pages then, nor have shared buffers in the sample.
 */
static double
sampling_rate(int size)
{
	double		pages = Max((double) size * PAGES_PER_MB, (double) NBuffers);

	return Min(RBP_SIM_SLOTS / pages, MAX_RATE);
}

static void
reset_counts(void)
{
	memset(rbp_sim_counts(sim), 0, sizeof(RbpSimCounts));
	shared->report = (Report)
	{
		.size = shared->report.size,.since = GetCurrentTimestamp()
	};
	pg_atomic_write_u64(&shared->lost, 0);
	pg_atomic_write_u64(&shared->reads, 0);
}

int64
rbp_advice_watch(void)
{
	int			wanted = rbp_guc_advice ? rbp_guc_advice_max_size : 0;
	int			size = Min(wanted, FIRST_SIZE);
	double		rate;

	if (likely(shared->max_size == wanted))
	{
		if (likely(shared->report.size == wanted || !rbp_sim_outgrown(sim)))
			return -1;
		size = (int) Min((int64) shared->report.size * 2, wanted);
	}
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	pg_atomic_write_u32(&shared->threshold, 0);
	shared->max_size = wanted;
	shared->report.size = size;
	if (size > 0)
	{
		rate = sampling_rate(size);
		rbp_sim_init(sim, (uint32) (rate * size * PAGES_PER_MB + 0.5));
		reset_counts();
		memset(frames, 0, sizeof(uint16) * NBuffers);
		pg_atomic_write_u32(&shared->threshold, (uint32) (rate * PG_UINT32_MAX));
	}
	LWLockRelease(&shared->lock);
	return -1;
}

static inline uint32
current_threshold(void)
{
	/* a child may have detached all of shared memory */
	return shared == NULL || UsedShmemSegAddr == NULL ? 0 :
		pg_atomic_read_u32(&shared->threshold);
}

bool
rbp_advice_observes(void)
{
	return current_threshold() != 0 && MyProc != NULL &&
		rbp_guc_use_tier != RBP_USE_TIER_OFF;
}

/*
 * ---- events -----------------------------------------------------------------------
 */

static inline uint64
hash_fork(const RbpRelFile *file)
{
	return rbp_mix64(((uint64) file->spc << 32 | file->db) ^
					 rbp_mix64((uint64) file->rel << 8 | file->fork));
}

static inline uint64
hash_block(uint64 fork, BlockNumber block)
{
	return rbp_mix64(fork ^ (block * UINT64CONST(0x9e3779b97f4a7c15)));
}

/* Number of the frame; RBP_SIM_NO_FRAME if this is not one. */
static inline uint32
frame_number(const char *page)
{
	Size		offset = (Size) (page - BufferBlocks);

	return page >= BufferBlocks && offset < (Size) NBuffers * BLCKSZ ?
		(uint32) (offset / BLCKSZ) : RBP_SIM_NO_FRAME;
}

/*
 * Get the lock for n events, unless that would mean to wait or the sample has
 * changed since the threshold was read.  Then they are lost.
 */
static bool
lock_for(int n, uint32 threshold)
{
	if (LWLockConditionalAcquire(&shared->lock, LW_EXCLUSIVE))
	{
		if (pg_atomic_read_u32(&shared->threshold) == threshold)
		{
			shared->report.events += n;
			return true;
		}
		LWLockRelease(&shared->lock);
	}
	pg_atomic_fetch_add_u64(&shared->lost, n);
	return false;
}

/* Will the tier capture pages of the file that this process reads or writes? */
static RbpSimCapture
capture_of(const RbpRelFile *file)
{
	if (rbp_guc_use_tier == RBP_USE_TIER_READ || rbp_guc_read_from == RBP_READ_FILE || !rbp_tier_wants(file))
		return RBP_SIM_NEVER;
	return rbp_guc_read_from == RBP_READ_DONOR ? RBP_SIM_ALWAYS : RBP_SIM_RARELY;
}

void
rbp_advice_exits(void)
{
	if (own_reads > 0)
		(void) pg_atomic_fetch_add_u64(&shared->reads, own_reads);
	own_reads = 0;
}

static void
count_reads(uint32 n)
{
	rbp_process_needs_exit();
	own_reads += n;
	if (own_reads >= COUNT_BATCH)
		rbp_advice_exits();
}

/* The frame is about to be overwritten: what was in it leaves shared buffers. */
static void
evict(const char *page, uint32 f)
{
	uint16		number = frames[f];

	frames[f] = 0;
	if (!lock_for(1, pg_atomic_read_u32(&shared->threshold)))
		return;
	rbp_sim_evict(sim, number - 1, f, PageGetLSN((Page) page));
	LWLockRelease(&shared->lock);
}

void
rbp_advice_before_read(RbpAdviceRead *read, int fd, const RbpRelFile *file,
					   RbpCacheView *cache, const struct iovec *iov,
					   int iovcnt, off_t offset)
{
	uint32		threshold = pg_atomic_read_u32(&shared->threshold);
	uint64		fork = hash_fork(file);
	BlockNumber block = rbp_block_of(file, offset);
	Size		at = 0;

	read->n = 0;
	for (int i = 0; i < iovcnt; i++)
		for (Size pos = 0; pos < iov[i].iov_len; pos += BLCKSZ, at += BLCKSZ)
		{
			const char *page = (const char *) iov[i].iov_base + pos;
			uint32		f = frame_number(page);
			uint64		key = hash_block(fork, block++);

			if (f != RBP_SIM_NO_FRAME && unlikely(frames[f] != 0))
				evict(page, f);
			if (likely(key >> 32 >= threshold) || f == RBP_SIM_NO_FRAME)
				continue;
			if (read->n == RBP_ADVICE_PAGES)
			{
				pg_atomic_fetch_add_u64(&shared->lost, 1);
				continue;
			}
			read->pages[read->n].frame = page;
			read->pages[read->n].key = key;
			read->pages[read->n].at = at;
			if (!rbp_page_cache_ask(fd, cache, offset + (off_t) at, 1,
									&read->pages[read->n].cached))
				read->pages[read->n].cached = false;
			read->n++;
		}
	count_reads((uint32) (at / BLCKSZ));
	if (likely(read->n == 0))
		return;
	read->fd = fd;
	read->file = file;
	read->cache = cache;
	read->offset = offset;
	read->timed = at == BLCKSZ && !read->pages[0].cached &&
		!(rbp_tier_attached() && rbp_tier_has_block(file, block - 1, false));
	read->start = rbp_now_ns();
}

void
rbp_advice_after_read(const RbpAdviceRead *read, ssize_t bytes)
{
	uint32		threshold = current_threshold();
	RbpSimEvent event = {.fork = 0};
	RbpSimCapture capture;
	int			save_errno = errno;

	if (likely(read->n == 0))
		return;
	event.now = rbp_now_ns();
	event.fork = hash_fork(read->file);
	capture = capture_of(read->file);
	/* the tier does this itself, and knows what came from the file */
	if (!rbp_tier_attached() && bytes > 0)
		rbp_page_cache_learn(read->fd, read->cache, read->offset);
	if (lock_for(read->n, threshold))
	{
		for (int i = 0; i < read->n; i++)
		{
			const char *page = read->pages[i].frame;

			if (bytes < (ssize_t) (read->pages[i].at + BLCKSZ))
				break;
			event.key = read->pages[i].key;
			event.frame = frame_number(page);
			event.lsn = PageGetLSN((Page) page);
			event.cached = read->pages[i].cached;
			event.capture = capture == RBP_SIM_RARELY && !event.cached ? RBP_SIM_ALWAYS : capture;
			/* RBP_SIM_NONE becomes 0 */
			frames[event.frame] = (uint16) (rbp_sim_read(sim, &event) + 1);
			if (read->timed)
			{
				shared->report.timed++;
				shared->report.timed_ns += (uint64) (event.now - read->start);
			}
		}
		LWLockRelease(&shared->lock);
	}
	errno = save_errno;
}

/* A page in the sample has been written. */
static void
wrote(const RbpRelFile *file, uint64 fork, uint64 key, BlockNumber block,
	  const char *page, uint32 threshold)
{
	RbpSimEvent event = {.key = key,.fork = fork,.lsn = PageGetLSN((Page) page)};
	uint16		number;

	event.frame = frame_number(page);
	/* the server has written from a copy, or a page that is in no frame */
	if (event.frame == RBP_SIM_NO_FRAME && DataChecksumsEnabled())
		page = rbp_tier_find_frame(file, block);
	event.frame = page == NULL ? RBP_SIM_NO_FRAME : frame_number(page);
	event.capture = event.frame == RBP_SIM_NO_FRAME ? RBP_SIM_NEVER : capture_of(file);
	event.scarce = !rbp_choice_cache_keeps();
	event.evicted = rbp_tier_write_evicts();
	if (!lock_for(1, threshold))
		return;
	number = rbp_sim_write(sim, &event);
	if (number != RBP_SIM_NONE && event.frame != RBP_SIM_NO_FRAME)
		frames[event.frame] = number + 1;
	LWLockRelease(&shared->lock);
}

void
rbp_advice_after_write(const RbpRelFile *file, const struct iovec *iov,
					   int iovcnt, off_t offset, ssize_t bytes)
{
	uint32		threshold = pg_atomic_read_u32(&shared->threshold);
	uint64		fork = hash_fork(file);
	BlockNumber block = rbp_block_of(file, offset);
	int			save_errno = errno;

	for (int i = 0; i < iovcnt; i++)
	{
		/* only whole pages are ever in shared buffers */
		if (offset % BLCKSZ != 0 || iov[i].iov_len % BLCKSZ != 0)
			break;
		for (Size pos = 0; pos < iov[i].iov_len && bytes >= BLCKSZ; pos += BLCKSZ)
		{
			const char *page = (const char *) iov[i].iov_base + pos;
			uint64		key = hash_block(fork, block);

			/* a page of zeros is being created, and written again soon */
			if (unlikely(key >> 32 < threshold) && !PageIsNew((Page) page))
				wrote(file, fork, key, block, page, threshold);
			bytes -= BLCKSZ;
			block++;
		}
	}
	errno = save_errno;
}

void
rbp_advice_forget(const RbpRelFile *file, BlockNumber block, BlockNumber nblocks)
{
	uint32		threshold = current_threshold();
	uint64		fork = hash_fork(file);
	bool		all = nblocks > RBP_FEW_BLOCKS || MyProc == NULL;

	if (threshold == 0 || nblocks == 0)
		return;
	for (BlockNumber i = 0; i < nblocks && !all; i++)
	{
		uint64		key = hash_block(fork, block + i);

		if (likely(key >> 32 >= threshold))
			continue;
		all = !LWLockConditionalAcquire(&shared->lock, LW_EXCLUSIVE);
		if (all)
			break;
		rbp_sim_forget(sim, key);
		LWLockRelease(&shared->lock);
	}
	if (all)
		rbp_sim_forget_fork(sim, fork);
}

/*
 * ---- remote_bp_advice, its reset, remote_bp_working_set() --------------------------
 */

static void
take_report(Report *report)
{
	LWLockAcquire(&shared->lock, LW_SHARED);
	*report = shared->report;
	report->rate = (double) pg_atomic_read_u32(&shared->threshold) / PG_UINT32_MAX;
	report->lost = pg_atomic_read_u64(&shared->lost);
	report->reads = pg_atomic_read_u64(&shared->reads);
	report->counts = *rbp_sim_counts(sim);
	LWLockRelease(&shared->lock);
	report->lost += report->counts.overflows;
}

/* Mean time of reading a page from a donor, in us; 0 if none was read yet. */
static double
measured_donor_us(void)
{
	uint64		counters[RBP_NUM_COUNTERS];

	rbp_stats_sum(counters);
	return counters[RBP_COUNT_DONOR] == 0 ? 0 :
		counters[RBP_COUNT_NS + RBP_LATENCY_DONOR] / RBP_NS_PER_US / (double) counters[RBP_COUNT_DONOR];
}

/*
 * What n reads of the sample are of all reads; *before are those of other kinds.
 * Sums are rounded, so that all kinds add up to all reads.
 */
static int64
estimate(uint64 n, uint64 *before, double scale)
{
	double		sum = (double) *before * scale;

	*before += n;
	return (int64) ((double) *before * scale + 0.5) - (int64) (sum + 0.5);
}

/* The estimates for one size; a hit saves so many us. */
static void
put_estimates(RbpRow *row, const Report *report, int k, double saved_us)
{
	const RbpSimReads *all = &report->counts.all;
	const uint64 *hits = all->hits[k];
	double		seconds = (double) (GetCurrentTimestamp() - report->since) / USECS_PER_SEC;
	double		ratio = 0;
	double		error = 0;
	bool		unknown = !rbp_sim_hit_ratio(&report->counts, k, &ratio, &error);

	/* the sample may have more or less of the reads than of the pages */
	double		scale = (double) report->reads / Max((double) (all->reads[0] + all->reads[1]), 1);
	uint64		before = 0;
	int64		cached = estimate(hits[1], &before, scale);

	rbp_row_put(row, "hit_ratio", Float8GetDatum(ratio), unknown);
	rbp_row_put(row, "hit_ratio_error", Float8GetDatum(error), unknown);
	rbp_row_put(row, "hits", Int64GetDatum(cached + estimate(hits[0], &before, scale)), unknown);
	rbp_row_put(row, "first_reads",
				Int64GetDatum(estimate(all->first[0] + all->first[1], &before, scale)), unknown);
	rbp_row_put(row, "page_cache_reads",
				Int64GetDatum(estimate(all->reads[1] - all->first[1] - hits[1], &before, scale)), unknown);
	rbp_row_put(row, "disk_reads",
				Int64GetDatum(estimate(all->reads[0] - all->first[0] - hits[0], &before, scale)), unknown);
	rbp_row_put(row, "page_cache_hits", Int64GetDatum(cached), unknown);
	rbp_row_put(row, "saved_ms_per_s",
				Float8GetDatum(saved_us * (double) hits[0] * scale / 1000.0 / Max(seconds, 0.001)),
				unknown || report->timed == 0);
}

Datum
rbp_sql_advice(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);
	Report		report;
	double		donor_us = measured_donor_us();
	bool		donor_measured = donor_us > 0;
	double		disk_us;

	take_report(&report);
	if (report.size == 0)
		return (Datum) 0;
	if (!donor_measured)
		donor_us = ASSUMED_DONOR_US;
	disk_us = report.timed == 0 ? 0 : report.timed_ns / RBP_NS_PER_US / (double) report.timed;
	for (int k = 0; k < RBP_SIM_SIZES; k++)
	{
		RbpRow		row = {0};

		rbp_row_count(&row, "tier_size", report.size * BYTES_PER_MB * rbp_sim_units[k] / RBP_SIM_UNITS);
		put_estimates(&row, &report, k, Max(disk_us - donor_us, 0));
		rbp_row_count(&row, "reads", report.reads);
		rbp_row_put(&row, "disk_read_us", Float8GetDatum(disk_us), report.timed == 0);
		rbp_row_put(&row, "donor_read_us", Float8GetDatum(donor_us), false);
		rbp_row_put(&row, "donor_measured", BoolGetDatum(donor_measured), false);
		rbp_row_put(&row, "sample_rate", Float8GetDatum(report.rate), false);
		rbp_row_count(&row, "events", report.events);
		rbp_row_count(&row, "lost_events", report.lost);
		rbp_row_put(&row, "observed_since", TimestampTzGetDatum(report.since), false);
		rbp_sql_add_row(rsinfo, &row);
	}
	return (Datum) 0;
}

Datum
rbp_sql_advice_reset(PG_FUNCTION_ARGS)
{
	rbp_sql_require_loaded();
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	reset_counts();
	LWLockRelease(&shared->lock);
	PG_RETURN_VOID();
}

Datum
rbp_sql_working_set(PG_FUNCTION_ARGS)
{
	const		Interval *within = PG_GETARG_INTERVAL_P(0);
	Report		report;
	double		seconds;
	int64		since;
	int64		pages;

	rbp_sql_require_loaded();
	seconds = (double) within->time / USECS_PER_SEC +
		((double) within->month * DAYS_PER_MONTH + within->day) * SECS_PER_DAY;
	take_report(&report);
	if (report.size == 0)
		PG_RETURN_NULL();
	/* no server runs longer than a century */
	since = rbp_now_ns() - (int64) (Min(Max(seconds, 0), 3e9) * 1e9);
	LWLockAcquire(&shared->lock, LW_SHARED);
	pages = rbp_sim_read_since(sim, since);
	LWLockRelease(&shared->lock);
	if (pages < 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64((int64) ((double) pages / report.rate + 0.5) * BLCKSZ);
}
