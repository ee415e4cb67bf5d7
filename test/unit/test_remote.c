/*-------------------------------------------------------------------------
 *
 * test_remote.c
 *	  Two pools of regions; reads and writes in two steps; what becomes of
 *	  them when connections close; regions that are emptied before they go.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdlib.h>

#include "miscadmin.h"
#include "mock_server.h"
#include "base/compat.h"
#include "base/geometry.h"
#include "base/guc.h"
#include "base/process.h"
#include "common/status.h"
#include "remote/remote.h"
#include "remote/remote_internal.h"
#include "transport/transport.h"

#include "tap.h"

/* Each region is two extents. */
#define BUFFER_EXTENTS		8
#define TEMP_EXTENTS		10
#define EXTENTS				(BUFFER_EXTENTS + TEMP_EXTENTS)
#define TEMP_SLOT(n)		(RBP_EXTENT_SLOT(BUFFER_EXTENTS) + (n))
#define REGION_SLOTS		(2 * RBP_EXTENT_PAGES)

#define MANY				100

/* What the pools' owners were told. */
static bool not_absent[EXTENTS];
static uint64 used[EXTENTS];
static uint64 heat[EXTENTS];
static uint32 evacuated[EXTENTS];	/* times */
static int	last_looks = 0;		/* at what a region holds, under the lock */
static int	open_looks = 0;		/* at one that a write could still end in */
static uint32 pages_each_time;
static int	came_online = 0;	/* times */
static int	online_then = 0;	/* extents, the last time */
static int	mistakes = 0;

static uint8 pages[MANY][RBP_MAX_BATCH][BLCKSZ];
static uint8 back[MANY][RBP_MAX_BATCH][BLCKSZ];

/* Those of the pool that the extent belongs to; a test may have set up few. */
static const RbpExtents *
extents_of(uint32 extent)
{
	const RbpExtents *temp = rbp_remote_extents(RBP_POOL_TEMP);

	return extent < temp->first ? rbp_remote_extents(RBP_POOL_BUFFER) : temp;
}

static uint8
extent_state(uint32 extent)
{
	const RbpExtents *x = extents_of(extent);

	return extent < x->first + x->n ? rbp_extent_state(x, extent) : RBP_EXTENT_ABSENT;
}

static bool
is_online(uint32 extent)
{
	return extent_state(extent) != RBP_EXTENT_ABSENT && extent_state(extent) != RBP_EXTENT_CLOSED;
}

static void
extents_came_online(void)
{
	came_online++;
	online_then = 0;
	for (uint32 e = 0; e < BUFFER_EXTENTS; e++)
		online_then += is_online(e);
}

static bool
is_draining(uint32 extent)
{
	return extent_state(extent) == RBP_EXTENT_DRAINING;
}

static uint32
region_of(uint32 extent)
{
	return rbp_extent_region(extents_of(extent), extent);
}

/* All but those that have pages still. */
static uint32
extents_drop(uint32 *extents, uint32 n)
{
	uint32		dropped = 0;

	for (uint32 i = 0; i < n; i++)
	{
		uint32		e = extents[i];

		if (not_absent[e])
			continue;
		extents[i] = extents[dropped];
		extents[dropped++] = e;
	}
	return dropped;
}

static uint64
sum_of(const uint64 *values, uint32 region)
{
	uint64		sum = 0;

	for (int e = 0; e < EXTENTS; e++)
		if (is_online(e) && region_of(e) == region)
			sum += values[e];
	return sum;
}

/* Of all places in the table: pages are counted that are to be forgotten. */
static bool none_vacant = false;

static uint64
region_heat(uint32 region, uint64 *in_use)
{
	*in_use = sum_of(used, region) + none_vacant;
	return sum_of(heat, region);
}

static uint64
extent_used(uint32 extent)
{
	/* the last look before it is given back: who ends a write sees that */
	if (is_draining(extent) && mock_lock_held())
	{
		last_looks++;
		open_looks += rbp_remote_slot_stays(RBP_EXTENT_SLOT(extent));
	}
	return used[extent];
}

static uint32
extent_evacuate(uint32 extent, int64 deadline_ns)
{
	mistakes += !is_draining(extent) || mock_lock_held();
	evacuated[extent]++;
	used[extent] -= Min(used[extent], pages_each_time);
	mock_now += 10 * MS;
	return (uint32) used[extent];
}

/* Some tests change them: see set_up() */
static RbpRemotePoolOps buffer_ops;

static const RbpRemotePoolOps plain_ops = {
	.came_online = extents_came_online,
	.heat = region_heat,
	.drop = extents_drop,
};

static const RbpRemotePoolOps temp_ops = {
	.heat = region_heat,
	.count = extent_used,
	.evacuate = extent_evacuate,
	.drop = extents_drop,
};

/* Shared memory as after a start of the server. */
static void
set_up(void)
{
	const uint32 extents[RBP_POOLS] = {BUFFER_EXTENTS, TEMP_EXTENTS};
	const RbpRemotePoolOps *const ops[RBP_POOLS] = {&buffer_ops, &temp_ops};

	buffer_ops = plain_ops;
	rbp_remote_shmem_open(aligned_alloc(4096, TYPEALIGN(4096, rbp_remote_shmem_size(extents))), false,
						  extents, ops);
}

/* Does the donor have the page there, as what was sealed for the slot? */
static bool
has_page(const uint8 *at, RbpPool pool, uint32 slot, const uint8 *page)
{
	static uint8 copy[BLCKSZ];

	memcpy(copy, at, BLCKSZ);
	return rbp_unseal(&rbp_remote_sealers[pool], &rbp_remote_sealed[slot], slot, copy) &&
		memcmp(copy, page, BLCKSZ) == 0;
}

static int
set_lease(RbpPool pool, const RbpCredentials *cred, int64 deadline_ns,
		  const RbpEndpoint *donors, int ndonors,
		  const RbpRegionGrant *regions, int nregions)
{
	const RbpLeaseTerms terms = {
		.cred = cred,.deadline_ns = deadline_ns,.donors = donors,.ndonors = ndonors,
		.regions = regions,.nregions = nregions
	};

	return rbp_remote_set_lease(pool, &terms);
}

/* How many were given; *left: how many are still draining. */
static int
retire_coldest(RbpPool pool, const char *donor, int count, RbpRegionGrant *given,
			   int64 until_ns, int64 move_ns, int *left)
{
	RbpRetired	retired = rbp_remote_retire_coldest(pool, donor, count, given,
													until_ns, move_ns);

	if (left != NULL)
		*left = retired.draining;
	return retired.given;
}

/* What the lease worker does between two renewals, in steps. */
static void
drop_closed(void)
{
	uint32		extents[BUFFER_EXTENTS];

	(void) rbp_remote_drop(RBP_POOL_BUFFER, extents,
						   rbp_extents_next_closed(&rbp_remote_shared->leases[RBP_POOL_BUFFER].extents,
												   extents, BUFFER_EXTENTS));
}

/*
 * Lease n for the pool, with regions 0 to count - 1 of each donor from "from"
 * on.  Returns how many found no room.
 */
static int
take_lease(RbpPool pool, int n, int from, int ndonors, int count)
{
	RbpCredentials cred = mock_credentials(n);
	RbpEndpoint endpoints[MOCK_DONORS];
	RbpRegionGrant grants[MOCK_DONORS * MOCK_REGIONS] = {0};
	int			ngrants = 0;

	drop_closed();
	for (int d = 0; d < ndonors; d++)
		endpoints[d] = mock_endpoint(from + d);
	for (int r = 0; r < count; r++)
		for (int d = 0; d < ndonors; d++)
		{
			strlcpy(grants[ngrants].donor, mock_donors[from + d].id,
					sizeof(grants[ngrants].donor));
			grants[ngrants].region = (uint32) r;
			grants[ngrants++].bytes = MOCK_REGION_BYTES;
		}
	return set_lease(pool, &cred, mock_now + 3600000 * MS, endpoints, ndonors, grants,
					 ngrants);
}

static void
fill(uint8 *page, int seed)
{
	for (int i = 0; i < BLCKSZ; i++)
		page[i] = (uint8) (seed * 31 + i % 251);
}

/* n neighbouring pages from slot on, in neighbouring memory. */
static void
run_of(RbpRemoteIo *ios, uint32 slot, int n, uint8 (*memory)[BLCKSZ])
{
	for (int i = 0; i < n; i++)
	{
		ios[i].slot = slot + (uint32) i;
		ios[i].buf = memory[i];
		ios[i].status = RBP_INVALID;
	}
}

static bool
all_are(const RbpRemoteIo *ios, int n, RbpStatus status)
{
	for (int i = 0; i < n; i++)
		if (ios[i].status != status)
		{
			diag("page %d has status %d", i, ios[i].status);
			return false;
		}
	return true;
}

static RbpRemoteBatch *
begin(RbpRemoteIo *ios, int n, bool write, int flags)
{
	return rbp_remote_begin(ios, n, write, flags, mock_now,
							mock_now + mock_temp_io_timeout_ns);
}

static void
end(RbpRemoteBatch *batch)
{
	rbp_remote_end(batch, mock_now + mock_temp_io_timeout_ns);
}

/* Written by the one, read by the other; true if that is what comes back. */
static bool
round_trip(uint32 slot, int n, int flags)
{
	RbpRemoteIo ios[RBP_MAX_BATCH];
	RbpRemoteBatch *batch;

	for (int i = 0; i < n; i++)
		fill(pages[0][i], (int) slot + i);
	run_of(ios, slot, n, pages[0]);
	batch = begin(ios, n, true, flags);
	if (batch != NULL)
		end(batch);
	if (!all_are(ios, n, RBP_OK))
		return false;
	memset(back[0], 0, sizeof(back[0]));
	run_of(ios, slot, n, back[0]);
	batch = begin(ios, n, false, flags);
	if (batch != NULL)
		end(batch);
	return all_are(ios, n, RBP_OK) &&
		memcmp(pages[0], back[0], (Size) n * BLCKSZ) == 0;
}

static int
connections_of(int donor)
{
	int			n;
	RbpDonorInfo *infos = rbp_remote_donor_info(&n);
	int			found = -1;

	for (int i = 0; i < n; i++)
		if (strcmp(infos[i].endpoint.donor, mock_donors[donor].id) == 0)
			found = infos[i].connections;
	pfree(infos);
	return found;
}

/* The donor is well again, and known to be. */
static void
recover(int donor)
{
	mock_donors[donor].hangs = false;
	mock_donors[donor].refuses = false;
	mock_donors[donor].mute = false;
	mock_donors[donor].full = false;
	mock_donors[donor].answers_at = 0;
	mock_now += 60000 * MS;
	rbp_link_up(&rbp_remote_shared->donors[donor], ANY_LINK);
	(void) rbp_remote_take_recheck(RBP_POOL_BUFFER);
	(void) rbp_remote_take_recheck(RBP_POOL_TEMP);
}

static RbpBreaker *
donor_breaker(int donor)
{
	return link_breaker(&rbp_remote_shared->donors[donor], ANY_LINK);
}

static bool
is_down(int donor)
{
	return donor_is_down(&rbp_remote_shared->donors[donor]);
}

static void
test_pools(void)
{
	int			n;
	int			buffers = 0;
	int			temps = 0;
	RbpLeaseInfo *infos;

	ok(!rbp_remote_usable(RBP_POOL_BUFFER, mock_now) &&
	   !rbp_remote_usable(RBP_POOL_TEMP, mock_now), "without a lease nothing is usable");
	is_u64(take_lease(RBP_POOL_TEMP, 1, 0, 2, 2), 0, "all regions of a temp lease find room");
	ok(rbp_remote_usable(RBP_POOL_TEMP, mock_now) &&
	   !rbp_remote_usable(RBP_POOL_BUFFER, mock_now), "it is the temp quota that is usable");
	is_u64((uint64) came_online, 0, "the buffer tier is not in use yet");
	for (int e = 0; e < EXTENTS; e++)
		mistakes += is_online(e) != (e >= BUFFER_EXTENTS && e < BUFFER_EXTENTS + 8);
	is_u64(mistakes, 0, "its extents come after the buffer tier's");

	is_u64(take_lease(RBP_POOL_BUFFER, 0, 0, 3, 3), 1,
		   "a buffer lease does not get the temp quota's extents");
	ok(rbp_remote_usable(RBP_POOL_BUFFER, mock_now), "the buffer tier is usable");
	ok(came_online == 1 && online_then == BUFFER_EXTENTS, "and was told so, when its extents were online");
	is_u64(take_lease(RBP_POOL_BUFFER, 0, 0, 3, 3), 1, "the same lease once more");
	is_u64((uint64) came_online, 1, "is nothing new");
	infos = rbp_remote_lease_info(&n);
	for (int i = 0; i < n; i++)
	{
		bool		temp = infos[i].pool == RBP_POOL_TEMP;

		temps += temp;
		buffers += infos[i].pool == RBP_POOL_BUFFER;
		mistakes += strcmp(infos[i].lease, temp ? "1" : "0") != 0;
	}
	pfree(infos);
	ok(buffers == 8 && temps == 4 && mistakes == 0, "both leases are shown");

	ok(rbp_remote_slot_donor(0) == 0 && rbp_remote_slot_donor(RBP_EXTENT_SLOT(1)) == 1 &&
	   rbp_remote_slot_donor(RBP_EXTENT_SLOT(2)) == 2, "extents go round the donors");
	ok(round_trip(0, 1, 0) && round_trip(TEMP_SLOT(0), 1, 0), "both can be written and read");
	fill(pages[0][0], 0);
	ok(has_page(mock_memory(0, 0, 0, 0), RBP_POOL_BUFFER, 0, pages[0][0]),
	   "what is the buffer tier's is in its lease's region");
	fill(pages[0][0], TEMP_SLOT(0));
	ok(has_page(mock_memory(0, 1, 0, 0), RBP_POOL_TEMP, TEMP_SLOT(0), pages[0][0]),
	   "and what is temporary in that of the other, of the same number");
	is_u64(mock_donors[0].open, 2, "a connection for each lease");
	is_u64(connections_of(0), 2, "both are counted");

	/* One lease goes, the other stays. */
	rbp_remote_clear_lease(RBP_POOL_BUFFER);
	ok(!rbp_remote_usable(RBP_POOL_BUFFER, mock_now) &&
	   rbp_remote_usable(RBP_POOL_TEMP, mock_now), "one lease ends, not the other");
	is_u64(rbp_remote_slot_donor(0), (uint64) -1, "nothing carries the slot any more");
	is_u64(mock_donors[0].connects, 2, "so far one connection for each");
	ok(round_trip(TEMP_SLOT(0), 1, 0), "the other's slots can be written and read");
	is_u64(mock_donors[0].connects, 2, "over the connection that there was");

	/* An extent that still has owners is passed over. */
	rbp_remote_clear_lease(RBP_POOL_TEMP);
	not_absent[BUFFER_EXTENTS] = not_absent[BUFFER_EXTENTS + 2] = true;
	is_u64(take_lease(RBP_POOL_TEMP, 1, 0, 1, 4), 0, "a lease for fewer extents than there are");
	ok(!is_online(BUFFER_EXTENTS) && is_online(BUFFER_EXTENTS + 1) &&
	   !is_online(BUFFER_EXTENTS + 2) && is_online(BUFFER_EXTENTS + 3),
	   "extents that are not absent stay offline");
	not_absent[BUFFER_EXTENTS] = not_absent[BUFFER_EXTENTS + 2] = false;
	rbp_remote_clear_lease(RBP_POOL_TEMP);
	is_u64(mistakes, 0, "the pools' owners were told all in order");
}

