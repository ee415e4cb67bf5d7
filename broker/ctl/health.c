/*-------------------------------------------------------------------------
 *
 * health.c
 *	  remote_bp_ctl health: is all well with a broker, and with a server's tier?
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/ctl/ctl.h"
#include "common/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

static const char query[] =
"SELECT json_build_object("
" 'ok', h.ok, 'problem', h.problem, 'since', to_char(h.since, 'YYYY-MM-DD HH24:MI:SS'),"
" 'usable', s.usable, 'reason', s.unusable_reason, 'temp_reason', t.unusable_reason,"
" 'block_size', current_setting('block_size')::int, 'online_pages', s.online_pages, 'remote_pages', s.remote_pages,"
" 'hits', s.hits + s.staged_hits, 'reads', s.hits + s.staged_hits + s.misses,"
" 'age', extract(epoch FROM clock_timestamp() - s.stats_reset)::float8,"
" 'saved_us', (SELECT coalesce(sum(saved_us), 0)::float8 FROM remote_bp_stat_donors),"
" 'donors', (SELECT coalesce(json_agg(d ORDER BY donor), '[]') FROM remote_bp_stat_donors d WHERE bypassed > 0))"
" FROM remote_bp_health h, remote_bp_stat s, remote_bp_stat_spill t";

/* Add a sentence to one of the lists. */
static void
__attribute__((format(printf, 3, 4)))
add(json_t *health, const char *list, const char *fmt,...)
{
	char		text[1024];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	rbp_copy_printable(text, sizeof(text), text, strlen(text));
	json_array_append_new(json_object_get(health, list), json_string(text));
	if (strcmp(list, "problems") == 0)
		json_object_set_new(health, "ok", json_false());
}

static void
add_broker(json_t *health, RbpHttp *http)
{
	static const char *const paths[] = {"/v1/donors", "/v1/leases"};
	json_t	   *answers[2] = {NULL};
	bool		answered = true;
	const json_t *list;
	json_int_t	leased = 0;
	size_t		heard = 0;
	size_t		leases;
	char		size[32];
	size_t		i;
	const json_t *donor;

	for (i = 0; i < 2 && answered; i++)
		answered = rbp_http_request(http, "GET", paths[i], NULL, &answers[i]) == 200 && answers[i] != NULL;
	list = json_object_get(answers[0], "donors");
	leases = json_array_size(json_object_get(answers[1], "leases"));
	if (!answered)
		add(health, "problems", "broker: %s", rbp_http_error(http));
	json_array_foreach(list, i, donor)
	{
		const char *state = ctl_text_of(donor, "state");
		const json_t *locked = json_object_get(json_object_get(donor, "stats"), "locked");

		if (strcmp(state, "away") == 0 || ctl_is_gone(donor))
			add(health, "problems", "donor %s is %s", ctl_text_of(donor, "id"), state);
		else
		{
			heard++;
			leased += ctl_int_of(donor, "region_size") * ctl_int_of(donor, "leased");
			/* donors up to version 1.1 do not tell */
			if (locked != NULL && json_integer_value(locked) == 0)
				add(health, "notes", "donor %s: its memory is not locked, so it may be swapped out", ctl_text_of(donor, "id"));
		}
	}
	if (answered)
		add(health, "summary", "%zu of %zu donor%s heard of, %s leased by %zu lease%s",
			heard, json_array_size(list), RBP_PLURAL(json_array_size(list)),
			rbp_format_size((uint64_t) leased, size, sizeof(size)), leases, RBP_PLURAL(leases));
	json_decref(answers[0]);
	json_decref(answers[1]);
}

/* What somebody has chosen by a setting, whose name comes first; another reason is a problem. */
static void
add_choice(json_t *health, const char *what, const char *reason)
{
	if (strncmp(reason, "remote_bp.", strlen("remote_bp.")) == 0)
		add(health, "notes", "%s: %s", what, reason);
}

static void
add_server(json_t *health, const json_t *answer)
{
	json_int_t	block_size = ctl_int_of(answer, "block_size");
	double		age = ctl_number_of(answer, "age");
	double		reads = ctl_number_of(answer, "reads");
	char		leased[32];
	char		used[32];
	size_t		i;
	const json_t *donor;

	if (!json_is_true(json_object_get(answer, "ok")))
		add(health, "problems", "%s%s%s", ctl_text_of(answer, "problem"),
			json_is_null(json_object_get(answer, "since")) ? "" : "; since ",
			json_is_null(json_object_get(answer, "since")) ? "" : ctl_text_of(answer, "since"));
	add(health, "summary", "tier %susable, %s leased, %s in use",
		json_is_true(json_object_get(answer, "usable")) ? "" : "not ",
		rbp_format_size((uint64_t) (ctl_int_of(answer, "online_pages") * block_size), leased, sizeof(leased)),
		rbp_format_size((uint64_t) (ctl_int_of(answer, "remote_pages") * block_size), used, sizeof(used)));
	add_choice(health, "no page is served", ctl_text_of(answer, "reason"));
	add_choice(health, "temporary data stays in files", ctl_text_of(answer, "temp_reason"));
	if (reads > 0 && age > 0)
		add(health, "notes", "%.1f %% of %.0f reads a second came from donors and staging, which saved %.1f ms a second",
			100 * ctl_number_of(answer, "hits") / reads, reads / age, ctl_number_of(answer, "saved_us") / 1000 / age);
	json_array_foreach(json_object_get(answer, "donors"), i, donor)
	{
		add(health, "notes", "donor %s: %" PRId64 " pages were read from the disk, since the donor is slower",
			ctl_text_of(donor, "donor"), (int64_t) ctl_int_of(donor, "bypassed"));
	}
}

json_t *
ctl_health(const CtlSources *sources)
{
	json_t	   *health = json_pack("{s:b, s:[], s:[], s:[]}", "ok", 1, "problems", "summary", "notes");

	if (sources->http != NULL)
		add_broker(health, sources->http);
	if (sources->server != NULL)
	{
		json_t	   *answer = rbp_server_query(sources->server, query);

		if (answer != NULL)
			add_server(health, answer);
		else
			add(health, "problems", "server: %s", rbp_server_error(sources->server));
		json_decref(answer);
	}
	return health;
}

/* Returns what is to be before the next one: between. */
static const char *
put_sentences(FILE *out, const json_t *list, const char *before, const char *between)
{
	size_t		i;
	const json_t *text;

	json_array_foreach(list, i, text)
	{
		fprintf(out, "%s%s", before, json_string_value(text));
		before = between;
	}
	return before;
}

void
ctl_health_print(FILE *out, const json_t *health)
{
	const char *before = json_is_true(json_object_get(health, "ok")) ? "well: " : "not well: ";

	before = put_sentences(out, json_object_get(health, "problems"), before, "; ");
	(void) put_sentences(out, json_object_get(health, "summary"), before, "; ");
	(void) put_sentences(out, json_object_get(health, "notes"), "\n", "\n");
	fprintf(out, "\n");
}
