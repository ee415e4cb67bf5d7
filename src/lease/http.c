/*-------------------------------------------------------------------------
 *
 * http.c
 *	  HTTP requests from the lease worker.
 *
 * A process attached to shared memory has to process barriers (DROP DATABASE
 * waits for all processes to do so), and has to exit when the postmaster says
 * so.  So libcurl never waits here: it says which sockets and which timeout it
 * waits for, and pselect() waits for these, for the death of the postmaster,
 * and for signals.  Signals are blocked from the check for interrupts until
 * then, so that none comes too late to end the wait.  What the latch was set
 * for is left to the caller.
 *
 * Host names are resolved by rbp_lease_names, which never waits, and libcurl
 * is given the addresses.  In case it starts a thread all the same, all
 * signals are blocked around every call that can do so, and the thread
 * inherits that.  Otherwise a signal could be delivered to the thread, and run
 * one of the server's handlers beside the main thread.  A lookup that hangs is
 * left to its thread (CURLOPT_QUICK_EXIT), not waited for.
 *
 * Nothing here may ereport(ERROR) from within a callback: a longjmp through
 * libcurl would leave it in an undefined state.  Hence callbacks use malloc,
 * and palloc is used only afterwards.
 *
 * There is one handle for the life of the process, so that requests use the
 * same connection for as long as the broker keeps it open.  If something else
 * than a broker has answered, the name may lead elsewhere by now: it is looked
 * up again, and the next request replaces the connection.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <curl/curl.h>
#include <signal.h>
#include <sys/select.h>

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "postmaster/postmaster.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"

#include "base/guc.h"
#include "base/wait.h"
#include "common/bytes.h"
#include "common/clock.h"
#include "common/curl_request.h"
#include "common/limits.h"
#include "lease/http.h"
#include "lease/names.h"
#include "transport/transport.h"

#define CONNECT_TIMEOUT_MS	1000L
#define DNS_CACHE_SECONDS	5L

/* libcurl's own limit ends a request; this is how much later we do. */
#define GRACE_NS			(INT64CONST(250) * 1000000)

static CURLM *multi = NULL;
static CURL *easy = NULL;
static bool foreign = false;	/* the last reply was not a broker's */

static sigset_t
block_signals(void)
{
	sigset_t	all;
	sigset_t	before;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	return before;
}

bool
rbp_lease_http_init(void)
{
	sigset_t	before = block_signals();

	if (multi == NULL && curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK)
	{
		multi = curl_multi_init();
		easy = curl_easy_init();
		(void) curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, 1L);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	return multi != NULL && easy != NULL;
}

/*
 * Append the addresses of the URL's host to entry, in the form of
 * CURLOPT_RESOLVE; nothing if libcurl needs none.  host gets the name, or "".
 * Never waits.
 */
static RbpAddressState
resolve_entry(const char *url, char host[RBP_HOST_LEN], StringInfo entry)
{
	RbpAddressState known = RBP_ADDRESS_KNOWN;
	CURLU	   *parts = curl_url();
	char	   *name = NULL;
	char	   *port = NULL;
	char		addresses[RBP_ADDRESSES_LEN];

	host[0] = '\0';
	if (parts != NULL &&
		curl_url_set(parts, CURLUPART_URL, url, 0) == CURLUE_OK &&
		curl_url_get(parts, CURLUPART_HOST, &name, 0) == CURLUE_OK &&
		curl_url_get(parts, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK &&
		name[0] != '[' && strlen(name) < RBP_HOST_LEN &&
		!rbp_transport_is_numeric(name))
	{
		strlcpy(host, name, RBP_HOST_LEN);
		known = rbp_lease_broker_address(name, addresses);
		if (known == RBP_ADDRESS_KNOWN)
			appendStringInfo(entry, "%s:%s:%s", name, port, addresses);
	}
	curl_free(name);
	curl_free(port);
	curl_url_cleanup(parts);
	return known;
}

/*
 * Set all of libcurl's options for the request.  False if there is no memory.
 */
static bool
set_options(const char *url, const char *token, const RbpHttpRequest *request,
			const struct curl_slist *addresses, RbpBytes *answer)
{
	return rbp_curl_prepare(easy, request->method, url, request->body, token,
							rbp_guc_broker_ca_file[0] != '\0' ? rbp_guc_broker_ca_file : NULL,
							Min(CONNECT_TIMEOUT_MS, request->timeout_ms), request->timeout_ms, answer) &&
		curl_easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, DNS_CACHE_SECONDS) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, foreign ? 1L : 0L) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_RESOLVE, addresses) == CURLE_OK;
}

/* Let libcurl do what is due.  True if the request is done, with *result set. */
static bool
perform(CURLcode *result)
{
	CURLMsg    *msg;
	int			n;

	if (curl_multi_perform(multi, &n) != CURLM_OK)
	{
		*result = CURLE_FAILED_INIT;
		return true;
	}
	msg = curl_multi_info_read(multi, &n);
	if (msg == NULL || msg->msg != CURLMSG_DONE)
		return false;
	*result = msg->data.result;
	return true;
}

