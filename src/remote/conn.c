/*-------------------------------------------------------------------------
 *
 * conn.c
 *	  Connections to donors: made when needed, bounded in number, closed when
 *	  idle.  downgrade.c chooses their transports.
 *
 * Each process has its own connections, at most one to each donor for each
 * pool, since a connection belongs to a lease (rbp_remote_conns).  It makes
 * one when it first has a request for that donor.  Connecting may go on in the
 * background of later requests.
 *
 * Bounds.  Before a backend begins a connection it takes a connection slot
 * (RbpRemoteDonor.conn_slots), by compare-and-swap against
 * remote_bp.max_connections.  It releases the slot after the connection was
 * closed, in a callback if the process exits; a crash of the server resets
 * shared memory.  So the count is never less than the number of connections.
 * Connections of the pusher and the lease worker take no slots: however many
 * backends there are, pages must be pushed, or there is nothing to read, and
 * moved in time.  Those of I/O workers take none either: there are few, they
 * read for all backends, and would keep their slots for ever.  A process that
 * needs data with no other copy (RBP_REMOTE_PATIENT) takes a slot above the
 * bound if there is none below, and others release theirs.
 *
 * Requests in flight.  A batch in the background of the process
 * (rbp_remote_begin()) keeps its connection from being closed because it is
 * idle or above the bound.  If the connection must be closed anyway, its
 * requests are completed or failed first (rbp_remote_finish_batches()), so that
 * nothing refers to a closed connection.
 *
 * Idle connections.  An idle backend runs no code of ours.  So each connected
 * process records in shared memory, in its ProcConns, when it last used each
 * connection: one store of a time that is at hand.  The pusher checks these
 * times regularly.  It asks a process to close connections if one has been
 * idle for too long or is above a bound that was lowered, and asks all
 * processes when connections have become stale: it sets ProcConns.asked and
 * sends the signal by which the server tells a backend that it lags behind
 * with invalidation messages.  An idle backend responds with an empty
 * transaction; a backend in a transaction goes on with it.  A callback at the
 * end of each transaction sees "asked" and closes what is not needed.  (A
 * timer in each process would need less shared memory, but the server disables
 * all timers of a process after an error, and an idle process would not get to
 * enable its timer again.)  An I/O worker ends no transactions; it closes
 * connections before it waits for work (remote_bp.c).  Other
 * processes without transactions, such as a standby's startup process, close
 * connections that are stale or above the bound when they would use them
 * next.
 *
 * Thresholds.  A costly connection (RbpTransportOps.costly) is begun only
 * after remote_bp.connect_threshold reads that would have used it.  It may
 * take long although all is well: its being late makes no donor suspect, and a
 * process that has waited for one in vain does not wait again until it has got
 * one.
 *
 * Descriptors.  The server keeps files open up to a limit, and must know which
 * descriptors are not its own (ReserveExternalFD()).  Telling it may close
 * files, so that is done between file calls only: at the end of a transaction,
 * and by workers between their rounds.  Until then the few descriptors that
 * the server holds in reserve cover new connections.
 *
 * All shared state here is atomics.  A ProcConns belongs to the process with
 * the PGPROC of that number; the pusher only writes "asked".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/fd.h"

#include "base/compat.h"
#include "base/guc.h"
#include "base/process.h"
#include "base/stats.h"
#include "base/wait.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"
#include "remote/remote_internal.h"
#include "transport/transport.h"

/*
 * Connecting that takes longer has failed, as has a costly one that takes
 * longer than RBP_COSTLY_CONNECT_NS.
 */
#define CONNECT_TIMEOUT_NS	INT64CONST(2000000000)

/*
 * ... or that this process has hardly polled, since the donor has given it up
 * by then
 */
#define UNPOLLED_TIMEOUT_NS	RBP_VERBS_HANDSHAKE_NS

/* Next attempt to get a connection slot; to make a costly connection */
#define OVER_LIMIT_RETRY_NS	INT64CONST(1000000000)
#define COSTLY_RETRY_NS		INT64CONST(1000000000)

/* Between attempts to get remote_lock */
#define LOCK_RETRY_US		200

/* How often a connection is begun again for data with no other copy */
#define PATIENT_TRIES		3

/* A device's: of commands, and of events */
#define DEVICE_DESCRIPTORS	2

