/*-------------------------------------------------------------------------
 *
 * directory.h
 *	  Which page is where: page -> remote slot or staging slot, content
 *	  hash and generation; and which slot is given up next (S3-FIFO).
 *
 * The directory is one flat object in shared memory.  It knows pages, slots
 * and extents, and nothing of donors, transports or files.  It contains no
 * postgres.h beyond what base/lock.h brings, and is unit-tested outside of
 * the server.
 *
 * Slots.  A remote slot is room for one page in leased memory.  Slots come in
 * extents of RBP_EXTENT_PAGES (1 MiB); slot s is page (s % RBP_EXTENT_PAGES)
 * of extent (s / RBP_EXTENT_PAGES).  What region of which donor carries an
 * extent is the business of remote.  An extent is offline until its
 * memory is leased, and goes offline again when it is lost.
 * Slot s belongs to partition (s % RBP_PARTITIONS) for good, so that each
 * partition owns an equal share of each extent and has free list, queues and
 * ghosts of its own under its own lock.  Staging slots are numbered from 0
 * apart from remote slots and may hold a page of any partition.
 *
 * Coherence, see src/README.md.  An entry (P, h) means: "the content of P on
 * disk hashes to h", and stays true because
 *   - rbp_directory_invalidate() is called before P is written, bumps P's
 *     write stamp and drops P's entry, both under the partition lock;
 *   - rbp_directory_bump_generation() is called before a relation fork is
 *     truncated, unlinked or replaced, which kills older entries by their
 *     generation;
 *   - insertions give the stamp and generation at which (P, h) was seen on
 *     disk, and are refused if the stamp has moved.
 *
 * Lock order: a partition lock is a leaf; at most one is held at a time; no
 * function here keeps one on return.  Where a function says "no lock", it
 * may be called anywhere, also without a PGPROC.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DIRECTORY_H
#define RBP_DIRECTORY_H

#include <stddef.h>

#include "base/relfile.h"
#include "buffer/page.h"

#define RBP_PARTITIONS			128

typedef struct RbpDirectory RbpDirectory;

typedef enum RbpWhere
{
	RBP_ABSENT,
	RBP_STAGED,					/* slot is a staging slot */
	RBP_REMOTE					/* slot is a remote slot */
} RbpWhere;

typedef struct RbpLookup
{
	RbpWhere	where;
	uint32_t	slot;
	uint64_t	hash;
} RbpLookup;

typedef enum RbpInsert
{
	RBP_INSERTED,
	RBP_INSERT_STALE,			/* stamp or generation has moved */
	RBP_INSERT_PRESENT,			/* the page has an entry already */
	RBP_INSERT_GONE,			/* publish: the staged entry is not there */
	RBP_INSERT_OFFLINE			/* publish: the slot's extent went offline */
} RbpInsert;

/*
 * Bytes of shared memory for a directory of max_slots remote slots (a
 * multiple of RBP_EXTENT_PAGES) and staging_slots staging slots.  For large
 * max_slots at most 48 bytes for each remote slot and 1.5 MB, all included.
 */
extern size_t rbp_directory_size(uint32_t max_slots, uint32_t staging_slots);

/*
 * Initialize in mem, which is 64-byte aligned and all zeros; all extents
 * offline, all empty.  Writes nothing that grows with max_slots.
 */
extern RbpDirectory *rbp_directory_init(void *mem, uint32_t max_slots,
										uint32_t staging_slots, int tranche);

extern uint32_t rbp_directory_max_slots(const RbpDirectory *dir);

/*
 * ---- versions -------------------------------------------------------
 */

/* The page's write stamp now; acquire semantics. No lock. */
extern uint32_t rbp_directory_stamp(RbpDirectory *dir, const RbpPageId *page);

/* The relation fork's generation now; acquire semantics. No lock. */
extern uint32_t rbp_directory_generation(RbpDirectory *dir, uint32_t rel,
										 uint16_t space, uint8_t fork);

/* Kill every entry of the fork (and of its stripe). No lock. */
extern void rbp_directory_bump_generation(RbpDirectory *dir, uint32_t rel,
										  uint16_t space, uint8_t fork);

/*
 * Kill every entry of the directory: for when an event was seen that
 * cannot be named (an fd that could not be tracked). No lock.
 */
extern void rbp_directory_bump_all(RbpDirectory *dir);

/* Counts bump_* calls; a change means that a sweep has something to do. */
extern uint64_t rbp_directory_bumps(RbpDirectory *dir);

