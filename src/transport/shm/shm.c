/*-------------------------------------------------------------------------
 *
 * shm.c
 *	  Reads and writes of donor memory on the same host, by memcpy.
 *
 * The donor's UNIX socket carries the handshake and MAP requests; the answer
 * to a MAP request has the memfd of one region.  The socket is closed when
 * the donor exits.  A region is mapped when it is first used.  From then on a
 * read or a write is a memcpy() in submit(), without a system call.
 *
 * Withdrawal.  When a lease ends, or loses a region, the donor truncates the
 * memfd, and our next access to the mapping raises SIGBUS.  Thread-local
 * variables tell the signal handler that a copy is in progress and which
 * mapping it uses.  The handler maps zero pages over the whole region,
 * records that, and returns, so that the copy completes (with zeroes that are
 * never returned to a caller).  The request's status becomes RBP_DENIED, and
 * the region is unmapped; a later request asks the donor for it again.  A
 * region that was lost and granted again has a new grant number, and the old
 * mapping is removed before it is touched.  Any other SIGBUS is passed to the
 * previous handler.
 *
 * Page tables.  A region's memory is allocated, but each process must enter
 * it into its own page table.  A fault of a read enters the 64 KiB around it
 * (fault_around_bytes), a fault of a write one page of 4 KiB.  On a shared
 * mapping, what a read has entered serves writes as well, so a write reads
 * first.  Entering more at once, as MADV_POPULATE_READ can, costs as much for
 * each 64 KiB, and a single read would have to wait for all of it.  pread()
 * needs no table, but costs more than a first read that is in order, an open
 * file for each region, and does not exist for writes to huge pages.  If the
 * donor has huge pages, whichever kind, one fault enters 2 MiB, and the table
 * of a GiB has 4 KiB instead of 2 MiB: see Huge pages in docs/operations.md.
 *
 * Donor failure.  The memory of a donor that died persists for the processes
 * that have mapped it, so memcpy() alone would never notice.  The socket is
 * checked every CHECK_NS, by the coarse clock.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/status.h"
#include "transport/sock.h"
#include "transport/transport.h"
#include "wire/wire.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define HUGE_PAGE		(UINT64_C(2) << 20)
#define FAULT_AROUND	((size_t) 64 << 10)
#define CHECK_NS		10000000

typedef struct ShmRegion
{
	uint8_t    *base;			/* NULL: not mapped */
	uint32_t	grant;			/* grant of the mapping, see RbpIo */
	uint32_t	asked_grant;	/* grant that the MAP in flight is for */
	uint64_t	asked;			/* id of the MAP in flight, 0: none */
	uint64_t	answered;		/* id of the last MAP answered */
	RbpStatus	result;			/* result of that MAP */
} ShmRegion;

typedef struct ShmConn
{
	RbpConn		base;
	RbpSock		sock;
	ShmRegion  *regions;		/* array of sock.welcome.regions elements */
	uint32_t	nregions;
	uint64_t	last_id;
	int64_t		checked_at;		/* coarse clock */

	uint8_t		rx[RBP_ANSWER_SIZE + RBP_MAP_PAYLOAD_SIZE];
	size_t		rx_have;
	int			fd;				/* memfd of the answer in rx, or -1 */

	uint64_t	last_ping;		/* id of the last one sent; 0: none */
	uint64_t	last_pong;		/* ... of those that are answered */
	RbpStatus	pong;			/* its result */
} ShmConn;

/*
 * ---- surviving withdrawal ---------------------------------------------------
 */

/* The copy in progress in this thread, for the signal handler */
static __thread uint8_t *volatile copy_base;
static __thread volatile size_t copy_len;
static __thread volatile sig_atomic_t copy_hit;

static struct sigaction previous;
static pthread_mutex_t install_lock = PTHREAD_MUTEX_INITIALIZER;

