/*-------------------------------------------------------------------------
 *
 * test_spill_slots.c
 *	  The free slots of the temp quota: each rule by itself, then random
 *	  operations beside a plain model, then threads that own what they were
 *	  given.
 *
 *	 test_spill_slots [SEED [OPERATIONS]]
 *
 *-------------------------------------------------------------------------
 */
#include "base/geometry.h"
#include "spill/slots.h"
#include "spill/spill_internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mock_server.h"
#include "tap.h"

#define PAGES		RBP_EXTENT_PAGES
#define SECOND		INT64_C(1000000000)
#define QUARANTINE	RBP_SPILL_QUARANTINE_NS

static uint64_t rng_state;

static uint64_t
rnd_from(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state >> 20;
}

static uint32_t
rnd(uint32_t n)
{
	return (uint32_t) (rnd_from(&rng_state) % n);
}

/* The clock, which then is alloc()'s, too. */
static int64_t
clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	mock_now = (int64_t) ts.tv_sec * SECOND + ts.tv_nsec;
	return mock_now;
}

static void *
aligned(size_t size)
{
	void	   *mem = aligned_alloc(64, (size + 63) & ~(size_t) 63);

	if (mem == NULL)
		abort();
	memset(mem, 0x5a, size);
	return mem;
}

static RbpExtents extents;
static uint16_t states[1200];

static void
new_slots(uint32_t first_extent, uint32_t nextents)
{
	rbp_extents_init(&extents, states, first_extent, nextents);
	rbp_spill_slots_init(aligned(rbp_spill_slots_size(nextents)), &extents, 0);
}

/* What remote does with extents: one that nobody has slots of any more is absent. */
static bool
slots_absent(uint32_t extent)
{
	if (rbp_extent_state(&extents, extent) == RBP_EXTENT_CLOSED)
		rbp_extents_dropped(&extents, &extent, rbp_spill_slots_drop(&extent, 1));
	return rbp_extent_state(&extents, extent) == RBP_EXTENT_ABSENT;
}

static void
slots_online(uint32_t extent)
{
	if (slots_absent(extent))
		rbp_extent_bring_online(&extents, extent, 0, RBP_EXTENT_TOUCHED);
}

static void
slots_drain(uint32_t extent)
{
	rbp_extent_drain(&extents, extent);
}

static void
slots_undrain(uint32_t extent)
{
	rbp_extent_undrain(&extents, extent);
}

static void
slots_offline(uint32_t extent)
{
	rbp_extent_close(&extents, extent);
}

static bool
counts_are(uint32_t online, uint32_t used,
		   uint32_t quarantined, uint32_t free_slots, uint32_t dead)
{
	RbpSpillUsage c;

	rbp_spill_slots_counts(&c);
	if (c.online == online && c.used == used && c.quarantined == quarantined &&
		c.free == free_slots && c.dead == dead)
		return true;
	diag("online %lu, used %lu, quarantined %lu, free %lu, dead %lu",
		 c.online, c.used, c.quarantined, c.free, c.dead);
	return false;
}

/* The content of these has arrived; what the extent holds then. */
static uint64_t
fill(uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		rbp_spill_slots_fill(first + i);
	return rbp_spill_slots_extent_filled(first / PAGES);
}

/* Take all that there is, want at a time; how many slots. */
static uint32_t
drink_up(uint32_t want)
{
	uint32_t	total = 0;
	uint32_t	first;
	uint32_t	n;

	while ((n = rbp_spill_slots_alloc(want, NULL, NULL, &first)) > 0)
		total += n;
	return total;
}

/*
 * ---- one rule at a time ---------------------------------------------------
 */

typedef struct OkArg
{
	uint32_t	from;			/* extents from here to before to are fine */
	uint32_t	to;
	uint32_t	calls;
} OkArg;

static bool
in_range(uint32_t extent, void *arg)
{
	OkArg	   *range = arg;

	range->calls++;
	return extent >= range->from && extent < range->to;
}

