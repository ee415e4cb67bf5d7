/*-------------------------------------------------------------------------
 *
 * top.c
 *	  remote_bp_ctl top: what a server's tier does, refreshed.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/ctl/ctl.h"
#include "common/clock.h"

static const char query[] =
"SELECT json_build_object("
" 'at', to_char(clock_timestamp(), 'YYYY-MM-DD HH24:MI:SS'),"
" 'version', current_setting('server_version'),"
" 'block_size', current_setting('block_size')::int,"
" 'age', extract(epoch FROM clock_timestamp() - s.stats_reset)::float8,"
" 'tier', row_to_json(s),"
" 'latencies', (SELECT coalesce(json_agg(l), '[]') FROM remote_bp_stat_latency l WHERE calls > 0),"
" 'donors', (SELECT coalesce(json_agg(d ORDER BY donor), '[]') FROM remote_bp_stat_donors d),"
" 'leases', (SELECT coalesce(json_agg(l), '[]') FROM"
"  (SELECT lease, purpose, count(*) AS regions, sum(bytes)::bigint AS bytes, sum(used_bytes)::bigint AS used_bytes,"
"   (extract(epoch FROM min(expires_in)) * 1000)::bigint AS expires_ms"
"   FROM remote_bp_leases GROUP BY lease, purpose ORDER BY purpose, lease) l),"
" 'advice', (SELECT coalesce(json_agg(a ORDER BY tier_size), '[]') FROM remote_bp_advice a))"
" FROM remote_bp_stat s";

static const CtlColumn latency_columns[] = {
	{"OPERATION", "operation", ctl_put_text, false},
	{"CALLS", "calls", ctl_put_count, true},
	{"MEAN", "mean_us", ctl_put_us, true},
	{"MEDIAN", "p50_us", ctl_put_us, true},
	{"P90", "p90_us", ctl_put_us, true},
	{"P99", "p99_us", ctl_put_us, true},
	{NULL, NULL, NULL, false}
};

static const CtlColumn donor_columns[] = {
	{"DONOR", "donor", ctl_put_text, false},
	{"STATE", "state", ctl_put_text, false},
	{"TRANSPORT", "transport", ctl_put_text, false},
	{"LEASED", "leased_bytes", ctl_put_bytes, true},
	{"USED", "used_bytes", ctl_put_bytes, true},
	{"READS", "reads", ctl_put_count, true},
	{"FAILURES", "failures", ctl_put_count, true},
	{"MEDIAN", "read_p50_us", ctl_put_us, true},
	{"P99", "read_p99_us", ctl_put_us, true},
	{NULL, NULL, NULL, false}
};

static const CtlColumn lease_columns[] = {
	{"LEASE", "lease", ctl_put_text, false},
	{"PURPOSE", "purpose", ctl_put_text, false},
	{"REGIONS", "regions", ctl_put_count, true},
	{"SIZE", "bytes", ctl_put_bytes, true},
	{"USED", "used_bytes", ctl_put_bytes, true},
	{"ENDS IN", "expires_ms", ctl_put_ms_as_seconds, true},
	{NULL, NULL, NULL, false}
};

/* Where pages that were not in shared buffers came from, and the counters of that */
static const struct
{
	const char *name;
	const char *counter;
}			places[] = {
	{"donors", "hits"}, {"staging", "staged_hits"}, {"page cache", "page_cache_reads"},
	{"disk", "disk_reads"}, {"file (not asked)", "misses"}
};

#define PLACES	5

/* Reads since the reset */
typedef struct Reads
{
	double		all;
	double		from[PLACES];
} Reads;

/* Of the last refresh */
static bool has_before;
static Reads before;
static int64_t before_ns;

/*
 * ---- what there is to see ----------------------------------------------------
 */

static Reads
reads_of(const json_t *tier)
{
	Reads		reads = {0};

	for (int i = 0; i < PLACES; i++)
	{
		double		n = ctl_number_of(tier, places[i].counter);

		/* of the misses, those of which the page cache was not asked */
		if (i == PLACES - 1)
			n -= ctl_number_of(tier, "page_cache_reads") + ctl_number_of(tier, "disk_reads");
		/* counters are not read at the same moment */
		reads.from[i] = n > 0 ? n : 0;
		reads.all += reads.from[i];
	}
	return reads;
}

