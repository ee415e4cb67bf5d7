/*-------------------------------------------------------------------------
 *
 * simulation.h
 *	  Miniature simulations of the tier, at several sizes at once.  No
 *	  postgres.h.
 *
 * The pages of a sample, chosen by a hash of their names, pass through small
 * caches.  If one page in 1,000 is in the sample, a cache of 4,096 pages has
 * the hit ratio of a tier of 4,096,000 (simulation.c says who found that).
 * The policy of each cache is that of the tier, S3-FIFO, with the same
 * parameters (buffer/s3fifo_rules.h).
 *
 * The object is flat and of fixed size, so that it can be in shared memory.
 * The caller serializes all calls, except where a function says "no lock".
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SIMULATION_H
#define RBP_SIMULATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RBP_SIM_SIZES		10	/* caches */
#define RBP_SIM_UNITS		16	/* size of the largest cache, in units; those
								 * of the others are in rbp_sim_units[] */
#define RBP_SIM_SLOTS		4096	/* maximum size of the largest cache */

/*
 * Pages known at a time: those in caches; those in shared buffers, of which the
 * caller samples RBP_SIM_SLOTS at most; and others that were read lately.
 */
#define RBP_SIM_PAGES		(4 * RBP_SIM_SLOTS)

#define RBP_SIM_NONE		UINT16_MAX	/* no page */
#define RBP_SIM_NO_FRAME	UINT32_MAX

/* Is a page captured when it is evicted? */
typedef enum RbpSimCapture
{
	RBP_SIM_NEVER,				/* by a policy or setting */
	RBP_SIM_RARELY,				/* one in RBP_SIM_RARE, since the page cache
								 * has it */
	RBP_SIM_ALWAYS
} RbpSimCapture;

/* As the tier (CAPTURE_EVERY in base/choice.c) where the page cache has not all pages. */
#define RBP_SIM_RARE		13

typedef struct RbpSim RbpSim;

/* A page that is read or written, while it is in that frame */
typedef struct RbpSimEvent
{
	uint64_t	key;			/* of the page: a hash of its name */
	uint64_t	fork;			/* a hash of the fork's name */
	uint64_t	lsn;			/* tells contents of a frame apart */
	uint32_t	frame;			/* or RBP_SIM_NO_FRAME */
	int64_t		now;
	bool		cached;			/* does the page cache have it? */
	bool		scarce;			/* written: a page that was worth capturing
								 * before still is */
	bool		evicted;		/* written: the page leaves its frame */
	RbpSimCapture capture;
} RbpSimEvent;

/* Reads of some pages: [1] if the page cache had the page, [0] otherwise */
typedef struct RbpSimReads
{
	uint64_t	reads[2];
	uint64_t	first[2];		/* of these, that a cache of no size has: of
								 * pages not known before, or not captured
								 * since they were written, and not in the
								 * page cache either */
	uint64_t	hits[RBP_SIM_SIZES][2];
} RbpSimReads;

/*
 * All pages of the sample, and the same by part of it.  The parts are chosen by
 * a hash, too: how they differ tells the error of the sample.
 */
#define RBP_SIM_PARTS		16

typedef struct RbpSimCounts
{
	RbpSimReads all;
	RbpSimReads parts[RBP_SIM_PARTS];
	uint64_t	overflows;		/* events ignored: too many pages */
} RbpSimCounts;

extern const uint8_t rbp_sim_units[RBP_SIM_SIZES];

extern size_t rbp_sim_bytes(void);

/*
 * Empty caches; the largest has that many slots, at most RBP_SIM_SLOTS.  The
 * memory is all zeros, or was initialized before.
 */
extern void rbp_sim_init(RbpSim *sim, uint32_t slots);

/* What was counted since then; the caller may set it to zeros. */
extern RbpSimCounts *rbp_sim_counts(RbpSim *sim);

/*
 * A page was read.  Returns the number by which rbp_sim_evict() knows it, or
 * RBP_SIM_NONE.
 */
extern uint16_t rbp_sim_read(RbpSim *sim, const RbpSimEvent *event);

/* Were more pages read or written than the largest cache has room for? */
extern bool rbp_sim_outgrown(const RbpSim *sim);

/*
 * The hit ratio of cache k, among all reads of the sample, and its standard error.
 * Returns false if there were too few reads to say.
 */
extern bool rbp_sim_hit_ratio(const RbpSimCounts *counts, int k, double *ratio, double *error);

/* A page was written.  Returns the same. */
extern uint16_t rbp_sim_write(RbpSim *sim, const RbpSimEvent *event);

/*
 * The frame is about to be overwritten.  If the page of that number is still
 * there, by frame and LSN, it is captured.
 */
extern void rbp_sim_evict(RbpSim *sim, uint16_t page, uint32_t frame, uint64_t lsn);

/* The page was truncated or dropped: forget it. */
extern void rbp_sim_forget(RbpSim *sim, uint64_t key);

/* A fork was truncated or dropped: forget its pages.  No lock. */
extern void rbp_sim_forget_fork(RbpSim *sim, uint64_t fork);

/*
 * Number of pages read at that time or later; -1 if that is not known, since
 * pages have been forgotten to make room that were.
 */
extern int64_t rbp_sim_read_since(const RbpSim *sim, int64_t time);

#endif							/* RBP_SIMULATION_H */
