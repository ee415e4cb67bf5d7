/*-------------------------------------------------------------------------
 *
 * test_verbs_connect.c
 *	  The verbs transport: connecting, step by step, and what connections share.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/status.h"
#include "transport/peer.h"
#include "transport/transport.h"
#include "wire/wire.h"
#include "mock_internal.h"
#include "verbs_donor.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* Answer until it waits for the answer of a phase. */
static void
go_to_phase(RbpConn *conn, Phase phase)
{
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
	go_to_phase(conn, phase);
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
	ok(ops->connect(&ep, &cred, &conn) == RBP_OK && conn != NULL && conn->ops == &rbp_verbs_ops,
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
	RbpDeviceConfig config = RBP_DEVICE_CONFIG_DEFAULT;
	RbpEndpoint other = ep;
	RbpConn    *conn = NULL;

	begin_test();
	conn = connected();
	ok(donor.hello_ok, "the donor gets the lease's digest and a MAC that binds address and queue pair");
	is_u64(donor.param.retry_count, 6, "lost packets are sent again six times");
	is_u64(donor.param.rnr_retry_count, 6, "and refused ones");
	is_u64(donor.param.initiator_depth, 16, "16 reads at once");
	ok(donor.receives_at_connect >= RBP_VERBS_PINGS, "there are receives for the answers to pings");
	is_u64((uint64_t) mock_ack_timeout(mock_id()), 10, "the ack timeout is the configured one");
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
	rbp_verbs_configure(&(RbpDeviceConfig) RBP_DEVICE_CONFIG_DEFAULT);
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
		{IN_ADDR, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV, -1, RBP_NOROUTE},
		{IN_ADDR, RDMA_CM_EVENT_ADDR_ERROR, -ENETUNREACH, -1, RBP_NOROUTE},
		{IN_ADDR, RDMA_CM_EVENT_ADDR_ERROR, -EIO, -1, RBP_CONNLOST},
		{IN_ADDR, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, -1, RBP_CONNLOST},
		{IN_ROUTE, RDMA_CM_EVENT_ROUTE_ERROR, -EHOSTUNREACH, -1, RBP_NOROUTE},
		{IN_ROUTE, RDMA_CM_EVENT_ROUTE_ERROR, -ENOMEM, -1, RBP_NOMEM},
		{IN_ROUTE, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, -1, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_UNREACHABLE, -ECONNRESET, -1, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_CONNECT_ERROR, -EIO, -1, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, -1, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_DISCONNECTED, 0, -1, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, MOCK_REJECTED_NO_SERVICE, -1, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, MOCK_REJECTED_NO_SERVICE, RBP_WIRE_DENIED, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, 3, -1, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, MOCK_REJECTED_BY_PEER, -1, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, MOCK_REJECTED_BY_PEER, -2, RBP_CONNLOST},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, MOCK_REJECTED_BY_PEER, RBP_WIRE_DENIED, RBP_DENIED},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, MOCK_REJECTED_BY_PEER, RBP_WIRE_BUSY, RBP_BUSY},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, MOCK_REJECTED_BY_PEER, RBP_WIRE_VERSION_MISMATCH, RBP_OTHER_VERSION},
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

static void
no_mac(RbpWireVerbsWelcome *welcome)
{
	memset(welcome->mac, 0, sizeof(welcome->mac));
}

static void
last_bit(RbpWireVerbsWelcome *welcome)
{
	welcome->mac[RBP_MAC_LEN - 1] ^= 0x80;
}

static void
regions(RbpWireVerbsWelcome *welcome)
{
	welcome->regions++;
}

static void
region_size(RbpWireVerbsWelcome *welcome)
{
	welcome->region_size *= 2;
}

static void
table(RbpWireVerbsWelcome *welcome)
{
	welcome->table_address += RBP_VERBS_ENTRY_SIZE;
}

static void
table_key(RbpWireVerbsWelcome *welcome)
{
	welcome->table_key ^= 1;
}

/* Keep the first one's, and repeat it. */
static void
replay(RbpWireVerbsWelcome *welcome)
{
	static RbpWireVerbsWelcome first;

	if (first.regions == 0)
		first = *welcome;
	memcpy(welcome->mac, first.mac, sizeof(first.mac));
}

