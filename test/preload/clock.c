/*
 * clock.c
 *	  Preloaded into a daemon by a test: a clock that steps.
 *
 * While the file that RBP_CLOCK names is there, it holds a number of seconds by which
 * the time of day is off.  CLOCK_BOOTTIME is as it is, and so is CLOCK_MONOTONIC, unless
 * RBP_CLOCK_MONOTONIC is set.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long
offset(void)
{
	const char *name = getenv("RBP_CLOCK");
	int			save_errno = errno;
	FILE	   *file = name != NULL ? fopen(name, "re") : NULL;
	long		seconds = 0;

	if (file != NULL)
	{
		if (fscanf(file, "%ld", &seconds) != 1)
			seconds = 0;
		fclose(file);
	}
	errno = save_errno;
	return seconds;
}

int
clock_gettime(clockid_t clock, struct timespec *ts)
{
	static int	(*next) (clockid_t, struct timespec *);
	int			rc;

	if (next == NULL)
		*(void **) &next = dlsym(RTLD_NEXT, "clock_gettime");
	rc = next(clock, ts);
	if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE ||
					(clock == CLOCK_MONOTONIC && getenv("RBP_CLOCK_MONOTONIC") != NULL)))
		ts->tv_sec += offset();
	return rc;
}

int
gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	struct timespec ts;

	(void) zone;
	clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t * now)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	if (now != NULL)
		*now = ts.tv_sec;
	return ts.tv_sec;
}