/*
 * ---- the hit path ----------------------------------------------------
 */

/*
 * Find a live entry.  Takes the partition lock shared.  With touch, counts
 * as an access for replacement (a lock-free store).  Dead entries (older
 * generation, extent offline) are reported as RBP_ABSENT.
 */
extern RbpLookup rbp_directory_lookup(RbpDirectory *dir, const RbpPageId *page,
									  bool touch);

/* A hint that the page is about to be looked up: start to load its lines. */
extern void rbp_directory_prefetch(const RbpDirectory *dir,
								   const RbpPageId *page);

/*
 * The bytes read for a lookup did not hash to its hash.  If the entry is
 * still the same (same place, same hash), drop it and return true: a real
 * hash failure.  If it has moved or gone meanwhile, return false: a race,
 * look again.  Exclusive lock.
 */
extern bool rbp_directory_drop_if_same(RbpDirectory *dir, const RbpPageId *page,
									   const RbpLookup *seen);

/*
 * ---- writes ----------------------------------------------------------
 */

/*
 * Before P is written: bump its stamp and drop its entry, staged or remote.
 * Exclusive lock.  Returns what was dropped.
 */
extern RbpWhere rbp_directory_invalidate(RbpDirectory *dir,
										 const RbpPageId *page);

/*
 * ---- capture and push ---------------------------------------------------
 */

/*
 * The staging slot holds a verified copy of the page: make it visible.
 * Refused (RBP_INSERT_STALE) unless the page's stamp and the fork's
 * generation are still those of version.  Exclusive lock.
 */
extern RbpInsert rbp_directory_insert_staged(RbpDirectory *dir,
											 const RbpPageId *page,
											 const RbpVersion *version,
											 uint32_t staging_slot);

/*
 * For the pusher: is this staging slot still the page's entry?  If so give
 * its page and hash.  If not, nothing in the directory refers to the slot
 * any more, and it can be given back.  Only for who holds the staging slot.
 * Shared lock; exclusive to drop an entry that turns out to be dead.
 */
extern bool rbp_directory_staged_info(RbpDirectory *dir, uint32_t staging_slot,
									  RbpPageId *page, uint64_t *hash);

/*
 * Take a remote slot of the page's partition to push into: a free one, or
 * one whose page is evicted for it by S3-FIFO.  The slot is in nobody's
 * reach until published or abandoned.  RBP_INVALID_SLOT if the partition
 * has none.  *evicted is set to whether a live page was given up.
 * Exclusive lock.
 */
extern uint32_t rbp_directory_reserve(RbpDirectory *dir, const RbpPageId *page,
									  bool *evicted);

/*
 * The slot holds the staged page now: replace the staged entry by a remote
 * one, if the staged entry is still this page's.  On RBP_INSERTED the slot
 * belongs to the directory; on anything else the slot was given back to the
 * free list (or is left offline).  In every case the staging slot is out of
 * the directory and the caller's.  Exclusive lock.
 */
extern RbpInsert rbp_directory_publish(RbpDirectory *dir, const RbpPageId *page,
									   uint32_t staging_slot, uint32_t slot);

/*
 * The push failed: drop the staged entry if it is still there and give the
 * slot (or RBP_INVALID_SLOT) back.  The staging slot is the caller's then.
 * Exclusive lock.
 */
extern void rbp_directory_abandon(RbpDirectory *dir, const RbpPageId *page,
								  uint32_t staging_slot, uint32_t slot);

/*
 * ---- extents --------------------------------------------------------
 */

/*
 * All of these are for one process at a time.  But for collecting, none of
 * them depends on how many slots there are, and none takes a lock.
 *
 * An extent goes offline in two steps: it is closed, from when on lookups
 * miss; and its slots are collected, which drops its entries and takes its
 * slots off the lists.  In between it is not absent, and may not come online.
 */

/* May the extent come online? */
extern bool rbp_directory_extent_absent(RbpDirectory *dir, uint32_t extent);

/*
 * Pages can be put into the extent, and are counted for that account (below
 * RBP_MAX_REGIONS).  Slots that a pusher still holds from before come back when it
 * lets go of them.
 */
extern void rbp_directory_extent_online(RbpDirectory *dir, uint32_t extent,
										uint32_t account);

