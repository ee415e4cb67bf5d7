/*-------------------------------------------------------------------------
 *
 * http.c
 *	  HTTP requests from the lease worker.
 *
 * A process attached to shared memory has to process barriers (DROP DATABASE
 * waits for all processes to do so), and has to exit when the postmaster says
 * so.  So libcurl never waits here: its event interface says which sockets and
 * which timeout it waits for, and the waiting is done with the latch.
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
 * same connection for as long as the broker keeps it open.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <curl/curl.h>
#include <signal.h>

#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"

#include "base/compat.h"
#include "base/wait.h"
#include "common/bytes.h"
#include "common/clock.h"
#include "lease/http.h"
#include "lease/names.h"
#include "transport/transport.h"

#define CONNECT_TIMEOUT_MS	1000L
#define DNS_CACHE_SECONDS	5L
#define MAX_REPLY			((size_t) 32 * 1024 * 1024)
#define MAX_SOCKETS			16

/* libcurl's own limit ends a request; this is how much later we do. */
#define GRACE_NS			(INT64CONST(250) * 1000000)
#define IDLE_WAIT_MS		1000L

typedef struct WatchedSocket
{
	curl_socket_t socket;
	int			what;			/* CURL_POLL_* */
} WatchedSocket;

static CURLM *multi = NULL;
static CURL *easy = NULL;

/* What libcurl waits for, as reported to its callbacks */
static WatchedSocket watched[MAX_SOCKETS];
static int	nwatched = 0;
static int64 timer_due = -1;	/* rbp_now_ns() time; -1: none */

static bool latch_was_set = false;	/* during the request */

static sigset_t
block_signals(void)
{
	sigset_t	all;
	sigset_t	before;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	return before;
}

static void
restore_signals(sigset_t before)
{
	sigprocmask(SIG_SETMASK, &before, NULL);
}

/* CURLMOPT_SOCKETFUNCTION */
static int
watch_socket(CURL *handle, curl_socket_t s, int what, void *arg, void *mine)
{
	int			i;

	for (i = 0; i < nwatched; i++)
	{
		if (watched[i].socket == s)
			break;
	}
	if (what == CURL_POLL_REMOVE)
	{
		if (i < nwatched)
			watched[i] = watched[--nwatched];
		return 0;
	}
	if (i == MAX_SOCKETS)
		return -1;				/* fails the request, which needs two at most */
	if (i == nwatched)
		nwatched++;
	watched[i].socket = s;
	watched[i].what = what;
	return 0;
}

/* CURLMOPT_TIMERFUNCTION */
static int
set_timer(CURLM *handle, long timeout_ms, void *arg)
{
	timer_due = timeout_ms < 0 ? -1 :
		rbp_now_ns() + (int64) timeout_ms * 1000000;
	return 0;
}

/* CURLOPT_WRITEFUNCTION; returning less than was given fails the request */
static size_t
receive_body(char *data, size_t size, size_t nmemb, void *arg)
{
	return rbp_bytes_append(arg, data, size * nmemb, MAX_REPLY) ? size * nmemb : 0;
}

bool
rbp_lease_http_init(void)
{
	sigset_t	before = block_signals();

	if (multi == NULL && curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK)
	{
		multi = curl_multi_init();
		easy = curl_easy_init();
		if (multi != NULL)
		{
			curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
			curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, set_timer);
		}
	}
	restore_signals(before);
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
			RbpBytes *answer)
{
	static struct curl_slist headers[] = {
		{"Content-Type: application/json", &headers[1]},
		{"Accept: application/json", &headers[2]},
		{"Expect:", NULL}		/* do not ask whether a large body is welcome */
	};

	curl_easy_reset(easy);
	return curl_easy_setopt(easy, CURLOPT_URL, url) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
		(request->body == NULL ||
		 (curl_easy_setopt(easy, CURLOPT_POST, 1L) == CURLE_OK &&
		  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request->body) == CURLE_OK &&
		  curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long) strlen(request->body)) == CURLE_OK)) &&
		curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request->method) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers) == CURLE_OK &&
		(token == NULL ||
		 (curl_easy_setopt(easy, CURLOPT_HTTPAUTH, CURLAUTH_BEARER) == CURLE_OK &&
		  curl_easy_setopt(easy, CURLOPT_XOAUTH2_BEARER, token) == CURLE_OK)) &&
		curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, receive_body) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_WRITEDATA, answer) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
	/* a token is for the broker, not for what http_proxy may name */
		curl_easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_USERAGENT, "remote_bp/" RBP_VERSION) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, DNS_CACHE_SECONDS) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
						 Min(CONNECT_TIMEOUT_MS, request->timeout_ms)) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, request->timeout_ms) == CURLE_OK;
}

/*
 * Let libcurl do what is due.  True if the request is done, with *result set.
 */
