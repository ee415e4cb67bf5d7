/*-------------------------------------------------------------------------
 *
 * test_donor_lease.c
 *	  Who may use a donor's regions: that a lease's end holds whenever it
 *	  comes, and that nothing of a region is reused before every way into it
 *	  is closed.
 *
 * The module is included whole, to look at its state under its lock; memory
 * and RDMA keys are fakes that check the order in which they are asked.
 * Clients write by key as long as there is one, whatever the donor thinks of
 * their lease; their stamp in another's region is what must never be seen.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/log.h"
#include "broker/donor/lease.h"
#include "broker/donor/memory.h"
#include "common/clock.h"
#include "transport/transport.h"
#include "broker/donor/lease.c"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "tap.h"

#define NREGIONS		8
#define REGION_BYTES	64
#define MS				INT64_C(1000000)
#define SECOND			INT64_C(1000000000)

/* ---- the fakes ------------------------------------------------------------ */

RbpDonorRegion *donor_regions;
uint32_t	donor_nregions;
uint64_t	donor_region_size;

static uint8_t arena[NREGIONS][REGION_BYTES];

/* Who has a key to which region.  What goes by key holds it. */
static pthread_mutex_t key_lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t key_stamp[NREGIONS]; /* 0: there is no key */

static atomic_int revoke_us;	/* how long a device takes */
static atomic_int renew_us;
static atomic_bool no_memory;	/* renew fails */
static atomic_ullong available = UINT64_MAX;
static bool clean[NREGIONS];	/* under donor_lock, or the janitor's */
static bool revoked[NREGIONS];	/* likewise: since it was last granted */
static atomic_int inside[NREGIONS]; /* requests that donor_region_enter() let
									 * in */
static atomic_uint nrevokes;
static atomic_uint ngrants;
static atomic_uint nrenewals;
static atomic_uint nreleases;

/* What must not happen; the first few are told. */
static atomic_uint wrongs;

__attribute__((format(printf, 1, 2))) static void
wrong(const char *fmt,...)
{
	char		text[200];
	va_list		args;

	if (atomic_fetch_add(&wrongs, 1) >= 10)
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	diag("%s", text);
}

static uint8_t
stamp_of(const RbpDonorLease *lease)
{
	return lease->key[0];
}

static void
sleep_us(int us)
{
	if (us > 0)
		usleep((useconds_t) us);
}

/* Nobody else would keep it for so long. */
static void
check_no_lock(const char *where)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	ts.tv_sec += 5;
	if (pthread_mutex_timedlock(&donor_lock, &ts) != 0)
	{
		printf("Bail out! %s with the lock held\n", where);
		exit(1);
	}
	pthread_mutex_unlock(&donor_lock);
}

/* The region is the janitor's, who is about to reuse its memory. */
static void
check_closed(const RbpDonorRegion *region, const char *where)
{
	uint32_t	n = (uint32_t) (region - donor_regions);

	check_no_lock(where);
	if (atomic_load(&region->owner) != NULL)
		wrong("%s of region %u, which has an owner", where, n);
	if (atomic_load(&inside[n]) != 0)
		wrong("%s of region %u while a request uses it", where, n);
	pthread_mutex_lock(&donor_lock);
	if (region->state != DONOR_REGION_DIRTY)
		wrong("%s of region %u in state %d", where, n, region->state);
	pthread_mutex_unlock(&donor_lock);
}

static void
granted(uint32_t region, RbpDonorLease *lease)
{
	if (pthread_mutex_trylock(&donor_lock) == 0)
	{
		wrong("granted() without the lock");
		pthread_mutex_unlock(&donor_lock);
	}
	if (!clean[region])
		wrong("region %u granted, but not clean", region);
	if (atomic_load(&lease->ended))
		wrong("region %u granted to a lease that has ended", region);
	if (atomic_load(&donor_regions[region].owner) != lease)
		wrong("region %u granted to another than its owner", region);
	clean[region] = false;
	revoked[region] = false;
	atomic_fetch_add(&ngrants, 1);

	pthread_mutex_lock(&key_lock);
	if (key_stamp[region] != 0)
		wrong("region %u granted while a key to it lives", region);
	key_stamp[region] = stamp_of(lease);
	pthread_mutex_unlock(&key_lock);
}

static void
revoke_keys(uint32_t region)
{
	check_closed(&donor_regions[region], "revocation");
	sleep_us(atomic_load(&revoke_us));
	pthread_mutex_lock(&key_lock);
	key_stamp[region] = 0;
	pthread_mutex_unlock(&key_lock);
	revoked[region] = true;
	atomic_fetch_add(&nrevokes, 1);
}

static void
check_revoked(const RbpDonorRegion *region, const char *where)
{
	uint32_t	n = (uint32_t) (region - donor_regions);

	check_closed(region, where);
	if (!revoked[n])
		wrong("%s of region %u, whose keys were not revoked", where, n);
}

