/*-------------------------------------------------------------------------
 *
 * broker.c
 *	  A broker as the lease worker knows it: requests, and which token they
 *	  use.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "base/stats.h"
#include "common/clock.h"
#include "common/token.h"
#include "lease/broker.h"
#include "lease/http.h"
#include "lease/plan.h"
#include "remote/remote.h"

/*
 * When to try brokers before the one in use again, after it came into use, and after that.
 * Donors return sooner than that: a broker that was stopped would answer without them.
 */
#define EARLIER_FIRST_NS	(15000 * NANOS_PER_MS)
#define EARLIER_EVERY_NS	(5000 * NANOS_PER_MS)
#define EARLIER_TIMEOUT_MS	1000L
#define LOG_EVERY_NS		(5000 * NANOS_PER_MS)

/* Replace a string that lives as long as its broker; NULL to have none. */
static void
set_string(char **string, const char *value)
{
	char	   *copy = value != NULL ? MemoryContextStrdup(TopMemoryContext, value) : NULL;

	if (*string != NULL)
	{
		explicit_bzero(*string, strlen(*string));	/* it may be a token */
		pfree(*string);
	}
	*string = copy;
}

RbpBroker *
rbp_lease_broker_create(const char *urls, const char *token_file)
{
	RbpBroker  *b = MemoryContextAllocZero(TopMemoryContext, sizeof(RbpBroker));

	set_string(&b->urls, urls);
	(void) rbp_urls_get(urls, 0, b->url);
	set_string(&b->token_file, token_file);
	return b;
}

void
rbp_lease_broker_free(RbpBroker *b)
{
	set_string(&b->urls, NULL);
	set_string(&b->token_file, NULL);
	set_string(&b->token, NULL);
	set_string(&b->rejected_token, NULL);
	set_string(&b->rejected_reason, NULL);
	set_string(&b->logged_reason, NULL);
	pfree(b);
}

bool
rbp_lease_broker_set_urls(RbpBroker *b, const char *urls)
{
	char		in_use[RBP_URL_LEN];
	int			n;

	(void) rbp_urls_get(b->urls, b->used, in_use);
	n = rbp_urls_find(urls, in_use);
	if (n < 0)
		return false;
	set_string(&b->urls, urls);
	b->used = n;
	return true;
}

void
rbp_lease_broker_save(const RbpBroker *b, RbpBrokerAccess *access)
{
	memset(access, 0, sizeof(*access));
	if (strlen(b->urls) >= sizeof(access->urls) ||
		strlen(b->token_file) >= sizeof(access->token_file))
		return;
	strlcpy(access->urls, b->urls, sizeof(access->urls));
	access->used = b->used;
	strlcpy(access->token_file, b->token_file, sizeof(access->token_file));
	strlcpy(access->token, b->token != NULL ? b->token : "", sizeof(access->token));
}

RbpBroker *
rbp_lease_broker_restore(const RbpBrokerAccess *access)
{
	RbpBroker  *b = rbp_lease_broker_create(access->urls, access->token_file);

	b->used = access->used;
	b->earlier_due = rbp_now_ns() + EARLIER_FIRST_NS;
	set_string(&b->token, access->token);
	return b;
}

void
rbp_lease_broker_set_token_file(RbpBroker *b, const char *token_file)
{
	set_string(&b->token_file, token_file);
	set_string(&b->rejected_token, NULL);
}

/*
 * Returns the credential of a token file, palloc'ed; NULL, with the reason, on
 * failure.
 */
static char *
read_token(const char *path, char reason[RBP_BROKER_WHY_LEN])
{
	char		token[RBP_TOKEN_LEN];
	char	   *copy = NULL;
	const char *fault;

	if (path[0] == '\0')
		return pstrdup("");
	fault = rbp_token_read(path, token);
	if (fault == NULL)
		copy = pstrdup(token);
	else
		snprintf(reason, RBP_BROKER_WHY_LEN, "could not read token file \"%s\": %s", path, fault);
	explicit_bzero(token, sizeof(token));
	return copy;
}

/*
 * The broker has accepted this token.  If it is not the one of the token file,
 * reason says why.
 */
static void
token_accepted(RbpBroker *b, const char *token, bool from_file, const char *reason)
{
	if (b->token == NULL || strcmp(b->token, token) != 0)
		set_string(&b->token, token);
	if (from_file)
	{
		if (b->logged_reason != NULL)
			ereport(LOG,
					(errmsg("remote_bp: broker \"%s\" accepts the credential of remote_bp.token_file",
							b->url)));
		set_string(&b->rejected_token, NULL);
		set_string(&b->logged_reason, NULL);
	}
	else if (b->logged_reason == NULL || strcmp(b->logged_reason, reason) != 0)
	{
		rbp_stats_error("the credential for broker \"%s\" is not replaced: %s", b->url, reason);
		ereport(LOG,
				(errmsg("remote_bp: the credential for broker \"%s\" is not replaced: %s",
						b->url, reason),
				 errdetail("Requests continue to use the credential that was accepted last.")));
		set_string(&b->logged_reason, reason);
	}
}

