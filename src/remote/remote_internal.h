/*-------------------------------------------------------------------------
 *
 * remote_internal.h
 *	  Declarations shared by the files of remote.
 *
 * regions.c	regions and the extent map
 * extents.c	states of extents
 * leases.c	the leases and their donors
 * retire.c	regions that are given back
 * info.c		data for the views
 * io.c		reads and writes, at once or in two steps
 * ahead.c	pages on their way
 * conn.c		this process's connections: made, bounded, closed
 * downgrade.c	their transports: chosen, downgraded, tried again
 * breaker.c	a circuit breaker
 * health.c	donors' health: suspect and down donors, probes
 * report.c	errors and states of donors, for the views and the log
 *
 * The header comment of each file says which shared state it owns.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_REMOTE_INTERNAL_H
#define RBP_REMOTE_INTERNAL_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

#include "base/compat.h"
#include "base/geometry.h"
#include "base/guc.h"
#include "base/stats.h"
#include "remote/breaker.h"
#include "remote/remote.h"
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

typedef struct RbpRemoteDonor
{
	/* under remote_lock */
	RbpEndpoint endpoint;
	bool		known[RBP_POOLS];	/* the pool's lease has regions on it */
	uint32		nregions[RBP_POOLS];

	pg_atomic_uint32 serial;	/* incremented when connections become stale,
								 * by rbp_remote_make_conns_stale() */
	pg_atomic_uint32 transport; /* last used (RBP_TRANSPORT_*), 0 for none */

	/* conn.c */
	pg_atomic_uint32 conn_slots;	/* taken by backends' connections */
	pg_atomic_uint64 refused_until[RBP_POOLS];	/* no new connection before
												 * this time, since the lease
												 * was denied */

	/* downgrade.c */
	RbpBreaker	downgrade;		/* open: the transport that failed is not used */
	pg_atomic_uint32 downgrade_error;	/* ERROR_MAKE() with the transport and
										 * the reason */
	pg_atomic_uint32 connect_timeouts;	/* of a costly transport, in a row */
	pg_atomic_uint32 upgrades;	/* times that a better transport than that of
								 * downgraded connections came back */

	/* health.c */
	RbpBreaker	breaker;

	/* report.c */
	pg_atomic_uint32 error;		/* the last error, 0 for none */
	pg_atomic_uint64 error_at;	/* TimestampTz */
	pg_atomic_uint32 state;		/* RBP_DONOR_* */
	pg_atomic_uint64 state_since;	/* TimestampTz */
	pg_atomic_uint32 times_down;
	pg_atomic_uint32 over_limit;	/* connections refused for lack of a slot */

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

	pg_atomic_uint32 serial;	/* incremented when the credentials change */
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
	Latch	   *lease_latch;

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

/* Have the pusher run its duties at once; see rbp_remote_set_wake(). */
extern void rbp_remote_wake(void);

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
	CONN_BELOW_THRESHOLD,		/* none: too few reads for a costly one */
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
	RbpConnState state;
	RbpConn    *conn;
	const RbpTransportOps *ops; /* its transport, or that of the last one */
	RbpMr	   *mr;				/* the pusher's registration of the staging
								 * region, or NULL */
	bool		has_slot;		/* holds one of RbpRemoteDonor.conn_slots */
	bool		has_fallback;	/* another transport leads to the donor */
	bool		downgraded;		/* the donor offers a better one */
	uint32		upgrades;		/* RbpRemoteDonor.upgrades */
	int64		return_at;		/* when to try that, 0: not known yet */
	bool		pinned;			/* used by RBP_REMOTE_PATIENT, so not closed
								 * for the bound before the transaction ends */
	uint32		incarnation;	/* unique number of each connection */
	int			inflight;		/* number of parts of batches in flight */
	uint32		donor_serial;
	uint32		lease_serial;
	uint32		settings;		/* rbp_guc_connect_settings_version */
	int			timeouts;		/* consecutive */
	int64		connect_started;	/* when connecting began */
	int64		polled_at;		/* when that was last polled */
	int64		polled_ns;		/* time in which it was polled regularly */
	bool		waited;			/* connecting was waited for once, so now only
								 * poll; kept for the next connection after a
								 * costly one */
	int64		retry_at;
	uint32		reads_wanted;	/* reads below the threshold so far */
} RbpLocalConn;

