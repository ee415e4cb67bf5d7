/*-------------------------------------------------------------------------
 *
 * metrics.c
 *	  GET /metrics: Prometheus' text format.
 *
 * Label values are donors' ids and purposes, neither of which can hold a
 * character that would need quoting.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/metrics.h"
#include "broker/broker/model.h"
#include "broker/broker/state.h"
#include "common/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void
head(FILE *out, const char *name, const char *type, const char *help)
{
	fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void
counter(FILE *out, const char *name, const char *help, int64_t value)
{
	head(out, name, "counter", help);
	fprintf(out, "%s %" PRId64 "\n", name, value);
}

static void
donor_gauges(FILE *out)
{
	int64_t		now = rbp_mono_ms();

	head(out, "remote_bp_donor_state", "gauge", "1 for the state the donor is in.");
	for (BrokerDonor *d = broker.donors; d != NULL; d = d->next)
	{
		for (int s = DONOR_UP; s <= DONOR_GONE; s++)
			fprintf(out, "remote_bp_donor_state{donor=\"%s\",state=\"%s\"} %d\n",
					d->id, broker_donor_status_name((BrokerDonorStatus) s),
					(int) broker_donor_status(d, now) == s);
	}
	head(out, "remote_bp_donor_regions", "gauge", "Regions of the donor, by what they are.");
	for (BrokerDonor *d = broker.donors; d != NULL; d = d->next)
		fprintf(out, "remote_bp_donor_regions{donor=\"%s\",state=\"leased\"} %d\n"
				"remote_bp_donor_regions{donor=\"%s\",state=\"free\"} %d\n"
				"remote_bp_donor_regions{donor=\"%s\",state=\"dirty\"} %d\n",
				d->id, d->nleased, d->id,
				d->nregions - d->nleased - d->ndirty, d->id, d->ndirty);
	head(out, "remote_bp_donor_bytes", "gauge", "Memory that the donor offers.");
	for (BrokerDonor *d = broker.donors; d != NULL; d = d->next)
		fprintf(out, "remote_bp_donor_bytes{donor=\"%s\"} %" PRId64 "\n",
				d->id, d->nregions * d->region_size);
	head(out, "remote_bp_donor_leased_bytes", "gauge", "Memory of the donor that is leased.");
	for (BrokerDonor *d = broker.donors; d != NULL; d = d->next)
		fprintf(out, "remote_bp_donor_leased_bytes{donor=\"%s\"} %" PRId64 "\n",
				d->id, d->nleased * d->region_size);
	head(out, "remote_bp_donor_heard_seconds", "gauge", "Time since the donor was heard of.");
	for (BrokerDonor *d = broker.donors; d != NULL; d = d->next)
		fprintf(out, "remote_bp_donor_heard_seconds{donor=\"%s\"} %.3f\n",
				d->id, (double) (now - d->last_heard) / 1000);
	head(out, "remote_bp_donor_reported", "gauge", "Numbers that the donor reports of itself.");
	for (BrokerDonor *d = broker.donors; d != NULL; d = d->next)
	{
		const char *key;
		json_t	   *value;

		json_object_foreach(d->stats, key, value)
			fprintf(out, "remote_bp_donor_reported{donor=\"%s\",name=\"%s\"} %.17g\n",
					d->id, key, json_number_value(value));
	}
}

static void
lease_gauges(FILE *out)
{
	int64_t		count[2] = {0};
	int64_t		bytes[2] = {0};
	int64_t		wanted[2] = {0};
	static const char *const names[] = {"buffer", "temp"};

	for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		count[lease->purpose]++;
		bytes[lease->purpose] += lease->bytes;
		wanted[lease->purpose] += lease->wanted;
	}
	head(out, "remote_bp_leases", "gauge", "Live leases.");
	for (int i = 0; i < 2; i++)
		fprintf(out, "remote_bp_leases{purpose=\"%s\"} %" PRId64 "\n", names[i], count[i]);
	head(out, "remote_bp_lease_bytes", "gauge", "Memory that live leases have.");
	for (int i = 0; i < 2; i++)
		fprintf(out, "remote_bp_lease_bytes{purpose=\"%s\"} %" PRId64 "\n", names[i], bytes[i]);
	head(out, "remote_bp_lease_wanted_bytes", "gauge", "Memory that live leases want.");
	for (int i = 0; i < 2; i++)
		fprintf(out, "remote_bp_lease_wanted_bytes{purpose=\"%s\"} %" PRId64 "\n", names[i], wanted[i]);
}

char *
broker_metrics(const int64_t requests[6])
{
	const BrokerCounters *c = &broker.counters;
	char	   *text = NULL;
	size_t		len;
	FILE	   *out = open_memstream(&text, &len);

	if (out == NULL)
		return NULL;

	head(out, "remote_bp_broker_info", "gauge", "1; the label tells the version.");
	fprintf(out, "remote_bp_broker_info{version=\"%s\"} 1\n", RBP_VERSION);
	head(out, "remote_bp_broker_uptime_seconds", "gauge", "Time since the broker started.");
	fprintf(out, "remote_bp_broker_uptime_seconds %.3f\n",
			(double) (rbp_mono_ms() - broker.started) / 1000);
	head(out, "remote_bp_http_requests_total", "counter", "Requests answered, by class of status.");
	for (int i = 2; i <= 5; i++)
		fprintf(out, "remote_bp_http_requests_total{status=\"%dxx\"} %" PRId64 "\n",
				i, requests[i]);
	donor_gauges(out);
	lease_gauges(out);
	counter(out, "remote_bp_leases_created_total", "Leases given out.", c->leases_created);
	counter(out, "remote_bp_leases_renewed_total", "Renewals.", c->leases_renewed);
	counter(out, "remote_bp_leases_expired_total", "Leases that nobody renewed.", c->leases_expired);
	counter(out, "remote_bp_leases_revoked_total", "Leases that an operator revoked.", c->leases_revoked);
	counter(out, "remote_bp_leases_released_total", "Leases given back.", c->leases_released);
	counter(out, "remote_bp_leases_taken_over_total", "Leases ended by another instance of their client.", c->leases_taken_over);
	counter(out, "remote_bp_regions_granted_total", "Regions granted.", c->regions_granted);
	counter(out, "remote_bp_regions_released_total", "Regions given back by their holders.", c->regions_released);
	counter(out, "remote_bp_regions_taken_total", "Regions taken after the grace time.", c->regions_taken);
	counter(out, "remote_bp_regions_lost_total", "Leased regions lost with their donor, or ended by its clock.", c->regions_lost);
	counter(out, "remote_bp_regions_cleaned_total", "Regions that donors reported clean again.", c->regions_cleaned);
	counter(out, "remote_bp_heartbeats_total", "Heartbeats of donors.", c->heartbeats);
	counter(out, "remote_bp_registrations_total", "Registrations of donors.", c->registrations);

	if (fclose(out) != 0)
	{
		free(text);
		return NULL;
	}
	return text;
}
