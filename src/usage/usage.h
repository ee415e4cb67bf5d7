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

/* Install the hooks.  Call this in _PG_init. */
extern void rbp_usage_init(void);

#endif							/* RBP_USAGE_H */
