/*-------------------------------------------------------------------------
 *
 * sql.c
 *	  SQL functions to set policies and limits, and to show them and their
 *	  effect.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/index.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "base/relfile.h"
#include "base/sql.h"
#include "base/workers.h"
#include "buffer/buffer.h"
#include "policy/policy.h"
#include "policy/policy_internal.h"

PG_FUNCTION_INFO_V1(rbp_sql_set_policy);
PG_FUNCTION_INFO_V1(rbp_sql_policies);
PG_FUNCTION_INFO_V1(rbp_sql_set_database_limit);
PG_FUNCTION_INFO_V1(rbp_sql_databases);

/*
 * ---- setting ------------------------------------------------------------------
 */

/*
 * What to wake at commit.  We do not learn of COMMIT PREPARED; what it changes
 * is found after remote_bp.policy_interval.
 */
static bool wake_database = false;
static bool wake_all = false;

pg_attribute_hot void
rbp_policy_transaction_ends(XactEvent event)
{
	if (likely(!wake_database && !wake_all))
		return;
	if (event == XACT_EVENT_COMMIT && wake_database)
		rbp_policy_wake(MyDatabaseId);
	if (event == XACT_EVENT_COMMIT && wake_all)
		rbp_policy_wake(InvalidOid);
	wake_database = wake_all = false;
}

/* OID of the table of policies; raises an error if there is none. */
static Oid
required_table(void)
{
	Oid			table = rbp_policy_table();

	if (!OidIsValid(table))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table \"%s\" of extension \"remote_bp\" does not exist",
						RBP_POLICY_TABLE)));
	return table;
}

/*
 * Raise an error if no policy can be set on the relation, or not by this
 * user.
 */
static void
check_relation(Relation rel)
{
	char		kind = rel->rd_rel->relkind;

	if (RelationGetNamespace(rel) == PG_TOAST_NAMESPACE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("cannot set a policy on TOAST relation \"%s\"", RelationGetRelationName(rel)),
				 errhint("Set the policy of the table that it belongs to.")));
	if (kind != RELKIND_RELATION && kind != RELKIND_MATVIEW &&
		kind != RELKIND_INDEX && !RELKIND_HAS_PARTITIONS(kind))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("policies are set on tables, materialized views and indexes"),
				 errdetail_relkind_not_supported(kind)));
	if (rel->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("relation \"%s\" is temporary", RelationGetRelationName(rel)),
				 errhint("Its pages are never in the buffer tier; see remote_bp_temp_files.")));
	if (rel->rd_rel->relisshared)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("relation \"%s\" is shared by all databases",
						RelationGetRelationName(rel))));
	if (!object_ownercheck(RelationRelationId, RelationGetRelid(rel), GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(kind),
					   RelationGetRelationName(rel));
}

/*
 * Change a row of the table of policies, with the privileges of the table's
 * owner.  index is "" for the row of the relation itself.  Also delete rows of
 * relations that were dropped and, with the row of a table itself, those of
 * indexes that the table does not have any more: users cannot name what does
 * not exist.
 */
static void
write_row(Oid relation, const char *index, const char *policy, bool include_indexes)
{
	Oid			table = required_table();
	Oid			types[] = {OIDOID, NAMEOID, TEXTOID, BOOLOID};
	Datum		values[] = {
		ObjectIdGetDatum(relation),
		DirectFunctionCall1(namein, CStringGetDatum(index)),
		CStringGetTextDatum(policy), BoolGetDatum(include_indexes)
	};

	(void) rbp_policy_sql(table,
						  "DELETE FROM %s p WHERE NOT EXISTS"
						  " (SELECT FROM pg_class c WHERE c.oid = p.relation)"
						  " OR (p.relation::oid = $1 AND (p.index_name = $2 OR"
						  " ($2 = ''::name AND p.index_name <> ''::name AND NOT EXISTS"
						  " (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
						  " WHERE i.indrelid = $1 AND c.relname = p.index_name))))",
						  2, types, values, false);
	SPI_finish();
	if (strcmp(policy, "default") == 0)
		return;
	(void) rbp_policy_sql(table,
						  "INSERT INTO %s VALUES ($1, $2, $3, $4)"
						  " ON CONFLICT (relation, index_name) DO UPDATE"
						  " SET policy = excluded.policy,"
						  " include_indexes = excluded.include_indexes",
						  4, types, values, false);
	SPI_finish();
}

Datum
rbp_sql_set_policy(PG_FUNCTION_ARGS)
{
	Relation	rel;
	Oid			relation;
	const char *index = "";
	char	   *policy;

	for (int i = 0; i < 3; i++)
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("relation, policy and include_indexes cannot be null")));
	rbp_sql_require_loaded();
	policy = text_to_cstring(PG_GETARG_TEXT_PP(1));
	if (strcmp(policy, "keep") != 0 && strcmp(policy, "none") != 0 &&
		strcmp(policy, "default") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid policy \"%s\"", policy),
				 errhint("Valid policies are \"keep\", \"none\" and \"default\".")));
	relation = PG_GETARG_OID(0);
	rel = relation_open(relation, AccessShareLock);
	check_relation(rel);
	if (rel->rd_rel->relkind == RELKIND_INDEX ||
		rel->rd_rel->relkind == RELKIND_PARTITIONED_INDEX)
	{
		/*
		 * store the index by name, since a dump restores indexes after the
		 * rows of tables
		 */
		index = pstrdup(RelationGetRelationName(rel));
		relation = IndexGetRelation(relation, false);
	}
	write_row(relation, index, policy, PG_GETARG_BOOL(2));
	relation_close(rel, NoLock);
	wake_database = true;
	PG_RETURN_VOID();
}

