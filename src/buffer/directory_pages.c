/*-------------------------------------------------------------------------
 *
 * directory_pages.c
 *	  Which page is where: lookups, invalidation, staging, publication.
 *
 * directory_internal.h lists the other files of the directory.
 *
 * Concurrency
 *
 * A partition lock protects the entries, chains, queues, ghosts and stamps of
 * the pages that hash to it, and the slots that are its own.  Nothing here
 * holds two, so their order among each other does not matter, and each is
 * held for a short, bounded time: walks over all entries of a partition let
 * go of the lock every RBP_CHUNK entries.  What is outside of the locks:
 *
 *	- Access counts.  A lookup raises one under the shared lock by a plain
 *	  atomic store, and only while it is below the maximum, so that the line
 *	  of a hot page stays shared between the cores.  Of two lookups at the
 *	  same time one may be lost.  The state beside the count in the same byte
 *	  changes only under the exclusive lock, so the store cannot undo it.
 *
 *	- Generations: only ever raised, without a lock, by somebody who is about to
 *	  change the files, or has just done so.  A lookup at the same time may see the
 *	  entry as live or as dead; one that begins after the bump sees it dead,
 *	  also when the entry is inserted after the bump by somebody who had
 *	  compared generations before it: the entry carries the old generation.
 *
 *	- Extents' states, which remote owns.  An extent is closed before its entries are dropped, and
 *	  is not online again before all of them are.  Whoever holds a partition
 *	  lock and meets a slot whose extent is not online takes the slot out of
 *	  use himself.  That an extent comes online touches none of its slots: a
 *	  slot that is not in use, of an extent that is online, is fresh, and
 *	  reserve() finds it by going through the extents' states, which also count
 *	  the fresh slots.  A fresh slot is taken by a compare-and-swap on the state,
 *	  so that closing either stops it or sees that the extent has been touched.
 *
 *	- Accounts: sums of atomic additions, made by who changes an entry.  Of the
 *	  access counts only those of one page in RBP_HEAT_SAMPLE are followed, so
 *	  that few hits write a line that others write as well; there the count
 *	  itself is raised by compare-and-swap, lest the sum runs away from it.
 *
 *	- Policies: words that one process at a time writes.  A page that is published
 *	  by a policy of just before is put right by rbp_directory_apply_policies(),
 *	  which takes each lock after the word was written.  A file's count of
 *	  kept pages changes under the lock of each page's partition.
 *
 *	- The page in the entry of a staging slot: changed only by the process
 *	  that holds the staging slot, in insert_staged.  The same process may
 *	  read it without a lock, and so learns the partition to lock; that the
 *	  slot passes from backend to pusher through the staging queue orders the
 *	  two.  Dropping a staged entry therefore leaves page and hash in it, and
 *	  only changes its state.
 *
 * Stamps.  A stripe of stamps belongs to one partition and is written under
 * its exclusive lock, hence insert_staged, which holds it too, cannot miss a
 * write to the page.  rbp_directory_note_version() reads without a lock.
 *
 * A process is killed
 *
 * At any instruction, with locks or without.  The server then ends all others, too,
 * and opens the directory again in the memory that they have left
 * (directory_setup.c).  Of what locks protect only remote slots' entries are
 * believed, one by one, beside stamps, generations and ghosts; chains, lists and
 * counts are made of them.  For that, at each instruction:
 *
 *	- An entry that says by its state that it has a page is whole: page, hash and
 *	  generation are those of one claim.  The state is stored last when the
 *	  entry gets a page, and until then is RESERVED; it is stored first when the
 *	  entry loses it.  rbp_entry_set() keeps the compiler to that order, which is enough: all
 *	  that a killed process has executed is seen by those who come later, and no more.
 *
 *	- Its claim is true, or it is dead by its generation or extent.  Who is about to
 *	  write the page to its file drops the entry, or bumps the generation, before the first
 *	  byte changes.  Killed before the drop, the file has not changed; a stamp
 *	  that was bumped already voids claims that are gone anyway.
 *
 *	- No other entry has the page, since what takes its place drops it first
 *	  (rbp_directory_move()); killed in between, the page is gone.  Staged entries
 *	  are forgotten.
 *
 *	- Its slot has the page's content, since a slot is written only while its entry is
 *	  RESERVED or LOST.  A write that comes late fails the verification, as ever.
 *
 *	- An extent that is fresh or absent has no entry with a page: its state
 *	  changes before the first slot is taken, and back after the last one was
 *	  dropped.  It may have LOST ones; those of before the crash count as fresh.
 *
 * A process that crashes may also have written anywhere.  An entry whose name was
 * overwritten does not verify, since the hash that it has covers its page's name and the
 * lookup's page is another one.
 *
 * Overflow.  Stamps and generations have 32 bits and wrap.  A version is then
 * taken for good only if the number of bumps of its stripe since is a multiple
 * of 2^32, exactly, at the moment of comparison.  At a million a second that
 * takes 72 minutes for a single stripe, and there are thousands, each used by
 * a share of all writes; at that moment it has one chance in 2^32.  For a
 * generation an entry would moreover have to outlive all sweeps, which follow
 * any bump; and a capture compares the frame's content too.  The counter of
 * bumps has 64 bits.
 *
 *-------------------------------------------------------------------------
 */
