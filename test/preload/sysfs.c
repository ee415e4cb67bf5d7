/*
 * sysfs.c
 *	  Preloaded into a server by a test: RDMA devices that there are not.
 *
 * What is opened or looked for below /sys/class/infiniband is the same file or directory below the
 * one that RBP_SYSFS names.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define DEVICES		"/sys/class/infiniband"

static const char *
redirected(const char *path, char *other, size_t size)
{
	const char *dir = getenv("RBP_SYSFS");

	if (dir == NULL || strncmp(path, DEVICES, strlen(DEVICES)) != 0)
		return path;
	snprintf(other, size, "%s%s", dir, path + strlen(DEVICES));
	return other;
}

int
open(const char *path, int flags,...)
{
	static int	(*next) (const char *, int,...);
	char		other[4096];
	va_list		args;
	mode_t		mode;

	if (next == NULL)
		next = (int (*) (const char *, int,...)) dlsym(RTLD_NEXT, "open");
	va_start(args, flags);
	mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0;
	va_end(args);
	return next(redirected(path, other, sizeof(other)), flags, mode);
}

int
access(const char *path, int mode)
{
	static int	(*next) (const char *, int);
	char		other[4096];

	if (next == NULL)
		next = (int (*) (const char *, int)) dlsym(RTLD_NEXT, "access");
	return next(redirected(path, other, sizeof(other)), mode);
}

DIR *
opendir(const char *path)
{
	static DIR *(*next) (const char *);
	char		other[4096];

	if (next == NULL)
		next = (DIR *(*) (const char *)) dlsym(RTLD_NEXT, "opendir");
	return next(redirected(path, other, sizeof(other)));
}
