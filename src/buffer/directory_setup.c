/*-------------------------------------------------------------------------
 *
 * directory_setup.c
 *	  The directory in shared memory: its layout, and what is made anew of the
 *	  entries after a crash.
 *
 * It is set up by the postmaster, before anybody else sees the memory: no locks.
 * That is work of a fixed size.  After a crash, each partition is built by who
 * locks it first.
 *
 * directory_pages.c explains how this fits together with the other files.
 *
 *-------------------------------------------------------------------------
 */
#include "buffer/directory_internal.h"

#include <stdlib.h>
#include <string.h>

/* Fill in the constant part. */
static void
compute_layout(RbpDirectory *dir, uint32_t max_slots, uint32_t staging_slots,
			   uint32_t buffers)
{
	size_t		nentries = (size_t) max_slots + staging_slots;
	size_t		at = rbp_align_line(sizeof(RbpDirectory));
	uint32_t	nlocal = max_slots / RBP_PARTITIONS;

	Assert(max_slots % RBP_EXTENT_PAGES == 0);
	Assert(nentries < RBP_NIL);

	dir->max_slots = max_slots;
	dir->staging_slots = staging_slots;
	dir->nlocal = nlocal;
	dir->nbuckets = nlocal < 8 ? 8 : nlocal;

	/* whole cache lines of stamps */
	dir->nstamps = nlocal / RBP_SLOTS_PER_STAMP +
		(uint32_t) ((uint64_t) buffers * RBP_STAMPS_PER_BUFFER / RBP_PARTITIONS);
	dir->nstamps = (dir->nstamps + 15) & ~15u;
	if (dir->nstamps < RBP_MIN_STAMPS)
		dir->nstamps = RBP_MIN_STAMPS;
	dir->ngenerations = max_slots / RBP_FEW_BLOCKS;
	if (dir->ngenerations < RBP_MIN_GENERATIONS)
		dir->ngenerations = RBP_MIN_GENERATIONS;
	dir->nghost_sets = (nlocal + RBP_GHOST_WAYS - 1) / RBP_GHOST_WAYS;
	dir->ghost_unit = nlocal / 1024 + 1;
	dir->nstripes = nlocal / RBP_ACCOUNT_EXTENTS;
	if (dir->nstripes < 1)
		dir->nstripes = 1;
	if (dir->nstripes > RBP_ACCOUNT_STRIPES)
		dir->nstripes = RBP_ACCOUNT_STRIPES;

	dir->entries = rbp_layout_place(&at, nentries * sizeof(RbpEntry));
	dir->prev = rbp_layout_place(&at, nentries * sizeof(uint32_t));
	dir->buckets = rbp_layout_place(&at, (size_t) dir->nbuckets * RBP_PARTITIONS * sizeof(uint32_t));
	dir->ghosts = rbp_layout_place(&at, (size_t) dir->nghost_sets * RBP_GHOST_WAYS *
								   RBP_PARTITIONS * sizeof(uint32_t));
	dir->stamps = rbp_layout_place(&at, (size_t) dir->nstamps * RBP_PARTITIONS * sizeof(uint32_t));
	dir->generations = rbp_layout_place(&at, (size_t) dir->ngenerations * sizeof(uint32_t));
	dir->accounts = rbp_layout_place(&at, (size_t) dir->nstripes * RBP_MAX_REGIONS * sizeof(RbpAccount));
	dir->database_pages = rbp_layout_place(&at, (size_t) dir->nstripes * RBP_MAX_SPACES * sizeof(int32_t));
	dir->bytes = at;
}

size_t
rbp_directory_size(uint32_t max_slots, uint32_t staging_slots, uint32_t buffers)
{
	static RbpDirectory layout;

	compute_layout(&layout, max_slots, staging_slots, buffers);
	return layout.bytes;
}

/*
 * What a crash has left is forgotten but for entries of remote slots, generations, stamps,
 * ghosts and spaces' databases.
 */
