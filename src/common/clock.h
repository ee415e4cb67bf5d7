/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  The clocks that intervals and deadlines are measured by.
 *
 * None of them ever goes back.  No lock, no wait; any thread.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CLOCK_H
#define RBP_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC in nanoseconds: all deadlines are counted by it. */
extern int64_t rbp_now_ns(void);

/*
 * The same as of the last tick of the kernel, which costs a tenth: some
 * milliseconds late.
 */
extern int64_t rbp_coarse_now_ns(void);

/* CLOCK_MONOTONIC in milliseconds. */
extern int64_t rbp_mono_ms(void);

/*
 * CLOCK_BOOTTIME in nanoseconds: it goes on while the machine is suspended, as
 * the time of other machines does.
 */
extern int64_t rbp_boottime_ns(void);

#endif							/* RBP_CLOCK_H */
