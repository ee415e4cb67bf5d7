/*-------------------------------------------------------------------------
 *
 * slots.c
 *	  The spill slots of the temp quota: which are free, a bitmap per extent.
 *
 * Three sets of 128 bits say which slots of an extent are not free: those that
 * are used, and those in quarantine, as an old set and a young one.  All counts
 * follow from these and from the extent's state; count_extent() before each
 * change and end_change() after it keep the totals, the ring and the queue up
 * to date.
 *
 * - The ring links the online extents that have free slots, and only those,
 *	 so that a full quota costs alloc() nothing.  A cursor moves on to the next
 *	 extent when one is used up, and back to where slots were freed last: over
 *	 shm, that memory is mapped already, and perhaps in the CPU's caches.  New
 *	 extents are inserted between the others, so that the regions of several
 *	 donors, which come one donor after the other, are interleaved, and the
 *	 cursor alternates between donors.
 *
 * - The queue links the extents with slots in quarantine, ordered by the end
 *	 of their old set.  A slot joins the old set if that is empty, else the
 *	 young one, whose end moves with each slot that joins.  When the old set
 *	 ends, the young one takes its place.  So a slot is kept for at least the
 *	 required time and for less than twice that, at two bits a slot, and taking
 *	 an extent offline needs no search.
 *
 * The lock protects all of this.  alloc() looks at num_free and
 * quarantine_until before it takes the lock, to return at once when there is
 * nothing: many processes keep asking while the quota is used up.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/ilist.h"

#include "base/geometry.h"
#include "base/layout.h"
#include "base/lock.h"
#include "common/clock.h"
#include "spill/slots.h"

#define NEVER			INT64_MAX

#define MAX_COMPARED	8		/* extents compared for the longest run */
#define MAX_ASKED		256		/* extents that ok() is asked about */

__extension__ typedef unsigned __int128 SlotSet;

_Static_assert(RBP_EXTENT_PAGES == 128, "a SlotSet is an extent");

#define ALL_SLOTS		(~(SlotSet) 0)

typedef enum ExtentState
{
	EXTENT_ABSENT,
	EXTENT_ONLINE,
	EXTENT_DRAINING,
	EXTENT_DEAD
} ExtentState;

typedef struct SlotExtent
{
	SlotSet		used;
	SlotSet		old_quarantine; /* ends at old_until */
	SlotSet		young_quarantine;	/* empty if old_quarantine is */
	int64_t		old_until;
	int64_t		young_until;

	dlist_node	in_ring;		/* linked if there are free slots */
	dlist_node	in_queue;		/* linked unless old_quarantine is empty */

	ExtentState state;
	uint16_t	region;			/* constant unless the extent is absent */
} SlotExtent;

struct RbpSpillSlots
{
	RbpLock		lock __attribute__((aligned(RBP_CACHE_LINE)));

	/* constant */
	uint32_t	first_extent;
	uint32_t	nextents;

	dlist_head	ring;			/* begins at the cursor */
	dlist_head	queue;

	/*
	 * written under the lock; counts.free and quarantine_until are also read
	 * by alloc() without it
	 */
	RbpSpillUsage counts __attribute__((aligned(RBP_CACHE_LINE)));
	int64_t		quarantine_until;	/* that of the queue's head, or NEVER */

	/* for each region, used slots that are not pending; atomic */
	int32_t		region_filled[RBP_MAX_REGIONS] __attribute__((aligned(RBP_CACHE_LINE)));

	SlotExtent	extents[] __attribute__((aligned(RBP_CACHE_LINE)));
};

RbpSpillSlots *rbp_spill_slots = NULL;

#define quota	rbp_spill_slots

/*
 * ---- sets of slots -----------------------------------------------------
 */

static inline uint32_t
set_count(SlotSet set)
{
	return (uint32_t) (__builtin_popcountll((uint64_t) set) +
					   __builtin_popcountll((uint64_t) (set >> 64)));
}

/* The lowest member of a set that is not empty. */
static inline uint32_t
set_first(SlotSet set)
{
	uint64_t	low = (uint64_t) set;

	if (low != 0)
		return (uint32_t) __builtin_ctzll(low);
	return 64 + (uint32_t) __builtin_ctzll((uint64_t) (set >> 64));
}

