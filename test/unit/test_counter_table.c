/*-------------------------------------------------------------------------
 *
 * test_counter_table.c
 *	  The table of counters: sums, replacement, and threads that count while
 *	  entries are replaced, copied and removed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/counter_table.h"

#include "tap.h"

#define THREADS		4
#define ROUNDS		20000

static RbpCounterTable *table;

static void
make(int max)
{
	free(table);
	table = NULL;
	if (posix_memalign((void **) &table, 64, rbp_counter_table_size(max)) != 0)
		exit(1);
	table = rbp_counter_table_init(table, max, 0);
}

static void
add(uint64 key, uint64 n)
{
	RbpCounterRow row = {.key = {.high = key >> 3,.low = key},.values = {n, 0, 2 * n}};

	rbp_counter_table_add(table, &row);
}

/* Sum of the first value; what is not consistent ends the test. */
static uint64
sum(int *n)
{
	RbpCounterRow *rows = rbp_counter_table_copy(table, n, true);
	uint64		total = 0;

	for (int i = 0; i < *n; i++)
	{
		const RbpCounterRow *row = &rows[i];

		total += row->values[0];
		if (row->key.high != row->key.low >> 3 || row->values[1] != 0)
			exit(1);
		for (int k = 0; k < i; k++)
			if (rows[k].key.low == row->key.low)
				exit(1);
	}
	pfree(rows);
	return total;
}

static uint64
value_of(uint64 key)
{
	int			n;
	RbpCounterRow *rows = rbp_counter_table_copy(table, &n, true);
	uint64		value = 0;

	for (int i = 0; i < n; i++)
		if (rows[i].key.low == key)
			value = rows[i].values[0];
	pfree(rows);
	return value;
}

static void
test_sums(void)
{
	int			n;

	make(100);
	is_u64(sum(&n), 0, "a new table is empty");
	is_u64((uint64) n, 0, "and has no rows");
	for (uint64 i = 0; i < 300; i++)
		add(i % 100, i);
	is_u64(sum(&n), 299 * 300 / 2, "all that was added is there");
	is_u64((uint64) n, 100, "in a row for each key");
	is_u64(value_of(42), 42 + 142 + 242, "to the key that it was added to");
	rbp_counter_table_clear(table);
	is_u64(sum(&n), 0, "a table that was cleared is empty");
	add(42, 1);
	is_u64(value_of(42), 1, "and begins anew");
}

static void
test_replacement(void)
{
	int			n;

	make(10);
	for (uint64 i = 0; i < 10000; i++)
	{
		add(1000000, 1);
		add(i, 1);
		add(2000000, 1);
	}
	(void) sum(&n);
	is_u64((uint64) n, 10, "there are never more rows than there may be");
	ok(value_of(1000000) == 10000 && value_of(2000000) == 10000, "a key that is used stays");
	is_u64(value_of(9999), 1, "the latest key is there");
	make(1);
	for (uint64 i = 0; i < 100; i++)
		add(i % 2, 1);
	ok(sum(&n) == 1 && n == 1, "a table of one row has the latest key");
}

/* Keys that are counted all the time, while others come, which all bring at once. */
static void *
count(void *arg)
{
	for (uint64 i = 0; i < ROUNDS; i++)
	{
		add(1, 1);
		add(2, 1);
		add(10 + i, 1);
		if (i % 1000 == 0)
		{
			int			n;

			(void) sum(&n);
		}
	}
	return NULL;
}

static void
test_threads(int max, const char *name)
{
	pthread_t	threads[THREADS];
	int			n;
	uint64		total;

	make(max);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, count, NULL) != 0)
			exit(1);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	total = sum(&n);
	ok(n == max && total <= UINT64_C(3) * THREADS * ROUNDS, "%s: as many rows as there may be", name);
	if (max < 100)
		return;
	is_u64(value_of(1), THREADS * ROUNDS, "what all threads use lost nothing");
	is_u64(value_of(2), THREADS * ROUNDS, "nor did the other");
}

int
main(void)
{
	test_sums();
	test_replacement();
	test_threads(1000, "many threads");
	test_threads(2, "many threads, and hardly any room");
	free(table);
	return done_testing();
}
