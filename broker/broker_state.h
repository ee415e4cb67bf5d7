/*-------------------------------------------------------------------------
 *
 * broker_state.h
 *	  What the broker knows: donors, their regions, leases.
 *
 * Locking.  One mutex, broker.lock, protects everything declared here, and the
 * database handle.  Every request handler and the ticker thread work under
 * it:
 *
 *		broker_begin();			lock
 *		...						read and change, with the functions below
 *		broker_commit();		write what changed to the database, wake waiters
 *		...						read, build the answer
 *		broker_end();			unlock
 *
 * Operations are short: microseconds in memory, and one fsync when something
 * that has to survive was changed (renewals and idle heartbeats change no
 * such thing).  A handler that waits (a heartbeat for a change of its donor's
 * revision, a grant for the donors' acknowledgement) does so in
 * broker_wait(), which releases the mutex.  Pointers to donors and leases are
 * void after it: look them up again by id.  All waiters share one condition
 * variable, which broker_commit() broadcasts if a revision was raised or an
 * acknowledgement came; there are as many waiters as donors, plus a few.
 *
 * Durability.  Whatever is promised in an answer is committed before
 * broker_commit() returns, and nobody else can see uncommitted changes, since
 * the mutex is held from the change to the commit.  If the database cannot be
 * written the process ends at once: memory would be ahead of the disk, and
 * holding on to it would break promises.  Leases outlive that, as any
 * restart.
 *
 * Invariants, relied upon everywhere, and checked at each commit when the
 * environment has REMOTE_BP_BROKER_CHECK=1, as in the tests:
 * - a region is leased by at most one lease: it has one lease pointer, and
 *	 (donor, region) is the primary key on disk;
 * - a region goes from leased to dirty, from dirty to clean, and from clean to
 *	 leased, no other way; to clean only by the donor's word, given after it
 *	 knew of the region's last change (RbpRegion.rev), or by a new instance of
 *	 the donor, whose memory is new;
 * - each change of a region to leased or dirty, and of the wish to drain,
 *	 raises the donor's revision;
 * - a live lease has a holding for each donor on which it has regions, and
 *	 only for these; a lease that ended has none.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_STATE_H
#define RBP_BROKER_STATE_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "common.h"

#define BROKER_DONOR_ID_LEN		64	/* lengths include the terminating zero */
#define BROKER_HOST_LEN			128
#define BROKER_NAME_LEN			128 /* clients, instances, socket names */
#define BROKER_SECRET_LEN		32	/* bytes */
#define BROKER_MAX_REGIONS		65536	/* of one donor */
#define BROKER_MAX_DONORS		1024
#define BROKER_MAX_LEASES		16384	/* live ones */
#define BROKER_MAX_ENDED		2048	/* kept to answer 410 rather than 404 */
#define BROKER_REGION_UNIT		(INT64_C(1) << 20)	/* region sizes are multiples */
#define BROKER_MIN_TTL_MS		1000
#define BROKER_MAX_TTL_MS		86400000
#define BROKER_DEFAULT_GRACE_MS	10000
#define BROKER_MAX_GRACE_MS		3600000

typedef enum RegionState
{
	REGION_CLEAN,				/* can be granted; has no row on disk */
	REGION_LEASED,
	REGION_DIRTY				/* was leased; its donor has not cleaned it yet */
} RegionState;

typedef enum Purpose
{
	PURPOSE_BUFFER,
	PURPOSE_TEMP
} Purpose;

/* Kept on disk by number. */
typedef enum LeaseEnd
{
	LEASE_LIVE = 0,
	LEASE_EXPIRED = 1,
	LEASE_REVOKED = 2,
	LEASE_RELEASED = 3,
	LEASE_TAKEN_OVER = 4
} LeaseEnd;

typedef struct Lease Lease;
typedef struct Donor Donor;

typedef struct Region
{
	RegionState state;
	Lease	   *lease;			/* if leased */
	int64_t		rev;			/* the donor's revision that brought this state */
} Region;

/* A lease's share of one donor. */
typedef struct Holding
{
	struct Holding *next;		/* of the same lease */
	Donor	   *donor;
	int			regions;
	int64_t		granted_rev;	/* the donor's revision of the last grant */
	int			asked;			/* regions asked back, for whichever reason */
	int			shared;			/* regions to be asked back for other leases */
	int			kept;			/* regions that the donor leaves there; used
								 * while shares are made, as Donor.sharing */
	int64_t		taken_at;		/* ms: when asked ones are taken; 0: the holder
								 * has not been told yet */
} Holding;

