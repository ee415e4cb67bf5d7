/*-------------------------------------------------------------------------
 *
 * test_transports.c
 *	  One suite for every transport, against a real donor and broker.
 *
 * Run without arguments it takes each transport in turn, bare and with the
 * fault transport around it; arguments name some: shm tcp fault-shm fault-tcp.
 *
 * Timeout: 600
 *
 * Links: test/conformance/harness.c src/transport/rbp_transport.c
 *	src/transport/transport_sock.c src/transport/transport_shm.c
 *	src/transport/transport_tcp.c src/transport/transport_verbs.c
 *	src/transport/verbs_common.c src/transport/verbs_device.c
 *	src/transport/transport_fault.c src/wire/rbp_wire.c broker/common.c
 *	broker/http_client.c
 *
 *-------------------------------------------------------------------------
 */
#include "harness.h"
#include "tap.h"

#include "transport/transport_fault.h"
#include "transport/transport_sock.h"
#include "wire/rbp_wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE		8192
#define LONG_TTL	60000

static const RbpTransportOps *ops;
static const char *name;		/* of the run: "tcp", "fault-tcp" */
static bool is_shm;				/* memcpy, with or without faults around */
static char fault_path[256];

static bool
gone(RbpStatus status)
{
	return status == RBP_DENIED || status == RBP_CONNLOST;
}

static void
set_faults(const char *rules)
{
	char		path[300];
	FILE	   *f;

	snprintf(path, sizeof(path), "%s.new", fault_path);
	f = fopen(path, "w");
	if (f == NULL || fputs(rules, f) < 0 || fclose(f) != 0 ||
		rename(path, fault_path) != 0)
		bail_out("could not write %s: %s", fault_path, strerror(errno));
	sleep_ms(10);				/* until everybody looks at it again */
}

/* When this returns, all of the donor's threads have stopped. */
static void
freeze_donor(void)
{
	int			status;

	kill(donor_pid, SIGSTOP);
	if (waitpid(donor_pid, &status, WUNTRACED) != donor_pid || !WIFSTOPPED(status))
		bail_out("the donor does not stop");
}

static void
test_connect(void)
{
	Lease		lease;
	Lease		wrong;
	RbpConn    *conn = NULL;
	RbpStatus	status;
	char		buf[16];

	lease_get(&lease, "connect", 1, LONG_TTL);
	ok(ops->usable(&lease.ep), "%s: the endpoint is usable", name);

	status = ops->connect(&lease.ep, &lease.cred, &conn);
	ok(status == RBP_OK && conn != NULL, "%s: connect() starts", name);
	status = do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, sizeof(buf), SECOND / 10);
	ok(status != RBP_OK, "%s: nothing is read before connect_wait() said OK", name);
	while ((status = ops->connect_wait(conn, rbp_now_ns() - 1)) == RBP_INPROGRESS)
		sleep_ms(1);
	ok(status == RBP_OK, "%s: polling with deadlines in the past connects, too", name);
	ok(ops->connect_wait(conn, 0) == RBP_OK, "%s: connect_wait() may be repeated", name);
	ops->close(conn);

	wrong = lease;
	wrong.cred.secret[31] ^= 1;
	ok(connect_to(ops, &wrong, &conn) == RBP_DENIED, "%s: a wrong secret is denied", name);
	wrong = lease;
	wrong.cred.lease[0] = wrong.cred.lease[0] == 'a' ? 'b' : 'a';
	ok(connect_to(ops, &wrong, &conn) == RBP_DENIED, "%s: an unknown lease is denied", name);

	wrong = lease;
	strcpy(wrong.ep.shm_name, "remote_bp-nobody");
	wrong.ep.port = 1;
	ok(connect_to(ops, &wrong, &conn) == RBP_CONNLOST, "%s: nobody there", name);
	strcpy(wrong.ep.boot_id, "another host");
	wrong.ep.host[0] = '\0';
	ok(!ops->usable(&wrong.ep), "%s: out of reach is not usable", name);
	ops->close(NULL);
	lease_delete(&lease);
}

static void
test_extents(void)
{
	static const uint32_t lengths[] = {1, 7, 4095, 4096, PAGE, PAGE + 1, 65537, 1000003, REGION_SIZE};
	uint8_t    *out = must_alloc(REGION_SIZE + 2);
	uint8_t    *in = must_alloc(REGION_SIZE + 2);
	Lease		lease;
	RbpConn    *conn;
	RbpMr	   *mr = NULL;
	uint32_t	r;

	lease_get(&lease, "extents", 2, LONG_TTL);
	conn = must_connect(ops, &lease);
	ok(ops->register_memory(conn, in, REGION_SIZE + 2, &mr) == RBP_OK && mr != NULL,
	   "%s: memory can be registered", name);
	r = lease.regions[1];

	ok(do_io(conn, RBP_IO_READ, r, 0, in, REGION_SIZE, 5 * SECOND) == RBP_OK &&
	   all_bytes(in, REGION_SIZE, 0), "%s: a new region is all zeroes", name);

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
	{
		uint32_t	len = lengths[i];
		const uint64_t offsets[] = {0, REGION_SIZE - len, (REGION_SIZE - len) / 3 | 1};

		for (int k = 0; k < 3; k++)
		{
			uint64_t	offset = offsets[k] + len > REGION_SIZE ? 0 : offsets[k];
			RbpStatus	w;
			RbpStatus	rd;

			fill(out, len, i * 10 + (uint64_t) k);
			memset(in, 0x55, REGION_SIZE + 2);
			w = do_io(conn, RBP_IO_WRITE, r, offset, out, len, 5 * SECOND);
			rd = do_io(conn, RBP_IO_READ, r, offset, in + 1, len, 5 * SECOND);
			ok(w == RBP_OK && rd == RBP_OK && memcmp(in + 1, out, len) == 0 &&
			   in[0] == 0x55 && in[len + 1] == 0x55,
			   "%s: %u bytes at %llu come back", name, len, (unsigned long long) offset);
		}
	}
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, in, REGION_SIZE, 5 * SECOND) == RBP_OK &&
	   all_bytes(in, REGION_SIZE, 0), "%s: the other region was not touched", name);

	ops->deregister_memory(conn, mr);
	ops->close(conn);
	lease_delete(&lease);
	free(out);
	free(in);
}

