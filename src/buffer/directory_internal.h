/*-------------------------------------------------------------------------
 *
 * directory_internal.h
 *	  Layout of the directory; only for its files and their unit tests.
 *
 * directory_walk.c		walks: sweeps, counts, applying policies
 * directory_extent.c	what extents hold, dropping it, moving pages
 * directory_pages.c	lookups, invalidation, staging, publication
 * directory_slots.c	which slot a page gets, also under a limit
 * s3fifo.c				what is evicted
 * directory_setup.c	layout in shared memory, making it anew after a crash
 * directory_entry.c	an entry's chain and list
 * directory_policy.c	what is kept or limited, by the settings
 *
 * A file calls those below it, and none above.
 *
 * Memory.  For each remote slot: 32 bytes of entry, 4 of backward link, 4 of
 * bucket head, 4 of ghost and half a byte of write stamp; for each shared
 * buffer 32 bytes of write stamps.  Then the tables of fixed size: 256 kB of
 * generations (up to 512 GB of slots), 512 kB of policies, 192 kB of databases and
 * their limits, 24 kB of partition headers.  Then 128 kB of counts by database for each
 * stripe of accounts, and 36 bytes for each staging slot.  An entry is half a cache
 * line, so that a lookup touches one line of it.  For that reason the
 * backward links, which only holders of an exclusive lock need, are in an
 * array of their own.  Zeroed memory is an empty directory, so memory that
 * was never used is never written or read.
 *
 * Entries of a partition are adjacent: the entry of slot s has the index (s %
 * RBP_PARTITIONS) * nlocal + s / RBP_PARTITIONS, so that partitions share no
 * cache lines except at their boundaries.  Since an extent has one slot in
 * each partition, the number of an entry within its partition is the number
 * of its extent.  The entries of staging slots follow those of remote slots.
 * All links are entry indexes.
 *
 * Arrays whose size depends on that of the tier are located by offsets from the
 * directory.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DIRECTORY_INTERNAL_H
#define RBP_DIRECTORY_INTERNAL_H

#include "base/geometry.h"
#include "base/layout.h"
#include "base/lock.h"
#include "buffer/directory.h"
#include "buffer/page.h"
#include "buffer/s3fifo_rules.h"
#include "remote/extents.h"

#define RBP_NIL				UINT32_MAX	/* end of a list or chain */

/*
 * Generations and stamps are stripes: a fork or page uses the one that its
 * hash selects.
 *
 * A bump of a generation kills the entries of all forks in its stripe.  It is
 * bumped only if more than RBP_FEW_BLOCKS blocks go, and there are so many
 * stripes that, on average, no more pages are in one.
 *
 * A bump of a stamp voids the claims of all pages in its stripe.  While a frame
 * keeps a page that is not changed, others write perhaps half as many pages as
 * there are frames; one claim in 16 is then void for no reason.
 */
#define RBP_MIN_GENERATIONS 65536
#define RBP_SLOTS_PER_STAMP 8
#define RBP_STAMPS_PER_BUFFER	8
#define RBP_MIN_STAMPS		32	/* in a partition; 4096 in all */
#define RBP_CHUNK			1024	/* entries visited under one hold of a
									 * lock */

#define RBP_GHOST_WAYS		8

/*
 * State of an entry, stored in the low bits of its flags.  An entry in a
 * state from RBP_SLOT_FREE to RBP_SLOT_STAGED is on the partition's list with
 * that number; small, main, kept and staged entries are also in a hash chain.
 */
typedef enum RbpSlotState
{
	RBP_SLOT_UNUSED,			/* the extent is offline; or the slot is
								 * fresh, that is, was not taken since the
								 * extent came online; or the staging slot is
								 * not in use */
	RBP_SLOT_FREE,
	RBP_SLOT_SMALL,				/* a page, in S3-FIFO's small queue */
	RBP_SLOT_MAIN,				/* a page, in its main queue */
	RBP_SLOT_KEPT,				/* a page that is kept by policy */
	RBP_SLOT_STAGED,			/* a page; staging slots only */
	RBP_SLOT_RESERVED,			/* a page is being written to it */
	RBP_SLOT_LOST,				/* was reserved, but its extent went offline
								 * since: what was written is lost even if the
								 * extent came online again.  generation is
								 * dir->opened of then */
} RbpSlotState;

#define RBP_NUM_LISTS		6	/* the first is not used */

/* Slots of a partition checked for a fresh one under one hold of the lock */
#define RBP_FRESH_STEPS		4096

