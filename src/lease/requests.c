/*-------------------------------------------------------------------------
 *
 * requests.c
 *	  What is said to the broker: asking for a lease, renewing and ending it.
 *
 * A request absorbs interrupts while it waits, and no lock is held.  What goes wrong
 * is logged once, until the broker is right again (failed, succeeded); an answer
 * that makes sense goes to apply.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/interrupt.h"

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
/* Requests in a row before the loop's other duties get their turn */
#define MAX_ROUNDS			4

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
	rbp_remote_set_broker_error(h->pool, reason);
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
			if (&rbp_lease_holds[i] != h && rbp_lease_holds[i].broker == h->broker &&
				rbp_lease_holds[i].failures > 0)
				rbp_lease_holds[i].due = 0;
		}
	}
	else if (h->complaints != 0)
		ereport(LOG,
				(errmsg("remote_bp: broker \"%s\" is back%s",
						h->broker->url, h->suffix)));
	h->broker->complaints = 0;
	h->complaints = 0;
	h->failures = 0;
	rbp_remote_set_broker_error(h->pool, NULL);
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
		.timeout_ms = h->broker == rbp_lease_current ? REQUEST_TIMEOUT_MS : GOODBYE_TIMEOUT_MS,
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
	body = rbp_lease_new_body(rbp_lease_client, instance, h->purpose, wanted,
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
	return rbp_lease_adopt(h, fresh, sent_ns);
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
		rbp_lease_tell_losses(h, NULL);
		rbp_lease_drop(h);
		return OUTCOME_AGAIN;
	}
	fresh = understand(h, &reply);
	if (fresh == NULL)
		return OUTCOME_FAILED;
	if (strcmp(fresh->cred.lease, h->lease->cred.lease) != 0)
	{
		rbp_lease_free(fresh);
		return failed(h, FAILED_ANSWER, "it answered with another lease");
	}
	return rbp_lease_adopt(h, fresh, sent_ns);
}

/*
 * End the lease and tell the broker, with one bounded request.  It is asked
 * under the settings that the lease was taken with.
 */
void
rbp_lease_give_back(Hold *h, bool heed_shutdown)
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
	rbp_lease_stop_use(h);
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
	rbp_lease_drop(h);
}

/*
 * Everything there is to say to the broker now; sets when to talk to it next.
 */
void
rbp_lease_converse(Hold *h)
{
	Outcome		outcome = OUTCOME_AGAIN;
	int64		now;

	for (int i = 0; outcome == OUTCOME_AGAIN && i < MAX_ROUNDS; i++)
	{
		uint64		wanted = rbp_lease_wanted(h);

		if (h->lease != NULL)
			outcome = renew(h, wanted);
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
