/*-------------------------------------------------------------------------
 *
 * image.c
 *	  The image: what a clean stop of the server leaves on disk of the directory, for
 *	  the next start.
 *
 * The image is kept memory (base/kept.h) on disk, and a start that finds one goes
 * through the same functions as a crash of a backend.  It has tables (the lease of the
 * buffer tier with its regions, spaces, generations), the files whose pages are in the
 * tier, and for each partition a chunk with its entries, and with what was sealed of these
 * if anything was.
 *
 * Who may have changed a file since?  The postmaster writes the image when all
 * other processes have ended, after the shutdown checkpoint.  The next postmaster takes
 * it if pg_control is the same file with the same bytes: then no other server
 * has run in between.  Each file of a relation must have its inode, size and change time;
 * otherwise the generation of its fork is bumped.  A file that had changed so
 * shortly before it was looked at that a later change may have the same time is
 * never the same.  The image is renamed before any process can write, so it is used once.
 * A copy of the volume that is started, too, has the same image: the first to
 * renew the lease replaces its secret, and the other gets no lease.
 *
 * Chunks are read when their partitions are built, by whoever needs the partition first,
 * and so before anything of it is changed; nobody uses a slot before the lease is
 * renewed.  All of it is checked by hashes: what is torn or damaged is not there.  Numbers
 * that could lead anywhere are checked nevertheless, here or where the memory is
 * opened.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "catalog/catversion.h"
#include "catalog/pg_control.h"
#include "miscadmin.h"

#include "base/compat.h"
#include "base/guc.h"
#include "base/hash.h"
#include "base/kept.h"
#include "base/layout.h"
#include "base/libc.h"
#include "base/stats.h"
#include "buffer/buffer.h"
#include "buffer/buffer_internal.h"
#include "buffer/directory.h"
#include "buffer/page.h"
#include "common/clock.h"
#include "remote/remote.h"

/* Backups leave files of that prefix out. */
#define IMAGE_FILE		"pgsql_tmp_remote_bp.image"
#define NEW_FILE		IMAGE_FILE ".new"
#define USED_FILE		IMAGE_FILE ".used"

/* To be changed with what is in the image */
#define FORMAT			UINT64_C(0x3430656761626d72)

/* A server's stop waits so long for the image, and a start for the files. */
#define WRITE_NS		(2 * NANOS_PER_S)
#define GIVE_UP_NS		(3 * NANOS_PER_S)
#define FILES_NS		NANOS_PER_S

/*
 * Change times are those of the last clock tick, 10 ms at most, or of the last second or
 * two where the file system has no finer ones.
 */
#define TICK_NS			(20 * NANOS_PER_MS)
#define COARSE_TICK_NS	(2100 * NANOS_PER_MS)

/*
 * So much of a partition's entries goes into an image, 1 GB of all; and so much of the
 * disk is left to others.
 */
#define CHUNK_BYTES		(((size_t) 1 << 30) / RBP_PARTITIONS)
#define FREE_BYTES		((uint64) 256 << 20)

#define MAX_FILES		(1 << 20)
#define PIECES			(RBP_REMOTE_PIECES + RBP_DIRECTORY_PIECES + 1)

/* Which file that is, and when it changed */
typedef struct Identity
{
	uint64		inode;
	uint64		size;
	int64		changed;		/* ns; 0: nobody knows when */
} Identity;

/* A segment file with pages in the tier; all zeros: none. */
typedef struct ImageFile
{
	Identity	id;
	uint32		rel;
	uint32		segment;
	uint16		space;
	uint8		fork;
	bool		there;			/* the place is taken */
} ImageFile;

/* Of a partition's pages, and of their seals; they follow the header, one after the other. */
typedef struct Chunk
{
	uint64		bytes;
	uint64		hash;			/* 0: it was not written */
} Chunk;

