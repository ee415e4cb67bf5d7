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

#include <stdbool.h>

/* Whom to ask; the broker only if http is not NULL */
typedef struct CtlSources
{
	RbpServer  *server;
	RbpHttp    *http;
} CtlSources;

/*
 * Print everything once, and end the process if the server, or the broker, does not
 * answer; or print it every so many seconds, on a terminal in the same place, until
 * a signal ends the process.
 */
extern void ctl_top(const CtlSources *sources, bool once, int interval);

#endif							/* RBP_CTL_TOP_H */
