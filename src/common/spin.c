/*-------------------------------------------------------------------------
 *
 * spin.c
 *	  Adaptive polling: how long to poll before blocking.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/spin.h"

#include <stdatomic.h>

/* State of the whole process; races between threads only make it less exact */
static _Atomic int64_t rest_until;
static _Atomic int64_t rest_ns = RBP_SPIN_MIN_REST_NS;

int64_t
rbp_spin_begin(RbpSpin *spin, int64_t now)
{
	if (now < atomic_load_explicit(&rest_until, memory_order_relaxed))
		return 0;
	if (spin->skip > 0)
	{
		spin->skip--;
		return 0;
	}
	return RBP_SPIN_NS;
}

void
rbp_spin_end(RbpSpin *spin, RbpSpinResult result)
{
	switch (result)
	{
		case RBP_SPIN_SUCCEEDED:
			spin->fails = 0;
			spin->penalty /= 2;
			break;

		case RBP_SPIN_FAILED:
			if (++spin->fails < 3)
				break;
			spin->fails = 0;
			spin->penalty = spin->penalty == 0 ? 4 : spin->penalty * 2;
			if (spin->penalty > RBP_SPIN_MAX_SKIP)
				spin->penalty = RBP_SPIN_MAX_SKIP;
			spin->skip = spin->penalty;
			break;

		case RBP_SPIN_CONTENDED:
			{
				int64_t		ns = atomic_load_explicit(&rest_ns, memory_order_relaxed);
				int64_t		now = rbp_now_ns();

				/* contended again soon after the last rest: rest longer */
				if (now - atomic_load_explicit(&rest_until, memory_order_relaxed) > 16 * ns)
					ns = RBP_SPIN_MIN_REST_NS;
				else if (ns * 2 <= RBP_SPIN_MAX_REST_NS)
					ns *= 2;
				atomic_store_explicit(&rest_ns, ns, memory_order_relaxed);
				atomic_store_explicit(&rest_until, now + ns, memory_order_relaxed);
				break;
			}
	}
}
