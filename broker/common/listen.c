/*-------------------------------------------------------------------------
 *
 * listen.c
 *	  Addresses to listen on.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/listen.h"
#include "broker/common/log.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int
rbp_listen_addresses(const char *host, uint16_t port, struct addrinfo **list)
{
	struct addrinfo hints = {
		.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
		.ai_socktype = SOCK_STREAM
	};
	char		service[8];

	snprintf(service, sizeof(service), "%u", (unsigned) port);
	return getaddrinfo(host[0] != '\0' ? host : NULL, service, &hints, list);
}

int
rbp_listen_tcp(const char *host, uint16_t *port)
{
	struct addrinfo *list;
	struct sockaddr_storage bound;
	socklen_t	len = sizeof(bound);
	int			fd = -1;
	int			error = rbp_listen_addresses(host, *port, &list);

	if (error != 0)
		rbp_die("could not resolve \"%s\": %s", host, gai_strerror(error));
	for (struct addrinfo *ai = list; ai != NULL && fd < 0; ai = ai->ai_next)
	{
		int			on = 1;

		fd = socket(ai->ai_family, ai->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
					ai->ai_protocol);
		if (fd >= 0 &&
			setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
			bind(fd, ai->ai_addr, ai->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0 &&
			getsockname(fd, (struct sockaddr *) &bound, &len) == 0)
			break;
		error = errno;
		if (fd >= 0)
			close(fd);
		fd = -1;
	}
	freeaddrinfo(list);
	if (fd < 0)
		rbp_die("could not listen on %s port %u: %s", host, (unsigned) *port, strerror(error));

	/* sin6_port is at the same place */
	*port = ntohs(((struct sockaddr_in *) &bound)->sin_port);
	return fd;
}

bool
rbp_is_loopback(const struct sockaddr *addr)
{
	const struct in6_addr *six = &((const struct sockaddr_in6 *) addr)->sin6_addr;
	const struct in_addr *four = &((const struct sockaddr_in *) addr)->sin_addr;

	if (addr->sa_family == AF_INET6)
		return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
	return addr->sa_family == AF_INET && ntohl(four->s_addr) >> 24 == 127;
}
