/*-------------------------------------------------------------------------
 *
 * buffer.h
 *	  The buffer tier: hits, misses, capture, invalidation; and policies.
 *
 * Functions that replace file calls return what the call would return, and
 * set errno likewise.  They never raise errors and never allocate memory, and
 * wait at most remote_bp.io_timeout longer than the disk access takes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BUFFER_H
#define RBP_BUFFER_H

#include "postgres.h"

#include <sys/uio.h>

#include "access/xact.h"
#include "storage/block.h"

#include "base/page_cache.h"
#include "base/relfile.h"
#include "buffer/page.h"
#include "remote/remote.h"

/*
 * Two modules: the directory and what belongs to it, which are kept over a crash (found:
 * mem is as it has left it, see base/kept.h); and the rest.
 */
extern Size rbp_tier_directory_size(void);
extern void rbp_tier_directory_open(void *mem, bool found);
extern Size rbp_tier_shmem_size(void);
extern void rbp_tier_shmem_init(void *mem);
extern uint32 rbp_tier_max_extents(void);

/*
 * For the postmaster, when it exits with that code and all of its children have ended:
 * write an image of what is kept if the stop was clean.  Takes three seconds at most.
 */
extern void rbp_tier_image_write(int code);

/*
 * For the postmaster, when all modules have been opened for the first time: if the last
 * stop has left an image that fits, read its tables into kept memory, and return true;
 * the caller then opens the kept modules again, as after a crash.
 */
extern bool rbp_tier_image_read(void);

/* Callbacks of remote for the extents of the buffer tier. */
extern const RbpRemotePoolOps rbp_tier_pool_ops;

/*
 * Shared memory is about to be detached from this process: from now on, pass
 * every call through to libc.
 */
extern void rbp_tier_stand_down(void);

/*
 * May this process use the tier at all?  False without a PGPROC or shared
 * memory, and until the tier has had memory for the first time.
 */
extern bool rbp_tier_attached(void);

/*
 * For the view: returns true if no page can be served or captured now, and
 * stores the reason in buf.
 */
extern bool rbp_tier_unusable_reason(char *buf, Size len);

/* Block number, in the relation fork, at an offset in this segment file. */
static inline BlockNumber
rbp_block_of(const RbpRelFile *file, off_t offset)
{
	return (BlockNumber) (file->segment * (uint64) RELSEG_SIZE +
						  (uint64) offset / BLCKSZ);
}

/*
 * preadv() of whole, aligned pages into shared buffer frames.  cache holds
 * what is known about the page cache's part in this file.
 */
extern ssize_t rbp_tier_read(int fd, const RbpRelFile *file, RbpCacheView *cache,
							 const struct iovec *iov, int iovcnt, off_t offset);

/* pwritev() to a relation file, of any offset and length. */
extern ssize_t rbp_tier_write(int fd, const RbpRelFile *file, RbpCacheView *cache,
							  const struct iovec *iov, int iovcnt, off_t offset);

/*
 * Find the frame that holds this page by its buffer tag.  Returns NULL if
 * there is none, or if the mapping lock is not free.
 */
extern char *rbp_tier_find_frame(const RbpRelFile *file, BlockNumber block);

/*
 * Does this process write frames to evict their pages?  The others write pages
 * that stay.  (Some statements write pages that stay, too, such as ALTER TABLE
 * SET TABLESPACE: these are captured earlier than necessary.)
 */
extern bool rbp_tier_write_evicts(void);

/* Does iov consist of whole pages in shared buffer frames? */
extern bool rbp_tier_is_frames(const struct iovec *iov, int iovcnt);

/*
 * Set by processes that read too few pages to make connections to donors
 * worthwhile: they read from staging and from files only.
 */
extern bool rbp_tier_unconnected;

/*
 * While this is set, the process captures every page that it reads from a file,
 * whatever that costs.  Who sets it must reset it, even if an error is raised.
 */
extern bool rbp_tier_prewarming;

