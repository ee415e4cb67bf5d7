/*-------------------------------------------------------------------------
 *
 * link.c
 *	  Links to donors: what events do to them, and which one is used.
 *
 * A link leads to a donor over one transport; besides, ANY_LINK stands for the
 * donor over whichever is used.  All processes share a link's circuit breaker
 * and error.  Each process has a hold of each link, by which it alone leaves
 * the link alone for some time.
 *
 * The breaker of ANY_LINK is about requests.  A late answer is a miss for the
 * process that waited, and makes the donor suspect: that process leaves the
 * donor alone (a hold) until some process is known to have been answered
 * since.  So a donor that hangs costs each process one wait.  The pusher is
 * woken and sends a ping, with a longer timeout (probe.c).  If that is not
 * answered, or a connection is lost, the donor is down: page reads go to disk
 * without waiting, and only the pusher talks to the donor, by probes.  Two
 * more things open it, each time for longer, although the donor answers pings:
 * that it is late again and again, which its penalty tells, and that it
 * returns wrong bytes.
 *
 * The breaker of a transport's link is about connecting over it, when the
 * donor can be reached over another one as well (has_fallback(),
 * only under remote_bp.transport = auto).  Existing connections stay, whatever
 * its state.  It is open if nobody listens, a stranger does, or the device is
 * not to be used.  It is suspect if a handshake has timed out, after the
 * transport has begun it again several times: messages of the connection
 * manager may have been lost.  The pusher is woken and tries the transport by
 * itself.  Three such timeouts in a row, of any processes, open it.  Where no
 * process polls for long enough to see a timeout, because sessions are short
 * or read rarely, a handshake that one of them leaves unfinished counts as the
 * first.  What a process lacks (memory that may be locked, descriptors, a
 * route) is its own affair, and so is a busy donor: it holds the link.
 *
 * A new connection is made over the best link that is neither open nor held.
 * When a link's breaker is closed again, or a port of a device is active
 * again, RbpRemoteDonor.upgrades is incremented, and the processes whose
 * connections are downgraded replace them, each at a random moment within
 * RETURN_NS: the connection manager has a short queue, and what does not fit
 * is lost.  Connections over the better transport stay as they are.
 *
 * A request for data with no other copy (RBP_REMOTE_PATIENT) goes to any
 * donor, whatever the state of its links.  Health is a property of the donor:
 * what is found out over one pool's connection applies to the other's.
 *
 * All shared state here is atomics.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "base/guc.h"
#include "base/workers.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"
#include "remote/remote_internal.h"
#include "transport/transport.h"

#define shared		rbp_remote_shared

/*
 * A process forgets its suspicion after this time, or after SUSPECT_TIMEOUTS
 * of io_timeout if that is longer, since nobody pings if no pusher runs.  The
 * pusher takes less, even if it is in the middle of a batch.
 */
#define SUSPECT_LIMIT_NS	INT64CONST(1000000000)
#define SUSPECT_TIMEOUTS	20

/* How long a process holds a link for what it lacks, at first and at most */
#define HOLD_FIRST_NS		INT64CONST(30000000000)
#define HOLD_MAX_NS			INT64CONST(600000000000)

/* Downgraded connections return within this time */
#define RETURN_NS			INT64CONST(5000000000)

/* A timeout costs a query about as much as a hundred hits save. */
#define LATE_PENALTY		100

/* Of handshakes that time out, three open the link. */
#define HANDSHAKE_PENALTY	(RBP_PENALTY_LIMIT / 3 + 1)

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

/* A transport that has failed is rarely tried again. */
static const RbpBreakerTimes transport_times = {
	.first_delay = INT64CONST(30000000000),
	.base_delay = INT64CONST(60000000000),
	.max_delay = INT64CONST(600000000000),
	.reset_after = INT64CONST(600000000000),
};

RbpHold		rbp_link_holds[RBP_MAX_DONORS][RBP_LINKS];

/*
 * ---- the table of events -------------------------------------------------
 */

/*
 * Effects, besides the verdicts in remote_internal.h: on the donor, ANY_LINK,
 * or with OVER on the link of the transport.
 */
#define OVER		0x000100
#define HOLD		0x000200	/* this process holds it */
#define SUSPECT		0x000400	/* it is suspect */
#define PENALTY		0x000800	/* it is open if its penalty is too high */
#define ONCE		0x001000	/* ... which grows if it was not suspect yet */
#define IF_WELL		0x002000	/* all this unless the donor is suspect or
								 * down: one that answers over no transport
								 * says nothing of this one */
