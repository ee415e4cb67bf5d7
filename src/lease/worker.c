/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The lease worker: gets memory from the broker, keeps it, follows the
 *	  settings, and gives it back.
 *
 * Two leases are held, one of purpose "buffer" for the buffer tier and one of
 * purpose "temp" for temporary data, each in a Hold of its own.  Every second,
 * and at once when the settings changed or a backend found that a donor denies
 * access or broke, the worker renews a lease and says how much memory is
 * wanted; the answer lists all regions of the lease, which become the regions
 * in use.  The two know nothing of each other's troubles, but a broker that
 * does not answer is one broker: what is to be logged of it is logged once.
 *
 * Order.  Memory is given up locally before the broker hears of it, and used
 * only after the broker granted it:
 *	 - what is to be released is retired (rbp_remote_retire_coldest) first,
 *	   then named in the next renewal, and in each until one is answered;
 *	 - a lease is cleared (rbp_remote_clear_lease) first, then ended.
 *
 * Temporary data.  It has no copy on disk, so regions are given back only when
 * it was moved out of them: in steps that leave renewals their time, while it
 * takes long.  The lease as a whole goes in the same way when the settings
 * want none, or another broker, for CLOSING_NS at most; it is held at the old
 * broker so long.  What a lost or expired lease carried is lost.  When the worker
 * ends, that lease stays in use, and the next worker goes on with it; but when
 * the server stops there is nobody left to miss anything.
 *
 * Time.  The deadline that backends go by is counted from before the request
 * was sent, so that it passes here before it does at the broker and the
 * donors.  Backends look at it themselves: nothing depends on this process
 * being scheduled, or alive.
 *
 * Without a broker the lease goes on being used until its deadline, then all
 * is taken out of use.  Its id and secret are kept: if the broker is back
 * before the donors have heard of the end, the same memory comes back, else
 * the broker says that there is no such lease, and a new one is asked for.
 * Each request for a new lease carries a new instance id: the broker ends
 * what an earlier instance of the same client holds, be it this worker before
 * it was restarted, or a request whose answer was lost.
 *
 * Settings.  Another broker is tried before it is turned to, and a token that is
 * not accepted, or cannot be read, does not replace the one that was accepted
 * last: a mistyped setting costs nothing but a line in the log.  The broker and
 * token that work are kept in shared memory with each lease: the next worker begins
 * with those.
 *
 * Who may wait for this process: nobody.  Requests absorb interrupts while
 * they wait (rbp_lease_http), remote_lock is never held during one, and errors
 * are logged: once when the broker goes away, for each kind of failure, and
 * once when it is back.
 *
 * If the worker ends, by SIGTERM or an ERROR, it leaves with exit code 1 and
 * so is started again after a second, except at shutdown.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/pidfile.h"

#include "base/guc.h"
#include "base/stats.h"
#include "common/clock.h"
#include "lease/broker.h"
#include "lease/http.h"
#include "lease/lease.h"
#include "lease/names.h"
#include "lease/plan.h"
#include "remote/remote.h"
#include "transport/transport.h"

#define NS_PER_MS			INT64CONST(1000000)

#define REQUEST_TIMEOUT_MS	2000L
#define GOODBYE_TIMEOUT_MS	1000L

/* Backends that go on being suspicious make us ask no more often than this */
#define SUSPICION_NS		(200 * NS_PER_MS)
/* How long to be content with less, when not all found room: temporary data */
#define USABLE_NS			(30000 * NS_PER_MS) /* usable_bytes is good so long */
/* Nothing to do until the settings change */
#define NEVER_NS			(PG_INT64_MAX / 2)
/* Requests in a row before the loop's other duties get their turn */
#define MAX_ROUNDS			4

/* Between two steps of moving temporary data out of regions */
#define STEP_PAUSE_NS		(50 * NS_PER_MS)
/* How long a lease that is not wanted any more is kept for that */
#define CLOSING_NS			(30000 * NS_PER_MS)

/*
 * Kinds of failure, each logged once until the broker is right again: the
 * first three for all leases together, the others for each.
 */
#define FAILED_TOKEN		0x01
#define FAILED_NETWORK		0x02
#define FAILED_AUTH			0x04
#define FAILED_STATUS		0x08
#define FAILED_ANSWER		0x10
#define FAILED_FOR_ALL		(FAILED_TOKEN | FAILED_NETWORK | FAILED_AUTH)

typedef enum Outcome
{
	OUTCOME_OK,					/* the broker answered, all is as it says */
	OUTCOME_AGAIN,				/* and there is more to tell it at once */
	OUTCOME_LOST,				/* there is no such lease any more */
	OUTCOME_FAILED,				/* no usable answer */
	OUTCOME_INTERRUPTED			/* the worker is to end */
} Outcome;

