/*-------------------------------------------------------------------------
 *
 * test_donor_proofs.c
 *	  How many proofs of a peer a donor accepts in a second.
 *
 * The source is included whole, for its limits, and so that its clock stands
 * still.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"

#include <stdint.h>

static int64_t now;

static int64_t
still_now(void)
{
	return now;
}

#define rbp_boottime_ns	still_now
#include "broker/donor/proofs.c"
#undef rbp_boottime_ns

#include "tap.h"

#include <pthread.h>
#include <stdlib.h>

#define SECOND	INT64_C(1000000000)

/* How many proofs of a peer are accepted now. */
static uint32_t
accepted(uint64_t who)
{
	uint32_t	n = 0;

	while (n < 10 * PROOFS_MAX && donor_proof_allowed(who))
		n++;
	return n;
}

static void
test_limits(void)
{
	now = 7 * SECOND;
	is_u64(accepted(1), PROOFS_MAX, "so many proofs are accepted");
	ok(!donor_proof_allowed(1), "and no other one of the same peer");
	ok(donor_proof_allowed(2), "but of another one");
	now += SECOND - 1;
	ok(!donor_proof_allowed(1) && donor_proof_allowed(2), "so it is for the rest of the second");
	now++;
	ok(donor_proof_allowed(1), "the next one is another one");
}

#define THREADS		4

static atomic_uint total;

static void *
thread_main(void *arg)
{
	atomic_fetch_add(&total, accepted(*(uint64_t *) arg));
	return NULL;
}

static void
test_threads(void)
{
	pthread_t	threads[THREADS];
	uint64_t	who = 3;

	now += SECOND;
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, thread_main, &who) != 0)
			abort();
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	is_u64(atomic_load(&total), PROOFS_MAX, "threads share the limit");
}

int
main(void)
{
	test_limits();
	test_threads();
	return done_testing();
}
