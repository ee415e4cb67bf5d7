/*-------------------------------------------------------------------------
 *
 * policy.h
 *	  What belongs in the buffer tier, as somebody has said it in SQL: the part
 *	  in shared memory, for who reads and writes pages.
 *
 * Policies of relations are in the extension's table in each database, and their
 * files' in the directory (buffer/directory.h).  A launcher has a worker visit the
 * databases that have policies, one after the other: at start, when somebody sets
 * a policy, when a file that has one is changed other than by writes, and
 * every remote_bp.policy_interval.  The worker brings the directory in line
 * with the table, and loads what is to be kept.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_POLICY_H
#define RBP_POLICY_H

#include "postgres.h"

/* What each process that prewarms is doing. */
extern Size rbp_prewarm_shmem_size(void);
extern void rbp_prewarm_shmem_init(void *mem);

extern Size rbp_policy_shmem_size(void);
extern void rbp_policy_shmem_init(void *mem);

/*
 * Have the database visited soon; InvalidOid: look at all that the launcher looks
 * at.  No lock; may be called anywhere where shared memory is attached.
 */
extern void rbp_policy_wake(Oid database);

/* Register the launcher; in _PG_init. */
extern void rbp_policy_register(void);

#endif							/* RBP_POLICY_H */
