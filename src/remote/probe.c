/*-------------------------------------------------------------------------
 *
 * probe.c
 *	  The pusher's probes of links that are suspect or open.
 *
 * A donor, ANY_LINK, is probed by a ping, for which the pusher waits.  The link
 * of a transport is probed by a trial: a connection over it, for which the
 * pusher never waits; one at a time.  Besides, the pusher looks for donors that
 * no transport leads to, and for transports that have become usable.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/ipc.h"

#include "base/guc.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"
#include "remote/remote_internal.h"
#include "transport/transport.h"

/* Timeout of a ping for a suspect donor, in units of io_timeout */
#define PING_TIMEOUTS		5

/* The connection that tests a transport, with what RbpLocalConn has for that */
static RbpLocalConn trial;

/*
 * ---- pings ---------------------------------------------------------------
 */

/*
 * Make one round trip to a donor that is suspect or down.  conn_for_probe()
 * may return another connection the next time.
 */
static RbpStatus
ping(RbpLocalConn *c, int64 timeout_ns)
{
	int64		now = rbp_now_ns();
	int64		deadline_ns = now + timeout_ns;
	RbpIo		io = {.kind = RBP_IO_PING,.status = RBP_INVALID};
	RbpStatus	status;

	/*
	 * A denied request is no sign of a failing donor, even if it has ended
	 * the connection.
	 */
	if (c->state == CONN_DENIED)
		rbp_remote_conn_close(c);

	/* The pusher can afford to wait for the connection each time. */
	c->retry_at = 0;
	c->waited = false;
	rbp_link_holds[c->donor][ANY_LINK].until = 0;
	status = rbp_remote_conn_get(c, USE_PROBE, now, deadline_ns);
	if (status != RBP_OK)
		return status;
	if (c->ops->submit(c->conn, &io, 1) == RBP_OK)
		(void) c->ops->wait(c->conn, &io, 1, deadline_ns);
	if (io.status == RBP_OK)
		c->timeouts = 0;
	else
		(void) rbp_remote_conn_failed(c, ON_PING, rbp_link_event(io.status), io.status);
	return io.status;
}

/* Ping a suspect donor.  Returns ns until the next ping, or -1. */
static int64
ping_suspect(int donor)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[donor];
	RbpLocalConn *c = conn_for_probe(donor);
	int64		asked_at = rbp_now_ns();
	RbpStatus	status = ping(c, rbp_guc_io_timeout_ns() * PING_TIMEOUTS);

	/* a donor that refuses a connection has answered */
	if (status == RBP_OK || status == RBP_BUSY)
		rbp_link_done(c, c->ops, ON_PING, LINK_DONE, asked_at);
	/* a process may have met trouble meanwhile: ask again */
	return breaker_state(link_breaker(d, ANY_LINK)) == BREAKER_SUSPECT ? RBP_BACKOFF_FIRST_NS : -1;
}

/* Ping a donor that is down.  Returns ns until the next ping, or -1. */
static int64
ping_down(int donor)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[donor];
	RbpLocalConn *c = conn_for_probe(donor);
	bool		fresh = !is_ready(c);
	RbpStatus	status = ping(c, rbp_guc_io_timeout_ns());

	if (status == RBP_OK || status == RBP_BUSY)
	{
		/*
		 * A new connection was needed to reach it, so have all processes
		 * reconnect, instead of each finding that out.
		 */
		if (fresh && status == RBP_OK)
		{
			rbp_link_make_stale(&d->serial);
			c->serial++;
		}
		rbp_link_up(d, ANY_LINK);
		/* other transports may work again */
		for (int link = ANY_LINK + 1; link < RBP_LINKS; link++)
			breaker_reset_backoff(link_breaker(d, link));
		return -1;
	}
	/* no failure yet, since connecting goes on between probes */
	if (c->state == CONN_CONNECTING)
	{
		pg_atomic_write_u64(&link_breaker(d, ANY_LINK)->retry_at,
							(uint64) (rbp_now_ns() + RBP_BACKOFF_FIRST_NS));
		return RBP_BACKOFF_FIRST_NS;
	}
	return rbp_link_probe_failed(d, ANY_LINK);
}

/*
 * ---- trials --------------------------------------------------------------
 */

static void
close_trial(int code, Datum arg)
{
	if (trial.conn != NULL)
		trial.ops->close(trial.conn);
	trial.conn = NULL;
}

/* End the trial; status: RBP_OK if the transport works. */
static void
end_trial(int link, RbpStatus status)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[trial.donor];
	RbpLinkEvent event = rbp_link_event(status);

	close_trial(0, (Datum) 0);
	/* if the donor has moved, its link is neither open nor suspect */
	if (is_stale(&trial))
		return;
	if (status != RBP_OK && breaker_state(link_breaker(d, link)) == BREAKER_OPEN)
		(void) rbp_link_probe_failed(d, link);
	else if (event == LINK_LATE || event == LINK_LOST || event == LINK_NO_DEVICE)
		(void) rbp_link_failed(&trial, ON_TRIAL, event, status);
	else
		/* it works, or the pusher lacks something: no reason to go on */
		rbp_link_up(d, link);
}