typedef struct Header
{
	uint64		format;
	char		version[32];
	uint32		server;			/* its catalog version */
	uint32		page_bytes;
	uint32		segment_pages;
	uint32		seal_bytes;		/* of each page; 0 if nothing was sealed */
	uint64		pieces[PIECES]; /* bytes of each */
	uint64		nfiles;
	uint64		tables_hash;	/* of pieces and files, which come last */
	Identity	control;		/* of pg_control */
	uint64		control_hash;
	Chunk		chunks[RBP_PARTITIONS];
	uint64		hash;			/* of all above */
} Header;

/* A table of files, by name; only for the process that writes the image */
typedef struct FileTable
{
	ImageFile  *files;			/* MAX_FILES places */
	ImageFile  *last;			/* the one that was found last */
	uint32		n;
	bool		full;
} FileTable;

static const char damaged[] = "it is damaged, or of another version";

static Header header;			/* of the image that is being read */
static bool pending = false;	/* its tables were read */

static bool
identify(const char *path, Identity *id)
{
	struct stat st;

	memset(id, 0, sizeof(*id));
	if (rbp_libc.lstat(path, &st) != 0)
		return false;
	id->inode = st.st_ino;
	id->size = (uint64) st.st_size;
	id->changed = (int64) st.st_ctim.tv_sec * NANOS_PER_S + st.st_ctim.tv_nsec;
	return true;
}

/* Would a change from now on be seen by the file's change time? */
static bool
has_settled(const Identity *id)
{
	struct timespec now;
	int64		age;

	clock_gettime(CLOCK_REALTIME, &now);
	age = now.tv_sec * NANOS_PER_S + now.tv_nsec - id->changed;
	return age > (id->changed % NANOS_PER_S == 0 ? COARSE_TICK_NS : TICK_NS);
}

static bool
same_identity(const Identity *a, const Identity *b)
{
	return a->inode == b->inode && a->size == b->size && a->changed == b->changed;
}

static bool
transfer(int fd, void *mem, Size bytes, off_t at, bool is_write)
{
	char	   *p = mem;

	while (bytes > 0)
	{
		ssize_t		done = is_write ? rbp_libc.pwrite(fd, p, bytes, at) : rbp_libc.pread(fd, p, bytes, at);

		if (done < 0 && errno == EINTR)
			continue;
		if (done == 0)
			errno = is_write ? ENOSPC : EIO;
		if (done <= 0)
			return false;
		p += done;
		at += done;
		bytes -= (Size) done;
	}
	return true;
}

/*
 * Which file pg_control is, and a hash of its bytes.  False if it does not say that the server
 * was shut down cleanly, and is no standby.
 */
static bool
read_control(Identity *id, uint64 *hash)
{
	static char bytes[PG_CONTROL_FILE_SIZE];
	const char *path = "global/pg_control";
	int			fd = rbp_libc.open(path, O_RDONLY | O_CLOEXEC);
	bool		good = fd >= 0 && transfer(fd, bytes, sizeof(bytes), 0, false) && identify(path, id);

	if (fd >= 0)
		(void) rbp_libc.close(fd);
	*hash = rbp_hash_bytes(bytes, sizeof(bytes));
	return good && ((ControlFileData *) bytes)->state == DB_SHUTDOWNED;
}

/*
 * All of kept memory that is in the image but for entries: where it lies, in the order
 * of the image.
 */
static void
list_pieces(RbpPiece pieces[PIECES])
{
	rbp_remote_pieces(pieces);
	rbp_directory_pieces(rbp_dir, pieces + RBP_REMOTE_PIECES);
	pieces[PIECES - 1] = (RbpPiece)
	{
		rbp_tier_shared->spaces, sizeof(rbp_tier_shared->spaces)
	};
}

/* Spaces are never given up, so an image that is used again and again would fill them. */
static bool
spaces_are_few(void)
{
	int			used = 0;

	for (int i = 0; i < RBP_MAX_SPACES; i++)
		used += pg_atomic_read_u64(&rbp_tier_shared->spaces[i]) != 0;
	return used <= RBP_MAX_SPACES / 2;
}

