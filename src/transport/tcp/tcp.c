/*-------------------------------------------------------------------------
 *
 * tcp.c
 *	  Reads and writes of donor memory over TCP, pipelined.
 *
 * Requests in flight.  Each request has an entry in the slot table, found by
 * the low bits of the id that is sent with it; the high bits of the id count
 * up, so that a reused slot cannot be mistaken for its predecessor.  Slots of
 * requests in flight are linked in the order of submission: the send cursor
 * moves along that list.
 *
 * Receiving.  What the socket has is read into a buffer, as many answers as
 * have come, and payloads are copied from there.  What is missing of a payload
 * is read directly into the caller's buffer.
 *
 * Giving up.  When wait() times out, a request of which nothing was sent is
 * removed from the list.  A request that was sent, at least in part, keeps
 * its slot without an owner: the rest of a partly sent write is copied, and
 * the answer is dropped when it arrives.
 *
 * Names.  Only numeric addresses are accepted here, because resolving a name
 * can take as long as the resolver's own timeouts: see
 * rbp_transport_resolve().
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/status.h"
#include "transport/sock.h"
#include "transport/transport.h"
#include "wire/wire.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/uio.h>

#define MAX_SLOTS		4096	/* a power of two: the id's low bits */
#define SLOT_BITS		12

#define INPUT_SIZE		65536
#define SEND_IOVS		64

_Static_assert(MAX_SLOTS == 1 << SLOT_BITS, "ids carry the slot number");

typedef struct Slot
{
	uint64_t	id;				/* 0: free */
	RbpIo	   *io;				/* NULL: given up, discard the answer */
	uint32_t	len;
	uint8_t		op;
	uint8_t		header[RBP_REQUEST_SIZE];
	const uint8_t *payload;		/* payload of a write */
	uint8_t    *rest;			/* copy of the unsent rest of an abandoned
								 * write, from payload byte rest_from on */
	uint32_t	rest_from;
				TAILQ_ENTRY(Slot) link;
} Slot;

typedef struct TcpConn
{
	RbpConn		base;
	RbpSock		sock;

				TAILQ_HEAD(SlotList, Slot) free;	/* used before */
	struct SlotList flight;		/* in the order of submission */
	uint64_t	last_seq;

	Slot	   *send_slot;		/* first slot not sent completely, or NULL */
	uint64_t	send_off;		/* bytes of that slot that were sent */

	Slot	   *rx_slot;		/* whose payload is being received, or NULL */
	uint32_t	rx_left;		/* bytes of that payload still to be received */
	uint32_t	have;			/* bytes in input */
	uint8_t    *input;

	uint32_t	nslots;			/* in use until now; the others are not even
								 * initialized, and so take no memory */
	Slot		slots[MAX_SLOTS];
} TcpConn;

/*
 * ---- slots ------------------------------------------------------------------
 */

/* Append a slot to those in flight.  NULL if all are in use. */
static Slot *
take_slot(TcpConn *conn)
{
	Slot	   *slot = TAILQ_FIRST(&conn->free);

	if (slot != NULL)
		TAILQ_REMOVE(&conn->free, slot, link);
	else if (conn->nslots < MAX_SLOTS)
		slot = &conn->slots[conn->nslots++];
	else
		return NULL;
	slot->id = ++conn->last_seq << SLOT_BITS | (uint64_t) (slot - conn->slots);
	slot->rest = NULL;
	slot->rest_from = 0;
	TAILQ_INSERT_TAIL(&conn->flight, slot, link);
	if (conn->send_slot == NULL)
	{
		conn->send_slot = slot;
		conn->send_off = 0;
	}
	return slot;
}

/*
 * Unlink and free a slot.  If the send cursor is at this slot, it moves to
 * the next one.
 */
static void
drop_slot(TcpConn *conn, Slot *slot)
{
	if (conn->send_slot == slot)
	{
		conn->send_slot = TAILQ_NEXT(slot, link);
		conn->send_off = 0;
	}
	free(slot->rest);
	slot->rest = NULL;
	slot->id = 0;
	slot->io = NULL;
	TAILQ_REMOVE(&conn->flight, slot, link);
	TAILQ_INSERT_HEAD(&conn->free, slot, link);
}

static void
finish_slot(TcpConn *conn, Slot *slot, RbpStatus status)
{
	if (slot->io != NULL)
		slot->io->status = status;
	drop_slot(conn, slot);
}

/* The slot of a request in flight, or NULL if the id is not one. */
static Slot *
find_slot(TcpConn *conn, uint64_t id)
{
	uint32_t	i = (uint32_t) (id & (MAX_SLOTS - 1));

	if (id == 0 || i >= conn->nslots || conn->slots[i].id != id)
		return NULL;
	return &conn->slots[i];
}

