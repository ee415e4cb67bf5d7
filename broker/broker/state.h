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
 * Operations are short: microseconds.  A
 * handler that waits (a heartbeat for a change of its donor's revision, a grant
 * for the donors' acknowledgement) does so in broker_wait(), which commits and
 * releases the mutex: what was read before may not be so after it.  There are as many
 * waiters as donors, plus a few.  A heartbeat is woken when the row of its donor changes, the
 * others when a commit has changed other than temporary tables, or an acknowledgement came:
 * if a change woke all, what concerns all donors would take the square of their number.
 *
 * With a query in REMOTE_BP_BROKER_CHECK, as in the tests, each commit runs it, and ends
 * the broker if there is a row: that tells of a count in the temporary tables that is wrong.
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
	LEASES_ADOPTED,				/* told of by donors, and renewed */
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
	bool		stopping;
	bool		insecure;		/* other machines need no credential */
	const char *check;			/* a query that must have no row, or NULL */
	bool		wake;			/* the commit has to wake: something else than
								 * temporary tables has changed, or there is
								 * an acknowledgement */
	int64_t		started;		/* seconds since 1970 */
	int64_t		learns_since;	/* from donors; rbp_mono_ms() */
	int64_t		lock_wait_ns;	/* of all, since the start */
	int64_t		counters[BROKER_COUNTERS];
} BrokerState;

extern BrokerState broker;

extern void broker_state_open(int64_t donor_timeout_ms);

extern void broker_begin(void);
extern void broker_end(void);

/*
 * Commit, wait for a change of this donor, or, with 0, for any, or until deadline
 * (rbp_mono_ms()), and begin anew.  False, without having waited, if the deadline has passed
 * already, or the broker is stopping.
 */
extern bool broker_wait(int64_t donor, int64_t deadline);

/* How long this thread has been in broker_wait() in all. */
extern _Thread_local int64_t broker_waited_ns;

/* Make every waiter return.  Takes the lock. */
extern void broker_stop(void);

#endif							/* RBP_BROKER_STATE_H */
