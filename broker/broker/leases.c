/*-------------------------------------------------------------------------
 *
 * leases.c
 *	  What clients ask of the broker: get, renew, resize, give back leases;
 *	  and what operators do with leases: list, revoke.  See docs/protocol.md.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/alloc.h"
#include "broker/broker/db.h"
#include "broker/broker/http.h"
#include "broker/broker/leases.h"
#include "broker/broker/model.h"
#include "broker/broker/reclaim.h"
#include "broker/broker/state.h"
#include "broker/common/log.h"
#include "broker/common/secret.h"
#include "common/clock.h"
#include "common/text.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How long a grant waits for the donors to clean and to acknowledge. */
#define SETTLE_MS		1000

/*
 * Clients renew each second at the latest, and try again within five: who was not
 * heard of for this long is dead, or will find its lease taken over.
 */
#define ALIVE_MS		10000

static const char *
purpose_name(BrokerPurpose purpose)
{
	return purpose == PURPOSE_TEMP ? "temp" : "buffer";
}

/*
 * Are the two of one machine, since one boot?  That is what an instance names
 * before its first slash.
 */
static bool
same_machine(const BrokerLease *a, const BrokerLease *b)
{
	size_t		len = strcspn(a->instance, "/");

	if (a->instance[len] == '\0' || strchr(b->instance, '/') == NULL)
		return true;			/* not told */
	return strncmp(a->instance, b->instance, len + 1) == 0;
}

static bool
same_client(const BrokerLease *a, const BrokerLease *b)
{
	return a->purpose == b->purpose && strcmp(a->client, b->client) == 0;
}

/* Leases of other machines that go by the same name, for the same purpose. */
static int
namesakes(const BrokerLease *lease)
{
	int			n = 0;

	for (const BrokerLease *other = broker.leases; other != NULL; other = other->next)
	{
		if (same_client(lease, other) && !same_machine(lease, other))
			n++;
	}
	return n;
}

/* "lease object" of the protocol */
static json_t *
lease_object(BrokerLease *lease)
{
	char		secret[2 * BROKER_SECRET_LEN + 1];
	json_t	   *regions = json_array();
	json_t	   *donors = json_array();
	json_t	   *reclaim = json_array();
	int64_t		now = rbp_mono_ms();

	for (BrokerHolding *h = lease->holdings; h != NULL; h = h->next)
	{
		BrokerDonor *donor = h->donor;
		int			left = h->regions;
		json_t	   *address;

		for (int i = 0; i < donor->nregions && left > 0; i++)
		{
			if (donor->regions[i].lease != lease)
				continue;
			json_array_append_new(regions,
								  json_pack("{s:s, s:i, s:I}",
											"donor", donor->id,
											"region", i,
											"bytes", (json_int_t) donor->region_size));
			left--;
		}
		address = broker_donor_address(donor);
		json_object_set_new(address, "shm_name", json_string(donor->shm_name));
		json_object_set_new(address, "boot_id", json_string(donor->boot_id));
		json_array_append_new(donors, address);
		if (h->asked > 0)
		{
			int64_t		grace = h->taken_at == 0 ? donor->grace_ms :
			h->taken_at > now ? h->taken_at - now : 0;

			json_array_append_new(reclaim,
								  json_pack("{s:s, s:i, s:I}",
											"donor", donor->id,
											"regions", h->asked,
											"grace_ms", (json_int_t) grace));
		}
	}
	rbp_hex_encode(lease->secret, sizeof(lease->secret), secret);
	return json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:i, s:o, s:o, s:o}",
					 "lease", lease->id,
					 "secret", secret,
					 "client", lease->client,
					 "purpose", purpose_name(lease->purpose),
					 "ttl_ms", (json_int_t) lease->ttl_ms,
					 "bytes", (json_int_t) lease->bytes,
					 "wanted", (json_int_t) lease->wanted,
					 "namesakes", namesakes(lease),
					 "regions", regions,
					 "donors", donors,
					 "reclaim", reclaim);
}

