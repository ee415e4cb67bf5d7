/*-------------------------------------------------------------------------
 *
 * rbp_policy_launcher.c
 *	  Has databases visited that have policies, or may have some; and sees to
 *	  what is set for the whole server or a whole database.
 *
 * The launcher is connected to no database and reads shared catalogs alone.  There is one
 * worker at a time.  Databases that had no policies when they were visited last are
 * visited in turn, no more than one in IDLE_VISIT_NS: policies may come with a
 * restored dump, or from a primary, of which nobody tells.
 *
 * A database's limit is a setting of it, in pg_db_role_setting: dumped by
 * pg_dumpall, there on standbys, and gone with the database.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_type.h"
#include "commands/tablespace.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/procsignal.h"
#include "tcop/tcopprot.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/varlena.h"

#include "rbp_compat.h"
#include "rbp_guc.h"
#include "rbp_policy.h"
#include "rbp_policy_internal.h"
#include "rbp_space.h"
#include "rbp_tier.h"
#include "transport/rbp_transport.h"

#define NS_PER_S		INT64CONST(1000000000)

/* Catalogs are read so often, and databases without policies visited no oftener. */
#define IDLE_VISIT_NS	(10 * NS_PER_S)

/* A visit that did not get to its end for others' sake is repeated after so long. */
#define RETRY_NS		NS_PER_S

#define LIMIT_PREFIX	"remote_bp.database_limit="

typedef struct Database
{
	Oid			oid;			/* first, for the hash table */
	NameData	name;
	bool		listed;			/* in the catalog, when it was read last */
	bool		visited;
	bool		has_policies;
	bool		due_now;
	int64		last_ns;		/* end of the last visit */
	int64		due_ns;
	int64		limit;			/* pages; -1: none */
	uint32		limit_number;	/* of the directory; 0: none */
	uint64		limit_spaces;	/* a hash of what the directory was given */
	bool		told_full;		/* the log knows that not all can be kept */
	bool		told_no_place;
	Oid			resume_relation;
	BlockNumber resume_block;
} Database;

static HTAB *databases = NULL;
static bool limit_in_use[RBP_LIMITS + 1];
static MemoryContext round_context = NULL;