static void
test_states(void)
{
	uint32_t	first = 0;

	new_slots(10, 3);
	is_u64(rbp_spill_slots_alloc(1, NULL, NULL, &first), 0, "nothing online, nothing to be had");
	ok(slots_absent(10) && slots_absent(12), "all are absent at first");
	ok(counts_are(0, 0, 0, 0, 0), "and count for nothing");

	slots_online(11);
	ok(!slots_absent(11), "an extent comes online");
	ok(counts_are(128, 0, 0, 128, 0), "its slots are free");
	is_u64(rbp_spill_slots_alloc(128, NULL, NULL, &first), 128, "all of it in one run");
	is_u64(first, 11 * PAGES, "slots are numbered from the first extent on");
	is_u64(rbp_spill_slots_extent_filled(11), 0, "the extent is used, but not filled");
	is_u64(fill(11 * PAGES + 60, 68), 68, "some of it is filled");
	is_u64(fill(11 * PAGES, 60), 128, "all of it is");
	is_u64(rbp_spill_slots_extent_filled(12), 0, "and no others");
	is_u64(rbp_spill_slots_region_filled(0), 128, "its region is filled as much");
	is_u64(rbp_spill_slots_alloc(1, NULL, NULL, &first), 0, "then it is empty");

	rbp_spill_slots_free(11 * PAGES + 60, 10);
	ok(counts_are(128, 118, 0, 10, 0), "some are given back, across a word's end");
	is_u64(rbp_spill_slots_extent_filled(11), 118, "and are not filled then");
	is_u64(rbp_spill_slots_alloc(20, NULL, NULL, &first), 10, "a run as long as there is");
	is_u64(first, 11 * PAGES + 60, "is where it should be");
	is_u64(rbp_spill_slots_extent_filled(11), 118, "and is not filled yet");
	rbp_spill_slots_free(11 * PAGES + 60, 10);

	slots_drain(11);
	ok(counts_are(128, 118, 0, 0, 0), "draining: free slots do not count");
	is_u64(rbp_spill_slots_alloc(1, NULL, NULL, &first), 0, "and are not given out");
	rbp_spill_slots_free(11 * PAGES, 1);
	is_u64(rbp_spill_slots_alloc(1, NULL, NULL, &first), 0, "nor those that come back");
	slots_undrain(11);
	ok(counts_are(128, 117, 0, 11, 0), "wanted after all, they are free");
	is_u64(rbp_spill_slots_alloc(16, NULL, NULL, &first), 10, "and given out, the longer run first");

	slots_offline(11);
	ok(counts_are(0, 127, 0, 0, 127), "lost: what is used is dead");
	ok(!slots_absent(11), "and keeps the extent");
	slots_online(11);
	ok(counts_are(0, 127, 0, 0, 127), "it cannot come online");
	rbp_spill_slots_free(11 * PAGES + 1, 126);
	ok(!slots_absent(11), "with one slot left, still not");
	rbp_spill_slots_quarantine(11 * PAGES + 127, 5);
	ok(slots_absent(11), "until the last owner gives it back");
	ok(counts_are(0, 0, 0, 0, 0), "and a lost extent has no quarantine");
	slots_online(11);
	ok(counts_are(128, 0, 0, 128, 0), "then it is as new");

	slots_drain(11);
	slots_offline(11);
	ok(slots_absent(11), "an empty extent is absent at once");
	free(rbp_spill_slots);
}

