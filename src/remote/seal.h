/*-------------------------------------------------------------------------
 *
 * seal.h
 *	  Sealing the pages of slots: AES-256-GCM.
 *
 * What is kept of a slot is the version of what was sealed last, and its tag.  The nonce
 * is made of the slot and the version.  Slots are numbers here; whose they are, and
 * whether a page has to be sealed, is for the caller to say.
 *
 * Includes no postgres.h: it is tested outside the server.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SEAL_H
#define RBP_SEAL_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/geometry.h"

#define RBP_SEAL_KEY_LEN	32
#define RBP_SEAL_TAG_LEN	8

/* Of a slot, in shared memory; all zeros at first. */
typedef struct RbpSealed
{
	uint32_t	version;		/* raised, atomically, before each sealing */
	uint8_t		tag[RBP_SEAL_TAG_LEN];	/* zeros: its text is plain */
} RbpSealed;

_Static_assert(sizeof(RbpSealed) == 12, "the documents say so");

/* Of all slots for which there is a key, in shared memory; likewise. */
typedef struct RbpSealVersions
{
	uint32_t	floor;			/* next versions are above it */
	uint32_t	highest;		/* so far, and so not 0 if anything was ever
								 * sealed; atomic */
} RbpSealVersions;

/* What a process seals and opens with: libcrypto's contexts, with a key. */
typedef struct RbpSealer
{
	void	   *seal;
	void	   *open;
	uint32_t	serial;			/* of the key, for the caller; 0: none */
} RbpSealer;

/* Make the contexts, unless they are there; false if libcrypto has none. */
extern bool rbp_sealer_init(RbpSealer *s);

/* Use this key, of that serial.  False, with no key, if that fails, or it is all zeros. */
extern bool rbp_sealer_set_key(RbpSealer *s, const uint8_t key[RBP_SEAL_KEY_LEN], uint32_t serial);

/*
 * Seal the slot's page into text.  Who may write the slot has it alone.  False if
 * the slot has no version left, or libcrypto fails.
 */
extern bool rbp_seal(RbpSealer *s, RbpSealVersions *versions, RbpSealed *sealed, uint32_t slot,
					 const void *page, void *text);

/*
 * Open the slot's text, in place.  False if it is not the text that was sealed last;
 * then the page is undefined.
 */
extern bool rbp_unseal(RbpSealer *s, const RbpSealed *sealed, uint32_t slot, void *page);

/* Was anything ever sealed?  If not, no slot need be looked at. */
static inline bool
rbp_any_sealed(const RbpSealVersions *versions)
{
	return __atomic_load_n(&versions->highest, __ATOMIC_RELAXED) != 0;
}

/* Has a slot used half of its versions?  It takes years, and leaves time for another key. */
static inline bool
rbp_versions_run_out(const RbpSealVersions *versions)
{
	return __atomic_load_n(&versions->highest, __ATOMIC_RELAXED) > UINT32_MAX / 2;
}

static inline bool
rbp_is_sealed(const RbpSealed *sealed)
{
	static const uint8_t none[RBP_SEAL_TAG_LEN];

	return memcmp(sealed->tag, none, RBP_SEAL_TAG_LEN) != 0;
}

/* The slot's text will be plain. */
static inline void
rbp_forget_seal(RbpSealed *sealed)
{
	memset(sealed->tag, 0, RBP_SEAL_TAG_LEN);
}

#endif							/* RBP_SEAL_H */
