/*-------------------------------------------------------------------------
 *
 * http.h
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

typedef struct BrokerReply
{
	int			status;
	json_t	   *json;			/* owned; NULL: none */
	char	   *text;			/* owned, if not JSON; malloc'ed */
} BrokerReply;

/* Takes over json, which may be NULL for an empty answer. */
extern BrokerReply broker_reply_json(int status, json_t *json);
extern BrokerReply broker_reply_error(int status, const char *fmt,...)
			__attribute__((format(printf, 2, 3)));

/* From least to most. */
typedef struct BrokerRange
{
	int64_t		least;
	int64_t		most;
} BrokerRange;

/*
 * Members of a body.  Return false and set *error (400) if the member has the
 * wrong type or is out of range, or is missing though required.  A missing
 * one that is not required leaves the output as it was.
 */
extern bool broker_body_text(const json_t *body, const char *key, bool required,
					  char *dst, size_t size, BrokerReply *error);
extern bool broker_body_int(const json_t *body, const char *key, bool required,
							BrokerRange range, int64_t *value, BrokerReply *error);
extern bool broker_body_bool(const json_t *body, const char *key, bool *value,
					  BrokerReply *error);

/* An array; *array is borrowed, NULL if missing. */
extern bool broker_body_array(const json_t *body, const char *key,
					   const json_t **array, BrokerReply *error);

typedef BrokerReply (*BrokerHandler) (const char *id, const json_t *body);

typedef struct BrokerRoute
{
	const char *method;
	const char *path;			/* "*" stands for one component, the id; NULL
								 * ends the table */
	bool		takes_body;
	bool		open;			/* to those without the token, too */
	BrokerHandler handler;
} BrokerRoute;

/*
 * Listen and serve in the background.  served and token,
 * which may be NULL, are kept by reference.  Dies if it cannot listen.  address gets what is being listened
 * on, with the chosen port.
 */
extern void broker_http_start(const BrokerRoute *served, const char *host,
							  uint16_t port, const char *token,
							  char *address, size_t len);

/* Waits for running requests; call broker_stop() before. */
extern void broker_http_stop(void);

/* Requests answered so far, by class of status: [2] for 2xx, ... */
extern void broker_http_requests(int64_t by_class[6]);

#endif							/* RBP_BROKER_HTTP_H */
