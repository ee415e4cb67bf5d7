/*-------------------------------------------------------------------------
 *
 * list.c
 *	  Resolves the table of policies to the files that the policies apply to; and
 *	  runs queries.
 *
 * A policy of a partitioned table applies to its partitions.  A policy of a
 * table applies to its TOAST table and, if requested, to its indexes.  If two
 * policies apply to a relation, the more specific one counts: first one set
 * on the index itself, then one on the table, then one on the nearest
 * partitioned table above.
 *
 * One query resolves all that.  It locks catalogs and the table of policies, but
 * no relation that a policy applies to.  The files are as of the latest commit,
 * so a relation that is being rewritten has its old files until the rewrite is
 * committed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/table.h"
#include "catalog/pg_database.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "base/relfile.h"
#include "buffer/buffer.h"
#include "policy/policy_internal.h"

/* Not just any table of that name. */
static const char *const table_query =
"SELECT c.oid FROM pg_extension e"
" JOIN pg_class c ON c.relnamespace = e.extnamespace AND c.relname = '" RBP_POLICY_TABLE "'"
" JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0"
" AND d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'"
" WHERE e.extname = 'remote_bp'";

/*
 * The relations with files that a policy applies to, and the policies of indexes
 * that do not exist, whose relid is null.  Rows of relations that were dropped are
 * deleted when the next policy is set.
 */
static const char *const list_query =
"WITH RECURSIVE policy AS ("
"  SELECT p.relation::oid AS set_on, p.index_name, p.policy, p.include_indexes,"
"    CASE WHEN p.index_name = '' THEN p.relation::oid"
"    ELSE (SELECT i.indexrelid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
"      WHERE i.indrelid = p.relation AND c.relname = p.index_name) END AS relid"
"  FROM %s p WHERE EXISTS (SELECT FROM pg_class c WHERE c.oid = p.relation)"
"), member AS ("				/* the relation and its partitions */
"  SELECT *, 0 AS distance FROM policy"
"  UNION ALL"
"  SELECT m.set_on, m.index_name, m.policy, m.include_indexes, i.inhrelid, m.distance + 1"
"  FROM member m JOIN pg_class c ON c.oid = m.relid AND c.relkind IN ('p', 'I')"
"  JOIN pg_inherits i ON i.inhparent = m.relid AND NOT i.inhdetachpending"
"), file AS ("					/* with TOAST tables and indexes */
"  SELECT DISTINCT ON (f.oid) f.oid AS relid, m.set_on, m.index_name, m.policy,"
"    f.reltablespace, pg_relation_filenode(f.oid) AS number"
"  FROM member m JOIN pg_class c ON c.oid = m.relid,"
"  LATERAL (SELECT c.oid UNION ALL SELECT c.reltoastrelid UNION ALL"
"    SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = c.reltoastrelid UNION ALL"
"    SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = c.oid AND m.include_indexes"
"  ) AS r (oid) JOIN pg_class f ON f.oid = r.oid"
"  WHERE f.relpersistence <> 't' AND NOT f.relisshared"
"  ORDER BY f.oid, m.index_name <> '' DESC, m.distance"
") SELECT * FROM file WHERE number IS NOT NULL"
" UNION ALL"
" SELECT NULL, set_on, index_name, policy, NULL, NULL FROM policy WHERE relid IS NULL";

SPITupleTable *
rbp_policy_sql(Oid table, const char *query, int nargs, Oid *types, Datum *values,
			   bool read_only)
{
	int			level = NewGUCNestLevel();
	Oid			save_user;
	int			save_context;

	GetUserIdAndSecContext(&save_user, &save_context);
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	/* the estimates for catalogs are high, but the queries are short */
	(void) set_config_option("jit", "off", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	SPI_connect();
	if (OidIsValid(table))
	{
		Relation	rel = table_open(table, AccessShareLock);

		query = psprintf(query, quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
														   RelationGetRelationName(rel)));
		SetUserIdAndSecContext(rel->rd_rel->relowner,
							   save_context | SECURITY_LOCAL_USERID_CHANGE |
							   SECURITY_RESTRICTED_OPERATION);
		table_close(rel, NoLock);
	}
	if (SPI_execute_with_args(query, nargs, types, values, NULL, read_only, 0) < 0)
		elog(ERROR, "could not execute \"%s\"", query);
	SetUserIdAndSecContext(save_user, save_context);
	AtEOXact_GUC(true, level);
	return SPI_tuptable;
}

