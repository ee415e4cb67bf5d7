/*-------------------------------------------------------------------------
 *
 * test_donor_memory.c
 *	  The start of a donor with much memory: threads that share the work,
 *	  systemd that is told, a NUMA node, huge pages.
 *
 * The source is included whole, so that its clock can run faster, the pool of
 * huge pages is ours, and the log can be read.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/log.h"
#include "common/clock.h"

#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

static int64_t fast_now(void);
static int	pool_memfd(const char *name, unsigned int flags);
static int	counted_madvise(void *at, size_t len, int advice);
static void keep_log(RbpLogLevel level, const char *fmt,...)
			__attribute__((format(printf, 2, 3)));
static void keep_error(const char *fmt,...)
			__attribute__((format(printf, 1, 2), noreturn));

#define rbp_now_ns	fast_now
#define memfd_create	pool_memfd
#define madvise		counted_madvise
#define rbp_log		keep_log
#define rbp_die		keep_error
#include "broker/donor/memory.c"
#undef rbp_now_ns
#undef memfd_create
#undef madvise
#undef rbp_log
#undef rbp_die

#include "tap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/un.h>

#define NREGIONS	64

static atomic_llong clock_ns;
static atomic_uint calls[NREGIONS];
static atomic_uint together;	/* threads that work */
static atomic_uint most;

static int	pool_regions;		/* for which the pool has huge pages */
static int	advised;			/* regions for which transparent ones are
								 * asked for */
static int	hidden;				/* regions that are in no core file */
static char logged[4096];
static jmp_buf died;

static int64_t
fast_now(void)
{
	return atomic_fetch_add(&clock_ns, TELL_NS / 16);
}

/* Memory from the pool is in plain pages here; most machines have no pool. */
static int
pool_memfd(const char *name, unsigned int flags)
{
	if ((flags & MFD_HUGETLB) == 0)
		return memfd_create(name, flags);
	if (pool_regions == 0)
	{
		errno = ENOMEM;
		return -1;
	}
	pool_regions--;
	return memfd_create(name, flags & ~(MFD_HUGETLB | MFD_HUGE_2MB));
}

static int
counted_madvise(void *at, size_t len, int advice)
{
	advised += advice == MADV_HUGEPAGE;
	hidden += advice == MADV_DONTDUMP;
	return madvise(at, len, advice);
}

__attribute__((format(printf, 1, 0))) static void
keep_line(const char *fmt, va_list args)
{
	size_t		have = strlen(logged);

	vsnprintf(logged + have, sizeof(logged) - have, fmt, args);
	strncat(logged, "\n", sizeof(logged) - strlen(logged) - 1);
}

static void
keep_log(RbpLogLevel level, const char *fmt,...)
{
	va_list		args;

	(void) level;
	va_start(args, fmt);
	keep_line(fmt, args);
	va_end(args);
}

static void
keep_error(const char *fmt,...)
{
	va_list		args;

	va_start(args, fmt);
	keep_line(fmt, args);
	va_end(args);
	longjmp(died, 1);
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
release_all(void)
{
	for (uint32_t i = 0; i < donor_nregions; i++)
		donor_memory_release(&donor_regions[i]);
	free(donor_regions);
}

static void
test_node(void)
{
	uint32_t	zeroes = 0;

	ok(donor_memory_has_node(0), "a machine has a first NUMA node");
	ok(!donor_memory_has_node(DONOR_MAX_NODE) && !donor_memory_has_node(-1), "and not any");
	donor_memory_init(UINT64_C(8) << 20, UINT64_C(1) << 20, 0, DONOR_HUGE_TRY, 0);
	is_u64(donor_nregions, 8, "regions have memory");
	for (uint32_t i = 0; i < donor_nregions; i++)
		zeroes += donor_regions[i].fd >= 0 && donor_regions[i].base[4095] == 0;
	is_u64(zeroes, 8, "with zeroes");
	ok(donor_memory_renew(&donor_regions[3]), "a region is renewed");
	release_all();
}

/*
 * A donor of four regions of this size, with huge pages for three of 2 MB in
 * the pool.  False if it does not start.
 */
static bool
start(uint64_t region_size, RbpDonorHugePages huge)
{
	pool_regions = 3;
	advised = hidden = 0;
	nhuge = 0;
	atomic_store(&failed_errno, 0);
	logged[0] = '\0';
	if (setjmp(died) != 0)
		return false;
	donor_memory_init(4 * region_size, region_size, 0, huge, -1);
	return true;
}

static void
is_logged(const char *text)
{
	if (!ok(strstr(logged, text) != NULL, "the log says: %s", text))
		diag("it says: %s", logged);
}

static void
test_huge_pages(void)
{
	const uint64_t size = HUGE_SIZE;

	ok(start(size, DONOR_HUGE_TRY), "try: a donor with huge pages for three of four regions");
	is_u64(nhuge, 3, "takes them");
	is_u64((uint64_t) advised, 1, "and asks for transparent ones for the rest");
	is_u64((uint64_t) hidden, 4, "none of them is in a core file");
	is_logged("memory: 8 MB in 4 regions of 2 MB, 6 MB in huge pages, 2 MB in ");
	ok(strstr(logged, "plain pages") == NULL || strstr(logged, "reserve 1 more of them (vm.nr_hugepages)") != NULL,
	   "the log says how to have all in huge pages");
	pool_regions = 1;
	atomic_store(&donor_regions[3].exposed, true);
	ok(donor_memory_renew(&donor_regions[3]) && donor_regions[3].huge, "when the pool has one more, it is taken");
	atomic_store(&donor_regions[3].exposed, true);
	ok(donor_memory_renew(&donor_regions[3]) && !donor_regions[3].huge, "when it is gone, another page does");
	is_u64((uint64_t) hidden, 6, "nor what is there later");
	release_all();

	ok(!start(size, DONOR_HUGE_ON), "on: a donor does not start with less than all");
	is_logged("could not get memory for region 3 of 4: Cannot allocate memory; --huge-pages is on, and needs 4 free huge pages");
	is_u64((uint64_t) advised, 0, "and takes no other pages");
	release_all();

	ok(start(size, DONOR_HUGE_OFF), "off: a donor starts");
	is_u64((uint64_t) pool_regions, 3, "takes nothing from the pool");
	is_u64((uint64_t) advised, 0, "and asks for no transparent ones");
	ok(strstr(logged, "vm.nr_hugepages") == NULL, "nor does the log");
	release_all();

	ok(start(size / 2, DONOR_HUGE_TRY), "a donor whose regions are smaller than a huge page");
	is_u64((uint64_t) pool_regions, 3, "takes nothing from the pool");
	is_logged("memory: 4 MB in 4 regions of 1 MB, 4 MB in plain pages, ");
	is_logged("huge pages need a --region-size that is a multiple of 2 MB");
	release_all();
}

int
main(void)
{
	test_threads();
	test_node();
	test_huge_pages();
	return done_testing();
}
