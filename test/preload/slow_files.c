/*
 * slow_files.c
 *	  Preloaded into a server by a test: a slow disk.
 *
 * While the file that RBP_SLOW_FILES names is there, each read and write of a
 * block of a relation or of a temporary file takes as many microseconds longer as it says.
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

#define BLOCK	8192

static void
be_slow(int fd, size_t len)
{
	const char *name = getenv("RBP_SLOW_FILES");
	FILE	   *file;
	char		link[64];
	char		path[4096];
	unsigned int us = 0;
	ssize_t		n;
	int			save_errno = errno;

	if (name == NULL || len < BLOCK || (file = fopen(name, "re")) == NULL)
	{
		errno = save_errno;
		return;
	}
	if (fscanf(file, "%u", &us) != 1)
		us = 0;
	fclose(file);
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	path[n < 0 ? 0 : n] = '\0';
	if (strstr(path, "/base/") != NULL && us > 0)
		usleep(us);
	errno = save_errno;
}

#define WRAP(name, type) \
ssize_t \
name(int fd, type buf, size_t len, off_t offset) \
{ \
	static ssize_t (*next) (int, type, size_t, off_t); \
\
	if (next == NULL) \
		*(void **) &next = dlsym(RTLD_NEXT, #name); \
	be_slow(fd, len); \
	return next(fd, buf, len, offset); \
}

WRAP(pread, void *)
WRAP(pread64, void *)
WRAP(pwrite, const void *)
WRAP(pwrite64, const void *)

#define WRAPV(name) \
ssize_t \
name(int fd, const struct iovec *iov, int n, off_t offset) \
{ \
	static ssize_t (*next) (int, const struct iovec *, int, off_t); \
\
	if (next == NULL) \
		*(void **) &next = dlsym(RTLD_NEXT, #name); \
	be_slow(fd, (size_t) n * BLOCK); \
	return next(fd, iov, n, offset); \
}

WRAPV(preadv)
WRAPV(preadv64)
WRAPV(pwritev)
WRAPV(pwritev64)