bool
donor_memory_renew(RbpDonorRegion *region)
{
	uint32_t	n = (uint32_t) (region - donor_regions);

	check_revoked(region, "renewal");
	atomic_fetch_add(&nrenewals, 1);
	atomic_store(&region->exposed, false);
	sleep_us(atomic_load(&renew_us));
	if (atomic_load(&no_memory))
		return false;
	memset(arena[n], 0, REGION_BYTES);	/* not atomic: we are alone with it */
	clean[n] = true;
	return true;
}

void
donor_memory_release(RbpDonorRegion *region)
{
	uint32_t	n = (uint32_t) (region - donor_regions);

	check_revoked(region, "release");
	atomic_fetch_add(&nreleases, 1);
	memset(arena[n], 0xff, REGION_BYTES);	/* somebody else's by now */
	clean[n] = false;
	atomic_store(&region->exposed, false);
}

uint64_t
donor_memory_available(void)
{
	return atomic_load(&available);
}

/* ---- looking at it ---------------------------------------------------------- */

static void
check_state(const char *when)
{
	uint32_t	counts[4] = {0};

	pthread_mutex_lock(&donor_lock);
	for (uint32_t i = 0; i < NREGIONS; i++)
	{
		RbpDonorRegion *region = &donor_regions[i];
		RbpDonorLease *owner = atomic_load(&region->owner);
		RbpDonorLease *lease = leases;
		uint8_t		stamp;

		counts[region->state]++;
		pthread_mutex_lock(&key_lock);
		stamp = key_stamp[i];
		pthread_mutex_unlock(&key_lock);
		if (region->state != DONOR_REGION_LEASED)
		{
			if (owner != NULL)
				wrong("%s: region %u in state %d has an owner", when, i, region->state);
			if (stamp != 0 && region->state != DONOR_REGION_DIRTY)
				wrong("%s: region %u in state %d has a key", when, i, region->state);
			if (region->state == DONOR_REGION_FREE && !clean[i])
				wrong("%s: region %u is free but not clean", when, i);
			continue;
		}
		if (owner == NULL)
		{
			wrong("%s: region %u is leased to nobody", when, i);
			continue;
		}
		while (lease != NULL && lease != owner)
			lease = lease->next;
		if (lease == NULL)
			wrong("%s: region %u is leased to one who is not in the table", when, i);
		else if (atomic_load(&lease->ended))
			wrong("%s: region %u is leased to %s, which has ended", when, i, lease->id);
		else if (stamp != stamp_of(lease))
			wrong("%s: region %u of %s has no key of it", when, i, lease->id);
	}
	for (RbpDonorLease *lease = leases; lease != NULL; lease = lease->next)
	{
		uint32_t	n = 0;

		for (uint32_t i = 0; i < NREGIONS; i++)
			n += atomic_load(&donor_regions[i].owner) == lease;
		if (n != lease->nregions)
			wrong("%s: %s has %u regions, and counts %u", when, lease->id, n, lease->nregions);
	}
	for (int s = 0; s < DONOR_REGION_STATES; s++)
	{
		if (counts[s] != region_counts[s])
			wrong("%s: %u regions are in state %d, counted %u", when, counts[s], s, region_counts[s]);
	}
	pthread_mutex_unlock(&donor_lock);
}

static RbpDonorRegionState
state_of(uint32_t region)
{
	RbpDonorRegionState state;

	pthread_mutex_lock(&donor_lock);
	state = donor_regions[region].state;
	pthread_mutex_unlock(&donor_lock);
	return state;
}

static bool
await_state(uint32_t region, RbpDonorRegionState state)
{
	int64_t		until = rbp_boottime_ns() + 5 * SECOND;

	while (state_of(region) != state)
	{
		if (rbp_boottime_ns() > until)
			return false;
		usleep(500);
	}
	return true;
}

static bool
await_clean(void)
{
	int64_t		until = rbp_boottime_ns() + 5 * SECOND;

	while (donor_regions_in(DONOR_REGION_DIRTY))
	{
		if (rbp_boottime_ns() > until)
			return false;
		usleep(500);
	}
	return true;
}

/* Until the janitor has seen that it is over. */
static bool
await_end(const char *id)
{
	int64_t		until = rbp_boottime_ns() + 5 * SECOND;
	RbpDonorLease *lease;

	while ((lease = donor_lease_find(id)) != NULL)
	{
		donor_lease_unref(lease);
		if (rbp_boottime_ns() > until)
			return false;
		usleep(200);
	}
	return true;
}

static uint8_t
owner_stamp(uint32_t region)
{
	uint8_t		stamp = 0;
	RbpDonorLease *owner;

	pthread_mutex_lock(&donor_lock);
	owner = atomic_load(&donor_regions[region].owner);
	if (owner != NULL)
		stamp = stamp_of(owner);
	pthread_mutex_unlock(&donor_lock);
	return stamp;
}

