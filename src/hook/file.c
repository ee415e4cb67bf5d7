/*-------------------------------------------------------------------------
 *
 * file.c
 *	  The file API: wrappers around the server's file calls.
 *
 * The server calls these wrappers wherever it does file I/O: in critical
 * sections, in signal handlers, in processes without a PGPROC, and in the
 * postmaster after it has detached from shared memory.  Hence the rules:
 *
 *	- A wrapper parses the path before it touches shared memory.  A file that
 *	  does not belong to a relation goes straight to libc.
 *	- A wrapper returns exactly what the call would return, errno included.
 *	- No palloc, no ereport(ERROR), no unbounded wait.  Temporary files are
 *	  opened, read and written in plain backend code only, so wrappers may use
 *	  malloc() for them.
 *	- There is one exception to the rule against ereport(ERROR).  A failed
 *	  call for a temporary file may raise an error as its last action, but
 *	  only where the server itself would process an interrupt: interrupts are
 *	  not held off, and there is no critical section, and so no LWLock.  The
 *	  error is either the query cancel or termination that ended a wait, or
 *	  the reason why a block is lost; the server has no other way to learn
 *	  either of them.  Raising is safe here.  The server itself raises in
 *	  FileWrite(), when temp_file_limit is exceeded; when FileRead() and
 *	  FileWrite() call us, the only thing that they have changed is the
 *	  reported wait event, which transaction abort resets; and their callers,
 *	  buffile.c and md.c, raise immediately when the call fails.  Where no
 *	  error can be raised, the wait continues until its deadline.
 *
 * The result of parsing a path in open() is kept in an array indexed by
 * descriptor, private to the process.  fork() copies it along with the
 * descriptors.  close() clears the array element first: once the kernel has
 * closed the descriptor, another thread of the process may get its number.
 *
 * Calls for temporary files go to the spill, which stores some of their
 * blocks elsewhere.  The spill also knows their sizes, since the real file
 * can be shorter.  Not so read(), write() and copy_file_range(), which the server
 * uses for these files only when it copies a database's directory, where nobody
 * needs what is in them.
 *
 * A call that changes a fork other than by pwrite() invalidates the blocks
 * that it takes away, adds or changes before it is executed, so that the tier's
 * pages of them are not used any more, and once more after it.  The second time
 * is for a page that was read in between: the server's own locking should not
 * allow such a read, but we do not rely on that.
 *
 * After a call that makes the kernel write has failed, a file may hold less
 * than was written to it: the kernel tells that once, drops what it could not
 * write, and then reads the disk.  It does not tell of which files, so all of the
 * tier's pages are dropped, before the server learns of it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "catalog/pg_tablespace_d.h"
#include "common/relpath.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"

#include "advice/advice.h"
#include "base/compat.h"
#include "base/geometry.h"
#include "base/kept.h"
#include "base/libc.h"
#include "base/page_cache.h"
#include "base/relfile.h"
#include "buffer/buffer.h"
#include "hook/hook.h"
#include "hook/interpose.h"
#include "spill/spill.h"

/*
 * Largest descriptor that can be tracked, plus one.  The server opens at most
 * max_files_per_process descriptors in a process.
 */
#define MAX_FDS			65536

/*
 * Longer advice is passed on without look-ups; the server does not prefetch
 * more blocks by one call.
 */
#define MAX_ADVICE_BLOCKS	128

#define SEGMENT_BYTES		((off_t) RELSEG_SIZE * BLCKSZ)

typedef struct FdInfo
{
	RbpRelFile	file;
	bool		is_relation;
	RbpSpillOpen *spill;		/* NULL unless this is a temporary file */
	RbpCacheView cache;			/* for relations: page cache state */
} FdInfo;

/* The lowest descriptors, which all that many processes have, are on one page. */
static FdInfo fds[MAX_FDS] __attribute__((aligned(4096)));

static void (*io_worker_waits) (void);	/* see rbp_hook_install() */

/*
 * Parse an unsigned 32-bit number.  Returns a pointer past it, or NULL if
 * there is no valid number.
 */
static const char *
parse_number(const char *p, uint32 *value)
{
	uint64		n = 0;
	const char *start = p;

	while (*p >= '0' && *p <= '9' && p - start < 11)
		n = n * 10 + (uint64) (*p++ - '0');
	if (p == start || n > PG_UINT32_MAX)
		return NULL;
	*value = (uint32) n;
	return p;
}

