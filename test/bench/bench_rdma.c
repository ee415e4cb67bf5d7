/*-------------------------------------------------------------------------
 *
 * bench_rdma.c
 *	  What reads, writes, batches and connections take over verbs, or over
 *	  another transport in the same place, and what the least takes that
 *	  could do the same.
 *
 *	  bench_rdma --lease FILE --transport NAME --test TEST
 *				 [--seconds N] [--donor PID] [--count N]
 *
 * FILE is the broker's answer to POST /v1/leases, of a donor on this host.
 * Output: lines "METRIC VALUE".  Tests:
 *
 *	latency	one page at a time, the kinds of exchanges in turns, block by
 *			block:
 *				hit		a random page of the lease into the next one of 16384
 *						frames, as a backend does it, and its hash checked
 *				read	the same without the hash
 *				write	a page out of a frame
 *				direct_read, direct_write	into and out of registered memory
 *			and over verbs, between this process and a child that has done
 *			nothing since the connection was made:
 *				bare_read, bare_write	a queue pair with one request, posted
 *						and polled for, into and out of one registered page,
 *						from and to random pages of as much memory
 *			METRIC is KIND_p50_ns, KIND_p99_ns or, of writes, KIND_mean_ns.
 *			Also hash_p50_ns: of the hash alone.
 *	batch	16 pages: single reads one after the other, one batch, and over
 *			verbs one chain of requests by the bare queue pair
 *	push	batches of 32 pages out of registered memory, one at a time, as
 *			the pusher does it, and over verbs such chains by the bare queue
 *			pair: pages a second; and the processor time that the donor (its
 *			PID is given) took for a page
 *	pull	single reads: the same figures
 *	connect	"count" processes, forked from one that has nothing of RDMA, one
 *			after the other: the time to connect, to read the first page, to
 *			read another one; then to connect and read once more in the same
 *			process
 *	hold	"count" such processes at a time, with a connection each that has
 *			read a page; says "held PID..." and stays until it is killed
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"
#include "common/clock.h"
#include "common/status.h"
#include "transport/transport.h"
#include "bench_common.h"

#define IO_TIMEOUT_NS	INT64_C(1000000000) /* all is slow under emulation */
#define BLOCK			50
#define READ_BATCH		16

static const RbpTransportOps *ops;
static double seconds = 2;
static int	count = 10;
static pid_t donor;
static int64_t overhead;

static RbpConn *conn;
static RbpMr *frames_mr;

static uint8_t *
next_frame(void)
{
	static uint32_t frame = 0;

	frame = (frame + 1) % FRAMES;
	return frames + (size_t) frame * PAGE;
}

static uint32_t
random_page(void)
{
	return (uint32_t) (next_random() % npages);
}

/*
 * ---- a bare queue pair --------------------------------------------------------
 */

/* What the child tells of its memory, as private data. */
typedef struct Memory
{
	uint64_t	address;
	uint32_t	key;
} Memory;

static struct rdma_cm_id *bare_id;
static struct ibv_cq *bare_cq;
static struct ibv_mr *bare_mr;	/* all frames */
static Memory bare_memory;

static struct ibv_cq *
make_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC};

	attr.cap.max_send_wr = 2 * BATCH;
	attr.cap.max_recv_wr = 1;
	attr.cap.max_send_sge = 1;
	attr.cap.max_recv_sge = 1;
	attr.send_cq = attr.recv_cq = ibv_create_cq(id->verbs, 2 * BATCH, NULL, NULL, 0);
	if (attr.send_cq == NULL || rdma_create_qp(id, NULL, &attr) != 0)
		die("no queue pair: %s", strerror(errno));
	return attr.send_cq;
}

