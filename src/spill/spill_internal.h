/*-------------------------------------------------------------------------
 *
 * spill_internal.h
 *	  Declarations shared by the files of spill.
 *
 * setup.c		shared memory, ends of transactions and processes, callbacks for remote
 * upkeep.c		moving blocks out of memory that is to be released; files whose
 *				owner is gone
 * views.c		remote_bp_temp_files
 * file_io.c	calls that read, write and truncate, block by block
 * files.c		descriptors, entries, sizes, removal
 * write.c		blocks on their way to donors: staging and batches
 * read.c		blocks from donors: read-ahead, checks, second copies
 * lost.c		what the error and the log say of lost blocks
 * cost.c		whether a block costs less in its file or at a donor
 * blocks.c		reserving slots for a file, replacing a block's value
 * slots.c		which slots are free
 * table.c		the place of each block
 *
 * A file calls those below it, and none above.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SPILL_INTERNAL_H
#define RBP_SPILL_INTERNAL_H

#include "postgres.h"

#include "port/atomics.h"
#include "storage/pg_shmem.h"
#include "storage/proc.h"

#include "base/geometry.h"
#include "base/guc.h"
#include "spill/spill.h"
#include "spill/table.h"

/*
 * The value of a block in rbp_spill_table: none, a staging page, or a slot,
 * numbered from the temp quota's first one.
 */
#define VALUE_NONE		0
#define VALUE_STAGED	UINT32_C(0x80000000)
#define VALUE_LOST		UINT32_C(0x7fffffff)	/* it could not be written
												 * anywhere */

#define IS_STAGED(value)	(((value) & VALUE_STAGED) != 0)
#define STAGED_PAGE(value)	((value) & ~VALUE_STAGED)
#define IS_SLOT(value)		((value) != VALUE_NONE && (value) < VALUE_LOST)
#define VALUE_SLOT(value)	((value) - 1 + rbp_spill_shared->first_slot)
#define SLOT_VALUE(slot)	((slot) - rbp_spill_shared->first_slot + 1)

#define NO_SLOT			UINT32_MAX
#define NO_BLOCK		UINT32_MAX

/* Staging pages that are filled and sent together. */
#define CHUNK_PAGES		16

/*
 * A block as the table had it when its file was locked.  It may have moved since,
 * which its value and its hash tell.
 */
typedef struct RbpSpilledBlock
{
	RbpSpillHandle handle;
	uint32		block;
	uint32		value;			/* a staging page, or the first copy's slot */
	uint32		slot;			/* the first copy's, to which a staged block
								 * is on its way */
	uint32		mirror;			/* the second copy's, or NO_SLOT */
	uint64		hash;
} RbpSpilledBlock;

/* What a slot holds, by slot number; written under its file's lock. */
typedef struct RbpSpillSlotInfo
{
	uint64		hash;			/* hash of the content, for a first copy */
	RbpSpillHandle handle;
	uint32		block;
	uint32		mirror;			/* the second copy's slot, or NO_SLOT */
	int			donor;			/* the slot's donor at that time: for messages */
	uint32		next;			/* block written to the file after this one,
								 * or NO_BLOCK; a hint for read-ahead */
} RbpSpillSlotInfo;

typedef struct RbpSpillShared
{
	uint32		first_slot;
	uint32		nchunks;		/* chunks of staging pages */

	/* the other parts, at the same address in all processes */
	char	   *pages;			/* nchunks * CHUNK_PAGES */
	pg_atomic_flag *chunk_used; /* for each chunk */
	RbpSpillSlotInfo *slots;
} RbpSpillShared;

/*
 * Shared memory, with rbp_spill_slots and rbp_spill_table; NULL until it is
 * attached, and after it is detached.
 */
extern RbpSpillShared *rbp_spill_shared;

static inline char *
staging_page(uint32 page)
{
	return rbp_spill_shared->pages + (Size) page * BLCKSZ;
}

static inline RbpSpillSlotInfo *
slot_info(uint32 slot)
{
	return &rbp_spill_shared->slots[slot - rbp_spill_shared->first_slot];
}

/*
 * Is shared memory attached, and may this process take its locks, for which it
 * needs a PGPROC?
 */
static inline bool
attached(void)
{
	return rbp_spill_shared != NULL && UsedShmemSegAddr != NULL && MyProc != NULL;
}

/*
 * ---- files.c -----------------------------------------------------------
 */

struct RbpSpillOpen
{
	RbpSpillHandle handle;		/* RBP_SPILL_NO_FILE until the entry is found */
	bool		relation;
	bool		writable;
	int64		not_found;		/* the table's count of created entries when
								 * the last look-up found none; as long as it
								 * is that, there is none.  -1: not known */
	int			file_system;	/* its number + 1; 0: not known yet */
	char		name[RBP_SPILL_NAME_LEN];
};

/* May blocks of this file go to donors, by the settings? */
static inline bool
spill_enabled(const RbpSpillOpen *o)
{
	return o->relation ? rbp_guc_spill_temp_tables : rbp_guc_spill_temp_files;
}

/*
 * Find the entry of the descriptor's file.  False if it has none, or if this
 * process may not use it.
 */
extern bool rbp_spill_open_lookup(RbpSpillOpen *o);

/* Create an entry for the file. fd is its descriptor, or -1 if it is new. */
extern bool rbp_spill_open_create(RbpSpillOpen *o, int fd);

/* Record that the file has at least this size.  False if its entry is gone. */
extern bool rbp_spill_open_extend(RbpSpillOpen *o, off_t size);

/* Lock the file.  NULL, with EIO, if its entry is gone. */
extern RbpSpillFile *rbp_spill_open_lock(RbpSpillOpen *o, bool exclusive);

