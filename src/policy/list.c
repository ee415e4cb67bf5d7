/*-------------------------------------------------------------------------
 *
 * list.c
 *	  Resolves the table of policies to the files that the policies apply to.
 *
 * A policy of a partitioned table applies to its partitions.  A policy of a
 * table applies to its TOAST table and, if requested, to its indexes.  If two
 * policies apply to a relation, the more specific one counts: first one set
 * on the index itself, then one on the table, then one on the nearest
 * partitioned table above.
 *
 * No relation that a policy applies to is opened or locked.  The table of
 * policies is read with the active snapshot; all else comes from catalogs and
 * system caches, as of the latest commit.  So a relation that is being
 * rewritten has its old files until the rewrite is committed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "base/relfile.h"
#include "buffer/buffer.h"
#include "policy/policy_internal.h"

/* The table's columns. */
enum
{
	COLUMN_RELATION = 1, COLUMN_INDEX, COLUMN_POLICY, COLUMN_INDEXES
};

/* A row of the table. */
typedef struct Row
{
	Oid			relation;
	NameData	index;			/* "": the table itself */
	RbpPolicy	policy;
	bool		include_indexes;
	int			depth;			/* number of partitioned tables above it */
} Row;

/* Relations found so far: by OID, and in the order in which they were found */
typedef struct Work
{
	HTAB	   *by_relid;
	RbpPolicyList list;
} Work;

typedef struct ByRelid
{
	Oid			relid;			/* first, for the hash table */
	RbpPolicyRelation *relation;
} ByRelid;

Oid
rbp_policy_table(void)
{
	Oid			extension = get_extension_oid("remote_bp", true);
	Oid			schema = InvalidOid;
	Oid			table;
	Relation	rel;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (!OidIsValid(extension))
		return InvalidOid;
	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyInit(&key, Anum_pg_extension_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(extension));
	scan = systable_beginscan(rel, ExtensionOidIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		schema = ((Form_pg_extension) GETSTRUCT(tuple))->extnamespace;
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	table = OidIsValid(schema) ? get_relname_relid(RBP_POLICY_TABLE, schema) : InvalidOid;
	/* not just any table of that name */
	return OidIsValid(table) &&
		getExtensionOfObject(RelationRelationId, table) == extension ? table : InvalidOid;
}

/* Record that the policy applies to the relation, if it has files. */
static void
add_relation(Work *work, Oid relid, const Row *row)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class class;
	ByRelid    *entry;
	bool		found;

	if (!HeapTupleIsValid(tuple))
		return;
	class = (Form_pg_class) GETSTRUCT(tuple);
	if (RELKIND_HAS_STORAGE(class->relkind) &&
		class->relpersistence != RELPERSISTENCE_TEMP && !class->relisshared)
	{
		entry = hash_search(work->by_relid, &relid, HASH_ENTER, &found);
		if (!found)
		{
			entry->relation = palloc0(sizeof(RbpPolicyRelation));
			work->list.relations = lappend(work->list.relations, entry->relation);
		}
		entry->relation->relid = relid;
		entry->relation->set_on = row->relation;
		entry->relation->policy = row->policy;
		entry->relation->file = (RbpRelFile)
		{
			.spc = OidIsValid(class->reltablespace) ? class->reltablespace : MyDatabaseTableSpace,
				.db = MyDatabaseId,.rel = rbp_compat_class_number(class)
		};
	}
	ReleaseSysCache(tuple);
}

/* The OIDs of the table's indexes. */
static List *
indexes_of(Oid table)
{
	Relation	rel = table_open(IndexRelationId, AccessShareLock);
	List	   *indexes = NIL;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_index_indrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(table));
	scan = systable_beginscan(rel, IndexIndrelidIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		indexes = lappend_oid(indexes, ((Form_pg_index) GETSTRUCT(tuple))->indexrelid);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return indexes;
}

