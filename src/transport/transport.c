/*-------------------------------------------------------------------------
 *
 * transport.c
 *	  The list of transports, the choice among them, and common functions.
 *
 *-------------------------------------------------------------------------
 */
#include "transport/peer.h"
#include "transport/transport.h"

#include <net/if.h>
#include <netdb.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

uint32_t	rbp_transport_accesses = 0;

const RbpTransportOps *rbp_transports[] = {
	&rbp_transport_shm,
	&rbp_transport_verbs,
	&rbp_transport_tcp,
	NULL
};

const RbpTransportOps *
rbp_transport_by_name(const char *name)
{
	for (int i = 0; rbp_transports[i] != NULL; i++)
		if (strcmp(rbp_transports[i]->name, name) == 0)
			return rbp_transports[i];
	return NULL;
}

const RbpTransportOps *
rbp_transport_by_bit(uint32_t bit)
{
	for (int i = 0; rbp_transports[i] != NULL; i++)
		if (rbp_transports[i]->bit == bit)
			return rbp_transports[i];
	return NULL;
}

const RbpTransportOps *
rbp_transport_choose(const char *want, const RbpEndpoint *ep)
{
	for (int i = 0; rbp_transports[i] != NULL; i++)
	{
		const RbpTransportOps *ops = rbp_transports[i];

		if (strcmp(want, "auto") != 0 && strcmp(want, ops->name) != 0)
			continue;
		if ((ep->transports & ops->bit) == 0 || !ops->usable(ep))
			continue;
		return ops;
	}
	return NULL;
}

void
rbp_transport_init(void)
{
	/*
	 * libcrypto reads its configuration when it is first used, which should
	 * not be in a handshake that has a deadline.  More is not done here: each
	 * child of this process would have it to free.
	 */
	(void) OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CONFIG, NULL);
	(void) rbp_transport_boot_id();
}

static bool (*must_give_up) (void) = NULL;

void
rbp_transport_set_give_up(bool (*give_up) (void))
{
	must_give_up = give_up;
}

bool
rbp_transport_give_up(void)
{
	return must_give_up != NULL && must_give_up();
}

bool
rbp_transport_resolve(const char *host, char *numeric, size_t len)
{
	struct addrinfo hints = {.ai_flags = AI_ADDRCONFIG,.ai_socktype = SOCK_STREAM};
	struct addrinfo *found = NULL;
	size_t		used = 0;

	numeric[0] = '\0';
	if (getaddrinfo(host, NULL, &hints, &found) != 0)
		return false;
	for (struct addrinfo *ai = found; ai != NULL; ai = ai->ai_next)
	{
		char		text[INET6_ADDRSTRLEN + IF_NAMESIZE + 1];

		if (getnameinfo(ai->ai_addr, ai->ai_addrlen, text, sizeof(text),
						NULL, 0, NI_NUMERICHOST) != 0 ||
			used + strlen(text) + 2 > len)
			continue;
		used += (size_t) snprintf(numeric + used, len - used, "%s%s",
								  used > 0 ? "," : "", text);
	}
	freeaddrinfo(found);
	return used > 0;
}

const char *
rbp_transport_boot_id(void)
{
	static char boot_id[RBP_BOOT_ID_LEN];

	if (boot_id[0] == '\0')
		(void) rbp_read_line("/proc/sys/kernel/random/boot_id", boot_id, sizeof(boot_id));
	return boot_id;
}
