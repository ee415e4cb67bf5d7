/*-------------------------------------------------------------------------
 *
 * rbp_interpose.h
 *	  Stand between the server's executable and libc: point the relocation
 *	  slots of file calls at wrappers.  Knows nothing of pages.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_INTERPOSE_H
#define RBP_INTERPOSE_H

#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

/* The calls that are wrapped; as a table of wrappers, or of originals. */
typedef struct RbpLibc
{
	int			(*open) (const char *path, int flags,...);
	int			(*close) (int fd);
	ssize_t		(*read) (int fd, void *buf, size_t len);
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
} RbpLibc;

/* What the server would call without us; set before any wrapper can run. */
extern RbpLibc rbp_libc;

/*
 * Point the executable's slots at the wrappers.  All or nothing: if a call
 * that the server must make is not found among the slots, or if it uses one
 * that we do not know how to follow, raises FATAL before any slot has been
 * changed.  Only in the postmaster, before any fork; at most once.
 */
extern void rbp_interpose_install(const RbpLibc *wrappers);

#endif							/* RBP_INTERPOSE_H */
