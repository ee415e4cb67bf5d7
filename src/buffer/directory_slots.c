/*-------------------------------------------------------------------------
 *
 * directory_slots.c
 *	  Which remote slot a page gets: free ones, fresh ones, those of other pages,
 *	  also where a database's limit asks for that.
 *
 * A slot is unused, or it is taken: then it is free (on the list of those), reserved
 * for a page that is being written to it, or it has a page, and is on one of the
 * queues.  The counts of a partition (taken, reserved), its list of free slots, and the
 * place where its search for fresh slots stands (scan, scan_began) change here,
 * under the partition's exclusive lock.  Extents' states are atomics: fresh slots
 * are taken by compare-and-swap.
 *
 * directory_pages.c explains how this fits together with the other files.
 *
 *-------------------------------------------------------------------------
 */
#include "buffer/directory_internal.h"
#include "buffer/s3fifo.h"

/* Count a fresh slot of the extent as taken, if the extent is open. */
static bool
take_fresh(RbpDirectory *dir, uint32_t extent)
{
	uint8_t		now = rbp_extent_now(dir, extent);

	while (now > RBP_EXTENT_ONLINE && rbp_state_open(now))
	{
		uint8_t		left = now == RBP_EXTENT_FRESH ? RBP_EXTENT_TOUCHED - 1 : now - 1;

		if (__atomic_compare_exchange_n(&dir->states[extent], &now, left, false,
										__ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE))
			return true;
	}
	return false;
}

/*
 * Is the slot of an extent that is online fresh?  Who had reserved what was lost
 * before a crash is gone.
 */
static inline bool
is_fresh(const RbpDirectory *dir, const RbpEntry *e)
{
	RbpSlotState state = rbp_entry_state(e);

	return state == RBP_SLOT_UNUSED || (state == RBP_SLOT_LOST && e->generation != dir->opened);
}

/*
 * A fresh slot of the partition, taken, and on no list; RBP_NIL if there is
 * none, or none was found yet: then the next call looks further.  Exclusive
 * lock.
 */
static uint32_t
next_fresh(RbpDirectory *dir, uint32_t part)
{
	RbpPartition *p = &dir->partitions[part];
	uint32_t	top = __atomic_load_n(&dir->extents->top, __ATOMIC_ACQUIRE);

	for (int step = 0; step < RBP_FRESH_STEPS; step++)
	{
		uint32_t	extent;
		uint32_t	index;
		uint8_t		now;

		if (p->scan >= top)
		{
			uint32_t	onlinings = rbp_extents_onlinings(dir->extents);

			if (p->scan_began == onlinings)
				break;
			top = __atomic_load_n(&dir->extents->top, __ATOMIC_ACQUIRE);
			p->scan_began = onlinings;
			p->scan = 0;
		}
		extent = p->scan++;
		index = part * dir->nlocal + extent;
		now = rbp_extent_now(dir, extent);
		if (now > RBP_EXTENT_ONLINE && rbp_state_open(now) &&
			is_fresh(dir, rbp_entry(dir, index)) && take_fresh(dir, extent))
		{
			p->taken++;
			return index;
		}
	}
	return RBP_NIL;
}

/* A reserved slot is let go. */
void
rbp_slot_unreserve(RbpDirectory *dir, RbpPartition *p, uint32_t part,
				   uint32_t index)
{
	RbpSlotState state = rbp_entry_state(rbp_entry(dir, index));

	Assert(state == RBP_SLOT_RESERVED || state == RBP_SLOT_LOST);
	p->reserved--;
	if (state == RBP_SLOT_LOST)
	{
		/*
		 * If its extent is back, it is one of the fresh slots there.  Should
		 * the extent come just after this look, it still is, and is not to be
		 * put on a list: close() would not know that the extent is in use.
		 */
		if (!take_fresh(dir, index - part * dir->nlocal))
		{
			rbp_entry_set(rbp_entry(dir, index), RBP_SLOT_UNUSED, 0);
			return;
		}
		p->taken++;
	}
	rbp_slot_release(dir, p, part, index);
}

/*
 * ---- limits of databases -----------------------------------------------------
 */

/* By how much would so many pages more exceed the database's limit?  Negative if there is room. */
static int64_t
over_limit(const RbpDirectory *dir, uint16_t database, int more)
{
	int64_t		max = rbp_directory_limit(dir, database);

	return max < 0 ? INT64_MIN : (int64_t) rbp_directory_database_pages(dir, database) + more - max;
}

/*
 * Drop one of the partition's pages of the database, which is not kept: by CLOCK,
 * beginning where the last choice ended.  Visits RBP_CHUNK entries at most, so
 * false does not mean that there is no such page.  A live page is noted as evicted.
 * Exclusive lock.
 */
