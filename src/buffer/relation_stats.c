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
 * some forks at a time, and add that up later.  Who reads more forks than that, such
 * as partitions, adds up all the time; so there are several tables of forks, each
 * with a lock of its own.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "base/compat.h"
#include "base/counter_table.h"
#include "base/guc.h"
#include "base/lock.h"
#include "base/process.h"
#include "base/sql.h"
#include "buffer/buffer.h"
#include "buffer/buffer_internal.h"
#include "buffer/relation_stats.h"
#include "common/clock.h"

PG_FUNCTION_INFO_V1(rbp_sql_stat_relations);
PG_FUNCTION_INFO_V1(rbp_sql_stat_database);

/* Databases that have a row, at most */
#define MAX_DATABASES		1000

/* Tables of forks, unless there are few rows in all */
#define FORK_TABLES			16
#define MIN_PARTED_ROWS		1024

/* Forks that a process counts for at a time; a fork's hash selects the set. */
#define PENDING_SETS		16
#define PENDING_WAYS		4

/* A fork's pending counts are added to shared memory when they are so many pages. */
#define MAX_PENDING		1024

/* Likewise a database's */
#define MAX_PENDING_DATABASE	(16 * MAX_PENDING)

/* What is pending is added at the end of a transaction, if this time is over. */
#define FLUSH_EVERY_NS		INT64CONST(100000000)

static int	nforks = 0;			/* tables of forks; 0 if nothing is counted */
static RbpCounterTable *forks[FORK_TABLES];
static RbpCounterTable *databases;

/* A fork or database that this process has counted for, and not yet added. */
typedef struct Pending
{
	RbpCounterRow row;
	uint64		n;				/* pages; 0: nothing is pending */
	uint32		resets;			/* *resets when it was counted */
} Pending;

bool		rbp_relation_stats_pending = false;

static pg_atomic_uint32 *resets = NULL; /* how many there have been */
static Pending pending[PENDING_SETS][PENDING_WAYS];
static Pending *pending_fork = NULL;	/* that was counted for last */
static Pending pending_database;
static int64 flushed_at = 0;

static int
fork_tables(void)
{
	return rbp_guc_relations_max >= MIN_PARTED_ROWS ? FORK_TABLES : 1;
}

/* Rows of each of them */
static int
fork_rows(void)
{
	return rbp_guc_relations_max / fork_tables();
}

static Size
fork_table_size(void)
{
	return CACHELINEALIGN(rbp_counter_table_size(fork_rows()));
}

Size
rbp_relation_stats_shmem_size(void)
{
	Size		size = add_size(PG_CACHE_LINE_SIZE, mul_size(fork_tables(), fork_table_size()));

	if (rbp_guc_relations_max == 0)
		return 0;
	return add_size(size, rbp_counter_table_size(MAX_DATABASES));
}

/*
 * ---- counting -------------------------------------------------------------------
 */

static uint64
hash_of(const RbpCounterKey *key)
{
	return rbp_mix64(key->low ^ key->high);
}

/* Forget what was counted before a reset. */
static void
discard_old(Pending *p)
{
	uint32		now = pg_atomic_read_u32(resets);

	if (p->resets == now)
		return;
	memset(p->row.values, 0, sizeof(p->row.values));
	p->n = 0;
	p->resets = now;
}

static void
add_to_table(RbpCounterTable *table, Pending *p)
{
	int			save_errno = errno;

	rbp_counter_table_add(table, &p->row);
	memset(p->row.values, 0, sizeof(p->row.values));
	p->n = 0;
	errno = save_errno;
}

/* The database's counts stay with the process for longer. */
static void
add_pending(Pending *p)
{
	Oid			db = (Oid) p->row.key.high;

	discard_old(p);
	if (p->n == 0)
		return;
	discard_old(&pending_database);
	if (pending_database.n >= MAX_PENDING_DATABASE ||
		(pending_database.n > 0 && pending_database.row.key.high != db))
		add_to_table(databases, &pending_database);
	pending_database.row.key.high = db;
	for (int i = 0; i < RBP_NUM_USAGE_ITEMS; i++)
		pending_database.row.values[i] += p->row.values[i];
	pending_database.n += p->n;
	add_to_table(forks[(hash_of(&p->row.key) >> 32) % nforks], p);
}

/* Add to shared memory what this process has counted.  Preserves errno. */
static void
flush(void)
{
	if (!rbp_relation_stats_pending)
		return;
	rbp_relation_stats_pending = false;
	for (int set = 0; set < PENDING_SETS; set++)
		for (int way = 0; way < PENDING_WAYS; way++)
			add_pending(&pending[set][way]);
	discard_old(&pending_database);
	if (pending_database.n > 0)
		add_to_table(databases, &pending_database);
	flushed_at = rbp_now_ns();
}

void
rbp_relation_stats_flush_outside(void)
{
	/* they read page after page, and nobody waits for what they count */
	bool		reader = AmStartupProcess() || rbp_compat_is_io_worker();

	if (!reader || rbp_now_ns() - flushed_at >= FLUSH_EVERY_NS)
		flush();
}

