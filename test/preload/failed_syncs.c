/*
 * failed_syncs.c
 *	  Preloaded into a server by a test: a disk that fails.
 *
 * While the file that RBP_FAILED_SYNCS names is there, it holds a call, an error
 * number and a text: the first such call for a file whose path ends with the text is
 * made, fails nevertheless, and removes the file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "path.h"

/* fopen() is not for signal handlers, in which servers close files, too. */
static ssize_t
read_orders(char *text, size_t size)
{
	int			(*next) (int) = dlsym(RTLD_NEXT, "close");
	const char *name = getenv("RBP_FAILED_SYNCS");
	int			file = name != NULL ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	ssize_t		n;

	if (file < 0)
		return -1;
	n = read(file, text, size - 1);
	text[n < 0 ? 0 : n] = '\0';
	(void) next(file);
	return n;
}

/* The error with which the call is to fail, or 0 */
static int
failure(const char *call, int fd)
{
	char		text[1024];
	char		path[4096];
	char		name[32];
	char		end[512];
	int			error;
	int			save_errno = errno;
	size_t		len;

	if (read_orders(text, sizeof(text)) < 0 ||
		sscanf(text, "%31s %d %511s", name, &error, end) != 3 ||
		strcmp(name, call) != 0 || !path_of(fd, path, sizeof(path)) ||
		(len = strlen(path)) < strlen(end) ||
		strcmp(path + len - strlen(end), end) != 0 ||
		unlink(getenv("RBP_FAILED_SYNCS")) != 0)	/* another process was
													 * first */
		error = 0;
	errno = save_errno;
	return error;
}

/* declare: the parameters, the first of which is int fd; pass: their names */
#define WRAP(call, declare, pass) \
int \
call declare \
{ \
	static int	(*next) declare; \
	int			error = failure(#call, fd); \
	int			result; \
\
	if (next == NULL) \
		*(void **) &next = dlsym(RTLD_NEXT, #call); \
	result = next pass; \
	if (error == 0) \
		return result; \
	errno = error; \
	return -1; \
}

WRAP(fsync, (int fd), (fd))
WRAP(fdatasync, (int fd), (fd))
WRAP(syncfs, (int fd), (fd))
WRAP(close, (int fd), (fd))
WRAP(sync_file_range, (int fd, off_t offset, off_t len, unsigned int flags), (fd, offset, len, flags))
