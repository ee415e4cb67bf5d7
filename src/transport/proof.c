/*-------------------------------------------------------------------------
 *
 * proof.c
 *	  Proving knowledge of a lease's secret without disclosing it.
 *
 * HMAC (RFC 2104) is put together from SHA-256 here.  libcrypto's own looks for an
 * implementation and allocates, and each page that it writes for that is copied
 * in a process that was just forked: this took a backend half of the time of its
 * first handshake over shared memory.
 *
 *-------------------------------------------------------------------------
 */
/* declares functions that version 3 advises against, since it favours looking up */
#define OPENSSL_API_COMPAT	10100

#include "transport/peer.h"

#include <netinet/in.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <string.h>

/* A block of SHA-256; the key is shorter. */
#define BLOCK_LEN	SHA256_CBLOCK

_Static_assert(RBP_SECRET_LEN <= BLOCK_LEN && RBP_MAC_LEN == SHA256_DIGEST_LENGTH,
			   "the key is used as it is, and so is the digest");

/* Digest of the key, combined with that byte, and the input. */
static bool
keyed_digest(const uint8_t secret[RBP_SECRET_LEN], uint8_t pad, const uint8_t *input,
			 size_t len, uint8_t digest[SHA256_DIGEST_LENGTH])
{
	uint8_t		key[BLOCK_LEN];
	SHA256_CTX	context;
	bool		ok;

	memset(key, pad, sizeof(key));
	for (int i = 0; i < RBP_SECRET_LEN; i++)
		key[i] ^= secret[i];
	ok = SHA256_Init(&context) == 1 && SHA256_Update(&context, key, sizeof(key)) == 1 &&
		SHA256_Update(&context, input, len) == 1 && SHA256_Final(digest, &context) == 1;
	OPENSSL_cleanse(key, sizeof(key));
	OPENSSL_cleanse(&context, sizeof(context));
	return ok;
}

bool
rbp_secret_mac(const uint8_t secret[RBP_SECRET_LEN], const uint8_t *input,
			   size_t len, uint8_t mac[RBP_MAC_LEN])
{
	uint8_t		inner[SHA256_DIGEST_LENGTH];

	return keyed_digest(secret, 0x36, input, len, inner) &&
		keyed_digest(secret, 0x5c, inner, sizeof(inner), mac);
}

bool
rbp_handshake_mac(const uint8_t secret[RBP_SECRET_LEN],
				  const uint8_t nonce[RBP_NONCE_LEN], const char *lease,
				  uint8_t mac[RBP_MAC_LEN])
{
	uint8_t		input[RBP_MAC_INPUT_MAX];

	return rbp_secret_mac(secret, input, rbp_wire_mac_input(input, nonce, lease), mac);
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
		!rbp_secret_mac(secret, input,
						rbp_wire_verbs_mac_input(input, nonce, digest, address, qpn), whole))
		return false;
	memcpy(mac, whole, RBP_VERBS_MAC_LEN);
	return true;
}