static void
test_bad_requests(void)
{
	Lease		lease;
	Lease		other;
	RbpConn    *conn;
	uint8_t		buf[PAGE];
	RbpIo		ios[4];

	lease_get(&lease, "bad1", 1, LONG_TTL);
	lease_get(&other, "bad2", 1, LONG_TTL);
	conn = must_connect(ops, &lease);
	fill(buf, PAGE, 1);
	ok(do_io(conn, RBP_IO_WRITE, lease.regions[0], 0, buf, PAGE, SECOND) == RBP_OK, "%s: a good write", name);

	ok(do_io(conn, RBP_IO_READ, lease.regions[0], REGION_SIZE - PAGE + 1, buf, PAGE, SECOND) == RBP_INVALID,
	   "%s: reading past the region's end is invalid", name);
	ok(do_io(conn, RBP_IO_WRITE, lease.regions[0], REGION_SIZE, buf, 1, SECOND) == RBP_INVALID,
	   "%s: so is writing", name);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], UINT64_MAX - 10, buf, PAGE, SECOND) == RBP_INVALID,
	   "%s: an offset that would wrap is invalid", name);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, UINT32_MAX, SECOND) == RBP_INVALID,
	   "%s: so is an absurd length", name);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, 0, SECOND) == RBP_INVALID,
	   "%s: and none at all", name);
	ok(do_io(conn, (RbpIoKind) 77, lease.regions[0], 0, buf, PAGE, SECOND) == RBP_INVALID,
	   "%s: and an unknown kind", name);
	ok(do_io(conn, RBP_IO_READ, other.regions[0], 0, buf, PAGE, SECOND) == RBP_DENIED,
	   "%s: a region of another lease cannot be read", name);
	ok(do_io(conn, RBP_IO_WRITE, other.regions[0], 0, buf, PAGE, SECOND) == RBP_DENIED,
	   "%s: nor written", name);
	ok(do_io(conn, RBP_IO_READ, NREGIONS, 0, buf, PAGE, SECOND) == RBP_DENIED,
	   "%s: a region that is not there is denied", name);
	ok(do_io(conn, RBP_IO_WRITE, UINT32_MAX, 0, buf, PAGE, SECOND) == RBP_DENIED,
	   "%s: whatever its number", name);

	/* good and bad in one batch, with answers of all sizes */
	memset(buf, 0, sizeof(buf));
	for (int i = 0; i < 4; i++)
		ios[i] = (RbpIo) {.kind = RBP_IO_READ,.region = lease.regions[0],.offset = 0,.len = PAGE / 4,.buf = buf + i * (PAGE / 4)};
	ios[1].region = other.regions[0];
	ios[2].kind = RBP_IO_PING;
	ios[2].len = 0;
	(void) ops->submit(conn, ios, 4);
	ok(ops->wait(conn, ios, 4, rbp_now_ns() + SECOND) == RBP_DENIED &&
	   ios[0].status == RBP_OK && ios[1].status == RBP_DENIED &&
	   ios[2].status == RBP_OK && ios[3].status == RBP_OK &&
	   filled(buf, PAGE / 4, 1) && memcmp(buf, buf + 3 * (PAGE / 4), PAGE / 4) == 0,
	   "%s: a bad request does not spoil its batch", name);

	ops->close(conn);
	lease_delete(&lease);
	lease_delete(&other);
}

