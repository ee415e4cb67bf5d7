/*-------------------------------------------------------------------------
 *
 * files.c
 *	  Temporary files: blocks on donors instead of in the real file.
 *
 * What must hold
 * --------------
 * A block (8 KiB at a multiple of that) has a value in rbp_spill_table, or
 * none; that says where its content is, all of it:
 *
 *	none			in the real file; zeros where that is shorter
 *	a staging page	in shared memory: being filled (the file's open page, one
 *					at most), or on its way to donors
 *	a slot			on a donor, with its hash in SlotInfo, and perhaps a second
 *					copy in another slot on another donor
 *	lost			nowhere: a donor had failed, and the disk too
 *
 * 1. There is no other copy, so nothing is ever guessed: content that cannot
 *	  be had, or does not match its hash, is EIO.  And after a file was
 *	  forgotten, descriptors that knew it get EIO, never the real file's holes.
 * 2. A slot has one owner: from rbp_spill_slots_alloc() until the block's
 *	  value is replaced.  A block that is written again gets another slot, so
 *	  that no write to a slot is ever followed by a second one for the same
 *	  owner, and a reader that is late reads what it was promised or something
 *	  that does not match.  A slot whose write failed rests in quarantine, for
 *	  the write may still come.
 * 3. The size users see is kept beside the blocks, and is never less than the
 *	  real file's.  Bytes of a block past it are zeros.
 * 4. Data goes to its new place first, then the value changes, under the
 *	  file's lock; the old place is given back after that.
 * 5. Who unlinks the real file does that first, and forgets second, by a handle
 *	  taken before: a new file of the same name has another.  Truncation, and
 *	  any write to the real file of a block that is elsewhere, are done under
 *	  the file's lock together with the change of the table, for the lease
 *	  worker may be moving blocks there.
 *
 * What the server does, and this relies on: several processes may write a file,
 * but not the same block at the same time, and parts of blocks only one process
 * at a time, since whoever begins another block sends the open page.  (Else bytes
 * of one of them could be lost, within a block.)
 *
 * Locks: a file's lock covers its values, its state, the SlotInfo of its
 * slots, and the "dropped" marks of its staging pages.  It is not held while a
 * donor is waited for, and while the disk is only by rule 5 and when a failed
 * write is repaired.  Under it, the locks inside rbp_spill_table and rbp_spill_slots.
 *
 * Private to a process: the chunks of staging pages that it is filling and
 * sending (write.c) and what it has read ahead (read.c).
 * Others see staged blocks through the table, and read them from staging.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/pg_shmem.h"
#include "storage/proc.h"

#include "base/geometry.h"
#include "base/guc.h"
#include "base/libc.h"
#include "base/lock.h"
#include "base/stats.h"
#include "common/clock.h"
#include "remote/remote.h"
#include "spill/slots.h"
#include "spill/spill.h"
#include "spill/spill_internal.h"
#include "spill/table.h"

/* Slots that a file reserves at a time, growing with the file. */
#define RUN_FIRST			4
#define RUN_LAST			32

/* Extents beyond the quota, for those whose region was lost while in use */
#define SPARE_EXTENTS(n)	((n) / 16 + 16)

struct RbpSpillOpen
{
	RbpSpillHandle handle;		/* RBP_SPILL_NO_FILE until it is known */
	bool		relation;
	bool		writable;
	bool		missed;			/* it had no entry when so many were created: */
	uint32		created;
	char		name[RBP_SPILL_NAME_LEN];
};

RbpSpillSlots *rbp_spill_slots = NULL;
RbpSpillTable *rbp_spill_table = NULL;
SpillShared *rbp_spill_shared = NULL;
bool		rbp_spill_used = false;

#define shared		rbp_spill_shared

/*
 * ---- set-up -------------------------------------------------------------------
 */

uint32
rbp_spill_max_extents(void)
{
	uint32		n = (uint32) rbp_guc_temp_tier_max_size;

	return n == 0 ? 0 : n + SPARE_EXTENTS(n);
}

static uint32
max_slots(void)
{
	return rbp_spill_max_extents() * RBP_EXTENT_PAGES;
}

/* Files with blocks elsewhere, at a time. */
static uint32
max_files(void)
{
	return Min(Max(max_slots() / 32, 1024), 65536);
}

/*
 * Nodes of 64 blocks: enough for large files that are dense, and one for each
 * file.
 */
static uint32
max_nodes(void)
{
	return max_slots() / 60 + max_files() + 1024;
}

static uint32
staging_pages(void)
{
	return (uint32) rbp_guc_temp_staging_size / (BLCKSZ / 1024);
}

/* A quarter of the staging region is for blocks that are being filled. */
static uint32
staging_chunks(void)
{
	return (staging_pages() - staging_pages() / 4) / CHUNK_PAGES;
}

static uint32
bitmap_words(uint32 bits)
{
	return (bits + 63) / 64;
}

Size
rbp_spill_shmem_size(void)
{
	Size		size = MAXALIGN(sizeof(SpillShared));
	uint32		pages = staging_pages();

	if (rbp_guc_temp_tier_max_size == 0)
		return size;
	size = add_size(size, sizeof(RbpSpillCosts));
	size = add_size(size, rbp_spill_slots_size(rbp_spill_max_extents()));
	size = add_size(size, rbp_spill_table_size(max_files(), max_nodes()));
	size = add_size(size, mul_size(sizeof(SlotInfo), max_slots()));
	size = add_size(size, mul_size(sizeof(pg_atomic_uint32), rbp_spill_max_extents()));
	size = add_size(size, mul_size(BLCKSZ + sizeof(bool), pages));
	size = add_size(size, mul_size(sizeof(pg_atomic_uint64), 2 * bitmap_words(pages)));
	return add_size(size, 9 * PG_CACHE_LINE_SIZE + 2 * 4096);
}