/* Parse REL[_fork][.SEGMENT] up to the end of the string. */
static bool
parse_name(const char *p, RbpRelFile *file)
{
	ForkNumber	fork = MAIN_FORKNUM;

	p = parse_number(p, &file->rel);
	if (p == NULL)
		return false;
	if (*p == '_')
	{
		int			len = forkname_chars(p + 1, &fork);

		if (len <= 0)
			return false;
		p += 1 + len;
	}
	file->fork = (uint8) fork;
	file->segment = 0;
	if (*p == '.')
	{
		p = parse_number(p + 1, &file->segment);
		if (p == NULL)
			return false;
	}
	return *p == '\0';
}

/* Path relative to the data directory; NULL if the file is elsewhere. */
static const char *
relative_path(const char *p)
{
	if (*p == '/')
	{
		size_t		len = DataDir ? strlen(DataDir) : 0;

		if (len == 0 || strncmp(p, DataDir, len) != 0 || p[len] != '/')
			return NULL;
		p += len;
		while (*p == '/')
			p++;
	}
	while (p[0] == '.' && p[1] == '/')
		p += 2;
	return p;
}

/*
 * Name of a temporary file, relative to the data directory; NULL if the path
 * is not that of a temporary file.  That is one in a pgsql_tmp directory, or a
 * segment of a temporary relation, tBACKEND_REL[_fork][.SEGMENT].
 */
static const char *
temp_name(const char *path)
{
	const char *p = relative_path(path);
	const char *name;
	RbpRelFile	file;

	if (p == NULL || strlen(p) >= RBP_SPILL_NAME_LEN ||
		(strncmp(p, "base/", 5) != 0 && strncmp(p, "pg_tblspc/", 10) != 0))
		return NULL;
	if (strstr(p, "/pgsql_tmp/pgsql_tmp") != NULL)
		return p;
	name = strrchr(p, '/') + 1;
	name = *name == 't' ? parse_number(name + 1, &file.rel) : NULL;
	return name != NULL && *name == '_' && parse_name(name + 1, &file) ? p : NULL;
}

/*
 * Is this the path of a segment of a relation fork, other than that of a
 * temporary relation?  If so, set *file.
 */
static bool
parse_relation_path(const char *path, RbpRelFile *file)
{
	const char *p = relative_path(path);

	if (p == NULL)
		return false;
	if (strncmp(p, "base/", 5) == 0)
	{
		file->spc = DEFAULTTABLESPACE_OID;
		p = parse_number(p + 5, &file->db);
	}
	else if (strncmp(p, "global/", 7) == 0)
	{
		file->spc = GLOBALTABLESPACE_OID;
		file->db = InvalidOid;
		return parse_name(p + 7, file);
	}
	else if (strncmp(p, "pg_tblspc/", 10) == 0)
	{
		p = parse_number(p + 10, &file->spc);
		if (p == NULL || *p != '/')
			return false;
		p = strchr(p + 1, '/'); /* past PG_15_202209061 */
		if (p == NULL)
			return false;
		p = parse_number(p + 1, &file->db);
	}
	else
		return false;
	return p != NULL && *p == '/' && parse_name(p + 1, file);
}

static inline FdInfo *
relation_fd(int fd)
{
	if ((unsigned) fd >= MAX_FDS || !fds[fd].is_relation)
		return NULL;
	return &fds[fd];
}

/* Larger descriptors are not known. */
static inline bool
may_be_relation(int fd)
{
	return (unsigned) fd >= MAX_FDS || fds[fd].is_relation;
}

/*
 * The descriptor is not that of a relation's file any more.  Writes nothing if it was
 * not, so that the postmaster copies no page when it closes a client's socket.
 */
static inline void
forget_relation(FdInfo *info)
{
	if (info->is_relation)
	{
		info->is_relation = false;
		rbp_page_cache_forget(&info->cache);
	}
}

static inline RbpSpillOpen *
temp_fd(int fd)
{
	return (unsigned) fd < MAX_FDS ? fds[fd].spill : NULL;
}

/*
 * Pass on the result of a call for a temporary file.  If the call failed,
 * this may raise an error: see the rules at the top.
 */
static inline ssize_t
temp_result(ssize_t result)
{
	if (unlikely(result < 0))
		rbp_spill_call_failed();
	return result;
}

/* The bytes of a segment file that a call changes other than by pwrite() */
typedef struct Change
{
	bool		is_relation;	/* if not, there is nothing to do */
	RbpRelFile	file;
	off_t		from;
	off_t		to;
} Change;

