/*-------------------------------------------------------------------------
 *
 * test_spill.c
 *	  Blocks of temporary files on donors that are arrays here: where they go
 *	  when donors come and go, and what becomes of those on their way.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "storage/pg_shmem.h"

#include "mock_server.h"
#include "base/choice.h"
#include "base/geometry.h"
#include "base/guc.h"
#include "base/hash.h"
#include "base/libc.h"
#include "base/page_cache.h"
#include "base/process.h"
#include "common/status.h"
#include "remote/remote.h"
#include "spill/slots.h"
#include "spill/spill.h"
#include "spill/spill_internal.h"

#include "tap.h"

#define FIRST_EXTENT	4
#define MAX_SIZE		400		/* MiB: extents */
#define NAME			"./pgsql_tmp/pgsql_tmp1.0"
#define FS				0		/* the number of its file system */

void	   *UsedShmemSegAddr = &mock_now;
int			rbp_guc_temp_staging_size = 2048;
bool		rbp_guc_temp_mirror = false;
bool		rbp_guc_spill_temp_files = true;
bool		rbp_guc_spill_temp_tables = true;

int
rbp_page_cache_file_system(int fd, int *known)
{
	return FS;
}

/*
 * ---- donors -----------------------------------------------------------------
 */

static int	donor_of[FIRST_EXTENT + MAX_SIZE];	/* by extent; -1: none */
static uint32 next_extent;
static RbpExtents extents;
static uint16 states[2 * MAX_SIZE];
static char *memory;			/* by slot */
static int	closing;			/* a donor that is about to go; -1: none */
static int	wrong_bytes_of = -1;	/* the last donor that was reported */
static int	nread = 0;			/* reads that were counted for donors */
static int	spoilt = -1;		/* the donor whose memory was */
static bool local;				/* writes and reads are done within the call */
static bool expired;			/* the lease */
static bool refusing;			/* donors take no new block */
static bool slow;				/* batches end at their deadlines */
static void (*before_read) (uint32 slot);	/* called once */

static char *
memory_of(uint32 slot)
{
	return memory + (Size) slot * BLCKSZ;
}

/* A donor lends n extents. */
static void
lend(int donor, uint32 n)
{
	while (n-- > 0)
	{
		donor_of[next_extent] = donor;
		rbp_extent_bring_online(&extents, next_extent++, 0, RBP_EXTENT_TOUCHED);
	}
}

/* All that it lent is gone. */
static void
leave(int donor)
{
	for (uint32 e = FIRST_EXTENT; e < next_extent; e++)
		if (donor_of[e] == donor)
		{
			rbp_extent_close(&extents, e);
			donor_of[e] = -1;
		}
}

const RbpExtents *
rbp_remote_extents(RbpPool pool)
{
	return &extents;
}

bool
rbp_remote_usable(RbpPool pool, int64 now)
{
	return !expired;
}

int
rbp_remote_slot_donor(uint32 slot)
{
	return slot == RBP_INVALID_SLOT ? -1 : donor_of[slot / RBP_EXTENT_PAGES];
}

void
rbp_remote_wrong_bytes(uint32 slot)
{
	wrong_bytes_of = rbp_remote_slot_donor(slot);
}

void
rbp_remote_count_read(uint32 slot, int64 ns, int64 saved_ns)
{
	if (ns >= 0)
		nread++;
}

bool
rbp_remote_slot_writable(uint32 slot)
{
	return !refusing && rbp_remote_slot_donor(slot) >= 0;
}

bool
rbp_remote_slot_stays(uint32 slot)
{
	return !expired && rbp_remote_slot_donor(slot) >= 0 &&
		rbp_remote_slot_donor(slot) != closing;
}

bool
rbp_remote_slot_readable(uint32 slot)
{
	return rbp_remote_slot_donor(slot) >= 0;
}

int
rbp_remote_slot_transport(uint32 slot)
{
	return 2;
}

bool
rbp_remote_slot_local(uint32 slot)
{
	return local;
}

void
rbp_remote_donor_text(int donor, char *buf, Size len)
{
	strlcpy(buf, "\"donor\" (address)", len);
}

