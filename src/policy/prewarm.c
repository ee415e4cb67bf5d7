/*-------------------------------------------------------------------------
 *
 * prewarm.c
 *	  Bring relations into the tier, or into shared buffers, on demand.
 *
 * Into the tier: pages are read through a small ring of shared buffers, and
 * staged from there at once, while the buffer's content is locked
 * exclusively.  A writer of the page holds that lock in share mode.  So the
 * frame's shadow cannot change, and its claim is checked as at any capture.
 * A page that was in shared buffers before may have no claim, because it was
 * not hashed when it was read from the page cache, or may differ from the disk, by hint bits, for example.
 * Then it is read from the file once more, under the same lock, so that no
 * write can come between sampling its stamp and the read.  The operating
 * system is told in advance which part of the file will be read.
 *
 * Unlike the capture of a victim, prewarming can wait: if staging is full,
 * the process waits, interruptibly, for the pusher to write some of it to
 * donors.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "base/compat.h"
#include "base/guc.h"
#include "base/injection_point.h"
#include "base/relfile.h"
#include "base/sql.h"
#include "base/wait.h"
#include "buffer/buffer.h"
#include "common/clock.h"
#include "policy/policy.h"
#include "policy/policy_internal.h"
#include "common/relpath.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/smgr.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(rbp_sql_prewarm);
PG_FUNCTION_INFO_V1(rbp_sql_prewarm_database);
PG_FUNCTION_INFO_V1(rbp_sql_prewarm_progress);

/*
 * This many blocks are looked up, and prefetched, at a time.  The size of a
 * segment is a multiple of it.
 */
#define WINDOW_BLOCKS			512

/* Check after this many blocks whether to continue */
#define CHECK_BLOCKS			64

#define STAGING_WAIT_MS			1

/*
 * Progress of a process.  Only the process itself writes its entry: pid last
 * at the start, and first at the end.  A reader may see a mixture of old and
 * new values.
 */
typedef struct Progress
{
	pg_atomic_uint32 pid;		/* 0: entry not in use */
	Oid			database;
	Oid			relation;
	ForkNumber	fork;
	bool		buffers;		/* into these, and not into the tier */
	volatile bool waits;		/* for room in staging */
	pg_atomic_uint64 done;		/* blocks */
	pg_atomic_uint64 total;
} Progress;

static Progress *all_progress = NULL;	/* by rbp_compat_procno() */

Size
rbp_prewarm_shmem_size(void)
{
	return mul_size(sizeof(Progress), rbp_compat_max_procs());
}

void
rbp_prewarm_shmem_init(void *mem)
{
	all_progress = memset(mem, 0, rbp_prewarm_shmem_size());
}

/* Parameters and progress of one call */
typedef struct Prewarm
{
	bool		buffers;
	bool		until_full;		/* do not evict other pages */
	bool		stopped;		/* the tier is full, or cannot be used */
	RbpLoadPosition *at;		/* of the policy worker, or NULL.  For the
								 * worker, what is there already is kept, and
								 * no warnings are logged */
	int64		deadline_ns;	/* wait for staging until then; 0: no limit */
	Progress   *progress;
	int64		pages;			/* pages brought in */
} Prewarm;

static Prewarm loading;			/* of the policy worker */

/* One fork of a relation. */
typedef struct Fork
{
	Relation	rel;
	RbpRelFile	file;
	BlockNumber end;			/* number of the last block plus one */
	bool		missing[WINDOW_BLOCKS]; /* blocks missing in the current
										 * window */
} Fork;

static void
show_range(const Prewarm *prewarm, uint64 done, uint64 total)
{
	pg_atomic_write_u64(&prewarm->progress->done, done);
	pg_atomic_write_u64(&prewarm->progress->total, total);
}

/*
 * ---- into the tier --------------------------------------------------------------
 */

/* Should we continue?  If not because the tier is unusable, report why. */
static bool
may_go_on(Prewarm *prewarm, const Fork *fork, BlockNumber block)
{
	char		why[256];

	if (prewarm->stopped)
		return false;
	if (prewarm->buffers)
		return true;
	if (rbp_tier_unusable_reason(why, sizeof(why)))
	{
		prewarm->stopped = true;
		ereport(prewarm->at != NULL ? DEBUG1 : WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("prewarm of relation \"%s\" stopped at block %u: %s",
						RelationGetRelationName(fork->rel), block, why)));
	}
	else if (prewarm->until_full && rbp_tier_is_full())
		prewarm->stopped = true;
	return !prewarm->stopped;
}

