/*-------------------------------------------------------------------------
 *
 * state.h
 *	  The lock, transactions, and waiting for what others do.
 *
 * One mutex, broker.lock, protects the state (schema.c has the tables) and
 * everything declared here.  Request handlers (called so by http.c) and the
 * ticker thread work under it:
 *
 *		broker_begin();			lock, begin a transaction
 *		...						run statements, build the answer
 *		broker_end();			commit, wake waiters, unlock
 *
 * Operations are short: microseconds, and one fsync when something that has to
 * survive was changed (renewals and idle heartbeats change no such thing).  A
 * handler that waits (a heartbeat for a change of its donor's revision, a grant
 * for the donors' acknowledgement) does so in broker_wait(), which commits and
 * releases the mutex: what was read before may not be so after it.  All waiters
 * share one condition variable, which is broadcast if a commit has changed what is
 * on disk, or an acknowledgement came; there are as many waiters as donors, plus a
 * few.
 *
 * Durability.  An answer is sent after broker_end(), and nobody else can see
 * uncommitted changes, since the mutex is held from the change to the commit.
 *
 * A full disk.  A commit that the disk did not take is rolled back whole, and
 * broker_end() returns false.  From then on, the state is full: handlers that change
 * what is on disk are not called, or leave it alone, until the ticker finds that it can
 * be written.
 * What changes the temporary tables alone goes on, above all the renewal of leases.
 *
 * With a query in REMOTE_BP_BROKER_CHECK, as in the tests, each commit runs it, and ends
 * the broker if there is a row: that tells of a count in the volatile tables that is wrong.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_STATE_H
#define RBP_BROKER_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* metrics.c has their names. */
typedef enum BrokerCounter
{
	LEASES_CREATED,
	LEASES_RENEWED,
	LEASES_EXPIRED,
	LEASES_REVOKED,
	LEASES_RELEASED,
	LEASES_TAKEN_OVER,
	REGIONS_GRANTED,
	REGIONS_RELEASED,
	REGIONS_TAKEN,				/* past the grace time */
	REGIONS_LOST,				/* with their donor */
	REGIONS_CLEANED,
	HEARTBEATS,
	REGISTRATIONS,
	BROKER_COUNTERS
} BrokerCounter;

typedef struct BrokerState
{
	pthread_mutex_t lock;
	pthread_cond_t changed;		/* on CLOCK_MONOTONIC */
	bool		stopping;
	bool		full;			/* what is on disk cannot be changed now */
	bool		insecure;		/* other machines need no credential */
	const char *check;			/* a query that must have no row, or NULL */
	bool		wake;			/* the commit has to broadcast, whatever it
								 * wrote */
	int64_t		started;		/* seconds since 1970 */
	int64_t		lock_wait_ns;	/* of all, since then */
	int64_t		counters[BROKER_COUNTERS];
} BrokerState;

extern BrokerState broker;

/* Opens or creates the file.  Dies with a message. */
extern void broker_state_open(const char *path, int64_t donor_timeout_ms);

/* False: nothing was changed since broker_begin(), or the last broker_wait(). */
extern void broker_begin(void);
extern bool broker_end(void);

/*
 * Commit, wait for a broadcast, or until deadline (rbp_mono_ms()), and begin
 * anew.  False, without having waited, if the deadline has passed already, the
 * broker is stopping, or the commit has failed; then broker_end() will, too.
 */
extern bool broker_wait(int64_t deadline);

/* How long this thread has been in broker_wait() in all. */
extern _Thread_local int64_t broker_waited_ns;

/* If the state is full, try whether it still is.  At the start of a transaction. */
extern void broker_try_full(void);

/* Make every waiter return.  Takes the lock. */
extern void broker_stop(void);

#endif							/* RBP_BROKER_STATE_H */
