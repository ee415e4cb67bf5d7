/*-------------------------------------------------------------------------
 *
 * downgrade.c
 *	  The transport of each connection: chosen, downgraded if a better one
 *	  fails, and tried again.
 *
 * Under remote_bp.transport = auto, a costly transport that the donor offers
 * may still not lead to it.  The process that finds this out goes on with the
 * next best transport; existing connections stay.  What has failed decides
 * for whom:
 *
 * - What this process lacks (memory that may be locked, descriptors, a route)
 *   is its own affair, and so is a busy donor.  The process alone does without
 *   for some time.
 * - A handshake that has timed out, after the transport has begun it again
 *   several times, may be due to lost messages of the connection manager.
 *   Again the process alone does without.  The pusher is woken, and tries the
 *   transport by itself.  After MAX_TIMEOUTS in a row, of any processes, all do
 *   without.  Where no process polls for long enough to see a timeout, because
 *   sessions are short or read rarely, a handshake that one of them leaves
 *   unfinished counts as the first.
 * - Anything else (nobody listens, a stranger does, the device is not to be
 *   used) is true for all processes: RbpRemoteDonor.downgrade is tripped.
 *
 * The pusher tries such a transport again now and then, with a trial
 * connection that it never waits for.  When that succeeds it closes the
 * breaker.  It also sees when a transport becomes usable on this machine, for
 * example because a port is up again.  In both cases it increments the donor's
 * upgrades, and the processes whose connections are downgraded replace them,
 * each at a random moment within RETURN_NS: the connection manager has a short
 * queue, and what does not fit is lost.  Connections over the better transport
 * stay as they are.
 *
 * All shared state here is atomics.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/guc.h"
#include "base/stats.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"
#include "remote/remote_internal.h"
#include "transport/transport.h"

/* Handshakes in a row that time out before all processes do without */
#define MAX_TIMEOUTS		3

/* How long a process does without by itself, at first and at most */
#define AVOID_FIRST_NS		INT64CONST(30000000000)
#define AVOID_MAX_NS		INT64CONST(600000000000)

/* Downgraded connections return within this time */
#define RETURN_NS			INT64CONST(5000000000)

/* A transport that has failed is rarely tried again. */
static const RbpBreakerTimes downgrade_times = {
	.first_delay = INT64CONST(30000000000),
	.base_delay = INT64CONST(60000000000),
	.max_delay = INT64CONST(600000000000),
	.reset_after = INT64CONST(600000000000),
};

/* What this process alone does without, for each donor */
static struct
{
	uint32		transport;		/* RBP_TRANSPORT_*, 0 for none */
	int64		until;
	int64		delay;			/* that until was computed with */
	uint32		serial;			/* the donor's */
	uint32		settings;		/* rbp_guc_connect_settings_version */
}			avoided[RBP_MAX_DONORS];

/* The pusher's connection that tests a transport */
static struct
{
	RbpConn    *conn;			/* NULL: none */
	const RbpTransportOps *ops;
	int			donor;
	uint32		serial;			/* the donor's at the start */
	int64		started;
}			trial;

void
rbp_remote_downgrade_reset_donor(RbpRemoteDonor *d)
{
	rbp_breaker_init(&d->downgrade);
	pg_atomic_init_u32(&d->downgrade_error, 0);
	pg_atomic_init_u32(&d->connect_timeouts, 0);
	pg_atomic_init_u32(&d->upgrades, 0);
}

void
rbp_remote_downgrade_forget(RbpRemoteDonor *d)
{
	pg_atomic_write_u32(&d->connect_timeouts, 0);
	(void) rbp_breaker_close(&d->downgrade);
}

/*
 * ---- choosing ------------------------------------------------------------
 */

void
rbp_remote_configure_verbs(void)
{
	static uint32 configured = 0;
	RbpVerbsConfig config = RBP_VERBS_CONFIG_DEFAULT;

	if (configured == rbp_guc_connect_settings_version)
		return;
	strlcpy(config.device, rbp_guc_rdma_device, sizeof(config.device));
	config.port = rbp_guc_rdma_port;
	config.gid_index = rbp_guc_rdma_gid_index;
	config.traffic_class = rbp_guc_rdma_traffic_class;
	config.ack_timeout = rbp_guc_rdma_ack_timeout;
	config.retry_count = rbp_guc_rdma_retry_count;
	rbp_verbs_configure(&config);
	configured = rbp_guc_connect_settings_version;
}

