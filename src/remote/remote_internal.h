/*-------------------------------------------------------------------------
 *
 * remote_internal.h
 *	  Declarations shared by the files of remote.
 *
 * views.c		the views
 * info.c		data for the views
 * report.c	what the log and the views say of links
 * leases.c	the leases and their donors
 * retire.c	regions that are given back
 * ahead.c	pages on their way
 * io.c		reads and writes, at once or in two steps
 * regions.c	regions and the extent map
 * extents.c	states of extents
 * idle.c		connections that are not needed any more
 * probe.c		the pusher's probes of links
 * conn.c		this process's connections: made, bounded, closed
 * link.c		links to donors: what events do to them, which one is used
 * breaker.c	a circuit breaker
 * seal.c		sealing the pages of slots
 *
 * A file calls those below it, and none above.  The header comment of each
 * file says which shared state it owns.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_REMOTE_INTERNAL_H
#define RBP_REMOTE_INTERNAL_H

#include "postgres.h"

#include <signal.h>

#include "datatype/timestamp.h"
#include "lib/ilist.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/lwlock.h"

#include "base/choice.h"
#include "base/compat.h"
#include "base/geometry.h"
#include "base/guc.h"
#include "base/injection_point.h"
#include "base/kept.h"
#include "base/stats.h"
#include "remote/breaker.h"
#include "remote/remote.h"
#include "remote/seal.h"
#include "transport/transport.h"

#define RBP_DONOR_STRIPES	8	/* for donors' counters */
#define RBP_MAX_CONNS		(RBP_POOLS * RBP_MAX_DONORS)

#define RBP_BROKER_ERROR_LEN 256

#define RBP_RECONNECT_NS	INT64CONST(100000000)

/* How often to check a connection being made, and a lost donor, at first */
#define RBP_BACKOFF_FIRST_NS	INT64CONST(20000000)

/* Padded, so that processes on different stripes share no cache line. */
typedef struct RbpDonorStripe
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE)
	pg_atomic_uint64 counts[RBP_DONOR_COUNTS];
	pg_atomic_uint32 latency[RBP_LATENCY_BUCKETS];
} RbpDonorStripe;

/*
 * A link to a donor: over one transport, or, as ANY_LINK, over whichever is
 * used.
 */
#define ANY_LINK			0
#define RBP_LINKS			(1 + RBP_TRANSPORTS)

/* The transport of a link that is not ANY_LINK; and the other way round. */
#define LINK_TRANSPORT(link)	((uint32) 1 << ((link) - 1))
#define LINK_OF(transport)	(1 + pg_rightmost_one_pos32(transport))

typedef struct RbpLink
{
	RbpBreaker	breaker;
	pg_atomic_uint32 error;		/* ERROR_MAKE(), 0 for none: of a transport,
								 * why no connection could be made; of
								 * ANY_LINK, the donor's last error */
	pg_atomic_uint64 error_at;	/* TimestampTz */
} RbpLink;

typedef struct RbpRemoteDonor
{
	/* under remote_lock */
	RbpEndpoint endpoint;
	bool		known[RBP_POOLS];	/* the pool's lease has regions on it */
	uint32		nregions[RBP_POOLS];

	pg_atomic_uint32 serial;	/* incremented when connections become stale,
								 * by rbp_link_make_stale() */
	pg_atomic_uint32 transport; /* last used (RBP_TRANSPORT_*), 0 for none */

	pg_atomic_uint32 conn_slots;	/* taken by backends' connections */

	/* zeroed for another donor, by rbp_link_init(), from here on */
	pg_atomic_uint32 over_limit;	/* connections refused for lack of a slot */
	RbpLink		links[RBP_LINKS];
	pg_atomic_uint32 upgrades;	/* times that a better transport than that of
								 * downgraded connections came back */
	pg_atomic_uint64 refused_until[RBP_POOLS];	/* no new connection before
												 * this time, since the lease
												 * was denied */
	pg_atomic_uint64 state_since;	/* TimestampTz: that of the view changed */
	pg_atomic_uint32 times_down;

	RbpDonorStripe stripes[RBP_DONOR_STRIPES];
} RbpRemoteDonor;

