/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  Which lease may use which region, and until when.
 *
 * Leases come from the broker's answers to heartbeats, each of which has the
 * complete desired state of this donor.  A lease ends because the broker does
 * not name it any more, or because its deadline passes by this host's clock,
 * even if the broker is gone.  Every request checks the deadline itself.  Soon
 * after the deadline the janitor thread fences the regions, also those that
 * are used through shared memory, where no request would be checked.
 *
 * A region goes from FREE to LEASED (granted) to DIRTY (lost its lease) and
 * back to FREE (zeroed, to be reported clean), or to RELEASED if memory is
 * short: then it has none, and goes through DIRTY again to get some.  Three
 * things are done to a region that has lost its lease:
 *	 - fence: no request may enter it any more;
 *	 - withdraw: rkeys and mappings that clients have become invalid;
 *	 - clean: it gets fresh, zeroed memory.
 * The last two are the janitor's, with no lock held.  Cleaning takes tens of
 * milliseconds, so all dirty regions are withdrawn first: no client keeps
 * access while a region waits to be cleaned.
 *
 * A lease that ended by our clock stays in the table, ended and without
 * regions, until the broker has acknowledged that.  Otherwise a broker that
 * does not know yet would bring it back to life.  If the broker names the
 * lease after that, it is a new grant, perhaps under the same id.
 *
 * When memory is short (--min-free), the janitor gives the memory of free
 * regions back to the system at once and counts how many more would be needed;
 * the control thread asks the broker for those.  When there is plenty again,
 * the regions get memory again, or earlier if they are granted.  Regions in
 * huge pages are kept, since giving these back only returns them to their
 * pool.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/log.h"
#include "broker/common/secret.h"
#include "broker/common/signals.h"
#include "broker/donor/lease.h"
#include "broker/donor/memory.h"
#include "common/clock.h"
#include "common/text.h"
#include "transport/peer.h"

#include <pthread.h>
#include <sched.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PRESSURE_TICK_NS	INT64_C(250000000)
#define YIELDS				100

static pthread_mutex_t donor_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t janitor_wake;

/* protected by donor_lock */
static RbpDonorClient *clients; /* that have connections */
static RbpDonorLease *leases;
static void *leases_by_digest;	/* the same, as a tree of <search.h> */
static int64_t soonest = INT64_MAX; /* no lease's deadline is before this */
static bool fenced;				/* regions were, since withdraw_dirty() */
static uint32_t region_counts[DONOR_REGION_STATES]; /* in each state */
static uint32_t reclaimable;	/* regions that are needed, and only clients
								 * can give back */

static uint64_t min_free;
static int	max_connections;	/* of a client */
static int	max_of_name;		/* of clients with one name before a slash */
static const RbpDonorRdma *rdma;

/*
 * ---- leases --------------------------------------------------------------
 */
void
donor_lease_unref(RbpDonorLease *lease)
{
	if (lease != NULL && atomic_fetch_sub(&lease->refs, 1) == 1)
	{
		explicit_bzero(lease->key, sizeof(lease->key));
		json_decref(lease->about);
		free(lease);
	}
}

static int
compare_digests(const void *a, const void *b)
{
	return memcmp(((const RbpDonorLease *) a)->digest,
				  ((const RbpDonorLease *) b)->digest, RBP_VERBS_DIGEST_LEN);
}

static RbpDonorLease *
lookup(const uint8_t digest[RBP_VERBS_DIGEST_LEN])
{
	RbpDonorLease key;
	RbpDonorLease **found;

	memcpy(key.digest, digest, RBP_VERBS_DIGEST_LEN);
	found = tfind(&key, &leases_by_digest, compare_digests);
	return found != NULL ? *found : NULL;
}

/* Enter a lease into the table. */
static RbpDonorLease *
add_lease(const RbpDonorDesired *desired, const uint8_t digest[RBP_VERBS_DIGEST_LEN])
{
	RbpDonorLease *lease = calloc(1, sizeof(*lease));

	if (lease == NULL)
		rbp_die("out of memory");
	strncpy(lease->id, desired->id, sizeof(lease->id) - 1);
	memcpy(lease->key, desired->key, RBP_SECRET_LEN);
	memcpy(lease->digest, digest, RBP_VERBS_DIGEST_LEN);
	atomic_store(&lease->refs, 1);
	if (tsearch(lease, &leases_by_digest, compare_digests) == NULL)
		rbp_die("out of memory");
	lease->next = leases;
	leases = lease;
	return lease;
}

