/*-------------------------------------------------------------------------
 *
 * seal.c
 *	  Sealing the pages of slots: AES-256-GCM.
 *
 * A nonce that is used twice with a key gives both texts away, and the means to forge
 * others.  So the version is raised before anything is sealed, by compare-and-swap, even
 * though a slot has one writer: a process that is killed here has used a version up,
 * and two writers by mistake have two.  The highest version of all slots is raised
 * before it is used, too: where slots' versions are not kept, those that come next
 * are above it.
 *
 * The tag is cut to 8 bytes: a forged page is accepted with a probability of 2^-64 or
 * so, once for each try, and each failed try counts against the donor.
 *
 *-------------------------------------------------------------------------
 */
#include <openssl/evp.h>

#include "base/injection_point.h"
#include "remote/seal.h"

#define NONCE_LEN	12

/* The last four bytes are zeros: slot and version are enough, see remote/README.md. */
static void
make_nonce(uint32_t slot, uint32_t version, uint8_t nonce[NONCE_LEN])
{
	const uint32_t words[NONCE_LEN / 4] = {slot, version, 0};

	memcpy(nonce, words, NONCE_LEN);
}

bool
rbp_sealer_init(RbpSealer *s)
{
	if (s->seal != NULL)
		return true;
	s->seal = EVP_CIPHER_CTX_new();
	s->open = EVP_CIPHER_CTX_new();
	/* libcrypto looks the cipher up now, not in each process */
	return s->seal != NULL && s->open != NULL &&
		EVP_EncryptInit_ex(s->seal, EVP_aes_256_gcm(), NULL, NULL, NULL) == 1 &&
		EVP_DecryptInit_ex(s->open, EVP_aes_256_gcm(), NULL, NULL, NULL) == 1;
}

bool
rbp_sealer_set_key(RbpSealer *s, const uint8_t key[RBP_SEAL_KEY_LEN], uint32_t serial)
{
	static const uint8_t none[RBP_SEAL_KEY_LEN];

	s->serial = 0;
	if (memcmp(key, none, RBP_SEAL_KEY_LEN) == 0 ||
		EVP_EncryptInit_ex(s->seal, NULL, NULL, key, NULL) != 1 ||
		EVP_DecryptInit_ex(s->open, NULL, NULL, key, NULL) != 1)
		return false;
	s->serial = serial;
	return true;
}

/* Raise the slot's version.  0: it has none left. */
static uint32_t
raise_version(RbpSealVersions *versions, RbpSealed *sealed)
{
	uint32_t	version = __atomic_load_n(&sealed->version, __ATOMIC_RELAXED);
	uint32_t	highest = __atomic_load_n(&versions->highest, __ATOMIC_RELAXED);
	uint32_t	next;

	do
	{
		next = (version > versions->floor ? version : versions->floor) + 1;
		if (RBP_INJECTION_POINT("reuse-nonce"))
			next = 1;
		if (next == 0)
			return 0;
	} while (!__atomic_compare_exchange_n(&sealed->version, &version, next, false,
										  __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
	while (highest < next &&
		   !__atomic_compare_exchange_n(&versions->highest, &highest, next, false,
										__ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		;
	return next;
}

bool
rbp_seal(RbpSealer *s, RbpSealVersions *versions, RbpSealed *sealed, uint32_t slot,
		 const void *page, void *text)
{
	uint32_t	version = raise_version(versions, sealed);
	uint8_t		nonce[NONCE_LEN];
	int			len;
	int			rest;

	if (version == 0)
		return false;
	make_nonce(slot, version, nonce);
	return EVP_EncryptInit_ex(s->seal, NULL, NULL, NULL, nonce) == 1 &&
		EVP_EncryptUpdate(s->seal, text, &len, page, RBP_PAGE_SIZE) == 1 && len == RBP_PAGE_SIZE &&
		EVP_EncryptFinal_ex(s->seal, (uint8_t *) text + len, &rest) == 1 &&
		EVP_CIPHER_CTX_ctrl(s->seal, EVP_CTRL_GCM_GET_TAG, RBP_SEAL_TAG_LEN, sealed->tag) == 1;
}

bool
rbp_unseal(RbpSealer *s, const RbpSealed *sealed, uint32_t slot, void *page)
{
	RbpSealed	is = *sealed;
	uint8_t		nonce[NONCE_LEN];
	int			len;
	int			rest;

	make_nonce(slot, is.version, nonce);
	return EVP_DecryptInit_ex(s->open, NULL, NULL, NULL, nonce) == 1 &&
		EVP_CIPHER_CTX_ctrl(s->open, EVP_CTRL_GCM_SET_TAG, RBP_SEAL_TAG_LEN, is.tag) == 1 &&
		EVP_DecryptUpdate(s->open, page, &len, page, RBP_PAGE_SIZE) == 1 && len == RBP_PAGE_SIZE &&
		(EVP_DecryptFinal_ex(s->open, (uint8_t *) page + len, &rest) == 1 ||
		 RBP_INJECTION_POINT("no-seal-check"));
}