/* All of the header but its hash, and what depends on the files. */
static void
begin_header(Header *h, const RbpPiece pieces[PIECES])
{
	memset(h, 0, sizeof(*h));
	h->format = FORMAT;
	strlcpy(h->version, RBP_VERSION, sizeof(h->version));
	h->server = CATALOG_VERSION_NO;
	h->page_bytes = BLCKSZ;
	h->segment_pages = RELSEG_SIZE;
	h->seal_bytes = rbp_remote_sealed_slot(0) != NULL ? RBP_SEALED_BYTES : 0;
	for (int i = 0; i < PIECES; i++)
		h->pieces[i] = pieces[i].bytes;
}

/*
 * ---- a clean stop --------------------------------------------------------------
 */

static bool
same_file(const ImageFile *a, const ImageFile *b)
{
	return a->rel == b->rel && a->segment == b->segment && a->space == b->space && a->fork == b->fork;
}

/* Note the file of a page. */
static void
note_file(FileTable *t, const RbpPageId *page)
{
	const ImageFile key = {
		.rel = page->rel,.segment = page->block / RELSEG_SIZE,.space = page->space,
		.fork = page->fork,.there = true
	};

	/* the fork's hash is mixed already; its segments shall not be neighbours */
	uint64		place = rbp_fork_hash(key.rel, key.space, key.fork) + key.segment * UINT64_C(0x9e3779b97f4a7c15);

	if (t->last != NULL && same_file(t->last, &key))
		return;
	for (;; place++)
	{
		ImageFile  *f = &t->files[place % MAX_FILES];

		if (!f->there && t->n == MAX_FILES / 2)
		{
			t->full = true;
			return;
		}
		if (!f->there)
		{
			*f = key;
			t->n++;
		}
		else if (!same_file(f, &key))
			continue;
		t->last = f;
		return;
	}
}

static bool
identify_file(const ImageFile *f, Identity *id)
{
	RbpRelFile	file = {.rel = f->rel,.segment = f->segment,.fork = f->fork};
	char	   *path;
	bool		found;

	if (!rbp_space_resolve(f->space, &file.spc, &file.db))
		return false;
	path = rbp_compat_path(&file);
	found = identify(path, id);
	pfree(path);
	return found;
}

/* Put the files at the beginning of the table, with what they are now. */
static void
look_at_files(FileTable *t)
{
	uint32		n = 0;

	for (uint32 i = 0; i < MAX_FILES && n < t->n; i++)
	{
		ImageFile	f = t->files[i];

		if (!f.there)
			continue;
		if (!identify_file(&f, &f.id) || !has_settled(&f.id))
			f.id.changed = 0;
		t->files[n++] = f;
	}
}

/* Bytes of all tables: the pieces, and the files after them */
static Size
tables_bytes(const Header *h)
{
	Size		bytes = h->nfiles * sizeof(ImageFile);

	for (int i = 0; i < PIECES; i++)
		bytes += h->pieces[i];
	return bytes;
}

/* Where the chunk of the partition is; that of one more: where tables are. */
static off_t
chunk_at(const Header *h, int partition)
{
	off_t		at = sizeof(Header);

	for (int i = 0; i < partition; i++)
		at += (off_t) h->chunks[i].bytes;
	return at;
}

static bool
has_room(int fd, Size bytes)
{
	struct statvfs fs;

	return fstatvfs(fd, &fs) == 0 && (uint64) fs.f_bavail * fs.f_frsize >= FREE_BYTES + bytes;
}

/* What an image has of each page */
static Size
page_bytes(const Header *h)
{
	return RBP_ENTRY_BYTES + h->seal_bytes;
}

