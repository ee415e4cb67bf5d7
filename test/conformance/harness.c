/*-------------------------------------------------------------------------
 *
 * harness.c
 *	  See harness.h.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/http_client.h"
#include "common/clock.h"
#include "common/status.h"
#include "common/text.h"
#include "transport/transport.h"
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

pid_t		broker_pid = -1;
pid_t		donor_pid = -1;
const char *donor_transports;
int		   *worker_flags;

static pid_t main_pid;
static char directory[256];
static char broker_url[128];
static char broker_address[64];
static char listen_address[64]; /* of the donor; "ADDRESS:0" before it was
								 * started */
static RbpHttp *http;
static int	workers = -1;		/* a socket to who forks them */

void
bail_out(const char *fmt,...)
{
	va_list		args;

	va_start(args, fmt);
	printf("Bail out! ");
	vprintf(fmt, args);
	printf("\n");
	va_end(args);
	fflush(stdout);
	exit(1);
}

void *
must_alloc(size_t size)
{
	void	   *p = malloc(size);

	if (p == NULL)
		bail_out("out of memory");
	return p;
}

void
sleep_ms(int ms)
{
	struct timespec ts = {.tv_sec = ms / 1000,.tv_nsec = ms % 1000 * 1000000L};

	while (nanosleep(&ts, &ts) != 0 && errno == EINTR)
		;
}

int64_t
patience(int seconds)
{
	const char *slow = getenv("RBP_TEST_SLOW");

	return seconds * SECOND * (slow != NULL && atoi(slow) > 0 ? atoi(slow) : 1);
}

static void
prepare(void)
{
	const char *base = getenv("TESTDIR");
	const char *address = getenv("RBP_CONFORMANCE_ADDRESS");

	if (directory[0] != '\0')
		return;
	snprintf(directory, sizeof(directory), "%s/conformance.XXXXXX",
			 base != NULL ? base : "/tmp");
	if (mkdtemp(directory) == NULL)
		bail_out("could not make %s: %s", directory, strerror(errno));
	snprintf(listen_address, sizeof(listen_address), "%s:0",
			 address != NULL ? address : "127.0.0.1");
	strcpy(broker_address, "127.0.0.1:0");	/* elsewhere it wants credentials */
	main_pid = getpid();
	atexit(stop_all);
	rbp_http_init();
}

/* Start a program and wait for "listening on"; address gets what follows. */
static pid_t
spawn(const char *name, char *const argv[], char *address, size_t len)
{
	char		log[512];
	pid_t		pid;

	snprintf(log, sizeof(log), "%s/%s.log", directory, name);
	unlink(log);
	pid = fork();
	if (pid < 0)
		bail_out("fork: %s", strerror(errno));
	if (pid == 0)
	{
		int			fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (fd >= 0)
		{
			dup2(fd, 1);
			dup2(fd, 2);
		}
		execv(argv[0], argv);
		_exit(127);
	}
	for (int64_t until = rbp_now_ns() + patience(60); rbp_now_ns() < until;)
	{
		FILE	   *f = fopen(log, "r");
		char		line[512];
		bool		found = false;

		while (f != NULL && fgets(line, sizeof(line), f) != NULL)
		{
			char	   *at = strstr(line, "listening on ");

			if (at == NULL)
				continue;
			at += strlen("listening on ");
			at[strcspn(at, "\n")] = '\0';
			snprintf(address, len, "%s", at);
			found = true;
		}
		if (f != NULL)
			fclose(f);
		if (found)
			return pid;
		if (waitpid(pid, NULL, WNOHANG) == pid)
			break;
		sleep_ms(50);
	}
	bail_out("%s does not serve; see %s", argv[0], log);
}

void
start_broker(void)
{
	const char *program = getenv("RBP_BROKER");
	char	   *argv[] = {
		(char *) (program != NULL ? program : "build/remote_bp_broker"),
		"--listen", broker_address, NULL
	};
	char		address[64];

	prepare();
	broker_pid = spawn("broker", argv, address, sizeof(address));

	/* the same address again when it is restarted */
	strcpy(broker_address, address);
	snprintf(broker_url, sizeof(broker_url), "http://%s", address);
	rbp_http_destroy(http);
	/* patient: other tests may hold the disk up */
	http = rbp_http_create(broker_url, NULL, NULL, 5000, 60000);
}

