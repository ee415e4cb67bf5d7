/*-------------------------------------------------------------------------
 *
 * rbp_lease_names.h
 *	  Names: who this server is to the broker, and where donors are.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LEASE_NAMES_H
#define RBP_LEASE_NAMES_H

#include "postgres.h"

#include "rbp_lease_plan.h"
#include "rbp_remote.h"

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

/*
 * Put numeric addresses in the place of donors' names: backends connect in
 * the middle of a page read and must not wait for a resolver.  A donor whose
 * name has no address is not reached by it.
 */
extern void rbp_lease_resolve_donors(RbpLease *lease);

#endif							/* RBP_LEASE_NAMES_H */
