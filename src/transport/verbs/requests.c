/*-------------------------------------------------------------------------
 *
 * requests.c
 *	  Requests on a verbs connection: queues, keys, work requests, completions.
 *
 * Work requests.  The send queue (SQ) is mirrored by a ring, works[]: entry
 * number n, counted from 0, is works[n % SQ_DEPTH], and n is its wr_id.  Work
 * requests of an RC queue pair complete in order, so only every 8th and the
 * last of those that are posted together are signaled: the completion of n
 * means that all up to n are complete.  A work request that fails always gives
 * a completion, and is the end of the connection.  The CQ has room for a
 * completion of everything that may be posted: it cannot overrun.
 *
 * Requests that are not posted yet wait in a queue, first in, first out; those
 * that find no room in the SQ, no bounce buffer, or no key are posted by
 * wait(), as completions come.
 *
 * Keys.  A table in the donor's memory, which this lease may read
 * (wire/wire.h), has each region's address and rkey.  An entry is looked up by
 * an RDMA read when a request needs it, and is used for all requests with that
 * request's grant number.  The number was known here before the read was
 * posted, so the entry is not from before the grant.  That a region is not the
 * lease's any more is seen in the table (RBP_DENIED) or, with a key from
 * earlier, by a remote access error.  That error is final for a QP, but says
 * nothing against the donor: the request gets RBP_DENIED, all else that is in
 * flight RBP_CANCELED.
 *
 * Pings are messages, which the donor's process has to answer: they tell that
 * it lives, and reads and writes do not.  Both sides have RBP_VERBS_PINGS
 * receives posted, so at most that many pings are in flight, given up or not.
 * An answer stands for all pings before it, too.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/status.h"
#include "transport/sock.h"
#include "transport/verbs/conn.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <string.h>

#define SIGNAL_EACH		8
#define PIECE_MAX		(1u << 20)	/* of one work request; no device has less */

#define NO_BOUNCE		(-1)
#define PENDING_NS		10000000	/* before the entry of a region that had
									 * no key is read again */
#define TORN_MAX		5		/* reads of an entry that changes meanwhile */

/* wr_id of receives: this and the number of the buffer */
#define RECEIVE			(UINT64_C(1) << 63)

/*
 * ---- the end of a connection ------------------------------------------------
 */

void
rbp_verbs_release_qp(VerbsConn *conn)
{
	if (conn->id == NULL || conn->id->qp == NULL)
		return;
	if (conn->state == VERBS_READY)
		(void) rdma_disconnect(conn->id);
	rdma_destroy_qp(conn->id);
}

void
rbp_verbs_fail(VerbsConn *conn, RbpStatus status, RbpStatus failure)
{
	if (conn->state == VERBS_FAILED)
		return;
	rbp_verbs_release_qp(conn);
	conn->state = VERBS_FAILED;
	conn->failure = failure;
	OPENSSL_cleanse(conn->key, sizeof(conn->key));

	while (conn->done < conn->posted)
		end_io(work_at(conn, conn->done++)->io, status);
	for (; conn->data.head != conn->data.tail; conn->data.head++)
		end_io(*queue_at(&conn->data, conn->data.head), status);
	for (; conn->pings.head != conn->pings.tail; conn->pings.head++)
		end_io(*queue_at(&conn->pings, conn->pings.head), status);
}

/*
 * ---- queues -----------------------------------------------------------------
 */
static bool
queue_push(Queue *q, RbpIo *io)
{
	/* an empty one begins anew, so that little of it is ever touched */
	if (q->head == q->tail)
		q->head = q->tail = 0;
	if (q->tail - q->head == QUEUE_MAX)
		return false;
	*queue_at(q, q->tail++) = io;
	return true;
}

/* The first request, or NULL. */
static RbpIo *
queue_head(Queue *q)
{
	return q->head != q->tail ? *queue_at(q, q->head) : NULL;
}

/* Drop those that are final. */
static void
queue_sweep(Queue *q)
{
	uint32_t	to = q->head;

	for (uint32_t p = q->head; p != q->tail; p++)
	{
		RbpIo	   *io = *queue_at(q, p);

		if (io->status == RBP_INPROGRESS)
			*queue_at(q, to++) = io;
	}
	q->tail = to;
}

