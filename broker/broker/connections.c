/*-------------------------------------------------------------------------
 *
 * connections.c
 *	  How many connections there may be, whose, and how long they may take: see
 *	  connections.h.
 *
 * libmicrohttpd's timeout is of idle connections, which one that drips is not.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/connections.h"
#include "broker/common/format.h"
#include "broker/common/log.h"
#include "broker/common/places.h"
#include "common/clock.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define MAX_UNPROVED	(BROKER_MAX_CONNECTIONS / 4)
#define MAX_PROVED		(BROKER_MAX_CONNECTIONS - MAX_UNPROVED)

static const struct
{
	int64_t		ms;				/* 0: it has all the time */
	const char *late;			/* what is wrong then; NULL: nothing */
}			patience[] = {
	[BROKER_AWAITS_NOTHING] = {0, NULL},
	[BROKER_AWAITS_REQUEST] = {10000, "its request takes too long"},
	[BROKER_AWAITS_READER] = {30000, "it does not read the answer"},
	[BROKER_AWAITS_NEXT] = {30000, NULL}
};

typedef struct Connection
{
	RbpPlace	place;			/* first, for tell_late() */
	bool		proved;			/* its thread's */
	_Atomic BrokerAwaited awaited;
} Connection;

static RbpPlaces unproved;
static RbpPlaces proved;

void
broker_connections_init(void)
{
	rbp_places_init(&unproved, MAX_UNPROVED);
	rbp_places_init(&proved, MAX_PROVED);
}

char *
broker_connection_address(int fd, char *buf, size_t len)
{
	struct sockaddr_storage peer = {.ss_family = AF_UNSPEC};
	socklen_t	peer_len = sizeof(peer);

	(void) getpeername(fd, (struct sockaddr *) &peer, &peer_len);
	return rbp_format_address((struct sockaddr *) &peer, buf, len);
}

static int
fd_of(struct MHD_Connection *connection)
{
	return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

static void
log_ended(RbpEnded ended, const Connection *c, const char *of)
{
	char		address[NI_MAXHOST];

	if (ended == RBP_ENDED_OWN)
		rbp_log_repeated(RBP_LOG_WARNING, "ended the oldest connection%s of %s, which has too many", c->proved ? "" : " without a credential",
						 c->proved ? of : broker_connection_address(c->place.fd, address, sizeof(address)));
	else if (ended == RBP_ENDED_ANY)
		rbp_log_repeated(RBP_LOG_WARNING, "ended the oldest connection %s: there are too many", c->proved ? "of all" : "without a credential");
}

static void
await(Connection *c, BrokerAwaited awaited)
{
	int64_t		deadline = patience[awaited].ms == 0 ? INT64_MAX : rbp_mono_ms() + patience[awaited].ms;

	atomic_store(&c->awaited, awaited);
	if (awaited != BROKER_AWAITS_REQUEST || deadline < atomic_load(&c->place.deadline))
		atomic_store(&c->place.deadline, deadline);
}

void
broker_connection_notify(void *arg, struct MHD_Connection *connection, void **context,
						 enum MHD_ConnectionNotificationCode code)
{
	Connection *c = *context;

	if (code == MHD_CONNECTION_NOTIFY_STARTED)
	{
		const struct sockaddr *address =
		MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr;

		*context = c = calloc(1, sizeof(*c));
		if (c == NULL)
		{
			broker_connection_end(connection);
			return;
		}
		c->place.fd = fd_of(connection);
		c->place.deadline = INT64_MAX;
		await(c, BROKER_AWAITS_REQUEST);
		log_ended(rbp_place_take(&unproved, &c->place, rbp_place_holder_of(address), RBP_SHARE), c, NULL);
	}
	else if (c != NULL)
	{
		rbp_place_leave(&c->place);
		free(c);
		*context = NULL;
	}
}

/* NULL if there was no memory for it; then it is ending. */
static Connection *
context_of(struct MHD_Connection *connection)
{
	return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

void
broker_connection_awaits(struct MHD_Connection *connection, BrokerAwaited awaited)
{
	Connection *c = context_of(connection);

	if (c != NULL)
		await(c, awaited);
}

void
broker_connection_proved(struct MHD_Connection *connection, const RbpCredential *who)
{
	Connection *c = context_of(connection);
	uint64_t	holder = rbp_place_holder(who->name, strlen(who->name)) + who->role;
	int			most = who->name[0] == '\0' ? MAX_PROVED :
	strcmp(who->name, "*") == 0 ? MAX_PROVED - RBP_SHARE : RBP_SHARE;
	char		text[RBP_DONOR_ID_LEN + 16];

	if (c == NULL || (c->proved && c->place.holder == holder))
		return;
	c->proved = true;
	snprintf(text, sizeof(text), "%s \"%s\"", rbp_role_names[who->role], who->name);
	log_ended(rbp_place_take(&proved, &c->place, holder, most), c, text);
}

void
broker_connection_end(struct MHD_Connection *connection)
{
	(void) shutdown(fd_of(connection), SHUT_RDWR);
}

static void
tell_late(const RbpPlace *place)
{
	Connection *c = (Connection *) place;
	const char *late = patience[atomic_load(&c->awaited)].late;
	char		address[NI_MAXHOST];

	if (late != NULL)
		rbp_log_repeated(RBP_LOG_WARNING, "refused a request from %s: %s",
						 broker_connection_address(place->fd, address, sizeof(address)), late);
}

void
broker_connections_sweep(void)
{
	rbp_places_end_late(&unproved, rbp_mono_ms(), tell_late);
	rbp_places_end_late(&proved, rbp_mono_ms(), tell_late);
}
