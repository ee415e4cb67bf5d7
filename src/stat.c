/*-------------------------------------------------------------------------
 *
 * stat.c
 *	  remote_bp_stat and remote_bp_stat_spill: the counters of all modules, in
 *	  one row each.
 *
 * finish_row() raises an error if a column has no value, and put_counters() if
 * a counter's column has another name in the installed version of the
 * extension.  A later version adds its columns at the end, so a library also
 * serves the columns of an older version.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/page_cache.h"
#include "base/sql.h"
#include "base/stats.h"
#include "buffer/buffer.h"
#include "remote/remote.h"
#include "spill/spill.h"

PG_FUNCTION_INFO_V1(rbp_sql_stat);
PG_FUNCTION_INFO_V1(rbp_sql_stat_spill);
PG_FUNCTION_INFO_V1(rbp_sql_stat_reset);

/* Columns of remote_bp_stat, as the installation script has them */
typedef enum TierColumn
{
	TIER_USABLE,
	TIER_UNUSABLE_REASON,
	TIER_LAST_ERROR,
	TIER_LAST_ERROR_AT,
	TIER_PAGE_CACHE_ASKED_BY,
	TIER_COUNTERS,				/* the first of them */
	TIER_REMOTE_PAGES = TIER_COUNTERS + RBP_NUM_TIER_COUNTERS,
	TIER_KEPT_PAGES,
	TIER_STAGED_PAGES,
	TIER_FREE_PAGES,
	TIER_ONLINE_PAGES,
	TIER_MAX_PAGES,
	TIER_STATS_RESET,
	TIER_COUNTERS_1_1,			/* the first of those of version 1.1 */
	NUM_TIER_COLUMNS = TIER_COUNTERS_1_1 + RBP_NUM_TIER_COUNTERS_1_1
} TierColumn;

/* Columns of remote_bp_stat_spill, as the installation script has them */
typedef enum SpillColumn
{
	SPILL_USABLE,
	SPILL_UNUSABLE_REASON,
	SPILL_COUNTERS,				/* the first of them */
	SPILL_FILE_US = SPILL_COUNTERS + RBP_NUM_SPILL_COUNTERS,
	SPILL_DONOR_US,
	SPILL_PAGES,
	SPILL_FREE_PAGES,
	SPILL_ONLINE_PAGES,
	SPILL_QUARANTINED_PAGES,
	SPILL_LOST_PAGES,
	SPILL_FILES,
	SPILL_STATS_RESET,
	NUM_SPILL_COLUMNS
} SpillColumn;

/* A row under construction */
typedef struct Row
{
	TupleDesc	desc;
	Datum	   *values;
	bool	   *nulls;
	bool	   *filled;
} Row;

static void
start_row(Row *row, FunctionCallInfo fcinfo, int columns)
{
	rbp_sql_require_loaded();
	if (get_call_result_type(fcinfo, NULL, &row->desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (row->desc->natts > columns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the installed version of extension \"%s\" is newer than the loaded library", "remote_bp"),
				 errhint("Restart the server.")));
	row->desc = BlessTupleDesc(row->desc);
	row->values = palloc0(sizeof(Datum) * columns);
	row->nulls = palloc0(sizeof(bool) * columns);
	row->filled = palloc0(sizeof(bool) * columns);
}

static void
put_null(Row *row, int column)
{
	row->filled[column] = true;
	row->nulls[column] = true;
}

static void
put(Row *row, int column, Datum value)
{
	row->filled[column] = true;
	row->values[column] = value;
}

/* An empty text becomes null. */
static void
put_text(Row *row, int column, const char *text)
{
	if (text[0] == '\0')
		put_null(row, column);
	else
		put(row, column, CStringGetTextDatum(text));
}

static void
put_count(Row *row, int column, uint64 count)
{
	put(row, column, Int64GetDatum((int64) count));
}

/* 0 means that the time is not known, and becomes null. */
static void
put_us(Row *row, int column, double us)
{
	if (us == 0)
		put_null(row, column);
	else
		put(row, column, Float8GetDatum(us));
}

/* Put the counters from first to end - 1, beginning at that column. */
static void
put_counters(Row *row, int column, int first, int end)
{
	uint64		counters[RBP_NUM_COUNTERS];

	rbp_stats_sum(counters);
	for (int c = first; c < end; c++, column++)
	{
		if (column < row->desc->natts &&
			strcmp(NameStr(TupleDescAttr(row->desc, column)->attname), rbp_counter_names[c]) != 0)
			elog(ERROR, "column %d is \"%s\" instead of \"%s\"", column + 1,
				 NameStr(TupleDescAttr(row->desc, column)->attname), rbp_counter_names[c]);
		put_count(row, column, counters[c]);
	}
}

