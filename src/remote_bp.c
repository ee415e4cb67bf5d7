/*-------------------------------------------------------------------------
 *
 * remote_bp.c
 *	  Start-up: the modules' inits and the server's hooks, nothing else.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "rbp_file.h"
#include "rbp_guc.h"
#include "rbp_hash.h"
#include "rbp_lease.h"
#include "rbp_page_cache.h"
#include "rbp_policy.h"
#include "rbp_prewarm.h"
#include "rbp_pusher.h"
#include "rbp_spill.h"
#include "rbp_tier.h"
#include "transport/rbp_transport.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static void
request_shmem(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(rbp_tier_shmem_size(rbp_spill_max_extents()));
	RequestAddinShmemSpace(rbp_spill_shmem_size());
	RequestAddinShmemSpace(rbp_prewarm_shmem_size());
	RequestAddinShmemSpace(rbp_policy_shmem_size());
}

/*
 * The wrappers outlive shared memory: the postmaster goes on to unlink its
 * files after it has detached.
 */
static void
stand_down(int code, Datum arg)
{
	rbp_spill_stand_down();
	rbp_tier_stand_down();
}

static void
startup_shmem(void)
{
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	rbp_tier_shmem_init(rbp_spill_max_extents(), &rbp_spill_pool_ops);
	rbp_spill_shmem_init(ShmemInitStruct("remote_bp temporary data",
										 rbp_spill_shmem_size(), &found),
						 rbp_tier_max_extents());
	rbp_prewarm_shmem_init(ShmemInitStruct("remote_bp prewarm",
										   rbp_prewarm_shmem_size(), &found));
	rbp_policy_shmem_init(ShmemInitStruct("remote_bp policies",
										  rbp_policy_shmem_size(), &found));
	LWLockRelease(AddinShmemInitLock);
	on_shmem_exit(stand_down, (Datum) 0);
}

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("remote_bp must be loaded via shared_preload_libraries"),
				 errhint("Add remote_bp to shared_preload_libraries in postgresql.conf and restart the server.")));

	rbp_guc_init();
	rbp_hash_init();
	rbp_transport_init();
	rbp_page_cache_init();
	rbp_file_install();
	rbp_lease_register();
	rbp_pusher_register();
	rbp_policy_register();

	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
}
