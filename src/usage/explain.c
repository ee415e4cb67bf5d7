/*-------------------------------------------------------------------------
 *
 * explain.c
 *	  What the tier did for a query, at the end of EXPLAIN (ANALYZE, BUFFERS), and
 *	  since 18 for each node.
 *
 * Since 18, the server lets extensions add to its output, in each format.  Before
 * that, lines can be added to a text after the server has written it, and only
 * where it calls ExplainOneQuery_hook: not for EXPLAIN EXECUTE, nor in other
 * formats, whose groups are closed then.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "storage/bufmgr.h"

#include "base/compat.h"
#include "base/sql.h"
#include "usage/usage.h"
#include "usage/usage_internal.h"

/* What is shown, in this order, as what in a text, and as what in other formats */
static const struct
{
	int			item;			/* of RbpUsage */
	const char *text;
	const char *property;
	bool		spill;			/* of temporary blocks */
}			shown[] = {
	{RBP_COUNT_DONOR, "donor", "Remote Donor Blocks"},
	{RBP_COUNT_STAGED, "staging", "Remote Staging Blocks"},
	{RBP_COUNT_PAGE_CACHE, "page cache", "Remote Page Cache Blocks"},
	{RBP_COUNT_DISK, "disk", "Remote Disk Blocks"},
	{RBP_COUNT_FILE, "file", "Remote File Blocks"},
	{RBP_COUNT_SPILL_READS, "read", "Remote Spill Read Blocks", true},
	{RBP_COUNT_SPILL_STAGED_READS, "staging", "Remote Spill Staging Blocks", true},
	{RBP_COUNT_SPILL_WRITES, "written", "Remote Spill Written Blocks", true},
	{RBP_COUNT_NS + RBP_LATENCY_DONOR, "donor", "Remote Donor Time"},
	{RBP_COUNT_NS + RBP_LATENCY_DISK, "disk", "Remote Disk Time"},
	{RBP_COUNT_NS + RBP_LATENCY_FILE, "file", "Remote File Time"},
	{RBP_COUNT_NS + RBP_LATENCY_SPILL_READS, "read", "Remote Spill Read Time", true},
	{RBP_COUNT_NS + RBP_LATENCY_SPILL_WRITES, "write", "Remote Spill Write Time", true},
};

/* Add a line of the pages, or of the times, unless all are zero. */
static void
append_line(ExplainState *es, const char *label, const RbpUsage *u, bool times)
{
	StringInfoData pages;
	StringInfoData spill;

	initStringInfo(&pages);
	initStringInfo(&spill);
	for (int i = 0; i < lengthof(shown); i++)
	{
		StringInfo	part = shown[i].spill ? &spill : &pages;
		uint64		value = u->item[shown[i].item];

		if (value == 0 || rbp_counter_is_time(shown[i].item) != times)
			continue;
		if (times)
			appendStringInfo(part, " %s=%.3f", shown[i].text, (double) value / RBP_NS_PER_MS);
		else
			appendStringInfo(part, " %s=" UINT64_FORMAT, shown[i].text, value);
	}
	if (pages.len + spill.len == 0)
		return;
	appendStringInfoSpaces(es->str, es->indent * 2);
	appendStringInfo(es->str, "%s:%s%s%s%s\n", label, pages.data,
					 pages.len > 0 && spill.len > 0 ? "," : "",
					 spill.len > 0 ? " spill" : "", spill.data);
}

/* Like the server's lines about buffers: only what is not zero. */
static void
show_text(ExplainState *es, const RbpUsage *u)
{
	append_line(es, "Remote", u, false);
	if (track_io_timing)
		append_line(es, "Remote Timings", u, true);
}

#ifdef RBP_COMPAT_EXPLAINS_PLANS

static explain_per_plan_hook_type prev_explain = NULL;
static explain_per_node_hook_type prev_explain_node = NULL;

/* The other formats show everything, as the server does for buffers. */
static void
show_properties(ExplainState *es, const RbpUsage *u)
{
	for (int i = 0; i < lengthof(shown); i++)
	{
		uint64		value = u->item[shown[i].item];

		if (!rbp_counter_is_time(shown[i].item))
			ExplainPropertyUInteger(shown[i].property, NULL, value, es);
		else if (track_io_timing)
			ExplainPropertyFloat(shown[i].property, "ms", value / RBP_NS_PER_MS, 3, es);
	}
}

static void
show(ExplainState *es, const RbpUsage *u)
{
	if (u == NULL)
		return;
	if (es->format == EXPLAIN_FORMAT_TEXT)
		show_text(es, u);
	else
		show_properties(es, u);
}

static void
explain_plan(PlannedStmt *plan, IntoClause *into, ExplainState *es, const char *query_string,
			 ParamListInfo params, QueryEnvironment *env)
{
	if (prev_explain)
		prev_explain(plan, into, es, query_string, params, env);
	if (es->analyze && es->buffers)
		show(es, rbp_usage_of_plan(plan));
}

static void
explain_node(PlanState *node, List *ancestors, const char *relationship,
			 const char *plan_name, ExplainState *es)
{
	if (prev_explain_node)
		prev_explain_node(node, ancestors, relationship, plan_name, es);
	if (es->analyze && es->buffers)
		show(es, rbp_usage_of_node(node));
}

void
rbp_usage_init(void)
{
	rbp_usage_init_executor();
	prev_explain = explain_per_plan_hook;
	explain_per_plan_hook = explain_plan;
	prev_explain_node = explain_per_node_hook;
	explain_per_node_hook = explain_node;
}

#else

static ExplainOneQuery_hook_type prev_explain = NULL;

static void
explain_query(Query *query, int options, IntoClause *into, ExplainState *es,
			  const char *query_string, ParamListInfo params, QueryEnvironment *env)
{
	const RbpUsage *usage;

	rbp_usage_forget_last();
	if (prev_explain)
		prev_explain(query, options, into, es, query_string, params, env);
	else
		rbp_compat_explain_query(query, options, into, es, query_string, params, env);
	usage = rbp_usage_of_last();
	if (usage != NULL && es->analyze && es->buffers && es->format == EXPLAIN_FORMAT_TEXT)
		show_text(es, usage);
}

void
rbp_usage_init(void)
{
	rbp_usage_init_executor();
	prev_explain = ExplainOneQuery_hook;
	ExplainOneQuery_hook = explain_query;
}

#endif							/* RBP_COMPAT_EXPLAINS_PLANS */
