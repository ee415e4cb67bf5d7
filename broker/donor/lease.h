/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  Who may use which region, until when; fencing.
 *
 * Threads: the serving threads (donor_serve), the verbs thread (donor_verbs),
 * the janitor (donor_lease), and the control thread, which is the main thread
 * (donor_control).
 *
 * How a request and a fence meet.  A serving thread that is about to move
 * bytes to or from a region first enters it: counts itself in `users`, and
 * only then looks whether the region still belongs to the connection's lease
 * and the lease has not ended.  It leaves right after the system call, which
 * never blocks; the verbs thread, which registers an MR of the region meanwhile,
 * some milliseconds later.  A fence clears `owner` first and then waits until
 * `users` is zero.  Both sides use sequentially consistent operations, so either
 * the request sees that the owner is gone, or the fence sees the request and
 * waits for it.  Nothing of the region is touched afterwards on behalf of the
 * old lease, but by RDMA, until the janitor has revoked its rkeys.
 *
 * Locks: donor_lock (in lease.c) protects the table of leases and the
 * regions' `state`; it is never held during I/O, zeroing or a fence's wait.
 * verbs_lock (in verbs_mr.c) may be taken with it held, not the other way
 * round.  A region in DONOR_REGION_DIRTY belongs to the janitor, who alone
 * changes fd and mapping of a region after the start, while nobody can enter
 * it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DONOR_LEASE_H
#define RBP_DONOR_LEASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "broker/donor/memory.h"
#include "transport/transport.h"
#include "wire/wire.h"

struct RbpDonorLease
{
	char		id[RBP_LEASE_ID_LEN];
	uint8_t		secret[RBP_SECRET_LEN];
	atomic_llong deadline_ns;	/* CLOCK_BOOTTIME: it goes on in a suspended
								 * machine, as the broker's time does */
	atomic_bool ended;
	atomic_int	refs;			/* the table's, and each connection's */
	bool		listed;			/* in the broker's last word; under donor_lock */
	bool		reported;		/* ended, and in the last report; likewise */
	uint32_t	nregions;		/* likewise */
	bool		has_digest;		/* donor_verbs', likewise */
	uint8_t		digest[RBP_VERBS_DIGEST_LEN];
	RbpDonorLease *next;
};

/*
 * Callbacks by which leases tell RDMA of regions.
 *
 * granted: the lease got this region: its clients may have an rkey to it.  With
 * donor_lock held, when the lease owns the region.  Does not wait for a device.
 *
 * revoke: every rkey of this region is dead when this returns; if a device would
 * not let go of one, the region is marked as exported, and the memory that it
 * leads to is never used again.  In the janitor, with nobody able to enter the region any
 * more, nobody in it, and no lock held; before the region is zeroed or given back.
 *
 * Both do nothing if RDMA is not served.
 */
typedef struct RbpDonorRdma
{
	void		(*granted) (uint32_t region, RbpDonorLease *lease);
	void		(*revoke) (uint32_t region);
} RbpDonorRdma;

/* Kept by reference; before donor_lease_init(). */
extern void donor_lease_set_rdma(const RbpDonorRdma *rdma);

/* Start the janitor thread.  min_free: 0 is never. */
extern void donor_lease_init(uint64_t min_free);

/* By id, with a reference for the caller; NULL if unknown or ended. */
extern RbpDonorLease *donor_lease_find(const char *id);

/* The same for the first that matches, which is asked with donor_lock held. */
extern RbpDonorLease *donor_lease_match(bool (*matches) (RbpDonorLease *lease,
													  const void *arg),
									 const void *arg);
extern void donor_lease_unref(RbpDonorLease *lease);

/*
 * May this lease use the region now?  If so the caller is inside of it, and
 * has to leave.
 */
extern bool donor_region_enter(RbpDonorRegion *region, RbpDonorLease *lease,
							   int64_t now);
extern void donor_region_leave(RbpDonorRegion *region);

/*
 * Make the broker's truth ours: between donor_apply_begin() and
 * donor_apply_end() name every live lease, and its regions.  All others are
 * fenced.  Control thread only.
 */
extern void donor_apply_begin(void);
extern void donor_apply_lease(const char *id,
							  const uint8_t secret[RBP_SECRET_LEN],
							  int64_t deadline_ns,
							  const uint32_t *regions, uint32_t nregions);
extern void donor_apply_end(void);

/* The broker forgot us: everything is to be registered anew, nothing leased. */
extern void donor_apply_nothing(void);

/* The contents of the next heartbeat. */
typedef struct RbpDonorReport
{
	uint32_t   *clean;			/* malloc'ed; regions newly clean */
	uint32_t	nclean;
	char	  (*ended)[RBP_LEASE_ID_LEN];	/* malloc'ed; fenced by our clock */
	uint32_t	nended;
	uint32_t	want_back;		/* regions that memory is too short for */
	uint32_t	free_regions;
	uint32_t	leased_regions;
	uint32_t	released_regions;
	uint32_t	dirty_regions;
} RbpDonorReport;

extern void donor_report_get(RbpDonorReport *report);

/* The broker may take this region for dirty: if it is not, say so again. */
extern void donor_report_clean_again(uint32_t region);

/* Are there regions that wait to be zeroed? */
extern bool donor_cleaning(void);

/*
 * The broker has heard what the report said.  To be called before its answer
 * is applied.
 */
extern void donor_report_acknowledged(const RbpDonorReport *report);
extern void donor_report_free(RbpDonorReport *report);

#endif							/* RBP_DONOR_LEASE_H */