/* May the relation's pages be in the tier, by policy and tablespace? */
extern bool rbp_tier_wants(const RbpRelFile *file);

/*
 * Is the block in the tier?  It need not be readable at the moment, nor need there be such a
 * file.  touch: if so, it counts as read once more.
 */
extern bool rbp_tier_has_block(const RbpRelFile *file, BlockNumber block, bool touch);

/*
 * Like rbp_tier_has_block(); moreover, if the relation's policy is keep and
 * there is room, the page is kept from now on.
 */
extern bool rbp_tier_keep_block(const RbpRelFile *file, BlockNumber block);

/* Whose slot would the block get? */
extern RbpRoom rbp_tier_room(const RbpRelFile *file, BlockNumber block);

/*
 * Result of staging a page.  From RBP_STAGE_REFUSED on, the time that it took
 * counts as that of a capture: the page was copied, or excluded by a policy,
 * which takes hardly any time.
 */
typedef enum RbpStageResult
{
	RBP_STAGE_STALE,			/* the page was written or dropped before it
								 * could be copied */
	RBP_STAGE_FULL,				/* no staging slot is free: the caller may try
								 * again */
	RBP_STAGE_REFUSED,			/* the copy may differ from the disk, or the
								 * page is not wanted */
	RBP_STAGE_PRESENT,			/* the tier has the page already */
	RBP_STAGE_DONE
} RbpStageResult;

/*
 * Stage a block, if the page equals the block on disk.  The caller holds a pin and an
 * exclusive content lock on the buffer, so that nobody reads or writes it meanwhile.
 *
 * Without a version, the page is that frame, whose claim counts.  If that is refused,
 * the caller, while holding the same lock throughout, calls
 * rbp_tier_prewarm_begin(), which returns false if the block cannot be in the tier,
 * and then reads the page from the file into private memory.
 */
extern bool rbp_tier_prewarm_begin(const RbpRelFile *file, BlockNumber block,
								   RbpVersion *version);
extern RbpStageResult rbp_tier_prewarm_page(const RbpRelFile *file,
											BlockNumber block, const char *page,
											RbpVersion *version);

/*
 * Is so much of staging in use that prewarming should wait?  If so, this
 * wakes the pusher, which frees staging slots.
 */
extern bool rbp_tier_staging_is_busy(void);

/* Is there room for hardly any more page without evicting another one? */
extern bool rbp_tier_is_full(void);

/* Current numbers of pages. */
extern void rbp_tier_pages(RbpTierPages *pages);

/*
 * Void the entries and claims of these blocks, of one segment; if they are
 * many, those of the whole fork.  Called both before and after a change other
 * than by pwrite(), with all blocks that it takes away, adds or changes.
 */
extern void rbp_tier_invalidate(const RbpRelFile *file, BlockNumber block,
								BlockNumber nblocks);

/*
 * Void the entries and claims of blocks that are about to be allocated.  There
 * should be none, since the file does not have the blocks yet.
 */
extern void rbp_tier_allocate(const RbpRelFile *file, off_t offset, off_t len);

/*
 * From now on, some relation file may change without notice, and it is not
 * known which one: turn the tier off until the server restarts.
 */
extern void rbp_tier_lost_track(const char *why);

/*
 * Some relation files may have lost what was written to them, since this libc call
 * failed: void all entries and claims.  Any process, with a PGPROC or not; changes
 * errno.
 */
extern void rbp_tier_sync_failed(const char *call);

/*
 * The server announces that it will read this part of a segment.  If the tier has all of
 * it, the pages are requested from donors, and having the kernel read them is useless; if not,
 * the kernel is told.  Returns what posix_fadvise() returns.
 */
extern int	rbp_tier_announce(int fd, const RbpRelFile *file, RbpCacheView *cache,
							  off_t offset, off_t len);

/*
 * ---- the pusher: the background worker that writes staged pages to donors -----
 */