/* The set of n >= 1 members from first on. */
static inline SlotSet
set_range(uint32_t first, uint32_t n)
{
	return (ALL_SLOTS >> (RBP_EXTENT_PAGES - n)) << first;
}

/*
 * Find the first of the longest runs of members, or of those of at least want
 * members.  Returns its length, at most want; 0 if the set is empty.
 */
static uint32_t
set_longest_run(SlotSet set, uint32_t want, uint32_t *first)
{
	SlotSet		starts = ALL_SLOTS; /* where runs of len members begin */
	uint32_t	len;

	/* the shift is valid: len < want, which is at most 128 */
	for (len = 0; len < want && (starts & set >> len) != 0; len++)
		starts &= set >> len;
	if (len > 0)
		*first = set_first(starts);
	return len;
}

/*
 * ---- the ring and the queue --------------------------------------------
 */

static inline SlotExtent *
extent_at(uint32_t extent)
{
	Assert(extent >= quota->first_extent && extent - quota->first_extent < quota->nextents);
	return &quota->extents[extent - quota->first_extent];
}

/* Move the cursor to this extent: the list's head is put before it. */
static void
set_cursor(SlotExtent *e)
{
	dlist_delete(&quota->ring.head);
	dlist_insert_before(&e->in_ring, &quota->ring.head);
}

/* Callers' times are nearly ordered, so the right position is near the end. */
static void
queue_add(SlotExtent *e)
{
	dlist_node *before = &quota->queue.head;

	while (dlist_has_prev(&quota->queue, before) &&
		   dlist_container(SlotExtent, in_queue, before->prev)->old_until > e->old_until)
		before = before->prev;
	dlist_insert_before(before, &e->in_queue);
}

/*
 * ---- changes of an extent ----------------------------------------------
 */

static inline SlotSet
free_slots(const SlotExtent *e)
{
	if (e->state != EXTENT_ONLINE)
		return 0;
	return ~(e->used | e->old_quarantine | e->young_quarantine);
}

static RbpSpillUsage
count_extent(const SlotExtent *e)
{
	bool		online = e->state == EXTENT_ONLINE || e->state == EXTENT_DRAINING;
	uint32_t	used = set_count(e->used);

	return (RbpSpillUsage)
	{
		.online = online ? RBP_EXTENT_PAGES : 0,
			.used = used,
			.quarantined = set_count(e->old_quarantine | e->young_quarantine),
			.dead = e->state == EXTENT_DEAD ? used : 0,
			.free = set_count(free_slots(e)),
	};
}

/*
 * Update what depends on the extent's counts, after a change of the extent.
 * before: its counts before the change.
 */
static void
end_change(SlotExtent *e, const RbpSpillUsage *before)
{
	RbpSpillUsage after;

	/* the last owner of a slot of this dead extent is gone */
	if (e->state == EXTENT_DEAD && e->used == 0)
		e->state = EXTENT_ABSENT;

	after = count_extent(e);
	quota->counts.online += after.online - before->online;
	quota->counts.used += after.used - before->used;
	if (after.used != before->used)
		__atomic_fetch_add(&quota->region_filled[e->region],
						   (int32_t) (after.used - before->used), __ATOMIC_RELAXED);
	quota->counts.quarantined += after.quarantined - before->quarantined;
	quota->counts.dead += after.dead - before->dead;
	/* in one step, for readers without the lock */
	__atomic_store_n(&quota->counts.free, quota->counts.free + (after.free - before->free),
					 __ATOMIC_RELAXED);

	if (after.free > 0 && before->free == 0)
		dlist_push_tail(&quota->ring, &e->in_ring);
	else if (after.free == 0 && before->free > 0)
		dlist_delete(&e->in_ring);
	__atomic_store_n(&quota->quarantine_until,
					 dlist_is_empty(&quota->queue) ? NEVER :
					 dlist_head_element(SlotExtent, in_queue, &quota->queue)->old_until,
					 __ATOMIC_RELAXED);
}

