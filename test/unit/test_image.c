/*-------------------------------------------------------------------------
 *
 * test_image.c
 *	  The image that a stop leaves: who gets none, which one is refused, which pages
 *	  are believed, and images that nobody has written so.
 *
 * The data directory is one of the test's own, with real files; their change times, the
 * clocks and the room on the disk are the test's.  What remote has is a lease of one word,
 * the extents, and what is sealed of their slots.
 *
 *	 test_image [DAMAGED IMAGES [SEED]]
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "catalog/pg_tablespace_d.h"

#include "base/libc.h"

static int	test_fstatvfs(int fd, struct statvfs *fs);
static int	test_fsync(int fd);
static int	test_clock_gettime(clockid_t clock, struct timespec *ts);

#define fstatvfs(fd, fs)			test_fstatvfs(fd, fs)
#define fsync(fd)					test_fsync(fd)
#define clock_gettime(clock, ts)	test_clock_gettime(clock, ts)

#include "buffer/image.c"
#include "buffer/directory_internal.h"

#undef fstatvfs
#undef fsync
#undef clock_gettime

#include "directory_check.h"
#include "random.h"
#include "tap.h"

#define MS				NANOS_PER_MS
#define EXTENTS			8
#define STAGING			4
#define BUFFERS			100
#define DATABASE		5
#define BLOCKS			40		/* of each file */

/*
 * ---- the server, and the rest of the extension -----------------------------------
 */

RbpTierShared *rbp_tier_shared;
RbpDirectory *rbp_dir;
int			rbp_guc_warm_restart;
int			rbp_guc_encrypt;
bool		enableFsync = true;
bool		IsPostmasterEnvironment = true;
pid_t		PostmasterPid;

static const char *discarded = NULL;
static bool has_lease = true;
static char logged[2000];		/* since the last stop or start */
static int64 now = INT64CONST(1000000000000);
static int64 wall = INT64CONST(1700000000123456789);

/* What the calls do */
static uint64 room;				/* on the disk, less of what is written */
static bool fsync_fails;
static bool rename_fails;
static bool write_hangs;
static bool closes_socket;		/* this process */
static int	socket_of_server[2];
static int64 write_takes;
static const char *stat_path;	/* the file of which lstat() says something
								 * else: */
static ino_t stat_inode;		/* these are added to what it is */
static off_t stat_size;
static int64 stat_changed;		/* and this is it, 0: the file's own, 1: none */
static int64 stat_takes;		/* for any file */

bool
errstart(int elevel, const char *domain)
{
	return true;
}

int
errmsg(const char *fmt,...)
{
	size_t		len = strlen(logged);
	va_list		args;

	va_start(args, fmt);
	vsnprintf(logged + len, sizeof(logged) - len, fmt, args);
	va_end(args);
	return 0;
}

void
errfinish(const char *filename, int lineno, const char *funcname)
{
}

/* Time passes for nobody who does not sleep. */
void
pg_usleep(long microsec)
{
	const struct timespec moment = {.tv_nsec = 500000};

	wall += microsec * 1000;
	if (write_hangs && !closes_socket)
		now += microsec * 1000;
	/* only the server waits then */
	if (closes_socket && socket_of_server[1] >= 0)
	{
		close(socket_of_server[1]);
		socket_of_server[1] = -1;
	}
	nanosleep(&moment, NULL);
}

int64_t
rbp_now_ns(void)
{
	return now;
}

void
rbp_stats_error(const char *fmt,...)
{
}

const char *
rbp_kept_discarded(void)
{
	return discarded;
}

bool
rbp_remote_has_lease(RbpPool pool)
{
	return has_lease;
}

static int
test_fstatvfs(int fd, struct statvfs *fs)
{
	*fs = (struct statvfs)
	{
		.f_frsize = 1,.f_bavail = room
	};
	return 0;
}

static int
test_fsync(int fd)
{
	errno = EIO;
	return fsync_fails ? -1 : 0;
}

static int
test_clock_gettime(clockid_t clock, struct timespec *ts)
{
	ts->tv_sec = wall / NANOS_PER_S;
	ts->tv_nsec = wall % NANOS_PER_S;
	return 0;
}

static ssize_t
test_pwrite(int fd, const void *buf, size_t len, off_t offset)
{
	while (write_hangs)
		pause();
	now += write_takes;
	room -= Min(room, len);
	return pwrite(fd, buf, len, offset);
}

static int
test_rename(const char *from, const char *to)
{
	errno = EIO;
	return rename_fails ? -1 : rename(from, to);
}

static int
test_lstat(const char *path, struct stat *st)
{
	int			rc = lstat(path, st);

	/* long ago */
	st->st_ctim.tv_sec = 1600000000;
	st->st_ctim.tv_nsec = (long) (st->st_ino % 1000 + 1);
	now += stat_takes;
	if (stat_path == NULL || strcmp(path, stat_path) != 0)
		return rc;
	st->st_ino += stat_inode;
	st->st_size += stat_size;
	if (stat_changed != 0)
	{
		st->st_ctim.tv_sec = stat_changed / NANOS_PER_S;
		st->st_ctim.tv_nsec = stat_changed % NANOS_PER_S;
	}
	if (stat_changed == 1)
		st->st_ctim.tv_nsec = 0;
	return rc;
}

