/*-------------------------------------------------------------------------
 *
 * bench_hit.c
 *	  How long does it take to get one page from a donor, and how long does
 *	  the least take that could do the same?
 *
 *	  bench_hit --lease FILE --transport shm|tcp [--rounds N] [--reads N]
 *
 * FILE is the broker's answer to POST /v1/leases.  All of the lease is filled
 * with pages of known content.  In each round the same random sequence of
 * pages (of all pages, or of the given number of reads) is read twice, in
 * turns first:
 *
 *	  hit	through the transport table, as the extension does, and checked
 *			by the hash that the extension checks with
 *	  bare	shm: memcpy() from the very mapping that the transport uses, and
 *			the same hash.  tcp: a request and an answer of the same sizes,
 *			read from as much memory, between this process and a child that
 *			does nothing else, with the transport's own way of waiting on
 *			both sides, and without a hash.
 *
 * Pages land in turns in each of as many frames as 128 MB of shared buffers
 * have, so that the destination is not in a cache either.  Each read is timed
 * by itself; what reading the clock takes is subtracted.
 *
 * Output: a line "ROUND METRIC VALUE" for p50 and p99 of both, in ns.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/hash.h"
#include "common/clock.h"
#include "common/spin.h"
#include "common/status.h"
#include "transport/sock.h"
#include "transport/transport.h"
#include "wire/wire.h"
#include "bench_common.h"

#define IO_TIMEOUT_NS	INT64_C(10000000)	/* remote_bp.io_timeout */
#define DONOR_SPIN_NS	INT64_C(200000) /* remote_bp_donor's --spin-us */

static const RbpTransportOps *ops;
static RbpConn *conn;
static uint8_t **mapped;		/* shm: where the transport mapped a region */
static int	bare_fd = -1;		/* tcp: to the child */
static RbpSpin bare_spin;

/*
 * ---- the bare exchange's other side -------------------------------------------
 */

/* All of len bytes, waiting as the transport does; false if the peer is gone. */
static bool
receive_all(int fd, RbpSpin *spin, struct iovec *iov, int n, int64_t deadline)
{
	RbpWaiter	waiter;
	bool		ok = false;

	rbp_waiter_begin(&waiter, spin, deadline);
	while (n > 0)
	{
		ssize_t		got = readv(fd, iov, n);

		if (got > 0)
		{
			while (n > 0 && (size_t) got >= iov->iov_len)
			{
				got -= (ssize_t) iov->iov_len;
				iov++;
				n--;
			}
			if (n > 0)
			{
				iov->iov_base = (uint8_t *) iov->iov_base + got;
				iov->iov_len -= (size_t) got;
			}
		}
		else if (got == 0 || (errno != EAGAIN && errno != EINTR))
			goto done;
		else if (!rbp_waiter_step(&waiter, fd, POLLIN))
			goto done;
	}
	ok = true;
done:
	rbp_waiter_end(&waiter);
	return ok;
}

