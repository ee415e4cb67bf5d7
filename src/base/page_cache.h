/*-------------------------------------------------------------------------
 *
 * page_cache.h
 *	  Ask the operating system's page cache whether it has parts of a file.
 *
 * A question reads nothing and starts no read.  The answer may be out of date
 * as soon as it is there, so it is good for choosing where to read from, and
 * for nothing else.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_PAGE_CACHE_H
#define RBP_PAGE_CACHE_H

#include "postgres.h"

/*
 * What is known of an open file, private to the process.  All zeros: nothing
 * yet.
 */
typedef struct RbpCacheView
{
	void	   *map;			/* for mincore(); NULL: none */
	bool		tried;			/* it is known whether it can tell: */
	bool		tells;
} RbpCacheView;

/*
 * Find out how to ask: in the postmaster, before any fork, once.  Never
 * raises; where nothing can be asked, the answer to all questions is that.
 */
extern void rbp_page_cache_init(void);

/* "cachestat", "mincore" or "none". */
extern const char *rbp_page_cache_method(void);

/*
 * Which of the n blocks from offset on are in the page cache?  offset is a
 * multiple of BLCKSZ below that of the end of a segment file, n is at most RBP_MAX_BATCH.
 * False: this file cannot tell, or it is not known yet whether a no means
 * anything.
 */
extern bool rbp_page_cache_ask(int fd, RbpCacheView *view, off_t offset, int n,
							   bool *cached);

/*
 * The block at offset was just read, and so must be in the page cache: the
 * first time, this shows whether the file's file system can tell.  One that
 * has a cache of its own, or passes it by, cannot.
 */
extern void rbp_page_cache_learn(int fd, RbpCacheView *view, off_t offset);

extern Size rbp_page_cache_shmem_size(void);
extern void rbp_page_cache_shmem_init(void *mem);

/*
 * A duty of one process, which does it again and again: look, each two seconds at most,
 * whether the page cache gives pages up that are needed again.  As the kernel
 * counts it (refaults), for the control group that we are in or, where it does
 * not count, for the host.  Returns -1: it need not be called at any certain time.
 */
extern int64 rbp_page_cache_watch(void);

/*
 * It has given up none that count, for a minute or since the start, and somebody counts;
 * and it can be asked.
 * What begins to use it then may be why it gives pages up again: then it is longer
 * than a minute, up to an hour.
 */
extern bool rbp_page_cache_keeps(void);

/* The file is about to be closed: forget it. */
extern void rbp_page_cache_forget(RbpCacheView *view);

#endif							/* RBP_PAGE_CACHE_H */
