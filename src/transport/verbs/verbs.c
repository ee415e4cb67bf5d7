/*-------------------------------------------------------------------------
 *
 * verbs.c
 *	  Reads and writes of donor memory by RDMA: one-sided, over a reliable
 *	  connection (RC) that rdma_cm makes.
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
 *	- the pool: memory of the connection, registered once.  It holds slots
 *	  that bytes are copied through when the caller's buffer is not
 *	  registered, larger requests piece by piece, and the small messages.  A
 *	  caller who gives up takes its RbpIo away; the slot stays taken until
 *	  the completion comes, and the connection goes on.
 *	- callers' registered memory (RbpIo.mr), used in place.  Giving up such a
 *	  request while it is posted costs the connection: the QP is destroyed
 *	  before wait() returns.
 *	- the donor's memory, by its keys.
 *
 * Work requests.  The send queue (SQ) is mirrored by a ring, works[]: entry
 * number n, counted from 0, is works[n % SQ_DEPTH], and n is its wr_id.  An RC
 * queue completes in order, so not each one asks for a completion (each 8th,
 * and the last of what is posted at once): a completion of n ends all up to n.
 * A failure always completes, and is the end of the connection.  The CQ has
 * room for a completion of everything that may be posted: it cannot overrun.
 *
 * Requests that are not posted yet wait in a queue, first in, first out; those
 * that find no room in the SQ, no slot, or no key are posted by wait(), as
 * completions come.
 *
 * Keys.  What a region is reached by stands in a table in the donor's memory,
 * which this lease may read (wire/wire.h); the entry is fetched by an RDMA read
 * when a region is first used, and again when its grant differs: an entry is
 * used for requests of the grant that some request had which was there before
 * the entry was read, so that it cannot be older than the grant.  A region that
 * is not the lease's any more is found out in the table (RBP_DENIED), or, by
 * who has its key, by a remote access error.  That error is final for a QP, but
 * says nothing against the donor: the request gets RBP_DENIED, all else that is
 * in flight RBP_CANCELED.
 *
 * Pings are messages, which the donor's process has to answer: they tell that
 * it lives, and reads and writes do not.  Both sides have RBP_VERBS_PINGS
 * receives posted, and so many are on the way at most.  One that is given up
 * keeps its place until its answer comes.
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
#include "transport/peer.h"
#include "transport/sock.h"
#include "transport/transport.h"
#include "transport/verbs/device.h"
#include "wire/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define SQ_DEPTH		64
#define SIGNAL_EACH		8
#define PIECE_MAX		(1u << 20)	/* of one work request; no device has less */
#define QUEUE_MAX		4096

#define SLOTS			16
#define SLOT_SIZE		8192
#define NO_SLOT			(-1)
#define LOOKUPS			16		/* table entries on their way */

#define RESOLVE_MS		1000	/* address; and again so long for the route */
#define RNR_RETRIES		6		/* 7 is for ever */

#define PENDING_NS		10000000	/* before a region without key is asked for
									 * again */
#define TORN_MAX		5

/* How a wait polls; all from the last completion on, but the last. */
#define SPIN_NS			100000
#define YIELD_NS		2000000
#define NAP_NS			50000
#define IDLE_NS			200000	/* before the first look at events */
#define EVENTS_NS		1000000 /* between looks */

/* What the pool holds, and where. */
#define POOL_PINGS		(SLOTS * SLOT_SIZE)
#define POOL_ANSWERS	(POOL_PINGS + RBP_VERBS_PINGS * RBP_REQUEST_SIZE)
#define POOL_ENTRIES	(POOL_ANSWERS + RBP_VERBS_PINGS * RBP_ANSWER_SIZE)
#define POOL_SIZE		(POOL_ENTRIES + LOOKUPS * RBP_VERBS_ENTRY_SIZE)

/* wr_id of receives: this and the number of the buffer */
#define RECEIVE			(UINT64_C(1) << 63)

typedef enum VerbsState
{
	VERBS_ADDRESS,				/* being resolved */
	VERBS_ROUTE,				/* likewise */
	VERBS_CONNECTING,			/* the REQ is sent */
	VERBS_READY,
	VERBS_FAILED
} VerbsState;

typedef enum KeyState
{
	KEY_UNKNOWN,
	KEY_ASKED,					/* a lookup is posted */
	KEY_PENDING,				/* the donor has none yet */
	KEY_KNOWN
} KeyState;

