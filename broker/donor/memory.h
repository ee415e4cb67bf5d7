/*-------------------------------------------------------------------------
 *
 * memory.h
 *	  Regions: memfds, their reservation, zeroing, giving back.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DONOR_MEMORY_H
#define RBP_DONOR_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum RbpDonorRegionState
{
	DONOR_REGION_FREE,			/* reserved, zeroed, belongs to nobody */
	DONOR_REGION_LEASED,
	DONOR_REGION_DIRTY,			/* fenced; to be zeroed */
	DONOR_REGION_RELEASED			/* its memory is given back to the system */
} RbpDonorRegionState;

typedef struct RbpDonorLease RbpDonorLease;

typedef struct RbpDonorRegion
{
	_Atomic(RbpDonorLease *) owner;	/* who may enter, or NULL */
	atomic_int	users;			/* serving threads in it */
	atomic_bool exported;		/* its memfd was given to a client, or an MR of
								 * it could not be ended: to be reused, it
								 * needs other memory */
	RbpDonorRegionState state;
	bool		withdrawn;		/* while DIRTY: out of everybody's reach; under
								 * donor_lock */
	bool		clean_unreported;	/* the broker does not know yet that it is clean */
	int			fd;				/* -1: none */
	bool		huge;			/* from the pool of huge pages */
	uint8_t    *base;			/* its place in the donor's address space */
} RbpDonorRegion;

extern RbpDonorRegion *donor_regions;
extern uint32_t donor_nregions;
extern uint64_t donor_region_size;

/*
 * Reserve, populate and lock memory for all regions; logs which pages it got.
 * Ends the process if there is not enough, or if less than min_free bytes
 * would be left to others.  From here on the process is the first that the
 * system kills when memory runs out.
 */
extern void donor_memory_init(uint64_t memory, uint64_t region_size,
							  uint64_t min_free);

/* A part of the machine's memory, or of its cgroup's; 0 if it is not known. */
extern uint64_t donor_memory_default_min_free(void);

/*
 * Give a region fresh, zeroed, populated memory, in place of what it has.
 * False if there is none: then it has no memory at all.  For the janitor.
 */
extern bool donor_memory_renew(RbpDonorRegion *region);

/* Give a region's memory back to the system.  For the janitor. */
extern void donor_memory_release(RbpDonorRegion *region);

/*
 * Memory that the system, or one of this process's cgroups if that is
 * tighter, could still hand out; UINT64_MAX if it cannot be found out.
 */
extern uint64_t donor_memory_available(void);

#endif							/* RBP_DONOR_MEMORY_H */
