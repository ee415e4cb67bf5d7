/*-------------------------------------------------------------------------
 *
 * test_directory_reopen.c
 *	  What is left of a directory after a crash, where all was well before it.
 *	  (test_directory_killed.c has the others.)  And what an image has of it.
 *
 *-------------------------------------------------------------------------
 */
#include "base/geometry.h"
#include "buffer/directory.h"
#include "buffer/directory_internal.h"
#include "buffer/page.h"
#include "buffer/s3fifo.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "directory_check.h"
#include "random.h"
#include "tap.h"

#define STAGING		64
#define BUFFERS		1000

static RbpDirectory *
make(uint32_t extents, uint32_t online)
{
	uint32_t	slots = extents * RBP_EXTENT_PAGES;
	size_t		size = rbp_directory_size(slots, STAGING, BUFFERS);
	void	   *mem = aligned_alloc(64, size);
	RbpDirectory *dir;

	memset(mem, 0, size);
	dir = directory_init(mem, slots, STAGING, BUFFERS);
	for (uint32_t i = 0; i < online; i++)
		directory_extent_online(dir, i, i);
	return dir;
}

static RbpPageId
page_of(uint32_t rel, uint32_t block)
{
	return (RbpPageId)
	{
		.rel = rel,.block = block,.space = 3,.fork = 0
	};
}

static bool
stage(RbpDirectory *dir, const RbpPageId *page, uint64_t hash, uint32_t staging_slot)
{
	RbpVersion	version;

	rbp_directory_note_version(dir, REF(page), &version);
	version.hash = hash;
	return rbp_directory_insert_staged(dir, REF(page), &version, staging_slot) == RBP_INSERTED;
}

/* Through staging into a remote slot; the slot, or RBP_INVALID_SLOT. */
static uint32_t
put(RbpDirectory *dir, const RbpPageId *page, uint64_t hash, int *evicted_pages)
{
	RbpEvicted	evicted;
	uint32_t	slot;

	if (!stage(dir, page, hash, 0))
		return RBP_INVALID_SLOT;
	slot = rbp_directory_reserve(dir, page, &evicted);
	*evicted_pages += evicted.n;
	if (rbp_directory_publish(dir, page, 0, slot, slot != RBP_INVALID_SLOT) != RBP_INSERTED)
		slot = RBP_INVALID_SLOT;
	return slot;
}

static RbpLookup
look(RbpDirectory *dir, const RbpPageId *page)
{
	return rbp_directory_lookup(dir, REF(page), false);
}

static RbpEntry *
entry_of(RbpDirectory *dir, const RbpPageId *page)
{
	return rbp_entry(dir, rbp_slot_index(dir, look(dir, page).slot));
}

static void
check(RbpDirectory *dir, const char *what)
{
	const char *problem = directory_check(dir);

	if (problem == NULL)
		problem = directory_check_sums(dir);
	ok(problem == NULL, "%s: check%s%s", what, problem ? ": " : "", problem ? problem : "");
}

/* The page after this one, of the same fork, that belongs to the partition. */
static RbpPageId
next_of(uint32_t part, RbpPageId page)
{
	do
		page.block++;
	while (rbp_hash_partition(rbp_page_hash(&page)) != part);
	return page;
}

/*
 * ---- everything at once ----------------------------------------------------------
 */

#define EXTENTS		7
#define RELS		4
#define BLOCKS		150
#define KEPT_REL	1001		/* by policy */
#define DEAD_REL	1002		/* by generation */

typedef struct Before
{
	RbpPageId	page;
	RbpLookup	at;
	RbpVersion	version;
} Before;

static Before before[RELS * BLOCKS];

/* Pages in all states; extents 0 and 1 are online, 2 drains, 3 is closed, 4 absent, 5 fresh. */
static RbpDirectory *
make_all(void)
{
	RbpDirectory *dir = make(EXTENTS, 6);
	RbpPageId	page = page_of(999, 0);
	RbpEvicted	evicted;
	int			unused = 0;

	directory_extent_close(dir, 5);
	rbp_directory_set_keep_max(dir, 1000);
	rbp_directory_set_policy(dir, KEPT_REL, 3, RBP_POLICY_KEEP);
	rbp_directory_set_database(dir, 4, 3);
	rbp_directory_set_limit(dir, 3, 100000);
	for (uint32_t i = 0; i < RELS * BLOCKS; i++)
	{
		Before	   *b = &before[i];

		b->page = page_of(1000 + i % RELS, i / RELS);
		if (b->page.block >= BLOCKS / 2)
			b->page.space = 4;
		(void) put(dir, &b->page, i + 1, &unused);
		/* some come from main to be there when others have to go */
		for (uint32_t n = i % 5; n > 2; n--)
			(void) rbp_directory_lookup(dir, REF(&b->page), true);
	}
	for (uint32_t i = 0; i < RELS * BLOCKS; i++)
		rbp_directory_note_version(dir, REF(&before[i].page), &before[i].version);
	for (uint32_t i = 0; i < RELS * BLOCKS; i += 50)
		rbp_directory_invalidate(dir, &before[i].page, true);

	for (uint32_t i = 1; i < 20; i++)
	{
		page.block = i;
		(void) stage(dir, &page, i, i);
		if (i < 10)
			(void) rbp_directory_reserve(dir, &page, &evicted);
	}
	rbp_directory_bump_generation(dir, DEAD_REL, 3, 0);
	rbp_directory_bump_generation(dir, DEAD_REL, 4, 0);
	directory_extent_drain(dir, 2);
	directory_extent_close(dir, 4);
	while (directory_collect(dir, 1) > 0)
		 /* go on */ ;
	directory_extent_close(dir, 3);
	directory_extent_online(dir, 5, 5);
	for (uint32_t i = 0; i < RELS * BLOCKS; i++)
		before[i].at = look(dir, &before[i].page);
	check(dir, "before a crash");
	return dir;
}

