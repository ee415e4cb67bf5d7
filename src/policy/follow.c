/*-------------------------------------------------------------------------
 *
 * follow.c
 *	  Following another server: shared state, and remote_bp_stat_follow.
 *
 * The follower alone writes the list and what is known of it; the launcher writes which round is
 * done; the worker writes counters.  A round is a number, so that
 * a visit notices that another one has begun, or that there is none any more.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/guc.h"
#include "base/lock.h"
#include "base/page_cache.h"
#include "base/sql.h"
#include "base/workers.h"
#include "buffer/buffer.h"
#include "common/clock.h"
#include "policy/follow.h"
#include "policy/policy_internal.h"

PG_FUNCTION_INFO_V1(rbp_sql_stat_follow);


/* A list is used for so long if no new one can be had. */
#define LIST_MAX_AGE_MS	(3600 * 1000)

#define TEXT_LEN		256

typedef struct FollowShared
{
	pg_atomic_uint32 follower;	/* its pid, or 0 */
	pg_atomic_uint64 round;
	pg_atomic_uint64 done;		/* the last round that is */
	pg_atomic_uint32 wait;		/* RbpFollowWait */
	pg_atomic_uint64 present[RBP_HOT_CLASSES];	/* found in the round, or read */
	pg_atomic_uint64 pages[RBP_FOLLOW_OUTCOMES];	/* since the start */
	pg_atomic_uint64 refaults;	/* in a second + 1; 0: not known */

	RbpLock		lock;			/* protects all below */
	TimestampTz taken_at;		/* the list; 0: there is none */
	uint64		names[RBP_HOT_CLASSES];
	char		server[TEXT_LEN];
	char		error[TEXT_LEN];	/* the last one, even if it is over */
	TimestampTz error_at;
	bool		failing;
} FollowShared;

static FollowShared *shared = NULL;

Size
rbp_follow_shmem_size(void)
{
	return sizeof(FollowShared);
}

void
rbp_follow_shmem_init(void *mem)
{
	/* zeros do for all else */
	shared = mem;
	memset(shared, 0, sizeof(*shared));
	rbp_lock_init(&shared->lock, rbp_lock_tranche("RemoteBpFollow"));
}

/*
 * ---- the follower ---------------------------------------------------------------
 */

static void
drop_list(void)
{
	pg_atomic_write_u64(&shared->round, 0);
	rbp_lock_exclusive(&shared->lock);
	shared->taken_at = 0;
	memset(shared->names, 0, sizeof(shared->names));
	rbp_lock_release(&shared->lock);
}

static void
end_follower(int code, Datum arg)
{
	drop_list();
	pg_atomic_write_u32(&shared->follower, 0);
	rbp_worker_wake(RBP_WORKER_LAUNCHER);
}

bool
rbp_follow_begin(void)
{
	uint32		none = 0;

	if (!pg_atomic_compare_exchange_u32(&shared->follower, &none, (uint32) MyProcPid))
		return false;
	before_shmem_exit(end_follower, (Datum) 0);
	return true;
}

bool
rbp_follow_is_wanted(void)
{
	return rbp_guc_follow[0] != '\0' && RecoveryInProgress();
}

/* The number of a round is when it began, as of rbp_now_ns(). */
static void
begin_round(void)
{
	for (int i = 0; i < RBP_HOT_CLASSES; i++)
		pg_atomic_write_u64(&shared->present[i], 0);
	pg_atomic_write_u64(&shared->round, (uint64) rbp_now_ns());
	rbp_worker_wake(RBP_WORKER_LAUNCHER);
}

void
rbp_follow_new_list(const RbpHotHeader *header, int64 age_ms, const char *server)
{
	bool		told;

	/* the list is not that of the last round any more */
	pg_atomic_write_u64(&shared->round, 0);
	rbp_lock_exclusive(&shared->lock);
	told = shared->taken_at != 0 && !shared->failing && strcmp(shared->server, server) == 0;
	shared->taken_at = GetCurrentTimestamp() - age_ms * 1000;
	memcpy(shared->names, header->pages, sizeof(shared->names));
	strlcpy(shared->server, server, sizeof(shared->server));
	shared->failing = false;
	rbp_lock_release(&shared->lock);
	if (!told)
		ereport(LOG,
				(errmsg("remote_bp: following server %s, which names %llu hot pages", server,
						(unsigned long long) (header->pages[RBP_HOT_BUFFERS] + header->pages[RBP_HOT_MAIN] + header->pages[RBP_HOT_SMALL]))));
	begin_round();
}

void
rbp_follow_failed(const char *reason)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		told;
	bool		usable;

	rbp_lock_exclusive(&shared->lock);
	told = shared->failing && strncmp(shared->error, reason, TEXT_LEN - 1) == 0;
	usable = shared->taken_at != 0 && now - shared->taken_at < LIST_MAX_AGE_MS * INT64CONST(1000);
	strlcpy(shared->error, reason, sizeof(shared->error));
	shared->error_at = now;
	shared->failing = true;
	rbp_lock_release(&shared->lock);
	if (!told)
		ereport(LOG,
				(errmsg("remote_bp: could not get names of hot pages: %s", reason)));
	if (!usable)
		drop_list();
	else if (rbp_now_ns() - (int64) rbp_follow_round() >= rbp_guc_follow_interval * NANOS_PER_S)
		begin_round();
}