/* Why there is no live lease of this id. */
static BrokerReply
no_lease(const char *id)
{
	const BrokerLease *ended = broker_lease_find_ended(id);

	if (ended != NULL)
		return broker_reply_error(410, "the lease %s", broker_lease_end_text(ended->ended));
	return broker_reply_error(404, "there is no such lease");
}

/*
 * Have all donors of the lease that are up applied what was granted to it?
 * One that is not up would only cost the whole wait.
 */
static bool
applied_by_donors(const BrokerLease *lease)
{
	int64_t		now = rbp_mono_ms();

	for (const BrokerHolding *h = lease->holdings; h != NULL; h = h->next)
	{
		if (h->donor->applied < h->granted_rev &&
			broker_donor_status(h->donor, now) < DONOR_AWAY)
			return false;
	}
	return true;
}

/*
 * After a grant was committed: wait until the donors know of it, and if
 * wait_clean, grant what they clean meanwhile.  Returns the lease, or NULL if
 * it ended while we waited.
 */
static BrokerLease *
settle(const char *id, bool wait_clean)
{
	int64_t		deadline = rbp_mono_ms() + SETTLE_MS;
	BrokerLease *lease;

	for (;;)
	{
		lease = broker_lease_find(id);
		if (lease == NULL)
			return NULL;
		if (wait_clean && broker_alloc_grant(lease) > 0)
			broker_commit();
		if (applied_by_donors(lease) &&
			!(wait_clean && broker_alloc_more_coming(lease)))
			return lease;
		if (!broker_wait(deadline))
			return lease;
	}
}

static bool
parse_purpose(const json_t *body, BrokerPurpose *purpose, BrokerReply *error)
{
	char		text[16];

	if (!broker_body_text(body, "purpose", true, text, sizeof(text), error))
		return false;
	if (strcmp(text, "buffer") == 0)
		*purpose = PURPOSE_BUFFER;
	else if (strcmp(text, "temp") == 0)
		*purpose = PURPOSE_TEMP;
	else
	{
		*error = broker_reply_error(400, "\"purpose\" must be \"buffer\" or \"temp\"");
		return false;
	}
	return true;
}

/*
 * End what the client's dead self holds.  On another machine, or before a boot
 * of it, that is dead if it has been silent; else it is a clone of the client,
 * and each keeps its own.
 */
static void
take_over(const BrokerLease *lease)
{
	int64_t		now = rbp_mono_ms();
	BrokerLease *next;

	for (BrokerLease *old = broker.leases; old != NULL; old = next)
	{
		int64_t		renewed = old->deadline - old->ttl_ms;

		next = old->next;
		if (!same_client(old, lease) ||
			strcmp(old->instance, lease->instance) == 0)
			continue;
		if (!same_machine(old, lease) && now - renewed < ALIVE_MS)
		{
			rbp_log(RBP_LOG_WARNING, "lease %s (%s) of %s stays: it is held on another machine, whose clone asks for one",
					old->id, purpose_name(old->purpose), old->client);
			continue;
		}
		rbp_log(RBP_LOG_INFO, "lease %s ends: another instance of %s takes over",
				old->id, old->client);
		broker_lease_end(old, LEASE_TAKEN_OVER);
		broker.counters.leases_taken_over++;
	}
}

