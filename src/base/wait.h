/*-------------------------------------------------------------------------
 *
 * wait.h
 *	  Wait events: what pg_stat_activity shows while a process waits for us.
 *
 * A wrapper runs where the server has reported a wait for a data file, and
 * replaces that event while it waits for a donor.  From PostgreSQL 17 on each
 * event has a name, listed below; before, all are waits of type Extension.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_WAIT_H
#define RBP_WAIT_H

#include "postgres.h"

#include "utils/wait_event.h"

/* X(event, name) */
#define RBP_WAIT_EVENTS(X) \
	X(READ, RemoteBpRead)			/* a read of pages from donors */ \
	X(WRITE, RemoteBpWrite)			/* a write of pages to donors */ \
	X(SPILL, RemoteBpSpill)			/* temporary data on donors */ \
	X(CONNECT, RemoteBpConnect)		/* a connection to a donor */ \
	X(BROKER, RemoteBpBroker)		/* an answer of the broker */ \
	X(STAGING, RemoteBpStaging)		/* a free staging slot */ \
	X(MAIN, RemoteBpMain)		/* work, in a background worker */

typedef enum RbpWait
{
#define RBP_WAIT_EVENT_ENUM(event, name)	RBP_WAIT_##event,
	RBP_WAIT_EVENTS(RBP_WAIT_EVENT_ENUM)
#undef RBP_WAIT_EVENT_ENUM
	RBP_WAITS
} RbpWait;

/* The server's numbers for the events, by RbpWait */
extern uint32 rbp_wait_events[RBP_WAITS];

/*
 * Register the events.  Called in the postmaster, after each initialization
 * of shared memory.
 */
extern void rbp_wait_init(void);

/* Wait for this process's latch, for so long at most, and reset it. */
extern void rbp_wait_latch(RbpWait wait, long ms);

/* Report a wait.  Returns what was reported before, for rbp_wait_end(). */
static inline uint32
rbp_wait_start(RbpWait wait)
{
	uint32		before = *(volatile uint32 *) my_wait_event_info;

	pgstat_report_wait_start(rbp_wait_events[wait]);
	return before;
}

static inline void
rbp_wait_end(uint32 before)
{
	pgstat_report_wait_start(before);
}

#endif							/* RBP_WAIT_H */
