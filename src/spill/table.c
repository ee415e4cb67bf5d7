/*-------------------------------------------------------------------------
 *
 * table.c
 *	  Table of the temporary files that have blocks elsewhere than in the real
 *	  file.
 *
 * Files are elements of an array, chained by the hash of their name.  Each has
 * a radix tree whose nodes have 64 words: values on the lowest level, and above
 * it numbers of nodes plus one, 0 for none.  The root is such a word, too.  The
 * tree is as deep as the highest block requires, and has no empty nodes.
 *
 * What protects what:
 *
 *	- the names' lock: the chains, the list of free array elements, and each
 *	  file's name, hash, next and listed;
 *	- the file's lock: its tree and its state;
 *	- the pool's lock: the list of free nodes;
 *	- name and serial may be read under either the names' or the file's lock:
 *	  the name is written under both, and the serial is written under the
 *	  file's lock only when the file is no longer listed.
 *
 * A file is removed in three steps: its name is removed from its chain; under
 * the file's lock the tree is freed and the serial raised; the array element
 * becomes free.  A process that waits for the file's lock meanwhile then finds
 * another serial, even if the element has been used again.  Between the first
 * two steps the file can still be locked, though not found, by those that
 * found it before.
 *
 *-------------------------------------------------------------------------
 */
#include "base/geometry.h"
#include "base/layout.h"
#include "base/lock.h"
#include "spill/table.h"

#include <string.h>

#define NIL				UINT32_MAX

#define NODE_BITS		6
#define NODE_WORDS		(1u << NODE_BITS)

typedef struct Node
{
	uint32_t	words[NODE_WORDS];	/* the first one links free nodes */
} Node;

typedef struct FileEntry
{
	RbpLock		lock __attribute__((aligned(RBP_CACHE_LINE)));
	uint32_t	serial;
	uint32_t	root;			/* a word; 0: no values */
	uint32_t	depth;			/* levels; 0 without a root */
	uint32_t	next;			/* in the chain, or the list of free files */
	uint32_t	hash;
	bool		listed;			/* its name can be found */
	RbpSpillFile file;
} FileEntry;

struct RbpSpillTable
{
	/* constant; at the same address in all processes */
	uint32_t	nfiles;
	uint32_t	nbuckets;		/* a power of two */
	uint32_t	nnodes;
	uint32_t   *buckets;
	FileEntry  *files;
	Node	   *nodes;

	RbpLock		names_lock __attribute__((aligned(RBP_CACHE_LINE)));
	uint32_t	free_file;
	uint32_t	first_unused_file;	/* from here on never used */

	/* read without the lock by most calls: on a cache line of its own */
	uint32_t	num_files __attribute__((aligned(RBP_CACHE_LINE)));
	uint32_t	num_created;	/* ever */

	RbpLock		pool_lock __attribute__((aligned(RBP_CACHE_LINE)));
	uint32_t	free_node;		/* a word */
	uint32_t	first_unused_node;	/* from here on never used */
};

RbpSpillTable *rbp_spill_table = NULL;

#define table	rbp_spill_table

/*
 * ---- layout ------------------------------------------------------------
 */

/* A power of two, at least 16. */
static uint32_t
buckets_for(uint32_t nfiles)
{
	return 2u << (31 - __builtin_clz((nfiles - 1) | 15));
}

size_t
rbp_spill_table_size(uint32_t nfiles, uint32_t nnodes)
{
	return rbp_align_line(sizeof(RbpSpillTable)) +
		rbp_align_line(buckets_for(nfiles) * sizeof(uint32_t)) +
		rbp_align_line(nfiles * sizeof(FileEntry)) +
		rbp_align_line(nnodes * sizeof(Node));
}

static inline FileEntry *
entry_of(const RbpSpillFile *file)
{
	return (FileEntry *) ((char *) file - offsetof(FileEntry, file));
}