/* Write the partition's pages, and note their files.  False, with errno set, if that fails. */
static bool
write_chunk(Header *h, int fd, int partition, FileTable *t)
{
	static char *pages = NULL;
	Chunk	   *c = &h->chunks[partition];
	Size		bytes;
	char	   *end;

	if (pages == NULL)
		pages = malloc(CHUNK_BYTES);
	if (pages == NULL)
		return false;
	bytes = rbp_directory_store(rbp_dir, partition, pages, CHUNK_BYTES / page_bytes(h) * RBP_ENTRY_BYTES);
	end = pages + bytes;
	for (Size i = 0; i < bytes / RBP_ENTRY_BYTES; i++)
	{
		RbpPageId	page = rbp_directory_stored_page(pages, i);

		note_file(t, &page);
		if (h->seal_bytes > 0)
			end = mempcpy(end, rbp_remote_sealed_slot(rbp_directory_stored_slot(partition, pages, i)),
						  h->seal_bytes);
	}
	bytes = (Size) (end - pages);
	errno = ENOSPC;
	if (!has_room(fd, bytes) || !transfer(fd, pages, bytes, chunk_at(h, partition), true))
		return false;
	c->bytes = bytes;
	c->hash = rbp_hash_bytes(pages, bytes) | 1;
	return true;
}

/*
 * Write the image, in a process of its own: chunks until that time, or until there is no
 * room, and then the tables, for the files of these.  Returns its exit status: 0, or the errno
 * of what failed.
 */
