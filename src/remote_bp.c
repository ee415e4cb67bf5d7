/*-------------------------------------------------------------------------
 *
 * remote_bp.c
 *	  Start-up: the modules, in the order of their initialization, and the
 *	  callbacks between them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "advice/advice.h"
#include "base/choice.h"
#include "base/compat.h"
#include "base/guc.h"
#include "base/hash.h"
#include "base/kept.h"
#include "base/layout.h"
#include "base/page_cache.h"
#include "base/process.h"
#include "base/stats.h"
#include "base/wait.h"
#include "base/workers.h"
#include "buffer/buffer.h"
#include "hook/hook.h"
#include "policy/follow.h"
#include "policy/policy.h"
#include "remote/remote.h"
#include "spill/spill.h"
#include "transport/transport.h"
#include "usage/usage.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

/*
 * ---- remote memory has two users: the buffer tier, and temporary data ---------
 */

static void
max_extents(uint32 extents[RBP_POOLS])
{
	extents[RBP_POOL_BUFFER] = rbp_tier_max_extents();
	extents[RBP_POOL_TEMP] = rbp_spill_max_extents();
}

static Size
remote_shmem_size(void)
{
	uint32		extents[RBP_POOLS];

	max_extents(extents);
	return rbp_remote_shmem_size(extents);
}

static void
remote_shmem_open(void *mem, bool found)
{
	const RbpRemotePoolOps *const ops[RBP_POOLS] = {
		[RBP_POOL_BUFFER] = &rbp_tier_pool_ops,
		[RBP_POOL_TEMP] = &rbp_spill_pool_ops,
	};
	uint32		extents[RBP_POOLS];

	max_extents(extents);
	rbp_remote_shmem_open(mem, found, extents, ops);
}

/*
 * ---- modules --------------------------------------------------------------------
 */

/*
 * Modules with data in shared memory.  The init function of each may use the
 * modules above it.  It is called once for each start, and after each crash of a
 * backend, with zeroed memory.  A module that has an open function instead is in memory
 * that is kept over a crash: found says that it is as the crash has left it.
 */
static const struct
{
	const char *name;
	Size		(*size) (void);
	void		(*init) (void *mem);	/* mem is at a cache line */
	void		(*open) (void *mem, bool found);
}			modules[] = {
	{"remote_bp statistics", rbp_stats_shmem_size, rbp_stats_shmem_init},
	{"remote_bp workers", rbp_workers_shmem_size, rbp_workers_shmem_init},
	{"remote_bp choice", rbp_choice_shmem_size, NULL, rbp_choice_shmem_open},
	{"remote_bp remote memory", remote_shmem_size, NULL, remote_shmem_open},
	{"remote_bp relations", rbp_relation_stats_shmem_size, rbp_relation_stats_shmem_init},
	{"remote_bp directory", rbp_tier_directory_size, NULL, rbp_tier_directory_open},
	{"remote_bp buffer tier", rbp_tier_shmem_size, rbp_tier_shmem_init},
	{"remote_bp temporary data", rbp_spill_shmem_size, rbp_spill_shmem_init},
	{"remote_bp advice", rbp_advice_shmem_size, rbp_advice_shmem_init},
	{"remote_bp prewarm", rbp_prewarm_shmem_size, rbp_prewarm_shmem_init},
	{"remote_bp policies", rbp_policy_shmem_size, rbp_policy_shmem_init},
	{"remote_bp follow", rbp_follow_shmem_size, rbp_follow_shmem_init},
	{"remote_bp statements", rbp_statements_shmem_size, rbp_statements_shmem_init},
};

/* Does the module's memory outlive a crash? */
static bool
is_kept(int module)
{
	return modules[module].open != NULL && rbp_guc_warm_restart != RBP_WARM_RESTART_OFF;
}

/*
 * Duties of the pusher.  rbp_remote_report comes before rbp_remote_probe, so
 * that donors that are down are logged before a probe may bring them back.
 */
static const RbpDuty duties[] = {
	rbp_remote_maintain_connections,
	rbp_remote_report,
	rbp_remote_probe,
	rbp_remote_watch_lease_worker,
	rbp_spill_sweep,
	rbp_page_cache_watch,
	rbp_advice_watch,
	NULL
};

static void
request_shmem(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	for (int i = 0; i < lengthof(modules); i++)
		if (!is_kept(i))
			RequestAddinShmemSpace(add_size(modules[i].size(), PG_CACHE_LINE_SIZE));
}

/*
 * ---- events of a process ---------------------------------------------------------
 */

/*
 * What modules do, in this order, when a transaction of a process has ended, and besides
 * when the process exits.  Connections are closed last, since the others may use them.
 */
static const struct
{
	void		(*transaction_ends) (XactEvent event);
	void		(*exits) (void);
}			process_events[] = {
	{rbp_ahead_transaction_ends, NULL},
	{rbp_spill_transaction_ends, NULL},
	{rbp_relation_stats_transaction_ends, rbp_relation_stats_exits},
	{NULL, rbp_advice_exits},
	{rbp_policy_transaction_ends, NULL},
	{rbp_remote_transaction_ends, rbp_remote_exits},
};