/*
 * Wait until at most half of staging is in use.  Returns false if waiting is
 * useless, or at the deadline.
 */
static bool
wait_for_staging(Prewarm *prewarm, const Fork *fork, BlockNumber block)
{
	while (rbp_tier_staging_is_busy())
	{
		if (!may_go_on(prewarm, fork, block) ||
			(prewarm->deadline_ns != 0 && rbp_now_ns() >= prewarm->deadline_ns))
			return false;
		prewarm->progress->waits = true;
		rbp_wait_latch(RBP_WAIT_STAGING, STAGING_WAIT_MS);
		CHECK_FOR_INTERRUPTS();
	}
	prewarm->progress->waits = false;
	return true;
}

/*
 * Ask the operating system to read these blocks, of one segment.  This is only advice,
 * so it does not matter if the file does not exist any more.
 */
static void
advise(const Fork *fork, BlockNumber block, uint32 n)
{
	RbpRelFile	file = fork->file;
	char	   *path;
	int			fd;

	file.segment = block / RELSEG_SIZE;
	path = rbp_compat_path(&file);
	fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (fd >= 0)
	{
		(void) posix_fadvise(fd, (off_t) (block % RELSEG_SIZE) * BLCKSZ,
							 (off_t) n * BLCKSZ, POSIX_FADV_WILLNEED);
		(void) CloseTransientFile(fd);
	}
	pfree(path);
}

/*
 * Find the blocks from this one to the end of the window that are missing in
 * the tier.  If there are many, ask the operating system to read that part of
 * the file in one piece.
 */
static void
look_ahead(const Prewarm *prewarm, Fork *fork, BlockNumber block)
{
	uint32		at = block % WINDOW_BLOCKS;
	uint32		n = Min(fork->end - block, WINDOW_BLOCKS - at);
	uint32		missing = 0;

	for (uint32 i = 0; i < n; i++)
	{
		fork->missing[at + i] = prewarm->at != NULL ?
			!rbp_tier_keep_block(&fork->file, block + i) :
			!rbp_tier_has_block(&fork->file, block + i, false);
		missing += fork->missing[at + i];
	}
	if (missing > 0 && missing >= n / 4)
		advise(fork, block, n);
}

/*
 * Read the block from the file, bypassing shared buffers, and stage it; see
 * rbp_tier_prewarm_begin().
 */
static RbpStageResult
stage_from_file(const Fork *fork, BlockNumber block)
{
	PGIOAlignedBlock page;
	RbpVersion	version;

	if (!rbp_tier_prewarm_begin(&fork->file, block, &version))
		return RBP_STAGE_REFUSED;
	smgrread(RelationGetSmgr(fork->rel), fork->file.fork, block, page.data);
	return rbp_tier_prewarm_page(&fork->file, block, page.data, &version);
}

/*
 * Stage the block that the buffer holds.  If it must be read from the file,
 * read it once without the lock before, so that processes that wait for the
 * buffer do not wait for the disk.
 */
static RbpStageResult
stage_buffer(const Fork *fork, BlockNumber block, Buffer buffer)
{
	RbpStageResult result;
	PGIOAlignedBlock unused;

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	result = rbp_tier_prewarm_page(&fork->file, block, BufferGetBlock(buffer), NULL);
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	/* without a usable claim, read the file */
	if (result >= RBP_STAGE_PRESENT || result == RBP_STAGE_FULL)
		return result;

	smgrread(RelationGetSmgr(fork->rel), fork->file.fork, block, unused.data);
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	result = stage_from_file(fork, block);
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	return result;
}

