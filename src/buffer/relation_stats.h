/*-------------------------------------------------------------------------
 *
 * relation_stats.h
 *	  What the tier does for each relation fork, and for each database.
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
#include "port/atomics.h"

#include "base/counter_table.h"
#include "base/relfile.h"
#include "base/stats.h"
#include "buffer/page.h"

/* A fork that this process has counted something for, and not yet added. */
typedef struct RbpPendingFork
{
	RbpCounterKey key;
	RbpUsage	used;
	uint64		n;				/* pages and events; 0: nothing is pending */
	uint32		resets;			/* *rbp_relation_resets when it was counted */
} RbpPendingFork;

/* How many resets there have been; to be read only if rbp_pending_fork is not NULL. */
extern pg_atomic_uint32 *rbp_relation_resets;

/* The fork that was counted for last; NULL if there is none. */
extern RbpPendingFork *rbp_pending_fork;

/* Is anything pending? */
extern bool rbp_relation_stats_pending;

/* What is pending of a fork is added when it is so much. */
#define RBP_MAX_PENDING		1024

/* Add what is pending of rbp_pending_fork. */
extern void rbp_relation_stats_add_fork(void);

/* Make rbp_pending_fork that of the key, if anything is counted at all. */
extern bool rbp_relation_stats_switch(const RbpCounterKey *key);

static inline RbpCounterKey
rbp_relation_stats_key(Oid spc, Oid db, uint32 rel, uint8 fork)
{
	return (RbpCounterKey)
	{
		.high = (uint64) spc << 32 | db,.low = (uint64) rel << 32 | fork
	};
}

/*
 * Count n pages of the fork of that key for an item of RbpUsage, and a time of the same
 * outcome; -1: none.  Never waits, but for a lock of the table.
 */
static inline void
rbp_relation_count_key(const RbpCounterKey *key, RbpCounter item, int n, int64 ns)
{
	if ((rbp_pending_fork == NULL || rbp_pending_fork->key.low != key->low ||
		 rbp_pending_fork->key.high != key->high ||
		 rbp_pending_fork->resets != pg_atomic_read_u32(rbp_relation_resets)) &&
		!rbp_relation_stats_switch(key))
		return;
	rbp_pending_fork->used.item[item] += (uint64) n;
	if (ns > 0 && item < RBP_COUNT_STAGED)
		rbp_pending_fork->used.item[RBP_COUNT_NS + item] += (uint64) ns;
	rbp_pending_fork->n += (uint64) n;
	rbp_relation_stats_pending = true;
	if (unlikely(rbp_pending_fork->n >= RBP_MAX_PENDING))
		rbp_relation_stats_add_fork();
}

extern void rbp_relation_count_page(const RbpPageId *page, RbpCounter item);

/*
 * Count n pages of the file with that outcome, read in so many ns, or -1: for the
 * server, the process, and their relation.
 */
static inline void
rbp_count_read(const RbpRelFile *file, RbpCounter outcome, int n, int64 ns)
{
	RbpCounterKey key = rbp_relation_stats_key(file->spc, file->db, file->rel, file->fork);

	rbp_stats_outcome(outcome, n, ns);
	rbp_relation_count_key(&key, outcome, n, ns);
}

/*
 * Add to shared memory what is pending, as soon as it should be in a process that
 * is in no transaction.  Preserves errno.  An I/O worker does it before it waits for
 * work, too: rbp_relation_stats_flush().
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