/* Name a lease with these regions, and perhaps revs, both of which are freed. */
static void
name_with(const char *id, const uint8_t key[RBP_SECRET_LEN], json_t *about, json_t *regions, json_t *revs)
{
	RbpDonorDesired desired = {
		.id = id,.client = id,.ttl_ms = 60000,.regions = regions,.revs = revs,.about = about
	};

	memcpy(desired.key, key, RBP_SECRET_LEN);
	donor_apply_lease(&desired, rbp_boottime_ns());
	json_decref(regions);
	json_decref(revs);
}

/*
 * Name a lease with the regions whose bits are set; its stamp is the last byte
 * of its number.
 */
static void
name_lease(uint32_t number, int64_t ns_from_now, uint32_t mask)
{
	char		id[RBP_LEASE_ID_LEN];
	json_t	   *regions = json_array();
	RbpDonorDesired desired = {.id = id,.client = id,.regions = regions};

	snprintf(id, sizeof(id), "lease-%u", number);
	memset(desired.key, (int) (number & 0xff), sizeof(desired.key));
	for (uint32_t i = 0; i < NREGIONS; i++)
		if (mask & 1u << i)
			json_array_append_new(regions, json_integer(i));
	donor_apply_lease(&desired, rbp_boottime_ns() + ns_from_now);
	json_decref(regions);
}

/* As a heartbeat: tell what ended, so that it is forgotten. */
static uint32_t
say(void)
{
	RbpDonorReport report;
	uint32_t	nended;

	donor_report_get(&report);
	nended = (uint32_t) json_array_size(report.ended);
	donor_report_acknowledged(&report);
	donor_report_free(&report);
	return nended;
}

/* No lease is named. */
static void
apply_nothing(void)
{
	donor_apply_begin();
	donor_apply_end();
}

/* Back to eight free regions and no lease. */
static void
settle(const char *when)
{
	atomic_store(&revoke_us, 0);
	atomic_store(&renew_us, 0);
	atomic_store(&no_memory, false);
	apply_nothing();
	(void) say();
	apply_nothing();
	if (!await_clean())
		wrong("%s: the janitor does not come to an end", when);
	check_state(when);
	for (uint32_t i = 0; i < NREGIONS; i++)
		if (state_of(i) != DONOR_REGION_FREE)
			wrong("%s: region %u ends in state %d", when, i, state_of(i));
	pthread_mutex_lock(&donor_lock);
	if (leases != NULL)
		wrong("%s: lease %s is left over", when, leases->id);
	pthread_mutex_unlock(&donor_lock);
}

/* ---- tests -------------------------------------------------------------------- */

static void
test_grants(void)
{
	uint32_t	revokes = atomic_load(&nrevokes);
	uint32_t	grants = atomic_load(&ngrants);
	RbpDonorLease *lease;

	donor_apply_begin();
	name_lease(1, 60 * SECOND, 0x03);
	name_lease(2, 60 * SECOND, 0x0c);
	donor_apply_end();
	check_state("granted");
	ok(owner_stamp(0) == 1 && owner_stamp(1) == 1 && owner_stamp(2) == 2 &&
	   owner_stamp(3) == 2 && state_of(4) == DONOR_REGION_FREE,
	   "regions go to the leases that the broker names");
	is_u64(atomic_load(&ngrants) - grants, 4, "each grant is told once");

	donor_apply_begin();
	name_lease(1, 60 * SECOND, 0x03);
	name_lease(2, 60 * SECOND, 0x0c);
	donor_apply_end();
	is_u64(atomic_load(&ngrants) - grants, 4, "what stays as it is is not told again");
	is_u64(atomic_load(&nrevokes) - revokes, 0, "nor revoked");

	/* 1 goes from the first to the second, 3 is given up */
	donor_apply_begin();
	name_lease(1, 60 * SECOND, 0x01);
	name_lease(2, 60 * SECOND, 0x06);
	donor_apply_end();
	ok(owner_stamp(1) == 0 && owner_stamp(3) == 0, "regions are taken before any is given");
	ok(await_clean(), "they are cleaned");
	is_u64(atomic_load(&nrevokes) - revokes, 2, "the keys of both are revoked");
	ok(state_of(1) == DONOR_REGION_FREE && state_of(3) == DONOR_REGION_FREE,
	   "a region that moves waits for the broker's next word");
	donor_apply_begin();
	name_lease(1, 60 * SECOND, 0x01);
	name_lease(2, 60 * SECOND, 0x06);
	donor_apply_end();
	ok(owner_stamp(1) == 2, "which gives it to the other lease");

	/* the broker names one no more */
	lease = donor_lease_find("lease-2");
	ok(lease != NULL, "a lease is found by its id");
	donor_apply_begin();
	name_lease(1, 60 * SECOND, 0x01);
	donor_apply_end();
	ok(lease != NULL && atomic_load(&lease->ended), "a lease that is not named has ended");
	ok(!donor_region_enter(&donor_regions[2], lease, rbp_boottime_ns()), "and may enter no region");
	donor_lease_unref(lease);
	ok(donor_lease_find("lease-2") == NULL, "nor be found");
	ok(await_clean() && state_of(1) == DONOR_REGION_FREE && state_of(2) == DONOR_REGION_FREE,
	   "its regions are cleaned");
	settle("grants");
}

