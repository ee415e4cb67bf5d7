/*-------------------------------------------------------------------------
 *
 * main.c
 *	  Command-line client of the memory broker and of a server that uses it.
 *	  Of the broker, it shows donors and leases, drains donors and revokes
 *	  leases; of a server, it shows what the tier does and how large it should
 *	  be.  Prints tables, or the answer as JSON with --json.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/http_client.h"
#include "broker/common/log.h"
#include "broker/common/options.h"
#include "broker/ctl/ctl.h"
#include "broker/server/server.h"
#include "common/clock.h"
#include "common/text.h"
#include "common/urls.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECT_MS		3000
#define TOTAL_MS		10000

static const char *opt_broker;
static const char *opt_token_file;
static const char *opt_broker_ca;
static const char *opt_dbname;
static const char *opt_credentials;
static const char *opt_tls_cert;
static int	opt_interval = 2;
static int	opt_watch;
static int	opt_timeout;
static bool opt_once;
static bool opt_wait;
static bool opt_json;

static const RbpOption options[] = {
	{"broker", RBP_OPT_STRING, &opt_broker, "URL",
	"the broker, as in https://host:port; several are separated by commas", "$REMOTE_BP_BROKER", false, 0, 0},
	{"token-file", RBP_OPT_STRING, &opt_token_file, "FILE",
	"file with the credential that the broker wants", "$REMOTE_BP_TOKEN_FILE", false, 0, 0},
	{"broker-ca", RBP_OPT_STRING, &opt_broker_ca, "FILE",
	"CAs that are believed about the broker if the credential has no pin", "the system's", false, 0, 0},
	{"dbname", RBP_OPT_STRING, &opt_dbname, "CONNINFO",
	"the server, as psql takes it, for health, advice and top", NULL, false, 0, 0},
	{"credentials", RBP_OPT_STRING, &opt_credentials, "FILE",
	"with credential: the broker's file of that name", NULL, false, 0, 0},
	{"tls-cert", RBP_OPT_STRING, &opt_tls_cert, "FILE",
	"with credential add: the broker's certificate, for the pin", "beside the broker's state", false, 0, 0},
	{"interval", RBP_OPT_INT, &opt_interval, "SECONDS",
	"with top: time between refreshes", "2", false, 1, 3600},
	{"once", RBP_OPT_FLAG, &opt_once, NULL,
	"with top: print once", NULL, false, 0, 0},
	{"watch", RBP_OPT_INT, &opt_watch, "SECONDS",
	"with donors, leases, brokers and health: do it again each time", NULL, false, 1, 3600},
	{"wait", RBP_OPT_FLAG, &opt_wait, NULL,
	"with drain: wait until nothing is leased there", NULL, false, 0, 0},
	{"timeout", RBP_OPT_INT, &opt_timeout, "SECONDS",
	"with drain --wait: give up after that time", "none", false, 1, 86400},
	{"json", RBP_OPT_FLAG, &opt_json, NULL,
	"print the answer as JSON, and errors, too", NULL, false, 0, 0},
	{NULL, RBP_OPT_FLAG, NULL, NULL, NULL, NULL, false, 0, 0}
};

static const RbpProgram program = {
	.name = "remote_bp_ctl",
	.summary = "remote_bp_ctl shows and drives a remote_bp memory broker, and shows a server's tier.",
	.usage = "[OPTION]... COMMAND",
	.options = options,
	.footer = "Commands for a broker, with --broker:\n"
	"  donors         list the donors and how much of their memory is leased\n"
	"  leases         list the leases and where their memory is\n"
	"  drain DONOR    lease no more of this donor's memory and ask all of it back\n"
	"  undrain DONOR  lease this donor's memory again\n"
	"  forget DONOR   this donor, which is gone, does not come back\n"
	"  revoke LEASE   end this lease at once\n"
	"  brokers        each broker of the list, and how many donors follow it\n"
	"  health         one line; exits with 0 if all is well, with 4 if not;\n"
	"                 with --dbname, of a server's tier, and what it saves\n"
	"Commands for the file of a broker, with --credentials; it is told by SIGHUP:\n"
	"  credential add ROLE NAME            accept one more, which is printed\n"
	"  credential list                     show them, without their secrets\n"
	"  credential remove ROLE NAME [HASH]  accept these no more, or only the one\n"
	"                                      whose hash begins so\n"
	"Commands for a server, with --dbname or libpq's environment:\n"
	"  advice         how large the tier should be (remote_bp.advice)\n"
	"  top            hit ratio, latencies, the advice, donors and leases;\n"
	"                 with --broker, all that the broker has, too"
};

/*
 * ---- answers and failures --------------------------------------------------------
 */

