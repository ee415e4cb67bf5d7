/*-------------------------------------------------------------------------
 *
 * tick.h
 *	  What time brings.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_TICK_H
#define RBP_BROKER_TICK_H

#include <stdint.h>

/*
 * Do what is due: expire leases, take regions past the grace time, drop the
 * leases of donors that are gone, forget old donors.  Returns the time
 * (rbp_mono_ms()) at which to be called again, at most a second ahead.
 */
extern int64_t broker_tick(void);

#endif							/* RBP_BROKER_TICK_H */