static void
as_usual(void)
{
	rbp_guc_warm_restart = RBP_WARM_RESTART_ON;
	rbp_guc_encrypt = RBP_ENCRYPT_AUTO;
	enableFsync = IsPostmasterEnvironment = has_lease = true;
	PostmasterPid = getpid();
	discarded = NULL;
	room = UINT64_C(1) << 40;
	fsync_fails = rename_fails = write_hangs = false;
	write_takes = stat_takes = stat_changed = 0;
	stat_path = NULL;
	stat_inode = 0;
	stat_size = 0;
}

/*
 * ---- kept memory ------------------------------------------------------------------
 */

typedef struct Remote
{
	uint64		lease;
	int64		deadline;
	uint32		any_sealed;
	RbpExtents	extents;
} Remote;

static char *memory = NULL;
static size_t memory_bytes;
static uint32 nextents = EXTENTS;
static Remote *remote;

void
rbp_remote_pieces(RbpPiece pieces[RBP_REMOTE_PIECES])
{
	const RbpPiece list[RBP_REMOTE_PIECES] = {
		{remote, sizeof(*remote)},
		{remote + 1, nextents * sizeof(uint32)},
		{remote->extents.states, nextents},
		{remote->extents.regions, nextents * sizeof(uint16)},
	};

	memcpy(pieces, list, sizeof(list));
}

static uint8 sealed[RBP_EXTENT_SLOT(EXTENTS + 3)][RBP_SEALED_BYTES];

void *
rbp_remote_sealed_slot(uint32 slot)
{
	return remote->any_sealed != 0 && slot < lengthof(sealed) ? sealed[slot] : NULL;
}

void
rbp_remote_forget_deadline(RbpPool pool)
{
	remote->deadline = 0;
}

/* As the server opens it, after a crash or not. */
static void
open_memory(bool found)
{
	char	   *at = memory + rbp_align_line(sizeof(RbpTierShared));

	rbp_tier_shared = (RbpTierShared *) memory;
	remote = (Remote *) at;
	at += rbp_align_line(sizeof(Remote) + nextents * sizeof(uint32));
	if (found)
	{
		remote->extents.n = nextents;
		remote->extents.first = 0;
		rbp_extents_reopen(&remote->extents, at);
	}
	else
		rbp_extents_init(&remote->extents, at, 0, nextents);
	at += rbp_align_line(rbp_extents_size(nextents));
	rbp_dir = rbp_directory_open(at, found, &remote->extents, STAGING, BUFFERS, 0);
	rbp_tier_image_load();
}

static void
make_memory(void)
{
	if (memory != NULL)
		munmap(memory, memory_bytes);
	memory_bytes = rbp_align_line(sizeof(RbpTierShared)) +
		rbp_align_line(sizeof(Remote) + nextents * sizeof(uint32)) +
		rbp_align_line(rbp_extents_size(nextents)) +
		rbp_directory_size(RBP_EXTENT_SLOT(nextents), STAGING, BUFFERS);
	memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		abort();
	open_memory(false);
}

/*
 * ---- pages and their files ------------------------------------------------------------
 */

static const struct
{
	Oid			rel;
	uint8		fork;
	uint32		segment;
	const char *path;
}			files[] = {
	{1001, 0, 0, "base/5/1001"},
	{1001, 0, 1, "base/5/1001.1"},
	{1001, 2, 0, "base/5/1001_vm"},
	{1002, 0, 0, "base/5/1002"},
	{1003, 0, 0, "base/5/1003"},
};

#define FILES			lengthof(files)

static RbpPageId
page_of(int file, uint32 block)
{
	return (RbpPageId)
	{
		.rel = files[file].rel,.fork = files[file].fork,.block = files[file].segment * RELSEG_SIZE + block,
			.space = rbp_space_get(DEFAULTTABLESPACE_OID, DATABASE)
	};
}

static uint64
content_of(const RbpPageId *page)
{
	return rbp_mix64(rbp_page_hash(page) + 1);
}

static bool
put(const RbpPageId *page)
{
	RbpVersion	version;
	RbpEvicted	evicted;
	uint32		slot;

	rbp_directory_note_version(rbp_dir, REF(page), &version);
	version.hash = content_of(page);
	if (rbp_directory_insert_staged(rbp_dir, REF(page), &version, 0) != RBP_INSERTED)
		return false;
	slot = rbp_directory_reserve(rbp_dir, page, &evicted);
	return rbp_directory_publish(rbp_dir, page, 0, slot, slot != RBP_INVALID_SLOT) == RBP_INSERTED;
}