#define OPEN		0x004000	/* it is open */
#define STALE		0x008000	/* ... with its connections */
#define ANSWERED	0x010000	/* the donor is not suspect, if it was asked
								 * after that */
#define SUCCESS		0x020000	/* its penalty is a little less */
#define SETTLE		0x040000	/* the link of the transport is neither
								 * suspect nor held */
#define FAILURE		0x080000	/* one more in the view */
#define TIMEOUT		0x100000	/* likewise */
#define RECHECK		0x200000	/* the lease worker asks the broker */
#define REFUSE		0x400000	/* nobody connects for a moment */

#define LATE		(HOLD | SUSPECT | TIMEOUT)
#define LOST		(OPEN | STALE | FAILURE)
#define CLOSE		VERDICT_CLOSE
#define AGAIN		VERDICT_CLOSE_AGAIN
#define PAUSE		VERDICT_PAUSE
#define ELSEWHERE	VERDICT_ELSEWHERE
#define EACH(effect)	{effect, effect, effect}

/*
 * What an event does, by the kind of the transport: of a request and a ping,
 * two-sided, one-sided or local (tcp, verbs and shm); of connecting, not
 * costly, costly, or costly beside another transport.
 *
 * Over one-sided transports, reads do not involve the donor's processor, so
 * their success says nothing about it.  If it did, processes that are
 * connected would make a donor look alive whose process hangs, and each
 * process that needs a handshake or a mapping would wait in vain.  Over a
 * local one only a mapping can be late, since the rest is memcpy(); an
 * occasional late mapping says little about reads, so it adds no penalty.
 *
 * What is read ahead may be looked at long after its connection was lost, or
 * never be needed.  If nobody waits for it, the loss says little about the
 * donor as it is now, which others may be reading from: it is for the pusher's
 * ping to find out.
 *
 * A costly connection takes resources of our device, too.  That it could not
 * be made says little about existing ones.
 */
static const uint32 effects[RBP_LINK_PHASES][RBP_LINK_EVENTS][3] = {
	[ON_REQUEST] = {
		[LINK_DONE] = {ANSWERED | SUCCESS, SUCCESS, 0},
		[LINK_DONE_UNTIMED] = {ANSWERED, 0, 0},
		[LINK_LATE] = {LATE | PENALTY | AGAIN, LATE | PENALTY | AGAIN, LATE | AGAIN},
		[LINK_SILENT] = EACH(OPEN | TIMEOUT | CLOSE),
		[LINK_LOST] = EACH(LOST | CLOSE),
		[LINK_DROPPED] = EACH(HOLD | SUSPECT | CLOSE),
		[LINK_SHORTAGE] = EACH(CLOSE | PAUSE),
		[LINK_DENIED] = EACH(FAILURE | RECHECK | VERDICT_DENIED),
	},
	[ON_CONNECT] = {
		[LINK_DONE] = {ANSWERED, ANSWERED | SETTLE, ANSWERED | SETTLE},
		[LINK_LATE] = EACH(LATE),
		[LINK_SILENT] = EACH(OPEN | TIMEOUT),
		[LINK_HUNG] = {0, 0, OVER | HOLD | SUSPECT | PENALTY | ELSEWHERE},
		[LINK_UNFINISHED] = {0, 0, OVER | SUSPECT | PENALTY | ONCE | IF_WELL},
		[LINK_LOST] = {LOST, HOLD | SUSPECT | FAILURE, OVER | OPEN | ELSEWHERE},
		[LINK_NO_DEVICE] = {PAUSE, PAUSE, OVER | OPEN | ELSEWHERE},
		[LINK_SHORTAGE] = {PAUSE, PAUSE, OVER | HOLD | ELSEWHERE},
		[LINK_DENIED] = EACH(FAILURE | RECHECK | REFUSE),
	},
	[ON_PING] = {
		[LINK_DONE] = EACH(ANSWERED),
		[LINK_LATE] = EACH(OPEN | TIMEOUT | AGAIN),
		[LINK_LOST] = EACH(LOST | CLOSE),
		[LINK_SHORTAGE] = EACH(CLOSE),
		[LINK_DENIED] = EACH(RECHECK | CLOSE),
	},
	[ON_TRIAL] = {
		[LINK_LATE] = EACH(OVER | SUSPECT | PENALTY | IF_WELL),
		[LINK_LOST] = EACH(OVER | OPEN),
		[LINK_NO_DEVICE] = EACH(OVER | OPEN),
	},
};

