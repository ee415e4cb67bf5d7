/*-------------------------------------------------------------------------
 *
 * capture.h
 *	  Capture: copying pages from frames to staging.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CAPTURE_H
#define RBP_CAPTURE_H

#include "postgres.h"

#include "buffer/buffer.h"
#include "buffer/page.h"

/*
 * Is the page not to be captured, by a policy that may be newer than the claim
 * about it?  If so, it is counted.
 */
extern bool rbp_policy_refuses(const RbpPageId *page);

/*
 * Reason not to capture the page, as a flag RBP_SHADOW_*; 0 if it should be
 * captured.  cached: the page cache has the page, or had it when it was
 * written; otherwise the page came from the disk.  fs: of its file.
 */
extern uint32 rbp_skip_reason(const RbpPageId *page, int fs, bool cached);

/*
 * Count a page that is not captured because its frame has no claim.  flags
 * are those of the shadow, and tell the reason.
 */
extern void rbp_count_skip(uint32 flags);

/*
 * Capture the page of a frame that is about to be overwritten, which its claim is
 * about.  Returns whether this counts as a capture: see RbpStageResult.
 */
extern bool rbp_capture_victim(const char *frame, const RbpPageRef *page);

/*
 * Capture the page whose bytes the staging slot has, which is the caller's;
 * the version's claim is about these bytes.  The slot is used, or freed.
 */
extern RbpStageResult rbp_stage_publish(uint32 slot, const RbpPageRef *page,
										const RbpVersion *version);

#endif							/* RBP_CAPTURE_H */
