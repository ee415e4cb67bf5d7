/*-------------------------------------------------------------------------
 *
 * spill_internal.h
 *	  What the files of spill know of each other.
 *
 * files.c		descriptors, entries, sizes, truncation, removal
 * file_io.c	calls that read and write, block by block
 * blocks.c		reserving slots for a file, replacing a block's place
 * write.c		blocks on their way to donors: staging and batches
 * read.c		blocks from donors: read-ahead, checks, second copies
 * cost.c		files or donors: where a block costs less
 * upkeep.c		evacuation, files whose owner is gone, the views
 * setup.c		shared memory, ends of transactions, remote's questions
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
#include "spill/slots.h"
#include "spill/spill.h"
#include "spill/table.h"
#include "common/status.h"

/*
 * The value of a block in rbp_spill_table: nothing, a staging page, or a slot,
 * counted from the temp quota's first one.
 */
#define VALUE_NONE		0
#define VALUE_STAGED	UINT32_C(0x80000000)
#define VALUE_LOST		UINT32_C(0x7fffffff)	/* it could be written nowhere */

#define IS_STAGED(value)	(((value) & VALUE_STAGED) != 0)
#define STAGED_PAGE(value)	((value) & ~VALUE_STAGED)
#define IS_SLOT(value)		((value) != VALUE_NONE && (value) < VALUE_LOST)
#define VALUE_SLOT(value)	((value) - 1 + rbp_spill_shared->first_slot)
#define SLOT_VALUE(slot)	((slot) - rbp_spill_shared->first_slot + 1)

#define NO_SLOT			UINT32_MAX
#define NO_BLOCK		UINT32_MAX

/* Staging pages that are filled and sent together. */
#define CHUNK_PAGES		16

/* What a slot holds; written under its file's lock, by slot number. */
typedef struct RbpSpillSlotInfo
{
	uint64		hash;			/* of the content; of a first copy only */
	uint32		file;			/* index in the table */
	uint32		block;
	uint32		mirror;			/* the second copy's slot, or NO_SLOT */
	int			donor;			/* whose it was then: for messages */
	uint32		next;			/* block that was written to the file next, or
								 * NO_BLOCK; a hint for reading ahead */
} RbpSpillSlotInfo;

/* See cost.c.  [1] is of writes, [0] of reads. */
typedef struct RbpSpillCosts
{
	pg_atomic_uint32 average[RBP_SPILL_TARGETS][2]; /* ns; 0: not known */
	pg_atomic_uint32 nmeasured[RBP_SPILL_TARGETS][2];	/* up to a limit */
	pg_atomic_uint64 group[RBP_SPILL_TARGETS][2];	/* since the last mean:
													 * the sum in ns, and how
													 * many */
	pg_atomic_uint64 sampled_at;
} RbpSpillCosts;

typedef struct RbpSpillShared
{
	uint32		first_slot;
	uint32		nopen;			/* staging pages for blocks being filled */
	uint32		nchunks;		/* of staging pages for blocks on their way */

	/* where the rest is, in this process as in all */
	char	   *pages;			/* nopen + nchunks * CHUNK_PAGES */
	bool	   *dropped;		/* for each: its block has moved on; under the
								 * file's lock while the page is in use */
	pg_atomic_uint64 *open_free;	/* bitmaps */
	pg_atomic_uint64 *chunk_free;
	RbpSpillSlotInfo *slots;
	pg_atomic_uint32 *pending;	/* by extent: used slots whose content is in
								 * staging still */
	RbpSpillCosts *costs;
} RbpSpillShared;

/* Attached shared memory; NULL before and after. */
extern RbpSpillSlots *rbp_spill_slots;
extern RbpSpillTable *rbp_spill_table;

extern RbpSpillShared *rbp_spill_shared;

/* This process has sent blocks or read ahead since its last transaction. */
extern bool rbp_spill_used_in_xact;

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

/* Where an extent's count is. */
static inline pg_atomic_uint32 *
pending_counter(uint32 slot)
{
	return &rbp_spill_shared->pending[(slot - rbp_spill_shared->first_slot) /
									  RBP_EXTENT_PAGES];
}

/*
 * Used slots of the extent that have the only copy of something.  "used" is
 * read first: what comes to its end between the two looks is counted then,
 * also if its slot was given back; of an extent that drains it is never too
 * few.
 */
