/*-------------------------------------------------------------------------
 *
 * s3fifo.c
 *	  S3-FIFO, the replacement policy of a directory partition.
 *
 * J. Yang, Y. Zhang, Z. Qiu, Y. Yue, R. Vinayak: FIFO queues are all you
 * need for cache eviction, SOSP 2023.  Three FIFO queues:
 *
 *	 small	new pages; a tenth of the slots.  Most of what comes here is seen
 *			once (a sequential scan, all of it) and leaves at the other end
 *			without having displaced anything else.
 *	 main	pages that were read while in small, or came back while their
 *			ghost was remembered.  What was read since it last passed the
 *			end goes round again; the rest leaves.
 *	 ghost	names of pages that left small unread.
 *
 * A fourth list holds the pages that are kept by policy (see directory.h) and
 * takes no part in S3-FIFO.  Pages are put there when they are published or
 * when they would be evicted, and are taken off only if there are more of
 * them than allowed.
 *
 * A hit only increments a counter of two bits, under a shared lock; no entry
 * is moved until a slot is needed.
 *
 * Differences from the paper:
 * - One read is enough to move a page from small to main, where the paper
 *	 asks for two.  Shared buffers absorb the burst of accesses to a new page,
 *	 so a read here is a later access.
 * - A page that is dropped because it is being written, or because its memory
 *	 is lost, leaves a ghost if it was in main or on its way there: it is
 *	 likely to return, as hot as before.
 * - Work is bounded: after RBP_EVICT_STEPS moves the next page at the end of
 *	 main is evicted, read or not.  When nearly all pages of main were read
 *	 since they last passed the end, the choice hardly matters.
 *
 * Ghosts are a set-associative table of 32-bit words: 20 bits of fingerprint,
 * and 12 bits for the time of creation.  Time is counted in ghosts created,
 * in ticks of 1/1024 of the partition's capacity.  A ghost is valid until as
 * many ghosts were created as main has room for, as in a FIFO queue of that
 * length.  Both are approximate.  A false match (8 in a million lookups), or
 * a ghost that survived until the clock wraps around (after four times the
 * capacity of the table, by when the set has been overwritten about four
 * times), puts one page into main that should have gone to small.
 *
 *-------------------------------------------------------------------------
 */
#include "buffer/directory_internal.h"
#include "buffer/s3fifo.h"

#define GHOST_TIME_BITS		12
#define GHOST_TIME_MASK		((1u << GHOST_TIME_BITS) - 1)

static inline uint32_t *
ghost_set(RbpDirectory *dir, uint32_t part, uint64_t hash)
{
	uint32_t	set = rbp_hash_place(hash, dir->nghost_sets);

	return rbp_array(dir, dir->ghosts) +
		((size_t) part * dir->nghost_sets + set) * RBP_GHOST_WAYS;
}

/* Never 0, because a word of 0 marks an empty place. */
static inline uint32_t
ghost_fingerprint(uint64_t hash)
{
	uint32_t	fp = (uint32_t) (hash >> 44);

	return fp == 0 ? 1 : fp;
}

static inline uint32_t
ghost_now(const RbpDirectory *dir, const RbpPartition *p)
{
	return (p->ghost_clock / dir->ghost_unit) & GHOST_TIME_MASK;
}

static inline uint32_t
ghost_age(uint32_t ghost, uint32_t now)
{
	return (now - ghost) & GHOST_TIME_MASK;
}

void
rbp_ghost_add(RbpDirectory *dir, uint32_t part, uint64_t hash)
{
	RbpPartition *p = &dir->partitions[part];
	uint32_t   *set = ghost_set(dir, part, hash);
	uint32_t	fp = ghost_fingerprint(hash);
	uint32_t	now = ghost_now(dir, p);
	int			victim = 0;
	uint32_t	oldest = 0;

	/* choose the page's own old place, else an empty one, else the oldest */
	for (int i = 0; i < RBP_GHOST_WAYS; i++)
	{
		uint32_t	age;

		if (set[i] >> GHOST_TIME_BITS == fp)
		{
			victim = i;
			break;
		}
		age = set[i] == 0 ? GHOST_TIME_MASK + 1 : ghost_age(set[i], now);
		if (age > oldest)
		{
			oldest = age;
			victim = i;
		}
	}
	set[victim] = fp << GHOST_TIME_BITS | now;
	p->ghost_clock++;
}

