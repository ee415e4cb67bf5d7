/*-------------------------------------------------------------------------
 *
 * requests.c
 *	  Requests to the broker: obtaining, renewing and ending a lease.
 *
 * While a request waits, interrupts are processed, so no lock is held.  A
 * failure is logged once, until the broker works again (request_failed,
 * request_succeeded).  Valid answers go to apply.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/guc.h"
#include "base/stats.h"
#include "common/clock.h"
#include "lease/broker.h"
#include "lease/http.h"
#include "lease/lease_internal.h"
#include "lease/names.h"
#include "lease/plan.h"
#include "remote/remote.h"
#include "transport/transport.h"

#define REQUEST_TIMEOUT_MS	2000L
/* How long a lease that is left lasts before it lapses: as short as any may be */
#define LEAVE_TTL_MS		2000
/* Regions that one renewal reports as released: the broker takes 1 MiB */
#define MAX_RELEASED		8000
/* So often a lapsed lease is to have all of its regions, some 15 s */
#define INSIST_LAPSED		5
/* Consecutive requests before the main loop's other work gets its turn */
#define MAX_ROUNDS			4

/*
 * There was no usable answer.  Each kind of failure is logged once, until the
 * broker works again.
 */
pg_attribute_printf(3, 4)
static RbpLeaseOutcome
request_failed(RbpHeldLease *h, int kind, const char *fmt,...)
{
	int		   *failures_logged = (kind & FAILED_BROKER) != 0 ?
	&h->broker->failures_logged : &h->failures_logged;
	char		reason[512];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(reason, sizeof(reason), fmt, args);
	va_end(args);
	rbp_remote_set_broker_error(h->pool, reason);
	rbp_stats_error("could not %s lease%s %s broker \"%s\": %s",
					h->in_use ? "renew the" : "get a", h->suffix,
					h->in_use ? "at" : "from", h->broker->url, reason);
	if ((*failures_logged & kind) == 0)
	{
		ereport(LOG,
				(errmsg(h->in_use ?
						"remote_bp: could not renew the lease%s at broker \"%s\": %s" :
						"remote_bp: could not get a lease%s from broker \"%s\": %s",
						h->suffix, h->broker->url, reason),
				 h->in_use && !h->lapsed ? errdetail("Its memory stays in use until it expires.") : 0));
	}
	*failures_logged |= kind;
	return RBP_LEASE_FAILED;
}

/* The broker answered as it should: earlier failures are over. */
static void
request_succeeded(RbpHeldLease *h)
{
	if (h->broker->failures_logged != 0)
	{
		ereport(LOG,
				(errmsg("remote_bp: broker \"%s\" is back", h->broker->url)));
		/* the other lease need not wait for its next attempt */
		for (int i = 0; i < RBP_POOLS; i++)
		{
			if (&rbp_leases[i] != h && rbp_leases[i].broker == h->broker &&
				rbp_leases[i].failures > 0)
				rbp_leases[i].request_due = 0;
		}
	}
	else if (h->failures_logged != 0)
		ereport(LOG,
				(errmsg("remote_bp: broker \"%s\" is back%s",
						h->broker->url, h->suffix)));
	h->broker->failures_logged = 0;
	h->failures_logged = 0;
	h->failures = 0;
	rbp_remote_set_broker_error(h->pool, NULL);
}

/*
 * Send one request about the lease, to do that with it, or about a new one if
 * there is none; and free its body, which may have a lease's secret.  Returns
 * as rbp_lease_broker_request() does.
 */