static void
forget(RbpDirectory *dir)
{
	dir->opened++;
	dir->has_image = false;
	dir->npolicies = 0;
	dir->keep_max = 0;
	dir->kept = 0;
	memset(dir->policies, 0, sizeof(dir->policies));
	memset(dir->limits, 0, sizeof(dir->limits));
	/* one that is out of range would lead out of the counts of pages */
	for (int i = 0; i < RBP_MAX_SPACES; i++)
		if (dir->databases[i] > RBP_MAX_SPACES)
			dir->databases[i] = 0;
	memset(rbp_entry(dir, dir->max_slots), 0, dir->staging_slots * sizeof(RbpEntry));
	/* the accounts, and databases' counts of pages */
	memset((char *) dir + dir->accounts, 0, dir->bytes - dir->accounts);
}

RbpDirectory *
rbp_directory_open(void *mem, bool found, const RbpExtents *extents, uint32_t staging_slots,
				   uint32_t buffers, int tranche)
{
	RbpDirectory *dir = mem;

	Assert((uintptr_t) mem % RBP_CACHE_LINE == 0);
	compute_layout(dir, RBP_EXTENT_SLOT(extents->n), staging_slots, buffers);
	dir->extents = extents;
	dir->states = extents->states;

	for (int i = 0; i < RBP_PARTITIONS; i++)
	{
		RbpPartition *p = &dir->partitions[i];
		uint32_t	ghost_clock = p->ghost_clock;

		memset(p, 0, sizeof(*p));
		p->ghost_clock = ghost_clock;
		rbp_lock_init(&p->lock, tranche);

		/* a new one is: its entries, all zeros, say that there is nothing */
		p->built = !found;
		for (int j = 0; j < RBP_NUM_LISTS; j++)
			p->lists[j].head = p->lists[j].tail = RBP_NIL;
	}
	if (found)
		forget(dir);
	return dir;
}

/*
 * ---- after a crash --------------------------------------------------------------
 */

/*
 * Is this the entry of a page, which is the partition's, and equals the disk?  What
 * does not look like that was overwritten by the process that crashed.
 */
static bool
stays(const RbpDirectory *dir, uint32_t part, uint32_t index)
{
	const RbpEntry *e = rbp_entry(dir, index);

	return rbp_entry_queued(e) && rbp_entry_freq(e) <= RBP_MAX_FREQ &&
		e->space < RBP_MAX_SPACES && e->fork < RBP_FORKS &&
		rbp_hash_partition(rbp_entry_page_hash(e)) == part &&
		rbp_entry_live(dir, part, index);
}

/*
 * ---- from an image --------------------------------------------------------------
 */

static RbpPagesLoad load_pages = NULL;

void
rbp_directory_pieces(RbpDirectory *dir, RbpPiece pieces[RBP_DIRECTORY_PIECES])
{
	pieces[0] = (RbpPiece)
	{
		rbp_array(dir, dir->generations), dir->ngenerations * sizeof(uint32_t)
	};
	pieces[1] = (RbpPiece)
	{
		dir->databases, sizeof(dir->databases)
	};
}

void
rbp_directory_load_by(RbpDirectory *dir, RbpPagesLoad load)
{
	load_pages = load;
	dir->has_image = true;
	memset(dir->unread, true, sizeof(dir->unread));
}

/*
 * Load the partition's pages, whose entries nobody has used yet.  If that was begun before a
 * crash, there are none.  Exclusive lock.
 */
static void
load(RbpDirectory *dir, uint32_t part)
{
	RbpEntry   *entries = rbp_entry(dir, part * dir->nlocal);
	size_t		bytes = 0;
	RbpEntry   *stored = dir->has_image ? load_pages((int) part, &bytes) : NULL;

	if (!dir->has_image)
		memset(entries, 0, dir->extents->top * sizeof(RbpEntry));
	for (size_t i = 0; stored != NULL && i < bytes / sizeof(RbpEntry); i++)
	{
		uint32_t	extent = stored[i].chain;

		if (extent < dir->extents->top && rbp_extent_touched(dir, extent))
			entries[extent] = stored[i];
	}
	free(stored);
	dir->unread[part] = false;
}

/*
 * Make the partition's chains, lists and counts of its entries.  Pages keep their
 * queue and their access counts; in a queue they are in the order of their
 * extents.  No policy is set, so none is kept.  All other slots are fresh.  Exclusive
 * lock.
 */
