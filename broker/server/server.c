/*-------------------------------------------------------------------------
 *
 * server.c
 *	  What remote_bp_ctl asks a PostgreSQL server, by libpq.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/log.h"
#include "broker/server/server.h"
#include "common/clock.h"

#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* SQLSTATEs */
#define INSUFFICIENT_PRIVILEGE	"42501"
#define UNDEFINED_COLUMN		"42703"
#define UNDEFINED_TABLE			"42P01"

struct RbpServer
{
	const char *conninfo;
	PGconn	   *conn;			/* NULL: not connected */
	bool		reached;		/* when it was asked last */
	char		error[512];
};

RbpServer *
rbp_server_create(const char *conninfo)
{
	RbpServer  *server = calloc(1, sizeof(*server));

	if (server == NULL)
		rbp_die("out of memory");
	server->conninfo = conninfo;
	return server;
}

static void
disconnect(RbpServer *server)
{
	PQfinish(server->conn);
	server->conn = NULL;
}

void
rbp_server_destroy(RbpServer *server)
{
	disconnect(server);
	free(server);
}

const char *
rbp_server_error(const RbpServer *server)
{
	return server->error;
}

bool
rbp_server_reached(const RbpServer *server)
{
	return server->reached;
}

/* libpq's messages have several lines, and end with a newline. */
static void
set_error(RbpServer *server, const char *text)
{
	size_t		len;

	snprintf(server->error, sizeof(server->error), "%s", text);
	len = strlen(server->error);
	while (len > 0 && server->error[len - 1] == '\n')
		server->error[--len] = '\0';
	for (char *c = server->error; *c != '\0'; c++)
	{
		if (*c == '\n' || *c == '\t')
			*c = ' ';
	}
}

/*
 * ---- queries with a limit ------------------------------------------------------
 *
 * The server's own limit, statement_timeout, is no help if the network is cut or
 * the server has stopped.
 */

/* Wait until PQgetResult() does not block; false if that takes too long. */
static bool
wait_for_result(PGconn *conn, int64_t until_ms)
{
	for (;;)
	{
		bool		unsent = PQflush(conn) > 0;
		int64_t		left_ms = until_ms - rbp_mono_ms();
		struct pollfd input = {.events = unsent ? POLLIN | POLLOUT : POLLIN};

		if (!PQconsumeInput(conn) || !PQisBusy(conn))
			return true;
		if (left_ms <= 0)
			return false;
		input.fd = PQsocket(conn);
		(void) poll(&input, 1, (int) left_ms);
	}
}

/* Say what to do about it, where that is known. */
static void
set_query_error(RbpServer *server, const PGresult *result)
{
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	if (state != NULL && strcmp(state, INSUFFICIENT_PRIVILEGE) == 0)
		set_error(server, "the user lacks the privilege to read remote_bp's views; grant it pg_monitor");
	else if (state != NULL && (strcmp(state, UNDEFINED_TABLE) == 0 || strcmp(state, UNDEFINED_COLUMN) == 0))
		set_error(server, "the database has an older version of the extension remote_bp; use ALTER EXTENSION remote_bp UPDATE");
	else
		set_error(server, PQerrorMessage(server->conn));
}

/* The connection is closed if there is no answer until then. */
static PGresult *
run(RbpServer *server, const char *sql, ExecStatusType wanted, int64_t until_ms)
{
	PGresult   *result = NULL;
	PGresult   *next = NULL;

	if (!PQsendQuery(server->conn, sql))
	{
		set_error(server, PQerrorMessage(server->conn));
		return NULL;
	}
	do
	{
		PQclear(result);
		result = next;
		if (!wait_for_result(server->conn, until_ms))
		{
			PQclear(result);
			disconnect(server);
			set_error(server, "no answer within " RBP_SERVER_QUERY_MS " ms");
			return NULL;
		}
		next = PQgetResult(server->conn);
	} while (next != NULL);
	server->reached = true;
	if (PQresultStatus(result) == wanted)
		return result;
	set_query_error(server, result);
	PQclear(result);
	return NULL;
}

/*
 * The extension is relocatable: find its objects, in whichever schema they
 * are.  The session has a limit for its queries from then on.
 */
static bool
set_up_session(RbpServer *server, int64_t until_ms)
{
	PGresult   *result = run(server, "SELECT set_config('search_path', quote_ident(nspname), false),"
							 " set_config('statement_timeout', '" RBP_SERVER_QUERY_MS "', false),"
							 " has_schema_privilege(n.oid, 'USAGE')"
							 " FROM pg_extension e JOIN pg_namespace n ON n.oid = extnamespace"
							 " WHERE extname = 'remote_bp'", PGRES_TUPLES_OK, until_ms);
	bool		found = result != NULL && PQntuples(result) == 1;
	bool		usable = found && strcmp(PQgetvalue(result, 0, 2), "t") == 0;

	if (result != NULL && !found)
		snprintf(server->error, sizeof(server->error),
				 "the database \"%s\" has no extension remote_bp; use CREATE EXTENSION there, or name another one with --dbname",
				 PQdb(server->conn));
	else if (found && !usable)
		set_error(server, "the user lacks the privilege to use the schema of the extension remote_bp");
	PQclear(result);
	if (!usable)
		disconnect(server);
	return usable;
}

static bool
connect_to(RbpServer *server)
{
	/* what comes later in the list overrides what came before */
	static const char *const keywords[] = {
		"connect_timeout", "fallback_application_name", "dbname", "client_encoding", NULL
	};
	const char *const values[] = {
		RBP_SERVER_CONNECT_S, "remote_bp_ctl", server->conninfo, "UTF8", NULL
	};

	server->conn = PQconnectdbParams(keywords, values, 1);
	if (PQstatus(server->conn) == CONNECTION_OK && PQsetnonblocking(server->conn, 1) == 0)
		return true;
	set_error(server, server->conn == NULL ? "out of memory" : PQerrorMessage(server->conn));
	disconnect(server);
	return false;
}

json_t *
rbp_server_query(RbpServer *server, const char *sql)
{
	bool		is_new = PQstatus(server->conn) != CONNECTION_OK;
	int64_t		until_ms;
	json_t	   *answer;
	json_error_t error;
	PGresult   *result;

	server->reached = false;
	if (is_new)
	{
		disconnect(server);
		if (!connect_to(server))
			return NULL;
	}
	until_ms = rbp_mono_ms() + atoi(RBP_SERVER_QUERY_MS);
	if (is_new && !set_up_session(server, until_ms))
		return NULL;
	result = run(server, sql, PGRES_TUPLES_OK, until_ms);
	if (result == NULL)
		return NULL;
	answer = PQntuples(result) != 1 ? NULL :
		json_loads(PQgetvalue(result, 0, 0), JSON_DECODE_ANY, &error);
	if (answer == NULL)
		set_error(server, "the answer is not JSON");
	PQclear(result);
	return answer;
}