/* Like rbp_transport_choose(), but only among these transports. */
static const RbpTransportOps *
choose_among(RbpEndpoint *endpoint, uint32 transports)
{
	uint32		all = endpoint->transports;
	const RbpTransportOps *ops;

	endpoint->transports = all & transports;
	ops = rbp_transport_choose(rbp_guc_transport, endpoint);
	endpoint->transports = all;
	return ops;
}

/* The transport that is not to be used for the donor, 0 for none. */
static uint32
downgraded_from(RbpRemoteDonor *d)
{
	if (breaker_state(&d->downgrade) != BREAKER_OPEN)
		return 0;
	pg_read_barrier();
	return ERROR_TRANSPORT(pg_atomic_read_u32(&d->downgrade_error));
}

/*
 * The transport to connect over, or NULL.  *has_fallback: whether there is
 * another one if it fails.
 */
static const RbpTransportOps *
choose_transport(RbpEndpoint *endpoint, uint32 avoid, bool *has_fallback)
{
	const RbpTransportOps *ops = choose_among(endpoint, ~avoid);

	/*
	 * If only the transport to be avoided is left, because it is set
	 * explicitly or is the only one that is usable, use it all the same.
	 */
	if (ops == NULL && avoid != 0)
		ops = choose_among(endpoint, ~(uint32) 0);
	*has_fallback = ops != NULL && ops->costly && choose_among(endpoint, ~ops->bit) != NULL;
	return ops;
}

/* The transport that this process alone does not use, 0 for none. */
static uint32
avoided_here(int donor, int64 now)
{
	if (avoided[donor].transport != 0 &&
		(avoided[donor].serial != pg_atomic_read_u32(&rbp_remote_shared->donors[donor].serial) ||
		 avoided[donor].settings != rbp_guc_connect_settings_version))
		avoided[donor].transport = 0;
	return now < avoided[donor].until ? avoided[donor].transport : 0;
}

/*
 * A time in the next RETURN_NS, which differs from process to process.  It
 * need not be random otherwise.
 */
static int64
soon(int64 now)
{
	uint64		x = (uint64) now + (uint64) MyProcPid * UINT64CONST(0x9E3779B97F4A7C15);

	x = (x ^ x >> 30) * UINT64CONST(0xBF58476D1CE4E5B9);
	x = (x ^ x >> 27) * UINT64CONST(0x94D049BB133111EB);
	return now + (int64) ((x ^ x >> 31) % (uint64) RETURN_NS);
}

const RbpTransportOps *
rbp_remote_choose_transport(int ci, RbpEndpoint *endpoint, int64 now)
{
	RbpLocalConn *c = &rbp_remote_conns[ci];
	int			donor = conn_donor(ci);
	RbpRemoteDonor *d = &rbp_remote_shared->donors[donor];
	uint32		here = avoided_here(donor, now);
	uint32		better;
	const RbpTransportOps *ops;

	/* before the choice, so that a later change is noticed */
	c->upgrades = pg_atomic_read_u32(&d->upgrades);
	better = here | downgraded_from(d);
	rbp_remote_configure_verbs();
	ops = choose_transport(endpoint, better, &c->has_fallback);

	/* where the device is not usable now, it may be later */
	better |= RBP_TRANSPORT_VERBS;
	c->downgraded = ops != NULL && !ops->costly && !ops->local &&
		strcmp(rbp_guc_transport, "auto") == 0 &&
		(endpoint->transports & better) != 0;
	c->return_at = c->downgraded && here != 0 ? soon(avoided[donor].until) : 0;
	return ops;
}

bool
rbp_remote_may_return(int ci, int64 now)
{
	RbpLocalConn *c = &rbp_remote_conns[ci];
	int			donor = conn_donor(ci);
	RbpRemoteDonor *d = &rbp_remote_shared->donors[donor];
	uint32		upgrades = pg_atomic_read_u32(&d->upgrades);

	if (c->upgrades != upgrades)
	{
		c->upgrades = upgrades;
		c->return_at = soon(avoided_here(donor, now) != 0 ? avoided[donor].until : now);
	}
	return c->return_at != 0 && now >= c->return_at && downgraded_from(d) == 0;
}

/*
 * ---- downgrades ----------------------------------------------------------
 */

/* All processes do without this transport. */
static void
downgrade_all(RbpRemoteDonor *d, uint32 transport, RbpStatus why)
{
	pg_atomic_write_u32(&d->connect_timeouts, 0);
	if (breaker_state(&d->downgrade) == BREAKER_OPEN)
		return;
	/* before the breaker opens: downgraded_from() relies on it */
	pg_atomic_write_u32(&d->downgrade_error,
						ERROR_MAKE(DONOR_ERROR_CONNECT, transport, why));
	(void) rbp_breaker_trip(&d->downgrade, &downgrade_times);
}