static void
test_merging(void)
{
	RbpRemoteIo ios[RBP_MAX_BATCH];
	RbpRemoteBatch *batch;
	int			before;
	bool		same = true;

	(void) take_lease(RBP_POOL_TEMP, 1, 0, 1, 1);
	(void) take_lease(RBP_POOL_BUFFER, 0, 0, 3, 1);
	ok(round_trip(TEMP_SLOT(0), RBP_MAX_BATCH, 0), "a run of pages goes and comes");
	before = mock_donors[0].requests;
	ok(round_trip(TEMP_SLOT(7), RBP_MAX_BATCH, 0), "another");
	is_u64(mock_donors[0].requests - before, 2, "it is one request each way");

	before = mock_donors[0].requests;
	ok(round_trip(TEMP_SLOT(RBP_EXTENT_PAGES - 5), 10, 0), "over the border of an extent");
	is_u64(mock_donors[0].requests - before, 2, "in one request, where the region goes on");

	/* neighbours on the donor, but not in memory, and the other way round */
	before = mock_donors[0].requests;
	run_of(ios, TEMP_SLOT(0), 4, pages[0]);
	ios[2].buf = pages[1][0];
	ios[3].buf = pages[1][1];
	batch = begin(ios, 4, true, 0);
	end(batch);
	is_u64(mock_donors[0].requests - before, 2, "a gap in memory makes two of it");
	before = mock_donors[0].requests;
	run_of(ios, TEMP_SLOT(0), 4, pages[0]);
	ios[3].slot = TEMP_SLOT(9);
	batch = begin(ios, 4, true, 0);
	end(batch);
	is_u64(mock_donors[0].requests - before, 2, "a gap between slots, too");

	/* a batch whose pages go to two donors by turns, as copies do */
	for (int i = 0; i < 8; i++)
	{
		fill(pages[0][i], 100 + i);
		for (int k = 0; k < 2; k++)
		{
			ios[2 * i + k].slot = (uint32) (k * RBP_EXTENT_PAGES + i);
			ios[2 * i + k].buf = pages[0][i];
			ios[2 * i + k].status = RBP_INVALID;
		}
	}
	before = mock_donors[0].requests + mock_donors[1].requests;
	batch = begin(ios, 16, true, 0);
	end(batch);
	ok(all_are(ios, 16, RBP_OK), "pages for two donors by turns");
	is_u64(mock_donors[0].requests + mock_donors[1].requests - before, 2,
		   "one request to each");
	for (uint32 i = 0; i < 8; i++)
		same &= has_page(mock_memory(0, 0, 0, i * BLCKSZ), RBP_POOL_BUFFER, i, pages[0][i]) &&
			has_page(mock_memory(1, 0, 0, i * BLCKSZ), RBP_POOL_BUFFER, RBP_EXTENT_PAGES + i, pages[0][i]);
	ok(same, "and all in its place");

	/* at once: the same */
	before = mock_donors[0].requests;
	run_of(ios, TEMP_SLOT(3), 20, back[0]);
	rbp_remote_transfer(ios, 20, false, mock_now, mock_now + mock_io_timeout_ns);
	ok(all_are(ios, 20, RBP_OK) && mock_donors[0].requests - before == 1,
	   "a read at once is one request, too");

	/* One request that fails is all its pages' failure, and nobody else's. */
	mock_donors[0].lost[1][0] = true;
	run_of(ios, TEMP_SLOT(0), 4, back[0]);
	for (int i = 4; i < 8; i++)
	{
		ios[i].slot = RBP_EXTENT_SLOT(1) + (uint32) i;
		ios[i].buf = back[0][i];
	}
	rbp_remote_transfer(ios, 8, false, mock_now, mock_now + mock_io_timeout_ns);
	ok(all_are(ios, 4, RBP_DENIED) && all_are(ios + 4, 4, RBP_OK),
	   "each page of a denied request is, and no other");
	ok(rbp_remote_take_recheck(RBP_POOL_TEMP) &&
	   !rbp_remote_take_recheck(RBP_POOL_BUFFER), "the lease that it was is rechecked");
	ok(begin(ios, 4, false, 0) == NULL && all_are(ios, 4, RBP_CANCELED),
	   "nobody tries the region again");
	ok(begin(ios, 4, false, RBP_REMOTE_PATIENT) == NULL && all_are(ios, 4, RBP_DENIED),
	   "the patient are told why");
	ok(!rbp_remote_slot_writable(TEMP_SLOT(0)), "nor is it writable");
	mock_donors[0].lost[1][0] = false;
	is_u64(take_lease(RBP_POOL_TEMP, 1, 0, 1, 1), 0, "granted anew");
	ok(round_trip(TEMP_SLOT(0), 4, 0), "it can be used again");
}

static void
test_many(void)
{
	static RbpRemoteIo ios[300][2];
	static RbpRemoteBatch *batches[300];
	int			nulls = 0;
	bool		good = true;
	bool		same = true;

	for (int b = 0; b < MANY; b++)
	{
		fill(pages[b][0], b);
		fill(pages[b][1], b + 1);
		run_of(ios[b], TEMP_SLOT(2 * b), 2, pages[b]);
		batches[b] = begin(ios[b], 2, true, 0);
		nulls += batches[b] == NULL;
	}
	is_u64(nulls, 0, "%d batches are on their way", MANY);
	for (int b = MANY - 1; b >= 0; b -= 2)
		end(batches[b]);
	for (int b = 0; b < MANY; b += 2)
		end(batches[b]);
	for (int b = 0; b < MANY; b++)
		good = good && all_are(ios[b], 2, RBP_OK);
	ok(good, "all arrive, in whatever order they are ended");
	for (int b = 0; b < MANY; b++)
	{
		RbpRemoteIo other = {.slot = (uint32) b % 100,.buf = pages[0][5]};

		run_of(ios[b], TEMP_SLOT(2 * b), 2, back[b]);
		batches[b] = begin(ios[b], 2, false, RBP_REMOTE_PATIENT);

		/* something else goes on in between */
		rbp_remote_transfer(&other, 1, false, mock_now, mock_now + mock_io_timeout_ns);
	}
	for (int b = 0; b < MANY; b++)
	{
		end(batches[b]);
		good = good && all_are(ios[b], 2, RBP_OK);
		fill(pages[0][0], b);
		fill(pages[0][1], b + 1);
		same = same && memcmp(pages[0], back[b], 2 * BLCKSZ) == 0;
	}
	ok(good && same, "all are read back, with other reads in between");

	for (int b = 0; b < 300; b++)
	{
		run_of(ios[b], TEMP_SLOT(0), 1, back[0]);
		batches[b] = begin(ios[b], 1, false, 0);
		if (batches[b] == NULL)
		{
			nulls++;
			good = good && ios[b][0].status == RBP_NOMEM;
		}
	}
	ok(nulls > 0 && nulls < 300 - 64 && good, "there is a limit, and it is told");
	for (int b = 0; b < 300; b++)
		if (batches[b] != NULL)
			end(batches[b]);
	ok(round_trip(TEMP_SLOT(0), 2, 0), "after which all goes on");
}

static void
test_losses(void)
{
	RbpRemoteIo a[4];
	RbpRemoteIo b[4];
	RbpRemoteIo c[1];
	RbpRemoteBatch *first;
	RbpRemoteBatch *second;
	int64		from;
	int			connects;

	/* The connection breaks with two batches on it. */
	run_of(a, TEMP_SLOT(0), 4, back[0]);
	run_of(b, TEMP_SLOT(8), 4, back[1]);
	first = begin(a, 4, false, RBP_REMOTE_PATIENT);
	second = begin(b, 4, false, RBP_REMOTE_PATIENT);
	mock_donors[0].life++;
	end(first);
	ok(all_are(a, 4, RBP_CONNLOST), "a batch whose connection breaks");
	ok(is_down(0) && rbp_remote_take_recheck(RBP_POOL_TEMP) &&
	   rbp_remote_take_recheck(RBP_POOL_BUFFER), "the donor is down, both leases are rechecked");
	ok(begin(a, 4, true, 0) == NULL && all_are(a, 4, RBP_CANCELED),
	   "and not tried without need");
	ok(!rbp_remote_slot_writable(TEMP_SLOT(0)), "nor said to be writable");
	ok(round_trip(TEMP_SLOT(0), 4, RBP_REMOTE_PATIENT), "but the patient connect anew at once");
	connects = mock_donors[0].connects;
	end(second);
	ok(all_are(b, 4, RBP_CONNLOST), "the other batch is lost, too");
	ok(round_trip(TEMP_SLOT(0), 4, RBP_REMOTE_PATIENT), "the new connection goes on");
	is_u64(mock_donors[0].connects, (uint64) connects, "it is still the same");
	recover(0);

	/* Refused: told at once, and tried again by the next. */
	mock_donors[0].life++;
	mock_donors[0].refuses = true;
	run_of(a, TEMP_SLOT(0), 1, back[0]);
	first = begin(a, 1, false, RBP_REMOTE_PATIENT);
	if (first != NULL)
		end(first);
	ok(begin(a, 1, false, RBP_REMOTE_PATIENT) == NULL && a[0].status == RBP_CONNLOST,
	   "a donor that is gone refuses");
	mock_donors[0].refuses = false;
	ok(round_trip(TEMP_SLOT(0), 4, RBP_REMOTE_PATIENT), "when it is back, it is used at once");
	recover(0);

	/* Settings change while something is on its way: it comes home first. */
	ok(round_trip(TEMP_SLOT(0), 4, 0), "a connection");
	connects = mock_donors[0].connects;
	run_of(a, TEMP_SLOT(0), 4, back[2]);
	first = begin(a, 4, false, 0);
	rbp_guc_connect_settings_version++;
	run_of(c, TEMP_SLOT(9), 1, back[3]);
	second = begin(c, 1, false, 0);
	is_u64(mock_donors[0].connects, (uint64) connects + 1, "a stale connection is replaced");
	end(first);
	ok(all_are(a, 4, RBP_OK) && memcmp(back[2], pages[0], 4 * BLCKSZ) == 0,
	   "what was on its way over it has come");
	end(second);
	ok(all_are(c, 1, RBP_OK), "and what goes over the new one");

	/* The same, with a donor that does not answer. */
	first = begin(a, 4, false, 0);
	mock_donors[0].hangs = true;
	rbp_guc_connect_settings_version++;
	from = mock_now;
	ok(rbp_remote_begin(c, 1, false, 0, mock_now, mock_now + mock_io_timeout_ns) == NULL,
	   "no new connection to a donor that hangs");
	ok(mock_now - from <= 2 * mock_io_timeout_ns, "which does not take long");
	from = mock_now;
	end(first);
	ok(all_are(a, 4, RBP_CONNLOST) && mock_now == from, "what was on its way is lost");
	recover(0);

	/* A transaction ends: only what nobody waits for is closed. */
	ok(round_trip(TEMP_SLOT(0), 4, 0) && round_trip(0, 1, 0), "two connections");
	is_u64(mock_donors[0].open, 2, "there are");
	first = begin(a, 4, false, 0);
	rbp_guc_max_connections = 0;
	rbp_remote_maintain_connections();
	rbp_remote_transaction_ends(XACT_EVENT_COMMIT);
	is_u64(mock_donors[0].open, 1, "one too many is closed, if it is idle");
	end(first);
	ok(all_are(a, 4, RBP_OK), "the other was busy");
	mock_now += 10000 * MS;
	rbp_remote_maintain_connections();
	rbp_remote_transaction_ends(XACT_EVENT_COMMIT);
	is_u64(mock_donors[0].open, 0, "until that has ended");

	/* the bound is not for the patient */
	run_of(a, TEMP_SLOT(0), 4, back[2]);
	mock_now += 10000 * MS;
	ok(begin(a, 4, false, 0) == NULL && all_are(a, 4, RBP_CANCELED), "none may be made");
	ok(round_trip(TEMP_SLOT(0), 4, RBP_REMOTE_PATIENT), "but by who has to");
	is_u64(connections_of(0), 1, "it is counted");
	ok(round_trip(TEMP_SLOT(0), 4, 0), "and may be used while it is there");
	rbp_guc_max_connections = 1;
	rbp_remote_maintain_connections();
	mock_now += 10000 * MS;
	ok(!round_trip(0, 1, 0), "it takes another's slot");
	rbp_guc_max_connections = 10;
	rbp_remote_maintain_connections();
	mock_now += 10000 * MS;
	ok(round_trip(0, 1, 0), "there is room again");
}

static void
test_time(void)
{
	RbpRemoteIo a[2];
	RbpRemoteBatch *batch;
	int64		from;
	int			n;

	/* Given up early: that says nothing. */
	run_of(a, TEMP_SLOT(0), 2, back[0]);
	batch = begin(a, 2, false, RBP_REMOTE_PATIENT);
	mock_donors[0].answers_at = mock_now + 3 * MS;
	rbp_remote_end(batch, mock_now + 1 * MS);
	ok(all_are(a, 2, RBP_TIMEOUT), "a batch that is given up early");
	ok(!is_down(0) && rbp_remote_slot_writable(TEMP_SLOT(0)), "says nothing against the donor");
	ok(round_trip(TEMP_SLOT(0), 2, 0), "which is used at once");

	/* A write that is given up must not come later, over the next owner's. */
	ok(round_trip(0, 1, 0) && round_trip(TEMP_SLOT(0), 2, 0), "both pools have a connection");
	n = mock_donors[0].open;
	batch = begin(a, 2, true, 0);
	mock_donors[0].answers_at = mock_now + 3 * MS;
	rbp_remote_end(batch, mock_now + 1 * MS);
	ok(all_are(a, 2, RBP_TIMEOUT), "a write that is given up");
	is_u64(mock_donors[0].open, n - 1, "ends its connection, and no other");
	mock_now += 3 * MS;
	ok(round_trip(TEMP_SLOT(0), 2, 0), "the next one makes another");

	/* It comes late, but it comes. */
	batch = begin(a, 2, false, RBP_REMOTE_PATIENT);
	mock_donors[0].answers_at = mock_now + 4000 * MS;
	end(batch);
	ok(all_are(a, 2, RBP_OK) && !is_down(0), "the patient wait for seconds");

	/* It does not come: trouble. */
	from = mock_now;
	batch = begin(a, 2, false, RBP_REMOTE_PATIENT);
	mock_donors[0].hangs = true;
	end(batch);
	ok(all_are(a, 2, RBP_TIMEOUT) && mock_now - from == mock_temp_io_timeout_ns,
	   "in vain, at last");
	ok(is_down(0), "then the donor is down");
	from = mock_now;
	rbp_remote_transfer(a, 2, false, mock_now, mock_now + mock_io_timeout_ns);
	ok(all_are(a, 2, RBP_CANCELED) && mock_now == from, "by all that have a choice");
	recover(0);

	/*
	 * For the others a late answer makes the donor suspect, which the other
	 * pool heeds.
	 */
	ok(round_trip(0, 1, 0) && round_trip(TEMP_SLOT(0), 2, 0), "well again");
	mock_donors[0].hangs = true;
	a[0].slot = 0;
	rbp_remote_transfer(a, 1, false, mock_now, mock_now + mock_io_timeout_ns);
	ok(a[0].status == RBP_TIMEOUT && !is_down(0), "a read of the buffer tier is late");
	run_of(a, TEMP_SLOT(0), 2, back[0]);
	ok(!rbp_remote_slot_writable(TEMP_SLOT(0)) && begin(a, 2, true, 0) == NULL &&
	   all_are(a, 2, RBP_CANCELED), "so the temp quota does not write there");
	recover(0);
	ok(rbp_remote_slot_writable(TEMP_SLOT(0)), "until it answers again");

	/* Connecting takes seconds. */
	rbp_guc_connect_settings_version++;
	mock_donors[0].mute = true;
	from = mock_now;
	ok(begin(a, 2, false, RBP_REMOTE_PATIENT) == NULL && all_are(a, 2, RBP_TIMEOUT) &&
	   mock_now - from == mock_temp_io_timeout_ns, "the patient wait for a connection, too");
	recover(0);
	ok(round_trip(TEMP_SLOT(0), 2, RBP_REMOTE_PATIENT), "and get it");

	/* The lease is not known there: that is the lease's affair. */
	rbp_guc_connect_settings_version++;
	mock_donors[0].denied[1] = true;
	(void) rbp_remote_take_recheck(RBP_POOL_TEMP);
	mock_wakes[RBP_WORKER_LEASE] = 0;
	ok(begin(a, 2, true, 0) == NULL && all_are(a, 2, RBP_DENIED), "a lease is denied");
	ok(mock_wakes[RBP_WORKER_LEASE] > 0 && rbp_remote_take_recheck(RBP_POOL_TEMP) &&
	   !rbp_remote_take_recheck(RBP_POOL_BUFFER), "it alone is rechecked");
	ok(round_trip(0, 1, 0), "the other one is good there");
	mock_donors[0].denied[1] = false;
	ok(begin(a, 2, true, 0) == NULL && all_are(a, 2, RBP_CANCELED), "not tried again too soon");
	ok(round_trip(TEMP_SLOT(0), 2, RBP_REMOTE_PATIENT), "but by the patient");

	/* The lease worker is busy. */
	rbp_guc_connect_settings_version++;
	mock_lock_taken = true;
	ok(begin(a, 2, true, 0) == NULL && all_are(a, 2, RBP_CANCELED),
	   "nobody waits for the lock that is needed to connect");
	from = mock_now;
	ok(begin(a, 2, false, RBP_REMOTE_PATIENT) == NULL &&
	   mock_now - from < 2 * mock_temp_io_timeout_ns, "but the patient, and not for ever");
	mock_lock_taken = false;
	ok(round_trip(TEMP_SLOT(0), 2, RBP_REMOTE_PATIENT), "it is free again");

	/* Past the lease's deadline. */
	(void) rbp_remote_extend_lease(RBP_POOL_TEMP, mock_now);
	ok(!rbp_remote_slot_stays(TEMP_SLOT(0)), "past the deadline nothing stays");
	ok(begin(a, 2, false, RBP_REMOTE_PATIENT) == NULL && all_are(a, 2, RBP_DENIED),
	   "past the deadline nothing is posted");
	(void) rbp_remote_extend_lease(RBP_POOL_TEMP, mock_now + 3600000 * MS);
	ok(round_trip(TEMP_SLOT(0), 2, 0), "after a renewal it is");
}

static RbpBreakerState
state_of(int donor)
{
	return breaker_state(donor_breaker(donor));
}

/* One read of the donor's; how long it took. */
static int64
read_once(RbpStatus expected)
{
	RbpRemoteIo io = {.slot = 0,.buf = back[0][0]};
	int64		from = mock_now;

	rbp_remote_transfer(&io, 1, false, mock_now, mock_now + mock_io_timeout_ns);
	(void) all_are(&io, 1, expected);
	return mock_now - from;
}