static Oid
toast_of(Oid table)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
	Oid			toast = InvalidOid;

	if (HeapTupleIsValid(tuple))
	{
		toast = ((Form_pg_class) GETSTRUCT(tuple))->reltoastrelid;
		ReleaseSysCache(tuple);
	}
	return toast;
}

static void
add_relations(Work *work, const List *relids, const Row *row)
{
	const ListCell *cell;

	foreach(cell, relids)
		add_relation(work, lfirst_oid(cell), row);
}

/*
 * Apply a policy to a table, or to a partitioned table and all tables below
 * it.
 */
static void
add_table(Work *work, const Row *row)
{
	List	   *tables = get_rel_relkind(row->relation) == RELKIND_PARTITIONED_TABLE ?
	find_all_inheritors(row->relation, NoLock, NULL) :
	list_make1_oid(row->relation);
	ListCell   *cell;

	foreach(cell, tables)
	{
		Oid			table = lfirst_oid(cell);
		Oid			toast = toast_of(table);

		CHECK_FOR_INTERRUPTS();
		add_relation(work, table, row);
		if (OidIsValid(toast))
		{
			add_relation(work, toast, row);
			add_relations(work, indexes_of(toast), row);
		}
		if (row->include_indexes)
			add_relations(work, indexes_of(table), row);
	}
}

/*
 * Apply a policy to an index, or to a partitioned index and all indexes below
 * it.
 */
static void
add_index(Work *work, const Row *row)
{
	List	   *indexes = indexes_of(row->relation);
	RbpPolicyOrphan *orphan;
	ListCell   *cell;

	foreach(cell, indexes)
	{
		Oid			index = lfirst_oid(cell);
		char	   *name = get_rel_name(index);

		if (name == NULL || strcmp(name, NameStr(row->index)) != 0)
			continue;
		add_relations(work,
					  get_rel_relkind(index) == RELKIND_PARTITIONED_INDEX ?
					  find_all_inheritors(index, NoLock, NULL) : list_make1_oid(index),
					  row);
		return;
	}
	orphan = palloc0(sizeof(RbpPolicyOrphan));
	orphan->set_on = row->relation;
	orphan->index = row->index;
	orphan->policy = row->policy;
	work->list.orphans = lappend(work->list.orphans, orphan);
}

/*
 * Order rows from the least to the most specific one: add_relation() lets a row
 * override those before it.
 */
static int
compare_rows(const ListCell *a, const ListCell *b)
{
	const Row  *x = lfirst(a);
	const Row  *y = lfirst(b);
	bool		x_index = NameStr(x->index)[0] != '\0';
	bool		y_index = NameStr(y->index)[0] != '\0';

	if (x_index != y_index)
		return x_index ? 1 : -1;
	if (x->depth != y->depth)
		return x->depth - y->depth;
	return x->relation < y->relation ? -1 : x->relation > y->relation;
}

static List *
read_rows(Oid table)
{
	static const Oid types[] = {REGCLASSOID, NAMEOID, TEXTOID, BOOLOID};
	Relation	rel = table_open(table, NoLock);
	TableScanDesc scan;
	List	   *rows = NIL;
	HeapTuple	tuple;
	bool		known = RelationGetDescr(rel)->natts == COLUMN_INDEXES;

	for (int i = 0; known && i < COLUMN_INDEXES; i++)
		known = TupleDescAttr(RelationGetDescr(rel), i)->atttypid == types[i] &&
			TupleDescAttr(RelationGetDescr(rel), i)->attnotnull;
	if (!known)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" was changed since the extension created it", RBP_POLICY_TABLE)));
	scan = table_beginscan(rel, GetActiveSnapshot(), 0, NULL);

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Row		   *row = palloc(sizeof(Row));
		Datum		values[COLUMN_INDEXES];
		bool		nulls[COLUMN_INDEXES];
		char	   *policy;

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		row->relation = DatumGetObjectId(values[COLUMN_RELATION - 1]);
		namestrcpy(&row->index, NameStr(*DatumGetName(values[COLUMN_INDEX - 1])));
		policy = TextDatumGetCString(values[COLUMN_POLICY - 1]);
		row->policy = strcmp(policy, "keep") == 0 ? RBP_POLICY_KEEP : RBP_POLICY_NONE;
		row->include_indexes = DatumGetBool(values[COLUMN_INDEXES - 1]);
		row->depth = 0;

		/*
		 * the relation was dropped; its row is deleted when the next policy
		 * is set
		 */
		if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(row->relation)))
			continue;
		if (get_rel_relispartition(row->relation))
			row->depth = list_length(get_partition_ancestors(row->relation));
		rows = lappend(rows, row);
	}
	table_endscan(scan);
	table_close(rel, NoLock);
	list_sort(rows, compare_rows);
	return rows;
}

