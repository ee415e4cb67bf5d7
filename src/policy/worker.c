/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  A visit to a database: brings the directory in line with its policies,
 *	  loads pages that should be kept, and, on a standby, pages that are hot
 *	  on the server that it follows.
 *
 * The worker must not disturb others.  It holds no snapshot, and no lock on a
 * relation, for longer than it takes to load a piece, so that neither VACUUM
 * nor DDL waits for it, nor recovery on a standby.  It takes a relation's
 * lock only if no other process holds or waits for a conflicting one.  It
 * exits when another process wants exclusive access to the database, to drop
 * it, for example.  The remaining work is left to its next visit.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "base/relfile.h"
#include "base/workers.h"
#include "buffer/buffer.h"
#include "common/clock.h"
#include "policy/policy_internal.h"

/* A piece of loading ends after this time, if donors are slow */
#define PIECE_NS		INT64CONST(1000000000)

/*
 * After this many errors, such as unreadable pages, the rest of a relation is
 * skipped
 */
#define MAX_ERRORS		8

static emit_log_hook_type prev_emit_log_hook = NULL;

/*
 * ---- the directory ------------------------------------------------------------------
 */

/*
 * Reset the policies of this database's files that are not in the hash table
 * files, and those of dropped databases.
 */
static void
reset_other_policies(HTAB *files, const List *dropped)
{
	RbpRelFile	file;
	uint32		at = 0;

	while (rbp_residency_next_policy(&at, &file))
	{
		if (file.db == MyDatabaseId ? hash_search(files, &file, HASH_FIND, NULL) != NULL :
			!list_member_oid(dropped, file.db))
			continue;
		rbp_policy_shared->apply_pending = true;
		(void) rbp_residency_set_policy(&file, RBP_POLICY_DEFAULT);
	}
}