/* Nodes are not touched here, but when they are first used. */
void
rbp_spill_table_init(void *mem, uint32_t nfiles, uint32_t nnodes,
					 int names_tranche, int file_tranche)
{
	char	   *arena = mem;

	table = rbp_layout_take(&arena, sizeof(RbpSpillTable), RBP_CACHE_LINE);
	memset(table, 0, sizeof(RbpSpillTable));
	table->nfiles = nfiles;
	table->nbuckets = buckets_for(nfiles);
	table->nnodes = nnodes;
	table->buckets = rbp_layout_take(&arena, table->nbuckets * sizeof(uint32_t), RBP_CACHE_LINE);
	table->files = rbp_layout_take(&arena, nfiles * sizeof(FileEntry), RBP_CACHE_LINE);
	table->nodes = rbp_layout_take(&arena, nnodes * sizeof(Node), RBP_CACHE_LINE);
	rbp_lock_init(&table->names_lock, names_tranche);
	rbp_lock_init(&table->pool_lock, names_tranche);
	table->free_file = NIL;
	memset(table->buckets, 0xff, table->nbuckets * sizeof(uint32_t));
	memset(table->files, 0, nfiles * sizeof(FileEntry));
	for (uint32_t i = 0; i < nfiles; i++)
		rbp_lock_init(&table->files[i].lock, file_tranche);
}

/*
 * ---- the pool of nodes -------------------------------------------------
 */

/* Allocate a zeroed node.  Returns its word, or 0 if there is none. */
static uint32_t
alloc_node(void)
{
	uint32_t	word;

	rbp_lock_exclusive(&table->pool_lock);
	word = table->free_node;
	if (word != 0)
		table->free_node = table->nodes[word - 1].words[0];
	else if (table->first_unused_node < table->nnodes)
		word = ++table->first_unused_node;
	rbp_lock_release(&table->pool_lock);
	if (word != 0)
		memset(&table->nodes[word - 1], 0, sizeof(Node));
	return word;
}

static void
free_node(uint32_t word)
{
	rbp_lock_exclusive(&table->pool_lock);
	table->nodes[word - 1].words[0] = table->free_node;
	table->free_node = word;
	rbp_lock_release(&table->pool_lock);
}

/*
 * ---- names -------------------------------------------------------------
 */

/* FNV-1a over the whole name, since names differ in the last digits. */
static uint32_t
hash_name(const char *name)
{
	uint64_t	h = UINT64_C(0xcbf29ce484222325);

	for (; *name != '\0'; name++)
		h = (h ^ (unsigned char) *name) * UINT64_C(0x100000001b3);
	return (uint32_t) (h ^ h >> 32);
}

static inline uint32_t *
bucket_of(uint32_t hash)
{
	return &table->buckets[hash & (table->nbuckets - 1)];
}

/* Called with the names' lock held. */
static FileEntry *
find_name(const char *name, uint32_t hash)
{
	for (uint32_t i = *bucket_of(hash); i != NIL; i = table->files[i].next)
		if (table->files[i].hash == hash && strcmp(table->files[i].file.name, name) == 0)
			return &table->files[i];
	return NULL;
}

bool
rbp_spill_table_find(const char *name, RbpSpillHandle *handle)
{
	uint32_t	hash;
	const FileEntry *e;

	/* mostly there are no files */
	if (rbp_spill_table_files() == 0)
		return false;

	hash = hash_name(name);
	rbp_lock_shared(&table->names_lock);
	e = find_name(name, hash);
	if (e != NULL)
		*handle = rbp_spill_file_handle(&e->file);
	rbp_lock_release(&table->names_lock);
	return e != NULL;
}

/* Returns a free file, or NULL.  Names' lock held exclusively. */
static FileEntry *
alloc_file(void)
{
	FileEntry  *e;

	if (table->free_file != NIL)
	{
		e = &table->files[table->free_file];
		table->free_file = e->next;
		return e;
	}
	if (table->first_unused_file == table->nfiles)
		return NULL;
	return &table->files[table->first_unused_file++];
}

