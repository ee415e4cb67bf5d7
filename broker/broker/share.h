/*-------------------------------------------------------------------------
 *
 * share.h
 *	  Which share of the memory each lease has.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_SHARE_H
#define RBP_BROKER_SHARE_H

#include <stdbool.h>
#include <stdint.h>

/* A lease that wants more, and what of the free memory is for others; bytes. */
typedef struct BrokerQueue
{
	int64_t		free;
	int64_t		unit;			/* the smallest region */
	int64_t		to_share;		/* until it has its share; below 0: beyond it */
	int64_t		to_extra;		/* until it has its extra region, too */
	int64_t		shares;			/* for others that are short of their share */
	int64_t		shares_ahead;	/* that come before it */
	int64_t		extras;			/* for others that may have an extra region */
	int64_t		extras_ahead;
} BrokerQueue;

/* Work out the shares, and where this lease stands. */
extern void broker_share_queue(int64_t lease, BrokerQueue *queue);

/* May the lease have one more region of this size?  Then it is taken off. */
extern bool broker_share_take(BrokerQueue *queue, int64_t size);

/* Work out the shares, and ask back what leases that are short are to get. */
extern void broker_share_update(void);

#endif							/* RBP_BROKER_SHARE_H */
