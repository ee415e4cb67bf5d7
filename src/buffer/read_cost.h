/*-------------------------------------------------------------------------
 *
 * read_cost.h
 *	  Recent costs of this process's reads, by source; from these follow the
 *	  source of the next read, and which pages are worth capturing.
 *
 * Plain arithmetic; does not use the server's headers.  Times are in ns.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_READ_COST_H
#define RBP_READ_COST_H

#include <stdbool.h>
#include <stdint.h>

/* Costs of donors are measured for each transport */
#define RBP_READ_COST_TRANSPORTS	3
#define RBP_NO_TRANSPORT			(-1)	/* no donor has the page */

typedef struct RbpReadCost
{
	/* recent averages; see rbp_read_cost_init() */
	uint32_t	ask;			/* asking the page cache about a page */
	uint32_t	cached;			/* reading a page that the page cache has */
	uint32_t	disk;			/* reading a page that it does not have */
	uint32_t	donor[RBP_READ_COST_TRANSPORTS];
	uint32_t	missing;		/* share of the pages asked about that the
								 * page cache did not have, in parts of 2^20 */

	uint32_t	asked;			/* questions so far, up to a limit */
	uint32_t	turn;			/* counts reads, for samples */
	uint32_t	captures;		/* counts decisions about captures, for
								 * samples */
	int			transport;		/* transport of the last decision */

	/* when each was last read from although it was slower; 0: never */
	int64_t		donor_sampled[RBP_READ_COST_TRANSPORTS];
	int64_t		cached_sampled;
	int64_t		disk_sampled;

	bool		disk_seen;		/* disk is a measurement, not the initial
								 * value */
	bool		after_fast_path;	/* the reads before the current one took
									 * the fast path */
	bool		filling;		/* the current read from the file serves to
								 * fill the page cache */
	uint32_t	credit;			/* ns that capturing may take */
	int64_t		balance;		/* time by which donors were slower than the
								 * page cache would have been, less the time
								 * spent on filling it */
} RbpReadCost;

typedef enum RbpSource
{
	RBP_SOURCE_DONOR,			/* the donor, without asking */
	RBP_SOURCE_ASK,				/* ask the page cache: the file if the page is
								 * cached, else the donor */
	RBP_SOURCE_FILE				/* the file, without asking */
} RbpSource;

extern void rbp_read_cost_init(RbpReadCost *cost);

/*
 * Choose the source of a page that donors have (transport says by which
 * transport), or that no donor has (RBP_NO_TRANSPORT; then asking the page
 * cache only serves to decide whether to capture the page).  bypass: a disk
 * that is faster than donors may be chosen.  keeps: the page cache does not
 * evict pages that are needed again.
 */
extern RbpSource rbp_read_cost_choose(RbpReadCost *cost, int transport, bool bypass,
									  bool keeps);

/*
 * Number of pages to read next on the fast path: from the file, without
 * asking the page cache or looking up the directory.  This assumes that the
 * donors that were read from last had the pages.
 */
extern int	rbp_read_cost_fast_path(RbpReadCost *cost, bool bypass);

/* The fast path ends: the next page must be asked about. */
extern void rbp_read_cost_end_fast_path(RbpReadCost *cost);

/*
 * Should a page that donors have be read from the file?  cached is the answer
 * of the page cache; if it cannot be asked, "not cached" stands for any page
 * of the file.  The faster source is chosen, with two exceptions: now and
 * then the slower one is used, to measure it; and while the page cache keeps
 * what it has, pages are read from disk to fill it.  n: the
 * number of pages that the choice is for.  now: a monotonic clock.
 */
extern bool rbp_read_cost_prefer_file(RbpReadCost *cost, int transport, bool cached,
									  bool keeps, int n, int64_t now);

/*
 * Is a page worth capturing?  It is if donors are so much faster than the
 * disk that a later read from them outweighs the cost of capturing, provided
 * that this read would go to the disk: a page that the page cache has
 * (cached) may still be there.  Capturing must take no more than a small part
 * of the time that the disk takes.  Of other pages, one in a few is captured
 * nevertheless, so that the tier fills gradually before it is needed, and the
 * costs of donors remain known.
 */
extern bool rbp_read_cost_worth_capturing(RbpReadCost *cost, bool cached);

/* Report what n pages have cost.  ns: 0 if not measured. */
extern void rbp_read_cost_asked(RbpReadCost *cost, int n, int ncached,
								int64_t ns);
extern void rbp_read_cost_file(RbpReadCost *cost, int n, bool cached,
							   int64_t ns);

/* The process has waited for the disk, which was not reported otherwise. */
extern void rbp_read_cost_waited(RbpReadCost *cost, int64_t ns);

extern void rbp_read_cost_donor(RbpReadCost *cost, int transport, int n, int64_t ns);

/*
 * Time saved by reading pages from a donor in so many ns instead of from the
 * file; negative if it took longer, 0 as long as no read of the disk was
 * measured.  These are pages that the page cache did not have, that it had,
 * and such that it was not asked about.
 */
extern int64_t rbp_read_cost_saved(const RbpReadCost *cost, int missing, int cached,
								   int unknown, int64_t ns);

/* Is the disk faster than donors, as far as it was measured? */
extern bool rbp_read_cost_slower(const RbpReadCost *cost, int transport);

/*
 * Is the disk faster than donors, and are most pages that donors have read
 * from disk for that reason?
 */
extern bool rbp_read_cost_from_disk(const RbpReadCost *cost, int transport);

/*
 * Should the next question be timed?  Reading the clock takes as long as a
 * question.
 */
extern bool rbp_read_cost_time_question(const RbpReadCost *cost);

#endif							/* RBP_READ_COST_H */
