/*-------------------------------------------------------------------------
 *
 * report.c
 *	  What the log and the views say of links and leases.
 *
 * Any process that meets an error records it, even a backend in the middle of
 * a file call: two stores into shared memory (link.c).  Here it is formatted
 * as text when it is shown.
 *
 * Only the pusher writes to the log, since it may wait there.  Whenever it is
 * awake it checks all links, and logs what has changed since its last message:
 * a donor is down, or cannot be reached over a transport, or no longer so; it
 * has no slot for more connections, or refuses them.  A donor that comes and
 * goes would fill the log, so the same reason is logged again only after
 * LOG_REPEAT_NS, with the number of times in between.
 *
 * The lease worker records as text, under remote_lock, why it has no usable
 * answer from the broker.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/lwlock.h"
#include "utils/timestamp.h"

#include "base/guc.h"
#include "base/stats.h"
#include "base/workers.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"
#include "remote/remote_internal.h"
#include "transport/transport.h"

#define LOG_REPEAT_NS	INT64CONST(60000000000)
#define LOG_OTHER_NS	INT64CONST(5000000000)	/* for another reason */
#define BYPASSED_MIN	100		/* pages; ignore samples */
#define SERIES_NS		INT64CONST(30000000000) /* gap in a series */

#define ERROR_TEXT_LEN	160

typedef struct LoggedCount
{
	int64		at;				/* time of the last message, 0 for none */
	uint64		n;				/* value at that time */
} LoggedCount;

/* What the pusher has logged about the donor at that index. */
typedef struct LogState
{
	char		donor[RBP_DONOR_ID_LEN];
	bool		open[RBP_LINKS];	/* logged as such, and not yet as closed */
	int64		down_at;		/* time of the last message, 0 for none */
	uint32		why;
	uint32		times_down;		/* value at that time */
	LoggedCount over_limit;
	LoggedCount bypassed;
	int64		refused_at;
	uint64		refused_error_at;	/* of the last refusal seen */
	int64		refused_last;	/* time of that */
	int64		refused_since;	/* when a series of refusals began */
} LogState;

/*
 * Of an error, the text before the transport, and after it; why: and the status.  One
 * more names the transport's device, too: rbp_remote_error_text() has it.
 */
static const struct
{
	const char *before;
	const char *after;			/* NULL: no transport is named */
	bool		why;
}			error_texts[] = {
	[DONOR_ERROR_NONE] = {""},
	[DONOR_ERROR_CONNECT] = {"could not connect over ", ": ", true},
	[DONOR_ERROR_ELSEWHERE] = {"could not connect over ", ": ", true},
	[DONOR_ERROR_REQUEST] = {"a request over ", " failed: ", true},
	[DONOR_ERROR_OFTEN_LATE] = {"too many requests over ", " timed out"},
	[DONOR_ERROR_WRONG_BYTES] = {"it returned wrong bytes over ", ""},
	[DONOR_ERROR_UNRESOLVED] = {"the name that it advertises could not be resolved"},
	[DONOR_ERROR_NO_TRANSPORT] = {"it offers no transport that this server can use"},
	[DONOR_ERROR_NOT_OFFERED] = {"it does not offer ", ", and remote_bp.transport is that"},
	[DONOR_ERROR_NOT_FROM_HERE] = {"it cannot be reached over ", " from this host, and remote_bp.transport is that"},
};

void
rbp_remote_error_text(uint32 word, char *buf, Size len)
{
	RbpDonorError what = ERROR_WHAT(word);
	RbpStatus	status = ERROR_STATUS(word);
	const char *over = rbp_remote_transport_name(ERROR_TRANSPORT(word));
	bool		refused = what != DONOR_ERROR_REQUEST && status == RBP_CONNLOST;

	if (what == DONOR_ERROR_NO_DEVICE)
		snprintf(buf, len, "this server has no %s device that it can use, and remote_bp.transport is %s",
				 rbp_transport_by_bit(ERROR_TRANSPORT(word))->device->name, over);
	else if (error_texts[what].after == NULL)
		strlcpy(buf, error_texts[what].before, len);
	else
		snprintf(buf, len, "%s%s%s%s", error_texts[what].before, over, error_texts[what].after,
				 !error_texts[what].why ? "" :
				 refused ? "refused, closed or unreachable" : rbp_status_text(status));
}

