/*-------------------------------------------------------------------------
 *
 * card_check.c
 *	  A client of a donor on another host, for test/card_check/run.
 *
 *	  card_check --lease FILE --transport NAME --test TEST [--seconds N]
 *				 [--processes N] [--connections N] [--restart]
 *
 * FILE is the broker's answer to POST /v1/leases.  Exits with 0 if all is as
 * it should be.  Tests:
 *
 *	pages	write all pages of the lease, one by one and in batches, and read
 *			them again, one by one and in batches; a region that is not the
 *			lease's is denied
 *	latency	read random pages for so long; prints "P50 P99" in ns
 *	stopped	the donor's process is stopped: reads go on over verbs, pings time
 *			out
 *	watch	read until a read fails; prints "reading", and then the status and
 *			the ms that the failed read took
 *	crowd	so many processes make so many connections each, all at once, while
 *			another one pings; all have to come about, and to last.  Prints the
 *			pings' times.  With --restart it prints "connecting" when a fifth
 *			are connected, and reads a line when the donor has been started
 *			anew; then all have to come back
 *
 *-------------------------------------------------------------------------
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"
#include "common/clock.h"
#include "common/status.h"
#include "test/bench/bench_common.h"

#define SECOND		INT64_C(1000000000)
#define MAX_TIMES	2000000
#define MAX_PROCESSES	1000
#define MAX_CONNECTIONS	64		/* of a process */
#define REST_US			20000	/* of a process with nothing to do */
#define CROWD_MOMENTS	60		/* after which a crowd has failed */

static int64_t moment = SECOND; /* for one request; longer in a guest */
static RbpConn *conn;
static uint8_t *buf;			/* BATCH pages */

static void
check_page(const uint8_t *page, uint32_t number)
{
	if (rbp_hash_page(page) != hashes[number])
		die("page %u is not what was written", number);
}

static void
test_pages(void)
{
	RbpIo		ios[BATCH];
	uint32_t	n = 0;

	fill_lease(conn);
	for (uint32_t page = 0; page < npages; page++)
	{
		ios[0] = page_io(RBP_IO_READ, page, buf);
		if (do_ios(conn, ios, 1) != RBP_OK)
			die("reading page %u: %s", page, rbp_status_text(ios[0].status));
		check_page(buf, page);
	}
	for (int round = 0; round < 2; round++)
		for (uint32_t page = 0; page + BATCH <= npages; page += BATCH)
		{
			RbpStatus	status;

			for (uint32_t i = 0; i < BATCH; i++)
			{
				uint8_t    *at = buf + (size_t) i * PAGE;

				if (round == 0)
				{
					make_page(at, page + i);
					hashes[page + i] = rbp_hash_page(at);
				}
				ios[i] = page_io(round == 0 ? RBP_IO_WRITE : RBP_IO_READ, page + i, at);
			}
			status = do_ios(conn, ios, BATCH);
			if (status != RBP_OK)
				die("a batch at page %u: %s", page, rbp_status_text(status));
			for (uint32_t i = 0; round == 1 && i < BATCH; i++)
				check_page(buf + (size_t) i * PAGE, page + i);
			n += BATCH;
		}

	/* the last one, since over verbs the connection may end with it */
	ios[0] = page_io(RBP_IO_READ, 0, buf);
	ios[0].region = UINT16_MAX;
	if (do_ios(conn, ios, 1) == RBP_OK)
		die("a region that is not the lease's can be read");
	printf("%u pages, %u in batches\n", npages, n);
}

static void
test_latency(double seconds)
{
	int64_t    *times = malloc(MAX_TIMES * sizeof(*times));
	int64_t		until;
	uint32_t	n = 0;

	if (times == NULL)
		die("out of memory");
	fill_lease(conn);
	until = rbp_now_ns() + (int64_t) (seconds * 1e9);
	while (n < MAX_TIMES && (n == 0 || rbp_now_ns() < until))
	{
		uint32_t	page = (uint32_t) (next_random() % npages);
		RbpIo		io = page_io(RBP_IO_READ, page, buf);
		int64_t		start = rbp_now_ns();

		if (do_ios(conn, &io, 1) != RBP_OK)
			die("reading page %u: %s", page, rbp_status_text(io.status));
		check_page(buf, page);
		times[n++] = rbp_now_ns() - start;
	}
	printf("%" PRId64 " %" PRId64 "\n", quantile(times, n, 0.5), quantile(times, n, 0.99));
	free(times);
}

