/*-------------------------------------------------------------------------
 *
 * serve_threads.c
 *	  The donor's data plane: threads, and accepting connections.
 *
 * There are a few threads, each with its own epoll set; a connection stays
 * with the thread that it was assigned to when it was accepted.  Nothing here
 * blocks except epoll_wait(), and the first thread for a ms while a connection
 * cannot be accepted.
 *
 * Polling.  A request that arrives while its thread sleeps costs the wake-up
 * of a core.  So a thread that has just served something polls for a while,
 * mostly the connection that it served last.  At most half as many threads as
 * there are cores (at least one) poll at a time, and only as long as that
 * pays: see RbpSpin in common/spin.h.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/listen.h"
#include "broker/common/secret.h"
#include "broker/common/signals.h"
#include "broker/donor/serve_internal.h"
#include "common/clock.h"
#include "common/text.h"
#include "transport/transport.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define OTHER_FILES		128u	/* than regions and connections */
#define ENDING			64		/* connections that are to make way */
#define HANDSHAKE_NS	INT64_C(5000000000)
#define ENDED_IDLE_NS	INT64_C(10000000000)
#define SWEEP_NS		INT64_C(1000000000)

/*
 * With one client at a time, it is this client that runs while we yield, and
 * it will wait for us soon: staying awake saves both sides a wake-up for each
 * request.  Only if a yield has let others run for long, they compute
 * something: then requests would wait for the end of their time slices,
 * whereas a sleeping thread would be woken.
 */
#define YIELD_HURTS_ALONE_NS	1000000

static RbpDonorThread *threads;
static int	nthreads;
static int64_t spin_ns;
static int	max_spinners;
static atomic_int spinners;
static atomic_uint next_thread;
static int	max_connections;
static RbpPlaces unproved;

uid_t		donor_shm_users[DONOR_MAX_SHM_USERS];
int			donor_shm_nusers;

static RbpDonorConn tcp_listener;
static RbpDonorConn unix_listener;

/*
 * ---- connections ---------------------------------------------------------
 */

