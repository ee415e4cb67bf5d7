/*-------------------------------------------------------------------------
 *
 * usage_internal.h
 *	  What the files of this room share.
 *
 * explain.c, which installs all hooks, calls executor.c, and that statements.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_USAGE_INTERNAL_H
#define RBP_USAGE_INTERNAL_H

#include "postgres.h"

#include "nodes/execnodes.h"
#include "nodes/plannodes.h"

#include "base/stats.h"

/*
 * What the query with that plan, which is executed now, has used so far; NULL if
 * that is not known.  It is known for queries for which EXPLAIN counts buffers.
 */
extern const RbpUsage *rbp_usage_of_plan(const PlannedStmt *plan);

/*
 * What the query has used that ended last, of those that count buffers; NULL if
 * none has ended since rbp_usage_forget_last(), or if it was run by a query that
 * still runs.
 */
extern void rbp_usage_forget_last(void);
extern const RbpUsage *rbp_usage_of_last(void);

/* Are statements to be noted? */
extern bool rbp_statements_wanted(void);

/* Note a statement that the client has sent, if it has used something. */
extern void rbp_statement_used(uint64 query_id, const RbpUsage *usage);

/*
 * What a node and those below it have used so far; NULL if that is not known.
 */
extern const RbpUsage *rbp_usage_of_node(const PlanState *node);

/* Install the hooks of executor.c. */
extern void rbp_usage_init_executor(void);

#endif							/* RBP_USAGE_INTERNAL_H */
