/*-------------------------------------------------------------------------
 *
 * conn.c
 *	  Connections to donors: made when needed, bounded in number, closed.
 *	  link.c chooses their transports, idle.c closes those not needed any
 *	  more.
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
 * requests are completed or failed first, so that nothing refers to a closed
 * connection.
 *
 * Price.  Who reads pages asks first whether it is worth a connection
 * (rbp_remote_slot_worth()).  Once it was, it is, unless the connection is closed
 * for being idle.
 *
 * A costly connection (RbpTransportOps.costly) may take long although all is
 * well: its being late makes no donor suspect, and a process that has waited
 * for one in vain does not wait again until it has got one.
 *
 * Whoever asks for a connection gets a status; what that means for the link is
 * accounted for here (rbp_link_failed()).
 *
 * All shared state here is atomics.  An RbpProcConns belongs to the process with
 * the PGPROC of that number; the pusher only writes "asked".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

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
 * Next attempt to get a connection slot, to make a costly connection, or where
 * something is lacking
 */
#define RETRY_NS			INT64CONST(1000000000)

/* Between attempts to get remote_lock */
#define LOCK_RETRY_US		200

/* How often a connection is begun again for data with no other copy */
#define PATIENT_TRIES		3

RbpLocalConn rbp_remote_conns[RBP_MAX_CONNS];
RbpProcConns *rbp_remote_proc_conns = NULL;
RbpProcConns *rbp_remote_my_conns = NULL;
bool		rbp_remote_has_device = false;
bool		rbp_remote_no_other_copy = false;

#define proc_conns	rbp_remote_proc_conns
#define my_conns	rbp_remote_my_conns

static bool exiting = false;	/* the process exits: no new connections */

static uint32 connects = 0;		/* connections begun by this process */
static bool is_worker = false;	/* its connections take no slots */

char		rbp_remote_bounce[RBP_MAX_BATCH * BLCKSZ] pg_attribute_aligned(PG_CACHE_LINE_SIZE);

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
	return mul_size(sizeof(RbpProcConns), rbp_compat_max_procs() + 1);
}