/* Another key ends connections, and nothing else. */
static void
test_key(void)
{
	uint8_t		key[RBP_SECRET_LEN];
	uint8_t		now[RBP_SECRET_LEN];
	uint32_t	grants;
	uint32_t	revokes;
	RbpDonorLease *lease;
	unsigned int number;

	donor_apply_begin();
	name_lease(30, 60 * SECOND, 0x03);
	donor_apply_end();
	grants = atomic_load(&ngrants);
	revokes = atomic_load(&nrevokes);
	lease = donor_lease_find("lease-30");
	number = donor_lease_key(lease, key);
	for (int i = 0; i < 3; i++)
	{
		/* the first byte is the stamp of its key */
		if (i == 1)
			key[1] ^= 1;
		donor_apply_begin();
		name_with("lease-30", key, NULL, json_pack("[i, i]", 0, 1), NULL);
		donor_apply_end();
		ok(donor_lease_has_key(lease, number) == (i == 0), "a connection %s by the %s key",
		   i == 0 ? "goes on" : "is over", i == 0 ? "same" : "former");
	}
	ok(donor_lease_key(lease, now) == number + 1 && memcmp(now, key, sizeof(now)) == 0,
	   "who connects has to prove that he knows the new one");
	ok(owner_stamp(0) == 30 && owner_stamp(1) == 30, "the lease has its regions");
	is_u64(atomic_load(&ngrants) - grants + atomic_load(&nrevokes) - revokes, 0,
		   "which were neither taken nor granted");
	donor_lease_unref(lease);
	(void) donor_lease_key(NULL, now);
	ok(memcmp(now, key, sizeof(now)) != 0, "nobody knows the key of a lease that is not there");
	settle("key");
}

/*
 * As many leases as an answer can name: what takes minutes if each of them is
 * searched for among all the others.
 */
static void
test_many_leases(void)
{
	const int	n = 100000;
	RbpDonorLease *lease;

	for (int round = 0; round < 2; round++)
	{
		donor_apply_begin();
		for (int i = 0; i < n; i++)
			name_lease(1000 + i, (i < n / 2 ? 60 : 600) * SECOND, i == n / 4 ? 0x0f : i == n - 1 ? 0xf0 : 0);
		donor_apply_end();
	}
	check_state("many");
	lease = donor_lease_find("lease-1000");
	ok(lease != NULL && donor_lease_find("lease-999") == NULL, "one of many leases is found");
	donor_lease_unref(lease);
	ok(owner_stamp(0) != 0 && owner_stamp(7) != 0, "they have their regions");

	/* half of them end by the clock */
	pthread_mutex_lock(&donor_lock);
	(void) expire_leases(rbp_boottime_ns() + 60 * SECOND);
	pthread_mutex_unlock(&donor_lock);
	ok(owner_stamp(0) == 0 && owner_stamp(7) != 0, "half of them end, and lose their regions");
	is_u64(say(), (uint64_t) n / 2, "the broker is told of all of these");
	ok(donor_lease_find("lease-1000") == NULL, "which are forgotten then");
	settle("many");
}

static void
test_odd_words(void)
{
	uint8_t		key[RBP_SECRET_LEN];

	memset(key, 9, sizeof(key));
	donor_apply_begin();
	name_with("lease-9", key, NULL, json_pack("[i, I, i]", NREGIONS, (json_int_t) UINT32_MAX, 5), NULL);
	donor_apply_end();
	check_state("beyond");
	ok(owner_stamp(5) == 9, "regions that we do not have are passed over");

	donor_apply_begin();
	name_lease(9, 60 * SECOND, 0x20);
	name_lease(10, 60 * SECOND, 0x60);
	donor_apply_end();
	check_state("twice");
	ok(owner_stamp(5) != 9 && owner_stamp(6) == 10, "a region that two leases name is the last one's");
	settle("odd words");
}

/* Is it all that another broker is told?  Takes over wanted. */
static bool
tells(json_t *wanted)
{
	json_t	   *told = donor_report_leases();
	size_t		i;
	json_t	   *lease;
	bool		same;

	json_array_foreach(told, i, lease)
	{
		json_int_t	remaining = json_integer_value(json_object_get(lease, "remaining_ms"));

		if (remaining > 50000 && remaining <= 60000)
			json_object_del(lease, "remaining_ms");
	}
	same = json_equal(told, wanted);
	json_decref(told);
	json_decref(wanted);
	return same;
}

