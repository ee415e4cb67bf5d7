/*-------------------------------------------------------------------------
 *
 * brokers.c
 *	  remote_bp_ctl brokers: see brokers.h.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/ctl/ctl.h"

#include <stdlib.h>
#include <string.h>

/* Donors that the broker has heard of lately */
static json_int_t
followers(const json_t *donors)
{
	json_int_t	n = 0;
	size_t		i;
	const json_t *donor;

	json_array_foreach(json_object_get(donors, "donors"), i, donor)
	{
		n += strcmp(ctl_text_of(donor, "state"), "up") == 0 || strcmp(ctl_text_of(donor, "state"), "draining") == 0;
	}
	return n;
}

json_t *
ctl_brokers(RbpHttp *http)
{
	json_t	   *list = json_array();

	for (int n = 0; rbp_http_use(http, n); n++)
	{
		json_t	   *health = NULL;
		json_t	   *donors = NULL;
		json_t	   *leases = NULL;
		bool		answers = rbp_http_request(http, "GET", "/healthz", NULL, &health) == 200 &&
		rbp_http_request(http, "GET", "/v1/donors", NULL, &donors) == 200 &&
		rbp_http_request(http, "GET", "/v1/leases", NULL, &leases) == 200;

		json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:I, s:s}", "url", rbp_http_url(http),
											  "version", answers ? ctl_text_of(health, "version") : "",
											  "donors", answers ? followers(donors) : (json_int_t) 0,
											  "leases", (json_int_t) json_array_size(json_object_get(leases, "leases")),
											  "error", answers ? "" : rbp_http_error(http)));
		json_decref(health);
		json_decref(donors);
		json_decref(leases);
	}
	return json_pack("{s:o}", "brokers", list);
}

static const CtlColumn columns[] = {
	{"BROKER", "url", ctl_put_text, false},
	{"VERSION", "version", ctl_put_text, false},
	{"DONORS", "donors", ctl_put_count, true},
	{"LEASES", "leases", ctl_put_count, true},
	{"ERROR", "error", ctl_put_text, false},
	{NULL, NULL, NULL, false}
};

void
ctl_brokers_print(FILE *out, const json_t *answer)
{
	const json_t *list = json_object_get(answer, "brokers");
	int			followed = 0;
	size_t		i;
	const json_t *broker;

	json_array_foreach(list, i, broker)
	{
		followed += ctl_int_of(broker, "donors") > 0;
	}
	ctl_table_print(out, columns, list);
	if (followed > 1)
		fprintf(out, "warning: donors follow %d brokers; for some seconds after a change, or while the network is split\n", followed);
}
