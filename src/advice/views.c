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
put_estimates(RbpRow *row, const RbpAdviceReport *report, int k, double saved_us)
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
	RbpAdviceReport report;
	double		donor_us = measured_donor_us();
	bool		donor_measured = donor_us > 0;
	double		disk_us;

	rbp_advice_report(&report);
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
	if (report.size == 0)
		PG_RETURN_NULL();
	/* no server runs longer than a century */
	pages = rbp_advice_read_within((int64) (Min(Max(seconds, 0), 3e9) * 1e9));
	if (pages < 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64((int64) ((double) pages / report.rate + 0.5) * BLCKSZ);
}
