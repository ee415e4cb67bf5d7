/*-------------------------------------------------------------------------
 *
 * serve_answer.c
 *	  Answers to a client of the data plane: the ring of pending ones.
 *
 * Bytes of regions are never copied in user space: answers are sent with
 * sendmsg() from the region's memory.  During that system call the thread is
 * "in" the region, see lease.h.  If the lease ends when the socket has taken
 * only a part of an answer, the answer can neither be completed nor taken
 * back: the connection is closed.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/donor/serve_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Does the answer carry a memfd?  Such an answer is sent separately. */
static bool
is_map(const RbpDonorAnswer *a)
{
	return a->op == RBP_OP_MAP && a->region != ANSWER_NO_REGION;
}

static uint32_t
header_size(const RbpDonorAnswer *a)
{
	return is_map(a) ? RBP_ANSWER_SIZE + RBP_MAP_PAYLOAD_SIZE : RBP_ANSWER_SIZE;
}

static void
set_header(RbpDonorAnswer *a, uint16_t status, uint32_t payload)
{
	RbpWireAnswer ans = {.op = a->op,.status = status,.payload = payload,.id = a->id};

	rbp_wire_put_answer(a->header, &ans);
}

/* Make it an answer that has neither payload nor memfd. */
static void
refuse(RbpDonorConn *conn, RbpDonorAnswer *a, uint16_t status)
{
	a->region = ANSWER_NO_REGION;
	a->payload = 0;
	set_header(a, status, 0);
	donor_serve_count(conn->thread, DONOR_DENIED, 1);
}

void
donor_serve_answer(RbpDonorConn *conn, const RbpWireRequest *req, uint16_t status)
{
	RbpDonorAnswer *a = &conn->ring[(conn->head + conn->nanswers++) % SERVE_RING];

	*a = (RbpDonorAnswer)
	{
		.op = req->prefix.op,.id = req->id,.region = ANSWER_NO_REGION
	};
	if (status != RBP_WIRE_OK)
	{
		refuse(conn, a, status);
		return;
	}
	if (a->op == RBP_OP_READ || a->op == RBP_OP_MAP)
	{
		a->region = req->region;
		a->offset = req->offset;
		a->payload = req->len;	/* a MAP has 0 */
	}
	set_header(a, status, header_size(a) - RBP_ANSWER_SIZE + a->payload);
	if (is_map(a))
		rbp_wire_put_map(a->header + RBP_ANSWER_SIZE, donor_region_size);
}

/*
 * Attach the region's memfd to a message.  From here on the region counts as
 * exposed, whether or not the client ever maps it.
 */
static void
attach_memfd(struct msghdr *msg, RbpDonorRegion *region)
{
	struct cmsghdr *c = msg->msg_control;

	atomic_store(&region->exposed, true);
	msg->msg_controllen = CMSG_SPACE(sizeof(int));
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &region->fd, sizeof(int));
}

static void
add_bytes(struct msghdr *msg, uint8_t *bytes, size_t len)
{
	msg->msg_iov[msg->msg_iovlen++] = (struct iovec)
	{
		bytes, len
	};
}

/*
 * Send a MAP's answer, or all before the next MAP's, in one system call, while
 * being in all of their regions.  *total: their size.  *cut: an answer cannot
 * be completed.
 */
static ssize_t
send_answers(RbpDonorConn *conn, int64_t now, size_t *total, bool *cut)
{
	union
	{
		struct cmsghdr align;
		char		space[CMSG_SPACE(sizeof(int))];
	}			control = {0};
	struct iovec iov[2 * SERVE_RING];
	RbpDonorRegion *inside[SERVE_RING];
	struct msghdr msg = {.msg_iov = iov,.msg_control = &control};
	int			ninside = 0;
	bool		map = false;
	ssize_t		rc = 0;

	*total = 0;
	for (uint32_t i = 0; i < conn->nanswers && !map; i++)
	{
		RbpDonorAnswer *a = &conn->ring[(conn->head + i) % SERVE_RING];
		uint32_t	header;
		uint32_t	skip;

		if (is_map(a) && i > 0)
			break;

		/* a memfd was sent with the first byte */
		if (a->payload > 0 || (is_map(a) && a->sent == 0))
		{
			RbpDonorRegion *region = &donor_regions[a->region];

			if (donor_region_enter(region, conn->lease, now))
				inside[ninside++] = region;
			else if (a->sent == 0)
				refuse(conn, a, RBP_WIRE_DENIED);
			else
			{
				*cut = true;
				break;
			}
		}
		map = is_map(a);
		if (map && a->sent == 0)
			attach_memfd(&msg, inside[0]);
		header = header_size(a);
		if (a->sent < header)
			add_bytes(&msg, a->header + a->sent, header - a->sent);
		skip = a->sent < header ? 0 : a->sent - header;
		if (a->payload > 0)
			add_bytes(&msg, donor_regions[a->region].base + a->offset + skip, a->payload - skip);
		*total += header + a->payload - a->sent;
	}
	if (msg.msg_iovlen > 0)
		rc = sendmsg(conn->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	for (int i = 0; i < ninside; i++)
		donor_region_leave(inside[i]);
	return rc;
}

/* Remove n sent bytes from the ring. */
static void
advance_ring(RbpDonorConn *conn, size_t n)
{
	while (conn->nanswers > 0)
	{
		RbpDonorAnswer *a = &conn->ring[conn->head];
		size_t		left = header_size(a) + a->payload - a->sent;

		if (n < left)
		{
			a->sent += (uint32_t) n;
			return;
		}
		n -= left;
		conn->head = (conn->head + 1) % SERVE_RING;
		conn->nanswers--;
	}
}

bool
donor_serve_flush(RbpDonorConn *conn, int64_t now)
{
	while (conn->nanswers > 0)
	{
		size_t		total;
		bool		cut = false;
		ssize_t		rc = send_answers(conn, now, &total, &cut);

		if (rc < 0)
		{
			if (errno == EINTR)
				continue;
			if (errno != EAGAIN && errno != EWOULDBLOCK)
				return false;
			rc = 0;
		}
		advance_ring(conn, (size_t) rc);
		if (cut)
			return false;
		if ((size_t) rc < total)
			break;
	}
	return true;
}
