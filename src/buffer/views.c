/*-------------------------------------------------------------------------
 *
 * views.c
 *	  remote_bp_relations, and remote_bp_evict(); the names of all pages.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/hsearch.h"

#include "base/compat.h"
#include "base/sql.h"
#include "buffer/buffer_internal.h"
#include "buffer/directory.h"
#include "buffer/page.h"
#include "buffer/staging.h"

PG_FUNCTION_INFO_V1(rbp_sql_relations);
PG_FUNCTION_INFO_V1(rbp_sql_evict);

/*
 * ---- the names of all pages -------------------------------------------------------
 *
 * A visit runs under a partition lock and must not allocate memory.  It copies the
 * names to an array that was allocated before, and is large enough for all pages of a
 * partition.
 */
typedef struct PageNames
{
	RbpPageName *names;
	Size		n;
	Size		room;
} PageNames;

static bool
copy_name(const RbpPageId *page, const RbpLookup *at, void *arg)
{
	PageNames  *names = arg;

	if (names->n < names->room)
		names->names[names->n++] = (RbpPageName)
	{
		*page, at->where == RBP_STAGED, rbp_directory_is_hot(rbp_dir, at)
	};
	return false;
}

void
rbp_for_each_page(void (*fn) (const RbpPageName *name, void *arg), void *arg)
{
	PageNames	names;

	/* a partition has a slot of each extent, and at most all staged pages */
	names.room = rbp_tier_max_extents() + rbp_staging_slots(rbp_staging);
	names.names = MemoryContextAllocHuge(CurrentMemoryContext,
										 Max(names.room, 1) * sizeof(RbpPageName));
	for (int part = 0; part < RBP_PARTITIONS; part++)
	{
		CHECK_FOR_INTERRUPTS();
		names.n = 0;
		(void) rbp_directory_visit(rbp_dir, part, false, copy_name, &names);
		for (Size i = 0; i < names.n; i++)
			fn(&names.names[i], arg);
	}
	pfree(names.names);
}

/*
 * ---- the views --------------------------------------------------------------------
 */

typedef struct ForkCount
{
	uint64		fork;			/* rel << 32 | space << 16 | fork; first, for
								 * the hash table */
	uint64		pages[2];		/* on donors, and staged */
} ForkCount;

static void
count_page(const RbpPageName *name, void *forks)
{
	uint64		fork = (uint64) name->page.rel << 32 | (uint64) name->page.space << 16 | name->page.fork;
	bool		found;
	ForkCount  *count = hash_search(forks, &fork, HASH_ENTER, &found);

	if (!found)
		memset(count->pages, 0, sizeof(count->pages));
	count->pages[name->staged]++;
}

/* Pages of each fork, of every database: a hash table of ForkCount. */
static HTAB *
count_forks(void)
{
	HASHCTL		ctl;
	HTAB	   *forks;

	ctl.keysize = sizeof(uint64);
	ctl.entrysize = sizeof(ForkCount);
	ctl.hcxt = CurrentMemoryContext;
	forks = hash_create("remote_bp forks", 256, &ctl,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	rbp_for_each_page(count_page, forks);
	return forks;
}

Datum
rbp_sql_relations(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);
	HASH_SEQ_STATUS seq;
	ForkCount  *count;

	hash_seq_init(&seq, count_forks());
	while ((count = hash_seq_search(&seq)) != NULL)
	{
		RbpRow		row = {0};
		Oid			spc;
		Oid			db;

		/* show relations of this database, and shared ones */
		if (!rbp_space_resolve((uint16) (count->fork >> 16), &spc, &db) ||
			(db != MyDatabaseId && db != InvalidOid))
			continue;

		rbp_row_fork(&row, spc, (uint32) (count->fork >> 32), (uint16) count->fork);
		rbp_row_count(&row, "pages", count->pages[0]);
		rbp_row_count(&row, "bytes", count->pages[0] * BLCKSZ);
		rbp_row_count(&row, "staged_pages", count->pages[1]);
		rbp_sql_add_row(rsinfo, &row);
	}
	return (Datum) 0;
}

static bool
page_is_of(const RbpPageId *page, const RbpLookup *at, void *arg)
{
	const RbpPageId *relation = arg;

	return page->rel == relation->rel && page->space == relation->space;
}

Datum
rbp_sql_evict(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	Relation	rel;
	RbpRelFile	file;
	RbpPageId	any = {0};
	uint64		dropped = 0;

	rbp_sql_require_loaded();
	rel = relation_open(relid, AccessShareLock);
	rbp_sql_check_buffered(rel);
	file = rbp_compat_rel_file(rel, MAIN_FORKNUM);
	any.rel = file.rel;
	any.space = rbp_space_find(file.spc, file.db);
	for (int part = 0; part < RBP_PARTITIONS && any.space != RBP_INVALID_SPACE; part++)
		dropped += rbp_directory_visit(rbp_dir, part, true, page_is_of, &any);
	relation_close(rel, AccessShareLock);
	PG_RETURN_INT64((int64) dropped);
}