/* Remove from the table the lease that *prev points to. */
static void
remove_lease(RbpDonorLease **prev)
{
	RbpDonorLease *lease = *prev;

	(void) tdelete(lease, &leases_by_digest, compare_digests);
	*prev = lease->next;
	donor_lease_unref(lease);
}

RbpDonorLease *
donor_lease_find_digest(const uint8_t digest[RBP_VERBS_DIGEST_LEN])
{
	RbpDonorLease *lease;

	pthread_mutex_lock(&donor_lock);
	lease = lookup(digest);
	if (lease != NULL && atomic_load(&lease->ended))
		lease = NULL;
	if (lease != NULL)
		atomic_fetch_add(&lease->refs, 1);
	pthread_mutex_unlock(&donor_lock);
	return lease;
}

RbpDonorLease *
donor_lease_find(const char *id)
{
	uint8_t		digest[RBP_VERBS_DIGEST_LEN];

	return rbp_verbs_lease_digest(id, digest) ? donor_lease_find_digest(digest) : NULL;
}

unsigned int
donor_lease_key(RbpDonorLease *lease, uint8_t key[RBP_SECRET_LEN])
{
	unsigned int number = 0;

	/* in both cases, so that they take the same time */
	rbp_random_bytes(key, RBP_SECRET_LEN);
	pthread_mutex_lock(&donor_lock);
	if (lease != NULL)
	{
		memcpy(key, lease->key, RBP_SECRET_LEN);
		number = atomic_load(&lease->key_number);
	}
	pthread_mutex_unlock(&donor_lock);
	return number;
}

/* Have they the same name, or the same before a slash?  Then one credential may have both. */
static bool
same_name(const char *a, const char *b)
{
	size_t		len = strcspn(a, "/");

	return len == strcspn(b, "/") && strncmp(a, b, len) == 0;
}

RbpDonorClient *
donor_lease_connect(RbpDonorLease *lease)
{
	RbpDonorClient *client = NULL;
	int			of_name = 0;

	pthread_mutex_lock(&donor_lock);
	for (RbpDonorClient *other = clients; other != NULL; other = other->next)
	{
		if (!same_name(other->name, lease->client))
			continue;
		of_name += other->connections;
		if (strcmp(other->name, lease->client) == 0)
			client = other;
	}
	if (of_name >= max_of_name || (client != NULL && client->connections >= max_connections))
		client = NULL;
	else
	{
		if (client == NULL)
		{
			client = calloc(1, sizeof(*client));
			if (client == NULL)
				rbp_die("out of memory");
			strcpy(client->name, lease->client);
			client->next = clients;
			clients = client;
		}
		client->connections++;
	}
	pthread_mutex_unlock(&donor_lock);
	return client;
}

void
donor_lease_disconnect(RbpDonorClient *client)
{
	RbpDonorClient **prev = &clients;

	pthread_mutex_lock(&donor_lock);
	if (--client->connections == 0)
	{
		while (*prev != client)
			prev = &(*prev)->next;
		*prev = client->next;
		free(client);
	}
	pthread_mutex_unlock(&donor_lock);
}

const char *
donor_lease_text(RbpDonorLease *lease, char text[DONOR_LEASE_TEXT_LEN])
{
	pthread_mutex_lock(&donor_lock);
	snprintf(text, DONOR_LEASE_TEXT_LEN, "lease %s of server \"%s\"", lease->id, lease->client);
	pthread_mutex_unlock(&donor_lock);
	return text;
}

bool
donor_region_enter(RbpDonorRegion *region, RbpDonorLease *lease, int64_t now)
{
	atomic_fetch_add(&region->users, 1);
	if (atomic_load(&region->owner) == lease && !atomic_load(&lease->ended) &&
		now < atomic_load(&lease->deadline_ns))
		return true;
	atomic_fetch_sub(&region->users, 1);
	return false;
}

