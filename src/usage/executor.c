/*-------------------------------------------------------------------------
 *
 * executor.c
 *	  Hooks of the planner, the executor, and of utility commands: what a query
 *	  uses while it runs, and what each node of its plan uses.
 *
 * A query is run in parts, and others may run in between: each call of
 * ExecutorRun() and ExecutorFinish() is measured.  What a query uses includes
 * what the queries use that it runs, by functions and triggers, and what its
 * parallel workers use (see base/stats.h).
 *
 * Nodes are measured for EXPLAIN (ANALYZE, BUFFERS), where the server lets
 * extensions add to what it shows of a node: since 18.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "executor/executor.h"
#include "executor/instrument.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/planner.h"
#include "tcop/utility.h"
#include "utils/backend_status.h"

#include "base/compat.h"
#include "usage/usage_internal.h"

/* A node of a plan that is measured */
typedef struct MeasuredNode
{
	ExecProcNodeMtd run;		/* the node's own function */
	RbpUsage	used;
} MeasuredNode;

/* A query that is measured; it lives as long as the executor's state. */
typedef struct MeasuredQuery
{
	const QueryDesc *query;
	const PlannedStmt *plan;
	const EState *state;
	RbpUsage	usage;
	MeasuredNode *nodes;		/* by plan_node_id, where EXPLAIN shows them */
	int			nnodes;			/* of them there is room for */
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

/*
 * ---- nodes of a plan -------------------------------------------------------------
 *
 * No hook tells when a node runs.  But the executor calls a node by a pointer,
 * and run_node() stands before the node's own function there.  As with the
 * server's own figures, a node has what those below it have used, too, and what
 * queries have that functions run.  What parallel workers use is not known by
 * node: the Gather above them has it, and the nodes above that.
 */

#ifdef RBP_COMPAT_EXPLAINS_PLANS

/* What the workers of all Gathers have used, and how often that was added to */
static RbpUsage gathered;
static uint64 times_gathered = 0;

/* What this process has used, with what it has gathered. */
static const RbpUsage *
used_now(void)
{
	static RbpUsage used;
	static uint64 used_at = UINT64_MAX;
	const uint64 at = rbp_stats_counted() + times_gathered;

	if (at != used_at)
	{
		rbp_stats_usage(&used, true, false);
		for (int i = 0; i < RBP_NUM_USAGE_ITEMS; i++)
			used.item[i] += gathered.item[i];
		used_at = at;
	}
	return &used;
}

static TupleTableSlot *
run_gather(PlanState *node, ExecProcNodeMtd run)
{
	TupleTableSlot *slot;
	RbpUsage	before;
	RbpUsage	now;

	rbp_stats_usage(&before, false, true);
	slot = run(node);
	rbp_stats_usage(&now, false, true);
	rbp_stats_add_usage(&gathered, &now, &before);
	times_gathered++;
	return slot;
}

static TupleTableSlot *
run_node(PlanState *node)
{
	MeasuredNode *m = &find_measured(node->state)->nodes[node->plan->plan_node_id];
	const RbpUsage before = *used_now();
	TupleTableSlot *slot;

	if (IsA(node, GatherState) || IsA(node, GatherMergeState))
		slot = run_gather(node, m->run);
	else
		slot = m->run(node);
	rbp_stats_add_usage(&m->used, used_now(), &before);
	return slot;
}

/* Nodes that give no rows are called by their name, and not by the pointer. */
static bool
gives_rows(const PlanState *node)
{
	return !IsA(node, HashState) && !IsA(node, BitmapIndexScanState) &&
		!IsA(node, BitmapAndState) && !IsA(node, BitmapOrState);
}

static bool
measure_node(PlanState *node, void *arg)
{
	MeasuredQuery *m = arg;
	const int	id = node->plan->plan_node_id;

	if (id >= m->nnodes)
	{
		const int	n = 2 * id + 8;

		m->nodes = m->nnodes == 0 ? palloc0_array(MeasuredNode, n) :
			repalloc0_array(m->nodes, MeasuredNode, m->nnodes, n);
		m->nnodes = n;
	}
	if (node->ExecProcNodeReal != run_node && gives_rows(node))
	{
		m->nodes[id].run = node->ExecProcNodeReal;
		node->ExecProcNodeReal = run_node;
	}
	return planstate_tree_walker(node, measure_node, m);
}

const RbpUsage *
rbp_usage_of_node(const PlanState *node)
{
	const MeasuredQuery *m = find_measured(node->state);

	/* A hash join has another function once it has a Gather's workers. */
	if (m == NULL || m->nodes == NULL || node->ExecProcNodeReal != run_node)
		return NULL;
	return &m->nodes[node->plan->plan_node_id].used;
}

#endif							/* RBP_COMPAT_EXPLAINS_PLANS */

/*
 * ---- queries ---------------------------------------------------------------------
 */

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
		(void) measure_node(query->planstate, m);
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
