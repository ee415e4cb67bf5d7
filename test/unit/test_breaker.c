/*-------------------------------------------------------------------------
 *
 * test_breaker.c
 *	  The transitions of a breaker, and how long it stays open.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mock_server.h"
#include "remote/breaker.h"

#include "tap.h"

static const RbpBreakerTimes times = {
	.first_delay = 0,.base_delay = 20 * MS,.max_delay = 100 * MS,.reset_after = 1000 * MS
};

static RbpBreaker b;

/* ns until a probe, 0 if it is due */
static int64
left(void)
{
	return Max((int64) pg_atomic_read_u64(&b.retry_at) - mock_now, 0);
}

static void
test_transitions(void)
{
	memset(&b, 0, sizeof(b));
	ok(breaker_state(&b) == BREAKER_CLOSED, "it begins closed");
	rbp_breaker_clear_suspicion(&b, mock_now);
	ok(pg_atomic_read_u64(&b.closed_at) == 0, "an answer changes nothing then");
	ok(rbp_breaker_suspect(&b) && !rbp_breaker_suspect(&b), "one makes it suspect");
	mock_now += MS;
	rbp_breaker_clear_suspicion(&b, mock_now - 2 * MS);
	rbp_breaker_clear_suspicion(&b, mock_now - MS);
	ok(breaker_state(&b) == BREAKER_SUSPECT && pg_atomic_read_u64(&b.closed_at) == 0,
	   "an answer to what was asked before changes nothing");
	mock_now += MS;
	ok(!rbp_breaker_suspect(&b), "another one finds it suspect");
	rbp_breaker_clear_suspicion(&b, mock_now - MS);
	ok(breaker_state(&b) == BREAKER_SUSPECT, "an answer to what was asked before that changes nothing, either");
	mock_now += MS;
	rbp_breaker_clear_suspicion(&b, mock_now);
	ok(breaker_state(&b) == BREAKER_CLOSED &&
	   (int64) pg_atomic_read_u64(&b.closed_at) == mock_now, "an answer closes it");
	(void) rbp_breaker_suspect(&b);
	ok(rbp_breaker_trip(&b, &times) && !rbp_breaker_trip(&b, &times), "one opens a suspect one");
	ok(!rbp_breaker_suspect(&b) && breaker_state(&b) == BREAKER_OPEN, "to be suspect is less than that");
	mock_now += MS;
	rbp_breaker_clear_suspicion(&b, mock_now);
	ok(breaker_state(&b) == BREAKER_OPEN, "an answer does not close it");
	mock_now += MS;
	ok(rbp_breaker_close(&b) && breaker_state(&b) == BREAKER_CLOSED &&
	   (int64) pg_atomic_read_u64(&b.closed_at) == mock_now, "a probe does");
	ok(!rbp_breaker_close(&b), "once");
}

static void
test_times(void)
{
	static const int64 waits[] = {0, 20, 40, 80, 100, 100};

	memset(&b, 0, sizeof(b));
	for (int i = 0; i < lengthof(waits); i++)
	{
		(void) rbp_breaker_trip(&b, &times);
		is_u64((uint64) left(), (uint64) (waits[i] * MS), "trip %d", i + 1);
		mock_now += left() + 1;
		(void) rbp_breaker_close(&b);
		mock_now += 10 * MS;
	}
	mock_now += times.reset_after + 100 * MS;
	(void) rbp_breaker_trip(&b, &times);
	is_u64((uint64) left(), 0, "after a time of calm it is the first again");

	for (int i = 1; i < lengthof(waits); i++)
	{
		is_u64((uint64) rbp_breaker_probe_failed(&b, &times), (uint64) (waits[i] * MS), "probe %d fails", i);
		is_u64((uint64) left(), (uint64) (waits[i] * MS), "the next is put off");
		mock_now += left();
	}
	(void) rbp_breaker_close(&b);
	(void) rbp_breaker_trip(&b, &times);
	is_u64((uint64) left(), 20 * MS, "when it was closed, probes that failed do not count");
	breaker_reset_backoff(&b);
	is_u64((uint64) left(), 0, "when things have changed, a probe is due");
	(void) rbp_breaker_close(&b);
	(void) rbp_breaker_trip(&b, &times);
	is_u64((uint64) left(), 0, "and trips before do not count");
}

static void
test_penalty(void)
{
	int			n = 1;

	memset(&b, 0, sizeof(b));
	while (!rbp_breaker_penalize(&b, 100))
		n++;
	is_u64((uint64) n, 20, "failures add up");
	(void) rbp_breaker_trip(&b, &times);
	(void) rbp_breaker_close(&b);
	ok(!rbp_breaker_penalize(&b, 100), "all is forgotten when it was open");
	for (int i = 0; i < 1000; i++)
		breaker_reduce_penalty(&b);
	n = 0;
	for (int i = 0; i < 100; i++)
	{
		n += rbp_breaker_penalize(&b, 100);
		for (int k = 0; k < 100; k++)
			breaker_reduce_penalty(&b);
	}
	is_u64((uint64) n, 0, "a failure in a hundred is none");
}

static void
test_wrong(void)
{
	int			n = 1;

	memset(&b, 0, sizeof(b));
	while (!rbp_breaker_wrong(&b))
	{
		n++;
		for (int k = 0; k < 1000; k++)
			breaker_reduce_penalty(&b);
	}
	is_u64((uint64) n, 16, "wrong answers add up, whatever succeeds beside");
	(void) rbp_breaker_trip(&b, &times);
	(void) rbp_breaker_close(&b);
	ok(!rbp_breaker_wrong(&b), "all are forgotten when it was open");
	n = 0;
	for (int i = 0; i < 100; i++)
	{
		mock_now += 4100 * MS;
		n += rbp_breaker_wrong(&b);
	}
	is_u64((uint64) n, 0, "fewer than that in a minute are not too many");
}

int
main(void)
{
	test_transitions();
	test_times();
	test_penalty();
	test_wrong();
	return done_testing();
}