/* A donor that does not know the key, or whose words were changed on the way. */
static void
test_proof(void)
{
	static const struct
	{
		const char *what;
		void		(*tamper) (RbpWireVerbsWelcome *welcome);
		RbpStatus	expected;
	}			cases[] = {
		{"no MAC", no_mac, RBP_UNPROVEN},
		{"a wrong MAC", last_bit, RBP_UNPROVEN},
		{"another number of regions", regions, RBP_UNPROVEN},
		{"another size of regions", region_size, RBP_UNPROVEN},
		{"another table", table, RBP_UNPROVEN},
		{"another key of the table", table_key, RBP_UNPROVEN},
		{"the first of two", replay, RBP_OK},
		{"the first one's MAC again", replay, RBP_UNPROVEN},
		{"nothing wrong", NULL, RBP_OK}
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		RbpConn    *conn = NULL;
		RbpStatus	status;

		begin_test();
		donor.tamper = cases[i].tamper;
		status = ops->connect(&ep, &cred, &conn);
		if (status == RBP_OK)
			status = ops->connect_wait(conn, in_ms(2000));
		is_u64(status, cases[i].expected, "a REP with %s", cases[i].what);
		ops->close(conn);
		finish_ok("a REP with %s", cases[i].what);
	}
}

/*
 * ---- connections that are begun again --------------------------------------------------
 */
#define TRIES_MAX		3
#define REJECTED_TIMEOUT 4
#define REJECTED_STALE	10

/* Poll until that many requests have come to the donor. */
static RbpStatus
poll_to_request(RbpConn *conn, uint32_t n)
{
	RbpStatus	status = RBP_INPROGRESS;

	while (status == RBP_INPROGRESS && donor.requests < n)
		status = poll_connect(conn);
	return status;
}

/* What says that a message is lost: another id, and another, and no more. */
static void
test_begun_again(void)
{
	static const struct
	{
		Phase		phase;
		enum rdma_cm_event_type event;
		int			status;
	}			cases[] = {
		{IN_ADDR, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT},
		{IN_ROUTE, RDMA_CM_EVENT_ROUTE_ERROR, -ETIMEDOUT},
		{IN_CONNECT, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, REJECTED_STALE},
		{IN_CONNECT, RDMA_CM_EVENT_REJECTED, REJECTED_TIMEOUT},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		RbpConn    *conn;
		RbpStatus	status = RBP_INPROGRESS;
		uint32_t	numbers[TRIES_MAX];
		char		what[100];

		begin_test();
		conn = in_phase(cases[i].phase);
		snprintf(what, sizeof(what), "%s %d", rdma_event_str(cases[i].event), cases[i].status);
		for (int try = 0; try < TRIES_MAX; try++)
		{
			numbers[try] = mock_qp() != NULL ? mock_qp()->qp_num : 0;
			is_u64(mock_calls[MOCK_CREATE_ID], (uint64_t) try + 1, "%s: id %d", what, try + 1);
			mock_event(mock_id(), cases[i].event, cases[i].status, NULL, 0, 0);
			status = poll_connect(conn);
			if (try + 1 == TRIES_MAX)
				break;
			ok(status == RBP_INPROGRESS, "%s: it is begun again", what);
			go_to_phase(conn, cases[i].phase);
		}
		ok(status == RBP_TIMEOUT && ops->connect_wait(conn, in_ms(1)) == RBP_TIMEOUT,
		   "%s: %d times", what, TRIES_MAX);
		is_u64(mock_calls[MOCK_CREATE_ID], TRIES_MAX, "%s: and no more", what);
		ok(cases[i].phase != IN_CONNECT ||
		   (numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != 0),
		   "%s: each with a queue pair of its own", what);
		ops->close(conn);
		finish_ok("%s", what);
	}
}

