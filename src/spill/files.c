/*-------------------------------------------------------------------------
 *
 * files.c
 *	  Temporary files, whose blocks are on donors instead of in the real file:
 *	  descriptors, entries, sizes, truncation and removal.
 *
 * file_io.c reads and writes them, blocks.c has what changes a block's place,
 * and setup.c the shared memory.
 *
 * What must hold
 * --------------
 * A block (8 KiB at a multiple of that) has a value in rbp_spill_table, or
 * none; that says where its content is, all of it:
 *
 *	none			in the real file; zeros where that is shorter
 *	a staging page	in shared memory: being filled (the file's open page, one
 *					at most), or on its way to donors
 *	a slot			on a donor, with its hash in RbpSpillSlotInfo, and perhaps a second
 *					copy in another slot on another donor
 *	lost			nowhere: a donor had failed, and the disk too
 *
 * 1. There is no other copy, so nothing is ever guessed: content that cannot
 *	  be had, or does not match its hash, is EIO.  And after a file was
 *	  forgotten, descriptors that knew it get EIO, never the real file's holes.
 * 2. A slot has one owner: from rbp_spill_slots_alloc() until the block's
 *	  value is replaced.  A block that is written again gets another slot, so
 *	  that no write to a slot is ever followed by a second one for the same
 *	  owner, and a reader that is late reads what it was promised or something
 *	  that does not match.  A slot whose write failed rests in quarantine, for
 *	  the write may still come.
 * 3. The size users see is kept beside the blocks, and is never less than the
 *	  real file's.  Bytes of a block past it are zeros.
 * 4. Data goes to its new place first, then the value changes, under the
 *	  file's lock; the old place is given back after that.
 * 5. Who unlinks the real file does that first, and forgets second, by a handle
 *	  taken before: a new file of the same name has another.  Truncation, and
 *	  any write to the real file of a block that is elsewhere, are done under
 *	  the file's lock together with the change of the table, for the lease
 *	  worker may be moving blocks there.
 *
 * What the server does, and this relies on: several processes may write a file,
 * but not the same block at the same time, and parts of blocks only one process
 * at a time, since whoever begins another block sends the open page.  (Else bytes
 * of one of them could be lost, within a block.)
 *
 * Locks: a file's lock covers its values, its state, the RbpSpillSlotInfo of its
 * slots, and the "dropped" marks of its staging pages.  It is not held while a
 * donor is waited for, and while the disk is only by rule 5 and when a failed
 * write is repaired.  Under it, the locks inside rbp_spill_table and rbp_spill_slots.
 *
 * Private to a process: the chunks of staging pages that it is filling and
 * sending (write.c) and what it has read ahead (read.c).
 * Others see staged blocks through the table, and read them from staging.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "miscadmin.h"

#include "base/geometry.h"
#include "base/libc.h"
#include "common/clock.h"
#include "remote/remote.h"
#include "spill/spill.h"
#include "spill/spill_internal.h"
#include "spill/table.h"

/* Any files with an entry? What most calls end with, cheaply. */
static inline bool
any_files(void)
{
	return attached() && rbp_spill_table_files(rbp_spill_table) > 0;
}

/* The file of that name, if it has an entry. */
static bool
find_entry(const char *name, RbpSpillHandle *handle)
{
	return any_files() && rbp_spill_table_find(rbp_spill_table, name, handle);
}

bool
rbp_spill_open_lookup(RbpSpillOpen *o)
{
	uint32		created;

	if (o->handle.index != RBP_SPILL_NO_FILE)
		return attached();
	if (!any_files())
		return false;
	/* before the look, so that one that comes meanwhile is looked for again */
	created = rbp_spill_table_created(rbp_spill_table);
	if (o->not_found && o->created == created)
		return false;
	if (rbp_spill_table_find(rbp_spill_table, o->name, &o->handle))
		return true;
	o->not_found = true;
	o->created = created;
	return false;
}

/* The process that the name is of; for a relation, whoever creates it. */
static int
owner_pid(const RbpSpillOpen *o)
{
	const char *p = o->relation ? NULL : strstr(o->name, "/pgsql_tmp/pgsql_tmp");

	return p != NULL ? atoi(p + strlen("/pgsql_tmp/pgsql_tmp")) : MyProcPid;
}

bool
rbp_spill_open_extend(RbpSpillOpen *o, off_t size)
{
	RbpSpillFile *file = rbp_spill_file_lock(rbp_spill_table, o->handle, true);
	RbpSpillFileState *st;

	if (file == NULL)
		return false;
	st = rbp_spill_file_state(file);
	st->size = Max(st->size, size);
	unlock_file(file);
	return true;
}

/* Give the file, of which fd is a descriptor (-1: it is new), an entry. */
bool
rbp_spill_open_create(RbpSpillOpen *o, int fd)
{
	struct stat real = {.st_size = 0};
	RbpSpillFileState initial = {
		.size = 0,
		.open_page = RBP_SPILL_NO_PAGE,
		.owner = owner_pid(o),
		.relation = o->relation,
	};
	bool		created;

	if (fd >= 0 && rbp_libc.fstat(fd, &real) != 0)
		return false;
	initial.size = real.st_size;
	if (!rbp_spill_table_create(rbp_spill_table, o->name, &initial, &o->handle,
								&created))
	{
		o->handle.index = RBP_SPILL_NO_FILE;
		return false;
	}

	/*
	 * Another process may have written to the file meanwhile.  One that does
	 * from now on sees the entry when it has, and raises the size:
	 * wrote_without_entry().
	 */
	if (fd >= 0 && created && rbp_libc.fstat(fd, &real) == 0)
		(void) rbp_spill_open_extend(o, real.st_size);
	return true;
}