void
rbp_follow_watch_cache(void)
{
	static uint64 before = 0;
	static int64 looked_at = 0;
	int64		now = rbp_now_ns();
	uint64		refaults;

	if (now - looked_at < NANOS_PER_S || !rbp_page_cache_refaults(&refaults))
		return;
	if (looked_at != 0 && pg_atomic_read_u64(&shared->done) == rbp_follow_round())
		pg_atomic_write_u64(&shared->refaults, 1 + (refaults - before) * NANOS_PER_S / (now - looked_at));
	before = refaults;
	looked_at = now;
}

/*
 * ---- the launcher and the worker ---------------------------------------------------
 */

uint64
rbp_follow_round(void)
{
	return pg_atomic_read_u64(&shared->round);
}

void
rbp_follow_set_done(uint64 round)
{
	pg_atomic_write_u64(&shared->done, round);
}

void
rbp_follow_set_wait(RbpFollowWait wait)
{
	pg_atomic_write_u32(&shared->wait, wait);
}

void
rbp_follow_count(RbpHotClass class, uint32 present, const uint32 pages[RBP_FOLLOW_OUTCOMES])
{
	pg_atomic_fetch_add_u64(&shared->present[class], present + pages[RBP_FOLLOW_READ]);
	for (int i = 0; i < RBP_FOLLOW_OUTCOMES; i++)
		pg_atomic_fetch_add_u64(&shared->pages[i], pages[i]);
}

int64
rbp_follow_usual_refaults(void)
{
	return (int64) pg_atomic_read_u64(&shared->refaults) - 1;
}

/*
 * ---- remote_bp_stat_follow ---------------------------------------------------------
 */

/* The state, and the reason of a wait, perhaps in buf, or NULL. */
static const char *
state(const char **reason, char *buf, Size len)
{
	static const char *const waits[RBP_FOLLOW_WAITS] = {
		[RBP_FOLLOW_NO_TIER] = "the tier cannot be used",
		[RBP_FOLLOW_LAG] = "replay lags",
		[RBP_FOLLOW_LOCK] = "replay waits for a lock",
		[RBP_FOLLOW_STAGING] = "donors are slower than the disk",
		[RBP_FOLLOW_PAGE_CACHE] = "the page cache reads pages again that it had evicted",
	};
	RbpFollowWait wait = (RbpFollowWait) pg_atomic_read_u32(&shared->wait);
	uint64		round = rbp_follow_round();

	*reason = NULL;
	if (rbp_guc_follow[0] == '\0')
		return "off";
	if (!RecoveryInProgress())
		return "primary";
	*reason = buf;
	if (rbp_tier_unusable_reason(buf, len) || rbp_worker_away(RBP_WORKER_LAUNCHER, buf, len))
		return "waiting";
	*reason = NULL;
	if (round == 0)
		return "connecting";
	if (pg_atomic_read_u64(&shared->done) == round)
		return "up to date";
	*reason = waits[wait];
	return wait == RBP_FOLLOW_GOES_ON ? "warming" : "waiting";
}

Datum
rbp_sql_stat_follow(PG_FUNCTION_ARGS)
{
	static const char *const names[RBP_HOT_CLASSES] = {"names_buffers", "names_main", "names_small"};
	static const char *const present[RBP_HOT_CLASSES] = {"present_buffers", "present_main", "present_small"};
	static const char *const pages[RBP_FOLLOW_OUTCOMES] = {
		[RBP_FOLLOW_READ] = "pages_read",
		[RBP_FOLLOW_UNKNOWN] = "skipped_unknown",
		[RBP_FOLLOW_BUSY] = "skipped_busy",
		[RBP_FOLLOW_EXCLUDED] = "skipped_excluded",
		[RBP_FOLLOW_FULL] = "skipped_full",
		[RBP_FOLLOW_BEYOND] = "skipped_beyond",
		[RBP_FOLLOW_ERROR] = "skipped_error",
	};
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);
	FollowShared now;
	RbpRow		row = {0};
	const char *reason;
	char		buf[256];

	rbp_lock_shared(&shared->lock);
	now = *shared;
	rbp_lock_release(&shared->lock);
	rbp_row_text(&row, "state", state(&reason, buf, sizeof(buf)));
	rbp_row_text(&row, "reason", reason);
	rbp_row_text(&row, "server", now.server);
	rbp_row_put(&row, "list_taken_at", TimestampTzGetDatum(now.taken_at), now.taken_at == 0);
	for (int i = 0; i < RBP_HOT_CLASSES; i++)
	{
		rbp_row_count(&row, names[i], now.names[i]);
		rbp_row_count(&row, present[i], pg_atomic_read_u64(&shared->present[i]));
	}
	for (int i = 0; i < RBP_FOLLOW_OUTCOMES; i++)
		rbp_row_count(&row, pages[i], pg_atomic_read_u64(&shared->pages[i]));
	rbp_row_text(&row, "last_error", now.error);
	rbp_row_put(&row, "last_error_at", TimestampTzGetDatum(now.error_at), now.error[0] == '\0');
	rbp_sql_add_row(rsinfo, &row);
	return (Datum) 0;
}