/* The connections of a process, for the pusher to see. */
typedef struct ProcConns
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE)
	pg_atomic_uint32 pid;		/* 0: no process that has connected */
	pg_atomic_uint32 asked;		/* asked to close what is not needed */
	pg_atomic_uint64 used_at[RBP_MAX_CONNS];	/* 0: not connected */
} ProcConns;

static ProcConns *proc_conns = NULL;	/* by rbp_compat_procno() */

RbpLocalConn rbp_remote_conns[RBP_MAX_CONNS];

static ProcConns *my_conns = NULL;	/* NULL before the first connection, and
									 * in the pusher */
static bool exiting = false;	/* the process exits: no new connections */

static uint32 connects = 0;		/* connections begun by this process */
static int	descriptors = 0;	/* that the server knows of */
static bool has_device = false; /* a costly connection has opened one */
static bool is_worker = false;	/* its connections take no slots */

/* Used by the pusher only */
static bool is_pusher = false;
static void *push_base = NULL;
static size_t push_len = 0;

/*
 * ---- set-up --------------------------------------------------------------
 */

Size
rbp_remote_conn_shmem_size(void)
{
	/* one more, since mem need not begin at a cache line */
	return mul_size(sizeof(ProcConns), rbp_compat_max_procs() + 1);
}

void
rbp_remote_conn_shmem_init(void *mem)
{
	int			n = rbp_compat_max_procs();

	proc_conns = (ProcConns *) CACHELINEALIGN(mem);
	for (int i = 0; i < n; i++)
	{
		pg_atomic_init_u32(&proc_conns[i].pid, 0);
		pg_atomic_init_u32(&proc_conns[i].asked, 0);
		for (int k = 0; k < RBP_MAX_CONNS; k++)
			pg_atomic_init_u64(&proc_conns[i].used_at[k], 0);
	}
	pg_atomic_init_u32(&rbp_remote_shared->max_slots,
					   (uint32) rbp_guc_max_connections);
	pg_atomic_init_u64(&rbp_remote_shared->idle_ns,
					   (uint64) rbp_guc_idle_timeout_ns());
}

void
rbp_remote_conn_reset_donor(RbpRemoteDonor *d)
{
	pg_atomic_init_u32(&d->conn_slots, 0);
	for (int pool = 0; pool < RBP_POOLS; pool++)
		pg_atomic_init_u64(&d->refused_until[pool], 0);
	rbp_remote_downgrade_reset_donor(d);
}

void
rbp_remote_conn_new_endpoint(RbpRemoteDonor *d)
{
	rbp_remote_downgrade_forget(d);
	breaker_reset_backoff(&d->downgrade);
	for (int pool = 0; pool < RBP_POOLS; pool++)
		pg_atomic_write_u64(&d->refused_until[pool], 0);
	(void) rbp_remote_make_conns_stale(&d->serial);
}

uint32
rbp_remote_make_conns_stale(pg_atomic_uint32 *serial)
{
	uint32		value = pg_atomic_add_fetch_u32(serial, 1);

	pg_atomic_fetch_add_u32(&rbp_remote_shared->stale, 1);
	return value;
}

/*
 * Close a connection that is perhaps still being made, though it was begun long
 * ago.  One that is stale says nothing of what would be begun now.
 */
static void
close_unfinished(int ci)
{
	RbpLocalConn *c = &rbp_remote_conns[ci];

	if (c->state == CONN_CONNECTING && !is_stale(ci) &&
		c->polled_at - c->connect_started > CONNECT_TIMEOUT_NS)
		rbp_remote_connect_unfinished(ci);
	rbp_remote_conn_close(ci);
}

/*
 * The process exits, other than by a crash.  Reads by later callbacks go to
 * disk.
 */
void
rbp_remote_exits(void)
{
	exiting = true;
	for (int ci = 0; ci < RBP_MAX_CONNS; ci++)
		close_unfinished(ci);
	rbp_remote_close_trial();
	if (my_conns != NULL)
		pg_atomic_write_u32(&my_conns->pid, 0);
	my_conns = NULL;
}

/* Publish this process's connections, before the first one. */
static void
publish_connections(void)
{
	rbp_process_needs_exit();
	my_conns = &proc_conns[rbp_compat_procno()];
	pg_atomic_write_u32(&my_conns->asked, 0);
	pg_atomic_write_u32(&my_conns->pid, (uint32) MyProcPid);
}

