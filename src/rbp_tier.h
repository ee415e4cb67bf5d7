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

/* This process reads from staging and from files alone, and connects to no donor. */
extern void rbp_tier_set_unconnected(void);

/*
 * Prewarm.  While prewarming is on, this process captures whatever it reads from
 * the file; the caller turns it off, on errors too.
 */
extern void rbp_tier_set_prewarming(bool on);

/* May the relation's pages be in the tier, by policy and tablespace? */
extern bool rbp_tier_wants(const RbpRelFile *file);

/* Is the block in the tier, whether it could be read now or not? */
extern bool rbp_tier_has_block(const RbpRelFile *file, BlockNumber block);

/* The same; and it is kept from now on if its policy is that, and there is room. */
extern bool rbp_tier_keep_block(const RbpRelFile *file, BlockNumber block);

/* Would it find room there without another one being given up for it? */
extern bool rbp_tier_has_room(const RbpRelFile *file, BlockNumber block);

/* What became of a page that was to be staged; victims were copied from REFUSED on. */
typedef enum RbpStageResult
{
	RBP_STAGE_STALE,			/* written or dropped since */
	RBP_STAGE_FULL,				/* no staging slot is free: perhaps later */
	RBP_STAGE_REFUSED,			/* not known to be what the disk has, or not fit
								 * to be kept */
	RBP_STAGE_PRESENT,			/* the tier had it by then */
	RBP_STAGE_DONE
} RbpStageResult;

/*
 * Stage the block that a frame holds, if that is what the disk has.  The caller has
 * the buffer pinned and its content locked exclusively, so that nobody reads or
 * writes it meanwhile.
 */
extern RbpStageResult rbp_tier_prewarm_frame(const RbpRelFile *file,
										   BlockNumber block, const char *frame);

/*
 * The same for a block that was refused, with the same lock held through
 * both: begin, read the page from the file into memory of one's own, and stage that.
 * False if the block cannot be in the tier.
 */
extern bool rbp_tier_prewarm_begin(const RbpRelFile *file, BlockNumber block,
								   RbpVersion *version);
extern RbpStageResult rbp_tier_prewarm_page(const RbpRelFile *file,
										  BlockNumber block, const char *page,
										  RbpVersion *version);

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
