/*-------------------------------------------------------------------------
 *
 * test_verbs.c
 *	  The verbs transport against a simulated card and a scripted donor.
 *
 * The transport's source is included whole, so that its allocations can be
 * made to fail.  Time is real; what is to be waited for comes from the script
 * at once, and what is not to come takes some milliseconds to time out.
 *
 * Links: test/unit/mock_verbs.c, src/transport/verbs_common.c,
 * src/transport/rbp_transport.c, src/transport/transport_sock.c,
 * src/transport/transport_tcp.c, src/transport/transport_shm.c,
 * src/transport/transport_fault.c, src/wire/rbp_wire.c
 *
 *-------------------------------------------------------------------------
 */
#include "mock_verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/rand.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define malloc		mock_malloc
#define calloc		mock_calloc
#define realloc		mock_realloc
#define posix_memalign	mock_posix_memalign
#define aligned_alloc	mock_aligned_alloc
#define mmap		mock_mmap
#define munmap		mock_munmap
#define madvise		mock_madvise
#include "src/transport/verbs_device.c"
#include "src/transport/transport_verbs.c"
#undef malloc
#undef calloc
#undef realloc
#undef posix_memalign
#undef aligned_alloc
#undef mmap
#undef munmap
#undef madvise

#include "tap.h"

#define REGIONS			1200	/* three pieces of table, of 8 kB each */
#define REGION_BYTES	(256 * 1024)
#define LIVE			4		/* regions that are ours */
#define KB				1024
#define MS				INT64_C(1000000)
#define SECOND			INT64_C(1000000000)

static const RbpTransportOps *const ops = &rbp_transport_verbs;

/*
 * ---- the donor ------------------------------------------------------------------
 */
typedef enum PingMode
{
	PING_ANSWER,
	PING_DROP,
	PING_KEEP,					/* to be answered by answer_pings() */
	PING_NONSENSE,				/* and in four ways that make no sense */
	PING_SHORT,
	PING_LONG,
	PING_OTHER
} PingMode;

typedef struct Live
{
	uint32_t	number;
	uint8_t    *mem;
	uint32_t	key;
	uint64_t	iova;
} Live;

static struct
{
	uint8_t    *table;
	uint32_t	table_key;
	uint64_t	table_iova;
	Live		live[LIVE];

	/* what it answers to a request to connect */
	bool		silent;
	enum rdma_cm_event_type answer;
	int			answer_status;
	uint8_t		answer_data[64];
	uint8_t		answer_len;
	int64_t		answer_delay;

	/* what it got */
	uint32_t	requests;
	bool		hello_ok;		/* of the last one */
	struct rdma_conn_param param;
	uint32_t	receives_at_connect;

	PingMode	ping;
	uint32_t	pings;
	uint8_t		kept[8][RBP_REQUEST_SIZE];
	uint32_t	nkept;

	/* what the device does */
	bool		hold;			/* reads and writes of regions */
	bool		hold_table;
	bool		hold_sends;
	uint32_t	fail_nth;		/* of the region's, from now */
	int			fail_status;
	uint32_t	works;			/* of regions, done */
	uint32_t	signalled;		/* of all that was done */
	uint32_t	table_reads;
	uint32_t	max_table_read;
	void		(*on_table_read) (void);	/* before it is done */
}			donor;

static const RbpCredentials cred = {
	.lease = "0f8fad5b-d9cb-469f-a165-70867728950e",
	.secret = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}
};
static const RbpEndpoint ep = {
	.donor = "d1",
	.transports = RBP_TRANSPORT_VERBS,
	.rdma_host = "10.0.0.77",
	.rdma_port = 7481
};

static uint32_t violations_before;

static void
pattern(void *buf, size_t len, uint32_t seed)
{
	uint8_t    *p = buf;

	for (size_t i = 0; i < len; i++)
	{
		seed = seed * 1103515245 + 12345;
		p[i] = (uint8_t) (seed >> 16);
	}
}

static bool
has_pattern(const void *buf, size_t len, uint32_t seed)
{
	const uint8_t *p = buf;

	for (size_t i = 0; i < len; i++)
	{
		seed = seed * 1103515245 + 12345;
		if (p[i] != (uint8_t) (seed >> 16))
			return false;
	}
	return true;
}

static void
set_entry(uint32_t number, RbpVerbsEntryState state, uint64_t iova, uint32_t key)
{
	rbp_wire_put_verbs_entry(donor.table + (size_t) number * RBP_VERBS_ENTRY_SIZE,
							 state, number, iova, key);
}

static void
make_torn(uint32_t number)
{
	set_entry(number, RBP_VERBS_ENTRY_READY, 0x1234, 0x5678);
	donor.table[(size_t) number * RBP_VERBS_ENTRY_SIZE] ^= 1;
}

