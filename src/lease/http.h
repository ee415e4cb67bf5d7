/*-------------------------------------------------------------------------
 *
 * http.h
 *	  HTTP requests from the lease worker.
 *
 * To be called in the lease worker's process only.  While it waits for a
 * reply, the process processes barriers at once, returns early when it was
 * asked to shut down, and exits if the postmaster has died.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LEASE_HTTP_H
#define RBP_LEASE_HTTP_H

#include "postgres.h"

typedef struct RbpHttpReply
{
	int			status;			/* HTTP status; 0: there is no reply */
	bool		foreign;		/* something else than a broker has replied,
								 * which counts as no reply */
	bool		refused;		/* the broker does not accept the token, or
								 * not for this; or, with status 0, is not
								 * whom the token's pin names */
	char	   *body;			/* palloc'd, or NULL; zero-terminated */
	size_t		len;
	char		error[256];		/* why there is no reply; "" if the host name
								 * is being looked up, or the worker has been
								 * asked to end */
} RbpHttpReply;

/*
 * Initialize libcurl; false on failure.  Called once per process, and never in
 * the postmaster.
 */
extern bool rbp_lease_http_init(void);

typedef struct RbpHttpRequest
{
	const char *method;
	const char *path;			/* appended to the server's URL */
	const char *body;			/* JSON, or NULL for none */
	long		timeout_ms;		/* the longest wait */
	bool		stop_on_shutdown;	/* return once ShutdownRequestPending is
									 * set */
	bool		denied_by_all;	/* that a broker does not know the lease (403,
								 * 404) counts only if all say so */
} RbpHttpRequest;

/*
 * Send one request to the server with that URL.  token: for the Authorization
 * header, and for whom to believe, or NULL.  Does not wait for a name server: while the host has no
 * known address, the request fails at once.  Fills *reply.
 */
extern void rbp_lease_http_request(const char *url, const char *token,
								   const RbpHttpRequest *request,
								   RbpHttpReply *reply);

#endif							/* RBP_LEASE_HTTP_H */
