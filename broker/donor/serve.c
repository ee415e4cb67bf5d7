/*-------------------------------------------------------------------------
 *
 * serve.c
 *	  The donor's data plane: handshakes, reads, writes and mappings.
 *
 * A few threads, each with an epoll set of its own; a connection stays with
 * the thread that it was given at accept().  TCP and UNIX connections are
 * served by the same code: MAP only exists on the latter, READ and WRITE work
 * on both.
 *
 * Nothing here blocks but epoll_wait().  A connection's memory is bounded: a
 * small input buffer and a ring of answers that are not sent yet.  While the
 * ring is full nothing more is read from the connection, so a client that
 * sends and never reads stops itself, and nobody else.
 *
 * Bytes of regions are never copied in user space: answers are sent with
 * sendmsg() from the region's memory, and what is written is received into
 * it, but for the part of a first write that came along with its header.
 * Around each such system call the thread is "in" the region, see lease.h.
 * An answer that the socket took a part of when the lease ended cannot be
 * completed nor taken back: the connection is closed.
 *
 * Polling.  A request that comes while its thread sleeps costs the wake-up
 * of a core.  So a thread that has just served something polls for a while,
 * mostly the connection that it served last; one thread of the process at a
 * time (half of the cores at most), and only as long as that pays: see
 * RbpSpin in transport/sock.h.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/common/log.h"
#include "broker/common/secret.h"
#include "broker/donor/lease.h"
#include "broker/donor/memory.h"
#include "broker/donor/serve.h"
#include "common/clock.h"
#include "common/spin.h"
#include "common/text.h"
#include "transport/peer.h"
#include "transport/transport.h"
#include "wire/wire.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define RX_SIZE			4096	/* 128 requests */
#define RING			64		/* answers not sent yet, per connection */
#define ROUNDS			64		/* a busy connection yields to others then, */
#define TURN_BYTES		(256 * 1024)	/* or when it has sent so much */
#define HELD_BACK		16		/* answers that wait for more requests */
#define SCRATCH_SIZE	65536	/* for writes that are refused */
#define HANDSHAKE_NS	INT64_C(5000000000)
#define ENDED_IDLE_NS	INT64_C(10000000000)
#define SWEEP_NS		INT64_C(1000000000)
#define MAX_CONNECTIONS	16384

/*
 * With one client at a time, who runs while we yield is that client, soon to
 * wait for us: staying awake saves both of us a wake-up for each request.  Only
 * a yield that ran others for long has run something that computes, behind
 * whose time slices requests would wait, where a sleeper would be woken.
 */
#define ALONE			16		/* requests in a row from one connection */
#define YIELD_HURTS_ALONE_NS	1000000

typedef enum ConnState
{
	CONN_HELLO,
	CONN_AUTH,
	CONN_OPEN
} ConnState;

typedef struct Answer
{
	uint8_t		header[RBP_ANSWER_SIZE + RBP_MAP_PAYLOAD_SIZE];
	uint8_t		op;
	uint32_t	region;
	uint64_t	id;
	uint64_t	offset;			/* of a read's payload */
	uint32_t	payload;		/* bytes from the region */
	uint32_t	sent;			/* bytes of header and payload */
} Answer;

typedef struct Thread Thread;

typedef struct Conn
{
	int			fd;
	bool		is_unix;
	bool		is_listener;
	ConnState	state;
	Thread	   *thread;
	struct Conn *prev,
			   *next;			/* in the thread's list */
	int64_t		active_at;		/* last traffic; of the handshake: accept */
	DonorLease *lease;			/* referenced; NULL before the handshake */
	char		lease_id[RBP_LEASE_ID_LEN];
	uint8_t		nonce[RBP_NONCE_LEN];
	uint32_t	events;			/* what epoll is asked for */

	/* a write whose payload is coming */
	bool		writing;
	bool		last_was_write;
	uint16_t	write_status;
	uint32_t	write_region;
	uint64_t	write_id;
	uint64_t	write_offset;
	uint32_t	write_left;

	uint32_t	head,
				count;			/* of ring */
	Answer		ring[RING];

	uint32_t	rx_at,
				rx_have;		/* bytes rx_at .. rx_have are to be parsed */
	uint8_t		rx[RX_SIZE];
} Conn;

struct Thread
{
	int			epfd;
	pthread_mutex_t lock;		/* protects the list, which accept() extends */
	Conn	   *conns;
	Conn	   *hot;			/* served last; to be polled first */
	int			in_a_row;		/* times that the hot one was served */
	unsigned int turn;			/* of polling; the others' is each fourth */
	RbpSpin		spin;
	uint8_t    *scratch;