static void
test_quarantine(void)
{
	int64_t		t = clock_ns() + 100000 * SECOND;	/* alloc() ends nothing */
	uint32_t	first;

	new_slots(0, 2);
	slots_online(0);
	slots_online(1);
	is_u64(drink_up(128), 256, "two extents");
	rbp_spill_slots_quarantine(5, t);
	ok(counts_are(256, 255, 1, 0, 0), "quarantine: neither used nor free");
	rbp_spill_slots_quarantine(200, t + 1 * SECOND);
	rbp_spill_slots_quarantine(6, t + 30 * SECOND);
	rbp_spill_slots_tick(t + QUARANTINE - 1);
	is_u64(rbp_spill_slots_alloc(1, NULL, NULL, &first), 0, "quarantine: not a moment too early");
	rbp_spill_slots_tick(t + QUARANTINE);
	ok(counts_are(256, 253, 2, 1, 0), "quarantine: the one that is due is free");
	ok(rbp_spill_slots_alloc(1, NULL, NULL, &first) == 1 && first == 5, "and is given out");
	rbp_spill_slots_tick(t + QUARANTINE + 30 * SECOND - 1);
	ok(rbp_spill_slots_alloc(1, NULL, NULL, &first) == 1 && first == 200, "the next, of another extent");
	is_u64(rbp_spill_slots_alloc(1, NULL, NULL, &first), 0, "the third has its own time");
	rbp_spill_slots_tick(t + QUARANTINE + 30 * SECOND);
	ok(rbp_spill_slots_alloc(1, NULL, NULL, &first) == 1 && first == 6, "which comes, too");

	/* time that goes back between callers */
	rbp_spill_slots_quarantine(5, t + 20 * SECOND);
	rbp_spill_slots_quarantine(200, t + 10 * SECOND);
	rbp_spill_slots_tick(t + QUARANTINE + 10 * SECOND);
	ok(rbp_spill_slots_alloc(1, NULL, NULL, &first) == 1 && first == 200,
	   "who came late with an earlier time is free first");

	/* gone with its extent */
	rbp_spill_slots_quarantine(201, t + 15 * SECOND);
	slots_offline(0);
	ok(counts_are(128, 254, 1, 0, 127), "an extent takes its quarantine along");
	rbp_spill_slots_free(0, 5);
	rbp_spill_slots_free(6, 122);
	slots_online(0);
	ok(counts_are(256, 127, 1, 128, 0), "and comes back without");
	rbp_spill_slots_tick(t + 1000 * SECOND);
	ok(counts_are(256, 127, 0, 129, 0), "the others' goes on");

	/* while it drains */
	is_u64(drink_up(64), 129, "all used");
	slots_drain(1);
	rbp_spill_slots_quarantine(130, t);
	rbp_spill_slots_tick(t + QUARANTINE);
	ok(counts_are(256, 255, 0, 0, 0), "a quarantine that ends in a draining extent frees nothing");
	slots_undrain(1);
	ok(rbp_spill_slots_alloc(1, NULL, NULL, &first) == 1 && first == 130, "until it is wanted again");

	/* alloc() looks at the clock itself */
	rbp_spill_slots_quarantine(40, clock_ns() - QUARANTINE / 2);
	is_u64(rbp_spill_slots_alloc(1, NULL, NULL, &first), 0, "alloc leaves alone what is not due");
	free(rbp_spill_slots);

	new_slots(0, 1);
	slots_online(0);
	is_u64(drink_up(128), 128, "one extent");
	rbp_spill_slots_quarantine(40, clock_ns() - QUARANTINE - SECOND);
	ok(rbp_spill_slots_alloc(1, NULL, NULL, &first) == 1 && first == 40, "alloc ends what is due");
	free(rbp_spill_slots);
}

/* Extents that were drained look as if they had free slots. */
static void
test_undrained(void)
{
	uint32_t	first;

	new_slots(0, 31);
	for (uint32_t i = 0; i < 30; i++)
		slots_online(i);
	is_u64(drink_up(128), 30 * 128, "thirty extents are used up");
	for (uint32_t i = 0; i < 30; i++)
	{
		slots_drain(i);
		slots_undrain(i);
	}
	slots_online(30);
	ok(rbp_spill_slots_alloc(1, NULL, NULL, &first) == 1 && first == 30 * PAGES,
	   "wanted again, they do not hide what another one has");
	free(rbp_spill_slots);
}

