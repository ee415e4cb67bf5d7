/*-------------------------------------------------------------------------
 *
 * metrics.c
 *	  GET /metrics: Prometheus' text format.
 *
 * Label values are donors' ids, purposes and the like, none of which can hold a
 * character that would need quoting.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/http.h"
#include "broker/broker/state.h"
#include "broker/broker/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct Metric
{
	const char *name;			/* after remote_bp_ */
	const char *help;
	const char *sql;			/* labels and values; none of a counter */
} Metric;

static const Metric gauges[] = {
	{"broker_info", "1; the label tells the version.",
	"SELECT 'version=\"" RBP_VERSION "\"', 1"},
	{"donor_state", "1 for the state the donor is in.",
		"SELECT format('donor=\"%s\",state=\"%s\"', d.id, s.value), s.value = state"
	" FROM donor_now d, json_each('[\"up\",\"draining\",\"away\",\"gone\"]') s ORDER BY d.id, s.key"},
	{"donor_regions", "Regions of the donor, by what they are.",
		"SELECT format('donor=\"%s\",state=\"%s\"', d.id, c.key), c.value FROM donor_now d,"
		" json_each(json_object('leased', leased, 'free', regions - leased - dirty, 'dirty', dirty)) c"
	" ORDER BY d.id, c.id"},
	{"donor_bytes", "Memory that the donor offers.",
	"SELECT format('donor=\"%s\"', id), regions * region_size FROM donor ORDER BY id"},
	{"donor_leased_bytes", "Memory of the donor that is leased.",
	"SELECT format('donor=\"%s\"', id), leased * region_size FROM donor_now ORDER BY id"},
	{"donor_heard_seconds", "Time since the donor was heard of.",
	"SELECT format('donor=\"%s\"', id), format('%.3f', silent_ms / 1000.0) FROM donor_now ORDER BY id"},
	{"donor_reported", "Numbers that the donor reports of itself.",
		"SELECT format('donor=\"%s\",name=\"%s\"', d.id, s.key), s.value"
	" FROM donor_now d, json_each(stats) s ORDER BY d.id, s.id"},
	{"leases", "Live leases.",
		"SELECT format('purpose=\"%s\"', value), count(lease) FROM json_each('[\"buffer\",\"temp\"]')"
	" LEFT JOIN lease_now ON purpose = value GROUP BY value"},
	{"lease_bytes", "Memory that live leases have.",
		"SELECT format('purpose=\"%s\"', value), ifnull(sum(bytes), 0) FROM json_each('[\"buffer\",\"temp\"]')"
	" LEFT JOIN lease_now ON purpose = value GROUP BY value"},
	{"lease_wanted_bytes", "Memory that live leases want.",
		"SELECT format('purpose=\"%s\"', value), cast(total(wanted) AS INTEGER) FROM json_each('[\"buffer\",\"temp\"]')"
	" LEFT JOIN lease_now ON purpose = value GROUP BY value"},
};

static const Metric counters[BROKER_COUNTERS] = {
	[LEASES_CREATED] = {"leases_created_total", "Leases given out.", NULL},
	[LEASES_RENEWED] = {"leases_renewed_total", "Renewals.", NULL},
	[LEASES_EXPIRED] = {"leases_expired_total", "Leases that nobody renewed.", NULL},
	[LEASES_REVOKED] = {"leases_revoked_total", "Leases that an operator revoked.", NULL},
	[LEASES_RELEASED] = {"leases_released_total", "Leases given back.", NULL},
	[LEASES_TAKEN_OVER] = {"leases_taken_over_total", "Leases ended by another instance of their client.", NULL},
	[REGIONS_GRANTED] = {"regions_granted_total", "Regions granted.", NULL},
	[REGIONS_RELEASED] = {"regions_released_total", "Regions given back by their holders.", NULL},
	[REGIONS_TAKEN] = {"regions_taken_total", "Regions taken after the grace time.", NULL},
	[REGIONS_LOST] = {"regions_lost_total", "Leased regions lost with their donor, or ended by its clock.", NULL},
	[REGIONS_CLEANED] = {"regions_cleaned_total", "Regions that donors reported clean again.", NULL},
	[HEARTBEATS] = {"heartbeats_total", "Heartbeats of donors.", NULL},
	[REGISTRATIONS] = {"registrations_total", "Registrations of donors.", NULL},
};

static void
head(FILE *out, const char *name, const char *type, const char *help)
{
	fprintf(out, "# HELP remote_bp_%s %s\n# TYPE remote_bp_%s %s\n", name, help, name, type);
}

BrokerReply
broker_metrics(const char *id, const json_t *body)
{
	BrokerReply reply = {200, "text/plain; version=0.0.4; charset=utf-8", NULL, false};
	size_t		len;
	FILE	   *out = open_memstream(&reply.text, &len);

	if (out == NULL)
		return broker_reply_error(503, "out of memory");

	head(out, "broker_uptime_seconds", "gauge", "Time since the broker started.");
	fprintf(out, "remote_bp_broker_uptime_seconds %.3f\n",
			(double) (broker_now() - broker.started) / 1000);
	head(out, "broker_state_full", "gauge", "1 if the state file cannot be written: only renewals go on.");
	fprintf(out, "remote_bp_broker_state_full %d\n", broker.full);
	head(out, "broker_insecure", "gauge", "1 if whoever reaches the broker may do everything, from other machines, too.");
	fprintf(out, "remote_bp_broker_insecure %d\n", broker.insecure);
	head(out, "http_requests_total", "counter", "Requests answered, by class of status.");
	for (int i = 2; i <= 5; i++)
		fprintf(out, "remote_bp_http_requests_total{status=\"%dxx\"} %" PRId64 "\n",
				i, (int64_t) atomic_load(&broker_http_requests[i]));
	for (size_t i = 0; i < sizeof(gauges) / sizeof(gauges[0]); i++)
	{
		BrokerRows *rows = broker_query(gauges[i].sql);

		head(out, gauges[i].name, "gauge", gauges[i].help);
		while (broker_next(rows))
			fprintf(out, "remote_bp_%s{%s} %s\n", gauges[i].name,
					broker_text(rows, 0), broker_text(rows, 1));
	}
	for (int i = 0; i < BROKER_COUNTERS; i++)
	{
		head(out, counters[i].name, "counter", counters[i].help);
		fprintf(out, "remote_bp_%s %" PRId64 "\n", counters[i].name, broker.counters[i]);
	}

	if (fclose(out) != 0)
	{
		free(reply.text);
		return broker_reply_error(503, "out of memory");
	}
	return reply;
}
