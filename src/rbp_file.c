/*-------------------------------------------------------------------------
 *
 * rbp_file.c
 *	  The file API: wrappers around the server's file calls.
 *
 * What runs here runs anywhere that the server does file I/O: in critical
 * sections, in signal handlers, in processes without a PGPROC, in the
 * postmaster after it has let go of shared memory.  Hence the rules:
 *
 *	- The path is looked at before shared memory is.  A file that is not a
 *	  relation's goes straight to libc.
 *	- A wrapper answers exactly as the call would, errno included.
 *	- No palloc, no ereport(ERROR), no unbounded wait.
 *
 * What open() learnt from the path is kept in an array indexed by fd, private
 * to the process.  fork() copies it with the descriptors, and close() clears
 * the place before the kernel can give the number to another thread.
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

#include "rbp_file.h"
#include "rbp_interpose.h"
#include "rbp_tier.h"

/*
 * Descriptors above this cannot be followed.  The server opens at most
 * max_files_per_process of them in a process.
 */
#define MAX_FDS			65536

typedef struct FdInfo
{
	RbpRelFile	file;
	bool		is_relation;
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

bool
rbp_file_parse(const char *path, RbpRelFile *file)
{
	const char *p = path;

	if (*p == '/')
	{
		size_t		len = DataDir ? strlen(DataDir) : 0;

		if (len == 0 || strncmp(p, DataDir, len) != 0 || p[len] != '/')
			return false;
		p += len;
		while (*p == '/')
			p++;
	}
	while (p[0] == '.' && p[1] == '/')
		p += 2;

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

static inline const FdInfo *
relation_fd(int fd)
{
	if ((unsigned) fd >= MAX_FDS || !fds[fd].is_relation)
		return NULL;
	return &fds[fd];
}

static inline BlockNumber
block_of(const RbpRelFile *file, off_t offset)
{
	return (BlockNumber) (file->segment * (uint64) RELSEG_SIZE +
						  (uint64) offset / BLCKSZ);
}

/* The fork of a path, if it is a relation's, changes in another way. */
static bool
changing_path(const char *path, RbpRelFile *file)
{
	if (!rbp_file_parse(path, file))
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

static int
wrap_open(const char *path, int flags,...)
{
	RbpRelFile	file;
	bool		is_relation = rbp_file_parse(path, &file);
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

	fd = rbp_libc.open(path, flags, mode);

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
		fds[fd].is_relation = false;
	return rbp_libc.close(fd);
}

static ssize_t
wrap_preadv(int fd, const struct iovec *iov, int iovcnt, off_t offset)
{
	const FdInfo *info = relation_fd(fd);

	/*
	 * Only whole pages into shared buffers come from the tier: for these the
	 * server makes sure that nobody writes the page meanwhile.  A base
	 * backup, say, reads the disk.
	 */
	if (info == NULL || offset < 0 || offset % BLCKSZ != 0 ||
		!rbp_tier_attached() || !rbp_tier_is_frames(iov, iovcnt))
		return rbp_libc.preadv(fd, iov, iovcnt, offset);
	return rbp_tier_read(fd, &info->file, block_of(&info->file, offset),
						 iov, iovcnt, offset);
}

static ssize_t
wrap_pread(int fd, void *buf, size_t len, off_t offset)
{
	const FdInfo *info = relation_fd(fd);
	struct iovec iov = {.iov_base = buf,.iov_len = len};

	if (info == NULL || offset < 0 || offset % BLCKSZ != 0 ||
		!rbp_tier_attached() || !rbp_tier_is_frames(&iov, 1))
		return rbp_libc.pread(fd, buf, len, offset);
	return rbp_tier_read(fd, &info->file, block_of(&info->file, offset),
						 &iov, 1, offset);
}

static ssize_t
wrap_pwritev(int fd, const struct iovec *iov, int iovcnt, off_t offset)
{
	const FdInfo *info = relation_fd(fd);

	if (info == NULL || offset < 0)
		return rbp_libc.pwritev(fd, iov, iovcnt, offset);
	return rbp_tier_write(fd, &info->file, block_of(&info->file, offset),
						  iov, iovcnt, offset);
}

static ssize_t
wrap_pwrite(int fd, const void *buf, size_t len, off_t offset)
{
	const FdInfo *info = relation_fd(fd);
	struct iovec iov;

	if (info == NULL || offset < 0)
		return rbp_libc.pwrite(fd, buf, len, offset);
	iov.iov_base = unconstify(void *, buf);
	iov.iov_len = len;
	return rbp_tier_write(fd, &info->file, block_of(&info->file, offset),
						  &iov, 1, offset);
}

/* copydir() and the reset of unlogged relations write so. */
static ssize_t
wrap_write(int fd, const void *buf, size_t len)
{
	const FdInfo *info = relation_fd(fd);
	ssize_t		result;

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
	int			result;

	if (info == NULL)
		return rbp_libc.ftruncate(fd, length);
	rbp_tier_fork_changed(&info->file);
	result = rbp_libc.ftruncate(fd, length);
	changed(&info->file);
	return result;
}

static int
wrap_truncate(const char *path, off_t length)
{
	RbpRelFile	file;
	bool		is_relation = changing_path(path, &file);
	int			result = rbp_libc.truncate(path, length);

	if (is_relation)
		changed(&file);
	return result;
}

static int
wrap_unlink(const char *path)
{
	RbpRelFile	file;
	bool		is_relation = changing_path(path, &file);
	int			result = rbp_libc.unlink(path);

	if (is_relation)
		changed(&file);
	return result;
}

static int
wrap_rename(const char *from, const char *to)
{
	RbpRelFile	old_file;
	RbpRelFile	new_file;
	bool		old_is_relation = changing_path(from, &old_file);
	bool		new_is_relation = changing_path(to, &new_file);
	int			result = rbp_libc.rename(from, to);

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

	if (info != NULL && advice == POSIX_FADV_WILLNEED && offset >= 0 &&
		len > 0 && len <= 128 * BLCKSZ && rbp_tier_attached())
	{
		BlockNumber first = block_of(&info->file, offset);
		BlockNumber last = block_of(&info->file, offset + len - 1);

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
		.write = wrap_write,
		.pread = wrap_pread,
		.preadv = wrap_preadv,
		.pwrite = wrap_pwrite,
		.pwritev = wrap_pwritev,
		.ftruncate = wrap_ftruncate,
		.truncate = wrap_truncate,
		.unlink = wrap_unlink,
		.rename = wrap_rename,
		.posix_fadvise = wrap_posix_fadvise,
		.copy_file_range = wrap_copy_file_range,
	};

	rbp_interpose_install(&wrappers);
}
