/*-------------------------------------------------------------------------
 *
 * sock.h
 *	  Common parts of the tcp and shm transports: a non-blocking stream
 *	  socket, the handshake by which both ends prove themselves, and a wait that
 *	  polls first, if that has paid off lately, and then blocks.  At the end
 *	  is what all transports have in common.
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
	uint8_t		key[RBP_SECRET_LEN];	/* the donor's; until the end of the
										 * handshake */
	RbpWireTranscript transcript;
	uint8_t		rx[RBP_HANDSHAKE_MAX];	/* a handshake message, possibly
										 * incomplete */
	size_t		rx_have;
	RbpWireWelcome welcome;		/* valid once RBP_SOCK_READY */
	RbpSpin		spin;
} RbpSock;

/*
 * Start to connect to that donor, at an address.  Never waits.  On failure the
 * socket is closed.
 */
extern RbpStatus rbp_sock_start(RbpSock *sock, const struct sockaddr *addr,
								socklen_t addrlen, const char *donor,
								const RbpCredentials *cred);

/* See connect_wait() in transport.h. */
extern RbpStatus rbp_sock_connect_wait(RbpSock *sock, int64_t deadline_ns);

/*
 * Do these two ends of a connection belong to one host?  They have the same address, or
 * one that leads to no other host.
 */
extern bool rbp_sock_same_host(const struct sockaddr_storage *own,
							   const struct sockaddr_storage *peer);

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
 * State of a wait, whose steps either poll briefly or block, for the events on
 * fd.  spin_until is the time at which polling ends.
 *
 * Begin; take steps until what is waited for has happened, or
 * rbp_waiter_step() returns false, since the deadline has passed or the wait
 * must be given up; end, which teaches *spin whether polling pays off.
 */
typedef struct RbpWaiter
{
	RbpSpin    *spin;
	int64_t		spin_until;		/* 0: do not poll, or not any more */
	int64_t		deadline_ns;
	bool		polled;			/* polled at all? */
	RbpSpinResult result;		/* of that */
} RbpWaiter;

extern void rbp_waiter_begin(RbpWaiter *w, RbpSpin *spin, int64_t deadline_ns);
extern bool rbp_waiter_step(RbpWaiter *w, int fd, short events);
extern void rbp_waiter_end(RbpWaiter *w);

/* The RbpStatus for a status on the wire. */
extern RbpStatus rbp_status_from_wire(uint16_t status);

/*
 * Convert a numeric host and a port to an address.  A link-local address may
 * have a scope, "fe80::1%eth0".  Returns false if the host is a name, or the
 * scope is no interface of this machine.
 */
extern bool rbp_sock_address(const char *host, uint16_t port,
							 struct sockaddr_storage *addr, socklen_t *len);

/* Is it a ping, or does it move bytes within a region of that size? */
extern bool rbp_io_valid(const RbpIo *io, uint64_t region_size);

/* Set the status of each request.  Returns it. */
extern RbpStatus rbp_io_set_all(RbpIo *ios, int n, RbpStatus status);

/* The first status that is not RBP_OK, or else RBP_OK. */
extern RbpStatus rbp_io_result(const RbpIo *ios, int n);

#endif							/* RBP_TRANSPORT_SOCK_H */
