/*-------------------------------------------------------------------------
 *
 * prewarm.h
 *	  Bring relations into the tier, or into shared buffers, on demand.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_PREWARM_H
#define RBP_PREWARM_H

#include "postgres.h"

#include "storage/block.h"
#include "utils/rel.h"

/*
 * Loading of relations in pieces: call begin once, then load any number of
 * pieces, then end, which must also be called after errors.  begin raises an
 * error if there is no usable tier.
 */
extern void rbp_prewarm_load_begin(void);
extern void rbp_prewarm_load_end(void);

/*
 * Bring the missing pages of a piece of the main fork into the tier,
 * beginning at block first.  Returns the block to continue with, or
 * InvalidBlockNumber at the end of the relation or if continuing is useless.
 * Waits for staging until the deadline.  The relation must be locked.  Raises
 * errors of reading the relation; rbp_prewarm_failed_block() tells the block at
 * which that happened.
 */
extern BlockNumber rbp_prewarm_load(Relation rel, BlockNumber first,
									int64 deadline_ns);

extern BlockNumber rbp_prewarm_failed_block(void);

/*
 * Number of new pages, of zeros, found by all pieces since it was last set.
 * They are not brought into the tier.
 */
extern uint32 rbp_prewarm_new(void);
extern void rbp_prewarm_set_new(uint32 pages);

#endif							/* RBP_PREWARM_H */
