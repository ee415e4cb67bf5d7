/*-------------------------------------------------------------------------
 *
 * read_cost.h
 *	  What reads have cost this process lately, by where they came from, and
 *	  so where the next one is to come from, and what is worth capturing.
 *
 * Plain arithmetic, free of the server's headers.  Times are in ns.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_READ_COST_H
#define RBP_READ_COST_H

#include <stdbool.h>
#include <stdint.h>

/* The ways to a page that donors have; a transport each. */
#define RBP_WAYS			3
#define RBP_WAY_NONE		(-1)	/* no donor has it */

typedef struct RbpReadCost
{
	/* averages of lately; see rbp_read_cost_init() */
	uint32_t	ask;			/* asking the page cache about a page */
	uint32_t	cached;			/* reading a page that it has */
	uint32_t	disk;			/* ... that it has not */
	uint32_t	donor[RBP_WAYS];
	uint32_t	missing;		/* of what was asked about, the page cache had
								 * not got: parts of 2^20 */
	uint32_t	asked;			/* questions so far, up to a limit */
	uint32_t	turn;			/* counts reads, for samples */
	uint32_t	captures;		/* and decisions about them */
	int			way;			/* that was chosen about last */
	int64_t		donor_sampled[RBP_WAYS];	/* when each was last read from
											 * though it was slower; 0: never */
	int64_t		cached_sampled;
	int64_t		disk_sampled;
	bool		disk_seen;		/* disk is not the first guess any more */
	bool		straight;		/* those before the one in hand were read so */
	bool		filling;		/* the read from the file in hand is to fill the
								 * page cache */
	uint32_t	credit;			/* ns that capturing may take */
	int64_t		balance;		/* what donors have taken longer than the page
								 * cache would have, less what filling it took */
} RbpReadCost;

typedef enum RbpSource
{
	RBP_SOURCE_DONOR,			/* the donor, straight */
	RBP_SOURCE_ASK,				/* ask: the file if it is cached, else donor */
	RBP_SOURCE_FILE				/* the file, straight */
} RbpSource;

extern void rbp_read_cost_init(RbpReadCost *cost);

/*
 * Where shall a page be read from that donors have (way: by which transport),
 * or that no donor has (RBP_WAY_NONE; then to ask is worth it only to know
 * whether to capture it)?  bypass: also from a disk that is quicker than donors.
 * keeps: the page cache gives up no page that is needed again.
 */
extern RbpSource rbp_read_cost_choose(RbpReadCost *cost, int way, bool bypass,
									  bool keeps);

/*
 * How many pages are to be read from the file, whoever has them, so that
 * nobody need be asked, not even the directory?  As if the donors that were read
 * from last had them.
 */
extern int	rbp_read_cost_straight(RbpReadCost *cost, bool bypass);

/* They are read: the question about the next one is to be asked. */
extern void rbp_read_cost_ask_next(RbpReadCost *cost);

/*
 * The page cache has been asked about a page that donors have; or it cannot be asked,
 * and "not cached" stands for whatever is found in the file.  Shall the page be
 * read from the file?  If that is quicker; now and then what is slower is
 * taken, so that it is known how slow; and while the page cache keeps what it has,
 * so that it has the page from then on.  now: a monotonic clock.
 */
extern bool rbp_read_cost_prefer_file(RbpReadCost *cost, int way, bool cached,
									  bool keeps, int64_t now);

/*
 * Shall a page be captured?  If donors are so much quicker than the disk that a later
 * read from them pays for it, and that read would go to the disk: a page that
 * the page cache has (cached) may well be there still.  But capturing takes no more
 * than a small part of the time that the disk takes.  Else one page in a few is captured,
 * so that the tier fills by and by before it is needed, and that donors stay known.
 */
extern bool rbp_read_cost_keep(RbpReadCost *cost, bool cached);

/* What has come of it, for n pages. ns: 0 if not measured. */
extern void rbp_read_cost_asked(RbpReadCost *cost, int n, int ncached,
								int64_t ns);
extern void rbp_read_cost_file(RbpReadCost *cost, int n, bool cached,
							   int64_t ns);
extern void rbp_read_cost_donor(RbpReadCost *cost, int way, int n, int64_t ns);

/*
 * What reading n pages from a donor in so many ns has saved, instead of the file;
 * less than 0 if it has cost more, 0 as long as no read of the disk was seen.
 * known_missing: the page cache had not got them; else it is not known.
 */
extern int64_t rbp_read_cost_saved(const RbpReadCost *cost, int n,
								   bool known_missing, int64_t ns);

/* Is the disk quicker than donors, as far as it was seen? */
extern bool rbp_read_cost_slower(const RbpReadCost *cost, int way);

/* ... and most of what donors have read from it for that reason? */
extern bool rbp_read_cost_from_disk(const RbpReadCost *cost, int way);

/* Shall the next question be timed?  Clocks cost as much as an answer. */
extern bool rbp_read_cost_time_question(const RbpReadCost *cost);

#endif							/* RBP_READ_COST_H */
