/*-------------------------------------------------------------------------
 *
 * fuzz_client.c
 *	  A client whose donor has gone mad after a proper handshake.
 *
 * The input is a script for the donor.  Each byte is an action, some take
 * more bytes: a right answer to one of the requests in flight, one with a
 * wrong status, id, length or kind, raw bytes, a part of an answer, a pause
 * in which the client's wait times out, or the end.  The client must not
 * write outside of its buffers, must return from each wait, must give every
 * request a final status, and must not say OK to a read unless a whole
 * payload for it was sent.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/status.h"
#include "transport/peer.h"
#include "transport/transport.h"
#include "wire/wire.h"
#include "fuzz.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define NIOS		9
#define LEN			96
#define GUARD		32
#define REGION		(UINT64_C(1) << 20)

static int	listener = -1;
static int	unix_listener = -1;
static RbpEndpoint ep;

#define MUST(cond) \
	do { \
		if (!(cond)) \
		{ \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
			abort(); \
		} \
	} while (0)

static void
start_listening(void)
{
	struct sockaddr_in addr = {.sin_family = AF_INET,.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_un local = {.sun_family = AF_UNIX};
	socklen_t	len = sizeof(addr);
	int			n;

	if (listener >= 0)
		return;
	listener = socket(AF_INET, SOCK_STREAM, 0);
	MUST(bind(listener, (struct sockaddr *) &addr, sizeof(addr)) == 0 &&
		 listen(listener, 8) == 0 &&
		 getsockname(listener, (struct sockaddr *) &addr, &len) == 0);
	strcpy(ep.host, "127.0.0.1");
	ep.port = ntohs(addr.sin_port);
	snprintf(ep.shm_name, sizeof(ep.shm_name), "remote_bp-fuzz-%d", (int) getpid());
	strcpy(ep.boot_id, rbp_transport_boot_id());
	n = (int) strlen(ep.shm_name);
	memcpy(local.sun_path + 1, ep.shm_name, (size_t) n);
	unix_listener = socket(AF_UNIX, SOCK_STREAM, 0);
	MUST(bind(unix_listener, (struct sockaddr *) &local,
			  (socklen_t) (offsetof(struct sockaddr_un, sun_path) + 1 + (size_t) n)) == 0 &&
		 listen(unix_listener, 8) == 0);
}

/* The client has sent something, or will in a moment; false if not. */
static bool
receive(int fd, uint8_t *buf, size_t len)
{
	size_t		have = 0;

	while (have < len)
	{
		struct pollfd pfd = {.fd = fd,.events = POLLIN};
		ssize_t		n;

		if (poll(&pfd, 1, 1000) != 1)
			return false;
		n = recv(fd, buf + have, len - have, 0);
		if (n <= 0)
			return false;
		have += (size_t) n;
	}
	return true;
}