static void
test_choice(void)
{
	OkArg		all = {.from = 0,.to = 700};
	OkArg		last = {.from = 699,.to = 700};
	OkArg		upper = {.from = 16,.to = 32};
	uint32_t	first = 0;
	uint32_t	next = 0;
	uint32_t	got = 0;
	uint32_t	here = 0;
	uint32_t	extents = 0;
	bool		bounded = true;
	bool		chosen = true;
	bool		adjacent = true;

	new_slots(0, 700);
	/* two donors' regions, one after the other */
	for (uint32_t i = 0; i < 32; i++)
		slots_online(i);
	for (int i = 0; i < 8; i++)
	{
		rbp_spill_slots_alloc(32, NULL, NULL, &first);
		here += first / PAGES < 16;
		extents += i == 0 || first / PAGES != next / PAGES;
		next = first;
	}
	is_u64(extents, 2, "eight runs use two extents up");
	ok(here >= 2 && here <= 6, "eight runs are spread over two regions (%u:%u)", here, 8 - here);

	/* what was given back is given out first, though others are next in turn */
	rbp_spill_slots_alloc(32, NULL, NULL, &next);
	rbp_spill_slots_free(first, 32);
	ok(rbp_spill_slots_alloc(32, NULL, NULL, &got) == 32 && got == first,
	   "what was given back last is given out first");
	rbp_spill_slots_free(next, 32);
	got = 0;

	rbp_spill_slots_alloc(4, NULL, NULL, &next);
	for (int i = 0; i < 7; i++)
	{
		rbp_spill_slots_alloc(4, NULL, NULL, &first);
		adjacent &= first == next + 4;
		next = first;
	}
	ok(adjacent, "short runs that are taken one after the other are neighbours");

	for (int i = 0; i < 40; i++)
		if (rbp_spill_slots_alloc(32, in_range, &upper, &first) != 32 || first / PAGES < 16)
			chosen = false;
	ok(chosen, "only from extents that will do");
	is_u64(drink_up(128), 32 * 128 - 8 * 32 - 8 * 4 - 40 * 32,
		   "the rest can be had, and nothing twice");

	/* a long ring, of which one extent will do */
	for (uint32_t i = 32; i < 700; i++)
		slots_online(i);
	for (int i = 0; i < 4 && got == 0; i++)
	{
		last.calls = 0;
		got = rbp_spill_slots_alloc(8, in_range, &last, &first);
		bounded &= last.calls <= 300;
	}
	ok(bounded, "no call looks at all extents of a long list");
	ok(got == 8 && first / PAGES == 699, "but a few calls do");

	/* a used up quota costs no search */
	drink_up(128);
	is_u64(rbp_spill_slots_alloc(8, in_range, &all, &first), 0, "used up");
	is_u64(all.calls, 0, "full extents are not looked at");
	rbp_spill_slots_free(300 * PAGES + 7, 3);
	ok(rbp_spill_slots_alloc(8, in_range, &all, &first) == 3 && first == 300 * PAGES + 7,
	   "what comes back is found");
	is_u64(all.calls, 1, "at the first look");

	/* better runs are near */
	for (uint32_t i = 100; i < 104; i++)
		rbp_spill_slots_free(i * PAGES + 3, i == 103 ? 16 : 2);
	ok(rbp_spill_slots_alloc(16, NULL, NULL, &first) == 16 && first == 103 * PAGES + 3,
	   "a long run further on is preferred to a short one");
	free(rbp_spill_slots);
}

/* A region that drained and is wanted again is not all in one place of the ring. */
static void
test_undrain(void)
{
	uint32_t	first = 0;
	int			here = 0;

	new_slots(0, 32);
	for (uint32_t i = 0; i < 32; i++)
		slots_online(i);
	for (uint32_t i = 16; i < 32; i++)
		slots_drain(i);
	for (uint32_t i = 16; i < 32; i++)
		slots_undrain(i);
	for (int i = 0; i < 8; i++)
	{
		rbp_spill_slots_alloc(PAGES, NULL, NULL, &first);
		here += first / PAGES < 16;
	}
	ok(here >= 2 && here <= 6, "undrained: extents of two regions by turns (%d:%d)", here, 8 - here);
	free(rbp_spill_slots);
}

/*
 * ---- the model ----------------------------------------------------------------
 *
 * Few enough extents that alloc() compares all of them, so that the length of
 * what it returns is known.  Quarantines may last for up to twice their time,
 * so between once and twice the model takes either.
 */

#define EXTENTS			7
#define FIRST			5
#define SLOTS			(EXTENTS * PAGES)

typedef enum ModelState
{
	ABSENT, ONLINE, DRAINING, DEAD
} ModelState;

static ModelState state[EXTENTS];
static bool used[SLOTS];
static bool filled[SLOTS];
static int64_t held_since[SLOTS];	/* 0: not held */
static int64_t now_ns;

static uint64_t operation;
static const char *doing = "nothing";
static char failure[256];

