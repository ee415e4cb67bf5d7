/*-------------------------------------------------------------------------
 *
 * table.c
 *	  Table of the temporary files that have blocks elsewhere than in the real
 *	  file.
 *
 * Files are elements of an array, chained by the hash of their name.  Each has
 * a radix tree whose nodes have 64 words: values on the lowest level, and above
 * it numbers of nodes plus one, 0 for none.  The tree is as deep as the highest
 * block requires, and has no empty nodes.
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

#ifdef RBP_UNIT_TEST
#include <assert.h>
#define Assert(cond)	assert(cond)
#endif

#define NIL				UINT32_MAX

#define NODE_BITS		6
#define NODE_WORDS		(1u << NODE_BITS)
#define MAX_DEPTH		6		/* 36 bits */

/* A tree may grow at the top and downwards at the same time. */
#define MAX_NEW_NODES	(2 * MAX_DEPTH)

typedef struct Node
{
	uint32_t	words[NODE_WORDS];	/* the first one links free nodes */
} Node;

struct RbpSpillFile
{
	RbpLock		lock __attribute__((aligned(RBP_CACHE_LINE)));
	uint32_t	serial;
	uint32_t	root;			/* NIL: no values */
	uint32_t	depth;			/* levels; 0 without a root */
	uint32_t	next;			/* in the chain, or the list of free files */
	uint32_t	hash;
	bool		listed;			/* its name can be found */
	RbpSpillFileState state;
	char		name[RBP_SPILL_NAME_LEN];
};

struct RbpSpillTable
{
	/* constant */
	uint32_t	nfiles;
	uint32_t	nbuckets;		/* a power of two */
	size_t		buckets;		/* offsets from this struct */
	size_t		files;
	size_t		nodes;
	size_t		bytes;

	RbpLock		names_lock __attribute__((aligned(RBP_CACHE_LINE)));
	uint32_t	free_file;
	uint32_t	first_unused_file;	/* from here on never used */

	/* read without the lock by most calls: on a cache line of its own */
	uint32_t	num_files __attribute__((aligned(RBP_CACHE_LINE)));
	uint32_t	num_created;	/* ever */

	RbpLock		pool_lock __attribute__((aligned(RBP_CACHE_LINE)));
	uint32_t	free_node;
	uint32_t	first_unused_node;	/* from here on never used */
	uint32_t	num_free_nodes;
};

/* Nodes to be returned to the pool, linked. */
typedef struct FreedNodes
{
	uint32_t	head;
	uint32_t	tail;
	uint32_t	n;
} FreedNodes;

/*
 * ---- layout ------------------------------------------------------------
 */

static void
compute_layout(RbpSpillTable *t, uint32_t nfiles, uint32_t nnodes)
{
	size_t		at = rbp_align_line(sizeof(RbpSpillTable));

	t->nfiles = nfiles;
	t->nbuckets = 16;
	while (t->nbuckets < nfiles && t->nbuckets < 1u << 31)
		t->nbuckets *= 2;

	t->buckets = rbp_layout_place(&at, t->nbuckets * sizeof(uint32_t));
	t->files = rbp_layout_place(&at, nfiles * sizeof(RbpSpillFile));
	t->nodes = rbp_layout_place(&at, nnodes * sizeof(Node));
	t->bytes = at;
}

size_t
rbp_spill_table_size(uint32_t nfiles, uint32_t nnodes)
{
	RbpSpillTable layout;

	compute_layout(&layout, nfiles, nnodes);
	return layout.bytes;
}

static inline uint32_t *
bucket_of(RbpSpillTable *t, uint32_t hash)
{
	return (uint32_t *) ((char *) t + t->buckets) + (hash & (t->nbuckets - 1));
}

static inline RbpSpillFile *
file_at(RbpSpillTable *t, uint32_t index)
{
	return (RbpSpillFile *) ((char *) t + t->files) + index;
}

static inline Node *
node_at(RbpSpillTable *t, uint32_t index)
{
	return (Node *) ((char *) t + t->nodes) + index;
}

