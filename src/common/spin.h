/*-------------------------------------------------------------------------
 *
 * spin.h
 *	  Polling that pays: how long to look before one sleeps.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SPIN_H
#define RBP_SPIN_H

#include <stdint.h>

/*
 * How long to poll before blocking.  A poll that pays costs about 11 us for
 * a whole exchange where a sleep and two wake-ups cost 56; one that does not
 * pay burns a core that the donor may need.  So each wait that polled in vain
 * counts against polling on this connection, and after a few the next waits
 * block at once, twice as many each time, until one succeeds again.
 *
 * Polling yields.  A yield that ran somebody else shows that the core is
 * wanted: then a sleeper would be woken in time, while who yields goes to the
 * end of the queue, and on recent kernels behind a whole time slice.  So that
 * ends all polling in the process for a while, 1 ms at first and twice as
 * long each time up to 64 ms.
 */
#define RBP_SPIN_NS			50000
#define RBP_SPIN_MAX_SKIP	256
#define RBP_SPIN_CONTENDED_NS	15000	/* a yield that took longer */
#define RBP_SPIN_MIN_REST_NS	1000000
#define RBP_SPIN_MAX_REST_NS	64000000

typedef struct RbpSpin
{
	uint32_t	skip;			/* waits that are to block at once */
	uint32_t	penalty;		/* how many waits the next failure skips */
	uint32_t	fails;			/* vain polls in a row */
} RbpSpin;

/* How long this wait may poll, in ns; 0: block at once.  now: rbp_now_ns(). */
extern int64_t rbp_spin_begin(RbpSpin *spin, int64_t now);

/* How the poll that rbp_spin_begin() allowed has ended. */
typedef enum RbpSpinResult
{
	RBP_SPIN_PAID,				/* what we waited for came */
	RBP_SPIN_VAIN,				/* it did not, in that time */
	RBP_SPIN_HURT				/* others wanted this core */
} RbpSpinResult;

extern void rbp_spin_end(RbpSpin *spin, RbpSpinResult result);

#endif							/* RBP_SPIN_H */
