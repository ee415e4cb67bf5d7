/*-------------------------------------------------------------------------
 *
 * alloc.h
 *	  Who gets which region.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_ALLOC_H
#define RBP_BROKER_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Grant regions to the lease until it has what it wants, or nothing is left
 * for it.  It may have these bytes more ahead of regions that donors want back, and
 * that it has not released yet.  Returns the number granted.  May be called with
 * nothing to do.
 */
extern int	broker_alloc_grant(int64_t lease, int64_t ahead);

/* Could a donor that is up soon have clean regions for this lease? */
extern bool broker_alloc_more_coming(int64_t lease);

#endif							/* RBP_BROKER_ALLOC_H */
