/*-------------------------------------------------------------------------
 *
 * proofs.h
 *	  How many proofs of a client are accepted.
 *
 * Only so many right proofs of one peer are accepted in a second, over all
 * transports, so that one who connects again and again does not take the time of
 * threads that serve others, too.  Wrong ones do not count: whoever shares a peer's
 * address could keep it out by them.
 *
 * A peer is an address, or a user of this host: whoever is behind it shares
 * the limit.  Any thread may call these functions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DONOR_PROOFS_H
#define RBP_DONOR_PROOFS_H

#include <stdbool.h>
#include <stdint.h>

/* May a proof of the peer, a holder of places.h, that is right be accepted now?  It is counted if so. */
extern bool donor_proof_allowed(uint64_t peer);

#define DONOR_PROOFS_ARE_MANY	"it has connected too often in this second"

#endif							/* RBP_DONOR_PROOFS_H */
