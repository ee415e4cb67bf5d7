/*-------------------------------------------------------------------------
 *
 * brokers.h
 *	  remote_bp_ctl brokers: each broker of the list, and who follows it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CTL_BROKERS_H
#define RBP_CTL_BROKERS_H

#include "broker/common/http_client.h"

#include <stdio.h>

/* {"brokers": [{"url", "version", "donors", "leases", "error"}]}: donors that follow it, and their leases */
extern json_t *ctl_brokers(RbpHttp *http);

extern void ctl_brokers_print(FILE *out, const json_t *answer);

#endif							/* RBP_CTL_BROKERS_H */