static int
ask_broker(RbpHeldLease *h, const char *method, const char *action, char *body, long timeout_ms,
		   bool stop_on_shutdown, RbpHttpReply *reply, char why[RBP_BROKER_WHY_LEN])
{
	char		path[RBP_LEASE_ID_LEN + 32] = "/v1/leases";

	/*
	 * one without regions has nothing to lose, and would stay at a broker
	 * that donors have left
	 */
	const RbpHttpRequest request = {
		.method = method,.path = path,.body = body,.timeout_ms = timeout_ms,.stop_on_shutdown = stop_on_shutdown,
		.denied_by_all = h->in_use && h->lease->nregions > 0 && h->deadline > rbp_now_ns()
	};
	int			failed;

	if (body == NULL)
	{
		strlcpy(why, "out of memory", RBP_BROKER_WHY_LEN);
		return FAILED_NETWORK;
	}
	if (h->lease != NULL)
		snprintf(path, sizeof(path), "/v1/leases/%s%s", h->lease->cred.lease, action);
	failed = rbp_lease_broker_request(h->broker, &request, reply, why);
	explicit_bzero(body, strlen(body));
	free(body);
	return failed;
}

/*
 * Send one request to the broker, and free its body.  True for a success, and for the statuses
 * 403, 404 and 410, by which the broker says that it does not have this lease.
 * False for all others and without an answer, which say nothing about the
 * lease; then *outcome is set, and a failure is logged.
 */
static bool
send_request(RbpHeldLease *h, const char *action, char *body, RbpHttpReply *reply,
			 RbpLeaseOutcome *outcome)
{
	/* a lease that is being closed must not delay the other one */
	long		timeout_ms = h->broker == rbp_lease_current_broker ?
	REQUEST_TIMEOUT_MS : END_TIMEOUT_MS;
	char		why[RBP_BROKER_WHY_LEN];
	int			failed = ask_broker(h, "POST", action, body, timeout_ms, true, reply, why);

	*outcome = RBP_LEASE_FAILED;
	if (failed != 0)
	{
		if (why[0] == '\0')
			*outcome = RBP_LEASE_UNSENT;
		else
			request_failed(h, failed, "%s", why);
		return false;
	}
	if (reply->status != 200 && reply->status != 201 &&
		reply->status != 403 && reply->status != 404 && reply->status != 410)
	{
		rbp_lease_error_text(reply->body, reply->len, why, sizeof(why));
		request_failed(h, FAILED_STATUS, "HTTP status %d: %s", reply->status, why);
		return false;
	}
	return true;
}

/*
 * Parse a lease object.  NULL, and logged as a failure, if it is none, or
 * cannot be an answer to what was asked.
 */
static RbpLease *
parse_reply(RbpHeldLease *h, const RbpHttpReply *reply)
{
	char		why[200];
	RbpLease   *fresh = rbp_lease_parse(reply->body, reply->len,
										why, sizeof(why));

	if (fresh == NULL)
		request_failed(h, FAILED_ANSWER, "its answer is not a lease: %s", why);
	else if (rbp_lease_is_excessive(fresh, rbp_lease_wanted_max(h)))
	{
		request_failed(h, FAILED_ANSWER, "its answer is a lease of %llu MB, more than twice %s",
					   (unsigned long long) (fresh->bytes >> 20), h->max_setting);
		rbp_lease_free(fresh);
		fresh = NULL;
	}
	return fresh;
}

/* Nobody needs temporary data of a lapsed lease: its queries have failed. */
int64
rbp_lease_keep_ms(const RbpHeldLease *h)
{
	return h->pool == RBP_POOL_TEMP ? 0 : (int64) rbp_guc_keep_time * 1000;
}

static RbpLeaseWishes
wishes(const RbpHeldLease *h, uint64 wanted)
{
	return (RbpLeaseWishes)
	{
		.bytes = wanted,.ttl_ms = rbp_guc_lease_ttl,
			.keep_ms = rbp_lease_keep_ms(h)
	};
}

