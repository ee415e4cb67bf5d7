/*-------------------------------------------------------------------------
 *
 * remote_internal.h
 *	  What the files of remote know of each other.
 *
 * regions.c	regions and the extent map
 * leases.c	the leases and their donors
 * retire.c	regions that are given back
 * info.c	what the views are told
 * io.c		reads and writes, at once or in two steps
 * conn.c	this process's connections: made, bounded, closed
 * breaker.c	a circuit breaker
 * health.c	donors' health: who is suspect, who is down; probes
 * report.c	what goes wrong: for the views, and for the log
 *
 * Each file's first page says which of the shared state is its own.
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
#include "base/stats.h"
#include "remote/breaker.h"
#include "remote/remote.h"
#include "transport/transport.h"

#define RBP_DONOR_STRIPES	8	/* of donors' counters */
#define RBP_MAX_CONNS		(RBP_POOLS * RBP_MAX_DONORS)

#define RBP_BROKER_ERROR_LEN		256

#define RBP_RECONNECT_NS	INT64CONST(100000000)

/* A connection in the making, and a donor that is lost, are looked at each: */
#define RBP_BACKOFF_FIRST_NS	INT64CONST(20000000)

/* Padded, so that no two processes' counters share a cache line. */
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
	bool		known[RBP_POOLS];	/* the pool's lease has regions there */
	uint32		nregions[RBP_POOLS];

	pg_atomic_uint32 serial;	/* moves when connections are of no use; by
								 * rbp_remote_conns_stale() */
	pg_atomic_uint32 transport; /* RBP_TRANSPORT_* last used, 0 for none */

	/* conn.c */
	pg_atomic_uint32 conn_slots;	/* taken by backends' connections */
	pg_atomic_uint64 refused_until[RBP_POOLS];	/* no new connection before:
												 * the lease was denied */
	RbpBreaker	downgrade;		/* open: not over the transport that failed */
	pg_atomic_uint32 downgrade_error;	/* ERROR_MAKE(): which one, and why */

	/* health.c */
	RbpBreaker	breaker;

	/* report.c */
	pg_atomic_uint32 error;		/* the last one; 0 for none */
	pg_atomic_uint64 error_at;	/* TimestampTz */
	pg_atomic_uint32 state;		/* RBP_DONOR_* */
	pg_atomic_uint64 state_since;	/* TimestampTz */
	pg_atomic_uint32 times_down;
	pg_atomic_uint32 over_limit;	/* who got no slot */

	RbpDonorStripe stripes[RBP_DONOR_STRIPES];
} RbpRemoteDonor;

typedef struct RbpRemoteRegion
{
	/* under remote_lock, but stable while an extent maps to it */
	bool		used;
	bool		draining;		/* nothing is put there; to be given back */
	RbpPool		pool;
	uint16		donor;			/* index of it */
	uint32		number;			/* the donor's name for it */
	uint32		grant;			/* another one each time that it is entered */
	uint32		extents;		/* that are mapped */
	uint32		first;			/* of them, a list; NO_EXTENT if none is */
	uint64		bytes;
	uint32		cursor;			/* where moving goes on; the lease worker's */
	bool		evacuated;			/* it has been through; likewise */
	int64		drain_deadline;		/* when it ends; likewise */
	pg_atomic_uint32 denied;	/* a request was refused */
	pg_atomic_uint32 closing;	/* about to be given back, if it is empty */
} RbpRemoteRegion;

/* A pool's lease, and its share of the extents. */
typedef struct RbpPoolLease
{
	/* under remote_lock */
	RbpCredentials credentials;
	bool		has_lease;
	RbpBrokerAccess broker;		/* that it is of */

	/* the lease worker's alone */
	bool		short_of_extents;	/* regions have not got all */
	bool		online_pending;		/* for lack of time */
	uint32		nfree;			/* extents without a region */
	uint32		search_from;		/* where looking for one goes on */
	uint32		lowest_free;		/* the first that is free below that */

	/* why the broker gave no good answer, "" if it did; and since when */
	char		broker_error[RBP_BROKER_ERROR_LEN];
	TimestampTz broker_error_since;

	pg_atomic_uint32 serial;	/* moves when the credentials change */
	pg_atomic_uint64 deadline;	/* CLOCK_MONOTONIC ns; 0 without a lease */
	pg_atomic_uint32 nregions;	/* in use */
	pg_atomic_uint32 recheck;	/* the broker is to be asked about it */

	/* constant */
	uint32		first_extent;
	uint32		end_extent;		/* the first that is not the pool's */
} RbpPoolLease;

