/*-------------------------------------------------------------------------
 *
 * breaker.h
 *	  A circuit breaker: may something that has failed be used?
 *
 * Each link to a donor has one (link.c).
 *
 * The state after an event, by the state before it (-: no change):
 *
 *	event					closed		suspect		open
 *	suspect					suspect		-			-
 *	trip					open		open		-
 *	answered, if asked
 *	after the last suspicion -			closed		-
 *	close					-			closed		closed
 *
 * - Closed: all processes use it.
 * - Suspect: all processes use it except those that have seen it fail, until
 *   some process gets an answer to what it asked after that.  The pusher sends
 *   a ping to find out.
 * - Open: it is down, and no process uses it.  The pusher probes it from
 *   retry_at on, and closes the breaker when a probe succeeds.
 *
 * The delay before a probe doubles with each trip and each failed probe, and
 * starts over after the breaker has been closed for some time.  A failure that
 * costs little only adds to a penalty, which successes reduce; the caller
 * trips the breaker when the penalty exceeds a limit.  Wrong answers are
 * counted, whatever else succeeds; the caller trips the breaker when there are
 * too many in a minute.
 *
 * All fields are atomics, which any process may use.  If several processes
 * notice the same event, exactly one of them makes the transition and acts on
 * it.
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

/* Zeroes are one that is closed. */
typedef struct RbpBreaker
{
	pg_atomic_uint32 state;		/* RbpBreakerState */
	pg_atomic_uint32 penalty;
	pg_atomic_uint32 trips;		/* in a row, see reset_after */
	pg_atomic_uint32 failed_probes; /* since the breaker was last closed */
	pg_atomic_uint64 retry_at;	/* earliest time of the next probe, as of
								 * rbp_now_ns() */
	pg_atomic_uint64 suspected_at;	/* when a process last made it suspect, or
									 * found it so; likewise */
	pg_atomic_uint64 closed_at; /* when it was last closed; likewise */
	pg_atomic_uint32 wrong;		/* wrong answers since wrong_since */
	pg_atomic_uint64 wrong_since;	/* as of rbp_now_ns() */
} RbpBreaker;

/* Delays before an open breaker is probed, in ns. */
typedef struct RbpBreakerTimes
{
	int64		first_delay;	/* after the first trip */
	int64		base_delay;		/* after the next trip or failed probe;
								 * doubles from then on */
	int64		max_delay;
	int64		reset_after;	/* a trip this long after the last probe was
								 * due has first_delay again */
} RbpBreakerTimes;

/* Make it suspect, or open; true if this call made the transition. */
extern bool rbp_breaker_suspect(RbpBreaker *b);
extern bool rbp_breaker_trip(RbpBreaker *b, const RbpBreakerTimes *times);

/* Close it, if suspect or open; true if it was open. */
extern bool rbp_breaker_close(RbpBreaker *b);

/*
 * A process got an answer to what it asked at that time, as of rbp_now_ns():
 * close it if it is suspect, and not open.  An answer to what was asked before
 * the last suspicion is no sign of life: it may have come before that, too.
 */
extern void rbp_breaker_clear_suspicion(RbpBreaker *b, int64 asked_at);

/* A probe has failed.  Returns ns until the next one. */
extern int64 rbp_breaker_probe_failed(RbpBreaker *b, const RbpBreakerTimes *times);

/* Add a penalty; true if the breaker should be tripped. */
#define RBP_PENALTY_LIMIT	2000

extern bool rbp_breaker_penalize(RbpBreaker *b, uint32 penalty);

/* Count a wrong answer; true if the breaker should be tripped. */
extern bool rbp_breaker_wrong(RbpBreaker *b);

static inline RbpBreakerState
breaker_state(RbpBreaker *b)
{
	return (RbpBreakerState) pg_atomic_read_u32(&b->state);
}

/* An answer came in time: reduce the penalty a little. */
static inline void
breaker_reduce_penalty(RbpBreaker *b)
{
	uint32		penalty = pg_atomic_read_u32(&b->penalty);

	if (unlikely(penalty > 0))
		(void) pg_atomic_compare_exchange_u32(&b->penalty, &penalty, penalty - 1);
}

/*
 * Circumstances have changed: the next probe is due, and past trips do not
 * count.  A retry_at of 0 does both, since it has passed by more than
 * reset_after.
 */
static inline void
breaker_reset_backoff(RbpBreaker *b)
{
	pg_atomic_write_u64(&b->retry_at, 0);
}

#endif							/* RBP_REMOTE_BREAKER_H */
