/*-------------------------------------------------------------------------
 *
 * test_sock.c
 *	  Connecting to a socket of this host, and the handshake, with a donor
 *	  that the test plays.
 *
 *-------------------------------------------------------------------------
 */
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hmac.h"
#include "common/status.h"
#include "transport/peer.h"
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

static const RbpCredentials cred = {.lease = "lease",.secret = {1, 2, 3}};
static struct sockaddr_un addr = {.sun_family = AF_UNIX};
static socklen_t addr_len;
static int	listener;

static void
test_connecting(void)
{
	static RbpSock socks[CONNECTIONS];
	RbpStatus	status = RBP_OK;
	int			n = 0;

	while (n < CONNECTIONS &&
		   (status = rbp_sock_start(&socks[n], (struct sockaddr *) &addr, addr_len, "donor", &cred)) == RBP_OK)
		n++;
	ok(n > 0, "connections are begun");
	is_u64(status, RBP_BUSY, "one more than are to be accepted: a shortage");
	close(listener);
	is_u64(rbp_sock_start(&socks[CONNECTIONS - 1], (struct sockaddr *) &addr, addr_len, "donor", &cred),
		   RBP_CONNLOST, "nobody listens");
	for (int i = 0; i < n; i++)
		rbp_sock_close(&socks[i]);
}

/* What the donor that is played says. */
typedef enum Play
{
	HONEST,
	WRONG_MAC,
	NO_MAC,
	ECHO,						/* the client's MAC */
	OTHER_KEY,					/* that of another donor, or the secret itself */
	THE_SECRET,
	MORE_REGIONS,				/* than its MAC covers */
	LARGER_REGIONS,
	KEPT,						/* what HONEST has said */
	AT_ONCE,					/* a WELCOME without a CHALLENGE */
	CHALLENGE_TWICE,
	OLD,						/* another version; in place of a CHALLENGE */
	DENIES,
	SHORT_WELCOME				/* as version 1 has it */
} Play;

static RbpWireAuth last_auth;

/*
 * Connect; the donor does that.  Returns what the client makes of it.
 */
static RbpStatus
play(Play what)
{
	static uint8_t kept[RBP_WELCOME_SIZE];
	RbpWireTranscript transcript = {.lease = "lease",.donor_nonce = {7, 8, 9}};
	RbpWireWelcome welcome = {.regions = 4,.region_size = 1 << 20};
	uint8_t		buf[RBP_HANDSHAKE_MAX];
	uint8_t		key[RBP_SECRET_LEN];
	RbpWireHello hello;
	RbpWireAuth auth;
	RbpSock		sock;
	RbpStatus	status;
	size_t		len;
	int			donor;

	if (rbp_sock_start(&sock, (struct sockaddr *) &addr, addr_len, "d1", &cred) != RBP_OK ||
		(donor = accept(listener, NULL, NULL)) < 0 ||
		rbp_sock_connect_wait(&sock, 0) != RBP_INPROGRESS ||
		recv(donor, buf, RBP_HELLO_SIZE, MSG_WAITALL) != RBP_HELLO_SIZE ||
		!rbp_wire_get_hello(buf, RBP_HELLO_SIZE, &hello) || strcmp(hello.lease, "lease") != 0)
		abort();

	rbp_wire_put_challenge(buf, transcript.donor_nonce);
	len = RBP_CHALLENGE_SIZE;
	if (what == OLD)
		welcome.prefix.status = RBP_WIRE_VERSION_MISMATCH;
	if (what == OLD || what == AT_ONCE)
		len = rbp_wire_put_welcome(buf, &welcome);
	(void) !send(donor, buf, len, MSG_NOSIGNAL);
	status = rbp_sock_connect_wait(&sock, rbp_now_ns() + 1000000);
	if (status == RBP_INPROGRESS)
	{
		if (recv(donor, buf, RBP_AUTH_SIZE, MSG_WAITALL) != RBP_AUTH_SIZE ||
			!rbp_wire_get_auth(buf, RBP_AUTH_SIZE, &auth))
			abort();
		memcpy(transcript.client_nonce, auth.nonce, sizeof(auth.nonce));
		if (!rbp_donor_key(cred.secret, what == OTHER_KEY ? "d2" : "d1", key))
			abort();
		if (what == HONEST)
		{
			uint8_t		mac[RBP_MAC_LEN];

			ok(rbp_handshake_mac(key, &transcript, NULL, mac) &&
			   memcmp(mac, auth.mac, sizeof(mac)) == 0, "the client proves that it knows the key");
			ok(memcmp(auth.nonce, last_auth.nonce, sizeof(auth.nonce)) != 0, "with a nonce of its own");
			last_auth = auth;
		}
		if (!rbp_handshake_mac(what == THE_SECRET ? cred.secret : key, &transcript, &welcome, welcome.mac))
			abort();
		if (what == WRONG_MAC)
			welcome.mac[RBP_MAC_LEN - 1] ^= 1;
		else if (what == NO_MAC)
			memset(welcome.mac, 0, sizeof(welcome.mac));
		else if (what == ECHO)
			memcpy(welcome.mac, auth.mac, sizeof(welcome.mac));
		else if (what == MORE_REGIONS)
			welcome.regions++;
		else if (what == LARGER_REGIONS)
			welcome.region_size *= 2;
		else if (what == DENIES)
			welcome.prefix.status = RBP_WIRE_DENIED;
		len = rbp_wire_put_welcome(buf, &welcome);
		if (what == HONEST)
			memcpy(kept, buf, len);
		else if (what == KEPT)
			memcpy(buf, kept, len);
		else if (what == CHALLENGE_TWICE)
		{
			len = RBP_CHALLENGE_SIZE;
			rbp_wire_put_challenge(buf, transcript.donor_nonce);
		}
		else if (what == SHORT_WELCOME)
		{
			len = RBP_REFUSAL_SIZE;
			buf[4] = RBP_REFUSAL_SIZE - RBP_PREFIX_SIZE;
		}
		(void) !send(donor, buf, len, MSG_NOSIGNAL);
		close(donor);
		status = rbp_sock_connect_wait(&sock, rbp_now_ns() + INT64_C(5000000000));
	}
	else
		close(donor);
	rbp_sock_close(&sock);
	return status;
}

