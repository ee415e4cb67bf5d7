/*-------------------------------------------------------------------------
 *
 * memory.c
 *	  The memory that a donor lends: one memfd for each region.
 *
 * All regions are in one reservation of address space.  A region's pages are
 * allocated and locked when it gets its memory, so that no request ever waits
 * for an allocation, and a shortage shows there and not as a SIGBUS.
 * Preferred kinds of pages, see --huge-pages: huge pages from the system's pool
 * as long as there are any, transparent huge pages where the system provides
 * them for shared memory, then plain ones.  Beside the donor itself, huge pages
 * serve the processes that map regions over shm: each enters 2 MB at once into
 * its page table, which takes 4 kB for each GB instead of 2 MB.
 *
 * Memfds are sealed against growing before anybody else sees them.  So a
 * client that still has one of an ended lease, truncated to nothing, cannot
 * make it hold memory again.  They cannot be sealed against shrinking, since
 * the donor shrinks them to withdraw them.  A client that shrinks its own
 * region only harms its own lease: system calls on the hole fail, and for a
 * user-space access zero pages are mapped over it (the SIGBUS handler here).
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/common/log.h"
#include "broker/donor/memory.h"
#include "common/clock.h"
#include "common/kernel.h"
#include "common/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#define HUGE_SIZE	(UINT64_C(2) << 20)
#define HUGE_POOL	"/sys/kernel/mm/hugepages/hugepages-2048kB"
#define SHMEM_ENABLED	"/sys/kernel/mm/transparent_hugepage/shmem_enabled"
#define NODES		"/sys/devices/system/node"

/* Populated between checks of the memory left */
#define STEP_SIZE	(UINT64_C(16) << 20)
/* Fraction of the machine's memory that is left free by default: 1 / this */
#define FREE_PART	20
/* Memory for which one thread is enough at the start */
#define WORKER_SIZE	(UINT64_C(4) << 30)
#define MAX_WORKERS	8
/* How often systemd is told that starting takes longer, and how much longer */
#define TELL_NS		INT64_C(5000000000)
#define EXTEND_USEC	"60000000"
#define OOM_SCORE	1000		/* maximum: to be killed before all others */

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB	(21U << 26)
#endif

RbpDonorRegion *donor_regions;
uint32_t	donor_nregions;
uint64_t	donor_region_size;
atomic_bool donor_memory_locked = true;

static uint8_t *arena;
static size_t arena_size;

static RbpDonorHugePages huge_pages;
static atomic_bool try_huge;	/* the pool had pages last time */
static atomic_bool can_bind = true; /* to a NUMA node */
static int	numa_node = -1;
static atomic_uint workers = 1; /* threads that populate */
static uint32_t nhuge;			/* regions in huge pages at start-up */
static uint64_t left_free;		/* --min-free, in bytes */

/*
 * Fill the hole in a region that a client has shrunk with zero pages, and go
 * on.
 */
static void
on_sigbus(int signo, siginfo_t *info, void *context)
{
	uint8_t    *at = info->si_addr;
	struct sigaction dfl = {.sa_handler = SIG_DFL};

	if (info->si_code > 0 && at >= arena && at < arena + arena_size)
	{
		uint64_t	region = (uint64_t) (at - arena) / donor_region_size;
		uint8_t    *base = donor_regions[region].base;

		/*
		 * a huge page can only be replaced as a whole, so replace the region
		 */
		if (mmap(base, donor_region_size, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
				 -1, 0) != MAP_FAILED)
			return;
	}
	sigaction(SIGBUS, &dfl, NULL);
}

/*
 * Touch every page.  False, with errno, if there is not enough memory.  The
 * memory left in the machine is checked on the way, since the system would
 * rather kill a process than refuse memory.  Huge pages come from a separate
 * pool.
 */
static bool
populate(uint8_t *base, uint64_t size, bool huge)
{
	for (uint64_t at = 0; at < size; at += STEP_SIZE)
	{
		uint64_t	step = size - at < STEP_SIZE ? size - at : STEP_SIZE;

		if (!huge && donor_memory_available() < left_free + atomic_load(&workers) * step)
		{
			errno = ENOMEM;
			return false;
		}
		if (madvise(base + at, step, MADV_POPULATE_WRITE) != 0)
			return false;
	}
	return true;
}

/*
 * Let the kernel take the memory from the NUMA node.  It takes it from another
 * one when that has none left: far memory is better than none.
 */
