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
#include "broker/ctl/advice.h"
#include "broker/ctl/credential.h"
#include "broker/ctl/show.h"
#include "broker/ctl/top.h"
#include "broker/server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_MS		3000
#define TOTAL_MS		10000

static const char *opt_broker;
static const char *opt_token_file;
static const char *opt_broker_ca;
static const char *opt_dbname;
static const char *opt_credentials;
static const char *opt_tls_cert;
static int	opt_interval = 2;
static bool opt_once;
static bool opt_json;

static const RbpOption options[] = {
	{"broker", RBP_OPT_STRING, &opt_broker, "URL",
	"the broker, as in https://host:port", NULL, false, 0, 0},
	{"token-file", RBP_OPT_STRING, &opt_token_file, "FILE",
	"file with the credential that the broker wants", "none", false, 0, 0},
	{"broker-ca", RBP_OPT_STRING, &opt_broker_ca, "FILE",
	"CAs that are believed about the broker if the credential has no pin", "the system's", false, 0, 0},
	{"dbname", RBP_OPT_STRING, &opt_dbname, "CONNINFO",
	"the server, as psql takes it, for advice and top", NULL, false, 0, 0},
	{"credentials", RBP_OPT_STRING, &opt_credentials, "FILE",
	"with credential: the broker's file of that name", NULL, false, 0, 0},
	{"tls-cert", RBP_OPT_STRING, &opt_tls_cert, "FILE",
	"with credential add: the broker's certificate, for the pin", "beside the broker's state", false, 0, 0},
	{"interval", RBP_OPT_INT, &opt_interval, "SECONDS",
	"with top: time between refreshes", "2", false, 1, 3600},
	{"once", RBP_OPT_FLAG, &opt_once, NULL,
	"with top: print once", NULL, false, 0, 0},
	{"json", RBP_OPT_FLAG, &opt_json, NULL,
	"print the answer as JSON", NULL, false, 0, 0},
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
	"  revoke LEASE   end this lease at once\n"
	"  health         one line; exits with 0 if all is well, with 4 if not\n"
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
 * ---- commands for a server ------------------------------------------------------
 */

static void
print_json(const json_t *answer)
{
	json_dumpf(answer, stdout, JSON_INDENT(2));
	printf("\n");
}

static void
run_advice(const CtlSources *sources)
{
	json_t	   *rows = rbp_server_query(sources->server, CTL_ADVICE_QUERY);

	if (rows == NULL)
		rbp_die("advice: %s", rbp_server_error(sources->server));
	if (opt_json)
		print_json(rows);
	else if (json_array_size(rows) == 0)
		rbp_die("advice: there is none while remote_bp.advice is off");
	else
		ctl_advice_print(stdout, rows);
	json_decref(rows);
}

static void
run_top(const CtlSources *sources)
{
	ctl_top(sources, opt_once, opt_interval);
}

/*
 * ---- all commands ------------------------------------------------------------
 */

typedef struct Command
{
	const char *name;
	const char *argument;		/* name of the argument, or NULL if there is
								 * none */
	/* for a broker; NULL: several requests */
	const char *method;
	const char *path;			/* "%s" is replaced by the argument */
	void		(*show) (FILE *out, const json_t *answer);
	/* for a server */
	void		(*run) (const CtlSources *sources);
	/* for a file: see ctl_credential() */
	const char *(*edit) (const char *path, const char *cert, bool json, int argc, char **argv);
} Command;

static const Command commands[] = {
	{"donors", NULL, "GET", "/v1/donors", ctl_show_donors, NULL, NULL},
	{"leases", NULL, "GET", "/v1/leases", ctl_show_leases, NULL, NULL},
	{"drain", "DONOR", "POST", "/v1/donors/%s/drain", ctl_show_drain, NULL, NULL},
	{"undrain", "DONOR", "POST", "/v1/donors/%s/undrain", ctl_show_undrain, NULL, NULL},
	{"revoke", "LEASE", "POST", "/v1/leases/%s/revoke", ctl_show_revoke, NULL, NULL},
	{"health", NULL, NULL, NULL, NULL, NULL, NULL},
	{"advice", NULL, NULL, NULL, NULL, run_advice, NULL},
	{"top", NULL, NULL, NULL, NULL, run_top, NULL},
	{"credential", NULL, NULL, NULL, NULL, NULL, ctl_credential},
	{NULL, NULL, NULL, NULL, NULL, NULL, NULL}
};

/* Refuse options that the command would ignore. */
static void
check_options(const Command *command)
{
	bool		is_top = command->run == run_top;
	bool		edits = command->edit != NULL;

	if (edits && opt_credentials == NULL)
		rbp_usage_error(&program, "--credentials is required");
	if (!edits && opt_credentials != NULL)
		rbp_usage_error(&program, "%s does not take --credentials", command->name);
	if (!edits && opt_tls_cert != NULL)
		rbp_usage_error(&program, "%s does not take --tls-cert", command->name);
	if (edits && opt_broker != NULL)
		rbp_usage_error(&program, "%s does not take --broker", command->name);
	if (command->run == NULL && !edits && opt_broker == NULL)
		rbp_usage_error(&program, "--broker is required");
	if (command->run == NULL && opt_dbname != NULL)
		rbp_usage_error(&program, "%s does not take --dbname", command->name);
	if (!is_top && opt_once)
		rbp_usage_error(&program, "%s does not take --once", command->name);
	if (opt_json && (is_top || (command->run == NULL && !edits && command->method == NULL)))
		rbp_usage_error(&program, "%s does not take --json", command->name);
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
		if (command->edit == NULL && argc > (command->argument ? 2 : 1))
			rbp_usage_error(&program, "there are too many arguments");
		check_options(command);
		return command;
	}
	rbp_usage_error(&program, "\"%s\" is not a command", argv[0]);
}

