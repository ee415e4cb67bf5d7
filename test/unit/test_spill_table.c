/*-------------------------------------------------------------------------
 *
 * test_spill_table.c
 *	  The table of temporary files: each rule by itself, then random
 *	  operations beside a plain model, then threads that create, fill, cut and
 *	  remove the same few files.
 *
 *	 test_spill_table [SEED [OPERATIONS]]
 *
 *-------------------------------------------------------------------------
 */
#include "base/geometry.h"
#include "spill/table.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "spill_table_check.h"
#include "tap.h"

static uint64_t rng_state;

static uint64_t
rnd_from(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state >> 20;
}

static uint32_t
rnd(uint32_t n)
{
	return (uint32_t) (rnd_from(&rng_state) % n);
}

static void *
aligned(size_t size)
{
	void	   *mem = aligned_alloc(64, (size + 63) & ~(size_t) 63);

	if (mem == NULL)
		abort();
	memset(mem, 0x5a, size);
	return mem;
}

static void
new_table(uint32_t nfiles, uint32_t nnodes)
{
	rbp_spill_table_init(aligned(rbp_spill_table_size(nfiles, nnodes)),
						 nfiles, nnodes, 0, 0);
}

static const RbpSpillFile blank;

/* What a walk, a cut or a removal told. */
#define MAX_SEEN	4096

typedef struct Seen
{
	uint32_t	n;
	uint32_t	ends;			/* calls for the state */
	uint32_t	blocks[MAX_SEEN];
	uint32_t	values[MAX_SEEN];
	bool		disordered;
	bool		after_end;
} Seen;

static Seen seen;

static void
note(RbpSpillFile *file, uint32_t block, uint32_t value, void *arg)
{
	Seen	   *to = arg;

	(void) file;
	to->after_end |= to->ends > 0;
	if (block == UINT32_MAX && value == 0)
	{
		to->ends++;
		return;
	}
	to->disordered |= value == 0;
	if (to->n > 0 && block <= to->blocks[to->n - 1])
		to->disordered = true;
	if (to->n < MAX_SEEN)
	{
		to->blocks[to->n] = block;
		to->values[to->n] = value;
		to->n++;
	}
}

static void
reset_seen(void)
{
	seen.n = 0;
	seen.ends = 0;
	seen.disordered = false;
	seen.after_end = false;
}

/*
 * ---- one rule at a time -----------------------------------------------------
 */