/* In the child: accept one connection, then sleep. */
static void
__attribute__((noreturn))
serve_bare(int out)
{
	size_t		size = (size_t) npages * PAGE;
	uint8_t    *base = donor_like_memory(size);
	struct rdma_cm_id *listener;
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct sockaddr_in address = {.sin_family = AF_INET};
	struct rdma_conn_param param = {.responder_resources = 16,.rnr_retry_count = 6};
	Memory		memory;
	uint16_t	port;

	if (inet_pton(AF_INET, endpoint.rdma_host, &address.sin_addr) != 1 ||
		rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) != 0 ||
		rdma_bind_addr(listener, (struct sockaddr *) &address) != 0 ||
		rdma_listen(listener, 1) != 0)
		die("cannot listen on %s: %s", endpoint.rdma_host, strerror(errno));
	port = ntohs(rdma_get_src_port(listener));
	if (write(out, &port, sizeof(port)) != sizeof(port) ||
		rdma_get_request(listener, &id) != 0)
		die("nobody connects: %s", strerror(errno));
	make_queue_pair(id);
	mr = ibv_reg_mr(id->pd, base, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	if (mr == NULL)
		die("cannot register %zu bytes: %s", size, strerror(errno));
	memory.address = (uintptr_t) base;
	memory.key = mr->rkey;
	param.private_data = &memory;
	param.private_data_len = sizeof(memory);
	if (rdma_accept(id, &param) != 0)
		die("cannot accept: %s", strerror(errno));
	for (;;)
		pause();
}

static void
start_bare(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	struct rdma_conn_param param = {.initiator_depth = 16,.retry_count = 6,.rnr_retry_count = 6};
	pid_t		parent = getpid();
	uint16_t	port;
	int			fds[2];

	if (pipe(fds) != 0)
		die("no pipe: %s", strerror(errno));
	switch (fork())
	{
		case -1:
			die("cannot fork: %s", strerror(errno));
		case 0:
			end_with_parent(parent);
			close(fds[0]);
			serve_bare(fds[1]);
	}
	close(fds[1]);
	if (read(fds[0], &port, sizeof(port)) != sizeof(port))
		die("the bare side does not listen");
	close(fds[0]);
	address.sin_port = htons(port);
	if (inet_pton(AF_INET, endpoint.rdma_host, &address.sin_addr) != 1 ||
		rdma_create_id(NULL, &bare_id, NULL, RDMA_PS_TCP) != 0 ||
		rdma_resolve_addr(bare_id, NULL, (struct sockaddr *) &address, 2000) != 0 ||
		rdma_resolve_route(bare_id, 2000) != 0)
		die("no way to the bare side: %s", strerror(errno));
	bare_cq = make_queue_pair(bare_id);
	bare_mr = ibv_reg_mr(bare_id->pd, frames, (size_t) FRAMES * PAGE, IBV_ACCESS_LOCAL_WRITE);
	if (bare_mr == NULL || rdma_connect(bare_id, &param) != 0 ||
		bare_id->event == NULL || bare_id->event->param.conn.private_data == NULL)
		die("cannot connect to the bare side: %s", strerror(errno));
	memcpy(&bare_memory, bare_id->event->param.conn.private_data, sizeof(bare_memory));
}

/* Post n requests as one chain, the last one signalled, and poll for it. */
static void
do_bare(enum ibv_wr_opcode opcode, uint8_t **bufs, int n)
{
	struct ibv_send_wr wrs[BATCH];
	struct ibv_sge sges[BATCH];
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int			got;

	memset(wrs, 0, sizeof(wrs[0]) * (size_t) n);
	for (int i = 0; i < n; i++)
	{
		sges[i] = (struct ibv_sge)
		{
			(uintptr_t) bufs[i], PAGE, bare_mr->lkey
		};
		wrs[i].next = i + 1 < n ? &wrs[i + 1] : NULL;
		wrs[i].sg_list = &sges[i];
		wrs[i].num_sge = 1;
		wrs[i].opcode = opcode;
		wrs[i].send_flags = i + 1 < n ? 0 : IBV_SEND_SIGNALED;
		wrs[i].wr.rdma.remote_addr = bare_memory.address + (uint64_t) random_page() * PAGE;
		wrs[i].wr.rdma.rkey = bare_memory.key;
	}
	if (ibv_post_send(bare_id->qp, wrs, &bad) != 0)
		die("cannot post: %s", strerror(errno));
	while ((got = ibv_poll_cq(bare_cq, 1, &wc)) == 0)
		;
	if (got < 0 || wc.status != IBV_WC_SUCCESS)
		die("a bare request failed: %s", got < 0 ? "poll" : ibv_wc_status_str(wc.status));
}

