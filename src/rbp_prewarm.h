/*-------------------------------------------------------------------------
 *
 * rbp_prewarm.h
 *	  Bring relations into the tier, or into shared buffers, on demand.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_PREWARM_H
#define RBP_PREWARM_H

#include "postgres.h"

/* What each process that prewarms is doing. */
extern Size rbp_prewarm_shmem_size(void);
extern void rbp_prewarm_shmem_init(void *mem);

#endif							/* RBP_PREWARM_H */