static RbpConn *
handshake(const RbpTransportOps *ops, int *server)
{
	RbpCredentials cred = {.lease = "fuzz"};
	RbpWireWelcome w = {.regions = 4,.region_size = REGION};
	RbpWireTranscript transcript = {.lease = "fuzz",.donor_nonce = {7}};
	RbpWireAuth auth;
	uint8_t		buf[RBP_HANDSHAKE_MAX];
	uint8_t		key[RBP_SECRET_LEN];
	RbpConn    *conn = NULL;
	struct linger linger = {.l_onoff = 1};

	MUST(ops->connect(&ep, &cred, &conn) == RBP_OK);
	*server = accept(ops == &rbp_transport_tcp ? listener : unix_listener, NULL, NULL);
	MUST(*server >= 0);

	/* or else the ports are soon all in TIME_WAIT */
	(void) setsockopt(*server, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	MUST(ops->connect_wait(conn, 0) == RBP_INPROGRESS);
	MUST(receive(*server, buf, RBP_HELLO_SIZE));
	rbp_wire_put_challenge(buf, transcript.donor_nonce);
	MUST(send(*server, buf, RBP_CHALLENGE_SIZE, MSG_NOSIGNAL) == RBP_CHALLENGE_SIZE);
	MUST(ops->connect_wait(conn, rbp_now_ns() + 1000000) == RBP_INPROGRESS);
	MUST(receive(*server, buf, RBP_AUTH_SIZE) && rbp_wire_get_auth(buf, RBP_AUTH_SIZE, &auth));
	memcpy(transcript.client_nonce, auth.nonce, sizeof(auth.nonce));
	MUST(rbp_donor_key(cred.secret, ep.donor, key) && rbp_handshake_mac(key, &transcript, &w, w.mac));
	rbp_wire_put_welcome(buf, &w);
	MUST(send(*server, buf, RBP_WELCOME_SIZE, MSG_NOSIGNAL) == RBP_WELCOME_SIZE);
	MUST(ops->connect_wait(conn, rbp_now_ns() + INT64_C(5000000000)) == RBP_OK);
	return conn;
}

typedef struct Script
{
	const uint8_t *data;
	size_t		left;
} Script;

static uint8_t
next(Script *s)
{
	if (s->left == 0)
		return 0;
	s->left--;
	return *s->data++;
}

/* With a memfd of that size beside, if fd_size is not 0. */
static void
send_bytes(int fd, const void *data, size_t len, off_t fd_size)
{
	union
	{
		struct cmsghdr align;
		char		space[CMSG_SPACE(sizeof(int))];
	}			control = {0};
	struct iovec iov = {.iov_base = (void *) data,.iov_len = len};
	struct msghdr msg = {.msg_iov = &iov,.msg_iovlen = 1};
	int			memfd = -1;

	if (len == 0)
		return;
	if (fd_size > 0)
	{
		struct cmsghdr *c;

		memfd = memfd_create("fuzz", MFD_CLOEXEC);
		MUST(memfd >= 0 && ftruncate(memfd, fd_size) == 0);
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &memfd, sizeof(int));
	}
	(void) sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (memfd >= 0)
		close(memfd);
}

