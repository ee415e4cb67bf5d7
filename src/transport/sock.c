/*-------------------------------------------------------------------------
 *
 * sock.c
 *	  Connecting, the proofs of both ends, and waiting, for the transports
 *	  over a stream socket.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/hmac.h"
#include "common/spin.h"
#include "common/status.h"
#include "transport/peer.h"
#include "transport/sock.h"
#include "transport/transport.h"
#include "wire/wire.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/*
 * Bytes that the peer does not acknowledge for so many ms are dropped, also
 * after close().  The spill leaves a slot unused for longer than that after a
 * write to it was given up (its quarantine), so that a late write finds no new
 * content there.
 */
#define UNACKED_MS		30000

bool
rbp_sock_block(int fd, short events, int64_t deadline_ns)
{
	struct pollfd pfd = {.fd = fd,.events = events};
	int64_t		left = deadline_ns - rbp_now_ns();
	struct timespec ts;

	if (left <= 0 || rbp_transport_give_up())
		return false;

	/*
	 * A signal that arrives just before ppoll() does not interrupt it, so ask
	 * rbp_transport_give_up() again after a while.
	 */
	if (left > RBP_GIVE_UP_NS)
		left = RBP_GIVE_UP_NS;
	ts.tv_sec = 0;
	ts.tv_nsec = left;
	(void) ppoll(&pfd, 1, &ts, NULL);
	return true;
}

void
rbp_waiter_begin(RbpWaiter *w, RbpSpin *spin, int64_t deadline_ns)
{
	w->spin = spin;
	w->spin_until = -1;			/* decided at the first step */
	w->deadline_ns = deadline_ns;
	w->polled = false;
	w->result = RBP_SPIN_SUCCEEDED;
}

bool
rbp_waiter_step(RbpWaiter *w, int fd, short events)
{
	int64_t		now = rbp_now_ns();

	if (now >= w->deadline_ns)
		return false;

	if (w->spin_until < 0)
	{
		int64_t		budget = rbp_spin_begin(w->spin, now);

		w->polled = budget > 0;
		w->spin_until = budget > 0 ? now + budget : 0;
	}
	if (w->spin_until > 0)
	{
		if (now < w->spin_until)
		{
			sched_yield();

			/*
			 * Another process wants this core, quite likely the one that we
			 * wait for: check once more, then block.
			 */
			if (rbp_now_ns() - now > RBP_SPIN_CONTENDED_NS)
			{
				w->result = RBP_SPIN_CONTENDED;
				w->spin_until = 1;	/* has passed */
			}
			return true;
		}
		w->spin_until = 0;
	}
	if (w->result == RBP_SPIN_SUCCEEDED)
		w->result = RBP_SPIN_FAILED;
	return rbp_sock_block(fd, events, w->deadline_ns);
}

void
rbp_waiter_end(RbpWaiter *w)
{
	if (w->polled)
		rbp_spin_end(w->spin, w->result);
}

RbpStatus
rbp_status_from_wire(uint16_t status)
{
	static const RbpStatus statuses[] = {
		[RBP_WIRE_OK] = RBP_OK,[RBP_WIRE_DENIED] = RBP_DENIED,[RBP_WIRE_INVALID] = RBP_INVALID,
		[RBP_WIRE_VERSION_MISMATCH] = RBP_OTHER_VERSION,[RBP_WIRE_BUSY] = RBP_BUSY
	};

	return status < sizeof(statuses) / sizeof(statuses[0]) ? statuses[status] : RBP_PROTOCOL;
}

bool
rbp_sock_address(const char *host, uint16_t port, struct sockaddr_storage *addr,
				 socklen_t *len)
{
	struct addrinfo hints = {
		.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,.ai_socktype = SOCK_STREAM
	};
	struct addrinfo *found;
	char		service[8];

	snprintf(service, sizeof(service), "%u", (unsigned) port);
	if (getaddrinfo(host, service, &hints, &found) != 0)
		return false;
	memset(addr, 0, sizeof(*addr));
	memcpy(addr, found->ai_addr, found->ai_addrlen);
	*len = found->ai_addrlen;
	freeaddrinfo(found);
	return true;
}

bool
rbp_sock_same_host(const struct sockaddr_storage *own, const struct sockaddr_storage *peer)
{
	if (own->ss_family != peer->ss_family)
		return false;
	if (own->ss_family == AF_INET)
	{
		in_addr_t	a = ((const struct sockaddr_in *) own)->sin_addr.s_addr;
		in_addr_t	b = ((const struct sockaddr_in *) peer)->sin_addr.s_addr;

		return a == b || ntohl(b) >> IN_CLASSA_NSHIFT == IN_LOOPBACKNET;
	}
	return own->ss_family == AF_INET6 &&
		IN6_ARE_ADDR_EQUAL(&((const struct sockaddr_in6 *) own)->sin6_addr,
						   &((const struct sockaddr_in6 *) peer)->sin6_addr);
}