static bool
socket_action(curl_socket_t s, int events, CURLcode *result)
{
	sigset_t	before = block_signals();
	CURLMsg    *msg;
	int			n;
	bool		over = false;

	if (s == CURL_SOCKET_TIMEOUT)
		timer_due = -1;			/* set again by the callback if necessary */
	if (curl_multi_socket_action(multi, s, events, &n) != CURLM_OK)
	{
		*result = CURLE_FAILED_INIT;
		over = true;
	}
	while ((msg = curl_multi_info_read(multi, &n)) != NULL)
	{
		if (msg->msg == CURLMSG_DONE)
		{
			*result = msg->data.result;
			over = true;
		}
	}
	restore_signals(before);
	return over;
}

/*
 * Wait for a socket, the latch or the timeout.  Returns the socket that is
 * ready.
 */
static curl_socket_t
wait_for_event(long timeout_ms, int *events)
{
	WaitEventSet *set = rbp_compat_wait_event_set(MAX_SOCKETS + 2);
	WaitEvent	event;
	curl_socket_t ready = CURL_SOCKET_BAD;

	AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	for (int i = 0; i < nwatched; i++)
	{
		uint32		mask = 0;

		if (watched[i].what & CURL_POLL_IN)
			mask |= WL_SOCKET_READABLE;
		if (watched[i].what & CURL_POLL_OUT)
			mask |= WL_SOCKET_WRITEABLE;
		if (mask != 0)
			AddWaitEventToSet(set, mask, watched[i].socket, NULL, NULL);
	}
	if (WaitEventSetWait(set, timeout_ms, &event, 1, rbp_wait_events[RBP_WAIT_BROKER]) == 1)
	{
		if (event.events & WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			latch_was_set = true;
		}
		else
		{
			ready = event.fd;
			*events = 0;
			if (event.events & WL_SOCKET_READABLE)
				*events |= CURL_CSELECT_IN;
			if (event.events & WL_SOCKET_WRITEABLE)
				*events |= CURL_CSELECT_OUT;
		}
	}
	FreeWaitEventSet(set);
	return ready;
}

/* Wait until the request is done.  False if it was interrupted. */
static bool
run_request(int64 deadline, bool stop_on_shutdown, CURLcode *result)
{
	bool		over = socket_action(CURL_SOCKET_TIMEOUT, 0, result);

	while (!over)
	{
		int64		now = rbp_now_ns();
		int64		until = deadline;
		long		wait_ms;
		int			events;
		curl_socket_t ready;

		CHECK_FOR_INTERRUPTS();
		if (stop_on_shutdown && ShutdownRequestPending)
			return false;
		if (now >= deadline)
		{
			*result = CURLE_OPERATION_TIMEDOUT;
			return true;
		}
		if (timer_due >= 0 && timer_due <= now)
		{
			over = socket_action(CURL_SOCKET_TIMEOUT, 0, result);
			continue;
		}
		if (timer_due >= 0 && timer_due < until)
			until = timer_due;
		/* rounded up, to avoid a busy loop in the last millisecond */
		wait_ms = (long) ((until - now + 999999) / 1000000);
		ready = wait_for_event(Min(wait_ms, IDLE_WAIT_MS), &events);
		if (ready != CURL_SOCKET_BAD)
			over = socket_action(ready, events, result);
	}
	return true;
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
		reply->failure = known == RBP_ADDRESS_PENDING ?
			RBP_HTTP_RESOLVING : RBP_HTTP_NETWORK;
		snprintf(reply->error, sizeof(reply->error),
				 "no address yet for host \"%s\"", host);
		return;
	}
	if (entry.len > 0)
		addresses = curl_slist_append(NULL, entry.data);
	if ((entry.len == 0 || addresses != NULL) &&
		set_options(full_url, token, request, &answer) &&
		curl_easy_setopt(easy, CURLOPT_RESOLVE, addresses) == CURLE_OK)
	{
		CURLMcode	added;

		before = block_signals();
		added = curl_multi_add_handle(multi, easy);
		restore_signals(before);
		if (added == CURLM_OK)
		{
			finished = run_request(deadline, request->stop_on_shutdown, &result);
			before = block_signals();
			curl_multi_remove_handle(multi, easy);
			restore_signals(before);
		}
	}
	curl_slist_free_all(addresses);

	/* the caller handles what the latch was set for */
	if (latch_was_set)
		SetLatch(MyLatch);
	latch_was_set = false;

	if (!finished)
		reply->failure = RBP_HTTP_INTERRUPTED;
	else if (result == CURLE_OK)
	{
		long		status = 0;

		curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
		reply->failure = RBP_HTTP_ANSWERED;
		reply->status = (int) status;
		reply->len = answer.len;
		reply->body = palloc(answer.len + 1);
		if (answer.len > 0)
			memcpy(reply->body, answer.data, answer.len);
		reply->body[answer.len] = '\0';
	}
	else
	{
		reply->failure = (result == CURLE_OUT_OF_MEMORY ||
						  result == CURLE_FAILED_INIT) ?
			RBP_HTTP_INTERNAL : RBP_HTTP_NETWORK;
		strlcpy(reply->error, curl_easy_strerror(result), sizeof(reply->error));
		if (host[0] != '\0')
			rbp_lease_address_failed(host);
	}
	/* the reply may contain a lease's secret */
	if (answer.data != NULL)
		explicit_bzero(answer.data, answer.capacity);
	free(answer.data);
}