typedef struct RbpRemoteRegion
{
	/* under remote_lock, but constant while an extent maps to it */
	bool		used;
	bool		draining;		/* to be given back; gets no new content */
	RbpPool		pool;
	uint16		donor;			/* index of the donor */
	uint32		number;			/* the donor's number for it */
	uint32		grant;			/* new number each time the region is entered */
	uint32		extents;		/* number of mapped extents */
	uint32		first;			/* head of the list of these, or NO_EXTENT */
	uint64		bytes;
	uint64		rev;			/* as the broker tells it, which only the
								 * lease worker compares */
	uint32		cursor;			/* next extent to evacuate; used by the lease
								 * worker only */
	bool		evacuated;		/* all extents have been gone through;
								 * likewise */
	int64		drain_deadline; /* end of the time for that; likewise */
	pg_atomic_uint32 denied;	/* a request was denied */
	pg_atomic_uint32 closing;	/* about to be given back, if empty */
} RbpRemoteRegion;

/* A pool's lease, and its share of the extents. */
typedef struct RbpPoolLease
{
	/* under remote_lock */
	RbpCredentials credentials;
	uint8		new_secret[RBP_SECRET_LEN]; /* was asked for, or is about to
											 * be; zeros: none */
	uint8		seal_key[RBP_SEAL_KEY_LEN]; /* random, of this lease or the
											 * last one; zeros: none.  Read
											 * without a lock, see serial */
	bool		has_lease;
	RbpBrokerAccess broker;		/* that granted it */

	/* used by the lease worker only */
	bool		short_of_extents;	/* some regions lack extents */
	bool		online_pending; /* rbp_remote_bring_online() stopped for lack
								 * of time */
	uint32		nfree;			/* number of extents without a region */
	uint32		room;			/* most extents with one */
	uint32		search_from;	/* next extent to consider for a region */
	uint32		lowest_free;	/* lowest free extent below that */

	/* why the broker gave no usable answer, "" if it did; and since when */
	char		broker_error[RBP_BROKER_ERROR_LEN];
	TimestampTz broker_error_since;

	pg_atomic_uint32 serial;	/* incremented when the credentials or the key
								 * have changed */
	RbpSealVersions versions;	/* of the slots; without a lock, too */
	pg_atomic_uint64 deadline;	/* CLOCK_MONOTONIC ns; 0 without a lease */
	pg_atomic_uint32 nregions;	/* in use */
	pg_atomic_uint32 recheck;	/* the broker should be asked about the lease */

	RbpExtents	extents;
} RbpPoolLease;

typedef struct RbpRemoteShared
{
	LWLock		remote_lock;

	/* under remote_lock */
	uint32		last_grant;

	RbpPoolLease leases[RBP_POOLS];
	pg_atomic_uint32 stale;		/* incremented along with any lease's or
								 * donor's serial */

	/* settings, published by the pusher for all processes */
	pg_atomic_uint32 max_slots; /* remote_bp.max_connections */
	pg_atomic_uint64 idle_ns;	/* remote_bp.idle_connection_timeout */

	uint32		nextents;
	RbpRemoteDonor donors[RBP_MAX_DONORS];
	RbpRemoteRegion regions[RBP_MAX_REGIONS];
	pg_atomic_uint32 map[FLEXIBLE_ARRAY_MEMBER];	/* indexed by extent */
} RbpRemoteShared;

extern RbpRemoteShared *rbp_remote_shared;

/*
 * Take remote_lock to change leases, donors or regions, for the lease worker; and release
 * it.  If the worker is killed in between, these are not kept over the crash.
 */
static inline void
rbp_remote_begin_change(void)
{
	LWLockAcquire(&rbp_remote_shared->remote_lock, LW_EXCLUSIVE);
	rbp_kept_changing(true);
	if (RBP_INJECTION_POINT("kill-changing"))
		raise(SIGKILL);
}

static inline void
rbp_remote_end_change(void)
{
	rbp_kept_changing(false);
	LWLockRelease(&rbp_remote_shared->remote_lock);
}

