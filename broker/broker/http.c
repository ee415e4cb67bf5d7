/*-------------------------------------------------------------------------
 *
 * http.c
 *	  The broker's HTTP server on libmicrohttpd: routes, who may use them,
 *	  body limits.
 *
 * One thread for each connection: a heartbeat waits up to a second for news,
 * and with its own thread it can just wait.  Connections are bounded in
 * number and time (connections.c), so that nobody can tie up the broker by
 * connecting; requests without a credential of the right role are refused
 * before their body is read.
 *
 * Threads: each request belongs to its connection's thread; shared are the
 * counters (atomic), the credentials and the lists of serial requests and of large
 * bodies (their own locks) and, through the handlers, the state (broker.lock).
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/connections.h"
#include "broker/broker/credentials.h"
#include "broker/broker/http.h"
#include "broker/broker/state.h"
#include "broker/broker/tls.h"
#include "broker/common/format.h"
#include "broker/common/listen.h"
#include "broker/common/log.h"
#include "broker/common/places.h"
#include "common/bytes.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/limits.h"
#include "common/text.h"

#include <inttypes.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <time.h>

#define STACK_SIZE			(2 * 1024 * 1024)
#define CALLER_LEN			(RBP_DONOR_ID_LEN + 16)

/* So many bodies above this size are held at a time, and so many of one credential. */
#define LARGE_BODY			((size_t) 64 * 1024)
#define MAX_LARGE			4
#define MAX_LARGE_OF_ONE	2
#define LARGE_TURN_MS		2000	/* then it makes way, if others wait */
#define LARGE_WAIT_MS		10000

/* A request while its body comes in. */
typedef struct Request
{
	LIST_ENTRY(Request) link;	/* serial_requests */
	TAILQ_ENTRY(Request) large_link;	/* large_requests, if large */
	int64_t		large_until;	/* rbp_mono_ms(); under large_lock */
	bool		large;
	struct MHD_Connection *connection;
	const BrokerRoute *route;
	RbpCredential who;
	char		id[256];
	RbpBytes	body;
	size_t		received;		/* more than is allowed: body has not all of
								 * it */
} Request;

static struct MHD_Daemon *httpd;
static int	listening = -1;
static const BrokerRoute *routes;

/* Of ROUTE_SERIAL, being served */
static pthread_mutex_t serial_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t serial_ended = PTHREAD_COND_INITIALIZER;
static LIST_HEAD(RequestList, Request) serial_requests = LIST_HEAD_INITIALIZER(serial_requests);

/* Whose body is large, and held; the oldest first */
static pthread_mutex_t large_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t large_ended = PTHREAD_COND_INITIALIZER;
static TAILQ_HEAD(LargeList, Request) large_requests = TAILQ_HEAD_INITIALIZER(large_requests);

/* What this thread handles */
static _Thread_local const Request *handled;

const int	broker_http_bounds_ms[BROKER_TIME_BOUNDS] = {1, 10, 100, 1000};
atomic_int_fast64_t broker_http_requests[6];
atomic_int_fast64_t broker_http_refused;
BrokerTimes broker_http_times[BROKER_MAX_ROUTES];

/*
 * ---- replies and bodies -------------------------------------------------------
 */

BrokerReply
broker_reply(int status, char *json)
{
	BrokerReply reply = {status, "application/json", json, false};

	return reply;
}

BrokerReply
broker_reply_error(int status, const char *fmt,...)
{
	char		text[512];
	va_list		args;
	json_t	   *object;
	char	   *json;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);

	/* what came in a URL may be no UTF-8, which JSON needs */
	rbp_copy_printable(text, sizeof(text), text, strlen(text));
	object = json_pack("{s:s}", "error", text);
	json = json_dumps(object, JSON_COMPACT);
	json_decref(object);
	return broker_reply(status, json);
}