void
rbp_remote_conn_shmem_init(void *mem)
{
	proc_conns = (RbpProcConns *) CACHELINEALIGN(mem);
	memset(proc_conns, 0, rbp_compat_max_procs() * sizeof(RbpProcConns));
	pg_atomic_init_u32(&rbp_remote_shared->max_slots,
					   (uint32) rbp_guc_max_connections);
	pg_atomic_init_u64(&rbp_remote_shared->idle_ns,
					   (uint64) rbp_guc_idle_timeout_ns());

	for (int pool = 0; pool < RBP_POOLS; pool++)
		for (int i = 0; i < RBP_MAX_DONORS; i++)
		{
			rbp_remote_conns[conn_index((RbpPool) pool, i)].donor = i;
			rbp_remote_conns[conn_index((RbpPool) pool, i)].pool = (RbpPool) pool;
		}
	/* this is the postmaster, and its children inherit it */
	rbp_transport_set_give_up(rbp_remote_give_up);
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
		rbp_remote_conn_abandon(&rbp_remote_conns[ci]);
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
	/* what is sealed is sent from elsewhere, and over devices everything is */
	push_base = rbp_guc_encrypt == RBP_ENCRYPT_OFF ? base : rbp_remote_bounce;
	push_len = rbp_guc_encrypt == RBP_ENCRYPT_OFF ? len : sizeof(rbp_remote_bounce);
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

bool
rbp_remote_conn_yield_slot(RbpLocalConn *c)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[c->donor];
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

static void
release_conn_slot(RbpLocalConn *c)
{
	if (c->has_slot)
		pg_atomic_fetch_sub_u32(&rbp_remote_shared->donors[c->donor].conn_slots, 1);
	c->has_slot = false;
}

/*
 * ---- waiting and closing -------------------------------------------------
 */

/*
 * Data with another copy is not worth waiting for once the query has been
 * interrupted.
 */
bool
rbp_remote_give_up(void)
{
	return rbp_remote_interrupted() &&
		(!rbp_remote_no_other_copy || rbp_remote_can_fail_with_eintr());
}

void
rbp_remote_conn_wait(RbpLocalConn *c, RbpIo *ios, int n, int64 until_ns)
{
	uint32		wait_event = rbp_wait_start(c->pool == RBP_POOL_TEMP ? RBP_WAIT_SPILL :
											ios->kind == RBP_IO_READ ? RBP_WAIT_READ : RBP_WAIT_WRITE);

	(void) c->ops->wait(c->conn, ios, n, until_ns);
	rbp_wait_end(wait_event);
}

/*
 * Close a connection, after its requests in flight have completed or that time
 * has passed.
 */
static void
close_after(RbpLocalConn *c, int64 until_ns)
{
	dlist_mutable_iter iter;

	if (c->state < CONN_CONNECTING)
		return;
	dlist_foreach_modify(iter, &c->flights)
	{
		RbpFlight  *flight = dlist_container(RbpFlight, node, iter.cur);

		rbp_remote_conn_wait(c, flight->ios, flight->n, until_ns);
		for (int i = 0; i < flight->n; i++)
			if (flight->ios[i].status == RBP_TIMEOUT)
				flight->ios[i].status = RBP_CONNLOST;
		flight->waiting = false;
		dlist_delete(&flight->node);
	}
	if (c->mr != NULL)
		c->ops->deregister_memory(c->conn, c->mr);
	c->ops->close(c->conn);
	c->conn = NULL;
	c->mr = NULL;
	c->state = CONN_NONE;
	c->pinned = false;
	if (my_conns != NULL)
		pg_atomic_write_u64(&my_conns->used_at[c - rbp_remote_conns], 0);
	release_conn_slot(c);
}

void
rbp_remote_conn_close(RbpLocalConn *c)
{
	close_after(c, 0);
}

void
rbp_remote_conns_close(RbpPool pool)
{
	for (int i = 0; i < RBP_MAX_DONORS; i++)
		rbp_remote_conn_close(&rbp_remote_conns[conn_index(pool, i)]);
}

void
rbp_remote_conn_abandon(RbpLocalConn *c)
{
	if (c->state == CONN_CONNECTING && !is_stale(c) && c->ops->costly &&
		c->polled_at - c->connect_started > RBP_CONNECT_NS)
		(void) rbp_link_failed(c, ON_CONNECT, LINK_UNFINISHED, RBP_TIMEOUT);
	rbp_remote_conn_close(c);
}

int
rbp_remote_conn_failed(RbpLocalConn *c, RbpLinkPhase phase, RbpLinkEvent event,
					   RbpStatus status)
{
	int			verdict = rbp_link_failed(c, phase, event, status);

	/*
	 * The connection is usable after a late answer, but after two in a row a
	 * new one is more promising.  With registered memory it is closed at
	 * once, because taking that memory back from the device ends the
	 * connection.
	 */
	if ((verdict & VERDICT_CLOSE_AGAIN) != 0 && is_ready(c) &&
		(++c->timeouts >= 2 || (c->mr != NULL && phase == ON_REQUEST)))
		verdict |= VERDICT_CLOSE;
	if (verdict & VERDICT_CLOSE)
		rbp_remote_conn_close(c);
	if (verdict & VERDICT_PAUSE)
		c->retry_at = rbp_now_ns() + RETRY_NS;
	if (verdict & VERDICT_ELSEWHERE)
		c->retry_at = 0;
	if (verdict & VERDICT_DENIED)
		c->state = CONN_DENIED;
	return verdict;
}

/*
 * ---- making --------------------------------------------------------------
 */

/* Note that this process has no connection for lack of a slot. */
static void
note_over_limit(RbpLocalConn *c, int64 now)
{
	pg_atomic_fetch_add_u32(&rbp_remote_shared->donors[c->donor].over_limit, 1);
	c->state = CONN_OVER_LIMIT;
	c->retry_at = now + RETRY_NS;
}

/*
 * May this process begin a connection?  If so, takes a slot if one is needed.
 */
static bool
may_start(RbpLocalConn *c, bool patient, int64 now)
{
	if (is_worker || rbp_compat_is_io_worker())
		return true;
	if (!take_conn_slot(&rbp_remote_shared->donors[c->donor], patient))
	{
		note_over_limit(c, now);
		return false;
	}
	c->has_slot = true;
	return true;
}

/* Connecting has failed.  RBP_CANCELED says that it may be tried again. */
static RbpStatus
start_over(RbpLocalConn *c, RbpStatus status)
{
	rbp_remote_conn_close(c);
	release_conn_slot(c);
	c->retry_at = rbp_now_ns() + (c->ops->costly ? RETRY_NS : RBP_RECONNECT_NS);
	return status == RBP_INVALID && !has_fallback(c) ? RBP_CANCELED : status;
}

/*
 * Begin to connect, with the current endpoint and credentials.  Returns
 * RBP_CANCELED if that is not possible now although nothing is wrong.
 */
static RbpStatus
conn_start(RbpLocalConn *c, bool patient, int64 now, int64 deadline_ns)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[c->donor];
	RbpEndpoint endpoint;
	RbpCredentials credentials;
	RbpStatus	status = RBP_CANCELED;

	c->state = CONN_NONE;
	if (exiting ||
		(!is_pusher && !patient &&
		 now < (int64) pg_atomic_read_u64(&d->refused_until[c->pool])))
		return RBP_CANCELED;

	/* The lease worker may hold it for long; only a patient caller waits. */
	while (!LWLockConditionalAcquire(&rbp_remote_shared->remote_lock, LW_SHARED))
	{
		if (!patient || rbp_now_ns() >= deadline_ns || rbp_remote_give_up())
			return RBP_CANCELED;
		pg_usleep(LOCK_RETRY_US);
	}
	endpoint = d->endpoint;
	credentials = rbp_remote_shared->leases[c->pool].credentials;
	c->serial = conn_serial(c);
	LWLockRelease(&rbp_remote_shared->remote_lock);
	c->timeouts = 0;
	c->connect_started = now;
	c->polled_at = now;
	c->polled_ns = 0;
	c->connecting_ns = 0;
	c->incarnation = ++connects;

	c->ops = rbp_link_choose(c, &endpoint);
	if (c->ops == NULL)
		c->retry_at = now + RBP_RECONNECT_NS;
	else if (may_start(c, patient, now))
	{
		if (!c->ops->costly || is_pusher)
			c->waited = false;
		if (my_conns == NULL && !is_pusher)
			publish_connections();
		status = c->ops->connect(&endpoint, &credentials, &c->conn);
		if (status == RBP_OK)
		{
			c->state = CONN_CONNECTING;
			rbp_remote_has_device |= c->ops->costly;
			if (my_conns != NULL)
				pg_atomic_write_u64(&my_conns->used_at[c - rbp_remote_conns], (uint64) now);
		}
		else
			status = start_over(c, status);
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
	rbp_stats_error("could not register the staging region with the %s device: %s",
					c->ops->device->name, rbp_status_text(status));
	if (!logged)
		ereport(WARNING,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("remote_bp: could not register the staging region with the %s device: %s",
						c->ops->device->name, rbp_status_text(status)),
				 errdetail("Pages are copied before they are pushed."),
				 errhint("Registered memory is locked: raise the server's RLIMIT_MEMLOCK (LimitMEMLOCK= in a unit, \"ulimit -l\" in a shell) above remote_bp.staging_size, or lower that.")));
	logged = true;
}