uint32
rbp_remote_connects(void)
{
	return connects + rbp_transport_accesses;
}

void
rbp_remote_set_worker(void)
{
	is_worker = true;
}

void
rbp_remote_set_pusher(void *base, size_t len)
{
	is_worker = true;
	is_pusher = true;
	push_base = base;
	push_len = len;
	rbp_process_needs_exit();
}

bool
rbp_remote_is_push_memory(const void *buf, Size len)
{
	return (const char *) buf >= (const char *) push_base &&
		(const char *) buf + len <= (const char *) push_base + push_len;
}

const char *
rbp_remote_transport_name(uint32 bit)
{
	const RbpTransportOps *ops = rbp_transport_by_bit(bit);

	return ops != NULL ? ops->name : "none";
}

/*
 * ---- connection slots ----------------------------------------------------
 */

/*
 * Take a connection slot, if there is one below the bound, or regardless of
 * it.
 */
static bool
take_conn_slot(RbpRemoteDonor *d, bool force)
{
	uint32		max = pg_atomic_read_u32(&rbp_remote_shared->max_slots);
	uint32		n = pg_atomic_read_u32(&d->conn_slots);

	while (n < max || force)
		if (pg_atomic_compare_exchange_u32(&d->conn_slots, &n, n + 1))
			return true;
	return false;
}

/*
 * Release this connection's slot if the donor has more connections than
 * allowed, because the bound was lowered or some process had to exceed it.  If
 * true, the connection must be closed.
 */
static bool
yield_conn_slot(RbpRemoteDonor *d, RbpLocalConn *c)
{
	uint32		max = pg_atomic_read_u32(&rbp_remote_shared->max_slots);
	uint32		n = pg_atomic_read_u32(&d->conn_slots);

	while (c->has_slot && n > max)
		if (pg_atomic_compare_exchange_u32(&d->conn_slots, &n, n - 1))
		{
			c->has_slot = false;
			return true;
		}
	return false;
}

/*
 * ---- making and closing --------------------------------------------------
 */

/*
 * Close a connection, after its requests in flight have completed or that time
 * has passed.
 */
static void
close_after(int ci, int64 until_ns)
{
	RbpLocalConn *c = &rbp_remote_conns[ci];

	if (c->state < CONN_CONNECTING)
		return;
	if (c->inflight > 0)
		rbp_remote_finish_batches(ci, until_ns);
	if (c->mr != NULL)
		c->ops->deregister_memory(c->conn, c->mr);
	c->ops->close(c->conn);
	c->conn = NULL;
	c->mr = NULL;
	c->state = CONN_NONE;
	c->pinned = false;
	if (my_conns != NULL)
		pg_atomic_write_u64(&my_conns->used_at[ci], 0);
	if (c->has_slot)
		pg_atomic_fetch_sub_u32(&rbp_remote_shared->donors[conn_donor(ci)].conn_slots, 1);
	c->has_slot = false;
}

void
rbp_remote_conn_close(int ci)
{
	close_after(ci, 0);
}

void
rbp_remote_conns_close(RbpPool pool)
{
	for (int i = 0; i < RBP_MAX_DONORS; i++)
		rbp_remote_conn_close(conn_index(pool, i));
}

/* Note that this process has no connection for lack of a slot. */
static void
note_over_limit(RbpRemoteDonor *d, RbpLocalConn *c, int64 now)
{
	pg_atomic_fetch_add_u32(&d->over_limit, 1);
	c->state = CONN_OVER_LIMIT;
	c->retry_at = now + OVER_LIMIT_RETRY_NS;
}

/*
 * May this process begin a connection?  If so, takes a slot if one is needed.
 */
static bool
may_start(RbpRemoteDonor *d, RbpLocalConn *c, int pages, bool patient, int64 now)
{
	if (is_worker || rbp_compat_is_io_worker())
		return true;

	/*
	 * A single batch above the threshold connects at once, as batches of
	 * temporary data do; otherwise reads are counted until they reach it.
	 */
	if (c->ops->costly && !patient && pages <= rbp_guc_connect_threshold &&
		c->reads_wanted < (uint32) rbp_guc_connect_threshold)
	{
		c->reads_wanted += pages;
		c->state = CONN_BELOW_THRESHOLD;
		return false;
	}
	if (!take_conn_slot(d, patient))
	{
		note_over_limit(d, c, now);
		return false;
	}
	c->has_slot = true;
	return true;
}

