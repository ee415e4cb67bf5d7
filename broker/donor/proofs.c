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
#include "broker/donor/proofs.h"
#include "common/clock.h"

#include <stdatomic.h>

#define SLOTS			256
#define PROOFS_MAX		5000	/* of a peer, in a second */

static _Atomic uint64_t slots[SLOTS];	/* second << 32 | spent */

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
