/*-------------------------------------------------------------------------
 *
 * s3fifo_rules.h
 *	  The parameters of S3-FIFO: those of the directory, and of the advice,
 *	  which simulates it.  No postgres.h.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_S3FIFO_RULES_H
#define RBP_S3FIFO_RULES_H

#include <stdint.h>

/* Accesses are counted up to this number */
#define RBP_MAX_FREQ		3

/*
 * Entries moved within the queues before the next one is evicted regardless
 * of its accesses
 */
#define RBP_EVICT_STEPS		64

/* Length of the small queue above which it is evicted from first */
static inline uint32_t
rbp_s3fifo_small_room(uint32_t slots)
{
	return slots < 10 ? 1 : slots / 10;
}

/* Slots for the main queue; ghosts are remembered as long as one of that length */
static inline uint32_t
rbp_s3fifo_main_room(uint32_t slots)
{
	uint32_t	small_room = rbp_s3fifo_small_room(slots);

	return slots > small_room ? slots - small_room : 0;
}

#endif							/* RBP_S3FIFO_RULES_H */
