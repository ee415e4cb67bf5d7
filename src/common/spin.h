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
 * wastes processor time that others may need, such as a donor on this host.
 * So each failed poll counts against polling on this connection.  After three
 * in a row, the next waits block at once, twice as many each time; a
 * successful poll halves their number.
 *
 * Polling yields the processor.  If another process runs during a yield, the
 * core is contended.  Then blocking is better: a blocked process runs soon
 * after it is woken, but one that has yielded must wait for the others in the
 * run queue, on recent kernels for a whole time slice.  So this disables all
 * polling in the process for a while: 1 ms at first, and twice as long each
 * time, up to 64 ms.
 */
#define RBP_SPIN_NS			50000
#define RBP_SPIN_MAX_SKIP	256 /* waits that block at once, at most */
#define RBP_SPIN_CONTENDED_NS	15000	/* a yield that took longer */
#define RBP_SPIN_MIN_REST_NS	1000000
#define RBP_SPIN_MAX_REST_NS	64000000

typedef struct RbpSpin
{
	uint32_t	skip;			/* number of waits left that block at once */
	uint32_t	penalty;		/* how many waits the last failures skipped;
								 * the next ones skip twice as many */
	uint32_t	fails;			/* failed polls in a row */
} RbpSpin;

/* How long this wait may poll, in ns; 0: block at once.  now: rbp_now_ns(). */
extern int64_t rbp_spin_begin(RbpSpin *spin, int64_t now);

/* Result of a poll that rbp_spin_begin() allowed */
typedef enum RbpSpinResult
{
	RBP_SPIN_SUCCEEDED,			/* the event arrived */
	RBP_SPIN_FAILED,			/* it did not arrive in time */
	RBP_SPIN_CONTENDED			/* the core was contended */
} RbpSpinResult;

extern void rbp_spin_end(RbpSpin *spin, RbpSpinResult result);

#endif							/* RBP_SPIN_H */