/*
 * Of connecting, a local transport counts as costly where nobody listens or it
 * is not to be used: its socket is not reached from another network namespace.
 */
static inline uint32
effects_of(const RbpLocalConn *c, const RbpTransportOps *ops, RbpLinkPhase phase,
		   RbpLinkEvent event)
{
	bool		leads_nowhere = ops->local && (event == LINK_LOST || event == LINK_NO_DEVICE);

	if (phase != ON_CONNECT)
		return effects[phase][event][ops->local ? 2 : ops->one_sided];
	return effects[phase][event][c->has_other && (ops->costly || leads_nowhere) ? 2 : ops->costly];
}

RbpLinkEvent
rbp_link_event(RbpStatus status)
{
	static const uint8 events[] = {
		[RBP_OK] = LINK_DONE,
		[RBP_TIMEOUT] = LINK_LATE,
		[RBP_CONNLOST] = LINK_LOST,
		[RBP_PROTOCOL] = LINK_LOST,
		[RBP_OTHER_VERSION] = LINK_LOST,
		[RBP_UNPROVEN] = LINK_LOST,
		[RBP_OTHER_DEVICE] = LINK_NO_DEVICE,
		[RBP_BAD_DEVICE] = LINK_NO_DEVICE,
		[RBP_NOLIBRARY] = LINK_NO_DEVICE,
		[RBP_NOT_ADMITTED] = LINK_NO_DEVICE,
		[RBP_NOMEM] = LINK_SHORTAGE,
		[RBP_NOROUTE] = LINK_SHORTAGE,
		[RBP_BUSY] = LINK_SHORTAGE,
		[RBP_DENIED] = LINK_DENIED,
	};

	return status < lengthof(events) ? (RbpLinkEvent) events[status] : LINK_OTHER;
}

/*
 * ---- waking others -------------------------------------------------------
 */

void
rbp_remote_recheck_lease(RbpPool pool)
{
	if (pg_atomic_exchange_u32(&shared->leases[pool].recheck, 1) == 0)
		rbp_worker_wake(RBP_WORKER_LEASE);
}

void
rbp_link_make_stale(pg_atomic_uint32 *serial)
{
	pg_atomic_fetch_add_u32(serial, 1);
	pg_atomic_fetch_add_u32(&shared->stale, 1);
}

/*
 * ---- errors and states ---------------------------------------------------
 */

void
rbp_link_init(RbpRemoteDonor *d)
{
	Size		kept = offsetof(RbpRemoteDonor, over_limit);

	memset((char *) d + kept, 0, sizeof(*d) - kept);
}

/*
 * The two stores are not atomic together: the time may belong to another error
 * at about the same moment.
 */
static void
set_error(RbpLink *link, uint32 error)
{
	pg_atomic_write_u32(&link->error, error);
	pg_atomic_write_u64(&link->error_at, (uint64) GetCurrentTimestamp());
}

void
rbp_remote_note_error(RbpRemoteDonor *d, RbpDonorError what, uint32 transport,
					  RbpStatus status)
{
	set_error(&d->links[ANY_LINK], ERROR_MAKE(what, transport, status));
}

bool
rbp_link_unresolved(const RbpEndpoint *endpoint)
{
	return rbp_endpoint_unresolved(endpoint) &&
		rbp_transport_choose(rbp_guc_transport, endpoint) == NULL;
}

void
rbp_link_note_change(RbpRemoteDonor *d)
{
	pg_atomic_write_u64(&d->state_since, (uint64) GetCurrentTimestamp());
}

void
rbp_remote_note_unreachable(RbpRemoteDonor *d, const RbpEndpoint *endpoint)
{
	const RbpTransportOps *ops = rbp_transport_by_name(rbp_guc_transport);
	RbpDonorError what;

	if (rbp_link_unresolved(endpoint))
		what = DONOR_ERROR_UNRESOLVED;
	else if (ops == NULL)
		what = DONOR_ERROR_NO_TRANSPORT;
	else if (ops->device != NULL && !ops->device->usable())
		what = DONOR_ERROR_NO_DEVICE;
	else if ((endpoint->transports & ops->bit) == 0)
		what = DONOR_ERROR_NOT_OFFERED;
	else
		what = DONOR_ERROR_NOT_FROM_HERE;
	rbp_remote_note_error(d, what, ops == NULL ? 0 : ops->bit, RBP_INVALID);
}

