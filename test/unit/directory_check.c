/*-------------------------------------------------------------------------
 *
 * directory_check.c
 *	  See directory_check.h.
 *
 *-------------------------------------------------------------------------
 */
#include "base/geometry.h"
#include "base/hash.h"
#include "base/lock.h"
#include "buffer/directory.h"
#include "buffer/directory_internal.h"
#include "buffer/page.h"
#include "buffer/s3fifo.h"
#include "directory_check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

RbpDirectory *
directory_init(void *mem, uint32_t max_slots, uint32_t staging_slots, uint32_t buffers)
{
	uint32_t	n = max_slots / RBP_EXTENT_PAGES;
	RbpExtents *extents = mmap(NULL, sizeof(RbpExtents) + rbp_extents_size(n), PROT_READ | PROT_WRITE,
							   MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (extents == MAP_FAILED)
		abort();
	rbp_extents_init(extents, extents + 1, 0, n);
	return rbp_directory_open(mem, false, extents, staging_slots, buffers, 0);
}

static RbpExtents *
extents_of(RbpDirectory *dir)
{
	return (RbpExtents *) (uintptr_t) dir->extents;
}

void
directory_reopen(RbpDirectory *dir, uint32_t buffers)
{
	RbpExtents *extents = extents_of(dir);

	rbp_extents_reopen(extents, extents + 1);
	(void) rbp_directory_open(dir, true, extents, dir->staging_slots, buffers, 0);
}

size_t
directory_copy_size(const RbpDirectory *dir)
{
	return dir->bytes + sizeof(RbpExtents) + rbp_extents_size(dir->extents->n);
}

RbpDirectory *
directory_reopen_copy(const RbpDirectory *dir, void *mem, uint32_t buffers)
{
	RbpExtents *extents = (RbpExtents *) ((char *) mem + dir->bytes);

	memcpy(mem, dir, dir->bytes);
	memcpy(extents, dir->extents, sizeof(RbpExtents));
	memcpy(extents + 1, dir->extents->regions, rbp_extents_size(dir->extents->n));
	rbp_extents_reopen(extents, extents + 1);
	return rbp_directory_open(mem, true, extents, dir->staging_slots, buffers, 0);
}

uint32_t
directory_sweep(RbpDirectory *dir, int partition)
{
	uint32_t	freed = 0;

	while (rbp_directory_sweep_step(dir, partition, &freed))
		;
	return freed;
}

void
directory_build(RbpDirectory *dir, int partition)
{
	RbpPartition *p = &dir->partitions[partition];

	rbp_partition_lock(dir, p, false);
	rbp_lock_release(&p->lock);
}

void
directory_build_all(RbpDirectory *dir)
{
	for (int part = 0; part < RBP_PARTITIONS; part++)
		directory_build(dir, part);
}

void
directory_counts(RbpDirectory *dir, DirectoryCounts *counts)
{
	RbpTierPages pages;

	rbp_directory_counts(dir, &pages);
	*counts = (DirectoryCounts)
	{
		.remote = pages.remote,.staged = pages.staged,.free = pages.free,
			.kept = pages.kept,.online = pages.online
	};
	for (int part = 0; part < RBP_PARTITIONS; part++)
	{
		RbpPartition *p = &dir->partitions[part];

		rbp_partition_lock(dir, p, false);
		counts->small += p->lists[RBP_SLOT_SMALL].count;
		counts->main += p->lists[RBP_SLOT_MAIN].count;
		counts->reserved += p->reserved;
		counts->evictions += p->evictions;
		rbp_lock_release(&p->lock);
	}
}

static bool
page_is_of(const RbpPageId *page, const RbpLookup *at, void *arg)
{
	const RbpPageId *relation = arg;

	(void) at;
	return page->rel == relation->rel && page->space == relation->space;
}

uint64_t
directory_drop_relation(RbpDirectory *dir, uint32_t rel, uint16_t space)
{
	RbpPageId	any = {.rel = rel,.space = space};
	uint64_t	dropped = 0;

	for (int part = 0; part < RBP_PARTITIONS; part++)
		dropped += rbp_directory_visit(dir, part, true, page_is_of, &any);
	return dropped;
}

bool
directory_extent_absent(RbpDirectory *dir, uint32_t extent)
{
	return rbp_extent_now(dir, extent) == RBP_EXTENT_ABSENT;
}

void
directory_extent_online(RbpDirectory *dir, uint32_t extent, uint32_t account)
{
	rbp_extent_bring_online(extents_of(dir), extent, account, RBP_EXTENT_FRESH);
}

void
directory_extent_drain(RbpDirectory *dir, uint32_t extent)
{
	rbp_extent_drain(extents_of(dir), extent);
}

void
directory_extent_undrain(RbpDirectory *dir, uint32_t extent)
{
	rbp_extent_undrain(extents_of(dir), extent);
}

void
directory_extent_close(RbpDirectory *dir, uint32_t extent)
{
	rbp_extent_close(extents_of(dir), extent);
}

uint32_t
directory_closed(RbpDirectory *dir)
{
	return rbp_extents_closed(dir->extents);
}

uint32_t
directory_collect(RbpDirectory *dir, uint32_t max)
{
	uint32_t	extents[RBP_DROP_MAX];
	uint32_t	n = rbp_extents_next_closed(extents_of(dir), extents,
											max < RBP_DROP_MAX ? max : RBP_DROP_MAX);

	rbp_directory_drop_extents(dir, extents, n);
	rbp_extents_dropped(extents_of(dir), extents, n);
	return n;
}

bool
directory_extent_is_online(RbpDirectory *dir, uint32_t extent)
{
	return extent < dir->nlocal && rbp_extent_online(dir, extent);
}

uint64_t
directory_extent_heat(RbpDirectory *dir, uint32_t extent)
{
	uint64_t	sum = 0;

	for (uint32_t part = 0; part < RBP_PARTITIONS; part++)
	{
		RbpPartition *p = &dir->partitions[part];
		uint32_t	index = part * dir->nlocal + extent;
		const RbpEntry *e = rbp_entry(dir, index);

		rbp_partition_lock(dir, p, false);
		if (rbp_entry_queued(e) && rbp_entry_live(dir, part, index))
			sum += 1 + rbp_entry_freq(e);
		rbp_lock_release(&p->lock);
	}
	return sum;
}

uint32_t
directory_extent_offline(RbpDirectory *dir, uint32_t extent)
{
	uint32_t	live = 0;

	for (uint32_t part = 0; part < RBP_PARTITIONS; part++)
	{
		RbpPartition *p = &dir->partitions[part];
		uint32_t	index = part * dir->nlocal + extent;

		rbp_partition_lock(dir, p, false);
		live += rbp_entry_queued(rbp_entry(dir, index)) && rbp_entry_live(dir, part, index);
		rbp_lock_release(&p->lock);
	}
	directory_extent_close(dir, extent);
	while (directory_collect(dir, RBP_DROP_MAX) > 0)
		 /* go on */ ;
	return live;
}

static const char *
check_list(RbpDirectory *dir, RbpPartition *p, RbpSlotState state)
{
	const RbpList *list = &p->lists[state];
	const uint32_t *prevs = rbp_array(dir, dir->prev);
	uint32_t	seen = 0;
	uint32_t	prev = RBP_NIL;

	for (uint32_t index = list->head; index != RBP_NIL;
		 index = rbp_entry(dir, index)->next)
	{
		const RbpEntry *e;

		if (index >= dir->max_slots + dir->staging_slots)
			return "a list leads out of the table";
		if ((index >= dir->max_slots) != (state == RBP_SLOT_STAGED))
			return "a list has an entry of the wrong kind";
		e = rbp_entry(dir, index);
		if (rbp_entry_state(e) != state)
			return "an entry's state is not that of its list";
		if (rbp_entry_freq(e) > (state == RBP_SLOT_FREE ? 0 : RBP_MAX_FREQ))
			return "an access count is out of range";
		if (prevs[index] != prev)
			return "a backward link is wrong";
		if (++seen > list->count)
			return "a list is longer than its count";
		prev = index;
	}
	if (seen != list->count)
		return "a list is shorter than its count";
	if (list->tail != prev)
		return "a list's tail is wrong";
	return NULL;
}

static const char *
check_slots(RbpDirectory *dir, uint32_t part)
{
	RbpPartition *p = &dir->partitions[part];
	uint32_t	in_state[RBP_SLOT_LOST + 1] = {0};

	for (uint32_t i = 0; i < dir->nlocal; i++)
	{
		const RbpEntry *e = rbp_entry(dir, part * dir->nlocal + i);
		RbpSlotState state = rbp_entry_state(e);

		if (state > RBP_SLOT_LOST || state == RBP_SLOT_STAGED)
			return "a remote slot's state is impossible";
		/* what was lost before a crash is not reserved any more */
		if (state != RBP_SLOT_LOST || e->generation == dir->opened)
			in_state[state]++;
		if (rbp_extent_now(dir, i) == RBP_EXTENT_ABSENT &&
			state != RBP_SLOT_LOST && state != RBP_SLOT_UNUSED)
			return "a slot's state does not fit its extent";
		if (rbp_extent_now(dir, i) == RBP_EXTENT_FRESH &&
			state != RBP_SLOT_LOST && state != RBP_SLOT_UNUSED)
			return "a fresh extent has a slot in use";
	}
	for (int state = RBP_SLOT_FREE; state <= RBP_SLOT_KEPT; state++)
		if (in_state[state] != p->lists[state].count)
			return "a slot is missing from its list";
	if (in_state[RBP_SLOT_RESERVED] + in_state[RBP_SLOT_LOST] != p->reserved)
		return "the count of reserved slots is wrong";
	if (in_state[RBP_SLOT_FREE] + in_state[RBP_SLOT_SMALL] +
		in_state[RBP_SLOT_MAIN] + in_state[RBP_SLOT_KEPT] +
		in_state[RBP_SLOT_RESERVED] != p->taken)
		return "the count of taken slots is wrong";
	return NULL;
}

static const char *
check_chains(RbpDirectory *dir, uint32_t part)
{
	RbpPartition *p = &dir->partitions[part];
	const uint32_t *heads = rbp_array(dir, dir->buckets) +
	(size_t) part * dir->nbuckets;
	uint32_t	seen[RBP_NUM_LISTS] = {0};

	for (uint32_t bucket = 0; bucket < dir->nbuckets; bucket++)
	{
		uint32_t	length = 0;

		for (uint32_t index = ~heads[bucket]; index != RBP_NIL;
			 index = rbp_entry(dir, index)->chain)
		{
			const RbpEntry *e;
			RbpPageId	page;
			uint64_t	hash;
			RbpSlotState state;

			if (index >= dir->max_slots + dir->staging_slots)
				return "a chain leads out of the table";
			if (++length > dir->nlocal + dir->staging_slots)
				return "a chain has no end";
			if (index < dir->max_slots && index / dir->nlocal != part)
				return "a chain has a slot of another partition";
			e = rbp_entry(dir, index);
			state = rbp_entry_state(e);
			if (state < RBP_SLOT_SMALL || state > RBP_SLOT_STAGED)
				return "a chain has an entry without a page";
			seen[state]++;
			page = rbp_entry_page(e);
			hash = rbp_page_hash(&page);
			if (rbp_hash_partition(hash) != part ||
				rbp_hash_place(hash, dir->nbuckets) != bucket)
				return "an entry is in a bucket that is not its own";
			for (uint32_t other = e->chain, i = 0;
				 other < dir->max_slots + dir->staging_slots &&
				 i <= dir->nlocal + dir->staging_slots;
				 other = rbp_entry(dir, other)->chain, i++)
				if (rbp_entry_is_page(rbp_entry(dir, other), &page))
					return "a page has two entries";
		}
	}
	for (int state = RBP_SLOT_SMALL; state <= RBP_SLOT_STAGED; state++)
		if (seen[state] != p->lists[state].count)
			return "a page is missing from its chain";
	return NULL;
}

const char *
directory_check(RbpDirectory *dir)
{
	const char *problem = NULL;

	for (uint32_t part = 0; part < RBP_PARTITIONS && problem == NULL; part++)
	{
		RbpPartition *p = &dir->partitions[part];

		rbp_partition_lock(dir, p, true);
		for (int state = RBP_SLOT_FREE; state < RBP_NUM_LISTS && problem == NULL; state++)
			problem = check_list(dir, p, (RbpSlotState) state);
		if (problem == NULL)
			problem = check_slots(dir, part);
		if (problem == NULL)
			problem = check_chains(dir, part);
		rbp_lock_release(&p->lock);
	}
	return problem;
}

const char *
directory_check_sums(RbpDirectory *dir)
{
	static int32_t used[RBP_MAX_REGIONS];
	static int32_t sampled[RBP_MAX_REGIONS];
	static int32_t pages[RBP_MAX_SPACES];
	const RbpAccount *accounts = (const RbpAccount *) ((char *) dir + dir->accounts);

	memset(used, 0, sizeof(used));
	memset(sampled, 0, sizeof(sampled));
	memset(pages, 0, sizeof(pages));
	for (uint32_t index = 0; index < dir->max_slots; index++)
	{
		const RbpEntry *e = rbp_entry(dir, index);
		uint16_t	region = rbp_extent_region(dir->extents, index % dir->nlocal);

		if (!rbp_entry_queued(e))
			continue;
		used[region]++;
		pages[rbp_database_of(dir, e->space)]++;
		if (rbp_hash_sampled(rbp_entry_page_hash(e)))
			sampled[region] += rbp_entry_freq(e);
	}
	for (uint32_t stripe = 0; stripe < dir->nstripes; stripe++)
	{
		for (int i = 0; i < RBP_MAX_REGIONS; i++)
		{
			used[i] -= accounts[(size_t) stripe * RBP_MAX_REGIONS + i].used;
			sampled[i] -= accounts[(size_t) stripe * RBP_MAX_REGIONS + i].sampled;
		}
		for (int i = 0; i < RBP_MAX_SPACES; i++)
			pages[i] -= *rbp_database_pages(dir, stripe, (uint16_t) i);
	}
	for (int i = 0; i < RBP_MAX_REGIONS; i++)
		if (used[i] != 0 || sampled[i] != 0)
			return "an account is wrong";
	for (int i = 0; i < RBP_MAX_SPACES; i++)
		if (pages[i] != 0)
			return "a database's count of pages is wrong";
	return NULL;
}
