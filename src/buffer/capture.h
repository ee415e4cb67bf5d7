/*-------------------------------------------------------------------------
 *
 * capture.h
 *	  Pages of frames go to staging.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CAPTURE_H
#define RBP_CAPTURE_H

#include "postgres.h"

#include "buffer/buffer.h"
#include "buffer/page.h"

/* What somebody has said of the page's relation, or of its tablespace. */
extern RbpPolicy rbp_page_policy(const RbpPageId *page);

/*
 * Is the page not to be captured, that the page cache has, or had when it was
 * written (cached), or that came from the disk?  Then RBP_SHADOW_* says why; else 0.
 */
extern uint32 rbp_why_not_capture(const RbpPageId *page, bool cached);

/* The frame's page is not captured, since its shadow has no claim: count why. */
extern void rbp_count_skip(uint32 flags);

/*
 * The frame is about to be overwritten: capture what it holds.  Says whether
 * that took a copy.
 */
extern bool rbp_capture_victim(const char *frame);

/* Stage a victim; says whether that took a copy. */
extern bool rbp_stage_victim(const char *bytes, const RbpPageId *page,
							 const RbpVersion *version, uint32 flags);

#endif							/* RBP_CAPTURE_H */
