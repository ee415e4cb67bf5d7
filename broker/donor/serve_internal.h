/*-------------------------------------------------------------------------
 *
 * serve_internal.h
 *	  Declarations shared by the files of the data plane.
 *
 * serve_threads.c	threads that poll, accepting connections
 * serve_conn.c		one client: handshake, requests, end
 * serve_answer.c	answers to it
 *
 * A file calls those below it, and none above.
 *
 * A connection and its thread's fields are used by that thread only, unless
 * said otherwise, and so are all functions here.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DONOR_SERVE_INTERNAL_H
#define RBP_DONOR_SERVE_INTERNAL_H

#include "broker/common/log.h"
#include "broker/common/places.h"
#include "broker/donor/lease.h"
#include "broker/donor/serve.h"
#include "common/spin.h"
#include "wire/wire.h"

#include <pthread.h>
#include <sys/queue.h>

#define SERVE_RX_SIZE		4096	/* 128 requests */
#define SERVE_RING			64	/* pending answers, per connection */
#define SERVE_ALONE			16	/* requests in a row of one client */

typedef enum RbpDonorConnState
{
	CONN_HELLO,
	CONN_AUTH,
	CONN_OPEN
} RbpDonorConnState;

#define ANSWER_NO_REGION	UINT32_MAX

typedef struct RbpDonorAnswer
{
	uint8_t		header[RBP_ANSWER_SIZE + RBP_MAP_PAYLOAD_SIZE];
	uint8_t		op;
	uint32_t	region;			/* source of the payload or memfd, or
								 * ANSWER_NO_REGION */
	uint64_t	id;
	uint64_t	offset;			/* of a READ's payload */
	uint32_t	payload;		/* bytes from the region */
	uint32_t	sent;			/* bytes sent of header and payload */
} RbpDonorAnswer;

typedef struct RbpDonorThread RbpDonorThread;

typedef struct RbpDonorConn
{
	int			fd;
	bool		is_unix;
	bool		is_listener;
	bool		admitted;		/* by --shm-users */
	RbpDonorConnState state;
	RbpDonorThread *thread;
				LIST_ENTRY(RbpDonorConn) link;	/* in the thread's list */
	RbpPlace	place;			/* before the proof; its holder is the peer of
								 * proofs.h */
	int64_t		active_at;		/* time of accept(); after the handshake, of
								 * the last traffic */
	RbpDonorLease *lease;		/* referenced; NULL before the handshake */
	RbpDonorClient *client;		/* likewise */
	unsigned int key_number;	/* of the key that it was proven by */
	RbpWireTranscript transcript;	/* of the handshake */
	uint32_t	events;			/* registered with epoll */

	/* the write whose payload is being received: what is left of it */
	RbpWireRequest write;		/* len 0: none */
	uint16_t	write_status;
	bool		last_was_write;

	uint32_t	head,
				nanswers;		/* answers in ring, not sent yet */
	RbpDonorAnswer ring[SERVE_RING];

	uint32_t	rx_at,
				rx_have;		/* rx_at to rx_have: bytes to be parsed */
	uint8_t		rx[SERVE_RX_SIZE];
} RbpDonorConn;

struct RbpDonorThread
{
	int			epfd;
	pthread_mutex_t lock;		/* protects the list, which accept() extends */
				LIST_HEAD(RbpDonorConnList, RbpDonorConn) conns;
	RbpDonorConn *last_served;	/* last connection served, to be polled first */
	int			consecutive;	/* times it was served in a row, up to
								 * SERVE_ALONE */
	unsigned int polls;			/* number of polls; each fourth is of all
								 * connections */
	RbpSpin		spin;

	_Atomic uint64_t stats[DONOR_NSTATS];	/* read by any thread */
};

/* Only the owner writes, so no atomic addition is needed. */
static inline void
donor_serve_count(RbpDonorThread *thread, RbpDonorServeStat stat, uint64_t n)
{
	_Atomic uint64_t *counter = &thread->stats[stat];

	atomic_store_explicit(counter,
						  atomic_load_explicit(counter, memory_order_relaxed) + n,
						  memory_order_relaxed);
}

/* The peer of a new connection; false if --shm-users does not admit it. */
extern bool donor_serve_admits(int fd, bool is_unix, uint64_t *peer);

/* Log that a client is refused, with its address.  Any thread may call this. */
extern void donor_serve_log_refusal(int fd, RbpLogLevel level, const char *why);

/* Close and free a connection. */
extern void donor_serve_close(RbpDonorConn *conn);

/*
 * Serve a connection until it has no more requests, or has had its turn.
 * Returns whether there was anything to do; the connection may be freed then.
 */
extern bool donor_serve_conn(RbpDonorConn *conn, int64_t now);

/*
 * serve_answer.c: queue the answer to a request; the caller has made sure that
 * there is room.  When the answer to a READ or a MAP is sent, it is checked
 * whether the lease may use the region.
 */
extern void donor_serve_answer(RbpDonorConn *conn, const RbpWireRequest *req, uint16_t status);

/*
 * Send as much as the socket takes.  False if the connection must be closed.
 */
extern bool donor_serve_flush(RbpDonorConn *conn, int64_t now);

#endif							/* RBP_DONOR_SERVE_INTERNAL_H */
