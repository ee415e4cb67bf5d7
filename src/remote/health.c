/*-------------------------------------------------------------------------
 *
 * health.c
 *	  Donors' health: what events do to a donor's breaker; the pusher's
 *	  probes.
 *
 * A late answer is a miss for the process that waited, and makes the donor
 * suspect: that process leaves the donor alone until some process is known to
 * have been answered since.  So a donor that hangs costs each process one
 * wait.  The pusher is woken and sends a ping, with a longer timeout.  If that
 * is not answered, or a connection is lost, the donor is down: page reads go
 * to disk without waiting, and only the pusher talks to the donor, by probes.
 *
 * A donor that answers, but is late again and again, is detected by its
 * penalty: each timeout adds as much as about a hundred answers in time take
 * off.  Above a limit the donor is down too, and each time that this happens
 * without a quiet period in between, it stays down for twice as long although
 * it answers pings.
 *
 * A donor that returns wrong bytes does so in time, and answers pings.  Each
 * such page costs a read in vain, and something is broken that does not mend
 * itself.  So after a number of them within a minute the donor is down, and
 * each time for twice as long.
 *
 * A request for data with no other copy (RBP_REMOTE_PATIENT) goes to any
 * donor, whatever the state of its breaker, and has such a long timeout that a
 * donor which does not answer in time is down.  Health is a property of the
 * donor: what is found out over one pool's connection applies to the other's.
 *
 * The effect of an event on the breaker depends on the transport.  A donor
 * that has answered what was asked after it had become suspect is not suspect
 * any more; a success takes a little off its penalty.
 *
 *						tcp				verbs			shm
 *	read done			answered,		success			-
 *						success
 *	connection lost		down			down			down
 *	 while nobody waits	suspect			suspect			suspect
 *	read late			suspect,		suspect,		suspect
 *						penalty			penalty
 *	ping, handshake		answered		answered		answered
 *	connecting is late	suspect			-				suspect
 *
 * Over verbs and shm, reads do not involve the donor's processor (one_sided),
 * so their success says nothing about it.  If it did, processes that are
 * connected would make a donor look alive whose process hangs, and each
 * process that needs a handshake or a mapping would wait in vain.  Over shm
 * only a mapping can be late, since the rest is memcpy() (local); an
 * occasional late mapping says little about reads, so it adds no penalty.
 * Over verbs a read crosses a network, which can be slow.
 * Connecting over verbs takes long even if all is well (costly), and continues
 * in the background.  So a donor whose process is stopped still serves
 * processes that are connected over verbs and shm, until a ping or a handshake
 * fails.
 *
 * What is read ahead may be looked at long after its connection was lost, or
 * never be needed.  If nobody waits for it, the loss says little about the
 * donor as it is now, which others may be reading from: it is for the pusher's
 * ping to find out.
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

#define NOMEM_RETRY_NS		INT64CONST(1000000000)

/* Timeout of a ping for a suspect donor, in units of io_timeout */
#define PING_TIMEOUTS		5

/*
 * A process forgets its suspicion after this time, or after SUSPECT_TIMEOUTS
 * of io_timeout if that is longer, since nobody pings if no pusher runs.  The
 * pusher takes less, even if it is in the middle of a batch.
 */
#define SUSPECT_LIMIT_NS	INT64CONST(1000000000)
#define SUSPECT_TIMEOUTS	20

/*
 * When a donor is first down, it is probed at once.  If it is down again soon
 * after, probes are delayed.
 */
static const RbpBreakerTimes donor_times = {
	.first_delay = 0,
	.base_delay = RBP_BACKOFF_FIRST_NS,
	.max_delay = INT64CONST(10000000000),
	.reset_after = INT64CONST(10000000000),
};

/* A probe cannot tell whether a donor still returns wrong bytes: wait first. */
static const RbpBreakerTimes wrong_bytes_times = {
	.first_delay = INT64CONST(1000000000),
	.base_delay = INT64CONST(2000000000),
	.max_delay = INT64CONST(300000000000),
	.reset_after = INT64CONST(600000000000),
};

int64		rbp_remote_suspect_since[RBP_MAX_DONORS];

