/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  Starts workers that visit databases that have policies, or may have
 *	  some, or whose pages are in the follower's list; and the follower.
 *
 * The launcher is not connected to a database, so it can read pg_database and
 * hardly anything else.  A visit is one run of the worker (worker.c) in a
 * database: it reads the policies there, applies them, and loads pages.  There
 * is one worker at a time.  Databases that had
 * no policies at their last visit are visited in turn, at most one every
 * IDLE_VISIT_NS: policies may arrive with a restored dump, or from a primary,
 * without notice.
 *
 * While the server is in recovery and remote_bp.follow is set, there is a follower (src/follow).
 * It ends by itself when that changes, and is started again, after a while, if it
 * fails.  With each of its rounds the databases in its list are visited until they are done.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/guc.h"
#include "base/wait.h"
#include "base/workers.h"
#include "buffer/buffer.h"
#include "common/clock.h"
#include "policy/policy_internal.h"


/*
 * The list of databases is read at this interval, and at most one database
 * without policies is visited in it
 */
#define IDLE_VISIT_NS	(10 * NANOS_PER_S)

/*
 * Minimum pause between visits of a database, unless the last visit ran out
 * of time.  A visit that was not completed because of other processes is
 * repeated after this pause, which doubles each time.
 */
#define PAUSE_NS		NANOS_PER_S

/* Longest pause before a follower that has failed is started again; it doubles each time */
#define FOLLOWER_PAUSE_NS	(60 * NANOS_PER_S)

typedef struct Database
{
	Oid			oid;			/* first, for the hash table */
	NameData	name;
	bool		listed;			/* in the catalog when it was last read */
	bool		requested;		/* a visit was, since the last one began */
	int64		last_ns;		/* end of the last visit, or of an attempt */
	int64		due_ns;
	int64		retry_ns;		/* pause after a visit that failed or was not
								 * completed */
	bool		failing;		/* the last visit failed */
	bool		logged_full;	/* logged that not all pages can be kept */
	bool		logged_no_room;
	bool		in_list;		/* of the follower, and not done in its round */
	RbpPolicyVisit last;		/* the last visit that succeeded */
} Database;

static HTAB *databases = NULL;
static MemoryContext round_context = NULL;
static int64 idle_visit_ns = 0; /* end of the last visit that left a database
								 * idle */

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
		db->listed = false;
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);
		bool		found;

		/*
		 * a limit of -2 means that the database is being dropped, or was
		 * partly dropped
		 */
		if (!form->datallowconn || form->datconnlimit == -2)
			continue;
		db = hash_search(databases, &form->oid, HASH_ENTER, &found);
		if (!found)
		{
			memset(db, 0, sizeof(*db));
			db->oid = form->oid;
		}
		db->name = form->datname;
		db->listed = true;
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);

	/*
	 * this process's catalog snapshot would hold back the horizon of all
	 * databases
	 */
	InvalidateCatalogSnapshot();
}

/* Update the list of databases. */
static void
refresh_databases(void)
{
	HASH_SEQ_STATUS seq;
	Database   *db;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	read_databases();
	CommitTransactionCommand();
	MemoryContextSwitchTo(round_context);

	hash_seq_init(&seq, databases);
	while ((db = hash_seq_search(&seq)) != NULL)
		if (!db->listed)
			(void) hash_search(databases, &db->oid, HASH_REMOVE, NULL);
}

/*
 * ---- visits ------------------------------------------------------------------------
 */

static void
log_visit(Database *db, const RbpPolicyVisit *visit)
{
	bool		full = visit->keep_full && visit->held < visit->wanted;

	if (full && !db->logged_full)
		ereport(LOG,
				(errmsg("remote_bp: cannot keep %llu of %llu pages of database \"%s\": there is no room for more",
						(unsigned long long) (visit->wanted - visit->held),
						(unsigned long long) visit->wanted, NameStr(db->name)),
				 errhint("Raise remote_bp.keep_max_size, or the size of the tier.")));
	else if (!full && db->logged_full)
		ereport(LOG,
				(errmsg("remote_bp: there is room again for pages of database \"%s\" that should be kept",
						NameStr(db->name))));
	db->logged_full = full;

	if (visit->policies_without_room > 0 && !db->logged_no_room)
		ereport(LOG,
				(errmsg("remote_bp: policies of %u files of database \"%s\" have no effect: too many files have policies",
						visit->policies_without_room, NameStr(db->name))));
	db->logged_no_room = visit->policies_without_room > 0;
}

/*
 * Run a worker for the database and wait for its end.  Returns false if no
 * worker is available, or if another process wants exclusive access to the
 * database.  The launcher holds a lock on the database until the worker has
 * its own.  If another process is waiting for the database by then, the worker
 * gets none, and ends.  So the worker neither waits for the database nor finds
 * it dropped.
 */
