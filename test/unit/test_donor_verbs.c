/*-------------------------------------------------------------------------
 *
 * test_donor_verbs.c
 *	  The donor's RDMA service, with its leases, on a simulated card: who is
 *	  let in, which keys there are and when they are dead, and what is left.
 *
 * Clients are the verbs transport itself, and one by hand, which can lie.  The
 * service's sources are included whole, so that its allocations can be made to
 * fail, and so that its clock can be put forward.  Its thread runs all the
 * time: what it does is waited for.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/log.h"
#include "broker/donor/lease.h"
#include "broker/donor/memory.h"
#include "broker/donor/verbs.h"
#include "common/clock.h"
#include "common/status.h"
#include "transport/peer.h"
#include "transport/transport.h"
#include "wire/wire.h"
#include "mock_verbs.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static int64_t shifted_now(void);

#define malloc			mock_malloc
#define calloc			mock_calloc
#define aligned_alloc	mock_aligned_alloc
#define rbp_boottime_ns	shifted_now
#include "broker/donor/proofs.c"
#include "broker/donor/verbs_thread.c"
#include "broker/donor/verbs_conn.c"
#include "broker/donor/verbs_device.c"
#include "broker/donor/verbs_mr.c"
#include "broker/donor/verbs_ping.c"
#undef malloc
#undef calloc
#undef aligned_alloc
#undef rbp_boottime_ns

#include "tap.h"

#define NREGIONS		12
#define REGION_BYTES	65536
#define HOUR			INT64_C(3600000000000)
#define SECOND			INT64_C(1000000000)
#define MS				INT64_C(1000000)
#define PLANS			8
#define LEASE_CONNECTIONS	100
#define DENIALS				1000

extern const char *rbp_verbs_sysfs;

static const RbpTransportOps *const ops = &rbp_transport_verbs;
static RbpEndpoint ep = {
	.donor = "d1",
	.transports = RBP_TRANSPORT_VERBS,
	.rdma_host = "10.0.0.1"
};

/*
 * ---- time -------------------------------------------------------------------------
 */
static atomic_llong shift;

static int64_t
shifted_now(void)
{
	return rbp_boottime_ns() + atomic_load(&shift);
}

/* Let the service's clock jump, and have it look. */
static void
pass(int64_t ns)
{
	atomic_fetch_add(&shift, ns);
	donor_verbs_wake();
}

/* Until the condition holds, or five seconds. */
#define await(condition) __extension__ ({ \
		int64_t		until_ = rbp_now_ns() + 5 * SECOND; \
		bool		holds_; \
		\
		while (!(holds_ = (condition)) && rbp_now_ns() < until_) \
			usleep(500); \
		holds_; })

/*
 * ---- memory -----------------------------------------------------------------------
 */
RbpDonorRegion *donor_regions;
uint32_t	donor_nregions;
uint64_t	donor_region_size;

static atomic_uint wrongs;
static atomic_uint given_up;	/* regions whose memory was replaced */
static uint8_t *graveyard[1000];	/* what a key may still lead to */

__attribute__((format(printf, 1, 2))) static void
wrong(const char *fmt,...)
{
	char		text[200];
	va_list		args;

	if (atomic_fetch_add(&wrongs, 1) >= 10)
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	diag("%s", text);
}

static uint8_t *
new_memory(void)
{
	uint8_t    *p = aligned_alloc(4096, REGION_BYTES);

	if (p == NULL)
		abort();
	memset(p, 0, REGION_BYTES);
	return p;
}

void
donor_memory_release(RbpDonorRegion *region)
{
	uint32_t	n;

	if (!atomic_load(&region->exposed))
		wrong("memory is given back that nobody mapped");
	n = atomic_fetch_add(&given_up, 1);
	if (n >= sizeof(graveyard) / sizeof(graveyard[0]))
		abort();
	graveyard[n] = region->base;
	region->base = new_memory();
	atomic_store(&region->exposed, false);
}

bool
donor_memory_renew(RbpDonorRegion *region)
{
	if (atomic_load(&region->exposed))
		donor_memory_release(region);
	if (mock_exposed(region->base, REGION_BYTES))
		wrong("region %u is reused while there is a key to it",
			  (uint32_t) (region - donor_regions));
	memset(region->base, 0, REGION_BYTES);
	return true;
}

bool
donor_memory_for_each(bool (*work) (uint32_t region, void *arg), void *arg)
{
	for (uint32_t i = 0; i < donor_nregions; i++)
		if (!work(i, arg))
			return false;
	return true;
}

uint64_t
donor_memory_available(void)
{
	return UINT64_MAX;
}

/*
 * ---- leases -------------------------------------------------------------------------
 */
typedef struct Plan
{
	bool		live;
	RbpCredentials cred;
	uint32_t	mask;
	uint32_t	grants[NREGIONS];
	int64_t		deadline_ns;
	uint8_t		stamp;			/* what its clients write */
} Plan;

static pthread_mutex_t plan_lock = PTHREAD_MUTEX_INITIALIZER;
static Plan plans[PLANS];
static uint32_t last_serial;

/* A lease with these regions; it has to be free. */
static Plan *
plan_new(uint32_t mask)
{
	Plan	   *plan = plans;

	while (plan->live)
		plan++;
	pthread_mutex_lock(&plan_lock);
	memset(plan, 0, sizeof(*plan));
	plan->live = true;
	plan->stamp = (uint8_t) (1 + last_serial % 250);
	snprintf(plan->cred.lease, sizeof(plan->cred.lease), "lease-%u", ++last_serial);
	memset(plan->cred.secret, (int) last_serial, RBP_SECRET_LEN);
	plan->mask = mask;
	plan->deadline_ns = rbp_boottime_ns() + 10000 * HOUR;
	pthread_mutex_unlock(&plan_lock);
	return plan;
}

/* The broker's word. */
static void
apply(void)
{
	donor_apply_begin();
	for (int p = 0; p < PLANS; p++)
	{
		json_t	   *regions;
		RbpDonorDesired desired = {.id = plans[p].cred.lease,.client = plans[p].cred.lease};

		if (!plans[p].live)
			continue;
		regions = json_array();
		for (uint32_t i = 0; i < NREGIONS; i++)
			if (plans[p].mask & 1u << i)
				json_array_append_new(regions, json_integer(i));
		desired.regions = regions;
		if (!rbp_donor_key(plans[p].cred.secret, ep.donor, desired.key))
			abort();
		donor_apply_lease(&desired, plans[p].deadline_ns);
		json_decref(regions);
	}
	donor_apply_end();
}

/* Until regions that change hands are where they belong. */
static void
apply_all(void)
{
	apply();
	if (!await(!donor_regions_in(DONOR_REGION_DIRTY)))
		wrong("regions do not get clean");
	apply();
}

static void
plan_end(Plan *plan)
{
	plan->live = false;
	apply();
}

static void
say(void)
{
	RbpDonorReport report;

	donor_report_get(&report);
	donor_report_acknowledged(&report);
	donor_report_free(&report);
}

/*
 * ---- the transport as a client ----------------------------------------------------------
 */
static int64_t
in_ms(int64_t ms)
{
	return rbp_now_ns() + ms * MS;
}

static RbpConn *
open_conn(const RbpCredentials *cred, RbpStatus *status)
{
	RbpConn    *conn = NULL;

	*status = ops->connect(&ep, cred, &conn);
	if (*status == RBP_OK)
		*status = ops->connect_wait(conn, in_ms(5000));
	if (*status != RBP_OK)
	{
		ops->close(conn);
		conn = NULL;
	}
	return conn;
}

/* A region without a key yet is asked for again. */
static RbpStatus
do_io(RbpConn *conn, RbpIoKind kind, uint32_t region, uint32_t grant,
	  void *buf, uint32_t len)
{
	int64_t		until = in_ms(5000);
	RbpStatus	status;

	do
	{
		RbpIo		io = {
			.kind = kind,.region = region,.grant = grant,
			.offset = 4096,.len = len,.buf = buf
		};

		(void) ops->submit(conn, &io, 1);
		status = ops->wait(conn, &io, 1, in_ms(5000));
		if (status == RBP_CANCELED)
			usleep(1000);
	} while (status == RBP_CANCELED && rbp_now_ns() < until);
	return status;
}

static bool
can_connect(const Plan *plan)
{
	RbpStatus	status;
	RbpConn    *conn = open_conn(&plan->cred, &status);

	ops->close(conn);
	if (status != RBP_OK)
		diag("cannot connect: %s", rbp_status_text(status));
	return status == RBP_OK;
}

/*
 * ---- a client by hand ---------------------------------------------------------------------
 */
typedef struct Raw
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t		buf[8192];
	RbpWireVerbsWelcome welcome;
	bool		has_welcome;
	int			reject;
} Raw;

static struct rdma_cm_event *
raw_event(Raw *raw, int timeout_ms)
{
	struct pollfd pfd = {.fd = raw->channel->fd,.events = POLLIN};
	struct rdma_cm_event *event;

	if (poll(&pfd, 1, timeout_ms) != 1 ||
		rdma_get_cm_event(raw->channel, &event) != 0)
		return NULL;
	return event;
}

/* The next event, or -1 if none comes in time. */
static int
raw_next(Raw *raw, int timeout_ms)
{
	struct rdma_cm_event *event = raw_event(raw, timeout_ms);
	int			type = -1;

	if (event != NULL)
	{
		type = (int) event->event;
		if (type == RDMA_CM_EVENT_ESTABLISHED || type == RDMA_CM_EVENT_REJECTED)
		{
			raw->reject = event->status;
			raw->has_welcome = rbp_wire_get_verbs_welcome(event->param.conn.private_data,
														  event->param.conn.private_data_len,
														  &raw->welcome);
		}
		rdma_ack_cm_event(event);
	}
	return type;
}