static bool
transfer(RbpRemoteIo *ios, int n, bool write)
{
	bool		any = false;

	for (int i = 0; i < n; i++)
	{
		if (rbp_remote_slot_donor(ios[i].slot) < 0)
		{
			ios[i].status = RBP_CANCELED;
			continue;
		}
		if (!write && before_read != NULL)
		{
			void		(*hook) (uint32 slot) = before_read;

			before_read = NULL;
			hook(ios[i].slot);
		}
		if (write)
			memcpy(memory_of(ios[i].slot), ios[i].buf, BLCKSZ);
		else
			memcpy(ios[i].buf, memory_of(ios[i].slot), BLCKSZ);
		ios[i].status = RBP_OK;
		any = true;
	}
	return any;
}

void
rbp_remote_transfer(RbpRemoteIo *ios, int n, bool write, int64 start_ns, int64 deadline_ns)
{
	for (int i = 0; i < n; i++)
		ios[i].status = RBP_TIMEOUT;
	if (!write || deadline_ns > mock_now)
		(void) transfer(ios, n, write);
}

RbpRemoteBatch *
rbp_remote_begin(RbpRemoteIo *ios, int n, bool write, int flags,
				 int64 start_ns, int64 deadline_ns)
{
	return transfer(ios, n, write) ? (RbpRemoteBatch *) ios : NULL;
}

void
rbp_remote_end(RbpRemoteBatch *batch, int64 deadline_ns)
{
	if (slow)
		mock_now = Max(mock_now, deadline_ns);
}

/*
 * ---- the rest of the server ----------------------------------------------------
 */

static bool disk_full = false;
static void (*while_disk_writes) (void) = NULL;

static ssize_t
pwrite_if_room(int fd, const void *buf, size_t len, off_t offset)
{
	if (while_disk_writes != NULL)
		while_disk_writes();
	if (disk_full)
	{
		errno = ENOSPC;
		return -1;
	}
	return pwrite(fd, buf, len, offset);
}

RbpLibc		rbp_libc = {
	.open = open,
	.close = close,
	.pread = pread,
	.preadv = preadv,
	.pwrite = pwrite_if_room,
	.pwritev = pwritev,
	.fstat = fstat,
	.ftruncate = ftruncate,
	.unlink = unlink,
};

void
ProcessInterrupts(void)
{
}

bool
errstart_cold(int elevel, const char *domain)
{
	return errstart(elevel, domain);
}

ErrorContextCallback *error_context_stack = NULL;
emit_log_hook_type emit_log_hook = NULL;

int
geterrcode(void)
{
	return ERRCODE_IO_ERROR;
}

int
errcode_for_file_access(void)
{
	return 0;
}

int
set_errcontext_domain(const char *domain)
{
	return 0;
}

int
errcontext_msg(const char *fmt,...)
{
	return 0;
}

/*
 * ---- one file ------------------------------------------------------------------
 */

static int	fd;
static RbpSpillOpen *file;

static void
begin(void)
{
	static void *mem = NULL;
	static void *choice = NULL;

	free(mem);
	free(choice);
	choice = aligned_alloc(64, TYPEALIGN(64, rbp_choice_shmem_size()));
	rbp_choice_shmem_open(choice, false);
	rbp_choice_set_cache_keeps(true);
	rbp_guc_temp_tier_max_size = MAX_SIZE - 60;
	mem = aligned_alloc(4096, TYPEALIGN(4096, rbp_spill_shmem_size()));
	rbp_extents_init(&extents, states, FIRST_EXTENT, rbp_spill_max_extents());
	rbp_spill_shmem_init(mem);
	for (int e = 0; e < FIRST_EXTENT + MAX_SIZE; e++)
		donor_of[e] = -1;
	next_extent = FIRST_EXTENT;
	closing = -1;
	expired = slow = refusing = false;
	mock_now += 60000 * MS;		/* whatever was refused may be tried again */
	memset(mock_counters, 0, sizeof(mock_counters));
	mock_messages = 0;
	rbp_spill_forget_lost();
	disk_full = false;
	fd = open(NAME, O_RDWR | O_CREAT | O_TRUNC, 0600);
	file = rbp_spill_opened(NAME, O_RDWR | O_CREAT | O_TRUNC);
}