/* Is the field as the route's table has it?  If not, *error says why. */
static bool
check_member(const json_t *value, const BrokerMember *member, BrokerReply *error)
{
	const char *text = json_string_value(value);
	int64_t		n = json_integer_value(value);
	char		wanted[128] = "";

	switch (member->kind)
	{
		case BODY_TEXT:
			if (text == NULL || (int64_t) strlen(text) < member->least ||
				(int64_t) strlen(text) > member->most)
				snprintf(wanted, sizeof(wanted), "given, as a string of %" PRId64 " to %" PRId64 " characters",
						 member->least, member->most);
			else
			{
				while (*text >= 0x20 && *text <= 0x7e)
					text++;
				strcpy(wanted, *text != '\0' ? "printable ASCII" : "");
			}
			break;
		case BODY_INT:
			if (!json_is_integer(value) || n < member->least || n > member->most)
				snprintf(wanted, sizeof(wanted), "given, as a whole number from %" PRId64 " to %" PRId64,
						 member->least, member->most);
			break;
		case BODY_BOOL:
			strcpy(wanted, json_is_boolean(value) ? "" : "true or false");
			break;
		case BODY_ARRAY:
			strcpy(wanted, json_is_array(value) ? "" : "an array");
			break;
	}
	if (wanted[0] != '\0')
		*error = broker_reply_error(400, "\"%s\" must be %s", member->key, wanted);
	return wanted[0] == '\0';
}

bool
broker_check_members(const json_t *body, const BrokerMember *members, BrokerReply *error)
{
	for (const BrokerMember *member = members; member->key != NULL; member++)
	{
		const json_t *value = json_object_get(body, member->key);

		if ((value != NULL || member->required) && !check_member(value, member, error))
			return false;
	}
	return true;
}

/*
 * ---- routes ---------------------------------------------------------------------
 */

/*
 * Does the path fit the pattern?  Copies what stands for "*" to id.
 */
static bool
path_matches(const char *pattern, const char *path, char *id, size_t size)
{
	id[0] = '\0';
	while (*pattern != '\0')
	{
		if (*pattern == '*')
		{
			size_t		len = strcspn(path, "/");

			if (len == 0 || len >= size)
				return false;
			memcpy(id, path, len);
			id[len] = '\0';
			path += len;
			pattern++;
		}
		else if (*pattern++ != *path++)
			return false;
	}
	return *path == '\0';
}

/*
 * NULL if there is none; then *known_path says whether another method would
 * have done.
 */
static const BrokerRoute *
find_route(const char *method, const char *path, char *id, size_t size,
		   bool *known_path)
{
	*known_path = false;
	for (const BrokerRoute *route = routes; route->path != NULL; route++)
	{
		if (!path_matches(route->path, path, id, size))
			continue;
		*known_path = true;
		if (strcmp(method, route->method) == 0)
			return route;
	}
	return NULL;
}

/* Is it the credential of somebody?  See broker_credentials_identify(). */
static bool
identify(struct MHD_Connection *connection, RbpCredential *who)
{
	static const char prefix[] = "Bearer ";
	const char *header = MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
													 MHD_HTTP_HEADER_AUTHORIZATION);
	bool		bearer = header != NULL && strncasecmp(header, prefix, sizeof(prefix) - 1) == 0;

	return broker_credentials_identify(bearer ? header + sizeof(prefix) - 1 : NULL, who);
}

/*
 * ---- libmicrohttpd's callbacks ---------------------------------------------------
 */