/*
 * ---- latency --------------------------------------------------------------------
 */
static void
exchange(RbpIoKind kind, uint32_t page, uint8_t *buf, RbpMr *mr)
{
	RbpIo		io = page_io(kind, page, buf);
	RbpStatus	status;

	io.mr = mr;
	status = ops->submit(conn, &io, 1);
	if (status == RBP_OK)
		status = ops->wait(conn, &io, 1, rbp_now_ns() + IO_TIMEOUT_NS);
	if (status != RBP_OK)
		die("page %u: %s", page, rbp_status_text(status));
}

static void
hit(void)
{
	uint32_t	page = random_page();
	uint8_t    *buf = next_frame();

	exchange(RBP_IO_READ, page, buf, NULL);
	if (rbp_hash_page(buf) != hashes[page])
		die("page %u is wrong", page);
}

static void
just_read(void)
{
	exchange(RBP_IO_READ, random_page(), next_frame(), NULL);
}

static void
direct_read(void)
{
	exchange(RBP_IO_READ, random_page(), next_frame(), frames_mr);
}

static void
just_hash(void)
{
	volatile uint64_t hash = rbp_hash_page(next_frame());

	(void) hash;
}

static void
bare_read(void)
{
	uint8_t    *buf = frames;

	do_bare(IBV_WR_RDMA_READ, &buf, 1);
}

static void
bare_write(void)
{
	uint8_t    *buf = frames;

	do_bare(IBV_WR_RDMA_WRITE, &buf, 1);
}

/* Pages are written with what is in them, so that hits stay right. */
static uint32_t
copy_of_page(uint8_t *buf)
{
	uint32_t	page = random_page();

	exchange(RBP_IO_READ, page, buf, NULL);
	return page;
}

typedef struct Kind
{
	const char *name;
	void		(*run) (void);	/* or NULL: a write */
	RbpMr	  **mr;				/* of a write */
	bool		bare;
	int64_t    *times;
	uint32_t	n;
} Kind;

static RbpMr *no_mr;

static Kind kinds[] = {
	{.name = "hit",.run = hit},
	{.name = "read",.run = just_read},
	{.name = "direct_read",.run = direct_read},
	{.name = "bare_read",.run = bare_read,.bare = true},
	{.name = "hash",.run = just_hash},
	{.name = "write",.mr = &no_mr},
	{.name = "direct_write",.mr = &frames_mr},
	{.name = "bare_write",.run = bare_write,.bare = true},
};

#define KINDS	(sizeof(kinds) / sizeof(kinds[0]))
#define TIMES	200000

static void
run_block(Kind *kind, bool counts)
{
	for (int i = 0; i < BLOCK && kind->n < TIMES; i++)
	{
		uint8_t    *buf = kind->run == NULL ? next_frame() : NULL;
		uint32_t	page = kind->run == NULL ? copy_of_page(buf) : 0;
		int64_t		start = rbp_now_ns();

		if (kind->run != NULL)
			kind->run();
		else
			exchange(RBP_IO_WRITE, page, buf, *kind->mr);
		if (counts)
			kind->times[kind->n++] = rbp_now_ns() - start - overhead;
	}
}