/*
 * ---- lost.c ------------------------------------------------------------
 */

/* Set if this transaction has sent blocks or lost some. */
extern bool rbp_spill_used_in_xact;

/*
 * A block is lost, and the current call fails with EIO.  The error that
 * rbp_spill_call_failed() raises then says so in these words.  Where none can
 * be raised, so do the log and the context of the server's error.
 */
extern void rbp_spill_block_lost(const char *name, const char *hint,
								 const char *format,...) pg_attribute_printf(3, 4);

/* Called by the postmaster. */
extern void rbp_spill_install_log_hook(void);

/* Is this the first lost block of the transaction that the log is told of? */
extern bool rbp_spill_lost_first(void);

/* The transaction has ended: what comes now is not of a block lost in it. */
extern void rbp_spill_forget_lost(void);

/*
 * ---- cost.c ------------------------------------------------------------
 */

/* Temporary data is on a donor, in that slot. */
extern void rbp_spill_cost_slot(uint32 slot);

/*
 * A whole block of a temporary file was read or written, which began at that time;
 * 0: it is not measured.  Preserves errno.
 */
extern void rbp_spill_cost_end(int fs, bool donor, bool write, int64 started);

/*
 * Should the next block go to the file, as the cheaper target or as a trial?
 */
extern bool rbp_spill_prefer_file(int fs);

/* The file did not take a block: use donors for a while. */
extern void rbp_spill_file_refused(void);

/*
 * Log where blocks go, when that has changed.  Called by the pusher. now:
 * rbp_now_ns().
 */
extern void rbp_spill_cost_report(int64 now);

/*
 * ---- blocks.c ----------------------------------------------------------
 */

/*
 * Lock the block's file.  NULL if the block has moved, or if the lock is not to
 * be waited for and not free.
 */
extern RbpSpillFile *rbp_spill_lock_block(const RbpSpilledBlock *b, bool exclusive,
										  bool wait);

/*
 * Set the block's value, and release what the old one stands for.  False, with
 * nothing changed, if there is no node for it, where the block had no value.
 * File locked exclusively.
 */
extern bool rbp_spill_set_value(RbpSpillFile *file, uint32 block, uint32 value);

/*
 * The content of the slots (mirror: NO_SLOT for none) has arrived.  Does their
 * memory stay?  If not, what was read from there later may be gone.
 */
extern bool rbp_spill_fill(uint32 slot, uint32 mirror);

/*
 * Record that the block is in this slot now, which is filled, by setting its
 * value.
 */
extern bool rbp_spill_install(RbpSpillFile *file, uint32 block, uint32 slot,
							  uint32 mirror, uint64 hash);

/*
 * Write the block from data to the real file and drop its old value.  False,
 * with errno, if the write failed; nothing has changed then.  File locked
 * exclusively.
 */
extern bool rbp_spill_to_real_file(RbpSpillFile *file, uint32 block, const char *data);

/*
 * Take a slot for the file's next block, and if mirror is not NULL one on
 * another donor.  False if there is no room.  File locked exclusively.
 */
extern bool rbp_spill_take_slots(RbpSpillFile *file, uint32 *slot,
								 uint32 *mirror);

/* Remove the file's entry.  No lock held. */
extern void rbp_spill_forget_handle(RbpSpillHandle handle);

/* Remove the values of all blocks from first on.  File locked exclusively. */
extern void rbp_spill_drop_tail(RbpSpillFile *file, uint32 first);

/*
 * Free the reserved slots of the file whose memory takes no blocks now.
 * File locked exclusively.
 */
extern void rbp_spill_free_useless(RbpSpillFile *file);

/*
 * ---- write.c -----------------------------------------------------------
 */

/*
 * Send a whole block to donors, replacing what was there.  The file is at
 * least size bytes long afterwards.  False, with nothing changed, if there is no
 * room, or if the file's entry is gone.
 */
extern bool rbp_spill_put(RbpSpillHandle handle, uint32 block, const char *data,
						  int64 size);

/*
 * Write the block, of which this is the content, to other slots, and wait.  False
 * if there are none, or if the write fails.  True also if the block has moved.
 * evacuate: for the lease worker, to whom a locked file is as one whose block has
 * moved.
 */
extern bool rbp_spill_move(const RbpSpilledBlock *b, const char *data, bool evacuate,
						   int64 deadline_ns);

/*
 * Send what is staged, and wait for everything on its way.  What does not
 * arrive in time goes to the real files. urgent: the query has ended, and a wait
 * cannot be interrupted: it is short.
 */
extern void rbp_spill_flush(bool urgent);

/*
 * ---- read.c ------------------------------------------------------------
 */

/*
 * Read n bytes from offset start of the block. relation: it belongs to a
 * temporary relation, and not to a file that is read sequentially.  Returns 1
 * if done, 0 if the block has moved and must be looked up again, -1 if it
 * cannot be read (of which rbp_spill_block_lost() was told), or
 * RBP_SPILL_INTERRUPTED if the query was canceled and the error can be raised
 * here.
 */
#define RBP_SPILL_INTERRUPTED	(-2)

extern int	rbp_spill_fetch(const RbpSpilledBlock *b, bool relation, uint32 start,
							uint32 n, char *buf);

/*
 * Read the whole block, from either copy, retrying until deadline_ns. page:
 * BLCKSZ bytes.  Returns false if it cannot be read; the block may have moved.
 * *reason is then why, for messages; NULL if the query was canceled.
 */
extern bool rbp_spill_fetch_page(const RbpSpilledBlock *b, int64 deadline_ns,
								 char *page, const char **reason);

/* How long to wait for a donor where there is an alternative. */
extern int64 rbp_spill_short_wait(void);

#endif							/* RBP_SPILL_INTERNAL_H */
