/*-------------------------------------------------------------------------
 *
 * broker_http.h
 *	  The broker's HTTP server, and what its request handlers are made of.
 *
 * A handler gets the id in the path (or NULL) and the decoded body (an
 * object, never NULL where the route says that it takes one), and returns a
 * Reply.  It takes broker.lock itself.  Each connection has its own thread, so
 * a handler may wait.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_HTTP_H
#define RBP_BROKER_HTTP_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct Reply
{
	int			status;
	json_t	   *json;			/* owned; NULL: none */
	char	   *text;			/* owned, if not JSON; malloc'ed */
} Reply;

/* Takes over json, which may be NULL for an empty answer. */
extern Reply broker_reply_json(int status, json_t *json);
extern Reply broker_reply_error(int status, const char *fmt,...)
			__attribute__((format(printf, 2, 3)));

/*
 * Members of a body.  Return false and set *error (400) if the member has the
 * wrong type or is out of range, or is missing though required.  A missing
 * one that is not required leaves the output as it was.
 */
extern bool broker_body_text(const json_t *body, const char *key, bool required,
					  char *dst, size_t size, Reply *error);
extern bool broker_body_int(const json_t *body, const char *key, bool required,
					 int64_t min, int64_t max, int64_t *value, Reply *error);
extern bool broker_body_bool(const json_t *body, const char *key, bool *value,
					  Reply *error);

/* An array; *array is borrowed, NULL if missing. */
extern bool broker_body_array(const json_t *body, const char *key,
					   const json_t **array, Reply *error);

/*
 * Listen and serve in the background.  token may be NULL; it is kept by
 * reference.  Dies if it cannot listen.  address gets what is being listened
 * on, with the chosen port.
 */
extern void broker_http_start(const char *host, uint16_t port,
							  const char *token, char *address, size_t len);

/* Waits for running requests; call broker_stop() before. */
extern void broker_http_stop(void);

/* Requests answered so far, by class of status: 2 for 2xx, ... */
extern int64_t broker_http_requests(int status_class);

/* ---- the handlers: broker_donors.c, broker_leases.c ---- */

extern Reply broker_donors_register(const char *id, const json_t *body);
extern Reply broker_donors_heartbeat(const char *id, const json_t *body);
extern Reply broker_donors_leave(const char *id, const json_t *body);
extern Reply broker_donors_drain(const char *id, const json_t *body);
extern Reply broker_donors_list(const char *id, const json_t *body);

extern Reply broker_leases_create(const char *id, const json_t *body);
extern Reply broker_leases_renew(const char *id, const json_t *body);
extern Reply broker_leases_release(const char *id, const json_t *body);
extern Reply broker_leases_revoke(const char *id, const json_t *body);
extern Reply broker_leases_list(const char *id, const json_t *body);

#endif							/* RBP_BROKER_HTTP_H */