/*
 * Pages and heat of an account are counted in stripes, chosen by partition,
 * so that two processes rarely write the same cache line.  There is one
 * stripe for every RBP_ACCOUNT_EXTENTS extents, but at most
 * RBP_ACCOUNT_STRIPES.
 */
#define RBP_ACCOUNT_EXTENTS 1024
#define RBP_ACCOUNT_STRIPES 8

typedef struct RbpAccount
{
	int32_t		used;
	int32_t		sampled;		/* sum of the access counts of sampled pages */
} RbpAccount;

/*
 * Policies of files: one word for each, (rel << 32 | space << 16 | policy), 0
 * when empty, in one of the two buckets, of one cache line each, that the
 * name hashes to.  The policy is an RbpPolicy or POLICY_RESET.  Only one
 * process at a time writes them; they are read without a lock.  The counts of the
 * files are in an array of their own.
 */
typedef struct RbpFileCounts
{
	uint32_t	kept;			/* see RbpFilePolicy */
	uint32_t	new_pages;
} RbpFileCounts;

#define RBP_POLICY_BUCKETS	4096
#define RBP_POLICY_WAYS		8
#define RBP_POLICY_PLACES	(RBP_POLICY_BUCKETS * RBP_POLICY_WAYS)
#define RBP_NO_PLACE		UINT32_MAX

/* Access counts are sampled for one page of this many. */
#define RBP_HEAT_SAMPLE		16

typedef struct RbpEntry
{
	uint64_t	hash;			/* of the content, xor that of the page */
	uint32_t	rel;
	uint32_t	block;
	uint32_t	generation;
	uint16_t	space;
	uint8_t		fork;
	uint8_t		flags;			/* state | freq << RBP_FREQ_SHIFT; atomic */
	uint32_t	chain;			/* next in the bucket */
	uint32_t	next;			/* next older on the list */
} RbpEntry;

_Static_assert(sizeof(RbpEntry) == RBP_ENTRY_BYTES, "an entry is half a cache line");

#define RBP_STATE_MASK		0x07
#define RBP_FREQ_SHIFT		4

/* head is the newest, tail the oldest */
typedef struct RbpList
{
	uint32_t	head;
	uint32_t	tail;
	uint32_t	count;
} RbpList;

typedef struct RbpPartition
{
	/* on a line of their own: a lookup touches nothing else of the header */
	RbpLock		lock __attribute__((aligned(RBP_CACHE_LINE)));
	bool		built;			/* false after a crash, until chains, lists
								 * and counts fit the entries;
								 * rbp_partition_lock() sees to that */

	/* all below: under the lock */
	RbpList		lists[RBP_NUM_LISTS] __attribute__((aligned(RBP_CACHE_LINE)));
	uint32_t	reserved;		/* RESERVED and LOST */
	uint32_t	taken;			/* slots that are FREE, SMALL, MAIN, KEPT or
								 * RESERVED; the other slots of online extents
								 * are fresh */
	uint32_t	scan;			/* extents below this have no fresh slot in
								 * this partition */
	uint32_t	scan_began;		/* value of onlinings when the scan began */
	uint32_t	sweep_at;		/* extent at which the sweep continues */
	uint64_t	sweep_bumps;	/* value of bumps when the sweep began */
	uint32_t	ghost_clock;	/* number of ghosts created so far */
	uint32_t	limit_hand;		/* next extent that drop_under_limit() visits */
	uint64_t	evictions;
	uint64_t	swept;			/* value of bumps that the last sweep covered */
} RbpPartition;

_Static_assert(offsetof(RbpPartition, built) < RBP_CACHE_LINE, "built lies beside the lock");

struct RbpDirectory
{
	/* constant */
	uint32_t	max_slots;
	uint32_t	staging_slots;
	uint32_t	nlocal;			/* slots in a partition, and extents */
	uint32_t	nbuckets;		/* in a partition */
	uint32_t	nstamps;		/* in a partition */
	uint32_t	ngenerations;
	uint32_t	nghost_sets;	/* in a partition */
	uint32_t	ghost_unit;		/* ghosts created in one tick of their clock */
	uint32_t	nstripes;		/* of accounts */
	uint32_t	opened;			/* times, after a crash */
	uint8_t    *states;			/* of extents->states */
	const RbpExtents *extents;	/* at the same address in all processes */
	size_t		entries;		/* offsets */
	size_t		prev;
	size_t		buckets;
	size_t		ghosts;
	size_t		stamps;
	size_t		generations;
	size_t		accounts;
	size_t		database_pages;
	size_t		bytes;

	/* files with a policy, including POLICY_RESET; read by each capture */
	uint32_t	npolicies __attribute__((aligned(RBP_CACHE_LINE)));
	uint64_t	keep_max;		/* pages */