void
donor_region_leave(RbpDonorRegion *region)
{
	atomic_fetch_sub(&region->users, 1);
}

static void
set_state(RbpDonorRegion *region, RbpDonorRegionState state)
{
	region_counts[region->state]--;
	region_counts[state]++;
	region->state = state;
	if (state == DONOR_REGION_DIRTY)
		pthread_cond_signal(&janitor_wake);
}

/*
 * Fence a region, that is, take it from its lease.  From here on nobody can
 * enter it; the janitor waits for those who are inside.
 */
static void
fence_region(RbpDonorRegion *region)
{
	RbpDonorLease *lease = atomic_load(&region->owner);

	atomic_store(&region->owner, NULL);
	lease->nregions--;
	region->unreachable = false;
	region->clean_unreported = false;
	fenced = true;
	set_state(region, DONOR_REGION_DIRTY);
}

/*
 * ---- desired state -------------------------------------------------------
 */

/* For each region, the lease that has named it since donor_apply_begin(). */
static RbpDonorLease **named;

void
donor_apply_begin(void)
{
	if (named == NULL)
		named = calloc(donor_nregions, sizeof(*named));
	if (named == NULL)
		rbp_die("out of memory");
	memset(named, 0, donor_nregions * sizeof(*named));

	pthread_mutex_lock(&donor_lock);
	for (RbpDonorLease *lease = leases; lease != NULL; lease = lease->next)
		lease->listed = false;
	pthread_mutex_unlock(&donor_lock);
}

void
donor_apply_lease(const RbpDonorDesired *desired, int64_t now)
{
	int64_t		deadline_ns = now + desired->ttl_ms * NANOS_PER_MS;
	uint8_t		digest[RBP_VERBS_DIGEST_LEN];
	RbpDonorLease *lease;
	const json_t *region;
	size_t		i;
	bool		over;

	if (!rbp_verbs_lease_digest(desired->id, digest))
		rbp_die("out of memory");
	pthread_mutex_lock(&donor_lock);
	lease = lookup(digest);

	/*
	 * requests have been denied since its deadline, also if the janitor has
	 * not come to it
	 */
	over = lease != NULL && atomic_load(&lease->deadline_ns) <= rbp_boottime_ns();
	if (lease == NULL)
		lease = add_lease(desired, digest);
	snprintf(lease->client, sizeof(lease->client), "%s", desired->client);
	json_decref(lease->about);
	lease->about = json_incref(desired->about);
	if (memcmp(lease->key, desired->key, RBP_SECRET_LEN) != 0)
	{
		/* it keeps its regions: donor_lease_has_key() ends connections */
		memcpy(lease->key, desired->key, RBP_SECRET_LEN);
		atomic_fetch_add(&lease->key_number, 1);
	}
	lease->listed = true;
	if (!atomic_load(&lease->ended) && !over)
	{
		atomic_store(&lease->deadline_ns, deadline_ns);
		if (deadline_ns < soonest)
		{
			soonest = deadline_ns;
			pthread_cond_signal(&janitor_wake);
		}
		json_array_foreach(desired->regions, i, region)
		{
			json_int_t	number = json_integer_value(region);

			if (number >= donor_nregions)
				continue;
			named[number] = lease;
			if (desired->revs != NULL)
				donor_regions[number].rev = json_integer_value(json_array_get(desired->revs, i));
		}
	}
	pthread_mutex_unlock(&donor_lock);
}

