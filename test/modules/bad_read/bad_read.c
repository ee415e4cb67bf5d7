/*-------------------------------------------------------------------------
 *
 * bad_read.c
 *	  A preloaded library (LD_PRELOAD) by which reads give what the disk does
 *	  not hold, as a faulty cable or controller may.
 *
 * RBP_BAD_READ names a file that says what to spoil, in one line.  No file of
 * that name: nothing.
 *
 *		SUFFIX OFFSET BYTE
 *
 * The next pread() of the 8 KB page at OFFSET, of a file whose path ends in
 * SUFFIX, finds the highest bit of byte BYTE flipped; or, if that is -1, all
 * zeros.  The file of orders is renamed to *.done by then, so that it happens
 * once, whoever reads.
 *
 *		any ONE_OF SEED
 *
 * So often a pread() of a page of a relation that users have made finds some
 * bit flipped.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE	8192

typedef ssize_t (*ReadCall) (int fd, void *buf, size_t len, off_t offset);

/* What is to be spoilt, if anything is. */
static bool
read_order(const char *orders, char *suffix, long long *where, int *what)
{
	char		line[512];
	int			fd = open(orders, O_RDONLY | O_CLOEXEC);
	ssize_t		n;

	if (fd < 0)
		return false;
	n = read(fd, line, sizeof(line) - 1);
	close(fd);
	if (n <= 0)
		return false;
	line[n] = '\0';
	return sscanf(line, "%255s %lld %d", suffix, where, what) == 3;
}

/* The descriptor's path, if it has one. */
static bool
path_of(int fd, char path[PATH_MAX])
{
	char		link[64];
	ssize_t		len;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, path, PATH_MAX - 1);
	if (len < 0)
		return false;
	path[len] = '\0';
	return true;
}

static bool
ends_in(const char *path, const char *suffix)
{
	size_t		len = strlen(path);
	size_t		want = strlen(suffix);

	return len >= want && strcmp(path + len - want, suffix) == 0;
}

/* base/DB/REL, REL being no catalog's, nor a map. */
static bool
is_users_table(const char *path)
{
	const char *name = strrchr(path, '/');

	return name != NULL && strstr(path, "/base/") != NULL &&
		strspn(name + 1, "0123456789") == strlen(name + 1) &&
		atol(name + 1) >= 16384;
}

/* A few bits flipped, now and then. */
static void
spoil_any(char *buf, long long one_of, int seed)
{
	static unsigned state = 0;

	if (state == 0)
		state = (unsigned) seed ^ ((unsigned) getpid() * 2654435761u);
	state = state * 1664525u + 1013904223u;
	if ((state >> 8) % (unsigned long long) one_of == 0)
		buf[(state >> 4) % PAGE] ^= (char) (1 << (state >> 28) % 8);
}

static void
spoil(int fd, char *buf, ssize_t len, off_t offset)
{
	const char *orders = getenv("RBP_BAD_READ");
	char		suffix[256];
	char		path[PATH_MAX];
	char		done[PATH_MAX];
	long long	where;
	int			what;

	if (orders == NULL || len != PAGE ||
		!read_order(orders, suffix, &where, &what) || !path_of(fd, path))
		return;
	if (strcmp(suffix, "any") == 0)
	{
		if (where > 0 && is_users_table(path))
			spoil_any(buf, where, what);
		return;
	}
	if (where != offset || !ends_in(path, suffix))
		return;
	snprintf(done, sizeof(done), "%s.done", orders);
	if (rename(orders, done) != 0)
		return;
	if (what >= 0 && what < PAGE)
		buf[what] ^= (char) 0x80;
	else
		memset(buf, 0, PAGE);
}

static ssize_t
spoilt_read(const char *name, int fd, void *buf, size_t len, off_t offset)
{
	ReadCall	original;
	void	   *found = dlsym(RTLD_NEXT, name);
	ssize_t		n;

	memcpy(&original, &found, sizeof(original));
	n = original(fd, buf, len, offset);
	if (n > 0)
		spoil(fd, buf, n, offset);
	return n;
}

/* Both of the names by which it may be imported. */

ssize_t
pread(int fd, void *buf, size_t len, off_t offset)
{
	return spoilt_read("pread", fd, buf, len, offset);
}

ssize_t
pread64(int fd, void *buf, size_t len, off64_t offset)
{
	return spoilt_read("pread64", fd, buf, len, (off_t) offset);
}
