/*
 * page_cache.c
 *	  Preloaded into a server by a test: a system on which the page cache
 *	  cannot be asked in every way.
 *
 * RBP_CACHE names what is wrong, in any order: "nocachestat" (the kernel is
 * older), "deadlycachestat" (whoever calls it is ended by SIGSYS), "nomincore" (it
 * is forbidden), "silent" (a file system whose files the page cache never has, as
 * far as it can be asked).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "path.h"

#define CACHESTAT	451

static int
wrong(const char *what)
{
	const char *all = getenv("RBP_CACHE");

	return all != NULL && strstr(all, what) != NULL;
}

static int
is_relation(int fd)
{
	char		path[4096];

	if (!path_of(fd, path, sizeof(path)))
		return 0;
	return strstr(path, "/base/") != NULL || strstr(path, "/global/") != NULL;
}

long
syscall(long number,...)
{
	static long (*next) (long number,...);
	long		args[6];
	long		result;
	va_list		ap;

	if (next == NULL)
		*(void **) &next = dlsym(RTLD_NEXT, "syscall");
	va_start(ap, number);
	for (int i = 0; i < 6; i++)
		args[i] = va_arg(ap, long);
	va_end(ap);
	if (number == CACHESTAT && wrong("nocachestat"))
	{
		errno = ENOSYS;
		return -1;
	}
	if (number == CACHESTAT && wrong("deadlycachestat"))
		kill(getpid(), SIGSYS);
	result = next(number, args[0], args[1], args[2], args[3], args[4], args[5]);
	if (number == CACHESTAT && result == 0 && wrong("silent") && is_relation((int) args[0]))
		memset((void *) args[2], 0, 5 * 8);
	return result;
}

int
mincore(void *start, size_t len, unsigned char *vec)
{
	static int	(*next) (void *start, size_t len, unsigned char *vec);

	if (next == NULL)
		*(void **) &next = dlsym(RTLD_NEXT, "mincore");
	if (wrong("nomincore"))
	{
		errno = EPERM;
		return -1;
	}
	return next(start, len, vec);
}
