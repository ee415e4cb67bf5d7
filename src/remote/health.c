/*-------------------------------------------------------------------------
 *
 * health.c
 *	  Donors' health: doubts, debts, who is avoided, and the pusher's probes.
 *
 * A late answer is a miss for the one who waited, and puts the donor in
 * doubt: that process leaves the donor alone until somebody is known to have
 * been answered since, so that a donor that hangs costs each process one
 * wait.  The pusher, woken for it, asks with a ping that is given more time.
 * No answer, or a lost connection, and the donor is "avoided" by all: page
 * reads go to the disk without any wait, and only the pusher talks to it, by
 * probes, at once and then with exponential back-off.
 *
 * A donor that answers, but too late again and again, is told by its debt:
 * each timeout adds what about a hundred answers in time take off.  Above a
 * limit it is avoided too, and each time that this happens without a time of
 * calm between, it is kept off for twice as long although it answers probes.
 *
 * A request for what is nowhere else (RBP_REMOTE_PATIENT) goes to any donor,
 * whatever is thought of it, and is given so much time that an answer which
 * does not come in it is trouble at once.  Health is the donor's: what one
 * pool's connection finds out, holds for the other's.
 *
 * What an event says depends on the transport:
 *
 *						tcp				verbs			shm
 *	read done			ends doubts,	pays debt		nothing
 *						pays debt
 *	read late			doubt, debt		doubt, debt		doubt
 *	ping, handshake		ends doubts		ends doubts		ends doubts
 *	connecting is late	doubt			nothing			doubt
 *
 * Over verbs and shm reads need nothing of the donor's processor (one_sided),
 * so that they say nothing about it: or else those that are connected would
 * end, again and again, the doubts of those who wait for a handshake or a
 * mapping.  Over shm what was late can only have been a mapping, since the
 * rest is memcpy() (local), and a mapping now and then says little about
 * reads: no debt.  Over verbs a read crosses a network, which can be slow.
 * Connecting over verbs takes long even if all is well (costly), and is gone
 * on with in the background.  So a donor whose process is stopped serves those
 * that have what they need over verbs and shm, until a ping or a handshake
 * fails.
 *
 * Everything shared here is atomics; of several processes that notice the
 * same, the one whose exchange succeeds does the rest.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/latch.h"

#include "base/guc.h"
#include "base/stats.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"
#include "remote/remote_internal.h"
#include "transport/transport.h"

#define BACKOFF_LAST_NS		INT64CONST(10000000000)
#define CALM_NS				INT64CONST(10000000000) /* forgives old trouble */
#define NOMEM_RETRY_NS		INT64CONST(1000000000)

/* A wait costs a query about as much as a hundred hits save. */
#define DEBT_OF_TIMEOUT		100
#define DEBT_LIMIT			2000

/* A ping for a donor in doubt is given so many times io_timeout. */
#define DOUBT_FACTOR		5
#define DOUBT_LIMIT_NS		INT64CONST(1000000000)	/* without a pusher */

int64		rbp_remote_doubt_since[RBP_MAX_DONORS];

void
rbp_remote_health_reset(RemoteDonor *d)
{
	pg_atomic_init_u32(&d->avoided, 0);
	pg_atomic_init_u64(&d->avoid_until, 0);
	pg_atomic_init_u64(&d->probe_at, 0);
	pg_atomic_init_u32(&d->troubles, 0);
	pg_atomic_init_u32(&d->debt, 0);
	pg_atomic_init_u32(&d->doubt, 0);
	pg_atomic_init_u64(&d->cleared_at, 0);
	d->probe_backoff = 0;
}

void
rbp_remote_recheck_lease(RbpPool pool)
{
	Latch	   *latch = rbp_remote_shared->lease_latch;

	if (pg_atomic_exchange_u32(&rbp_remote_shared->leases[pool].recheck, 1) == 0 &&
		latch != NULL)
		SetLatch(latch);
}

/* How long a donor is kept off after this many troubles in a row. */
static int64
hold_off(uint32 troubles)
{
	int64		ns = RBP_BACKOFF_FIRST_NS;

	/* the first is forgiven as soon as a probe succeeds */
	if (troubles <= 1)
		return 0;
	for (uint32 i = 2; i < troubles && ns < BACKOFF_LAST_NS; i++)
		ns *= 2;
	return Min(ns, BACKOFF_LAST_NS);
}

/*
 * From now on nobody uses the donor.  False if that is so already; else
 * avoid_done() is to follow.
 */
