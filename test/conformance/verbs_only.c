/*-------------------------------------------------------------------------
 *
 * verbs_only.c
 *	  See verbs_only.h.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/status.h"
#include "transport/transport.h"
#include "wire/wire.h"
#include "harness.h"
#include "raw_verbs.h"
#include "tap.h"
#include "verbs_only.h"

#include <rdma/rdma_cma.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE		8192
#define LONG_TTL	3600000

static const RbpTransportOps *const ops = &rbp_transport_verbs;

/*
 * ---- keys -------------------------------------------------------------------
 */

/* After an error, a queue pair is of no use. */
static Raw *
another(Raw *raw, const Lease *lease)
{
	raw_close(raw);
	return raw_connect(lease);
}

/* Is every byte of the region as given, as its holder sees it? */
static bool
region_is(RbpConn *conn, uint32_t region, uint8_t value)
{
	uint8_t    *bytes = must_alloc(REGION_SIZE);
	bool		result = do_io(conn, RBP_IO_READ, region, 0, bytes, REGION_SIZE, patience(5)) == RBP_OK &&
	all_bytes(bytes, REGION_SIZE, value);

	free(bytes);
	return result;
}

static bool
fill_region(RbpConn *conn, uint32_t region, uint8_t value)
{
	uint8_t    *bytes = must_alloc(REGION_SIZE);
	RbpStatus	status;

	memset(bytes, value, REGION_SIZE);
	status = do_io(conn, RBP_IO_WRITE, region, 0, bytes, REGION_SIZE, patience(5));
	free(bytes);
	return status == RBP_OK;
}

/*
 * The key is refused, for reading and for writing, and nothing comes of it here;
 * returns a queue pair in place of the one that this costs.
 */
static Raw *
refused(Raw *raw, const Lease *lease, RawEntry entry, const char *what)
{
	enum ibv_wc_status rd;
	enum ibv_wc_status wr;

	memset(raw->buffer, 0x5A, RAW_BUFFER);
	rd = raw_read(raw, entry.address, entry.key, RAW_BUFFER);
	ok(rd == IBV_WC_REM_ACCESS_ERR && all_bytes(raw->buffer, RAW_BUFFER, 0x5A), "%s: reading is refused (%s)",
	   what, ibv_wc_status_str(rd));
	raw = another(raw, lease);
	memset(raw->buffer, 0x5A, RAW_BUFFER);
	wr = raw_write(raw, entry.address, entry.key, RAW_BUFFER);
	ok(wr == IBV_WC_REM_ACCESS_ERR, "%s: writing is refused (%s)", what, ibv_wc_status_str(wr));
	return another(raw, lease);
}

static uint32_t
not_in(const Lease *lease)
{
	for (uint32_t region = 0;; region++)
	{
		int			i = 0;

		while (i < lease->nregions && lease->regions[i] != region)
			i++;
		if (i == lease->nregions)
			return region;
	}
}