static void
expect(bool cond, const char *what)
{
	if (!cond && failure[0] == '\0')
		snprintf(failure, sizeof(failure), "operation %" PRIu64 " (%s): %s",
				 operation, doing, what);
}

static bool
must_be_held(uint32_t slot)
{
	return held_since[slot] != 0 && now_ns < held_since[slot] + QUARANTINE;
}

static bool
may_be_held(uint32_t slot)
{
	return held_since[slot] != 0 && now_ns < held_since[slot] + 2 * QUARANTINE;
}

static bool
mask_ok(uint32_t extent, void *arg)
{
	return *(uint32_t *) arg >> (extent - FIRST) & 1;
}

/* The longest run of what is free for sure, or perhaps. */
static uint32_t
longest(uint32_t mask, bool perhaps)
{
	uint32_t	best = 0;

	for (uint32_t e = 0; e < EXTENTS; e++)
	{
		uint32_t	len = 0;

		if (state[e] != ONLINE || (mask >> e & 1) == 0)
			continue;
		for (uint32_t i = e * PAGES; i < (e + 1) * PAGES; i++)
		{
			if (used[i] || (perhaps ? must_be_held(i) : may_be_held(i)))
				len = 0;
			else if (++len > best)
				best = len;
		}
	}
	return best;
}

static void
op_alloc(void)
{
	uint32_t	want = rnd(4) == 0 ? 1 + rnd(128) : 8u << rnd(3);
	uint32_t	mask = rnd(2) == 0 ? UINT32_MAX : rnd(1u << EXTENTS);
	uint32_t	first = UINT32_MAX;
	uint32_t	n;
	uint32_t	least = longest(mask, false);
	uint32_t	most = longest(mask, true);

	doing = "alloc";
	if (mask == UINT32_MAX && rnd(2) == 0)
		n = rbp_spill_slots_alloc(want, NULL, NULL, &first);
	else
		n = rbp_spill_slots_alloc(want, mask_ok, &mask, &first);
	expect(n <= want, "more than was wanted");
	expect(n >= (least < want ? least : want), "less than there was");
	expect(n <= most, "more than there was");
	if (n == 0)
		return;
	if (first < FIRST * PAGES || first + n > FIRST * PAGES + SLOTS ||
		first / PAGES != (first + n - 1) / PAGES)
	{
		expect(false, "not a run of one extent");
		return;
	}
	first -= FIRST * PAGES;
	expect(state[first / PAGES] == ONLINE, "from an extent that is not online");
	expect(mask >> (first / PAGES) & 1, "from an extent that is not accepted");
	for (uint32_t i = first; i < first + n; i++)
	{
		expect(!used[i], "a slot that is in use");
		expect(!must_be_held(i), "a slot in quarantine");
		used[i] = true;
		held_since[i] = 0;
	}
}

static void
last_owner(uint32_t e)
{
	for (uint32_t i = e * PAGES; i < (e + 1) * PAGES; i++)
		if (used[i])
			return;
	if (state[e] == DEAD)
		state[e] = ABSENT;
}

static void
op_free(void)
{
	uint32_t	from = rnd(SLOTS);
	uint32_t	max = 1 + rnd(64);
	uint32_t	n = 0;

	doing = "free";
	while (from < SLOTS && !used[from])
		from++;
	while (n < max && from + n < SLOTS && used[from + n] &&
		   (from + n) / PAGES == from / PAGES)
	{
		filled[from + n] = false;
		used[from + n++] = false;
	}
	if (n == 0)
		return;
	rbp_spill_slots_free(FIRST * PAGES + from, n);
	last_owner(from / PAGES);
}

static void
op_quarantine(void)
{
	uint32_t	slot = rnd(SLOTS);

	doing = "quarantine";
	if (!used[slot])
		return;
	used[slot] = filled[slot] = false;
	if (state[slot / PAGES] != DEAD)
		held_since[slot] = now_ns;
	rbp_spill_slots_quarantine(FIRST * PAGES + slot, now_ns);
	last_owner(slot / PAGES);
}

static void
op_fill(void)
{
	uint32_t	slot = rnd(SLOTS);

	doing = "fill";
	if (!used[slot] || filled[slot])
		return;
	filled[slot] = true;
	rbp_spill_slots_fill(FIRST * PAGES + slot);
}