void
rbp_policy_register(void)
{
	BackgroundWorker worker = {0};

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = 1;
	strlcpy(worker.bgw_name, "remote_bp policy launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "remote_bp policy launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "remote_bp", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "rbp_policy_launcher_main", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

/*
 * ---- catalogs ----------------------------------------------------------------------
 */

static void
read_databases(void)
{
	Relation	rel = table_open(DatabaseRelationId, AccessShareLock);
	TableScanDesc scan = table_beginscan_catalog(rel, 0, NULL);
	HASH_SEQ_STATUS seq;
	Database   *db;
	HeapTuple	tuple;

	hash_seq_init(&seq, databases);
	while ((db = hash_seq_search(&seq)) != NULL)
	{
		db->listed = false;
		db->limit = -1;
	}
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);
		bool		found;

		if (!form->datallowconn)
			continue;
		db = hash_search(databases, &form->oid, HASH_ENTER, &found);
		if (!found)
		{
			memset(db, 0, sizeof(*db));
			db->oid = form->oid;
			db->limit = -1;
		}
		db->name = form->datname;
		db->listed = true;
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
}

/* The limit that a database's settings have, in pages; -1 if none. */
static int64
limit_of_settings(ArrayType *settings)
{
	Datum	   *elements;
	int			n;

	deconstruct_array(settings, TEXTOID, -1, false, TYPALIGN_INT, &elements, NULL, &n);
	for (int i = 0; i < n; i++)
	{
		char	   *setting = TextDatumGetCString(elements[i]);
		int			mb;

		if (strncmp(setting, LIMIT_PREFIX, strlen(LIMIT_PREFIX)) == 0 &&
			parse_int(setting + strlen(LIMIT_PREFIX), &mb, GUC_UNIT_MB, NULL) && mb >= 0)
			return (int64) mb * (1024 * 1024 / BLCKSZ);
	}
	return -1;
}

static void
read_limits(void)
{
	Relation	rel = table_open(DbRoleSettingRelationId, AccessShareLock);
	TableScanDesc scan = table_beginscan_catalog(rel, 0, NULL);
	HeapTuple	tuple;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_db_role_setting form = (Form_pg_db_role_setting) GETSTRUCT(tuple);
		Database   *db = hash_search(databases, &form->setdatabase, HASH_FIND, NULL);
		bool		isnull;
		Datum		settings;

		if (db == NULL || OidIsValid(form->setrole))
			continue;
		settings = heap_getattr(tuple, Anum_pg_db_role_setting_setconfig,
								RelationGetDescr(rel), &isnull);
		if (!isnull)
			db->limit = limit_of_settings(DatumGetArrayTypeP(settings));
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
}

/*
 * ---- what is set for the server, or a database ---------------------------------------
 */

/* Pages of the tablespace that came before it was excluded are dropped. */
static void
drop_tablespace(Oid tablespace)
{
	Oid			spc;
	Oid			db;

	for (int space = 0; space < RBP_MAX_SPACES; space++)
		if (rbp_space_resolve((uint16) space, &spc, &db) && spc == tablespace)
			(void) rbp_directory_drop_space(rbp_dir, (uint16) space);
}

static void
exclude_tablespaces(void)
{
	static char *told = NULL;
	RbpPolicyShared *shared = rbp_policy_shared;
	Oid			excluded[RBP_POLICY_EXCLUDED];
	bool		excluded_before[RBP_POLICY_EXCLUDED];
	StringInfoData unknown;
	List	   *names;
	ListCell   *cell;
	int			n = 0;

	initStringInfo(&unknown);
	/* it was checked when it was set */
	(void) SplitIdentifierString(pstrdup(rbp_guc_exclude_tablespaces), ',', &names);
	foreach(cell, names)
	{
		Oid			spc = get_tablespace_oid(lfirst(cell), true);

		if (!OidIsValid(spc) || n == RBP_POLICY_EXCLUDED)
			appendStringInfo(&unknown, "%s\"%s\"", unknown.len > 0 ? ", " : "",
							 (char *) lfirst(cell));
		else
		{
			excluded_before[n] = rbp_policy_excludes(spc);
			excluded[n++] = spc;
		}
	}
	/* who looks at it meanwhile may miss one, whose pages are dropped below */
	pg_atomic_write_u32(&shared->nexcluded, 0);
	for (int i = 0; i < n; i++)
		pg_atomic_write_u32(&shared->excluded[i], excluded[i]);
	pg_memory_barrier();
	pg_atomic_write_u32(&shared->nexcluded, n);
	for (int i = 0; i < n; i++)
		if (!excluded_before[i])
			drop_tablespace(excluded[i]);

	if (unknown.len > 0 && (told == NULL || strcmp(told, unknown.data) != 0))
		ereport(LOG,
				(errmsg("remote_bp: not excluded are: %s", unknown.data),
				 errdetail("No tablespaces have these names in remote_bp.exclude_tablespaces, or there are more than %d.",
						   RBP_POLICY_EXCLUDED)));
	if (told != NULL)
		pfree(told);
	told = unknown.len > 0 ? MemoryContextStrdup(TopMemoryContext, unknown.data) : NULL;
}

static void
remove_limit(Database *db)
{
	if (db->limit_number == 0)
		return;
	rbp_directory_set_limit(rbp_dir, db->limit_number, 0, NULL, 0);
	limit_in_use[db->limit_number] = false;
	db->limit_number = 0;
}

/* The database's limit is for its spaces, which come by and by. */
static void
set_limit(Database *db)
{
	uint16		spaces[RBP_LIMIT_SPACES];
	uint64		hash = rbp_mix64((uint64) db->limit + 1);
	int			n = 0;
	Oid			spc;
	Oid			oid;

	for (int space = 0; space < RBP_MAX_SPACES && n < RBP_LIMIT_SPACES; space++)
	{
		if (!rbp_space_resolve((uint16) space, &spc, &oid) || oid != db->oid)
			continue;
		hash = rbp_mix64(hash ^ (uint64) space);
		spaces[n++] = (uint16) space;
	}
	if (n == 0)
		return;
	for (uint32 i = 1; db->limit_number == 0 && i <= RBP_LIMITS; i++)
		if (!limit_in_use[i])
		{
			db->limit_number = i;
			db->limit_spaces = hash + 1;
			limit_in_use[i] = true;
		}
	if (db->limit_number == 0)
	{
		ereport(LOG,
				(errmsg("remote_bp: the limit of database \"%s\" is not kept: more than %d databases have one",
						NameStr(db->name), RBP_LIMITS)));
		return;
	}
	if (db->limit_spaces != hash)
		rbp_directory_set_limit(rbp_dir, db->limit_number, (uint32) db->limit, spaces, n);
	db->limit_spaces = hash;
	if (rbp_directory_limit_pages(rbp_dir, db->limit_number) > (uint64) db->limit)
		(void) rbp_directory_trim(rbp_dir, db->limit_number);
}

/* Read the catalogs, and see to what they say. */
static void
look_around(void)
{
	HASH_SEQ_STATUS seq;
	Database   *db;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	read_databases();
	read_limits();
	MemoryContextSwitchTo(round_context);
	exclude_tablespaces();
	CommitTransactionCommand();
	MemoryContextSwitchTo(round_context);
	MemoryContextReset(round_context);

	hash_seq_init(&seq, databases);
	while ((db = hash_seq_search(&seq)) != NULL)
	{
		if (!db->listed || db->limit < 0)
			remove_limit(db);
		else
			set_limit(db);
		if (!db->listed)
			(void) hash_search(databases, &db->oid, HASH_REMOVE, NULL);
	}
}

/*
 * ---- visits ------------------------------------------------------------------------
 */

static void
tell(Database *db, const RbpPolicyVisit *visit)
{
	bool		full = visit->keep_full && visit->held < visit->wanted;

	if (full && !db->told_full)
		ereport(LOG,
				(errmsg("remote_bp: %llu of %llu pages that are to be kept of database \"%s\" cannot be: there is no room for more",
						(unsigned long long) (visit->wanted - visit->held),
						(unsigned long long) visit->wanted, NameStr(db->name)),
				 errhint("Raise remote_bp.keep_max_size, or the size of the tier.")));
	else if (!full && db->told_full)
		ereport(LOG,
				(errmsg("remote_bp: there is room again for pages of database \"%s\" that are to be kept",
						NameStr(db->name))));
	db->told_full = full;

	if (visit->no_place > 0 && !db->told_no_place)
		ereport(LOG,
				(errmsg("remote_bp: policies of %u files of database \"%s\" have no effect: there are too many",
						visit->no_place, NameStr(db->name))));
	db->told_no_place = visit->no_place > 0;
}

/* Have a worker visit the database, and wait for its end. */
static void
visit(Database *db)
{
	static bool told_no_worker = false;
	RbpPolicyVisit *result = &rbp_policy_shared->visit;
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;
	Oid			oid = db->oid;
	int64		now;

	memset(result, 0, sizeof(*result));
	result->resume_relation = db->resume_relation;
	result->resume_block = db->resume_block;
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_name, "remote_bp policy worker", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "remote_bp policy worker", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "remote_bp", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "rbp_policy_worker_main", BGW_MAXLEN);
	worker.bgw_main_arg = ObjectIdGetDatum(oid);
	worker.bgw_notify_pid = MyProcPid;

	db->due_now = false;
	db->last_ns = rbp_now_ns();
	db->due_ns = db->last_ns + RETRY_NS;
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
	{
		if (!told_no_worker)
			ereport(LOG,
					(errmsg("remote_bp: no background worker is free to look at policies"),
					 errhint("Raise max_worker_processes.")));
		told_no_worker = true;
		return;
	}
	told_no_worker = false;
	pg_atomic_write_u32(&rbp_policy_shared->visiting, oid);
	if (WaitForBackgroundWorkerShutdown(handle) == BGWH_POSTMASTER_DIED)
		proc_exit(1);
	pg_atomic_write_u32(&rbp_policy_shared->visiting, InvalidOid);
	pfree(handle);

	now = rbp_now_ns();
	db->visited = true;
	db->last_ns = now;
	db->due_ns = now + rbp_guc_policy_interval * NS_PER_S;
	if (result->database != oid)
		return;					/* it failed, as the log says */
	db->has_policies = result->has_policies;
	db->resume_relation = result->resume_relation;
	db->resume_block = result->resume_block;
	if (result->more)
		db->due_ns = OidIsValid(result->resume_relation) ? now : now + RETRY_NS;
	else
		tell(db, result);
}