static void
test_latency(bool bare)
{
	int64_t		end = 0;

	for (size_t k = 0; k < KINDS; k++)
		kinds[k].times = calloc(TIMES, sizeof(int64_t));
	for (int block = 0; block < 2 || rbp_now_ns() < end; block++)
	{
		if (block == 1)			/* the first is to warm up */
			end = rbp_now_ns() + (int64_t) (seconds * 1e9);
		for (size_t k = 0; k < KINDS; k++)
		{
			Kind	   *kind = &kinds[(k + (size_t) block) % KINDS];

			if (bare || !kind->bare)
				run_block(kind, block > 0);
		}
	}
	for (size_t k = 0; k < KINDS; k++)
	{
		Kind	   *kind = &kinds[k];
		int64_t		sum = 0;

		if (kind->n == 0)
			continue;
		for (uint32_t i = 0; i < kind->n; i++)
			sum += kind->times[i];
		printf("%s_mean_ns %" PRId64 "\n", kind->name, sum / kind->n);
		printf("%s_p50_ns %" PRId64 "\n", kind->name, quantile(kind->times, kind->n, 0.5));
		printf("%s_p99_ns %" PRId64 "\n", kind->name, quantile(kind->times, kind->n, 0.99));
	}
}

/*
 * ---- batches --------------------------------------------------------------------
 */
static void
singles(uint8_t **bufs)
{
	for (int i = 0; i < READ_BATCH; i++)
		exchange(RBP_IO_READ, random_page(), bufs[i], NULL);
}

static void
batch(uint8_t **bufs)
{
	RbpIo		ios[READ_BATCH];
	RbpStatus	status;

	for (int i = 0; i < READ_BATCH; i++)
		ios[i] = page_io(RBP_IO_READ, random_page(), bufs[i]);
	status = do_ios(conn, ios, READ_BATCH);
	if (status != RBP_OK)
		die("a batch: %s", rbp_status_text(status));
}

static void
bare_batch(uint8_t **bufs)
{
	do_bare(IBV_WR_RDMA_READ, bufs, READ_BATCH);
}

static void
test_batch(bool bare)
{
	static const struct
	{
		const char *name;
		void		(*run) (uint8_t **);
	}			ways[] = {{"singles", singles}, {"batch", batch}, {"bare_batch", bare_batch}};
	int			nways = bare ? 3 : 2;
	int64_t    *times[3];
	uint32_t	n[3] = {0};
	int64_t		end = 0;

	for (int w = 0; w < nways; w++)
		times[w] = calloc(TIMES, sizeof(int64_t));
	for (int turn = 0; turn < 10 || rbp_now_ns() < end; turn++)
	{
		if (turn == 9)
			end = rbp_now_ns() + (int64_t) (seconds * 1e9);
		for (int i = 0; i < nways; i++)
		{
			int			w = (i + turn) % nways;
			uint8_t    *bufs[READ_BATCH];
			int64_t		start;

			for (int b = 0; b < READ_BATCH; b++)
				bufs[b] = next_frame();
			start = rbp_now_ns();
			ways[w].run(bufs);
			if (turn >= 9 && n[w] < TIMES)
				times[w][n[w]++] = rbp_now_ns() - start - overhead;
		}
	}
	for (int w = 0; w < nways; w++)
		printf("%s_p50_ns %" PRId64 "\n", ways[w].name, quantile(times[w], n[w], 0.5));
}

/*
 * ---- throughput -----------------------------------------------------------------
 */

