/*-------------------------------------------------------------------------
 *
 * alloc.c
 *	  Who gets which region.
 *
 * A lease's next region comes from the donor that carries the
 * fewest of its regions, among equals from the one with the most to give: so
 * a new lease goes round by round over all donors, and a growing one fills up
 * donors that came later.  Spread in this way, a lost donor costs each client
 * the smallest share.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/alloc.h"
#include "broker/broker/schema.h"
#include "broker/broker/share.h"
#include "broker/broker/state.h"
#include "broker/broker/store.h"

/* A donor that has something to give. */
typedef struct Source
{
	int64_t		donor;
	int64_t		region_size;
	int64_t		free;
	int64_t		held;			/* by the lease */
	int64_t		granted;
} Source;

static Source *
choose(Source *sources, int n)
{
	Source	   *best = NULL;

	for (Source *s = sources; s < sources + n; s++)
	{
		if (s->free > 0 &&
			(best == NULL || s->held < best->held ||
			 (s->held == best->held && s->free > best->free)))
			best = s;
	}
	return best;
}

static int
grant_from(int64_t lease, const Source *source)
{
	if (source->granted == 0)
		return 0;
	return broker_run("UPDATE region SET lease = ?1, used = 1 WHERE donor = ?2 AND number IN"
					  " (SELECT number FROM region INDEXED BY region_idle"
					  "  WHERE donor = ?2 AND lease IS NULL AND used = 0 ORDER BY number LIMIT ?3)",
					  INT(lease), INT(source->donor), INT(source->granted));
}

int
broker_alloc_grant(int64_t lease, int64_t ahead)
{
	static Source sources[BROKER_MAX_DONORS];	/* under broker.lock */
	int64_t		sizes[2];		/* what it lacks, and what may come ahead */
	int64_t		lacks;
	int			granted = 0;

	broker_get_all(sizes, "SELECT wanted - bytes, min(?2,"
				   "  (SELECT coalesce(sum((asked - shared) * region_size), 0)"
				   "   FROM holding h JOIN donor d ON d.key = h.donor"
				   "   WHERE h.lease = l.key AND asked > shared))"
				   " FROM lease_now l WHERE key = ?1", INT(lease), INT(ahead));
	lacks = sizes[0] + sizes[1];
	if (lacks > 0)
	{
		BrokerQueue queue;
		BrokerRows *rows;
		Source	   *best;
		int			n = 0;

		broker_share_queue(lease, &queue);
		rows = broker_query("SELECT key, region_size, free, coalesce(h.regions, 0)"
							" FROM donor_now d LEFT JOIN holding h ON h.donor = key AND h.lease = ?1"
							" WHERE free > 0 ORDER BY id", INT(lease));
		while (broker_next(rows))
		{
			Source	   *source = &sources[n++];

			source->donor = broker_int(rows, 0);
			source->region_size = broker_int(rows, 1);
			source->free = broker_int(rows, 2);
			source->held = broker_int(rows, 3);
			source->granted = 0;
		}
		while (lacks > 0 && (best = choose(sources, n)) != NULL &&
			   broker_share_take(&queue, best->region_size))
		{
			best->free--;
			best->held++;
			best->granted++;
			lacks -= best->region_size;
		}
		for (int i = 0; i < n; i++)
			granted += grant_from(lease, &sources[i]);
		broker.counters[REGIONS_GRANTED] += granted;
	}
	broker_run("UPDATE lease_term SET waiting_since = iif(?2, coalesce(waiting_since, now_ms()), NULL)"
			   " WHERE lease = ?1", INT(lease), INT(lacks > sizes[1]));
	return granted;
}

bool
broker_alloc_more_coming(int64_t lease)
{
	return broker_get("SELECT EXISTS (SELECT 1 FROM lease_now WHERE key = ?1 AND bytes < wanted)"
					  " AND EXISTS (SELECT 1 FROM donor_now WHERE state = 'up' AND dirty > 0 AND leased < most)",
					  INT(lease)) != 0;
}