static void
compare_all(RbpDirectory *dir, const char *what)
{
	DirectoryCounts counts;
	uint32_t	same = 0;
	uint32_t	absent = 0;
	uint32_t	dead = 0;
	uint32_t	void_claims = 0;
	RbpPageId	page = page_of(999, 0);
	uint32_t	staged = 0;

	for (uint32_t i = 0; i < RELS * BLOCKS; i++)
	{
		RbpLookup	at = look(dir, &before[i].page);
		RbpVersion	now;

		if (at.where != before[i].at.where || at.slot != before[i].at.slot || at.hash != before[i].at.hash)
			continue;
		same++;
		absent += at.where == RBP_ABSENT;
		dead += at.where != RBP_ABSENT && before[i].page.rel == DEAD_REL;
		rbp_directory_note_version(dir, REF(&before[i].page), &now);
		void_claims += now.stamp != before[i].version.stamp || now.generation != before[i].version.generation;
	}
	is_u64(same, RELS * BLOCKS, "%s: all pages are where they were, or absent as they were", what);
	ok(absent > BLOCKS + 20 && absent < 3 * BLOCKS, "%s: %u are absent", what, absent);
	is_u64(dead, 0, "%s: none of the older generation is there", what);
	ok(void_claims > BLOCKS && void_claims < 2 * BLOCKS,
	   "%s: claims that were void still are (%u)", what, void_claims);
	for (page.block = 1; page.block < 20; page.block++)
		staged += look(dir, &page).where != RBP_ABSENT;
	is_u64(staged, 0, "%s: staged pages are gone", what);

	directory_counts(dir, &counts);
	is_u64(counts.remote, RELS * BLOCKS - absent, "%s: pages on donors", what);
	is_u64(counts.small + counts.main, counts.remote, "%s: each in a queue", what);
	ok(counts.small > 20 && counts.main > BLOCKS / 4, "%s: %u in small, %u in main", what,
	   (unsigned) counts.small, (unsigned) counts.main);
	is_u64(counts.kept + counts.staged + counts.reserved, 0, "%s: none kept, staged, reserved", what);
	is_u64(counts.online, 4 * RBP_EXTENT_PAGES, "%s: slots online", what);
	is_u64(counts.free, counts.online - counts.remote, "%s: the others are free", what);
	is_u64(rbp_directory_database_pages(dir, 3), counts.remote, "%s: the database's pages, of both spaces", what);
	check(dir, what);
}

static void
test_all(void)
{
	RbpDirectory *crashed = make_all();
	RbpDirectory *dir = crashed;
	void	   *mem = aligned_alloc(64, (directory_copy_size(dir) + 63) & ~(size_t) 63);
	uint64_t	heat[3];
	DirectoryCounts counts;
	RbpPageId	page = page_of(2000, 0);
	uint64_t	hash = rbp_page_hash(&page);
	uint32_t	part = rbp_hash_partition(hash);
	uint32_t	at = 0;
	uint32_t	rel;
	uint16_t	space;
	int			evicted = 0;
	uint32_t	fits = 0;
	uint32_t	swept = 0;
	uint32_t	dead = 0;

	directory_counts(dir, &counts);
	ok(counts.kept > 20 && counts.staged > 10 && counts.reserved == 9 && counts.main > 20,
	   "there are pages of all kinds: %u kept, %u staged", (unsigned) counts.kept, (unsigned) counts.staged);
	for (uint32_t i = 0; i < 3; i++)
		heat[i] = directory_extent_heat(dir, i);
	rbp_ghost_add(dir, part, hash);

	/* elsewhere, so that nothing leads back to where it was */
	dir = directory_reopen_copy(dir, mem, BUFFERS);
	for (uint32_t i = 0; i < EXTENTS; i++)
		directory_extent_close(crashed, i);
	free(crashed);
	directory_build(dir, 3);
	compare_all(dir, "reopened");
	for (uint32_t i = 0; i < 3; i++)
		is_u64(directory_extent_heat(dir, i), heat[i], "and access counts are what they were");
	for (int i = 0; i < RBP_PARTITIONS; i++)
	{
		swept += dir->partitions[i].swept == rbp_directory_bumps(dir);
		(void) rbp_directory_sweep_step(dir, i, &dead);
	}
	ok(swept == RBP_PARTITIONS && dead == 0, "nothing is left to be swept, nor looked for");
	ok(rbp_ghost_take(dir, part, hash), "ghosts are remembered");
	ok(!rbp_directory_next_policy(dir, &at, &rel, &space) &&
	   rbp_directory_policy(dir, KEPT_REL, 3) == RBP_POLICY_DEFAULT &&
	   rbp_directory_file_policy(dir, KEPT_REL, 3).kept == 0 &&
	   dir->npolicies == 0 && rbp_directory_limit(dir, 3) == -1 && rbp_directory_keep_room(dir) == 0,
	   "policies and limits are forgotten");

	/* twice in a row, and built one by one in between */
	directory_reopen(dir, BUFFERS);
	directory_build(dir, 7);
	directory_reopen(dir, BUFFERS);
	directory_build_all(dir);
	directory_build_all(dir);
	compare_all(dir, "twice");

	is_u64(directory_closed(dir), 1, "the closed extent still is");
	while (directory_collect(dir, 1) > 0)
		 /* go on */ ;
	ok(directory_extent_absent(dir, 3), "it can be collected");
	directory_extent_online(dir, 3, 6);
	directory_extent_undrain(dir, 2);
	check(dir, "extents that came back");
	directory_counts(dir, &counts);
	for (uint64_t room = counts.free; room > 0; room--)
	{
		/* whichever partition has room */
		do
			page.block++;
		while (!directory_has_room(dir, &page));
		fits += put(dir, &page, 1, &evicted) != RBP_INVALID_SLOT;
	}
	ok(fits == counts.free && evicted == 0, "all free slots take a page (%u)", fits);
	ok(rbp_directory_is_full(dir), "and there are no more");
	check(dir, "full");

	rbp_directory_set_keep_max(dir, 1000);
	rbp_directory_set_policy(dir, KEPT_REL, 3, RBP_POLICY_KEEP);
	for (int i = 0; i < RBP_PARTITIONS; i++)
		(void) rbp_directory_apply_policies(dir, i);
	directory_counts(dir, &counts);
	ok(counts.kept > 20, "the policy is applied again (%u kept)", (unsigned) counts.kept);
	check(dir, "with a policy");
	free(mem);
}

