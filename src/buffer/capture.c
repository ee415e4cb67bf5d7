/*-------------------------------------------------------------------------
 *
 * capture.c
 *	  Capture: copy the page of a frame to staging, if it equals the disk.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/bufpage.h"
#include "storage/checksum.h"

#include "base/choice.h"
#include "base/compat.h"
#include "base/guc.h"
#include "base/hash.h"
#include "base/injection_point.h"
#include "base/stats.h"
#include "buffer/buffer.h"
#include "buffer/buffer_internal.h"
#include "buffer/directory.h"
#include "buffer/frame.h"
#include "buffer/page.h"
#include "buffer/relation_stats.h"
#include "buffer/staging.h"

/*
 * Does a page that was read from disk pass verification?  A single read may
 * return bytes that are not on disk.  If the server notices that, it reads the
 * page again, and must then get what is on disk, not the same bytes from the
 * tier.  We check what the server checks, with two exceptions: pages of zeros,
 * which the server accepts, prove nothing and are refused; and
 * ignore_checksum_failure is ignored.  With data checksums, the checksum also
 * covers the header.
 */
static bool
read_verified(char *copy, BlockNumber block)
{
	if (PageIsNew((Page) copy))
		return false;
	if (DataChecksumsEnabled())
		return pg_checksum_page(copy, block) ==
			((PageHeader) copy)->pd_checksum;
	return rbp_compat_page_verified(copy, block);
}

bool
rbp_policy_refuses(const RbpPageId *page)
{
	if (rbp_page_policy(page) != RBP_POLICY_NONE)
		return false;
	rbp_stats_count(RBP_COUNT_SKIP_POLICY, 1);
	return true;
}

RbpStageResult
rbp_stage_publish(uint32 slot, const RbpPageRef *page, const RbpVersion *version)
{
	switch (rbp_directory_insert_staged(rbp_dir, page, version, slot))
	{
		case RBP_INSERTED:
			rbp_stats_count(RBP_COUNT_CAPTURES, 1);
			rbp_relation_count_page(&page->id, RBP_COUNT_CAPTURES);
			rbp_pusher_notify(rbp_staging_ready(rbp_staging, slot));
			return RBP_STAGE_DONE;
		case RBP_INSERT_PRESENT:
			rbp_stats_count(RBP_COUNT_SKIP_REMOTE, 1);
			rbp_staging_put(rbp_staging, slot);
			return RBP_STAGE_PRESENT;
		default:
			/* not RBP_STAGE_STALE, since the page has been copied */
			rbp_stats_count(RBP_COUNT_SKIP_STALE, 1);
			rbp_staging_put(rbp_staging, slot);
			return RBP_STAGE_REFUSED;
	}
}

/* Stage the bytes as the page, if the version's claim applies to them. */
static RbpStageResult
stage(const char *bytes, const RbpPageRef *page, const RbpVersion *version,
	  uint32 flags)
{
	RbpVersion	now;
	uint32		slot;
	char	   *copy;

	/*
	 * This check without a lock saves a copy; insert_staged() repeats it
	 * under the lock.
	 */
	rbp_directory_note_version(rbp_dir, page, &now);
	if (!RBP_INJECTION_POINT("no-capture-stamp") &&
		(now.stamp != version->stamp || now.generation != version->generation))
	{
		rbp_stats_count(RBP_COUNT_SKIP_STALE, 1);
		return RBP_STAGE_STALE;
	}
	if (rbp_policy_refuses(&page->id))
		return RBP_STAGE_REFUSED;
	slot = rbp_staging_get(rbp_staging);
	if (slot == RBP_NO_STAGING_SLOT)
		return RBP_STAGE_FULL;
	copy = rbp_staging_page(rbp_staging, slot);
	memcpy(copy, bytes, BLCKSZ);
	if ((flags & RBP_SHADOW_CHECKSUM) && !PageIsNew((Page) copy) &&
		!RBP_INJECTION_POINT("no-checksum"))
		((PageHeader) copy)->pd_checksum = pg_checksum_page(copy, page->id.block);
	if (RBP_INJECTION_POINT("no-capture-hash") ||
		(RBP_INJECTION_POINT("no-checksum") && (flags & RBP_SHADOW_CHECKSUM)))
	{
		/* break rule 3: the hash is that of the copy, whatever it contains */
		RbpVersion	forged = *version;

		forged.hash = rbp_hash_page(copy);
		return rbp_stage_publish(slot, page, &forged);
	}
	if (rbp_hash_page(copy) != version->hash ||
		((flags & RBP_SHADOW_READ) && !read_verified(copy, page->id.block) &&
		 !RBP_INJECTION_POINT("trust-reads")))
	{
		rbp_staging_put(rbp_staging, slot);
		rbp_stats_count(RBP_COUNT_SKIP_CHANGED, 1);
		return RBP_STAGE_REFUSED;
	}
	return rbp_stage_publish(slot, page, version);
}