void
start_donor(const char *const *options)
{
	const char *program = getenv("RBP_DONOR");
	char		memory[32];
	char		region[32];
	char	   *argv[32] = {
		(char *) (program != NULL ? program : "build/remote_bp_donor"),
		"--broker", broker_url, "--listen", listen_address, "--memory", memory,
		"--region-size", region, "--id", "d1", "--drain-timeout", "20",
		"--transports", (char *) (donor_transports != NULL ? donor_transports : "auto")
	};
	int			n = 0;
	char		address[64];

	snprintf(memory, sizeof(memory), "%llu", (unsigned long long) (NREGIONS * REGION_SIZE));
	snprintf(region, sizeof(region), "%llu", (unsigned long long) REGION_SIZE);
	while (argv[n] != NULL)
		n++;
	while (options != NULL && *options != NULL)
		argv[n++] = (char *) *options++;
	donor_pid = spawn("donor", argv, address, sizeof(address));

	/* its place again when it was killed, so that the broker takes it at once */
	strcpy(listen_address, address);
}

uint64_t
donor_shared_memory(void)
{
	char		path[64];
	char		line[256];
	uint64_t	kb = 0;
	FILE	   *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int) donor_pid);
	f = fopen(path, "r");
	while (f != NULL && fgets(line, sizeof(line), f) != NULL)
		if (strncmp(line, "RssShmem:", 9) == 0)
			kb = strtoull(line + 9, NULL, 10);
	if (f != NULL)
		fclose(f);
	return kb * 1024;
}

int
stop_process(pid_t *pid, int signo)
{
	int			status = 0;

	if (*pid > 0)
	{
		kill(*pid, signo);
		while (waitpid(*pid, &status, 0) < 0 && errno == EINTR)
			;
	}
	*pid = -1;
	return status;
}

void
stop_all(void)
{
	/* a child that exits is not to end the suite's daemons */
	if (getpid() != main_pid)
		return;
	if (donor_pid > 0)
		kill(donor_pid, SIGCONT);
	stop_process(&donor_pid, SIGKILL);
	stop_process(&broker_pid, SIGKILL);
	if (getenv("TESTDIR") == NULL)
	{
		static const char *const names[] = {"broker.log", "donor.log", "fault"};
		char		path[512];

		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		{
			snprintf(path, sizeof(path), "%s/%s", directory, names[i]);
			unlink(path);
		}
		rmdir(directory);
	}
}

static const char *
text(const json_t *object, const char *name)
{
	const char *value = json_string_value(json_object_get(object, name));

	return value != NULL ? value : "";
}

/* From a lease object. */
static void
parse_lease(Lease *lease, const json_t *json)
{
	const json_t *regions = json_object_get(json, "regions");
	const json_t *donor = json_array_get(json_object_get(json, "donors"), 0);
	const json_t *region;
	const json_t *name;
	size_t		i;

	memset(lease, 0, sizeof(*lease));
	snprintf(lease->cred.lease, sizeof(lease->cred.lease), "%s", text(json, "lease"));
	if (!rbp_hex_decode(text(json, "secret"), lease->cred.secret, RBP_SECRET_LEN))
		bail_out("the broker gave no secret");
	json_array_foreach(regions, i, region)
		if (lease->nregions < NREGIONS)
		lease->regions[lease->nregions++] =
			(uint32_t) json_integer_value(json_object_get(region, "region"));
	snprintf(lease->ep.donor, sizeof(lease->ep.donor), "%s", text(donor, "id"));
	snprintf(lease->ep.host, sizeof(lease->ep.host), "%s", text(donor, "host"));
	snprintf(lease->ep.shm_name, sizeof(lease->ep.shm_name), "%s", text(donor, "shm_name"));
	snprintf(lease->ep.boot_id, sizeof(lease->ep.boot_id), "%s", text(donor, "boot_id"));
	lease->ep.port = (uint16_t) json_integer_value(json_object_get(donor, "port"));
	snprintf(lease->ep.rdma_host, sizeof(lease->ep.rdma_host), "%s", text(donor, "rdma_host"));
	lease->ep.rdma_port = (uint16_t) json_integer_value(json_object_get(donor, "rdma_port"));
	json_array_foreach(json_object_get(donor, "transports"), i, name)
	{
		const RbpTransportOps *ops = rbp_transport_by_name(json_string_value(name));

		if (ops != NULL)
			lease->ep.transports |= ops->bit;
	}
}

