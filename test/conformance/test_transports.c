/*-------------------------------------------------------------------------
 *
 * test_transports.c
 *	  One suite for every transport, against a real donor and broker.
 *
 * Run without arguments it takes shm and tcp in turn, bare and with the fault
 * transport around them; arguments name some: shm tcp verbs fault-shm fault-tcp
 * fault-verbs.  verbs needs an RDMA device, and RBP_CONFORMANCE_ADDRESS to be
 * an address that leads to one.
 *
 * Timeout: 600
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/status.h"
#include "test/fault/fault.h"
#include "transport/peer.h"
#include "transport/transport.h"
#include "wire/wire.h"
#include "harness.h"
#include "tap.h"
#include "verbs_only.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE		8192
#define LONG_TTL	3600000

static const RbpTransportOps *ops;
static const char *name;		/* of the run: "tcp", "fault-tcp" */
static bool is_verbs;			/* with or without faults around */
static char fault_path[256];

/* What a worker needs. */
typedef struct Job
{
	char		which[16];		/* the transport, as select_transport() takes
								 * it */
	Lease		lease;
	int			number;
} Job;

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

/* By the name of a run; false if there is no such transport. */
static bool
select_transport(const char *which)
{
	const char *dash = strchr(which, '-');

	name = which;
	ops = rbp_transport_by_name(dash != NULL ? dash + 1 : which);
	if (ops == NULL)
		return false;
	is_verbs = ops == &rbp_transport_verbs;
	if (dash != NULL)
	{
		setenv("RBP_FAULT_FILE", fault_path, 1);
		ops = rbp_fault_wrap(ops);
	}
	return true;
}

/* Start n workers on a lease, numbered from 0, with all flags at 0. */
static void
start_workers(WorkerMain worker, const Lease *lease, pid_t *pids, int n)
{
	Job			job = {.lease = *lease};

	worker_flags[0] = worker_flags[1] = 0;
	snprintf(job.which, sizeof(job.which), "%s", name);
	for (; job.number < n; job.number++)
		pids[job.number] = worker_start(worker, &job, sizeof(job));
}

/* Until they have counted the second flag up to this; not for ever. */
static void
wait_for_flag(int count)
{
	int64_t		until = rbp_now_ns() + patience(5);

	while (__atomic_load_n(&worker_flags[1], __ATOMIC_RELAXED) < count && rbp_now_ns() < until)
		sleep_ms(5);
}

/* Returns how many of them did not exit with 0. */
static int
wait_for_workers(const pid_t *pids, int n)
{
	int			bad = 0;

	for (int i = 0; i < n; i++)
	{
		int			status = worker_wait(pids[i]);

		if (status != 0)
		{
			bad++;
			diag("worker %d: status 0x%x", i, (unsigned) status);
		}
	}
	return bad;
}

