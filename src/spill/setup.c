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

#include "port/atomics.h"

#include "base/geometry.h"
#include "base/guc.h"
#include "base/layout.h"
#include "base/lock.h"
#include "base/process.h"
#include "remote/remote.h"
#include "spill/slots.h"
#include "spill/spill.h"
#include "spill/spill_internal.h"
#include "spill/table.h"

/* Extents beyond the quota, to make up for lost ones that are still in use */
#define SPARE_EXTENTS(n)	((n) / 16 + 16)

RbpSpillShared *rbp_spill_shared = NULL;
bool		rbp_spill_used_in_xact = false;

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
staging_pages(void)
{
	return (uint32) rbp_guc_temp_staging_size / (BLCKSZ / 1024);
}

/* A quarter of the staging region is for blocks that are being filled. */
static uint32
staging_chunks(void)
{
	return (staging_pages() - staging_pages() / 4) / CHUNK_PAGES;
}

static uint32
bitmap_words(uint32 bits)
{
	return (bits + 63) / 64;
}

Size
rbp_spill_shmem_size(void)
{
	Size		size = MAXALIGN(sizeof(RbpSpillShared));
	uint32		pages = staging_pages();

	if (rbp_guc_temp_tier_max_size == 0)
		return size;
	size = add_size(size, rbp_spill_slots_size(rbp_spill_max_extents()));
	size = add_size(size, rbp_spill_table_size(max_files(), max_nodes()));
	size = add_size(size, mul_size(sizeof(RbpSpillSlotInfo), max_slots()));
	size = add_size(size, mul_size(sizeof(pg_atomic_uint32), rbp_spill_max_extents()));
	size = add_size(size, mul_size(BLCKSZ + sizeof(bool), pages));
	size = add_size(size, mul_size(sizeof(pg_atomic_uint64), 2 * bitmap_words(pages)));
	return add_size(size, 9 * PG_CACHE_LINE_SIZE + 2 * 4096);
}

/* A bitmap of n bits, all of them set. */
static pg_atomic_uint64 *
make_bitmap(char **arena, uint32 n)
{
	pg_atomic_uint64 *words = rbp_layout_take(arena, sizeof(pg_atomic_uint64) * bitmap_words(n),
											  PG_CACHE_LINE_SIZE);

	for (uint32 i = 0; i < bitmap_words(n); i++)
	{
		uint32		bits = n - i * 64;

		pg_atomic_init_u64(&words[i], PG_UINT64_MAX >> (64 - Min(bits, 64)));
	}
	return words;
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
rbp_spill_exits(void)
{
	rbp_spill_flush(true);
}

void
rbp_spill_shmem_init(void *mem)
{
	const RbpExtents *states = rbp_remote_extents(RBP_POOL_TEMP);
	static bool installed = false;
	char	   *arena = mem;
	RbpSpillShared *sh = rbp_layout_take(&arena, sizeof(RbpSpillShared), MAXIMUM_ALIGNOF);
	uint32		extents = rbp_spill_max_extents();

	if (rbp_guc_temp_tier_max_size == 0)
		return;
	if (!installed)
		rbp_spill_install_log_hook();
	installed = true;
	sh->first_slot = RBP_EXTENT_SLOT(states->first);
	sh->nchunks = staging_chunks();
	sh->nopen_pages = staging_pages() - sh->nchunks * CHUNK_PAGES;
	rbp_spill_slots_init(rbp_layout_take(&arena, rbp_spill_slots_size(extents),
										 PG_CACHE_LINE_SIZE),
						 states, rbp_lock_tranche("RemoteBpSpillSlots"));
	rbp_spill_table_init(rbp_layout_take(&arena,
										 rbp_spill_table_size(max_files(), max_nodes()),
										 PG_CACHE_LINE_SIZE),
						 max_files(), max_nodes(),
						 rbp_lock_tranche("RemoteBpSpillNames"),
						 rbp_lock_tranche("RemoteBpSpillFile"));
	sh->slots = rbp_layout_take(&arena, sizeof(RbpSpillSlotInfo) * max_slots(), PG_CACHE_LINE_SIZE);
	sh->pending = rbp_layout_take(&arena, sizeof(pg_atomic_uint32) * extents, PG_CACHE_LINE_SIZE);
	for (uint32 i = 0; i < extents; i++)
		pg_atomic_init_u32(&sh->pending[i], 0);
	sh->open_pages_free = make_bitmap(&arena, sh->nopen_pages);
	sh->chunk_free = make_bitmap(&arena, sh->nchunks);
	sh->dropped = rbp_layout_take(&arena, sizeof(bool) * staging_pages(), PG_CACHE_LINE_SIZE);
	memset(sh->dropped, 0, sizeof(bool) * staging_pages());
	sh->pages = rbp_layout_take(&arena, (Size) BLCKSZ * staging_pages(), 4096);
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
	.count = rbp_spill_extent_filled,
	.evacuate = rbp_spill_evacuate,
	.drop = rbp_spill_slots_drop,
};
