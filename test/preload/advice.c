/*
 * advice.c
 *	  Preloaded into a server by a test: notes for which parts of relations
 *	  the kernel is asked to read ahead, a line "PATH OFFSET LENGTH" each, in
 *	  the file that RBP_ADVICE names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "path.h"

static void
note(int fd, off_t offset, off_t len)
{
	const char *file = getenv("RBP_ADVICE");
	char		path[4096];
	char		line[4200];
	int			n;
	int			out;

	if (file == NULL || !path_of(fd, path, sizeof(path)) || strstr(path, "/base/") == NULL)
		return;
	n = snprintf(line, sizeof(line), "%s %lld %lld\n", path, (long long) offset, (long long) len);
	out = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	if (out < 0)
		return;
	if (write(out, line, (size_t) n) != n)
		abort();
	close(out);
}

int
posix_fadvise(int fd, off_t offset, off_t len, int advice)
{
	static int	(*next) (int fd, off_t offset, off_t len, int advice);
	int			save_errno = errno;

	if (next == NULL)
		*(void **) &next = dlsym(RTLD_NEXT, "posix_fadvise");
	if (advice == POSIX_FADV_WILLNEED)
		note(fd, offset, len);
	errno = save_errno;
	return next(fd, offset, len, advice);
}
