/*-------------------------------------------------------------------------
 *
 * test_s3fifo.c
 *	  Replacement: scans leave the hot set, ghosts remember as much as they
 *	  should, and an eviction is bounded in work.
 *
 * A tier is simulated over the directory, one access at a time: what misses
 * is staged, given a slot and published.  The same accesses go to a plain
 * FIFO of the same size, which shows that they tell good from bad.
 *
 *-------------------------------------------------------------------------
 */
#include "base/geometry.h"
#include "buffer/directory.h"
#include "buffer/directory_internal.h"
#include "buffer/page.h"
#include "buffer/s3fifo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "directory_check.h"
#include "random.h"
#include "tap.h"

#define EXTENTS		128
#define SLOTS		(EXTENTS * RBP_EXTENT_PAGES)
#define HOT			(SLOTS * 4 / 10)

static uint64_t rng_state = 88172645463325252;

static uint64_t
rng(void)
{
	return next_random(&rng_state);
}

/*
 * ---- the two tiers ---------------------------------------------------------
 */

static RbpDirectory *
make_directory(uint32_t extents, uint32_t online)
{
	uint32_t	slots = extents * RBP_EXTENT_PAGES;
	size_t		size = rbp_directory_size(slots, 1, 0);
	void	   *mem = aligned_alloc(64, size);
	RbpDirectory *dir;

	memset(mem, 0, size);
	dir = directory_init(mem, slots, 1, 0);
	for (uint32_t i = 0; i < online; i++)
		directory_extent_online(dir, i, 0);
	return dir;
}

static RbpPageId
block(uint32_t n)
{
	return (RbpPageId)
	{
		.rel = 16384,.block = n,.space = 1,.fork = 0
	};
}

/* One access; says whether it hit. */
static bool
tier_access(RbpDirectory *dir, uint32_t n)
{
	RbpPageId	page = block(n);
	RbpVersion	version;
	uint32_t	slot;
	RbpEvicted	evicted;

	if (rbp_directory_lookup(dir, REF(&page), true).where != RBP_ABSENT)
		return true;
	version.hash = n;
	version.stamp = directory_stamp(dir, REF(&page));
	version.generation = rbp_generation_now(dir, page.rel, page.space,
											page.fork);
	if (rbp_directory_insert_staged(dir, REF(&page), &version, 0) != RBP_INSERTED)
		abort();
	slot = rbp_directory_reserve(dir, &page, &evicted);
	if (slot == RBP_INVALID_SLOT)
		directory_abandon(dir, &page, 0, slot);
	else if (rbp_directory_publish(dir, &page, 0, slot, true) != RBP_INSERTED)
		abort();
	return false;
}

static bool
tier_has(RbpDirectory *dir, uint32_t n)
{
	RbpPageId	page = block(n);

	return rbp_directory_lookup(dir, REF(&page), false).where == RBP_REMOTE;
}

typedef struct Fifo
{
	uint32_t	ring[SLOTS];
	uint32_t	at;
	uint32_t	used;
	uint8_t		present[1 << 20];	/* by block number */
} Fifo;

static bool
fifo_access(Fifo *fifo, uint32_t n)
{
	if (fifo->present[n])
		return true;
	if (fifo->used == SLOTS)
		fifo->present[fifo->ring[fifo->at]] = 0;
	else
		fifo->used++;
	fifo->ring[fifo->at] = n;
	fifo->present[n] = 1;
	fifo->at = (fifo->at + 1) % SLOTS;
	return false;
}

static double
tier_hot_share(RbpDirectory *dir)
{
	uint32_t	found = 0;

	for (uint32_t i = 0; i < HOT; i++)
		found += tier_has(dir, i);
	return 100.0 * found / HOT;
}

static double
fifo_hot_share(const Fifo *fifo)
{
	uint32_t	found = 0;

	for (uint32_t i = 0; i < HOT; i++)
		found += fifo->present[i];
	return 100.0 * found / HOT;
}

