/*-------------------------------------------------------------------------
 *
 * proof.c
 *	  Proofs of a client and a donor that they know the lease's key for this
 *	  donor.
 *
 *-------------------------------------------------------------------------
 */
#include "common/hmac.h"
#include "transport/peer.h"

#include <netinet/in.h>
#include <openssl/sha.h>
#include <string.h>

bool
rbp_handshake_mac(const uint8_t key[RBP_SECRET_LEN], RbpWireTranscript *transcript,
				  const RbpWireWelcome *welcome, uint8_t mac[RBP_MAC_LEN])
{
	strncpy(transcript->label, welcome != NULL ? RBP_LABEL_WELCOME : RBP_LABEL_AUTH,
			sizeof(transcript->label));
	transcript->version = RBP_WIRE_VERSION;
	transcript->regions = welcome != NULL ? welcome->regions : 0;
	transcript->region_size = welcome != NULL ? welcome->region_size : 0;
	return rbp_hmac(key, transcript, sizeof(*transcript), mac);
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
rbp_verbs_mac(const uint8_t key[RBP_SECRET_LEN], const RbpWireVerbsHello *hello,
			  const struct sockaddr *client, uint32_t qpn,
			  const RbpWireVerbsWelcome *welcome, uint8_t mac[RBP_MAC_LEN])
{
	RbpWireVerbsTranscript transcript = {.version = RBP_WIRE_VERSION,.qpn = qpn};

	strncpy(transcript.label, welcome != NULL ? RBP_LABEL_REP : RBP_LABEL_REQ,
			sizeof(transcript.label));
	memcpy(transcript.nonce, hello->nonce, sizeof(transcript.nonce));
	memcpy(transcript.digest, hello->digest, sizeof(transcript.digest));
	if (welcome != NULL)
	{
		transcript.regions = welcome->regions;
		transcript.table_key = welcome->table_key;
		transcript.region_size = welcome->region_size;
		transcript.table_address = welcome->table_address;
	}
	return rbp_address_bytes(client, transcript.address) &&
		rbp_hmac(key, &transcript, sizeof(transcript), mac);
}