/*
 * A periodic task of another module, which the pusher runs between batches,
 * in the order given.  It must never wait long.  It returns the ns after
 * which it must be called again at the latest, or -1 if only a wake-up of the
 * pusher needs to call it again.  It may be called earlier because of another
 * duty.
 */
typedef int64 (*RbpDuty) (void);

/* duties is kept by reference and ends with NULL.  Call this in _PG_init. */
extern void rbp_pusher_set_duties(const RbpDuty *duties);

/*
 * ---- policies: pages to keep, pages to exclude, limits ---------------------------
 *
 * Policies and limits are set by one process at a time.  Walks through the
 * directory take partition locks one after the other, and can be interrupted in
 * between (CHECK_FOR_INTERRUPTS).  The others take no lock.
 */

#define RBP_MAX_EXCLUDED		64	/* tablespaces */

/* What the tier does for each relation fork, and for each database. */
extern Size rbp_relation_stats_shmem_size(void);
extern void rbp_relation_stats_shmem_init(void *mem);
extern void rbp_relation_stats_reset(void);

extern void rbp_relation_stats_transaction_ends(XactEvent event);
extern void rbp_relation_stats_exits(void);

/*
 * Register the callback that requests a review of policies: either of one
 * database, whose files with a policy may have been replaced; or, with
 * InvalidOid, of all databases, because there is more room.  The callback may
 * be called anywhere where shared memory is attached.  Call this in _PG_init.
 */
extern void rbp_residency_set_on_change(void (*callback) (Oid database));
extern void rbp_residency_changed(Oid database);

/* Policies of a relation's files; see rbp_directory_file_policy(). */
extern RbpFilePolicy rbp_residency_policy(const RbpRelFile *file);

/*
 * Set the policy for pages that enter the tier from now on.  Returns false if
 * there is no room for one more policy.
 */
extern bool rbp_residency_set_policy(const RbpRelFile *file, RbpPolicy policy);

/*
 * Iterate over the files that have a policy.  *at is the position, initially
 * 0.  Returns false after the last file.
 */
extern bool rbp_residency_next_policy(uint32 *at, RbpRelFile *file);

/*
 * Apply the policies to the pages that are in the tier already, and drop those of
 * excluded tablespaces, except those to be kept.  A walk.
 */
extern void rbp_residency_apply_policies(void);

/* Set the number of the file's new pages, which only the policy worker knows. */
extern void rbp_residency_set_new(const RbpRelFile *file, uint32 pages);

/* How many pages more may be kept?  Negative if the maximum is exceeded. */
extern int64 rbp_residency_keep_room(void);
extern void rbp_residency_set_keep_max(uint64 pages);

/* Stop counting pages of files that were truncated or dropped.  A walk. */
extern void rbp_residency_sweep(void);

/* Is the tablespace of that space excluded? */
extern bool rbp_residency_excludes(uint16 space);

/*
 * Exclude exactly these tablespaces, at most RBP_MAX_EXCLUDED, from now on.
 * Returns true if the list is not empty and has changed, so that pages may
 * have to be dropped.
 */
extern bool rbp_residency_set_excluded(const Oid *tablespaces, int n);

/* Pages of a database */
typedef struct RbpDatabaseUse
{
	Oid			database;
	uint64		pages;
	int64		max_pages;		/* -1: no limit */
} RbpDatabaseUse;

/*
 * Iterate over the databases of which a file has been read or written since the
 * server started, or which had a limit.  *at is the position, initially 0.  Returns
 * false after the last one.
 */
extern bool rbp_residency_next_database(uint32 *at, RbpDatabaseUse *use);

/* Maximum number of pages of the database; -1: no limit */
extern int64 rbp_residency_limit(Oid database);

/* Has the database reached it? */
extern bool rbp_residency_at_limit(Oid database);
extern void rbp_residency_set_limit(Oid database, int64 max_pages);

/* Drop the database's pages above its limit, except those that are kept.  A walk. */
extern void rbp_residency_trim(Oid database);

#endif							/* RBP_BUFFER_H */