/* To be called before the change and after it. */
static void
invalidate(const Change *change)
{
	BlockNumber first;
	BlockNumber end;
	int			save_errno = errno;

	if (!change->is_relation)
		return;
	first = rbp_block_of(&change->file, change->from);
	end = change->to > change->from ? rbp_block_of(&change->file, change->to - 1) + 1 : first;
	rbp_tier_invalidate(&change->file, first, end - first);
	rbp_advice_forget(&change->file, first, end - first);
	errno = save_errno;
}

/*
 * Name a change of all of a segment file; is_relation is false if the path is
 * not that of one.
 */
static void
name_change(Change *change, const char *path)
{
	change->is_relation = parse_relation_path(path, &change->file);
	change->from = 0;
	change->to = SEGMENT_BYTES;
}

/*
 * Begin to change the size of the file to length; result is that of stat() or
 * fstat(), and errno is of then.  A file that does not exist has no blocks.
 */
static void
begin_resize(Change *change, int result, const struct stat *st, off_t length)
{
	off_t		size = result == 0 ? st->st_size :
	errno == ENOENT ? length : SEGMENT_BYTES;

	change->from = Min(size, length);
	change->to = Max(size, length);
	invalidate(change);
}

/* The same by the file's path, unless it is not a relation's. */
static void
begin_resize_path(Change *change, const char *path, off_t length)
{
	struct stat st;

	name_change(change, path);
	if (change->is_relation)
		begin_resize(change, rbp_libc.stat(path, &st), &st, length);
}

/* Begin to write len bytes, at *offset, or at the file's position if that is NULL. */
static void
begin_write(Change *change, const FdInfo *info, int fd, const off_t *offset, size_t len)
{
	off_t		at = offset != NULL ? *offset : rbp_libc.lseek(fd, 0, SEEK_CUR);

	change->is_relation = true;
	change->file = info->file;
	change->from = Max(at, 0);
	change->to = at < 0 ? SEGMENT_BYTES : at + (off_t) len;
	invalidate(change);
}

static bool
file_exists(const char *path)
{
	struct stat st;
	int			save_errno = errno;
	bool		exists = rbp_libc.lstat(path, &st) == 0 || errno != ENOENT;

	errno = save_errno;
	return exists;
}

/*
 * Track a temporary file that was opened as fd.  Returns fd; or closes it,
 * sets errno and returns -1 if it cannot be tracked, since its reads would
 * miss blocks on donors.
 */
static int
track_temp(int fd, const char *name, int flags)
{
	RbpSpillOpen *spill = fd < MAX_FDS ? rbp_spill_opened(name, flags) : NULL;

	if (fd < MAX_FDS)
	{
		forget_relation(&fds[fd]);
		fds[fd].spill = spill;
	}
	/* without a temp quota, no block can be on a donor */
	if (spill != NULL || rbp_spill_max_extents() == 0)
		return fd;
	(void) rbp_libc.close(fd);
	errno = fd < MAX_FDS ? ENOMEM : EMFILE;
	return -1;
}

static pg_attribute_hot int
wrap_open(const char *path, int flags,...)
{
	Change		change;
	const char *temp;
	mode_t		mode = 0;
	int			fd;

	if (flags & (O_CREAT | __O_TMPFILE))
	{
		va_list		args;

		va_start(args, flags);
		mode = va_arg(args, mode_t);
		va_end(args);
	}
	/* with O_EXCL there is no file, or it remains as it is */
	if ((flags & (O_TRUNC | O_EXCL)) == O_TRUNC)
		begin_resize_path(&change, path, 0);
	else
		name_change(&change, path);
	temp = change.is_relation ? NULL : temp_name(path);

	/*
	 * Drop blocks of an old file of that name first, lest the lease worker
	 * move one of them into the new file.  With O_EXCL, an existing file
	 * remains, so its blocks are not dropped.
	 */
	if (temp != NULL &&
		((flags & O_TRUNC) || ((flags & O_EXCL) && !file_exists(path))))
		rbp_spill_forget(temp);

	fd = rbp_libc.open(path, flags, mode);

	if (fd >= 0 && temp != NULL)
		return track_temp(fd, temp, flags);
	if (fd >= 0)
	{
		if ((flags & (O_TRUNC | O_EXCL)) == O_TRUNC)
			invalidate(&change);
		if (fd < MAX_FDS)
		{
			forget_relation(&fds[fd]);
			if (change.is_relation)
			{
				fds[fd].file = change.file;
				fds[fd].is_relation = true;
			}
		}
		else if (change.is_relation && (flags & O_ACCMODE) != O_RDONLY)
		{
			int			save_errno = errno;

			rbp_tier_lost_track("too many open files");
			errno = save_errno;
		}
	}
	return fd;
}