static void
test_told(void)
{
	const char *key_text = "0909090909090909090909090909090909090909090909090909090909090909";
	json_t	   *about = json_pack("{s:s}", "anything", "at all");
	uint8_t		key[RBP_SECRET_LEN];

	memset(key, 9, sizeof(key));
	donor_apply_begin();
	name_with("lease-9", key, about, json_pack("[i, i]", 6, 2), json_pack("[i, i]", 7, 5));
	name_lease(10, 60 * SECOND, 0x1);
	donor_apply_end();
	ok(tells(json_pack("[{s:s, s:s, s:O, s:[i, i], s:[i, i]}]", "lease", "lease-9", "key", key_text, "about", about,
					   "regions", 2, 6, "revs", 5, 7)),
	   "another broker is told what this one has said of a lease, and nothing of one of which it said nothing");
	donor_apply_begin();
	name_with("lease-9", key, about, json_pack("[i]", 6), NULL);
	donor_apply_end();
	ok(tells(json_pack("[{s:s, s:s, s:O, s:[i], s:[i]}]", "lease", "lease-9", "key", key_text, "about", about,
					   "regions", 6, "revs", 7)),
	   "revs that are not said again are as they were, and what was fenced is not told");
	json_decref(about);
	settle("told");
	ok(tells(json_array()), "nor is a lease that has ended");
}

/*
 * The deadline passes between two of the calls by which the broker's word is
 * applied.
 */
static void
test_end_while_granted(void)
{
	RbpDonorLease *lease;
	uint32_t	grants;

	/* a lease whose first regions are just being granted */
	grants = atomic_load(&ngrants);
	donor_apply_begin();
	name_lease(20, 2 * MS, 0xff);
	ok(await_end("lease-20"), "a lease ends by the clock while its regions are granted");
	donor_apply_end();
	check_state("ended, then granted");
	is_u64(atomic_load(&ngrants) - grants, 0, "none is granted to it");
	for (uint32_t i = 0; i < NREGIONS; i++)
		if (state_of(i) != DONOR_REGION_FREE)
			wrong("ended, then granted: region %u in state %d", i, state_of(i));
	ok(say() == 1, "the broker is told");
	settle("ended, then granted");

	/* one that has some, and would get more */
	donor_apply_begin();
	name_lease(21, 60 * SECOND, 0x0f);
	donor_apply_end();
	grants = atomic_load(&ngrants);
	atomic_store(&renew_us, 3000);
	donor_apply_begin();
	name_lease(21, 2 * MS, 0xff);
	ok(await_end("lease-21"), "a lease ends by the clock while more is granted to it");
	donor_apply_end();
	check_state("more");
	is_u64(atomic_load(&ngrants) - grants, 0, "nothing more is granted to it");
	ok(await_clean() && state_of(0) == DONOR_REGION_FREE, "what it had is cleaned");
	check_state("more, cleaned");

	/* a word that the broker said before it heard of the end */
	donor_apply_begin();
	name_lease(21, 60 * SECOND, 0xff);
	donor_apply_end();
	ok(donor_lease_find("lease-21") == NULL && state_of(0) == DONOR_REGION_FREE,
	   "a broker that does not know yet does not bring it back to life");
	(void) say();
	donor_apply_begin();
	name_lease(21, 60 * SECOND, 0xff);
	donor_apply_end();
	ok(owner_stamp(0) == 21, "one that knows grants anew");
	settle("more");

	/* its deadline passes after the word has begun, before it is named */
	donor_apply_begin();
	name_lease(22, 30 * MS, 0x0f);
	donor_apply_end();
	donor_apply_begin();
	ok(await_end("lease-22"), "a lease ends by the clock before it is named");
	name_lease(22, 60 * SECOND, 0x0f);
	donor_apply_end();
	check_state("not named yet");
	ok(donor_lease_find("lease-22") == NULL, "it stays ended");
	settle("not named yet");

	/* it has passed, and the janitor is late, since it cleans another region */
	donor_apply_begin();
	name_lease(24, 60 * SECOND, 0x0f);
	name_lease(25, 60 * SECOND, 0x10);
	donor_apply_end();
	lease = donor_lease_find("lease-24");
	atomic_store(&renew_us, 300000);
	donor_apply_begin();
	name_lease(24, 30 * MS, 0x0f);
	donor_apply_end();
	while (donor_region_enter(&donor_regions[0], lease, rbp_boottime_ns()))
		donor_region_leave(&donor_regions[0]);
	donor_apply_begin();
	name_lease(24, 60 * SECOND, 0x0f);
	donor_apply_end();
	ok(!donor_region_enter(&donor_regions[0], lease, rbp_boottime_ns()), "who was denied at the deadline stays so if the janitor is late");
	donor_lease_unref(lease);
	settle("a late janitor");

	/* or was over before the word came */
	donor_apply_begin();
	name_lease(23, -1 * SECOND, 0x0f);
	donor_apply_end();
	ok(await_end("lease-23") && await_clean(), "a lease that was over before it came ends");
	check_state("over before");
	settle("over before");

	/* a region moves to a lease that ends meanwhile */
	donor_apply_begin();
	name_lease(24, 60 * SECOND, 0x0f);
	donor_apply_end();
	donor_apply_begin();
	name_lease(25, 2 * MS, 0x0f);
	ok(await_end("lease-25"), "the lease that a region moves to ends");
	donor_apply_end();
	check_state("moved");
	ok(await_clean() && state_of(0) == DONOR_REGION_FREE, "it is nobody's then");
	settle("moved");
}