/* A request with all that it can have. */
static RbpStatus
do_more_io(RbpConn *conn, RbpIoKind kind, uint32_t region, uint32_t grant,
		   uint64_t offset, void *buf, uint32_t len, RbpMr *mr)
{
	RbpIo		io = {.kind = kind,.region = region,.grant = grant,.offset = offset,.len = len,.buf = buf,.mr = mr};

	(void) ops->submit(conn, &io, 1);
	(void) ops->wait(conn, &io, 1, rbp_now_ns() + patience(5));
	return io.status;
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
	wrong.ep.port = wrong.ep.rdma_port = 1;
	ok(connect_to(ops, &wrong, &conn) == RBP_CONNLOST, "%s: nobody there", name);
	strcpy(wrong.ep.boot_id, "another host");
	wrong.ep.host[0] = wrong.ep.rdma_host[0] = '\0';
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
	ok((ops->register_memory != NULL) == (ops->bit == RBP_TRANSPORT_VERBS) &&
	   (ops->deregister_memory != NULL) == (ops->bit == RBP_TRANSPORT_VERBS),
	   "%s: memory is registered with a device, if there is one", name);
	ok(ops->register_memory == NULL ||
	   (ops->register_memory(conn, in, REGION_SIZE + 2, &mr) == RBP_OK && mr != NULL),
	   "%s: memory can be registered", name);
	r = lease.regions[1];

	ok(do_io(conn, RBP_IO_READ, r, 0, in, REGION_SIZE, patience(5)) == RBP_OK &&
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
			w = do_io(conn, RBP_IO_WRITE, r, offset, out, len, patience(5));
			rd = do_io(conn, RBP_IO_READ, r, offset, in + 1, len, patience(5));
			ok(w == RBP_OK && rd == RBP_OK && memcmp(in + 1, out, len) == 0 &&
			   in[0] == 0x55 && in[len + 1] == 0x55,
			   "%s: %u bytes at %llu come back", name, len, (unsigned long long) offset);

			/* the same without a copy, where there is such a thing */
			fill(in + 1, len, i * 10 + (uint64_t) k + 5);
			w = do_more_io(conn, RBP_IO_WRITE, r, 0, offset, in + 1, len, mr);
			memset(in, 0x66, REGION_SIZE + 2);
			rd = do_more_io(conn, RBP_IO_READ, r, 0, offset, in + 1, len, mr);
			ok(w == RBP_OK && rd == RBP_OK && filled(in + 1, len, i * 10 + (uint64_t) k + 5) &&
			   in[0] == 0x66 && in[len + 1] == 0x66, "%s: from and to registered memory, too", name);
		}
	}
	ok(do_more_io(conn, RBP_IO_WRITE, r, 0, 0, out, PAGE, mr) == RBP_OK &&
	   do_more_io(conn, RBP_IO_READ, r, 0, 0, in, PAGE, mr) == RBP_OK && memcmp(in, out, PAGE) == 0,
	   "%s: a buffer that is elsewhere than the registered memory", name);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, in, REGION_SIZE, patience(5)) == RBP_OK &&
	   all_bytes(in, REGION_SIZE, 0), "%s: the other region was not touched", name);

	if (mr != NULL)
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
	ok(do_io(conn, RBP_IO_WRITE, lease.regions[0], 0, buf, PAGE, patience(1)) == RBP_OK, "%s: a good write", name);

	ok(do_io(conn, RBP_IO_READ, lease.regions[0], REGION_SIZE - PAGE + 1, buf, PAGE, patience(1)) == RBP_INVALID,
	   "%s: reading past the region's end is invalid", name);
	ok(do_io(conn, RBP_IO_WRITE, lease.regions[0], REGION_SIZE, buf, 1, patience(1)) == RBP_INVALID,
	   "%s: so is writing", name);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], UINT64_MAX - 10, buf, PAGE, patience(1)) == RBP_INVALID,
	   "%s: an offset that would wrap is invalid", name);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, UINT32_MAX, patience(1)) == RBP_INVALID,
	   "%s: so is an absurd length", name);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, 0, patience(1)) == RBP_INVALID,
	   "%s: and none at all", name);
	ok(do_io(conn, (RbpIoKind) 77, lease.regions[0], 0, buf, PAGE, patience(1)) == RBP_INVALID,
	   "%s: and an unknown kind", name);
	ok(do_io(conn, RBP_IO_READ, other.regions[0], 0, buf, PAGE, patience(1)) == RBP_DENIED,
	   "%s: a region of another lease cannot be read", name);
	ok(do_io(conn, RBP_IO_WRITE, other.regions[0], 0, buf, PAGE, patience(1)) == RBP_DENIED,
	   "%s: nor written", name);
	ok(do_io(conn, RBP_IO_READ, NREGIONS, 0, buf, PAGE, patience(1)) == RBP_DENIED,
	   "%s: a region that is not there is denied", name);
	ok(do_io(conn, RBP_IO_WRITE, UINT32_MAX, 0, buf, PAGE, patience(1)) == RBP_DENIED,
	   "%s: whatever its number", name);

	/* good and bad in one batch, with answers of all sizes */
	memset(buf, 0, sizeof(buf));
	for (int i = 0; i < 4; i++)
		ios[i] = (RbpIo)
	{
		.kind = RBP_IO_READ,.region = lease.regions[0],.offset = 0,.len = PAGE / 4,.buf = buf + i * (PAGE / 4)
	};
	ios[1].region = other.regions[0];
	ios[2].kind = RBP_IO_PING;
	ios[2].len = 0;
	(void) ops->submit(conn, ios, 4);
	ok(ops->wait(conn, ios, 4, rbp_now_ns() + patience(1)) == RBP_DENIED &&
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
			ios[i] = (RbpIo)
			{
				.kind = RBP_IO_WRITE,.region = lease.regions[i % 8],.offset = (uint64_t) i * PAGE,.len = PAGE,.buf = out + i * PAGE
			};
		}
		good &= ops->submit(conn, ios, n) == RBP_OK;
		good &= ops->wait(conn, ios, n, rbp_now_ns() + patience(5)) == RBP_OK;
		memset(in, 0, BATCH * PAGE);
		for (int i = 0; i < n; i++)
		{
			ios[i].kind = RBP_IO_READ;
			ios[i].buf = in + i * PAGE;
		}
		good &= ops->submit(conn, ios, n) == RBP_OK;
		good &= ops->wait(conn, ios, n, rbp_now_ns() + patience(5)) == RBP_OK;
		good &= memcmp(in, out, (size_t) n * PAGE) == 0;
	}
	ok(good, "%s: batches of 1 to %d write and read", name, BATCH);

	/*
	 * all posted before any is waited for; waited for from the last to the
	 * first
	 */
	good = true;
	for (int i = 0; i < DEPTH * BATCH; i++)
	{
		fill(out + i * PAGE, PAGE, (uint64_t) (7000 + i));
		ios[i] = (RbpIo)
		{
			.kind = RBP_IO_WRITE,.region = lease.regions[i % 8],.offset = (uint64_t) (i / 8) * PAGE,.len = PAGE,.buf = out + i * PAGE
		};
	}
	for (int b = 0; b < DEPTH; b++)
		good &= ops->submit(conn, ios + b * BATCH, BATCH) == RBP_OK;
	for (int b = DEPTH - 1; b >= 0; b--)
		good &= ops->wait(conn, ios + b * BATCH, BATCH, rbp_now_ns() + patience(10)) == RBP_OK;
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
		good &= ops->wait(conn, ios + b * BATCH, BATCH, rbp_now_ns() + patience(10)) == RBP_OK;
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
			a[i] = (RbpIo)
			{
				.kind = RBP_IO_WRITE,.region = r,.offset = MB + (uint64_t) i * PAGE,.len = PAGE,.buf = out + i * PAGE
			};
			b[i] = (RbpIo)
			{
				.kind = i == 1 ? RBP_IO_PING : RBP_IO_READ,.region = i == 1 ? 0 : lease.regions[(round + 1) % 8],.offset = i == 1 ? 0 : (uint64_t) i * 100,.len = i == 1 ? 0 : 100u << i,.buf = in + i * PAGE
			};
		}
		good &= ops->submit(conn, a, 3) == RBP_OK;
		good &= ops->submit(conn, b, 3) == RBP_OK;
		good &= ops->wait(conn, b, 3, rbp_now_ns() + patience(5)) == RBP_OK;
		good &= ops->wait(conn, a, 3, rbp_now_ns() + patience(5)) == RBP_OK;
		good &= do_io(conn, RBP_IO_READ, r, MB, in, 3 * PAGE, patience(5)) == RBP_OK;
		good &= filled(in, 3 * PAGE, (uint64_t) (9000 + round));
	}
	ok(good, "%s: overlapping batches", name);

	/* the same, waiting for parts of a batch */
	for (int i = 0; i < 8; i++)
		ios[i] = (RbpIo)
	{
		.kind = RBP_IO_READ,.region = lease.regions[i],.offset = 0,.len = PAGE,.buf = in + i * PAGE
	};
	good = ops->submit(conn, ios, 8) == RBP_OK;
	good &= ops->wait(conn, ios + 5, 3, rbp_now_ns() + patience(5)) == RBP_OK;
	good &= ops->wait(conn, ios, 5, rbp_now_ns() + patience(5)) == RBP_OK;
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
		good &= do_io(conn, RBP_IO_READ, region, (uint64_t) i * PAGE, buf, PAGE, patience(10)) == RBP_OK &&
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
		good &= do_io(conn, RBP_IO_WRITE, region, (uint64_t) i * PAGE, buf, PAGE, patience(10)) == RBP_OK;
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
	ios[0] = (RbpIo)
	{
		.kind = RBP_IO_PING
	};
	(void) ops->submit(conn, ios, 1);
	status = ops->wait(conn, ios, 1, rbp_now_ns() - SECOND);
	ok(status == RBP_TIMEOUT || status == RBP_OK, "%s: a deadline in the past does not wait", name);
	ok(do_io(conn, RBP_IO_PING, 0, 0, NULL, 0, patience(5)) == RBP_OK, "%s: and leaves the connection well", name);

	/* the donor stands still */
	freeze_donor();
	start = rbp_now_ns();
	status = do_io(conn, RBP_IO_PING, 0, 0, NULL, 0, SECOND / 20);
	took = rbp_now_ns() - start;
	ok(status == RBP_TIMEOUT, "%s: no answer from a stopped donor", name);
	ok(took >= SECOND / 20 && took < 5 * SECOND, "%s: the wait ends with the deadline", name);

	for (int i = 0; i < N; i++)
		ios[i] = (RbpIo)
	{
		.kind = RBP_IO_READ,.region = lease.regions[0],.offset = (uint64_t) i * PAGE,.len = PAGE,.buf = bufs + i * PAGE
	};
	(void) ops->submit(conn, ios, N);
	status = ops->wait(conn, ios, N, rbp_now_ns() + (ops->one_sided ? patience(1) : SECOND / 20));
	for (int i = 0; i < N; i++)
		good &= ios[i].status == (ops->one_sided ? RBP_OK : RBP_TIMEOUT);
	if (ops->one_sided)
		ok(good && status == RBP_OK, "%s: reads do not need the donor's attention", name);
	else
		ok(good && status == RBP_TIMEOUT, "%s: all reads time out", name);
	memset(bufs, 0xAB, N * PAGE);

	/* more pings than any transport sends at once */
	good = true;
	for (int i = 0; i < 20; i++)
		ios[i] = (RbpIo)
	{
		.kind = RBP_IO_PING
	};
	(void) ops->submit(conn, ios, 20);
	(void) ops->wait(conn, ios, 20, rbp_now_ns() + SECOND / 20);
	for (int i = 0; i < 20; i++)
		good &= ios[i].status == RBP_TIMEOUT;
	ok(good, "%s: many pings are as late as one", name);

	/* writes far beyond what any socket buffer takes */
	memset(big, 0x11, REGION_SIZE);
	for (int i = 0; i < N; i++)
		ios[i] = (RbpIo)
	{
		.kind = RBP_IO_WRITE,.region = lease.regions[1 + i % 3],.offset = 0,.len = REGION_SIZE,.buf = big
	};
	(void) ops->submit(conn, ios, N);
	status = ops->wait(conn, ios, N, rbp_now_ns() + SECOND / 20);
	ok(status == RBP_TIMEOUT || (ops->one_sided && status == RBP_OK), "%s: huge writes do not block", name);
	memset(big, 0x22, REGION_SIZE);
	kill(donor_pid, SIGCONT);

	good = true;
	for (int i = 0; i < 50; i++)
	{
		good &= do_io(conn, RBP_IO_PING, 0, 0, NULL, 0, patience(10)) == RBP_OK;
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
		good &= do_io(conn, RBP_IO_READ, lease.regions[i], 0, big, REGION_SIZE, patience(10)) == RBP_OK;
		for (uint32_t at = 0; at < REGION_SIZE; at++)
			good &= big[at] == 0x11 || big[at] == 0;
	}
	ok(good, "%s: an abandoned write sends what the buffer held, not what it holds now", name);

	ops->close(conn);
	lease_delete(&lease);
	free(bufs);
	free(big);
}

/* Give up, once asked a few times. */
static int	asked;

static bool
tired(void)
{
	return ++asked > 3;
}

/*
 * Whoever waits for a donor that stands still can be told to stop waiting, long
 * before the deadline, and go on later.
 */
