/*-------------------------------------------------------------------------
 *
 * bench_common.c
 *	  See bench_common.h.
 *
 *-------------------------------------------------------------------------
 */
#include "base/hash.h"
#include "common/clock.h"
#include "common/status.h"
#include "transport/transport.h"
#include "bench_common.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

RbpEndpoint endpoint;
RbpCredentials credentials;
uint32_t   *region_numbers;
uint32_t	nregions;
uint64_t	region_size;
uint32_t	region_pages;
uint32_t	npages;
uint8_t    *frames;
uint64_t   *hashes;

void
die(const char *fmt,...)
{
	va_list		args;

	va_start(args, fmt);
	fprintf(stderr, "%s: ", program_invocation_short_name);
	vfprintf(stderr, fmt, args);
	fputc('\n', stderr);
	va_end(args);
	exit(1);
}

uint64_t
next_random(void)
{
	static uint64_t state = 88172645463325252u;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static const char *
text(json_t *object, const char *key)
{
	const char *value = json_string_value(json_object_get(object, key));

	if (value == NULL)
		die("the lease has no \"%s\"", key);
	return value;
}

void
load_lease(const char *file)
{
	json_error_t error;
	json_t	   *lease = json_load_file(file, 0, &error);
	json_t	   *donor = json_array_get(json_object_get(lease, "donors"), 0);
	json_t	   *regions = json_object_get(lease, "regions");
	json_t	   *rdma_host = json_object_get(donor, "rdma_host");
	const char *secret;

	if (lease == NULL)
		die("%s: %s", file, error.text);
	if (json_array_size(json_object_get(lease, "donors")) != 1 ||
		json_array_size(regions) == 0)
		die("a lease on one donor is needed");

	snprintf(credentials.lease, sizeof(credentials.lease), "%s", text(lease, "lease"));
	secret = text(lease, "secret");
	for (int i = 0; i < RBP_SECRET_LEN; i++)
		if (sscanf(secret + 2 * i, "%2hhx", &credentials.secret[i]) != 1)
			die("the secret is not in hex");

	snprintf(endpoint.donor, sizeof(endpoint.donor), "%s", text(donor, "id"));
	snprintf(endpoint.host, sizeof(endpoint.host), "%s", text(donor, "host"));
	snprintf(endpoint.shm_name, sizeof(endpoint.shm_name), "%s", text(donor, "shm_name"));
	snprintf(endpoint.boot_id, sizeof(endpoint.boot_id), "%s", text(donor, "boot_id"));
	endpoint.port = (uint16_t) json_integer_value(json_object_get(donor, "port"));
	endpoint.transports = RBP_TRANSPORT_SHM | RBP_TRANSPORT_TCP;
	if (rdma_host != NULL)
	{
		snprintf(endpoint.rdma_host, sizeof(endpoint.rdma_host), "%s", json_string_value(rdma_host));
		endpoint.rdma_port = (uint16_t) json_integer_value(json_object_get(donor, "rdma_port"));
		endpoint.transports |= RBP_TRANSPORT_VERBS;
	}

	nregions = (uint32_t) json_array_size(regions);
	region_numbers = calloc(nregions, sizeof(uint32_t));
	for (uint32_t i = 0; i < nregions; i++)
	{
		json_t	   *region = json_array_get(regions, i);

		region_numbers[i] = (uint32_t) json_integer_value(json_object_get(region, "region"));
		region_size = (uint64_t) json_integer_value(json_object_get(region, "bytes"));
	}
	region_pages = (uint32_t) (region_size / PAGE);
	npages = nregions * region_pages;
	json_decref(lease);

	rbp_hash_init();
	frames = mmap(NULL, (size_t) FRAMES * PAGE, PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	hashes = calloc(npages, sizeof(*hashes));
	if (frames == MAP_FAILED || hashes == NULL)
		die("out of memory");
}

void
make_page(uint8_t *buf, uint32_t page)
{
	Head		head = {MARK, page};

	for (size_t i = 0; i < PAGE; i += sizeof(uint64_t))
	{
		uint64_t	r = next_random();

		memcpy(buf + i, &r, sizeof(r));
	}
	memcpy(buf, &head, sizeof(head));
	hashes[page] = rbp_hash_page(buf);
}

RbpIo
page_io(RbpIoKind kind, uint32_t page, void *buf)
{
	RbpIo		io = {.kind = kind,.len = PAGE,.buf = buf};

	io.region = region_numbers[page / region_pages];
	io.offset = (uint64_t) (page % region_pages) * PAGE;
	return io;
}

RbpStatus
do_ios(RbpConn *conn, RbpIo *ios, int n)
{
	RbpStatus	status = conn->ops->submit(conn, ios, n);

	return status == RBP_OK ? conn->ops->wait(conn, ios, n, rbp_now_ns() + SETUP_NS) : status;
}

RbpConn *
connect_to_donor(const RbpTransportOps *ops)
{
	RbpConn    *conn;
	RbpStatus	status;

	if (!ops->usable(&endpoint))
		die("the donor cannot be reached over %s", ops->name);
	status = ops->connect(&endpoint, &credentials, &conn);
	if (status == RBP_OK)
		status = ops->connect_wait(conn, rbp_now_ns() + SETUP_NS);
	if (status != RBP_OK)
		die("cannot connect: %s", rbp_status_text(status));
	return conn;
}

void
fill_lease(RbpConn *conn)
{
	int64_t		deadline = rbp_now_ns() + SETUP_NS;

	for (uint32_t page = 0; page < npages;)
	{
		RbpIo		ios[BATCH];
		uint32_t	n = npages - page < BATCH ? npages - page : BATCH;
		RbpStatus	status;

		for (uint32_t i = 0; i < n; i++)
		{
			uint8_t    *buf = frames + (size_t) i * PAGE;

			make_page(buf, page + i);
			ios[i] = page_io(RBP_IO_WRITE, page + i, buf);
		}
		status = do_ios(conn, ios, (int) n);
		if (status == RBP_OK)
		{
			page += n;
			deadline = rbp_now_ns() + SETUP_NS;
		}
		/* a region that the donor has not told the device about yet */
		else if (status != RBP_CANCELED || rbp_now_ns() > deadline)
			die("cannot write: %s", rbp_status_text(status));
	}
}

uint8_t *
donor_like_memory(size_t size)
{
	uint8_t    *base = mmap(NULL, size, PROT_READ | PROT_WRITE,
							MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	if (base == MAP_FAILED)
	{
		base = mmap(NULL, size, PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (base == MAP_FAILED)
			die("no memory for the bare exchange");
		(void) madvise(base, size, MADV_HUGEPAGE);
	}
	for (size_t at = 0; at < size; at += PAGE)
		memset(base + at, (int) (at / PAGE), PAGE);
	return base;
}

void
end_with_parent(pid_t parent)
{
	(void) prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(0);
}

static int
compare(const void *a, const void *b)
{
	int64_t		x = *(const int64_t *) a,
				y = *(const int64_t *) b;

	return x < y ? -1 : x > y;
}

int64_t
quantile(int64_t *times, uint32_t n, double q)
{
	qsort(times, n, sizeof(times[0]), compare);
	return times[(uint32_t) (q * n)];
}

int64_t
clock_cost(void)
{
	static int64_t times[10001];

	for (int i = 0; i < 10001; i++)
	{
		int64_t		start = rbp_now_ns();

		times[i] = rbp_now_ns() - start;
	}
	return quantile(times, 10001, 0.5);
}