/* A new key, and the old one is dead. */
static void
grant(int i)
{
	Live	   *live = &donor.live[i];

	if (live->key != 0)
		mock_remote_dereg(live->key);
	live->iova += UINT64_C(0x100000000);
	live->key = mock_remote_mr(live->mem, REGION_BYTES, live->iova,
							   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	set_entry(live->number, RBP_VERBS_ENTRY_READY, live->iova, live->key);
}

static void
take_back(int i)
{
	set_entry(donor.live[i].number, RBP_VERBS_ENTRY_NONE, 0, 0);
	mock_remote_dereg(donor.live[i].key);
	donor.live[i].key = 0;
}

static int
on_work(const MockWork *work)
{
	if (work->opcode == IBV_WR_SEND)
	{
		if (donor.hold_sends)
			return MOCK_HOLD;
	}
	else if (work->rkey == donor.table_key)
	{
		if (donor.hold_table)
			return MOCK_HOLD;
		donor.table_reads++;
		if (work->len > donor.max_table_read)
			donor.max_table_read = work->len;
		if (donor.on_table_read != NULL)
			donor.on_table_read();
	}
	else
	{
		if (donor.hold)
			return MOCK_HOLD;
		donor.works++;
		if (donor.fail_nth > 0 && --donor.fail_nth == 0)
			return donor.fail_status;
	}
	donor.signalled += work->signalled;
	return IBV_WC_SUCCESS;
}

static void
answer_ping(struct ibv_qp *qp, const uint8_t *request)
{
	RbpWireRequest req;
	RbpWireAnswer answer = {.op = RBP_OP_PING};
	uint8_t		buf[RBP_ANSWER_SIZE];

	if (!rbp_wire_get_request(request, RBP_REQUEST_SIZE, &req) || req.op != RBP_OP_PING)
	{
		diag("the donor got a message that is no ping");
		violations_before = UINT32_MAX;
		return;
	}
	answer.id = req.id;
	rbp_wire_put_answer(buf, &answer);
	if (!mock_message(qp, buf, sizeof(buf)))
	{
		diag("there is no receive for a ping's answer");
		violations_before = UINT32_MAX;
	}
}

static void
answer_pings(struct ibv_qp *qp)
{
	for (uint32_t i = 0; i < donor.nkept; i++)
		answer_ping(qp, donor.kept[i]);
	donor.nkept = 0;
}

static void
on_message(struct ibv_qp *qp, const uint8_t *data, uint32_t len)
{
	donor.pings++;
	if (len != RBP_REQUEST_SIZE)
	{
		diag("a ping of %u bytes", len);
		violations_before = UINT32_MAX;
		return;
	}
	switch (donor.ping)
	{
		case PING_ANSWER:
			answer_ping(qp, data);
			break;
		case PING_DROP:
			break;
		case PING_KEEP:
			if (donor.nkept == 8)
				abort();
			memcpy(donor.kept[donor.nkept++], data, len);
			break;
		case PING_NONSENSE:
			(void) mock_message(qp, "nonsense nonsense", RBP_ANSWER_SIZE);
			break;
		case PING_SHORT:
			(void) mock_message(qp, "", 1);
			break;
		case PING_LONG:
			(void) mock_message(qp, "nonsense nonsense", RBP_ANSWER_SIZE + 1);
			break;
		case PING_OTHER:
			{
				uint8_t		other[RBP_REQUEST_SIZE];
				RbpWireRequest req = {.op = RBP_OP_PING,.id = 0x123456};

				rbp_wire_put_request(other, &req);
				answer_ping(qp, other);
				break;
			}
	}
}

static void
put_welcome(uint16_t status)
{
	RbpWireVerbsWelcome welcome = {.status = status};

	if (status == RBP_WIRE_OK)
	{
		welcome.regions = REGIONS;
		welcome.region_size = REGION_BYTES;
		welcome.table_key = donor.table_key;
		welcome.table_address = donor.table_iova;
	}
	rbp_wire_put_verbs_welcome(donor.answer_data, &welcome);
	donor.answer_len = RBP_VERBS_WELCOME_SIZE;
}

static void
answer_connect(struct rdma_cm_id *id)
{
	mock_event(id, donor.answer, donor.answer_status, donor.answer_data,
			   donor.answer_len, donor.answer_delay);
}

static void
on_connect(struct rdma_cm_id *id, const struct rdma_conn_param *param)
{
	RbpWireVerbsHello hello;
	uint8_t		digest[RBP_VERBS_DIGEST_LEN];
	uint8_t		mac[RBP_VERBS_MAC_LEN];

	donor.requests++;
	donor.param = *param;
	donor.receives_at_connect = mock_receives(id->qp);
	donor.hello_ok = param->private_data_len == RBP_VERBS_HELLO_SIZE &&
		rbp_wire_get_verbs_hello(param->private_data, param->private_data_len, &hello) &&
		hello.version == RBP_WIRE_VERSION &&
		rbp_verbs_lease_digest(cred.lease, digest) &&
		memcmp(digest, hello.digest, sizeof(digest)) == 0 &&
		rbp_verbs_mac(cred.secret, hello.nonce, digest, rdma_get_local_addr(id),
					  id->qp->qp_num, mac) &&
		memcmp(mac, hello.mac, sizeof(mac)) == 0;
	if (!donor.silent)
		answer_connect(id);
}

/* A donor with three regions, and nothing that is wrong. */
static void
begin_test(void)
{
	static const uint32_t numbers[LIVE] = {0, 5, 511, REGIONS - 1};

	mock_reset();
	memset(&donor, 0, sizeof(donor));
	donor.table = calloc(REGIONS, RBP_VERBS_ENTRY_SIZE);
	donor.table_iova = UINT64_C(0x7000000000) + 16;
	donor.table_key = mock_remote_mr(donor.table, REGIONS * RBP_VERBS_ENTRY_SIZE,
									 donor.table_iova, IBV_ACCESS_REMOTE_READ);
	for (int i = 0; i < LIVE; i++)
	{
		donor.live[i].number = numbers[i];
		donor.live[i].mem = malloc(REGION_BYTES);
		pattern(donor.live[i].mem, REGION_BYTES, (uint32_t) i + 1);
		donor.live[i].iova = UINT64_C(0x100000) * (uint64_t) (i + 1);
		grant(i);
	}
	donor.answer = RDMA_CM_EVENT_ESTABLISHED;
	put_welcome(RBP_WIRE_OK);
	mock_hooks.on_work = on_work;
	mock_hooks.on_message = on_message;
	mock_hooks.on_connect = on_connect;
	violations_before = mock_violations();
}

/* Nothing is left, and no rule was broken.  Told only if it is not so. */
static bool
finish(const char *what)
{
	bool		good = mock_leaks(true) == 0 && mock_violations() == violations_before;

	if (!good)
		diag("so after: %s", what);
	for (int i = 0; i < LIVE; i++)
		free(donor.live[i].mem);
	free(donor.table);
	mock_reset();
	return good;
}

#define finish_ok(...) \
	do { \
		char		what_[200]; \
		\
		snprintf(what_, sizeof(what_), __VA_ARGS__); \
		ok(finish(what_), "%s: nothing is left, no rule is broken", what_); \
	} while (0)

/*
 * ---- the client ------------------------------------------------------------------
 */
static int64_t
in_ms(int64_t ms)
{
	return rbp_now_ns() + ms * MS;
}

static RbpConn *
connected(void)
{
	RbpConn    *conn = NULL;
	RbpStatus	status = ops->connect(&ep, &cred, &conn);

	if (status == RBP_OK)
		status = ops->connect_wait(conn, in_ms(2000));
	if (status != RBP_OK)
	{
		printf("Bail out! no connection: %s\n", rbp_status_text(status));
		exit(1);
	}
	return conn;
}

static RbpIo
make_io(RbpIoKind kind, int live, uint64_t offset, uint32_t len, void *buf)
{
	return (RbpIo) {
		.kind = kind,.region = donor.live[live].number,.offset = offset,
			.len = len,.buf = buf
	};
}

static RbpIo
make_ping(void)
{
	return (RbpIo) {.kind = RBP_IO_PING};
}

static RbpStatus
run(RbpConn *conn, RbpIo *ios, int n, int64_t ms)
{
	(void) ops->submit(conn, ios, n);
	return ops->wait(conn, ios, n, in_ms(ms));
}

static RbpStatus
run_one(RbpConn *conn, RbpIo io, int64_t ms)
{
	return run(conn, &io, 1, ms);
}

static RbpStatus
read_some(RbpConn *conn, int live, uint64_t offset, uint32_t len, void *buf)
{
	return run_one(conn, make_io(RBP_IO_READ, live, offset, len, buf), 2000);
}

static RbpStatus
ping(RbpConn *conn, int64_t ms)
{
	return run_one(conn, make_ping(), ms);
}

/* A read of its own works: the connection is alive. */
static bool
alive(RbpConn *conn)
{
	uint8_t		buf[100];

	return read_some(conn, 0, 50, sizeof(buf), buf) == RBP_OK &&
		memcmp(buf, donor.live[0].mem + 50, sizeof(buf)) == 0;
}

static bool
lost(RbpConn *conn)
{
	uint8_t		buf[100];
	RbpIo		io = make_io(RBP_IO_READ, 0, 0, sizeof(buf), buf);
	RbpStatus	status = ops->submit(conn, &io, 1);

	return status == RBP_CONNLOST && io.status == RBP_CONNLOST &&
		ops->wait(conn, &io, 1, in_ms(100)) == RBP_CONNLOST;
}

/*
 * ---- connecting ------------------------------------------------------------------
 */

/* Steps that the script answers, one by one. */
static bool
unanswered(struct rdma_cm_id *id)
{
	(void) id;
	return false;
}

typedef enum Phase
{
	IN_ADDR,
	IN_ROUTE,
	IN_CONNECT,
	NPHASES
} Phase;

static const char *const phase_names[] = {"address", "route", "connection"};

/* A poll; the clock must not be waited for. */
static RbpStatus
poll_connect(RbpConn *conn)
{
	RbpStatus	status = RBP_INPROGRESS;

	/* each may take one event at a time */
	for (int i = 0; i < 4 && status == RBP_INPROGRESS; i++)
		status = ops->connect_wait(conn, 0);
	return status;
}

/* A connection that waits for the answer of a phase. */
static RbpConn *
in_phase(Phase phase)
{
	RbpConn    *conn = NULL;

	mock_hooks.on_resolve_addr = unanswered;
	mock_hooks.on_resolve_route = unanswered;
	donor.silent = true;
	if (ops->connect(&ep, &cred, &conn) != RBP_OK ||
		poll_connect(conn) != RBP_INPROGRESS)
	{
		printf("Bail out! connect() fails\n");
		exit(1);
	}
	if (phase >= IN_ROUTE)
	{
		mock_event(mock_id(), RDMA_CM_EVENT_ADDR_RESOLVED, 0, NULL, 0, 0);
		(void) poll_connect(conn);
	}
	if (phase >= IN_CONNECT)
	{
		mock_event(mock_id(), RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL, 0, 0);
		(void) poll_connect(conn);
	}
	return conn;
}

static void
test_phases(void)
{
	RbpConn    *conn = NULL;
	int64_t		before;
	uint8_t		byte;
	RbpIo		io;

	begin_test();
	mock_hooks.on_resolve_addr = unanswered;
	mock_hooks.on_resolve_route = unanswered;
	donor.silent = true;
	before = rbp_now_ns();
	ok(ops->connect(&ep, &cred, &conn) == RBP_OK && conn != NULL && conn->ops == ops,
	   "connect() starts");
	is_u64(mock_calls[MOCK_RESOLVE_ADDR], 1, "with the address");
	ok(poll_connect(conn) == RBP_INPROGRESS, "polls find nothing yet");
	ok(rbp_now_ns() - before < 500 * MS, "without waiting");
	before = rbp_now_ns();
	ok(ops->connect_wait(conn, in_ms(20)) == RBP_INPROGRESS &&
	   rbp_now_ns() - before >= 20 * MS && rbp_now_ns() - before < 2 * SECOND,
	   "a wait lasts to its deadline");
	io = make_io(RBP_IO_READ, 0, 0, 1, &byte);
	ok(ops->submit(conn, &io, 1) == RBP_INVALID && io.status == RBP_INVALID,
	   "no request goes out before it is connected");

	mock_event(mock_id(), RDMA_CM_EVENT_ADDR_RESOLVED, 0, NULL, 0, 0);
	ok(poll_connect(conn) == RBP_INPROGRESS && mock_calls[MOCK_RESOLVE_ROUTE] == 1,
	   "the address leads to the route");
	ok(poll_connect(conn) == RBP_INPROGRESS && mock_calls[MOCK_CONNECT] == 0, "which takes its time");
	mock_event(mock_id(), RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL, 0, 0);
	ok(poll_connect(conn) == RBP_INPROGRESS && donor.requests == 1,
	   "the route leads to the donor");
	ok(poll_connect(conn) == RBP_INPROGRESS, "which takes its time");
	answer_connect(mock_id());
	ok(poll_connect(conn) == RBP_OK, "it answers: connected");
	ok(poll_connect(conn) == RBP_OK, "connected it stays");
	ok(alive(conn), "requests go out");
	ops->close(conn);
	finish_ok("polled connect");

	/* events that come while it waits */
	begin_test();
	donor.answer_delay = 10 * MS;
	ok(ops->connect(&ep, &cred, &conn) == RBP_OK &&
	   ops->connect_wait(conn, in_ms(2000)) == RBP_OK, "connected within one wait");
	ok(alive(conn), "and alive");
	ops->close(conn);
	finish_ok("connect in one wait");

	for (int phase = IN_ADDR; phase < NPHASES; phase++)
	{
		begin_test();
		ops->close(in_phase((Phase) phase));
		finish_ok("close waiting for the %s", phase_names[phase]);
	}

	/* with an event that nobody has fetched */
	begin_test();
	conn = in_phase(IN_CONNECT);
	answer_connect(mock_id());
	ops->close(conn);
	finish_ok("close with the answer on the way");

	begin_test();
	ops->close(NULL);
	finish_ok("close of nothing");
}

static void
test_handshake(void)
{
	RbpVerbsConfig config = RBP_VERBS_CONFIG_DEFAULT;
	RbpEndpoint other = ep;
	RbpConn    *conn = NULL;

	begin_test();
	conn = connected();
	ok(donor.hello_ok, "the donor gets the lease's digest and a MAC that binds address and queue pair");
	is_u64(donor.param.retry_count, 6, "lost packets are sent again six times");
	is_u64(donor.param.rnr_retry_count, 6, "and refused ones");
	is_u64(donor.param.initiator_depth, 16, "16 reads at once");
	ok(donor.receives_at_connect >= RBP_VERBS_PINGS, "there are receives for the answers to pings");
	is_u64((uint64_t) mock_ack_timeout(mock_id()), 12, "the ack timeout is the configured one");
	ok(mock_tos(mock_id()) == -1, "the traffic class is the system's");
	ops->close(conn);
	finish_ok("handshake");

	begin_test();
	mock_limits.max_qp_init_rd_atom = 4;
	config.ack_timeout = 9;
	config.retry_count = 3;
	config.traffic_class = 104;
	rbp_verbs_configure(&config);
	conn = connected();
	is_u64(donor.param.initiator_depth, 4, "as many reads at once as the device has");
	is_u64(donor.param.retry_count, 3, "retries as configured");
	is_u64((uint64_t) mock_ack_timeout(mock_id()), 9, "ack timeout as configured");
	is_u64((uint64_t) mock_tos(mock_id()), 104, "traffic class as configured");
	ops->close(conn);
	rbp_verbs_configure(&(RbpVerbsConfig) RBP_VERBS_CONFIG_DEFAULT);
	finish_ok("options");

	begin_test();
	strcpy(other.rdma_host, "fd00::77");
	ok(ops->connect(&other, &cred, &conn) == RBP_OK &&
	   ops->connect_wait(conn, in_ms(2000)) == RBP_OK && donor.hello_ok,
	   "IPv6");
	ops->close(conn);
	finish_ok("IPv6");

	begin_test();
	conn = NULL;
	strcpy(other.rdma_host, "localhost");
	ok(ops->connect(&other, &cred, &conn) == RBP_INVALID && conn == NULL,
	   "a name is not an address");
	other.rdma_host[0] = '\0';
	ok(ops->connect(&other, &cred, &conn) == RBP_INVALID && conn == NULL &&
	   !ops->usable(&other), "none is none");
	other = ep;
	other.rdma_port = 0;
	ok(ops->connect(&other, &cred, &conn) == RBP_INVALID && conn == NULL &&
	   !ops->usable(&other), "nor is one without a port");
	finish_ok("endpoints that make no sense");
}

static void
test_connect_failures(void)
{
	static const struct
	{
		Phase		phase;
		enum rdma_cm_event_type event;
		int			status;
		int			welcome;	/* its status; -1: zeroes, -2: nonsense */
		RbpStatus	expected;
	}			cases[] = {
		{IN_ADDR, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV, -1, RBP_CONNLOST},
		{IN_ADDR, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT, -1, RBP_CONNLOST},
		{IN_ADDR, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, -1, RBP_CONNLOST},
		{IN_ROUTE, RDMA_CM_EVENT_ROUTE_ERROR, -ETIMEDOUT, -1, RBP_CONNLOST},
		{IN_ROUTE, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, -1, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, -1, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_CONNECT_ERROR, -EIO, -1, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, -1, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_DISCONNECTED, 0, -1, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, MOCK_REJECTED_NO_SERVICE, -1, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, MOCK_REJECTED_BY_PEER, -1, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, MOCK_REJECTED_BY_PEER, -2, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, MOCK_REJECTED_BY_PEER, RBP_WIRE_DENIED, RBP_DENIED},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, MOCK_REJECTED_BY_PEER, RBP_WIRE_BUSY, RBP_NOMEM},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, MOCK_REJECTED_BY_PEER, RBP_WIRE_VERSION_MISMATCH, RBP_PROTOCOL},
		{IN_CONNECT, RDMA_CM_EVENT_ESTABLISHED, 0, -1, RBP_PROTOCOL},
		{IN_CONNECT, RDMA_CM_EVENT_ESTABLISHED, 0, -2, RBP_PROTOCOL},
		{IN_CONNECT, RDMA_CM_EVENT_ESTABLISHED, 0, RBP_WIRE_DENIED, RBP_PROTOCOL},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		RbpConn    *conn;
		RbpStatus	status;
		uint8_t		byte;
		RbpIo		io;
		char		what[100];

		begin_test();
		conn = in_phase(cases[i].phase);
		if (cases[i].welcome >= 0)
			put_welcome((uint16_t) cases[i].welcome);
		else
			memset(donor.answer_data, cases[i].welcome == -2 ? 0x5a : 0,
				   sizeof(donor.answer_data));
		mock_event(mock_id(), cases[i].event, cases[i].status, donor.answer_data,
				   cases[i].event == RDMA_CM_EVENT_REJECTED ||
				   cases[i].event == RDMA_CM_EVENT_ESTABLISHED ? RBP_VERBS_WELCOME_SIZE : 0, 0);
		status = poll_connect(conn);
		snprintf(what, sizeof(what), "%s %d (%d) waiting for the %s",
				 rdma_event_str(cases[i].event), cases[i].status, cases[i].welcome,
				 phase_names[cases[i].phase]);
		if (!ok(status == cases[i].expected, "%s: %s", what,
				rbp_status_text(cases[i].expected)))
			diag("got: %s", rbp_status_text(status));
		io = make_io(RBP_IO_READ, 0, 0, 1, &byte);
		ok(ops->connect_wait(conn, in_ms(1)) == status &&
		   ops->submit(conn, &io, 1) == status && io.status == status,
		   "%s: it is final", what);
		ops->close(conn);
		finish_ok("%s", what);
	}

	/* an answer that is as long as a REP allows, but says nothing */
	begin_test();
	donor.answer_len = 0;
	{
		RbpConn    *conn = NULL;

		ok(ops->connect(&ep, &cred, &conn) == RBP_OK &&
		   ops->connect_wait(conn, in_ms(2000)) == RBP_PROTOCOL,
		   "a REP without private data");
		ops->close(conn);
	}
	finish_ok("a REP without private data");
}

