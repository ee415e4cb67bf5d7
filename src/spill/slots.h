/*-------------------------------------------------------------------------
 *
 * slots.h
 *	  Which slots of the temp quota are free: a bitmap for each extent.
 *
 * Temporary data has no replacement: a slot belongs to one block of one file
 * until it is freed.  So the slots come in runs, which makes consecutive
 * blocks neighbours in the donor's memory and a batch of them one transfer.
 *
 * An extent (128 slots, 1 MiB) is
 *	- absent: no region carries it;
 *	- online: slots are given out;
 *	- draining: none is given out, what is used stays valid;
 *	- dead: the region is lost; what was used still counts as used until its
 *	  owners have freed it, and only then is the extent absent, that is may
 *	  be brought online for another region.  So a slot never has two owners.
 *
 * Slots and extents are numbered as remote numbers them: first_extent is
 * the first that belongs here.
 *
 * One lock inside, held for well below a microsecond by alloc and free, and
 * a leaf.  Knows nothing of files, donors or PostgreSQL (base/lock.h apart).
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SPILL_SLOTS_H
#define RBP_SPILL_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>


typedef struct RbpSpillSlots RbpSpillSlots;

extern size_t rbp_spill_slots_size(uint32_t nextents);

/* mem: cache-line aligned.  All extents are absent. */
extern RbpSpillSlots *rbp_spill_slots_init(void *mem, uint32_t first_extent,
										   uint32_t nextents, int tranche);

/* May this extent be brought online (it is absent)? */
extern bool rbp_spill_slots_absent(RbpSpillSlots *s, uint32_t extent);

/*
 * The four that follow do nothing if the extent is in another state than they
 * start from.
 *
 * absent -> online; its used slots are counted for that account (below
 * RBP_MAX_REGIONS) until it is absent again
 */
extern void rbp_spill_slots_online(RbpSpillSlots *s, uint32_t extent,
								   uint32_t account);

/* online -> draining */
extern void rbp_spill_slots_drain(RbpSpillSlots *s, uint32_t extent);

/* draining -> online, when memory is wanted again after all */
extern void rbp_spill_slots_undrain(RbpSpillSlots *s, uint32_t extent);

/* online or draining -> dead, or absent if nothing of it is in use. */
extern void rbp_spill_slots_offline(RbpSpillSlots *s, uint32_t extent);

/* May slots be taken from the extent?  Called with the lock held: be quick. */
typedef bool (*RbpSpillExtentOk) (uint32_t extent, void *arg);

/*
 * Take up to want (1..128) consecutive free slots of one online extent that
 * ok(extent, arg) accepts (NULL: any); *first is the first of them.  Returns
 * how many, 0 if there is none.  A longer run is preferred to a nearer one as
 * long as that costs no long search: a few extents are compared.  Successive
 * calls use up an extent and then go on to the next, round and round, so that
 * files do not all crowd one donor; but first to where slots were given back
 * last.
 *
 * Full extents cost nothing.  Those that ok() refuses do: when it has refused
 * 256 in one call there is none, either, and the next call asks about others.
 */
extern uint32_t rbp_spill_slots_alloc(RbpSpillSlots *s, uint32_t want,
									  RbpSpillExtentOk ok, void *arg,
									  uint32_t *first);

/* Give n consecutive used slots of one extent back. */
extern void rbp_spill_slots_free(RbpSpillSlots *s, uint32_t first, uint32_t n);

/*
 * Give a slot back that a lost write may still reach: it is free, and not
 * counted as used any more, but is not given out again for
 * RBP_SPILL_QUARANTINE_NS from now_ns on (CLOCK_MONOTONIC), and up to twice
 * that if more of its extent follow; alloc() looks after that.  A region that
 * goes takes its quarantine along.
 */
#define RBP_SPILL_QUARANTINE_NS		INT64_C(60000000000)
extern void rbp_spill_slots_quarantine(RbpSpillSlots *s, uint32_t slot,
									   int64_t now_ns);

/* End all quarantines that are due; alloc() does it too. */
extern void rbp_spill_slots_tick(RbpSpillSlots *s, int64_t now_ns);

/* Used slots of an extent (quarantined ones not among them). */
extern uint32_t rbp_spill_slots_extent_used(RbpSpillSlots *s, uint32_t extent);

/*
 * Used slots of an account's extents, less those that are on_way(): n more of
 * the slot's extent are, or fewer.  Both without the lock; a reading.
 */
extern uint32_t rbp_spill_slots_account_used(RbpSpillSlots *s, uint32_t account);
extern void rbp_spill_slots_add_pending(RbpSpillSlots *s, uint32_t slot, int n);

/* Is the slot given out? For walks over an extent. */
extern bool rbp_spill_slots_is_used(RbpSpillSlots *s, uint32_t slot);

typedef struct RbpSpillSlotCounts
{
	uint32_t	online;			/* slots of online and draining extents */
	uint32_t	used;			/* given out, those of dead extents included */
	uint32_t	quarantined;
	uint32_t	free;			/* that alloc() could give */
	uint32_t	dead;			/* used slots of dead extents */
} RbpSpillSlotCounts;

/* The same as counts.free, about, without the lock. */
extern uint32_t rbp_spill_slots_free_count(const RbpSpillSlots *s);

extern void rbp_spill_slots_counts(RbpSpillSlots *s, RbpSpillSlotCounts *counts);

#endif							/* RBP_SPILL_SLOTS_H */