/* Up to a queue pair. */
static Raw *
raw_new(void)
{
	Raw		   *raw = calloc(1, sizeof(*raw));
	struct sockaddr_in addr = {.sin_family = AF_INET,.sin_port = htons(ep.rdma_port)};
	struct ibv_qp_init_attr attr = {
		.cap = {.max_send_wr = 16,.max_recv_wr = 16,.max_send_sge = 1,.max_recv_sge = 1},
		.qp_type = IBV_QPT_RC
	};

	inet_pton(AF_INET, ep.rdma_host, &addr.sin_addr);
	raw->channel = rdma_create_event_channel();
	if (rdma_create_id(raw->channel, &raw->id, raw, RDMA_PS_TCP) != 0 ||
		rdma_resolve_addr(raw->id, NULL, (struct sockaddr *) &addr, 1000) != 0 ||
		raw_next(raw, 5000) != RDMA_CM_EVENT_ADDR_RESOLVED ||
		rdma_resolve_route(raw->id, 1000) != 0 ||
		raw_next(raw, 5000) != RDMA_CM_EVENT_ROUTE_RESOLVED)
		abort();
	raw->pd = ibv_alloc_pd(raw->id->verbs);
	raw->cq = ibv_create_cq(raw->id->verbs, 32, NULL, NULL, 0);
	raw->mr = ibv_reg_mr(raw->pd, raw->buf, sizeof(raw->buf), IBV_ACCESS_LOCAL_WRITE);
	attr.send_cq = attr.recv_cq = raw->cq;
	if (rdma_create_qp(raw->id, raw->pd, &attr) != 0)
		abort();
	return raw;
}

static void
raw_free(Raw *raw)
{
	rdma_destroy_qp(raw->id);
	ibv_destroy_cq(raw->cq);
	ibv_dereg_mr(raw->mr);
	ibv_dealloc_pd(raw->pd);
	rdma_destroy_id(raw->id);
	rdma_destroy_event_channel(raw->channel);
	free(raw);
}

/* An honest hello to that donor */
static void
raw_hello(Raw *raw, const RbpCredentials *cred, const char *donor, RbpWireVerbsHello *hello)
{
	uint8_t		key[RBP_SECRET_LEN];
	uint8_t		mac[RBP_MAC_LEN];

	hello->version = RBP_WIRE_VERSION;
	memset(hello->nonce, 0x42, sizeof(hello->nonce));
	if (!rbp_verbs_lease_digest(cred->lease, hello->digest) ||
		!rbp_donor_key(cred->secret, donor, key) ||
		!rbp_verbs_mac(key, hello, rdma_get_local_addr(raw->id), raw->id->qp->qp_num, NULL, mac))
		abort();
	memcpy(hello->mac, mac, sizeof(hello->mac));
}

static void
raw_request(Raw *raw, const void *data, size_t len, uint8_t reads)
{
	struct rdma_conn_param param = {
		.private_data = data,
		.private_data_len = (uint8_t) len,
		.retry_count = 6,
		.rnr_retry_count = 6,
		.initiator_depth = reads
	};

	if (rdma_connect(raw->id, &param) != 0)
		abort();
}

static void
raw_ask(Raw *raw, const RbpWireVerbsHello *hello)
{
	uint8_t		message[RBP_VERBS_HELLO_SIZE];

	rbp_wire_put_verbs_hello(message, hello);
	raw_request(raw, message, sizeof(message), 16);
}

/* A client that has asked honestly, and waits for the answer. */
static Raw *
raw_asking(const RbpCredentials *cred)
{
	Raw		   *raw = raw_new();
	RbpWireVerbsHello hello;

	raw_hello(raw, cred, ep.donor, &hello);
	raw_ask(raw, &hello);
	return raw;
}

/* Until mock_hold_create_qp is false: the donor's queue pairs, not its clients'. */
static void
hold_queue_pairs(void)
{
	mock_hold_channel = events;
	atomic_store(&mock_hold_create_qp, true);
}

static Raw *
raw_connected(const RbpCredentials *cred)
{
	Raw		   *raw = raw_asking(cred);

	if (raw_next(raw, 5000) != RDMA_CM_EVENT_ESTABLISHED || !raw->has_welcome)
	{
		printf("Bail out! the donor does not let a client in\n");
		exit(1);
	}
	return raw;
}

/* One piece of work.  Returns how it completed; -1: not at all. */
static int
raw_work(Raw *raw, enum ibv_wr_opcode opcode, uint64_t addr, uint32_t key,
		 uint32_t len)
{
	struct ibv_sge sge = {.addr = (uintptr_t) raw->buf,.length = len,.lkey = raw->mr->lkey};
	struct ibv_send_wr wr = {
		.sg_list = &sge,.num_sge = 1,.opcode = opcode,.send_flags = IBV_SEND_SIGNALED
	};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int64_t		until = in_ms(5000);

	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = key;
	if (ibv_post_send(raw->id->qp, &wr, &bad) != 0)
		return -1;
	while (ibv_poll_cq(raw->cq, 1, &wc) == 0)
	{
		if (rbp_now_ns() > until)
			return -1;
		usleep(100);
	}
	return (int) wc.status;
}

/* What the table says of a region; -1 if it cannot be read. */
static int
raw_entry(Raw *raw, uint32_t region, uint64_t *addr, uint32_t *key)
{
	if (raw_work(raw, IBV_WR_RDMA_READ,
				 raw->welcome.table_address + region * RBP_VERBS_ENTRY_SIZE,
				 raw->welcome.table_key, RBP_VERBS_ENTRY_SIZE) != IBV_WC_SUCCESS)
		return -1;
	return (int) rbp_wire_get_verbs_entry(raw->buf, region, addr, key);
}

static bool
await_key(Raw *raw, uint32_t region, uint64_t *addr, uint32_t *key)
{
	return await(raw_entry(raw, region, addr, key) == RBP_VERBS_ENTRY_READY);
}

static uint32_t baseline;		/* objects with nobody connected */

/* What a device keeps for ever. */
static uint32_t
stuck_objects(void)
{
	return baseline - 4;
}

/*
 * A device is unplugged and comes back.  False if the donor does not listen
 * again, or has more than its channel and the id that does.
 */
static bool
remove_device(void)
{
	uint64_t	listens = mock_calls[MOCK_LISTEN];

	mock_remove_device(0);
	return await((pass(SECOND), mock_calls[MOCK_LISTEN] > listens)) &&
		await(mock_leaks(false) == 2 + stuck_objects());
}

/* One piece of work by a client of its own. */
static int
steal(const RbpCredentials *cred, enum ibv_wr_opcode opcode, uint64_t addr,
	  uint32_t key, uint32_t len)
{
	Raw		   *raw = raw_connected(cred);
	int			status = raw_work(raw, opcode, addr, key, len);

	raw_free(raw);
	return status;
}

static bool
all_are(const uint8_t *buf, size_t len, uint8_t value)
{
	for (size_t i = 0; i < len; i++)
		if (buf[i] != value)
			return false;
	return true;
}

/*
 * ---- what is left ------------------------------------------------------------------------------
 */

/* Everything of leases and clients is gone. */
static void
check_left(const char *when)
{
	for (int p = 0; p < PLANS; p++)
		plans[p].live = false;
	apply();
	say();
	apply();
	if (!await(!donor_regions_in(DONOR_REGION_DIRTY)))
		wrong("%s: the janitor does not come to an end", when);
	/* connections of ended leases last for a while */
	if (!ok(await((pass(SECOND), mock_leaks(false) == baseline && donor_verbs_connections == 0)),
			"%s: nothing is left", when))
	{
		diag("%" PRIu64 " connections; %u objects, should be %u:",
			 (uint64_t) donor_verbs_connections, mock_leaks(true), baseline);
		baseline = mock_leaks(false);
	}
	is_u64(mock_violations(), 0, "%s: no rule is broken", when);
}

/*
 * ---- the start ------------------------------------------------------------------------------------
 */
static void
make_sysfs(bool with_device)
{
	static char path[64];
	char		device[80];
	char		type[96];

	if (path[0] == '\0')
	{
		strcpy(path, "/tmp/test_donor_verbs.XXXXXX");
		if (mkdtemp(path) == NULL)
			abort();
	}
	snprintf(device, sizeof(device), "%s/mock0", path);
	snprintf(type, sizeof(type), "%s/node_type", device);
	if (with_device)
	{
		FILE	   *f = mkdir(device, 0700) == 0 ? fopen(type, "w") : NULL;

		if (f == NULL || fputs("1: CA\n", f) < 0 || fclose(f) != 0)
			abort();
	}
	else
	{
		(void) remove(type);
		(void) rmdir(device);
	}
	rbp_verbs_sysfs = path;
	rbp_verbs_configure(&(RbpDeviceConfig) RBP_DEVICE_CONFIG_DEFAULT);
}

static void
remove_sysfs(void)
{
	make_sysfs(false);
	(void) rmdir(rbp_verbs_sysfs);
}

