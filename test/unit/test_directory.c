/*-------------------------------------------------------------------------
 *
 * test_directory.c
 *	  The directory, one promise of its header after the other.
 *
 *-------------------------------------------------------------------------
 */
#include "base/geometry.h"
#include "base/injection_point.h"
#include "buffer/directory.h"
#include "buffer/directory_internal.h"
#include "buffer/page.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "directory_check.h"
#include "tap.h"

#define STAGING		64

static RbpDirectory *
make_for(uint32_t extents, uint32_t online, uint32_t buffers)
{
	uint32_t	slots = extents * RBP_EXTENT_PAGES;
	size_t		size = rbp_directory_size(slots, STAGING, buffers);
	void	   *mem = aligned_alloc(64, size);
	RbpDirectory *dir;

	memset(mem, 0, size);
	dir = directory_init(mem, slots, STAGING, buffers);
	for (uint32_t i = 0; i < online; i++)
		directory_extent_online(dir, i, 0);
	return dir;
}

static RbpDirectory *
make(uint32_t extents, uint32_t online)
{
	return make_for(extents, online, 0);
}

static RbpPageId
page_of(uint32_t rel, uint32_t block)
{
	return (RbpPageId)
	{
		.rel = rel,.block = block,.space = 3,.fork = 0
	};
}

static RbpVersion
version_of(RbpDirectory *dir, const RbpPageId *page, uint64_t hash)
{
	return (RbpVersion)
	{
		hash, directory_stamp(dir, REF(page)),
			rbp_generation_now(dir, page->rel, page->space, page->fork)
	};
}

/* Through staging into a remote slot; the slot, or RBP_INVALID_SLOT. */
static uint32_t
put(RbpDirectory *dir, const RbpPageId *page, uint64_t hash)
{
	RbpVersion	version = version_of(dir, page, hash);
	RbpEvicted	evicted;
	uint32_t	slot;

	if (rbp_directory_insert_staged(dir, REF(page), &version, STAGING - 1) != RBP_INSERTED)
		return RBP_INVALID_SLOT;
	slot = rbp_directory_reserve(dir, page, &evicted);
	if (slot == RBP_INVALID_SLOT)
		directory_abandon(dir, page, STAGING - 1, slot);
	else if (rbp_directory_publish(dir, page, STAGING - 1, slot, true) != RBP_INSERTED)
		slot = RBP_INVALID_SLOT;
	return slot;
}

static RbpWhere
where(RbpDirectory *dir, const RbpPageId *page)
{
	return rbp_directory_lookup(dir, REF(page), false).where;
}

static void
check(RbpDirectory *dir, const char *what)
{
	const char *problem = directory_check(dir);

	ok(problem == NULL, "%s: check%s%s", what, problem ? ": " : "", problem ? problem : "");
}

/*
 * ---- size -----------------------------------------------------------------
 */

static void
test_size(void)
{
	const struct
	{
		const char *name;
		uint64_t	bytes;
		uint32_t	staging;
	}			tiers[] = {
		{"1 GB", UINT64_C(1) << 30, 0},
		{"1 GB, 8 MB of staging", UINT64_C(1) << 30, 1024},
		{"100 GB", UINT64_C(100) << 30, 0},
		{"100 GB, 64 MB of staging", UINT64_C(100) << 30, 8192},
		{"16 TB", UINT64_C(16) << 40, 0},
	};

	for (size_t i = 0; i < sizeof(tiers) / sizeof(tiers[0]); i++)
	{
		uint32_t	slots = (uint32_t) (tiers[i].bytes / RBP_PAGE_SIZE);
		size_t		stripes = (slots + (RBP_ACCOUNT_EXTENTS * RBP_EXTENT_PAGES - 1)) / (RBP_ACCOUNT_EXTENTS * RBP_EXTENT_PAGES);
		size_t		fixed = 640 * 1024 + 128 * 1024 * (stripes < RBP_ACCOUNT_STRIPES ? stripes : RBP_ACCOUNT_STRIPES);
		double		each = (double) (rbp_directory_size(slots, tiers[i].staging, 0) - fixed) / slots;

		ok(each <= 48, "%s: fixed tables, and %.2f bytes for each remote slot", tiers[i].name, each);
		is_u64(rbp_directory_size(slots, tiers[i].staging, 1 << 20) - rbp_directory_size(slots, tiers[i].staging, 0),
			   32 << 20, "and 32 for each buffer");
	}
}

/*
 * Pages in shared buffers have a claim each, while others write: few claims are
 * void because their stamp is another page's, too.
 */
static void
test_stamps(void)
{
	const uint32_t buffers = 8192;	/* 64 MB, and a tier of 128 MB */
	const uint32_t writes[] = {buffers / 8, buffers / 2};
	RbpDirectory *dir = make_for(128, 0, buffers);
	uint32_t   *stamps = malloc(buffers * sizeof(uint32_t));

	for (size_t i = 0; i < sizeof(writes) / sizeof(writes[0]); i++)
	{
		uint32_t	stale = 0;

		for (uint32_t n = 0; n < buffers; n++)
		{
			RbpPageId	page = page_of(1000, n);

			stamps[n] = directory_stamp(dir, REF(&page));
		}
		for (uint32_t n = 0; n < writes[i]; n++)
		{
			RbpPageId	page = page_of(2000, n);

			rbp_directory_invalidate(dir, &page, true);
		}
		for (uint32_t n = 0; n < buffers; n++)
		{
			RbpPageId	page = page_of(1000, n);

			stale += stamps[n] != directory_stamp(dir, REF(&page));
		}
		ok(stale < writes[i] / 6, "%u pages were written: %u of %u claims about others are void",
		   writes[i], stale, buffers);
	}
	free(stamps);
	free(dir);
}