typedef struct RbpRemoteShared
{
	LWLock		remote_lock;

	/* under remote_lock */
	uint32		last_grant;
	Latch	   *lease_latch;

	RbpPoolLease leases[RBP_POOLS];
	pg_atomic_uint32 stale;		/* moves when a lease's or a donor's serial
								 * does */

	/* the settings, as the pusher has them: the same for all processes */
	pg_atomic_uint32 max_slots;	/* remote_bp.max_connections */
	pg_atomic_uint64 idle_ns;	/* remote_bp.idle_connection_timeout */

	uint32		nextents;
	RbpRemoteDonor donors[RBP_MAX_DONORS];
	RbpRemoteRegion regions[RBP_MAX_REGIONS];
	pg_atomic_uint32 map[FLEXIBLE_ARRAY_MEMBER];	/* by extent */
} RbpRemoteShared;

extern RbpRemoteShared *rbp_remote_shared;

/* Have the duties of the background done at once; see rbp_remote_set_wake(). */
extern void rbp_remote_wake(void);

/*
 * ---- regions.c -----------------------------------------------------------
 */

#define RBP_EXTENT_BYTES	(RBP_EXTENT_PAGES * (uint64) BLCKSZ)

#define NO_EXTENT			PG_UINT32_MAX

/* An extent's place: region index + 1 in the high half; 0 is none. */
#define MAP_NONE			0
#define MAP_MAKE(region, ext)	((((uint32) (region) + 1) << 16) | (uint32) (ext))
#define MAP_REGION(word)	((int) ((word) >> 16) - 1)
#define MAP_EXTENT(word)	((word) & 0xffff)

/* What carries the slot: a word of the map, MAP_NONE if nothing does. No lock. */
static inline uint32
slot_word(uint32 slot)
{
	uint32		extent = slot / RBP_EXTENT_PAGES;

	return extent < rbp_remote_shared->nextents ?
		pg_atomic_read_u32(&rbp_remote_shared->map[extent]) : MAP_NONE;
}

/* Where the slot is in the region that the word names, in bytes. */
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

/* Has some lease regions there?  A reading. */
static inline bool
donor_known(const RbpRemoteDonor *d)
{
	return d->known[RBP_POOL_BUFFER] || d->known[RBP_POOL_TEMP];
}

/* Is there a region in that place, and of that pool? */
static inline bool
is_region_of(int r, RbpPool pool)
{
	const RbpRemoteRegion *region = &rbp_remote_shared->regions[r];

	return region->used && region->pool == pool;
}

/* What the pools' owners are asked. */
extern const RbpRemotePoolOps *rbp_remote_pool_ops[RBP_POOLS];

/*
 * Of each extent of a region, the next one, or NO_EXTENT.  The lease worker's
 * alone.
 */
extern uint32 *rbp_remote_next_extent;

/*
 * The following are for the lease worker, which alone changes the regions, and
 * holds remote_lock exclusively.
 */

/*
 * Enter a region into the table, in a place from *from on, with no extents yet;
 * false if there is no room.
 */
extern bool rbp_remote_enter_region(RbpPool pool, const RbpRegionGrant *grant,
									int donor, int *from);

/*
 * Give extents to the pool's regions that have not got all; so many at most that
 * it is to be called again if RbpPoolLease.online_pending is set.  Returns how many
 * regions got none, which are out of use again.
 */
extern int	rbp_remote_bring_online(RbpPool pool);

/*
 * Take a region out of use: its content is not found any more from the first
 * store on, and when this returns nobody finds anything there.
 */
extern void rbp_remote_retire_region(int r);

