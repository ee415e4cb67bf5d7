/*-------------------------------------------------------------------------
 *
 * state.c
 *	  The broker's memory: donors, regions, leases, and the few ways in which
 *	  they change.  Locking and invariants: see state.h.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/db.h"
#include "broker/broker/model.h"
#include "broker/broker/state.h"
#include "broker/common/log.h"
#include "common/clock.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

BrokerState broker;

/*
 * ---- lock, commit, wait -------------------------------------------------------
 */

void
broker_state_init(int64_t donor_timeout_ms)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&broker.lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&broker.changed, &attr);
	pthread_condattr_destroy(&attr);
	broker.check = getenv("REMOTE_BP_BROKER_CHECK") != NULL;
	broker.started = rbp_mono_ms();
	broker.donor_timeout_ms = donor_timeout_ms;
}

void
broker_begin(void)
{
	pthread_mutex_lock(&broker.lock);
}

void
broker_commit(void)
{
	for (BrokerDonor *donor = broker.donors; donor != NULL; donor = donor->next)
	{
		if (!donor->touched)
			continue;
		broker_db_put_donor(donor);
		donor->touched = false;
		broker.wake = true;
	}
	broker_db_commit();
	if (broker.check)
		broker_check();
	if (broker.wake)
	{
		broker.wake = false;
		pthread_cond_broadcast(&broker.changed);
	}
}

void
broker_end(void)
{
	pthread_mutex_unlock(&broker.lock);
}

bool
broker_wait(int64_t deadline)
{
	struct timespec ts;

	if (broker.stopping || rbp_mono_ms() >= deadline)
		return false;
	ts.tv_sec = deadline / 1000;
	ts.tv_nsec = deadline % 1000 * 1000000;
	pthread_cond_timedwait(&broker.changed, &broker.lock, &ts);
	return true;
}

void
broker_stop(void)
{
	broker_begin();
	broker.stopping = true;
	pthread_cond_broadcast(&broker.changed);
	broker_end();
}

/*
 * ---- donors -------------------------------------------------------------------
 */

BrokerDonor *
broker_donor_find(const char *id)
{
	for (BrokerDonor *donor = broker.donors; donor != NULL; donor = donor->next)
	{
		if (strcmp(donor->id, id) == 0)
			return donor;
	}
	return NULL;
}

BrokerDonor *
broker_donor_new(const char *id, int nregions)
{
	BrokerDonor *donor = calloc(1, sizeof(BrokerDonor));

	if (donor == NULL)
		return NULL;
	donor->regions = calloc((size_t) nregions, sizeof(BrokerRegion));
	if (donor->regions == NULL)
	{
		free(donor);
		return NULL;
	}
	donor->nregions = nregions;
	strncpy(donor->id, id, sizeof(donor->id) - 1);
	donor->grace_ms = BROKER_DEFAULT_GRACE_MS;
	donor->last_heard = broker.started;
	return donor;
}

json_t *
broker_donor_address(const BrokerDonor *donor)
{
	json_t	   *address = json_pack("{s:s, s:s, s:i, s:o}",
									"id", donor->id,
									"host", donor->host,
									"port", donor->port,
									"transports", json_deep_copy(donor->transports));

	if (donor->rdma_host[0] != '\0')
	{
		json_object_set_new(address, "rdma_host", json_string(donor->rdma_host));
		json_object_set_new(address, "rdma_port", json_integer(donor->rdma_port));
	}
	return address;
}

void
broker_donor_free(BrokerDonor *donor)
{
	json_decref(donor->transports);
	json_decref(donor->stats);
	free(donor->regions);
	free(donor);
}

void
broker_donor_link(BrokerDonor *donor)
{
	BrokerDonor **link = &broker.donors;

	while (*link != NULL && strcmp((*link)->id, donor->id) < 0)
		link = &(*link)->next;
	donor->next = *link;
	*link = donor;
	broker.ndonors++;
}