/* This process does without it for some time. */
static void
avoid_here(int donor, uint32 transport)
{
	int64		now = rbp_now_ns();

	(void) avoided_here(donor, now);	/* forget what is out of date */
	if (avoided[donor].transport != transport)
		avoided[donor].delay = AVOID_FIRST_NS;
	else
		avoided[donor].delay = Min(avoided[donor].delay * 2, AVOID_MAX_NS);
	avoided[donor].transport = transport;
	avoided[donor].until = now + avoided[donor].delay;
	avoided[donor].serial = pg_atomic_read_u32(&rbp_remote_shared->donors[donor].serial);
	avoided[donor].settings = rbp_guc_connect_settings_version;
}

/* A handshake has timed out. */
static void
count_timeout(RbpRemoteDonor *d, uint32 transport)
{
	if (pg_atomic_add_fetch_u32(&d->connect_timeouts, 1) >= MAX_TIMEOUTS)
		downgrade_all(d, transport, RBP_TIMEOUT);
}

bool
rbp_remote_downgrade(int ci, RbpStatus why)
{
	RbpLocalConn *c = &rbp_remote_conns[ci];
	RbpRemoteDonor *d = &rbp_remote_shared->donors[conn_donor(ci)];

	if (!c->has_fallback || c->donor_serial != pg_atomic_read_u32(&d->serial))
		return false;
	c->retry_at = 0;
	if (breaker_state(&d->downgrade) == BREAKER_OPEN)
		return true;
	rbp_remote_note_error(d, DONOR_ERROR_CONNECT, c->ops->bit, why);
	switch (why)
	{
		case RBP_NOMEM:
		case RBP_NOROUTE:
		case RBP_BUSY:
			avoid_here(conn_donor(ci), c->ops->bit);
			break;
		case RBP_TIMEOUT:
			avoid_here(conn_donor(ci), c->ops->bit);
			count_timeout(d, c->ops->bit);
			rbp_remote_wake();
			break;
		default:
			downgrade_all(d, c->ops->bit, why);
			break;
	}
	return true;
}

void
rbp_remote_connect_unfinished(int ci)
{
	RbpLocalConn *c = &rbp_remote_conns[ci];
	RbpRemoteDonor *d = &rbp_remote_shared->donors[conn_donor(ci)];
	uint32		none = 0;

	if (!c->ops->costly || !c->has_fallback ||
		c->donor_serial != pg_atomic_read_u32(&d->serial) ||
		breaker_state(&d->breaker) != BREAKER_CLOSED ||
		breaker_state(&d->downgrade) == BREAKER_OPEN)
		return;
	if (pg_atomic_compare_exchange_u32(&d->connect_timeouts, &none, 1))
		rbp_remote_wake();
}

void
rbp_remote_costly_connected(int ci)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[conn_donor(ci)];

	avoided[conn_donor(ci)].transport = 0;
	if (pg_atomic_read_u32(&d->connect_timeouts) != 0)
		pg_atomic_write_u32(&d->connect_timeouts, 0);
}

/*
 * ---- trials, by the pusher -----------------------------------------------
 */

void
rbp_remote_close_trial(void)
{
	if (trial.conn != NULL)
		trial.ops->close(trial.conn);
	trial.conn = NULL;
}

/* Downgraded connections may return. */
static void
upgrade(RbpRemoteDonor *d)
{
	(void) pg_atomic_add_fetch_u32(&d->upgrades, 1);
}

/* The trial of a transport that is in doubt, but used, has ended. */
static void
end_doubt(RbpRemoteDonor *d, RbpStatus status)
{
	switch (status)
	{
		case RBP_INPROGRESS:
		case RBP_TIMEOUT:
			/* a donor that answers over no transport says nothing of this one */
			if (breaker_state(&d->breaker) == BREAKER_CLOSED)
				count_timeout(d, trial.ops->bit);
			break;
		case RBP_CONNLOST:
		case RBP_PROTOCOL:
		case RBP_OTHER_DEVICE:
		case RBP_BAD_DEVICE:
		case RBP_NOLIBRARY:
			downgrade_all(d, trial.ops->bit, status);
			break;
		default:
			/* it works, or the pusher lacks something: no reason to go on */
			pg_atomic_write_u32(&d->connect_timeouts, 0);
			break;
	}
}