bool
rbp_transport_is_numeric(const char *host)
{
	struct sockaddr_storage addr;
	socklen_t	len;

	return rbp_sock_address(host, 0, &addr, &len);
}

bool
rbp_io_valid(const RbpIo *io, uint64_t region_size)
{
	if (io->kind == RBP_IO_PING)
		return true;
	return (io->kind == RBP_IO_READ || io->kind == RBP_IO_WRITE) &&
		io->buf != NULL && io->len > 0 && io->len <= RBP_WIRE_MAX_IO &&
		io->len <= region_size && io->offset <= region_size - io->len;
}

RbpStatus
rbp_io_set_all(RbpIo *ios, int n, RbpStatus status)
{
	for (int i = 0; i < n; i++)
		ios[i].status = status;
	return status;
}

RbpStatus
rbp_io_result(const RbpIo *ios, int n)
{
	for (int i = 0; i < n; i++)
		if (ios[i].status != RBP_OK)
			return ios[i].status;
	return RBP_OK;
}

RbpStatus
rbp_sock_fail(RbpSock *sock, RbpStatus why)
{
	if (sock->state != RBP_SOCK_FAILED)
	{
		sock->state = RBP_SOCK_FAILED;
		sock->failure = why;
		OPENSSL_cleanse(sock->key, sizeof(sock->key));
	}
	return sock->failure;
}

void
rbp_sock_close(RbpSock *sock)
{
	if (sock->fd >= 0)
		close(sock->fd);
	sock->fd = -1;
	OPENSSL_cleanse(sock->key, sizeof(sock->key));
}

