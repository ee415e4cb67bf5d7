/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  The lease worker: obtains memory from the broker, renews its leases,
 *	  follows the settings, and returns memory.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LEASE_H
#define RBP_LEASE_H

#include "postgres.h"

/*
 * The worker's main function.  The worker is a library of its own, remote_bp_lease,
 * with the libraries that requests to the broker need: no other process has
 * them.
 */
extern PGDLLEXPORT void rbp_lease_main(Datum arg);

#endif							/* RBP_LEASE_H */
