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
spill_table_free_nodes(void)
{
	uint32_t	n;

	rbp_lock_exclusive(&table->pool_lock);
	n = table->nnodes - table->first_unused_node;
	for (uint32_t word = table->free_node; word != 0; word = table->nodes[word - 1].words[0])
		n++;
	rbp_lock_release(&table->pool_lock);
	return n;
}

static void
walk_below(const Removal *walk, uint32_t word, uint32_t levels, uint64_t base)
{
	if (word == 0)
		return;
	if (levels == 0)
		walk->visit(walk->file, (uint32_t) base, word, walk->arg);
	else
		for (uint32_t i = 0; i < NODE_WORDS; i++)
			walk_below(walk, table->nodes[word - 1].words[i], levels - 1,
					   base + ((uint64_t) i << (NODE_BITS * (levels - 1))));
}

void
spill_file_walk(RbpSpillFile *file, RbpSpillVisit visit, void *arg)
{
	const Removal walk = {.file = file,.visit = visit,.arg = arg};

	walk_below(&walk, entry_of(file)->root, entry_of(file)->depth, 0);
}