/* Bring the block into the tier.  Returns whether that was done. */
static bool
bring_into_tier(Prewarm *prewarm, const Fork *fork, BlockNumber block,
				BufferAccessStrategy strategy)
{
	RbpStageResult result;

	if (prewarm->until_full && rbp_tier_room(&fork->file, block) < RBP_ROOM_FREE)
		return false;
	do
	{
		Buffer		buffer;

		if (!wait_for_staging(prewarm, fork, block))
			return false;
		CHECK_FOR_INTERRUPTS();
		/* break the rule: without the buffer's lock */
		if (RBP_INJECTION_POINT("prewarm-unlocked"))
		{
			result = stage_from_file(fork, block);
			continue;
		}
		buffer = ReadBufferExtended(fork->rel, fork->file.fork, block,
									RBM_NORMAL, strategy);

		/*
		 * a new page is not captured (rule 9 of coherence); it may be in use
		 * soon
		 */
		if (PageIsNew(BufferGetPage(buffer)))
		{
			if (prewarm->at != NULL)
				prewarm->at->new_pages++;
			result = RBP_STAGE_REFUSED;
		}
		else
			result = stage_buffer(fork, block, buffer);
		ReleaseBuffer(buffer);
	} while (result == RBP_STAGE_FULL);
	return result == RBP_STAGE_DONE;
}

/*
 * ---- a relation -------------------------------------------------------------------
 */

/* Prewarm one block; first is the first block of the call. */
static void
prewarm_block(Prewarm *prewarm, Fork *fork, BlockNumber block, BlockNumber first,
			  BufferAccessStrategy strategy)
{
	if (!prewarm->buffers)
	{
		if (block == first || block % WINDOW_BLOCKS == 0)
			look_ahead(prewarm, fork, block);
		if (fork->missing[block % WINDOW_BLOCKS])
			prewarm->pages += bring_into_tier(prewarm, fork, block, strategy);
	}
	else
	{
		int64		read = pgBufferUsage.shared_blks_read;

		ReleaseBuffer(ReadBufferExtended(fork->rel, fork->file.fork, block,
										 RBM_NORMAL, NULL));
		prewarm->pages += pgBufferUsage.shared_blks_read - read;
	}
}

/* Prewarm blocks first to end - 1 of the fork. */
static void
prewarm_blocks(Prewarm *prewarm, Relation rel, ForkNumber forknum,
			   BlockNumber first, BlockNumber end)
{
	BufferAccessStrategy strategy = prewarm->buffers ? NULL :
	GetAccessStrategy(BAS_BULKREAD);
	Progress   *progress = prewarm->progress;
	Fork		fork = {.rel = rel,.file = rbp_compat_rel_file(rel, forknum),.end = end};

	progress->relation = RelationGetRelid(rel);
	progress->fork = forknum;
	for (BlockNumber block = first; block < end; block++)
	{
		CHECK_FOR_INTERRUPTS();
		if ((block - first) % CHECK_BLOCKS == 0 &&
			!may_go_on(prewarm, &fork, block))
			break;
		if (prewarm->at != NULL)
			prewarm->at->block = block;
		prewarm_block(prewarm, &fork, block, first, strategy);
		pg_atomic_fetch_add_u64(&progress->done, 1);
	}
	if (strategy != NULL)
		FreeAccessStrategy(strategy);
}

/* Users who may read the table may prewarm it and its indexes. */
static bool
may_read(Relation rel)
{
	Oid			table = RelationGetRelid(rel);

	if (rel->rd_rel->relkind == RELKIND_INDEX)
		table = IndexGetRelation(table, true);
	return OidIsValid(table) &&
		pg_class_aclcheck(table, GetUserId(), ACL_SELECT) == ACLCHECK_OK;
}

/*
 * An index that is being built concurrently is written bypassing shared
 * buffers, without buffer locks, so none of its blocks may be read into a
 * buffer yet.
 */
static bool
is_being_built(Relation rel)
{
	return rel->rd_rel->relkind == RELKIND_INDEX && !rel->rd_index->indisready;
}

/*
 * May the relation's pages be in the tier, by its policy and its tablespace?
 */
static bool
is_wanted(Relation rel)
{
	const RbpRelFile file = rbp_compat_rel_file(rel, MAIN_FORKNUM);

	return rbp_tier_wants(&file);
}

/* Check a block number argument; returns the default if it is null. */
static BlockNumber
check_block(const char *name, NullableDatum arg, BlockNumber otherwise,
			BlockNumber nblocks)
{
	int64		block;

	if (arg.isnull)
		return otherwise;
	block = DatumGetInt64(arg.value);
	if (block < 0 || block >= nblocks)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be between 0 and %lld", name,
						(long long) nblocks - 1)));
	return (BlockNumber) block;
}

