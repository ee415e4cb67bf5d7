/*-------------------------------------------------------------------------
 *
 * http_client.c
 *	  A small JSON-over-HTTP client.  See http_client.h.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/http_client.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct RbpHttp
{
	CURL	   *curl;
	struct curl_slist *headers;
	char	   *base_url;		/* without a trailing slash */
	const atomic_bool *abort_flag;

	/* of the request under way */
	char	   *body;
	size_t		body_len;
	size_t		body_size;

	char		error[CURL_ERROR_SIZE];
};

bool
rbp_http_init(void)
{
	return curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

/* libcurl's write callback; taking fewer bytes than given fails the request */
static size_t
take_body(char *data, size_t size, size_t nmemb, void *arg)
{
	RbpHttp    *http = arg;
	size_t		len = size * nmemb;

	if (len > RBP_HTTP_MAX_REPLY - http->body_len)
		return 0;
	if (http->body_len + len > http->body_size)
	{
		size_t		want = (http->body_len + len) * 2;
		char	   *grown = realloc(http->body, want);

		if (grown == NULL)
			return 0;
		http->body = grown;
		http->body_size = want;
	}
	memcpy(http->body + http->body_len, data, len);
	http->body_len += len;
	return len;
}

/* libcurl's progress callback, called about once a second; non-zero aborts */
static int
check_abort(void *arg, curl_off_t dltotal, curl_off_t dlnow,
			curl_off_t ultotal, curl_off_t ulnow)
{
	const RbpHttp *http = arg;

	(void) dltotal;
	(void) dlnow;
	(void) ultotal;
	(void) ulnow;
	return http->abort_flag != NULL && atomic_load(http->abort_flag);
}

static bool
add_header(RbpHttp *http, const char *header)
{
	struct curl_slist *list = curl_slist_append(http->headers, header);

	if (list == NULL)
		return false;
	http->headers = list;
	return true;
}

RbpHttp *
rbp_http_create(const char *base_url, const char *token,
				long connect_ms, long total_ms)
{
	RbpHttp    *http;
	size_t		len;

	if (strncasecmp(base_url, "http://", 7) != 0 &&
		strncasecmp(base_url, "https://", 8) != 0)
		return NULL;
	http = calloc(1, sizeof(RbpHttp));
	if (http == NULL)
		return NULL;
	http->curl = curl_easy_init();
	http->base_url = strdup(base_url);
	if (http->curl == NULL || http->base_url == NULL)
		goto fail;
	len = strlen(http->base_url);
	while (len > 0 && http->base_url[len - 1] == '/')
		http->base_url[--len] = '\0';

	/*
	 * "Expect:" would cost a round trip and a second's wait with servers that
	 * do not answer it.
	 */
	if (!add_header(http, "Content-Type: application/json") ||
		!add_header(http, "Accept: application/json") ||
		!add_header(http, "Expect:"))
		goto fail;
	if (token != NULL)
	{
		static const char prefix[] = "Authorization: Bearer ";
		size_t		size = sizeof(prefix) + strlen(token);
		char	   *header = malloc(size);
		bool		added;

		if (header == NULL)
			goto fail;
		snprintf(header, size, "%s%s", prefix, token);
		added = add_header(http, header);
		free(header);
		if (!added)
			goto fail;
	}

	curl_easy_setopt(http->curl, CURLOPT_HTTPHEADER, http->headers);
	curl_easy_setopt(http->curl, CURLOPT_ERRORBUFFER, http->error);
	curl_easy_setopt(http->curl, CURLOPT_WRITEFUNCTION, take_body);
	curl_easy_setopt(http->curl, CURLOPT_WRITEDATA, http);
	curl_easy_setopt(http->curl, CURLOPT_XFERINFOFUNCTION, check_abort);
	curl_easy_setopt(http->curl, CURLOPT_XFERINFODATA, http);
	curl_easy_setopt(http->curl, CURLOPT_NOPROGRESS, 0L);
	curl_easy_setopt(http->curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(http->curl, CURLOPT_PROXY, "");
	curl_easy_setopt(http->curl, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(http->curl, CURLOPT_USERAGENT, "remote_bp/" RBP_VERSION);
	curl_easy_setopt(http->curl, CURLOPT_TCP_NODELAY, 1L);
	curl_easy_setopt(http->curl, CURLOPT_CONNECTTIMEOUT_MS, connect_ms);
	curl_easy_setopt(http->curl, CURLOPT_TIMEOUT_MS, total_ms);
	return http;

fail:
	rbp_http_destroy(http);
	return NULL;
}

void
rbp_http_destroy(RbpHttp *http)
{
	if (http == NULL)
		return;
	if (http->curl != NULL)
		curl_easy_cleanup(http->curl);
	curl_slist_free_all(http->headers);
	free(http->base_url);
	free(http->body);
	free(http);
}

void
rbp_http_set_timeout(RbpHttp *http, long total_ms)
{
	curl_easy_setopt(http->curl, CURLOPT_TIMEOUT_MS, total_ms);
}

void
rbp_http_set_abort(RbpHttp *http, const atomic_bool *flag)
{
	http->abort_flag = flag;
}

/* Send it and receive the answer, whatever that is; false: http->error says why not. */
static bool
exchange(RbpHttp *http, const char *method, const char *url, const char *text)
{
	CURLcode	rc;

	curl_easy_setopt(http->curl, CURLOPT_URL, url);
	if (text != NULL || strcmp(method, "POST") == 0)
	{
		curl_easy_setopt(http->curl, CURLOPT_POST, 1L);
		curl_easy_setopt(http->curl, CURLOPT_POSTFIELDS, text ? text : "");
		curl_easy_setopt(http->curl, CURLOPT_POSTFIELDSIZE,
						 text ? (long) strlen(text) : 0L);
	}
	else
		curl_easy_setopt(http->curl, CURLOPT_HTTPGET, 1L);
	curl_easy_setopt(http->curl, CURLOPT_CUSTOMREQUEST, method);

	rc = curl_easy_perform(http->curl);
	/* libcurl must not keep pointers into text, which is the caller's */
	curl_easy_setopt(http->curl, CURLOPT_POSTFIELDS, NULL);
	if (rc != CURLE_OK && http->error[0] == '\0')
		snprintf(http->error, sizeof(http->error), "%s", curl_easy_strerror(rc));
	return rc == CURLE_OK;
}

/* The status of the answer, whose body goes into *reply if that is wanted; or -1. */
static int
take_answer(RbpHttp *http, json_t **reply)
{
	json_t	   *decoded = NULL;
	long		status = 0;

	curl_easy_getinfo(http->curl, CURLINFO_RESPONSE_CODE, &status);
	if (http->body_len > 0)
		decoded = json_loadb(http->body, http->body_len, JSON_DECODE_ANY, NULL);
	if (decoded == NULL && http->body_len > 0 && status >= 200 && status < 300)
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
			snprintf(http->error, sizeof(http->error), "HTTP status %ld",
					 status);
	}
	if (reply != NULL)
		*reply = decoded;
	else
		json_decref(decoded);
	return (int) status;
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
	http->body_len = 0;
	http->error[0] = '\0';

	if (asprintf(&url, "%s%s", http->base_url, path) < 0)
	{
		url = NULL;
		snprintf(http->error, sizeof(http->error), "out of memory");
	}
	else if (body != NULL && text == NULL)
		snprintf(http->error, sizeof(http->error),
				 "cannot encode the request as JSON");
	else if (exchange(http, method, url, text))
		status = take_answer(http, reply);
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
rbp_http_escape(const char *component)
{
	static const char plain[] =
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
	char	   *escaped = malloc(strlen(component) * 3 + 1);
	char	   *out = escaped;

	if (escaped == NULL)
		return NULL;
	for (const char *c = component; *c != '\0'; c++)
	{
		if (strchr(plain, *c) != NULL)
			*out++ = *c;
		else
			out += sprintf(out, "%%%02X", (unsigned) (unsigned char) *c);
	}
	*out = '\0';
	return escaped;
}