void
rbp_remote_recheck_lease(RbpPool pool)
{
	Latch	   *latch = rbp_remote_shared->lease_latch;

	if (pg_atomic_exchange_u32(&rbp_remote_shared->leases[pool].recheck, 1) == 0 &&
		latch != NULL)
		SetLatch(latch);
}

/* Mark the donor as down; see rbp_remote_donor_down(). */
static void
trip(RbpRemoteDonor *d, const RbpBreakerTimes *times, bool lost)
{
	if (!rbp_breaker_trip(&d->breaker, times))
		return;
	pg_atomic_fetch_add_u32(&d->times_down, 1);
	rbp_remote_note_state(d);

	/*
	 * What has broken one connection has likely broken all.  With a new
	 * serial the others are closed without being tried, and so do not trip
	 * the breaker again.
	 */
	if (lost)
	{
		(void) rbp_remote_make_conns_stale(&d->serial);
		for (int pool = 0; pool < RBP_POOLS; pool++)
			if (d->known[pool])
				rbp_remote_recheck_lease((RbpPool) pool);
	}
	rbp_remote_wake();
}

void
rbp_remote_donor_down(RbpRemoteDonor *d, bool lost)
{
	trip(d, &donor_times, lost);
}

void
rbp_remote_wrong_bytes(uint32 slot)
{
	int			donor = rbp_remote_slot_donor(slot);
	RbpRemoteDonor *d;

	if (donor < 0)
		return;
	d = &rbp_remote_shared->donors[donor];
	donor_count(d, RBP_DONOR_FAILURES, 1);
	rbp_remote_note_error(d, DONOR_ERROR_WRONG_BYTES, pg_atomic_read_u32(&d->transport),
						  RBP_OK);
	if (rbp_breaker_wrong(&d->breaker))
		trip(d, &wrong_bytes_times, false);
}

void
rbp_remote_donor_failed(RbpRemoteDonor *d, bool lost)
{
	donor_count(d, lost ? RBP_DONOR_FAILURES : RBP_DONOR_TIMEOUTS, 1);
	rbp_remote_donor_down(d, lost);
}

/*
 * Have the pusher ping the donor, which this process leaves alone meanwhile.
 */
static void
suspect(RbpRemoteDonor *d)
{
	/* take the time before the change: see note_closed() in breaker.c */
	rbp_remote_suspect_since[d - rbp_remote_shared->donors] = rbp_now_ns();
	if (rbp_breaker_suspect(&d->breaker))
		rbp_remote_wake();
}

/*
 * An answer was late.  penalty: it was the answer to a read or write over a
 * network, so it tells how fast these are.
 */
static void
donor_late(RbpRemoteDonor *d, bool penalty)
{
	suspect(d);
	if (penalty && rbp_breaker_penalize(&d->breaker))
	{
		rbp_remote_note_error(d, DONOR_ERROR_OFTEN_LATE,
							  pg_atomic_read_u32(&d->transport), RBP_TIMEOUT);
		rbp_remote_donor_failed(d, false);
	}
	else
		donor_count(d, RBP_DONOR_TIMEOUTS, 1);
}

bool
rbp_remote_still_suspect(int donor)
{
	int64		since = rbp_remote_suspect_since[donor];
	int64		closed_at =
	(int64) pg_atomic_read_u64(&rbp_remote_shared->donors[donor].breaker.closed_at);

	if (closed_at <= since &&
		rbp_now_ns() - since < Max(SUSPECT_LIMIT_NS, SUSPECT_TIMEOUTS * rbp_guc_io_timeout_ns()))
		return true;
	rbp_remote_suspect_since[donor] = 0;
	return false;
}

void
rbp_remote_donor_up(RbpRemoteDonor *d)
{
	if (rbp_breaker_close(&d->breaker))
		rbp_remote_note_state(d);
}

/*
 * ---- failures ------------------------------------------------------------
 */

/* Record a failure as the donor's last error. */
static void
note_failure(int ci, bool connecting, RbpStatus status)
{
	rbp_remote_note_error(&rbp_remote_shared->donors[conn_donor(ci)],
						  connecting ? DONOR_ERROR_CONNECT : DONOR_ERROR_REQUEST,
						  rbp_remote_conns[ci].ops->bit, status);
}

