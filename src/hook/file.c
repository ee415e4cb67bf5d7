/*-------------------------------------------------------------------------
 *
 * file.c
 *	  The file API: wrappers around the server's file calls.
 *
 * What runs here runs anywhere that the server does file I/O: in critical
 * sections, in signal handlers, in processes without a PGPROC, in the
 * postmaster after it has let go of shared memory.  Hence the rules:
 *
 *	- The path is looked at before shared memory is.  A file that is not a
 *	  relation's goes straight to libc.
 *	- A wrapper answers exactly as the call would, errno included.
 *	- No palloc, no ereport(ERROR), no unbounded wait.  Temporary files are
 *	  opened, read and written in plain backend code only, so for these
 *	  malloc() is allowed.
 *	- One exception: a call for a temporary file that has failed may raise, as
 *	  the last thing that it does, where the server itself would answer an
 *	  interrupt (no interrupts held off, no critical section, and so no LWLock):
 *	  the cancelling or termination that has ended a wait, or why a block is
 *	  lost.  The server has no other way to learn either.  It raises itself in
 *	  FileWrite(), beyond temp_file_limit, and FileRead() and FileWrite() have
 *	  changed nothing yet when they call us but what they wait for, which the
 *	  abort resets.  Their callers, buffile.c and md.c, raise at once when we
 *	  fail.  Where it cannot be raised, a wait goes on to its deadline.
 *
 * What open() learnt from the path is kept in an array indexed by fd, private
 * to the process.  fork() copies it with the descriptors, and close() clears
 * the place before the kernel can give the number to another thread.
 *
 * Temporary files go to the spill, which keeps blocks of them elsewhere; their
 * sizes are asked there too, since the real file can be shorter.
 *
 * An event that changes a fork is reported to the tier before it is done,
 * and again after it: a page that was read in between (which the server's
 * own locking does not allow) would die with the second report.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <stdarg.h>
#include <unistd.h>

#include "catalog/pg_tablespace_d.h"
#include "common/relpath.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"

#include "base/geometry.h"
#include "base/libc.h"
#include "base/page_cache.h"
#include "base/relfile.h"
#include "buffer/buffer.h"
#include "hook/hook.h"
#include "hook/interpose.h"
#include "spill/spill.h"

/*
 * Descriptors above this cannot be followed.  The server opens at most
 * max_files_per_process of them in a process.
 */
#define MAX_FDS			65536

typedef struct FdInfo
{
	RbpRelFile	file;
	bool		is_relation;
	RbpSpillOpen *spill;		/* a temporary file; else NULL */
	RbpCacheView cache;			/* of a relation */
} FdInfo;

static FdInfo fds[MAX_FDS];

/* Parse an unsigned 32-bit number; returns what follows, NULL if none. */
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
	static const struct
	{
		const char *suffix;
		uint8		fork;
	}			forks[] = {
		{"_fsm", FSM_FORKNUM},
		{"_vm", VISIBILITYMAP_FORKNUM},
		{"_init", INIT_FORKNUM},
	};

	p = parse_number(p, &file->rel);
	if (p == NULL)
		return false;
	file->fork = MAIN_FORKNUM;
	if (*p == '_')
	{
		size_t		i;

		for (i = 0; i < lengthof(forks); i++)
		{
			size_t		len = strlen(forks[i].suffix);

			if (strncmp(p, forks[i].suffix, len) == 0)
			{
				file->fork = forks[i].fork;
				p += len;
				break;
			}
		}
		if (i == lengthof(forks))
			return false;
	}
	file->segment = 0;
	if (*p == '.')
	{
		p = parse_number(p + 1, &file->segment);
		if (p == NULL)
			return false;
	}
	return *p == '\0';
}

/* The path from the data directory on; NULL if it is elsewhere. */
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
 * A temporary file's name, from the data directory on, or NULL if the path is
 * of another: below a pgsql_tmp directory, or, *relation, a segment of a
 * temporary relation, tBACKEND_REL[_fork][.SEGMENT].
 */
static const char *
temp_name(const char *path, bool *relation)
{
	const char *p = relative_path(path);
	const char *name;
	RbpRelFile	file;

	if (p == NULL || (strncmp(p, "base/", 5) != 0 &&
					  strncmp(p, "pg_tblspc/", 10) != 0))
		return NULL;
	*relation = false;
	if (strstr(p, "/pgsql_tmp/pgsql_tmp") != NULL)
		return strlen(p) < RBP_SPILL_NAME_LEN ? p : NULL;
	name = strrchr(p, '/') + 1;
	if (*name != 't')
		return NULL;
	*relation = true;
	name = parse_number(name + 1, &file.rel);
	if (name == NULL || *name != '_' || !parse_name(name + 1, &file))
		return NULL;
	return strlen(p) < RBP_SPILL_NAME_LEN ? p : NULL;
}