/* Processor time that all threads of a process have had, in ns. */
static uint64_t
processor_time(pid_t pid)
{
	char		path[300];
	uint64_t	sum = 0;
	DIR		   *tasks;
	struct dirent *task;

	snprintf(path, sizeof(path), "/proc/%d/task", (int) pid);
	tasks = opendir(path);
	if (tasks == NULL)
		die("no process %d", (int) pid);
	while ((task = readdir(tasks)) != NULL)
	{
		FILE	   *file;
		uint64_t	ns;

		if (task->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/schedstat", (int) pid, task->d_name);
		file = fopen(path, "r");
		if (file == NULL || fscanf(file, "%" SCNu64, &ns) != 1)
			die("no processor time of process %d", (int) pid);
		sum += ns;
		fclose(file);
	}
	closedir(tasks);
	return sum;
}

/* What the whole machine has been busy for, interrupts included, in ns. */
static uint64_t
busy_time(void)
{
	FILE	   *file = fopen("/proc/stat", "r");
	uint64_t	user,
				nice,
				system,
				idle,
				iowait,
				irq,
				softirq;

	if (file == NULL ||
		fscanf(file, "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
			   &user, &nice, &system, &idle, &iowait, &irq, &softirq) != 7)
		die("cannot read /proc/stat");
	fclose(file);
	return (user + nice + system + irq + softirq) * (UINT64_C(1000000000) / (uint64_t) sysconf(_SC_CLK_TCK));
}

static void
write_batch(uint8_t **bufs)
{
	RbpIo		ios[BATCH];
	RbpStatus	status;

	for (int i = 0; i < BATCH; i++)
	{
		ios[i] = page_io(RBP_IO_WRITE, random_page(), bufs[i]);
		ios[i].mr = frames_mr;
	}
	status = do_ios(conn, ios, BATCH);
	if (status != RBP_OK)
		die("a batch: %s", rbp_status_text(status));
}

static void
read_singles(uint8_t **bufs)
{
	for (int i = 0; i < BATCH; i++)
		exchange(RBP_IO_READ, random_page(), bufs[i], NULL);
}

static void
bare_write_batch(uint8_t **bufs)
{
	do_bare(IBV_WR_RDMA_WRITE, bufs, BATCH);
}

static void
throughput(const char *name, void (*run) (uint8_t **), bool ours)
{
	uint8_t    *bufs[BATCH];
	uint64_t	pages = 0;
	uint64_t	cpu = 0;
	uint64_t	busy = 0;
	int64_t		start = 0;
	int64_t		now = 0;

	for (int i = 0; i < BATCH; i++)
		bufs[i] = frames + (size_t) i * PAGE;
	for (int turn = 0; turn < 5 || now - start < (int64_t) (seconds * 1e9); turn++)
	{
		if (turn == 4)
		{
			cpu = donor ? processor_time(donor) : 0;
			busy = busy_time();
			start = rbp_now_ns();
		}
		run(bufs);
		now = rbp_now_ns();
		pages += turn >= 4 ? BATCH : 0;
	}
	printf("%s_pages_per_second %.1f\n", name, (double) pages * 1e9 / (double) (now - start));
	if (!ours)
		return;
	if (donor)
		printf("%s_donor_cpu_us %.4f\n", name, (double) (processor_time(donor) - cpu) / 1000 / (double) pages);
	printf("%s_busy_us %.2f\n", name, (double) (busy_time() - busy) / 1000 / (double) pages);
}

/*
 * ---- connections ----------------------------------------------------------------
 */
static int64_t
timed_connect(void)
{
	int64_t		start = rbp_now_ns();

	conn = connect_to_donor(ops);
	return rbp_now_ns() - start;
}

static int64_t
timed_read(void)
{
	int64_t		start = rbp_now_ns();

	exchange(RBP_IO_READ, random_page(), next_frame(), NULL);
	return rbp_now_ns() - start;
}

static void
test_connect(void)
{
	enum
	{
		STEPS = 6
	};
	static const char *const names[STEPS] = {
		"first_connect", "first_read", "second_read", "next_connect", "next_first_read", "close"
	};
	int64_t    *times[STEPS];

	for (int s = 0; s < STEPS; s++)
		times[s] = calloc((size_t) count, sizeof(int64_t));
	for (int i = 0; i < count; i++)
	{
		int64_t		step[STEPS];
		int			fds[2];
		pid_t		child;

		if (pipe(fds) != 0 || (child = fork()) < 0)
			die("cannot fork: %s", strerror(errno));
		if (child == 0)
		{
			/* each one at a place of its own, not all at the same pages */
			for (int skip = 0; skip < i; skip++)
				(void) next_random();
			step[0] = timed_connect();
			step[1] = timed_read();
			step[2] = timed_read();
			step[5] = rbp_now_ns();
			ops->close(conn);
			step[5] = rbp_now_ns() - step[5];
			step[3] = timed_connect();
			step[4] = timed_read();
			ops->close(conn);
			_exit(write(fds[1], step, sizeof(step)) == sizeof(step) ? 0 : 1);
		}
		close(fds[1]);
		if (read(fds[0], step, sizeof(step)) != sizeof(step))
			die("a connection was not made");
		close(fds[0]);
		(void) waitpid(child, NULL, 0);
		for (int s = 0; s < STEPS; s++)
			times[s][i] = step[s];
	}
	for (int s = 0; s < STEPS; s++)
		printf("%s_ns %" PRId64 "\n", names[s], quantile(times[s], (uint32_t) count, 0.5));
}

static void
test_hold(void)
{
	pid_t		parent = getpid();
	pid_t	   *children = calloc((size_t) count, sizeof(pid_t));

	for (int i = 0; i < count; i++)
	{
		int			fds[2];
		char		c = 0;

		if (pipe(fds) != 0 || (children[i] = fork()) < 0)
			die("cannot fork: %s", strerror(errno));
		if (children[i] == 0)
		{
			end_with_parent(parent);
			(void) timed_connect();
			(void) timed_read();
			if (write(fds[1], &c, 1) != 1)
				_exit(1);
			for (;;)
				pause();
		}
		close(fds[1]);
		if (read(fds[0], &c, 1) != 1)
			die("connection %d was not made", i + 1);
		close(fds[0]);
	}
	printf("held");
	for (int i = 0; i < count; i++)
		printf(" %d", (int) children[i]);
	printf("\n");
	fflush(stdout);
	for (;;)
		pause();
}

int
main(int argc, char **argv)
{
	static const struct option options[] = {
		{"lease", required_argument, NULL, 'l'},
		{"transport", required_argument, NULL, 't'},
		{"test", required_argument, NULL, 'T'},
		{"seconds", required_argument, NULL, 's'},
		{"donor", required_argument, NULL, 'd'},
		{"count", required_argument, NULL, 'c'},
		{NULL, 0, NULL, 0}
	};
	const char *lease = NULL;
	const char *transport = "verbs";
	const char *test = "";
	bool		bare;
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
			case 'T':
				test = optarg;
				break;
			case 's':
				seconds = atof(optarg);
				break;
			case 'd':
				donor = (pid_t) atoi(optarg);
				break;
			case 'c':
				count = atoi(optarg);
				break;
			default:
				return 2;
		}
	}
	ops = rbp_transport_by_name(transport);
	if (lease == NULL || ops == NULL || seconds <= 0 || count < 1)
		die("usage: bench_rdma --lease FILE --transport NAME --test TEST [--seconds N] [--donor PID] [--count N]");
	load_lease(lease);
	rbp_transport_init();		/* as a postmaster does */
	overhead = clock_cost();

	if (strcmp(test, "connect") == 0)
		test_connect();
	else if (strcmp(test, "hold") == 0)
		test_hold();
	else
	{
		bare = ops->bit == RBP_TRANSPORT_VERBS && strcmp(test, "pull") != 0;
		if (bare)
			start_bare();
		conn = connect_to_donor(ops);
		fill_lease(conn);
		if (ops->register_memory != NULL &&
			ops->register_memory(conn, frames, (size_t) FRAMES * PAGE, &frames_mr) != RBP_OK)
			die("cannot register memory");
		if (strcmp(test, "latency") == 0)
			test_latency(bare);
		else if (strcmp(test, "batch") == 0)
			test_batch(bare);
		else if (strcmp(test, "pull") == 0)
			throughput("pull", read_singles, true);
		else if (strcmp(test, "push") == 0)
		{
			throughput("push", write_batch, true);
			if (bare)
				throughput("bare_push", bare_write_batch, false);
		}
		else
			die("no test \"%s\"", test);
		if (frames_mr != NULL)
			ops->deregister_memory(conn, frames_mr);
		ops->close(conn);
	}
	return 0;
}