BrokerReply
broker_leases_create(const char *id, const json_t *body)
{
	BrokerLease *lease = calloc(1, sizeof(BrokerLease));
	BrokerReply	reply;
	char		lease_id[RBP_UUID_LEN];
	int			granted;

	(void) id;
	if (lease == NULL)
		return broker_reply_error(503, "out of memory");
	if (!broker_body_text(body, "client", true, lease->client, sizeof(lease->client), &reply) ||
		!broker_body_text(body, "instance", true, lease->instance, sizeof(lease->instance), &reply) ||
		!parse_purpose(body, &lease->purpose, &reply) ||
		!broker_body_int(body, "bytes", true, (BrokerRange) {0, INT64_C(1) << 50}, &lease->wanted, &reply) ||
		!broker_body_int(body, "ttl_ms", true, (BrokerRange) {BROKER_MIN_TTL_MS, BROKER_MAX_TTL_MS},
				  &lease->ttl_ms, &reply))
	{
		free(lease);
		return reply;
	}

	rbp_uuid4(lease->id);
	strcpy(lease_id, lease->id);
	rbp_random_bytes(lease->secret, sizeof(lease->secret));
	lease->created = (int64_t) time(NULL);

	broker_begin();
	take_over(lease);
	if (broker.nleases >= BROKER_MAX_LEASES)
	{
		broker_commit();
		broker_end();
		free(lease);
		return broker_reply_error(503, "there is no room for more leases");
	}
	lease->deadline = rbp_mono_ms() + lease->ttl_ms;
	broker_lease_link(lease);
	broker_db_put_lease(lease);
	broker.counters.leases_created++;
	granted = broker_alloc_grant(lease);
	rbp_log(RBP_LOG_INFO, "lease %s (%s) for %s: %d regions granted, %lld of %lld MB",
			lease->id, purpose_name(lease->purpose), lease->client, granted,
			(long long) (lease->bytes >> 20), (long long) (lease->wanted >> 20));
	broker_commit();

	lease = settle(lease_id, true);
	if (lease == NULL)
		reply = no_lease(lease_id);
	else
	{
		broker_reclaim_tell(lease);
		reply = broker_reply_json(201, lease_object(lease));
	}
	broker_end();
	return reply;
}

static bool
parse_secret(const json_t *body, unsigned char *secret, BrokerReply *error)
{
	char		text[2 * BROKER_SECRET_LEN + 1];

	if (!broker_body_text(body, "secret", true, text, sizeof(text), error))
		return false;
	if (!rbp_hex_decode(text, secret, BROKER_SECRET_LEN))
	{
		*error = broker_reply_error(400, "\"secret\" must have %d hex digits",
							 2 * BROKER_SECRET_LEN);
		return false;
	}
	return true;
}

/* The live lease of this id and secret; NULL if there is none, with *error. */
static BrokerLease *
find_held(const char *id, const unsigned char *secret, BrokerReply *error)
{
	BrokerLease *lease = broker_lease_find(id);

	if (lease == NULL)
	{
		*error = no_lease(id);
		return NULL;
	}
	if (!rbp_equal_secret(secret, BROKER_SECRET_LEN, lease->secret, BROKER_SECRET_LEN))
	{
		*error = broker_reply_error(403, "the secret is wrong");
		return NULL;
	}
	return lease;
}

static bool
check_release(const json_t *release, BrokerReply *error)
{
	size_t		i;
	json_t	   *item;

	json_array_foreach(release, i, item)
	{
		if (!json_is_string(json_object_get(item, "donor")) ||
			!json_is_integer(json_object_get(item, "region")))
		{
			*error = broker_reply_error(400, "\"release\" must list objects with \"donor\" and \"region\"");
			return false;
		}
	}
	return true;
}

/*
 * Regions that are not in the lease (any more) are passed over: they may have
 * been taken, or the request is a repetition.
 */
static void
release_regions(BrokerLease *lease, const json_t *release)
{
	size_t		i;
	json_t	   *item;

	json_array_foreach(release, i, item)
	{
		BrokerDonor *donor = broker_donor_find(json_string_value(json_object_get(item, "donor")));
		json_int_t	region = json_integer_value(json_object_get(item, "region"));

		if (donor == NULL || region < 0 || region >= donor->nregions ||
			donor->regions[region].lease != lease)
			continue;
		broker_region_unlease(donor, (int) region);
		broker.counters.regions_released++;
	}
}

