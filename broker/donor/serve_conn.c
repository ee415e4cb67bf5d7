/*-------------------------------------------------------------------------
 *
 * serve_conn.c
 *	  One client of the data plane: handshake, requests, and end.
 *
 * TCP and UNIX connections are served by the same code: MAP only exists on the
 * latter, READ and WRITE work on both.
 *
 * The payload of a write is received directly into the region's memory, except
 * for what arrives together with its header; that is only so for the first of
 * several writes in a row, see receive().
 * During that system call the thread is "in" the region, see lease.h.
 *
 * The memory used for a client is bounded: while its ring of answers is full,
 * nothing more is read from the connection.  So a client that sends requests
 * and never reads answers blocks only itself.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/common/secret.h"
#include "broker/donor/proofs.h"
#include "broker/donor/serve_internal.h"
#include "transport/peer.h"

#include <errno.h>
#include <netdb.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* A busy connection yields to others after so many rounds, or bytes received. */
#define ROUNDS			64
#define TURN_BYTES		(256 * 1024)
#define HELD_BACK		16		/* answers held back at most */

atomic_int	donor_serve_connections;

void
donor_serve_log_refusal(int fd, RbpLogLevel level, const char *why)
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

void
donor_serve_close(RbpDonorConn *conn)
{
	RbpDonorThread *t = conn->thread;

	pthread_mutex_lock(&t->lock);
	LIST_REMOVE(conn, link);
	pthread_mutex_unlock(&t->lock);

	if (t->last_served == conn)
		t->last_served = NULL;
	rbp_place_leave(&conn->place);
	close(conn->fd);
	if (conn->client != NULL)
		donor_lease_disconnect(conn->client);
	donor_lease_unref(conn->lease);
	free(conn);
	atomic_fetch_sub(&donor_serve_connections, 1);
}

bool
donor_serve_admits(int fd, bool is_unix, uint64_t *peer)
{
	struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
	socklen_t	len = sizeof(address);
	struct ucred cred = {.uid = UINT32_MAX};
	socklen_t	cred_len = sizeof(cred);

	if (!is_unix)
	{
		(void) getpeername(fd, (struct sockaddr *) &address, &len);
		*peer = rbp_place_holder_of((struct sockaddr *) &address);
		return true;
	}
	(void) getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &cred_len);
	*peer = rbp_place_holder(&cred.uid, sizeof(cred.uid));
	for (int i = 0; i < donor_shm_nusers; i++)
	{
		if (donor_shm_users[i] == cred.uid)
			return true;
	}
	return false;
}

/*
 * ---- handshake -----------------------------------------------------------
 */

/*
 * Send the first bytes on a new socket, which takes them all unless it is
 * broken.
 */
static bool
send_now(const RbpDonorConn *conn, const uint8_t *buf, size_t len)
{
	return send(conn->fd, buf, len, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t) len;
}

/* Answer a HELLO with a challenge.  False if the connection must be closed. */
static bool
handle_hello(RbpDonorConn *conn, const uint8_t *buf)
{
	uint8_t		out[RBP_HANDSHAKE_MAX];
	RbpWireHello hello;

	if (!rbp_wire_get_hello(buf, RBP_HELLO_SIZE, &hello))
	{
		donor_serve_log_refusal(conn->fd, RBP_LOG_WARNING, "it does not speak this protocol");
		return false;
	}
	if (hello.version != RBP_WIRE_VERSION)
	{
		RbpWireWelcome welcome = {.prefix.status = RBP_WIRE_VERSION_MISMATCH};

		donor_serve_log_refusal(conn->fd, RBP_LOG_WARNING, "it speaks another version of the protocol");
		(void) send_now(conn, out, rbp_wire_put_welcome(out, &welcome));
		return false;
	}
	if (!conn->admitted)
	{
		RbpWireWelcome welcome = {.prefix.status = RBP_WIRE_NOT_ADMITTED};

		donor_serve_log_refusal(conn->fd, RBP_LOG_WARNING, "--shm-users does not have it");
		(void) send_now(conn, out, rbp_wire_put_welcome(out, &welcome));
		return false;
	}
	strcpy(conn->transcript.lease, hello.lease);
	rbp_random_bytes(conn->transcript.donor_nonce, RBP_NONCE_LEN);
	rbp_wire_put_challenge(out, conn->transcript.donor_nonce);
	conn->state = CONN_AUTH;
	return send_now(conn, out, RBP_CHALLENGE_SIZE);
}

