/*-------------------------------------------------------------------------
 *
 * spill_table_check.c
 *	  See spill_table_check.h.  The table's nodes are known to its source alone,
 *	  which is therefore included.
 *
 *-------------------------------------------------------------------------
 */
#include "src/spill/table.c"
#include "spill_table_check.h"

uint32_t
spill_table_free_nodes(RbpSpillTable *t)
{
	uint32_t	n;

	rbp_lock_exclusive(&t->pool_lock);
	n = t->num_free_nodes;
	rbp_lock_release(&t->pool_lock);
	return n;
}

static void
walk_node(const TruncateWalk *walk, uint32_t index, uint32_t level, uint64_t base)
{
	const Node *node = node_at(walk->t, index);

	for (uint32_t i = 0; i < NODE_WORDS; i++)
	{
		uint32_t	word = node->words[i];
		uint64_t	at = base + ((uint64_t) i << (NODE_BITS * level));

		if (word == 0)
			continue;
		if (level == 0)
			walk->visit(walk->file, (uint32_t) at, word, walk->arg);
		else
			walk_node(walk, word - 1, level - 1, at);
	}
}

void
spill_file_walk(RbpSpillTable *t, RbpSpillFile *file, RbpSpillVisit visit, void *arg)
{
	const TruncateWalk walk = {.t = t,.file = file,.visit = visit,.arg = arg};

	if (file->root != NIL)
		walk_node(&walk, file->root, file->depth - 1, 0);
}
