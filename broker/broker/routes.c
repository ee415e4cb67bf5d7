/*-------------------------------------------------------------------------
 *
 * routes.c
 *	  What the broker answers, to whom, and who does it.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/donors.h"
#include "broker/broker/http.h"
#include "broker/broker/leases.h"
#include "broker/broker/schema.h"
#include "broker/broker/state.h"
#include "broker/broker/store.h"
#include "common/clock.h"
#include "common/limits.h"
#include "common/token.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOCK_PROBE_MS		1000
#define MAX_GRACE_MS		3600000
#define MAX_REVISION		(INT64_C(1) << 53)

/*
 * ---- bodies ---------------------------------------------------------------------
 */

static const BrokerMember registration[] = {
	{"id", BODY_TEXT, true, 1, RBP_DONOR_ID_LEN - 1},
	{"host", BODY_TEXT, true, 1, RBP_HOST_LEN - 1},
	{"port", BODY_INT, false, 0, 65535},
	{"rdma_host", BODY_TEXT, false, 0, RBP_HOST_LEN - 1},
	{"rdma_port", BODY_INT, false, 0, 65535},
	{"shm_name", BODY_TEXT, false, 0, BROKER_MAX_NAME},
	{"boot_id", BODY_TEXT, false, 0, BROKER_MAX_NAME},
	{"instance", BODY_TEXT, true, 1, BROKER_MAX_NAME},
	{"region_size", BODY_INT, true, INT64_C(1) << 20, INT64_C(1) << 40},
	{"regions", BODY_INT, true, 1, RBP_DONOR_MAX_REGIONS},
	{"grace_ms", BODY_INT, false, 0, MAX_GRACE_MS},
	{"transports", BODY_ARRAY, false, 0, 0},
	{"clean", BODY_ARRAY, false, 0, 0},
	{"leases", BODY_ARRAY, false, 0, 0},
	{"revision", BODY_INT, false, 0, MAX_REVISION},
	{"draining", BODY_BOOL, false, 0, 0},
	{.key = NULL}
};

static const BrokerMember heartbeat[] = {
	{"instance", BODY_TEXT, true, 1, BROKER_MAX_NAME},
	{"revision", BODY_INT, true, 0, INT64_MAX},
	{"want_back", BODY_INT, false, 0, INT64_MAX},
	{"grace_ms", BODY_INT, false, 0, MAX_GRACE_MS},
	{"draining", BODY_BOOL, false, 0, 0},
	{"clean", BODY_ARRAY, false, 0, 0},
	{"ended", BODY_ARRAY, false, 0, 0},
	{.key = NULL}
};

static const BrokerMember leaving[] = {
	{"instance", BODY_TEXT, true, 1, BROKER_MAX_NAME},
	{.key = NULL}
};

static const BrokerMember new_lease[] = {
	{"client", BODY_TEXT, true, 1, RBP_CLIENT_LEN - 1},
	{"instance", BODY_TEXT, true, 1, BROKER_MAX_NAME},
	{"purpose", BODY_TEXT, true, 1, BROKER_MAX_NAME},
	{"bytes", BODY_INT, true, 0, BROKER_MAX_SIZE},
	{"ttl_ms", BODY_INT, true, BROKER_MIN_TTL_MS, BROKER_MAX_TTL_MS},
	{"keep_ms", BODY_INT, false, 0, BROKER_MAX_TTL_MS},
	{"elsewhere", BODY_BOOL, false, 0, 0},
	{.key = NULL}
};

static const BrokerMember renewal[] = {
	{"secret", BODY_TEXT, true, 2 * RBP_SECRET_LEN, 2 * RBP_SECRET_LEN},
	{"bytes", BODY_INT, false, 0, BROKER_MAX_SIZE},
	{"ttl_ms", BODY_INT, false, BROKER_MIN_TTL_MS, BROKER_MAX_TTL_MS},
	{"keep_ms", BODY_INT, false, 0, BROKER_MAX_TTL_MS},
	{"new_secret", BODY_TEXT, false, 2 * RBP_SECRET_LEN, 2 * RBP_SECRET_LEN},
	{"client", BODY_TEXT, false, 1, RBP_CLIENT_LEN - 1},
	{"instance", BODY_TEXT, false, 1, BROKER_MAX_NAME},
	{"release", BODY_ARRAY, false, 0, 0},
	{"ahead", BODY_INT, false, 0, BROKER_MAX_SIZE},
	{"donors", BODY_ARRAY, false, 0, 0},
	{"elsewhere", BODY_BOOL, false, 0, 0},
	{.key = NULL}
};