/*
 * ---- regions.c -----------------------------------------------------------
 */

#define RBP_EXTENT_BYTES	(RBP_EXTENT_PAGES * (uint64) BLCKSZ)

#define NO_EXTENT			PG_UINT32_MAX

/*
 * A word of the extent map: region index + 1 in the high half, extent within
 * the region in the low half; 0 is none.
 */
#define MAP_NONE			0
#define MAP_MAKE(region, ext)	((((uint32) (region) + 1) << 16) | (uint32) (ext))
#define MAP_REGION(word)	((int) ((word) >> 16) - 1)
#define MAP_EXTENT(word)	((word) & 0xffff)

/*
 * The map's word for the slot, MAP_NONE if no region carries it.  Takes no
 * lock.
 */
static inline uint32
slot_word(uint32 slot)
{
	uint32		extent = slot / RBP_EXTENT_PAGES;

	return extent < rbp_remote_shared->nextents ?
		pg_atomic_read_u32(&rbp_remote_shared->map[extent]) : MAP_NONE;
}

/* The slot's offset in bytes in the region that the word names. */
static inline uint64
slot_offset(uint32 slot, uint32 word)
{
	return MAP_EXTENT(word) * RBP_EXTENT_BYTES +
		(slot % RBP_EXTENT_PAGES) * (uint64) BLCKSZ;
}

static inline RbpRemoteRegion *
word_region(uint32 word)
{
	return &rbp_remote_shared->regions[MAP_REGION(word)];
}

/*
 * Does any lease have regions on the donor?  Approximate without remote_lock.
 */
static inline bool
donor_known(const RbpRemoteDonor *d)
{
	return d->known[RBP_POOL_BUFFER] || d->known[RBP_POOL_TEMP];
}

/* The region as it was granted. */
static inline RbpRegionGrant
region_grant(const RbpRemoteRegion *region)
{
	RbpRegionGrant grant;

	memset(&grant, 0, sizeof(grant));	/* grants are compared bytewise */
	grant.region = region->number;
	grant.bytes = region->bytes;
	grant.rev = region->rev;
	strlcpy(grant.donor, rbp_remote_shared->donors[region->donor].endpoint.donor,
			sizeof(grant.donor));
	return grant;
}

/* Is that entry of the table in use, by a region of that pool? */
static inline bool
is_region_of(int r, RbpPool pool)
{
	const RbpRemoteRegion *region = &rbp_remote_shared->regions[r];

	return region->used && region->pool == pool;
}

/* What is sealed, by slot, unless remote_bp.encrypt is off.  Written by who writes the slot. */
extern RbpSealed *rbp_remote_sealed;

/* This process's sealers, made by the postmaster.  Keys are set when they are needed. */
extern RbpSealer rbp_remote_sealers[RBP_POOLS];

/* Is the slot's text sealed, not plain? */
static inline bool
slot_is_sealed(RbpPool pool, uint32 slot)
{
	return rbp_any_sealed(&rbp_remote_shared->leases[pool].versions) &&
		rbp_is_sealed(&rbp_remote_sealed[slot]);
}

/* Drop the pages of closed extents, as far as that is possible; of how many. */
extern uint32 rbp_remote_drop(RbpPool pool, uint32 *extents, uint32 n);

/* Callbacks of the pools' owners. */
extern const RbpRemotePoolOps *rbp_remote_pool_ops[RBP_POOLS];

/*
 * For each extent of a region, the region's next extent or NO_EXTENT.  Used by
 * the lease worker only.
 */
extern uint32 *rbp_remote_next_extent;

/*
 * The following functions are for the lease worker, which alone changes the
 * regions and holds remote_lock exclusively.
 */

/*
 * Enter a region into the table, without extents yet, using the first suitable
 * entry from *from on; false if there is no room.
 */
extern bool rbp_remote_enter_region(RbpPool pool, const RbpRegionGrant *grant,
									int donor, int *from);

/*
 * Give extents to those regions of the pool that lack some.  Does a bounded
 * amount of work; if that was not enough, RbpPoolLease.online_pending is set
 * and it is to be called again.  Returns how many regions got none and are out
 * of use again.
 */
