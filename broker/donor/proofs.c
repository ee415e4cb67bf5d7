/*-------------------------------------------------------------------------
 *
 * proofs.c
 *	  How many proofs of a client are looked at: see proofs.h.
 *
 * Peers share the places of a small table, by a hash that nobody outside can
 * compute.  A place has a second and what was spent in it, in one word, so
 * that no lock is needed.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/secret.h"
#include "broker/donor/proofs.h"
#include "common/clock.h"
#include "transport/peer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <xxhash.h>

#define PLACES			256
#define PROOFS_MAX		5000	/* of a peer, in a second, if they are right */
#define WRONG_MAX		500		/* ... or wrong */
#define WRONG_COST		(PROOFS_MAX / WRONG_MAX)

static _Atomic uint64_t places[PLACES]; /* second << 32 | spent */
static uint64_t seed;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void
make_seed(void)
{
	rbp_random_bytes(&seed, sizeof(seed));
}

static uint64_t
hash(const void *bytes, size_t len)
{
	(void) pthread_once(&once, make_seed);
	return XXH3_64bits_withSeed(bytes, len, seed);
}

uint64_t
donor_peer_of_address(const struct sockaddr *address)
{
	uint8_t		bytes[16];

	return rbp_address_bytes(address, bytes) ? hash(bytes, sizeof(bytes)) : 0;
}

uint64_t
donor_peer_of_user(uid_t user)
{
	return hash(&user, sizeof(user));
}

/* Spend so much, if the peer has not spent all that it may. */
static bool
spend(uint64_t peer, uint32_t cost)
{
	_Atomic uint64_t *place = &places[peer % PLACES];
	uint64_t	second = (uint64_t) (rbp_boottime_ns() / 1000000000) & UINT32_MAX;
	uint64_t	old = atomic_load(place);
	uint64_t	spent;

	do
	{
		spent = old >> 32 == second ? old & UINT32_MAX : 0;
		if (spent >= PROOFS_MAX)
			return false;
	} while (!atomic_compare_exchange_weak(place, &old, second << 32 | (spent + cost)));
	return true;
}

bool
donor_proof_allowed(uint64_t peer)
{
	return spend(peer, 1);
}

void
donor_proof_wrong(uint64_t peer)
{
	(void) spend(peer, WRONG_COST - 1);
}