/* A donor that hangs, of which one process, and the pusher, find out. */
static void
test_health(void)
{
	recover(0);
	ok(round_trip(0, 1, 0) && rbp_remote_probe() == -1, "nothing to probe");

	/* late once */
	mock_donors[0].hangs = true;
	is_u64((uint64) read_once(RBP_TIMEOUT), (uint64) mock_io_timeout_ns, "a read waits for a donor that hangs");
	ok(state_of(0) == BREAKER_SUSPECT && read_once(RBP_CANCELED) == 0, "which is suspect: it does not do so again");
	mock_donors[0].hangs = false;
	mock_now += MS;
	ok(rbp_remote_probe() == -1 && state_of(0) == BREAKER_CLOSED, "a ping is answered");
	ok(round_trip(0, 1, 0), "and it is used");

	/* somebody else is answered */
	mock_donors[0].hangs = true;
	(void) read_once(RBP_TIMEOUT);
	mock_donors[0].hangs = false;
	mock_now += MS;
	rbp_breaker_clear_suspicion(donor_breaker(0), mock_now);
	ok(round_trip(0, 1, 0), "it is used when somebody is answered, too");

	/* the ping is not */
	for (int i = 0; i < 2; i++)
	{
		mock_donors[0].hangs = true;
		(void) read_once(RBP_TIMEOUT);
		ok(rbp_remote_probe() > 0 && is_down(0), "it does not answer a ping: it is down");
		ok(read_once(RBP_CANCELED) == 0 && !rbp_remote_slot_writable(0), "nobody waits for it");
		mock_donors[0].hangs = false;
		ok(i == 0 || (rbp_remote_probe() > 0 && is_down(0)), "nor is it asked too soon");
		mock_now += 40 * MS;
		ok(rbp_remote_probe() == -1 && !is_down(0), "until it does");
		ok(round_trip(0, 1, 0), "and is used again");
	}

	/* it answers, but often late */
	for (int i = 0; i < 19; i++)
	{
		mock_donors[0].answers_at = mock_now + 2 * mock_io_timeout_ns;
		(void) read_once(RBP_TIMEOUT);
		mock_now += mock_io_timeout_ns;
		(void) rbp_remote_probe();
	}
	ok(state_of(0) == BREAKER_CLOSED, "a donor is late now and then");
	mock_donors[0].answers_at = mock_now + 2 * mock_io_timeout_ns;
	(void) read_once(RBP_TIMEOUT);
	ok(is_down(0), "too often: it is down, though it answers");
	recover(0);
	ok(round_trip(0, 1, 0), "well again");
}

/* A donor that returns wrong bytes, in time, and answers pings. */
static void
test_wrong_bytes(void)
{
	RbpBreaker *breaker = donor_breaker(0);
	int64		before = 0;

	recover(0);
	for (int pool = 0; pool < RBP_POOLS; pool++)
		(void) rbp_remote_extend_lease((RbpPool) pool, mock_now + INT64CONST(36000000) * MS);
	for (int times = 0; times < 12; times++)
	{
		int64		open;

		for (int i = 0; i < 15; i++)
			rbp_remote_wrong_bytes(0);
		if (times == 0)
			ok(round_trip(0, 1, 0), "some wrong bytes: it is used");
		rbp_remote_wrong_bytes(0);
		open = (int64) pg_atomic_read_u64(&breaker->retry_at) - mock_now;
		if (times == 0)
		{
			ok(is_down(0) && read_once(RBP_CANCELED) == 0, "more of them: it is down");
			is_u64((uint64) rbp_remote_probe(), (uint64) open, "a ping is not the end of that");
			ok(round_trip(TEMP_SLOT(0), 1, RBP_REMOTE_PATIENT) && is_down(0), "nor an answer to the patient");
		}
		ok(is_down(0) && open > 0 && open >= Min(2 * before, INT64CONST(300000) * MS),
		   "it stays so for %lld ms", (long long) (open / MS));
		before = open;
		mock_now += open;
		ok(rbp_remote_probe() == -1 && !is_down(0), "then it is tried again");
	}
	mock_now += INT64CONST(700000) * MS;
	for (int i = 0; i < 16; i++)
		rbp_remote_wrong_bytes(0);
	ok(is_down(0) && (int64) pg_atomic_read_u64(&breaker->retry_at) - mock_now <= 1000 * MS,
	   "after a time of calm it is the first again");
	recover(0);
	ok(round_trip(0, 1, 0), "and it is used again");
}

static int64
sum_of_donor(int donor, RbpDonorCount what)
{
	int64		sum = 0;

	for (int i = 0; i < RBP_DONOR_STRIPES; i++)
		sum += (int64) pg_atomic_read_u64(&rbp_remote_shared->donors[donor].stripes[i].counts[what]);
	return sum;
}

/* Answers to what was asked before and after a donor became suspect. */
static void
test_old_answers(void)
{
	RbpRemoteIo a[4];
	RbpRemoteIo b[4];
	RbpRemoteBatch *before;
	RbpRemoteBatch *after;
	RbpBreaker *breaker = donor_breaker(0);

	recover(0);
	ok(round_trip(0, 4, 0), "well again");
	run_of(a, 0, 4, back[0]);
	before = rbp_remote_begin(a, 4, false, 0, mock_now, mock_now);
	mock_now += MS;

	/* another process waits in vain; and later a second one */
	ok(rbp_breaker_suspect(breaker), "a donor is suspect");
	mock_now += MS;
	run_of(b, 8, 4, back[1]);
	after = rbp_remote_begin(b, 4, false, 0, mock_now, mock_now);
	rbp_remote_end(before, mock_now + mock_io_timeout_ns);
	ok(all_are(a, 4, RBP_OK) && state_of(0) == BREAKER_SUSPECT,
	   "an answer to what was asked before leaves it suspect");
	mock_now += MS;
	(void) rbp_breaker_suspect(breaker);
	rbp_remote_end(after, mock_now + mock_io_timeout_ns);
	ok(all_are(b, 4, RBP_OK) && state_of(0) == BREAKER_SUSPECT,
	   "so does one to what was asked before the last process suspected it");
	mock_now += MS;
	after = rbp_remote_begin(b, 4, false, 0, mock_now, mock_now);
	rbp_remote_end(after, mock_now);
	ok(all_are(b, 4, RBP_OK) && state_of(0) == BREAKER_CLOSED,
	   "an answer to what was asked after that does not, though nobody waits for it");

	/* a read that began before, and a connection */
	(void) rbp_breaker_suspect(breaker);
	rbp_remote_transfer(a, 4, false, mock_now - MS, mock_now + mock_io_timeout_ns);
	ok(all_are(a, 4, RBP_OK) && state_of(0) == BREAKER_SUSPECT, "nor does a read prove it that began before");
	mock_now += MS;
	rbp_remote_transfer(a, 4, false, mock_now, mock_now + mock_io_timeout_ns);
	ok(all_are(a, 4, RBP_OK) && state_of(0) == BREAKER_CLOSED, "but one that began after");

	/* the ping is answered, but somebody suspects the donor meanwhile */
	(void) rbp_breaker_suspect(breaker);
	pg_atomic_write_u64(&breaker->suspected_at, (uint64) mock_now + MS);
	ok(rbp_remote_probe() > 0 && state_of(0) == BREAKER_SUSPECT, "then it is pinged again");
	mock_now += 20 * MS;
	ok(rbp_remote_probe() == -1 && state_of(0) == BREAKER_CLOSED, "until that is settled");
}

/* A connection breaks on which nothing is that a query waits for. */
static void
test_unawaited_losses(void)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[0];
	RbpRemoteIo a[4];
	RbpRemoteIo b[4];
	RbpRemoteBatch *first;
	RbpRemoteBatch *second;

	/* how: dropped, while it is on its way; or as it is requested */
	for (int how = 0; how < 2; how++)
	{
		uint32		times_down = pg_atomic_read_u32(&d->times_down);
		uint32		serial = pg_atomic_read_u32(&d->serial);
		int64		failures = sum_of_donor(0, RBP_DONOR_FAILURES);
		int			open;

		recover(0);
		ok(round_trip(0, 4, 0), "well again");
		pg_atomic_write_u32(&d->links[ANY_LINK].error, 0);
		open = mock_donors[0].open;
		run_of(a, 0, 4, back[0]);
		run_of(b, 8, 4, back[1]);
		first = second = NULL;
		if (how == 0)
		{
			first = rbp_remote_begin(a, 4, false, 0, mock_now, mock_now);
			second = rbp_remote_begin(b, 4, false, 0, mock_now, mock_now);
		}
		mock_donors[0].life++;
		mock_now += MS;
		if (how == 1)
			first = rbp_remote_begin(a, 4, false, 0, mock_now, mock_now);
		else
			rbp_remote_end(first, mock_now);
		ok(all_are(a, 4, RBP_CONNLOST) && (how == 0 || first == NULL), "a connection is lost");
		is_u64((uint64) mock_donors[0].open, (uint64) open - 1, "it is closed");
		ok(pg_atomic_read_u32(&d->links[ANY_LINK].error) != 0, "which is noted");
		ok(state_of(0) == BREAKER_SUSPECT && pg_atomic_read_u32(&d->serial) == serial,
		   "the donor is suspect: others may go on reading");
		if (second != NULL)
			rbp_remote_end(second, mock_now);
		ok(second == NULL || all_are(b, 4, RBP_CONNLOST), "what else was on its way is lost");
		ok(read_once(RBP_CANCELED) == 0, "this process leaves the donor alone");

		/* the donor was restarted, or only this connection was lost */
		mock_now += MS;
		(void) rbp_remote_probe();
		for (int i = 0; i < 3 && state_of(0) != BREAKER_CLOSED; i++)
		{
			mock_now += 100 * MS;
			(void) rbp_remote_probe();
		}
		ok(state_of(0) == BREAKER_CLOSED && round_trip(0, 4, 0), "until the pusher has found out");
		ok(sum_of_donor(0, RBP_DONOR_FAILURES) - failures <= 1 &&
		   pg_atomic_read_u32(&d->times_down) - times_down <= 1, "that is one failure of the donor at most");
	}

	/* a query waits */
	run_of(a, 0, 4, back[0]);
	first = rbp_remote_begin(a, 4, false, 0, mock_now, mock_now);
	mock_donors[0].life++;
	rbp_remote_end(first, mock_now + mock_io_timeout_ns);
	ok(all_are(a, 4, RBP_CONNLOST) && is_down(0), "a loss that a query meets shows that the donor is down");
	recover(0);
	ok(round_trip(0, 4, 0), "well again");
}

/* A donor that has all the connections that the lease may have. */
static void
test_full(void)
{
	RbpRemoteIo a[2];
	int			connects;

	ok(round_trip(0, 1, 0), "a connection");
	mock_donors[0].full = true;
	ok(round_trip(0, 1, 0), "it stays when the donor accepts no more");
	rbp_guc_connect_settings_version++;
	(void) read_once(RBP_BUSY);
	ok(state_of(0) == BREAKER_CLOSED && rbp_remote_probe() == -1, "who gets none suspects nobody");
	connects = mock_donors[0].connects;
	mock_now += 500 * MS;
	(void) read_once(RBP_CANCELED);
	is_u64((uint64) mock_donors[0].connects, (uint64) connects, "nor does he try again at once");
	mock_now += 600 * MS;
	(void) read_once(RBP_BUSY);
	is_u64((uint64) mock_donors[0].connects, (uint64) connects + 1, "but after a second");
	run_of(a, TEMP_SLOT(0), 2, back[0]);
	ok(begin(a, 2, false, RBP_REMOTE_PATIENT) == NULL && all_are(a, 2, RBP_BUSY) &&
	   state_of(0) == BREAKER_CLOSED, "the patient are told so, too");

	/* the pusher gets none either, but an answer */
	recover(0);
	ok(round_trip(0, 1, 0), "a connection");
	mock_donors[0].hangs = true;
	(void) read_once(RBP_TIMEOUT);
	mock_donors[0].hangs = false;
	mock_donors[0].full = true;
	rbp_guc_connect_settings_version++;
	mock_now += MS;
	pg_atomic_write_u64(&donor_breaker(0)->suspected_at, (uint64) mock_now + MS);
	ok(rbp_remote_probe() > 0 && state_of(0) == BREAKER_SUSPECT, "if somebody suspects the donor meanwhile, it is pinged again");
	mock_now += 20 * MS;
	ok(state_of(0) == BREAKER_SUSPECT && rbp_remote_probe() == -1 && state_of(0) == BREAKER_CLOSED,
	   "a donor that refuses the pusher is not suspect any more");
	rbp_remote_donor_down(&rbp_remote_shared->donors[0], true);
	mock_now += 60000 * MS;
	ok(is_down(0) && rbp_remote_probe() == -1 && !is_down(0), "nor down");
	recover(0);
	ok(round_trip(0, 1, 0), "it accepts one again");
}

static int
count_open(void)
{
	int			n = 0;

	for (int i = 0; i < MOCK_DONORS; i++)
		n += mock_donors[i].open;
	return n;
}

#define SECOND	(1000 * MS)

/*
 * ---- what connections are worth ----------------------------------------------
 */

/* Is it worth a connection to read that page, by itself?  The file takes 1 ms. */
static bool
page_is_worth(uint32 slot)
{
	return rbp_remote_slot_worth(slot, 0, RBP_WORK_PAGE, 1);
}

/* How often is it not? */
static int
unworthy(uint32 slot)
{
	int			n = 0;

	while (n < 1000 && !page_is_worth(slot))
		n++;
	return n;
}

static void
test_worth(void)
{
	RbpLocalConn *c = &rbp_remote_conns[conn_index(RBP_POOL_BUFFER, 0)];
	int			number = rbp_remote_slot_transport(0);
	int64		patience = mock_idle_timeout_ns;

	recover(0);
	rbp_remote_conns_close(RBP_POOL_BUFFER);
	rbp_guc_read_from = RBP_READ_AUTO;
	/* others have found that it takes 9.5 ms; the donor is as fast as can be */
	for (int i = 0; i < 100; i++)
		rbp_choice_connected(number, 95 * MS / 10);
	rbp_cost_add(0, RBP_NO_TRANSPORT, RBP_COST_PAGE, 1000, 1000 * MS);
	rbp_cost_add(0, number, RBP_COST_PAGE, 1000, 1000);

	c->lost = 0;
	is_u64((uint64_t) unworthy(0), 9, "the tenth page that takes 1 ms longer is worth 9.5 ms");
	ok(!is_ready(c), "nobody has connected by asking");
	ok(page_is_worth(0) && page_is_worth(1), "so is each behind it");
	ok(round_trip(0, 1, 0) && is_ready(c), "then the process connects");

	rbp_guc_connect_settings_version++;
	ok(page_is_worth(0) && round_trip(0, 1, 0), "what has become stale is replaced at once");
	mock_donors[0].life++;
	mock_now += SECOND;
	(void) read_once(RBP_CONNLOST);
	recover(0);
	ok(page_is_worth(0) && round_trip(0, 1, 0), "so is what was lost");

	mock_idle_timeout_ns = 60 * SECOND;
	(void) rbp_remote_maintain_connections();
	mock_now += 61 * SECOND;
	(void) rbp_remote_maintain_connections();
	rbp_remote_transaction_ends(XACT_EVENT_COMMIT);
	ok(!is_ready(c) && !page_is_worth(0), "what was closed for being idle has to be worth it once more");
	mock_idle_timeout_ns = patience;

	rbp_guc_read_from = RBP_READ_DONOR;
	ok(page_is_worth(0), "so are pages that are to come from donors");
	ok(round_trip(0, 1, 0), "which come");
	ok(page_is_worth(UINT32_MAX), "nobody is kept from what is not there");
}

/*
 * ---- downgrades ------------------------------------------------------------
 */

/* Of the first donor's link over the costly transport */
static RbpBreaker *
costly_breaker(void)
{
	return link_breaker(&rbp_remote_shared->donors[0], LINK_OF(RBP_TRANSPORT_VERBS));
}

/* How many handshakes in a row have timed out over it */
static uint32
doubts(void)
{
	return pg_atomic_read_u32(&costly_breaker()->penalty) / (RBP_PENALTY_LIMIT / 3);
}

/* A read and a write, after one that may only have found out; over which? */
static uint32
used_transport(void)
{
	(void) round_trip(0, 1, 0);
	if (!round_trip(0, 1, 0))
		return 0;
	return rbp_remote_conns[conn_index(RBP_POOL_BUFFER, 0)].ops->bit;
}

/* Connect anew, with nothing known about the costly transport. */
static void
connect_anew(RbpStatus costly_fails)
{
	mock_donors[0].costly_fails = costly_fails;
	rbp_guc_connect_settings_version++;
	(void) rbp_remote_maintain_connections();	/* forgets, too */
	rbp_link_forget(&rbp_remote_shared->donors[0]);
	recover(0);
}

