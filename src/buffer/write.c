/*-------------------------------------------------------------------------
 *
 * write.c
 *	  Writes of pages: invalidation, and claims about the written pages.
 *
 * Write of page P from frame F: bump P's stamp and drop its entry, copy F to
 * a staging slot, or to a private bounce buffer if there is none, write the
 * copy, and make the claim about the copy's bytes.  Writing from the copy
 * costs some 0.2 us and makes the claim exact: the frame may get hint bits
 * during the write.
 *
 * Most processes write a frame only to evict its page, and the frame's next
 * use may leave no trace of that page: since PostgreSQL 16, a relation that is
 * extended zeroes up to 64 victims before it makes any call.  So such a
 * process captures what it writes, right after the write.
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
#include "miscadmin.h"
#include "storage/buf_internals.h"
#include "storage/bufpage.h"
#include "storage/proc.h"

#include "base/choice.h"
#include "base/compat.h"
#include "base/geometry.h"
#include "base/hash.h"
#include "base/injection_point.h"
#include "base/libc.h"
#include "base/page_cache.h"
#include "base/relfile.h"
#include "base/stats.h"
#include "buffer/buffer.h"
#include "buffer/buffer_internal.h"
#include "buffer/directory.h"
#include "buffer/frame.h"
#include "buffer/page.h"
#include "buffer/relation_stats.h"
#include "buffer/staging.h"
#include "common/clock.h"

/* One page of a batch that is being written. */
typedef struct WritePage
{
	RbpPageRef	ref;
	char	   *frame;			/* gets the claim; NULL for no claim */
	uint32		flags;			/* of the claim */
	RbpVersion	version;
	uint32		slot;			/* the staging slot that has the bytes, or
								 * RBP_NO_STAGING_SLOT */
} WritePage;

static char bounce[RBP_MAX_BATCH][BLCKSZ] pg_attribute_aligned(RBP_IO_ALIGN);

char *
rbp_tier_find_frame(const RbpRelFile *file, BlockNumber block)
{
	RelFileLocator locator = {.spcOid = file->spc,.dbOid = file->db,.relNumber = file->rel};
	BufferTag	tag;
	uint32		hash;
	LWLock	   *lock;
	int			buf_id;

	InitBufferTag(&tag, &locator, (ForkNumber) file->fork, block);
	hash = BufTableHashCode(&tag);
	lock = BufMappingPartitionLock(hash);
	if (!LWLockConditionalAcquire(lock, LW_SHARED))
		return NULL;
	buf_id = BufTableLookup(&tag, hash);
	LWLockRelease(lock);
	return buf_id < 0 ? NULL : BufferBlocks + (Size) buf_id * BLCKSZ;
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

		if (rbp_directory_invalidate(rbp_dir, &id, true) != RBP_ABSENT)
			rbp_stats_count(RBP_COUNT_INVALIDATIONS, 1);
	}
}

