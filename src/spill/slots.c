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
#include "base/geometry.h"
#include "base/layout.h"
#include "base/lock.h"
#include "common/clock.h"
#include "spill/slots.h"

#include <string.h>

#ifdef RBP_UNIT_TEST
#include <assert.h>
#define Assert(cond)	assert(cond)
#endif

#define NIL				UINT32_MAX
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

	uint32_t	prev;			/* in the ring */
	uint32_t	next;
	uint32_t	queue_prev;		/* in the queue */
	uint32_t	queue_next;

	ExtentState state;
	uint16_t	region;			/* constant unless the extent is absent */
	bool		in_ring;
	bool		in_queue;
} SlotExtent;

struct RbpSpillSlots
{
	RbpLock		lock __attribute__((aligned(RBP_CACHE_LINE)));

	/* constant */
	uint32_t	first_extent;
	uint32_t	nextents;

	uint32_t	cursor;			/* in the ring; NIL if that is empty */
	uint32_t	queue_head;
	uint32_t	queue_tail;

	uint32_t	num_online;		/* extents, including draining ones */
	uint32_t	num_used;
	uint32_t	num_quarantined;
	uint32_t	num_dead;

	/* written under the lock, read by alloc() without it */
	uint32_t	num_free __attribute__((aligned(RBP_CACHE_LINE)));
	int64_t		quarantine_until;	/* that of the queue's head, or NEVER */

	/* for each region, used slots that are not pending; atomic */
	int32_t		region_filled[RBP_MAX_REGIONS] __attribute__((aligned(RBP_CACHE_LINE)));

	SlotExtent	extents[] __attribute__((aligned(RBP_CACHE_LINE)));
};

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
 *
 * First compute where runs of 1, 2, 4, ... members begin; then put the length
 * together from these, the largest first.
 */
static uint32_t
set_longest_run(SlotSet set, uint32_t want, uint32_t *first)
{
	SlotSet		starts[8];		/* where runs of 1 << i members begin */
	SlotSet		found = ALL_SLOTS;	/* where runs of len members begin */
	uint32_t	len = 0;
	int			top = 0;

	starts[0] = set;
	while (top < 7 && (2u << top) <= want && starts[top] != 0)
	{
		starts[top + 1] = starts[top] & starts[top] >> (1u << top);
		top++;
	}
	for (int i = top; i >= 0; i--)
	{
		SlotSet		longer;

		if (len + (1u << i) > want)
			continue;
		/* the shift is valid: len < want, which is at most 128 */
		longer = found & starts[i] >> len;
		if (longer != 0)
		{
			found = longer;
			len += 1u << i;
		}
	}
	if (len > 0)
		*first = set_first(found);
	return len;
}

/*
 * ---- the ring and the queue --------------------------------------------
 */

static inline SlotExtent *
extent_at(RbpSpillSlots *s, uint32_t extent)
{
	Assert(extent >= s->first_extent && extent - s->first_extent < s->nextents);
	return &s->extents[extent - s->first_extent];
}

static void
ring_add(RbpSpillSlots *s, SlotExtent *e)
{
	uint32_t	i = (uint32_t) (e - s->extents);

	if (s->cursor == NIL)
	{
		e->prev = e->next = i;
		s->cursor = i;
	}
	else
	{
		SlotExtent *next = &s->extents[s->cursor];

		e->next = s->cursor;
		e->prev = next->prev;
		s->extents[next->prev].next = i;
		next->prev = i;
	}
	e->in_ring = true;
}

static void
ring_advance(RbpSpillSlots *s)
{
	if (s->cursor != NIL)
		s->cursor = s->extents[s->cursor].next;
}

static void
ring_remove(RbpSpillSlots *s, SlotExtent *e)
{
	uint32_t	i = (uint32_t) (e - s->extents);

	if (s->cursor == i)
		ring_advance(s);
	if (s->cursor == i)
		s->cursor = NIL;
	s->extents[e->prev].next = e->next;
	s->extents[e->next].prev = e->prev;
	e->in_ring = false;
}

static void
queue_head_changed(RbpSpillSlots *s)
{
	__atomic_store_n(&s->quarantine_until,
					 s->queue_head == NIL ? NEVER :
					 s->extents[s->queue_head].old_until, __ATOMIC_RELAXED);
}