/*
 * ---- reads and writes ---------------------------------------------------------------
 */
static void
test_sizes(void)
{
	static const uint32_t sizes[] = {
		1, 2, 100, 4096, 8191, 8192, 8193, 10000, 65536, REGION_BYTES - 1, REGION_BYTES
	};
	RbpConn    *conn;
	uint8_t    *buf = malloc(REGION_BYTES);
	uint8_t    *known = malloc(2 * REGION_BYTES);
	RbpMr	   *mr = NULL;
	uint32_t	registered;

	begin_test();
	conn = connected();
	ok(ops->register_memory(conn, known, 2 * REGION_BYTES, &mr) == RBP_OK && mr != NULL,
	   "memory is registered");
	registered = mock_registrations(NULL);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
	{
		uint32_t	len = sizes[i];
		uint64_t	offset = len == REGION_BYTES ? 0 : (REGION_BYTES - len) / 2;
		bool		good = true;

		for (int live = 0; live < LIVE; live++)
		{
			RbpIo		io = make_io(RBP_IO_WRITE, live, offset, len, buf);

			pattern(buf, len, len + (uint32_t) live);
			good &= run(conn, &io, 1, 2000) == RBP_OK &&
				has_pattern(donor.live[live].mem + offset, len, len + (uint32_t) live);
			memset(buf, 0, len);
			io = make_io(RBP_IO_READ, live, offset, len, buf);
			good &= run(conn, &io, 1, 2000) == RBP_OK &&
				has_pattern(buf, len, len + (uint32_t) live);

			/* from and to registered memory */
			pattern(known + 77, len, len * 3);
			io = make_io(RBP_IO_WRITE, live, offset, len, known + 77);
			io.mr = mr;
			good &= run(conn, &io, 1, 2000) == RBP_OK &&
				has_pattern(donor.live[live].mem + offset, len, len * 3);
			memset(known, 0, 2 * REGION_BYTES);
			io = make_io(RBP_IO_READ, live, offset, len, known + 5);
			io.mr = mr;
			good &= run(conn, &io, 1, 2000) == RBP_OK &&
				has_pattern(known + 5, len, len * 3);

			/* beside it, though the caller says otherwise */
			io = make_io(RBP_IO_READ, live, offset, len, buf);
			io.mr = mr;
			good &= run(conn, &io, 1, 2000) == RBP_OK && has_pattern(buf, len, len * 3);
		}
		ok(good, "%u bytes go there and come back", len);
	}
	is_u64(mock_registrations(NULL), registered, "nothing is registered for one request");

	/* where it ends in the registered memory's middle, or begins before */
	{
		RbpMr	   *part = NULL;
		RbpIo		io = make_io(RBP_IO_READ, 1, 0, 20000, known);

		ok(ops->register_memory(conn, known + 4096, 8192, &part) == RBP_OK, "a part is registered");
		io.mr = part;
		ok(run(conn, &io, 1, 2000) == RBP_OK &&
		   memcmp(known, donor.live[1].mem, 20000) == 0, "a buffer that is larger than its registration");
		io = make_io(RBP_IO_READ, 1, 0, 100, known + 4096 + 8192 - 50);
		io.mr = part;
		ok(run(conn, &io, 1, 2000) == RBP_OK &&
		   memcmp(known + 4096 + 8192 - 50, donor.live[1].mem, 100) == 0,
		   "one that ends behind it");
		ops->deregister_memory(conn, part);
	}
	ops->deregister_memory(conn, mr);
	ops->close(conn);
	finish_ok("sizes");
	free(buf);
	free(known);
}

static void
test_invalid(void)
{
	RbpConn    *conn;
	uint8_t		buf[128];
	RbpIo		ios[7];
	RbpStatus	status;

	begin_test();
	conn = connected();
	for (int i = 0; i < 7; i++)
		ios[i] = make_io(RBP_IO_READ, 0, 0, sizeof(buf), buf);
	ios[1].len = 0;
	ios[2].offset = REGION_BYTES - sizeof(buf) + 1;
	ios[3].offset = UINT64_MAX - 10;
	ios[4].buf = NULL;
	ios[5].kind = (RbpIoKind) 77;
	status = run(conn, ios, 7, 2000);
	ok(status == RBP_INVALID && ios[0].status == RBP_OK && ios[6].status == RBP_OK,
	   "requests that make no sense do not hurt those beside them");
	ok(ios[1].status == RBP_INVALID && ios[2].status == RBP_INVALID &&
	   ios[3].status == RBP_INVALID && ios[4].status == RBP_INVALID &&
	   ios[5].status == RBP_INVALID, "but are refused");
	ios[0] = make_io(RBP_IO_READ, 0, 0, sizeof(buf), buf);
	ios[0].region = REGIONS;
	ios[1] = ios[0];
	ios[1].region = UINT32_MAX;
	ios[2] = ios[0];
	ios[2].region = 7;			/* in the table, but not ours */
	status = run(conn, ios, 3, 2000);
	ok(ios[0].status == RBP_DENIED && ios[1].status == RBP_DENIED &&
	   ios[2].status == RBP_DENIED, "regions that are not there are denied");
	ok(alive(conn), "the connection is not hurt");
	ops->close(conn);
	finish_ok("requests that make no sense");
}

static void
test_doorbells(void)
{
	RbpConn    *conn;
	uint8_t    *buf = malloc(16 * 8 * KB);
	RbpIo		ios[16];
	RbpMr	   *mr = NULL;

	begin_test();
	conn = connected();
	ok(alive(conn), "the key is known");
	if (ops->register_memory(conn, buf, 16 * 8 * KB, &mr) != RBP_OK)
		abort();
	for (int how = 0; how < 4; how++)
	{
		uint64_t	posts = mock_calls[MOCK_POST_SEND];
		uint32_t	works = donor.works;
		uint32_t	signalled = donor.signalled;
		const char *what = how == 0 ? "16 reads" : how == 1 ? "16 writes"
			: how == 2 ? "16 reads, zero copy" : "16 writes, zero copy";

		for (int i = 0; i < 16; i++)
		{
			ios[i] = make_io(how % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, 0,
							 (uint64_t) i * 8 * KB, 8 * KB, buf + i * 8 * KB);
			ios[i].mr = how < 2 ? NULL : mr;
		}
		ok(run(conn, ios, 16, 2000) == RBP_OK, "%s", what);
		is_u64(mock_calls[MOCK_POST_SEND] - posts, 1, "%s: one doorbell", what);
		is_u64(donor.works - works, 16, "%s: as many pieces of work", what);
		ok(donor.signalled - signalled <= 16 / SIGNAL_EACH + 1, "%s: %u completions", what,
		   donor.signalled - signalled);
	}
	is_u64(donor.table_reads, 1, "the table is read once");
	ops->deregister_memory(conn, mr);
	ops->close(conn);
	finish_ok("doorbells");
	free(buf);
}

/* More at once than the queue or the bounce slots take. */
static void
test_large_batches(void)
{
	static const int counts[] = {17, 33, 63, 64, 65, 128, 300};
	RbpConn    *conn;
	uint8_t    *buf = malloc(300 * 8 * KB);
	RbpIo	   *ios = calloc(300, sizeof(RbpIo));
	RbpMr	   *mr = NULL;

	begin_test();
	conn = connected();
	if (ops->register_memory(conn, buf, 300 * 8 * KB, &mr) != RBP_OK)
		abort();
	for (int how = 0; how < 8; how++)
	{
		bool		good = true;

		mock_lazy = how % 2 == 1;
		mock_poll_max = how == 4 || how == 5 ? 1 : 0;
		for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
		{
			int			n = counts[c];

			/* write and read in turn, in different places */
			memset(buf, 0, (size_t) n * 8 * KB);
			for (int i = 0; i < n; i++)
			{
				uint8_t    *at = buf + (size_t) i * 8 * KB;
				uint64_t	place = (uint64_t) (i / LIVE) % 32 * 8 * KB;

				ios[i] = make_io(i % 3 == 0 ? RBP_IO_WRITE : RBP_IO_READ, i % LIVE,
								 place, (uint32_t) (i % 5 == 0 ? 12 * KB : 8 * KB), at);
				if (ios[i].len + place > REGION_BYTES || i + 1 == 300)
					ios[i].len = 8 * KB;
				if (i % 5 == 0)
					ios[i].len = 5000;
				if ((how & 2) != 0 && (i % 2 == 0 || how >= 6))
					ios[i].mr = mr;
				if (ios[i].kind == RBP_IO_WRITE)
					memcpy(at, donor.live[i % LIVE].mem + place, ios[i].len);
			}
			good &= run(conn, ios, n, 5000) == RBP_OK;
			for (int i = 0; i < n; i++)
				good &= ios[i].status == RBP_OK &&
					memcmp(ios[i].buf, donor.live[i % LIVE].mem + ios[i].offset,
						   ios[i].len) == 0;
		}
		ok(good, "batches of up to 300, in way %d", how);
	}
	mock_lazy = false;
	mock_poll_max = 0;

	/* all registered for their time */
	for (int i = 0; i < 40; i++)
		ios[i] = make_io(RBP_IO_READ, i % LIVE, (uint64_t) i * 1000, 9000 + (uint32_t) i,
						 buf + i * 16 * KB);
	ok(run(conn, ios, 40, 5000) == RBP_OK, "40 at once that are registered for their time");
	ops->deregister_memory(conn, mr);
	ops->close(conn);
	finish_ok("large batches");
	free(ios);
	free(buf);
}

