/*-------------------------------------------------------------------------
 *
 * s3fifo.h
 *	  S3-FIFO, the replacement policy of a directory partition.
 *
 * Everything here works on one partition, whose lock the caller holds
 * exclusively.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_S3FIFO_H
#define RBP_S3FIFO_H

#include "buffer/directory_internal.h"

/*
 * Put an entry, which is on no list and has just received a page, into the
 * main queue if there is a ghost of the page, and into the small queue
 * otherwise.  hash is the page's hash; freq is the number of accesses so far.
 */
extern void rbp_s3fifo_insert(RbpDirectory *dir, uint32_t part,
							  uint32_t index, uint64_t hash, uint8_t freq);

/*
 * Choose an entry to reuse and take it off its queue.  It is on no list then,
 * but its state is unchanged and it is still in its chain.  *live is set to
 * whether its page was still valid; otherwise nothing is lost by reusing the
 * entry.  Its extent may be offline.  Returns RBP_NIL if both queues are
 * empty.  The work is bounded by RBP_EVICT_STEPS.
 */
extern uint32_t rbp_s3fifo_evict(RbpDirectory *dir, uint32_t part, bool *live);

/*
 * The page of this live entry is about to be dropped for a reason other than
 * replacement: it is being written, or its memory is lost.  If the page
 * qualified for the main queue, add a ghost, so that it enters that queue
 * directly when it returns.
 */
extern void rbp_s3fifo_remember(RbpDirectory *dir, uint32_t part,
								uint32_t index, uint64_t hash);

/*
 * For the unit test: add a ghost; remove a ghost and return whether it was
 * there.
 */
extern void rbp_ghost_add(RbpDirectory *dir, uint32_t part, uint64_t hash);
extern bool rbp_ghost_take(RbpDirectory *dir, uint32_t part, uint64_t hash);

#endif							/* RBP_S3FIFO_H */