static void *
take(char **arena, Size size, Size align)
{
	char	   *mem = (char *) TYPEALIGN(align, *arena);

	*arena = mem + size;
	return mem;
}

/* All of n bits set. */
static pg_atomic_uint64 *
make_bitmap(char **arena, uint32 n)
{
	pg_atomic_uint64 *words = take(arena, sizeof(pg_atomic_uint64) * bitmap_words(n),
								   PG_CACHE_LINE_SIZE);

	for (uint32 i = 0; i < bitmap_words(n); i++)
	{
		uint32		bits = n - i * 64;

		pg_atomic_init_u64(&words[i], PG_UINT64_MAX >> (64 - Min(bits, 64)));
	}
	return words;
}

static void
at_transaction_end(XactEvent event, void *arg)
{
	/* most have spilled nothing */
	if (likely(!rbp_spill_used))
		return;
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PREPARE:
			rbp_spill_end_read_ahead();
			rbp_spill_flush(false);
			rbp_spill_used = false;
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PARALLEL_ABORT:
			rbp_spill_end_read_ahead();
			rbp_spill_flush(true);
			rbp_spill_used = false;
			break;
		default:
			break;
	}
}

void
rbp_spill_shmem_init(void *mem, uint32 first_extent)
{
	static bool registered = false;
	char	   *arena = mem;
	SpillShared *sh = take(&arena, sizeof(SpillShared), MAXIMUM_ALIGNOF);
	uint32		extents = rbp_spill_max_extents();

	if (rbp_guc_temp_tier_max_size == 0)
		return;
	if (!registered)
	{
		/* This is the postmaster, whose children inherit it. */
		RegisterXactCallback(at_transaction_end, NULL);
		registered = true;
	}

	sh->costs = take(&arena, sizeof(RbpSpillCosts), PG_CACHE_LINE_SIZE);
	rbp_spill_cost_shmem_init(sh->costs);
	sh->first_slot = RBP_EXTENT_SLOT(first_extent);
	sh->nslots = max_slots();
	sh->nchunks = staging_chunks();
	sh->nopen = staging_pages() - sh->nchunks * CHUNK_PAGES;
	rbp_spill_slots = rbp_spill_slots_init(take(&arena, rbp_spill_slots_size(extents),
												PG_CACHE_LINE_SIZE),
										   first_extent, extents,
										   rbp_lock_tranche("RemoteBpSpillSlots"));
	rbp_spill_table = rbp_spill_table_init(take(&arena,
												rbp_spill_table_size(max_files(), max_nodes()),
												PG_CACHE_LINE_SIZE),
										   max_files(), max_nodes(),
										   rbp_lock_tranche("RemoteBpSpillNames"),
										   rbp_lock_tranche("RemoteBpSpillFile"));
	sh->slots = take(&arena, sizeof(SlotInfo) * max_slots(), PG_CACHE_LINE_SIZE);
	sh->pending = take(&arena, sizeof(pg_atomic_uint32) * extents, PG_CACHE_LINE_SIZE);
	for (uint32 i = 0; i < extents; i++)
		pg_atomic_init_u32(&sh->pending[i], 0);
	sh->open_free = make_bitmap(&arena, sh->nopen);
	sh->chunk_free = make_bitmap(&arena, sh->nchunks);
	sh->dropped = take(&arena, sizeof(bool) * staging_pages(), PG_CACHE_LINE_SIZE);
	memset(sh->dropped, 0, sizeof(bool) * staging_pages());
	sh->pages = take(&arena, (Size) BLCKSZ * staging_pages(), 4096);
	shared = sh;
}

void
rbp_spill_stand_down(void)
{
	shared = NULL;
	rbp_spill_slots = NULL;
	rbp_spill_table = NULL;
}

/*
 * ---- for remote -----------------------------------------------------------
 */

static bool
extent_absent(uint32 extent)
{
	return rbp_spill_slots_absent(rbp_spill_slots, extent);
}

static void
extent_online(uint32 extent, uint32 region)
{
	rbp_spill_slots_online(rbp_spill_slots, extent, region);
}

static void
extent_offline(uint32 extent)
{
	rbp_spill_slots_offline(rbp_spill_slots, extent);
}

/* What is on its way does not count: if it does not arrive, it is still here. */
static uint64
extent_used(uint32 extent)
{
	return rbp_spill_extent_blocks(extent);
}

static uint64
region_used(uint32 region)
{
	return rbp_spill_slots_account_used(rbp_spill_slots, region);
}

static void
extent_drain(uint32 extent)
{
	rbp_spill_slots_drain(rbp_spill_slots, extent);
}

static void
extent_undrain(uint32 extent)
{
	rbp_spill_slots_undrain(rbp_spill_slots, extent);
}

const RbpRemotePoolOps rbp_spill_pool_ops = {
	.absent = extent_absent,
	.online = extent_online,
	.offline = extent_offline,
	.heat = region_used,
	.used = region_used,
	.extent_used = extent_used,
	.drain = extent_drain,
	.undrain = extent_undrain,
	.evacuate = rbp_spill_evacuate,
};

/*
 * ---- slots and values --------------------------------------------------------
 */

/* May this process use any of it? */
static inline bool
attached(void)
{
	return shared != NULL && UsedShmemSegAddr != NULL && MyProc != NULL;
}

static bool
extent_ok(uint32 extent, void *arg)
{
	const int  *other = arg;
	uint32		slot = RBP_EXTENT_SLOT(extent);

	return rbp_remote_slot_writable(slot) &&
		(other == NULL || rbp_remote_slot_donor(slot) != *other);
}

/* Of a reservation: the next slot if it is (still) any good. */
static bool
from_run(uint32 *next, uint32 *left, const int *other, uint32 *slot)
{
	if (*left == 0)
		return false;
	if (!extent_ok(*next / RBP_EXTENT_PAGES, unconstify(int *, other)))
	{
		rbp_spill_slots_free(rbp_spill_slots, *next, *left);
		*left = 0;
		return false;
	}
	*slot = (*next)++;
	(*left)--;
	return true;
}

