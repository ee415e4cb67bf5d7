/*
 * names.c
 *	  Preloaded into a server or a daemon by a test: a name server that hangs
 *	  at will, names whose address changes, and a machine that cannot be told
 *	  from another one, or has a name that the test chose.
 *
 * Names that end in ".test" are this host's, or have the address that is in the
 * file of that name in the directory RBP_NAMES_DIR.  While the file that
 * RBP_NAMES_HANG names is there, a look-up of one of them does not return; it
 * is noted in the file of that name with ".log" after it.
 *
 * In the postmaster's children, the directory that RBP_CLONE_DIR names has the
 * device and inode number 1 (the postmaster's own key of shared memory comes of
 * the true ones).  The kernel's boot id is in the file that RBP_CLONE_BOOT_ID
 * names.  The host's name is RBP_HOST_NAME, if that is set.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pid_t postmaster;

__attribute__((constructor))
static void
note_postmaster(void)
{
	postmaster = getpid();
}

static void
hang(const char *node)
{
	const char *file = getenv("RBP_NAMES_HANG");
	char		name[1024];
	FILE	   *log;

	if (file == NULL || access(file, F_OK) != 0)
		return;
	snprintf(name, sizeof(name), "%s.log", file);
	log = fopen(name, "a");
	if (log != NULL)
	{
		fprintf(log, "%s\n", node);
		fclose(log);
	}
	while (access(file, F_OK) == 0)
		usleep(20000);
}

/* The address in the name's file, in buf[64], or this host's. */
static const char *
address_of(const char *node, char *buf)
{
	const char *dir = getenv("RBP_NAMES_DIR");
	char		path[1024];
	FILE	   *file;
	int			found;

	snprintf(path, sizeof(path), "%s/%s", dir != NULL ? dir : "", node);
	file = fopen(path, "r");
	if (file == NULL)
		return "127.0.0.1";
	found = fscanf(file, "%63s", buf);
	fclose(file);
	return found == 1 ? buf : "127.0.0.1";
}

int
getaddrinfo(const char *node, const char *service,
			const struct addrinfo *hints, struct addrinfo **res)
{
	int			(*next) (const char *, const char *, const struct addrinfo *,
						 struct addrinfo **);
	size_t		len = node != NULL ? strlen(node) : 0;
	char		address[64];

	next = dlsym(RTLD_NEXT, "getaddrinfo");
	if (len > 5 && strcmp(node + len - 5, ".test") == 0 &&
		(hints == NULL || (hints->ai_flags & AI_NUMERICHOST) == 0))
	{
		hang(node);
		node = address_of(node, address);
	}
	return next(node, service, hints, res);
}

int
stat(const char *path, struct stat *st)
{
	static int	(*next) (const char *, struct stat *);
	const char *dir = getenv("RBP_CLONE_DIR");
	int			rc;

	if (next == NULL)
		next = dlsym(RTLD_NEXT, "stat");
	rc = next(path, st);
	if (rc == 0 && dir != NULL && strcmp(path, dir) == 0 &&
		getpid() != postmaster)
	{
		st->st_dev = 1;
		st->st_ino = 1;
	}
	return rc;
}

int
open(const char *path, int flags,...)
{
	static int	(*next) (const char *, int,...);
	const char *boot_id = getenv("RBP_CLONE_BOOT_ID");
	va_list		args;
	mode_t		mode;

	va_start(args, flags);
	mode = va_arg(args, mode_t);
	va_end(args);
	if (next == NULL)
		next = dlsym(RTLD_NEXT, "open");
	if (boot_id != NULL &&
		strcmp(path, "/proc/sys/kernel/random/boot_id") == 0)
		path = boot_id;
	return next(path, flags, mode);
}

int
gethostname(char *name, size_t len)
{
	const char *host = getenv("RBP_HOST_NAME");
	int			(*next) (char *, size_t) = dlsym(RTLD_NEXT, "gethostname");

	if (host == NULL)
		return next(name, len);
	if (strlen(host) >= len)
	{
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(name, host);
	return 0;
}
