/*-------------------------------------------------------------------------
 *
 * advice.h
 *	  How large the tier should be: reads and writes of pages are observed,
 *	  whether there is a tier or not.
 *
 * The functions that observe never raise errors, never wait but for the lock of
 * a page's partition, and preserve errno.  Where rbp_advice_observes() is false,
 * they need not be called.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_ADVICE_H
#define RBP_ADVICE_H

#include "postgres.h"

#include <sys/uio.h>

#include "storage/block.h"

#include "base/page_cache.h"
#include "base/relfile.h"

extern Size rbp_advice_shmem_size(void);
extern void rbp_advice_shmem_init(void *mem);

/* Shared memory is about to be detached from this process. */
extern void rbp_advice_stand_down(void);

/* The process exits: its reads are counted. */
extern void rbp_advice_exits(void);

/* A duty of the pusher (RbpDuty): turns observation on and off, by the settings. */
extern int64 rbp_advice_watch(void);

/* Are the reads and writes of this process observed? */
extern bool rbp_advice_observes(void);

/*
 * Pages of one read that are observed; others beyond them are counted as lost.
 * A read has 128 at most, of which a quarter is in the sample at most.
 */
#define RBP_ADVICE_PAGES	48

/* A read, from before until after; no initialization is necessary. */
typedef struct RbpAdviceRead
{
	int			n;				/* pages in the sample */
	bool		timed;			/* does the time of the read tell that of the
								 * disk? */
	int			fd;
	const RbpRelFile *file;
	RbpCacheView *cache;
	off_t		offset;
	int64		start;
	struct
	{
		const char *frame;
		uint64		key;
		Size		at;			/* in the bytes read */
		bool		cached;		/* did the page cache have it? */
	}			pages[RBP_ADVICE_PAGES];
} RbpAdviceRead;

/*
 * Pages are about to be read into shared buffers, by a call with these
 * arguments: see rbp_tier_read().  The frames still have the pages before them.
 */
extern void rbp_advice_before_read(RbpAdviceRead *read, int fd, const RbpRelFile *file,
								   RbpCacheView *cache, const struct iovec *iov,
								   int iovcnt, off_t offset);

/* They have been read, so many bytes. */
extern void rbp_advice_after_read(const RbpAdviceRead *read, ssize_t bytes);

/* Pages have been written, so many bytes; see rbp_tier_write(). */
extern void rbp_advice_after_write(const RbpRelFile *file, const struct iovec *iov,
								   int iovcnt, off_t offset, ssize_t bytes);

/* These blocks are truncated, dropped or replaced: see rbp_tier_invalidate(). */
extern void rbp_advice_forget(const RbpRelFile *file, BlockNumber block,
							  BlockNumber nblocks);

#endif							/* RBP_ADVICE_H */