static void
test_batches(void)
{
	enum
	{
		DEPTH = 20, BATCH = 32
	};
	uint8_t    *out = must_alloc(DEPTH * BATCH * PAGE);
	uint8_t    *in = must_alloc(DEPTH * BATCH * PAGE);
	RbpIo	   *ios = must_alloc(DEPTH * BATCH * sizeof(RbpIo));
	Lease		lease;
	RbpConn    *conn;
	bool		good = true;

	lease_get(&lease, "batches", 8, LONG_TTL);
	conn = must_connect(ops, &lease);
	for (int n = 1; n <= BATCH; n++)
	{
		for (int i = 0; i < n; i++)
		{
			fill(out + i * PAGE, PAGE, (uint64_t) (n * 100 + i));
			ios[i] = (RbpIo) {.kind = RBP_IO_WRITE,.region = lease.regions[i % 8],.offset = (uint64_t) i * PAGE,.len = PAGE,.buf = out + i * PAGE};
		}
		good &= ops->submit(conn, ios, n) == RBP_OK;
		good &= ops->wait(conn, ios, n, rbp_now_ns() + 5 * SECOND) == RBP_OK;
		memset(in, 0, BATCH * PAGE);
		for (int i = 0; i < n; i++)
		{
			ios[i].kind = RBP_IO_READ;
			ios[i].buf = in + i * PAGE;
		}
		good &= ops->submit(conn, ios, n) == RBP_OK;
		good &= ops->wait(conn, ios, n, rbp_now_ns() + 5 * SECOND) == RBP_OK;
		good &= memcmp(in, out, (size_t) n * PAGE) == 0;
	}
	ok(good, "%s: batches of 1 to %d write and read", name, BATCH);

	/* all posted before any is waited for; waited for from the last to the first */
	good = true;
	for (int i = 0; i < DEPTH * BATCH; i++)
	{
		fill(out + i * PAGE, PAGE, (uint64_t) (7000 + i));
		ios[i] = (RbpIo) {.kind = RBP_IO_WRITE,.region = lease.regions[i % 8],.offset = (uint64_t) (i / 8) * PAGE,.len = PAGE,.buf = out + i * PAGE};
	}
	for (int b = 0; b < DEPTH; b++)
		good &= ops->submit(conn, ios + b * BATCH, BATCH) == RBP_OK;
	for (int b = DEPTH - 1; b >= 0; b--)
		good &= ops->wait(conn, ios + b * BATCH, BATCH, rbp_now_ns() + 10 * SECOND) == RBP_OK;
	ok(good, "%s: %d writes deep", name, DEPTH * BATCH);

	memset(in, 0, DEPTH * BATCH * PAGE);
	for (int i = 0; i < DEPTH * BATCH; i++)
	{
		ios[i].kind = RBP_IO_READ;
		ios[i].buf = in + i * PAGE;
	}
	for (int b = 0; b < DEPTH; b++)
		good &= ops->submit(conn, ios + b * BATCH, BATCH) == RBP_OK;
	for (int b = DEPTH - 1; b >= 0; b--)
		good &= ops->wait(conn, ios + b * BATCH, BATCH, rbp_now_ns() + 10 * SECOND) == RBP_OK;
	ok(good, "%s: %d reads deep", name, DEPTH * BATCH);
	ok(memcmp(in, out, DEPTH * BATCH * PAGE) == 0, "%s: their contents are right", name);

	/* overlapping batches of different kinds and sizes on one connection */
	good = true;
	for (int round = 0; round < 50; round++)
	{
		RbpIo		a[3];
		RbpIo		b[3];
		uint32_t	r = lease.regions[round % 8];

		fill(out, 3 * PAGE, (uint64_t) (9000 + round));
		for (int i = 0; i < 3; i++)
		{
			a[i] = (RbpIo) {.kind = RBP_IO_WRITE,.region = r,.offset = MB + (uint64_t) i * PAGE,.len = PAGE,.buf = out + i * PAGE};
			b[i] = (RbpIo) {.kind = i == 1 ? RBP_IO_PING : RBP_IO_READ,.region = i == 1 ? 0 : lease.regions[(round + 1) % 8],.offset = i == 1 ? 0 : (uint64_t) i * 100,.len = i == 1 ? 0 : 100u << i,.buf = in + i * PAGE};
		}
		good &= ops->submit(conn, a, 3) == RBP_OK;
		good &= ops->submit(conn, b, 3) == RBP_OK;
		good &= ops->wait(conn, b, 3, rbp_now_ns() + 5 * SECOND) == RBP_OK;
		good &= ops->wait(conn, a, 3, rbp_now_ns() + 5 * SECOND) == RBP_OK;
		good &= do_io(conn, RBP_IO_READ, r, MB, in, 3 * PAGE, 5 * SECOND) == RBP_OK;
		good &= filled(in, 3 * PAGE, (uint64_t) (9000 + round));
	}
	ok(good, "%s: overlapping batches", name);

	/* the same, waiting for parts of a batch */
	for (int i = 0; i < 8; i++)
		ios[i] = (RbpIo) {.kind = RBP_IO_READ,.region = lease.regions[i],.offset = 0,.len = PAGE,.buf = in + i * PAGE};
	good = ops->submit(conn, ios, 8) == RBP_OK;
	good &= ops->wait(conn, ios + 5, 3, rbp_now_ns() + 5 * SECOND) == RBP_OK;
	good &= ops->wait(conn, ios, 5, rbp_now_ns() + 5 * SECOND) == RBP_OK;
	for (int i = 0; i < 8; i++)
		good &= filled(in + i * PAGE, PAGE, (uint64_t) (7000 + i));
	ok(good, "%s: a batch waited for in parts", name);

	ops->close(conn);
	lease_delete(&lease);
	free(out);
	free(in);
	free(ios);
}

/* Reads the pages of a region that a test has filled by their numbers. */
static bool
check_pages(RbpConn *conn, uint32_t region, int n, uint64_t seed)
{
	uint8_t		buf[PAGE];
	bool		good = true;

	for (int i = 0; i < n; i++)
		good &= do_io(conn, RBP_IO_READ, region, (uint64_t) i * PAGE, buf, PAGE, 10 * SECOND) == RBP_OK &&
			filled(buf, PAGE, seed + (uint64_t) i);
	return good;
}

static bool
fill_pages(RbpConn *conn, uint32_t region, int n, uint64_t seed)
{
	uint8_t		buf[PAGE];
	bool		good = true;

	for (int i = 0; i < n; i++)
	{
		fill(buf, PAGE, seed + (uint64_t) i);
		good &= do_io(conn, RBP_IO_WRITE, region, (uint64_t) i * PAGE, buf, PAGE, 10 * SECOND) == RBP_OK;
	}
	return good;
}