RbpPolicyList
rbp_policy_read(Oid table)
{
	Work		work = {0};
	HASHCTL		ctl = {
		.keysize = sizeof(Oid),.entrysize = sizeof(ByRelid),.hcxt = CurrentMemoryContext
	};
	ListCell   *cell;
	List	   *rows;

	work.by_relid = hash_create("remote_bp policies", 256, &ctl,
								HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	rows = read_rows(table);
	foreach(cell, rows)
	{
		const Row  *row = lfirst(cell);

		if (NameStr(row->index)[0] == '\0')
			add_table(&work, row);
		else
			add_index(&work, row);
	}
	hash_destroy(work.by_relid);
	return work.list;
}

bool
rbp_policy_kept_reach_limit(const List *relations)
{
	uint64		pages = 0;
	int64		max_pages = -1;
	const ListCell *cell;

	foreach(cell, relations)
	{
		const RbpPolicyRelation *r = lfirst(cell);
		uint32		held = rbp_residency_held(&r->file);

		if (max_pages < 0)
			max_pages = rbp_residency_limit_of(&r->file);

		/*
		 * A file with kept pages is in a known space, so there is no limit.
		 * One without may be in a new space, to which the limit is not
		 * applied yet: ask for the next file.
		 */
		if (max_pages < 0 && held > 0)
			return false;
		pages += held;
	}
	return max_pages >= 0 && pages >= (uint64) max_pages;
}

static LOCKTAG
database_tag(Oid database)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, database, 0);
	return tag;
}

bool
rbp_policy_trylock_database(Oid database)
{
	LOCKTAG		tag = database_tag(database);

	return LockAcquire(&tag, RowExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

bool
rbp_policy_trylock_database_session(Oid database)
{
	LOCKTAG		tag = database_tag(database);

	return LockAcquire(&tag, RowExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
}

void
rbp_policy_unlock_database_session(Oid database)
{
	LOCKTAG		tag = database_tag(database);

	(void) LockRelease(&tag, RowExclusiveLock, true);
}

BlockNumber
rbp_policy_file_blocks(const RbpRelFile *file)
{
	char	   *first = rbp_compat_path(file->spc, file->db, file->rel, MAIN_FORKNUM);
	BlockNumber blocks = 0;

	for (uint32 segment = 0;; segment++)
	{
		char	   *path = segment == 0 ? first : psprintf("%s.%u", first, segment);
		struct stat st;
		bool		is_there = stat(path, &st) == 0;

		if (path != first)
			pfree(path);
		if (is_there)
			blocks += st.st_size / BLCKSZ;
		if (!is_there || st.st_size < (off_t) RELSEG_SIZE * BLCKSZ)
			break;
	}
	pfree(first);
	return blocks;
}

BlockNumber
rbp_policy_pages_wanted(const RbpRelFile *file)
{
	BlockNumber blocks = rbp_policy_file_blocks(file);
	BlockNumber missing = blocks - Min(blocks, rbp_residency_held(file));

	/* a page that was new at the last visit may be in use, and held, by now */
	return blocks - Min(missing, rbp_residency_new(file));
}