/* Which database is to be visited next, and in how many ns, into *wait? */
static Database *
next_visit(int64 *wait)
{
	int64		now = rbp_now_ns();
	Database   *next = NULL;
	Database   *idle = NULL;
	int64		next_ns = PG_INT64_MAX;
	int64		last_idle_ns = 0;
	HASH_SEQ_STATUS seq;
	Database   *db;

	hash_seq_init(&seq, databases);
	while ((db = hash_seq_search(&seq)) != NULL)
	{
		int64		due = db->due_now || !db->visited ? 0 : db->due_ns;

		if (due == 0 || db->has_policies)
		{
			if (due < next_ns)
			{
				next = db;
				next_ns = due;
			}
			continue;
		}
		last_idle_ns = Max(last_idle_ns, db->last_ns);
		if (idle == NULL || db->last_ns < idle->last_ns)
			idle = db;
	}
	if (idle != NULL)
	{
		int64		due = last_idle_ns +
			Min(IDLE_VISIT_NS, rbp_guc_policy_interval * NS_PER_S);

		if (due < next_ns)
		{
			next = idle;
			next_ns = due;
		}
	}
	*wait = next_ns > now ? next_ns - now : 0;
	return next;
}

/* Those that somebody wants to have visited are due. */
static void
take_wakes(bool *look)
{
	bool		all = pg_atomic_exchange_u32(&rbp_policy_shared->wake_all, 0) != 0;

	*look = *look || all;
	for (int i = 0; i < RBP_POLICY_WAKES; i++)
	{
		Oid			oid = pg_atomic_exchange_u32(&rbp_policy_shared->wakes[i], 0);
		Database   *db;

		if (!OidIsValid(oid))
			continue;
		db = hash_search(databases, &oid, HASH_FIND, NULL);
		if (db != NULL)
			db->due_now = true;
		else
			*look = true;		/* a new one is visited anyway */
	}
	if (all)
	{
		HASH_SEQ_STATUS seq;
		Database   *db;

		hash_seq_init(&seq, databases);
		while ((db = hash_seq_search(&seq)) != NULL)
			db->due_now = db->due_now || db->has_policies;
	}
}