static void
test_deadlines(void)
{
	enum
	{
		N = 64
	};
	Lease		lease;
	RbpConn    *conn;
	RbpIo		ios[N];
	uint8_t    *bufs = must_alloc(N * PAGE);
	uint8_t    *big = must_alloc(REGION_SIZE);
	RbpStatus	status;
	int64_t		start;
	int64_t		took;
	bool		good = true;

	lease_get(&lease, "deadlines", 4, LONG_TTL);
	conn = must_connect(ops, &lease);
	ok(fill_pages(conn, lease.regions[0], N, 500), "%s: pages to read late", name);

	/* polling */
	ios[0] = (RbpIo) {.kind = RBP_IO_PING};
	(void) ops->submit(conn, ios, 1);
	status = ops->wait(conn, ios, 1, rbp_now_ns() - SECOND);
	ok(status == RBP_TIMEOUT || status == RBP_OK, "%s: a deadline in the past does not wait", name);
	ok(do_io(conn, RBP_IO_PING, 0, 0, NULL, 0, 5 * SECOND) == RBP_OK, "%s: and leaves the connection well", name);

	/* the donor stands still */
	freeze_donor();
	start = rbp_now_ns();
	status = do_io(conn, RBP_IO_PING, 0, 0, NULL, 0, SECOND / 20);
	took = rbp_now_ns() - start;
	ok(status == RBP_TIMEOUT, "%s: no answer from a stopped donor", name);
	ok(took >= SECOND / 20 && took < 5 * SECOND, "%s: the wait ends with the deadline", name);

	for (int i = 0; i < N; i++)
		ios[i] = (RbpIo) {.kind = RBP_IO_READ,.region = lease.regions[0],.offset = (uint64_t) i * PAGE,.len = PAGE,.buf = bufs + i * PAGE};
	(void) ops->submit(conn, ios, N);
	status = ops->wait(conn, ios, N, rbp_now_ns() + SECOND / 20);
	for (int i = 0; i < N; i++)
		good &= ios[i].status == (is_shm ? RBP_OK : RBP_TIMEOUT);
	if (is_shm)
		ok(good && status == RBP_OK, "%s: mapped memory does not need the donor's attention", name);
	else
		ok(good && status == RBP_TIMEOUT, "%s: all reads time out", name);
	memset(bufs, 0xAB, N * PAGE);

	/* writes far beyond what any socket buffer takes */
	memset(big, 0x11, REGION_SIZE);
	for (int i = 0; i < N; i++)
		ios[i] = (RbpIo) {.kind = RBP_IO_WRITE,.region = lease.regions[1 + i % 3],.offset = 0,.len = REGION_SIZE,.buf = big};
	(void) ops->submit(conn, ios, N);
	status = ops->wait(conn, ios, N, rbp_now_ns() + SECOND / 20);
	ok(status == (is_shm ? status : RBP_TIMEOUT), "%s: huge writes do not block", name);
	memset(big, 0x22, REGION_SIZE);
	kill(donor_pid, SIGCONT);

	good = true;
	for (int i = 0; i < 50; i++)
	{
		good &= do_io(conn, RBP_IO_PING, 0, 0, NULL, 0, 10 * SECOND) == RBP_OK;
		if (i < 20)
			sleep_ms(5);
	}
	ok(good, "%s: late answers do not break the connection", name);
	ok(all_bytes(bufs, N * PAGE, 0xAB), "%s: nor touch buffers after the return", name);
	ok(check_pages(conn, lease.regions[0], N, 500), "%s: what is read next is right", name);

	good = true;
	for (int i = 1; i < 4; i++)
	{
		memset(big, 0x77, REGION_SIZE);
		good &= do_io(conn, RBP_IO_READ, lease.regions[i], 0, big, REGION_SIZE, 10 * SECOND) == RBP_OK;
		for (uint32_t at = 0; at < REGION_SIZE; at++)
			good &= big[at] == 0x11 || big[at] == 0;
	}
	ok(good, "%s: an abandoned write sends what the buffer held, not what it holds now", name);

	ops->close(conn);
	lease_delete(&lease);
	free(bufs);
	free(big);
}

static void
test_close_in_flight(void)
{
	Lease		lease;
	RbpIo		ios[32];
	uint8_t    *buf = must_alloc(32 * PAGE);
	RbpConn    *conn;
	bool		good = true;

	lease_get(&lease, "closing", 2, LONG_TTL);
	for (int round = 0; round < 20; round++)
	{
		conn = must_connect(ops, &lease);
		for (int i = 0; i < 32; i++)
			ios[i] = (RbpIo) {.kind = i % 2 ? RBP_IO_WRITE : RBP_IO_READ,.region = lease.regions[0],.offset = (uint64_t) i * PAGE,.len = PAGE,.buf = buf + i * PAGE};
		memset(buf, 0x33, 32 * PAGE);
		(void) ops->submit(conn, ios, 32);
		ops->close(conn);
		memset(buf, 0x44, 32 * PAGE);
	}
	conn = must_connect(ops, &lease);
	good &= fill_pages(conn, lease.regions[1], 10, 1);
	good &= check_pages(conn, lease.regions[1], 10, 1);
	ok(good, "%s: closing with requests in flight harms nobody", name);
	ok(all_bytes(buf, 32 * PAGE, 0x44), "%s: and touches no buffer afterwards", name);
	ops->close(conn);
	lease_delete(&lease);
	free(buf);
}

/*
 * Forked processes, each with a slice of its own, all on the same regions.
 */
static void
test_parallel(void)
{
	enum
	{
		PROCS = 8, SLICE = 16
	};
	Lease		lease;
	pid_t		pids[PROCS];
	int			failures = 0;

	lease_get(&lease, "parallel", 4, LONG_TTL);
	for (int p = 0; p < PROCS; p++)
	{
		fflush(stdout);
		pids[p] = fork();
		if (pids[p] == 0)
		{
			RbpConn    *conn = NULL;
			uint8_t		buf[SLICE * PAGE];
			RbpIo		ios[SLICE];

			if (connect_to(ops, &lease, &conn) != RBP_OK)
				_exit(2);
			for (int round = 0; round < 60; round++)
			{
				for (int kind = 0; kind < 2; kind++)
				{
					for (int i = 0; i < SLICE; i++)
					{
						uint64_t	seed = (uint64_t) (p * 1000000 + round * 1000 + i);

						if (kind == 0)
							fill(buf + i * PAGE, PAGE, seed);
						ios[i] = (RbpIo) {.kind = kind == 0 ? RBP_IO_WRITE : RBP_IO_READ,.region = lease.regions[i % 4],.offset = (uint64_t) (p * SLICE + i) * PAGE,.len = PAGE,.buf = buf + i * PAGE};
					}
					(void) ops->submit(conn, ios, SLICE);
					if (ops->wait(conn, ios, SLICE, rbp_now_ns() + 20 * SECOND) != RBP_OK)
						_exit(3);
					if (kind == 0)
						memset(buf, 0, sizeof(buf));
				}
				for (int i = 0; i < SLICE; i++)
					if (!filled(buf + i * PAGE, PAGE, (uint64_t) (p * 1000000 + round * 1000 + i)))
						_exit(4);
			}
			ops->close(conn);
			_exit(0);
		}
	}
	for (int p = 0; p < PROCS; p++)
	{
		int			status;

		waitpid(pids[p], &status, 0);
		if (status != 0)
		{
			failures++;
			diag("process %d: status 0x%x", p, (unsigned) status);
		}
	}
	ok(failures == 0, "%s: %d processes at once, contents right", name, PROCS);
	lease_delete(&lease);
}

/*
 * A lease that nobody renews: the donor's clock ends it, broker or not.
 */
