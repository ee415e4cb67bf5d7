/*-------------------------------------------------------------------------
 *
 * buffer_internal.h
 *	  The buffer tier's objects in shared memory, for the files of the tier.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BUFFER_INTERNAL_H
#define RBP_BUFFER_INTERNAL_H

#include "buffer/directory.h"
#include "buffer/staging.h"

/* NULL before shared memory is attached, and after. */
extern RbpDirectory *rbp_dir;
extern RbpStaging *rbp_staging;

#endif							/* RBP_BUFFER_INTERNAL_H */
