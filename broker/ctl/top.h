/*-------------------------------------------------------------------------
 *
 * top.h
 *	  remote_bp_ctl top: what a server's tier does, refreshed.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CTL_TOP_H
#define RBP_CTL_TOP_H

#include "broker/common/http_client.h"
#include "broker/server/server.h"

/* Whom to ask; the broker only if http is not NULL */
typedef struct CtlSources
{
	RbpServer  *server;
	RbpHttp    *http;
} CtlSources;

/*
 * Print everything once.  Ends the process if the server, or the broker, does not
 * answer.
 */
extern void ctl_top_once(const CtlSources *sources);

/*
 * Show it on the terminal, every so many seconds, until the user quits or the
 * input ends.  Ends the process if the terminal cannot show it.
 */
extern void ctl_top_run(const CtlSources *sources, int interval);

#endif							/* RBP_CTL_TOP_H */
