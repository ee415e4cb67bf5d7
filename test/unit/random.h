/*-------------------------------------------------------------------------
 *
 * random.h
 *	  Numbers that are the same in each run (xorshift64, G. Marsaglia, 2003).
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_TEST_RANDOM_H
#define RBP_TEST_RANDOM_H

#include <stdint.h>

static inline uint64_t
next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

#endif							/* RBP_TEST_RANDOM_H */
