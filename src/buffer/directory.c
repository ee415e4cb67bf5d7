/*-------------------------------------------------------------------------
 *
 * directory.c
 *	  Which page is where.
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
 *	- Generations and the epoch: only ever raised, without a lock, by somebody
 *	  who is about to change the files.  A lookup at the same time may see the
 *	  entry as live or as dead; one that begins after the bump sees it dead,
 *	  also when the entry is inserted after the bump by somebody who had
 *	  compared generations before it: the entry carries the old generation.
 *
 *	- Extents' bytes.  An extent is closed before its entries are dropped, and
 *	  is not online again before all of them are.  Whoever holds a partition
 *	  lock and meets a slot whose extent is not online takes the slot out of
 *	  use himself.  That an extent comes online touches none of its slots: a
 *	  slot that is not in use, of an extent that is online, is fresh, and
 *	  reserve() finds it by going through the extents' bytes, which also count
 *	  the fresh slots.  A fresh slot is taken by a compare-and-swap on the byte,
 *	  so that close() either stops it or sees that the extent has been touched.
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
 * write to the page.  rbp_directory_stamp reads without lock.
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
#include "base/geometry.h"
#include "base/lock.h"
#include "base/mutation.h"
#include "base/relfile.h"
#include "buffer/directory.h"
#include "buffer/directory_internal.h"
#include "buffer/page.h"
#include "buffer/s3fifo.h"

#include <string.h>

/*
 * ---- layout -----------------------------------------------------------
 */

static size_t
align_line(size_t n)
{
	return (n + RBP_CACHE_LINE - 1) & ~(size_t) (RBP_CACHE_LINE - 1);
}

/* Fill in the constant part. */
static void
compute_layout(RbpDirectory *dir, uint32_t max_slots, uint32_t staging_slots)
{
	size_t		nentries = (size_t) max_slots + staging_slots;
	size_t		at = align_line(sizeof(RbpDirectory));
	uint32_t	nlocal = max_slots / RBP_PARTITIONS;

	RBP_ASSERT(max_slots % RBP_EXTENT_PAGES == 0);
	RBP_ASSERT(nentries < RBP_NIL);

	dir->max_slots = max_slots;
	dir->staging_slots = staging_slots;
	dir->nlocal = nlocal;
	dir->nbuckets = nlocal < 8 ? 8 : nlocal;

	/* whole cache lines of stamps */
	dir->nstamps = (nlocal / RBP_SLOTS_PER_STAMP + 15) & ~15u;
	if (dir->nstamps < RBP_MIN_STAMPS)
		dir->nstamps = RBP_MIN_STAMPS;
	dir->nghost_sets = nlocal / RBP_GHOST_WAYS + 1;
	dir->ghost_unit = nlocal / 1024 + 1;
	dir->nstripes = nlocal / RBP_ACCOUNT_EXTENTS;
	if (dir->nstripes < 1)
		dir->nstripes = 1;
	if (dir->nstripes > RBP_ACCOUNT_STRIPES)
		dir->nstripes = RBP_ACCOUNT_STRIPES;

	dir->entries = at;
	at += align_line(nentries * sizeof(RbpEntry));
	dir->prev = at;
	at += align_line(nentries * sizeof(uint32_t));
	dir->buckets = at;
	at += align_line((size_t) dir->nbuckets * RBP_PARTITIONS * sizeof(uint32_t));
	dir->ghosts = at;
	at += align_line((size_t) dir->nghost_sets * RBP_GHOST_WAYS *
					 RBP_PARTITIONS * sizeof(uint32_t));
	dir->stamps = at;
	at += align_line((size_t) dir->nstamps * RBP_PARTITIONS * sizeof(uint32_t));
	dir->generations = at;
	at += align_line((size_t) RBP_GENERATIONS * sizeof(uint32_t));
	dir->extents = at;
	at += align_line(nlocal);
	dir->owners = at;
	at += align_line(nlocal * sizeof(uint16_t));
	dir->accounts = at;
	at += align_line((size_t) dir->nstripes * RBP_MAX_REGIONS * sizeof(RbpAccount));
	dir->policies = at;
	at += align_line((size_t) RBP_POLICY_BUCKETS * RBP_POLICY_WAYS * sizeof(uint64_t));
	dir->held = at;
	at += align_line((size_t) RBP_POLICY_BUCKETS * RBP_POLICY_WAYS * sizeof(uint32_t));
	dir->space_pages = at;
	at += align_line((size_t) dir->nstripes * RBP_MAX_SPACES * sizeof(int32_t));
	dir->space_limits = at;
	at += align_line(RBP_MAX_SPACES);
	dir->limits = at;
	at += align_line((RBP_LIMITS + 1) * sizeof(RbpLimit));
	dir->bytes = at;
}