/*
 * Account for a connection that was lost, or could not be made.  awaited: some
 * process needs it now.
 */
static void
account_loss(int ci, bool connecting, bool awaited, RbpStatus status)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[conn_donor(ci)];
	RbpLocalConn *c = &rbp_remote_conns[ci];
	bool		denied = c->state == CONN_DENIED;

	if (!connecting)
		rbp_remote_conn_close(ci);

	/*
	 * Over verbs, the end of the lease or of one of its regions may end the
	 * connection.  That is no sign of a failing donor, and is already known.
	 */
	if (denied)
		return;

	/*
	 * not news: others know if the connection is stale, or its lease has
	 * ended
	 */
	if (c->donor_serial != pg_atomic_read_u32(&d->serial) ||
		c->lease_serial != pg_atomic_read_u32(&rbp_remote_shared->leases[conn_pool(ci)].serial))
		return;
	note_failure(ci, connecting, status);

	if (!awaited)
	{
		suspect(d);
		return;
	}

	/*
	 * A costly connection takes resources of our device, too.  That it could
	 * not be made says little about existing ones.
	 */
	if (connecting && c->ops->costly)
	{
		donor_count(d, RBP_DONOR_FAILURES, 1);
		suspect(d);
	}
	else
		rbp_remote_donor_failed(d, true);
}