static bool
avoid(RemoteDonor *d)
{
	int64		now = rbp_now_ns();
	uint32		troubles;

	if (pg_atomic_read_u32(&d->avoided) != 0 ||
		pg_atomic_exchange_u32(&d->avoided, 1) != 0)
		return false;
	if (now - (int64) pg_atomic_read_u64(&d->avoid_until) > CALM_NS)
		pg_atomic_write_u32(&d->troubles, 0);
	troubles = pg_atomic_add_fetch_u32(&d->troubles, 1);
	pg_atomic_write_u64(&d->avoid_until, (uint64) (now + hold_off(troubles)));
	pg_atomic_write_u64(&d->probe_at, (uint64) now);
	pg_atomic_fetch_add_u32(&d->times_avoided, 1);
	rbp_remote_note_state(d);
	return true;
}

/* The pusher sees to it from here on. */
static void
avoid_done(void)
{
	pg_atomic_fetch_add_u32(&rbp_remote_shared->avoided, 1);
	rbp_remote_wake();
}

void
rbp_remote_donor_no_way(RemoteDonor *d)
{
	if (avoid(d))
		avoid_done();
}

void
rbp_remote_donor_trouble(RemoteDonor *d, bool lost)
{
	pg_atomic_fetch_add_u64(lost ? &stripe_of(d)->failures :
							&stripe_of(d)->timeouts, 1);
	if (!avoid(d))
		return;

	/*
	 * What has broken one connection has likely broken all.  With a new
	 * serial the others are closed without being tried, and so without
	 * counting as troubles of their own.
	 */
	if (lost)
	{
		(void) rbp_remote_conns_stale(&d->serial);
		for (int pool = 0; pool < RBP_POOLS; pool++)
			if (d->known[pool])
				rbp_remote_recheck_lease((RbpPool) pool);
	}
	avoid_done();
}

/* The pusher shall ask the donor; this process leaves it alone meanwhile. */
static void
raise_doubt(RemoteDonor *d)
{
	rbp_remote_doubt_since[d - rbp_remote_shared->donors] = rbp_now_ns();
	pg_atomic_write_u32(&d->doubt, 1);
	if (pg_atomic_exchange_u32(&rbp_remote_shared->doubts, 1) == 0)
		rbp_remote_wake();
}

void
rbp_remote_donor_late(RemoteDonor *d, bool makes_debt)
{
	if (makes_debt &&
		pg_atomic_add_fetch_u32(&d->debt, DEBT_OF_TIMEOUT) >= DEBT_LIMIT)
	{
		rbp_remote_doubt_since[d - rbp_remote_shared->donors] = rbp_now_ns();
		pg_atomic_write_u32(&d->debt, 0);
		rbp_remote_note_error(d, DONOR_ERROR_OFTEN_LATE,
							  pg_atomic_read_u32(&d->transport), RBP_TIMEOUT);
		rbp_remote_donor_trouble(d, false);
		return;
	}
	pg_atomic_fetch_add_u64(&stripe_of(d)->timeouts, 1);
	raise_doubt(d);
}

void
rbp_remote_end_doubt(RemoteDonor *d)
{
	/* the time after the exchange: who doubts from now on is not cleared */
	if (pg_atomic_exchange_u32(&d->doubt, 0) != 0)
		pg_atomic_write_u64(&d->cleared_at, (uint64) rbp_now_ns());
}

bool
rbp_remote_still_in_doubt(int donor)
{
	RemoteDonor *d = &rbp_remote_shared->donors[donor];
	int64		since = rbp_remote_doubt_since[donor];
	int64		now = rbp_now_ns();

	if ((int64) pg_atomic_read_u64(&d->cleared_at) <= since &&
		now - since < Max(DOUBT_LIMIT_NS, 20 * rbp_guc_io_timeout_ns()))
		return true;
	rbp_remote_doubt_since[donor] = 0;
	return false;
}

void
rbp_remote_unavoid(RemoteDonor *d)
{
	d->probe_backoff = 0;
	pg_atomic_write_u32(&d->debt, 0);
	pg_atomic_write_u64(&d->cleared_at, (uint64) rbp_now_ns());
	pg_atomic_write_u32(&d->doubt, 0);
	if (pg_atomic_exchange_u32(&d->avoided, 0) == 1)
	{
		pg_atomic_fetch_sub_u32(&rbp_remote_shared->avoided, 1);
		rbp_remote_note_state(d);
	}
}

/*
 * ---- failures -----------------------------------------------------------------
 */

/* Note it as the donor's last error. */
static void
note_failure(int ci, bool connecting, RbpStatus status)
{
	rbp_remote_note_error(&rbp_remote_shared->donors[conn_donor(ci)],
						  connecting ? DONOR_ERROR_CONNECT : DONOR_ERROR_REQUEST,
						  rbp_remote_conns[ci].ops->bit, status);
}