/* End the trial; status: RBP_OK if the transport works. */
static void
end_trial(int donor, RbpStatus status)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[donor];

	rbp_remote_close_trial();
	/* if the donor has moved, it is neither downgraded nor in doubt */
	if (trial.serial != pg_atomic_read_u32(&d->serial))
		return;
	if (downgraded_from(d) == 0)
	{
		end_doubt(d, status);
		return;
	}
	if (status != RBP_OK)
	{
		(void) rbp_breaker_probe_failed(&d->downgrade, &downgrade_times);
		return;
	}
	rbp_remote_downgrade_forget(d);
	upgrade(d);
	ereport(LOG,
			(errmsg("remote_bp: donor \"%s\" can be reached over %s again",
					d->endpoint.donor, trial.ops->name)));
}

/*
 * Begin a trial connection over one of these transports: the one that has
 * failed, or else the best, if it is a costly one.
 */
static void
start_trial(int donor, uint32 transports)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[donor];
	RbpEndpoint endpoint;
	RbpCredentials credentials;
	RbpStatus	status = RBP_INVALID;

	LWLockAcquire(&rbp_remote_shared->remote_lock, LW_SHARED);
	endpoint = d->endpoint;
	credentials = rbp_remote_shared->leases[conn_pool(conn_for_probe(donor))].credentials;
	trial.serial = pg_atomic_read_u32(&d->serial);
	LWLockRelease(&rbp_remote_shared->remote_lock);

	rbp_remote_configure_verbs();
	trial.donor = donor;
	trial.started = rbp_now_ns();
	trial.ops = choose_among(&endpoint, transports);
	if (trial.ops != NULL && trial.ops->costly)
		status = trial.ops->connect(&endpoint, &credentials, &trial.conn);
	explicit_bzero(&credentials, sizeof(credentials));
	if (status != RBP_OK)
		end_trial(donor, status);
}

/* Log a new downgrade. */
static void
log_downgrade(int donor, uint32 from)
{
	static bool logged[RBP_MAX_DONORS];
	RbpRemoteDonor *d = &rbp_remote_shared->donors[donor];

	if (from != 0 && !logged[donor])
	{
		const char *over = rbp_remote_transport_name(from);
		const char *why =
		rbp_status_text(ERROR_STATUS(pg_atomic_read_u32(&d->downgrade_error)));

		ereport(LOG,
				(errmsg("remote_bp: donor \"%s\" cannot be reached over %s (%s), going on without",
						d->endpoint.donor, over, why)));
		rbp_stats_error("donor \"%s\" cannot be reached over %s: %s",
						d->endpoint.donor, over, why);
	}
	logged[donor] = from != 0;
}

int64
rbp_remote_check_downgrades(int64 now)
{
	int64		next = RBP_CHECK_NS;

	if (trial.conn != NULL)
	{
		RbpStatus	status = trial.ops->connect_wait(trial.conn, now);

		if (status != RBP_INPROGRESS || now - trial.started >= RBP_COSTLY_CONNECT_NS)
			end_trial(trial.donor, status);
	}
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		RbpRemoteDonor *d = &rbp_remote_shared->donors[i];
		uint32		from = downgraded_from(d);
		bool		in_doubt = from == 0 && pg_atomic_read_u32(&d->connect_timeouts) != 0 &&
		breaker_state(&d->breaker) == BREAKER_CLOSED;
		int64		left = 0;

		log_downgrade(i, from);
		if ((from == 0 && !in_doubt) || !donor_known(d) || trial.conn != NULL)
			continue;
		if (!in_doubt)
			left = (int64) pg_atomic_read_u64(&d->downgrade.retry_at) - now;
		if (left <= 0)
			start_trial(i, in_doubt ? ~(uint32) 0 : from);
		else
			next = Min(next, left);
	}
	return trial.conn != NULL ? RBP_BACKOFF_FIRST_NS : next;
}

/*
 * Find donors that no transport leads to, before a process tries to connect,
 * and transports that have become usable on this machine.
 */
void
rbp_remote_check_reachability(void)
{
	static bool had_costly[RBP_MAX_DONORS];

	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		RbpRemoteDonor *d = &rbp_remote_shared->donors[i];
		const RbpTransportOps *ops;
		RbpEndpoint endpoint;
		bool		has_fallback;

		if (!donor_known(d))
			continue;
		LWLockAcquire(&rbp_remote_shared->remote_lock, LW_SHARED);
		endpoint = d->endpoint;
		LWLockRelease(&rbp_remote_shared->remote_lock);
		rbp_remote_configure_verbs();
		ops = choose_transport(&endpoint, 0, &has_fallback);
		if (ops == NULL)
		{
			rbp_remote_note_unreachable(d, &endpoint);
			rbp_remote_donor_down(d, false);
		}
		else if (ops->costly && !had_costly[i])
			upgrade(d);
		had_costly[i] = ops != NULL && ops->costly;
	}
}
