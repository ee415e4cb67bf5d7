/*-------------------------------------------------------------------------
 *
 * directory_walk.c
 *	  Walks over all entries of a partition: sweeps, drops, scans, counts, policies.
 *
 * A walk holds one partition's lock, and lets go of it every RBP_CHUNK entries.
 * How far a sweep has come (sweep_at, sweep_bumps, swept) is kept in the partition,
 * under its lock, and is written by nobody else.
 *
 * directory_pages.c explains how this fits together with the other files.
 *
 *-------------------------------------------------------------------------
 */
#include "buffer/directory_internal.h"

#include <string.h>

/* What is to be done with an entry that has a page; true: it is dropped. */
typedef bool (*EntryVisit) (RbpDirectory *dir, uint32_t part, uint32_t index,
							void *arg);

/* Returns whether the page was dropped.  Locked. */
static bool
visit_entry(RbpDirectory *dir, uint32_t part, uint32_t index, EntryVisit fn, void *arg)
{
	bool		drop = fn(dir, part, index, arg);

	if (drop)
		rbp_entry_drop(dir, part, index, rbp_entry_page_hash(rbp_entry(dir, index)));
	return drop;
}

/*
 * Visit the pages in the partition's slots of the next extents, from *at on, which is
 * advanced; after the last one those that are staged, which are few.  Returns how many were
 * dropped.  Locked.
 */
static uint32_t
visit_chunk(RbpDirectory *dir, uint32_t part, uint32_t *at, EntryVisit fn, void *arg)
{
	uint32_t	end = dir->nlocal - *at > RBP_CHUNK ? *at + RBP_CHUNK : dir->nlocal;
	uint32_t	staged = dir->partitions[part].lists[RBP_SLOT_STAGED].head;
	uint32_t	dropped = 0;

	for (; *at < end; (*at)++)
	{
		uint32_t	index = part * dir->nlocal + *at;

		if (rbp_extent_touched(dir, *at) && rbp_entry_queued(rbp_entry(dir, index)))
			dropped += visit_entry(dir, part, index, fn, arg);
	}
	while (end == dir->nlocal && staged != RBP_NIL)
	{
		uint32_t	next = rbp_entry(dir, staged)->next;

		dropped += visit_entry(dir, part, staged, fn, arg);
		staged = next;
	}
	return dropped;
}

static bool
is_dead(RbpDirectory *dir, uint32_t part, uint32_t index, void *arg)
{
	(void) arg;
	return !rbp_entry_live(dir, part, index);
}

/*
 * Entries that come into a chunk after it was done are of generations at least
 * as new as the count of bumps that was read when the sweep began.
 */
bool
rbp_directory_sweep_step(RbpDirectory *dir, int partition, uint32_t *freed)
{
	RbpPartition *p = &dir->partitions[partition];
	uint64_t	bumps = rbp_directory_bumps(dir);
	bool		more;

	rbp_partition_lock(dir, p, true);
	more = p->swept != bumps;
	if (more)
	{
		if (p->sweep_at == 0)
			p->sweep_bumps = bumps;
		*freed += visit_chunk(dir, (uint32_t) partition, &p->sweep_at, is_dead, NULL);
		more = p->sweep_at < dir->nlocal;
		if (!more)
		{
			p->swept = p->sweep_bumps;
			p->sweep_at = 0;
		}
	}
	rbp_lock_release(&p->lock);
	return more;
}

/*
 * Call fn for each entry of the partition that has a page, under the
 * partition's lock, which is released between chunks of remote slots.  fn
 * returns whether to drop the entry; that requires an exclusive lock.  Returns how
 * many were dropped.
 */
static uint64_t
for_each_entry(RbpDirectory *dir, uint32_t part, bool exclusive,
			   EntryVisit fn, void *arg)
{
	RbpPartition *p = &dir->partitions[part];
	uint32_t	at = 0;
	uint64_t	dropped = 0;

	do
	{
		rbp_partition_lock(dir, p, exclusive);
		dropped += visit_chunk(dir, part, &at, fn, arg);
		rbp_lock_release(&p->lock);
	} while (at < dir->nlocal);
	return dropped;
}

typedef struct Visit
{
	RbpPageVisit fn;
	void	   *arg;
} Visit;

static bool
visit_page(RbpDirectory *dir, uint32_t part, uint32_t index, void *arg)
{
	Visit	   *visit = arg;
	RbpPageId	page = rbp_entry_page(rbp_entry(dir, index));
	RbpLookup	at;

	rbp_fill_lookup(dir, part, index, rbp_page_hash(&page), &at);
	return rbp_entry_live(dir, part, index) && visit->fn(&page, &at, visit->arg);
}

uint64_t
rbp_directory_visit(RbpDirectory *dir, int partition, bool drops, RbpPageVisit fn, void *arg)
{
	Visit		visit = {fn, arg};

	return for_each_entry(dir, (uint32_t) partition, drops, visit_page, &visit);
}

bool
rbp_directory_is_hot(RbpDirectory *dir, const RbpLookup *at)
{
	const RbpEntry *e;

	if (at->where != RBP_REMOTE)
		return false;
	e = rbp_entry(dir, rbp_slot_index(dir, at->slot));
	return rbp_entry_state(e) != RBP_SLOT_SMALL || rbp_entry_freq(e) > 0;
}

static bool
count_page(const RbpPageId *page, const RbpLookup *at, void *arg)
{
	RbpTierPages *pages = arg;

	(void) page;
	if (at->where == RBP_STAGED)
		pages->staged++;
	else
		pages->remote++;
	return false;
}