/* What is known of a region. */
typedef struct Region
{
	uint64_t	address;
	uint32_t	key;
	uint32_t	grant;			/* of the requests that this is for */
	KeyState	state;
	uint32_t	torn;			/* entries in a row that could not be read */
	int64_t		asked_at;		/* KEY_PENDING */
} Region;

typedef enum WorkKind
{
	WORK_DATA,					/* a request or a piece of one */
	WORK_LOOKUP,				/* a read of a table entry */
	WORK_PING
} WorkKind;

/* A work request that is posted. */
typedef struct Work
{
	WorkKind	kind;
	RbpIo	   *io;				/* data: whose; NULL: given up */
	int			slot;			/* data: in the pool, or NO_SLOT; lookup: its
								 * place there */
	uint32_t	at;				/* data: from this byte of the request on ... */
	uint32_t	len;			/* ... so many */
	bool		last;			/* data: the request ends with it */
	uint32_t	region;			/* lookup */
} Work;

/* Requests in progress, in the order of submission. */
typedef struct Queue
{
	RbpIo	  **ios;
	uint32_t	size;			/* a power of two, or 0 */
	uint32_t	head;			/* counts up, as does tail */
	uint32_t	tail;
} Queue;

typedef struct VerbsConn
{
	RbpConn		base;
	VerbsState	state;
	RbpStatus	failure;		/* of submit() once VERBS_FAILED */
	RbpCredentials cred;		/* until the REQ is sent */

	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;		/* its qp is ours */
	RbpVerbsDevice *device;
	struct ibv_cq *cq;
	uint8_t    *pool;
	struct ibv_mr *pool_mr;

	RbpWireVerbsWelcome welcome;	/* from VERBS_READY on */
	Region	   *regions;		/* welcome.regions of them */

	Queue		data;			/* reads and writes */
	Queue		pings;
	uint64_t	head_address;	/* of the first in data, once a piece of it is */
	uint32_t	head_key;		/* posted; its cookie counts the bytes */

	Work		works[SQ_DEPTH];
	uint64_t	posted;			/* work requests so far */
	uint64_t	done;			/* ... of which are completed */
	uint32_t	free_slots;		/* bits */
	uint32_t	free_lookups;	/* bits */

	uint64_t	last_ping;
	struct
	{
		uint64_t	id;			/* 0: free */
		RbpIo	   *io;			/* NULL: given up */
	}			pinged[RBP_VERBS_PINGS];

	int64_t		looked_at;		/* the event channel */
} VerbsConn;

_Static_assert(SLOTS <= 32 && LOOKUPS <= 32, "they are bits");
_Static_assert(POOL_PINGS % 16 == 0, "what follows the slots is aligned");

/*
 * ---- queues -----------------------------------------------------------------
 */
static bool
queue_push(Queue *q, RbpIo *io)
{
	uint32_t	n = q->tail - q->head;

	if (n == q->size)
	{
		uint32_t	size = q->size == 0 ? SQ_DEPTH : q->size * 2;
		RbpIo	  **ios;

		if (size > QUEUE_MAX)
			return false;
		ios = malloc(size * sizeof(*ios));
		if (ios == NULL)
			return false;
		for (uint32_t i = 0; i < n; i++)
			ios[i] = q->ios[(q->head + i) & (q->size - 1)];
		free(q->ios);
		q->ios = ios;
		q->size = size;
		q->head = 0;
		q->tail = n;
	}
	q->ios[q->tail++ & (q->size - 1)] = io;
	return true;
}