/*
 * Read once, or ping; returns how it ended within a moment.  A region without
 * a key yet is asked for again.
 */
static RbpStatus
try_once(const RbpTransportOps *ops, RbpIoKind kind)
{
	int64_t		until = rbp_now_ns() + moment;
	RbpStatus	status;

	do
	{
		RbpIo		io = page_io(kind, 0, buf);

		if (kind == RBP_IO_PING)
			io = (RbpIo)
		{
			.kind = RBP_IO_PING
		};
		(void) ops->submit(conn, &io, 1);
		status = ops->wait(conn, &io, 1, until);
		if (status == RBP_CANCELED)
			usleep(1000);
	} while (status == RBP_CANCELED && rbp_now_ns() < until);
	return status;
}

static void
test_stopped(const RbpTransportOps *ops)
{
	bool		verbs = ops->bit == RBP_TRANSPORT_VERBS;
	RbpStatus	status;
	int			started;

	if (try_once(ops, RBP_IO_PING) != RBP_OK || try_once(ops, RBP_IO_READ) != RBP_OK)
		die("the donor does not answer before it is stopped");
	printf("ready\n");
	fflush(stdout);
	started = getchar();		/* it is stopped */
	if (started == EOF)
		die("nobody says that the donor is stopped");
	status = try_once(ops, RBP_IO_READ);
	if ((status == RBP_OK) != verbs)
		die("a read from a stopped donor: %s", rbp_status_text(status));
	if (verbs)
	{
		status = try_once(ops, RBP_IO_PING);
		if (status == RBP_OK)
			die("a stopped donor answers pings");
	}
	printf("%s\n", verbs ? "reads went on, a ping was not answered" : "a read was not answered");
}

static void
test_watch(const RbpTransportOps *ops)
{
	int64_t		start = rbp_now_ns();
	RbpStatus	status = try_once(ops, RBP_IO_READ);

	if (status != RBP_OK)
		die("the first read: %s", rbp_status_text(status));
	printf("reading\n");
	fflush(stdout);
	while (status == RBP_OK)
	{
		start = rbp_now_ns();
		status = try_once(ops, RBP_IO_READ);
	}
	printf("\"%s\" after %.1f ms\n", rbp_status_text(status), (double) (rbp_now_ns() - start) / 1e6);
}

/*
 * ---- a crowd -------------------------------------------------------------
 */
typedef struct Crowd
{
	atomic_int	ready;			/* processes */
	atomic_bool go;
	atomic_bool over;
	atomic_int	phase;			/* 1: all are connected, or the donor has been
								 * started anew */
	atomic_int	answered[2];	/* connections that were answered a ping in
								 * this phase */
	atomic_int	again;			/* connections that were begun again */
	atomic_int	last_failure;	/* RbpStatus */
} Crowd;

typedef struct Member
{
	RbpConn    *conn;
	bool		connected;
	int64_t		rest_until;		/* before it is begun again */
	int			answered;		/* last phase in which it was; -1: none */
} Member;

static Crowd *crowd;

/* A connection is lost, or has not come about: begin again. */
static void
begin_again(const RbpTransportOps *ops, Member *m, RbpStatus why)
{
	ops->close(m->conn);
	m->conn = NULL;
	m->connected = false;
	m->rest_until = rbp_now_ns() + SECOND + (int64_t) (next_random() % 1000) * 1000000;
	atomic_fetch_add(&crowd->again, 1);
	atomic_store(&crowd->last_failure, (int) why);
}

/*
 * A step of a connection that was not answered in this phase yet.  Returns
 * whether there was anything to do.
 */
