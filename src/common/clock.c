/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  Clocks for intervals and deadlines.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"

#include <time.h>

static int64_t
read_clock(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t
rbp_now_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

int64_t
rbp_coarse_now_ns(void)
{
	return read_clock(CLOCK_MONOTONIC_COARSE);
}

int64_t
rbp_mono_ms(void)
{
	return read_clock(CLOCK_MONOTONIC) / 1000000;
}

int64_t
rbp_boottime_ns(void)
{
	return read_clock(CLOCK_BOOTTIME);
}
