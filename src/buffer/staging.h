/*-------------------------------------------------------------------------
 *
 * staging.h
 *	  The staging region: pinned pages between the backends, which copy
 *	  victims in, and the pusher, which writes them to donors.
 *
 * There are two lock-free lists of staging slot numbers, "free" and "ready",
 * beside the pages.  A staging slot is, in turn, on the free list; owned by
 * one backend; on the ready list; owned by the pusher.  No call ever waits,
 * even if another process is stopped in the middle of a call: if the free
 * list is empty, the caller is told, and drops its victim.
 *
 * No postgres.h, no locks; all functions may be called without a PGPROC.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_STAGING_H
#define RBP_STAGING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RBP_NO_STAGING_SLOT		UINT32_MAX

typedef struct RbpStaging RbpStaging;

/* Bytes of shared memory for n slots (any n >= 1), pages included. */
extern size_t rbp_staging_size(uint32_t n);

/* Initialize in mem (page-aligned); all slots are free. */
extern RbpStaging *rbp_staging_init(void *mem, uint32_t n);

/* A free slot, or RBP_NO_STAGING_SLOT. */
extern uint32_t rbp_staging_get(RbpStaging *st);

/* Give a slot back, from get() or take(). */
extern void rbp_staging_put(RbpStaging *st, uint32_t slot);

/*
 * Hand a filled slot to the pusher; returns the number of slots now ready
 * (at least 1, otherwise about).
 */
extern uint32_t rbp_staging_ready(RbpStaging *st, uint32_t slot);

/*
 * For the pusher: take up to max filled slots, in the order in which they
 * became ready, and return their number.  Only one process may call this, and
 * must have given back the slots that it took before.
 */
extern int	rbp_staging_take(RbpStaging *st, uint32_t *slots, int max);

/* The slot's page (8 KiB, page-aligned); that of the next slot follows it. */
extern void *rbp_staging_page(RbpStaging *st, uint32_t slot);

extern uint32_t rbp_staging_slots(const RbpStaging *st);
extern uint32_t rbp_staging_depth(RbpStaging *st);	/* ready now, about; 0
													 * only if there is none */

/*
 * Approximate number of slots that are ready, or were taken by the pusher and
 * not given back yet.  It may be too high, but hardly ever too low.
 */
extern uint32_t rbp_staging_busy(RbpStaging *st);

#endif							/* RBP_STAGING_H */
