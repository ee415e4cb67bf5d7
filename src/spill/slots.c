/*-------------------------------------------------------------------------
 *
 * slots.c
 *	  The spill slots of the temp quota: which are free, a bitmap per extent.
 *
 * Three sets of 128 bits say which slots of an extent are not free: those that
 * are used, and those in quarantine, as an old set and a young one.  A fourth
 * one says which of the used slots are filled; it is changed without the lock, by
 * their owners.  All counts follow from these and from the extent's state, which
 * remote changes without this lock.
 *
 * - An online extent's state says whether it may have free slots (TOUCHED) or has
 *	 none (ONLINE), so that a full quota costs alloc() little.  A cursor stays at
 *	 an extent until that is used up, and moves back to where slots were freed
 *	 last: over shm, that memory is mapped already, and perhaps in the CPU's
 *	 caches.  From an extent that is used up it moves on by half of all, and by
 *	 an odd number: whether the extents of two donors alternate or come one
 *	 donor after the other, it alternates between the donors.
 *
 * - A slot in quarantine joins the old set if that is empty, else the young one,
 *	 whose end moves with each slot that joins.  When the old set ends, the
 *	 young one takes its place.  So a slot is kept for at least the required
 *	 time and for less than twice that, at two bits a slot.  When the first old
 *	 set of all extents ends, all are looked at: writes that may still arrive
 *	 are rare.
 *
 * The lock protects all of this.  alloc() looks at the states and at
 * quarantine_until before it takes the lock, to return at once when there is
 * nothing: many processes keep asking while the quota is used up.
 *
 * A slot is used under the lock after its extent was seen to be online.  So who
 * has changed the state, and then takes the lock to look at what is used, sees
 * that slot; who takes it after that sees the new state.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

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

typedef struct SlotExtent
{
	uint64_t	filled[2];		/* atomic */
	SlotSet		used;
	SlotSet		old_quarantine; /* ends at old_until */
	SlotSet		young_quarantine;	/* empty if old_quarantine is */
	int64_t		old_until;
	int64_t		young_until;
} SlotExtent;

struct RbpSpillSlots
{
	RbpLock		lock __attribute__((aligned(RBP_CACHE_LINE)));

	const RbpExtents *states;	/* constant; at the same address in all
								 * processes */

	uint32_t	cursor;			/* index of an extent */

	/* written under the lock, also read without it */
	uint32_t	used __attribute__((aligned(RBP_CACHE_LINE)));
	int64_t		quarantine_until;	/* when the first old set ends, or NEVER */