/*
 * ---- why memory is unusable ----------------------------------------------
 */

void
rbp_remote_set_broker_error(RbpPool pool, const char *error)
{
	RbpPoolLease *lease = &rbp_remote_shared->leases[pool];

	/*
	 * called at each renewal; only this process writes it, so no lock to read
	 */
	if (error == NULL && lease->broker_error[0] == '\0')
		return;
	LWLockAcquire(&rbp_remote_shared->remote_lock, LW_EXCLUSIVE);
	if (lease->broker_error[0] == '\0')
		lease->broker_error_since = GetCurrentTimestamp();
	strlcpy(lease->broker_error, error != NULL ? error : "", sizeof(lease->broker_error));
	LWLockRelease(&rbp_remote_shared->remote_lock);
}

/*
 * Are all donors of the pool's regions down?  If so, store the reason of one
 * of them.
 */
static bool
all_down(RbpPool pool, char *buf, Size len)
{
	char		error[ERROR_TEXT_LEN];
	RbpRemoteDonor *down = NULL;

	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		RbpRemoteDonor *d = &rbp_remote_shared->donors[i];

		if (d->nregions[pool] == 0)
			continue;
		if (!donor_is_down(d))
			return false;
		down = d;
	}
	if (down == NULL)
		return false;
	rbp_remote_error_text(pg_atomic_read_u32(&down->links[ANY_LINK].error), error, sizeof(error));
	snprintf(buf, len, "all donors are down; donor \"%s\": %s",
			 down->endpoint.donor, error);
	return true;
}

bool
rbp_remote_unusable_reason(RbpPool pool, char *buf, Size len)
{
	RbpPoolLease *lease = &rbp_remote_shared->leases[pool];
	bool		temp = pool == RBP_POOL_TEMP;
	int			size = temp ? rbp_guc_temp_tier_size : rbp_guc_tier_size_wanted();
	bool		unusable = true;

	if (temp && rbp_guc_temp_tier_max_size == 0)
	{
		strlcpy(buf, "remote_bp.temp_tier_max_size is 0", len);
		return true;
	}
	LWLockAcquire(&rbp_remote_shared->remote_lock, LW_SHARED);
	if (rbp_remote_usable(pool, rbp_now_ns()))
		unusable = all_down(pool, buf, len);
	else if (rbp_guc_broker == NULL || rbp_guc_broker[0] == '\0')
		strlcpy(buf, "remote_bp.broker is not set", len);
	else if (size == 0)
		snprintf(buf, len, "remote_bp.%s_tier_size is 0", temp ? "temp" : "buffer");
	else if (rbp_worker_away(RBP_WORKER_LEASE, buf, len))
		unusable = true;
	else if (lease->broker_error[0] != '\0')
		snprintf(buf, len, "no lease: broker \"%s\", since %s: %s", rbp_guc_broker,
				 timestamptz_to_str(lease->broker_error_since), lease->broker_error);
	else if (lease->has_lease && pg_atomic_read_u32(&lease->nregions) == 0)
		strlcpy(buf, "the lease waits for memory: no donor has any to lease", len);
	else
		strlcpy(buf, lease->has_lease ? "the lease has lapsed, and is not renewed yet" : "no lease yet", len);
	LWLockRelease(&rbp_remote_shared->remote_lock);
	return unusable;
}

/*
 * ---- the log -------------------------------------------------------------
 */

/* May a message be logged again, given the time of the last one? */
static inline bool
may_log(int64 last, int64 pause, int64 now)
{
	return last == 0 || now - last >= pause;
}