void
test_keys(void)
{
	Lease		mine;
	Lease		theirs;
	Raw		   *raw;
	Raw		   *other;
	RbpConn    *conn;
	RawEntry	kept;
	RawEntry	given;
	RawEntry	entry;
	uint32_t	given_region;
	enum ibv_wc_status status;
	int64_t		until;
	bool		refusal = false;

	lease_get(&mine, "keys", 3, LONG_TTL);
	raw = raw_connect(&mine);
	is_u64(raw->welcome.regions, NREGIONS, "keys: the table has all regions");
	is_u64(raw->welcome.region_size, REGION_SIZE, "keys: their size is told");
	given_region = mine.regions[1];
	kept = raw_entry(raw, mine.regions[0]);
	given = raw_entry(raw, given_region);
	ok(kept.state == RBP_VERBS_ENTRY_READY && given.state == RBP_VERBS_ENTRY_READY,
	   "keys: the lease's regions have keys");
	ok(raw_entry(raw, not_in(&mine)).state == RBP_VERBS_ENTRY_NONE, "keys: others have none");
	memset(raw->buffer, 0x11, RAW_BUFFER);
	ok(raw_write(raw, given.address, given.key, RAW_BUFFER) == IBV_WC_SUCCESS &&
	   raw_read(raw, given.address + REGION_SIZE - RAW_BUFFER, given.key, RAW_BUFFER) == IBV_WC_SUCCESS &&
	   all_bytes(raw->buffer, RAW_BUFFER, 0), "keys: and those do their work");

	/* what no key allows */
	status = raw_write(raw, raw->welcome.table_address, raw->welcome.table_key, RBP_VERBS_ENTRY_SIZE);
	ok(status == IBV_WC_REM_ACCESS_ERR, "keys: the table cannot be written (%s)", ibv_wc_status_str(status));
	raw = another(raw, &mine);
	status = raw_read(raw, raw->welcome.table_address + NREGIONS * RBP_VERBS_ENTRY_SIZE + 8192,
					  raw->welcome.table_key, RBP_VERBS_ENTRY_SIZE);
	ok(status == IBV_WC_REM_ACCESS_ERR, "keys: nothing behind it can be read (%s)", ibv_wc_status_str(status));
	raw = another(raw, &mine);
	entry = given;
	entry.address += REGION_SIZE - RAW_BUFFER / 2;
	raw = refused(raw, &mine, entry, "keys: what begins in a region and ends behind it");
	entry.address = given.address - RAW_BUFFER / 2;
	raw = refused(raw, &mine, entry, "keys: what begins before it");
	entry = kept;
	entry.key ^= 0xFF;
	raw = refused(raw, &mine, entry, "keys: a key that is nearly right");

	/* a region leaves the lease, whose queue pairs live on */
	lease_release(&mine, 1);
	until = rbp_now_ns() + patience(10);
	while (raw_entry(raw, given_region).state != RBP_VERBS_ENTRY_NONE && rbp_now_ns() < until)
		sleep_ms(10);
	ok(raw_entry(raw, given_region).state == RBP_VERBS_ENTRY_NONE, "keys: a released region has no entry any more");

	/* the entry goes first, the key at once after it */
	sleep_ms((int) (patience(1) / 5000000));
	ok(raw_read(raw, kept.address, kept.key, RAW_BUFFER) == IBV_WC_SUCCESS, "keys: the queue pair works");
	raw = refused(raw, &mine, given, "keys: of a region that was released");

	/* others have it now */
	lease_get(&theirs, "others", NREGIONS - 2, LONG_TTL);
	conn = must_connect(ops, &theirs);
	ok(region_is(conn, given_region, 0), "keys: its next holder finds zeroes");
	ok(fill_region(conn, given_region, 0xB2), "keys: and fills it");
	raw = refused(raw, &mine, given, "keys: of a region that is another's");
	other = raw_connect(&theirs);
	entry = raw_entry(other, given_region);
	ok(entry.state == RBP_VERBS_ENTRY_READY && entry.address != given.address,
	   "keys: the other's address is another, whatever its key is");
	raw = refused(raw, &mine, entry, "keys: the other's key, if one were to know it");
	ok(region_is(conn, given_region, 0xB2), "keys: nothing of that has changed it");
	ok(raw_read(other, entry.address, entry.key, RAW_BUFFER) == IBV_WC_SUCCESS &&
	   all_bytes(other->buffer, RAW_BUFFER, 0xB2), "keys: and its holder's queue pairs are well");
	raw_close(other);

	/* the lease ends while the queue pair lives, and is used */
	kept = raw_entry(raw, mine.regions[0]);
	memset(raw->buffer, 0xC3, RAW_BUFFER);
	ok(raw_write(raw, kept.address, kept.key, RAW_BUFFER) == IBV_WC_SUCCESS, "keys: before the end");
	lease_revoke(&mine);
	until = rbp_now_ns() + patience(10);
	while (!refusal && rbp_now_ns() < until)
	{
		status = raw_write(raw, kept.address, kept.key, RAW_BUFFER);
		refusal = status != IBV_WC_SUCCESS;
	}
	ok(refusal, "keys: a lease that is revoked loses them (%s)", ibv_wc_status_str(status));
	raw_close(raw);
	lease_delete(&theirs);
	ops->close(conn);
	lease_get(&theirs, "after", NREGIONS, LONG_TTL);
	conn = must_connect(ops, &theirs);
	ok(region_is(conn, mine.regions[0], 0), "keys: and nothing that it wrote is left");
	ops->close(conn);
	lease_delete(&theirs);
}