size_t
rbp_directory_size(uint32_t max_slots, uint32_t staging_slots)
{
	RbpDirectory layout;

	compute_layout(&layout, max_slots, staging_slots);
	return layout.bytes;
}

RbpDirectory *
rbp_directory_init(void *mem, uint32_t max_slots, uint32_t staging_slots,
				   int tranche)
{
	RbpDirectory *dir = mem;
	RBP_ASSERT((uintptr_t) mem % RBP_CACHE_LINE == 0);
	memset(dir, 0, sizeof(RbpDirectory));
	compute_layout(dir, max_slots, staging_slots);

	for (int i = 0; i < RBP_PARTITIONS; i++)
	{
		RbpPartition *p = &dir->partitions[i];

		rbp_lock_init(&p->lock, tranche);
		for (int j = 0; j < RBP_NUM_LISTS; j++)
			p->lists[j].head = p->lists[j].tail = RBP_NIL;
	}
	return dir;
}

uint32_t
rbp_directory_max_slots(const RbpDirectory *dir)
{
	return dir->max_slots;
}

/*
 * ---- entries and chains --------------------------------------------------
 */

static inline uint32_t
slot_index(const RbpDirectory *dir, uint32_t slot)
{
	return slot % RBP_PARTITIONS * dir->nlocal + slot / RBP_PARTITIONS;
}

static inline uint32_t *
page_stamp(const RbpDirectory *dir, uint64_t hash)
{
	return rbp_array(dir, dir->stamps) +
		(size_t) rbp_hash_partition(hash) * dir->nstamps +
		rbp_hash_place(hash, dir->nstamps);
}

void
rbp_chain_link(RbpDirectory *dir, uint64_t hash, uint32_t index)
{
	uint32_t   *head = rbp_bucket_head(dir, hash);

	rbp_entry(dir, index)->chain = ~*head;
	*head = ~index;
}

static void
chain_unlink(RbpDirectory *dir, uint64_t hash, uint32_t index)
{
	uint32_t   *head = rbp_bucket_head(dir, hash);
	uint32_t   *link;

	if (~*head == index)
	{
		*head = ~rbp_entry(dir, index)->chain;
		return;
	}
	link = &rbp_entry(dir, ~*head)->chain;
	while (*link != index)
	{
		RBP_ASSERT(*link != RBP_NIL);
		link = &rbp_entry(dir, *link)->chain;
	}
	*link = rbp_entry(dir, index)->chain;
}

/*
 * A slot that counts as taken and is on no list is not needed any more: free
 * it, or leave it out of use if nothing is to be put into its extent.
 */
void
rbp_slot_release(RbpDirectory *dir, RbpPartition *p, uint32_t part, uint32_t index)
{
	if (rbp_extent_open(dir, index - part * dir->nlocal))
		rbp_list_push(dir, p, RBP_SLOT_FREE, 0, index);
	else
	{
		rbp_entry_set(rbp_entry(dir, index), RBP_SLOT_UNUSED, 0);
		p->taken--;
	}
}