/* Everything that was taken is given back. */
static void
end(const char *name)
{
	RbpSpillUsage usage;
	uint64		filled = 0;

	rbp_ahead_transaction_ends(XACT_EVENT_COMMIT);
	rbp_spill_flush(false);
	free(file);
	close(fd);
	(void) rbp_spill_unlink(NAME, NAME);
	rbp_spill_get_usage(&usage);
	for (uint32 e = FIRST_EXTENT; e < next_extent; e++)
		filled += rbp_spill_slots_extent_filled(e);
	is_u64(usage.used + usage.quarantined + usage.files + filled, 0,
		   "%s: all is given back", name);
}

static ssize_t
pread_from(RbpSpillOpen *o, int real, void *buf, size_t len, off_t offset)
{
	struct iovec iov = {.iov_base = buf,.iov_len = len};

	return rbp_spill_preadv(o, real, &iov, 1, offset);
}

static ssize_t
pwrite_to(RbpSpillOpen *o, int real, void *buf, size_t len, off_t offset)
{
	struct iovec iov = {.iov_base = buf,.iov_len = len};

	return rbp_spill_pwritev(o, real, &iov, 1, offset);
}

static void
fill(char *page, uint32 block, int version)
{
	for (int i = 0; i < BLCKSZ; i++)
		page[i] = (char) (block * 7 + (uint32) version * 101 + (uint32) i % 251);
}

static void
write_blocks(uint32 first, uint32 n, int version)
{
	char		page[BLCKSZ];

	for (uint32 b = first; b < first + n; b++)
	{
		fill(page, b, version);
		if (pwrite_to(file, fd, page, BLCKSZ, (off_t) b * BLCKSZ) != BLCKSZ)
			diag("block %u cannot be written: %s", b, strerror(errno));
	}
}

/* How many of them are as they were written. */
static uint32
right_blocks(uint32 first, uint32 n, int version)
{
	char		page[BLCKSZ];
	char		expected[BLCKSZ];
	uint32		right = 0;

	for (uint32 b = first; b < first + n; b++)
	{
		fill(expected, b, version);
		right += pread_from(file, fd, page, BLCKSZ, (off_t) b * BLCKSZ) == BLCKSZ &&
			memcmp(page, expected, BLCKSZ) == 0;
	}
	return right;
}

/* Is that so of some bytes in the middle of it? */
static bool
right_part(uint32 block, int version)
{
	char		part[100];
	char		expected[BLCKSZ];

	fill(expected, block, version);
	return pread_from(file, fd, part, sizeof(part), (off_t) block * BLCKSZ + 1000) == sizeof(part) &&
		memcmp(part, expected + 1000, sizeof(part)) == 0;
}

static uint64
mirrored(void)
{
	RbpSpillHandle handle;
	RbpSpillFile *f;
	uint64		blocks = 0;

	if (rbp_spill_table_next(0, &handle) && (f = rbp_spill_file_lock(handle, false, true)) != NULL)
	{
		blocks = f->mirrored_blocks;
		rbp_spill_file_unlock(f);
	}
	return blocks;
}

/*
 * ---- the tests -----------------------------------------------------------------
 */

/* Most extents in a row are the one donor's, who has the first copies. */
static void
test_mirror_far_away(void)
{
	begin();
	local = true;
	rbp_guc_temp_mirror = true;
	lend(0, 300);
	lend(1, 16);
	write_blocks(0, 40, 1);
	ok(mirrored() >= 36, "two copies: another donor's room is found, however far (%d of 40)",
	   (int) mirrored());
	nread = 0;
	is_u64(right_blocks(0, 40, 1), 40, "two copies: blocks are right");
	ok(nread > 0 && (uint64) nread == mock_counters[RBP_COUNT_SPILL_READS],
	   "two copies: each read of a donor's own memory is one of the donor's");
	rbp_guc_temp_mirror = false;
	end("two copies");
}

/*
 * Blocks on their way, before they were sent or after, when the memory that they
 * were for goes and the disk is full.
 */