/* Bytes of a slot that are to be sent. */
static size_t
wire_bytes(const Slot *slot)
{
	return RBP_REQUEST_SIZE + (slot->op == RBP_OP_WRITE ? slot->len : 0);
}

/*
 * Is the slot before the send cursor, that is, sent?  Ids increase along the
 * list.
 */
static bool
slot_sent(const TcpConn *conn, const Slot *slot)
{
	return conn->send_slot == NULL ||
		slot->id >> SLOT_BITS < conn->send_slot->id >> SLOT_BITS;
}

/* Has any byte of the slot's request been sent? */
static bool
slot_begun(const TcpConn *conn, const Slot *slot)
{
	return slot_sent(conn, slot) || (conn->send_slot == slot && conn->send_off > 0);
}

static void
make_header(Slot *slot, const RbpIo *io)
{
	RbpWireRequest req = {.prefix.op = slot->op,.id = slot->id};

	if (slot->op != RBP_OP_PING)
	{
		req.region = io->region;
		req.len = io->len;
		req.offset = io->offset;
	}
	rbp_wire_put_request(slot->header, &req);
}

/* Fail the connection, and all requests in flight, with this status. */
static RbpStatus
fail(TcpConn *conn, RbpStatus why)
{
	why = rbp_sock_fail(&conn->sock, why);
	while (!TAILQ_EMPTY(&conn->flight))
		finish_slot(conn, TAILQ_FIRST(&conn->flight), why);
	conn->rx_slot = NULL;
	return why;
}

/*
 * ---- sending ----------------------------------------------------------------
 */

/*
 * Send as much as the socket accepts.  RBP_OK: all was sent; RBP_INPROGRESS:
 * there is more to send; any other status: the connection has failed.
 */
