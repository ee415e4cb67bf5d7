/*-------------------------------------------------------------------------
 *
 * relation_stats.c
 *	  remote_bp_stat_relations and remote_bp_stat_database: what the tier does
 *	  for each relation fork, and for each database.
 *
 * Forks are told apart by their files, as the tier does it: a relation that is
 * rewritten has another file, and begins anew.  Both tables in shared memory are
 * of bounded size.  A database has a row of its own, which is not the sum of its
 * relations' rows: some of these may have been replaced.
 *
 * If each page counted in shared memory, all processes that read the same index
 * would write to the same cache lines.  So they count in their own memory, for
 * a few forks at a time, and add that up later.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "common/relpath.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "base/compat.h"
#include "base/counter_table.h"
#include "base/guc.h"
#include "base/sql.h"
#include "buffer/buffer.h"
#include "buffer/relation_stats.h"
#include "buffer/space.h"
#include "common/clock.h"

PG_FUNCTION_INFO_V1(rbp_sql_stat_relations);
PG_FUNCTION_INFO_V1(rbp_sql_stat_database);

/* Databases that have a row, at most */
#define MAX_DATABASES		1000

/* Forks that a process counts for at a time */
#define PENDING_FORKS		16

/* Otherwise it is added at the end of a transaction, if this time is over. */
#define FLUSH_EVERY_NS		INT64CONST(100000000)

static RbpCounterTable *forks = NULL;	/* NULL if nothing is counted */
static RbpCounterTable *databases = NULL;

RbpPendingFork *rbp_pending_fork = NULL;
bool		rbp_relation_stats_pending = false;

static RbpPendingFork pending[PENDING_FORKS];
static int64 flushed_at = 0;

static Size
forks_size(void)
{
	return CACHELINEALIGN(rbp_counter_table_size(rbp_guc_relations_max, RBP_NUM_RELATION_ITEMS));
}

Size
rbp_relation_stats_shmem_size(void)
{
	Size		size = forks_size();

	if (rbp_guc_relations_max > 0)
		size = add_size(size, rbp_counter_table_size(MAX_DATABASES, RBP_NUM_RELATION_ITEMS));
	return size;
}

/*
 * ---- counting -------------------------------------------------------------------
 */

static void
add_pending(RbpPendingFork *p)
{
	RbpCounterKey database = {.high = (uint32) p->key.high,.low = 0};
	int			save_errno = errno;

	if (p->n == 0)
		return;
	rbp_counter_table_add(forks, &p->key, p->values);
	rbp_counter_table_add(databases, &database, p->values);
	memset(p->values, 0, sizeof(p->values));
	p->n = 0;
	errno = save_errno;
}

void
rbp_relation_stats_flush(void)
{
	if (!rbp_relation_stats_pending)
		return;
	rbp_relation_stats_pending = false;
	for (int i = 0; i < PENDING_FORKS; i++)
		add_pending(&pending[i]);
	flushed_at = rbp_now_ns();
}

static void
at_exit(int code, Datum arg)
{
	rbp_relation_stats_flush();
	/* who counts after this has no PGPROC, with which to add it */
	rbp_pending_fork = NULL;
	forks = NULL;
}

static void
at_transaction_end(XactEvent event, void *arg)
{
	if (!rbp_relation_stats_pending)
		return;
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			if (rbp_now_ns() - flushed_at >= FLUSH_EVERY_NS)
				rbp_relation_stats_flush();
			break;
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			/* a worker ends now, and its leader may look */
			rbp_relation_stats_flush();
			break;
		default:
			break;
	}
}

bool
rbp_relation_stats_switch(const RbpCounterKey *key)
{
	static bool registered = false;
	static uint32 next = 0;
	RbpPendingFork *p;

	if (forks == NULL)
		return false;
	if (!registered)
	{
		registered = true;
		on_shmem_exit(at_exit, (Datum) 0);
	}
	for (int i = 0; i < PENDING_FORKS; i++)
		if (pending[i].key.low == key->low && pending[i].key.high == key->high)
		{
			rbp_pending_fork = &pending[i];
			return true;
		}
	p = &pending[next++ % PENDING_FORKS];
	add_pending(p);
	p->key = *key;
	rbp_pending_fork = p;
	return true;
}

void
rbp_relation_stats_add_fork(void)
{
	add_pending(rbp_pending_fork);
}

