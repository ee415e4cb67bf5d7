/*-------------------------------------------------------------------------
 *
 * switch.c
 *	  Choosing the broker that leases are requested from.
 *
 * Another broker is tried before it is used, and a token that is not accepted
 * does not replace the one that was accepted last: a mistyped setting costs
 * nothing but a log message.  The broker being tried, and when to try it
 * again, are private to this file.
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
#include "lease/plan.h"
#include "remote/remote.h"

RbpBroker  *rbp_lease_current_broker = NULL;

/* The broker that the settings name, while it has not been seen to work */
static RbpBroker *next_broker = NULL;
static int64 next_due = 0;		/* when to try it, in rbp_now_ns() time */
static int	next_failures = 0;	/* consecutive */

bool
rbp_lease_settings_changed(void)
{
	const RbpBroker *b = next_broker != NULL ? next_broker : rbp_lease_current_broker;

	return strcmp(rbp_guc_broker, b->urls) != 0 ||
		strcmp(rbp_guc_token_file, b->token_file) != 0;
}

/*
 * Use the current broker for this lease from now on.  The old one is freed
 * when no lease uses it.
 */
void
rbp_lease_use_current_broker(RbpHeldLease *h)
{
	RbpBroker  *old = h->broker;

	h->broker = rbp_lease_current_broker;
	h->failures = 0;
	h->failures_logged = 0;
	rbp_remote_set_broker_error(h->pool, NULL);
	h->request_due = 0;
	for (int i = 0; i < RBP_POOLS; i++)
	{
		if (rbp_leases[i].broker == old)
			return;
	}
	if (old != NULL && old != rbp_lease_current_broker)
		rbp_lease_broker_free(old);
}

/*
 * Request leases from this broker from now on.  The lease of the buffer tier
 * is ended.  A lease that has temporary data stays with its broker until it is
 * closed; if that is this very broker, since the settings have been changed
 * back meanwhile, it is kept.
 */
void
rbp_lease_switch_broker(RbpBroker *fresh)
{
	rbp_lease_current_broker = fresh;
	rbp_lease_current_broker->failures_logged = 0;
	for (int i = 0; i < RBP_POOLS; i++)
	{
		RbpHeldLease *h = &rbp_leases[i];

		if (h->pool == RBP_POOL_TEMP && h->lease != NULL &&
			strcmp(h->broker->urls, fresh->urls) != 0)
			continue;
		if (h->pool != RBP_POOL_TEMP)
			rbp_lease_end(h, true);
		rbp_lease_use_current_broker(h);
	}
}

static bool
any_lease_in_use(void)
{
	for (int i = 0; i < RBP_POOLS; i++)
	{
		if (rbp_leases[i].in_use)
			return true;
	}
	return false;
}

/*
 * Apply the settings.  If a lease is in use, another broker is tried first;
 * another token file needs no such care.
 */
void
rbp_lease_apply_settings(void)
{
	RbpBroker  *fresh;

	if (next_broker != NULL)
		rbp_lease_broker_free(next_broker);
	next_broker = NULL;
	if (rbp_lease_current_broker != NULL &&
		rbp_lease_broker_set_urls(rbp_lease_current_broker, rbp_guc_broker))
	{
		rbp_lease_broker_set_token_file(rbp_lease_current_broker, rbp_guc_token_file);
		rbp_lease_current_broker->failures_logged &= ~(FAILED_TOKEN | FAILED_AUTH);
		return;
	}
	fresh = rbp_lease_broker_create(rbp_guc_broker, rbp_guc_token_file);
	if (fresh->url[0] == '\0' || rbp_lease_current_broker == NULL ||
		rbp_lease_current_broker->url[0] == '\0' || !any_lease_in_use())
	{
		rbp_lease_switch_broker(fresh);
		return;
	}
	next_broker = fresh;
	next_due = 0;
	next_failures = 0;
}

/*
 * Check whether the broker works.  Returns NULL if it does, or why not; an
 * empty string if that is not known yet, because its name is being looked up,
 * or because the worker has been asked to end.  *kind: the FAILED_* that it
 * is.
 */
static const char *
check_broker(RbpBroker *b, long timeout_ms, int *kind)
{
	/* what only a server may ask, and a broker denies */
	static const RbpCredentials no_lease = {.lease = "none"};
	char	   *body = rbp_lease_end_body(&no_lease);
	const RbpHttpRequest request = {
		.method = "POST",.path = "/v1/leases/none/renew",.body = body,.timeout_ms = timeout_ms,
		.stop_on_shutdown = true
	};
	char		why[RBP_BROKER_WHY_LEN];
	RbpHttpReply reply;

	*kind = rbp_lease_broker_request(b, &request, &reply, why);
	free(body);
	if (*kind != 0)
		return pstrdup(why);
	*kind = FAILED_STATUS;
	if (reply.status != 404)
		return psprintf("HTTP status %d: is this a remote_bp broker?", reply.status);
	return NULL;
}

/*
 * Try the broker that the settings name, and switch to it if it works.  Leases
 * in use have to be renewed meanwhile, so only part of their remaining time is
 * spent on this.
 */
void
rbp_lease_try_next_broker(void)
{
	int64		now = rbp_now_ns();
	int64		budget = END_TIMEOUT_MS * NANOS_PER_MS;
	const char *reason = NULL;
	int			kind = 0;

	for (int i = 0; i < RBP_POOLS; i++)
	{
		if (rbp_leases[i].in_use && rbp_leases[i].deadline > now)
			budget = Min(budget, (rbp_leases[i].deadline - now) / 4);
	}
	/* without a lease there is nothing to lose */
	if (any_lease_in_use())
		reason = check_broker(next_broker, (long) Max(budget / NANOS_PER_MS, 50), &kind);
	if (reason == NULL)
	{
		RbpBroker  *fresh = next_broker;

		ereport(LOG,
				(errmsg("remote_bp: switching from broker \"%s\" to broker \"%s\"",
						rbp_lease_current_broker->url, fresh->url)));
		next_broker = NULL;
		rbp_lease_switch_broker(fresh);
		return;
	}
	if (reason[0] != '\0')
		rbp_stats_error("could not switch to broker \"%s\": %s", next_broker->url, reason);
	if (reason[0] != '\0' && (next_broker->failures_logged & kind) == 0)
	{
		ereport(LOG,
				(errmsg("remote_bp: could not switch to broker \"%s\": %s",
						next_broker->url, reason),
				 errdetail("Broker \"%s\" stays in use.",
						   rbp_lease_current_broker->url)));
		next_broker->failures_logged |= kind;
	}
	next_failures++;
	next_due = rbp_now_ns() + rbp_lease_retry_after(next_failures, 0);
}

int64
rbp_lease_next_broker_due(void)
{
	return next_broker != NULL ? next_due : NEVER_NS;
}

void
rbp_lease_hasten_next_broker(void)
{
	next_due = 0;
}