/* With one more member of the body, unless that is NULL. */
static int
renew(Lease *lease, uint64_t bytes, const char *key, json_t *value)
{
	char		secret[2 * RBP_SECRET_LEN + 1];
	char		path[128];
	json_t	   *reply = NULL;
	json_t	   *body;
	int			rc;

	rbp_hex_encode(lease->cred.secret, RBP_SECRET_LEN, secret);
	snprintf(path, sizeof(path), "/v1/leases/%s/renew", lease->cred.lease);
	body = json_pack("{s:s, s:I}", "secret", secret, "bytes", (json_int_t) bytes);
	if (key != NULL)
		json_object_set_new(body, key, value);
	rc = rbp_http_request(http, "POST", path, body, &reply);
	if (rc == 200)
		parse_lease(lease, reply);
	json_decref(reply);
	json_decref(body);
	return rc;
}

int
lease_try(const char *client, int n)
{
	json_t	   *body = json_pack("{s:s, s:s, s:s, s:I, s:i}",
								 "client", client, "instance", "1",
								 "purpose", "buffer",
								 "bytes", (json_int_t) (n * REGION_SIZE),
								 "ttl_ms", 60000);
	json_t	   *reply = NULL;
	Lease		lease;
	int			rc = rbp_http_request(http, "POST", "/v1/leases", body, &reply);

	json_decref(body);
	if (rc != 201)
		bail_out("no lease: %d, %s", rc, rbp_http_error(http));
	parse_lease(&lease, reply);
	json_decref(reply);
	lease_delete(&lease);
	return lease.nregions;
}

void
lease_get(Lease *lease, const char *client, int n, int ttl_ms)
{
	json_t	   *body = json_pack("{s:s, s:s, s:s, s:I, s:i}",
								 "client", client, "instance", "1",
								 "purpose", "buffer",
								 "bytes", (json_int_t) (n * REGION_SIZE),
								 "ttl_ms", ttl_ms);
	int64_t		until = rbp_now_ns() + patience(10);
	json_t	   *reply = NULL;
	RbpConn    *conn;
	int			rc;

	/* a donor may just be registering */
	for (;;)
	{
		rc = rbp_http_request(http, "POST", "/v1/leases", body, &reply);
		if (rc != 201)
			bail_out("no lease: %d, %s", rc, rbp_http_error(http));
		parse_lease(lease, reply);
		json_decref(reply);
		reply = NULL;
		while (lease->nregions < n && rbp_now_ns() < until && lease->nregions > 0)
		{
			sleep_ms(100);
			if (renew(lease, n * REGION_SIZE, NULL, NULL) != 200)
				break;
		}
		if (lease->nregions == n || rbp_now_ns() > until)
			break;
		lease_delete(lease);
		sleep_ms(100);
	}
	json_decref(body);
	if (lease->nregions != n)
		bail_out("got %d regions instead of %d", lease->nregions, n);

	/* the broker waits a second at most for the donor's word; we longer */
	for (;;)
	{
		RbpStatus	status = connect_to(&rbp_transport_tcp, lease, &conn);
		uint8_t		byte;
		bool		all = status == RBP_OK;

		for (int i = 0; all && i < n; i++)
			all = do_io(conn, RBP_IO_READ, lease->regions[i], 0, &byte, 1, patience(1)) == RBP_OK;
		if (status == RBP_OK)
			conn->ops->close(conn);
		if (all)
			return;
		if (rbp_now_ns() > until)
			bail_out("the donor does not serve lease %s: %s", lease->cred.lease,
					 rbp_status_text(status));
		sleep_ms(50);
	}
}

