/*-------------------------------------------------------------------------
 *
 * files.c
 *	  Temporary files whose blocks are on donors instead of in the real file:
 *	  descriptors, entries, sizes and removal.
 *
 * file_io.c reads, writes and truncates them, blocks.c moves blocks, and setup.c
 * has the shared memory.
 *
 * Invariants
 * ----------
 * A block (8 KiB at a multiple of that) has a value in rbp_spill_table, or
 * none.  The value tells where all of its content is:
 *
 *	none			in the real file; zeros where that is shorter
 *	a staging page	in shared memory, on its way to donors
 *	a slot			on a donor, with its hash in RbpSpillSlotInfo, and perhaps
 *					with a second copy in another slot on another donor
 *	lost			nowhere: both a donor and the disk have failed
 *
 * 1. There is no other copy, so nothing is ever guessed.  Content that cannot
 *	  be read, or that does not match its hash, is EIO.  After an entry is
 *	  removed, descriptors that used it get EIO, never the real file's holes.
 * 2. A slot has one owner, from rbp_spill_slots_alloc() until the block's
 *	  value is replaced.  A block that is written again gets another slot, so
 *	  an owner writes to its slot once, and a late reader gets either the
 *	  content that it looked up or something that does not match the hash.  A
 *	  slot whose write failed goes into quarantine, because that write may
 *	  still arrive.
 * 3. The size that users see is kept in the entry, and is never less than the
 *	  real file's.  Bytes of a block beyond it are zeros.
 * 4. Data goes to its new place first, then the value changes, under the
 *	  file's lock, and the old place is released after that.
 * 5. The real file is unlinked first and its entry removed second, by a handle
 *	  that was looked up before: a new file of the same name has another one.
 *	  Truncation, and any write to the real file of a block that is elsewhere,
 *	  happen under the file's lock together with the change of the table,
 *	  because the lease worker may be moving blocks there.
 *
 * This relies on how the server uses temporary files: several processes may
 * write to a file, but not to the same block at the same time.  (Otherwise bytes
 * that one of them wrote within a block could be lost.)
 *
 * Locks: a file's lock covers its values, its state, and the RbpSpillSlotInfo of
 * its slots.  It is not held while waiting for a donor, and while waiting for the disk only by rule 5 and
 * to repair a failed write.  The locks inside rbp_spill_table and
 * rbp_spill_slots are taken under it.
 *
 * Local to a process: the chunks of staging pages that it fills and sends
 * (write.c) and the blocks that it has read ahead (read.c).  Other processes
 * find staged blocks through the table and read them from staging.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>

#include "miscadmin.h"

#include "base/choice.h"
#include "base/libc.h"
#include "common/clock.h"
#include "remote/remote.h"
#include "spill/spill.h"
#include "spill/spill_internal.h"
#include "spill/table.h"

/* Look up the entry of that name. */
static bool
find_entry(const char *name, RbpSpillHandle *handle)
{
	return attached() && rbp_spill_table_find(name, handle);
}

bool
rbp_spill_open_lookup(RbpSpillOpen *o)
{
	uint32		created;

	if (!attached() || o->handle.index != RBP_SPILL_NO_FILE)
		return attached();

	/*
	 * read before the lookup, so that an entry created meanwhile is found
	 * next
	 */
	created = rbp_spill_table_created();
	if (o->not_found == created)
		return false;
	o->not_found = created;
	return rbp_spill_table_find(o->name, &o->handle);
}

/* What follows the directory in the name of a file that is not a relation's. */
static const char *
after_directory(const char *name)
{
	static const char directory[] = "/pgsql_tmp/pgsql_tmp";
	const char *found = strstr(name, directory);

	return found != NULL ? found + strlen(directory) : NULL;
}

bool
rbp_spill_open_extend(RbpSpillOpen *o, off_t size)
{
	RbpSpillFile *file = rbp_spill_file_lock(o->handle, true, true);

	if (file == NULL)
		return false;
	file->size = Max(file->size, size);
	rbp_spill_file_unlock(file);
	return true;
}