static void
test_expiry(bool broker_dead)
{
	Lease		lease;
	Lease		next;
	RbpConn    *conn;
	uint8_t		page[PAGE];
	uint8_t    *region = must_alloc(REGION_SIZE);
	RbpStatus	rd;
	RbpStatus	wr;
	bool		zero = true;
	const char *how = broker_dead ? "expired, broker dead" : "expired";

	lease_get(&lease, "expiry", 6, 2000);
	conn = must_connect(ops, &lease);
	ok(lease_renew(&lease) && fill_pages(conn, lease.regions[2], 8, 40) &&
	   check_pages(conn, lease.regions[2], 8, 40), "%s: %s: it works before", name, how);
	if (broker_dead)
	{
		stop_process(&broker_pid, SIGKILL);
		ok(check_pages(conn, lease.regions[2], 8, 40), "%s: a dead broker disturbs nobody at first", name);
	}
	sleep_ms(3500);
	memset(page, 0x66, sizeof(page));
	wr = do_io(conn, RBP_IO_WRITE, lease.regions[2], 0, page, PAGE, 5 * SECOND);
	rd = do_io(conn, RBP_IO_READ, lease.regions[2], PAGE, page, PAGE, 5 * SECOND);
	ok(gone(wr), "%s: %s: cannot write (%s)", name, how, rbp_status_text(wr));
	ok(gone(rd), "%s: %s: cannot read (%s)", name, how, rbp_status_text(rd));
	if (broker_dead)
		start_broker();

	lease_get(&next, "after-expiry", NREGIONS, LONG_TTL);
	(void) do_io(conn, RBP_IO_WRITE, lease.regions[2], 0, page, PAGE, SECOND);
	ops->close(conn);
	conn = NULL;
	ok(gone(connect_to(ops, &lease, &conn)), "%s: %s: cannot connect", name, how);
	conn = must_connect(ops, &next);
	for (int i = 0; i < NREGIONS; i++)
		zero &= do_io(conn, RBP_IO_READ, next.regions[i], 0, region, REGION_SIZE, 5 * SECOND) == RBP_OK &&
			all_bytes(region, REGION_SIZE, 0);
	ok(zero, "%s: %s: the next lease sees zeroes", name, how);
	ops->close(conn);
	lease_delete(&next);
	free(region);
}

/*
 * Processes that go on reading and writing a revoked lease, while another
 * takes its regions: they must never see its bytes, nor it theirs.
 */
static void
test_revoke(void)
{
	enum
	{
		PROCS = 3
	};
	Lease		lease;
	Lease		next;
	RbpConn    *conn;
	pid_t		pids[PROCS];
	uint8_t    *region = must_alloc(REGION_SIZE);
	int		   *stop = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	bool		zero = true;
	bool		kept = true;
	int			bad = 0;

	lease_get(&lease, "revoked", NREGIONS, LONG_TTL);
	for (int p = 0; p < PROCS; p++)
	{
		fflush(stdout);
		pids[p] = fork();
		if (pids[p] == 0)
		{
			RbpConn    *c = must_connect(ops, &lease);
			uint8_t    *buf = must_alloc(16 * PAGE);
			bool		denied[NREGIONS] = {false};
			bool		any = false;

			/* at least once round after the end */
			for (unsigned int i = 0; i % NREGIONS != 0 || !__atomic_load_n(stop, __ATOMIC_RELAXED); i++)
			{
				uint32_t	r = lease.regions[i % NREGIONS];
				bool	   *out = &denied[i % NREGIONS];
				RbpStatus	status;

				memset(buf, 0xA1, 16 * PAGE);
				status = do_io(c, RBP_IO_WRITE, r, (uint64_t) p * 16 * PAGE, buf, 16 * PAGE, 5 * SECOND);
				if (status == RBP_OK && *out)
					_exit(2);	/* back from the dead */
				*out |= gone(status);
				status = do_io(c, RBP_IO_READ, r, (uint64_t) p * 16 * PAGE, buf, 16 * PAGE, 5 * SECOND);
				if (status == RBP_OK && *out)
					_exit(3);
				if (status == RBP_OK)
					for (int b = 0; b < 16 * PAGE; b++)
						if (buf[b] != 0xA1)
							_exit(4);	/* not ours */
				if (!gone(status) && status != RBP_OK)
					_exit(5);
				*out |= gone(status);
				any |= *out;
			}
			ops->close(c);
			_exit(any ? 0 : 6);
		}
	}
	sleep_ms(300);
	lease_revoke(&lease);
	lease_get(&next, "after-revoke", NREGIONS, LONG_TTL);
	conn = must_connect(ops, &next);
	for (int i = 0; i < NREGIONS; i++)
		zero &= do_io(conn, RBP_IO_READ, next.regions[i], 0, region, REGION_SIZE, 5 * SECOND) == RBP_OK &&
			all_bytes(region, REGION_SIZE, 0);
	ok(zero, "%s: after a revoke under load the next lease sees zeroes", name);
	memset(region, 0xB2, REGION_SIZE);
	for (int i = 0; i < NREGIONS; i++)
		kept &= do_io(conn, RBP_IO_WRITE, next.regions[i], 0, region, REGION_SIZE, 5 * SECOND) == RBP_OK;
	sleep_ms(300);
	for (int i = 0; i < NREGIONS; i++)
		kept &= do_io(conn, RBP_IO_READ, next.regions[i], 0, region, REGION_SIZE, 5 * SECOND) == RBP_OK &&
			all_bytes(region, REGION_SIZE, 0xB2);
	__atomic_store_n(stop, 1, __ATOMIC_RELAXED);
	for (int p = 0; p < PROCS; p++)
	{
		int			status;

		waitpid(pids[p], &status, 0);
		if (status != 0)
		{
			bad++;
			diag("process %d: status 0x%x", p, (unsigned) status);
		}
	}
	ok(kept, "%s: the old holders write nothing into it", name);
	ok(bad == 0, "%s: and read nothing but their own, until they are denied", name);
	ops->close(conn);
	lease_delete(&next);
	munmap(stop, 4096);
	free(region);
}

