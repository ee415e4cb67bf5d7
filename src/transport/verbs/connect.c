/*-------------------------------------------------------------------------
 *
 * connect.c
 *	  A verbs connection from the first event of rdma_cm to its end.
 *
 * Nothing here waits except rbp_verbs_connect_wait(), until its deadline.  A
 * connection advances by one step with each event.  At its end the queue pair
 * is destroyed first, so that the device does not access our memory any more.
 *
 *-------------------------------------------------------------------------
 */
#include "common/status.h"
#include "transport/peer.h"
#include "transport/sock.h"
#include "transport/transport.h"
#include "transport/verbs/device.h"
#include "transport/verbs/verbs_internal.h"
#include "wire/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define RESOLVE_MS		1000	/* address; and again so long for the route */
#define RNR_RETRIES		6		/* for pings; the largest finite number, since
								 * 7 means without end */

/*
 * ---- the end of a connection ------------------------------------------------
 */

/*
 * Destroy the queue pair; then the device does not access our memory any more.
 * The peer is told before, but the message may get lost.
 */
static void
release_qp(VerbsConn *conn)
{
	if (conn->id == NULL || conn->id->qp == NULL)
		return;
	if (conn->state == VERBS_READY)
		(void) rdma_disconnect(conn->id);
	rdma_destroy_qp(conn->id);
}

/*
 * The connection is over.  What is in flight gets status, unless it is final
 * already; what is submitted later, and connect_wait(), get failure.
 */
void
rbp_verbs_fail(VerbsConn *conn, RbpStatus status, RbpStatus failure)
{
	if (conn->state == VERBS_FAILED)
		return;
	release_qp(conn);
	conn->state = VERBS_FAILED;
	conn->failure = failure;
	OPENSSL_cleanse(&conn->cred, sizeof(conn->cred));

	while (conn->done < conn->posted)
		end_io(work_at(conn, conn->done++)->io, status);
	for (; conn->data.head != conn->data.tail; conn->data.head++)
		end_io(*queue_at(&conn->data, conn->data.head), status);
	for (; conn->pings.head != conn->pings.tail; conn->pings.head++)
		end_io(*queue_at(&conn->pings, conn->pings.head), status);
	for (int i = 0; i < RBP_VERBS_PINGS; i++)
	{
		end_io(conn->pinged[i].io, status);
		conn->pinged[i].io = NULL;
	}
}

/*
 * ---- connecting -------------------------------------------------------------
 */

static RbpStatus
status_of_errno(int error)
{
	return error == ENOMEM || error == ENOBUFS || error == EMFILE ||
		error == ENFILE ? RBP_NOMEM : RBP_CONNLOST;
}

/*
 * Set up what needs the device, which is known once the route is: registered
 * memory, queues, and the receives for pings.
 */
