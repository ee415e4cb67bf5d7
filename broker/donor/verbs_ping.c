/*-------------------------------------------------------------------------
 *
 * verbs_ping.c
 *	  The ping thread: it answers pings, and notices failed connections.
 *
 * Pings are described under "Over verbs" in docs/protocol.md.  A client that
 * doubts a donor waits for the answer to a ping for some tens of milliseconds,
 * while the verbs thread waits for firmware: accepting a client takes 1 to 3
 * ms on a card, registering a region up to 100 ms.  Therefore pings have a
 * thread of their own, which makes no such calls.  It sleeps in poll() on the
 * completion channel of each device.
 *
 * A client can send pings as fast as they are answered.  So each event of a
 * connection is a turn: it takes the completions that there are.  Those that come
 * after that are another event, behind those of other connections.
 *
 * ping_lock protects the list of devices, which only the verbs thread changes,
 * and what a connection's comment says.  It is held for a round: some microseconds
 * for each event.  The verbs thread also takes it before it destroys a queue pair.
 * No other lock is taken while it is held.
 *
 * A connection is freed when its CQ is destroyed, for which libibverbs waits
 * until all of its events are acknowledged.  So a connection found by an event
 * may be used up to that.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/log.h"
#include "broker/common/signals.h"
#include "broker/donor/verbs_internal.h"
#include "common/clock.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>

#define CQ_EVENTS		64		/* of a device, taken per round */

/* Kinds of work requests by wr_id; lower ones are receives, by slot */
#define WR_ANSWER		RBP_VERBS_PINGS
#define WR_PROBE		(2 * RBP_VERBS_PINGS)

static pthread_mutex_t ping_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int wanted;		/* by the verbs thread: mutexes are not fair */
static int	ping_wake_fd = -1;
int			donor_verbs_wake_fd = -1;

/* under ping_lock */
static LIST_HEAD(DeviceList, RbpDonorVerbsDevice) devices = LIST_HEAD_INITIALIZER(devices);

void
donor_verbs_wake(void)
{
	/* fails only if the counter overflows */
	(void) eventfd_write(donor_verbs_wake_fd, 1);
}

static void
lock_pings(void)
{
	atomic_fetch_add(&wanted, 1);
	pthread_mutex_lock(&ping_lock);
	atomic_fetch_sub(&wanted, 1);
}

bool
donor_verbs_post_receive(RbpDonorVerbsConn *conn, uint32_t slot)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t) conn->requests[slot],
		.length = RBP_REQUEST_SIZE,
		.lkey = conn->mr->lkey
	};
	struct ibv_recv_wr wr = {.wr_id = slot,.sg_list = &sge,.num_sge = 1};
	struct ibv_recv_wr *bad;

	errno = ibv_post_recv(conn->id->qp, &wr, &bad);
	return errno == 0;
}

/* Answer the ping in this slot.  False if the client violates the protocol. */
static bool
answer_ping(RbpDonorVerbsConn *conn, uint32_t slot)
{
	RbpWireRequest req;
	RbpWireAnswer ans = {.op = RBP_OP_PING,.status = RBP_WIRE_OK};
	struct ibv_sge sge = {.length = RBP_ANSWER_SIZE,.lkey = conn->mr->lkey};
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED
	};
	struct ibv_send_wr *bad;
	uint32_t	answer = 0;

	if (!rbp_wire_get_request(conn->requests[slot], RBP_REQUEST_SIZE, &req) ||
		req.prefix.op != RBP_OP_PING)
		return false;
	while (answer < RBP_VERBS_PINGS && (conn->busy & 1u << answer) != 0)
		answer++;
	if (answer == RBP_VERBS_PINGS)
	{
		/*
		 * the client has received earlier answers, but our device has not
		 * completed them
		 */
		conn->held[conn->nheld++] = slot;
		return true;
	}

	/* first post a receive for the next ping, which the answer permits */
	if (!donor_verbs_post_receive(conn, slot))
		return false;
	ans.id = req.id;
	rbp_wire_put_answer(conn->answers[answer], &ans);
	sge.addr = (uintptr_t) conn->answers[answer];
	wr.wr_id = WR_ANSWER + answer;
	conn->busy |= 1u << answer;
	return ibv_post_send(conn->id->qp, &wr, &bad) == 0;
}

/*
 * The client has sent something, so it has our REP.  If its RTU is lost,
 * rdma_cm is told, which would give up the connection otherwise.
 */
static void
establish(RbpDonorVerbsConn *conn)
{
	if (!conn->established)
		(void) rdma_notify(conn->id, IBV_EVENT_COMM_EST);
	conn->established = true;
}

static bool
handle_completion(RbpDonorVerbsConn *conn, const struct ibv_wc *wc)
{
	/* the peer is gone, or was denied access, or our device gave up */
	if (wc->status != IBV_WC_SUCCESS)
		return false;
	if (wc->wr_id < WR_ANSWER)
	{
		establish(conn);
		return wc->byte_len == RBP_REQUEST_SIZE &&
			answer_ping(conn, (uint32_t) wc->wr_id);
	}
	if (wc->wr_id == WR_PROBE)
	{
		conn->probing = false;
		return true;
	}
	conn->busy &= ~(1u << (wc->wr_id - WR_ANSWER));
	return conn->nheld == 0 || answer_ping(conn, conn->held[--conn->nheld]);
}

