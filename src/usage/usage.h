/*-------------------------------------------------------------------------
 *
 * usage.h
 *	  Which queries the tier serves.  The door of this room.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_USAGE_H
#define RBP_USAGE_H

#include "postgres.h"

extern Size rbp_statements_shmem_size(void);
extern void rbp_statements_shmem_init(void *mem);

/* Install the hooks.  Call this in _PG_init, after rbp_guc_init(). */
extern void rbp_usage_init(void);

#endif							/* RBP_USAGE_H */