static void
test_memory_goes(bool sent)
{
	const char *name = sent ? "sent" : "not sent yet";
	uint32		n = sent ? CHUNK_PAGES : 5;

	begin();
	local = false;
	lend(0, 2);
	write_blocks(0, n, 1);
	lend(1, 2);
	leave(0);
	disk_full = true;
	rbp_spill_flush(false);
	mock_now += 60000 * MS;
	is_u64(right_blocks(0, n, 1), n, "%s: blocks go to another donor", name);
	is_u64(mock_messages, 0, "%s: the log has nothing to tell", name);

	/* those that were cut off meanwhile do not come again */
	write_blocks(0, n, 2);
	is_u64(rbp_spill_ftruncate(file, fd, BLCKSZ), 0, "%s: the file is cut", name);
	lend(2, 2);
	leave(1);
	rbp_spill_flush(false);
	mock_now += 60000 * MS;
	is_u64(rbp_spill_size(file, 0), BLCKSZ, "%s: it stays so", name);
	is_u64(right_blocks(0, n, 2), 1, "%s: with what was left of it", name);

	/* nobody has room: that is told, and counted as lost and not as written */
	write_blocks(0, n, 3);
	leave(2);
	mock_messages = 0;
	memset(mock_counters, 0, sizeof(mock_counters));
	rbp_spill_flush(false);
	is_u64(mock_messages, 1, "%s: what goes nowhere is told of, once", name);
	is_u64(mock_counters[RBP_COUNT_SPILL_WRITES], 0, "%s: it does not count as written", name);
	is_u64(right_blocks(0, n, 3), 0, "%s: it cannot be read", name);
	is_u64(mock_counters[RBP_COUNT_SPILL_LOST], n, "%s: and counts as lost then", name);
	end(name);
}

/*
 * Lost blocks that are read where no error can be raised: the log is told once in
 * a transaction, and whatever error the server raises then gets a context.
 */
static void
test_told_later(void)
{
	ErrorContextCallback outer = {.previous = NULL};

	begin();
	local = false;
	lend(0, 2);
	write_blocks(0, CHUNK_PAGES, 1);
	rbp_spill_flush(false);
	leave(0);
	error_context_stack = &outer;
	is_u64(right_blocks(0, 3, 1), 0, "told at once: blocks cannot be read");
	is_u64(mock_messages, 0, "told at once: not by the log");
	ok(error_context_stack == &outer, "told at once: the server's error is not ours");
	InterruptHoldoffCount = 1;
	for (int i = 0; i < 2; i++)
	{
		is_u64(right_blocks(0, CHUNK_PAGES, 1), 0, "told later: blocks cannot be read");
		is_u64(mock_messages, 1, "told later: the log is told once");
		ok(error_context_stack != &outer && error_context_stack->previous == &outer,
		   "told later: the server's error has a context");
	}
	error_context_stack = &outer;	/* a function has ended */
	rbp_spill_forget_lost();
	is_u64(right_blocks(0, CHUNK_PAGES, 1), 0, "the next transaction: blocks cannot be read");
	is_u64(mock_messages, 2, "the next transaction: the log is told");
	ok(error_context_stack != &outer && error_context_stack->previous == &outer,
	   "the next transaction: the server's error has a context");
	InterruptHoldoffCount = 0;
	error_context_stack = NULL;
	end("told later");
}

/* Blocks that are on their way to two donors, of which one goes. */
static void
test_mirror_goes(void)
{
	begin();
	local = false;
	rbp_guc_temp_mirror = true;
	lend(0, 2);
	lend(1, 2);
	write_blocks(0, CHUNK_PAGES, 1);
	lend(2, 2);
	leave(1);
	disk_full = true;
	rbp_spill_flush(false);
	is_u64(right_blocks(0, CHUNK_PAGES, 1), CHUNK_PAGES, "one of two goes: blocks are right");
	is_u64(mirrored(), CHUNK_PAGES, "one of two goes: there are two copies");

	/* and no third one */
	write_blocks(0, CHUNK_PAGES, 2);
	leave(2);
	rbp_spill_flush(false);
	is_u64(right_blocks(0, CHUNK_PAGES, 2), CHUNK_PAGES, "one is left: blocks are right");
	is_u64(mirrored(), 0, "one is left: there is one copy");
	is_u64(mock_messages, 0, "one is left: nothing is lost");
	rbp_guc_temp_mirror = false;
	end("two donors");
}

