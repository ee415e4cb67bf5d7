/*-------------------------------------------------------------------------
 *
 * told.h
 *	  Leases that donors tell of when they register.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_TOLD_H
#define RBP_BROKER_TOLD_H

#include "broker/broker/http.h"

/*
 * Can what this registration tells of leases be true?  If not, *error says why.  Its "clean", which
 * may be long, is replaced by "dirty": the regions that are neither clean nor leased.
 */
extern bool broker_told_check(json_t *body, BrokerReply *error);

/*
 * Make leases of it, and put their regions.  The donor has none yet, and the revision with
 * which it begins here.  Regions whose lease has ended here are put as dirty ones.
 */
extern void broker_told_adopt(int64_t donor, const json_t *leases);

/* Has the broker run for so long that whoever follows it has registered? */
extern bool broker_told_settled(void);

/* Are all donors here that the lease's holder names?  If he has no names, as above. */
extern bool broker_told_enough(const json_t *body);

/* Has a donor been heard of lately? */
extern bool broker_told_followed(void);

/*
 * A holder shows his secret: what was told of this lease, and is his by that, becomes the lease.
 * Returns it, or 0 if nothing is.
 */
extern int64_t broker_told_prove(const char *id, const json_t *body);

#endif							/* RBP_BROKER_TOLD_H */
