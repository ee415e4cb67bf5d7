/*-------------------------------------------------------------------------
 *
 * card_check.c
 *	  A client of a donor on another host, for test/card_check/run.
 *
 *	  card_check --lease FILE --transport NAME --test TEST [--seconds N]
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
 *
 *-------------------------------------------------------------------------
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "common/clock.h"
#include "common/status.h"
#include "test/bench/bench_common.h"

#define SECOND		INT64_C(1000000000)
#define MAX_TIMES	2000000

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
	int64_t		until = rbp_now_ns() + (int64_t) (seconds * 1e9);
	uint32_t	n = 0;

	if (times == NULL)
		die("out of memory");
	fill_lease(conn);
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
 * Read once, or ping; returns how it ended within a second.  A region without
 * a key yet is asked for again.
 */
static RbpStatus
try_once(const RbpTransportOps *ops, RbpIoKind kind)
{
	int64_t		until = rbp_now_ns() + SECOND;
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

int
main(int argc, char **argv)
{
	static const struct option options[] = {
		{"lease", required_argument, NULL, 'l'},
		{"transport", required_argument, NULL, 't'},
		{"test", required_argument, NULL, 'T'},
		{"seconds", required_argument, NULL, 's'},
		{NULL, 0, NULL, 0}
	};
	const char *lease = NULL;
	const char *test = "";
	const RbpTransportOps *ops = NULL;
	double		seconds = 5;
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
		else
			return 2;
	if (lease == NULL || ops == NULL || seconds <= 0)
		die("usage: card_check --lease FILE --transport NAME --test TEST [--seconds N]");
	load_lease(lease);
	rbp_transport_init();
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