/* How many pages of the file are there?  Or of all (-1)? */
static uint32
pages_of(int file)
{
	uint32		n = 0;

	for (int i = 0; i < FILES; i++)
		for (uint32 block = 0; block < BLOCKS && (file < 0 || file == i); block++)
		{
			RbpPageId	page = page_of(i, block);
			RbpLookup	at = rbp_directory_lookup(rbp_dir, REF(&page), false);

			if (at.where != RBP_ABSENT && at.hash != content_of(&page))
				ok(false, "a page has another hash");
			n += at.where == RBP_REMOTE;
		}
	return n;
}

static uint32 had[FILES];		/* pages of each */
static uint32 had_all;

static void
write_file(const char *path, const void *bytes, size_t n)
{
	int			fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	if (fd < 0 || write(fd, bytes, n) != (ssize_t) n)
		abort();
	close(fd);
}

static void
write_control(DBState state)
{
	static union
	{
		ControlFileData data;
		char		bytes[PG_CONTROL_FILE_SIZE];
	}			control;

	memset(&control, 7, sizeof(control));
	control.data.state = state;
	write_file("global/pg_control", &control, sizeof(control));
}

/* A server that has pages of all files. */
static void
run_server(void)
{
	as_usual();
	make_memory();
	remote->lease = 4711;
	remote->deadline = 1;
	pg_atomic_write_u32(&rbp_tier_shared->in_use, 1);
	for (uint32 e = 0; e < EXTENTS; e++)
		rbp_extent_bring_online(&remote->extents, e, e, RBP_EXTENT_FRESH);
	had_all = 0;
	for (int i = 0; i < FILES; i++)
	{
		had[i] = 0;
		for (uint32 block = 0; block < BLOCKS; block++)
		{
			RbpPageId	page = page_of(i, block);

			had[i] += put(&page);
		}
		had_all += had[i];
	}
	write_control(DB_SHUTDOWNED);
}

/*
 * ---- a stop and a start ---------------------------------------------------------------
 */

static bool
exists(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0;
}

/* Is there an image afterwards? */
static bool
stop(int code)
{
	logged[0] = '\0';
	rbp_tier_image_write(code);
	return exists(IMAGE_FILE);
}

/* Does it go on with what the image has? */
static bool
start(void)
{
	logged[0] = '\0';
	make_memory();
	if (!rbp_tier_image_read())
		return false;
	open_memory(true);
	return true;
}

static void
stop_without(const char *what, const char *why)
{
	bool		image = stop(0);

	ok(!image && !exists(NEW_FILE), "%s: no image", what);
	ok(why == NULL ? logged[0] == '\0' :
	   strncmp(logged, "remote_bp: the next start begins with an empty tier: ", 53) == 0 && strstr(logged, why) != NULL,
	   "%s: the log tells: %s", what, logged);
	unlink(IMAGE_FILE);
	as_usual();
}

static void
stop_with(const char *what, int least, int most)
{
	const char *noted;
	int			n = -1;

	ok(stop(0) && !exists(NEW_FILE), "%s: there is an image", what);
	noted = strstr(logged, "noted for the next start, ");
	if (noted != NULL)
		n = atoi(noted + strlen("noted for the next start, "));
	ok(n >= least && n <= most, "%s: of %d parts", what, n);
	as_usual();
}

static void
start_cold(const char *what, const char *why)
{
	bool		warm = start();

	ok(!warm && !exists(IMAGE_FILE) && !exists(USED_FILE), "%s: the tier begins empty, and no image is left", what);
	ok(strstr(logged, why) != NULL, "%s: the log tells: %s", what, logged);
	ok(pg_atomic_read_u32(&rbp_tier_shared->in_use) == 0 && remote->lease == 0 && pages_of(-1) == 0,
	   "%s: nothing is there", what);
	as_usual();
}

/* All pages are there, but those of that file's fork; -1: of none. */
static void
start_warm(const char *what, int changed)
{
	uint32		expected = had_all;
	char		told[100];

	for (int i = 0; i < FILES && changed >= 0; i++)
		if (files[i].rel == files[changed].rel && files[i].fork == files[changed].fork)
			expected -= had[i];
	snprintf(told, sizeof(told), "going on with what donors have; %d of %d files have changed", changed >= 0, (int) FILES);
	ok(start() && !exists(IMAGE_FILE) && exists(USED_FILE), "%s: it goes on", what);
	ok(strstr(logged, told) != NULL, "%s: the log tells: %s", what, logged);
	is_u64(pages_of(-1), expected, "%s: with all pages%s", what, changed < 0 ? "" : " of other files");
	ok(changed < 0 || pages_of(changed) == 0, "%s: and none of that one", what);
	ok(remote->lease == 4711 && remote->deadline == 0 && pg_atomic_read_u32(&rbp_tier_shared->in_use) == 1,
	   "%s: with the lease, which is not valid", what);
	as_usual();
}

/* The image as the last stop has left it */
static char *saved = NULL;
static size_t saved_bytes;

static Header *
saved_header(void)
{
	return (Header *) saved;
}

static void
save_image(void)
{
	struct stat st;
	int			fd = open(IMAGE_FILE, O_RDONLY);

	if (fd < 0 || fstat(fd, &st) != 0)
		abort();
	free(saved);
	saved_bytes = (size_t) st.st_size;
	saved = malloc(saved_bytes);
	if (read(fd, saved, saved_bytes) != (ssize_t) saved_bytes)
		abort();
	close(fd);
}