/* Set the policies of this database's files to those of the relations. */
static void
set_policies(const List *relations, const List *dropped, RbpPolicyVisit *visit)
{
	HASHCTL		ctl = {
		.keysize = sizeof(RbpRelFile),.entrysize = sizeof(RbpRelFile),
		.hcxt = CurrentMemoryContext
	};
	HTAB	   *files = hash_create("remote_bp files", 256, &ctl,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	const ListCell *cell;
	bool		resets_pending; /* policies were reset, but that was not
								 * applied to pages yet */

	visit->policies_without_room = 0;
	foreach(cell, relations)
	{
		const RbpPolicyRelation *r = lfirst(cell);

		/* equals the result of rbp_residency_next_policy(), padding included */
		(void) hash_search(files, &r->file, HASH_ENTER, NULL);
	}
	reset_other_policies(files, dropped);
	hash_destroy(files);
	resets_pending = rbp_policy_shared->apply_pending;
	foreach(cell, relations)
	{
		const RbpPolicyRelation *r = lfirst(cell);
		bool		is_set;

		if (rbp_residency_policy(&r->file).policy == r->policy)
			continue;
		is_set = rbp_residency_set_policy(&r->file, r->policy);

		/*
		 * There is no place.  Those of policies that were reset become free
		 * when that is applied to the pages: do it now, and try again.
		 */
		if (!is_set && resets_pending)
		{
			rbp_policy_apply_to_pages();
			resets_pending = false;
			is_set = rbp_residency_set_policy(&r->file, r->policy);
		}
		if (is_set)
			rbp_policy_shared->apply_pending = true;
		else
			visit->policies_without_room++;
	}
	/* remote_bp.keep_max_size may have been lowered */
	if (rbp_policy_shared->apply_pending || rbp_residency_keep_room() < 0)
		rbp_policy_apply_to_pages();
}

/*
 * ---- loading ------------------------------------------------------------------------
 */

/*
 * Load the missing pages of the relation, from the position on, and count the
 * new ones.  Returns false if the visit ends here.
 */
static bool
load_relation(const RbpPolicyRelation *r, const List *relations, RbpLoadPosition at,
			  int64 end_ns, RbpPolicyVisit *visit)
{
	RbpLoadPiece piece = {
		.activity = "loading pages to keep",.file = r->file,.time_ns = PIECE_NS,.at = at,.more = true
	};
	int			errors = 0;

	if (rbp_residency_policy(&r->file).kept >= rbp_policy_file_blocks(&r->file))
		return true;
	while (piece.more)
	{
		char		why[256];
		RbpFollowPages result;

		if (rbp_residency_keep_room() <= 0 || rbp_policy_kept_reach_limit(relations) ||
			rbp_tier_unusable_reason(why, sizeof(why)))
			return false;
		if (rbp_now_ns() >= end_ns)
		{
			visit->out_of_time = true;
			visit->resume = piece.at;
			return false;
		}
		result = rbp_prewarm_piece(&piece);
		if (result == RBP_FOLLOW_ERROR)
		{
			/* for example, a page cannot be read: try others */
			piece.at.block++;
			piece.more = ++errors < MAX_ERRORS && piece.at.block < rbp_policy_file_blocks(&r->file);
		}
		else if (result != RBP_FOLLOW_READ)
			visit->more = true; /* it is locked, or has new files, which the
								 * next visit will see */
	}
	rbp_residency_set_new(&r->file, piece.at.new_pages);
	return true;
}

/*
 * Load relations, from where the last visit ended to the end of the list.
 * Changes to relations before that point are left to the next visit.
 */
static void
load(const List *relations, RbpPolicyVisit *visit)
{
	RbpLoadPosition at = visit->resume;
	int64		end_ns = rbp_now_ns() + RBP_VISIT_NS;
	bool		found_start = !OidIsValid(at.relation);
	const ListCell *cell;

	visit->resume.relation = InvalidOid;
	foreach(cell, relations)
	{
		const RbpPolicyRelation *r = lfirst(cell);

		if (r->relid != at.relation)
		{
			if (!found_start)
				continue;
			at = (RbpLoadPosition)
			{
				.relation = r->relid
			};
		}
		found_start = true;
		if (r->policy == RBP_POLICY_KEEP &&
			!load_relation(r, relations, at, end_ns, visit))
			break;
	}
	/* the relation to continue with does not exist any more */
	if (!found_start)
		visit->more = true;
}

/* Bring pages into the tier, for which alone the worker uses it. */
static void
bring_pages(const List *relations, RbpPolicyVisit *visit)
{
	SetConfigOption("remote_bp.use_tier", "on", PGC_SUSET, PGC_S_OVERRIDE);
	PG_ENSURE_ERROR_CLEANUP(rbp_prewarm_load_end, (Datum) 0);
	{
		rbp_prewarm_load_begin();
		load(relations, visit);
		rbp_policy_warm(visit);
	}
	PG_END_ENSURE_ERROR_CLEANUP(rbp_prewarm_load_end, (Datum) 0);
	rbp_prewarm_load_end(0, (Datum) 0);
	SetConfigOption("remote_bp.use_tier", "off", PGC_SUSET, PGC_S_OVERRIDE);
}

/*
 * Count the pages to keep and the pages kept.  If pages are missing that
 * could be kept, they are on their way to donors, or were written meanwhile:
 * ask for another visit soon.  While the tier is unusable, a visit would be
 * useless.
 */
static void
count_pages(const List *relations, RbpPolicyVisit *visit)
{
	const ListCell *cell;
	char		why[256];
	bool		unusable = rbp_tier_unusable_reason(why, sizeof(why));

	visit->keep_full = rbp_residency_keep_room() <= 0 && !unusable;
	visit->wanted = visit->held = 0;
	foreach(cell, relations)
	{
		const RbpPolicyRelation *r = lfirst(cell);

		if (r->policy != RBP_POLICY_KEEP)
			continue;
		visit->wanted += rbp_policy_pages_wanted(&r->file);
		visit->held += rbp_residency_policy(&r->file).kept;
	}
	if (visit->held < visit->wanted && !visit->keep_full && !unusable &&
		!rbp_policy_kept_reach_limit(relations))
		visit->more = true;
}

/*
 * ---- the visit ----------------------------------------------------------------------
 */

/*
 * Read settings and policies into the current context, which outlasts the
 * transaction.  Returns false if the table of policies, or the database, is
 * locked by another process.
 */
static bool
read_all(RbpPolicyServer *server, RbpPolicyList *list)
{
	MemoryContext context = CurrentMemoryContext;
	Oid			table;
	bool		got;

	memset(list, 0, sizeof(*list));
	memset(server, 0, sizeof(*server));
	rbp_policy_begin();
	got = rbp_policy_trylock_database(MyDatabaseId, false);
	if (got)
	{
		MemoryContextSwitchTo(context);
		*server = rbp_policy_read_server();
		table = rbp_policy_table();
		if (OidIsValid(table))
		{
			got = ConditionalLockRelationOid(table, AccessShareLock);
			if (got)
				*list = rbp_policy_read(table);
		}
	}
	rbp_policy_commit();
	MemoryContextSwitchTo(context);
	return got;
}

static void
release_worker(int code, Datum arg)
{
	/*
	 * if we exit before we are connected to the database, nothing else
	 * releases our session lock
	 */
	LockReleaseSession(DEFAULT_LOCKMETHOD);
	pg_atomic_write_u32(&rbp_policy_shared->visiting, InvalidOid);
}

/* That a worker ends when the server is shut down is no trouble to be logged. */
static void
hide_termination(ErrorData *edata)
{
	if (edata->elevel == FATAL && edata->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
		edata->output_to_server = false;
	if (prev_emit_log_hook)
		prev_emit_log_hook(edata);
}

/* Entry point; arg is the database's OID. */
void
rbp_policy_worker_main(Datum arg)
{
	RbpPolicyVisit *result = &rbp_policy_shared->visit;
	RbpPolicyVisit visit;
	RbpPolicyServer server;
	RbpPolicyList list;
	uint32		none = InvalidOid;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	prev_emit_log_hook = emit_log_hook;
	emit_log_hook = hide_termination;
	BackgroundWorkerUnblockSignals();

	/*
	 * another worker may still run, started by a launcher that has died since
	 */
	if (!pg_atomic_compare_exchange_u32(&rbp_policy_shared->visiting, &none,
										DatumGetObjectId(arg)))
		proc_exit(0);
	before_shmem_exit(release_worker, (Datum) 0);

	/* This process never connects to donors: it only stages pages. */
	rbp_tier_unconnected = true;
	rbp_policy_set_options();

	/*
	 * The launcher holds a lock on the database until we hold one.  If
	 * another process waits for exclusive access, it waits for the launcher's
	 * lock, and connecting would wait behind it, a deadlock that no detector
	 * sees.  So take a lock first, without waiting, and give up if there is
	 * such a process.
	 */
	if (!rbp_policy_trylock_database(DatumGetObjectId(arg), true))
		proc_exit(0);
	result->holds_database = true;
	rbp_worker_wake(RBP_WORKER_LAUNCHER);
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid, 0);
	UnlockSharedObjectForSession(DatabaseRelationId, DatumGetObjectId(arg), 0, RowExclusiveLock);

	MemoryContextSwitchTo(AllocSetContextCreate(TopMemoryContext, "remote_bp policies",
												ALLOCSET_DEFAULT_SIZES));
	visit = *result;
	visit.more = visit.out_of_time = false;
	visit.table_known = read_all(&server, &list);
	if (visit.table_known)
	{
		visit.has_policies = list.relations != NIL || list.orphans != NIL;
		rbp_policy_exclude_tablespaces(&server);
		set_policies(list.relations, server.dropped, &visit);
		/* now that excluded pages are dropped, and kept ones known */
		rbp_policy_limit_databases(server.limits);
		if (visit.has_policies)
			rbp_residency_sweep();
		bring_pages(list.relations, &visit);
		count_pages(list.relations, &visit);
	}
	visit.database = MyDatabaseId;
	*result = visit;
	proc_exit(0);
}