	/* counters: written by this thread, read by anyone */
	_Atomic uint64_t reads,
				writes,
				maps,
				denied,
				bytes_read,
				bytes_written;
};

static Thread *threads;
static int	nthreads;
static int64_t spin_ns;
static int	max_spinners;
static atomic_int spinners;
static atomic_uint next_thread;
static atomic_int nconnections;
static int	max_connections;
static Conn tcp_listener;
static Conn unix_listener;

/* Only the owner writes, so no atomic addition is needed. */
static inline void
count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_store_explicit(counter,
						  atomic_load_explicit(counter, memory_order_relaxed) + n,
						  memory_order_relaxed);
}

/*
 * ---- connections ------------------------------------------------------------
 */
static void
close_conn(Conn *conn)
{
	Thread	   *t = conn->thread;

	pthread_mutex_lock(&t->lock);
	if (conn->prev != NULL)
		conn->prev->next = conn->next;
	else
		t->conns = conn->next;
	if (conn->next != NULL)
		conn->next->prev = conn->prev;
	pthread_mutex_unlock(&t->lock);

	if (t->hot == conn)
		t->hot = NULL;
	close(conn->fd);
	donor_lease_unref(conn->lease);
	free(conn);
	atomic_fetch_sub(&nconnections, 1);
}

static void
want_events(Conn *conn, uint32_t events)
{
	struct epoll_event ev = {.events = events,.data.ptr = conn};

	if (conn->events == events)
		return;
	conn->events = events;
	(void) epoll_ctl(conn->thread->epfd, EPOLL_CTL_MOD, conn->fd, &ev);
}

/* A client that gets no connection: tell who it is. */
static void
log_refusal(int fd, RbpLogLevel level, const char *why)
{
	struct sockaddr_storage peer = {.ss_family = AF_UNSPEC};
	socklen_t	len = sizeof(peer);
	struct ucred cred;
	socklen_t	cred_len = sizeof(cred);
	char		address[NI_MAXHOST];

	if (getpeername(fd, (struct sockaddr *) &peer, &len) == 0 &&
		peer.ss_family == AF_UNIX &&
		getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &cred_len) == 0)
		snprintf(address, sizeof(address), "this host, user %u", (unsigned) cred.uid);
	else
		rbp_format_address(peer.ss_family == AF_INET || peer.ss_family == AF_INET6 ?
						   (struct sockaddr *) &peer : NULL, address, sizeof(address));
	rbp_log_repeated(level, "refused a client from %s: %s", address, why);
}

