/*-------------------------------------------------------------------------
 *
 * http_client.c
 *	  A small JSON-over-HTTP client.  See http_client.h.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/http_client.h"
#include "broker/common/log.h"
#include "broker/common/secret.h"
#include "common/bytes.h"
#include "common/curl_request.h"
#include "common/json.h"
#include "common/urls.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct RbpHttp
{
	CURL	   *curl;
	const char *urls;
	int			used;			/* of these */
	char		url[RBP_URL_LEN];	/* that */
	const char *token_file;
	const char *ca_file;
	char	   *token;			/* in use; NULL: none */
	bool		reload;			/* try the file's token first */
	bool		unbelieved;		/* the broker, when it was asked last */
	bool		fresh_connect;	/* with the next request */
	long		connect_ms;
	long		total_ms;
	const atomic_bool *abort_flag;

	RbpBytes	body;			/* of the last answer */
	char		error[CURL_ERROR_SIZE];
};

void
rbp_http_init(void)
{
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		rbp_die("could not initialize libcurl");
}

/* libcurl's progress callback, called about once a second; non-zero aborts */
static int
check_abort(void *arg, curl_off_t dltotal, curl_off_t dlnow,
			curl_off_t ultotal, curl_off_t ulnow)
{
	const RbpHttp *http = arg;

	return http->abort_flag != NULL && atomic_load(http->abort_flag);
}

RbpHttp *
rbp_http_create(const char *urls, const char *token_file, const char *ca_file,
				long connect_ms, long total_ms)
{
	RbpHttp    *http = calloc(1, sizeof(RbpHttp));

	if (http == NULL || (http->curl = curl_easy_init()) == NULL)
		rbp_die("out of memory");
	http->urls = urls;
	(void) rbp_urls_get(urls, 0, http->url);
	http->token_file = token_file;
	http->ca_file = ca_file;
	http->token = rbp_token_load(token_file);
	http->connect_ms = connect_ms;
	http->total_ms = total_ms;
	return http;
}

void
rbp_http_destroy(RbpHttp *http)
{
	if (http == NULL)
		return;
	curl_easy_cleanup(http->curl);
	rbp_token_free(http->token);
	free(http->body.data);
	free(http);
}

bool
rbp_http_use(RbpHttp *http, int n)
{
	char		url[RBP_URL_LEN];

	if (!rbp_urls_get(http->urls, n, url))
		return false;
	strcpy(http->url, url);
	http->used = n;
	http->fresh_connect = true;
	return true;
}

bool
rbp_http_set_urls(RbpHttp *http, const char *urls)
{
	int			n = rbp_urls_find(urls, http->url);

	http->urls = urls;
	if (n >= 0)
		http->used = n;
	else
		(void) rbp_http_use(http, 0);
	return n >= 0;
}

int
rbp_http_used(const RbpHttp *http)
{
	return http->used;
}

const char *
rbp_http_url(const RbpHttp *http)
{
	return http->url;
}

void
rbp_http_set_timeout(RbpHttp *http, long total_ms)
{
	http->total_ms = total_ms;
}

void
rbp_http_reload(RbpHttp *http)
{
	http->reload = true;
}

void
rbp_http_set_abort(RbpHttp *http, const atomic_bool *flag)
{
	http->abort_flag = flag;
}

/*
 * Send a request and receive the answer, whatever it is.  On failure returns
 * false, with the reason in http->error.
 */
static bool
exchange(RbpHttp *http, const char *method, const char *url, const char *text)
{
	CURLcode	rc = CURLE_OUT_OF_MEMORY;

	http->body.len = 0;
	http->error[0] = '\0';
	if (text == NULL && strcmp(method, "POST") == 0)
		text = "";

	/*
	 * A broker that has moved is found by its name: look it up for each
	 * connection.  There is one connection; FRESH_CONNECT replaces it.
	 */
	if (rbp_curl_prepare(http->curl, method, url, text, http->token, http->ca_file,
						 http->connect_ms, http->total_ms, &http->body) &&
		curl_easy_setopt(http->curl, CURLOPT_ERRORBUFFER, http->error) == CURLE_OK &&
		curl_easy_setopt(http->curl, CURLOPT_XFERINFOFUNCTION, check_abort) == CURLE_OK &&
		curl_easy_setopt(http->curl, CURLOPT_XFERINFODATA, http) == CURLE_OK &&
		curl_easy_setopt(http->curl, CURLOPT_NOPROGRESS, 0L) == CURLE_OK &&
		curl_easy_setopt(http->curl, CURLOPT_DNS_CACHE_TIMEOUT, 0L) == CURLE_OK &&
		curl_easy_setopt(http->curl, CURLOPT_MAXCONNECTS, 1L) == CURLE_OK &&
		curl_easy_setopt(http->curl, CURLOPT_FRESH_CONNECT, http->fresh_connect ? 1L : 0L) == CURLE_OK)
		rc = curl_easy_perform(http->curl);
	http->unbelieved = rbp_curl_unbelieved(rc);
	if (rc != CURLE_OK && (http->error[0] == '\0' || rc == CURLE_UNSUPPORTED_PROTOCOL))
		snprintf(http->error, sizeof(http->error), "%s", rbp_curl_error(rc));
	return rc == CURLE_OK;
}