/* One lease: what is held of it, and what is to be done. */
typedef struct Hold
{
	RbpPool		pool;
	const char *purpose;		/* for the broker */
	const char *suffix;			/* for messages */
	const char *max_setting;

	/*
	 * The broker that the lease was taken from.  Another than the settings'
	 * one only while the lease is being closed.
	 */
	RbpBroker  *broker;

	/*
	 * The lease that the broker knows of, less what was given up since; NULL
	 * if there is none.  It may have passed its deadline: in_use tells.
	 */
	RbpLease   *lease;
	bool		in_use;			/* its regions are in shared memory */
	bool		suspected;		/* a backend found it to be otherwise */
	int64		deadline;		/* rbp_now_ns() time */

	/* Retired, and not yet confirmed by the broker */
	RbpLeaseRegion *released;
	int			nreleased;

	/*
	 * What of the wanted size can be used at most, as found out by being
	 * granted more than finds room; in force until a size setting changes.
	 */
	uint64		usable_bytes;
	int64		usable_until;	/* of temporary data; rbp_now_ns() time */
	uint64		usable_for;

	/* When things are due, in rbp_now_ns() time */
	int64		due;			/* to talk to the broker */
	int64		last;			/* that was last done */
	int64		step_due;		/* to give up more */
	int64		close_by;		/* the lease is to end then; 0: it is not */

	bool		tending;		/* there is more to be done at once */
	int			draining;		/* regions that are being emptied */
	uint32		turn;			/* of the demands that they are emptied for */
	bool		drained;		/* some were, and have not been let go since */
	bool		drained_idly;	/* some perhaps for what is wanted no more */
	int			failures;		/* in a row */
	int			complaints;		/* FAILED_* of this lease alone */
	uint64		reported_bytes; /* size in the last message */
	bool		shares_name;	/* others' leases have our client name */
} Hold;

static Hold holds[RBP_POOLS] = {
	[RBP_POOL_BUFFER] = {
		.pool = RBP_POOL_BUFFER,
		.purpose = "buffer",
		.suffix = "",
		.max_setting = "remote_bp.buffer_tier_max_size",
		.usable_bytes = PG_UINT64_MAX,
		.step_due = NEVER_NS
	},
	[RBP_POOL_TEMP] = {
		.pool = RBP_POOL_TEMP,
		.purpose = "temp",
		.suffix = " for temporary data",
		.max_setting = "remote_bp.temp_tier_max_size",
		.usable_bytes = PG_UINT64_MAX,
		.step_due = NEVER_NS
	}
};

static RbpBroker *current = NULL;	/* that leases are taken from */

/* Of the settings, when that is another one which has not been seen to work */
static RbpBroker *next = NULL;
static int64 next_due = 0;		/* to try it, in rbp_now_ns() time */
static int	next_failures = 0;	/* in a row */

static char client_name[RBP_DONOR_ID_LEN];
static MemoryContext round_context = NULL;

