/*-------------------------------------------------------------------------
 *
 * choice.h
 *	  Where a page or a temporary block is read from, and which pages are worth
 *	  capturing: choice.c says how that is decided.
 *
 * Plain arithmetic; does not use the server's headers.  Times are in ns.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CHOICE_H
#define RBP_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* remote_bp.read_from */
typedef enum RbpReadFrom
{
	RBP_READ_AUTO,
	RBP_READ_DONOR,				/* whatever that costs */
	RBP_READ_FILE,				/* likewise */
	RBP_READ_CACHE				/* the page cache if it has the page, else the
								 * donor; for tests and benchmarks */
} RbpReadFrom;

extern int	rbp_guc_read_from;

/* Of the file systems beyond these, all count as one */
#define RBP_FILE_SYSTEMS	8
#define RBP_UNKNOWN_FILE_SYSTEM (-1)
#define RBP_TRANSPORTS		3
#define RBP_NO_TRANSPORT	(-1)	/* no donor: the file */

/* What is read */
typedef enum RbpWork
{
	RBP_WORK_PAGE,				/* pages, each by itself */
	RBP_WORK_RUN,				/* pages in order */
	RBP_WORK_TEMP,				/* temporary blocks, which are written, too */
	RBP_WORKS
} RbpWork;

/* What is measured of a file system and of a transport to donors, for a page */
typedef enum RbpCost
{
	/* pages of a file that the page cache has not */
	RBP_COST_PAGE,
	RBP_COST_RUN,
	RBP_COST_TEMP_WRITE,
	RBP_COST_TEMP_READ,
	RBP_COSTS
} RbpCost;

/*
 * Memory that is kept over the crash of a backend (kept.h): disks and donors cost what they
 * did before.  found: it is as the crash has left it.
 */
extern size_t rbp_choice_shmem_size(void);
extern void rbp_choice_shmem_open(void *mem, bool found);

/* The number of the file system with that st_dev */
extern int	rbp_choice_file_system(uint64_t device);

/*
 * n pages of the file system took so long together: from donors by that
 * transport, or from the file.
 */
extern void rbp_cost_add(int fs, int transport, RbpCost cost, int n, int64_t ns);

/*
 * Between the reads of n pages of a run the process did something else for so long.
 * file: the reads were of the file, and added to its costs.
 */
extern void rbp_choice_pace(int fs, int n, int64_t ns, bool file);

/* The average, or a guess */
extern int64_t rbp_cost(int fs, int transport, RbpCost cost);
extern bool rbp_cost_known(int fs, int transport, RbpCost cost);

/* st_dev of the file system with that number; false if there is none yet */
extern bool rbp_choice_device(int fs, uint64_t *device);

/* Of n pages that it was asked about the page cache had so many. */
extern void rbp_choice_asked(int fs, int n, int ncached);

/*
 * Does the page cache keep its pages, as far as page_cache.c has found out?  All
 * processes read that, and one sets it.
 */
extern bool rbp_choice_cache_keeps(void);
extern void rbp_choice_set_cache_keeps(bool keeps);

typedef enum RbpSource
{
	RBP_SOURCE_DONOR,			/* the donor, without asking */
	RBP_SOURCE_ASK,				/* ask, then rbp_choose_file() */
	RBP_SOURCE_FILE,			/* the file, without asking */
	RBP_SOURCE_TRIAL			/* ask, and if the page is not cached, take
								 * what rbp_choose_file() does not */
} RbpSource;

/*
 * The source of a page by itself.  transport: to a donor that has it, or
 * RBP_NO_TRANSPORT; then asking serves only to know whether to capture it.
 * askable: the page cache can be asked.
 */
extern RbpSource rbp_choose_page(int fs, int transport, bool askable, int64_t now);

/* Should it be read from the file, which is cached or not? */
extern bool rbp_choose_file(int fs, int transport, RbpWork work, bool cached);

/*
 * Should a page that the server announces be read from the file?  Such pages are on their
 * way from donors together, as those of a run are, and the disk has to look for each.
 */
extern bool rbp_choose_announced(int fs, int transport);

/* A window of a run */
typedef struct RbpRunFacts
{
	int			fs;
	int			transport;
	int			pages;
	int			remote;			/* of these, donors have */
	int			holes;			/* pieces that the disk is waited for */
	bool		cached;			/* the page cache has it */
} RbpRunFacts;

