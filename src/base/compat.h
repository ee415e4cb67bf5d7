/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  The differences between server versions; nothing else tests
 *	  PG_VERSION_NUM.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_COMPAT_H
#define RBP_COMPAT_H

#include "postgres.h"

#include "access/twophase.h"
#include "commands/explain.h"
#include "common/relpath.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "postmaster/bgworker_internals.h"
#include "storage/buf_internals.h"
#include "storage/bufpage.h"
#include "storage/fd.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "utils/wait_event.h"

#include "base/relfile.h"

#if PG_VERSION_NUM >= 160000
#include "utils/relfilenumbermap.h"
#else
#include "utils/relfilenodemap.h"
#endif
#if PG_VERSION_NUM >= 170000
#include "storage/procnumber.h"
#endif
#if PG_VERSION_NUM >= 180000
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#endif

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 190000
#error "remote_bp is made for PostgreSQL 15 to 18"
#endif

/*
 * The names that 16 gave to the files of relations, and 17 to processes, for
 * older servers.
 */
#if PG_VERSION_NUM < 160000
#define RelFileLocator			RelFileNode
#define spcOid					spcNode
#define dbOid					dbNode
#define relNumber				relNode
#define rd_locator				rd_node
#define InitBufferTag(tag, locator, fork, block) \
	INIT_BUFFERTAG(*(tag), *(locator), fork, block)
#define RelidByRelfilenumber	RelidByRelfilenode
#define object_ownercheck(class, object, role) \
	pg_class_ownercheck(object, role)
#endif
/* Before 16, the server reads and writes nothing past the page cache. */
#if PG_VERSION_NUM < 160000
#define PGIOAlignedBlock		PGAlignedBlock
#endif
#if PG_VERSION_NUM < 170000
#define INVALID_PROC_NUMBER		InvalidBackendId
#define ProcNumber				BackendId
#endif

/*
 * Would the server accept these bytes if it read them from disk as that block?
 * Logs and counts nothing.
 */
static inline bool
rbp_compat_page_verified(char *page, BlockNumber block)
{
#if PG_VERSION_NUM >= 180000
	return PageIsVerified((Page) page, block, 0, NULL);
#else
	return PageIsVerifiedExtended((Page) page, block, 0);
#endif
}

/*
 * Since 18, blocks of temporary tables are read in a critical section, and the
 * error, whichever it is, is raised after it.
 */
#define RBP_CRITICAL_READS_REPORT_EINTR	(PG_VERSION_NUM >= 180000)

/* This process's index in the array of PGPROCs. */
static inline int
rbp_compat_procno(void)
{
#if PG_VERSION_NUM >= 170000
	return MyProcNumber;
#else
	return MyProc->pgprocno;
#endif
}

/* The same of another process. */
static inline int
rbp_compat_procno_of(PGPROC *proc)
{
#if PG_VERSION_NUM >= 170000
	return GetNumberFromPGProc(proc);
#else
	return proc->pgprocno;
#endif
}

/*
 * If the process is an idle backend of this server, make it start and commit
 * an empty transaction, which calls our callback for the end of transactions.
 * The server sends this signal to backends that lag behind in processing
 * invalidations; a backend that is in a transaction just processes these.
 */
static inline void
rbp_compat_signal_catchup(pid_t pid)
{
	(void) SendProcSignal(pid, PROCSIG_CATCHUP_INTERRUPT, INVALID_PROC_NUMBER);
}

/*
 * Maximum number of PGPROCs, for arrays indexed by rbp_compat_procno().
 * Valid from shmem_request_hook on.
 */
static inline int
rbp_compat_max_procs(void)
{
	return MaxBackends + NUM_AUXILIARY_PROCS + max_prepared_xacts;
}

/* The file of the relation's fork, without a segment. */
static inline RbpRelFile
rbp_compat_rel_file(Relation rel, ForkNumber fork)
{
	return (RbpRelFile)
	{
		.spc = rel->rd_locator.spcOid,.db = rel->rd_locator.dbOid,
			.rel = rel->rd_locator.relNumber,.fork = (uint8) fork
	};
}

/* The path of the segment file, of a relation that is not temporary; palloc'd. */
static inline char *
rbp_compat_path(const RbpRelFile *file)
{
#if PG_VERSION_NUM >= 180000
	char	   *first = pstrdup(GetRelationPath(file->db, file->spc, file->rel,
												INVALID_PROC_NUMBER, (ForkNumber) file->fork).str);
#else
	char	   *first = GetRelationPath(file->db, file->spc, file->rel,
										INVALID_PROC_NUMBER, (ForkNumber) file->fork);
#endif
	char	   *path;

	if (file->segment == 0)
		return first;
	path = psprintf("%s.%u", first, file->segment);
	pfree(first);
	return path;
}

/* The file of the page that a buffer has, as its tag says. */
static inline RbpRelFile
rbp_compat_tag_file(const BufferTag *tag)
{
#if PG_VERSION_NUM >= 160000
	RelFileLocator locator = BufTagGetRelFileLocator(tag);
	ForkNumber	fork = BufTagGetForkNum(tag);
#else
	RelFileNode locator = tag->rnode;
	ForkNumber	fork = tag->forkNum;
#endif

	return (RbpRelFile)
	{
		.spc = locator.spcOid,.db = locator.dbOid,.rel = locator.relNumber,.fork = (uint8) fork
	};
}