/* Prewarm the relation's fork, or the part of it that the caller gave. */
static void
prewarm_fork(Prewarm *prewarm, Relation rel, ForkNumber forknum,
			 const NullableDatum *first_arg, const NullableDatum *last_arg)
{
	BlockNumber nblocks;
	BlockNumber first = 0;
	BlockNumber last;

	if (!smgrexists(RelationGetSmgr(rel), forknum))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("fork \"%s\" does not exist for relation \"%s\"",
						forkNames[forknum], RelationGetRelationName(rel))));
	nblocks = RelationGetNumberOfBlocksInFork(rel, forknum);
	if (nblocks == 0)
		return;
	last = nblocks - 1;
	if (first_arg != NULL)
	{
		first = check_block("first_block", *first_arg, first, nblocks);
		last = check_block("last_block", *last_arg, last, nblocks);
	}
	if (first > last)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("first_block must not be greater than last_block")));
	show_range(prewarm, 0, (uint64) last + 1 - first);
	prewarm_blocks(prewarm, rel, forknum, first, last + 1);
}

/*
 * The relation, if it is there still, and if the caller may read it.  An unlogged one has
 * no file on a standby.
 */
static void
prewarm_if_possible(Prewarm *prewarm, Oid relid)
{
	Relation	rel = try_relation_open(relid, AccessShareLock);

	if (rel == NULL)
		return;
	if (RELKIND_HAS_STORAGE(rel->rd_rel->relkind) && may_read(rel) && !is_being_built(rel) &&
		(prewarm->buffers || is_wanted(rel)) &&
		smgrexists(RelationGetSmgr(rel), MAIN_FORKNUM))
		prewarm_fork(prewarm, rel, MAIN_FORKNUM, NULL, NULL);
	relation_close(rel, AccessShareLock);
}

static void
begin_prewarm(Prewarm *prewarm)
{
	char		why[256] = "remote_bp.use_tier is off";

	rbp_sql_require_loaded();
	/* the worker looks for itself, again and again */
	if (!prewarm->buffers && prewarm != &loading &&
		(rbp_tier_unusable_reason(why, sizeof(why)) || rbp_guc_use_tier == RBP_USE_TIER_OFF))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there is no tier to prewarm: %s", why)));
	prewarm->progress = &all_progress[rbp_compat_procno()];
	prewarm->progress->database = MyDatabaseId;
	prewarm->progress->relation = InvalidOid;
	prewarm->progress->fork = MAIN_FORKNUM;
	prewarm->progress->buffers = prewarm->buffers;
	prewarm->progress->waits = false;
	show_range(prewarm, 0, 0);
	pg_write_barrier();
	pg_atomic_write_u32(&prewarm->progress->pid, (uint32) MyProcPid);
	rbp_tier_prewarming = !prewarm->buffers;
}

/* Also called if the process exits during prewarming; arg is a Prewarm. */
static void
end_prewarm(int code, Datum arg)
{
	Prewarm    *prewarm = (Prewarm *) DatumGetPointer(arg);

	rbp_tier_prewarming = false;
	if (prewarm->progress != NULL)
		pg_atomic_write_u32(&prewarm->progress->pid, 0);
}

/* Does the mode say that pages are to be brought into buffers? */
static bool
is_buffers(const text *name)
{
	char	   *mode = text_to_cstring(name);
	bool		buffers = strcmp(mode, "buffers") == 0;

	if (!buffers && strcmp(mode, "tier") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid prewarm mode \"%s\"", mode),
				 errhint("Valid modes are \"tier\" and \"buffers\".")));
	return buffers;
}

