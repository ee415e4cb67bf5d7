/*-------------------------------------------------------------------------
 *
 * directory_extent.c
 *	  Extents of the directory: what they hold, dropping it, moving pages.
 *
 * directory_pages.c explains how this fits together with the other files.
 *
 *-------------------------------------------------------------------------
 */
#include "buffer/directory_internal.h"
#include "buffer/s3fifo.h"

/*
 * Take the slots of closed extents out of use.  The entries of a partition
 * are adjacent, ordered by extent, so handle all extents under each partition
 * lock.
 */
void
rbp_directory_drop_extents(RbpDirectory *dir, const uint32_t *extents, uint32_t n)
{
	for (uint32_t part = 0; part < RBP_PARTITIONS; part++)
	{
		RbpPartition *p = &dir->partitions[part];

		rbp_partition_lock(dir, p, true);
		for (uint32_t i = 0; i < n; i++)
		{
			uint32_t	index = part * dir->nlocal + extents[i];
			RbpEntry   *e = rbp_entry(dir, index);

			if (rbp_entry_queued(e))
			{
				uint64_t	hash = rbp_entry_page_hash(e);

				if (e->generation == rbp_generation_now(dir, e->rel, e->space, e->fork))
					rbp_s3fifo_remember(dir, part, index, hash);
				rbp_entry_drop(dir, part, index, hash);
			}
			else if (rbp_entry_state(e) == RBP_SLOT_FREE)
			{
				rbp_list_remove(dir, p, index);
				rbp_slot_release(dir, p, part, index);
			}
			else if (rbp_entry_state(e) == RBP_SLOT_RESERVED)
			{
				e->generation = dir->opened;
				rbp_entry_set(e, RBP_SLOT_LOST, 0);
				p->taken--;
			}
		}
		rbp_lock_release(&p->lock);
	}
}

uint64_t
rbp_directory_heat(RbpDirectory *dir, uint32_t account, uint64_t *used)
{
	const RbpAccount *accounts = (const RbpAccount *) ((char *) dir + dir->accounts);
	int64_t		pages = 0;
	int64_t		sampled = 0;

	Assert(account < RBP_MAX_REGIONS);
	for (uint32_t stripe = 0; stripe < dir->nstripes; stripe++)
	{
		const RbpAccount *a = &accounts[(size_t) stripe * RBP_MAX_REGIONS + account];

		pages += __atomic_load_n(&a->used, __ATOMIC_RELAXED);
		sampled += __atomic_load_n(&a->sampled, __ATOMIC_RELAXED);
	}
	*used = pages > 0 ? (uint64_t) pages : 0;
	return *used + (sampled > 0 ? (uint64_t) sampled * RBP_HEAT_SAMPLE : 0);
}

/*
 * ---- moving pages out of an extent that drains ------------------------------
 */

int
rbp_directory_movable(RbpDirectory *dir, uint32_t extent, uint32_t *next,
					  RbpMovable *pages, int max)
{
	int			n = 0;

	while (n < max && *next < RBP_PARTITIONS)
	{
		uint32_t	part = (*next)++;
		RbpPartition *p = &dir->partitions[part];
		uint32_t	index = part * dir->nlocal + extent;
		RbpEntry   *e = rbp_entry(dir, index);

		rbp_partition_lock(dir, p, true);
		if (rbp_entry_state(e) == RBP_SLOT_FREE)
		{
			/* take it off the free list, lest reserve() has to skip it */
			rbp_list_remove(dir, p, index);
			rbp_slot_release(dir, p, part, index);
		}
		else if (rbp_entry_queued(e) && rbp_entry_live(dir, part, index))
		{
			uint32_t	held = p->lists[RBP_SLOT_SMALL].count +
			p->lists[RBP_SLOT_MAIN].count + p->lists[RBP_SLOT_KEPT].count +
			p->lists[RBP_SLOT_STAGED].count + p->reserved;
			bool		fits = held <= __atomic_load_n(&dir->extents->open, __ATOMIC_RELAXED);

			if (!fits && rbp_entry_state(e) == RBP_SLOT_SMALL &&
				rbp_entry_freq(e) == 0)
				rbp_entry_drop(dir, part, index, rbp_entry_page_hash(e));
			else
			{
				pages[n].page = rbp_entry_page(e);
				rbp_fill_lookup(dir, part, index, rbp_page_hash(&pages[n].page), &pages[n].at);
				n++;
			}
		}
		rbp_lock_release(&p->lock);
	}
	return n;
}

/*
 * If the page was written after it was looked up, its entry was dropped, so
 * stamps need not be checked.  The generation is copied along.
 */
RbpInsert
rbp_directory_move(RbpDirectory *dir, const RbpMovable *from, uint32_t slot)
{
	uint64_t	hash = rbp_page_hash(&from->page);
	uint32_t	part = rbp_hash_partition(hash);
	RbpPartition *p = &dir->partitions[part];
	uint32_t	index = rbp_slot_index(dir, slot);
	RbpEntry   *e = rbp_entry(dir, index);
	RbpPolicy	policy = rbp_directory_policy(dir, from->page.rel, from->page.space);
	RbpInsert	result = RBP_INSERT_GONE;
	uint32_t	old;

	Assert(slot < dir->max_slots && slot % RBP_PARTITIONS == part);
	rbp_partition_lock(dir, p, true);
	old = rbp_entry_find(dir, hash, &from->page);
	if (old == rbp_slot_index(dir, from->at.slot) && rbp_entry_live(dir, part, old) &&
		rbp_entry_content(rbp_entry(dir, old), hash) == from->at.hash && policy != RBP_POLICY_NONE)
		result = rbp_entry_state(e) != RBP_SLOT_LOST && rbp_extent_online(dir, slot / RBP_EXTENT_PAGES) ?
			RBP_INSERTED : RBP_INSERT_OFFLINE;
	if (result == RBP_INSERTED)
	{
		const RbpEntry *was = rbp_entry(dir, old);
		RbpSlotState queue = rbp_entry_state(was);
		uint8_t		freq = rbp_entry_freq(was);

		p->reserved--;
		rbp_entry_fill(e, &from->page, hash, from->at.hash, was->generation);

		/*
		 * A walk that applies a changed policy may have passed the new slot,
		 * and not come to the old one.
		 */
		if (queue == RBP_SLOT_KEPT && policy != RBP_POLICY_KEEP)
			queue = RBP_SLOT_MAIN;
		else if (queue != RBP_SLOT_KEPT && rbp_may_keep_page(dir, p, e))
			queue = RBP_SLOT_KEPT;
		rbp_entry_drop(dir, part, old, hash);
		rbp_chain_link(dir, hash, index);
		rbp_list_push(dir, p, queue, freq, index);
		rbp_account_add(dir, part, index, hash, 1, freq);
	}
	else
		rbp_slot_unreserve(dir, p, part, index);
	rbp_lock_release(&p->lock);
	return result;
}

/*
 * ---- what an extent holds, slot by slot ---------------------------------------
 */

uint32_t
rbp_directory_extent_used(RbpDirectory *dir, uint32_t extent)
{
	uint32_t	used = 0;

	for (uint32_t part = 0; part < RBP_PARTITIONS; part++)
	{
		RbpPartition *p = &dir->partitions[part];
		uint32_t	index = part * dir->nlocal + extent;

		rbp_partition_lock(dir, p, false);
		used += rbp_entry_queued(rbp_entry(dir, index)) &&
			rbp_entry_live(dir, part, index);
		rbp_lock_release(&p->lock);
	}
	return used;
}