bool
rbp_spill_table_create(const char *name, const RbpSpillFile *initial,
					   RbpSpillHandle *handle, bool *created)
{
	uint32_t	hash = hash_name(name);
	uint32_t   *bucket = bucket_of(hash);
	FileEntry  *e;

	*created = false;
	if (strlen(name) >= RBP_SPILL_NAME_LEN)
		return false;

	rbp_lock_exclusive(&table->names_lock);
	e = find_name(name, hash);
	if (e == NULL)
	{
		e = alloc_file();
		if (e != NULL)
		{
			/*
			 * contended only by holders of handles of earlier files, briefly
			 */
			rbp_lock_exclusive(&e->lock);
			e->file = *initial;
			strcpy(e->file.name, name);
			rbp_lock_release(&e->lock);

			e->hash = hash;
			e->listed = true;
			e->next = *bucket;
			*bucket = (uint32_t) (e - table->files);
			__atomic_store_n(&table->num_files, table->num_files + 1, __ATOMIC_RELEASE);
			__atomic_store_n(&table->num_created, table->num_created + 1, __ATOMIC_RELEASE);
			*created = true;
		}
	}
	if (e != NULL)
		*handle = rbp_spill_file_handle(&e->file);
	rbp_lock_release(&table->names_lock);
	return e != NULL;
}

uint32_t
rbp_spill_table_files(void)
{
	return __atomic_load_n(&table->num_files, __ATOMIC_ACQUIRE);
}

uint32_t
rbp_spill_table_created(void)
{
	return __atomic_load_n(&table->num_created, __ATOMIC_ACQUIRE);
}

bool
rbp_spill_table_next(uint32_t index, RbpSpillHandle *handle)
{
	bool		found = false;

	if (rbp_spill_table_files() == 0)
		return false;
	rbp_lock_shared(&table->names_lock);
	for (; index < table->first_unused_file && !found; index++)
	{
		found = table->files[index].listed;
		if (found)
			*handle = rbp_spill_file_handle(&table->files[index].file);
	}
	rbp_lock_release(&table->names_lock);
	return found;
}

/*
 * ---- files -------------------------------------------------------------
 */

RbpSpillFile *
rbp_spill_file_lock(RbpSpillHandle handle, bool exclusive, bool wait)
{
	FileEntry  *e;

	if (handle.index >= table->nfiles)
		return NULL;
	e = &table->files[handle.index];
	if (!wait)
	{
		if (!rbp_lock_try(&e->lock, exclusive))
			return NULL;
	}
	else if (exclusive)
		rbp_lock_exclusive(&e->lock);
	else
		rbp_lock_shared(&e->lock);
	if (e->serial == handle.serial)
		return &e->file;
	rbp_lock_release(&e->lock);
	return NULL;
}

void
rbp_spill_file_unlock(RbpSpillFile *file)
{
	rbp_lock_release(&entry_of(file)->lock);
}

RbpSpillHandle
rbp_spill_file_handle(const RbpSpillFile *file)
{
	const FileEntry *e = entry_of(file);

	return (RbpSpillHandle)
	{
		.index = (uint32_t) (e - table->files),.serial = e->serial
	};
}

bool
rbp_spill_table_remove(RbpSpillHandle handle, RbpSpillVisit finish, void *arg)
{
	FileEntry  *e;
	uint32_t   *link;

	if (handle.index >= table->nfiles)
		return false;
	e = &table->files[handle.index];

	rbp_lock_exclusive(&table->names_lock);
	if (!e->listed || e->serial != handle.serial)
	{
		rbp_lock_release(&table->names_lock);
		return false;
	}
	link = bucket_of(e->hash);
	while (*link != handle.index)
		link = &table->files[*link].next;
	*link = e->next;
	e->listed = false;
	__atomic_store_n(&table->num_files, table->num_files - 1, __ATOMIC_RELEASE);
	rbp_lock_release(&table->names_lock);

	rbp_lock_exclusive(&e->lock);
	rbp_spill_file_truncate(&e->file, 0, finish, arg);
	finish(&e->file, UINT32_MAX, 0, arg);
	e->serial++;
	rbp_lock_release(&e->lock);

	rbp_lock_exclusive(&table->names_lock);
	e->next = table->free_file;
	table->free_file = handle.index;
	rbp_lock_release(&table->names_lock);
	return true;
}

/*
 * ---- the tree ----------------------------------------------------------
 */