static pg_attribute_hot void
transaction_event(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_PARALLEL_COMMIT &&
		event != XACT_EVENT_ABORT && event != XACT_EVENT_PARALLEL_ABORT &&
		event != XACT_EVENT_PREPARE)
		return;
	for (int i = 0; i < lengthof(process_events); i++)
		if (process_events[i].transaction_ends != NULL)
			process_events[i].transaction_ends(event);
}

static void
process_exits(void)
{
	transaction_event(XACT_EVENT_ABORT, NULL);
	for (int i = 0; i < lengthof(process_events); i++)
		if (process_events[i].exits != NULL)
			process_events[i].exits();
}

/* An I/O worker ends no transactions: each time that it has no work counts as an end. */
static void
io_worker_waits(void)
{
	int			save_errno = errno;

	transaction_event(XACT_EVENT_PARALLEL_COMMIT, NULL);
	errno = save_errno;
}

/*
 * Make the wrappers pass all calls to libc, since shared memory is about to be
 * detached: the postmaster unlinks its files even after that.  Before that, note what
 * is in the tier.
 */
static void
stand_down(int code, Datum arg)
{
	rbp_tier_image_write(code);
	rbp_spill_stand_down();
	rbp_tier_stand_down();
	rbp_advice_stand_down();
}

/* One line at each start: a server without a tier says so, and why. */
static void
log_start(void)
{
	const char *off = !rbp_guc_enabled ? "remote_bp.enabled is off" :
	rbp_guc_broker == NULL || rbp_guc_broker[0] == '\0' ? "remote_bp.broker is not set" : NULL;

	if (off != NULL)
		ereport(LOG,
				(errmsg("remote_bp %s is loaded, and off: %s", RBP_VERSION, off)));
	else
		ereport(LOG,
				(errmsg("remote_bp %s is loaded: broker \"%s\", %d MB of memory wanted for the buffer tier, %d MB for temporary data",
						RBP_VERSION, rbp_guc_broker, rbp_guc_tier_size_wanted(), rbp_guc_temp_tier_size)));
}

/* The memory of all modules that are kept, in turn; NULL if there are none. */
static char *
kept_memory(bool *found)
{
	const char *why = NULL;
	Size		size = 0;
	void	   *mem = NULL;

	*found = false;
	for (int i = 0; i < lengthof(modules); i++)
		if (is_kept(i))
			size = add_size(size, add_size(modules[i].size(), PG_CACHE_LINE_SIZE));
	if (size > 0)
		mem = rbp_kept_memory(size, found, &why);
	if (why != NULL)
	{
		ereport(LOG,
				(errmsg("remote_bp: what was kept over the crash is discarded: %s", why)));
		rbp_stats_error("what was kept over the crash is discarded: %s", why);
	}
	return mem;
}

static void
startup_shmem(void)
{
	static bool started = false;
	static void *mems[lengthof(modules)];
	char	   *kept = NULL;
	bool		found_kept = false;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (int i = 0; i < lengthof(modules); i++)
	{
		bool		found = false;
		void	   *mem;

		/* the statistics, which are the first, take the reason of a discard */
		if (is_kept(i) && kept == NULL)
			kept = kept_memory(&found_kept);
		mem = is_kept(i) ?
			rbp_layout_take(&kept, modules[i].size(), PG_CACHE_LINE_SIZE) :
			ShmemInitStruct(modules[i].name, modules[i].size(), &found);

		/*
		 * Only the postmaster comes here, at the start and after each crash
		 * of a backend, with new shared memory: there is no EXEC_BACKEND.
		 */
		Assert(!found);
		mems[i] = mem;
		if (modules[i].open != NULL)
			modules[i].open(mem, is_kept(i) && found_kept);
		else
			modules[i].init(mem);
	}
	/* a start that finds an image goes on as after a crash */
	if (!started && rbp_tier_image_read())
		for (int i = 0; i < lengthof(modules); i++)
			if (is_kept(i))
				modules[i].open(mems[i], true);
	started = true;
	LWLockRelease(AddinShmemInitLock);
	rbp_wait_init();
	on_shmem_exit(stand_down, (Datum) 0);
	log_start();
}

static bool
is_transport(const char *name)
{
	return rbp_transport_by_name(name) != NULL;
}

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("remote_bp must be loaded via shared_preload_libraries"),
				 errhint("Add remote_bp to shared_preload_libraries in postgresql.conf and restart the server.")));

	rbp_guc_init(is_transport);
	rbp_compat_replace_io_method();
	rbp_hash_init();
	rbp_transport_init();
	rbp_page_cache_init();

	/* callbacks from lower to higher modules */
	rbp_residency_set_on_change(rbp_policy_wake);
	rbp_pusher_set_duties(duties);
	rbp_process_set_exit(process_exits);
	RegisterXactCallback(transaction_event, NULL);

	rbp_hook_install(io_worker_waits);
	rbp_workers_register();
	rbp_usage_init();

	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
}