static void
test_names(void)
{
	const RbpSpillHandle none = {.index = RBP_SPILL_NO_FILE};
	RbpSpillHandle a;
	RbpSpillHandle b;
	RbpSpillHandle c;
	RbpSpillHandle h;
	RbpSpillFile initial = blank;
	RbpSpillFile *file;
	bool		created;
	char		name[RBP_SPILL_NAME_LEN + 1];

	new_table(3, 10);
	ok(!rbp_spill_table_find("a", &h), "names: none at first");
	is_u64(rbp_spill_table_files(), 0, "names: and no files");
	initial.owner = 4711;
	initial.size = 99;
	ok(rbp_spill_table_create("a", &initial, &a, &created) && created, "names: create");
	ok(rbp_spill_table_find("a", &h) && memcmp(&h, &a, sizeof(h)) == 0, "names: find");
	ok(!rbp_spill_table_find("b", &h) && !rbp_spill_table_find("", &h), "names: but no others");
	ok(rbp_spill_table_create("a", &blank, &h, &created) && !created &&
	   memcmp(&h, &a, sizeof(h)) == 0, "names: the second to create it finds it");
	file = rbp_spill_file_lock(a, false, true);
	ok(file != NULL && file->owner == 4711 &&
	   file->size == 99,
	   "names: with the state that the first gave it");
	ok(strcmp(file->name, "a") == 0, "names: it knows its name");
	h = rbp_spill_file_handle(file);
	ok(memcmp(&h, &a, sizeof(h)) == 0, "names: and its handle");
	rbp_spill_file_unlock(file);

	memset(name, 'x', sizeof(name));
	name[RBP_SPILL_NAME_LEN] = '\0';
	ok(!rbp_spill_table_create(name, &blank, &h, &created), "names: too long by one");
	name[RBP_SPILL_NAME_LEN - 1] = '\0';
	ok(rbp_spill_table_create(name, &blank, &b, &created) && created, "names: as long as may be");
	ok(rbp_spill_table_find(name, &h) && memcmp(&h, &b, sizeof(h)) == 0, "names: and found");
	name[RBP_SPILL_NAME_LEN - 2] = 'y';
	ok(!rbp_spill_table_find(name, &h), "names: the last letter counts");
	ok(rbp_spill_table_create("c", &blank, &c, &created), "names: a third");
	ok(!rbp_spill_table_create("d", &blank, &h, &created) && !created, "names: no room for a fourth");
	is_u64(rbp_spill_table_files(), 3, "names: three files");

	reset_seen();
	ok(rbp_spill_table_remove(a, note, &seen), "names: remove");
	ok(seen.n == 0 && seen.ends == 1, "names: an empty file ends, too");
	ok(!rbp_spill_table_find("a", &h), "names: its name is gone");
	ok(rbp_spill_file_lock(a, false, true) == NULL && rbp_spill_file_lock(a, true, true) == NULL,
	   "names: so is the handle");
	ok(!rbp_spill_table_remove(a, note, &seen) && seen.ends == 1, "names: it is removed once");
	ok(rbp_spill_table_create("a", &blank, &h, &created) && created, "names: created again");
	ok(h.index == a.index && h.serial != a.serial, "names: in the same place, with another serial");
	ok(rbp_spill_file_lock(a, false, true) == NULL && !rbp_spill_table_remove(a, note, &seen),
	   "names: the old handle stays void");
	file = rbp_spill_file_lock(h, true, true);
	ok(file != NULL && file->size == 0, "names: nothing of the old state is left");
	rbp_spill_file_unlock(file);
	ok(rbp_spill_file_lock(none, false, true) == NULL,
	   "names: no file, no lock");

	/* as the hash is, these two have the same */
	rbp_spill_table_remove(b, note, &seen);
	ok(rbp_spill_table_create("base/pgsql_tmp/pgsql_tmp2006.86", &blank, &b, &created) && created &&
	   !rbp_spill_table_find("base/pgsql_tmp/pgsql_tmp2185.17", &h),
	   "names: a name is not its hash");
	rbp_spill_table_remove(b, note, &seen);
	ok(rbp_spill_table_next(0, &h) && h.index == a.index &&
	   rbp_spill_table_next(h.index + 1, &h) && h.index == c.index &&
	   !rbp_spill_table_next(h.index + 1, &h), "names: a walk meets those that live");
	free(rbp_spill_table);
}

/*
 * A removal while it lasts, seen by who comes meanwhile; against the order of
 * locks, but there is nobody else.
 */
typedef struct Meanwhile
{
	RbpSpillHandle old;
	RbpSpillHandle new;
	bool		found;
	bool		removed;
	bool		created;
	bool		own_handle;
} Meanwhile;

static void
look_meanwhile(RbpSpillFile *file, uint32_t block, uint32_t value, void *arg)
{
	Meanwhile  *m = arg;
	RbpSpillHandle h = rbp_spill_file_handle(file);

	(void) value;
	if (block == UINT32_MAX)
		return;
	m->own_handle = memcmp(&h, &m->old, sizeof(h)) == 0;
	m->found = rbp_spill_table_find("f", &h);
	m->removed = rbp_spill_table_remove(m->old, look_meanwhile, m);
	rbp_spill_table_create("f", &blank, &m->new, &m->created);
}

static void
test_removal(void)
{
	Meanwhile	m = {0};
	RbpSpillHandle h;
	RbpSpillFile *file;

	new_table(2, 10);
	rbp_spill_table_create("f", &blank, &m.old, &m.created);
	file = rbp_spill_file_lock(m.old, true, true);
	rbp_spill_block_set(file, 3, 4);
	rbp_spill_file_unlock(file);
	m.created = false;
	ok(rbp_spill_table_remove(m.old, look_meanwhile, &m), "removal: begins");
	ok(!m.found && !m.removed, "removal: meanwhile it is not found, nor removed by another");
	ok(m.own_handle, "removal: its handle is what it was");
	ok(m.created && m.new.index != m.old.index, "removal: its name is free, its place is not");
	ok(rbp_spill_table_find("f", &h) && memcmp(&h, &m.new, sizeof(h)) == 0 &&
	   rbp_spill_table_files() == 1, "removal: leaves the new file alone");
	free(rbp_spill_table);
}