/* Clients' ways in are closed for all regions before the first is zeroed. */
static void
test_withdrawn_first(void)
{
	uint32_t	revokes = atomic_load(&nrevokes);
	uint32_t	renewals = atomic_load(&nrenewals);

	donor_apply_begin();
	name_lease(29, 60 * SECOND, 0x3f);
	donor_apply_end();
	atomic_store(&renew_us, 20000);
	apply_nothing();
	while (atomic_load(&nrenewals) == renewals)
		sched_yield();
	is_u64(atomic_load(&nrevokes) - revokes, 6,
		   "all keys of a lease are revoked before any of its regions is zeroed");
	settle("withdrawn first");
}

/* The janitor's work takes long. */
static void
test_slow_device(void)
{
	atomic_store(&revoke_us, 20000);
	donor_apply_begin();
	name_lease(30, 60 * SECOND, 0x01);
	name_lease(31, 30 * MS, 0x02);
	donor_apply_end();
	atomic_store(&donor_regions[0].exposed, true);
	donor_apply_begin();
	name_lease(31, 30 * MS, 0x02);
	donor_apply_end();
	for (int i = 0; i < 20; i++)
	{
		/* grants of a region that is being revoked change nothing */
		donor_apply_begin();
		name_lease(31, 0, 0x02);
		name_lease(32, 60 * SECOND, 0x01);
		donor_apply_end();
		check_state("slow");
		usleep(3000);
	}
	ok(await_clean(), "a device takes its time to revoke");
	donor_apply_begin();
	name_lease(32, 60 * SECOND, 0x01);
	donor_apply_end();
	ok(owner_stamp(0) == 32, "then the region is granted again");
	settle("slow");
}

static void
wake_janitor(void)
{
	pthread_mutex_lock(&donor_lock);
	pthread_cond_signal(&janitor_wake);
	pthread_mutex_unlock(&donor_lock);
}

static void
test_pressure(void)
{
	uint32_t	released = 0;
	int64_t		until;

	donor_apply_begin();
	name_lease(40, 60 * SECOND, 0x03);
	donor_apply_end();
	pthread_mutex_lock(&donor_lock);
	min_free = 8 * donor_region_size;
	pthread_mutex_unlock(&donor_lock);
	atomic_store(&available, 4 * donor_region_size);
	wake_janitor();
	ok(await_state(NREGIONS - 1, DONOR_REGION_RELEASED), "short of memory, free regions are given back");
	until = rbp_boottime_ns() + 5 * SECOND;
	do
	{
		released = 0;
		for (uint32_t i = 0; i < NREGIONS; i++)
			released += state_of(i) == DONOR_REGION_RELEASED;
		usleep(500);
	} while (released < 6 && rbp_boottime_ns() < until);
	check_state("pressure");
	ok(released >= 4 && state_of(0) == DONOR_REGION_LEASED, "not those in use");

	/* one that ends under pressure is given back too, its keys revoked first */
	donor_apply_begin();
	name_lease(41, 60 * SECOND, 0x01);
	donor_apply_end();
	ok(await_state(1, DONOR_REGION_RELEASED), "a region that loses its lease as well");
	check_state("pressure, ended");

	/* granted without memory: gets some, and goes to nobody who has ended */
	atomic_store(&available, 100 * donor_region_size);
	donor_apply_begin();
	name_lease(42, 3 * MS, 0xf0);
	donor_apply_end();
	ok(await_end("lease-42"), "a lease ends while a region gets memory for it");
	donor_apply_begin();
	name_lease(42, 60 * SECOND, 0xf0);
	donor_apply_end();
	check_state("pressure, granted");
	ok(await_clean(), "the memory comes");
	check_state("pressure, clean");

	/* there is none after all */
	atomic_store(&no_memory, true);
	donor_apply_begin();
	donor_apply_end();
	ok(await_clean(), "no memory for those that lose their lease");
	check_state("no memory");
	atomic_store(&no_memory, false);
	wake_janitor();

	/* with plenty they come back one by one */
	for (int i = 0; i < 2 * NREGIONS; i++)
	{
		wake_janitor();
		usleep(2000);
	}
	for (uint32_t i = 0; i < NREGIONS; i++)
		if (!await_state(i, DONOR_REGION_FREE))
			wrong("region %u does not come back", i);
	pthread_mutex_lock(&donor_lock);
	min_free = 0;
	pthread_mutex_unlock(&donor_lock);
	atomic_store(&available, UINT64_MAX);
	settle("pressure");
}