/*
 * ---- scans ----------------------------------------------------------------
 */

static void
test_scan(bool interleaved)
{
	RbpDirectory *dir = make_directory(EXTENTS, EXTENTS);
	Fifo	   *fifo = calloc(1, sizeof(Fifo));
	const char *how = interleaved ? "scan amid hot accesses" : "scan alone";
	DirectoryCounts counts;
	double		before,
				after,
				fifo_before,
				fifo_after;

	/* the hot set, and as much again of what is seen once */
	for (uint32_t i = 0; i < HOT * 20; i++)
	{
		uint32_t	n = i % 2 == 0 ? (uint32_t) (rng() % HOT) : HOT + i / 2 % SLOTS;

		tier_access(dir, n);
		fifo_access(fifo, n);
	}
	for (uint32_t i = 0; i < HOT; i++)
	{
		tier_access(dir, i);
		fifo_access(fifo, i);
	}
	before = tier_hot_share(dir);
	fifo_before = fifo_hot_share(fifo);

	for (uint32_t i = 0; i < 10 * SLOTS; i++)
	{
		uint32_t	n = HOT + SLOTS + i;

		tier_access(dir, n);
		fifo_access(fifo, n);
		if (interleaved && i % 16 == 0)
		{
			n = (uint32_t) (rng() % HOT);
			tier_access(dir, n);
			fifo_access(fifo, n);
		}
	}
	after = tier_hot_share(dir);
	fifo_after = fifo_hot_share(fifo);

	diag("%s: hot pages present before and after: S3-FIFO %.1f%% %.1f%%, FIFO %.1f%% %.1f%%",
		 how, before, after, fifo_before, fifo_after);
	ok(before > 98, "%s: the hot set is in the tier before", how);
	ok(after > before - 3, "%s: ten times the tier leaves it there", how);
	ok(fifo_after < before - 30, "%s: which a plain FIFO does not", how);
	directory_counts(dir, &counts);
	is_u64(counts.small + counts.main + counts.free, SLOTS, "%s: every slot is somewhere", how);
	ok(directory_check(dir) == NULL, "%s: check", how);
	free(fifo);
	free(dir);
}

/* A second scan of something that fits must find what it can. */
static void
test_small_loop(void)
{
	RbpDirectory *dir = make_directory(EXTENTS, EXTENTS);
	uint32_t	hits = 0;

	for (uint32_t i = 0; i < SLOTS / 2; i++)
		tier_access(dir, i);
	for (uint32_t i = 0; i < SLOTS / 2; i++)
		hits += tier_access(dir, i);
	is_u64(hits, SLOTS / 2, "a relation of half the tier is found by its second scan");
	free(dir);
}

/* Zipf over twenty times the tier, with scans: better than FIFO. */
static void
test_zipf(void)
{
	RbpDirectory *dir = make_directory(EXTENTS, EXTENTS);
	Fifo	   *fifo = calloc(1, sizeof(Fifo));
	uint32_t	hits = 0,
				fifo_hits = 0,
				n_accesses = 0;
	DirectoryCounts counts;

	for (uint32_t i = 0; i < 40 * SLOTS; i++)
	{
		double		u = (double) (rng() >> 11) / 9007199254740992.0;

		/* the inverse of a Zipf distribution of exponent 1, about */
		uint32_t	n = (uint32_t) pow(20.0 * SLOTS, u) - 1;
		bool		hit = tier_access(dir, n);
		bool		fifo_hit = fifo_access(fifo, n);

		if (i > 10 * SLOTS)
		{
			n_accesses++;
			hits += hit;
			fifo_hits += fifo_hit;
		}
	}
	diag("Zipf: hits S3-FIFO %.1f%%, FIFO %.1f%%", 100.0 * hits / n_accesses,
		 100.0 * fifo_hits / n_accesses);
	ok(hits > fifo_hits + n_accesses / 100, "Zipf: more hits than FIFO");
	directory_counts(dir, &counts);
	ok(counts.small <= SLOTS / 10 + RBP_PARTITIONS,
	   "Zipf: the small queue is a tenth (%" PRIu64 ")", counts.small);
	ok(directory_check(dir) == NULL, "Zipf: check");
	free(fifo);
	free(dir);
}