/* Memory that is about to go, and stays if something is in it. */
static void
test_closing(void)
{
	begin();
	local = false;
	lend(0, 2);
	write_blocks(0, CHUNK_PAGES, 1);
	closing = 0;
	disk_full = true;
	rbp_spill_flush(false);
	closing = -1;
	is_u64(right_blocks(0, CHUNK_PAGES, 1), CHUNK_PAGES, "closing: blocks are right");
	is_u64(mock_messages, 0, "closing: nothing is lost");
	end("closing");
}

/* The lease expires before the batch is looked at, which had arrived. */
static void
test_expired(void)
{
	begin();
	local = false;
	lend(0, 2);
	write_blocks(0, CHUNK_PAGES, 1);
	expired = true;
	rbp_spill_flush(false);
	is_u64(mock_counters[RBP_COUNT_SPILL_RESCUED], CHUNK_PAGES, "expired: blocks go to the disk");
	leave(0);
	is_u64(right_blocks(0, CHUNK_PAGES, 1), CHUNK_PAGES, "expired: where they outlive the lease");
	end("expired");
}

/* A donor's memory goes while a batch waits for it as long as may be. */
static void
test_no_time_left(void)
{
	begin();
	local = false;
	lend(0, 2);
	write_blocks(0, CHUNK_PAGES, 1);
	lend(1, 2);
	leave(0);
	disk_full = true;
	slow = true;
	rbp_spill_flush(false);
	is_u64(right_blocks(0, CHUNK_PAGES, 1), CHUNK_PAGES, "no time left: blocks go to another donor");
	is_u64(mock_messages, 0, "no time left: nothing is lost");
	end("no time left");
}

/* Between the look where the block is and the read. */
static void
write_again(uint32 slot)
{
	write_blocks(3, 1, 2);
	rbp_spill_flush(false);
	/* another one has the slot by now */
	memset(memory_of(slot), 0x55, BLCKSZ);
}

static void
scribble(uint32 slot)
{
	spoilt = rbp_remote_slot_donor(slot);
	memset(memory_of(slot), 0x55, BLCKSZ);
}

/* What was read is not what was promised. */
static void
test_mismatches(bool is_local)
{
	const char *name = is_local ? "local" : "not local";

	begin();
	local = is_local;
	wrong_bytes_of = -1;
	lend(0, 4);
	lend(1, 4);
	write_blocks(0, 8, 1);
	rbp_spill_flush(false);
	rbp_ahead_transaction_ends(XACT_EVENT_COMMIT);
	before_read = write_again;
	is_u64(right_blocks(3, 1, 2), 1, "%s: a block moves while it is read", name);
	ok(mock_counters[RBP_COUNT_SPILL_HASH_FAILURES] == 0 && wrong_bytes_of == -1, "%s: which is nobody's fault", name);
	rbp_ahead_transaction_ends(XACT_EVENT_COMMIT);
	before_read = scribble;
	is_u64(right_blocks(5, 1, 1), 0, "%s: a block that was spoilt cannot be read", name);
	ok(mock_counters[RBP_COUNT_SPILL_HASH_FAILURES] > 0, "%s: that counts", name);
	ok(spoilt >= 0 && wrong_bytes_of == spoilt, "%s: against its donor", name);
	is_u64(mock_counters[RBP_COUNT_SPILL_LOST], 1, "%s: as lost, too", name);

	/* what came of it is in memory that was another block's */
	if (is_local)
	{
		ok(right_part(6, 1), "%s: a part of a block", name);
		before_read = scribble;
		ok(!right_part(7, 1), "%s: none of one that was spoilt", name);
		ok(right_part(6, 1), "%s: and the first one's again", name);
	}
	end(name);
}

/*
 * ---- files or donors ------------------------------------------------------------
 */

/* So many writes and reads there take so long. */
static void
take(bool donor, int n, int64 ns)
{
	for (int i = 0; i < 2 * n; i++)
	{
		int64		begun = mock_now;

		mock_now += ns;
		rbp_spill_cost_end(FS, donor, i % 2 == 0, begun);
	}
}

