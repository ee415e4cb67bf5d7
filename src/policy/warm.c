/*-------------------------------------------------------------------------
 *
 * warm.c
 *	  Bring pages that are hot on the server that is followed into the tier, from
 *	  the disk of this one.
 *
 * - Only names come from the other server.  A name that is wrong, or of a file that
 *	 is another relation's by now, costs a read at most: pages are named by the
 *	 relation's own file, are read through a ring of shared buffers, and are staged under
 *	 an exclusive content lock, as by prewarm (rule 11 of coherence).
 * - Replay waits for a piece at most: its lock is taken only if it is free, and is held for
 *	 LOCK_NS, plus the read of a page.  No lock, snapshot or pin is held while this
 *	 process waits, be it for its rate, for staging, or until replay has caught up.
 * - It reads remote_bp.follow_rate at most, on average over BURST_NS, and gives way: to replay,
 *	 to donors, and to the page cache.  A recovery conflict cancels a piece like a query.
 * - A list never takes a page out of the tier, but pages that were never read there make room for
 *	 such as are hot.
 * - It ends with the round of the list that it began with, and so with the recovery.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlogrecovery.h"
#include "miscadmin.h"
#include "replication/walreceiver.h"
#include "storage/proc.h"

#include "base/compat.h"
#include "base/guc.h"
#include "base/page_cache.h"
#include "base/wait.h"
#include "buffer/buffer.h"
#include "common/clock.h"
#include "policy/follow.h"
#include "policy/policy_internal.h"


/* Warming ends a visit after this time, if it has to give way */
#define PATIENCE_NS		NANOS_PER_S

/* A relation stays locked no longer than 200 ms, a page that takes long to read included */
#define LOCK_NS			(150 * NANOS_PER_MS)

#define BURST_NS		(200 * NANOS_PER_MS)

/* Fewer pages are not worth a transaction, unless the rate is low */
#define PIECE_PAGES		64

/* Replay lags if it is so many bytes behind what was received */
#define MAX_LAG			(16 * 1024 * 1024)

/* Fewer refaults in a second than this, beside what is usual, are ignored */
#define MAX_REFAULTS	1000
#define OS_PAGES		(BLCKSZ / 4096)

static int64 end_ns;			/* of the visit */
static int64 paid_ns;			/* the rate is used up to this time */
static uint64 pages_read = 0;

/*
 * ---- giving way -----------------------------------------------------------------
 */

static bool
replay_lags(void)
{
	XLogRecPtr	received = GetWalRcvFlushRecPtr(NULL, NULL);
	XLogRecPtr	replayed = GetXLogReplayRecPtr(NULL);

	return received > replayed && received - replayed > MAX_LAG;
}

static bool
replay_waits_for_lock(void)
{
	static int	pid = 0;
	PGPROC	   *proc;

	if (pid == 0)
		pid = rbp_compat_startup_pid();
	proc = pid != 0 ? AuxiliaryPidGetProc(pid) : NULL;
	return proc != NULL && (*(volatile uint32 *) &proc->wait_event_info & 0xFF000000) == PG_WAIT_LOCK;
}

/* Are there much more refaults than before warming began, apart from those of our own reads? */
static bool
page_cache_is_short(void)
{
	static int64 looked_at = 0;
	static uint64 before = 0;
	static uint64 read_before = 0;
	static bool is_short = false;
	int64		usual = rbp_follow_usual_refaults();
	int64		now = rbp_now_ns();
	uint64		refaults;

	if (usual < 0 || now - looked_at < NANOS_PER_S || !rbp_page_cache_refaults(&refaults))
		return is_short;
	if (looked_at != 0)
		is_short = ((int64) (refaults - before) - (int64) (pages_read - read_before) * OS_PAGES) *
			NANOS_PER_S / (now - looked_at) > 2 * usual + MAX_REFAULTS;
	looked_at = now;
	before = refaults;
	read_before = pages_read;
	return is_short;
}

static RbpFollowWait
why_wait(void)
{
	char		why[256];

	if (rbp_tier_unusable_reason(why, sizeof(why)))
		return RBP_FOLLOW_NO_TIER;
	if (replay_lags())
		return RBP_FOLLOW_LAG;
	if (replay_waits_for_lock())
		return RBP_FOLLOW_LOCK;
	if (rbp_tier_staging_is_busy())
		return RBP_FOLLOW_STAGING;
	return page_cache_is_short() ? RBP_FOLLOW_PAGE_CACHE : RBP_FOLLOW_GOES_ON;
}

/* Time for a page at the rate */
static int64
page_ns(void)
{
	return BLCKSZ * NANOS_PER_S / (rbp_guc_follow_rate * INT64CONST(1024));
}

/*
 * Wait, with nothing held, until some pages may be read.  Returns how many; 0 if the visit
 * ends here.
 */