static bool
drop_under_limit(RbpDirectory *dir, uint32_t part, uint16_t database, RbpEvicted *evicted)
{
	RbpPartition *p = &dir->partitions[part];
	uint32_t	top = __atomic_load_n(&dir->extents->top, __ATOMIC_ACQUIRE);
	uint32_t	chosen = RBP_NIL;

	/*
	 * An extent has one slot in each partition, so the clock's hand goes from
	 * extent to extent.  A page that was read loses one of its accesses, also
	 * in its account, each time the hand passes it.
	 */
	for (uint32_t step = 0; step < RBP_CHUNK && step < top; step++)
	{
		uint32_t	extent = p->limit_hand < top ? p->limit_hand : 0;
		uint32_t	index = part * dir->nlocal + extent;
		RbpEntry   *e = rbp_entry(dir, index);
		RbpSlotState state;
		uint8_t		freq;

		p->limit_hand = extent + 1;
		if (!rbp_extent_touched(dir, extent))
			continue;
		state = rbp_entry_state(e);
		if ((state != RBP_SLOT_SMALL && state != RBP_SLOT_MAIN) ||
			rbp_database_of(dir, e->space) != database)
			continue;
		freq = rbp_entry_freq(e);
		if (chosen == RBP_NIL || freq == 0)
			chosen = index;
		if (freq == 0)
			break;
		rbp_account_add(dir, part, index, rbp_entry_page_hash(e), 0, -1);
		rbp_entry_set(e, state, freq - 1);
	}
	if (chosen == RBP_NIL)
		return false;
	if (rbp_entry_live(dir, part, chosen))
		evicted->pages[evicted->n++] = rbp_entry_page(rbp_entry(dir, chosen));
	rbp_entry_drop(dir, part, chosen, rbp_entry_page_hash(rbp_entry(dir, chosen)));
	return true;
}

/*
 * Make room under the limit of the space's database, if one page more would exceed
 * it.  Where no page is found that could make room, because the partition has none, or
 * is large, the page comes on top, as long as the limit cannot be exceeded by more than
 * a page for each partition.  False if it is not: the page goes without a slot.
 * Exclusive lock.
 */
static bool
limit_make_room(RbpDirectory *dir, uint32_t part, uint16_t space, RbpEvicted *evicted)
{
	uint16_t	database = rbp_database_of(dir, space);

	/* evict at most two pages, so that an earlier overshoot is worked off */
	for (int i = 0; i < RBP_MAX_EVICTED - 1 && over_limit(dir, database, 1) > 0; i++)
		/* a batch of pages counts only when it is published */
		if (!drop_under_limit(dir, part, database, evicted))
			return i > 0 || over_limit(dir, database, RBP_MAX_BATCH) < RBP_PARTITIONS;
	return true;
}

uint64_t
rbp_directory_trim(RbpDirectory *dir, int partition, uint16_t database)
{
	RbpPartition *p = &dir->partitions[partition];
	int64_t		over = over_limit(dir, database, 0);
	uint64_t	surplus = over > 0 ? (uint64_t) (over - 1) / (RBP_PARTITIONS - partition) + 1 : 0;
	uint64_t	dropped = 0;
	uint32_t	visited = 0;	/* since the last one that was dropped */

	while (dropped < surplus && visited < dir->nlocal)
	{
		RbpEvicted	unused = {.n = 0};
		bool		found;

		rbp_partition_lock(dir, p, true);
		found = drop_under_limit(dir, (uint32_t) partition, database, &unused);
		rbp_lock_release(&p->lock);
		visited = found ? 0 : visited + RBP_CHUNK;
		dropped += found;
	}
	return dropped;
}

/*
 * ---- a slot for a page --------------------------------------------------------
 */

uint32_t
rbp_directory_reserve(RbpDirectory *dir, const RbpPageId *page, RbpEvicted *evicted)
{
	uint64_t	hash = rbp_page_hash(page);
	uint32_t	part = rbp_hash_partition(hash);
	RbpPartition *p = &dir->partitions[part];
	uint32_t	has;
	uint32_t	slot = RBP_INVALID_SLOT;
	bool		look = true;	/* for fresh slots, once */
	int			freed = 0;
	int			tries = 0;

	evicted->n = 0;
	rbp_partition_lock(dir, p, true);

	/*
	 * a page that has a slot, and is to get another, counts under its limit
	 * already
	 */
	has = rbp_entry_find(dir, hash, page);
	if ((has == RBP_NIL || has >= dir->max_slots) &&
		!limit_make_room(dir, part, page->space, evicted))
		tries = RBP_EVICT_STEPS;

	/*
	 * What is found may lie in an extent that is closed, or draining, and is
	 * then put out of use on the spot.  That is bounded too: a page may well
	 * go without a slot while memory is being lost.
	 */
	while (tries < RBP_EVICT_STEPS)
	{
		/*
		 * the oldest one: what was given back because it failed is not tried
		 * next
		 */
		uint32_t	index = p->lists[RBP_SLOT_FREE].tail;
		bool		live = false;
		RbpPageId	victim = {0};
		uint64_t	victim_hash;

		if (index != RBP_NIL)
		{
			rbp_list_remove(dir, p, index);
			/* these cost no page */
			tries += ++freed % RBP_EVICT_STEPS == 0;
		}
		else if (!look || (index = next_fresh(dir, part)) == RBP_NIL)
		{
			look = false;
			index = rbp_s3fifo_evict(dir, part, &live);
			if (index == RBP_NIL)
				break;
			victim = rbp_entry_page(rbp_entry(dir, index));
			victim_hash = rbp_page_hash(&victim);
			rbp_chain_unlink(dir, victim_hash, index);
			rbp_account_add(dir, part, index, victim_hash, -1, -rbp_entry_freq(rbp_entry(dir, index)));
			tries++;
		}

		if (!rbp_extent_open(dir->extents, index - part * dir->nlocal))
		{
			rbp_slot_release(dir, p, part, index);
			continue;
		}
		if (live)
			evicted->pages[evicted->n++] = victim;
		rbp_entry_set(rbp_entry(dir, index), RBP_SLOT_RESERVED, 0);
		p->reserved++;
		slot = rbp_index_slot(dir, part, index);
		break;
	}
	p->evictions += (uint32_t) evicted->n;
	rbp_lock_release(&p->lock);
	return slot;
}