/*
 * Check a proof that the client knows the lease's key, take one of the lease's
 * connections, and give our proof.  Returns the status for the answer;
 * RBP_WIRE_OK: the connection has its lease now.
 */
static uint16_t
admit(RbpDonorConn *conn, const RbpWireAuth *auth, RbpWireWelcome *welcome)
{
	char		text[DONOR_LEASE_TEXT_LEN];
	char		why[sizeof(text) + sizeof(DONOR_CLIENT_IS_FULL)];
	uint8_t		ours[RBP_MAC_LEN];
	uint8_t		key[RBP_SECRET_LEN];
	uint16_t	status = RBP_WIRE_DENIED;
	RbpDonorLease *lease;
	bool		proven;

	/* an unknown lease fails like a wrong key, after the same time */
	lease = donor_lease_find(conn->transcript.lease);
	conn->key_number = donor_lease_key(lease, key);
	memcpy(conn->transcript.client_nonce, auth->nonce, RBP_NONCE_LEN);
	proven = rbp_handshake_mac(key, &conn->transcript, NULL, ours) &&
		CRYPTO_memcmp(ours, auth->mac, RBP_MAC_LEN) == 0 && lease != NULL &&
		rbp_handshake_mac(key, &conn->transcript, welcome, welcome->mac);
	explicit_bzero(key, sizeof(key));
	if (!proven)
	{
		/* a lease that has just ended deserves no warning */
		if (lease == NULL)
			donor_serve_log_refusal(conn->fd, RBP_LOG_INFO, "there is no such lease, or no more");
		else
		{
			snprintf(why, sizeof(why), "its proof for %s is wrong", donor_lease_text(lease, text));
			donor_serve_log_refusal(conn->fd, RBP_LOG_WARNING, why);
		}
	}
	else if (!donor_proof_allowed(conn->place.holder))
	{
		donor_serve_log_refusal(conn->fd, RBP_LOG_WARNING, DONOR_PROOFS_ARE_MANY);
		status = RBP_WIRE_BUSY;
	}
	else if ((conn->client = donor_lease_connect(lease)) == NULL)
	{
		snprintf(why, sizeof(why), "%s " DONOR_CLIENT_IS_FULL, donor_lease_text(lease, text));
		donor_serve_log_refusal(conn->fd, RBP_LOG_WARNING, why);
		status = RBP_WIRE_BUSY;
	}
	else
	{
		conn->lease = lease;
		return RBP_WIRE_OK;
	}
	donor_lease_unref(lease);
	return status;
}

/* Answer an AUTH.  False if the connection must be closed. */
static bool
handle_auth(RbpDonorConn *conn, const uint8_t *buf)
{
	RbpWireWelcome welcome = {.regions = donor_nregions,.region_size = donor_region_size};
	RbpWireAuth auth;
	uint8_t		out[RBP_WELCOME_SIZE];

	if (!rbp_wire_get_auth(buf, RBP_AUTH_SIZE, &auth))
		return false;
	welcome.prefix.status = admit(conn, &auth, &welcome);
	if (welcome.prefix.status == RBP_WIRE_OK)
	{
		conn->state = CONN_OPEN;
		rbp_place_leave(&conn->place);
	}
	else
		donor_serve_count(conn->thread, DONOR_DENIED, 1);
	return send_now(conn, out, rbp_wire_put_welcome(out, &welcome)) && conn->state == CONN_OPEN;
}

/*
 * ---- requests ------------------------------------------------------------
 */

