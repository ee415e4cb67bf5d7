/*-------------------------------------------------------------------------
 *
 * kept_cost.c
 *	  What it takes to build the directory after a crash, to write the image of a clean
 *	  stop, and to load it, on a large tier, whose memory is not there.
 *
 *	kept_cost PAGES
 *
 * The image is written to the working directory.  Writes "METRIC VALUE" lines, of CPU
 * time.  What is needed of the server is little; the rest of the source is left out by the
 * linker.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "base/libc.h"
#include "buffer/image.c"
#include "buffer/directory_internal.h"

#include "directory_check.h"
#include "random.h"

RbpTierShared *rbp_tier_shared;
RbpDirectory *rbp_dir;
const char *rbp_injection_point = "";
int			rbp_guc_warm_restart = RBP_WARM_RESTART_ON;
int			rbp_guc_encrypt = RBP_ENCRYPT_OFF;
bool		enableFsync = true;
bool		IsPostmasterEnvironment = true;
pid_t		PostmasterPid;

static RbpExtents *extents;
static uint32 nextents;
static char *memory;

bool
errstart(int elevel, const char *domain)
{
	return false;
}

int
errmsg(const char *fmt,...)
{
	return 0;
}

void
errfinish(const char *filename, int lineno, const char *funcname)
{
	abort();
}

void
pg_usleep(long microsec)
{
}

int64_t
rbp_now_ns(void)
{
	return 0;
}

void
rbp_stats_error(const char *fmt,...)
{
}

const char *
rbp_kept_discarded(void)
{
	return NULL;
}

bool
rbp_remote_has_lease(RbpPool pool)
{
	return true;
}

void
rbp_remote_pieces(RbpPiece pieces[RBP_REMOTE_PIECES])
{
	memset(pieces, 0, RBP_REMOTE_PIECES * sizeof(RbpPiece));
	pieces[0] = (RbpPiece)
	{
		extents->states, nextents
	};
	pieces[1] = (RbpPiece)
	{
		extents->regions, nextents * sizeof(uint16)
	};
}

void *
rbp_remote_sealed_slot(uint32 slot)
{
	return rbp_guc_encrypt != RBP_ENCRYPT_OFF ? memory : NULL;
}

void
rbp_remote_forget_deadline(RbpPool pool)
{
}

static void
open_memory(bool found)
{
	char	   *at = (char *) extents + rbp_align_line(sizeof(RbpExtents));

	if (found)
	{
		extents->n = nextents;
		extents->first = 0;
		rbp_extents_reopen(extents, at);
	}
	else
		rbp_extents_init(extents, at, 0, nextents);
	at += rbp_align_line(rbp_extents_size(nextents));
	rbp_dir = rbp_directory_open(at, found, extents, 1024, 0, 0);
	rbp_tier_image_load();
}

static void
make_memory(void)
{
	Size		bytes = rbp_align_line(sizeof(RbpTierShared)) + rbp_align_line(sizeof(RbpExtents)) +
	rbp_align_line(rbp_extents_size(nextents)) + rbp_directory_size(RBP_EXTENT_SLOT(nextents), 1024, 0);

	if (memory != NULL)
		munmap(memory, bytes);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		abort();
	rbp_tier_shared = (RbpTierShared *) memory;
	extents = (RbpExtents *) (memory + rbp_align_line(sizeof(RbpTierShared)));
	open_memory(false);
}

/* Pages of as many files as they need, of 1 GB, in no order; half of them are wanted. */
static void
put_pages(uint32 n)
{
	uint16		space = rbp_space_get(1663, 5);
	uint32		files = n / RELSEG_SIZE + 1;
	uint32		next[RBP_PARTITIONS] = {0};
	uint64		state = 1;

	for (uint32 i = 0; i < n; i++)
	{
		uint64		random = next_random(&state);
		RbpEntry	e = {
			.hash = random,.rel = 16384 + (uint32) (random >> 32) % files,.space = space,
			.block = (uint32) random % RELSEG_SIZE
		};
		uint32		part = rbp_hash_partition(rbp_entry_page_hash(&e));

		e.flags = i % 2 == 0 ? RBP_SLOT_SMALL : RBP_SLOT_MAIN;
		if (next[part] < nextents)
			*rbp_entry(rbp_dir, part * rbp_dir->nlocal + next[part]++) = e;
	}
}

/* Relations' files have been there for long. */
static int
look(const char *path, struct stat *st)
{
	if (strncmp(path, "base/", 5) != 0)
		return lstat(path, st);
	memset(st, 0, sizeof(*st));
	st->st_ctim.tv_sec = 1600000000;
	st->st_ctim.tv_nsec = 1;
	return 0;
}

/* CPU time of this process; without the kernel's, which copies to the page cache as it likes. */
static double
cpu_ns(bool with_kernel)
{
	struct rusage used;

	(void) getrusage(RUSAGE_SELF, &used);
	if (with_kernel)
		timeradd(&used.ru_utime, &used.ru_stime, &used.ru_utime);
	return used.ru_utime.tv_sec * 1e9 + used.ru_utime.tv_usec * 1e3;
}

/* How many pages there are, when all partitions have been built. */
static uint64
build(void)
{
	uint64		pages = 0;

	for (int part = 0; part < RBP_PARTITIONS; part++)
	{
		directory_build(rbp_dir, part);
		pages += rbp_dir->partitions[part].taken;
	}
	return pages;
}

static void
write_control(void)
{
	static union
	{
		ControlFileData data;
		char		bytes[PG_CONTROL_FILE_SIZE];
	}			control = {.data.state = DB_SHUTDOWNED};
	FILE	   *f;

	(void) mkdir("global", 0700);
	f = fopen("global/pg_control", "w");
	if (f == NULL || fwrite(&control, sizeof(control), 1, f) != 1 || fclose(f) != 0)
		abort();
}

int
main(int argc, char **argv)
{
	uint32		n = argc == 2 ? (uint32) strtoul(argv[1], NULL, 10) : 0;
	double		began;
	double		user;
	uint64		pages;
	struct stat st;

	rbp_libc = (RbpLibc)
	{
		.open = open,.close = close,.pread = pread,.pwrite = pwrite,.unlink = unlink,.rename = rename,.lstat = look
	};
	write_control();
	nextents = n / RBP_PARTITIONS * 101 / 100 + 100;
	make_memory();
	for (uint32 e = 0; e < nextents; e++)
		rbp_extent_bring_online(extents, e, 0, RBP_EXTENT_TOUCHED);
	put_pages(n);

	open_memory(true);
	began = cpu_ns(true);
	pages = build();
	printf("build_ns %.1f\n", (cpu_ns(true) - began) / pages);

	began = cpu_ns(true);
	user = cpu_ns(false);
	if (write_image(1) != 0 || stat(IMAGE_FILE, &st) != 0)
		abort();
	printf("image_ns %.1f\nimage_user_ns %.1f\nimage_bytes %.1f\n", (cpu_ns(true) - began) / pages,
		   (cpu_ns(false) - user) / pages, (double) st.st_size / pages);

	make_memory();
	if (!rbp_tier_image_read())
		abort();
	open_memory(true);
	began = cpu_ns(true);
	pages = build();
	printf("load_ns %.1f\n", (cpu_ns(true) - began) / pages);
	rbp_tier_image_loaded();
	return 0;
}
