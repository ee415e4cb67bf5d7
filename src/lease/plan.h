/*-------------------------------------------------------------------------
 *
 * plan.h
 *	  Decisions of the lease worker, and the JSON of its requests and the
 *	  broker's answers.
 *
 * No postgres.h, no I/O, no clock: tested outside of the server.  Memory comes
 * from malloc.  Times are nanoseconds of CLOCK_MONOTONIC unless the name says
 * otherwise.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LEASE_PLAN_H
#define RBP_LEASE_PLAN_H

#include "transport/transport.h"

#define RBP_LEASE_REGION_UNIT	(UINT64_C(1) << 20) /* region sizes are
													 * multiples */

/* The broker asks for that many regions of the donor back. */
typedef struct RbpLeaseReclaim
{
	char		donor[RBP_DONOR_ID_LEN];
	int			regions;
	int			shared;			/* of these, for other leases: nothing
								 * replaces them */
	int64_t		grace_ms;		/* after that they are taken */
} RbpLeaseReclaim;

/* What requests ask for. */
typedef struct RbpLeaseWishes
{
	uint64_t	bytes;
	uint64_t	ahead;			/* renewals only: how far it may grow beyond */
	int64_t		ttl_ms;
	int64_t		keep_ms;		/* how long it is kept after that, lapsed */
	const unsigned char *new_secret;	/* renewals only: replaces the secret;
										 * NULL: it stays */
	bool		elsewhere;		/* another broker may be asked */
	const char *client;			/* renewals only: who has the lease */
	const char *instance;		/* with new_secret: likewise, from then on;
								 * else NULL */
	const struct RbpLease *insists; /* renewals only: a broker that does not
									 * know the lease is to wait for the
									 * donors of these regions; NULL: for as
									 * long as it likes */
} RbpLeaseWishes;

/*
 * A lease as the broker described it.  Donors are sorted by id, and regions by
 * donor and number; every region's donor is among the donors.
 */
typedef struct RbpLease
{
	RbpCredentials cred;
	bool		has_secret;		/* the answer had the secret */
	int64_t		ttl_ms;
	uint64_t	bytes;			/* total of all regions */
	int			namesakes;		/* other servers with our client name */
	int			ndonors;
	int			nregions;
	int			nreclaims;
	RbpEndpoint *donors;
	RbpRegionGrant *regions;
	RbpLeaseReclaim *reclaims;
} RbpLease;

/*
 * Parse a lease object.  The text is not trusted, and need not be
 * zero-terminated.  NULL if it is not a valid lease, with the reason in err.
 */
extern RbpLease *rbp_lease_parse(const char *text, size_t len,
								 char *err, size_t errlen);
extern void rbp_lease_free(RbpLease *lease);

/*
 * Make a lease from its known parts, in any order.  NULL if there is no
 * memory.
 */
extern RbpLease *rbp_lease_restore(const RbpCredentials *cred, int64_t ttl_ms,
								   const RbpEndpoint *donors, int ndonors,
								   const RbpRegionGrant *regions, int nregions);

/* Do both leases have the same regions, and the same ways to reach them? */
extern bool rbp_lease_same_regions(const RbpLease *a, const RbpLease *b);

/*
 * Has the region lost its content between these two leases, which both have it?  It has
 * if it was taken, zeroed and granted again, which its revs tell, or if its donor has
 * restarted, which the ways to reach that tell: its shm name is new at each start.
 */
extern bool rbp_lease_lost_content(const RbpLease *before, const RbpLease *now,
								   const RbpRegionGrant *region);

/* The region of the lease with this one's donor and number; NULL if there is none. */
extern RbpRegionGrant *rbp_lease_find_region(const RbpLease *lease, const RbpRegionGrant *region);

/* Remove regions from the lease. */
extern void rbp_lease_remove_regions(RbpLease *lease, const RbpRegionGrant *gone,
									 int n);

/*
 * Is the lease larger than twice what is wanted at most, apart from one region,
 * which the broker may have rounded up to?
 */
extern bool rbp_lease_is_excessive(const RbpLease *lease, uint64_t most);

/*
 * How many regions can be released so that, whichever they are, at least the
 * wanted bytes remain.  Regions of donors may differ in size.  Tolerating some
 * excess keeps a shrink from being followed by a grant, and that by another
 * shrink.
 */
extern int	rbp_lease_surplus(const RbpLease *lease, uint64_t wanted);

/* The bytes of the regions that donors want for themselves, or more. */
extern uint64_t rbp_lease_asked_back(const RbpLease *lease);

/*
 * What to release now, given the wanted size: what donors ask for; if they ask
 * for nothing, the surplus, of any donor (with an empty name), since that is
 * less once the donors have got theirs; all, if nothing is wanted.  demands
 * has room for nreclaims + 1 of them; returns how many there are.
 */
extern int	rbp_lease_demands(const RbpLease *lease, uint64_t wanted,
							  RbpLeaseReclaim *demands);

/* How long pages may be moved before the demanded regions go. */
extern int64_t rbp_lease_move_time(const RbpLeaseReclaim *demand);

/* The donor got n of the regions that it asks for. */
extern void rbp_lease_reclaimed(RbpLease *lease, const char *donor, int n);

/* Does the donor ask for regions? */
extern bool rbp_lease_has_reclaim(const RbpLease *lease, const char *donor);

/*
 * Bodies of requests, as JSON, to be freed by the caller.  NULL if there is no
 * memory.
 */
extern char *rbp_lease_new_body(const char *client, const char *instance,
								const char *purpose, const RbpLeaseWishes *wishes);
extern char *rbp_lease_renew_body(const RbpCredentials *cred, const RbpLeaseWishes *wishes,
								  const RbpRegionGrant *released, int n);
extern char *rbp_lease_end_body(const RbpCredentials *cred);

/* Copy the "error" of a broker's error answer to buf, or say that it has none. */
extern void rbp_lease_error_text(const char *text, size_t len,
								 char *buf, size_t buflen);

/* How long after a successful request the next one is due. */
extern int64_t rbp_lease_renew_after(int64_t ttl_ms);

/*
 * How long to wait after the n-th consecutive failure (n >= 1).  remaining_ns
 * is what the lease in use has left, or <= 0 if none is in use.  The result
 * doubles from 1 s to 5 s, but a lease that is about to end is tried again in
 * time.
 */
extern int64_t rbp_lease_retry_after(int failures, int64_t remaining_ns);

/*
 * Until when a step of moving temporary data may last: a short time, and not
 * beyond the time that something else is due, but long enough to make
 * progress.
 */
extern int64_t rbp_lease_step_until(int64_t now_ns, int64_t due_ns);

#endif							/* RBP_LEASE_PLAN_H */