struct Lease
{
	Lease	   *next;
	char		id[RBP_UUID_LEN];
	unsigned char secret[BROKER_SECRET_LEN];	/* zeroes once ended */
	char		client[BROKER_NAME_LEN];
	char		instance[BROKER_NAME_LEN];
	Purpose		purpose;
	int64_t		wanted;			/* bytes */
	int64_t		ttl_ms;
	int64_t		created;		/* seconds since 1970 */
	LeaseEnd	ended;

	/* not on disk */
	int64_t		deadline;		/* rbp_mono_ms() */
	int64_t		bytes;			/* granted: sum over its regions */
	int64_t		waiting_since;	/* rbp_mono_ms(): has less than wanted; 0: not */
	int64_t		share;			/* bytes; see broker_share.c, as the next four */
	int64_t		turn;			/* bytes beside its share that it may have first */
	int64_t		claim;			/* bytes */
	int64_t		present;		/* bytes */
	bool		told;			/* the log knows that it has too much */
	json_t	   *scratch;		/* used while an answer is built */
	Holding    *holdings;
};

struct Donor
{
	Donor	   *next;
	char		id[BROKER_DONOR_ID_LEN];
	char		host[BROKER_HOST_LEN];
	int			port;			/* tcp; 0: none */
	char		shm_name[BROKER_NAME_LEN];
	char		boot_id[BROKER_NAME_LEN];
	json_t	   *transports;		/* array of strings */
	char		rdma_host[BROKER_HOST_LEN]; /* verbs; "": none */
	int			rdma_port;		/* verbs; 0: none */
	int64_t		region_size;
	int			nregions;
	char		instance[BROKER_NAME_LEN];
	int64_t		revision;
	bool		draining;
	int64_t		grace_ms;
	Region	   *regions;

	/* not on disk */
	int			nleased;
	int			ndirty;
	int			clean_hint;		/* no region below it is clean */
	bool		touched;		/* revision was raised in this transaction */
	bool		heard;			/* since the broker started */
	int64_t		last_heard;		/* rbp_mono_ms(); when the broker started, if
								 * not heard */
	int64_t		applied;		/* revision that it says it has applied */
	int			want_back;
	bool		sharing;
	json_t	   *stats;			/* object of numbers, or NULL */
};

typedef struct BrokerCounters
{
	int64_t		leases_created;
	int64_t		leases_renewed;
	int64_t		leases_expired;
	int64_t		leases_revoked;
	int64_t		leases_released;
	int64_t		leases_taken_over;
	int64_t		regions_granted;
	int64_t		regions_released;
	int64_t		regions_taken;	/* past the grace time */
	int64_t		regions_lost;	/* with their donor */
	int64_t		regions_cleaned;
	int64_t		heartbeats;
	int64_t		registrations;
} BrokerCounters;

typedef struct BrokerState
{
	pthread_mutex_t lock;
	pthread_cond_t changed;		/* on CLOCK_MONOTONIC */
	bool		stopping;
	bool		check;			/* broker_commit() checks all invariants */
	bool		wake;			/* broker_commit() has to broadcast */
	int64_t		started;		/* rbp_mono_ms() */
	int64_t		donor_timeout_ms;
	Donor	   *donors;			/* ordered by id */
	Lease	   *leases;			/* live ones, the youngest first */
	Lease	   *ended;			/* the last BROKER_MAX_ENDED, the youngest first */
	int			ndonors;
	int			nleases;
	int			nended;
	BrokerCounters counters;
} BrokerState;

extern BrokerState broker;

/* ---- broker_state.c ---- */

extern void broker_state_init(int64_t donor_timeout_ms);

/* Lock; commit; unlock.  See the top of this file. */
extern void broker_begin(void);
extern void broker_commit(void);
extern void broker_end(void);

/*
 * Wait for a broadcast, or until deadline (rbp_mono_ms()), then return true.
 * False, without having let go of the mutex, if the deadline has passed
 * already or the broker is stopping.  Nothing uncommitted may be pending.
 */
extern bool broker_wait(int64_t deadline);

/* Make every waiter return.  Takes the lock. */
extern void broker_stop(void);

extern Donor *broker_donor_find(const char *id);
extern Lease *broker_lease_find(const char *id);		/* live ones only */
extern Lease *broker_lease_find_ended(const char *id);
extern Holding *broker_lease_holding(const Lease *lease, const Donor *donor);

/*
 * Insert in order; the structures now belong to the state.  Used for new ones
 * and by the database when it loads.
 */
extern void broker_donor_link(Donor *donor);
extern void broker_lease_link(Lease *lease);
extern void broker_lease_link_ended(Lease *lease);

/* A donor with all regions clean, not linked; NULL if memory is short. */
extern Donor *broker_donor_new(const char *id, int nregions);
extern void broker_donor_free(Donor *donor);

/* Take it out of the state, memory and disk.  It must hold no lease. */
extern void broker_donor_forget(Donor *donor);