/*
 * ---- holds ---------------------------------------------------------------
 */

bool
rbp_link_is_held(int donor, int link)
{
	RbpHold    *h = &rbp_link_holds[donor][link];
	int64		closed_at;

	if (likely(h->until == 0))
		return false;
	closed_at = (int64) pg_atomic_read_u64(&link_breaker(&shared->donors[donor], link)->closed_at);
	if (h->serial != donor_serial(donor))
		h->until = h->delay = 0;
	else if (closed_at > h->until - h->delay || rbp_now_ns() >= h->until)
		h->until = 0;
	return h->until != 0;
}

/* Hold a link: a transport's for twice as long each time in a row. */
static void
hold(int donor, int link)
{
	RbpHold    *h = &rbp_link_holds[donor][link];

	if (h->serial != donor_serial(donor))
		h->delay = 0;
	if (link == ANY_LINK)
		h->delay = Max(SUSPECT_LIMIT_NS, SUSPECT_TIMEOUTS * rbp_guc_io_timeout_ns());
	else
		h->delay = Min(Max(2 * h->delay, HOLD_FIRST_NS), HOLD_MAX_NS);
	h->until = rbp_now_ns() + h->delay;
	h->serial = donor_serial(donor);
}

/*
 * ---- transitions ---------------------------------------------------------
 */

static void
trip(RbpRemoteDonor *d, int link, const RbpBreakerTimes *times, bool stale)
{
	if (!rbp_breaker_trip(link_breaker(d, link), times) || link != ANY_LINK)
		return;
	pg_atomic_fetch_add_u32(&d->times_down, 1);
	rbp_link_note_change(d);

	/*
	 * What has broken one connection has likely broken all.  With a new
	 * serial the others are closed without being tried, and so do not trip
	 * the breaker again.
	 */
	if (stale)
	{
		rbp_link_make_stale(&d->serial);
		for (int pool = 0; pool < RBP_POOLS; pool++)
			if (d->known[pool])
				rbp_remote_recheck_lease((RbpPool) pool);
	}
	rbp_worker_wake(RBP_WORKER_PUSHER);
}

void
rbp_remote_donor_down(RbpRemoteDonor *d, bool lost)
{
	trip(d, ANY_LINK, &donor_times, lost);
}

void
rbp_remote_wrong_bytes(uint32 slot)
{
	uint32		word = slot_word(slot);
	RbpRemoteDonor *d;
	RbpPool		pool;

	if (word == MAP_NONE)
		return;
	pool = word_region(word)->pool;
	d = &shared->donors[word_region(word)->donor];
	/* what opens is what was sealed, so it has its hash */
	if (slot_is_sealed(pool, slot))
		rbp_stats_count(pool == RBP_POOL_TEMP ? RBP_COUNT_SPILL_SEAL_FAILURES : RBP_COUNT_SEAL_FAILURES, 1);
	donor_count(d, RBP_DONOR_FAILURES, 1);
	rbp_remote_note_error(d, DONOR_ERROR_WRONG_BYTES, pg_atomic_read_u32(&d->transport),
						  RBP_OK);
	if (rbp_breaker_wrong(link_breaker(d, ANY_LINK)))
		trip(d, ANY_LINK, &wrong_bytes_times, false);
}

void
rbp_link_done(RbpLocalConn *c, const RbpTransportOps *ops, RbpLinkPhase phase,
			  RbpLinkEvent event, int64 asked_at)
{
	RbpRemoteDonor *d = &shared->donors[c->donor];
	uint32		effect = effects_of(c, ops, phase, event);

	if (effect & ANSWERED)
		rbp_breaker_clear_suspicion(link_breaker(d, ANY_LINK), asked_at);
	if (effect & SUCCESS)
		breaker_reduce_penalty(link_breaker(d, ANY_LINK));
	if (effect & SETTLE)
	{
		RbpBreaker *breaker = link_breaker(d, LINK_OF(ops->bit));

		memset(&rbp_link_holds[c->donor][LINK_OF(ops->bit)], 0, sizeof(RbpHold));
		if (breaker_state(breaker) == BREAKER_SUSPECT)
			(void) rbp_breaker_close(breaker);
	}
}