#include "base/injection_point.h"
#include "buffer/directory_internal.h"
#include "buffer/s3fifo.h"

static inline uint32_t *
page_stamp(const RbpDirectory *dir, uint64_t hash)
{
	return rbp_array(dir, dir->stamps) +
		(size_t) rbp_hash_partition(hash) * dir->nstamps +
		rbp_hash_place(hash, dir->nstamps);
}

/*
 * ---- versions -----------------------------------------------------------
 */

void
rbp_directory_note_version(RbpDirectory *dir, const RbpPageRef *page, RbpVersion *version)
{
	version->stamp = __atomic_load_n(page_stamp(dir, page->hash), __ATOMIC_ACQUIRE);
	version->generation = rbp_generation_now(dir, page->id.rel, page->id.space, page->id.fork);
}

/*
 * The generation first, the count of bumps after it: a sweep that reads the
 * count sees all generations that it stands for.
 */
void
rbp_directory_bump_generation(RbpDirectory *dir, uint32_t rel, uint16_t space,
							  uint8_t fork)
{
	if (RBP_INJECTION_POINT("no-generation"))
		return;
	__atomic_fetch_add(rbp_fork_generation(dir, rel, space, fork), 1, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&dir->bumps, 1, __ATOMIC_SEQ_CST);
}

void
rbp_directory_bump_all(RbpDirectory *dir)
{
	uint32_t   *generations = rbp_array(dir, dir->generations);

	for (uint32_t i = 0; i < dir->ngenerations; i++)
		__atomic_fetch_add(&generations[i], 1, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&dir->bumps, 1, __ATOMIC_SEQ_CST);
}

uint64_t
rbp_directory_bumps(RbpDirectory *dir)
{
	return __atomic_load_n(&dir->bumps, __ATOMIC_ACQUIRE);
}

/*
 * ---- the hit path ---------------------------------------------------------
 */

RbpLookup
rbp_directory_lookup(RbpDirectory *dir, const RbpPageRef *page, bool touch)
{
	RbpLookup	result = {RBP_ABSENT, RBP_INVALID_SLOT, 0};
	uint64_t	hash = page->hash;
	uint32_t	part = rbp_hash_partition(hash);
	RbpPartition *p = &dir->partitions[part];
	uint32_t	index;

	/* so that the misses on the bucket and on the lock overlap */
	__builtin_prefetch(rbp_bucket_head(dir, hash));

	rbp_partition_lock(dir, p, false);
	index = rbp_entry_find(dir, hash, &page->id);
	if (index != RBP_NIL && rbp_entry_live(dir, part, index))
	{
		rbp_fill_lookup(dir, part, index, hash, &result);
		if (touch)
		{
			RbpEntry   *e = rbp_entry(dir, index);
			uint8_t		flags = __atomic_load_n(&e->flags, __ATOMIC_RELAXED);
			uint8_t		raised = flags + (1 << RBP_FREQ_SHIFT);

			if (flags >> RBP_FREQ_SHIFT >= RBP_MAX_FREQ)
				 /* most pages that are hot: nothing to write */ ;
			else if (!rbp_hash_sampled(hash) || index >= dir->max_slots)
				__atomic_store_n(&e->flags, raised, __ATOMIC_RELAXED);
			else if (__atomic_compare_exchange_n(&e->flags, &flags, raised, false,
												 __ATOMIC_RELAXED, __ATOMIC_RELAXED))
				rbp_account_add(dir, part, index, hash, 0, 1);
		}
	}
	rbp_lock_release(&p->lock);
	return result;
}

RbpLookup
rbp_directory_begin_read(RbpDirectory *dir, const RbpPageRef *page, RbpVersion *version)
{
	rbp_directory_note_version(dir, page, version);
	return rbp_directory_lookup(dir, page, true);
}

