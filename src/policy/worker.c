/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  A visit to a database: bring the directory in line with its policies,
 *	  and load what is to be kept.
 *
 * The worker is a guest.  It holds no snapshot and no lock on a relation for longer than
 * a piece of loading takes, so that it keeps neither VACUUM nor DDL waiting, nor
 * recovery on a standby; it takes a relation's lock only if nobody else has or
 * waits for a stronger one; and it leaves when somebody wants the database for himself, to
 * drop it, for example.  What it did not get to is left to its next visit.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/procsignal.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/relfile.h"
#include "buffer/buffer.h"
#include "common/clock.h"
#include "policy/policy_internal.h"
#include "policy/prewarm.h"

/* A visit that loads ends after so long, for others to have their turn. */
#define VISIT_NS		INT64CONST(10000000000)

/* A piece of loading ends after so long, if donors are slow. */
#define PIECE_NS		INT64CONST(1000000000)

/* After so many errors, pages that cannot be read, the rest of a relation is let be. */
#define MAX_ERRORS		8

static void
begin(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
}

static void
commit(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
}

static void
set_option(const char *name, const char *value)
{
	SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

/*
 * ---- the directory ------------------------------------------------------------------
 */

/*
 * Take away the policies of this database's files that are not in the table of
 * files, and those of databases that were dropped.
 */
static void
forget_others(HTAB *files, const List *dropped)
{
	RbpRelFile	file;
	uint32		at = 0;

	while (rbp_residency_next_policy(&at, &file))
	{
		if (file.db == MyDatabaseId ? hash_search(files, &file, HASH_FIND, NULL) != NULL :
			!list_member_oid(dropped, file.db))
			continue;
		rbp_policy_shared->unapplied = true;
		(void) rbp_residency_set_policy(&file, RBP_POLICY_DEFAULT);
	}
}

/* The policies of this database's files are those of the relations. */
static void
apply(const List *relations, const List *dropped, RbpPolicyVisit *visit)
{
	HASHCTL		ctl = {
		.keysize = sizeof(RbpRelFile),.entrysize = sizeof(RbpRelFile),
		.hcxt = CurrentMemoryContext
	};
	HTAB	   *files = hash_create("remote_bp files", 256, &ctl,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	const ListCell *cell;
	bool		taken_back;		/* policies, which is not applied yet */

	visit->no_place = 0;
	foreach(cell, relations)
	{
		const RbpPolicyRelation *r = lfirst(cell);
		RbpRelFile	file;

		/* as rbp_residency_next_policy() has it, to the padding */
		memset(&file, 0, sizeof(file));
		file.spc = r->file.spc;
		file.db = r->file.db;
		file.rel = r->file.rel;
		(void) hash_search(files, &file, HASH_ENTER, NULL);
	}
	forget_others(files, dropped);
	hash_destroy(files);
	taken_back = rbp_policy_shared->unapplied;
	foreach(cell, relations)
	{
		const RbpPolicyRelation *r = lfirst(cell);
		bool		is_set;

		if (rbp_residency_policy(&r->file) == r->policy)
			continue;
		is_set = rbp_residency_set_policy(&r->file, r->policy);
		/* those that were taken back give up their places only when that is applied */
		if (!is_set && taken_back)
		{
			rbp_policy_apply_to_pages();
			taken_back = false;
			is_set = rbp_residency_set_policy(&r->file, r->policy);
		}
		if (is_set)
			rbp_policy_shared->unapplied = true;
		else
			visit->no_place++;
	}
	/* or somebody has lowered remote_bp.keep_max_size */
	if (rbp_policy_shared->unapplied || rbp_residency_keep_exceeded())
		rbp_policy_apply_to_pages();
}

/*
 * ---- loading ------------------------------------------------------------------------
 */

/* One piece of the relation; the block to go on with, or InvalidBlockNumber. */
static BlockNumber
load_piece(const RbpPolicyRelation *r, BlockNumber block, RbpPolicyVisit *visit)
{
	BlockNumber next = InvalidBlockNumber;
	Relation	rel;

	begin();
	pgstat_report_activity(STATE_RUNNING, "loading pages that are to be kept");
	if (!rbp_policy_lock_database(MyDatabaseId) || !ConditionalLockRelationOid(r->relid, AccessShareLock))
	{
		visit->more = true;
		commit();
		return InvalidBlockNumber;
	}
	rel = try_relation_open(r->relid, NoLock);
	if (rel != NULL)
	{
		/* it has other files by now: the next visit will see them */
		if (rbp_compat_rel_number(rel) != r->file.rel ||
			rbp_compat_rel_space(rel) != r->file.spc)
			visit->more = true;
		else
			next = rbp_prewarm_load(rel, block, rbp_now_ns() + PIECE_NS);
		relation_close(rel, AccessShareLock);
	}
	commit();
	pgstat_report_activity(STATE_IDLE, NULL);
	return next;
}

/* What is missing of the relation, from that block on; false if the visit ends here. */
static bool
load_relation(const RbpPolicyRelation *r, const List *relations, BlockNumber first,
			  int64 end_ns, RbpPolicyVisit *visit)
{
	MemoryContext context = CurrentMemoryContext;
	volatile BlockNumber block = first;
	volatile int errors = 0;

	if (rbp_residency_held(&r->file) >= rbp_policy_blocks(&r->file))
		return true;
	while (block != InvalidBlockNumber)
	{
		char		why[256];

		if (rbp_residency_keep_full() || rbp_policy_limit_kept(relations) ||
			rbp_tier_unusable_reason(why, sizeof(why)))
			return false;
		if (rbp_now_ns() >= end_ns)
		{
			visit->more = true;
			visit->resume_relation = r->relid;
			visit->resume_block = block;
			return false;
		}
		PG_TRY();
		{
			block = load_piece(r, block, visit);
		}
		PG_CATCH();
		{
			/* a page that cannot be read, for example: others can */
			MemoryContextSwitchTo(context);
			HOLD_INTERRUPTS();
			EmitErrorReport();
			FlushErrorState();
			AbortCurrentTransaction();
			RESUME_INTERRUPTS();
			block = rbp_prewarm_load_at() + 1;
			if (++errors == MAX_ERRORS || block >= rbp_policy_blocks(&r->file))
				block = InvalidBlockNumber;
		}
		PG_END_TRY();
		MemoryContextSwitchTo(context);
	}
	return true;
}

static void
end_loading(int code, Datum arg)
{
	rbp_prewarm_load_end();
}

/* From where the last visit ended, to the end; what has changed before is for the next one. */
static void
load(const List *relations, RbpPolicyVisit *visit)
{
	Oid			from = visit->resume_relation;
	BlockNumber block = visit->resume_block;
	int64		end_ns = rbp_now_ns() + VISIT_NS;
	bool		on = !OidIsValid(from);
	const ListCell *cell;
	char		why[256];

	visit->resume_relation = InvalidOid;
	if (rbp_tier_unusable_reason(why, sizeof(why)))
		return;
	set_option("remote_bp.use_tier", "on");
	PG_ENSURE_ERROR_CLEANUP(end_loading, (Datum) 0);
	{
		rbp_prewarm_load_begin();
		foreach(cell, relations)
		{
			const RbpPolicyRelation *r = lfirst(cell);

			if (!on && r->relid != from)
				continue;
			if (r->policy == RBP_POLICY_KEEP &&
				!load_relation(r, relations, on ? 0 : block, end_ns, visit))
				break;
			on = true;
		}
	}
	PG_END_ENSURE_ERROR_CLEANUP(end_loading, (Datum) 0);
	rbp_prewarm_load_end();
	set_option("remote_bp.use_tier", "off");
	/* where it was to go on is gone */
	if (!on)
		visit->more = true;
}

/*
 * If pages are missing that could be kept, they are on their way to donors, or were
 * written meanwhile: look again soon.  Without memory there is nothing to look for.
 */
static void
count_pages(const List *relations, RbpPolicyVisit *visit)
{
	const ListCell *cell;
	char		why[256];
	bool		unusable = rbp_tier_unusable_reason(why, sizeof(why));

	visit->keep_full = rbp_residency_keep_full() && !unusable;
	visit->wanted = visit->held = 0;
	foreach(cell, relations)
	{
		const RbpPolicyRelation *r = lfirst(cell);

		if (r->policy != RBP_POLICY_KEEP)
			continue;
		visit->wanted += rbp_policy_blocks(&r->file);
		visit->held += rbp_residency_held(&r->file);
	}
	if (visit->held < visit->wanted && !visit->keep_full && !unusable &&
		!rbp_policy_limit_kept(relations))
		visit->more = true;
}

/*
 * ---- the visit ----------------------------------------------------------------------
 */

/*
 * Read what there is to do, into the current context, which outlasts the transaction;
 * false if the table of policies is locked.
 */
static bool
read_all(RbpPolicyServer *server, RbpPolicyList *list)
{
	MemoryContext context = CurrentMemoryContext;
	Oid			table;
	bool		got;

	memset(list, 0, sizeof(*list));
	memset(server, 0, sizeof(*server));
	begin();
	got = rbp_policy_lock_database(MyDatabaseId);
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
	commit();
	MemoryContextSwitchTo(context);
	return got;
}

static void
leave(int code, Datum arg)
{
	/* if it was not connected yet, nobody else lets go of the database */
	LockReleaseSession(DEFAULT_LOCKMETHOD);
	pg_atomic_write_u32(&rbp_policy_shared->worker, 0);
}

/* arg is the database's OID. */
void
rbp_policy_worker_main(Datum arg)
{
	RbpPolicyVisit *result = &rbp_policy_shared->visit;
	RbpPolicyVisit visit;
	RbpPolicyServer server;
	RbpPolicyList list;
	uint32		nobody = 0;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	/* one that a launcher left behind which has died since */
	if (!pg_atomic_compare_exchange_u32(&rbp_policy_shared->worker, &nobody,
										(uint32) MyProcPid))
		proc_exit(0);
	before_shmem_exit(leave, (Datum) 0);
	/* what it reads to look around leaves no trace in the tier */
	rbp_tier_set_unconnected();
	set_option("remote_bp.use_tier", "off");

	/*
	 * To connect is to wait for whoever waits for the database, who waits for the
	 * launcher, who waits for us: no detector of deadlocks would see that.
	 */
	if (!rbp_policy_hold_database(DatumGetObjectId(arg)))
		proc_exit(0);
	result->holds_database = true;
	rbp_policy_wake_launcher();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid, 0);
	rbp_policy_release_database(DatumGetObjectId(arg));

	/* whatever is set for the database */
	set_option("search_path", "pg_catalog, pg_temp");
	set_option("default_transaction_isolation", "read committed");

	MemoryContextSwitchTo(AllocSetContextCreate(TopMemoryContext, "remote_bp policies",
												ALLOCSET_DEFAULT_SIZES));
	visit = *result;
	visit.more = false;
	visit.was_read = read_all(&server, &list);
	if (visit.was_read)
	{
		visit.has_policies = list.relations != NIL || list.orphans != NIL;
		rbp_policy_apply_server(&server);
		apply(list.relations, server.dropped, &visit);
		if (visit.has_policies)
			rbp_residency_sweep();
		load(list.relations, &visit);
		count_pages(list.relations, &visit);
	}
	visit.database = MyDatabaseId;
	*result = visit;
	proc_exit(0);
}
