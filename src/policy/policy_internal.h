/*-------------------------------------------------------------------------
 *
 * policy_internal.h
 *	  Shared declarations of src/policy.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_POLICY_INTERNAL_H
#define RBP_POLICY_INTERNAL_H

#include "postgres.h"

#include "executor/spi.h"
#include "nodes/pg_list.h"
#include "port/atomics.h"
#include "storage/block.h"
#include "utils/rel.h"

#include "base/hot_list.h"
#include "base/relfile.h"
#include "buffer/buffer.h"
#include "policy/follow.h"

#define RBP_POLICY_TABLE	"remote_bp_policy"

/*
 * Number of visits that can be requested by database; if there are more, all
 * databases with policies are visited.
 */
#define RBP_POLICY_REQUESTS	64

/* How far the loading of relations has come */
typedef struct RbpLoadPosition
{
	Oid			relation;
	BlockNumber block;			/* the next one */
	uint32		new_pages;		/* pages of zeros found before it; they are
								 * not brought into the tier */
} RbpLoadPosition;

/* How far the pages of a list were brought into the tier, of one database */
typedef struct RbpWarmPosition
{
	uint64		round;			/* of the follower; 0: none yet */
	off_t		at;				/* of a part, in the list */
	BlockNumber block;			/* within the part */
	bool		counted;		/* what was present of it */
	bool		done;
} RbpWarmPosition;

/* Result of the worker's last visit, for the launcher */
typedef struct RbpPolicyVisit
{
	volatile bool holds_database;	/* the worker holds a lock, so that the
									 * database cannot be dropped */
	Oid			database;		/* the one visited; InvalidOid until the visit
								 * has ended */
	bool		table_known;	/* the table of policies was read, or does not
								 * exist */
	bool		has_policies;
	bool		more;			/* the visit was not completed */
	bool		out_of_time;	/* it was not, because its time was over */
	uint64		wanted;			/* pages that should be kept */
	uint64		held;			/* ... and are */
	uint32		policies_without_room;	/* files whose policies have no room
										 * in the directory */
	bool		keep_full;		/* the maximum number of kept pages is reached */
	RbpLoadPosition resume;		/* where the next visit continues loading;
								 * InvalidOid: at the first relation */
	RbpWarmPosition warm;
} RbpPolicyVisit;

/*
 * Only one worker at a time, the one that has set visiting, writes the directory's
 * policies and limits, and the fields below that are marked as private to the
 * worker.
 */
typedef struct RbpPolicyShared
{
	pg_atomic_uint32 visit_all;
	pg_atomic_uint32 requests[RBP_POLICY_REQUESTS]; /* databases to visit, or
													 * 0 */
	pg_atomic_uint32 visiting;	/* database that the worker visits, or 0 */
	pg_atomic_uint32 no_worker; /* no background worker was free for a visit */
	RbpPolicyVisit visit;		/* written by the worker while it runs, and by
								 * the launcher while no worker runs */
	/* private to the worker */
	bool		apply_pending;	/* policies were set, or tablespaces excluded,
								 * but that was not applied to all pages */
	bool		trim_pending;	/* limits were set, but not all pages above
								 * them dropped */
	char		unknown_logged[256];	/* names of tablespaces that do not
										 * exist, already logged */

} RbpPolicyShared;

extern RbpPolicyShared *rbp_policy_shared;

/*
 * Settings of launcher and worker, which override those of the server, and of the
 * database that they connect to afterwards.
 */
extern void rbp_policy_set_options(void);

/* A relation with storage that a policy applies to */
typedef struct RbpPolicyRelation
{
	Oid			relid;
	Oid			set_on;			/* relation that the policy was set on */
	NameData	index;			/* ... or the name of its index; or "" */
	RbpPolicy	policy;
	RbpRelFile	file;
} RbpPolicyRelation;

typedef struct RbpPolicyList
{
	List	   *relations;		/* RbpPolicyRelation *, palloc'd */
	List	   *orphans;		/* the same of indexes that do not exist:
								 * neither relid nor file is valid */
} RbpPolicyList;

/*
 * Run a query, safe from the user's search_path.  If a table is given, a %s in the
 * query becomes its name, and the query has the privileges of its owner.  Returns
 * the rows, if there may be any; the caller calls SPI_finish().
 */
extern SPITupleTable *rbp_policy_sql(Oid table, const char *query, int nargs,
									 Oid *types, Datum *values, bool read_only);

/* The value in a row, from 0, and a column, from 1; 0 if it is null. */
extern Datum rbp_policy_value(SPITupleTable *rows, uint64 row, int column);

