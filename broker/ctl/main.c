/*-------------------------------------------------------------------------
 *
 * main.c
 *	  Command-line client of the memory broker: shows donors and leases,
 *	  drains donors, revokes leases.  Prints tables, or the broker's JSON
 *	  with --json.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/common/http_client.h"
#include "broker/common/log.h"
#include "broker/common/options.h"
#include "broker/common/secret.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_MS		3000
#define TOTAL_MS		10000
#define MAX_COLUMNS		12
#define MAX_CELL		160

static const char *opt_broker;
static const char *opt_token_file;
static bool opt_json;

static const RbpOption options[] = {
	{"broker", RBP_OPT_STRING, &opt_broker, "URL",
	"the broker, as in http://host:port", NULL, true, 0, 0},
	{"token-file", RBP_OPT_STRING, &opt_token_file, "FILE",
	"file with the token that the broker wants", "none", false, 0, 0},
	{"json", RBP_OPT_FLAG, &opt_json, NULL,
	"print the broker's answer as JSON", NULL, false, 0, 0},
	{NULL, RBP_OPT_FLAG, NULL, NULL, NULL, NULL, false, 0, 0}
};

static const RbpProgram program = {
	.name = "remote_bp_ctl",
	.summary = "remote_bp_ctl shows and drives a remote_bp memory broker.",
	.usage = "--broker URL [OPTION]... COMMAND",
	.options = options,
	.footer = "Commands:\n"
	"  donors         list the donors and how much of their memory is leased\n"
	"  leases         list the leases and where their memory is\n"
	"  drain DONOR    lease no more of this donor's memory and ask all of it back\n"
	"  revoke LEASE   end this lease at once"
};

/*
 * ---- members of answers --------------------------------------------------
 */

static const char *
text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text != NULL ? text : "?";
}

