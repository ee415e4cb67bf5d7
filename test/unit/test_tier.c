/*-------------------------------------------------------------------------
 *
 * test_tier.c
 *	  Who is served while a server recovers, and what a failed sync does.
 *
 * Each process is one, since it remembers what it has found.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mock_server.h"
#include "buffer/tier.c"

#include "directory_check.h"
#include "tap.h"

/* the server */
#if PG_VERSION_NUM < 170000
AuxProcType MyAuxProcType = NotAnAuxProcess;
#endif
bool		reachedConsistency = false;
bool		enableFsync = true;
void	   *UsedShmemSegAddr = &reachedConsistency;
int			NBuffers = 16;
char	   *BufferBlocks = NULL;
static bool in_recovery = true;

/* the rest of the extension */
bool		rbp_guc_enabled = true;
int			rbp_guc_use_tier = RBP_USE_TIER_ON;
int			rbp_guc_buffer_tier_max_size = 1;
int			rbp_guc_staging_size = 64;
static RbpExtents extents;
static const char *discarded = NULL;

bool
RecoveryInProgress(void)
{
	return in_recovery;
}

void
rbp_kept_discard(const char *why)
{
	discarded = why;
}

int
rbp_guc_tier_size_ahead(void)
{
	return 0;
}

uint64
rbp_guc_keep_max_pages(void)
{
	return 0;
}

const RbpExtents *
rbp_remote_extents(RbpPool pool)
{
	return &extents;
}

bool
rbp_remote_usable(RbpPool pool, int64 now)
{
	return true;
}

bool
rbp_remote_unusable_reason(RbpPool pool, char *buf, Size len)
{
	return false;
}

void
rbp_residency_changed(Oid database)
{
}

bool
rbp_residency_excludes(uint16 space)
{
	return false;
}

void
rbp_tier_image_load(void)
{
}

static void
set_kind(bool startup, bool io_worker)
{
#if PG_VERSION_NUM < 170000
	MyAuxProcType = startup ? StartupProcess : NotAnAuxProcess;
#else
	MyBackendType = startup ? B_STARTUP : B_BACKEND;
#endif
#if PG_VERSION_NUM >= 180000
	if (io_worker)
		MyBackendType = B_IO_WORKER;
#endif
}

/* Is another process, which is like this one but has found nothing yet, served? */
static bool
is_served(void)
{
	pid_t		pid = fork();
	int			status;

	if (pid == 0)
		_exit(rbp_tier_usable(0));
	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		abort();
	return WEXITSTATUS(status) != 0;
}

static bool
is_noted(void)
{
	return pg_atomic_read_u32(&rbp_tier_shared->consistent) != 0;
}

static void
test_recovery(void *mem)
{
	set_kind(true, false);
	ok(!is_served() && !is_noted(), "before the server is consistent the startup process is not served");
	set_kind(false, false);
	MyBackendType = B_CHECKPOINTER;
	ok(is_served() && !is_noted(), "the checkpointer runs then, too, and tells nobody that it is");
	MyBackendType = B_BACKEND;
	reachedConsistency = true;
	set_kind(true, false);
	ok(is_served() && is_noted(), "when it is, the startup process is served, and notes it");

	rbp_tier_directory_open(mem, true);
	ok(!is_noted(), "after a crash it is not noted any more");
#if PG_VERSION_NUM >= 180000
	set_kind(false, true);
	MyBackendType = B_CHECKPOINTER;
	ok(!is_served(), "an I/O worker is not served in recovery");
	in_recovery = false;
	ok(is_served(), "but after it");
	in_recovery = true;
	MyBackendType = B_BACKEND;
	set_kind(false, false);
	ok(is_served() && is_noted(), "nor before a session can be");
	set_kind(false, true);
	MyBackendType = B_CHECKPOINTER;
	ok(is_served(), "and then it is");
	MyBackendType = B_BACKEND;
	rbp_tier_directory_open(mem, true);
#endif
	set_kind(false, false);
	ok(is_served() && is_noted(), "a session is, and notes it");

	rbp_guc_enabled = false;
	ok(!is_served(), "remote_bp.enabled = off");
	rbp_guc_enabled = true;
	rbp_guc_use_tier = RBP_USE_TIER_OFF;
	ok(!is_served(), "remote_bp.use_tier = off");
	rbp_guc_use_tier = RBP_USE_TIER_ON;
	pg_atomic_write_u32(&rbp_tier_shared->lost_track, 1);
	ok(!is_served(), "a change was missed");
	rbp_tier_directory_open(mem, true);
	ok(!is_served(), "also before a crash");
	pg_atomic_write_u32(&rbp_tier_shared->lost_track, 0);
}

static void
test_sync(void)
{
	const RbpRelFile file = {.spc = 1,.db = 1,.rel = 1};
	uint64		bumps = rbp_directory_bumps(rbp_dir);

	rbp_tier_sync_failed("fsync");
	ok(discarded != NULL && rbp_directory_bumps(rbp_dir) == bumps, "a failed sync before there is memory is not forgotten");
	discarded = NULL;
	pg_atomic_write_u32(&rbp_tier_shared->in_use, 1);
	rbp_tier_sync_failed("fsync");
	ok(discarded != NULL && rbp_directory_bumps(rbp_dir) != bumps, "one after it drops all pages, too");

	discarded = NULL;
	rbp_tier_invalidate(&file, 0, 1);
	ok(discarded == NULL, "a change of a file is synced");
	enableFsync = false;
	rbp_tier_invalidate(&file, 0, 1);
	ok(discarded != NULL, "with fsync off it is not, and nothing is kept");
}

int
main(void)
{
	Size		size = rbp_tier_directory_size();
	void	   *mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (mem == MAP_FAILED)
		abort();
	rbp_extents_init(&extents, aligned_alloc(64, 64), 0, rbp_tier_max_extents());
	rbp_tier_directory_open(mem, false);
	test_recovery(mem);
	test_sync();
	munmap(mem, size);
	is_u64(mock_violations, 0, "no violations");
	return done_testing();
}