uint32
rbp_skip_reason(const RbpPageId *page, int fs, bool cached)
{
	RbpPolicy	policy;

	if (rbp_tier_prewarming)
		return 0;
	if (rbp_guc_use_tier == RBP_USE_TIER_READ || rbp_guc_read_from == RBP_READ_FILE)
		return RBP_SHADOW_POLICY;
	policy = rbp_page_policy(page);
	if (policy == RBP_POLICY_NONE)
		return RBP_SHADOW_POLICY;
	/* the costs count only if policy and settings do not prefer the tier */
	if (policy == RBP_POLICY_KEEP || rbp_guc_read_from == RBP_READ_DONOR ||
		(!cached && rbp_guc_read_from == RBP_READ_CACHE) ||
		rbp_worth_capturing(fs, cached))
		return 0;
	return cached ? RBP_SHADOW_CACHED : RBP_SHADOW_SLOW;
}

void
rbp_count_skip(uint32 flags)
{
	rbp_stats_count((flags & RBP_SHADOW_CACHED) ? RBP_COUNT_SKIP_CACHED :
					(flags & RBP_SHADOW_SLOW) ? RBP_COUNT_SKIP_SLOW :
					(flags & RBP_SHADOW_POLICY) ? RBP_COUNT_SKIP_POLICY :
					RBP_COUNT_SKIP_UNKNOWN, 1);
}

bool
rbp_capture_victim(const char *frame, const RbpPageRef *page)
{
	RbpShadow  *shadow = rbp_shadow_of(frame);
	RbpStageResult result;

	if (rbp_directory_lookup(rbp_dir, page, false).where != RBP_ABSENT)
	{
		rbp_stats_count(RBP_COUNT_SKIP_REMOTE, 1);
		return false;
	}
	result = stage(frame, page, &shadow->version, shadow->flags);
	if (result == RBP_STAGE_FULL)
		rbp_stats_count(RBP_COUNT_DROPS_FULL, 1);
	return result >= RBP_STAGE_REFUSED;
}

/*
 * ---- prewarm ----------------------------------------------------------------
 */

bool
rbp_tier_prewarm_begin(const RbpRelFile *file, BlockNumber block,
					   RbpVersion *version)
{
	RbpPageRef	page;

	if (!rbp_tier_name_page(file, block, &page))
		return false;
	rbp_directory_note_version(rbp_dir, &page, version);
	return true;
}

RbpStageResult
rbp_tier_prewarm_page(const RbpRelFile *file, BlockNumber block,
					  const char *page, RbpVersion *version)
{
	const RbpShadow *shadow = rbp_shadow_of(page);
	RbpPageRef	ref;

	if (!rbp_tier_name_page(file, block, &ref) ||
		(version == NULL && (!(shadow->flags & RBP_SHADOW_VALID) || !rbp_page_equal(&shadow->page, &ref.id))))
		return RBP_STAGE_REFUSED;
	if (version == NULL)
		return stage(page, &ref, &shadow->version, shadow->flags);
	version->hash = rbp_hash_page(page);
	return stage(page, &ref, version, RBP_SHADOW_READ);
}