/*
 * ---- extents ------------------------------------------------------------------------
 */

static void
test_extents(void)
{
	uint64_t	mem[8];
	uint64_t	copy[8];
	RbpExtents	x;
	const uint8_t states[] = {
		RBP_EXTENT_ABSENT, RBP_EXTENT_FRESH, RBP_EXTENT_ONLINE, RBP_EXTENT_ONLINE + 5,
		RBP_EXTENT_DRAINING, RBP_EXTENT_CLOSED, 200, RBP_EXTENT_ABSENT, RBP_EXTENT_ABSENT
	};
	const uint8_t after[] = {
		RBP_EXTENT_ABSENT, RBP_EXTENT_FRESH, RBP_EXTENT_TOUCHED, RBP_EXTENT_CLOSED,
		RBP_EXTENT_DRAINING, RBP_EXTENT_CLOSED, RBP_EXTENT_CLOSED, RBP_EXTENT_ABSENT, RBP_EXTENT_ABSENT
	};
	uint32_t	closed[4];

	ok(rbp_extents_size(sizeof(states)) <= sizeof(mem), "there is room for the states");
	rbp_extents_init(&x, mem, 1000, sizeof(states));
	rbp_extent_bring_online(&x, 1001, 77, RBP_EXTENT_FRESH);
	rbp_extent_bring_online(&x, 1002, 78, RBP_EXTENT_FRESH);
	memcpy(x.states, states, sizeof(states));
	x.regions[0] = x.regions[3] = RBP_MAX_REGIONS;
	x.open = x.draining = x.closed = x.top = x.drop_at = 99;
	memcpy(copy, mem, sizeof(mem));
	rbp_extents_reopen(&x, copy);
	ok(memcmp(x.states, after, sizeof(after)) == 0 && x.states != (uint8_t *) mem && x.n == sizeof(states) && x.first == 1000,
	   "states are kept, but for how many slots are fresh");
	is_u64(rbp_extent_region(&x, 1001), 77, "and regions");
	is_u64(rbp_extent_region(&x, 1003), 0, "but for one that cannot be, whose extent is closed");
	is_u64(x.open, 2, "open");
	is_u64(x.draining, 1, "draining");
	is_u64(x.closed, 3, "closed");
	is_u64(x.top, 7, "top");
	is_u64(x.onlinings, 2, "onlinings go on");
	is_u64(rbp_extents_next_closed(&x, closed, 4), 3, "what is closed is found");
	ok(closed[0] == 1003 && closed[1] == 1005 && closed[2] == 1006, "all of it");
}