void
broker_donor_forget(BrokerDonor *donor)
{
	BrokerDonor **link = &broker.donors;

	while (*link != donor)
		link = &(*link)->next;
	*link = donor->next;
	broker.ndonors--;
	broker_db_delete_donor(donor);
	broker_donor_free(donor);

	/* its own heartbeat may be waiting, and should learn */
	broker.wake = true;
}

void
broker_donor_touch(BrokerDonor *donor)
{
	if (donor->touched)
		return;
	donor->touched = true;
	donor->revision++;
}

BrokerDonorStatus
broker_donor_status(const BrokerDonor *donor, int64_t now)
{
	int64_t		silent = now - donor->last_heard;

	if (silent >= 3 * broker.donor_timeout_ms)
		return DONOR_GONE;
	if (silent >= broker.donor_timeout_ms || !donor->heard)
		return DONOR_AWAY;
	return donor->draining ? DONOR_DRAINING : DONOR_UP;
}

const char *
broker_donor_status_name(BrokerDonorStatus status)
{
	static const char *const names[] = {"up", "draining", "away", "gone"};

	return names[status];
}

/*
 * ---- leases -------------------------------------------------------------------
 */

static BrokerLease *
find_in(BrokerLease *list, const char *id)
{
	for (BrokerLease *lease = list; lease != NULL; lease = lease->next)
	{
		if (strcmp(lease->id, id) == 0)
			return lease;
	}
	return NULL;
}

BrokerLease *
broker_lease_find(const char *id)
{
	return find_in(broker.leases, id);
}

BrokerLease *
broker_lease_find_ended(const char *id)
{
	return find_in(broker.ended, id);
}

BrokerHolding *
broker_lease_holding(const BrokerLease *lease, const BrokerDonor *donor)
{
	for (BrokerHolding *holding = lease->holdings; holding != NULL;
		 holding = holding->next)
	{
		if (holding->donor == donor)
			return holding;
	}
	return NULL;
}

void
broker_lease_link(BrokerLease *lease)
{
	lease->next = broker.leases;
	broker.leases = lease;
	broker.nleases++;
}

static void
lease_link_ended(BrokerLease *lease)
{
	lease->next = broker.ended;
	broker.ended = lease;
	broker.nended++;

	if (broker.nended > BROKER_MAX_ENDED)
	{
		BrokerLease **link = &broker.ended;
		BrokerLease *oldest;

		while ((*link)->next != NULL)
			link = &(*link)->next;
		oldest = *link;
		*link = NULL;
		broker.nended--;
		broker_db_delete_lease(oldest);
		free(oldest);
	}
}

const char *
broker_lease_end_text(BrokerLeaseEnd why)
{
	switch (why)
	{
		case LEASE_LIVE:
			return "is live";
		case LEASE_EXPIRED:
			return "has expired";
		case LEASE_REVOKED:
			return "was revoked";
		case LEASE_RELEASED:
			return "was given back";
		case LEASE_TAKEN_OVER:
			return "was taken over by another instance of its client";
	}
	return "has ended";
}

int
broker_lease_leave_donor(BrokerLease *lease, BrokerDonor *donor)
{
	int			left = 0;

	if (broker_lease_holding(lease, donor) == NULL)
		return 0;
	for (int i = 0; i < donor->nregions; i++)
	{
		if (donor->regions[i].lease == lease)
		{
			broker_region_unlease(donor, i);
			left++;
		}
	}
	return left;
}

int
broker_donor_drop_leases(BrokerDonor *donor)
{
	int			dropped = 0;

	for (int i = 0; i < donor->nregions; i++)
	{
		if (donor->regions[i].state == REGION_LEASED)
		{
			broker_region_unlease(donor, i);
			dropped++;
		}
	}
	return dropped;
}

int
broker_lease_end(BrokerLease *lease, BrokerLeaseEnd why)
{
	BrokerLease **link = &broker.leases;
	int			regions = 0;

	while (lease->holdings != NULL)
		regions += broker_lease_leave_donor(lease, lease->holdings->donor);

	while (*link != lease)
		link = &(*link)->next;
	*link = lease->next;
	broker.nleases--;

	lease->ended = why;
	OPENSSL_cleanse(lease->secret, sizeof(lease->secret));
	broker_db_put_lease(lease);
	lease_link_ended(lease);
	return regions;
}

