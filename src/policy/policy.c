/*-------------------------------------------------------------------------
 *
 * policy.c
 *	  Policies: what launcher and worker share: memory, settings, transactions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/workers.h"
#include "policy/policy.h"
#include "policy/policy_internal.h"

RbpPolicyShared *rbp_policy_shared = NULL;

Size
rbp_policy_shmem_size(void)
{
	return sizeof(RbpPolicyShared);
}

void
rbp_policy_shmem_init(void *mem)
{
	rbp_policy_shared = memset(mem, 0, sizeof(RbpPolicyShared));
}

/*
 * Record the database, unless it is recorded already.  Returns false if there
 * is no room.
 */
static bool
note_wake(Oid database)
{
	for (int i = 0; i < RBP_POLICY_REQUESTS; i++)
	{
		uint32		seen = pg_atomic_read_u32(&rbp_policy_shared->requests[i]);

		if (seen == 0 &&
			pg_atomic_compare_exchange_u32(&rbp_policy_shared->requests[i], &seen, database))
			return true;
		if (seen == database)
			return true;
	}
	return false;
}

/*
 * Mostly the settings that autovacuum makes.  A timeout must not end work that
 * nobody waits for.  Damaged pages are not zeroed unless somebody asks for it.
 * And work in the background does not take parallel workers from queries.
 */
void
rbp_policy_set_options(void)
{
	static const char *const options[][2] = {
		{"search_path", "pg_catalog, pg_temp"},
		{"zero_damaged_pages", "off"},
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"default_transaction_isolation", "read committed"},
		{"max_parallel_workers_per_gather", "0"},
		/* pages of catalogs must leave no trace in the tier */
		{"remote_bp.use_tier", "off"}
	};

	for (int i = 0; i < lengthof(options); i++)
		SetConfigOption(options[i][0], options[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	if (RBP_COMPAT_HAS_TRANSACTION_TIMEOUT)
		SetConfigOption("transaction_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
}

void
rbp_policy_begin(void)
{
	rbp_worker_runs(RBP_WORKER_LAUNCHER);	/* which waits for this one */
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
}

void
rbp_policy_commit(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
}

void
rbp_policy_wake(Oid database)
{
	if (rbp_policy_shared == NULL)
		return;
	if (!OidIsValid(database) || !note_wake(database))
		pg_atomic_write_u32(&rbp_policy_shared->visit_all, 1);
	pg_memory_barrier();
	rbp_worker_wake(RBP_WORKER_LAUNCHER);
}
