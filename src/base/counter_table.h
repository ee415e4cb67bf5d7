/*-------------------------------------------------------------------------
 *
 * counter_table.h
 *	  A table in shared memory of so many entries at most, each with a key and
 *	  some counters.  A new key may take the place of another, one that was not
 *	  used for long (CLOCK).
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_COUNTER_TABLE_H
#define RBP_COUNTER_TABLE_H

#include "postgres.h"

/* What a key means is for the user of the table to say. */
typedef struct RbpCounterKey
{
	uint64		high;
	uint64		low;
} RbpCounterKey;

typedef struct RbpCounterTable RbpCounterTable;

/* An entry of a copy; the next one is rbp_counter_row_size() bytes further on. */
typedef struct RbpCounterRow
{
	RbpCounterKey key;
	uint64		values[FLEXIBLE_ARRAY_MEMBER];
} RbpCounterRow;

static inline Size
rbp_counter_row_size(int nvalues)
{
	return offsetof(RbpCounterRow, values) + nvalues * sizeof(uint64);
}

static inline RbpCounterRow *
rbp_counter_row(void *rows, int i, int nvalues)
{
	return (RbpCounterRow *) ((char *) rows + i * rbp_counter_row_size(nvalues));
}

extern Size rbp_counter_table_size(int max, int nvalues);

/* mem is at a cache line; tranche is that of the lock. */
extern RbpCounterTable *rbp_counter_table_init(void *mem, int max, int nvalues,
											   int tranche);

/* Add the values to those of the key.  This may wait for the table's lock. */
extern void rbp_counter_table_add(RbpCounterTable *table, const RbpCounterKey *key,
								  const uint64 *values);

/*
 * A palloc'd copy of all entries; their number in *n.  If wait is false, NULL when
 * the table is locked.
 */
extern void *rbp_counter_table_copy(RbpCounterTable *table, int *n, bool wait);

/* Remove all entries. */
extern void rbp_counter_table_clear(RbpCounterTable *table);

#endif							/* RBP_COUNTER_TABLE_H */
