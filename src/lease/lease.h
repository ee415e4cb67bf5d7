/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  The lease worker: gets memory from the broker, keeps it, follows the
 *	  settings, and gives it back.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LEASE_H
#define RBP_LEASE_H

#include "postgres.h"

/* Have the postmaster run the worker; in _PG_init only. */
extern void rbp_lease_register(void);

/* The worker's main function, for the postmaster. */
extern PGDLLEXPORT void rbp_lease_main(Datum arg);

#endif							/* RBP_LEASE_H */