/* Several batches under way, waited for in another order. */
static void
test_overlapping_batches(void)
{
	RbpConn    *conn;
	uint8_t    *buf = calloc(60, 8 * KB);
	RbpIo		ios[60];
	bool		good = true;

	begin_test();
	conn = connected();
	mock_lazy = true;
	for (int i = 0; i < 60; i++)
		ios[i] = make_io(RBP_IO_READ, i % LIVE, (uint64_t) (i / LIVE) * 8 * KB,
						 8 * KB, buf + i * 8 * KB);
	for (int i = 0; i < 60; i += 10)
		good &= ops->submit(conn, &ios[i], 10) == RBP_OK;
	ok(good, "six batches are posted");
	ok(ops->wait(conn, &ios[50], 10, in_ms(2000)) == RBP_OK, "the last can be waited for first");
	ok(ops->wait(conn, &ios[25], 3, in_ms(2000)) == RBP_OK, "or a part of one");
	ok(ops->wait(conn, ios, 60, in_ms(2000)) == RBP_OK, "then all");
	for (int i = 0; i < 60; i++)
		good &= memcmp(ios[i].buf, donor.live[i % LIVE].mem + ios[i].offset, 8 * KB) == 0;
	ok(good, "everything is where it belongs");
	ok(ops->wait(conn, ios, 0, 0) == RBP_OK, "to wait for nothing is easy");
	ops->close(conn);
	finish_ok("overlapping batches");
	free(buf);
}

/*
 * ---- the table ------------------------------------------------------------------------
 */
static int	until_mended;

static void
mend_later(void)
{
	if (--until_mended == 0)
		set_entry(donor.live[1].number, RBP_VERBS_ENTRY_READY,
				  donor.live[1].iova, donor.live[1].key);
}

static void
grant_later(void)
{
	if (--until_mended == 0)
		grant(1);
}

static void
test_table(void)
{
	RbpConn    *conn;
	uint8_t		buf[4096];
	uint32_t	reads;
	int64_t		began;
	uint32_t	asked = 0;
	RbpIo		io;

	begin_test();
	conn = connected();
	ok(alive(conn) && donor.table_reads == 1, "a key is looked up once");
	ok(donor.max_table_read <= 8192, "by a read of 8 kB at most");
	ok(alive(conn) && donor.table_reads == 1, "then it is known");
	ok(read_some(conn, 3, 0, 100, buf) == RBP_OK && donor.table_reads == 2,
	   "that of the last region is elsewhere");

	/* pending */
	set_entry(donor.live[1].number, RBP_VERBS_ENTRY_WAIT, 0, 0);
	(void) ops->close(conn);
	conn = connected();
	began = rbp_now_ns();
	reads = donor.table_reads;
	while (rbp_now_ns() - began < 55 * MS)
	{
		if (read_some(conn, 1, 0, 100, buf) != RBP_CANCELED)
			break;
		asked++;
	}
	ok(asked > 5, "a region without a key yet is a miss");
	ok(donor.table_reads - reads <= 2 + (uint32_t) ((rbp_now_ns() - began) / (10 * MS)),
	   "the table is not read more often than each 10 ms: %u times for %u requests",
	   donor.table_reads - reads, asked);
	ok(donor.table_reads - reads >= 2, "but again");
	ok(alive(conn), "the connection is not hurt");
	set_entry(donor.live[1].number, RBP_VERBS_ENTRY_READY, donor.live[1].iova,
			  donor.live[1].key);
	usleep(15000);
	ok(read_some(conn, 1, 0, 100, buf) == RBP_OK &&
	   memcmp(buf, donor.live[1].mem, 100) == 0, "the key comes");

	/* granted anew: the old key would be an error */
	grant(1);
	memset(donor.live[1].mem, 0x77, REGION_BYTES);
	io = make_io(RBP_IO_READ, 1, 0, 100, buf);
	io.grant = 1;
	ok(run(conn, &io, 1, 2000) == RBP_OK && buf[99] == 0x77,
	   "a region that was granted anew is looked up anew");
	ok(run(conn, &io, 1, 2000) == RBP_OK, "and known again");

	/* ours no more */
	take_back(1);
	io.grant = 2;
	ok(run(conn, &io, 1, 2000) == RBP_DENIED, "a region that was lost is denied");
	ok(alive(conn), "the connection is not hurt");
	grant(1);
	usleep(15000);
	io.grant = 3;
	ok(run(conn, &io, 1, 2000) == RBP_OK, "until it is granted again");

	/* and with the same grant, when the donor was late with its table */
	take_back(1);
	io.grant = 4;
	ok(run(conn, &io, 1, 2000) == RBP_DENIED, "denied");
	grant(1);
	began = rbp_now_ns();
	while (run(conn, &io, 1, 2000) != RBP_OK && rbp_now_ns() - began < SECOND)
		usleep(1000);
	ok(rbp_now_ns() - began < SECOND, "what is denied is asked for again sometime");

	/* torn: read again at once */
	make_torn(donor.live[1].number);
	until_mended = 2;
	donor.on_table_read = mend_later;
	io.grant = 5;
	ok(run(conn, &io, 1, 2000) == RBP_OK, "a torn entry is read again");
	make_torn(donor.live[1].number);
	until_mended = INT32_MAX;
	io.grant = 6;
	reads = donor.table_reads;
	{
		RbpStatus	status = run(conn, &io, 1, 2000);

		ok(status == RBP_CANCELED || status == RBP_DENIED || status == RBP_PROTOCOL,
		   "one that stays torn is given up: %s", rbp_status_text(status));
		ok(donor.table_reads - reads < 50, "after a few reads: %u", donor.table_reads - reads);
	}
	donor.on_table_read = NULL;
	ops->close(conn);
	finish_ok("table");
}

/* Requests for several regions, some without a key, in one batch. */
static void
test_mixed_lookups(void)
{
	RbpConn    *conn;
	uint8_t    *buf = calloc(40, 8 * KB);
	RbpIo		ios[40];
	bool		good = true;

	begin_test();
	conn = connected();
	set_entry(donor.live[2].number, RBP_VERBS_ENTRY_WAIT, 0, 0);
	for (int i = 0; i < 40; i++)
	{
		ios[i] = make_io(RBP_IO_READ, i % LIVE, (uint64_t) i * KB, 8 * KB, buf + i * 8 * KB);
		if (i % 10 == 7)
			ios[i].region = 8;	/* not ours */
	}
	ok(ops->submit(conn, ios, 40) == RBP_OK, "a batch for many regions is posted");
	ok(ops->wait(conn, ios, 40, in_ms(2000)) != RBP_OK, "some of it fails");
	for (int i = 0; i < 40; i++)
	{
		RbpStatus	expected = i % 10 == 7 ? RBP_DENIED
			: i % LIVE == 2 ? RBP_CANCELED : RBP_OK;

		if (ios[i].status != expected)
		{
			diag("request %d: %s", i, rbp_status_text(ios[i].status));
			good = false;
		}
		else if (expected == RBP_OK &&
				 memcmp(ios[i].buf, donor.live[i % LIVE].mem + ios[i].offset, 8 * KB) != 0)
			good = false;
	}
	ok(good, "each as it deserves");

	/* two grants of the same region in one batch: the newer is right */
	grant(0);
	ios[0] = make_io(RBP_IO_READ, 0, 0, 100, buf);
	ios[0].grant = 1;
	ios[1] = make_io(RBP_IO_READ, 0, 100, 100, buf + 100);
	ios[1].grant = 1;
	ok(run(conn, ios, 2, 2000) == RBP_OK && memcmp(buf, donor.live[0].mem, 200) == 0,
	   "a new grant for two");

	/* what a lookup brings is for the grant that it was made for */
	{
		RbpStatus	status;

		take_back(1);
		until_mended = 2;
		donor.on_table_read = grant_later;
		donor.hold_table = true;
		ios[0] = make_io(RBP_IO_READ, 1, 0, 100, buf);
		ios[0].grant = 7;
		ios[1] = make_io(RBP_IO_READ, 1, 0, 100, buf + 100);
		ios[1].grant = 8;
		(void) ops->submit(conn, ios, 1);
		(void) ops->submit(conn, ios + 1, 1);
		donor.hold_table = false;
		status = ops->wait(conn, ios, 2, in_ms(2000));
		ok(status == RBP_DENIED && ios[0].status == RBP_DENIED,
		   "a region that was lost is denied to who means the old grant");
		ok(ios[1].status == RBP_OK && memcmp(buf + 100, donor.live[1].mem, 100) == 0,
		   "not to who means the new one: %s", rbp_status_text(ios[1].status));
		donor.on_table_read = NULL;
	}
	ops->close(conn);
	finish_ok("mixed lookups");

	/* timeouts and the end, while the table is being read */
	begin_test();
	conn = connected();
	donor.hold_table = true;
	memset(buf, 0x11, 40 * 8 * KB);
	for (int i = 0; i < 40; i++)
		ios[i] = make_io(i % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, i % LIVE,
						 (uint64_t) i * KB, 8 * KB, buf + i * 8 * KB);
	ok(run(conn, ios, 40, 5) == RBP_TIMEOUT, "the table does not come");
	donor.hold_table = false;
	ok(alive(conn), "a late table does not hurt");
	good = true;
	for (int i = 0; i < 40 * 8 * KB; i++)
		good &= buf[i] == 0x11;
	ok(good, "what was given up is not read");
	for (int i = 0; i < LIVE; i++)
		good &= has_pattern(donor.live[i].mem, REGION_BYTES, (uint32_t) i + 1);
	ok(good, "nor written");
	ops->close(conn);
	finish_ok("late table");

	begin_test();
	conn = connected();
	donor.hold_table = true;
	for (int i = 0; i < 40; i++)
		ios[i] = make_io(RBP_IO_READ, i % LIVE, 0, 8 * KB, buf + i * 8 * KB);
	(void) ops->submit(conn, ios, 40);
	ops->close(conn);
	finish_ok("close while the table is read");
	free(buf);
}

/*
 * ---- errors ------------------------------------------------------------------------------
 */
