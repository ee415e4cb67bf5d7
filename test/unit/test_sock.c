/*-------------------------------------------------------------------------
 *
 * test_sock.c
 *	  Connecting to a socket of this host.
 *
 *-------------------------------------------------------------------------
 */
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

	/* in the abstract namespace */
	len = (socklen_t) (offsetof(struct sockaddr_un, sun_path) + 1 +
					   (size_t) snprintf(addr.sun_path + 1, sizeof(addr.sun_path) - 1,
										 "rbp_test_sock.%d", (int) getpid()));
	ok(listener >= 0 && bind(listener, (struct sockaddr *) &addr, len) == 0 &&
	   listen(listener, 4) == 0, "there is a listener");
	while (n < CONNECTIONS &&
		   (status = rbp_sock_start(&socks[n], (struct sockaddr *) &addr, len, &cred)) == RBP_OK)
		n++;
	ok(n > 0, "connections are begun");
	is_u64(status, RBP_BUSY, "one more than are to be accepted: a shortage");
	close(listener);
	is_u64(rbp_sock_start(&socks[CONNECTIONS - 1], (struct sockaddr *) &addr, len, &cred),
		   RBP_CONNLOST, "nobody listens");
	for (int i = 0; i < n; i++)
		rbp_sock_close(&socks[i]);
	return done_testing();
}