static bool
take_step(const RbpTransportOps *ops, Member *m, int phase)
{
	RbpIo		ping = {.kind = RBP_IO_PING};
	RbpStatus	status = RBP_OK;

	if (m->conn == NULL)
	{
		if (rbp_now_ns() < m->rest_until)
			return false;
		status = ops->connect(&endpoint, &credentials, &m->conn);
		if (status != RBP_OK)
		{
			m->conn = NULL;
			atomic_store(&crowd->last_failure, (int) status);
		}
		return status == RBP_OK;
	}
	if (!m->connected)
	{
		status = ops->connect_wait(m->conn, 0);
		m->connected = status == RBP_OK;
		if (status != RBP_OK && status != RBP_INPROGRESS)
			begin_again(ops, m, status);
		return status != RBP_INPROGRESS;
	}
	(void) ops->submit(m->conn, &ping, 1);
	status = ops->wait(m->conn, &ping, 1, rbp_now_ns() + 10 * moment);
	if (status != RBP_OK)
		begin_again(ops, m, status);
	else
	{
		m->answered = phase;
		atomic_fetch_add(&crowd->answered[phase], 1);
	}
	return true;
}

static void
member_main(const RbpTransportOps *ops, int n)
{
	Member		members[MAX_CONNECTIONS] = {0};

	/* each another one */
	for (int i = (int) getpid() % 1000; i > 0; i--)
		(void) next_random();
	for (int i = 0; i < n; i++)
		members[i].answered = -1;
	atomic_fetch_add(&crowd->ready, 1);
	while (!atomic_load(&crowd->go))
		usleep(REST_US);
	while (!atomic_load(&crowd->over))
	{
		int			phase = atomic_load(&crowd->phase);
		bool		any = false;

		for (int i = 0; i < n; i++)
			if (members[i].answered != phase)
				any |= take_step(ops, &members[i], phase);
		if (!any)
			usleep(REST_US);
	}
	for (int i = 0; i < n; i++)
		ops->close(members[i].conn);
	_exit(0);
}

/*
 * Ping until so many connections were answered in this phase.  Returns the
 * number of our pings, whose times are stored.  One that is not answered is
 * the end, unless the donor is being started anew.
 */
static uint32_t
ping_until(const RbpTransportOps *ops, int n, bool restart, int64_t *times)
{
	int			phase = atomic_load(&crowd->phase);
	int64_t		until = rbp_now_ns() + CROWD_MOMENTS * moment;
	uint32_t	npings = 0;

	while (atomic_load(&crowd->answered[phase]) < n)
	{
		RbpIo		ping = {.kind = RBP_IO_PING};
		int64_t		start = rbp_now_ns();
		RbpStatus	status;

		if (start > until)
			die("%d of %d connections after %d s; %d begun again, the last one since: %s",
				atomic_load(&crowd->answered[phase]), n, (int) (CROWD_MOMENTS * moment / SECOND),
				atomic_load(&crowd->again), rbp_status_text((RbpStatus) atomic_load(&crowd->last_failure)));
		(void) ops->submit(conn, &ping, 1);
		status = ops->wait(conn, &ping, 1, start + 10 * moment);
		if (status == RBP_OK && npings < MAX_TIMES)
			times[npings++] = rbp_now_ns() - start;
		else if (status != RBP_OK && !restart)
			die("a ping while others connect: %s", rbp_status_text(status));
		else if (status != RBP_OK)
		{
			/* until it is back */
			ops->close(conn);
			conn = NULL;
			while (rbp_now_ns() < until &&
				   (ops->connect(&endpoint, &credentials, &conn) != RBP_OK ||
					ops->connect_wait(conn, rbp_now_ns() + 10 * SECOND) != RBP_OK))
			{
				ops->close(conn);
				conn = NULL;
				usleep(50000);
			}
			if (conn == NULL)
				die("the donor does not come back");
		}
		usleep(10000);
	}
	return npings;
}

static void
tell_crowd(int n, int processes, int64_t began, int64_t *times, uint32_t npings)
{
	printf("%d connections of %d processes after %.1f s, %d begun again; %u pings meanwhile: median %.2f ms, p99 %.2f ms\n",
		   n, processes, (double) (rbp_now_ns() - began) / 1e9,
		   atomic_exchange(&crowd->again, 0), npings,
		   npings > 0 ? (double) quantile(times, npings, 0.5) / 1e6 : 0.0,
		   npings > 0 ? (double) quantile(times, npings, 0.99) / 1e6 : 0.0);
	fflush(stdout);
}