static void
test_giving_up(void)
{
	int64_t		deadline = rbp_now_ns() + patience(300);
	Lease		lease;
	RbpConn    *conn;
	RbpConn    *second = NULL;
	RbpStatus	status;

	lease_get(&lease, "giving_up", 1, LONG_TTL);
	conn = must_connect(ops, &lease);
	freeze_donor();
	rbp_transport_set_give_up(tired);
	asked = 0;
	status = do_io(conn, RBP_IO_PING, 0, 0, NULL, 0, deadline - rbp_now_ns());
	ok(status == RBP_TIMEOUT && asked > 3 && rbp_now_ns() < deadline, "%s: a wait is given up", name);
	asked = 0;
	status = ops->connect(&lease.ep, &lease.cred, &second);
	ok(status == RBP_OK, "%s: a connection is begun", name);
	if (status == RBP_OK)
		status = ops->connect_wait(second, deadline);
	ok(status == RBP_INPROGRESS && asked > 3 && rbp_now_ns() < deadline, "%s: nor is it waited for", name);

	rbp_transport_set_give_up(NULL);
	kill(donor_pid, SIGCONT);
	ok(do_io(conn, RBP_IO_PING, 0, 0, NULL, 0, patience(10)) == RBP_OK, "%s: the one is good again", name);
	while (status == RBP_INPROGRESS && rbp_now_ns() < deadline)
		status = ops->connect_wait(second, rbp_now_ns() + SECOND);
	ok(status == RBP_OK, "%s: and the other comes about", name);
	ops->close(conn);
	ops->close(second);
	lease_delete(&lease);
}

/*
 * Requests that go on where the one before ends, which a transport may make
 * one of: with buffers in any order, and some given up.
 */