static void
test_depths(void)
{
	static const uint32_t edges[] = {
		0, 63, 64, 4095, 4096, 262143, 262144, 16777215, 16777216,
		1073741823, 1073741824, UINT32_MAX - 1, UINT32_MAX
	};
	const uint32_t n = sizeof(edges) / sizeof(edges[0]);
	RbpSpillHandle h;
	RbpSpillFile *file;
	bool		created;
	bool		set = true;
	bool		got = true;
	bool		alone = true;

	new_table(1, 100);
	rbp_spill_table_create("f", &blank, &h, &created);
	file = rbp_spill_file_lock(h, true, true);
	for (uint32_t i = 0; i < n; i++)
	{
		alone &= rbp_spill_block_get(file, edges[i]) == 0;
		set &= rbp_spill_block_set(file, edges[i], i + 1);
		for (uint32_t j = 0; j < n; j++)
			got &= rbp_spill_block_get(file, edges[j]) == (j <= i ? j + 1 : 0);
	}
	ok(set && got && alone, "depths: each edge of the tree, from the first block to the last");
	ok(rbp_spill_block_get(file, 65) == 0 && rbp_spill_block_get(file, 1u << 31) == 0,
	   "depths: and none between");
	reset_seen();
	spill_file_walk(file, note, &seen);
	ok(seen.n == n && !seen.disordered && memcmp(seen.blocks, edges, sizeof(edges)) == 0,
	   "depths: a walk meets them in order");

	for (uint32_t i = n; i-- > 0;)
	{
		reset_seen();
		rbp_spill_file_truncate(file, edges[i], note, &seen);
		got &= seen.n == 1 && seen.blocks[0] == edges[i] && seen.values[0] == i + 1;
		for (uint32_t j = 0; j < n; j++)
			got &= rbp_spill_block_get(file, edges[j]) == (j < i ? j + 1 : 0);
		if (edges[i] == 64)
			is_u64(spill_table_free_nodes(), 99, "depths: cut down to one node");
	}
	ok(got, "depths: cut one after the other");
	is_u64(spill_table_free_nodes(), 100, "depths: no node is left behind");

	/* a sparse file that begins far out */
	ok(rbp_spill_block_set(file, UINT32_MAX, 7), "depths: the last block alone");
	is_u64(spill_table_free_nodes(), 94, "depths: takes a node on each level");
	reset_seen();
	rbp_spill_file_truncate(file, UINT32_MAX, note, &seen);
	ok(seen.n == 1 && seen.blocks[0] == UINT32_MAX, "depths: and is cut");

	/* as deep as need be, whichever way blocks go */
	rbp_spill_block_set(file, 1, 1);
	rbp_spill_block_set(file, 1000000, 2);
	rbp_spill_block_set(file, 1000000, 0);
	is_u64(spill_table_free_nodes(), 99, "depths: a tree whose far end is removed is low again");
	is_u64(rbp_spill_block_get(file, 1), 1, "depths: and still there");
	rbp_spill_file_unlock(file);
	free(rbp_spill_table);
}

static void
test_nodes(void)
{
	RbpSpillHandle h;
	RbpSpillFile *file;
	bool		created;
	bool		fine = true;

	new_table(2, 5);
	rbp_spill_table_create("f", &blank, &h, &created);
	file = rbp_spill_file_lock(h, true, true);
	for (uint32_t b = 0; b < 4 * 64; b++)
		fine &= rbp_spill_block_set(file, b, b + 1);
	ok(fine, "nodes: four leaves and their root");
	is_u64(spill_table_free_nodes(), 0, "nodes: and that is all");
	ok(!rbp_spill_block_set(file, 256, 1) && !rbp_spill_block_set(file, 1u << 30, 1),
	   "nodes: no more without room");
	ok(rbp_spill_block_get(file, 256) == 0 && rbp_spill_block_get(file, 1u << 30) == 0 &&
	   rbp_spill_block_get(file, 200) == 201, "nodes: with nothing changed");
	ok(rbp_spill_block_set(file, 5, 77) && rbp_spill_block_get(file, 5) == 77,
	   "nodes: a value can replace another");
	ok(rbp_spill_block_set(file, 300, 0) && rbp_spill_block_set(file, 1u << 30, 0),
	   "nodes: and what is not there can be removed");

	for (uint32_t b = 64; b < 128; b++)
		rbp_spill_block_set(file, b, 0);
	is_u64(spill_table_free_nodes(), 1, "nodes: what is empty is given back");
	reset_seen();
	rbp_spill_file_truncate(file, 130, note, &seen);
	ok(seen.n == 126 && seen.blocks[0] == 130 && seen.blocks[125] == 255, "nodes: cut in the middle of one");
	is_u64(spill_table_free_nodes(), 2, "nodes: which stays");
	ok(rbp_spill_block_get(file, 129) == 130 && rbp_spill_block_get(file, 130) == 0,
	   "nodes: with what is before");
	rbp_spill_file_unlock(file);

	reset_seen();
	rbp_spill_table_remove(h, note, &seen);
	ok(seen.n == 66 && !seen.disordered && seen.ends == 1 && !seen.after_end,
	   "nodes: a removal tells each value, in order, and then the end");
	is_u64(spill_table_free_nodes(), 5, "nodes: all are free again");
	rbp_spill_table_create("g", &blank, &h, &created);
	file = rbp_spill_file_lock(h, true, true);
	rbp_spill_block_set(file, 10, 1);
	reset_seen();
	spill_file_walk(file, note, &seen);
	ok(seen.n == 1 && seen.blocks[0] == 10, "nodes: used again, they are clean");
	rbp_spill_file_unlock(file);
	free(rbp_spill_table);
}