	/* for each region, filled slots; atomic */
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
 * ---- extents -----------------------------------------------------------
 */

static inline SlotExtent *
extent_at(uint32_t extent)
{
	Assert(extent >= quota->states->first && extent - quota->states->first < quota->states->n);
	return &quota->extents[extent - quota->states->first];
}

static inline uint32_t
number_of(const SlotExtent *e)
{
	return quota->states->first + (uint32_t) (e - quota->extents);
}

/* Set whether the extent may have free slots, unless it is not online any more. */
static void
set_may_have_free(SlotExtent *e, bool may)
{
	uint8_t		was = may ? RBP_EXTENT_ONLINE : RBP_EXTENT_TOUCHED;

	(void) __atomic_compare_exchange_n(&quota->states->states[e - quota->extents], &was,
									   may ? RBP_EXTENT_TOUCHED : RBP_EXTENT_ONLINE, false,
									   __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

/* The first one from at on, as an index, that may have free slots; n if none has. */
static uint32_t
next_extent(uint32_t at)
{
	const RbpExtents *x = quota->states;
	const uint8_t *found = memchr(&x->states[at], RBP_EXTENT_TOUCHED, x->n - at);

	return found != NULL ? (uint32_t) (found - x->states) : x->n;
}

/*
 * ---- changes of an extent ----------------------------------------------
 */

/* Those that can be allocated while the extent is online */
static inline SlotSet
free_slots(const SlotExtent *e)
{
	return ~(e->used | e->old_quarantine | e->young_quarantine);
}

/* Change which slots of the extent are used. */
static void
set_used(SlotExtent *e, SlotSet used)
{
	uint32_t	total = quota->used + set_count(used) - set_count(e->used);

	e->used = used;
	__atomic_store_n(&quota->used, total, __ATOMIC_RELAXED);
}

/* So many more slots of the extent are filled. */
static void
count_filled(const SlotExtent *e, int32_t n)
{
	__atomic_fetch_add(&quota->region_filled[rbp_extent_region(quota->states, number_of(e))],
					   n, __ATOMIC_RELAXED);
}

static void
clear_filled(SlotExtent *e, SlotSet slots)
{
	uint64_t	low = (uint64_t) slots;
	uint64_t	high = (uint64_t) (slots >> 64);

	low &= __atomic_fetch_and(&e->filled[0], ~low, __ATOMIC_SEQ_CST);
	high &= __atomic_fetch_and(&e->filled[1], ~high, __ATOMIC_SEQ_CST);
	count_filled(e, -(__builtin_popcountll(low) + __builtin_popcountll(high)));
}

/* There is an old set that ends then. */
static void
note_quarantine(int64_t until)
{
	__atomic_store_n(&quota->quarantine_until, Min(quota->quarantine_until, until), __ATOMIC_RELAXED);
}

/* End the quarantines that are due.  Lock held. */
static void
end_due_quarantines(int64_t now_ns)
{
	uint32_t	top = __atomic_load_n(&quota->states->top, __ATOMIC_RELAXED);

	if (quota->quarantine_until > now_ns)
		return;
	__atomic_store_n(&quota->quarantine_until, NEVER, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < top; i++)
	{
		SlotExtent *e = &quota->extents[i];

		while (e->old_quarantine != 0 && e->old_until <= now_ns)
		{
			e->old_quarantine = e->young_quarantine;
			e->old_until = e->young_until;
			e->young_quarantine = 0;
			set_may_have_free(e, true);
		}
		if (e->old_quarantine != 0)
			note_quarantine(e->old_until);
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
rbp_spill_slots_init(void *mem, const RbpExtents *extents, int tranche)
{
	Assert((uintptr_t) mem % RBP_CACHE_LINE == 0);
	quota = mem;
	memset(quota, 0, rbp_spill_slots_size(extents->n));
	rbp_lock_init(&quota->lock, tranche);
	quota->states = extents;
	quota->quarantine_until = NEVER;
}

uint32_t
rbp_spill_slots_drop(uint32_t *extents, uint32_t n)
{
	uint32_t	dropped = 0;

	rbp_lock_exclusive(&quota->lock);
	for (uint32_t i = 0; i < n; i++)
	{
		SlotExtent *e = extent_at(extents[i]);
		uint32_t	extent = extents[i];

		if (e->used != 0)
			continue;
		/* late writes go to the region that is gone */
		e->old_quarantine = e->young_quarantine = 0;
		extents[i] = extents[dropped];
		extents[dropped++] = extent;
	}
	rbp_lock_release(&quota->lock);
	return dropped;
}

uint32_t
rbp_spill_slots_alloc(uint32_t want, RbpSpillExtentOk ok, void *arg,
					  uint32_t *first)
{
	int64_t		quarantine_until = __atomic_load_n(&quota->quarantine_until, __ATOMIC_RELAXED);
	int64_t		now_ns = 0;
	uint32_t	n = quota->states->n;
	SlotExtent *best = NULL;
	uint32_t	best_first = 0;
	uint32_t	best_len = 0;
	uint32_t	compared = 0;
	uint32_t	asked = 0;
	bool		wrapped = false;

	Assert(want >= 1 && want <= RBP_EXTENT_PAGES);

	if (quarantine_until != NEVER)
		now_ns = rbp_now_ns();
	if (quarantine_until > now_ns && next_extent(quota->cursor) == n && next_extent(0) == n)
		return 0;

	rbp_lock_exclusive(&quota->lock);
	end_due_quarantines(now_ns);

	for (uint32_t at = quota->cursor; best_len < want && compared < MAX_COMPARED; at++)
	{
		SlotExtent *e;
		uint32_t	start = 0;
		uint32_t	len;

		at = next_extent(at);
		if (at == n && !wrapped)
		{
			wrapped = true;
			at = next_extent(0);
		}
		if (at == n || (wrapped && at >= quota->cursor))
			break;
		if (asked++ == MAX_ASKED)
		{
			if (best == NULL)
				quota->cursor = at; /* the next call continues from here */
			break;
		}
		e = &quota->extents[at];
		if (ok != NULL && !ok(number_of(e), arg))
			continue;
		len = set_longest_run(free_slots(e), want, &start);
		if (len == 0)
			set_may_have_free(e, false);
		compared += len > 0;
		if (len > best_len)
		{
			best = e;
			best_first = start;
			best_len = len;
		}
	}

	if (best != NULL)
	{
		uint32_t	at = (uint32_t) (best - quota->extents);

		/* of an extent that has just come online it may not tell yet */
		uint32_t	top = Max(__atomic_load_n(&quota->states->top, __ATOMIC_RELAXED), at + 1);

		set_used(best, best->used | set_range(best_first, best_len));
		if (free_slots(best) == 0)
		{
			set_may_have_free(best, false);
			at = (at + (top / 2 | 1)) % top;
		}
		quota->cursor = at;
		*first = RBP_EXTENT_SLOT(number_of(best)) + best_first;
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

	Assert(first % RBP_EXTENT_PAGES + n <= RBP_EXTENT_PAGES);

	rbp_lock_exclusive(&quota->lock);
	Assert((e->used & slots) == slots);
	set_used(e, e->used & ~slots);
	clear_filled(e, slots);
	if (until != 0)
	{
		if (e->old_quarantine == 0)
		{
			e->old_quarantine = slots;
			e->old_until = until;
			note_quarantine(until);
		}
		else
		{
			if (e->young_quarantine == 0 || until > e->young_until)
				e->young_until = until;
			e->young_quarantine |= slots;
		}
	}
	if (free_slots(e) != 0)
	{
		set_may_have_free(e, true);
		quota->cursor = (uint32_t) (e - quota->extents);
	}
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
	rbp_lock_exclusive(&quota->lock);
	end_due_quarantines(now_ns);
	rbp_lock_release(&quota->lock);
}

void
rbp_spill_slots_fill(uint32_t slot)
{
	SlotExtent *e = extent_at(slot / RBP_EXTENT_PAGES);
	uint32_t	bit = slot % RBP_EXTENT_PAGES;

	/* unlike __atomic_fetch_or(), a full barrier on every machine */
	(void) __sync_fetch_and_or(&e->filled[bit / 64], UINT64_C(1) << bit % 64);
	count_filled(e, 1);
}

uint64_t
rbp_spill_slots_extent_filled(uint32_t extent)
{
	const SlotExtent *e = extent_at(extent);

	return (uint64_t) (__builtin_popcountll(__atomic_load_n(&e->filled[0], __ATOMIC_SEQ_CST)) +
					   __builtin_popcountll(__atomic_load_n(&e->filled[1], __ATOMIC_SEQ_CST)));
}

uint64_t
rbp_spill_slots_region_filled(uint32_t region)
{
	int32_t		filled = __atomic_load_n(&quota->region_filled[region], __ATOMIC_RELAXED);

	return (uint64_t) Max(filled, 0);
}

void
rbp_spill_slots_counts(RbpSpillUsage *usage)
{
	memset(usage, 0, sizeof(*usage));
	for (uint32_t i = 0; i < quota->states->n; i++)
	{
		const SlotExtent *e = &quota->extents[i];
		uint8_t		state = rbp_extent_state(quota->states, number_of(e));
		uint32_t	used = state == RBP_EXTENT_ABSENT ? 0 : set_count(e->used);

		usage->used += used;
		if (state == RBP_EXTENT_CLOSED)
			usage->dead += used;
		else if (state != RBP_EXTENT_ABSENT)
		{
			usage->online += RBP_EXTENT_PAGES;
			usage->quarantined += set_count(e->old_quarantine | e->young_quarantine);
		}
		if (rbp_state_open(state))
			usage->free += set_count(free_slots(e));
	}
}

uint64_t
rbp_spill_slots_free_count(void)
{
	uint64_t	slots = (uint64_t) __atomic_load_n(&quota->states->open, __ATOMIC_RELAXED) * RBP_EXTENT_PAGES;
	uint32_t	used = __atomic_load_n(&quota->used, __ATOMIC_RELAXED);

	return slots > used ? slots - used : 0;
}