bool
rbp_spill_take_slots(RbpSpillFile *file, uint32 *slot, uint32 *mirror)
{
	RbpSpillFileState *st = rbp_spill_file_state(file);
	int			donor;

	if (!from_run(&st->run_next, &st->run_left, NULL, slot))
	{
		/* less when there is little left, lest it is reserved by the idle */
		uint32		fair = rbp_spill_slots_free_count(rbp_spill_slots) / 512;

		st->run_len = st->run_len == 0 ? RUN_FIRST :
			Min(st->run_len * 2, RUN_LAST);
		st->run_len = Max(Min(st->run_len, fair), 1);
		st->run_left = rbp_spill_slots_alloc(rbp_spill_slots, st->run_len,
											 extent_ok, NULL, &st->run_next);
		if (!from_run(&st->run_next, &st->run_left, NULL, slot))
			return false;
	}
	slot_info(*slot)->next = NO_BLOCK;
	if (mirror == NULL)
		return true;

	donor = rbp_remote_slot_donor(*slot);
	if (!from_run(&st->mirror_next, &st->mirror_left, &donor, mirror))
	{
		st->mirror_left = rbp_spill_slots_alloc(rbp_spill_slots, st->run_len,
												extent_ok, &donor,
												&st->mirror_next);
		if (!from_run(&st->mirror_next, &st->mirror_left, &donor, mirror))
		{
			/*
			 * Back into the reservation.  If it were freed, the next look for
			 * a second copy would begin there, and not where this one ended.
			 */
			st->run_next = *slot;
			st->run_left++;
			return false;
		}
	}
	return true;
}

void
rbp_spill_end_runs(RbpSpillFileState *st)
{
	if (st->run_left > 0)
		rbp_spill_slots_free(rbp_spill_slots, st->run_next, st->run_left);
	if (st->mirror_left > 0)
		rbp_spill_slots_free(rbp_spill_slots, st->mirror_next, st->mirror_left);
	st->run_left = 0;
	st->mirror_left = 0;
}

/*
 * Slots to give back, gathered into runs: a file that goes has many, next to
 * each other.
 */
typedef struct Freed
{
	uint32		first;
	uint32		n;
} Freed;

static void
free_gathered(Freed *freed)
{
	if (freed->n > 0)
		rbp_spill_slots_free(rbp_spill_slots, freed->first, freed->n);
	freed->n = 0;
}

static void
gather(Freed *freed, uint32 slot)
{
	if (freed->n > 0 && slot == freed->first + freed->n &&
		slot / RBP_EXTENT_PAGES == freed->first / RBP_EXTENT_PAGES)
	{
		freed->n++;
		return;
	}
	free_gathered(freed);
	freed->first = slot;
	freed->n = 1;
}

static void
drop_value(RbpSpillFile *file, uint32 value, Freed *freed)
{
	RbpSpillFileState *st = rbp_spill_file_state(file);

	if (IS_STAGED(value))
	{
		uint32		page = STAGED_PAGE(value);

		if (page == st->open_page)
		{
			st->open_page = RBP_SPILL_NO_PAGE;
			rbp_spill_bitmap_put(shared->open_free, page);
		}
		else
			shared->dropped[page] = true;	/* who sends it gives it back */
		st->staged_blocks--;
	}
	else if (IS_SLOT(value))
	{
		uint32		slot = VALUE_SLOT(value);
		SlotInfo   *info = slot_info(slot);

		if (info->mirror != NO_SLOT)
		{
			rbp_spill_slots_free(rbp_spill_slots, info->mirror, 1);
			info->mirror = NO_SLOT;
			st->mirrored_blocks--;
		}
		gather(freed, slot);
		st->slot_blocks--;
	}
}

void
rbp_spill_drop_value(RbpSpillFile *file, uint32 value)
{
	Freed		freed = {0};

	drop_value(file, value, &freed);
	free_gathered(&freed);
}

void
rbp_spill_install(RbpSpillFile *file, uint32 block, uint32 slot,
				  uint32 mirror, uint64 hash)
{
	RbpSpillFileState *st = rbp_spill_file_state(file);
	uint32		old = rbp_spill_block_get(rbp_spill_table, file, block);
	RbpSpillHandle handle = rbp_spill_file_handle(rbp_spill_table, file);
	SlotInfo   *info = slot_info(slot);

	info->hash = hash;
	info->file = handle.index;
	info->block = block;
	info->mirror = mirror;
	info->donor = rbp_remote_slot_donor(slot);
	if (mirror != NO_SLOT)
	{
		slot_info(mirror)->file = handle.index;
		slot_info(mirror)->block = block;
		slot_info(mirror)->mirror = NO_SLOT;
		st->mirrored_blocks++;
	}
	st->slot_blocks++;
	/* the caller saw to it that there is a value already, or a node */
	(void) rbp_spill_block_set(rbp_spill_table, file, block, SLOT_VALUE(slot));
	rbp_spill_drop_value(file, old);
}

/*
 * A descriptor for rbp_spill_to_real_file(), which fd.c does not know of: at the
 * limit, one that was kept for this is given up for it.
 */
static int
open_real_file(const char *name)
{
	static int	spare = -1;
	int			fd = rbp_libc.open(name, O_WRONLY | O_CLOEXEC);

	if (fd < 0 && (errno == EMFILE || errno == ENFILE) && spare >= 0)
	{
		(void) rbp_libc.close(spare);
		spare = -1;
		fd = rbp_libc.open(name, O_WRONLY | O_CLOEXEC);
	}
	else if (spare < 0)
	{
		int			save_errno = errno;

		spare = rbp_libc.open("/dev/null", O_RDONLY | O_CLOEXEC);
		errno = save_errno;
	}
	return fd;
}