static RbpStatus
send_some(TcpConn *conn)
{
	while (conn->send_slot != NULL)
	{
		struct iovec iov[SEND_IOVS];
		struct msghdr msg = {.msg_iov = iov};
		uint64_t	skip = conn->send_off;
		size_t		total = 0;
		size_t		taken;
		int			n = 0;
		ssize_t		rc;

		for (Slot *slot = conn->send_slot; slot != NULL && n + 2 <= SEND_IOVS; slot = TAILQ_NEXT(slot, link))
		{
			if (skip < RBP_REQUEST_SIZE)
			{
				iov[n].iov_base = slot->header + skip;
				iov[n].iov_len = RBP_REQUEST_SIZE - skip;
				total += iov[n++].iov_len;
				skip = RBP_REQUEST_SIZE;
			}
			if (slot->op == RBP_OP_WRITE)
			{
				uint32_t	from = (uint32_t) (skip - RBP_REQUEST_SIZE);
				const uint8_t *src = slot->rest != NULL
				? slot->rest + (from - slot->rest_from)
				: slot->payload + from;

				iov[n].iov_base = (void *) src;
				iov[n].iov_len = slot->len - from;
				total += iov[n++].iov_len;
			}
			skip = 0;
		}
		msg.msg_iovlen = (size_t) n;
		rc = sendmsg(conn->sock.fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (rc < 0)
		{
			if (errno == EINTR)
				continue;
			if (errno == EAGAIN || errno == EWOULDBLOCK)
				return RBP_INPROGRESS;
			return fail(conn, errno == ENOBUFS || errno == ENOMEM
						? RBP_NOMEM : RBP_CONNLOST);
		}

		/* move the cursor */
		taken = (size_t) rc;
		total -= taken;
		taken += conn->send_off;
		while (conn->send_slot != NULL && taken >= wire_bytes(conn->send_slot))
		{
			taken -= wire_bytes(conn->send_slot);
			conn->send_slot = TAILQ_NEXT(conn->send_slot, link);
		}
		conn->send_off = taken;
		if (total > 0)
			return RBP_INPROGRESS;
	}
	return RBP_OK;
}

/*
 * ---- receiving --------------------------------------------------------------
 */

/*
 * Process an answer's header: find its request, and either finish it or set
 * rx_slot and rx_left for the payload.
 */
static RbpStatus
begin_answer(TcpConn *conn, const uint8_t *header)
{
	RbpWireAnswer ans;
	Slot	   *slot;

	if (!rbp_wire_get_answer(header, RBP_ANSWER_SIZE, &ans))
		return fail(conn, RBP_PROTOCOL);
	slot = find_slot(conn, ans.id);
	if (slot == NULL || !slot_sent(conn, slot) || slot->op != ans.op)
		return fail(conn, RBP_PROTOCOL);
	if (ans.payload == 0)
	{
		finish_slot(conn, slot, rbp_status_from_wire(ans.status));
		return RBP_OK;
	}
	if (ans.payload != slot->len)
		return fail(conn, RBP_PROTOCOL);
	conn->rx_slot = slot;
	conn->rx_left = slot->len;
	return RBP_OK;
}

/* Where the rest of the current payload goes; NULL if nobody waits for it. */
static uint8_t *
payload_target(const TcpConn *conn)
{
	const Slot *slot = conn->rx_slot;

	return slot == NULL || slot->io == NULL ? NULL :
		(uint8_t *) slot->io->buf + (slot->len - conn->rx_left);
}

/* Account for len bytes of the current payload, which are in their place. */
static void
payload_arrived(TcpConn *conn, uint32_t len)
{
	conn->rx_left -= len;
	if (conn->rx_left == 0)
	{
		finish_slot(conn, conn->rx_slot, RBP_OK);
		conn->rx_slot = NULL;
	}
}

/* Take what is in the buffer, except for the beginning of a header. */
static RbpStatus
take_input(TcpConn *conn)
{
	uint32_t	at = 0;

	while (at < conn->have)
	{
		uint32_t	len = conn->have - at;

		if (conn->rx_slot != NULL)
		{
			uint8_t    *target = payload_target(conn);

			if (len > conn->rx_left)
				len = conn->rx_left;
			if (target != NULL)
				memcpy(target, conn->input + at, len);
			payload_arrived(conn, len);
		}
		else
		{
			RbpStatus	status;

			if (len < RBP_ANSWER_SIZE)
				break;
			len = RBP_ANSWER_SIZE;
			status = begin_answer(conn, conn->input + at);
			if (status != RBP_OK)
				return status;
		}
		at += len;
	}
	conn->have -= at;
	memmove(conn->input, conn->input + at, conn->have);
	return RBP_OK;
}

/*
 * Receive available input.  RBP_OK: something was received; RBP_INPROGRESS:
 * nothing is available; any other status: the connection has failed.
 */
static RbpStatus
receive_some(TcpConn *conn)
{
	uint8_t    *target = payload_target(conn);
	uint32_t	direct = target != NULL ? conn->rx_left : 0;
	struct iovec iov[2] = {
		{.iov_base = target,.iov_len = direct},
		/* empty while a payload is missing */
		{.iov_base = conn->input + conn->have,.iov_len = INPUT_SIZE - conn->have},
	};
	uint32_t	got;
	ssize_t		rc;

	do
		rc = readv(conn->sock.fd, iov, 2);
	while (rc < 0 && errno == EINTR);
	if (rc < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return RBP_INPROGRESS;
	if (rc <= 0)
		return fail(conn, RBP_CONNLOST);
	got = (uint32_t) rc;
	if (direct > 0)
	{
		uint32_t	arrived = got < direct ? got : direct;

		payload_arrived(conn, arrived);
		got -= arrived;
	}
	conn->have += got;
	return take_input(conn);
}

/*
 * ---- the table's functions ----------------------------------------------------
 */
static bool
tcp_usable(const RbpEndpoint *ep)
{
	return ep->host[0] != '\0' && ep->port != 0;
}

static RbpStatus
tcp_connect(const RbpEndpoint *ep, const RbpCredentials *cred, RbpConn **conn_out)
{
	struct sockaddr_storage addr;
	socklen_t	addrlen;
	TcpConn    *conn;
	RbpStatus	status;

	if (!tcp_usable(ep) || !rbp_sock_address(ep->host, ep->port, &addr, &addrlen))
		return RBP_INVALID;

	conn = malloc(sizeof(*conn));
	if (conn == NULL)
		return RBP_NOMEM;
	memset(conn, 0, offsetof(TcpConn, slots));
	conn->base.ops = &rbp_transport_tcp;
	TAILQ_INIT(&conn->free);
	TAILQ_INIT(&conn->flight);
	conn->input = malloc(INPUT_SIZE);
	status = conn->input == NULL ? RBP_NOMEM :
		rbp_sock_start(&conn->sock, (struct sockaddr *) &addr, addrlen, ep->donor, cred);
	if (status != RBP_OK)
	{
		free(conn->input);
		free(conn);
		return status;
	}
	*conn_out = &conn->base;
	return RBP_OK;
}

static RbpStatus
tcp_connect_wait(RbpConn *base, int64_t deadline_ns)
{
	RbpSock    *sock = &((TcpConn *) base)->sock;
	RbpStatus	status = rbp_sock_connect_wait(sock, deadline_ns);
	struct sockaddr_storage own = {0};
	struct sockaddr_storage peer = {0};
	socklen_t	own_len = sizeof(own);
	socklen_t	peer_len = sizeof(peer);

	base->same_host = status == RBP_OK &&
		getsockname(sock->fd, (struct sockaddr *) &own, &own_len) == 0 &&
		getpeername(sock->fd, (struct sockaddr *) &peer, &peer_len) == 0 &&
		rbp_sock_same_host(&own, &peer);
	return status;
}

static RbpStatus
tcp_submit(RbpConn *base, RbpIo *ios, int n)
{
	TcpConn    *conn = (TcpConn *) base;

	if (conn->sock.state != RBP_SOCK_READY)
		return rbp_io_set_all(ios, n, conn->sock.state == RBP_SOCK_FAILED
							  ? conn->sock.failure : RBP_INVALID);

	for (int i = 0; i < n; i++)
	{
		RbpIo	   *io = &ios[i];
		uint8_t		op = io->kind == RBP_IO_READ ? RBP_OP_READ
		: io->kind == RBP_IO_WRITE ? RBP_OP_WRITE : RBP_OP_PING;
		Slot	   *slot;

		io->cookie = 0;
		if (!rbp_io_valid(io, conn->sock.welcome.region_size))
		{
			io->status = RBP_INVALID;
			continue;
		}

		slot = take_slot(conn);
		if (slot == NULL)
		{
			io->status = RBP_NOMEM;
			continue;
		}
		slot->io = io;
		slot->op = op;
		slot->len = op == RBP_OP_PING ? 0 : io->len;
		slot->payload = io->buf;
		make_header(slot, io);
		io->cookie = slot->id;
		io->status = RBP_INPROGRESS;
	}
	(void) send_some(conn);		/* a failure has set every status already */
	return conn->sock.state == RBP_SOCK_FAILED ? conn->sock.failure : RBP_OK;
}

/* Abandon a request: its owner no longer waits for it. */
static void
abandon(TcpConn *conn, RbpIo *io)
{
	Slot	   *slot = find_slot(conn, io->cookie);

	io->status = RBP_TIMEOUT;
	if (slot == NULL)
		return;
	slot->io = NULL;
	if (!slot_begun(conn, slot))
		drop_slot(conn, slot);
	else if (slot->op == RBP_OP_WRITE && !slot_sent(conn, slot))
	{
		uint32_t	from = 0;

		if (conn->send_slot == slot && conn->send_off > RBP_REQUEST_SIZE)
			from = (uint32_t) (conn->send_off - RBP_REQUEST_SIZE);

		slot->rest = malloc(slot->len - from);
		if (slot->rest == NULL)
		{
			fail(conn, RBP_NOMEM);
			return;
		}
		memcpy(slot->rest, slot->payload + from, slot->len - from);
		slot->rest_from = from;
	}
}

static RbpStatus
tcp_wait(RbpConn *base, RbpIo *ios, int n, int64_t deadline_ns)
{
	TcpConn    *conn = (TcpConn *) base;
	RbpWaiter	waiter;
	int			first = 0;		/* those before it are final */
	unsigned int rounds = 0;

	rbp_waiter_begin(&waiter, &conn->sock.spin, deadline_ns);
	for (;;)
	{
		RbpStatus	sending = RBP_OK;
		RbpStatus	receiving;

		while (first < n && ios[first].status != RBP_INPROGRESS)
			first++;
		if (first == n)
			break;

		if (conn->send_slot != NULL)
			sending = send_some(conn);
		if (conn->sock.state != RBP_SOCK_READY)
			continue;			/* everything is final now */
		receiving = receive_some(conn);

		/* a stream of late answers must not carry us past the deadline */
		if (receiving != RBP_INPROGRESS &&
			(++rounds % 8 != 0 || rbp_now_ns() < deadline_ns))
			continue;
		if (!rbp_waiter_step(&waiter, conn->sock.fd,
							 sending == RBP_INPROGRESS ? POLLIN | POLLOUT : POLLIN))
		{
			for (int i = first; i < n; i++)
				if (ios[i].status == RBP_INPROGRESS)
					abandon(conn, &ios[i]);
			break;
		}
	}
	rbp_waiter_end(&waiter);
	return rbp_io_result(ios, n);
}

static void
tcp_close(RbpConn *base)
{
	TcpConn    *conn = (TcpConn *) base;

	if (conn == NULL)
		return;
	rbp_sock_close(&conn->sock);
	while (!TAILQ_EMPTY(&conn->flight))
		drop_slot(conn, TAILQ_FIRST(&conn->flight));
	free(conn->input);
	free(conn);
}

const RbpTransportOps rbp_transport_tcp = {
	.name = "tcp",
	.bit = RBP_TRANSPORT_TCP,
	.connect_ns = RBP_CONNECT_NS,
	.handshake_ns = RBP_CONNECT_NS,
	.usable = tcp_usable,
	.connect = tcp_connect,
	.connect_wait = tcp_connect_wait,
	.submit = tcp_submit,
	.wait = tcp_wait,
	.close = tcp_close,
};