/* Connecting has succeeded or failed. */
static RbpStatus
conn_finish(RbpLocalConn *c, RbpStatus status, int64 now)
{
	if (status != RBP_OK)
	{
		/*
		 * Connecting makes progress only while this process polls it, which
		 * is with its next read.  If that was late, the donor may have given
		 * the handshake up, which does not count against it.
		 */
		bool		late = c->waited &&
		(!c->ops->costly || now - c->connect_started > RBP_CONNECT_NS);

		status = start_over(c, status);
		return status == RBP_CONNLOST && late ? RBP_CANCELED : status;
	}
	c->state = CONN_READY;
	c->waited = false;
	rbp_choice_connected(LINK_OF(c->ops->bit) - 1, c->connecting_ns);
	rbp_link_done(c, c->ops, ON_CONNECT, LINK_DONE, c->connect_started);
	pg_atomic_write_u32(&rbp_remote_shared->donors[c->donor].transport, c->ops->bit);
	rbp_stats_latency(RBP_LATENCY_CONNECT, rbp_now_ns() - c->connect_started);
	if (is_pusher && c->pool == RBP_POOL_BUFFER)
		register_push_memory(c);
	return RBP_OK;
}

/*
 * How long connecting may take.  A transport with costly connections begins
 * them again several times before it gives up, in the background of reads;
 * but a patient caller that has another way takes that sooner.
 */
static inline int64
connect_timeout_ns(const RbpLocalConn *c, bool patient)
{
	return patient && has_fallback(c) ? RBP_CONNECT_NS : c->ops->connect_ns;
}

/*
 * Continue to connect, or begin.
 *
 * RBP_TIMEOUT counts against the donor, which becomes suspect.  RBP_CANCELED
 * does not: the failure may be ours, because this process has only polled, or
 * the connection is costly, which takes its time.
 */
