/*-------------------------------------------------------------------------
 *
 * write.c
 *	  Writing temporary blocks to donors.
 *
 * Where a write is a copy within this host (shm), it is done at once, from the
 * caller's buffer.  Over a network that would take a round trip, so blocks are
 * batched: a process takes a chunk of staging pages, copies blocks into it,
 * and submits the chunk as one batch when it is full, while the query
 * continues.  Up to MAX_CHUNKS chunks are in use; to get another one, the
 * process waits for the oldest.  If there is no chunk, the block is written
 * synchronously.
 *
 * Life of a staged block: the table says "staging page p" as soon as p has the
 * content, and readers copy from p, under the file's lock.  If the block is
 * written again or truncated, or if its file is removed, the table no longer says
 * p, and the process that has p in a chunk (local) frees its slots when the
 * batch has completed.  If that is so before the chunk is submitted, the page
 * is never sent, so a short-lived file costs no transfer.  When
 * the batch has completed, each block that is still in its page is installed
 * in its slot.  A block whose memory is going away, or gone, is written to
 * other slots.  A block with a failed write goes from the page to the real
 * file; if that fails, too, and one of two copies has arrived, that one is
 * installed alone; else the block is marked lost.
 *
 * Chunks are completed at the end of each transaction and process, so that
 * blocks do not stay staged; until then only their owner can send them.
 *
 * Every wait here ends when the query is canceled: blocks that have not arrived
 * then go to the real file.  In an aborting transaction, and in a process that
 * exits, waits cannot be interrupted once more, so they are short.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/geometry.h"
#include "base/guc.h"
#include "base/hash.h"
#include "base/process.h"
#include "base/stats.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"
#include "spill/slots.h"
#include "spill/spill_internal.h"
#include "spill/table.h"

#define MAX_CHUNKS			4

/*
 * A late write can be replaced by one to the real file, so the wait is shorter
 * than that for a read; but it is longer than for a page of the buffer tier,
 * since giving up causes more work.
 */
#define WRITE_TIMEOUT_FACTOR	10
#define WRITE_TIMEOUT_LEAST		INT64CONST(500000000)

/*
 * The longest wait when the query has ended, and the wait could not be
 * interrupted.
 */
#define URGENT_NS				INT64CONST(50000000)

StaticAssertDecl(2 * CHUNK_PAGES <= RBP_MAX_BATCH,
				 "a chunk and its second copies are one batch");

#define shared		rbp_spill_shared

/* A chunk that is being filled or sent. */
typedef struct SendChunk
{
	uint32		number;
	int			n;
	RbpRemoteBatch *batch;		/* NULL: nothing to wait for; all ios have
								 * their status */
	RbpSpilledBlock blocks[CHUNK_PAGES];
	RbpRemoteIo ios[2 * CHUNK_PAGES];	/* of each block, to both slots */
} SendChunk;

/* A block that could not be written anywhere. */
typedef struct LostBlock
{
	uint32		block;
	int			error;			/* errno of writing the real file; 0: none is */
	char		name[RBP_SPILL_NAME_LEN];
} LostBlock;

/* A ring */
static SendChunk chunks[MAX_CHUNKS];
static int	oldest = 0;
static int	num_chunks = 0;
static SendChunk *filling = NULL;	/* the newest, until it is submitted */

/*
 * ---- chunks ------------------------------------------------------------
 */

/* Take a chunk of staging pages.  Returns its number; -1 if there is none. */
static int
take_chunk(void)
{
	for (uint32 i = 0; i < shared->nchunks; i++)
	{
		uint32		number = ((uint32) MyProcPid + i) % shared->nchunks;

		if (pg_atomic_unlocked_test_flag(&shared->chunk_used[number]) &&
			pg_atomic_test_set_flag(&shared->chunk_used[number]))
			return (int) number;
	}
	return -1;
}

/*
 * ---- completing writes -------------------------------------------------
 */

static int64
write_deadline(int64 now, bool urgent)
{
	return now + (urgent ? URGENT_NS :
				  Max(rbp_guc_io_timeout_ns() * WRITE_TIMEOUT_FACTOR, WRITE_TIMEOUT_LEAST));
}

/*
 * Free a slot whose content is not needed.  If the status says that its write
 * may still arrive, the slot goes into quarantine.
 */
