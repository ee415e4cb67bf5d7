/*-------------------------------------------------------------------------
 *
 * spin.h
 *	  Adaptive polling: how long to poll before blocking.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SPIN_H
#define RBP_SPIN_H

#include <stdint.h>

/*
 * How long to poll before blocking.  A successful poll makes an exchange take
 * about 11 us, where blocking, with two wake-ups, takes 56 us; a failed poll
 * burns a core that the donor may need.  So each failed poll counts against
 * polling on this connection.  After a few of them, the next waits block at
 * once, twice as many each time, until a poll succeeds again.
 *
 * Polling yields the processor.  If another process runs during a yield, the
 * core is contended.  Then a blocked process would be woken in time, while a
 * process that yields goes to the end of the run queue, on recent kernels
 * behind a whole time slice.  So this disables all polling in the process for
 * a while: 1 ms at first, and twice as long each time, up to 64 ms.
 */
#define RBP_SPIN_NS			50000
#define RBP_SPIN_MAX_SKIP	256
#define RBP_SPIN_CONTENDED_NS	15000	/* a yield that took longer */
#define RBP_SPIN_MIN_REST_NS	1000000
#define RBP_SPIN_MAX_REST_NS	64000000

typedef struct RbpSpin
{
	uint32_t	skip;			/* number of waits left that block at once */
	uint32_t	penalty;		/* how many waits the next failure skips */
	uint32_t	fails;			/* failed polls in a row */
} RbpSpin;

/* How long this wait may poll, in ns; 0: block at once.  now: rbp_now_ns(). */
extern int64_t rbp_spin_begin(RbpSpin *spin, int64_t now);

/* Result of a poll that rbp_spin_begin() allowed */
typedef enum RbpSpinResult
{
	RBP_SPIN_PAID,				/* the event arrived */
	RBP_SPIN_VAIN,				/* it did not arrive in time */
	RBP_SPIN_HURT				/* the core was contended */
} RbpSpinResult;

extern void rbp_spin_end(RbpSpin *spin, RbpSpinResult result);

#endif							/* RBP_SPIN_H */