static RbpStatus
conn_continue(RbpLocalConn *c, bool patient, int64 deadline_ns)
{
	int64		now = rbp_now_ns();
	int64		until = deadline_ns;
	int64		ended;
	bool		hung;
	uint32		wait_event;
	RbpStatus	status;

	/*
	 * the donor may have given up one that was not polled for long: start
	 * over
	 */
	if (patient && c->state == CONN_CONNECTING &&
		now - c->connect_started > connect_timeout_ns(c, patient))
		rbp_remote_conn_close(c);
	if (c->state != CONN_CONNECTING)
	{
		if (now < c->retry_at && !patient)
			return RBP_CANCELED;
		status = conn_start(c, patient, now, deadline_ns);
		if (status != RBP_OK)
			return status;
	}
	if (patient && has_fallback(c))
		until = Min(until, now + RBP_CONNECT_NS);
	else if (!patient && c->waited)
		until = now;
	wait_event = rbp_wait_start(RBP_WAIT_CONNECT);
	status = c->ops->connect_wait(c->conn, until);
	rbp_wait_end(wait_event);
	ended = rbp_now_ns();
	c->connecting_ns += ended - now;
	if (status != RBP_INPROGRESS && status != RBP_TIMEOUT)
		return conn_finish(c, status, now);
	if (status == RBP_INPROGRESS && rbp_remote_give_up())
		return RBP_CANCELED;

	/*
	 * Not for ever: the donor may have forgotten the connection.  One that
	 * takes long needs this process at each step, so only time counts during
	 * which it was polled: this wait, and of the time since the poll before
	 * it as much as lies between two polls of the pusher.  If its messages
	 * are lost, the transport gives it up before that (RBP_TIMEOUT).
	 */
	c->polled_ns += Min(now - c->polled_at, RBP_BACKOFF_FIRST_NS) + ended - now;
	c->polled_at = ended;
	hung = status == RBP_TIMEOUT || c->polled_ns > connect_timeout_ns(c, patient);
	if (hung || ended - c->connect_started >= c->ops->handshake_ns)
	{
		int			verdict;

		(void) start_over(c, RBP_TIMEOUT);
		verdict = rbp_remote_conn_failed(c, ON_CONNECT, hung ? LINK_HUNG : LINK_UNFINISHED,
										 RBP_TIMEOUT);
		/* a process that has only polled has seen no timeout */
		return (verdict & VERDICT_ELSEWHERE) != 0 || (c->ops->costly && !hung) ||
			(c->waited && !patient) ? RBP_CANCELED : RBP_TIMEOUT;
	}
	if (patient)
		return RBP_TIMEOUT;
	if (c->waited)
		return RBP_CANCELED;
	c->waited = true;
	return c->ops->costly && !is_pusher ? RBP_CANCELED : RBP_TIMEOUT;
}

/*
 * Account for a failure to connect, by a caller that began at that time.
 * Returns RBP_CANCELED if there is another transport, which may be tried now.
 */
static RbpStatus
account_failure(RbpLocalConn *c, RbpStatus status, RbpConnUse use, int64 began)
{
	/* a device that cannot be set up so is of no use, either */
	RbpLinkEvent event = status == RBP_INVALID ? LINK_NO_DEVICE : rbp_link_event(status);

	if (event == LINK_LATE && use != USE_PROBE)
		event = late_event(use == USE_PATIENT, rbp_now_ns() - began);
	/* a costly connection may take long although all is well */
	else if (event == LINK_LATE && c->state == CONN_CONNECTING && c->ops->costly)
		event = LINK_OTHER;
	if (event == LINK_OTHER)
		return status;
	return rbp_remote_conn_failed(c, use == USE_PROBE && !has_fallback(c) ? ON_PING : ON_CONNECT,
								  event, status) & VERDICT_ELSEWHERE ? RBP_CANCELED : status;
}

RbpStatus
rbp_remote_conn_get(RbpLocalConn *c, RbpConnUse use, int64 now, int64 deadline_ns)
{
	bool		patient = use == USE_PATIENT;

	if (c->state >= CONN_CONNECTING)
	{
		bool		idle = dlist_is_empty(&c->flights);

		if (unlikely(is_stale(c)))
		{
			/* requests in flight will likely succeed */
			close_after(c, idle ? 0 :
						Min(deadline_ns, rbp_now_ns() + rbp_guc_io_timeout_ns()));
			c->retry_at = 0;
		}
		else if (unlikely(is_downgraded(c) && !patient && idle && rbp_link_may_return(c, now)))
		{
			rbp_remote_conn_close(c);
			c->retry_at = 0;
		}
		else if (unlikely(!patient && !c->pinned && idle && rbp_remote_conn_yield_slot(c)))
		{
			rbp_remote_conn_close(c);
			note_over_limit(c, now);
		}
		else if (my_conns != NULL)
			pg_atomic_write_u64(&my_conns->used_at[c - rbp_remote_conns], (uint64) now);
	}

	/* it may be downgraded now, or have failed for a minor reason */
	for (int tries = 0; unlikely(!is_ready(c)); tries++)
	{
		RbpStatus	status = conn_continue(c, patient, deadline_ns);

		if (status == RBP_OK)
			break;
		if (status != RBP_CANCELED)
			status = account_failure(c, status, use, now);
		if (!patient || status != RBP_CANCELED || tries == PATIENT_TRIES ||
			rbp_now_ns() >= deadline_ns)
			return status;
	}
	c->pinned |= patient;
	return RBP_OK;
}