/* Slots of the partition that have no page, nor are reserved for one.  Any lock. */
static uint32_t
free_slots(const RbpDirectory *dir, const RbpPartition *p)
{
	uint32_t	slots = rbp_partition_slots(dir);

	return p->lists[RBP_SLOT_FREE].count + (slots > p->taken ? slots - p->taken : 0);
}

void
rbp_directory_counts(RbpDirectory *dir, RbpTierPages *pages)
{
	memset(pages, 0, sizeof(*pages));
	pages->online = (uint64_t) rbp_partition_slots(dir) * RBP_PARTITIONS;
	for (uint32_t part = 0; part < RBP_PARTITIONS; part++)
	{
		RbpPartition *p = &dir->partitions[part];
		bool		all_live;

		rbp_partition_lock(dir, p, false);
		all_live = p->swept == rbp_directory_bumps(dir) &&
			rbp_extents_closed(dir->extents) == 0;
		pages->free += free_slots(dir, p);
		pages->kept += p->lists[RBP_SLOT_KEPT].count;
		if (all_live)
		{
			/* nothing has died since: no need to look at each */
			pages->remote += p->lists[RBP_SLOT_SMALL].count +
				p->lists[RBP_SLOT_MAIN].count + p->lists[RBP_SLOT_KEPT].count;
			pages->staged += p->lists[RBP_SLOT_STAGED].count;
		}
		rbp_lock_release(&p->lock);
		if (!all_live)
			(void) rbp_directory_visit(dir, (int) part, false, count_page, pages);
	}
}

/*
 * Slots of the partition that a page could still take without another's.  *unread: would S3-FIFO
 * evict a page for it that was never read?  It evicts the oldest one of the small queue when that
 * is longer than it should be.  If it is just as long, one page of the main queue goes
 * before that.
 */
static uint32_t
partition_room(RbpDirectory *dir, uint32_t part, bool *unread)
{
	RbpPartition *p = &dir->partitions[part];
	const RbpList *small = &p->lists[RBP_SLOT_SMALL];
	uint32_t	room;
	uint32_t	staged;

	rbp_partition_lock(dir, p, false);
	room = free_slots(dir, p);
	/* those that are staged will want one each */
	staged = p->lists[RBP_SLOT_STAGED].count;
	*unread = small->tail != RBP_NIL && rbp_entry_freq(rbp_entry(dir, small->tail)) == 0 &&
		small->count >= rbp_s3fifo_small_room(rbp_partition_slots(dir));
	rbp_lock_release(&p->lock);
	return room > staged ? room - staged : 0;
}

RbpRoom
rbp_directory_room(RbpDirectory *dir, const RbpPageId *page)
{
	bool		unread;
	uint32_t	room = partition_room(dir, rbp_hash_partition(rbp_page_hash(page)), &unread);

	return room > 0 ? RBP_ROOM_FREE : unread ? RBP_ROOM_UNREAD : RBP_ROOM_NONE;
}

bool
rbp_directory_is_full(RbpDirectory *dir)
{
	uint64_t	room = 0;
	bool		unread;

	for (uint32_t part = 0; part < RBP_PARTITIONS; part++)
		room += partition_room(dir, part, &unread);
	return room <= (uint64_t) rbp_partition_slots(dir) * RBP_PARTITIONS / 64;
}

/*
 * ---- applying policies --------------------------------------------------------
 */

/* Put the page on the list of kept pages if it should be there, and is not. */
static void
keep_page(RbpDirectory *dir, RbpPartition *p, uint32_t index)
{
	RbpEntry   *e = rbp_entry(dir, index);
	RbpSlotState state = rbp_entry_state(e);

	if ((state == RBP_SLOT_SMALL || state == RBP_SLOT_MAIN) &&
		rbp_may_keep_page(dir, p, e))
	{
		rbp_list_remove(dir, p, index);
		rbp_list_push(dir, p, RBP_SLOT_KEPT, rbp_entry_freq(e), index);
	}
}

bool
rbp_directory_keep(RbpDirectory *dir, const RbpPageId *page)
{
	uint64_t	hash = rbp_page_hash(page);
	uint32_t	part = rbp_hash_partition(hash);
	RbpPartition *p = &dir->partitions[part];
	uint32_t	index;
	bool		is_there;

	rbp_partition_lock(dir, p, true);
	index = rbp_entry_find(dir, hash, page);
	is_there = index != RBP_NIL && rbp_entry_live(dir, part, index);
	if (is_there)
		keep_page(dir, p, index);
	rbp_lock_release(&p->lock);
	return is_there;
}

/* Apply the policy to one entry.  Returns whether to drop the entry. */
static bool
apply_fn(RbpDirectory *dir, uint32_t part, uint32_t index, void *arg)
{
	RbpPartition *p = &dir->partitions[part];
	RbpEntry   *e = rbp_entry(dir, index);
	RbpPolicy	policy = rbp_directory_policy(dir, e->rel, e->space);
	uint8_t		freq = rbp_entry_freq(e);

	(void) arg;
	if (policy == RBP_POLICY_NONE)
		return true;
	if (rbp_entry_state(e) != RBP_SLOT_KEPT)
		keep_page(dir, p, index);
	else if (policy != RBP_POLICY_KEEP || rbp_kept_too_many(dir, p))
	{
		rbp_list_remove(dir, p, index);
		rbp_list_push(dir, p, freq > 0 ? RBP_SLOT_MAIN : RBP_SLOT_SMALL, freq, index);
	}
	return false;
}

uint64_t
rbp_directory_apply_policies(RbpDirectory *dir, int partition)
{
	return for_each_entry(dir, (uint32_t) partition, true, apply_fn, NULL);
}
