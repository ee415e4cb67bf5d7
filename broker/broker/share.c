/*-------------------------------------------------------------------------
 *
 * share.c
 *	  How leases share memory, and who gets which region.
 *
 * Shares.  All leases have equal shares, of whatever purpose and client they
 * are; what one does not want of its share is the others' (max-min fairness).
 * What is shared is the memory of donors that are up, without what a donor wants
 * back.  A lease that was not renewed for half of its TTL, as each lapsed one, claims no
 * more than it has: its holder may be dead.  So does one that donors tell of, each of
 * which is a lease of its own until its holder comes.
 *
 * Granting.  Free memory goes to leases that are short of their share first,
 * temp before buffer, and among these to the one that has waited longest.  Leases
 * ask once a second or so, so free memory is reserved for the first in this order
 * until it asks.  A lease's next region comes from the donor that carries the fewest of
 * its regions, among equals from the one with the most to give: so a new lease goes
 * round by round over all donors, and a growing one fills up donors that came later.
 * Spread in this way, a lost donor costs each client the smallest share.
 *
 * Shares are rounded to whole regions.  The regions that are left
 * over go one each to leases in the same order, when none is short of its share
 * (Member.extra).
 *
 * Taking back.  What leases are short of, and what no donor has free or is
 * cleaning, is asked back from leases that have at least one region more than
 * their share, the largest first (holding.shared; see broker_reclaim_update()).
 * Memory is never asked back for a part of a region, nor for one of the regions
 * that are left over, so this ends when shares are equal but for one region.  A
 * temp lease keeps what it has, unless another temp lease is short of its share and
 * buffer leases cannot fill it.  Then the temp lease is asked, but its regions are
 * never taken by force: its queries would fail, and the other lease is only slower.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/schema.h"
#include "broker/broker/share.h"
#include "broker/broker/state.h"
#include "broker/broker/store.h"

#include <stdlib.h>
#include <string.h>

/* What there is to share, in bytes. */
typedef struct Memory
{
	int64_t		total;			/* may be leased */
	int64_t		free;			/* of these, not leased: clean */
	int64_t		coming;			/* likewise: dirty */
	int64_t		unit;			/* the smallest region; 0: there are none */
} Memory;

/* A lease, while shares are made; bytes. */
typedef struct Member
{
	int64_t		lease;
	bool		temp;
	int64_t		ungranted;		/* wanted, but not granted */
	int64_t		present;		/* what it has of the memory that is shared */
	int64_t		demand;			/* what it would have of that */
	int64_t		share;
	int64_t		extra;			/* beside its share: of the regions left over */
	bool		told;			/* was asked to give some back, which is
								 * logged */
	bool		chosen;			/* to give some back */
} Member;

/* In the order in which free memory is granted.  Under broker.lock. */
static Member *members;
static int	nmembers;
static int	members_max;

static Memory
count_memory(void)
{
	int64_t		columns[4];
	Memory		memory;

	broker_get_all(columns, "SELECT sum(most * region_size), sum(free * region_size),"
				   "  sum(max(most - leased - free, 0) * region_size), min(region_size)"
				   " FROM donor_now WHERE state = 'up' AND most > 0");
	memory.total = columns[0];
	memory.free = columns[1];
	memory.coming = columns[2];
	memory.unit = columns[3];
	return memory;
}

static int64_t
round_up(int64_t bytes, int64_t unit)
{
	return bytes > 0 ? (bytes + unit - 1) / unit * unit : 0;
}

