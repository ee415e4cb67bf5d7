/*-------------------------------------------------------------------------
 *
 * nodes.c
 *	  What each node of a plan uses, for EXPLAIN (ANALYZE, BUFFERS), where the
 *	  server lets extensions add to what it shows of a node: since 18.
 *
 * No hook tells when a node runs.  But the executor calls a node by a pointer,
 * and run_node() stands before the node's own function there.  As with the
 * server's own figures, a node has what those below it have used, too, and what
 * queries have that functions run.  What parallel workers use is not known by
 * node: the Gather above them has it, and the nodes above that.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/compat.h"

#ifdef RBP_COMPAT_EXPLAINS_PLANS

#include "executor/executor.h"
#include "nodes/nodeFuncs.h"

#include "base/stats.h"
#include "usage/usage_internal.h"

typedef struct MeasuredNode
{
	ExecProcNodeMtd run;		/* the node's own function */
	RbpUsage	used;
} MeasuredNode;

struct RbpMeasuredNodes
{
	MeasuredNode *node;			/* by plan_node_id */
	int			n;				/* of them there is room for */
};

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
	MeasuredNode *m = &rbp_usage_nodes(node->state)->node[node->plan->plan_node_id];
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
	RbpMeasuredNodes *nodes = arg;
	const int	id = node->plan->plan_node_id;

	if (id >= nodes->n)
	{
		const int	n = 2 * id + 8;

		nodes->node = nodes->n == 0 ? palloc0_array(MeasuredNode, n) :
			repalloc0_array(nodes->node, MeasuredNode, nodes->n, n);
		nodes->n = n;
	}
	if (node->ExecProcNodeReal != run_node && gives_rows(node))
	{
		nodes->node[id].run = node->ExecProcNodeReal;
		node->ExecProcNodeReal = run_node;
	}
	return planstate_tree_walker(node, measure_node, nodes);
}

RbpMeasuredNodes *
rbp_nodes_measure(PlanState *top)
{
	RbpMeasuredNodes *nodes = palloc0(sizeof(RbpMeasuredNodes));

	(void) measure_node(top, nodes);
	return nodes;
}

const RbpUsage *
rbp_usage_of_node(const PlanState *node)
{
	const RbpMeasuredNodes *nodes = rbp_usage_nodes(node->state);

	/* A hash join has another function once it has a Gather's workers. */
	if (nodes == NULL || node->ExecProcNodeReal != run_node)
		return NULL;
	return &nodes->node[node->plan->plan_node_id].used;
}

#endif							/* RBP_COMPAT_EXPLAINS_PLANS */