static void
test_release(void)
{
	Lease		lease;
	RbpConn    *conn;
	RbpStatus	status = RBP_OK;
	uint8_t		page[PAGE];
	uint32_t	given;

	lease_get(&lease, "release", 3, LONG_TTL);
	conn = must_connect(ops, &lease);
	for (int i = 0; i < 3; i++)
		fill_pages(conn, lease.regions[i], 4, (uint64_t) i * 10);
	given = lease.regions[1];
	lease_release(&lease, 1);
	is_u64((uint64_t) lease.nregions, 2, "%s: one region less", name);
	for (int i = 0; i < 100 && !gone(status); i++)
	{
		status = do_io(conn, RBP_IO_READ, given, 0, page, PAGE, 5 * SECOND);
		sleep_ms(50);
	}
	ok(status == RBP_DENIED, "%s: a released region is denied (%s)", name, rbp_status_text(status));
	ok(do_io(conn, RBP_IO_WRITE, given, 0, page, PAGE, 5 * SECOND) == RBP_DENIED, "%s: for writing, too", name);
	for (int i = 0; i < 2; i++)
		ok(check_pages(conn, lease.regions[i], 4, lease.regions[i] == given ? 99 : (uint64_t) (i == 0 ? 0 : 20)),
		   "%s: region %d of the lease lives on, over the same connection", name, i);
	ops->close(conn);
	lease_delete(&lease);
}

static int
raw_socket(const Lease *lease)
{
	struct sockaddr_in addr = {.sin_family = AF_INET,.sin_port = htons(lease->ep.port)};
	int			fd = socket(AF_INET, SOCK_STREAM, 0);

	inet_pton(AF_INET, lease->ep.host, &addr.sin_addr);
	if (fd < 0 || connect(fd, (struct sockaddr *) &addr, sizeof(addr)) != 0)
		bail_out("cannot connect: %s", strerror(errno));
	return fd;
}