	uint64_t	bumps __attribute__((aligned(RBP_CACHE_LINE)));

	uint64_t	kept __attribute__((aligned(RBP_CACHE_LINE)));	/* atomic */

	RbpPartition partitions[RBP_PARTITIONS];

	/* atomics */
	uint64_t	policies[RBP_POLICY_PLACES] __attribute__((aligned(RBP_CACHE_LINE)));
	RbpFileCounts file_counts[RBP_POLICY_PLACES];
	bool		unread[RBP_PARTITIONS]; /* its entries are in an image; under
										 * the lock */
	bool		has_image;		/* which can be read */
	uint16_t	databases[RBP_MAX_SPACES];	/* by space: its database's number
											 * + 1, or 0 */
	uint32_t	limits[RBP_MAX_SPACES]; /* by database: its limit + 1, or 0 */
};

static inline RbpEntry *
rbp_entry(const RbpDirectory *dir, uint32_t index)
{
	return (RbpEntry *) ((char *) (uintptr_t) dir + dir->entries) + index;
}

static inline uint32_t *
rbp_array(const RbpDirectory *dir, size_t offset)
{
	return (uint32_t *) ((char *) (uintptr_t) dir + offset);
}

/* The state of an extent, which remote owns. */
static inline uint8_t
rbp_extent_now(const RbpDirectory *dir, uint32_t extent)
{
	return __atomic_load_n(&dir->states[extent], __ATOMIC_ACQUIRE);
}

/* May pages of the extent be read? */
static inline bool
rbp_extent_online(const RbpDirectory *dir, uint32_t extent)
{
	uint8_t		now = rbp_extent_now(dir, extent);

	return now != RBP_EXTENT_ABSENT && now != RBP_EXTENT_CLOSED;
}

/*
 * May an entry of the extent have a page?  If not, its entries must not be
 * touched: their memory may never have been written.
 */
static inline bool
rbp_extent_touched(const RbpDirectory *dir, uint32_t extent)
{
	uint8_t		now = rbp_extent_now(dir, extent);

	return now != RBP_EXTENT_ABSENT && now != RBP_EXTENT_FRESH;
}

/* Number of slots of each partition: one for each online extent. */
static inline uint32_t
rbp_partition_slots(const RbpDirectory *dir)
{
	return __atomic_load_n(&dir->extents->open, __ATOMIC_RELAXED) +
		__atomic_load_n(&dir->extents->draining, __ATOMIC_RELAXED);
}

/* The number of the space's database */
static inline uint16_t
rbp_database_of(const RbpDirectory *dir, uint16_t space)
{
	uint16_t	set;

	Assert(space < RBP_MAX_SPACES);
	set = __atomic_load_n(&dir->databases[space], __ATOMIC_RELAXED);
	return set == 0 ? space : set - 1;
}

/*
 * Counter of the database's pages in the partition's stripe; stripes are as for
 * accounts.
 */
static inline int32_t *
rbp_database_pages(const RbpDirectory *dir, uint32_t part, uint16_t database)
{
	return (int32_t *) rbp_array(dir, dir->database_pages) +
		(size_t) (part % dir->nstripes) * RBP_MAX_SPACES + database;
}

static inline RbpSlotState
rbp_entry_state(const RbpEntry *e)
{
	return (RbpSlotState)
		(__atomic_load_n(&e->flags, __ATOMIC_RELAXED) & RBP_STATE_MASK);
}

static inline uint8_t
rbp_entry_freq(const RbpEntry *e)
{
	return __atomic_load_n(&e->flags, __ATOMIC_RELAXED) >> RBP_FREQ_SHIFT;
}

/*
 * Exclusive lock.  What was stored into the entry before is seen before this, and
 * what is stored after it, after; also if the process is killed in between.
 */