/*
 * Begin to connect, with the current endpoint and credentials.  Returns
 * RBP_CANCELED if that is not possible now although nothing is wrong.
 */
static RbpStatus
conn_start(int ci, int pages, bool patient, int64 now, int64 deadline_ns)
{
	RbpLocalConn *c = &rbp_remote_conns[ci];
	RbpRemoteDonor *d = &rbp_remote_shared->donors[conn_donor(ci)];
	RbpPoolLease *lease = &rbp_remote_shared->leases[conn_pool(ci)];
	RbpEndpoint endpoint;
	RbpCredentials credentials;
	RbpStatus	status = RBP_CANCELED;

	c->state = CONN_NONE;
	if (exiting ||
		(!is_pusher && !patient &&
		 now < (int64) pg_atomic_read_u64(&d->refused_until[conn_pool(ci)])))
		return RBP_CANCELED;

	/* The lease worker may hold it for long; only a patient caller waits. */
	while (!LWLockConditionalAcquire(&rbp_remote_shared->remote_lock, LW_SHARED))
	{
		if (!patient || rbp_now_ns() >= deadline_ns || rbp_remote_give_up())
			return RBP_CANCELED;
		pg_usleep(LOCK_RETRY_US);
	}
	endpoint = d->endpoint;
	credentials = lease->credentials;
	c->donor_serial = pg_atomic_read_u32(&d->serial);
	c->lease_serial = pg_atomic_read_u32(&lease->serial);
	LWLockRelease(&rbp_remote_shared->remote_lock);
	c->settings = rbp_guc_connect_settings_version;
	c->timeouts = 0;
	c->connect_started = now;
	c->polled_at = now;
	c->polled_ns = 0;
	c->incarnation = ++connects;

	c->ops = rbp_remote_choose_transport(ci, &endpoint, now);
	if (c->ops == NULL)
		c->retry_at = now + RBP_RECONNECT_NS;
	else if (may_start(d, c, pages, patient, now))
	{
		if (!c->ops->costly || is_pusher)
			c->waited = false;
		if (my_conns == NULL && !is_pusher)
			publish_connections();
		status = c->ops->connect(&endpoint, &credentials, &c->conn);
		if (status == RBP_OK)
		{
			c->state = CONN_CONNECTING;
			has_device |= c->ops->costly;
			if (my_conns != NULL)
				pg_atomic_write_u64(&my_conns->used_at[ci], (uint64) now);
		}
		else
		{
			if (c->has_slot)
				pg_atomic_fetch_sub_u32(&d->conn_slots, 1);
			c->has_slot = false;
			c->retry_at = rbp_now_ns() +
				(c->ops->costly ? COSTLY_RETRY_NS : RBP_RECONNECT_NS);
			if (rbp_remote_downgrade(ci, status) || status == RBP_INVALID)
				status = RBP_CANCELED;
		}
	}
	explicit_bzero(&credentials, sizeof(credentials));
	return status;
}

/* Register the pusher's memory with the device, if possible. */
static void
register_push_memory(RbpLocalConn *c)
{
	static bool logged = false;
	RbpStatus	status;

	if (push_len == 0 || c->ops->register_memory == NULL)
		return;
	status = c->ops->register_memory(c->conn, push_base, push_len, &c->mr);
	if (status == RBP_OK)
		return;
	c->mr = NULL;
	rbp_stats_error("could not register the staging region with the RDMA device: %s",
					rbp_status_text(status));
	if (!logged)
		ereport(WARNING,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("remote_bp: could not register the staging region with the RDMA device: %s",
						rbp_status_text(status)),
				 errdetail("Pages are copied before they are pushed."),
				 errhint("Registered memory is locked: raise the server's RLIMIT_MEMLOCK (LimitMEMLOCK= in a unit, \"ulimit -l\" in a shell) above remote_bp.staging_size, or lower that.")));
	logged = true;
}