bool
lease_renew(Lease *lease)
{
	return renew(lease, (uint64_t) lease->nregions * REGION_SIZE, NULL, NULL) == 200;
}

void
lease_change_secret(Lease *lease)
{
	char		secret[2 * RBP_SECRET_LEN + 1];
	uint8_t		fresh[RBP_SECRET_LEN];
	int			rc;

	memset(fresh, 0x5e, sizeof(fresh));
	fresh[0] = lease->cred.secret[0] + 1;
	rbp_hex_encode(fresh, sizeof(fresh), secret);
	rc = renew(lease, (uint64_t) lease->nregions * REGION_SIZE, "new_secret", json_string(secret));
	if (rc != 200)
		bail_out("a new secret: %d, %s", rc, rbp_http_error(http));
}

void
lease_release(Lease *lease, int which)
{
	json_t	   *list = json_array();
	int			rc;

	json_array_append_new(list, json_pack("{s:s, s:i}", "donor", lease->ep.donor,
										  "region", (int) lease->regions[which]));
	rc = renew(lease, (uint64_t) (lease->nregions - 1) * REGION_SIZE, "release", list);
	if (rc != 200)
		bail_out("release: %d, %s", rc, rbp_http_error(http));
}

void
lease_grow(Lease *lease, int n)
{
	int64_t		until = rbp_now_ns() + patience(10);

	while (lease->nregions < n)
	{
		int			rc = renew(lease, n * REGION_SIZE, NULL, NULL);

		if (rc != 200)
			bail_out("renew: %d, %s", rc, rbp_http_error(http));
		if (rbp_now_ns() > until)
			bail_out("got %d regions instead of %d", lease->nregions, n);
		sleep_ms(50);
	}
}

void
lease_delete(Lease *lease)
{
	char		secret[2 * RBP_SECRET_LEN + 1];
	char		path[128];
	json_t	   *body;

	rbp_hex_encode(lease->cred.secret, RBP_SECRET_LEN, secret);
	snprintf(path, sizeof(path), "/v1/leases/%s", lease->cred.lease);
	body = json_pack("{s:s}", "secret", secret);
	(void) rbp_http_request(http, "DELETE", path, body, NULL);
	json_decref(body);
}

void
lease_revoke(Lease *lease)
{
	char		path[128];
	int			rc;

	snprintf(path, sizeof(path), "/v1/leases/%s/revoke", lease->cred.lease);
	rc = rbp_http_request(http, "POST", path, NULL, NULL);
	/* 202: the donor is late to apply it, for which lease_get() waits */
	if (rc != 200 && rc != 202)
		bail_out("revoke: %d, %s", rc, rbp_http_error(http));
}

RbpStatus
connect_to(const RbpTransportOps *ops, const Lease *lease, RbpConn **conn)
{
	int64_t		until = rbp_now_ns() + patience(10);
	RbpStatus	status = ops->connect(&lease->ep, &lease->cred, conn);
	uint8_t		byte;

	if (status != RBP_OK)
		return status;
	status = ops->connect_wait(*conn, until);
	if (status != RBP_OK)
	{
		ops->close(*conn);
		*conn = NULL;
		return status;
	}

	/* over verbs, a lease's first connection has to wait for the keys */
	for (int i = 0; ops->costly && i < lease->nregions; i++)
		while (do_io(*conn, RBP_IO_READ, lease->regions[i], 0, &byte, 1, patience(1)) == RBP_CANCELED &&
			   rbp_now_ns() < until)
			sleep_ms(2);
	return RBP_OK;
}

RbpConn *
must_connect(const RbpTransportOps *ops, const Lease *lease)
{
	int64_t		until = rbp_now_ns() + patience(10);
	RbpConn    *conn = NULL;
	RbpStatus	status;

	/* verbs gives a handshake up after a few seconds, busy machine or not */
	do
		status = connect_to(ops, lease, &conn);
	while (status == RBP_TIMEOUT && rbp_now_ns() < until);
	if (status != RBP_OK)
		bail_out("cannot connect over %s: %s", ops->name, rbp_status_text(status));
	return conn;
}

