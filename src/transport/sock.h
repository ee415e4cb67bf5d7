/*-------------------------------------------------------------------------
 *
 * sock.h
 *	  Common parts of the tcp and shm transports: a non-blocking stream
 *	  socket, the handshake that proves the lease's secret, and the adaptive
 *	  wait.
 *
 * An RbpSock is embedded in a transport's connection and belongs to one
 * thread at a time.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_TRANSPORT_SOCK_H
#define RBP_TRANSPORT_SOCK_H

#include "common/spin.h"
#include "transport/transport.h"
#include "wire/wire.h"

#include <sys/socket.h>

typedef enum RbpSockState
{
	RBP_SOCK_RETRY,				/* connect() failed with EAGAIN: try again */
	RBP_SOCK_CONNECTING,
	RBP_SOCK_CHALLENGE,			/* HELLO is sent */
	RBP_SOCK_WELCOME,			/* AUTH is sent */
	RBP_SOCK_READY,
	RBP_SOCK_FAILED
} RbpSockState;

typedef struct RbpSock
{
	int			fd;				/* non-blocking, close-on-exec; -1: none */
	RbpSockState state;
	RbpStatus	failure;		/* reason for RBP_SOCK_FAILED */
	struct sockaddr_storage addr;
	socklen_t	addrlen;
	RbpCredentials cred;
	uint8_t		rx[RBP_HANDSHAKE_MAX];	/* a handshake message, possibly
										 * incomplete */
	size_t		rx_have;
	RbpWireWelcome welcome;		/* valid once RBP_SOCK_READY */
	RbpSpin		spin;
} RbpSock;

/*
 * Start to connect to an address.  Never waits.  On failure the socket is
 * closed.
 */
extern RbpStatus rbp_sock_start(RbpSock *sock, const struct sockaddr *addr,
								socklen_t addrlen, const RbpCredentials *cred);

/* See connect_wait() in transport.h. */
extern RbpStatus rbp_sock_connect_wait(RbpSock *sock, int64_t deadline_ns);

/* Mark the socket as failed; the first reason is kept, and returned. */
extern RbpStatus rbp_sock_fail(RbpSock *sock, RbpStatus why);

extern void rbp_sock_close(RbpSock *sock);

/*
 * Block until fd has one of the events, or until deadline_ns.  Returns false
 * at the deadline, and when rbp_transport_give_up() returns true.  It may
 * return true without an event, periodically and when a signal interrupts it.
 */
extern bool rbp_sock_block(int fd, short events, int64_t deadline_ns);

/*
 * State of a wait, whose steps either poll briefly or block.  spin_until is
 * the time at which polling ends.  rbp_waiter_step() returns false if the
 * deadline has passed, or if the wait must be given up.
 */
typedef struct RbpWaiter
{
	RbpSpin    *spin;
	int64_t		spin_until;		/* 0: do not poll, or not any more */
	int64_t		deadline_ns;
	bool		polled;			/* polled at all? */
	bool		blocked;		/* blocked at all? */
	bool		hurt;			/* the core is contended */
} RbpWaiter;

extern void rbp_waiter_begin(RbpWaiter *w, RbpSpin *spin, int64_t deadline_ns);
extern bool rbp_waiter_step(RbpWaiter *w, int fd, short events);
extern void rbp_waiter_end(RbpWaiter *w);

/*
 * register_memory() and deregister_memory() for transports without a device:
 * any memory is accepted.
 */
extern RbpStatus rbp_sock_register_memory(RbpConn *conn, void *base, size_t len,
										  RbpMr **mr);
extern void rbp_sock_deregister_memory(RbpConn *conn, RbpMr *mr);

/* The RbpStatus for a status on the wire. */
extern RbpStatus rbp_status_from_wire(uint16_t status);

#endif							/* RBP_TRANSPORT_SOCK_H */