static void
test_errors(void)
{
	static const struct
	{
		int			status;
		RbpStatus	expected;
		RbpStatus	others;
	}			cases[] = {
		{IBV_WC_REM_ACCESS_ERR, RBP_DENIED, RBP_CANCELED},
		{IBV_WC_REM_OP_ERR, RBP_DENIED, RBP_CANCELED},
		{IBV_WC_REM_INV_REQ_ERR, RBP_DENIED, RBP_CANCELED},
		{IBV_WC_RETRY_EXC_ERR, RBP_CONNLOST, RBP_CONNLOST},
		{IBV_WC_RNR_RETRY_EXC_ERR, RBP_CONNLOST, RBP_CONNLOST},
		{IBV_WC_LOC_PROT_ERR, RBP_CONNLOST, RBP_CONNLOST},
		{IBV_WC_GENERAL_ERR, RBP_CONNLOST, RBP_CONNLOST},
	};
	uint8_t    *buf = malloc(100 * 16 * KB);
	RbpIo		ios[100];

	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
		for (int nth = 1; nth <= 41; nth += 8)
		{
			RbpConn    *conn;
			bool		good = true;
			RbpMr	   *mr = NULL;
			int			n = 80;
			int			works = 0;
			int			hit = -1;	/* the request that fails */

			begin_test();
			mock_lazy = nth % 16 == 1;
			mock_receives_first = (c + (size_t) nth / 8) % 2 == 0;
			mock_poll_max = (int) c % 3;
			conn = connected();
			if (!alive(conn) ||
				ops->register_memory(conn, buf + 50 * 16 * KB, 50 * 16 * KB, &mr) != RBP_OK)
				abort();
			for (int i = 0; i < n; i++)
			{
				ios[i] = make_io(i % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, 0,
								 (uint64_t) i * KB, i % 7 == 0 ? 10000 : 900,
								 buf + i * 16 * KB);
				ios[i].mr = i > 50 ? mr : NULL;
				works += ios[i].mr == NULL && ios[i].len > SLOT_SIZE ? 2 : 1;
				if (works >= nth && hit < 0)
					hit = i;
			}
			donor.fail_nth = (uint32_t) nth;
			donor.fail_status = cases[c].status;
			ok(run(conn, ios, n, 2000) != RBP_OK, "error %d of work %d is seen", cases[c].status, nth);
			for (int i = 0; i < n; i++)
			{
				RbpStatus	expected = i < hit ? RBP_OK
					: i == hit ? cases[c].expected : cases[c].others;

				/* those just before it were done, but nobody has said so */
				if (i < hit && i >= hit - SIGNAL_EACH && ios[i].status == cases[c].others)
					continue;
				if (ios[i].status != expected)
				{
					if (good)
						diag("request %d: %s, expected: %s", i, rbp_status_text(ios[i].status),
							 rbp_status_text(expected));
					good = false;
				}
			}
			ok(good, "error %d of work %d: those before it are done, it and those behind it are not",
			   cases[c].status, nth);
			ok(lost(conn), "error %d of work %d: the connection is over", cases[c].status, nth);
			ops->deregister_memory(conn, mr);
			ops->close(conn);
			finish_ok("error %d of work %d", cases[c].status, nth);
		}

	/* a key that died while it was in use */
	{
		RbpConn    *conn;

		begin_test();
		conn = connected();
		ok(alive(conn), "a region is in use");
		take_back(0);
		ok(read_some(conn, 0, 0, 100, buf) == RBP_DENIED, "and denied when its key is dead");
		ok(lost(conn), "the connection is over then");
		ops->close(conn);
		finish_ok("dead key");
	}

	/* the table's own */
	{
		RbpConn    *conn;

		begin_test();
		conn = connected();
		mock_remote_dereg(donor.table_key);
		ok(read_some(conn, 0, 0, 100, buf) == RBP_DENIED, "no table for a lease that has ended");
		ok(lost(conn), "the connection is over then");
		ops->close(conn);
		finish_ok("dead table");
	}
	free(buf);
}

/* The connection manager's news, while requests are under way. */
static enum rdma_cm_event_type news;

static void
tell_news(struct ibv_cq *cq)
{
	static int	polls;

	(void) cq;
	if (++polls % 50 == 0 && news != RDMA_CM_EVENT_MULTICAST_JOIN)
	{
		mock_event(mock_id(), news, 0, NULL, 0, 0);
		news = RDMA_CM_EVENT_MULTICAST_JOIN;
	}
}

static void
test_news(void)
{
	static const struct
	{
		enum rdma_cm_event_type event;
		bool		over;
	}			cases[] = {
		{RDMA_CM_EVENT_DISCONNECTED, true},
		{RDMA_CM_EVENT_DEVICE_REMOVAL, true},
		{RDMA_CM_EVENT_TIMEWAIT_EXIT, false},
		{RDMA_CM_EVENT_ADDR_CHANGE, false},
	};
	uint8_t    *buf = malloc(40 * 16 * KB);
	RbpIo		ios[40];

	for (size_t c = 0; c < 2 * sizeof(cases) / sizeof(cases[0]); c++)
	{
		bool		over = cases[c / 2].over;
		RbpConn    *conn;
		RbpStatus	status;
		int64_t		began;
		bool		good = true;

		begin_test();
		mock_flush_polls = c % 2 == 0 ? 0 : 20;
		conn = connected();
		if (!alive(conn))
			abort();
		donor.hold = true;
		for (int i = 0; i < 40; i++)
			ios[i] = make_io(RBP_IO_READ, 0, 0, i % 3 == 0 ? 9000 : 100, buf + i * 16 * KB);
		news = cases[c / 2].event;
		mock_hooks.on_poll = tell_news;
		(void) ops->submit(conn, ios, 40);
		began = rbp_now_ns();
		status = ops->wait(conn, ios, 40, in_ms(over ? 3000 : 30));
		ok(status == (over ? RBP_CONNLOST : RBP_TIMEOUT), "%s while requests are under way: %s",
		   rdma_event_str(cases[c / 2].event), rbp_status_text(status));
		if (over)
			ok(rbp_now_ns() - began < SECOND, "%s is noticed soon", rdma_event_str(cases[c / 2].event));
		for (int i = 0; i < 40; i++)
			good &= ios[i].status == status;
		ok(good, "it is so for all of them");
		memset(buf, 0x33, 40 * 16 * KB);
		donor.hold = false;
		mock_progress();
		for (int i = 0; i < 40 * 16 * KB; i++)
			good &= buf[i] == 0x33;
		ok(good, "none of their buffers is touched afterwards");
		if (over)
			ok(lost(conn), "the connection is over");
		ops->close(conn);
		finish_ok("%s", rdma_event_str(cases[c / 2].event));
	}

	/* with nothing under way; noticed by the next who waits, if not before */
	{
		RbpConn    *conn;
		RbpStatus	status;

		begin_test();
		conn = connected();
		if (!alive(conn))
			abort();
		donor.hold = true;
		mock_event(mock_id(), RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0, 0);
		status = read_some(conn, 0, 0, 100, buf);
		ok(status == RBP_CONNLOST, "a donor that left before: %s", rbp_status_text(status));
		ops->close(conn);
		finish_ok("a donor that left before");
	}
	free(buf);
}

/*
 * ---- giving up ------------------------------------------------------------------------------
 */
static void
test_timeouts(void)
{
	RbpConn    *conn;
	uint8_t    *buf = malloc(100 * 16 * KB);
	RbpIo		ios[100];
	RbpMr	   *mr = NULL;
	bool		good;
	int64_t		began;

	/* copied ones: the connection lives on */
	for (int how = 0; how < 4; how++)
	{
		int			n = how < 2 ? 10 : 70;	/* more than there are slots */

		begin_test();
		mock_lazy = how % 2 == 1;
		conn = connected();
		if (!alive(conn))
			abort();
		donor.hold = true;
		for (int i = 0; i < n; i++)
		{
			ios[i] = make_io(i % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, 0,
							 (uint64_t) i * KB, KB, buf + i * 16 * KB);
			memset(ios[i].buf, i % 2 == 0 ? 0x44 : 0x55, KB);
		}
		began = rbp_now_ns();
		ok(run(conn, ios, n, 10) == RBP_TIMEOUT, "%d requests time out", n);
		ok(rbp_now_ns() - began >= 10 * MS && rbp_now_ns() - began < SECOND, "when their time is over");
		good = true;
		for (int i = 0; i < n; i++)
			good &= ios[i].status == RBP_TIMEOUT;
		ok(good, "all of them");
		memset(buf, 0x66, 100 * 16 * KB);
		memset(ios, 0x77, sizeof(ios));
		{
			RbpIo		io = make_io(RBP_IO_READ, 1, 0, 100, buf + 90 * 16 * KB);

			ok(ops->submit(conn, &io, 1) == RBP_OK, "another is taken meanwhile");
			ok(ops->wait(conn, &io, 1, in_ms(5)) == RBP_TIMEOUT, "but no faster");
		}
		donor.hold = false;
		ok(alive(conn), "late answers do not hurt");
		good = true;
		for (int i = 0; i < 100 * 16 * KB; i++)
			good &= buf[i] == 0x66;
		ok(good, "nobody's buffer is touched");
		for (int i = 0; i < n; i++)
		{
			const uint8_t *at = donor.live[0].mem + i * KB;

			/* a write was done, with what the buffer held then, or not at all */
			if (i % 2 != 0 && at[0] == 0x55)
				for (int j = 0; j < KB; j++)
					good &= at[j] == 0x55;
			else
				good &= at[0] != 0x66;
		}
		ok(good, "late writes write what was to be written");
		for (int i = 0; i < 50; i++)
			ios[i] = make_io(RBP_IO_READ, i % LIVE, 0, KB, buf + i * KB);
		ok(run(conn, ios, 50, 2000) == RBP_OK, "all slots are there again");
		ops->close(conn);
		finish_ok("timeout %d", how);
	}

	/* those that the device has the caller's memory of: it must let go of it */
	for (int how = 0; how < 12; how++)
	{
		bool		zero_copy = how % 2 == 0;
		bool		reading = how % 4 < 2;

		begin_test();
		mock_flush_polls = how < 4 ? 0 : how < 8 ? 3 : 1000000;
		conn = connected();
		if (!alive(conn) || ops->register_memory(conn, buf, 100 * 16 * KB, &mr) != RBP_OK)
			abort();
		donor.hold = true;
		memset(buf, 0x44, 100 * 16 * KB);
		memset(donor.live[0].mem, 0x11, REGION_BYTES);
		for (int i = 0; i < 4; i++)
		{
			ios[i] = make_io(reading ? RBP_IO_READ : RBP_IO_WRITE, 0, (uint64_t) i * 16 * KB,
							 zero_copy ? 8 * KB : 16 * KB, buf + i * 16 * KB);
			ios[i].mr = zero_copy ? mr : NULL;
		}
		/* another batch beside it */
		ios[4] = make_io(RBP_IO_READ, 0, 0, 100, buf + 90 * 16 * KB);
		(void) ops->submit(conn, &ios[4], 1);
		ok(run(conn, ios, 4, 10) == RBP_TIMEOUT, "%s requests time out, way %d",
		   zero_copy ? "zero copy" : "large", how);
		memset(buf, 0x66, 100 * 16 * KB);
		donor.hold = false;
		mock_progress();
		good = true;
		for (int i = 0; i < 100 * 16 * KB; i++)
			good &= buf[i] == 0x66;
		ok(good, "their buffers are not touched afterwards");
		for (int i = 0; i < REGION_BYTES; i++)
			good &= donor.live[0].mem[i] != 0x66;
		ok(good, "nor read");
		ok(ios[4].status != RBP_INPROGRESS ||
		   ops->wait(conn, &ios[4], 1, in_ms(1000)) != RBP_TIMEOUT, "another batch ends too: %s",
		   rbp_status_text(ios[4].status));
		ok(zero_copy ? lost(conn) : alive(conn), "the connection is %s",
		   zero_copy ? "over" : "alive");
		ops->deregister_memory(conn, mr);
		ops->close(conn);
		finish_ok("%s timeout, way %d", zero_copy ? "zero copy" : "large", how);
	}

	/* large ones that did not get to the device need not end the connection */
	begin_test();
	conn = connected();
	donor.hold_table = true;
	ios[0] = make_io(RBP_IO_READ, 2, 0, 16 * KB, buf);
	ok(run(conn, ios, 1, 5) == RBP_TIMEOUT, "a large request waits for its key");
	donor.hold_table = false;
	ok(alive(conn), "given up, it does not end the connection");
	ops->close(conn);
	finish_ok("large request without a key");

	/* time that was over before */
	begin_test();
	conn = connected();
	if (!alive(conn))
		abort();
	for (int i = 0; i < 20; i++)
		ios[i] = make_io(RBP_IO_READ, 0, 0, KB, buf + i * KB);
	(void) ops->submit(conn, ios, 20);
	began = rbp_now_ns();
	(void) ops->wait(conn, ios, 20, 0);
	good = true;
	for (int i = 0; i < 20; i++)
		good &= ios[i].status == RBP_OK || ios[i].status == RBP_TIMEOUT;
	ok(good && rbp_now_ns() - began < SECOND, "a wait without time ends at once");
	ok(alive(conn), "and hurts nobody");
	ops->close(conn);
	finish_ok("no time");

	/* nothing is ever answered any more, and still it takes requests */
	begin_test();
	conn = connected();
	if (!alive(conn))
		abort();
	donor.hold = true;
	good = true;
	for (int round = 0; round < 30; round++)
	{
		RbpStatus	status;

		for (int i = 0; i < 10; i++)
			ios[i] = make_io(i % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, 0, 0, KB, buf + i * KB);
		status = run(conn, ios, 10, 1);
		good &= status == RBP_TIMEOUT;
	}
	ok(good, "request after request times out");
	donor.hold = false;
	ok(alive(conn), "all come late");
	ops->close(conn);
	finish_ok("many timeouts");

	/* or the connection is closed with them */
	begin_test();
	conn = connected();
	if (!alive(conn))
		abort();
	donor.hold = true;
	for (int i = 0; i < 30; i++)
		ios[i] = make_io(i % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, 0, 0, KB, buf + i * KB);
	ok(run(conn, ios, 30, 1) == RBP_TIMEOUT, "requests time out");
	ops->close(conn);
	finish_ok("close with late answers to come");
	free(buf);
}