/* Nodes are not touched here, but when they are first used. */
RbpSpillTable *
rbp_spill_table_init(void *mem, uint32_t nfiles, uint32_t nnodes,
					 int names_tranche, int file_tranche)
{
	RbpSpillTable *t = mem;

	Assert((uintptr_t) mem % RBP_CACHE_LINE == 0);
	memset(t, 0, sizeof(RbpSpillTable));
	compute_layout(t, nfiles, nnodes);
	rbp_lock_init(&t->names_lock, names_tranche);
	rbp_lock_init(&t->pool_lock, names_tranche);
	t->free_file = NIL;
	t->free_node = NIL;
	t->num_free_nodes = nnodes;
	memset((char *) t + t->buckets, 0xff, t->nbuckets * sizeof(uint32_t));
	for (uint32_t i = 0; i < nfiles; i++)
	{
		RbpSpillFile *file = file_at(t, i);

		memset(file, 0, sizeof(RbpSpillFile));
		rbp_lock_init(&file->lock, file_tranche);
	}
	return t;
}

/*
 * ---- the pool of nodes -------------------------------------------------
 */

/* Allocate n zeroed nodes, or none and return false. */
static bool
alloc_nodes(RbpSpillTable *t, uint32_t *nodes, uint32_t n)
{
	rbp_lock_exclusive(&t->pool_lock);
	if (t->num_free_nodes < n)
	{
		rbp_lock_release(&t->pool_lock);
		return false;
	}
	for (uint32_t i = 0; i < n; i++)
	{
		if (t->free_node != NIL)
		{
			nodes[i] = t->free_node;
			t->free_node = node_at(t, nodes[i])->words[0];
		}
		else
			nodes[i] = t->first_unused_node++;
	}
	t->num_free_nodes -= n;
	rbp_lock_release(&t->pool_lock);

	for (uint32_t i = 0; i < n; i++)
		memset(node_at(t, nodes[i]), 0, sizeof(Node));
	return true;
}

static void
collect_node(RbpSpillTable *t, uint32_t node, FreedNodes *freed)
{
	node_at(t, node)->words[0] = freed->head;
	if (freed->n++ == 0)
		freed->tail = node;
	freed->head = node;
}