/* What one process lacks, it alone does without, for some time. */
static void
test_local_downgrades(void)
{
	static const RbpStatus reasons[] = {RBP_NOMEM, RBP_NOROUTE, RBP_BUSY};
	RbpLocalConn *c = &rbp_remote_conns[conn_index(RBP_POOL_BUFFER, 0)];
	int64		delay = 30 * SECOND;

	connect_anew(RBP_OK);
	is_u64(used_transport(), RBP_TRANSPORT_VERBS, "a costly connection");
	ok(!is_downgraded(c), "which is the best there is");
	for (int i = 0; i < lengthof(reasons); i++)
	{
		connect_anew(reasons[i]);
		is_u64(used_transport(), RBP_TRANSPORT_TCP, "%s: another transport", rbp_status_text(reasons[i]));
		ok(breaker_state(costly_breaker()) == BREAKER_CLOSED && doubts() == 0,
		   "%s: for this process only", rbp_status_text(reasons[i]));
		ok(c->return_at >= mock_now + delay && c->return_at < mock_now + delay + 5 * SECOND,
		   "%s: for half a minute", rbp_status_text(reasons[i]));
		mock_donors[0].costly_fails = RBP_OK;
		mock_now = c->return_at - 1;
		is_u64(used_transport(), RBP_TRANSPORT_TCP, "%s: so long", rbp_status_text(reasons[i]));
		mock_now = c->return_at;
		is_u64(used_transport(), RBP_TRANSPORT_VERBS, "%s: and no longer", rbp_status_text(reasons[i]));
	}

	/* what fails again waits longer */
	connect_anew(RBP_NOMEM);
	is_u64(used_transport(), RBP_TRANSPORT_TCP, "it fails");
	mock_now = c->return_at;
	is_u64(used_transport(), RBP_TRANSPORT_TCP, "and again");
	ok(c->return_at >= mock_now + 2 * delay, "which takes twice as long");

	/* what is true for all is not this process's own affair */
	connect_anew(RBP_CONNLOST);
	is_u64(used_transport(), RBP_TRANSPORT_TCP, "nobody listens: another transport");
	ok(breaker_state(costly_breaker()) == BREAKER_OPEN, "for all");
	ok(!is_down(0), "and the donor has not failed");
	connect_anew(RBP_BAD_DEVICE);
	is_u64(used_transport(), RBP_TRANSPORT_TCP, "a device that is not to be used: another transport");
	ok(breaker_state(costly_breaker()) == BREAKER_OPEN, "for all");
	connect_anew(RBP_NOLIBRARY);
	is_u64(used_transport(), RBP_TRANSPORT_TCP, "no library for it: another transport");
	ok(breaker_state(costly_breaker()) == BREAKER_OPEN, "for all");
	connect_anew(RBP_INVALID);
	is_u64(used_transport(), RBP_TRANSPORT_TCP, "one that cannot be set up: another transport");
	ok(breaker_state(costly_breaker()) == BREAKER_OPEN, "for all");
}

/* Read every 20 ms until the connection that hangs is given up. */
static void
time_out(RbpLocalConn *c)
{
	(void) round_trip(0, 1, 0);
	for (int i = 0; i < 1000 && c->ops->costly; i++)
	{
		int64		from = mock_now;

		(void) round_trip(0, 1, 0);
		if (mock_now - from > 2 * mock_io_timeout_ns)
			mistakes++;			/* a query waits for more than it may */
		mock_now += 20 * MS;
	}
}

/* The pusher's rounds until its trials have ended. */
static void
do_trials(void)
{
	for (int i = 0; i < 2000; i++)
	{
		(void) rbp_remote_maintain_connections();
		mock_now += 20 * MS;
	}
}

/* Read now and then, for three seconds, over a connection that hangs. */
static void
read_in_vain(void)
{
	connect_anew(RBP_INPROGRESS);
	for (int i = 0; i < 8; i++)
	{
		(void) round_trip(0, 1, 0);
		mock_now += 400 * MS;
	}
}

/* A handshake that is left unfinished, for being idle too long, is a doubt. */
static void
test_unfinished_handshakes(void)
{
	int			connects;

	for (int stale = 0; stale < 2; stale++)
	{
		read_in_vain();
		mock_idle_timeout_ns = 60 * SECOND;
		mock_now += 61 * SECOND;
		(void) rbp_remote_maintain_connections();
		rbp_guc_connect_settings_version += stale;
		rbp_remote_transaction_ends(XACT_EVENT_COMMIT);
		mock_idle_timeout_ns = 0;
		is_u64(doubts(), !stale, "closed for being idle: %s",
			   stale ? "with other settings, it may work" : "the pusher is to try");
	}

	/*
	 * while the donor does not answer at all, that tells nothing of a
	 * transport
	 */
	connect_anew(RBP_INPROGRESS);
	time_out(&rbp_remote_conns[conn_index(RBP_POOL_BUFFER, 0)]);
	is_u64(doubts(), 1, "a handshake times out");
	(void) rbp_remote_maintain_connections();
	(void) rbp_breaker_suspect(donor_breaker(0));
	connects = mock_donors[0].connects;
	do_trials();
	is_u64(doubts(), 1, "a suspect donor: a trial that was begun does not count");
	is_u64((uint64) mock_donors[0].connects, (uint64) connects, "and none is begun");
	rbp_breaker_clear_suspicion(donor_breaker(0), mock_now + MS);
	do_trials();
	ok(breaker_state(costly_breaker()) == BREAKER_OPEN, "but when it answers: all do without");

	read_in_vain();
	(void) rbp_breaker_suspect(donor_breaker(0));
	mock_now += 15 * SECOND;
	(void) round_trip(0, 1, 0);
	is_u64(doubts(), 0, "a suspect donor: what is left unfinished does not count");
	recover(0);
}

/* Handshakes that time out: first one process does without, then all. */
static void
test_timed_out_handshakes(void)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[0];
	RbpLocalConn *c = &rbp_remote_conns[conn_index(RBP_POOL_BUFFER, 0)];
	uint32		upgrades;
	uint32		incarnation;

	connect_anew(RBP_TIMEOUT);
	is_u64(used_transport(), RBP_TRANSPORT_TCP, "the transport gives a handshake up: another transport");
	is_u64(doubts(), 1, "that is counted");
	ok(breaker_state(costly_breaker()) == BREAKER_SUSPECT && !is_down(0), "but nobody else does without");
	do_trials();
	ok(breaker_state(costly_breaker()) == BREAKER_OPEN, "two trials are given up, too: all do without");

	connect_anew(RBP_INPROGRESS);
	time_out(c);
	is_u64(used_transport(), RBP_TRANSPORT_TCP, "a handshake times out: another transport");
	is_u64(doubts(), 1, "it is counted");
	ok(breaker_state(costly_breaker()) == BREAKER_SUSPECT && !is_down(0) && mistakes == 0, "but nobody else does without");

	/* the pusher finds that it works */
	mock_donors[0].costly_fails = RBP_OK;
	do_trials();
	is_u64(doubts(), 0, "a trial succeeds: it was a matter of that process");
	ok(breaker_state(costly_breaker()) == BREAKER_CLOSED, "nobody does without");

	/* or cannot tell, for want of something, or of a device that is usable */
	for (int device = 0; device < 2; device++)
	{
		connect_anew(RBP_INPROGRESS);
		time_out(c);
		is_u64(doubts(), 1, "another one times out");
		mock_donors[0].costly_fails = RBP_NOMEM;
		d->endpoint.transports &= device ? ~RBP_TRANSPORT_VERBS : ~0;
		do_trials();
		ok(doubts() == 0 && breaker_state(costly_breaker()) == BREAKER_CLOSED, "a trial tells nothing: it is not repeated");
		d->endpoint.transports |= RBP_TRANSPORT_VERBS;
	}

	/* or that it does not */
	connect_anew(RBP_INPROGRESS);
	time_out(c);
	is_u64(used_transport(), RBP_TRANSPORT_TCP, "another one times out");
	do_trials();
	ok(breaker_state(costly_breaker()) == BREAKER_OPEN, "two trials do so, too: all do without");
	ok(ERROR_STATUS(pg_atomic_read_u32(&d->links[LINK_OF(RBP_TRANSPORT_VERBS)].error)) == RBP_TIMEOUT &&
	   ERROR_TRANSPORT(pg_atomic_read_u32(&d->links[LINK_OF(RBP_TRANSPORT_VERBS)].error)) == RBP_TRANSPORT_VERBS, "and the reason is known");

	/*
	 * a process that reads too rarely to see a timeout leaves it to the
	 * pusher
	 */
	connect_anew(RBP_INPROGRESS);
	for (int i = 0; i < 40; i++)
	{
		(void) round_trip(0, 1, 0);
		mock_now += 400 * MS;
	}
	ok(c->ops->costly, "a process reads now and then: it goes on trying");
	is_u64(doubts(), 1, "a handshake that came to no end counts");
	do_trials();
	ok(breaker_state(costly_breaker()) == BREAKER_OPEN, "two trials time out, too: all do without");
	(void) round_trip(0, 1, 0);
	mock_now += 15 * SECOND;
	is_u64(used_transport(), RBP_TRANSPORT_TCP, "it, too, as soon as it gives its own up");

	/* it is back */
	mock_donors[0].costly_fails = RBP_OK;
	upgrades = pg_atomic_read_u32(&d->upgrades);
	mock_now = (int64) pg_atomic_read_u64(&costly_breaker()->retry_at);
	(void) rbp_remote_maintain_connections();
	mock_now += 20 * MS;
	(void) rbp_remote_maintain_connections();
	ok(breaker_state(costly_breaker()) == BREAKER_CLOSED && pg_atomic_read_u32(&d->upgrades) > upgrades,
	   "a trial succeeds: all may return");
	incarnation = c->incarnation;
	(void) round_trip(0, 1, 0);
	ok(c->return_at >= mock_now && c->return_at < mock_now + 5 * SECOND && c->incarnation == incarnation,
	   "a downgraded connection does so within five seconds");
	mock_now = c->return_at;
	is_u64(used_transport(), RBP_TRANSPORT_VERBS, "at its moment");

	/* one that is not downgraded stays */
	incarnation = c->incarnation;
	pg_atomic_fetch_add_u32(&d->upgrades, 1);
	for (int i = 0; i < 10; i++)
	{
		ok(round_trip(0, 1, 0) && c->incarnation == incarnation, "another connection stays (%d)", i);
		mock_now += SECOND;
	}

	/* the processes' moments differ */
	{
		int64		moments[8];
		int			pid = MyProcPid;
		int			same = 0;

		for (int i = 0; i < lengthof(moments); i++)
		{
			connect_anew(RBP_NOMEM);
			(void) used_transport();
			MyProcPid = pid + i;
			pg_atomic_fetch_add_u32(&d->upgrades, 1);
			(void) rbp_link_may_return(c, mock_now);
			moments[i] = c->return_at - mock_now;
			for (int k = 0; k < i; k++)
				same += moments[k] / (100 * MS) == moments[i] / (100 * MS);
		}
		MyProcPid = pid;
		ok(same < 8, "processes return at different moments");
	}
}

static void
test_downgrades(void)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[0];

	mock_donors[0].costly = true;
	d->endpoint.transports = RBP_TRANSPORT_VERBS | RBP_TRANSPORT_TCP;
	test_local_downgrades();
	test_timed_out_handshakes();
	test_unfinished_handshakes();
	d->endpoint.transports = 0;
	mock_donors[0].costly = false;
	connect_anew(RBP_OK);
	ok(round_trip(0, 1, 0), "without costly connections");
	rbp_remote_transaction_ends(XACT_EVENT_COMMIT);
	is_u64((uint64) mock_external_fds, (uint64) count_open() + 2,
		   "the server knows of the connections' descriptors, and of a device's");
}

/*
 * What begin() could not post may have been sent all the same; what had no
 * connection was not.
 */
static void
test_failed_submits(void)
{
	static const RbpStatus reasons[] = {RBP_CONNLOST, RBP_NOMEM, RBP_CANCELED};
	RbpRemoteIo a[4];
	RbpRemoteBatch *batch;

	rbp_remote_clear_lease(RBP_POOL_TEMP);
	(void) take_lease(RBP_POOL_TEMP, 1, 0, 2, 1);
	for (int i = 0; i < lengthof(reasons); i++)
	{
		int			why = (int) reasons[i];
		int			violations = mock_violations;

		ok(round_trip(TEMP_SLOT(0), 2, 0) && round_trip(TEMP_SLOT(RBP_EXTENT_PAGES), 2, 0),
		   "two donors");
		mock_donors[0].breaks = reasons[i];
		run_of(a, TEMP_SLOT(0), 2, pages[0]);
		fill(pages[0][0], 1000 + i);
		ok(begin(a, 2, true, 0) == NULL, "a write that cannot be posted, status %d", why);
		ok(has_page(mock_memory(0, 1, 0, 0), RBP_POOL_TEMP, TEMP_SLOT(0), pages[0][0]), "it arrives");
		ok(a[0].status != RBP_OK && a[0].status != RBP_CANCELED &&
		   a[0].status != RBP_DENIED && a[1].status == a[0].status, "its status says that it may");
		recover(0);
		mock_donors[0].breaks = RBP_OK;
		ok(round_trip(TEMP_SLOT(0), 2, 0) && round_trip(TEMP_SLOT(RBP_EXTENT_PAGES), 2, 0),
		   "both go on");

		/* the same, beside one that can be posted */
		mock_donors[0].breaks = reasons[i];
		run_of(a, TEMP_SLOT(0), 2, pages[0]);
		run_of(a + 2, TEMP_SLOT(RBP_EXTENT_PAGES), 2, pages[0]);
		batch = begin(a, 4, true, 0);
		ok(batch != NULL, "one of two donors, status %d", why);
		if (batch != NULL)
			end(batch);
		ok(all_are(a + 2, 2, RBP_OK) && a[0].status != RBP_OK &&
		   a[0].status != RBP_CANCELED && a[0].status != RBP_DENIED,
		   "its pages may arrive, the other's have");
		recover(0);
		mock_donors[0].breaks = RBP_OK;
		is_u64(mock_violations, violations, "no violations");
	}

	/* One does not answer: the other has a little time of its own. */
	ok(round_trip(TEMP_SLOT(0), 2, 0) && round_trip(TEMP_SLOT(RBP_EXTENT_PAGES), 2, 0),
	   "two donors");
	mock_donors[0].hangs = true;
	mock_donors[1].answers_at = mock_now + mock_temp_io_timeout_ns + 2 * MS;
	run_of(a, TEMP_SLOT(0), 2, pages[0]);
	run_of(a + 2, TEMP_SLOT(RBP_EXTENT_PAGES), 2, pages[0]);
	batch = begin(a, 4, true, 0);
	end(batch);
	ok(all_are(a, 2, RBP_TIMEOUT) && all_are(a + 2, 2, RBP_OK),
	   "one donor hangs, the other one still takes its copy");
	recover(0);
	recover(1);

	ok(round_trip(TEMP_SLOT(0), 2, 0), "a connection");
	mock_donors[0].life++;
	mock_donors[0].refuses = true;
	run_of(a, TEMP_SLOT(0), 2, pages[0]);
	ok(begin(a, 2, true, 0) == NULL && all_are(a, 2, RBP_CONNLOST), "the connection is lost");
	mock_now += 60000 * MS;
	rbp_link_up(&rbp_remote_shared->donors[0], ANY_LINK);
	ok(begin(a, 2, true, 0) == NULL && all_are(a, 2, RBP_CANCELED) && is_down(0),
	   "no connection: a write was not sent");
	rbp_link_up(&rbp_remote_shared->donors[0], ANY_LINK);
	mock_now += 60000 * MS;
	ok(begin(a, 2, false, RBP_REMOTE_PATIENT) == NULL && all_are(a, 2, RBP_CONNLOST),
	   "a read is told why");
	recover(0);
	rbp_remote_clear_lease(RBP_POOL_TEMP);
}

/* The query is cancelled that much later; or not cancelled any more. */
static void
cancel_in(int64 ns)
{
	mock_cancel_at = mock_now + ns;
}

static void
not_cancelled(void)
{
	InterruptPending = QueryCancelPending = false;
	mock_cancel_at = INT64_MAX;
}