/*
 * ---- posting ----------------------------------------------------------------
 */

/* The number of a set bit, which is cleared; -1 if there is none. */
static int
take_bit(uint32_t *bits)
{
	int			bit = __builtin_ffs((int) *bits) - 1;

	if (bit >= 0)
		*bits &= ~(1u << bit);
	return bit;
}

/* Post the receive of an answer to a ping, number i. */
int
rbp_verbs_post_receive(VerbsConn *conn, int i)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t) (conn->memory + MEMORY_ANSWERS + i * RBP_ANSWER_SIZE),
		.length = RBP_ANSWER_SIZE,
		.lkey = conn->memory_mr->lkey,
	};
	struct ibv_recv_wr wr = {
		.wr_id = RECEIVE | (uint64_t) i,
		.sg_list = &sge,
		.num_sge = 1,
	};
	struct ibv_recv_wr *bad;

	return ibv_post_recv(conn->id->qp, &wr, &bad);
}

/* May the region's key be used for the request? */
static bool
key_known(const Region *region, const RbpIo *io)
{
	return region->state == KEY_KNOWN && region->grant == io->grant;
}

/* Is it too soon to ask for it again? */
static bool
key_pending(const Region *region, const RbpIo *io)
{
	return region->state == KEY_PENDING && region->grant == io->grant &&
		rbp_now_ns() - region->asked_at < PENDING_NS;
}

/*
 * Make a lookup for the first request in the queue whose region has no key and
 * no lookup in flight.  This is called again and again, so the lookups of a
 * batch go out together.
 */
static bool
next_lookup(VerbsConn *conn, Work *work, struct ibv_send_wr *wr,
			struct ibv_sge *sge)
{
	uint32_t	n = conn->data.tail - conn->data.head;

	for (uint32_t i = 0; i < n && i < SQ_DEPTH; i++)
	{
		const RbpIo *io = *queue_at(&conn->data, conn->data.head + i);
		Region	   *region = &conn->regions[io->region];
		int			place;

		if (region->state == KEY_ASKED || key_known(region, io) ||
			key_pending(region, io))
			continue;
		place = take_bit(&conn->free_lookups);
		if (place < 0)
			return false;
		region->state = KEY_ASKED;
		region->grant = io->grant;

		*work = (Work)
		{
			.kind = WORK_LOOKUP,.place = place,.region = io->region
		};
		sge->addr = (uintptr_t) (conn->memory + MEMORY_ENTRIES + place * RBP_VERBS_ENTRY_SIZE);
		sge->length = RBP_VERBS_ENTRY_SIZE;
		sge->lkey = conn->memory_mr->lkey;
		wr->opcode = IBV_WR_RDMA_READ;
		wr->wr.rdma.remote_addr = conn->welcome.table_address +
			(uint64_t) io->region * RBP_VERBS_ENTRY_SIZE;
		wr->wr.rdma.rkey = conn->welcome.table_key;
		return true;
	}
	return false;
}

/* Can the device use the buffer as it is? */
static bool
in_place(const VerbsConn *conn, const RbpIo *io)
{
	const uint8_t *buf = io->buf;
	const RbpMr *mr = io->mr;

	return mr != NULL && mr->device == conn->device && buf >= mr->base &&
		(size_t) (buf - mr->base) <= mr->len &&
		io->len <= mr->len - (size_t) (buf - mr->base);
}

/* A request, or its next piece, or a lookup if that has to come first. */
static bool
next_data(VerbsConn *conn, Work *work, struct ibv_send_wr *wr,
		  struct ibv_sge *sge)
{
	RbpIo	   *io;
	uint32_t	at;
	uint32_t	len;
	int			bounce = NO_BOUNCE;

