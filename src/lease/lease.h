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

/* Register the worker with the postmaster; only to be called from _PG_init. */
extern void rbp_lease_register(void);

/* The worker's main function. */
extern PGDLLEXPORT void rbp_lease_main(Datum arg);

#endif							/* RBP_LEASE_H */