static void
break_conn(RbpDonorVerbsConn *conn)
{
	/*
	 * It is closed later, or when the client disconnects: the client should
	 * learn the reason from its device, and not from rdma_cm that we are
	 * gone.
	 */
	if (conn->broken_at == 0)
		conn->broken_at = rbp_boottime_ns();
}

/*
 * Handle the completions of a connection.  The next event is requested before that, so
 * that nothing is missed.  There are no more than the CQ has room for: the work
 * requests that they are of can only be posted again when they have been handled.
 */
static void
take_turn(RbpDonorVerbsConn *conn)
{
	struct ibv_wc wc[DONOR_VERBS_CQ_SIZE];
	bool		good = ibv_req_notify_cq(conn->cq, 0) == 0;
	int			n = good ? ibv_poll_cq(conn->cq, DONOR_VERBS_CQ_SIZE, wc) : 0;

	for (int i = 0; i < n && good; i++)
		good = handle_completion(conn, &wc[i]);
	if (!good || n < 0)
		break_conn(conn);
}

/* Give the connections whose CQs have signalled completions a turn. */
static void
take_turns(RbpDonorVerbsDevice *device)
{
	struct ibv_cq *cq;
	void	   *context;

	for (int i = 0; i < CQ_EVENTS && ibv_get_cq_event(device->channel, &cq, &context) == 0; i++)
	{
		RbpDonorVerbsConn *conn = context;

		if (!conn->stopped && conn->broken_at == 0)
			take_turn(conn);
		ibv_ack_cq_events(cq, 1);
	}
}

static void *
ping_main(void *arg)
{
	for (;;)
	{
		struct pollfd fds[1 + DONOR_MAX_DEVICES];
		RbpDonorVerbsDevice *device;
		eventfd_t	count;
		int			n = 0;

		fds[n++] = donor_verbs_readable(ping_wake_fd);
		while (atomic_load(&wanted) > 0)
			sched_yield();
		pthread_mutex_lock(&ping_lock);
		for (device = LIST_FIRST(&devices); device != NULL; device = LIST_NEXT(device, link))
			if (!device->failed)
				fds[n++] = donor_verbs_readable(device->channel->fd);
		pthread_mutex_unlock(&ping_lock);

		/* a device may go meanwhile, and its descriptor be another file */
		if (poll(fds, (nfds_t) n, -1) < 0)
			continue;
		if (fds[0].revents != 0)
			(void) eventfd_read(ping_wake_fd, &count);

		pthread_mutex_lock(&ping_lock);
		for (device = LIST_FIRST(&devices); device != NULL; device = LIST_NEXT(device, link))
		{
			take_turns(device);
			for (int i = 1; i < n; i++)
				if (fds[i].fd == device->channel->fd && (fds[i].revents & ~POLLIN) != 0 &&
					(fds[i].revents & POLLNVAL) == 0 && !device->failed)
				{
					device->failed = true;
					donor_verbs_wake();
				}
		}
		pthread_mutex_unlock(&ping_lock);
	}
	return NULL;
}

void
donor_verbs_start_pings(void)
{
	ping_wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ping_wake_fd < 0)
		rbp_die("could not make an eventfd: %s", strerror(errno));
	rbp_thread_start(ping_main, NULL);
}

/*
 * ---- for the verbs thread ------------------------------------------------
 */
RbpDonorVerbsDevice *
donor_verbs_devices(void)
{
	return LIST_FIRST(&devices);
}

void
donor_verbs_add_device(RbpDonorVerbsDevice *device)
{
	lock_pings();
	LIST_INSERT_HEAD(&devices, device, link);
	pthread_mutex_unlock(&ping_lock);
	(void) eventfd_write(ping_wake_fd, 1);
}

void
donor_verbs_remove_device(RbpDonorVerbsDevice *device)
{
	lock_pings();
	LIST_REMOVE(device, link);
	pthread_mutex_unlock(&ping_lock);
}

void
donor_verbs_stop_pings(RbpDonorVerbsConn *conn)
{
	lock_pings();
	conn->stopped = true;
	pthread_mutex_unlock(&ping_lock);
}

void
donor_verbs_established(RbpDonorVerbsConn *conn, bool by_rdma_cm)
{
	lock_pings();
	if (by_rdma_cm)
		conn->established = true;
	else
		establish(conn);
	pthread_mutex_unlock(&ping_lock);
}

void
donor_verbs_broken(RbpDonorVerbsConn *conn)
{
	lock_pings();
	break_conn(conn);
	pthread_mutex_unlock(&ping_lock);
}

bool
donor_verbs_probe(RbpDonorVerbsConn *conn)
{
	struct ibv_send_wr wr = {
		.wr_id = WR_PROBE,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED
	};
	struct ibv_send_wr *bad;
	bool		posted;

	lock_pings();
	conn->probing = true;
	posted = ibv_post_send(conn->id->qp, &wr, &bad) == 0;
	pthread_mutex_unlock(&ping_lock);
	return posted;
}
