/*-------------------------------------------------------------------------
 *
 * buffer_internal.h
 *	  What the files of the tier share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BUFFER_INTERNAL_H
#define RBP_BUFFER_INTERNAL_H

#include "postgres.h"

#include <sys/uio.h>

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/block.h"

#include "base/kept.h"
#include "base/relfile.h"
#include "buffer/buffer.h"
#include "buffer/directory.h"
#include "buffer/page.h"
#include "buffer/staging.h"

/*
 * Alignment of page buffers: suits direct I/O, and is the size of a memory
 * page.
 */
#define RBP_IO_ALIGN		4096

/* Kept over a crash.  All zeros at first, unless said otherwise. */
typedef struct RbpTierShared
{
	pg_atomic_uint32 in_use;	/* has had memory: writes must be recorded */
	pg_atomic_uint32 lost_track;	/* off until restart: a change was missed */
	pg_atomic_uint32 consistent;	/* the server is, in this life: pages may
									 * be served */

	/* residency.c */
	pg_atomic_uint32 nexcluded;
	pg_atomic_uint32 excluded[RBP_MAX_EXCLUDED];	/* tablespaces */

	int			image_chunks;	/* image.c: that the writer of the image has
								 * written */

	/* space.c */
	pg_atomic_uint64 spaces[RBP_MAX_SPACES];

	/* hot_pages.c; the first two are zero in each life of the server */
	pg_atomic_uint32 scanning;	/* a process is */
	pg_atomic_uint32 has_hot_pages; /* there is a file of them */
	pg_atomic_uint64 next_scan_ns;	/* when the next scan may begin */

	/* pusher.c; on a line of its own */
	pg_atomic_uint32 wake_depth pg_attribute_aligned(PG_CACHE_LINE_SIZE);	/* PG_UINT32_MAX */
} RbpTierShared;

/* NULL while shared memory is not attached. */
extern RbpTierShared *rbp_tier_shared;
extern RbpDirectory *rbp_dir;
extern RbpStaging *rbp_staging;

/* Has the tier ever had memory, so that writes must be recorded? */
extern bool rbp_tier_records_writes(void);

/*
 * A relation file is about to change.  If it is not going to be synced, nobody knows
 * after a crash what the disk has.
 */
static inline void
rbp_tier_note_fsync(void)
{
	if (unlikely(!enableFsync))
		rbp_kept_discard("a relation file was written with fsync off");
}

/* The tier has got memory.  From now on, writes must be recorded. */
extern void rbp_tier_came_online(void);

/* May pages be served and captured now? */
extern bool rbp_tier_usable(int64 now);

/* A page of the space is about to get a slot: count it for the space's database. */
extern void rbp_residency_name_database(uint16 space);

/*
 * Cut a vector of whole pages into batches of page pointers.  Stores up to
 * RBP_MAX_BATCH pointers, beginning at byte *pos of the vector, advances
 * *pos, and returns their number.
 */
extern int	rbp_next_batch(const struct iovec *iov, int iovcnt, Size *pos,
						   char **bufs);

/*
 * Set *page to the name of the page.  Returns false if all space numbers are
 * taken, so that the page cannot be in the tier.
 */
extern bool rbp_tier_name_page(const RbpRelFile *file, BlockNumber block,
							   RbpPageRef *page);

/* Policy of the page's relation or, failing that, of its tablespace */
extern RbpPolicy rbp_page_policy(const RbpPageId *page);

/* The name of a page of the tier, copied */
typedef struct RbpPageName
{
	RbpPageId	page;
	bool		staged;
	bool		hot;			/* see rbp_directory_is_hot() */
} RbpPageName;

/* Call fn for each page of the tier, of any database, while no lock is held. */
extern void rbp_for_each_page(void (*fn) (const RbpPageName *name, void *arg), void *arg);

/*
 * ---- spaces -----------------------------------------------------------------
 *
 * The dictionary of (tablespace, database) pairs: a 16-bit number for each, so that
 * directory entries stay small.  A pair keeps its number until the server restarts.
 * There is room for RBP_MAX_SPACES pairs; one more is not served by the tier.
 * Lock-free; these may be called anywhere where shared memory is attached.
 */

/*
 * Number of a pair, assigned if it has none; RBP_INVALID_SPACE if all are
 * taken
 */
extern uint16 rbp_space_get(Oid spc, Oid db);

/* Number of a pair; RBP_INVALID_SPACE if it has none */
extern uint16 rbp_space_find(Oid spc, Oid db);

/*
 * A database as a whole is the pair of this and its OID.  It gets a number with the
 * first pair of a tablespace and the database.
 */
#define RBP_ALL_TABLESPACES		PG_UINT32_MAX

/* Pair of a number.  Returns false if the number is not assigned. */
extern bool rbp_space_resolve(uint16 space, Oid *spc, Oid *db);

/*
 * ---- capture: copying pages from frames to staging ---------------------------
 */

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

/*
 * ---- image.c ------------------------------------------------------------------
 */

/* The directory is open: if there is an image of it, have its entries loaded from there. */
extern void rbp_tier_image_load(void);

/* All of them are: the file is not needed any more. */
extern void rbp_tier_image_loaded(void);

/*
 * ---- the pusher ----------------------------------------------------------------
 */

/*
 * Tell the pusher that depth pages are ready.  This makes a system call only
 * if the pusher sleeps and the depth is worth waking it.  May be called
 * anywhere.
 */
extern void rbp_pusher_notify(uint32 depth);

/* Count pages that were evicted for others. */
extern void rbp_pusher_count_evicted(const RbpEvicted *evicted);

extern PGDLLEXPORT void rbp_pusher_main(Datum arg);

#endif							/* RBP_BUFFER_INTERNAL_H */