/* What is removed is the page alone: its claim and entry. */
static void
test_removal(void)
{
	RbpDirectory *dir = make(4, 4);
	RbpPageId	page = page_of(1000, 7);
	RbpPageId	next = page_of(1000, 8);
	RbpVersion	version;
	RbpEvicted	evicted;
	uint32_t	slot;

	put(dir, &page, 1);
	put(dir, &next, 2);
	version = version_of(dir, &page, 1);
	rbp_directory_lookup(dir, REF(&page), true);
	is_u64(rbp_directory_invalidate(dir, &page, false), RBP_REMOTE, "a page is removed");
	is_u64(where(dir, &page), RBP_ABSENT, "and is not there");
	is_u64(where(dir, &next), RBP_REMOTE, "the next page of its fork is");
	is_u64(rbp_directory_insert_staged(dir, REF(&page), &version, 0), RBP_INSERT_STALE, "a version from before is refused");
	put(dir, &page, 3);
	is_u64(dir->partitions[rbp_hash_partition(rbp_page_hash(&page))].lists[RBP_SLOT_MAIN].count, 0,
		   "no ghost remembers it");
	rbp_directory_lookup(dir, REF(&page), true);
	rbp_directory_invalidate(dir, &page, true);
	put(dir, &page, 4);
	is_u64(dir->partitions[rbp_hash_partition(rbp_page_hash(&page))].lists[RBP_SLOT_MAIN].count, 1,
		   "as one does a page that was written");

	rbp_directory_invalidate(dir, &page, false);
	version = version_of(dir, &page, 5);
	rbp_directory_insert_staged(dir, REF(&page), &version, 0);
	slot = rbp_directory_reserve(dir, &page, &evicted);
	is_u64(rbp_directory_invalidate(dir, &page, false), RBP_STAGED, "a staged page is removed");
	is_u64(rbp_directory_publish(dir, &page, 0, slot, true), RBP_INSERT_GONE, "which stops its publication");
	is_u64(rbp_directory_invalidate(dir, &page, false), RBP_ABSENT, "what is not there is removed, too");
	check(dir, "removal");
	free(dir);
}

static void
test_layout(void)
{
	RbpDirectory *dir = make(256, 0);
	uint32_t	slots = dir->max_slots;

	is_u64(slots, 256 * RBP_EXTENT_PAGES, "max_slots");
	ok(dir->ngenerations >= 65536 && (uint64_t) dir->ngenerations * RBP_FEW_BLOCKS >= slots,
	   "generations: at least 65536, one for as many slots as few blocks");
	ok(dir->nstamps * RBP_PARTITIONS >= 4096 &&
	   dir->nstamps * RBP_PARTITIONS >= slots / 16, "stamps: at least 4096, one for 16 slots");
	ok(dir->bytes == rbp_directory_size(slots, STAGING, 0), "size is what init uses");
	ok(sizeof(RbpPartition) % RBP_CACHE_LINE == 0 &&
	   offsetof(RbpPartition, lists) >= RBP_CACHE_LINE,
	   "the lock has a cache line of its own");
	check(dir, "a new directory");
	free(dir);
}

/*
 * ---- entries ---------------------------------------------------------------
 */

static void
test_life_of_a_page(void)
{
	RbpDirectory *dir = make(4, 4);
	RbpPageId	page = page_of(1000, 7);
	RbpPageId	found;
	RbpVersion	version = version_of(dir, &page, 0xabcdef0123456789);
	RbpLookup	at;
	uint64_t	hash;
	uint32_t	slot;
	RbpEvicted	evicted;
	DirectoryCounts counts;

	is_u64(where(dir, &page), RBP_ABSENT, "a page is absent at first");
	ok(!rbp_directory_staged_info(dir, 5, &found, &hash), "nothing is staged");
	is_u64(rbp_directory_insert_staged(dir, REF(&page), &version, 5), RBP_INSERTED, "it is staged");
	at = rbp_directory_lookup(dir, REF(&page), true);
	ok(at.where == RBP_STAGED && at.slot == 5 && at.hash == version.hash, "and found there, with its hash");
	is_u64(rbp_directory_insert_staged(dir, REF(&page), &version, 6), RBP_INSERT_PRESENT, "not twice");
	ok(rbp_directory_staged_info(dir, 5, &found, &hash) && rbp_page_equal(&found, &page) &&
	   hash == version.hash, "the pusher learns page and hash");
	ok(!rbp_directory_staged_info(dir, 6, &found, &hash), "of the refused one, nothing");

	slot = rbp_directory_reserve(dir, &page, &evicted);
	ok(slot < 4 * RBP_EXTENT_PAGES && evicted.n == 0, "a slot is free for it");
	is_u64(where(dir, &page), RBP_STAGED, "until it is published it is found in staging");
	directory_counts(dir, &counts);
	ok(counts.staged == 1 && counts.remote == 0 && counts.reserved == 1 && counts.free == 511 &&
	   counts.online == 512, "counts while it is pushed");
	is_u64(rbp_directory_publish(dir, &page, 5, slot, true), RBP_INSERTED, "published");
	at = rbp_directory_lookup(dir, REF(&page), true);
	ok(at.where == RBP_REMOTE && at.slot == slot && at.hash == version.hash, "it is remote");
	ok(!rbp_directory_staged_info(dir, 5, &found, &hash), "and staged no more");
	is_u64(rbp_directory_insert_staged(dir, REF(&page), &version, 5), RBP_INSERT_PRESENT, "a remote page is not staged");
	directory_counts(dir, &counts);
	ok(counts.staged == 0 && counts.remote == 1 && counts.reserved == 0 && counts.free == 511 &&
	   counts.small == 1 && counts.main == 0, "counts afterwards");

	/* pages that differ in one part of the name */
	for (int i = 0; i < 4; i++)
	{
		RbpPageId	other = page;

		if (i == 0)
			other.rel++;
		else if (i == 1)
			other.block++;
		else if (i == 2)
			other.space++;
		else
			other.fork++;
		is_u64(where(dir, &other), RBP_ABSENT, "another page is not taken for it (%d)", i);
	}
	check(dir, "life of a page");
	free(dir);
}

