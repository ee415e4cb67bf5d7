/*-------------------------------------------------------------------------
 *
 * reclaim.h
 *	  Who has to give some back.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_RECLAIM_H
#define RBP_BROKER_RECLAIM_H

#include <stdint.h>

/*
 * Bring what is asked back from holders in line with what the donor wants,
 * and with what other leases are to get (holding.shared).
 */
extern void broker_reclaim_update(int64_t donor);

/* Likewise, for all donors where that can have changed. */
extern void broker_reclaim_update_all(void);

/* The holder is being told what is asked back: grace time begins. */
extern void broker_reclaim_tell(int64_t lease);

/* Take what holders were asked for whose grace time is over. */
extern void broker_reclaim_take(void);

#endif							/* RBP_BROKER_RECLAIM_H */