/* Of so many blocks, those that are to go to the file. */
static int
to_file(int n)
{
	int			files = 0;

	for (int i = 0; i < n; i++)
		files += rbp_spill_prefer_file(FS);
	return files;
}

static void
test_costs(void)
{
	begin();
	is_u64(to_file(1000), 0, "donor: all blocks go to donors");
	rbp_guc_read_from = RBP_READ_FILE;
	is_u64(to_file(1000), 1000, "file: all go to files");
	rbp_guc_read_from = RBP_READ_AUTO;
	is_u64(to_file(1000), 0, "nothing is known: to donors");
	take(true, 40, 20000);
	is_u64(to_file(640), 64, "how long donors take is known: files are tried");
	take(false, 40, 3000);
	ok(rbp_spill_cost_us(false) > 5.9 && rbp_spill_cost_us(false) < 6.1 &&
	   rbp_spill_cost_us(true) > 39.9 && rbp_spill_cost_us(true) < 40.1,
	   "what writing and reading a block takes");
	(void) to_file(64 + 256);
	is_u64(to_file(1000), 1000, "files take less: to files");
	take(false, 400000, 3000);
	is_u64(to_file(1064), 1064 - 256, "some to donors, to see");
	is_u64(to_file(1000), 1000, "not again at once");

	/* donors get quicker, but not by much */
	take(true, 9600, 2700);
	(void) to_file(64 + 256);
	ok(to_file(1000) > 700, "a small difference changes nothing");
	take(true, 9600, 2000);
	(void) to_file(64 + 256);
	is_u64(to_file(640), 0, "a large one does");
	take(true, 1000000, 2000);
	is_u64(to_file(1064), 64, "some to files, to see");

	/* one that waited for a processor */
	take(true, 1, 2000000);
	take(true, 1023, 2000);
	ok(rbp_spill_cost_us(true) < 10, "an outlier does not count for much");
	take(true, 3200, 1000000);
	(void) to_file(64 + 256);
	is_u64(to_file(640), 640, "many do");

	/* one in 16 waits for all */
	for (int i = 0; i < 640; i++)
	{
		take(true, 15, 2000);
		take(true, 1, 500000);
	}
	ok(rbp_spill_cost_us(true) > 60 && rbp_spill_cost_us(true) < 74,
	   "waits count for what they are (%.1f us)", rbp_spill_cost_us(true));

	rbp_spill_file_refused();
	is_u64(to_file(1000), 0, "the disk is full: to donors");
	mock_now += INT64CONST(11000000000);
	(void) to_file(64);
	ok(to_file(640) > 300, "not for ever");
	rbp_guc_read_from = RBP_READ_DONOR;
	is_u64(to_file(100), 0, "donor again");
	end("costs");
}

static int	rounds = 0;
static int	moved_meanwhile = 0;

static void
upkeep(void)
{
	uint64		moved = mock_counters[RBP_COUNT_SPILL_EVACUATED];

	for (uint32 e = FIRST_EXTENT; e < FIRST_EXTENT + 4; e++)
		(void) rbp_spill_evacuate(e, mock_now + 1000 * MS);
	moved_meanwhile += (int) (mock_counters[RBP_COUNT_SPILL_EVACUATED] - moved);
}

static void
stall(void)
{
	rounds++;
	upkeep();
	mock_now += 11000 * MS;
	(void) rbp_spill_sweep();
}

/* The disk stalls while it is to take a block in place of one that donors have. */
static void
test_disk_stalls(void)
{
	begin();
	lend(0, 4);
	write_blocks(0, 32, 1);
	rbp_spill_flush(false);
	lend(1, 4);
	closing = 0;
	rbp_guc_read_from = RBP_READ_AUTO;
	take(true, 40, 20000);
	take(false, 40, 3000);
	(void) to_file(64 + 256);
	while_disk_writes = stall;
	write_blocks(3, 2, 2);
	while_disk_writes = NULL;
	is_u64((uint64) rounds, 2, "the disk stalls: upkeep does not wait for it");
	is_u64((uint64) moved_meanwhile, 0, "the disk stalls: nothing of the file is moved");
	upkeep();
	ok(moved_meanwhile >= 30, "the disk stalls: it is in the next round");
	is_u64(right_blocks(0, 3, 1) + right_blocks(3, 2, 2) + right_blocks(5, 27, 1), 32,
		   "the disk stalls: blocks are right");
	rbp_guc_read_from = RBP_READ_DONOR;
	end("the disk stalls");
}

