/*-------------------------------------------------------------------------
 *
 * ahead.c
 *	  Pages on their way: requested in batches before they are read.
 *
 * A copy is found by the slot and the hash with which it was requested.  So it
 * is used only if who knows where the page is (the directory, the table of
 * temporary blocks), asked when the page is really read, gives that slot and
 * that hash, and if the bytes, as copied to the reader, match the hash.  If
 * they do not, the slot may have had another page when it was read: this
 * proves nothing about the slot.
 *
 * Each pool has a share of the batches.  Of content that exists on a disk, too,
 * nothing is requested while all batches are in use, since the copies that
 * were requested first are those that are needed next.  Otherwise a batch that
 * was taken to its end is used again first, then the least recently used one.
 * (Merges of temporary files read many runs in turn.  The numbers come from
 * traces of them, whose last passes read runs of 10 to 30 blocks.)
 *
 * Copies belong to a transaction.  At its end those that were not used are
 * dropped, and their memory is returned to the system.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>

#include "base/geometry.h"
#include "base/guc.h"
#include "base/hash.h"
#include "base/process.h"
#include "base/stats.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"

#define BUFFER_BATCHES		32
#define BATCHES				(BUFFER_BATCHES + RBP_AHEAD_BATCHES)
#define MEMORY_BYTES		((Size) BATCHES * RBP_AHEAD_PAGES * BLCKSZ)

/* Announced pages are requested when they are so many. */
#define ANNOUNCED_MAX		8

/* If so many pages in a row were not on their way, those that are have moved since. */
#define MISSES_MAX			8192

/*
 * A batch of content that has no other copy is waited for so long before it is
 * dropped, which costs less than abandoning it.
 */
#define DROP_WAIT_NS		INT64CONST(50000000)

typedef struct Batch
{
	RbpRemoteBatch *transfer;	/* NULL once it has been waited for */
	int			n;				/* 0: unused */
	int			left;			/* pages not taken yet */
	uint64		last_use;		/* 0: unused, or taken to its end */
	const void *owner;
	uint32		last;
	bool		taken[RBP_AHEAD_PAGES];
	uint64		hashes[RBP_AHEAD_PAGES];
	RbpRemoteIo ios[RBP_AHEAD_PAGES];	/* without a slot: not usable */
} Batch;

static Batch batches[BATCHES];
static const int shares[RBP_POOLS + 1] = {0, BUFFER_BATCHES, BATCHES};
static uint64 use_clock = 0;

static bool in_use = false;		/* anything, in this transaction */
static int	waiting[RBP_POOLS]; /* batches with pages that were not taken */
static int	misses = 0;			/* pages asked for and not found, in a row */

/* The batches' pages; mapped when first needed */
static char *memory = NULL;

static RbpAheadRequest announced = {.pool = RBP_POOL_BUFFER};

static inline RbpPool
pool_of(const Batch *batch)
{
	return batch < batches + BUFFER_BATCHES ? RBP_POOL_BUFFER : RBP_POOL_TEMP;
}

static inline char *
copy_of(const Batch *batch, int i)
{
	return memory + ((Size) (batch - batches) * RBP_AHEAD_PAGES + (Size) i) * BLCKSZ;
}

/* now: when it, or the first of several, is dropped. */
static void
drop(Batch *batch, int64 now)
{
	RbpPool		pool = pool_of(batch);

	if (batch->transfer != NULL)
		rbp_remote_end(batch->transfer, rbp_pool_has_copies(pool) ? now :
					   now + Min(rbp_guc_io_timeout_ns() * 10, DROP_WAIT_NS));
	waiting[pool] -= batch->left > 0;
	batch->transfer = NULL;
	batch->n = batch->left = 0;
	batch->last_use = 0;
}

pg_attribute_hot void
rbp_ahead_transaction_ends(XactEvent event)
{
	int64		now;

	if (!in_use)
		return;
	in_use = false;
	announced.n = 0;
	now = rbp_now_ns();
	for (Batch *batch = batches; batch < batches + BATCHES; batch++)
		drop(batch, now);
	/* return the pages' memory to the system */
	if (memory != NULL)
		(void) madvise(memory, MEMORY_BYTES, MADV_DONTNEED);
}

/* Map the batches' memory, once in a process; false if that fails. */
static bool
map_memory(void)
{
	void	   *mem;

	if (memory != NULL)
		return true;
	mem = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return false;
	memory = mem;
	rbp_process_needs_exit();
	return true;
}

/* A batch for a request, or NULL. */
static Batch *
get_batch(RbpPool pool)
{
	Batch	   *oldest = &batches[shares[pool]];

	/* a request that is refused makes the others older, too */
	use_clock++;
	for (Batch *batch = oldest; batch < batches + shares[pool + 1]; batch++)
		if (batch->last_use < oldest->last_use)
			oldest = batch;
	if (rbp_pool_has_copies(pool) && oldest->last_use > 0 &&
		use_clock - oldest->last_use < BUFFER_BATCHES * RBP_AHEAD_PAGES)
		return NULL;
	drop(oldest, rbp_now_ns());
	return oldest;
}