void
rbp_relation_stats_exits(void)
{
	flush();
	/* who counts after this has no PGPROC, with which to add it */
	pending_fork = NULL;
	nforks = 0;
}

/* A parallel worker ends then, and its leader may look. */
pg_attribute_hot void
rbp_relation_stats_transaction_ends(XactEvent event)
{
	if (rbp_relation_stats_pending &&
		(event == XACT_EVENT_PARALLEL_COMMIT || event == XACT_EVENT_PARALLEL_ABORT ||
		 rbp_now_ns() - flushed_at >= FLUSH_EVERY_NS))
		flush();
}

/* Make pending_fork that of the key, if anything is counted at all. */
static bool
switch_fork(const RbpCounterKey *key)
{
	static uint32 next = 0;
	Pending    *set;

	if (nforks == 0)
		return false;
	rbp_process_needs_exit();
	set = pending[hash_of(key) % PENDING_SETS];
	pending_fork = NULL;
	for (int way = 0; way < PENDING_WAYS; way++)
		if (set[way].row.key.low == key->low && set[way].row.key.high == key->high)
			pending_fork = &set[way];
	if (pending_fork == NULL)
	{
		pending_fork = &set[next++ % PENDING_WAYS];
		add_pending(pending_fork);
		pending_fork->row.key = *key;
	}
	discard_old(pending_fork);
	return true;
}

/* Count for a fork: an item of RbpUsage, and a time of it if that is one, too. */
static inline void
count_for_fork(Oid spc, Oid db, uint32 rel, uint8 fork, RbpCounter item, int n, int64 ns)
{
	RbpCounterKey key = {.high = (uint64) spc << 32 | db,.low = (uint64) rel << 32 | fork};

	if ((pending_fork == NULL || pending_fork->row.key.low != key.low ||
		 pending_fork->row.key.high != key.high ||
		 pending_fork->resets != pg_atomic_read_u32(resets)) &&
		!switch_fork(&key))
		return;
	pending_fork->row.values[item] += (uint64) n;
	if (ns > 0 && RBP_COUNT_NS + item < RBP_NUM_USAGE_ITEMS)
		pending_fork->row.values[RBP_COUNT_NS + item] += (uint64) ns;
	pending_fork->n += (uint64) n;
	rbp_relation_stats_pending = true;
	if (unlikely(pending_fork->n >= MAX_PENDING))
		add_pending(pending_fork);
}

void
rbp_count_read(const RbpRelFile *file, RbpCounter outcome, int n, int64 ns)
{
	rbp_stats_outcome(outcome, n, ns);
	count_for_fork(file->spc, file->db, file->rel, file->fork, outcome, n, ns);
}

void
rbp_relation_count_page(const RbpPageId *page, RbpCounter item)
{
	Oid			spc;
	Oid			db;

	if (nforks > 0 && rbp_space_resolve(page->space, &spc, &db))
		count_for_fork(spc, db, page->rel, page->fork, item, 1, -1);
}

void
rbp_relation_stats_reset(void)
{
	if (nforks == 0)
		return;
	/* first, so that nobody adds older counts to the empty tables */
	(void) pg_atomic_fetch_add_u32(resets, 1);
	for (int i = 0; i < nforks; i++)
		rbp_counter_table_clear(forks[i]);
	rbp_counter_table_clear(databases);
}

void
rbp_relation_stats_shmem_init(void *mem)
{
	char	   *at = mem;
	int			tranche;

	if (rbp_guc_relations_max == 0)
		return;
	tranche = rbp_lock_tranche("RemoteBpRelations");
	resets = mem;
	pg_atomic_init_u32(resets, 0);
	at += PG_CACHE_LINE_SIZE;
	nforks = fork_tables();
	for (int i = 0; i < nforks; i++)
	{
		forks[i] = rbp_counter_table_init(at, fork_rows(), tranche);
		at += fork_table_size();
	}
	databases = rbp_counter_table_init(at, MAX_DATABASES, rbp_lock_tranche("RemoteBpDatabases"));
}

/*
 * ---- the views --------------------------------------------------------------------
 */

/* Rows of this database, and of what all share */
static bool
put_fork(const RbpCounterRow *counters, RbpRow *row)
{
	RbpCounterKey key = counters->key;
	Oid			db = (Oid) key.high;

	if (db != MyDatabaseId && db != InvalidOid)
		return false;
	rbp_row_fork(row, (Oid) (key.high >> 32), (uint32) (key.low >> 32), (uint32) key.low);
	return true;
}

Datum
rbp_sql_stat_relations(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);

	flush();
	for (int i = 0; i < nforks; i++)
		rbp_sql_counter_rows(rsinfo, forks[i], put_fork);
	return (Datum) 0;
}

/* Rows of databases that were not dropped */
static bool
put_database(const RbpCounterRow *counters, RbpRow *row)
{
	Oid			db = (Oid) counters->key.high;

	return rbp_row_database(row, db) || !OidIsValid(db);
}

Datum
rbp_sql_stat_database(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);

	flush();
	if (nforks > 0)
		rbp_sql_counter_rows(rsinfo, databases, put_database);
	return (Datum) 0;
}