/* Processes are forked first: a child cannot use its parent's devices. */
static void
test_crowd(const RbpTransportOps *ops, int processes, int connections, bool restart)
{
	int64_t    *times = malloc(MAX_TIMES * sizeof(*times));
	int			n = processes * connections;
	pid_t		parent = getpid();
	int64_t		began;
	uint32_t	npings;

	crowd = mmap(NULL, sizeof(*crowd), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (times == NULL || crowd == MAP_FAILED)
		die("out of memory");
	for (int i = 0; i < processes; i++)
	{
		pid_t		pid = fork();

		if (pid == 0)
		{
			end_with_parent(parent);
			member_main(ops, connections);
		}
		if (pid < 0)
			die("fork fails after %d processes", i);
	}
	conn = connect_to_donor(ops);
	while (atomic_load(&crowd->ready) < processes)
		usleep(REST_US);
	atomic_store(&crowd->go, true);
	began = rbp_now_ns();
	npings = ping_until(ops, restart ? n / 5 : n, false, times);
	if (restart)
	{
		printf("connecting\n");
		fflush(stdout);
		if (getchar() == EOF)
			die("nobody says that the donor has been started anew");
		atomic_store(&crowd->phase, 1);
		npings = ping_until(ops, n, true, times);
		tell_crowd(n, processes, began, times, npings);
	}
	else
	{
		tell_crowd(n, processes, began, times, npings);
		atomic_store(&crowd->phase, 1);
		(void) ping_until(ops, n, false, times);
		if (atomic_load(&crowd->again) > 0)
			die("%d of them did not last", atomic_load(&crowd->again));
	}
	atomic_store(&crowd->over, true);
	while (wait(NULL) > 0)
		;
	ops->close(conn);
}

/* As the conformance suite: all takes longer there, and retries, too. */
static void
be_patient(void)
{
	const char *slow = getenv("RBP_TEST_SLOW");
	RbpDeviceConfig config = RBP_DEVICE_CONFIG_DEFAULT;

	if (slow == NULL || atoi(slow) <= 1)
		return;
	moment *= atoi(slow);
	config.ack_timeout += 8;
	rbp_verbs_configure(&config);
}

int
main(int argc, char **argv)
{
	static const struct option options[] = {
		{"lease", required_argument, NULL, 'l'},
		{"transport", required_argument, NULL, 't'},
		{"test", required_argument, NULL, 'T'},
		{"seconds", required_argument, NULL, 's'},
		{"processes", required_argument, NULL, 'p'},
		{"connections", required_argument, NULL, 'c'},
		{"restart", no_argument, NULL, 'r'},
		{NULL, 0, NULL, 0}
	};
	const char *lease = NULL;
	const char *test = "";
	const RbpTransportOps *ops = NULL;
	double		seconds = 5;
	int			processes = 100;
	int			connections = 5;
	bool		restart = false;
	int			c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
		if (c == 'l')
			lease = optarg;
		else if (c == 't')
			ops = rbp_transport_by_name(optarg);
		else if (c == 'T')
			test = optarg;
		else if (c == 's')
			seconds = atof(optarg);
		else if (c == 'p')
			processes = atoi(optarg);
		else if (c == 'c')
			connections = atoi(optarg);
		else if (c == 'r')
			restart = true;
		else
			return 2;
	if (lease == NULL || ops == NULL || seconds <= 0 || processes < 1 || processes > MAX_PROCESSES ||
		connections < 1 || connections > MAX_CONNECTIONS)
		die("usage: card_check --lease FILE --transport NAME --test TEST [--seconds N] [--processes N] [--connections N] [--restart]");
	load_lease(lease);
	be_patient();
	rbp_transport_init();
	if (strcmp(test, "crowd") == 0)
	{
		test_crowd(ops, processes, connections, restart);
		return 0;
	}
	buf = aligned_alloc(4096, (size_t) BATCH * PAGE);
	if (buf == NULL)
		die("out of memory");
	conn = connect_to_donor(ops);
	if (strcmp(test, "pages") == 0)
		test_pages();
	else if (strcmp(test, "latency") == 0)
		test_latency(seconds);
	else if (strcmp(test, "stopped") == 0)
		test_stopped(ops);
	else if (strcmp(test, "watch") == 0)
		test_watch(ops);
	else
		die("there is no test \"%s\"", test);
	ops->close(conn);
	free(buf);
	return 0;
}