/*
 * Returns the status of the answer, or -1 if it is not usable; *reply is set
 * to the body, if wanted.
 */
static int
take_answer(RbpHttp *http, json_t **reply)
{
	json_t	   *decoded = NULL;
	int			status = rbp_curl_status(http->curl, &http->body, http->error, sizeof(http->error));

	if (status == 0)
		return -1;
	if (rbp_json_values(http->body.data, http->body.len) > RBP_JSON_ANSWER_VALUES)
	{
		snprintf(http->error, sizeof(http->error), "the answer has too many values or levels");
		return -1;
	}
	if (http->body.len > 0)
		decoded = json_loadb(http->body.data, http->body.len, JSON_DECODE_ANY, NULL);
	if (decoded == NULL && http->body.len > 0 && status >= 200 && status < 300)
	{
		snprintf(http->error, sizeof(http->error),
				 "the answer is not JSON: is this a remote_bp broker?");
		return -1;
	}
	if (status >= 400)
	{
		const char *why = json_string_value(json_object_get(decoded, "error"));

		if (why != NULL)
			snprintf(http->error, sizeof(http->error), "%s", why);
		else
			snprintf(http->error, sizeof(http->error), "HTTP status %d", status);
	}
	if (reply != NULL)
		*reply = decoded;
	else
		json_decref(decoded);
	return status;
}

/* Send a request once; see rbp_http_request(). */
static int
send_once(RbpHttp *http, const char *method, const char *url, const char *text,
		  json_t **reply)
{
	if (reply != NULL)
	{
		json_decref(*reply);
		*reply = NULL;
	}
	return exchange(http, method, url, text) ? take_answer(http, reply) : -1;
}

/*
 * The broker does not accept the credential, or not for this; or is not whom
 * its pin names.  (It says 403, too, if a lease's secret is wrong, which no
 * request of this client has.)
 */
static bool
is_refused(const RbpHttp *http, int status)
{
	return http->unbelieved || status == 401 || status == 403;
}

/* The token of the file, if it is another one than that in use. */
static char *
new_token(const RbpHttp *http)
{
	char	   *token = rbp_token_reload(http->token_file);

	if (token != NULL && strcmp(token, http->token) == 0)
	{
		rbp_token_free(token);
		token = NULL;
	}
	return token;
}

/*
 * Send a request with the token in use, and if the broker refuses it with that
 * of the file; in the other order after rbp_http_reload().  The token that was
 * in use stays so unless the other one is accepted.
 */
static int
send_request(RbpHttp *http, const char *method, const char *url, const char *text,
			 json_t **reply)
{
	char	   *before = http->token;
	char	   *fresh = http->reload ? new_token(http) : NULL;
	int			status;

	if (fresh != NULL)
		http->token = fresh;
	status = send_once(http, method, url, text, reply);
	if (is_refused(http, status) && fresh != NULL)
	{
		rbp_log_repeated(RBP_LOG_WARNING, "the broker does not accept the credential of \"%s\", or is not whom its pin names: the one before stays in use",
						 http->token_file);
		http->token = before;
		status = send_once(http, method, url, text, reply);
	}
	else if (is_refused(http, status) && (fresh = new_token(http)) != NULL)
	{
		http->token = fresh;
		status = send_once(http, method, url, text, reply);
	}
	if (status != -1)
		http->reload = false;
	if (fresh == NULL)
		return status;
	if (http->token == fresh && status != -1 && !is_refused(http, status))
	{
		rbp_log(RBP_LOG_INFO, "the broker accepts the new credential of \"%s\"", http->token_file);
		rbp_token_free(before);
	}
	else
	{
		http->token = before;
		rbp_token_free(fresh);
	}
	return status;
}

int
rbp_http_request(RbpHttp *http, const char *method, const char *path,
				 const json_t *body, json_t **reply)
{
	char	   *url = NULL;
	char	   *text = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
	int			status = -1;

	if (reply != NULL)
		*reply = NULL;
	if (asprintf(&url, "%s%s", http->url, path) < 0)
	{
		url = NULL;
		snprintf(http->error, sizeof(http->error), "out of memory");
	}
	else if (body != NULL && text == NULL)
		snprintf(http->error, sizeof(http->error),
				 "cannot encode the request as JSON");
	else
		status = send_request(http, method, url, text, reply);
	http->fresh_connect = status < 0;
	free(text);
	free(url);
	return status;
}

const char *
rbp_http_error(const RbpHttp *http)
{
	return http->error;
}

char *
rbp_http_path(const char *pattern, const char *component)
{
	const char *hole = strstr(pattern, "%s");
	char	   *escaped = hole != NULL ? curl_easy_escape(NULL, component, 0) : NULL;
	char	   *path = NULL;

	if (hole == NULL)
		path = strdup(pattern);
	else if (escaped == NULL ||
			 asprintf(&path, "%.*s%s%s", (int) (hole - pattern), pattern, escaped, hole + 2) < 0)
		path = NULL;
	curl_free(escaped);
	if (path == NULL)
		rbp_die("out of memory");
	return path;
}