static void
show_reads(FILE *out, const Reads *reads, const Reads *since, double seconds)
{
	double		all = reads->all - since->all;

	if (all <= 0 || seconds <= 0)
	{
		fprintf(out, "none\n");
		return;
	}
	fprintf(out, "%.0f a second:", all / seconds);
	for (int i = 0; i < PLACES; i++)
		fprintf(out, "%s %.1f %% %s", i > 0 ? "," : "",
				100 * (reads->from[i] - since->from[i]) / all, places[i].name);
	fprintf(out, "\n");
}

/* Reads since the reset, and since the last refresh if there has been no reset */
static void
show_hit_ratio(FILE *out, const json_t *answer)
{
	Reads		now = reads_of(json_object_get(answer, "tier"));
	const Reads none = {0};
	int64_t		now_ns = rbp_now_ns();
	double		age = ctl_number_of(answer, "age");

	fprintf(out, "reads, last %.0f s: ", age);
	show_reads(out, &now, &none, age);
	if (has_before && now.all >= before.all)
	{
		double		seconds = (double) (now_ns - before_ns) / 1e9;

		fprintf(out, "reads, last %.1f s: ", seconds);
		show_reads(out, &now, &before, seconds);
	}
	has_before = true;
	before = now;
	before_ns = now_ns;
}

static void
show_tier(FILE *out, const json_t *answer)
{
	const json_t *tier = json_object_get(answer, "tier");
	json_int_t	block_size = ctl_int_of(answer, "block_size");
	bool		usable = json_is_true(json_object_get(tier, "usable"));
	char		leased[32];
	char		used[32];

	fprintf(out, "tier: %s%s, %s leased, %s in use\n",
			usable ? "usable" : "not usable: ",
			usable ? "" : ctl_text_of(tier, "unusable_reason"),
			rbp_format_size((uint64_t) (ctl_int_of(tier, "online_pages") * block_size), leased, sizeof(leased)),
			rbp_format_size((uint64_t) (ctl_int_of(tier, "remote_pages") * block_size), used, sizeof(used)));
}

/* Returns false if the server does not answer. */
static bool
show_server(RbpServer *server, FILE *out)
{
	json_t	   *answer = rbp_server_query(server, query);
	const json_t *rows;

	if (answer == NULL)
	{
		has_before = false;
		fprintf(out, "the server does not answer: %s\n", rbp_server_error(server));
		return false;
	}
	fprintf(out, "remote_bp on PostgreSQL %s, %s\n", ctl_text_of(answer, "version"),
			ctl_text_of(answer, "at"));
	show_tier(out, answer);
	show_hit_ratio(out, answer);
	fprintf(out, "\n");
	ctl_table_print(out, latency_columns, json_object_get(answer, "latencies"));
	fprintf(out, "\n");
	rows = json_object_get(answer, "advice");
	if (json_array_size(rows) > 0)
		ctl_advice_print(out, rows);
	else
		fprintf(out, "no advice: remote_bp.advice is off\n");
	fprintf(out, "\n");
	ctl_table_print(out, donor_columns, json_object_get(answer, "donors"));
	fprintf(out, "\n");
	ctl_table_print(out, lease_columns, json_object_get(answer, "leases"));
	json_decref(answer);
	return true;
}

/* Returns false if the broker does not answer. */
static bool
show_broker(RbpHttp *http, FILE *out)
{
	static const struct
	{
		const char *path;
		void		(*show) (FILE *out, const json_t *answer);
	}			lists[] = {
		{"/v1/donors", ctl_show_donors},
		{"/v1/leases", ctl_show_leases},
	};

	for (int i = 0; i < 2; i++)
	{
		json_t	   *answer;
		int			status = rbp_http_request(http, "GET", lists[i].path, NULL, &answer);

		if (status < 200 || status > 299 || answer == NULL)
		{
			fprintf(out, "\nthe broker does not answer: %s\n", rbp_http_error(http));
			json_decref(answer);
			return false;
		}
		fprintf(out, "\n%s", i == 0 ? "the broker's:\n" : "");
		lists[i].show(out, answer);
		json_decref(answer);
	}
	return true;
}

bool
ctl_top(const CtlSources *sources)
{
	bool		ok = show_server(sources->server, stdout);

	if (sources->http != NULL)
		ok &= show_broker(sources->http, stdout);
	return ok;
}