bool
rbp_spill_to_real_file(RbpSpillFile *file, uint32 block, const char *data,
					   int *fd)
{
	RbpSpillFileState *st = rbp_spill_file_state(file);
	uint32		value = rbp_spill_block_get(rbp_spill_table, file, block);
	off_t		start = (off_t) block * BLCKSZ;
	ssize_t		len = (ssize_t) Min(st->size - start, BLCKSZ);
	ssize_t		n = 0;

	if (*fd < 0)
		*fd = open_real_file(rbp_spill_file_name(file));
	if (*fd < 0)
		return false;
	if (len > 0)
		n = rbp_libc.pwrite(*fd, data, len, start);
	if (n < len && len > 0)
	{
		if (n >= 0)
			errno = ENOSPC;
		return false;
	}
	(void) rbp_spill_block_set(rbp_spill_table, file, block, VALUE_NONE);
	rbp_spill_drop_value(file, value);
	return true;
}

/*
 * ---- files ---------------------------------------------------------------------
 */

static void
forget_visit(RbpSpillFile *file, uint32 block, uint32 value, void *arg)
{
	if (value == VALUE_NONE)
		rbp_spill_end_runs(rbp_spill_file_state(file));
	else
		drop_value(file, value, arg);
}

void
rbp_spill_forget_handle(RbpSpillHandle handle)
{
	Freed		freed = {0};

	(void) rbp_spill_table_remove(rbp_spill_table, handle, forget_visit, &freed);
	free_gathered(&freed);
}

/* Any files with an entry? What most calls end with, cheaply. */
static inline bool
any_files(void)
{
	return attached() && rbp_spill_table_files(rbp_spill_table) > 0;
}

/* The descriptor's file, if it has an entry. */
static inline bool
known(RbpSpillOpen *o)
{
	uint32		created;

	if (o->handle.index != RBP_SPILL_NO_FILE)
		return attached();
	if (!any_files())
		return false;
	/* before the look, so that one that comes meanwhile is looked for again */
	created = rbp_spill_table_created(rbp_spill_table);
	if (o->missed && o->created == created)
		return false;
	if (rbp_spill_table_find(rbp_spill_table, o->name, &o->handle))
		return true;
	o->missed = true;
	o->created = created;
	return false;
}

static inline bool
wanted(const RbpSpillOpen *o)
{
	return o->relation ? rbp_guc_spill_temp_tables : rbp_guc_spill_temp_files;
}

/* The process that the name is of; for a relation, whoever creates it. */
static int
owner_of(const RbpSpillOpen *o)
{
	const char *p = o->relation ? NULL : strstr(o->name, "/pgsql_tmp/pgsql_tmp");

	return p != NULL ? atoi(p + strlen("/pgsql_tmp/pgsql_tmp")) : MyProcPid;
}

/* The file is at least so large. */
static void
raise_size(RbpSpillOpen *o, off_t size)
{
	RbpSpillFile *file = rbp_spill_file_lock(rbp_spill_table, o->handle, true);
	RbpSpillFileState *st;

	if (file == NULL)
		return;					/* it is gone */
	st = rbp_spill_file_state(file);
	st->size = Max(st->size, size);
	rbp_spill_file_unlock(rbp_spill_table, file);
}

/* Give the file, of which fd is a descriptor (-1: it is new), an entry. */
static bool
create_entry(RbpSpillOpen *o, int fd)
{
	struct stat real = {.st_size = 0};
	RbpSpillFileState initial = {
		.size = 0,
		.open_page = RBP_SPILL_NO_PAGE,
		.owner = owner_of(o),
		.relation = o->relation,
	};
	bool		created;

	if (fd >= 0 && rbp_libc.fstat(fd, &real) != 0)
		return false;
	initial.size = real.st_size;
	if (!rbp_spill_table_create(rbp_spill_table, o->name, &initial, &o->handle,
								&created))
	{
		o->handle.index = RBP_SPILL_NO_FILE;
		return false;
	}

	/*
	 * Another process may have written to the file meanwhile.  One that does from now on
	 * sees the entry when it has, and raises the size: wrote_without_entry().
	 */
	if (fd >= 0 && created && rbp_libc.fstat(fd, &real) == 0)
		raise_size(o, real.st_size);
	return true;
}

static RbpSpillFile *
lock_file(RbpSpillOpen *o, bool exclusive)
{
	RbpSpillFile *file = rbp_spill_file_lock(rbp_spill_table, o->handle, exclusive);

	if (file == NULL)
		errno = EIO;
	return file;
}

static inline void
unlock_file(RbpSpillFile *file)
{
	rbp_spill_file_unlock(rbp_spill_table, file);
}

void
rbp_spill_forget(const char *name)
{
	RbpSpillHandle handle;
	int			save_errno = errno;

	if (any_files() && rbp_spill_table_find(rbp_spill_table, name, &handle))
		rbp_spill_forget_handle(handle);
	errno = save_errno;
}

bool
rbp_spill_has_blocks(const char *name)
{
	RbpSpillHandle handle;

	return any_files() && rbp_spill_table_find(rbp_spill_table, name, &handle);
}

RbpSpillOpen *
rbp_spill_opened(const char *name, bool relation, int flags)
{
	RbpSpillOpen *o = malloc(sizeof(RbpSpillOpen));

	if (o == NULL)
		return NULL;
	o->handle.index = RBP_SPILL_NO_FILE;
	o->handle.serial = 0;
	o->relation = relation;
	o->missed = false;
	o->writable = (flags & O_ACCMODE) != O_RDONLY;
	strlcpy(o->name, name, sizeof(o->name));

	/*
	 * A new file gets its entry now, so that all descriptors of it know it;
	 * or else when a block of it is first sent to donors.
	 */
	if (attached() && (flags & O_CREAT) && (flags & (O_TRUNC | O_EXCL)) &&
		wanted(o) && !rbp_spill_prefer_file() &&
		rbp_remote_usable(RBP_POOL_TEMP, rbp_now_ns()))
		(void) create_entry(o, -1);
	else
		(void) known(o);
	return o;
}