/*
 * ---- the model -------------------------------------------------------------------
 *
 * Each file is an array of values, for the blocks of a small world that
 * differs by seed: dense, sparse, or in clumps around the tree's edges.  How
 * many nodes a file takes follows from its blocks.
 */

#define NAMES			12
#define PLACES			8
#define WORLD			600
#define OLD_HANDLES		16

typedef struct ModelFile
{
	bool		exists;
	RbpSpillHandle handle;
	int64_t		size;
	uint32_t	nodes;			/* that it takes */
	uint32_t	values[WORLD];
} ModelFile;

static ModelFile files[NAMES];
static char names[NAMES][RBP_SPILL_NAME_LEN];
static uint32_t world[WORLD];	/* rising */
static uint32_t world_size;
static uint32_t nnodes;
static RbpSpillHandle old_handles[OLD_HANDLES];
static uint32_t next_value;

static uint64_t operation;
static const char *doing = "nothing";
static char failure[256];
static uint64_t refused;

static void
expect(bool cond, const char *what)
{
	if (!cond && failure[0] == '\0')
		snprintf(failure, sizeof(failure), "operation %" PRIu64 " (%s): %s",
				 operation, doing, what);
}

/* The nodes of a tree with these values: the distinct prefixes of its blocks. */
static uint32_t
nodes_of(const ModelFile *m)
{
	int			depth = 0;
	uint32_t	n = 0;

	for (uint32_t i = 0; i < world_size; i++)
		if (m->values[i] != 0)
			while (depth == 0 || (uint64_t) world[i] >> (6 * depth) != 0)
				depth++;
	for (int level = 1; level <= depth; level++)
	{
		uint64_t	last = UINT64_MAX;

		for (uint32_t i = 0; i < world_size; i++)
		{
			uint64_t	prefix = (uint64_t) world[i] >> (6 * level);

			if (m->values[i] != 0 && prefix != last)
			{
				last = prefix;
				n++;
			}
		}
	}
	return n;
}

static uint32_t
free_nodes(void)
{
	uint32_t	n = nnodes;

	for (int i = 0; i < NAMES; i++)
		if (files[i].exists)
			n -= files[i].nodes;
	return n;
}

static uint32_t
live_files(void)
{
	uint32_t	n = 0;

	for (int i = 0; i < NAMES; i++)
		n += files[i].exists;
	return n;
}

static bool
same(RbpSpillHandle a, RbpSpillHandle b)
{
	return a.index == b.index && a.serial == b.serial;
}

/* seen is what the model has from world[first] on */
static void
expect_seen(const ModelFile *m, uint32_t first)
{
	uint32_t	n = 0;

	for (uint32_t i = first; i < world_size; i++)
	{
		if (m->values[i] == 0)
			continue;
		expect(n < seen.n && seen.blocks[n] == world[i] && seen.values[n] == m->values[i],
			   "a visit is missing, or differs");
		n++;
	}
	expect(seen.n == n, "too many visits");
	expect(!seen.disordered, "visits out of order");
}