Datum
rbp_sql_prewarm(PG_FUNCTION_ARGS)
{
	enum
	{
		RELATION, MODE, FORK, FIRST_BLOCK, LAST_BLOCK, INCLUDE_INDEXES
	};
	Prewarm		prewarm = {0};
	ForkNumber	forknum;
	Relation	rel;
	ListCell   *cell;

	for (int i = 0; i <= INCLUDE_INDEXES; i++)
		if (PG_ARGISNULL(i) && i != FIRST_BLOCK && i != LAST_BLOCK)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("relation, mode, fork and include_indexes cannot be null")));
	rbp_sql_require_loaded();
	prewarm.buffers = is_buffers(PG_GETARG_TEXT_PP(MODE));
	forknum = forkname_to_number(text_to_cstring(PG_GETARG_TEXT_PP(FORK)));
	rel = relation_open(PG_GETARG_OID(RELATION), AccessShareLock);
	rbp_sql_check_buffered(rel);
	if (!may_read(rel))
		aclcheck_error(ACLCHECK_NO_PRIV,
					   get_relkind_objtype(rel->rd_rel->relkind),
					   RelationGetRelationName(rel));
	if (is_being_built(rel))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is being built",
						RelationGetRelationName(rel))));
	if (!prewarm.buffers && !is_wanted(rel))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("relation \"%s\" is excluded from the tier",
						RelationGetRelationName(rel)),
				 errhint("See remote_bp_policies, and remote_bp.exclude_tablespaces.")));

	PG_ENSURE_ERROR_CLEANUP(end_prewarm, PointerGetDatum(&prewarm));
	{
		begin_prewarm(&prewarm);
		prewarm_fork(&prewarm, rel, forknum, &fcinfo->args[FIRST_BLOCK],
					 &fcinfo->args[LAST_BLOCK]);
		if (PG_GETARG_BOOL(INCLUDE_INDEXES))
			foreach(cell, RelationGetIndexList(rel))
				prewarm_if_possible(&prewarm, lfirst_oid(cell));
	}
	PG_END_ENSURE_ERROR_CLEANUP(end_prewarm, PointerGetDatum(&prewarm));
	end_prewarm(0, PointerGetDatum(&prewarm));
	relation_close(rel, AccessShareLock);
	PG_RETURN_INT64(prewarm.pages);
}

/*
 * ---- for the worker of policies ------------------------------------------------------
 */

void
rbp_prewarm_load_begin(void)
{
	memset(&loading, 0, sizeof(loading));
	begin_prewarm(&loading);
}

void
rbp_prewarm_load_end(int code, Datum arg)
{
	end_prewarm(code, PointerGetDatum(&loading));
}

/* Bring the missing pages of the window into the tier, and keep them. */
static RbpFollowPages
load_window(Relation rel, RbpLoadPiece *piece)
{
	BlockNumber first = piece->at.block;
	BlockNumber next = first - first % WINDOW_BLOCKS + WINDOW_BLOCKS;
	BlockNumber end = RelationGetNumberOfBlocks(rel);

	if (first >= end || is_being_built(rel))
		return RBP_FOLLOW_READ;
	show_range(&loading, first, end);
	prewarm_blocks(&loading, rel, MAIN_FORKNUM, first, Min(next, end));
	piece->at.block = next;
	piece->more = next < end && !loading.stopped;
	return RBP_FOLLOW_READ;
}

/*
 * Find the first blocks to read from this one on, no further than the end of the window, as many
 * as the piece may still read, and ask the operating system to read each run of them.  Returns
 * where it has ended.
 */
static BlockNumber
look_for_hot(Fork *fork, BlockNumber block, RbpLoadPiece *piece)
{
	const BlockNumber first = piece->part->part * RBP_HOT_PART_BLOCKS;
	BlockNumber end = Min(fork->end, block - block % WINDOW_BLOCKS + WINDOW_BLOCKS);
	RbpRoom		least = piece->part->class == RBP_HOT_SMALL ? RBP_ROOM_FREE : RBP_ROOM_UNREAD;
	int			most = piece->budget - piece->read;
	uint32		run = 0;

	for (; block < end && most > 0; block++)
	{
		bool		missing = rbp_hot_bit(piece->bitmap, block - first) &&
		!rbp_tier_has_block(&fork->file, block, false);

		/* a hot one may take the slot of a page that nobody has read */
		if (missing && rbp_tier_room(&fork->file, block) < least)
		{
			piece->pages[RBP_FOLLOW_FULL]++;
			missing = false;
		}
		fork->missing[block % WINDOW_BLOCKS] = missing;
		most -= missing;
		if (!missing && run > 0)
			advise(fork, block - run, run);
		run = missing ? run + 1 : 0;
	}
	if (run > 0)
		advise(fork, block - run, run);
	return block;
}

