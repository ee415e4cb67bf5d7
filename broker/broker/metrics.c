/*-------------------------------------------------------------------------
 *
 * metrics.c
 *	  GET /metrics: Prometheus' text format.
 *
 * What is in the tables is copied under broker.lock, by one statement about donors
 * and one about leases, and becomes text when nobody waits for the lock any more.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/http.h"
#include "broker/broker/schema.h"
#include "broker/broker/state.h"
#include "broker/broker/store.h"
#include "common/limits.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define DONOR_VALUES		17
#define CLIENTS_SHOWN		100
#define OTHER_CLIENTS		"other"

/* In the order of the statement's columns; the lines of one metric follow each other. */
static const struct
{
	const char *name;			/* after remote_bp_ */
	const char *state;			/* label, or NULL */
	const char *type;
	const char *help;
}			donor_metrics[DONOR_VALUES] = {

	{"donor_state", "up", "gauge", "1 for the state the donor is in."},
	{"donor_state", "draining", NULL, NULL},
	{"donor_state", "away", NULL, NULL},
	{"donor_state", "gone", NULL, NULL},
	{"donor_regions", "leased", "gauge", "Regions of the donor, by what they are."},
	{"donor_regions", "free", NULL, NULL},
	{"donor_regions", "dirty", NULL, NULL},
	{"donor_bytes", NULL, "gauge", "Memory that the donor offers."},
	{"donor_leased_bytes", NULL, "gauge", "Memory of the donor that is leased."},
	{"donor_want_back_bytes", NULL, "gauge", "Memory that the donor wants back for its machine."},
	{"donor_heard_seconds", NULL, "gauge", "Time since the donor was heard of."},
	{"donor_connections", NULL, "gauge", "Connections to the donor."},
	{"donor_reads_total", NULL, "counter", "Reads that the donor has served over TCP."},
	{"donor_writes_total", NULL, "counter", "Writes that the donor has served over TCP."},
	{"donor_denied_total", NULL, "counter", "Wrong proofs, and accesses to memory that is not leased to the client."},
	{"donor_read_bytes_total", NULL, "counter", "What was read from the donor over TCP."},
	{"donor_written_bytes_total", NULL, "counter", "What was written to the donor over TCP."},
};

static const char *const donor_values =
"SELECT id, state = 'up', state = 'draining', state = 'away', state = 'gone', leased, regions - leased - dirty, dirty,"
" regions * region_size, leased * region_size, want_back * region_size, format('%.3f', silent_ms / 1000.0),"
" stats ->> 'connections', stats ->> 'reads', stats ->> 'writes', stats ->> 'denied', stats ->> 'bytes_read', stats ->> 'bytes_written'"
" FROM donor_now ORDER BY id";

typedef struct DonorRow
{
	char		id[RBP_DONOR_ID_LEN];
	char		values[DONOR_VALUES][24];	/* "": it has not told since the
											 * broker started */
} DonorRow;

/*
 * A lease that has lapsed claims no more than it has.  Nor does one that donors have told of and nobody has
 * proven yet (key < 0): each of its donors has told all that it wanted.
 */
static const char *const lease_values =
"SELECT client, purpose = 'temp', count(DISTINCT id), sum(bytes), cast(total(iif(deadline > now_ms() AND key > 0, wanted, bytes)) AS INTEGER)"
" FROM lease JOIN lease_term ON lease_term.lease = lease.key GROUP BY client, purpose"
" ORDER BY max(sum(bytes), total(wanted)) DESC";

static const char *const purposes[] = {"buffer", "temp"};

/* What a client, or all others, have for a purpose */
typedef struct LeaseRow
{
	char		client[RBP_CLIENT_LEN];
	int			purpose;
	double		bytes;
	double		wanted;
} LeaseRow;

static const struct
{
	const char *name;
	const char *help;
}			counter_metrics[BROKER_COUNTERS] = {

	[LEASES_CREATED] = {"leases_created_total", "Leases given out."},
	[LEASES_RENEWED] = {"leases_renewed_total", "Renewals."},
	[LEASES_EXPIRED] = {"leases_expired_total", "Leases that nobody renewed."},
	[LEASES_REVOKED] = {"leases_revoked_total", "Leases that an operator revoked."},
	[LEASES_RELEASED] = {"leases_released_total", "Leases given back."},
	[LEASES_TAKEN_OVER] = {"leases_taken_over_total", "Leases ended by another instance of their client."},
	[LEASES_ADOPTED] = {"adopted_leases_total", "Leases that this broker has learned of from donors, and that were renewed."},
	[REGIONS_GRANTED] = {"regions_granted_total", "Regions granted."},
	[REGIONS_RELEASED] = {"regions_released_total", "Regions given back by their holders."},
	[REGIONS_TAKEN] = {"regions_taken_total", "Regions taken after the grace time."},
	[REGIONS_LOST] = {"regions_lost_total", "Leased regions lost with their donor, or ended by its clock."},
	[REGIONS_CLEANED] = {"regions_cleaned_total", "Regions that donors reported clean again."},
	[HEARTBEATS] = {"heartbeats_total", "Heartbeats of donors."},
	[REGISTRATIONS] = {"registrations_total", "Registrations of donors."},
};

