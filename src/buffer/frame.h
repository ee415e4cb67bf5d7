/*-------------------------------------------------------------------------
 *
 * frame.h
 *	  Frames of shared buffers, and what is claimed of each: its shadow.
 *
 * The shadow array has one RbpShadow for each shared buffer: "when this frame
 * was last read from or written to disk, it was page P, and P's content on
 * disk then hashed to h, at write stamp s and generation g".  It is a claim
 * about the disk, not about the frame: any bytes that hash to h are the page
 * as it is on disk, wherever they were found, provided that s and g have not
 * moved.  So it does no harm that a frame was dropped, zeroed or superseded
 * by another frame meanwhile: either its bytes still hash to h and the claim
 * is still true, or the capture is skipped.
 *
 * Only the process that does I/O on a frame writes the frame's shadow; the
 * server makes that process exclusive (BM_IO_IN_PROGRESS).  It is read by
 * that process, or by a process that holds a pin and an exclusive content
 * lock on the buffer, so that there is no I/O on it.  So a shadow needs no
 * lock of its own.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_FRAME_H
#define RBP_FRAME_H

#include "postgres.h"

#include "storage/bufmgr.h"

#include "buffer/page.h"

#define RBP_SHADOW_VALID		0x01
#define RBP_SHADOW_CHECKSUM		0x02	/* pd_checksum differs in the frame */
#define RBP_SHADOW_READ			0x04	/* from a read of the disk, not
										 * verified */

/* If RBP_SHADOW_VALID is not set, the reason for it: */
#define RBP_SHADOW_CACHED		0x08	/* the page cache has the page */
#define RBP_SHADOW_SLOW			0x10	/* donors are not enough faster than
										 * the disk, which the page came from */
#define RBP_SHADOW_POLICY		0x20	/* a policy or setting excludes the
										 * page */

typedef struct RbpShadow
{
	RbpPageId	page;
	uint32		flags;			/* RBP_SHADOW_* */
	RbpVersion	version;
} RbpShadow;

/* One for each frame; NULL while shared memory is not attached */
extern RbpShadow *rbp_shadows;

/* Are these len bytes whole frames? */
static inline bool
rbp_is_frame(const void *p, Size len)
{
	const char *c = p;

	return c >= BufferBlocks &&
		len <= (Size) NBuffers * BLCKSZ &&
		c <= BufferBlocks + (Size) NBuffers * BLCKSZ - len &&
		(c - BufferBlocks) % BLCKSZ == 0;
}

/*
 * Memory that is no frame, such as the copies of pages that the server writes, has a
 * shadow of the process, lest each use asks what it is.
 */
extern RbpShadow rbp_no_frame;

static inline RbpShadow *
rbp_shadow_of(const char *frame)
{
	return rbp_is_frame(frame, BLCKSZ) ? &rbp_shadows[(frame - BufferBlocks) / BLCKSZ] :
		&rbp_no_frame;
}

static inline void
rbp_forget_frame(const char *frame)
{
	rbp_shadow_of(frame)->flags = 0;
}

/* Set the frame's claim; see above. */
static inline void
rbp_remember_frame(const char *frame, const RbpPageId *page,
				   const RbpVersion *version, uint32 flags)
{
	RbpShadow  *shadow = rbp_shadow_of(frame);

	shadow->page = *page;
	shadow->version = *version;
	shadow->flags = RBP_SHADOW_VALID | flags;
}

#endif							/* RBP_FRAME_H */
