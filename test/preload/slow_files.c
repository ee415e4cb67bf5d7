/*
 * slow_files.c
 *	  Preloaded into a program by a test: a slow disk, or a full one.
 *
 * While the file that RBP_SLOW_FILES names is there, it holds a number and a text:
 * each read and write of a block of a file whose path has the text in it takes so many
 * microseconds longer.  With 0, writes of any size fail since the disk is full; the file
 * with ".full" after its name tells that one did.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "path.h"

#define BLOCK	8192

/* False if the call is to fail. */
static int
be_slow(int fd, size_t len, int write)
{
	const char *name = getenv("RBP_SLOW_FILES");
	FILE	   *file;
	char		path[4096];
	char		part[256] = "";
	unsigned int us = 0;
	int			full;
	int			save_errno = errno;

	if (name == NULL || (file = fopen(name, "re")) == NULL)
	{
		errno = save_errno;
		return 1;
	}
	if (fscanf(file, "%u %255s", &us, part) != 2)
		write = 0;
	fclose(file);
	(void) path_of(fd, path, sizeof(path));
	if (strstr(path, part) == NULL)
		write = us = 0;
	full = us == 0 && write;
	if (full)
	{
		snprintf(path, sizeof(path), "%s.full", name);
		file = fopen(path, "we");
		if (file != NULL)
			fclose(file);
	}
	if (len < BLOCK)
		us = 0;
	if (us > 0)
		usleep(us);
	errno = full ? ENOSPC : save_errno;
	return !full;
}

#define WRAP(name, type, write) \
ssize_t \
name(int fd, type buf, size_t len, off_t offset) \
{ \
	static ssize_t (*next) (int, type, size_t, off_t); \
\
	if (next == NULL) \
		*(void **) &next = dlsym(RTLD_NEXT, #name); \
	return be_slow(fd, len, write) ? next(fd, buf, len, offset) : -1; \
}

WRAP(pread, void *, 0)
WRAP(pread64, void *, 0)
WRAP(pwrite, const void *, 1)
WRAP(pwrite64, const void *, 1)

#define WRAPV(name, write) \
ssize_t \
name(int fd, const struct iovec *iov, int n, off_t offset) \
{ \
	static ssize_t (*next) (int, const struct iovec *, int, off_t); \
\
	if (next == NULL) \
		*(void **) &next = dlsym(RTLD_NEXT, #name); \
	return be_slow(fd, (size_t) n * BLOCK, write) ? next(fd, iov, n, offset) : -1; \
}

ssize_t
write(int fd, const void *buf, size_t len)
{
	static ssize_t (*next) (int, const void *, size_t);

	if (next == NULL)
		*(void **) &next = dlsym(RTLD_NEXT, "write");
	return be_slow(fd, len, 1) ? next(fd, buf, len) : -1;
}

WRAPV(preadv, 0)
WRAPV(preadv64, 0)
WRAPV(pwritev, 1)
WRAPV(pwritev64, 1)