/* Consumes the reply. */
static enum MHD_Result
send_reply(struct MHD_Connection *connection, BrokerReply reply)
{
	enum MHD_Result result;
	struct MHD_Response *response = MHD_create_response_from_buffer(reply.text != NULL ? strlen(reply.text) : 0,
																	reply.text, MHD_RESPMEM_MUST_FREE);

	if (response == NULL)
	{
		free(reply.text);
		return MHD_NO;
	}
	if (reply.text != NULL)
		MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, reply.type);
	MHD_add_response_header(response, RBP_BROKER_HEADER, RBP_VERSION);
	if (reply.status == 401 || reply.wrong_credential)
		MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE,
								"Bearer realm=\"remote_bp\"");
	broker_connection_awaits(connection, BROKER_AWAITS_READER);
	if (reply.status >= 100 && reply.status < 600)
		atomic_fetch_add(&broker_http_requests[reply.status / 100], 1);
	if (reply.status == 401 || reply.status == 403)
		atomic_fetch_add(&broker_http_refused, 1);
	result = MHD_queue_response(connection, (unsigned) reply.status, response);
	MHD_destroy_response(response);
	return result;
}

/* Role and name, as messages have them */
static const char *
caller(const RbpCredential *who, char text[CALLER_LEN])
{
	if (who->name[0] == '\0')
		return "it";
	snprintf(text, CALLER_LEN, "%s \"%s\"", rbp_role_names[who->role], who->name);
	return text;
}

static const char *
address_of(struct MHD_Connection *connection, char *buf, size_t len)
{
	const union MHD_ConnectionInfo *info =
	MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);

	return rbp_format_address(info != NULL ? info->client_addr : NULL, buf, len);
}

/*
 * Who is refused is logged: an operator sees a credential that was not replaced
 * everywhere, or somebody who tries.
 */
static void
log_refusal(struct MHD_Connection *connection, const char *why)
{
	char		address[NI_MAXHOST];

	rbp_log_repeated(RBP_LOG_WARNING, "refused a request from %s: %s",
					 address_of(connection, address, sizeof(address)), why);
}

/*
 * The credential does not permit it: it has another role, or the request is
 * about a donor or client (foreign) that its name does not cover.
 */
static BrokerReply
forbid(struct MHD_Connection *connection, const BrokerRoute *route,
	   const RbpCredential *who, const char *foreign)
{
	char		roles[64] = "";
	char		why[sizeof(((Request *) NULL)->id) + 256];
	char		text[CALLER_LEN];
	BrokerReply reply;

	for (int role = 0; role < RBP_ROLES; role++)
	{
		size_t		used = strlen(roles);

		if ((route->roles & 1u << role) != 0)
			snprintf(roles + used, sizeof(roles) - used, "%s%s",
					 used > 0 ? " or " : "", rbp_role_names[role]);
	}
	if (foreign == NULL)
		snprintf(why, sizeof(why), "%s may not do this: role %s may", caller(who, text), roles);
	else
		snprintf(why, sizeof(why), "%s may not do this for \"%s\": role %s of that name, or of \"*\", may",
				 caller(who, text), foreign, roles);
	log_refusal(connection, why);
	reply = broker_reply_error(403, "%s", why);
	reply.wrong_credential = true;
	return reply;
}

const char *
broker_http_caller(void)
{
	return handled->who.name;
}

const char *
broker_http_caller_host(char *buf, size_t len)
{
	return address_of(handled->connection, buf, len);
}

bool
broker_http_may_hold(const char *what, int64_t all, int64_t most, int64_t own, BrokerReply *error)
{
	const RbpCredential *who = &handled->who;
	bool		any = strcmp(who->name, "*") == 0;
	char		text[CALLER_LEN];
	char		why[CALLER_LEN + 64];

	if (any)
		most -= RBP_SHARE;
	if (all <= most && (any || who->name[0] == '\0' || own <= RBP_SHARE))
		return true;
	if (all > most)
		snprintf(why, sizeof(why), "there is no room for more %s", what);
	else
		snprintf(why, sizeof(why), "%s has %d %s, and may have no more", caller(who, text), RBP_SHARE, what);
	log_refusal(handled->connection, why);
	*error = broker_reply_error(503, "%s", why);
	return false;
}

static BrokerReply
body_too_large(void)
{
	return broker_reply_error(413, "the body is larger than %zu bytes", RBP_JSON_BODY_BYTES);
}