bool
rbp_spill_open_create(RbpSpillOpen *o, int fd)
{
	struct stat real = {.st_size = 0};
	RbpSpillFile initial = {
		.size = 0,
		/* the process in its name, or the one that creates it */
		.owner = o->relation ? MyProcPid : atoi(after_directory(o->name)),
		.relation = o->relation,
	};
	bool		created;

	if (fd >= 0 && rbp_libc.fstat(fd, &real) != 0)
		return false;
	initial.size = real.st_size;
	if (!rbp_spill_table_create(o->name, &initial, &o->handle,
								&created))
	{
		o->handle.index = RBP_SPILL_NO_FILE;
		return false;
	}

	/*
	 * Another process may have written to the file meanwhile.  One that
	 * writes from now on finds the entry afterwards and raises the size: see
	 * extend_new_entry().
	 */
	if (fd >= 0 && created && rbp_libc.fstat(fd, &real) == 0)
		(void) rbp_spill_open_extend(o, real.st_size);
	return true;
}

RbpSpillFile *
rbp_spill_open_lock(RbpSpillOpen *o, bool exclusive)
{
	RbpSpillFile *file = rbp_spill_file_lock(o->handle, exclusive, true);

	if (file == NULL)
		errno = EIO;
	return file;
}

void
rbp_spill_forget(const char *name)
{
	RbpSpillHandle handle;
	int			save_errno = errno;

	if (find_entry(name, &handle))
		rbp_spill_forget_handle(handle);
	errno = save_errno;
}

bool
rbp_spill_has_blocks(const char *name)
{
	RbpSpillHandle handle;

	return find_entry(name, &handle);
}

RbpSpillOpen *
rbp_spill_opened(const char *name, int flags)
{
	RbpSpillOpen *o = malloc(sizeof(RbpSpillOpen));

	if (o == NULL)
		return NULL;
	o->handle.index = RBP_SPILL_NO_FILE;
	o->handle.serial = 0;
	o->relation = after_directory(name) == NULL;
	o->file_system = 0;
	o->not_found = -1;
	o->writable = (flags & O_ACCMODE) != O_RDONLY;
	strlcpy(o->name, name, sizeof(o->name));

	/*
	 * A new file gets its entry now, so that all of its descriptors find it;
	 * any other file when its first block goes to donors.
	 */
	if (attached() && (flags & O_CREAT) && (flags & (O_TRUNC | O_EXCL)) &&
		spill_enabled(o) && !rbp_spill_prefer_file(RBP_UNKNOWN_FILE_SYSTEM) &&
		rbp_remote_usable(RBP_POOL_TEMP, rbp_now_ns()))
		(void) rbp_spill_open_create(o, -1);
	else
		(void) rbp_spill_open_lookup(o);
	return o;
}

/*
 * ---- sizes -------------------------------------------------------------
 */

static off_t
entry_size(RbpSpillHandle handle, off_t real)
{
	RbpSpillFile *file = rbp_spill_file_lock(handle, false, true);

	if (file != NULL)
	{
		real = Max(real, file->size);
		rbp_spill_file_unlock(file);
	}
	return real;
}

off_t
rbp_spill_size(RbpSpillOpen *o, off_t real)
{
	return rbp_spill_open_lookup(o) ? entry_size(o->handle, real) : real;
}

off_t
rbp_spill_size_by_name(const char *name, off_t real)
{
	RbpSpillHandle handle;

	return find_entry(name, &handle) ? entry_size(handle, real) : real;
}

int
rbp_spill_posix_fallocate(RbpSpillOpen *o, int fd, off_t offset, off_t len)
{
	int			result = rbp_libc.posix_fallocate(fd, offset, len);

	if (result == 0 && rbp_spill_open_lookup(o) &&
		!rbp_spill_open_extend(o, offset + len))
		return EIO;
	return result;
}

int
rbp_spill_unlink(const char *name, const char *path)
{
	RbpSpillHandle handle;
	bool		have = find_entry(name, &handle);
	int			result = rbp_libc.unlink(path);
	int			save_errno = errno;

	if (have && (result == 0 || save_errno == ENOENT))
		rbp_spill_forget_handle(handle);
	errno = save_errno;
	return result;
}