extern int	rbp_remote_bring_online(RbpPool pool);

/*
 * Take a region out of use.  Its content may not be found any more once this
 * has begun, and is found by nobody when this returns.
 */
extern void rbp_remote_retire_region(int r);

/*
 * Release remote_lock and take it again now and then, while many regions are
 * retired or start or stop draining.  *extents counts extents since the last
 * time; initially 0.
 */
extern void rbp_remote_yield_lock(uint32 *extents, int r);

/* State of a connection.  There is one from CONN_CONNECTING on. */
typedef enum RbpConnState
{
	CONN_NONE,
	CONN_OVER_LIMIT,			/* none: all connection slots are taken */
	CONN_CONNECTING,
	CONN_READY,					/* ready for requests */
	CONN_DENIED					/* ready, but a request was denied, which may
								 * have ended the connection */
} RbpConnState;

/*
 * This process's connection to one donor for one pool, since a connection
 * belongs to a lease.  The connections are numbered by conn_index().
 */
typedef struct RbpLocalConn
{
	int			donor;			/* constant, as is pool */
	RbpPool		pool;
	RbpConnState state;
	RbpConn    *conn;
	const RbpTransportOps *ops; /* its transport, or that of the last one */
	RbpMr	   *mr;				/* the pusher's registration of the staging
								 * region, or NULL */
	bool		has_slot;		/* holds one of RbpRemoteDonor.conn_slots */
	bool		has_other;		/* another transport leads to the donor */
	uint32		upgrades;		/* RbpRemoteDonor.upgrades */
	int64		return_at;		/* when to try a better transport, 0: not
								 * known yet */
	bool		pinned;			/* used by RBP_REMOTE_PATIENT, so not closed
								 * for the bound before the transaction ends */
	uint32		incarnation;	/* unique number of each connection */
	dlist_head	flights;		/* of RbpFlight */
	uint32		serial;			/* conn_serial() when it was begun */
	int			timeouts;		/* consecutive */
	int64		connect_started;	/* when connecting began */
	int64		polled_at;		/* when that was last polled */
	int64		polled_ns;		/* time in which it was polled regularly */
	bool		waited;			/* connecting was waited for once, so now only
								 * poll; kept for the next connection after a
								 * costly one */
	int64		retry_at;
	int64		connecting_ns;	/* of this process's time, taken by connecting */
	int64		lost;			/* by not being connected, see
								 * rbp_choose_connection() */
} RbpLocalConn;

/* Requests in flight, which are finished before their connection closes. */
typedef struct RbpFlight
{
	dlist_node	node;
	RbpIo	   *ios;
	int			n;
	bool		waiting;		/* in the connection's list */
} RbpFlight;

extern RbpLocalConn rbp_remote_conns[RBP_MAX_CONNS];

static inline bool
is_ready(const RbpLocalConn *c)
{
	return c->state >= CONN_READY;
}

/* A costly transport gives way to another one whenever it makes trouble. */
static inline bool
has_fallback(const RbpLocalConn *c)
{
	return c->has_other && c->ops->costly;
}

static inline int
conn_index(RbpPool pool, int donor)
{
	return (int) pool * RBP_MAX_DONORS + donor;
}

/*
 * A number that changes with the state of the donor, and with the settings;
 * and one that changes with that of the lease, too.  All parts only grow.
 */
static inline uint32
donor_serial(int donor)
{
	return pg_atomic_read_u32(&rbp_remote_shared->donors[donor].serial) +
		rbp_guc_connect_settings_version;
}

static inline uint32
conn_serial(const RbpLocalConn *c)
{
	return donor_serial(c->donor) +
		pg_atomic_read_u32(&rbp_remote_shared->leases[c->pool].serial);
}

/* Was it made for another state of these? */
static inline bool
is_stale(const RbpLocalConn *c)
{
	return c->serial != conn_serial(c);
}

/* The connection over which the pusher probes the donor. */
static inline RbpLocalConn *
conn_for_probe(int donor)
{
	return &rbp_remote_conns[conn_index(rbp_remote_shared->donors[donor].known[RBP_POOL_BUFFER] ?
										RBP_POOL_BUFFER : RBP_POOL_TEMP, donor)];
}