static void
fuzz_client(const RbpTransportOps *ops, const uint8_t *data, size_t size)
{
	static const RbpIoKind kinds[NIOS] = {
		RBP_IO_READ, RBP_IO_READ, RBP_IO_WRITE, RBP_IO_READ, RBP_IO_PING, RBP_IO_READ,
		RBP_IO_READ, RBP_IO_READ, RBP_IO_WRITE
	};
	bool		tcp = ops == &rbp_transport_tcp;
	Script		script = {data, size};
	uint8_t		bufs[NIOS][GUARD + LEN + GUARD];
	RbpIo		ios[NIOS];
	uint64_t	ids[NIOS];
	uint8_t		op_of[NIOS];
	uint32_t	len_of[NIOS];
	int			nrequests = 0;
	uint64_t	payloads = 0;	/* sent, in bytes */
	uint64_t	taken = 0;		/* by reads that are OK */
	int			server;
	RbpConn    *conn = handshake(ops, &server);

	memset(bufs, 0x5A, sizeof(bufs));

	/* single ones, and three in a row, which may come as one */
	for (int i = 0; i < NIOS; i++)
		ios[i] = (RbpIo)
	{
		.kind = kinds[i],.region = i < 5 ? (uint32_t) i % 4 : 1,.offset = i < 5 ? (uint64_t) i * 4096 : (uint64_t) i * LEN,.len = kinds[i] == RBP_IO_PING ? 0 : LEN,.buf = bufs[i] + GUARD
	};
	MUST(ops->submit(conn, ios, NIOS) == RBP_OK);

	/* what the client asked: shm asks for maps, once for each region */
	for (;;)
	{
		struct pollfd pfd = {.fd = server,.events = POLLIN};
		uint8_t		buf[RBP_REQUEST_SIZE + LEN];
		RbpWireRequest req;

		if (nrequests == NIOS || poll(&pfd, 1, 0) != 1)
			break;
		MUST(receive(server, buf, RBP_REQUEST_SIZE));
		MUST(rbp_wire_get_request(buf, RBP_REQUEST_SIZE, &req));
		if (req.prefix.op == RBP_OP_WRITE)
			MUST(receive(server, buf, req.len));
		ids[nrequests] = req.id;
		len_of[nrequests] = req.len;
		op_of[nrequests++] = req.prefix.op;
	}
	MUST(nrequests > 0);

	while (script.left > 0)
	{
		uint8_t		action = next(&script);
		int			which = next(&script) % nrequests;
		RbpWireAnswer ans = {.op = op_of[which],.id = ids[which]};
		uint8_t		out[RBP_ANSWER_SIZE + 3 * LEN];
		size_t		len = RBP_ANSWER_SIZE;
		off_t		fd_size = 0;

		memset(out, 0xC3, sizeof(out));
		if (ans.op == RBP_OP_READ)
			ans.payload = len_of[which];
		else if (ans.op == RBP_OP_MAP)
		{
			ans.payload = RBP_MAP_PAYLOAD_SIZE;
			fd_size = (off_t) REGION;
			rbp_wire_put_map(out + RBP_ANSWER_SIZE, REGION);
		}
		switch (action % 12)
		{
			case 0:
				ans.status = next(&script);
				if (ans.status != RBP_WIRE_OK)
					ans.payload = 0;
				break;
			case 1:
				ans.payload = next(&script);
				break;
			case 2:
				ans.id ^= UINT64_C(1) << (next(&script) % 64);
				break;
			case 3:
				ans.op = next(&script) & 0x7F;
				break;
			case 4:
				fd_size = (off_t) next(&script) * 4096;
				break;
			case 5:
				rbp_wire_put_map(out + RBP_ANSWER_SIZE, UINT64_C(1) << (next(&script) % 64));
				break;
			case 6:
				{
					RbpIo	   *io = &ios[next(&script) % NIOS];

					(void) ops->wait(conn, io, 1, 0);
					MUST(io->status != RBP_INPROGRESS);
					continue;
				}
			case 7:
				len = next(&script) % 64;
				for (size_t i = 0; i < len; i++)
					out[i] = next(&script);
				send_bytes(server, out, len, 0);
				continue;
			default:
				break;			/* as it should be */
		}
		rbp_wire_put_answer(out, &ans);
		len += ans.payload <= 3 * LEN ? ans.payload : 3 * LEN;
		payloads += len - RBP_ANSWER_SIZE;
		if (action & 0x80)
		{
			size_t		cut = len < 2 ? len : 1 + next(&script) % (len - 1);

			/* in two parts, with a look in between */
			send_bytes(server, out, cut, tcp ? 0 : fd_size);
			(void) ops->wait(conn, ios, 0, 0);
			send_bytes(server, out + cut, len - cut, 0);
		}
		else
			send_bytes(server, out, len, tcp ? 0 : fd_size);
	}

	(void) ops->wait(conn, ios, NIOS, rbp_now_ns() + 200000);
	for (int i = 0; i < NIOS; i++)
	{
		MUST(ios[i].status != RBP_INPROGRESS);
		for (int g = 0; g < GUARD; g++)
			MUST(bufs[i][g] == 0x5A && bufs[i][GUARD + LEN + g] == 0x5A);
		if (ios[i].kind == RBP_IO_READ && ios[i].status == RBP_OK)
			taken += LEN;
	}
	if (tcp)
		MUST(taken <= payloads + size); /* raw bytes may spell an answer */
	ops->close(conn);
	close(server);
}

void
fuzz_client_tcp(const uint8_t *data, size_t size)
{
	start_listening();
	fuzz_client(&rbp_transport_tcp, data, size);
}

void
fuzz_client_shm(const uint8_t *data, size_t size)
{
	start_listening();
	fuzz_client(&rbp_transport_shm, data, size);
}