static void
test_invalidate(void)
{
	RbpDirectory *dir = make(4, 4);
	RbpPageId	page = page_of(1000, 7);
	RbpPageId	found;
	RbpVersion	version = version_of(dir, &page, 1);
	uint64_t	hash;
	uint32_t	slot;
	RbpEvicted	evicted;
	uint32_t	stamp = version.stamp;
	DirectoryCounts counts;

	is_u64(rbp_directory_invalidate(dir, &page, true), RBP_ABSENT, "a write of an absent page");
	ok(directory_stamp(dir, REF(&page)) != stamp, "moves its stamp nevertheless");
	is_u64(rbp_directory_insert_staged(dir, REF(&page), &version, 0), RBP_INSERT_STALE,
		   "a version from before is refused");
	is_u64(where(dir, &page), RBP_ABSENT, "and not visible");

	version = version_of(dir, &page, 2);
	rbp_directory_insert_staged(dir, REF(&page), &version, 0);
	is_u64(rbp_directory_invalidate(dir, &page, true), RBP_STAGED, "a write drops a staged page");
	is_u64(where(dir, &page), RBP_ABSENT, "it is absent");
	ok(!rbp_directory_staged_info(dir, 0, &found, &hash), "the pusher sees that it is gone");

	version = version_of(dir, &page, 3);
	rbp_directory_insert_staged(dir, REF(&page), &version, 0);
	slot = rbp_directory_reserve(dir, &page, &evicted);
	is_u64(rbp_directory_invalidate(dir, &page, true), RBP_STAGED, "a write while the page is pushed");
	is_u64(rbp_directory_publish(dir, &page, 0, slot, true), RBP_INSERT_GONE, "stops its publication");
	is_u64(where(dir, &page), RBP_ABSENT, "so it stays absent");

	/* written and staged anew elsewhere while the first is being pushed */
	version = version_of(dir, &page, 4);
	rbp_directory_insert_staged(dir, REF(&page), &version, 0);
	slot = rbp_directory_reserve(dir, &page, &evicted);
	rbp_directory_invalidate(dir, &page, true);
	version = version_of(dir, &page, 5);
	is_u64(rbp_directory_insert_staged(dir, REF(&page), &version, 1), RBP_INSERTED, "staged anew");
	is_u64(rbp_directory_publish(dir, &page, 0, slot, true), RBP_INSERT_GONE, "the old push does not publish");
	ok(rbp_directory_lookup(dir, REF(&page), false).hash == 5 && where(dir, &page) == RBP_STAGED,
	   "nor harm the new copy");
	directory_abandon(dir, &page, 1, RBP_INVALID_SLOT);
	is_u64(where(dir, &page), RBP_ABSENT, "abandoned without a slot");

	slot = put(dir, &page, 6);
	is_u64(where(dir, &page), RBP_REMOTE, "remote");
	is_u64(rbp_directory_invalidate(dir, &page, true), RBP_REMOTE, "a write drops a remote page");
	is_u64(where(dir, &page), RBP_ABSENT, "it is absent");
	directory_counts(dir, &counts);
	ok(counts.free == 512 && counts.reserved == 0 && counts.remote == 0, "all slots came back");
	check(dir, "invalidate");
	free(dir);
}

static void
test_generations(void)
{
	RbpDirectory *dir = make(4, 4);
	RbpPageId	page = page_of(1000, 7);
	RbpPageId	fsm = page;
	RbpPageId	found;
	RbpVersion	version;
	RbpVersion	old;
	uint64_t	hash;
	uint64_t	bumps = rbp_directory_bumps(dir);
	uint32_t	slot;
	RbpEvicted	evicted;
	uint32_t	swept = 0;
	DirectoryCounts counts;

	fsm.fork = 1;
	put(dir, &page, 1);
	put(dir, &fsm, 2);
	old = version_of(dir, &page, 1);
	rbp_directory_bump_generation(dir, page.rel, page.space, page.fork);
	is_u64(where(dir, &page), RBP_ABSENT, "truncation kills the fork's pages");
	is_u64(where(dir, &fsm), RBP_REMOTE, "and no other fork's");
	ok(rbp_directory_bumps(dir) > bumps, "it is counted");
	is_u64(rbp_directory_insert_staged(dir, REF(&page), &old, 0), RBP_INSERT_STALE, "a version from before is refused");
	is_u64(rbp_directory_invalidate(dir, &page, true), RBP_ABSENT, "writing a dead page drops nothing live");
	put(dir, &page, 3);
	is_u64(rbp_directory_lookup(dir, REF(&page), false).hash, 3, "a new copy lives");

	rbp_directory_bump_generation(dir, page.rel, page.space, page.fork);
	version = version_of(dir, &page, 4);
	is_u64(rbp_directory_insert_staged(dir, REF(&page), &version, 0), RBP_INSERTED, "a new copy replaces a dead one");
	slot = rbp_directory_reserve(dir, &page, &evicted);
	rbp_directory_bump_generation(dir, page.rel, page.space, page.fork);
	is_u64(where(dir, &page), RBP_ABSENT, "truncation kills a staged page");
	is_u64(rbp_directory_publish(dir, &page, 0, slot, true), RBP_INSERT_STALE, "and stops its publication");

	version = version_of(dir, &page, 5);
	rbp_directory_insert_staged(dir, REF(&page), &version, 0);
	rbp_directory_bump_generation(dir, page.rel, page.space, page.fork);
	ok(!rbp_directory_staged_info(dir, 0, &found, &hash), "a staged page that is dead is not pushed");
	rbp_directory_invalidate(dir, &fsm, false);
	version = version_of(dir, &fsm, 6);
	is_u64(rbp_directory_insert_staged(dir, REF(&fsm), &version, 0), RBP_INSERTED,
		   "whose staging slot can be used for another page at once");
	is_u64(where(dir, &fsm), RBP_STAGED, "which is there");
	directory_abandon(dir, &fsm, 0, RBP_INVALID_SLOT);

	for (uint32_t i = 0; i < 100; i++)
	{
		RbpPageId	p = page_of(2000, i);

		put(dir, &p, i);
	}
	rbp_directory_bump_generation(dir, 2000, 3, 0);
	directory_counts(dir, &counts);
	ok(counts.remote == 0 && counts.small == 100, "dead entries are not counted as pages");
	for (int part = 0; part < RBP_PARTITIONS; part++)
		swept += directory_sweep(dir, part);
	is_u64(swept, 100, "the sweep frees them");
	ok(dir->partitions[5].swept == rbp_directory_bumps(dir), "and knows that it need not come again");
	directory_counts(dir, &counts);
	ok(counts.remote == 0 && counts.small == 0 && counts.free == 512, "and all is free");
	swept = 0;
	put(dir, &page, 7);
	for (int part = 0; part < RBP_PARTITIONS; part++)
		swept += directory_sweep(dir, part);
	is_u64(swept, 0, "another sweep frees nothing");
	is_u64(where(dir, &page), RBP_REMOTE, "and leaves the living");
	check(dir, "generations");
	free(dir);
}