/* Connecting has succeeded or failed. */
static RbpStatus
conn_finish(int ci, RbpStatus status, int64 now)
{
	RbpLocalConn *c = &rbp_remote_conns[ci];
	RbpRemoteDonor *d = &rbp_remote_shared->donors[conn_donor(ci)];

	if (status == RBP_OK)
	{
		c->state = CONN_READY;
		c->waited = false;
		if (c->ops->costly)
			rbp_remote_costly_connected(ci);
		rbp_breaker_clear_suspicion(&d->breaker, c->connect_started);
		pg_atomic_write_u32(&d->transport, c->ops->bit);
		rbp_stats_latency(RBP_LATENCY_CONNECT, rbp_now_ns() - c->connect_started);
		if (is_pusher && conn_pool(ci) == RBP_POOL_BUFFER)
			register_push_memory(c);
		return RBP_OK;
	}
	rbp_remote_conn_close(ci);
	c->retry_at = now + (c->ops->costly ? COSTLY_RETRY_NS : RBP_RECONNECT_NS);

	/*
	 * Connecting makes progress only while this process polls it, which is
	 * with its next read.  If that was late, the donor may have given the
	 * handshake up, which does not count against it.
	 */
	if (status == RBP_CONNLOST && c->waited &&
		(!c->ops->costly || now - c->connect_started > CONNECT_TIMEOUT_NS))
		return RBP_CANCELED;

	/* what is denied over one transport is denied over all */
	if (status != RBP_DENIED && status != RBP_CANCELED &&
		rbp_remote_downgrade(ci, status))
		return RBP_CANCELED;
	return status;
}

/*
 * How long connecting may take.  A transport with costly connections begins
 * them again several times before it gives up, in the background of reads;
 * but a patient caller that has another way takes that sooner.
 */
static inline int64
connect_timeout_ns(const RbpLocalConn *c, bool patient)
{
	return c->ops->costly && !(patient && c->has_fallback) ?
		RBP_COSTLY_CONNECT_NS : CONNECT_TIMEOUT_NS;
}

/*
 * Account for a wait that has just ended, and find out whether it has taken
 * too long to connect.
 *
 * A costly connection needs this process at each step, so only time counts
 * during which it was polled: the wait, and of the time since the poll before
 * it as much as lies between two polls of the pusher.
 */
static bool
account_wait(RbpLocalConn *c, bool patient, int64 wait_began)
{
	int64		now = rbp_now_ns();

	c->polled_ns += Min(wait_began - c->polled_at, RBP_BACKOFF_FIRST_NS) + now - wait_began;
	c->polled_at = now;
	if (c->ops->costly && now - c->connect_started < UNPOLLED_TIMEOUT_NS)
		return c->polled_ns > connect_timeout_ns(c, patient);
	return now - c->connect_started > CONNECT_TIMEOUT_NS;
}

/*
 * Continue to connect, or begin.
 *
 * RBP_TIMEOUT counts against the donor, which becomes suspect.  RBP_CANCELED
 * does not: the failure may be ours, because this process has only polled, or
 * the connection is costly, which takes its time.
 */
static RbpStatus
conn_continue(int ci, int pages, bool patient, int64 deadline_ns)
{
	RbpLocalConn *c = &rbp_remote_conns[ci];
	RbpRemoteDonor *d = &rbp_remote_shared->donors[conn_donor(ci)];
	int64		now = rbp_now_ns();
	int64		until = deadline_ns;
	uint32		wait_event;
	RbpStatus	status;

	/*
	 * the donor may have given up one that was not polled for long: start
	 * over
	 */
	if (patient && c->state == CONN_CONNECTING &&
		now - c->connect_started > connect_timeout_ns(c, patient))
		rbp_remote_conn_close(ci);
	if (c->state != CONN_CONNECTING)
	{
		if (now < c->retry_at && !patient)
			return RBP_CANCELED;
		status = conn_start(ci, pages, patient, now, deadline_ns);
		if (status != RBP_OK)
			return status;
	}
	if (patient && c->has_fallback)
		until = Min(until, now + CONNECT_TIMEOUT_NS);
	else if (!patient && c->waited)
		until = now;
	wait_event = rbp_wait_start(RBP_WAIT_CONNECT);
	status = c->ops->connect_wait(c->conn, until);
	rbp_wait_end(wait_event);
	if (status != RBP_INPROGRESS)
		return conn_finish(ci, status, now);
	if (rbp_remote_give_up())
		return RBP_CANCELED;

	/* not for ever: the donor may have forgotten the connection */
	if (account_wait(c, patient, now))
	{
		bool		hangs = c->polled_ns > connect_timeout_ns(c, patient);

		if (!hangs)
			rbp_remote_connect_unfinished(ci);
		rbp_remote_conn_close(ci);
		/* a process that has only polled has seen no timeout */
		if (!c->ops->costly)
			return patient || !c->waited ? RBP_TIMEOUT : RBP_CANCELED;
		c->retry_at = now + COSTLY_RETRY_NS;
		if (hangs)
			rbp_remote_note_error(d, DONOR_ERROR_CONNECT, c->ops->bit, RBP_TIMEOUT);
		if (!hangs || rbp_remote_downgrade(ci, RBP_TIMEOUT) ||
			(c->waited && !patient))
			return RBP_CANCELED;
		return RBP_TIMEOUT;
	}
	if (patient)
		return RBP_TIMEOUT;
	if (c->waited)
		return RBP_CANCELED;
	c->waited = true;
	return c->ops->costly && !is_pusher ? RBP_CANCELED : RBP_TIMEOUT;
}

