/*-------------------------------------------------------------------------
 *
 * share.h
 *	  Which share of the memory each lease has, and which regions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_SHARE_H
#define RBP_BROKER_SHARE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Grant regions to the lease until it has what it wants, or nothing is left
 * for it.  It may have these bytes more ahead of regions that donors want back, and
 * that it has not released yet.  Returns the number granted.  May be called with
 * nothing to do.
 */
extern int	broker_share_grant(int64_t lease, int64_t ahead);

/* These regions have come to the lease. */
extern void broker_share_hold(int64_t donor, int64_t lease, int64_t regions);

/* Could a donor that is up soon have clean regions for this lease? */
extern bool broker_share_more_coming(int64_t lease);

/* Work out the shares, and ask back what leases that are short are to get. */
extern void broker_share_update(void);

#endif							/* RBP_BROKER_SHARE_H */