void
rbp_spill_close(RbpSpillOpen *o)
{
	/* what is staged stays there, and is sent, whoever has the file open */
	free(o);
}

/*
 * ---- failures ------------------------------------------------------------------
 */

/* The lost block that the call in hand has come upon. */
static struct
{
	bool		noted;
	char		file[RBP_SPILL_NAME_LEN];
	char		what[1024];
}			lost;

void
rbp_spill_note_lost(const char *name, const char *format,...)
{
	va_list		args;

	lost.noted = true;
	strlcpy(lost.file, name, sizeof(lost.file));
	va_start(args, format);
	(void) vsnprintf(lost.what, sizeof(lost.what), format, args);
	va_end(args);
}

void
rbp_spill_call_failed(void)
{
	int			save_errno = errno;
	bool		noted = lost.noted;

	lost.noted = false;
	if (save_errno == EINTR && rbp_remote_interrupted())
		CHECK_FOR_INTERRUPTS();
	else if (save_errno == EIO && noted && rbp_remote_can_raise())
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": %m", lost.file),
				 errcontext("remote_bp: %s", lost.what)));
	errno = save_errno;
}

/* What a write that has failed returns: what it did before that, if anything. */
static ssize_t
written_before(ssize_t done)
{
	if (done == 0)
		return -1;
	lost.noted = false;
	return done;
}

/*
 * ---- reads ---------------------------------------------------------------------
 */

static void
report_lost(const char *name, uint32 block)
{
	rbp_spill_note_lost(name,
						"block %u of temporary file \"%s\" was lost when it was written: no donor took it, and the file could not be written",
						block, name);
	HOLD_INTERRUPTS();
	ereport(LOG_SERVER_ONLY,
			(errmsg("remote_bp: block %u of temporary file \"%s\" was lost",
					block, name)));
	RESUME_INTERRUPTS();
	rbp_stats_count(RBP_COUNT_SPILL_LOST, 1);
}

/* Does what a call takes tell what blocks cost?  Temporary tables have other ways. */
static inline bool
tells_cost(const RbpSpillOpen *o, size_t len)
{
	return len == BLCKSZ && !o->relation && rbp_guc_spill_temp_files && attached();
}

/* pread() of the real file. */
static ssize_t
read_file(const RbpSpillOpen *o, int fd, void *buf, size_t len, off_t offset)
{
	int64		begun = tells_cost(o, len) ?
		rbp_spill_cost_begin(RBP_SPILL_FILE, false) : 0;
	ssize_t		n = rbp_libc.pread(fd, buf, len, offset);

	if (n == BLCKSZ)
		rbp_spill_cost_end(RBP_SPILL_FILE, false, begun);
	return n;
}

/* Likewise pwrite(). */
static ssize_t
write_file(const RbpSpillOpen *o, int fd, const void *buf, size_t len,
		   off_t offset)
{
	int64		begun = tells_cost(o, len) ?
		rbp_spill_cost_begin(RBP_SPILL_FILE, true) : 0;
	ssize_t		n = rbp_libc.pwrite(fd, buf, len, offset);

	if (n == BLCKSZ)
		rbp_spill_cost_end(RBP_SPILL_FILE, true, begun);
	return n;
}

/* Bytes within one block; how many there are, or -1. */
static ssize_t
read_part(RbpSpillOpen *o, int fd, char *buf, size_t len, off_t offset)
{
	uint32		block = (uint32) (offset / BLCKSZ);
	uint32		start = (uint32) (offset % BLCKSZ);
	int			got = 0;

	while (got == 0)
	{
		RbpSpillFile *file = lock_file(o, false);
		RbpSpillFileState *st;
		SpilledBlock b = {.handle = o->handle,.block = block};
		uint32		value;
		int64		begun;

		if (file == NULL)
			return -1;
		st = rbp_spill_file_state(file);
		if (offset >= st->size)
		{
			unlock_file(file);
			return 0;
		}
		len = (size_t) Min((int64) len, st->size - offset);
		value = rbp_spill_block_get(rbp_spill_table, file, block);
		if (IS_STAGED(value))
		{
			memcpy(buf, staging_page(STAGED_PAGE(value)) + start, len);
			unlock_file(file);
			rbp_stats_count(RBP_COUNT_SPILL_STAGED_READS, 1);
			return (ssize_t) len;
		}
		if (value == VALUE_NONE)
		{
			ssize_t		n;

			unlock_file(file);
			n = read_file(o, fd, buf, len, offset);
			if (n >= 0 && n < (ssize_t) len)
				memset(buf + n, 0, len - n);	/* a hole */
			return n < 0 ? n : (ssize_t) len;
		}
		if (value == VALUE_LOST)
		{
			unlock_file(file);
			report_lost(o->name, block);
			errno = EIO;
			return -1;
		}
		b.slot = VALUE_SLOT(value);
		b.hash = slot_info(b.slot)->hash;
		b.mirror = slot_info(b.slot)->mirror;
		unlock_file(file);
		begun = tells_cost(o, len) ? rbp_spill_cost_begin(RBP_SPILL_DONOR, false) : 0;
		got = rbp_spill_fetch(&b, o->relation, start, (uint32) len, buf);
		if (got > 0)
			rbp_spill_cost_end(RBP_SPILL_DONOR, false, begun);
	}
	if (got < 0)
	{
		errno = got == RBP_SPILL_INTERRUPTED ? EINTR : EIO;
		return -1;
	}
	return (ssize_t) len;
}