static json_int_t
int_of(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

/*
 * ---- cells ---------------------------------------------------------------
 *
 * Each function fills a cell from a member, named by key, of a donor or a
 * lease.
 */

static void
put_text(char *cell, const json_t *object, const char *key)
{
	snprintf(cell, MAX_CELL, "%s", text_of(object, key));
}

static void
put_bytes(char *cell, const json_t *object, const char *key)
{
	json_int_t	bytes = int_of(object, key);

	rbp_format_size(bytes > 0 ? (uint64_t) bytes : 0, cell, MAX_CELL);
}

static void
put_regions_as_bytes(char *cell, const json_t *donor, const char *key)
{
	json_int_t	bytes = int_of(donor, "region_size") * int_of(donor, key);

	rbp_format_size(bytes > 0 ? (uint64_t) bytes : 0, cell, MAX_CELL);
}

static void
put_seconds(char *cell, const json_t *object, const char *key)
{
	json_int_t	ms = int_of(object, key);

	if (json_is_integer(json_object_get(object, key)))
		snprintf(cell, MAX_CELL, "%" PRId64 ".%d s", (int64_t) ms / 1000,
				 (int) (ms % 1000 / 100));
	else
		snprintf(cell, MAX_CELL, "never");
}

static void
put_address(char *cell, const json_t *donor, const char *key)
{
	if (int_of(donor, "port") != 0)
		rbp_format_hostport(text_of(donor, key), (uint16_t) int_of(donor, "port"),
							cell, MAX_CELL);
	else
		put_text(cell, donor, key);
}

/* Append "word" to a cell, after a comma if the cell is not empty. */
static void
append_word(char *cell, const char *word)
{
	size_t		used = strlen(cell);

	snprintf(cell + used, MAX_CELL - used, "%s%s", used > 0 ? ", " : "", word);
}

static void
put_words(char *cell, const json_t *donor, const char *key)
{
	size_t		i;
	const json_t *word;

	json_array_foreach(json_object_get(donor, key), i, word)
	{
		append_word(cell, json_is_string(word) ? json_string_value(word) : "?");
	}
}

static void
put_donors(char *cell, const json_t *lease, const char *key)
{
	size_t		i;
	const json_t *donor;

	json_array_foreach(json_object_get(lease, key), i, donor)
	{
		char		size[MAX_CELL];
		char		word[MAX_CELL + 128];

		put_bytes(size, donor, "bytes");
		snprintf(word, sizeof(word), "%s: %s", text_of(donor, "id"), size);
		append_word(cell, word);
	}
}

/*
 * ---- tables --------------------------------------------------------------
 */

typedef struct Column
{
	const char *title;			/* NULL at the end of the table */
	const char *key;
	void		(*put) (char *cell, const json_t *object, const char *key);
	bool		right;			/* aligned to the right, as numbers are */
} Column;

static const Column donor_columns[] = {
	{"DONOR", "id", put_text, false},
	{"ADDRESS", "host", put_address, false},
	{"STATE", "state", put_text, false},
	{"TRANSPORTS", "transports", put_words, false},
	{"MEMORY", "regions", put_regions_as_bytes, true},
	{"LEASED", "leased", put_regions_as_bytes, true},
	{"FREE", "free", put_regions_as_bytes, true},
	{"CLEANING", "dirty", put_regions_as_bytes, true},
	{"ASKED BACK", "reclaiming", put_regions_as_bytes, true},
	{"HEARD", "heard_ms", put_seconds, true},
	{NULL, NULL, NULL, false}
};

static const Column lease_columns[] = {
	{"LEASE", "lease", put_text, false},
	{"CLIENT", "client", put_text, false},
	{"PURPOSE", "purpose", put_text, false},
	{"HAS", "bytes", put_bytes, true},
	{"WANTS", "wanted", put_bytes, true},
	{"ENDS IN", "remaining_ms", put_seconds, true},
	{"DONORS", "donors", put_donors, false},
	{NULL, NULL, NULL, false}
};

/* Rows count from 1; row 0 is the header. */
static void
put_cell(char *cell, const Column *column, const json_t *list, size_t row)
{
	cell[0] = '\0';
	if (row == 0)
		snprintf(cell, MAX_CELL, "%s", column->title);
	else
		column->put(cell, json_array_get(list, row - 1), column->key);
}

static void
print_table(const Column *columns, const json_t *list)
{
	int			width[MAX_COLUMNS] = {0};
	char		cell[MAX_CELL];

	for (size_t row = 0; row <= json_array_size(list); row++)
		for (int c = 0; columns[c].title != NULL; c++)
		{
			put_cell(cell, &columns[c], list, row);
			if ((int) strlen(cell) > width[c])
				width[c] = (int) strlen(cell);
		}
	for (size_t row = 0; row <= json_array_size(list); row++)
		for (int c = 0; columns[c].title != NULL; c++)
		{
			bool		last = columns[c + 1].title == NULL;

			put_cell(cell, &columns[c], list, row);
			printf("%*s%s", columns[c].right ? width[c] : last ? 0 : -width[c], cell,
				   last ? "\n" : "  ");
		}
}

/*
 * ---- commands ------------------------------------------------------------
 */

static void
show_donors(const json_t *answer)
{
	const json_t *list = json_object_get(answer, "donors");
	json_int_t	offered = 0;
	json_int_t	leased = 0;
	char		total[2][32];
	size_t		i;
	const json_t *donor;

	json_array_foreach(list, i, donor)
	{
		offered += int_of(donor, "region_size") * int_of(donor, "regions");
		leased += int_of(donor, "region_size") * int_of(donor, "leased");
	}
	print_table(donor_columns, list);
	printf("(%zu donors, %s, of which %s leased)\n", json_array_size(list),
		   rbp_format_size((uint64_t) offered, total[0], sizeof(total[0])),
		   rbp_format_size((uint64_t) leased, total[1], sizeof(total[1])));
}

static void
show_leases(const json_t *answer)
{
	const json_t *list = json_object_get(answer, "leases");

	print_table(lease_columns, list);
	printf("(%zu leases)\n", json_array_size(list));
}

static void
show_drain(const json_t *answer)
{
	printf("draining donor %s: %" PRId64 " regions to be given back\n",
		   text_of(answer, "id"), (int64_t) int_of(answer, "leased"));
}

static void
show_revoke(const json_t *answer)
{
	printf("revoked lease %s: %" PRId64 " regions\n",
		   text_of(answer, "lease"), (int64_t) int_of(answer, "regions"));
}

typedef struct Command
{
	const char *name;
	const char *argument;		/* name of the argument, or NULL if there is
								 * none */
	const char *method;
	const char *path;			/* "%s" is replaced by the argument */
	void		(*show) (const json_t *answer);
} Command;

static const Command commands[] = {
	{"donors", NULL, "GET", "/v1/donors", show_donors},
	{"leases", NULL, "GET", "/v1/leases", show_leases},
	{"drain", "DONOR", "POST", "/v1/donors/%s/drain", show_drain},
	{"revoke", "LEASE", "POST", "/v1/leases/%s/revoke", show_revoke},
	{NULL, NULL, NULL, NULL, NULL}
};

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
		if (argc > (command->argument ? 2 : 1))
			rbp_usage_error(&program, "there are too many arguments");
		return command;
	}
	rbp_usage_error(&program, "\"%s\" is not a command", argv[0]);
}

int
main(int argc, char **argv)
{
	const Command *command;
	char	   *token;
	char	   *path;
	RbpHttp    *http;
	json_t	   *answer;
	int			first;
	int			status;

	rbp_log_init(program.name, RBP_LOG_INFO);
	first = rbp_options_parse(&program, argc, argv);
	command = find_command(argc - first, argv + first);

	token = rbp_token_load(opt_token_file);
	if (!rbp_http_init())
		rbp_die("could not initialize libcurl");
	http = rbp_http_create(opt_broker, token, CONNECT_MS, TOTAL_MS);
	if (http == NULL)
		rbp_usage_error(&program, "--broker: \"%s\" is not an http URL", opt_broker);

	path = rbp_http_path(command->path, command->argument ? argv[first + 1] : NULL);
	status = rbp_http_request(http, command->method, path, NULL, &answer);
	if (status < 200 || status > 299 || answer == NULL)
	{
		rbp_die("%s%s%s: %s", command->name, command->argument ? " " : "",
				command->argument ? argv[first + 1] : "", rbp_http_error(http));
	}
	if (opt_json)
	{
		json_dumpf(answer, stdout, JSON_INDENT(2));
		printf("\n");
	}
	else
		command->show(answer);

	json_decref(answer);
	free(path);
	rbp_http_destroy(http);
	free(token);
	if (fflush(stdout) != 0 || ferror(stdout))
		rbp_die("could not write the output");
	return RBP_EXIT_OK;
}