/* A step of the sweep looks at so many extents' slots and no more. */
static void
test_sweep_steps(void)
{
	RbpDirectory *dir = make(3 * RBP_CHUNK, 3 * RBP_CHUNK);
	RbpPageId	page = page_of(2000, 0);
	uint32_t	most = 0;
	uint32_t	freed = 0;
	int			steps = 0;
	bool		more = true;

	for (; page.block < 2 * RBP_CHUNK * RBP_PARTITIONS; page.block++)
		put(dir, &page, page.block);
	rbp_directory_bump_generation(dir, 2000, 3, 0);
	while (more)
	{
		uint32_t	before = freed;

		more = rbp_directory_sweep_step(dir, 5, &freed);
		most = freed - before > most ? freed - before : most;
		steps++;
	}
	ok(most > 0 && most <= RBP_CHUNK, "a step of the sweep is bounded");
	is_u64(steps, 3, "so many make up a sweep of the partition");
	ok(freed > RBP_CHUNK && dir->partitions[5].lists[RBP_SLOT_SMALL].count == 0,
	   "which frees all that is dead");
	ok(!rbp_directory_sweep_step(dir, 5, &freed), "then there is nothing to do");

	/* what is bumped in the middle is swept in another round */
	rbp_directory_bump_generation(dir, 2000, 3, 0);
	ok(rbp_directory_sweep_step(dir, 5, &freed), "a round begins");
	rbp_directory_bump_generation(dir, 2000, 3, 0);
	(void) rbp_directory_sweep_step(dir, 5, &freed);
	ok(!rbp_directory_sweep_step(dir, 5, &freed), "and ends");
	ok(rbp_directory_sweep_step(dir, 5, &freed), "and is not the last one");
	check(dir, "sweep in steps");
	free(dir);
}

/* Two accounts of two extents each: the sums are what a look at each slot says. */
static void
test_accounts(void)
{
	RbpDirectory *dir = make(4, 0);
	RbpPageId	page = page_of(1000, 0);
	uint64_t	heat;
	uint64_t	counted;
	uint64_t	used[2] = {0};
	bool		same = true;

	for (uint32_t e = 0; e < 4; e++)
		directory_extent_online(dir, e, 7 + e % 2);
	(void) rbp_directory_heat(dir, 7, &counted);
	is_u64(counted, 0, "an account is empty at first");
	for (int round = 0; round < 4; round++)
	{
		for (page.block = 0; page.block < 600; page.block++)
		{
			RbpPageId	other = page_of(1000, (page.block * 7 + (uint32_t) round) % 600);

			if (where(dir, &page) == RBP_ABSENT)
				put(dir, &page, page.block);
			(void) rbp_directory_lookup(dir, REF(&other), true);
			if (page.block % 13 == 0)
				rbp_directory_invalidate(dir, &other, true);
		}
		used[0] = used[1] = 0;
		for (uint32_t e = 0; e < 4; e++)
			used[e % 2] += rbp_directory_extent_used(dir, e);
		for (int a = 0; a < 2; a++)
		{
			heat = rbp_directory_heat(dir, (uint32_t) (7 + a), &counted);
			same = same && counted == used[a] && heat >= used[a] &&
				heat <= used[a] * (1 + RBP_MAX_FREQ * RBP_HEAT_SAMPLE);
		}
	}
	ok(same && used[0] > 100 && used[1] > 100, "accounts say what the slots do");

	/* closed, the content counts until it is collected; then nothing is left */
	directory_extent_close(dir, 0);
	directory_extent_close(dir, 2);
	is_u64(rbp_directory_extent_used(dir, 0), 0, "nothing lives in a closed extent");
	(void) rbp_directory_heat(dir, 7, &counted);
	is_u64(counted, used[0], "but it counts until it is collected");
	is_u64(directory_closed(dir), 2, "which two are to be");
	is_u64(directory_collect(dir, 1), 1, "one is");
	is_u64(directory_collect(dir, 64), 1, "the other one, too");
	is_u64(directory_collect(dir, 64), 0, "and no more");
	heat = rbp_directory_heat(dir, 7, &counted);
	ok(counted == 0 && heat == 0,
	   "then the account is empty");
	(void) rbp_directory_heat(dir, 8, &counted);
	is_u64(counted, used[1], "the other is what it was");
	ok(directory_extent_absent(dir, 0) && directory_extent_absent(dir, 2),
	   "they may come online again");
	check(dir, "accounts");
	free(dir);
}

/* An extent that was never used costs nothing to open, close, or sweep. */
static void
test_fresh(void)
{
	RbpDirectory *dir = make(2, 2);
	RbpPageId	page = page_of(1000, 0);
	DirectoryCounts counts;
	RbpEvicted	evicted;
	bool		any = false;
	uint32_t	slot;

	directory_extent_close(dir, 1);
	is_u64(directory_closed(dir), 0, "an extent without a taken slot is absent at once");
	directory_extent_online(dir, 1, 1);
	slot = rbp_directory_reserve(dir, &page, &evicted);
	directory_extent_close(dir, slot / RBP_EXTENT_PAGES);
	is_u64(directory_closed(dir), 1, "one with a slot is not");
	is_u64(directory_collect(dir, 64), 1, "until that is taken out of use");
	directory_extent_online(dir, slot / RBP_EXTENT_PAGES, 1);
	directory_abandon(dir, &page, 0, slot);
	directory_counts(dir, &counts);
	is_u64(counts.free, 256, "the slot comes back into the new extent");
	for (page.block = 0; page.block < 20000 && !any; page.block++)
	{
		put(dir, &page, page.block);
		directory_counts(dir, &counts);
		any = counts.remote == 256;
	}
	ok(any && counts.free == 0, "all slots can be used");
	check(dir, "fresh slots");
	free(dir);
}