/*
 * The number of the wait event of that name, which stays referenced.  Before
 * 17, extensions share one.
 */
static inline uint32
rbp_compat_wait_event(const char *name)
{
#if PG_VERSION_NUM >= 170000
	return WaitEventExtensionNew(name);
#else
	return PG_WAIT_EXTENSION;
#endif
}

/*
 * Register a background worker in _PG_init().  Returns whether the server has
 * taken it, which it only logs itself.
 */
static inline bool
rbp_compat_register_worker(BackgroundWorker *worker)
{
#if PG_VERSION_NUM >= 180000
	dlist_iter	iter;
#else
	slist_iter	iter;
#endif

	RegisterBackgroundWorker(worker);
#if PG_VERSION_NUM >= 180000
	dlist_foreach(iter, &BackgroundWorkerList)
	{
		const		RegisteredBgWorker *taken = dlist_container(RegisteredBgWorker, rw_lnode, iter.cur);
#else
	slist_foreach(iter, &BackgroundWorkerList)
	{
		const		RegisteredBgWorker *taken = slist_container(RegisteredBgWorker, rw_lnode, iter.cur);
#endif

		if (strcmp(taken->rw_worker.bgw_name, worker->bgw_name) == 0)
			return true;
	}
	return false;
}

/* Can the server end a transaction that lasts for long? */
#define RBP_COMPAT_HAS_TRANSACTION_TIMEOUT	(PG_VERSION_NUM >= 170000)

/* Has the server processes that read for others, and run no transactions? */
#define RBP_COMPAT_HAS_IO_WORKERS	(PG_VERSION_NUM >= 180000)

/* Is this process one of them? */
static inline bool
rbp_compat_is_io_worker(void)
{
#if PG_VERSION_NUM >= 180000
	return MyBackendType == B_IO_WORKER;
#else
	return false;
#endif
}

/* Does the server read and write relations past the page cache? */
static inline bool
rbp_compat_direct_io(void)
{
#if PG_VERSION_NUM >= 160000
	return (io_direct_flags & IO_DIRECT_DATA) != 0;
#else
	return false;
#endif
}

/*
 * io_uring reads streams past libc, so that neither are they served, nor are
 * their victims captured.  Let workers read them instead.  Called in
 * _PG_init() only.
 */
static inline void
rbp_compat_replace_io_method(void)
{
#if PG_VERSION_NUM >= 180000
	const char *method = GetConfigOption("io_method", true, false);

	if (method == NULL || strcmp(method, "io_uring") != 0)
		return;
	SetConfigOption("io_method", "worker", PGC_POSTMASTER, PGC_S_OVERRIDE);
	ereport(WARNING,
			(errmsg("remote_bp: io_method is \"worker\" instead of \"io_uring\""),
			 errdetail("Reads by io_uring bypass remote_bp.")));
#endif
}

/* Parameters of ExecutorRun() and its hook, and how to pass them on. */
#if PG_VERSION_NUM >= 180000
#define RBP_COMPAT_RUN_PARAMETERS \
	QueryDesc *query, ScanDirection direction, uint64 count
#define RBP_COMPAT_RUN_ARGUMENTS	query, direction, count
#else
#define RBP_COMPAT_RUN_PARAMETERS \
	QueryDesc *query, ScanDirection direction, uint64 count, bool once
#define RBP_COMPAT_RUN_ARGUMENTS	query, direction, count, once
#endif

/* The pid of the startup process; 0 if there is none. */
static inline int
rbp_compat_startup_pid(void)
{
	int			pid = 0;

	for (int i = 1; i <= pgstat_fetch_stat_numbackends() && pid == 0; i++)
	{
#if PG_VERSION_NUM >= 160000
		const		PgBackendStatus *status = &pgstat_get_local_beentry_by_index(i)->backendStatus;
#else
		const		PgBackendStatus *status = &pgstat_fetch_stat_local_beentry(i)->backendStatus;
#endif

		if (status->st_backendType == B_STARTUP)
			pid = status->st_procpid;
	}
	pgstat_clear_backend_activity_snapshot();
	return pid;
}

/* Query identifiers are not the same in another one. */
#define RBP_COMPAT_MAJOR_VERSION	(PG_VERSION_NUM / 10000)

/* Has the server explain_per_plan_hook? */
#if PG_VERSION_NUM >= 180000
#define RBP_COMPAT_EXPLAINS_PLANS
#endif

/*
 * What the server does if nobody uses ExplainOneQuery_hook: before 17, it had no
 * function for it.
 */
static inline void
rbp_compat_explain_query(Query *query, int options, IntoClause *into,
						 ExplainState *es, const char *query_string,
						 ParamListInfo params, QueryEnvironment *env)
{
#if PG_VERSION_NUM >= 170000
	standard_ExplainOneQuery(query, options, into, es, query_string, params, env);
#else
	PlannedStmt *plan;
	instr_time	start;
	instr_time	duration;
	BufferUsage before = pgBufferUsage;
	BufferUsage used = {0};

	INSTR_TIME_SET_CURRENT(start);
	plan = pg_plan_query(query, query_string, options, params);
	INSTR_TIME_SET_CURRENT(duration);
	INSTR_TIME_SUBTRACT(duration, start);
	BufferUsageAccumDiff(&used, &pgBufferUsage, &before);
	ExplainOnePlan(plan, into, es, query_string, params, env, &duration,
				   es->buffers ? &used : NULL);
#endif
}

#endif							/* RBP_COMPAT_H */