/*
 * That takes two steps, since the first entry of the bucket is found in the bucket.
 * Each is taken for all pages, so that their cache misses overlap.
 */
void
rbp_directory_prefetch(const RbpDirectory *dir, const RbpPageRef *pages, int n)
{
	for (int i = 0; i < n; i++)
	{
		uint64_t	hash = pages[i].hash;

		__builtin_prefetch(rbp_bucket_head(dir, hash));
		__builtin_prefetch(page_stamp(dir, hash));
		__builtin_prefetch(&dir->partitions[rbp_hash_partition(hash)].lock, 1);
	}
	for (int i = 0; i < n; i++)
	{
		/* without a lock: a wrong entry only costs its prefetch */
		uint32_t	index = ~__atomic_load_n(rbp_bucket_head(dir, pages[i].hash), __ATOMIC_RELAXED);

		if (index != RBP_NIL)
			__builtin_prefetch(rbp_entry(dir, index));
	}
}

bool
rbp_directory_drop_if_same(RbpDirectory *dir, const RbpPageId *page,
						   const RbpLookup *seen)
{
	uint64_t	hash = rbp_page_hash(page);
	uint32_t	part = rbp_hash_partition(hash);
	RbpPartition *p = &dir->partitions[part];
	uint32_t	index;
	bool		same = false;

	rbp_partition_lock(dir, p, true);
	index = rbp_entry_find(dir, hash, page);
	if (index != RBP_NIL && rbp_entry_live(dir, part, index))
	{
		RbpLookup	now;

		rbp_fill_lookup(dir, part, index, hash, &now);
		same = now.where == seen->where && now.slot == seen->slot &&
			now.hash == seen->hash;
		if (same)
			rbp_entry_drop(dir, part, index, hash);
	}
	rbp_lock_release(&p->lock);
	return same;
}

/*
 * ---- writes ---------------------------------------------------------------
 */

/* A page that is written will be captured again, so a ghost remembers it. */
RbpWhere
rbp_directory_invalidate(RbpDirectory *dir, const RbpPageId *page, bool written)
{
	uint64_t	hash = rbp_page_hash(page);
	uint32_t	part = rbp_hash_partition(hash);
	RbpPartition *p = &dir->partitions[part];
	RbpWhere	dropped = RBP_ABSENT;
	uint32_t	index;

	if (RBP_INJECTION_POINT(written ? "no-invalidate" : "no-removal"))
		return RBP_ABSENT;
	rbp_partition_lock(dir, p, true);
	__atomic_fetch_add(page_stamp(dir, hash), 1, __ATOMIC_SEQ_CST);
	index = rbp_entry_find(dir, hash, page);
	if (index != RBP_NIL)
	{
		if (rbp_entry_live(dir, part, index))
		{
			dropped = index >= dir->max_slots ? RBP_STAGED : RBP_REMOTE;
			if (written)
				rbp_s3fifo_remember(dir, part, index, hash);
		}
		rbp_entry_drop(dir, part, index, hash);
	}
	rbp_lock_release(&p->lock);
	return dropped;
}

/*
 * ---- capture and push -------------------------------------------------------
 */

RbpInsert
rbp_directory_insert_staged(RbpDirectory *dir, const RbpPageRef *page,
							const RbpVersion *version, uint32_t staging_slot)
{
	uint64_t	hash = page->hash;
	uint32_t	part = rbp_hash_partition(hash);
	RbpPartition *p = &dir->partitions[part];
	uint32_t	index = dir->max_slots + staging_slot;
	uint32_t	generation;
	RbpInsert	result = RBP_INSERTED;

	Assert(staging_slot < dir->staging_slots);
	Assert(rbp_entry_state(rbp_entry(dir, index)) == RBP_SLOT_UNUSED);

	rbp_partition_lock(dir, p, true);
	generation = rbp_generation_now(dir, page->id.rel, page->id.space, page->id.fork);
	if (!RBP_INJECTION_POINT("no-capture-stamp") &&
		(generation != version->generation ||
		 __atomic_load_n(page_stamp(dir, hash),
						 __ATOMIC_RELAXED) != version->stamp))
		result = RBP_INSERT_STALE;
	else
	{
		uint32_t	old = rbp_entry_find(dir, hash, &page->id);

		if (old != RBP_NIL)
		{
			if (rbp_entry_live(dir, part, old))
				result = RBP_INSERT_PRESENT;
			else
				rbp_entry_drop(dir, part, old, hash);
		}
	}
	if (result == RBP_INSERTED)
	{
		rbp_entry_fill(rbp_entry(dir, index), &page->id, hash, version->hash, generation);
		rbp_chain_link(dir, hash, index);
		rbp_list_push(dir, p, RBP_SLOT_STAGED, 0, index);
	}
	rbp_lock_release(&p->lock);
	return result;
}