/*
 * ---- pings ---------------------------------------------------------------------------------
 */
static void
test_pings(void)
{
	RbpConn    *conn;
	RbpIo	   *ios = calloc(12, sizeof(RbpIo));
	bool		good = true;
	uint8_t		buf[100];

	begin_test();
	conn = connected();
	for (int i = 0; i < 50; i++)
		good &= ping(conn, 2000) == RBP_OK;
	ok(good && donor.pings == 50, "fifty pings, one after the other");
	for (int i = 0; i < 12; i++)
		ios[i] = make_ping();
	ok(run(conn, ios, 12, 2000) == RBP_OK && donor.pings == 62, "twelve at once");
	for (int i = 0; i < 12; i++)
		ios[i] = i % 3 == 0 ? make_ping()
		: make_io(RBP_IO_READ, i % LIVE, 0, sizeof(buf), buf);
	ok(run(conn, ios, 12, 2000) == RBP_OK, "among reads");

	/* never more than the donor has receives for */
	donor.ping = PING_KEEP;
	for (int i = 0; i < 12; i++)
		ios[i] = make_ping();
	(void) ops->submit(conn, ios, 12);
	ok(ops->wait(conn, ios, 12, in_ms(5)) == RBP_TIMEOUT, "twelve without an answer time out");
	ok(donor.nkept <= RBP_VERBS_PINGS, "no more are sent than the donor has receives for: %u",
	   donor.nkept);
	ok(ping(conn, 5) == RBP_TIMEOUT && donor.nkept <= RBP_VERBS_PINGS, "nor later");
	ok(alive(conn), "reads go on");
	free(ios);
	ios = calloc(12, sizeof(RbpIo));
	donor.pings = 0;
	answer_pings(mock_qp());
	donor.ping = PING_ANSWER;
	ok(ping(conn, 2000) == RBP_OK, "late answers are swallowed");
	is_u64(donor.pings, 1, "what was given up is not sent any more");
	good = true;
	for (int i = 0; i < 20; i++)
		good &= ping(conn, 2000) == RBP_OK;
	ok(good, "as if nothing had been");

	/* a late answer is not the next ping's */
	donor.ping = PING_KEEP;
	ok(ping(conn, 5) == RBP_TIMEOUT, "a ping without an answer");
	ios[0] = make_ping();
	(void) ops->submit(conn, ios, 1);
	is_u64(donor.nkept, 2, "and another one");
	donor.nkept = 1;			/* only the first is answered */
	answer_pings(mock_qp());
	ok(ops->wait(conn, ios, 1, in_ms(20)) == RBP_TIMEOUT, "a late answer is not taken for the next one's");
	ops->close(conn);
	finish_ok("pings");

	/* answers that never come */
	begin_test();
	conn = connected();
	donor.ping = PING_DROP;
	good = true;
	for (int i = 0; i < 20; i++)
		good &= ping(conn, 1) == RBP_TIMEOUT;
	ok(good, "pings without an answer time out, however many");
	ok(donor.pings <= RBP_VERBS_PINGS, "no more than four are sent: %u", donor.pings);
	ok(alive(conn), "reads go on");
	ops->close(conn);
	finish_ok("lost answers");

	/* sends that are not even acknowledged */
	begin_test();
	conn = connected();
	if (!alive(conn))
		abort();
	donor.hold_sends = true;
	ok(ping(conn, 5) == RBP_TIMEOUT, "a ping that is not taken times out");
	ok(run_one(conn, make_io(RBP_IO_READ, 0, 0, 100, buf), 5) == RBP_TIMEOUT, "and what is behind it");
	donor.hold_sends = false;
	ok(alive(conn) && ping(conn, 2000) == RBP_OK, "until it is");
	ops->close(conn);
	finish_ok("late pings");

	for (int how = PING_NONSENSE; how <= PING_OTHER; how++)
	{
		RbpStatus	status;

		begin_test();
		conn = connected();
		donor.ping = (PingMode) how;
		status = ping(conn, 2000);
		ok(status == (how == PING_LONG ? RBP_CONNLOST : RBP_PROTOCOL),
		   "nonsense of kind %d is no answer: %s", how, rbp_status_text(status));
		ios[0] = make_ping();
		ok(ops->submit(conn, ios, 1) == status, "from a donor whom one cannot speak to");
		ops->close(conn);
		finish_ok("nonsense of kind %d", how);
	}

	begin_test();
	conn = connected();
	donor.ping = PING_KEEP;
	ios[0] = make_ping();
	(void) ops->submit(conn, ios, 1);
	ops->close(conn);
	finish_ok("close with a ping under way");
	free(ios);
}

/*
 * ---- calls that fail ----------------------------------------------------------------------
 */

/*
 * Some of everything.  Returns whether all of it went well; what went well
 * must be right.  *odd counts what is wrong whatever fails.
 */
static bool
some_of_everything(int *odd)
{
	RbpConn    *conns[2] = {NULL, NULL};
	uint8_t    *buf = malloc(64 * 16 * KB);
	RbpMr	   *mrs[2] = {NULL, NULL};
	RbpIo		ios[40];
	bool		all = true;

	for (int c = 0; c < 2; c++)
	{
		RbpStatus	status = ops->connect(&ep, &cred, &conns[c]);

		if (status != RBP_OK)
		{
			*odd += conns[c] != NULL || status == RBP_INPROGRESS;
			all = false;
			continue;
		}
		status = ops->connect_wait(conns[c], in_ms(2000));
		if (status != RBP_OK)
		{
			if (status == RBP_INPROGRESS)
			{
				diag("connect_wait() does not come to an end");
				(*odd)++;
			}
			all = false;
			ops->close(conns[c]);
			conns[c] = NULL;
			continue;
		}
		status = ops->register_memory(conns[c], buf, 16 * 16 * KB, &mrs[c]);
		if (status != RBP_OK)
		{
			*odd += mrs[c] != NULL;
			all = false;
		}
	}
	for (int round = 0; round < 4; round++)
	{
		RbpConn    *conn = conns[round % 2];

		if (conn == NULL)
			continue;
		pattern(buf, 64 * 16 * KB, (uint32_t) round + 99);
		for (int i = 0; i < 40; i++)
		{
			uint64_t	offset = (uint64_t) (i / LIVE) * 16 * KB;

			ios[i] = make_io(i % 3 == 0 ? RBP_IO_READ : RBP_IO_WRITE, i % LIVE, offset,
							 i % 5 == 0 ? 16 * KB : 8 * KB, buf + (size_t) i * 16 * KB);
			if (i < 16)
				ios[i].mr = mrs[round % 2];
			if (i == 25)
				ios[i] = make_ping();
		}
		(void) ops->submit(conn, ios, 40);
		(void) ops->wait(conn, ios, 40, in_ms(2000));
		for (int i = 0; i < 40; i++)
		{
			if (ios[i].status != RBP_OK)
			{
				if (ios[i].status == RBP_INPROGRESS || ios[i].status == RBP_TIMEOUT ||
					ios[i].status == RBP_INVALID)
				{
					diag("request %d: %s", i, rbp_status_text(ios[i].status));
					(*odd)++;
				}
				all = false;
			}
			else if (ios[i].kind != RBP_IO_PING &&
					 memcmp(ios[i].buf, donor.live[i % LIVE].mem + ios[i].offset,
							ios[i].len) != 0)
			{
				diag("request %d: wrong bytes", i);
				(*odd)++;
			}
		}
	}
	for (int c = 0; c < 2; c++)
	{
		if (mrs[c] != NULL)
			ops->deregister_memory(conns[c], mrs[c]);
		ops->close(conns[c]);
	}
	free(buf);
	return all;
}