/* Put it back, with what was changed there; hashed: as if by the server. */
static void
put_image(bool hashed)
{
	Header	   *h = saved_header();

	if (hashed)
		h->hash = rbp_hash_bytes(h, offsetof(Header, hash));
	write_file(IMAGE_FILE, saved, saved_bytes);
}

/*
 * ---- who gets none ------------------------------------------------------------------------
 */

static void
test_no_image(void)
{
	const		DBState states[] = {DB_IN_PRODUCTION, DB_SHUTDOWNED_IN_RECOVERY, DB_SHUTDOWNING, DB_IN_ARCHIVE_RECOVERY};
	pg_atomic_uint64 *spaces;
	int			used = 0;

	run_server();
	ok(!stop(1), "a server that ends with an error: no image");
	is_u64(strlen(logged), 0, "and no word about it");
	rbp_guc_warm_restart = RBP_WARM_RESTART_CRASH;
	stop_without("warm_restart = crash", NULL);
	pg_atomic_write_u32(&rbp_tier_shared->in_use, 0);
	stop_without("a tier that has had no memory", NULL);
	pg_atomic_write_u32(&rbp_tier_shared->in_use, 1);
	discarded = "a reason";
	stop_without("what is kept may not be believed", "a reason");
	enableFsync = false;
	stop_without("fsync off", "fsync is off");
	has_lease = false;
	stop_without("no lease", "there is no lease");
	for (int i = 0; i < lengthof(states); i++)
	{
		write_control(states[i]);
		stop_without("not a clean stop of a primary", "the server was not shut down cleanly, or is a standby");
	}

	/*
	 * what a clean stop has left in memory of pg_control does not stand in
	 * for it
	 */
	write_control(DB_SHUTDOWNED);
	stop_with("a clean stop", RBP_PARTITIONS, RBP_PARTITIONS);
	unlink(IMAGE_FILE);
	unlink("global/pg_control");
	stop_without("no pg_control", "the server was not shut down cleanly, or is a standby");
	write_control(DB_SHUTDOWNED);

	spaces = rbp_tier_shared->spaces;
	for (int i = 0; i < RBP_MAX_SPACES; i++)
		used += pg_atomic_read_u64(&spaces[i]) != 0;
	for (int i = 0; used < RBP_MAX_SPACES / 2; i++)
		if (pg_atomic_read_u64(&spaces[i]) == 0)
		{
			pg_atomic_write_u64(&spaces[i], UINT64_MAX - i);
			used++;
		}
	stop_with("half of all spaces are used", RBP_PARTITIONS, RBP_PARTITIONS);
	unlink(IMAGE_FILE);
	for (int i = 0; used == RBP_MAX_SPACES / 2; i++)
		if (pg_atomic_read_u64(&spaces[i]) == 0)
		{
			pg_atomic_write_u64(&spaces[i], 1);
			used++;
		}
	stop_without("more than half of them are", "too many databases were used");
}

static void
test_failed_write(void)
{
	int			status = 0;

	run_server();
	room = FREE_BYTES - 1;
	stop_without("hardly any room on the disk", "No space left on device");
	room = FREE_BYTES + 1000;
	stop_with("little room", 5, RBP_PARTITIONS / 2);
	ok(start() && pages_of(-1) > 0 && pages_of(-1) < had_all, "little room: what was written is there");

	run_server();
	write_takes = 50 * MS;
	stop_with("a slow disk", 40, 90);
	ok(start() && pages_of(-1) > 0 && pages_of(-1) < had_all, "a slow disk: what was written is there");
	ok(rbp_hash_bytes(&header, offsetof(Header, hash)) == header.hash, "a slow disk: by a header that is right");

	run_server();
	write_hangs = true;
	stop_without("a disk that hangs", "Connection timed out");
	ok(waitpid(-1, &status, 0) > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "a disk that hangs: nobody waits for it");

	mkdir(NEW_FILE, 0700);
	(void) stop(0);
	ok(!exists(IMAGE_FILE) && strstr(logged, "could not write \"" IMAGE_FILE "\": File exists") != NULL,
	   "something is in the way: the log tells: %s", logged);
	rmdir(NEW_FILE);
	rename_fails = true;
	stop_without("the image does not get its name", "Input/output error");
	PostmasterPid = 1;
	stop_without("a server that is killed meanwhile", "No such process");
	stop_with("nothing in the way", RBP_PARTITIONS, RBP_PARTITIONS);
	unlink(IMAGE_FILE);
}