static const BrokerMember giving_back[] = {
	{"secret", BODY_TEXT, true, 2 * RBP_SECRET_LEN, 2 * RBP_SECRET_LEN},
	{.key = NULL}
};

/*
 * ---- what is about the broker itself ---------------------------------------------
 */

/*
 * Healthy means that the state can be had: a broker whose lock is stuck is
 * not.
 */
static BrokerReply
serve_health(const char *id, json_t *body)
{
	int64_t		until = rbp_mono_ms() + LOCK_PROBE_MS;
	struct timespec ts = {.tv_sec = until / 1000,.tv_nsec = until % 1000 * 1000000};

	if (pthread_mutex_clocklock(&broker.lock, CLOCK_MONOTONIC, &ts) != 0)
		return broker_reply_error(503, "the broker's state is locked");
	pthread_mutex_unlock(&broker.lock);
	return broker_reply(200, strdup("{\"status\":\"ok\",\"version\":\"" RBP_VERSION "\"}"));
}

/*
 * ---- whose a request is ------------------------------------------------------------
 */

#define SERVER		(1u << RBP_ROLE_SERVER)
#define DONOR		(1u << RBP_ROLE_DONOR)
#define OPERATOR	(1u << RBP_ROLE_OPERATOR)
#define WATCHERS	(OPERATOR | 1u << RBP_ROLE_MONITOR)

/* Is this the name, or does it begin with it and the separator? */
static bool
covers(const char *name, const char *text, char separator)
{
	size_t		len = strlen(name);

	return strncmp(name, text, len) == 0 && (text[len] == '\0' || text[len] == separator);
}

/* The donor of the path, else that which registers. */
static char *
foreign_donor(const char *name, const char *id, const json_t *body)
{
	const char *donor = id[0] != '\0' ? id : json_string_value(json_object_get(body, "id"));

	return covers(name, donor, ':') ? NULL : strdup(donor);
}

/* The lease's client, and the one that is to have it.  See told.c for one that is told of. */
static char *
foreign_client(const char *name, const char *id, const json_t *body)
{
	const char *told = json_string_value(json_object_get(body, "client"));
	char	   *holder = broker_get_text("SELECT client FROM lease WHERE id = ?1 AND told_by IS NULL", TEXT(id));

	if (holder != NULL && !covers(name, holder, '/'))
		return holder;
	free(holder);
	return told == NULL || covers(name, told, '/') ? NULL : strdup(told);
}

const BrokerRoute broker_routes[] = {
	{"GET", "/healthz", NULL, 0, NULL, ROUTE_PROBE, serve_health},
	{"GET", "/metrics", NULL, WATCHERS, NULL, ROUTE_UNLOCKED, broker_metrics},
	{"GET", "/v1/donors", NULL, WATCHERS, NULL, ROUTE_PLAIN, broker_donors_list},
	{"POST", "/v1/donors", registration, DONOR, foreign_donor, ROUTE_PLAIN, broker_donors_register},
	{"DELETE", "/v1/donors/*", leaving, DONOR, foreign_donor, ROUTE_PLAIN, broker_donors_leave},
	{"POST", "/v1/donors/*/heartbeat", heartbeat, DONOR, foreign_donor, ROUTE_SERIAL, broker_donors_heartbeat},
	{"POST", "/v1/donors/*/drain", NULL, OPERATOR, NULL, ROUTE_PLAIN, broker_donors_drain},
	{"POST", "/v1/donors/*/undrain", NULL, OPERATOR, NULL, ROUTE_PLAIN, broker_donors_undrain},
	{"POST", "/v1/donors/*/forget", NULL, OPERATOR, NULL, ROUTE_PLAIN, broker_donors_forget},
	{"GET", "/v1/leases", NULL, WATCHERS, NULL, ROUTE_PLAIN, broker_leases_list},
	{"POST", "/v1/leases", new_lease, SERVER, foreign_client, ROUTE_PLAIN, broker_leases_create},
	{"DELETE", "/v1/leases/*", giving_back, SERVER, foreign_client, ROUTE_PLAIN, broker_leases_release},
	{"POST", "/v1/leases/*/renew", renewal, SERVER, foreign_client, ROUTE_PLAIN, broker_leases_renew},
	{"POST", "/v1/leases/*/revoke", NULL, OPERATOR, NULL, ROUTE_PLAIN, broker_leases_revoke},
	{.path = NULL}
};

_Static_assert(sizeof(broker_routes) / sizeof(broker_routes[0]) <= BROKER_MAX_ROUTES, "BROKER_MAX_ROUTES");