/* What a failure does to a link */
static void
affect(RbpRemoteDonor *d, int link, uint32 effect)
{
	RbpBreaker *breaker = link_breaker(d, link);
	bool		fresh = false;

	if ((effect & IF_WELL) != 0 && breaker_state(link_breaker(d, ANY_LINK)) != BREAKER_CLOSED)
		return;
	/* hold it before the change: see note_closed() in breaker.c */
	if (effect & HOLD)
		hold((int) (d - shared->donors), link);
	if (effect & SUSPECT)
		fresh = rbp_breaker_suspect(breaker);
	if (fresh)
		rbp_worker_wake(RBP_WORKER_PUSHER);
	if ((effect & PENALTY) != 0 && (fresh || (effect & ONCE) == 0) &&
		rbp_breaker_penalize(breaker, link == ANY_LINK ? LATE_PENALTY : HANDSHAKE_PENALTY))
	{
		if (link == ANY_LINK)
			rbp_remote_note_error(d, DONOR_ERROR_OFTEN_LATE,
								  pg_atomic_read_u32(&d->transport), RBP_TIMEOUT);
		effect |= OPEN;
	}
	if (effect & OPEN)
		trip(d, link, link == ANY_LINK ? &donor_times : &transport_times, (effect & STALE) != 0);
}

int
rbp_link_failed(RbpLocalConn *c, RbpLinkPhase phase, RbpLinkEvent event,
				RbpStatus status)
{
	RbpRemoteDonor *d = &shared->donors[c->donor];
	int			over = LINK_OF(c->ops->bit);
	uint32		effect = effects_of(c, c->ops, phase, event);
	int			verdict = (int) (effect & 0xff);
	uint32		error = ERROR_MAKE(is_ready(c) ? DONOR_ERROR_REQUEST :
								   verdict & ELSEWHERE ? DONOR_ERROR_ELSEWHERE : DONOR_ERROR_CONNECT,
								   c->ops->bit, status);

	/*
	 * What a stale connection meets is not news, unless it was waited for;
	 * nor that one is lost that was denied something, which may have ended
	 * it.
	 */
	if (event != LINK_DENIED && event != LINK_LATE && event != LINK_SILENT &&
		(is_stale(c) ||
		 (c->state == CONN_DENIED && (event == LINK_LOST || event == LINK_DROPPED))))
		return verdict;
	if (!is_ready(c))
		set_error(&d->links[over], error);
	if (phase != ON_TRIAL && event != LINK_UNFINISHED)
		set_error(&d->links[ANY_LINK], error);
	/* a donor that is down is probed until it is not */
	if (phase == ON_PING && donor_is_down(d))
		return verdict;
	affect(d, effect & OVER ? over : ANY_LINK, effect);
	if (effect & FAILURE)
		donor_count(d, RBP_DONOR_FAILURES, 1);
	if (effect & TIMEOUT)
		donor_count(d, RBP_DONOR_TIMEOUTS, 1);
	if (effect & REFUSE)
		pg_atomic_write_u64(&d->refused_until[c->pool],
							(uint64) (rbp_now_ns() + RBP_RECONNECT_NS));
	if (effect & RECHECK)
		rbp_remote_recheck_lease(c->pool);
	return verdict;
}

void
rbp_link_up(RbpRemoteDonor *d, int link)
{
	if (!rbp_breaker_close(link_breaker(d, link)))
		return;
	if (link == ANY_LINK)
		rbp_link_note_change(d);
	else
		pg_atomic_fetch_add_u32(&d->upgrades, 1);
}

int64
rbp_link_probe_failed(RbpRemoteDonor *d, int link)
{
	return rbp_breaker_probe_failed(link_breaker(d, link),
									link == ANY_LINK ? &donor_times : &transport_times);
}

void
rbp_link_forget(RbpRemoteDonor *d)
{
	for (int link = ANY_LINK + 1; link < RBP_LINKS; link++)
	{
		pg_atomic_write_u32(&d->links[link].error, 0);
		(void) rbp_breaker_close(link_breaker(d, link));
	}
	breaker_reset_backoff(link_breaker(d, ANY_LINK));
}

void
rbp_link_new_endpoint(RbpRemoteDonor *d)
{
	rbp_link_forget(d);
	for (int link = ANY_LINK + 1; link < RBP_LINKS; link++)
		breaker_reset_backoff(link_breaker(d, link));
	for (int pool = 0; pool < RBP_POOLS; pool++)
		pg_atomic_write_u64(&d->refused_until[pool], 0);
	rbp_link_make_stale(&d->serial);
	rbp_link_up(d, ANY_LINK);
}

