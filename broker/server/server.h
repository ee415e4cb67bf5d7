/*-------------------------------------------------------------------------
 *
 * server.h
 *	  What remote_bp_ctl asks a PostgreSQL server, by libpq.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SERVER_H
#define RBP_SERVER_H

#include <jansson.h>
#include <stdbool.h>

typedef struct RbpServer RbpServer;

/*
 * A server that rbp_server_query() connects to.  conninfo is a connection
 * string, a URI or the name of a database, and is kept by reference; NULL
 * means what libpq takes from the environment.  Ends the process if memory is
 * short.
 */
extern RbpServer *rbp_server_create(const char *conninfo);
extern void rbp_server_destroy(RbpServer *server);

/*
 * Run a query whose result is one value of type json, and return it, owned by
 * the caller.  Connects first if there is no connection, or no longer.
 * Connecting takes at most RBP_SERVER_CONNECT_S for each address of the server
 * unless conninfo says otherwise.  After that, this returns within
 * RBP_SERVER_QUERY_MS, even if the network is cut or the server has stopped.
 * NULL if something failed.
 */
extern json_t *rbp_server_query(RbpServer *server, const char *sql);

/* Why the last query failed, in one line; valid until the next one. */
extern const char *rbp_server_error(const RbpServer *server);

/* Has the server answered at all? */
extern bool rbp_server_reached(const RbpServer *server);

#define RBP_SERVER_CONNECT_S	"3"
#define RBP_SERVER_QUERY_MS		"10000"

#endif							/* RBP_SERVER_H */
