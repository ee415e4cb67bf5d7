/*-------------------------------------------------------------------------
 *
 * views.c
 *	  remote_bp_advice, its reset, and remote_bp_working_set().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "datatype/timestamp.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/timestamp.h"

#include "advice/advice_internal.h"
#include "advice/simulation.h"
#include "base/sql.h"
#include "base/stats.h"

PG_FUNCTION_INFO_V1(rbp_sql_advice);
PG_FUNCTION_INFO_V1(rbp_sql_advice_reset);
PG_FUNCTION_INFO_V1(rbp_sql_working_set);

/*
 * A read from a donor is assumed to take this long, in us, until one was
 * measured: between RDMA and a slow network
 */
#define ASSUMED_DONOR_US	20.0

#define BYTES_PER_MB		INT64CONST(1048576)

/* Mean time of reading a page from a donor, in us; 0 if none was read yet. */
static double
measured_donor_us(void)
{
	uint64		counters[RBP_NUM_COUNTERS];
	RbpHistogram h;

	rbp_stats_sum(counters);
	rbp_stats_histogram(RBP_LATENCY_HIT, &h);
	return counters[RBP_COUNT_HITS] == 0 ? 0 :
		h.sum_ns / RBP_NS_PER_US / (double) counters[RBP_COUNT_HITS];
}

Datum
rbp_sql_advice(PG_FUNCTION_ARGS)
{
	enum
	{
		TIER_SIZE, HITS, PAGE_CACHE_HITS, HIT_RATIO, DISK_READS, SAVED_MS_PER_S,
		READS, PAGE_CACHE_READS, DISK_READ_US, DONOR_READ_US, DONOR_MEASURED,
		SAMPLE_RATE, EVENTS, LOST_EVENTS, OBSERVED_SINCE, COLUMNS
	};
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo, COLUMNS);
	RbpAdviceReport report;
	const RbpSimCounts *c = &report.counts;
	double		donor_us = measured_donor_us();
	bool		donor_measured = donor_us > 0;
	double		disk_us;
	double		seconds;
	uint64		sampled;
	double		scale;

	rbp_advice_report(&report);
	if (report.max_size == 0)
		return (Datum) 0;
	if (!donor_measured)
		donor_us = ASSUMED_DONOR_US;
	disk_us = report.timed == 0 ? 0 : report.timed_ns / RBP_NS_PER_US / (double) report.timed;
	seconds = (double) (GetCurrentTimestamp() - report.since) / USECS_PER_SEC;
	/* the sample may have more or less of the reads than of the pages */
	sampled = c->reads[0] + c->reads[1];
	scale = (double) report.reads / (double) Max(sampled, 1);
	for (int k = 0; k < RBP_SIM_SIZES; k++)
	{
		const uint64 *hits = c->hits[k];
		double		saved_us = Max(disk_us - donor_us, 0) * (double) hits[0] * scale;
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};

#define ESTIMATE(n)		Int64GetDatum((int64) ((double) (n) * scale + 0.5))
		values[TIER_SIZE] = Int64GetDatum(report.max_size * BYTES_PER_MB *
										  rbp_sim_units[k] / RBP_SIM_UNITS);
		values[HITS] = ESTIMATE(hits[0] + hits[1]);
		values[PAGE_CACHE_HITS] = ESTIMATE(hits[1]);
		values[HIT_RATIO] = Float8GetDatum((double) (hits[0] + hits[1]) / (double) Max(sampled, 1));
		nulls[HIT_RATIO] = sampled == 0;
		values[DISK_READS] = ESTIMATE(c->reads[0] - hits[0]);
		values[SAVED_MS_PER_S] = Float8GetDatum(saved_us / 1000.0 / Max(seconds, 0.001));
		nulls[SAVED_MS_PER_S] = report.timed == 0;
		values[READS] = ESTIMATE(c->reads[0] + c->reads[1]);
		values[PAGE_CACHE_READS] = ESTIMATE(c->reads[1]);
		values[DISK_READ_US] = Float8GetDatum(disk_us);
		nulls[DISK_READ_US] = report.timed == 0;
		values[DONOR_READ_US] = Float8GetDatum(donor_us);
		values[DONOR_MEASURED] = BoolGetDatum(donor_measured);
		values[SAMPLE_RATE] = Float8GetDatum(report.rate);
		values[EVENTS] = Int64GetDatum((int64) report.events);
		values[LOST_EVENTS] = Int64GetDatum((int64) report.lost);
		values[OBSERVED_SINCE] = TimestampTzGetDatum(report.since);
#undef ESTIMATE
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

Datum
rbp_sql_advice_reset(PG_FUNCTION_ARGS)
{
	rbp_sql_require_loaded();
	rbp_advice_reset();
	PG_RETURN_VOID();
}

Datum
rbp_sql_working_set(PG_FUNCTION_ARGS)
{
	const		Interval *within = PG_GETARG_INTERVAL_P(0);
	RbpAdviceReport report;
	double		seconds;
	int64		pages;

	rbp_sql_require_loaded();
	seconds = (double) within->time / USECS_PER_SEC +
		((double) within->month * DAYS_PER_MONTH + within->day) * SECS_PER_DAY;
	rbp_advice_report(&report);
	if (report.max_size == 0)
		PG_RETURN_NULL();
	/* no server runs longer than a century */
	pages = rbp_advice_read_within((int64) (Min(Max(seconds, 0), 3e9) * 1e9));
	if (pages < 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64((int64) ((double) pages / report.rate + 0.5) * BLCKSZ);
}
