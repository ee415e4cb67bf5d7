/*-------------------------------------------------------------------------
 *
 * test_staging.c
 *	  The staging lists: order, exhaustion, and content under threads.
 *
 *-------------------------------------------------------------------------
 */
#include "buffer/staging.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"

#define PAGE		8192
#define WORDS		(PAGE / sizeof(uint64_t))

static void *
aligned(size_t size)
{
	void	   *mem = aligned_alloc(8192, (size + 8191) & ~(size_t) 8191);

	if (mem == NULL)
		abort();
	memset(mem, 0x5a, size);
	return mem;
}

/*
 * ---- one thread ---------------------------------------------------------
 */

static void
test_basics(uint32_t n)
{
	size_t		size = rbp_staging_size(n);
	void	   *mem = aligned(size);
	RbpStaging *st = rbp_staging_init(mem, n);
	bool	   *seen = calloc(n, sizeof(bool));
	uint32_t   *slots = malloc((n + 1) * sizeof(uint32_t));
	bool		distinct = true;
	bool		placed = true;
	bool		in_order = true;
	bool		counted = true;

	is_u64(rbp_staging_slots(st), n, "%u slots: so many are told", n);
	ok((char *) rbp_staging_page(st, n) <= (char *) mem + size,
	   "%u slots: pages lie within the size", n);
	is_u64(rbp_staging_depth(st), 0, "%u slots: none ready at first", n);
	is_u64(rbp_staging_take(st, slots, 1), 0, "%u slots: none to take", n);

	for (uint32_t i = 0; i < n; i++)
	{
		uint32_t	slot = rbp_staging_get(st);

		if (slot >= n || seen[slot])
		{
			distinct = false;
			break;
		}
		seen[slot] = true;
		slots[i] = slot;
		if ((char *) rbp_staging_page(st, slot) !=
			(char *) rbp_staging_page(st, 0) + (size_t) slot * PAGE ||
			(uintptr_t) rbp_staging_page(st, slot) % 4096 != 0)
			placed = false;
		memset(rbp_staging_page(st, slot), (int) i, PAGE);
	}
	ok(distinct, "%u slots: each can be had once", n);
	ok(placed, "%u slots: pages are where they should be", n);
	is_u64(rbp_staging_get(st), RBP_NO_STAGING_SLOT,
		   "%u slots: then there are no more", n);
	is_u64(rbp_staging_get(st), RBP_NO_STAGING_SLOT,
		   "%u slots: nor at the second try", n);

	for (uint32_t i = 0; i < n; i++)
		if (rbp_staging_ready(st, slots[i]) != i + 1)
			counted = false;
	ok(counted, "%u slots: ready() tells how many are", n);
	is_u64(rbp_staging_depth(st), n, "%u slots: depth", n);

	/* in small bites, so that what was taken off the list stays pending */
	for (uint32_t i = 0; i < n;)
	{
		uint32_t	got[3];
		int			k = rbp_staging_take(st, got, 3);

		if (k < 1 || k > 3)
		{
			in_order = false;
			break;
		}
		for (int j = 0; j < k; j++, i++)
			if (i >= n || got[j] != slots[i])
				in_order = false;
		if (rbp_staging_depth(st) != n - i)
			in_order = false;
	}
	ok(in_order, "%u slots: taken in the order in which they were ready", n);
	is_u64(rbp_staging_take(st, slots, 1), 0, "%u slots: all taken", n);

	for (uint32_t i = 0; i < n; i++)
		rbp_staging_put(st, i);
	for (uint32_t i = 0; i < n; i++)
		if (rbp_staging_get(st) >= n)
			distinct = false;
	ok(distinct && rbp_staging_get(st) == RBP_NO_STAGING_SLOT,
	   "%u slots: all come back", n);

	free(slots);
	free(seen);
	free(mem);
}

