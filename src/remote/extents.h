/*-------------------------------------------------------------------------
 *
 * extents.h
 *	  The state of a pool's extents, one byte each.
 *
 * The lease worker changes states, all processes read them without a lock.  An
 * extent is absent at first: a region may be given it.  Online, it belongs to
 * a region, and pages are put into it.  While it is draining, those that it has
 * are still read.  When it is closed, nobody reads it any more, but what is
 * known of its pages is still there.  It is absent again when that has been
 * dropped (RbpRemotePoolOps.drop).
 *
 * Where a change is followed by a look at what the extent holds, both are
 * ordered: states are changed with a full barrier.
 *
 * Includes no postgres.h: the directory is tested outside the server.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_EXTENTS_H
#define RBP_EXTENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/geometry.h"

/*
 * From RBP_EXTENT_ONLINE to RBP_EXTENT_FRESH the extent is online.  By how much
 * the state is above RBP_EXTENT_ONLINE is for the owner of the pool, who changes it
 * by compare-and-swap: how many of the extent's slots can be found by its state, at
 * most.  (For the buffer tier these are fresh slots: not taken since it came online.)
 */
#define RBP_EXTENT_ABSENT	0	/* none of its slots is in use */
#define RBP_EXTENT_ONLINE	1	/* no slot */
#define RBP_EXTENT_TOUCHED	(RBP_EXTENT_ONLINE + RBP_EXTENT_PAGES)	/* perhaps all */
#define RBP_EXTENT_FRESH	(RBP_EXTENT_TOUCHED + 1)	/* all, and none was
														 * ever taken */
#define RBP_EXTENT_DRAINING 254 /* readable, but takes no more pages */
#define RBP_EXTENT_CLOSED	255 /* not readable; its pages are not dropped yet */

typedef struct RbpExtents
{
	/* constant */
	uint32_t	first;			/* the number of the first extent */
	uint32_t	n;
	uint8_t    *states;			/* at the same address in all processes */
	uint16_t   *regions;		/* likewise: to which each belongs, or did */

	/* atomic; written when states change */
	uint32_t	onlinings;		/* times that an extent came online, or could
								 * take pages again */
	uint32_t	top;			/* so many of them, from the first on, were
								 * ever online */
	uint32_t	open;			/* extents that are online, and not draining */
	uint32_t	draining;
	uint32_t	closed;
	uint32_t	drop_at;		/* private to the lease worker */
} RbpExtents;

static inline uint8_t
rbp_extent_state(const RbpExtents *x, uint32_t extent)
{
	return __atomic_load_n(&x->states[extent - x->first], __ATOMIC_ACQUIRE);
}

static inline bool
rbp_state_open(uint8_t state)
{
	return state >= RBP_EXTENT_ONLINE && state <= RBP_EXTENT_FRESH;
}

/* May pages be put into the extent? */
static inline bool
rbp_extent_open(const RbpExtents *x, uint32_t extent)
{
	return rbp_state_open(rbp_extent_state(x, extent));
}

/* Its region, until it comes online for another one. */
static inline uint16_t
rbp_extent_region(const RbpExtents *x, uint32_t extent)
{
	return __atomic_load_n(&x->regions[extent - x->first], __ATOMIC_RELAXED);
}

static inline uint32_t
rbp_extents_onlinings(const RbpExtents *x)
{
	return __atomic_load_n(&x->onlinings, __ATOMIC_ACQUIRE);
}

static inline uint32_t
rbp_extents_closed(const RbpExtents *x)
{
	return __atomic_load_n(&x->closed, __ATOMIC_ACQUIRE);
}

/*
 * ---- for the lease worker --------------------------------------------------
 */

/* mem: of rbp_extents_size(n) bytes.  All are absent. */
extern size_t rbp_extents_size(uint32_t n);
extern void rbp_extents_init(RbpExtents *x, void *mem, uint32_t first, uint32_t n);

/*
 * The states and regions are in mem, where a crash has left them, and x is as it was:
 * make the counts anew.  How many slots can be found by a state is not known any
 * more: perhaps all, but where none was ever taken.
 */
extern void rbp_extents_reopen(RbpExtents *x, void *mem);

/*
 * Each of these does nothing if the extent is not in the state that it starts
 * from.  online: absent, to that state, for the region.  drain: online to
 * draining; undrain: back.  close: online or draining to closed, or to absent
 * if all slots are fresh.
 */
extern void rbp_extent_bring_online(RbpExtents *x, uint32_t extent, uint32_t region,
									uint8_t state);
extern void rbp_extent_drain(RbpExtents *x, uint32_t extent);
extern void rbp_extent_undrain(RbpExtents *x, uint32_t extent);
extern void rbp_extent_close(RbpExtents *x, uint32_t extent);

/* The most extents that are dropped at once */
#define RBP_DROP_MAX			64

/* The next closed extents, max at most, in turn.  And: their pages are dropped. */
extern uint32_t rbp_extents_next_closed(RbpExtents *x, uint32_t *extents, uint32_t max);
extern void rbp_extents_dropped(RbpExtents *x, const uint32_t *extents, uint32_t n);

#endif							/* RBP_EXTENTS_H */
