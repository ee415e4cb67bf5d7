/*-------------------------------------------------------------------------
 *
 * directory_setup.c
 *	  The directory in shared memory: where each of its arrays begins.
 *
 * This runs in the postmaster, before anybody else sees the memory: no locks.
 * The offsets and counts that it writes never change after that.
 *
 * directory.c explains how this fits together with the other files.
 *
 *-------------------------------------------------------------------------
 */
#include "base/geometry.h"
#include "base/layout.h"
#include "base/lock.h"
#include "buffer/directory.h"
#include "buffer/directory_internal.h"

/* Fill in the constant part. */
static void
compute_layout(RbpDirectory *dir, uint32_t max_slots, uint32_t staging_slots,
			   uint32_t buffers)
{
	size_t		nentries = (size_t) max_slots + staging_slots;
	size_t		at = rbp_align_line(sizeof(RbpDirectory));
	uint32_t	nlocal = max_slots / RBP_PARTITIONS;

	RBP_ASSERT(max_slots % RBP_EXTENT_PAGES == 0);
	RBP_ASSERT(nentries < RBP_NIL);

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

RbpDirectory *
rbp_directory_init(void *mem, const RbpExtents *extents, uint32_t staging_slots,
				   uint32_t buffers, int tranche)
{
	RbpDirectory *dir = mem;

	RBP_ASSERT((uintptr_t) mem % RBP_CACHE_LINE == 0);
	compute_layout(dir, RBP_EXTENT_SLOT(extents->n), staging_slots, buffers);
	dir->extents = extents;
	dir->states = extents->states;

	for (int i = 0; i < RBP_PARTITIONS; i++)
	{
		RbpPartition *p = &dir->partitions[i];

		rbp_lock_init(&p->lock, tranche);
		for (int j = 0; j < RBP_NUM_LISTS; j++)
			p->lists[j].head = p->lists[j].tail = RBP_NIL;
	}
	return dir;
}

uint32_t
rbp_directory_max_slots(const RbpDirectory *dir)
{
	return dir->max_slots;
}
