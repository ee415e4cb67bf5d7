/*-------------------------------------------------------------------------
 *
 * names.h
 *	  Names: who this server is to the broker, and where donors are.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LEASE_NAMES_H
#define RBP_LEASE_NAMES_H

#include "postgres.h"

#include "lease/plan.h"
#include "transport/transport.h"

#define RBP_LEASE_INSTANCE_LEN	(RBP_BOOT_ID_LEN + 37)

/*
 * A name that stays for the life of this data directory, and that neither a
 * standby nor a copy of it has, here or on another machine; but for a clone of
 * the whole machine with its machine ID, which only the broker can tell.  The
 * readable part is for whoever looks at the broker's list.
 */
extern void rbp_lease_client_name(char name[RBP_DONOR_ID_LEN]);

/*
 * The machine since its boot, a slash, and another text at each call; false if
 * there are no random numbers.  Two that have the same name and differ before
 * the slash are clones, or this machine was started anew.
 */
extern bool rbp_lease_instance(char instance[RBP_LEASE_INSTANCE_LEN]);

/* What is known of a host's addresses */
typedef enum RbpAddress
{
	RBP_ADDRESS_KNOWN,			/* perhaps from before, a new look-up going on */
	RBP_ADDRESS_PENDING,		/* the first look-up has begun just now */
	RBP_ADDRESS_NONE			/* it found none, or takes long */
} RbpAddress;

#define RBP_ADDRESSES_LEN		256

/*
 * The numeric addresses of a broker's host, separated by commas, if they are
 * known; they are looked up beside, time and again.  Never waits.
 */
extern RbpAddress rbp_lease_broker_address(const char *host,
										   char addresses[RBP_ADDRESSES_LEN]);

/* That host was not reached: look it up again soon. */
extern void rbp_lease_address_failed(const char *host);

/* Has a look-up ended since the last call? */
extern bool rbp_lease_lookups_ended(void);

/* When to ask that, in rbp_now_ns() time; PG_INT64_MAX: no need. */
extern int64 rbp_lease_lookups_due(int64 now);

/*
 * Put numeric addresses in the place of donors' names: backends connect in
 * the middle of a page read and must not wait for a resolver.  A host whose
 * address is not known, which is logged once, becomes "", so that the donor is
 * not reached by it.  Never waits.
 */
extern void rbp_lease_resolve_donors(RbpLease *lease);

#endif							/* RBP_LEASE_NAMES_H */
