/*-------------------------------------------------------------------------
 *
 * directory.h
 *	  Maps a page to its remote slot or staging slot, content hash and
 *	  generation; and chooses the slot to evict (S3-FIFO).
 *
 * The directory is one flat object in shared memory.  It deals with pages,
 * slots and extents, and does not depend on donors, transports or files.  It
 * includes no postgres.h except through base/lock.h, and is unit-tested
 * outside the server.
 *
 * Slots.  A remote slot is room for one page in leased memory.  Slots come in
 * extents of RBP_EXTENT_PAGES (1 MiB); slot s is page (s % RBP_EXTENT_PAGES)
 * of extent (s / RBP_EXTENT_PAGES).  The remote module maps extents to the
 * regions of donors.  An extent is offline until its memory is leased, and
 * goes offline again when its memory is lost.  Slot s always belongs to
 * partition (s % RBP_PARTITIONS), so each partition owns an equal share of
 * each extent, and has its own free list, queues and ghosts under its own
 * lock.  Staging slots are numbered from 0, separately from remote slots, and
 * may hold a page of any partition.
 *
 * Coherence, see src/README.md.  An entry (P, h) means: "the content of P on
 * disk hashes to h", and stays true because
 *   - rbp_directory_invalidate() is called before P is written, bumps P's
 *     write stamp and drops P's entry, both under the partition lock;
 *   - before a relation fork is truncated, unlinked or replaced,
 *     the same is done for each block that it loses, or
 *     rbp_directory_bump_generation() for the fork, which kills older entries
 *     by their generation;
 *   - insertions pass the stamp and generation at which (P, h) was seen on
 *     disk, and are refused if either has moved.
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

#include "base/layout.h"
#include "base/relfile.h"
#include "buffer/page.h"
#include "remote/extents.h"

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
 * multiple of RBP_EXTENT_PAGES) and staging_slots staging slots, for claims
 * about as many frames as there are buffers.  For large max_slots this is at
 * most 48 bytes for each remote slot plus 1.5 MB in total, and 32 bytes for
 * each buffer.
 */
extern size_t rbp_directory_size(uint32_t max_slots, uint32_t staging_slots,
								 uint32_t buffers);

/*
 * Open it in mem, which is 64-byte aligned and all zeros; all empty.  Writes
 * only a part of fixed size, however many extents there are, which are numbered
 * from 0.
 *
 * found: in mem a crash has left a directory of the same sizes, and in extents,
 * which are open again, their states (rbp_extents_reopen()).  Entries of remote slots stay,
 * beside generations, stamps, ghosts and spaces' databases.  Staged entries, policies and
 * limits are forgotten; none is kept.  A partition is built, that is, all else made of its
 * entries, when it is locked first.  Until all are, sums over them are too low.
 */
extern RbpDirectory *rbp_directory_open(void *mem, bool found, const RbpExtents *extents,
										uint32_t staging_slots, uint32_t buffers, int tranche);

/*
 * For an image of the directory, which nobody else uses meanwhile.  Neither takes a
 * lock, since a process that was killed may have left any taken.
 *
 * Store where the directory's tables are, which are copied as they are.
 */
#define RBP_DIRECTORY_PIECES	2
extern void rbp_directory_pieces(RbpDirectory *dir, RbpPiece pieces[RBP_DIRECTORY_PIECES]);

/*
 * Store the partition's pages, RBP_ENTRY_BYTES each, max bytes at most.  Returns the
 * number of bytes.  If there is not room for all, those in the small queue that were
 * not read since they came are left out first.
 */
#define RBP_ENTRY_BYTES			32
extern size_t rbp_directory_store(RbpDirectory *dir, int partition, void *stored, size_t max);

/* One of the pages that were stored, and its slot */
extern RbpPageId rbp_directory_stored_page(const void *stored, size_t i);
extern uint32_t rbp_directory_stored_slot(int partition, const void *stored, size_t i);

/*
 * In a directory that was opened again, with the tables of an image: have each partition's
 * pages loaded when it is built.  load returns what was stored of the partition, as malloc'ed
 * memory, and of how many bytes; NULL if it cannot.  After a crash partitions that were not
 * loaded yet are empty.
 */
typedef void *(*RbpPagesLoad) (int partition, size_t *bytes);
extern void rbp_directory_load_by(RbpDirectory *dir, RbpPagesLoad load);

