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

#define RBP_NS_PER_US	1000.0
#define RBP_NS_PER_MS	1000000.0

/*
 * Must be called first in every function.  Raises an error if there is no
 * shared memory.
 */
extern void rbp_sql_require_loaded(void);

/*
 * Start a materialized result.  Raises an error if the function is not
 * declared with the number of columns that the C code fills, or if there is
 * no shared memory.
 */
extern ReturnSetInfo *rbp_sql_start_rows(FunctionCallInfo fcinfo, int columns);

/*
 * Raise an error if the relation's pages are never in shared buffers, and so
 * never in the tier.
 */
extern void rbp_sql_check_buffered(Relation rel);

/* A quantile of a histogram (RBP_LATENCY_BUCKETS) in us; null if that is empty. */
extern void rbp_sql_quantile(const uint64 *buckets, double q, Datum *value, bool *isnull);

/* The column of a counter (RbpCounter): a number, or a time in ms. */
extern Datum rbp_sql_counter(const uint64 *counters, int counter);

/*
 * Put a row for each row of the table for which fn returns true.  fn sets the values
 * before that column; those from there on have counters' names.
 */
extern void rbp_sql_counter_rows(ReturnSetInfo *rsinfo, RbpCounterTable *table, int column,
								 bool (*fn) (const RbpCounterRow *row, Datum *values, bool *nulls));

/* The first three columns of views of relation forks: relation, relfilenode, fork */
extern void rbp_sql_fork(Oid tablespace, uint32 rel, uint32 fork, Datum *values, bool *nulls);

/*
 * The first two columns of views of databases: OID and name.  False if there is no
 * database of that OID, as with 0, what all share.
 */
extern bool rbp_sql_database(Oid database, Datum *values, bool *nulls);

#endif							/* RBP_SQL_H */
