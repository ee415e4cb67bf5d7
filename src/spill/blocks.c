/*-------------------------------------------------------------------------
 *
 * blocks.c
 *	  Moving a block: reserving spill slots for a file, replacing values,
 *	  and releasing what the old values stood for.
 *
 * Most functions here are called with the file locked exclusively.  The lock
 * covers the file's values, its state, which includes the slots reserved for
 * it, and the RbpSpillSlotInfo of its slots.  The invariants are in files.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>

#include "base/geometry.h"
#include "base/libc.h"
#include "remote/remote.h"
#include "spill/slots.h"
#include "spill/spill_internal.h"
#include "spill/table.h"

/* The first reservation of a file and the largest one, in slots. */
#define RUN_FIRST			4
#define RUN_LAST			32

RbpSpillFile *
rbp_spill_lock_block(const RbpSpilledBlock *b, bool exclusive, bool wait)
{
	RbpSpillFile *file = rbp_spill_file_lock(b->handle, exclusive, wait);

	if (file == NULL)
		return NULL;
	if (rbp_spill_block_get(file, b->block) == b->value &&
		(IS_STAGED(b->value) || slot_info(b->slot)->hash == b->hash))
		return file;
	rbp_spill_file_unlock(file);
	return NULL;
}

static bool
extent_usable(uint32 extent, void *arg)
{
	const int  *other = arg;
	uint32		slot = RBP_EXTENT_SLOT(extent);

	return rbp_extent_open(rbp_remote_extents(RBP_POOL_TEMP), extent) &&
		rbp_remote_slot_writable(slot) &&
		(other == NULL || rbp_remote_slot_donor(slot) != *other);
}

static void
free_run(RbpSpillRun *run)
{
	rbp_spill_slots_free(run->next, run->left);
	run->left = 0;
}

/*
 * Take the next slot of a reservation, or of a new one of that length.  A
 * reservation is given up if its memory is about to go.
 */
static bool
take_slot(RbpSpillRun *run, uint32 len, int *other, uint32 *slot)
{
	if (run->left > 0 && !extent_usable(run->next / RBP_EXTENT_PAGES, other))
		free_run(run);
	if (run->left == 0)
		run->left = rbp_spill_slots_alloc(len, extent_usable, other, &run->next);
	if (run->left == 0)
		return false;
	run->left--;
	*slot = run->next++;
	return true;
}

bool
rbp_spill_take_slots(RbpSpillFile *file, uint32 *slot, uint32 *mirror)
{
	int			donor;

	if (file->run.left == 0)
	{
		/*
		 * reserve less when little is left, so that idle files do not hold it
		 */
		uint32		fair = (uint32) (rbp_spill_slots_free_count() / 512);

		file->run_len = Max(Min(Max(file->run_len * 2, RUN_FIRST), Min(fair, RUN_LAST)), 1);
	}
	if (!take_slot(&file->run, file->run_len, NULL, slot))
		return false;
	donor = rbp_remote_slot_donor(*slot);
	if (mirror != NULL && !take_slot(&file->mirror_run, file->run_len, &donor, mirror))
	{
		/*
		 * The first slot stays reserved.  If it were freed, the next search
		 * for a second copy's slot would start there, and not where this one
		 * ended.
		 */
		file->run.next--;
		file->run.left++;
		return false;
	}
	slot_info(*slot)->next = NO_BLOCK;
	return true;
}

void
rbp_spill_free_useless(RbpSpillFile *file)
{
	if (file->run.left > 0 && !extent_usable(file->run.next / RBP_EXTENT_PAGES, NULL))
		free_run(&file->run);
	if (file->mirror_run.left > 0 && !extent_usable(file->mirror_run.next / RBP_EXTENT_PAGES, NULL))
		free_run(&file->mirror_run);
}

/*
 * Add a slot to those that are to be freed: a file that is removed has many
 * adjacent ones.
 */
