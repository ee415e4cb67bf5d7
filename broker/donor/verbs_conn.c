/*-------------------------------------------------------------------------
 *
 * verbs_conn.c
 *	  Connections of RDMA clients: handshake, and end.
 *
 * The handshake is described under "Over verbs" in docs/protocol.md.  A
 * connection is an rdma_cm id with a queue pair in the protection domain of
 * its lease, a CQ, and an MR for its requests and answers.  The verbs thread
 * makes and frees these objects, the ping thread works with them in between.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/common/log.h"
#include "broker/common/places.h"
#include "broker/donor/proofs.h"
#include "broker/donor/verbs_internal.h"
#include "common/clock.h"
#include "common/status.h"

#include <errno.h>
#include <netdb.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENDED_IDLE_NS	INT64_C(10000000000)
#define BROKEN_NS		INT64_C(1000000000)
#define PROBE_NS		INT64_C(30000000000)
#define RNR_RETRIES		6
static RbpDonorVerbsConnList conns = LIST_HEAD_INITIALIZER(conns);
atomic_uint donor_verbs_connections;
_Atomic uint64_t donor_verbs_denied;

/* Free a connection except its id. */
static void
release_conn(RbpDonorVerbsConn *conn)
{
	LIST_REMOVE(conn, link);
	donor_verbs_stop_pings(conn);

	/* after this, the device uses neither buffers nor regions */
	rdma_destroy_qp(conn->id);
	(void) ibv_destroy_cq(conn->cq);
	(void) ibv_dereg_mr(conn->mr);
	donor_lease_disconnect(conn->client);
	conn->domain->nconns--;
	atomic_fetch_sub(&donor_verbs_connections, 1);
}

void
donor_verbs_close(RbpDonorVerbsConn *conn)
{
	/* to notify the client, which may be gone */
	(void) rdma_disconnect(conn->id);
	release_conn(conn);
	(void) rdma_destroy_id(conn->id);
	free(conn);
}

void
donor_verbs_release_conns(const RbpDonorVerbsDevice *device, RbpDonorVerbsConnList *gone)
{
	RbpDonorVerbsConn *next;

	LIST_INIT(gone);
	for (RbpDonorVerbsConn *conn = LIST_FIRST(&conns); conn != NULL; conn = next)
	{
		next = LIST_NEXT(conn, link);
		if (conn->domain->device != device)
			continue;
		release_conn(conn);
		LIST_INSERT_HEAD(gone, conn, link);
	}
}

void
donor_verbs_free_released(RbpDonorVerbsConnList *gone)
{
	RbpDonorVerbsConn *next;

	for (RbpDonorVerbsConn *conn = LIST_FIRST(gone); conn != NULL; conn = next)
	{
		next = LIST_NEXT(conn, link);
		(void) rdma_destroy_id(conn->id);
		free(conn);
	}
}

/*
 * ---- handshake -----------------------------------------------------------
 */
static void
log_refusal(struct rdma_cm_id *id, RbpLogLevel level, const char *why)
{
	char		address[NI_MAXHOST];

	rbp_log_repeated(level, "RDMA: refused a client from %s: %s",
					 rbp_format_address(rdma_get_peer_addr(id), address, sizeof(address)), why);
}

static void
refuse(struct rdma_cm_id *id, uint16_t status)
{
	RbpWireVerbsWelcome welcome = {.status = status};
	uint8_t		buf[RBP_VERBS_WELCOME_SIZE];

	(void) rdma_reject(id, buf, (uint8_t) rbp_wire_put_verbs_welcome(buf, &welcome));
	(void) rdma_destroy_id(id);
}

/*
 * Does the client still wait for an answer?  If it has given its request up,
 * and begun another one, our system knows that, but reports it only when we
 * try to accept, which takes milliseconds.  After a while in which more
 * requests have come than we can handle, most of them are such.
 */
static bool
still_waits(struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	int			mask;

	/* has no effect, and needs a request that is not rejected */
	return rdma_init_qp_attr(id, &attr, &mask) == 0;
}

/* A client's request, and by what both ends prove themselves */
typedef struct Handshake
{
	RbpWireVerbsHello hello;
	uint32_t	qpn;			/* the client's */
	unsigned int key_number;
	uint8_t		key[RBP_SECRET_LEN];
} Handshake;

/*
 * The lease whose key the client has proved to know, with a reference for
 * the caller, and the key; NULL if it has not.  An unknown lease fails like a
 * wrong key, after the same time.
 */
