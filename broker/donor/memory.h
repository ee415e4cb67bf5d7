/*-------------------------------------------------------------------------
 *
 * memory.h
 *	  Memory of regions: reserving memfds, zeroing them, giving them back.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DONOR_MEMORY_H
#define RBP_DONOR_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define DONOR_MAX_NODE	1023	/* number of a NUMA node */

/* Whether memory is taken in huge pages, as PostgreSQL's huge_pages */
typedef enum RbpDonorHugePages
{
	DONOR_HUGE_TRY,				/* from the pool as far as it has some, then
								 * transparent ones if the system gives them */
	DONOR_HUGE_ON,				/* all from the pool */
	DONOR_HUGE_OFF				/* none is asked for */
} RbpDonorHugePages;

typedef enum RbpDonorRegionState
{
	DONOR_REGION_FREE,			/* reserved, zeroed, not leased */
	DONOR_REGION_LEASED,
	DONOR_REGION_DIRTY,			/* fenced; to be zeroed */
	DONOR_REGION_RELEASED		/* its memory has been given back to the
								 * system */
} RbpDonorRegionState;

typedef struct RbpDonorLease RbpDonorLease;

typedef struct RbpDonorRegion
{
	_Atomic(RbpDonorLease *) owner; /* lease that may enter, or NULL */
	atomic_int	users;			/* threads in the region */
	atomic_bool exposed;		/* a client may still reach the memory: its
								 * memfd was sent to one, or an MR of it could
								 * not be deregistered.  It is replaced before
								 * the region is used again */
	RbpDonorRegionState state;
	bool		unreachable;	/* while DIRTY: no client can access the
								 * memory any more; under donor_lock */
	bool		clean_unreported;	/* clean, which heartbeats report until
									 * the broker knows it */
	int64_t		rev;			/* the grant's, as a broker has told it */
	int			fd;				/* memfd, or -1 */
	bool		huge;			/* from the pool of huge pages */
	uint8_t    *base;			/* address in the donor */
} RbpDonorRegion;

extern RbpDonorRegion *donor_regions;
extern uint32_t donor_nregions;
extern uint64_t donor_region_size;

/*
 * Reserve, populate and lock memory for all regions, and log the kinds of
 * pages.  Ends the process if there is not enough memory, or if less than
 * min_free bytes would remain for others.  From here on this process is the
 * first that the system kills when memory runs out, since what it lends is
 * expendable.
 *
 * numa_node: take the memory from this node as far as it has some; -1: any.
 */
extern void donor_memory_init(uint64_t memory, uint64_t region_size,
							  uint64_t min_free, RbpDonorHugePages huge,
							  int numa_node);

/* Does the machine have a NUMA node of this number? */
extern bool donor_memory_has_node(int node);

/*
 * Call work for each region, from several threads if there is much memory;
 * systemd is told meanwhile that starting takes longer.  False if work has
 * returned false, after which it is not called for more regions.
 */
extern bool donor_memory_for_each(bool (*work) (uint32_t region, void *arg), void *arg);

/*
 * The default of --min-free: a fraction of the memory of the machine, or of
 * its cgroup; 0 if that is unknown.
 */
extern uint64_t donor_memory_default_min_free(void);

/*
 * Provide a region with zeroed, populated memory, instead of what it has.
 * False if there is none; then the region has no memory at all.  Called by the
 * janitor.
 */
extern bool donor_memory_renew(RbpDonorRegion *region);

/* Is all of it locked, so that the system does not swap it out? */
extern atomic_bool donor_memory_locked;

/* Give a region's memory back to the system.  Called by the janitor. */
extern void donor_memory_release(RbpDonorRegion *region);

/*
 * Memory still available in the system, or in one of this process's cgroups if
 * that is less; UINT64_MAX if unknown.
 */
extern uint64_t donor_memory_available(void);

#endif							/* RBP_DONOR_MEMORY_H */