static Datum
finish_row(Row *row)
{
	for (int column = 0; column < row->desc->natts; column++)
		if (!row->filled[column])
			elog(ERROR, "column \"%s\" has no value",
				 NameStr(TupleDescAttr(row->desc, column)->attname));
	return HeapTupleGetDatum(heap_form_tuple(row->desc, row->values, row->nulls));
}

Datum
rbp_sql_stat(PG_FUNCTION_ARGS)
{
	char		reason[RBP_LAST_ERROR_LEN];
	bool		unusable;
	char		error[RBP_LAST_ERROR_LEN];
	TimestampTz error_at;
	RbpTierPages pages;
	Row			row;

	start_row(&row, fcinfo, NUM_TIER_COLUMNS);
	unusable = rbp_tier_unusable_reason(reason, sizeof(reason));
	put(&row, TIER_USABLE, BoolGetDatum(!unusable));
	put_text(&row, TIER_UNUSABLE_REASON, unusable ? reason : "");

	rbp_stats_last_error(error, sizeof(error), &error_at);
	put_text(&row, TIER_LAST_ERROR, error);
	if (error[0] == '\0')
		put_null(&row, TIER_LAST_ERROR_AT);
	else
		put(&row, TIER_LAST_ERROR_AT, TimestampTzGetDatum(error_at));
	put_text(&row, TIER_PAGE_CACHE_ASKED_BY, rbp_page_cache_method());

	put_counters(&row, TIER_COUNTERS, 0, RBP_NUM_TIER_COUNTERS);

	rbp_tier_pages(&pages);
	put_count(&row, TIER_REMOTE_PAGES, pages.remote);
	put_count(&row, TIER_KEPT_PAGES, pages.kept);
	put_count(&row, TIER_STAGED_PAGES, pages.staged);
	put_count(&row, TIER_FREE_PAGES, pages.free);
	put_count(&row, TIER_ONLINE_PAGES, pages.online);
	put_count(&row, TIER_MAX_PAGES, pages.max);
	put(&row, TIER_STATS_RESET, TimestampTzGetDatum(rbp_stats_reset_time()));
	put_counters(&row, TIER_COUNTERS_1_1, RBP_COUNT_READ_AHEAD, RBP_NUM_COUNTERS);
	PG_RETURN_DATUM(finish_row(&row));
}

Datum
rbp_sql_stat_spill(PG_FUNCTION_ARGS)
{
	char		reason[RBP_LAST_ERROR_LEN];
	bool		unusable;
	RbpSpillUsage usage;
	Row			row;

	start_row(&row, fcinfo, NUM_SPILL_COLUMNS);
	unusable = rbp_remote_unusable_reason(RBP_POOL_TEMP, reason, sizeof(reason));
	put(&row, SPILL_USABLE, BoolGetDatum(!unusable));
	put_text(&row, SPILL_UNUSABLE_REASON, unusable ? reason : "");

	put_counters(&row, SPILL_COUNTERS, RBP_NUM_TIER_COUNTERS,
				 RBP_NUM_TIER_COUNTERS + RBP_NUM_SPILL_COUNTERS);
	put_us(&row, SPILL_FILE_US, rbp_spill_cost_us(RBP_SPILL_FILE));
	put_us(&row, SPILL_DONOR_US, rbp_spill_cost_us(RBP_SPILL_DONOR));

	rbp_spill_get_usage(&usage);
	put_count(&row, SPILL_PAGES, usage.used);
	put_count(&row, SPILL_FREE_PAGES, usage.free);
	put_count(&row, SPILL_ONLINE_PAGES, usage.online);
	put_count(&row, SPILL_QUARANTINED_PAGES, usage.quarantined);
	/* slots of lost regions; the counter "lost" is about failed reads */
	put_count(&row, SPILL_LOST_PAGES, usage.dead);
	put_count(&row, SPILL_FILES, usage.files);
	put(&row, SPILL_STATS_RESET, TimestampTzGetDatum(rbp_stats_reset_time()));
	PG_RETURN_DATUM(finish_row(&row));
}

Datum
rbp_sql_stat_reset(PG_FUNCTION_ARGS)
{
	rbp_sql_require_loaded();
	rbp_stats_reset();
	rbp_remote_stats_reset();
	PG_RETURN_VOID();
}