static void
test_start(void)
{
	static const MockCall calls[] = {
		MOCK_CREATE_CHANNEL, MOCK_CREATE_ID, MOCK_BIND_ADDR, MOCK_LISTEN,
		MOCK_ALLOC_PD, MOCK_MALLOC, MOCK_GET_DEVICES, MOCK_REG_MR
	};
	const char *why = NULL;
	uint16_t	port = 0;

	make_sysfs(false);
	ok(!donor_verbs_init("10.0.0.1", &port, &why) && why != NULL, "no device: %s", why);
	make_sysfs(true);
	ok(!donor_verbs_init("10.0.9.1", &port, &why) && mock_leaks(true) == 0,
	   "an address without a device: %s", why);
	ok(!donor_verbs_init("no.such.host.invalid", &port, &why) && mock_leaks(true) == 0,
	   "a host that is none: %s", why);
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		for (uint32_t nth = 1; nth <= (calls[i] == MOCK_REG_MR ? NREGIONS : 1); nth += NREGIONS / 2)
		{
			/* only one that listens anywhere looks for devices */
			const char *host = calls[i] == MOCK_GET_DEVICES ? "0.0.0.0" : "10.0.0.1";

			mock_fail(calls[i], nth, ENOMEM);
			port = 0;
			ok(!donor_verbs_init(host, &port, &why) && mock_failed(calls[i]) &&
			   mock_leaks(true) == 0, "%s fails: %s", mock_call_name(calls[i]), why);
		}

	for (int i = 0; i < 10; i++)
	{
		static const char *const says[] = {
			"EFA", "usNIC", "iWARP", "not active", "max_mr)", "max_mr_size", "EFA", "not active",
			"raise RLIMIT_MEMLOCK", "RLIMIT_MEMLOCK allows it"
		};
		bool		any = i == 6 || i == 7;
		struct rlimit limit;

		for (int device = 0; device < MOCK_DEVICES; device++)
			mock_set_device(device, i == 0 || i == 6 ? IBV_TRANSPORT_UNSPECIFIED
							: i == 1 ? IBV_TRANSPORT_USNIC_UDP
							: i == 2 ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB, i != 3 && i != 7);
		mock_limits.max_mr = i == 4 ? NREGIONS - 1 : 100000;
		mock_limits.max_mr_size = i == 5 ? REGION_BYTES - 1 : UINT64_MAX;
		if (i >= 8)
		{
			if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
				abort();
			limit.rlim_cur = i == 8 ? 4096 : limit.rlim_max;
			if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0)
				abort();
			if (i == 9 && limit.rlim_max < 4 * NREGIONS * REGION_BYTES)
				continue;		/* it does not allow it */
			mock_fail(MOCK_REG_MR, 3, ENOMEM);
		}
		port = 0;
		ok(!donor_verbs_init(any ? "0.0.0.0" : "10.0.0.1", &port, &why) &&
		   strstr(why, says[i]) != NULL && mock_leaks(true) == 0, "no service: %s", why);
	}
	mock_limits.max_mr_size = UINT64_MAX;
	mock_fail(MOCK_REG_MR, 0, 0);

	port = 0;
	if (!ok(donor_verbs_init("10.0.0.1", &port, &why) && port != 0, "it starts"))
		exit(1);
	ep.rdma_port = port;
	is_u64(mock_registrations(NULL), 0, "the trial's registrations are ended");
}

/*
 * ---- who is let in ------------------------------------------------------------------------------------
 */
static void
test_handshake(void)
{
	static const char *const lies[] = {
		"another secret", "a bit of the MAC", "a bit of the nonce",
		"a lease that there is not", "another queue pair's hello",
		"a lease that has ended", "no hello", "half a hello", "nonsense",
		"another donor's key"
	};
	Plan	   *plan = plan_new(0x003);
	Plan	   *ended = plan_new(0x100);
	RbpCredentials ended_cred = ended->cred;
	RbpWireVerbsHello hello;
	uint64_t	refused = donor_verbs_denied;
	Raw		   *raw;
	RbpStatus	status;
	RbpConn    *conn;

	apply_all();
	plan_end(ended);
	for (int lie = 0; lie < (int) (sizeof(lies) / sizeof(lies[0])); lie++)
	{
		RbpCredentials cred = lie == 5 ? ended_cred : plan->cred;
		uint8_t		message[RBP_VERBS_HELLO_SIZE];
		int			len = RBP_VERBS_HELLO_SIZE;

		raw = raw_new();
		if (lie == 0)
			cred.secret[31] ^= 1;
		else if (lie == 3)
			strcpy(cred.lease, "lease-0");
		raw_hello(raw, &cred, lie == 9 ? "d2" : ep.donor, &hello);
		if (lie == 1)
			hello.mac[RBP_VERBS_MAC_LEN - 1] ^= 0x80;
		else if (lie == 2)
			hello.nonce[0] ^= 1;
		else if (lie == 4)
		{
			/* what was overheard of this one is used by another */
			Raw		   *other = raw_new();

			raw_free(raw);
			raw = other;
		}
		rbp_wire_put_verbs_hello(message, &hello);
		if (lie == 6)
			len = 0;
		else if (lie == 7)
			len = 28;
		else if (lie == 8)
			memset(message, 0x5a, sizeof(message));
		raw_request(raw, message, (size_t) len, 16);
		ok(raw_next(raw, 5000) == RDMA_CM_EVENT_REJECTED &&
		   raw->reject == MOCK_REJECTED_BY_PEER && raw->has_welcome &&
		   raw->welcome.status == RBP_WIRE_DENIED, "%s: denied", lies[lie]);
		raw_free(raw);
	}
	ok(await(donor_verbs_denied - refused == sizeof(lies) / sizeof(lies[0])), "all are counted");

	raw = raw_new();
	raw_hello(raw, &plan->cred, ep.donor, &hello);
	hello.version = RBP_WIRE_VERSION + 1;
	raw_ask(raw, &hello);
	ok(raw_next(raw, 5000) == RDMA_CM_EVENT_REJECTED && raw->has_welcome &&
	   raw->welcome.status == RBP_WIRE_VERSION_MISMATCH, "another version is told so");
	raw_free(raw);

	raw = raw_connected(&plan->cred);
	ok(raw->welcome.regions == NREGIONS && raw->welcome.region_size == REGION_BYTES,
	   "who tells the truth is let in");
	ok(await(donor_verbs_connections == 1), "and counted");
	raw_free(raw);
	ok(await(donor_verbs_connections == 0), "until he goes");

	/* the transport, with the lease's secret and without */
	conn = open_conn(&plan->cred, &status);
	ok(status == RBP_OK, "the transport connects: %s", rbp_status_text(status));
	ops->close(conn);
	{
		RbpCredentials cred = plan->cred;

		cred.secret[0] ^= 1;
		conn = open_conn(&cred, &status);
		ok(status == RBP_DENIED, "or not: %s", rbp_status_text(status));
		ops->close(conn);
	}

	/* its time is over by the clock, though the janitor has not noticed */
	plan->deadline_ns = rbp_boottime_ns() + HOUR;
	apply();
	pass(2 * HOUR);
	conn = open_conn(&plan->cred, &status);
	ok(status == RBP_DENIED, "a lease is over when its time is: %s", rbp_status_text(status));
	ops->close(conn);
	check_left("handshake");
}

static void
use_up_proofs(void)
{
	for (uint64_t peer = 0; peer < SLOTS; peer++)
		while (donor_proof_allowed(peer))
			;
}

/* One who does not know the secret, again and again; and one who does. */
static void
test_denials(void)
{
	Plan	   *plan = plan_new(0x001);
	RbpCredentials cred = plan->cred;
	RbpStatus	status;
	RbpConn    *conn;
	int			n = 0;

	apply_all();
	pass(SECOND);
	cred.secret[0] ^= 1;
	do
	{
		conn = open_conn(&cred, &status);
		ops->close(conn);
		if (++n % 128 == 0)
			usleep(1000);
	} while (status == RBP_DENIED && n < DENIALS);
	is_u64((uint64_t) n, DENIALS, "who is wrong is told so, each time");
	conn = open_conn(&plan->cred, &status);
	ok(status == RBP_OK, "and keeps nobody out who is right: %s", rbp_status_text(status));
	ops->close(conn);
	/* a second may end between the two */
	ok(await((use_up_proofs(), conn = open_conn(&plan->cred, &status), ops->close(conn), status == RBP_BUSY)),
	   "who connects too often in a second is not let in: %s", rbp_status_text(status));
	ok(await((pass(SECOND), conn = open_conn(&plan->cred, &status), ops->close(conn), status == RBP_OK)),
	   "the next second is another one");
	check_left("denials");
}

/* Whoever has proved to know a secret that is not the lease's any more is sent away. */
static void
test_new_secret(void)
{
	Plan	   *plan = plan_new(0x001);
	RbpCredentials former = plan->cred;
	RbpStatus	status;
	RbpConn    *conn;
	Raw		   *raw;

	apply_all();
	raw = raw_connected(&plan->cred);
	apply();
	pass(2 * SECOND);
	usleep(5000);
	is_u64(donor_verbs_connections, 1, "a client stays as long as the secret is the same");
	plan->cred.secret[1] ^= 1;
	apply();
	ok(await((pass(SECOND), donor_verbs_connections == 0)) &&
	   raw_next(raw, 5000) == RDMA_CM_EVENT_DISCONNECTED, "another one ends its connection");
	ok(can_connect(plan), "with that it can connect again");
	conn = open_conn(&former, &status);
	ok(conn == NULL && status == RBP_DENIED, "but not with the former one: %s", rbp_status_text(status));
	raw_free(raw);
	check_left("a new secret");
}

/* while it has some */
static int
connections_of(const RbpDonorClient *client)
{
	return __atomic_load_n(&client->connections, __ATOMIC_SEQ_CST);
}