static void
prefer_node(uint8_t *base, uint64_t size)
{
	unsigned long mask[DONOR_MAX_NODE / (8 * sizeof(unsigned long)) + 1] = {0};
	const unsigned int bits = 8 * sizeof(mask[0]);

	if (numa_node < 0 || !can_bind)
		return;
	mask[(unsigned int) numa_node / bits] = 1UL << (unsigned int) numa_node % bits;
	if (syscall(SYS_mbind, base, size, MPOL_PREFERRED, mask, sizeof(mask) * 8, 0) != 0 &&
		atomic_exchange(&can_bind, false))
		rbp_log(RBP_LOG_WARNING, "could not prefer the memory of NUMA node %d: %s", numa_node,
				strerror(errno));
}

/* Create a memfd of the region's size, map it at base, and populate it. */
static int
make_memory(uint8_t *base, bool huge)
{
	uint64_t	size = donor_region_size;
	int			fd = memfd_create("remote_bp", MFD_CLOEXEC | MFD_ALLOW_SEALING |
								  (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0));

	if (fd < 0)
		return -1;
	if (ftruncate(fd, (off_t) size) != 0 ||
		fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
		mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
			 fd, 0) == MAP_FAILED)
	{
		close(fd);
		return -1;
	}
	/* what others keep there is nobody's to read in a core file */
	(void) madvise(base, size, MADV_DONTDUMP);
	if (!huge && huge_pages != DONOR_HUGE_OFF)
		(void) madvise(base, size, MADV_HUGEPAGE);
	prefer_node(base, size);
	if (!populate(base, size, huge))
	{
		int			save_errno = errno;

		/* give pages back, also those of a failed huge mapping */
		(void) mmap(base, size, PROT_NONE,
					MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
					-1, 0);
		close(fd);
		errno = save_errno;
		return -1;
	}
	if (donor_memory_locked && mlock(base, size) != 0 && atomic_exchange(&donor_memory_locked, false))
		rbp_log(RBP_LOG_WARNING,
				"memory is not locked: %s; raise RLIMIT_MEMLOCK (LimitMEMLOCK= in a unit) or the system may swap it out",
				strerror(errno));
	return fd;
}

/* Get memory for a region, of the best kind that is there and permitted. */
static bool
get_memory(RbpDonorRegion *region)
{
	region->huge = false;
	if (try_huge)
	{
		region->fd = make_memory(region->base, true);
		region->huge = region->fd >= 0;
	}
	if (region->fd < 0 && huge_pages != DONOR_HUGE_ON)
		region->fd = make_memory(region->base, false);
	return region->fd >= 0;
}