void
rbp_relation_count_page(const RbpPageId *page, RbpRelationItem item, uint64 n)
{
	Oid			spc;
	Oid			db;
	RbpCounterKey key;

	if (forks == NULL || !rbp_space_resolve(page->space, &spc, &db))
		return;
	key = rbp_relation_stats_key(spc, db, page->rel, page->fork);
	rbp_relation_count_key(&key, item, n);
}

void
rbp_relation_stats_reset(void)
{
	rbp_relation_stats_flush();
	if (forks == NULL)
		return;
	rbp_counter_table_clear(forks);
	rbp_counter_table_clear(databases);
}

void
rbp_relation_stats_shmem_init(void *mem)
{
	static bool registered = false;

	if (rbp_guc_relations_max == 0)
		return;
	forks = rbp_counter_table_init(mem, rbp_guc_relations_max, RBP_NUM_RELATION_ITEMS,
								   "RemoteBpRelations");
	databases = rbp_counter_table_init((char *) mem + forks_size(), MAX_DATABASES,
									   RBP_NUM_RELATION_ITEMS, "RemoteBpDatabases");
	/* This is the postmaster, whose children inherit the callback. */
	if (!registered)
		RegisterXactCallback(at_transaction_end, NULL);
	registered = true;
}

/*
 * ---- the views --------------------------------------------------------------------
 */

static void
put_values(const RbpCounterRow *row, Datum *values)
{
	for (int i = 0; i < RBP_NUM_RELATION_ITEMS; i++)
		values[i] = i < RBP_FIRST_RELATION_TIME ? Int64GetDatum((int64) row->values[i]) :
			Float8GetDatum((double) row->values[i] / RBP_NS_PER_MS);
}

Datum
rbp_sql_stat_relations(PG_FUNCTION_ARGS)
{
	enum
	{
		RELATION, RELFILENODE, FORK, FIRST_ITEM,
		COLUMNS = FIRST_ITEM + RBP_NUM_RELATION_ITEMS
	};
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo, COLUMNS);
	void	   *rows;
	int			n;

	if (forks == NULL)
		return (Datum) 0;
	rbp_relation_stats_flush();
	rows = rbp_counter_table_copy(forks, &n, true);
	for (int r = 0; r < n; r++)
	{
		const RbpCounterRow *row = rbp_counter_row(rows, r, RBP_NUM_RELATION_ITEMS);
		Oid			db = (Oid) row->key.high;
		uint32		rel = (uint32) (row->key.low >> 32);
		uint32		fork = (uint32) row->key.low;
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};
		Oid			relid;

		/* show relations of this database, and shared ones */
		if (db != MyDatabaseId && db != InvalidOid)
			continue;
		CHECK_FOR_INTERRUPTS();

		/* not found: rewritten, dropped, or created by a running transaction */
		relid = RelidByRelfilenumber((Oid) (row->key.high >> 32), rel);
		values[RELATION] = ObjectIdGetDatum(relid);
		nulls[RELATION] = !OidIsValid(relid);
		values[RELFILENODE] = ObjectIdGetDatum(rel);
		values[FORK] = CStringGetTextDatum(fork <= MAX_FORKNUM ? forkNames[fork] : "?");
		put_values(row, &values[FIRST_ITEM]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

Datum
rbp_sql_stat_database(PG_FUNCTION_ARGS)
{
	enum
	{
		DATID, DATABASE, FIRST_ITEM,
		COLUMNS = FIRST_ITEM + RBP_NUM_RELATION_ITEMS
	};
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo, COLUMNS);
	void	   *rows;
	int			n;

	if (databases == NULL)
		return (Datum) 0;
	rbp_relation_stats_flush();
	rows = rbp_counter_table_copy(databases, &n, true);
	for (int r = 0; r < n; r++)
	{
		const RbpCounterRow *row = rbp_counter_row(rows, r, RBP_NUM_RELATION_ITEMS);
		Oid			db = (Oid) row->key.high;
		char	   *name = get_database_name(db);
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};

		values[DATID] = ObjectIdGetDatum(db);
		nulls[DATABASE] = name == NULL;
		if (name != NULL)
			values[DATABASE] = DirectFunctionCall1(namein, CStringGetDatum(name));
		put_values(row, &values[FIRST_ITEM]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