static void
free_nodes(RbpSpillTable *t, const FreedNodes *freed)
{
	if (freed->n == 0)
		return;
	rbp_lock_exclusive(&t->pool_lock);
	node_at(t, freed->tail)->words[0] = t->free_node;
	t->free_node = freed->head;
	t->num_free_nodes += freed->n;
	rbp_lock_release(&t->pool_lock);
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

/* Called with the names' lock held. */
static RbpSpillFile *
find_name(RbpSpillTable *t, const char *name, uint32_t hash)
{
	uint32_t	i = *bucket_of(t, hash);

	while (i != NIL)
	{
		RbpSpillFile *file = file_at(t, i);

		if (file->hash == hash && strcmp(file->name, name) == 0)
			return file;
		i = file->next;
	}
	return NULL;
}

bool
rbp_spill_table_find(RbpSpillTable *t, const char *name, RbpSpillHandle *handle)
{
	uint32_t	hash;
	const RbpSpillFile *file;

	/* mostly there are no files */
	if (rbp_spill_table_files(t) == 0)
		return false;

	hash = hash_name(name);
	rbp_lock_shared(&t->names_lock);
	file = find_name(t, name, hash);
	if (file != NULL)
		*handle = rbp_spill_file_handle(t, file);
	rbp_lock_release(&t->names_lock);
	return file != NULL;
}

/* Returns a free file, or NULL.  Names' lock held exclusively. */
static RbpSpillFile *
alloc_file(RbpSpillTable *t)
{
	RbpSpillFile *file;

	if (t->free_file != NIL)
	{
		file = file_at(t, t->free_file);
		t->free_file = file->next;
		return file;
	}
	if (t->first_unused_file == t->nfiles)
		return NULL;
	return file_at(t, t->first_unused_file++);
}

bool
rbp_spill_table_create(RbpSpillTable *t, const char *name,
					   const RbpSpillFileState *initial,
					   RbpSpillHandle *handle, bool *created)
{
	uint32_t	hash = hash_name(name);
	uint32_t   *bucket = bucket_of(t, hash);
	RbpSpillFile *file;

	*created = false;
	if (strlen(name) >= RBP_SPILL_NAME_LEN)
		return false;

	rbp_lock_exclusive(&t->names_lock);
	file = find_name(t, name, hash);
	if (file == NULL)
	{
		file = alloc_file(t);
		if (file != NULL)
		{
			/*
			 * contended only by holders of handles of earlier files, briefly
			 */
			rbp_lock_exclusive(&file->lock);
			strcpy(file->name, name);
			file->root = NIL;
			file->depth = 0;
			file->state = *initial;
			rbp_lock_release(&file->lock);

			file->hash = hash;
			file->listed = true;
			file->next = *bucket;
			*bucket = (uint32_t) (file - file_at(t, 0));
			__atomic_store_n(&t->num_files, t->num_files + 1, __ATOMIC_RELEASE);
			__atomic_store_n(&t->num_created, t->num_created + 1, __ATOMIC_RELEASE);
			*created = true;
		}
	}
	if (file != NULL)
		*handle = rbp_spill_file_handle(t, file);
	rbp_lock_release(&t->names_lock);
	return file != NULL;
}

uint32_t
rbp_spill_table_files(const RbpSpillTable *t)
{
	return __atomic_load_n(&t->num_files, __ATOMIC_ACQUIRE);
}

uint32_t
rbp_spill_table_created(const RbpSpillTable *t)
{
	return __atomic_load_n(&t->num_created, __ATOMIC_ACQUIRE);
}

bool
rbp_spill_table_next(RbpSpillTable *t, uint32_t index, RbpSpillHandle *handle)
{
	bool		found = false;

	if (rbp_spill_table_files(t) == 0)
		return false;
	rbp_lock_shared(&t->names_lock);
	for (; index < t->first_unused_file && !found; index++)
	{
		const RbpSpillFile *file = file_at(t, index);

		found = file->listed;
		if (found)
			*handle = rbp_spill_file_handle(t, file);
	}
	rbp_lock_release(&t->names_lock);
	return found;
}

/*
 * ---- files -------------------------------------------------------------
 */

/* Returns the locked file if the handle is still valid; else unlocks it. */
static RbpSpillFile *
check_serial(RbpSpillFile *file, RbpSpillHandle handle)
{
	if (file->serial == handle.serial)
		return file;
	rbp_lock_release(&file->lock);
	return NULL;
}

RbpSpillFile *
rbp_spill_file_lock(RbpSpillTable *t, RbpSpillHandle handle, bool exclusive)
{
	RbpSpillFile *file;

	if (handle.index >= t->nfiles)
		return NULL;
	file = file_at(t, handle.index);
	if (exclusive)
		rbp_lock_exclusive(&file->lock);
	else
		rbp_lock_shared(&file->lock);
	return check_serial(file, handle);
}

RbpSpillFile *
rbp_spill_file_trylock(RbpSpillTable *t, RbpSpillHandle handle, bool exclusive)
{
	RbpSpillFile *file;

	if (handle.index >= t->nfiles)
		return NULL;
	file = file_at(t, handle.index);
	return rbp_lock_try(&file->lock, exclusive) ? check_serial(file, handle) : NULL;
}

void
rbp_spill_file_unlock(RbpSpillTable *t, RbpSpillFile *file)
{
	(void) t;
	rbp_lock_release(&file->lock);
}

RbpSpillFileState *
rbp_spill_file_state(RbpSpillFile *file)
{
	return &file->state;
}

const char *
rbp_spill_file_name(const RbpSpillFile *file)
{
	return file->name;
}

RbpSpillHandle
rbp_spill_file_handle(RbpSpillTable *t, const RbpSpillFile *file)
{
	return (RbpSpillHandle)
	{
		.index = (uint32_t) (file - file_at(t, 0)),.serial = file->serial
	};
}

bool
rbp_spill_table_remove(RbpSpillTable *t, RbpSpillHandle handle,
					   RbpSpillVisit finish, void *arg)
{
	RbpSpillFile *file;
	uint32_t   *link;

	if (handle.index >= t->nfiles)
		return false;
	file = file_at(t, handle.index);

	rbp_lock_exclusive(&t->names_lock);
	if (!file->listed || file->serial != handle.serial)
	{
		rbp_lock_release(&t->names_lock);
		return false;
	}
	link = bucket_of(t, file->hash);
	while (*link != handle.index)
		link = &file_at(t, *link)->next;
	*link = file->next;
	file->listed = false;
	__atomic_store_n(&t->num_files, t->num_files - 1, __ATOMIC_RELEASE);
	rbp_lock_release(&t->names_lock);

	rbp_lock_exclusive(&file->lock);
	rbp_spill_file_truncate(t, file, 0, finish, arg);
	finish(file, UINT32_MAX, 0, arg);
	file->serial++;
	rbp_lock_release(&file->lock);

	rbp_lock_exclusive(&t->names_lock);
	file->next = t->free_file;
	t->free_file = handle.index;
	rbp_lock_release(&t->names_lock);
	return true;
}

/*
 * ---- the tree ----------------------------------------------------------
 */

static inline uint32_t
word_index(uint32_t block, uint32_t level)
{
	return (uint32_t) ((uint64_t) block >> (NODE_BITS * level)) & (NODE_WORDS - 1);
}

/* Is the block within the range of a tree of this depth? */
static inline bool
covers(uint32_t depth, uint32_t block)
{
	return ((uint64_t) block >> (NODE_BITS * depth)) == 0;
}

/* The leaf node of the block, or NULL. */
static inline Node *
find_leaf(RbpSpillTable *t, const RbpSpillFile *file, uint32_t block)
{
	uint32_t	index = file->root;

	if (index == NIL || !covers(file->depth, block))
		return NULL;
	for (uint32_t level = file->depth - 1; level > 0; level--)
	{
		uint32_t	child = node_at(t, index)->words[word_index(block, level)];

		if (child == 0)
			return NULL;
		index = child - 1;
	}
	return node_at(t, index);
}

uint32_t
rbp_spill_block_get(RbpSpillTable *t, RbpSpillFile *file, uint32_t block)
{
	const Node *leaf = find_leaf(t, file, block);

	return leaf == NULL ? 0 : leaf->words[word_index(block, 0)];
}

static bool
node_is_empty(const Node *node)
{
	uint32_t	any = 0;

	for (uint32_t i = 0; i < NODE_WORDS; i++)
		any |= node->words[i];
	return any == 0;
}

/* Remove levels from the top that only lead to the first child. */
static void
reduce_depth(RbpSpillTable *t, RbpSpillFile *file, FreedNodes *freed)
{
	while (file->depth > 1)
	{
		const Node *root = node_at(t, file->root);
		uint32_t	child = root->words[0];
		uint32_t	others = 0;

		for (uint32_t i = 1; i < NODE_WORDS; i++)
			others |= root->words[i];
		if (others != 0)
			break;
		collect_node(t, file->root, freed);
		file->root = child - 1;
		file->depth--;
	}
}

/* Remove the value, and nodes that become empty. */
static void
clear_block(RbpSpillTable *t, RbpSpillFile *file, uint32_t block)
{
	uint32_t	path[MAX_DEPTH];	/* by level */
	uint32_t	level;
	FreedNodes	freed = {0};

	if (file->root == NIL || !covers(file->depth, block))
		return;
	path[file->depth - 1] = file->root;
	for (level = file->depth - 1; level > 0; level--)
	{
		uint32_t	child = node_at(t, path[level])->words[word_index(block, level)];

		if (child == 0)
			return;
		path[level - 1] = child - 1;
	}
	node_at(t, path[0])->words[word_index(block, 0)] = 0;

	while (node_is_empty(node_at(t, path[level])))
	{
		collect_node(t, path[level], &freed);
		if (++level == file->depth)
		{
			file->root = NIL;
			file->depth = 0;
			break;
		}
		node_at(t, path[level])->words[word_index(block, level)] = 0;
	}
	if (freed.n > 0)
	{
		reduce_depth(t, file, &freed);
		free_nodes(t, &freed);
	}
}

bool
rbp_spill_block_set(RbpSpillTable *t, RbpSpillFile *file, uint32_t block,
					uint32_t value)
{
	Node	   *leaf;
	uint32_t	depth = file->depth;
	uint32_t	missing;		/* levels below the first missing node */
	uint32_t	nodes[MAX_NEW_NODES];
	uint32_t	n = 0;
	Node	   *node;

	if (value == 0)
	{
		clear_block(t, file, block);
		return true;
	}
	leaf = find_leaf(t, file, block);
	if (leaf != NULL)
	{
		leaf->words[word_index(block, 0)] = value;
		return true;
	}

	/* count the nodes to be added at the top and below */
	if (depth == 0)
		depth = 1;
	while (!covers(depth, block))
		depth++;
	missing = depth;
	if (file->root != NIL)
	{
		n = depth - file->depth;
		missing = depth - 1;
		if (n == 0)
		{
			node = node_at(t, file->root);
			while (node->words[word_index(block, missing)] != 0)
			{
				node = node_at(t, node->words[word_index(block, missing)] - 1);
				missing--;
			}
		}
	}
	n += missing;
	if (!alloc_nodes(t, nodes, n))
		return false;

	/* upwards: the old root becomes the first child of the new one */
	while (file->root != NIL && file->depth < depth)
	{
		n--;
		node_at(t, nodes[n])->words[0] = file->root + 1;
		file->root = nodes[n];
		file->depth++;
	}
	if (file->root == NIL)
	{
		file->root = nodes[--n];
		file->depth = depth;
	}

	/* and down to the block */
	node = node_at(t, file->root);
	for (uint32_t level = depth - 1; level > 0; level--)
	{
		uint32_t   *word = &node->words[word_index(block, level)];

		if (*word == 0)
			*word = nodes[--n] + 1;
		node = node_at(t, *word - 1);
	}
	Assert(n == 0);
	node->words[word_index(block, 0)] = value;
	return true;
}

/* State of rbp_spill_file_truncate(). */
typedef struct TruncateWalk
{
	RbpSpillTable *t;
	RbpSpillFile *file;
	RbpSpillVisit visit;
	void	   *arg;
	uint32_t	first;			/* first block to remove */
	FreedNodes	freed;			/* nodes that have become empty */
} TruncateWalk;

/*
 * Remove values from a node of that level, whose first block is base, and
 * collect nodes below it that become empty.  Returns true if it becomes empty
 * itself.
 */
static bool
truncate_node(TruncateWalk *walk, uint32_t index, uint32_t level, uint64_t base)
{
	Node	   *node = node_at(walk->t, index);
	uint64_t	step = UINT64_C(1) << (NODE_BITS * level);
	uint32_t	i = walk->first > base ? (uint32_t) ((walk->first - base) / step) : 0;

	for (; i < NODE_WORDS; i++)
	{
		uint32_t	word = node->words[i];
		uint64_t	at = base + i * step;

		if (word == 0)
			continue;
		if (level == 0)
		{
			node->words[i] = 0;
			walk->visit(walk->file, (uint32_t) at, word, walk->arg);
		}
		else if (truncate_node(walk, word - 1, level - 1, at))
		{
			node->words[i] = 0;
			collect_node(walk->t, word - 1, &walk->freed);
		}
	}
	return node_is_empty(node);
}

void
rbp_spill_file_truncate(RbpSpillTable *t, RbpSpillFile *file, uint32_t first,
						RbpSpillVisit visit, void *arg)
{
	TruncateWalk walk = {.t = t,.file = file,.visit = visit,.arg = arg,.first = first};

	if (file->root == NIL || !covers(file->depth, first))
		return;
	if (truncate_node(&walk, file->root, file->depth - 1, 0))
	{
		collect_node(t, file->root, &walk.freed);
		file->root = NIL;
		file->depth = 0;
	}
	else
		reduce_depth(t, file, &walk.freed);
	free_nodes(t, &walk.freed);
}