Datum
rbp_policy_value(SPITupleTable *rows, uint64 row, int column)
{
	bool		isnull;

	return SPI_getbinval(rows->vals[row], rows->tupdesc, column, &isnull);
}

Oid
rbp_policy_table(void)
{
	SPITupleTable *found = rbp_policy_sql(InvalidOid, table_query, 0, NULL, NULL, true);
	Oid			table = found->numvals == 0 ? InvalidOid :
	DatumGetObjectId(rbp_policy_value(found, 0, 1));

	SPI_finish();
	return table;
}

/* Raise an error if the table's columns are not those that we expect. */
static void
check_columns(Oid table)
{
	static const Oid types[] = {REGCLASSOID, NAMEOID, TEXTOID, BOOLOID};
	Relation	rel = table_open(table, NoLock);
	TupleDesc	desc = RelationGetDescr(rel);
	bool		known = desc->natts == lengthof(types);

	for (int i = 0; known && i < lengthof(types); i++)
		known = TupleDescAttr(desc, i)->atttypid == types[i] &&
			TupleDescAttr(desc, i)->attnotnull;
	if (!known)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" was changed since the extension created it", RBP_POLICY_TABLE)));
	table_close(rel, NoLock);
}

RbpPolicyList
rbp_policy_read(Oid table)
{
	enum
	{
		RELID = 1, SET_ON, INDEX, POLICY, TABLESPACE, NUMBER
	};
	MemoryContext context = CurrentMemoryContext;
	RbpPolicyList list = {NIL, NIL};
	SPITupleTable *rows;

	check_columns(table);
	rows = rbp_policy_sql(table, list_query, 0, NULL, NULL, true);
	MemoryContextSwitchTo(context);
	for (uint64 i = 0; i < rows->numvals; i++)
	{
		RbpPolicyRelation *r = palloc0(sizeof(RbpPolicyRelation));
		Oid			spc = DatumGetObjectId(rbp_policy_value(rows, i, TABLESPACE));
		char	   *policy = TextDatumGetCString(rbp_policy_value(rows, i, POLICY));

		r->relid = DatumGetObjectId(rbp_policy_value(rows, i, RELID));
		r->set_on = DatumGetObjectId(rbp_policy_value(rows, i, SET_ON));
		r->index = *DatumGetName(rbp_policy_value(rows, i, INDEX));
		r->policy = strcmp(policy, "keep") == 0 ? RBP_POLICY_KEEP : RBP_POLICY_NONE;
		r->file.spc = OidIsValid(spc) ? spc : MyDatabaseTableSpace;
		r->file.db = MyDatabaseId;
		r->file.rel = DatumGetObjectId(rbp_policy_value(rows, i, NUMBER));
		if (OidIsValid(r->relid))
			list.relations = lappend(list.relations, r);
		else
			list.orphans = lappend(list.orphans, r);
	}
	SPI_finish();
	return list;
}

bool
rbp_policy_kept_reach_limit(const List *relations)
{
	int64		max_pages = rbp_residency_limit(MyDatabaseId);
	int64		pages = 0;
	const ListCell *cell;

	if (max_pages < 0)
		return false;
	foreach(cell, relations)
		pages += rbp_residency_policy(&((const RbpPolicyRelation *) lfirst(cell))->file).kept;
	return pages >= max_pages;
}

bool
rbp_policy_trylock_database(Oid database, bool for_session)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, database, 0);
	return LockAcquire(&tag, RowExclusiveLock, for_session, true) != LOCKACQUIRE_NOT_AVAIL;
}

BlockNumber
rbp_policy_file_blocks(const RbpRelFile *file)
{
	RbpRelFile	segment = *file;
	BlockNumber blocks = 0;

	for (;; segment.segment++)
	{
		char	   *path = rbp_compat_path(&segment);
		struct stat st;
		bool		is_there = stat(path, &st) == 0;

		pfree(path);
		if (is_there)
			blocks += st.st_size / BLCKSZ;
		if (!is_there || st.st_size < (off_t) RELSEG_SIZE * BLCKSZ)
			return blocks;
	}
}

BlockNumber
rbp_policy_pages_wanted(const RbpRelFile *file)
{
	BlockNumber blocks = rbp_policy_file_blocks(file);
	RbpFilePolicy policy = rbp_residency_policy(file);
	BlockNumber missing = blocks - Min(blocks, policy.kept);

	/* a page that was new at the last visit may be in use, and held, by now */
	return blocks - Min(missing, policy.new_pages);
}