/* Raise the revision, once in a transaction. */
extern void broker_donor_touch(Donor *donor);

/*
 * How clients reach the donor: id, host, port and transports, and where it
 * has them, rdma_host and rdma_port.  A new object, NULL if memory is short.
 */
extern json_t *broker_donor_address(const Donor *donor);

typedef enum DonorStatus
{
	DONOR_UP,
	DONOR_DRAINING,				/* up, and draining */
	DONOR_AWAY,
	DONOR_GONE
} DonorStatus;

extern DonorStatus broker_donor_status(const Donor *donor, int64_t now);
extern const char *broker_donor_status_name(DonorStatus status);

/*
 * The changes that a region can see; memory and disk.  broker_region_distrust():
 * from clean to dirty, when a donor registers that does not list it as clean.
 */
extern void broker_region_lease(Donor *donor, int region, Lease *lease);
extern void broker_region_unlease(Donor *donor, int region);
extern void broker_region_cleaned(Donor *donor, int region);
extern void broker_region_distrust(Donor *donor, int region);

/* Set a region as it was found on disk. */
extern bool broker_region_restore(Donor *donor, int region, RegionState region_state,
						   Lease *lease, int64_t rev);

/* All regions that a lease has on a donor become dirty; returns how many. */
extern int	broker_lease_leave_donor(Lease *lease, Donor *donor);

/* All leases leave the donor; returns how many regions that were. */
extern int	broker_donor_drop_leases(Donor *donor);

/*
 * End a lease: regions become dirty, the secret is wiped.  The Lease stays
 * allocated until it is pushed out of the ended list, so not for long.
 * Returns how many regions it had.
 */
extern int	broker_lease_end(Lease *lease, LeaseEnd why);

/* "has expired", ... */
extern const char *broker_lease_end_text(LeaseEnd why);

/* Panics unless all of the invariants above hold.  For tests: it is slow. */
extern void broker_check(void);

/* ---- broker_db.c: all under broker.lock, all end the process on failure ---- */

/* Opens or creates the file and loads the state.  Dies with a message. */
extern void broker_db_open(const char *path);
extern void broker_db_close(void);

/* Each joins the transaction under way, or starts one. */
extern void broker_db_put_donor(const Donor *donor);
extern void broker_db_delete_donor(const Donor *donor);
extern void broker_db_put_region(const Donor *donor, int region);
extern void broker_db_put_lease(const Lease *lease);
extern void broker_db_delete_lease(const Lease *lease);
extern void broker_db_commit(void);

/* ---- broker_alloc.c ---- */

/* Regions that the donor lets us have leased at a time. */
extern int	broker_alloc_limit(const Donor *donor);

/* How many more regions of it can be granted now? */
extern int	broker_alloc_free(const Donor *donor, int64_t now);

/*
 * Grant regions to the lease until it has what it wants, or nothing is left
 * for it.  Returns the number granted.  May be called with nothing to do.
 */
extern int	broker_alloc_grant(Lease *lease);

/* Could a donor that is up soon have clean regions for this lease? */
extern bool broker_alloc_more_coming(const Lease *lease);

/*
 * Bring what is asked back from holders in line with what the donor wants,
 * and with what other leases are to get (Holding.shared).
 */
extern void broker_reclaim_update(Donor *donor);

/* The holder is being told what is asked back: grace time begins. */
extern void broker_reclaim_tell(Lease *lease);

/*
 * Do what is due: expire leases, take regions past the grace time, drop the
 * leases of donors that are gone, forget old donors.  Returns the time
 * (rbp_mono_ms()) at which to be called again, at most a second ahead.
 */
extern int64_t broker_tick(void);

/* ---- broker_share.c ---- */

/* What of the free memory is for others than a lease, in bytes. */
typedef struct Queue
{
	int64_t		free;
	int64_t		shares;			/* for those that are short of their share */
	int64_t		shares_ahead;	/* that come before it */
	int64_t		turns;			/* beside these */
	int64_t		turns_ahead;
	int64_t		unit;
} Queue;

/* Work out the shares, and where this lease stands. */
extern void broker_share_queue(const Lease *lease, int64_t now, Queue *queue);

/*
 * May the lease have one more region of this size?  Then it is taken off the
 * queue's free memory; the lease's own figures are brought up to date.
 */
extern bool broker_share_take(Lease *lease, int64_t size, Queue *queue);

/* Work out the shares, and ask back what leases that are short are to get. */
extern void broker_share_update(void);

/* ---- broker_metrics.c ---- */

/* Prometheus text; malloc'ed, NULL if memory is short.  Under broker.lock. */
extern char *broker_metrics(void);

#endif							/* RBP_BROKER_STATE_H */
