/*-------------------------------------------------------------------------
 *
 * raw_verbs.c
 *	  See raw_verbs.h.
 *
 *-------------------------------------------------------------------------
 */
#include "raw_verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/clock.h"
#include "transport/peer.h"
#include "wire/wire.h"

/* The next event; *welcome gets its private data, if they are one. */
static enum rdma_cm_event_type
next_event(Raw *raw)
{
	struct pollfd pfd = {.fd = raw->channel->fd,.events = POLLIN};
	struct rdma_cm_event *event;
	enum rdma_cm_event_type type;

	if (poll(&pfd, 1, (int) (patience(5) / 1000000)) != 1 ||
		rdma_get_cm_event(raw->channel, &event) != 0)
		bail_out("no event: %s", strerror(errno));
	type = event->event;
	raw->welcomed = event->param.conn.private_data != NULL &&
		rbp_wire_get_verbs_welcome(event->param.conn.private_data,
								   event->param.conn.private_data_len, &raw->welcome);
	rdma_ack_cm_event(event);
	return type;
}

Raw *
raw_prepare(const Lease *lease)
{
	Raw		   *raw = must_alloc(sizeof(*raw));
	struct sockaddr_in addr = {.sin_family = AF_INET,.sin_port = htons(lease->ep.rdma_port)};
	struct ibv_qp_init_attr attr = {
		.cap = {.max_send_wr = 4,.max_recv_wr = 1,.max_send_sge = 1,.max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};

	memset(raw, 0, sizeof(*raw));
	if (inet_pton(AF_INET, lease->ep.rdma_host, &addr.sin_addr) != 1)
		bail_out("not an IPv4 address: %s", lease->ep.rdma_host);
	raw->channel = rdma_create_event_channel();
	if (raw->channel == NULL ||
		rdma_create_id(raw->channel, &raw->id, NULL, RDMA_PS_TCP) != 0 ||
		rdma_resolve_addr(raw->id, NULL, (struct sockaddr *) &addr, 2000) != 0 ||
		next_event(raw) != RDMA_CM_EVENT_ADDR_RESOLVED ||
		rdma_resolve_route(raw->id, 2000) != 0 ||
		next_event(raw) != RDMA_CM_EVENT_ROUTE_RESOLVED)
		bail_out("no route to %s: %s", lease->ep.rdma_host, strerror(errno));
	raw->buffer = must_alloc(RAW_BUFFER);
	raw->pd = ibv_alloc_pd(raw->id->verbs);
	raw->cq = ibv_create_cq(raw->id->verbs, 8, NULL, NULL, 0);
	if (raw->pd != NULL)
		raw->mr = ibv_reg_mr(raw->pd, raw->buffer, RAW_BUFFER, IBV_ACCESS_LOCAL_WRITE);
	attr.send_cq = attr.recv_cq = raw->cq;
	if (raw->cq == NULL || raw->mr == NULL || rdma_create_qp(raw->id, raw->pd, &attr) != 0)
		bail_out("no queue pair: %s", strerror(errno));
	return raw;
}

void
raw_hello(const Raw *raw, const Lease *lease, uint8_t message[RBP_VERBS_HELLO_SIZE])
{
	RbpWireVerbsHello hello = {.version = RBP_WIRE_VERSION};
	uint8_t		key[RBP_SECRET_LEN];
	uint8_t		mac[RBP_MAC_LEN];

	if (getrandom(hello.nonce, sizeof(hello.nonce), 0) != sizeof(hello.nonce) ||
		!rbp_verbs_lease_digest(lease->cred.lease, hello.digest) ||
		!rbp_donor_key(lease->cred.secret, lease->ep.donor, key) ||
		!rbp_verbs_mac(key, &hello, rdma_get_local_addr(raw->id), raw->id->qp->qp_num, NULL, mac))
		bail_out("no proof");
	memcpy(hello.mac, mac, sizeof(hello.mac));
	rbp_wire_put_verbs_hello(message, &hello);
}

enum rdma_cm_event_type
raw_request(Raw *raw, const void *message, uint8_t len)
{
	struct rdma_conn_param param = {
		.private_data = message,
		.private_data_len = len,
		.initiator_depth = 4,
		.retry_count = 6,
		.rnr_retry_count = 6,
	};

	if (rdma_connect(raw->id, &param) != 0)
		bail_out("rdma_connect: %s", strerror(errno));
	return next_event(raw);
}

Raw *
raw_connect(const Lease *lease)
{
	Raw		   *raw = raw_prepare(lease);
	uint8_t		message[RBP_VERBS_HELLO_SIZE];

	raw_hello(raw, lease, message);
	if (raw_request(raw, message, sizeof(message)) != RDMA_CM_EVENT_ESTABLISHED ||
		!raw->welcomed || raw->welcome.status != RBP_WIRE_OK)
		bail_out("the donor does not take us");
	return raw;
}

static enum ibv_wc_status
work(Raw *raw, enum ibv_wr_opcode opcode, uint64_t address, uint32_t key,
	 uint32_t len)
{
	struct ibv_sge sge = {.addr = (uintptr_t) raw->buffer,.length = len,.lkey = raw->mr->lkey};
	struct ibv_send_wr wr = {
		.opcode = opcode,
		.sg_list = &sge,
		.num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = address,.rkey = key},
	};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int64_t		until = rbp_now_ns() + patience(5);
	int			n;

	if (ibv_post_send(raw->id->qp, &wr, &bad) != 0)
		bail_out("nothing can be posted");
	while ((n = ibv_poll_cq(raw->cq, 1, &wc)) == 0)
		if (rbp_now_ns() > until)
			bail_out("a work request does not end");
	if (n < 0)
		bail_out("ibv_poll_cq fails");
	return wc.status;
}

enum ibv_wc_status
raw_read(Raw *raw, uint64_t address, uint32_t key, uint32_t len)
{
	return work(raw, IBV_WR_RDMA_READ, address, key, len);
}

enum ibv_wc_status
raw_write(Raw *raw, uint64_t address, uint32_t key, uint32_t len)
{
	return work(raw, IBV_WR_RDMA_WRITE, address, key, len);
}

RawEntry
raw_entry(Raw *raw, uint32_t region)
{
	int64_t		until = rbp_now_ns() + patience(10);
	RawEntry	entry;

	do
	{
		enum ibv_wc_status status = raw_read(raw, raw->welcome.table_address + region * RBP_VERBS_ENTRY_SIZE,
											 raw->welcome.table_key, RBP_VERBS_ENTRY_SIZE);

		if (status != IBV_WC_SUCCESS)
			bail_out("the table cannot be read: %d", (int) status);
		entry.state = rbp_wire_get_verbs_entry(raw->buffer, region, &entry.address, &entry.key);
	} while ((entry.state == RBP_VERBS_ENTRY_PENDING || entry.state == RBP_VERBS_ENTRY_TORN) &&
			 rbp_now_ns() < until);
	return entry;
}

void
raw_close(Raw *raw)
{
	(void) rdma_disconnect(raw->id);
	rdma_destroy_qp(raw->id);
	(void) ibv_destroy_cq(raw->cq);
	(void) ibv_dereg_mr(raw->mr);
	(void) ibv_dealloc_pd(raw->pd);
	(void) rdma_destroy_id(raw->id);
	rdma_destroy_event_channel(raw->channel);
	free(raw->buffer);
	free(raw);
}