static inline uint32
rbp_spill_extent_blocks(uint32 extent)
{
	uint32		used = rbp_spill_slots_extent_used(rbp_spill_slots, extent);
	uint32		pending;

	pg_memory_barrier();
	pending = pg_atomic_read_u32(pending_counter(RBP_EXTENT_SLOT(extent)));

	return used > pending ? used - pending : 0;
}

/* May this process use any of it? */
static inline bool
attached(void)
{
	return rbp_spill_shared != NULL && UsedShmemSegAddr != NULL && MyProc != NULL;
}

/*
 * ---- files.c ------------------------------------------------------------
 */

struct RbpSpillOpen
{
	RbpSpillHandle handle;		/* RBP_SPILL_NO_FILE until it is known */
	bool		relation;
	bool		writable;
	bool		not_found;		/* it had no entry when so many were created: */
	uint32		created;
	char		name[RBP_SPILL_NAME_LEN];
};

/* Do the settings let blocks of it go to donors? */
static inline bool
spill_enabled(const RbpSpillOpen *o)
{
	return o->relation ? rbp_guc_spill_temp_tables : rbp_guc_spill_temp_files;
}

/* Has the descriptor's file an entry?  Then this process may use it. */
extern bool rbp_spill_open_lookup(RbpSpillOpen *o);

/* Give the file, of which fd is a descriptor (-1: it is new), an entry. */
extern bool rbp_spill_open_create(RbpSpillOpen *o, int fd);

/* The file is at least so large.  False if it is gone. */
extern bool rbp_spill_open_extend(RbpSpillOpen *o, off_t size);

/* Lock the file; NULL, with EIO, if it is gone.  And let go of it. */
extern RbpSpillFile *rbp_spill_open_lock(RbpSpillOpen *o, bool exclusive);

static inline void
unlock_file(RbpSpillFile *file)
{
	rbp_spill_file_unlock(rbp_spill_table, file);
}

/*
 * ---- file_io.c ------------------------------------------------------------
 */

/* Read bytes within one block; how many there are, or -1 with errno. */
extern ssize_t rbp_spill_read_part(RbpSpillOpen *o, int fd, char *buf, size_t len,
								   off_t offset);

/*
 * The file call in hand fails with EIO, because a block of that file is lost:
 * how that came about, for rbp_spill_call_failed().
 */
extern void rbp_spill_set_lost_reason(const char *name, const char *format,...) pg_attribute_printf(2, 3);

/*
 * ---- cost.c -------------------------------------------------------
 */

extern void rbp_spill_cost_shmem_init(RbpSpillCosts *costs);

/*
 * Around a read or a write of a whole block of a temporary file: begin() says when it
 * was, or 0 for those that are not measured.  end() leaves errno as it is.
 */
extern int64 rbp_spill_cost_begin(RbpSpillTarget target, bool write);
extern void rbp_spill_cost_end(RbpSpillTarget target, bool write, int64 started);

/* Is the next block to be written to the file, since that costs less, or to see? */
extern bool rbp_spill_prefer_file(void);

/* The file did not take it: blocks go to donors for a while. */
extern void rbp_spill_file_refused(void);

/* Log where blocks go, when that has changed.  For the pusher.  now: rbp_now_ns(). */
extern void rbp_spill_cost_report(int64 now);

/*
 * ---- blocks.c -----------------------------------------------------------
 */

/*
 * A block's value is about to be replaced, or its file to go: give back what
 * the value stands for.  File locked exclusively.
 */
extern void rbp_spill_drop_value(RbpSpillFile *file, uint32 value);

/* The block is in this slot now.  File locked exclusively, value set by this. */
extern void rbp_spill_install(RbpSpillFile *file, uint32 block, uint32 slot,
							  uint32 mirror, uint64 hash);

/*
 * The block goes to the real file, from data, and the old value is dropped;
 * *fd caches the descriptor (-1: none yet; the caller closes it).  False, with
 * errno, if that failed: then nothing has changed.  File locked exclusively.
 */
extern bool rbp_spill_to_real_file(RbpSpillFile *file, uint32 block,
								   const char *data, int *fd);