/*
 * Pass on the result of a call that makes the kernel write what fd is open on, or
 * waits for that.  Directories count, too: they stand for files that come and go and,
 * for syncfs(), for a file system.  Not so errors that tell that the kernel has not tried
 * to write: the call was interrupted, or is not supported, as for directories by some
 * file systems, which the server ignores.
 */
static int
sync_result(int result, int fd, bool is_relation, const char *call)
{
	int			save_errno = errno;
	struct stat st;

	if (likely(result == 0) || errno == EINTR || errno == EBADF || errno == ENOSYS)
		return result;
	if (is_relation ||
		(errno != EINVAL && rbp_libc.fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)))
		rbp_tier_sync_failed(call);
	errno = save_errno;
	return result;
}

static int
wrap_fsync(int fd)
{
	return sync_result(rbp_libc.fsync(fd), fd, may_be_relation(fd), "fsync");
}

static int
wrap_fdatasync(int fd)
{
	return sync_result(rbp_libc.fdatasync(fd), fd, may_be_relation(fd), "fdatasync");
}

static int
wrap_sync_file_range(int fd, off_t offset, off_t len, unsigned flags)
{
	return sync_result(rbp_libc.sync_file_range(fd, offset, len, flags), fd,
					   may_be_relation(fd), "sync_file_range");
}

static int
wrap_syncfs(int fd)
{
	return sync_result(rbp_libc.syncfs(fd), fd, may_be_relation(fd), "syncfs");
}

/* A directory has nothing that close() would write. */
static pg_attribute_hot int
wrap_close(int fd)
{
	bool		is_relation = may_be_relation(fd);

	if ((unsigned) fd < MAX_FDS)
	{
		FdInfo	   *info = &fds[fd];

		forget_relation(info);
		if (info->spill != NULL)
		{
			free(info->spill);
			info->spill = NULL;
		}
	}
	return sync_result(rbp_libc.close(fd), -1, is_relation, "close");
}

/* Read pages into shared buffers, and let the advice see it, tier or not. */
static ssize_t
observed_read(int fd, FdInfo *info, const struct iovec *iov, int iovcnt, off_t offset)
{
	RbpAdviceRead read;
	ssize_t		result;

	rbp_advice_before_read(&read, fd, &info->file, &info->cache, iov, iovcnt, offset);
	result = rbp_tier_attached() ?
		rbp_tier_read(fd, &info->file, &info->cache, iov, iovcnt, offset) :
		rbp_libc_readv(fd, iov, iovcnt, offset);
	rbp_advice_after_read(&read, result);
	return result;
}

static pg_attribute_hot ssize_t
wrap_preadv(int fd, const struct iovec *iov, int iovcnt, off_t offset)
{
	FdInfo	   *info = relation_fd(fd);
	RbpSpillOpen *temp = temp_fd(fd);
	bool		observed;

	if (temp != NULL)
		return temp_result(rbp_spill_preadv(temp, fd, iov, iovcnt, offset));

	/*
	 * Serve only reads of whole pages into shared buffers from the tier: the
	 * server ensures that nobody writes such a page at the same time.  Other
	 * readers, such as a base backup, read the disk.
	 */
	observed = rbp_advice_observes();
	if (info != NULL && offset >= 0 && offset % BLCKSZ == 0 &&
		(observed || rbp_tier_attached()) && rbp_tier_is_frames(iov, iovcnt))
		return observed ? observed_read(fd, info, iov, iovcnt, offset) :
			rbp_tier_read(fd, &info->file, &info->cache, iov, iovcnt, offset);
	return rbp_libc_readv(fd, iov, iovcnt, offset);
}

static pg_attribute_hot ssize_t
wrap_pread(int fd, void *buf, size_t len, off_t offset)
{
	struct iovec iov = {.iov_base = buf,.iov_len = len};

	return wrap_preadv(fd, &iov, 1, offset);
}