/*
 * Let others have remote_lock now and then, while many regions are retired, or
 * begin or end to drain.  *extents: of those since the last time, 0 at first.
 */
extern void rbp_remote_yield_lock(uint32 *extents, int r);

/* How far a connection is.  From CONN_CONNECTING on there is one. */
typedef enum RbpConnState
{
	CONN_NONE,
	CONN_BELOW_THRESHOLD,		/* none: not worth a costly one yet */
	CONN_OVER_LIMIT,			/* none: all connection slots were taken */
	CONN_CONNECTING,
	CONN_READY,					/* for requests */
	CONN_DENIED					/* ready, but a request was denied, which may
								 * have ended it */
} RbpConnState;

/*
 * This process's connection to one donor for one pool: a connection speaks
 * for a lease.  They are told apart by an index (conn_index()).
 */
typedef struct RbpLocalConn
{
	RbpConnState state;
	RbpConn    *conn;
	const RbpTransportOps *ops; /* of it, or of the last one */
	RbpMr	   *mr;				/* the pusher's: the staging region, or NULL */
	bool		has_slot;		/* one of RbpRemoteDonor.conn_slots */
	bool		has_fallback;	/* another transport to go on with */
	bool		pinned;			/* RBP_REMOTE_PATIENT has used it: it does not
								 * give way before the transaction ends */
	uint32		incarnation;	/* another value for each connection */
	int			inflight;		/* of batches, that are on their way over it */
	uint32		donor_serial;
	uint32		lease_serial;
	uint32		settings;		/* rbp_guc_connect_serial */
	int			timeouts;		/* in a row */
	int64		connect_started;	/* connecting since */
	int64		polled_at;		/* for that, last */
	int64		polled_ns;		/* ns in which it was polled now and then */
	bool		waited;			/* for that, once: from now on only poll; also
								 * the next one, if this was a costly one */
	int64		retry_at;
	uint32		reads_wanted;	/* reads that have not connected yet */
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

/* The connection that the pusher asks the donor over how it is. */
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
 * ---- io.c --------------------------------------------------------
 */

/*
 * The connection is about to be closed: what is on its way over it is waited
 * for until then (a time in the past: just looked at), and the rest of it
 * given up, as RBP_CONNLOST.
 */
extern void rbp_remote_abort_batches(int ci, int64 until_ns);

/*
 * Is the wait for a donor to be given up, since the query is to end?  For
 * transports.
 */
extern bool rbp_remote_give_up(void);

/*
 * ---- conn.c ------------------------------------------------------
 */
extern Size rbp_remote_conn_shmem_size(void);
extern void rbp_remote_conn_shmem_init(void *mem);
extern void rbp_remote_conn_reset_donor(RbpRemoteDonor *d);

/* The donor has another address: what was learnt about the old one is void. */
extern void rbp_remote_conn_new_endpoint(RbpRemoteDonor *d);

/* Is that in the memory that rbp_remote_set_pusher() named? */
extern bool rbp_remote_is_push_memory(const void *buf, Size len);

/* By RBP_TRANSPORT_*; "none" if there is no such transport. */
extern const char *rbp_remote_transport_name(uint32 bit);

/*
 * See that the connection is ready for requests, or RBP_CANCELED if it is not
 * now and nothing is wrong; RBP_TIMEOUT if it is still being made at the
 * deadline; else why it failed.  pages: how many reads would go there.
 * patient: as RBP_REMOTE_PATIENT.  now: about; it is noted as the time of use.
 */
extern RbpStatus rbp_remote_conn_get(int ci, int pages, bool patient,
									 int64 now, int64 deadline_ns);

/* Close it, or all of the pool, if there is one, and give its slot back. */
extern void rbp_remote_conn_close(int ci);
extern void rbp_remote_conns_close(RbpPool pool);

/*
 * Connections that carry this serial, a donor's or a lease's, are of no
 * use any more.  Returns the new serial.
 */
extern uint32 rbp_remote_conns_stale(pg_atomic_uint32 *serial);

/*
 * ---- health.c ----------------------------------------------------
 */

/* The lease worker shall ask the broker about the pool's lease. */
extern void rbp_remote_recheck_lease(RbpPool pool);

/*
 * Nobody uses the donor for now.  lost: since a connection to it broke, so that
 * no other is of use.  failed: the same, and counted as a failure, or timeout.
 */
extern void rbp_remote_donor_down(RbpRemoteDonor *d, bool lost);
extern void rbp_remote_donor_failed(RbpRemoteDonor *d, bool lost);

/* Back in use, whatever was. */
extern void rbp_remote_donor_up(RbpRemoteDonor *d);

static inline bool
donor_is_down(RbpRemoteDonor *d)
{
	return breaker_state(&d->breaker) == BREAKER_OPEN;
}

/* Since when each donor is suspect for this process; 0: it is not. */
extern int64 rbp_remote_suspect_since[RBP_MAX_DONORS];

/* Was the donor late for this process, and nobody was answered since? */
extern bool rbp_remote_still_suspect(int donor);

static inline bool
is_suspect(int donor)
{
	return unlikely(rbp_remote_suspect_since[donor] != 0) &&
		rbp_remote_still_suspect(donor);
}

/*
 * What a status other than RBP_OK means for donor and connection.
 * connecting: it was got from rbp_remote_conn_get().  patient: it had the time
 * of RBP_REMOTE_PATIENT, so that to be late is to be down.
 */
extern void rbp_remote_account_failure(int ci, RbpStatus status,
									   bool connecting, bool patient);

/*
 * ---- info.c ------------------------------------------------------
 */
extern void rbp_remote_reset_counters(RbpRemoteDonor *d);

/*
 * ---- report.c ----------------------------------------------------
 *
 * None of these takes a lock, but where it says so.
 */

/* Donor.state, what the view shows */
#define RBP_DONOR_GONE		0	/* no lease has regions there */
#define RBP_DONOR_OK		1
#define RBP_DONOR_DOWN		2
#define RBP_DONOR_UNRESOLVED 3	/* the lease worker has no address for it */

typedef enum RbpDonorError
{
	DONOR_ERROR_NONE,
	DONOR_ERROR_CONNECT,		/* no connection could be made */
	DONOR_ERROR_REQUEST,		/* a request failed */
	DONOR_ERROR_OFTEN_LATE,		/* too much penalty */
	DONOR_ERROR_UNRESOLVED,		/* its name has no address yet */
	DONOR_ERROR_NO_TRANSPORT,	/* under "auto": none leads there */
	DONOR_ERROR_NO_DEVICE,		/* the transport of the settings does not: */
	DONOR_ERROR_NOT_OFFERED,
	DONOR_ERROR_NOT_FROM_HERE
} RbpDonorError;

/* An error in one word */
#define ERROR_MAKE(what, transport, status) \
	(((uint32) (what) << 16) | ((uint32) (transport) << 8) | (uint32) (status))
#define ERROR_WHAT(word)		((RbpDonorError) ((word) >> 16))
#define ERROR_TRANSPORT(word)	(((word) >> 8) & 0xff)
#define ERROR_STATUS(word)		((RbpStatus) ((word) & 0xff))

extern void rbp_remote_report_reset(RbpRemoteDonor *d);

/* Something went wrong with the donor; transport: RBP_TRANSPORT_*, or 0. */
extern void rbp_remote_note_error(RbpRemoteDonor *d, RbpDonorError what, uint32 transport,
								  RbpStatus status);

/* The same, if no transport can be chosen: finds out why. */
extern void rbp_remote_note_unreachable(RbpRemoteDonor *d, const RbpEndpoint *endpoint);

/* Its state, or that of all donors, may be another one. */
extern void rbp_remote_note_state(RbpRemoteDonor *d);
extern void rbp_remote_note_states(void);

/* By RBP_DONOR_*. */
extern const char *rbp_remote_state_name(uint32 state);

/* The last error of the donor as text, "" if there was none. */
extern void rbp_remote_last_error(RbpRemoteDonor *d, char *buf, Size len,
								  TimestampTz *at);

#endif							/* RBP_REMOTE_INTERNAL_H */
