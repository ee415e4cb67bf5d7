/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Registration of wait events, and waiting for the latch.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/latch.h"

#include "base/compat.h"
#include "base/wait.h"

#define EVENT(event, name)	PG_WAIT_EXTENSION,
uint32		rbp_wait_events[RBP_WAITS] = {RBP_WAIT_EVENTS(EVENT)};
#undef EVENT

void
rbp_wait_init(void)
{
	static const char *const names[RBP_WAITS] = {
#define NAME(event, name)	#name,
		RBP_WAIT_EVENTS(NAME)
#undef NAME
	};

	for (int i = 0; i < RBP_WAITS; i++)
		rbp_wait_events[i] = rbp_compat_wait_event(names[i]);
}

void
rbp_wait_latch(RbpWait wait, long ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 ms, rbp_wait_events[wait]);
	ResetLatch(MyLatch);
}
