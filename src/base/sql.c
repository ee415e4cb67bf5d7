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
rbp_sql_start_rows(FunctionCallInfo fcinfo, int columns)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	rbp_sql_require_loaded();
	InitMaterializedSRF(fcinfo, 0);
	if (rsinfo->setDesc->natts != columns)
		elog(ERROR, "function is declared with %d columns, the library fills %d",
			 rsinfo->setDesc->natts, columns);
	return rsinfo;
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

void
rbp_sql_quantile(const uint64 *buckets, double q, Datum *value, bool *isnull)
{
	int64		ns = rbp_histogram_quantile(buckets, q);

	*value = Float8GetDatum(ns / RBP_NS_PER_US);
	*isnull = ns < 0;
}

Datum
rbp_sql_counter(const uint64 *counters, int counter)
{
	uint64		value = rbp_stats_column(counters, counter);

	return rbp_counter_is_time(counter) ? Float8GetDatum((double) value / RBP_NS_PER_MS) :
		Int64GetDatum((int64) value);
}

/* Set the values of the row's columns from that one on, which have counters' names. */
static void
put_usage(TupleDesc desc, int column, const uint64 *counters, Datum *values)
{
	for (; column < desc->natts; column++)
	{
		const char *name = NameStr(TupleDescAttr(desc, column)->attname);
		int			counter = 0;

		while (counter < RBP_NUM_USAGE_ITEMS && strcmp(name, rbp_counter_names[counter]) != 0)
			counter++;
		if (counter == RBP_NUM_USAGE_ITEMS)
			elog(ERROR, "nothing is counted for column \"%s\"", name);
		values[column] = rbp_sql_counter(counters, counter);
	}
}

void
rbp_sql_counter_rows(ReturnSetInfo *rsinfo, RbpCounterTable *table, int column,
					 bool (*fn) (const RbpCounterRow *row, Datum *values, bool *nulls))
{
	int			n;
	RbpCounterRow *rows = rbp_counter_table_copy(table, &n, true);

	for (int r = 0; r < n; r++)
	{
		/* a key has four columns at most */
		Datum		values[RBP_COUNTER_VALUES + 4];
		bool		nulls[RBP_COUNTER_VALUES + 4] = {0};

		CHECK_FOR_INTERRUPTS();
		if (!fn(&rows[r], values, nulls))
			continue;
		put_usage(rsinfo->setDesc, column, rows[r].values, values);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	pfree(rows);
}

void
rbp_sql_fork(Oid tablespace, uint32 rel, uint32 fork, Datum *values, bool *nulls)
{
	/* not found: rewritten, dropped, or created by a running transaction */
	Oid			relid = RelidByRelfilenumber(tablespace, rel);

	values[0] = ObjectIdGetDatum(relid);
	nulls[0] = !OidIsValid(relid);
	values[1] = ObjectIdGetDatum(rel);
	values[2] = CStringGetTextDatum(fork <= MAX_FORKNUM ? forkNames[fork] : "?");
}

bool
rbp_sql_database(Oid database, Datum *values, bool *nulls)
{
	char	   *name = get_database_name(database);

	values[0] = ObjectIdGetDatum(database);
	nulls[1] = name == NULL;
	if (name != NULL)
		values[1] = DirectFunctionCall1(namein, CStringGetDatum(name));
	return name != NULL;
}

/*
 * ---- remote_bp_stat_latency --------------------------------------------------
 */

Datum
rbp_sql_stat_latency(PG_FUNCTION_ARGS)
{
	enum
	{
		OPERATION, CALLS, MEAN_US, P50_US, P90_US, P99_US, BUCKETS_US, COUNTS,
		COLUMNS
	};
	static const RbpLatency rows[RBP_NUM_LATENCIES] = {
		RBP_LATENCY_DONOR, RBP_LATENCY_STAGED, RBP_LATENCY_PAGE_CACHE, RBP_LATENCY_DISK,
		RBP_LATENCY_FILE, RBP_LATENCY_CAPTURES, RBP_LATENCY_PUSH, RBP_LATENCY_CONNECT,
		RBP_LATENCY_SPILL_READS, RBP_LATENCY_SPILL_WRITES
	};
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo, COLUMNS);
	uint64		counters[RBP_NUM_COUNTERS];
	uint64		buckets[RBP_LATENCY_BUCKETS];

	for (int row = 0; row < RBP_NUM_LATENCIES; row++)
	{
		RbpLatency	op = rows[row];
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};
		Datum		lower[RBP_LATENCY_BUCKETS];
		Datum		counts[RBP_LATENCY_BUCKETS];
		int			n = 0;
		int64		calls = 0;

		/* in this order: a call's time is added before the call */
		rbp_stats_histogram(op, buckets);
		rbp_stats_sum(counters);
		values[OPERATION] = CStringGetTextDatum(rbp_latency_names[op]);
		rbp_sql_quantile(buckets, 0.50, &values[P50_US], &nulls[P50_US]);
		rbp_sql_quantile(buckets, 0.90, &values[P90_US], &nulls[P90_US]);
		rbp_sql_quantile(buckets, 0.99, &values[P99_US], &nulls[P99_US]);

		/* non-empty buckets, identified by their lower bounds */
		for (int b = 0; b < RBP_LATENCY_BUCKETS; b++)
		{
			if (buckets[b] == 0)
				continue;
			calls += (int64) buckets[b];
			lower[n] = Float8GetDatum(rbp_latency_lower(b) / RBP_NS_PER_US);
			counts[n] = Int64GetDatum((int64) buckets[b]);
			n++;
		}
		values[CALLS] = Int64GetDatum(calls);
		nulls[MEAN_US] = calls == 0;
		values[MEAN_US] = Float8GetDatum(counters[RBP_COUNT_NS + op] / Max((double) calls, 1) / RBP_NS_PER_US);
		values[BUCKETS_US] = PointerGetDatum(construct_array(lower, n, FLOAT8OID,
															 sizeof(float8),
															 FLOAT8PASSBYVAL,
															 TYPALIGN_DOUBLE));
		values[COUNTS] = PointerGetDatum(construct_array(counts, n, INT8OID,
														 sizeof(int64),
														 FLOAT8PASSBYVAL,
														 TYPALIGN_DOUBLE));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