static int64_t
smaller(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/*
 * Two parts of what a lease has do not count as present: memory of donors that are
 * not up, and memory that a donor wants back for itself.  The latter, and memory of
 * draining donors, is to be replaced by memory elsewhere.  Memory of donors that are
 * away is not: the lease's demand is less by that.
 */
static const char *const all_members =
"WITH"
" d AS MATERIALIZED (SELECT key, region_size, state FROM donor_now),"
" absent (holder, bytes, away, shared) AS"
"  (SELECT lease, regions * region_size, iif(state = 'draining', 0, regions * region_size), shared"
"    FROM d JOIN holding ON donor = key WHERE state <> 'up'"
"   UNION ALL SELECT lease, max(asked - shared, 0) * region_size, 0, shared"
"    FROM holding INDEXED BY holding_asked CROSS JOIN d ON key = donor"
"    WHERE (asked > 0 OR shared > 0) AND state = 'up')"
" SELECT key, purpose = 'temp', wanted, l.bytes, l.bytes - ifnull(a.bytes, 0), ifnull(a.away, 0),"
"   key < 0 OR deadline - now_ms() < ttl_ms / 2, ifnull(a.shared, 0)"
" FROM lease_now l LEFT JOIN"
"  (SELECT holder, sum(bytes) AS bytes, sum(away) AS away, sum(shared) AS shared"
"   FROM absent GROUP BY holder) a ON holder = key"
" ORDER BY purpose DESC, waiting_since IS NULL, waiting_since, created, id";

static void
load_members(int64_t unit)
{
	BrokerRows *rows = broker_query(all_members);

	nmembers = 0;
	while (broker_next(rows))
	{
		Member	   *m;
		int64_t		wanted = broker_int(rows, 2);
		bool		silent = broker_int(rows, 6) != 0;

		if (nmembers == members_max)
		{
			members_max = 2 * members_max + 64;
			members = realloc(members, (size_t) members_max * sizeof(Member));
			if (members == NULL)
				rbp_die("out of memory");
		}
		m = &members[nmembers++];
		memset(m, 0, sizeof(*m));
		m->lease = broker_int(rows, 0);
		m->temp = broker_int(rows, 1) != 0;
		m->ungranted = wanted - broker_int(rows, 3);
		m->present = broker_int(rows, 4);
		m->told = broker_int(rows, 7) > 0;
		if (unit > 0)
			m->demand = round_up(silent ? smaller(wanted, m->present) : wanted - broker_int(rows, 5), unit);
	}
}

/* How much less than this size the lease has, in whole units. */
static int64_t
shortfall(const Member *m, int64_t size, int64_t unit)
{
	return size > m->present ? (size - m->present) / unit * unit : 0;
}

/*
 * What the lease gets when all get this much, unless they want less.  temp_keeps:
 * temp leases get no less than they have.
 */
static int64_t
portion(const Member *m, int64_t level, bool temp_keeps)
{
	int64_t		least = temp_keeps && m->temp ? m->present : 0;

	if (level < least)
		level = least;
	return level < m->demand ? level : m->demand;
}

/* Set share and extra of all leases, which are in the order of granting. */
static void
divide(const Memory *memory, bool temp_keeps)
{
	int64_t		low = 0;
	int64_t		high = memory->total / memory->unit;
	int64_t		rest = memory->total;

	/* the highest level that there is memory for */
	while (low < high)
	{
		int64_t		middle = (low + high + 1) / 2;
		int64_t		sum = 0;

		for (int i = 0; i < nmembers; i++)
			sum += portion(&members[i], middle * memory->unit, temp_keeps);
		if (sum <= memory->total)
			low = middle;
		else
			high = middle - 1;
	}
	low *= memory->unit;
	for (int i = 0; i < nmembers; i++)
	{
		members[i].share = portion(&members[i], low, temp_keeps);
		members[i].extra = 0;
		rest -= members[i].share;
	}
	for (int i = 0; i < nmembers && rest >= memory->unit; i++)
	{
		if (members[i].share != low || members[i].demand == low)
			continue;
		members[i].extra = memory->unit;
		rest -= memory->unit;
	}
}

/* Read all leases, and set their share and extra. */
static void
make_shares(const Memory *memory)
{
	bool		temp_short = false;

	load_members(memory->unit);
	if (memory->unit == 0)
		return;
	divide(memory, false);
	for (int i = 0; i < nmembers; i++)
		temp_short |= members[i].temp && shortfall(&members[i], members[i].share, memory->unit) > 0;
	/* then temp leases keep what they have, and buffer leases share the rest */
	if (!temp_short)
		divide(memory, true);
}

/* What the lease could be granted now, up to this size. */
static int64_t
grantable(const Member *m, int64_t size, int64_t unit)
{
	return smaller(shortfall(m, size, unit), round_up(m->ungranted, unit));
}

/*
 * ---- granting ------------------------------------------------------------------
 */

/* A lease that wants more, and what of the free memory is for others; bytes. */
typedef struct Queue
{
	int64_t		free;
	int64_t		unit;			/* the smallest region */
	int64_t		to_share;		/* until it has its share; below 0: beyond it */
	int64_t		to_extra;		/* until it has its extra region, too */
	int64_t		shares;			/* for others that are short of their share */
	int64_t		shares_ahead;	/* that come before it */
	int64_t		extras;			/* for others that may have an extra region */
	int64_t		extras_ahead;
} Queue;

/* Work out the shares, and where this lease stands. */
static void
stand_in_queue(int64_t lease, Queue *queue)
{
	Memory		memory = count_memory();
	bool		ahead = true;

	memset(queue, 0, sizeof(*queue));
	queue->free = memory.free;
	queue->unit = memory.unit;
	if (memory.free == 0)
		return;
	make_shares(&memory);
	for (const Member *m = members; m < members + nmembers; m++)
	{
		int64_t		share = grantable(m, m->share, memory.unit);
		int64_t		extra = grantable(m, m->share + m->extra, memory.unit) - share;

		if (m->lease == lease)
		{
			queue->to_share = m->share - m->present;
			queue->to_extra = queue->to_share + m->extra;
			ahead = false;
			continue;
		}
		queue->shares += share;
		queue->extras += extra;
		if (ahead)
		{
			queue->shares_ahead += share;
			queue->extras_ahead += extra;
		}
	}
}

/*
 * May the lease have one more region of this size?  Then it is taken off.
 *
 * A lease that is short of its share lets shares go first that are ahead of it.  One
 * that may have an extra region lets all shares go first, and extra regions that are
 * ahead.  Any other only gets what nobody is waiting for.
 */
static bool
take_turn(Queue *queue, int64_t size)
{
	int64_t		reserved = queue->shares + queue->extras;

	if (queue->to_share >= queue->unit)
		reserved = queue->shares_ahead;
	else if (queue->to_extra >= queue->unit)
		reserved = queue->shares + queue->extras_ahead;
	if (queue->free - size < reserved)
		return false;
	queue->free -= size;
	queue->to_share -= size;
	queue->to_extra -= size;
	return true;
}

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

void
broker_share_hold(int64_t donor, int64_t lease, int64_t regions)
{
	broker_run("INSERT INTO holding (donor, lease, regions) VALUES (?1, ?2, 0) ON CONFLICT DO NOTHING", INT(donor), INT(lease));
	broker_run("UPDATE holding SET regions = regions + ?3 WHERE donor = ?1 AND lease = ?2",
			   INT(donor), INT(lease), INT(regions));
}

/* Grant the clean regions with the lowest numbers. */
static int64_t
grant_from(int64_t lease, const Source *source)
{
	BrokerRows *rows;
	int64_t		next = 0;
	int64_t		n = 0;

	broker_run("UPDATE donor SET revision = revision + 1 WHERE key = ?1", INT(source->donor));
	rows = broker_query("SELECT number FROM region WHERE donor = ?1"
						" UNION ALL SELECT regions FROM donor WHERE key = ?1 ORDER BY number", INT(source->donor));

	/*
	 * the rows that are inserted have lower numbers than the one that was
	 * read last
	 */
	for (; broker_next(rows); next = broker_int(rows, 0) + 1)
		for (; next < broker_int(rows, 0) && n < source->granted; n++)
			broker_run("INSERT INTO region (donor, number, lease, rev) SELECT key, ?2, ?3, revision FROM donor WHERE key = ?1",
					   INT(source->donor), INT(next++), INT(lease));
	broker_share_hold(source->donor, lease, n);
	return n;
}

int
broker_share_grant(int64_t lease, int64_t ahead)
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
		Queue		queue;
		BrokerRows *rows;
		Source	   *best;
		int			n = 0;

		stand_in_queue(lease, &queue);
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
			   take_turn(&queue, best->region_size))
		{
			best->free--;
			best->held++;
			best->granted++;
			lacks -= best->region_size;
		}
		for (int i = 0; i < n; i++)
			granted += sources[i].granted > 0 ? grant_from(lease, &sources[i]) : 0;
		broker.counters[REGIONS_GRANTED] += granted;
	}
	broker_run("UPDATE lease_term SET waiting_since = iif(?2, coalesce(waiting_since, now_ms()), NULL)"
			   " WHERE lease = ?1", INT(lease), INT(lacks > sizes[1]));
	return granted;
}

