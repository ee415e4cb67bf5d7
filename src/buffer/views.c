/*-------------------------------------------------------------------------
 *
 * views.c
 *	  remote_bp_relations, and remote_bp_evict().
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
 * A visit runs under a partition lock and must not allocate memory.  It notes each
 * page in an array that was allocated before, and is large enough for all pages of a
 * partition: its fork, rel << 32 | space << 16 | fork << 1, and in the lowest bit
 * whether it is staged.  The pages are counted after it.
 */
typedef struct NotedPages
{
	uint64	   *pages;
	Size		n;
	Size		room;
} NotedPages;

typedef struct ForkCount
{
	uint64		fork;			/* first, for the hash table */
	uint64		pages[2];		/* on donors, and staged */
} ForkCount;

static bool
note_page(const RbpPageId *page, const RbpLookup *at, void *arg)
{
	NotedPages *noted = arg;

	if (noted->n < noted->room)
		noted->pages[noted->n++] = (uint64) page->rel << 32 | (uint64) page->space << 16 |
			(uint64) page->fork << 1 | (at->where == RBP_STAGED);
	return false;
}

/* Pages of each fork, of every database: a hash table of ForkCount. */
static HTAB *
count_forks(void)
{
	HASHCTL		ctl;
	HTAB	   *forks;
	NotedPages	noted;

	ctl.keysize = sizeof(uint64);
	ctl.entrysize = sizeof(ForkCount);
	ctl.hcxt = CurrentMemoryContext;
	forks = hash_create("remote_bp forks", 256, &ctl,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	/*
	 * a partition has its share of the remote slots, and at most all staged
	 * pages
	 */
	noted.room = rbp_directory_max_slots(rbp_dir) / RBP_PARTITIONS +
		rbp_staging_slots(rbp_staging);
	noted.pages = MemoryContextAllocHuge(CurrentMemoryContext,
										 Max(noted.room, 1) * sizeof(uint64));
	for (int part = 0; part < RBP_PARTITIONS; part++)
	{
		CHECK_FOR_INTERRUPTS();
		noted.n = 0;
		(void) rbp_directory_visit(rbp_dir, part, false, note_page, &noted);
		for (Size i = 0; i < noted.n; i++)
		{
			uint64		fork = noted.pages[i] & ~UINT64CONST(1);
			bool		found;
			ForkCount  *count = hash_search(forks, &fork, HASH_ENTER, &found);

			if (!found)
				memset(count->pages, 0, sizeof(count->pages));
			count->pages[noted.pages[i] & 1]++;
		}
	}
	pfree(noted.pages);
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

		rbp_row_fork(&row, spc, (uint32) (count->fork >> 32), (uint16) count->fork >> 1);
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