/* Begin a trial connection.  Returns ns until the next call. */
static int64
try_transport(int donor, int link)
{
	static bool registered = false;
	RbpRemoteDonor *d = &rbp_remote_shared->donors[donor];
	const RbpLocalConn *c = conn_for_probe(donor);
	RbpEndpoint endpoint;
	RbpCredentials credentials;
	RbpStatus	status = RBP_INVALID;

	LWLockAcquire(&rbp_remote_shared->remote_lock, LW_SHARED);
	endpoint = d->endpoint;
	credentials = rbp_remote_shared->leases[c->pool].credentials;
	trial.donor = donor;
	trial.pool = c->pool;
	trial.serial = conn_serial(&trial);
	LWLockRelease(&rbp_remote_shared->remote_lock);
	trial.connect_started = rbp_now_ns();
	trial.ops = rbp_link_choose_among(&endpoint, LINK_TRANSPORT(link));
	if (!registered)
		on_shmem_exit(close_trial, (Datum) 0);
	registered = true;
	if (trial.ops != NULL)
		status = trial.ops->connect(&endpoint, &credentials, &trial.conn);
	explicit_bzero(&credentials, sizeof(credentials));
	if (status != RBP_OK)
		end_trial(link, status);
	return RBP_BACKOFF_FIRST_NS;
}

/*
 * ---- duties --------------------------------------------------------------
 */

/*
 * Probe a link if it is suspect, or open and due.  Returns ns until the next
 * probe, or -1 if there is none to come.
 */
static int64
probe_link(int donor, int link)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[donor];
	RbpBreaker *breaker = link_breaker(d, link);
	RbpBreakerState state = breaker_state(breaker);
	int64		left;

	if (state == BREAKER_CLOSED || (link != ANY_LINK && trial.conn != NULL))
		return -1;
	if (!donor_known(d))
	{
		/* without a lease it cannot be asked */
		if (link == ANY_LINK)
			rbp_link_up(d, link);
		return -1;
	}
	if (state == BREAKER_SUSPECT && link != ANY_LINK)
		return breaker_state(link_breaker(d, ANY_LINK)) == BREAKER_CLOSED ?
			try_transport(donor, link) : -1;
	if (state == BREAKER_SUSPECT)
	{
		left = ping_suspect(donor);
		if (!donor_is_down(d))
			return left;
	}
	left = (int64) pg_atomic_read_u64(&breaker->retry_at) - rbp_now_ns();
	if (left > 0)
		return left;
	return link == ANY_LINK ? ping_down(donor) : try_transport(donor, link);
}

/* Likewise of these links of all donors */
static int64
probe_links(int first, int last)
{
	int64		next = -1;

	for (int donor = 0; donor < RBP_MAX_DONORS; donor++)
		for (int link = first; link <= last; link++)
		{
			int64		left = probe_link(donor, link);

			if (left >= 0 && (next < 0 || left < next))
				next = left;
		}
	return next;
}

int64
rbp_remote_probe(void)
{
	return probe_links(ANY_LINK, ANY_LINK);
}

/*
 * Find donors that no transport leads to, before a process tries to connect,
 * and transports that have become usable on this machine.
 */
static void
check_reachability(void)
{
	static bool had_costly[RBP_MAX_DONORS];

	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		RbpRemoteDonor *d = &rbp_remote_shared->donors[i];
		const RbpTransportOps *ops;
		RbpEndpoint endpoint;

		if (!donor_known(d))
			continue;
		LWLockAcquire(&rbp_remote_shared->remote_lock, LW_SHARED);
		endpoint = d->endpoint;
		LWLockRelease(&rbp_remote_shared->remote_lock);
		ops = rbp_link_choose_among(&endpoint, ~(uint32) 0);
		if (ops == NULL)
		{
			rbp_remote_note_unreachable(d, &endpoint);
			rbp_remote_donor_down(d, false);
		}
		else if (ops->costly && !had_costly[i])
			pg_atomic_fetch_add_u32(&d->upgrades, 1);	/* connections may
														 * return */
		had_costly[i] = ops != NULL && ops->costly;
	}
}

int64
rbp_remote_watch_links(int64 now)
{
	static int64 next_check = 0;
	static uint32 seen_stale = 0;
	static uint32 seen_settings = 0;
	uint32		stale = pg_atomic_read_u32(&rbp_remote_shared->stale);
	int64		next;

	/* With other settings, what has failed may work. */
	for (int i = 0; seen_settings != rbp_guc_connect_settings_version && i < RBP_MAX_DONORS; i++)
	{
		rbp_link_forget(&rbp_remote_shared->donors[i]);
		next_check = now;
	}
	seen_settings = rbp_guc_connect_settings_version;
	if (trial.conn != NULL)
	{
		RbpStatus	status = trial.ops->connect_wait(trial.conn, now);

		if (status != RBP_INPROGRESS || now - trial.connect_started >= trial.ops->connect_ns)
			end_trial(LINK_OF(trial.ops->bit), status == RBP_INPROGRESS ? RBP_TIMEOUT : status);
	}
	next = probe_links(ANY_LINK + 1, RBP_LINKS - 1);
	if (now >= next_check || stale != seen_stale)
	{
		check_reachability();
		seen_stale = stale;
		next_check = now + RBP_CHECK_NS;
	}
	return trial.conn != NULL ? RBP_BACKOFF_FIRST_NS :
		next < 0 ? RBP_CHECK_NS : Min(next, RBP_CHECK_NS);
}