/* A client's connections are bounded; those by other transports count, too. */
static void
test_full_lease(void)
{
	Plan	   *plan = plan_new(0x001);
	Plan	   *other = plan_new(0x002);	/* each has a client of its own */
	Raw		   *raws[LEASE_CONNECTIONS];
	RbpDonorLease *lease;
	RbpDonorClient *client = NULL;
	RbpStatus	status;
	RbpConn    *conn;
	int			n = LEASE_CONNECTIONS / 2;

	apply_all();
	lease = donor_lease_find(plan->cred.lease);
	for (int i = 0; i < n; i++)
		raws[i] = raw_connected(&plan->cred);
	for (int i = n; i < LEASE_CONNECTIONS; i++)
		if ((client = donor_lease_connect(lease)) == NULL)
			wrong("connection %d of another transport is refused", i);
	conn = open_conn(&plan->cred, &status);
	ok(conn == NULL && status == RBP_BUSY, "a client with all its connections: %s", rbp_status_text(status));
	ok(donor_lease_connect(lease) == NULL, "by any transport");
	ok(can_connect(other), "another client has its own");
	donor_lease_disconnect(client);
	ok(can_connect(plan), "one of another transport ends: there is room");
	ok(await(connections_of(client) == LEASE_CONNECTIONS - 1), "which is free again");
	raw_free(raws[--n]);
	ok(await(connections_of(client) == LEASE_CONNECTIONS - 2), "one of ours ends");

	/* who does not go on with the handshake has a place, too */
	for (int i = 0; i < 3; i++)
		raws[n + i] = raw_asking(&plan->cred);
	ok(await(connections_of(client) == LEASE_CONNECTIONS) &&
	   raw_next(raws[n + 2], 5000) == RDMA_CM_EVENT_REJECTED && raws[n + 2]->has_welcome &&
	   raws[n + 2]->welcome.status == RBP_WIRE_BUSY, "handshakes that hang are counted");
	for (int i = 0; i < n + 3; i++)
		raw_free(raws[i]);
	ok(await((pass(SECOND), connections_of(client) == LEASE_CONNECTIONS / 2 - 1)), "until they go");
	for (int i = LEASE_CONNECTIONS / 2 + 2; i < LEASE_CONNECTIONS; i++)
		donor_lease_disconnect(client);
	is_u64((uint64_t) connections_of(client), 1, "nothing is counted twice");
	donor_lease_disconnect(client);
	donor_lease_unref(lease);
	check_left("a full lease");
}

/*
 * ---- keys --------------------------------------------------------------------------------------------
 */
static void
test_keys(void)
{
	Plan	   *a = plan_new(0x003);
	Plan	   *b = plan_new(0x00c);
	RbpIo		answered = {.kind = RBP_IO_PING,.status = RBP_OK};
	uint8_t		buf[256];
	RbpConn    *conn;
	RbpStatus	status;
	Raw		   *other;
	Raw		   *raw;
	uint64_t	addr[NREGIONS];
	uint32_t	key[NREGIONS];
	uint64_t	unused_addr;
	uint32_t	unused_key;

	apply_all();
	conn = open_conn(&a->cred, &status);
	if (conn == NULL)
		abort();
	memset(buf, 0xa1, sizeof(buf));
	ok(do_io(conn, RBP_IO_WRITE, 0, 0, buf, sizeof(buf)) == RBP_OK &&
	   donor_regions[0].base[4096] == 0xa1 && donor_regions[0].base[4096 + 255] == 0xa1 &&
	   donor_regions[0].base[4096 + 256] == 0, "a client writes to its region");
	memset(buf, 0, sizeof(buf));
	ok(do_io(conn, RBP_IO_READ, 0, 0, buf, sizeof(buf)) == RBP_OK && buf[0] == 0xa1 &&
	   buf[255] == 0xa1, "and reads it");
	ok(do_io(conn, RBP_IO_READ, 2, 0, buf, sizeof(buf)) == RBP_DENIED, "not another's");
	ok(do_io(conn, RBP_IO_READ, 7, 0, buf, sizeof(buf)) == RBP_DENIED, "nor nobody's");
	ok(ops->wait(conn, &answered, 1, 0) == RBP_OK, "pings");
	{
		bool		good = true;

		for (int i = 0; i < 50; i++)
		{
			RbpIo		ios[7];

			for (int j = 0; j < 7; j++)
				ios[j] = (RbpIo)
			{
				.kind = RBP_IO_PING
			};
			(void) ops->submit(conn, ios, 7);
			good &= ops->wait(conn, ios, 7, in_ms(5000)) == RBP_OK;
		}
		ok(good, "pings are answered, seven at a time");
	}

	/* more while it is connected */
	a->mask |= 0x010;
	apply_all();
	ok(do_io(conn, RBP_IO_READ, 4, 0, buf, sizeof(buf)) == RBP_OK, "a region that is granted later");


	/* what it may reach, and what not */
	raw = raw_connected(&a->cred);
	other = raw_connected(&b->cred);
	ok(await_key(raw, 0, &addr[0], &key[0]) && await_key(raw, 4, &addr[4], &key[4]) &&
	   await_key(other, 2, &addr[2], &key[2]), "the tables have keys");
	ok(raw_entry(raw, 2, &unused_addr, &unused_key) == RBP_VERBS_ENTRY_NONE &&
	   raw_entry(other, 0, &unused_addr, &unused_key) == RBP_VERBS_ENTRY_NONE, "to each its own");
	ok(steal(&a->cred, IBV_WR_RDMA_READ, addr[0], key[0], 8) == IBV_WC_SUCCESS &&
	   steal(&a->cred, IBV_WR_RDMA_WRITE, addr[0] + REGION_BYTES - 8, key[0], 8) == IBV_WC_SUCCESS,
	   "a key is for all clients of the lease");
	ok(steal(&b->cred, IBV_WR_RDMA_READ, addr[0], key[0], 8) == IBV_WC_REM_ACCESS_ERR &&
	   steal(&b->cred, IBV_WR_RDMA_WRITE, addr[0], key[0], 8) == IBV_WC_REM_ACCESS_ERR,
	   "and for no others");
	ok(steal(&b->cred, IBV_WR_RDMA_READ, raw->welcome.table_address, raw->welcome.table_key,
			 16) == IBV_WC_REM_ACCESS_ERR, "nor is the table's");
	ok(steal(&a->cred, IBV_WR_RDMA_WRITE, raw->welcome.table_address, raw->welcome.table_key,
			 16) == IBV_WC_REM_ACCESS_ERR, "nobody writes to the table");
	ok(steal(&a->cred, IBV_WR_RDMA_READ, addr[0] + REGION_BYTES - 4, key[0], 8) == IBV_WC_REM_ACCESS_ERR &&
	   steal(&a->cred, IBV_WR_RDMA_READ, addr[0] - 4, key[0], 8) == IBV_WC_REM_ACCESS_ERR,
	   "a region has an end");

	/* taken away while they are connected */
	a->mask &= ~0x010u;
	apply();
	ok(await(!donor_regions_in(DONOR_REGION_DIRTY)) && !mock_exposed(donor_regions[4].base, REGION_BYTES),
	   "a region that is taken away has no key");
	ok(raw_work(raw, IBV_WR_RDMA_READ, addr[4], key[4], 8) == IBV_WC_REM_ACCESS_ERR,
	   "the old one is dead");
	ok(do_io(conn, RBP_IO_READ, 4, 0, buf, sizeof(buf)) == RBP_DENIED,
	   "the transport, which knew it, is denied");
	ops->close(conn);
	raw_free(raw);
	ok(raw_work(other, IBV_WR_RDMA_READ, addr[2], key[2], 8) == IBV_WC_SUCCESS,
	   "who has other regions is not hurt");

	/* to another lease, with zeroes and another key */
	b->mask |= 0x010;
	apply_all();
	ok(await_key(other, 4, &unused_addr, &unused_key) && unused_key != key[4],
	   "another lease gets another key to it");
	ok(raw_work(other, IBV_WR_RDMA_READ, unused_addr, unused_key, 4096) == IBV_WC_SUCCESS &&
	   all_are(other->buf, 4096, 0), "and finds zeroes");
	ok(steal(&a->cred, IBV_WR_RDMA_READ, addr[4], key[4], 8) == IBV_WC_REM_ACCESS_ERR &&
	   steal(&b->cred, IBV_WR_RDMA_READ, addr[4], key[4], 8) == IBV_WC_REM_ACCESS_ERR,
	   "the old key is of no use to anybody");

	/* the lease ends with its clients connected */
	plan_end(b);
	ok(await(!donor_regions_in(DONOR_REGION_DIRTY)) && !mock_exposed(donor_regions[2].base, REGION_BYTES),
	   "a lease that ends has no keys");
	ok(raw_work(other, IBV_WR_RDMA_READ, addr[2], key[2], 8) == IBV_WC_REM_ACCESS_ERR,
	   "its clients' are dead");
	pass(3 * SECOND);
	pass(SECOND);
	ok(await((pass(SECOND), donor_verbs_connections == 0)), "a connection that failed is closed soon");
	raw_free(other);
	check_left("keys");
}