ssize_t
rbp_spill_pread(RbpSpillOpen *o, int fd, void *buf, size_t len, off_t offset)
{
	size_t		done = 0;

	if (offset < 0 || !known(o))
		return read_file(o, fd, buf, len, offset);
	while (done < len)
	{
		off_t		at = offset + (off_t) done;
		size_t		part = Min(len - done, (size_t) (BLCKSZ - at % BLCKSZ));
		ssize_t		n = read_part(o, fd, (char *) buf + done, part, at);

		/* what was read before a failure is not told: it is not the data */
		if (n < 0)
			return -1;
		done += n;
		if (n < (ssize_t) part)
			break;
	}
	return (ssize_t) done;
}

ssize_t
rbp_spill_preadv(RbpSpillOpen *o, int fd, const struct iovec *iov, int iovcnt,
				 off_t offset)
{
	ssize_t		done = 0;

	if (offset < 0 || !known(o))
		return rbp_libc.preadv(fd, iov, iovcnt, offset);
	for (int i = 0; i < iovcnt; i++)
	{
		ssize_t		n = rbp_spill_pread(o, fd, iov[i].iov_base, iov[i].iov_len,
										offset + done);

		if (n < 0)
			return -1;
		done += n;
		if (n < (ssize_t) iov[i].iov_len)
			break;
	}
	return done;
}

/*
 * ---- writes --------------------------------------------------------------------
 */

/*
 * Bytes within one block, into the real file; like pwrite().  If the block is
 * elsewhere, all of it must be given.  Then the lock is held meanwhile, for
 * evacuation could bring old content there too.
 */
static ssize_t
write_real(RbpSpillOpen *o, int fd, const char *buf, size_t len, off_t offset)
{
	uint32		block = (uint32) (offset / BLCKSZ);
	RbpSpillFile *file = lock_file(o, true);
	RbpSpillFileState *st;
	uint32		value;
	ssize_t		n;
	int			save_errno;

	if (file == NULL)
		return -1;
	value = rbp_spill_block_get(rbp_spill_table, file, block);
	if (value == VALUE_NONE)
	{
		unlock_file(file);
		n = write_file(o, fd, buf, len, offset);
		if (n <= 0)
			return n;
		save_errno = errno;
		file = lock_file(o, true);
		if (file == NULL)
			return -1;
		st = rbp_spill_file_state(file);
	}
	else
	{
		st = rbp_spill_file_state(file);
		n = rbp_libc.pwrite(fd, buf, len, offset);
		if (n < (ssize_t) len)
		{
			/* the block stays where it is */
			if (n >= 0)
				errno = ENOSPC;
			unlock_file(file);
			return -1;
		}
		save_errno = errno;
		(void) rbp_spill_block_set(rbp_spill_table, file, block, VALUE_NONE);
		rbp_spill_drop_value(file, value);
	}
	st->size = Max(st->size, offset + n);
	unlock_file(file);
	errno = save_errno;
	return n;
}

/* A whole block. */
static ssize_t
write_block(RbpSpillOpen *o, int fd, const char *buf, uint32 block)
{
	off_t		offset = (off_t) block * BLCKSZ;

	if (wanted(o) && rbp_spill_prefer_file())
	{
		if (write_real(o, fd, buf, BLCKSZ, offset) == BLCKSZ)
		{
			rbp_stats_count(RBP_COUNT_SPILL_BYPASSED, 1);
			return BLCKSZ;
		}
		/* the disk is full, perhaps */
		rbp_spill_file_refused();
	}
	if (wanted(o))
	{
		int64		begun = tells_cost(o, BLCKSZ) ?
			rbp_spill_cost_begin(RBP_SPILL_DONOR, true) : 0;

		switch (rbp_spill_put(o->handle, block, buf, offset + BLCKSZ))
		{
			case PUT_DONE:
				rbp_spill_cost_end(RBP_SPILL_DONOR, true, begun);
				return BLCKSZ;
			case PUT_GONE:
				errno = EIO;
				return -1;
			case PUT_NO_ROOM:
				rbp_stats_count(RBP_COUNT_SPILL_LOCAL, 1);
				break;
		}
	}
	return write_real(o, fd, buf, BLCKSZ, offset);
}

/*
 * The file's open page is full, or another block is to have it: send it.  A
 * part of a block that was not written yet is zeros, as it should be.
 */
static bool
send_open_page(RbpSpillOpen *o, int fd, uint32 block)
{
	char		copy[BLCKSZ];
	RbpSpillFile *file = lock_file(o, true);
	RbpSpillFileState *st;
	int64		size;

	if (file == NULL)
		return false;
	st = rbp_spill_file_state(file);
	if (st->open_page == RBP_SPILL_NO_PAGE || st->open_block != block)
	{
		unlock_file(file);		/* somebody else did */
		return true;
	}
	memcpy(copy, staging_page(st->open_page), BLCKSZ);
	size = st->size;
	unlock_file(file);

	if (wanted(o) &&
		rbp_spill_put(o->handle, block, copy, size) == PUT_DONE)
		return true;

	/* No room: what there is of it goes to the real file. */
	file = lock_file(o, true);
	if (file == NULL)
		return false;
	st = rbp_spill_file_state(file);
	if (st->open_page != RBP_SPILL_NO_PAGE && st->open_block == block &&
		!rbp_spill_to_real_file(file, block, staging_page(st->open_page), &fd))
	{
		int			save_errno = errno;

		unlock_file(file);
		errno = save_errno;
		return false;
	}
	unlock_file(file);
	return true;
}

/* A part of a block, to be written. */
typedef struct Part
{
	RbpSpillOpen *o;
	int			fd;
	const char *buf;
	size_t		len;
	off_t		offset;
	uint32		block;
} Part;

static ssize_t
write_real_part(const Part *p)
{
	return write_real(p->o, p->fd, p->buf, p->len, p->offset);
}

/* Into the file's open page, which has the block; the file's lock is let go. */
static ssize_t
write_open_page(const Part *p, RbpSpillFile *file)
{
	RbpSpillFileState *st = rbp_spill_file_state(file);
	bool		full;

	memcpy(staging_page(st->open_page) + p->offset % BLCKSZ, p->buf, p->len);
	st->size = Max(st->size, p->offset + (off_t) p->len);
	full = st->size >= ((int64) p->block + 1) * BLCKSZ;
	unlock_file(file);
	if (full && !send_open_page(p->o, p->fd, p->block))
		return -1;
	return (ssize_t) p->len;
}