static void
test_interrupts(void)
{
	RbpRemoteIo a[2];
	RbpRemoteBatch *batch;
	uint64		timeouts = mock_counters[RBP_COUNT_TIMEOUTS];
	int64		from;
	int			n;

	/* A read that can come from the disk, also with interrupts held off. */
	ok(round_trip(0, 1, 0) && round_trip(TEMP_SLOT(0), 2, 0), "both pools are used");
	for (InterruptHoldoffCount = 0; InterruptHoldoffCount < 2; InterruptHoldoffCount++)
	{
		run_of(a, 0, 1, back[0]);
		mock_donors[0].hangs = true;
		from = mock_now;
		cancel_in(3 * MS);
		rbp_remote_transfer(a, 1, false, mock_now, mock_now + mock_io_timeout_ns);
		ok(a[0].status == RBP_TIMEOUT && mock_now == from + 3 * MS, "cancelled: a read is given up at once");
		not_cancelled();
		mock_donors[0].hangs = false;
		ok(round_trip(0, 1, 0), "and not held against the donor");
	}

	/* What is nowhere else: where cancelling can be raised. */
	InterruptHoldoffCount = 0;
	run_of(a, TEMP_SLOT(0), 2, back[0]);
	from = mock_now;
	batch = begin(a, 2, false, RBP_REMOTE_PATIENT);
	mock_donors[0].answers_at = from + 100 * MS;
	cancel_in(5 * MS);
	end(batch);
	ok(all_are(a, 2, RBP_TIMEOUT) && mock_now == from + 5 * MS, "the patient are cancelled, too");
	ok(!is_down(0), "nor does that tell against the donor");
	not_cancelled();
	mock_now = mock_donors[0].answers_at;
	ok(round_trip(TEMP_SLOT(0), 2, 0), "which is used as before");
	for (int held = 0; held < 3; held++)
	{
		InterruptHoldoffCount = held == 0;
		CritSectionCount = held == 1;
		QueryCancelHoldoffCount = held == 2;
		from = mock_now;
		batch = begin(a, 2, false, RBP_REMOTE_PATIENT);
		mock_donors[0].answers_at = from + 100 * MS;
		cancel_in(5 * MS);
		end(batch);
		/* since 18, the server raises it after the critical section of a read */
		if (held == 1 && RBP_CRITICAL_READS_REPORT_EINTR)
			ok(all_are(a, 2, RBP_TIMEOUT) && mock_now == from + 5 * MS, "where it is raised later, they are cancelled");
		else
			ok(all_are(a, 2, RBP_OK) && mock_now == from + 100 * MS, "where it cannot be raised, they wait");
		not_cancelled();
		mock_now = mock_donors[0].answers_at;
		ok(round_trip(TEMP_SLOT(0), 2, 0), "the donor is used as before");
	}
	InterruptHoldoffCount = CritSectionCount = QueryCancelHoldoffCount = 0;

	/* A write has somewhere else to go, but must not come late. */
	n = mock_donors[0].open;
	from = mock_now;
	batch = begin(a, 2, true, 0);
	mock_donors[0].answers_at = from + 100 * MS;
	cancel_in(2 * MS);
	end(batch);
	ok(all_are(a, 2, RBP_TIMEOUT) && mock_now == from + 2 * MS, "so is a write");
	is_u64(mock_donors[0].open, n - 1, "which ends its connection");
	not_cancelled();
	mock_now = mock_donors[0].answers_at;
	ok(round_trip(TEMP_SLOT(0), 2, 0), "the next one makes another");

	/* Connecting, and the lock that it needs. */
	rbp_guc_connect_settings_version++;
	mock_donors[0].mute = true;
	from = mock_now;
	cancel_in(50 * MS);
	ok(begin(a, 2, false, RBP_REMOTE_PATIENT) == NULL && mock_now == from + 50 * MS,
	   "so is a connection that does not come about");
	mock_donors[0].mute = false;
	rbp_guc_connect_settings_version++;
	mock_lock_taken = true;
	from = mock_now;
	ok(begin(a, 2, false, RBP_REMOTE_PATIENT) == NULL && mock_now - from < 50 * MS,
	   "or cannot be begun");
	mock_lock_taken = false;
	not_cancelled();
	ok(round_trip(TEMP_SLOT(0), 2, RBP_REMOTE_PATIENT), "well again");
	is_u64(mock_counters[RBP_COUNT_TIMEOUTS], timeouts, "nothing was counted as late");
}

static void
test_local(void)
{
	RbpRemoteIo a[1];
	RbpRemoteBatch *batch;

	(void) take_lease(RBP_POOL_TEMP, 1, 2, 1, 1);
	mock_donors[2].local = true;
	ok(!rbp_remote_slot_local(TEMP_SLOT(0)), "not local before there is a connection");
	ok(round_trip(TEMP_SLOT(0), 4, 0), "over a local transport");
	ok(rbp_remote_slot_local(TEMP_SLOT(0)), "now it is known to be");
	ok(!rbp_remote_slot_local(0), "another pool's slot is not");

	/* what is done at once needs no connection any more */
	run_of(a, TEMP_SLOT(0), 1, back[0]);
	batch = begin(a, 1, false, 0);
	rbp_guc_connect_settings_version++;
	ok(round_trip(TEMP_SLOT(8), 1, 0), "a new connection in between");
	end(batch);
	ok(a[0].status == RBP_OK, "the old one's request was done");
	mock_donors[2].local = false;
	rbp_remote_clear_lease(RBP_POOL_TEMP);
}

static int
count_draining(void)
{
	int			n = 0;

	for (int e = 0; e < EXTENTS; e++)
		n += is_online(e) && is_draining(e);
	return n;
}

static void
test_giving_back(void)
{
	RbpRegionGrant given[8];
	int			left = -1;
	int			n;
	int64		from;

	/* The buffer tier: the coldest, at once. */
	(void) take_lease(RBP_POOL_BUFFER, 2, 0, 2, 2);
	for (int e = 0; e < BUFFER_EXTENTS; e++)
		heat[e] = (uint64) (rbp_remote_slot_donor(RBP_EXTENT_SLOT(e)) == 0 ? 100 - e : 50 - e);
	n = retire_coldest(RBP_POOL_BUFFER, NULL, 1, given, 0, 0, &left);
	ok(n == 1 && left == 0 && strcmp(given[0].donor, "donor1") == 0, "the coldest region is given");
	n = retire_coldest(RBP_POOL_BUFFER, "donor0", 1, given, 0, 0, NULL);
	ok(n == 1 && strcmp(given[0].donor, "donor0") == 0, "or the coldest of a donor");
	n = retire_coldest(RBP_POOL_BUFFER, NULL, 5, given, 0, 0, NULL);
	is_u64(n, 2, "no more than there are");

	/* The temp quota: emptied first. */
	(void) take_lease(RBP_POOL_TEMP, 3, 0, 2, 2);
	for (int e = BUFFER_EXTENTS; e < EXTENTS; e++)
		used[e] = 40;
	for (int e = BUFFER_EXTENTS; e < EXTENTS; e++)
		if (rbp_remote_slot_donor(RBP_EXTENT_SLOT(e)) == 1)
			used[e] = 20;
	pages_each_time = 20;
	from = mock_now;
	n = retire_coldest(RBP_POOL_TEMP, NULL, 2, given, mock_now + 5 * MS, 0, &left);
	is_u64(n, 0, "no region is empty in so short a time");
	is_u64(left, 2, "two go on draining");
	ok(last_looks > 0 && open_looks == 0, "a region is closed before the last look at it");
	ok(rbp_remote_slot_stays(TEMP_SLOT(0)) && rbp_remote_slot_stays(TEMP_SLOT(RBP_EXTENT_PAGES)),
	   "and open again if it was not empty");
	is_u64(count_draining(), 4, "with their extents");
	ok(mock_now - from <= 20 * MS, "it has kept to its time, but for the last step");
	n = retire_coldest(RBP_POOL_TEMP, NULL, 2, given, mock_now + 1000 * MS, 0, &left);
	ok(n == 2 && left == 0 && strcmp(given[0].donor, "donor1") == 0 &&
	   strcmp(given[1].donor, "donor1") == 0, "the least used are given, when they are empty");
	ok(rbp_remote_usable(RBP_POOL_TEMP, mock_now) && rbp_remote_slot_donor(TEMP_SLOT(0)) == 0,
	   "the others stay");

	n = retire_coldest(RBP_POOL_TEMP, "donor0", 1, given, mock_now, 0, &left);
	ok(n == 0 && left == 1 && count_draining() == 2, "no time: one is marked");
	n = retire_coldest(RBP_POOL_TEMP, NULL, 0, given, mock_now, 0, &left);
	ok(n == 0 && left == 0 && count_draining() == 0, "wanted again after all");

	/* What drains already goes first, even if another is emptier now. */
	(void) retire_coldest(RBP_POOL_TEMP, NULL, 1, given, mock_now, 0, &left);
	for (int e = BUFFER_EXTENTS; e < EXTENTS; e++)
		if (is_online(e) && !is_draining(e))
			used[e] = 1;
	pages_each_time = 100;
	n = retire_coldest(RBP_POOL_TEMP, NULL, 1, given, mock_now + 1000 * MS, 0, &left);
	ok(n == 1 && count_draining() == 0, "what drains already goes first");
	ok(connections_of(0) == (mock_donors[0].open > 0), "connections are counted");

	/* A region that is lost while it drains is gone. */
	(void) retire_coldest(RBP_POOL_TEMP, NULL, 1, given, mock_now, 0, &left);
	is_u64(left, 1, "the last one drains");
	rbp_remote_clear_lease(RBP_POOL_TEMP);
	n = retire_coldest(RBP_POOL_TEMP, NULL, 1, given, mock_now, 0, &left);
	ok(n == 0 && left == 0, "lost while it drained");

	/* A region that is slow to empty does not keep others from it. */
	(void) take_lease(RBP_POOL_TEMP, 4, 0, 2, 2);
	for (int e = BUFFER_EXTENTS; e < EXTENTS; e++)
	{
		used[e] = 100;
		evacuated[e] = 0;
	}
	pages_each_time = 1;
	for (int i = 0; i < 2; i++)
		(void) retire_coldest(RBP_POOL_TEMP, NULL, 2, given, mock_now + 5 * MS, 0, &left);
	n = 0;
	for (int e = BUFFER_EXTENTS; e < EXTENTS; e++)
		n += evacuated[e] > 0;
	is_u64(n, 2, "regions are emptied by turns");
	for (int e = BUFFER_EXTENTS; e < EXTENTS; e++)
		used[e] = 0;
	rbp_remote_clear_lease(RBP_POOL_TEMP);
	for (int e = 0; e < EXTENTS; e++)
		mistakes += is_online(e);
	is_u64(mistakes, 0, "the pools' owners were told all in order");
}

static int	extents_read = 0;

/* As the tier does: what comes is moved. */
static uint32
extent_read(uint32 extent, int64 deadline_ns)
{
	RbpRemoteIo io = {.slot = RBP_EXTENT_SLOT(extent),.buf = back[0][0]};

	rbp_remote_transfer(&io, 1, false, mock_now, mock_now + 50 * MS);
	if (io.status == RBP_OK)
	{
		extents_read++;
		used[extent] = 0;
	}
	return (uint32) used[extent];
}

/* Content with copies: each donor gives its share, and nobody waits for long. */
static void
test_shrinking(void)
{
	RbpRegionGrant given[8];
	int			left;
	int			n;

	buffer_ops = temp_ops;
	rbp_remote_clear_lease(RBP_POOL_BUFFER);
	memset(used, 0, sizeof(used));
	memset(heat, 0, sizeof(heat));

	(void) take_lease(RBP_POOL_BUFFER, 2, 0, 2, 2);
	for (int e = 0; e < BUFFER_EXTENTS; e++)
	{
		used[e] = 50;
		/* all of donor 1 is colder than anything of donor 0 */
		heat[e] = rbp_remote_slot_donor(RBP_EXTENT_SLOT(e)) == 0 ? 100 : 10;
	}
	pages_each_time = 50;
	n = retire_coldest(RBP_POOL_BUFFER, NULL, 2, given, mock_now + 1000 * MS, 1000 * MS, &left);
	ok(n == 2 && left == 0 && strcmp(given[0].donor, given[1].donor) != 0,
	   "each donor gives up its share");

	/* what cannot be moved in time goes all the same */
	(void) take_lease(RBP_POOL_BUFFER, 2, 0, 2, 2);
	for (int e = 0; e < BUFFER_EXTENTS; e++)
		used[e] = 50;
	pages_each_time = 0;
	n = retire_coldest(RBP_POOL_BUFFER, "donor0", 1, given, mock_now + 50 * MS, 200 * MS, &left);
	ok(n == 0 && left == 1, "pages that do not move are waited for");
	mock_now += 200 * MS;
	n = retire_coldest(RBP_POOL_BUFFER, "donor0", 1, given, mock_now + 50 * MS, 200 * MS, &left);
	ok(n == 1 && left == 0, "but not for ever");

	/* nor longer than who asks for it in the meantime can wait */
	(void) take_lease(RBP_POOL_BUFFER, 2, 0, 2, 2);
	for (int e = 0; e < BUFFER_EXTENTS; e++)
		used[e] = 50;
	n = retire_coldest(RBP_POOL_BUFFER, "donor0", 1, given, mock_now + 50 * MS, 1000000 * MS, &left);
	n += retire_coldest(RBP_POOL_BUFFER, "donor0", 1, given, mock_now + 50 * MS, 200 * MS, &left);
	ok(n == 0 && left == 1, "a region that drains is to go sooner");
	mock_now += 200 * MS;
	n = retire_coldest(RBP_POOL_BUFFER, "donor0", 1, given, mock_now + 50 * MS, 1000000 * MS, &left);
	ok(n == 1 && left == 0, "and does");

	/* nor is a donor that is known not to answer */
	for (int i = 0; i < RBP_MAX_DONORS; i++)
		if (strcmp(rbp_remote_shared->donors[i].endpoint.donor, "donor1") == 0)
			rbp_remote_donor_down(&rbp_remote_shared->donors[i], false);
	n = retire_coldest(RBP_POOL_BUFFER, "donor1", 1, given, mock_now + 50 * MS, 1000000 * MS, &left);
	ok(n == 1 && left == 0, "a donor that is down is not waited for");
	for (int i = 0; i < RBP_MAX_DONORS; i++)
		rbp_link_up(&rbp_remote_shared->donors[i], ANY_LINK);

	/* what passes is no reason to give up */
	buffer_ops.evacuate = extent_read;
	(void) take_lease(RBP_POOL_BUFFER, 2, 0, 1, 2);
	for (int e = 0; e < BUFFER_EXTENTS; e++)
		used[e] = 50;
	recover(0);
	mock_donors[0].answers_at = mock_now + 60 * MS;
	n = retire_coldest(RBP_POOL_BUFFER, NULL, 1, given, mock_now + 200 * MS, 1000 * MS, &left);
	ok(n == 0 && left == 1, "a donor that was late may be in time again");
	is_u64(mock_donors[0].open, 1, "there is a connection");
	(void) retire_coldest(RBP_POOL_BUFFER, NULL, 0, given, mock_now, 0, &left);
	is_u64(mock_donors[0].open, 0, "which is closed when nothing is to go any more");
	mock_now += 10 * MS;
	for (int i = 0; i < RBP_MAX_DONORS; i++)
		rbp_breaker_clear_suspicion(donor_breaker(i), mock_now);
	n = retire_coldest(RBP_POOL_BUFFER, NULL, 1, given, mock_now + 200 * MS, 1000 * MS, &left);
	ok(n == 1 && left == 0 && extents_read == 2, "its pages are moved then");

	pg_atomic_write_u32(&rbp_remote_shared->max_slots, 0);
	n = retire_coldest(RBP_POOL_BUFFER, NULL, 1, given, mock_now + 200 * MS, 1000 * MS, &left);
	ok(n == 0 && left == 1, "so may others' connections");
	mock_now += 1000 * MS;
	rbp_remote_set_worker();
	n = retire_coldest(RBP_POOL_BUFFER, NULL, 1, given, mock_now + 200 * MS, 1000 * MS, &left);
	ok(n == 1 && left == 0 && extents_read == 4, "but the lease worker needs no slot");
	pg_atomic_write_u32(&rbp_remote_shared->max_slots, (uint32) rbp_guc_max_connections);

	(void) take_lease(RBP_POOL_BUFFER, 2, 0, 1, 2);
	ok(round_trip(0, 1, 0) && mock_donors[0].open == 1, "there is a connection again");
	rbp_remote_clear_lease(RBP_POOL_BUFFER);
	is_u64(mock_donors[0].open, 0, "which is closed when the lease ends");

	/* that one pool gets nowhere does not upset the other's turns */
	buffer_ops.evacuate = extent_evacuate;
	(void) take_lease(RBP_POOL_BUFFER, 2, 0, 1, 2);
	(void) take_lease(RBP_POOL_TEMP, 3, 0, 2, 2);
	n = 0;
	for (int first = 0; first < 2; first++)
	{
		for (int e = 0; e < EXTENTS; e++)
		{
			used[e] = 100;
			evacuated[e] = 0;
		}
		/* whosever turn it is at first */
		(void) retire_coldest(RBP_POOL_TEMP, NULL, 2, given, mock_now, 0, &left);
		for (int i = 0; i < 4; i++)
		{
			pages_each_time = 0;
			(void) retire_coldest(RBP_POOL_BUFFER, NULL, 1, given, mock_now + 5 * MS, 10000 * MS, &left);
			pages_each_time = 1;
			(void) retire_coldest(RBP_POOL_TEMP, NULL, 2, given, mock_now + 5 * MS, 0, &left);
		}
		for (int e = BUFFER_EXTENTS; e < EXTENTS; e++)
			n += evacuated[e] > 0;
	}
	is_u64(n, 4, "each pool has its own turns");
	memset(used, 0, sizeof(used));
	rbp_remote_clear_lease(RBP_POOL_BUFFER);
	rbp_remote_clear_lease(RBP_POOL_TEMP);
	is_u64(mistakes, 0, "the pools' owners were told all in order");
}

static void
test_exit(void)
{
	RbpRemoteIo a[4];
	RbpRemoteIo b[4];
	RbpRemoteBatch *first;
	RbpRemoteBatch *second;

	(void) take_lease(RBP_POOL_TEMP, 1, 0, 2, 1);
	run_of(a, TEMP_SLOT(0), 4, back[0]);
	run_of(b, TEMP_SLOT(RBP_EXTENT_PAGES), 4, back[1]);
	first = begin(a, 4, false, 0);
	second = begin(b, 4, false, 0);
	mock_donors[0].hangs = true;
	mock_exit();
	is_u64(mock_donors[0].open + mock_donors[1].open + mock_donors[2].open, 0,
		   "the process ends: no connections are left");
	end(first);
	end(second);
	ok(all_are(a, 4, RBP_CONNLOST), "what was on its way is lost");
	ok(all_are(b, 4, RBP_OK), "unless it had come");
	ok(begin(a, 4, false, RBP_REMOTE_PATIENT) == NULL, "nothing is begun any more");
	ok(connections_of(0) == 0 && connections_of(1) == 0, "no slot is taken");
}

