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

#include "base/stats.h"

/* What a key means is for the user of the table to say. */
typedef struct RbpCounterKey
{
	uint64		high;
	uint64		low;
} RbpCounterKey;

typedef struct RbpCounterTable RbpCounterTable;

/* The counters of a row: those of RbpUsage, and calls, where these are counted */
#define RBP_COUNTER_CALLS	RBP_NUM_USAGE_ITEMS
#define RBP_COUNTER_VALUES	(RBP_NUM_USAGE_ITEMS + 1)

typedef struct RbpCounterRow
{
	RbpCounterKey key;
	uint64		values[RBP_COUNTER_VALUES];
} RbpCounterRow;

extern Size rbp_counter_table_size(int max);

/* mem is at a cache line; tranche is that of the lock. */
extern RbpCounterTable *rbp_counter_table_init(void *mem, int max, int tranche);

/* Add the row's values to those of its key.  This may wait for the table's lock. */
extern void rbp_counter_table_add(RbpCounterTable *table, const RbpCounterRow *row);

/*
 * A palloc'd copy of all entries; their number in *n.  If wait is false, NULL when
 * the table is locked.
 */
extern RbpCounterRow *rbp_counter_table_copy(RbpCounterTable *table, int *n, bool wait);

/* Remove all entries. */
extern void rbp_counter_table_clear(RbpCounterTable *table);

#endif							/* RBP_COUNTER_TABLE_H */