void
donor_apply_end(void)
{
	pthread_mutex_lock(&donor_lock);

	/* fence first, then grant */
	for (uint32_t i = 0; i < donor_nregions; i++)
	{
		RbpDonorRegion *region = &donor_regions[i];

		if (region->state == DONOR_REGION_LEASED &&
			atomic_load(&region->owner) != named[i])
			fence_region(region);
	}
	for (uint32_t i = 0; i < donor_nregions; i++)
	{
		RbpDonorRegion *region = &donor_regions[i];
		RbpDonorLease *lease = named[i];

		/* the janitor may have ended the lease meanwhile */
		if (lease == NULL || atomic_load(&lease->ended) ||
			region->state == DONOR_REGION_LEASED)
			continue;
		if (region->state == DONOR_REGION_FREE)
		{
			set_state(region, DONOR_REGION_LEASED);
			region->clean_unreported = false;	/* a grant implies that the
												 * broker knows */
			lease->nregions++;
			atomic_store(&region->owner, lease);
			rdma->granted(i, lease);
		}
		else if (region->state == DONOR_REGION_RELEASED)
		{
			/* the janitor provides memory, a later answer grants the region */
			set_state(region, DONOR_REGION_DIRTY);
		}

		/* DIRTY: it is being zeroed, and a later answer grants it */
	}
	for (RbpDonorLease **prev = &leases; *prev != NULL;)
	{
		RbpDonorLease *lease = *prev;

		if (lease->listed)
		{
			prev = &lease->next;
			continue;
		}
		/* it has named no region, so that it has lost all */
		atomic_store(&lease->ended, true);
		remove_lease(prev);
	}
	pthread_mutex_unlock(&donor_lock);
}

/*
 * ---- reports -------------------------------------------------------------
 */
void
donor_report_get(RbpDonorReport *report)
{
	report->clean = json_array();
	report->ended = json_array();

	pthread_mutex_lock(&donor_lock);
	for (uint32_t i = 0; i < donor_nregions; i++)
	{
		if (donor_regions[i].clean_unreported &&
			json_array_append_new(report->clean, json_integer(i)) != 0)
			rbp_die("out of memory");
	}
	for (RbpDonorLease *lease = leases; lease != NULL; lease = lease->next)
	{
		lease->reported = atomic_load(&lease->ended);
		if (lease->reported &&
			json_array_append_new(report->ended, json_string(lease->id)) != 0)
			rbp_die("out of memory");
	}
	memcpy(report->regions, region_counts, sizeof(region_counts));
	report->want_back = region_counts[DONOR_REGION_RELEASED] + reclaimable;
	pthread_mutex_unlock(&donor_lock);
}

json_t *
donor_report_leases(void)
{
	int64_t		now = rbp_boottime_ns();
	json_t	   *list = json_array();
	bool		done = list != NULL;

	pthread_mutex_lock(&donor_lock);
	for (RbpDonorLease *lease = leases; lease != NULL; lease = lease->next)
	{
		int64_t		remaining = atomic_load(&lease->deadline_ns) - now;
		char		key[2 * RBP_SECRET_LEN + 1];

		lease->told = NULL;
		if (lease->about == NULL || lease->nregions == 0 || remaining <= 0)
			continue;
		rbp_hex_encode(lease->key, RBP_SECRET_LEN, key);
		lease->told = json_pack("{s:s, s:s, s:O, s:I, s:[], s:[]}", "lease", lease->id, "key", key, "about", lease->about,
								"remaining_ms", (json_int_t) (remaining / 1000000), "regions", "revs");
		explicit_bzero(key, sizeof(key));
		done = done && json_array_append_new(list, lease->told) == 0;
	}
	for (uint32_t i = 0; done && i < donor_nregions; i++)
	{
		const RbpDonorLease *owner = atomic_load(&donor_regions[i].owner);

		if (owner == NULL || owner->told == NULL)
			continue;
		done = json_array_append_new(json_object_get(owner->told, "regions"), json_integer(i)) == 0 &&
			json_array_append_new(json_object_get(owner->told, "revs"), json_integer(donor_regions[i].rev)) == 0;
	}
	pthread_mutex_unlock(&donor_lock);
	if (!done)
		rbp_die("out of memory");
	return list;
}

void
donor_report_clean_again(uint32_t region)
{
	RbpDonorRegion *r = &donor_regions[region];

	pthread_mutex_lock(&donor_lock);
	if (r->state == DONOR_REGION_FREE || r->state == DONOR_REGION_RELEASED)
		r->clean_unreported = true;
	pthread_mutex_unlock(&donor_lock);
}

