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
#include "broker/donor/memory.h"
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

static RbpDonorAnswer *
queue(RbpDonorConn *conn, uint8_t op, uint64_t id)
{
	RbpDonorAnswer *a = &conn->ring[(conn->head + conn->nanswers++) % SERVE_RING];

	*a = (RbpDonorAnswer)
	{
		.op = op,.id = id,.region = ANSWER_NO_REGION
	};
	return a;
}

void
donor_serve_answer(RbpDonorConn *conn, uint8_t op, uint64_t id, uint16_t status)
{
	set_header(queue(conn, op, id), status, 0);
	if (status != RBP_WIRE_OK)
		donor_serve_count(conn->thread, DONOR_DENIED, 1);
}

void
donor_serve_answer_read(RbpDonorConn *conn, const RbpWireRequest *req)
{
	RbpDonorAnswer *a = queue(conn, req->prefix.op, req->id);

	a->region = req->region;
	a->offset = req->offset;
	a->payload = req->len;
	set_header(a, RBP_WIRE_OK, req->len);
}

void
donor_serve_answer_map(RbpDonorConn *conn, const RbpWireRequest *req)
{
	RbpDonorAnswer *a = queue(conn, req->prefix.op, req->id);

	a->region = req->region;
	set_header(a, RBP_WIRE_OK, RBP_MAP_PAYLOAD_SIZE);
	rbp_wire_put_map(a->header + RBP_ANSWER_SIZE, donor_region_size);
}

/* Replace a queued answer with payload or memfd by a refusal. */
static void
refuse(RbpDonorConn *conn, RbpDonorAnswer *a)
{
	a->region = ANSWER_NO_REGION;
	a->payload = 0;
	set_header(a, RBP_WIRE_DENIED, 0);
	donor_serve_count(conn->thread, DONOR_DENIED, 1);
}

/*
 * Send the answer to a MAP, with the region's memfd.  From here on the region
 * counts as exposed, whether or not the client ever maps it.
 */
static ssize_t
send_map(RbpDonorConn *conn, RbpDonorAnswer *a, int64_t now)
{
	union
	{
		struct cmsghdr align;
		char		space[CMSG_SPACE(sizeof(int))];
	}			control = {0};
	struct iovec iov;
	struct msghdr msg = {.msg_iov = &iov,.msg_iovlen = 1};
	RbpDonorRegion *region = &donor_regions[a->region];
	struct cmsghdr *c;
	ssize_t		rc;

	if (a->sent > 0)
	{
		/* the memfd was sent with the first byte */
		return send(conn->fd, a->header + a->sent, header_size(a) - a->sent,
					MSG_NOSIGNAL | MSG_DONTWAIT);
	}
	if (!donor_region_enter(region, conn->lease, now))
	{
		refuse(conn, a);
		return send(conn->fd, a->header, RBP_ANSWER_SIZE,
					MSG_NOSIGNAL | MSG_DONTWAIT);
	}
	atomic_store(&region->exposed, true);
	iov.iov_base = a->header;
	iov.iov_len = header_size(a);
	msg.msg_control = &control;
	msg.msg_controllen = sizeof(control);
	c = CMSG_FIRSTHDR(&msg);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &region->fd, sizeof(int));
	rc = sendmsg(conn->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	donor_region_leave(region);
	return rc;
}

/*
 * Send the answers before the next MAP's in one system call, while being in
 * all of their regions.  *total: their size.  *cut: an answer cannot be
 * completed.
 */
static ssize_t
send_answers(RbpDonorConn *conn, int64_t now, size_t *total, bool *cut)
{
	struct iovec iov[2 * SERVE_RING];
	RbpDonorRegion *inside[SERVE_RING];
	struct msghdr msg = {.msg_iov = iov};
	int			ninside = 0;
	ssize_t		rc = 0;

	*total = 0;
	for (uint32_t i = 0; i < conn->nanswers; i++)
	{
		RbpDonorAnswer *a = &conn->ring[(conn->head + i) % SERVE_RING];
		uint32_t	skip = a->sent;

		if (is_map(a))
			break;
		if (a->payload > 0)
		{
			RbpDonorRegion *region = &donor_regions[a->region];

			if (donor_region_enter(region, conn->lease, now))
				inside[ninside++] = region;
			else if (a->sent == 0)
				refuse(conn, a);
			else
			{
				*cut = true;
				break;
			}
		}
		if (skip < RBP_ANSWER_SIZE)
		{
			iov[msg.msg_iovlen++] = (struct iovec)
			{
				a->header + skip, RBP_ANSWER_SIZE - skip
			};
			skip = RBP_ANSWER_SIZE;
		}
		if (a->payload > 0)
		{
			skip -= RBP_ANSWER_SIZE;
			iov[msg.msg_iovlen++] = (struct iovec)
			{
				donor_regions[a->region].base + a->offset + skip, a->payload - skip
			};
		}
		*total += RBP_ANSWER_SIZE + a->payload - a->sent;
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
		RbpDonorAnswer *first = &conn->ring[conn->head];
		size_t		total;
		bool		cut = false;
		ssize_t		rc;

		if (is_map(first))
		{
			rc = send_map(conn, first, now);
			total = header_size(first) - first->sent;	/* a refusal is shorter */
		}
		else
			rc = send_answers(conn, now, &total, &cut);
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
