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
#include <stdlib.h>

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
		char	   *who = broker_get_text("SELECT id || ' of ' || client FROM lease WHERE key = ?1", INT(lease));

		rbp_log(RBP_LOG_INFO, "lease %s (%d regions) has expired", who,
				broker_leases_end(lease, "has expired"));
		free(who);
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
		char	   *id = broker_get_text("SELECT id FROM donor WHERE key = ?1", INT(gone[0]));
		int			lost = broker_donors_lose(gone[0]);

		if (lost > 0)
			rbp_log(RBP_LOG_WARNING, "donor %s has been silent for %" PRId64 " s: %d regions leave their leases",
					id, gone[1] / 1000, lost);
		if (gone[1] >= FORGET_AFTER_MS)
		{
			rbp_log(RBP_LOG_INFO, "donor %s is forgotten", id);
			broker_run("DELETE FROM donor WHERE key = ?1", INT(gone[0]));
		}
		free(id);
	}
}

int64_t
broker_tick(void)
{
	static int64_t planned = 0;

	if (planned != 0 && broker_now() - planned > LATE_MS)
		forgive(broker_now() - planned);
	expire_leases();
	broker_share_update();
	broker_reclaim_update_all();
	broker_reclaim_take();
	give_up_donors();
	planned = broker_get("SELECT min(at) FROM (SELECT now_ms() + 1000 AS at"
						 " UNION ALL SELECT min(deadline) FROM lease_term"
						 " UNION ALL SELECT min(taken_at) FROM holding WHERE taken_at IS NOT NULL)");
	return planned;
}
