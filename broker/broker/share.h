/*-------------------------------------------------------------------------
 *
 * share.h
 *	  Which share of the memory each lease has.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_SHARE_H
#define RBP_BROKER_SHARE_H

#include "broker/broker/model.h"

/* What of the free memory is for others than a lease, in bytes. */
typedef struct BrokerQueue
{
	int64_t		free;
	int64_t		shares;			/* for those that are short of their share */
	int64_t		shares_ahead;	/* that come before it */
	int64_t		turns;			/* beside these */
	int64_t		turns_ahead;
	int64_t		unit;
} BrokerQueue;

/* Work out the shares, and where this lease stands. */
extern void broker_share_queue(const BrokerLease *lease, int64_t now, BrokerQueue *queue);

/*
 * May the lease have one more region of this size?  Then it is taken off the
 * queue's free memory; the lease's own figures are brought up to date.
 */
extern bool broker_share_take(BrokerLease *lease, int64_t size, BrokerQueue *queue);

/* Work out the shares, and ask back what leases that are short are to get. */
extern void broker_share_update(void);

#endif							/* RBP_BROKER_SHARE_H */