/*
 * ---- handshakes -------------------------------------------------------------
 */
static void
refused_request(const Lease *lease, const void *message, uint8_t len,
				uint16_t status, const char *what)
{
	Raw		   *raw = raw_prepare(lease);
	enum rdma_cm_event_type event = raw_request(raw, message, len);

	ok(event == RDMA_CM_EVENT_REJECTED && raw->welcomed && raw->welcome.status == status,
	   "handshake: %s is refused (%s, status %d)", what, rdma_event_str(event),
	   raw->welcomed ? raw->welcome.status : -1);
	raw_close(raw);
}

void
test_handshakes(void)
{
	uint8_t		message[RBP_VERBS_HELLO_SIZE];
	uint8_t		good[RBP_VERBS_HELLO_SIZE];
	Lease		lease;
	Raw		   *raw;
	Raw		   *half;

	lease_get(&lease, "handshakes", 1, LONG_TTL);
	memset(message, 0xEE, sizeof(message));
	refused_request(&lease, message, sizeof(message), RBP_WIRE_DENIED, "garbage");
	refused_request(&lease, NULL, 0, RBP_WIRE_DENIED, "nothing at all");

	raw = raw_prepare(&lease);
	raw_hello(raw, &lease, good);
	memcpy(message, good, sizeof(message));
	message[2] = RBP_WIRE_VERSION + 1;
	refused_request(&lease, message, sizeof(message), RBP_WIRE_VERSION_MISMATCH, "another version");
	refused_request(&lease, good, 20, RBP_WIRE_DENIED, "a part of a good one");
	refused_request(&lease, good, sizeof(good), RBP_WIRE_DENIED, "a good one from another queue pair");
	ok(raw_request(raw, good, sizeof(good)) == RDMA_CM_EVENT_ESTABLISHED, "handshake: from its own it is accepted");
	refused_request(&lease, good, sizeof(good), RBP_WIRE_DENIED, "one that was accepted before");

	/* one that asks and never hears the answer */
	half = raw_prepare(&lease);
	raw_hello(half, &lease, good);
	{
		struct rdma_conn_param param = {
			.private_data = good,
			.private_data_len = sizeof(good),
			.initiator_depth = 1,
		};

		ok(rdma_connect(half->id, &param) == 0, "handshake: one that is left half way");
	}
	ok(raw_entry(raw, lease.regions[0]).state == RBP_VERBS_ENTRY_READY, "handshake: disturbs nobody");
	raw_close(half);
	raw_close(raw);
	lease_delete(&lease);
}

/*
 * ---- registered memory ------------------------------------------------------
 */

/* As a user whose limit is low. */
static void
limited_worker(const void *arg)
{
	const Lease *lease = arg;
	struct rlimit limit = {.rlim_cur = 1 * MB,.rlim_max = 1 * MB};
	uint8_t    *memory = must_alloc(8 * MB);
	uint8_t		page[PAGE];
	RbpMr	   *mr = NULL;
	RbpConn    *conn;

	if ((geteuid() == 0 && setuid(65534) != 0) || setrlimit(RLIMIT_MEMLOCK, &limit) != 0)
		_exit(2);
	conn = must_connect(ops, lease);
	if (ops->register_memory(conn, memory, 8 * MB, &mr) != RBP_NOMEM || mr != NULL)
		_exit(3);
	if (do_io(conn, RBP_IO_READ, lease->regions[0], 0, page, PAGE, patience(5)) != RBP_OK)
		_exit(4);
	ops->close(conn);

	/* and with none at all there is no connection */
	limit.rlim_cur = limit.rlim_max = 0;
	if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || connect_to(ops, lease, &conn) != RBP_NOMEM)
		_exit(5);
}

/*
 * Requests without end into registered memory, given up at once: that costs the
 * connection, and the memory is left alone from then on.
 */