static void
says(const char *text, const char *expected, const char *name)
{
	if (!ok(strcmp(text, expected) == 0, "%s", name))
		diag("%s", text);
}

/* What the views say of the donor of that number. */
static RbpDonorInfo
info_of(int donor)
{
	int			n;
	RbpDonorInfo *infos = rbp_remote_donor_info(&n);
	RbpDonorInfo info = {0};

	for (int i = 0; i < n; i++)
		if (strcmp(infos[i].endpoint.donor, mock_donors[donor].id) == 0)
			info = infos[i];
	pfree(infos);
	return info;
}

/* How many messages there are since the last call, when the pusher has looked. */
static int
messages(void)
{
	static int	before = 0;
	int			n;

	rbp_remote_report();
	n = mock_messages - before;
	before = mock_messages;
	return n;
}

static void
test_messages(void)
{
	RbpRemoteDonor *d = &rbp_remote_shared->donors[0];

	mock_now += 60000 * MS;
	(void) messages();
	is_u64(messages(), 0, "there is nothing to tell");
	rbp_remote_note_error(d, DONOR_ERROR_REQUEST, RBP_TRANSPORT_TCP, RBP_TIMEOUT);
	rbp_remote_donor_down(d, false);
	is_u64(messages(), 1, "a donor is down");
	is_u64(messages(), 0, "which is told once");
	mock_now += 100 * MS;
	rbp_link_up(d, ANY_LINK);
	is_u64(messages(), 1, "it is used again");
	for (int i = 0; i < 10; i++)
	{
		mock_now += 100 * MS;
		rbp_remote_donor_down(d, false);
		is_u64(messages(), 0, "the same is not told again so soon");
		mock_now += 100 * MS;
		rbp_link_up(d, ANY_LINK);
		is_u64(messages(), 0, "nor that it is over");
	}
	mock_now += 5000 * MS;
	rbp_remote_note_error(d, DONOR_ERROR_REQUEST, RBP_TRANSPORT_TCP, RBP_CONNLOST);
	rbp_remote_donor_down(d, true);
	is_u64(messages(), 1, "another reason is");
	recover(0);
	is_u64(messages(), 1, "used again");
	rbp_remote_donor_down(d, true);
	is_u64(messages(), 1, "and the same after a minute");
	recover(0);
	is_u64(messages(), 1, "used again");

	rbp_remote_note_error(d, DONOR_ERROR_CONNECT, RBP_TRANSPORT_VERBS, RBP_NOMEM);
	is_u64(messages(), 0, "a shortage may pass");
	mock_now += 6000 * MS;
	rbp_remote_note_error(d, DONOR_ERROR_CONNECT, RBP_TRANSPORT_VERBS, RBP_NOMEM);
	is_u64(messages(), 1, "when it lasts it is told");
	mock_now += 6000 * MS;
	rbp_remote_note_error(d, DONOR_ERROR_CONNECT, RBP_TRANSPORT_VERBS, RBP_NOMEM);
	is_u64(messages(), 0, "once a minute");
	mock_now += 60000 * MS;
	rbp_remote_note_error(d, DONOR_ERROR_CONNECT, RBP_TRANSPORT_TCP, RBP_BUSY);
	is_u64(messages(), 0, "a donor may be full for a moment");
	mock_now += 6000 * MS;
	rbp_remote_note_error(d, DONOR_ERROR_CONNECT, RBP_TRANSPORT_TCP, RBP_BUSY);
	is_u64(messages(), 1, "when that lasts it is told, too");
	mock_now += 60000 * MS;

	pg_atomic_fetch_add_u32(&d->over_limit, 3);
	is_u64(messages(), 1, "three got no connection");
	pg_atomic_fetch_add_u32(&d->over_limit, 3);
	is_u64(messages(), 0, "that is told");
	mock_now += 60000 * MS;
	is_u64(messages(), 1, "three more, in the next minute");
}

static void
test_report(void)
{
	RbpRemoteIo a[1];
	RbpDonorInfo info;
	RbpEndpoint elsewhere = {0};
	char		why[RBP_ERROR_LEN];

	(void) take_lease(RBP_POOL_BUFFER, 0, 0, 1, 1);
	recover(0);
	run_of(a, 0, 1, back[0]);
	ok(round_trip(0, 1, 0), "a donor is used");
	info = info_of(0);
	says(info.state, "ok", "a donor is well");

	/* Nobody has tried to connect. */
	mock_now += 60000 * MS;
	mock_donors[0].no_way = true;
	rbp_guc_connect_settings_version++;
	rbp_remote_maintain_connections();
	info = info_of(0);
	says(info.state, "down", "no transport leads there: it is down");
	is_u64(info.state_since, mock_now / 1000, "since now");
	says(info.last_error, "it offers no transport that this server can use", "the reason");
	is_u64(info.last_error_at, mock_now / 1000, "which is new");
	rbp_remote_transfer(a, 1, false, mock_now, mock_now + mock_io_timeout_ns);
	ok(all_are(a, 1, RBP_CANCELED), "it is not read from");
	ok(rbp_remote_unusable_reason(RBP_POOL_BUFFER, why, sizeof(why)) &&
	   strstr(why, info.last_error) != NULL, "the pool is not usable, for that reason");
	rbp_guc_transport = "tcp";
	rbp_guc_connect_settings_version++;
	rbp_remote_maintain_connections();
	says(info_of(0).last_error, "it does not offer tcp, and remote_bp.transport is that",
		 "by another setting, another reason");
	rbp_guc_transport = "shm";
	elsewhere.transports = RBP_TRANSPORT_SHM;
	rbp_remote_note_unreachable(&rbp_remote_shared->donors[0], &elsewhere);
	says(info_of(0).last_error, "it cannot be reached over shm from this host, and remote_bp.transport is that",
		 "which is one more if it is offered");
	rbp_guc_transport = "auto";
	mock_donors[0].no_way = false;
	rbp_guc_connect_settings_version++;
	rbp_remote_maintain_connections();
	(void) rbp_remote_probe();
	info = info_of(0);
	says(info.state, "ok", "there is a way again");
	ok(info.last_error[0] != '\0', "the error is not forgotten");
	ok(!rbp_remote_unusable_reason(RBP_POOL_BUFFER, why, sizeof(why)), "nothing is said against the pool");

	/* One whose connection is refused. */
	mock_donors[0].refuses = true;
	mock_donors[0].life++;
	rbp_remote_transfer(a, 1, false, mock_now, mock_now + mock_io_timeout_ns);
	says(info_of(0).state, "down", "a donor that has broken a connection");
	says(info_of(0).last_error, "a request over tcp failed: status", "the reason");
	mock_now += 10000 * MS;
	(void) rbp_remote_probe();
	says(info_of(0).last_error,
		 "could not connect over tcp: refused, closed or unreachable", "and then it refuses");
	recover(0);

	test_messages();
	rbp_remote_set_broker_error(RBP_POOL_BUFFER, "trouble");
	ok(!rbp_remote_unusable_reason(RBP_POOL_BUFFER, why, sizeof(why)), "a lease lasts, whatever the broker says");
	(void) rbp_remote_extend_lease(RBP_POOL_BUFFER, mock_now);
	ok(rbp_remote_unusable_reason(RBP_POOL_BUFFER, why, sizeof(why)), "until it ends");
	says(why, "no lease: broker \"http://broker\", since some time: trouble", "the reason");
	rbp_remote_set_broker_error(RBP_POOL_BUFFER, NULL);
	(void) rbp_remote_extend_lease(RBP_POOL_BUFFER, mock_now + 3600000 * MS);
}

/* A lease that takes the place of a large one does not wait for its pages. */
static void
test_no_vacant_place(void)
{
	none_vacant = true;
	is_u64(take_lease(RBP_POOL_BUFFER, 2, 0, 2, 2), 0, "regions find places that others have left");
	ok(round_trip(0, 1, 0), "and are used");
	none_vacant = false;
	is_u64(take_lease(RBP_POOL_BUFFER, 3, 0, 2, 2), 0, "as they do where nothing is counted");
	ok(round_trip(0, 1, 0), "and are used then");
	is_u64(mistakes, 0, "no mistakes");
}

/* One that comes while the one before is still being given its memory. */
static void
test_many_extents(void)
{
	RbpPoolLease *lease = &rbp_remote_shared->leases[RBP_POOL_BUFFER];

	(void) take_lease(RBP_POOL_BUFFER, 2, 0, 2, 2);
	/* as after BRING_EXTENTS, of a pool that has as many */
	lease->online_pending = true;
	lease->search_from = lease->extents.first + lease->extents.n;
	is_u64(take_lease(RBP_POOL_BUFFER, 3, 0, 2, 2), 0, "extents that were given before are found");
	ok(round_trip(0, 1, 0), "and are used");
	is_u64(mistakes, 0, "no mistakes");
}

static int
online_extents(void)
{
	int			n = 0;

	for (int e = 0; e < BUFFER_EXTENTS; e++)
		n += is_online(e);
	return n;
}

/* There are more extents than may be in use, until regions are to be replaced. */
static void
test_room(void)
{
	rbp_remote_set_room(RBP_POOL_BUFFER, 2 * (MOCK_REGION_BYTES / 2));
	is_u64(take_lease(RBP_POOL_BUFFER, 8, 0, 3, 1), 1, "two of three regions have room for an extent");
	is_u64(online_extents(), 2, "of the eight that there are");
	rbp_remote_set_room(RBP_POOL_BUFFER, 5 * (MOCK_REGION_BYTES / 2));
	is_u64(take_lease(RBP_POOL_BUFFER, 8, 0, 3, 1), 0, "all have where there is more room");
	is_u64(online_extents(), 5, "but not all that they could");
	rbp_remote_set_room(RBP_POOL_BUFFER, 2 * (MOCK_REGION_BYTES / 2));
	is_u64(take_lease(RBP_POOL_BUFFER, 8, 0, 3, 1), 0, "what is in use stays when there is less");
	is_u64(online_extents(), 5, "all of it");
	rbp_remote_set_room(RBP_POOL_BUFFER, PG_UINT64_MAX);
	is_u64(take_lease(RBP_POOL_BUFFER, 8, 0, 3, 1), 0, "and more where there is no limit");
	is_u64(online_extents(), 6, "as many as there are regions for");
	is_u64(mistakes, 0, "no mistakes");
}

/* What is closed is absent as soon as it is forgotten. */
static bool
forget(void)
{
	bool		any = false;

	for (int e = 0; e < BUFFER_EXTENTS; e++)
	{
		any |= not_absent[e];
		not_absent[e] = false;
	}
	drop_closed();
	return any;
}

/* Regions wait for extents that are being forgotten, but not for ever. */
static void
test_promised_extents(void)
{
	RbpExtents *x = &rbp_remote_shared->leases[RBP_POOL_BUFFER].extents;

	buffer_ops = plain_ops;
	for (int e = 5; e < BUFFER_EXTENTS; e++)
	{
		/* has had pages, whatever it was */
		rbp_extent_bring_online(x, e, 0, RBP_EXTENT_TOUCHED);
		x->states[e] = RBP_EXTENT_TOUCHED;
		rbp_extent_close(x, e);
		not_absent[e] = true;
	}
	is_u64(take_lease(RBP_POOL_BUFFER, 4, 0, 3, 2), 0, "five regions have extents, one will");
	ok(forget(), "others are to have these, too");
	is_u64(rbp_remote_extend_lease(RBP_POOL_BUFFER, mock_now + 3600000 * MS), 1,
		   "a renewal tells that it has got none");
	is_u64(mistakes, 0, "no mistakes");
}

/* A lease worker that is started anew finds how the one before asked its broker. */
static void
test_broker(void)
{
	RbpBrokerAccess access = {.urls = "http://b",.token_file = "f",.token = "t"};
	RbpBrokerAccess found;

	rbp_remote_clear_lease(RBP_POOL_TEMP);
	ok(!rbp_remote_get_broker(RBP_POOL_TEMP, &found), "without a lease there is no broker");
	rbp_remote_set_broker(RBP_POOL_TEMP, &access);
	(void) take_lease(RBP_POOL_TEMP, 1, 0, 1, 1);
	ok(rbp_remote_get_broker(RBP_POOL_TEMP, &found) &&
	   memcmp(&found, &access, sizeof(found)) == 0, "it is kept with the lease");
	strlcpy(access.token, "another", sizeof(access.token));
	rbp_remote_set_broker(RBP_POOL_TEMP, &access);
	ok(rbp_remote_get_broker(RBP_POOL_TEMP, &found) &&
	   strcmp(found.token, "another") == 0, "as is another token");
	rbp_remote_clear_lease(RBP_POOL_TEMP);
	(void) take_lease(RBP_POOL_TEMP, 1, 0, 1, 1);
	ok(!rbp_remote_get_broker(RBP_POOL_TEMP, &found), "and goes with it");
	rbp_remote_clear_lease(RBP_POOL_TEMP);
}

/* How often the background was woken since the last call. */
static int
woken(void)
{
	int			n = mock_wakes[RBP_WORKER_PUSHER];

	mock_wakes[RBP_WORKER_PUSHER] = 0;
	return n;
}

/* What the background has to do for a lease is not left until it looks by itself. */
static void
test_wake(void)
{
	(void) woken();
	(void) take_lease(RBP_POOL_TEMP, 1, 0, 1, 1);
	is_u64(woken(), 1, "it is woken for a lease");
	(void) take_lease(RBP_POOL_TEMP, 2, 0, 1, 1);
	is_u64(woken(), 1, "for another one");
	(void) take_lease(RBP_POOL_TEMP, 2, 0, 2, 1);
	is_u64(woken(), 1, "for another donor");
	(void) rbp_remote_extend_lease(RBP_POOL_TEMP, mock_now + 3600000 * MS);
	is_u64(woken(), 0, "not for a renewal");
	rbp_remote_clear_lease(RBP_POOL_TEMP);
	is_u64(woken(), 1, "and for a lease's end");
}

/* A connection has proved the right to one lease, and serves no other. */
static void
test_another_lease(void)
{
	int			connects;

	(void) take_lease(RBP_POOL_TEMP, 1, 0, 1, 1);
	recover(0);
	ok(round_trip(TEMP_SLOT(0), 2, RBP_REMOTE_PATIENT), "a lease is used");
	connects = mock_donors[0].connects;
	(void) take_lease(RBP_POOL_TEMP, 1, 0, 1, 1);
	ok(round_trip(TEMP_SLOT(0), 2, RBP_REMOTE_PATIENT) &&
	   mock_donors[0].connects == connects, "granted again: over the same connection");
	(void) take_lease(RBP_POOL_TEMP, 2, 0, 1, 1);
	ok(round_trip(TEMP_SLOT(0), 2, RBP_REMOTE_PATIENT), "so is another one");
	is_u64(mock_donors[0].connects, (uint64) connects + 1, "over a connection of its own");
	rbp_remote_clear_lease(RBP_POOL_TEMP);
}

/* A region that has not got all has the rest when others go. */
static void
test_partial_region(void)
{
	RbpRegionGrant given[1];
	int			n = 0;

	is_u64(take_lease(RBP_POOL_BUFFER, 1, 0, 3, 2), 0, "six regions share the extents of four");
	is_u64(retire_coldest(RBP_POOL_BUFFER, NULL, 1, given, 0, 0, NULL), 1, "one goes");
	is_u64(rbp_remote_extend_lease(RBP_POOL_BUFFER, mock_now + 3600000 * MS), 0, "a renewal");
	for (int e = 0; e < BUFFER_EXTENTS; e++)
		n += is_online(e);
	is_u64(n, BUFFER_EXTENTS, "others have its extents");
	is_u64(mistakes, 0, "no mistakes");
}

/*
 * ---- a pool that is gone through in steps --------------------------------------
 */

#define VAST_REGIONS		5
#define VAST_SMALL			64
#define VAST_LARGE			0xffff
#define VAST_EXTENTS		(VAST_SMALL + (VAST_REGIONS - 1) * VAST_LARGE)

static uint64
nothing_used(uint32 region, uint64 *in_use)
{
	*in_use = 0;
	return 0;
}

static uint32
drop_all(uint32 *extents, uint32 n)
{
	return n;
}

static const RbpRemotePoolOps vast_ops = {
	.heat = nothing_used,
	.drop = drop_all,
};

/* The pool is given a lease that fills it, and all the time that it takes. */
static int
take_vast_lease(const RbpRegionGrant *grants)
{
	RbpCredentials cred = mock_credentials(0);
	RbpEndpoint endpoint = mock_endpoint(0);
	int			sum;
	int			unused;

	sum = set_lease(RBP_POOL_BUFFER, &cred, mock_now + 3600000 * MS,
					&endpoint, 1, grants, VAST_REGIONS);
	(void) rbp_remote_run_deferred(RBP_POOL_BUFFER, INT64_MAX, &unused);
	return sum + unused +
		rbp_remote_extend_lease(RBP_POOL_BUFFER, mock_now + 3600000 * MS);
}

static int
vast_extents_online(void)
{
	int			n = 0;

	for (int e = 0; e < VAST_EXTENTS; e++)
		n += rbp_extent_open(rbp_remote_extents(RBP_POOL_BUFFER), e);
	return n;
}