static void
test_handshake(void)
{
	static const struct
	{
		Play		what;
		RbpStatus	expected;
		const char *name;
	}			cases[] = {
		{HONEST, RBP_OK, "a donor that proves itself"},
		{WRONG_MAC, RBP_UNPROVEN, "a wrong MAC"},
		{NO_MAC, RBP_UNPROVEN, "no MAC"},
		{ECHO, RBP_UNPROVEN, "the client's own MAC"},
		{OTHER_KEY, RBP_UNPROVEN, "a donor that has another donor's key"},
		{THE_SECRET, RBP_UNPROVEN, "or uses the secret as it is"},
		{MORE_REGIONS, RBP_UNPROVEN, "a number of regions that the MAC does not cover"},
		{LARGER_REGIONS, RBP_UNPROVEN, "a size of regions that it does not cover"},
		{KEPT, RBP_UNPROVEN, "a WELCOME of another handshake"},
		{AT_ONCE, RBP_PROTOCOL, "a WELCOME without a CHALLENGE"},
		{CHALLENGE_TWICE, RBP_PROTOCOL, "a second CHALLENGE"},
		{OLD, RBP_OTHER_VERSION, "a donor of another version"},
		{DENIES, RBP_DENIED, "one that denies"},
		{SHORT_WELCOME, RBP_CONNLOST, "one that says no more than in version 1"},
		{HONEST, RBP_OK, "it again"}
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		is_u64(play(cases[i].what), cases[i].expected, "%s: %s", cases[i].name, rbp_status_text(cases[i].expected));
}

int
main(void)
{
	/* in the abstract namespace */
	addr_len = (socklen_t) (offsetof(struct sockaddr_un, sun_path) + 1 +
							(size_t) snprintf(addr.sun_path + 1, sizeof(addr.sun_path) - 1,
											  "rbp_test_sock.%d", (int) getpid()));
	listener = socket(AF_UNIX, SOCK_STREAM, 0);
	ok(listener >= 0 && bind(listener, (struct sockaddr *) &addr, addr_len) == 0 &&
	   listen(listener, 4) == 0, "there is a listener");
	test_same_host();
	test_handshake();
	test_connecting();
	return done_testing();
}
