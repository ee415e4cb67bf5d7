/*-------------------------------------------------------------------------
 *
 * proof.c
 *	  Proving knowledge of a lease's secret without disclosing it.
 *
 *-------------------------------------------------------------------------
 */
#include "transport/peer.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

bool
rbp_secret_mac(const uint8_t secret[RBP_SECRET_LEN], const uint8_t *input,
			   size_t len, uint8_t mac[RBP_MAC_LEN])
{
	unsigned int maclen = 0;

	return HMAC(EVP_sha256(), secret, RBP_SECRET_LEN, input, len, mac,
				&maclen) != NULL && maclen == RBP_MAC_LEN;
}

bool
rbp_handshake_mac(const uint8_t secret[RBP_SECRET_LEN],
				  const uint8_t nonce[RBP_NONCE_LEN], const char *lease,
				  uint8_t mac[RBP_MAC_LEN])
{
	uint8_t		input[RBP_MAC_INPUT_MAX];

	return rbp_secret_mac(secret, input, rbp_wire_mac_input(input, nonce, lease), mac);
}