static void
build(RbpDirectory *dir, uint32_t part)
{
	RbpPartition *p = &dir->partitions[part];
	uint32_t	top = __atomic_load_n(&dir->extents->top, __ATOMIC_ACQUIRE);

	memset(rbp_array(dir, dir->buckets) + (size_t) part * dir->nbuckets, 0,
		   dir->nbuckets * sizeof(uint32_t));
	if (dir->unread[part])
		load(dir, part);
	/* before generations are looked at, as for a sweep */
	p->swept = __atomic_load_n(&dir->bumps, __ATOMIC_ACQUIRE);
	for (uint32_t extent = 0; extent < top; extent++)
	{
		uint32_t	index = part * dir->nlocal + extent;
		RbpEntry   *e = rbp_entry(dir, index);
		RbpSlotState queue = RBP_SLOT_MAIN;
		uint64_t	hash;

		if (!rbp_extent_touched(dir, extent))
			continue;
		if (!stays(dir, part, index))
		{
			rbp_entry_set(e, RBP_SLOT_UNUSED, 0);
			continue;
		}
		if (rbp_entry_state(e) == RBP_SLOT_SMALL)
			queue = RBP_SLOT_SMALL;
		hash = rbp_entry_page_hash(e);
		rbp_chain_link(dir, hash, index);
		rbp_list_push(dir, p, queue, rbp_entry_freq(e), index);
		rbp_account_add(dir, part, index, hash, 1, rbp_entry_freq(e));
		p->taken++;
	}
	p->built = true;
}

void
rbp_partition_lock(RbpDirectory *dir, RbpPartition *p, bool exclusive)
{
	if (exclusive)
		rbp_lock_exclusive(&p->lock);
	else
		rbp_lock_shared(&p->lock);
	if (__builtin_expect(p->built, true))
		return;
	if (!exclusive)
	{
		rbp_lock_release(&p->lock);
		rbp_lock_exclusive(&p->lock);
	}
	if (!p->built)
		build(dir, (uint32_t) (p - dir->partitions));
	if (!exclusive)
	{
		rbp_lock_release(&p->lock);
		rbp_lock_shared(&p->lock);
	}
}

/*
 * ---- to an image ----------------------------------------------------------------
 */

/* Was the page read, or kept in main for that, or by policy? */
static bool
is_wanted(const RbpEntry *e)
{
	return rbp_entry_state(e) != RBP_SLOT_SMALL || rbp_entry_freq(e) > 0;
}

/* An entry is stored as it is, but for the number of its extent, which is its chain. */
size_t
rbp_directory_store(RbpDirectory *dir, int partition, void *stored, size_t max)
{
	uint32_t	part = (uint32_t) partition;
	RbpEntry   *to = stored;
	size_t		room = max / sizeof(RbpEntry);
	size_t		n = 0;
	bool		all = true;

	if (!dir->partitions[part].built)
		build(dir, part);
	for (uint32_t extent = 0; extent < dir->extents->top; extent++)
	{
		uint32_t	index = part * dir->nlocal + extent;
		const RbpEntry *e = rbp_entry(dir, index);

		if (!rbp_extent_touched(dir, extent) || !stays(dir, part, index))
			continue;
		if (n == room && all)
		{
			/* no room for all: those that are not wanted make some */
			all = false;
			n = 0;
			for (size_t i = 0; i < room; i++)
				if (is_wanted(&to[i]))
					to[n++] = to[i];
		}
		if (!all && !is_wanted(e))
			continue;
		if (n == room)
			break;
		to[n] = *e;
		to[n++].chain = extent;
	}
	return n * sizeof(RbpEntry);
}

RbpPageId
rbp_directory_stored_page(const void *stored, size_t i)
{
	return rbp_entry_page((const RbpEntry *) stored + i);
}

uint32_t
rbp_directory_stored_slot(int partition, const void *stored, size_t i)
{
	return RBP_EXTENT_SLOT(((const RbpEntry *) stored)[i].chain) + (uint32_t) partition;
}