static ssize_t
wrap_pwritev(int fd, const struct iovec *iov, int iovcnt, off_t offset)
{
	FdInfo	   *info = relation_fd(fd);
	RbpSpillOpen *temp = temp_fd(fd);
	ssize_t		result;

	if (temp != NULL)
		return temp_result(rbp_spill_pwritev(temp, fd, iov, iovcnt, offset));
	if (info != NULL && offset >= 0)
	{
		result = rbp_tier_write(fd, &info->file, &info->cache, iov, iovcnt, offset);
		if (rbp_advice_observes())
			rbp_advice_after_write(&info->file, iov, iovcnt, offset, result);
		return result;
	}
	return rbp_libc_writev(fd, iov, iovcnt, offset);
}

static ssize_t
wrap_pwrite(int fd, const void *buf, size_t len, off_t offset)
{
	struct iovec iov = {.iov_base = unconstify(void *, buf),.iov_len = len};

	return wrap_pwritev(fd, &iov, 1, offset);
}

/* copydir() and the reset of unlogged relations use plain write(). */
static ssize_t
wrap_write(int fd, const void *buf, size_t len)
{
	const FdInfo *info = relation_fd(fd);
	Change		change;
	ssize_t		result;

	if (info == NULL)
		return rbp_libc.write(fd, buf, len);
	begin_write(&change, info, fd, NULL, len);
	result = rbp_libc.write(fd, buf, len);
	invalidate(&change);
	return result;
}

static int
wrap_ftruncate(int fd, off_t length)
{
	const FdInfo *info = relation_fd(fd);
	RbpSpillOpen *temp = temp_fd(fd);
	Change		change = {.is_relation = true};
	struct stat st;
	int			result;

	if (temp != NULL)
		return (int) temp_result(rbp_spill_ftruncate(temp, fd, length));
	if (info == NULL)
		return rbp_libc.ftruncate(fd, length);
	change.file = info->file;
	begin_resize(&change, rbp_libc.fstat(fd, &st), &st, length);
	result = rbp_libc.ftruncate(fd, length);
	invalidate(&change);
	return result;
}

static pg_attribute_hot off_t
wrap_lseek(int fd, off_t offset, int whence)
{
	RbpSpillOpen *temp = temp_fd(fd);
	off_t		result = rbp_libc.lseek(fd, offset, whence);
	off_t		size;

	if (temp == NULL || whence != SEEK_END || result < 0)
		return result;
	size = rbp_spill_size(temp, result - offset);
	if (size == result - offset)
		return result;
	return rbp_libc.lseek(fd, size + offset, SEEK_SET);
}

/* Correct the size that stat() or lstat() returned for a temporary file. */
static int
correct_size(int result, const char *path, struct stat *st)
{
	const char *temp;

	if (result == 0 && S_ISREG(st->st_mode) &&
		(temp = temp_name(path)) != NULL)
		st->st_size = rbp_spill_size_by_name(temp, st->st_size);
	return result;
}

static pg_attribute_hot int
wrap_stat(const char *path, struct stat *st)
{
	return correct_size(rbp_libc.stat(path, st), path, st);
}

static int
wrap_lstat(const char *path, struct stat *st)
{
	return correct_size(rbp_libc.lstat(path, st), path, st);
}

static pg_attribute_hot int
wrap_fstat(int fd, struct stat *st)
{
	RbpSpillOpen *temp = temp_fd(fd);
	int			result = rbp_libc.fstat(fd, st);

	if (result == 0 && temp != NULL)
		st->st_size = rbp_spill_size(temp, st->st_size);
	return result;
}

static int
wrap_posix_fallocate(int fd, off_t offset, off_t len)
{
	const FdInfo *info = relation_fd(fd);
	RbpSpillOpen *temp = temp_fd(fd);

	if (temp != NULL)
		return rbp_spill_posix_fallocate(temp, fd, offset, len);
	if (info != NULL && offset >= 0 && len > 0)
		rbp_tier_allocate(&info->file, offset, len);
	return rbp_libc.posix_fallocate(fd, offset, len);
}

static int
wrap_truncate(const char *path, off_t length)
{
	Change		change;
	const char *temp = temp_name(path);
	int			result;

	if (temp != NULL)
		return (int) temp_result(rbp_spill_truncate(temp, path, length));
	begin_resize_path(&change, path, length);
	result = rbp_libc.truncate(path, length);
	invalidate(&change);
	return result;
}

static int
wrap_unlink(const char *path)
{
	Change		change;
	const char *temp = temp_name(path);
	int			result;

	if (temp != NULL)
		return rbp_spill_unlink(temp, path);
	begin_resize_path(&change, path, 0);
	result = rbp_libc.unlink(path);
	invalidate(&change);
	return result;
}