static void
test_failing_calls(void)
{
	int			odd = 0;

	begin_test();
	ok(some_of_everything(&odd) && odd == 0, "some of everything goes well");
	finish_ok("some of everything");

	for (int call = 0; call < MOCK_NCALLS; call++)
		for (int way = 0; way < (call == MOCK_POST_SEND ? 3 : 1); way++)
		{
			bool		clean = true;
			uint32_t	nth;

			odd = 0;
			if (call == MOCK_DEREG_MR)
				continue;		/* nobody can do anything about it */
			for (nth = 1; nth < 120; nth++)
			{
				char		what[100];
				bool		failed;

				begin_test();
				mock_lazy = way == 2;
				mock_fail_at = way;
				mock_fail((MockCall) call, nth, ENOMEM);
				(void) some_of_everything(&odd);
				failed = mock_failed((MockCall) call);
				snprintf(what, sizeof(what), "failure %u of %s, way %d", nth,
						 mock_call_name((MockCall) call), way);
				if (!finish(what) || odd > 0)
				{
					if (odd > 0)
						diag("so after: %s", what);
					clean = false;
					break;
				}
				if (!failed)
					break;
			}
			if (nth > 1)
				ok(clean, "each of %u calls of %s fails, way %d", nth - 1,
				   mock_call_name((MockCall) call), way);
		}
}

/* Interrupted calls are no failures. */
static void
test_interrupted(void)
{
	RbpConn    *conn = NULL;

	begin_test();
	mock_fail(MOCK_GET_EVENT, 1, EINTR);
	ok(ops->connect(&ep, &cred, &conn) == RBP_OK &&
	   ops->connect_wait(conn, in_ms(2000)) == RBP_OK, "a signal while it connects does no harm");
	ops->close(conn);
	finish_ok("a signal");
}

/*
 * ---- registrations ---------------------------------------------------------------------------
 */
static void
test_registrations(void)
{
	RbpConn    *a;
	RbpConn    *b;
	RbpMr	   *mr[6] = {NULL};
	uint8_t    *buf = malloc(1024 * KB);
	uint32_t	before;
	RbpIo		io;

	begin_test();
	a = connected();
	b = connected();
	is_u64(mock_calls[MOCK_ALLOC_PD], 1, "connections share a protection domain");
	before = mock_registrations(NULL);
	ok(ops->register_memory(a, buf, 1024 * KB, &mr[0]) == RBP_OK &&
	   ops->register_memory(b, buf, 1024 * KB, &mr[1]) == RBP_OK &&
	   ops->register_memory(b, buf, 1024 * KB, &mr[2]) == RBP_OK, "memory is registered for each");
	is_u64(mock_registrations(NULL) - before, 1, "but by the device once");
	ok(ops->register_memory(a, buf, 512 * KB, &mr[3]) == RBP_OK, "a part of it as well");
	ops->deregister_memory(a, mr[0]);
	ops->close(a);
	io = make_io(RBP_IO_READ, 0, 0, 8 * KB, buf + 100 * KB);
	io.mr = mr[1];
	ok(run(b, &io, 1, 2000) == RBP_OK && memcmp(io.buf, donor.live[0].mem, 8 * KB) == 0,
	   "it stays registered for the others when one leaves");
	ops->deregister_memory(b, mr[1]);
	io.mr = mr[2];
	ok(run(b, &io, 1, 2000) == RBP_OK, "or gives one of two up");
	ops->deregister_memory(b, mr[2]);

	/* its connection is closed: what is left of it is dropped somehow, too */
	ops->deregister_memory(b, mr[3]);
	is_u64(mock_registrations(NULL), before - 1, "when the last one gives it up, it is over");
	mock_fail(MOCK_REG_MR, 1, ENOMEM);
	ok(ops->register_memory(b, buf, 1024 * KB, &mr[4]) == RBP_NOMEM && mr[4] == NULL,
	   "too much memory to register");
	ok(ops->register_memory(b, buf, 1024 * KB, &mr[4]) == RBP_OK, "is not remembered as if it were");
	ops->deregister_memory(b, mr[4]);
	ops->close(b);
	finish_ok("registrations");

	/* two devices */
	begin_test();
	{
		RbpEndpoint other = ep;

		strcpy(other.rdma_host, "10.0.1.77");
		a = connected();
		ok(ops->connect(&other, &cred, &b) == RBP_OK &&
		   ops->connect_wait(b, in_ms(2000)) == RBP_OK, "a donor behind another device");
		is_u64(mock_calls[MOCK_ALLOC_PD], 2, "each has its protection domain");
		ok(ops->register_memory(a, buf, 1024 * KB, &mr[0]) == RBP_OK &&
		   ops->register_memory(b, buf, 1024 * KB, &mr[1]) == RBP_OK, "memory for both");
		io = make_io(RBP_IO_READ, 0, 0, 8 * KB, buf);
		io.mr = mr[0];
		ok(run(a, &io, 1, 2000) == RBP_OK, "the one reads");
		io.mr = mr[1];
		ok(run(b, &io, 1, 2000) == RBP_OK, "the other reads");
		io.mr = mr[0];
		memset(buf, 0, 8 * KB);
		ok(run(b, &io, 1, 2000) == RBP_OK && memcmp(buf, donor.live[0].mem, 8 * KB) == 0,
		   "even into memory that is registered with the one");
		io.mr = mr[1];
		ops->deregister_memory(a, mr[0]);
		ops->close(a);
		ok(run(b, &io, 1, 2000) == RBP_OK, "and on, alone");
		ops->deregister_memory(b, mr[1]);
		ops->close(b);
	}
	finish_ok("two devices");
	free(buf);
}

/*
 * ---- close at each moment -------------------------------------------------------------------
 */
static uint32_t polls_left;

static int
hold_for_a_while(const MockWork *work)
{
	if (polls_left > 0)
	{
		polls_left--;
		return MOCK_HOLD;
	}
	return on_work(work);
}

static void
test_close_anytime(void)
{
	uint8_t    *buf = malloc(64 * 16 * KB);
	RbpIo		ios[64];
	bool		clean = true;

	for (uint32_t moment = 0; moment < 60 && clean; moment++)
	{
		RbpConn    *conn;
		RbpMr	   *mr = NULL;

		begin_test();
		mock_lazy = true;
		mock_poll_max = 1 + (int) moment % 3;
		mock_flush_polls = (int) moment % 4 * 2;
		conn = connected();
		mock_hooks.on_work = hold_for_a_while;
		polls_left = moment % 7;
		if (ops->register_memory(conn, buf, 32 * 16 * KB, &mr) != RBP_OK)
			abort();
		for (int i = 0; i < 64; i++)
		{
			ios[i] = make_io(i % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, i % LIVE,
							 (uint64_t) i * KB, i % 3 == 0 ? 16 * KB : 8 * KB,
							 buf + i * 16 * KB);
			ios[i].mr = i % 5 == 0 ? mr : NULL;
			if (i % 16 == 15)
				ios[i] = make_ping();
		}
		(void) ops->submit(conn, ios, 20);
		for (uint32_t i = 0; i < moment / 7; i++)
			(void) ops->wait(conn, ios, 1, 0);
		(void) ops->submit(conn, ios + 20, 44);
		if (moment % 2 == 0)
			(void) ops->wait(conn, ios + 30, 4, 0);

		/* the caller's way: what is registered is given up before the close */
		if (moment % 3 == 0)
		{
			(void) ops->wait(conn, ios, 64, 0);
			ops->deregister_memory(conn, mr);
			mr = NULL;
		}
		if (mr != NULL)
		{
			(void) ops->wait(conn, ios, 64, in_ms(2000));
			ops->deregister_memory(conn, mr);
		}
		ops->close(conn);
		memset(buf, 0x12, 64 * 16 * KB);
		memset(ios, 0x34, sizeof(ios));
		clean = finish("close at some moment");
		if (!clean)
			diag("moment %u", moment);
	}
	ok(clean, "connections are closed at sixty moments");

	for (int how = 0; how < 8; how++)
	{
		RbpConn    *conn;

		begin_test();
		mock_flush_polls = how % 4;
		mock_lazy = how >= 4;
		conn = connected();
		donor.hold = true;
		for (int i = 0; i < 64; i++)
			ios[i] = make_io(i % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, i % LIVE,
							 0, i % 3 == 0 ? 16 * KB : 8 * KB, buf + i * 16 * KB);
		(void) ops->submit(conn, ios, 64);
		ops->close(conn);
		donor.hold = false;
		memset(buf, 0x12, 64 * 16 * KB);
		mock_progress();
		{
			bool		good = true;

			for (int i = 0; i < 64 * 16 * KB; i++)
				good &= buf[i] == 0x12;
			ok(good, "after close() no buffer is touched, way %d", how);
		}
		finish_ok("close with requests under way, way %d", how);
	}
	free(buf);
}

/*
 * ---- at random ------------------------------------------------------------------------------
 */
static unsigned int seed;

static uint32_t
pick(uint32_t n)
{
	return (uint32_t) rand_r(&seed) % n;
}

#define BLOCK		(16 * KB)	/* one request at a time for each */
#define BLOCKS		(REGION_BYTES / BLOCK)
#define BATCHES		6
#define PER_BATCH	24

typedef struct Request
{
	int			live;
	int			block;			/* -1: none */
	uint8_t    *buf;			/* malloc'ed, but if zero copy */
	bool		wrote;
} Request;

typedef struct Batch
{
	int			n;				/* 0: none */
	RbpIo		ios[PER_BATCH];
	Request		req[PER_BATCH];
} Batch;

static struct
{
	uint8_t		bytes[LIVE][REGION_BYTES];
	bool		unsure[LIVE][BLOCKS];	/* a write that failed or came late */
	bool		busy[LIVE][BLOCKS];
	uint32_t	grants[LIVE];
	Batch		batches[BATCHES];
	uint8_t    *known;			/* registered; a place for each request */
	RbpMr	   *mr;
	bool		faults;			/* something was done that breaks requests */
	bool		holding;
}			model;

static uint32_t hold_chance;

static int
hold_at_random(const MockWork *work)
{
	if (hold_chance > 0 && pick(100) < hold_chance)
		return MOCK_HOLD;
	return on_work(work);
}

static void
submit_at_random(RbpConn *conn, Batch *batch)
{
	int			n = 1 + (int) pick(PER_BATCH);
	int			slot = (int) (batch - model.batches);

	for (int i = 0; i < n; i++)
	{
		RbpIo	   *io = &batch->ios[i];
		Request    *req = &batch->req[i];

		memset(io, 0, sizeof(*io));
		memset(req, 0, sizeof(*req));
		req->live = (int) pick(LIVE);
		req->block = (int) pick(BLOCKS);
		if (pick(12) == 0 || model.busy[req->live][req->block])
		{
			req->block = -1;
			io->kind = RBP_IO_PING;
			continue;
		}
		model.busy[req->live][req->block] = true;
		io->kind = pick(2) == 0 ? RBP_IO_READ : RBP_IO_WRITE;
		io->region = donor.live[req->live].number;
		io->grant = model.grants[req->live];
		io->len = pick(3) == 0 ? 8 * KB : 1 + pick(pick(4) == 0 ? BLOCK : 8 * KB);
		io->offset = (uint64_t) req->block * BLOCK + pick(BLOCK - io->len + 1);
		if (model.mr != NULL && pick(3) == 0)
		{
			io->buf = model.known + (size_t) (slot * PER_BATCH + i) * BLOCK;
			io->mr = model.mr;
		}
		else
			io->buf = req->buf = malloc(io->len);
		pattern(io->buf, io->len, pick(1u << 30));
		if (io->kind == RBP_IO_WRITE)
		{
			req->wrote = true;
			memcpy(model.bytes[req->live] + io->offset, io->buf, io->len);
		}
	}
	batch->n = n;
	(void) ops->submit(conn, batch->ios, n);
}