void
rbp_link_new_lease(RbpPool pool)
{
	/* denials and losses may have been due to the old lease */
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		pg_atomic_write_u64(&shared->donors[i].refused_until[pool], 0);
		breaker_reset_backoff(link_breaker(&shared->donors[i], ANY_LINK));
	}
}

/*
 * ---- choosing ------------------------------------------------------------
 */

void
rbp_link_configure(void)
{
	static uint32 configured = 0;
	RbpDeviceConfig config = RBP_DEVICE_CONFIG_DEFAULT;

	if (configured == rbp_guc_connect_settings_version)
		return;
	strlcpy(config.device, rbp_guc_rdma_device, sizeof(config.device));
	config.port = rbp_guc_rdma_port;
	config.gid_index = rbp_guc_rdma_gid_index;
	config.traffic_class = rbp_guc_rdma_traffic_class;
	config.ack_timeout = rbp_guc_rdma_ack_timeout;
	config.retry_count = rbp_guc_rdma_retry_count;
	for (int link = ANY_LINK + 1; link < RBP_LINKS; link++)
	{
		const RbpTransportOps *ops = rbp_transport_by_bit(LINK_TRANSPORT(link));

		if (ops != NULL && ops->device != NULL)
			ops->device->configure(&config);
	}
	configured = rbp_guc_connect_settings_version;
}

const RbpTransportOps *
rbp_link_choose_among(RbpEndpoint *endpoint, uint32 transports)
{
	uint32		all = endpoint->transports;
	const RbpTransportOps *ops;

	rbp_link_configure();
	endpoint->transports = all & transports;
	ops = rbp_transport_choose(rbp_guc_transport, endpoint);
	endpoint->transports = all;
	return ops;
}

/*
 * The transports whose links are open or, *held_until being when the first one
 * ends, held.
 */
static uint32
avoided(int donor, int64 *held_until)
{
	uint32		avoid = 0;

	*held_until = 0;
	for (int link = ANY_LINK + 1; link < RBP_LINKS; link++)
	{
		int64		until = rbp_link_is_held(donor, link) ? rbp_link_holds[donor][link].until : 0;

		if (until != 0 && (*held_until == 0 || until < *held_until))
			*held_until = until;
		if (until != 0 ||
			breaker_state(link_breaker(&shared->donors[donor], link)) == BREAKER_OPEN)
			avoid |= LINK_TRANSPORT(link);
	}
	return avoid;
}

/*
 * A time in the RETURN_NS after that, which differs from process to process.
 * It need not be random otherwise.
 */
static int64
soon(int64 after)
{
	uint64		x = (uint64) after + (uint64) MyProcPid * UINT64CONST(0x9E3779B97F4A7C15);

	x = (x ^ x >> 30) * UINT64CONST(0xBF58476D1CE4E5B9);
	x = (x ^ x >> 27) * UINT64CONST(0x94D049BB133111EB);
	return after + (int64) ((x ^ x >> 31) % (uint64) RETURN_NS);
}

const RbpTransportOps *
rbp_link_choose(RbpLocalConn *c, RbpEndpoint *endpoint)
{
	const RbpTransportOps *ops;
	int64		held_until;
	uint32		avoid;

	/* before the choice, so that a later change is noticed */
	c->upgrades = pg_atomic_read_u32(&shared->donors[c->donor].upgrades);
	avoid = avoided(c->donor, &held_until);
	ops = rbp_link_choose_among(endpoint, ~avoid);

	/*
	 * If only transports to be avoided are left, because one is set
	 * explicitly or is the only one that is usable, use it all the same.
	 */
	if (ops == NULL && avoid != 0)
		ops = rbp_link_choose_among(endpoint, ~(uint32) 0);
	c->has_other = ops != NULL && rbp_link_choose_among(endpoint, ~ops->bit) != NULL;
	c->return_at = held_until != 0 ? soon(held_until) : 0;
	return ops;
}

bool
rbp_link_may_return(RbpLocalConn *c, int64 now)
{
	uint32		upgrades = pg_atomic_read_u32(&shared->donors[c->donor].upgrades);
	int64		held_until;

	if (likely(c->upgrades == upgrades && (c->return_at == 0 || now < c->return_at)))
		return false;
	if (c->upgrades == upgrades)
		return avoided(c->donor, &held_until) == 0;
	(void) avoided(c->donor, &held_until);
	c->upgrades = upgrades;
	c->return_at = soon(held_until != 0 ? held_until : now);
	return false;
}
