/*-------------------------------------------------------------------------
 *
 * policy_internal.h
 *	  What the files of the policies share: src/policy.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_POLICY_INTERNAL_H
#define RBP_POLICY_INTERNAL_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "port/atomics.h"
#include "storage/block.h"

#include "base/geometry.h"
#include "base/relfile.h"
#include "buffer/buffer.h"

#define RBP_POLICY_TABLE	"remote_bp_policy"

/* Databases that can be named to be visited; beyond it, all are. */
#define RBP_POLICY_WAKES	64

/* What the worker has found, for the launcher: of its last visit. */
typedef struct RbpPolicyVisit
{
	volatile bool holds_database;	/* which cannot go from then on */
	Oid			database;		/* InvalidOid until it is done */
	bool		was_read;		/* the table of policies, or its absence */
	bool		has_policies;
	bool		more;			/* it did not get to the end */
	uint64		wanted;			/* pages that are to be kept */
	uint64		held;			/* ... and are */
	uint32		no_place;		/* files whose policies found no room */
	bool		keep_full;		/* no more can be kept */
	Oid			resume_relation;	/* where the next one goes on to load */
	BlockNumber resume_block;
} RbpPolicyVisit;

/*
 * One worker at a time writes the directory's policies and limits, and what is
 * here for itself alone: the one whose pid is in worker.
 */
typedef struct RbpPolicyShared
{
	pg_atomic_uint32 worker;	/* pid, or 0 */
	pg_atomic_uint64 latch;		/* of the launcher; 0 while there is none */
	pg_atomic_uint32 wake_all;
	pg_atomic_uint32 wakes[RBP_POLICY_WAKES];	/* databases, or 0 */
	pg_atomic_uint32 visiting;	/* the database that is visited now, or 0 */
	RbpPolicyVisit visit;		/* written by the worker while it runs, and by
								 * the launcher while none does */
	/* the worker's alone */
	bool		unapplied;		/* policies were set, and not all applied */
	bool		undropped;		/* tablespaces were excluded, likewise */
	char		not_excluded[256];	/* names that the log has */
	Oid			limited[RBP_LIMITS + 1];	/* databases, by their limits'
											 * numbers */
	uint64		trimmed[RBP_LIMITS + 1];	/* pages that trimming has left */
	bool		too_many_limits;	/* the log has that */
} RbpPolicyShared;

extern RbpPolicyShared *rbp_policy_shared;

/* Have the launcher look at what is here. */
extern void rbp_policy_wake_launcher(void);

/* A relation with storage that a policy is about. */
typedef struct RbpPolicyRelation
{
	Oid			relid;
	Oid			set_on;			/* the relation that it was set on */
	RbpPolicy	policy;
	RbpRelFile	file;
} RbpPolicyRelation;

/* A row of an index that the table has not. */
typedef struct RbpPolicyOrphan
{
	Oid			set_on;
	NameData	index;
	RbpPolicy	policy;
} RbpPolicyOrphan;

typedef struct RbpPolicyList
{
	List	   *relations;		/* RbpPolicyRelation *, palloc'd */
	List	   *orphans;		/* RbpPolicyOrphan *, palloc'd */
} RbpPolicyList;

/*
 * The extension's table of policies in this database; InvalidOid if there is none.
 * In a transaction.
 */
extern Oid	rbp_policy_table(void);

/*
 * What the table, which the caller has locked, says; partitions, indexes and TOAST
 * tables resolved to their files, by the catalogs alone: no relation is locked, nor
 * opened.  In a transaction with an active snapshot.
 */
extern RbpPolicyList rbp_policy_read(Oid table);

/*
 * What is set for the server, and for databases as a whole: excluded tablespaces,
 * limits.  Read in a transaction with an active snapshot, into memory of the current
 * context; done outside of it, since it may take a while.
 */
typedef struct RbpPolicyServer
{
	List	   *excluded;		/* OIDs of tablespaces */
	char	   *not_excluded;	/* names that lead to none, for the log */
	List	   *limits;			/* RbpPolicyLimit * */
	List	   *dropped;		/* databases of policies, but not of the catalog */
} RbpPolicyServer;

extern RbpPolicyServer rbp_policy_read_server(void);
extern void rbp_policy_apply_server(const RbpPolicyServer *server);

/* Apply policies that were set to the pages that are there. */
extern void rbp_policy_apply_to_pages(void);

/* Is all that the database may have of the tier kept pages of these relations? */
extern bool rbp_policy_limit_kept(const List *relations);

/*
 * Does nobody want the database for himself?  If so, nobody gets it before the end of
 * the transaction.  Waits for nothing.
 */
extern bool rbp_policy_lock_database(Oid database);

/* The same where there are no transactions yet, until it is released. */
extern bool rbp_policy_hold_database(Oid database);
extern void rbp_policy_release_database(Oid database);

/* Blocks of the file's main fork, by its length; 0 if it is not there. */
extern BlockNumber rbp_policy_blocks(const RbpRelFile *file);

extern PGDLLEXPORT void rbp_policy_launcher_main(Datum arg);
extern PGDLLEXPORT void rbp_policy_worker_main(Datum arg);

#endif							/* RBP_POLICY_INTERNAL_H */
