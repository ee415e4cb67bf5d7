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

extern BrokerReply broker_donors_register(const char *id, json_t *body);
extern BrokerReply broker_donors_heartbeat(const char *id, json_t *body);
extern BrokerReply broker_donors_leave(const char *id, json_t *body);
extern BrokerReply broker_donors_drain(const char *id, json_t *body);
extern BrokerReply broker_donors_undrain(const char *id, json_t *body);
extern BrokerReply broker_donors_forget(const char *id, json_t *body);
extern BrokerReply broker_donors_list(const char *id, json_t *body);

/*
 * How long an answer waits for donors to apply what it tells, and until when that is.  Tests
 * whose donors are slow set another time.
 */
#define BROKER_SETTLE_MS	1000
#define BROKER_SETTLE_VARIABLE	"REMOTE_BP_TEST_SETTLE_MS"
extern int64_t broker_donors_deadline(void);

/*
 * Donors that do not know yet what an operator has changed undo it, if another broker learns from them
 * what there is.  So wait until the donors (a JSON list of their keys) have applied all that they are told now.  The
 * answer has the status 200, or 202 if some have not, and consists of the object (JSON, which is freed) and
 * the ids of those that have not as "pending".
 */
extern BrokerReply broker_donors_await(const char *donors, char *object);

/* All leases leave the donor; returns how many regions that were. */
extern int	broker_donors_lose(int64_t donor);

#endif							/* RBP_BROKER_DONORS_H */