static void
print_json(const json_t *answer)
{
	json_dumpf(answer, stdout, JSON_INDENT(2));
	printf("\n");
}

/* What has failed, for a program; status: the broker's, -1 if it has not answered */
static void
print_error(const char *text, int status)
{
	char		printable[1024];
	json_t	   *error;

	rbp_copy_printable(printable, sizeof(printable), text, strlen(text));
	error = json_pack("{s:s, s:o}", "error", printable, "status", status > 0 ? json_integer(status) : json_null());
	print_json(error);
	json_decref(error);
}

static void
print_death(const char *text)
{
	print_error(text, -1);
}

/* Returns the exit code. */
static int
__attribute__((format(printf, 3, 4)))
fail(int code, int status, const char *fmt,...)
{
	char		text[1024];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	/* --watch clears the screen through stdout: else it would clear this, too */
	(void) fflush(stdout);
	rbp_log(RBP_LOG_ERROR, "%s", text);
	if (opt_json)
		print_error(text, status);
	return code;
}

/* For a program, or else by that function */
static void
print_answer(const json_t *answer, void (*show) (FILE *out, const json_t *answer))
{
	if (opt_json)
		print_json(answer);
	else
		show(stdout, answer);
}

/*
 * ---- commands: each returns the exit code -----------------------------------------
 */

/* Options that not every command takes */
#define TAKES_BROKER	1		/* --broker; it has to be there, unless ... */
#define TAKES_SERVER	2		/* --dbname, or libpq's environment */
#define TAKES_FILE		4		/* --credentials and --tls-cert */
#define TAKES_JSON		8
#define TAKES_WATCH		16
#define TAKES_WAIT		32		/* --wait and --timeout */
#define TAKES_ONCE		64

typedef struct Command Command;

struct Command
{
	const char *name;
	const char *argument;		/* name of the argument, or NULL if there is
								 * none */
	unsigned	takes;
	int			(*run) (const Command *command, const CtlSources *sources, int argc, char **argv);
	/* for run_at_broker() */
	const char *method;
	const char *path;			/* "%s" is replaced by the argument */
	void		(*show) (FILE *out, const json_t *answer);
};

/*
 * How many regions of the donor are leased; 0 if it has left, -1 if it does not drain any more.  *applied:
 * it knows all that the broker has told it.
 */
static json_int_t
leased_of(const json_t *answer, const char *id, bool *applied)
{
	size_t		i;
	const json_t *donor;

	*applied = true;
	json_array_foreach(json_object_get(answer, "donors"), i, donor)
	{
		if (strcmp(ctl_text_of(donor, "id"), id) != 0)
			continue;
		*applied = ctl_int_of(donor, "applied") >= ctl_int_of(donor, "revision");
		return strcmp(ctl_text_of(donor, "state"), "up") == 0 ? -1 : ctl_int_of(donor, "leased");
	}
	return 0;
}

/* Wait until nothing is leased of the donor, as its answer then says. */
static int
wait_until_drained(RbpHttp *http, const char *id, json_t *answer)
{
	int64_t		give_up = rbp_mono_ms() + (int64_t) opt_timeout * 1000;

	for (;; sleep(1))
	{
		json_t	   *donors;
		int			status = rbp_http_request(http, "GET", "/v1/donors", NULL, &donors);
		bool		applied;
		json_int_t	leased = leased_of(donors, id, &applied);

		json_decref(donors);
		json_object_set_new(answer, "leased", json_integer(leased));
		if (status == 200 && leased == 0 && applied)
		{
			json_object_set_new(answer, "pending", json_array());
			return RBP_EXIT_OK;
		}
		if (status >= 400 && status < 500)
			return fail(RBP_EXIT_FAIL, status, "drain %s: %s", id, rbp_http_error(http));
		if (leased < 0)
			return fail(RBP_EXIT_FAIL, -1, "drain %s: it does not drain any more; somebody has called undrain, or the donor was started again", id);
		if (opt_timeout == 0 || rbp_mono_ms() < give_up)
			continue;
		if (status != 200)
			return fail(RBP_EXIT_UNREACHABLE, status, "drain %s: %s", id, rbp_http_error(http));
		return fail(RBP_EXIT_FAIL, -1, "drain %s: %d of its regions are still leased after %d s", id, (int) leased, opt_timeout);
	}
}