BrokerReply
broker_leases_renew(const char *id, const json_t *body)
{
	unsigned char secret[BROKER_SECRET_LEN];
	const json_t *release;
	int64_t		wanted = -1;
	int64_t		ttl_ms = -1;
	BrokerReply	reply;
	BrokerLease *lease;

	if (!parse_secret(body, secret, &reply) ||
		!broker_body_int(body, "bytes", false, (BrokerRange) {0, INT64_C(1) << 50}, &wanted, &reply) ||
		!broker_body_int(body, "ttl_ms", false, (BrokerRange) {BROKER_MIN_TTL_MS, BROKER_MAX_TTL_MS},
				  &ttl_ms, &reply) ||
		!broker_body_array(body, "release", &release, &reply) ||
		!check_release(release, &reply))
		return reply;

	broker_begin();
	lease = find_held(id, secret, &reply);
	if (lease != NULL)
	{
		int			granted;

		if ((wanted >= 0 && wanted != lease->wanted) ||
			(ttl_ms >= 0 && ttl_ms != lease->ttl_ms))
		{
			lease->wanted = wanted >= 0 ? wanted : lease->wanted;
			lease->ttl_ms = ttl_ms >= 0 ? ttl_ms : lease->ttl_ms;
			broker_db_put_lease(lease);
		}
		release_regions(lease, release);
		lease->deadline = rbp_mono_ms() + lease->ttl_ms;
		broker.counters.leases_renewed++;
		granted = broker_alloc_grant(lease);
		broker_commit();

		if (granted > 0)
			lease = settle(id, false);
		if (lease == NULL)
			reply = no_lease(id);
		else
		{
			broker_reclaim_tell(lease);
			reply = broker_reply_json(200, lease_object(lease));
		}
	}
	broker_end();
	return reply;
}

BrokerReply
broker_leases_release(const char *id, const json_t *body)
{
	unsigned char secret[BROKER_SECRET_LEN];
	BrokerReply	reply;
	BrokerLease *lease;

	if (!parse_secret(body, secret, &reply))
		return reply;
	broker_begin();
	lease = find_held(id, secret, &reply);
	if (lease != NULL)
	{
		int			regions;

		rbp_log(RBP_LOG_INFO, "lease %s is given back by %s", lease->id, lease->client);
		regions = broker_lease_end(lease, LEASE_RELEASED);
		broker.counters.leases_released++;
		broker.counters.regions_released += regions;
		broker_commit();
		reply = broker_reply_json(204, NULL);
	}
	broker_end();
	return reply;
}

BrokerReply
broker_leases_revoke(const char *id, const json_t *body)
{
	BrokerReply	reply;
	BrokerLease *lease;

	(void) body;
	broker_begin();
	lease = broker_lease_find(id);
	if (lease == NULL)
		reply = no_lease(id);
	else
	{
		int			regions;

		rbp_log(RBP_LOG_INFO, "lease %s of %s is revoked", lease->id, lease->client);
		regions = broker_lease_end(lease, LEASE_REVOKED);
		broker.counters.leases_revoked++;
		broker_commit();
		reply = broker_reply_json(200, json_pack("{s:s, s:i}", "lease", id,
										  "regions", regions));
	}
	broker_end();
	return reply;
}

BrokerReply
broker_leases_list(const char *id, const json_t *body)
{
	json_t	   *list = json_array();
	int64_t		now;

	(void) id;
	(void) body;
	broker_begin();
	now = rbp_mono_ms();
	for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		json_t	   *donors = json_array();
		int64_t		remaining = lease->deadline > now ? lease->deadline - now : 0;
		int64_t		age = (int64_t) time(NULL) - lease->created;

		for (BrokerHolding *h = lease->holdings; h != NULL; h = h->next)
			json_array_append_new(donors,
								  json_pack("{s:s, s:i, s:I, s:i}",
											"id", h->donor->id,
											"regions", h->regions,
											"bytes", (json_int_t) (h->regions * h->donor->region_size),
											"reclaim", h->asked));
		json_array_append_new(list,
							  json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o}",
										"lease", lease->id,
										"client", lease->client,
										"purpose", purpose_name(lease->purpose),
										"ttl_ms", (json_int_t) lease->ttl_ms,
										"remaining_ms", (json_int_t) remaining,
										"bytes", (json_int_t) lease->bytes,
										"wanted", (json_int_t) lease->wanted,
										"age_s", (json_int_t) (age > 0 ? age : 0),
										"donors", donors));
	}
	broker_end();
	return broker_reply_json(200, json_pack("{s:o}", "leases", list));
}