static void
test_late_arrivals(void)
{
	void	   *mem = aligned(rbp_staging_size(8));
	RbpStaging *st = rbp_staging_init(mem, 8);
	uint32_t	a = rbp_staging_get(st);
	uint32_t	b = rbp_staging_get(st);
	uint32_t	c = rbp_staging_get(st);
	uint32_t	got[8];

	rbp_staging_ready(st, a);
	rbp_staging_ready(st, b);
	ok(rbp_staging_take(st, got, 1) == 1 && got[0] == a, "the oldest first");
	rbp_staging_ready(st, c);
	is_u64(rbp_staging_depth(st), 2, "what is pending counts as ready");
	is_u64(rbp_staging_busy(st), 3, "what was taken is busy, too");
	rbp_staging_put(st, a);
	ok(rbp_staging_take(st, got, 8) == 2 && got[0] == b && got[1] == c,
	   "one that came later is taken after what is pending");
	is_u64(rbp_staging_depth(st), 0, "and then there is none");
	is_u64(rbp_staging_busy(st), 2, "but what was taken last is busy");
	rbp_staging_put(st, b);
	rbp_staging_put(st, c);
	ok(rbp_staging_take(st, got, 8) == 0 && rbp_staging_busy(st) == 0, "until the next look");
	free(mem);
}

/*
 * ---- threads ------------------------------------------------------------
 *
 * Producers fill pages with a pattern of their name and a running number; the
 * consumer checks that each page is whole and that each producer's numbers
 * rise.  There are few slots, so that they are often all in use.
 */

#define PRODUCERS		4
#define PER_PRODUCER	20000
#define FEW				7

typedef struct Producer
{
	pthread_t	thread;
	RbpStaging *st;
	int			number;
	uint64_t	exhausted;
	uint64_t	given_back;
	bool		overlapped;
} Producer;

static uint32_t holders[FEW];

static void *
produce(void *arg)
{
	Producer   *me = arg;

	for (uint64_t i = 1; i <= PER_PRODUCER;)
	{
		uint32_t	slot = rbp_staging_get(me->st);
		uint64_t   *page;

		if (slot == RBP_NO_STAGING_SLOT)
		{
			me->exhausted++;
			sched_yield();
			continue;
		}
		if (__atomic_add_fetch(&holders[slot], 1, __ATOMIC_RELAXED) != 1)
			me->overlapped = true;
		page = rbp_staging_page(me->st, slot);
		for (size_t w = 0; w < WORDS; w += 64)
			page[w] = (uint64_t) me->number << 32 | i;
		page[WORDS - 1] = page[0];
		__atomic_sub_fetch(&holders[slot], 1, __ATOMIC_RELAXED);

		/* now and then a victim turns out to be stale */
		if (i % 16 == 0)
		{
			rbp_staging_put(me->st, slot);
			me->given_back++;
		}
		else if (rbp_staging_ready(me->st, slot) == 0)
			me->overlapped = true;
		i++;
	}
	return NULL;
}