RbpStatus
rbp_remote_conn_get(int ci, int pages, bool patient, int64 now,
					int64 deadline_ns)
{
	RbpLocalConn *c = &rbp_remote_conns[ci];
	RbpRemoteDonor *d = &rbp_remote_shared->donors[conn_donor(ci)];
	RbpStatus	status;

	if (c->state >= CONN_CONNECTING)
	{
		if (unlikely(is_stale(ci)))
		{
			/* requests in flight will likely succeed */
			close_after(ci, c->inflight == 0 ? 0 :
						Min(deadline_ns, rbp_now_ns() + rbp_guc_io_timeout_ns()));
			c->retry_at = 0;
		}
		else if (unlikely(c->downgraded && !patient && c->inflight == 0 &&
						  rbp_remote_may_return(ci, now)))
		{
			rbp_remote_conn_close(ci);
			/* it is worth it: the threshold was reached before */
			c->reads_wanted = (uint32) rbp_guc_connect_threshold;
			c->retry_at = 0;
		}
		else if (unlikely(!patient && !c->pinned && c->inflight == 0 && yield_conn_slot(d, c)))
		{
			rbp_remote_conn_close(ci);
			note_over_limit(d, c, now);
		}
		else if (my_conns != NULL)
			pg_atomic_write_u64(&my_conns->used_at[ci], (uint64) now);
	}
	if (unlikely(!is_ready(c)))
	{
		status = conn_continue(ci, pages, patient, deadline_ns);

		/* it may be downgraded now, or have failed for a minor reason */
		for (int i = 0; patient && status == RBP_CANCELED && i < PATIENT_TRIES &&
			 rbp_now_ns() < deadline_ns; i++)
			status = conn_continue(ci, pages, patient, deadline_ns);
		if (status != RBP_OK)
			return status;
	}
	if (patient)
		c->pinned = true;
	return RBP_OK;
}

/*
 * ---- closing what is not needed ------------------------------------------
 */

/* Close connections that are idle for too long, stale, or above the bound. */
static void
close_unneeded(void)
{
	int64		idle_ns = (int64) pg_atomic_read_u64(&rbp_remote_shared->idle_ns);
	int64		now = rbp_now_ns();

	for (int ci = 0; ci < RBP_MAX_CONNS; ci++)
	{
		RbpLocalConn *c = &rbp_remote_conns[ci];
		RbpRemoteDonor *d = &rbp_remote_shared->donors[conn_donor(ci)];
		bool		idle;

		/* with requests in flight, it is checked again later */
		if (c->state < CONN_CONNECTING || c->inflight > 0)
			continue;
		idle = idle_ns > 0 &&
			now - (int64) pg_atomic_read_u64(&my_conns->used_at[ci]) > idle_ns;
		if (!idle && !is_stale(ci) && !yield_conn_slot(d, c))
			continue;
		close_unfinished(ci);
		if (idle)
			c->reads_wanted = 0;	/* apply the threshold anew */
	}
}

/*
 * Tell the server how many descriptors connections hold: one each, and those
 * of a device, which stays open.  Not within a file call.
 */