/* Request a lease. */
static RbpLeaseOutcome
request_lease(RbpHeldLease *h, uint64 wanted)
{
	int64		sent_ns = rbp_now_ns();
	RbpLeaseWishes wished = wishes(h, wanted);
	char		instance[RBP_LEASE_INSTANCE_LEN];
	char	   *body;
	RbpHttpReply reply;
	RbpLease   *fresh;
	RbpLeaseOutcome outcome;

	wished.elsewhere = rbp_urls_several(h->broker->urls);
	if (!rbp_lease_instance(instance))
		return request_failed(h, FAILED_NETWORK, "no random numbers");
	body = rbp_lease_new_body(rbp_lease_client, instance, h->purpose, &wished);
	if (!send_request(h, "", body, &reply, &outcome))
		return outcome;
	if (reply.status != 201 && reply.status != 200)
		return request_failed(h, FAILED_STATUS, "HTTP status %d: is this a remote_bp broker?",
							  reply.status);
	fresh = parse_reply(h, &reply);
	if (fresh == NULL)
		return RBP_LEASE_FAILED;
	if (!fresh->has_secret)
	{
		rbp_lease_free(fresh);
		return request_failed(h, FAILED_ANSWER, "its lease has no secret");
	}
	return rbp_lease_adopt(h, fresh, sent_ns);
}

/*
 * A broker that does not know the lease learns of it from its donors.  While there is time,
 * it is to wait for all of them; then we take what is there.  Nobody uses a lapsed lease
 * meanwhile.
 */
static const RbpLease *
insists_on(const RbpHeldLease *h, int64 now)
{
	static const RbpLease no_regions = {0};
	int64		left = h->deadline - now;
	bool		has_time = left > 0 ? left > h->lease->ttl_ms * NANOS_PER_MS / 2 : h->failures < INSIST_LAPSED;

	return has_time ? h->lease : &no_regions;
}

/* Renew the lease, and report how much is wanted and what was released. */
static RbpLeaseOutcome
renew(RbpHeldLease *h, uint64 wanted)
{
	int64		sent_ns = rbp_now_ns();
	RbpLeaseWishes wished = wishes(h, wanted);
	char		instance[RBP_LEASE_INSTANCE_LEN];
	char	   *body;
	RbpHttpReply reply;
	RbpLease   *fresh;
	RbpLeaseOutcome outcome;
	int			reported = Min(h->nreleased, MAX_RELEASED);

	wished.ahead = rbp_lease_ahead(h);
	wished.client = rbp_lease_client;

	wished.elsewhere = rbp_urls_several(h->broker->urls);
	if (h->in_use)
		wished.insists = insists_on(h, sent_ns);
	if (h->changes_secret)
	{
		if (!rbp_lease_instance(instance))
			return request_failed(h, FAILED_NETWORK, "no random numbers");
		wished.new_secret = h->new_secret;
		wished.instance = instance;
	}
	body = rbp_lease_renew_body(&h->lease->cred, &wished, h->released, reported);
	if (!send_request(h, "/renew", body, &reply, &outcome))
		return outcome;
	if (reply.status == 403 || reply.status == 404 || reply.status == 410)
	{
		char		why[200];

		rbp_lease_error_text(reply.body, reply.len, why, sizeof(why));
		ereport(LOG,
				(errmsg("remote_bp: the lease%s has ended", h->suffix),
				 errdetail("The broker answered a renewal with HTTP status %d: %s.",
						   reply.status, why)));
		rbp_stats_error("the lease%s has ended: %s", h->suffix, why);
		rbp_lease_log_losses(h, NULL);
		rbp_lease_drop(h);
		return RBP_LEASE_AGAIN;
	}
	fresh = parse_reply(h, &reply);
	if (fresh == NULL)
		return RBP_LEASE_FAILED;
	if (strcmp(fresh->cred.lease, h->lease->cred.lease) != 0)
	{
		rbp_lease_free(fresh);
		return request_failed(h, FAILED_ANSWER, "it answered with another lease");
	}
	if (h->changes_secret)
	{
		memcpy(h->lease->cred.secret, h->new_secret, RBP_SECRET_LEN);
		rbp_remote_change_secret(h->pool, &h->lease->cred);
		explicit_bzero(h->new_secret, sizeof(h->new_secret));
		h->changes_secret = false;
	}

	/*
	 * What was not reported is still in the lease, may still be asked for,
	 * and is released by a later renewal.
	 */
	h->nreleased -= reported;
	if (h->nreleased > 0)
		memmove(h->released, h->released + reported, sizeof(RbpRegionGrant) * h->nreleased);
	rbp_lease_remove_regions(fresh, h->released, h->nreleased);
	for (int i = 0; i < h->nreleased; i++)
		rbp_lease_reclaimed(fresh, h->released[i].donor, 1);
	return rbp_lease_adopt(h, fresh, sent_ns);
}

