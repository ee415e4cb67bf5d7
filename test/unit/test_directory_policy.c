/*-------------------------------------------------------------------------
 *
 * test_directory_policy.c
 *	  Pages that are kept outlast any sweep, up to what may be kept; those that
 *	  are not wanted do not get in; those under a limit replace each other.
 *
 *-------------------------------------------------------------------------
 */
#include "base/geometry.h"
#include "base/relfile.h"
#include "buffer/directory.h"
#include "buffer/directory_internal.h"
#include "buffer/page.h"

#include <stdlib.h>
#include <string.h>

#include "directory_check.h"
#include "tap.h"

#define EXTENTS		64
#define SLOTS		(EXTENTS * RBP_EXTENT_PAGES)

#define KEPT		1000		/* relations */
#define OTHER		2000
#define SPACE		1
#define SPACE_2		2
#define SPACE_3		3

static RbpDirectory *
make_directory(void)
{
	size_t		size = rbp_directory_size(SLOTS, RBP_MAX_BATCH, 0);
	void	   *mem = aligned_alloc(64, (size + 63) / 64 * 64);
	RbpDirectory *dir;

	memset(mem, 0, size);
	dir = directory_init(mem, SLOTS, RBP_MAX_BATCH, 0);
	for (uint32_t i = 0; i < EXTENTS; i++)
		directory_extent_online(dir, i, 0);
	rbp_directory_set_keep_max(dir, RBP_KEEP_HALF);
	return dir;
}

static void
all_well(RbpDirectory *dir, const char *when)
{
	const char *problem = directory_check(dir);

	ok(problem == NULL, "%s: %s", when, problem == NULL ? "all is well" : problem);
}

static RbpPageId
page_of(uint32_t rel, uint16_t space, uint32_t block)
{
	return (RbpPageId)
	{
		.rel = rel,.block = block,.space = space,.fork = 0
	};
}

static void
stage(RbpDirectory *dir, const RbpPageId *page, uint32_t staging_slot)
{
	RbpVersion	version = {
		page->block, directory_stamp(dir, REF(page)),
		rbp_generation_now(dir, page->rel, page->space, page->fork)
	};

	if (rbp_directory_insert_staged(dir, REF(page), &version, staging_slot) != RBP_INSERTED)
		abort();
}

/* What is not there is staged, given a slot, and published; says if that was done. */
static bool
bring(RbpDirectory *dir, const RbpPageId *page)
{
	RbpEvicted	evicted;
	uint32_t	slot;

	if (rbp_directory_lookup(dir, REF(page), true).where != RBP_ABSENT)
		return true;
	stage(dir, page, 0);
	slot = rbp_directory_reserve(dir, page, &evicted);
	if (slot == RBP_INVALID_SLOT)
	{
		directory_abandon(dir, page, 0, slot);
		return false;
	}
	return rbp_directory_publish(dir, page, 0, slot, true) == RBP_INSERTED;
}

/* Likewise for a batch of pages that are not there, which all get their slots first. */
static void
bring_batch(RbpDirectory *dir, uint32_t rel, uint16_t space, uint32_t from)
{
	uint32_t	slots[RBP_MAX_BATCH];
	RbpPageId	page;
	RbpEvicted	evicted;

	for (uint32_t i = 0; i < RBP_MAX_BATCH; i++)
	{
		page = page_of(rel, space, from + i);
		stage(dir, &page, i);
		slots[i] = rbp_directory_reserve(dir, &page, &evicted);
	}
	for (uint32_t i = 0; i < RBP_MAX_BATCH; i++)
	{
		page = page_of(rel, space, from + i);
		if (slots[i] == RBP_INVALID_SLOT)
			directory_abandon(dir, &page, i, slots[i]);
		else
			(void) rbp_directory_publish(dir, &page, i, slots[i], true);
	}
}

static void
bring_all(RbpDirectory *dir, uint32_t rel, uint16_t space, uint32_t from, uint32_t n)
{
	for (uint32_t i = from; i < from + n; i++)
	{
		RbpPageId	page = page_of(rel, space, i);

		bring(dir, &page);
	}
}

