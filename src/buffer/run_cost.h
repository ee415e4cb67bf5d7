/*-------------------------------------------------------------------------
 *
 * run_cost.h
 *	  Recent costs of this process's reads in runs, and the source of a window.
 *
 * A window is some pages of a run, which are all read from one source.  Here
 * are its costs, not its pages.  Costs in runs differ from those of single
 * reads for both sources, and those of windows that donors have in part from
 * those of windows that they have completely: each kind has averages of its
 * own.
 *
 * Donors are measured window by window.  That would say nothing about the file:
 * the kernel reads ahead for the window that waits for the disk, and those
 * behind it find that in the page cache.  So the file is used for a stretch of
 * time, which is measured as a whole.
 *
 * Plain arithmetic; does not use the server's headers.  Times are in ns.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_RUN_COST_H
#define RBP_RUN_COST_H

#include <stdbool.h>
#include <stdint.h>

#include "buffer/read_cost.h"

/* A run of this length is worth knowing both sources of. */
#define RBP_MEASURE_AFTER		1024

/* A stretch is several times as long as a disk takes to read ahead, 8 MB at most */
#define RBP_STRETCH_NS			INT64_C(20000000)

/* Since all pay for it, none begins sooner after another only to measure */
#define RBP_STRETCH_PAUSE_NS	INT64_C(1000000000)

/* Windows that donors have completely, and in part */
typedef enum RbpWindowKind
{
	RBP_WINDOW_FULL,
	RBP_WINDOW_MIXED,
	RBP_WINDOW_KINDS
} RbpWindowKind;

/* What all processes know of a kind; all zero at first.  Atomics. */
typedef struct RbpSharedRunCost
{
	int64_t		file_until;		/* end of the last stretch for all */
	uint32_t	file_cost;		/* of the last stretch of any process, a page;
								 * 0: there was none */
} RbpSharedRunCost;

/* What this process knows of a kind */
typedef struct RbpRunCost
{
	RbpReadCost reads;
	RbpWindowKind kind;
	RbpSharedRunCost *shared;

	/* the stretch that this process takes part in */
	int64_t		until;			/* 0: none */
	int64_t		took_part;		/* for so long */
	int			pages;			/* read so far */
	int64_t		ns;
} RbpRunCost;

/* What the source of a window is chosen by, beside its costs */
typedef struct RbpWindowFacts
{
	int			n;				/* pages */
	uint32_t	length;			/* pages of runs that this process has read */
	int			transport;		/* to the donor of its first remote page */
	bool		mostly_cached;	/* the page cache has most of it, */
	bool		cache_first;	/* and is always to be preferred */
	bool		bypass;			/* a disk that is faster may be chosen */
	bool		keeps;			/* as for rbp_read_cost_choose() */
} RbpWindowFacts;

extern void rbp_run_cost_init(RbpRunCost *cost, RbpWindowKind kind, RbpSharedRunCost *shared);

/*
 * Should all of a window be read from the file?  *stretch: the end of the
 * stretch that the window is part of, or 0.  reads.filling is set as by
 * rbp_read_cost_prefer_file().
 *
 * A stretch begins where the file is faster; where that is unknown in a long
 * run; and now and then as a sample.  In the latter two, all processes take
 * part, because a run may be read by several: by parallel workers, or by the
 * I/O workers of 18.
 */
extern bool rbp_run_cost_prefer_file(RbpRunCost *cost, const RbpWindowFacts *facts,
									 int64_t now, int64_t *stretch);

/* Report what pages of a window have cost that is part of that stretch. */
extern void rbp_run_cost_file(RbpRunCost *cost, int64_t stretch, int pages, int64_t ns);

/* End the stretch if it is over; new processes begin with what it has cost. */
extern void rbp_run_cost_settle(RbpRunCost *cost, int64_t now);

#endif							/* RBP_RUN_COST_H */
