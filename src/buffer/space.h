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

/*
 * Number of a pair, assigned if it has none; RBP_INVALID_SPACE if all are
 * taken
 */
extern uint16 rbp_space_get(Oid spc, Oid db);

/* Number of a pair; RBP_INVALID_SPACE if it has none */
extern uint16 rbp_space_find(Oid spc, Oid db);

/*
 * A database as a whole is the pair of this and its OID.  It gets a number with the
 * first pair of a tablespace and the database.
 */
#define RBP_ALL_TABLESPACES		PG_UINT32_MAX

/* Pair of a number.  Returns false if the number is not assigned. */
extern bool rbp_space_resolve(uint16 space, Oid *spc, Oid *db);

#endif							/* RBP_SPACE_H */