/* ---- all at once ------------------------------------------------------------ */

static atomic_bool stop;
static atomic_uint serving;		/* stamp that the serving thread uses */
static atomic_ullong by_key;
static atomic_ullong by_request;

/* Nobody's stamp but ours may be in a region that is ours. */
static void
use_region(uint32_t region, uint8_t stamp, const char *how)
{
	for (int i = 0; i < REGION_BYTES; i += 8)
	{
		uint8_t		found = __atomic_load_n(&arena[region][i], __ATOMIC_RELAXED);

		if (found != 0 && found != stamp)
			wrong("%s: region %u of %u has %u in it", how, region, stamp, found);
		__atomic_store_n(&arena[region][i], stamp, __ATOMIC_RELAXED);
	}
}

/* Clients with keys: they ask nobody. */
static void *
by_key_main(void *arg)
{
	(void) arg;
	for (uint32_t n = 0; !atomic_load(&stop); n++)
	{
		uint32_t	region = n % NREGIONS;

		pthread_mutex_lock(&key_lock);
		if (key_stamp[region] != 0)
		{
			use_region(region, key_stamp[region], "by key");
			atomic_fetch_add(&by_key, 1);
		}
		pthread_mutex_unlock(&key_lock);
		if (region == 0)
			sched_yield();
	}
	return NULL;
}

/* A serving thread's way in. */
static void *
by_request_main(void *arg)
{
	(void) arg;
	for (uint32_t n = 0; !atomic_load(&stop); n++)
	{
		char		id[RBP_LEASE_ID_LEN];
		uint8_t		stamp = (uint8_t) (atomic_load(&serving) - n % 3);
		RbpDonorLease *lease;

		snprintf(id, sizeof(id), "lease-%u", stamp);
		lease = donor_lease_find(id);
		if (lease == NULL)
		{
			sched_yield();
			continue;
		}
		for (uint32_t i = 0; i < NREGIONS; i++)
			if (donor_region_enter(&donor_regions[i], lease, rbp_boottime_ns()))
			{
				atomic_fetch_add(&inside[i], 1);
				use_region(i, stamp, "by request");
				if (atomic_fetch_add(&by_request, 1) % 64 == 0)
					usleep(500);	/* as if another had the core */
				atomic_fetch_sub(&inside[i], 1);
				donor_region_leave(&donor_regions[i]);
			}
		donor_lease_unref(lease);
	}
	return NULL;
}

static bool
enough(uint32_t ended)
{
	return ended > 20 && atomic_load(&by_key) > 100 && atomic_load(&by_request) > 100;
}

