/*-------------------------------------------------------------------------
 *
 * server.c
 *	  What remote_bp_ctl asks a PostgreSQL server, by libpq.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/log.h"
#include "broker/server/server.h"

#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct RbpServer
{
	const char *conninfo;
	PGconn	   *conn;			/* NULL before the first query */
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

void
rbp_server_destroy(RbpServer *server)
{
	PQfinish(server->conn);
	free(server);
}

const char *
rbp_server_error(const RbpServer *server)
{
	return server->error;
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

static bool
succeeded(RbpServer *server, PGresult *result, ExecStatusType wanted)
{
	if (PQresultStatus(result) == wanted)
		return true;
	set_error(server, PQerrorMessage(server->conn));
	PQclear(result);
	return false;
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
	PGresult   *result;

	if (server->conn != NULL && PQstatus(server->conn) == CONNECTION_OK)
		return true;
	PQfinish(server->conn);
	server->conn = PQconnectdbParams(keywords, values, 1);
	if (PQstatus(server->conn) != CONNECTION_OK)
	{
		set_error(server, server->conn == NULL ? "out of memory" : PQerrorMessage(server->conn));
		return false;
	}
	result = PQexec(server->conn, "SET statement_timeout = " RBP_SERVER_QUERY_MS);
	if (!succeeded(server, result, PGRES_COMMAND_OK))
		return false;
	PQclear(result);
	return true;
}

json_t *
rbp_server_query(RbpServer *server, const char *sql)
{
	json_t	   *answer;
	json_error_t error;
	PGresult   *result;

	if (!connect_to(server))
		return NULL;
	result = PQexec(server->conn, sql);
	if (!succeeded(server, result, PGRES_TUPLES_OK))
		return NULL;
	answer = PQntuples(result) != 1 ? NULL :
		json_loads(PQgetvalue(result, 0, 0), JSON_DECODE_ANY, &error);
	if (answer == NULL)
		set_error(server, "the answer is not JSON");
	PQclear(result);
	return answer;
}