/* Pages go from an extent that drains to others. */
static void
test_moving(void)
{
	RbpDirectory *dir = make(4, 4);
	RbpPageId	page = page_of(1000, 0);
	RbpMovable	m[RBP_EXTENT_PAGES];
	uint32_t	next = 0;
	uint32_t	slots[4];
	RbpEvicted	evicted;
	int			n;

	for (; page.block < 100; page.block++)
		put(dir, &page, page.block);
	directory_extent_drain(dir, 0);
	ok(directory_extent_is_online(dir, 0), "an extent that drains is read");
	n = rbp_directory_movable(dir, 0, &next, m, RBP_EXTENT_PAGES);
	is_u64(n, rbp_directory_extent_used(dir, 0), "all of its pages can be moved where there is room");
	is_u64(next, RBP_EXTENT_PAGES, "and all slots were seen");
	ok(n > 2 && m[0].at.slot / RBP_EXTENT_PAGES == 0, "they are there");

	for (int i = 0; i < 3; i++)
	{
		slots[i] = rbp_directory_reserve(dir, &m[i].page, &evicted);
		ok(slots[i] / RBP_EXTENT_PAGES != 0 && evicted.n == 0, "its new slot is in another extent");
	}
	is_u64(rbp_directory_lookup(dir, REF(&m[0].page), false).slot, m[0].at.slot, "until then it is served from the old one");
	is_u64(rbp_directory_move(dir, &m[0], slots[0]), RBP_INSERTED, "one is moved");
	{
		RbpLookup	at = rbp_directory_lookup(dir, REF(&m[0].page), false);

		ok(at.where == RBP_REMOTE && at.slot == slots[0] && at.hash == m[0].at.hash,
		   "and is what it was");
	}

	rbp_directory_invalidate(dir, &m[1].page, true);
	is_u64(rbp_directory_move(dir, &m[1], slots[1]), RBP_INSERT_GONE, "not one that was written meanwhile");
	put(dir, &m[1].page, 4711);
	slots[1] = rbp_directory_reserve(dir, &m[1].page, &evicted);
	is_u64(rbp_directory_move(dir, &m[1], slots[1]), RBP_INSERT_GONE, "nor one that came anew");
	rbp_directory_bump_generation(dir, 1000, 3, 0);
	is_u64(rbp_directory_move(dir, &m[2], slots[2]), RBP_INSERT_GONE, "nor one of an older generation");
	page.block = 200;
	put(dir, &page, 200);
	m[3].page = page;
	m[3].at = rbp_directory_lookup(dir, REF(&page), false);
	slots[3] = rbp_directory_reserve(dir, &page, &evicted);
	directory_extent_close(dir, slots[3] / RBP_EXTENT_PAGES);
	is_u64(rbp_directory_move(dir, &m[3], slots[3]), RBP_INSERT_OFFLINE, "nor to an extent that has gone");
	is_u64(rbp_directory_lookup(dir, REF(&page), false).slot, m[3].at.slot, "it stays where it is");
	check(dir, "moving");
	free(dir);

	/* what was read before is not what the slot has now */
	dir = make(2, 2);
	page = page_of(1000, 0);
	(void) put(dir, &page, 1);
	m[0].page = page;
	m[0].at = rbp_directory_lookup(dir, REF(&page), false);
	slots[0] = rbp_directory_reserve(dir, &page, &evicted);
	rbp_directory_invalidate(dir, &page, true);
	is_u64(put(dir, &page, 2), m[0].at.slot, "the page comes to the same slot with another content");
	is_u64(rbp_directory_move(dir, &m[0], slots[0]), RBP_INSERT_GONE, "a copy of the former one is not taken for it");
	is_u64(rbp_directory_lookup(dir, REF(&page), false).slot, m[0].at.slot, "it stays where it is");
	check(dir, "another content");
	free(dir);

	/* one extent is to take the pages of two: those that were read */
	dir = make(2, 2);
	for (page.block = 0; page.block < 2000; page.block++)
		put(dir, &page, page.block);
	for (page.block = 0; page.block < 2000; page.block += 2)
		(void) rbp_directory_lookup(dir, REF(&page), true);
	directory_extent_drain(dir, 1);
	next = 0;
	n = rbp_directory_movable(dir, 1, &next, m, RBP_EXTENT_PAGES);
	{
		int			unread = 0;

		for (int i = 0; i < n; i++)
			unread += m[i].page.block % 2 != 0;
		is_u64(unread, 0, "where there is no room, what was not read is not moved");
		is_u64(rbp_directory_extent_used(dir, 1), (uint64_t) n, "but dropped");
		ok(n > 20 && n < RBP_EXTENT_PAGES, "which is some of it");
	}
	directory_extent_undrain(dir, 1);
	check(dir, "wanted again");
	free(dir);

	/* memory that nothing was put into before it drained is all there again */
	dir = make(1, 1);
	directory_extent_drain(dir, 0);
	directory_extent_undrain(dir, 0);
	n = 0;
	for (uint32_t part = 0; part < RBP_PARTITIONS; part++)
	{
		page = page_of(1000, 0);
		while (rbp_page_hash(&page) % RBP_PARTITIONS != part)
			page.block++;
		n += rbp_directory_reserve(dir, &page, &evicted) != RBP_INVALID_SLOT;
	}
	is_u64(n, RBP_EXTENT_PAGES, "each slot of an extent that drained is found again");
	check(dir, "all of it wanted again");
	free(dir);
}

static void
test_drop_if_same(void)
{
	RbpDirectory *dir = make(4, 4);
	RbpPageId	page = page_of(1000, 7);
	RbpLookup	seen;
	RbpLookup	other;

	put(dir, &page, 11);
	seen = rbp_directory_lookup(dir, REF(&page), true);
	other = seen;
	other.hash++;
	ok(!rbp_directory_drop_if_same(dir, &page, &other), "another hash: a race");
	other = seen;
	other.slot += RBP_PARTITIONS;
	ok(!rbp_directory_drop_if_same(dir, &page, &other), "another slot: a race");
	other = seen;
	other.where = RBP_STAGED;
	ok(!rbp_directory_drop_if_same(dir, &page, &other), "another place: a race");
	is_u64(where(dir, &page), RBP_REMOTE, "races drop nothing");
	ok(rbp_directory_drop_if_same(dir, &page, &seen), "the same: a hash failure");
	is_u64(where(dir, &page), RBP_ABSENT, "which drops it");
	ok(!rbp_directory_drop_if_same(dir, &page, &seen), "once");
	put(dir, &page, 11);
	seen = rbp_directory_lookup(dir, REF(&page), true);
	rbp_directory_bump_generation(dir, page.rel, page.space, page.fork);
	ok(!rbp_directory_drop_if_same(dir, &page, &seen), "a dead one is a race");
	check(dir, "drop_if_same");
	free(dir);
}

/*
 * ---- slots -----------------------------------------------------------------
 */

static void
test_eviction(void)
{
	RbpDirectory *dir = make(4, 4);
	RbpPageId	page = page_of(1000, 0);
	uint32_t	evictions = 0;
	uint32_t	in_place = 0;
	DirectoryCounts counts;

	for (; page.block < 5000; page.block++)
	{
		RbpVersion	version = version_of(dir, &page, page.block);
		RbpEvicted	evicted;
		uint32_t	slot;

		rbp_directory_insert_staged(dir, REF(&page), &version, 0);
		slot = rbp_directory_reserve(dir, &page, &evicted);
		evictions += evicted.n;
		if (slot % RBP_PARTITIONS != rbp_page_hash(&page) % RBP_PARTITIONS)
			ok(false, "a slot of another partition");
		rbp_directory_publish(dir, &page, 0, slot, true);
	}
	for (page.block = 0; page.block < 5000; page.block++)
	{
		RbpLookup	at = rbp_directory_lookup(dir, REF(&page), false);

		if (at.where == RBP_REMOTE && at.hash == page.block)
			in_place++;
	}
	directory_counts(dir, &counts);
	is_u64(in_place, 512, "as many pages are there as slots");
	is_u64(counts.remote, 512, "and counted");
	is_u64(evictions, 5000 - 512, "the others were evicted");
	is_u64(counts.evictions, evictions, "and counted");
	check(dir, "eviction");

	/* all slots of a partition in the hands of pushers */
	page.block = 0;
	{
		uint32_t	slots[5];
		RbpEvicted	evicted;

		for (int i = 0; i < 5; i++)
			slots[i] = rbp_directory_reserve(dir, &page, &evicted);
		ok(slots[3] != RBP_INVALID_SLOT && slots[4] == RBP_INVALID_SLOT && evicted.n == 0,
		   "a partition of 4 slots gives 4 and no more");
		ok(slots[0] != slots[1] && slots[1] != slots[2] && slots[2] != slots[3], "different ones");
		check(dir, "all reserved");
		for (int i = 0; i < 4; i++)
			directory_abandon(dir, &page, 0, slots[i]);
	}
	check(dir, "all given back");
	free(dir);
}

