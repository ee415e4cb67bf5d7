/*-------------------------------------------------------------------------
 *
 * leases.h
 *	  Requests about leases; see BrokerHandler.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_LEASES_H
#define RBP_BROKER_LEASES_H

#include "broker/broker/http.h"

extern BrokerReply broker_leases_create(const char *id, json_t *body);
extern BrokerReply broker_leases_renew(const char *id, json_t *body);
extern BrokerReply broker_leases_release(const char *id, json_t *body);
extern BrokerReply broker_leases_revoke(const char *id, json_t *body);
extern BrokerReply broker_leases_list(const char *id, json_t *body);

/*
 * End a lease: its regions become dirty.  how: "has expired", ..., as its holder
 * will be told.  Returns how many regions it had.
 */
extern int	broker_leases_end(int64_t lease, const char *how);

#endif							/* RBP_BROKER_LEASES_H */
