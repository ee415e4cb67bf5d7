/*-------------------------------------------------------------------------
 *
 * conn.h
 *	  A verbs connection, as the files of the verbs transport share it.
 *
 * verbs.c		the table of functions, and waiting
 * connect.c	a connection's beginning, events, and end
 * requests.c	requests become work requests, and completions
 *
 * A file calls those below it, and none above.
 *
 * A connection belongs to one thread at a time: no locks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_VERBS_CONN_H
#define RBP_VERBS_CONN_H

#include "transport/peer.h"
#include "transport/transport.h"
#include "transport/verbs/device.h"
#include "wire/wire.h"

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define SQ_DEPTH		64
#define QUEUE_MAX		4096	/* requests that wait, at most */

/* Bounce buffers: for data in memory that is not registered */
#define BOUNCES			16
#define BOUNCE_SIZE		8192
#define LOOKUPS			16		/* table entries on their way */

/*
 * A connection's registered memory: bounce buffers, messages of pings, their
 * answers, table entries that are read.
 */
#define MEMORY_PINGS	(BOUNCES * BOUNCE_SIZE)
#define MEMORY_ANSWERS	(MEMORY_PINGS + RBP_VERBS_PINGS * RBP_REQUEST_SIZE)
#define MEMORY_ENTRIES	(MEMORY_ANSWERS + RBP_VERBS_PINGS * RBP_ANSWER_SIZE)
#define MEMORY_SIZE		(MEMORY_ENTRIES + LOOKUPS * RBP_VERBS_ENTRY_SIZE)

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
	uint32_t	grant;			/* that the key was looked up for; requests of
								 * another one look it up again */
	KeyState	state;
	uint32_t	torn;			/* lookups in a row that met an entry while it
								 * was being changed */
	int64_t		asked_at;		/* KEY_PENDING: of the last lookup */
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
	int			place;			/* data: its bounce buffer, or NO_BOUNCE;
								 * lookup: its table entry */
	uint32_t	at;				/* data: from this byte of the request on ... */
	uint32_t	len;			/* ... so many */
	bool		last;			/* data: the request ends with it */
	uint32_t	region;			/* lookup */
} Work;

/* Requests in progress, in the order of submission. */
typedef struct Queue
{
	uint32_t	head;			/* counts up, as does tail */
	uint32_t	tail;
	RbpIo	   *ios[QUEUE_MAX]; /* a ring */
} Queue;

typedef struct VerbsConn
{
	RbpConn		base;
	VerbsState	state;
	RbpStatus	failure;		/* of submit() once VERBS_FAILED */

	/* while connecting */
	uint8_t		key[RBP_SECRET_LEN];	/* the donor's */
	RbpWireVerbsHello hello;
	struct sockaddr_storage peer;
	int			tries;			/* ids so far */
	int64_t		asked_at;		/* when the REQ was sent */

	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;		/* with the queue pair, id->qp */
	RbpVerbsDevice *device;
	struct ibv_cq *cq;
	uint8_t    *memory;			/* MEMORY_SIZE bytes */
	struct ibv_mr *memory_mr;

	RbpWireVerbsWelcome welcome;	/* from VERBS_READY on */
	Region	   *regions;		/* welcome.regions of them */

	Queue		data;			/* reads and writes; until all of one is
								 * posted */
	Queue		pings;			/* until they end; cookie: the id, 0 before it
								 * is sent */

	/*
	 * Remote address and rkey of the first request in data, once a piece of
	 * it is posted; its cookie is the number of bytes that are
	 */
	uint64_t	head_address;
	uint32_t	head_key;

	Work		works[SQ_DEPTH];
	uint64_t	posted;			/* work requests so far */
	uint64_t	done;			/* ... of which are completed */
	uint32_t	free_bounces;	/* bits */
	uint32_t	free_lookups;	/* bits */

	uint64_t	last_ping;		/* id of the last one sent */
	uint64_t	pongs;			/* answers so far, one for each ping sent */

	int64_t		looked_at;		/* the event channel */
} VerbsConn;

_Static_assert(BOUNCES <= 32 && LOOKUPS <= 32, "they are bits");
_Static_assert(MEMORY_PINGS % 16 == 0, "what follows the bounce buffers is aligned");

static inline Work *
work_at(VerbsConn *conn, uint64_t number)
{
	return &conn->works[number % SQ_DEPTH];
}

static inline RbpIo **
queue_at(Queue *q, uint32_t position)
{
	return &q->ios[position % QUEUE_MAX];
}

static inline void
end_io(RbpIo *io, RbpStatus status)
{
	if (io != NULL && io->status == RBP_INPROGRESS)
		io->status = status;
}

/*
 * ---- connect.c --------------------------------------------------------------
 */

/*
 * While waiting, or before posting: is the donor still there?  now:
 * rbp_now_ns().
 */
extern void rbp_verbs_look_at_events(VerbsConn *conn, int64_t now);

/* For the table of functions. */
extern RbpStatus rbp_verbs_connect(const RbpEndpoint *ep, const RbpCredentials *cred,
								   RbpConn **conn_out);
extern RbpStatus rbp_verbs_connect_wait(RbpConn *base, int64_t deadline_ns);
extern void rbp_verbs_close(RbpConn *base);

/*
 * ---- requests.c -------------------------------------------------------------
 */

/*
 * Destroy the queue pair; then the device does not access our memory any more.
 * The peer is told before, but the message may get lost.
 */
extern void rbp_verbs_release_qp(VerbsConn *conn);

/*
 * The connection is over.  What is in flight gets status, unless it is final
 * already; what is submitted later, and connect_wait(), get failure.
 */
extern void rbp_verbs_fail(VerbsConn *conn, RbpStatus status, RbpStatus failure);

/* Queue a request; RBP_INPROGRESS, or the status with which it is refused. */
extern RbpStatus rbp_verbs_enqueue(VerbsConn *conn, RbpIo *io);

/* Post what waits, as far as there is room. */
extern void rbp_verbs_post(VerbsConn *conn);

/*
 * Take what has completed, and post what there is room for now.  False if
 * nothing had.
 */
extern bool rbp_verbs_progress(VerbsConn *conn);

/*
 * Give up those of these requests that are not final: they get RBP_TIMEOUT,
 * and neither they nor their buffers are touched any more.  If the device has
 * the buffer of one, this ends the connection.
 */
extern void rbp_verbs_give_up(VerbsConn *conn, RbpIo *ios, int n);

/* Post the receive of an answer to a ping, number i.  0, or an errno. */
extern int	rbp_verbs_post_receive(VerbsConn *conn, int i);

#endif							/* RBP_VERBS_CONN_H */