static void
test_all_at_once(void)
{
	unsigned int seed = 12345;
	int64_t		until = rbp_boottime_ns() + 2 * SECOND;
	pthread_t	threads[3];
	uint32_t	rounds = 0;
	uint32_t	ended = 0;
	uint8_t		stamp = 50;
	uint32_t	before = atomic_load(&wrongs);

	atomic_store(&revoke_us, 100);
	atomic_store(&renew_us, 100);
	if (pthread_create(&threads[0], NULL, by_key_main, NULL) != 0 ||
		pthread_create(&threads[1], NULL, by_request_main, NULL) != 0 ||
		pthread_create(&threads[2], NULL, by_request_main, NULL) != 0)
		abort();
	while (rbp_boottime_ns() < until ||
		   (!enough(ended) && rbp_boottime_ns() < until + 60 * SECOND))
	{
		uint32_t	left = 0xff;

		/* up to three leases, the oldest may be gone, the deadlines short */
		donor_apply_begin();
		for (int i = rand_r(&seed) % 3; i >= 0; i--)
		{
			uint32_t	mask = (uint32_t) rand_r(&seed) & left;

			name_lease((uint8_t) (stamp - i), (rand_r(&seed) % 3000) * (MS / 1000), mask);
			left &= ~mask;
		}
		if (rand_r(&seed) % 4 == 0)
			usleep(rand_r(&seed) % 1500);
		donor_apply_end();
		check_state("all at once");
		if (rand_r(&seed) % 8 == 0)
			atomic_store(&donor_regions[rand_r(&seed) % NREGIONS].exposed, true);
		atomic_store(&no_memory, rand_r(&seed) % 16 == 0);
		if (rand_r(&seed) % 2 == 0)
			ended += say();
		if (rand_r(&seed) % 4 == 0)
			stamp = stamp == 255 ? 50 : stamp + 1;
		atomic_store(&serving, stamp);
		if (rand_r(&seed) % 4 == 0)
			usleep(rand_r(&seed) % 2000);
		rounds++;
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	atomic_store(&no_memory, false);
	diag("%u words, %u leases ended by the clock, %llu uses by key, %llu by request",
		 rounds, ended, atomic_load(&by_key), atomic_load(&by_request));
	ok(enough(ended),
	   "leases end, and are used, while others are granted");
	is_u64(atomic_load(&wrongs) - before, 0, "with nothing out of order");

	/* those that lost their memory come back when there is pressure no more */
	pthread_mutex_lock(&donor_lock);
	min_free = 1;
	pthread_mutex_unlock(&donor_lock);
	atomic_store(&available, 100 * donor_region_size);
	apply_nothing();
	for (uint32_t i = 0; i < NREGIONS; i++)
	{
		for (int n = 0; n < 1000 && state_of(i) != DONOR_REGION_FREE; n++)
		{
			wake_janitor();
			usleep(1000);
		}
	}
	pthread_mutex_lock(&donor_lock);
	min_free = 0;
	pthread_mutex_unlock(&donor_lock);
	atomic_store(&available, UINT64_MAX);
	settle("all at once");
}

/* The bound on a client's connections holds whoever takes them at once. */
static void *
take_connections(void *arg)
{
	for (int i = 0; i < 20000; i++)
	{
		RbpDonorClient *client = donor_lease_connect(arg);

		if (client != NULL)
			donor_lease_disconnect(client);
	}
	return NULL;
}

static void
test_connections(void)
{
	RbpDonorLease lease = {.id = "full",.client = "c"};
	RbpDonorLease same = {.id = "same",.client = "c"};
	RbpDonorLease other = {.id = "other",.client = "c/1"};
	RbpDonorClient *client = donor_lease_connect(&lease);
	RbpDonorClient *another;
	RbpDonorClient *client2;
	char		text[DONOR_LEASE_TEXT_LEN];
	pthread_t	threads[4];

	ok(client != NULL && donor_lease_connect(&same) == client && donor_lease_connect(&lease) == client,
	   "a client has so many connections, with all its leases");
	ok(donor_lease_connect(&lease) == NULL && donor_lease_connect(&same) == NULL, "and no more");
	another = donor_lease_connect(&other);
	ok(another != NULL && another != client, "which does not concern another one");
	donor_lease_disconnect(client);
	ok(donor_lease_connect(&same) == client && donor_lease_connect(&lease) == NULL, "one that ends makes room for one");
	strcpy(lease.client, "c/1");
	ok(donor_lease_connect(&lease) == another && another->connections == 2 && client->connections == 3,
	   "a lease that changes its client counts for the new one from then on");
	ok(donor_lease_connect(&other) == NULL, "there is a bound for all of a name");
	strcpy(same.client, "c2");
	client2 = donor_lease_connect(&same);
	ok(client2 != NULL, "and another name has its own");
	donor_lease_disconnect(client2);
	strcpy(same.client, "c");
	ok(strcmp(donor_lease_text(&lease, text), "lease full of server \"c/1\"") == 0, "%s", text);
	donor_lease_disconnect(another);
	donor_lease_disconnect(another);
	for (int i = 0; i < 3; i++)
		donor_lease_disconnect(client);
	ok(clients == NULL, "nothing is left of who has none");
	for (int i = 0; i < 4; i++)
		if (pthread_create(&threads[i], NULL, take_connections, i % 2 == 0 ? &same : &other) != 0)
			abort();
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	ok(clients == NULL, "threads leave nothing behind");
}

int
main(void)
{
	const RbpDonorRdma keys = {.granted = granted,.revoke = revoke_keys};

	donor_nregions = NREGIONS;
	donor_region_size = REGION_BYTES;
	donor_regions = calloc(NREGIONS, sizeof(RbpDonorRegion));
	if (donor_regions == NULL)
		abort();
	for (uint32_t i = 0; i < NREGIONS; i++)
	{
		donor_regions[i].base = arena[i];
		donor_regions[i].fd = -1;
		clean[i] = revoked[i] = true;
	}
	rbp_log_init("test_donor_lease", RBP_LOG_WARNING);
	donor_lease_set_rdma(&keys);
	donor_lease_init(0, 3, 5);

	test_connections();
	test_grants();
	test_key();
	test_many_leases();
	test_odd_words();
	test_told();
	test_end_while_granted();
	test_withdrawn_first();
	test_slow_device();
	test_pressure();
	test_all_at_once();

	is_u64(atomic_load(&wrongs), 0, "nothing happened out of order");
	return done_testing();
}