/*
 * A request's headers are complete.  Refuse it now, or set up *request for
 * its body.
 */
static enum MHD_Result
start_request(struct MHD_Connection *connection, const char *url,
			  const char *method, Request **request)
{
	char		id[sizeof((*request)->id)];
	const char *length;
	bool		known_path;
	const BrokerRoute *route = find_route(method, url, id, sizeof(id), &known_path);
	RbpCredential who = {0};

	broker_connection_awaits(connection, BROKER_AWAITS_REQUEST);
	if ((route == NULL || route->kind != ROUTE_PROBE) && !identify(connection, &who))
	{
		char		why[CALLER_LEN + 32];
		char		text[CALLER_LEN];

		if (MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION) == NULL)
			strcpy(why, "it has no credential");
		else if (who.name[0] == '\0')
			strcpy(why, "its credential is wrong");
		else
			snprintf(why, sizeof(why), "its secret of %s is wrong", caller(&who, text));
		log_refusal(connection, why);
		return send_reply(connection, broker_reply_error(401, "the credential is missing or wrong"));
	}
	if (route == NULL || route->kind != ROUTE_PROBE)
		broker_connection_proved(connection, &who);
	if (route == NULL && known_path)
		return send_reply(connection, broker_reply_error(405, "%s does not take %s", url, method));
	if (route == NULL)
		return send_reply(connection, broker_reply_error(404, "there is no %s here", url));
	if (who.name[0] != '\0' && (route->roles & 1u << who.role) == 0)
		return send_reply(connection, forbid(connection, route, &who, NULL));

	length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
										 MHD_HTTP_HEADER_CONTENT_LENGTH);
	if (length != NULL && strtoull(length, NULL, 10) > RBP_JSON_BODY_BYTES)
		return send_reply(connection, body_too_large());

	*request = calloc(1, sizeof(Request));
	if (*request == NULL)
		return MHD_NO;
	(*request)->connection = connection;
	(*request)->route = route;
	(*request)->who = who;
	memcpy((*request)->id, id, sizeof(id));
	return MHD_YES;
}

/* The request whose large body must go before this one may have one; NULL: none. */
static Request *
in_the_way(const Request *request)
{
	const RbpCredential *who = &request->who;
	Request    *own = NULL;
	int			n = 0;
	int			nown = 0;

	for (Request *other = TAILQ_FIRST(&large_requests); other != NULL; other = TAILQ_NEXT(other, large_link))
	{
		n++;
		if (other->who.role == who->role && strcmp(other->who.name, who->name) == 0 && nown++ == 0)
			own = other;
	}
	if (n >= MAX_LARGE)
		return TAILQ_FIRST(&large_requests);
	return who->name[0] != '\0' && nown >= MAX_LARGE_OF_ONE ? own : NULL;
}

/*
 * Wait until this body may be a large one.  The connection of one that is there for
 * longer than its turn meanwhile is ended.  False if it was in vain.
 */
static bool
begin_large(Request *request)
{
	int64_t		give_up = rbp_mono_ms() + LARGE_WAIT_MS;
	Request    *other;

	pthread_mutex_lock(&large_lock);
	while ((other = in_the_way(request)) != NULL && rbp_mono_ms() < give_up)
	{
		int64_t		until = other->large_until < give_up ? other->large_until : give_up;
		struct timespec ts = {.tv_sec = until / 1000,.tv_nsec = until % 1000 * 1000000};

		if (other->large_until <= rbp_mono_ms())
		{
			broker_connection_end(other->connection);
			TAILQ_REMOVE(&large_requests, other, large_link);
			other->large_until = 0;
		}
		else
			(void) pthread_cond_clockwait(&large_ended, &large_lock, CLOCK_MONOTONIC, &ts);
	}
	if (other == NULL)
	{
		request->large = true;
		request->large_until = rbp_mono_ms() + LARGE_TURN_MS;
		TAILQ_INSERT_TAIL(&large_requests, request, large_link);
	}
	pthread_mutex_unlock(&large_lock);
	return other == NULL;
}