static RbpStatus
make_qp(VerbsConn *conn)
{
	struct ibv_context *verbs = conn->id->verbs;
	struct ibv_qp_init_attr attr = {
		.cap = {
			.max_send_wr = SQ_DEPTH,
			.max_recv_wr = RBP_VERBS_PINGS,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.qp_type = IBV_QPT_RC,
	};

	conn->device = rbp_verbs_device_get(verbs);
	if (conn->device == NULL)
		return RBP_NOMEM;

	conn->memory = mmap(NULL, MEMORY_SIZE, PROT_READ | PROT_WRITE,
						MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (conn->memory == MAP_FAILED)
	{
		conn->memory = NULL;
		return RBP_NOMEM;
	}

	/*
	 * Otherwise copy-on-write could give this process new pages after a fork,
	 * while the device goes on with the old ones.
	 */
	if (madvise(conn->memory, MEMORY_SIZE, MADV_DONTFORK) != 0)
		return RBP_NOMEM;
	conn->memory_mr = ibv_reg_mr(conn->device->pd, conn->memory, MEMORY_SIZE,
								 IBV_ACCESS_LOCAL_WRITE);
	if (conn->memory_mr == NULL)
		return RBP_NOMEM;

	conn->cq = ibv_create_cq(verbs, SQ_DEPTH + RBP_VERBS_PINGS, NULL, NULL, 0);
	if (conn->cq == NULL)
		return RBP_NOMEM;
	attr.send_cq = conn->cq;
	attr.recv_cq = conn->cq;
	if (rdma_create_qp(conn->id, conn->device->pd, &attr) != 0)
		return RBP_NOMEM;

	for (int i = 0; i < RBP_VERBS_PINGS; i++)
		if (rbp_verbs_post_receive(conn, i) != 0)
			return RBP_NOMEM;
	return RBP_OK;
}

/* The route is known: ask the donor. */
static RbpStatus
send_request(VerbsConn *conn)
{
	RbpWireVerbsHello hello = {.version = RBP_WIRE_VERSION};
	uint8_t		message[RBP_VERBS_HELLO_SIZE];
	struct rdma_conn_param param = {
		.private_data = message,
		.private_data_len = sizeof(message),
		.retry_count = (uint8_t) rbp_verbs_config()->retry_count,
		.rnr_retry_count = RNR_RETRIES,
	};
	RbpStatus	status = make_qp(conn);

	if (status != RBP_OK)
		return status;
	param.initiator_depth = conn->device->reads;	/* the donor reads nothing */

	if (getrandom(hello.nonce, sizeof(hello.nonce), 0) != sizeof(hello.nonce) ||
		!rbp_verbs_lease_digest(conn->cred.lease, hello.digest) ||
		!rbp_verbs_mac(conn->cred.secret, hello.nonce, hello.digest,
					   rdma_get_local_addr(conn->id), conn->id->qp->qp_num,
					   hello.mac))
		return RBP_NOMEM;
	OPENSSL_cleanse(&conn->cred, sizeof(conn->cred));
	rbp_wire_put_verbs_hello(message, &hello);

	if (rdma_connect(conn->id, &param) != 0)
		return status_of_errno(errno);
	conn->state = VERBS_CONNECTING;
	return RBP_OK;
}

/* The donor's answer, in private data; false if there is none. */
static bool
read_welcome(VerbsConn *conn, const struct rdma_conn_param *param)
{
	return param->private_data != NULL &&
		rbp_wire_get_verbs_welcome(param->private_data, param->private_data_len,
								   &conn->welcome);
}

/*
 * What an event means for the connection: RBP_OK to go on, else why it is
 * over.
 */
static RbpStatus
handle_event(VerbsConn *conn, const struct rdma_cm_event *event)
{
	switch (event->event)
	{
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			if (!rbp_verbs_is_configured(conn->id))
				return RBP_CONNLOST;
			conn->state = VERBS_ROUTE;
			if (rdma_resolve_route(conn->id, RESOLVE_MS) != 0)
				return status_of_errno(errno);
			return RBP_OK;

		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			return send_request(conn);

		case RDMA_CM_EVENT_ESTABLISHED:
			if (!read_welcome(conn, &event->param.conn) ||
				conn->welcome.status != RBP_WIRE_OK)
				return RBP_PROTOCOL;
			conn->regions = calloc(conn->welcome.regions, sizeof(Region));
			if (conn->regions == NULL)
				return RBP_NOMEM;
			conn->state = VERBS_READY;
			return RBP_OK;

		case RDMA_CM_EVENT_REJECTED:
			/* by the donor; or by its kernel, because nobody listens there */
			if (!read_welcome(conn, &event->param.conn) ||
				conn->welcome.status == RBP_WIRE_OK)
				return RBP_CONNLOST;
			return rbp_status_from_wire(conn->welcome.status);

		case RDMA_CM_EVENT_ADDR_CHANGE:
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			return RBP_OK;		/* if the path is broken, requests will fail */

		default:
			return RBP_CONNLOST;
	}
}

/* Take an event, if there is one.  False if there is none. */
static bool
take_event(VerbsConn *conn)
{
	struct rdma_cm_event *event;
	RbpStatus	status;

	if (rdma_get_cm_event(conn->channel, &event) != 0)
	{
		if (errno != EAGAIN && errno != EINTR)
			rbp_verbs_fail(conn, status_of_errno(errno), RBP_CONNLOST);
		return false;
	}
	status = handle_event(conn, event);
	(void) rdma_ack_cm_event(event);
	if (status != RBP_OK)
		rbp_verbs_fail(conn, status, status);
	return true;
}

/* While waiting, or before posting: is the donor still there? */
void
rbp_verbs_look_at_events(VerbsConn *conn, int64_t now)
{
	conn->looked_at = now;
	while (conn->state == VERBS_READY && take_event(conn))
		;
}

void
rbp_verbs_close(RbpConn *base)
{
	VerbsConn  *conn = (VerbsConn *) base;

	if (conn == NULL)
		return;
	release_qp(conn);
	if (conn->cq != NULL)
		(void) ibv_destroy_cq(conn->cq);
	if (conn->memory_mr != NULL)
		(void) ibv_dereg_mr(conn->memory_mr);
	if (conn->memory != NULL)
		(void) munmap(conn->memory, MEMORY_SIZE);
	if (conn->device != NULL)
		rbp_verbs_device_put(conn->device);
	if (conn->id != NULL)
		(void) rdma_destroy_id(conn->id);
	if (conn->channel != NULL)
		rdma_destroy_event_channel(conn->channel);
	free(conn->regions);
	free(conn->data.ios);
	free(conn->pings.ios);
	OPENSSL_cleanse(&conn->cred, sizeof(conn->cred));
	free(conn);
}

/* The first steps, up to where events go on. */
static RbpStatus
start(VerbsConn *conn, struct sockaddr *peer)
{
	struct sockaddr_storage source;
	socklen_t	len;
	RbpStatus	status = rbp_verbs_source_address(peer->sa_family, &source, &len);

	if (status != RBP_OK)
		return status;
	conn->channel = rdma_create_event_channel();
	if (conn->channel == NULL)
		return status_of_errno(errno);
	if (fcntl(conn->channel->fd, F_SETFD, FD_CLOEXEC) != 0 ||
		fcntl(conn->channel->fd, F_SETFL, O_NONBLOCK) != 0)
		return RBP_NOMEM;
	if (rdma_create_id(conn->channel, &conn->id, conn, RDMA_PS_TCP) != 0)
	{
		conn->id = NULL;
		return status_of_errno(errno);
	}
	status = rbp_verbs_set_options(conn->id);
	if (status != RBP_OK)
		return status;
	if (rdma_resolve_addr(conn->id, len > 0 ? (struct sockaddr *) &source : NULL,
						  peer, RESOLVE_MS) != 0)
		return status_of_errno(errno);
	return RBP_OK;
}

RbpStatus
rbp_verbs_connect(const RbpEndpoint *ep, const RbpCredentials *cred, RbpConn **conn_out)
{
	struct sockaddr_storage peer;
	socklen_t	len;
	VerbsConn  *conn;
	RbpStatus	status;

	/* a child of a process that uses RDMA must not use it: see device.h */
	if (ep->rdma_port == 0 ||
		!rbp_sock_address(ep->rdma_host, ep->rdma_port, &peer, &len) ||
		!rbp_verbs_claim())
		return RBP_INVALID;

	conn = calloc(1, sizeof(*conn));
	if (conn == NULL)
		return RBP_NOMEM;
	conn->base.ops = &rbp_transport_verbs;
	conn->state = VERBS_ADDRESS;
	conn->cred = *cred;
	conn->free_bounces = (1u << BOUNCES) - 1;
	conn->free_lookups = (1u << LOOKUPS) - 1;
	status = start(conn, (struct sockaddr *) &peer);
	if (status != RBP_OK)
	{
		rbp_verbs_close(&conn->base);
		return status;
	}
	*conn_out = &conn->base;
	return RBP_OK;
}

RbpStatus
rbp_verbs_connect_wait(RbpConn *base, int64_t deadline_ns)
{
	VerbsConn  *conn = (VerbsConn *) base;

	for (;;)
	{
		if (conn->state == VERBS_READY)
			return RBP_OK;
		if (conn->state == VERBS_FAILED)
			return conn->failure;
		if (take_event(conn))
			continue;
		if (conn->state != VERBS_FAILED &&
			!rbp_sock_block(conn->channel->fd, POLLIN, deadline_ns))
			return RBP_INPROGRESS;
	}
}