/* A slot that was reserved while its extent was lost is not lost for good. */
static void
test_lost(void)
{
	RbpDirectory *dir = make(1, 1);
	RbpPageId	page = page_of(1000, 0);
	uint32_t	part = rbp_hash_partition(rbp_page_hash(&page));
	RbpEvicted	evicted;
	uint32_t	slot = rbp_directory_reserve(dir, &page, &evicted);

	ok(slot != RBP_INVALID_SLOT, "a slot is reserved");
	directory_extent_close(dir, 0);
	is_u64(directory_collect(dir, 1), 1, "its extent is lost");
	directory_extent_online(dir, 0, 0);
	is_u64(rbp_directory_reserve(dir, &page, &evicted), RBP_INVALID_SLOT, "and back; the slot is not taken twice");
	directory_extent_close(dir, 0);
	check(dir, "lost");

	directory_reopen(dir, BUFFERS);
	check(dir, "lost, after a crash");
	directory_extent_online(dir, 0, 1);
	is_u64(rbp_directory_reserve(dir, &page, &evicted), slot, "after a crash it is fresh");
	page = next_of(part, page);
	is_u64(rbp_directory_reserve(dir, &page, &evicted), RBP_INVALID_SLOT, "once");
	rbp_directory_unreserve(dir, slot);
	check(dir, "lost, and back");

	/* reserved, and the extent touched by others: nobody holds it any more */
	is_u64(rbp_directory_reserve(dir, &page, &evicted), slot, "it is reserved again");
	directory_reopen(dir, BUFFERS);
	is_u64(rbp_directory_reserve(dir, &page, &evicted), slot, "and after a crash can be");
	check(dir, "reserved, after a crash");

	/* lost once more, in this life */
	directory_extent_close(dir, 0);
	is_u64(directory_collect(dir, 1), 1, "it is lost again");
	directory_extent_online(dir, 0, 0);
	is_u64(rbp_directory_reserve(dir, &page, &evicted), RBP_INVALID_SLOT, "and has its owner again");
	check(dir, "lost again");
	free(dir);
}

/* How many bytes of it have memory? */
static size_t
resident(const RbpDirectory *dir, size_t from, size_t to)
{
	size_t		page = (size_t) sysconf(_SC_PAGESIZE);
	size_t		start = (from + page - 1) / page * page;
	size_t		pages = (to - start) / page;
	unsigned char *in = malloc(pages);
	size_t		n = 0;

	if (mincore((char *) dir + start, pages * page, in) != 0)
		abort();
	for (size_t i = 0; i < pages; i++)
		n += in[i] & 1;
	free(in);
	return n * page;
}

static void
test_untouched(void)
{
	const uint32_t extents = 8192;	/* 256 kB of entries for each partition */
	size_t		size = rbp_directory_size(RBP_EXTENT_SLOT(extents), STAGING, BUFFERS);
	void	   *mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	RbpDirectory *dir = directory_init(mem, RBP_EXTENT_SLOT(extents), STAGING, BUFFERS);
	size_t		staging = dir->entries + (size_t) dir->max_slots * sizeof(RbpEntry);
	uint32_t	pages = 0;
	int			evicted = 0;
	DirectoryCounts counts;
	const size_t step = 2 * (size_t) sysconf(_SC_PAGESIZE);

	directory_build_all(dir);
	ok(resident(dir, dir->entries, staging) + resident(dir, dir->prev, dir->generations) <= 2 * step,
	   "an empty directory has no memory for slots");
	for (uint32_t i = 0; i < extents - 1; i++)
		directory_extent_online(dir, i, 0);
	directory_extent_close(dir, 100);
	for (RbpPageId page = page_of(1000, 0); page.block < 50; page.block++)
		pages += put(dir, &page, 1, &evicted) != RBP_INVALID_SLOT;
	is_u64(pages, 50, "few pages of many slots");
	ok(resident(dir, dir->entries, staging) <= RBP_PARTITIONS * step, "take little");
	directory_reopen(dir, BUFFERS);
	directory_build_all(dir);
	ok(resident(dir, dir->entries, staging) <= RBP_PARTITIONS * step &&
	   resident(dir, dir->prev, dir->buckets) <= RBP_PARTITIONS * step,
	   "after a crash, too");
	directory_counts(dir, &counts);
	is_u64(counts.remote, 50, "and are there");
	munmap(mem, size);
}

/*
 * ---- who builds ----------------------------------------------------------------------
 */

/* Some function is the first that locks a partition; false if there are no more. */
static bool
use_first(RbpDirectory *dir, int which, const RbpPageId *page, const RbpLookup *at)
{
	const int	part = (int) rbp_hash_partition(rbp_page_hash(page));
	uint32_t	extent = at->slot / RBP_EXTENT_PAGES;
	uint32_t	next = (uint32_t) part;
	uint32_t	freed = 0;
	RbpMovable	movable = {*page, *at};
	RbpVersion	version;
	RbpEvicted	evicted;
	RbpTierPages counts;

	rbp_directory_note_version(dir, REF(page), &version);
	switch (which)
	{
		case 0:
			return rbp_directory_lookup(dir, REF(page), true).where == RBP_REMOTE;
		case 1:
			return rbp_directory_drop_if_same(dir, page, at);
		case 2:
			return rbp_directory_invalidate(dir, page, true) == RBP_REMOTE;
		case 3:
			return rbp_directory_insert_staged(dir, REF(page), &version, 1) == RBP_INSERT_PRESENT;
		case 4:
			return rbp_directory_reserve(dir, page, &evicted) != at->slot && evicted.n == 0;
		case 5:
			directory_extent_close(dir, extent);
			return directory_collect(dir, 1) == 1 && rbp_directory_lookup(dir, REF(page), false).where == RBP_ABSENT;
		case 6:
			return rbp_directory_movable(dir, extent, &next, &movable, 1) == 1 && movable.at.hash == at->hash;
		case 7:
			return rbp_directory_extent_used(dir, extent) > 0;
		case 8:
			rbp_directory_bump_generation(dir, page->rel, page->space, page->fork);
			return !rbp_directory_sweep_step(dir, part, &freed) && freed == 0;
		case 9:
			rbp_directory_counts(dir, &counts);
			return counts.remote > 100;
		case 10:
			return directory_has_room(dir, page);
		case 11:
			return rbp_directory_keep(dir, page);
		case 12:
			rbp_directory_set_policy(dir, page->rel, page->space, RBP_POLICY_NONE);
			return rbp_directory_apply_policies(dir, part) > 0;
		case 13:
			for (int i = 0; i < RBP_PARTITIONS; i++)
				if (i != part)
					directory_build(dir, i);
			rbp_directory_set_limit(dir, page->space, 0);
			return rbp_directory_trim(dir, part, page->space) > 0;
		case 14:
			/* built by reserve() */
			next = rbp_directory_reserve(dir, page, &evicted);
			return rbp_directory_move(dir, &movable, next) == RBP_INSERTED &&
				rbp_directory_lookup(dir, REF(page), false).slot == next;
		default:
			return false;
	}
}