static void
test_runs(void)
{
	enum
	{
		N = 48, ROUNDS = 200, PIECE = REGION_SIZE / 16, PIECES = 64
	};
	static uint64_t state = 12345;
	Lease		lease;
	RbpConn    *conn;
	RbpIo		ios[PIECES];
	int			order[PIECES];
	uint8_t    *model = must_alloc(N * PAGE);
	uint8_t    *bufs = must_alloc(N * PAGE);
	uint8_t    *big = must_alloc(PIECES * PIECE);
	bool		good = true;

	lease_get(&lease, "runs", 4, LONG_TTL);
	conn = must_connect(ops, &lease);
	fill(model, N * PAGE, 4321);
	good &= do_io(conn, RBP_IO_WRITE, lease.regions[0], 0, model, N * PAGE, patience(5)) == RBP_OK;
	for (int round = 0; round < ROUNDS; round++)
	{
		uint32_t	at = 0;
		int			n = 0;
		int			half = N * PAGE / 2;

		/* pieces of what is there, some skipped: writes below, reads above */
		while (at < N * PAGE && n < 40)
		{
			uint32_t	len;
			uint8_t    *buf;

			state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
			len = 1 + (uint32_t) (state >> 40) % (round % 2 ? 2 * PAGE : 9000);
			if (at < (uint32_t) half && at + len > (uint32_t) half)
				len = (uint32_t) half - at;
			if (len > N * PAGE - at)
				len = N * PAGE - at;

			/* each other one at its place, the rest turned about */
			buf = bufs + (round % 3 ? at : N * PAGE - at - len);
			if ((state >> 33) % 8 != 0)
			{
				if (at < (uint32_t) half)
				{
					fill(buf, len, (uint64_t) round * 100 + at);
					memcpy(model + at, buf, len);
				}
				ios[n++] = (RbpIo)
				{
					.kind = at < (uint32_t) half ? RBP_IO_WRITE : RBP_IO_READ,.region = lease.regions[0],.offset = at,.len = len,.buf = buf
				};
			}
			at += len;
		}
		good &= ops->submit(conn, ios, n) == RBP_OK;
		if (round % 4 == 0)
			for (int i = n - 1; i >= 0; i--)
				good &= ops->wait(conn, ios + i, 1, rbp_now_ns() + patience(5)) == RBP_OK;
		good &= ops->wait(conn, ios, n, rbp_now_ns() + patience(5)) == RBP_OK;
		for (int i = 0; i < n; i++)
			good &= memcmp(ios[i].buf, model + ios[i].offset, ios[i].len) == 0;
	}
	good &= do_io(conn, RBP_IO_READ, lease.regions[0], 0, bufs, N * PAGE, patience(5)) == RBP_OK;
	ok(good && memcmp(bufs, model, N * PAGE) == 0, "%s: runs of requests, in memory of any order", name);

	/* one that is refused, or is nonsense, is none of its neighbours' */
	good = true;
	for (int i = 0; i < 6; i++)
		ios[i] = (RbpIo)
	{
		.kind = RBP_IO_READ,.region = lease.regions[0],.offset = (uint64_t) i * PAGE,.len = PAGE,.buf = bufs + i * PAGE
	};
	ios[2].len = 0;
	ios[4].kind = RBP_IO_PING;
	ios[4].len = 0;
	(void) ops->submit(conn, ios, 6);
	good &= ops->wait(conn, ios, 6, rbp_now_ns() + patience(5)) == RBP_INVALID;
	for (int i = 0; i < 6; i++)
		good &= ios[i].status == (i == 2 ? RBP_INVALID : RBP_OK) &&
			(i == 2 || i == 4 || memcmp(bufs + i * PAGE, model + i * PAGE, PAGE) == 0);
	ok(good, "%s: one bad request in a run", name);

	/* more than any socket buffer takes, and then some of it given up */
	for (int give_up = 0; give_up < 4; give_up++)
	{
		uint8_t		byte = (uint8_t) (0x31 + give_up);
		bool		given_up[PIECES] = {false};
		bool		kept = true;

		/* what is given up may never be written: then these bytes stay */
		memset(big, 0x30, PIECE);
		good = true;
		for (int i = 0; i < PIECES; i++)
			good &= do_io(conn, RBP_IO_WRITE, lease.regions[i / 16], (uint64_t) (i % 16) * PIECE, big, PIECE, patience(10)) == RBP_OK;
		memset(big, byte, PIECES * PIECE);
		for (int i = 0; i < PIECES; i++)
			order[i] = give_up == 1 ? PIECES - 1 - i : give_up == 2 ? (i * 29 + 3) % PIECES : i;
		freeze_donor();
		for (int i = 0; i < PIECES; i++)
			ios[i] = (RbpIo)
		{
			.kind = RBP_IO_WRITE,.region = lease.regions[i / 16],.offset = (uint64_t) (i % 16) * PIECE,.len = PIECE,.buf = big + (size_t) ((i * 13) % PIECES) * PIECE
		};
		for (int i = 0; i < PIECES; i += 32)
			(void) ops->submit(conn, ios + i, 32);
		/* one by one; or all at once, before a device has begun with most */
		if (give_up == 3)
			(void) ops->wait(conn, ios, PIECES / 4, rbp_now_ns());
		for (int i = 0; i < PIECES / 4; i++)
		{
			RbpIo	   *io = &ios[order[i]];

			(void) ops->wait(conn, io, 1, rbp_now_ns());
			good &= io->status == RBP_TIMEOUT || io->status == RBP_OK;
			given_up[order[i]] = io->status != RBP_OK;
			memset(io->buf, 0x77, PIECE);
		}
		kill(donor_pid, SIGCONT);
		for (int i = 0; i < PIECES; i++)
			if (ios[i].status == RBP_INPROGRESS)
				good &= ops->wait(conn, ios + i, 1, rbp_now_ns() + patience(10)) == RBP_OK;
		good &= do_io(conn, RBP_IO_PING, 0, 0, NULL, 0, patience(10)) == RBP_OK;
		ok(good, "%s: parts of runs given up, the others are written (%d)", name, give_up);
		for (int i = 0; i < PIECES; i++)
		{
			good &= do_io(conn, RBP_IO_READ, ios[i].region, ios[i].offset, big, PIECE, patience(10)) == RBP_OK;
			kept &= all_bytes(big, PIECE, byte) || given_up[i];
			for (int at = 0; at < PIECE; at++)
				kept &= big[at] != 0x77;
		}
		ok(good && kept, "%s: with what their buffers held (%d)", name, give_up);
	}

	ops->close(conn);
	lease_delete(&lease);
	free(model);
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
			ios[i] = (RbpIo)
		{
			.kind = i % 2 ? RBP_IO_WRITE : RBP_IO_READ,.region = lease.regions[0],.offset = (uint64_t) i * PAGE,.len = PAGE,.buf = buf + i * PAGE
		};
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
 * Processes, each with a slice of its own, all on the same regions.
 */
#define PARALLEL_SLICE	16

static void
parallel_worker(const void *arg)
{
	const Job  *job = arg;
	RbpConn    *conn = NULL;
	uint8_t    *buf = must_alloc(PARALLEL_SLICE * PAGE);
	RbpIo		ios[PARALLEL_SLICE];
	RbpStatus	status;

	if (!select_transport(job->which) || connect_to(ops, &job->lease, &conn) != RBP_OK)
		_exit(2);
	for (int round = 0; round < 60; round++)
	{
		uint64_t	seed = (uint64_t) (job->number * 1000000 + round * 1000);

		for (int kind = 0; kind < 2; kind++)
		{
			for (int i = 0; i < PARALLEL_SLICE; i++)
			{
				if (kind == 0)
					fill(buf + i * PAGE, PAGE, seed + (uint64_t) i);
				ios[i] = (RbpIo)
				{
					.kind = kind == 0 ? RBP_IO_WRITE : RBP_IO_READ,.region = job->lease.regions[i % 4],.offset = (uint64_t) (job->number * PARALLEL_SLICE + i) * PAGE,.len = PAGE,.buf = buf + i * PAGE
				};
			}
			(void) ops->submit(conn, ios, PARALLEL_SLICE);
			status = ops->wait(conn, ios, PARALLEL_SLICE, rbp_now_ns() + patience(20));
			if (status != RBP_OK)
			{
				diag("worker %d, round %d: %s", job->number, round, rbp_status_text(status));
				_exit(3);
			}
			if (kind == 0)
				memset(buf, 0, PARALLEL_SLICE * PAGE);
		}
		for (int i = 0; i < PARALLEL_SLICE; i++)
			if (!filled(buf + i * PAGE, PAGE, seed + (uint64_t) i))
				_exit(4);
	}
	ops->close(conn);
}

static void
test_parallel(void)
{
	enum
	{
		PROCS = 8
	};
	Lease		lease;
	pid_t		pids[PROCS];

	lease_get(&lease, "parallel", 4, LONG_TTL);
	start_workers(parallel_worker, &lease, pids, PROCS);
	ok(wait_for_workers(pids, PROCS) == 0, "%s: %d processes at once, contents right", name, PROCS);
	lease_delete(&lease);
}

/*
 * Threads, each with a connection of its own, and memory registered by all.
 */
typedef struct ThreadJob
{
	const Lease *lease;
	uint8_t    *memory;
	int			number;
	RbpStatus	status;			/* of the first thing that failed */
	bool		wrong;			/* contents */
} ThreadJob;

#define THREADS		4

static void *
thread_main(void *arg)
{
	ThreadJob  *job = arg;
	uint8_t    *page = job->memory + job->number * PAGE;

	for (int round = 0; job->status == RBP_OK && round < 10; round++)
	{
		RbpConn    *conn = NULL;
		RbpMr	   *mr = NULL;

		job->status = connect_to(ops, job->lease, &conn);
		if (job->status != RBP_OK)
			break;
		if (ops->register_memory != NULL)
			job->status = ops->register_memory(conn, job->memory, THREADS * PAGE, &mr);
		for (int i = 0; job->status == RBP_OK && i < 30; i++)
		{
			uint64_t	seed = (uint64_t) (job->number * 10000 + round * 100 + i);
			uint64_t	offset = (uint64_t) (job->number * 30 + i) * PAGE;
			uint32_t	region = job->lease->regions[i % 2];

			fill(page, PAGE, seed);
			job->status = do_more_io(conn, RBP_IO_WRITE, region, 0, offset, page, PAGE, mr);
			memset(page, 0, PAGE);
			if (job->status == RBP_OK)
				job->status = do_more_io(conn, RBP_IO_READ, region, 0, offset, page, PAGE, i % 3 != 0 ? mr : NULL);
			job->wrong |= job->status == RBP_OK && !filled(page, PAGE, seed);
		}
		if (mr != NULL)
			ops->deregister_memory(conn, mr);
		ops->close(conn);
	}
	return NULL;
}

static void
test_threads(void)
{
	uint8_t    *memory = must_alloc(THREADS * PAGE);
	pthread_t	threads[THREADS];
	ThreadJob	jobs[THREADS];
	bool		good = true;
	Lease		lease;

	lease_get(&lease, "threads", 2, LONG_TTL);
	for (int i = 0; i < THREADS; i++)
	{
		jobs[i] = (ThreadJob)
		{
			.lease = &lease,.memory = memory,.number = i
		};
		if (pthread_create(&threads[i], NULL, thread_main, &jobs[i]) != 0)
			bail_out("no thread");
	}
	for (int i = 0; i < THREADS; i++)
	{
		pthread_join(threads[i], NULL);
		if (jobs[i].status != RBP_OK || jobs[i].wrong)
		{
			good = false;
			diag("thread %d: %s%s", i, rbp_status_text(jobs[i].status), jobs[i].wrong ? ", wrong contents" : "");
		}
	}
	ok(good, "%s: %d threads, each with connections of its own", name, THREADS);
	lease_delete(&lease);
	free(memory);
}

/*
 * A signal each millisecond, which interrupts whatever can be interrupted.
 */
static volatile sig_atomic_t interruptions;

static void
on_alarm(int signo)
{
	(void) signo;
	interruptions++;
}

static void
test_signals(void)
{
	struct sigaction action = {.sa_handler = on_alarm};
	struct itimerval timer = {.it_interval.tv_usec = 1000,.it_value.tv_usec = 1000};
	struct itimerval none = {.it_value.tv_usec = 0};
	Lease		lease;
	RbpConn    *conn = NULL;
	bool		good = true;

	lease_get(&lease, "signals", 1, LONG_TTL);
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
	for (int i = 0; i < 3; i++)
	{
		RbpStatus	status = connect_to(ops, &lease, &conn);

		good &= status == RBP_OK;
		if (status != RBP_OK)
			break;
		good &= fill_pages(conn, lease.regions[0], 100, (uint64_t) i * 1000) &&
			check_pages(conn, lease.regions[0], 100, (uint64_t) i * 1000);
		good &= do_io(conn, RBP_IO_PING, 0, 0, NULL, 0, patience(5)) == RBP_OK;
		ops->close(conn);
	}
	setitimer(ITIMER_REAL, &none, NULL);
	signal(SIGALRM, SIG_DFL);
	ok(good && interruptions > 0, "%s: %d signals disturb nothing", name, (int) interruptions);
	lease_delete(&lease);
}

/* Is every byte of the lease's memory this? */
static bool
holds_everywhere(RbpConn *conn, const Lease *lease, uint8_t value)
{
	uint8_t    *bytes = must_alloc(REGION_SIZE);
	bool		result = true;

	for (int i = 0; i < lease->nregions; i++)
	{
		RbpStatus	status = do_io(conn, RBP_IO_READ, lease->regions[i], 0, bytes, REGION_SIZE, patience(5));
		uint32_t	at = 0;

		while (status == RBP_OK && at < REGION_SIZE && bytes[at] == value)
			at++;
		if (at == REGION_SIZE)
			continue;
		result = false;
		diag("region %u: %s, byte %u is 0x%02x", lease->regions[i], rbp_status_text(status), at, bytes[at]);
	}
	free(bytes);
	return result;
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
	RbpStatus	rd;
	RbpStatus	wr;
	const char *how = broker_dead ? "expired, broker dead" : "expired";
	int			ttl = 6000;

	lease_get(&lease, "expiry", 6, ttl);
	conn = must_connect(ops, &lease);
	ok(lease_renew(&lease) && fill_pages(conn, lease.regions[2], 8, 40) &&
	   check_pages(conn, lease.regions[2], 8, 40), "%s: %s: it works before", name, how);
	if (broker_dead)
	{
		stop_process(&broker_pid, SIGKILL);
		ok(check_pages(conn, lease.regions[2], 8, 40), "%s: a dead broker disturbs nobody at first", name);
	}
	sleep_ms(ttl + 1500);
	memset(page, 0x66, sizeof(page));
	wr = do_io(conn, RBP_IO_WRITE, lease.regions[2], 0, page, PAGE, patience(5));
	rd = do_io(conn, RBP_IO_READ, lease.regions[2], PAGE, page, PAGE, patience(5));
	ok(gone(wr), "%s: %s: cannot write (%s)", name, how, rbp_status_text(wr));
	ok(gone(rd), "%s: %s: cannot read (%s)", name, how, rbp_status_text(rd));
	if (broker_dead)
		start_broker();

	lease_get(&next, "after-expiry", NREGIONS, LONG_TTL);
	(void) do_io(conn, RBP_IO_WRITE, lease.regions[2], 0, page, PAGE, patience(1));
	ops->close(conn);
	conn = NULL;
	ok(gone(connect_to(ops, &lease, &conn)), "%s: %s: cannot connect", name, how);
	conn = must_connect(ops, &next);
	ok(holds_everywhere(conn, &next, 0), "%s: %s: the next lease sees zeroes", name, how);
	ops->close(conn);
	lease_delete(&next);
}

/*
 * Processes that go on reading and writing a revoked lease, while another
 * takes its regions: they must never see its bytes, nor it theirs.
 */
static void
revoke_worker(const void *arg)
{
	const Job  *job = arg;
	const Lease *lease = &job->lease;
	uint64_t	offset = (uint64_t) job->number * 16 * PAGE;
	uint8_t    *buf = must_alloc(16 * PAGE);
	bool		denied[NREGIONS] = {false};
	bool		any = false;
	RbpConn    *c;

	(void) select_transport(job->which);
	c = must_connect(ops, lease);
	__atomic_fetch_add(&worker_flags[1], 1, __ATOMIC_RELAXED);

	/* at least once round after the end */
	for (unsigned int i = 0; i % NREGIONS != 0 || !__atomic_load_n(&worker_flags[0], __ATOMIC_RELAXED); i++)
	{
		uint32_t	r = lease->regions[i % NREGIONS];
		bool	   *out = &denied[i % NREGIONS];
		RbpStatus	status;

		memset(buf, 0xA1, 16 * PAGE);
		status = do_io(c, RBP_IO_WRITE, r, offset, buf, 16 * PAGE, patience(5));
		if (status == RBP_OK && *out)
			_exit(2);			/* back from the dead */
		*out |= gone(status);
		status = do_io(c, RBP_IO_READ, r, offset, buf, 16 * PAGE, patience(5));
		if (status == RBP_OK && *out)
			_exit(3);
		if (status == RBP_OK && !all_bytes(buf, 16 * PAGE, 0xA1))
			_exit(4);			/* not ours */
		if (!gone(status) && status != RBP_OK)
			_exit(5);
		*out |= gone(status);
		any |= *out;
	}
	ops->close(c);
	_exit(any ? 0 : 6);
}

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
	bool		zero;
	bool		kept = true;

	lease_get(&lease, "revoked", NREGIONS, LONG_TTL);
	start_workers(revoke_worker, &lease, pids, PROCS);
	wait_for_flag(PROCS);
	sleep_ms(300);
	lease_revoke(&lease);
	lease_get(&next, "after-revoke", NREGIONS, LONG_TTL);
	conn = must_connect(ops, &next);
	zero = holds_everywhere(conn, &next, 0);
	ok(zero, "%s: after a revoke under load the next lease sees zeroes", name);
	memset(region, 0xB2, REGION_SIZE);
	for (int i = 0; i < NREGIONS; i++)
		kept &= do_io(conn, RBP_IO_WRITE, next.regions[i], 0, region, REGION_SIZE, patience(5)) == RBP_OK;
	sleep_ms(300);
	kept &= holds_everywhere(conn, &next, 0xB2);
	__atomic_store_n(&worker_flags[0], 1, __ATOMIC_RELAXED);
	ok(kept, "%s: the old holders write nothing into it", name);
	ok(wait_for_workers(pids, PROCS) == 0, "%s: and read nothing but their own, until they are denied", name);
	ops->close(conn);
	lease_delete(&next);
	free(region);
}