uint32_t
donor_regions_in(RbpDonorRegionState state)
{
	uint32_t	n;

	pthread_mutex_lock(&donor_lock);
	n = region_counts[state];
	pthread_mutex_unlock(&donor_lock);
	return n;
}

void
donor_report_acknowledged(const RbpDonorReport *report)
{
	size_t		i;
	json_t	   *region;

	pthread_mutex_lock(&donor_lock);
	json_array_foreach(report->clean, i, region)
	{
		donor_regions[json_integer_value(region)].clean_unreported = false;
	}
	for (RbpDonorLease **prev = &leases; report->ended != NULL && *prev != NULL;)
	{
		RbpDonorLease *lease = *prev;

		if (!lease->reported)
			prev = &lease->next;
		else
			remove_lease(prev);
	}
	pthread_mutex_unlock(&donor_lock);
}

void
donor_report_free(RbpDonorReport *report)
{
	json_decref(report->clean);
	json_decref(report->ended);
}

/*
 * ---- the janitor ---------------------------------------------------------
 */

/* End leases whose deadline has passed; returns the next deadline. */
static int64_t
expire_leases(int64_t now)
{
	int64_t		next = INT64_MAX;
	bool		ended = false;

	if (now < soonest)
		return soonest;
	for (RbpDonorLease *lease = leases; lease != NULL; lease = lease->next)
	{
		int64_t		deadline = atomic_load(&lease->deadline_ns);

		if (atomic_load(&lease->ended))
			continue;
		if (deadline <= now)
		{
			rbp_log(RBP_LOG_INFO, "lease %s ended: not renewed in time, %u regions fenced",
					lease->id, lease->nregions);
			atomic_store(&lease->ended, true);
			ended = true;
		}
		else if (deadline < next)
			next = deadline;
	}
	for (uint32_t i = 0; i < donor_nregions && ended; i++)
	{
		RbpDonorLease *owner = atomic_load(&donor_regions[i].owner);

		if (owner != NULL && atomic_load(&owner->ended))
			fence_region(&donor_regions[i]);
	}
	soonest = next;
	return next;
}

/*
 * Wait for the threads in a region that cannot be entered any more.  A system
 * call ends at once, the registration of an MR takes milliseconds.
 */
static void
wait_for_users(RbpDonorRegion *region)
{
	struct timespec ts = {.tv_nsec = 100000};

	for (int i = 0; atomic_load(&region->users) != 0; i++)
	{
		if (i < YIELDS)
			sched_yield();
		else
			nanosleep(&ts, NULL);
	}
}

/*
 * Withdraw a fenced region from all clients: rkeys for it become invalid, and
 * clients that have mapped it find nothing there.  Called with donor_lock
 * held, which is released meanwhile.
 */
static void
withdraw(RbpDonorRegion *region)
{
	pthread_mutex_unlock(&donor_lock);
	wait_for_users(region);
	rdma->revoke((uint32_t) (region - donor_regions));
	if (atomic_load(&region->exposed))
		donor_memory_release(region);
	pthread_mutex_lock(&donor_lock);
	region->unreachable = true;
}

/* Withdraw all regions that wait to be zeroed, before the slow part. */
static void
withdraw_dirty(void)
{
	if (!fenced)
		return;
	fenced = false;				/* more may be, while the lock is released */
	for (uint32_t i = 0; i < donor_nregions; i++)
	{
		RbpDonorRegion *region = &donor_regions[i];

		if (region->state == DONOR_REGION_DIRTY && !region->unreachable)
			withdraw(region);
	}
}

/*
 * A region that waits to be zeroed: the next one after that of the last call,
 * so that all of them are found in one round.  There is one.
 */
static RbpDonorRegion *
next_dirty(void)
{
	static uint32_t at = 0;

	do
		at = (at + 1) % donor_nregions;
	while (donor_regions[at].state != DONOR_REGION_DIRTY);
	return &donor_regions[at];
}

/*
 * Zero a fenced region, or leave it without memory if there is none.  Called
 * with donor_lock held, which is released meanwhile.
 */