	/* a request of which a piece is posted keeps its address and key */
	while ((io = queue_head(&conn->data)) != NULL && io->cookie == 0)
	{
		const Region *region = &conn->regions[io->region];

		if (key_known(region, io))
		{
			conn->head_address = region->address + io->offset;
			conn->head_key = region->key;
			break;
		}
		if (!key_pending(region, io))
			return next_lookup(conn, work, wr, sge);
		io->status = RBP_CANCELED;
		conn->data.head++;
	}
	if (io == NULL)
		return false;

	at = (uint32_t) io->cookie;
	len = io->len - at;
	if (in_place(conn, io))
	{
		if (len > PIECE_MAX)
			len = PIECE_MAX;
		sge->addr = (uintptr_t) io->buf + at;
		sge->lkey = io->mr->mr->lkey;
	}
	else
	{
		uint8_t    *bytes;

		bounce = take_bit(&conn->free_bounces);
		if (bounce < 0)
			return false;
		if (len > BOUNCE_SIZE)
			len = BOUNCE_SIZE;
		bytes = conn->memory + bounce * BOUNCE_SIZE;
		if (io->kind == RBP_IO_WRITE)
			memcpy(bytes, (const uint8_t *) io->buf + at, len);
		sge->addr = (uintptr_t) bytes;
		sge->lkey = conn->memory_mr->lkey;
	}
	sge->length = len;
	*work = (Work)
	{
		.kind = WORK_DATA,.io = io,.place = bounce,.at = at,.len = len,.last = at + len == io->len
	};
	wr->opcode = io->kind == RBP_IO_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
	wr->wr.rdma.remote_addr = conn->head_address + at;
	wr->wr.rdma.rkey = conn->head_key;

	io->cookie = at + len;
	if (work->last)
		conn->data.head++;
	return true;
}

static bool
next_ping(VerbsConn *conn, Work *work, struct ibv_send_wr *wr,
		  struct ibv_sge *sge)
{
	RbpWireRequest req = {.prefix.op = RBP_OP_PING};
	RbpIo	   *io = NULL;
	uint8_t    *message;

	for (uint32_t p = conn->pings.head; p != conn->pings.tail && io == NULL; p++)
	{
		if ((*queue_at(&conn->pings, p))->cookie == 0)
			io = *queue_at(&conn->pings, p);
	}
	if (io == NULL || conn->last_ping - conn->pongs == RBP_VERBS_PINGS)
		return false;
	io->cookie = req.id = ++conn->last_ping;
	message = conn->memory + MEMORY_PINGS + req.id % RBP_VERBS_PINGS * RBP_REQUEST_SIZE;
	rbp_wire_put_request(message, &req);

	*work = (Work)
	{
		.kind = WORK_PING
	};
	sge->addr = (uintptr_t) message;
	sge->length = RBP_REQUEST_SIZE;
	sge->lkey = conn->memory_mr->lkey;
	wr->opcode = IBV_WR_SEND;
	return true;
}

/* Post what waits, as far as there is room, with one ring of the doorbell. */
void
rbp_verbs_post(VerbsConn *conn)
{
	struct ibv_send_wr wr[SQ_DEPTH];
	struct ibv_sge sge[SQ_DEPTH];
	struct ibv_send_wr *bad;
	int			n = 0;
	int			rc;

	while (conn->posted - conn->done < SQ_DEPTH)
	{
		Work	   *work = work_at(conn, conn->posted);

		memset(&wr[n], 0, sizeof(wr[n]));
		if (!next_ping(conn, work, &wr[n], &sge[n]) &&
			!next_data(conn, work, &wr[n], &sge[n]))
			break;
		wr[n].wr_id = conn->posted++;
		wr[n].sg_list = &sge[n];
		wr[n].num_sge = 1;
		if (conn->posted % SIGNAL_EACH == 0)
			wr[n].send_flags = IBV_SEND_SIGNALED;
		if (n > 0)
			wr[n - 1].next = &wr[n];
		n++;
	}
	if (n == 0)
		return;
	wr[n - 1].send_flags = IBV_SEND_SIGNALED;
	rc = ibv_post_send(conn->id->qp, wr, &bad);
	if (rc != 0)
		rbp_verbs_fail(conn, rc == ENOMEM ? RBP_NOMEM : RBP_CONNLOST, RBP_CONNLOST);
}