static void
op_time(void)
{
	doing = "tick";
	now_ns += rnd(8) == 0 ? (1 + rnd(200)) * SECOND : rnd(3) * SECOND;
	rbp_spill_slots_tick(now_ns);
}

static void
op_disaster(void)
{
	uint32_t	e = rnd(EXTENTS);

	switch (rnd(4))
	{
		case 0:
			doing = "online";
			if (slots_absent(FIRST + e))
			{
				slots_online(FIRST + e);
				expect(state[e] == ABSENT, "came online though it was not absent");
				state[e] = ONLINE;
			}
			else
				expect(state[e] != ABSENT, "is absent, and does not tell");
			break;
		case 1:
			doing = "drain";
			slots_drain(FIRST + e);
			if (state[e] == ONLINE)
				state[e] = DRAINING;
			break;
		case 2:
			doing = "undrain";
			slots_undrain(FIRST + e);
			if (state[e] == DRAINING)
				state[e] = ONLINE;
			break;
		default:
			doing = "offline";
			slots_offline(FIRST + e);
			if (state[e] == ABSENT || state[e] == DEAD)
				break;
			state[e] = DEAD;
			memset(&held_since[e * PAGES], 0, PAGES * sizeof(held_since[0]));
			last_owner(e);
			break;
	}
}

static void
compare(bool everything)
{
	RbpSpillUsage c;
	uint32_t	online = 0;
	uint32_t	nused = 0;
	uint32_t	dead = 0;
	uint32_t	least_held = 0;
	uint32_t	most_held = 0;
	uint32_t	least_free = 0;
	uint32_t	most_free = 0;
	uint32_t	nfilled = 0;
	bool		draining = false;

	doing = "compare";
	for (uint32_t e = 0; e < EXTENTS; e++)
	{
		uint32_t	here = 0;
		uint32_t	filled_here = 0;

		if (state[e] == ONLINE || state[e] == DRAINING)
			online += PAGES;
		draining |= state[e] == DRAINING;
		for (uint32_t i = e * PAGES; i < (e + 1) * PAGES; i++)
		{
			here += used[i];
			filled_here += filled[i];
			least_held += must_be_held(i);
			most_held += may_be_held(i);
			if (state[e] == ONLINE && !used[i])
			{
				least_free += !may_be_held(i);
				most_free += !must_be_held(i);
			}
		}
		nused += here;
		nfilled += filled_here;
		if (state[e] == DEAD)
			dead += here;
		if (everything)
		{
			expect(rbp_spill_slots_extent_filled(FIRST + e) == filled_here, "extent_filled");
			expect(slots_absent(FIRST + e) == (state[e] == ABSENT), "absent");
		}
	}
	rbp_spill_slots_counts(&c);
	expect(c.online == online, "count of online slots");
	expect(c.used == nused, "count of used slots");
	expect(rbp_spill_slots_region_filled(0) == nfilled, "count of filled slots");
	expect(c.dead == dead, "count of dead slots");
	expect(c.quarantined >= least_held && c.quarantined <= most_held, "count of quarantined slots");
	expect(c.free >= least_free && c.free <= most_free, "count of free slots");
	if (!draining)
		expect(c.free + c.used - c.dead + c.quarantined == c.online, "sum of the counts");
}

static void
run_model(uint64_t seed, uint64_t operations)
{
	uint32_t	disasters = seed % 2 == 0 ? 30 : 1;
	uint32_t	allocs = seed % 3 == 0 ? 150 : seed % 3 == 1 ? 300 : 60;
	uint32_t	quarantines = seed % 4 == 0 ? 400 : 80;

	new_slots(FIRST, EXTENTS);
	rng_state = seed * 0x9e3779b97f4a7c15 + 1;
	memset(state, 0, sizeof(state));
	memset(used, 0, sizeof(used));
	memset(filled, 0, sizeof(filled));
	memset(held_since, 0, sizeof(held_since));
	failure[0] = '\0';
	now_ns = clock_ns() + 1000000 * SECOND; /* alloc() ends nothing */

	for (operation = 1; operation <= operations && failure[0] == '\0'; operation++)
	{
		uint32_t	dice = rnd(1000);

		if (dice < disasters || operation < 20)
			op_disaster();
		else if (dice < disasters + allocs)
			op_alloc();
		else if (dice < disasters + allocs + quarantines)
			op_quarantine();
		else if (dice < disasters + allocs + quarantines + 40)
			op_time();
		else if (dice < disasters + allocs + quarantines + 140)
			op_fill();
		else
			op_free();
		if (operation % 8 == 0)
			compare(operation % 256 == 0);
	}
	ok(failure[0] == '\0', "seed %" PRIu64 ": %" PRIu64 " operations as the model has them",
	   seed, operations);
	if (failure[0] != '\0')
		diag("%s", failure);
	free(rbp_spill_slots);
}

