/*-------------------------------------------------------------------------
 *
 * health.h
 *	  remote_bp_ctl health: is all well with a broker, and with a server's tier?
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CTL_HEALTH_H
#define RBP_CTL_HEALTH_H

#include "broker/common/http_client.h"
#include "broker/server/server.h"

#include <stdbool.h>
#include <stdio.h>

/*
 * What is found is an object: "ok", and lists of sentences: "problems" (none if it is
 * ok), "summary", one of each that was asked, and "notes".  New; it is the caller's.
 */
extern json_t *ctl_health_new(void);

/* Ask, and add what is found.  A broker, or server, that does not answer is a problem. */
extern void ctl_health_of_broker(json_t *health, RbpHttp *http);
extern void ctl_health_of_server(json_t *health, RbpServer *server);

extern bool ctl_health_is_ok(const json_t *health);

/* Problems and summary in one line, as monitoring programs want it; a line for each note. */
extern void ctl_health_print(FILE *out, const json_t *health);

#endif							/* RBP_CTL_HEALTH_H */