/* End the quarantines that are due.  Lock held. */
static void
end_due_quarantines(int64_t now_ns)
{
	while (quota->quarantine_until <= now_ns)
	{
		SlotExtent *e = dlist_head_element(SlotExtent, in_queue, &quota->queue);
		RbpSpillUsage before = count_extent(e);

		dlist_delete(&e->in_queue);
		e->old_quarantine = e->young_quarantine;
		e->old_until = e->young_until;
		e->young_quarantine = 0;
		if (e->old_quarantine != 0)
			queue_add(e);
		end_change(e, &before);
	}
}

/*
 * ---- public functions --------------------------------------------------
 */

size_t
rbp_spill_slots_size(uint32_t nextents)
{
	return rbp_align_line(sizeof(RbpSpillSlots) + (size_t) nextents * sizeof(SlotExtent));
}

void
rbp_spill_slots_init(void *mem, uint32_t first_extent, uint32_t nextents,
					 int tranche)
{
	Assert((uintptr_t) mem % RBP_CACHE_LINE == 0);
	quota = mem;
	memset(quota, 0, rbp_spill_slots_size(nextents));
	rbp_lock_init(&quota->lock, tranche);
	quota->first_extent = first_extent;
	quota->nextents = nextents;
	dlist_init(&quota->ring);
	dlist_init(&quota->queue);
	quota->quarantine_until = NEVER;
}

bool
rbp_spill_slots_absent(uint32_t extent)
{
	bool		absent;

	rbp_lock_shared(&quota->lock);
	absent = extent_at(extent)->state == EXTENT_ABSENT;
	rbp_lock_release(&quota->lock);
	return absent;
}

/* from: a bit for each state in which the extent may be */
static void
change_state(uint32_t extent, uint32_t from, ExtentState to, uint32_t region)
{
	SlotExtent *e = extent_at(extent);

	rbp_lock_exclusive(&quota->lock);
	if (from & 1u << e->state)
	{
		RbpSpillUsage before = count_extent(e);

		if (e->state == EXTENT_ABSENT)
			e->region = (uint16_t) region;
		e->state = to;
		/* late writes go to the region that is gone */
		if (to == EXTENT_DEAD && e->old_quarantine != 0)
		{
			e->old_quarantine = 0;
			e->young_quarantine = 0;
			dlist_delete(&e->in_queue);
		}
		end_change(e, &before);

		/* so that the next extent is not inserted right after this one */
		if (to == EXTENT_ONLINE && !dlist_is_empty(&quota->ring))
			dlist_push_tail(&quota->ring, dlist_pop_head_node(&quota->ring));
	}
	rbp_lock_release(&quota->lock);
}

void
rbp_spill_slots_online(uint32_t extent, uint32_t region)
{
	Assert(region < RBP_MAX_REGIONS);
	change_state(extent, 1u << EXTENT_ABSENT, EXTENT_ONLINE, region);
}

void
rbp_spill_slots_drain(uint32_t extent)
{
	change_state(extent, 1u << EXTENT_ONLINE, EXTENT_DRAINING, 0);
}

void
rbp_spill_slots_undrain(uint32_t extent)
{
	change_state(extent, 1u << EXTENT_DRAINING, EXTENT_ONLINE, 0);
}

void
rbp_spill_slots_offline(uint32_t extent)
{
	change_state(extent, 1u << EXTENT_ONLINE | 1u << EXTENT_DRAINING, EXTENT_DEAD, 0);
}

uint32_t
rbp_spill_slots_alloc(uint32_t want, RbpSpillExtentOk ok, void *arg,
					  uint32_t *first)
{
	int64_t		quarantine_until = __atomic_load_n(&quota->quarantine_until, __ATOMIC_RELAXED);
	int64_t		now_ns = 0;
	SlotExtent *best = NULL;
	uint32_t	best_first = 0;
	uint32_t	best_len = 0;
	uint32_t	compared = 0;
	uint32_t	asked = 0;
	dlist_iter	iter;

	Assert(want >= 1 && want <= RBP_EXTENT_PAGES);

	if (quarantine_until != NEVER)
		now_ns = rbp_now_ns();
	if (rbp_spill_slots_free_count() == 0 && quarantine_until > now_ns)
		return 0;

	rbp_lock_exclusive(&quota->lock);
	end_due_quarantines(now_ns);

	dlist_foreach(iter, &quota->ring)
	{
		SlotExtent *e = dlist_container(SlotExtent, in_ring, iter.cur);
		uint32_t	start = 0;
		uint32_t	len;

		if (asked++ == MAX_ASKED)
		{
			if (best == NULL)
				set_cursor(e);	/* the next call continues from here */
			break;
		}
		if (ok != NULL && !ok(quota->first_extent + (uint32_t) (e - quota->extents), arg))
			continue;
		len = set_longest_run(free_slots(e), want, &start);
		if (len > best_len)
		{
			best = e;
			best_first = start;
			best_len = len;
		}
		if (best_len == want || ++compared == MAX_COMPARED)
			break;
	}

	if (best != NULL)
	{
		RbpSpillUsage before = count_extent(best);

		set_cursor(best);
		best->used |= set_range(best_first, best_len);
		end_change(best, &before);
		*first = (quota->first_extent + (uint32_t) (best - quota->extents)) * RBP_EXTENT_PAGES + best_first;
	}
	rbp_lock_release(&quota->lock);
	return best_len;
}

