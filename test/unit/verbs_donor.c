/*-------------------------------------------------------------------------
 *
 * verbs_donor.c
 *	  See verbs_donor.h.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/status.h"
#include "transport/peer.h"
#include "transport/transport.h"
#include "wire/wire.h"
#include "verbs_donor.h"

#include <stdlib.h>
#include <string.h>

Donor		donor;
const RbpTransportOps *const ops = &rbp_transport_verbs;
const RbpCredentials cred = {
	.lease = "0f8fad5b-d9cb-469f-a165-70867728950e",
	.secret = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}
};
const RbpEndpoint ep = {
	.donor = "d1",
	.transports = RBP_TRANSPORT_VERBS,
	.rdma_host = "10.0.0.77",
	.rdma_port = 7481
};

static uint32_t violations_before;

void
pattern(void *buf, size_t len, uint32_t seed)
{
	uint8_t    *p = buf;

	for (size_t i = 0; i < len; i++)
	{
		seed = seed * 1103515245 + 12345;
		p[i] = (uint8_t) (seed >> 16);
	}
}

bool
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

void
set_entry(uint32_t number, RbpVerbsEntryState state, uint64_t iova, uint32_t key)
{
	rbp_wire_put_verbs_entry(donor.table + (size_t) number * RBP_VERBS_ENTRY_SIZE,
							 state, number, iova, key);
}

void
make_torn(uint32_t number)
{
	set_entry(number, RBP_VERBS_ENTRY_READY, 0x1234, 0x5678);
	donor.table[(size_t) number * RBP_VERBS_ENTRY_SIZE] ^= 1;
}

/* A new key, and the old one is dead. */
void
grant(int i)
{
	Live	   *live = &donor.live[i];

	if (live->key != 0)
		mock_remote_dereg(live->key);
	live->iova += UINT64_C(0x100000000);
	live->key = mock_remote_mr(live->mem, donor.region_bytes, live->iova,
							   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	set_entry(live->number, RBP_VERBS_ENTRY_READY, live->iova, live->key);
}

void
take_back(int i)
{
	set_entry(donor.live[i].number, RBP_VERBS_ENTRY_NONE, 0, 0);
	mock_remote_dereg(donor.live[i].key);
	donor.live[i].key = 0;
}

int
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

	if (!rbp_wire_get_request(request, RBP_REQUEST_SIZE, &req) || req.prefix.op != RBP_OP_PING)
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

void
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
				RbpWireRequest req = {.prefix.op = RBP_OP_PING,.id = 0x123456};

				rbp_wire_put_request(other, &req);
				answer_ping(qp, other);
				break;
			}
	}
}

void
put_welcome(uint16_t status)
{
	RbpWireVerbsWelcome welcome = {.status = status};

	if (status == RBP_WIRE_OK)
	{
		welcome.regions = REGIONS;
		welcome.region_size = donor.region_bytes;
		welcome.table_key = donor.table_key;
		welcome.table_address = donor.table_iova;
	}
	donor.answer_len = (uint8_t) rbp_wire_put_verbs_welcome(donor.answer_data, &welcome);
}

void
answer_connect(struct rdma_cm_id *id)
{
	mock_event(id, donor.answer, donor.answer_status, donor.answer_data,
			   donor.answer_len, donor.answer_delay);
}