/* Log that a link is open, or closed again. */
static void
log_link(RbpRemoteDonor *d, int link, LogState *logged, int64 now)
{
	bool		open = breaker_state(link_breaker(d, link)) == BREAKER_OPEN;
	uint32		why = pg_atomic_read_u32(&d->links[link].error);
	uint32		times = pg_atomic_read_u32(&d->times_down);
	uint32		missed = times - logged->times_down;
	const char *over = link == ANY_LINK ? NULL : rbp_remote_transport_name(LINK_TRANSPORT(link));
	char		error[ERROR_TEXT_LEN];
	char text[	ERROR_TEXT_LEN + 32];

	if (open == logged->open[link])
		return;
	if (!open)
	{
		if (link == ANY_LINK)
			ereport(LOG,
					(errmsg("remote_bp: donor \"%s\" is used again", logged->donor)));
		/* a link is forgotten, with its error, if circumstances change */
		else if (why != 0)
			ereport(LOG,
					(errmsg("remote_bp: donor \"%s\" can be reached over %s again",
							logged->donor, over)));
		logged->open[link] = false;
		return;
	}
	if (link != ANY_LINK)
		snprintf(text, sizeof(text), "cannot be reached over %s (%s), going on without",
				 over, rbp_status_text(ERROR_STATUS(why)));
	else if (may_log(logged->down_at, why == logged->why ? LOG_REPEAT_NS : LOG_OTHER_NS, now))
	{
		rbp_remote_error_text(why, error, sizeof(error));
		snprintf(text, sizeof(text), "is down: %s", error);
	}
	else
		return;
	ereport(LOG,
			(errmsg("remote_bp: donor \"%s\" %s", logged->donor, text),
			 link == ANY_LINK && logged->down_at != 0 && missed > 1 ?
			 errdetail("Since the last such message it was down %u times.", missed) : 0));
	rbp_stats_error("donor \"%s\" %s", logged->donor, text);
	logged->open[link] = true;
	if (link == ANY_LINK)
	{
		logged->down_at = now;
		logged->why = why;
		logged->times_down = times;
	}
}

/*
 * The increase of a counter since the last message, if it is at least so much
 * and a message may be logged; else 0.
 */
static uint64
count_to_log(LoggedCount *logged, uint64 n, uint64 least, int64 now)
{
	uint64		more;

	/* the counter may have been reset */
	logged->n = Min(logged->n, n);
	more = n - logged->n;
	if (more < least || !may_log(logged->at, LOG_REPEAT_NS, now))
		return 0;
	logged->n = n;
	logged->at = now;
	return more;
}

static void
log_counts(RbpRemoteDonor *d, LogState *logged, int64 now)
{
	uint64		bypassed = 0;
	uint64		n;

	/* A process wanted a connection above remote_bp.max_connections. */
	n = count_to_log(&logged->over_limit, pg_atomic_read_u32(&d->over_limit), 1, now);
	if (n > 0)
		ereport(LOG,
				(errmsg("remote_bp: all connections to donor \"%s\" are taken",
						logged->donor),
				 errdetail("Since the last such message, processes that wanted one read from disk " UINT64_FORMAT " times.",
						   n),
				 errhint("Raise remote_bp.max_connections (%d), or put a connection pooler before the server.",
						 rbp_guc_max_connections)));

	/* Reads went to the disk because the donor was slower. */
	for (int s = 0; s < RBP_DONOR_STRIPES; s++)
		bypassed += pg_atomic_read_u64(&d->stripes[s].counts[RBP_DONOR_BYPASSED]);
	n = count_to_log(&logged->bypassed, bypassed, BYPASSED_MIN, now);
	if (n > 0)
		ereport(LOG,
				(errmsg("remote_bp: donor \"%s\" is slower than the disk", logged->donor),
				 errdetail("Since the last such message, " UINT64_FORMAT " pages that it has were read from disk instead.",
						   n)));
}

/*
 * Log that connections are refused, or cannot be made, although the donor is
 * not down, because the reason is local, or the lease.  A single refusal is
 * normal: it happens when a lease ends.  But a process that goes on over
 * another transport will not fail again for some time.
 */
