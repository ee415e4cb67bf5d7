/*-------------------------------------------------------------------------
 *
 * breaker.h
 *	  A circuit breaker: may something that has failed be used?
 *
 * Each donor has one for itself, and one for the transport that it is best
 * reached by, which may fail while another one works.
 *
 *	event					closed		suspect		open
 *	suspect					suspect		-			-
 *	trip					open		open		-
 *	answered				-			closed		-
 *	close					-			closed		closed
 *
 * - Closed: all processes use it.
 * - Suspect: all use it but those that have seen it fail, until one is
 *   answered.  The pusher asks.
 * - Open: it is down, and no process uses it.  The pusher probes it from
 *   retry_at on, and closes the breaker when a probe succeeds.
 *
 * The time until a probe doubles with each trip and each probe that fails, until
 * the breaker has been closed for a time of calm.  A failure that costs only a
 * little adds to a penalty, which successes take off: above a limit it is time to
 * trip.
 *
 * All of it is atomics, for any process to use.  Of several processes that
 * notice the same, one makes the transition, and does what follows from it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_REMOTE_BREAKER_H
#define RBP_REMOTE_BREAKER_H

#include "postgres.h"

#include "port/atomics.h"

typedef enum BreakerState
{
	BREAKER_CLOSED,
	BREAKER_SUSPECT,
	BREAKER_OPEN
} BreakerState;

typedef struct Breaker
{
	pg_atomic_uint32 state;		/* BreakerState */
	pg_atomic_uint32 penalty;
	pg_atomic_uint32 trips;		/* in a row, without calm between */
	pg_atomic_uint32 failed;	/* probes, since the last of these */
	pg_atomic_uint64 retry_at;	/* no probe before; rbp_now_ns() */
	pg_atomic_uint64 closed_at; /* the last time; likewise */
} Breaker;

/* How long an open breaker is not probed, in ns. */
typedef struct BreakerTimes
{
	int64		first;			/* after the first trip */
	int64		again;			/* when it, or a probe, fails again; from then
								 * on twice as long each time */
	int64		most;
	int64		calm;			/* closed for so long, the next trip is a first */
} BreakerTimes;

/* Closed.  Before others can see it. */
extern void rbp_breaker_init(Breaker *b);

/* The transitions: true if it is suspect or open now, and was not before. */
extern bool rbp_breaker_suspect(Breaker *b);
extern bool rbp_breaker_trip(Breaker *b, const BreakerTimes *times);

/* True if it was open. */
extern bool rbp_breaker_close(Breaker *b);
extern void rbp_breaker_answered(Breaker *b);

/* A probe has failed: returns ns until the next one. */
extern int64 rbp_breaker_put_off(Breaker *b, const BreakerTimes *times);

/* One more penalty; true if it is time to trip. */
extern bool rbp_breaker_penalize(Breaker *b);

static inline BreakerState
breaker_state(Breaker *b)
{
	return (BreakerState) pg_atomic_read_u32(&b->state);
}

/* A success takes off a little of the penalty. */
static inline void
breaker_succeeded(Breaker *b)
{
	uint32		penalty = pg_atomic_read_u32(&b->penalty);

	if (unlikely(penalty > 0))
		(void) pg_atomic_compare_exchange_u32(&b->penalty, &penalty, penalty - 1);
}

/* Things have changed: the next probe is due, and past trips do not count. */
static inline void
breaker_start_over(Breaker *b)
{
	pg_atomic_write_u64(&b->retry_at, 0);
}

#endif							/* RBP_REMOTE_BREAKER_H */