static RbpHttp *
create_http(void)
{
	if (!rbp_http_is_url(opt_broker))
		rbp_usage_error(&program, "--broker: \"%s\" is not a URL such as https://HOST:PORT", opt_broker);
	rbp_http_init();
	return rbp_http_create(opt_broker, opt_token_file, opt_broker_ca, CONNECT_MS, TOTAL_MS);
}

static void
ask_broker(RbpHttp *http, const Command *command, const char *argument)
{
	char	   *path = rbp_http_path(command->path, argument);
	json_t	   *answer;
	int			status = rbp_http_request(http, command->method, path, NULL, &answer);

	if (status < 200 || status > 299 || answer == NULL)
	{
		rbp_die("%s%s%s: %s", command->name, argument ? " " : "", argument ? argument : "",
				rbp_http_error(http));
	}
	if (opt_json)
		print_json(answer);
	else
		command->show(stdout, answer);
	json_decref(answer);
	free(path);
}

/* Returns the exit code. */
static int
ask_health(RbpHttp *http)
{
	static const char *const paths[] = {"/v1/donors", "/v1/leases"};
	json_t	   *answers[2] = {NULL};
	int			code = RBP_EXIT_OK;

	for (int i = 0; i < 2 && code == RBP_EXIT_OK; i++)
	{
		if (rbp_http_request(http, "GET", paths[i], NULL, &answers[i]) != 200 || answers[i] == NULL)
		{
			printf("not well: broker: %s\n", rbp_http_error(http));
			code = RBP_EXIT_UNWELL;
		}
	}
	if (code == RBP_EXIT_OK && !ctl_show_health(stdout, answers[0], answers[1]))
		code = RBP_EXIT_UNWELL;
	json_decref(answers[0]);
	json_decref(answers[1]);
	return code;
}

int
main(int argc, char **argv)
{
	const Command *command;
	CtlSources	sources = {0};
	int			first;
	int			code = RBP_EXIT_OK;

	rbp_log_init(program.name, RBP_LOG_INFO);
	first = rbp_options_parse(&program, argc, argv);
	command = find_command(argc - first, argv + first);

	if (opt_broker != NULL)
		sources.http = create_http();
	if (command->run != NULL)
	{
		sources.server = rbp_server_create(opt_dbname);
		command->run(&sources);
		rbp_server_destroy(sources.server);
	}
	else if (command->edit != NULL)
	{
		const char *fault = command->edit(opt_credentials, opt_tls_cert, opt_json, argc - first - 1, argv + first + 1);

		if (fault != NULL)
			rbp_usage_error(&program, "%s", fault);
	}
	else if (command->method == NULL)
		code = ask_health(sources.http);
	else
		ask_broker(sources.http, command, command->argument ? argv[first + 1] : NULL);

	if (sources.http != NULL)
		rbp_http_destroy(sources.http);
	if (fflush(stdout) != 0 || ferror(stdout))
		rbp_die("could not write the output");
	return code;
}