bool
rbp_directory_staged_info(RbpDirectory *dir, uint32_t staging_slot,
						  RbpPageId *page, uint64_t *hash)
{
	uint32_t	index = dir->max_slots + staging_slot;
	RbpEntry   *e = rbp_entry(dir, index);
	uint32_t	part = rbp_hash_partition(rbp_entry_page_hash(e));
	RbpPartition *p = &dir->partitions[part];
	bool		staged;
	bool		live;

	Assert(staging_slot < dir->staging_slots);

	rbp_partition_lock(dir, p, false);
	staged = rbp_entry_state(e) == RBP_SLOT_STAGED;
	live = staged && rbp_entry_live(dir, part, index);
	rbp_lock_release(&p->lock);

	*page = rbp_entry_page(e);
	*hash = rbp_entry_content(e, rbp_page_hash(page));
	/* the caller will reuse the slot, so nothing may refer to it */
	if (staged && !live)
		(void) rbp_directory_publish(dir, page, staging_slot, RBP_INVALID_SLOT, false);
	return live;
}

RbpInsert
rbp_directory_publish(RbpDirectory *dir, const RbpPageId *page,
					  uint32_t staging_slot, uint32_t slot, bool written)
{
	uint64_t	hash = rbp_page_hash(page);
	uint32_t	part = rbp_hash_partition(hash);
	RbpPartition *p = &dir->partitions[part];
	uint32_t	staged_index = dir->max_slots + staging_slot;
	uint32_t	index = rbp_slot_index(dir, slot);
	RbpEntry   *staged = rbp_entry(dir, staged_index);
	uint8_t		freq = 0;
	RbpInsert	result = RBP_INSERTED;

	Assert(staging_slot < dir->staging_slots);
	Assert(slot == RBP_INVALID_SLOT ? !written :
		   slot < dir->max_slots && slot % RBP_PARTITIONS == part);

	rbp_partition_lock(dir, p, true);

	/*
	 * A write to the page since it was staged has dropped the staged entry,
	 * so that stamps need no second look.
	 */
	if (rbp_entry_state(staged) != RBP_SLOT_STAGED ||
		!rbp_entry_is_page(staged, page))
		result = RBP_INSERT_GONE;
	else
	{
		if (!written || !rbp_entry_live(dir, part, staged_index) ||
			rbp_directory_policy(dir, page->rel, page->space) == RBP_POLICY_NONE)
			result = RBP_INSERT_STALE;
		freq = rbp_entry_freq(staged);
		rbp_entry_drop(dir, part, staged_index, hash);
	}

	if (RBP_INJECTION_POINT("no-publish-check") && written && result != RBP_INSERTED)
	{
		uint32_t	other = rbp_entry_find(dir, hash, page);

		if (other != RBP_NIL)
			rbp_entry_drop(dir, part, other, hash);
		staged->generation = rbp_generation_now(dir, page->rel, page->space,
												page->fork);
		result = RBP_INSERTED;
	}

	if (result == RBP_INSERTED &&
		(rbp_entry_state(rbp_entry(dir, index)) == RBP_SLOT_LOST ||
		 !rbp_extent_online(dir, slot / RBP_EXTENT_PAGES)))
		result = RBP_INSERT_OFFLINE;

	if (result == RBP_INSERTED)
	{
		p->reserved--;
		rbp_entry_fill(rbp_entry(dir, index), page, hash,
					   rbp_entry_content(staged, hash), staged->generation);
		rbp_chain_link(dir, hash, index);
		rbp_s3fifo_insert(dir, part, index, hash, freq);
		rbp_account_add(dir, part, index, hash, 1, freq);
	}
	else if (slot != RBP_INVALID_SLOT)
		rbp_slot_unreserve(dir, p, part, index);
	rbp_lock_release(&p->lock);
	return result;
}

void
rbp_directory_unreserve(RbpDirectory *dir, uint32_t slot)
{
	uint32_t	part = slot % RBP_PARTITIONS;
	RbpPartition *p = &dir->partitions[part];

	rbp_partition_lock(dir, p, true);
	rbp_slot_unreserve(dir, p, part, rbp_slot_index(dir, slot));
	rbp_lock_release(&p->lock);
}
