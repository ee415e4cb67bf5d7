/*-------------------------------------------------------------------------
 *
 * pusher.c
 *	  The background worker that writes staged pages to donors.
 *
 * A backend has copied a page to a staging slot, inserted the slot into the
 * directory, and queued it.  The pusher takes a batch from the queue.  For
 * each page whose staged entry is still in the directory (a write may have
 * dropped it), the pusher reserves a remote slot, which evicts another page
 * if necessary.  It writes the batch to the donors, and only then publishes
 * each page under its partition lock, where the directory checks once more
 * that the staged entry is alive.  Then the staging slot is free.  A page
 * whose write failed is dropped.
 *
 * Between batches the pusher runs the duties of other modules (RbpDuty; the
 * table is in remote_bp.c), and sweeps dead entries out of the directory when
 * it is idle.
 *
 * Sleeping and waking.  Backends must not pay a system call for each page, so
 * wake_depth says how deep the queue has to be to be worth a wake-up.  It is
 * PG_UINT32_MAX while the pusher is awake; WAKE_BATCH while it dozes for
 * DOZE_MS after some work (few pages can wait, since they are served from
 * staging); and 1 after a doze in which no page arrived.  The backend that
 * brings the queue to that depth resets wake_depth by compare-and-swap, and
 * it alone sets the latch.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"

#include "base/geometry.h"
#include "base/guc.h"
#include "base/injection_point.h"
#include "base/stats.h"
#include "base/wait.h"
#include "base/workers.h"
#include "buffer/buffer.h"
#include "buffer/buffer_internal.h"
#include "buffer/directory.h"
#include "buffer/page.h"
#include "buffer/relation_stats.h"
#include "buffer/staging.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"

#define WAKE_BATCH			RBP_MAX_BATCH
#define DOZE_MS				100
#define SWEEP_EVERY_NS		INT64CONST(2000000000)

/*
 * While pages wait, sweep_some() is called once after this many batches, so
 * that dead entries are freed under constant load, too.  A call visits about a
 * thousand entries, which takes less time than one batch.
 */
#define BATCHES_PER_SWEEP_STEP	8

/*
 * A push may take this many times io_timeout, because no query waits for it.
 */
#define PUSH_TIMEOUT_FACTOR	10

static const RbpDuty *duties;

void
rbp_pusher_set_duties(const RbpDuty *these)
{
	duties = these;
}

void
rbp_pusher_notify(uint32 depth)
{
	uint32		wake;

	/* the page was queued before we look whether the pusher sleeps */
	pg_memory_barrier();
	wake = pg_atomic_read_u32(&rbp_tier_shared->wake_depth);
	if (likely(depth < wake) || wake == PG_UINT32_MAX)
		return;
	if (pg_atomic_compare_exchange_u32(&rbp_tier_shared->wake_depth, &wake,
									   PG_UINT32_MAX))
		rbp_worker_wake(RBP_WORKER_PUSHER);
}

/* A page that is being pushed */
typedef struct Push
{
	RbpPageId	page;
	uint32		staging_slot;
	uint32		slot;
} Push;

/* The push has ended: well, if the slot was written, or for that reason. */
static void
end_push(const Push *push, bool written, RbpCounter why)
{
	RbpInsert	result = rbp_directory_publish(rbp_dir, &push->page, push->staging_slot,
											   push->slot, written);

	rbp_staging_put(rbp_staging, push->staging_slot);
	rbp_stats_count(result == RBP_INSERTED ? RBP_COUNT_PUSHES :
					written ? RBP_COUNT_PUSH_STALE : why, 1);
}

void
rbp_pusher_count_evicted(const RbpEvicted *evicted)
{
	if (evicted->n > 0)
		rbp_stats_count(RBP_COUNT_EVICTIONS, (uint64) evicted->n);
	for (int i = 0; i < evicted->n; i++)
		rbp_relation_count_page(&evicted->pages[i], RBP_COUNT_EVICTIONS);
}

/*
 * Push at most one batch of pages.  Returns how many were taken off the
 * queue.
 */