int
rbp_ahead_request(const RbpAheadRequest *request, int flags, int64 deadline_ns)
{
	Batch	   *batch;

	if (!map_memory())
		return -1;
	batch = get_batch(request->pool);
	if (batch == NULL)
		return -1;
	in_use = true;
	batch->n = batch->left = request->n;
	batch->last_use = use_clock;
	batch->owner = request->owner;
	batch->last = request->last;
	for (int i = 0; i < request->n; i++)
	{
		batch->taken[i] = false;
		batch->hashes[i] = request->hashes[i];
		batch->ios[i].slot = request->slots[i];
		batch->ios[i].buf = copy_of(batch, i);
		batch->ios[i].status = RBP_CANCELED;
	}
	waiting[request->pool]++;
	batch->transfer = rbp_remote_begin(batch->ios, batch->n, false, flags, rbp_now_ns(),
									   deadline_ns);
	if (batch->transfer == NULL)
	{
		drop(batch, 0);
		return -1;
	}
	if (rbp_pool_has_copies(request->pool))
		rbp_stats_count(RBP_COUNT_READ_AHEAD, (uint64) batch->n);
	return (int) (batch - batches) - shares[request->pool];
}

/* The batch with a copy of the slot's page, at *at; NULL if there is none. */
static Batch *
find(RbpPool pool, uint32 slot, uint64 hash, int *at)
{
	static Batch *hint[RBP_POOLS] = {&batches[0], &batches[BUFFER_BATCHES]};
	Batch	   *batch = hint[pool];

	for (int k = shares[pool]; in_use && k <= shares[pool + 1]; batch = &batches[k++])
		for (int i = 0; i < batch->n; i++)
			if (batch->ios[i].slot == slot && batch->hashes[i] == hash)
			{
				hint[pool] = batch;
				*at = i;
				return batch;
			}
	return NULL;
}

int
rbp_ahead_find(RbpPool pool, uint32 slot, uint64 hash)
{
	int			at;
	Batch	   *batch = find(pool, slot, hash, &at);

	if (batch == NULL)
		return -1;
	batch->last_use = ++use_clock;
	return (int) (batch - batches) - shares[pool];
}

bool
rbp_ahead_waits(RbpPool pool)
{
	return waiting[pool] > 0 || announced.n > 0;
}

void
rbp_ahead_drop(const void *owner, uint32 before)
{
	for (Batch *batch = batches; in_use && batch < batches + BUFFER_BATCHES; batch++)
		if (batch->n > 0 && batch->owner == owner && batch->last < before)
			drop(batch, rbp_now_ns());
}

static void
request_announced(void)
{
	RbpAheadRequest request = announced;

	announced.n = 0;
	(void) rbp_ahead_request(&request, 0, rbp_now_ns());
}

static bool
is_announced(uint32 slot, uint64 hash)
{
	for (int i = 0; i < announced.n; i++)
		if (announced.slots[i] == slot && announced.hashes[i] == hash)
			return true;
	return false;
}

void
rbp_ahead_announce(uint32 slot, uint64 hash)
{
	if (is_announced(slot, hash) || rbp_ahead_find(announced.pool, slot, hash) >= 0)
		return;
	in_use = true;
	announced.slots[announced.n] = slot;
	announced.hashes[announced.n++] = hash;
	if (announced.n == ANNOUNCED_MAX)
		request_announced();
}

/*
 * Wait for the batch.  A donor must have io_timeout, lest one that hangs be
 * waited for without being noticed; so the deadline is a little later.  If the
 * page can come from the disk, a donor that is known to hang is not waited for.
 */
static void
complete(Batch *batch, uint32 slot, int64 *deadline_ns)
{
	int64		until = rbp_now_ns();

	if (!rbp_pool_has_copies(pool_of(batch)) || rbp_remote_slot_readable(slot))
	{
		if (*deadline_ns == 0)
			*deadline_ns = until + rbp_guc_io_timeout_ns() + rbp_guc_io_timeout_ns() / 16;
		until = *deadline_ns;
	}
	rbp_remote_end(batch->transfer, until);
	batch->transfer = NULL;
}

RbpTaken
rbp_ahead_take(RbpPool pool, uint32 slot, uint64 hash, char *buf, int64 *deadline_ns)
{
	int			i;
	Batch	   *batch;
	RbpStatus	status;
	bool		again;
	bool		right;

	if (is_announced(slot, hash))
		request_announced();
	batch = find(pool, slot, hash, &i);
	if (batch == NULL)
	{
		if (rbp_pool_has_copies(pool) && waiting[pool] > 0 && ++misses >= MISSES_MAX)
			rbp_ahead_drop(NULL, PG_UINT32_MAX);
		return RBP_TAKEN_NOTHING;
	}
	misses = 0;
	if (batch->transfer != NULL)
		complete(batch, slot, deadline_ns);
	status = batch->ios[i].status;
	again = batch->taken[i];
	batch->taken[i] = true;
	batch->last_use = ++use_clock;
	if (!again && --batch->left == 0)
		waiting[pool]--;
	if (batch->left == 0)
		batch->last_use = 0;
	if (status == RBP_OK)
		memcpy(buf, copy_of(batch, i), BLCKSZ);
	right = status == RBP_OK && rbp_hash_page(buf) == hash;

	/*
	 * A run of the buffer tier that is read once more is requested once more:
	 * its first copies give way before they are needed again.
	 */
	if (!right || rbp_pool_has_copies(pool))
		batch->ios[i].slot = RBP_INVALID_SLOT;
	if (right)
		return again ? RBP_TAKEN_AGAIN : RBP_TAKEN_PAGE;
	return status == RBP_OK ? RBP_TAKEN_MISMATCH : status == RBP_CANCELED ? RBP_TAKEN_NOTHING :
		status == RBP_TIMEOUT ? RBP_TAKEN_LATE : RBP_TAKEN_FAILURE;
}