static void
test_first_use(void)
{
	RbpDirectory *dir = make(9, 8);
	void	   *mem = aligned_alloc(64, (directory_copy_size(dir) + 63) & ~(size_t) 63);
	RbpPageId	page;
	RbpLookup	at;
	int			unused = 0;

	for (page = page_of(1000, 0); page.block < 200; page.block++)
		(void) put(dir, &page, 1, &unused);
	page.block = 100;
	at = look(dir, &page);
	for (int which = 0; which < 15; which++)
	{
		RbpDirectory *copy = directory_reopen_copy(dir, mem, BUFFERS);
		bool		done;

		/* nothing but the entries is of use */
		memset((char *) copy + copy->prev, 0x55, copy->ghosts - copy->prev);
		done = use_first(copy, which, &page, &at);
		ok(done && copy->partitions[rbp_hash_partition(rbp_page_hash(&page))].built,
		   "function %d finds a partition built", which);
		check(copy, "used");
	}
	free(mem);
	free(dir);
}

#define WAITERS		4

static RbpDirectory *awaited;

static void *
wait_for_lock(void *page)
{
	(void) look(awaited, page);
	return NULL;
}

/* Many wait for the lock of a partition that is not built: one of them builds it. */
static void
test_build_once(void)
{
	RbpDirectory *dir = make(8192, 8192);	/* so that it takes its time */
	RbpPageId	page;
	int			unused = 0;
	DirectoryCounts counts;

	for (page = page_of(1000, 0); page.block < 200; page.block++)
		(void) put(dir, &page, 1, &unused);
	awaited = dir;
	directory_reopen(dir, BUFFERS);
	for (page.block = 0; page.block < 20; page.block++)
	{
		RbpLock    *lock = &dir->partitions[rbp_hash_partition(rbp_page_hash(&page))].lock;
		pthread_t	threads[WAITERS];

		rbp_lock_exclusive(lock);
		for (int i = 0; i < WAITERS; i++)
			if (pthread_create(&threads[i], NULL, wait_for_lock, &page) != 0)
				abort();
		usleep(2000);
		rbp_lock_release(lock);
		for (int i = 0; i < WAITERS; i++)
			pthread_join(threads[i], NULL);
	}
	directory_counts(dir, &counts);
	is_u64(counts.remote, 200, "a partition is built once, whoever waits for it");
	check(dir, "built once");
	free(dir);
}

/*
 * ---- what a crashing process has overwritten ----------------------------------------
 */

static void
test_names(void)
{
	RbpDirectory *dir = make(3, 3);
	RbpPageId	a = page_of(1000, 0);
	uint32_t	part = rbp_hash_partition(rbp_page_hash(&a));
	RbpPageId	b = next_of(part, a);
	RbpPageId	c = next_of(part, b);
	RbpPageId	staged = page_of(1000, 7);
	RbpPageId	other = a;
	RbpPageId	page;
	RbpEntry	was;
	uint64_t	hash;
	int			unused = 0;

	(void) put(dir, &a, 111, &unused);
	(void) put(dir, &b, 222, &unused);
	(void) stage(dir, &staged, 333, 5);
	is_u64(look(dir, &a).hash, 111, "a page has its hash");
	is_u64(look(dir, &staged).hash, 333, "a staged one, too");
	is_u64(entry_of(dir, &a)->hash, 111 ^ rbp_page_hash(&a), "of which its name is a part");
	ok(rbp_directory_staged_info(dir, 5, &page, &hash) && hash == 333 && page.block == 7, "the pusher gets the hash");
	rbp_entry(dir, dir->max_slots + 5)->fork = 1;
	(void) rbp_directory_staged_info(dir, 5, &page, &hash);
	ok(hash != 333, "but not that of another name");

	was = *entry_of(dir, &a);
	entry_of(dir, &a)->block = c.block;
	directory_reopen(dir, BUFFERS);
	ok(look(dir, &c).where == RBP_REMOTE && look(dir, &c).hash != 111, "with another's name it does not verify");
	is_u64(look(dir, &a).where, RBP_ABSENT, "and the page is gone");
	check(dir, "renamed");
	entry_of(dir, &c)->block = was.block;
	directory_reopen(dir, BUFFERS);
	is_u64(look(dir, &a).hash, 111, "with its own it does");

	do
		other.block++;
	while (rbp_hash_partition(rbp_page_hash(&other)) == part);
	entry_of(dir, &a)->block = other.block;
	directory_reopen(dir, BUFFERS);
	check(dir, "a page of another partition");
	ok(look(dir, &other).where == RBP_ABSENT && look(dir, &a).where == RBP_ABSENT &&
	   look(dir, &b).where == RBP_REMOTE, "is dropped");
	free(dir);
}

