/*-------------------------------------------------------------------------
 *
 * lock_names.c
 *	  Which LWLock tranches there are, and by which name those who wait for a
 *	  lock are seen.  For test/t/087_lock_names.pl.
 *
 * Loaded by shared_preload_libraries, after remote_bp and
 * pg_stat_statements.  It has a tranche of its own, taken as the server's
 * documentation says: anew with each initialization of shared memory.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/wait_event.h"

#include "buffer/directory_internal.h"
#include "remote/remote_internal.h"
#include "buffer/buffer_internal.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(lock_names);
PG_FUNCTION_INFO_V1(lock_names_of_statements);
PG_FUNCTION_INFO_V1(lock_names_hold);
PG_FUNCTION_INFO_V1(lock_names_release);

/* Nobody holds a lock for longer, whatever becomes of the test. */
#define HOLD_LIMIT_US		60000000
#define HOLD_STEP_US		10000

typedef struct Probe
{
	LWLock		lock;
	pg_atomic_uint32 release;
} Probe;

static Probe *probe = NULL;
static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

void		_PG_init(void);

static void
request_shmem(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(MAXALIGN(sizeof(Probe)));
}

static void
startup_shmem(void)
{
	bool		found;
	int			tranche;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	probe = ShmemInitStruct("lock_names", sizeof(Probe), &found);
	tranche = LWLockNewTrancheId();
	LWLockRegisterTranche(tranche, "LockNamesProbe");
	LWLockInitialize(&probe->lock, tranche);
	pg_atomic_init_u32(&probe->release, 0);
	LWLockRelease(AddinShmemInitLock);
}

void
_PG_init(void)
{
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
}

/* The tranches that were given out since the server's own: id and name. */
Datum
lock_names(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			end = LWLockNewTrancheId();

	InitMaterializedSRF(fcinfo, 0);
	for (int id = LWTRANCHE_FIRST_USER_DEFINED; id < end; id++)
	{
		Datum		values[2];
		bool		nulls[2] = {false, false};

		values[0] = Int32GetDatum(id);
		values[1] = CStringGetTextDatum(GetLWLockIdentifier(PG_WAIT_LWLOCK, (uint16) id));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * The name of pg_stat_statements' lock.  Nobody is made to wait for it: each
 * query needs it.
 */
Datum
lock_names_of_statements(PG_FUNCTION_ARGS)
{
	uint16		tranche = GetNamedLWLockTranche("pg_stat_statements")->lock.tranche;

	PG_RETURN_TEXT_P(cstring_to_text(GetLWLockIdentifier(PG_WAIT_LWLOCK, tranche)));
}

static LWLock *
lock_called(const char *which)
{
	if (strcmp(which, "remote") == 0)
		return &rbp_remote_shared->remote_lock;
	if (strcmp(which, "partition") == 0)
		return &rbp_dir->partitions[0].lock;
	if (strcmp(which, "probe") == 0)
		return &probe->lock;
	elog(ERROR, "no such lock: %s", which);
}

/* Take the lock and hold it until lock_names_release() is called. */
Datum
lock_names_hold(PG_FUNCTION_ARGS)
{
	LWLock	   *lock = lock_called(text_to_cstring(PG_GETARG_TEXT_PP(0)));

	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int us = 0; us < HOLD_LIMIT_US && pg_atomic_read_u32(&probe->release) == 0;
		 us += HOLD_STEP_US)
		pg_usleep(HOLD_STEP_US);
	LWLockRelease(lock);
	PG_RETURN_VOID();
}

/* true: nobody holds a lock any more; false: one can be held again. */
Datum
lock_names_release(PG_FUNCTION_ARGS)
{
	pg_atomic_write_u32(&probe->release, PG_GETARG_BOOL(0) ? 1 : 0);
	PG_RETURN_VOID();
}