static RbpIo **
queue_at(Queue *q, uint32_t position)
{
	return &q->ios[position & (q->size - 1)];
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

static Work *
work_at(VerbsConn *conn, uint64_t number)
{
	return &conn->works[number % SQ_DEPTH];
}

/*
 * ---- the end of a connection ------------------------------------------------
 */

/*
 * Take the device's hands off all memory.  The peer is told, once; it may not
 * hear it.
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

static void
end_io(RbpIo *io, RbpStatus status)
{
	if (io != NULL && io->status == RBP_INPROGRESS)
		io->status = status;
}

/*
 * The connection is over.  What is in flight gets status, unless it is final
 * already; what is submitted later, and connect_wait(), get failure.
 */
static void
fail(VerbsConn *conn, RbpStatus status, RbpStatus failure)
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

/* Wait for an answer in buffer i of the pool. */
static int
post_receive(VerbsConn *conn, int i)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t) (conn->pool + POOL_ANSWERS + i * RBP_ANSWER_SIZE),
		.length = RBP_ANSWER_SIZE,
		.lkey = conn->pool_mr->lkey,
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
 * The first request waits for its region's key: a lookup for the first that
 * has none on its way.  In a batch all go out at once.
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

		*work = (Work) {.kind = WORK_LOOKUP,.slot = place,.region = io->region};
		sge->addr = (uintptr_t) (conn->pool + POOL_ENTRIES + place * RBP_VERBS_ENTRY_SIZE);
		sge->length = RBP_VERBS_ENTRY_SIZE;
		sge->lkey = conn->pool_mr->lkey;
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
	int			slot = NO_SLOT;

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

		slot = take_bit(&conn->free_slots);
		if (slot < 0)
			return false;
		if (len > SLOT_SIZE)
			len = SLOT_SIZE;
		bytes = conn->pool + slot * SLOT_SIZE;
		if (io->kind == RBP_IO_WRITE)
			memcpy(bytes, (const uint8_t *) io->buf + at, len);
		sge->addr = (uintptr_t) bytes;
		sge->lkey = conn->pool_mr->lkey;
	}
	sge->length = len;
	*work = (Work) {.kind = WORK_DATA,.io = io,.slot = slot,.at = at,.len = len,.last = at + len == io->len};
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
	RbpIo	   *io = queue_head(&conn->pings);

	for (int i = 0; io != NULL && i < RBP_VERBS_PINGS; i++)
	{
		uint8_t    *message = conn->pool + POOL_PINGS + i * RBP_REQUEST_SIZE;
		RbpWireRequest req = {.op = RBP_OP_PING};

		if (conn->pinged[i].id != 0)
			continue;
		conn->pings.head++;
		conn->pinged[i].id = req.id = ++conn->last_ping;
		conn->pinged[i].io = io;
		rbp_wire_put_request(message, &req);

		*work = (Work) {.kind = WORK_PING};
		sge->addr = (uintptr_t) message;
		sge->length = RBP_REQUEST_SIZE;
		sge->lkey = conn->pool_mr->lkey;
		wr->opcode = IBV_WR_SEND;
		return true;
	}
	return false;
}

/* Post what waits, as far as there is room, with one ring of the doorbell. */
static void
post(VerbsConn *conn)
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
		fail(conn, rc == ENOMEM ? RBP_NOMEM : RBP_CONNLOST, RBP_CONNLOST);
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
	const uint8_t *entry = conn->pool + POOL_ENTRIES + work->slot * RBP_VERBS_ENTRY_SIZE;
	RbpVerbsEntryState state;

	state = rbp_wire_get_verbs_entry(entry, work->region, &region->address,
									 &region->key);
	conn->free_lookups |= 1u << work->slot;
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
		case RBP_VERBS_ENTRY_WAIT:
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
			if (work->slot != NO_SLOT)
			{
				if (work->io != NULL && work->io->kind == RBP_IO_READ)
					memcpy((uint8_t *) work->io->buf + work->at,
						   conn->pool + work->slot * SLOT_SIZE, work->len);
				conn->free_slots |= 1u << work->slot;
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
	const uint8_t *message = conn->pool + POOL_ANSWERS + buffer * RBP_ANSWER_SIZE;
	RbpWireAnswer ans;
	int			i = 0;

	if (!rbp_wire_get_answer(message, len < RBP_ANSWER_SIZE ? len : RBP_ANSWER_SIZE, &ans) ||
		ans.op != RBP_OP_PING || ans.id == 0)
	{
		fail(conn, RBP_PROTOCOL, RBP_PROTOCOL);
		return;
	}
	while (i < RBP_VERBS_PINGS && conn->pinged[i].id != ans.id)
		i++;
	if (i == RBP_VERBS_PINGS)
	{
		fail(conn, RBP_PROTOCOL, RBP_PROTOCOL);
		return;
	}
	/* before another ping can be sent */
	if (post_receive(conn, buffer) != 0)
	{
		fail(conn, RBP_CONNLOST, RBP_CONNLOST);
		return;
	}
	end_io(conn->pinged[i].io, rbp_status_from_wire(ans.status));
	conn->pinged[i].id = 0;
	conn->pinged[i].io = NULL;
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
			fail(conn, RBP_CANCELED, RBP_CONNLOST);
			break;
		default:
			fail(conn, RBP_CONNLOST, RBP_CONNLOST);
			break;
	}
}

/*
 * Take what has completed, and post what there is room for now.  False if
 * nothing had.
 */