static void
test_bad_numbers(void)
{
	RbpDirectory *dir = make(3, 3);
	RbpPageId	a = page_of(1000, 0);
	RbpPageId	bad = page_of(1000, 0);
	RbpEntry   *e;
	DirectoryCounts counts;
	int			unused = 0;

	(void) put(dir, &a, 111, &unused);
	bad.space = RBP_INVALID_SPACE;
	bad = next_of(rbp_hash_partition(rbp_page_hash(&a)), bad);
	e = entry_of(dir, &a);
	e->space = bad.space;
	e->block = bad.block;
	directory_reopen(dir, BUFFERS);
	directory_counts(dir, &counts);
	is_u64(counts.remote, 0, "a page of a space that cannot be is dropped");
	check(dir, "a bad space");

	(void) put(dir, &a, 111, &unused);
	dir->databases[a.space] = UINT16_MAX;
	directory_reopen(dir, BUFFERS);
	directory_build_all(dir);
	is_u64(rbp_directory_database_pages(dir, a.space), 1, "a database that cannot be is the space's own");
	check(dir, "a bad database");
	free(dir);
}

/*
 * ---- an image -------------------------------------------------------------------------
 */

static struct
{
	void	   *pages;
	size_t		bytes;
}			stored[RBP_PARTITIONS];

static void
store_all(RbpDirectory *dir, size_t max)
{
	for (int i = 0; i < RBP_PARTITIONS; i++)
	{
		void	   *pages = malloc(max);
		size_t		bytes = rbp_directory_store(dir, i, pages, max);

		/* not before: it may be what the directory loads */
		free(stored[i].pages);
		stored[i].pages = pages;
		stored[i].bytes = bytes;
	}
}

static void *
load_stored(int partition, size_t *bytes)
{
	void	   *pages = malloc(stored[partition].bytes);

	*bytes = stored[partition].bytes;
	if (pages == NULL || stored[partition].pages == NULL)
	{
		free(pages);
		return NULL;
	}
	return memcpy(pages, stored[partition].pages, *bytes);
}

/* What the next start has of the directory, which was stored. */
static RbpDirectory *
start(RbpDirectory *dir)
{
	size_t		size = (directory_copy_size(dir) + 63) & ~(size_t) 63;
	char	   *mem = aligned_alloc(64, size);
	RbpExtents *extents = (RbpExtents *) (mem + dir->bytes);
	RbpPiece	from[RBP_DIRECTORY_PIECES];
	RbpPiece	to[RBP_DIRECTORY_PIECES];
	RbpDirectory *next = (RbpDirectory *) mem;

	memset(mem, 0, size);
	memcpy(extents, dir->extents, sizeof(RbpExtents));
	memcpy(extents + 1, dir->extents->regions, rbp_extents_size(dir->extents->n));
	rbp_extents_reopen(extents, extents + 1);
	(void) rbp_directory_open(mem, false, extents, STAGING, BUFFERS, 0);
	rbp_directory_pieces(dir, from);
	rbp_directory_pieces(next, to);
	for (int i = 0; i < RBP_DIRECTORY_PIECES; i++)
		memcpy(to[i].mem, from[i].mem, from[i].bytes);
	(void) rbp_directory_open(mem, true, extents, STAGING, BUFFERS, 0);
	rbp_directory_load_by(next, load_stored);
	return next;
}

/* How many pages are where they were, or absent as they were? */
static uint32_t
same_as_before(RbpDirectory *dir)
{
	uint32_t	same = 0;

	for (uint32_t i = 0; i < RELS * BLOCKS; i++)
	{
		RbpLookup	at = look(dir, &before[i].page);

		same += at.where == before[i].at.where &&
			(at.where == RBP_ABSENT || (at.slot == before[i].at.slot && at.hash == before[i].at.hash));
	}
	return same;
}

