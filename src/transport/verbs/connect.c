/*-------------------------------------------------------------------------
 *
 * connect.c
 *	  A verbs connection from the first event of rdma_cm to its end.
 *
 * Nothing here waits except rbp_verbs_connect_wait(), until its deadline.  A
 * connection advances by one step with each event.  At its end the queue pair
 * is destroyed first, so that the device does not access our memory any more.
 * Calls to the device's driver and firmware are not waiting in this sense:
 * they take some 10 us to some ms each, and cannot be bounded.
 *
 * Lost messages.  rdma_cm sends a message that is lost again only after some
 * seconds, and gives an address or a route up without asking again.  So what
 * has timed out is begun again with a new id and a new queue pair, and so is
 * what the donor's system takes for the rest of an earlier connection, since a
 * queue pair's number was used again.  Only after TRIES ids is the
 * result RBP_TIMEOUT.  An answer to an id that was given up does not reach us:
 * its events go with it, and the system rejects what comes later.
 *
 * A client reads no asynchronous events of the device.  rdma_cm reports a
 * device that is gone, a queue pair that fails has a completion, and a port
 * that is down is looked up before connecting.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/hmac.h"
#include "common/status.h"
#include "transport/sock.h"
#include "transport/verbs/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define RESOLVE_MS		1000	/* address; and again so long for the route */
#define RNR_RETRIES		6		/* for pings; the largest finite number, since
								 * 7 means without end */

#define TRIES			3		/* ids */

/*
 * For the answer to a REQ: so long for the first id, twice and three times as
 * long for the next ones.  A lost message is found soon, but a donor that has
 * hundreds of REQs to answer gets more time instead of more REQs.
 */
#define ANSWER_NS		INT64_C(800000000)

/* Reasons of a rejection, as in the messages of the connection manager */
#define REJECT_TIMEOUT	4		/* the donor's system has waited in vain */
#define REJECT_STALE	10		/* the queue pair had another connection */
#define REJECT_CONSUMER	28		/* by the donor's process */

/*
 * ---- connecting -------------------------------------------------------------
 */

/*
 * What an errno says of rdma_cm, or a device, that could not do something.
 */
