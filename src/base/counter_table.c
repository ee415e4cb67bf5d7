/*-------------------------------------------------------------------------
 *
 * counter_table.c
 *	  A bounded table of counters in shared memory.
 *
 * The table's lock is held shared to find an entry and to add to its counters,
 * which are atomic, and exclusively to change which entries there are.  No lock
 * is taken while it is held, and nothing is waited for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"

#include "base/lock.h"
#include "base/counter_table.h"

#define NO_ENTRY		PG_UINT32_MAX

typedef struct Entry
{
	RbpCounterKey key;
	uint32		next;			/* of the same bucket */
	pg_atomic_uint32 used;		/* again, since the hand has passed */
	pg_atomic_uint64 values[RBP_COUNTER_VALUES];
} Entry;

struct RbpCounterTable
{
	RbpLock		lock;			/* protects all, except the values and "used" */
	uint32		max;
	uint32		n;				/* entries 0 to n - 1 are in use */
	uint32		hand;			/* where the search for a victim goes on */
	uint32		nbuckets;		/* a power of two */
	uint32		buckets[FLEXIBLE_ARRAY_MEMBER]; /* first entries; the array of
												 * entries follows */
};

static uint32
bucket_count(int max)
{
	return pg_nextpower2_32(Max((uint32) max, 16));
}

static Size
header_size(uint32 nbuckets)
{
	return MAXALIGN(offsetof(RbpCounterTable, buckets) + nbuckets * sizeof(uint32));
}

Size
rbp_counter_table_size(int max)
{
	return add_size(header_size(bucket_count(max)), mul_size(max, sizeof(Entry)));
}

static inline Entry *
entry_at(RbpCounterTable *table, uint32 i)
{
	return (Entry *) ((char *) table + header_size(table->nbuckets)) + i;
}

RbpCounterTable *
rbp_counter_table_init(void *mem, int max, int tranche)
{
	RbpCounterTable *table = mem;

	rbp_lock_init(&table->lock, tranche);
	table->max = (uint32) max;
	table->n = 0;
	table->hand = 0;
	table->nbuckets = bucket_count(max);
	memset(table->buckets, 0xff, table->nbuckets * sizeof(uint32));
	return table;
}

static uint32 *
bucket_of(RbpCounterTable *table, const RbpCounterKey *key)
{
	uint32		hash = hash_bytes((const unsigned char *) key, sizeof(RbpCounterKey));

	return &table->buckets[hash & (table->nbuckets - 1)];
}

static Entry *
find(RbpCounterTable *table, const RbpCounterKey *key)
{
	uint32		i = *bucket_of(table, key);

	while (i != NO_ENTRY)
	{
		Entry	   *entry = entry_at(table, i);

		if (entry->key.high == key->high && entry->key.low == key->low)
			return entry;
		i = entry->next;
	}
	return NULL;
}

/* Remove the next entry that was not used since the hand came by, and return it. */
static uint32
evict(RbpCounterTable *table)
{
	uint32		victim;
	uint32	   *place;

	for (;;)
	{
		victim = table->hand;
		table->hand = (table->hand + 1) % table->max;
		if (pg_atomic_read_u32(&entry_at(table, victim)->used) == 0)
			break;
		pg_atomic_write_u32(&entry_at(table, victim)->used, 0);
	}
	place = bucket_of(table, &entry_at(table, victim)->key);
	while (*place != victim)
		place = &entry_at(table, *place)->next;
	*place = entry_at(table, victim)->next;
	return victim;
}

static Entry *
insert(RbpCounterTable *table, const RbpCounterKey *key)
{
	uint32		i = table->n < table->max ? table->n++ : evict(table);
	uint32	   *bucket = bucket_of(table, key);
	Entry	   *entry = entry_at(table, i);

	entry->key = *key;
	entry->next = *bucket;
	*bucket = i;
	pg_atomic_init_u32(&entry->used, 0);
	for (int v = 0; v < RBP_COUNTER_VALUES; v++)
		pg_atomic_init_u64(&entry->values[v], 0);
	return entry;
}

void
rbp_counter_table_add(RbpCounterTable *table, const RbpCounterRow *row)
{
	Entry	   *entry;

	rbp_lock_shared(&table->lock);
	entry = find(table, &row->key);
	if (entry != NULL && pg_atomic_read_u32(&entry->used) == 0)
		pg_atomic_write_u32(&entry->used, 1);
	if (entry == NULL)
	{
		rbp_lock_release(&table->lock);
		rbp_lock_exclusive(&table->lock);
		entry = find(table, &row->key);
		if (entry == NULL)
			entry = insert(table, &row->key);
	}
	for (int v = 0; v < RBP_COUNTER_VALUES; v++)
		if (row->values[v] != 0)
			pg_atomic_fetch_add_u64(&entry->values[v], (int64) row->values[v]);
	rbp_lock_release(&table->lock);
}

RbpCounterRow *
rbp_counter_table_copy(RbpCounterTable *table, int *n, bool wait)
{
	RbpCounterRow *rows = palloc(Max(table->max, 1) * sizeof(RbpCounterRow));

	if (wait)
		rbp_lock_shared(&table->lock);
	else if (!rbp_lock_try(&table->lock, false))
	{
		pfree(rows);
		return NULL;
	}
	for (uint32 i = 0; i < table->n; i++)
	{
		Entry	   *entry = entry_at(table, i);

		rows[i].key = entry->key;
		for (int v = 0; v < RBP_COUNTER_VALUES; v++)
			rows[i].values[v] = pg_atomic_read_u64(&entry->values[v]);
	}
	*n = (int) table->n;
	rbp_lock_release(&table->lock);
	return rows;
}

void
rbp_counter_table_clear(RbpCounterTable *table)
{
	rbp_lock_exclusive(&table->lock);
	table->n = 0;
	table->hand = 0;
	memset(table->buckets, 0xff, table->nbuckets * sizeof(uint32));
	rbp_lock_release(&table->lock);
}