typedef struct Snapshot
{
	int64_t		counters[BROKER_COUNTERS];
	int64_t		lock_wait_ns;
	int			ndonors;
	DonorRow	donors[BROKER_MAX_DONORS];
	int64_t		leases[2];		/* by purpose */
	int			nrows;
	LeaseRow	rows[2 + CLIENTS_SHOWN];	/* the first two: all others */
} Snapshot;

/*
 * ---- under the lock -----------------------------------------------------------
 */

static void
copy_donors(Snapshot *s)
{
	BrokerRows *rows = broker_query(donor_values);

	while (broker_next(rows))
	{
		DonorRow   *donor = &s->donors[s->ndonors];

		if (s->ndonors == BROKER_MAX_DONORS)
			continue;
		snprintf(donor->id, sizeof(donor->id), "%s", broker_text(rows, 0));
		for (int i = 0; i < DONOR_VALUES; i++)
		{
			const char *value = broker_text(rows, 1 + i);

			snprintf(donor->values[i], sizeof(donor->values[i]), "%s", value != NULL ? value : "");
		}
		s->ndonors++;
	}
}

/* The largest come first.  A client that has the others' name is one of them. */
static void
copy_leases(Snapshot *s)
{
	BrokerRows *rows = broker_query(lease_values);

	while (broker_next(rows))
	{
		const char *client = broker_text(rows, 0);
		int			purpose = broker_int(rows, 1) != 0;
		LeaseRow   *row = &s->rows[purpose];

		if (s->nrows < 2 + CLIENTS_SHOWN && strcmp(client, OTHER_CLIENTS) != 0)
		{
			row = &s->rows[s->nrows++];
			snprintf(row->client, sizeof(row->client), "%s", client);
			row->purpose = purpose;
		}
		s->leases[purpose] += broker_int(rows, 2);
		row->bytes += (double) broker_int(rows, 3);
		row->wanted += (double) broker_int(rows, 4);
	}
}

/*
 * ---- text ---------------------------------------------------------------------
 */