static void
on_sigbus(int signo, siginfo_t *info, void *context)
{
	uint8_t    *at = info->si_addr;
	int			save_errno = errno;

	/* the address is valid only if a fault raised the signal, not kill() */
	if (info->si_code > 0 && copy_base != NULL && at >= copy_base &&
		at < copy_base + copy_len &&
		mmap(copy_base, copy_len, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
			 -1, 0) != MAP_FAILED)
	{
		copy_hit = 1;
		errno = save_errno;
		return;
	}
	errno = save_errno;

	if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != NULL)
		previous.sa_sigaction(signo, info, context);
	else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
		previous.sa_handler(signo);
	else
	{
		/*
		 * restore the default action: after we return, the fault recurs, or
		 * the signal is sent again
		 */
		struct sigaction dfl = {.sa_handler = SIG_DFL};

		sigaction(SIGBUS, &dfl, NULL);
		if (info->si_code <= 0)
			raise(signo);
	}
}

/*
 * Install the signal handler.  Called before every new mapping, since other
 * code may have replaced the handler meanwhile.
 */
static bool
install_handler(void)
{
	struct sigaction now;
	bool		ok = true;

	pthread_mutex_lock(&install_lock);
	if (sigaction(SIGBUS, NULL, &now) != 0)
		ok = false;
	else if ((now.sa_flags & SA_SIGINFO) == 0 || now.sa_sigaction != on_sigbus)
	{
		struct sigaction ours = {.sa_sigaction = on_sigbus};

		sigemptyset(&ours.sa_mask);
		ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
		previous = now;
		ok = sigaction(SIGBUS, &ours, NULL) == 0;
	}
	pthread_mutex_unlock(&install_lock);
	return ok;
}

/*
 * Execute a request by memcpy() to or from the mapping base[0 .. len).
 * Returns false if the memory was withdrawn.
 */
static bool
guarded_copy(uint8_t *base, size_t len, const RbpIo *io)
{
	uint8_t    *at = base + io->offset;

	copy_len = len;
	copy_hit = 0;
	copy_base = base;
	atomic_signal_fence(memory_order_seq_cst);
	if (io->kind == RBP_IO_READ)
		memcpy(io->buf, at, io->len);
	else
	{
		/* for the page table, see the top */
		for (size_t i = 0; i < io->len; i += FAULT_AROUND - (uintptr_t) (at + i) % FAULT_AROUND)
			(void) *(volatile const uint8_t *) (at + i);
		memcpy(at, io->buf, io->len);
	}
	atomic_signal_fence(memory_order_seq_cst);
	copy_base = NULL;
	return copy_hit == 0;
}

/*
 * ---- mappings ---------------------------------------------------------------
 */
static void
unmap_region(ShmConn *conn, ShmRegion *region)
{
	if (region->base != NULL)
		munmap(region->base, conn->sock.welcome.region_size);
	region->base = NULL;
}