static void
op_create(uint32_t k)
{
	ModelFile  *m = &files[k];
	RbpSpillFile initial = blank;
	RbpSpillHandle h;
	bool		created = false;
	bool		room = live_files() < PLACES;
	bool		done;

	doing = "create";
	initial.size = (int64_t) rnd(1000000);
	done = rbp_spill_table_create(names[k], &initial, &h, &created);
	if (m->exists)
	{
		expect(done && !created && same(h, m->handle), "it exists already");
		return;
	}
	expect(done == room && created == room, "created though there is no room, or not though there is");
	if (!done)
		return;
	memset(m, 0, sizeof(*m));
	m->exists = true;
	m->handle = h;
	m->size = initial.size;
	for (int i = 0; i < NAMES; i++)
		expect(i == (int) k || !files[i].exists || files[i].handle.index != h.index,
			   "the place of another file");
}

static void
op_remove(uint32_t k)
{
	ModelFile  *m = &files[k];

	doing = "remove";
	if (!m->exists)
		return;
	reset_seen();
	expect(rbp_spill_table_remove(m->handle, note, &seen), "it is there, but not removed");
	expect_seen(m, 0);
	expect(seen.ends == 1 && !seen.after_end, "the end is told once, and last");
	old_handles[rnd(OLD_HANDLES)] = m->handle;
	m->exists = false;
}

static void
op_old_handle(void)
{
	RbpSpillHandle h = old_handles[rnd(OLD_HANDLES)];

	doing = "old handle";
	for (int i = 0; i < NAMES; i++)
		expect(!files[i].exists || !same(files[i].handle, h), "a handle is used again");
	expect(rbp_spill_file_lock(h, rnd(2) == 0, true) == NULL, "a dead file was locked");
	expect(!rbp_spill_table_remove(h, note, &seen), "a dead file was removed");
}

static void
op_set(ModelFile *m, RbpSpillFile *file)
{
	uint32_t	i = rnd(world_size);
	uint32_t	n = 1 + rnd(20);

	doing = "set";
	for (; n > 0 && i < world_size; n--, i++)
	{
		uint32_t	old = m->values[i];
		uint32_t	value = rnd(5) == 0 ? 0 : ++next_value;
		uint32_t	needed;
		bool		fits;

		m->values[i] = value;
		needed = nodes_of(m);
		fits = value == 0 || needed - m->nodes <= free_nodes();
		expect(rbp_spill_block_set(file, world[i], value) == fits,
			   "set though there are no nodes, or not though there are");
		if (!fits)
		{
			m->values[i] = old;
			refused++;
			expect(old == 0, "the model is wrong");
		}
		else
			m->nodes = needed;
		expect(rbp_spill_block_get(file, world[i]) == m->values[i], "not what was set");
		expect(spill_table_free_nodes() == free_nodes(), "count of free nodes after set");
	}
}

static void
op_get(ModelFile *m, RbpSpillFile *file)
{
	uint32_t	i = rnd(world_size);
	uint32_t	block = world[i];
	uint32_t	n = 1 + rnd(100);

	doing = "get";
	expect(rbp_spill_block_get(file, block) == m->values[i], "another value");
	for (uint32_t j = 0; j < n && block + j >= block; j++)
	{
		while (i < world_size && world[i] < block + j)
			i++;
		expect(rbp_spill_block_get(file, block + j) ==
			   (i < world_size && world[i] == block + j ? m->values[i] : 0),
			   "another value in a row");
	}
}

static void
op_cut(ModelFile *m, RbpSpillFile *file)
{
	uint32_t	i = rnd(world_size);
	uint32_t	at = world[i];

	doing = "cut";

	/* between blocks as well */
	if (rnd(3) == 0 && i > 0 && world[i - 1] + 1 < at)
		at = world[i - 1] + 1 + rnd(at - world[i - 1] - 1);
	if (rnd(20) == 0)
		at = i = 0;
	reset_seen();
	rbp_spill_file_truncate(file, at, note, &seen);
	expect_seen(m, i);
	expect(seen.ends == 0, "a cut has no end");
	memset(&m->values[i], 0, (world_size - i) * sizeof(m->values[0]));
	m->nodes = nodes_of(m);
}