static void
test_image(void)
{
	RbpDirectory *dir = make_all();
	size_t		max = EXTENTS * RBP_ENTRY_BYTES;
	RbpDirectory *next;
	DirectoryCounts was;
	DirectoryCounts counts;
	uint64_t	bytes = 0;
	uint32_t	same;

	directory_counts(dir, &was);
	/* a process that was killed has any lock */
	for (int i = 0; i < RBP_PARTITIONS; i++)
		rbp_lock_exclusive(&dir->partitions[i].lock);
	store_all(dir, max);
	for (int i = 0; i < RBP_PARTITIONS; i++)
	{
		rbp_lock_release(&dir->partitions[i].lock);
		bytes += stored[i].bytes;
	}
	is_u64(bytes, was.remote * RBP_ENTRY_BYTES, "an image has the pages on donors, and nothing else");

	next = start(dir);
	is_u64(same_as_before(next), RELS * BLOCKS, "image: all pages are where they were");
	for (uint32_t i = 0; i < 3; i++)
		is_u64(directory_extent_heat(next, i), directory_extent_heat(dir, i), "image: and access counts what they were");
	directory_counts(next, &counts);
	ok(counts.remote == was.remote && counts.free == counts.online - counts.remote && counts.kept + counts.staged + counts.reserved == 0,
	   "image: the others are free");
	check(next, "image");

	/*
	 * by a directory that nobody has used since a crash, or since it was
	 * loaded itself
	 */
	directory_reopen(dir, BUFFERS);
	store_all(dir, max);
	directory_counts(dir, &was);
	is_u64(counts.small, was.small, "image: pages are in their queues");
	free(next);
	next = start(dir);
	store_all(next, max);
	free(next);
	next = start(dir);
	is_u64(same_as_before(next), RELS * BLOCKS, "image of what was not built: all pages are there");

	/* a crash before all of it was loaded */
	free(next);
	next = start(dir);
	for (int i = 0; i < RBP_PARTITIONS; i += 2)
		directory_build(next, i);
	/* and a partition of which a part was */
	memcpy(rbp_entry(next, next->nlocal), stored[1].pages, stored[1].bytes);
	rbp_extents_reopen((RbpExtents *) (uintptr_t) next->extents, (char *) next->extents + sizeof(RbpExtents));
	(void) rbp_directory_open(next, true, next->extents, STAGING, BUFFERS, 0);
	same = 0;
	for (uint32_t i = 0; i < RELS * BLOCKS; i++)
	{
		bool		loaded = rbp_hash_partition(rbp_page_hash(&before[i].page)) % 2 == 0;
		RbpLookup	at = look(next, &before[i].page);

		same += at.where == (loaded ? before[i].at.where : RBP_ABSENT);
	}
	is_u64(same, RELS * BLOCKS, "a crash: what was loaded is there, and nothing else");
	check(next, "image, and a crash");

	/* a write, and a removal, before anybody has looked there */
	free(next);
	next = start(dir);
	(void) rbp_directory_invalidate(next, &before[1].page, true);
	rbp_directory_bump_generation(next, before[0].page.rel, before[0].page.space, 0);
	same = 0;
	for (uint32_t i = 0; i < RELS * BLOCKS; i++)
		same += look(next, &before[i].page).where != RBP_ABSENT &&
			(i == 1 || (before[i].page.rel == before[0].page.rel && before[i].page.space == before[0].page.space));
	is_u64(same, 0, "what is written or removed before it is loaded is not there");
	check(next, "image, and writes");

	free(stored[3].pages);
	stored[3].pages = NULL;
	free(next);
	next = start(dir);
	directory_build_all(next);
	is_u64(next->partitions[3].taken, 0, "a part of it that cannot be read is empty");
	check(next, "image, of which a part cannot be read");
	free(next);
	free(dir);
}

#define MANY	60

/* There is not room for all: those that were not read since they came are left out. */
static void
test_image_room(void)
{
	RbpDirectory *dir = make(MANY, MANY);
	RbpPageId	pages[MANY];
	uint32_t	part;
	bool		wanted[MANY];
	uint32_t	nwanted = 0;
	char		out[MANY * RBP_ENTRY_BYTES];
	int			unused = 0;
	int			states[RBP_NUM_LISTS] = {0};

	rbp_directory_set_keep_max(dir, 1000);
	rbp_directory_set_policy(dir, KEPT_REL, 3, RBP_POLICY_KEEP);
	pages[0] = page_of(1000, 0);
	part = rbp_hash_partition(rbp_page_hash(&pages[0]));
	for (int i = 0; i < MANY; i++)
	{
		if (i > 0)
			pages[i] = next_of(part, i == MANY / 2 ? page_of(KEPT_REL, 0) : pages[i - 1]);
		/* who was there before goes to main */
		if (i % 10 == 0)
			rbp_ghost_add(dir, part, rbp_page_hash(&pages[i]));
		(void) put(dir, &pages[i], (uint64_t) i + 1, &unused);
		if (i % 3 == 0 && i < 20)
			(void) rbp_directory_lookup(dir, REF(&pages[i]), true);
	}
	for (int i = 0; i < MANY; i++)
	{
		RbpEntry   *e = entry_of(dir, &pages[i]);

		states[rbp_entry_state(e)]++;
		wanted[i] = rbp_entry_state(e) != RBP_SLOT_SMALL || rbp_entry_freq(e) > 0;
		nwanted += wanted[i];
	}
	ok(states[RBP_SLOT_SMALL] > 20 && states[RBP_SLOT_MAIN] > 0 && states[RBP_SLOT_KEPT] > 10 && nwanted < MANY - 10 &&
	   nwanted > (uint32_t) (states[RBP_SLOT_MAIN] + states[RBP_SLOT_KEPT]), "there are pages of all kinds (%u of %d are wanted)", nwanted, MANY);

	is_u64(rbp_directory_store(dir, (int) part, out, sizeof(out)), sizeof(out), "with room for all, all are stored");
	/* that there is less is found out at the last page, or long before */
	for (int room = MANY - 1; room > 0; room -= MANY - 13)
	{
		uint32_t	fits = nwanted < (uint32_t) room ? nwanted : (uint32_t) room;
		uint32_t	found = 0;
		size_t		bytes = rbp_directory_store(dir, (int) part, out, (size_t) (room + 1) * RBP_ENTRY_BYTES - 1);

		is_u64(bytes, fits * RBP_ENTRY_BYTES, "with room for %d, as many of those that are wanted", room);
		for (int i = 0; i < MANY; i++)
			for (size_t j = 0; j < bytes / RBP_ENTRY_BYTES; j++)
			{
				RbpPageId	page = rbp_directory_stored_page(out, j);

				if (rbp_page_equal(&page, &pages[i]))
					found += wanted[i];
			}
		is_u64(found, fits, "and these are they");
	}
	is_u64(rbp_directory_store(dir, (int) part, out, 0), 0, "without any, none");
	free(dir);
}

