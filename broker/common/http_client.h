/*-------------------------------------------------------------------------
 *
 * http_client.h
 *	  A small JSON-over-HTTP client, on top of libcurl and jansson.
 *
 * An RbpHttp may be used by one thread at a time and keeps its connection
 * alive between requests; after a failure it looks the broker's name up again,
 * and connects anew.  It ignores proxies in the environment and follows no
 * redirects, so that it only talks to the broker's address that was given.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_HTTP_CLIENT_H
#define RBP_HTTP_CLIENT_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct RbpHttp RbpHttp;

/*
 * Initialize libcurl.  To be called once per process, before threads are
 * started.  Ends the process on failure.
 */
extern void rbp_http_init(void);

/*
 * Create a client.  urls: of brokers, see common/urls.h, of which the first is used until
 * rbp_http_use(); kept by reference.  connect_ms bounds connecting, total_ms a whole request.
 *
 * token_file may be NULL, and is kept by reference.  The credential is read
 * now, and again when the broker refuses it, or is not whom its pin names: then
 * the request is repeated with the file's credential, if that is another one,
 * which is logged.  ca_file: see rbp_curl_believe(); likewise kept.  Ends the
 * process if the token file cannot be used now, or memory is short.
 */
extern RbpHttp *rbp_http_create(const char *urls, const char *token_file,
								const char *ca_file, long connect_ms,
								long total_ms);
extern void rbp_http_destroy(RbpHttp *http);

/*
 * Use the n-th broker of the list, from 0, with the next request.  Returns false, and
 * goes on with the same one, if there are fewer.
 */
extern bool rbp_http_use(RbpHttp *http, int n);

/*
 * Use another list, which is not copied.  Returns false if the URL in use is not in it: then its
 * first one is used.
 */
extern bool rbp_http_set_urls(RbpHttp *http, const char *urls);

/* Which one is used, and its URL. */
extern int	rbp_http_used(const RbpHttp *http);
extern const char *rbp_http_url(const RbpHttp *http);

/*
 * Try the credential of the file with the next request.  If the broker refuses it,
 * which is logged, the one before stays in use.
 */
extern void rbp_http_reload(RbpHttp *http);

/* Change the bound on a whole request. */
extern void rbp_http_set_timeout(RbpHttp *http, long total_ms);

/*
 * Set a flag for aborting, or NULL.  When *flag becomes true, a running
 * request fails within about a second, and later ones at once.  The flag must
 * outlive the client.
 */
extern void rbp_http_set_abort(RbpHttp *http, const atomic_bool *flag);

/*
 * Send a request with method (GET, POST, DELETE) and path ("/v1/...", already
 * escaped), and a JSON body (borrowed; NULL for none).  Returns the HTTP
 * status (100 to 599), or -1 if there was no usable answer, because the broker
 * was not reached, the request timed out or was aborted, the answer was too
 * large (common/json.h), or something else than a broker answered
 * (RBP_BROKER_HEADER).
 *
 * *reply (NULL if not wanted) is set to the decoded JSON, owned by the caller,
 * or to NULL if the answer had none.  An answer of 2xx whose body is not JSON
 * is not usable.
 */
extern int	rbp_http_request(RbpHttp *http, const char *method,
							 const char *path, const json_t *body,
							 json_t **reply);

/*
 * Why the last request returned -1 or a status of 400 or more: libcurl's
 * message, or the "error" member of the answer.  Never NULL; valid until the
 * next request.
 */
extern const char *rbp_http_error(const RbpHttp *http);

/*
 * Replace the "%s" in the pattern, if there is one, by the escaped component;
 * malloc'ed.  Ends the process if memory is short.
 */
extern char *rbp_http_path(const char *pattern, const char *component);

#endif							/* RBP_HTTP_CLIENT_H */
