/*-------------------------------------------------------------------------
 *
 * slow_miss.c
 *	  A library to preload: makes reads that miss the page cache slower.
 *
 * Each pread() and preadv() first asks for what the page cache has
 * (RWF_NOWAIT).  If that is all, it is the answer; if not, SLOW_MISS_US
 * microseconds pass before the real read.  So a volume's latency is
 * simulated, and the page cache stays as fast as it is.
 *
 * Not for anything but measurements.
 *
 *-------------------------------------------------------------------------
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static ssize_t (*real_pread) (int, void *, size_t, off_t);
static ssize_t (*real_preadv) (int, const struct iovec *, int, off_t);
static long delay_ns = 500000;

__attribute__((constructor)) static void
set_up(void)
{
	const char *us = getenv("SLOW_MISS_US");

	*(void **) &real_pread = dlsym(RTLD_NEXT, "pread");
	*(void **) &real_preadv = dlsym(RTLD_NEXT, "preadv");
	if (us != NULL)
		delay_ns = atol(us) * 1000;

	/* sleeps end when they should, not up to 50 us later; children inherit */
	(void) prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
}

static void
be_slow(void)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += delay_ns;
	while (until.tv_nsec >= 1000000000)
	{
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

/*
 * Is all of it in the page cache?  Then it is read.  What cannot be asked
 * (no regular file, a file system without RWF_NOWAIT) counts as there, and
 * is read by the caller.
 */
static ssize_t
read_cached(int fd, const struct iovec *iov, int iovcnt, size_t len, off_t offset)
{
	ssize_t		n = preadv2(fd, iov, iovcnt, offset, RWF_NOWAIT);

	if (n == (ssize_t) len)
		return n;
	if (n >= 0 || errno == EAGAIN)
		be_slow();
	return -1;
}

ssize_t
pread(int fd, void *buf, size_t len, off_t offset)
{
	struct iovec iov = {.iov_base = buf,.iov_len = len};
	int			save_errno = errno;
	ssize_t		n = read_cached(fd, &iov, 1, len, offset);

	errno = save_errno;
	return n >= 0 ? n : real_pread(fd, buf, len, offset);
}

ssize_t
preadv(int fd, const struct iovec *iov, int iovcnt, off_t offset)
{
	int			save_errno = errno;
	size_t		len = 0;
	ssize_t		n;

	for (int i = 0; i < iovcnt; i++)
		len += iov[i].iov_len;
	n = read_cached(fd, iov, iovcnt, len, offset);
	errno = save_errno;
	return n >= 0 ? n : real_preadv(fd, iov, iovcnt, offset);
}
