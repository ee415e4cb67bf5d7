/*-------------------------------------------------------------------------
 *
 * drop_cache.c
 *	  Take the files below a directory out of the page cache, again and again.
 *
 *	  drop_cache DIRECTORY MILLISECONDS
 *
 * For the demo, where no control group can limit the memory of a server: its
 * files leave the page cache as they do on a host whose other programs need
 * the memory.  After each round there is a pause of MILLISECONDS.
 *
 * Each round prints a line of two numbers of bytes: what it found in the page
 * cache, and the sum of the files' sizes.
 *
 * Dirty pages cannot be dropped.  The kernel starts to write them when asked
 * to, and a later round drops them; nothing waits for that, and nothing else
 * is done to the files.
 *
 * Ends by a signal, also when the process that started it ends.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of the round that goes on, in bytes. */
static unsigned long long cached;
static unsigned long long size;

/*
 * How much of a file is in the page cache?  In bytes, in whole pages.  The
 * mapping is not touched: that would read the file.
 */
static unsigned long long
bytes_cached(int fd, size_t length)
{
	size_t		page = (size_t) sysconf(_SC_PAGESIZE);
	size_t		npages = (length + page - 1) / page;
	size_t		found = 0;
	unsigned char *present = malloc(npages);
	void	   *map = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);

	if (present == NULL || map == MAP_FAILED || mincore(map, length, present) != 0)
	{
		perror("drop_cache: cannot ask for the pages of a file");
		exit(1);
	}
	for (size_t i = 0; i < npages; i++)
		found += present[i] & 1;
	munmap(map, length);
	free(present);
	return (unsigned long long) found * page;
}

/* Called for each file below the directory.  It may go away at any time. */
static int
drop(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	int			fd;
	struct stat now;

	(void) st;
	(void) ftw;
	if (type != FTW_F)
		return 0;
	fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
	{
		if (errno == ENOENT)
			return 0;
		fprintf(stderr, "drop_cache: cannot open \"%s\": %s\n", path, strerror(errno));
		exit(1);
	}
	if (fstat(fd, &now) == 0 && S_ISREG(now.st_mode) && now.st_size > 0)
	{
		cached += bytes_cached(fd, (size_t) now.st_size);
		size += (unsigned long long) now.st_size;
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	}
	close(fd);
	return 0;
}

int
main(int argc, char **argv)
{
	long		pause_ms = argc == 3 ? strtol(argv[2], NULL, 10) : 0;

	if (pause_ms <= 0)
	{
		fprintf(stderr, "usage: drop_cache DIRECTORY MILLISECONDS\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	for (;;)
	{
		cached = size = 0;
		/* Directories of temporary files may go away, too. */
		if (nftw(argv[1], drop, 16, FTW_PHYS) != 0 && errno != ENOENT)
		{
			perror("drop_cache: cannot read the directory");
			return 1;
		}
		if (printf("%llu %llu\n", cached, size) < 0 || fflush(stdout) != 0)
			return 1;
		usleep((useconds_t) pause_ms * 1000);
	}
}