/* Put nothing more into the extent; what is there is read.  undrain: do. */
extern void rbp_directory_extent_drain(RbpDirectory *dir, uint32_t extent);
extern void rbp_directory_extent_undrain(RbpDirectory *dir, uint32_t extent);

extern void rbp_directory_extent_close(RbpDirectory *dir, uint32_t extent);

/* Extents that are closed, and not collected yet. No lock. */
extern uint32_t rbp_directory_closed(RbpDirectory *dir);

/* Collect at most so many of them; returns how many were. */
#define RBP_COLLECT_MAX			64
extern uint32_t rbp_directory_collect(RbpDirectory *dir, uint32_t max);

/*
 * What the extents of an account hold: pages, those of older generations
 * included until they are swept; and their heat, the sum of 1 + access count,
 * of which the counts are an estimate from one page of 16.  An account is empty
 * when its last extent was collected.  A reading, not a truth. No lock.
 */
typedef struct RbpAccountSums
{
	uint64_t	used;
	uint64_t	heat;
} RbpAccountSums;

extern RbpAccountSums rbp_directory_account(RbpDirectory *dir, uint32_t account);

/*
 * ---- moving pages out of an extent that drains ----------------------------
 */

typedef struct RbpMovable
{
	RbpPageId	page;
	RbpLookup	at;
} RbpMovable;

/*
 * Pages of the extent that are to be moved, at most max, from its slot *next
 * on, which is moved on.  While a partition has more pages than fit into
 * extents that stay, those that nobody has read are dropped instead.
 * Exclusive locks, one after the other.
 */
extern int	rbp_directory_movable(RbpDirectory *dir, uint32_t extent,
								  uint32_t *next, RbpMovable *pages, int max);

/*
 * The staging slot holds what was read from a page's slot, and it hashes to
 * the entry's hash: let the page be there, if its entry is still the same, of
 * which rank and access count go along.  RBP_INSERT_GONE if it is not.
 * Exclusive lock.
 */
extern RbpInsert rbp_directory_restage(RbpDirectory *dir, const RbpMovable *from,
									   uint32_t staging_slot);

/* Live entries of the extent.  Looks at each slot. Shared locks. */
extern uint32_t rbp_directory_extent_used(RbpDirectory *dir, uint32_t extent);

/*
 * ---- policies --------------------------------------------------------------
 *
 * What somebody has said of a relation's files.  Pages of main forks that are
 * to be kept are on a list of their own in each partition, which replacement
 * does not touch: at most keep_max of them, at most three quarters of all slots, and never
 * so many that a partition has no slots left for others.  Beyond that they
 * are pages like all.
 *
 * Policies and limits are set by one process at a time.
 */

/* No lock. */
extern RbpPolicy rbp_directory_policy(const RbpDirectory *dir, uint32_t rel,
									  uint16_t space);

/*
 * For pages that come from now on; rbp_directory_apply_policies() is for those that
 * are there.  False if there is no room for one more file's policy.
 */
extern bool rbp_directory_set_policy(RbpDirectory *dir, uint32_t rel,
									 uint16_t space, RbpPolicy policy);
extern bool rbp_directory_policy_fits(const RbpDirectory *dir, uint32_t rel,
									  uint16_t space);

/*
 * Make the partition's pages as if the policies had always been so.  Looks at each of its
 * slots; exclusive lock, let go in between.  Returns pages dropped.  After all
 * partitions, policies_applied() clears away those that were taken back.
 */
extern uint64_t rbp_directory_apply_policies(RbpDirectory *dir, int partition);
extern void rbp_directory_policies_applied(RbpDirectory *dir);

/*
 * Is the page there?  If so, and its policy is that, it is kept from now on, though
 * there was no room for that when it came.  Exclusive lock.
 */
extern bool rbp_directory_keep(RbpDirectory *dir, const RbpPageId *page);

/* Pages kept: of the files of a relation, and of all. No lock. */
extern uint32_t rbp_directory_held(const RbpDirectory *dir, uint32_t rel,
								   uint16_t space);
extern uint64_t rbp_directory_kept(const RbpDirectory *dir);

/* Can no page more be kept?  Are more kept than may be? No lock. */
extern bool rbp_directory_keep_exceeded(const RbpDirectory *dir);
extern bool rbp_directory_keep_full(const RbpDirectory *dir);

/* RBP_KEEP_HALF: half of the slots that are online at any time. */
extern void rbp_directory_set_keep_max(RbpDirectory *dir, uint64_t pages);