static int
push_batch(void)
{
	uint32		taken[RBP_MAX_BATCH];
	Push		pushes[RBP_MAX_BATCH];
	RbpRemoteIo ios[RBP_MAX_BATCH];
	int			ntaken = rbp_staging_take(rbp_staging, taken, RBP_MAX_BATCH);
	int64		start = rbp_now_ns();
	int64		deadline = start + rbp_guc_io_timeout_ns() * PUSH_TIMEOUT_FACTOR;
	bool		usable = rbp_remote_usable(RBP_POOL_BUFFER, start);
	int			n = 0;

	for (int i = 0; i < ntaken; i++)
	{
		Push	   *push = &pushes[n];
		uint64		hash;
		RbpEvicted	evicted = {.n = 0};

		push->staging_slot = taken[i];
		push->slot = RBP_INVALID_SLOT;
		if (!rbp_directory_staged_info(rbp_dir, taken[i], &push->page, &hash))
		{
			rbp_staging_put(rbp_staging, taken[i]);
			rbp_stats_count(RBP_COUNT_PUSH_STALE, 1);
			continue;
		}
		rbp_residency_name_database(push->page.space);
		if (usable)
			push->slot = rbp_directory_reserve(rbp_dir, &push->page, &evicted);
		rbp_pusher_count_evicted(&evicted);
		if (push->slot == RBP_INVALID_SLOT)
		{
			end_push(push, false, RBP_COUNT_PUSH_NO_SLOT);
			continue;
		}
		ios[n].slot = push->slot;
		ios[n].buf = rbp_staging_page(rbp_staging, taken[i]);
		n++;
	}
	if (n == 0)
		return ntaken;

	if (RBP_INJECTION_POINT("publish-early"))
	{
		/* the slot is published, and free staging reused, before the write */
		for (int i = 0; i < n; i++)
			end_push(&pushes[i], true, RBP_COUNT_PUSHES);
		pg_usleep(50000);
		rbp_remote_transfer(ios, n, true, start, deadline);
		return ntaken;
	}

	rbp_remote_transfer(ios, n, true, start, deadline);
	for (int i = 0; i < n; i++)
		end_push(&pushes[i], ios[i].status == RBP_OK, RBP_COUNT_PUSH_FAILED);
	rbp_stats_latency(RBP_LATENCY_PUSH, rbp_now_ns() - start);
	return ntaken;
}

/*
 * Free entries that a truncation or drop has killed, if there was any since
 * the last round.  The first round also builds what was kept, as far as nobody has
 * needed it yet.  Each call makes one step.  Returns whether there is more to do.
 */
static bool
sweep_some(void)
{
	static int	partition = 0;
	static bool built = false;
	static uint64 swept_bumps = 0;
	static int64 next_round = 0;
	uint32		freed = 0;

	if (partition == RBP_PARTITIONS)
	{
		uint64		bumps = rbp_directory_bumps(rbp_dir);
		int64		now = rbp_now_ns();

		if (bumps == swept_bumps || now < next_round)
			return false;
		swept_bumps = bumps;
		next_round = now + SWEEP_EVERY_NS;
		partition = 0;
	}
	if (!rbp_directory_sweep_step(rbp_dir, partition, &freed))
		partition++;
	if (partition == RBP_PARTITIONS && !built)
	{
		built = true;
		rbp_tier_image_loaded();
	}
	return partition < RBP_PARTITIONS;
}

/*
 * Call all duties; each does its work if it is due.  Returns the ns until the
 * next one is due, or -1 if none will be.
 */
static int64
do_duties(void)
{
	int64		next = -1;

	for (const RbpDuty *duty = duties; *duty != NULL; duty++)
	{
		int64		due = (*duty) ();

		if (due >= 0 && (next < 0 || due < next))
			next = due;
	}
	return next;
}

void
rbp_pusher_main(Datum arg)
{
	bool		idle = false;	/* no page came during the last wait */
	int			batches = 0;

	rbp_worker_begin(RBP_WORKER_PUSHER);
	BackgroundWorkerUnblockSignals();
	/* RDMA devices need to know the memory from which pages are written */
	rbp_remote_set_pusher(rbp_staging_page(rbp_staging, 0),
						  (Size) rbp_staging_slots(rbp_staging) * BLCKSZ);

	/*
	 * A predecessor has left nothing to clean up.  If it crashed, shared
	 * memory was reset.  Otherwise it ended between batches, since nothing in
	 * push_batch() raises an error.
	 */
	while (!ShutdownRequestPending)
	{
		int64		due_ns;
		long		timeout;

		(void) rbp_worker_reload();
		rbp_worker_runs(RBP_WORKER_PUSHER);
		due_ns = do_duties();
		if (push_batch() > 0)
		{
			idle = false;
			rbp_relation_stats_settle();
			if (++batches % BATCHES_PER_SWEEP_STEP == 0)
				(void) sweep_some();
			CHECK_FOR_INTERRUPTS();
			continue;
		}
		if (sweep_some())
			continue;

		/*
		 * Nothing to do: set the depth at which to wake us, and check once
		 * more.
		 */
		timeout = idle ? RBP_WORKER_SLEEP_MS : DOZE_MS;
		if (due_ns >= 0)
			timeout = Min(timeout, (long) (due_ns / 1000000) + 1);
		pg_atomic_write_u32(&rbp_tier_shared->wake_depth, idle ? 1 : WAKE_BATCH);
		pg_memory_barrier();
		if (rbp_staging_depth(rbp_staging) >= (idle ? 1 : WAKE_BATCH))
		{
			pg_atomic_write_u32(&rbp_tier_shared->wake_depth, PG_UINT32_MAX);
			continue;
		}
		rbp_wait_latch(RBP_WAIT_MAIN, timeout);
		pg_atomic_write_u32(&rbp_tier_shared->wake_depth, PG_UINT32_MAX);
		idle = rbp_staging_depth(rbp_staging) == 0;
		CHECK_FOR_INTERRUPTS();
	}

	/* exit status 0 would tell the postmaster not to restart us */
	proc_exit(1);
}