/* The block gets an open page, all zeros, if there is one. */
static bool
open_page_for(RbpSpillFile *file, uint32 block)
{
	RbpSpillFileState *st = rbp_spill_file_state(file);
	int			page = rbp_spill_bitmap_take(shared->open_free, shared->nopen);

	if (page < 0)
		return false;
	if (!rbp_spill_block_set(rbp_spill_table, file, block,
							 VALUE_STAGED | (uint32) page))
	{
		rbp_spill_bitmap_put(shared->open_free, (uint32) page);
		return false;
	}
	memset(staging_page(page), 0, BLCKSZ);
	st->open_page = (uint32) page;
	st->open_block = block;
	st->staged_blocks++;
	return true;
}

/*
 * Write a part of a block that no slot and no page of staging has; the file's lock is
 * let go.  *again: nothing is written, but things are in order for another try.
 */
static ssize_t
write_new_part(const Part *p, RbpSpillFile *file, bool *again)
{
	RbpSpillFileState *st = rbp_spill_file_state(file);
	bool		opened;

	if ((int64) p->block * BLCKSZ < st->size || !wanted(p->o) ||
		!rbp_remote_usable(RBP_POOL_TEMP, rbp_now_ns()))
	{
		unlock_file(file);
		return write_real_part(p);
	}
	if (rbp_spill_prefer_file())
	{
		unlock_file(file);
		if (write_real_part(p) == (ssize_t) p->len)
			return (ssize_t) p->len;
		/* what came of it is there, and belongs to the file from now on */
		rbp_spill_file_refused();
		*again = true;
		return 0;
	}

	/* A new block at the end: fill it in staging. */
	if (st->open_page != RBP_SPILL_NO_PAGE)
	{
		uint32		other = st->open_block;

		unlock_file(file);
		*again = send_open_page(p->o, p->fd, other);
		return -1;
	}
	opened = open_page_for(file, p->block);
	unlock_file(file);
	*again = opened;
	return opened ? 0 : write_real_part(p);
}

/* Write a part of a block that is elsewhere: the whole is written anew. */
static ssize_t
rewrite_block(const Part *p)
{
	char		whole[BLCKSZ];
	uint32		start = (uint32) (p->offset % BLCKSZ);
	off_t		first = p->offset - start;
	ssize_t		n = read_part(p->o, p->fd, whole, BLCKSZ, first);

	if (n < 0)
		return -1;
	memset(whole + n, 0, BLCKSZ - n);
	memcpy(whole + start, p->buf, p->len);
	switch (rbp_spill_put(p->o->handle, p->block, whole, p->offset + (off_t) p->len))
	{
		case PUT_DONE:
			return (ssize_t) p->len;
		case PUT_GONE:
			errno = EIO;
			return -1;
		case PUT_NO_ROOM:
			break;
	}
	n = Max(n, (ssize_t) (start + p->len));
	return write_real(p->o, p->fd, whole, n, first) < 0 ? -1 : (ssize_t) p->len;
}

/* A part of a block. */
static ssize_t
write_part(RbpSpillOpen *o, int fd, const char *buf, size_t len, off_t offset)
{
	Part		p = {
		.o = o,.fd = fd,.buf = buf,.len = len,.offset = offset,
		.block = (uint32) (offset / BLCKSZ)
	};
	bool		again;
	ssize_t		n;

	do
	{
		RbpSpillFile *file = lock_file(o, true);
		uint32		value;

		if (file == NULL)
			return -1;
		again = false;
		value = rbp_spill_block_get(rbp_spill_table, file, p.block);
		if (IS_STAGED(value) &&
			STAGED_PAGE(value) == rbp_spill_file_state(file)->open_page)
			return write_open_page(&p, file);
		if (value != VALUE_NONE)
		{
			unlock_file(file);
			return rewrite_block(&p);
		}
		n = write_new_part(&p, file, &again);
	} while (again);
	return n;
}

/*
 * So much was written to a file that had no entry, or -1, which is returned.  Whoever
 * has given it one meanwhile may have seen the size of before.
 */
static ssize_t
wrote_without_entry(RbpSpillOpen *o, off_t offset, ssize_t n)
{
	int			save_errno = errno;

	pg_memory_barrier();
	if (n > 0 && known(o))
		raise_size(o, offset + n);
	errno = save_errno;
	return n;
}

ssize_t
rbp_spill_pwrite(RbpSpillOpen *o, int fd, const void *buf, size_t len,
				 off_t offset)
{
	int64		start_ns;
	size_t		done = 0;

	if (offset < 0 || len == 0 || !o->writable || !attached())
		return rbp_libc.pwrite(fd, buf, len, offset);
	start_ns = rbp_now_ns();
	if (!known(o))
	{
		if (!wanted(o) || !rbp_remote_usable(RBP_POOL_TEMP, start_ns))
			return wrote_without_entry(o, offset, rbp_libc.pwrite(fd, buf, len, offset));
		if (rbp_spill_prefer_file())
		{
			if (wrote_without_entry(o, offset, write_file(o, fd, buf, len, offset)) == (ssize_t) len)
			{
				rbp_stats_count(RBP_COUNT_SPILL_BYPASSED, len / BLCKSZ);
				return (ssize_t) len;
			}
			/* the disk is full, perhaps: donors may take it */
			rbp_spill_file_refused();
		}
		if (!known(o) && !create_entry(o, fd))
			return wrote_without_entry(o, offset, rbp_libc.pwrite(fd, buf, len, offset));
	}
	while (done < len)
	{
		off_t		at = offset + (off_t) done;
		size_t		part = Min(len - done, (size_t) (BLCKSZ - at % BLCKSZ));
		const char *data = (const char *) buf + done;
		ssize_t		n = part == BLCKSZ ?
			write_block(o, fd, data, (uint32) (at / BLCKSZ)) :
			write_part(o, fd, data, part, at);

		if (n < 0)
			return written_before((ssize_t) done);
		done += n;
		if (n < (ssize_t) part)
			break;
	}
	rbp_stats_latency(RBP_LATENCY_SPILL_WRITE, rbp_now_ns() - start_ns);
	return (ssize_t) done;
}