/* Several blocks are written by one call, as a relation is extended, to a file. */
static void
test_vectors(void)
{
	char		pages[3][BLCKSZ];
	char		expected[3][BLCKSZ];
	struct iovec written[3];
	struct iovec seen[3];
	RbpSpillUsage usage;

	rbp_guc_read_from = RBP_READ_FILE;
	for (int i = 0; i < 6; i += 3)
	{
		if (i == 0)
			begin();
		else
			rbp_guc_read_from = RBP_READ_DONOR;
		lend(0, 2);
		for (int k = 0; k < 3; k++)
		{
			fill(expected[k], (uint32) (i + k), 1);
			written[k].iov_base = expected[k];
			seen[k].iov_base = pages[k];
			written[k].iov_len = seen[k].iov_len = BLCKSZ;
		}
		is_u64((uint64) rbp_spill_pwritev(file, fd, written, 3, (off_t) i * BLCKSZ), sizeof(pages),
			   "vectors: %s", i == 0 ? "to the file" : "to donors");
		ok(rbp_spill_preadv(file, fd, seen, 3, (off_t) i * BLCKSZ) == sizeof(pages) &&
		   memcmp(pages, expected, sizeof(pages)) == 0, "vectors: blocks are right");
		rbp_spill_get_usage(&usage);
		is_u64(usage.files, i == 0 ? 0 : 1, "vectors: a file has an entry if donors have a block");
	}
	is_u64(right_blocks(0, 6, 1), 6, "vectors: so they are one by one");
	end("vectors");
}

/* Slots that are reserved for the file, in memory that drains or went. */
static void
test_reserved(void)
{
	RbpSpillUsage usage;

	begin();
	local = true;
	lend(0, 80);
	write_blocks(0, 13, 1);
	rbp_extent_drain(&extents, FIRST_EXTENT);
	write_blocks(13, 9, 1);
	is_u64(rbp_spill_slots_extent_filled(FIRST_EXTENT), 13, "reserved: memory that drains takes no more blocks");
	is_u64(rbp_spill_evacuate(FIRST_EXTENT, mock_now + 1000 * MS), 0, "reserved: it is emptied");
	is_u64(right_blocks(0, 22, 1), 22, "reserved: blocks are right");

	/* the file is not written to any more */
	leave(0);
	rbp_spill_get_usage(&usage);
	ok(usage.dead > 22, "reserved: the file has reserved slots in memory that went");
	mock_now += 11000 * MS;
	(void) rbp_spill_sweep();
	rbp_spill_get_usage(&usage);
	is_u64(usage.dead, 22, "reserved: they are given back");
	end("reserved");
}

static RbpSpillOpen *other;

/* Another process begins to spill the file. */
static void
spill_elsewhere(void)
{
	char		page[BLCKSZ];

	while_disk_writes = NULL;
	rbp_guc_spill_temp_files = true;
	fill(page, 0, 1);
	if (pwrite_to(other, fd, page, BLCKSZ, 0) != BLCKSZ)
		diag("the other process cannot write: %s", strerror(errno));
	rbp_guc_spill_temp_files = false;
}

/* The file gets an entry while a block that does not spill is written. */
static void
test_entry_meanwhile(void)
{
	rbp_guc_spill_temp_files = false;
	begin();
	lend(0, 2);
	other = rbp_spill_opened(NAME, O_RDWR);
	while_disk_writes = spill_elsewhere;
	write_blocks(5, 1, 1);
	ok(while_disk_writes == NULL, "entry meanwhile: there is one");
	rbp_guc_spill_temp_files = true;
	is_u64((uint64) rbp_spill_size(file, 0), 6 * BLCKSZ, "entry meanwhile: its size is the file's");
	is_u64(right_blocks(0, 1, 1) + right_blocks(5, 1, 1), 2, "entry meanwhile: blocks are right");
	free(other);
	end("entry meanwhile");
}