static void
log_refused(RbpRemoteDonor *d, LogState *logged, int64 now)
{
	uint32		word = pg_atomic_read_u32(&d->links[ANY_LINK].error);
	uint64		at = pg_atomic_read_u64(&d->links[ANY_LINK].error_at);
	const RbpTransportOps *ops = rbp_transport_by_bit(ERROR_TRANSPORT(word));
	char		error[ERROR_TEXT_LEN];
	bool		elsewhere = ERROR_WHAT(word) == DONOR_ERROR_ELSEWHERE;

	if (at == logged->refused_error_at ||
		(ERROR_WHAT(word) != DONOR_ERROR_CONNECT && !elsewhere) || donor_is_down(d))
		return;
	if (ERROR_STATUS(word) != RBP_NOMEM && ERROR_STATUS(word) != RBP_DENIED &&
		ERROR_STATUS(word) != RBP_BUSY && ERROR_STATUS(word) != RBP_NOT_ADMITTED &&
		!elsewhere && (ops == NULL || ops->device == NULL))
		return;
	/* already logged as open */
	if (ops != NULL && breaker_state(link_breaker(d, LINK_OF(ops->bit))) == BREAKER_OPEN)
		return;
	if (now - logged->refused_last > SERIES_NS)
		logged->refused_since = now;
	logged->refused_last = now;
	logged->refused_error_at = at;
	if ((!elsewhere && now - logged->refused_since < LOG_OTHER_NS) ||
		!may_log(logged->refused_at, LOG_REPEAT_NS, now))
		return;
	logged->refused_at = now;
	if (elsewhere)
	{
		ereport(LOG,
				(errmsg("remote_bp: donor \"%s\" cannot be reached over %s by some processes (%s), which go on without",
						logged->donor, rbp_remote_transport_name(ERROR_TRANSPORT(word)),
						rbp_status_text(ERROR_STATUS(word)))));
		return;
	}
	rbp_remote_error_text(word, error, sizeof(error));
	ereport(LOG,
			(errmsg("remote_bp: donor \"%s\" cannot be used: %s",
					logged->donor, error)));
	rbp_stats_error("donor \"%s\" cannot be used: %s", logged->donor, error);
}

/*
 * Warn if the configured device is not there, once for each change of the
 * settings; and if its library cannot be loaded, once for each reason.
 */
static void
report_device(int link)
{
	static uint32 settings[RBP_LINKS];
	static char errors[RBP_LINKS][RBP_LAST_ERROR_LEN];
	const RbpTransportOps *ops = rbp_transport_by_bit(LINK_TRANSPORT(link));
	const RbpTransportDevice *device = ops != NULL ? ops->device : NULL;
	const char *error = device != NULL ? device->load_error() : NULL;

	if (device != NULL && settings[link] != rbp_guc_connect_settings_version && rbp_guc_rdma_device[0] != '\0')
	{
		rbp_link_configure();
		if (!device->present())
		{
			ereport(WARNING,
					(errmsg("remote_bp: there is no %s device \"%s\"", device->name, rbp_guc_rdma_device),
					 errdetail("remote_bp.rdma_device names it. Donors are not used over %s.", ops->name)));
			rbp_stats_error("there is no %s device \"%s\"", device->name, rbp_guc_rdma_device);
		}
	}
	settings[link] = rbp_guc_connect_settings_version;
	if (error == NULL || strncmp(errors[link], error, RBP_LAST_ERROR_LEN - 1) == 0)
		return;
	strlcpy(errors[link], error, RBP_LAST_ERROR_LEN);
	ereport(WARNING,
			(errcode(ERRCODE_UNDEFINED_FILE),
			 errmsg("remote_bp: could not load the library for %s: %s", device->name, error),
			 errdetail("Donors are not used over %s.", ops->name),
			 errhint("%s If remote_bp was installed anew, restart the server.", device->load_hint)));
	rbp_stats_error("could not load the library for %s: %s", device->name, error);
}

int64
rbp_remote_report(void)
{
	static LogState log_states[RBP_MAX_DONORS];
	int64		now = rbp_now_ns();

	for (int link = ANY_LINK + 1; link < RBP_LINKS; link++)
		report_device(link);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		RbpRemoteDonor *d = &rbp_remote_shared->donors[i];
		LogState   *logged = &log_states[i];

		if (!donor_known(d))
		{
			/* it has left the lease, which the lease worker logs */
			memset(logged->open, 0, sizeof(logged->open));
			continue;
		}
		if (strcmp(logged->donor, d->endpoint.donor) != 0)
		{
			memset(logged, 0, sizeof(*logged));
			strlcpy(logged->donor, d->endpoint.donor, sizeof(logged->donor));
		}
		for (int link = 0; link < RBP_LINKS; link++)
			log_link(d, link, logged, now);
		log_counts(d, logged, now);
		log_refused(d, logged, now);
	}
	return -1;
}
