/*-------------------------------------------------------------------------
 *
 * spill_table_check.h
 *	  What tests see of a table of spilled blocks that the product has no use for.
 *
 *-------------------------------------------------------------------------
 */
#ifndef SPILL_TABLE_CHECK_H
#define SPILL_TABLE_CHECK_H

#include "spill/table.h"

/*
 * Call visit for each value, in order of blocks.  File locked, shared will do;
 * the visit changes nothing.
 */
extern void spill_file_walk(RbpSpillFile *file,
							RbpSpillVisit visit, void *arg);

/* Nodes in the pool.  Takes its lock. */
extern uint32_t spill_table_free_nodes(void);

#endif							/* SPILL_TABLE_CHECK_H */