/* Why none of the relation's pages may be read; RBP_FOLLOW_READ: they may. */
static RbpFollowPages
refuse_hot(Relation rel, ForkNumber fork)
{
	/* on a standby, no other relation has more than an init fork */
	if (!RELKIND_HAS_STORAGE(rel->rd_rel->relkind) ||
		rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT ||
		!smgrexists(RelationGetSmgr(rel), fork))
		return RBP_FOLLOW_UNKNOWN;
	if (is_being_built(rel))
		return RBP_FOLLOW_BUSY;
	return is_wanted(rel) && !rbp_residency_at_limit(MyDatabaseId) ? RBP_FOLLOW_READ : RBP_FOLLOW_EXCLUDED;
}

/* Bring missing ones of the part's pages into the tier, and count them as read there. */
static RbpFollowPages
load_hot(Relation rel, RbpLoadPiece *piece)
{
	const RbpHotPart *part = piece->part;
	const ForkNumber forknum = (ForkNumber) part->fork;
	const BlockNumber first = part->part * RBP_HOT_PART_BLOCKS;
	const int64 deadline_ns = loading.deadline_ns;
	Fork		fork = {.rel = rel,.file = rbp_compat_rel_file(rel, forknum)};
	RbpFollowPages refused = refuse_hot(rel, forknum);
	BlockNumber block = first + piece->at.block;
	BlockNumber looked = block;
	BufferAccessStrategy strategy;

	if (refused != RBP_FOLLOW_READ)
		return refused;
	fork.end = (BlockNumber) Min(RelationGetNumberOfBlocksInFork(rel, forknum),
								 (uint64) first + part->length * 8);
	loading.deadline_ns = 1;	/* staging is not waited for */
	loading.progress->waits = false;
	show_range(&loading, 0, 0); /* only pages to keep are counted */
	loading.progress->relation = RelationGetRelid(rel);
	loading.progress->fork = forknum;
	strategy = GetAccessStrategy(BAS_BULKREAD);
	for (; block < fork.end; block++)
	{
		CHECK_FOR_INTERRUPTS();
		if (piece->read >= piece->budget || rbp_now_ns() >= deadline_ns ||
			rbp_tier_staging_is_busy())
			break;
		if (block >= looked)
			looked = look_for_hot(&fork, block, piece);
		if (!fork.missing[block % WINDOW_BLOCKS])
			continue;
		piece->at.block = block - first;	/* should it fail */
		piece->read++;
		if (bring_into_tier(&loading, &fork, block, strategy))
		{
			piece->pages[RBP_FOLLOW_READ]++;
			if (part->class != RBP_HOT_SMALL)
				(void) rbp_tier_has_block(&fork.file, block, true);
		}
		else
			piece->pages[RBP_FOLLOW_ERROR]++;
	}
	FreeAccessStrategy(strategy);
	piece->at.block = block - first;
	piece->more = block < fork.end;
	if (!piece->more)
		piece->pages[RBP_FOLLOW_BEYOND] += rbp_hot_count(part, piece->bitmap, piece->at.block);
	return RBP_FOLLOW_READ;
}

/* The piece, in a transaction */
static RbpFollowPages
load_relation(RbpLoadPiece *piece)
{
	Oid			relid = piece->at.relation;
	RbpFollowPages result = RBP_FOLLOW_UNKNOWN;
	Relation	rel = NULL;

	if (!OidIsValid(relid))
	{
		relid = RelidByRelfilenumber(piece->file.spc, piece->file.rel);
		if (RBP_INJECTION_POINT("slow-lookup"))
			pg_usleep(2000000);
	}
	loading.at = &piece->at;
	loading.stopped = false;
	loading.deadline_ns = rbp_now_ns() + piece->time_ns;
	if (OidIsValid(relid))
	{
		if (rbp_policy_trylock_database(MyDatabaseId, false) && ConditionalLockRelationOid(relid, AccessShareLock))
			rel = try_relation_open(relid, NoLock);
		else
			result = RBP_FOLLOW_BUSY;
	}
	if (rel != NULL)
	{
		RbpRelFile	file = rbp_compat_rel_file(rel, MAIN_FORKNUM);

		/* it may have got another file before it was locked */
		if (file.rel == piece->file.rel && file.spc == piece->file.spc)
			result = piece->part != NULL ? load_hot(rel, piece) : load_window(rel, piece);
		relation_close(rel, AccessShareLock);
	}
	return result;
}