/*
 * ---- versions -------------------------------------------------------
 */

/*
 * Set the page's write stamp, and the fork's generation, in *version; acquire
 * semantics.  To be called before the page is read or written.  No lock.
 */
extern void rbp_directory_note_version(RbpDirectory *dir, const RbpPageRef *page,
									   RbpVersion *version);

/*
 * Invalidate every entry of the fork, and of other forks that share its
 * generation because their hashes collide.  No lock.
 */
extern void rbp_directory_bump_generation(RbpDirectory *dir, uint32_t rel,
										  uint16_t space, uint8_t fork);

/* Invalidate every entry and claim.  No lock. */
extern void rbp_directory_bump_all(RbpDirectory *dir);

/* Number of bumps so far; a change means that there may be entries to sweep. */
extern uint64_t rbp_directory_bumps(RbpDirectory *dir);

/*
 * ---- the hit path ----------------------------------------------------
 */

/*
 * Find a live entry.  Takes the partition lock shared.  With touch, counts
 * as an access for replacement (a lock-free store).  Dead entries (older
 * generation, extent offline) are reported as RBP_ABSENT.
 */
extern RbpLookup rbp_directory_lookup(RbpDirectory *dir, const RbpPageRef *page,
									  bool touch);

/*
 * Begin a read of the page: note its version, before anything is read of it, and
 * look it up, with touch.
 */
extern RbpLookup rbp_directory_begin_read(RbpDirectory *dir, const RbpPageRef *page,
										  RbpVersion *version);

/* Prefetch the cache lines that lookups of the pages need. */
extern void rbp_directory_prefetch(const RbpDirectory *dir,
								   const RbpPageRef *pages, int n);

/*
 * Handle bytes that do not match the hash of their lookup.  If the entry is
 * unchanged (same place, same hash), drop it and return true: this is a real
 * hash failure.  If the entry has moved or gone meanwhile, return false: this
 * is a race, and the caller may look the page up again.  Exclusive lock.
 */
extern bool rbp_directory_drop_if_same(RbpDirectory *dir, const RbpPageId *page,
									   const RbpLookup *seen);

/*
 * ---- writes ----------------------------------------------------------
 */

/*
 * Before P is written; or before and after its file is truncated, unlinked or changed
 * otherwise, after which P is not expected to come back: bump its stamp and drop its
 * entry, staged or remote.  Exclusive lock.  Returns what was dropped.
 */
extern RbpWhere rbp_directory_invalidate(RbpDirectory *dir, const RbpPageId *page,
										 bool written);

/*
 * ---- capture and push ---------------------------------------------------
 */

/*
 * Insert a staged entry for the page; the staging slot holds a verified copy
 * of it.  Refused (RBP_INSERT_STALE) if the page's stamp or the fork's
 * generation differs from version.  Exclusive lock.
 */
extern RbpInsert rbp_directory_insert_staged(RbpDirectory *dir,
											 const RbpPageRef *page,
											 const RbpVersion *version,
											 uint32_t staging_slot);

/*
 * For the pusher: is this staging slot still the page's entry?  If so, store
 * its page and hash.  If not, nothing in the directory refers to the slot any
 * more, and the caller can give it back.  Only the owner of the staging slot
 * may call this.  Shared lock; exclusive to drop an entry that turns out to
 * be dead.
 */
extern bool rbp_directory_staged_info(RbpDirectory *dir, uint32_t staging_slot,
									  RbpPageId *page, uint64_t *hash);

/* Pages that were evicted for another one: for its slot, and under its limit */
#define RBP_MAX_EVICTED		3

typedef struct RbpEvicted
{
	int			n;
	RbpPageId	pages[RBP_MAX_EVICTED];
} RbpEvicted;

/*
 * Reserve a remote slot of the page's partition, to push into or to move it to: a
 * free one, or one whose page S3-FIFO evicts.  Only the caller has access to the slot
 * until it is published, moved to, or unreserved.  Returns
 * RBP_INVALID_SLOT if the partition has none.  *evicted is set to the live pages
 * that were evicted.  Exclusive lock.
 */
extern uint32_t rbp_directory_reserve(RbpDirectory *dir, const RbpPageId *page,
									  RbpEvicted *evicted);

/* A reserved slot is not needed.  Exclusive lock. */
extern void rbp_directory_unreserve(RbpDirectory *dir, uint32_t slot);