/*
 * ---- threads -----------------------------------------------------------------------
 */

#define USERS			4
#define ROUNDS			60000
#define KEEP			12		/* runs that a thread holds on to */
#define T_EXTENTS		6
#define T_SLOTS			(T_EXTENTS * PAGES)

typedef struct User
{
	pthread_t	thread;
	uint64_t	rng;
} User;

static uint32_t owners[T_SLOTS];
static int64_t t_held_since[T_SLOTS];
static uint32_t t_held_life[T_SLOTS];
static uint32_t lives[T_EXTENTS];	/* how often it came online */
static int64_t t_now;
static bool t_stop;
static uint64_t two_owners;
static uint64_t too_early;
static uint64_t foreign;

/* What has happened so far, of all threads. */
static uint64_t t_given;
static uint64_t t_empty;
static uint64_t t_onlines;

static void
count(uint64_t *counter)
{
	__atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
}

/* Has there been enough of everything?  How long that takes is the scheduler's. */
static bool
enough(void)
{
	return __atomic_load_n(&t_given, __ATOMIC_RELAXED) > 100000 &&
		__atomic_load_n(&t_empty, __ATOMIC_RELAXED) > 0 &&
		__atomic_load_n(&t_onlines, __ATOMIC_RELAXED) > T_EXTENTS;
}

/* Under the lock, which others have to wait for. */
static bool
slow_ok(uint32_t extent, void *arg)
{
	User	   *me = arg;

	if (rnd_from(&me->rng) % 16 == 0)
		sched_yield();
	return extent < T_EXTENTS;
}

static void *
use_slots(void *arg)
{
	User	   *me = arg;
	uint32_t	first[KEEP] = {0};
	uint32_t	len[KEEP] = {0};

	for (int round = 0, left = KEEP; left > 0; round++)
	{
		bool		over = round >= ROUNDS && (left < KEEP || enough());
		uint32_t	k = over ? (uint32_t) --left : (uint32_t) (rnd_from(&me->rng) % KEEP);

		if (len[k] == 0)
		{
			uint32_t	want = 1 + (uint32_t) (rnd_from(&me->rng) % 40);

			if (over)
				continue;
			len[k] = rbp_spill_slots_alloc(want, slow_ok, me, &first[k]);
			if (len[k] == 0)
			{
				count(&t_empty);
				sched_yield();
			}
			if (len[k] > want || first[k] + len[k] > T_SLOTS)
			{
				count(&foreign);
				len[k] = 0;
			}
			__atomic_add_fetch(&t_given, len[k], __ATOMIC_RELAXED);
			for (uint32_t i = first[k]; i < first[k] + len[k]; i++)
			{
				int64_t		since = __atomic_load_n(&t_held_since[i], __ATOMIC_RELAXED);

				if (__atomic_fetch_add(&owners[i], 1, __ATOMIC_RELAXED) != 0)
					count(&two_owners);
				if (since != 0 &&
					__atomic_load_n(&t_held_life[i], __ATOMIC_RELAXED) ==
					__atomic_load_n(&lives[i / PAGES], __ATOMIC_RELAXED) &&
					__atomic_load_n(&t_now, __ATOMIC_RELAXED) < since + QUARANTINE)
					count(&too_early);
				__atomic_store_n(&t_held_since[i], 0, __ATOMIC_RELAXED);
			}
			continue;
		}

		for (uint32_t i = first[k]; i < first[k] + len[k]; i++)
			__atomic_fetch_sub(&owners[i], 1, __ATOMIC_RELAXED);
		if (rnd_from(&me->rng) % 8 != 0)
			rbp_spill_slots_free(first[k], len[k]);
		else
			for (uint32_t i = first[k]; i < first[k] + len[k]; i++)
			{
				int64_t		now = __atomic_load_n(&t_now, __ATOMIC_RELAXED);

				__atomic_store_n(&t_held_life[i], __atomic_load_n(&lives[i / PAGES], __ATOMIC_RELAXED),
								 __ATOMIC_RELAXED);
				__atomic_store_n(&t_held_since[i], now, __ATOMIC_RELAXED);
				rbp_spill_slots_quarantine(i, now);
			}
		len[k] = 0;
	}
	return NULL;
}