/* The hot set moves: the old one must not stay for ever. */
static void
test_shift(void)
{
	RbpDirectory *dir = make_directory(EXTENTS, EXTENTS);
	uint32_t	hits = 0;
	uint32_t	set = SLOTS * 8 / 10;

	for (uint32_t i = 0; i < 10 * set; i++)
		tier_access(dir, (uint32_t) (rng() % set));
	for (uint32_t i = 0; i < 10 * set; i++)
		tier_access(dir, set + (uint32_t) (rng() % set));
	for (uint32_t i = 0; i < set; i++)
		hits += tier_has(dir, set + i);
	ok(hits > set * 9 / 10, "a new hot set takes the place of the old (%u of %u)", hits, set);
	free(dir);
}

/*
 * ---- queues and ghosts ------------------------------------------------------
 */

static RbpSlotState
state_of(RbpDirectory *dir, uint32_t n)
{
	RbpPageId	page = block(n);
	RbpLookup	at = rbp_directory_lookup(dir, REF(&page), false);

	if (at.where != RBP_REMOTE)
		return RBP_SLOT_UNUSED;
	return rbp_entry_state(rbp_entry(dir, at.slot % RBP_PARTITIONS * dir->nlocal +
									 at.slot / RBP_PARTITIONS));
}

/* The i-th block of those that belong to partition 0. */
static uint32_t
of_partition_0(uint32_t i)
{
	for (uint32_t n = 0;; n++)
	{
		RbpPageId	page = block(n);

		if (rbp_hash_partition(rbp_page_hash(&page)) == 0 && i-- == 0)
			return n;
	}
}

static void
test_queues(void)
{
	RbpDirectory *dir = make_directory(20, 20);
	RbpPartition *p = &dir->partitions[0];
	RbpPageId	page;
	uint32_t	b[64];

	for (uint32_t i = 0; i < 64; i++)
		b[i] = of_partition_0(i);
	is_u64(rbp_s3fifo_small_room(rbp_partition_slots(dir)), 2, "of 20 slots the small queue is to have 2");

	for (uint32_t i = 0; i < 20; i++)
		tier_access(dir, b[i]);
	is_u64(p->lists[RBP_SLOT_SMALL].count, 20, "while there is room, all are in small");
	is_u64(p->evictions, 0, "and nothing is evicted");

	/* b[0] is read once, b[1] thrice, b[2] not: b[2] goes, the others move */
	tier_access(dir, b[0]);
	for (int i = 0; i < 3; i++)
		tier_access(dir, b[1]);
	tier_access(dir, b[20]);
	is_u64(state_of(dir, b[0]), RBP_SLOT_MAIN, "one read moves a page from small to main");
	is_u64(state_of(dir, b[1]), RBP_SLOT_MAIN, "so do three");
	ok(p->lists[RBP_SLOT_MAIN].count == 2 &&
	   rbp_entry_freq(rbp_entry(dir, p->lists[RBP_SLOT_MAIN].head)) == 0 &&
	   rbp_entry_freq(rbp_entry(dir, p->lists[RBP_SLOT_MAIN].tail)) == 0,
	   "where both start anew");
	is_u64(state_of(dir, b[2]), RBP_SLOT_UNUSED, "the oldest unread one leaves");
	is_u64(p->evictions, 1, "which counts as an eviction");

	/* b[2] comes back: from its ghost to main */
	tier_access(dir, b[2]);
	is_u64(state_of(dir, b[2]), RBP_SLOT_MAIN, "what returns while its ghost is there goes to main");

	/* with main nearly empty, all others leave through small */
	for (uint32_t i = 21; i < 60; i++)
		tier_access(dir, b[i]);
	ok(state_of(dir, b[0]) == RBP_SLOT_MAIN && state_of(dir, b[1]) == RBP_SLOT_MAIN &&
	   state_of(dir, b[2]) == RBP_SLOT_MAIN,
	   "what passes through small leaves main alone");

	/* a page in main that is written has its place when it is back */
	page = block(b[0]);
	is_u64(rbp_directory_invalidate(dir, &page, true), RBP_REMOTE, "a page in main is written");
	tier_access(dir, b[0]);
	is_u64(state_of(dir, b[0]), RBP_SLOT_MAIN, "and goes to main at its return");

	/* one in small that was never read has not */
	page = block(b[59]);
	is_u64(state_of(dir, b[59]), RBP_SLOT_SMALL, "a page in small, unread");
	rbp_directory_invalidate(dir, &page, true);
	tier_access(dir, b[59]);
	is_u64(state_of(dir, b[59]), RBP_SLOT_SMALL, "is in small again after a write");

	/* a read while it is staged is a read */
	{
		RbpVersion	version;
		RbpEvicted	evicted;

		page = block(b[63]);
		version = (RbpVersion)
		{
			1, directory_stamp(dir, REF(&page)),
				rbp_generation_now(dir, page.rel, page.space, page.fork)
		};
		rbp_directory_insert_staged(dir, REF(&page), &version, 0);
		rbp_directory_lookup(dir, REF(&page), true);
		rbp_directory_publish(dir, &page, 0, rbp_directory_reserve(dir, &page, &evicted), true);
		for (uint32_t i = 21; i < 59; i++)
			tier_access(dir, b[i]);
		is_u64(state_of(dir, b[63]), RBP_SLOT_MAIN, "a read of the staged page counts");
	}
	ok(directory_check(dir) == NULL, "queues: check");
	free(dir);
}