bool
broker_share_more_coming(int64_t lease)
{
	return broker_get("SELECT EXISTS (SELECT 1 FROM lease_now WHERE key = ?1 AND bytes < wanted)"
					  " AND EXISTS (SELECT 1 FROM donor_now WHERE state = 'up' AND dirty > 0 AND leased < most)",
					  INT(lease)) != 0;
}

/*
 * ---- taking back ---------------------------------------------------------------
 */

/* A lease's regions on one donor. */
typedef struct Part
{
	int64_t		donor;
	int64_t		size;			/* of a region */
	int64_t		kept;			/* regions that the donor leaves there */
	int64_t		before;			/* holding.shared, as it was and is to be */
	int64_t		shared;
} Part;

/* Where the lease keeps most, of regions up to a size; NULL: there is none. */
static Part *
largest_part(Part *parts, int n, int64_t size)
{
	Part	   *best = NULL;

	for (Part *part = parts; part < parts + n; part++)
	{
		if (part->kept > 0 && part->size <= size && (best == NULL || part->kept > best->kept))
			best = part;
	}
	return best;
}

/*
 * Choose regions of this lease to be asked back: as many as it has too many of,
 * but no more than are needed, and from where it has most, so that it stays
 * spread.  Returns their bytes.
 */
static int64_t
choose_regions(Member *m, int64_t need)
{
	static Part parts[BROKER_MAX_DONORS];	/* under broker.lock */
	BrokerRows *rows = broker_query("SELECT donor_now.key, region_size,"
									"  iif(state = 'up', h.regions - max(asked - shared, 0), 0), shared"
									" FROM holding h JOIN donor_now ON key = h.donor WHERE lease = ?1",
									INT(m->lease));
	int64_t		surplus = m->present - m->share;
	int64_t		chosen = 0;
	int			regions = 0;
	int			n = 0;
	Part	   *part;

	while (broker_next(rows))
	{
		part = &parts[n++];
		part->donor = broker_int(rows, 0);
		part->size = broker_int(rows, 1);
		part->kept = broker_int(rows, 2);
		part->before = broker_int(rows, 3);
		part->shared = 0;
	}
	while (chosen < need && (part = largest_part(parts, n, surplus - chosen)) != NULL)
	{
		part->kept--;
		part->shared++;
		chosen += part->size;
		regions++;
	}
	for (part = parts; part < parts + n; part++)
	{
		if (part->shared != part->before)
			broker_run("UPDATE holding SET shared = ?3 WHERE donor = ?1 AND lease = ?2",
					   INT(part->donor), INT(m->lease), INT(part->shared));
	}
	if (regions > 0 && !m->told)
		broker_log(RBP_LOG_INFO, "SELECT format('lease %s of %s has more than its share of %lld MB:"
				   " %d regions are asked back for others', id, client, ?2, ?3)"
				   " FROM lease WHERE key = ?1", INT(m->lease), INT(m->share >> 20), INT(regions));
	m->chosen = true;
	return chosen;
}