RbpSpillFile *
rbp_spill_open_lock(RbpSpillOpen *o, bool exclusive)
{
	RbpSpillFile *file = rbp_spill_file_lock(rbp_spill_table, o->handle, exclusive);

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
rbp_spill_opened(const char *name, bool relation, int flags)
{
	RbpSpillOpen *o = malloc(sizeof(RbpSpillOpen));

	if (o == NULL)
		return NULL;
	o->handle.index = RBP_SPILL_NO_FILE;
	o->handle.serial = 0;
	o->relation = relation;
	o->not_found = false;
	o->writable = (flags & O_ACCMODE) != O_RDONLY;
	strlcpy(o->name, name, sizeof(o->name));

	/*
	 * A new file gets its entry now, so that all descriptors of it know it;
	 * or else when a block of it is first sent to donors.
	 */
	if (attached() && (flags & O_CREAT) && (flags & (O_TRUNC | O_EXCL)) &&
		spill_enabled(o) && !rbp_spill_prefer_file() &&
		rbp_remote_usable(RBP_POOL_TEMP, rbp_now_ns()))
		(void) rbp_spill_open_create(o, -1);
	else
		(void) rbp_spill_open_lookup(o);
	return o;
}

void
rbp_spill_close(RbpSpillOpen *o)
{
	/* what is staged stays there, and is sent, whoever has the file open */
	free(o);
}

/*
 * ---- sizes ---------------------------------------------------------------------
 */

static off_t
entry_size(RbpSpillHandle handle, off_t real)
{
	RbpSpillFile *file = rbp_spill_file_lock(rbp_spill_table, handle, false);

	if (file != NULL)
	{
		real = Max(real, rbp_spill_file_state(file)->size);
		unlock_file(file);
	}
	return real;
}

off_t
rbp_spill_open_size(RbpSpillOpen *o, off_t real)
{
	return rbp_spill_open_lookup(o) ? entry_size(o->handle, real) : real;
}

off_t
rbp_spill_name_size(const char *name, off_t real)
{
	RbpSpillHandle handle;

	return find_entry(name, &handle) ? entry_size(handle, real) : real;
}

/*
 * What is left of the block that the new end lies in goes to the real file,
 * whose truncation makes zeros of the rest.  Truncation and cut are one step
 * for whoever moves blocks into the real file.
 */
int
rbp_spill_ftruncate(RbpSpillOpen *o, int fd, off_t length)
{
	char		rest[BLCKSZ];
	uint32		block = (uint32) (length / BLCKSZ);
	ssize_t		n = (ssize_t) (length % BLCKSZ);
	RbpSpillFile *file;
	RbpSpillFileState *st;
	int			result = 0;
	int			save_errno;

	if (length < 0 || !rbp_spill_open_lookup(o))
		return rbp_libc.ftruncate(fd, length);
	if (n > 0)
	{
		n = rbp_spill_read_part(o, fd, rest, n, (off_t) block * BLCKSZ);
		if (n < 0)
			return -1;
	}

	file = rbp_spill_open_lock(o, true);
	if (file == NULL)
		return -1;
	st = rbp_spill_file_state(file);
	if (length < st->size && n > 0 &&
		rbp_spill_block_get(rbp_spill_table, file, block) != VALUE_NONE)
	{
		ssize_t		written = rbp_libc.pwrite(fd, rest, n, (off_t) block * BLCKSZ);

		if (written >= 0 && written < n)
			errno = ENOSPC;
		if (written < n)
			result = -1;
	}
	if (result == 0)
		result = rbp_libc.ftruncate(fd, length);
	save_errno = errno;
	if (result == 0)
	{
		if (length < st->size)
			rbp_spill_drop_tail(file, block);
		st->size = length;
	}
	unlock_file(file);
	errno = save_errno;
	return result;
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
rbp_spill_truncate(const char *name, const char *path, off_t length)
{
	RbpSpillOpen o = {.writable = true};
	int			fd;
	int			result;
	int			save_errno;

	o.handle.index = RBP_SPILL_NO_FILE;
	strlcpy(o.name, name, sizeof(o.name));
	if (length < 0 || !rbp_spill_open_lookup(&o))
		return rbp_libc.truncate(path, length);
	fd = rbp_libc.open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -1;
	result = rbp_spill_ftruncate(&o, fd, length);
	save_errno = errno;
	(void) rbp_libc.close(fd);
	errno = save_errno;
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

bool
rbp_spill_advice_is_wasted(RbpSpillOpen *o, off_t offset, off_t len)
{
	RbpSpillFile *file;
	uint32		value;

	if (offset < 0 || !rbp_spill_open_lookup(o))
		return false;
	file = rbp_spill_file_lock(rbp_spill_table, o->handle, false);
	if (file == NULL)
		return false;
	value = rbp_spill_block_get(rbp_spill_table, file, (uint32) (offset / BLCKSZ));
	unlock_file(file);
	return value != VALUE_NONE;
}