static void
give_up(const Lease *lease, uint8_t *memory)
{
	RbpConn    *conn = must_connect(ops, lease);
	RbpMr	   *mr = NULL;
	RbpIo		ios[16];
	RbpIo		bystander = {.kind = RBP_IO_READ,.region = lease->regions[0],.len = PAGE};
	uint8_t		page[PAGE];
	RbpStatus	status;

	ok(fill_region(conn, lease->regions[0], 0xD4), "registered: a region to read");
	ok(ops->register_memory(conn, memory, REGION_SIZE, &mr) == RBP_OK, "registered: memory to read it into");
	for (int i = 0; i < 16; i++)
		ios[i] = (RbpIo)
	{
		.kind = i % 2 ? RBP_IO_WRITE : RBP_IO_READ,.region = lease->regions[i % 2],.len = REGION_SIZE,.buf = memory,.mr = mr
	};
	bystander.buf = page;
	(void) ops->submit(conn, ios, 16);
	(void) ops->submit(conn, &bystander, 1);
	status = ops->wait(conn, ios, 16, rbp_now_ns() - 1);
	memset(memory, 0x99, REGION_SIZE);
	ok(status == RBP_TIMEOUT && ios[15].status == RBP_TIMEOUT, "registered: what is given up is late (%s)",
	   rbp_status_text(status));
	ok(bystander.status == RBP_CONNLOST, "registered: it takes what else is in flight with it (%s)",
	   rbp_status_text(bystander.status));
	sleep_ms(100);
	ok(all_bytes(memory, REGION_SIZE, 0x99), "registered: nothing is written there afterwards");
	ok(do_io(conn, RBP_IO_READ, lease->regions[0], 0, page, PAGE, patience(1)) == RBP_CONNLOST,
	   "registered: the connection is over");
	ops->deregister_memory(conn, mr);
	ops->close(conn);
}

void
test_registered_memory(void)
{
	uint8_t    *memory = must_alloc(REGION_SIZE);
	uint8_t    *gone = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	Lease		lease;
	RbpConn    *first;
	RbpConn    *second;
	RbpMr	   *mr[3] = {NULL};
	RbpStatus	refusal;
	RbpIo		io;
	int			status;

	lease_get(&lease, "registered", 2, LONG_TTL);
	first = must_connect(ops, &lease);
	second = must_connect(ops, &lease);
	ok(ops->register_memory(first, memory, REGION_SIZE, &mr[0]) == RBP_OK &&
	   ops->register_memory(second, memory, REGION_SIZE, &mr[1]) == RBP_OK &&
	   ops->register_memory(second, memory, PAGE, &mr[2]) == RBP_OK, "registered: the same memory on two connections");
	ok(mr[0] == mr[1] && mr[2] != mr[0], "registered: is registered once");
	ops->deregister_memory(first, mr[0]);
	ops->close(first);
	memset(memory, 0x31, PAGE);
	io = (RbpIo)
	{
		.kind = RBP_IO_WRITE,.region = lease.regions[0],.len = PAGE,.buf = memory,.mr = mr[1]
	};
	(void) ops->submit(second, &io, 1);
	ok(ops->wait(second, &io, 1, rbp_now_ns() + patience(5)) == RBP_OK, "registered: and stays so until the last is gone");

	/* reaches beyond the end of the registration that it names */
	io = (RbpIo)
	{
		.kind = RBP_IO_READ,.region = lease.regions[0],.len = 2 * PAGE,.buf = memory,.mr = mr[2]
	};
	(void) ops->submit(second, &io, 1);
	ok(ops->wait(second, &io, 1, rbp_now_ns() + patience(5)) == RBP_OK && all_bytes(memory, PAGE, 0x31) &&
	   all_bytes(memory + PAGE, PAGE, 0), "registered: a buffer that is only partly so");
	ops->deregister_memory(second, mr[1]);
	ops->deregister_memory(second, mr[2]);

	munmap(gone, 8 * PAGE);
	mr[0] = NULL;
	refusal = ops->register_memory(second, gone, 8 * PAGE, &mr[0]);
	ok(refusal == RBP_INVALID && mr[0] == NULL, "registered: memory that is not there cannot be (%s)",
	   rbp_status_text(refusal));
	ops->close(second);

	give_up(&lease, memory);
	status = worker_wait(worker_start(limited_worker, &lease, sizeof(lease)));
	ok(status == 0, "registered: a low limit on locked memory is found out (0x%x)", (unsigned) status);
	lease_delete(&lease);
	free(memory);
}
