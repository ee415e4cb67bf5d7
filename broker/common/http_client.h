/*-------------------------------------------------------------------------
 *
 * http_client.h
 *	  A small JSON-over-HTTP client: libcurl below, jansson at the edge.
 *
 * One RbpHttp belongs to one thread at a time and keeps its connection alive
 * between requests.  It ignores proxies in the environment and follows no
 * redirects: the broker is the address that was given, or nothing.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_HTTP_CLIENT_H
#define RBP_HTTP_CLIENT_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>

/* No answer larger than this is accepted. */
#define RBP_HTTP_MAX_REPLY	(64 * 1024 * 1024)

typedef struct RbpHttp RbpHttp;

/* Once per process, before threads; false if libcurl cannot start. */
extern bool rbp_http_init(void);

/*
 * base_url: "http://host:port", a trailing slash is fine.  token may be NULL.
 * Both are copied.  connect_ms bounds connecting, total_ms a whole request.
 * NULL if the URL is not http:// or https:// or memory is short.
 */
extern RbpHttp *rbp_http_create(const char *base_url, const char *token,
								long connect_ms, long total_ms);
extern void rbp_http_destroy(RbpHttp *http);

/* Change the bound on a whole request. */
extern void rbp_http_set_timeout(RbpHttp *http, long total_ms);

/*
 * When *flag becomes true, a running request fails within about a second,
 * and later ones at once.  NULL: none.  The flag must outlive the client.
 */
extern void rbp_http_set_abort(RbpHttp *http, const atomic_bool *flag);

/*
 * Do method (GET, POST, DELETE) on path ("/v1/...", already escaped) with a
 * JSON body (borrowed; NULL: none).  Returns the HTTP status (100 to 599), or
 * -1 if there was no usable answer: not reached, timed out, aborted, too
 * large.
 *
 * *reply (may be NULL: not wanted) gets the decoded JSON, owned by the
 * caller, or NULL when the answer carried none.  An answer of 2xx whose body
 * is not JSON counts as no usable answer.
 */
extern int	rbp_http_request(RbpHttp *http, const char *method,
							 const char *path, const json_t *body,
							 json_t **reply);

/*
 * Why the last request on this client returned -1 or a status of 400 or more:
 * libcurl's words, or the "error" member of the answer.  Never NULL; valid
 * until the next request.
 */
extern const char *rbp_http_error(const RbpHttp *http);

/*
 * The pattern, with the component, escaped, in the place of its "%s" if there
 * is one; malloc'ed.  Ends the process if memory is short.
 */
extern char *rbp_http_path(const char *pattern, const char *component);

#endif							/* RBP_HTTP_CLIENT_H */
