/*-------------------------------------------------------------------------
 *
 * frame.h
 *	  Frames of shared buffers, and what is claimed of each: its shadow.
 *
 * The shadow array has one RbpShadow for each shared buffer: "when this frame
 * was last read from or written to disk, it was page P, and P's content on
 * disk then hashed to h, at write stamp s and generation g".  It is a claim
 * about the disk and not about the frame: whoever finds bytes, anywhere, that
 * hash to h while s and g have not moved has found the page as it is on disk.
 * So a frame that was dropped, zeroed or superseded by another frame in the
 * meantime does no harm: either its bytes still hash to h and the claim is
 * still true, or the capture is skipped.
 *
 * A frame's shadow is written only by the process that does I/O on the frame,
 * which the server makes exclusive (BM_IO_IN_PROGRESS), and read by that process,
 * or by one that has the buffer pinned and its content locked exclusively, so
 * that there is no I/O on it.  So it needs no lock of its own.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_FRAME_H
#define RBP_FRAME_H

#include "postgres.h"

#include "miscadmin.h"
#include "storage/bufmgr.h"

#include "buffer/page.h"

#define RBP_SHADOW_VALID		0x01
#define RBP_SHADOW_CHECKSUM		0x02	/* pd_checksum differs in the frame */
#define RBP_SHADOW_READ			0x04	/* a read of the disk gave it, unverified */

/* Without RBP_SHADOW_VALID: why not. */
#define RBP_SHADOW_CACHED		0x08	/* the page cache had it */
#define RBP_SHADOW_SLOW			0x10	/* donors are not enough quicker than the
									 * disk, where it came from */
#define RBP_SHADOW_POLICY		0x20	/* somebody has said so */

typedef struct RbpShadow
{
	RbpPageId	page;
	uint32		flags;			/* RBP_SHADOW_* */
	RbpVersion	version;
} RbpShadow;

/* One for each frame; NULL before shared memory is attached, and after. */
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

static inline RbpShadow *
rbp_shadow_of(const char *frame)
{
	return &rbp_shadows[(frame - BufferBlocks) / BLCKSZ];
}

static inline void
rbp_forget_frame(const char *frame)
{
	if (rbp_is_frame(frame, BLCKSZ))
		rbp_shadow_of(frame)->flags = 0;
}

/* The claim about the frame's page; see above. */
static inline void
rbp_remember_frame(const char *frame, const RbpPageId *page,
				   const RbpVersion *version, uint32 flags)
{
	RbpShadow  *shadow;

	if (!rbp_is_frame(frame, BLCKSZ))
		return;
	shadow = rbp_shadow_of(frame);
	shadow->page = *page;
	shadow->version = *version;
	shadow->flags = RBP_SHADOW_VALID | flags;
}

#endif							/* RBP_FRAME_H */