/* Is the block within the range of a tree of this depth? */
static inline bool
covers(uint32_t depth, uint32_t block)
{
	return ((uint64_t) block >> (NODE_BITS * depth)) == 0;
}

/* The word for the block in a node of that level; the lowest level is 0. */
static inline uint32_t *
child_of(uint32_t word, uint32_t block, uint32_t level)
{
	return &table->nodes[word - 1].words[(uint64_t) block >> (NODE_BITS * level) &
										 (NODE_WORDS - 1)];
}

uint32_t
rbp_spill_block_get(const RbpSpillFile *file, uint32_t block)
{
	const FileEntry *e = entry_of(file);
	uint32_t	word = e->root;

	if (!covers(e->depth, block))
		return 0;
	for (uint32_t level = e->depth; level > 0 && word != 0; level--)
		word = *child_of(word, block, level - 1);
	return word;
}

/* Are all words of the node from that one on 0? */
static bool
is_empty_from(uint32_t word, uint32_t first)
{
	uint32_t	any = 0;

	for (uint32_t i = first; i < NODE_WORDS; i++)
		any |= table->nodes[word - 1].words[i];
	return any == 0;
}

/* Values that are to be removed: a range of blocks. */
typedef struct Removal
{
	RbpSpillFile *file;
	uint32_t	first;
	uint32_t	last;
	RbpSpillVisit visit;		/* or NULL */
	void	   *arg;
} Removal;

/*
 * Remove values that the word leads to, through that many levels of nodes, and
 * nodes that become empty.  base: the first block below the word.
 */
static void
remove_below(const Removal *r, uint32_t *word, uint32_t levels, uint64_t base)
{
	uint32_t	value = *word;
	uint64_t	step;
	uint64_t	i;

	if (value == 0)
		return;
	if (levels == 0)
	{
		*word = 0;
		if (r->visit != NULL)
			r->visit(r->file, (uint32_t) base, value, r->arg);
		return;
	}
	step = UINT64_C(1) << (NODE_BITS * (levels - 1));
	i = r->first > base ? (r->first - base) / step : 0;
	for (; i < NODE_WORDS && base + i * step <= r->last; i++)
		remove_below(r, &table->nodes[value - 1].words[i], levels - 1, base + i * step);
	if (is_empty_from(value, 0))
	{
		free_node(value);
		*word = 0;
	}
}

static void
remove_values(const Removal *r)
{
	FileEntry  *e = entry_of(r->file);

	remove_below(r, &e->root, e->depth, 0);
	if (e->root == 0)
		e->depth = 0;

	/* remove levels from the top that only lead to the first child */
	while (e->depth > 1 && is_empty_from(e->root, 1))
	{
		uint32_t	top = e->root;

		e->root = *child_of(top, 0, 0);
		e->depth--;
		free_node(top);
	}
}

void
rbp_spill_file_truncate(RbpSpillFile *file, uint32_t first, RbpSpillVisit visit,
						void *arg)
{
	const Removal tail = {.file = file,.first = first,.last = UINT32_MAX,.visit = visit,.arg = arg};

	remove_values(&tail);
}

bool
rbp_spill_block_set(RbpSpillFile *file, uint32_t block, uint32_t value)
{
	const Removal this_one = {.file = file,.first = block,.last = block};
	FileEntry  *e = entry_of(file);
	uint32_t   *word = &e->root;

	if (value == 0)
	{
		remove_values(&this_one);
		return true;
	}

	/* upwards: the old root becomes the first child of the new one */
	for (; e->depth == 0 || !covers(e->depth, block); e->depth++)
	{
		uint32_t	top;

		if (e->root == 0)
			continue;
		top = alloc_node();
		if (top == 0)
			goto no_node;
		*child_of(top, 0, 0) = e->root;
		e->root = top;
	}

	/* and down to the block */
	for (uint32_t level = e->depth; level > 0; level--)
	{
		if (*word == 0)
			*word = alloc_node();
		if (*word == 0)
			goto no_node;
		word = child_of(*word, block, level - 1);
	}
	*word = value;
	return true;

no_node:
	/* free the nodes that were added */
	remove_values(&this_one);
	return false;
}
