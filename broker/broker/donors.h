/*-------------------------------------------------------------------------
 *
 * donors.h
 *	  Requests about donors; see BrokerHandler.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_DONORS_H
#define RBP_BROKER_DONORS_H

#include "broker/broker/http.h"

extern BrokerReply broker_donors_register(const char *id, const json_t *body);
extern BrokerReply broker_donors_heartbeat(const char *id, const json_t *body);
extern BrokerReply broker_donors_leave(const char *id, const json_t *body);
extern BrokerReply broker_donors_drain(const char *id, const json_t *body);
extern BrokerReply broker_donors_undrain(const char *id, const json_t *body);
extern BrokerReply broker_donors_forget(const char *id, const json_t *body);
extern BrokerReply broker_donors_list(const char *id, const json_t *body);

/* All leases leave the donor; returns how many regions that were. */
extern int	broker_donors_lose(int64_t donor);

#endif							/* RBP_BROKER_DONORS_H */