static void
on_connect(struct rdma_cm_id *id, const struct rdma_conn_param *param)
{
	RbpWireVerbsHello hello;
	RbpWireVerbsWelcome welcome;
	uint8_t		digest[RBP_VERBS_DIGEST_LEN];
	uint8_t		key[RBP_SECRET_LEN];
	uint8_t		mac[RBP_MAC_LEN];

	donor.requests++;
	donor.param = *param;
	donor.receives_at_connect = mock_receives(id->qp);
	donor.hello_ok = param->private_data_len == RBP_VERBS_HELLO_SIZE &&
		rbp_wire_get_verbs_hello(param->private_data, param->private_data_len, &hello) &&
		hello.version == RBP_WIRE_VERSION &&
		rbp_verbs_lease_digest(cred.lease, digest) &&
		memcmp(digest, hello.digest, sizeof(digest)) == 0 &&
		rbp_donor_key(cred.secret, ep.donor, key) &&
		rbp_verbs_mac(key, &hello, rdma_get_local_addr(id), id->qp->qp_num, NULL, mac) &&
		memcmp(mac, hello.mac, sizeof(hello.mac)) == 0;
	if (donor.hello_ok && donor.answer_len == RBP_VERBS_WELCOME_SIZE)
	{
		memcpy(&welcome, donor.answer_data, sizeof(welcome));
		(void) rbp_verbs_mac(key, &hello, rdma_get_local_addr(id), id->qp->qp_num, &welcome, welcome.mac);
		if (donor.tamper != NULL)
			donor.tamper(&welcome);
		memcpy(donor.answer_data, &welcome, sizeof(welcome));
	}
	if (!donor.silent)
		answer_connect(id);
}

void
begin_test(void)
{
	begin_test_sized(REGION_BYTES);
}

void
begin_test_sized(size_t region_bytes)
{
	static const uint32_t numbers[LIVE] = {0, 5, 511, REGIONS - 1};

	mock_reset();
	memset(&donor, 0, sizeof(donor));
	donor.region_bytes = region_bytes;
	donor.table = calloc(REGIONS, RBP_VERBS_ENTRY_SIZE);
	donor.table_iova = UINT64_C(0x7000000000) + 16;
	donor.table_key = mock_remote_mr(donor.table, REGIONS * RBP_VERBS_ENTRY_SIZE,
									 donor.table_iova, IBV_ACCESS_REMOTE_READ);
	for (int i = 0; i < LIVE; i++)
	{
		donor.live[i].number = numbers[i];
		donor.live[i].mem = malloc(region_bytes);
		pattern(donor.live[i].mem, region_bytes, (uint32_t) i + 1);
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

bool
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

int64_t
in_ms(int64_t ms)
{
	return rbp_now_ns() + ms * MS;
}

RbpConn *
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

RbpIo
make_io(RbpIoKind kind, int live, uint64_t offset, uint32_t len, void *buf)
{
	return (RbpIo)
	{
		.kind = kind,.region = donor.live[live].number,.offset = offset,
			.len = len,.buf = buf
	};
}

RbpIo
make_ping(void)
{
	return (RbpIo)
	{
		.kind = RBP_IO_PING
	};
}

RbpStatus
run(RbpConn *conn, RbpIo *ios, int n, int64_t ms)
{
	(void) ops->submit(conn, ios, n);
	return ops->wait(conn, ios, n, in_ms(ms));
}

RbpStatus
run_one(RbpConn *conn, RbpIo io, int64_t ms)
{
	return run(conn, &io, 1, ms);
}

RbpStatus
read_some(RbpConn *conn, int live, uint64_t offset, uint32_t len, void *buf)
{
	return run_one(conn, make_io(RBP_IO_READ, live, offset, len, buf), 2000);
}

RbpStatus
ping(RbpConn *conn, int64_t ms)
{
	return run_one(conn, make_ping(), ms);
}

bool
alive(RbpConn *conn)
{
	uint8_t		buf[100];

	return read_some(conn, 0, 50, sizeof(buf), buf) == RBP_OK &&
		memcmp(buf, donor.live[0].mem + 50, sizeof(buf)) == 0;
}

bool
lost(RbpConn *conn)
{
	uint8_t		buf[100];
	RbpIo		io = make_io(RBP_IO_READ, 0, 0, sizeof(buf), buf);
	RbpStatus	status = ops->submit(conn, &io, 1);

	return status == RBP_CONNLOST && io.status == RBP_CONNLOST &&
		ops->wait(conn, &io, 1, in_ms(100)) == RBP_CONNLOST;
}
