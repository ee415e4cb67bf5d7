/*-------------------------------------------------------------------------
 *
 * state.h
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

#include <pthread.h>

#include "broker/broker/model.h"

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
	BrokerDonor *donors;			/* ordered by id */
	BrokerLease *leases;			/* live ones, the youngest first */
	BrokerLease *ended;			/* the last BROKER_MAX_ENDED, the youngest first */
	int			ndonors;
	int			nleases;
	int			nended;
	BrokerCounters counters;
} BrokerState;

extern BrokerState broker;

extern void broker_state_init(int64_t donor_timeout_ms);

/* Read it from the file, which is created if need be.  Dies with a message. */
extern void broker_state_open(const char *path);

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

extern BrokerDonor *broker_donor_find(const char *id);
extern BrokerLease *broker_lease_find(const char *id);		/* live ones only */
extern BrokerLease *broker_lease_find_ended(const char *id);
extern BrokerHolding *broker_lease_holding(const BrokerLease *lease, const BrokerDonor *donor);

/*
 * Insert in order; the structures now belong to the state.
 */
extern void broker_donor_link(BrokerDonor *donor);
extern void broker_lease_link(BrokerLease *lease);

/* A donor with all regions clean, not linked; NULL if memory is short. */
extern BrokerDonor *broker_donor_new(const char *id, int nregions);
extern void broker_donor_free(BrokerDonor *donor);

/* Take it out of the state, memory and disk.  It must hold no lease. */
extern void broker_donor_forget(BrokerDonor *donor);

/* Raise the revision, once in a transaction. */
extern void broker_donor_touch(BrokerDonor *donor);

/*
 * How clients reach the donor: id, host, port and transports, and where it
 * has them, rdma_host and rdma_port.  A new object, NULL if memory is short.
 */
extern json_t *broker_donor_address(const BrokerDonor *donor);

typedef enum BrokerDonorStatus
{
	DONOR_UP,
	DONOR_DRAINING,				/* up, and draining */
	DONOR_AWAY,
	DONOR_GONE
} BrokerDonorStatus;

extern BrokerDonorStatus broker_donor_status(const BrokerDonor *donor, int64_t now);
extern const char *broker_donor_status_name(BrokerDonorStatus status);

/*
 * The changes that a region can see; memory and disk.  broker_region_distrust():
 * from clean to dirty, when a donor registers that does not list it as clean.
 */
extern void broker_region_lease(BrokerDonor *donor, int region, BrokerLease *lease);
extern void broker_region_unlease(BrokerDonor *donor, int region);
extern void broker_region_cleaned(BrokerDonor *donor, int region);
extern void broker_region_distrust(BrokerDonor *donor, int region);

/* All regions that a lease has on a donor become dirty; returns how many. */
extern int	broker_lease_leave_donor(BrokerLease *lease, BrokerDonor *donor);

/* All leases leave the donor; returns how many regions that were. */
extern int	broker_donor_drop_leases(BrokerDonor *donor);

/*
 * End a lease: regions become dirty, the secret is wiped.  The Lease stays
 * allocated until it is pushed out of the ended list, so not for long.
 * Returns how many regions it had.
 */
extern int	broker_lease_end(BrokerLease *lease, BrokerLeaseEnd why);

/* "has expired", ... */
extern const char *broker_lease_end_text(BrokerLeaseEnd why);

/* Panics unless all of the invariants above hold.  For tests: it is slow. */
extern void broker_check(void);

/* Regions that the donor lets us have leased at a time. */
extern int	broker_donor_limit(const BrokerDonor *donor);

/* How many more regions of it can be granted now? */
extern int	broker_donor_free_regions(const BrokerDonor *donor, int64_t now);

#endif							/* RBP_BROKER_STATE_H */