/* Names were changed, so a page may have two entries. */
static const char *
check_changed(RbpDirectory *dir)
{
	const char *problem = directory_check(dir);

	return problem != NULL && strcmp(problem, "a page has two entries") != 0 ? problem : directory_check_sums(dir);
}

/* An image that nobody has written so */
static void
test_image_damaged(void)
{
	RbpDirectory *dir = make_all();
	uint64_t	rng = 1;
	uint32_t	left = 0;
	const char *problem = NULL;

	for (int round = 0; round < 300 && problem == NULL; round++)
	{
		RbpDirectory *next;

		store_all(dir, EXTENTS * RBP_ENTRY_BYTES);
		for (int i = 0; i < RBP_PARTITIONS; i++)
			for (int n = round % 5; n > 0 && stored[i].bytes >= RBP_ENTRY_BYTES; n--)
			{
				RbpEntry   *e = (RbpEntry *) stored[i].pages + next_random(&rng) % (stored[i].bytes / RBP_ENTRY_BYTES);

				switch (next_random(&rng) % 6)
				{
					case 0:
						e->chain = (uint32_t) (next_random(&rng) % 10);
						break;
					case 1:
						e->chain = (uint32_t) next_random(&rng);
						break;
					case 2:
						e->flags = (uint8_t) next_random(&rng);
						break;
					case 3:
						e->space = (uint16_t) next_random(&rng);
						break;
					case 4:
						((uint8_t *) e)[next_random(&rng) % sizeof(*e)] = (uint8_t) next_random(&rng);
						break;
					default:
						stored[i].bytes -= next_random(&rng) % 8 == 0;
				}
			}
		next = start(dir);
		problem = check_changed(next);
		left += same_as_before(next);
		/* and goes on */
		for (uint32_t i = 0; i < 6; i++)
			directory_extent_close(next, i);
		while (directory_collect(next, RBP_DROP_MAX) > 0)
			continue;
		for (uint32_t i = 0; i < 6; i++)
			directory_extent_online(next, i, i);
		if (problem == NULL)
			problem = check_changed(next);
		free(next);
	}
	ok(problem == NULL, "damaged images: check%s%s", problem ? ": " : "", problem ? problem : "");
	ok(left / 300 > RELS * BLOCKS / 2, "pages that were not touched are there (%u)", left / 300);
	free(dir);
}

/*
 * ---- all at once ----------------------------------------------------------------------
 */

static void
test_bump_all(void)
{
	RbpDirectory *dir = make(3, 3);
	RbpVersion	versions[40];
	DirectoryCounts counts;
	uint32_t	found = 0;
	uint32_t	stale = 0;
	uint32_t	swept = 0;
	uint64_t	bumps = rbp_directory_bumps(dir);
	int			unused = 0;

	for (uint32_t i = 0; i < 40; i++)
	{
		RbpPageId	page = page_of(1000 + i, i);

		rbp_directory_note_version(dir, REF(&page), &versions[i]);
		if (i < 20)
			(void) put(dir, &page, 1, &unused);
		else if (i < 30)
			(void) stage(dir, &page, 1, i);
	}
	rbp_directory_bump_all(dir);
	ok(rbp_directory_bumps(dir) != bumps, "bump of all: noted");
	for (uint32_t i = 0; i < 40; i++)
	{
		RbpPageId	page = page_of(1000 + i, i);

		found += look(dir, &page).where != RBP_ABSENT;
		stale += rbp_directory_insert_staged(dir, REF(&page), &versions[i], 40) == RBP_INSERT_STALE;
	}
	is_u64(found, 0, "all pages are gone");
	is_u64(stale, 40, "all claims are void");
	for (int i = 0; i < RBP_PARTITIONS; i++)
		swept += directory_sweep(dir, i);
	is_u64(swept, 30, "a sweep drops them");
	check(dir, "bump of all");

	for (uint32_t i = 0; i < 40; i++)
	{
		RbpPageId	page = page_of(1000 + i, i);

		found += put(dir, &page, 1, &unused) != RBP_INVALID_SLOT;
	}
	ok(found > 35, "pages can come back");
	rbp_directory_bump_all(dir);
	directory_reopen(dir, BUFFERS);
	directory_counts(dir, &counts);
	is_u64(counts.remote, 0, "bump of all before a crash");
	check(dir, "bump of all before a crash");
	free(dir);
}

int
main(void)
{
	test_extents();
	test_all();
	test_lost();
	test_untouched();
	test_first_use();
	test_build_once();
	test_names();
	test_bad_numbers();
	test_image();
	test_image_room();
	test_image_damaged();
	test_bump_all();
	return done_testing();
}