/* The server is killed while it waits: who writes the image does not go on, nor keep its sockets. */
static void
test_killed(void)
{
	struct timespec moment = {.tv_nsec = 10000000};
	pid_t		server;
	pid_t		ended;
	int			status;
	int			n = 0;
	char		byte;

	run_server();
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (pipe(socket_of_server) != 0)
		abort();
	server = fork();
	if (server == 0)
	{
		PostmasterPid = getpid();
		write_hangs = closes_socket = true;
		rbp_tier_image_write(0);
		_exit(0);
	}
	close(socket_of_server[1]);
	ok(read(socket_of_server[0], &byte, 1) == 0, "who writes the image has none of the server's sockets");
	close(socket_of_server[0]);
	while (!exists(NEW_FILE) && n++ < 6000)
		nanosleep(&moment, NULL);
	kill(server, SIGKILL);
	ok(waitpid(server, &status, 0) == server && WIFSIGNALED(status), "the server is killed while that is written");
	for (n = 0; (ended = waitpid(-1, &status, WNOHANG)) == 0 && n < 6000; n++)
		nanosleep(&moment, NULL);
	ok(ended > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !exists(IMAGE_FILE), "and so is who writes it");
	if (ended == 0)
		abort();
	prctl(PR_SET_CHILD_SUBREAPER, 0);
	(void) unlink(NEW_FILE);
}

/* More files than their table has room for: pages of some would be believed unseen. */
static void
test_many_files(void)
{
	RbpPageId	page;
	uint32		n = 0;
	uint16		space;

	run_server();
	nextents = MAX_FILES / 2 / RBP_EXTENT_PAGES * 2;
	make_memory();
	pg_atomic_write_u32(&rbp_tier_shared->in_use, 1);
	for (uint32 e = 0; e < nextents; e++)
		rbp_extent_bring_online(&remote->extents, e, 0, RBP_EXTENT_FRESH);
	space = rbp_space_get(DEFAULTTABLESPACE_OID, DATABASE);
	for (uint32 i = 0; n <= MAX_FILES / 2; i++)
	{
		page = (RbpPageId)
		{
			.rel = 10000 + i,.space = space
		};
		n += put(&page);
	}
	stop_without("too many files", "Too many open files");
	nextents = EXTENTS;
}

/*
 * ---- which image is refused --------------------------------------------------------------
 */

#define OTHER_VERSION	"it is damaged, or of another version"
#define OTHER_SIZE		"remote_bp.buffer_tier_max_size is smaller, or very different"
#define OTHER_DIRECTORY "the data directory was used, copied or restored since"