static inline void
rbp_entry_set(RbpEntry *e, RbpSlotState state, uint8_t freq)
{
	__atomic_store_n(&e->flags, (uint8_t) (state | freq << RBP_FREQ_SHIFT),
					 __ATOMIC_RELEASE);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static inline RbpPageId
rbp_entry_page(const RbpEntry *e)
{
	RbpPageId	page = {e->rel, e->block, e->space, e->fork};

	return page;
}

/*
 * Bits of a page's hash: 0..6 choose the partition, 7..38 the place in its
 * tables, 39..42 whether it is sampled, 44..63 are the fingerprint of a ghost.
 */
static inline uint32_t
rbp_hash_partition(uint64_t hash)
{
	return (uint32_t) (hash % RBP_PARTITIONS);
}

static inline bool
rbp_hash_sampled(uint64_t hash)
{
	return (hash >> 39) % RBP_HEAT_SAMPLE == 0;
}

/*
 * Index into one of the partition's tables of n elements, without a division.
 */
static inline uint32_t
rbp_hash_place(uint64_t hash, uint32_t n)
{
	return (uint32_t) (((uint64_t) (uint32_t) (hash >> 7) * n) >> 32);
}

/* Where the fork's generation is; atomic. */
static inline uint32_t *
rbp_fork_generation(const RbpDirectory *dir, uint32_t rel, uint16_t space,
					uint8_t fork)
{
	return rbp_array(dir, dir->generations) +
		rbp_hash_place(rbp_fork_hash(rel, space, fork), dir->ngenerations);
}

static inline uint32_t
rbp_generation_now(const RbpDirectory *dir, uint32_t rel, uint16_t space,
				   uint8_t fork)
{
	return __atomic_load_n(rbp_fork_generation(dir, rel, space, fork), __ATOMIC_ACQUIRE);
}

/*
 * Does the page of this entry (in state small, main, kept or staged) still
 * equal the disk, and is its memory usable?  Any lock of its partition.
 */
static inline bool
rbp_entry_live(const RbpDirectory *dir, uint32_t part, uint32_t index)
{
	const RbpEntry *e = rbp_entry(dir, index);

	return (index >= dir->max_slots ||
			rbp_extent_online(dir, index - part * dir->nlocal)) &&
		e->generation == rbp_generation_now(dir, e->rel, e->space, e->fork);
}

/*
 * Add pages and access counts to the account of an entry.  Any lock of its
 * partition.
 */
static inline void
rbp_account_add(const RbpDirectory *dir, uint32_t part, uint32_t index,
				uint64_t hash, int pages, int freq)
{
	RbpAccount *account = (RbpAccount *) ((char *) (uintptr_t) dir + dir->accounts) +
	(size_t) (part % dir->nstripes) * RBP_MAX_REGIONS +
	rbp_extent_region(dir->extents, index - part * dir->nlocal);

	if (pages != 0)
	{
		__atomic_fetch_add(&account->used, pages, __ATOMIC_RELAXED);
		__atomic_fetch_add(rbp_database_pages(dir, part, rbp_database_of(dir, rbp_entry(dir, index)->space)),
						   pages, __ATOMIC_RELAXED);
	}
	if (freq != 0 && rbp_hash_sampled(hash))
		__atomic_fetch_add(&account->sampled, freq, __ATOMIC_RELAXED);
}

static inline bool
rbp_entry_is_page(const RbpEntry *e, const RbpPageId *page)
{
	return e->rel == page->rel && e->block == page->block &&
		e->space == page->space && e->fork == page->fork;
}

static inline uint32_t
rbp_slot_index(const RbpDirectory *dir, uint32_t slot)
{
	return slot % RBP_PARTITIONS * dir->nlocal + slot / RBP_PARTITIONS;
}

/*
 * The entry, which is unused or reserved, gets the page with that hash, whose content
 * hashes to this at that generation.
 */
static inline void
rbp_entry_fill(RbpEntry *e, const RbpPageId *page, uint64_t hash, uint64_t content,
			   uint32_t generation)
{
	e->hash = content ^ hash;
	e->rel = page->rel;
	e->block = page->block;
	e->generation = generation;
	e->space = page->space;
	e->fork = page->fork;
}

/* The hash of the content that the entry has for the page with that hash. */
static inline uint64_t
rbp_entry_content(const RbpEntry *e, uint64_t page_hash)
{
	return e->hash ^ page_hash;
}

/* Heads are kept as their complements, so that 0 is an empty bucket. */
static inline uint32_t *
rbp_bucket_head(const RbpDirectory *dir, uint64_t hash)
{
	return rbp_array(dir, dir->buckets) +
		(size_t) rbp_hash_partition(hash) * dir->nbuckets +
		rbp_hash_place(hash, dir->nbuckets);
}

/* Any lock. */
static inline uint32_t
rbp_entry_find(const RbpDirectory *dir, uint64_t hash, const RbpPageId *page)
{
	uint32_t	index = ~*rbp_bucket_head(dir, hash);

	while (index != RBP_NIL)
	{
		const RbpEntry *e = rbp_entry(dir, index);

		if (rbp_entry_is_page(e, page))
			break;
		index = e->chain;
	}
	return index;
}

static inline uint64_t
rbp_entry_page_hash(const RbpEntry *e)
{
	RbpPageId	page = rbp_entry_page(e);

	return rbp_page_hash(&page);
}

/* Does the entry have a page in a remote slot? */
static inline bool
rbp_entry_queued(const RbpEntry *e)
{
	RbpSlotState state = rbp_entry_state(e);

	return state >= RBP_SLOT_SMALL && state <= RBP_SLOT_KEPT;
}

static inline uint32_t
rbp_index_slot(const RbpDirectory *dir, uint32_t part, uint32_t index)
{
	return (index - part * dir->nlocal) * RBP_PARTITIONS + part;
}

/* hash: of the page that was asked for, whatever the entry says that it is */
static inline void
rbp_fill_lookup(const RbpDirectory *dir, uint32_t part, uint32_t index,
				uint64_t hash, RbpLookup *result)
{
	if (index >= dir->max_slots)
	{
		result->where = RBP_STAGED;
		result->slot = index - dir->max_slots;
	}
	else
	{
		result->where = RBP_REMOTE;
		result->slot = rbp_index_slot(dir, part, index);
	}
	result->hash = rbp_entry_content(rbp_entry(dir, index), hash);
}

/*
 * ---- directory_setup.c ------------------------------------------------------
 */

/* Lock a partition, and build it unless somebody has done it. */
extern void rbp_partition_lock(RbpDirectory *dir, RbpPartition *p, bool exclusive);

/*
 * ---- directory_slots.c ------------------------------------------------------
 */

/* A slot that was reserved is let go; exclusive lock. */
extern void rbp_slot_unreserve(RbpDirectory *dir, RbpPartition *p, uint32_t part,
							   uint32_t index);

/*
 * ---- directory_policy.c -----------------------------------------------------
 */

/*
 * Count a page that was added to the partition's list of kept pages, or taken
 * off it; any lock.
 */
extern void rbp_kept_add(RbpDirectory *dir, uint32_t index, int pages);

/* Should the page be kept, and is there room for one more?  Any lock. */
extern bool rbp_may_keep_page(const RbpDirectory *dir, const RbpPartition *p,
							  const RbpEntry *e);

/* Are too many pages kept, in this partition or in total?  Any lock. */
extern bool rbp_kept_too_many(const RbpDirectory *dir, const RbpPartition *p);

/*
 * ---- directory_entry.c, lists and chains ------------------------------------
 */

/* Put the entry at the head of the list of the state; exclusive lock. */
static inline void
rbp_list_push(RbpDirectory *dir, RbpPartition *p, RbpSlotState state,
			  uint8_t freq, uint32_t index)
{
	RbpList    *list = &p->lists[state];
	uint32_t   *prev = rbp_array(dir, dir->prev);
	RbpEntry   *e = rbp_entry(dir, index);

	rbp_entry_set(e, state, freq);
	prev[index] = RBP_NIL;
	e->next = list->head;
	if (list->head == RBP_NIL)
		list->tail = index;
	else
		prev[list->head] = index;
	list->head = index;
	list->count++;
	if (state == RBP_SLOT_KEPT)
		rbp_kept_add(dir, index, 1);
}

/* Take the entry off the list that its state names; exclusive lock. */
static inline void
rbp_list_remove(RbpDirectory *dir, RbpPartition *p, uint32_t index)
{
	uint32_t   *prev = rbp_array(dir, dir->prev);
	RbpEntry   *e = rbp_entry(dir, index);
	RbpList    *list = &p->lists[rbp_entry_state(e)];

	if (prev[index] == RBP_NIL)
		list->head = e->next;
	else
		rbp_entry(dir, prev[index])->next = e->next;
	if (e->next == RBP_NIL)
		list->tail = prev[index];
	else
		prev[e->next] = prev[index];
	list->count--;
	if (rbp_entry_state(e) == RBP_SLOT_KEPT)
		rbp_kept_add(dir, index, -1);
}

/* Link the entry into its page's chain; exclusive lock. */
extern void rbp_chain_link(RbpDirectory *dir, uint64_t hash, uint32_t index);

/* Unlink it; exclusive lock. */
extern void rbp_chain_unlink(RbpDirectory *dir, uint64_t hash, uint32_t index);

/* Remove an entry that has a page from its chain and queue; exclusive lock. */
extern void rbp_entry_drop(RbpDirectory *dir, uint32_t part, uint32_t index,
						   uint64_t hash);

/* Give back a slot that counts as taken and is on no list; exclusive lock. */
extern void rbp_slot_release(RbpDirectory *dir, RbpPartition *p, uint32_t part,
							 uint32_t index);

#endif							/* RBP_DIRECTORY_INTERNAL_H */