/*
 * Wait until libcurl has something to do, for wait_ns at most.  Ends early at
 * a signal, all of which are blocked by the caller, and let through here.
 */
static void
wait_for_event(int64 wait_ns, const sigset_t *signals)
{
	uint32		wait_event = rbp_wait_start(RBP_WAIT_BROKER);
	int			postmaster = postmaster_alive_fds[POSTMASTER_FD_WATCH];
	long		timer_ms = -1;
	int			last = -1;
	fd_set		in;
	fd_set		out;
	fd_set		errors;
	struct timespec timeout;

	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_ZERO(&errors);
	(void) curl_multi_fdset(multi, &in, &out, &errors, &last);
	FD_SET(postmaster, &in);
	(void) curl_multi_timeout(multi, &timer_ms);
	if (timer_ms >= 0)
		wait_ns = Min(wait_ns, (int64) timer_ms * 1000000);
	timeout.tv_sec = wait_ns / 1000000000;
	timeout.tv_nsec = wait_ns % 1000000000;
	(void) pselect(Max(last, postmaster) + 1, &in, &out, &errors, &timeout, signals);
	rbp_wait_end(wait_event);
}

/* Wait until the request is done.  False if it was interrupted. */
static bool
run_request(int64 deadline, bool stop_on_shutdown, CURLcode *result)
{
	for (;;)
	{
		sigset_t	before = block_signals();
		bool		over = perform(result);
		int64		left = deadline - rbp_now_ns();
		bool		stop = stop_on_shutdown && ShutdownRequestPending;

		if (!over && left > 0 && !stop && !InterruptPending)
			wait_for_event(left, &before);
		sigprocmask(SIG_SETMASK, &before, NULL);
		if (over)
			return true;
		if (!PostmasterIsAlive())
			proc_exit(1);
		CHECK_FOR_INTERRUPTS();
		if (stop)
			return false;
		if (left <= 0)
		{
			*result = CURLE_OPERATION_TIMEDOUT;
			return true;
		}
	}
}

/* Take the reply.  One without the mark of a broker counts as none. */
static void
take_reply(const RbpBytes *answer, RbpHttpReply *reply)
{
	struct curl_header *mark;
	int			status = rbp_curl_status(easy, answer, reply->error, sizeof(reply->error));

	foreign = status == 0;
	reply->foreign = foreign;
	if (foreign)
		return;
	reply->status = status;
	/* a 403 may also mean a wrong secret of the lease */
	reply->refused = status == 401 ||
		(status == 403 && curl_easy_header(easy, "WWW-Authenticate", 0, CURLH_HEADER, -1, &mark) == CURLHE_OK);
	reply->len = answer->len;
	reply->body = palloc(answer->len + 1);
	if (answer->len > 0)
		memcpy(reply->body, answer->data, answer->len);
	reply->body[answer->len] = '\0';
}

void
rbp_lease_http_request(const char *url, const char *token,
					   const RbpHttpRequest *request, RbpHttpReply *reply)
{
	char	   *full_url = psprintf("%s%s", url, request->path);
	struct curl_slist *addresses = NULL;
	RbpBytes	answer = {0};
	CURLcode	result = CURLE_OUT_OF_MEMORY;
	int64		deadline = rbp_now_ns() + (int64) request->timeout_ms * 1000000 + GRACE_NS;
	bool		finished = true;
	char		host[RBP_HOST_LEN];
	StringInfoData entry;
	RbpAddressState known;
	sigset_t	before;

	memset(reply, 0, sizeof(RbpHttpReply));
	initStringInfo(&entry);
	known = resolve_entry(full_url, host, &entry);
	if (known != RBP_ADDRESS_KNOWN)
	{
		if (known != RBP_ADDRESS_PENDING)
			snprintf(reply->error, sizeof(reply->error),
					 "no address yet for host \"%s\"", host);
		return;
	}
	if (entry.len > 0)
		addresses = curl_slist_append(NULL, entry.data);
	if ((entry.len == 0 || addresses != NULL) &&
		set_options(full_url, token, request, addresses, &answer))
	{
		CURLMcode	added;

		before = block_signals();
		added = curl_multi_add_handle(multi, easy);
		sigprocmask(SIG_SETMASK, &before, NULL);
		if (added == CURLM_OK)
		{
			finished = run_request(deadline, request->stop_on_shutdown, &result);
			before = block_signals();
			curl_multi_remove_handle(multi, easy);
			sigprocmask(SIG_SETMASK, &before, NULL);
		}
	}
	curl_slist_free_all(addresses);

	if (finished && result == CURLE_OK)
		take_reply(&answer, reply);
	else if (finished)
	{
		reply->refused = rbp_curl_unbelieved(result);
		strlcpy(reply->error, rbp_curl_error(result), sizeof(reply->error));
	}
	if (reply->error[0] != '\0' && host[0] != '\0')
		rbp_lease_address_failed(host);
	/* the reply may contain a lease's secret */
	if (answer.data != NULL)
		explicit_bzero(answer.data, answer.capacity);
	free(answer.data);
}
