/*-------------------------------------------------------------------------
 *
 * http.h
 *	  HTTP requests from the lease worker, which stays a good citizen of the
 *	  server meanwhile.
 *
 * For the lease worker's process only.  A request waits with the process's
 * latch: it absorbs barriers at once, ends early when the postmaster asks for
 * the worker's end, and exits if the postmaster is dead.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LEASE_HTTP_H
#define RBP_LEASE_HTTP_H

#include "postgres.h"

/* Why a request has got no answer, coarse enough to log each kind once */
typedef enum RbpHttpFailure
{
	RBP_HTTP_ANSWERED,			/* there is an answer, of whatever status */
	RBP_HTTP_NETWORK,			/* no connection, timeout, broken answer */
	RBP_HTTP_RESOLVING,			/* not asked: its name is being looked up */
	RBP_HTTP_INTERRUPTED,		/* the worker is to end */
	RBP_HTTP_INTERNAL			/* libcurl is out of order or memory */
} RbpHttpFailure;

typedef struct RbpHttpReply
{
	RbpHttpFailure failure;
	int			status;			/* HTTP status, if answered */
	char	   *body;			/* palloc'd, or NULL; zero-terminated */
	size_t		len;
	char		error[256];		/* if not answered */
} RbpHttpReply;

/*
 * Make ready; false if libcurl cannot be used.  Once per process, and never
 * in the postmaster.
 */
extern bool rbp_lease_http_init(void);

typedef struct RbpHttpRequest
{
	const char *method;
	const char *path;			/* what comes after the server's URL */
	const char *body;			/* JSON, or NULL for none */
	long		timeout_ms;		/* the longest wait */
	bool		stop_on_shutdown;	/* end as soon as ShutdownRequestPending
									 * is set */
} RbpHttpRequest;

/*
 * One request to the server of that URL.  token: for the Authorization header, or
 * NULL.  Waits for no name server: as long as the host has no address, the request
 * fails at once.  Fills *reply.
 */
extern void rbp_lease_http_request(const char *url, const char *token,
								   const RbpHttpRequest *request,
								   RbpHttpReply *reply);

#endif							/* RBP_LEASE_HTTP_H */