static void
free_body(Request *request)
{
	free(request->body.data);
	request->body = (RbpBytes)
	{
		0
	};
	if (!request->large)
		return;
	pthread_mutex_lock(&large_lock);
	if (request->large_until != 0)
		TAILQ_REMOVE(&large_requests, request, large_link);
	request->large = false;
	pthread_cond_broadcast(&large_ended);
	pthread_mutex_unlock(&large_lock);
}

static enum MHD_Result
take_body(Request *request, const char *data, size_t len)
{
	/* a chunked body has no length that could be refused at the start */
	if (request->received > 4 * RBP_JSON_BODY_BYTES)
		return MHD_NO;			/* closes the connection */
	request->received += len;
	if (request->received > LARGE_BODY && !request->large && !begin_large(request))
		return MHD_NO;
	return request->received > RBP_JSON_BODY_BYTES ||
		rbp_bytes_append(&request->body, data, len, RBP_JSON_BODY_BYTES) ? MHD_YES : MHD_NO;
}

/* The donor or client that the request is about, if that is not the caller's; else NULL. */
static char *
foreign_to(const Request *request, const json_t *body)
{
	const char *name = request->who.name;

	if (request->route->foreign == NULL || name[0] == '\0' || strcmp(name, "*") == 0)
		return NULL;
	return request->route->foreign(name, request->id, body);
}

static BrokerReply
call_handler(const Request *request, json_t *body)
{
	const BrokerRoute *route = request->route;
	BrokerReply reply;
	char	   *foreign;

	if (route->kind == ROUTE_PROBE || route->kind == ROUTE_UNLOCKED)
		return route->handler(request->id, body);

	broker_begin();
	handled = request;
	foreign = foreign_to(request, body);
	reply = foreign != NULL ? forbid(request->connection, route, &request->who, foreign) :
		route->handler(request->id, body);
	free(foreign);
	broker_end();
	return reply;
}

/* Wait until no other request with this id is served. */
static void
begin_serial(Request *request)
{
	Request    *other;

	pthread_mutex_lock(&serial_lock);
	do
	{
		for (other = LIST_FIRST(&serial_requests); other != NULL; other = LIST_NEXT(other, link))
		{
			if (other->route == request->route && strcmp(other->id, request->id) == 0)
				break;
		}
		if (other != NULL)
			pthread_cond_wait(&serial_ended, &serial_lock);
	} while (other != NULL);
	LIST_INSERT_HEAD(&serial_requests, request, link);
	pthread_mutex_unlock(&serial_lock);
}

static void
end_serial(Request *request)
{
	pthread_mutex_lock(&serial_lock);
	LIST_REMOVE(request, link);
	pthread_cond_broadcast(&serial_ended);
	pthread_mutex_unlock(&serial_lock);
}

static BrokerReply
run_request(Request *request)
{
	json_error_t why;
	json_t	   *body;
	BrokerReply reply;

	if (request->received > RBP_JSON_BODY_BYTES)
		return body_too_large();
	if (request->route->body == NULL)
		return call_handler(request, NULL);
	if (rbp_json_values(request->body.data, request->body.len) > RBP_JSON_BODY_VALUES)
		return broker_reply_error(413, "the body has more than %zu values, or is nested deeper than %d levels",
								  RBP_JSON_BODY_VALUES, RBP_JSON_LEVELS);
	body = json_loadb(request->body.len > 0 ? request->body.data : "",
					  request->body.len, JSON_REJECT_DUPLICATES, &why);
	free_body(request);
	if (body == NULL)
		return broker_reply_error(400, "the body is not JSON: %s at line %d, column %d",
								  why.text, why.line, why.column);
	if (!json_is_object(body))
		reply = broker_reply_error(400, "the body must be a JSON object");
	else if (broker_check_members(body, request->route->body, &reply))
		reply = call_handler(request, body);
	json_decref(body);
	return reply;
}

