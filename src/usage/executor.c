/*-------------------------------------------------------------------------
 *
 * executor.c
 *	  Hooks of the planner, the executor, and of utility commands: what a query
 *	  uses while it runs.
 *
 * A query is run in parts, and others may run in between: each call of
 * ExecutorRun() and ExecutorFinish() is measured.  What a query uses includes
 * what the queries use that it runs, by functions and triggers, and what its
 * parallel workers use (see base/stats.h).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "executor/executor.h"
#include "executor/instrument.h"
#include "optimizer/planner.h"
#include "tcop/utility.h"
#include "utils/backend_status.h"

#include "base/compat.h"
#include "usage/usage_internal.h"

/* A query that is measured; it lives as long as the executor's state. */
typedef struct MeasuredQuery
{
	const QueryDesc *query;
	const PlannedStmt *plan;
	const EState *state;
	RbpUsage	usage;
	RbpMeasuredNodes *nodes;	/* where EXPLAIN can show them */
	bool		statement;		/* sent by the client, and to be noted */
	struct MeasuredQuery *next;
	MemoryContextCallback on_reset;
} MeasuredQuery;

static MeasuredQuery *measured = NULL;	/* the latest first */

/* How many calls of these hooks there are now, one within the other */
static int	nesting = 0;

static RbpUsage last;			/* see rbp_usage_of_last() */
static int	last_nesting = -1;	/* -1: there is none */

static planner_hook_type next_planner = NULL;
static ExecutorStart_hook_type next_start = NULL;
static ExecutorRun_hook_type next_run = NULL;
static ExecutorFinish_hook_type next_finish = NULL;
static ExecutorEnd_hook_type next_end = NULL;
static ProcessUtility_hook_type next_utility = NULL;

/* Make a call, within which others are nested. */
#define CALL_NESTED(call) \
do { \
	nesting++; \
	PG_TRY(); \
	{ \
		call; \
	} \
	PG_FINALLY(); \
	{ \
		nesting--; \
	} \
	PG_END_TRY(); \
} while (0)

/* What functions run while a query is planned was not sent by the client. */
static pg_attribute_hot PlannedStmt *
plan_query(Query *query, const char *query_string, int options, ParamListInfo params)
{
	PlannedStmt *plan;

	CALL_NESTED(plan = next_planner(query, query_string, options, params));
	return plan;
}

/* of: the query, its plan, or its state */
static MeasuredQuery *
find_measured(const void *of)
{
	MeasuredQuery *m = measured;

	while (m != NULL && m->query != of && m->plan != of && m->state != of)
		m = m->next;
	return m;
}

static void
forget_query(void *arg)
{
	MeasuredQuery **place = &measured;

	while (*place != NULL && *place != arg)
		place = &(*place)->next;
	if (*place != NULL)
		*place = (*place)->next;
}

static inline bool
counts_buffers(const QueryDesc *query)
{
	return (query->instrument_options & INSTRUMENT_BUFFERS) != 0;
}

static void
measure(QueryDesc *query, bool statement)
{
	MemoryContext old = MemoryContextSwitchTo(query->estate->es_query_cxt);
	MeasuredQuery *m = palloc0(sizeof(MeasuredQuery));

	m->query = query;
	m->plan = query->plannedstmt;
	m->state = query->estate;
	m->statement = statement;
	m->next = measured;
	m->on_reset.func = forget_query;
	m->on_reset.arg = m;
	MemoryContextRegisterResetCallback(query->estate->es_query_cxt, &m->on_reset);
	measured = m;
#ifdef RBP_COMPAT_EXPLAINS_PLANS
	if (counts_buffers(query))
		m->nodes = rbp_nodes_measure(query->planstate);
#endif
	MemoryContextSwitchTo(old);
}

static pg_attribute_hot void
start(QueryDesc *query, int eflags)
{
	bool		statement = nesting == 0 && query->plannedstmt->queryId != 0 && rbp_statements_wanted();

	if (query->plannedstmt->parallelModeNeeded)
		rbp_stats_lead();
	next_start(query, eflags);
	if ((statement || counts_buffers(query)) && !IsParallelWorker())
		measure(query, statement);
}

/* Before a part of the query is run: if the query is measured, note what was used. */
static inline void
begin_part(const QueryDesc *query, RbpUsage *before)
{
	if (find_measured(query) != NULL)
		rbp_stats_usage(before, true, true);
}

