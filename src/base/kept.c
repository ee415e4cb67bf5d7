/*-------------------------------------------------------------------------
 *
 * kept.c
 *	  Memory that is kept over the crash of a backend.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>

#include "port/atomics.h"
#include "storage/pg_shmem.h"

#include "base/kept.h"
#include "base/layout.h"

/* At the beginning of the mapping; all zeros at first */
typedef struct Header
{
	pg_atomic_uint32 discard;	/* at the next crash */
	char		why[128];		/* written by who has set that */
	pg_atomic_uint32 changing;	/* see rbp_kept_changing() */
} Header;

static Header *header = NULL;	/* NULL if no memory is kept */

static const char half_changed[] = "the lease worker was killed in the middle of a change";

/*
 * Map memory as the server maps its own: of huge pages where huge_pages says so.
 * Returns NULL, with errno set, if there is none.  *size is rounded up.
 */
static void *
map(Size *size)
{
	void	   *mem = MAP_FAILED;
	const int	flags = MAP_SHARED | MAP_ANONYMOUS;

	if (huge_pages == HUGE_PAGES_ON || huge_pages == HUGE_PAGES_TRY)
	{
		Size		page = 0;
		int			huge_flags = 0;
		Size		rounded;

		GetHugePageSize(&page, &huge_flags);
		rounded = page > 0 ? TYPEALIGN(page, *size) : *size;
		if (page > 0)
			mem = mmap(NULL, rounded, PROT_READ | PROT_WRITE, flags | huge_flags, -1, 0);
		if (mem != MAP_FAILED)
			*size = rounded;
	}
	if (mem == MAP_FAILED && huge_pages != HUGE_PAGES_ON)
		mem = mmap(NULL, *size, PROT_READ | PROT_WRITE, flags, -1, 0);
	return mem == MAP_FAILED ? NULL : mem;
}

void *
rbp_kept_memory(Size size, bool *found, const char **why)
{
	static Size mapped;
	const Size	offset = rbp_align_line(sizeof(Header));

	*found = header != NULL;
	*why = NULL;
	if (header == NULL)
	{
		mapped = add_size(size, offset);
		header = map(&mapped);
		if (header == NULL)
			ereport(FATAL,
					(errmsg("remote_bp: could not map %zu bytes of shared memory: %m", mapped),
					 errhint("Lower remote_bp.buffer_tier_max_size or change huge_pages.")));

		/*
		 * a core dump of what donors have, and of a lease's secret, helps
		 * nobody
		 */
		(void) madvise(header, mapped, MADV_DONTDUMP);
	}
	else if (rbp_kept_discarded() != NULL)
	{
		static char told[sizeof(header->why)];

		strlcpy(told, rbp_kept_discarded(), sizeof(told));
		*why = told;
		*found = false;
		/* all children have ended but the logger, which has the mapping, too */
		if (madvise(header, mapped, MADV_REMOVE) != 0)
			memset(header, 0, mapped);
	}
	return (char *) header + offset;
}

void
rbp_kept_discard(const char *why)
{
	uint32		none = 0;

	if (header != NULL && pg_atomic_read_u32(&header->discard) == 0 &&
		pg_atomic_compare_exchange_u32(&header->discard, &none, 1))
		strlcpy(header->why, why, sizeof(header->why));
}

const char *
rbp_kept_discarded(void)
{
	if (header == NULL)
		return "nothing is kept";
	if (pg_atomic_read_u32(&header->discard) != 0)
		return header->why;
	return pg_atomic_read_u32(&header->changing) != 0 ? half_changed : NULL;
}

void
rbp_kept_changing(bool begins)
{
	/* in order, also if the process is killed in between */
	pg_compiler_barrier();
	if (header != NULL)
		pg_atomic_write_u32(&header->changing, begins);
	pg_compiler_barrier();
}
