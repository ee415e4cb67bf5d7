/*-------------------------------------------------------------------------
 *
 * table.h
 *	  Table in shared memory of the temporary files that have blocks elsewhere
 *	  than in the real file: by name, with a map from block to 32-bit value.
 *
 * A value tells the place of a block: a slot or a staging page.  Its encoding
 * is up to the caller; 0 is "no value": the block is in the real file.  The map
 * of a file is a radix tree whose nodes (64 values) come from a shared pool,
 * and return to it as soon as they are empty.  No other memory is allocated by
 * lookups and changes.  When files or nodes run out the caller is told, and
 * leaves the block in the real file.
 *
 * Locks: one for the names (find, create, remove, scan), one in each file, and
 * one for the pool of nodes.  Order: names, file, pool.  A file is locked
 * through its handle, which tells whether it is still the same file.
 *
 * This file knows nothing of donors or PostgreSQL (except base/lock.h).
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SPILL_TABLE_H
#define RBP_SPILL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/geometry.h"

#define RBP_SPILL_NO_FILE	UINT32_MAX

/* The table; NULL until it is initialized. */
typedef struct RbpSpillTable RbpSpillTable;

extern RbpSpillTable *rbp_spill_table;

/* Identifies a file for as long as it lives; may be copied freely. */
typedef struct RbpSpillHandle
{
	uint32_t	index;			/* RBP_SPILL_NO_FILE: no file */
	uint32_t	serial;			/* different for each file with the same index */
} RbpSpillHandle;

/* Adjacent slots: the first one, and how many they are */
typedef struct RbpSpillRun
{
	uint32_t	next;
	uint32_t	left;
} RbpSpillRun;

/*
 * A file.  All but its name is the caller's, protected by the file's lock, and
 * zero when the file is created, except as noted.
 */
typedef struct RbpSpillFile
{
	char		name[RBP_SPILL_NAME_LEN];
	int64_t		size;			/* bytes, as users see it */
	RbpSpillRun run;			/* reserved for the next blocks */
	RbpSpillRun mirror_run;		/* and for their second copies */
	uint32_t	run_len;		/* length of the last reservation */
	uint32_t	last_block;		/* the block written last */
	uint32_t	last_value;		/* its value, once it is in its slot; 0: no
								 * block was written yet */
	uint32_t	slot_blocks;	/* blocks on donors */
	uint32_t	staged_blocks;	/* blocks in staging */
	uint32_t	mirrored_blocks;
	int32_t		owner;			/* PID of the creator */
	bool		relation;		/* is a temporary relation */
} RbpSpillFile;

extern size_t rbp_spill_table_size(uint32_t nfiles, uint32_t nnodes);

/* mem: aligned to a cache line.  The pool's lock uses names_tranche. */
extern void rbp_spill_table_init(void *mem, uint32_t nfiles,
								 uint32_t nnodes, int names_tranche,
								 int file_tranche);

/* Find the file of that name; false if there is none. */
extern bool rbp_spill_table_find(const char *name,
								 RbpSpillHandle *handle);

/*
 * Find the file of that name, or create it, with the given initial state;
 * *created tells which.  False if there is no room, or the name is too long.
 */
extern bool rbp_spill_table_create(const char *name,
								   const RbpSpillFile *initial,
								   RbpSpillHandle *handle, bool *created);

/* Number of files.  Takes no lock. */
extern uint32_t rbp_spill_table_files(void);

/*
 * Number of files ever created, modulo 2^32.  Takes no lock.  A name that was
 * not found after reading this does not exist while the number stays the same.
 */
extern uint32_t rbp_spill_table_created(void);

/*
 * Lock a file; NULL if it is gone.  The caller may use the file until
 * rbp_spill_file_unlock().
 *
 * wait: if not, NULL also if the lock is not available at once.  For callers
 * that must not wait for a disk: the lock is held while a block of the file is
 * written to its real file.
 */
extern RbpSpillFile *rbp_spill_file_lock(RbpSpillHandle handle, bool exclusive, bool wait);
extern void rbp_spill_file_unlock(RbpSpillFile *file);
extern RbpSpillHandle rbp_spill_file_handle(const RbpSpillFile *file);

/* The block's value, 0 if it has none.  File locked, at least shared. */
extern uint32_t rbp_spill_block_get(const RbpSpillFile *file,
									uint32_t block);

/*
 * Set the block's value; 0 removes it.  False, with nothing changed, if a node
 * is needed and there is none, which cannot happen for 0 or when a value is
 * replaced.  File locked exclusively.
 */
extern bool rbp_spill_block_set(RbpSpillFile *file,
								uint32_t block, uint32_t value);

typedef void (*RbpSpillVisit) (RbpSpillFile *file, uint32_t block,
							   uint32_t value, void *arg);

/*
 * Remove all values from block first on, calling visit for each in order of
 * blocks, and free their nodes.  File locked exclusively.
 */
extern void rbp_spill_file_truncate(RbpSpillFile *file,
									uint32_t first, RbpSpillVisit visit, void *arg);

/*
 * Remove the file: the name is free at once, handles become invalid.  Under
 * the file's lock, finish is called for each value like visit above, and then
 * with block UINT32_MAX and value 0, for the state.  False if the file was
 * already gone.  The caller must hold no lock of the table.
 */
extern bool rbp_spill_table_remove(RbpSpillHandle handle,
								   RbpSpillVisit finish, void *arg);

/*
 * The first live file at or after index; false at the end.  For scans of all
 * files that hold no lock for long.
 */
extern bool rbp_spill_table_next(uint32_t index,
								 RbpSpillHandle *handle);

#endif							/* RBP_SPILL_TABLE_H */