static void
test_release(void)
{
	Lease		lease;
	RbpConn    *conn;
	RbpConn    *fresh;
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
		status = do_io(conn, RBP_IO_READ, given, 0, page, PAGE, patience(5));
		sleep_ms(50);
	}
	ok(status == RBP_DENIED, "%s: a released region is denied (%s)", name, rbp_status_text(status));

	/* over verbs, what finds that out is an error that ends a connection */
	status = do_io(conn, RBP_IO_WRITE, given, 0, page, PAGE, patience(5));
	ok(status == (is_verbs ? RBP_CONNLOST : RBP_DENIED), "%s: for writing, too (%s)", name, rbp_status_text(status));
	fresh = must_connect(ops, &lease);
	ok(do_io(fresh, RBP_IO_READ, given, 0, page, PAGE, patience(5)) == RBP_DENIED &&
	   do_io(fresh, RBP_IO_WRITE, given, 0, page, PAGE, patience(5)) == RBP_DENIED,
	   "%s: and over a connection that has never used it", name);
	for (int i = 0; i < 2; i++)
		ok(check_pages(is_verbs ? fresh : conn, lease.regions[i], 4, lease.regions[i] == given ? 99 : (uint64_t) (i == 0 ? 0 : 20)),
		   "%s: region %d of the lease lives on, over the same connection", name, i);
	ops->close(conn);
	ops->close(fresh);
	lease_delete(&lease);
}

/*
 * A region that is lost and granted anew, to the same lease, while a connection
 * remembers it.
 */
static void
test_regrant(void)
{
	Lease		lease;
	Lease		others;
	RbpConn    *conn;
	RbpStatus	status;
	uint8_t		page[PAGE];
	uint32_t	region;

	lease_get(&lease, "regrant", 2, LONG_TTL);
	lease_get(&others, "others", NREGIONS - 2, LONG_TTL);
	conn = must_connect(ops, &lease);
	region = lease.regions[1];
	memset(page, 0x77, PAGE);
	ok(do_more_io(conn, RBP_IO_WRITE, region, 1, 0, page, PAGE, NULL) == RBP_OK, "%s: a region of a first grant", name);
	lease_release(&lease, 1);
	lease_grow(&lease, 2);
	is_u64(lease.regions[1] == region ? lease.regions[1] : lease.regions[0], region,
		   "%s: no other was there to be granted", name);
	do
		status = do_more_io(conn, RBP_IO_READ, region, 2, 0, page, PAGE, NULL);
	while (status == RBP_CANCELED);
	ok(status == RBP_OK && all_bytes(page, PAGE, 0), "%s: of a second grant it is another, over the same connection (%s)",
	   name, rbp_status_text(status));
	ops->close(conn);
	lease_delete(&lease);
	lease_delete(&others);
}

/*
 * A lease gets another secret: connections that were proven by the former one end,
 * and the memory stays.
 */