void
donor_memory_release(RbpDonorRegion *region)
{
	if (region->fd < 0)
		return;

	/*
	 * withdraw it from clients that mapped it, even if something else keeps
	 * it open
	 */
	if (ftruncate(region->fd, 0) != 0)
		rbp_log(RBP_LOG_ERROR, "could not withdraw region %u: %s",
				(unsigned) (region - donor_regions), strerror(errno));
	(void) mmap(region->base, donor_region_size, PROT_NONE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
	close(region->fd);
	region->fd = -1;
	atomic_store(&region->exposed, false);
}

bool
donor_memory_renew(RbpDonorRegion *region)
{
	/*
	 * Memory that nobody else has mapped need not be given back to the system
	 * and allocated again: a memset is cheaper, and cannot fail.
	 */
	if (region->fd >= 0 && !atomic_load(&region->exposed))
	{
		memset(region->base, 0, donor_region_size);
		return true;
	}
	donor_memory_release(region);
	return get_memory(region);
}

/*
 * Determine the total and available memory of the system, or of one of this
 * process's cgroups if that is less; UINT64_MAX if unknown.  A test can
 * substitute a file for the kernel's.
 */
static void
read_machine_memory(uint64_t *total, uint64_t *left_over)
{
	const char *meminfo = getenv("REMOTE_BP_TEST_MEMINFO");
	uint64_t	limit;
	uint64_t	used;
	char		dir[4096];
	bool		v2;

	if (meminfo == NULL)
		meminfo = "/proc/meminfo";
	if (!rbp_kernel_number("", meminfo, "MemTotal", total))
		*total = UINT64_MAX;
	if (!rbp_kernel_number("", meminfo, "MemAvailable", left_over))
		*left_over = UINT64_MAX;
	if (!rbp_kernel_cgroup(dir, sizeof(dir), &v2))
		return;

	/* each ancestor may have a limit, too */
	for (;;)
	{
		char	   *slash;

		if (rbp_kernel_number(dir, v2 ? "memory.max" : "memory.limit_in_bytes", NULL, &limit) &&
			rbp_kernel_number(dir, v2 ? "memory.current" : "memory.usage_in_bytes", NULL, &used))
		{
			uint64_t	left = used < limit ? limit - used : 0;
			uint64_t	cache;

			/* file cache is charged, but can be reclaimed */
			if (rbp_kernel_number(dir, "memory.stat", v2 ? "inactive_file" : "total_inactive_file", &cache))
				left += cache;
			if (rbp_kernel_number(dir, "memory.stat", v2 ? "active_file" : "total_active_file", &cache))
				left += cache;
			if (left < *left_over)
				*left_over = left;
			if (limit < *total)
				*total = limit;
		}
		slash = strrchr(dir, '/');
		if (slash == NULL || strlen(dir) <= strlen(RBP_CGROUP_ROOT) + (v2 ? 0 : strlen("/memory")))
			break;
		*slash = '\0';
	}
}

uint64_t
donor_memory_available(void)
{
	uint64_t	total;
	uint64_t	available;

	read_machine_memory(&total, &available);
	return available;
}

uint64_t
donor_memory_default_min_free(void)
{
	uint64_t	total;
	uint64_t	available;

	read_machine_memory(&total, &available);
	return total == UINT64_MAX ? 0 : total / FREE_PART;
}

/* Bytes available in the pool of huge pages for up to n regions. */
static uint64_t
pool_memory(uint64_t n, uint64_t region_size)
{
	uint64_t	pages;
	uint64_t	reserved;
	uint64_t	regions;

	if (huge_pages == DONOR_HUGE_OFF || region_size % HUGE_SIZE != 0 ||
		!rbp_kernel_number(HUGE_POOL, "free_hugepages", NULL, &pages) ||
		!rbp_kernel_number(HUGE_POOL, "resv_hugepages", NULL, &reserved) || reserved > pages)
		return 0;
	regions = (pages - reserved) * HUGE_SIZE / region_size;
	return (regions < n ? regions : n) * region_size;
}

/*
 * End the process if --memory is too much.  The system would hand it out, and
 * kill some process later.
 */
static void
check_memory_available(uint64_t memory, uint64_t from_pool)
{
	uint64_t	available = donor_memory_available();
	uint64_t	usable = available > left_free ? available - left_free : 0;
	char		wanted[32];
	char		there[32];
	char		left[32];

	if (available == UINT64_MAX || memory - from_pool <= usable)
		return;
	rbp_format_size(memory, wanted, sizeof(wanted));
	rbp_format_size(available, there, sizeof(there));
	rbp_format_size(left_free, left, sizeof(left));
	rbp_die("--memory is %s, but %s are available, and --min-free leaves %s of that to others; use --memory %lluMB or less",
			wanted, there, left, (unsigned long long) ((usable + from_pool) >> 20));
}

/* If memory runs out anyway, have this process killed and not the database. */
static void
volunteer_for_oom(void)
{
	int			fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
	char		text[16] = "";

	if (fd >= 0 && read(fd, text, sizeof(text) - 1) > 0 && atoi(text) < OOM_SCORE)
	{
		int			len = snprintf(text, sizeof(text), "%d", OOM_SCORE);

		if (pwrite(fd, text, (size_t) len, 0) != len)
			rbp_log(RBP_LOG_INFO, "could not raise oom_score_adj: %s", strerror(errno));
	}
	if (fd >= 0)
		close(fd);
}

/*
 * ---- start ---------------------------------------------------------------
 */

/* What threads do for all regions */
typedef struct Job
{
	bool		(*work) (uint32_t region, void *arg);
	void	   *arg;
	atomic_uint next;			/* region */
	atomic_bool failed;
	_Atomic int64_t told_at;	/* when systemd was told last */
} Job;

/* One for each 4 GB, and for each processor. */
static uint32_t
count_workers(void)
{
	uint64_t	n = 1 + donor_nregions * donor_region_size / WORKER_SIZE;
	long		cpus = sysconf(_SC_NPROCESSORS_ONLN);

	if (n > MAX_WORKERS)
		n = MAX_WORKERS;
	if (cpus > 0 && n > (uint64_t) cpus)
		n = (uint64_t) cpus;
	return n < donor_nregions ? (uint32_t) n : donor_nregions;
}

static void *
work_main(void *arg)
{
	Job		   *job = arg;
	uint32_t	region;

	while (!atomic_load(&job->failed) && (region = atomic_fetch_add(&job->next, 1)) < donor_nregions)
	{
		int64_t		told_at = atomic_load(&job->told_at);
		int64_t		now = rbp_now_ns();

		if (!job->work(region, job->arg))
			atomic_store(&job->failed, true);
		if (now - told_at > TELL_NS && atomic_compare_exchange_strong(&job->told_at, &told_at, now))
			sd_notify(0, "EXTEND_TIMEOUT_USEC=" EXTEND_USEC);
	}
	return NULL;
}

bool
donor_memory_for_each(bool (*work) (uint32_t region, void *arg), void *arg)
{
	Job			job = {.work = work,.arg = arg,.told_at = rbp_now_ns()};
	pthread_t	threads[MAX_WORKERS];
	uint32_t	n = count_workers();
	uint32_t	started = 1;

	/* this thread is one of them */
	while (started < n && pthread_create(&threads[started], NULL, work_main, &job) == 0)
		started++;
	(void) work_main(&job);
	for (uint32_t i = 1; i < started; i++)
		pthread_join(threads[i], NULL);
	return !atomic_load(&job.failed);
}

static uint32_t failed_region;
static atomic_int failed_errno;

static bool
get_first_memory(uint32_t i, void *arg)
{
	RbpDonorRegion *region = &donor_regions[i];
	int			none = 0;

	region->base = arena + (uint64_t) i * donor_region_size;
	region->state = DONOR_REGION_FREE;
	region->fd = -1;
	if (get_memory(region))
	{
		if (!region->huge)
			try_huge = false;	/* the others need not ask */
		return true;
	}
	if (atomic_compare_exchange_strong(&failed_errno, &none, errno))
		failed_region = i;
	return false;
}

bool
donor_memory_has_node(int node)
{
	char		path[64];

	/* a kernel that knows no nodes has one */
	if (node == 0 && access(NODES, F_OK) != 0)
		return true;
	snprintf(path, sizeof(path), NODES "/node%d", node);
	return access(path, F_OK) == 0;
}

/* Log how much memory is on the NUMA node, by the first page of each region. */
static void
log_node(void)
{
	void	  **pages = calloc(donor_nregions, sizeof(*pages));
	int		   *nodes = calloc(donor_nregions, sizeof(*nodes));
	uint32_t	n = 0;

	if (pages == NULL || nodes == NULL)
		rbp_die("out of memory");
	for (uint32_t i = 0; i < donor_nregions; i++)
		pages[i] = donor_regions[i].base;
	if (syscall(SYS_move_pages, 0, (unsigned long) donor_nregions, pages, NULL, nodes, 0) != 0)
		rbp_log(RBP_LOG_WARNING, "memory: could not see on which NUMA nodes it is: %s",
				strerror(errno));
	else
	{
		for (uint32_t i = 0; i < donor_nregions; i++)
			n += nodes[i] == numa_node;
		rbp_log(n == donor_nregions ? RBP_LOG_INFO : RBP_LOG_WARNING,
				"memory: %u of %u regions are on NUMA node %d", n, donor_nregions, numa_node);
	}
	free(pages);
	free(nodes);
}

/* Append "SIZE in KIND, " to text[len], unless the size is 0. */
static void
append_kind(char *text, size_t len, uint64_t bytes, const char *kind)
{
	size_t		have = strlen(text);
	char		size[32];

	if (bytes > 0)
		snprintf(text + have, len - have, "%s in %s, ",
				 rbp_format_size(bytes, size, sizeof(size)), kind);
}

/* Log how much memory there is, in which pages, and how to get better ones. */
static void
log_memory(void)
{
	uint64_t	all = donor_nregions * donor_region_size;
	uint64_t	huge = nhuge * donor_region_size;
	uint64_t	transparent = 0;
	uint64_t	plain;
	char		total[32];
	char		each[32];
	char		kinds[160] = "";

	/* whatever else is shared memory of this process is not in huge pages */
	(void) rbp_kernel_number("/proc/self", "smaps_rollup", "ShmemPmdMapped", &transparent);
	plain = all - huge > transparent ? all - huge - transparent : 0;
	append_kind(kinds, sizeof(kinds), huge, "huge pages");
	append_kind(kinds, sizeof(kinds), transparent, "transparent huge pages");
	append_kind(kinds, sizeof(kinds), plain, "plain pages");
	rbp_log(RBP_LOG_INFO, "memory: %s in %u regions of %s, %s%s",
			rbp_format_size(all, total, sizeof(total)), donor_nregions,
			rbp_format_size(donor_region_size, each, sizeof(each)), kinds,
			donor_memory_locked ? "locked" : "not locked");
	if (plain == 0 || huge_pages == DONOR_HUGE_OFF)
		return;
	if (donor_region_size % HUGE_SIZE != 0)
		rbp_log(RBP_LOG_INFO, "memory: huge pages need a --region-size that is a multiple of 2 MB");
	else
		rbp_log(RBP_LOG_INFO,
				"memory: to have it all in huge pages, reserve %llu more of them (vm.nr_hugepages), or set " SHMEM_ENABLED " to \"advise\"",
				(unsigned long long) (plain / HUGE_SIZE));
}

/* End the process: a region's memory could not be had. */
static void
die_without_memory(void)
{
	int			error = atomic_load(&failed_errno);
	char		hint[128] = "";

	if (huge_pages == DONOR_HUGE_ON)
		snprintf(hint, sizeof(hint), "; --huge-pages is on, and needs %llu free huge pages of 2 MB (vm.nr_hugepages)",
				 (unsigned long long) (donor_nregions * donor_region_size / HUGE_SIZE));
	else if (error == ENOMEM)
		snprintf(hint, sizeof(hint), "; the machine would have less left than --min-free");
	rbp_die("could not get memory for region %u of %u: %s%s", failed_region, donor_nregions,
			strerror(error), hint);
}

void
donor_memory_init(uint64_t memory, uint64_t region_size, uint64_t min_free,
				  RbpDonorHugePages huge, int node)
{
	struct sigaction bus = {.sa_sigaction = on_sigbus,.sa_flags = SA_SIGINFO | SA_NODEFER};
	struct rlimit rl;
	uint64_t	n = memory / region_size;

	if (n == 0)
		rbp_die("--memory is less than one region");
	if (n > RBP_DONOR_MAX_REGIONS)
		rbp_die("too many regions; use a larger --region-size");
	donor_region_size = region_size;
	donor_nregions = (uint32_t) n;
	left_free = min_free;
	huge_pages = huge;
	volunteer_for_oom();
	check_memory_available(n * region_size, pool_memory(n, region_size));

	/* one file for each region, and some for connections */
	if (getrlimit(RLIMIT_NOFILE, &rl) == 0)
	{
		rl.rlim_cur = rl.rlim_max;
		(void) setrlimit(RLIMIT_NOFILE, &rl);
		if (rl.rlim_cur != RLIM_INFINITY && rl.rlim_cur < n + 256)
			rbp_die("%llu regions need more open files than RLIMIT_NOFILE (%llu) allows",
					(unsigned long long) n, (unsigned long long) rl.rlim_cur);
	}
	/* lock as much memory as allowed; root can always raise the limit */
	rl.rlim_cur = rl.rlim_max = RLIM_INFINITY;
	if (setrlimit(RLIMIT_MEMLOCK, &rl) != 0 && getrlimit(RLIMIT_MEMLOCK, &rl) == 0)
	{
		rl.rlim_cur = rl.rlim_max;
		(void) setrlimit(RLIMIT_MEMLOCK, &rl);
	}

	donor_regions = calloc(n, sizeof(RbpDonorRegion));
	arena_size = n * region_size + HUGE_SIZE;
	arena = mmap(NULL, arena_size, PROT_NONE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (donor_regions == NULL || arena == MAP_FAILED)
		rbp_die("could not reserve address space: %s", strerror(errno));
	arena = (uint8_t *) (((uintptr_t) arena + HUGE_SIZE - 1) & ~(uintptr_t) (HUGE_SIZE - 1));
	arena_size = n * region_size;
	sigaction(SIGBUS, &bus, NULL);

	try_huge = huge != DONOR_HUGE_OFF && region_size % HUGE_SIZE == 0;
	numa_node = node;
	atomic_store(&workers, count_workers());
	if (!donor_memory_for_each(get_first_memory, NULL))
		die_without_memory();
	atomic_store(&workers, 1);
	for (uint32_t i = 0; i < donor_nregions; i++)
		nhuge += donor_regions[i].huge;
	try_huge = nhuge > 0;

	log_memory();
	if (numa_node >= 0)
		log_node();
}
