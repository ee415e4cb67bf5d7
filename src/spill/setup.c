/*-------------------------------------------------------------------------
 *
 * setup.c
 *	  Temporary data: shared memory, ends of transactions, and callbacks for
 *	  remote.
 *
 * Shared memory is initialized once, by the postmaster, before there are any
 * files: no locks are needed.  The slots' extents are locked inside
 * rbp_spill_slots.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/geometry.h"
#include "base/guc.h"
#include "base/layout.h"
#include "base/lock.h"
#include "remote/remote.h"
#include "spill/slots.h"
#include "spill/spill.h"
#include "spill/spill_internal.h"
#include "spill/table.h"

/* Extents beyond the quota, to make up for lost ones that are still in use */
#define SPARE_EXTENTS(n)	((n) / 16 + 16)

RbpSpillShared *rbp_spill_shared = NULL;

#define shared		rbp_spill_shared

uint32
rbp_spill_max_extents(void)
{
	uint32		n = (uint32) rbp_guc_temp_tier_max_size;

	return n == 0 ? 0 : n + SPARE_EXTENTS(n);
}

static uint32
max_slots(void)
{
	return rbp_spill_max_extents() * RBP_EXTENT_PAGES;
}

/* The number of files that can have blocks elsewhere at a time. */
static uint32
max_files(void)
{
	return Min(Max(max_slots() / 32, 1024), 65536);
}

/* Nodes of 64 blocks: enough for large dense files, and one for each file. */
static uint32
max_nodes(void)
{
	return max_slots() / 60 + max_files() + 1024;
}

static uint32
staging_chunks(void)
{
	return (uint32) rbp_guc_temp_staging_size / (BLCKSZ / 1024) / CHUNK_PAGES;
}

Size
rbp_spill_shmem_size(void)
{
	Size		size = MAXALIGN(sizeof(RbpSpillShared));

	if (rbp_guc_temp_tier_max_size == 0)
		return size;
	size = add_size(size, rbp_spill_slots_size(rbp_spill_max_extents()));
	size = add_size(size, rbp_spill_table_size(max_files(), max_nodes()));
	size = add_size(size, mul_size(sizeof(RbpSpillSlotInfo), max_slots()));
	size = add_size(size, mul_size(CHUNK_PAGES * BLCKSZ, staging_chunks()));
	size = add_size(size, mul_size(sizeof(pg_atomic_flag), staging_chunks()));
	return add_size(size, 9 * PG_CACHE_LINE_SIZE + 2 * 4096);
}

pg_attribute_hot void
rbp_spill_transaction_ends(XactEvent event)
{
	/* most transactions have spilled nothing */
	if (likely(!rbp_spill_used_in_xact))
		return;
	rbp_spill_flush(event == XACT_EVENT_ABORT || event == XACT_EVENT_PARALLEL_ABORT);
	rbp_spill_forget_lost();
	rbp_spill_used_in_xact = false;
}

void
rbp_spill_shmem_init(void *mem)
{
	const RbpExtents *states = rbp_remote_extents(RBP_POOL_TEMP);
	char	   *arena = mem;
	RbpSpillShared *sh = rbp_layout_take(&arena, sizeof(RbpSpillShared), MAXIMUM_ALIGNOF);

	if (rbp_guc_temp_tier_max_size == 0)
		return;
	rbp_spill_install_log_hook();
	sh->first_slot = RBP_EXTENT_SLOT(states->first);
	sh->nchunks = staging_chunks();
	rbp_spill_slots_init(rbp_layout_take(&arena, rbp_spill_slots_size(states->n),
										 PG_CACHE_LINE_SIZE),
						 states, rbp_lock_tranche("RemoteBpSpillSlots"));
	rbp_spill_table_init(rbp_layout_take(&arena,
										 rbp_spill_table_size(max_files(), max_nodes()),
										 PG_CACHE_LINE_SIZE),
						 max_files(), max_nodes(),
						 rbp_lock_tranche("RemoteBpSpillNames"),
						 rbp_lock_tranche("RemoteBpSpillFile"));
	sh->slots = rbp_layout_take(&arena, sizeof(RbpSpillSlotInfo) * max_slots(), PG_CACHE_LINE_SIZE);
	sh->chunk_used = rbp_layout_take(&arena, sizeof(pg_atomic_flag) * sh->nchunks, PG_CACHE_LINE_SIZE);
	for (uint32 i = 0; i < sh->nchunks; i++)
		pg_atomic_init_flag(&sh->chunk_used[i]);
	sh->pages = rbp_layout_take(&arena, (Size) CHUNK_PAGES * BLCKSZ * sh->nchunks, 4096);
	shared = sh;
}

void
rbp_spill_stand_down(void)
{
	shared = NULL;
	rbp_spill_slots = NULL;
	rbp_spill_table = NULL;
}

/*
 * ---- for remote --------------------------------------------------------
 */

static uint64
region_heat(uint32 region, uint64 *used)
{
	*used = rbp_spill_slots_region_filled(region);
	return *used;
}

const RbpRemotePoolOps rbp_spill_pool_ops = {
	.heat = region_heat,
	/* blocks on their way do not count: until they arrive, they are here */
	.count = rbp_spill_slots_extent_filled,
	.evacuate = rbp_spill_evacuate,
	.drop = rbp_spill_slots_drop,
};