static int
run_at_broker(const Command *command, const CtlSources *sources, int argc, char **argv)
{
	RbpHttp    *http = sources->http;
	const char *argument = command->argument != NULL ? argv[0] : NULL;
	char	   *path = rbp_http_path(command->path, argument);
	json_t	   *answer;
	int			status = rbp_http_request(http, command->method, path, NULL, &answer);
	int			code = RBP_EXIT_OK;

	free(path);
	if (status < 200 || status > 299 || answer == NULL)
		code = fail(status == -1 ? RBP_EXIT_UNREACHABLE : RBP_EXIT_FAIL, status, "%s%s%s: %s",
					command->name, argument ? " " : "", argument ? argument : "", rbp_http_error(http));
	else if (opt_wait)
		code = wait_until_drained(http, argument, answer);
	if (code == RBP_EXIT_OK)
		print_answer(answer, command->show);
	if (code == RBP_EXIT_OK && json_array_size(json_object_get(answer, "pending")) > 0)
	{
		char	   *pending = json_dumps(json_object_get(answer, "pending"), 0);

		rbp_log(RBP_LOG_WARNING, "not applied yet by donors %s: if the broker ends before, this is undone", pending);
		free(pending);
		code = RBP_EXIT_UNWELL;
	}
	json_decref(answer);
	return code;
}

static int
run_advice(const Command *command, const CtlSources *sources, int argc, char **argv)
{
	json_t	   *rows = rbp_server_query(sources->server, CTL_ADVICE_QUERY);
	int			code = RBP_EXIT_OK;

	if (rows == NULL)
		code = fail(rbp_server_reached(sources->server) ? RBP_EXIT_FAIL : RBP_EXIT_UNREACHABLE, -1,
					"advice: %s", rbp_server_error(sources->server));
	else if (!opt_json && json_array_size(rows) == 0)
		code = fail(RBP_EXIT_FAIL, -1, "advice: there is none while remote_bp.advice is off");
	else
		print_answer(rows, ctl_advice_print);
	json_decref(rows);
	return code;
}

static int
run_top(const Command *command, const CtlSources *sources, int argc, char **argv)
{
	bool		ok = ctl_top(sources);

	if (opt_once && !ok)
		rbp_die("top: not everybody has answered");
	if (!opt_once)
		printf("\n");
	return RBP_EXIT_OK;
}

static int
run_health(const Command *command, const CtlSources *sources, int argc, char **argv)
{
	json_t	   *health = ctl_health(sources);
	bool		ok = json_is_true(json_object_get(health, "ok"));

	print_answer(health, ctl_health_print);
	json_decref(health);
	return ok ? RBP_EXIT_OK : RBP_EXIT_UNWELL;
}

static int
run_brokers(const Command *command, const CtlSources *sources, int argc, char **argv)
{
	json_t	   *answer = ctl_brokers(sources->http);

	print_answer(answer, ctl_brokers_print);
	json_decref(answer);
	return RBP_EXIT_OK;
}

static int
run_credential(const Command *command, const CtlSources *sources, int argc, char **argv)
{
	const char *fault = ctl_credential(opt_credentials, opt_tls_cert, opt_json, argc, argv);

	if (fault != NULL)
		rbp_usage_error(&program, "%s", fault);
	return RBP_EXIT_OK;
}

/*
 * ---- the command line --------------------------------------------------------
 */

#define SHOWS	(TAKES_BROKER | TAKES_JSON | TAKES_WATCH)
#define DOES	(TAKES_BROKER | TAKES_JSON)

static const Command commands[] = {
	{"donors", NULL, SHOWS, run_at_broker, "GET", "/v1/donors", ctl_show_donors},
	{"leases", NULL, SHOWS, run_at_broker, "GET", "/v1/leases", ctl_show_leases},
	{"drain", "DONOR", DOES | TAKES_WAIT, run_at_broker, "POST", "/v1/donors/%s/drain", ctl_show_drain},
	{"undrain", "DONOR", DOES, run_at_broker, "POST", "/v1/donors/%s/undrain", ctl_show_undrain},
	{"forget", "DONOR", DOES, run_at_broker, "POST", "/v1/donors/%s/forget", ctl_show_forget},
	{"revoke", "LEASE", DOES, run_at_broker, "POST", "/v1/leases/%s/revoke", ctl_show_revoke},
	{"brokers", NULL, SHOWS, run_brokers, NULL, NULL, NULL},
	{"health", NULL, SHOWS | TAKES_SERVER, run_health, NULL, NULL, NULL},
	{"advice", NULL, TAKES_SERVER | TAKES_JSON, run_advice, NULL, NULL, NULL},
	{"top", NULL, TAKES_BROKER | TAKES_SERVER | TAKES_ONCE, run_top, NULL, NULL, NULL},
	{"credential", NULL, TAKES_FILE | TAKES_JSON, run_credential, NULL, NULL, NULL},
	{.name = NULL}
};