static bool
progress(VerbsConn *conn)
{
	struct ibv_wc wc[SIGNAL_EACH];
	struct ibv_wc cause = {.status = IBV_WC_SUCCESS};
	int			n;
	bool		some = false;

	do
	{
		n = ibv_poll_cq(conn->cq, SIGNAL_EACH, wc);
		if (n < 0)
			fail(conn, RBP_CONNLOST, RBP_CONNLOST);
		for (int i = 0; i < n && conn->state == VERBS_READY; i++)
		{
			/*
			 * What was only flushed does not tell why.  Receives can be
			 * flushed before work that succeeded is told of.
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
		post(conn);
	return some;
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

/* All that the route's device has to give: memory, queues, and receives. */
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

	conn->pool = mmap(NULL, POOL_SIZE, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (conn->pool == MAP_FAILED)
	{
		conn->pool = NULL;
		return RBP_NOMEM;
	}
	/* else a fork would leave our pages to the child, and us with copies */
	if (madvise(conn->pool, POOL_SIZE, MADV_DONTFORK) != 0)
		return RBP_NOMEM;
	conn->pool_mr = ibv_reg_mr(conn->device->pd, conn->pool, POOL_SIZE,
							   IBV_ACCESS_LOCAL_WRITE);
	if (conn->pool_mr == NULL)
		return RBP_NOMEM;

	conn->cq = ibv_create_cq(verbs, SQ_DEPTH + RBP_VERBS_PINGS, NULL, NULL, 0);
	if (conn->cq == NULL)
		return RBP_NOMEM;
	attr.send_cq = conn->cq;
	attr.recv_cq = conn->cq;
	if (rdma_create_qp(conn->id, conn->device->pd, &attr) != 0)
		return RBP_NOMEM;

	for (int i = 0; i < RBP_VERBS_PINGS; i++)
		if (post_receive(conn, i) != 0)
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

/* The donor's word, in private data. */
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
			if (!rbp_verbs_is_wanted(conn->id))
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
			return RBP_OK;		/* if it hurts, requests will tell */

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
			fail(conn, status_of_errno(errno), RBP_CONNLOST);
		return false;
	}
	status = handle_event(conn, event);
	(void) rdma_ack_cm_event(event);
	if (status != RBP_OK)
		fail(conn, status, status);
	return true;
}

/* While waiting, or before posting: is the donor still there? */
static void
look_at_events(VerbsConn *conn, int64_t now)
{
	conn->looked_at = now;
	while (conn->state == VERBS_READY && take_event(conn))
		;
}

/*
 * ---- the table's functions ----------------------------------------------------
 */
static bool
verbs_usable(const RbpEndpoint *ep)
{
	return ep->rdma_host[0] != '\0' && ep->rdma_port != 0 &&
		rbp_verbs_present() && rbp_verbs_usable();
}

static void
verbs_close(RbpConn *base)
{
	VerbsConn  *conn = (VerbsConn *) base;

	if (conn == NULL)
		return;
	release_qp(conn);
	if (conn->cq != NULL)
		(void) ibv_destroy_cq(conn->cq);
	if (conn->pool_mr != NULL)
		(void) ibv_dereg_mr(conn->pool_mr);
	if (conn->pool != NULL)
		(void) munmap(conn->pool, POOL_SIZE);
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

static RbpStatus
verbs_connect(const RbpEndpoint *ep, const RbpCredentials *cred, RbpConn **conn_out)
{
	union
	{
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	}			peer;
	VerbsConn  *conn;
	RbpStatus	status;

	if (ep->rdma_host[0] == '\0' || ep->rdma_port == 0)
		return RBP_INVALID;
	memset(&peer, 0, sizeof(peer));
	if (inet_pton(AF_INET, ep->rdma_host, &peer.v4.sin_addr) == 1)
	{
		peer.v4.sin_family = AF_INET;
		peer.v4.sin_port = htons(ep->rdma_port);
	}
	else if (inet_pton(AF_INET6, ep->rdma_host, &peer.v6.sin6_addr) == 1)
	{
		peer.v6.sin6_family = AF_INET6;
		peer.v6.sin6_port = htons(ep->rdma_port);
	}
	else
		return RBP_INVALID;
	if (!rbp_verbs_claim())
		return RBP_INVALID;

	conn = calloc(1, sizeof(*conn));
	if (conn == NULL)
		return RBP_NOMEM;
	conn->base.ops = &rbp_transport_verbs;
	conn->state = VERBS_ADDRESS;
	conn->cred = *cred;
	conn->free_slots = (1u << SLOTS) - 1;
	conn->free_lookups = (1u << LOOKUPS) - 1;
	status = start(conn, &peer.any);
	if (status != RBP_OK)
	{
		verbs_close(&conn->base);
		return status;
	}
	*conn_out = &conn->base;
	return RBP_OK;
}

static RbpStatus
verbs_connect_wait(RbpConn *base, int64_t deadline_ns)
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

static RbpStatus
verbs_register_memory(RbpConn *base, void *memory, size_t len, RbpMr **mr)
{
	VerbsConn  *conn = (VerbsConn *) base;

	if (conn->device == NULL)
		return RBP_INVALID;		/* not connected */
	return rbp_verbs_mr_get(conn->device, memory, len, mr);
}

static void
verbs_deregister_memory(RbpConn *base, RbpMr *mr)
{
	(void) base;
	rbp_verbs_mr_put(mr);
}

/* Put a request into its queue; or its status, if it cannot be. */
static RbpStatus
enqueue(VerbsConn *conn, RbpIo *io)
{
	uint64_t	size = conn->welcome.region_size;

	io->cookie = 0;
	if (io->kind == RBP_IO_PING)
		return queue_push(&conn->pings, io) ? RBP_INPROGRESS : RBP_NOMEM;
	if ((io->kind != RBP_IO_READ && io->kind != RBP_IO_WRITE) ||
		io->buf == NULL || io->len == 0 || io->len > RBP_WIRE_MAX_IO ||
		io->len > size || io->offset > size - io->len)
		return RBP_INVALID;
	if (io->region >= conn->welcome.regions)
		return RBP_DENIED;
	return queue_push(&conn->data, io) ? RBP_INPROGRESS : RBP_NOMEM;
}

static RbpStatus
verbs_submit(RbpConn *base, RbpIo *ios, int n)
{
	VerbsConn  *conn = (VerbsConn *) base;

	if (conn->state != VERBS_READY)
	{
		RbpStatus	status = conn->state == VERBS_FAILED ? conn->failure : RBP_INVALID;

		for (int i = 0; i < n; i++)
			ios[i].status = status;
		return status;
	}
	for (int i = 0; i < n; i++)
		ios[i].status = enqueue(conn, &ios[i]);
	post(conn);
	return conn->state == VERBS_FAILED ? conn->failure : RBP_OK;
}

/*
 * Forget the requests of these that are not final.  Whatever else we know of
 * is in progress, so what is not has just been given up.
 */
static void
give_up(VerbsConn *conn, RbpIo *ios, int n)
{
	bool		exposed = false;

	for (int i = 0; i < n; i++)
		end_io(&ios[i], RBP_TIMEOUT);

	for (uint64_t w = conn->done; w < conn->posted; w++)
	{
		Work	   *work = work_at(conn, w);

		if (work->io == NULL || work->io->status == RBP_INPROGRESS)
			continue;
		exposed |= work->slot == NO_SLOT;
		work->io = NULL;
	}
	queue_sweep(&conn->data);
	queue_sweep(&conn->pings);
	for (int i = 0; i < RBP_VERBS_PINGS; i++)
		if (conn->pinged[i].io != NULL && conn->pinged[i].io->status != RBP_INPROGRESS)
			conn->pinged[i].io = NULL;

	/* the device still has the buffer of one */
	if (exposed)
		fail(conn, RBP_CONNLOST, RBP_CONNLOST);
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

		some = progress(conn);
		now = rbp_now_ns();
		if (some || last == 0)
			last = now;
		if (now >= deadline_ns ||
			(now - last >= YIELD_NS && rbp_transport_give_up()))
		{
			give_up(conn, ios + first, n - first);
			break;
		}
		if (some)
			continue;

		if (now - last >= IDLE_NS && now - conn->looked_at >= EVENTS_NS)
			look_at_events(conn, now);
		if (now - last >= YIELD_NS)
		{
			int64_t		nap = deadline_ns - now < NAP_NS ? deadline_ns - now : NAP_NS;
			struct timespec ts = {.tv_nsec = nap};

			(void) nanosleep(&ts, NULL);
		}
		else if (now - last >= SPIN_NS)
			sched_yield();
	}

	for (int i = 0; i < n; i++)
		if (ios[i].status != RBP_OK)
			return ios[i].status;
	return RBP_OK;
}

const RbpTransportOps rbp_transport_verbs = {
	.name = "verbs",
	.bit = RBP_TRANSPORT_VERBS,
	.one_sided = true,
	.costly = true,
	.usable = verbs_usable,
	.connect = verbs_connect,
	.connect_wait = verbs_connect_wait,
	.register_memory = verbs_register_memory,
	.deregister_memory = verbs_deregister_memory,
	.submit = verbs_submit,
	.wait = verbs_wait,
	.close = verbs_close,
};