/*
 * ---- regions ------------------------------------------------------------------
 */

static void
holding_add(BrokerLease *lease, BrokerDonor *donor, int64_t rev)
{
	BrokerHolding *holding = broker_lease_holding(lease, donor);

	if (holding == NULL)
	{
		holding = calloc(1, sizeof(BrokerHolding));
		if (holding == NULL)
		{
			rbp_log(RBP_LOG_ERROR, "out of memory");
			abort();
		}
		holding->donor = donor;
		holding->next = lease->holdings;
		lease->holdings = holding;
	}
	holding->regions++;
	if (rev > holding->granted_rev)
		holding->granted_rev = rev;
	lease->bytes += donor->region_size;
}

static void
holding_remove(BrokerLease *lease, BrokerDonor *donor)
{
	BrokerHolding **link = &lease->holdings;
	BrokerHolding *holding;

	while ((*link)->donor != donor)
		link = &(*link)->next;
	holding = *link;
	holding->regions--;
	lease->bytes -= donor->region_size;
	if (holding->asked > 0 && --holding->asked == 0)
		holding->taken_at = 0;
	if (holding->shared > holding->asked)
		holding->shared = holding->asked;
	if (holding->regions == 0)
	{
		*link = holding->next;
		free(holding);
	}
}

void
broker_region_lease(BrokerDonor *donor, int region, BrokerLease *lease)
{
	BrokerRegion *r = &donor->regions[region];

	if (r->state != REGION_CLEAN)
		abort();
	broker_donor_touch(donor);
	r->state = REGION_LEASED;
	r->lease = lease;
	r->rev = donor->revision;
	donor->nleased++;
	holding_add(lease, donor, r->rev);
	broker_db_put_region(donor, region);
}

void
broker_region_unlease(BrokerDonor *donor, int region)
{
	BrokerRegion *r = &donor->regions[region];

	if (r->state != REGION_LEASED)
		abort();
	broker_donor_touch(donor);
	holding_remove(r->lease, donor);
	r->state = REGION_DIRTY;
	r->lease = NULL;
	r->rev = donor->revision;
	donor->nleased--;
	donor->ndirty++;
	broker_db_put_region(donor, region);
}

void
broker_region_cleaned(BrokerDonor *donor, int region)
{
	BrokerRegion *r = &donor->regions[region];

	if (r->state != REGION_DIRTY)
		abort();
	r->state = REGION_CLEAN;
	donor->ndirty--;
	if (region < donor->clean_hint)
		donor->clean_hint = region;
	broker_db_put_region(donor, region);

	/* a new lease may be waiting for it */
	broker.wake = true;
}

void
broker_region_distrust(BrokerDonor *donor, int region)
{
	BrokerRegion *r = &donor->regions[region];

	if (r->state != REGION_CLEAN)
		abort();
	broker_donor_touch(donor);
	r->state = REGION_DIRTY;
	r->rev = donor->revision;
	donor->ndirty++;
	broker_db_put_region(donor, region);
}

/*
 * ---- check --------------------------------------------------------------------
 */