RbpStatus
do_io(RbpConn *conn, RbpIoKind kind, uint32_t region, uint64_t offset,
	  void *buf, uint32_t len, int64_t timeout_ns)
{
	RbpIo		io = {.kind = kind,.region = region,.offset = offset,.len = len,.buf = buf};

	(void) conn->ops->submit(conn, &io, 1);
	(void) conn->ops->wait(conn, &io, 1, rbp_now_ns() + timeout_ns);
	return io.status;
}

static uint64_t
mix(uint64_t x)
{
	x ^= x >> 31;
	x *= UINT64_C(0x9E3779B97F4A7C15);
	return x ^ x >> 29;
}

void
fill(void *buf, uint32_t len, uint64_t seed)
{
	uint8_t    *p = buf;

	for (uint32_t i = 0; i < len; i += 8)
	{
		uint64_t	word = mix(seed * 1000003 + i) | 1;

		memcpy(p + i, &word, len - i < 8 ? len - i : 8);
	}
}

bool
filled(const void *buf, uint32_t len, uint64_t seed)
{
	const uint8_t *p = buf;

	for (uint32_t i = 0; i < len; i += 8)
	{
		uint64_t	word = mix(seed * 1000003 + i) | 1;

		if (memcmp(p + i, &word, len - i < 8 ? len - i : 8) != 0)
			return false;
	}
	return true;
}

bool
all_bytes(const void *buf, uint32_t len, uint8_t value)
{
	const uint8_t *p = buf;

	for (uint32_t i = 0; i < len; i++)
		if (p[i] != value)
			return false;
	return true;
}

/*
 * ---- workers -------------------------------------------------------------
 */

/* To who forks: start one, or, without main, wait for one. */
typedef struct WorkerOrder
{
	WorkerMain	main;
	pid_t		pid;
	uint8_t		arg[WORKER_ARG_MAX];
} WorkerOrder;

__attribute__((noreturn))
static void
fork_workers(int fd)
{
	WorkerOrder order;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (recv(fd, &order, sizeof(order), 0) == (ssize_t) sizeof(order))
	{
		int			answer = 0;

		if (order.main == NULL)
		{
			while (waitpid(order.pid, &answer, 0) < 0 && errno == EINTR)
				;
		}
		else
		{
			answer = fork();
			if (answer == 0)
			{
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				close(fd);
				order.main(order.arg);
				_exit(0);
			}
		}
		if (send(fd, &answer, sizeof(answer), MSG_NOSIGNAL) != (ssize_t) sizeof(answer))
			break;
	}
	_exit(0);
}

static int
order_worker(const WorkerOrder *order)
{
	int			answer;

	if (send(workers, order, sizeof(*order), MSG_NOSIGNAL) != (ssize_t) sizeof(*order) ||
		recv(workers, &answer, sizeof(answer), 0) != (ssize_t) sizeof(answer))
		bail_out("nobody forks workers: %s", strerror(errno));
	return answer;
}

void
workers_init(void)
{
	int			fds[2];
	pid_t		pid;

	worker_flags = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (worker_flags == MAP_FAILED ||
		socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0 ||
		(pid = fork()) < 0)
		bail_out("no workers: %s", strerror(errno));
	if (pid == 0)
	{
		close(fds[0]);
		fork_workers(fds[1]);
	}
	close(fds[1]);
	workers = fds[0];
}

pid_t
worker_start(WorkerMain main, const void *arg, size_t len)
{
	WorkerOrder order = {.main = main};
	pid_t		pid;

	if (len > sizeof(order.arg))
		bail_out("%zu bytes are too many for a worker", len);
	memcpy(order.arg, arg, len);
	pid = order_worker(&order);
	if (pid < 0)
		bail_out("a worker cannot be forked");
	return pid;
}

int
worker_wait(pid_t pid)
{
	WorkerOrder order = {.pid = pid};

	return order_worker(&order);
}