/* Its source: donor, file, or trial, if that is of the file */
extern RbpSource rbp_choose_run(const RbpRunFacts *facts, int64_t now);

/* Is the disk faster than the donors that were used last? */
extern bool rbp_choose_disk(int fs, RbpWork work);

/*
 * Is it worth connecting to donors over that transport, for a process that is about
 * to read n more of their pages, and has lost that much by not being connected so
 * far?  What these pages lose is added to that.  Once it is, it stays so until
 * *lost is 0 again.
 */
extern bool rbp_choose_connection(int fs, int transport, RbpWork work, int n, int64_t *lost);

/* Connecting has taken so much of this process's time. */
extern void rbp_choice_connected(int transport, int64_t ns);

/*
 * Does a trial go on in which all runs take part?  RBP_SOURCE_TRIAL: of the file;
 * RBP_SOURCE_DONOR: of donors
 */
extern bool rbp_choice_trying(int fs, RbpSource source, int64_t now);

/*
 * Should the next temporary block go to the file?  RBP_UNKNOWN_FILE_SYSTEM: as
 * that of the last one.
 */
extern bool rbp_choose_temp_file(int fs);

/* Is a temporary block to be measured that goes there? */
extern bool rbp_choice_measures_temp(int fs, bool file, bool write);

/* The cost of writing and reading a temporary block; 0: not known */
extern int64_t rbp_choice_temp_cost(bool file);

/* Are files cheaper for temporary blocks, if they were so far or not? */
extern bool rbp_choice_temp_file_cheaper(int fs, bool so_far);

/*
 * A stretch: the next pages of an open file that are read straight from there,
 * without a question to the page cache, and without a look-up.  All zeros: none
 */
typedef struct RbpStraight
{
	int			left;			/* pages */
	int			read;			/* so far */
	int			length;			/* pages in all; the next one may be longer.
								 * 0: the next one is the first of its run */
	uint32_t	first;			/* block of the first read */
	uint32_t	next;			/* behind the last one */
	uint32_t	epoch;			/* rbp_straight_epoch at its begin */
	bool		run;			/* for reads in order only */
	bool		cached;			/* the page cache has them */
	bool		faster;			/* the disk is faster than donors */
	bool		timed;			/* add their times as RBP_COST_RUN, and */
	int64_t		ended;			/* when the last read did; 0: none yet */
} RbpStraight;

/* Grows when a page is found missing in the page cache: that ends all stretches. */
extern uint32_t rbp_straight_epoch;

/* A run may leave out so many blocks: each process of a parallel scan has chunks. */
#define RBP_RUN_JUMP		4096

/*
 * A page, or a window of n pages of a run, was chosen to be read from the file:
 * begin to read straight.
 */
extern void rbp_straight_begin(RbpStraight *straight, int fs, RbpWork work, int n, bool cached);

/* The stretch is over: count the time that was spent on it. */
extern void rbp_straight_end(RbpStraight *straight, int fs);

/* Does a read of that block belong to the stretch? */
static inline bool
rbp_straight_left(const RbpStraight *straight, uint32_t block)
{
	return rbp_guc_read_from == RBP_READ_FILE ||
		(straight->left > 0 && rbp_guc_read_from == RBP_READ_AUTO &&
		 straight->epoch == rbp_straight_epoch &&
		 (!straight->run || block - straight->next <= RBP_RUN_JUMP));
}

/*
 * Is a page worth capturing, which came from the file?  cached: the page
 * cache had it.
 */
extern bool rbp_worth_capturing(int fs, bool cached);

/* Can enough of a run that comes from the disk be captured to look at each page? */
extern bool rbp_worth_capturing_run(int fs);

/* The process has waited for the disk. */
extern void rbp_choice_waited(int64_t ns);

/*
 * Time saved by reading pages from donors in so many ns instead of from the
 * file; negative if it took longer, 0 while that is not known.  missing: pages
 * that the page cache did not have; unknown: such that it was not asked about.
 */
extern int64_t rbp_choice_saved(int fs, RbpWork work, int missing, int unknown, int64_t ns);

#endif							/* RBP_CHOICE_H */
