/*-------------------------------------------------------------------------
 *
 * rbp_tier.h
 *	  The buffer tier's policy: hit, miss, capture, invalidate.
 *
 * These functions stand in for file calls.  They answer as the call would,
 * with its return value and errno; they never raise, never allocate, and
 * wait at most remote_bp.io_timeout beyond what the disk takes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_TIER_H
#define RBP_TIER_H

#include "postgres.h"

#include <sys/uio.h>

#include "storage/block.h"

#include "rbp_directory.h"
#include "rbp_page_cache.h"
#include "rbp_relfile.h"
#include "rbp_remote.h"
#include "rbp_staging.h"

/* Attached shared memory; NULL before and after. */
extern RbpDirectory *rbp_dir;
extern RbpStaging *rbp_staging;

/*
 * rbp_remote is set up here too, for the buffer tier's extents and those of
 * temporary data, which come after them and are somebody else's.
 */
extern Size rbp_tier_shmem_size(uint32 temp_extents);
extern void rbp_tier_shmem_init(uint32 temp_extents,
								const RbpRemotePoolOps *temp_ops);
extern uint32 rbp_tier_max_extents(void);

/* No more shared memory in this process: pass everything through. */
extern void rbp_tier_stand_down(void);

/*
 * May this process use the tier at all?  False without a PGPROC or shared
 * memory, and until the tier has had memory for the first time.
 */
extern bool rbp_tier_attached(void);

/*
 * For the view: can no page be served or captured now?  Then the reason, as
 * text, into buf.
 */
extern bool rbp_tier_unusable_reason(char *buf, Size len);

/*
 * preadv() of whole, aligned pages into shared buffer frames; block is that
 * of offset.  cache: what is known of the descriptor.
 */
extern ssize_t rbp_tier_read(int fd, const RbpRelFile *file, RbpCacheView *cache,
							 BlockNumber block, const struct iovec *iov,
							 int iovcnt, off_t offset);

/*
 * pwritev() to a relation file, of anything.  block is that of offset,
 * rounded down.
 */
extern ssize_t rbp_tier_write(int fd, const RbpRelFile *file, BlockNumber block,
							  const struct iovec *iov, int iovcnt, off_t offset);

/* Are iov's pages whole and in shared buffer frames? */
extern bool rbp_tier_is_frames(const struct iovec *iov, int iovcnt);

/* The fork is about to change other than by pwrite, or just did. */
extern void rbp_tier_fork_changed(const RbpRelFile *file);

/*
 * Some relation file that cannot be named may change from here on: turn the
 * tier off until restart.
 */
extern void rbp_tier_lost_track(const char *why);

/* Are these blocks all in the tier, so that reading them ahead is wasted? */
extern bool rbp_tier_has_blocks(const RbpRelFile *file, BlockNumber block,
								int nblocks);

#endif							/* RBP_TIER_H */
