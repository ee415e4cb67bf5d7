/*-------------------------------------------------------------------------
 *
 * file_io.c
 *	  Reading, writing and truncating temporary files, block by block.
 *
 * A call is split at block boundaries.  Blocks go to donors or to the real
 * file, whichever costs less.  A part of a block is written as the whole block,
 * unless that is in the real file.  The invariants are in files.c.
 *
 * Locks: the file's lock is taken shared to find a block and to copy from
 * staging.  It is not held while waiting for a donor, and while waiting for the
 * disk only if a block moves from elsewhere to the real file.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>

#include "base/choice.h"
#include "base/guc.h"
#include "base/libc.h"
#include "base/page_cache.h"
#include "base/stats.h"
#include "common/clock.h"
#include "remote/remote.h"
#include "spill/spill.h"
#include "spill/spill_internal.h"
#include "spill/table.h"

/*
 * ---- reads -------------------------------------------------------------
 */

static inline int
file_system_of(RbpSpillOpen *o, int fd)
{
	return rbp_page_cache_file_system(fd, &o->file_system);
}

/*
 * The time at which a call begins that shows the cost of a block, or 0 if this one
 * is not measured.  Parts of blocks do not show it, nor do temporary tables, which
 * are accessed differently.
 */
static inline int64
cost_begin(RbpSpillOpen *o, int fd, size_t len, bool donor, bool write)
{
	return len == BLCKSZ && !o->relation && rbp_guc_spill_temp_files && attached() &&
		rbp_choice_measures_temp(file_system_of(o, fd), !donor, write) ? rbp_now_ns() : 0;
}

/* preadv() or pwritev() of the real file. */
static ssize_t
use_file(RbpSpillOpen *o, int fd, const struct iovec *iov, int iovcnt, off_t offset, bool write)
{
	int64		started = cost_begin(o, fd, iov->iov_len, false, write);
	ssize_t		n = write ? rbp_libc_writev(fd, iov, iovcnt, offset) :
	rbp_libc_readv(fd, iov, iovcnt, offset);

	if (n == BLCKSZ)
		rbp_spill_cost_end(file_system_of(o, fd), false, write, started);
	return n;
}

/*
 * Read bytes within one block.  Returns how many there are, or -1 with errno.
 */
static ssize_t
read_part(RbpSpillOpen *o, int fd, char *buf, size_t len, off_t offset)
{
	uint32		block = (uint32) (offset / BLCKSZ);
	uint32		start = (uint32) (offset % BLCKSZ);
	int			got = 0;

	while (got == 0)
	{
		RbpSpillFile *file = rbp_spill_open_lock(o, false);
		RbpSpilledBlock b = {.handle = o->handle,.block = block};
		int64		started;

		if (file == NULL)
			return -1;
		if (offset >= file->size)
		{
			rbp_spill_file_unlock(file);
			return 0;
		}
		len = (size_t) Min((int64) len, file->size - offset);
		b.value = rbp_spill_block_get(file, block);
		if (IS_STAGED(b.value))
		{
			memcpy(buf, staging_page(STAGED_PAGE(b.value)) + start, len);
			rbp_spill_file_unlock(file);
			rbp_stats_count(RBP_COUNT_SPILL_STAGED_READS, 1);
			return (ssize_t) len;
		}
		if (b.value == VALUE_NONE)
		{
			struct iovec iov = {.iov_base = buf,.iov_len = len};
			ssize_t		n;

			rbp_spill_file_unlock(file);
			n = use_file(o, fd, &iov, 1, offset, false);
			if (n >= 0 && n < (ssize_t) len)
				memset(buf + n, 0, len - n);	/* a hole */
			return n < 0 ? n : (ssize_t) len;
		}
		if (b.value == VALUE_LOST)
		{
			rbp_spill_file_unlock(file);
			rbp_spill_block_lost(o->name,
								 "Free disk space, and see in remote_bp_stat_donors why donors take no temporary data. Then run the query again.",
								 "could not read block %u of temporary file \"%s\": no donor took it when it was written, and the file could not be written",
								 block, o->name);
			errno = EIO;
			return -1;
		}
		b.slot = VALUE_SLOT(b.value);
		b.hash = slot_info(b.slot)->hash;
		b.mirror = slot_info(b.slot)->mirror;
		rbp_spill_file_unlock(file);
		started = cost_begin(o, fd, len, true, false);
		got = rbp_spill_fetch(&b, o->relation, start, (uint32) len, buf);
		if (got > 0)
		{
			rbp_spill_cost_slot(b.slot);
			rbp_spill_cost_end(file_system_of(o, fd), true, false, started);
		}
	}
	if (got < 0)
	{
		errno = got == RBP_SPILL_INTERRUPTED ? EINTR : EIO;
		return -1;
	}
	return (ssize_t) len;
}

