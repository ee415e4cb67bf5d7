/*-------------------------------------------------------------------------
 *
 * s3fifo.h
 *	  Which page of a directory partition is given up next: S3-FIFO.
 *
 * Everything here works on one partition, whose lock the caller holds
 * exclusively.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_S3FIFO_H
#define RBP_S3FIFO_H

#include "buffer/directory.h"
#include "buffer/directory_internal.h"

/*
 * A page moves into the slot of this entry, which is on no list: put it in
 * the main queue if its ghost is there, else in the small one.  hash is the
 * page's; freq the accesses that it has had already.
 */
extern void rbp_s3fifo_insert(RbpDirectory *dir, uint32_t part,
							  uint32_t index, uint64_t hash, uint8_t freq);

/*
 * Choose an entry to reuse, take it off its queue and leave it on none; its
 * state is unchanged and it is still in its chain.  *live is set to whether
 * its page was still good (otherwise it was a dead one, which costs
 * nothing).  Its extent may be offline.  RBP_NIL if both queues are empty.
 * The work is bounded by RBP_EVICT_STEPS.
 */
extern uint32_t rbp_s3fifo_evict(RbpDirectory *dir, uint32_t part, bool *live);

/*
 * The page of this live entry is about to be dropped for a reason other
 * than replacement (it is written, or its memory is lost).  If it had earned
 * a place in the main queue, let it have that back when it returns.
 */
extern void rbp_s3fifo_remember(RbpDirectory *dir, uint32_t part,
								uint32_t index, uint64_t hash);

/* Entries moved within the queues before one is taken as it comes. */
#define RBP_EVICT_STEPS		64

/* For the unit test: make a ghost; take it away and say if it was there. */
extern void rbp_ghost_add(RbpDirectory *dir, uint32_t part, uint64_t hash);
extern bool rbp_ghost_take(RbpDirectory *dir, uint32_t part, uint64_t hash);

/* What the small queue is to have at most before main gives slots up. */
static inline uint32_t
rbp_s3fifo_small_target(const RbpDirectory *dir)
{
	uint32_t	slots = rbp_partition_slots(dir);

	return slots < 10 ? 1 : slots / 10;
}

#endif							/* RBP_S3FIFO_H */