static void
refuse_busy(int fd)
{
	uint8_t		buf[RBP_WELCOME_SIZE];
	RbpWireWelcome busy = {.prefix.status = RBP_WIRE_BUSY};

	donor_serve_log_refusal(fd, RBP_LOG_WARNING, "there are too many connections, all of which have proved a lease");
	(void) send(fd, buf, rbp_wire_put_welcome(buf, &busy), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Half-open connections are detected after a minute and a half. */
static void
set_tcp_options(int fd)
{
	static const struct
	{
		int			level;
		int			name;
		int			value;
	}			options[] = {
		{IPPROTO_TCP, TCP_NODELAY, 1},
		{SOL_SOCKET, SO_KEEPALIVE, 1},
		{IPPROTO_TCP, TCP_KEEPIDLE, 30},
		{IPPROTO_TCP, TCP_KEEPINTVL, 10},
		{IPPROTO_TCP, TCP_KEEPCNT, 6}
	};

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		(void) setsockopt(fd, options[i].level, options[i].name, &options[i].value,
						  sizeof(options[i].value));
}

/* Assign a new connection to its thread.  False if it cannot be watched. */
static bool
assign_to_thread(RbpDonorConn *conn)
{
	RbpDonorThread *t = conn->thread;
	struct epoll_event ev = {.events = conn->events,.data.ptr = conn};
	bool		ok;

	/* under the lock, since the thread may close the connection at once */
	pthread_mutex_lock(&t->lock);
	LIST_INSERT_HEAD(&t->conns, conn, link);
	ok = epoll_ctl(t->epfd, EPOLL_CTL_ADD, conn->fd, &ev) == 0;
	if (!ok)
		LIST_REMOVE(conn, link);
	pthread_mutex_unlock(&t->lock);
	return ok;
}

static void
log_crowd(void)
{
	rbp_log_repeated(RBP_LOG_WARNING, "ended the oldest connection without a proof: there are too many");
}

/*
 * Is there room for one more?  If not, one that has proved nothing makes way; until its
 * thread has closed it, there are more than there may be.
 */
static bool
make_room(int n)
{
	if (n < max_connections)
		return true;
	if (!rbp_places_end_oldest(&unproved))
		return false;
	log_crowd();
	return true;
}

/* The new connection, whose first proof is awaited, has a place. */
static void
take_place(RbpDonorConn *conn)
{
	uint64_t	peer;
	RbpEnded	ended;

	conn->admitted = donor_serve_admits(conn->fd, conn->is_unix, &peer);
	conn->place.fd = conn->fd;
	ended = rbp_place_take(&unproved, &conn->place, peer, RBP_SHARE);
	if (ended == RBP_ENDED_OWN)
		donor_serve_log_refusal(conn->fd, RBP_LOG_WARNING, "it has too many connections without a proof; the oldest has ended");
	else if (ended == RBP_ENDED_ANY)
		log_crowd();
}

static void
accept_conns(const RbpDonorConn *listener)
{
	for (int i = 0; i < 64; i++)
	{
		RbpDonorConn *conn = NULL;
		int			fd;

		/*
		 * While that many still have to be closed, newcomers wait in the
		 * kernel's queue: they have a place soon, and must not be refused.
		 */
		if (atomic_load(&donor_serve_connections) >= max_connections + ENDING)
		{
			usleep(1000);
			return;
		}
		fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0)
		{
			if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
			{
				rbp_log(RBP_LOG_WARNING, "could not accept a connection: %s",
						strerror(errno));
				usleep(1000);
			}
			return;
		}
		if (make_room(atomic_fetch_add(&donor_serve_connections, 1)))
			conn = calloc(1, sizeof(*conn));
		if (conn == NULL)
			refuse_busy(fd);
		else
		{
			if (!listener->is_unix)
				set_tcp_options(fd);
			conn->fd = fd;
			conn->is_unix = listener->is_unix;
			conn->thread = &threads[atomic_fetch_add(&next_thread, 1) % (unsigned) nthreads];
			conn->active_at = rbp_boottime_ns();
			conn->events = EPOLLIN;
			take_place(conn);
			if (assign_to_thread(conn))
				continue;
			rbp_place_leave(&conn->place);
		}
		close(fd);
		free(conn);
		atomic_fetch_sub(&donor_serve_connections, 1);
	}
}

/*
 * ---- threads -------------------------------------------------------------
 */

/*
 * Close connections whose handshake takes too long, or whose lease has long
 * ended, or has another key.
 */
static void
sweep(RbpDonorThread *t, int64_t now)
{
	RbpDonorConn *conn;
	RbpDonorConn *next;

	pthread_mutex_lock(&t->lock);
	conn = LIST_FIRST(&t->conns);
	pthread_mutex_unlock(&t->lock);

	/* only this thread removes connections, and others add them in front */
	for (; conn != NULL; conn = next)
	{
		next = LIST_NEXT(conn, link);
		if (conn->state != CONN_OPEN)
		{
			if (now - conn->active_at > HANDSHAKE_NS)
			{
				donor_serve_log_refusal(conn->fd, RBP_LOG_WARNING, "its handshake took too long");
				donor_serve_close(conn);
			}
		}
		else if (!donor_lease_has_key(conn->lease, conn->key_number) ||
				 (now - conn->active_at > ENDED_IDLE_NS &&
				  (atomic_load(&conn->lease->ended) ||
				   now >= atomic_load(&conn->lease->deadline_ns))))
			donor_serve_close(conn);
	}
}

/* Handle events of epoll.  Returns whether anything was served. */
static bool
dispatch(const struct epoll_event *events, int n, int64_t now)
{
	bool		any = false;

	for (int i = 0; i < n; i++)
	{
		RbpDonorConn *conn = events[i].data.ptr;

		if (conn->is_listener)
			accept_conns(conn);
		else if (donor_serve_conn(conn, now))
			any = true;
	}
	return any;
}

/* Poll for a while. */
static RbpSpinResult
poll_briefly(RbpDonorThread *t)
{
	struct epoll_event events[64];
	int64_t		start = rbp_boottime_ns();
	int64_t		now = start;
	int			n;

	while (now - start < spin_ns)
	{
		int64_t		before = now;

		/*
		 * counted across calls, or a busy connection would starve the others
		 */
		if (t->last_served != NULL && ++t->polls % 4 != 0)
		{
			if (donor_serve_conn(t->last_served, now))
				return RBP_SPIN_SUCCEEDED;
		}
		else
		{
			n = epoll_wait(t->epfd, events, 64, 0);
			if (n > 0)
			{
				dispatch(events, n, now);
				return RBP_SPIN_SUCCEEDED;
			}
		}
		sched_yield();
		now = rbp_boottime_ns();
		if (now - before > (t->consecutive == SERVE_ALONE ? YIELD_HURTS_ALONE_NS :
							RBP_SPIN_CONTENDED_NS))
			return RBP_SPIN_CONTENDED;
	}
	return RBP_SPIN_FAILED;
}

/* Poll, if it is worth it.  Returns whether anything was served. */
static bool
spin(RbpDonorThread *t)
{
	RbpSpinResult result;

	if (rbp_spin_begin(&t->spin, rbp_now_ns()) <= 0)
		return false;
	result = poll_briefly(t);
	rbp_spin_end(&t->spin, result);
	return result == RBP_SPIN_SUCCEEDED;
}

static void *
thread_main(void *arg)
{
	RbpDonorThread *t = arg;
	struct epoll_event events[64];
	int64_t		swept_at = rbp_boottime_ns();
	bool		busy = false;

	for (;;)
	{
		int64_t		now;
		int			n;

		if (busy && spin_ns > 0)
		{
			busy = atomic_fetch_add(&spinners, 1) < max_spinners && spin(t);
			atomic_fetch_sub(&spinners, 1);
			now = rbp_boottime_ns();
			if (busy && now - swept_at < SWEEP_NS)
				continue;
		}

		n = epoll_wait(t->epfd, events, 64, busy ? 0 : 1000);
		now = rbp_boottime_ns();
		if (n > 0)
			busy |= dispatch(events, n, now);
		if (now - swept_at >= SWEEP_NS)
		{
			sweep(t, now);
			swept_at = now;
		}
	}
	return NULL;
}

/*
 * ---- start ---------------------------------------------------------------
 */

/*
 * A name that no other process has.  It is sent without shared memory, too, since
 * by it clients know a process that was started again on the same ports.
 */
static void
make_shm_name(char shm_name[RBP_SHM_NAME_LEN])
{
	uint8_t		random[16];

	rbp_random_bytes(random, sizeof(random));
	strcpy(shm_name, "remote_bp-");
	rbp_hex_encode(random, sizeof(random), shm_name + strlen(shm_name));
}

/* Listen in the abstract namespace, which needs no cleaning up. */
static void
listen_unix(const char *shm_name)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	size_t		len = strlen(shm_name);
	int			fd;

	memcpy(addr.sun_path + 1, shm_name, len);

	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 ||
		bind(fd, (struct sockaddr *) &addr,
			 (socklen_t) (offsetof(struct sockaddr_un, sun_path) + 1 + len)) != 0 ||
		listen(fd, SOMAXCONN) != 0)
		rbp_die("could not listen on an abstract UNIX socket: %s", strerror(errno));
	unix_listener = (RbpDonorConn)
	{
		.fd = fd,.is_unix = true,.is_listener = true
	};
}