void
rbp_tier_allocate(const RbpRelFile *file, off_t offset, off_t len)
{
	BlockNumber first = rbp_block_of(file, offset);
	int			n = (int) (rbp_block_of(file, offset + len - 1) - first) + 1;
	uint16		space = rbp_tier_attached() ? rbp_space_find(file->spc, file->db) : RBP_INVALID_SPACE;

	if (space != RBP_INVALID_SPACE)
		invalidate_blocks(file, space, first, n);
	else
		rbp_tier_invalidate(file, first, (BlockNumber) n);
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
frame_to_claim(const RbpRelFile *file, int fs, const RbpPageId *page, char *buf,
			   bool scarce, uint32 *skip_reason)
{
	char	   *frame;

	*skip_reason = RBP_SHADOW_CACHED;
	if (!rbp_is_frame(buf, BLCKSZ) && !DataChecksumsEnabled())
		return NULL;
	*skip_reason = rbp_skip_reason(page, fs, true);
	if (*skip_reason == RBP_SHADOW_POLICY || (*skip_reason != 0 && !scarce))
		return NULL;
	frame = rbp_is_frame(buf, BLCKSZ) ? buf : rbp_tier_find_frame(file, page->block);
	if (frame == NULL || *skip_reason == 0)
		return frame;
	return (rbp_shadow_of(frame)->flags & RBP_SHADOW_VALID) &&
		rbp_page_equal(&rbp_shadow_of(frame)->page, page) ? frame : NULL;
}

/*
 * Prepare the write of a page from buf: if it is to have a claim, copy it, and
 * determine the claim.  Returns the bytes to write.
 */
static char *
prepare_page(const RbpRelFile *file, int fs, WritePage *page, char *buf,
			 char *bounce_page, bool scarce)
{
	uint32		skip_reason;
	char	   *copy = buf;

	page->slot = RBP_NO_STAGING_SLOT;
	page->frame = frame_to_claim(file, fs, &page->ref.id, buf, scarce, &skip_reason);
	if (page->frame == NULL)
	{
		rbp_shadow_of(buf)->flags = skip_reason;
		return buf;
	}
	page->flags = page->frame == buf ? 0 : RBP_SHADOW_CHECKSUM;
	/* a page of zeros is being created, and written again soon */
	if (rbp_tier_write_evicts() && !PageIsNew((Page) buf))
	{
		page->slot = rbp_staging_get(rbp_staging);
		/* a write does not wait for a free staging slot */
		if (page->slot == RBP_NO_STAGING_SLOT)
			rbp_stats_count(RBP_COUNT_DROPS_FULL, 1);
	}
	if (page->slot != RBP_NO_STAGING_SLOT)
		copy = rbp_staging_page(rbp_staging, page->slot);
	else if (page->frame == buf)
		copy = bounce_page;
	if (copy != buf)
		memcpy(copy, buf, BLCKSZ);
	rbp_forget_frame(page->frame);
	page->version.hash = rbp_hash_page(copy);
	rbp_directory_note_version(rbp_dir, &page->ref, &page->version);
	return copy;
}

/*
 * Write n whole pages, at most RBP_MAX_BATCH, set the claims about them, and
 * capture those that are being evicted.
 */
static ssize_t
write_batch(int fd, const RbpRelFile *file, int fs, uint16 space, char **bufs, int n,
			off_t offset)
{
	struct iovec iov[RBP_MAX_BATCH];
	WritePage	pages[RBP_MAX_BATCH];
	ssize_t		result;
	int			save_errno;
	bool		scarce = !rbp_choice_cache_keeps();

	for (int i = 0; i < n; i++)
	{
		RbpPageId	id = {.rel = file->rel,.block = rbp_block_of(file, offset) + i,
		.space = space,.fork = file->fork};

		pages[i].ref = rbp_page_ref(&id);
		iov[i].iov_base = prepare_page(file, fs, &pages[i], bufs[i], bounce[i], scarce);
		iov[i].iov_len = BLCKSZ;
	}

	result = rbp_libc_writev(fd, iov, n, offset);
	save_errno = errno;

	for (int i = 0; i < n; i++)
	{
		WritePage  *page = &pages[i];
		bool		written = (ssize_t) (i + 1) * BLCKSZ <= result;

		if (page->frame != NULL && written)
			rbp_remember_frame(page->frame, &page->ref.id, &page->version, page->flags);
		if (page->slot == RBP_NO_STAGING_SLOT)
			continue;
		if (!written || rbp_policy_refuses(&page->ref.id))
			rbp_staging_put(rbp_staging, page->slot);
		else
			(void) rbp_stage_publish(page->slot, &page->ref, &page->version);
	}
	rbp_relation_stats_settle();
	errno = save_errno;
	return result;
}

ssize_t
rbp_tier_write(int fd, const RbpRelFile *file, RbpCacheView *cache,
			   const struct iovec *iov, int iovcnt, off_t offset)
{
	uint16		space;
	Size		len = 0;
	Size		pos = 0;
	bool		whole = offset % BLCKSZ == 0;
	ssize_t		total = 0;

	rbp_tier_note_fsync();
	if (!rbp_tier_records_writes())
		return rbp_libc_writev(fd, iov, iovcnt, offset);

	space = rbp_space_get(file->spc, file->db);
	for (int i = 0; i < iovcnt; i++)
	{
		len += iov[i].iov_len;
		whole = whole && iov[i].iov_len % BLCKSZ == 0;
	}
	if (space == RBP_INVALID_SPACE || len == 0)
		return rbp_libc_writev(fd, iov, iovcnt, offset);
	rbp_stats_count(RBP_COUNT_DISK_WRITES, (len + BLCKSZ - 1) / BLCKSZ);

	/*
	 * Without a PGPROC no lock can be taken, and the whole fork is
	 * invalidated.
	 */
	if (MyProc == NULL)
	{
		rbp_tier_invalidate(file, rbp_block_of(file, offset), 1);
		return rbp_libc_writev(fd, iov, iovcnt, offset);
	}

	invalidate_blocks(file, space, rbp_block_of(file, offset),
					  (int) ((offset % BLCKSZ + len + BLCKSZ - 1) / BLCKSZ));
	/* the injection point shows why prewarm locks the page */
	if (RBP_INJECTION_POINT("prewarm-unlocked") || RBP_INJECTION_POINT("slow-writes"))
		pg_usleep(20000);

	/* Claims are about whole pages; a partial write needs none. */
	if (!whole || !rbp_tier_usable(rbp_now_ns()))
	{
		for (int i = 0; i < iovcnt; i++)
			for (Size off = 0; off < iov[i].iov_len; off += BLCKSZ)
				rbp_forget_frame((char *) iov[i].iov_base + off);
		return rbp_libc_writev(fd, iov, iovcnt, offset);
	}

	for (;;)
	{
		char	   *bufs[RBP_MAX_BATCH];
		off_t		at = offset + (off_t) pos;
		int			n = rbp_next_batch(iov, iovcnt, &pos, bufs);
		ssize_t		done;

		if (n == 0)
			return total;
		done = write_batch(fd, file, rbp_page_cache_file_system(fd, &cache->file_system), space, bufs, n, at);
		if (done < 0)
			return total > 0 ? total : done;
		total += done;
		if (done < (ssize_t) n * BLCKSZ)
			return total;
	}
}