static void
test_new_secret(void)
{
	int64_t		until = rbp_now_ns() + patience(30);
	RbpStatus	status = RBP_OK;
	uint8_t		page[PAGE];
	Lease		lease;
	Lease		former;
	RbpConn    *conn;
	RbpConn    *fresh;

	lease_get(&lease, "secret", 2, LONG_TTL);
	conn = must_connect(ops, &lease);
	fill_pages(conn, lease.regions[1], 4, 70);
	former = lease;
	lease_change_secret(&lease);
	ok(memcmp(&lease.cred, &former.cred, sizeof(lease.cred)) != 0 && lease.nregions == 2,
	   "%s: the lease has another secret", name);

	/* the answer waits for the donor, but not for ever */
	while (connect_to(ops, &lease, &fresh) != RBP_OK)
	{
		if (rbp_now_ns() > until)
			bail_out("the donor does not know the secret");
		sleep_ms(50);
	}
	ok(check_pages(fresh, lease.regions[1], 4, 70), "%s: its memory is as it was", name);
	while (status == RBP_OK && rbp_now_ns() < until)
	{
		sleep_ms(10);
		status = do_io(conn, RBP_IO_READ, lease.regions[1], 0, page, PAGE, patience(5));
	}
	ok(gone(status), "%s: a connection that was proven by the former secret ends (%s)", name, rbp_status_text(status));
	ops->close(conn);
	ok(connect_to(ops, &former, &conn) == RBP_DENIED, "%s: nobody can connect by that", name);
	ok(check_pages(fresh, lease.regions[1], 4, 70), "%s: who has the new one goes on", name);
	ops->close(fresh);
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

/* What the donor says to a HELLO of that version; the socket. */
static int
say_hello(const Lease *lease, uint16_t version, uint8_t answer[RBP_HANDSHAKE_MAX])
{
	uint8_t		buf[RBP_HELLO_SIZE];
	int			fd = raw_socket(lease);

	rbp_wire_put_hello(buf, lease->cred.lease);
	memcpy(buf + offsetof(RbpWireHello, version), &version, sizeof(version));
	if (send(fd, buf, sizeof(buf), MSG_NOSIGNAL) != sizeof(buf) ||
		recv(fd, answer, RBP_REFUSAL_SIZE, MSG_WAITALL) != RBP_REFUSAL_SIZE ||
		(answer[0] == RBP_OP_CHALLENGE &&
		 recv(fd, answer + RBP_REFUSAL_SIZE, RBP_CHALLENGE_SIZE - RBP_REFUSAL_SIZE, MSG_WAITALL) !=
		 RBP_CHALLENGE_SIZE - RBP_REFUSAL_SIZE))
		bail_out("no answer to HELLO");
	return fd;
}

/* Send an AUTH; the answer's status, and *welcome. */
static uint16_t
say_auth(int fd, const RbpWireAuth *auth, RbpWireWelcome *welcome)
{
	uint8_t		buf[RBP_HANDSHAKE_MAX];
	ssize_t		n;

	rbp_wire_put_auth(buf, auth);
	if (send(fd, buf, RBP_AUTH_SIZE, MSG_NOSIGNAL) != RBP_AUTH_SIZE ||
		(n = recv(fd, buf, RBP_REFUSAL_SIZE, MSG_WAITALL)) != RBP_REFUSAL_SIZE)
		bail_out("no answer to AUTH");
	if (buf[2] == RBP_WIRE_OK)
		n += recv(fd, buf + RBP_REFUSAL_SIZE, RBP_WELCOME_SIZE - RBP_REFUSAL_SIZE, MSG_WAITALL);
	if (!rbp_wire_get_welcome(buf, (size_t) n, welcome))
		bail_out("no WELCOME");
	return welcome->prefix.status;
}

typedef enum Lie
{
	NO_LIE,
	REPLAY,						/* the AUTH of the one without a lie */
	REFLECTION,					/* the MAC that the donor would give */
	OTHER_DONOR,				/* another donor's key, or the secret itself */
	THE_SECRET,
	OTHER_NONCE					/* than the MAC covers */
} Lie;

/* A handshake by hand; the socket, if the donor lets us in, else -1. */
static int
shake_hands(const Lease *lease, Lie lie)
{
	static RbpWireAuth heard;
	RbpWireTranscript transcript = {0};
	RbpWireWelcome welcome = {.regions = 1};
	RbpWireAuth auth = {0};
	uint8_t		buf[RBP_HANDSHAKE_MAX];
	uint8_t		key[RBP_SECRET_LEN];
	uint8_t		mac[RBP_MAC_LEN];
	int			fd = say_hello(lease, RBP_WIRE_VERSION, buf);

	strcpy(transcript.lease, lease->cred.lease);
	memset(auth.nonce, 0x17, sizeof(auth.nonce));
	memcpy(transcript.client_nonce, auth.nonce, sizeof(auth.nonce));
	if (!rbp_wire_get_challenge(buf, RBP_CHALLENGE_SIZE, transcript.donor_nonce) ||
		!rbp_donor_key(lease->cred.secret, lie == OTHER_DONOR ? "other" : lease->ep.donor, key) ||
		!rbp_handshake_mac(lie == THE_SECRET ? lease->cred.secret : key, &transcript,
						   lie == REFLECTION ? &welcome : NULL, auth.mac))
		bail_out("no challenge");
	if (lie == NO_LIE)
		heard = auth;
	else if (lie == REPLAY)
		auth = heard;
	else if (lie == OTHER_NONCE)
		auth.nonce[0] ^= 1;
	if (say_auth(fd, &auth, &welcome) == RBP_WIRE_OK)
	{
		if (!rbp_handshake_mac(key, &transcript, &welcome, mac) || memcmp(mac, welcome.mac, sizeof(mac)) != 0)
			bail_out("the donor does not prove itself");
		return fd;
	}
	if (welcome.prefix.status != RBP_WIRE_DENIED || !closed(fd))
		bail_out("status %d is not what denies", welcome.prefix.status);
	return -1;
}

static void
test_proofs(void)
{
	static const char *const lies[] = {
		[REPLAY] = "an AUTH of another connection",[REFLECTION] = "the MAC of a WELCOME",
		[OTHER_DONOR] = "another donor's key",[THE_SECRET] = "the lease's secret",
		[OTHER_NONCE] = "another nonce than the MAC has"
	};
	uint8_t		buf[RBP_HANDSHAKE_MAX];
	RbpWireWelcome welcome;
	RbpConn    *conn = NULL;
	Lease		lease;
	int			fd;

	lease_get(&lease, "proofs", 1, LONG_TTL);
	fd = say_hello(&lease, 1, buf);
	ok(rbp_wire_get_welcome(buf, RBP_REFUSAL_SIZE, &welcome) &&
	   welcome.prefix.status == RBP_WIRE_VERSION_MISMATCH && closed(fd), "%s: version 1 is refused, and told why", name);
	fd = shake_hands(&lease, NO_LIE);
	ok(fd >= 0, "%s: both ends prove themselves", name);
	for (Lie lie = REPLAY; lie <= OTHER_NONCE; lie++)
		ok(shake_hands(&lease, lie) < 0, "%s: %s is denied", name, lies[lie]);
	close(fd);

	/* the transport itself, to a donor that it takes for another one */
	strcpy(lease.ep.donor, "other");
	ok(ops->connect(&lease.ep, &lease.cred, &conn) == RBP_OK &&
	   ops->connect_wait(conn, rbp_now_ns() + patience(5)) == RBP_DENIED, "%s: a key is good for one donor", name);
	ops->close(conn);
	lease_delete(&lease);
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
	RbpWireRequest req = {.prefix.op = RBP_OP_READ,.len = REGION_SIZE};
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
	hog = shake_hands(&lease, NO_LIE);
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
death_worker(const void *arg)
{
	const Job  *job = arg;
	uint8_t    *buf = must_alloc(4 * PAGE);
	int64_t		until = rbp_now_ns() + patience(20);
	RbpIo		ios[4];
	RbpConn    *c;

	(void) select_transport(job->which);
	c = must_connect(ops, &job->lease);
	for (unsigned int i = 0; rbp_now_ns() < until; i++)
	{
		RbpStatus	status;

		for (int k = 0; k < 4; k++)
			ios[k] = (RbpIo)
		{
			.kind = RBP_IO_READ,.region = job->lease.regions[0],.offset = (uint64_t) ((i + (unsigned) k) % 32) * PAGE,.len = PAGE,.buf = buf + k * PAGE
		};
		(void) ops->submit(c, ios, 4);
		status = ops->wait(c, ios, 4, rbp_now_ns() + patience(10));
		for (int k = 0; k < 4; k++)
			if (ios[k].status == RBP_OK &&
				!filled(buf + k * PAGE, PAGE, 900 + (i + (unsigned) k) % 32))
				_exit(2);
		if (i == 20)
			__atomic_fetch_add(&worker_flags[1], 1, __ATOMIC_RELAXED);
		if (status != RBP_OK)
		{
			/* and it stays so */
			(void) ops->submit(c, ios, 4);
			status = ops->wait(c, ios, 4, rbp_now_ns() + patience(1));
			ops->close(c);
			_exit(status == RBP_CONNLOST ? 0 : 3);
		}
	}
	_exit(4);
}

static void
test_donor_death(void)
{
	enum
	{
		PROCS = 2
	};
	Lease		lease;
	pid_t		pids[PROCS];
	RbpConn    *conn = NULL;

	lease_get(&lease, "death", 2, LONG_TTL);
	conn = must_connect(ops, &lease);
	ok(fill_pages(conn, lease.regions[0], 32, 900), "%s: pages before the donor's death", name);
	start_workers(death_worker, &lease, pids, PROCS);
	wait_for_flag(PROCS);
	sleep_ms(200);
	stop_process(&donor_pid, SIGKILL);
	ok(wait_for_workers(pids, PROCS) == 0, "%s: readers of a killed donor lose the connection, and see nothing wrong", name);
	ops->close(conn);
	conn = NULL;
	ok(connect_to(ops, &lease, &conn) == RBP_CONNLOST, "%s: nobody to connect to", name);

	start_donor(NULL);
	{
		uint8_t    *region = must_alloc(REGION_SIZE);
		Lease		next;

		lease_get(&next, "reborn", 2, LONG_TTL);
		conn = must_connect(ops, &next);
		ok(do_io(conn, RBP_IO_READ, next.regions[0], 0, region, REGION_SIZE, patience(5)) == RBP_OK &&
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
	char		rule[RBP_DONOR_ID_LEN + 32];
	int64_t		start;
	int			wrong = 0;
	int			right = 0;

	lease_get(&lease, "faults", 1, LONG_TTL);
	conn = must_connect(ops, &lease);
	ok(fill_pages(conn, lease.regions[0], 8, 30), "%s: no faults yet", name);

	set_faults("# a comment\nread corrupt\n");
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, patience(1)) == RBP_OK && !filled(buf, PAGE, 30),
	   "%s: corrupted when read", name);
	set_faults("");
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, patience(1)) == RBP_OK && filled(buf, PAGE, 30),
	   "%s: what the donor has is intact", name);

	set_faults("write corrupt\n");
	fill(buf, PAGE, 55);
	ok(do_io(conn, RBP_IO_WRITE, lease.regions[0], PAGE, buf, PAGE, patience(1)) == RBP_OK && filled(buf, PAGE, 55),
	   "%s: corrupted when written, and the buffer is not", name);
	set_faults("");
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], PAGE, buf, PAGE, patience(1)) == RBP_OK && !filled(buf, PAGE, 55),
	   "%s: the donor has it corrupted", name);

	set_faults("truncate\n");
	memset(buf, 0, PAGE);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 2 * PAGE, buf, PAGE, patience(1)) == RBP_OK &&
	   !filled(buf, PAGE, 32) && all_bytes(buf + PAGE / 2, PAGE / 2, 0xEE), "%s: truncated", name);
	fill(buf, PAGE, 56);
	(void) do_io(conn, RBP_IO_WRITE, lease.regions[0], 3 * PAGE, buf, PAGE, patience(1));
	set_faults("");
	(void) do_io(conn, RBP_IO_READ, lease.regions[0], 3 * PAGE, buf, PAGE, patience(1));
	ok(!filled(buf, PAGE, 56) && !filled(buf, PAGE, 33), "%s: half of a write arrives", name);

	set_faults("donor another read corrupt\n");
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, patience(1)) == RBP_OK && filled(buf, PAGE, 30),
	   "%s: another donor's fault", name);
	snprintf(rule, sizeof(rule), "donor %s read corrupt\n", lease.ep.donor);
	set_faults(rule);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, patience(1)) == RBP_OK && !filled(buf, PAGE, 30),
	   "%s: this donor's fault", name);

	set_faults("read delay_us 200000\n");
	start = rbp_now_ns();
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, patience(1)) == RBP_OK && filled(buf, PAGE, 30) &&
	   rbp_now_ns() - start >= SECOND / 5, "%s: delayed", name);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, SECOND / 20) == RBP_TIMEOUT, "%s: delayed past the deadline", name);
	ok(do_io(conn, RBP_IO_PING, 0, 0, NULL, 0, patience(1)) == RBP_OK, "%s: only reads were to be delayed", name);

	set_faults("drop\n");
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, SECOND / 20) == RBP_TIMEOUT, "%s: dropped", name);
	set_faults("ping drop\nread deny\n");
	ok(do_io(conn, RBP_IO_PING, 0, 0, NULL, 0, SECOND / 20) == RBP_TIMEOUT, "%s: a ping dropped", name);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, patience(1)) == RBP_DENIED, "%s: denied", name);

	set_faults("seed 42\nread corrupt 0.25\n");
	for (int i = 0; i < 400; i++)
	{
		(void) do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, patience(1));
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
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, patience(1)) == RBP_CONNLOST, "%s: cut", name);
	set_faults("");
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, patience(1)) == RBP_CONNLOST, "%s: what is cut stays cut", name);
	ops->close(conn);
	conn = must_connect(ops, &lease);
	ok(do_io(conn, RBP_IO_READ, lease.regions[0], 0, buf, PAGE, patience(1)) == RBP_OK && filled(buf, PAGE, 30),
	   "%s: a new connection is whole", name);
	ops->close(conn);
	lease_delete(&lease);
}

