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

typedef enum RbpBreakerState
{
	BREAKER_CLOSED,
	BREAKER_SUSPECT,
	BREAKER_OPEN
} RbpBreakerState;

typedef struct RbpBreaker
{
	pg_atomic_uint32 state;		/* RbpBreakerState */
	pg_atomic_uint32 penalty;
	pg_atomic_uint32 trips;		/* in a row, without calm between */
	pg_atomic_uint32 failed_probes;	/* probes, since the last of these */
	pg_atomic_uint64 retry_at;	/* no probe before; rbp_now_ns() */
	pg_atomic_uint64 closed_at; /* the last time; likewise */
} RbpBreaker;

/* How long an open breaker is not probed, in ns. */
typedef struct RbpBreakerTimes
{
	int64		first_delay;	/* after the first trip */
	int64		base_delay;		/* when it, or a probe, fails again; from then
								 * on twice as long each time */
	int64		max_delay;
	int64		reset_after;	/* closed for so long, the next trip is a first */
} RbpBreakerTimes;

/* Closed.  Before others can see it. */
extern void rbp_breaker_init(RbpBreaker *b);

/* The transitions: true if it is suspect or open now, and was not before. */
extern bool rbp_breaker_suspect(RbpBreaker *b);
extern bool rbp_breaker_trip(RbpBreaker *b, const RbpBreakerTimes *times);

/* True if it was open. */
extern bool rbp_breaker_close(RbpBreaker *b);
extern void rbp_breaker_answered(RbpBreaker *b);

/* A probe has failed: returns ns until the next one. */
extern int64 rbp_breaker_probe_failed(RbpBreaker *b, const RbpBreakerTimes *times);

/* One more penalty; true if it is time to trip. */
extern bool rbp_breaker_penalize(RbpBreaker *b);

static inline RbpBreakerState
breaker_state(RbpBreaker *b)
{
	return (RbpBreakerState) pg_atomic_read_u32(&b->state);
}

/* A success takes off a little of the penalty. */
static inline void
breaker_succeeded(RbpBreaker *b)
{
	uint32		penalty = pg_atomic_read_u32(&b->penalty);

	if (unlikely(penalty > 0))
		(void) pg_atomic_compare_exchange_u32(&b->penalty, &penalty, penalty - 1);
}

/* Things have changed: the next probe is due, and past trips do not count. */
static inline void
breaker_reset_backoff(RbpBreaker *b)
{
	pg_atomic_write_u64(&b->retry_at, 0);
}

#endif							/* RBP_REMOTE_BREAKER_H */
