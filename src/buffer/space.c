/*-------------------------------------------------------------------------
 *
 * space.c
 *	  The dictionary of (tablespace, database) pairs.
 *
 * An open-addressing table of 64-bit words, (tablespace << 32 | database),
 * zero when empty; a pair's number is its index in the table.  Entries are
 * taken by compare-and-swap and never freed.  So a pair that did not fit once
 * will never fit: the answer for a pair cannot change from "none" to a number
 * because of other pairs.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/atomics.h"

#include "base/injection_point.h"
#include "buffer/buffer_internal.h"
#include "buffer/page.h"

#define MAX_PROBES		64

static uint16
find_or_add(Oid spc, Oid db, bool add)
{
	pg_atomic_uint64 *spaces = rbp_tier_shared->spaces;
	uint64		word = ((uint64) spc << 32) | db;
	uint32		place = (uint32) rbp_mix64(word) % RBP_MAX_SPACES;

	for (int i = 0; i < MAX_PROBES; i++)
	{
		uint64		seen = pg_atomic_read_u64(&spaces[place]);

		if (seen == 0 && (!add || RBP_INJECTION_POINT("full-dictionary")))
			return RBP_INVALID_SPACE;
		if (seen == 0 &&
			pg_atomic_compare_exchange_u64(&spaces[place], &seen, word))
			return (uint16) place;
		if (seen == word)
			return (uint16) place;
		place = (place + 1) % RBP_MAX_SPACES;
	}
	return RBP_INVALID_SPACE;
}

uint16
rbp_space_get(Oid spc, Oid db)
{
	uint16		space = find_or_add(spc, db, false);

	/* no limit would hold in a database without a number */
	if (space == RBP_INVALID_SPACE && (spc == RBP_ALL_TABLESPACES ||
									   find_or_add(RBP_ALL_TABLESPACES, db, true) != RBP_INVALID_SPACE))
		space = find_or_add(spc, db, true);
	return space;
}

uint16
rbp_space_find(Oid spc, Oid db)
{
	return find_or_add(spc, db, false);
}

bool
rbp_space_resolve(uint16 space, Oid *spc, Oid *db)
{
	uint64		word;

	if (space >= RBP_MAX_SPACES)
		return false;
	word = pg_atomic_read_u64(&rbp_tier_shared->spaces[space]);
	if (word == 0)
		return false;
	*spc = (Oid) (word >> 32);
	*db = (Oid) word;
	return true;
}