#define CHECK(cond) \
	do { \
		if (!(cond)) \
		{ \
			rbp_log(RBP_LOG_ERROR, "broken invariant: %s", #cond); \
			abort(); \
		} \
	} while (0)

void
broker_check(void)
{
	int			ndonors = 0;
	int			nleases = 0;

	for (BrokerDonor *donor = broker.donors; donor != NULL; donor = donor->next)
	{
		int			nleased = 0;
		int			ndirty = 0;
		int			held = 0;

		for (int i = 0; i < donor->nregions; i++)
		{
			BrokerRegion *r = &donor->regions[i];

			CHECK((r->state == REGION_LEASED) == (r->lease != NULL));
			CHECK(r->lease == NULL || r->lease->ended == LEASE_LIVE);
			CHECK(r->lease == NULL || broker_lease_holding(r->lease, donor) != NULL);
			CHECK(r->rev <= donor->revision);
			CHECK(r->state != REGION_CLEAN || i >= donor->clean_hint);
			nleased += r->state == REGION_LEASED;
			ndirty += r->state == REGION_DIRTY;
		}
		CHECK(nleased == donor->nleased);
		CHECK(ndirty == donor->ndirty);
		CHECK(donor->next == NULL || strcmp(donor->id, donor->next->id) < 0);
		for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
		{
			BrokerHolding *holding = broker_lease_holding(lease, donor);

			if (holding != NULL)
			{
				CHECK(holding->regions > 0);
				CHECK(holding->asked >= 0 && holding->asked <= holding->regions);
				CHECK(holding->asked > 0 || holding->taken_at == 0);
				CHECK(holding->shared >= 0 && holding->shared <= holding->regions);
				held += holding->regions;
			}
		}
		CHECK(held == nleased);
		ndonors++;
	}
	for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		int64_t		bytes = 0;

		CHECK(lease->ended == LEASE_LIVE);
		for (BrokerHolding *h = lease->holdings; h != NULL; h = h->next)
			bytes += h->regions * h->donor->region_size;
		CHECK(bytes == lease->bytes);
		nleases++;
	}
	for (BrokerLease *lease = broker.ended; lease != NULL; lease = lease->next)
		CHECK(lease->ended != LEASE_LIVE && lease->holdings == NULL && lease->bytes == 0);
	CHECK(ndonors == broker.ndonors);
	CHECK(nleases == broker.nleases);
}

int
broker_donor_limit(const BrokerDonor *donor)
{
	int			limit;

	if (donor->draining)
		return 0;
	limit = donor->nregions - donor->want_back;
	return limit > 0 ? limit : 0;
}

int
broker_donor_free_regions(const BrokerDonor *donor, int64_t now)
{
	int			clean = donor->nregions - donor->nleased - donor->ndirty;
	int			limit = broker_donor_limit(donor) - donor->nleased;

	if (broker_donor_status(donor, now) != DONOR_UP)
		return 0;
	if (clean < limit)
		limit = clean;
	return limit > 0 ? limit : 0;
}

/*
 * ---- what was on disk ---------------------------------------------------------
 */

static bool
region_restore(BrokerDonor *donor, int region, BrokerRegionState region_state,
			   BrokerLease *lease, int64_t rev)
{
	BrokerRegion *r;

	if (region < 0 || region >= donor->nregions)
		return false;
	r = &donor->regions[region];
	if (r->state != REGION_CLEAN)
		return false;
	r->state = region_state;
	r->rev = rev;
	switch (region_state)
	{
		case REGION_LEASED:
			if (lease == NULL)
				return false;
			r->lease = lease;
			donor->nleased++;
			holding_add(lease, donor, rev);
			return true;
		case REGION_DIRTY:
			donor->ndirty++;
			return true;
		case REGION_CLEAN:
			break;
	}
	return false;
}

static void
load_lease(BrokerLease *lease)
{
	/* its holder may not have reached us for a while: the full TTL */
	lease->deadline = broker.started + lease->ttl_ms;
	if (lease->ended == LEASE_LIVE)
		broker_lease_link(lease);
	else
		lease_link_ended(lease);
}

static bool
load_region(const char *donor_id, int region, BrokerRegionState state,
			const char *lease_id, int64_t rev)
{
	BrokerDonor *donor = broker_donor_find(donor_id);

	return donor != NULL &&
		region_restore(donor, region, state,
					   lease_id != NULL ? broker_lease_find(lease_id) : NULL, rev);
}

void
broker_state_open(const char *path)
{
	static const BrokerLoader loader = {
		.new_donor = broker_donor_new,
		.donor = broker_donor_link,
		.lease = load_lease,
		.region = load_region,
	};

	broker_db_open(path, &loader);
	rbp_log(RBP_LOG_INFO, "state file \"%s\": %d donors, %d leases", path,
			broker.ndonors, broker.nleases);
}
