/*-------------------------------------------------------------------------
 *
 * sql.c
 *	  Common parts of the functions that are called from SQL, and
 *	  remote_bp_stat_latency.
 *
 * None of these functions holds a lock for longer than it takes to read
 * shared memory, and none waits for I/O.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "common/relpath.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/counter_table.h"
#include "base/sql.h"
#include "base/stats.h"

PG_FUNCTION_INFO_V1(rbp_sql_stat_latency);

void
rbp_sql_require_loaded(void)
{
	if (!rbp_stats_attached())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("remote_bp must be loaded via shared_preload_libraries"),
				 errhint("Add remote_bp to shared_preload_libraries and restart the server.")));
}

ReturnSetInfo *
rbp_sql_start_rows(FunctionCallInfo fcinfo)
{
	rbp_sql_require_loaded();
	InitMaterializedSRF(fcinfo, 0);
	return (ReturnSetInfo *) fcinfo->resultinfo;
}

void
rbp_sql_check_buffered(Relation rel)
{
	if (!RELKIND_HAS_STORAGE(rel->rd_rel->relkind))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("relation \"%s\" does not have storage",
						RelationGetRelationName(rel)),
				 errdetail_relkind_not_supported(rel->rd_rel->relkind),
				 RELKIND_HAS_PARTITIONS(rel->rd_rel->relkind) ?
				 errhint("Name its partitions instead.") : 0));
	if (rel->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("relation \"%s\" is temporary",
						RelationGetRelationName(rel)),
				 errhint("Its pages are never in the buffer tier; see remote_bp_temp_files.")));
}

/*
 * ---- rows ------------------------------------------------------------------
 */

void
rbp_row_put(RbpRow *row, const char *column, Datum value, bool isnull)
{
	Assert(row->n < RBP_ROW_COLUMNS);
	row->columns[row->n] = column;
	row->values[row->n] = value;
	row->nulls[row->n] = isnull;
	row->n++;
}

void
rbp_row_text(RbpRow *row, const char *column, const char *text)
{
	bool		isnull = text == NULL || text[0] == '\0';

	rbp_row_put(row, column, isnull ? (Datum) 0 : CStringGetTextDatum(text), isnull);
}

void
rbp_row_count(RbpRow *row, const char *column, uint64 count)
{
	rbp_row_put(row, column, Int64GetDatum((int64) count), false);
}

void
rbp_row_quantile(RbpRow *row, const char *column, const uint64 *buckets, double q)
{
	int64		ns = rbp_histogram_quantile(buckets, q);

	rbp_row_put(row, column, Float8GetDatum(ns / RBP_NS_PER_US), ns < 0);
}

void
rbp_row_counter(RbpRow *row, const char *column, const uint64 *counters, int counter)
{
	uint64		value = rbp_stats_column(counters, counter);

	if (rbp_counter_is_time(counter))
		rbp_row_put(row, column, Float8GetDatum((double) value / RBP_NS_PER_MS), false);
	else
		rbp_row_count(row, column, value);
}

void
rbp_row_usage(RbpRow *row, const uint64 *counters)
{
	for (int c = 0; c < RBP_NUM_USAGE_ITEMS; c++)
		rbp_row_counter(row, rbp_counter_names[c], counters, c);
}

void
rbp_row_fork(RbpRow *row, Oid tablespace, uint32 rel, uint32 fork)
{
	/* not found: rewritten, dropped, or created by a running transaction */
	Oid			relid = RelidByRelfilenumber(tablespace, rel);

	rbp_row_put(row, "relation", ObjectIdGetDatum(relid), !OidIsValid(relid));
	rbp_row_put(row, "relfilenode", ObjectIdGetDatum(rel), false);
	rbp_row_text(row, "fork", fork <= MAX_FORKNUM ? forkNames[fork] : "?");
}

bool
rbp_row_database(RbpRow *row, Oid database)
{
	char	   *name = get_database_name(database);

	rbp_row_put(row, "datid", ObjectIdGetDatum(database), false);
	rbp_row_put(row, "database", name == NULL ? (Datum) 0 :
				DirectFunctionCall1(namein, CStringGetDatum(name)), name == NULL);
	return name != NULL;
}