/* Count a fresh slot of the extent as taken, if the extent is open. */
static bool
take_fresh(RbpDirectory *dir, uint32_t extent)
{
	uint8_t    *byte = rbp_extent_byte(dir, extent);
	uint8_t		now = __atomic_load_n(byte, __ATOMIC_ACQUIRE);

	while (now > RBP_EXTENT_ONLINE && now <= RBP_EXTENT_FRESH)
	{
		uint8_t		left = now == RBP_EXTENT_FRESH ? RBP_EXTENT_TOUCHED - 1 : now - 1;

		if (__atomic_compare_exchange_n(byte, &now, left, false,
										__ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE))
			return true;
	}
	return false;
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
	uint32_t	top = __atomic_load_n(&dir->top, __ATOMIC_ACQUIRE);

	for (int step = 0; step < RBP_FRESH_STEPS; step++)
	{
		uint32_t	extent;
		uint32_t	index;
		uint8_t		now;

		if (p->scan >= top)
		{
			uint32_t	onlinings = __atomic_load_n(&dir->onlinings, __ATOMIC_ACQUIRE);

			if (p->scan_began == onlinings)
				break;
			top = __atomic_load_n(&dir->top, __ATOMIC_ACQUIRE);
			p->scan_began = onlinings;
			p->scan = 0;
		}
		extent = p->scan++;
		index = part * dir->nlocal + extent;
		now = rbp_extent_now(dir, extent);
		if (now > RBP_EXTENT_ONLINE && now <= RBP_EXTENT_FRESH &&
			rbp_entry_state(rbp_entry(dir, index)) == RBP_SLOT_UNUSED &&
			take_fresh(dir, extent))
		{
			p->taken++;
			return index;
		}
	}
	return RBP_NIL;
}

