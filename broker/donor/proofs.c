/*-------------------------------------------------------------------------
 *
 * proofs.c
 *	  How many proofs of a client are accepted: see proofs.h.
 *
 * Peers share the slots of a small table, by a hash that nobody outside can
 * compute.  A slot has a second and what was spent in it, in one word, so
 * that no lock is needed.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/places.h"
#include "broker/donor/proofs.h"
#include "common/clock.h"
#include "transport/peer.h"

#include <stdatomic.h>

#define SLOTS			256
#define PROOFS_MAX		5000	/* of a peer, in a second */

static _Atomic uint64_t slots[SLOTS];	/* second << 32 | spent */

uint64_t
donor_peer_of_address(const struct sockaddr *address)
{
	uint8_t		bytes[16];

	return rbp_address_bytes(address, bytes) ? rbp_place_holder(bytes, sizeof(bytes)) : 0;
}

uint64_t
donor_peer_of_user(uid_t user)
{
	return rbp_place_holder(&user, sizeof(user));
}

bool
donor_proof_allowed(uint64_t peer)
{
	_Atomic uint64_t *slot = &slots[peer % SLOTS];
	uint64_t	second = (uint64_t) (rbp_boottime_ns() / 1000000000) & UINT32_MAX;
	uint64_t	old = atomic_load(slot);
	uint64_t	spent;

	do
	{
		spent = old >> 32 == second ? old & UINT32_MAX : 0;
		if (spent >= PROOFS_MAX)
			return false;
	} while (!atomic_compare_exchange_weak(slot, &old, second << 32 | (spent + 1)));
	return true;
}