static void
head(FILE *out, const char *name, const char *type, const char *help)
{
	fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A metric of one line */
static void
put(FILE *out, const char *name, const char *type, double value, const char *help)
{
	head(out, name, type, help);
	fprintf(out, "%s %.15g\n", name, value);
}

/* Printable ASCII, as all that is in the tables */
static void
put_label(FILE *out, const char *text)
{
	for (; *text != '\0'; text++)
		fprintf(out, "%s%c", strchr("\\\"", *text) != NULL ? "\\" : "", *text);
}

static void
put_donors(FILE *out, const Snapshot *s)
{
	char		name[64] = "";

	for (int i = 0; i < DONOR_VALUES; i++)
	{
		if (donor_metrics[i].type != NULL)
		{
			snprintf(name, sizeof(name), "remote_bp_%s", donor_metrics[i].name);
			head(out, name, donor_metrics[i].type, donor_metrics[i].help);
		}
		for (int d = 0; d < s->ndonors; d++)
		{
			if (s->donors[d].values[i][0] == '\0')
				continue;
			fprintf(out, "%s{donor=\"", name);
			put_label(out, s->donors[d].id);
			if (donor_metrics[i].state != NULL)
				fprintf(out, "\",state=\"%s", donor_metrics[i].state);
			fprintf(out, "\"} %s\n", s->donors[d].values[i]);
		}
	}
}

static void
put_leases(FILE *out, const Snapshot *s)
{
	head(out, "remote_bp_leases", "gauge", "Live leases.");
	for (int i = 0; i < 2; i++)
		fprintf(out, "remote_bp_leases{purpose=\"%s\"} %" PRId64 "\n", purposes[i], s->leases[i]);
	for (int wanted = 0; wanted < 2; wanted++)
	{
		const char *name = wanted ? "remote_bp_lease_wanted_bytes" : "remote_bp_lease_bytes";

		head(out, name, "gauge", wanted ? "Memory that live leases want." :
			 "Memory that live leases have; of all but the largest in one sum.");
		for (const LeaseRow *row = s->rows; row < s->rows + s->nrows; row++)
		{
			fprintf(out, "%s{client=\"", name);
			put_label(out, row->client);
			fprintf(out, "\",purpose=\"%s\"} %.0f\n", purposes[row->purpose], wanted ? row->wanted : row->bytes);
		}
	}
}

static void
put_requests(FILE *out)
{
	head(out, "remote_bp_http_requests_total", "counter", "Requests answered, by class of status.");
	for (int i = 2; i <= 5; i++)
		fprintf(out, "remote_bp_http_requests_total{status=\"%dxx\"} %" PRId64 "\n",
				i, (int64_t) atomic_load(&broker_http_requests[i]));
	put(out, "remote_bp_http_refused_total", "counter", (double) atomic_load(&broker_http_refused),
		"Requests with a credential or a lease's secret that is missing, wrong, or not good for this.");
	head(out, "remote_bp_request_seconds", "histogram", "Time that requests took, but for waiting for news.");
	for (int r = 0; broker_routes[r].path != NULL; r++)
	{
		const BrokerRoute *route = &broker_routes[r];
		int64_t		count = 0;

		for (int i = 0; i <= BROKER_TIME_BOUNDS; i++)
		{
			char		bound[16] = "+Inf";

			count += atomic_load(&broker_http_times[r].counts[i]);
			if (i < BROKER_TIME_BOUNDS)
				snprintf(bound, sizeof(bound), "%g", (double) broker_http_bounds_ms[i] / 1000);
			fprintf(out, "remote_bp_request_seconds_bucket{route=\"%s %s\",le=\"%s\"} %" PRId64 "\n",
					route->method, route->path, bound, count);
		}
		fprintf(out, "remote_bp_request_seconds_sum{route=\"%s %s\"} %.6f\n", route->method, route->path,
				(double) atomic_load(&broker_http_times[r].sum_ns) / 1e9);
		fprintf(out, "remote_bp_request_seconds_count{route=\"%s %s\"} %" PRId64 "\n", route->method, route->path, count);
	}
}

/* By the names that Prometheus' own libraries use; what cannot be had is left out. */
static void
put_process(FILE *out)
{
	struct rlimit limit;
	FILE	   *statm = fopen("/proc/self/statm", "re");
	DIR		   *fds = opendir("/proc/self/fd");
	long		pages;
	int			open_fds = -3;	/* ".", ".." and that of the directory */

	put(out, "process_start_time_seconds", "gauge",
		(double) broker.started, "Start of the broker, since 1970.");
	if (statm != NULL && fscanf(statm, "%*d %ld", &pages) == 1)
		put(out, "process_resident_memory_bytes", "gauge",
			(double) pages * (double) sysconf(_SC_PAGESIZE), "Memory of the broker.");
	if (statm != NULL)
		fclose(statm);
	if (fds != NULL)
	{
		while (readdir(fds) != NULL)
			open_fds++;
		closedir(fds);
		put(out, "process_open_fds", "gauge", open_fds, "Open files and connections.");
	}
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
		put(out, "process_max_fds", "gauge", (double) limit.rlim_cur, "Files and connections that may be open.");
}

static void
put_all(FILE *out, const Snapshot *s)
{
	put(out, "remote_bp_broker_insecure", "gauge", broker.insecure,
		"1 if whoever reaches the broker may do everything, from other machines, too.");
	put(out, "remote_bp_broker_lock_wait_seconds_total", "counter", (double) s->lock_wait_ns / 1e9,
		"Time that requests have waited for the broker's state.");
	head(out, "remote_bp_broker_info", "gauge", "1; the label tells the version.");
	fprintf(out, "remote_bp_broker_info{version=\"" RBP_VERSION "\"} 1\n");
	put_donors(out, s);
	put_leases(out, s);
	for (int i = 0; i < BROKER_COUNTERS; i++)
	{
		char		name[64];

		snprintf(name, sizeof(name), "remote_bp_%s", counter_metrics[i].name);
		put(out, name, "counter", (double) s->counters[i], counter_metrics[i].help);
	}
	put_requests(out);
	put_process(out);
}

/* Not called under the lock. */
BrokerReply
broker_metrics(const char *id, json_t *body)
{
	BrokerReply reply = {200, "text/plain; version=0.0.4; charset=utf-8", NULL, false};
	Snapshot   *s = calloc(1, sizeof(Snapshot));
	size_t		len;
	FILE	   *out = s != NULL ? open_memstream(&reply.text, &len) : NULL;

	if (out == NULL)
	{
		free(s);
		return broker_reply_error(503, "out of memory");
	}
	for (; s->nrows < 2; s->nrows++)
	{
		strcpy(s->rows[s->nrows].client, OTHER_CLIENTS);
		s->rows[s->nrows].purpose = s->nrows;
	}
	broker_begin();
	copy_donors(s);
	copy_leases(s);
	s->lock_wait_ns = broker.lock_wait_ns;
	memcpy(s->counters, broker.counters, sizeof(s->counters));
	(void) broker_end();
	put_all(out, s);
	free(s);
	if (fclose(out) != 0)
	{
		free(reply.text);
		return broker_reply_error(503, "out of memory");
	}
	return reply;
}
