/*-------------------------------------------------------------------------
 *
 * policy.h
 *	  Policies: users' settings about which relations belong in the buffer
 *	  tier.  This header is for processes that read and write pages.
 *
 * Policies of relations are stored in the extension's table in each database;
 * the directory has those of the relations' files (buffer/directory.h).  A
 * launcher starts a worker that visits the databases that have policies, one
 * after the other: at start, when a policy is set, when a file with a policy
 * is changed other than by writes, and every remote_bp.policy_interval.  The
 * worker brings the directory in line with the table, and loads pages that
 * should be kept.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_POLICY_H
#define RBP_POLICY_H

#include "postgres.h"

#include "access/xact.h"

/* Progress of the processes that prewarm */
extern Size rbp_prewarm_shmem_size(void);
extern void rbp_prewarm_shmem_init(void *mem);

extern Size rbp_policy_shmem_size(void);
extern void rbp_policy_shmem_init(void *mem);

/*
 * Ask for a visit of the database soon.  InvalidOid: review everything, that
 * is, the server's settings and all databases with policies.  Takes no lock;
 * may be called anywhere where shared memory is attached.
 */
extern void rbp_policy_wake(Oid database);

/* A transaction has ended, which may have set policies. */
extern void rbp_policy_transaction_ends(XactEvent event);

#endif							/* RBP_POLICY_H */