static void
test_dead_entries(void)
{
	RbpDirectory *dir = make_directory(20, 20);
	RbpPartition *p = &dir->partitions[0];
	RbpPageId	page;
	RbpEvicted	evicted;
	uint32_t	slot;

	for (uint32_t i = 0; i < 20; i++)
		tier_access(dir, of_partition_0(i));
	page = block(of_partition_0(20));
	rbp_directory_bump_generation(dir, page.rel, page.space, page.fork);
	slot = rbp_directory_reserve(dir, &page, &evicted);
	ok(slot != RBP_INVALID_SLOT && evicted.n == 0, "a dead entry gives its slot up without an eviction");
	is_u64(p->evictions, 0, "nor is one counted");
	page = block(of_partition_0(0));
	ok(!rbp_ghost_take(dir, 0, rbp_page_hash(&page)),
	   "and it leaves no ghost");
	directory_abandon(dir, &page, 0, slot);
	is_u64(directory_sweep(dir, 0), 19, "the sweep finds the others");
	is_u64(p->lists[RBP_SLOT_FREE].count, 20, "and then all are free");
	ok(directory_check(dir) == NULL, "dead entries: check");
	free(dir);
}

static void
test_ghosts(void)
{
	enum
	{
		N = 2000
	};
	RbpDirectory *dir = make_directory(N, N);
	uint64_t	hashes[4 * N];
	uint32_t	found;
	uint32_t	room = N - N / 10;

	for (int i = 0; i < 4 * N; i++)
		hashes[i] = rng() & ~(uint64_t) (RBP_PARTITIONS - 1);

	for (int i = 0; i < 4 * N; i++)
		rbp_ghost_add(dir, 0, hashes[i]);
	found = 0;
	for (int i = 0; i < 2 * N; i++)
		found += rbp_ghost_take(dir, 0, hashes[i]);
	ok(found <= 2, "ghosts from before twice the capacity are forgotten (%u found)", found);
	found = 0;
	for (uint32_t i = 4 * N - room / 2; i < 4 * N; i++)
		found += rbp_ghost_take(dir, 0, hashes[i]);
	ok(found > room / 2 * 95 / 100, "of the newest half as many as main has room for, %u of %u are known", found, room / 2);
	found = 0;
	for (uint32_t i = 4 * N - room; i < 4 * N - room / 2; i++)
		found += rbp_ghost_take(dir, 0, hashes[i]);
	ok(found > room / 2 * 70 / 100, "of the older half, %u of %u", found, room / 2);
	found = 0;
	for (int i = 0; i < 4 * N; i++)
		found += rbp_ghost_take(dir, 0, hashes[i]);
	ok(found < N / 20, "a ghost is taken once");

	/* strangers */
	for (int i = 0; i < N; i++)
		rbp_ghost_add(dir, 0, hashes[i]);
	found = 0;
	for (int i = 0; i < 100000; i++)
		found += rbp_ghost_take(dir, 0, rng() & ~(uint64_t) (RBP_PARTITIONS - 1));
	ok(found <= 10, "of 100,000 strangers %u are taken for known", found);
	free(dir);
}