static uint32_t
count(RbpDirectory *dir, uint32_t rel, uint16_t space, uint32_t n)
{
	uint32_t	found = 0;

	for (uint32_t i = 0; i < n; i++)
	{
		RbpPageId	page = page_of(rel, space, i);

		found += rbp_directory_lookup(dir, REF(&page), false).where != RBP_ABSENT;
	}
	return found;
}

static uint64_t
apply(RbpDirectory *dir)
{
	uint64_t	dropped = 0;

	for (int part = 0; part < RBP_PARTITIONS; part++)
		dropped += rbp_directory_apply_policies(dir, part);
	rbp_directory_policies_applied(dir);
	return dropped;
}

static uint64_t
trim(RbpDirectory *dir, uint16_t database)
{
	uint64_t	dropped = 0;

	for (int part = 0; part < RBP_PARTITIONS; part++)
		dropped += rbp_directory_trim(dir, part, database);
	return dropped;
}

static uint64_t
list_sum(RbpDirectory *dir, RbpSlotState state)
{
	uint64_t	n = 0;

	for (int part = 0; part < RBP_PARTITIONS; part++)
		n += dir->partitions[part].lists[state].count;
	return n;
}

static void
test_keep(void)
{
	RbpDirectory *dir = make_directory();
	uint32_t	n = SLOTS / 4;
	DirectoryCounts counts;

	ok(rbp_directory_set_policy(dir, KEPT, SPACE, RBP_POLICY_KEEP), "a policy is set");
	is_u64(rbp_directory_policy(dir, KEPT, SPACE), RBP_POLICY_KEEP, "and known");
	is_u64(rbp_directory_policy(dir, KEPT, SPACE_2), RBP_POLICY_DEFAULT, "of that space alone");
	is_u64(rbp_directory_policy(dir, OTHER, SPACE), RBP_POLICY_DEFAULT, "and that relation");

	bring_all(dir, KEPT, SPACE, 0, n);
	is_u64(rbp_directory_file_policy(dir, KEPT, SPACE).kept, n, "all of it is held");
	bring_all(dir, OTHER, SPACE, 0, 10 * SLOTS);
	is_u64(count(dir, KEPT, SPACE, n), n, "after a sweep of ten times the tier, too");
	is_u64(rbp_directory_file_policy(dir, KEPT, SPACE).kept, n, "as is told");
	is_u64(dir->kept, n, "and counted");
	directory_counts(dir, &counts);
	is_u64(counts.kept, n, "and can be seen");
	is_u64(counts.remote, SLOTS, "the tier is full");
	all_well(dir, "a sweep");

	/* a page of another fork is one like all */
	for (uint32_t i = 0; i < 100; i++)
	{
		RbpPageId	page = {.rel = KEPT,.block = i,.space = SPACE,.fork = 1};

		bring(dir, &page);
	}
	is_u64(rbp_directory_file_policy(dir, KEPT, SPACE).kept, n, "another fork is not kept");

	/* written, and back again */
	for (uint32_t i = 0; i < 100; i++)
	{
		RbpPageId	page = page_of(KEPT, SPACE, i);

		rbp_directory_invalidate(dir, &page, true);
	}
	is_u64(rbp_directory_file_policy(dir, KEPT, SPACE).kept, n - 100, "pages that are written are held no more");
	bring_all(dir, KEPT, SPACE, 0, 100);
	is_u64(rbp_directory_file_policy(dir, KEPT, SPACE).kept, n, "until they come again");

	/* truncated: dead, then swept */
	rbp_directory_bump_generation(dir, KEPT, SPACE, 0);
	for (int part = 0; part < RBP_PARTITIONS; part++)
		directory_sweep(dir, part);
	is_u64(rbp_directory_file_policy(dir, KEPT, SPACE).kept, 0, "nothing is held of what is truncated");
	is_u64(dir->kept, 0, "nor counted");
	all_well(dir, "a truncation");

	/* default again */
	bring_all(dir, KEPT, SPACE, 0, n);
	rbp_directory_set_policy(dir, KEPT, SPACE, RBP_POLICY_DEFAULT);
	is_u64(rbp_directory_policy(dir, KEPT, SPACE), RBP_POLICY_DEFAULT, "a policy is taken away");
	is_u64(apply(dir), 0, "which drops nothing");
	is_u64(count(dir, KEPT, SPACE, n), n, "the pages are there");
	is_u64(dir->kept, 0, "but not kept");
	is_u64(dir->npolicies, 0, "and nothing is left of it");
	bring_all(dir, OTHER, SPACE, 0, 10 * SLOTS);
	ok(count(dir, KEPT, SPACE, n) < n / 10, "a sweep takes them");
	all_well(dir, "a sweep after that");
	free(dir);
}

