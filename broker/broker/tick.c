/*-------------------------------------------------------------------------
 *
 * tick.c
 *	  What time brings: leases expire, grace times end, donors are gone.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/donors.h"
#include "broker/broker/leases.h"
#include "broker/broker/reclaim.h"
#include "broker/broker/share.h"
#include "broker/broker/state.h"
#include "broker/broker/store.h"
#include "broker/broker/tick.h"
#include "broker/common/log.h"

#include <inttypes.h>

/* A donor that holds no lease and is silent for so long is forgotten. */
#define FORGET_AFTER_MS		(INT64_C(24) * 3600 * 1000)

/* A tick that comes later than this was held up by more than a busy machine. */
#define LATE_MS				2000

/*
 * Time during which the broker itself did not run (a stopped process, a
 * paused machine) counts against nobody: holders and donors had no chance to
 * report.  Deadlines here decide no safety, donors have their own.
 */
static void
forgive(int64_t ms)
{
	rbp_log(RBP_LOG_WARNING, "the broker did not run for %" PRId64 " ms; deadlines move by that",
			ms);
	broker_run("UPDATE lease_term SET deadline = deadline + ?1", INT(ms));
	broker_run("UPDATE holding SET taken_at = taken_at + ?1 WHERE taken_at IS NOT NULL", INT(ms));
	broker_run("UPDATE donor_seen SET last_heard = last_heard + ?1", INT(ms));
}

static void
expire_leases(void)
{
	int64_t		lease;

	while ((lease = broker_get("SELECT lease FROM lease_term WHERE deadline <= now_ms() LIMIT 1")) != 0)
	{
		broker_log(RBP_LOG_INFO, "SELECT format('lease %s of %s (%d regions) has expired', id, client,"
				   "  (SELECT sum(regions) FROM holding WHERE lease = key))"
				   " FROM lease WHERE key = ?1", INT(lease));
		broker_leases_end(lease, "has expired");
		broker.counters[LEASES_EXPIRED]++;
	}
}

static void
give_up_donors(void)
{
	int64_t		gone[2];		/* a donor, and for how long it has been
								 * silent */

	while (broker_get_all(gone, "SELECT key, silent_ms FROM donor_now"
						  " WHERE state = 'gone' AND (leased > 0 OR silent_ms >= ?1) LIMIT 1",
						  INT(FORGET_AFTER_MS)))
	{
		int			lost = broker_donors_lose(gone[0]);

		if (lost > 0)
			broker_log(RBP_LOG_WARNING, "SELECT format('donor %s has been silent for %lld s: %d regions"
					   " leave their leases', id, ?2, ?3) FROM donor WHERE key = ?1",
					   INT(gone[0]), INT(gone[1] / 1000), INT(lost));
		if (gone[1] >= FORGET_AFTER_MS)
		{
			broker_log(RBP_LOG_INFO, "SELECT format('donor %s is forgotten', id)"
					   " FROM donor WHERE key = ?1", INT(gone[0]));
			broker_run("DELETE FROM donor WHERE key = ?1", INT(gone[0]));
		}
	}
}

int64_t
broker_tick(void)
{
	static int64_t planned = 0;

	broker_try_full();
	if (planned != 0 && broker_now() - planned > LATE_MS)
		forgive(broker_now() - planned);
	if (!broker.full)
		expire_leases();
	broker_share_update();
	broker_reclaim_update_all();
	if (broker.full)
		return planned = broker_now() + 1000;
	broker_reclaim_take();
	give_up_donors();
	planned = broker_get("SELECT min(at) FROM (SELECT now_ms() + 1000 AS at"
						 " UNION ALL SELECT min(deadline) FROM lease_term"
						 " UNION ALL SELECT min(taken_at) FROM holding WHERE taken_at IS NOT NULL)");
	return planned;
}
