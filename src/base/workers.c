/*-------------------------------------------------------------------------
 *
 * workers.c
 *	  The background workers of the extension that run as long as the server:
 *	  how they begin and are woken, and whether they run.
 *
 * Each worker notes the time in shared memory whenever it is awake, at least
 * every RBP_WORKER_SLEEP_MS.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/atomics.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"

#include "base/compat.h"
#include "base/workers.h"
#include "common/clock.h"

/*
 * A worker that has not run for this time is away.  It is longer than a worker
 * sleeps, than it waits for the broker or for donors, and than it takes to
 * start again when it has ended.
 */
#define AWAY_NS		INT64CONST(30000000000)
#define LOOK_NS		(RBP_WORKER_SLEEP_MS * INT64CONST(1000000))

typedef struct WorkerState
{
	pg_atomic_uint64 ran_at;	/* as of rbp_now_ns(); 0: it has not begun */
	pg_atomic_uint32 warned;	/* that it is away */
	pg_atomic_uint64 latch;		/* Latch *; 0 while there is no such worker */
} WorkerState;

static const struct
{
	const char *name;
	const char *without;		/* what it means to be without it */
	const char *library;		/* that it loads; in which its entry point is */
	const char *function;
	bool		database;		/* it reads catalogs, so it starts when they
								 * are consistent */
}			workers[RBP_WORKERS] = {
	[RBP_WORKER_LEASE] = {"lease worker", "No memory is leased.", "remote_bp_lease", "rbp_lease_main", false},
	[RBP_WORKER_PUSHER] = {"pusher", "No page is written to donors.", "remote_bp", "rbp_pusher_main", false},
	[RBP_WORKER_LAUNCHER] = {"policy launcher", "No policy is applied.", "remote_bp", "rbp_policy_launcher_main", true},
};

static WorkerState *states = NULL;

/* Set in the postmaster, whose children inherit it. */
static bool refused[RBP_WORKERS];

Size
rbp_workers_shmem_size(void)
{
	return RBP_WORKERS * sizeof(WorkerState);
}

void
rbp_workers_shmem_init(void *mem)
{
	states = memset(mem, 0, rbp_workers_shmem_size());
}

BackgroundWorker
rbp_worker_describe(const char *name, const char *library, const char *function)
{
	BackgroundWorker worker = {
		.bgw_flags = BGWORKER_SHMEM_ACCESS,
		.bgw_start_time = BgWorkerStart_ConsistentState,
		.bgw_restart_time = BGW_NEVER_RESTART,
		.bgw_notify_pid = MyProcPid
	};

	snprintf(worker.bgw_name, BGW_MAXLEN, "remote_bp %s", name);
	strlcpy(worker.bgw_type, worker.bgw_name, BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, library, BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, function, BGW_MAXLEN);
	strlcpy(worker.bgw_extra, RBP_VERSION, BGW_EXTRALEN);
	return worker;
}

void
rbp_worker_check_version(const char *name)
{
	if (strcmp(MyBgworkerEntry->bgw_extra, RBP_VERSION) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("remote_bp: the server runs version %s, and version %s of the %s is installed",
						MyBgworkerEntry->bgw_extra, RBP_VERSION, name),
				 errhint("Restart the server.")));
}

static void
register_worker(RbpWorker which)
{
	BackgroundWorker worker = rbp_worker_describe(workers[which].name, workers[which].library,
												  workers[which].function);

	worker.bgw_restart_time = 1;
	worker.bgw_notify_pid = 0;
	if (workers[which].database)
		worker.bgw_flags |= BGWORKER_BACKEND_DATABASE_CONNECTION;
	else
		worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	refused[which] = !rbp_compat_register_worker(&worker);
	if (refused[which])
		ereport(WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("remote_bp: no background worker is free for the %s", workers[which].name),
				 errdetail("%s", workers[which].without),
				 errhint("Raise max_worker_processes.")));
}

void
rbp_workers_register(void)
{
	for (RbpWorker which = 0; which < RBP_WORKERS; which++)
		register_worker(which);
}

void
rbp_worker_wake(RbpWorker which)
{
	/* a PGPROC's latch stays a valid object when its process ends */
	Latch	   *latch = (Latch *) (uintptr_t) pg_atomic_read_u64(&states[which].latch);

	if (latch != NULL)
		SetLatch(latch);
}

bool
rbp_worker_exists(RbpWorker which)
{
	return pg_atomic_read_u64(&states[which].latch) != 0;
}

static void
forget_latch(int code, Datum which)
{
	pg_atomic_write_u64(&states[DatumGetInt32(which)].latch, 0);
	/* a duty may be to look who is there */
	rbp_worker_wake(RBP_WORKER_PUSHER);
}

void
rbp_worker_begin(RbpWorker which)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	before_shmem_exit(forget_latch, Int32GetDatum(which));
	/* a full barrier: who was not woken has left its request before */
	(void) pg_atomic_exchange_u64(&states[which].latch, (uint64) (uintptr_t) MyLatch);
}

bool
rbp_worker_reload(void)
{
	if (!ConfigReloadPending)
		return false;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	return true;
}

/* For how long has the worker not run?  0 if it is not away. */
static int64
away_for(RbpWorker which)
{
	uint64		ran_at = pg_atomic_read_u64(&states[which].ran_at);
	int64		ns = rbp_now_ns() - (int64) ran_at;

	return ran_at != 0 && ns > AWAY_NS ? ns : 0;
}

bool
rbp_worker_away(RbpWorker which, char *buf, Size len)
{
	int64		ns = away_for(which);

	if (refused[which])
		snprintf(buf, len, "no background worker is free for the %s: raise max_worker_processes",
				 workers[which].name);
	else if (ns > 0)
		snprintf(buf, len, "the %s has not run for %lld s", workers[which].name,
				 (long long) (ns / 1000000000));
	return refused[which] || ns > 0;
}

void
rbp_worker_runs(RbpWorker which)
{
	static int64 look_at = 0;
	int64		now = rbp_now_ns();

	pg_atomic_write_u64(&states[which].ran_at, (uint64) now);
	if (pg_atomic_read_u32(&states[which].warned) != 0)
		pg_atomic_write_u32(&states[which].warned, 0);
	if (now < look_at)
		return;
	look_at = now + LOOK_NS;
	for (RbpWorker other = 0; other < RBP_WORKERS; other++)
	{
		if (away_for(other) == 0 || pg_atomic_exchange_u32(&states[other].warned, 1) != 0)
			continue;
		ereport(WARNING,
				(errmsg("remote_bp: the %s has not run for %d s", workers[other].name,
						(int) (AWAY_NS / 1000000000)),
				 errdetail("%s", workers[other].without)));
	}
}
