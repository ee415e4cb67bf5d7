/*-------------------------------------------------------------------------
 *
 * names.h
 *	  The name of this server for the broker, and the addresses of hosts.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LEASE_NAMES_H
#define RBP_LEASE_NAMES_H

#include "postgres.h"

#include "lease/plan.h"

#define RBP_LEASE_INSTANCE_LEN	(RBP_BOOT_ID_LEN + 37)

/*
 * A name that does not change during the life of this data directory.  It
 * begins with a part for readers of the broker's list.  No standby or copy of
 * the data directory has the same name, on this or another machine, except on
 * a clone of the whole machine including its machine ID; then the broker tells
 * the two apart by their boot ids, see rbp_lease_instance().
 */
extern void rbp_lease_client_name(char name[RBP_DONOR_ID_LEN]);

/*
 * The machine's boot id, a slash, and a text that differs at each call; false
 * if there are no random numbers.  If two instances have the same name and
 * differ before the slash, they are clones, or this machine has been rebooted.
 */
extern bool rbp_lease_instance(char instance[RBP_LEASE_INSTANCE_LEN]);

/* What is known of a host's addresses */
typedef enum RbpAddressState
{
	RBP_ADDRESS_KNOWN,			/* perhaps from earlier, while a new lookup is
								 * in progress */
	RBP_ADDRESS_PENDING,		/* the first lookup has begun recently */
	RBP_ADDRESS_NONE			/* the lookup found none, or is slow */
} RbpAddressState;

#define RBP_ADDRESSES_LEN		256

/*
 * The numeric addresses of a broker's host, which is a name, separated by commas,
 * if they are known.  They are looked up in the background, repeatedly.  Never waits.
 */
extern RbpAddressState rbp_lease_broker_address(const char *host,
												char addresses[RBP_ADDRESSES_LEN]);

/* That host could not be reached, or is no broker's: look it up again. */
extern void rbp_lease_address_failed(const char *host);

/* Has a lookup ended with another result than before, since the last call? */
extern bool rbp_lease_lookups_ended(void);

/*
 * When to call rbp_lease_lookups_ended(), in rbp_now_ns() time; PG_INT64_MAX: no
 * lookup is waited for.
 */
extern int64 rbp_lease_lookups_due(int64 now);

/*
 * Replace donors' host names by numeric addresses, because backends connect in
 * the middle of a page read, and must not wait for a resolver.  A host whose
 * address is not known, which is logged once, becomes "", so that the donor is
 * not reached by it.  Hosts of donors that are down are looked up again.  Never
 * waits.
 */
extern void rbp_lease_resolve_donors(RbpLease *lease);

#endif							/* RBP_LEASE_NAMES_H */
