/*-------------------------------------------------------------------------
 *
 * sql.h
 *	  What functions that are called from SQL have in common.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SQL_H
#define RBP_SQL_H

#include "postgres.h"

#include "fmgr.h"
#include "nodes/execnodes.h"
#include "utils/rel.h"

#define RBP_NS_PER_US	1000.0

/* Every function begins with this: raises if there is no shared memory. */
extern void rbp_sql_require_loaded(void);

/*
 * A materialized result; raises if it has not as many columns as the C code
 * fills.  Requires what the above does.
 */
extern ReturnSetInfo *rbp_sql_start_rows(FunctionCallInfo fcinfo, int columns);

/* Raises if the relation's pages are never in shared buffers nor in the tier. */
extern void rbp_sql_check_buffered(Relation rel);

#endif							/* RBP_SQL_H */
