/*-------------------------------------------------------------------------
 *
 * db.h
 *	  The broker's state on disk.
 *
 * All under broker.lock; all end the process on failure, see state.h.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_DB_H
#define RBP_BROKER_DB_H

#include "broker/broker/model.h"

/* Whom to give what was found on disk; each takes over what it is given. */
typedef struct BrokerLoader
{
	/* a donor with all regions clean; NULL if memory is short */
	BrokerDonor *(*new_donor) (const char *id, int nregions);
	void		(*donor) (BrokerDonor *donor);
	void		(*lease) (BrokerLease *lease);

	/* lease: its id or NULL; false if that makes no sense */
	bool		(*region) (const char *donor, int region, BrokerRegionState state,
						   const char *lease, int64_t rev);
} BrokerLoader;

/* Opens or creates the file and loads what is there.  Dies with a message. */
extern void broker_db_open(const char *path, const BrokerLoader *loader);
extern void broker_db_close(void);

/* Each joins the transaction under way, or starts one. */
extern void broker_db_put_donor(const BrokerDonor *donor);
extern void broker_db_delete_donor(const BrokerDonor *donor);
extern void broker_db_put_region(const BrokerDonor *donor, int region);
extern void broker_db_put_lease(const BrokerLease *lease);
extern void broker_db_delete_lease(const BrokerLease *lease);
extern void broker_db_commit(void);

#endif							/* RBP_BROKER_DB_H */
