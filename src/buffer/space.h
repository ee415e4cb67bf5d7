/*-------------------------------------------------------------------------
 *
 * space.h
 *	  The dictionary of (tablespace, database) pairs: a 16-bit number for
 *	  each, so that directory entries stay small.
 *
 * A pair keeps its number until the server restarts.  There is room for
 * RBP_MAX_SPACES pairs; one more is not served by the tier.  Lock-free; all
 * functions may be called anywhere where shared memory is attached.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SPACE_H
#define RBP_SPACE_H

#include "postgres.h"

/* The number of a pair, given out if need be; RBP_INVALID_SPACE if full. */
extern uint16 rbp_space_get(Oid spc, Oid db);

/* The same, but RBP_INVALID_SPACE if the pair has none yet. */
extern uint16 rbp_space_find(Oid spc, Oid db);

/* The pair of a number; false if it was never given out. */
extern bool rbp_space_resolve(uint16 space, Oid *spc, Oid *db);

#endif							/* RBP_SPACE_H */