static RbpStatus
status_of_errno(int error)
{
	switch (error)
	{
		case ENOMEM:
		case ENOBUFS:
		case EMFILE:
		case ENFILE:
			return RBP_NOMEM;
		case ENETUNREACH:
		case EHOSTUNREACH:
		case EADDRNOTAVAIL:
		case ENODEV:
			return RBP_NOROUTE;
		case ETIMEDOUT:
			return RBP_TIMEOUT;
		default:
			return RBP_CONNLOST;
	}
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

/* The MAC of the REQ, or of that REP to it */
static bool
make_mac(VerbsConn *conn, const RbpWireVerbsWelcome *welcome, uint8_t mac[RBP_MAC_LEN])
{
	return rbp_verbs_mac(conn->key, &conn->hello, rdma_get_local_addr(conn->id),
						 conn->id->qp->qp_num, welcome, mac);
}

/* The route is known: ask the donor. */
static RbpStatus
send_request(VerbsConn *conn)
{
	RbpWireVerbsHello *hello = &conn->hello;
	uint8_t		mac[RBP_MAC_LEN];
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

	if (getrandom(hello->nonce, sizeof(hello->nonce), 0) != sizeof(hello->nonce) ||
		!make_mac(conn, NULL, mac))
		return RBP_NOMEM;
	memcpy(hello->mac, mac, sizeof(hello->mac));
	rbp_wire_put_verbs_hello(message, hello);

	if (rdma_connect(conn->id, &param) != 0)
		return status_of_errno(errno);
	conn->state = VERBS_CONNECTING;
	conn->asked_at = rbp_now_ns();
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
 * Why a REQ was rejected; RBP_TIMEOUT if it is worth another one.
 */
static RbpStatus
rejected(VerbsConn *conn, const struct rdma_cm_event *event)
{
	switch (event->status)
	{
		case REJECT_CONSUMER:
			if (!read_welcome(conn, &event->param.conn) ||
				conn->welcome.status == RBP_WIRE_OK)
				return RBP_CONNLOST;	/* a stranger */
			return rbp_status_from_wire(conn->welcome.status);
		case REJECT_STALE:
		case REJECT_TIMEOUT:
			return RBP_TIMEOUT;
		default:
			return RBP_CONNLOST;	/* nobody listens there, for example */
	}
}

/*
 * What an event means for the connection: RBP_OK to go on, RBP_TIMEOUT to
 * begin again with another id, else why it is over.
 */
static RbpStatus
handle_event(VerbsConn *conn, const struct rdma_cm_event *event)
{
	uint8_t		mac[RBP_MAC_LEN];
	RbpStatus	status;

	switch (event->event)
	{
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			status = rbp_verbs_check_device(conn->id);
			if (status != RBP_OK)
				return status;
			conn->state = VERBS_ROUTE;
			if (rdma_resolve_route(conn->id, RESOLVE_MS) != 0)
				return status_of_errno(errno);
			return RBP_OK;

		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			return send_request(conn);

		case RDMA_CM_EVENT_ADDR_ERROR:
		case RDMA_CM_EVENT_ROUTE_ERROR:
		case RDMA_CM_EVENT_UNREACHABLE:
			return status_of_errno(-event->status);

		case RDMA_CM_EVENT_ESTABLISHED:
			if (!read_welcome(conn, &event->param.conn) ||
				conn->welcome.status != RBP_WIRE_OK)
				return RBP_PROTOCOL;
			if (!make_mac(conn, &conn->welcome, mac))
				return RBP_NOMEM;
			if (CRYPTO_memcmp(mac, conn->welcome.mac, sizeof(mac)) != 0)
				return RBP_UNPROVEN;
			conn->regions = calloc(conn->welcome.regions, sizeof(Region));
			if (conn->regions == NULL)
				return RBP_NOMEM;
			OPENSSL_cleanse(conn->key, sizeof(conn->key));
			conn->state = VERBS_READY;
			return RBP_OK;

		case RDMA_CM_EVENT_REJECTED:
			return rejected(conn, event);

		case RDMA_CM_EVENT_ADDR_CHANGE:
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			return RBP_OK;		/* if the path is broken, requests will fail */

		default:
			return RBP_CONNLOST;
	}
}

/*
 * Release what belongs to the id and its device.  The device is given back
 * while the id still keeps it open.
 */
static void
release_id(VerbsConn *conn)
{
	rbp_verbs_release_qp(conn);
	if (conn->cq != NULL)
		(void) ibv_destroy_cq(conn->cq);
	conn->cq = NULL;
	if (conn->memory_mr != NULL)
		(void) ibv_dereg_mr(conn->memory_mr);
	conn->memory_mr = NULL;
	if (conn->memory != NULL)
		(void) munmap(conn->memory, MEMORY_SIZE);
	conn->memory = NULL;
	if (conn->device != NULL)
		rbp_verbs_device_put(conn->device);
	conn->device = NULL;
	if (conn->id != NULL)
		(void) rdma_destroy_id(conn->id);
	conn->id = NULL;
}

/*
 * Make an id, and resolve the donor's address.  It is bound to an address of
 * ours only if a GID is configured, which is one.  Else the route decides, and
 * then it is seen whether it leads over the configured device: a device may
 * have several addresses, of VLANs and partitions, of which only the route
 * tells the right one.
 */
static RbpStatus
start(VerbsConn *conn)
{
	struct sockaddr *peer = (struct sockaddr *) &conn->peer;
	struct sockaddr_storage source;
	socklen_t	len = 0;
	RbpStatus	status;

	if (rbp_verbs_config()->gid_index >= 0)
	{
		status = rbp_verbs_source_address(peer->sa_family, &source, &len);
		if (status != RBP_OK)
			return status == RBP_INVALID ? RBP_OTHER_DEVICE : status;
	}
	if (len > 0 && peer->sa_family == AF_INET6)
	{
		struct sockaddr_in6 *to = (struct sockaddr_in6 *) &conn->peer;
		const struct sockaddr_in6 *from = (const struct sockaddr_in6 *) &source;

		/* the interface of a link-local address is that of the GID */
		if (IN6_IS_ADDR_LINKLOCAL(&to->sin6_addr) && to->sin6_scope_id == 0)
			to->sin6_scope_id = from->sin6_scope_id;
	}
	conn->state = VERBS_ADDRESS;
	conn->tries++;
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

/*
 * Connecting has come to that, or a connection has.  What has timed out is
 * begun again, so often.
 */
static void
settle(VerbsConn *conn, RbpStatus status)
{
	if (status == RBP_TIMEOUT && conn->state < VERBS_READY && conn->tries < TRIES)
	{
		release_id(conn);
		status = start(conn);
	}
	if (status != RBP_OK)
		rbp_verbs_fail(conn, status, status);
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
	/* before its id is destroyed, which waits for that */
	(void) rdma_ack_cm_event(event);
	settle(conn, status);
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
	release_id(conn);
	if (conn->channel != NULL)
		rdma_destroy_event_channel(conn->channel);
	free(conn->regions);
	OPENSSL_cleanse(conn->key, sizeof(conn->key));
	free(conn);
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
	conn->base.ops = &rbp_verbs_ops;
	conn->peer = peer;
	conn->hello.version = RBP_WIRE_VERSION;
	conn->free_bounces = (1u << BOUNCES) - 1;
	conn->free_lookups = (1u << LOOKUPS) - 1;
	conn->channel = rdma_create_event_channel();
	if (conn->channel == NULL)
		status = status_of_errno(errno);
	else if (!rbp_donor_key(cred->secret, ep->donor, conn->key) ||
			 !rbp_verbs_lease_digest(cred->lease, conn->hello.digest))
		status = RBP_NOMEM;
	else if (fcntl(conn->channel->fd, F_SETFD, FD_CLOEXEC) != 0 ||
			 fcntl(conn->channel->fd, F_SETFL, O_NONBLOCK) != 0)
		status = RBP_NOMEM;
	else
		status = start(conn);
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
		if (conn->state == VERBS_CONNECTING && rbp_now_ns() - conn->asked_at >= conn->tries * ANSWER_NS)
			settle(conn, RBP_TIMEOUT);
		else if (conn->state != VERBS_FAILED &&
				 !rbp_sock_block(conn->channel->fd, POLLIN, deadline_ns))
			return RBP_INPROGRESS;
	}
}