/* The lease that has most above its share, of those not chosen; NULL if none has a unit. */
static Member *
largest_surplus(bool temp, int64_t unit)
{
	Member	   *best = NULL;

	for (Member *m = members; m < members + nmembers; m++)
	{
		if (m->temp == temp && !m->chosen && m->present - m->share >= unit &&
			(best == NULL || m->present - m->share > best->present - best->share))
			best = m;
	}
	return best;
}

void
broker_share_update(void)
{
	Memory		memory;
	int64_t		need_all;		/* bytes that are lacking */
	int64_t		need_temp;		/* ... by temp leases */

	if (!broker_get("SELECT EXISTS (SELECT 1 FROM lease_now"
					"  WHERE bytes < wanted AND deadline - now_ms() >= ttl_ms / 2)"
					" OR EXISTS (SELECT 1 FROM holding WHERE asked > 0 AND shared > 0)"))
		return;

	memory = count_memory();
	make_shares(&memory);
	need_all = need_temp = -(memory.free + memory.coming);
	for (const Member *m = members; m < members + nmembers && memory.unit > 0; m++)
	{
		need_all += shortfall(m, m->share, memory.unit);
		need_temp += m->temp ? shortfall(m, m->share, memory.unit) : 0;
	}

	/*
	 * Temp leases give to temp leases only, which are first to get what
	 * buffer leases give.
	 */
	for (int temp = 0; temp <= 1; temp++)
	{
		Member	   *m;

		while (smaller(need_all, temp ? need_temp : need_all) > 0 && (m = largest_surplus(temp, memory.unit)) != NULL)
		{
			int64_t		chosen = choose_regions(m, smaller(need_all, temp ? need_temp : need_all));

			need_all -= chosen;
			need_temp -= chosen;
		}
	}
	for (const Member *m = members; m < members + nmembers; m++)
	{
		if (m->told && !m->chosen)
			broker_run("UPDATE holding SET shared = 0 WHERE lease = ?1 AND shared > 0", INT(m->lease));
	}
}