/*
 * ---- completions ------------------------------------------------------------
 */

/* All requests that wait for this region, with its grant, end like this. */
static void
end_waiting(VerbsConn *conn, uint32_t region, RbpStatus status)
{
	for (uint32_t p = conn->data.head; p != conn->data.tail; p++)
	{
		RbpIo	   *io = *queue_at(&conn->data, p);

		if (io->region == region && io->cookie == 0 &&
			io->grant == conn->regions[region].grant)
			io->status = status;
	}
	queue_sweep(&conn->data);
}

/* A table entry has come. */
static void
learn(VerbsConn *conn, const Work *work)
{
	Region	   *region = &conn->regions[work->region];
	const uint8_t *entry = conn->memory + MEMORY_ENTRIES + work->place * RBP_VERBS_ENTRY_SIZE;
	RbpVerbsEntryState state = rbp_wire_get_verbs_entry(entry, work->region, &region->address,
														&region->key);

	conn->free_lookups |= 1u << work->place;
	region->state = KEY_UNKNOWN;
	if (state == RBP_VERBS_ENTRY_TORN && ++region->torn < TORN_MAX)
		return;					/* and is asked for again */
	region->torn = 0;
	switch (state)
	{
		case RBP_VERBS_ENTRY_READY:
			region->state = KEY_KNOWN;
			break;
		case RBP_VERBS_ENTRY_NONE:
			end_waiting(conn, work->region, RBP_DENIED);
			break;
		case RBP_VERBS_ENTRY_PENDING:
			region->state = KEY_PENDING;
			region->asked_at = rbp_now_ns();
			end_waiting(conn, work->region, RBP_CANCELED);
			break;
		case RBP_VERBS_ENTRY_TORN:
			end_waiting(conn, work->region, RBP_CANCELED);
			break;
	}
}

static void
work_done(VerbsConn *conn, const Work *work)
{
	switch (work->kind)
	{
		case WORK_DATA:
			if (work->place != NO_BOUNCE)
			{
				if (work->io != NULL && work->io->kind == RBP_IO_READ)
					memcpy((uint8_t *) work->io->buf + work->at,
						   conn->memory + work->place * BOUNCE_SIZE, work->len);
				conn->free_bounces |= 1u << work->place;
			}
			if (work->io != NULL && work->last)
				work->io->status = RBP_OK;
			break;
		case WORK_LOOKUP:
			learn(conn, work);
			break;
		case WORK_PING:
			break;				/* its answer counts */
	}
}

/* An answer to a ping. */
static void
answer_done(VerbsConn *conn, int buffer, uint32_t len)
{
	const uint8_t *message = conn->memory + MEMORY_ANSWERS + buffer * RBP_ANSWER_SIZE;
	RbpWireAnswer ans;

	if (!rbp_wire_get_answer(message, len < RBP_ANSWER_SIZE ? len : RBP_ANSWER_SIZE, &ans) ||
		ans.op != RBP_OP_PING || ans.id == 0 || ans.id > conn->last_ping ||
		conn->pongs == conn->last_ping)
	{
		rbp_verbs_fail(conn, RBP_PROTOCOL, RBP_PROTOCOL);
		return;
	}
	/* before another ping can be sent */
	if (rbp_verbs_post_receive(conn, buffer) != 0)
	{
		rbp_verbs_fail(conn, RBP_CONNLOST, RBP_CONNLOST);
		return;
	}
	conn->pongs++;
	for (uint32_t p = conn->pings.head; p != conn->pings.tail; p++)
	{
		RbpIo	   *io = *queue_at(&conn->pings, p);

		if (io->cookie != 0 && io->cookie <= ans.id)
			end_io(io, rbp_status_from_wire(ans.status));
	}
	queue_sweep(&conn->pings);
}

/*
 * A work request has failed, and with it the QP.  Those before it have
 * succeeded, for all we know, but nobody has said so: only what has been
 * confirmed is RBP_OK.
 */