void
rbp_remote_account_failure(int ci, RbpStatus status, bool connecting,
						   bool awaited, bool down)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[conn_donor(ci)];
	RbpLocalConn *c = &rbp_remote_conns[ci];

	switch (status)
	{
		case RBP_TIMEOUT:
			rbp_stats_count(RBP_COUNT_TIMEOUTS, 1);
			note_failure(ci, connecting, status);
			if (down)
			{
				rbp_remote_donor_failed(d, false);
				if (!connecting)
					rbp_remote_conn_close(ci);
				break;
			}
			donor_late(d, !connecting && !c->ops->local);

			/*
			 * The connection is usable after a late answer, but after two in
			 * a row a new one is more promising.  With registered memory it
			 * is closed at once, because taking that memory back from the
			 * device ends the connection.
			 */
			if (!connecting && (++c->timeouts >= 2 || c->mr != NULL))
				rbp_remote_conn_close(ci);
			break;
		case RBP_CONNLOST:
		case RBP_PROTOCOL:
			rbp_stats_count(RBP_COUNT_IO_ERRORS, 1);
			account_loss(ci, connecting, awaited, status);
			break;
		case RBP_NOMEM:
		case RBP_BUSY:
		case RBP_NOROUTE:
		case RBP_OTHER_DEVICE:
		case RBP_BAD_DEVICE:
		case RBP_NOLIBRARY:

			/*
			 * This process is out of memory, or this machine has no usable
			 * device or no library for it, or the donor has too many clients:
			 * connections of other processes may go on, so the donor is not
			 * marked.
			 */
			rbp_stats_count(RBP_COUNT_IO_ERRORS, 1);
			note_failure(ci, connecting, status);
			rbp_remote_conn_close(ci);
			c->retry_at = rbp_now_ns() + NOMEM_RETRY_NS;
			break;
		case RBP_DENIED:
			rbp_stats_count(RBP_COUNT_IO_ERRORS, 1);
			donor_count(d, RBP_DONOR_FAILURES, 1);
			note_failure(ci, connecting, status);
			if (!connecting)
				c->state = CONN_DENIED;
			else
			{
				/*
				 * The donor does not know the lease, or not any more.  It is
				 * enough if one process tries again from time to time.
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
 * ---- probes --------------------------------------------------------------
 */

/*
 * Make one round trip to a donor that is suspect or down.  ci: from
 * conn_for_probe(), which may return another one the next time.
 */
static RbpStatus
probe(int ci, int64 timeout_ns)
{
	int64		now = rbp_now_ns();
	int64		deadline_ns = now + timeout_ns;
	RbpLocalConn *c = &rbp_remote_conns[ci];
	RbpIo		io = {.kind = RBP_IO_PING,.status = RBP_INVALID};
	RbpStatus	status;

	/*
	 * A denied request is no sign of a failing donor, even if it has ended
	 * the connection.
	 */
	if (c->state == CONN_DENIED)
		rbp_remote_conn_close(ci);

	/* The pusher can afford to wait for the connection each time. */
	c->retry_at = 0;
	c->waited = false;
	rbp_remote_suspect_since[conn_donor(ci)] = 0;
	status = rbp_remote_conn_get(ci, 0, false, now, deadline_ns);
	if (status != RBP_OK)
	{
		/* it is no error that a costly one is not ready yet */
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
 * Ping a suspect donor.  Returns ns until it is to be pinged again, or -1 if
 * its state is settled.
 */
static int64
ping_suspect(int donor)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[donor];
	int			ci = conn_for_probe(donor);
	const RbpLocalConn *c = &rbp_remote_conns[ci];
	int64		asked_at = rbp_now_ns();

	switch (probe(ci, rbp_guc_io_timeout_ns() * PING_TIMEOUTS))
	{
		case RBP_OK:
		case RBP_BUSY:			/* that, too, is an answer */
			rbp_breaker_clear_suspicion(&d->breaker, asked_at);
			/* a process may have met trouble meanwhile: ask again */
			return breaker_state(&d->breaker) == BREAKER_SUSPECT ? RBP_BACKOFF_FIRST_NS : -1;
		case RBP_TIMEOUT:
			/* a costly connection may take long although all is well */
			if (c->state == CONN_CONNECTING && c->ops->costly)
				break;
			rbp_remote_donor_failed(d, false);
			return -1;
		case RBP_CONNLOST:
		case RBP_PROTOCOL:
			rbp_remote_donor_failed(d, true);
			return -1;
		case RBP_DENIED:
			rbp_remote_recheck_lease(conn_pool(ci));
			break;
		default:
			/* a failure on this side */
			break;
	}
	return RBP_BACKOFF_FIRST_NS;
}

/*
 * Probe a donor that is down, if that is due.  Returns ns until the next
 * probe, or -1 if the donor is not down any more.
 */
static int64
probe_down(int donor)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[donor];
	int			ci = conn_for_probe(donor);
	RbpLocalConn *c = &rbp_remote_conns[ci];
	bool		fresh = !is_ready(c);
	int64		left = (int64) pg_atomic_read_u64(&d->breaker.retry_at) - rbp_now_ns();
	RbpStatus	status;

	if (left > 0)
		return left;
	status = probe(ci, rbp_guc_io_timeout_ns());
	/* a donor that refuses a connection has answered */
	if (status == RBP_OK || status == RBP_BUSY)
	{
		/*
		 * A new connection was needed to reach it, so have all processes
		 * reconnect, instead of each finding that out.
		 */
		if (fresh && status == RBP_OK)
			c->donor_serial = rbp_remote_make_conns_stale(&d->serial);
		rbp_remote_donor_up(d);
		/* the preferred transport may work again */
		breaker_reset_backoff(&d->downgrade);
		return -1;
	}
	/* no failure yet, since connecting goes on between probes */
	if (c->state == CONN_CONNECTING)
	{
		pg_atomic_write_u64(&d->breaker.retry_at,
							(uint64) (rbp_now_ns() + RBP_BACKOFF_FIRST_NS));
		return RBP_BACKOFF_FIRST_NS;
	}
	if (!is_ready(c))
		rbp_remote_conn_close(ci);
	return rbp_breaker_probe_failed(&d->breaker, &donor_times);
}

int64
rbp_remote_probe(void)
{
	int64		next = -1;

	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		RbpRemoteDonor *d = &rbp_remote_shared->donors[i];
		int64		wait = -1;

		if (breaker_state(&d->breaker) == BREAKER_CLOSED)
			continue;
		if (!donor_known(d))
		{
			/* without a lease it cannot be asked */
			rbp_remote_donor_up(d);
			continue;
		}
		if (breaker_state(&d->breaker) == BREAKER_SUSPECT)
			wait = ping_suspect(i);
		if (donor_is_down(d))
			wait = probe_down(i);
		if (wait >= 0 && (next < 0 || wait < next))
			next = wait;
	}
	return next;
}