/* A pusher lets go of a slot. */
static void
slot_unreserve(RbpDirectory *dir, RbpPartition *p, uint32_t part,
			   uint32_t index)
{
	RbpSlotState state = rbp_entry_state(rbp_entry(dir, index));

	RBP_ASSERT(state == RBP_SLOT_RESERVED || state == RBP_SLOT_LOST);
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

/* Take the entry, that has a page, out of chain and queue. */
void
rbp_entry_drop(RbpDirectory *dir, uint32_t part, uint32_t index, uint64_t hash)
{
	RbpPartition *p = &dir->partitions[part];
	RbpEntry   *e = rbp_entry(dir, index);

	chain_unlink(dir, hash, index);
	rbp_list_remove(dir, p, index);
	if (index >= dir->max_slots)
		rbp_entry_set(e, RBP_SLOT_UNUSED, 0);
	else
	{
		rbp_account_add(dir, part, index, hash, -1, -rbp_entry_freq(e));
		rbp_slot_release(dir, p, part, index);
	}
}

/*
 * ---- versions -----------------------------------------------------------
 */

uint32_t
rbp_directory_stamp(RbpDirectory *dir, const RbpPageId *page)
{
	return __atomic_load_n(page_stamp(dir, rbp_page_hash(page)),
						   __ATOMIC_ACQUIRE);
}

uint32_t
rbp_directory_generation(RbpDirectory *dir, uint32_t rel, uint16_t space,
						 uint8_t fork)
{
	return rbp_generation_now(dir, rel, space, fork);
}

/*
 * The generation first, the count of bumps after it: a sweep that reads the
 * count sees all generations that it stands for.
 */
void
rbp_directory_bump_generation(RbpDirectory *dir, uint32_t rel, uint16_t space,
							  uint8_t fork)
{
	uint32_t   *stripes = rbp_array(dir, dir->generations);
	uint64_t	h = rbp_fork_hash(rel, space, fork);

	if (RBP_MUTATED(RBP_MUTATION_NO_GENERATION))
		return;
	__atomic_fetch_add(&stripes[h % RBP_GENERATIONS], 1, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&dir->bumps, 1, __ATOMIC_SEQ_CST);
}

void
rbp_directory_bump_all(RbpDirectory *dir)
{
	if (RBP_MUTATED(RBP_MUTATION_NO_GENERATION))
		return;
	__atomic_fetch_add(&dir->epoch, 1, __ATOMIC_SEQ_CST);
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
rbp_directory_lookup(RbpDirectory *dir, const RbpPageId *page, bool touch)
{
	RbpLookup	result = {RBP_ABSENT, RBP_INVALID_SLOT, 0};
	uint64_t	hash = rbp_page_hash(page);
	uint32_t	part = rbp_hash_partition(hash);
	RbpPartition *p = &dir->partitions[part];
	uint32_t	index;

	/* so that the misses on the bucket and on the lock overlap */
	__builtin_prefetch(rbp_bucket_head(dir, hash));

	rbp_lock_shared(&p->lock);
	index = rbp_entry_find(dir, hash, page);
	if (index != RBP_NIL && rbp_entry_live(dir, part, index))
	{
		rbp_fill_lookup(dir, part, index, &result);
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

void
rbp_directory_prefetch(const RbpDirectory *dir, const RbpPageId *page)
{
	uint64_t	hash = rbp_page_hash(page);

	__builtin_prefetch(rbp_bucket_head(dir, hash));
	__builtin_prefetch(page_stamp(dir, hash));
	__builtin_prefetch(&dir->partitions[rbp_hash_partition(hash)].lock, 1);
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

	rbp_lock_exclusive(&p->lock);
	index = rbp_entry_find(dir, hash, page);
	if (index != RBP_NIL && rbp_entry_live(dir, part, index))
	{
		RbpLookup	now;

		rbp_fill_lookup(dir, part, index, &now);
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

RbpWhere
rbp_directory_invalidate(RbpDirectory *dir, const RbpPageId *page)
{
	uint64_t	hash = rbp_page_hash(page);
	uint32_t	part = rbp_hash_partition(hash);
	RbpPartition *p = &dir->partitions[part];
	RbpWhere	dropped = RBP_ABSENT;
	uint32_t	index;

	if (RBP_MUTATED(RBP_MUTATION_NO_INVALIDATE))
		return RBP_ABSENT;

	rbp_lock_exclusive(&p->lock);
	__atomic_fetch_add(page_stamp(dir, hash), 1, __ATOMIC_SEQ_CST);
	index = rbp_entry_find(dir, hash, page);
	if (index != RBP_NIL)
	{
		if (rbp_entry_live(dir, part, index))
		{
			dropped = index >= dir->max_slots ? RBP_STAGED : RBP_REMOTE;
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
rbp_directory_insert_staged(RbpDirectory *dir, const RbpPageId *page,
							const RbpVersion *version, uint32_t staging_slot)
{
	uint64_t	hash = rbp_page_hash(page);
	uint32_t	part = rbp_hash_partition(hash);
	RbpPartition *p = &dir->partitions[part];
	uint32_t	index = dir->max_slots + staging_slot;
	uint32_t	generation;
	RbpInsert	result = RBP_INSERTED;

	RBP_ASSERT(staging_slot < dir->staging_slots);
	RBP_ASSERT(rbp_entry_state(rbp_entry(dir, index)) == RBP_SLOT_UNUSED);

	rbp_lock_exclusive(&p->lock);
	generation = rbp_generation_now(dir, page->rel, page->space, page->fork);
	if (!RBP_MUTATED(RBP_MUTATION_NO_CAPTURE_STAMP) &&
		(generation != version->generation ||
		 __atomic_load_n(page_stamp(dir, hash),
						 __ATOMIC_RELAXED) != version->stamp))
		result = RBP_INSERT_STALE;
	else
	{
		uint32_t	old = rbp_entry_find(dir, hash, page);

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
		RbpEntry   *e = rbp_entry(dir, index);

		e->hash = version->hash;
		e->rel = page->rel;
		e->block = page->block;
		e->generation = generation;
		e->space = page->space;
		e->fork = page->fork;
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
	uint64_t	page_hash = rbp_entry_page_hash(e);
	uint32_t	part = rbp_hash_partition(page_hash);
	RbpPartition *p = &dir->partitions[part];
	bool		staged;
	bool		live;

	RBP_ASSERT(staging_slot < dir->staging_slots);

	rbp_lock_shared(&p->lock);
	staged = rbp_entry_state(e) == RBP_SLOT_STAGED;
	live = staged && rbp_entry_live(dir, part, index);
	rbp_lock_release(&p->lock);

	if (staged && !live)
	{
		/* the caller will reuse the slot, so nothing may refer to it */
		rbp_lock_exclusive(&p->lock);
		if (rbp_entry_state(e) == RBP_SLOT_STAGED)
			rbp_entry_drop(dir, part, index, page_hash);
		rbp_lock_release(&p->lock);
	}
	if (live)
	{
		*page = rbp_entry_page(e);
		*hash = e->hash;
	}
	return live;
}

/* Forget the page of an entry that was taken off its queue; the slot counts as taken. */
static void
entry_give_up(RbpDirectory *dir, uint32_t part, uint32_t index)
{
	RbpEntry   *e = rbp_entry(dir, index);
	uint64_t	hash = rbp_entry_page_hash(e);

	chain_unlink(dir, hash, index);
	rbp_account_add(dir, part, index, hash, -1, -rbp_entry_freq(e));
}

/*
 * Make room under the limit that the space is under, if one page more would pass
 * it.  Where no page is found that could make room, because the partition has none, or
 * is large, the page comes on top, as long as the limit is passed by less than a page
 * for each partition.  False if it is not: the page goes without a slot.
 */
static bool
make_room_under_limit(RbpDirectory *dir, uint32_t part, uint16_t space,
					  uint32_t *evictions)
{
	RbpPartition *p = &dir->partitions[part];

	/* two at most, so that what was passed is made good */
	for (int i = 0; i < 2; i++)
	{
		uint32_t	limit = rbp_limit_reached(dir, space);
		bool		live = false;
		uint32_t	index;

		if (limit == 0)
			return true;
		index = rbp_limit_evict(dir, part, limit, &live);
		if (index == RBP_NIL)
			return i > 0 || !rbp_limit_passed(dir, limit);
		entry_give_up(dir, part, index);
		rbp_slot_release(dir, p, part, index);
		*evictions += live;
	}
	return true;
}

uint32_t
rbp_directory_reserve(RbpDirectory *dir, const RbpPageId *page, bool *evicted)
{
	uint32_t	part = rbp_hash_partition(rbp_page_hash(page));
	RbpPartition *p = &dir->partitions[part];
	uint32_t	slot = RBP_INVALID_SLOT;
	bool		look = true;	/* for fresh slots, once */
	uint32_t	evictions = 0;
	int			freed = 0;
	int			tries = 0;

	rbp_lock_exclusive(&p->lock);
	if (!make_room_under_limit(dir, part, page->space, &evictions))
		tries = RBP_EVICT_STEPS;

	/*
	 * What is found may lie in an extent that is closed, or draining, and is
	 * then put out of use on the spot.  That is bounded too: a pusher may
	 * well go without a slot while memory is being lost.
	 */
	while (tries < RBP_EVICT_STEPS)
	{
		uint32_t	index = p->lists[RBP_SLOT_FREE].head;
		bool		live = false;

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
			entry_give_up(dir, part, index);
			tries++;
		}

		if (!rbp_extent_open(dir, index - part * dir->nlocal))
		{
			rbp_slot_release(dir, p, part, index);
			continue;
		}
		evictions += live;
		rbp_entry_set(rbp_entry(dir, index), RBP_SLOT_RESERVED, 0);
		p->reserved++;
		slot = rbp_index_slot(dir, part, index);
		break;
	}
	p->evictions += evictions;
	*evicted = evictions > 0;
	rbp_lock_release(&p->lock);
	return slot;
}

RbpInsert
rbp_directory_publish(RbpDirectory *dir, const RbpPageId *page,
					  uint32_t staging_slot, uint32_t slot)
{
	uint64_t	hash = rbp_page_hash(page);
	uint32_t	part = rbp_hash_partition(hash);
	RbpPartition *p = &dir->partitions[part];
	uint32_t	staged_index = dir->max_slots + staging_slot;
	uint32_t	index = slot_index(dir, slot);
	RbpEntry   *staged = rbp_entry(dir, staged_index);
	RbpEntry   *e = rbp_entry(dir, index);
	uint8_t		freq = 0;
	RbpInsert	result = RBP_INSERTED;

	RBP_ASSERT(staging_slot < dir->staging_slots);
	RBP_ASSERT(slot < dir->max_slots && slot % RBP_PARTITIONS == part);

	rbp_lock_exclusive(&p->lock);

	/*
	 * A write to the page since it was staged has dropped the staged entry,
	 * so that stamps need no second look.
	 */
	if (rbp_entry_state(staged) != RBP_SLOT_STAGED ||
		!rbp_entry_is_page(staged, page))
		result = RBP_INSERT_GONE;
	else
	{
		if (!rbp_entry_live(dir, part, staged_index) ||
			rbp_directory_policy(dir, page->rel, page->space) == RBP_POLICY_NONE)
			result = RBP_INSERT_STALE;
		freq = rbp_entry_freq(staged);
		rbp_entry_drop(dir, part, staged_index, hash);
	}

	if (RBP_MUTATED(RBP_MUTATION_NO_PUBLISH_CHECK) && result != RBP_INSERTED)
	{
		uint32_t	other = rbp_entry_find(dir, hash, page);

		if (other != RBP_NIL)
			rbp_entry_drop(dir, part, other, hash);
		staged->generation = rbp_generation_now(dir, page->rel, page->space,
												page->fork);
		result = RBP_INSERTED;
	}

	if (result == RBP_INSERTED &&
		(rbp_entry_state(e) == RBP_SLOT_LOST ||
		 !rbp_extent_online(dir, slot / RBP_EXTENT_PAGES)))
		result = RBP_INSERT_OFFLINE;

	if (result == RBP_INSERTED)
	{
		p->reserved--;
		e->hash = staged->hash;
		e->rel = page->rel;
		e->block = page->block;
		e->generation = staged->generation;
		e->space = page->space;
		e->fork = page->fork;
		rbp_chain_link(dir, hash, index);
		rbp_s3fifo_insert(dir, part, index, hash, freq);
		rbp_account_add(dir, part, index, hash, 1, freq);
	}
	else
		slot_unreserve(dir, p, part, index);
	rbp_lock_release(&p->lock);
	return result;
}

void
rbp_directory_abandon(RbpDirectory *dir, const RbpPageId *page,
					  uint32_t staging_slot, uint32_t slot)
{
	uint64_t	hash = rbp_page_hash(page);
	uint32_t	part = rbp_hash_partition(hash);
	RbpPartition *p = &dir->partitions[part];
	uint32_t	staged_index = dir->max_slots + staging_slot;
	RbpEntry   *staged = rbp_entry(dir, staged_index);

	RBP_ASSERT(staging_slot < dir->staging_slots);

	rbp_lock_exclusive(&p->lock);
	if (rbp_entry_state(staged) == RBP_SLOT_STAGED &&
		rbp_entry_is_page(staged, page))
		rbp_entry_drop(dir, part, staged_index, hash);
	if (slot != RBP_INVALID_SLOT)
	{
		RBP_ASSERT(slot % RBP_PARTITIONS == part);
		slot_unreserve(dir, p, part, slot_index(dir, slot));
	}
	rbp_lock_release(&p->lock);
}

/*
 * ---- housekeeping and views -------------------------------------------------
 */

/*
 * Entries that come into a chunk after it was done are of generations at least
 * as new as the count of bumps that was read when the sweep began.
 */
bool
rbp_directory_sweep_step(RbpDirectory *dir, int partition, uint32_t *freed)
{
	uint32_t	part = (uint32_t) partition;
	RbpPartition *p = &dir->partitions[part];
	uint32_t	base = part * dir->nlocal;
	uint64_t	bumps = rbp_directory_bumps(dir);
	uint32_t	end;
	bool		done;

	rbp_lock_exclusive(&p->lock);
	if (p->swept == bumps)
	{
		rbp_lock_release(&p->lock);
		return false;
	}
	if (p->sweep_at == 0)
		p->sweep_bumps = bumps;
	end = dir->nlocal - p->sweep_at > RBP_SWEEP_STEP ?
		p->sweep_at + RBP_SWEEP_STEP : dir->nlocal;
	for (uint32_t i = p->sweep_at; i < end; i++)
	{
		RbpEntry   *e = rbp_entry(dir, base + i);

		if (rbp_extent_touched(dir, i) && rbp_entry_queued(e) &&
			!rbp_entry_live(dir, part, base + i))
		{
			rbp_entry_drop(dir, part, base + i, rbp_entry_page_hash(e));
			(*freed)++;
		}
	}
	p->sweep_at = end;

	done = end == dir->nlocal;
	if (done)
	{
		/* of staged pages a partition has few */
		for (uint32_t index = p->lists[RBP_SLOT_STAGED].head, next;
			 index != RBP_NIL; index = next)
		{
			RbpEntry   *e = rbp_entry(dir, index);

			next = e->next;
			if (!rbp_entry_live(dir, part, index))
			{
				rbp_entry_drop(dir, part, index, rbp_entry_page_hash(e));
				(*freed)++;
			}
		}
		p->swept = p->sweep_bumps;
		p->sweep_at = 0;
	}
	rbp_lock_release(&p->lock);
	return !done;
}

uint32_t
rbp_directory_sweep(RbpDirectory *dir, int partition)
{
	uint32_t	freed = 0;

	while (rbp_directory_sweep_step(dir, partition, &freed))
		 /* go on */ ;
	return freed;
}

void
rbp_for_each_entry(RbpDirectory *dir, uint32_t part, bool exclusive,
				   bool (*fn) (RbpDirectory *dir, uint32_t part, uint32_t index,
							   void *arg),
				   void *arg)
{
	RbpPartition *p = &dir->partitions[part];
	uint32_t	base = part * dir->nlocal;
	uint32_t	start = 0;
	bool		done = false;

	while (!done)
	{
		uint32_t	end = dir->nlocal - start > RBP_CHUNK ?
			start + RBP_CHUNK : dir->nlocal;

		if (exclusive)
			rbp_lock_exclusive(&p->lock);
		else
			rbp_lock_shared(&p->lock);
		for (uint32_t i = start; i < end; i++)
		{
			RbpEntry   *e = rbp_entry(dir, base + i);

			if (rbp_extent_touched(dir, i) && rbp_entry_queued(e) &&
				fn(dir, part, base + i, arg))
				rbp_entry_drop(dir, part, base + i, rbp_entry_page_hash(e));
		}
		done = end == dir->nlocal;
		if (done)
		{
			uint32_t	next;

			for (uint32_t index = p->lists[RBP_SLOT_STAGED].head;
				 index != RBP_NIL; index = next)
			{
				RbpEntry   *e = rbp_entry(dir, index);

				next = e->next;
				if (fn(dir, part, index, arg))
					rbp_entry_drop(dir, part, index, rbp_entry_page_hash(e));
			}
		}
		rbp_lock_release(&p->lock);
		start = end;
	}
}

typedef struct DropRelationArg
{
	uint32_t	rel;
	uint16_t	space;
	uint64_t	dropped;
} DropRelationArg;

static bool
drop_relation_fn(RbpDirectory *dir, uint32_t part, uint32_t index, void *arg)
{
	DropRelationArg *drop = arg;
	const RbpEntry *e = rbp_entry(dir, index);

	if (e->rel != drop->rel || e->space != drop->space ||
		!rbp_entry_live(dir, part, index))
		return false;
	drop->dropped++;
	return true;
}

uint64_t
rbp_directory_drop_relation(RbpDirectory *dir, uint32_t rel, uint16_t space)
{
	DropRelationArg arg = {rel, space, 0};

	for (uint32_t part = 0; part < RBP_PARTITIONS; part++)
		rbp_for_each_entry(dir, part, true, drop_relation_fn, &arg);
	return arg.dropped;
}

typedef struct ScanArg
{
	void		(*fn) (const RbpPageId *page, RbpWhere where, uint32_t slot,
					   void *arg);
	void	   *arg;
} ScanArg;

static bool
scan_fn(RbpDirectory *dir, uint32_t part, uint32_t index, void *arg)
{
	ScanArg    *scan = arg;
	RbpPageId	page = rbp_entry_page(rbp_entry(dir, index));
	RbpLookup	at;

	if (!rbp_entry_live(dir, part, index))
		return false;
	rbp_fill_lookup(dir, part, index, &at);
	scan->fn(&page, at.where, at.slot, scan->arg);
	return false;
}

void
rbp_directory_scan(RbpDirectory *dir, int partition,
				   void (*fn) (const RbpPageId *page, RbpWhere where,
							   uint32_t slot, void *arg),
				   void *arg)
{
	ScanArg		scan = {fn, arg};

	rbp_for_each_entry(dir, (uint32_t) partition, false, scan_fn, &scan);
}

static bool
count_fn(RbpDirectory *dir, uint32_t part, uint32_t index, void *arg)
{
	RbpDirectoryCounts *counts = arg;

	if (!rbp_entry_live(dir, part, index))
		return false;
	if (index >= dir->max_slots)
		counts->staged++;
	else
		counts->remote++;
	return false;
}

void
rbp_directory_counts(RbpDirectory *dir, RbpDirectoryCounts *counts)
{
	uint32_t	slots = rbp_partition_slots(dir);

	memset(counts, 0, sizeof(*counts));
	for (uint32_t part = 0; part < RBP_PARTITIONS; part++)
	{
		RbpPartition *p = &dir->partitions[part];
		bool		all_live;

		rbp_lock_shared(&p->lock);
		all_live = p->swept == rbp_directory_bumps(dir) &&
			rbp_directory_closed(dir) == 0;
		counts->free += p->lists[RBP_SLOT_FREE].count +
			(slots > p->taken ? slots - p->taken : 0);
		counts->small += p->lists[RBP_SLOT_SMALL].count;
		counts->main += p->lists[RBP_SLOT_MAIN].count;
		counts->kept += p->lists[RBP_SLOT_KEPT].count;
		counts->reserved += p->reserved;
		counts->online += slots;
		counts->evictions += p->evictions;
		if (all_live)
		{
			/* nothing has died since: no need to look at each */
			counts->remote += p->lists[RBP_SLOT_SMALL].count +
				p->lists[RBP_SLOT_MAIN].count + p->lists[RBP_SLOT_KEPT].count;
			counts->staged += p->lists[RBP_SLOT_STAGED].count;
		}
		rbp_lock_release(&p->lock);
		if (!all_live)
			rbp_for_each_entry(dir, part, false, count_fn, counts);
	}
}

/* Slots of the partition that a page could still take without another's. */
static uint32_t
partition_room(RbpDirectory *dir, uint32_t part)
{
	RbpPartition *p = &dir->partitions[part];
	uint32_t	slots = rbp_partition_slots(dir);
	uint32_t	room;

	rbp_lock_shared(&p->lock);
	room = p->lists[RBP_SLOT_FREE].count +
		(slots > p->taken ? slots - p->taken : 0);
	/* those that are staged will want one each */
	room -= p->lists[RBP_SLOT_STAGED].count < room ?
		p->lists[RBP_SLOT_STAGED].count : room;
	rbp_lock_release(&p->lock);
	return room;
}

bool
rbp_directory_has_room(RbpDirectory *dir, const RbpPageId *page)
{
	return partition_room(dir, rbp_hash_partition(rbp_page_hash(page))) > 0;
}

bool
rbp_directory_is_full(RbpDirectory *dir)
{
	uint64_t	room = 0;

	for (uint32_t part = 0; part < RBP_PARTITIONS; part++)
		room += partition_room(dir, part);
	return room <= (uint64_t) rbp_partition_slots(dir) * RBP_PARTITIONS / 64;
}