static RbpDonorLease *
authenticate(struct rdma_cm_id *id, Handshake *shake)
{
	RbpDonorLease *lease = donor_lease_find_digest(shake->hello.digest);
	uint8_t		ours[RBP_MAC_LEN];
	bool		proven;

	shake->key_number = donor_lease_key(lease, shake->key);
	proven = rbp_verbs_mac(shake->key, &shake->hello, rdma_get_peer_addr(id), shake->qpn, NULL, ours) &&
		CRYPTO_memcmp(ours, shake->hello.mac, RBP_VERBS_MAC_LEN) == 0;
	if (proven && lease != NULL && rbp_boottime_ns() < atomic_load(&lease->deadline_ns))
		return lease;
	donor_lease_unref(lease);
	return NULL;
}

/*
 * Create the queue pair, MR and CQ of a connection.  False, with a log
 * message, if that fails.
 */
static bool
make_queue_pair(RbpDonorVerbsConn *conn)
{
	RbpDonorVerbsDevice *device = conn->domain->device;
	struct ibv_qp_init_attr qp = {
		.qp_context = conn,
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = RBP_VERBS_PINGS + 1,
			.max_recv_wr = RBP_VERBS_PINGS,
			.max_send_sge = 1,
			.max_recv_sge = 1
		}
	};

	conn->mr = ibv_reg_mr(conn->domain->pd, conn, sizeof(*conn), IBV_ACCESS_LOCAL_WRITE);
	if (conn->mr != NULL)
		conn->cq = ibv_create_cq(device->verbs, DONOR_VERBS_CQ_SIZE, conn,
								 device->channel, 0);
	if (conn->cq != NULL && (errno = ibv_req_notify_cq(conn->cq, 0)) == 0)
	{
		qp.send_cq = qp.recv_cq = conn->cq;
		if (rbp_verbs_set_options(conn->id) != RBP_OK)
			donor_verbs_log_failure(errno, "set the ack timeout");
		if (rdma_create_qp(conn->id, conn->domain->pd, &qp) == 0)
			return true;
	}
	donor_verbs_log_failure(errno, "make a queue pair");
	if (conn->cq != NULL)
		(void) ibv_destroy_cq(conn->cq);
	if (conn->mr != NULL)
		(void) ibv_dereg_mr(conn->mr);
	return false;
}

/*
 * Create a connection with its objects; NULL, with a log message, if that
 * fails.
 */
static RbpDonorVerbsConn *
make_conn(struct rdma_cm_id *id, RbpDonorLeaseDomain *domain, unsigned int key_number)
{
	RbpDonorVerbsConn *conn = calloc(1, sizeof(*conn));

	if (conn == NULL)
	{
		donor_verbs_log_failure(errno, "set up a connection");
		return NULL;
	}
	conn->id = id;
	conn->domain = domain;
	conn->key_number = key_number;
	conn->since = conn->probed_at = rbp_boottime_ns();
	if (make_queue_pair(conn))
		return conn;
	free(conn);
	return NULL;
}

/*
 * Create a connection, and accept it.  Takes over the reference.  On failure
 * returns false and leaves the id to the caller.
 */
static bool
accept_client(struct rdma_cm_id *id, RbpDonorLease *lease, const Handshake *shake, uint8_t reads)
{
	RbpDonorLeaseDomain *domain = donor_verbs_get_domain(lease, donor_verbs_get_device(id));
	struct rdma_conn_param param = {.rnr_retry_count = RNR_RETRIES};
	RbpWireVerbsWelcome welcome = {
		.status = RBP_WIRE_OK,
		.regions = donor_nregions,
		.region_size = donor_region_size
	};
	uint8_t		buf[RBP_VERBS_WELCOME_SIZE];
	char		text[DONOR_LEASE_TEXT_LEN];
	char		why[sizeof(text) + sizeof(DONOR_CLIENT_IS_FULL)];
	RbpDonorVerbsConn *conn;
	RbpDonorClient *client;
	bool		ready;

	if (domain == NULL)
		return false;
	client = donor_lease_connect(domain->lease);
	if (client == NULL)
	{
		snprintf(why, sizeof(why), "%s " DONOR_CLIENT_IS_FULL, donor_lease_text(domain->lease, text));
		log_refusal(id, RBP_LOG_WARNING, why);
		return false;
	}
	conn = make_conn(id, domain, shake->key_number);
	if (conn == NULL)
	{
		donor_lease_disconnect(client);
		return false;
	}

	conn->client = client;
	LIST_INSERT_HEAD(&conns, conn, link);
	domain->nconns++;
	atomic_fetch_add(&donor_verbs_connections, 1);

	welcome.table_key = domain->table_mr->rkey;
	welcome.table_address = (uintptr_t) domain->table;
	ready = rbp_verbs_mac(shake->key, &shake->hello, rdma_get_peer_addr(id), shake->qpn, &welcome, welcome.mac);
	for (uint32_t i = 0; i < RBP_VERBS_PINGS && ready; i++)
		ready = donor_verbs_post_receive(conn, i);
	rbp_wire_put_verbs_welcome(buf, &welcome);
	param.private_data = buf;
	param.private_data_len = sizeof(buf);
	param.responder_resources = reads < domain->device->max_reads ?
		reads : (uint8_t) domain->device->max_reads;
	id->context = conn;
	if (ready && rdma_accept(id, &param) == 0)
		return true;

	id->context = NULL;
	donor_verbs_log_failure(errno, "accept a connection");
	release_conn(conn);
	free(conn);
	return false;
}

