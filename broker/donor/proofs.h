/*-------------------------------------------------------------------------
 *
 * proofs.h
 *	  How many proofs of a client are looked at.
 *
 * Looking at a proof takes some microseconds of a thread that serves others,
 * too.  So that a flood of them does not take its time, only so many of one
 * peer are looked at in a second, over all transports, and far fewer if they
 * are wrong.
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
#include <sys/socket.h>
#include <sys/types.h>

/* The peer with this address (the port is ignored); that of a local user. */
extern uint64_t donor_peer_of_address(const struct sockaddr *address);
extern uint64_t donor_peer_of_user(uid_t user);

/* May a proof of the peer be looked at now?  It is counted if so. */
extern bool donor_proof_allowed(uint64_t peer);

#define DONOR_PROOFS_ARE_MANY	"too many proofs in this second, or wrong ones"

/* A proof of the peer that was looked at was wrong. */
extern void donor_proof_wrong(uint64_t peer);

#endif							/* RBP_DONOR_PROOFS_H */