/*
 * Have the lease lapse as soon as the broker allows, for the next start to go on with, by
 * one request of limited duration.  If that fails, it lapses when it is not renewed.
 */
void
rbp_lease_leave(RbpHeldLease *h)
{
	RbpLeaseWishes wished = wishes(h, rbp_lease_wanted(h));
	char		why[RBP_BROKER_WHY_LEN];
	char	   *body;
	RbpHttpReply reply;

	wished.ttl_ms = Min(wished.ttl_ms, LEAVE_TTL_MS);
	body = rbp_lease_renew_body(&h->lease->cred, &wished, h->released, Min(h->nreleased, MAX_RELEASED));
	if (ask_broker(h, "POST", "/renew", body, END_TIMEOUT_MS, false, &reply, why) != 0 ||
		reply.status / 100 != 2)
		ereport(LOG,
				(errmsg("remote_bp: could not tell the broker that the lease%s is left to the next start",
						h->suffix)));
}

/* End the lease and tell its broker, with one request of limited duration. */
void
rbp_lease_end(RbpHeldLease *h, bool stop_on_shutdown)
{
	char		why[RBP_BROKER_WHY_LEN];
	RbpHttpReply reply;
	int			failed;

	if (h->lease == NULL)
		return;
	rbp_lease_stop_use(h);
	failed = ask_broker(h, "DELETE", "", rbp_lease_end_body(&h->lease->cred), END_TIMEOUT_MS,
						stop_on_shutdown, &reply, why);
	if (failed != FAILED_TOKEN)
	{
		if (failed == 0 &&
			(reply.status / 100 == 2 || reply.status == 404 || reply.status == 410))
			ereport(LOG,
					(errmsg("remote_bp: gave the leased memory%s back",
							h->suffix)));
		else
			ereport(LOG,
					(errmsg("remote_bp: could not tell the broker that the lease%s is given back",
							h->suffix),
					 errdetail("It expires within %lld ms.",
							   (long long) (h->lease->ttl_ms + wishes(h, 0).keep_ms))));
	}
	rbp_lease_drop(h);
}

void
rbp_lease_send_requests(RbpHeldLease *h)
{
	RbpLeaseOutcome outcome = RBP_LEASE_AGAIN;
	int64		now;
	int64		remaining;

	for (int i = 0; outcome == RBP_LEASE_AGAIN && i < MAX_ROUNDS; i++)
	{
		uint64		wanted = rbp_lease_wanted(h);

		if (h->lease != NULL)
			outcome = renew(h, wanted);
		else if (wanted > 0)
			outcome = request_lease(h, wanted);
		else
			outcome = RBP_LEASE_OK; /* it has ended, and no other one is
									 * wanted */
	}

	now = rbp_now_ns();
	remaining = h->in_use ? h->deadline - now : 0;
	h->last_request = now;
	switch (outcome)
	{
		case RBP_LEASE_OK:
		case RBP_LEASE_AGAIN:
			request_succeeded(h);
			h->request_due = now + rbp_lease_renew_after(h->lease != NULL ?
														 h->lease->ttl_ms :
														 rbp_guc_lease_ttl);
			break;
		case RBP_LEASE_FAILED:
			h->failures++;
			h->request_due = now + rbp_lease_retry_after(h->failures, remaining);
			break;
		case RBP_LEASE_UNSENT:

			/*
			 * No failure, and nothing to log: looking a name up takes a
			 * moment, and the main loop tries again as soon as it has ended.
			 */
			h->request_due = now + rbp_lease_retry_after(1, remaining);
			break;
	}
}
