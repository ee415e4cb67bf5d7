/*-------------------------------------------------------------------------
 *
 * routes.c
 *	  What the broker answers, and who does it.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/donors.h"
#include "broker/broker/http.h"
#include "broker/broker/leases.h"
#include "broker/broker/metrics.h"
#include "broker/broker/routes.h"
#include "broker/broker/state.h"
#include "common/clock.h"

#include <unistd.h>

#define LOCK_PROBE_MS		1000

/*
 * Healthy means that the state can be had: a broker whose lock is stuck is
 * not.
 */
static BrokerReply
serve_health(const char *id, const json_t *body)
{
	int64_t		until = rbp_mono_ms() + LOCK_PROBE_MS;

	(void) id;
	(void) body;
	while (pthread_mutex_trylock(&broker.lock) != 0)
	{
		if (rbp_mono_ms() >= until)
			return broker_reply_error(503, "the broker's state is locked");
		usleep(5000);
	}
	broker_end();
	return broker_reply_json(200, json_pack("{s:s, s:s}", "status", "ok",
									 "version", RBP_VERSION));
}

static BrokerReply
serve_metrics(const char *id, const json_t *body)
{
	BrokerReply	reply = {.status = 200};
	int64_t		requests[6];

	(void) id;
	(void) body;
	broker_http_requests(requests);
	broker_begin();
	reply.text = broker_metrics(requests);
	broker_end();
	if (reply.text == NULL)
		return broker_reply_error(503, "out of memory");
	return reply;
}

const BrokerRoute broker_routes[] = {
	{"GET", "/healthz", false, true, serve_health},
	{"GET", "/metrics", false, false, serve_metrics},
	{"GET", "/v1/donors", false, false, broker_donors_list},
	{"POST", "/v1/donors", true, false, broker_donors_register},
	{"DELETE", "/v1/donors/*", true, false, broker_donors_leave},
	{"POST", "/v1/donors/*/heartbeat", true, false, broker_donors_heartbeat},
	{"POST", "/v1/donors/*/drain", false, false, broker_donors_drain},
	{"GET", "/v1/leases", false, false, broker_leases_list},
	{"POST", "/v1/leases", true, false, broker_leases_create},
	{"DELETE", "/v1/leases/*", true, false, broker_leases_release},
	{"POST", "/v1/leases/*/renew", true, false, broker_leases_renew},
	{"POST", "/v1/leases/*/revoke", false, false, broker_leases_revoke},
	{.path = NULL}
};