static void
test_threads(void)
{
	void	   *mem = aligned(rbp_staging_size(FEW));
	RbpStaging *st = rbp_staging_init(mem, FEW);
	Producer	producers[PRODUCERS];
	uint64_t	last[PRODUCERS] = {0};
	uint64_t	taken = 0;
	uint64_t	expected = PRODUCERS * (PER_PRODUCER - PER_PRODUCER / 16);
	uint64_t	exhausted = 0;
	bool		torn = false;
	bool		disordered = false;
	bool		shared = false;

	for (int i = 0; i < PRODUCERS; i++)
	{
		producers[i] = (Producer)
		{
			.st = st,.number = i
		};
		if (pthread_create(&producers[i].thread, NULL, produce, &producers[i]) != 0)
			abort();
	}
	while (taken < expected)
	{
		uint32_t	slots[4];
		int			n = rbp_staging_take(st, slots, 4);

		if (n == 0)
		{
			/* depth may be behind, but a page that is there will be told */
			sched_yield();
			continue;
		}
		for (int i = 0; i < n; i++)
		{
			uint64_t   *page = rbp_staging_page(st, slots[i]);
			uint64_t	who = page[0] >> 32;
			uint64_t	number = page[0] & UINT32_MAX;

			if (__atomic_add_fetch(&holders[slots[i]], 1, __ATOMIC_RELAXED) != 1)
				shared = true;
			for (size_t w = 0; w < WORDS; w += 64)
				if (page[w] != page[0])
					torn = true;
			if (page[WORDS - 1] != page[0] || who >= PRODUCERS)
				torn = true;
			else
			{
				if (number <= last[who])
					disordered = true;
				last[who] = number;
			}
			__atomic_sub_fetch(&holders[slots[i]], 1, __ATOMIC_RELAXED);
			rbp_staging_put(st, slots[i]);
		}
		taken += (uint64_t) n;
	}
	for (int i = 0; i < PRODUCERS; i++)
	{
		pthread_join(producers[i].thread, NULL);
		exhausted += producers[i].exhausted;
		shared |= producers[i].overlapped;
	}
	is_u64(taken, expected, "threads: as many pages came out as went in");
	ok(!torn, "threads: each with what its producer wrote");
	ok(!disordered, "threads: each producer's in their order");
	ok(!shared, "threads: no slot was in two hands");
	ok(exhausted > 0, "threads: the free list was empty at times (%" PRIu64 ")",
	   exhausted);
	is_u64(rbp_staging_depth(st), 0, "threads: nothing is left");
	for (int i = 0; i < FEW; i++)
		if (rbp_staging_get(st) == RBP_NO_STAGING_SLOT)
			shared = true;
	ok(!shared && rbp_staging_get(st) == RBP_NO_STAGING_SLOT,
	   "threads: all slots are free again, and no more than that");
	free(mem);
}

/*
 * Slots go out and come back in changing order, by many hands: what a pop
 * reads of the free list is often out of date when it takes hold.
 */
#define CHURNERS		6
#define CHURNS			2000000
#define CHURN_SLOTS		3

static uint32_t churn_holders[CHURN_SLOTS];
static bool churn_twice;

static void *
churn(void *arg)
{
	RbpStaging *st = arg;

	for (int i = 0; i < CHURNS; i++)
	{
		uint32_t	a = rbp_staging_get(st);
		uint32_t	b = rbp_staging_get(st);

		for (int j = 0; j < 2; j++)
		{
			uint32_t	slot = j == 0 ? a : b;

			if (slot == RBP_NO_STAGING_SLOT)
				continue;
			if (__atomic_fetch_add(&churn_holders[slot], 1, __ATOMIC_RELAXED) != 0)
				__atomic_store_n(&churn_twice, true, __ATOMIC_RELAXED);
			__atomic_fetch_sub(&churn_holders[slot], 1, __ATOMIC_RELAXED);
			if (__atomic_load_n(&churn_twice, __ATOMIC_RELAXED))
				return NULL;	/* the list may be a ring by now */
			rbp_staging_put(st, slot);
		}
	}
	return NULL;
}

static void
test_churn(void)
{
	void	   *mem = aligned(rbp_staging_size(CHURN_SLOTS));
	RbpStaging *st = rbp_staging_init(mem, CHURN_SLOTS);
	pthread_t	threads[CHURNERS];
	uint32_t	n = 0;

	for (int i = 0; i < CHURNERS; i++)
		if (pthread_create(&threads[i], NULL, churn, st) != 0)
			abort();
	for (int i = 0; i < CHURNERS; i++)
		pthread_join(threads[i], NULL);
	while (n <= CHURN_SLOTS && rbp_staging_get(st) != RBP_NO_STAGING_SLOT)
		n++;
	ok(!churn_twice, "churn: no slot was had twice");
	is_u64(n, CHURN_SLOTS, "churn: none was lost");
	free(mem);
}

int
main(void)
{
	test_basics(1);
	test_basics(2);
	test_basics(33);
	test_basics(1000);
	test_late_arrivals();
	test_threads();
	test_churn();
	return done_testing();
}