/* Handle one complete request.  False if it is invalid. */
static bool
handle_request(RbpDonorConn *conn, const uint8_t *buf)
{
	RbpDonorThread *t = conn->thread;
	RbpWireRequest req;
	uint16_t	status = RBP_WIRE_OK;

	if (!rbp_wire_get_request(buf, RBP_REQUEST_SIZE, &req) ||
		(req.prefix.op == RBP_OP_MAP && !conn->is_unix))
		return false;
	conn->last_was_write = req.prefix.op == RBP_OP_WRITE;

	/* a PING has 0 for region, length and offset */
	if (req.region >= donor_nregions)
		status = RBP_WIRE_DENIED;
	else if (req.len > donor_region_size ||
			 req.offset > donor_region_size - req.len)
		status = RBP_WIRE_INVALID;

	switch (req.prefix.op)
	{
		case RBP_OP_READ:
			donor_serve_count(t, DONOR_READS, 1);
			donor_serve_count(t, DONOR_BYTES_READ, req.len);
			break;
		case RBP_OP_WRITE:
			donor_serve_count(t, DONOR_WRITES, 1);
			donor_serve_count(t, DONOR_BYTES_WRITTEN, req.len);
			conn->write = req;
			conn->write_status = status;
			return true;
		case RBP_OP_MAP:
			donor_serve_count(t, DONOR_MAPS, 1);
			break;
	}
	donor_serve_answer(conn, &req, status);
	return true;
}

static void
write_arrived(RbpDonorConn *conn, uint32_t n)
{
	conn->write.offset += n;
	conn->write.len -= n;
	if (conn->write.len == 0)
		donor_serve_answer(conn, &conn->write, conn->write_status);
}

/*
 * Enter the region of the current write, and return it.  If that is denied,
 * returns NULL: the rest of the payload is discarded, and the write refused.
 */
static RbpDonorRegion *
enter_for_write(RbpDonorConn *conn, int64_t now)
{
	RbpDonorRegion *region;

	if (conn->write_status != RBP_WIRE_OK)
		return NULL;
	region = &donor_regions[conn->write.region];
	if (donor_region_enter(region, conn->lease, now))
		return region;
	conn->write_status = RBP_WIRE_DENIED;
	return NULL;
}

/*
 * Handle everything in the input buffer that is complete, as far as the ring
 * has room.  False if the connection must be closed.
 */
