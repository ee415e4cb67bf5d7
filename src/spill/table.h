/*-------------------------------------------------------------------------
 *
 * table.h
 *	  Temporary files that have blocks elsewhere than in the real file: by
 *	  name, with a map from block to a 32-bit value, in shared memory.
 *
 * What a value means is the caller's affair; 0 is "no entry": the block is in
 * the real file.  The map of a file is a radix tree whose nodes (64 values)
 * come from a shared pool, and go back to it as soon as they are empty.
 * Neither lookups nor changes allocate memory otherwise; when files or nodes
 * run out the caller is told, and leaves the block in the real file.
 *
 * Locks: one for the names (find, create, remove, list), one in each file,
 * one for the pool of nodes.  Order: names, file, pool.  A file is locked
 * through its handle, which tells whether it is still the same file.
 *
 * Knows nothing of donors or PostgreSQL (base/lock.h apart).
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SPILL_TABLE_H
#define RBP_SPILL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RBP_SPILL_NO_FILE	UINT32_MAX
#define RBP_SPILL_NO_PAGE	UINT32_MAX

typedef struct RbpSpillTable RbpSpillTable;

/* Names a file as long as it lives; to be copied freely. */
typedef struct RbpSpillHandle
{
	uint32_t	index;			/* RBP_SPILL_NO_FILE: no file */
	uint32_t	serial;			/* another one for each file in that place */
} RbpSpillHandle;

/*
 * What the caller keeps about a file: under its lock.  Zero when the file is
 * created, except as noted.
 */
typedef struct RbpSpillFileState
{
	int64_t		size;			/* bytes, as users are to see it */
	uint32_t	open_page;		/* staging page of the block that is being
								 * filled; RBP_SPILL_NO_PAGE at first */
	uint32_t	open_block;
	uint32_t	run_next;		/* slots reserved for the next blocks */
	uint32_t	run_left;
	uint32_t	run_len;		/* of the last reservation */
	uint32_t	mirror_next;	/* the same for second copies */
	uint32_t	mirror_left;
	uint32_t	last_block;		/* that was written, and the value it got or
								 * is to get; 0: none */
	uint32_t	last_value;
	uint32_t	slot_blocks;	/* blocks on donors */
	uint32_t	staged_blocks;	/* blocks in staging */
	uint32_t	mirrored_blocks;
	int32_t		owner;			/* pid of who created it */
	bool		relation;		/* of a temporary relation */
} RbpSpillFileState;

typedef struct RbpSpillFile RbpSpillFile;

extern size_t rbp_spill_table_size(uint32_t nfiles, uint32_t nnodes);

/* mem: cache-line aligned.  The pool's lock has the names' tranche. */
extern RbpSpillTable *rbp_spill_table_init(void *mem, uint32_t nfiles,
										   uint32_t nnodes, int names_tranche,
										   int file_tranche);

/* The file of that name; false if there is none. */
extern bool rbp_spill_table_find(RbpSpillTable *t, const char *name,
								 RbpSpillHandle *handle);

/*
 * The same, and create it if there is none; *created tells, and its state is
 * then as initial.  False if there is no room, or the name is too long.
 */
extern bool rbp_spill_table_create(RbpSpillTable *t, const char *name,
								   const RbpSpillFileState *initial,
								   RbpSpillHandle *handle, bool *created);

/* Any files at all?  No lock. */
extern uint32_t rbp_spill_table_files(const RbpSpillTable *t);

/*
 * Files that were ever created, modulo 2^32.  No lock.  A name that was not found after
 * this was read is not there while it stays the same.
 */
extern uint32_t rbp_spill_table_created(const RbpSpillTable *t);

/*
 * Lock a file; NULL if it is gone.  The state is the caller's until
 * rbp_spill_file_unlock().
 */
extern RbpSpillFile *rbp_spill_file_lock(RbpSpillTable *t,
										 RbpSpillHandle handle,
										 bool exclusive);

/*
 * Likewise, but NULL, too, if somebody has it: for who may not wait for a disk, since
 * the lock is held while a block of the file goes to its real file.
 */
extern RbpSpillFile *rbp_spill_file_trylock(RbpSpillTable *t,
											RbpSpillHandle handle, bool exclusive);
extern void rbp_spill_file_unlock(RbpSpillTable *t, RbpSpillFile *file);
extern RbpSpillFileState *rbp_spill_file_state(RbpSpillFile *file);
extern const char *rbp_spill_file_name(const RbpSpillFile *file);
extern RbpSpillHandle rbp_spill_file_handle(RbpSpillTable *t,
											const RbpSpillFile *file);

/* The block's value, 0 if it has none.  File locked, shared will do. */
extern uint32_t rbp_spill_block_get(RbpSpillTable *t, RbpSpillFile *file,
									uint32_t block);

/*
 * Set it; 0 removes it.  False, with nothing changed, if a node is wanted
 * and there is none (never when a value replaces another, or for 0).  File
 * locked exclusively.
 */
extern bool rbp_spill_block_set(RbpSpillTable *t, RbpSpillFile *file,
								uint32_t block, uint32_t value);

typedef void (*RbpSpillVisit) (RbpSpillFile *file, uint32_t block,
							   uint32_t value, void *arg);

/*
 * Remove all values from block first on, calling visit for each (in order of
 * blocks), and give their nodes back.  File locked exclusively.
 */
extern void rbp_spill_file_truncate(RbpSpillTable *t, RbpSpillFile *file,
									uint32_t first, RbpSpillVisit visit, void *arg);

/*
 * Forget the file: the name is free at once, handles are void.  Under the
 * file's lock, finish is called with each value as by rbp_spill_file_truncate(),
 * and then, block UINT32_MAX and value 0, for the state.  False if it was
 * gone.  No lock held.
 */
extern bool rbp_spill_table_remove(RbpSpillTable *t, RbpSpillHandle handle,
								   RbpSpillVisit finish, void *arg);

/*
 * The live file at index or the next one after it, for walks over all files
 * that hold no lock for long; false at the end.
 */
extern bool rbp_spill_table_next(RbpSpillTable *t, uint32_t index,
								 RbpSpillHandle *handle);

#endif							/* RBP_SPILL_TABLE_H */