/*
 * The push of a staged page into a slot has ended.  If the slot was written, replace
 * the staged entry by a remote one, if the staged entry is still this page's; if not,
 * drop the staged entry.  On RBP_INSERTED the slot belongs to the directory; on any
 * other result the slot has been given back to the free list, or remains offline.  If
 * it was not written, it may be RBP_INVALID_SLOT.  In every case the staging slot is
 * not in the directory any more, and belongs to the caller.  Exclusive lock.
 */
extern RbpInsert rbp_directory_publish(RbpDirectory *dir, const RbpPageId *page,
									   uint32_t staging_slot, uint32_t slot,
									   bool written);

/*
 * ---- extents --------------------------------------------------------
 */

/*
 * remote changes their states (remote/extents.h).  From when an extent is
 * closed lookups miss.  Then its slots are dropped: entries, and slots of lists,
 * are taken out of use.  Only then is it absent, and may come online again.
 * Slots that a pusher reserved before that become usable when it gives them
 * back.  There is an account for each region; its number is the region's.
 */

/* Drop the slots of extents that are closed.  One process at a time. */
extern void rbp_directory_drop_extents(RbpDirectory *dir, const uint32_t *extents,
									   uint32_t n);

/*
 * Contents of the extents of an account.  *used is set to the number of pages;
 * pages of older generations count until they are swept.  The result is the sum of
 * 1 + access count over these pages, where access counts are estimated from one
 * page of 16.  An account is empty once its last extent was dropped.  The
 * values are approximate.  No lock.
 */
extern uint64_t rbp_directory_heat(RbpDirectory *dir, uint32_t account, uint64_t *used);

/*
 * ---- moving pages out of an extent that drains ----------------------------
 */

typedef struct RbpMovable
{
	RbpPageId	page;
	RbpLookup	at;
} RbpMovable;

/*
 * Find at most max pages of the extent that should be moved, beginning at its
 * slot *next, and advance *next.  While a partition has more pages than the
 * slots of extents that are online and not draining can hold, pages that were
 * never read are dropped instead.  Exclusive locks, one after the other.
 */
extern int	rbp_directory_movable(RbpDirectory *dir, uint32_t extent,
								  uint32_t *next, RbpMovable *pages, int max);

/*
 * Replace the page's slot by a reserved one, to which its content was copied,
 * and whose content matches the hash.  The page keeps its queue and its access
 * count.  If its entry has changed, the result is RBP_INSERT_GONE, and if the
 * new slot's extent went offline, RBP_INSERT_OFFLINE; the reserved slot is given
 * back then.  Exclusive lock.
 */
extern RbpInsert rbp_directory_move(RbpDirectory *dir, const RbpMovable *from,
									uint32_t slot);

/* Number of live entries of the extent.  Visits each slot.  Shared locks. */
extern uint32_t rbp_directory_extent_used(RbpDirectory *dir, uint32_t extent);

/*
 * ---- policies --------------------------------------------------------------
 *
 * Policies of a relation's files, set by users.  Pages of main forks that
 * should be kept are on a list of their own in each partition, which
 * replacement does not touch: at most keep_max of them, at most three
 * quarters of all slots, and never so many that a partition has no slots left
 * for others.  Pages beyond these limits are treated like others.
 *
 * Policies and limits are set by one process at a time.
 */

/* No lock. */
extern RbpPolicy rbp_directory_policy(const RbpDirectory *dir, uint32_t rel,
									  uint16_t space);

/*
 * Set the policy for pages that enter the directory from now on;
 * rbp_directory_apply_policies() treats those that are in it already.
 * Returns false if there is no room for one more file's policy.
 */
extern bool rbp_directory_set_policy(RbpDirectory *dir, uint32_t rel,
									 uint16_t space, RbpPolicy policy);

/*
 * Apply the policies to the pages that the partition has already.  Visits
 * each of its slots, under an exclusive lock that is released in between.
 * Returns the number of pages dropped.  After all partitions,
 * policies_applied() frees the places of policies that were reset to default.
 */
extern uint64_t rbp_directory_apply_policies(RbpDirectory *dir, int partition);
extern void rbp_directory_policies_applied(RbpDirectory *dir);

/*
 * Is the page in the directory?  If so, its policy is keep and there is room
 * by now, the page is kept from now on.  Exclusive lock.
 */