/*
 * Reads and writes of parts of a few blocks, which come to slots and staging pages that
 * had others before, against a copy of the file.
 */
static void
test_parts(bool is_local)
{
	enum
	{
		BLOCKS = 6, OPERATIONS = 12000
	};
	static char model[BLOCKS * BLCKSZ];
	const char *name = is_local ? "parts, local" : "parts";
	char		buf[BLCKSZ];
	off_t		size = 0;
	uint32		seed = 4711;
	int			wrong = 0;
	int			nreads = 0;

	begin();
	local = is_local;
	lend(0, 1);
	memset(model, 0, sizeof(model));
	for (int i = 0; i < OPERATIONS && wrong == 0; i++)
	{
		uint32		what;
		off_t		at;
		off_t		block;
		size_t		len;

		seed = seed * 1103515245 + 12345;
		what = (seed >> 16) % 100;
		seed = seed * 1103515245 + 12345;
		/* whole blocks half of the time; some leave a hole behind the end */
		block = (seed >> 16) % BLOCKS;
		if ((seed >> 20) % 8 != 0)
			block = Min(block, Min(size / BLCKSZ, BLOCKS - 1));
		seed = seed * 1103515245 + 12345;
		at = block * BLCKSZ + ((seed >> 16) % 2 ? 0 : (seed >> 17) % (BLCKSZ - 1));
		len = (seed >> 16) % 2 ? BLCKSZ : Min(1 + (seed >> 20) % 3000, BLCKSZ - at % BLCKSZ);
		if (what < 45)
		{
			ssize_t		there = Max(Min((off_t) len, size - at), 0);

			nreads++;
			wrong += pread_from(file, fd, buf, len, at) != there ||
				memcmp(buf, model + at, there) != 0;
		}
		else if (what < 60)
		{
			/* what was sent is there */
			rbp_spill_flush(false);
			mock_now += MS;
		}
		else if (what < 95)
		{
			memset(buf, i % 251 + 1, len);
			wrong += pwrite_to(file, fd, buf, len, at) != (ssize_t) len;
			memcpy(model + at, buf, len);
			size = Max(size, at + (off_t) len);
		}
		else if (what < 97)
			refusing = !refusing;
		else
		{
			/* shorter, or longer by a hole */
			size = Min((off_t) ((double) size * ((seed >> 18) % 6) / 4), (off_t) sizeof(model));
			wrong += rbp_spill_ftruncate(file, fd, size) != 0;
			memset(model + size, 0, sizeof(model) - size);
		}
		if (wrong)
			diag("operation %d at %lld", i, (long long) at);
	}
	ok(wrong == 0 && nreads > OPERATIONS / 3, "%s: %d reads give what was written", name, nreads);
	ok(mock_counters[RBP_COUNT_SPILL_READS] > 500, "%s: %d of them from donors", name,
	   (int) mock_counters[RBP_COUNT_SPILL_READS]);
	end(name);
}

static void
process_exits(void)
{
	rbp_spill_transaction_ends(XACT_EVENT_ABORT);
}

int
main(void)
{
	char		dir[] = "/tmp/test_spill.XXXXXX";

	mock_init();
	rbp_process_set_exit(process_exits);
	rbp_hash_init();
	memory = calloc((FIRST_EXTENT + MAX_SIZE) * RBP_EXTENT_PAGES, BLCKSZ);
	if (memory == NULL || mkdtemp(dir) == NULL || chdir(dir) != 0 || mkdir("pgsql_tmp", 0700) != 0)
		abort();
	test_mirror_far_away();
	test_memory_goes(false);
	test_memory_goes(true);
	test_told_later();
	test_mirror_goes();
	test_closing();
	test_expired();
	test_no_time_left();
	test_mismatches(false);
	test_mismatches(true);
	test_costs();
	test_disk_stalls();
	test_reserved();
	test_vectors();
	test_entry_meanwhile();
	test_parts(true);
	test_parts(false);
	mock_exit();
	if (rmdir("pgsql_tmp") != 0 || rmdir(dir) != 0)
		diag("%s: %s", dir, strerror(errno));
	return done_testing();
}