static void
count_time(const BrokerRoute *route, int64_t ns)
{
	BrokerTimes *times = &broker_http_times[route - routes];
	int			i = 0;

	while (i < BROKER_TIME_BOUNDS && ns > broker_http_bounds_ms[i] * INT64_C(1000000))
		i++;
	atomic_fetch_add(&times->counts[i], 1);
	atomic_fetch_add(&times->sum_ns, ns);
}

static enum MHD_Result
on_request(void *arg, struct MHD_Connection *connection, const char *url,
		   const char *method, const char *version, const char *data,
		   size_t *len, void **context)
{
	Request    *request = *context;
	BrokerReply reply;
	int64_t		since;

	if (request == NULL)
		return start_request(connection, url, method, (Request **) context);
	if (*len > 0)
	{
		enum MHD_Result result = take_body(request, data, *len);

		*len = 0;
		return result;
	}
	broker_connection_awaits(connection, BROKER_AWAITS_NOTHING);
	if (request->route->kind == ROUTE_SERIAL)
		begin_serial(request);
	since = rbp_now_ns() - broker_waited_ns;
	reply = run_request(request);
	count_time(request->route, rbp_now_ns() - broker_waited_ns - since);
	if (request->route->kind == ROUTE_SERIAL)
		end_serial(request);
	if (reply.status == 403 && !reply.wrong_credential)
	{
		char		why[sizeof(request->id) + CALLER_LEN + 64];
		char		text[CALLER_LEN];

		snprintf(why, sizeof(why), "%s has a wrong secret for lease %s", caller(&request->who, text), request->id);
		log_refusal(connection, why);
	}
	return send_reply(connection, reply);
}

static void
on_completed(void *arg, struct MHD_Connection *connection, void **context,
			 enum MHD_RequestTerminationCode code)
{
	Request    *request = *context;

	broker_connection_awaits(connection, BROKER_AWAITS_NEXT);
	if (request != NULL)
	{
		free_body(request);
		free(request);
		*context = NULL;
	}
}

/*
 * ---- start and stop ---------------------------------------------------------------
 */

bool
broker_http_listen(const char *host, uint16_t port, char *address, size_t len)
{
	struct sockaddr_storage bound = {.ss_family = AF_UNSPEC};
	socklen_t	bound_len = sizeof(bound);
	char		name[NI_MAXHOST];

	broker_connections_init();
	listening = rbp_listen_tcp(host, &port);
	(void) getsockname(listening, (struct sockaddr *) &bound, &bound_len);
	rbp_format_address((struct sockaddr *) &bound, name, sizeof(name));
	rbp_format_hostport(name, port, address, len);
	return rbp_is_loopback((struct sockaddr *) &bound);
}

void
broker_http_start(const BrokerRoute *served, bool tls)
{
	routes = served;
	httpd = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD |
							 MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL |
							 MHD_USE_ITC | (tls ? MHD_USE_TLS : 0),
							 0, NULL, NULL, on_request, NULL,
							 MHD_OPTION_LISTEN_SOCKET, listening,
							 MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
							 MHD_OPTION_NOTIFY_CONNECTION, broker_connection_notify, NULL,
							 MHD_OPTION_CONNECTION_LIMIT, (unsigned) BROKER_ALL_CONNECTIONS,
							 MHD_OPTION_THREAD_STACK_SIZE, (size_t) STACK_SIZE,
	/* without TLS, the list ends here */
							 tls ? MHD_OPTION_HTTPS_CERT_CALLBACK : MHD_OPTION_END, broker_tls_identify,
							 MHD_OPTION_HTTPS_PRIORITIES, "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2",
							 MHD_OPTION_END);
	if (httpd == NULL)
		rbp_die("cannot start the HTTP server");
}

void
broker_http_stop(void)
{
	MHD_stop_daemon(httpd);
	httpd = NULL;
}