RbpStatus
rbp_sock_start(RbpSock *sock, const struct sockaddr *addr, socklen_t addrlen,
			   const char *donor, const RbpCredentials *cred)
{
	RbpStatus	status;

	memset(sock, 0, sizeof(*sock));
	strncpy(sock->transcript.lease, cred->lease, sizeof(sock->transcript.lease));
	if (!rbp_donor_key(cred->secret, donor, sock->key))
		return RBP_NOMEM;

	sock->fd = socket(addr->sa_family,
					  SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (sock->fd < 0)
		return errno == ENOMEM || errno == ENOBUFS || errno == EMFILE ||
			errno == ENFILE ? RBP_NOMEM : RBP_CONNLOST;
	if (addr->sa_family != AF_UNIX)
	{
		int			on = 1;

		/*
		 * Limit the time for which unacknowledged data is retransmitted, also
		 * after close(): a caller that gave up on a write relies on the write
		 * not arriving late.
		 */
		unsigned	ms = UNACKED_MS;

		(void) setsockopt(sock->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		(void) setsockopt(sock->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
	}

	/*
	 * A TCP connect goes on in the background.  One to a UNIX socket is done
	 * at once; it fails if too many wait to be accepted, which says nothing
	 * against the donor, and if the process is gone.
	 */
	if (connect(sock->fd, addr, addrlen) == 0 || errno == EINPROGRESS || errno == EINTR)
	{
		sock->state = RBP_SOCK_CONNECTING;
		return RBP_OK;
	}
	status = errno == EAGAIN ? RBP_BUSY : RBP_CONNLOST;
	rbp_sock_close(sock);
	return status;
}

/*
 * A handshake message is smaller than any socket buffer, and the socket's
 * buffer is otherwise empty, so a socket that does not accept all of it is
 * broken.
 */
static bool
send_all(RbpSock *sock, const uint8_t *buf, size_t len)
{
	return send(sock->fd, buf, len, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t) len;
}

/*
 * Receive one handshake message.  Returns true when it is complete in
 * sock->rx.  Reads no byte past it.  On false *status tells whether to wait
 * or give up.
 */
static bool
receive_message(RbpSock *sock, RbpStatus *status)
{
	for (;;)
	{
		size_t		want = RBP_PREFIX_SIZE;
		ssize_t		n;

		if (sock->rx_have >= RBP_PREFIX_SIZE)
		{
			RbpWirePrefix prefix;

			/* a donor may send a refusal instead of the challenge */
			memcpy(&prefix, sock->rx, sizeof(prefix));
			want = prefix.op == RBP_OP_CHALLENGE ? RBP_CHALLENGE_SIZE
				: prefix.op != RBP_OP_WELCOME ? 0
				: prefix.status == RBP_WIRE_OK ? RBP_WELCOME_SIZE : RBP_REFUSAL_SIZE;
			if (want == 0)
			{
				*status = RBP_PROTOCOL;
				return false;
			}
		}
		if (sock->rx_have == want)
		{
			sock->rx_have = 0;
			return true;
		}
		n = recv(sock->fd, sock->rx + sock->rx_have, want - sock->rx_have,
				 MSG_DONTWAIT);
		if (n > 0)
			sock->rx_have += (size_t) n;
		else if (n < 0 && errno == EINTR)
			continue;
		else
		{
			*status = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)
				? RBP_INPROGRESS : RBP_CONNLOST;
			return false;
		}
	}
}

/*
 * Handlers of the states.  RBP_OK: the next state is set.  RBP_INPROGRESS:
 * wait for *events.  Any other status: the connection has failed.
 */

static RbpStatus
say_hello(RbpSock *sock, short *events)
{
	struct pollfd pfd = {.fd = sock->fd,.events = POLLOUT};
	uint8_t		buf[RBP_HELLO_SIZE];
	int			err = 0;
	socklen_t	len = sizeof(err);

	*events = POLLOUT;
	if (poll(&pfd, 1, 0) <= 0)
		return RBP_INPROGRESS;
	if (getsockopt(sock->fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0 || err != 0)
		return RBP_CONNLOST;
	rbp_wire_put_hello(buf, sock->transcript.lease);
	if (!send_all(sock, buf, RBP_HELLO_SIZE))
		return RBP_CONNLOST;
	sock->state = RBP_SOCK_CHALLENGE;
	return RBP_OK;
}

static RbpStatus
answer_challenge(RbpSock *sock)
{
	uint8_t		buf[RBP_AUTH_SIZE];
	RbpWireAuth auth;
	RbpStatus	status;

	if (!receive_message(sock, &status))
		return status;
	if (sock->rx[0] == RBP_OP_WELCOME)
	{
		if (!rbp_wire_get_welcome(sock->rx, sizeof(sock->rx), &sock->welcome) ||
			sock->welcome.prefix.status == RBP_WIRE_OK)
			return RBP_PROTOCOL;
		/* nowhere else: a donor that answers requests so is wrong */
		if (sock->welcome.prefix.status == RBP_WIRE_NOT_ADMITTED)
			return RBP_NOT_ADMITTED;
		return rbp_status_from_wire(sock->welcome.prefix.status);
	}
	if (!rbp_wire_get_challenge(sock->rx, RBP_CHALLENGE_SIZE, sock->transcript.donor_nonce))
		return RBP_PROTOCOL;
	if (getrandom(auth.nonce, sizeof(auth.nonce), 0) != sizeof(auth.nonce))
		return RBP_NOMEM;
	memcpy(sock->transcript.client_nonce, auth.nonce, sizeof(auth.nonce));
	if (!rbp_handshake_mac(sock->key, &sock->transcript, NULL, auth.mac))
		return RBP_NOMEM;
	rbp_wire_put_auth(buf, &auth);
	if (!send_all(sock, buf, RBP_AUTH_SIZE))
		return RBP_CONNLOST;
	sock->state = RBP_SOCK_WELCOME;
	return RBP_OK;
}

static RbpStatus
receive_welcome(RbpSock *sock)
{
	uint8_t		mac[RBP_MAC_LEN];
	RbpStatus	status;

	if (!receive_message(sock, &status))
		return status;
	if (!rbp_wire_get_welcome(sock->rx, sizeof(sock->rx), &sock->welcome))
		return RBP_PROTOCOL;
	if (sock->welcome.prefix.status != RBP_WIRE_OK)
		return rbp_status_from_wire(sock->welcome.prefix.status);
	if (!rbp_handshake_mac(sock->key, &sock->transcript, &sock->welcome, mac))
		return RBP_NOMEM;
	if (CRYPTO_memcmp(mac, sock->welcome.mac, sizeof(mac)) != 0)
		return RBP_UNPROVEN;
	OPENSSL_cleanse(sock->key, sizeof(sock->key));
	sock->state = RBP_SOCK_READY;
	return RBP_OK;
}

/*
 * Advance as far as possible without waiting.  RBP_INPROGRESS: wait for
 * *events.
 */
static RbpStatus
advance(RbpSock *sock, short *events)
{
	RbpStatus	status;

	do
	{
		*events = POLLIN;
		switch (sock->state)
		{
			case RBP_SOCK_CONNECTING:
				status = say_hello(sock, events);
				break;
			case RBP_SOCK_CHALLENGE:
				status = answer_challenge(sock);
				break;
			case RBP_SOCK_WELCOME:
				status = receive_welcome(sock);
				break;
			case RBP_SOCK_READY:
				return RBP_OK;
			default:			/* RBP_SOCK_FAILED */
				return sock->failure;
		}
	} while (status == RBP_OK);
	return status;
}

RbpStatus
rbp_sock_connect_wait(RbpSock *sock, int64_t deadline_ns)
{
	RbpWaiter	waiter;
	RbpStatus	status;
	short		events;

	rbp_waiter_begin(&waiter, &sock->spin, deadline_ns);
	do
		status = advance(sock, &events);
	while (status == RBP_INPROGRESS && rbp_waiter_step(&waiter, sock->fd, events));
	rbp_waiter_end(&waiter);

	if (status != RBP_OK && status != RBP_INPROGRESS)
		return rbp_sock_fail(sock, status);
	return status;
}