/* A policy for pages that are there. */
static void
test_apply(void)
{
	RbpDirectory *dir = make_directory();
	uint32_t	n = SLOTS / 8;
	RbpPageId	staged = page_of(OTHER, SPACE, 7777777);
	RbpVersion	version = {1, 0, 0};

	bring_all(dir, KEPT, SPACE, 0, n);
	bring_all(dir, OTHER, SPACE, 0, n);
	version.stamp = directory_stamp(dir, REF(&staged));
	rbp_directory_insert_staged(dir, REF(&staged), &version, 0);
	rbp_directory_set_policy(dir, KEPT, SPACE, RBP_POLICY_KEEP);
	rbp_directory_set_policy(dir, OTHER, SPACE, RBP_POLICY_NONE);
	is_u64(apply(dir), n + 1, "what is not wanted is dropped, if it is staged, too");
	is_u64(rbp_directory_file_policy(dir, KEPT, SPACE).kept, n, "what is to be kept is");
	is_u64(count(dir, OTHER, SPACE, n), 0, "nothing is there of the other");
	{
		RbpPageId	page = page_of(OTHER, SPACE, 1);

		ok(!bring(dir, &page), "nor does it come back");
	}
	rbp_directory_set_policy(dir, KEPT, SPACE, RBP_POLICY_NONE);
	is_u64(apply(dir), n, "kept pages are dropped when they are not wanted any more");
	is_u64(dir->kept, 0, "and not counted");
	all_well(dir, "policies applied");
	free(dir);
}

static void
test_keep_max(void)
{
	RbpDirectory *dir = make_directory();
	uint32_t	max = SLOTS / 8;

	rbp_directory_set_keep_max(dir, max);
	rbp_directory_set_policy(dir, KEPT, SPACE, RBP_POLICY_KEEP);
	bring_all(dir, KEPT, SPACE, 0, max / 2);
	ok(rbp_directory_keep_room(dir) > 0, "there is room to keep more");
	bring_all(dir, KEPT, SPACE, max / 2, SLOTS);
	is_u64(rbp_directory_file_policy(dir, KEPT, SPACE).kept, max, "no more than keep_max are kept");
	ok(rbp_directory_keep_room(dir) <= 0, "there is no room to keep more");
	bring_all(dir, OTHER, SPACE, 0, 4 * SLOTS);
	is_u64(rbp_directory_file_policy(dir, KEPT, SPACE).kept, max, "and those are, when others come");
	ok(count(dir, KEPT, SPACE, SLOTS + max / 2) < max * 5 / 4, "the others of the relation go as all");
	all_well(dir, "more than may be kept");

	rbp_directory_set_keep_max(dir, max / 2);
	bring_all(dir, OTHER, SPACE, 10 * SLOTS, 4 * SLOTS);
	is_u64(rbp_directory_file_policy(dir, KEPT, SPACE).kept, max / 2, "when less may be kept, less is");
	all_well(dir, "less");

	rbp_directory_set_keep_max(dir, max / 4);
	ok(rbp_directory_keep_room(dir) < 0, "more are kept than may be");
	apply(dir);
	is_u64(rbp_directory_file_policy(dir, KEPT, SPACE).kept, max / 4, "which can be mended at once");
	ok(rbp_directory_keep_room(dir) >= 0, "... and is");
	all_well(dir, "still less");

	/* and more again, of what is there */
	rbp_directory_set_keep_max(dir, max);
	{
		uint32_t	found = 0;

		for (uint32_t i = 0; i < SLOTS + max / 2; i++)
		{
			RbpPageId	page = page_of(KEPT, SPACE, i);

			found += rbp_directory_keep(dir, &page);
		}
		is_u64(found, count(dir, KEPT, SPACE, SLOTS + max / 2), "pages are asked after");
		is_u64(rbp_directory_file_policy(dir, KEPT, SPACE).kept, found < max ? found : max, "and kept, now that there is room");
	}

	/* more than there is */
	rbp_directory_set_keep_max(dir, 10 * SLOTS);
	bring_all(dir, KEPT, SPACE, 0, 4 * SLOTS);
	ok(list_sum(dir, RBP_SLOT_KEPT) <= SLOTS * 3 / 4, "some slots are left for others, whatever is to be kept");
	ok(rbp_directory_keep_room(dir) <= 0, "that is told as full");
	{
		RbpPageId	page = page_of(OTHER, SPACE, 99999999);

		ok(bring(dir, &page), "so that they come in");
	}
	all_well(dir, "all is to be kept");

	/* half of the memory goes */
	for (uint32_t i = 0; i < EXTENTS / 2; i++)
		directory_extent_offline(dir, i);
	bring_all(dir, OTHER, SPACE, 20 * SLOTS, 4 * SLOTS);
	ok(list_sum(dir, RBP_SLOT_KEPT) <= SLOTS * 95 / 200, "when memory goes, kept pages make room, too");
	is_u64(dir->kept, list_sum(dir, RBP_SLOT_KEPT), "they are counted right");
	all_well(dir, "half of the memory");
	for (uint32_t i = EXTENTS / 2; i < EXTENTS; i++)
		directory_extent_offline(dir, i);
	is_u64(dir->kept, 0, "no memory, no kept pages");
	is_u64(rbp_directory_file_policy(dir, KEPT, SPACE).kept, 0, "none of the relation");
	all_well(dir, "no memory");
	free(dir);
}