static int
wrap_rename(const char *from, const char *to)
{
	Change		old_change;
	Change		new_change;
	const char *old_temp = temp_name(from);
	const char *new_temp = temp_name(to);
	int			result;

	/*
	 * The server never renames such a file, and blocks on donors could not
	 * follow.
	 */
	if (old_temp != NULL && rbp_spill_has_blocks(old_temp))
	{
		errno = EXDEV;
		return -1;
	}
	name_change(&old_change, from);
	name_change(&new_change, to);
	invalidate(&old_change);
	invalidate(&new_change);
	result = rbp_libc.rename(from, to);
	if (result == 0 && new_temp != NULL)
		rbp_spill_forget(new_temp);
	invalidate(&old_change);
	invalidate(&new_change);
	return result;
}

static ssize_t
wrap_copy_file_range(int in, off_t *off_in, int out, off_t *off_out,
					 size_t len, unsigned flags)
{
	const FdInfo *info = relation_fd(out);
	Change		change;
	ssize_t		result;

	if (info == NULL)
		return rbp_libc.copy_file_range(in, off_in, out, off_out, len, flags);
	begin_write(&change, info, out, off_out, len);
	result = rbp_libc.copy_file_range(in, off_in, out, off_out, len, flags);
	invalidate(&change);
	return result;
}

/*
 * Advice to prefetch blocks that donors hold is for donors: it would only load
 * the disk.
 */
static int
wrap_posix_fadvise(int fd, off_t offset, off_t len, int advice)
{
	FdInfo	   *info = relation_fd(fd);
	int			save_errno = errno;

	if (info != NULL && advice == POSIX_FADV_WILLNEED && offset >= 0 &&
		len > 0 && len <= MAX_ADVICE_BLOCKS * BLCKSZ && rbp_tier_attached())
	{
		int			result = rbp_tier_announce(fd, &info->file, &info->cache, offset, len);

		errno = save_errno;		/* the result tells of errors, not errno */
		return result;
	}
	return rbp_libc.posix_fadvise(fd, offset, len, advice);
}

/*
 * A child of the postmaster that was ended by a signal of a fault of its own may have
 * written anywhere into shared memory before.  Some servers call this in a signal handler.
 */
static pid_t
wrap_waitpid(pid_t pid, int *status, int options)
{
	pid_t		child = rbp_libc.waitpid(pid, status, options);

	if (child <= 0 || !IsPostmasterEnvironment || MyProcPid != PostmasterPid ||
		status == NULL || !WIFSIGNALED(*status))
		return child;
	switch (WTERMSIG(*status))
	{
		case SIGSEGV:
		case SIGBUS:
		case SIGILL:
		case SIGFPE:
		case SIGABRT:
		case SIGTRAP:
		case SIGSYS:
			rbp_kept_discard("a process of the server may have overwritten it before it crashed");
	}
	return child;
}

static int
wrap_epoll_wait(int fd, struct epoll_event *events, int max, int timeout)
{
	if (timeout != 0 && rbp_compat_is_io_worker())
		io_worker_waits();
	return rbp_libc.epoll_wait(fd, events, max, timeout);
}

void
rbp_hook_install(void (*on_io_worker_wait) (void))
{
	static const RbpLibc wrappers = {
		.open = wrap_open,
		.close = wrap_close,
		.write = wrap_write,
		.pread = wrap_pread,
		.preadv = wrap_preadv,
		.pwrite = wrap_pwrite,
		.pwritev = wrap_pwritev,
		.lseek = wrap_lseek,
		.stat = wrap_stat,
		.lstat = wrap_lstat,
		.fstat = wrap_fstat,
		.ftruncate = wrap_ftruncate,
		.posix_fallocate = wrap_posix_fallocate,
		.truncate = wrap_truncate,
		.unlink = wrap_unlink,
		.rename = wrap_rename,
		.posix_fadvise = wrap_posix_fadvise,
		.copy_file_range = wrap_copy_file_range,
		.fsync = wrap_fsync,
		.fdatasync = wrap_fdatasync,
		.sync_file_range = wrap_sync_file_range,
		.syncfs = wrap_syncfs,
		.waitpid = wrap_waitpid,
		.epoll_wait = RBP_COMPAT_HAS_IO_WORKERS ? wrap_epoll_wait : NULL,
	};

	io_worker_waits = on_io_worker_wait;
	rbp_interpose_install(&wrappers);
}
