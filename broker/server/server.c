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

struct RbpServer
{
	const char *conninfo;
	PGconn	   *conn;			/* NULL: not connected */
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

/* Whatever the server has to tell, stderr is where top draws. */
static void
ignore_notice(void *arg, const char *message)
{
	(void) arg;
	(void) message;
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
	if (PQresultStatus(result) == wanted)
		return result;
	set_error(server, PQerrorMessage(server->conn));
	PQclear(result);
	return NULL;
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
	{
		(void) PQsetNoticeProcessor(server->conn, ignore_notice, NULL);
		return true;
	}
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

	if (is_new)
	{
		disconnect(server);
		if (!connect_to(server))
			return NULL;
	}
	until_ms = rbp_mono_ms() + atoi(RBP_SERVER_QUERY_MS);
	if (is_new)
	{
		result = run(server, "SET statement_timeout = " RBP_SERVER_QUERY_MS, PGRES_COMMAND_OK, until_ms);
		if (result == NULL)
		{
			disconnect(server);
			return NULL;
		}
		PQclear(result);
	}
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