/* A connection was lost, or could not be made. */
static void
account_loss(int ci, bool connecting, RbpStatus status)
{
	RemoteDonor *d = &rbp_remote_shared->donors[conn_donor(ci)];
	LocalConn  *c = &rbp_remote_conns[ci];
	bool		denied = c->state == CONN_DENIED;

	if (!connecting)
		rbp_remote_conn_close(ci);

	/*
	 * The end of the lease, or of a region in it, may end the connection over
	 * verbs.  That says nothing about the donor, and is known already.
	 */
	if (denied)
		return;

	/* of an old connection others know already; nor is the end of its lease news */
	if (c->donor_serial != pg_atomic_read_u32(&d->serial) ||
		c->lease_serial != pg_atomic_read_u32(&rbp_remote_shared->leases[conn_pool(ci)].serial))
		return;
	note_failure(ci, connecting, status);

	/*
	 * A costly connection takes resources of our device, too, and that it
	 * could not be made says little about those that there are.
	 */
	if (connecting && c->ops->costly)
	{
		pg_atomic_fetch_add_u64(&stripe_of(d)->failures, 1);
		raise_doubt(d);
	}
	else
		rbp_remote_donor_trouble(d, true);
}

void
rbp_remote_account_failure(int ci, RbpStatus status, bool connecting,
						   bool patient)
{
	RemoteDonor *d = &rbp_remote_shared->donors[conn_donor(ci)];
	LocalConn  *c = &rbp_remote_conns[ci];

	switch (status)
	{
		case RBP_TIMEOUT:
			rbp_stats_count(RBP_COUNT_TIMEOUTS, 1);
			note_failure(ci, connecting, status);
			if (patient)
			{
				rbp_remote_donor_trouble(d, false);
				if (!connecting)
					rbp_remote_conn_close(ci);
				break;
			}
			rbp_remote_donor_late(d, !connecting && !c->ops->local);

			/*
			 * A late answer alone leaves the connection in order; after a
			 * second one in a row a new connection is the better bet.  But to
			 * take registered memory back from a device ends the connection.
			 */
			if (!connecting && (++c->timeouts >= 2 || c->mr != NULL))
				rbp_remote_conn_close(ci);
			break;
		case RBP_CONNLOST:
		case RBP_PROTOCOL:
			rbp_stats_count(RBP_COUNT_IO_ERRORS, 1);
			account_loss(ci, connecting, status);
			break;
		case RBP_NOMEM:
			/* a shortage of ours, or of the donor's room for clients: others go on */
			rbp_stats_count(RBP_COUNT_IO_ERRORS, 1);
			note_failure(ci, connecting, status);
			rbp_remote_conn_close(ci);
			c->retry_at = rbp_now_ns() + NOMEM_RETRY_NS;
			break;
		case RBP_DENIED:
			rbp_stats_count(RBP_COUNT_IO_ERRORS, 1);
			pg_atomic_fetch_add_u64(&stripe_of(d)->failures, 1);
			note_failure(ci, connecting, status);
			if (!connecting)
				c->state = CONN_DENIED;
			else
			{
				/*
				 * The lease is not known there, or not any more: one look in
				 * a while is enough for all processes together.
				 */
				pg_atomic_write_u64(&d->refused_until[conn_pool(ci)],
									(uint64) (rbp_now_ns() + RBP_RECONNECT_NS));
			}
			rbp_remote_recheck_lease(conn_pool(ci));
			break;
		case RBP_CANCELED:
		case RBP_INVALID:
		case RBP_OK:
		case RBP_INPROGRESS:
			break;
	}
}

/*
 * ---- probes -----------------------------------------------------------------
 */

/*
 * One round trip to a donor that is avoided or in doubt.  ci: from
 * conn_to_ask(), whose answer may be another one the next time.
 */
static RbpStatus
probe(int ci, int64 timeout_ns)
{
	int64		now = rbp_now_ns();
	int64		deadline_ns = now + timeout_ns;
	LocalConn  *c = &rbp_remote_conns[ci];
	RbpIo		io = {.kind = RBP_IO_PING,.status = RBP_INVALID};
	RbpStatus	status;

	/* What a denied request has ended says nothing about the donor. */
	if (c->state == CONN_DENIED)
		rbp_remote_conn_close(ci);

	/* The pusher can afford to wait for a connection each time. */
	c->retry_at = 0;
	c->waited = false;
	rbp_remote_doubt_since[conn_donor(ci)] = 0;
	status = rbp_remote_conn_get(ci, 0, false, now, deadline_ns);
	if (status != RBP_OK)
	{
		/* that a costly one is not made yet is no error */
		if (status != RBP_CANCELED &&
			!(status == RBP_TIMEOUT && c->state == CONN_CONNECTING && c->ops->costly))
			note_failure(ci, true, status);
		return status;
	}
	if (c->ops->submit(c->conn, &io, 1) == RBP_OK)
		(void) c->ops->wait(c->conn, &io, 1, deadline_ns);
	if (io.status != RBP_OK)
		note_failure(ci, false, io.status);
	if (io.status == RBP_OK)
		c->timeouts = 0;
	else if (io.status != RBP_TIMEOUT || ++c->timeouts >= 2)
		rbp_remote_conn_close(ci);
	return io.status;
}