static inline RbpDonorStripe *
stripe_of(RbpRemoteDonor *d)
{
	return &d->stripes[rbp_compat_procno() % RBP_DONOR_STRIPES];
}

static inline void
donor_count(RbpRemoteDonor *d, RbpDonorCount what, uint64 n)
{
	pg_atomic_fetch_add_u64(&stripe_of(d)->counts[what], n);
}

/*
 * ---- link.c --------------------------------------------------------------
 *
 * None of these functions takes a lock unless it says so.
 */

/* Have the lease worker ask the broker about the pool's lease. */
extern void rbp_remote_recheck_lease(RbpPool pool);

/* Initialize a donor's links and counters. */
extern void rbp_link_init(RbpRemoteDonor *d);

typedef enum RbpDonorError
{
	DONOR_ERROR_NONE,
	DONOR_ERROR_CONNECT,		/* no connection could be made */
	DONOR_ERROR_ELSEWHERE,		/* ... over that transport, which others
								 * replace */
	DONOR_ERROR_REQUEST,		/* a request failed */
	DONOR_ERROR_OFTEN_LATE,		/* too many timeouts: its penalty is too high */
	DONOR_ERROR_WRONG_BYTES,	/* a page did not match its hash */
	DONOR_ERROR_UNRESOLVED,		/* its name has no address yet */
	DONOR_ERROR_NO_TRANSPORT,	/* under "auto": no transport leads to it */
	DONOR_ERROR_NO_DEVICE,		/* this server has no device for the transport
								 * set; or the donor does not offer it; or it
								 * does not lead there: */
	DONOR_ERROR_NOT_OFFERED,
	DONOR_ERROR_NOT_FROM_HERE
} RbpDonorError;

/* An error packed into one word */
#define ERROR_MAKE(what, transport, status) \
	(((uint32) (what) << 16) | ((uint32) (transport) << 8) | (uint32) (status))
#define ERROR_WHAT(word)		((RbpDonorError) ((word) >> 16))
#define ERROR_TRANSPORT(word)	(((word) >> 8) & 0xff)
#define ERROR_STATUS(word)		((RbpStatus) ((word) & 0xff))

/*
 * Record the donor's last error; transport: RBP_TRANSPORT_*, or 0.
 */
extern void rbp_remote_note_error(RbpRemoteDonor *d, RbpDonorError what, uint32 transport,
								  RbpStatus status);

/* Likewise, if no transport can be chosen; determines the reason. */
extern void rbp_remote_note_unreachable(RbpRemoteDonor *d, const RbpEndpoint *endpoint);

/* Is the donor unreachable until the lease worker has resolved its name? */
extern bool rbp_link_unresolved(const RbpEndpoint *endpoint);

/* Record that the donor's state, as shown in the view, has changed. */
extern void rbp_link_note_change(RbpRemoteDonor *d);

/* Make all connections stale that carry this serial of a donor or a lease. */
extern void rbp_link_make_stale(pg_atomic_uint32 *serial);

/*
 * Circumstances have changed, so that what has failed may work: of a donor's
 * transports; of a donor that has another address; of all donors, for a pool
 * with another lease.
 */
extern void rbp_link_forget(RbpRemoteDonor *d);
extern void rbp_link_new_endpoint(RbpRemoteDonor *d);
extern void rbp_link_new_lease(RbpPool pool);

/*
 * Mark the donor as down, so that nobody uses it.  lost: a connection to it
 * broke, so that the others are of no use either.
 */
extern void rbp_remote_donor_down(RbpRemoteDonor *d, bool lost);

/*
 * Close a link's breaker, whatever its state.  If that of a transport was
 * open, downgraded connections return to it.
 */
extern void rbp_link_up(RbpRemoteDonor *d, int link);

/* A probe of a link that is open has failed.  Returns ns until the next one. */
extern int64 rbp_link_probe_failed(RbpRemoteDonor *d, int link);

static inline RbpBreaker *
link_breaker(RbpRemoteDonor *d, int link)
{
	return &d->links[link].breaker;
}