/*
 * After it, but not after an error.  If a command has read from the portal of a
 * statement, which the client has opened, what was used is the command's.
 */
static inline void
end_part(const QueryDesc *query, const RbpUsage *before)
{
	MeasuredQuery *m = find_measured(query);
	RbpUsage	now;

	if (m == NULL || (m->statement && nesting > 0))
		return;
	rbp_stats_usage(&now, true, true);
	rbp_stats_add_usage(&m->usage, &now, before);
}

static pg_attribute_hot void
run(RBP_COMPAT_RUN_PARAMETERS)
{
	RbpUsage	before;

	begin_part(query, &before);
	CALL_NESTED(next_run(RBP_COMPAT_RUN_ARGUMENTS));
	end_part(query, &before);
}

static pg_attribute_hot void
finish(QueryDesc *query)
{
	RbpUsage	before;

	begin_part(query, &before);
	CALL_NESTED(next_finish(query));
	end_part(query, &before);
}

static pg_attribute_hot void
end(QueryDesc *query)
{
	MeasuredQuery *m = find_measured(query);

	if (m != NULL && counts_buffers(query))
	{
		last = m->usage;
		last_nesting = nesting;
	}
	if (m != NULL && m->statement)
		rbp_statement_used((uint64) query->plannedstmt->queryId, &m->usage);
	next_end(query);
}

/* The identifier of a statement; pg_stat_statements may have taken it from the plan. */
static uint64
query_id_of(const PlannedStmt *plan)
{
	if (plan->queryId != 0 || nesting > 0)
		return (uint64) plan->queryId;
	return (uint64) pgstat_get_my_query_id();
}

/*
 * A utility command that the client has sent.  EXECUTE is not measured: the
 * statement that it executes is, as one that the client has sent.
 */
static void
utility(PlannedStmt *plan, const char *query_string, bool read_only, ProcessUtilityContext context,
		ParamListInfo params, QueryEnvironment *env, DestReceiver *dest, QueryCompletion *completion)
{
	const uint64 query_id = query_id_of(plan);
	RbpUsage	used = {0};
	RbpUsage	before;
	RbpUsage	now;

	if (IsA(plan->utilityStmt, ExecuteStmt) || IsA(plan->utilityStmt, PrepareStmt))
	{
		next_utility(plan, query_string, read_only, context, params, env, dest, completion);
		return;
	}
	rbp_stats_usage(&before, true, true);
	CALL_NESTED(next_utility(plan, query_string, read_only, context, params, env, dest, completion));
	if (nesting > 0 || query_id == 0 || !rbp_statements_wanted())
		return;
	rbp_stats_usage(&now, true, true);
	rbp_stats_add_usage(&used, &now, &before);
	rbp_statement_used(query_id, &used);
}

const RbpUsage *
rbp_usage_of_plan(const PlannedStmt *plan)
{
	const MeasuredQuery *m = find_measured(plan);

	return m == NULL ? NULL : &m->usage;
}

RbpMeasuredNodes *
rbp_usage_nodes(const EState *state)
{
	const MeasuredQuery *m = find_measured(state);

	return m == NULL ? NULL : m->nodes;
}

void
rbp_usage_forget_last(void)
{
	last_nesting = -1;
}

const RbpUsage *
rbp_usage_of_last(void)
{
	return last_nesting == nesting ? &last : NULL;
}

void
rbp_usage_init_executor(void)
{
	next_planner = planner_hook ? planner_hook : standard_planner;
	planner_hook = plan_query;
	next_start = ExecutorStart_hook ? ExecutorStart_hook : standard_ExecutorStart;
	ExecutorStart_hook = start;
	next_run = ExecutorRun_hook ? ExecutorRun_hook : standard_ExecutorRun;
	ExecutorRun_hook = run;
	next_finish = ExecutorFinish_hook ? ExecutorFinish_hook : standard_ExecutorFinish;
	ExecutorFinish_hook = finish;
	next_end = ExecutorEnd_hook ? ExecutorEnd_hook : standard_ExecutorEnd;
	ExecutorEnd_hook = end;
	next_utility = ProcessUtility_hook ? ProcessUtility_hook : standard_ProcessUtility;
	ProcessUtility_hook = utility;
}