static void
put_line(const char *dir, const char *name, const char *line)
{
	char		path[128];
	FILE	   *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	if (f == NULL || fputs(line, f) < 0 || fclose(f) != 0)
		bail_out("could not write %s: %s", path, strerror(errno));
}

static void
remove_file(const char *dir, const char *name)
{
	char		path[128];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	(void) remove(path);
}

/* A device in a directory in place of sysfs: of that type, with such a port. */
static void
make_device(const char *device, const char *type, const char *port)
{
	static const char *const dirs[] = {"", "/ports", "/ports/1"};
	RbpDeviceConfig config = *rbp_verbs_config();

	for (int i = 0; i < 3; i++)
	{
		char		path[128];

		snprintf(path, sizeof(path), "%s%s", device, dirs[i]);
		(void) mkdir(path, 0700);
	}
	put_line(device, "node_type", type);
	put_line(device, "ports/1/state", port);
	rbp_verbs_configure(&config);	/* forget the last look */
}

/* With devices as told by a directory in place of sysfs. */
static void
test_choice_of_verbs(void)
{
	RbpEndpoint ep = {.transports = RBP_TRANSPORT_SHM | RBP_TRANSPORT_TCP | RBP_TRANSPORT_VERBS,.host = "127.0.0.1",.port = 5,.rdma_host = "127.0.0.1",.rdma_port = 6};
	const char *sysfs = rbp_verbs_sysfs;
	RbpDeviceConfig config = RBP_DEVICE_CONFIG_DEFAULT;
	char		dir[] = "/tmp/conformance.XXXXXX";
	char		device[64];

	if (mkdtemp(dir) == NULL)
		bail_out("could not make %s: %s", dir, strerror(errno));
	snprintf(device, sizeof(device), "%s/none/such", dir);
	rbp_verbs_sysfs = device;
	rbp_verbs_configure(&config);
	ok(rbp_transport_choose("auto", &ep) == &rbp_transport_tcp && rbp_transport_choose("verbs", &ep) == NULL,
	   "without an RDMA device there is no verbs");
	rbp_verbs_sysfs = dir;
	rbp_verbs_configure(&config);
	ok(rbp_transport_choose("auto", &ep) == &rbp_transport_tcp, "nor in a kernel that has none");
	snprintf(device, sizeof(device), "%s/rdma0", dir);
	make_device(device, "7: <unknown>\n", "4: ACTIVE\n");
	ok(rbp_transport_choose("auto", &ep) == &rbp_transport_tcp, "nor with one that is neither InfiniBand nor RoCE");
	make_device(device, "1: CA\n", "1: DOWN\n");
	ok(rbp_transport_choose("auto", &ep) == &rbp_transport_tcp, "nor with one whose port is down");
	make_device(device, "1: CA\n", "4: ACTIVE\n");
	ok(rbp_transport_choose("auto", &ep) == &rbp_transport_verbs, "with one it comes before tcp");
	strcpy(ep.shm_name, "remote_bp-x");
	strcpy(ep.boot_id, rbp_transport_boot_id());
	ok(rbp_transport_choose("auto", &ep) == &rbp_transport_shm, "and after shm");
	ok(rbp_transport_choose("verbs", &ep) == &rbp_transport_verbs, "verbs by name");
	strcpy(config.device, "rdma1");
	rbp_verbs_configure(&config);
	ok(rbp_transport_choose("verbs", &ep) == NULL, "another device is configured");
	strcpy(config.device, "../rdma0");
	rbp_verbs_configure(&config);
	ok(rbp_transport_choose("verbs", &ep) == NULL, "a path is no device");
	strcpy(config.device, "rdma0");
	rbp_verbs_configure(&config);
	ok(rbp_transport_choose("verbs", &ep) == &rbp_transport_verbs, "this device is configured");
	ep.rdma_port = 0;
	ok(rbp_transport_choose("verbs", &ep) == NULL, "the donor says no port");
	ep.rdma_port = 6;
	ep.rdma_host[0] = '\0';
	ok(rbp_transport_choose("auto", &ep) == &rbp_transport_shm &&
	   rbp_transport_choose("verbs", &ep) == NULL, "the donor says no RDMA address");
	remove_file(device, "ports/1/state");
	remove_file(device, "node_type");
	remove_file(device, "ports/1");
	remove_file(device, "ports");
	rmdir(device);
	rmdir(dir);
	config = (RbpDeviceConfig) RBP_DEVICE_CONFIG_DEFAULT;
	rbp_verbs_sysfs = sysfs;
	rbp_verbs_configure(&config);
}