extern RbpLocalConn rbp_remote_conns[RBP_MAX_CONNS];

static inline bool
is_ready(const RbpLocalConn *c)
{
	return c->state >= CONN_READY;
}

static inline int
conn_index(RbpPool pool, int donor)
{
	return (int) pool * RBP_MAX_DONORS + donor;
}

static inline int
conn_donor(int ci)
{
	return (int) ((unsigned int) ci % RBP_MAX_DONORS);
}

static inline RbpPool
conn_pool(int ci)
{
	return (RbpPool) ((unsigned int) ci / RBP_MAX_DONORS);
}

/* Was it made for another state of the donor, the lease or the settings? */
static inline bool
is_stale(int ci)
{
	const RbpLocalConn *c = &rbp_remote_conns[ci];

	return c->donor_serial != pg_atomic_read_u32(&rbp_remote_shared->donors[conn_donor(ci)].serial) ||
		c->lease_serial != pg_atomic_read_u32(&rbp_remote_shared->leases[conn_pool(ci)].serial) ||
		c->settings != rbp_guc_connect_settings_version;
}

/* The connection over which the pusher probes the donor. */
static inline int
conn_for_probe(int donor)
{
	return conn_index(rbp_remote_shared->donors[donor].known[RBP_POOL_BUFFER] ?
					  RBP_POOL_BUFFER : RBP_POOL_TEMP, donor);
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
 * ---- io.c ----------------------------------------------------------------
 */

/*
 * The connection is about to be closed: wait for its requests in flight until
 * until_ns (only poll, if that is in the past), and fail the rest with
 * RBP_CONNLOST.
 */
extern void rbp_remote_finish_batches(int ci, int64 until_ns);

/*
 * Callback for transports: should waiting for a donor end, because the query
 * is to end?
 */
extern bool rbp_remote_give_up(void);

/*
 * ---- conn.c --------------------------------------------------------------
 */
extern Size rbp_remote_conn_shmem_size(void);
extern void rbp_remote_conn_shmem_init(void *mem);
extern void rbp_remote_conn_reset_donor(RbpRemoteDonor *d);

/* The donor has another address: forget what was learnt about the old one. */
extern void rbp_remote_conn_new_endpoint(RbpRemoteDonor *d);

/* Is the buffer in the memory that rbp_remote_set_pusher() named? */
extern bool rbp_remote_is_push_memory(const void *buf, Size len);

/*
 * Get the connection ready for requests.
 *
 * Returns RBP_CANCELED if that is not possible now although nothing is wrong,
 * RBP_TIMEOUT if it is still being made at the deadline, else the reason for
 * the failure.  pages: number of reads that would use it.  patient: as for
 * RBP_REMOTE_PATIENT.  now: the approximate time, recorded as the time of use.
 */
extern RbpStatus rbp_remote_conn_get(int ci, int pages, bool patient,
									 int64 now, int64 deadline_ns);

/*
 * Close a connection, or all of the pool, if open, and release the connection
 * slots.
 */
extern void rbp_remote_conn_close(int ci);
extern void rbp_remote_conns_close(RbpPool pool);

/*
 * Make all connections stale that carry this serial of a donor or a lease.
 * Returns the new serial.
 */
extern uint32 rbp_remote_make_conns_stale(pg_atomic_uint32 *serial);

/*
 * ---- downgrade.c ---------------------------------------------------------
 */

/* Connecting over a costly transport that takes longer has failed */
#define RBP_COSTLY_CONNECT_NS	INT64CONST(6000000000)

/* The pusher looks for idle connections, and at transports, this often */
#define RBP_CHECK_NS			INT64CONST(10000000000)

extern void rbp_remote_downgrade_reset_donor(RbpRemoteDonor *d);

/* Circumstances have changed: what has failed may work. */
extern void rbp_remote_downgrade_forget(RbpRemoteDonor *d);

/*
 * The transport for a new connection, or NULL.  Sets what RbpLocalConn records
 * of the choice.
 */
extern const RbpTransportOps *rbp_remote_choose_transport(int ci, RbpEndpoint *endpoint,
														  int64 now);

/*
 * A connection could not be made.  If it is a costly one, and the donor can be
 * reached by another transport, go on without the costly one, in this process
 * or in all, and return true; that is no failure of the donor.
 */
extern bool rbp_remote_downgrade(int ci, RbpStatus why);

/*
 * A connection that was begun long ago is about to be closed, but this process
 * has not polled it for long enough to call it failed.  If it is a costly one,
 * the pusher will find out whether its transport leads to the donor.
 */
extern void rbp_remote_connect_unfinished(int ci);

/* A costly connection was made. */
extern void rbp_remote_costly_connected(int ci);

/*
 * Is it time for a downgraded connection to be replaced by one over a better
 * transport?
 */
extern bool rbp_remote_may_return(int ci, int64 now);

/*
 * For the pusher: continue or begin a trial of a transport; find transports
 * that are back, and donors that no transport leads to.  The first one returns
 * ns until the next call.
 */
extern int64 rbp_remote_check_downgrades(int64 now);
extern void rbp_remote_check_reachability(void);
extern void rbp_remote_close_trial(void);

/* Pass changed settings to the verbs transport. */
extern void rbp_remote_configure_verbs(void);

/*
 * ---- health.c ------------------------------------------------------------
 */

/* Have the lease worker ask the broker about the pool's lease. */
extern void rbp_remote_recheck_lease(RbpPool pool);

/*
 * Mark the donor as down, so that nobody uses it.  lost: a connection to it
 * broke, so that the others are of no use either.  rbp_remote_donor_failed()
 * also counts a failure (lost) or a timeout.
 */
extern void rbp_remote_donor_down(RbpRemoteDonor *d, bool lost);
extern void rbp_remote_donor_failed(RbpRemoteDonor *d, bool lost);

/* Put the donor back in use, whatever its state. */
extern void rbp_remote_donor_up(RbpRemoteDonor *d);

static inline bool
donor_is_down(RbpRemoteDonor *d)
{
	return breaker_state(&d->breaker) == BREAKER_OPEN;
}

/* When each donor became suspect for this process; 0 if it is not. */
extern int64 rbp_remote_suspect_since[RBP_MAX_DONORS];

/*
 * Was the donor late for this process, with no process known to have been
 * answered since?
 */
extern bool rbp_remote_still_suspect(int donor);

static inline bool
is_suspect(int donor)
{
	return unlikely(rbp_remote_suspect_since[donor] != 0) &&
		rbp_remote_still_suspect(donor);
}

/*
 * Account for a status other than RBP_OK, for donor and connection.
 * connecting: the status is from rbp_remote_conn_get().  awaited: a query
 * waits; if none does, a lost connection makes the donor suspect, but not down.
 * down: the donor had so much time, that of RBP_REMOTE_PATIENT, that
 * RBP_TIMEOUT means that it is down.
 */
extern void rbp_remote_account_failure(int ci, RbpStatus status, bool connecting,
									   bool awaited, bool down);

/*
 * ---- info.c --------------------------------------------------------------
 */
extern void rbp_remote_reset_counters(RbpRemoteDonor *d);

/*
 * ---- report.c ------------------------------------------------------------
 *
 * None of these functions takes a lock unless it says so.
 */

/* RbpRemoteDonor.state, as shown in the view */
#define RBP_DONOR_GONE		0	/* no lease has regions on it */
#define RBP_DONOR_OK		1
#define RBP_DONOR_DOWN		2
#define RBP_DONOR_UNRESOLVED 3	/* its name has not been resolved */

typedef enum RbpDonorError
{
	DONOR_ERROR_NONE,
	DONOR_ERROR_CONNECT,		/* no connection could be made */
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

extern void rbp_remote_report_reset(RbpRemoteDonor *d);

/* Record the donor's last error; transport: RBP_TRANSPORT_*, or 0. */
extern void rbp_remote_note_error(RbpRemoteDonor *d, RbpDonorError what, uint32 transport,
								  RbpStatus status);

/* Likewise, if no transport can be chosen; determines the reason. */
extern void rbp_remote_note_unreachable(RbpRemoteDonor *d, const RbpEndpoint *endpoint);

/* Update the state shown for the donor, or for all donors. */
extern void rbp_remote_note_state(RbpRemoteDonor *d);
extern void rbp_remote_note_states(void);

/* The donor's last error as text, "" if there was none. */
extern void rbp_remote_last_error(RbpRemoteDonor *d, char *buf, Size len,
								  TimestampTz *at);

#endif							/* RBP_REMOTE_INTERNAL_H */
