/*-------------------------------------------------------------------------
 *
 * verbs.c
 *	  Reads and writes of donor memory by RDMA: one-sided, over a reliable
 *	  connection (RC) that rdma_cm makes.
 *
 * Processes that use RDMA load this, and what it needs, as a library of its own:
 * see transport/library.c.
 *
 * connect.c has a connection's beginning and end, requests.c what is posted,
 * and what completes.
 *
 * Concurrency
 * -----------
 * A connection has its event channel, id, queue pair (QP) and completion
 * queue (CQ) to itself, and belongs to one thread at a time.  What connections
 * of a process share, protection domains and the registrations of callers'
 * memory, is in device.c, under a lock of its own.
 *
 * The device is the other party.  It touches memory from the moment that a
 * work request is posted until its completion is taken from the CQ, or until
 * rdma_destroy_qp() has returned, which is the one way to end that early.
 * Three kinds of memory are exposed to it:
 *
 *	- the connection's own memory, registered once.  It has bounce buffers,
 *	  through which bytes are copied when the caller's buffer is not
 *	  registered, larger requests piece by piece, and room for the small
 *	  messages.  A caller who gives up takes its RbpIo away; the bounce buffer
 *	  stays taken until the completion comes, and the connection goes on.
 *	- callers' registered memory (RbpIo.mr), used in place.  Giving up such a
 *	  request while it is posted costs the connection: the QP is destroyed
 *	  before wait() returns.
 *	- the donor's memory, by its keys.
 *
 * Waiting is polling, with sleeps that get longer: there is no completion
 * channel, since waking up through one takes longer than a read.  The event
 * channel tells of a donor that is gone; it is looked at about each
 * millisecond of waiting.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/status.h"
#include "transport/sock.h"
#include "transport/verbs/conn.h"

#include <sched.h>
#include <time.h>

/* How a wait polls; all from the last completion on, but the last. */
#define SPIN_NS			100000
#define YIELD_NS		2000000
#define NAP_NS			50000
#define IDLE_NS			200000	/* before the first look at events */
#define EVENTS_NS		1000000 /* between looks */

static RbpStatus
verbs_register_memory(RbpConn *base, void *memory, size_t len, RbpMr **mr)
{
	VerbsConn  *conn = (VerbsConn *) base;

	if (conn->device == NULL)
		return RBP_INVALID;		/* not connected */
	return rbp_verbs_mr_get(conn->device, memory, len, mr);
}

static RbpStatus
verbs_submit(RbpConn *base, RbpIo *ios, int n)
{
	VerbsConn  *conn = (VerbsConn *) base;

	if (conn->state != VERBS_READY)
		return rbp_io_set_all(ios, n, conn->state == VERBS_FAILED
							  ? conn->failure : RBP_INVALID);
	for (int i = 0; i < n; i++)
		ios[i].status = rbp_verbs_enqueue(conn, &ios[i]);
	rbp_verbs_post(conn);
	return conn->state == VERBS_FAILED ? conn->failure : RBP_OK;
}

static RbpStatus
verbs_wait(RbpConn *base, RbpIo *ios, int n, int64_t deadline_ns)
{
	VerbsConn  *conn = (VerbsConn *) base;
	int64_t		last = 0;		/* when something completed; 0: just now */
	int			first = 0;		/* those before it are final */

	for (;;)
	{
		bool		some;
		int64_t		now;

		while (first < n && ios[first].status != RBP_INPROGRESS)
			first++;
		if (first == n || conn->state != VERBS_READY)
			break;

		some = rbp_verbs_progress(conn);
		now = rbp_now_ns();
		if (some || last == 0)
			last = now;
		if (now >= deadline_ns ||
			(now - last >= YIELD_NS && rbp_transport_give_up()))
		{
			rbp_verbs_give_up(conn, ios + first, n - first);
			break;
		}
		if (some)
			continue;

		if (now - last >= IDLE_NS && now - conn->looked_at >= EVENTS_NS)
			rbp_verbs_look_at_events(conn, now);
		if (now - last >= YIELD_NS)
		{
			int64_t		nap = deadline_ns - now < NAP_NS ? deadline_ns - now : NAP_NS;
			struct timespec ts = {.tv_nsec = nap};

			(void) nanosleep(&ts, NULL);
		}
		else if (now - last >= SPIN_NS)
			sched_yield();
	}
	return rbp_io_result(ios, n);
}

const char	rbp_verbs_version[] = RBP_VERSION;

/* What library.c takes of it, and connections carry */
const RbpTransportOps rbp_verbs_ops = {
	.usable = rbp_verbs_usable,
	.connect = rbp_verbs_connect,
	.connect_wait = rbp_verbs_connect_wait,
	.register_memory = verbs_register_memory,
	.deregister_memory = rbp_verbs_mr_put,
	.submit = verbs_submit,
	.wait = verbs_wait,
	.close = rbp_verbs_close,
};
