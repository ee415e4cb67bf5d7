/*-------------------------------------------------------------------------
 *
 * relation_stats.h
 *	  Counts what the tier does for each relation fork, and for each database.
 *
 * A process counts in its own memory, without a lock, and adds that to shared
 * memory from time to time: at the end of a transaction, at most ten times a
 * second, after a thousand pages of a fork, and when it ends.  A process that is
 * in no transaction calls rbp_relation_stats_settle().
 *
 * What was counted before a reset, and not added, is discarded.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_RELATION_STATS_H
#define RBP_RELATION_STATS_H

#include "postgres.h"

#include "access/xact.h"

#include "base/relfile.h"
#include "base/stats.h"
#include "buffer/page.h"

/*
 * Count n pages of the file with that outcome, read in so many ns, or -1: for the
 * server, the process, and their relation.  Never waits, but for a lock of a table.
 */
extern void rbp_count_read(const RbpRelFile *file, RbpCounter outcome, int n, int64 ns);

/* Count a page for its relation: an item of RbpUsage. */
extern void rbp_relation_count_page(const RbpPageId *page, RbpCounter item);

/* Is anything pending? */
extern bool rbp_relation_stats_pending;

/*
 * Add to shared memory what is pending, as soon as it should be in a process that
 * is in no transaction.  Preserves errno.
 */
extern void rbp_relation_stats_flush_outside(void);

/* At the end of a read or write: if no end of a transaction will do it, do it. */
static inline void
rbp_relation_stats_settle(void)
{
	if (rbp_relation_stats_pending && !IsTransactionState())
		rbp_relation_stats_flush_outside();
}

#endif							/* RBP_RELATION_STATS_H */
