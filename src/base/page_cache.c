/*-------------------------------------------------------------------------
 *
 * page_cache.c
 *	  Ask the operating system's page cache whether it has parts of a file.
 *
 * cachestat(2), since Linux 6.5, counts the cached pages in a range of a
 * file.  On older kernels, mincore(2) answers for a mapping.  A whole segment
 * is mapped at the first question and never touched, so that the mapping
 * takes address space but no memory.  It is unmapped when the file is closed,
 * because a mapping would keep the file's blocks allocated after its unlink.
 * preadv2() with RWF_NOWAIT would answer too, but it starts a read of the
 * disk for each page that is not cached.
 *
 * The method is chosen by trying both on a file of the data directory that
 * was just read: the kernel, or the confinement of a container, may refuse
 * one of them, and on some stacked file systems cachestat() examines the
 * wrong cache.  Each open file is tested, too: after our first read of it, we
 * ask about the block that was read.  If the answer is "not cached", the file
 * system cannot answer, and we do not ask about this file again.  Before the
 * test, "not cached" is not trusted.  "Cached" is always right, and makes the
 * test unnecessary.
 *
 * Refaults are reads of pages that the page cache had and gave up not long
 * ago (Documentation/mm/workingset in the kernel).  memory.stat has their
 * number for a control group of either version, /proc/vmstat that of the host.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "miscadmin.h"

#include "base/choice.h"
#include "base/geometry.h"
#include "base/page_cache.h"
#include "common/clock.h"
#include "common/kernel.h"

/* The number is the same on all architectures; libc's headers may be older */
#ifndef SYS_cachestat
#define SYS_cachestat			451
#endif

#define SEGMENT_BYTES			((Size) RELSEG_SIZE * BLCKSZ)

#define REFAULTS				"workingset_refault_file"

/* Fewer refaults per second than this are ignored; there are always some */
#define REFAULTS_MIN			16
#define LOOK_EVERY_NS			INT64CONST(2000000000)

/* How long after refaults the page cache is assumed not to keep its pages */
#define CALM_NS					INT64CONST(60000000000)
#define CALM_MAX_NS				INT64CONST(3600000000000)

/* A method; see rbp_page_cache_ask(). */
typedef bool (*AskMethod) (int fd, RbpCacheView *view, off_t offset, int n, bool *cached);

static AskMethod method = NULL;
static Size os_page = 4096;

/* Number of memory pages that the range [from, to) touches. */
static inline uint64
pages_of(off_t from, off_t to)
{
	return ((uint64) to + os_page - 1) / os_page - (uint64) from / os_page;
}

/* Number of cached memory pages in the range, or -1 on error. */
static int64
count_cached(int fd, off_t offset, Size len)
{
	/*
	 * struct cachestat_range and struct cachestat, whose first member is
	 * nr_cache
	 */
	const uint64 range[2] = {(uint64) offset, len};
	uint64		counts[5] = {0};

	return syscall(SYS_cachestat, (unsigned) fd, range, counts, 0U) != 0 ? -1 : (int64) counts[0];
}

static bool
ask_cachestat(int fd, RbpCacheView *view, off_t offset, int n, bool *cached)
{
	Size		len = (Size) n * BLCKSZ;
	int64		count = count_cached(fd, offset, len);

	if (count < 0)
		return false;
	if (n > 1 && count > 0 && count < (int64) pages_of(offset, offset + len))
	{
		/* some are cached: ask for each block */
		for (int i = 0; i < n; i++)
			if (!ask_cachestat(fd, view, offset + (off_t) i * BLCKSZ, 1, &cached[i]))
				return false;
		return true;
	}
	for (int i = 0; i < n; i++)
		cached[i] = count == (int64) pages_of(offset, offset + len);
	return true;
}

static bool
ask_mincore(int fd, RbpCacheView *view, off_t offset, int n, bool *cached)
{
	/* one page more at each end, where pages are larger than blocks */
	unsigned char vec[RBP_MAX_BATCH * (BLCKSZ / 4096) + 2];
	Size		from = (Size) offset / os_page * os_page;
	Size		to = (Size) offset + (Size) n * BLCKSZ;

	if (to > SEGMENT_BYTES)
		return false;
	if (view->map == NULL)
	{
		void	   *map = mmap(NULL, SEGMENT_BYTES, PROT_READ,
							   MAP_SHARED | MAP_NORESERVE, fd, 0);

		if (map == MAP_FAILED)
			return false;
		view->map = map;
	}
	if (mincore((char *) view->map + from, to - from, vec) != 0)
		return false;
	for (int i = 0; i < n; i++)
	{
		Size		start = (Size) offset + (Size) i * BLCKSZ;

		cached[i] = true;
		for (Size page = start / os_page; page * os_page < start + BLCKSZ; page++)
			cached[i] &= (vec[page - from / os_page] & 1) != 0;
	}
	return true;
}

static bool
ask_by(AskMethod how, int fd, RbpCacheView *view, off_t offset, int n,
	   bool *cached)
{
	int			save_errno = errno;
	bool		told = how != NULL && how(fd, view, offset, n, cached);

	errno = save_errno;
	return told;
}

/*
 * May we call cachestat()?  A system call filter may kill the process for a
 * call that is newer than the filter, so let a child try.
 */
