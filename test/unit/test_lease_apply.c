/*-------------------------------------------------------------------------
 *
 * test_lease_apply.c
 *	  Which regions keep their content when the broker answers: what revs tell, also
 *	  of a lease that has lapsed.  Whether a lease is wanted.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdlib.h>

#include "base/guc.h"
#include "mock_server.h"
#include "lease/apply.c"
#include "remote/remote_internal.h"

#include "tap.h"

#define TTL_MS			10000
#define EXTENTS			16

/* the other files of the lease worker, and the settings */
char		rbp_lease_client[RBP_DONOR_ID_LEN] = "client";
static RbpBroker broker = {.urls = "http://broker",.url = "http://broker"};
RbpBroker  *rbp_lease_current_broker = &broker;
int			rbp_guc_buffer_tier_max_size = EXTENTS;

/* What is palloc'ed belongs to the worker's round. */
const char *__lsan_default_suppressions(void);

const char *
__lsan_default_suppressions(void)
{
	return "leak:palloc\n";
}

bool
errstart_cold(int elevel, const char *domain)
{
	abort();
}

int
rbp_guc_tier_size_ahead(void)
{
	return 0;
}

void
rbp_lease_broker_save(const RbpBroker *b, RbpBrokerAccess *access)
{
	memset(access, 0, sizeof(*access));
}

void
rbp_lease_resolve_donors(RbpLease *lease)
{
}

/* All regions have content; closed extents forget theirs at once. */
static uint64
region_heat(uint32 region, uint64 *used)
{
	*used = BLCKSZ;
	return 0;
}

static uint32
drop_extents(uint32 *extents, uint32 n)
{
	return n;
}

static const RbpRemotePoolOps ops = {.heat = region_heat,.drop = drop_extents};

static int	life = 0;			/* of the donor */

/* A lease of two regions, of these revs. */
static RbpLease *
answer(uint64 rev0, uint64 rev1)
{
	const uint64 revs[] = {rev0, rev1};
	RbpCredentials cred = mock_credentials(0);
	RbpEndpoint endpoint = mock_endpoint(0);
	RbpRegionGrant regions[2] = {0};

	endpoint.port += life;
	for (int i = 0; i < 2; i++)
	{
		strlcpy(regions[i].donor, endpoint.donor, sizeof(regions[i].donor));
		regions[i].region = (uint32) i;
		regions[i].bytes = MOCK_REGION_BYTES;
		regions[i].rev = revs[i];
	}
	return rbp_lease_restore(&cred, TTL_MS, &endpoint, 1, regions, 2);
}

/* The number under which a region is in use now; 0: it is not. */
static uint32
grant_of(RbpPool pool, uint32 number)
{
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
		if (is_region_of(r, pool) && rbp_remote_shared->regions[r].number == number)
			return rbp_remote_shared->regions[r].grant;
	return 0;
}

#define NONE_STAYS		0
#define FIRST_STAYS		1
#define BOTH_STAY		3

/* The broker answers so.  Which regions are in use as they were before? */
static uint64
adopt(RbpHeldLease *h, uint64 rev0, uint64 rev1)
{
	const uint32 before[] = {grant_of(h->pool, 0), grant_of(h->pool, 1)};
	uint64		stay = 0;
	int			messages = mock_messages;
	int			unused;
	bool		is_new = h->lease == NULL;

	(void) rbp_lease_adopt(h, answer(rev0, rev1), mock_now);
	while (rbp_remote_run_deferred(h->pool, mock_now, &unused))
		continue;
	for (uint32 i = 0; i < 2; i++)
	{
		if (grant_of(h->pool, i) == 0)
			diag("region %u is not in use", (unsigned) i);
		else if (grant_of(h->pool, i) == before[i])
			stay += 1 << i;
	}
	/* temporary data that is lost is told, and nothing else */
	if (!is_new && (mock_messages > messages) != (h->pool == RBP_POOL_TEMP && stay != BOTH_STAY))
		diag("%d messages", mock_messages - messages), stay = PG_UINT64_MAX;
	return stay;
}

/* Do regions have these revs for the next lease worker? */
static bool
remembered(RbpHeldLease *h, uint64 rev0, uint64 rev1)
{
	int			n;
	RbpRegionGrant *regions = rbp_lease_regions_in_use(h->lease->cred.lease, &n);
	bool		same = n == 2 && regions[0].rev == rev0 && regions[1].rev == rev1;

	pfree(regions);
	return same;
}

static void
lapse(void)
{
	mock_now += 2 * TTL_MS * NANOS_PER_MS;
}

static void
test_revs(RbpHeldLease *h)
{
	const char *of = h->purpose;

	(void) adopt(h, 5, 7);
	ok(grant_of(h->pool, 0) != 0 && grant_of(h->pool, 1) != 0, "%s: a broker grants regions", of);
	is_u64(adopt(h, 5, 7), BOTH_STAY, "%s: they stay the same", of);
	ok(remembered(h, 5, 7), "%s: and the next worker knows their revs", of);
	is_u64(adopt(h, 5, 8), FIRST_STAYS, "%s: a region with another rev is another one", of);
	ok(grant_of(h->pool, 1) != 0 && remembered(h, 5, 8), "%s: which is used as such", of);

	lapse();
	is_u64(adopt(h, 5, 8), BOTH_STAY, "%s: regions of a lapsed lease stay the same by their revs", of);
	lapse();
	is_u64(adopt(h, 5, 9), FIRST_STAYS, "%s: or are others", of);

	life++;
	is_u64(adopt(h, 5, 9), NONE_STAYS, "%s: a donor that has restarted has lost them, whatever their revs", of);
	rbp_lease_drop(h);
}

/* A key that has sealed too many pages is replaced with its lease. */
static void
test_key(RbpHeldLease *h)
{
	uint64		wanted;

	(void) adopt(h, 5, 7);
	wanted = rbp_lease_wanted(h);
	ok(wanted > 0, "%s: a lease is wanted", h->purpose);
	rbp_remote_shared->leases[h->pool].versions.highest = UINT32_MAX;
	is_u64(rbp_lease_wanted(h), 0, "%s: not if its key is used up", h->purpose);
	rbp_lease_drop(h);
	is_u64(rbp_lease_wanted(h), wanted, "%s: but another one", h->purpose);
	(void) adopt(h, 5, 7);
	is_u64(rbp_lease_wanted(h), wanted, "%s: which has another key", h->purpose);
	rbp_lease_drop(h);
}

int
main(void)
{
	const uint32 extents[RBP_POOLS] = {EXTENTS, EXTENTS};
	const RbpRemotePoolOps *const owners[RBP_POOLS] = {&ops, &ops};
	RbpHeldLease held[RBP_POOLS] = {
		[RBP_POOL_BUFFER] = {.pool = RBP_POOL_BUFFER,.purpose = "buffer",.suffix = "",.broker = &broker},
		[RBP_POOL_TEMP] = {.pool = RBP_POOL_TEMP,.purpose = "temp",.suffix = "",.broker = &broker}
	};

	mock_init();
	rbp_remote_shmem_open(aligned_alloc(4096, TYPEALIGN(4096, rbp_remote_shmem_size(extents))), false,
						  extents, owners);
	for (int pool = 0; pool < RBP_POOLS; pool++)
	{
		test_revs(&held[pool]);
		test_key(&held[pool]);
	}
	is_u64(mock_violations, 0, "no violations");
	return done_testing();
}