/* A card that gives the same key again. */
static void
test_same_key(void)
{
	Plan	   *plan = plan_new(0x001);
	uint64_t	addr;
	uint64_t	addr_again = 0;
	uint32_t	key;
	uint32_t	key_again = 0;
	Raw		   *raw;
	Raw		   *late;

	apply_all();
	raw = raw_connected(&plan->cred);
	late = raw_connected(&plan->cred);
	ok(await_key(raw, 0, &addr, &key), "a client has a key");
	for (int i = 0; i < 3; i++)
	{
		mock_same_keys = true;
		plan->mask = 0;
		apply_all();
		plan->mask = 0x001;
		apply_all();
		if (!await_key(raw, 0, &addr_again, &key_again))
			wrong("there is no key after %d times", i);
		mock_same_keys = false;
	}
	ok(key_again == key, "it gets the same one when the region comes back");
	ok(addr_again != addr, "with other addresses");
	memset(late->buf, 0xdd, 4096);
	ok(raw_work(late, IBV_WR_RDMA_WRITE, addr, key, 4096) == IBV_WC_REM_ACCESS_ERR &&
	   all_are(donor_regions[0].base, REGION_BYTES, 0), "a write of the first time comes too late");
	memset(raw->buf, 0xee, 4096);
	ok(raw_work(raw, IBV_WR_RDMA_WRITE, addr_again, key, 4096) == IBV_WC_SUCCESS &&
	   donor_regions[0].base[0] == 0xee, "one of this time does not");
	raw_free(late);
	raw_free(raw);
	check_left("the same key");
}

/* A lease ends whose clients do nothing. */
static void
test_idle_clients(void)
{
	Plan	   *plan = plan_new(0x003);
	Raw		   *raw;
	uint32_t	before;

	apply_all();
	raw = raw_connected(&plan->cred);
	before = mock_leaks(false);
	plan_end(plan);
	ok(await(!donor_regions_in(DONOR_REGION_DIRTY)), "a lease ends");
	pass(2 * SECOND);
	usleep(3000);
	is_u64(donor_verbs_connections, 1, "its client has time to notice");
	pass(11 * SECOND);
	/* the time begins when the service sees that the lease has ended */
	ok(await((pass(SECOND), donor_verbs_connections == 0)), "but not for ever");
	is_u64((uint64_t) raw_next(raw, 5000), RDMA_CM_EVENT_DISCONNECTED, "he is told");
	ok(await(mock_leaks(false) < before), "what was held for it is freed");
	raw_free(raw);
	check_left("idle clients");
}

/* A device that does not let go of a registration. */
static void
test_stuck_key(void)
{
	Plan	   *a = plan_new(0x001);
	Plan	   *b;
	Raw		   *raw;
	uint64_t	addr;
	uint32_t	key;
	uint64_t	addr_b;
	uint32_t	key_b;
	uint32_t	before = atomic_load(&given_up);

	apply_all();
	raw = raw_connected(&a->cred);
	ok(await_key(raw, 0, &addr, &key), "a client has a key");
	memset(raw->buf, 0xee, 4096);
	ok(raw_work(raw, IBV_WR_RDMA_WRITE, addr, key, 4096) == IBV_WC_SUCCESS, "and writes by it");
	mock_fail(MOCK_DEREG_MR, 1, EIO);
	plan_end(a);
	ok(await(!donor_regions_in(DONOR_REGION_DIRTY)) && mock_failed(MOCK_DEREG_MR), "the device does not end the key");
	is_u64(atomic_load(&given_up) - before, 1, "then the memory is given up");

	b = plan_new(0x001);
	apply_all();
	{
		Raw		   *other = raw_connected(&b->cred);

		ok(await_key(other, 0, &addr_b, &key_b) && key_b != key && addr_b != addr,
		   "who gets the region gets other memory");
		ok(raw_work(raw, IBV_WR_RDMA_WRITE, addr, key, 4096) == IBV_WC_SUCCESS,
		   "the key lives on");
		ok(raw_work(other, IBV_WR_RDMA_READ, addr_b, key_b, 4096) == IBV_WC_SUCCESS &&
		   all_are(other->buf, 4096, 0), "but leads to nobody");
		raw_free(other);
	}
	raw_free(raw);
	baseline += 2;				/* the registration, and its domain */
	check_left("a stuck key");
}

/* Memory that cannot be registered now. */
static void
test_late_key(void)
{
	Plan	   *plan = plan_new(0x001);
	uint64_t	addr;
	uint32_t	key;
	Raw		   *raw;

	apply_all();
	raw = raw_connected(&plan->cred);
	ok(await_key(raw, 0, &addr, &key), "a client has a key");
	mock_fail(MOCK_REG_MR, MOCK_ALWAYS, ENOMEM);
	plan->mask |= 0x002;
	apply_all();
	ok(await(mock_failed(MOCK_REG_MR)), "a second one cannot be made");
	is_u64((uint64_t) raw_entry(raw, 1, &addr, &key), RBP_VERBS_ENTRY_PENDING,
		   "the table says so");
	ok(raw_work(raw, IBV_WR_RDMA_READ, raw->welcome.table_address, raw->welcome.table_key,
				16) == IBV_WC_SUCCESS, "which hurts nobody");
	mock_fail(MOCK_REG_MR, 0, 0);
	pass(SECOND);
	ok(await_key(raw, 1, &addr, &key), "it is tried again");

	/* or the region goes before it is */
	mock_fail(MOCK_REG_MR, MOCK_ALWAYS, ENOMEM);
	plan->mask |= 0x004;
	apply_all();
	ok(await(mock_failed(MOCK_REG_MR)), "a third one cannot be made");
	plan->mask &= ~0x004u;
	apply_all();
	mock_fail(MOCK_REG_MR, 0, 0);
	pass(SECOND);
	usleep(5000);
	ok(raw_entry(raw, 2, &addr, &key) == RBP_VERBS_ENTRY_NONE &&
	   !mock_exposed(donor_regions[2].base, REGION_BYTES), "and is not wanted any more");
	raw_free(raw);
	check_left("a late key");
}

/* A region is taken away while a request is in it. */
static void
test_while_used(void)
{
	uint32_t	before = atomic_load(&wrongs);
	Plan	   *plan = plan_new(0x001);
	uint64_t	addr;
	uint32_t	key;
	Raw		   *raw;
	RbpDonorLease *lease;

	apply_all();
	raw = raw_connected(&plan->cred);
	ok(await_key(raw, 0, &addr, &key), "a client has a key");
	lease = donor_lease_find(plan->cred.lease);

	/* before its key is made */
	mock_fail(MOCK_REG_MR, MOCK_ALWAYS, ENOMEM);
	plan->mask |= 0x002;
	apply_all();
	ok(await(mock_failed(MOCK_REG_MR)) &&
	   donor_region_enter(&donor_regions[1], lease, rbp_boottime_ns()), "another region is in use");
	plan->mask &= ~0x002u;
	apply();
	mock_fail(MOCK_REG_MR, 0, 0);
	for (int i = 0; i < 3; i++)
	{
		pass(SECOND);
		usleep(3000);
		if (mock_exposed(donor_regions[1].base, REGION_BYTES))
			wrong("a region that was taken away gets a key");
	}
	ok(donor_regions_in(DONOR_REGION_DIRTY), "it is waited for who is in it");
	donor_region_leave(&donor_regions[1]);
	ok(await(!donor_regions_in(DONOR_REGION_DIRTY)), "until he goes");
	raw_free(raw);
	donor_lease_unref(lease);

	/* janitor and verbs thread end the same key: the one waits for the other */
	for (int i = 0; i < 4; i++)
	{
		Plan	   *another = plan_new(0x004);

		apply_all();
		raw = raw_connected(&another->cred);
		lease = donor_lease_find(another->cred.lease);
		if (!await_key(raw, 2, &addr, &key) ||
			!donor_region_enter(&donor_regions[2], lease, rbp_boottime_ns()))
			abort();
		raw_free(raw);
		if (!await(donor_verbs_connections == 0))
			abort();
		mock_deregister_us = 40000;
		plan_end(another);
		say();
		pass(SECOND);			/* what the lease has on the device is freed */
		usleep(15000);
		mock_deregister_us = 0; /* but for the one that has begun */
		donor_region_leave(&donor_regions[2]);
		if (!await(!donor_regions_in(DONOR_REGION_DIRTY)))
			wrong("a key is not ended");
		donor_lease_unref(lease);
	}
	is_u64(atomic_load(&wrongs) - before, 0, "no key is made or left meanwhile");
	check_left("regions in use");
}

/*
 * ---- calls that fail ---------------------------------------------------------------------------------
 */
static void
test_failing_calls(const MockCall *calls, size_t ncalls, bool fresh_device)
{
	for (size_t i = 0; i < ncalls; i++)
		for (uint32_t nth = 1; nth < 20; nth++)
		{
			Plan	   *plan = plan_new(0x003);
			RbpWireVerbsHello hello;
			Raw		   *raw;
			bool		failed;
			bool		accepted;
			int			event;

			if (fresh_device && !remove_device())
				wrong("a device that is gone leaves something");
			apply_all();
			raw = raw_new();
			raw_hello(raw, &plan->cred, ep.donor, &hello);
			mock_fail(calls[i], nth, ENOMEM);
			raw_ask(raw, &hello);
			event = raw_next(raw, 5000);
			failed = mock_failed(calls[i]);
			accepted = event == RDMA_CM_EVENT_ESTABLISHED;
			if (!accepted && (event != RDMA_CM_EVENT_REJECTED || !failed))
				wrong("%s %u: event %d", mock_call_name(calls[i]), nth, event);
			if (!accepted && raw->has_welcome && raw->welcome.status != RBP_WIRE_BUSY)
				wrong("%s %u: status %u", mock_call_name(calls[i]), nth, raw->welcome.status);
			raw_free(raw);
			mock_fail(calls[i], 0, 0);
			if (!accepted)
				ok(can_connect(plan), "%s fails the %u. time: the client is told to come again",
				   mock_call_name(calls[i]), nth);
			else if (failed)
				ok(true, "%s fails the %u. time: the client is let in nevertheless",
				   mock_call_name(calls[i]), nth);
			plan_end(plan);
			say();
			if (!failed)
				break;
		}
}