/* Callers' times are nearly ordered, so the right position is near the end. */
static void
queue_add(RbpSpillSlots *s, SlotExtent *e)
{
	uint32_t	i = (uint32_t) (e - s->extents);
	uint32_t	before = s->queue_tail;

	while (before != NIL && s->extents[before].old_until > e->old_until)
		before = s->extents[before].queue_prev;
	e->queue_prev = before;
	e->queue_next = before == NIL ? s->queue_head : s->extents[before].queue_next;
	if (before == NIL)
		s->queue_head = i;
	else
		s->extents[before].queue_next = i;
	if (e->queue_next == NIL)
		s->queue_tail = i;
	else
		s->extents[e->queue_next].queue_prev = i;
	e->in_queue = true;
	queue_head_changed(s);
}

static void
queue_remove(RbpSpillSlots *s, SlotExtent *e)
{
	if (e->queue_prev == NIL)
		s->queue_head = e->queue_next;
	else
		s->extents[e->queue_prev].queue_next = e->queue_next;
	if (e->queue_next == NIL)
		s->queue_tail = e->queue_prev;
	else
		s->extents[e->queue_next].queue_prev = e->queue_prev;
	e->in_queue = false;
	queue_head_changed(s);
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

typedef struct ExtentCounts
{
	uint32_t	online;
	uint32_t	used;
	uint32_t	quarantine;
	uint32_t	dead;
	uint32_t	free;
} ExtentCounts;

static ExtentCounts
count_extent(const SlotExtent *e)
{
	ExtentCounts counts;

	counts.online = e->state == EXTENT_ONLINE || e->state == EXTENT_DRAINING;
	counts.used = set_count(e->used);
	counts.quarantine = set_count(e->old_quarantine | e->young_quarantine);
	counts.dead = e->state == EXTENT_DEAD ? counts.used : 0;
	counts.free = set_count(free_slots(e));
	return counts;
}

/*
 * Update what depends on the extent's counts, after a change of the extent.
 * before: its counts before the change.
 */
static void
end_change(RbpSpillSlots *s, SlotExtent *e, const ExtentCounts *before)
{
	ExtentCounts after;

	/* the last owner of a slot of this dead extent is gone */
	if (e->state == EXTENT_DEAD && e->used == 0)
		e->state = EXTENT_ABSENT;

	after = count_extent(e);
	s->num_online += after.online - before->online;
	s->num_used += after.used - before->used;
	if (after.used != before->used)
		__atomic_fetch_add(&s->region_filled[e->region],
						   (int32_t) (after.used - before->used), __ATOMIC_RELAXED);
	s->num_quarantined += after.quarantine - before->quarantine;
	s->num_dead += after.dead - before->dead;
	/* in one step, for readers without the lock */
	__atomic_store_n(&s->num_free, s->num_free + (after.free - before->free),
					 __ATOMIC_RELAXED);

	if (after.free > 0 && !e->in_ring)
		ring_add(s, e);
	else if (after.free == 0 && e->in_ring)
		ring_remove(s, e);
	if (e->old_quarantine != 0 && !e->in_queue)
		queue_add(s, e);
	else if (e->old_quarantine == 0 && e->in_queue)
		queue_remove(s, e);
}

/* End the quarantines that are due.  Lock held. */
static void
end_due_quarantines(RbpSpillSlots *s, int64_t now_ns)
{
	while (s->queue_head != NIL)
	{
		SlotExtent *e = &s->extents[s->queue_head];
		ExtentCounts before;

		if (e->old_until > now_ns)
			break;
		before = count_extent(e);
		queue_remove(s, e);
		e->old_quarantine = e->young_quarantine;
		e->old_until = e->young_until;
		e->young_quarantine = 0;
		end_change(s, e, &before);
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

RbpSpillSlots *
rbp_spill_slots_init(void *mem, uint32_t first_extent, uint32_t nextents,
					 int tranche)
{
	RbpSpillSlots *s = mem;

	Assert((uintptr_t) mem % RBP_CACHE_LINE == 0);
	memset(s, 0, rbp_spill_slots_size(nextents));
	rbp_lock_init(&s->lock, tranche);
	s->first_extent = first_extent;
	s->nextents = nextents;
	s->cursor = NIL;
	s->queue_head = NIL;
	s->queue_tail = NIL;
	s->quarantine_until = NEVER;
	return s;
}

bool
rbp_spill_slots_absent(RbpSpillSlots *s, uint32_t extent)
{
	bool		absent;

	rbp_lock_shared(&s->lock);
	absent = extent_at(s, extent)->state == EXTENT_ABSENT;
	rbp_lock_release(&s->lock);
	return absent;
}

static void
change_state(RbpSpillSlots *s, uint32_t extent, ExtentState from, ExtentState to,
			 uint32_t region)
{
	SlotExtent *e = extent_at(s, extent);

	rbp_lock_exclusive(&s->lock);
	if (e->state == from)
	{
		ExtentCounts before = count_extent(e);

		e->state = to;
		end_change(s, e, &before);

		if (from == EXTENT_ABSENT)
			e->region = (uint16_t) region;
		/* so that the next extent is not inserted right after this one */
		if (to == EXTENT_ONLINE)
			ring_advance(s);
	}
	rbp_lock_release(&s->lock);
}

void
rbp_spill_slots_online(RbpSpillSlots *s, uint32_t extent, uint32_t region)
{
	Assert(region < RBP_MAX_REGIONS);
	change_state(s, extent, EXTENT_ABSENT, EXTENT_ONLINE, region);
}

void
rbp_spill_slots_drain(RbpSpillSlots *s, uint32_t extent)
{
	change_state(s, extent, EXTENT_ONLINE, EXTENT_DRAINING, 0);
}

void
rbp_spill_slots_undrain(RbpSpillSlots *s, uint32_t extent)
{
	change_state(s, extent, EXTENT_DRAINING, EXTENT_ONLINE, 0);
}

void
rbp_spill_slots_offline(RbpSpillSlots *s, uint32_t extent)
{
	SlotExtent *e = extent_at(s, extent);

	rbp_lock_exclusive(&s->lock);
	if (e->state == EXTENT_ONLINE || e->state == EXTENT_DRAINING)
	{
		ExtentCounts before = count_extent(e);

		/* late writes go to the region that is gone */
		e->old_quarantine = 0;
		e->young_quarantine = 0;
		e->state = EXTENT_DEAD;
		end_change(s, e, &before);
	}
	rbp_lock_release(&s->lock);
}

uint32_t
rbp_spill_slots_alloc(RbpSpillSlots *s, uint32_t want, RbpSpillExtentOk ok,
					  void *arg, uint32_t *first)
{
	int64_t		quarantine_until = __atomic_load_n(&s->quarantine_until, __ATOMIC_RELAXED);
	int64_t		now_ns = 0;
	uint32_t	best = NIL;
	uint32_t	best_first = 0;
	uint32_t	best_len = 0;
	uint32_t	compared = 0;
	uint32_t	i;

	Assert(want >= 1 && want <= RBP_EXTENT_PAGES);

	if (quarantine_until != NEVER)
		now_ns = rbp_now_ns();
	if (__atomic_load_n(&s->num_free, __ATOMIC_RELAXED) == 0 &&
		quarantine_until > now_ns)
		return 0;

	rbp_lock_exclusive(&s->lock);
	end_due_quarantines(s, now_ns);

	i = s->cursor;
	for (uint32_t looked = 0; i != NIL && looked < MAX_ASKED; looked++)
	{
		const SlotExtent *e = &s->extents[i];

		if (ok == NULL || ok(s->first_extent + i, arg))
		{
			uint32_t	start = 0;
			uint32_t	len = set_longest_run(free_slots(e), want, &start);

			if (len > best_len)
			{
				best = i;
				best_first = start;
				best_len = len;
			}
			if (best_len == want || ++compared == MAX_COMPARED)
				break;
		}
		i = e->next;
		if (i == s->cursor)
			break;
	}

	if (best != NIL)
	{
		SlotExtent *e = &s->extents[best];
		ExtentCounts before = count_extent(e);

		s->cursor = best;
		e->used |= set_range(best_first, best_len);
		end_change(s, e, &before);
		*first = (s->first_extent + best) * RBP_EXTENT_PAGES + best_first;
	}
	else
		s->cursor = i;			/* the next call continues from here */
	rbp_lock_release(&s->lock);
	return best_len;
}

/* Free n used slots, into quarantine if until is not 0. */
static void
release_slots(RbpSpillSlots *s, uint32_t first, uint32_t n, int64_t until)
{
	SlotExtent *e = extent_at(s, first / RBP_EXTENT_PAGES);
	SlotSet		slots = set_range(first % RBP_EXTENT_PAGES, n);
	ExtentCounts before;

	Assert(first % RBP_EXTENT_PAGES + n <= RBP_EXTENT_PAGES);

	rbp_lock_exclusive(&s->lock);
	Assert((e->used & slots) == slots);
	before = count_extent(e);
	e->used &= ~slots;
	if (until != 0 && (e->state == EXTENT_ONLINE || e->state == EXTENT_DRAINING))
	{
		if (e->old_quarantine == 0)
		{
			e->old_quarantine = slots;
			e->old_until = until;
		}
		else
		{
			if (e->young_quarantine == 0 || until > e->young_until)
				e->young_until = until;
			e->young_quarantine |= slots;
		}
	}
	end_change(s, e, &before);
	if (e->in_ring)
		s->cursor = (uint32_t) (e - s->extents);
	rbp_lock_release(&s->lock);
}

void
rbp_spill_slots_free(RbpSpillSlots *s, uint32_t first, uint32_t n)
{
	if (n > 0)
		release_slots(s, first, n, 0);
}

void
rbp_spill_slots_quarantine(RbpSpillSlots *s, uint32_t slot, int64_t now_ns)
{
	release_slots(s, slot, 1, now_ns + RBP_SPILL_QUARANTINE_NS);
}

void
rbp_spill_slots_tick(RbpSpillSlots *s, int64_t now_ns)
{
	if (__atomic_load_n(&s->quarantine_until, __ATOMIC_RELAXED) > now_ns)
		return;
	rbp_lock_exclusive(&s->lock);
	end_due_quarantines(s, now_ns);
	rbp_lock_release(&s->lock);
}

uint32_t
rbp_spill_slots_extent_used(RbpSpillSlots *s, uint32_t extent)
{
	uint32_t	used;

	rbp_lock_shared(&s->lock);
	used = set_count(extent_at(s, extent)->used);
	rbp_lock_release(&s->lock);
	return used;
}

uint32_t
rbp_spill_slots_region_filled(RbpSpillSlots *s, uint32_t region)
{
	int32_t		filled = __atomic_load_n(&s->region_filled[region], __ATOMIC_RELAXED);

	return filled > 0 ? (uint32_t) filled : 0;
}

void
rbp_spill_slots_add_pending(RbpSpillSlots *s, uint32_t slot, int n)
{
	SlotExtent *e = extent_at(s, slot / RBP_EXTENT_PAGES);

	/* pending slots are used, but not filled */
	__atomic_fetch_sub(&s->region_filled[e->region], n, __ATOMIC_RELAXED);
}

bool
rbp_spill_slots_is_used(RbpSpillSlots *s, uint32_t slot)
{
	bool		used;

	rbp_lock_shared(&s->lock);
	used = extent_at(s, slot / RBP_EXTENT_PAGES)->used >>
		slot % RBP_EXTENT_PAGES & 1;
	rbp_lock_release(&s->lock);
	return used;
}

void
rbp_spill_slots_counts(RbpSpillSlots *s, RbpSpillSlotCounts *counts)
{
	rbp_lock_shared(&s->lock);
	counts->online = s->num_online * RBP_EXTENT_PAGES;
	counts->used = s->num_used;
	counts->quarantined = s->num_quarantined;
	counts->free = s->num_free;
	counts->dead = s->num_dead;
	rbp_lock_release(&s->lock);
}

uint32_t
rbp_spill_slots_free_count(const RbpSpillSlots *s)
{
	return __atomic_load_n(&s->num_free, __ATOMIC_RELAXED);
}