static bool
run_worker(const Database *db)
{
	BackgroundWorker worker = rbp_worker_describe("policy worker", "remote_bp", "rbp_policy_worker_main");
	BackgroundWorkerHandle *handle;
	bool		registered = false;
	bool		locked;
	pid_t		pid;

	worker.bgw_flags |= BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_main_arg = ObjectIdGetDatum(db->oid);

	StartTransactionCommand();
	MemoryContextSwitchTo(round_context);
	locked = rbp_policy_trylock_database(db->oid, false);
	/* the database may have been dropped before it was locked */
	if (locked)
		read_databases();
	if (locked && db->listed)
	{
		registered = RegisterDynamicBackgroundWorker(&worker, &handle);
		if (pg_atomic_exchange_u32(&rbp_policy_shared->no_worker, !registered) == 0 && !registered)
			ereport(WARNING,
					(errmsg("remote_bp: no background worker is free to apply policies"),
					 errhint("Raise max_worker_processes.")));
	}
	while (registered && !rbp_policy_shared->visit.holds_database &&
		   GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED && !ShutdownRequestPending)
	{
		rbp_wait_latch(RBP_WAIT_MAIN, 100);
		CHECK_FOR_INTERRUPTS();
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(round_context);
	if (!registered)
		return false;
	if (WaitForBackgroundWorkerShutdown(handle) == BGWH_POSTMASTER_DIED)
		proc_exit(1);
	return true;
}

/*
 * Schedule the next visit after a pause that doubles each time, up to the
 * policy interval.
 */
static void
retry_later(Database *db)
{
	int64		most = rbp_guc_policy_interval * NANOS_PER_S;

	db->retry_ns = Min(Max(db->retry_ns * 2, PAUSE_NS), Max(most, PAUSE_NS));
	db->due_ns = db->last_ns + db->retry_ns;
}

/* Is there no reason to visit the database, which was visited well, at a certain time? */
static bool
is_idle(const Database *db)
{
	return !db->last.has_policies && !db->in_list && db->retry_ns == 0;
}

/*
 * Visit the database.  Returns false if the visit failed; the database may
 * not exist any more.
 */
static bool
visit(Database *db)
{
	RbpPolicyVisit *result = &rbp_policy_shared->visit;
	bool		requested = db->requested;

	*result = (RbpPolicyVisit)
	{
		.resume = db->last.resume,.warm = db->last.warm
	};
	db->requested = false;
	if (!run_worker(db) ||
		result->database != db->oid || !result->table_known)
	{
		/* the visit was not started, or it failed and has logged why */
		db->requested = db->requested || requested;
		db->failing = true;
		db->last_ns = rbp_now_ns();
		retry_later(db);
		return false;
	}
	if (db->failing || requested)
		db->retry_ns = 0;
	db->failing = false;
	db->last_ns = rbp_now_ns();
	db->last = *result;
	db->in_list = db->in_list && !result->warm.done;
	if (result->out_of_time)
		db->due_ns = db->last_ns;	/* go on at once */
	else if (!result->more)
	{
		db->retry_ns = 0;
		db->due_ns = db->last_ns + rbp_guc_policy_interval * NANOS_PER_S;
		log_visit(db, result);
	}
	else
		retry_later(db);		/* it gave way to other processes */
	if (is_idle(db))
		idle_visit_ns = db->last_ns;
	return true;
}

/* Time at which the database must be visited; those that had no policies are visited in turn. */
static int64
due_at(const Database *db)
{
	if (!OidIsValid(db->last.database) || db->failing)
		return db->due_ns;
	if (db->requested)
		return Min(db->last_ns + PAUSE_NS, db->due_ns);
	return !is_idle(db) ? db->due_ns :
		idle_visit_ns + Min(IDLE_VISIT_NS, rbp_guc_policy_interval * NANOS_PER_S);
}

/* Choose the database to visit next, and store in *wait in how many ns. */
static Database *
next_visit(int64 *wait)
{
	int64		now = rbp_now_ns();
	int64		next_ns = PG_INT64_MAX;
	Database   *next = NULL;
	HASH_SEQ_STATUS seq;
	Database   *db;

	hash_seq_init(&seq, databases);
	while ((db = hash_seq_search(&seq)) != NULL)
	{
		int64		due = due_at(db);

		if (due < next_ns || (due == next_ns && db->last_ns < next->last_ns))
		{
			next = db;
			next_ns = due;
		}
	}
	*wait = next_ns > now ? next_ns - now : 0;
	return next;
}

/*
 * Process the requests for visits.  Sets *refresh if the list of databases must
 * be read.
 */
static void
process_requests(bool *refresh)
{
	bool		all = pg_atomic_exchange_u32(&rbp_policy_shared->visit_all, 0) != 0;

	*refresh = *refresh || all;
	for (int i = 0; i < RBP_POLICY_REQUESTS; i++)
	{
		Oid			oid = pg_atomic_exchange_u32(&rbp_policy_shared->requests[i], 0);
		Database   *db;

		if (!OidIsValid(oid))
			continue;
		db = hash_search(databases, &oid, HASH_FIND, NULL);
		if (db != NULL)
			db->requested = true;
		else
			*refresh = true;	/* new databases are visited anyway */
	}
	if (all)
	{
		HASH_SEQ_STATUS seq;
		Database   *any = NULL;
		Database   *db;

		hash_seq_init(&seq, databases);
		while ((db = hash_seq_search(&seq)) != NULL)
		{
			db->requested = db->requested || db->last.has_policies;
			/* at least one, whichever, to apply the settings of the server */
			if (any == NULL || db->last.has_policies)
				any = db;
		}
		if (any != NULL)
			any->requested = true;
	}
}

/*
 * ---- the follower ------------------------------------------------------------------
 */

/* Start the follower if it is wanted, and has not failed just now. */
static void
watch_follower(void)
{
	static BackgroundWorkerHandle *handle = NULL;
	static int64 begun_ns = 0;
	static int64 pause_ns = 0;
	BackgroundWorker worker = rbp_worker_describe("follower", "remote_bp_follow", "rbp_follower_main");
	int64		now = rbp_now_ns();
	pid_t		pid;

	if (handle != NULL && GetBackgroundWorkerPid(handle, &pid) == BGWH_STOPPED)
	{
		pfree(handle);
		handle = NULL;
		pause_ns = now - begun_ns > FOLLOWER_PAUSE_NS ? PAUSE_NS : Min(pause_ns * 2, FOLLOWER_PAUSE_NS);
		begun_ns = now;
	}
	if (handle != NULL || !rbp_follow_is_wanted() || now - begun_ns < pause_ns)
		return;
	MemoryContextSwitchTo(TopMemoryContext);
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
	{
		handle = NULL;
		if (pause_ns < FOLLOWER_PAUSE_NS)
			ereport(WARNING,
					(errmsg("remote_bp: no background worker is free for the follower"),
					 errhint("Raise max_worker_processes.")));
	}
	MemoryContextSwitchTo(round_context);
	begun_ns = now;
	pause_ns = handle == NULL ? FOLLOWER_PAUSE_NS : Max(pause_ns, PAUSE_NS);
}

/* Have the databases that are in the list of a new round visited, and tell when all are done. */
static void
watch_list(void)
{
	static uint64 known = 0;
	uint64		round = rbp_follow_round();
	RbpHotReader *reader = NULL;
	HASH_SEQ_STATUS seq;
	Database   *db;
	bool		pending = false;

	if (round != known)
	{
		hash_seq_init(&seq, databases);
		while ((db = hash_seq_search(&seq)) != NULL)
			db->in_list = false;
		reader = palloc(sizeof(*reader));
	}
	if (round != 0 && reader != NULL && rbp_hot_open(reader, RBP_FOLLOW_FILE))
	{
		RbpHotPart	part;
		Oid			last = InvalidOid;

		for (; rbp_hot_next(reader, &part); last = part.db)
		{
			db = part.db == last ? NULL : hash_search(databases, &part.db, HASH_FIND, NULL);
			if (db != NULL)
				db->in_list = db->requested = true;
		}
		rbp_hot_close(reader);
	}
	if (reader != NULL)
		pfree(reader);
	known = round;
	hash_seq_init(&seq, databases);
	while ((db = hash_seq_search(&seq)) != NULL)
		pending = pending || db->in_list;
	if (!pending)
		rbp_follow_set_done(round);
}

void
rbp_policy_launcher_main(Datum arg)
{
	HASHCTL		ctl = {.keysize = sizeof(Oid),.entrysize = sizeof(Database)};
	int64		refresh_ns = 0;
	bool		refresh = true;

	rbp_worker_begin(RBP_WORKER_LAUNCHER);
	BackgroundWorkerUnblockSignals();
	rbp_tier_unconnected = true;
	rbp_policy_set_options();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	ctl.hcxt = TopMemoryContext;
	/* an earlier reload may have found no launcher */
	rbp_residency_set_keep_max(rbp_guc_keep_max_pages());
	databases = hash_create("remote_bp databases", 32, &ctl,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	round_context = AllocSetContextCreate(TopMemoryContext, "remote_bp launcher",
										  ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(round_context);

	while (!ShutdownRequestPending)
	{
		Database   *next = NULL;
		int64		wait = RBP_WORKER_SLEEP_MS * NANOS_PER_MS;
		int64		due;

		CHECK_FOR_INTERRUPTS();
		rbp_worker_runs(RBP_WORKER_LAUNCHER);
		if (rbp_worker_reload())
		{
			rbp_residency_set_keep_max(rbp_guc_keep_max_pages());
			pg_atomic_write_u32(&rbp_policy_shared->visit_all, 1);
		}
		/* without remote memory there is nothing to do */
		if (rbp_tier_attached())
		{
			watch_follower();
			process_requests(&refresh);
			if (refresh || rbp_now_ns() >= refresh_ns)
			{
				refresh_databases();
				refresh_ns = rbp_now_ns() + IDLE_VISIT_NS;
				refresh = false;
			}
			watch_list();
			next = next_visit(&due);
			if (next != NULL && due == 0)
			{
				refresh = !visit(next);
				MemoryContextReset(round_context);
				continue;
			}
			wait = Min(wait, due);
		}
		rbp_wait_latch(RBP_WAIT_MAIN, (long) (wait / NANOS_PER_MS) + 1);
	}

	/* exit status 0 would tell the postmaster not to restart us */
	proc_exit(1);
}