/* The other end closes within five seconds. */
static bool
closed(int fd)
{
	struct timeval tv = {.tv_sec = 8};
	char		buf[4096];
	ssize_t		n;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	while ((n = recv(fd, buf, sizeof(buf), 0)) > 0)
		;
	close(fd);
	return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

/*
 * Peers that do not play by the rules; others are to notice nothing.
 */
static void
test_bad_peers(void)
{
	Lease		lease;
	RbpConn    *conn;
	uint8_t		buf[RBP_HANDSHAKE_MAX + 65536];
	uint8_t		nonce[RBP_NONCE_LEN];
	uint8_t		mac[RBP_MAC_LEN];
	RbpWireRequest req = {.op = RBP_OP_READ,.len = REGION_SIZE};
	int			fd;
	int			hog;

	lease_get(&lease, "peers", 2, LONG_TTL);
	conn = must_connect(ops, &lease);
	ok(fill_pages(conn, lease.regions[0], 16, 70), "%s: pages to check", name);

	fd = raw_socket(&lease);
	memset(buf, 0xFF, sizeof(buf));
	(void) !send(fd, buf, sizeof(buf), MSG_NOSIGNAL);
	ok(closed(fd), "%s: garbage closes the connection", name);

	fd = raw_socket(&lease);
	req.region = lease.regions[0];
	rbp_wire_put_request(buf, &req);
	(void) !send(fd, buf, RBP_REQUEST_SIZE, MSG_NOSIGNAL);
	(void) !send(fd, buf, RBP_REQUEST_SIZE, MSG_NOSIGNAL);
	ok(closed(fd), "%s: so do requests before the handshake", name);

	fd = raw_socket(&lease);
	rbp_wire_put_hello(buf, lease.cred.lease);
	(void) !send(fd, buf, 20, MSG_NOSIGNAL);
	ok(closed(fd), "%s: and half a handshake, after a while", name);

	/* authenticated, asks for megabytes and never reads */
	hog = raw_socket(&lease);
	(void) !send(hog, buf, RBP_HELLO_SIZE, MSG_NOSIGNAL);
	if (recv(hog, buf, RBP_CHALLENGE_SIZE, MSG_WAITALL) != RBP_CHALLENGE_SIZE ||
		!rbp_wire_get_challenge(buf, RBP_CHALLENGE_SIZE, nonce) ||
		!rbp_handshake_mac(lease.cred.secret, nonce, lease.cred.lease, mac))
		bail_out("no challenge");
	rbp_wire_put_auth(buf, mac);
	(void) !send(hog, buf, RBP_AUTH_SIZE, MSG_NOSIGNAL);
	if (recv(hog, buf, RBP_WELCOME_SIZE, MSG_WAITALL) != RBP_WELCOME_SIZE)
		bail_out("no welcome");
	for (int i = 0; i < 100000; i++)
	{
		req.id = (uint64_t) i;
		rbp_wire_put_request(buf, &req);
		if (send(hog, buf, RBP_REQUEST_SIZE, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
			break;
	}
	ok(check_pages(conn, lease.regions[0], 16, 70), "%s: who never reads blocks nobody else", name);
	fd = raw_socket(&lease);
	close(fd);
	ok(fill_pages(conn, lease.regions[1], 16, 71) && check_pages(conn, lease.regions[1], 16, 71),
	   "%s: neither for writing", name);

	/* an answer that is stuck half way must not carry on with new content */
	lease_revoke(&lease);
	sleep_ms(500);
	ok(kill(donor_pid, 0) == 0, "%s: the donor is still there", name);
	{
		struct timeval tv = {.tv_sec = 5};
		ssize_t		n;
		size_t		total = 0;

		setsockopt(hog, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
		while ((n = recv(hog, buf, sizeof(buf), 0)) > 0)
			total += (size_t) n;
		ok(n == 0 || errno == ECONNRESET, "%s: a half-sent answer of a revoked lease ends with the connection (%zu bytes)",
		   name, total);
	}
	close(hog);
	ops->close(conn);
}

/*
 * The donor dies while others read.
 */
static void
test_donor_death(void)
{
	enum
	{
		PROCS = 2
	};
	Lease		lease;
	pid_t		pids[PROCS];
	int			bad = 0;
	RbpConn    *conn = NULL;

	lease_get(&lease, "death", 2, LONG_TTL);
	conn = must_connect(ops, &lease);
	ok(fill_pages(conn, lease.regions[0], 32, 900), "%s: pages before the donor's death", name);
	for (int p = 0; p < PROCS; p++)
	{
		fflush(stdout);
		pids[p] = fork();
		if (pids[p] == 0)
		{
			RbpConn    *c = must_connect(ops, &lease);
			uint8_t		buf[4 * PAGE];
			RbpIo		ios[4];
			int64_t		until = rbp_now_ns() + 20 * SECOND;

			for (unsigned int i = 0; rbp_now_ns() < until; i++)
			{
				RbpStatus	status;

				for (int k = 0; k < 4; k++)
					ios[k] = (RbpIo) {.kind = RBP_IO_READ,.region = lease.regions[0],.offset = (uint64_t) ((i + (unsigned) k) % 32) * PAGE,.len = PAGE,.buf = buf + k * PAGE};
				(void) ops->submit(c, ios, 4);
				status = ops->wait(c, ios, 4, rbp_now_ns() + 10 * SECOND);
				for (int k = 0; k < 4; k++)
					if (ios[k].status == RBP_OK &&
						!filled(buf + k * PAGE, PAGE, 900 + (i + (unsigned) k) % 32))
						_exit(2);
				if (status != RBP_OK)
				{
					/* and it stays so */
					(void) ops->submit(c, ios, 4);
					status = ops->wait(c, ios, 4, rbp_now_ns() + SECOND);
					ops->close(c);
					_exit(status == RBP_CONNLOST ? 0 : 3);
				}
			}
			_exit(4);
		}
	}
	sleep_ms(200);
	stop_process(&donor_pid, SIGKILL);
	for (int p = 0; p < PROCS; p++)
	{
		int			status;

		waitpid(pids[p], &status, 0);
		if (status != 0)
		{
			bad++;
			diag("process %d: status 0x%x", p, (unsigned) status);
		}
	}
	ok(bad == 0, "%s: readers of a killed donor lose the connection, and see nothing wrong", name);
	ops->close(conn);
	conn = NULL;
	ok(connect_to(ops, &lease, &conn) == RBP_CONNLOST, "%s: nobody to connect to", name);

	start_donor(NULL, NULL);
	{
		uint8_t    *region = must_alloc(REGION_SIZE);
		Lease		next;

		lease_get(&next, "reborn", 2, LONG_TTL);
		conn = must_connect(ops, &next);
		ok(do_io(conn, RBP_IO_READ, next.regions[0], 0, region, REGION_SIZE, 5 * SECOND) == RBP_OK &&
		   all_bytes(region, REGION_SIZE, 0), "%s: a new donor process has new memory", name);
		ops->close(conn);
		conn = NULL;
		lease.ep = next.ep;
		ok(connect_to(ops, &lease, &conn) == RBP_DENIED, "%s: and does not know the old lease", name);
		lease_delete(&next);
		free(region);
	}
	lease_delete(&lease);
}

/*
 * ---- what the fault transport does -------------------------------------------
 */
static void
test_faults(void)
{
	Lease		lease;
	RbpConn    *conn;
	uint8_t		buf[PAGE];
	int64_t		start;
	int			wrong = 0;
	int			right = 0;

	lease_get(&lease, "faults", 1, LONG_TTL);
	conn = must_connect(ops, &lease);
	ok(fill_pages(conn, lease.regions[0], 8, 30), "%s: no faults yet", name);

	set_faults("# a comment\nread corrupt\n");
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, SECOND) == RBP_OK && !filled(buf, PAGE, 30),
	   "%s: corrupted when read", name);
	set_faults("");
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, SECOND) == RBP_OK && filled(buf, PAGE, 30),
	   "%s: what the donor has is intact", name);

	set_faults("write corrupt\n");
	fill(buf, PAGE, 55);
	ok(do_io(conn, RBP_IO_WRITE, lease.regions[0], PAGE, buf, PAGE, SECOND) == RBP_OK && filled(buf, PAGE, 55),
	   "%s: corrupted when written, and the buffer is not", name);
	set_faults("");
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], PAGE, buf, PAGE, SECOND) == RBP_OK && !filled(buf, PAGE, 55),
	   "%s: the donor has it corrupted", name);

	set_faults("truncate\n");
	memset(buf, 0, PAGE);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 2 * PAGE, buf, PAGE, SECOND) == RBP_OK &&
	   !filled(buf, PAGE, 32) && all_bytes(buf + PAGE / 2, PAGE / 2, 0xEE), "%s: truncated", name);
	fill(buf, PAGE, 56);
	(void) do_io(conn, RBP_IO_WRITE, lease.regions[0], 3 * PAGE, buf, PAGE, SECOND);
	set_faults("");
	(void) do_io(conn, RBP_IO_READ, lease.regions[0], 3 * PAGE, buf, PAGE, SECOND);
	ok(!filled(buf, PAGE, 56) && !filled(buf, PAGE, 33), "%s: half of a write arrives", name);

	set_faults("read delay_us 200000\n");
	start = rbp_now_ns();
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, SECOND) == RBP_OK && filled(buf, PAGE, 30) &&
	   rbp_now_ns() - start >= SECOND / 5, "%s: delayed", name);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, SECOND / 20) == RBP_TIMEOUT, "%s: delayed past the deadline", name);
	ok(do_io(conn, RBP_IO_PING, 0, 0, NULL, 0, SECOND) == RBP_OK, "%s: only reads were to be delayed", name);

	set_faults("drop\n");
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, SECOND / 20) == RBP_TIMEOUT, "%s: dropped", name);
	set_faults("ping drop\nread deny\n");
	ok(do_io(conn, RBP_IO_PING, 0, 0, NULL, 0, SECOND / 20) == RBP_TIMEOUT, "%s: a ping dropped", name);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, SECOND) == RBP_DENIED, "%s: denied", name);

	set_faults("seed 42\nread corrupt 0.25\n");
	for (int i = 0; i < 400; i++)
	{
		(void) do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, SECOND);
		if (filled(buf, PAGE, 30))
			right++;
		else
			wrong++;
	}
	ok(wrong > 40 && right > 200, "%s: by chance (%d of 400)", name, wrong);

	set_faults("connect refuse\n");
	{
		RbpConn    *other = NULL;

		ok(connect_to(ops, &lease, &other) == RBP_CONNLOST, "%s: a refused connect", name);
		set_faults("connect drop\n");
		ok(ops->connect(&lease.ep, &lease.cred, &other) == RBP_OK &&
		   ops->connect_wait(other, rbp_now_ns() + SECOND / 20) == RBP_INPROGRESS, "%s: one that hangs", name);
		ops->close(other);
		set_faults("connect deny\n");
		ok(connect_to(ops, &lease, &other) == RBP_DENIED, "%s: one that is denied", name);
	}

	set_faults("cut\n");
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, SECOND) == RBP_CONNLOST, "%s: cut", name);
	set_faults("");
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, SECOND) == RBP_CONNLOST, "%s: what is cut stays cut", name);
	ops->close(conn);
	conn = must_connect(ops, &lease);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, SECOND) == RBP_OK && filled(buf, PAGE, 30),
	   "%s: a new connection is whole", name);
	ops->close(conn);
	lease_delete(&lease);
}