static void
test_lost_messages(void)
{
	RbpConn    *conn = NULL;
	struct ibv_qp *qp;

	/* the queue pair's number had another connection, which the donor keeps */
	begin_test();
	donor.answer = RDMA_CM_EVENT_REJECTED;
	donor.answer_status = REJECTED_STALE;
	donor.silent = true;
	ok(ops->connect(&ep, &cred, &conn) == RBP_OK && poll_to_request(conn, 1) == RBP_INPROGRESS,
	   "a request");
	qp = mock_qp();
	{
		uint32_t	number = qp->qp_num;

		answer_connect(mock_id());
		donor.answer = RDMA_CM_EVENT_ESTABLISHED;
		donor.answer_status = 0;
		donor.silent = false;
		ok(ops->connect_wait(conn, in_ms(10000)) == RBP_OK && donor.requests == 2,
		   "a stale one: connected by another request");
		ok(mock_qp()->qp_num != number && donor.hello_ok, "which proves another queue pair");
	}
	ok(alive(conn), "and alive");
	ops->close(conn);
	finish_ok("stale");

	/* the first request, or its answer, is lost */
	begin_test();
	donor.silent = true;
	ok(ops->connect(&ep, &cred, &conn) == RBP_OK && poll_to_request(conn, 1) == RBP_INPROGRESS,
	   "a request that is lost");
	donor.silent = false;
	ok(ops->connect_wait(conn, in_ms(10000)) == RBP_OK && donor.requests == 2,
	   "connected by another one");
	is_u64(mock_calls[MOCK_CREATE_QP], 2, "with another queue pair");
	ok(donor.hello_ok && alive(conn), "and alive");
	ops->close(conn);
	finish_ok("a lost request");

	/* the answer comes when its id has been given up */
	begin_test();
	donor.answer_delay = 900 * MS;
	ok(ops->connect(&ep, &cred, &conn) == RBP_OK && poll_to_request(conn, 1) == RBP_INPROGRESS,
	   "a request whose answer is late");
	donor.silent = true;
	ok(poll_to_request(conn, 2) == RBP_INPROGRESS, "another one");
	ok(ops->connect_wait(conn, in_ms(300)) == RBP_INPROGRESS, "does not take the first one's answer for its own");
	donor.answer_delay = 0;
	answer_connect(mock_id());
	ok(ops->connect_wait(conn, in_ms(10000)) == RBP_OK && donor.requests == 2 && alive(conn),
	   "but its own");
	ops->close(conn);
	finish_ok("a late answer");

	/* more time than the first id has, but not than the second */
	begin_test();
	donor.answer_delay = 1200 * MS;
	ok(ops->connect(&ep, &cred, &conn) == RBP_OK &&
	   ops->connect_wait(conn, in_ms(10000)) == RBP_OK && donor.requests >= 2 && alive(conn),
	   "a donor that answers slowly is given more time by the next ids");
	ops->close(conn);
	finish_ok("slow answers");

	/* all are */
	begin_test();
	donor.silent = true;
	ok(ops->connect(&ep, &cred, &conn) == RBP_OK &&
	   ops->connect_wait(conn, in_ms(60000)) == RBP_TIMEOUT, "all requests are lost: timed out");
	is_u64(donor.requests, TRIES_MAX, "after three of them");
	ok(ops->connect_wait(conn, 0) == RBP_TIMEOUT, "and that is final");
	ops->close(conn);
	finish_ok("lost requests");
}

/* A device that takes its time with a queue pair, which nothing can bound. */
static void
test_slow_device(void)
{
	useconds_t	hold_us = 300000;
	RbpConn    *conn = NULL;
	RbpStatus	status;
	pthread_t	thread;

	begin_test();
	atomic_store(&mock_hold_create_qp, true);
	if (ops->connect(&ep, &cred, &conn) != RBP_OK ||
		pthread_create(&thread, NULL, mock_release_create_qp, &hold_us) != 0)
		abort();
	do
		status = ops->connect_wait(conn, in_ms(10));
	while (status == RBP_INPROGRESS);
	ok(status == RBP_OK, "a queue pair that takes longer than a wait may: connected");
	ok(donor.requests == 1 && mock_calls[MOCK_CREATE_QP] == 1, "with the first request, which has its time from then on");
	ok(donor.hello_ok && alive(conn), "and alive");
	pthread_join(thread, NULL);
	ops->close(conn);
	finish_ok("a slow device");
}

/*
 * ---- what a process lacks, and devices that are not to be used ---------------------------
 */
