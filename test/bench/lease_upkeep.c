/*-------------------------------------------------------------------------
 *
 * lease_upkeep.c
 *	  What the upkeep of a lease costs on a large tier: grant, renewal, giving
 *	  back, the views.
 *
 *	lease_upkeep DONORS REGIONS REGION_GB PAGES
 *
 * Leases REGIONS regions of each donor, which do not exist, and puts PAGES
 * pages into the directory.  What is measured is the directory and remote
 * as they are, in one process, with locks that nobody else wants.  Writes
 * "METRIC VALUE" lines: milliseconds, but for "..._steps" and "memory_mb".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "mock_server.h"
#include "base/geometry.h"
#include "buffer/directory.h"
#include "buffer/page.h"
#include "remote/remote.h"
#include "remote/remote_internal.h"
#include "transport/transport.h"

#include "tap.h"

#define STAGING		1024

static RbpDirectory *dir;
static RbpRegionGrant *grants;
static RbpEndpoint endpoints[RBP_MAX_DONORS];
static RbpCredentials cred;
static int	ndonors;
static int	nregions;

static double
now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double) ts.tv_sec * 1e3 + (double) ts.tv_nsec / 1e6;
}

/* The buffer tier's operations, as src/buffer/extents.c has them; nothing is moved. */
static uint64
region_heat(uint32 region, uint64 *used)
{
	return rbp_directory_heat(dir, region, used);
}

static uint32
drop_extents(uint32 *extents, uint32 n)
{
	rbp_directory_drop_extents(dir, extents, n);
	return n;
}

static const RbpRemotePoolOps ops = {
	.heat = region_heat,
	.drop = drop_extents,
};

/* Memory of zeros that is there when it is written. */
static void *
lazy_memory(size_t size)
{
	void	   *mem = mmap(NULL, size, PROT_READ | PROT_WRITE,
						   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (mem == MAP_FAILED)
	{
		perror("mmap");
		exit(1);
	}
	return mem;
}

static void
tell(const char *metric, double value)
{
	printf("%s %.3f\n", metric, value);
}

/* All steps that are due: how many, and how long the longest and all took. */
static void
tend(const char *what)
{
	char		name[64];
	double		longest = 0;
	double		sum = 0;
	int			steps = 0;
	int			unused;
	bool		more = true;

	while (more)
	{
		double		start = now_ms();
		double		took;

		more = rbp_remote_run_deferred(RBP_POOL_BUFFER, 0, &unused);
		took = now_ms() - start;
		longest = Max(longest, took);
		sum += took;
		steps++;
	}
	snprintf(name, sizeof(name), "%s_steps", what);
	tell(name, steps);
	snprintf(name, sizeof(name), "%s_longest_step", what);
	tell(name, longest);
	snprintf(name, sizeof(name), "%s_all_steps", what);
	tell(name, sum);
}

static void
set_lease(const char *what)
{
	double		start = now_ms();
	const RbpLeaseTerms terms = {
		.cred = &cred,.deadline_ns = mock_now + 3600000 * MS,.donors = endpoints,
		.ndonors = ndonors,.regions = grants,.nregions = nregions
	};
	int			unused = rbp_remote_set_lease(RBP_POOL_BUFFER, &terms);

	tell(what, now_ms() - start);
	if (unused != 0)
	{
		printf("%d regions found no room\n", unused);
		exit(1);
	}
}

static void
put_pages(uint32 n)
{
	for (uint32 i = 0; i < n; i++)
	{
		RbpPageId	page = {.rel = 16384,.block = i,.space = 1,.fork = 0};
		RbpPageRef	ref = rbp_page_ref(&page);
		RbpVersion	version = {.hash = i};
		RbpEvicted	evicted;
		uint32		slot;

		rbp_directory_note_version(dir, &ref, &version);
		if (rbp_directory_insert_staged(dir, &ref, &version, 0) != RBP_INSERTED)
			exit(1);
		slot = rbp_directory_reserve(dir, &page, &evicted);
		if (slot == RBP_INVALID_SLOT ||
			rbp_directory_publish(dir, &page, 0, slot, true) != RBP_INSERTED)
			exit(1);
	}
}

/* Three donors get two regions each back; some of them may have pages. */
static void
give_back(const char *what)
{
	double		longest = 0;

	for (int d = 0; d < Min(ndonors, 3); d++)
	{
		RbpRegionGrant given[2];
		double		start = now_ms();

		if (rbp_remote_retire_coldest(RBP_POOL_BUFFER, endpoints[d].donor, 2, given,
									  mock_now, 0).given != 2)
			exit(1);
		longest = Max(longest, now_ms() - start);
	}
	tell(what, longest);
}

static void
views(const char *with)
{
	char		name[64];
	double		start = now_ms();
	int			n;

	free(rbp_remote_lease_info(&n));
	snprintf(name, sizeof(name), "leases_%s", with);
	tell(name, now_ms() - start);
	start = now_ms();
	free(rbp_remote_donor_info(&n));
	snprintf(name, sizeof(name), "donors_%s", with);
	tell(name, now_ms() - start);
}

int
main(int argc, char **argv)
{
	uint32		extents[RBP_POOLS] = {0, 128};
	const RbpRemotePoolOps *const both[RBP_POOLS] = {&ops, &ops};
	uint64		gb = argc == 5 ? strtoull(argv[3], NULL, 10) : 0;
	uint32		pages = argc == 5 ? (uint32) strtoul(argv[4], NULL, 10) : 0;
	struct rusage usage;
	uint64		slots;
	double		start;

	if (argc == 5)
		ndonors = Min(atoi(argv[1]), RBP_MAX_DONORS);
	nregions = argc == 5 ? ndonors * atoi(argv[2]) : 0;
	slots = (uint64) nregions * gb * 1024 * RBP_EXTENT_PAGES;
	if (slots == 0 || slots > UINT64_C(1) << 31)
	{
		fprintf(stderr, "usage: lease_upkeep DONORS REGIONS REGION_GB PAGES (16 TB at most)\n");
		return 2;
	}
	extents[RBP_POOL_BUFFER] = (uint32) (slots / RBP_EXTENT_PAGES);

	start = now_ms();
	rbp_remote_shmem_open(lazy_memory(rbp_remote_shmem_size(extents)), false,
						  extents, both);
	dir = rbp_directory_open(lazy_memory(rbp_directory_size((uint32) slots, STAGING, 0)), false,
							 rbp_remote_extents(RBP_POOL_BUFFER), STAGING, 0, 0);
	tell("start", now_ms() - start);

	cred = mock_credentials(1);
	grants = calloc(nregions, sizeof(*grants));
	for (int i = 0; i < nregions; i++)
	{
		snprintf(grants[i].donor, sizeof(grants[i].donor), "donor%d", i % ndonors);
		grants[i].region = (uint32) (i / ndonors);
		grants[i].bytes = gb << 30;
	}
	for (int d = 0; d < ndonors; d++)
		snprintf(endpoints[d].donor, sizeof(endpoints[d].donor), "donor%d", d);

	set_lease("grant");
	tend("grant");
	set_lease("renewal_empty");
	views("empty");
	give_back("reclaim_empty");
	tend("forget_empty");
	set_lease("grant_again");
	tend("grant_again");

	put_pages(pages);
	set_lease("renewal_filled");
	views("filled");
	give_back("reclaim_filled");
	tend("forget_filled");
	set_lease("grant_after");
	tend("grant_after");

	getrusage(RUSAGE_SELF, &usage);
	tell("memory_mb", (double) usage.ru_maxrss / 1024);
	return 0;
}