static bool
parse(const char *path, RbpRelFile *file)
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

static inline RbpSpillOpen *
temp_fd(int fd)
{
	return (unsigned) fd < MAX_FDS ? fds[fd].spill : NULL;
}

/*
 * The result of a call for a temporary file.  It may be the end of the query:
 * see the rules at the top.
 */
static inline ssize_t
temp_result(ssize_t result)
{
	if (unlikely(result < 0))
		rbp_spill_call_failed();
	return result;
}

/* The fork of a path, if it is a relation's, changes in another way. */
static bool
changing_path(const char *path, RbpRelFile *file)
{
	if (!parse(path, file))
		return false;
	rbp_tier_fork_changed(file);
	return true;
}

static void
changed(const RbpRelFile *file)
{
	int			save_errno = errno;

	rbp_tier_fork_changed(file);
	errno = save_errno;
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
 * A temporary file was opened as fd, which is returned, or -1 if it cannot be
 * followed: what it has on donors would be missed.
 */
static int
opened_temp(int fd, const char *name, bool relation, int flags)
{
	if (flags & (O_TRUNC | O_EXCL))
		rbp_spill_forget(name);
	if (fd < MAX_FDS)
	{
		fds[fd].is_relation = false;
		fds[fd].spill = rbp_spill_opened(name, relation, flags);
		if (fds[fd].spill != NULL)
			return fd;
		errno = ENOMEM;
	}
	else if (rbp_spill_max_extents() == 0)
		return fd;
	else
		errno = EMFILE;
	{
		int			save_errno = errno;

		(void) rbp_libc.close(fd);
		errno = save_errno;
	}
	return -1;
}

static int
wrap_open(const char *path, int flags,...)
{
	RbpRelFile	file;
	bool		is_relation = parse(path, &file);
	bool		relation;
	const char *temp = is_relation ? NULL : temp_name(path, &relation);
	mode_t		mode = 0;
	int			fd;

	if (flags & (O_CREAT | __O_TMPFILE))
	{
		va_list		args;

		va_start(args, flags);
		mode = va_arg(args, mode_t);
		va_end(args);
	}
	if (is_relation && (flags & (O_TRUNC | O_EXCL)))
		rbp_tier_fork_changed(&file);

	/*
	 * Forgotten before, lest the lease worker moves an old block into the new
	 * file; unless it turns out that there is a file, which stays.
	 */
	if (temp != NULL &&
		((flags & O_TRUNC) || ((flags & O_EXCL) && !file_exists(path))))
		rbp_spill_forget(temp);

	fd = rbp_libc.open(path, flags, mode);

	if (fd >= 0 && temp != NULL)
		return opened_temp(fd, temp, relation, flags);
	if (fd >= 0)
	{
		if (is_relation && (flags & (O_TRUNC | O_EXCL)))
			changed(&file);
		if (fd < MAX_FDS)
		{
			fds[fd].file = file;
			fds[fd].is_relation = is_relation;
		}
		else if (is_relation && (flags & O_ACCMODE) != O_RDONLY)
		{
			int			save_errno = errno;

			rbp_tier_lost_track("too many open files");
			errno = save_errno;
		}
	}
	return fd;
}

static int
wrap_close(int fd)
{
	if ((unsigned) fd < MAX_FDS)
	{
		fds[fd].is_relation = false;
		rbp_page_cache_forget(&fds[fd].cache);
		if (fds[fd].spill != NULL)
		{
			rbp_spill_close(fds[fd].spill);
			fds[fd].spill = NULL;
		}
	}
	return rbp_libc.close(fd);
}

static ssize_t
wrap_read(int fd, void *buf, size_t len)
{
	RbpSpillOpen *temp = temp_fd(fd);
	off_t		at;
	ssize_t		n;

	if (temp == NULL)
		return rbp_libc.read(fd, buf, len);
	at = rbp_libc.lseek(fd, 0, SEEK_CUR);
	if (at < 0)
		return -1;
	n = temp_result(rbp_spill_pread(temp, fd, buf, len, at));
	if (n > 0)
		(void) rbp_libc.lseek(fd, at + n, SEEK_SET);
	return n;
}

static ssize_t
wrap_preadv(int fd, const struct iovec *iov, int iovcnt, off_t offset)
{
	FdInfo	   *info = relation_fd(fd);
	RbpSpillOpen *temp = temp_fd(fd);

	if (temp != NULL)
		return temp_result(rbp_spill_preadv(temp, fd, iov, iovcnt, offset));

	/*
	 * Only whole pages into shared buffers come from the tier: for these the
	 * server makes sure that nobody writes the page meanwhile.  A base
	 * backup, say, reads the disk.
	 */
	if (info == NULL || offset < 0 || offset % BLCKSZ != 0 ||
		!rbp_tier_attached() || !rbp_tier_is_frames(iov, iovcnt))
		return rbp_libc.preadv(fd, iov, iovcnt, offset);
	return rbp_tier_read(fd, &info->file, &info->cache, iov, iovcnt, offset);
}

static ssize_t
wrap_pread(int fd, void *buf, size_t len, off_t offset)
{
	FdInfo	   *info = relation_fd(fd);
	RbpSpillOpen *temp = temp_fd(fd);
	struct iovec iov = {.iov_base = buf,.iov_len = len};

	if (temp != NULL)
		return temp_result(rbp_spill_pread(temp, fd, buf, len, offset));
	if (info == NULL || offset < 0 || offset % BLCKSZ != 0 ||
		!rbp_tier_attached() || !rbp_tier_is_frames(&iov, 1))
		return rbp_libc.pread(fd, buf, len, offset);
	return rbp_tier_read(fd, &info->file, &info->cache, &iov, 1, offset);
}

static ssize_t
wrap_pwritev(int fd, const struct iovec *iov, int iovcnt, off_t offset)
{
	const FdInfo *info = relation_fd(fd);
	RbpSpillOpen *temp = temp_fd(fd);

	if (temp != NULL)
		return temp_result(rbp_spill_pwritev(temp, fd, iov, iovcnt, offset));
	if (info == NULL || offset < 0)
		return rbp_libc.pwritev(fd, iov, iovcnt, offset);
	return rbp_tier_write(fd, &info->file, iov, iovcnt, offset);
}

static ssize_t
wrap_pwrite(int fd, const void *buf, size_t len, off_t offset)
{
	const FdInfo *info = relation_fd(fd);
	RbpSpillOpen *temp = temp_fd(fd);
	struct iovec iov;

	if (temp != NULL)
		return temp_result(rbp_spill_pwrite(temp, fd, buf, len, offset));
	if (info == NULL || offset < 0)
		return rbp_libc.pwrite(fd, buf, len, offset);
	iov.iov_base = unconstify(void *, buf);
	iov.iov_len = len;
	return rbp_tier_write(fd, &info->file, &iov, 1, offset);
}

/* copydir() and the reset of unlogged relations write so. */
static ssize_t
wrap_write(int fd, const void *buf, size_t len)
{
	const FdInfo *info = relation_fd(fd);
	RbpSpillOpen *temp = temp_fd(fd);
	ssize_t		result;

	if (temp != NULL)
	{
		off_t		at = rbp_libc.lseek(fd, 0, SEEK_CUR);

		if (at < 0)
			return -1;
		result = temp_result(rbp_spill_pwrite(temp, fd, buf, len, at));
		if (result > 0)
			(void) rbp_libc.lseek(fd, at + result, SEEK_SET);
		return result;
	}
	if (info == NULL)
		return rbp_libc.write(fd, buf, len);
	rbp_tier_fork_changed(&info->file);
	result = rbp_libc.write(fd, buf, len);
	changed(&info->file);
	return result;
}

static int
wrap_ftruncate(int fd, off_t length)
{
	const FdInfo *info = relation_fd(fd);
	RbpSpillOpen *temp = temp_fd(fd);
	int			result;

	if (temp != NULL)
		return (int) temp_result(rbp_spill_ftruncate(temp, fd, length));
	if (info == NULL)
		return rbp_libc.ftruncate(fd, length);
	rbp_tier_fork_changed(&info->file);
	result = rbp_libc.ftruncate(fd, length);
	changed(&info->file);
	return result;
}

static off_t
wrap_lseek(int fd, off_t offset, int whence)
{
	RbpSpillOpen *temp = temp_fd(fd);
	off_t		result = rbp_libc.lseek(fd, offset, whence);
	off_t		size;

	if (temp == NULL || whence != SEEK_END || result < 0)
		return result;
	size = rbp_spill_open_size(temp, result - offset);
	if (size == result - offset)
		return result;
	return rbp_libc.lseek(fd, size + offset, SEEK_SET);
}

/* For stat() and lstat(). */
static int
path_size(int result, const char *path, struct stat *st)
{
	bool		relation;
	const char *temp;

	if (result == 0 && S_ISREG(st->st_mode) &&
		(temp = temp_name(path, &relation)) != NULL)
		st->st_size = rbp_spill_name_size(temp, st->st_size);
	return result;
}

static int
wrap_stat(const char *path, struct stat *st)
{
	return path_size(rbp_libc.stat(path, st), path, st);
}

static int
wrap_lstat(const char *path, struct stat *st)
{
	return path_size(rbp_libc.lstat(path, st), path, st);
}

static int
wrap_fstat(int fd, struct stat *st)
{
	RbpSpillOpen *temp = temp_fd(fd);
	int			result = rbp_libc.fstat(fd, st);

	if (result == 0 && temp != NULL)
		st->st_size = rbp_spill_open_size(temp, st->st_size);
	return result;
}

static int
wrap_posix_fallocate(int fd, off_t offset, off_t len)
{
	RbpSpillOpen *temp = temp_fd(fd);

	return temp == NULL ? rbp_libc.posix_fallocate(fd, offset, len) :
		rbp_spill_posix_fallocate(temp, fd, offset, len);
}

static int
wrap_truncate(const char *path, off_t length)
{
	RbpRelFile	file;
	bool		relation;
	const char *temp = temp_name(path, &relation);
	bool		is_relation;
	int			result;

	if (temp != NULL)
		return (int) temp_result(rbp_spill_truncate(temp, path, length));
	is_relation = changing_path(path, &file);
	result = rbp_libc.truncate(path, length);
	if (is_relation)
		changed(&file);
	return result;
}

static int
wrap_unlink(const char *path)
{
	RbpRelFile	file;
	bool		relation;
	const char *temp = temp_name(path, &relation);
	bool		is_relation;
	int			result;

	if (temp != NULL)
		return rbp_spill_unlink(temp, path);
	is_relation = changing_path(path, &file);
	result = rbp_libc.unlink(path);
	if (is_relation)
		changed(&file);
	return result;
}

static int
wrap_rename(const char *from, const char *to)
{
	RbpRelFile	old_file;
	RbpRelFile	new_file;
	bool		relation;
	const char *old_temp = temp_name(from, &relation);
	const char *new_temp = temp_name(to, &relation);
	bool		old_is_relation;
	bool		new_is_relation;
	int			result;

	/* The server never does; blocks on donors could not follow. */
	if (old_temp != NULL && rbp_spill_has_blocks(old_temp))
	{
		errno = EXDEV;
		return -1;
	}
	old_is_relation = changing_path(from, &old_file);
	new_is_relation = changing_path(to, &new_file);
	result = rbp_libc.rename(from, to);
	if (result == 0 && new_temp != NULL)
		rbp_spill_forget(new_temp);
	if (old_is_relation)
		changed(&old_file);
	if (new_is_relation)
		changed(&new_file);
	return result;
}

static ssize_t
wrap_copy_file_range(int in, off_t *off_in, int out, off_t *off_out,
					 size_t len, unsigned flags)
{
	const FdInfo *info = relation_fd(out);
	ssize_t		result;

	/* The server copies no temporary files; if it did, by read() and write() */
	if (temp_fd(in) != NULL || temp_fd(out) != NULL)
	{
		errno = EXDEV;
		return -1;
	}
	if (info == NULL)
		return rbp_libc.copy_file_range(in, off_in, out, off_out, len, flags);
	rbp_tier_fork_changed(&info->file);
	result = rbp_libc.copy_file_range(in, off_in, out, off_out, len, flags);
	changed(&info->file);
	return result;
}

/* Advice to read ahead what donors hold would only load the disk. */
static int
wrap_posix_fadvise(int fd, off_t offset, off_t len, int advice)
{
	const FdInfo *info = relation_fd(fd);
	RbpSpillOpen *temp = temp_fd(fd);

	if (temp != NULL && advice == POSIX_FADV_WILLNEED &&
		rbp_spill_advice_is_wasted(temp, offset, len))
		return 0;
	if (info != NULL && advice == POSIX_FADV_WILLNEED && offset >= 0 &&
		len > 0 && len <= 128 * BLCKSZ && rbp_tier_attached())
	{
		BlockNumber first = rbp_block_of(&info->file, offset);
		BlockNumber last = rbp_block_of(&info->file, offset + len - 1);

		if (rbp_tier_has_blocks(&info->file, first, (int) (last - first) + 1))
			return 0;
	}
	return rbp_libc.posix_fadvise(fd, offset, len, advice);
}

void
rbp_file_install(void)
{
	static const RbpLibc wrappers = {
		.open = wrap_open,
		.close = wrap_close,
		.read = wrap_read,
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
	};

	rbp_interpose_install(&wrappers);
}