/* Change a field of the header, and refuse the image for that. */
#define REFUSE(field, value, why) \
	do { \
		const Header was = *saved_header(); \
		saved_header()->field = (value); \
		put_image(true); \
		start_cold(#field, why); \
		*saved_header() = was; \
	} while (0)

static void
test_refused(void)
{
	Header	   *h;
	size_t		tables;

	run_server();
	stop_with("a stop", RBP_PARTITIONS, RBP_PARTITIONS);
	save_image();
	h = saved_header();
	tables = saved_bytes - tables_bytes(h);

	start_warm("a start", -1);
	rbp_tier_image_loaded();
	ok(!exists(USED_FILE), "when all is loaded the image is gone");
	start_cold("no image", "");
	ok(strlen(logged) == 0, "without an image the log says nothing");

	REFUSE(format, h->format + 1, OTHER_VERSION);
	REFUSE(version[0], 'x', OTHER_VERSION);
	REFUSE(server, h->server + 1, OTHER_VERSION);
	REFUSE(page_bytes, 2 * BLCKSZ, OTHER_VERSION);
	REFUSE(segment_pages, RELSEG_SIZE / 2, OTHER_VERSION);
	REFUSE(seal_bytes, RBP_SEALED_BYTES - 1, OTHER_VERSION);
	REFUSE(nfiles, MAX_FILES + 1, OTHER_VERSION);
	REFUSE(nfiles, UINT64_MAX / sizeof(ImageFile) + 2, OTHER_VERSION);
	REFUSE(chunks[5].bytes, CHUNK_BYTES + 1, OTHER_VERSION);
	REFUSE(chunks[5].bytes, UINT64_MAX, OTHER_VERSION);
	for (int i = 0; i < PIECES; i++)
		REFUSE(pieces[i], h->pieces[i] + 1, OTHER_SIZE);
	for (int i = 0; i < PIECES; i++)
		if (i < RBP_REMOTE_GROWS || i >= RBP_REMOTE_PIECES)
			REFUSE(pieces[i], h->pieces[i] - 1, OTHER_SIZE);
	REFUSE(control.inode, h->control.inode + 1, OTHER_DIRECTORY);
	REFUSE(control.size, h->control.size + 1, OTHER_DIRECTORY);
	REFUSE(control.changed, h->control.changed + 1, OTHER_DIRECTORY);
	REFUSE(control_hash, h->control_hash + 1, OTHER_DIRECTORY);
	REFUSE(tables_hash, h->tables_hash + 1, OTHER_VERSION);

	h->hash++;
	put_image(false);
	start_cold("a header with another hash", OTHER_VERSION);
	saved[tables + 100]++;
	put_image(true);
	start_cold("tables with another hash", OTHER_VERSION);
	saved[tables + 100]--;
	saved_bytes--;
	put_image(true);
	start_cold("a file that lacks a byte", "it could not be read");
	saved_bytes++;
	put_image(true);
	if (truncate(IMAGE_FILE, sizeof(Header) - 1) != 0)
		abort();
	start_cold("a file that has only a part of the header", OTHER_VERSION);

	put_image(true);
	rename_fails = true;
	start_cold("the image cannot be renamed", "it could not be renamed");
	put_image(true);
	fsync_fails = true;
	start_cold("nor can that be made durable", "it could not be renamed");
	put_image(true);
	IsPostmasterEnvironment = false;
	start_cold("a single-user server", "this is a single-user server");
	put_image(true);
	rbp_guc_warm_restart = RBP_WARM_RESTART_CRASH;
	start_cold("warm_restart = crash", "remote_bp.warm_restart is not \"on\"");
	put_image(true);
	write_file("backup_label", "x", 1);
	start_cold("backup_label", OTHER_DIRECTORY);
	unlink("backup_label");
	put_image(true);
	nextents = EXTENTS - 1;
	start_cold("a smaller tier", OTHER_SIZE);
	nextents = EXTENTS + 3;
	put_image(true);
	start_warm("a larger tier", -1);
	nextents = EXTENTS;

	/* used once, whatever has become of the start */
	put_image(true);
	start_warm("a start that fails later", -1);
	write_file(NEW_FILE, "x", 1);
	start_cold("the next one", "");
	ok(!exists(NEW_FILE), "what was left over is gone");

	put_image(true);
	write_control(DB_IN_PRODUCTION);
	write_control(DB_SHUTDOWNED);
	start_warm("the same bytes of pg_control, at the same time", -1);
	put_image(true);
	write_control(DB_SHUTDOWNED_IN_RECOVERY);
	start_cold("other bytes, at the same time", OTHER_DIRECTORY);
	write_control(DB_SHUTDOWNED);
}

static void
test_chunks(void)
{
	Header	   *h = saved_header();
	int			part = 0;
	uint32		before;

	while (h->chunks[part].bytes == 0)
		part++;
	/* damaged, or lost after the start */
	saved[chunk_at(h, part)]++;
	put_image(true);
	ok(start(), "a part is damaged: it goes on");
	before = pages_of(-1);
	ok(before < had_all && before > had_all / 2, "a part is damaged: it is empty, the others are not");
	is_u64(rbp_dir->partitions[part].taken, 0, "a part is damaged: its pages are not there");
	saved[chunk_at(h, part)]--;

	put_image(true);
	ok(start(), "the file is lost after the start: it goes on");
	for (int i = 0; i < RBP_PARTITIONS; i += 2)
		directory_build(rbp_dir, i);
	unlink(USED_FILE);
	before = pages_of(-1);
	ok(before < 2 * had_all / 3 && before > had_all / 3, "the file is lost after the start: so is what was not loaded");

	/* a stop in the middle of it: what is not loaded yet is in the next image */
	put_image(true);
	ok(start(), "a stop before all is loaded: it goes on");
	directory_build(rbp_dir, 1);
	remote->deadline = 1;
	stop_with("a stop before all is loaded", RBP_PARTITIONS, RBP_PARTITIONS);
	start_warm("a stop before all is loaded", -1);
}

/*
 * ---- sealed pages -------------------------------------------------------------------------
 */

/* What is sealed of the slot */
static void
make_seal(uint8 seal[RBP_SEALED_BYTES], uint32 slot)
{
	for (int i = 0; i < RBP_SEALED_BYTES; i++)
		seal[i] = (uint8) (rbp_mix64(slot + 1) >> i % 8 * 8);
}

/* How many slots have what is sealed of them?  All others must have nothing. */
static uint32
seals(void)
{
	uint8		seal[RBP_SEALED_BYTES];
	uint32		n = 0;
	uint32		strange = 0;

	for (uint32 slot = 0; slot < lengthof(sealed); slot++)
	{
		make_seal(seal, slot);
		if (memcmp(sealed[slot], seal, sizeof(seal)) == 0)
			n++;
		else if (sealed[slot][0] != 0 || memcmp(sealed[slot], sealed[slot] + 1, sizeof(seal) - 1) != 0)
			strange++;
	}
	is_u64(strange, 0, "no slot has what is sealed of another");
	return n;
}

/* A start has nothing in memory yet. */
static bool
start_with_seals(void)
{
	memset(sealed, 0, sizeof(sealed));
	return start();
}

static void
test_sealed(void)
{
	Header	   *h;
	uint64		entries = 0;
	int			part = 0;
	uint32		left;

	run_server();
	stop_with("nothing was sealed", RBP_PARTITIONS, RBP_PARTITIONS);
	save_image();
	for (int i = 0; i < RBP_PARTITIONS; i++)
		entries += saved_header()->chunks[i].bytes;
	is_u64(entries, had_all * RBP_ENTRY_BYTES, "nothing was sealed: there are entries alone");
	rbp_guc_encrypt = RBP_ENCRYPT_OFF;
	start_warm("nothing was sealed", -1);

	run_server();
	remote->any_sealed = 1;
	for (uint32 slot = 0; slot < lengthof(sealed); slot++)
		make_seal(sealed[slot], slot);
	stop_with("sealed pages", RBP_PARTITIONS, RBP_PARTITIONS);
	save_image();
	h = saved_header();
	entries = 0;
	for (int i = 0; i < RBP_PARTITIONS; i++)
		entries += h->chunks[i].bytes;
	is_u64(entries, had_all * (RBP_ENTRY_BYTES + RBP_SEALED_BYTES), "sealed pages: each has its seal with it, and no other slot");
	ok(start_with_seals() && pages_of(-1) == had_all, "sealed pages: they are there again");
	is_u64(seals(), had_all, "sealed pages: with their seals");

	/* what is not loaded yet is in the next image */
	put_image(true);
	ok(start_with_seals(), "a stop before all is loaded: it goes on");
	directory_build(rbp_dir, 1);
	ok(seals() < had_all, "a stop before all is loaded: seals are loaded with their partitions");
	remote->deadline = 1;
	stop_with("a stop before all is loaded", RBP_PARTITIONS, RBP_PARTITIONS);
	ok(start_with_seals() && pages_of(-1) == had_all && seals() == had_all, "a stop before all is loaded: all are there");

	while (h->chunks[part].bytes == 0)
		part++;
	saved[chunk_at(h, part) + h->chunks[part].bytes - 1]++;
	put_image(true);
	ok(start_with_seals(), "a seal is damaged: it goes on");
	left = pages_of(-1);
	ok(left < had_all && seals() == left, "a seal is damaged: nothing is there of its part");
	saved[chunk_at(h, part) + h->chunks[part].bytes - 1]--;

	put_image(true);
	rbp_guc_encrypt = RBP_ENCRYPT_OFF;
	start_cold("encrypt = off", "remote_bp.encrypt is off now");
}

/*
 * ---- which files have changed --------------------------------------------------------------
 */

/* Files, of which one is said to have been changed then. */
static void
restart_with(const char *what, int file, int64 changed, bool believed)
{
	run_server();
	stat_path = files[file].path;
	stat_changed = changed;
	ok(stop(0), "%s: there is an image", what);
	start_warm(what, believed ? -1 : file);
	unlink(USED_FILE);
}

static void
test_files(void)
{
	const int64 sleeps = TICK_NS + 5 * MS;

	for (int i = 0; i < FILES; i++)
		for (int what = 0; what < 3; what++)
		{
			const char *names[] = {"inode", "size", "change time"};

			run_server();
			ok(stop(0), "%s: there is an image", names[what]);
			stat_path = files[i].path;
			stat_inode = what == 0 ? 1000 : 0;
			stat_size = what == 1;
			stat_changed = what == 2 ? wall - NANOS_PER_S : 0;
			start_warm(names[what], i);
			unlink(USED_FILE);
		}

	run_server();
	(void) stop(0);
	if (rename(files[3].path, "base/5/x") != 0)
		abort();
	start_warm("a file that is gone", 3);
	run_server();
	(void) stop(0);
	start_warm("a file that was not there", 3);
	unlink(USED_FILE);
	run_server();
	(void) stop(0);
	if (rename("base/5/x", files[3].path) != 0)
		abort();
	start_warm("a file that has come", 3);
	unlink(USED_FILE);

	restart_with("changed long before", 3, wall - NANOS_PER_S + 5, true);
	restart_with("changed right before", 3, wall, true);
	restart_with("changed within a tick", 3, wall + sleeps - TICK_NS, false);
	restart_with("changed in the future", 3, wall + NANOS_PER_S, false);
	restart_with("changed in that second", 3, (wall / NANOS_PER_S - 1) * NANOS_PER_S, false);
	restart_with("changed some seconds before", 3, (wall / NANOS_PER_S - 3) * NANOS_PER_S, true);
	restart_with("nobody knows when it was changed", 3, 1, false);

	/* not all can be looked at in time */
	run_server();
	(void) stop(0);
	stat_takes = FILES_NS / 2;
	ok(start() && strstr(logged, "; 3 of 5 files have changed") != NULL, "files that nobody has had time for are not believed: %s", logged);
	ok(pages_of(-1) > 0 && pages_of(-1) < had_all, "others are");
	as_usual();
	unlink(USED_FILE);
}

/*
 * ---- images that nobody has written so ----------------------------------------------------
 */

/* Change some bytes; known: hashes are as if the server had written it so. */
static void
damage(uint64_t *rng, bool known)
{
	Header	   *h = saved_header();
	size_t		tables = (size_t) chunk_at(h, RBP_PARTITIONS);
	size_t		from[] = {0, sizeof(Header), tables};
	size_t		to[] = {sizeof(Header), tables, saved_bytes};
	int			part = (int) (next_random(rng) % 3);

	for (int n = 1 + (int) (next_random(rng) % 8); n > 0; n--)
	{
		size_t		at = from[part] + next_random(rng) % (to[part] - from[part]);
		int			bytes = next_random(rng) % 2 == 0 ? 1 : 4;

		/* often of the lease and the extents, which are few bytes */
		if (part == 2 && next_random(rng) % 2 == 0)
			at = tables + next_random(rng) % (sizeof(Remote) + EXTENTS * 7);
		for (int i = 0; i < bytes && at + i < to[part]; i++)
			saved[at + i] = (char) (next_random(rng) % 3 == 0 ? 0xff : next_random(rng));
	}
	if (!known)
		return;
	/* the header's own numbers may lead anywhere now */
	if (part != 0)
	{
		for (int i = 0; i < RBP_PARTITIONS; i++)
			h->chunks[i].hash = rbp_hash_bytes(saved + chunk_at(h, i), h->chunks[i].bytes) | 1;
		h->tables_hash = rbp_hash_bytes(saved + tables, saved_bytes - tables);
	}
	h->hash = rbp_hash_bytes(h, offsetof(Header, hash));
}

/* Where names were changed a page may have two entries. */
static const char *
check(bool known)
{
	const char *problem = directory_check(rbp_dir);

	if (problem != NULL && !(known && strcmp(problem, "a page has two entries") == 0))
		return problem;
	return directory_check_sums(rbp_dir);
}

static void
test_damaged(uint32_t rounds, uint64_t seed)
{
	uint32		warm[2] = {0};
	uint32		pages[2] = {0};
	char	   *good;
	size_t		good_bytes;
	uint32		wrong = 0;
	const char *problem = NULL;

	diag("%u damaged images, seed %" PRIu64, rounds, seed);
	run_server();
	stop_with("before the damage", RBP_PARTITIONS, RBP_PARTITIONS);
	save_image();
	good_bytes = saved_bytes;
	good = malloc(good_bytes);
	memcpy(good, saved, good_bytes);
	for (uint32_t round = 0; round < rounds && problem == NULL; round++)
	{
		bool		known = round % 2 == 0;

		memcpy(saved, good, good_bytes);
		damage(&seed, known);
		if (next_random(&seed) % 16 == 0)
			saved_bytes -= next_random(&seed) % good_bytes;
		put_image(false);
		saved_bytes = good_bytes;
		if (!start())
			continue;
		warm[known]++;
		directory_build_all(rbp_dir);
		problem = check(known);
		for (int i = 0; i < FILES; i++)
			for (uint32 block = 0; block < BLOCKS; block++)
			{
				RbpPageId	page = page_of(i, block);
				RbpLookup	at = rbp_directory_lookup(rbp_dir, REF(&page), true);

				pages[known] += at.where == RBP_REMOTE;
				wrong += at.where == RBP_REMOTE && !known && at.hash != content_of(&page);
				if (at.where == RBP_ABSENT)
					(void) put(&page);
				else if (block % 2 == 0)
					(void) rbp_directory_invalidate(rbp_dir, &page, true);
			}
		for (uint32_t e = 0; e < EXTENTS; e++)
			directory_extent_close(rbp_dir, e);
		while (directory_collect(rbp_dir, RBP_DROP_MAX) > 0)
			continue;
		if (problem == NULL)
			problem = check(known);
		/* what came of it can be stored in turn */
		if (round % 32 == 0)
			(void) stop(0);
		(void) unlink(IMAGE_FILE);
	}
	ok(problem == NULL, "damaged images: check%s%s", problem ? ": " : "", problem ? problem : "");
	is_u64(wrong, 0, "damaged images: all pages that are there are right");
	ok(warm[false] > rounds / 16 && warm[true] > rounds / 8, "damaged images: %u and %u were used nevertheless", warm[false], warm[true]);
	ok(pages[false] > warm[false] * had_all / 2, "with most of their pages");
	free(good);
}

int
main(int argc, char **argv)
{
	char		dir[] = "image.XXXXXX";
	const char *tmp = getenv("TESTDIR");

	rbp_libc = (RbpLibc)
	{
		.open = open,.close = close,.pread = pread,.pwrite = test_pwrite,
			.lstat = test_lstat,.unlink = unlink,.rename = test_rename
	};
	rbp_hash_init();
	if (chdir(tmp != NULL ? tmp : "/tmp") != 0 || mkdtemp(dir) == NULL || chdir(dir) != 0 ||
		mkdir("global", 0700) != 0 || mkdir("base", 0700) != 0 || mkdir("base/5", 0700) != 0)
		abort();
	for (int i = 0; i < FILES; i++)
		write_file(files[i].path, "pages", 5);

	test_no_image();
	test_failed_write();
	test_killed();
	test_many_files();
	test_refused();
	test_chunks();
	test_sealed();
	test_files();
	test_damaged(argc > 1 ? (uint32_t) atoi(argv[1]) : 2000,
				 argc > 2 ? (uint64_t) atoll(argv[2]) : 1);

	for (int i = 0; i < FILES; i++)
		unlink(files[i].path);
	(void) unlink("global/pg_control");
	(void) unlink(USED_FILE);
	if (rmdir("base/5") != 0 || rmdir("base") != 0 || rmdir("global") != 0 || chdir("..") != 0 || rmdir(dir) != 0)
		ok(false, "files are left");
	return done_testing();
}