static void
account_descriptors(void)
{
	int			n = has_device ? DEVICE_DESCRIPTORS : 0;

	for (int ci = 0; ci < RBP_MAX_CONNS; ci++)
		n += rbp_remote_conns[ci].state >= CONN_CONNECTING;
	for (; descriptors < n; descriptors++)
		ReserveExternalFD();
	for (; descriptors > n; descriptors--)
		ReleaseExternalFD();
}

static void
close_if_asked(void)
{
	if (likely(pg_atomic_read_u32(&my_conns->asked) == 0))
		return;

	/*
	 * Before looking at the connections, with a full barrier: the pusher asks
	 * again for what becomes unneeded after that look.
	 */
	(void) pg_atomic_exchange_u32(&my_conns->asked, 0);
	close_unneeded();
}

pg_attribute_hot void
rbp_remote_transaction_ends(XactEvent event)
{
	if (my_conns == NULL)
		return;
	close_if_asked();
	account_descriptors();
}

/*
 * Ask processes to close connections; called by the pusher.  all: ask every
 * connected process, not only those with something to close.
 */
static void
ask_processes(int64 now, bool all)
{
	int64		idle_ns = rbp_guc_idle_timeout_ns();
	bool		over[RBP_MAX_DONORS];
	int			n = rbp_compat_max_procs();

	for (int i = 0; i < RBP_MAX_DONORS; i++)
		over[i] = pg_atomic_read_u32(&rbp_remote_shared->donors[i].conn_slots) >
			(uint32) rbp_guc_max_connections;
	for (int p = 0; p < n; p++)
	{
		ProcConns  *proc = &proc_conns[p];
		uint32		pid = pg_atomic_read_u32(&proc->pid);
		bool		ask = false;

		/*
		 * one that was asked before will check at the end of its transaction
		 */
		if (pid == 0 || pg_atomic_read_u32(&proc->asked) != 0)
			continue;
		for (int ci = 0; ci < RBP_MAX_CONNS && !ask; ci++)
		{
			int64		used_at = (int64) pg_atomic_read_u64(&proc->used_at[ci]);

			ask = used_at != 0 &&
				(all || over[conn_donor(ci)] ||
				 (idle_ns > 0 && now - used_at > idle_ns));
		}
		if (!ask)
			continue;
		(void) pg_atomic_exchange_u32(&proc->asked, 1);
		rbp_compat_signal_catchup((pid_t) pid);
	}
}

int64
rbp_remote_maintain_connections(void)
{
	static int64 next_check = 0;
	static uint32 seen_stale = 0;
	static uint32 seen_settings = 0;
	int64		now = rbp_now_ns();
	int64		idle_ns = rbp_guc_idle_timeout_ns();
	uint32		stale = pg_atomic_read_u32(&rbp_remote_shared->stale);
	int64		next;

	/* With other settings, what has failed may work. */
	for (int i = 0; seen_settings != rbp_guc_connect_settings_version && i < RBP_MAX_DONORS; i++)
	{
		rbp_remote_downgrade_forget(&rbp_remote_shared->donors[i]);
		breaker_reset_backoff(&rbp_remote_shared->donors[i].breaker);
		next_check = now;
	}
	seen_settings = rbp_guc_connect_settings_version;
	next = rbp_remote_check_downgrades(now);

	/* The pusher publishes its settings for all processes. */
	if (pg_atomic_read_u32(&rbp_remote_shared->max_slots) != (uint32) rbp_guc_max_connections ||
		pg_atomic_read_u64(&rbp_remote_shared->idle_ns) != (uint64) idle_ns)
	{
		pg_atomic_write_u32(&rbp_remote_shared->max_slots,
							(uint32) rbp_guc_max_connections);
		pg_atomic_write_u64(&rbp_remote_shared->idle_ns, (uint64) idle_ns);
		next_check = now;
	}
	if (now >= next_check || stale != seen_stale)
	{
		rbp_remote_check_reachability();
		ask_processes(now, stale != seen_stale);
		for (int ci = 0; stale != seen_stale && ci < RBP_MAX_CONNS; ci++)
			if (is_stale(ci))
				rbp_remote_conn_close(ci);
		seen_stale = stale;
		next_check = now + (idle_ns > 0 ? Min(RBP_CHECK_NS, idle_ns / 2) : RBP_CHECK_NS);
	}
	account_descriptors();
	return Min(next, next_check - now);
}
