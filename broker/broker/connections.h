/*-------------------------------------------------------------------------
 *
 * connections.h
 *	  How many connections there may be, whose, and how long they may take.
 *
 * A connection is unproved until a request on it had a credential that is accepted, or
 * needs none.  Each has a deadline that nothing but the next step moves: a request that
 * comes byte by byte ends like one that does not come.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_CONNECTIONS_H
#define RBP_BROKER_CONNECTIONS_H

#include "common/token.h"

#include <microhttpd.h>

/* libmicrohttpd's own bound: some are ending. */
#define BROKER_MAX_CONNECTIONS	2048
#define BROKER_ALL_CONNECTIONS	(BROKER_MAX_CONNECTIONS + 512)

extern void broker_connections_init(void);

/* For MHD_OPTION_NOTIFY_CONNECTION: a connection begins, or has ended. */
extern void broker_connection_notify(void *arg, struct MHD_Connection *connection, void **context,
									 enum MHD_ConnectionNotificationCode code);

/* What a connection is waited for, from now on */
typedef enum BrokerAwaited
{
	BROKER_AWAITS_NOTHING,		/* a request is handled */
	BROKER_AWAITS_REQUEST,		/* the whole request; not longer than before */
	BROKER_AWAITS_READER,		/* that the answer is read */
	BROKER_AWAITS_NEXT			/* the beginning of the next request */
} BrokerAwaited;

extern void broker_connection_awaits(struct MHD_Connection *connection, BrokerAwaited awaited);

/* The connection's request has this credential (its name is "": it needs none). */
extern void broker_connection_proved(struct MHD_Connection *connection, const RbpCredential *who);

/* End it; its thread learns of that. */
extern void broker_connection_end(struct MHD_Connection *connection);

/* End those that take too long.  To be called each second, without broker.lock. */
extern void broker_connections_sweep(void);

/* Where a connection comes from, as text for messages.  Returns buf. */
extern char *broker_connection_address(int fd, char *buf, size_t len);

#endif							/* RBP_BROKER_CONNECTIONS_H */