/* Whoever fills the tier, but pushes nothing out, gets nearly all of it. */
static void
test_room(void)
{
	RbpDirectory *none = make(4, 0);
	RbpDirectory *dir = make(4, 4);
	DirectoryCounts counts;
	RbpPageId	page = page_of(1, 0);
	RbpVersion	version;
	uint32_t	skipped = 0;

	ok(!directory_has_room(none, &page) && rbp_directory_is_full(none), "no memory: there is no room");
	free(none);

	ok(directory_has_room(dir, &page) && !rbp_directory_is_full(dir), "an empty tier has room");
	for (uint32_t block = 0; !rbp_directory_is_full(dir) && block < 64 * RBP_EXTENT_PAGES; block++)
	{
		page = page_of(1, block);
		if (!directory_has_room(dir, &page))
			skipped++;
		else if (put(dir, &page, block + 1) == RBP_INVALID_SLOT)
			break;
	}
	directory_counts(dir, &counts);
	ok(rbp_directory_is_full(dir), "it gets full");
	ok(counts.remote > counts.online * 15 / 16, "... with nearly all of it in use (%u of %u)", (unsigned) counts.remote, (unsigned) counts.online);
	is_u64(counts.evictions, 0, "... and nothing given up");
	ok(skipped > 0, "... though partitions fill unevenly (%u pages had no room)", skipped);
	free(dir);

	/* what is staged will want a slot */
	dir = make(4, 4);
	for (uint32_t block = 0, filled = 0; block < 64 * RBP_EXTENT_PAGES; block++)
	{
		page = page_of(2, block);
		if (rbp_hash_partition(rbp_page_hash(&page)) != 0)
			continue;
		if (++filled == 4 * RBP_EXTENT_PAGES / RBP_PARTITIONS)
			break;
		(void) put(dir, &page, block + 1);
	}
	ok(directory_has_room(dir, &page), "a partition with one free slot has room");
	version = version_of(dir, &page, 1);
	ok(rbp_directory_insert_staged(dir, REF(&page), &version, 0) == RBP_INSERTED, "... for a page");
	ok(!directory_has_room(dir, &page), "... and none while that is staged");
	check(dir, "room");
	free(dir);
}

static void
test_extents(void)
{
	RbpDirectory *dir = make(4, 0);
	RbpPageId	page = page_of(1000, 0);
	RbpEvicted	evicted;
	DirectoryCounts counts;
	uint32_t	in_first = 0;
	uint64_t	heat = 0;

	is_u64(rbp_directory_reserve(dir, &page, &evicted), RBP_INVALID_SLOT, "no extent, no slot");
	directory_extent_online(dir, 2, 0);
	directory_extent_online(dir, 2, 0);
	ok(directory_extent_is_online(dir, 2) && !directory_extent_is_online(dir, 1) &&
	   !directory_extent_is_online(dir, 4), "which are online");
	directory_counts(dir, &counts);
	ok(counts.online == 128 && counts.free == 128, "going online twice is once");
	directory_extent_online(dir, 0, 0);
	for (; page.block < 1000; page.block++)
		put(dir, &page, page.block);
	directory_counts(dir, &counts);
	is_u64(counts.remote, 256, "two extents full");
	for (page.block = 0; page.block < 1000; page.block++)
	{
		RbpLookup	at = rbp_directory_lookup(dir, REF(&page), page.block % 2 == 0);

		if (at.where == RBP_REMOTE)
		{
			if (at.slot / RBP_EXTENT_PAGES == 2)
			{
				in_first++;
				heat += 1 + (page.block % 2 == 0);
			}
			else if (at.slot / RBP_EXTENT_PAGES != 0)
				ok(false, "a slot of an extent that is offline");
		}
	}
	is_u64(rbp_directory_extent_used(dir, 2), in_first, "used");
	is_u64(directory_extent_heat(dir, 2), heat, "heat");
	is_u64(directory_extent_heat(dir, 1), 0, "heat of an extent that is offline");

	is_u64(directory_extent_offline(dir, 2), in_first, "offline: its pages are dropped");
	for (page.block = 0; page.block < 1000; page.block++)
	{
		RbpLookup	at = rbp_directory_lookup(dir, REF(&page), false);

		if (at.where == RBP_REMOTE && at.slot / RBP_EXTENT_PAGES != 0)
			ok(false, "a page in an extent that went offline");
	}
	directory_counts(dir, &counts);
	ok(counts.online == 128 && counts.remote == 256 - in_first && counts.free == 0, "the other extent has its own still");
	is_u64(directory_extent_offline(dir, 2), 0, "offline twice is once");
	check(dir, "extents");

	/* the flag alone makes lookups miss and reserve look elsewhere */
	{
		uint32_t	hidden = 0;
		RbpPageId	late = page_of(1001, 0);
		RbpVersion	version = version_of(dir, &late, 1);
		uint32_t	late_slot = rbp_directory_reserve(dir, &late, &evicted);

		rbp_directory_insert_staged(dir, REF(&late), &version, 0);
		directory_extent_close(dir, 0);
		ok(!directory_extent_absent(dir, 0) && directory_closed(dir) == 1,
		   "a closed extent is not absent yet");
		for (page.block = 0; page.block < 1000; page.block++)
			hidden += where(dir, &page) != RBP_ABSENT;
		is_u64(hidden, 0, "lookups miss from the first store on");
		for (page.block = 0; page.block < 100; page.block++)
		{
			uint32_t	slot = rbp_directory_reserve(dir, &page, &evicted);

			hidden += slot != RBP_INVALID_SLOT || evicted.n > 0;
		}
		is_u64(hidden, 0, "no slot of it is given out any more");
		is_u64(rbp_directory_publish(dir, &late, 0, late_slot, true), RBP_INSERT_OFFLINE,
			   "nothing is published into it any more");
		directory_extent_offline(dir, 0);
	}
	directory_counts(dir, &counts);
	ok(counts.online == 0 && counts.free == 0 && counts.remote == 0, "nothing is left");
	check(dir, "no extents");
	free(dir);
}