static void
clean_region(RbpDonorRegion *region, bool keep)
{
	bool		ok = false;

	/* it may have been fenced since withdraw_dirty() */
	if (!region->unreachable)
		withdraw(region);
	pthread_mutex_unlock(&donor_lock);
	if (keep)
		ok = donor_memory_renew(region);
	if (!ok)
		donor_memory_release(region);
	pthread_mutex_lock(&donor_lock);

	set_state(region, ok ? DONOR_REGION_FREE : DONOR_REGION_RELEASED);
	region->clean_unreported = true;
}

/*
 * Compare the available memory with --min-free: give back memory of regions,
 * or provide it again.
 */
static void
relieve_pressure(void)
{
	uint64_t	available = donor_memory_available();
	uint32_t	missing = 0;
	uint32_t	given = 0;
	uint32_t	leased = 0;

	if (available < min_free)
		missing = (uint32_t) ((min_free - available + donor_region_size - 1) /
							  donor_region_size);

	for (uint32_t i = donor_nregions; missing > 0 && i-- > 0;)
	{
		RbpDonorRegion *region = &donor_regions[i];

		if (region->state != DONOR_REGION_FREE || region->huge)
			continue;
		/* as a dirty one it is the janitor's while the lock is released */
		set_state(region, DONOR_REGION_DIRTY);
		clean_region(region, false);
		missing--;
		given++;
	}
	if (given > 0)
		rbp_log(RBP_LOG_INFO, "memory is short: gave %u free regions back to the system",
				given);

	/* leased regions could come back; huge pages only go back to their pool */
	for (uint32_t i = 0; i < donor_nregions; i++)
		leased += donor_regions[i].state == DONOR_REGION_LEASED && !donor_regions[i].huge;
	if (missing > leased)
		missing = leased;

	/*
	 * There is plenty: one more region, if another one would still fit, and
	 * with a margin, so that it is not given back at once.
	 */
	if (available != UINT64_MAX && region_counts[DONOR_REGION_RELEASED] > 0 &&
		available > min_free + 2 * donor_region_size + min_free / 8)
	{
		for (uint32_t i = 0; i < donor_nregions; i++)
		{
			RbpDonorRegion *region = &donor_regions[i];

			if (region->state != DONOR_REGION_RELEASED)
				continue;
			set_state(region, DONOR_REGION_DIRTY);
			clean_region(region, true);
			break;
		}
	}
	reclaimable = missing;
}

static void *
janitor_main(void *arg)
{
	pthread_mutex_lock(&donor_lock);
	for (;;)
	{
		int64_t		now = rbp_boottime_ns();
		int64_t		next = expire_leases(now);
		struct timespec ts;
		int64_t		until;

		if (region_counts[DONOR_REGION_DIRTY] > 0)
		{
			RbpDonorRegion *region;

			withdraw_dirty();
			region = next_dirty();
			clean_region(region, min_free == 0 || region->huge ||
						 donor_memory_available() >= min_free);
			continue;			/* check deadlines between regions */
		}

		if (min_free > 0)
		{
			relieve_pressure();
			next = expire_leases(rbp_boottime_ns());	/* the lock was released */
			if (next > now + PRESSURE_TICK_NS)
				next = now + PRESSURE_TICK_NS;
		}

		/* at most a second, to notice when the clock has jumped */
		until = next - now < 1000000000 ? next - now : 1000000000;
		until += rbp_now_ns();
		ts.tv_sec = until / 1000000000;
		ts.tv_nsec = until % 1000000000;
		if (region_counts[DONOR_REGION_DIRTY] == 0)
			pthread_cond_timedwait(&janitor_wake, &donor_lock, &ts);
	}
	return NULL;
}

void
donor_lease_init(uint64_t min_free_bytes, int max_client_connections, int max_name_connections)
{
	pthread_condattr_t attr;

	min_free = min_free_bytes;
	max_connections = max_client_connections;
	max_of_name = max_name_connections;
	region_counts[DONOR_REGION_FREE] = donor_nregions;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&janitor_wake, &attr);
	rbp_thread_start(janitor_main, NULL);
}

void
donor_lease_set_rdma(const RbpDonorRdma *callbacks)
{
	rdma = callbacks;
}