static void
add_to_run(RbpSpillRun *run, uint32 slot)
{
	if (run->left > 0 && slot == run->next + run->left &&
		slot / RBP_EXTENT_PAGES == run->next / RBP_EXTENT_PAGES)
	{
		run->left++;
		return;
	}
	free_run(run);
	run->next = slot;
	run->left = 1;
}

/*
 * Release what the value stands for, as it is replaced.  run collects slots to be
 * freed.
 */
static void
drop_value(RbpSpillFile *file, uint32 block, uint32 value, void *run)
{
	if (IS_STAGED(value))
		file->staged_blocks--;	/* its sender frees the page */
	else if (IS_SLOT(value))
	{
		uint32		mirror = slot_info(VALUE_SLOT(value))->mirror;

		if (mirror != NO_SLOT)
		{
			rbp_spill_slots_free(mirror, 1);
			file->mirrored_blocks--;
		}
		add_to_run(run, VALUE_SLOT(value));
		file->slot_blocks--;
	}
}

bool
rbp_spill_set_value(RbpSpillFile *file, uint32 block, uint32 value)
{
	uint32		old = rbp_spill_block_get(file, block);
	RbpSpillRun run = {0};

	if (!rbp_spill_block_set(file, block, value))
		return false;
	file->staged_blocks += IS_STAGED(value);
	file->slot_blocks += IS_SLOT(value);
	drop_value(file, block, old, &run);
	free_run(&run);
	return true;
}

bool
rbp_spill_fill(uint32 slot, uint32 mirror)
{
	rbp_spill_slots_fill(slot);
	if (mirror != NO_SLOT)
		rbp_spill_slots_fill(mirror);
	return rbp_remote_slot_stays(slot) && (mirror == NO_SLOT || rbp_remote_slot_stays(mirror));
}

bool
rbp_spill_install(RbpSpillFile *file, uint32 block, uint32 slot,
				  uint32 mirror, uint64 hash)
{
	RbpSpillSlotInfo *info = slot_info(slot);

	if (!rbp_spill_set_value(file, block, SLOT_VALUE(slot)))
		return false;
	info->hash = hash;
	info->handle = rbp_spill_file_handle(file);
	info->block = block;
	info->mirror = mirror;
	info->donor = rbp_remote_slot_donor(slot);
	if (mirror != NO_SLOT)
	{
		slot_info(mirror)->handle = info->handle;
		slot_info(mirror)->block = block;
		file->mirrored_blocks++;
	}
	return true;
}

bool
rbp_spill_to_real_file(RbpSpillFile *file, uint32 block, const char *data)
{
	off_t		start = (off_t) block * BLCKSZ;
	ssize_t		len = (ssize_t) Max(Min(file->size - start, BLCKSZ), 0);
	int			fd = rbp_libc.open(file->name, O_WRONLY | O_CLOEXEC);
	ssize_t		n;
	int			save_errno;

	if (fd < 0)
		return false;
	n = rbp_libc.pwrite(fd, data, len, start);
	save_errno = n >= 0 ? ENOSPC : errno;
	(void) rbp_libc.close(fd);
	errno = save_errno;
	if (n < len)
		return false;
	return rbp_spill_set_value(file, block, VALUE_NONE);
}

static void
forget_visit(RbpSpillFile *file, uint32 block, uint32 value, void *arg)
{
	if (value == VALUE_NONE)
	{
		free_run(&file->run);
		free_run(&file->mirror_run);
	}
	else
		drop_value(file, block, value, arg);
}

void
rbp_spill_forget_handle(RbpSpillHandle handle)
{
	RbpSpillRun run = {0};

	(void) rbp_spill_table_remove(handle, forget_visit, &run);
	free_run(&run);
}

void
rbp_spill_drop_tail(RbpSpillFile *file, uint32 first)
{
	RbpSpillRun run = {0};

	rbp_spill_file_truncate(file, first, drop_value, &run);
	free_run(&run);
}