static void
accept_conns(Conn *listener)
{
	for (int i = 0; i < 64; i++)
	{
		int			fd = accept4(listener->fd, NULL, NULL,
								 SOCK_NONBLOCK | SOCK_CLOEXEC);
		struct epoll_event ev = {.events = EPOLLIN};
		Thread	   *t;
		Conn	   *conn;

		if (fd < 0)
		{
			if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
			{
				rbp_log(RBP_LOG_WARNING, "could not accept a connection: %s",
						strerror(errno));
				usleep(1000);
			}
			return;
		}
		conn = NULL;
		if (atomic_fetch_add(&nconnections, 1) < max_connections)
			conn = calloc(1, sizeof(*conn));
		if (conn == NULL)
		{
			uint8_t		buf[RBP_WELCOME_SIZE];
			RbpWireWelcome busy = {.status = RBP_WIRE_BUSY};

			log_refusal(fd, RBP_LOG_WARNING, "there are too many connections");
			rbp_wire_put_welcome(buf, &busy);
			(void) send(fd, buf, sizeof(buf), MSG_NOSIGNAL | MSG_DONTWAIT);
			close(fd);
			atomic_fetch_sub(&nconnections, 1);
			continue;
		}
		if (!listener->is_unix)
		{
			int			on = 1;
			int			idle = 30;
			int			interval = 10;
			int			probes = 6;

			/* half-open connections end after a minute and a half */
			(void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
			(void) setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
			(void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
			(void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
			(void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
		}

		t = &threads[atomic_fetch_add(&next_thread, 1) % (unsigned) nthreads];
		conn->fd = fd;
		conn->is_unix = listener->is_unix;
		conn->thread = t;
		conn->active_at = rbp_boottime_ns();
		conn->events = EPOLLIN;
		pthread_mutex_lock(&t->lock);
		conn->next = t->conns;
		if (t->conns != NULL)
			t->conns->prev = conn;
		t->conns = conn;

		/* under the lock: the thread could close the connection at once */
		ev.data.ptr = conn;
		if (epoll_ctl(t->epfd, EPOLL_CTL_ADD, fd, &ev) != 0)
		{
			t->conns = conn->next;
			if (conn->next != NULL)
				conn->next->prev = NULL;
			close(fd);
			free(conn);
			atomic_fetch_sub(&nconnections, 1);
		}
		pthread_mutex_unlock(&t->lock);
	}
}

/*
 * ---- answers ----------------------------------------------------------------
 */
static uint32_t
header_size(const Answer *a)
{
	return a->op == RBP_OP_MAP && a->region != UINT32_MAX
		? RBP_ANSWER_SIZE + RBP_MAP_PAYLOAD_SIZE : RBP_ANSWER_SIZE;
}

static void
set_header(Answer *a, uint16_t status, uint32_t payload)
{
	RbpWireAnswer ans = {.op = a->op,.status = status,.payload = payload,.id = a->id};

	rbp_wire_put_answer(a->header, &ans);
}

/*
 * Queue an answer; the caller has seen to it that there is room.  Returns it
 * for the caller to complete, if it carries a payload.
 */
static Answer *
queue_answer(Conn *conn, uint8_t op, uint64_t id, uint16_t status)
{
	Answer	   *a = &conn->ring[(conn->head + conn->count++) % RING];

	a->op = op;
	a->id = id;
	a->region = UINT32_MAX;
	a->payload = 0;
	a->sent = 0;
	set_header(a, status, 0);
	if (status != RBP_WIRE_OK)
		count(&conn->thread->denied, 1);
	return a;
}

/* Turn a queued answer with payload into a refusal. */
static void
refuse(Conn *conn, Answer *a)
{
	a->region = UINT32_MAX;
	a->payload = 0;
	set_header(a, RBP_WIRE_DENIED, 0);
	count(&conn->thread->denied, 1);
}

/*
 * Send a MAP's answer, with the region's memfd.  The region counts as
 * exported from here on, whether or not the client ever maps it.
 */
static ssize_t
send_map(Conn *conn, Answer *a, int64_t now)
{
	union
	{
		struct cmsghdr align;
		char		space[CMSG_SPACE(sizeof(int))];
	}			control = {0};
	struct iovec iov;
	struct msghdr msg = {.msg_iov = &iov,.msg_iovlen = 1};
	DonorRegion *region = &donor_regions[a->region];
	struct cmsghdr *c;
	ssize_t		rc;

	if (a->sent > 0)
	{
		/* the memfd went with the first byte */
		return send(conn->fd, a->header + a->sent, header_size(a) - a->sent,
					MSG_NOSIGNAL | MSG_DONTWAIT);
	}
	if (!donor_region_enter(region, conn->lease, now))
	{
		refuse(conn, a);
		return send(conn->fd, a->header, RBP_ANSWER_SIZE,
					MSG_NOSIGNAL | MSG_DONTWAIT);
	}
	atomic_store(&region->exported, true);
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

/* Remove n sent bytes from the ring. */
static void
advance_ring(Conn *conn, size_t n)
{
	while (conn->count > 0)
	{
		Answer	   *a = &conn->ring[conn->head];
		size_t		left = header_size(a) + a->payload - a->sent;

		if (n < left)
		{
			a->sent += (uint32_t) n;
			return;
		}
		n -= left;
		conn->head = (conn->head + 1) % RING;
		conn->count--;
	}
}

/*
 * Send what the socket takes.  False: the connection is to be closed.
 */
static bool
flush(Conn *conn, int64_t now)
{
	while (conn->count > 0)
	{
		struct iovec iov[2 * RING];
		DonorRegion *inside[RING];
		struct msghdr msg = {.msg_iov = iov};
		size_t		total = 0;
		int			n = 0;
		int			ninside = 0;
		bool		broken = false;
		ssize_t		rc;

		if (conn->ring[conn->head].op == RBP_OP_MAP &&
			conn->ring[conn->head].region != UINT32_MAX)
		{
			total = header_size(&conn->ring[conn->head]) - conn->ring[conn->head].sent;
			rc = send_map(conn, &conn->ring[conn->head], now);
			if (rc >= 0)
				total = (size_t) rc;	/* a refusal is shorter */
		}
		else
		{
			for (uint32_t i = 0; i < conn->count; i++)
			{
				Answer	   *a = &conn->ring[(conn->head + i) % RING];
				uint32_t	skip = a->sent;

				if (a->op == RBP_OP_MAP && a->region != UINT32_MAX)
					break;		/* goes alone */
				if (a->payload > 0)
				{
					DonorRegion *region = &donor_regions[a->region];

					if (donor_region_enter(region, conn->lease, now))
						inside[ninside++] = region;
					else if (a->sent == 0)
						refuse(conn, a);
					else
					{
						broken = true;
						break;
					}
				}
				if (skip < RBP_ANSWER_SIZE)
				{
					iov[n].iov_base = a->header + skip;
					iov[n].iov_len = RBP_ANSWER_SIZE - skip;
					total += iov[n++].iov_len;
					skip = RBP_ANSWER_SIZE;
				}
				if (a->payload > 0)
				{
					skip -= RBP_ANSWER_SIZE;
					iov[n].iov_base = donor_regions[a->region].base + a->offset + skip;
					iov[n].iov_len = a->payload - skip;
					total += iov[n++].iov_len;
				}
			}
			msg.msg_iovlen = (size_t) n;
			rc = 0;
			if (n > 0)
				rc = sendmsg(conn->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
			for (int i = 0; i < ninside; i++)
				donor_region_leave(inside[i]);
		}

		if (rc < 0)
		{
			if (errno == EINTR)
				continue;
			if (errno != EAGAIN && errno != EWOULDBLOCK)
				return false;
			rc = 0;
		}
		advance_ring(conn, (size_t) rc);
		if (broken)
			return false;
		if ((size_t) rc < total)
			break;
	}
	return true;
}

/*
 * ---- requests ---------------------------------------------------------------
 */

/* Parse one complete request.  False: garbage. */
static bool
handle_request(Conn *conn, const uint8_t *buf)
{
	Thread	   *t = conn->thread;
	RbpWireRequest req;
	uint16_t	status = RBP_WIRE_OK;
	Answer	   *a;

	if (!rbp_wire_get_request(buf, RBP_REQUEST_SIZE, &req))
		return false;
	conn->last_was_write = false;

	if (req.op == RBP_OP_PING)
	{
		queue_answer(conn, req.op, req.id, RBP_WIRE_OK);
		return true;
	}
	if (req.op == RBP_OP_MAP && !conn->is_unix)
		return false;

	if (req.region >= donor_nregions)
		status = RBP_WIRE_DENIED;
	else if (req.len > donor_region_size ||
			 req.offset > donor_region_size - req.len)
		status = RBP_WIRE_INVALID;

	switch (req.op)
	{
		case RBP_OP_READ:
			a = queue_answer(conn, req.op, req.id, status);
			if (status == RBP_WIRE_OK)
			{
				/* flush() asks whether the lease may have it */
				a->region = req.region;
				a->offset = req.offset;
				a->payload = req.len;
				set_header(a, RBP_WIRE_OK, req.len);
			}
			count(&t->reads, 1);
			count(&t->bytes_read, req.len);
			break;
		case RBP_OP_WRITE:
			conn->writing = true;
			conn->last_was_write = true;
			conn->write_status = status;
			conn->write_region = req.region;
			conn->write_id = req.id;
			conn->write_offset = req.offset;
			conn->write_left = req.len;
			count(&t->writes, 1);
			count(&t->bytes_written, req.len);
			break;
		case RBP_OP_MAP:
			a = queue_answer(conn, req.op, req.id, status);
			if (status == RBP_WIRE_OK)
			{
				a->region = req.region;
				set_header(a, RBP_WIRE_OK, RBP_MAP_PAYLOAD_SIZE);
				rbp_wire_put_map(a->header + RBP_ANSWER_SIZE, donor_region_size);
			}
			count(&t->maps, 1);
			break;
	}
	return true;
}

static void
write_arrived(Conn *conn, uint32_t n)
{
	conn->write_offset += n;
	conn->write_left -= n;
	if (conn->write_left == 0)
	{
		conn->writing = false;
		queue_answer(conn, RBP_OP_WRITE, conn->write_id, conn->write_status);
	}
}

/*
 * May the payload of the current write go into its region?  Then we are in
 * it.  Else the rest is swallowed, and the answer is a refusal.
 */
static DonorRegion *
enter_for_write(Conn *conn, int64_t now)
{
	DonorRegion *region;

	if (conn->write_status != RBP_WIRE_OK)
		return NULL;
	region = &donor_regions[conn->write_region];
	if (donor_region_enter(region, conn->lease, now))
		return region;
	conn->write_status = RBP_WIRE_DENIED;
	return NULL;
}

static bool
handle_handshake(Conn *conn)
{
	uint8_t    *buf = conn->rx + conn->rx_at;
	uint8_t		out[RBP_HANDSHAKE_MAX];
	RbpWireWelcome welcome = {.status = RBP_WIRE_DENIED};
	size_t		len;

	if (conn->state == CONN_HELLO)
	{
		RbpWireHello hello;

		if (!rbp_wire_get_hello(buf, RBP_HELLO_SIZE, &hello))
		{
			log_refusal(conn->fd, RBP_LOG_WARNING, "it does not speak this protocol");
			return false;
		}
		conn->rx_at += RBP_HELLO_SIZE;
		if (hello.version != RBP_WIRE_VERSION)
		{
			log_refusal(conn->fd, RBP_LOG_WARNING, "it speaks another version of the protocol");
			welcome.status = RBP_WIRE_VERSION_MISMATCH;
			rbp_wire_put_welcome(out, &welcome);
			(void) send(conn->fd, out, RBP_WELCOME_SIZE, MSG_NOSIGNAL | MSG_DONTWAIT);
			return false;
		}
		strcpy(conn->lease_id, hello.lease);
		rbp_random_bytes(conn->nonce, sizeof(conn->nonce));
		rbp_wire_put_challenge(out, conn->nonce);
		len = RBP_CHALLENGE_SIZE;
		conn->state = CONN_AUTH;
	}
	else
	{
		uint8_t		theirs[RBP_MAC_LEN];
		uint8_t		ours[RBP_MAC_LEN];
		uint8_t		nobody[RBP_SECRET_LEN];
		DonorLease *lease = donor_lease_find(conn->lease_id);

		if (!rbp_wire_get_auth(buf, RBP_AUTH_SIZE, theirs))
		{
			donor_lease_unref(lease);
			return false;
		}
		conn->rx_at += RBP_AUTH_SIZE;

		/* an unknown lease takes as long, and fails as, a wrong secret */
		rbp_random_bytes(nobody, sizeof(nobody));
		if (rbp_handshake_mac(lease != NULL ? lease->secret : nobody,
							  conn->nonce, conn->lease_id, ours) &&
			CRYPTO_memcmp(ours, theirs, RBP_MAC_LEN) == 0 && lease != NULL)
			welcome.status = RBP_WIRE_OK;
		if (welcome.status == RBP_WIRE_OK)
		{
			welcome.regions = donor_nregions;
			welcome.region_size = donor_region_size;
			conn->lease = lease;
			conn->state = CONN_OPEN;
		}
		else
		{
			/* a lease that has just ended is nothing to worry about */
			if (lease != NULL)
				log_refusal(conn->fd, RBP_LOG_WARNING, "its proof of the lease's secret is wrong");
			else
				log_refusal(conn->fd, RBP_LOG_INFO, "there is no such lease, or no more");
			donor_lease_unref(lease);
			count(&conn->thread->denied, 1);
		}
		rbp_wire_put_welcome(out, &welcome);
		len = RBP_WELCOME_SIZE;
	}

	/* the first bytes on a fresh socket: it takes them, or it is broken */
	return send(conn->fd, out, len, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t) len &&
		(conn->state != CONN_AUTH || len == RBP_CHALLENGE_SIZE);
}

/*
 * Deal with everything in the input buffer that is complete, as far as the
 * ring has room.  False: the connection is to be closed.
 */
static bool
parse(Conn *conn, int64_t now)
{
	while (conn->rx_at < conn->rx_have)
	{
		uint32_t	have = conn->rx_have - conn->rx_at;

		if (conn->state != CONN_OPEN)
		{
			if (have < (conn->state == CONN_HELLO ? RBP_HELLO_SIZE : RBP_AUTH_SIZE))
				break;
			if (!handle_handshake(conn))
				return false;
			continue;
		}
		if (conn->count == RING)
			break;
		if (conn->writing)
		{
			/* came along with the header; the rest will not be copied */
			uint32_t	n = have < conn->write_left ? have : conn->write_left;
			DonorRegion *region = enter_for_write(conn, now);

			if (region != NULL)
			{
				memcpy(region->base + conn->write_offset, conn->rx + conn->rx_at, n);
				donor_region_leave(region);
			}
			conn->rx_at += n;
			write_arrived(conn, n);
			continue;
		}
		if (have < RBP_REQUEST_SIZE)
			break;
		if (!handle_request(conn, conn->rx + conn->rx_at))
			return false;
		conn->rx_at += RBP_REQUEST_SIZE;
	}

	if (conn->rx_at == conn->rx_have)
		conn->rx_at = conn->rx_have = 0;
	else if (conn->rx_at > 0)
	{
		memmove(conn->rx, conn->rx + conn->rx_at, conn->rx_have - conn->rx_at);
		conn->rx_have -= conn->rx_at;
		conn->rx_at = 0;
	}
	return true;
}

/*
 * Parse and answer until the input has no complete request any more, or the
 * socket takes no more output; then count is not 0, and EPOLLOUT will tell.
 */
static bool
pump(Conn *conn, int64_t now)
{
	for (;;)
	{
		if (!parse(conn, now))
			return false;
		if (conn->count == 0)
			return true;
		if (!flush(conn, now))
			return false;
		if (conn->count > 0)
			return true;
	}
}

/*
 * Receive once: into the region of the current write, and behind that into
 * the input buffer.  Returns what readv() did; -2: nothing can be received
 * before something is sent.  *more: there was as much as was asked for.
 */
static ssize_t
receive(Conn *conn, int64_t now, bool *more)
{
	struct iovec iov[2];
	int			n = 0;
	DonorRegion *region = NULL;
	uint32_t	direct = 0;
	uint32_t	space;
	size_t		asked;
	ssize_t		rc;

	*more = false;
	if (conn->count == RING || conn->rx_have == RX_SIZE)
		return -2;

	/* with a write in progress everything before it is parsed */
	if (conn->writing)
	{
		direct = conn->write_left;
		region = enter_for_write(conn, now);
		if (region != NULL)
			iov[n].iov_base = region->base + conn->write_offset;
		else
		{
			iov[n].iov_base = conn->thread->scratch;
			if (direct > SCRATCH_SIZE)
				direct = SCRATCH_SIZE;
		}
		iov[n++].iov_len = direct;
	}
	asked = direct;

	/*
	 * After a write comes probably another one: take its header only, so that
	 * its payload need not be moved.
	 */
	space = RX_SIZE - conn->rx_have;
	if (conn->last_was_write && space > RBP_REQUEST_SIZE - conn->rx_have % RBP_REQUEST_SIZE)
		space = RBP_REQUEST_SIZE - conn->rx_have % RBP_REQUEST_SIZE;
	if (!conn->writing || direct == conn->write_left)
	{
		iov[n].iov_base = conn->rx + conn->rx_have;
		iov[n++].iov_len = space;
		asked += space;
	}

	do
		rc = readv(conn->fd, iov, n);
	while (rc < 0 && errno == EINTR);
	if (region != NULL)
		donor_region_leave(region);
	if (rc > 0)
	{
		uint32_t	got = (uint32_t) rc;

		*more = got == asked;
		if (direct > 0)
		{
			uint32_t	into = got < direct ? got : direct;

			write_arrived(conn, into);
			got -= into;
		}
		conn->rx_have += got;
	}
	return rc;
}

/*
 * Serve a connection until it has nothing more, or has had its turn.  Answers
 * are held back for as long as more is there to be received, up to some: a
 * batch of small writes is not to cost a system call, a packet and a wake-up
 * for each of its answers.  Returns whether there was anything; the connection
 * may be gone then.
 */
static bool
serve(Conn *conn, int64_t now)
{
	bool		any = false;
	size_t		received = 0;

	for (int round = 0; round < ROUNDS && received < TURN_BYTES; round++)
	{
		bool		more;
		ssize_t		rc;

		/* the socket may have room now, and the input more requests */
		if (conn->count >= HELD_BACK || (round == 0 && conn->count > 0))
		{
			uint32_t	before = conn->count;

			if (!flush(conn, now) || !pump(conn, now))
				goto gone;
			any |= conn->count != before;
		}
		rc = receive(conn, now, &more);
		if (rc == 0 && conn->count > 0)
			(void) pump(conn, now); /* it may still listen */
		if (rc == 0 || (rc == -1 && errno != EAGAIN && errno != EWOULDBLOCK))
			goto gone;
		if (rc < 0)
			break;
		any = true;
		received += (size_t) rc;
		if (!parse(conn, now))
			goto gone;
		if (!more)
			break;
	}
	if (conn->count > 0 && any && !pump(conn, now))
		goto gone;
	if (any)
	{
		conn->active_at = now;
		if (conn->thread->hot != conn)
			conn->thread->in_a_row = 0;
		else if (conn->thread->in_a_row < ALONE)
			conn->thread->in_a_row++;
		conn->thread->hot = conn;

		/* refused, and told so: a new lease needs a new connection anyway */
		if (conn->lease != NULL && conn->count == 0 &&
			atomic_load(&conn->lease->ended))
			goto gone;
	}
	want_events(conn, (conn->count < RING ? EPOLLIN : 0) |
				(conn->count > 0 ? EPOLLOUT : 0));
	return any;

gone:
	close_conn(conn);
	return true;
}

/*
 * ---- threads ----------------------------------------------------------------
 */

/* Close those that never finish a handshake, or whose lease is long over. */
static void
sweep(Thread *t, int64_t now)
{
	Conn	   *conn;
	Conn	   *next;

	pthread_mutex_lock(&t->lock);
	conn = t->conns;
	pthread_mutex_unlock(&t->lock);

	/* only this thread removes, and others add in front */
	for (; conn != NULL; conn = next)
	{
		next = conn->next;
		if (conn->state != CONN_OPEN)
		{
			if (now - conn->active_at > HANDSHAKE_NS)
			{
				log_refusal(conn->fd, RBP_LOG_WARNING, "its handshake took too long");
				close_conn(conn);
			}
		}
		else if (now - conn->active_at > ENDED_IDLE_NS &&
				 (atomic_load(&conn->lease->ended) ||
				  now >= atomic_load(&conn->lease->deadline_ns)))
			close_conn(conn);
	}
}

/* Handle what epoll said.  Returns whether anything was served. */
static bool
dispatch(const struct epoll_event *events, int n, int64_t now)
{
	bool		any = false;

	for (int i = 0; i < n; i++)
	{
		Conn	   *conn = events[i].data.ptr;

		if (conn->is_listener)
			accept_conns(conn);
		else if (serve(conn, now))
			any = true;
	}
	return any;
}

/*
 * Poll for a while.
 */
static RbpSpinResult
poll_briefly(Thread *t, int64_t budget)
{
	struct epoll_event events[64];
	int64_t		start = rbp_boottime_ns();
	int64_t		now = start;
	int			n;

	while (now - start < budget)
	{
		int64_t		before = now;

		/* counted across calls, or a busy connection would starve others */
		if (t->hot != NULL && ++t->turn % 4 != 0)
		{
			if (serve(t->hot, now))
				return RBP_SPIN_PAID;
		}
		else
		{
			n = epoll_wait(t->epfd, events, 64, 0);
			if (n > 0)
				{
				dispatch(events, n, now);
				return RBP_SPIN_PAID;
			}
		}
		sched_yield();
		now = rbp_boottime_ns();
		if (now - before > (t->in_a_row == ALONE ? YIELD_HURTS_ALONE_NS :
							RBP_SPIN_CONTENDED_NS))
			return RBP_SPIN_HURT;
	}
	return RBP_SPIN_VAIN;
}

static void *
thread_main(void *arg)
{
	Thread	   *t = arg;
	struct epoll_event events[64];
	int64_t		swept_at = rbp_boottime_ns();
	bool		busy = false;

	for (;;)
	{
		int64_t		now;
		int			n;

		if (busy && spin_ns > 0)
		{
			if (atomic_fetch_add(&spinners, 1) < max_spinners)
			{
				busy = false;
				if (rbp_spin_begin(&t->spin, rbp_now_ns()) > 0)
				{
					RbpSpinResult result = poll_briefly(t, spin_ns);

					rbp_spin_end(&t->spin, result);
					busy = result == RBP_SPIN_PAID;
				}
			}
			else
				busy = false;
			atomic_fetch_sub(&spinners, 1);
			now = rbp_boottime_ns();
			if (busy && now - swept_at < SWEEP_NS)
				continue;
		}

		n = epoll_wait(t->epfd, events, 64, busy ? 0 : 1000);
		now = rbp_boottime_ns();
		if (n > 0)
			busy |= dispatch(events, n, now);
		if (now - swept_at >= SWEEP_NS)
		{
			sweep(t, now);
			swept_at = now;
		}
	}
	return NULL;
}

/*
 * ---- start ------------------------------------------------------------------
 */
static void
listen_tcp(const char *host, uint16_t *port)
{
	struct addrinfo hints = {
		.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
		.ai_socktype = SOCK_STREAM
	};
	struct addrinfo *list;
	struct sockaddr_storage bound;
	socklen_t	len = sizeof(bound);
	char		service[8];
	int			fd = -1;
	int			rc;

	snprintf(service, sizeof(service), "%u", *port);
	rc = getaddrinfo(host[0] != '\0' ? host : NULL, service, &hints, &list);
	if (rc != 0)
		rbp_die("could not resolve \"%s\": %s", host, gai_strerror(rc));
	for (struct addrinfo *ai = list; ai != NULL && fd < 0; ai = ai->ai_next)
	{
		int			on = 1;

		fd = socket(ai->ai_family, ai->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
					ai->ai_protocol);
		if (fd < 0)
			continue;
		(void) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
		if (bind(fd, ai->ai_addr, ai->ai_addrlen) != 0 || listen(fd, 1024) != 0)
		{
			rc = errno;
			close(fd);
			fd = -1;
			errno = rc;
		}
	}
	freeaddrinfo(list);
	if (fd < 0)
		rbp_die("could not listen on %s port %s: %s", host, service, strerror(errno));
	if (getsockname(fd, (struct sockaddr *) &bound, &len) == 0)
		*port = ntohs(bound.ss_family == AF_INET6
					  ? ((struct sockaddr_in6 *) &bound)->sin6_port
					  : ((struct sockaddr_in *) &bound)->sin_port);
	tcp_listener.fd = fd;
	tcp_listener.is_listener = true;
}

/* In the abstract namespace: nothing to clean up in any file system. */
static void
listen_unix(char shm_name[RBP_SHM_NAME_LEN])
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	uint8_t		random[16];
	size_t		len;
	int			fd;

	rbp_random_bytes(random, sizeof(random));
	strcpy(shm_name, "remote_bp-");
	rbp_hex_encode(random, sizeof(random), shm_name + strlen(shm_name));
	len = strlen(shm_name);
	memcpy(addr.sun_path + 1, shm_name, len);

	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 ||
		bind(fd, (struct sockaddr *) &addr,
			 (socklen_t) (offsetof(struct sockaddr_un, sun_path) + 1 + len)) != 0 ||
		listen(fd, 1024) != 0)
		rbp_die("could not listen on an abstract UNIX socket: %s", strerror(errno));
	unix_listener.fd = fd;
	unix_listener.is_unix = true;
	unix_listener.is_listener = true;
}

void
donor_serve_init(const char *host, uint16_t *port, uint32_t transports,
				 char shm_name[RBP_SHM_NAME_LEN], int want_threads, int spin_us)
{
	long		ncpu = sysconf(_SC_NPROCESSORS_ONLN);
	struct rlimit rl;
	pthread_t	thread;

	nthreads = want_threads;
	spin_ns = (int64_t) spin_us * 1000;
	max_spinners = ncpu > 2 ? (int) (ncpu / 2) : 1;
	max_connections = MAX_CONNECTIONS;
	if (getrlimit(RLIMIT_NOFILE, &rl) == 0 && rl.rlim_cur != RLIM_INFINITY &&
		rl.rlim_cur < donor_nregions + 64u + MAX_CONNECTIONS)
		max_connections = (int) (rl.rlim_cur - donor_nregions - 64);

	shm_name[0] = '\0';
	if (transports & RBP_TRANSPORT_TCP)
		listen_tcp(host, port);
	if (transports & RBP_TRANSPORT_SHM)
		listen_unix(shm_name);

	threads = calloc((size_t) nthreads, sizeof(Thread));
	if (threads == NULL)
		rbp_die("out of memory");
	for (int i = 0; i < nthreads; i++)
	{
		Thread	   *t = &threads[i];

		t->epfd = epoll_create1(EPOLL_CLOEXEC);
		t->scratch = malloc(SCRATCH_SIZE);
		if (t->epfd < 0 || t->scratch == NULL ||
			pthread_mutex_init(&t->lock, NULL) != 0)
			rbp_die("could not set up a serving thread: %s", strerror(errno));
	}

	/* the first thread accepts for all */
	for (int i = 0; i < 2; i++)
	{
		Conn	   *listener = i == 0 ? &tcp_listener : &unix_listener;
		struct epoll_event ev = {.events = EPOLLIN,.data.ptr = listener};

		if (listener->is_listener &&
			epoll_ctl(threads[0].epfd, EPOLL_CTL_ADD, listener->fd, &ev) != 0)
			rbp_die("could not watch a listening socket: %s", strerror(errno));
	}
	for (int i = 0; i < nthreads; i++)
	{
		if (pthread_create(&thread, NULL, thread_main, &threads[i]) != 0)
			rbp_die("could not start a thread");
		pthread_detach(thread);
	}
}

void
donor_serve_stats(DonorServeStats *stats)
{
	memset(stats, 0, sizeof(*stats));
	stats->connections = (uint64_t) atomic_load(&nconnections);
	for (int i = 0; i < nthreads; i++)
	{
		stats->reads += atomic_load(&threads[i].reads);
		stats->writes += atomic_load(&threads[i].writes);
		stats->maps += atomic_load(&threads[i].maps);
		stats->denied += atomic_load(&threads[i].denied);
		stats->bytes_read += atomic_load(&threads[i].bytes_read);
		stats->bytes_written += atomic_load(&threads[i].bytes_written);
	}
}