static void
test_extent_of_pusher(void)
{
	RbpDirectory *dir = make(1, 1);
	RbpPageId	page = page_of(1000, 0);
	RbpVersion	version = version_of(dir, &page, 1);
	RbpEvicted	evicted;
	uint32_t	slot;
	DirectoryCounts counts;

	rbp_directory_insert_staged(dir, REF(&page), &version, 0);
	slot = rbp_directory_reserve(dir, &page, &evicted);
	is_u64(directory_extent_offline(dir, 0), 0, "offline while a pusher has a slot");
	check(dir, "pusher has a lost slot");
	directory_counts(dir, &counts);
	ok(counts.online == 0 && counts.reserved == 1, "which is not online");
	is_u64(rbp_directory_publish(dir, &page, 0, slot, true), RBP_INSERT_OFFLINE, "cannot be published");
	is_u64(where(dir, &page), RBP_ABSENT, "and the staged copy is gone");
	check(dir, "pusher let go");

	/* back again meanwhile: what was pushed is not in the new memory */
	directory_extent_online(dir, 0, 0);
	rbp_directory_insert_staged(dir, REF(&page), &version, 0);
	slot = rbp_directory_reserve(dir, &page, &evicted);
	directory_extent_offline(dir, 0);
	directory_extent_online(dir, 0, 0);
	directory_counts(dir, &counts);
	ok(counts.online == 128 && counts.reserved == 1, "the pusher still has its slot");
	check(dir, "pusher has a slot from before");
	is_u64(rbp_directory_publish(dir, &page, 0, slot, true), RBP_INSERT_OFFLINE, "nor published into new memory");
	directory_counts(dir, &counts);
	ok(counts.online == 128 && counts.free == 128 && counts.reserved == 0, "then it is free");
	check(dir, "slot came back");

	rbp_directory_insert_staged(dir, REF(&page), &version, 0);
	slot = rbp_directory_reserve(dir, &page, &evicted);
	directory_extent_offline(dir, 0);
	directory_abandon(dir, &page, 0, slot);
	directory_counts(dir, &counts);
	ok(counts.online == 0 && counts.free == 0 && counts.reserved == 0, "abandoned while offline: stays offline");
	check(dir, "abandoned");
	free(dir);
}

/*
 * ---- views ---------------------------------------------------------------
 */

typedef struct Seen
{
	uint32_t	remote;
	uint32_t	staged;
	uint32_t	wrong;
} Seen;

static bool
see(const RbpPageId *page, const RbpLookup *at, void *arg)
{
	Seen	   *seen = arg;

	seen->remote += at->where == RBP_REMOTE;
	seen->staged += at->where == RBP_STAGED;
	if (page->rel != 1000 && page->rel != 1001)
		seen->wrong++;
	if (at->where == RBP_STAGED && at->slot != 9)
		seen->wrong++;
	return false;
}

static void
test_views(void)
{
	RbpDirectory *dir = make(64, 64);
	Seen		seen = {0};
	RbpPageId	page = page_of(1001, 5);
	RbpPageId	elsewhere = page_of(1000, 5);
	RbpVersion	version = version_of(dir, &page, 1);

	for (uint32_t i = 0; i < 1000; i++)
	{
		RbpPageId	a = page_of(1000, i);
		RbpPageId	b = page_of(1002, i);

		a.fork = i % 3;
		put(dir, &a, i);
		put(dir, &b, i);
	}
	elsewhere.space = 4;
	put(dir, &elsewhere, 1);
	rbp_directory_bump_generation(dir, 1002, 3, 0);
	rbp_directory_insert_staged(dir, REF(&page), &version, 9);
	for (int part = 0; part < RBP_PARTITIONS; part++)
		rbp_directory_visit(dir, part, false, see, &seen);
	ok(seen.remote == 1001 && seen.staged == 1 && seen.wrong == 0, "a visit shows each live page once");
	is_u64(directory_drop_relation(dir, 1000, 3), 1000, "those of a relation are dropped, of all forks");
	is_u64(directory_drop_relation(dir, 1001, 3), 1, "and what is staged");
	is_u64(directory_drop_relation(dir, 1002, 3), 0, "the dead are not counted");
	is_u64(where(dir, &elsewhere), RBP_REMOTE, "and leaves the same number in another space");
	check(dir, "views");
	free(dir);
}

/* More slots than a walk looks at under one hold of the lock. */
static void
test_long_walks(void)
{
	RbpDirectory *dir = make(RBP_CHUNK + 2, 0);
	Seen		seen = {0};
	uint32_t	n = 0;

	directory_extent_online(dir, RBP_CHUNK + 1, 0);
	for (uint32_t i = 0; i < 100; i++)
	{
		RbpPageId	page = page_of(1000, i);

		(void) put(dir, &page, i);
	}
	/* a partition has one slot there */
	for (uint32_t i = 0; i < 100; i++)
	{
		RbpPageId	page = page_of(1000, i);

		n += where(dir, &page) == RBP_REMOTE;
	}
	ok(n > 30, "long walks: %u pages are in the last extent", n);
	for (int part = 0; part < RBP_PARTITIONS; part++)
		rbp_directory_visit(dir, part, false, see, &seen);
	is_u64(seen.remote, n, "long walks: a visit shows them");
	is_u64(directory_drop_relation(dir, 1000, 3), n, "long walks: and they can be dropped");
	check(dir, "long walks");
	free(dir);
}

/*
 * ---- the check itself, and the switches -------------------------------------
 */

