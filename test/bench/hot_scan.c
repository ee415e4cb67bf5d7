/*-------------------------------------------------------------------------
 *
 * hot_scan.c
 *	  What a scan for hot pages takes on a large tier, whose memory is not there.
 *
 *	hot_scan PAGES
 *
 * Half of the pages were read in the tier.  Writes "METRIC VALUE" lines, of CPU time.  What the scan
 * needs of the server is little; the rest of the two sources is left out by the linker.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "base/injection_point.h"
#include "buffer/buffer_internal.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#define STAGING			1024

#undef CHECK_FOR_INTERRUPTS
#undef RBP_INJECTION_POINT
#undef elog
#define CHECK_FOR_INTERRUPTS()		((void) 0)
#define RBP_INJECTION_POINT(name)	(0)
#define elog(level, ...)			abort()
#define palloc(size)				malloc(size)
#define palloc0(size)				calloc(1, size)
#define pfree(p)					free(p)
#define MemoryContextAllocHuge(context, size)				malloc(size)
#define MemoryContextAllocZero(context, size)				calloc(1, size)
#define MemoryContextAllocExtended(context, size, flags)	calloc(1, size)
#define rbp_staging_slots(staging)	STAGING
#define rbp_space_resolve(space, spc, db)	((*(spc) = *(db) = (space)) != 0)

#include "buffer/hot_pages.c"
#include "buffer/views.c"

#include "directory_check.h"

const char *rbp_injection_point = "";
RbpDirectory *rbp_dir = NULL;

static void
put_page(uint32 block)
{
	RbpPageId	page = {.rel = 16384,.block = block,.space = 1};
	RbpVersion	version = {.hash = block};
	RbpEvicted	evicted;
	uint32		slot;

	rbp_directory_note_version(rbp_dir, REF(&page), &version);
	if (rbp_directory_insert_staged(rbp_dir, REF(&page), &version, 0) != RBP_INSERTED ||
		(slot = rbp_directory_reserve(rbp_dir, &page, &evicted)) == RBP_INVALID_SLOT ||
		rbp_directory_publish(rbp_dir, &page, 0, slot, true) != RBP_INSERTED)
		abort();
	if (block % 2 == 0)
		(void) rbp_directory_lookup(rbp_dir, REF(&page), true);
}

int
main(int argc, char **argv)
{
	uint32		n = argc == 2 ? (uint32) strtoul(argv[1], NULL, 10) : 0;
	uint32		extents = n / RBP_EXTENT_PAGES * 21 / 20 + 2;
	uint32		slots = extents * RBP_EXTENT_PAGES;
	void	   *mem = mmap(NULL, rbp_directory_size(slots, STAGING, 0), PROT_READ | PROT_WRITE,
						   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	HotScan		scan = {.complete = true};
	clock_t		began;
	double		ms;
	int			parts;

	rbp_dir = directory_init(mem, slots, STAGING, 0);
	for (uint32 i = 0; i < extents; i++)
		directory_extent_online(rbp_dir, i, 0);
	for (uint32 i = 0; i < n; i++)
		put_page(i);

	began = clock();
	scan.parts = parts_create(NULL, 1024, NULL);
	rbp_for_each_page(note_in_tier, &scan);
	(void) sorted_parts(&scan, &parts);
	ms = (double) (clock() - began) * 1000 / CLOCKS_PER_SEC;
	printf("scan_ms %.3f\nns_per_page %.1f\nparts %d\n", ms, ms * 1e6 / n, parts);
	return 0;
}