static void
op_file(uint32_t k, uint32_t dice)
{
	ModelFile  *m = &files[k];
	bool		exclusive = dice != 0;
	RbpSpillFile *file;
	RbpSpillHandle h;

	doing = "find";
	if (!rbp_spill_table_find(names[k], &h))
	{
		expect(!m->exists, "not found");
		return;
	}
	expect(m->exists && same(h, m->handle), "found another file");
	file = rbp_spill_file_lock(h, exclusive, true);
	expect(file != NULL, "a live file was not locked");
	if (file == NULL)
		return;
	expect(strcmp(file->name, names[k]) == 0, "another name");
	expect(same(rbp_spill_file_handle(file), h), "another handle");
	expect(file->size == m->size, "another state");
	if (dice == 0)
		op_get(m, file);
	else if (dice == 1)
		op_cut(m, file);
	else
		op_set(m, file);
	if (exclusive)
		file->size = m->size = (int64_t) rnd(1000000);
	rbp_spill_file_unlock(file);
}

static void
compare_all(void)
{
	RbpSpillHandle h;
	uint32_t	index = 0;
	uint32_t	n = 0;

	doing = "compare";
	expect(rbp_spill_table_files() == live_files(), "count of files");
	while (rbp_spill_table_next(index, &h))
	{
		bool		known = false;

		expect(h.index >= index, "a walk went back");
		for (int i = 0; i < NAMES; i++)
			known |= files[i].exists && same(files[i].handle, h);
		expect(known, "a walk met a file that is not there");
		index = h.index + 1;
		n++;
	}
	expect(n == live_files(), "a walk missed a file");
	for (int i = 0; i < NAMES; i++)
	{
		RbpSpillFile *file;

		if (!files[i].exists)
			continue;
		file = rbp_spill_file_lock(files[i].handle, false, true);
		expect(file != NULL, "a live file was not locked");
		if (file == NULL)
			continue;
		reset_seen();
		spill_file_walk(file, note, &seen);
		expect_seen(&files[i], 0);
		rbp_spill_file_unlock(file);
	}
}

static int
by_number(const void *a, const void *b)
{
	uint32_t	x = *(const uint32_t *) a;
	uint32_t	y = *(const uint32_t *) b;

	return (x > y) - (x < y);
}

static const char *
make_world(uint64_t seed)
{
	uint32_t	n = 0;

	for (uint32_t i = 0; i < WORLD; i++)
		switch (seed % 3)
		{
			case 0:
				world[i] = i;
				break;
			case 1:
				world[i] = rnd(UINT32_MAX) >> rnd(28);
				break;
			default:
				world[i] = (1u << 6 * rnd(6)) * rnd(4) - 10 + rnd(20);
		}
	world[0] = 0;
	if (seed % 3 != 0)
		world[1] = UINT32_MAX;
	qsort(world, WORLD, sizeof(world[0]), by_number);
	for (uint32_t i = 0; i < WORLD; i++)
		if (n == 0 || world[n - 1] != world[i])
			world[n++] = world[i];
	world_size = n;
	return seed % 3 == 0 ? "dense" : seed % 3 == 1 ? "sparse" : "in clumps";
}

static void
run_model(uint64_t seed, uint64_t operations)
{
	static const uint32_t pools[3][2] = {{30, 100}, {300, 5000}, {60, 400}};
	const char *kind;
	uint32_t	removals = seed % 2 == 0 ? 2 : 30;

	rng_state = seed * 0x9e3779b97f4a7c15 + 1;
	kind = make_world(seed);
	nnodes = pools[seed % 3][seed / 3 % 2];
	new_table(PLACES, nnodes);
	memset(files, 0, sizeof(files));
	memset(old_handles, 0xff, sizeof(old_handles));
	for (int i = 0; i < NAMES; i++)
		snprintf(names[i], sizeof(names[i]), "base/pgsql_tmp/pgsql_tmp%u.%d", 1000 + rnd(3), i);
	failure[0] = '\0';
	refused = 0;

	for (operation = 1; operation <= operations && failure[0] == '\0'; operation++)
	{
		uint32_t	k = rnd(NAMES);
		uint32_t	dice = rnd(500);

		if (dice < removals)
			op_remove(k);
		else if (dice < 80)
			op_create(k);
		else if (dice < 100)
			op_old_handle();
		else if (dice < 250)
			op_file(k, 0);
		else if (dice < 270)
			op_file(k, 1);
		else
			op_file(k, 2);
		doing = "afterwards";
		if (operation % 4 == 0)
			expect(spill_table_free_nodes() == free_nodes(), "count of free nodes");
		if (operation % 64 == 0)
			compare_all();
	}
	for (uint32_t k = 0; k < NAMES && failure[0] == '\0'; k++)
		op_remove(k);
	expect(spill_table_free_nodes() == nnodes, "nodes are left at the end");
	expect(rbp_spill_table_files() == 0, "files are left at the end");
	ok(failure[0] == '\0', "seed %" PRIu64 ", %s: %" PRIu64 " operations as the model has them (%" PRIu64 " refused)",
	   seed, kind, operations, refused);
	if (failure[0] != '\0')
		diag("%s", failure);
	free(rbp_spill_table);
}

