/*-------------------------------------------------------------------------
 *
 * table.h
 *	  A table in shared memory of so many entries at most, each with a key and
 *	  some counters.  A new key may take the place of another, one that was not
 *	  used for long (CLOCK).
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_USAGE_TABLE_H
#define RBP_USAGE_TABLE_H

#include "postgres.h"

/* What a key means is for the user of the table to say. */
typedef struct RbpUsageKey
{
	uint64		high;
	uint64		low;
} RbpUsageKey;

typedef struct RbpUsageTable RbpUsageTable;

/* An entry of a copy; the next one is rbp_usage_row_size() bytes further on. */
typedef struct RbpUsageRow
{
	RbpUsageKey key;
	uint64		values[FLEXIBLE_ARRAY_MEMBER];
} RbpUsageRow;

static inline Size
rbp_usage_row_size(int nvalues)
{
	return offsetof(RbpUsageRow, values) + nvalues * sizeof(uint64);
}

static inline RbpUsageRow *
rbp_usage_row(void *rows, int i, int nvalues)
{
	return (RbpUsageRow *) ((char *) rows + i * rbp_usage_row_size(nvalues));
}

extern Size rbp_usage_table_size(int max, int nvalues);

/* mem is at a cache line; lock_name is the name of the lock's tranche. */
extern RbpUsageTable *rbp_usage_table_init(void *mem, int max, int nvalues,
										   const char *lock_name);

/* Add the values to those of the key.  This may wait for the table's lock. */
extern void rbp_usage_table_add(RbpUsageTable *table, const RbpUsageKey *key,
								const uint64 *values);

/*
 * A palloc'd copy of all entries; their number in *n.  If wait is false, NULL when
 * the table is locked.
 */
extern void *rbp_usage_table_copy(RbpUsageTable *table, int *n, bool wait);

/* Remove all entries. */
extern void rbp_usage_table_clear(RbpUsageTable *table);

#endif							/* RBP_USAGE_TABLE_H */
