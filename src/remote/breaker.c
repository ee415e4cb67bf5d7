/*-------------------------------------------------------------------------
 *
 * breaker.c
 *	  Transitions of a circuit breaker.  See breaker.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/clock.h"
#include "remote/breaker.h"

/* So many wrong answers in that time are too many. */
#define WRONG_LIMIT		16
#define WRONG_NS		INT64CONST(60000000000)

/*
 * The delay before the next probe, given the number of trips and failed probes
 * since the first trip.
 */
static int64
backoff(const RbpBreakerTimes *times, uint32 failures)
{
	int64		ns = times->base_delay;

	if (failures == 0)
		return times->first_delay;
	while (--failures > 0 && ns < times->max_delay)
		ns *= 2;
	return Min(ns, times->max_delay);
}

static bool
change(RbpBreaker *b, RbpBreakerState from, RbpBreakerState to)
{
	uint32		state = from;

	return pg_atomic_compare_exchange_u32(&b->state, &state, to);
}

bool
rbp_breaker_suspect(RbpBreaker *b)
{
	uint64		now = (uint64) rbp_now_ns();
	uint64		before = pg_atomic_read_u64(&b->suspected_at);

	/* before the change; and another process may have noted a later time */
	while (before < now &&
		   !pg_atomic_compare_exchange_u64(&b->suspected_at, &before, now))
		;
	return change(b, BREAKER_CLOSED, BREAKER_SUSPECT);
}

bool
rbp_breaker_penalize(RbpBreaker *b, uint32 penalty)
{
	return pg_atomic_add_fetch_u32(&b->penalty, penalty) >= RBP_PENALTY_LIMIT;
}

bool
rbp_breaker_wrong(RbpBreaker *b)
{
	uint64		now = (uint64) rbp_now_ns();
	uint64		since = pg_atomic_read_u64(&b->wrong_since);

	if ((int64) (now - since) > WRONG_NS &&
		pg_atomic_compare_exchange_u64(&b->wrong_since, &since, now))
		pg_atomic_write_u32(&b->wrong, 0);
	return pg_atomic_add_fetch_u32(&b->wrong, 1) >= WRONG_LIMIT;
}

bool
rbp_breaker_trip(RbpBreaker *b, const RbpBreakerTimes *times)
{
	int64		now = rbp_now_ns();
	uint32		trips;

	if (breaker_state(b) == BREAKER_OPEN ||
		pg_atomic_exchange_u32(&b->state, BREAKER_OPEN) == BREAKER_OPEN)
		return false;
	if (now - (int64) pg_atomic_read_u64(&b->retry_at) > times->reset_after)
		pg_atomic_write_u32(&b->trips, 0);
	trips = pg_atomic_add_fetch_u32(&b->trips, 1);
	pg_atomic_write_u64(&b->retry_at, (uint64) (now + backoff(times, trips - 1)));
	return true;
}

int64
rbp_breaker_probe_failed(RbpBreaker *b, const RbpBreakerTimes *times)
{
	uint32		failed = pg_atomic_add_fetch_u32(&b->failed_probes, 1);
	int64		ns = backoff(times, pg_atomic_read_u32(&b->trips) + failed - 1);

	pg_atomic_write_u64(&b->retry_at, (uint64) (rbp_now_ns() + ns));
	return ns;
}

/*
 * Record when the breaker was closed.
 *
 * The time is taken after the change of state.  So a process that made the
 * breaker suspect before that change finds a time later than its own, and one
 * that does so after it asks the pusher again.
 */
static void
note_closed(RbpBreaker *b)
{
	pg_atomic_write_u64(&b->closed_at, (uint64) rbp_now_ns());
}

void
rbp_breaker_clear_suspicion(RbpBreaker *b, int64 asked_at)
{
	if (likely(breaker_state(b) != BREAKER_SUSPECT))
		return;
	pg_read_barrier();
	if (asked_at > (int64) pg_atomic_read_u64(&b->suspected_at) &&
		change(b, BREAKER_SUSPECT, BREAKER_CLOSED))
		note_closed(b);
}

bool
rbp_breaker_close(RbpBreaker *b)
{
	uint32		state;

	pg_atomic_write_u32(&b->penalty, 0);
	pg_atomic_write_u32(&b->wrong, 0);
	pg_atomic_write_u32(&b->failed_probes, 0);
	state = pg_atomic_exchange_u32(&b->state, BREAKER_CLOSED);
	note_closed(b);
	return state == BREAKER_OPEN;
}