ssize_t
rbp_spill_preadv(RbpSpillOpen *o, int fd, const struct iovec *iov, int iovcnt,
				 off_t offset)
{
	ssize_t		done = 0;

	if (offset < 0 || !rbp_spill_open_lookup(o))
		return use_file(o, fd, iov, iovcnt, offset, false);
	for (int i = 0; i < iovcnt; i++)
		for (size_t at = 0; at < iov[i].iov_len;)
		{
			off_t		from = offset + done;
			size_t		len = Min(iov[i].iov_len - at, (size_t) (BLCKSZ - from % BLCKSZ));
			ssize_t		n = read_part(o, fd, (char *) iov[i].iov_base + at, len, from);

			/* a short count would be taken for the end of the file */
			if (n < 0)
				return -1;
			done += n;
			at += n;
			if (n < (ssize_t) len)
				return done;
		}
	return done;
}

/*
 * ---- writes ------------------------------------------------------------
 */

/* A piece of a write() call that lies within one block. */
typedef struct Part
{
	RbpSpillOpen *o;
	int			fd;				/* descriptor of the real file */
	const char *buf;
	size_t		len;
	off_t		offset;
	uint32		block;
} Part;

/*
 * Like pwrite(), into the real file.  If the block is elsewhere, the whole
 * block must be given.  The lock is then held during the write, since
 * evacuation could write old content to the same place.
 */
static ssize_t
write_real(const Part *p)
{
	RbpSpillFile *file = rbp_spill_open_lock(p->o, true);
	ssize_t		n;
	int			save_errno;

	if (file == NULL)
		return -1;
	if (rbp_spill_block_get(file, p->block) == VALUE_NONE)
	{
		struct iovec iov = {.iov_base = unconstify(char *, p->buf),.iov_len = p->len};

		rbp_spill_file_unlock(file);
		n = use_file(p->o, p->fd, &iov, 1, p->offset, true);
		if (n <= 0)
			return n;
		save_errno = errno;
		file = rbp_spill_open_lock(p->o, true);
		if (file == NULL)
			return -1;
	}
	else
	{
		n = rbp_libc.pwrite(p->fd, p->buf, p->len, p->offset);
		if (n < (ssize_t) p->len)
		{
			/* the block stays where it is */
			if (n >= 0)
				errno = ENOSPC;
			rbp_spill_file_unlock(file);
			return -1;
		}
		save_errno = errno;
		(void) rbp_spill_set_value(file, p->block, VALUE_NONE);
	}
	file->size = Max(file->size, p->offset + n);
	rbp_spill_file_unlock(file);
	errno = save_errno;
	return n;
}

/*
 * Is this a part of a block that is in the real file?  *new: the block begins at
 * or behind the end of the file.  False, with EIO, if the file's entry is gone.
 */
static bool
find_part(const Part *p, bool *in_file, bool *new)
{
	RbpSpillFile *file = rbp_spill_open_lock(p->o, false);

	if (file == NULL)
		return false;
	*in_file = rbp_spill_block_get(file, p->block) == VALUE_NONE;
	*new = (int64) p->block * BLCKSZ >= file->size;
	rbp_spill_file_unlock(file);
	return true;
}

/*
 * Make the part a whole block, in that buffer: the rest is as it was, and zeros
 * behind the end of the file.
 */
static bool
complete_part(Part *p, char *whole)
{
	off_t		start = p->offset % BLCKSZ;
	ssize_t		n = read_part(p->o, p->fd, whole, BLCKSZ, p->offset - start);

	if (n < 0)
		return false;
	memset(whole + n, 0, BLCKSZ - n);
	memcpy(whole + start, p->buf, p->len);
	p->buf = whole;
	p->len = Max((size_t) n, start + p->len);
	p->offset -= start;
	return true;
}

/*
 * Write a block, or a part of it: where it is, if that is the real file, else the
 * whole block anew.
 */
static ssize_t
write_part(const Part *p)
{
	char		copy[BLCKSZ];
	Part		whole = *p;
	bool		in_file = true;
	bool		new = true;
	ssize_t		n;

	/* a whole block is as one that is new */
	if (p->len < BLCKSZ && !find_part(p, &in_file, &new))
		return -1;
	if (in_file && (!new || !spill_enabled(p->o)))
		return write_real(p);
	if (in_file && rbp_spill_prefer_file(file_system_of(p->o, p->fd)))
	{
		if (write_real(p) == (ssize_t) p->len)
		{
			rbp_stats_count(RBP_COUNT_SPILL_BYPASSED, p->len / BLCKSZ);
			return (ssize_t) p->len;
		}
		/* the disk may be full */
		rbp_spill_file_refused();
	}
	if (p->len < BLCKSZ && !complete_part(&whole, copy))
		return -1;
	if (spill_enabled(p->o))
	{
		int64		started = cost_begin(p->o, p->fd, p->len, true, true);

		if (rbp_spill_put(p->o->handle, p->block, whole.buf, p->offset + (off_t) p->len))
		{
			rbp_spill_cost_end(file_system_of(p->o, p->fd), true, true, started);
			return (ssize_t) p->len;
		}
		rbp_stats_count(RBP_COUNT_SPILL_LOCAL, p->len / BLCKSZ);
	}
	n = write_real(&whole);
	if (n < 0)
		return -1;
	/* of a short write, what is of this part */
	n -= p->offset - whole.offset;
	if (n > 0)
		return Min(n, (ssize_t) p->len);
	errno = ENOSPC;
	return -1;
}

