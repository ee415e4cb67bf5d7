/*-------------------------------------------------------------------------
 *
 * reclaim.c
 *	  Which leases have to give regions back, because a donor wants its memory.
 *
 * A donor that wants memory back (want_back, drain) has a
 * deficit: the leased regions that it may not have.  broker_reclaim_update() spreads
 * it over the holders: "asked" regions in their holdings.  A holder learns
 * that in its next answer (broker_reclaim_tell()), which starts the grace time; what
 * it has not released by then is taken (broker_reclaim_take()).  Once a holder was
 * told a number, that number does not grow before its grace time is over: added
 * regions would have less of it, or the first ones more.  The rest is asked for in
 * a second round.
 * The holder of a lapsed lease is not there to be told: among leases of a purpose,
 * those are asked first, and what is asked of them is taken at once.
 * Buffer leases are asked before temp leases, and temp leases are spared first
 * when the need shrinks: the data of the latter has no copy on disk.  So a temp
 * lease is left alone as long as a buffer lease has a region there that could
 * be asked for in a later round.  What leases ask of each other is in
 * share.c, and comes on top: "shared" of a holding's "asked" regions.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/reclaim.h"
#include "broker/broker/schema.h"
#include "broker/broker/state.h"
#include "broker/broker/store.h"
#include "broker/common/log.h"

/* Ask for ?2 regions of a donor less: spare temp leases first, then who was not told. */
static const char *const ask_less =
"UPDATE holding SET asked = asked - s.n, taken_at = iif(asked > s.n, taken_at, NULL)"
" FROM (SELECT lease, min(own, ?2 - before) AS n"
"  FROM (SELECT lease, asked - shared AS own,"
"    sum(asked - shared) OVER (ORDER BY purpose DESC, taken_at IS NOT NULL, lease DESC)"
"     - (asked - shared) AS before"
"   FROM holding JOIN lease ON lease.key = lease WHERE donor = ?1 AND asked > shared)"
"  WHERE before < ?2) s"
" WHERE donor = ?1 AND holding.lease = s.lease";

/*
 * Ask for ?2 more regions, each from the lease that would keep the most without it;
 * lapsed ones first.
 * Ask for fewer if the other leases cannot be asked now: they were told a number
 * already, or are temp leases, which are asked after buffer leases.  (r has a row for
 * each region of a lease, with the number that the lease would keep.)
 */
static const char *const ask_more =
"UPDATE holding SET asked = asked + more.n"
" FROM (SELECT lease, count(*) AS n"
"  FROM (SELECT h.lease"
"   FROM holding h JOIN lease_now l ON l.key = h.lease JOIN"
"    (SELECT lease, row_number() OVER (PARTITION BY lease) AS kept"
"     FROM region WHERE donor = ?1 AND lease IS NOT NULL) r ON r.lease = h.lease"
"   WHERE h.donor = ?1 AND h.taken_at IS NULL AND r.kept <= h.regions - h.asked"
"    AND (l.purpose = 'buffer' OR NOT EXISTS"
"     (SELECT 1 FROM holding told JOIN lease b ON b.key = told.lease"
"      WHERE told.donor = ?1 AND b.purpose = 'buffer'"
"       AND told.taken_at IS NOT NULL AND told.asked < told.regions))"
"   ORDER BY l.purpose, l.lapsed DESC, r.kept DESC, h.lease DESC LIMIT ?2)"
"  GROUP BY lease) more"
" WHERE donor = ?1 AND holding.lease = more.lease";

void
broker_reclaim_update(int64_t donor)
{
	int64_t		need;

	/*
	 * share.c has chosen what each lease gives to others (holding.shared):
	 * ask for at least that, unless the holder was told a number already.
	 */
	broker_run("UPDATE holding SET asked = shared"
			   " WHERE donor = ?1 AND asked < shared AND taken_at IS NULL", INT(donor));
	need = broker_get("SELECT max(leased - most, 0) -"
					  " (SELECT coalesce(sum(asked - shared), 0) FROM holding"
					  "  WHERE donor = ?1 AND asked > shared)"
					  " FROM donor_now WHERE key = ?1", INT(donor));
	if (need < 0)
		broker_run(ask_less, INT(donor), INT(-need));
	else if (need > 0)
		broker_run(ask_more, INT(donor), INT(need));
}

void
broker_reclaim_update_all(void)
{
	static int64_t donors[BROKER_MAX_DONORS];	/* under broker.lock */
	BrokerRows *rows = broker_query("SELECT key FROM donor_now WHERE leased > most"
									" OR key IN (SELECT donor FROM holding WHERE asked > 0 OR shared > 0)");
	int			n = 0;

	while (broker_next(rows))
		donors[n++] = broker_int(rows, 0);
	while (n > 0)
		broker_reclaim_update(donors[--n]);
}

void
broker_reclaim_tell(int64_t lease)
{
	broker_run("UPDATE holding SET"
			   " taken_at = now_ms() + (SELECT grace_ms FROM donor WHERE key = holding.donor)"
			   " WHERE lease = ?1 AND asked > 0 AND taken_at IS NULL", INT(lease));
}

/*
 * Which regions are coldest only the holder knows; take those with the highest
 * numbers, which were granted last if the lease grew in one go.
 */
static void
take(int64_t donor, int64_t lease, int64_t count)
{
	broker_log(RBP_LOG_INFO, "SELECT format('lease %s: %d regions of donor %s are taken, %s',"
			   "  l.id, ?3, donor.id, iif(lapsed, 'since it has lapsed', 'their grace time is over'))"
			   " FROM lease_now l, donor WHERE l.key = ?2 AND donor.key = ?1",
			   INT(donor), INT(lease), INT(count));
	broker.counters[REGIONS_TAKEN] += count;
	broker_run("UPDATE region SET lease = NULL WHERE donor = ?1 AND number IN"
			   " (SELECT number FROM region WHERE donor = ?1 AND lease = ?2"
			   "  ORDER BY number DESC LIMIT ?3)",
			   INT(donor), INT(lease), INT(count));
	broker_reclaim_update(donor);
}

void
broker_reclaim_take(void)
{
	int64_t		due[3];

	/* the grace time of a lapsed lease is over, whether it was told or not */
	broker_run("UPDATE holding SET taken_at = now_ms() WHERE asked > 0"
			   " AND lease IN (SELECT lease FROM lease_term WHERE deadline <= now_ms())");

	/*
	 * Regions of a temp lease are only taken for the donor (asked - shared).
	 * For another lease's share it gives what it can, and its grace time
	 * begins anew.
	 */
	while (broker_get_all(due, "SELECT donor, lease, iif(purpose = 'temp', asked - shared, asked)"
						  " FROM holding JOIN lease ON lease.key = lease"
						  " WHERE taken_at <= now_ms() LIMIT 1"))
	{
		broker_run("UPDATE holding SET taken_at = now_ms() +"
				   "  (SELECT max(grace_ms, 1000) FROM donor WHERE key = ?1)"
				   " WHERE donor = ?1 AND lease = ?2", INT(due[0]), INT(due[1]));
		if (due[2] > 0)
			take(due[0], due[1], due[2]);
	}
}