static int
wait_turn(RbpPolicyVisit *visit)
{
	int64		least_ns = Min(PIECE_PAGES * page_ns(), Max(BURST_NS / 2, page_ns()));
	int64		patient_until = rbp_now_ns() + PATIENCE_NS;

	for (;;)
	{
		int64		now = rbp_now_ns();
		RbpFollowWait why = why_wait();
		int64		sleep_ns = 20 * NANOS_PER_MS;

		rbp_follow_set_wait(why);
		if (rbp_follow_round() != visit->warm.round)
			return 0;
		if (now >= end_ns)
		{
			visit->out_of_time = true;
			return 0;
		}
		if (why == RBP_FOLLOW_GOES_ON)
		{
			paid_ns = Max(paid_ns, now - Max(BURST_NS, page_ns()));
			sleep_ns = paid_ns + least_ns - now;
			if (sleep_ns <= 0)
				return (int) Min((now - paid_ns) / page_ns(), INT_MAX);
		}
		else if (why != RBP_FOLLOW_STAGING && now >= patient_until)
		{
			visit->more = true;
			return 0;
		}
		rbp_wait_latch(RBP_WAIT_MAIN, (long) (Min(sleep_ns, 100 * NANOS_PER_MS) / NANOS_PER_MS) + 1);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * ---- parts ----------------------------------------------------------------------
 */

/*
 * Count the pages of the part that the tier has.  Returns whether others are missing, without
 * looking at the relation.
 */
static bool
count_present(const RbpHotPart *part, const uint8 *bitmap)
{
	const RbpRelFile file = {.spc = part->spc,.db = part->db,.rel = part->rel,.fork = part->fork};
	BlockNumber first = part->part * RBP_HOT_PART_BLOCKS;
	const uint32 none[RBP_FOLLOW_OUTCOMES] = {0};
	uint32		present = 0;
	uint32		missing = 0;

	for (BlockNumber i = 0; i < part->length * 8u; i++)
	{
		if (!rbp_hot_bit(bitmap, i))
			continue;
		if (rbp_tier_has_block(&file, first + i, false))
			present++;
		else
			missing++;
	}
	rbp_follow_count(part->class, present, none);
	return missing > 0;
}

/*
 * Bring the missing pages of the part into the tier.  Returns false if the visit ends here.
 * *failed is set if there was an error: the rest of the relation is left out then.
 */
static bool
warm_part(const RbpHotPart *part, const uint8 *bitmap, RbpPolicyVisit *visit, bool *failed)
{
	bool		more = true;

	while (more)
	{
		RbpLoadPiece piece = {
			.activity = "reading hot pages",.time_ns = LOCK_NS,.part = part,.bitmap = bitmap,
			.file = {.spc = part->spc,.db = part->db,.rel = part->rel},
			.at.block = visit->warm.block,.budget = wait_turn(visit)
		};
		RbpFollowPages result;

		if (piece.budget == 0)
			return false;
		result = rbp_prewarm_piece(&piece);
		if (result != RBP_FOLLOW_READ)
			piece.pages[result] += rbp_hot_count(part, bitmap, piece.at.block);
		*failed = result == RBP_FOLLOW_ERROR;
		rbp_follow_count(part->class, 0, piece.pages);
		paid_ns += piece.read * page_ns();
		pages_read += piece.read;
		visit->warm.block = piece.at.block;
		more = piece.more;
	}
	return true;
}

/* Go through the list, from where the last visit has ended. */
static void
warm_parts(RbpHotReader *reader, RbpPolicyVisit *visit)
{
	RbpHotPart	part;
	RbpHotPart	bad = {0};		/* of a relation to leave out */
	bool		goes_on = fseeko(reader->file, visit->warm.at, SEEK_SET) == 0;

	while (goes_on)
	{
		bool		failed = false;

		if (!rbp_hot_next(reader, &part))
		{
			visit->warm.done = true;
			break;
		}
		CHECK_FOR_INTERRUPTS();
		if (part.db == MyDatabaseId && (part.rel != bad.rel || part.spc != bad.spc) &&
			(visit->warm.counted || count_present(&part, reader->bitmap)))
		{
			visit->warm.counted = true;
			goes_on = warm_part(&part, reader->bitmap, visit, &failed);
		}
		if (failed)
			bad = part;
		if (goes_on)
		{
			visit->warm.at = ftello(reader->file);
			visit->warm.block = 0;
			visit->warm.counted = false;
		}
	}
}

void
rbp_policy_warm(RbpPolicyVisit *visit)
{
	uint64		round = rbp_follow_round();
	RbpHotReader *reader;

	if (visit->warm.round != round)
		visit->warm = (RbpWarmPosition)
	{
		.round = round,.at = RBP_HOT_FIRST
	};
	if (round == 0 || visit->warm.done)
		return;
	end_ns = rbp_now_ns() + RBP_VISIT_NS;
	paid_ns = rbp_now_ns();
	reader = palloc(sizeof(*reader));
	if (why_wait() == RBP_FOLLOW_NO_TIER || !rbp_hot_open(reader, RBP_FOLLOW_FILE))
	{
		rbp_follow_set_wait(RBP_FOLLOW_NO_TIER);
		visit->more = true;
		return;
	}
	warm_parts(reader, visit);
	rbp_hot_close(reader);
}
