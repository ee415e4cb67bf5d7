/*-------------------------------------------------------------------------
 *
 * page_cache.h
 *	  Ask the operating system's page cache whether it has parts of a file.
 *
 * A question does not read anything from disk, nor start a read.  The answer
 * may be outdated immediately, so it may only be used to choose where to read
 * from.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_PAGE_CACHE_H
#define RBP_PAGE_CACHE_H

#include "postgres.h"

#include "base/choice.h"

/*
 * State of an open file, private to the process.  All zeros: nothing is known
 * yet.
 */
typedef struct RbpCacheView
{
	void	   *map;			/* mapping for mincore(); NULL: none */
	bool		tested;			/* reliable is known */
	bool		reliable;		/* the answer "not cached" can be trusted */
	int			file_system;	/* its number + 1; 0: not known yet */
	RbpStraight straight;
} RbpCacheView;

/*
 * Find out how to ask.  Call this once, in the postmaster, before any fork.
 * Never raises an error; if there is no method, all questions fail.
 */
extern void rbp_page_cache_init(void);

/* "cachestat", "mincore" or "none". */
extern const char *rbp_page_cache_method(void);

/*
 * Store in cached[] which of the n blocks from offset on are in the page
 * cache.  offset is a multiple of BLCKSZ, and the blocks are within one
 * segment; n is at most RBP_MAX_BATCH.  Returns false if the file's file
 * system cannot answer, or if it is not known yet whether its negative
 * answers are reliable.
 */
extern bool rbp_page_cache_ask(int fd, RbpCacheView *view, off_t offset, int n,
							   bool *cached);

/*
 * Check the file system's answer: the block at offset was just read, and so
 * must be in the page cache.  Only the first call for an open file does
 * anything.  A file system that has a cache of its own, or bypasses the page
 * cache, cannot answer.
 */
extern void rbp_page_cache_learn(int fd, RbpCacheView *view, off_t offset);

/*
 * The file's file system, as rbp_choice_file_system() numbers them.  *known: its
 * number + 1, once it was asked for; 0 before that
 */
extern int	rbp_page_cache_file_system(int fd, int *known);

/*
 * How often the kernel has read pages again that the page cache had evicted, for our
 * control group or, if that is not counted, for the host.  False if it does not tell.
 */
extern bool rbp_page_cache_refaults(uint64 *count);

/*
 * A duty (RbpDuty) of one process: check, every two seconds at most, whether
 * the page cache evicts pages that are needed again, by the kernel's count of
 * refaults for our control group or, if that is not counted, for the host.
 * Returns -1: it need not be called at a certain time.
 *
 * The page cache keeps its pages, rbp_choice_cache_keeps(), if it can be asked,
 * refaults are counted, and there was no significant number of them for a minute
 * or since the start.  If refaults start again soon after that became true, our
 * own use of the page cache may be the reason: then the time becomes longer than
 * a minute, up to an hour.
 */
extern int64 rbp_page_cache_watch(void);

/* Discard the state of a file that is about to be closed. */
extern void rbp_page_cache_forget(RbpCacheView *view);

#endif							/* RBP_PAGE_CACHE_H */