static void
free_slot(uint32 slot, RbpStatus status)
{
	if (slot == NO_SLOT)
		return;
	if (status == RBP_OK || status == RBP_DENIED || status == RBP_CANCELED)
		rbp_spill_slots_free(slot, 1);
	else
		rbp_spill_slots_quarantine(slot, rbp_now_ns());
}

static void
free_slots(uint32 slot, uint32 mirror)
{
	free_slot(slot, RBP_OK);
	free_slot(mirror, RBP_OK);
}

/*
 * Write the page to its slots (mirror: NO_SLOT for none), and wait.  On failure
 * the slots are freed.
 */
static bool
write_slots(const char *data, uint32 slot, uint32 mirror, int64 deadline_ns)
{
	RbpRemoteIo ios[2];

	ios[0].slot = slot;
	ios[0].buf = unconstify(char *, data);
	ios[1].slot = mirror;
	ios[1].buf = unconstify(char *, data);
	ios[1].status = RBP_OK;
	rbp_remote_transfer(ios, mirror == NO_SLOT ? 1 : 2, true, rbp_now_ns(), deadline_ns);
	if (ios[0].status == RBP_OK && ios[1].status == RBP_OK)
		return true;
	free_slot(slot, ios[0].status);
	free_slot(mirror, ios[1].status);
	return false;
}

/*
 * Install the block where it has arrived: in both slots or in one of them,
 * which may be the second one.  File locked exclusively.
 */
static void
install_arrived(RbpSpillFile *file, const RbpSpilledBlock *b, RbpStatus first,
				RbpStatus second)
{
	if (first == RBP_OK)
	{
		(void) rbp_spill_install(file, b->block, b->slot, second == RBP_OK ? b->mirror : NO_SLOT, b->hash);
		return;
	}
	slot_info(b->mirror)->next = slot_info(b->slot)->next;
	(void) rbp_spill_install(file, b->block, b->mirror, NO_SLOT, b->hash);
}

/*
 * Called without locks, when all else is done, since logging can block.  The
 * client is not told: if it does not read, sending a message to it blocks, and
 * interrupts are held off here.
 */
static void
report_lost_block(const LostBlock *lost)
{
	if (!rbp_spill_lost_first())
		return;
	/* reporting checks for interrupts, which must not end the file call */
	HOLD_INTERRUPTS();
	errno = lost->error;
	ereport(LOG_SERVER_ONLY,
			(errcode_for_file_access(),
			 errmsg("remote_bp: block %u of temporary file \"%s\" is lost: no donor took it, and the file could not be written: %m",
					lost->block, lost->name)));
	RESUME_INTERRUPTS();
}

/*
 * The block's content has arrived in these slots: install it there, with that size of
 * the file, if the file (NULL: it is gone) is locked exclusively, and their memory
 * stays.  Else free them.  Unlocks the file.
 */
static bool
install_written(RbpSpillFile *file, const RbpSpilledBlock *b, uint32 slot, uint32 mirror,
				int64 size, RbpCounter counter)
{
	bool		done = file != NULL && rbp_spill_fill(slot, mirror) &&
	rbp_spill_install(file, b->block, slot, mirror, b->hash);

	if (done)
	{
		file->size = Max(file->size, size);
		rbp_stats_count(counter, 1);
	}
	else
		free_slots(slot, mirror);
	if (file != NULL)
		rbp_spill_file_unlock(file);
	return done;
}

bool
rbp_spill_move(const RbpSpilledBlock *b, const char *data, bool evacuate, int64 deadline_ns)
{
	RbpSpillFile *file = rbp_spill_lock_block(b, true, !evacuate);
	uint32		slot;
	uint32		mirror = NO_SLOT;
	bool		taken;

	if (file == NULL)
		return true;
	taken = rbp_spill_take_slots(file, &slot, b->mirror != NO_SLOT ? &mirror : NULL);
	rbp_spill_file_unlock(file);
	if (!taken || !write_slots(data, slot, mirror, deadline_ns))
		return false;
	file = rbp_spill_lock_block(b, true, !evacuate);
	return install_written(file, b, slot, mirror, 0,
						   evacuate ? RBP_COUNT_SPILL_EVACUATED : RBP_COUNT_SPILL_WRITES) || file == NULL;
}

