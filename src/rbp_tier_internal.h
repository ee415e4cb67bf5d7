/*-------------------------------------------------------------------------
 *
 * rbp_tier_internal.h
 *	  The buffer tier's objects in shared memory, for the files of the tier.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_TIER_INTERNAL_H
#define RBP_TIER_INTERNAL_H

#include "rbp_directory.h"
#include "rbp_staging.h"

/* NULL before shared memory is attached, and after. */
extern RbpDirectory *rbp_dir;
extern RbpStaging *rbp_staging;

#endif							/* RBP_TIER_INTERNAL_H */