/* Free n used slots, into quarantine if until is not 0. */
static void
release_slots(uint32_t first, uint32_t n, int64_t until)
{
	SlotExtent *e = extent_at(first / RBP_EXTENT_PAGES);
	SlotSet		slots = set_range(first % RBP_EXTENT_PAGES, n);
	RbpSpillUsage before;

	Assert(first % RBP_EXTENT_PAGES + n <= RBP_EXTENT_PAGES);

	rbp_lock_exclusive(&quota->lock);
	Assert((e->used & slots) == slots);
	before = count_extent(e);
	e->used &= ~slots;
	if (until != 0 && (e->state == EXTENT_ONLINE || e->state == EXTENT_DRAINING))
	{
		if (e->old_quarantine == 0)
		{
			e->old_quarantine = slots;
			e->old_until = until;
			queue_add(e);
		}
		else
		{
			if (e->young_quarantine == 0 || until > e->young_until)
				e->young_until = until;
			e->young_quarantine |= slots;
		}
	}
	end_change(e, &before);
	if (free_slots(e) != 0)
		set_cursor(e);
	rbp_lock_release(&quota->lock);
}

void
rbp_spill_slots_free(uint32_t first, uint32_t n)
{
	if (n > 0)
		release_slots(first, n, 0);
}

void
rbp_spill_slots_quarantine(uint32_t slot, int64_t now_ns)
{
	release_slots(slot, 1, now_ns + RBP_SPILL_QUARANTINE_NS);
}

void
rbp_spill_slots_tick(int64_t now_ns)
{
	if (__atomic_load_n(&quota->quarantine_until, __ATOMIC_RELAXED) > now_ns)
		return;
	rbp_lock_exclusive(&quota->lock);
	end_due_quarantines(now_ns);
	rbp_lock_release(&quota->lock);
}

uint32_t
rbp_spill_slots_extent_used(uint32_t extent)
{
	uint32_t	used;

	rbp_lock_shared(&quota->lock);
	used = set_count(extent_at(extent)->used);
	rbp_lock_release(&quota->lock);
	return used;
}

uint64_t
rbp_spill_slots_region_filled(uint32_t region)
{
	int32_t		filled = __atomic_load_n(&quota->region_filled[region], __ATOMIC_RELAXED);

	return (uint64_t) Max(filled, 0);
}

void
rbp_spill_slots_add_pending(uint32_t slot, int n)
{
	SlotExtent *e = extent_at(slot / RBP_EXTENT_PAGES);

	/* pending slots are used, but not filled */
	__atomic_fetch_sub(&quota->region_filled[e->region], n, __ATOMIC_RELAXED);
}

bool
rbp_spill_slots_is_used(uint32_t slot)
{
	bool		used;

	rbp_lock_shared(&quota->lock);
	used = extent_at(slot / RBP_EXTENT_PAGES)->used >>
		slot % RBP_EXTENT_PAGES & 1;
	rbp_lock_release(&quota->lock);
	return used;
}

void
rbp_spill_slots_counts(RbpSpillUsage *usage)
{
	rbp_lock_shared(&quota->lock);
	*usage = quota->counts;
	rbp_lock_release(&quota->lock);
}

uint64_t
rbp_spill_slots_free_count(void)
{
	return __atomic_load_n(&quota->counts.free, __ATOMIC_RELAXED);
}