/*
 * ---- showing -------------------------------------------------------------------
 */

/* Why the policy does not have its full effect yet; NULL if it has. */
static const char *
why_not_effective(const RbpPolicyRelation *r, uint64 wanted, uint64 held, bool limit_full,
				  char *buf, Size len)
{
	RbpFilePolicy is = rbp_residency_policy(&r->file);

	if (r->policy == RBP_POLICY_KEEP && held >= wanted)
		return NULL;
	if (rbp_tier_unusable_reason(buf, len))
		return buf;
	if (is.policy == r->policy && is.policy != RBP_POLICY_KEEP)
		return NULL;
	if (rbp_worker_away(RBP_WORKER_LAUNCHER, buf, len))
		return buf;
	if (pg_atomic_read_u32(&rbp_policy_shared->no_worker) != 0)
		return "no background worker is free to apply it: raise max_worker_processes";
	if (is.policy != r->policy)
		return is.fits ? "not applied yet" : "too many files have policies";
	if (limit_full)
		return "the limit of the database is reached";
	if (rbp_residency_keep_room() <= 0)
		return "no more can be kept: see remote_bp.keep_max_size";
	if (pg_atomic_read_u32(&rbp_policy_shared->visiting) == MyDatabaseId)
		return "being loaded";
	return "written recently, or not on donors yet";
}

Datum
rbp_sql_policies(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);
	Oid			table = required_table();
	RbpPolicyList list;
	List	   *all;
	bool		limit_full;
	ListCell   *cell;

	LockRelationOid(table, AccessShareLock);
	list = rbp_policy_read(table);
	limit_full = rbp_policy_kept_reach_limit(list.relations);
	all = list_concat(list.relations, list.orphans);
	foreach(cell, all)
	{
		const RbpPolicyRelation *r = lfirst(cell);
		bool		is_there = OidIsValid(r->relid);
		uint64		wanted = is_there && r->policy == RBP_POLICY_KEEP ? rbp_policy_pages_wanted(&r->file) : 0;
		uint64		held = is_there ? rbp_residency_policy(&r->file).kept : 0;
		char		buf[256];
		RbpRow		row = {0};

		rbp_row_put(&row, "relation", ObjectIdGetDatum(r->relid), !is_there);
		rbp_row_text(&row, "policy", r->policy == RBP_POLICY_KEEP ? "keep" : "none");
		rbp_row_put(&row, "set_on", ObjectIdGetDatum(r->set_on), false);
		rbp_row_count(&row, "pages_wanted", wanted);
		rbp_row_count(&row, "pages_held", held);
		rbp_row_text(&row, "reason", is_there ?
					 why_not_effective(r, wanted, held, limit_full, buf, sizeof(buf)) :
					 psprintf("there is no index \"%s\"", NameStr(r->index)));
		rbp_sql_add_row(rsinfo, &row);
	}
	return (Datum) 0;
}

/*
 * ---- databases -------------------------------------------------------------------
 */

Datum
rbp_sql_set_database_limit(PG_FUNCTION_ARGS)
{
	const int64 mb = 1024 * 1024;
	const int64 most = 16 * 1024 * 1024 * mb;	/* as for
												 * remote_bp.database_limit */
	char	   *database;
	StringInfoData query;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("database cannot be null")));
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to limit a database")));
	rbp_sql_require_loaded();
	database = NameStr(*PG_GETARG_NAME(0));
	(void) get_database_oid(database, false);
	initStringInfo(&query);
	appendStringInfo(&query, "ALTER DATABASE %s ", quote_identifier(database));
	if (PG_ARGISNULL(1))
		appendStringInfoString(&query, "RESET remote_bp.database_limit");
	else
	{
		int64		bytes = PG_GETARG_INT64(1);

		if (bytes < 0 || bytes > most)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("max_bytes must be between 0 and %lld",
							(long long) most)));
		appendStringInfo(&query, "SET remote_bp.database_limit = '%lldMB'",
						 (long long) ((bytes + mb - 1) / mb));
	}
	(void) rbp_policy_sql(InvalidOid, query.data, 0, NULL, NULL, false);
	SPI_finish();
	wake_all = true;
	PG_RETURN_VOID();
}

Datum
rbp_sql_databases(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);
	RbpDatabaseUse use;
	uint32		at = 0;

	while (rbp_residency_next_database(&at, &use))
	{
		RbpRow		row = {0};

		(void) rbp_row_database(&row, use.database);
		rbp_row_count(&row, "pages", use.pages);
		rbp_row_count(&row, "bytes", use.pages * BLCKSZ);
		rbp_row_put(&row, "max_bytes", Int64GetDatum(use.max_pages * BLCKSZ), use.max_pages < 0);
		rbp_sql_add_row(rsinfo, &row);
	}
	return (Datum) 0;
}
