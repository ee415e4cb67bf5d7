/*-------------------------------------------------------------------------
 *
 * test_proof.c
 *	  Proofs and keys of donors, compared with libcrypto's HMAC.
 *
 *-------------------------------------------------------------------------
 */
#include "common/hmac.h"

#include "random.h"
#include "tap.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

#define MAX_LEN		300			/* several blocks */

static uint64_t seed = 7;

static void
fill(uint8_t *buf, size_t len)
{
	for (size_t i = 0; i < len; i++)
		buf[i] = (uint8_t) next_random(&seed);
}

int
main(void)
{
	uint8_t		secret[RBP_SECRET_LEN];
	uint8_t		other[RBP_SECRET_LEN];
	uint8_t		input[MAX_LEN];
	uint8_t		ours[RBP_MAC_LEN];
	uint8_t		theirs[EVP_MAX_MD_SIZE];
	int			same = 0;
	int			differ = 0;

	for (size_t len = 0; len < MAX_LEN; len++)
	{
		unsigned int theirs_len = 0;

		fill(secret, sizeof(secret));
		fill(input, len);
		memset(ours, 0, sizeof(ours));
		if (rbp_hmac(secret, input, len, ours) &&
			HMAC(EVP_sha256(), secret, sizeof(secret), input, len, theirs, &theirs_len) != NULL &&
			theirs_len == sizeof(ours) && memcmp(ours, theirs, sizeof(ours)) == 0)
			same++;
		memcpy(other, secret, sizeof(other));
		other[len % sizeof(other)] ^= (uint8_t) (1 << len % 8);
		if (rbp_hmac(other, input, len, theirs) && memcmp(ours, theirs, sizeof(ours)) != 0)
			differ++;
	}
	is_u64((uint64_t) same, MAX_LEN, "a proof is HMAC-SHA-256 with the secret");
	is_u64((uint64_t) differ, MAX_LEN, "another secret gives another one");

	ok(rbp_donor_key(secret, "mem1:7001", ours) &&
	   HMAC(EVP_sha256(), secret, sizeof(secret), (const uint8_t *) "remote_bp donor mem1:7001", 25, theirs, NULL) != NULL &&
	   memcmp(ours, theirs, sizeof(ours)) == 0, "a donor's key is made of the secret and its id");
	return done_testing();
}
