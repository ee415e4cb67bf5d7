/*-------------------------------------------------------------------------
 *
 * libc.h
 *	  The original libc functions of the calls that are wrapped.
 *
 * Wrappers call the original functions through rbp_libc: a plain call would
 * recurse into the wrapper.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LIBC_H
#define RBP_LIBC_H

#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

/* The calls that are wrapped: a table of wrappers, or of original functions */
typedef struct RbpLibc
{
	int			(*open) (const char *path, int flags,...);
	int			(*close) (int fd);
	ssize_t		(*write) (int fd, const void *buf, size_t len);
	ssize_t		(*pread) (int fd, void *buf, size_t len, off_t offset);
	ssize_t		(*preadv) (int fd, const struct iovec *iov, int iovcnt,
						   off_t offset);
	ssize_t		(*pwrite) (int fd, const void *buf, size_t len, off_t offset);
	ssize_t		(*pwritev) (int fd, const struct iovec *iov, int iovcnt,
							off_t offset);
	off_t		(*lseek) (int fd, off_t offset, int whence);
	int			(*stat) (const char *path, struct stat *st);
	int			(*lstat) (const char *path, struct stat *st);
	int			(*fstat) (int fd, struct stat *st);
	int			(*ftruncate) (int fd, off_t length);
	int			(*posix_fallocate) (int fd, off_t offset, off_t len);
	int			(*truncate) (const char *path, off_t length);
	int			(*unlink) (const char *path);
	int			(*rename) (const char *from, const char *to);
	int			(*posix_fadvise) (int fd, off_t offset, off_t len, int advice);
	ssize_t		(*copy_file_range) (int in, off_t *off_in, int out,
									off_t *off_out, size_t len, unsigned flags);
	int			(*fsync) (int fd);
	int			(*fdatasync) (int fd);
	int			(*sync_file_range) (int fd, off_t offset, off_t len, unsigned flags);
	int			(*syncfs) (int fd);
	pid_t		(*waitpid) (pid_t pid, int *status, int options);
	int			(*epoll_wait) (int fd, struct epoll_event *events, int max,
							   int timeout);
} RbpLibc;

/* The original functions; set before any wrapper can run */
extern RbpLibc rbp_libc;

/* Like the server: pread() for one buffer, else preadv(). */
static inline ssize_t
rbp_libc_readv(int fd, const struct iovec *iov, int iovcnt, off_t offset)
{
	if (iovcnt == 1)
		return rbp_libc.pread(fd, iov->iov_base, iov->iov_len, offset);
	return rbp_libc.preadv(fd, iov, iovcnt, offset);
}

/* Like the server: pwrite() for one buffer, else pwritev(). */
static inline ssize_t
rbp_libc_writev(int fd, const struct iovec *iov, int iovcnt, off_t offset)
{
	if (iovcnt == 1)
		return rbp_libc.pwrite(fd, iov->iov_base, iov->iov_len, offset);
	return rbp_libc.pwritev(fd, iov, iovcnt, offset);
}

#endif							/* RBP_LIBC_H */