/* A region takes the place of another, whose extents are passed before they are free. */
static void
test_vast_pool(void)
{
	const uint32 extents[RBP_POOLS] = {VAST_EXTENTS, TEMP_EXTENTS};
	const RbpRemotePoolOps *const ops[RBP_POOLS] = {&vast_ops, &temp_ops};
	RbpRegionGrant grants[VAST_REGIONS] = {0};
	RbpRemoteShared *before = rbp_remote_shared;

	rbp_remote_shmem_open(aligned_alloc(4096, TYPEALIGN(4096, rbp_remote_shmem_size(extents))), false,
						  extents, ops);
	for (int r = 0; r < VAST_REGIONS; r++)
	{
		strlcpy(grants[r].donor, mock_donors[0].id, sizeof(grants[r].donor));
		grants[r].region = (uint32) r;
		grants[r].bytes = (r == 0 ? VAST_SMALL : VAST_LARGE) * RBP_EXTENT_BYTES;
	}
	is_u64(take_vast_lease(grants), 0, "a large lease finds room");
	is_u64(vast_extents_online(), VAST_EXTENTS, "which is all there is");
	/* all have had pages */
	memset(rbp_remote_extents(RBP_POOL_BUFFER)->states, RBP_EXTENT_TOUCHED, VAST_EXTENTS);
	grants[0].region = VAST_REGIONS;
	is_u64(take_vast_lease(grants), 0, "so does a region that takes another one's place");
	is_u64(vast_extents_online(), VAST_EXTENTS, "and has its extents");
	is_u64(mistakes, 0, "no mistakes");
	free(rbp_remote_shared);
	rbp_remote_shared = before;
}

static uint64
not_to_be_asked(uint32 region, uint64 *in_use)
{
	mistakes++;
	return *in_use = 0;
}

/* A pool without extents has no shared memory: nobody asks it for anything. */
static void
test_pool_without_extents(void)
{
	const uint32 extents[RBP_POOLS] = {VAST_EXTENTS, 0};
	RbpRemotePoolOps none = {.heat = not_to_be_asked};
	const RbpRemotePoolOps *const ops[RBP_POOLS] = {&vast_ops, &none};
	RbpRegionGrant grant = {.bytes = RBP_EXTENT_BYTES};
	RbpCredentials cred = mock_credentials(0);
	RbpEndpoint endpoint = mock_endpoint(0);
	RbpRemoteShared *before = rbp_remote_shared;

	rbp_remote_shmem_open(aligned_alloc(4096, TYPEALIGN(4096, rbp_remote_shmem_size(extents))), false,
						  extents, ops);
	strlcpy(grant.donor, mock_donors[0].id, sizeof(grant.donor));
	is_u64(set_lease(RBP_POOL_BUFFER, &cred, mock_now + 3600000 * MS, &endpoint, 1, &grant, 1), 0,
		   "a region beside a pool without extents");
	is_u64(vast_extents_online(), 1, "it has its extent");
	is_u64(set_lease(RBP_POOL_TEMP, &cred, mock_now + 3600000 * MS, &endpoint, 1, NULL, 0), 0,
		   "a lease without regions for that pool");
	is_u64(mistakes, 0, "no mistakes: that pool is not asked");
	free(rbp_remote_shared);
	rbp_remote_shared = before;
}

/* In a full table, donors take the places of those that have left. */
static void
test_many_donors(void)
{
	const uint32 extents[RBP_POOLS] = {BUFFER_EXTENTS, TEMP_EXTENTS};
	const RbpRemotePoolOps *const ops[RBP_POOLS] = {&plain_ops, &temp_ops};
	RbpCredentials cred = mock_credentials(0);
	RbpRemoteShared *before = rbp_remote_shared;

	rbp_remote_shmem_open(aligned_alloc(4096, TYPEALIGN(4096, rbp_remote_shmem_size(extents))), false,
						  extents, ops);
	for (int round = 0; round < 2; round++)
	{
		RbpEndpoint endpoints[RBP_MAX_DONORS] = {0};
		RbpDonorInfo *infos;
		int			n;
		int			right = 0;

		mock_now += 1000 * MS;
		for (int i = 0; i < RBP_MAX_DONORS; i++)
			snprintf(endpoints[i].donor, sizeof(endpoints[i].donor), "%d of %d", i, round);
		(void) set_lease(RBP_POOL_BUFFER, &cred, mock_now + 3600000 * MS, endpoints,
						 RBP_MAX_DONORS, NULL, 0);
		infos = rbp_remote_donor_info(&n);
		for (int i = 0; i < n; i++)
			right += infos[i].state_since == mock_now / 1000 && strcmp(infos[i].state, "ok") == 0;
		is_u64((uint64) right, RBP_MAX_DONORS, "all donors are new since now (%d)", round);
		pfree(infos);
	}
	free(rbp_remote_shared);
	rbp_remote_shared = before;
}

#define MANY_REGIONS		200

static uint32
stays(uint32 extent, int64 deadline_ns)
{
	return 1;
}

static uint64
one_used(uint32 extent)
{
	return 1;
}

/* All that are asked for at once have the same time, however many there are. */
static void
test_many_regions(void)
{
	static RbpRemotePoolOps many_ops;
	const uint32 extents[RBP_POOLS] = {MANY_REGIONS, TEMP_EXTENTS};
	const RbpRemotePoolOps *const ops[RBP_POOLS] = {&many_ops, &temp_ops};
	RbpCredentials cred = mock_credentials(0);
	RbpEndpoint endpoints[2] = {mock_endpoint(0), mock_endpoint(1)};
	RbpRegionGrant grants[MANY_REGIONS] = {0};
	RbpRegionGrant given[MANY_REGIONS];
	RbpRemoteShared *before = rbp_remote_shared;
	int			of_first = 0;
	int			left;
	int			n;

	many_ops = vast_ops;
	many_ops.evacuate = stays;
	many_ops.count = one_used;
	rbp_remote_shmem_open(aligned_alloc(4096, TYPEALIGN(4096, rbp_remote_shmem_size(extents))), false,
						  extents, ops);
	for (int r = 0; r < MANY_REGIONS; r++)
	{
		strlcpy(grants[r].donor, mock_donors[r % 2].id, sizeof(grants[r].donor));
		grants[r].region = (uint32) r;
		grants[r].bytes = RBP_EXTENT_BYTES;
	}
	is_u64(set_lease(RBP_POOL_BUFFER, &cred, mock_now + 3600000 * MS,
					 endpoints, 2, grants, MANY_REGIONS), 0, "many regions");
	n = retire_coldest(RBP_POOL_BUFFER, NULL, 100, given, mock_now + 50 * MS, 1000 * MS, &left);
	ok(n == 0 && left == 100, "half of them are to go");
	mock_now += 1000 * MS;
	n = retire_coldest(RBP_POOL_BUFFER, NULL, 100, given, mock_now + 50 * MS, 500 * MS, &left);
	ok(n == 100 && left == 0, "when their time is over all go");
	for (int i = 0; i < n; i++)
		of_first += strcmp(given[i].donor, mock_donors[0].id) == 0;
	is_u64(of_first, 50, "half of each donor's");
	is_u64(mistakes, 0, "no mistakes");
	free(rbp_remote_shared);
	rbp_remote_shared = before;
}

/* What is left when shared memory was made anew after the crash of a backend. */
static void
test_crash(void)
{
	const uint32 extents[RBP_POOLS] = {BUFFER_EXTENTS, TEMP_EXTENTS};
	const RbpRemotePoolOps *const ops[RBP_POOLS] = {&plain_ops, &temp_ops};
	RbpRemoteShared *before = rbp_remote_shared;
	RbpRemoteShared *sh;
	RbpExtents *x;
	RbpExtents	right;
	RbpCredentials cred;
	uint32		map[EXTENTS];
	int64		deadline;
	bool		same = true;
	uint32		nfree;
	int			nbuffer = 0;
	int			ntemp = 0;

	rbp_remote_shmem_open(aligned_alloc(4096, TYPEALIGN(4096, rbp_remote_shmem_size(extents))), false,
						  extents, ops);
	sh = rbp_remote_shared;
	x = &sh->leases[RBP_POOL_BUFFER].extents;
	(void) take_lease(RBP_POOL_BUFFER, 1, 0, 2, 1);
	(void) take_lease(RBP_POOL_TEMP, 2, 1, 2, 1);
	rbp_extent_drain(x, 0);
	x->states[1] = RBP_EXTENT_TOUCHED;
	rbp_extent_close(x, 1);
	x->states[2] = RBP_EXTENT_ONLINE + 3;
	right = *x;
	nfree = sh->leases[RBP_POOL_BUFFER].nfree;
	memcpy(map, sh->map, sizeof(map));

	/* a process was killed before it had counted */
	x->open = x->draining = x->closed = 17;
	/* pointers and locks are of before */
	x->states = NULL;
	memset(&sh->remote_lock, 0xff, sizeof(sh->remote_lock));
	pg_atomic_write_u32(&sh->donors[0].conn_slots, 3);
	rbp_remote_shmem_open(sh, true, extents, ops);

	ok(rbp_remote_get_lease(RBP_POOL_BUFFER, &cred, &deadline) &&
	   strcmp(cred.lease, mock_credentials(1).lease) == 0 && deadline == mock_now + 3600000 * MS,
	   "the lease of the buffer tier is kept");
	ok(rbp_remote_usable(RBP_POOL_BUFFER, mock_now), "it is usable until its deadline");
	ok(x->open == right.open && x->draining == right.draining && x->closed == right.closed &&
	   x->top == right.top, "its extents are counted");
	ok(rbp_extent_state(x, 0) == RBP_EXTENT_DRAINING && rbp_extent_state(x, 1) == RBP_EXTENT_CLOSED,
	   "their states are kept");
	is_u64(rbp_extent_state(x, 2), RBP_EXTENT_TOUCHED, "nobody knows which slots are fresh");
	for (int e = 0; e < EXTENTS; e++)
		same &= pg_atomic_read_u32(&sh->map[e]) == (e < BUFFER_EXTENTS ? map[e] : MAP_NONE);
	ok(same, "the map has the buffer tier's regions, and none for temporary data");
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
	{
		nbuffer += is_region_of(r, RBP_POOL_BUFFER);
		ntemp += is_region_of(r, RBP_POOL_TEMP);
	}
	ok(nbuffer == 2 && ntemp == 0, "so has the table");
	ok(!rbp_remote_get_lease(RBP_POOL_TEMP, &cred, &deadline) && !rbp_remote_usable(RBP_POOL_TEMP, mock_now),
	   "there is no lease for temporary data");
	ok(sh->donors[0].known[RBP_POOL_BUFFER] && !donor_known(&sh->donors[2]), "donors of that lease alone are not known");
	is_u64(pg_atomic_read_u32(&sh->donors[0].conn_slots), 0, "nobody is connected");
	is_u64(sh->leases[RBP_POOL_BUFFER].nfree, nfree, "as many extents are free as before");
	is_u64(take_lease(RBP_POOL_TEMP, 3, 1, 2, 1), 0, "another one finds room");
	is_u64(take_lease(RBP_POOL_BUFFER, 1, 0, 2, 1), 0, "the one that was kept goes on");
	is_u64(mistakes, 0, "no mistakes");
	free(sh);
	rbp_remote_shared = before;
}

/* Lists and counts of the buffer pool are as its map, which names its regions only. */
static const char *
check_regions(void)
{
	RbpRemoteShared *sh = rbp_remote_shared;
	RbpPoolLease *lease = &sh->leases[RBP_POOL_BUFFER];
	uint32		mapped = 0;
	uint32		nregions = 0;
	uint32		of_donors[RBP_MAX_DONORS] = {0};

	for (int r = 0; r < RBP_MAX_REGIONS; r++)
	{
		RbpRemoteRegion *region = &sh->regions[r];
		uint32		n = 0;

		if (!is_region_of(r, RBP_POOL_BUFFER))
			continue;
		nregions++;
		if (region->donor >= RBP_MAX_DONORS)
			return "a region of no donor";
		of_donors[region->donor]++;
		for (uint32 e = region->first; e != NO_EXTENT; e = rbp_remote_next_extent[e])
		{
			uint32		word = e < BUFFER_EXTENTS ? pg_atomic_read_u32(&sh->map[e]) : MAP_NONE;

			if (word == MAP_NONE || MAP_REGION(word) != r || MAP_EXTENT(word) >= region->bytes / RBP_EXTENT_BYTES)
				return "a list has an extent that the region does not have";
			if (n++ == BUFFER_EXTENTS)
				return "a list has no end";
		}
		if (n != region->extents)
			return "a list is not as long as it should be";
		if (region->cursor != NO_EXTENT)
			return "a cursor leads somewhere";
		mapped += n;
	}
	for (uint32 e = 0; e < BUFFER_EXTENTS; e++)
	{
		mapped -= pg_atomic_read_u32(&sh->map[e]) != MAP_NONE;
		if (rbp_extent_region(&lease->extents, e) >= RBP_MAX_REGIONS)
			return "an extent of no region";
		if (rbp_extent_open(&lease->extents, e) && pg_atomic_read_u32(&sh->map[e]) == MAP_NONE)
			return "an extent without memory is online";
	}
	if (mapped != 0)
		return "the map has extents that no list has";
	for (int i = 0; i < RBP_MAX_DONORS; i++)
		if (sh->donors[i].nregions[RBP_POOL_BUFFER] != of_donors[i])
			return "a donor's regions are not counted";
	return nregions == pg_atomic_read_u32(&lease->nregions) ? NULL : "regions are not counted";
}

/* The second region of the buffer pool */
static RbpRemoteRegion *
second_region(void)
{
	for (int r = 1; r < RBP_MAX_REGIONS; r++)
		if (is_region_of(r, RBP_POOL_BUFFER))
			return &rbp_remote_shared->regions[r];
	abort();
}

/* What was overwritten by a process that crashed costs the regions that it is about. */
static void
test_overwritten(void)
{
	const uint32 extents[RBP_POOLS] = {BUFFER_EXTENTS, TEMP_EXTENTS};
	const RbpRemotePoolOps *const ops[RBP_POOLS] = {&plain_ops, &temp_ops};
	RbpRemoteShared *before = rbp_remote_shared;
	RbpRemoteShared *sh = aligned_alloc(4096, TYPEALIGN(4096, rbp_remote_shmem_size(extents)));
	RbpPoolLease *lease = &sh->leases[RBP_POOL_BUFFER];

	memset(sh, 0, rbp_remote_shmem_size(extents));
	for (int what = 0; what < 16; what++)
	{
		RbpRemoteRegion *region;
		uint32		e;
		int			left = 0;
		int			expected = 1;
		const char *problem;
		RbpExtents *x = &lease->extents;

		rbp_remote_shmem_open(sh, false, extents, ops);
		(void) take_lease(RBP_POOL_BUFFER, 1, 0, 2, 1);
		region = second_region();
		e = region->first;
		switch (what)
		{
			case 0:
				pg_atomic_write_u32(&sh->map[e], MAP_MAKE(RBP_MAX_REGIONS, 0));
				break;
			case 1:
				pg_atomic_write_u32(&sh->map[e], 5);
				break;
			case 2:
				pg_atomic_write_u32(&sh->map[e], MAP_NONE);
				break;
			case 3:
				pg_atomic_write_u32(&sh->map[e], pg_atomic_read_u32(&sh->map[e]) | 0xffff);
				break;
			case 4:
				x->regions[e] = RBP_MAX_REGIONS;
				break;
			case 5:
				x->regions[e]++;
				break;
			case 6:
				region->donor = RBP_MAX_DONORS;
				break;
			case 7:
				region->extents++;
				break;
			case 8:
				/* it is given others */
				region->extents = 0;
				expected = 2;
				break;
			case 9:
				region->bytes = RBP_EXTENT_BYTES;
				break;
			case 10:
				region->pool = RBP_POOL_TEMP;
				break;
			case 11:
				/* of a region that there is not, but as the extent has it */
				pg_atomic_write_u32(&sh->map[e], MAP_MAKE(RBP_MAX_REGIONS - 1, 0));
				x->regions[e] = RBP_MAX_REGIONS - 1;
				break;
			case 12:
				rbp_remote_next_extent[e] = e;
				expected = 2;
				break;
			case 13:
				region->first = region->cursor = 1 << 30;
				expected = 2;
				break;
			case 14:
				lease->nfree = lease->search_from = lease->lowest_free = x->first = x->top = 1 << 30;
				pg_atomic_write_u32(&lease->nregions, 77);
				sh->donors[0].nregions[RBP_POOL_BUFFER] = 77;
				expected = 2;
				break;
			default:
				expected = 2;
		}
		rbp_remote_shmem_open(sh, true, extents, ops);
		problem = check_regions();
		for (int r = 0; r < RBP_MAX_REGIONS; r++)
			left += is_region_of(r, RBP_POOL_BUFFER);
		ok(problem == NULL && left == expected && lease->nfree == BUFFER_EXTENTS - (what == 8 ? 2 : 2 * left),
		   "overwritten %d: %d regions are left, %u extents are free%s%s", what, left, lease->nfree,
		   problem != NULL ? ": " : "", problem != NULL ? problem : "");
		is_u64(take_lease(RBP_POOL_BUFFER, 1, 0, 2, 1), 0, "overwritten %d: the lease has room for all again", what);
		problem = check_regions();
		ok(problem == NULL && lease->nfree == BUFFER_EXTENTS - 4, "overwritten %d: and has them%s%s", what,
		   problem != NULL ? ": " : "", problem != NULL ? problem : "");
		rbp_remote_clear_lease(RBP_POOL_BUFFER);
		problem = check_regions();
		ok(problem == NULL && lease->nfree == BUFFER_EXTENTS, "overwritten %d: and none when it has ended%s%s", what,
		   problem != NULL ? ": " : "", problem != NULL ? problem : "");
		drop_closed();
	}
	is_u64(mistakes, 0, "no mistakes");
	free(sh);
	rbp_remote_shared = before;
}