static void
test_failures(void)
{
	static const MockCall calls[] = {
		MOCK_MALLOC, MOCK_ALLOC_PD, MOCK_REG_MR, MOCK_CREATE_CQ, MOCK_REQ_NOTIFY,
		MOCK_SET_OPTION, MOCK_CREATE_QP, MOCK_POST_RECV, MOCK_ACCEPT
	};
	static const MockCall device_calls[] = {
		MOCK_CREATE_COMP, MOCK_QUERY_DEVICE, MOCK_CREATE_ID, MOCK_BIND_ADDR
	};

	test_failing_calls(calls, sizeof(calls) / sizeof(calls[0]), false);
	check_left("failing calls");
	test_failing_calls(device_calls, sizeof(device_calls) / sizeof(device_calls[0]), true);
	check_left("failing calls of a device");
}

/*
 * ---- clients that go, or hang, or talk nonsense -----------------------------------------------------------
 */
static void
test_clients(void)
{
	Plan	   *plan = plan_new(0x003);
	Raw		   *raw;

	apply_all();
	for (int i = 0; i < 60; i++)
	{
		raw = raw_asking(&plan->cred);
		if (i % 3 != 0)
			usleep((useconds_t) (i * 10));
		raw_free(raw);
	}

	/*
	 * When this one is connected, the requests of all of them have been
	 * served.
	 */
	raw_free(raw_connected(&plan->cred));
	ok(await((pass(SECOND), donor_verbs_connections == 0)), "clients that go while they are let in");

	raw = raw_asking(&plan->cred);
	ok(await(donor_verbs_connections == 1), "one that does not go on");
	pass(SECOND);
	usleep(3000);
	is_u64(donor_verbs_connections, 1, "is waited for");
	pass(13 * SECOND);
	usleep(3000);
	is_u64(donor_verbs_connections, 1, "as long as a lost message takes");
	pass(2 * SECOND);
	ok(await((pass(SECOND), donor_verbs_connections == 0)), "but not for ever");
	raw_free(raw);

	/* its host has lost its power */
	raw = raw_connected(&plan->cred);
	mock_qp_error(raw->id->qp);
	pass(20 * SECOND);
	usleep(3000);
	is_u64(donor_verbs_connections, 1, "one that is dead");
	pass(11 * SECOND);
	usleep(3000);
	pass(2 * SECOND);
	ok(await((pass(SECOND), donor_verbs_connections == 0)), "is found out");
	raw_free(raw);

	/* one that lives is left alone */
	raw = raw_connected(&plan->cred);
	for (int i = 0; i < 5; i++)
	{
		pass(31 * SECOND);
		usleep(3000);
	}
	is_u64(donor_verbs_connections, 1, "one that lives is left alone");
	mock_qp_error(raw->id->qp);
	pass(31 * SECOND);
	usleep(3000);
	ok(await((pass(SECOND), donor_verbs_connections == 0)), "until it dies");
	raw_free(raw);

	/* messages that are no pings */
	for (int i = 0; i < 6; i++)
	{
		static const uint32_t lens[] = {0, 31, 32, 32, 33, 100};
		RbpWireRequest req = {.prefix.op = i == 2 ? RBP_OP_READ : RBP_OP_PING,.id = 1};

		raw = raw_connected(&plan->cred);
		rbp_wire_put_request(raw->buf, &req);
		if (i == 3)
			memset(raw->buf, 0x5a, 32);
		(void) raw_work(raw, IBV_WR_SEND, 0, 0, lens[i]);
		ok(await((pass(SECOND), donor_verbs_connections == 0)),
		   "a message of %u bytes that is no ping ends the connection (%d)", lens[i], i);
		raw_free(raw);
	}
	check_left("clients");
}

static atomic_bool hold_sends;

static int
hold_donor(const MockWork *work)
{
	return work->opcode == IBV_WR_SEND && work->wr_id >= RBP_VERBS_PINGS &&
		atomic_load(&hold_sends) ? MOCK_HOLD : IBV_WC_SUCCESS;
}

/* Answers that take their time to get on their way. */
static void
test_pings(void)
{
	Plan	   *plan = plan_new(0x001);
	uint32_t	seen = 0;
	Raw		   *raw;

	apply_all();
	raw = raw_connected(&plan->cred);
	mock_hooks.on_work = hold_donor;
	for (int round = 0; round < 10; round++)
	{
		struct ibv_wc wc;
		uint32_t	n = 0;
		int64_t		until = in_ms(5000);

		atomic_store(&hold_sends, true);
		for (uint32_t i = 0; i < RBP_VERBS_PINGS; i++)
		{
			uint8_t    *answer = raw->buf + 4096 + i * 64;
			struct ibv_sge sge = {.addr = (uintptr_t) answer,.length = 64,.lkey = raw->mr->lkey};
			struct ibv_recv_wr wr = {.wr_id = i,.sg_list = &sge,.num_sge = 1};
			struct ibv_recv_wr *bad;

			if (ibv_post_recv(raw->id->qp, &wr, &bad) != 0)
				abort();
		}
		for (uint32_t i = 0; i < RBP_VERBS_PINGS; i++)
		{
			RbpWireRequest req = {.prefix.op = RBP_OP_PING,.id = (uint64_t) round * 100 + i};

			rbp_wire_put_request(raw->buf, &req);
			if (raw_work(raw, IBV_WR_SEND, 0, 0, RBP_REQUEST_SIZE) != IBV_WC_SUCCESS)
				abort();
		}
		usleep(2000);
		atomic_store(&hold_sends, false);
		mock_progress();
		while (n < RBP_VERBS_PINGS && rbp_now_ns() < until)
		{
			RbpWireAnswer answer;

			mock_progress();
			if (ibv_poll_cq(raw->cq, 1, &wc) != 1)
				continue;
			n++;
			if (wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV &&
				rbp_wire_get_answer(raw->buf + 4096 + wc.wr_id * 64, wc.byte_len, &answer) &&
				answer.id / 100 == (uint64_t) round && answer.id % 100 < RBP_VERBS_PINGS)
				seen |= 1u << answer.id % 100;
		}
		if (seen != (1u << RBP_VERBS_PINGS) - 1)
			break;
		seen = round == 9 ? seen : 0;
	}
	is_u64(seen, (1u << RBP_VERBS_PINGS) - 1, "each ping has its own answer");
	raw_free(raw);
	check_left("pings");
	mock_hooks.on_work = NULL;
}

static void
raw_receive(Raw *raw)
{
	struct ibv_sge sge = {.addr = (uintptr_t) raw->buf + 4096,.length = 64,.lkey = raw->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = 99,.sg_list = &sge,.num_sge = 1};
	struct ibv_recv_wr *bad;

	if (ibv_post_recv(raw->id->qp, &wr, &bad) != 0)
		abort();
}

/* Is a ping answered? */
static bool
raw_ping(Raw *raw)
{
	RbpWireRequest req = {.prefix.op = RBP_OP_PING,.id = 5};
	struct ibv_sge sge = {.addr = (uintptr_t) raw->buf,.length = RBP_REQUEST_SIZE,.lkey = raw->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge,.num_sge = 1,.opcode = IBV_WR_SEND};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	raw_receive(raw);
	rbp_wire_put_request(raw->buf, &req);
	if (ibv_post_send(raw->id->qp, &wr, &bad) != 0)
		return false;
	return await(ibv_poll_cq(raw->cq, 1, &wc) == 1) && wc.status == IBV_WC_SUCCESS &&
		wc.opcode == IBV_WC_RECV;
}

/* A device that takes its time, and a client that takes all of it. */
static Raw *flooder;
static RbpDonorVerbsConn *flooded;
static atomic_bool flooding;
static atomic_ullong flood_turns;

/* Whenever the donor looks, there are four more pings from this one. */
static void
flood(struct ibv_cq *cq)
{
	RbpWireRequest req = {.prefix.op = RBP_OP_PING,.id = 1};
	uint8_t		message[RBP_REQUEST_SIZE];
	struct ibv_wc wc;

	if (!atomic_load(&flooding) || cq != flooded->cq)
		return;
	atomic_fetch_add(&flood_turns, 1);
	rbp_wire_put_request(message, &req);
	while (ibv_poll_cq(flooder->cq, 1, &wc) == 1)
		;
	for (int i = 0; i < RBP_VERBS_PINGS; i++)
	{
		raw_receive(flooder);
		(void) mock_message(flooded->id->qp, message, sizeof(message));
	}
}

static void
more_events(struct rdma_event_channel *channel)
{
	if (channel == events && atomic_load(&flooding))
		mock_event(listener, RDMA_CM_EVENT_ADDR_CHANGE, 0, NULL, 0, 0);
}