/* The lease worker, and time. */
static void *
disturb(void *arg)
{
	User	   *me = arg;

	while (!__atomic_load_n(&t_stop, __ATOMIC_RELAXED))
	{
		uint32_t	e = (uint32_t) (rnd_from(&me->rng) % T_EXTENTS);

		switch (rnd_from(&me->rng) % 16)
		{
			case 0:
				slots_offline(e);
				break;
			case 1:
				slots_drain(e);
				break;
			case 2:
			case 3:
			case 4:
				slots_undrain(e);
				break;
			default:
				if (!slots_absent(e))
					break;
				/* nobody has slots of it; who gets some sees the new life */
				__atomic_add_fetch(&lives[e], 1, __ATOMIC_RELAXED);
				slots_online(e);
				count(&t_onlines);
		}
		rbp_spill_slots_tick(__atomic_add_fetch(&t_now, SECOND, __ATOMIC_RELAXED));
		sched_yield();
	}
	return NULL;
}

static void
test_threads(void)
{
	User		users[USERS + 1];
	bool	   *seen = calloc(T_SLOTS, sizeof(bool));
	uint32_t	first;
	uint32_t	n;
	uint32_t	distinct = 0;

	new_slots(0, T_EXTENTS);
	t_now = clock_ns() + 1000000 * SECOND;
	for (uint32_t e = 0; e < T_EXTENTS; e++)
		slots_online(e);
	for (int i = 0; i <= USERS; i++)
	{
		users[i] = (User)
		{
			.rng = 0x9e3779b97f4a7c15 * (uint64_t) (i + 1)
		};
		if (pthread_create(&users[i].thread, NULL, i < USERS ? use_slots : disturb, &users[i]) != 0)
			abort();
	}
	for (int i = 0; i <= USERS; i++)
	{
		if (i == USERS)
			__atomic_store_n(&t_stop, true, __ATOMIC_RELAXED);
		pthread_join(users[i].thread, NULL);
	}
	is_u64(two_owners, 0, "threads: no slot had two owners");
	is_u64(too_early, 0, "threads: none left its quarantine early");
	is_u64(foreign, 0, "threads: none came from elsewhere");
	diag("%" PRIu64 " slots given out, %" PRIu64 " times none, %" PRIu64 " extents brought online",
		 t_given, t_empty, t_onlines);

	rbp_spill_slots_tick(t_now + 10 * QUARANTINE);
	rbp_spill_slots_tick(t_now + 20 * QUARANTINE);
	for (uint32_t e = 0; e < T_EXTENTS; e++)
	{
		slots_undrain(e);
		if (slots_absent(e))
			slots_online(e);
	}
	ok(counts_are(T_SLOTS, 0, 0, T_SLOTS, 0), "threads: all are free at the end");
	while ((n = rbp_spill_slots_alloc(7, NULL, NULL, &first)) > 0)
		for (uint32_t i = first; i < first + n; i++)
		{
			distinct += !seen[i];
			seen[i] = true;
		}
	is_u64(distinct, T_SLOTS, "threads: and can all be had");
	free(seen);
	free(rbp_spill_slots);
}

int
main(int argc, char **argv)
{
	uint64_t	seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	uint64_t	operations = argc > 2 ? strtoull(argv[2], NULL, 10) : 60000;

	test_states();
	test_quarantine();
	test_undrained();
	test_choice();
	test_undrain();
	for (uint64_t i = 0; i < 12; i++)
		run_model(seed + i, operations);
	test_threads();
	return done_testing();
}
