/*-------------------------------------------------------------------------
 *
 * bench_batch.c
 *	  How fast can one process move much data to a donor and back, and how
 *	  fast the least that could do the same?
 *
 *	  bench_batch --lease FILE --transport shm|tcp --donor PID
 *				  [--seconds N] [--rounds N]
 *
 * FILE is the broker's answer to POST /v1/leases.  A batch is 32 pages, as
 * 32 requests to pages at random, as 32 to consecutive pages from and into
 * memory that is not consecutive ("run": what a backend that spills has), as
 * four requests to 64 kB at random, or as one to 256 kB; two batches are on the way at a time, as those of a backend
 * that spills are.  For each shape, all of them in turns:
 *
 *	  write, read	through the transport table
 *	  bare			shm: memcpy() to and from as much memory of another
 *					process.  tcp: a child that receives 256 kB into such
 *					memory and says so, or sends it, with blocking calls.
 *
 * Output: a line "ROUND METRIC VALUE" for the time by the clock, the
 * processor time of this process, and that of the donor (or the child), in
 * us a page.
 *
 *-------------------------------------------------------------------------
 */
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/status.h"
#include "transport/transport.h"
#include "bench_common.h"

#define BATCH_BYTES		(BATCH * PAGE)
#define FLYING			2		/* batches on the way */
#define RUN				1		/* for a length: pages of consecutive places */

static const RbpTransportOps *ops;
static RbpConn *conn;
static pid_t donor;
static double seconds = 0.5;
static uint8_t *foreign;		/* the bare exchange's memory */
static int	bare_fd = -1;
static pid_t bare_child;

/*
 * ---- processor time ------------------------------------------------------------
 */

/* Of all threads of a process, in ns; the kernel's own clock, not ticks. */
static int64_t
processor_time(pid_t pid)
{
	char		path[300];
	int64_t		sum = 0;
	struct dirent *entry;
	DIR		   *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int) pid);
	dir = opendir(path);
	if (dir == NULL)
		die("no process %d", (int) pid);
	while ((entry = readdir(dir)) != NULL)
	{
		int64_t		ns;
		FILE	   *file;

		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/schedstat", (int) pid, entry->d_name);
		file = fopen(path, "r");
		if (file == NULL)
			continue;			/* the thread has ended */
		if (fscanf(file, "%" SCNd64, &ns) == 1)
			sum += ns;
		fclose(file);
	}
	closedir(dir);
	return sum;
}

