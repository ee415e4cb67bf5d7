/*-------------------------------------------------------------------------
 *
 * write.c
 *	  Writes of pages: invalidation, and claims about the written pages.
 *
 * Write of page P from frame F: bump P's stamp and drop its entry, copy F to
 * a private bounce buffer, write the bounce buffer, and make the claim about
 * the bounce buffer's bytes.  Writing from the copy costs some 0.2 us and
 * makes the claim exact: the frame may get hint bits during the write.
 *
 * On clusters with data checksums the server itself writes from a private
 * copy, whose pd_checksum differs from the frame's.  In that case we find the
 * frame by its buffer tag, and mark its claim, so that a capture sets the
 * checksum on the staged copy before it hashes it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "storage/buf_internals.h"
#include "storage/proc.h"

#include "base/compat.h"
#include "base/geometry.h"
#include "base/guc.h"
#include "base/hash.h"
#include "base/injection_point.h"
#include "base/libc.h"
#include "base/relfile.h"
#include "base/stats.h"
#include "buffer/buffer.h"
#include "buffer/buffer_internal.h"
#include "buffer/capture.h"
#include "buffer/directory.h"
#include "buffer/frame.h"
#include "buffer/page.h"
#include "buffer/space.h"
#include "common/clock.h"

/*
 * The last page that this process wrote, and the copy that it was written
 * from: see capture_before_extend().
 */
static struct
{
	bool		valid;
	RbpPageId	page;
	RbpVersion	version;
	const char *copy;
}			last_write;

static char bounce_space[RBP_MAX_BATCH * BLCKSZ + RBP_IO_ALIGN];

#define bounce			((char *) TYPEALIGN(RBP_IO_ALIGN, bounce_space))

/*
 * Find the frame that holds this page by its buffer tag.  Returns NULL if
 * there is none, or if the mapping lock is not free.
 */
static char *
frame_by_tag(const RbpRelFile *file, BlockNumber block)
{
	BufferTag	tag;
	uint32		hash;
	LWLock	   *lock;
	int			buf_id;

	rbp_compat_tag(&tag, file->spc, file->db, file->rel,
				   (ForkNumber) file->fork, block);
	hash = BufTableHashCode(&tag);
	lock = BufMappingPartitionLock(hash);
	if (!LWLockConditionalAcquire(lock, LW_SHARED))
		return NULL;
	buf_id = BufTableLookup(&tag, hash);
	LWLockRelease(lock);
	return buf_id < 0 ? NULL : BufferBlocks + (Size) buf_id * BLCKSZ;
}

/*
 * Capture the victim of a relation extension.  If a frame is written whose
 * claim is about another page, the relation is being extended, and the victim
 * was zeroed before any call could see it.  If the victim was dirty, this
 * process has just written it, from the bounce buffer or from the server's
 * own copy with the checksum, and that copy still exists.
 */
static void
capture_before_extend(const char *frame, const RbpPageId *new_page)
{
	RbpShadow  *shadow = rbp_shadow_of(frame);

	if (!last_write.valid || !(shadow->flags & RBP_SHADOW_VALID) ||
		rbp_page_equal(&shadow->page, new_page) ||
		!rbp_page_equal(&shadow->page, &last_write.page) ||
		shadow->version.hash != last_write.version.hash)
		return;
	(void) rbp_stage_victim(last_write.copy, &last_write.page, &last_write.version, 0);
	last_write.valid = false;
}

/* Write like the server: pwrite() for one buffer, else pwritev(). */
static ssize_t
plain_write(int fd, const struct iovec *iov, int iovcnt, off_t offset)
{
	if (iovcnt == 1)
		return rbp_libc.pwrite(fd, iov[0].iov_base, iov[0].iov_len, offset);
	return rbp_libc.pwritev(fd, iov, iovcnt, offset);
}

/* Drop the entries of blocks that are about to be written. */
static void
invalidate_blocks(const RbpRelFile *file, uint16 space, BlockNumber block,
				  int n)
{
	for (int i = 0; i < n; i++)
	{
		RbpPageId	id = {.rel = file->rel,.block = block + i,.space = space,
		.fork = file->fork};

		if (rbp_directory_invalidate(rbp_dir, &id) != RBP_ABSENT)
			rbp_stats_count(RBP_COUNT_INVALIDATIONS, 1);
	}
}

/*
 * Find the frame that gets the claim about a page that is written from buf.
 * Returns NULL if the page is not worth capturing, for which *skip_reason is set,
 * or if its frame is not known.  While memory is scarce (the page cache does
 * not keep its pages), a page that had a claim before it was changed gets one
 * again, even if *skip_reason is set: else the tier would lose pages that are
 * written again and again.
 */
static char *
frame_to_claim(const RbpRelFile *file, const RbpPageId *page, char *buf,
			   bool scarce, uint32 *skip_reason)
{
	char	   *frame;

	*skip_reason = RBP_SHADOW_CACHED;
	if (!rbp_is_frame(buf, BLCKSZ) && !DataChecksumsEnabled())
		return NULL;
	*skip_reason = rbp_skip_reason(page, true);
	if (*skip_reason == RBP_SHADOW_POLICY || (*skip_reason != 0 && !scarce))
		return NULL;
	frame = rbp_is_frame(buf, BLCKSZ) ? buf : frame_by_tag(file, page->block);
	if (frame == NULL || *skip_reason == 0)
		return frame;
	return (rbp_shadow_of(frame)->flags & RBP_SHADOW_VALID) &&
		rbp_page_equal(&rbp_shadow_of(frame)->page, page) ? frame : NULL;
}