static void
test_choice(void)
{
	RbpEndpoint ep = {.transports = RBP_TRANSPORT_SHM | RBP_TRANSPORT_TCP,.host = "127.0.0.1",.port = 5};
	RbpTransportOps another = rbp_transport_shm;

	unsetenv("RBP_FAULT_FILE");
	strcpy(ep.shm_name, "remote_bp-x");
	strcpy(ep.boot_id, rbp_transport_boot_id());
	ok(strlen(rbp_transport_boot_id()) == 36, "this host has a boot id");
	ok(rbp_transport_choose("auto", &ep) == &rbp_transport_shm, "auto takes shm on the same host");
	ok(rbp_transport_choose("tcp", &ep) == &rbp_transport_tcp, "tcp by name");
	another.name = "another";
	rbp_transports[0] = &another;
	ok(rbp_transport_choose("auto", &ep) == &another && rbp_transport_choose("another", &ep) == &another &&
	   rbp_transport_by_bit(another.bit) == &another, "another one is a table and an entry");
	rbp_transports[0] = &rbp_transport_shm;
	strcpy(ep.boot_id, "00000000-0000-0000-0000-000000000000");
	ok(rbp_transport_choose("auto", &ep) == &rbp_transport_tcp, "auto takes tcp elsewhere");
	ok(rbp_transport_choose("shm", &ep) == NULL, "shm by name is not usable there");
	ep.transports = RBP_TRANSPORT_SHM;
	ok(rbp_transport_choose("auto", &ep) == NULL, "none is usable");
	ok(rbp_transport_choose("verbs", &ep) == NULL, "nor one that the donor does not offer");
	ok(rbp_transport_choose("x", &ep) == NULL, "unknown names give none");
	test_choice_of_verbs();
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

#define WRONG_PROOFS	600

/* A client's connections have a bound, for all of its leases; wrong proofs keep no right one out. */
static void
test_bounds(void)
{
	const char *options[] = {"--lease-connections", "3", NULL};
	static const RbpTransportOps *const kinds[] = {&rbp_transport_shm, &rbp_transport_tcp};
	RbpConn    *conns[3];
	RbpConn    *conn = NULL;
	RbpStatus	status = RBP_BUSY;
	Lease		lease;
	Lease		other;
	int			denied = 0;

	start_donor(options);
	lease_get(&lease, "bounds", 1, LONG_TTL);
	lease_get(&other, "other bounds", 1, LONG_TTL);
	for (int i = 0; i < 3; i++)
		conns[i] = must_connect(kinds[i % 2], &lease);
	for (int i = 0; i < 2; i++)
	{
		ok(connect_to(kinds[i], &lease, &conn) == RBP_BUSY, "%s: a fourth connection of a client is refused, with a reason",
		   kinds[i]->name);
		conn = must_connect(kinds[i], &other);
		ok(fill_pages(conn, other.regions[0], 4, 1), "%s: another client has its own", kinds[i]->name);
		conn->ops->close(conn);
	}
	ok(fill_pages(conns[0], lease.regions[0], 4, 1) && fill_pages(conns[1], lease.regions[0], 4, 1),
	   "those that it has go on");
	conns[0]->ops->close(conns[0]);
	for (int64_t until = rbp_now_ns() + patience(10); rbp_now_ns() < until; sleep_ms(5))
		if ((status = connect_to(&rbp_transport_tcp, &lease, &conns[0])) != RBP_BUSY)
			break;
	ok(status == RBP_OK, "when one ends, another one is accepted");

	/* one who does not know the secret, again and again */
	other.cred.secret[0] ^= 1;
	for (int i = 0; i < WRONG_PROOFS; i++)
		denied += connect_to(&rbp_transport_tcp, &other, &conn) == RBP_DENIED;
	ok(denied == WRONG_PROOFS, "who is wrong is told so, each time: %d of %d", denied, WRONG_PROOFS);
	ok(fill_pages(conns[0], lease.regions[0], 4, 1), "who is connected is served");
	other.cred.secret[0] ^= 1;
	conn = must_connect(&rbp_transport_tcp, &other);
	ok(fill_pages(conn, other.regions[0], 4, 1), "and who is right is let in, from the same address");
	conn->ops->close(conn);
	for (int i = 0; i < 3; i++)
		conns[i]->ops->close(conns[i]);
	lease_delete(&lease);
	lease_delete(&other);
	stop_process(&donor_pid, SIGTERM);
}

/*
 * A donor on a machine that gets short of memory: it keeps nothing, and
 * promises nothing.  Huge pages would stay in their pool, and so with it.
 */
static void
test_pressure(void)
{
	const char *options[] = {"--min-free", "1GB", "--huge-pages", "off", NULL};
	const char *base = getenv("TESTDIR");
	char		meminfo[1024];
	bool		little = false;
	int			lent = -1;
	FILE	   *f;

	snprintf(meminfo, sizeof(meminfo), "%s/meminfo", base != NULL ? base : "/tmp");
	f = fopen(meminfo, "w");
	if (f == NULL || fputs("MemTotal: 8388608 kB\nMemAvailable: 8388608 kB\n", f) < 0 ||
		fclose(f) != 0)
		bail_out("could not write %s", meminfo);
	setenv("REMOTE_BP_TEST_MEMINFO", meminfo, 1);
	start_donor(options);
	unsetenv("REMOTE_BP_TEST_MEMINFO");
	f = fopen(meminfo, "w");
	if (f == NULL || fputs("MemTotal: 8388608 kB\nMemAvailable: 1 kB\n", f) < 0 ||
		fclose(f) != 0)
		bail_out("could not write %s", meminfo);
	for (int i = 0; i < 2400 && !little; i++)
	{
		sleep_ms(50);
		little = donor_shared_memory() < NREGIONS * REGION_SIZE / 4;
	}
	ok(little, "a donor gives memory back when the machine is short of it");
	/* the broker hears of it with the donor's next heartbeat */
	for (int i = 0; i < 2400 && lent != 0; i++)
	{
		lent = lease_try("pressure", 4);
		if (lent != 0)
			sleep_ms(50);
	}
	is_u64((uint64_t) lent, 0, "and lends none");
	ok(kill(donor_pid, 0) == 0, "and stays");
	stop_process(&donor_pid, SIGTERM);
	(void) unlink(meminfo);
}

static void
run_suite(const char *which)
{
	bool		faulty = strchr(which, '-') != NULL;

	if (!select_transport(which))
		bail_out("there is no transport \"%s\"", which);
	if (faulty)
		ok(ops != rbp_transport_by_name(ops->name), "%s: is wrapped", name);

	test_connect();
	test_extents();
	test_bad_requests();
	test_batches();
	test_deadlines();
	test_giving_up();
	test_runs();
	test_close_in_flight();
	test_parallel();
	test_threads();
	test_signals();
	test_release();
	test_regrant();
	test_new_secret();
	test_revoke();
	if (is_verbs && !faulty)
	{
		test_keys();
		test_handshakes();
		test_registered_memory();
	}
	test_proofs();
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
	if (patience(1) > SECOND)
	{
		RbpDeviceConfig config = RBP_DEVICE_CONFIG_DEFAULT;

		/* there, a moment without a processor can be longer than all retries */
		config.ack_timeout += 8;
		rbp_verbs_configure(&config);
	}
	workers_init();
	for (int i = 1; i < argc; i++)
		if (strstr(argv[i], "verbs") != NULL)
			donor_transports = "shm,tcp,verbs";
	start_broker();
	start_donor(NULL);
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
		test_bounds();
	}
	unlink(fault_path);
	return done_testing();
}
