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
#include "buffer/page.h"

/*
 * Suffix of the enum value, and column of remote_bp_stat_relations and
 * remote_bp_stat_database.  All but the times are pages.
 */
#define RBP_RELATION_ITEMS(X) \
	X(HITS, hits) \
	X(STAGED_HITS, staged_hits) \
	X(MISSES, misses) \
	X(PAGE_CACHE_READS, page_cache_reads) \
	X(DISK_READS, disk_reads) \
	X(CAPTURES, captures) \
	X(EVICTIONS, evictions) \
	X(HIT_NS, hit_time)			/* from here on: times */ \
	X(DISK_NS, disk_time) \
	X(FILE_NS, file_time)

typedef enum RbpRelationItem
{
#define RBP_RELATION_ENUM(sym, name) RBP_RELATION_##sym,
	RBP_RELATION_ITEMS(RBP_RELATION_ENUM)
#undef RBP_RELATION_ENUM
	RBP_NUM_RELATION_ITEMS
} RbpRelationItem;

#define RBP_FIRST_RELATION_TIME		RBP_RELATION_HIT_NS

/* A fork that this process has counted something for, and not yet added. */
typedef struct RbpPendingFork
{
	RbpCounterKey key;
	uint64		values[RBP_NUM_RELATION_ITEMS];
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

/* Count for the fork of that key.  Never waits, but for a lock of the table. */
static inline void
rbp_relation_count_key(const RbpCounterKey *key, RbpRelationItem item, uint64 n)
{
	if ((rbp_pending_fork == NULL || rbp_pending_fork->key.low != key->low ||
		 rbp_pending_fork->key.high != key->high ||
		 rbp_pending_fork->resets != pg_atomic_read_u32(rbp_relation_resets)) &&
		!rbp_relation_stats_switch(key))
		return;
	rbp_pending_fork->values[item] += n;
	rbp_pending_fork->n += item < RBP_FIRST_RELATION_TIME ? n : 1;
	rbp_relation_stats_pending = true;
	if (unlikely(rbp_pending_fork->n >= RBP_MAX_PENDING))
		rbp_relation_stats_add_fork();
}

static inline void
rbp_relation_count(const RbpRelFile *file, RbpRelationItem item, uint64 n)
{
	RbpCounterKey key = rbp_relation_stats_key(file->spc, file->db, file->rel, file->fork);

	rbp_relation_count_key(&key, item, n);
}

extern void rbp_relation_count_page(const RbpPageId *page, RbpRelationItem item, uint64 n);

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
