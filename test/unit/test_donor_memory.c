/*-------------------------------------------------------------------------
 *
 * test_donor_memory.c
 *	  The start of a donor with much memory: threads that share the work,
 *	  systemd that is told, a NUMA node.
 *
 * The source is included whole, so that its clock can run faster.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"

#include <stdatomic.h>
#include <stdint.h>

static int64_t fast_now(void);

#define rbp_now_ns	fast_now
#include "broker/donor/memory.c"
#undef rbp_now_ns

#include "tap.h"

#include <sys/socket.h>
#include <sys/un.h>

#define NREGIONS	64

static atomic_llong clock_ns;
static atomic_uint calls[NREGIONS];
static atomic_uint together;	/* threads that work */
static atomic_uint most;

static int64_t
fast_now(void)
{
	return atomic_fetch_add(&clock_ns, TELL_NS / 16);
}

static bool
work(uint32_t region, void *arg)
{
	uint32_t	n = atomic_fetch_add(&together, 1) + 1;
	uint32_t	m = atomic_load(&most);

	while (n > m && !atomic_compare_exchange_weak(&most, &m, n))
		;
	atomic_fetch_add(&calls[region], 1);
	usleep(2000);
	atomic_fetch_sub(&together, 1);
	return arg == NULL || region != *(uint32_t *) arg;
}

/* How many datagrams with this text have come. */
static uint32_t
told(int fd, const char *text)
{
	char		buf[256];
	uint32_t	n = 0;
	ssize_t		len;

	while ((len = recv(fd, buf, sizeof(buf) - 1, MSG_DONTWAIT)) > 0)
	{
		buf[len] = '\0';
		n += strstr(buf, text) != NULL;
	}
	return n;
}

static void
test_threads(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	uint32_t	bad = 5;
	uint32_t	once = 0;
	int			fd = socket(AF_UNIX, SOCK_DGRAM, 0);

	snprintf(addr.sun_path, sizeof(addr.sun_path), "/tmp/test_donor_memory.%d", getpid());
	if (fd < 0 || bind(fd, (struct sockaddr *) &addr, sizeof(addr)) != 0)
		abort();
	setenv("NOTIFY_SOCKET", addr.sun_path, 1);

	/* nobody looks at the memory itself */
	donor_nregions = NREGIONS;
	donor_region_size = WORKER_SIZE;
	ok(donor_memory_for_each(work, NULL), "the work is done");
	for (uint32_t i = 0; i < NREGIONS; i++)
		once += atomic_load(&calls[i]) == 1;
	is_u64(once, NREGIONS, "once for each region");
	ok(atomic_load(&most) == count_workers() || atomic_load(&most) > 1 || count_workers() == 1,
	   "by several threads if there are processors");
	ok(told(fd, "EXTEND_TIMEOUT_USEC=") > 0, "systemd is told that it takes longer");

	ok(!donor_memory_for_each(work, &bad), "a region that fails");
	once = 0;
	for (uint32_t i = 0; i < NREGIONS; i++)
		once += atomic_load(&calls[i]) == 2;
	ok(once < NREGIONS, "is the end");
	donor_region_size = 1 << 20;
	is_u64(count_workers(), 1, "little memory is one thread's work");
	unsetenv("NOTIFY_SOCKET");
	unlink(addr.sun_path);
	close(fd);
}

static void
test_node(void)
{
	uint32_t	zeroes = 0;

	ok(donor_memory_has_node(0), "a machine has a first NUMA node");
	ok(!donor_memory_has_node(DONOR_MAX_NODE) && !donor_memory_has_node(-1), "and not any");
	rbp_log_init("test_donor_memory", RBP_LOG_WARNING);
	donor_memory_init(UINT64_C(8) << 20, UINT64_C(1) << 20, 0, 0);
	is_u64(donor_nregions, 8, "regions have memory");
	for (uint32_t i = 0; i < donor_nregions; i++)
		zeroes += donor_regions[i].fd >= 0 && donor_regions[i].base[4095] == 0;
	is_u64(zeroes, 8, "with zeroes");
	ok(donor_memory_renew(&donor_regions[3]), "a region is renewed");
	for (uint32_t i = 0; i < donor_nregions; i++)
		donor_memory_release(&donor_regions[i]);
	free(donor_regions);
}

int
main(void)
{
	test_threads();
	test_node();
	return done_testing();
}
