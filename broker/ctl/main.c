/*-------------------------------------------------------------------------
 *
 * main.c
 *	  Shows what the memory broker knows, and drives it: donors, leases,
 *	  drain, revoke.  As tables, or the broker's own JSON with --json.
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
 * ---- tables ---------------------------------------------------------------------
 */

typedef struct Table
{
	int			columns;
	bool		right[MAX_COLUMNS]; /* numbers are aligned to the right */
	int			rows;			/* the first is the head */
	char		(*cells)[MAX_CELL];
} Table;

/* right: one character for each column, 'r' or 'l' */
static Table *
table_new(const char *right)
{
	Table	   *table = calloc(1, sizeof(Table));

	if (table == NULL)
		rbp_die("out of memory");
	table->columns = (int) strlen(right);
	for (int i = 0; i < table->columns; i++)
		table->right[i] = right[i] == 'r';
	return table;
}

/* The cells of a new row, to be filled in. */
static char (*
			 table_row(Table *table))[MAX_CELL]
{
	size_t		count = (size_t) ((table->rows + 1) * table->columns);
	char		(*grown)[MAX_CELL] = realloc(table->cells, count * MAX_CELL);

	if (grown == NULL)
		rbp_die("out of memory");
	table->cells = grown;
	table->rows++;
	grown += (table->rows - 1) * table->columns;
	memset(grown, 0, (size_t) table->columns * MAX_CELL);
	return grown;
}

static void
table_head(Table *table, const char *const *names)
{
	char		(*row)[MAX_CELL] = table_row(table);

	for (int i = 0; i < table->columns; i++)
		snprintf(row[i], MAX_CELL, "%s", names[i]);
}

/* Prints and frees. */
static void
table_print(Table *table)
{
	int			width[MAX_COLUMNS] = {0};

	for (int r = 0; r < table->rows; r++)
	{
		for (int c = 0; c < table->columns; c++)
		{
			int			len = (int) strlen(table->cells[r * table->columns + c]);

			if (len > width[c])
				width[c] = len;
		}
	}
	for (int r = 0; r < table->rows; r++)
	{
		for (int c = 0; c < table->columns; c++)
		{
			const char *cell = table->cells[r * table->columns + c];
			bool		last = c == table->columns - 1;

			if (table->right[c])
				printf("%*s", width[c], cell);
			else if (last)
				printf("%s", cell);
			else
				printf("%-*s", width[c], cell);
			printf(last ? "\n" : "  ");
		}
	}
	free(table->cells);
	free(table);
}

/*
 * ---- members of answers -----------------------------------------------------------
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

static void
put_size(char *cell, json_int_t bytes)
{
	rbp_format_size(bytes > 0 ? (uint64_t) bytes : 0, cell, MAX_CELL);
}

static void
put_seconds(char *cell, json_int_t ms)
{
	snprintf(cell, MAX_CELL, "%" PRId64 ".%d s", (int64_t) ms / 1000,
			 (int) (ms % 1000 / 100));
}

/* Appends "word" to a cell, after a comma if there was something. */
static void
append_word(char *cell, const char *word)
{
	size_t		used = strlen(cell);

	snprintf(cell + used, MAX_CELL - used, "%s%s", used > 0 ? ", " : "", word);
}

/*
 * ---- commands ----------------------------------------------------------------------
 */

static void
show_donors(const json_t *answer)
{
	static const char *const names[] = {
		"DONOR", "ADDRESS", "STATE", "TRANSPORTS", "MEMORY", "LEASED", "FREE",
		"CLEANING", "ASKED BACK", "HEARD"
	};
	const json_t *list = json_object_get(answer, "donors");
	Table	   *table = table_new("llllrrrrrr");
	json_int_t	offered = 0;
	json_int_t	leased = 0;
	char		total[2][32];
	size_t		i;
	json_t	   *donor;

	table_head(table, names);
	json_array_foreach(list, i, donor)
	{
		char		(*row)[MAX_CELL] = table_row(table);
		json_int_t	size = int_of(donor, "region_size");
		const json_t *heard = json_object_get(donor, "heard_ms");
		size_t		t;
		json_t	   *transport;

		snprintf(row[0], MAX_CELL, "%s", text_of(donor, "id"));
		if (int_of(donor, "port") != 0)
			rbp_format_hostport(text_of(donor, "host"),
								(uint16_t) int_of(donor, "port"), row[1], MAX_CELL);
		else
			snprintf(row[1], MAX_CELL, "%s", text_of(donor, "host"));
		snprintf(row[2], MAX_CELL, "%s", text_of(donor, "state"));
		json_array_foreach(json_object_get(donor, "transports"), t, transport)
			append_word(row[3], json_is_string(transport) ?
						json_string_value(transport) : "?");
		put_size(row[4], size * int_of(donor, "regions"));
		put_size(row[5], size * int_of(donor, "leased"));
		put_size(row[6], size * int_of(donor, "free"));
		put_size(row[7], size * int_of(donor, "dirty"));
		put_size(row[8], size * int_of(donor, "reclaiming"));
		if (json_is_integer(heard))
			put_seconds(row[9], json_integer_value(heard));
		else
			snprintf(row[9], MAX_CELL, "never");
		offered += size * int_of(donor, "regions");
		leased += size * int_of(donor, "leased");
	}
	table_print(table);
	printf("(%zu donors, %s, of which %s leased)\n", json_array_size(list),
		   rbp_format_size((uint64_t) offered, total[0], sizeof(total[0])),
		   rbp_format_size((uint64_t) leased, total[1], sizeof(total[1])));
}

static void
show_leases(const json_t *answer)
{
	static const char *const names[] = {
		"LEASE", "CLIENT", "PURPOSE", "HAS", "WANTS", "ENDS IN", "DONORS"
	};
	const json_t *list = json_object_get(answer, "leases");
	Table	   *table = table_new("lllrrrl");
	size_t		i;
	json_t	   *lease;

	table_head(table, names);
	json_array_foreach(list, i, lease)
	{
		char		(*row)[MAX_CELL] = table_row(table);
		size_t		d;
		json_t	   *donor;

		snprintf(row[0], MAX_CELL, "%s", text_of(lease, "lease"));
		snprintf(row[1], MAX_CELL, "%s", text_of(lease, "client"));
		snprintf(row[2], MAX_CELL, "%s", text_of(lease, "purpose"));
		put_size(row[3], int_of(lease, "bytes"));
		put_size(row[4], int_of(lease, "wanted"));
		put_seconds(row[5], int_of(lease, "remaining_ms"));
		json_array_foreach(json_object_get(lease, "donors"), d, donor)
		{
			char		size[32];
			char		word[128];

			rbp_format_size((uint64_t) int_of(donor, "bytes"), size, sizeof(size));
			snprintf(word, sizeof(word), "%s: %s", text_of(donor, "id"), size);
			append_word(row[6], word);
		}
	}
	table_print(table);
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
	const char *argument;		/* what it is called, or NULL if there is none */
	const char *method;
	const char *path;			/* "%s": the argument */
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
		rbp_die("cannot start libcurl");
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
		rbp_die("cannot write the output");
	return RBP_EXIT_OK;
}