static void
test_check_fails(void)
{
	RbpDirectory *dir = make(4, 4);
	RbpPageId	page = page_of(1000, 0);
	RbpPartition *p;
	RbpEntry   *e;
	uint32_t	index;
	uint32_t	slot;
	uint32_t	save;

	for (; page.block < 300; page.block++)
		put(dir, &page, 1);
	page.block = 299;
	slot = rbp_directory_lookup(dir, REF(&page), false).slot;
	p = &dir->partitions[slot % RBP_PARTITIONS];
	index = slot % RBP_PARTITIONS * dir->nlocal + slot / RBP_PARTITIONS;
	e = rbp_entry(dir, index);
	check(dir, "before damage");

#define BROKEN(field, value, what) \
	do { \
		save = (uint32_t) (field); \
		(field) = (value); \
		ok(directory_check(dir) != NULL, "check notices " what " (%s)", \
		   directory_check(dir)); \
		(field) = save; \
	} while (0)

	BROKEN(e->block, 100000, "an entry in the wrong bucket");
	BROKEN(e->chain, index, "a chain without an end");
	BROKEN(e->chain, 1u << 30, "a wild chain");
	BROKEN(e->next, index, "a circular list");
	BROKEN(e->next, 1u << 30, "a wild list");
	BROKEN(e->flags, RBP_SLOT_MAIN, "a state that is not the list's");
	BROKEN(e->flags, RBP_SLOT_UNUSED, "a slot on a list though unused");
	BROKEN(e->flags, RBP_SLOT_SMALL | 7 << RBP_FREQ_SHIFT, "an access count too high");
	BROKEN(p->taken, p->taken + 1, "a wrong count of taken slots");
	BROKEN(p->reserved, 1, "a wrong count of reserved slots");
	BROKEN(p->lists[RBP_SLOT_SMALL].count, p->lists[RBP_SLOT_SMALL].count + 1, "a wrong count of a list");
	BROKEN(p->lists[RBP_SLOT_SMALL].tail, RBP_NIL, "a wrong tail");
	BROKEN(dir->states[slot / RBP_EXTENT_PAGES], 0, "a slot in use while its extent is offline");
	check(dir, "after repair");
#undef BROKEN

	/* two entries of one page: rename another of the same bucket */
	{
		RbpEntry	old = *e;
		bool		done = false;

		for (uint32_t b = 0; b < dir->nbuckets * RBP_PARTITIONS && !done; b++)
		{
			uint32_t	first = ~rbp_array(dir, dir->buckets)[b];

			if (first != RBP_NIL && rbp_entry(dir, first)->chain != RBP_NIL)
			{
				RbpEntry   *second = rbp_entry(dir, rbp_entry(dir, first)->chain);

				old = *second;
				second->block = rbp_entry(dir, first)->block;
				ok(directory_check(dir) != NULL, "check notices a page with two entries (%s)",
				   directory_check(dir));
				second->block = old.block;
				done = true;
			}
		}
		ok(done, "there was a chain of two to try it on");
	}
	check(dir, "after repair");
	free(dir);
}

static void
test_mutations(void)
{
	RbpDirectory *dir = make(4, 4);
	RbpPageId	page = page_of(1000, 0);
	RbpVersion	version = version_of(dir, &page, 1);
	uint32_t	slot;
	RbpEvicted	evicted;

	put(dir, &page, 1);
	rbp_injection_point = "no-invalidate";
	rbp_directory_invalidate(dir, &page, true);
	is_u64(where(dir, &page), RBP_REMOTE, "without invalidation the page survives a write");
	rbp_injection_point = "no-removal";
	rbp_directory_invalidate(dir, &page, false);
	is_u64(where(dir, &page), RBP_REMOTE, "without removal, a truncation of few blocks");
	rbp_injection_point = "no-generation";
	rbp_directory_bump_generation(dir, page.rel, page.space, page.fork);
	is_u64(where(dir, &page), RBP_REMOTE, "without generations, one of many");
	rbp_injection_point = "";
	rbp_directory_invalidate(dir, &page, true);
	rbp_directory_bump_generation(dir, page.rel, page.space, page.fork);

	rbp_injection_point = "no-capture-stamp";
	is_u64(rbp_directory_insert_staged(dir, REF(&page), &version, 0), RBP_INSERTED, "without stamps a stale version is taken");
	is_u64(where(dir, &page), RBP_STAGED, "and served");
	slot = rbp_directory_reserve(dir, &page, &evicted);
	rbp_injection_point = "no-publish-check";
	rbp_directory_invalidate(dir, &page, true);
	is_u64(rbp_directory_publish(dir, &page, 0, slot, true), RBP_INSERTED, "without the check a dead page is published");
	is_u64(where(dir, &page), RBP_REMOTE, "and served");
	rbp_injection_point = "";
	check(dir, "mutations");
	free(dir);
}

/* The next page that belongs to the partition. */
static RbpPageId
next_of(uint32_t part, uint32_t *block)
{
	RbpPageId	page = page_of(3000, (*block)++);

	while (rbp_hash_partition(rbp_page_hash(&page)) != part)
		page.block = (*block)++;
	return page;
}

/* Few extents of many that there can be: slots are found, and looks bounded. */
static void
test_fresh_among_many(void)
{
	const uint32_t many = 3 * RBP_FRESH_STEPS;
	RbpDirectory *dir = make(many, 2);
	const RbpPartition *p = &dir->partitions[7];
	uint32_t	block = 0;
	uint32_t	before;
	RbpEvicted	evicted;
	RbpPageId	page;

	for (int i = 0; i < 3; i++)
	{
		page = next_of(7, &block);
		(void) put(dir, &page, block);
	}
	is_u64(p->evictions, 1, "the third page has to take another one's slot");
	directory_extent_online(dir, 2, 0);
	directory_extent_online(dir, 3, 0);
	for (int i = 0; i < 2; i++)
	{
		page = next_of(7, &block);
		(void) put(dir, &page, block);
	}
	is_u64(p->evictions, 1, "memory that came is used before others have to go");

	directory_extent_online(dir, many - 1, 0);
	directory_extent_close(dir, many - 1);
	for (uint32_t extent = 0; extent < 4; extent++)
		directory_extent_drain(dir, extent);
	before = p->scan;
	page = next_of(7, &block);
	ok(rbp_directory_reserve(dir, &page, &evicted) == RBP_INVALID_SLOT && evicted.n == 0,
	   "nothing is put where it drains");
	ok(p->scan - before <= RBP_FRESH_STEPS, "looks under one hold of the lock: %u",
	   p->scan - before);
	check(dir, "few among many");
	free(dir);
}

int
main(void)
{
	test_size();
	test_layout();
	test_stamps();
	test_life_of_a_page();
	test_invalidate();
	test_removal();
	test_generations();
	test_sweep_steps();
	test_accounts();
	test_fresh();
	test_moving();
	test_drop_if_same();
	test_eviction();
	test_room();
	test_extents();
	test_fresh_among_many();
	test_extent_of_pusher();
	test_views();
	test_long_walks();
	test_check_fails();
	test_mutations();
	return done_testing();
}