/*
 * The extension's table of policies in this database; InvalidOid if there is none.
 * In a transaction.
 */
extern Oid	rbp_policy_table(void);

/*
 * Read the policies from the table, which the caller has locked, and resolve
 * partitions, indexes and TOAST tables to their files.  This only reads
 * catalogs: it neither locks nor opens the relations.  Memory is of the current
 * context.  Call this in a transaction with an active snapshot.
 */
extern RbpPolicyList rbp_policy_read(Oid table);

/*
 * Settings for the server and for whole databases: excluded tablespaces and
 * limits.  They are read in a transaction with an active snapshot, into
 * memory of the current context.  They are applied outside the transaction,
 * since that may take a while.
 */
typedef struct RbpPolicyServer
{
	Oid			excluded[RBP_MAX_EXCLUDED]; /* tablespaces */
	int			nexcluded;
	char	   *not_excluded;	/* unknown tablespaces, for the log */
	List	   *limits;			/* RbpDatabaseUse * */
	List	   *dropped;		/* dropped databases whose files still have
								 * policies */
} RbpPolicyServer;

extern RbpPolicyServer rbp_policy_read_server(void);
extern void rbp_policy_exclude_tablespaces(const RbpPolicyServer *server);
extern void rbp_policy_limit_databases(const List *limits);

/* Apply policies that were set to the pages that the tier has already. */
extern void rbp_policy_apply_to_pages(void);

/* Do the kept pages of these relations alone use up the database's limit? */
extern bool rbp_policy_kept_reach_limit(const List *relations);

/*
 * Take a lock on the database, if no other process holds or waits for a
 * conflicting one.  If so, the database cannot be dropped, or used as a
 * template, before the end of the transaction or, for the session, before
 * UnlockSharedObjectForSession().  Never waits.
 */
extern bool rbp_policy_trylock_database(Oid database, bool for_session);

/*
 * Number of blocks of the file's main fork, by stat(), so that the relation
 * need not be locked; 0 if the file does not exist
 */
extern BlockNumber rbp_policy_file_blocks(const RbpRelFile *file);

/*
 * Number of the file's pages that should be kept: all but new ones, of zeros.
 * An extension may leave them behind the last page that is in use.
 */
extern BlockNumber rbp_policy_pages_wanted(const RbpRelFile *file);

/* A visit loads pages for so long, and warms for as long, so that other databases get their turn. */
#define RBP_VISIT_NS	INT64CONST(10000000000)

/*
 * Loading of relations in pieces: call begin once, then load any number of
 * pieces, then end, which must also be called after errors.
 */
extern void rbp_prewarm_load_begin(void);
extern void rbp_prewarm_load_end(int code, Datum arg);

/* A piece of a relation, and what became of its pages */
typedef struct RbpLoadPiece
{
	const char *activity;		/* what pg_stat_activity shows */
	RbpRelFile	file;			/* the relation's main fork */
	int64		time_ns;		/* the relation is locked for so long, and a
								 * page that takes long to read */
	RbpLoadPosition at;			/* where it begins, then where it has ended;
								 * in a part, counted from its first block. If
								 * it has no relation, whose file it is will
								 * be looked up */
	bool		more;			/* there is more to load behind it */

	/* of a list of hot pages; NULL: pages to keep, of the main fork */
	const RbpHotPart *part;
	const uint8 *bitmap;
	int			budget;			/* pages to read, at most */
	int			read;			/* pages, whatever became of them */
	uint32		pages[RBP_FOLLOW_OUTCOMES];
} RbpLoadPiece;

/*
 * Bring the missing pages of the piece into the tier, in a transaction, with the relation's
 * lock, if that is free.  Hot ones count as read there; they wait for nothing but the
 * disk, those to keep for staging, too.  Returns RBP_FOLLOW_READ, also if there was nothing
 * to do, or why no more of the relation is read: an error was logged then, unless it was a
 * conflict with recovery.
 */
extern RbpFollowPages rbp_prewarm_piece(RbpLoadPiece *piece);

/* The rest of a visit: bring pages of the follower's list into the tier (warm.c). */
extern void rbp_policy_warm(RbpPolicyVisit *visit);

/* Transactions of the worker; they note that it runs. */
extern void rbp_policy_begin(void);
extern void rbp_policy_commit(void);

extern PGDLLEXPORT void rbp_policy_launcher_main(Datum arg);
extern PGDLLEXPORT void rbp_policy_worker_main(Datum arg);

#endif							/* RBP_POLICY_INTERNAL_H */