/*
 * Ask a donor that is in doubt.  False: that is not decided yet, ask again
 * soon.
 */
static bool
settle_doubt(int donor)
{
	RemoteDonor *d = &rbp_remote_shared->donors[donor];
	int			ci = conn_to_ask(donor);
	const LocalConn *c = &rbp_remote_conns[ci];
	RbpStatus	status = probe(ci, rbp_guc_io_timeout_ns() * DOUBT_FACTOR);

	switch (status)
	{
		case RBP_OK:
			rbp_remote_end_doubt(d);
			return true;
		case RBP_TIMEOUT:
			/* a connection that takes long, if all is well, is no answer */
			if (c->state == CONN_CONNECTING && c->ops->costly)
				return false;
			rbp_remote_donor_trouble(d, false);
			return true;
		case RBP_CONNLOST:
		case RBP_PROTOCOL:
			rbp_remote_donor_trouble(d, true);
			return true;
		case RBP_DENIED:
			rbp_remote_recheck_lease(conn_pool(ci));
			return false;
		default:
			/* that tells of us, not of the donor */
			return false;
	}
}

/*
 * Probe a donor that is avoided, if it is time to.  Returns when it is next,
 * or 0 if it is avoided no longer.
 */
static int64
probe_avoided(int donor)
{
	RemoteDonor *d = &rbp_remote_shared->donors[donor];
	int64		now = rbp_now_ns();
	int64		due = (int64) pg_atomic_read_u64(&d->probe_at);
	int64		until = (int64) pg_atomic_read_u64(&d->avoid_until);
	int			ci = conn_to_ask(donor);
	LocalConn  *c = &rbp_remote_conns[ci];
	bool		fresh = !is_ready(c);

	if (due > now)
		return due;
	if (until > now)
		due = until;
	else if (probe(ci, rbp_guc_io_timeout_ns()) == RBP_OK)
	{
		/*
		 * It took a new connection to reach it, so everybody shall make one,
		 * instead of finding out one by one.
		 */
		if (fresh)
			c->donor_serial = rbp_remote_conns_stale(&d->serial);
		rbp_remote_unavoid(d);
		rbp_remote_conn_end_detour_soon(d);
		return 0;
	}
	else if (c->state == CONN_CONNECTING)
		due = rbp_now_ns() + RBP_BACKOFF_FIRST_NS;	/* go on */
	else
	{
		if (!is_ready(c))
			rbp_remote_conn_close(ci);
		d->probe_backoff = d->probe_backoff == 0 ? RBP_BACKOFF_FIRST_NS :
			Min(d->probe_backoff * 2, BACKOFF_LAST_NS);
		due = rbp_now_ns() + d->probe_backoff;
	}
	pg_atomic_write_u64(&d->probe_at, (uint64) due);
	return due;
}

int64
rbp_remote_probe(void)
{
	int64		next = -1;

	if (pg_atomic_read_u32(&rbp_remote_shared->doubts) == 0 &&
		pg_atomic_read_u32(&rbp_remote_shared->avoided) == 0)
		return -1;
	/* a full barrier: what is doubted from here on sets it again */
	(void) pg_atomic_exchange_u32(&rbp_remote_shared->doubts, 0);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		RemoteDonor *d = &rbp_remote_shared->donors[i];
		int64		left;

		if (pg_atomic_read_u32(&d->avoided) == 0 &&
			pg_atomic_read_u32(&d->doubt) == 0)
			continue;
		if (!donor_known(d))
		{
			/* there is no lease to ask it under */
			rbp_remote_unavoid(d);
			continue;
		}
		if (pg_atomic_read_u32(&d->avoided) == 0)
		{
			if (!settle_doubt(i))
			{
				pg_atomic_write_u32(&rbp_remote_shared->doubts, 1);
				if (next < 0 || next > RBP_BACKOFF_FIRST_NS)
					next = RBP_BACKOFF_FIRST_NS;
				continue;
			}
			if (pg_atomic_read_u32(&d->avoided) == 0)
				continue;
		}
		left = probe_avoided(i);
		if (left == 0)
			continue;
		left = Max(left - rbp_now_ns(), 0);
		if (next < 0 || left < next)
			next = left;
	}
	return next;
}