static int
write_image(int64 until)
{
	RbpPiece	pieces[PIECES];
	FileTable	t = {0};
	Header		h;
	Size		bytes;
	char	   *tables;
	char	   *end;
	int			fd;

	list_pieces(pieces);
	begin_header(&h, pieces);
	t.files = mmap(NULL, MAX_FILES * sizeof(ImageFile), PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (t.files == MAP_FAILED)
		return errno;
	(void) rbp_libc.unlink(NEW_FILE);
	fd = rbp_libc.open(NEW_FILE, O_RDWR | O_CREAT | O_EXCL, 0600);
	if (fd < 0)
		return errno;
	for (int part = 0; part < RBP_PARTITIONS && rbp_now_ns() < until; part++)
	{
		if (!write_chunk(&h, fd, part, &t))
		{
			if (part > 0 && errno == ENOSPC)
				break;
			return errno;
		}
		rbp_tier_shared->image_chunks = part + 1;
	}
	if (t.full)
		return EMFILE;
	pg_usleep(TICK_NS / 1000 + 5000);
	look_at_files(&t);
	h.nfiles = t.n;
	if (!read_control(&h.control, &h.control_hash))
		return EIO;
	bytes = tables_bytes(&h);
	tables = malloc(bytes);
	if (tables == NULL)
		return ENOMEM;
	end = tables;
	for (int i = 0; i < PIECES; i++)
		end = mempcpy(end, pieces[i].mem, pieces[i].bytes);
	memcpy(end, t.files, t.n * sizeof(ImageFile));
	h.tables_hash = rbp_hash_bytes(tables, bytes);
	if (!transfer(fd, tables, bytes, chunk_at(&h, RBP_PARTITIONS), true))
		return errno;
	h.hash = rbp_hash_bytes(&h, offsetof(Header, hash));
	if (!transfer(fd, &h, sizeof(h), 0, true) || rbp_libc.rename(NEW_FILE, IMAGE_FILE) != 0)
		return errno;
	return 0;
}

/* Why there is to be no image, or NULL. */
static const char *
refuses_image(void)
{
	Identity	id;
	uint64		hash;
	const char *why = rbp_kept_discarded();

	if (why != NULL)
		return why;
	if (!enableFsync)
		return "fsync is off";
	if (!rbp_remote_has_lease(RBP_POOL_BUFFER))
		return "there is no lease";
	if (!read_control(&id, &hash))
		return "the server was not shut down cleanly, or is a standby";
	return spaces_are_few() ? NULL : "too many databases were used";
}

void
rbp_tier_image_write(int code)
{
	int64		start = rbp_now_ns();
	const char *why;
	pid_t		child;
	pid_t		ended = 0;
	int			status = 0;

	/* an immediate stop has code 0, too; a single-user server has no memory */
	if (code != 0 || rbp_guc_warm_restart != RBP_WARM_RESTART_ON ||
		pg_atomic_read_u32(&rbp_tier_shared->in_use) == 0)
		return;
	why = refuses_image();
	if (why != NULL)
	{
		ereport(LOG, (errmsg("remote_bp: the next start begins with an empty tier: %s", why)));
		return;
	}

	/* a disk that hangs must not hold up the stop for long */
	child = fork();
	if (child == 0)
	{
		/*
		 * should it hang, and be left behind: the next start needs the
		 * sockets' addresses
		 */
		(void) close_range(3, ~0U, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(getppid() == PostmasterPid ? write_image(start + WRITE_NS) : ESRCH);
	}
	while (child > 0 && ended == 0 && rbp_now_ns() < start + GIVE_UP_NS)
	{
		ended = waitpid(child, &status, WNOHANG);
		if (ended == 0)
			pg_usleep(5000);
	}
	if (child > 0 && ended == 0)
		(void) kill(child, SIGKILL);
	if (ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0)
		ereport(LOG,
				(errmsg("remote_bp: what donors have is noted for the next start, %d of %d parts in %lld ms",
						rbp_tier_shared->image_chunks, RBP_PARTITIONS, (long long) ((rbp_now_ns() - start) / NANOS_PER_MS))));
	else
	{
		if (ended == child && WIFEXITED(status))
			errno = WEXITSTATUS(status);
		else if (child > 0)
			errno = ETIMEDOUT;
		ereport(LOG, (errmsg("remote_bp: the next start begins with an empty tier: could not write \"%s\": %m", IMAGE_FILE)));
		(void) rbp_libc.unlink(NEW_FILE);
	}
}

/*
 * ---- a start --------------------------------------------------------------------
 */

/*
 * Read a partition's pages, malloc'ed, of how many bytes; NULL if the image does not have them.
 * What was sealed of them is loaded.
 */
static void *
read_chunk(int partition, size_t *bytes)
{
	const Chunk *c = &header.chunks[partition];
	char	   *pages = malloc(c->bytes);
	int			fd = rbp_libc.open(USED_FILE, O_RDONLY | O_CLOEXEC);
	bool		good = fd >= 0 && pages != NULL &&
	transfer(fd, pages, c->bytes, chunk_at(&header, partition), false) &&
	(rbp_hash_bytes(pages, c->bytes) | 1) == c->hash;

	if (fd >= 0)
		(void) rbp_libc.close(fd);
	if (!good)
	{
		free(pages);
		return NULL;
	}
	*bytes = c->bytes / page_bytes(&header) * RBP_ENTRY_BYTES;
	for (Size i = 0; header.seal_bytes > 0 && i < *bytes / RBP_ENTRY_BYTES; i++)
	{
		void	   *sealed = rbp_remote_sealed_slot(rbp_directory_stored_slot(partition, pages, i));

		if (sealed != NULL)
			memcpy(sealed, pages + *bytes + i * header.seal_bytes, header.seal_bytes);
	}
	return pages;
}

/* Make a change of a name in the data directory durable. */
static bool
sync_data_directory(void)
{
	int			fd = rbp_libc.open(".", O_RDONLY | O_CLOEXEC);
	bool		good = fd >= 0 && fsync(fd) == 0;

	if (fd >= 0)
		(void) rbp_libc.close(fd);
	return good;
}

/* Why that is not the header of an image that fits; NULL: it is. */
static const char *
refuse_header(const RbpPiece pieces[PIECES])
{
	Header		ours;

	begin_header(&ours, pieces);
	if (header.format != ours.format ||
		header.hash != rbp_hash_bytes(&header, offsetof(Header, hash)) ||
		memcmp(header.version, ours.version, sizeof(ours.version)) != 0 ||
		header.server != ours.server || header.page_bytes != ours.page_bytes ||
		header.segment_pages != ours.segment_pages || header.nfiles > MAX_FILES ||
		(header.seal_bytes != 0 && header.seal_bytes != RBP_SEALED_BYTES))
		return damaged;
	for (int part = 0; part < RBP_PARTITIONS; part++)
		if (header.chunks[part].bytes > CHUNK_BYTES)
			return damaged;
	if (header.seal_bytes != 0 && rbp_guc_encrypt == RBP_ENCRYPT_OFF)
		return "remote_bp.encrypt is off now";
	for (int i = 0; i < PIECES; i++)
		if (i >= RBP_REMOTE_GROWS && i < RBP_REMOTE_PIECES ? header.pieces[i] > ours.pieces[i] :
			header.pieces[i] != ours.pieces[i])
			return "remote_bp.buffer_tier_max_size is smaller, or very different";
	return read_control(&ours.control, &ours.control_hash) &&
		same_identity(&header.control, &ours.control) &&
		header.control_hash == ours.control_hash && access("backup_label", F_OK) != 0 ?
		NULL : "the data directory was used, copied or restored since";
}

/* Forks that have a file which has changed, or may have, lose their pages. */
static int
check_files(const ImageFile *files)
{
	int64		until = rbp_now_ns() + FILES_NS;
	int			changed = 0;

	for (uint64 i = 0; i < header.nfiles; i++)
	{
		const ImageFile *f = &files[i];
		Identity	now;

		if (f->id.changed != 0 && rbp_now_ns() < until &&
			identify_file(f, &now) && same_identity(&f->id, &now))
			continue;
		rbp_directory_bump_generation(rbp_dir, f->rel, f->space, f->fork);
		changed++;
	}
	return changed;
}

/*
 * Read the tables into kept memory.  Returns NULL, or why that cannot be done: then
 * nothing has changed there.
 */
static const char *
read_tables(int fd)
{
	RbpPiece	pieces[PIECES];
	Size		bytes;
	const char *why;
	char	   *tables;
	char	   *at;
	int			changed;

	list_pieces(pieces);
	why = transfer(fd, &header, sizeof(header), 0, false) ? refuse_header(pieces) : damaged;
	if (why != NULL)
		return why;
	/* used once, whatever happens: before anybody can write */
	if (rbp_libc.rename(IMAGE_FILE, USED_FILE) != 0 || !sync_data_directory())
		return "it could not be renamed";
	bytes = tables_bytes(&header);
	tables = malloc(bytes);
	if (tables == NULL || !transfer(fd, tables, bytes, chunk_at(&header, RBP_PARTITIONS), false))
		why = "it could not be read";
	else if (rbp_hash_bytes(tables, bytes) != header.tables_hash)
		why = damaged;
	if (why != NULL)
	{
		free(tables);
		return why;
	}
	/* a piece may be longer here, and has zeros then */
	at = tables;
	for (int i = 0; i < PIECES; i++)
	{
		memcpy(pieces[i].mem, at, header.pieces[i]);
		at += header.pieces[i];
	}
	changed = check_files((ImageFile *) at);
	explicit_bzero(tables, bytes);
	free(tables);
	rbp_remote_forget_deadline(RBP_POOL_BUFFER);
	pg_atomic_write_u32(&rbp_tier_shared->in_use, 1);
	ereport(LOG,
			(errmsg("remote_bp: going on with what donors have; %d of %llu files have changed",
					changed, (unsigned long long) header.nfiles)));
	return NULL;
}

bool
rbp_tier_image_read(void)
{
	const char *why;
	int			fd;

	(void) rbp_libc.unlink(NEW_FILE);
	(void) rbp_libc.unlink(USED_FILE);
	fd = rbp_libc.open(IMAGE_FILE, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	why = !IsPostmasterEnvironment ? "this is a single-user server" :
		rbp_guc_warm_restart != RBP_WARM_RESTART_ON ? "remote_bp.warm_restart is not \"on\"" :
		read_tables(fd);
	(void) rbp_libc.close(fd);
	(void) rbp_libc.unlink(IMAGE_FILE);
	pending = why == NULL;
	if (pending)
		return true;
	(void) rbp_libc.unlink(USED_FILE);
	ereport(LOG, (errmsg("remote_bp: the tier begins empty, although the last stop has left an image of it: %s", why)));
	rbp_stats_error("the image of the last stop could not be used: %s", why);
	return false;
}

void
rbp_tier_image_load(void)
{
	if (pending)
		rbp_directory_load_by(rbp_dir, read_chunk);
	pending = false;
}

void
rbp_tier_image_loaded(void)
{
	(void) rbp_libc.unlink(USED_FILE);
}
