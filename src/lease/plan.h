/*-------------------------------------------------------------------------
 *
 * plan.h
 *	  What the lease worker says to the broker, understands of its answers
 *	  and decides; doing it is the worker's part.
 *
 * No postgres.h, no I/O, no clock of its own: tested outside of the server.
 * Memory comes from malloc.  Times are nanoseconds of CLOCK_MONOTONIC unless
 * the name says otherwise.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LEASE_PLAN_H
#define RBP_LEASE_PLAN_H

#include "transport/transport.h"

#define RBP_LEASE_REGION_UNIT	(UINT64_C(1) << 20) /* regions are multiples */

/* One region of one donor, as the broker names it. */
typedef struct RbpLeaseRegion
{
	char		donor[RBP_DONOR_ID_LEN];
	uint32_t	region;
	uint64_t	bytes;
} RbpLeaseRegion;

/* The broker asks for that many regions of the donor. */
typedef struct RbpLeaseReclaim
{
	char		donor[RBP_DONOR_ID_LEN];
	int			regions;
	int64_t		grace_ms;		/* it takes them by itself after that */
} RbpLeaseReclaim;

/*
 * A lease as the broker described it.  Donors are sorted by id and regions
 * by donor and number; every region's donor is among the donors.
 */
typedef struct RbpLease
{
	RbpCredentials cred;
	bool		has_secret;		/* did the answer have the secret? */
	int64_t		ttl_ms;
	uint64_t	bytes;			/* of all regions */
	int			namesakes;		/* other servers that go by our client name */
	int			ndonors;
	int			nregions;
	int			nreclaims;
	RbpEndpoint *donors;
	RbpLeaseRegion *regions;
	RbpLeaseReclaim *reclaims;
} RbpLease;

/*
 * Understand a lease object.  The text need not end in a zero byte and may be
 * anything.  NULL if it is not a lease that makes sense; then the reason is
 * in err.
 */
extern RbpLease *rbp_lease_parse(const char *text, size_t len,
								 char *err, size_t errlen);
extern void rbp_lease_free(RbpLease *lease);

/*
 * The lease of which this is known, in whatever order.  NULL if there is no
 * memory.
 */
extern RbpLease *rbp_lease_restore(const RbpCredentials *cred, int64_t ttl_ms,
								   const RbpEndpoint *donors, int ndonors,
								   const RbpLeaseRegion *regions, int nregions);

/* Do both name the same regions and ways to reach them? */
extern bool rbp_lease_same_regions(const RbpLease *a, const RbpLease *b);

/*
 * Is the donor of that name another process now than it was before?  Then
 * what it held is lost, even if the same regions are granted again.  To be
 * told by the ways to reach it: its shm name is drawn anew at each start.
 */
extern bool rbp_lease_donor_restarted(const RbpLease *before,
									  const RbpLease *now, const char *donor);

/* Is this region, by donor and number, in the lease? */
extern bool rbp_lease_has_region(const RbpLease *lease, const RbpLeaseRegion *region);

/* Take the regions that were given up out of the lease. */
extern void rbp_lease_remove_regions(RbpLease *lease, const RbpLeaseRegion *gone,
									 int n);

/*
 * How many regions can be given back so that, whichever they are, no fewer
 * than the wanted bytes are left.  Regions of donors may differ in size; to
 * be content with too much is what keeps a shrink from being followed by a
 * grant, and that by the next shrink.
 */
extern int	rbp_lease_surplus(const RbpLease *lease, uint64_t wanted);

/*
 * What is to be given back now, the lease being to have the wanted size: what
 * donors ask for; when they ask for nothing, the surplus, of any donor (whose
 * name is empty then), since it is less when they have got theirs; all, if
 * nothing is wanted.  Room for nreclaims + 1 demands; returns how many.
 */
extern int	rbp_lease_demands(const RbpLease *lease, uint64_t wanted,
							  RbpLeaseReclaim *demands);

/* How long pages may be moved before the regions that are asked for go. */
extern int64_t rbp_lease_move_time(const RbpLeaseReclaim *demand);

/* The donor got n of the regions that it asks for. */
extern void rbp_lease_reclaimed(RbpLease *lease, const char *donor, int n);

/* Does the donor ask for regions? */
extern bool rbp_lease_has_reclaim(const RbpLease *lease, const char *donor);

/* Bodies of requests; JSON, to be freed.  NULL if there is no memory. */
extern char *rbp_lease_new_body(const char *client, const char *instance,
								const char *purpose, uint64_t bytes,
								int64_t ttl_ms);
extern char *rbp_lease_renew_body(const RbpCredentials *cred, uint64_t bytes,
								  int64_t ttl_ms,
								  const RbpLeaseRegion *released, int n);
extern char *rbp_lease_end_body(const RbpCredentials *cred);

/* Is this a broker's list of donors? */
extern bool rbp_lease_is_broker(const char *text, size_t len);

/* The "error" of a broker's error answer into buf; false if it has none. */
extern bool rbp_lease_error_text(const char *text, size_t len,
								 char *buf, size_t buflen);

/*
 * Until when a lease may be used that was asked for at sent_ns: the broker
 * began to count later than that, so the client stops first.
 */
extern int64_t rbp_lease_deadline(int64_t sent_ns, int64_t ttl_ms);

/* How long after a successful request the next is due. */
extern int64_t rbp_lease_renew_after(int64_t ttl_ms);

/*
 * How long to wait after the n-th failure in a row (n >= 1), the lease in use
 * having remaining_ns left, or none being in use if that is <= 0: doubles
 * from 1 s to 5 s, but a lease that is about to end is tried again in time.
 */
extern int64_t rbp_lease_retry_after(int failures, int64_t remaining_ns);

/*
 * Until when a step of moving temporary data may last: not long, and no
 * longer than until something else is due; but long enough to get on.
 */
extern int64_t rbp_lease_step_until(int64_t now_ns, int64_t due_ns);

#endif							/* RBP_LEASE_PLAN_H */