/* A write may have succeeded earlier, into memory that is gone now. */
static RbpStatus
current_status(uint32 slot, RbpStatus status)
{
	return status == RBP_OK && rbp_remote_slot_donor(slot) < 0 ? RBP_DENIED : status;
}

/* Process one block of a completed batch.  Sets *lost if it is lost. */
static void
complete_page(SendChunk *chunk, int i, int64 deadline_ns, LostBlock *lost)
{
	const RbpSpilledBlock *b = &chunk->blocks[i];
	const char *page = staging_page(STAGED_PAGE(b->value));
	bool		mirrored = b->mirror != NO_SLOT;
	RbpStatus	first = chunk->ios[2 * i].status;
	RbpStatus	second = mirrored ? chunk->ios[2 * i + 1].status : first;
	bool		retained;		/* the memory stays leased */
	bool		installed = false;
	int64		now = rbp_now_ns();
	RbpSpillFile *file;

	retained = rbp_spill_fill(b->slot, b->mirror);
	/* if the whole lease has expired, there are no other slots */
	if (!retained && now < deadline_ns && rbp_remote_usable(RBP_POOL_TEMP, now))
		(void) rbp_spill_move(b, page, false, deadline_ns);

	file = rbp_spill_lock_block(b, true, true);
	if (file != NULL)
	{
		first = current_status(b->slot, first);
		second = mirrored ? current_status(b->mirror, second) : first;
		if ((!retained || first != RBP_OK || second != RBP_OK) &&
			rbp_spill_to_real_file(file, b->block, page))
			rbp_stats_count(RBP_COUNT_SPILL_RESCUED, 1);
		else if (first == RBP_OK || second == RBP_OK)
		{
			/* the disk has not taken it, but a donor has */
			install_arrived(file, b, first, second);
			installed = true;
			rbp_stats_count(RBP_COUNT_SPILL_WRITES, 1);
		}
		else
		{
			lost->block = b->block;
			lost->error = errno;
			strlcpy(lost->name, file->name, sizeof(lost->name));
			(void) rbp_spill_set_value(file, b->block, VALUE_LOST);
		}
		rbp_spill_file_unlock(file);
	}
	if (!installed || first != RBP_OK)
		free_slot(b->slot, first);
	if (!installed || second != RBP_OK)
		free_slot(b->mirror, second);
}

/* Wait for the oldest chunk, and free it. */
static void
complete_oldest(int64 deadline_ns)
{
	SendChunk  *chunk = &chunks[oldest];
	LostBlock	lost = {.error = 0};

	if (chunk->batch != NULL)
		rbp_remote_end(chunk->batch, deadline_ns);
	chunk->batch = NULL;
	/* if a hung donor has used up the time, leave some for others */
	deadline_ns = Max(deadline_ns, rbp_now_ns() + rbp_guc_io_timeout_ns());
	for (int i = 0; i < chunk->n; i++)
		complete_page(chunk, i, deadline_ns, &lost);
	pg_atomic_clear_flag(&shared->chunk_used[chunk->number]);
	chunk->n = 0;
	oldest = (oldest + 1) % MAX_CHUNKS;
	num_chunks--;
	if (lost.error != 0)
		report_lost_block(&lost);
}

/* Submit the chunk that is being filled. */
static void
submit_chunk(bool urgent)
{
	SendChunk  *chunk = filling;
	int64		now = rbp_now_ns();

	filling = NULL;
	for (int i = 0; i < chunk->n; i++)
	{
		const RbpSpilledBlock *b = &chunk->blocks[i];
		RbpSpillFile *file = rbp_spill_lock_block(b, false, true);
		RbpRemoteIo *ios = &chunk->ios[2 * i];

		/* A block that moves after this is sent in vain. */
		ios[0].slot = file != NULL ? b->slot : NO_SLOT;
		ios[1].slot = file != NULL ? b->mirror : NO_SLOT;
		ios[0].buf = ios[1].buf = staging_page(STAGED_PAGE(b->value));
		if (file != NULL)
			rbp_spill_file_unlock(file);
	}
	if (chunk->n > 0)
		chunk->batch = rbp_remote_begin(chunk->ios, 2 * chunk->n, true, 0, now,
										write_deadline(now, urgent));
}