ssize_t
rbp_spill_pwritev(RbpSpillOpen *o, int fd, const struct iovec *iov, int iovcnt,
				  off_t offset)
{
	ssize_t		done = 0;

	if (offset < 0 || !attached())
		return rbp_libc.pwritev(fd, iov, iovcnt, offset);
	for (int i = 0; i < iovcnt; i++)
	{
		ssize_t		n = rbp_spill_pwrite(o, fd, iov[i].iov_base, iov[i].iov_len,
										 offset + done);

		if (n < 0)
			return written_before(done);
		done += n;
		if (n < (ssize_t) iov[i].iov_len)
			break;
	}
	return done;
}

/*
 * ---- sizes ---------------------------------------------------------------------
 */

static off_t
size_of(RbpSpillHandle handle, off_t real)
{
	RbpSpillFile *file = rbp_spill_file_lock(rbp_spill_table, handle, false);

	if (file != NULL)
	{
		real = Max(real, rbp_spill_file_state(file)->size);
		unlock_file(file);
	}
	return real;
}

off_t
rbp_spill_open_size(RbpSpillOpen *o, off_t real)
{
	return known(o) ? size_of(o->handle, real) : real;
}

off_t
rbp_spill_name_size(const char *name, off_t real)
{
	RbpSpillHandle handle;

	if (!any_files() ||
		!rbp_spill_table_find(rbp_spill_table, name, &handle))
		return real;
	return size_of(handle, real);
}

static void
cut_visit(RbpSpillFile *file, uint32 block, uint32 value, void *arg)
{
	drop_value(file, value, arg);
}

/*
 * What is left of the block that the new end lies in goes to the real file,
 * whose truncation makes zeros of the rest.  Truncation and cut are one step
 * for whoever moves blocks into the real file.
 */
int
rbp_spill_ftruncate(RbpSpillOpen *o, int fd, off_t length)
{
	char		rest[BLCKSZ];
	uint32		block = (uint32) (length / BLCKSZ);
	ssize_t		n = (ssize_t) (length % BLCKSZ);
	RbpSpillFile *file;
	RbpSpillFileState *st;
	Freed		freed = {0};
	int			result = 0;
	int			save_errno;

	if (length < 0 || !known(o))
		return rbp_libc.ftruncate(fd, length);
	if (n > 0)
	{
		n = read_part(o, fd, rest, n, (off_t) block * BLCKSZ);
		if (n < 0)
			return -1;
	}

	file = lock_file(o, true);
	if (file == NULL)
		return -1;
	st = rbp_spill_file_state(file);
	if (length < st->size && n > 0 &&
		rbp_spill_block_get(rbp_spill_table, file, block) != VALUE_NONE)
	{
		ssize_t		written = rbp_libc.pwrite(fd, rest, n, (off_t) block * BLCKSZ);

		if (written >= 0 && written < n)
			errno = ENOSPC;
		if (written < n)
			result = -1;
	}
	if (result == 0)
		result = rbp_libc.ftruncate(fd, length);
	save_errno = errno;
	if (result == 0)
	{
		if (length < st->size)
			rbp_spill_file_cut(rbp_spill_table, file, block, cut_visit, &freed);
		st->size = length;
	}
	free_gathered(&freed);
	unlock_file(file);
	errno = save_errno;
	return result;
}

int
rbp_spill_posix_fallocate(RbpSpillOpen *o, int fd, off_t offset, off_t len)
{
	int			result = rbp_libc.posix_fallocate(fd, offset, len);

	if (result == 0 && known(o))
	{
		RbpSpillFile *file = lock_file(o, true);
		RbpSpillFileState *st;

		if (file == NULL)
			return EIO;
		st = rbp_spill_file_state(file);
		st->size = Max(st->size, offset + len);
		unlock_file(file);
	}
	return result;
}

int
rbp_spill_truncate(const char *name, const char *path, off_t length)
{
	RbpSpillOpen o = {.writable = true};
	int			fd;
	int			result;
	int			save_errno;

	o.handle.index = RBP_SPILL_NO_FILE;
	strlcpy(o.name, name, sizeof(o.name));
	if (length < 0 || !known(&o))
		return rbp_libc.truncate(path, length);
	fd = rbp_libc.open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -1;
	result = rbp_spill_ftruncate(&o, fd, length);
	save_errno = errno;
	(void) rbp_libc.close(fd);
	errno = save_errno;
	return result;
}

int
rbp_spill_unlink(const char *name, const char *path)
{
	RbpSpillHandle handle;
	bool		have = any_files() &&
		rbp_spill_table_find(rbp_spill_table, name, &handle);
	int			result = rbp_libc.unlink(path);
	int			save_errno = errno;

	if (have && (result == 0 || save_errno == ENOENT))
		rbp_spill_forget_handle(handle);
	errno = save_errno;
	return result;
}

bool
rbp_spill_advice_is_wasted(RbpSpillOpen *o, off_t offset, off_t len)
{
	RbpSpillFile *file;
	uint32		value;

	if (offset < 0 || !known(o))
		return false;
	file = rbp_spill_file_lock(rbp_spill_table, o->handle, false);
	if (file == NULL)
		return false;
	value = rbp_spill_block_get(rbp_spill_table, file, (uint32) (offset / BLCKSZ));
	unlock_file(file);
	return value != VALUE_NONE;
}
