/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  Clocks for intervals and deadlines.
 *
 * None of them ever goes back.  No lock, no wait; any thread.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CLOCK_H
#define RBP_CLOCK_H

#include <stdint.h>

#define NANOS_PER_MS	INT64_C(1000000)
#define NANOS_PER_S	INT64_C(1000000000)

/*
 * CLOCK_MONOTONIC in nanoseconds.  All deadlines of the extension use this
 * clock.
 */
extern int64_t rbp_now_ns(void);

/*
 * CLOCK_MONOTONIC_COARSE in nanoseconds: the same time as of the last tick of
 * the kernel, so some milliseconds late; a tenth of the cost.
 */
extern int64_t rbp_coarse_now_ns(void);

/* CLOCK_MONOTONIC in milliseconds. */
extern int64_t rbp_mono_ms(void);

/*
 * CLOCK_BOOTTIME in nanoseconds: unlike the others, it advances while the
 * machine is suspended.  Donors use it, because their leases end meanwhile.
 */
extern int64_t rbp_boottime_ns(void);

#endif							/* RBP_CLOCK_H */