/* Map a region's memfd. */
static RbpStatus
map_region(ShmConn *conn, ShmRegion *region, int fd)
{
	uint64_t	size = conn->sock.welcome.region_size;
	uint64_t	reserve = size + HUGE_PAGE;
	uint8_t    *range;
	uint8_t    *base;
	struct stat st;

	unmap_region(conn, region);
	if (!install_handler())
		return RBP_NOMEM;
	/* the memory may have been withdrawn while the memfd was in transit */
	if (fstat(fd, &st) != 0 || (uint64_t) st.st_size < size)
		return RBP_DENIED;

	/*
	 * Aligned, so that huge pages can be mapped as such: reserve more
	 * addresses, and give back what is before and behind.
	 */
	range = mmap(NULL, reserve, PROT_NONE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (range == MAP_FAILED)
		return RBP_NOMEM;
	base = (uint8_t *) (((uintptr_t) range + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
	if (mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
	{
		munmap(range, reserve);
		return RBP_NOMEM;
	}
	if (base > range)
		munmap(range, (size_t) (base - range));
	if (base + size < range + reserve)
		munmap(base + size, (size_t) (range + reserve - (base + size)));

	/*
	 * children must not inherit our mappings; core files would be huge, and
	 * tell pages
	 */
	(void) madvise(base, size, MADV_DONTFORK);
	(void) madvise(base, size, MADV_DONTDUMP);
	region->base = base;
	rbp_transport_accesses++;
	return RBP_OK;
}

/* Execute a request on a mapped region. */
static RbpStatus
copy_io(ShmConn *conn, ShmRegion *region, const RbpIo *io)
{
	if (guarded_copy(region->base, conn->sock.welcome.region_size, io))
		return RBP_OK;
	unmap_region(conn, region);
	return RBP_DENIED;
}

/*
 * ---- the socket -------------------------------------------------------------
 */
static RbpStatus
fail(ShmConn *conn, RbpStatus why)
{
	return rbp_sock_fail(&conn->sock, why);
}

/*
 * Send a request; *id is its id, or 0 on failure.  RBP_NOMEM: hundreds are in the
 * socket's buffer already, which takes a message whole or not at all.
 */
static RbpStatus
send_request(ShmConn *conn, uint8_t op, uint32_t region, uint64_t *id)
{
	RbpWireRequest req = {.prefix.op = op,.region = region,.id = conn->last_id + 1};
	uint8_t		buf[RBP_REQUEST_SIZE];

	*id = 0;
	rbp_wire_put_request(buf, &req);
	if (send(conn->sock.fd, buf, sizeof(buf), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(buf))
	{
		*id = ++conn->last_id;
		return RBP_INPROGRESS;
	}
	return errno == EAGAIN || errno == EWOULDBLOCK ? RBP_NOMEM : fail(conn, RBP_CONNLOST);
}

static void
close_fd(ShmConn *conn)
{
	if (conn->fd >= 0)
		close(conn->fd);
	conn->fd = -1;
}

static RbpStatus
handle_answer(ShmConn *conn, const RbpWireAnswer *ans)
{
	if (ans->op == RBP_OP_PING)
	{
		/* answers come in order */
		if (ans->id <= conn->last_pong || ans->id > conn->last_ping)
			return fail(conn, RBP_PROTOCOL);
		conn->last_pong = ans->id;
		conn->pong = rbp_status_from_wire(ans->status);
		return RBP_OK;
	}
	if (ans->op != RBP_OP_MAP)
		return fail(conn, RBP_PROTOCOL);

	for (uint32_t i = 0; i < conn->nregions; i++)
	{
		ShmRegion  *region = &conn->regions[i];

		if (region->asked == 0 || region->asked != ans->id)
			continue;
		region->answered = ans->id;
		region->asked = 0;

		/*
		 * the region was granted again meanwhile, so an answer for the old
		 * grant is void
		 */
		region->result = region->asked_grant == region->grant ?
			rbp_status_from_wire(ans->status) : RBP_CANCELED;
		if (ans->status == RBP_WIRE_OK)
		{
			uint64_t	size;

			if (conn->fd < 0 ||
				!rbp_wire_get_map(conn->rx + RBP_ANSWER_SIZE,
								  RBP_MAP_PAYLOAD_SIZE, &size) ||
				size != conn->sock.welcome.region_size)
				return fail(conn, RBP_PROTOCOL);
			if (region->result == RBP_OK)
				region->result = map_region(conn, region, conn->fd);
		}
		return RBP_OK;
	}
	return fail(conn, RBP_PROTOCOL);
}

/*
 * Receive one message, or a part of one.  RBP_INPROGRESS: nothing to receive.
 */
static RbpStatus
receive_some(ShmConn *conn)
{
	union
	{
		struct cmsghdr align;
		char		space[CMSG_SPACE(sizeof(int))];
	}			control;
	struct iovec iov;
	struct msghdr msg = {.msg_iov = &iov,.msg_iovlen = 1};
	size_t		want = RBP_ANSWER_SIZE;
	RbpWireAnswer ans;
	struct cmsghdr *c;
	RbpStatus	status;
	ssize_t		n;

	if (conn->rx_have >= RBP_ANSWER_SIZE)
		want += RBP_MAP_PAYLOAD_SIZE;
	iov.iov_base = conn->rx + conn->rx_have;
	iov.iov_len = want - conn->rx_have;
	msg.msg_control = &control;
	msg.msg_controllen = CMSG_LEN(sizeof(int)); /* an answer has one memfd */
	do
		n = recvmsg(conn->sock.fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return RBP_INPROGRESS;
	if (n <= 0)
		return fail(conn, RBP_CONNLOST);

	c = CMSG_FIRSTHDR(&msg);
	if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
		c->cmsg_len == CMSG_LEN(sizeof(int)))
	{
		close_fd(conn);
		memcpy(&conn->fd, CMSG_DATA(c), sizeof(int));
	}

	conn->rx_have += (size_t) n;
	if (conn->rx_have < RBP_ANSWER_SIZE)
		return RBP_OK;
	if (!rbp_wire_get_answer(conn->rx, RBP_ANSWER_SIZE, &ans))
		return fail(conn, RBP_PROTOCOL);
	if (ans.payload > 0 && conn->rx_have < RBP_ANSWER_SIZE + RBP_MAP_PAYLOAD_SIZE)
	{
		if (ans.op != RBP_OP_MAP)
			return fail(conn, RBP_PROTOCOL);
		return RBP_OK;
	}
	conn->rx_have = 0;
	status = handle_answer(conn, &ans);
	close_fd(conn);
	return status;
}

/*
 * Check, every CHECK_NS, whether the donor still exists: receiving fails the
 * connection if the donor has closed it.
 */
static void
check_donor(ShmConn *conn)
{
	int64_t		now = rbp_coarse_now_ns();

	if (now - conn->checked_at < CHECK_NS)
		return;
	conn->checked_at = now;
	while (receive_some(conn) == RBP_OK)
		;
}

/*
 * ---- the table's functions ----------------------------------------------------
 */
static bool
shm_usable(const RbpEndpoint *ep)
{
	return ep->shm_name[0] != '\0' && ep->boot_id[0] != '\0' &&
		strcmp(ep->boot_id, rbp_transport_boot_id()) == 0;
}

static RbpStatus
shm_connect(const RbpEndpoint *ep, const RbpCredentials *cred, RbpConn **conn_out)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	size_t		len = strnlen(ep->shm_name, RBP_SHM_NAME_LEN);
	ShmConn    *conn;
	RbpStatus	status;

	if (len == 0 || len >= RBP_SHM_NAME_LEN ||
		len + 1 > sizeof(addr.sun_path))
		return RBP_INVALID;
	memcpy(addr.sun_path + 1, ep->shm_name, len);

	conn = calloc(1, sizeof(*conn));
	if (conn == NULL)
		return RBP_NOMEM;
	conn->base.ops = &rbp_transport_shm;
	conn->fd = -1;
	status = rbp_sock_start(&conn->sock, (struct sockaddr *) &addr,
							(socklen_t) (offsetof(struct sockaddr_un, sun_path) + 1 + len),
							ep->donor, cred);
	if (status != RBP_OK)
	{
		free(conn);
		return status;
	}
	*conn_out = &conn->base;
	return RBP_OK;
}

static RbpStatus
shm_connect_wait(RbpConn *base, int64_t deadline_ns)
{
	ShmConn    *conn = (ShmConn *) base;
	RbpStatus	status = rbp_sock_connect_wait(&conn->sock, deadline_ns);

	if (status == RBP_OK && conn->regions == NULL)
	{
		conn->regions = calloc(conn->sock.welcome.regions, sizeof(ShmRegion));
		if (conn->regions == NULL)
			return fail(conn, RBP_NOMEM);
		conn->nregions = conn->sock.welcome.regions;
	}
	return status;
}

static RbpStatus
start_io(ShmConn *conn, RbpIo *io)
{
	ShmRegion  *region;
	RbpStatus	status = RBP_INPROGRESS;

	io->cookie = 0;
	if (io->kind == RBP_IO_PING)
	{
		status = send_request(conn, RBP_OP_PING, 0, &io->cookie);
		if (status == RBP_INPROGRESS)
			conn->last_ping = io->cookie;
		return status;
	}
	if (!rbp_io_valid(io, conn->sock.welcome.region_size))
		return RBP_INVALID;
	if (io->region >= conn->nregions)
		return RBP_DENIED;

	region = &conn->regions[io->region];
	if (region->grant != io->grant)
	{
		unmap_region(conn, region);
		region->grant = io->grant;
	}
	if (region->base != NULL)
		return copy_io(conn, region, io);
	if (region->asked == 0)
	{
		status = send_request(conn, RBP_OP_MAP, io->region, &region->asked);
		region->asked_grant = io->grant;
	}
	io->cookie = region->asked;
	return status;
}

static RbpStatus
shm_submit(RbpConn *base, RbpIo *ios, int n)
{
	ShmConn    *conn = (ShmConn *) base;

	if (conn->sock.state == RBP_SOCK_READY)
		check_donor(conn);
	if (conn->sock.state == RBP_SOCK_FAILED)
		return rbp_io_set_all(ios, n, conn->sock.failure);
	if (conn->regions == NULL)	/* connect_wait() has not returned RBP_OK */
		return rbp_io_set_all(ios, n, RBP_INVALID);

	for (int i = 0; i < n; i++)
		ios[i].status = start_io(conn, &ios[i]);
	return RBP_OK;
}

/* Resume a request whose region was not mapped at submit(). */
static void
resume_io(ShmConn *conn, RbpIo *io)
{
	ShmRegion  *region;

	if (io->kind == RBP_IO_PING)
	{
		/* an answer to a later one is as good */
		if (conn->last_pong >= io->cookie)
			io->status = conn->pong;
		return;
	}
	region = &conn->regions[io->region];
	if (region->base != NULL)
		io->status = copy_io(conn, region, io);

	/*
	 * The MAP that it waited for is answered.  Either it has failed, or the
	 * mapping has been lost again.
	 */
	else if (region->asked != io->cookie)
		io->status = region->answered == io->cookie &&
			region->result != RBP_OK ? region->result : RBP_DENIED;
}

static RbpStatus
shm_wait(RbpConn *base, RbpIo *ios, int n, int64_t deadline_ns)
{
	ShmConn    *conn = (ShmConn *) base;
	RbpWaiter	waiter;
	int			first = 0;

	/* the usual case: submit() has completed all requests */
	while (first < n && ios[first].status != RBP_INPROGRESS)
		first++;
	if (first < n)
	{
		rbp_waiter_begin(&waiter, &conn->sock.spin, deadline_ns);
		for (;;)
		{
			bool		left = false;

			for (int i = first; i < n; i++)
			{
				if (ios[i].status != RBP_INPROGRESS)
					continue;
				if (conn->sock.state == RBP_SOCK_FAILED)
					ios[i].status = conn->sock.failure;
				else
					resume_io(conn, &ios[i]);
				left |= ios[i].status == RBP_INPROGRESS;
			}
			if (!left)
				break;

			if (receive_some(conn) == RBP_INPROGRESS &&
				!rbp_waiter_step(&waiter, conn->sock.fd, POLLIN))
				break;
		}
		rbp_waiter_end(&waiter);
	}

	for (int i = 0; i < n; i++)
	{
		if (ios[i].status == RBP_INPROGRESS)
			ios[i].status = RBP_TIMEOUT;
	}
	return rbp_io_result(ios, n);
}

static void
shm_close(RbpConn *base)
{
	ShmConn    *conn = (ShmConn *) base;

	if (conn == NULL)
		return;
	for (uint32_t i = 0; i < conn->nregions; i++)
		unmap_region(conn, &conn->regions[i]);
	free(conn->regions);
	close_fd(conn);
	rbp_sock_close(&conn->sock);
	free(conn);
}

const RbpTransportOps rbp_transport_shm = {
	.name = "shm",
	.bit = RBP_TRANSPORT_SHM,
	.one_sided = true,
	.local = true,
	.connect_ns = RBP_CONNECT_NS,
	.handshake_ns = RBP_CONNECT_NS,
	.usable = shm_usable,
	.connect = shm_connect,
	.connect_wait = shm_connect_wait,
	.submit = shm_submit,
	.wait = shm_wait,
	.close = shm_close,
};