void
rbp_lease_register(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	worker.bgw_restart_time = 1;
	strlcpy(worker.bgw_library_name, "remote_bp", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "rbp_lease_main", BGW_MAXLEN);
	strlcpy(worker.bgw_name, "remote_bp lease worker", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "remote_bp lease worker", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

/*
 * No usable answer.  Whatever the broker does wrong, it is told once, until
 * it has been right again.
 */
static Outcome failed(Hold *h, int kind, const char *fmt,...) pg_attribute_printf(3, 4);

static Outcome
failed(Hold *h, int kind, const char *fmt,...)
{
	int		   *complaints = (kind & FAILED_FOR_ALL) != 0 ?
		&h->broker->complaints : &h->complaints;
	char		reason[512];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(reason, sizeof(reason), fmt, args);
	va_end(args);
	rbp_remote_set_trouble(h->pool, reason);
	rbp_stats_error("could not %s lease%s %s broker \"%s\": %s",
					h->in_use ? "renew the" : "get a", h->suffix,
					h->in_use ? "at" : "from", h->broker->url, reason);
	if ((*complaints & kind) == 0)
	{
		ereport(LOG,
				(errmsg(h->in_use ?
						"remote_bp: could not renew the lease%s at broker \"%s\": %s" :
						"remote_bp: could not get a lease%s from broker \"%s\": %s",
						h->suffix, h->broker->url, reason),
				 h->in_use ? errdetail("Its memory is used until it ends.") : 0));
	}
	*complaints |= kind;
	return OUTCOME_FAILED;
}

/* The broker answered as it should: what was complained of is over. */
static void
succeeded(Hold *h)
{
	if (h->broker->complaints != 0)
	{
		ereport(LOG,
				(errmsg("remote_bp: broker \"%s\" is back", h->broker->url)));
		/* the other lease need not wait for its next attempt */
		for (int i = 0; i < RBP_POOLS; i++)
		{
			if (&holds[i] != h && holds[i].broker == h->broker &&
				holds[i].failures > 0)
				holds[i].due = 0;
		}
	}
	else if (h->complaints != 0)
		ereport(LOG,
				(errmsg("remote_bp: broker \"%s\" is back%s",
						h->broker->url, h->suffix)));
	h->broker->complaints = 0;
	h->complaints = 0;
	h->failures = 0;
	rbp_remote_set_trouble(h->pool, NULL);
}

/*
 * One request to the broker.  False if there was no answer, or one that says
 * nothing about the lease; *outcome is set then.
 */
static bool
ask(Hold *h, const char *method, const char *path, const char *body,
	RbpHttpReply *reply, Outcome *outcome)
{
	/* a broker that is to be left shall not hold up the other one */
	const RbpHttpRequest request = {
		.method = method,.path = path,.body = body,
		.timeout_ms = h->broker == current ? REQUEST_TIMEOUT_MS : GOODBYE_TIMEOUT_MS,
		.heed_shutdown = true
	};
	char		why[RBP_BROKER_WHY_LEN];

	*outcome = OUTCOME_FAILED;
	if (body == NULL)
	{
		failed(h, FAILED_NETWORK, "out of memory");
		return false;
	}

	if (!rbp_lease_broker_request(h->broker, &request, reply, why))
	{
		failed(h, FAILED_TOKEN, "%s", why);
		return false;
	}
	if (reply->failure == RBP_HTTP_INTERRUPTED)
	{
		*outcome = OUTCOME_INTERRUPTED;
		return false;
	}
	if (reply->failure == RBP_HTTP_RESOLVING)
		return false;			/* no complaint: it takes a moment */
	if (reply->failure != RBP_HTTP_ANSWERED)
	{
		failed(h, FAILED_NETWORK, "%s", reply->error);
		return false;
	}
	if (reply->status == 401)
	{
		failed(h, FAILED_AUTH, "%s", why);
		return false;
	}
	if (reply->status != 200 && reply->status != 201 &&
		reply->status != 403 && reply->status != 404 && reply->status != 410)
	{
		if (!rbp_lease_error_text(reply->body, reply->len, why, sizeof(why)))
			strlcpy(why, "no reason given", sizeof(why));
		failed(h, FAILED_STATUS, "HTTP status %d: %s", reply->status, why);
		return false;
	}
	return true;
}

/* How much memory of the lease's broker the settings ask for. */
static uint64
wanted_bytes(Hold *h)
{
	uint64		bytes = h->pool == RBP_POOL_TEMP ?
		(uint64) rbp_guc_temp_tier_size << 20 :
		(uint64) rbp_guc_tier_size_wanted() << 20;

	if (h->broker != current || current->url[0] == '\0')
		return 0;
	/* what temporary data has lost becomes free by and by */
	if (bytes != h->usable_for ||
		(h->pool == RBP_POOL_TEMP && rbp_now_ns() >= h->usable_until))
	{
		h->usable_for = bytes;
		h->usable_bytes = PG_UINT64_MAX;
	}
	return Min(bytes, h->usable_bytes);
}

/*
 * Regions go out of use, all but those of the fresh lease, if there is one.
 * Tell if temporary data goes with them.
 */
static void
tell_losses(Hold *h, const RbpLease *fresh)
{
	RbpLeaseInfo *infos;
	uint64		bytes = 0;
	int			ninfos;
	int			lost = 0;

	if (h->pool != RBP_POOL_TEMP || h->lease == NULL || !h->in_use)
		return;
	infos = rbp_remote_lease_info(&ninfos);
	for (int i = 0; i < ninfos; i++)
	{
		RbpLeaseRegion region = {.region = infos[i].region};

		if (strcmp(infos[i].purpose, h->purpose) != 0 || infos[i].used_bytes == 0)
			continue;
		strlcpy(region.donor, infos[i].donor, sizeof(region.donor));
		/* one that was denied begins anew, though the broker lists it still */
		if (fresh != NULL && rbp_lease_has(fresh, &region) && !infos[i].denied &&
			!rbp_lease_donor_restarted(h->lease, fresh, region.donor))
			continue;
		bytes += infos[i].used_bytes;
		lost++;
	}
	if (lost > 0)
		ereport(LOG,
				(errmsg("remote_bp: %llu kB of temporary data are lost with %d regions",
						(unsigned long long) (bytes >> 10), lost),
				 errhint("Queries that need them fail, unless they have a second copy.")));
}

/* Stop using all of it. */
static void
stop_use(Hold *h)
{
	rbp_remote_clear_lease(h->pool);
	h->in_use = false;
	h->suspected = false;
	h->draining = 0;
	h->drained = false;
	h->drained_idly = false;
	h->step_due = NEVER_NS;
	h->reported_bytes = 0;
}

/* There is no lease any more. */
static void
drop_lease(Hold *h)
{
	stop_use(h);
	rbp_lease_free(h->lease);
	h->lease = NULL;
	free(h->released);
	h->released = NULL;
	h->nreleased = 0;
	h->close_by = 0;
}

/* Take regions that were given up out of the lease, and note them to tell. */
static void
note_released(Hold *h, const RbpRegionGrant *given, int n)
{
	RbpLeaseRegion *grown;

	if (n <= 0)
		return;
	grown = realloc(h->released, sizeof(RbpLeaseRegion) * (h->nreleased + n));
	if (grown == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	h->released = grown;
	for (int i = 0; i < n; i++)
	{
		RbpLeaseRegion *r = &h->released[h->nreleased + i];

		memset(r, 0, sizeof(*r));
		strlcpy(r->donor, given[i].donor, sizeof(r->donor));
		r->region = given[i].region;
		r->bytes = given[i].bytes;
	}
	rbp_lease_forget(h->lease, h->released + h->nreleased, n);
	h->nreleased += n;
}

/*
 * Retire the coldest regions, of a donor or of any (NULL), moving what they
 * hold until then; how many could be.
 */
static int
retire(Hold *h, const char *donor, int count, int64 until, int64 move_ns)
{
	RbpRegionGrant *given;
	RbpRetired	retired;

	count = Min(count, h->lease->nregions);
	given = palloc0(sizeof(RbpRegionGrant) * (count + 1));
	retired = rbp_remote_retire_coldest(h->pool, donor, count, given, until, move_ns);
	note_released(h, given, retired.given);
	h->draining += retired.draining;
	h->drained |= retired.draining > 0;
	return retired.given;
}

/*
 * Give up what a donor asks for, and what is above the wanted size: as much
 * as can be until then.  How many regions were; they are to be told to the
 * broker.
 */
static int
give_up(Hold *h, int64 until)
{
	RbpLeaseReclaim *demands;
	int			ndemands;
	int			wanted = 0;
	int			total = 0;

	h->step_due = NEVER_NS;
	if (h->lease == NULL || !h->in_use)
		return 0;
	demands = palloc(sizeof(RbpLeaseReclaim) * (h->lease->nreclaims + 1));
	ndemands = rbp_lease_demands(h->lease, wanted_bytes(h), demands);
	for (int i = 0; i < ndemands; i++)
		wanted += demands[i].regions;

	/* If less is to go than before, all may stay, and some of it goes anew. */
	if (h->drained && (ndemands == 0 || wanted < h->draining || h->drained_idly))
	{
		retire(h, NULL, 0, until, 0);
		h->drained = false;
	}
	h->drained_idly = false;
	h->draining = 0;
	/* by turns: moving for one can take all of the time */
	h->turn++;
	for (int i = 0; i < ndemands; i++)
	{
		const RbpLeaseReclaim *demand = &demands[(h->turn + (uint32) i) % (uint32) ndemands];
		const char *donor = demand->donor[0] != '\0' ? demand->donor : NULL;
		int			n = retire(h, donor, demand->regions, until,
							   rbp_lease_move_time(demand));

		if (n > 0 && donor != NULL)
		{
			rbp_lease_reclaimed(h->lease, donor, n);
			ereport(LOG,
					(errmsg("remote_bp: gave %d regions of donor \"%s\" back%s, as the broker asked",
							n, donor, h->suffix),
					 errdetail("The donor wants memory back, or other leases have less than their share.")));
		}
		total += n;
	}
	if (h->draining > 0)
		h->step_due = rbp_now_ns() + STEP_PAUSE_NS;
	return total;
}

/*
 * Some regions of the lease found no place: give them back, and ask for no
 * more than what found one.
 */
static void
release_unused(Hold *h)
{
	RbpLease   *lease = h->lease;
	RbpRegionGrant *unused = palloc0(sizeof(RbpRegionGrant) * (lease->nregions + 1));
	RbpLeaseInfo *used;
	uint64		kept = 0;
	int			nused;
	int			n = 0;

	used = rbp_remote_lease_info(&nused);
	for (int i = 0; i < lease->nregions; i++)
	{
		const RbpLeaseRegion *r = &lease->regions[i];
		bool		found = false;

		for (int j = 0; j < nused && !found; j++)
			found = used[j].region == r->region &&
				strcmp(used[j].lease, lease->cred.lease) == 0 &&
				strcmp(used[j].donor, r->donor) == 0;
		if (found)
			kept += r->bytes;
		else
		{
			strlcpy(unused[n].donor, r->donor, sizeof(unused[n].donor));
			unused[n].region = r->region;
			unused[n].bytes = r->bytes;
			n++;
		}
	}
	if (n == 0)
		return;
	h->usable_bytes = kept;
	h->usable_until = rbp_now_ns() + USABLE_NS;
	note_released(h, unused, n);
	ereport(LOG,
			(errmsg("remote_bp: %d leased regions find no room under %s and are given back",
					n, h->max_setting)));
}

/*
 * Tell when the size of the lease has changed; when it shrinks bit by bit, in
 * the end.
 */
static void
report(Hold *h, bool is_new)
{
	const RbpLease *lease = h->lease;

	if (!is_new && (lease->bytes == h->reported_bytes || h->draining > 0 ||
					h->close_by != 0))
		return;
	ereport(LOG,
			(errmsg("remote_bp: %s %llu MB of %llu MB wanted%s, in %d regions on %d donors",
					is_new ? "leased" : "the lease now has",
					(unsigned long long) (lease->bytes >> 20),
					(unsigned long long) (wanted_bytes(h) >> 20),
					h->suffix, lease->nregions, lease->ndonors)));
	h->reported_bytes = lease->bytes;
}

/* Tell, once, that another server goes by the same client name. */
static void
tell_namesakes(Hold *h, const RbpLease *fresh)
{
	if (fresh->namesakes > 0 && !h->shares_name)
		ereport(LOG,
				(errmsg("remote_bp: another server holds a lease%s under the name \"%s\" of this one",
						h->suffix, client_name),
				 errdetail("The broker tells them apart, and both keep their memory."),
				 errhint("If this machine is a clone, give it a machine ID and a host name of its own. If it was just started anew, the other lease is its own of before, and ends by itself.")));
	h->shares_name = fresh->namesakes > 0;
}

/*
 * Make what the broker described the lease in use.  Takes over fresh.
 *
 * Upon a suspicion, shared memory is gone through even if nothing seems to
 * have changed: a region may have been lost and granted again.  The regions
 * of a donor that was started anew are taken out of use in between, since
 * nothing of what they held is left.
 */
static Outcome
adopt(Hold *h, RbpLease *fresh, int64 sent_ns)
{
	RbpLease   *known = h->lease;
	bool		is_new = known == NULL;
	bool		unchanged;
	RbpRegionGrant *grants = palloc0(sizeof(RbpRegionGrant) * (fresh->nregions + 1));
	RbpLeaseTerms terms = {
		.cred = &fresh->cred,.deadline_ns = rbp_lease_deadline(sent_ns, fresh->ttl_ms),
		.donors = fresh->donors,.regions = grants
	};
	RbpBrokerAccess access;
	int			unused;
	int			n = 0;

	/* it has answered, under its present token */
	rbp_lease_broker_access(h->broker, &access);
	rbp_remote_set_broker(h->pool, &access);
	explicit_bzero(&access, sizeof(access));

	rbp_lease_resolve_donors(fresh);
	terms.ndonors = fresh->ndonors;
	unchanged = h->in_use && !h->suspected &&
		rbp_lease_same_memory(known, fresh);

	if (!unchanged)
		tell_losses(h, fresh);
	if (!is_new && !fresh->has_secret)
		memcpy(fresh->cred.secret, known->cred.secret, RBP_SECRET_LEN);

	/* first what may have been in use already, then what is new for certain */
	for (int pass = 0; pass < 2; pass++)
	{
		for (int i = 0; i < fresh->nregions; i++)
		{
			const RbpLeaseRegion *r = &fresh->regions[i];
			bool		lost = !is_new &&
				rbp_lease_donor_restarted(known, fresh, r->donor);

			if (lost != (pass == 1))
				continue;
			strlcpy(grants[n].donor, r->donor, sizeof(grants[n].donor));
			grants[n].region = r->region;
			grants[n].bytes = r->bytes;
			n++;
		}
		if (pass == 0 && n < fresh->nregions && h->in_use)
		{
			terms.nregions = n;
			(void) rbp_remote_set_lease(h->pool, &terms);
		}
	}

	/* A donor that does not ask any more: what is not empty yet may stay. */
	for (int i = 0; h->drained && i < known->nreclaims; i++)
	{
		if (!rbp_lease_asked_by(fresh, known->reclaims[i].donor))
			h->drained_idly = true;
	}

	rbp_lease_free(known);
	h->lease = fresh;
	h->nreleased = 0;
	h->deadline = terms.deadline_ns;
	if (unchanged)
		unused = rbp_remote_extend_lease(h->pool, h->deadline);
	else
	{
		h->in_use = true;
		h->suspected = false;
		terms.nregions = fresh->nregions;
		unused = rbp_remote_set_lease(h->pool, &terms);
	}
	if (unused > 0)
		release_unused(h);
	report(h, is_new);
	tell_namesakes(h, h->lease);
	h->step_due = 0;
	return h->nreleased > 0 ? OUTCOME_AGAIN : OUTCOME_OK;
}

/* Understand a lease object; NULL if it is none, having complained. */
static RbpLease *
understand(Hold *h, const RbpHttpReply *reply)
{
	char		why[200];
	RbpLease   *fresh = rbp_lease_parse(reply->body, reply->len,
										why, sizeof(why));

	if (fresh == NULL)
		failed(h, FAILED_ANSWER, "its answer is not a lease: %s", why);
	return fresh;
}

/* Ask for a lease. */
static Outcome
request_new(Hold *h, uint64 wanted)
{
	int64		sent_ns = rbp_now_ns();
	char		instance[RBP_LEASE_INSTANCE_LEN];
	char	   *body;
	RbpHttpReply reply;
	RbpLease   *fresh;
	Outcome		outcome;
	bool		answered;

	if (!rbp_lease_instance(instance))
		return failed(h, FAILED_NETWORK, "no random numbers");
	body = rbp_lease_new_body(client_name, instance, h->purpose, wanted,
							  rbp_guc_lease_ttl);
	answered = ask(h, "POST", "/v1/leases", body, &reply, &outcome);
	free(body);
	if (!answered)
		return outcome;
	if (reply.status != 201 && reply.status != 200)
		return failed(h, FAILED_STATUS, "HTTP status %d: is this a remote_bp broker?",
					  reply.status);
	fresh = understand(h, &reply);
	if (fresh == NULL)
		return OUTCOME_FAILED;
	if (!fresh->has_secret)
	{
		rbp_lease_free(fresh);
		return failed(h, FAILED_ANSWER, "its lease has no secret");
	}
	return adopt(h, fresh, sent_ns);
}

/* Renew the lease, and tell how much is wanted and what was given up. */
static Outcome
renew(Hold *h, uint64 wanted)
{
	int64		sent_ns = rbp_now_ns();
	char		path[RBP_LEASE_ID_LEN + 32];
	char	   *body;
	RbpHttpReply reply;
	RbpLease   *fresh;
	Outcome		outcome;
	bool		answered;

	snprintf(path, sizeof(path), "/v1/leases/%s/renew", h->lease->cred.lease);
	body = rbp_lease_renew_body(&h->lease->cred, wanted, rbp_guc_lease_ttl,
								h->released, h->nreleased);
	answered = ask(h, "POST", path, body, &reply, &outcome);
	if (body != NULL)
		explicit_bzero(body, strlen(body));
	free(body);
	if (!answered)
		return outcome;
	if (reply.status == 403 || reply.status == 404 || reply.status == 410)
	{
		char		why[200];

		if (!rbp_lease_error_text(reply.body, reply.len, why, sizeof(why)))
			strlcpy(why, "no reason given", sizeof(why));
		ereport(LOG,
				(errmsg("remote_bp: the lease%s has ended", h->suffix),
				 errdetail("The broker answered a renewal with HTTP status %d: %s.",
						   reply.status, why)));
		rbp_stats_error("the lease%s has ended: %s", h->suffix, why);
		tell_losses(h, NULL);
		return OUTCOME_LOST;
	}
	fresh = understand(h, &reply);
	if (fresh == NULL)
		return OUTCOME_FAILED;
	if (strcmp(fresh->cred.lease, h->lease->cred.lease) != 0)
	{
		rbp_lease_free(fresh);
		return failed(h, FAILED_ANSWER, "it answered with another lease");
	}
	return adopt(h, fresh, sent_ns);
}

/*
 * End the lease and tell the broker, with one bounded request.  It is asked
 * under the settings that the lease was taken with.
 */
static void
give_back(Hold *h, bool heed_shutdown)
{
	char		path[RBP_LEASE_ID_LEN + 16];
	RbpHttpRequest request = {
		.method = "DELETE",.path = path,.timeout_ms = GOODBYE_TIMEOUT_MS,
		.heed_shutdown = heed_shutdown
	};
	char		why[RBP_BROKER_WHY_LEN];
	char	   *body;
	RbpHttpReply reply;

	if (h->lease == NULL)
		return;
	stop_use(h);
	snprintf(path, sizeof(path), "/v1/leases/%s", h->lease->cred.lease);
	body = rbp_lease_end_body(&h->lease->cred);
	request.body = body;
	if (body != NULL &&
		rbp_lease_broker_request(h->broker, &request, &reply, why))
	{
		if (reply.failure == RBP_HTTP_ANSWERED &&
			(reply.status / 100 == 2 || reply.status == 404 || reply.status == 410))
			ereport(LOG,
					(errmsg("remote_bp: gave the leased memory%s back",
							h->suffix)));
		else
			ereport(LOG,
					(errmsg("remote_bp: could not tell the broker that the lease%s is given back",
							h->suffix),
					 errdetail("It ends by itself within %lld ms.",
							   (long long) h->lease->ttl_ms)));
	}
	if (body != NULL)
		explicit_bzero(body, strlen(body));
	free(body);
	drop_lease(h);
}

/*
 * Everything there is to say to the broker now; sets when to talk to it next.
 */
static void
converse(Hold *h)
{
	Outcome		outcome = OUTCOME_AGAIN;
	int64		now;

	for (int i = 0; outcome == OUTCOME_AGAIN && i < MAX_ROUNDS; i++)
	{
		uint64		wanted = wanted_bytes(h);

		if (h->lease != NULL)
		{
			outcome = renew(h, wanted);
			if (outcome == OUTCOME_LOST)
			{
				drop_lease(h);
				outcome = OUTCOME_AGAIN;
			}
		}
		else if (wanted > 0)
			outcome = request_new(h, wanted);
		else
			outcome = OUTCOME_OK;	/* it ended, and no other is wanted */
	}

	now = rbp_now_ns();
	h->last = now;
	switch (outcome)
	{
		case OUTCOME_OK:
		case OUTCOME_AGAIN:
		case OUTCOME_LOST:
			succeeded(h);
			h->due = now + rbp_lease_renew_after(h->lease != NULL ?
												 h->lease->ttl_ms :
												 rbp_guc_lease_ttl);
			break;
		case OUTCOME_FAILED:
			h->failures++;
			h->due = now + rbp_lease_retry_after(h->failures,
												 h->in_use ? h->deadline - now : 0);
			break;
		case OUTCOME_INTERRUPTED:
			h->due = now;
			break;
	}
}

/* Does the setting name the broker of that URL, up to slashes at its end? */
static bool
same_url(const char *setting, const char *url)
{
	size_t		len = strlen(url);

	return strncmp(setting, url, len) == 0 &&
		strspn(setting + len, "/") == strlen(setting + len);
}

/* Do the settings name another broker, or another token file? */
static bool
settings_changed(void)
{
	const RbpBroker *b = next != NULL ? next : current;

	return !same_url(rbp_guc_broker != NULL ? rbp_guc_broker : "", b->url) ||
		strcmp(rbp_guc_token_file != NULL ? rbp_guc_token_file : "", b->token_file) != 0;
}

/* From now on the lease is held, or asked for, at the current broker. */
static void
turn_to_current(Hold *h)
{
	RbpBroker  *old = h->broker;

	h->broker = current;
	h->failures = 0;
	h->complaints = 0;
	rbp_remote_set_trouble(h->pool, NULL);
	h->due = 0;
	for (int i = 0; i < RBP_POOLS; i++)
	{
		if (holds[i].broker == old)
			return;
	}
	if (old != NULL && old != current)
		rbp_lease_broker_free(old);
}

/*
 * Take leases from this broker from now on.  What was leased elsewhere is given
 * back; but a lease that carries temporary data stays where it is, to be
 * closed, unless the broker is the same one.
 */
static void
turn_to(RbpBroker *fresh)
{
	current = fresh;
	current->complaints = 0;
	for (int i = 0; i < RBP_POOLS; i++)
	{
		Hold	   *h = &holds[i];

		if (h->pool == RBP_POOL_TEMP && h->lease != NULL &&
			strcmp(h->broker->url, fresh->url) != 0)
			continue;
		if (h->pool != RBP_POOL_TEMP)
			give_back(h, true);
		turn_to_current(h);
	}
}

static bool
anything_in_use(void)
{
	for (int i = 0; i < RBP_POOLS; i++)
	{
		if (holds[i].in_use)
			return true;
	}
	return false;
}

/*
 * Take the settings over.  Another broker is tried first, if there is something
 * to lose; another token file costs nothing.
 */
static void
take_settings(void)
{
	const char *url = rbp_guc_broker != NULL ? rbp_guc_broker : "";
	const char *token_file = rbp_guc_token_file != NULL ? rbp_guc_token_file : "";
	RbpBroker  *fresh;

	if (next != NULL)
		rbp_lease_broker_free(next);
	next = NULL;
	if (current != NULL && same_url(url, current->url))
	{
		rbp_lease_broker_set_token_file(current, token_file);
		current->complaints &= ~(FAILED_TOKEN | FAILED_AUTH);
		return;
	}
	fresh = rbp_lease_broker_make(url, token_file);
	if (fresh->url[0] == '\0' || current == NULL || current->url[0] == '\0' ||
		!anything_in_use())
	{
		turn_to(fresh);
		return;
	}
	next = fresh;
	next_due = 0;
	next_failures = 0;
}

/* Why the broker does not work, as far as can be told; NULL if it does. */
static const char *
try_broker(RbpBroker *b, long timeout_ms, int *kind)
{
	const RbpHttpRequest request = {
		.method = "GET",.path = "/v1/donors",.timeout_ms = timeout_ms,.heed_shutdown = true
	};
	char		why[RBP_BROKER_WHY_LEN];
	RbpHttpReply reply;

	*kind = FAILED_TOKEN;
	if (!rbp_lease_broker_request(b, &request, &reply, why))
		return pstrdup(why);
	*kind = FAILED_NETWORK;
	if (reply.failure == RBP_HTTP_RESOLVING || reply.failure == RBP_HTTP_INTERRUPTED)
		return "";
	if (reply.failure != RBP_HTTP_ANSWERED)
		return pstrdup(reply.error);
	*kind = FAILED_AUTH;
	if (reply.status == 401)
		return pstrdup(why);
	*kind = FAILED_STATUS;
	if (reply.status != 200 || !rbp_lease_is_broker(reply.body, reply.len))
		return psprintf("HTTP status %d: is this a remote_bp broker?", reply.status);
	return NULL;
}

/*
 * Try the broker that the settings name, and turn to it if it works.  Leases
 * that are in use are to be renewed meanwhile, and so it gets a part of the
 * time that they have left.
 */
static void
try_next(void)
{
	int64		now = rbp_now_ns();
	int64		patience = GOODBYE_TIMEOUT_MS * NS_PER_MS;
	const char *reason = NULL;
	int			kind = 0;

	for (int i = 0; i < RBP_POOLS; i++)
	{
		if (holds[i].in_use)
			patience = Min(patience, (holds[i].deadline - now) / 4);
	}
	if (anything_in_use())
		reason = try_broker(next, (long) Max(patience / NS_PER_MS, 50), &kind);
	if (reason == NULL)
	{
		RbpBroker  *fresh = next;

		ereport(LOG,
				(errmsg("remote_bp: turning from broker \"%s\" to broker \"%s\"",
						current->url, fresh->url)));
		next = NULL;
		turn_to(fresh);
		return;
	}
	if (reason[0] != '\0')
		rbp_stats_error("could not turn to broker \"%s\": %s", next->url, reason);
	if (reason[0] != '\0' && (next->complaints & kind) == 0)
	{
		ereport(LOG,
				(errmsg("remote_bp: could not turn to broker \"%s\": %s",
						next->url, reason),
				 errdetail("Broker \"%s\" stays in use until that works.",
						   current->url)));
		next->complaints |= kind;
	}
	next_failures++;
	next_due = rbp_now_ns() + rbp_lease_retry_after(next_failures, 0);
}

/* Past its deadline, the lease is not used any more. */
static void
expire_if_due(Hold *h, int64 now)
{
	if (!h->in_use || now < h->deadline)
		return;
	ereport(LOG,
			(errmsg("remote_bp: the lease%s could not be renewed in time, its memory is not used any more",
					h->suffix)));
	rbp_stats_error("the lease%s could not be renewed in time", h->suffix);
	tell_losses(h, NULL);
	stop_use(h);
}

/*
 * The settings want no such lease, or one of another broker.  True if it is
 * to be kept still, so that temporary data can be moved out of it.
 */
static bool
keep_for_now(Hold *h, int64 now)
{
	if (h->pool != RBP_POOL_TEMP || !h->in_use || h->lease->nregions == 0)
		return false;
	if (h->close_by == 0)
	{
		h->close_by = now + CLOSING_NS;
		h->step_due = 0;
	}
	if (now < h->close_by)
		return true;
	ereport(LOG,
			(errmsg("remote_bp: temporary data in %d leased regions could not be moved in time",
					h->lease->nregions)));
	tell_losses(h, NULL);
	return false;
}

/* Until when memory may be given up before something else is due. */
static int64
step_until(int64 now)
{
	int64		due = NEVER_NS;

	for (int i = 0; i < RBP_POOLS; i++)
		due = Min(due, holds[i].due);
	return rbp_lease_step_until(now, due);
}

/* Do for a lease what is due. */
static void
tend(Hold *h)
{
	int64		now = rbp_now_ns();
	int			unused;

	expire_if_due(h, now);
	/* asked for in any case, lest an old suspicion speak of a new lease */
	if (rbp_remote_take_suspicion(h->pool) && h->in_use)
		h->suspected = true;
	if (h->suspected && h->failures == 0)
		h->due = Min(h->due, h->last + SUSPICION_NS);

	if (wanted_bytes(h) > 0)
		h->close_by = 0;
	else if (h->lease == NULL || !keep_for_now(h, now))
	{
		give_back(h, true);
		if (h->broker != current)
			turn_to_current(h);
		h->due = wanted_bytes(h) > 0 ? 0 :
			h->usable_bytes < PG_UINT64_MAX && h->pool == RBP_POOL_TEMP ?
			h->usable_until : NEVER_NS;
	}

	h->tending = rbp_remote_tend(h->pool, step_until(now), &unused);
	if (unused > 0 && h->lease != NULL)
	{
		release_unused(h);
		if (h->failures == 0)
			h->due = 0;
	}
	now = rbp_now_ns();
	if (now >= h->step_due && give_up(h, step_until(now)) > 0 &&
		h->failures == 0)
		h->due = 0;
	if (rbp_now_ns() >= h->due && !ShutdownRequestPending)
		converse(h);
}

/* Until something happens, or one of the times. */
static void
wait_for_work(void)
{
	int64		now = rbp_now_ns();
	int64		until = NEVER_NS;
	long		ms;

	for (int i = 0; i < RBP_POOLS; i++)
	{
		until = Min(until, Min(holds[i].due, holds[i].step_due));
		if (holds[i].in_use)
			until = Min(until, holds[i].deadline);
		if (holds[i].tending)
			until = now;
	}
	until = Min(until, rbp_lease_lookups_due(now));
	if (next != NULL)
		until = Min(until, next_due);
	ms = until <= now ? 0 : (long) Min((until - now + NS_PER_MS - 1) / NS_PER_MS,
									   INT64CONST(60000));
	if (ms == 0)
		return;
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
}

/*
 * A worker before this one has left a lease.  One for temporary data is gone
 * on with.  The other's id and secret are not worth keeping: the broker ends
 * it as soon as this worker asks for a lease.
 */
static void
take_over(Hold *h)
{
	RbpCredentials cred;
	int64		deadline;
	RbpDonorInfo *donors;
	RbpLeaseInfo *infos;
	RbpEndpoint *endpoints;
	RbpLeaseRegion *regions;
	int			ndonors;
	int			ninfos;
	int			nregions = 0;

	if (h->pool != RBP_POOL_TEMP ||
		!rbp_remote_get_lease(h->pool, &cred, &deadline) ||
		deadline <= rbp_now_ns())
	{
		rbp_remote_clear_lease(h->pool);
		return;
	}

	donors = rbp_remote_donor_info(&ndonors);
	endpoints = palloc0(sizeof(RbpEndpoint) * (ndonors + 1));
	for (int i = 0; i < ndonors; i++)
		endpoints[i] = donors[i].endpoint;
	infos = rbp_remote_lease_info(&ninfos);
	regions = palloc0(sizeof(RbpLeaseRegion) * (ninfos + 1));
	for (int i = 0; i < ninfos; i++)
	{
		if (strcmp(infos[i].lease, cred.lease) != 0)
			continue;
		strlcpy(regions[nregions].donor, infos[i].donor,
				sizeof(regions[nregions].donor));
		regions[nregions].region = infos[i].region;
		regions[nregions].bytes = infos[i].bytes;
		nregions++;
	}
	h->lease = rbp_lease_known(&cred, rbp_guc_lease_ttl, endpoints, ndonors,
							   regions, nregions);
	explicit_bzero(cred.secret, sizeof(cred.secret));
	if (h->lease == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	h->in_use = true;
	h->deadline = deadline;
	h->reported_bytes = h->lease->bytes;
	/* its regions may be draining, for reasons that are not known here */
	h->drained = h->drained_idly = true;
	h->step_due = 0;
	ereport(LOG,
			(errmsg("remote_bp: going on with the lease%s, %llu MB in %d regions",
					h->suffix, (unsigned long long) (h->lease->bytes >> 20),
					nregions)));
}

/*
 * The broker of the lease that is gone on with, as the worker before this one
 * asked it.  Whether what the settings say works is not known; false if only that
 * is to be had.
 */
static bool
take_over_broker(void)
{
	RbpBrokerAccess access;
	bool		known = rbp_remote_get_broker(RBP_POOL_TEMP, &access);

	if (known)
		turn_to(rbp_lease_broker_known(&access));
	explicit_bzero(&access, sizeof(access));
	return known;
}

/* Does the whole server stop?  The postmaster notes it where pg_ctl looks. */
static bool
server_stops(void)
{
	char		buf[1024];
	char	   *line = buf;
	int			fd = open("postmaster.pid", O_RDONLY | O_CLOEXEC | PG_BINARY);
	ssize_t		n = fd < 0 ? -1 : read(fd, buf, sizeof(buf) - 1);

	if (fd >= 0)
		close(fd);
	if (n < 0)
		return true;
	buf[n] = '\0';
	for (int i = 1; line != NULL && i < LOCK_FILE_LINE_PM_STATUS; i++)
	{
		line = strchr(line, '\n');
		if (line != NULL)
			line++;
	}
	return line == NULL ||
		strncmp(line, PM_STATUS_STOPPING, strlen(PM_STATUS_STOPPING)) == 0;
}

static void
forget_latch(int code, Datum arg)
{
	rbp_remote_set_lease_latch(NULL);
}

void
rbp_lease_main(Datum arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	before_shmem_exit(forget_latch, (Datum) 0);
	rbp_remote_set_lease_latch(MyLatch);
	rbp_remote_set_worker();

	rbp_lease_client_name(client_name);
	round_context = AllocSetContextCreate(TopMemoryContext,
										  "remote_bp lease worker",
										  ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(round_context);
	if (!rbp_lease_http_init())
		ereport(ERROR,
				(errmsg("remote_bp: could not initialize libcurl")));

	if (!take_over_broker())
		take_settings();
	for (int i = 0; i < RBP_POOLS; i++)
		take_over(&holds[i]);

	while (!ShutdownRequestPending)
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(round_context);

		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			for (int i = 0; i < RBP_POOLS; i++)
			{
				holds[i].due = 0;
				holds[i].step_due = 0;
			}
		}
		if (settings_changed())
			take_settings();
		if (rbp_lease_lookups_ended())
		{
			/* a broker can be asked, or the next answer's donors be reached */
			for (int i = 0; i < RBP_POOLS; i++)
				holds[i].due = 0;
			next_due = 0;
		}

		for (int i = 0; i < RBP_POOLS && !ShutdownRequestPending; i++)
			tend(&holds[i]);
		if (next != NULL && rbp_now_ns() >= next_due && !ShutdownRequestPending)
			try_next();
		if (!ShutdownRequestPending)
			wait_for_work();
	}

	for (int i = 0; i < RBP_POOLS; i++)
	{
		if (holds[i].pool != RBP_POOL_TEMP || server_stops())
			give_back(&holds[i], false);
	}

	/* Exit code 1: be started again, unless the server is shutting down. */
	proc_exit(1);
}