static void
test_local_failures(void)
{
	static const struct
	{
		MockCall	call;
		int			error;
		RbpStatus	expected;
	}			cases[] = {
		{MOCK_CREATE_CHANNEL, EMFILE, RBP_NOMEM},
		{MOCK_CREATE_CHANNEL, ENODEV, RBP_NOROUTE},
		{MOCK_CREATE_ID, EMFILE, RBP_NOMEM},
		{MOCK_RESOLVE_ADDR, ENETUNREACH, RBP_NOROUTE},
		{MOCK_RESOLVE_ADDR, ENODEV, RBP_NOROUTE},
		{MOCK_QUERY_DEVICE, EIO, RBP_NOMEM},
		{MOCK_REG_MR, ENOMEM, RBP_NOMEM},
		{MOCK_CREATE_CQ, ENOMEM, RBP_NOMEM},
		{MOCK_CREATE_QP, ENOMEM, RBP_NOMEM},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		RbpConn    *conn = NULL;
		RbpStatus	status;

		begin_test();
		mock_fail(cases[i].call, 1, cases[i].error);
		status = ops->connect(&ep, &cred, &conn);
		if (status == RBP_OK)
			status = ops->connect_wait(conn, in_ms(10000));
		ok(status == cases[i].expected && donor.requests == 0, "%s fails (%d): %s",
		   mock_call_name(cases[i].call), cases[i].error, rbp_status_text(cases[i].expected));
		ok(mock_calls[MOCK_CREATE_ID] <= 1, "which is not tried again");
		ops->close(conn);
		finish_ok("%s fails", mock_call_name(cases[i].call));
	}
}

/* Connect with that configuration. */
static RbpStatus
connect_with(const RbpDeviceConfig *config)
{
	RbpConn    *conn = NULL;
	RbpStatus	status;

	rbp_verbs_configure(config);
	status = ops->connect(&ep, &cred, &conn);
	if (status == RBP_OK)
		status = ops->connect_wait(conn, in_ms(10000));
	if (status == RBP_OK && !alive(conn))
		status = RBP_CONNLOST;
	ops->close(conn);
	rbp_verbs_configure(&(RbpDeviceConfig) RBP_DEVICE_CONFIG_DEFAULT);
	return status;
}

static bool bound;				/* an address was, before it was resolved */

static bool
look_at_source(struct rdma_cm_id *id)
{
	bound = id->route.addr.src_addr.sa_family != 0;
	return true;
}

static void
test_devices(void)
{
	RbpDeviceConfig config = RBP_DEVICE_CONFIG_DEFAULT;
	struct ibv_device *device;

	begin_test();
	device = &mock_devices[0].device;
	device->transport_type = IBV_TRANSPORT_UNSPECIFIED;
	ok(connect_with(&config) == RBP_BAD_DEVICE, "a device that is neither InfiniBand nor RoCE");
	is_u64(mock_calls[MOCK_CREATE_QP], 0, "gets no queue pair");
	device->transport_type = IBV_TRANSPORT_IB;

	/* the route decides, and is looked at */
	mock_hooks.on_resolve_addr = look_at_source;
	strcpy(config.device, "mock1");
	ok(connect_with(&config) == RBP_OTHER_DEVICE && !bound, "a route over another device than the configured one");
	strcpy(config.device, "mock0");
	ok(connect_with(&config) == RBP_OK && !bound, "and over that");
	config.port = 2;
	ok(connect_with(&config) == RBP_OTHER_DEVICE && !bound, "but over another port of it");
	config.port = 1;
	ok(connect_with(&config) == RBP_OK && !bound, "and over that");
	config.gid_index = 70;
	ok(connect_with(&config) == RBP_OTHER_DEVICE, "a GID that is not there");
	finish_ok("devices");

	begin_test();
	mock_limits.max_qp_init_rd_atom = 1;
	{
		static uint8_t buf[16][8 * KB];
		RbpConn    *conn = connected();
		RbpIo		ios[16];
		bool		same = true;

		is_u64(donor.param.initiator_depth, 1, "a device with one read at a time");
		for (int i = 0; i < 16; i++)
			ios[i] = make_io(RBP_IO_READ, i % LIVE, (uint64_t) i * 8 * KB, 8 * KB, buf[i]);
		ok(run(conn, ios, 16, 10000) == RBP_OK, "gets batches of them all the same");
		for (int i = 0; i < 16; i++)
			same &= memcmp(buf[i], donor.live[i % LIVE].mem + (size_t) i * 8 * KB, 8 * KB) == 0;
		ok(same, "and reads what is there");
		ops->close(conn);
	}
	finish_ok("a read depth of 1");
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
	test_proof();
	test_begun_again();
	test_lost_messages();
	test_slow_device();
	test_local_failures();
	test_devices();
	test_registrations();
	test_threads();
	return done_testing();
}