static void
__attribute__((noreturn))
serve_bare(int listener)
{
	uint8_t    *memory = donor_like_memory((size_t) npages * PAGE);
	RbpSpin		spin = {0};
	int			on = 1;
	int			fd;

	fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	if (fd < 0)
		_exit(1);
	(void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	for (;;)
	{
		uint8_t		request[RBP_REQUEST_SIZE];
		uint8_t		header[RBP_ANSWER_SIZE] = {0};
		struct iovec in = {request, sizeof(request)};
		struct iovec out[2] = {{header, sizeof(header)}, {NULL, PAGE}};
		uint64_t	offset;

		/* the donor's way to wait: awake for a while, yielding, then asleep */
		for (int64_t until = rbp_now_ns() + DONOR_SPIN_NS; rbp_now_ns() < until;)
		{
			ssize_t		got = recv(fd, in.iov_base, in.iov_len, MSG_DONTWAIT);

			if (got == 0)
				_exit(0);
			if (got > 0)
			{
				in.iov_base = (uint8_t *) in.iov_base + got;
				in.iov_len -= (size_t) got;
				if (in.iov_len == 0)
					break;
			}
			else
				sched_yield();
		}
		if (in.iov_len > 0 && !receive_all(fd, &spin, &in, 1, INT64_MAX))
			_exit(0);
		memcpy(&offset, request + offsetof(RbpWireRequest, offset), sizeof(offset));
		out[1].iov_base = memory + offset;
		/* one answer in flight: it always fits into the socket's buffer */
		if (writev(fd, out, 2) != (ssize_t) (sizeof(header) + PAGE))
			_exit(1);
	}
}

static void
start_bare(void)
{
	struct sockaddr_in addr = {.sin_family = AF_INET};
	socklen_t	len = sizeof(addr);
	int			listener = socket(AF_INET, SOCK_STREAM, 0);
	int			on = 1;
	pid_t		parent = getpid();

	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (listener < 0 || bind(listener, (struct sockaddr *) &addr, len) != 0 ||
		listen(listener, 1) != 0 ||
		getsockname(listener, (struct sockaddr *) &addr, &len) != 0)
		die("cannot listen: %s", strerror(errno));
	switch (fork())
	{
		case -1:
			die("cannot fork: %s", strerror(errno));
		case 0:
			end_with_parent(parent);
			serve_bare(listener);
	}
	close(listener);
	bare_fd = socket(AF_INET, SOCK_STREAM, 0);
	if (bare_fd < 0 || connect(bare_fd, (struct sockaddr *) &addr, len) != 0 ||
		fcntl(bare_fd, F_SETFL, O_NONBLOCK) != 0)
		die("cannot connect: %s", strerror(errno));
	(void) setsockopt(bare_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/*
 * The transport's own mappings, found in this process's list of them, and
 * told apart by what is in them.
 */
static void
find_mappings(void)
{
	FILE	   *maps = fopen("/proc/self/maps", "r");
	char		line[512];
	uint32_t	found = 0;

	if (maps == NULL)
		die("cannot read /proc/self/maps");
	mapped = calloc(nregions, sizeof(*mapped));
	while (fgets(line, sizeof(line), maps) != NULL)
	{
		uintptr_t	from,
					to;
		Head		head;

		if (strstr(line, "/memfd:") == NULL ||
			sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &from, &to) != 2 ||
			to - from != region_size)
			continue;
		memcpy(&head, (void *) from, sizeof(head));
		if (head.mark == MARK && head.page < npages && head.page % region_pages == 0 &&
			mapped[head.page / region_pages] == NULL)
		{
			mapped[head.page / region_pages] = (uint8_t *) from;
			found++;
		}
	}
	fclose(maps);
	if (found != nregions)
		die("found %u of %u mapped regions", found, nregions);
}

/*
 * ---- what is measured -------------------------------------------------------------
 */
static void
read_hit(uint32_t page, uint8_t *frame, int64_t start)
{
	RbpIo		io = page_io(RBP_IO_READ, page, frame);
	RbpStatus	status = ops->submit(conn, &io, 1);

	if (status == RBP_OK)
		status = ops->wait(conn, &io, 1, start + IO_TIMEOUT_NS);
	/* a busy machine may be late now and then; the extension calls it a miss */
	if (status == RBP_TIMEOUT)
		return;
	if (status != RBP_OK)
		die("cannot read: %s", rbp_status_text(status));
	if (rbp_hash_page(frame) != hashes[page])
		die("page %u is wrong", page);
}

static void
read_bare_shm(uint32_t page, uint8_t *frame, int64_t start)
{
	(void) start;
	memcpy(frame, mapped[page / region_pages] + (size_t) (page % region_pages) * PAGE, PAGE);
	if (rbp_hash_page(frame) != hashes[page])
		die("page %u is wrong in memory", page);
}

static void
read_bare_tcp(uint32_t page, uint8_t *frame, int64_t start)
{
	uint8_t		request[RBP_REQUEST_SIZE] = {0};
	uint8_t		header[RBP_ANSWER_SIZE];
	struct iovec in[2] = {{header, sizeof(header)}, {frame, PAGE}};
	uint64_t	offset = (uint64_t) page * PAGE;

	memcpy(request + offsetof(RbpWireRequest, offset), &offset, sizeof(offset));
	if (send(bare_fd, request, sizeof(request), MSG_NOSIGNAL) != sizeof(request) ||
		!receive_all(bare_fd, &bare_spin, in, 2, start + SETUP_NS))
		die("the bare exchange broke off");
}

static void
run(void (*read_page) (uint32_t, uint8_t *, int64_t), const char *name, int round,
	const uint32_t *sequence, uint32_t reads, int64_t *times, int64_t overhead)
{
	static uint32_t frame = 0;

	for (uint32_t i = 0; i < reads; i++)
	{
		int64_t		start = rbp_now_ns();

		read_page(sequence[i], frames + (size_t) frame * PAGE, start);
		times[i] = rbp_now_ns() - start - overhead;
		frame = (frame + 1) % FRAMES;
	}
	if (round < 1)
		return;					/* warming up */
	printf("%d %s_p50_ns %" PRId64 "\n", round, name, quantile(times, reads, 0.5));
	printf("%d %s_p99_ns %" PRId64 "\n", round, name, quantile(times, reads, 0.99));
}

int
main(int argc, char **argv)
{
	static const struct option options[] = {
		{"lease", required_argument, NULL, 'l'},
		{"transport", required_argument, NULL, 't'},
		{"rounds", required_argument, NULL, 'r'},
		{"reads", required_argument, NULL, 'n'},
		{NULL, 0, NULL, 0}
	};
	const char *lease = NULL;
	const char *transport = "shm";
	int			rounds = 20;
	uint32_t	reads = 0;
	uint32_t   *sequence;
	int64_t    *times;
	int64_t		overhead;
	int			c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
	{
		switch (c)
		{
			case 'l':
				lease = optarg;
				break;
			case 't':
				transport = optarg;
				break;
			case 'r':
				rounds = atoi(optarg);
				break;
			case 'n':
				reads = (uint32_t) atoi(optarg);
				break;
			default:
				return 2;
		}
	}
	ops = rbp_transport_by_name(transport);
	if (lease == NULL || ops == NULL || rounds < 1)
		die("usage: bench_hit --lease FILE --transport shm|tcp [--rounds N] [--reads N]");

	load_lease(lease);
	if (reads == 0 || reads > npages)
		reads = npages;
	sequence = calloc(npages, sizeof(*sequence));
	times = calloc(reads, sizeof(*times));
	if (sequence == NULL || times == NULL)
		die("out of memory");

	/* before there is anything else that a child would inherit */
	if (ops->bit == RBP_TRANSPORT_TCP)
		start_bare();
	conn = connect_to_donor(ops);
	fill_lease(conn);
	if (ops->bit == RBP_TRANSPORT_SHM)
		find_mappings();

	for (uint32_t i = 0; i < npages; i++)
		sequence[i] = i;
	overhead = clock_cost();
	for (int round = 0; round <= rounds; round++)
	{
		for (uint32_t i = npages - 1; i > 0; i--)
		{
			uint32_t	j = (uint32_t) (next_random() % (i + 1));
			uint32_t	page = sequence[i];

			sequence[i] = sequence[j];
			sequence[j] = page;
		}
		for (int turn = 0; turn < 2; turn++)
		{
			if ((turn + round) % 2 == 0)
				run(read_hit, "hit", round, sequence, reads, times, overhead);
			else
				run(ops->bit == RBP_TRANSPORT_SHM ? read_bare_shm : read_bare_tcp,
					"bare", round, sequence, reads, times, overhead);
		}
	}
	ops->close(conn);
	return 0;
}
