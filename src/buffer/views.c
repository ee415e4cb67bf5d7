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
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/sql.h"
#include "buffer/buffer_internal.h"
#include "buffer/directory.h"
#include "buffer/page.h"
#include "buffer/space.h"
#include "buffer/staging.h"

PG_FUNCTION_INFO_V1(rbp_sql_relations);
PG_FUNCTION_INFO_V1(rbp_sql_evict);

/*
 * The callback of a directory scan runs under a partition lock and must not
 * allocate memory.  It notes the fork of each page in an array that was
 * allocated before, and is large enough for all pages of a partition.  The
 * pages are counted after the scan.
 */

typedef struct ForkKey
{
	uint32		rel;
	uint16		space;
	uint8		fork;
	uint8		pad;			/* zero */
} ForkKey;

typedef struct ForkCount
{
	ForkKey		key;			/* first, for the hash table */
	uint64		remote;
	uint64		staged;
} ForkCount;

typedef struct NotedPage
{
	ForkKey		key;
	bool		staged;
} NotedPage;

typedef struct NotedPages
{
	NotedPage  *pages;
	Size		n;
	Size		room;
} NotedPages;

static void
note_page(const RbpPageId *page, RbpWhere where, uint32_t slot, void *arg)
{
	NotedPages *noted = arg;
	NotedPage  *p;

	if (noted->n == noted->room)
		return;
	p = &noted->pages[noted->n++];
	p->key.rel = page->rel;
	p->key.space = page->space;
	p->key.fork = page->fork;
	p->key.pad = 0;
	p->staged = where == RBP_STAGED;
}

/* Pages of each fork, of every database: a hash table of ForkCount. */
static HTAB *
count_forks(void)
{
	HASHCTL		ctl;
	HTAB	   *forks;
	NotedPages	noted;

	ctl.keysize = sizeof(ForkKey);
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
										 Max(noted.room, 1) * sizeof(NotedPage));
	for (int part = 0; part < RBP_PARTITIONS; part++)
	{
		CHECK_FOR_INTERRUPTS();
		noted.n = 0;
		rbp_directory_scan(rbp_dir, part, note_page, &noted);
		for (Size i = 0; i < noted.n; i++)
		{
			ForkCount  *count;
			bool		found;

			count = hash_search(forks, &noted.pages[i].key, HASH_ENTER, &found);
			if (!found)
				count->remote = count->staged = 0;
			if (noted.pages[i].staged)
				count->staged++;
			else
				count->remote++;
		}
	}
	pfree(noted.pages);
	return forks;
}

Datum
rbp_sql_relations(PG_FUNCTION_ARGS)
{
	enum
	{
		RELATION, RELFILENODE, FORK, PAGES, BYTES, STAGED_PAGES, COLUMNS
	};
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo, COLUMNS);
	HASH_SEQ_STATUS seq;
	ForkCount  *count;

	hash_seq_init(&seq, count_forks());
	while ((count = hash_seq_search(&seq)) != NULL)
	{
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};
		Oid			spc;
		Oid			db;

		/* show relations of this database, and shared ones */
		if (!rbp_space_resolve(count->key.space, &spc, &db) ||
			(db != MyDatabaseId && db != InvalidOid))
			continue;

		rbp_sql_fork(spc, count->key.rel, count->key.fork, values, nulls);
		values[PAGES] = Int64GetDatum((int64) count->remote);
		values[BYTES] = Int64GetDatum((int64) count->remote * BLCKSZ);
		values[STAGED_PAGES] = Int64GetDatum((int64) count->staged);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

Datum
rbp_sql_evict(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	Relation	rel;
	RbpRelFile	file;
	uint16		space;
	uint64		dropped = 0;

	rbp_sql_require_loaded();
	rel = relation_open(relid, AccessShareLock);
	rbp_sql_check_buffered(rel);
	file = rbp_compat_rel_file(rel, MAIN_FORKNUM);
	space = rbp_space_find(file.spc, file.db);
	if (space != RBP_INVALID_SPACE)
		dropped = rbp_directory_drop_relation(rbp_dir, file.rel, space);
	relation_close(rel, AccessShareLock);
	PG_RETURN_INT64((int64) dropped);
}