static void
test_turns(void)
{
	Plan	   *plan = plan_new(0x001);
	RbpWireVerbsHello hello;
	uint64_t	addr;
	uint32_t	key;
	Raw		   *late;
	Raw		   *raw;

	apply_all();
	raw = raw_connected(&plan->cred);
	late = raw_new();
	raw_hello(late, &plan->cred, ep.donor, &hello);
	atomic_store(&mock_hold_create_qp, true);
	raw_ask(late, &hello);
	ok(await(atomic_load(&mock_held_create_qp) == 1), "a queue pair takes long");
	ok(raw_ping(raw), "pings of others are answered meanwhile");
	atomic_store(&mock_hold_create_qp, false);
	is_u64((uint64_t) raw_next(late, 5000), RDMA_CM_EVENT_ESTABLISHED, "then the client is let in");
	raw_free(late);
	if (!await(donor_verbs_connections == 1))
		abort();

	flooder = raw_connected(&plan->cred);
	flooded = LIST_FIRST(&conns);
	atomic_store(&flood_turns, 0);
	mock_hooks.on_poll = flood;
	atomic_store(&flooding, true);
	ok(raw_ping(flooder) || atomic_load(&flood_turns) > 0, "a client sends pings without end");
	ok(await(atomic_load(&flood_turns) > 20) && raw_ping(raw), "others' are answered nevertheless");
	{
		uint64_t	turns = atomic_load(&flood_turns);

		ok(await(atomic_load(&flood_turns) > turns + 20), "which it goes on to do");
	}
	plan_end(plan);
	ok(await(!donor_regions_in(DONOR_REGION_DIRTY)), "regions are taken away meanwhile");
	atomic_store(&flooding, false);
	mock_hooks.on_poll = NULL;
	raw_free(flooder);
	raw_free(raw);
	check_left("turns");

	plan = plan_new(0x001);
	apply_all();
	raw = raw_connected(&plan->cred);
	mock_hooks.on_get_event = more_events;
	atomic_store(&flooding, true);
	plan->mask |= 0x002;
	apply_all();
	donor_verbs_wake();
	ok(await_key(raw, 1, &addr, &key), "keys are made while connection events come without end");
	atomic_store(&flooding, false);
	usleep(20000);
	mock_hooks.on_get_event = NULL;
	raw_free(raw);
	check_left("turns of events");
}

/* Messages of rdma_cm are lost: who says then that a client is connected? */
static void
test_lost_rtu(void)
{
	Plan	   *plan = plan_new(0x001);
	Raw		   *raw;

	apply_all();
	mock_lose_rtu = true;
	for (int how = 0; how < 3; how++)
	{
		static const char *const ways[] = {"a ping", "the device", "nothing"};
		bool		survives = how < 2;

		raw = raw_connected(&plan->cred);
		if (!await(donor_verbs_connections == 1))
			abort();
		if (how == 0 && !raw_ping(raw))
			abort();
		if (how == 1)
			mock_async(0, IBV_EVENT_COMM_EST, LIST_FIRST(&conns)->id->qp, 0);
		if (survives && !await(LIST_FIRST(&conns)->established))
			wrong("%s does not say that it is connected", ways[how]);
		mock_event(LIST_FIRST(&conns)->id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, NULL, 0, 0);
		for (int i = 0; i < 3; i++)
		{
			pass(6 * SECOND);
			usleep(3000);
		}
		if (survives)
			ok(donor_verbs_connections == 1 && raw_ping(raw),
			   "%s says that a client is connected whose RTU is lost", ways[how]);
		else
			ok(await((pass(SECOND), donor_verbs_connections == 0)), "if %s does, it is given up", ways[how]);
		raw_free(raw);
		ok(await((pass(SECOND), donor_verbs_connections == 0)), "it goes (%s)", ways[how]);
	}
	mock_lose_rtu = false;
	check_left("a lost RTU");
}

/* What a device says of itself. */
static void
test_async(void)
{
	Plan	   *plan = plan_new(0x001);
	uint64_t	listens;
	Raw		   *other;
	Raw		   *raw;

	apply_all();
	raw = raw_connected(&plan->cred);
	mock_async(0, IBV_EVENT_PORT_ERR, NULL, 1);
	mock_async(0, IBV_EVENT_PORT_ACTIVE, NULL, 1);
	mock_async(0, IBV_EVENT_GID_CHANGE, NULL, 1);
	mock_async(0, IBV_EVENT_SM_CHANGE, NULL, 1);
	ok(raw_ping(raw), "what happens to a port ends no connection");
	other = raw_connected(&plan->cred);
	mock_async(0, IBV_EVENT_QP_FATAL, LIST_FIRST(&conns)->id->qp, 0);
	pass(SECOND);
	ok(await((pass(SECOND), donor_verbs_connections == 1)), "a queue pair that fails is closed");
	ok(raw_ping(raw), "no other");
	listens = mock_calls[MOCK_LISTEN];
	mock_async(0, IBV_EVENT_DEVICE_FATAL, NULL, 0);
	ok(await(donor_verbs_connections == 0), "a device that fails loses all connections");
	ok(await((pass(SECOND), mock_calls[MOCK_LISTEN] > listens)), "and is listened on again");
	raw_free(other);
	raw_free(raw);
	ok(await(mock_leaks(false) == 2 + stuck_objects()), "nothing is left on it");
	ok(can_connect(plan), "clients come again");
	check_left("what a device says");
}

/* A device is unplugged, with all that is on it. */
static void
test_removal(void)
{
	Plan	   *plan = plan_new(0x00f);
	RbpStatus	status;
	RbpConn    *conn;
	Raw		   *raw;
	uint8_t		buf[16];

	apply_all();
	conn = open_conn(&plan->cred, &status);
	if (conn == NULL || do_io(conn, RBP_IO_READ, 0, 0, buf, sizeof(buf)) != RBP_OK)
		abort();
	raw = raw_connected(&plan->cred);
	mock_remove_device(0);
	ok(await(donor_verbs_connections == 0), "a device goes, and all connections with it");
	ok(await(!mock_exposed(donor_regions[0].base, REGION_BYTES) &&
			 !mock_exposed(donor_regions[3].base, REGION_BYTES)), "and all keys");
	ops->close(conn);
	raw_free(raw);
	ok(remove_device(), "nothing is left on it, and the donor listens again when it is back");
	conn = open_conn(&plan->cred, &status);
	ok(conn != NULL && do_io(conn, RBP_IO_READ, 3, 0, buf, sizeof(buf)) == RBP_OK,
	   "clients come again, and have their regions");
	ops->close(conn);
	check_left("removal");
}

/* Wait until the donor listens again, and nothing is left of the device. */
static void
comes_back(uint64_t listens, const char *what)
{
	ok(await((pass(SECOND), mock_calls[MOCK_LISTEN] > listens)), "%s: the donor listens again", what);
	ok(await(mock_leaks(false) == 2 + stuck_objects()), "%s: nothing is left", what);
}

static int
hold_probes(const MockWork *work)
{
	return work->opcode == IBV_WR_RDMA_WRITE && work->len == 0 ? MOCK_HOLD : IBV_WC_SUCCESS;
}

/* It is unplugged at each step of a client. */
static void
test_removal_at_each_step(void)
{
	static const char *const steps[] = {
		"while a client is let in, and another one waits", "before a client has answered",
		"while keys are made", "while a key is ended", "while a client is probed",
		"while a client is closed"
	};

	for (int step = 0; step < (int) (sizeof(steps) / sizeof(steps[0])); step++)
	{
		Plan	   *plan = plan_new(0x00f);
		uint64_t	listens = mock_calls[MOCK_LISTEN];
		uint64_t	addr;
		uint32_t	key;
		Raw		   *raws[2] = {NULL};

		apply_all();
		mock_lose_rtu = step == 1;
		if (step == 0)
		{
			hold_queue_pairs();
			for (int i = 0; i < 2; i++)
				raws[i] = raw_asking(&plan->cred);
			if (!await(atomic_load(&mock_held_create_qp) == 1))
				wrong("no queue pair is made");
		}
		else
		{
			mock_register_us = step == 2 ? 20000 : 0;
			raws[0] = raw_connected(&plan->cred);
			if (!await(donor_verbs_connections == 1))
				wrong("a client is not counted");
		}
		if (step >= 3 && !await_key(raws[0], 3, &addr, &key))
			wrong("there is no key");
		if (step == 3)
		{
			mock_deregister_us = 20000;
			plan->mask = 0x007;
			apply();
		}
		else if (step == 4)
		{
			mock_hooks.on_work = hold_probes;
			pass(31 * SECOND);
			ok(await(LIST_FIRST(&conns)->probing), "a probe is under way");
		}
		else if (step == 5)
			raw_free(raws[0]);
		mock_remove_device(0);
		mock_hold_create_qp = false;
		ok(await(donor_verbs_connections == 0), "%s: all connections are ended", steps[step]);
		ok(await(!donor_regions_in(DONOR_REGION_DIRTY) && !mock_exposed(donor_regions[3].base, REGION_BYTES)), "%s: and all keys", steps[step]);
		mock_hold_channel = NULL;
		mock_register_us = mock_deregister_us = 0;
		mock_lose_rtu = false;
		mock_hooks.on_work = NULL;
		for (int i = 0; i < 2 && step != 5; i++)
			if (raws[i] != NULL)
				raw_free(raws[i]);
		comes_back(listens, steps[step]);
		ok(can_connect(plan), "%s: clients come again", steps[step]);
		plan_end(plan);
		check_left(steps[step]);
	}
}