static inline bool
donor_is_down(RbpRemoteDonor *d)
{
	return breaker_state(link_breaker(d, ANY_LINK)) == BREAKER_OPEN;
}

/*
 * This process leaves a link alone for some time: any, because the donor was
 * late; one over a transport, because of what the process lacks.
 */
typedef struct RbpHold
{
	int64		until;			/* 0: it does not */
	int64		delay;			/* that until was computed with */
	uint32		serial;			/* donor_serial() */
} RbpHold;

extern RbpHold rbp_link_holds[RBP_MAX_DONORS][RBP_LINKS];

extern bool rbp_link_is_held(int donor, int link);

/* Pass changed settings to the transports' devices. */
extern void rbp_link_configure(void);

/*
 * The best transport for a new connection that is among these and neither
 * open nor held, or NULL.  Sets what RbpLocalConn records of the choice.
 */
extern const RbpTransportOps *rbp_link_choose(RbpLocalConn *c, RbpEndpoint *endpoint);
extern const RbpTransportOps *rbp_link_choose_among(RbpEndpoint *endpoint, uint32 transports);

/*
 * Is it time for a downgraded connection, one over the cheapest transport, to
 * be replaced by one over a better transport?
 */
static inline bool
is_downgraded(const RbpLocalConn *c)
{
	return !c->ops->costly && !c->ops->local;
}

extern bool rbp_link_may_return(RbpLocalConn *c, int64 now);

/* What a process was doing with a link when something happened */
typedef enum RbpLinkPhase
{
	ON_REQUEST,
	ON_CONNECT,
	ON_PING,					/* of a donor that is suspect or down */
	ON_TRIAL,					/* of a transport that is in doubt */
	RBP_LINK_PHASES
} RbpLinkPhase;

typedef enum RbpLinkEvent
{
	LINK_OTHER,					/* nothing to do with the link */
	LINK_DONE,
	LINK_DONE_UNTIMED,			/* nobody knows when */
	LINK_LATE,
	LINK_SILENT,				/* late after the time of RBP_REMOTE_PATIENT */
	LINK_HUNG,					/* a costly handshake was polled for too long */
	LINK_UNFINISHED,			/* ... or given up, but hardly polled */
	LINK_LOST,
	LINK_DROPPED,				/* lost, and nobody waits for it */
	LINK_NO_DEVICE,				/* the device or its library is of no use */
	LINK_SHORTAGE,				/* this process, or the donor, lacks something */
	LINK_DENIED,
	RBP_LINK_EVENTS
} RbpLinkEvent;

/* What is left to the caller of rbp_link_failed() */
#define VERDICT_CLOSE		0x0001	/* close the connection */
#define VERDICT_CLOSE_AGAIN	0x0002	/* ... if this is the second in a row */
#define VERDICT_DENIED		0x0004	/* it may have ended the connection */
#define VERDICT_PAUSE		0x0008	/* connect after a while */
#define VERDICT_ELSEWHERE	0x0010	/* connect at once, over another transport */

/* The event that a status of RBP_OK or a failure is. */
extern RbpLinkEvent rbp_link_event(RbpStatus status);

/*
 * Account for an answer to what was asked at that time.
 */
extern void rbp_link_done(RbpLocalConn *c, const RbpTransportOps *ops,
						  RbpLinkPhase phase, RbpLinkEvent event, int64 asked_at);

/*
 * Account for a failure over a connection, or of connecting; returns the
 * verdict.
 */
extern int	rbp_link_failed(RbpLocalConn *c, RbpLinkPhase phase, RbpLinkEvent event,
							RbpStatus status);

/*
 * ---- conn.c --------------------------------------------------------------
 */

/* The connections of a process, for the pusher to see. */
typedef struct RbpProcConns
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE)
	pg_atomic_uint32 pid;		/* 0: no process that has connected */
	pg_atomic_uint32 asked;		/* asked to close what is not needed */
	pg_atomic_uint64 used_at[RBP_MAX_CONNS];	/* 0: not connected */
} RbpProcConns;

