/*-------------------------------------------------------------------------
 *
 * buffer.h
 *	  The buffer tier: hit, miss, capture, invalidate; and what is to stay.
 *
 * These functions stand in for file calls.  They answer as the call would,
 * with its return value and errno; they never raise, never allocate, and
 * wait at most remote_bp.io_timeout beyond what the disk takes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BUFFER_H
#define RBP_BUFFER_H

#include "postgres.h"

#include <sys/uio.h>

#include "storage/block.h"

#include "base/page_cache.h"
#include "base/relfile.h"
#include "buffer/page.h"
#include "remote/remote.h"

extern Size rbp_tier_shmem_size(void);
extern void rbp_tier_shmem_init(void *mem);
extern uint32 rbp_tier_max_extents(void);

/* What is done with the buffer tier's extents. */
extern const RbpRemotePoolOps rbp_tier_pool_ops;

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

/* The block of the relation fork that an offset in this segment file is in. */
static inline BlockNumber
rbp_block_of(const RbpRelFile *file, off_t offset)
{
	return (BlockNumber) (file->segment * (uint64) RELSEG_SIZE +
						  (uint64) offset / BLCKSZ);
}

/*
 * preadv() of whole, aligned pages into shared buffer frames.  cache: what is
 * known of the descriptor.
 */
extern ssize_t rbp_tier_read(int fd, const RbpRelFile *file, RbpCacheView *cache,
							 const struct iovec *iov, int iovcnt, off_t offset);

/* pwritev() to a relation file, of anything. */
extern ssize_t rbp_tier_write(int fd, const RbpRelFile *file,
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

/*
 * Is so much of staging in use that who prewarms should wait?  Wakes the pusher if so,
 * which makes room.
 */
extern bool rbp_tier_staging_is_busy(void);

/* Would hardly any page more find room without another being given up? */
extern bool rbp_tier_is_full(void);

/* Pages of the tier, now. */
typedef struct RbpTierPages
{
	uint64		remote;			/* donors have them */
	uint64		kept;			/* of these, to be kept */
	uint64		staged;			/* on the way there */
	uint64		free;			/* room for so many more */
	uint64		online;			/* room in all */
	uint64		max;			/* room that there can be */
} RbpTierPages;

extern void rbp_tier_pages(RbpTierPages *pages);

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

/*
 * ---- the pusher: the background worker that writes staged pages to donors -----
 */

extern Size rbp_pusher_shmem_size(void);
extern void rbp_pusher_shmem_init(void *mem);

/*
 * What others have to do now and then, done by the pusher between batches in the
 * order given: never waits long.  Returns ns until it is to be called again at the latest, -1
 * if that is not before somebody wakes the pusher.  It may be called sooner, for another
 * duty's sake.
 */
typedef int64 (*RbpDuty) (void);

/* duties: kept by reference, ends with NULL.  In _PG_init. */
extern void rbp_pusher_set_duties(const RbpDuty *duties);

/* Register the worker; from _PG_init. */
extern void rbp_pusher_register(void);

/* Wake the pusher: a duty is to be done now, or pages wait. */
extern void rbp_pusher_wake(void);

/*
 * ---- what is to stay, and what is not to come ----------------------------------
 *
 * Policies and limits are set by one process at a time.  Walks through the
 * directory take partition locks one after the other, and can be interrupted in
 * between (CHECK_FOR_INTERRUPTS).  The others take no lock.
 */

#define RBP_MAX_EXCLUDED		64	/* tablespaces */

/* The dictionary of (tablespace, database) pairs. */
extern Size rbp_space_shmem_size(void);
extern void rbp_space_shmem_init(void *mem);

extern Size rbp_residency_shmem_size(void);
extern void rbp_residency_shmem_init(void *mem);

/*
 * Whom to tell that somebody should look at policies: of the database, where files
 * that have one may be others now; or InvalidOid, of all, since there is more room.
 * May be called anywhere where shared memory is attached.  In _PG_init.
 */
extern void rbp_residency_set_on_change(void (*callback) (Oid database));
extern void rbp_residency_changed(Oid database);

/* Policies of a relation's files; see rbp_directory_policy(). */
extern RbpPolicy rbp_residency_policy(const RbpRelFile *file);
extern bool rbp_residency_policy_fits(const RbpRelFile *file);

/* For pages that come from now on; false if there is no room for one more. */
extern bool rbp_residency_set_policy(const RbpRelFile *file, RbpPolicy policy);

/* The next file that has a policy, from *at on, which begins at 0; false after the last. */
extern bool rbp_residency_next_policy(uint32 *at, RbpRelFile *file);

/* Make the pages that are there as if the policies had always been so. A walk. */
extern void rbp_residency_apply_policies(void);

/* Pages of the file that are kept. */
extern uint32 rbp_residency_held(const RbpRelFile *file);

/* Can no page more be kept?  Are more kept than may be? */
extern bool rbp_residency_keep_full(void);
extern bool rbp_residency_keep_exceeded(void);
extern void rbp_residency_set_keep_max(uint64 pages);

/* Pages of files that were truncated or dropped no longer count. A walk. */
extern void rbp_residency_sweep(void);

/* Is the tablespace of that space excluded? */
extern bool rbp_residency_excludes(uint16 space);

/*
 * These tablespaces, at most RBP_MAX_EXCLUDED, are excluded from now on; true if
 * there are some, and they are others than before, so that pages may be there that are to
 * be dropped.
 */
extern bool rbp_residency_set_excluded(const Oid *tablespaces, int n);

/* Drop the pages of excluded tablespaces, but those to be kept. A walk. */
extern void rbp_residency_drop_excluded(void);

/* What a database has of the tier in one of its tablespaces. */
typedef struct RbpSpaceUse
{
	Oid			database;
	uint64		pages;
	int64		max_pages;		/* -1: no limit */
} RbpSpaceUse;

/* The next of them, from *at on, which begins at 0; false after the last. */
extern bool rbp_residency_next_space(uint32 *at, RbpSpaceUse *use);

/*
 * The pages that the file's database may have, -1 if there is no limit, or none for its
 * tablespace yet.
 */
extern int64 rbp_residency_limit_of(const RbpRelFile *file);

/* Has anything of the database been read or written yet? */
extern bool rbp_residency_knows_database(Oid database);

/* See rbp_directory_set_limit(); number is from 1 to RBP_LIMITS. */
extern void rbp_residency_set_limit(uint32 number, Oid database, uint32 max_pages);
extern void rbp_residency_clear_limit(uint32 number);

/* Are there more pages under the limit than that, and not just by chance? */
extern bool rbp_residency_limit_passed(uint32 number, uint64 max_pages);

/* Drop pages above the limit, as far as they are not kept; returns what is left. A walk. */
extern uint64 rbp_residency_trim(uint32 number);

#endif							/* RBP_BUFFER_H */