/*
 * Write n whole pages, at most RBP_MAX_BATCH, and set the claims about them.
 */
static ssize_t
write_batch(int fd, const RbpRelFile *file, uint16 space, char **bufs, int n,
			off_t offset)
{
	BlockNumber block = rbp_block_of(file, offset);
	struct iovec iov[RBP_MAX_BATCH];
	RbpVersion	versions[RBP_MAX_BATCH];
	RbpPageId	ids[RBP_MAX_BATCH];
	char	   *frames[RBP_MAX_BATCH];	/* frames that get the claims, or NULL */
	uint32		flags[RBP_MAX_BATCH];
	uint32		skip_reason;
	uint32		generation;
	ssize_t		result;
	bool		scarce = !rbp_page_cache_keeps();

	/* This write overwrites the bounce buffer, so use its old content now. */
	for (int i = 0; i < n; i++)
	{
		ids[i] = (RbpPageId)
		{
			.rel = file->rel,.block = block + i,.space = space,.fork = file->fork
		};
		if (rbp_is_frame(bufs[i], BLCKSZ))
			capture_before_extend(bufs[i], &ids[i]);
	}
	last_write.valid = false;

	generation = rbp_directory_generation(rbp_dir, file->rel, space, file->fork);
	for (int i = 0; i < n; i++)
	{
		iov[i].iov_base = bufs[i];
		iov[i].iov_len = BLCKSZ;
		frames[i] = frame_to_claim(file, &ids[i], bufs[i], scarce, &skip_reason);
		flags[i] = 0;
		if (frames[i] == NULL)
		{
			/* no claim, so no copy either */
			if (rbp_is_frame(bufs[i], BLCKSZ))
				rbp_shadow_of(bufs[i])->flags = skip_reason;
			continue;
		}
		if (frames[i] != bufs[i])
			flags[i] = RBP_SHADOW_CHECKSUM;
		else
		{
			iov[i].iov_base = bounce + (Size) i * BLCKSZ;
			memcpy(iov[i].iov_base, bufs[i], BLCKSZ);
		}
		rbp_forget_frame(frames[i]);
		versions[i].hash = rbp_hash_page(iov[i].iov_base);
		versions[i].stamp = rbp_directory_stamp(rbp_dir, &ids[i]);
		versions[i].generation = generation;
	}

	result = plain_write(fd, iov, n, offset);

	for (int i = 0; i < n && (ssize_t) (i + 1) * BLCKSZ <= result; i++)
		if (frames[i] != NULL)
			rbp_remember_frame(frames[i], &ids[i], &versions[i], flags[i]);
	if (n == 1 && result == BLCKSZ && frames[0] != NULL)
	{
		last_write.valid = true;
		last_write.page = ids[0];
		last_write.version = versions[0];
		last_write.copy = iov[0].iov_base;
	}
	return result;
}

ssize_t
rbp_tier_write(int fd, const RbpRelFile *file, const struct iovec *iov,
			   int iovcnt, off_t offset)
{
	uint16		space;
	Size		len = 0;
	Size		pos = 0;
	bool		whole = offset % BLCKSZ == 0;
	ssize_t		total = 0;

	if (!rbp_tier_records_writes())
		return plain_write(fd, iov, iovcnt, offset);

	space = rbp_space_get(file->spc, file->db);
	for (int i = 0; i < iovcnt; i++)
	{
		len += iov[i].iov_len;
		whole = whole && iov[i].iov_len % BLCKSZ == 0;
	}
	if (space == RBP_INVALID_SPACE || len == 0)
		return plain_write(fd, iov, iovcnt, offset);
	rbp_stats_count(RBP_COUNT_DISK_WRITES, (len + BLCKSZ - 1) / BLCKSZ);

	/* Without a PGPROC no lock can be taken: invalidate the whole fork. */
	if (MyProc == NULL)
	{
		rbp_tier_fork_changed(file);
		return plain_write(fd, iov, iovcnt, offset);
	}

	invalidate_blocks(file, space, rbp_block_of(file, offset),
					  (int) ((offset % BLCKSZ + len + BLCKSZ - 1) / BLCKSZ));
	/* the injection point shows why prewarm locks the page */
	if (RBP_INJECTION_POINT("prewarm-unlocked"))
		pg_usleep(20000);

	/* Claims are about whole pages; a partial write needs none. */
	if (!whole || !rbp_tier_usable(rbp_now_ns()))
	{
		for (int i = 0; i < iovcnt; i++)
			for (Size off = 0; off < iov[i].iov_len; off += BLCKSZ)
				rbp_forget_frame((char *) iov[i].iov_base + off);
		last_write.valid = false;
		return plain_write(fd, iov, iovcnt, offset);
	}

	for (;;)
	{
		char	   *bufs[RBP_MAX_BATCH];
		off_t		at = offset + (off_t) pos;
		int			n = rbp_next_batch(iov, iovcnt, &pos, bufs);
		ssize_t		done;

		if (n == 0)
			return total;
		done = write_batch(fd, file, space, bufs, n, at);
		if (done < 0)
			return total > 0 ? total : done;
		total += done;
		if (done < (ssize_t) n * BLCKSZ)
			return total;
	}
}
