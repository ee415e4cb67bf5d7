/*-------------------------------------------------------------------------
 *
 * sql.h
 *	  Common parts of the functions that are called from SQL.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SQL_H
#define RBP_SQL_H

#include "postgres.h"

#include "fmgr.h"
#include "nodes/execnodes.h"

#include "base/counter_table.h"
#include "base/stats.h"

#define RBP_NS_PER_US	1000.0
#define RBP_NS_PER_MS	1000000.0

/*
 * Must be called first in every function.  Raises an error if there is no
 * shared memory.
 */
extern void rbp_sql_require_loaded(void);

/* Start a materialized result.  Raises an error if there is no shared memory. */
extern ReturnSetInfo *rbp_sql_start_rows(FunctionCallInfo fcinfo);

/*
 * Raise an error if the relation's pages are never in shared buffers, and so
 * never in the tier.
 */
extern void rbp_sql_check_buffered(Relation rel);

/*
 * A row under construction: each value is put together with its column's name.  When the
 * row is finished, the columns that the installed version of the extension has are taken,
 * so a library also serves those of an older version.  The size has room to spare.
 */
#define RBP_ROW_COLUMNS		(RBP_NUM_COUNTERS + 32)

typedef struct RbpRow
{
	int			n;
	const char *columns[RBP_ROW_COLUMNS];
	Datum		values[RBP_ROW_COLUMNS];
	bool		nulls[RBP_ROW_COLUMNS];
} RbpRow;

extern void rbp_row_put(RbpRow *row, const char *column, Datum value, bool isnull);

/* An empty text, or none (NULL), becomes null. */
extern void rbp_row_text(RbpRow *row, const char *column, const char *text);
extern void rbp_row_count(RbpRow *row, const char *column, uint64 count);

/* A quantile of a histogram (RBP_LATENCY_BUCKETS) in us; null if that is empty. */
extern void rbp_row_quantile(RbpRow *row, const char *column, const uint64 *buckets, double q);

/* A counter (RbpCounter): a number, or a time in ms. */
extern void rbp_row_counter(RbpRow *row, const char *column, const uint64 *counters, int counter);

/* The columns that have the names of the counters of RbpUsage */
extern void rbp_row_usage(RbpRow *row, const uint64 *counters);

/* The columns relation, relfilenode and fork */
extern void rbp_row_fork(RbpRow *row, Oid tablespace, uint32 rel, uint32 fork);

/*
 * The columns datid and database.  False if there is no database of that OID, as with
 * 0, what all share.
 */
extern bool rbp_row_database(RbpRow *row, Oid database);

/* Add the row to the result that rbp_sql_start_rows() has started. */
extern void rbp_sql_add_row(ReturnSetInfo *rsinfo, const RbpRow *row);

/* The row as the result of a function that returns one. */
extern Datum rbp_sql_one_row(FunctionCallInfo fcinfo, const RbpRow *row);

/*
 * Add a row for each of the table for which fn returns true.  fn puts the columns that
 * are not those of rbp_row_usage().
 */
extern void rbp_sql_counter_rows(ReturnSetInfo *rsinfo, RbpCounterTable *table,
								 bool (*fn) (const RbpCounterRow *counters, RbpRow *row));

#endif							/* RBP_SQL_H */