static void
test_many(void)
{
	RbpDirectory *dir = make_directory();
	uint32_t	n = 0;
	uint32_t	at = 0;
	uint32_t	found = 0;
	uint32_t	right = 0;
	uint32_t	rel;
	uint16_t	space;

	while (rbp_directory_set_policy(dir, 20000 + n, SPACE, n % 2 == 0 ? RBP_POLICY_KEEP : RBP_POLICY_NONE))
		n++;
	ok(!rbp_directory_file_policy(dir, 20000 + n, SPACE).fits && rbp_directory_file_policy(dir, 20000, SPACE).fits,
	   "that there is no place for one more can be asked");
	ok(n > RBP_POLICY_BUCKETS * RBP_POLICY_WAYS / 2, "%u files have policies", n);
	while (rbp_directory_next_policy(dir, &at, &rel, &space))
	{
		found++;
		right += rbp_directory_policy(dir, rel, space) == (rel % 2 == 0 ? RBP_POLICY_KEEP : RBP_POLICY_NONE) && space == SPACE;
	}
	is_u64(found, n, "all are listed");
	is_u64(right, n, "with what they are");
	for (uint32_t i = 0; i < n; i++)
		rbp_directory_set_policy(dir, 20000 + i, SPACE, RBP_POLICY_DEFAULT);
	apply(dir);
	is_u64(dir->npolicies, 0, "all are taken away");
	ok(rbp_directory_set_policy(dir, 20000 + n, SPACE, RBP_POLICY_KEEP), "there is room again");
	free(dir);
}

static bool
page_is_in_space(const RbpPageId *page, const RbpLookup *at, void *arg)
{
	(void) at;
	(void) arg;
	return page->space == SPACE;
}