/* NULL if it is not set, or empty */
static const char *
from_environment(const char *name)
{
	const char *value = getenv(name);

	return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Refuse options that the command would ignore, and miss those that it needs. */
static void
check_options(const Command *command)
{
	const struct
	{
		bool		given;
		unsigned	takes;
		const char *name;
	}			given[] = {
		{opt_broker != NULL, TAKES_BROKER, "broker"},
		{opt_dbname != NULL, TAKES_SERVER, "dbname"},
		{opt_credentials != NULL, TAKES_FILE, "credentials"},
		{opt_tls_cert != NULL, TAKES_FILE, "tls-cert"},
		{opt_json, TAKES_JSON, "json"},
		{opt_watch > 0, TAKES_WATCH, "watch"},
		{opt_wait || opt_timeout > 0, TAKES_WAIT, opt_wait ? "wait" : "timeout"},
		{opt_once, TAKES_ONCE, "once"},
	};

	for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++)
		if (given[i].given && (command->takes & given[i].takes) == 0)
			rbp_usage_error(&program, "%s does not take --%s", command->name, given[i].name);
	if (command->run == run_credential && opt_credentials == NULL)
		rbp_usage_error(&program, "--credentials is required");
	if (opt_timeout > 0 && !opt_wait)
		rbp_usage_error(&program, "--timeout is for --wait");

	/* where a broker has to be, the environment may name it */
	if ((command->takes & TAKES_BROKER) != 0 && opt_broker == NULL && opt_dbname == NULL && command->run != run_top)
	{
		opt_broker = from_environment("REMOTE_BP_BROKER");
		if (opt_broker == NULL)
			rbp_usage_error(&program, "--broker is required");
	}
	if (opt_broker != NULL && opt_token_file == NULL)
		opt_token_file = from_environment("REMOTE_BP_TOKEN_FILE");
}

static const Command *
find_command(int argc, char **argv)
{
	if (argc < 1)
		rbp_usage_error(&program, "a command is missing");
	for (const Command *command = commands; command->name != NULL; command++)
	{
		if (strcmp(argv[0], command->name) != 0)
			continue;
		if (command->argument != NULL && (argc < 2 || argv[1][0] == '\0'))
			rbp_usage_error(&program, "%s needs a %s", command->name, command->argument);
		if (command->run != run_credential && argc > (command->argument ? 2 : 1))
			rbp_usage_error(&program, "there are too many arguments");
		check_options(command);
		return command;
	}
	rbp_usage_error(&program, "\"%s\" is not a command", argv[0]);
}

/* The first of them that answers is used; if none does, the first request says why. */
static RbpHttp *
create_http(void)
{
	RbpHttp    *http;

	if (!rbp_urls_valid(opt_broker))
		rbp_usage_error(&program, "--broker: \"%s\" is not a URL such as https://HOST:PORT", opt_broker);
	rbp_http_init();
	http = rbp_http_create(opt_broker, opt_token_file, opt_broker_ca, CONNECT_MS, TOTAL_MS);
	while (rbp_urls_several(opt_broker) && rbp_http_request(http, "GET", "/healthz", NULL, NULL) == -1 &&
		   rbp_http_use(http, rbp_http_used(http) + 1))
		 /* go on */ ;
	return http;
}

/* Once, or again and again until a signal ends it.  Returns the exit code. */
static int
run_command(const Command *command, const CtlSources *sources, int argc, char **argv)
{
	int			every = command->run != run_top ? opt_watch : opt_once ? 0 : opt_interval;

	/* what there is to see again and again appears at once */
	if (every > 0)
		(void) setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	for (;; sleep((unsigned) every))
	{
		int			code;

		if (every > 0 && isatty(STDOUT_FILENO))
			printf("\033[H\033[2J");
		code = command->run(command, sources, argc, argv);
		if (fflush(stdout) != 0 || ferror(stdout))
			rbp_die("could not write the output");
		if (every == 0)
			return code;
	}
}

int
main(int argc, char **argv)
{
	const Command *command;
	CtlSources	sources = {0};
	int			first;
	int			code;

	rbp_log_init(program.name, RBP_LOG_INFO);
	first = rbp_options_parse(&program, argc, argv);
	command = find_command(argc - first, argv + first);
	if (opt_json)
		rbp_on_die(print_death);

	if (opt_broker != NULL)
		sources.http = create_http();
	if ((command->takes & TAKES_SERVER) != 0 && (opt_broker == NULL || opt_dbname != NULL || command->run == run_top))
		sources.server = rbp_server_create(opt_dbname);
	code = run_command(command, &sources, argc - first - 1, argv + first + 1);

	if (sources.http != NULL)
		rbp_http_destroy(sources.http);
	if (sources.server != NULL)
		rbp_server_destroy(sources.server);
	return code;
}