static int64_t
own_time(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

/*
 * ---- through the transport -------------------------------------------------------
 */
/* Where a run's pages are in their memory: nowhere next to each other. */
static const uint8_t scatter[BATCH] = {
	7, 20, 1, 30, 12, 25, 3, 16, 28, 9, 22, 5, 18, 31, 14, 0,
	27, 10, 23, 6, 19, 2, 29, 15, 26, 8, 21, 4, 17, 11, 24, 13
};

static uint8_t *
next_frames(void)
{
	static uint32_t at = 0;

	at = (at + BATCH) % FRAMES;
	return frames + (size_t) at * PAGE;
}

static int
make_batch(RbpIo *ios, RbpIoKind kind, uint32_t len)
{
	bool		run = len == RUN;
	uint8_t    *buf = next_frames();
	uint64_t	place = 0;
	uint32_t	pieces;

	if (run)
		len = PAGE;
	pieces = BATCH_BYTES / len;
	for (uint32_t i = 0; i < pieces; i++)
	{
		uint32_t	piece = run ? scatter[i] : i;

		if (!run)
			place = next_random() % ((uint64_t) npages * PAGE / len);
		else if (i == 0)
			place = next_random() % (npages / BATCH) * BATCH;
		else
			place++;
		memset(&ios[i], 0, sizeof(ios[i]));
		ios[i].kind = kind;
		ios[i].region = region_numbers[place / (region_size / len)];
		ios[i].offset = place % (region_size / len) * len;
		ios[i].len = len;
		ios[i].buf = buf + (size_t) piece * len;
	}
	return (int) pieces;
}

static uint64_t
run_transport(RbpIoKind kind, uint32_t len, int64_t until)
{
	static RbpIo ios[FLYING][BATCH];
	int			n[FLYING] = {0};
	uint64_t	batches = 0;
	bool		going = true;

	for (int i = 0; going || n[i % FLYING] > 0; i++)
	{
		int			b = i % FLYING;

		if (n[b] > 0)
		{
			RbpStatus	status = ops->wait(conn, ios[b], n[b], rbp_now_ns() + SETUP_NS);

			if (status != RBP_OK)
				die("a batch failed: %s", rbp_status_text(status));
			n[b] = 0;
			batches++;
		}
		going = going && rbp_now_ns() < until;
		if (going)
		{
			n[b] = make_batch(ios[b], kind, len);
			if (ops->submit(conn, ios[b], n[b]) != RBP_OK)
				die("a batch cannot be sent");
		}
	}
	return batches * BATCH;
}

/*
 * ---- the least -------------------------------------------------------------------
 */
typedef struct BareRequest
{
	uint64_t	read;			/* else it is a write, whose bytes follow */
	uint64_t	offset;
	uint64_t	filler[2];		/* as long as a request is */
} BareRequest;

static bool
move_all(int fd, void *buf, size_t len, bool sending)
{
	uint8_t    *at = buf;

	while (len > 0)
	{
		ssize_t		n = sending ? send(fd, at, len, MSG_NOSIGNAL) : recv(fd, at, len, MSG_WAITALL);

		if (n <= 0)
			return false;
		at += n;
		len -= (size_t) n;
	}
	return true;
}

static void
__attribute__((noreturn))
serve_bare(int listener)
{
	uint8_t    *memory = donor_like_memory((size_t) npages * PAGE);
	int			on = 1;
	int			fd = accept(listener, NULL, NULL);
	BareRequest req;

	if (fd < 0)
		_exit(1);
	(void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	while (move_all(fd, &req, sizeof(req), false))
	{
		if (req.read ? !move_all(fd, memory + req.offset, BATCH_BYTES, true) :
			(!move_all(fd, memory + req.offset, BATCH_BYTES, false) ||
			 !move_all(fd, &req, sizeof(req.read) * 2, true)))
			break;
	}
	_exit(0);
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
	bare_child = fork();
	if (bare_child < 0)
		die("cannot fork: %s", strerror(errno));
	if (bare_child == 0)
	{
		end_with_parent(parent);
		serve_bare(listener);
	}
	close(listener);
	bare_fd = socket(AF_INET, SOCK_STREAM, 0);
	if (bare_fd < 0 || connect(bare_fd, (struct sockaddr *) &addr, len) != 0)
		die("cannot connect: %s", strerror(errno));
	(void) setsockopt(bare_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static void
bare_send(bool read)
{
	BareRequest req = {.read = read};

	req.offset = next_random() % (npages / BATCH) * BATCH_BYTES;
	if (!move_all(bare_fd, &req, sizeof(req), true) ||
		(!read && !move_all(bare_fd, next_frames(), BATCH_BYTES, true)))
		die("the bare exchange broke");
}

static void
bare_receive(bool read)
{
	uint8_t		answer[sizeof(uint64_t) * 2];

	if (!move_all(bare_fd, read ? next_frames() : answer, read ? BATCH_BYTES : sizeof(answer), false))
		die("the bare exchange broke");
}

static uint64_t
run_bare(RbpIoKind kind, int64_t until)
{
	bool		read = kind == RBP_IO_READ;
	uint64_t	batches = 0;

	if (ops->bit == RBP_TRANSPORT_TCP)
	{
		for (int i = 0; i < FLYING; i++)
			bare_send(read);
		for (; rbp_now_ns() < until; batches++)
		{
			bare_receive(read);
			bare_send(read);
		}
		for (int i = 0; i < FLYING; i++, batches++)
			bare_receive(read);
		return batches * BATCH;
	}
	for (; rbp_now_ns() < until; batches++)
	{
		uint8_t    *there = foreign + next_random() % (npages / BATCH) * BATCH_BYTES;
		uint8_t    *here = next_frames();

		memcpy(read ? here : there, read ? there : here, BATCH_BYTES);
	}
	return batches * BATCH;
}

/*
 * ---- measuring -------------------------------------------------------------------
 */
static void
measure(int round, RbpIoKind kind, const char *shape, uint32_t len)
{
	const char *what = kind == RBP_IO_READ ? "read" : "write";
	pid_t		other = len != 0 ? donor : bare_child;
	int64_t		theirs = other != 0 ? processor_time(other) : 0;
	int64_t		ours = own_time();
	int64_t		start = rbp_now_ns();
	int64_t		until = start + (int64_t) (seconds * 1e9);
	uint64_t	pages = len != 0 ? run_transport(kind, len, until) : run_bare(kind, until);
	double		us = 1000.0 * (double) pages;

	if (round < 1)
		return;					/* warming up */
	printf("%d %s_%s_wall_us %.4f\n", round, what, shape, (double) (rbp_now_ns() - start) / us);
	printf("%d %s_%s_cpu_us %.4f\n", round, what, shape, (double) (own_time() - ours) / us);
	printf("%d %s_%s_donor_cpu_us %.4f\n", round, what, shape,
		   other != 0 ? (double) (processor_time(other) - theirs) / us : 0.0);
	fflush(stdout);
}

int
main(int argc, char **argv)
{
	static const struct option options[] = {
		{"lease", required_argument, NULL, 'l'},
		{"transport", required_argument, NULL, 't'},
		{"donor", required_argument, NULL, 'd'},
		{"seconds", required_argument, NULL, 's'},
		{"rounds", required_argument, NULL, 'r'},
		{"shape", required_argument, NULL, 'x'},
		{NULL, 0, NULL, 0}
	};
	static const struct
	{
		const char *name;
		uint32_t	len;
	}			shapes[] = {{"pages", PAGE}, {"run", RUN}, {"64k", 8 * PAGE}, {"256k", BATCH_BYTES}, {"bare", 0}};
	const int	nshapes = sizeof(shapes) / sizeof(shapes[0]);
	const char *lease = NULL;
	const char *only = NULL;
	int			rounds = 3;
	int			c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
	{
		switch (c)
		{
			case 'l':
				lease = optarg;
				break;
			case 't':
				ops = rbp_transport_by_name(optarg);
				break;
			case 'd':
				donor = atoi(optarg);
				break;
			case 's':
				seconds = atof(optarg);
				break;
			case 'r':
				rounds = atoi(optarg);
				break;
			case 'x':
				only = optarg;
				break;
			default:
				return 2;
		}
	}
	if (lease == NULL || ops == NULL || donor <= 0 || rounds < 1)
		die("usage: bench_batch --lease FILE --transport shm|tcp --donor PID [--seconds N] [--rounds N] [--shape NAME]");

	load_lease(lease);
	if (ops->bit == RBP_TRANSPORT_TCP)
		start_bare();
	else
		foreign = donor_like_memory((size_t) npages * PAGE);
	conn = connect_to_donor(ops);
	fill_lease(conn);
	for (int round = 0; round <= rounds; round++)
		for (int i = 0; i < nshapes; i++)
		{
			int			shape = (i + round) % nshapes;

			if (only != NULL && strcmp(only, shapes[shape].name) != 0)
				continue;
			measure(round, RBP_IO_WRITE, shapes[shape].name, shapes[shape].len);
			measure(round, RBP_IO_READ, shapes[shape].name, shapes[shape].len);
		}
	ops->close(conn);
	return 0;
}