static bool
call_is_allowed(int fd)
{
	int			status = 0;
	pid_t		pid = fork();

	if (pid == 0)
	{
		(void) count_cached(fd, 0, os_page);
		_exit(0);
	}
	if (pid < 0)
		return false;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return false;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/*
 * Is address space limited?  If so, do not use it up for mappings of
 * segments.
 */
static bool
address_space_is_limited(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

void
rbp_page_cache_init(void)
{
	static const AskMethod methods[] = {ask_cachestat, ask_mincore};
	long		page = sysconf(_SC_PAGESIZE);
	char		path[MAXPGPATH];
	PGAlignedBlock block;
	int			fd;

	if (page >= 4096)
		os_page = (Size) page;

	/* any file that always exists and has a block will do */
	snprintf(path, sizeof(path), "%s/global/pg_control", DataDir);
	/* like a relation file: the kernel may tell nothing if it is only read */
	fd = open(path, O_RDWR | PG_BINARY);
	if (fd < 0)
		return;
	for (int i = 0; method == NULL && i < lengthof(methods); i++)
	{
		RbpCacheView view = {0};
		bool		cached = false;

		if (pread(fd, block.data, BLCKSZ, 0) == BLCKSZ &&
			(methods[i] == ask_cachestat ? call_is_allowed(fd) : !address_space_is_limited()) &&
			ask_by(methods[i], fd, &view, 0, 1, &cached) && cached)
			method = methods[i];
		rbp_page_cache_forget(&view);
	}
	(void) close(fd);
}

const char *
rbp_page_cache_method(void)
{
	return method == ask_cachestat ? "cachestat" : method == ask_mincore ? "mincore" : "none";
}

bool
rbp_page_cache_ask(int fd, RbpCacheView *view, off_t offset, int n,
				   bool *cached)
{
	if (view->tested && !view->reliable)
		return false;
	if (!ask_by(method, fd, view, offset, n, cached))
	{
		/* do not try again for each page */
		view->tested = true;
		view->reliable = false;
		return false;
	}
	/* one "cached" proves that the file system can answer */
	for (int i = 0; i < n && !view->tested; i++)
		if (cached[i])
			view->tested = view->reliable = true;
	/* without one, we do not know yet, so the answer is not used */
	return view->reliable;
}

void
rbp_page_cache_learn(int fd, RbpCacheView *view, off_t offset)
{
	bool		cached = false;

	if (likely(view->tested))
		return;
	view->tested = true;
	view->reliable = ask_by(method, fd, view, offset, 1, &cached) && cached;
}

void
rbp_page_cache_forget(RbpCacheView *view)
{
	if (view->map != NULL)
		(void) munmap(view->map, SEGMENT_BYTES);
	memset(view, 0, sizeof(*view));
}

int
rbp_page_cache_file_system(int fd, int *known)
{
	struct stat st;

	if (unlikely(*known == 0))
		*known = 1 + rbp_choice_file_system(fstat(fd, &st) == 0 ? (uint64) st.st_dev : 0);
	return *known - 1;
}

/*
 * Find the file with the refault count of our control group, or else of the host:
 * sets its directory, and returns its name.
 */
static const char *
find_refaults(char *dir, Size len)
{
	uint64		unused;
	bool		v2;

	if (rbp_kernel_cgroup(dir, len, &v2))
	{
		if (rbp_kernel_number(dir, "memory.stat", REFAULTS, &unused))
			return "memory.stat";
		/* in a container, the path may be the one outside: use the root */
		strlcpy(dir, v2 ? RBP_CGROUP_ROOT : RBP_CGROUP_ROOT "/memory", len);
		if (rbp_kernel_number(dir, "memory.stat", REFAULTS, &unused))
			return "memory.stat";
	}
	strlcpy(dir, "/proc", len);
	return "vmstat";
}

bool
rbp_page_cache_refaults(uint64 *count)
{
	static char dir[MAXPGPATH];
	static const char *file = NULL;

	if (file == NULL)
		file = find_refaults(dir, sizeof(dir));
	return rbp_kernel_number(dir, file, REFAULTS, count);
}

int64
rbp_page_cache_watch(void)
{
	static int64 looked_at = 0;
	static int64 keeps_from = 0;	/* time */
	static int64 calm = CALM_NS;
	static uint64 before = 0;
	int64		now = rbp_now_ns();
	uint64		refaults = 0;

	if (looked_at != 0 && now - looked_at < LOOK_EVERY_NS)
		return -1;
	/* the first reading has nothing to compare with */
	if (!rbp_page_cache_refaults(&refaults) ||
		(looked_at != 0 &&
		 (int64) (refaults - before) * 1000 >= REFAULTS_MIN * ((now - looked_at) / 1000000)))
	{
		/* exponential backoff: our use of the page cache may be the reason */
		if (rbp_choice_cache_keeps())
			calm = now - keeps_from > calm ? CALM_NS : Min(calm * 2, CALM_MAX_NS);
		keeps_from = now + calm;
	}
	rbp_choice_set_cache_keeps(method != NULL && looked_at != 0 && now >= keeps_from);
	looked_at = now;
	before = refaults;
	return -1;
}