/* A device whose queue pairs have one read in flight. */
static void
test_read_depth(void)
{
	Plan	   *plan = plan_new(0x001);
	uint8_t		buf[16];
	RbpStatus	status;
	RbpConn    *conn;

	apply_all();
	mock_limits.max_qp_rd_atom = 1;
	ok(remove_device(), "another device, of a read depth of 1");
	conn = open_conn(&plan->cred, &status);
	ok(conn != NULL && do_io(conn, RBP_IO_READ, 0, 0, buf, sizeof(buf)) == RBP_OK,
	   "who asks for more is let in with that");
	ops->close(conn);
	raw_free(raw_connected(&plan->cred));
	mock_limits.max_qp_rd_atom = 16;
	ok(remove_device() && can_connect(plan), "the first one is back");
	check_left("a read depth of 1");
}

/*
 * Clients that have given up while the donor was busy: those that wait are not
 * kept waiting for them.
 */
static void
test_given_up(void)
{
	Plan	   *plan = plan_new(0x001);
	Raw		   *raws[10];
	Raw		   *last;
	uint64_t	before;

	apply_all();
	hold_queue_pairs();
	for (int i = 0; i < 10; i++)
		raws[i] = raw_asking(&plan->cred);
	last = raw_asking(&plan->cred);
	if (!await(atomic_load(&mock_held_create_qp) == 1))
		wrong("no queue pair is made");
	for (int i = 1; i < 10; i++)
		raw_free(raws[i]);
	before = mock_calls[MOCK_CREATE_QP];
	atomic_store(&mock_hold_create_qp, false);
	is_u64((uint64_t) raw_next(raws[0], 5000), RDMA_CM_EVENT_ESTABLISHED, "the client that has taken so long is let in");
	is_u64((uint64_t) raw_next(last, 5000), RDMA_CM_EVENT_ESTABLISHED, "and the one that still waits");
	is_u64(mock_calls[MOCK_CREATE_QP] - before, 2, "nothing is made for those that have given up");
	raw_free(raws[0]);
	raw_free(last);
	mock_hold_channel = NULL;
	check_left("clients that have given up");
}

/*
 * A queue pair takes longer than clients wait for an answer: theirs are asked
 * for again, and the first ones are answered in vain.
 */
static void
test_slow_device(void)
{
	Plan	   *plan = plan_new(0x001);
	useconds_t	hold_us = 1200000;
	RbpStatus	status;
	RbpConn    *conn;
	pthread_t	thread;

	apply_all();
	hold_queue_pairs();
	if (pthread_create(&thread, NULL, mock_release_create_qp, &hold_us) != 0)
		abort();
	conn = open_conn(&plan->cred, &status);
	ok(conn != NULL, "a client is let in when the device is done: %s", rbp_status_text(status));
	pthread_join(thread, NULL);
	ok(await(donor_verbs_connections == 1), "what it had given up is given up here, too");
	ops->close(conn);
	mock_hold_channel = NULL;
	check_left("a slow device");
}

/*
 * ---- all at once -------------------------------------------------------------------------------------------
 */
static atomic_bool stop;
static atomic_ullong done_ios;
static atomic_ullong denied_ios;

static bool
all_ours(const uint8_t *buf, size_t len, uint8_t stamp)
{
	for (size_t i = 0; i < len; i++)
		if (buf[i] != 0 && buf[i] != stamp)
			return false;
	return true;
}

/*
 * A client of whatever lease there is, which goes on with what it knew for
 * some time after that has changed.
 */
static void *
client_main(void *arg)
{
	unsigned int seed = (unsigned int) (uintptr_t) arg;
	uint8_t		buf[512];

	while (!atomic_load(&stop))
	{
		const Plan *plan = &plans[(uint32_t) rand_r(&seed) % PLANS];
		Plan		known;
		RbpStatus	status;
		RbpConn    *conn;

		pthread_mutex_lock(&plan_lock);
		known = *plan;
		pthread_mutex_unlock(&plan_lock);
		if (!known.live)
		{
			usleep(200);
			continue;
		}
		conn = open_conn(&known.cred, &status);
		/* RBP_BUSY: too many were denied */
		if (status != RBP_OK && status != RBP_DENIED && status != RBP_CONNLOST &&
			status != RBP_BUSY)
			wrong("connect: %s", rbp_status_text(status));
		for (int n = rand_r(&seed) % 60; conn != NULL && n > 0; n--)
		{
			bool		writing = rand_r(&seed) % 2 == 0;
			uint32_t	region = (uint32_t) rand_r(&seed) % NREGIONS;
			RbpIo		io = {
				.kind = writing ? RBP_IO_WRITE : RBP_IO_READ,
				.region = region,.grant = known.grants[region],
				.offset = (uint64_t) (rand_r(&seed) % 100) * sizeof(buf),
				.len = sizeof(buf),.buf = buf
			};

			memset(buf, writing ? known.stamp : 0, sizeof(buf));
			(void) ops->submit(conn, &io, 1);
			status = ops->wait(conn, &io, 1, in_ms(10000));
			if (status == RBP_OK && !all_ours(buf, sizeof(buf), known.stamp))
				wrong("region %u, read for %u, has %u in it", region, known.stamp, buf[0]);
			if (status == RBP_OK)
				atomic_fetch_add(&done_ios, 1);
			else if (status == RBP_DENIED)
				atomic_fetch_add(&denied_ios, 1);
			else if (status != RBP_CANCELED && status != RBP_CONNLOST)
				wrong("request: %s", rbp_status_text(status));
			if (status == RBP_CONNLOST)
				break;
			if (rand_r(&seed) % 4 == 0)
				usleep((useconds_t) (rand_r(&seed) % 500));
			if (rand_r(&seed) % 8 == 0)
			{
				pthread_mutex_lock(&plan_lock);
				if (strcmp(plan->cred.lease, known.cred.lease) == 0)
					known = *plan;
				pthread_mutex_unlock(&plan_lock);
			}
		}
		ops->close(conn);
	}
	return NULL;
}

static void
test_all_at_once(void)
{
	unsigned int seed = 99;
	pthread_t	threads[3];
	int64_t		until = in_ms(3000);
	uint32_t	words = 0;
	uint32_t	grants = 100;
	uint32_t	before = atomic_load(&wrongs);

	mock_register_us = 300;
	mock_deregister_us = 200;
	for (uintptr_t i = 0; i < 3; i++)
		if (pthread_create(&threads[i], NULL, client_main, (void *) (i + 1)) != 0)
			abort();
	while (rbp_now_ns() < until)
	{
		Plan	   *plan = &plans[(uint32_t) rand_r(&seed) % 4];
		uint32_t	region = (uint32_t) rand_r(&seed) % NREGIONS;
		uint32_t	choice = (uint32_t) rand_r(&seed) % 32;

		pthread_mutex_lock(&plan_lock);
		if (!plan->live)
		{
			pthread_mutex_unlock(&plan_lock);
			plan = plan_new(0);
			pthread_mutex_lock(&plan_lock);
		}
		else if (choice == 0)
			plan->live = false;
		else if (choice == 1)
			plan->deadline_ns = rbp_boottime_ns() + (rand_r(&seed) % 5) * MS;
		else
		{
			/* the region is this lease's now, or nobody's */
			for (int p = 0; p < PLANS; p++)
				plans[p].mask &= ~(1u << region);
			if (choice < 24)
			{
				plan->mask |= 1u << region;
				plan->grants[region] = ++grants;
			}
		}
		pthread_mutex_unlock(&plan_lock);
		apply();
		if (rand_r(&seed) % 4 == 0)
			say();
		if (rand_r(&seed) % 16 == 0)
			pass(SECOND);
		if (rand_r(&seed) % 400 == 0)
			mock_remove_device(0);
		usleep((useconds_t) (rand_r(&seed) % 3000));
		words++;
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	mock_register_us = mock_deregister_us = 0;
	diag("%u words, %llu requests done, %llu denied", words, atomic_load(&done_ios),
		 atomic_load(&denied_ios));
	ok(atomic_load(&done_ios) > 50 && atomic_load(&denied_ios) > 5,
	   "clients use regions while they come and go");
	is_u64(atomic_load(&wrongs) - before, 0, "with nothing out of order");

	/* the device may just be gone */
	for (int i = 0; i < 3; i++)
	{
		pass(SECOND);
		usleep(5000);
	}
	{
		Plan	   *plan;

		for (int p = 0; p < PLANS; p++)
			plans[p].live = false;
		plan = plan_new(0x001);
		apply_all();
		ok(can_connect(plan), "and it goes on");
	}
	check_left("all at once");
}

int
main(void)
{
	donor_nregions = NREGIONS;
	donor_region_size = REGION_BYTES;
	donor_regions = calloc(NREGIONS, sizeof(RbpDonorRegion));
	if (donor_regions == NULL)
		abort();
	for (uint32_t i = 0; i < NREGIONS; i++)
	{
		donor_regions[i].base = new_memory();
		donor_regions[i].fd = -1;
	}
	rbp_log_init("test_donor_verbs", RBP_LOG_ERROR);
	test_start();
	donor_lease_set_rdma(&donor_verbs_rdma);
	donor_lease_init(0, LEASE_CONNECTIONS, 10 * LEASE_CONNECTIONS);
	baseline = 4;				/* channel and id to listen; the device's two */

	test_handshake();
	test_denials();
	test_new_secret();
	test_full_lease();
	test_keys();
	test_same_key();
	test_idle_clients();
	test_late_key();
	test_while_used();
	test_clients();
	test_pings();
	test_turns();
	test_lost_rtu();
	test_async();
	test_removal();
	test_removal_at_each_step();
	test_read_depth();
	test_given_up();
	test_slow_device();
	test_failures();
	test_stuck_key();
	test_all_at_once();
	is_u64(atomic_load(&wrongs), 0, "nothing happened out of order");
	remove_sysfs();
	return done_testing();
}
