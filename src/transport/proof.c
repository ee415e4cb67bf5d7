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