/*
 * A slot, and one on another donor if mirror is not NULL, for the file's next
 * block.  False if there is no room.  File locked exclusively.
 */
extern bool rbp_spill_take_slots(RbpSpillFile *file, uint32 *slot,
								 uint32 *mirror);

/* The file is gone.  No lock held. */
extern void rbp_spill_forget_handle(RbpSpillHandle handle);

/* Remove the values of all blocks from first on.  File locked exclusively. */
extern void rbp_spill_drop_tail(RbpSpillFile *file, uint32 first);

/* Give the rest of the file's reserved slots back.  Locked exclusively. */
extern void rbp_spill_release_runs(RbpSpillFileState *st);

/*
 * ---- write.c --------------------------------------------------------
 */

/* Take one of n bits that is set; -1 if none is.  And give it back. */
extern int	rbp_spill_bitmap_take(pg_atomic_uint64 *words, uint32 n);
extern void rbp_spill_bitmap_put(pg_atomic_uint64 *words, uint32 bit);

typedef enum RbpSpillPutResult
{
	RBP_SPILL_PUT_DONE,
	RBP_SPILL_PUT_NO_ROOM,		/* the caller writes it to the real file */
	RBP_SPILL_PUT_GONE			/* there is no such file any more */
} RbpSpillPutResult;

/*
 * Send a whole block to donors; it replaces what was there, and the file is
 * at least size bytes long then.
 */
extern RbpSpillPutResult rbp_spill_put(RbpSpillHandle handle, uint32 block,
									   const char *data, int64 size);

/*
 * Send what is staged, and wait for all that is on its way; what does not
 * arrive soon goes to the real files.  hurry: very soon (RBP_SPILL_URGENT_NS).
 */
extern void rbp_spill_flush(bool urgent);

/*
 * How long to wait where the query has ended and nothing could interrupt the
 * wait.
 */
#define RBP_SPILL_URGENT_NS		INT64CONST(50000000)

/*
 * Give back a slot whose content nobody wants.  If its write may still come,
 * as the status tells, it rests in quarantine.
 */
extern void rbp_spill_free_slot(uint32 slot, RbpStatus status);

/*
 * ---- read.c -----------------------------------------------------------
 */

/*
 * A block that donors have, as the table had it when its file was locked: it may
 * have moved since.
 */
typedef struct RbpSpilledBlock
{
	RbpSpillHandle handle;
	uint32		block;
	uint32		slot;			/* the first copy's */
	uint32		mirror;			/* the second one's, or NO_SLOT */
	uint64		hash;
} RbpSpilledBlock;

/*
 * Read n bytes from start of the block; relation: of a temporary relation, and not
 * of a file that is read from one end to the other.  1: done; 0: the block has
 * moved meanwhile, look again; -1: it cannot be had (logged, and noted by
 * rbp_spill_set_lost_reason()); RBP_SPILL_INTERRUPTED: the query is to end, which can be
 * raised here.
 */
#define RBP_SPILL_INTERRUPTED	(-2)

extern int	rbp_spill_fetch(const RbpSpilledBlock *b, bool relation, uint32 start,
							uint32 n, char *buf);

/*
 * One copy, or the other, of the whole block, whatever it takes; until
 * deadline_ns.  page: BLCKSZ bytes.  NULL, or why it cannot be had:
 * rbp_spill_interrupted (that very pointer), or a reason for messages; the
 * block may have moved.
 */
extern const char rbp_spill_interrupted[];

extern const char *rbp_spill_fetch_page(const RbpSpilledBlock *b, int64 deadline_ns,
										char *page);

/* How long to wait for a donor where something else can be done. */
extern int64 rbp_spill_short_wait(void);

/* Forget what was read ahead. */
extern void rbp_spill_end_read_ahead(void);

/*
 * ---- for the view --------------------------------------------------------------------
 */

typedef struct RbpSpillFileInfo
{
	char		name[RBP_SPILL_NAME_LEN];
	int			owner;
	bool		relation;
	int64		size;
	int64		remote_bytes;
	int64		staged_bytes;
	int64		mirrored_bytes;
} RbpSpillFileInfo;

/* A palloc'd array, and its length. */
extern RbpSpillFileInfo *rbp_spill_file_info(int *n);

#endif							/* RBP_SPILL_INTERNAL_H */