/*
 * ---- threads ------------------------------------------------------------------------
 *
 * Every value is a token, which is put into one block of one file once, and
 * must come out once: when it is replaced, cut, or its file removed.
 */

#define THREADS			4
#define ROUNDS			60000
#define T_NAMES			6
#define T_PLACES		4
#define T_NODES			60
#define T_BLOCKS		1500
#define TOKENS			(THREADS * ROUNDS * 8 + 1)

typedef struct Token
{
	RbpSpillHandle file;
	uint32_t	block;
	bool		live;
} Token;

typedef struct Worker
{
	pthread_t	thread;
	uint64_t	rng;
	uint64_t	created;
	uint64_t	removed;
	uint64_t	stale;
	uint64_t	set;
	uint64_t	cut;
	uint64_t	no_nodes;
	uint64_t	ends;
} Worker;

static Token *tokens;			/* each under its file's lock */
static uint32_t last_token;
static uint64_t wrong_files;	/* a file that is not the one asked for */
static uint64_t wrong_tokens;	/* a value that does not belong there */
static uint64_t undead;			/* a handle that works after its removal */

static void
count(uint64_t *counter)
{
	__atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
}

static void
check_token(RbpSpillFile *file, uint32_t block, uint32_t value, bool take_out)
{
	RbpSpillHandle h = rbp_spill_file_handle(file);
	Token	   *token;

	if (value >= TOKENS)
	{
		count(&wrong_tokens);
		return;
	}
	token = &tokens[value];
	if (!token->live || token->block != block || !same(token->file, h))
		count(&wrong_tokens);
	if (take_out)
		token->live = false;
}

/* In the middle of a visit, others have to wait or to leave alone what it sees. */
static void
dawdle(Worker *me)
{
	if (rnd_from(&me->rng) % 64 == 0)
		sched_yield();
}

static void
look_at(RbpSpillFile *file, uint32_t block, uint32_t value, void *arg)
{
	dawdle(arg);
	check_token(file, block, value, false);
}

static void
take_out(RbpSpillFile *file, uint32_t block, uint32_t value, void *arg)
{
	Worker	   *me = arg;

	if (block == UINT32_MAX && value == 0)
	{
		me->ends++;
		return;
	}
	dawdle(me);
	check_token(file, block, value, true);
	me->cut++;
}

static void
fill(Worker *me, RbpSpillFile *file, RbpSpillHandle h)
{
	uint32_t	block = (uint32_t) (rnd_from(&me->rng) % T_BLOCKS);

	if (rnd_from(&me->rng) % 8 == 0)
		block = UINT32_MAX - block;
	for (uint32_t n = 1 + (uint32_t) (rnd_from(&me->rng) % 8); n > 0; n--, block++)
	{
		uint32_t	old = rbp_spill_block_get(file, block);
		uint32_t	new = 0;

		if (rnd_from(&me->rng) % 10 != 0)
		{
			new = __atomic_add_fetch(&last_token, 1, __ATOMIC_RELAXED);
			tokens[new] = (Token)
			{
				.file = h,.block = block,.live = true
			};
		}
		if (old != 0)
			check_token(file, block, old, true);
		if (rbp_spill_block_set(file, block, new))
			me->set++;
		else
		{
			me->no_nodes++;
			tokens[new].live = false;
			if (old != 0 || new == 0)
				count(&wrong_tokens);
		}
	}
}