/* Bring the row's values into the order of the columns. */
static void
sort_values(const RbpRow *row, TupleDesc desc, Datum *values, bool *nulls)
{
	for (int column = 0; column < desc->natts; column++)
	{
		int			i = 0;

		while (i < row->n && strcmp(NameStr(TupleDescAttr(desc, column)->attname), row->columns[i]) != 0)
			i++;
		if (i == row->n)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the installed version of extension \"%s\" is newer than the loaded library", "remote_bp"),
					 errhint("Restart the server.")));
		values[column] = row->values[i];
		nulls[column] = row->nulls[i];
	}
}

void
rbp_sql_add_row(ReturnSetInfo *rsinfo, const RbpRow *row)
{
	Datum		values[RBP_ROW_COLUMNS];
	bool		nulls[RBP_ROW_COLUMNS];

	sort_values(row, rsinfo->setDesc, values, nulls);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

Datum
rbp_sql_one_row(FunctionCallInfo fcinfo, const RbpRow *row)
{
	TupleDesc	desc;
	Datum		values[RBP_ROW_COLUMNS];
	bool		nulls[RBP_ROW_COLUMNS];

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	sort_values(row, desc, values, nulls);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

void
rbp_sql_counter_rows(ReturnSetInfo *rsinfo, RbpCounterTable *table,
					 bool (*fn) (const RbpCounterRow *counters, RbpRow *row))
{
	int			n;
	RbpCounterRow *rows = rbp_counter_table_copy(table, &n, true);

	for (int r = 0; r < n; r++)
	{
		RbpRow		row = {0};

		CHECK_FOR_INTERRUPTS();
		if (!fn(&rows[r], &row))
			continue;
		rbp_row_usage(&row, rows[r].values);
		rbp_sql_add_row(rsinfo, &row);
	}
	pfree(rows);
}

/*
 * ---- remote_bp_stat_latency --------------------------------------------------
 */

Datum
rbp_sql_stat_latency(PG_FUNCTION_ARGS)
{
	static const RbpLatency rows[RBP_NUM_LATENCIES] = {
		RBP_LATENCY_DONOR, RBP_LATENCY_STAGED, RBP_LATENCY_PAGE_CACHE, RBP_LATENCY_DISK,
		RBP_LATENCY_FILE, RBP_LATENCY_CAPTURES, RBP_LATENCY_PUSH, RBP_LATENCY_CONNECT,
		RBP_LATENCY_SPILL_READS, RBP_LATENCY_SPILL_WRITES
	};
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);
	uint64		counters[RBP_NUM_COUNTERS];
	uint64		buckets[RBP_LATENCY_BUCKETS];

	for (int r = 0; r < RBP_NUM_LATENCIES; r++)
	{
		RbpLatency	op = rows[r];
		RbpRow		row = {0};
		Datum		lower[RBP_LATENCY_BUCKETS];
		Datum		counts[RBP_LATENCY_BUCKETS];
		int			n = 0;
		uint64		calls = 0;

		/* in this order: a call's time is added before the call */
		rbp_stats_histogram(op, buckets);
		rbp_stats_sum(counters);
		rbp_row_text(&row, "operation", rbp_latency_names[op]);
		rbp_row_quantile(&row, "p50_us", buckets, 0.50);
		rbp_row_quantile(&row, "p90_us", buckets, 0.90);
		rbp_row_quantile(&row, "p99_us", buckets, 0.99);

		/* non-empty buckets, identified by their lower bounds */
		for (int b = 0; b < RBP_LATENCY_BUCKETS; b++)
		{
			if (buckets[b] == 0)
				continue;
			calls += buckets[b];
			lower[n] = Float8GetDatum(rbp_latency_lower(b) / RBP_NS_PER_US);
			counts[n] = Int64GetDatum((int64) buckets[b]);
			n++;
		}
		rbp_row_count(&row, "calls", calls);
		rbp_row_put(&row, "mean_us",
					Float8GetDatum(counters[RBP_COUNT_NS + op] / Max((double) calls, 1) / RBP_NS_PER_US),
					calls == 0);
		rbp_row_put(&row, "buckets_us",
					PointerGetDatum(construct_array(lower, n, FLOAT8OID, sizeof(float8),
													FLOAT8PASSBYVAL, TYPALIGN_DOUBLE)), false);
		rbp_row_put(&row, "counts",
					PointerGetDatum(construct_array(counts, n, INT8OID, sizeof(int64),
													FLOAT8PASSBYVAL, TYPALIGN_DOUBLE)), false);
		rbp_sql_add_row(rsinfo, &row);
	}
	return (Datum) 0;
}