static void
test_choice(void)
{
	RbpEndpoint ep = {.transports = RBP_TRANSPORT_SHM | RBP_TRANSPORT_TCP,.host = "127.0.0.1",.port = 5};

	unsetenv("RBP_FAULT_FILE");
	strcpy(ep.shm_name, "remote_bp-x");
	strcpy(ep.boot_id, rbp_transport_boot_id());
	ok(strlen(rbp_transport_boot_id()) == 36, "this host has a boot id");
	ok(rbp_transport_choose("auto", &ep) == &rbp_transport_shm, "auto takes shm on the same host");
	ok(rbp_transport_choose("tcp", &ep) == &rbp_transport_tcp, "tcp by name");
	strcpy(ep.boot_id, "00000000-0000-0000-0000-000000000000");
	ok(rbp_transport_choose("auto", &ep) == &rbp_transport_tcp, "auto takes tcp elsewhere");
	ok(rbp_transport_choose("shm", &ep) == NULL, "shm by name is not usable there");
	ep.transports = RBP_TRANSPORT_SHM;
	ok(rbp_transport_choose("auto", &ep) == NULL, "none is usable");
	ok(rbp_transport_choose("verbs", &ep) == NULL, "unknown names give none");
	ok(rbp_transport_by_name("tcp") == &rbp_transport_tcp && rbp_transport_by_name("x") == NULL, "by name");
	for (int s = RBP_OK; s <= RBP_CANCELED; s++)
		ok(strcmp(rbp_status_text((RbpStatus) s), "unknown") != 0, "status %d is \"%s\"", s, rbp_status_text((RbpStatus) s));
}

/* On SIGTERM a donor waits for its regions, then leaves in good order. */
static void
test_drain(void)
{
	Lease		lease;
	RbpConn    *conn;
	int			status;

	lease_get(&lease, "drain", 2, LONG_TTL);
	conn = must_connect(&rbp_transport_tcp, &lease);
	kill(donor_pid, SIGTERM);
	sleep_ms(1500);
	ok(fill_pages(conn, lease.regions[0], 4, 1) && check_pages(conn, lease.regions[0], 4, 1),
	   "a draining donor serves the leases that it has");
	lease_delete(&lease);
	waitpid(donor_pid, &status, 0);
	donor_pid = -1;
	ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "and exits with 0 when they are gone");
	conn->ops->close(conn);
}

/*
 * A donor on a machine that is short of memory from the start: it keeps
 * nothing, and promises nothing.
 */
static void
test_pressure(void)
{
	bool		little = false;

	start_donor("--min-free", "1000TB");
	for (int i = 0; i < 100 && !little; i++)
	{
		sleep_ms(50);
		little = donor_shared_memory() < NREGIONS * REGION_SIZE / 4;
	}
	ok(little, "a donor gives memory back when the machine is short of it");
	is_u64((uint64_t) lease_try("pressure", 4), 0, "and lends none");
	ok(kill(donor_pid, 0) == 0, "and stays");
	stop_process(&donor_pid, SIGTERM);
}

static void
run_suite(const char *which)
{
	const char *dash = strchr(which, '-');
	bool		faulty = dash != NULL;

	name = which;
	ops = rbp_transport_by_name(faulty ? dash + 1 : which);
	if (ops == NULL)
		bail_out("there is no transport \"%s\"", which);
	is_shm = ops == &rbp_transport_shm;
	if (faulty)
	{
		setenv("RBP_FAULT_FILE", fault_path, 1);
		set_faults("");
		ok(rbp_fault_wrap(ops) != ops, "%s: is wrapped", name);
		ops = rbp_fault_wrap(ops);
	}

	test_connect();
	test_extents();
	test_bad_requests();
	test_batches();
	test_deadlines();
	test_close_in_flight();
	test_parallel();
	test_release();
	test_revoke();
	test_bad_peers();
	test_expiry(false);
	if (faulty)
		test_faults();
	else
		test_expiry(true);
	test_donor_death();
	unsetenv("RBP_FAULT_FILE");
}

int
main(int argc, char **argv)
{
	const char *base = getenv("TESTDIR");

	signal(SIGPIPE, SIG_IGN);
	snprintf(fault_path, sizeof(fault_path), "%s/rbp-faults.%d", base != NULL ? base : "/tmp", (int) getpid());
	start_broker();
	start_donor(NULL, NULL);
	if (argc > 1)
		for (int i = 1; i < argc; i++)
			run_suite(argv[i]);
	else
	{
		run_suite("shm");
		run_suite("tcp");
		run_suite("fault-shm");
		run_suite("fault-tcp");
		test_choice();
		test_drain();
		test_pressure();
	}
	unlink(fault_path);
	return done_testing();
}