static void
forget_latch(int code, Datum arg)
{
	pg_atomic_write_u64(&rbp_policy_shared->latch, 0);
	pg_atomic_write_u32(&rbp_policy_shared->visiting, InvalidOid);
}

void
rbp_policy_launcher_main(Datum arg)
{
	HASHCTL		ctl = {.keysize = sizeof(Oid),.entrysize = sizeof(Database)};
	int64		look_ns = 0;
	bool		look = true;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	before_shmem_exit(forget_latch, (Datum) 0);
	pg_atomic_write_u64(&rbp_policy_shared->latch, (uint64) (uintptr_t) MyLatch);

	ctl.hcxt = TopMemoryContext;
	databases = hash_create("remote_bp databases", 32, &ctl,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	round_context = AllocSetContextCreate(TopMemoryContext, "remote_bp launcher",
										  ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(round_context);
	/* a launcher before this one may have set some */
	for (uint32 i = 1; i <= RBP_LIMITS; i++)
		rbp_directory_set_limit(rbp_dir, i, 0, NULL, 0);

	for (;;)
	{
		Database   *next = NULL;
		int64		wait = 0;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			rbp_directory_set_keep_max(rbp_dir, rbp_guc_keep_max_pages());
			pg_atomic_write_u32(&rbp_policy_shared->wake_all, 1);
		}
		/* without memory there is nothing to do until some comes */
		if (rbp_tier_attached())
		{
			take_wakes(&look);
			if (look || rbp_now_ns() >= look_ns)
			{
				look_around();
				look_ns = rbp_now_ns() + IDLE_VISIT_NS;
				look = false;
			}
			next = next_visit(&wait);
			if (next != NULL && wait == 0)
			{
				visit(next);
				MemoryContextReset(round_context);
				continue;
			}
			wait = next == NULL ? IDLE_VISIT_NS : Min(wait, IDLE_VISIT_NS);
		}
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | (wait > 0 ? WL_TIMEOUT : 0),
						 (long) (wait / 1000000) + 1, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}
