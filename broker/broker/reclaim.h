/*-------------------------------------------------------------------------
 *
 * reclaim.h
 *	  Who has to give some back.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_RECLAIM_H
#define RBP_BROKER_RECLAIM_H

#include "broker/broker/model.h"

/*
 * Bring what is asked back from holders in line with what the donor wants,
 * and with what other leases are to get (Holding.shared).
 */
extern void broker_reclaim_update(BrokerDonor *donor);

/* The holder is being told what is asked back: grace time begins. */
extern void broker_reclaim_tell(BrokerLease *lease);


/*
 * The grace time is over: take what the holder was asked for.  May free the
 * holding.
 */
extern void broker_reclaim_take(BrokerLease *lease, BrokerHolding *holding);

#endif							/* RBP_BROKER_RECLAIM_H */
