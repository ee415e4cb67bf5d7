/*-------------------------------------------------------------------------
 *
 * test_kept.c
 *	  Memory that is kept over a crash: of which pages it is mapped, what is discarded,
 *	  and that nothing of that is left.
 *
 * The system's calls are the test's: a machine with and without huge pages.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <setjmp.h>
#include <stdlib.h>
#include <sys/mman.h>

static void *test_mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset);
static int	test_madvise(void *at, size_t len, int advice);

#define mmap(at, len, prot, flags, fd, offset)	test_mmap(at, len, prot, flags, fd, offset)
#define madvise(at, len, advice)				test_madvise(at, len, advice)

#include "base/kept.c"

#undef mmap
#undef madvise

#include "tap.h"

#define HUGE_SIZE		((Size) 2 << 20)
#define HUGE_FLAGS		(MAP_HUGETLB | 21 << MAP_HUGE_SHIFT)
#define SIZE			((Size) 5 << 20)

int			huge_pages;
static bool has_huge;			/* there are enough of them */
static bool knows_huge;			/* the system knows what they are */
static bool remove_fails;
static int	nmapped;
static void *mapped;
static size_t mapped_bytes;
static int	mapped_flags;
static size_t removed_bytes;
static size_t undumped_bytes;
static jmp_buf fatal;

bool
errstart(int elevel, const char *domain)
{
	return false;
}

bool
errstart_cold(int elevel, const char *domain)
{
	longjmp(fatal, 1);
}

void
errfinish(const char *filename, int lineno, const char *funcname)
{
}

int
errmsg(const char *fmt,...)
{
	return 0;
}

int
errhint(const char *fmt,...)
{
	return 0;
}

void
GetHugePageSize(Size *size, int *flags)
{
	*size = knows_huge ? HUGE_SIZE : 0;
	*flags = knows_huge ? HUGE_FLAGS : 0;
}

static void *
test_mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
	if ((flags & MAP_HUGETLB) != 0 && (!has_huge || len % HUGE_SIZE != 0))
	{
		errno = has_huge ? EINVAL : ENOMEM;
		return MAP_FAILED;
	}
	nmapped++;
	mapped_bytes = len;
	mapped_flags = flags;
	mapped = mmap(at, len, prot, flags & ~HUGE_FLAGS, fd, offset);
	return mapped;
}

static int
test_madvise(void *at, size_t len, int advice)
{
	if (at != mapped)
		return -1;
	if (advice == MADV_DONTDUMP)
		undumped_bytes = len;
	if (advice == MADV_REMOVE)
	{
		removed_bytes = len;
		if (remove_fails)
			return -1;
	}
	return madvise(at, len, advice);
}

/* Another server, which has no memory yet. */
static void
begin(int setting, bool has, bool knows)
{
	if (header != NULL)
		munmap(header, mapped_bytes);
	header = NULL;
	huge_pages = setting;
	has_huge = has;
	knows_huge = knows;
	nmapped = mapped_flags = 0;
	undumped_bytes = removed_bytes = 0;
}

/* Its memory, or NULL if it does not start. */
static char *
get(void)
{
	bool		found = true;
	const char *why = "";
	char	   *mem;

	if (setjmp(fatal) != 0)
		return NULL;
	mem = rbp_kept_memory(SIZE, &found, &why);
	ok(!found && why == NULL, "the first time, nothing is found");
	return mem;
}

static bool
is_zero(const char *mem)
{
	for (Size i = 0; i < SIZE; i++)
		if (mem[i] != 0)
			return false;
	return true;
}

static void
test_pages(void)
{
	char	   *mem;

	begin(HUGE_PAGES_ON, true, true);
	mem = get();
	ok(mem != NULL && (mapped_flags & HUGE_FLAGS) == HUGE_FLAGS, "huge_pages = on: of huge pages");
	is_u64(mapped_bytes, 3 * HUGE_SIZE, "of a whole number of them");
	is_u64(undumped_bytes, mapped_bytes, "none of it is dumped");
	ok((uintptr_t) mem % RBP_CACHE_LINE == 0 && mem + SIZE <= (char *) mapped + mapped_bytes, "the memory is within");

	begin(HUGE_PAGES_ON, false, true);
	ok(get() == NULL && nmapped == 0, "without enough of them the server does not start");
	begin(HUGE_PAGES_ON, false, false);
	ok(get() == NULL && nmapped == 0, "nor where the system has none");
	begin(HUGE_PAGES_TRY, true, true);
	ok(get() != NULL && (mapped_flags & MAP_HUGETLB) != 0, "huge_pages = try: of huge pages");
	begin(HUGE_PAGES_TRY, false, true);
	ok(get() != NULL && mapped_flags == (MAP_SHARED | MAP_ANONYMOUS), "without enough of them, of others");
	ok(mapped_bytes < SIZE + 4096, "and no more than needed");
	begin(HUGE_PAGES_TRY, true, false);
	ok(get() != NULL && (mapped_flags & MAP_HUGETLB) == 0, "likewise where the system has none");
	begin(HUGE_PAGES_OFF, true, true);
	ok(get() != NULL && (mapped_flags & MAP_HUGETLB) == 0, "huge_pages = off: of others");
}

/* After a crash: is it as it was (NULL), or discarded, for that reason? */
static void
crash(char *mem, const char *expected, const char *what)
{
	bool		found;
	const char *why;
	char	   *again;

	memset(mem, 7, SIZE);
	again = rbp_kept_memory(SIZE, &found, &why);
	ok(again == mem && nmapped == 1, "%s: the memory is where it was", what);
	if (expected == NULL)
	{
		ok(found && why == NULL && mem[0] == 7 && mem[SIZE - 1] == 7, "%s: as it was", what);
		is_u64(removed_bytes, 0, "%s: nothing is given back", what);
		return;
	}
	ok(!found && why != NULL && strcmp(why, expected) == 0, "%s: discarded: %s", what, why != NULL ? why : "");
	ok(is_zero(mem), "%s: it is all zeros", what);
	is_u64(removed_bytes, mapped_bytes, "%s: all is given back", what);
	ok(rbp_kept_discarded() == NULL, "%s: nothing more is to be discarded", what);
	removed_bytes = 0;
}

static void
test_discarded(bool huge)
{
	char	   *mem;

	begin(HUGE_PAGES_TRY, huge, true);
	ok(rbp_kept_discarded() != NULL, "without memory nothing is kept");
	rbp_kept_discard("too early");
	rbp_kept_changing(true);
	rbp_kept_changing(false);
	mem = get();
	ok(is_zero(mem) && rbp_kept_discarded() == NULL, "memory is zero at first");
	crash(mem, NULL, "a crash");
	rbp_kept_discard("the first");
	rbp_kept_discard("the second");
	ok(strcmp(rbp_kept_discarded(), "the first") == 0, "the first reason counts");
	crash(mem, "the first", "discarded");
	crash(mem, NULL, "once more");
	rbp_kept_changing(true);
	rbp_kept_changing(false);
	crash(mem, NULL, "after a change");
	rbp_kept_changing(true);
	crash(mem, half_changed, "within a change");
	rbp_kept_discard("again");
	remove_fails = true;
	crash(mem, "again", "what cannot be given back");
	remove_fails = false;
	crash(mem, NULL, "in the end");
}

int
main(void)
{
	test_pages();
	test_discarded(true);
	test_discarded(false);
	return done_testing();
}
