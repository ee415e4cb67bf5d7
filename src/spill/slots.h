/*-------------------------------------------------------------------------
 *
 * slots.h
 *	  The spill slots of the temp quota: which are free, a bitmap per extent.
 *
 * Nothing evicts temporary data: a slot belongs to one block of one file
 * until it is freed.  Slots are allocated in runs, which makes consecutive
 * blocks neighbours in the donor's memory and a batch of them one transfer.
 *
 * remote owns the state of an extent (128 slots, 1 MiB): slots are allocated
 * while it is online.  While it is draining, used ones stay valid.  When it is
 * closed, since the region is lost, used slots are dead: they count as used until
 * their owners have freed them, and only then is the extent absent, that is may
 * be brought online for another region.  So a slot never has two owners.
 *
 * Slots and extents are numbered as remote numbers them.
 *
 * There is one lock inside, a leaf, which alloc and free hold for well below
 * a microsecond.  This file knows nothing of files or donors.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SPILL_SLOTS_H
#define RBP_SPILL_SLOTS_H

#include "remote/remote.h"
#include "spill/spill.h"

/* The slots; NULL until they are initialized. */
typedef struct RbpSpillSlots RbpSpillSlots;

extern RbpSpillSlots *rbp_spill_slots;

extern size_t rbp_spill_slots_size(uint32_t nextents);

/* mem: aligned to a cache line.  All extents are absent. */
extern void rbp_spill_slots_init(void *mem, const RbpExtents *extents, int tranche);

/*
 * Forget these closed extents, as far as their slots have no owners any more.
 * Returns how many; they come first then.
 */
extern uint32_t rbp_spill_slots_drop(uint32_t *extents, uint32_t n);

/*
 * May slots of the extent be allocated?  Called with the lock held: be quick.
 */
typedef bool (*RbpSpillExtentOk) (uint32_t extent, void *arg);

/*
 * Allocate up to want (1..128) consecutive free slots of one online extent
 * that ok(extent, arg) accepts (NULL: any).  Sets *first to the first of them,
 * and returns how many; 0 if there are none.
 *
 * A longer run is preferred to a nearer one, as long as the search is short: a
 * few extents are compared.  Successive calls use up an extent and then go
 * round to the next one, so that files are spread over donors; but they prefer
 * the extent where slots were freed last.
 *
 * Full extents cost nothing, but extents that ok() rejects do.  After 256
 * rejections in one call the result is 0, and the next call asks about others.
 */
extern uint32_t rbp_spill_slots_alloc(uint32_t want,
									  RbpSpillExtentOk ok, void *arg,
									  uint32_t *first);

/* Free n consecutive used slots of one extent. */
extern void rbp_spill_slots_free(uint32_t first, uint32_t n);

/*
 * Free a slot that a lost write may still reach.  It no longer counts as used,
 * but is not allocated again until RBP_SPILL_QUARANTINE_NS after now_ns
 * (CLOCK_MONOTONIC), and up to twice that if more slots of its extent follow;
 * alloc() sees to that.  The quarantine ends with the region.
 */
#define RBP_SPILL_QUARANTINE_NS		INT64_C(60000000000)
extern void rbp_spill_slots_quarantine(uint32_t slot,
									   int64_t now_ns);

/* End all quarantines that are due; alloc() does it, too. */
extern void rbp_spill_slots_tick(int64_t now_ns);

/*
 * A used slot is filled from here on, until it is freed: its content has arrived,
 * and has to be moved before the memory may go.  Other used slots, which are
 * reserved, or whose content is on its way, keep nothing from going.  To be called
 * once, by the slot's owner; a full barrier.  Takes no lock.
 */
extern void rbp_spill_slots_fill(uint32_t slot);

/*
 * Filled slots of an extent, and approximately those of a region's extents.  No
 * lock.
 */
extern uint64_t rbp_spill_slots_extent_filled(uint32_t extent);
extern uint64_t rbp_spill_slots_region_filled(uint32_t region);

/* All but usage->files.  Looks at each extent, without the lock. */
extern void rbp_spill_slots_counts(RbpSpillUsage *usage);

/* About as many slots are free.  No lock. */
extern uint64_t rbp_spill_slots_free_count(void);

#endif							/* RBP_SPILL_SLOTS_H */