/* All of it is final.  Returns what is wrong with it, or NULL. */
static const char *
check_batch(Batch *batch, bool may_time_out)
{
	const char *wrong = NULL;

	for (int i = 0; i < batch->n; i++)
	{
		RbpIo	   *io = &batch->ios[i];
		Request    *req = &batch->req[i];

		if (io->status == RBP_INPROGRESS)
			wrong = "a request is not final";
		else if (io->status != RBP_OK && !model.faults &&
				 !(io->status == RBP_TIMEOUT && (may_time_out || model.holding)))
			wrong = rbp_status_text(io->status);
		if (req->block >= 0)
		{
			bool	   *unsure = &model.unsure[req->live][req->block];

			if (req->wrote)
				*unsure = io->status != RBP_OK || *unsure;
			else if (io->status == RBP_OK && !*unsure &&
					 memcmp(io->buf, model.bytes[req->live] + io->offset, io->len) != 0)
				wrong = "a read brought other bytes";
			model.busy[req->live][req->block] = false;
			if (io->buf != req->buf)
				pattern(io->buf, io->len, pick(1u << 30));
			free(req->buf);
		}
	}
	memset(batch, 0x5c, sizeof(*batch));
	batch->n = 0;
	return wrong;
}

/* What was unsure is what it is, once nothing can change it any more. */
static void
settle_unsure(void)
{
	for (int l = 0; l < LIVE; l++)
		for (int b = 0; b < BLOCKS; b++)
			if (model.unsure[l][b])
			{
				memcpy(model.bytes[l] + b * BLOCK, donor.live[l].mem + b * BLOCK, BLOCK);
				model.unsure[l][b] = false;
			}
}

static const char *
compare_memory(void)
{
	for (int l = 0; l < LIVE; l++)
		for (int b = 0; b < BLOCKS; b++)
			if (!model.unsure[l][b] &&
				memcmp(model.bytes[l] + b * BLOCK, donor.live[l].mem + b * BLOCK, BLOCK) != 0)
				return "the donor's memory has other bytes";
	return NULL;
}

static void
test_at_random(void)
{
	const char *wrong = NULL;
	uint32_t	rounds = 0;
	uint32_t	connections = 0;
	uint32_t	requests = 0;
	unsigned int first_seed = 4711;
	int64_t		until = in_ms(3000);

	model.known = malloc((size_t) BATCHES * PER_BATCH * BLOCK);
	while (wrong == NULL && (connections < 100 || rbp_now_ns() < until) &&
		   rbp_now_ns() < until + 20 * SECOND)
	{
		RbpConn    *conn;
		uint32_t	steps;
		bool		over = false;

		seed = first_seed + connections++;
		begin_test();
		memset(model.unsure, 0, sizeof(model.unsure));
		memset(model.busy, 0, sizeof(model.busy));
		memset(model.grants, 0, sizeof(model.grants));
		model.faults = model.holding = false;
		for (int l = 0; l < LIVE; l++)
			memcpy(model.bytes[l], donor.live[l].mem, REGION_BYTES);
		mock_lazy = pick(2) == 0;
		mock_poll_max = pick(2) == 0 ? 0 : 1 + (int) pick(4);
		mock_flush_polls = pick(2) == 0 ? 0 : (int) pick(20);
		mock_receives_first = pick(2) == 0;
		hold_chance = pick(2) == 0 ? 0 : pick(95);
		conn = connected();
		mock_hooks.on_work = hold_at_random;
		model.mr = NULL;
		if (pick(2) == 0 &&
			ops->register_memory(conn, model.known, (size_t) BATCHES * PER_BATCH * BLOCK,
								 &model.mr) != RBP_OK)
			abort();

		steps = 10 + pick(60);
		while (wrong == NULL && steps-- > 0 && !over)
		{
			Batch	   *batch = &model.batches[pick(BATCHES)];

			rounds++;
			if (batch->n == 0)
			{
				submit_at_random(conn, batch);
				requests += (uint32_t) batch->n;
				continue;
			}
			switch (pick(24))
			{
				case 0:			/* a wait that is too short */
					(void) ops->wait(conn, batch->ios, batch->n, pick(2) == 0 ? 0 : in_ms(1));
					/* zero copy: the connection may be over */
					model.faults = true;
					wrong = check_batch(batch, true);
					break;
				case 1:			/* the donor grants a region anew */
					{
						int			live = (int) pick(LIVE);
						bool		used = false;

						for (int b = 0; b < BLOCKS; b++)
							used |= model.busy[live][b] || model.unsure[live][b];
						if (used)
							break;
						grant(live);
						model.grants[live]++;
						break;
					}
				case 2:			/* holds all for a time */
					donor.hold = !donor.hold;
					model.holding = true;
					break;
				case 3:			/* only part of it is waited for */
					if (!donor.hold)
						(void) ops->wait(conn, batch->ios, 1 + (int) pick((uint32_t) batch->n),
										 in_ms(5000));
					break;
				case 4:			/* the end, in one of several ways */
					if (pick(4) != 0)
						break;
					model.faults = true;
					if (pick(2) == 0)
					{
						donor.fail_nth = 1 + pick(30);
						donor.fail_status = pick(2) == 0 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_RETRY_EXC_ERR;
					}
					else
						mock_event(mock_id(), pick(2) == 0 ? RDMA_CM_EVENT_DISCONNECTED
								   : RDMA_CM_EVENT_DEVICE_REMOVAL, 0, NULL, 0, 0);
					break;
				default:
					if (donor.hold)
					{
						donor.hold = false;
						break;
					}
					(void) ops->wait(conn, batch->ios, batch->n, in_ms(5000));
					wrong = check_batch(batch, false);
					break;
			}
		}

		/* the rest: waited for, or left */
		donor.hold = false;
		if (pick(3) != 0)
			for (int i = 0; i < BATCHES && wrong == NULL; i++)
				if (model.batches[i].n > 0)
				{
					(void) ops->wait(conn, model.batches[i].ios, model.batches[i].n, in_ms(5000));
					wrong = check_batch(&model.batches[i], false);
				}
		for (int i = 0; i < BATCHES; i++)
		{
			Batch	   *batch = &model.batches[i];

			/* zero copy with nobody to wait for it: give it up first */
			if (batch->n > 0 && model.mr != NULL)
				(void) ops->wait(conn, batch->ios, batch->n, 0);
		}
		if (model.mr != NULL)
			ops->deregister_memory(conn, model.mr);
		ops->close(conn);
		for (int i = 0; i < BATCHES; i++)
		{
			Batch	   *batch = &model.batches[i];

			for (int j = 0; j < batch->n; j++)
			{
				if (batch->req[j].wrote)
					model.unsure[batch->req[j].live][batch->req[j].block] = true;
				free(batch->req[j].buf);
			}
			memset(batch, 0x5c, sizeof(*batch));
			batch->n = 0;
		}
		if (wrong == NULL)
			wrong = compare_memory();
		settle_unsure();
		if (!finish("requests at random") && wrong == NULL)
			wrong = "something is left or a rule is broken";
	}
	if (wrong != NULL)
		diag("seed %u: %s", first_seed + connections - 1, wrong);
	ok(wrong == NULL, "requests at random");
	diag("%u connections, %u steps, %u requests", connections, rounds, requests);
	free(model.known);
}

/*
 * ---- threads ----------------------------------------------------------------------------------
 */
static uint8_t *shared;			/* memory that all register */

static void *
thread_main(void *arg)
{
	uint8_t    *buf = malloc(16 * 8 * KB);
	intptr_t	me = (intptr_t) arg;
	intptr_t	bad = 0;

	for (int round = 0; round < 40; round++)
	{
		RbpConn    *conn = NULL;
		RbpMr	   *mr = NULL;
		RbpIo		ios[16];

		if (ops->connect(&ep, &cred, &conn) != RBP_OK ||
			ops->connect_wait(conn, in_ms(5000)) != RBP_OK)
		{
			ops->close(conn);
			bad++;
			continue;
		}
		if (ops->register_memory(conn, shared, LIVE * 8 * KB, &mr) != RBP_OK)
			bad++;
		for (int i = 0; i < 16; i++)
		{
			ios[i] = make_io(RBP_IO_READ, i % LIVE, (uint64_t) i * 8 * KB,
							 round % 2 == 0 ? 8 * KB : 100, buf + i * 8 * KB);
			if (i == 3)
				ios[i] = make_ping();
			else if (i == 4)
			{
				ios[i].buf = shared + me * 8 * KB;
				ios[i].mr = mr;
			}
		}
		if (run(conn, ios, 16, 5000) != RBP_OK)
			bad++;
		for (int i = 0; i < 16; i++)
			if (i != 3 && memcmp(ios[i].buf, donor.live[i % LIVE].mem + ios[i].offset,
								 ios[i].len) != 0)
				bad++;
		if (mr != NULL)
			ops->deregister_memory(conn, mr);
		ops->close(conn);
	}
	free(buf);
	return (void *) bad;
}

static void
test_threads(void)
{
	pthread_t	threads[LIVE];
	intptr_t	bad = 0;

	begin_test();
	shared = malloc(LIVE * 8 * KB);
	for (intptr_t i = 0; i < LIVE; i++)
		if (pthread_create(&threads[i], NULL, thread_main, (void *) i) != 0)
			abort();
	for (int i = 0; i < LIVE; i++)
	{
		void	   *result;

		pthread_join(threads[i], &result);
		bad += (intptr_t) result;
	}
	is_u64((uint64_t) bad, 0, "connections of several threads do not meet");
	free(shared);
	finish_ok("threads");
}

/*
 * ---- processes --------------------------------------------------------------------------------
 */
static bool
child_may_connect(void)
{
	int			status = 0;
	pid_t		pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0)
	{
		RbpConn    *conn = NULL;
		RbpStatus	result = ops->connect(&ep, &cred, &conn);

		_exit(result == RBP_OK ? 1 : result == RBP_INVALID && conn == NULL ? 2 : 3);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) ||
		WEXITSTATUS(status) < 1 || WEXITSTATUS(status) > 2)
	{
		diag("the child ends with %d", status);
		return false;
	}
	return WEXITSTATUS(status) == 1;
}

static void
test_fork(void)
{
	RbpConn    *conn;

	begin_test();
	ok(child_may_connect(), "a child of who never connected may connect");
	conn = connected();
	ok(!child_may_connect(), "a child that inherits a connection may not");
	ok(alive(conn), "the parent's is not hurt");
	ops->close(conn);
	ok(!child_may_connect(), "nor one whose parent had one");
	conn = connected();
	ok(alive(conn), "the parent may connect again");
	ops->close(conn);
	finish_ok("fork");
}

int
main(void)
{
	test_fork();				/* first: it is about who never connected */
	test_phases();
	test_handshake();
	test_connect_failures();
	test_sizes();
	test_invalid();
	test_doorbells();
	test_large_batches();
	test_overlapping_batches();
	test_table();
	test_mixed_lookups();
	test_errors();
	test_news();
	test_timeouts();
	test_pings();
	test_failing_calls();
	test_interrupted();
	test_registrations();
	test_close_anytime();
	test_at_random();
	test_threads();
	return done_testing();
}