/* The broker has not accepted this token, of the token file; reason gets why. */
static void
token_rejected(RbpBroker *b, const char *token, const RbpHttpReply *reply,
			   char reason[RBP_BROKER_WHY_LEN])
{
	char text[	200];

	rbp_lease_error_text(reply->body, reply->len, text, sizeof(text));
	if (reply->status == 0)
		strlcpy(reason, reply->error, RBP_BROKER_WHY_LEN);
	else if (token[0] == '\0')
		snprintf(reason, RBP_BROKER_WHY_LEN,
				 "it requires a credential, but remote_bp.token_file is not set (HTTP status %d)",
				 reply->status);
	else
		snprintf(reason, RBP_BROKER_WHY_LEN, "it does not accept the credential (HTTP status %d: %s)",
				 reply->status, text);
	set_string(&b->rejected_token, token);
	set_string(&b->rejected_reason, reason);
}

/* Ask the broker of b->url. */
static int
ask(RbpBroker *b, const RbpHttpRequest *request, RbpHttpReply *reply, char reason[RBP_BROKER_WHY_LEN])
{
	char	   *from_file = read_token(b->token_file, reason);
	char	   *last = b->token != NULL ? pstrdup(b->token) : NULL;
	const char *tokens[2] = {from_file, last};
	int			failed = FAILED_TOKEN;

	/* a rejected token is tried again when the other one is rejected, too */
	if (from_file == NULL || (b->rejected_token != NULL && last != NULL &&
							  strcmp(from_file, b->rejected_token) == 0))
	{
		tokens[0] = last;
		tokens[1] = from_file;
	}
	if (from_file != NULL)
		strlcpy(reason, b->rejected_reason != NULL ? b->rejected_reason : "", RBP_BROKER_WHY_LEN);
	for (int i = 0; i < 2; i++)
	{
		const char *token = tokens[i];

		if (token == NULL ||
			(i == 1 && tokens[0] != NULL && strcmp(token, tokens[0]) == 0))
			continue;
		rbp_lease_http_request(b->url, token[0] != '\0' ? token : NULL, request,
							   reply);
		failed = reply->foreign ? FAILED_ANSWER :
			reply->refused ? FAILED_AUTH :
			reply->status == 0 ? FAILED_NETWORK : 0;
		if (failed == 0)
			token_accepted(b, token, from_file != NULL && strcmp(token, from_file) == 0, reason);
		else if (failed != FAILED_AUTH)
			strlcpy(reason, reply->error, RBP_BROKER_WHY_LEN);
		if (failed != FAILED_AUTH)
			break;
		if (token == from_file)
			token_rejected(b, token, reply, reason);
	}
	for (int i = 0; i < 2; i++)
	{
		if (tokens[i] != NULL)
			explicit_bzero(unconstify(char *, tokens[i]), strlen(tokens[i]));
	}
	return failed;
}

int
rbp_lease_broker_request(RbpBroker *b, const RbpHttpRequest *request,
						 RbpHttpReply *reply, char reason[RBP_BROKER_WHY_LEN])
{
	char		url[RBP_URL_LEN];
	bool		earlier = request->stop_on_shutdown && b->used > 0 && rbp_now_ns() >= b->earlier_due;
	int			first = earlier ? 0 : b->used;
	int			n = first;
	int			failed;
	bool		unknown;
	bool		answered;
	bool		all_answered = true;

	do
	{
		RbpHttpRequest once = *request;

		(void) rbp_urls_get(b->urls, n, b->url);
		if (earlier && n < b->used)
			once.timeout_ms = Min(once.timeout_ms, EARLIER_TIMEOUT_MS);
		failed = ask(b, &once, reply, reason);
		unknown = failed == 0 && request->denied_by_all && (reply->status == 403 || reply->status == 404);
		answered = failed == 0 && reply->status != 503 && !unknown;
		all_answered = all_answered && (answered || unknown);
		/* no reason: it was not sent */
		if (answered || (failed != 0 && reason[0] == '\0') || !request->stop_on_shutdown)
			break;
		n = rbp_urls_get(b->urls, n + 1, url) ? n + 1 : 0;
	} while (n != first);

	if (answered && n != b->used)
	{
		(void) rbp_urls_get(b->urls, b->used, url);
		/* it may go to and fro while the network is split */
		if (rbp_now_ns() >= b->logged_until)
			ereport(LOG,
					(errmsg("remote_bp: broker \"%s\" is used in place of \"%s\"", b->url, url)));
		b->logged_until = rbp_now_ns() + LOG_EVERY_NS;
		b->used = n;
		b->earlier_due = rbp_now_ns() + EARLIER_FIRST_NS;
	}
	else if (earlier)
		b->earlier_due = rbp_now_ns() + EARLIER_EVERY_NS;
	if (unknown && !all_answered)
	{
		strlcpy(reason, "it does not know the lease, and another one does not answer", RBP_BROKER_WHY_LEN);
		return FAILED_NETWORK;
	}
	return failed;
}
