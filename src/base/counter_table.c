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

static void
empty(RbpCounterTable *table)
{
	table->n = 0;
	table->hand = 0;
	memset(table->buckets, 0xff, table->nbuckets * sizeof(uint32));
}

RbpCounterTable *
rbp_counter_table_init(void *mem, int max, int tranche)
{
	RbpCounterTable *table = mem;

	rbp_lock_init(&table->lock, tranche);
	table->max = (uint32) max;
	table->nbuckets = bucket_count(max);
	empty(table);
	return table;
}

/* The link that leads to the key's entry, or at which its chain ends */
static uint32 *
link_to(RbpCounterTable *table, const RbpCounterKey *key)
{
	uint32		hash = hash_bytes((const unsigned char *) key, sizeof(RbpCounterKey));
	uint32	   *link = &table->buckets[hash & (table->nbuckets - 1)];

	while (*link != NO_ENTRY && memcmp(&entry_at(table, *link)->key, key, sizeof(*key)) != 0)
		link = &entry_at(table, *link)->next;
	return link;
}

/* Remove the next entry that was not used since the hand came by, and return it. */
static uint32
evict(RbpCounterTable *table)
{
	uint32		victim;

	for (;;)
	{
		victim = table->hand;
		table->hand = (table->hand + 1) % table->max;
		if (pg_atomic_read_u32(&entry_at(table, victim)->used) == 0)
			break;
		pg_atomic_write_u32(&entry_at(table, victim)->used, 0);
	}
	*link_to(table, &entry_at(table, victim)->key) = entry_at(table, victim)->next;
	return victim;
}

static uint32
insert(RbpCounterTable *table, const RbpCounterKey *key)
{
	uint32		i = table->n < table->max ? table->n++ : evict(table);
	Entry	   *entry = entry_at(table, i);

	entry->key = *key;
	entry->next = NO_ENTRY;
	*link_to(table, key) = i;
	pg_atomic_init_u32(&entry->used, 0);
	for (int v = 0; v < RBP_COUNTER_VALUES; v++)
		pg_atomic_init_u64(&entry->values[v], 0);
	return i;
}

void
rbp_counter_table_add(RbpCounterTable *table, const RbpCounterRow *row)
{
	Entry	   *entry;
	uint32		i;
	bool		known;

	rbp_lock_shared(&table->lock);
	i = *link_to(table, &row->key);
	known = i != NO_ENTRY;
	if (!known)
	{
		rbp_lock_release(&table->lock);
		rbp_lock_exclusive(&table->lock);
		i = *link_to(table, &row->key);
		if (i == NO_ENTRY)
			i = insert(table, &row->key);
	}
	entry = entry_at(table, i);
	if (known && pg_atomic_read_u32(&entry->used) == 0)
		pg_atomic_write_u32(&entry->used, 1);
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
	empty(table);
	rbp_lock_release(&table->lock);
}
