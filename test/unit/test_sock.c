/*-------------------------------------------------------------------------
 *
 * test_sock.c
 *	  Connecting to a socket of this host.
 *
 *-------------------------------------------------------------------------
 */
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/status.h"
#include "transport/sock.h"

#include "tap.h"

#define CONNECTIONS		64

static bool
same_host(const char *own, const char *peer)
{
	struct sockaddr_storage a;
	struct sockaddr_storage b;
	socklen_t	len;

	return rbp_sock_address(own, 50000, &a, &len) && rbp_sock_address(peer, 7401, &b, &len) &&
		rbp_sock_same_host(&a, &b);
}

static void
test_same_host(void)
{
	ok(same_host("127.0.0.1", "127.0.0.1") && same_host("127.0.0.1", "127.9.8.7") && same_host("::1", "::1"),
	   "loopback is this host");
	ok(same_host("192.0.2.7", "192.0.2.7") && same_host("2001:db8::7", "2001:db8::7"), "so is an address of its own");
	ok(!same_host("192.0.2.7", "192.0.2.8") && !same_host("2001:db8::7", "2001:db8::8") &&
	   !same_host("192.0.2.127", "192.0.127.127") && !same_host("192.0.2.7", "::ffff:192.0.2.7"), "others are not");
}

int
main(void)
{
	static RbpSock socks[CONNECTIONS];
	RbpCredentials cred = {.lease = "lease"};
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	socklen_t	len;
	RbpStatus	status = RBP_OK;
	int			listener = socket(AF_UNIX, SOCK_STREAM, 0);
	int			n = 0;

	test_same_host();

	/* in the abstract namespace */
	len = (socklen_t) (offsetof(struct sockaddr_un, sun_path) + 1 +
					   (size_t) snprintf(addr.sun_path + 1, sizeof(addr.sun_path) - 1,
										 "rbp_test_sock.%d", (int) getpid()));
	ok(listener >= 0 && bind(listener, (struct sockaddr *) &addr, len) == 0 &&
	   listen(listener, 4) == 0, "there is a listener");
	while (n < CONNECTIONS &&
		   (status = rbp_sock_start(&socks[n], (struct sockaddr *) &addr, len, "donor", &cred)) == RBP_OK)
		n++;
	ok(n > 0, "connections are begun");
	is_u64(status, RBP_BUSY, "one more than are to be accepted: a shortage");
	close(listener);
	is_u64(rbp_sock_start(&socks[CONNECTIONS - 1], (struct sockaddr *) &addr, len, "donor", &cred),
		   RBP_CONNLOST, "nobody listens");
	for (int i = 0; i < n; i++)
		rbp_sock_close(&socks[i]);
	return done_testing();
}
