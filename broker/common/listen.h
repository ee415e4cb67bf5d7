/*-------------------------------------------------------------------------
 *
 * listen.h
 *	  Addresses to listen on.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LISTEN_H
#define RBP_LISTEN_H

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Look up the addresses of a host ("": any address) and port (0: any) to bind
 * to.  Returns 0 and the list, for freeaddrinfo(), or an error for
 * gai_strerror().
 */
extern int	rbp_listen_addresses(const char *host, uint16_t port, struct addrinfo **list);

/*
 * Create a non-blocking TCP socket that listens on the first of these
 * addresses that is available; *port is set to its port.  Ends the process if
 * there is none.
 */
extern int	rbp_listen_tcp(const char *host, uint16_t *port);

/* Is it an address that only this machine can reach? */
extern bool rbp_is_loopback(const struct sockaddr *addr);

#endif							/* RBP_LISTEN_H */
