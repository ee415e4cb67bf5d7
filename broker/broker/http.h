/*-------------------------------------------------------------------------
 *
 * http.h
 *	  The broker's HTTP server, and what its request handlers are made of.
 *
 * A handler gets the id in the path (or "") and the decoded body (an
 * object whose members were checked; NULL where the route takes none), and returns a
 * BrokerReply.  It runs in a transaction of its own, under broker.lock: the answer is
 * sent after the commit.  Each connection has its own thread, so a handler may wait,
 * see broker_wait().  The kind of a route may say otherwise.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_HTTP_H
#define RBP_BROKER_HTTP_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct BrokerReply
{
	int			status;
	const char *type;			/* the text's */
	char	   *text;			/* owned, malloc'ed; NULL: none */
	bool		wrong_credential;	/* that is why, and not a lease's secret */
} BrokerReply;

/* Takes over json, which may be NULL for an empty answer. */
extern BrokerReply broker_reply(int status, char *json);
extern BrokerReply broker_reply_error(int status, const char *fmt,...)
			__attribute__((format(printf, 2, 3)));

/* A field allowed in a request body; a handler is called if all fields are as here. */
typedef struct BrokerMember
{
	const char *key;			/* NULL ends the table */
	enum
	{
		BODY_TEXT,				/* of printable ASCII; least and most: its
								 * length */
		BODY_INT,
		BODY_BOOL,
		BODY_ARRAY
	}			kind;
	bool		required;
	int64_t		least;
	int64_t		most;
} BrokerMember;

/* Are these the object's fields?  If not, or if it is none, *error says why. */
extern bool broker_check_members(const json_t *body, const BrokerMember *members, BrokerReply *error);

/* The body may be changed: it is used for nothing else. */
typedef BrokerReply (*BrokerHandler) (const char *id, json_t *body);

/*
 * The donor or client that a request is about, malloc'ed, if it does not belong
 * to that name; else NULL.  Called as a handler is, before it.
 */
typedef char *(*BrokerForeign) (const char *name, const char *id, const json_t *body);

typedef struct BrokerRoute
{
	const char *method;
	const char *path;			/* "*" stands for one component, the id; NULL
								 * ends the table */
	const BrokerMember *body;	/* NULL: it takes none */
	unsigned	roles;			/* whose it is: bits 1 << RbpRole */
	BrokerForeign foreign;		/* NULL: names do not matter */
	enum
	{
		ROUTE_PLAIN,
		ROUTE_PROBE,			/* of the broker's health: needs no token, and
								 * runs without broker.lock */
		ROUTE_SERIAL,			/* requests with one id are served one after
								 * the other */
		ROUTE_UNLOCKED			/* the handler takes broker.lock by itself */
	}			kind;
	BrokerHandler handler;
} BrokerRoute;

/* The name of the credential that the request has, for its handler; "": it needs none. */
extern const char *broker_http_caller(void);

/* Where that request comes from: an address, or that of a proxy. */
extern const char *broker_http_caller_host(char *buf, size_t len);

/*
 * May there be so many of these, and so many that are of the caller's name, with the one
 * that is about to be?  most: that there may be at all.  If not, *error is the answer.
 */
extern bool broker_http_may_hold(const char *what, int64_t all, int64_t most, int64_t own, BrokerReply *error);

/* What the broker serves: in routes.c, and for GET /metrics in metrics.c */
extern const BrokerRoute broker_routes[];
extern BrokerReply broker_metrics(const char *id, json_t *body);

/*
 * Listen.  Dies if it cannot.  address gets what is being listened on, with the
 * chosen port.  Returns whether only this machine can reach it.
 */
extern bool broker_http_listen(const char *host, uint16_t port, char *address, size_t len);

/*
 * Serve in the background, after broker_http_listen(): over TLS, after
 * broker_tls_open(), if tls.  served is kept by reference.
 */
extern void broker_http_start(const BrokerRoute *served, bool tls);

/* Waits for running requests; call broker_stop() before. */
extern void broker_http_stop(void);

/*
 * Requests so far: answered, by class of status ([2] for 2xx, ...); of these, refused
 * with 401 or 403; and how long those of each route took, but for broker_wait().
 */
#define BROKER_MAX_ROUTES		16
#define BROKER_TIME_BOUNDS		4

typedef struct BrokerTimes
{
	atomic_int_fast64_t counts[BROKER_TIME_BOUNDS + 1]; /* up to each bound, and
														 * beyond the last */
	atomic_int_fast64_t sum_ns;
} BrokerTimes;

extern const int broker_http_bounds_ms[BROKER_TIME_BOUNDS];
extern atomic_int_fast64_t broker_http_requests[6];
extern atomic_int_fast64_t broker_http_refused;
extern BrokerTimes broker_http_times[BROKER_MAX_ROUTES];	/* as broker_routes */

#endif							/* RBP_BROKER_HTTP_H */