static void *
work(void *arg)
{
	Worker	   *me = arg;

	for (int round = 0; round < ROUNDS; round++)
	{
		char		name[RBP_SPILL_NAME_LEN];
		uint32_t	dice = (uint32_t) (rnd_from(&me->rng) % 100);
		RbpSpillHandle h = {.index = RBP_SPILL_NO_FILE};
		bool		created = false;
		RbpSpillFile *file;

		snprintf(name, sizeof(name), "file %u", (uint32_t) (rnd_from(&me->rng) % T_NAMES));
		if (dice < 2)
		{
			uint32_t	n = 0;

			while (rbp_spill_table_next(n, &h))
				n = h.index + 1;
			if (n > T_PLACES)
				count(&wrong_files);
			continue;
		}
		if (dice < 60 ? !rbp_spill_table_find(name, &h) :
			!rbp_spill_table_create(name, &blank, &h, &created))
			continue;
		me->created += created;

		/* now and then so late that it may be another file */
		if (dice % 4 == 0)
			sched_yield();
		if (dice % 10 == 3)
		{
			uint64_t	ends = me->ends;
			bool		removed = rbp_spill_table_remove(h, take_out, me);

			me->removed += removed;
			if (me->ends - ends != removed)
				count(&wrong_files);
			file = rbp_spill_file_lock(h, true, true);
			if (file != NULL)
			{
				/* somebody else was faster, and is not done */
				if (removed)
					count(&undead);
				rbp_spill_file_unlock(file);
			}
			continue;
		}

		file = rbp_spill_file_lock(h, dice % 3 != 0, true);
		if (file == NULL)
		{
			me->stale++;
			continue;
		}
		if (strcmp(file->name, name) != 0 ||
			!same(rbp_spill_file_handle(file), h))
			count(&wrong_files);
		if (dice % 3 == 0)
			spill_file_walk(file, look_at, me);
		else if (dice % 10 == 4)
			rbp_spill_file_truncate(file, (uint32_t) (rnd_from(&me->rng) % T_BLOCKS), take_out, me);
		else
		{
			/* nobody else is here */
			RbpSpillFile *state = file;

			if (state->run.next != 0)
				count(&wrong_files);
			state->run.next = 1;
			fill(me, file, h);
			state->run.next = 0;
		}
		rbp_spill_file_unlock(file);
	}
	return NULL;
}

static void
test_threads(void)
{
	Worker		workers[THREADS];
	Worker		sum = {0};
	RbpSpillHandle h;
	uint32_t	alive = 0;

	new_table(T_PLACES, T_NODES);
	tokens = calloc(TOKENS, sizeof(Token));
	for (int i = 0; i < THREADS; i++)
	{
		workers[i] = (Worker)
		{
			.rng = 0x9e3779b97f4a7c15 * (uint64_t) (i + 1)
		};
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
			abort();
	}
	for (int i = 0; i < THREADS; i++)
	{
		pthread_join(workers[i].thread, NULL);
		sum.created += workers[i].created;
		sum.removed += workers[i].removed;
		sum.stale += workers[i].stale;
		sum.set += workers[i].set;
		sum.cut += workers[i].cut;
		sum.no_nodes += workers[i].no_nodes;
	}
	is_u64(sum.created - sum.removed, rbp_spill_table_files(),
		   "threads: as many files as were created and not removed");
	while (rbp_spill_table_next(0, &h))
		if (!rbp_spill_table_remove(h, take_out, &sum))
			break;
	for (uint32_t i = 0; i < TOKENS; i++)
		alive += tokens[i].live;

	is_u64(wrong_files, 0, "threads: a handle leads to its file or to none");
	is_u64(wrong_tokens, 0, "threads: each value was where it had been put");
	is_u64(undead, 0, "threads: what was removed stayed so");
	is_u64(alive, 0, "threads: each value came out again");
	is_u64(rbp_spill_table_files(), 0, "threads: no file is left");
	is_u64(spill_table_free_nodes(), T_NODES, "threads: all nodes are free");
	ok(sum.created > 100 && sum.stale > 0 && sum.set > 1000 && sum.cut > 1000 && sum.no_nodes > 0,
	   "threads: %" PRIu64 " files, %" PRIu64 " values set, %" PRIu64 " cut, %" PRIu64
	   " without nodes, %" PRIu64 " stale handles",
	   sum.created, sum.set, sum.cut, sum.no_nodes, sum.stale);
	free(tokens);
	free(rbp_spill_table);
}

int
main(int argc, char **argv)
{
	uint64_t	seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	uint64_t	operations = argc > 2 ? strtoull(argv[2], NULL, 10) : 6000;

	test_names();
	test_removal();
	test_depths();
	test_nodes();
	for (uint64_t i = 0; i < 12; i++)
		run_model(seed + i, operations);
	test_threads();
	return done_testing();
}