/*
 * n bytes were written to a file that had no entry, or the write has failed
 * (-1).  Returns n.  A process that has created the entry meanwhile may have
 * seen the old size.
 */
static ssize_t
extend_new_entry(RbpSpillOpen *o, off_t offset, ssize_t n)
{
	int			save_errno = errno;

	pg_memory_barrier();
	if (n > 0 && rbp_spill_open_lookup(o))
		(void) rbp_spill_open_extend(o, offset + n);
	errno = save_errno;
	return n;
}

ssize_t
rbp_spill_pwritev(RbpSpillOpen *o, int fd, const struct iovec *iov, int iovcnt,
				  off_t offset)
{
	int64		start_ns;
	ssize_t		len = 0;
	ssize_t		done = 0;

	if (offset < 0 || !o->writable || !attached())
		return rbp_libc_writev(fd, iov, iovcnt, offset);
	start_ns = rbp_now_ns();
	for (int i = 0; i < iovcnt; i++)
		len += iov[i].iov_len;
	if (!rbp_spill_open_lookup(o))
	{
		bool		to_donors = spill_enabled(o) && rbp_remote_usable(RBP_POOL_TEMP, start_ns);

		if (to_donors && rbp_spill_prefer_file(file_system_of(o, fd)))
		{
			ssize_t		n = extend_new_entry(o, offset, use_file(o, fd, iov, iovcnt, offset, true));

			if (n == len)
			{
				rbp_stats_count(RBP_COUNT_SPILL_BYPASSED, n / BLCKSZ);
				return n;
			}
			/* the disk may be full: donors may have room */
			rbp_spill_file_refused();
		}
		if (!to_donors || (!rbp_spill_open_lookup(o) && !rbp_spill_open_create(o, fd)))
			return extend_new_entry(o, offset, rbp_libc_writev(fd, iov, iovcnt, offset));
	}
	for (int i = 0; i < iovcnt; i++)
		for (size_t at = 0; at < iov[i].iov_len;)
		{
			off_t		to = offset + done;
			Part		part = {
				.o = o,.fd = fd,.buf = (const char *) iov[i].iov_base + at,.offset = to,
				.len = Min(iov[i].iov_len - at, (size_t) (BLCKSZ - to % BLCKSZ)),
				.block = (uint32) (to / BLCKSZ)
			};
			ssize_t		n = write_part(&part);

			if (n < 0)
				return done > 0 ? done : -1;
			done += n;
			at += n;
			if (n < (ssize_t) part.len)
				return done;
		}
	rbp_stats_latency(RBP_LATENCY_SPILL_WRITES, rbp_now_ns() - start_ns);
	return done;
}

/*
 * ---- truncation --------------------------------------------------------
 */

/*
 * The part of the last block that remains goes to the real file, whose
 * truncation zeroes the rest.  The file is locked from the truncation to the
 * removal of the values, so that a process that moves blocks to the real file
 * sees both or none.
 */
int
rbp_spill_ftruncate(RbpSpillOpen *o, int fd, off_t length)
{
	char		rest[BLCKSZ];
	uint32		block = (uint32) (length / BLCKSZ);
	ssize_t		n = (ssize_t) (length % BLCKSZ);
	RbpSpillFile *file;
	int			result = 0;
	int			save_errno;

	if (length < 0 || !rbp_spill_open_lookup(o))
		return rbp_libc.ftruncate(fd, length);
	if (n > 0)
	{
		n = read_part(o, fd, rest, n, (off_t) block * BLCKSZ);
		if (n < 0)
			return -1;
	}

	file = rbp_spill_open_lock(o, true);
	if (file == NULL)
		return -1;
	if (length < file->size && n > 0 &&
		rbp_spill_block_get(file, block) != VALUE_NONE)
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
		if (length < file->size)
			rbp_spill_drop_tail(file, block);
		file->size = length;
	}
	rbp_spill_file_unlock(file);
	errno = save_errno;
	return result;
}

int
rbp_spill_truncate(const char *name, const char *path, off_t length)
{
	RbpSpillOpen o = {.writable = true,.not_found = -1};
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