static bool
parse(RbpDonorConn *conn, int64_t now)
{
	while (conn->rx_at < conn->rx_have)
	{
		uint32_t	have = conn->rx_have - conn->rx_at;

		if (conn->state != CONN_OPEN)
		{
			uint32_t	need = conn->state == CONN_HELLO ? RBP_HELLO_SIZE : RBP_AUTH_SIZE;
			uint8_t    *buf = conn->rx + conn->rx_at;

			if (have < need)
				break;
			conn->rx_at += need;
			if (conn->state == CONN_HELLO ? !handle_hello(conn, buf) : !handle_auth(conn, buf))
				return false;
			continue;
		}
		if (conn->nanswers == SERVE_RING)
			break;
		if (conn->write.len > 0)
		{
			/* arrived with the header, or is denied */
			uint32_t	n = have < conn->write.len ? have : conn->write.len;
			RbpDonorRegion *region = enter_for_write(conn, now);

			if (region != NULL)
			{
				memcpy(region->base + conn->write.offset, conn->rx + conn->rx_at, n);
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
 * Parse and answer until the input has no more complete requests, or the
 * socket takes no more output; then nanswers is not 0, and EPOLLOUT will be
 * reported.
 */
static bool
pump(RbpDonorConn *conn, int64_t now)
{
	for (;;)
	{
		if (!parse(conn, now))
			return false;
		if (conn->nanswers == 0)
			return true;
		if (!donor_serve_flush(conn, now))
			return false;
		if (conn->nanswers > 0)
			return true;
	}
}

/*
 * Receive once: into the region of the current write, and after that into the
 * input buffer.  Returns the result of readv(), or -2 if nothing can be
 * received before something is sent.  *more: as much as requested was
 * received.
 */
static ssize_t
receive(RbpDonorConn *conn, int64_t now, bool *more)
{
	struct iovec iov[2];
	int			n = 0;
	RbpDonorRegion *region = NULL;
	uint32_t	direct = 0;
	uint32_t	space;
	ssize_t		rc;

	*more = false;
	if (conn->nanswers == SERVE_RING || conn->rx_have == SERVE_RX_SIZE)
		return -2;

	/* during a write, rx is empty: what the socket has next is payload */
	if (conn->write.len > 0 && (region = enter_for_write(conn, now)) != NULL)
	{
		direct = conn->write.len;
		iov[n].iov_base = region->base + conn->write.offset;
		iov[n++].iov_len = direct;
	}

	/*
	 * After a write, another one probably follows: receive only its header,
	 * so that its payload need not be moved.  What is in rx begins with a
	 * header, and mostly is a part of one.  The payload of a denied write
	 * goes to rx, too, where parse() drops it.
	 */
	space = SERVE_RX_SIZE - conn->rx_have;
	if (conn->last_was_write && conn->write.len == direct &&
		space > RBP_REQUEST_SIZE - conn->rx_have % RBP_REQUEST_SIZE)
		space = RBP_REQUEST_SIZE - conn->rx_have % RBP_REQUEST_SIZE;
	iov[n].iov_base = conn->rx + conn->rx_have;
	iov[n++].iov_len = space;

	do
		rc = readv(conn->fd, iov, n);
	while (rc < 0 && errno == EINTR);
	if (region != NULL)
		donor_region_leave(region);
	if (rc > 0)
	{
		uint32_t	got = (uint32_t) rc;

		*more = got == direct + space;
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

static void
want_events(RbpDonorConn *conn, uint32_t events)
{
	struct epoll_event ev = {.events = events,.data.ptr = conn};

	if (conn->events == events)
		return;
	conn->events = events;
	(void) epoll_ctl(conn->thread->epfd, EPOLL_CTL_MOD, conn->fd, &ev);
}

/*
 * Answers are held back, up to some number, while more requests can be
 * received, so that a batch of small writes does not cost a system call, a
 * packet and a wake-up for each answer.
 */
bool
donor_serve_conn(RbpDonorConn *conn, int64_t now)
{
	bool		any = false;
	size_t		received = 0;

	/* Requests that came after another key are not served. */
	if (conn->lease != NULL && !donor_lease_has_key(conn->lease, conn->key_number))
		goto gone;
	for (int round = 0; round < ROUNDS && received < TURN_BYTES; round++)
	{
		bool		more;
		ssize_t		rc;

		/* the socket may have room now, and the input more requests */
		if (conn->nanswers >= HELD_BACK || (round == 0 && conn->nanswers > 0))
		{
			uint32_t	before = conn->nanswers;

			if (!donor_serve_flush(conn, now) || !pump(conn, now))
				goto gone;
			any |= conn->nanswers != before;
		}
		rc = receive(conn, now, &more);
		if (rc == 0 && conn->nanswers > 0)
			(void) pump(conn, now); /* it may still read answers */
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
	if (conn->nanswers > 0 && any && !pump(conn, now))
		goto gone;
	if (any)
	{
		if (conn->state == CONN_OPEN)
			conn->active_at = now;

		/*
		 * How often in a row has the thread served this connection?  One that
		 * serves a single client tolerates more delay when it yields.
		 */
		if (conn->thread->last_served != conn)
			conn->thread->consecutive = 0;
		else if (conn->thread->consecutive < SERVE_ALONE)
			conn->thread->consecutive++;
		conn->thread->last_served = conn;

		/*
		 * The lease has ended, and the client has been answered so.  A new
		 * lease needs a new connection anyway.
		 */
		if (conn->lease != NULL && conn->nanswers == 0 &&
			atomic_load(&conn->lease->ended))
			goto gone;
	}
	want_events(conn, (conn->nanswers < SERVE_RING ? EPOLLIN : 0) |
				(conn->nanswers > 0 ? EPOLLOUT : 0));
	return any;

gone:
	donor_serve_close(conn);
	return true;
}