RbpFollowPages
rbp_prewarm_piece(RbpLoadPiece *piece)
{
	MemoryContext context = CurrentMemoryContext;
	volatile RbpFollowPages result = RBP_FOLLOW_ERROR;
	char		what[80];

	piece->more = false;
	snprintf(what, sizeof(what), "%s of relation file %u/%u/%u", piece->activity,
			 piece->file.spc, piece->file.db, piece->file.rel);
	PG_TRY();
	{
		rbp_policy_begin();
		pgstat_report_activity(STATE_RUNNING, what);
		result = load_relation(piece);
		rbp_policy_commit();
	}
	PG_CATCH();
	{
		/* a conflict with recovery is no trouble */
		MemoryContextSwitchTo(context);
		HOLD_INTERRUPTS();
		if (geterrcode() != ERRCODE_T_R_SERIALIZATION_FAILURE)
			EmitErrorReport();
		FlushErrorState();
		AbortCurrentTransaction();
		RESUME_INTERRUPTS();
		result = RBP_FOLLOW_ERROR;
	}
	PG_END_TRY();
	pgstat_report_activity(STATE_IDLE, NULL);
	MemoryContextSwitchTo(context);
	return result;
}

/*
 * ---- a database ---------------------------------------------------------------------
 */

/*
 * Relations of the database, in descending order of reads per page that
 * missed shared buffers.  Relations that were never read come last, small
 * ones first.
 */
static const char *const database_query =
"SELECT c.oid FROM pg_class c"
" WHERE c.relkind IN ('r', 'i', 'm', 't', 'S') AND c.relpersistence <> 't'"
" ORDER BY (pg_stat_get_blocks_fetched(c.oid) - pg_stat_get_blocks_hit(c.oid))::float8"
" / greatest(c.relpages, 1)::float8 DESC, c.relpages, c.oid";

Datum
rbp_sql_prewarm_database(PG_FUNCTION_ARGS)
{
	Prewarm		prewarm = {.until_full = true};
	SPITupleTable *relations;

	PG_ENSURE_ERROR_CLEANUP(end_prewarm, PointerGetDatum(&prewarm));
	{
		begin_prewarm(&prewarm);
		relations = rbp_policy_sql(InvalidOid, database_query, 0, NULL, NULL, true);
		for (uint64 i = 0; i < relations->numvals && !prewarm.stopped; i++)
			prewarm_if_possible(&prewarm, DatumGetObjectId(rbp_policy_value(relations, i, 1)));
		SPI_finish();
	}
	PG_END_ENSURE_ERROR_CLEANUP(end_prewarm, PointerGetDatum(&prewarm));
	end_prewarm(0, PointerGetDatum(&prewarm));
	PG_RETURN_INT64(prewarm.pages);
}

/*
 * ---- progress ---------------------------------------------------------------------
 */

Datum
rbp_sql_prewarm_progress(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);

	for (int i = 0; i < rbp_compat_max_procs(); i++)
	{
		Progress   *p = &all_progress[i];
		uint32		pid = pg_atomic_read_u32(&p->pid);
		RbpRow		row = {0};

		if (pid == 0)
			continue;
		rbp_row_put(&row, "pid", Int32GetDatum((int32) pid), false);
		rbp_row_put(&row, "datid", ObjectIdGetDatum(p->database), false);
		/* in another database, the OID would denote another relation */
		rbp_row_put(&row, "relation", ObjectIdGetDatum(p->relation),
					p->database != MyDatabaseId || p->relation == InvalidOid);
		rbp_row_text(&row, "fork", forkNames[p->fork]);
		rbp_row_text(&row, "mode", p->buffers ? "buffers" : "tier");
		rbp_row_text(&row, "phase", p->waits ? "waiting for donors" : "reading");
		rbp_row_count(&row, "blocks_done", pg_atomic_read_u64(&p->done));
		rbp_row_count(&row, "blocks_total", pg_atomic_read_u64(&p->total));
		rbp_sql_add_row(rsinfo, &row);
	}
	return (Datum) 0;
}
