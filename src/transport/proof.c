/*-------------------------------------------------------------------------
 *
 * proof.c
 *	  Proving knowledge of a lease's secret without disclosing it.
 *
 *-------------------------------------------------------------------------
 */
#include "common/hmac.h"
#include "transport/peer.h"

#include <netinet/in.h>
#include <openssl/sha.h>
#include <string.h>

bool
rbp_handshake_mac(const uint8_t secret[RBP_SECRET_LEN],
				  const uint8_t nonce[RBP_NONCE_LEN], const char *lease,
				  uint8_t mac[RBP_MAC_LEN])
{
	uint8_t		input[RBP_MAC_INPUT_MAX];

	return rbp_hmac(secret, input, rbp_wire_mac_input(input, nonce, lease), mac);
}

bool
rbp_verbs_lease_digest(const char *lease, uint8_t digest[RBP_VERBS_DIGEST_LEN])
{
	uint8_t		whole[SHA256_DIGEST_LENGTH];

	if (SHA256((const uint8_t *) lease, strnlen(lease, RBP_LEASE_ID_LEN), whole) == NULL)
		return false;
	memcpy(digest, whole, RBP_VERBS_DIGEST_LEN);
	return true;
}

bool
rbp_address_bytes(const struct sockaddr *address, uint8_t bytes[16])
{
	static const uint8_t v4mapped[12] = {[10] = 0xFF,[11] = 0xFF};

	if (address->sa_family == AF_INET)
	{
		struct sockaddr_in v4;

		memcpy(&v4, address, sizeof(v4));
		memcpy(bytes, v4mapped, sizeof(v4mapped));
		memcpy(bytes + sizeof(v4mapped), &v4.sin_addr, 4);
	}
	else if (address->sa_family == AF_INET6)
	{
		struct sockaddr_in6 v6;

		memcpy(&v6, address, sizeof(v6));
		memcpy(bytes, &v6.sin6_addr, 16);
	}
	else
		return false;
	return true;
}

bool
rbp_verbs_mac(const uint8_t secret[RBP_SECRET_LEN],
			  const uint8_t nonce[RBP_VERBS_NONCE_LEN],
			  const uint8_t digest[RBP_VERBS_DIGEST_LEN],
			  const struct sockaddr *client, uint32_t qpn,
			  uint8_t mac[RBP_VERBS_MAC_LEN])
{
	uint8_t		input[RBP_VERBS_MAC_INPUT];
	uint8_t		address[16];
	uint8_t		whole[RBP_MAC_LEN];

	if (!rbp_address_bytes(client, address) ||
		!rbp_hmac(secret, input,
						rbp_wire_verbs_mac_input(input, nonce, digest, address, qpn), whole))
		return false;
	memcpy(mac, whole, RBP_VERBS_MAC_LEN);
	return true;
}