int
donor_serve_places(void)
{
	struct rlimit rl;

	if (getrlimit(RLIMIT_NOFILE, &rl) != 0 || rl.rlim_cur == RLIM_INFINITY ||
		rl.rlim_cur >= donor_nregions + OTHER_FILES + DONOR_MAX_CONNECTIONS)
		return DONOR_MAX_CONNECTIONS;
	return (int) (rl.rlim_cur - donor_nregions - OTHER_FILES);
}

void
donor_serve_init(const char *host, uint16_t *port, uint32_t transports,
				 char shm_name[RBP_SHM_NAME_LEN], int want_threads, int spin_us)
{
	long		ncpu = sysconf(_SC_NPROCESSORS_ONLN);

	nthreads = want_threads;
	spin_ns = (int64_t) spin_us * 1000;
	max_spinners = ncpu > 2 ? (int) (ncpu / 2) : 1;
	max_connections = donor_serve_places();
	rbp_places_init(&unproved, max_connections / 4);

	make_shm_name(shm_name);
	if (transports & RBP_TRANSPORT_TCP)
		tcp_listener = (RbpDonorConn)
	{
		.fd = rbp_listen_tcp(host, port),.is_listener = true
	};
	if (transports & RBP_TRANSPORT_SHM)
		listen_unix(shm_name);

	threads = calloc((size_t) nthreads, sizeof(RbpDonorThread));
	if (threads == NULL)
		rbp_die("out of memory");
	for (int i = 0; i < nthreads; i++)
	{
		RbpDonorThread *t = &threads[i];

		t->epfd = epoll_create1(EPOLL_CLOEXEC);
		if (t->epfd < 0 || pthread_mutex_init(&t->lock, NULL) != 0)
			rbp_die("could not set up a serving thread: %s", strerror(errno));
	}

	/* the first thread accepts connections for all */
	for (int i = 0; i < 2; i++)
	{
		RbpDonorConn *listener = i == 0 ? &tcp_listener : &unix_listener;
		struct epoll_event ev = {.events = EPOLLIN,.data.ptr = listener};

		if (listener->is_listener &&
			epoll_ctl(threads[0].epfd, EPOLL_CTL_ADD, listener->fd, &ev) != 0)
			rbp_die("could not watch a listening socket: %s", strerror(errno));
	}
	for (int i = 0; i < nthreads; i++)
		rbp_thread_start(thread_main, &threads[i]);
}

uint64_t
donor_serve_stat(RbpDonorServeStat stat)
{
	uint64_t	total = 0;

	for (int i = 0; i < nthreads; i++)
		total += atomic_load(&threads[i].stats[stat]);
	return total;
}