extern RbpProcConns *rbp_remote_proc_conns; /* by rbp_compat_procno() */
extern RbpProcConns *rbp_remote_my_conns;	/* NULL before the first
											 * connection, and in the pusher */

extern Size rbp_remote_conn_shmem_size(void);
extern void rbp_remote_conn_shmem_init(void *mem);

/* The sealed pages of a batch that is written at once; the pusher's are sent from here. */
extern char rbp_remote_bounce[RBP_MAX_BATCH * BLCKSZ];

/* Is the buffer in the memory that the pusher sends from? */
extern bool rbp_remote_is_push_memory(const void *buf, Size len);

/* Has a connection opened a device?  It stays open. */
extern bool rbp_remote_has_device;

/* Does the data that this process waits for have no other copy? */
extern bool rbp_remote_no_other_copy;

/*
 * Should waiting for a donor end, because the query is to end?  Transports
 * ask, too.
 */
extern bool rbp_remote_give_up(void);

/* Who wants a connection */
typedef enum RbpConnUse
{
	USE_NORMAL,
	USE_PATIENT,				/* as for RBP_REMOTE_PATIENT */
	USE_PROBE					/* the pusher, of a donor that is suspect or
								 * down */
} RbpConnUse;

/*
 * Get the connection ready for requests, and account for it if that fails.
 *
 * Returns RBP_CANCELED if that is not possible now although nothing is wrong,
 * RBP_TIMEOUT if it is still being made at the deadline, else the reason for
 * the failure.  now: the approximate time, recorded as the time of use.
 */
extern RbpStatus rbp_remote_conn_get(RbpLocalConn *c, RbpConnUse use, int64 now,
									 int64 deadline_ns);

/*
 * Account for a failure over a connection, or of making it, and do as the
 * verdict says, which is returned; the connection may be closed then.
 */
extern int	rbp_remote_conn_failed(RbpLocalConn *c, RbpLinkPhase phase,
								   RbpLinkEvent event, RbpStatus status);

/*
 * A caller's deadline may be shorter than the timeouts of the settings, so a
 * timeout alone proves nothing about the donor.  The donor is late if it had
 * io_timeout.  It is down if a patient batch has waited for a quarter of
 * temp_io_timeout: few wait for all of it, since readers give each try half of
 * the time that is left (rbp_spill_fetch_page()).
 */
static inline RbpLinkEvent
late_event(bool patient, int64 ns)
{
	return patient && ns >= rbp_guc_temp_io_timeout_ns() / 4 ? LINK_SILENT :
		ns >= rbp_guc_io_timeout_ns() ? LINK_LATE : LINK_OTHER;
}

/* Wait for requests over a connection. */
extern void rbp_remote_conn_wait(RbpLocalConn *c, RbpIo *ios, int n, int64 until_ns);

/*
 * Close a connection, or all of the pool, if open, and release the connection
 * slots.  Its requests in flight are polled, and those that have no answer yet
 * are lost.
 */
extern void rbp_remote_conn_close(RbpLocalConn *c);
extern void rbp_remote_conns_close(RbpPool pool);

/* Likewise, perhaps of one that has been connecting for long. */
extern void rbp_remote_conn_abandon(RbpLocalConn *c);

/*
 * Release this connection's slot if the donor has more connections than
 * allowed, because the bound was lowered or some process had to exceed it.  If
 * true, the connection must be closed.
 */
extern bool rbp_remote_conn_yield_slot(RbpLocalConn *c);

/*
 * ---- probe.c, idle.c -----------------------------------------------------
 */

/* The pusher looks for idle connections, and at transports, this often */
#define RBP_CHECK_NS		INT64CONST(10000000000)

/*
 * For the pusher: go on with trials of transports, and find transports that
 * are back, and donors that no transport leads to.  Returns ns until the next
 * call.
 */
extern int64 rbp_remote_watch_links(int64 now);

/*
 * ---- report.c ------------------------------------------------------------
 */

/* An error (ERROR_MAKE()) as text, "" if there is none. */
extern void rbp_remote_error_text(uint32 word, char *buf, Size len);

#endif							/* RBP_REMOTE_INTERNAL_H */
