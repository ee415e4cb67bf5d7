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
 * For a process that loads relations in pieces: begin, any number of pieces, and
 * end, which is also for errors.  begin raises if there is no tier.
 */
extern void rbp_prewarm_load_begin(void);
extern void rbp_prewarm_load_end(void);

/*
 * Bring what is missing of a piece of the main fork into the tier, from that block on.
 * Returns the block to go on with, InvalidBlockNumber at the end, or if there is no use in
 * going on.  Waits for staging until the deadline.  The relation is locked.  Raises what
 * reading it raises; load_at() tells at which block that was.
 */
extern BlockNumber rbp_prewarm_load(Relation rel, BlockNumber first,
									int64 deadline_ns);

extern BlockNumber rbp_prewarm_load_at(void);

#endif							/* RBP_PREWARM_H */