/*
 * The next file that has a policy, from *at on, which begins at 0; false after the
 * last.
 */
extern bool rbp_directory_next_policy(const RbpDirectory *dir, uint32_t *at,
									  uint32_t *rel, uint16_t *space,
									  RbpPolicy *policy);

/*
 * These spaces together have at most so many pages, staged ones not counted: beyond it a
 * page takes the slot of one of theirs, which is not kept.  It may be passed by
 * RBP_PARTITIONS pages.  limit is from 1 to RBP_LIMITS; n of 0 takes the limit
 * away, and n is RBP_LIMIT_SPACES at most.
 */
#define RBP_LIMIT_SPACES		93
extern void rbp_directory_set_limit(RbpDirectory *dir, uint32_t limit,
									uint32_t max_pages, const uint16_t *spaces,
									int n);

/* Pages of the space that donors have; and the limit it is under, 0 for none. No lock. */
extern uint64_t rbp_directory_space_pages(const RbpDirectory *dir, uint16_t space);
extern uint32_t rbp_directory_space_limit(const RbpDirectory *dir, uint16_t space,
										  uint32_t *max_pages);

/* Pages under the limit now. No lock. */
extern uint64_t rbp_directory_limit_pages(const RbpDirectory *dir, uint32_t limit);

/*
 * If the limit is passed, drop the partition's pages above its share, those first that
 * nobody has read, and none that is kept.  Looks at each slot; exclusive lock, let go in
 * between.  Returns pages dropped.
 */
extern uint64_t rbp_directory_trim(RbpDirectory *dir, int partition, uint32_t limit);

/*
 * Drop the partition's pages of spaces that are marked, in RBP_MAX_SPACES bytes, but those
 * that are to be kept; returns how many.  Likewise.
 */
extern uint64_t rbp_directory_drop_spaces(RbpDirectory *dir, int partition,
										  const uint8_t *spaces);

/*
 * ---- housekeeping and views --------------------------------------------
 */

/*
 * Free the dead entries (older generations) of one partition; returns how
 * many.  Costs nothing if no generation was bumped since the last sweep of the
 * partition.
 */
extern uint32_t rbp_directory_sweep(RbpDirectory *dir, int partition);

/*
 * A step of that: looks at no more than RBP_SWEEP_STEP extents' slots, under
 * one hold of the lock; adds to *freed.  False if the partition is done.
 */
#define RBP_SWEEP_STEP			1024
extern bool rbp_directory_sweep_step(RbpDirectory *dir, int partition,
									 uint32_t *freed);

/*
 * Drop every entry of the relation's forks; returns pages dropped.  Exclusive
 * locks, one partition at a time.
 */
extern uint64_t rbp_directory_drop_relation(RbpDirectory *dir, uint32_t rel,
											uint16_t space);

/*
 * Call fn for each live entry of the partition, under the shared lock; fn
 * must not wait nor raise.  As the lock is let go every thousand entries or
 * so, a page that moves meanwhile may be missed or shown again.
 */
extern void rbp_directory_scan(RbpDirectory *dir, int partition,
							   void (*fn) (const RbpPageId *page, RbpWhere where,
										   uint32_t slot, void *arg),
							   void *arg);

typedef struct RbpDirectoryCounts
{
	uint64_t	remote;			/* live remote entries */
	uint64_t	staged;			/* live staged entries */
	uint64_t	free;			/* free slots of online extents */
	uint64_t	small;			/* slots in small queues */
	uint64_t	main;			/* slots in main queues */
	uint64_t	kept;			/* slots of pages that are kept */
	uint64_t	reserved;		/* slots that a pusher holds */
	uint64_t	online;			/* slots of online extents */
	uint64_t	evictions;		/* live pages given up for others, ever */
} RbpDirectoryCounts;

/*
 * Add the partitions up.  Looks at each entry only of partitions that were
 * not swept since the last bump of a generation.
 */
extern void rbp_directory_counts(RbpDirectory *dir, RbpDirectoryCounts *counts);

/* Would the page find a slot without another one being given up for it? */
extern bool rbp_directory_has_room(RbpDirectory *dir, const RbpPageId *page);

/*
 * Would hardly any page?  Partitions do not fill evenly, so the last 64th does not
 * count.  Takes each partition's lock for a moment, and looks at no entry.
 */
extern bool rbp_directory_is_full(RbpDirectory *dir);

#endif							/* RBP_DIRECTORY_H */