static void
work_failed(VerbsConn *conn, const struct ibv_wc *wc)
{
	switch (wc->status)
	{
		case IBV_WC_REM_ACCESS_ERR:
		case IBV_WC_REM_INV_REQ_ERR:
		case IBV_WC_REM_OP_ERR:
			if ((wc->wr_id & RECEIVE) == 0)
			{
				const Work *work = work_at(conn, wc->wr_id);

				if (work->kind == WORK_DATA)
					end_io(work->io, RBP_DENIED);
				else if (work->kind == WORK_LOOKUP)
					end_waiting(conn, work->region, RBP_DENIED);
			}
			rbp_verbs_fail(conn, RBP_CANCELED, RBP_CONNLOST);
			break;
		default:
			rbp_verbs_fail(conn, RBP_CONNLOST, RBP_CONNLOST);
			break;
	}
}

/*
 * Take what has completed, and post what there is room for now.  False if
 * nothing had.
 */
bool
rbp_verbs_progress(VerbsConn *conn)
{
	struct ibv_wc wc[SIGNAL_EACH];
	struct ibv_wc cause = {.status = IBV_WC_SUCCESS};
	int			n;
	bool		some = false;

	do
	{
		n = ibv_poll_cq(conn->cq, SIGNAL_EACH, wc);
		if (n < 0)
			rbp_verbs_fail(conn, RBP_CONNLOST, RBP_CONNLOST);
		for (int i = 0; i < n && conn->state == VERBS_READY; i++)
		{
			/*
			 * A flushed work request is a consequence: go on until the
			 * completion that has the cause.  Receives can be flushed before
			 * work that has succeeded is polled, so the first failure is not
			 * the end.
			 */
			if (wc[i].status != IBV_WC_SUCCESS)
			{
				if (cause.status == IBV_WC_SUCCESS || cause.status == IBV_WC_WR_FLUSH_ERR)
					cause = wc[i];
			}
			else if ((wc[i].wr_id & RECEIVE) != 0)
				answer_done(conn, (int) (wc[i].wr_id & ~RECEIVE), wc[i].byte_len);
			else
				while (conn->done <= wc[i].wr_id)
				{
					work_done(conn, work_at(conn, conn->done));
					conn->done++;
				}
		}
		some |= n != 0;
	} while (n > 0 && cause.status == IBV_WC_WR_FLUSH_ERR);

	if (conn->state == VERBS_READY && cause.status != IBV_WC_SUCCESS)
		work_failed(conn, &cause);
	if (conn->state == VERBS_READY && some)
		rbp_verbs_post(conn);
	return some;
}

/* Queue a request; RBP_INPROGRESS, or the status with which it is refused. */
RbpStatus
rbp_verbs_enqueue(VerbsConn *conn, RbpIo *io)
{
	io->cookie = 0;
	if (io->kind == RBP_IO_PING)
		return queue_push(&conn->pings, io) ? RBP_INPROGRESS : RBP_NOMEM;
	if (!rbp_io_valid(io, conn->welcome.region_size))
		return RBP_INVALID;
	if (io->region >= conn->welcome.regions)
		return RBP_DENIED;
	return queue_push(&conn->data, io) ? RBP_INPROGRESS : RBP_NOMEM;
}

/*
 * Give up those of these requests that are not final, and drop all references
 * to them.  The connection only refers to requests in progress, so those that
 * are not in progress now are the ones that were given up.
 */
void
rbp_verbs_give_up(VerbsConn *conn, RbpIo *ios, int n)
{
	bool		device_has_buffer = false;

	for (int i = 0; i < n; i++)
		end_io(&ios[i], RBP_TIMEOUT);

	for (uint64_t w = conn->done; w < conn->posted; w++)
	{
		Work	   *work = work_at(conn, w);

		if (work->io == NULL || work->io->status == RBP_INPROGRESS)
			continue;
		device_has_buffer |= work->place == NO_BOUNCE;
		work->io = NULL;
	}
	queue_sweep(&conn->data);
	queue_sweep(&conn->pings);
	if (device_has_buffer)
		rbp_verbs_fail(conn, RBP_CONNLOST, RBP_CONNLOST);
}
