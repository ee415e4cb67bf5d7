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
#include "base/stats.h"
#include "usage/usage_internal.h"

static void
append_count(StringInfo s, const char *name, uint64 n)
{
	if (n > 0)
		appendStringInfo(s, " %s=" UINT64_FORMAT, name, n);
}

static void
append_time(StringInfo s, const char *name, uint64 ns)
{
	if (ns > 0)
		appendStringInfo(s, " %s=%.3f", name, (double) ns / RBP_NS_PER_MS);
}

/* Add a line of these two parts, of which each may be empty. */
static void
append_line(ExplainState *es, const char *label, StringInfo pages, StringInfo spill)
{
	if (pages->len + spill->len == 0)
		return;
	appendStringInfoSpaces(es->str, es->indent * 2);
	appendStringInfo(es->str, "%s:%s%s%s%s\n", label, pages->data,
					 pages->len > 0 && spill->len > 0 ? "," : "",
					 spill->len > 0 ? " spill" : "", spill->data);
}

/* Like the server's lines about buffers: only what is not zero. */
static void
show_text(ExplainState *es, const RbpUsage *u)
{
	StringInfoData pages;
	StringInfoData spill;

	initStringInfo(&pages);
	initStringInfo(&spill);
	append_count(&pages, "donor", u->item[RBP_COUNT_DONOR]);
	append_count(&pages, "staging", u->item[RBP_COUNT_STAGED]);
	append_count(&pages, "page cache", u->item[RBP_COUNT_PAGE_CACHE]);
	append_count(&pages, "disk", u->item[RBP_COUNT_DISK]);
	append_count(&pages, "file", u->item[RBP_COUNT_FILE]);
	append_count(&spill, "read", u->item[RBP_COUNT_SPILL_READS]);
	append_count(&spill, "staging", u->item[RBP_COUNT_SPILL_STAGED_READS]);
	append_count(&spill, "written", u->item[RBP_COUNT_SPILL_WRITES]);
	append_line(es, "Remote", &pages, &spill);
	if (!track_io_timing)
		return;
	resetStringInfo(&pages);
	resetStringInfo(&spill);
	append_time(&pages, "donor", u->item[RBP_COUNT_NS + RBP_LATENCY_DONOR]);
	append_time(&pages, "disk", u->item[RBP_COUNT_NS + RBP_LATENCY_DISK]);
	append_time(&pages, "file", u->item[RBP_COUNT_NS + RBP_LATENCY_FILE]);
	append_time(&spill, "read", u->item[RBP_COUNT_NS + RBP_LATENCY_SPILL_READS]);
	append_time(&spill, "write", u->item[RBP_COUNT_NS + RBP_LATENCY_SPILL_WRITES]);
	append_line(es, "Remote Timings", &pages, &spill);
}

#ifdef RBP_COMPAT_EXPLAINS_PLANS

static explain_per_plan_hook_type prev_explain = NULL;
static explain_per_node_hook_type prev_explain_node = NULL;

/* The other formats show everything, as the server does for buffers. */
static void
show_properties(ExplainState *es, const RbpUsage *u)
{
	ExplainPropertyUInteger("Remote Donor Blocks", NULL, u->item[RBP_COUNT_DONOR], es);
	ExplainPropertyUInteger("Remote Staging Blocks", NULL, u->item[RBP_COUNT_STAGED], es);
	ExplainPropertyUInteger("Remote Page Cache Blocks", NULL, u->item[RBP_COUNT_PAGE_CACHE], es);
	ExplainPropertyUInteger("Remote Disk Blocks", NULL, u->item[RBP_COUNT_DISK], es);
	ExplainPropertyUInteger("Remote File Blocks", NULL, u->item[RBP_COUNT_FILE], es);
	ExplainPropertyUInteger("Remote Spill Read Blocks", NULL, u->item[RBP_COUNT_SPILL_READS], es);
	ExplainPropertyUInteger("Remote Spill Staging Blocks", NULL, u->item[RBP_COUNT_SPILL_STAGED_READS], es);
	ExplainPropertyUInteger("Remote Spill Written Blocks", NULL, u->item[RBP_COUNT_SPILL_WRITES], es);
	if (!track_io_timing)
		return;
	ExplainPropertyFloat("Remote Donor Time", "ms", u->item[RBP_COUNT_NS + RBP_LATENCY_DONOR] / RBP_NS_PER_MS, 3, es);
	ExplainPropertyFloat("Remote Disk Time", "ms", u->item[RBP_COUNT_NS + RBP_LATENCY_DISK] / RBP_NS_PER_MS, 3, es);
	ExplainPropertyFloat("Remote File Time", "ms", u->item[RBP_COUNT_NS + RBP_LATENCY_FILE] / RBP_NS_PER_MS, 3, es);
	ExplainPropertyFloat("Remote Spill Read Time", "ms", u->item[RBP_COUNT_NS + RBP_LATENCY_SPILL_READS] / RBP_NS_PER_MS, 3, es);
	ExplainPropertyFloat("Remote Spill Write Time", "ms", u->item[RBP_COUNT_NS + RBP_LATENCY_SPILL_WRITES] / RBP_NS_PER_MS, 3, es);
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
rbp_usage_init_explain(void)
{
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
rbp_usage_init_explain(void)
{
	prev_explain = ExplainOneQuery_hook;
	ExplainOneQuery_hook = explain_query;
}

#endif							/* RBP_COMPAT_EXPLAINS_PLANS */