static void
test_limits(void)
{
	RbpDirectory *dir = make_directory();
	uint32_t	max = SLOTS / 8;
	bool		always = true;

	rbp_directory_set_database(dir, SPACE_3, SPACE_2);
	bring_all(dir, OTHER, SPACE_2, 0, 2 * max);
	rbp_directory_set_limit(dir, SPACE_2, max);
	is_u64(rbp_directory_database_pages(dir, SPACE_2), 2 * max, "pages from before the limit are counted");
	{
		uint64_t	trimmed = trim(dir, SPACE_2);

		is_u64(trimmed, 2 * max - rbp_directory_database_pages(dir, SPACE_2), "those above it are dropped");
		ok(rbp_directory_database_pages(dir, SPACE_2) <= max && rbp_directory_database_pages(dir, SPACE_2) > max * 3 / 4,
		   "and no more: %llu", (unsigned long long) rbp_directory_database_pages(dir, SPACE_2));
	}
	for (uint32_t i = 0; i < 4 * SLOTS; i++)
	{
		RbpPageId	page = page_of(OTHER, i % 2 == 0 ? SPACE_2 : SPACE_3, 100000 + i);

		bring(dir, &page);
		always = always && rbp_directory_database_pages(dir, SPACE_2) <= max + RBP_PARTITIONS;
	}
	ok(always, "the limit is not passed but by a page for each partition, whatever comes");
	ok(rbp_directory_database_pages(dir, SPACE_2) > max * 9 / 10, "and used");
	ok(count(dir, OTHER, SPACE_2, 2 * max) < max / 4, "by what came last");
	bring_all(dir, OTHER, SPACE, 0, SLOTS - max);
	ok(count(dir, OTHER, SPACE, SLOTS - max) > (SLOTS - max) * 9 / 10, "all the others have the rest");
	bring_all(dir, OTHER, SPACE_2, 900000, 2 * SLOTS);
	ok(count(dir, OTHER, SPACE, SLOTS - max) > (SLOTS - max) * 85 / 100,
	   "which a sweep under the limit leaves to them");
	all_well(dir, "a limit");

	/* with pages that are kept */
	rbp_directory_set_policy(dir, KEPT, SPACE_3, RBP_POLICY_KEEP);
	bring_all(dir, KEPT, SPACE_3, 0, max / 2);
	rbp_directory_set_limit(dir, SPACE_2, max / 2 + max / 4);
	trim(dir, SPACE_2);
	is_u64(rbp_directory_file_policy(dir, KEPT, SPACE_3).kept, max / 2, "pages that are kept stay");
	ok(rbp_directory_database_pages(dir, SPACE_2) <= max / 2 + max / 4 + RBP_PARTITIONS, "... and others make room for them: %llu",
	   (unsigned long long) rbp_directory_database_pages(dir, SPACE_2));
	for (uint32_t i = 0; i < SLOTS / RBP_MAX_BATCH; i++)
		bring_batch(dir, KEPT, SPACE_3, 200000 + i * RBP_MAX_BATCH);
	ok(rbp_directory_database_pages(dir, SPACE_2) <= max / 2 + max / 4 + RBP_PARTITIONS,
	   "batches of pages to be kept do not pass the limit: %llu", (unsigned long long) rbp_directory_database_pages(dir, SPACE_2));
	bring_all(dir, KEPT, SPACE_3, 0, 2 * max);
	ok(rbp_directory_database_pages(dir, SPACE_2) <= max / 2 + max / 4 + RBP_PARTITIONS &&
	   rbp_directory_file_policy(dir, KEPT, SPACE_3).kept > max / 2, "what is to be kept does not pass the limit: %llu, kept %u",
	   (unsigned long long) rbp_directory_database_pages(dir, SPACE_2), rbp_directory_file_policy(dir, KEPT, SPACE_3).kept);
	rbp_directory_set_policy(dir, KEPT, SPACE_3, RBP_POLICY_DEFAULT);
	apply(dir);
	all_well(dir, "a limit, and kept pages");

	/* lower than what a partition has once */
	rbp_directory_set_limit(dir, SPACE_2, 1);
	trim(dir, SPACE_2);
	bring_all(dir, OTHER, SPACE_2, 3000000, SLOTS);
	ok(rbp_directory_database_pages(dir, SPACE_2) <= 1 + RBP_PARTITIONS, "a limit of next to nothing: %llu",
	   (unsigned long long) rbp_directory_database_pages(dir, SPACE_2));
	all_well(dir, "a small limit");

	rbp_directory_set_limit(dir, SPACE_2, -1);
	ok(rbp_directory_limit(dir, SPACE_2) == -1, "without a limit");
	bring_all(dir, OTHER, SPACE_2, 5000000, SLOTS);
	ok(rbp_directory_database_pages(dir, SPACE_2) > 2 * max, "they may have more");
	{
		uint64_t	had = rbp_directory_database_pages(dir, SPACE);
		uint64_t	dropped = 0;

		for (int part = 0; part < RBP_PARTITIONS; part++)
			dropped += rbp_directory_visit(dir, part, true, page_is_in_space, NULL);
		is_u64(dropped, had, "a space is dropped");
		is_u64(rbp_directory_database_pages(dir, SPACE), 0, "nothing is left of it");
	}
	all_well(dir, "a space dropped");
	free(dir);
}

int
main(void)
{
	test_keep();
	test_apply();
	test_keep_max();
	test_many();
	test_limits();
	return done_testing();
}
