/*-------------------------------------------------------------------------
 *
 * turn.c
 *	  Which broker leases are taken from, and turning to another one.
 *
 * Another broker is tried before it is turned to, and a token that is not accepted
 * does not replace the one that was accepted last: a mistyped setting costs nothing
 * but a line in the log.  The broker that is tried, and when to try it again, are
 * known here alone.
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

RbpBroker *rbp_lease_current = NULL;	/* that leases are taken from */

/* Of the settings, when that is another one which has not been seen to work */
static RbpBroker *next = NULL;
static int64 next_due = 0;		/* to try it, in rbp_now_ns() time */
static int	next_failures = 0;	/* in a row */

/* Does the setting name the broker of that URL, up to slashes at its end? */
static bool
same_url(const char *setting, const char *url)
{
	size_t		len = strlen(url);

	return strncmp(setting, url, len) == 0 &&
		strspn(setting + len, "/") == strlen(setting + len);
}

/* Do the settings name another broker, or another token file? */
bool
rbp_lease_settings_changed(void)
{
	const RbpBroker *b = next != NULL ? next : rbp_lease_current;

	return !same_url(rbp_guc_broker, b->url) ||
		strcmp(rbp_guc_token_file, b->token_file) != 0;
}

/* From now on the lease is held, or asked for, at the current broker. */
void
rbp_lease_turn_to_current(Hold *h)
{
	RbpBroker  *old = h->broker;

	h->broker = rbp_lease_current;
	h->failures = 0;
	h->complaints = 0;
	rbp_remote_set_broker_error(h->pool, NULL);
	h->due = 0;
	for (int i = 0; i < RBP_POOLS; i++)
	{
		if (rbp_lease_holds[i].broker == old)
			return;
	}
	if (old != NULL && old != rbp_lease_current)
		rbp_lease_broker_free(old);
}

/*
 * Take leases from this broker from now on.  What was leased elsewhere is given
 * back; but a lease that carries temporary data stays where it is, to be
 * closed, unless the broker is the same one.
 */
void
rbp_lease_turn_to(RbpBroker *fresh)
{
	rbp_lease_current = fresh;
	rbp_lease_current->complaints = 0;
	for (int i = 0; i < RBP_POOLS; i++)
	{
		Hold	   *h = &rbp_lease_holds[i];

		if (h->pool == RBP_POOL_TEMP && h->lease != NULL &&
			strcmp(h->broker->url, fresh->url) != 0)
			continue;
		if (h->pool != RBP_POOL_TEMP)
			rbp_lease_give_back(h, true);
		rbp_lease_turn_to_current(h);
	}
}

static bool
anything_in_use(void)
{
	for (int i = 0; i < RBP_POOLS; i++)
	{
		if (rbp_lease_holds[i].in_use)
			return true;
	}
	return false;
}

/*
 * Take the settings over.  Another broker is tried first, if there is something
 * to lose; another token file costs nothing.
 */
void
rbp_lease_take_settings(void)
{
	RbpBroker  *fresh;

	if (next != NULL)
		rbp_lease_broker_free(next);
	next = NULL;
	if (rbp_lease_current != NULL && same_url(rbp_guc_broker, rbp_lease_current->url))
	{
		rbp_lease_broker_set_token_file(rbp_lease_current, rbp_guc_token_file);
		rbp_lease_current->complaints &= ~(FAILED_TOKEN | FAILED_AUTH);
		return;
	}
	fresh = rbp_lease_broker_make(rbp_guc_broker, rbp_guc_token_file);
	if (fresh->url[0] == '\0' || rbp_lease_current == NULL || rbp_lease_current->url[0] == '\0' ||
		!anything_in_use())
	{
		rbp_lease_turn_to(fresh);
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
void
rbp_lease_try_next(void)
{
	int64		now = rbp_now_ns();
	int64		patience = GOODBYE_TIMEOUT_MS * NS_PER_MS;
	const char *reason = NULL;
	int			kind = 0;

	for (int i = 0; i < RBP_POOLS; i++)
	{
		if (rbp_lease_holds[i].in_use)
			patience = Min(patience, (rbp_lease_holds[i].deadline - now) / 4);
	}
	if (anything_in_use())
		reason = try_broker(next, (long) Max(patience / NS_PER_MS, 50), &kind);
	if (reason == NULL)
	{
		RbpBroker  *fresh = next;

		ereport(LOG,
				(errmsg("remote_bp: turning from broker \"%s\" to broker \"%s\"",
						rbp_lease_current->url, fresh->url)));
		next = NULL;
		rbp_lease_turn_to(fresh);
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
						   rbp_lease_current->url)));
		next->complaints |= kind;
	}
	next_failures++;
	next_due = rbp_now_ns() + rbp_lease_retry_after(next_failures, 0);
}

int64
rbp_lease_next_due(void)
{
	return next != NULL ? next_due : NEVER_NS;
}

void
rbp_lease_next_soon(void)
{
	next_due = 0;
}