void
donor_verbs_handle_request(struct rdma_cm_id *id, const uint8_t *hello_bytes, size_t len,
						   uint32_t qpn, uint8_t reads)
{
	uint64_t	peer = rbp_place_holder_of(rdma_get_peer_addr(id));
	uint16_t	status = RBP_WIRE_DENIED;
	RbpLogLevel level = RBP_LOG_WARNING;
	const char *why = NULL;
	Handshake	shake = {.qpn = qpn};
	bool		accepted = false;
	RbpDonorLease *lease;

	if (!still_waits(id))
	{
		(void) rdma_destroy_id(id);
		return;
	}
	if (!rbp_verbs_is_configured(id))
	{
		/* not an address that we serve: reject without an answer */
		(void) rdma_reject(id, NULL, 0);
		(void) rdma_destroy_id(id);
		return;
	}
	if (!rbp_wire_get_verbs_hello(hello_bytes, len, &shake.hello))
		why = "it does not speak this protocol";
	else if (shake.hello.version != RBP_WIRE_VERSION)
	{
		why = "it speaks another version of the protocol";
		status = RBP_WIRE_VERSION_MISMATCH;
	}
	else if (atomic_load(&donor_verbs_connections) >= DONOR_MAX_CONNECTIONS)
	{
		why = "there are too many connections";
		status = RBP_WIRE_BUSY;
	}
	else if ((lease = authenticate(id, &shake)) == NULL)
	{
		/* mostly a lease that has just ended */
		why = "there is no such lease, or no more, or its proof is wrong";
		level = RBP_LOG_INFO;
	}
	else if (!donor_proof_allowed(peer))
	{
		donor_lease_unref(lease);
		why = DONOR_PROOFS_ARE_MANY;
		status = RBP_WIRE_BUSY;
		atomic_fetch_add(&donor_verbs_denied, 1);
	}
	else if (!(accepted = accept_client(id, lease, &shake, reads)))
		status = RBP_WIRE_BUSY;
	explicit_bzero(shake.key, sizeof(shake.key));
	if (accepted)
		return;
	if (why != NULL)
		log_refusal(id, level, why);
	if (status == RBP_WIRE_DENIED)
		atomic_fetch_add(&donor_verbs_denied, 1);
	refuse(id, status);
}

/* Has the connection ended, or failed? */
static bool
is_over(RbpDonorVerbsConn *conn, int64_t now)
{
	RbpDonorLeaseDomain *domain = conn->domain;

	if (domain->ended_at == 0 && atomic_load(&domain->lease->ended))
		domain->ended_at = now;
	if (domain->ended_at != 0 && now - domain->ended_at > ENDED_IDLE_NS)
		return true;
	if (!donor_lease_has_key(domain->lease, conn->key_number))
		return true;
	if (conn->broken_at != 0)
		return now - conn->broken_at > BROKEN_NS;
	if (!conn->established)
		return now - conn->since > RBP_VERBS_HANDSHAKE_NS;
	if (conn->probing || now - conn->probed_at <= PROBE_NS)
		return false;
	conn->probed_at = now;
	return !donor_verbs_probe(conn);
}

void
donor_verbs_tick_conns(int64_t now)
{
	RbpDonorVerbsConn *next;

	for (RbpDonorVerbsConn *conn = LIST_FIRST(&conns); conn != NULL; conn = next)
	{
		next = LIST_NEXT(conn, link);
		if (is_over(conn, now))
			donor_verbs_close(conn);
	}
}