bool
rbp_ghost_take(RbpDirectory *dir, uint32_t part, uint64_t hash)
{
	RbpPartition *p = &dir->partitions[part];
	uint32_t   *set = ghost_set(dir, part, hash);
	uint32_t	fp = ghost_fingerprint(hash);

	for (int i = 0; i < RBP_GHOST_WAYS; i++)
	{
		if (set[i] >> GHOST_TIME_BITS == fp)
		{
			uint32_t	main_room = rbp_s3fifo_main_room(rbp_partition_slots(dir));
			uint32_t	age = ghost_age(set[i], ghost_now(dir, p));

			set[i] = 0;
			return age <= main_room / dir->ghost_unit;
		}
	}
	return false;
}

void
rbp_s3fifo_insert(RbpDirectory *dir, uint32_t part, uint32_t index,
				  uint64_t hash, uint8_t freq)
{
	RbpPartition *p = &dir->partitions[part];
	RbpSlotState queue = rbp_ghost_take(dir, part, hash) ? RBP_SLOT_MAIN : RBP_SLOT_SMALL;

	if (rbp_may_keep_page(dir, p, rbp_entry(dir, index)))
		queue = RBP_SLOT_KEPT;
	rbp_list_push(dir, p, queue, freq, index);
}

void
rbp_s3fifo_remember(RbpDirectory *dir, uint32_t part, uint32_t index,
					uint64_t hash)
{
	const RbpEntry *e = rbp_entry(dir, index);

	if (rbp_entry_state(e) == RBP_SLOT_MAIN || rbp_entry_freq(e) > 0)
		rbp_ghost_add(dir, part, hash);
}

uint32_t
rbp_s3fifo_evict(RbpDirectory *dir, uint32_t part, bool *live)
{
	RbpPartition *p = &dir->partitions[part];
	const RbpList *small = &p->lists[RBP_SLOT_SMALL];
	const RbpList *main = &p->lists[RBP_SLOT_MAIN];
	uint32_t	oldest_kept = p->lists[RBP_SLOT_KEPT].tail;
	uint32_t	target = rbp_s3fifo_small_room(rbp_partition_slots(dir));

	if (oldest_kept != RBP_NIL && rbp_kept_too_many(dir, p))
	{
		uint8_t		freq = rbp_entry_freq(rbp_entry(dir, oldest_kept));

		rbp_list_remove(dir, p, oldest_kept);
		rbp_list_push(dir, p, RBP_SLOT_MAIN, freq, oldest_kept);
	}

	for (int step = 0;; step++)
	{
		bool		force = step >= RBP_EVICT_STEPS;
		bool		from_small;
		uint32_t	index;
		uint8_t		freq;

		if (force)
			from_small = main->count == 0;
		else
			from_small = small->count > target || main->count == 0;
		index = from_small ? small->tail : main->tail;
		if (index == RBP_NIL)
			return RBP_NIL;

		rbp_list_remove(dir, p, index);
		*live = rbp_entry_live(dir, part, index);
		if (!*live || force)
			return index;

		freq = rbp_entry_freq(rbp_entry(dir, index));
		if (freq > 0)
		{
			/*
			 * a page from small starts at 0: it must be read again while in
			 * main
			 */
			rbp_account_add(dir, part, index, rbp_entry_page_hash(rbp_entry(dir, index)), 0,
							from_small ? -freq : -1);
			rbp_list_push(dir, p, RBP_SLOT_MAIN, from_small ? 0 : freq - 1,
						  index);
			continue;
		}
		if (rbp_may_keep_page(dir, p, rbp_entry(dir, index)))
		{
			rbp_list_push(dir, p, RBP_SLOT_KEPT, 0, index);
			continue;
		}
		if (from_small)
			rbp_ghost_add(dir, part, rbp_entry_page_hash(rbp_entry(dir, index)));
		return index;
	}
}