extern bool rbp_directory_keep(RbpDirectory *dir, const RbpPageId *page);

/* Its pages, too.  No lock. */
extern RbpFilePolicy rbp_directory_file_policy(const RbpDirectory *dir, uint32_t rel,
											   uint16_t space);

/* Only the process that sets policies may set it; for a file with a policy. */
extern void rbp_directory_set_new_of(RbpDirectory *dir, uint32_t rel,
									 uint16_t space, uint32_t pages);

/* How many pages more may be kept?  Negative if the maximum is exceeded.  No lock. */
extern int64_t rbp_directory_keep_room(const RbpDirectory *dir);

/*
 * Set the maximum number of kept pages.  RBP_KEEP_HALF: half of the slots
 * that are online at any time.
 */
extern void rbp_directory_set_keep_max(RbpDirectory *dir, uint64_t pages);

/*
 * Iterate over the files that have a policy.  *at is the position, initially
 * 0.  Returns false after the last file.
 */
extern bool rbp_directory_next_policy(const RbpDirectory *dir, uint32_t *at,
									  uint32_t *rel, uint16_t *space);

/*
 * Pages of spaces are counted by database, whose number is that of a space, too.  It
 * is the space's own until it is set, which is to be done before a page of the space
 * is published.  No lock.
 */
extern void rbp_directory_set_database(RbpDirectory *dir, uint16_t space,
									   uint16_t database);

/* Number of the database's pages on donors.  No lock. */
extern uint64_t rbp_directory_database_pages(const RbpDirectory *dir, uint16_t database);

/*
 * Limit the database to max_pages pages, not counting staged ones; -1: no limit.
 * Once the limit is reached, a new page takes the slot of one of the database's
 * pages, which is not kept.  The limit may be exceeded by RBP_PARTITIONS pages.
 */
extern void rbp_directory_set_limit(RbpDirectory *dir, uint16_t database, int64_t max_pages);
extern int64_t rbp_directory_limit(const RbpDirectory *dir, uint16_t database);

/*
 * If the limit is exceeded, drop pages of the partition, but none that is kept, so
 * that calls for it and for those after it leave no surplus.  The pages are chosen
 * as those that make room for others under the limit.  Exclusive lock, which is
 * released in between.  Returns the number of pages dropped.
 */
extern uint64_t rbp_directory_trim(RbpDirectory *dir, int partition, uint16_t database);

/*
 * ---- housekeeping and views --------------------------------------------
 */

/*
 * One step of a sweep, which frees the dead entries (of older generations) of one
 * partition: visits the slots of at most RBP_CHUNK extents while holding the lock once,
 * and adds the number of entries freed to *freed.  Returns false if the partition is
 * done.  Costs nothing if no generation was bumped since the last sweep of it.
 */
extern bool rbp_directory_sweep_step(RbpDirectory *dir, int partition,
									 uint32_t *freed);

/*
 * Call fn for each live page of the partition, and drop those for which it returns
 * true; returns how many.  The partition's lock is held, exclusively if drops is set,
 * without which none may be dropped, so fn must not wait or raise errors.  The lock
 * is released every thousand entries or so: a page that moves meanwhile may be
 * missed, or visited twice.
 */
typedef bool (*RbpPageVisit) (const RbpPageId *page, const RbpLookup *at, void *arg);

extern uint64_t rbp_directory_visit(RbpDirectory *dir, int partition, bool drops,
									RbpPageVisit fn, void *arg);

/* For fn: is the page kept, in the main queue, or on its way there? */
extern bool rbp_directory_is_hot(RbpDirectory *dir, const RbpLookup *at);

/*
 * Sum up the partitions.  Visits entries only in partitions that were not
 * swept since the last bump of a generation.
 */
extern void rbp_directory_counts(RbpDirectory *dir, RbpTierPages *pages);

/* Whose slot would the page get, if it entered the directory now? */
extern RbpRoom rbp_directory_room(RbpDirectory *dir, const RbpPageId *page);

/*
 * Is the directory full, so that more pages would evict others?  It counts as
 * full when at most a 64th of its slots is free, since partitions do not fill
 * evenly.  Takes each partition's lock briefly, and visits no entry.
 */
extern bool rbp_directory_is_full(RbpDirectory *dir);

#endif							/* RBP_DIRECTORY_H */