/* A secret that the broker may know already is the next lease worker's, too. */
static void
test_new_secret(void)
{
	const uint32 extents[RBP_POOLS] = {BUFFER_EXTENTS, TEMP_EXTENTS};
	const RbpRemotePoolOps *const ops[RBP_POOLS] = {&plain_ops, &temp_ops};
	const uint8 none[RBP_SECRET_LEN] = {0};
	RbpRemoteShared *before = rbp_remote_shared;
	RbpRemoteShared *sh = aligned_alloc(4096, TYPEALIGN(4096, rbp_remote_shmem_size(extents)));
	RbpPoolLease *lease = &sh->leases[RBP_POOL_BUFFER];
	uint8		first[RBP_SECRET_LEN];
	uint8		again[RBP_SECRET_LEN];
	RbpCredentials cred = mock_credentials(1);

	rbp_remote_shmem_open(sh, false, extents, ops);
	(void) take_lease(RBP_POOL_BUFFER, 1, 0, 1, 1);
	ok(rbp_remote_new_secret(RBP_POOL_BUFFER, first) && memcmp(first, none, sizeof(none)) != 0, "a new secret is chosen");
	ok(rbp_remote_new_secret(RBP_POOL_BUFFER, again) && memcmp(first, again, sizeof(first)) == 0, "and asked for again");
	rbp_remote_shmem_open(sh, true, extents, ops);
	ok(rbp_remote_new_secret(RBP_POOL_BUFFER, again) && memcmp(first, again, sizeof(first)) == 0, "over a crash, too");

	/* it comes from an image, of which there may be copies */
	rbp_remote_forget_deadline(RBP_POOL_BUFFER);
	ok(rbp_remote_new_secret(RBP_POOL_BUFFER, again) && memcmp(first, again, sizeof(first)) != 0, "another server chooses another one");
	memcpy(cred.secret, again, sizeof(again));
	rbp_remote_change_secret(RBP_POOL_BUFFER, &cred);
	ok(memcmp(lease->new_secret, none, sizeof(none)) == 0, "when the broker has taken it nothing is left to be asked for");
	ok(rbp_remote_new_secret(RBP_POOL_BUFFER, first) && memcmp(first, again, sizeof(first)) != 0, "a later one is another one");
	rbp_remote_clear_lease(RBP_POOL_BUFFER);
	ok(memcmp(lease->new_secret, none, sizeof(none)) == 0, "and goes with the lease");
	free(sh);
	rbp_remote_shared = before;
}

/* Write pages[0], n of them, from the slot on; at once, or in two steps. */
static RbpStatus
write_run(uint32 slot, int n, bool at_once)
{
	RbpRemoteIo ios[RBP_MAX_BATCH];
	RbpRemoteBatch *batch;

	run_of(ios, slot, n, pages[0]);
	if (at_once)
		rbp_remote_transfer(ios, n, true, mock_now, mock_now + mock_io_timeout_ns);
	else if ((batch = begin(ios, n, true, 0)) != NULL)
		end(batch);
	return all_are(ios, n, RBP_OK) ? RBP_OK : ios[0].status;
}

/* What comes when the slot is read: the page (1), zeros (0), or another status (-1). */
static int
read_is(uint32 slot, const uint8 *page)
{
	static const uint8 zeros[BLCKSZ];
	RbpRemoteIo io;

	memset(back[0][0], 1, BLCKSZ);
	run_of(&io, slot, 1, back[0]);
	rbp_remote_transfer(&io, 1, false, mock_now, mock_now + mock_io_timeout_ns);
	if (io.status != RBP_OK)
		return -1;
	return memcmp(back[0][0], page, BLCKSZ) == 0 ? 1 :
		memcmp(back[0][0], zeros, BLCKSZ) == 0 ? 0 : -2;
}

static uint64
seal_failures(RbpCounter counter, uint32 slot)
{
	uint64		before = mock_counters[counter];

	rbp_remote_wrong_bytes(slot);
	return mock_counters[counter] - before;
}

static void
test_sealed(void)
{
	const uint32 extents[RBP_POOLS] = {BUFFER_EXTENTS, TEMP_EXTENTS};
	const RbpRemotePoolOps *const ops[RBP_POOLS] = {&buffer_ops, &temp_ops};
	RbpRemoteShared *before = rbp_remote_shared;
	Size		size = TYPEALIGN(4096, rbp_remote_shmem_size(extents));
	RbpRemoteShared *sh = aligned_alloc(4096, size);
	RbpPoolLease *lease = &sh->leases[RBP_POOL_BUFFER];
	RbpSealed	sealed;
	uint8		key[RBP_SEAL_KEY_LEN];
	uint8	   *at = mock_memory(0, 1, 0, 0);
	static uint8 was[2][BLCKSZ];
	int			same = 0;

	rbp_remote_clear_lease(RBP_POOL_BUFFER);
	rbp_remote_clear_lease(RBP_POOL_TEMP);
	memset(sh, 0, size);
	rbp_remote_shmem_open(sh, false, extents, ops);
	(void) take_lease(RBP_POOL_BUFFER, 1, 0, 1, 1);
	(void) take_lease(RBP_POOL_TEMP, 2, 1, 1, 1);
	ok(memcmp(lease->seal_key, sh->leases[RBP_POOL_TEMP].seal_key, sizeof(key)) != 0, "each lease has a key of its own");
	ok(rbp_remote_sealed_slot(0) == NULL, "nothing is sealed yet");
	recover(0);
	recover(1);

	/* writes, at once and in two steps; the caller's pages are read meanwhile */
	for (int at_once = 0; at_once < 2; at_once++)
	{
		for (int i = 0; i < 8; i++)
			fill(pages[0][i], i);
		is_u64(write_run(0, 8, at_once), RBP_OK, "%s: pages are written", at_once ? "at once" : "in two steps");
		for (int i = 0; i < 8; i++)
		{
			fill(was[0], i);
			same += memcmp(pages[0][i], was[0], BLCKSZ) != 0;
			same += memcmp(at + i * BLCKSZ, was[0], BLCKSZ / 8) == 0;
			same += read_is((uint32) i, was[0]) != 1;
		}
		is_u64((uint64) same, 0, "they are not changed, not there in the clear, and come back");
	}
	ok(rbp_remote_sealed_slot(0) == rbp_remote_sealed, "now something is sealed");
	is_u64(rbp_remote_sealed[0].version, 2, "a slot that was written twice was sealed twice");

	/* what a donor may return instead */
	memcpy(was, at, sizeof(was));
	at[BLCKSZ - 1] ^= 1;
	is_u64((uint64) read_is(0, pages[0][0]), 0, "a flipped bit: zeros");
	is_u64(seal_failures(RBP_COUNT_SEAL_FAILURES, 0), 1, "which is counted, if it was no race");
	memcpy(at, was[1], BLCKSZ);
	is_u64((uint64) read_is(0, pages[0][0]), 0, "the text of another slot: zeros");
	is_u64(write_run(0, 1, true), RBP_OK, "it is written again");
	memcpy(was[1], at, BLCKSZ);
	memcpy(at, was[0], BLCKSZ);
	is_u64((uint64) read_is(0, pages[0][0]), 0, "an older text of the slot: zeros");
	memcpy(at, pages[0][0], BLCKSZ);
	is_u64((uint64) read_is(0, pages[0][0]), 0, "the page in the clear: zeros");
	memcpy(at, was[1], BLCKSZ);
	is_u64((uint64) read_is(0, pages[0][0]), 1, "the right text: the page");
	mock_donors[0].scribbles = true;
	is_u64((uint64) read_is(0, pages[0][0]), 1, "what the donor changes while the page is opened is of no use");
	memcpy(at, was[1], BLCKSZ);
	rbp_injection_point = "open-shared";
	ok(read_is(0, pages[0][0]) != 1, "it would be if the page were opened in the donor's memory");
	rbp_injection_point = "";
	mock_donors[0].scribbles = false;
	memcpy(at, was[1], BLCKSZ);

	/* the other pool, and its key */
	is_u64(write_run(TEMP_SLOT(0), 1, false), RBP_OK, "a temporary block");
	ok(memcmp(mock_memory(1, 2, 0, 0), pages[0][0], BLCKSZ / 8) != 0 && read_is(TEMP_SLOT(0), pages[0][0]) == 1,
	   "is sealed, too");
	mock_memory(1, 2, 0, 0)[5] ^= 1;
	is_u64((uint64) read_is(TEMP_SLOT(0), pages[0][0]), 0, "and does not open if it is changed");
	is_u64(seal_failures(RBP_COUNT_SPILL_SEAL_FAILURES, TEMP_SLOT(0)), 1, "which is counted as such");

	/* many batches at once, several times: the memory of each is used again */
	for (int round = 0; round < 3; round++)
	{
		RbpRemoteIo ios[5][RBP_MAX_BATCH];
		RbpRemoteBatch *batches[5];

		for (int b = 0; b < 5; b++)
		{
			for (int i = 0; i < RBP_MAX_BATCH; i++)
				fill(pages[b][i], round + b * 40 + i);
			run_of(ios[b], TEMP_SLOT(b * RBP_MAX_BATCH), RBP_MAX_BATCH, pages[b]);
			batches[b] = begin(ios[b], RBP_MAX_BATCH, true, 0);
		}
		same = 0;
		for (int b = 0; b < 5; b++)
		{
			end(batches[b]);
			for (int i = 0; i < RBP_MAX_BATCH; i++)
				same += read_is(TEMP_SLOT(b * RBP_MAX_BATCH + i), pages[b][i]) == 1;
		}
		is_u64((uint64) same, 5 * RBP_MAX_BATCH, "batches at the same time do not disturb each other");
	}
	for (int i = 0; i < 8; i++)
		fill(pages[0][i], i);

	/* over memory of this machine */
	mock_donors[0].local = true;
	rbp_guc_connect_settings_version++;
	is_u64((uint64) read_is(0, pages[0][0]), 1, "over a local transport what was sealed is opened");
	is_u64(write_run(0, 1, true), RBP_OK, "a page over a local transport");
	ok(memcmp(at, pages[0][0], BLCKSZ) == 0, "is in the clear, under auto");
	mock_donors[0].local = false;
	rbp_guc_connect_settings_version++;
	is_u64((uint64) read_is(0, pages[0][0]), 1, "over a network it comes as it is");
	is_u64(seal_failures(RBP_COUNT_SEAL_FAILURES, 0), 0, "and if it were wrong, that would be no failure of a seal");
	mock_donors[0].same_host = true;
	rbp_guc_connect_settings_version++;
	is_u64(write_run(0, 1, true), RBP_OK, "a page over a network, to this host");
	ok(memcmp(at, pages[0][0], BLCKSZ) == 0, "is in the clear, too");
	mock_donors[0].same_host = false;
	mock_donors[0].local = true;
	rbp_guc_connect_settings_version++;
	rbp_guc_encrypt = RBP_ENCRYPT_ON;
	mock_donors[0].same_host = true;
	is_u64(write_run(0, 1, true), RBP_OK, "a page over a local transport");
	ok(memcmp(at, pages[0][0], BLCKSZ / 8) != 0 && read_is(0, pages[0][0]) == 1, "is sealed, under on");
	mock_donors[0].same_host = false;
	rbp_guc_encrypt = RBP_ENCRYPT_AUTO;
	mock_donors[0].local = false;
	rbp_guc_connect_settings_version++;

	/* a crash, and another process */
	memcpy(key, lease->seal_key, sizeof(key));
	rbp_remote_shmem_open(sh, true, extents, ops);
	rbp_remote_sealers[RBP_POOL_BUFFER].serial = rbp_remote_sealers[RBP_POOL_TEMP].serial = 0;
	ok(memcmp(key, lease->seal_key, sizeof(key)) == 0 && read_is(0, pages[0][0]) == 1, "over a crash the key is kept, and pages come back");
	(void) take_lease(RBP_POOL_TEMP, 2, 1, 1, 1);
	mock_donors[1].local = true;
	is_u64(write_run(TEMP_SLOT(0), 1, true), RBP_OK, "a temporary block over a local transport");
	mock_donors[1].local = false;
	rbp_guc_connect_settings_version++;
	is_u64(write_run(TEMP_SLOT(1), 1, true), RBP_OK, "another one over a network");
	is_u64((uint64) read_is(TEMP_SLOT(0), pages[0][0]), 1, "what was sealed in the first one's slot before the crash is forgotten");

	/* an image has that of slots with pages alone */
	rbp_remote_sealed[5].version = lease->versions.highest = 50;
	sealed = rbp_remote_sealed[0];
	memset(rbp_remote_sealed, 0, RBP_EXTENT_SLOT(BUFFER_EXTENTS) * sizeof(RbpSealed));
	rbp_remote_shmem_open(sh, true, extents, ops);
	ok(rbp_remote_sealed_slot(RBP_EXTENT_SLOT(BUFFER_EXTENTS)) == NULL, "there are no slots beyond the last");
	memcpy(rbp_remote_sealed_slot(0), &sealed, sizeof(sealed));
	is_u64((uint64) read_is(0, pages[0][0]), 1, "after a start from an image a page comes back");
	is_u64(write_run(0, 8, true), RBP_OK, "pages are written");
	is_u64(rbp_remote_sealed[0].version, 51, "with versions above all of before");
	is_u64(rbp_remote_sealed[5].version, 51, "also where nobody knows the slot's own any more");

	/* another lease */
	rbp_remote_clear_lease(RBP_POOL_BUFFER);
	(void) take_lease(RBP_POOL_BUFFER, 3, 0, 1, 1);
	ok(memcmp(lease->seal_key, key, sizeof(key)) != 0, "another lease has another key");
	is_u64(rbp_remote_sealed[1].version, 51, "versions go on");
	ok(round_trip(1, 4, 0), "with it pages are written and read");

	/* versions run out */
	ok(!rbp_remote_key_used_up(RBP_POOL_BUFFER), "there are versions left");
	rbp_remote_sealed[2].version = UINT32_MAX / 2;
	is_u64(write_run(1, 4, true), RBP_OK, "a slot uses half of them");
	ok(rbp_remote_key_used_up(RBP_POOL_BUFFER) && !rbp_remote_key_used_up(RBP_POOL_TEMP), "so that there is to be another lease");
	rbp_remote_sealed[2].version = UINT32_MAX;
	is_u64(write_run(2, 1, true), RBP_CANCELED, "a slot that has none left is not written");
	memcpy(key, lease->seal_key, sizeof(key));
	sealed = rbp_remote_sealed[RBP_EXTENT_SLOT(BUFFER_EXTENTS)];
	(void) take_lease(RBP_POOL_BUFFER, 1, 0, 1, 1);
	ok(memcmp(lease->seal_key, key, sizeof(key)) != 0 && !rbp_remote_key_used_up(RBP_POOL_BUFFER),
	   "the next lease has another key, and all versions");
	is_u64(write_run(1, 4, true), RBP_OK, "the slot is written");
	is_u64(rbp_remote_sealed[2].version, 1, "with the first one");
	ok(memcmp(&sealed, &rbp_remote_sealed[RBP_EXTENT_SLOT(BUFFER_EXTENTS)], sizeof(sealed)) == 0, "slots of the other pool are not touched");

	memset(lease->seal_key, 0, sizeof(key));
	rbp_link_make_stale(&lease->serial);
	is_u64(write_run(1, 4, true), RBP_CANCELED, "without a key nothing is written");
	is_u64((uint64) read_is(1, pages[0][0]), 0, "nor opened");
	rbp_remote_clear_lease(RBP_POOL_BUFFER);
	rbp_remote_clear_lease(RBP_POOL_TEMP);
	rbp_remote_shmem_open(before, true, extents, ops);
	free(sh);
}

int
main(void)
{
	mock_init();
	rbp_process_set_exit(rbp_remote_exits);
	set_up();
	test_pools();
	test_merging();
	test_many();
	test_losses();
	test_time();
	test_interrupts();
	test_health();
	test_wrong_bytes();
	test_old_answers();
	test_unawaited_losses();
	test_full();
	test_worth();
	test_downgrades();
	test_failed_submits();
	test_local();
	test_giving_back();
	test_shrinking();
	test_report();
	test_no_vacant_place();
	test_many_extents();
	test_room();
	test_promised_extents();
	test_broker();
	test_wake();
	test_another_lease();
	test_partial_region();
	test_sealed();
	test_exit();
	test_vast_pool();
	test_pool_without_extents();
	test_many_donors();
	test_many_regions();
	test_crash();
	test_overwritten();
	test_new_secret();
	is_u64(mock_violations, 0, "no violations");
	return done_testing();
}
