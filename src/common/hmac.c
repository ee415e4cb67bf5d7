/*-------------------------------------------------------------------------
 *
 * hmac.c
 *	  HMAC-SHA256, and the keys of donors.
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

#include "common/hmac.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <string.h>

/* A block of SHA-256; the key is shorter. */
#define BLOCK_LEN	SHA256_CBLOCK

_Static_assert(RBP_SECRET_LEN <= BLOCK_LEN && RBP_MAC_LEN == SHA256_DIGEST_LENGTH &&
			   RBP_SECRET_LEN == RBP_MAC_LEN,
			   "a key is used as it is, and so is the digest, also as a key");

/* Digest of the key, combined with that byte, and the input. */
static bool
keyed_digest(const uint8_t key[RBP_SECRET_LEN], uint8_t pad, const void *input,
			 size_t len, uint8_t digest[SHA256_DIGEST_LENGTH])
{
	uint8_t		block[BLOCK_LEN];
	SHA256_CTX	context;
	bool		ok;

	memset(block, pad, sizeof(block));
	for (int i = 0; i < RBP_SECRET_LEN; i++)
		block[i] ^= key[i];
	ok = SHA256_Init(&context) == 1 && SHA256_Update(&context, block, sizeof(block)) == 1 &&
		SHA256_Update(&context, input, len) == 1 && SHA256_Final(digest, &context) == 1;
	OPENSSL_cleanse(block, sizeof(block));
	OPENSSL_cleanse(&context, sizeof(context));
	return ok;
}

bool
rbp_hmac(const uint8_t key[RBP_SECRET_LEN], const void *input, size_t len,
		 uint8_t mac[RBP_MAC_LEN])
{
	uint8_t		inner[SHA256_DIGEST_LENGTH];

	return keyed_digest(key, 0x36, input, len, inner) &&
		keyed_digest(key, 0x5c, inner, sizeof(inner), mac);
}

bool
rbp_donor_key(const uint8_t secret[RBP_SECRET_LEN], const char *donor,
			  uint8_t key[RBP_SECRET_LEN])
{
	static const char label[] = "remote_bp donor ";
	char		input[sizeof(label) + RBP_DONOR_ID_LEN];
	size_t		len = strnlen(donor, RBP_DONOR_ID_LEN);

	memcpy(input, label, sizeof(label) - 1);
	memcpy(input + sizeof(label) - 1, donor, len);
	return rbp_hmac(secret, input, sizeof(label) - 1 + len, key);
}