void
rbp_spill_flush(bool urgent)
{
	int64		deadline;

	if (num_chunks == 0 || shared == NULL)
		return;
	if (filling != NULL)
		submit_chunk(urgent);
	deadline = write_deadline(rbp_now_ns(), urgent);
	while (num_chunks > 0)
		complete_oldest(deadline);
}

/* The chunk to fill, or NULL if there is none. */
static SendChunk *
get_chunk(void)
{
	SendChunk  *chunk;
	int			number;

	if (filling != NULL)
		return filling;
	rbp_process_needs_exit();
	while (num_chunks == MAX_CHUNKS || (number = take_chunk()) < 0)
	{
		if (num_chunks == 0)
			return NULL;
		complete_oldest(write_deadline(rbp_now_ns(), false));
	}
	chunk = &chunks[(oldest + num_chunks) % MAX_CHUNKS];
	num_chunks++;
	rbp_spill_used_in_xact = true;
	filling = chunk;
	chunk->number = (uint32) number;
	chunk->n = 0;
	chunk->batch = NULL;
	return chunk;
}

/*
 * ---- writing a block ---------------------------------------------------
 */

/* Write a block to its slots and wait. */
static bool
put_synchronously(RbpSpillHandle handle, uint32 block, const char *data, int64 size,
				  uint32 slot, uint32 mirror)
{
	const RbpSpilledBlock b = {.block = block,.hash = rbp_hash_page(data)};

	return write_slots(data, slot, mirror, write_deadline(rbp_now_ns(), false)) &&
		install_written(rbp_spill_file_lock(handle, true, true), &b, slot, mirror, size,
						RBP_COUNT_SPILL_WRITES);
}

/*
 * Remember that the block was written to the file after the previous one.
 * Blocks are read in this order more often than in that of their numbers.
 * File locked exclusively.
 */
static void
remember_order(RbpSpillFile *file, uint32 block, uint32 slot)
{
	if (file->last_value != VALUE_NONE)
	{
		uint32		value = rbp_spill_block_get(file,
												file->last_block);

		/* unless that block has moved: its slot may belong to another file */
		if (value == file->last_value || IS_STAGED(value))
			slot_info(VALUE_SLOT(file->last_value))->next = block;
	}
	file->last_block = block;
	file->last_value = SLOT_VALUE(slot);
}

bool
rbp_spill_put(RbpSpillHandle handle, uint32 block, const char *data, int64 size)
{
	SendChunk  *chunk = NULL;
	RbpSpilledBlock *b;
	uint32		number;
	RbpSpillFile *file;
	uint32		slot;
	uint32		mirror = NO_SLOT;
	bool		mirrored = rbp_guc_temp_mirror;
	bool		done;

	if (!rbp_remote_usable(RBP_POOL_TEMP, rbp_now_ns()))
		return false;

	file = rbp_spill_file_lock(handle, true, true);
	if (file == NULL)
		return false;
	done = rbp_spill_take_slots(file, &slot, mirrored ? &mirror : NULL);
	rbp_spill_file_unlock(file);
	if (!done)
		return false;
	rbp_spill_cost_slot(slot);

	/* No lock is held here: getting a chunk can mean waiting for a donor. */
	if (!rbp_remote_slot_local(slot) ||
		(mirrored && !rbp_remote_slot_local(mirror)))
		chunk = get_chunk();
	if (chunk == NULL)
		return put_synchronously(handle, block, data, size, slot, mirror);

	number = chunk->number * CHUNK_PAGES + (uint32) chunk->n;
	memcpy(staging_page(number), data, BLCKSZ);
	b = &chunk->blocks[chunk->n];
	*b = (RbpSpilledBlock)
	{
		.handle = handle,.block = block,.value = VALUE_STAGED | number,
			.slot = slot,.mirror = mirror,.hash = rbp_hash_page(staging_page(number))
	};

	file = rbp_spill_file_lock(handle, true, true);
	done = false;
	if (file != NULL)
	{
		remember_order(file, block, slot);
		done = rbp_spill_set_value(file, block, b->value);
		if (done)
			file->size = Max(file->size, size);
		rbp_spill_file_unlock(file);
	}
	if (!done)
		free_slots(slot, mirror);
	else if (++chunk->n == CHUNK_PAGES)
		submit_chunk(false);
	return done;
}