/* Of a large directory a small part is online: ghosts must not outlast it. */
static void
test_ghosts_of_few(void)
{
	RbpDirectory *dir = make_directory(20000, 200);
	uint64_t	first = rng() & ~(uint64_t) (RBP_PARTITIONS - 1);

	rbp_ghost_add(dir, 0, first);
	for (int i = 0; i < 300; i++)
		rbp_ghost_add(dir, 0, rng() & ~(uint64_t) (RBP_PARTITIONS - 1));
	ok(!rbp_ghost_take(dir, 0, first), "a ghost holds for what main has room for, not for what the table has");
	rbp_ghost_add(dir, 0, first);
	for (int i = 0; i < 100; i++)
		rbp_ghost_add(dir, 0, rng() & ~(uint64_t) (RBP_PARTITIONS - 1));
	ok(rbp_ghost_take(dir, 0, first), "and that long it does");
	free(dir);
}

static void
test_bounded_work(void)
{
	enum
	{
		N = 5000
	};
	RbpDirectory *dir = make_directory(N, N);
	RbpPartition *p = &dir->partitions[0];
	RbpPageId	page = {.rel = 16384,.space = 1};
	uint32_t	untouched = 0;
	uint32_t	loaded = 0;
	RbpEvicted	evicted;

	for (page.block = 0; loaded < N; page.block++)
		if (rbp_hash_partition(rbp_page_hash(&page)) == 0)
		{
			tier_access(dir, page.block);
			loaded++;
		}
	for (uint32_t i = 0; i < N; i++)
		rbp_entry_set(rbp_entry(dir, i), RBP_SLOT_SMALL, RBP_MAX_FREQ);
	while (rbp_hash_partition(rbp_page_hash(&page)) != 0)
		page.block++;
	ok(rbp_directory_reserve(dir, &page, &evicted) != RBP_INVALID_SLOT && evicted.n == 1,
	   "when every page was read, there is a victim still");
	for (uint32_t i = 0; i < N; i++)
		if (rbp_entry_state(rbp_entry(dir, i)) == RBP_SLOT_SMALL &&
			rbp_entry_freq(rbp_entry(dir, i)) == RBP_MAX_FREQ)
			untouched++;
	ok(untouched >= N - RBP_EVICT_STEPS - 1,
	   "and it costs a bounded number of moves (%u)", N - untouched);
	is_u64(p->reserved, 1, "one slot is reserved");
	ok(directory_check(dir) == NULL, "bounded work: check");
	free(dir);
}

int
main(void)
{
	test_queues();
	test_dead_entries();
	test_ghosts();
	test_ghosts_of_few();
	test_bounded_work();
	test_small_loop();
	test_scan(false);
	test_scan(true);
	test_zipf();
	test_shift();
	return done_testing();
}
