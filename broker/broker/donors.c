/*-------------------------------------------------------------------------
 *
 * donors.c
 *	  What donors ask of the broker: register, heartbeat, leave; and what
 *	  operators do with donors: list, drain.  See docs/protocol.md.
 *
 * Reports and revisions.  A heartbeat tells the revision that the donor had
 * applied when it wrote it.  What it says of a region counts only if the
 * region's last change is not newer than that: a report that was delayed or
 * repeated cannot make a region clean that was leased and given back since.
 * A delta that gets lost heals itself, because each answer lists what the
 * broker still holds for dirty.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/db.h"
#include "broker/broker/donors.h"
#include "broker/broker/http.h"
#include "broker/broker/model.h"
#include "broker/broker/reclaim.h"
#include "broker/broker/state.h"
#include "broker/common/log.h"
#include "common/clock.h"
#include "common/text.h"

#include <stdlib.h>
#include <string.h>

#define LONG_POLL_MS	1000
#define MAX_STATS		64
#define MAX_TRANSPORTS	8

/* A registration, checked. */
typedef struct Registration
{
	char		id[BROKER_DONOR_ID_LEN];
	char		host[BROKER_HOST_LEN];
	char		rdma_host[BROKER_HOST_LEN];
	char		shm_name[BROKER_NAME_LEN];
	char		boot_id[BROKER_NAME_LEN];
	char		instance[BROKER_NAME_LEN];
	int64_t		port;
	int64_t		rdma_port;
	int64_t		region_size;
	int64_t		regions;
	int64_t		grace_ms;
	json_t	   *transports;		/* borrowed */
	const json_t *clean;		/* borrowed; NULL: all */
} Registration;

static bool
check_regions(const json_t *array, int nregions, BrokerReply *error)
{
	size_t		i;
	json_t	   *value;

	json_array_foreach(array, i, value)
	{
		if (!json_is_integer(value) || json_integer_value(value) < 0 ||
			json_integer_value(value) >= nregions)
		{
			*error = broker_reply_error(400, "\"clean\" must list numbers of regions, 0 to %d",
								 nregions - 1);
			return false;
		}
	}
	return true;
}

static bool
parse_registration(const json_t *body, Registration *reg, BrokerReply *error)
{
	const json_t *transports;
	size_t		i;
	json_t	   *value;

	memset(reg, 0, sizeof(*reg));
	reg->grace_ms = BROKER_DEFAULT_GRACE_MS;
	if (!broker_body_text(body, "id", true, reg->id, sizeof(reg->id), error) ||
		!broker_body_text(body, "host", true, reg->host, sizeof(reg->host), error) ||
		!broker_body_int(body, "port", false, (BrokerRange) {0, 65535}, &reg->port, error) ||
		!broker_body_text(body, "rdma_host", false, reg->rdma_host, sizeof(reg->rdma_host), error) ||
		!broker_body_int(body, "rdma_port", false, (BrokerRange) {0, 65535}, &reg->rdma_port, error) ||
		!broker_body_text(body, "shm_name", false, reg->shm_name, sizeof(reg->shm_name), error) ||
		!broker_body_text(body, "boot_id", false, reg->boot_id, sizeof(reg->boot_id), error) ||
		!broker_body_text(body, "instance", true, reg->instance, sizeof(reg->instance), error) ||
		!broker_body_int(body, "region_size", true,
						 (BrokerRange) {BROKER_REGION_UNIT, INT64_C(1) << 40},
						 &reg->region_size, error) ||
		!broker_body_int(body, "regions", true, (BrokerRange) {1, BROKER_MAX_REGIONS}, &reg->regions, error) ||
		!broker_body_int(body, "grace_ms", false, (BrokerRange) {0, BROKER_MAX_GRACE_MS}, &reg->grace_ms, error) ||
		!broker_body_array(body, "transports", &transports, error) ||
		!broker_body_array(body, "clean", &reg->clean, error))
		return false;
	if (!rbp_valid_id(reg->id, sizeof(reg->id)))
	{
		*error = broker_reply_error(400, "\"id\" must consist of letters, digits and . _ : -, and begin with neither . nor -");
		return false;
	}
	if (reg->region_size % BROKER_REGION_UNIT != 0)
	{
		*error = broker_reply_error(400, "\"region_size\" must be a multiple of 1 MiB");
		return false;
	}
	if ((reg->rdma_host[0] != '\0') != (reg->rdma_port != 0))
	{
		*error = broker_reply_error(400, "\"rdma_host\" and \"rdma_port\" go together");
		return false;
	}
	if (json_array_size(transports) < 1 ||
		json_array_size(transports) > MAX_TRANSPORTS)
	{
		*error = broker_reply_error(400, "\"transports\" must list 1 to %d names", MAX_TRANSPORTS);
		return false;
	}
	json_array_foreach(transports, i, value)
	{
		const char *name = json_string_value(value);

		if (name == NULL || !rbp_valid_id(name, 17))
		{
			*error = broker_reply_error(400, "\"transports\" must list names of 1 to 16 letters and digits");
			return false;
		}
		if (strcmp(name, "tcp") == 0 && reg->port == 0)
		{
			*error = broker_reply_error(400, "\"port\" must be given with the transport tcp");
			return false;
		}
		if (strcmp(name, "verbs") == 0 && reg->rdma_port == 0)
		{
			*error = broker_reply_error(400, "\"rdma_host\" and \"rdma_port\" must be given with the transport verbs");
			return false;
		}
	}
	reg->transports = json_object_get(body, "transports");
	return check_regions(reg->clean, (int) reg->regions, error);
}

/*
 * A process that the broker does not know yet runs this donor: leases are
 * gone, memory is new.
 */
static void
new_instance(BrokerDonor *donor, const Registration *reg)
{
	int			lost = broker_donor_drop_leases(donor);

	rbp_log(RBP_LOG_INFO, "donor %s is a new process; %d regions leave their leases",
			donor->id, lost);
	broker.counters.regions_lost += lost;
	for (int i = 0; i < donor->nregions; i++)
	{
		if (donor->regions[i].state == REGION_DIRTY)
			broker_region_cleaned(donor, i);
	}
	if (donor->nregions != reg->regions)
	{
		BrokerRegion *regions = calloc((size_t) reg->regions, sizeof(BrokerRegion));

		if (regions == NULL)
		{
			rbp_log(RBP_LOG_ERROR, "out of memory");
			abort();
		}
		free(donor->regions);
		donor->regions = regions;
		donor->nregions = (int) reg->regions;
	}
	donor->clean_hint = 0;
	donor->draining = false;
	donor->want_back = 0;
	donor->applied = 0;
	json_decref(donor->stats);
	donor->stats = NULL;
}

static void
distrust_unlisted(BrokerDonor *donor, const json_t *clean)
{
	bool	   *listed = calloc((size_t) donor->nregions, sizeof(bool));
	size_t		i;
	json_t	   *value;

	if (listed == NULL)
	{
		rbp_log(RBP_LOG_ERROR, "out of memory");
		abort();
	}
	json_array_foreach(clean, i, value)
		listed[json_integer_value(value)] = true;
	for (int r = 0; r < donor->nregions; r++)
	{
		if (!listed[r])
			broker_region_distrust(donor, r);
	}
	free(listed);
}

BrokerReply
broker_donors_register(const char *id, const json_t *body)
{
	Registration reg;
	BrokerReply	error;
	BrokerDonor *donor;
	bool		fresh = false;
	json_int_t	revision;

	(void) id;
	if (!parse_registration(body, &reg, &error))
		return error;

	broker_begin();
	donor = broker_donor_find(reg.id);
	if (donor == NULL)
	{
		if (broker.ndonors >= BROKER_MAX_DONORS ||
			(donor = broker_donor_new(reg.id, (int) reg.regions)) == NULL)
		{
			broker_end();
			return broker_reply_error(503, "there is no room for more donors");
		}
		broker_donor_link(donor);
		fresh = true;
		rbp_log(RBP_LOG_INFO, "donor %s has joined: %d regions of %lld MB on %s",
				reg.id, donor->nregions,
				(long long) (reg.region_size / BROKER_REGION_UNIT), reg.host);
	}
	else if (strcmp(donor->instance, reg.instance) != 0)
	{
		new_instance(donor, &reg);
		fresh = true;
	}
	else if (donor->nregions != reg.regions ||
			 donor->region_size != reg.region_size)
	{
		broker_end();
		return broker_reply_error(409, "the regions of an instance cannot change");
	}

	strcpy(donor->host, reg.host);
	strcpy(donor->shm_name, reg.shm_name);
	strcpy(donor->boot_id, reg.boot_id);
	strcpy(donor->instance, reg.instance);
	donor->port = (int) reg.port;
	strcpy(donor->rdma_host, reg.rdma_host);
	donor->rdma_port = (int) reg.rdma_port;
	donor->region_size = reg.region_size;
	donor->grace_ms = reg.grace_ms;
	json_decref(donor->transports);
	/* deep, because reference counts of a shared object are not atomic */
	donor->transports = json_deep_copy(reg.transports);
	donor->heard = true;
	donor->last_heard = rbp_mono_ms();
	if (fresh)
	{
		broker_donor_touch(donor);
		if (reg.clean != NULL)
			distrust_unlisted(donor, reg.clean);
	}
	broker_db_put_donor(donor);
	broker.counters.registrations++;
	broker_commit();
	revision = donor->revision;
	broker_end();
	return broker_reply_json(200, json_pack("{s:I}", "revision", revision));
}

/*
 * ---- heartbeat ----------------------------------------------------------------
 */

/* Leases that the donor ended by its own clock lose their regions there. */
static void
take_ended(BrokerDonor *donor, const json_t *ended, int64_t revision)
{
	size_t		i;
	json_t	   *value;

	json_array_foreach(ended, i, value)
	{
		const char *id = json_string_value(value);
		BrokerLease *lease = id ? broker_lease_find(id) : NULL;
		int			left = 0;

		if (lease == NULL || broker_lease_holding(lease, donor) == NULL)
			continue;
		for (int r = 0; r < donor->nregions; r++)
		{
			/* those granted later the donor did not mean */
			if (donor->regions[r].lease == lease &&
				donor->regions[r].rev <= revision)
			{
				broker_region_unlease(donor, r);
				left++;
			}
		}
		if (left > 0)
			rbp_log(RBP_LOG_INFO, "donor %s ended lease %s by its own clock: %d regions",
					donor->id, id, left);
		broker.counters.regions_lost += left;
	}
}

static void
take_clean(BrokerDonor *donor, const json_t *clean, int64_t revision)
{
	size_t		i;
	json_t	   *value;

	json_array_foreach(clean, i, value)
	{
		int			r = (int) json_integer_value(value);
		BrokerRegion *region = &donor->regions[r];

		if (region->state != REGION_DIRTY)
			continue;

		/*
		 * Known to the donor; or made dirty a moment ago by take_ended(), in
		 * the same report.
		 */
		if (region->rev <= revision ||
			(donor->touched && region->rev == donor->revision))
		{
			broker_region_cleaned(donor, r);
			broker.counters.regions_cleaned++;
		}
	}
}

/* Whatever else is a number is kept to be shown. */
static void
take_stats(BrokerDonor *donor, json_t *body)
{
	static const char *const known[] = {
		"instance", "revision", "clean", "ended", "want_back", "draining",
		"grace_ms", NULL
	};
	json_t	   *stats = json_object();
	const char *key;
	json_t	   *value;

	json_object_foreach(body, key, value)
	{
		bool		skip = !json_is_number(value) ||
		json_object_size(stats) >= MAX_STATS ||
		strlen(key) > 48 ||
		strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(key);

		for (int i = 0; known[i] != NULL && !skip; i++)
			skip = strcmp(key, known[i]) == 0;
		if (!skip)
			json_object_set_new(stats, key, json_deep_copy(value));
	}
	json_decref(donor->stats);
	donor->stats = stats;
}

/* The answer to a heartbeat. */
static json_t *
donor_truth(BrokerDonor *donor)
{
	json_t	   *leases = json_array();
	json_t	   *dirty = json_array();
	int64_t		now = rbp_mono_ms();

	for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
		lease->scratch = broker_lease_holding(lease, donor) ? json_array() : NULL;
	for (int i = 0; i < donor->nregions; i++)
	{
		const BrokerRegion *region = &donor->regions[i];

		if (region->state == REGION_LEASED)
			json_array_append_new(region->lease->scratch, json_integer(i));
		else if (region->state == REGION_DIRTY)
			json_array_append_new(dirty, json_integer(i));
	}
	for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		char		secret[2 * BROKER_SECRET_LEN + 1];
		int64_t		ttl = lease->deadline > now ? lease->deadline - now : 0;

		if (lease->scratch == NULL)
			continue;
		rbp_hex_encode(lease->secret, sizeof(lease->secret), secret);
		json_array_append_new(leases,
							  json_pack("{s:s, s:s, s:I, s:o}",
										"lease", lease->id,
										"secret", secret,
										"ttl_ms", (json_int_t) ttl,
										"regions", lease->scratch));
		lease->scratch = NULL;
	}
	return json_pack("{s:I, s:o, s:o, s:b}",
					 "revision", (json_int_t) donor->revision,
					 "leases", leases,
					 "dirty", dirty,
					 "drain", donor->draining);
}

/*
 * A donor learns of renewals by these answers alone, so they have to come
 * well before the shortest TTL is over.
 */
static int64_t
poll_ms(const BrokerDonor *donor)
{
	int64_t		ms = LONG_POLL_MS;

	for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		if (lease->ttl_ms / 4 < ms && broker_lease_holding(lease, donor) != NULL)
			ms = lease->ttl_ms / 4;
	}
	return ms;
}

/*
 * The donor of this id and instance; NULL if it is not there any more, then
 * *error says why.
 */
static BrokerDonor *
find_instance(const char *id, const char *instance, BrokerReply *error)
{
	BrokerDonor *donor = broker_donor_find(id);

	if (donor == NULL)
	{
		*error = broker_reply_error(404, "there is no donor \"%s\"", id);
		return NULL;
	}
	if (strcmp(donor->instance, instance) != 0)
	{
		*error = broker_reply_error(409, "another process has registered as donor \"%s\"", id);
		return NULL;
	}
	return donor;
}

BrokerReply
broker_donors_heartbeat(const char *id, const json_t *body)
{
	char		instance[BROKER_NAME_LEN];
	int64_t		revision = 0;
	int64_t		want_back = 0;
	int64_t		grace_ms = -1;
	int64_t		deadline;
	bool		draining = false;
	const json_t *clean;
	const json_t *ended;
	BrokerReply	reply;
	BrokerDonor *donor;

	if (!broker_body_text(body, "instance", true, instance, sizeof(instance), &reply) ||
		!broker_body_int(body, "revision", true, (BrokerRange) {0, INT64_MAX}, &revision, &reply) ||
		!broker_body_int(body, "want_back", false, (BrokerRange) {0, INT64_MAX}, &want_back, &reply) ||
		!broker_body_int(body, "grace_ms", false, (BrokerRange) {0, BROKER_MAX_GRACE_MS}, &grace_ms, &reply) ||
		!broker_body_bool(body, "draining", &draining, &reply) ||
		!broker_body_array(body, "clean", &clean, &reply) ||
		!broker_body_array(body, "ended", &ended, &reply))
		return reply;

	broker_begin();
	donor = find_instance(id, instance, &reply);
	if (donor == NULL ||
		!check_regions(clean, donor->nregions, &reply))
	{
		broker_end();
		return reply;
	}

	broker.counters.heartbeats++;
	donor->heard = true;
	donor->last_heard = rbp_mono_ms();
	if (revision <= donor->revision && revision != donor->applied)
	{
		donor->applied = revision;
		broker.wake = true;		/* a grant may be waiting for this */
	}
	take_ended(donor, ended, revision);
	take_clean(donor, clean, revision);
	take_stats(donor, (json_t *) body);
	if (grace_ms >= 0 && grace_ms != donor->grace_ms)
	{
		donor->grace_ms = grace_ms;
		broker_db_put_donor(donor);
	}
	if (draining && !donor->draining)
	{
		rbp_log(RBP_LOG_INFO, "donor %s is draining", donor->id);
		donor->draining = true;
		broker_donor_touch(donor);
	}
	if (want_back > donor->nregions)
		want_back = donor->nregions;
	if (want_back != donor->want_back || donor->draining || want_back > 0)
	{
		donor->want_back = (int) want_back;
		broker_reclaim_update(donor);
	}
	broker_commit();

	/* Answer when there is news, or after a while. */
	deadline = rbp_mono_ms() + poll_ms(donor);
	do
	{
		donor = find_instance(id, instance, &reply);
	} while (donor != NULL && donor->revision == revision &&
			 broker_wait(deadline));

	if (donor != NULL)
		reply = broker_reply_json(200, donor_truth(donor));
	broker_end();
	return reply;
}

/*
 * ---- leave, drain, list ---------------------------------------------------------
 */

BrokerReply
broker_donors_leave(const char *id, const json_t *body)
{
	char		instance[BROKER_NAME_LEN];
	BrokerReply	reply;
	BrokerDonor *donor;
	int			lost;

	if (!broker_body_text(body, "instance", true, instance, sizeof(instance), &reply))
		return reply;
	broker_begin();
	donor = find_instance(id, instance, &reply);
	if (donor != NULL)
	{
		lost = broker_donor_drop_leases(donor);
		broker.counters.regions_lost += lost;
		rbp_log(RBP_LOG_INFO, "donor %s has left; %d regions leave their leases",
				id, lost);
		broker_donor_forget(donor);
		broker_commit();
		reply = broker_reply_json(204, NULL);
	}
	broker_end();
	return reply;
}

BrokerReply
broker_donors_drain(const char *id, const json_t *body)
{
	BrokerReply	reply;
	BrokerDonor *donor;

	(void) body;
	broker_begin();
	donor = broker_donor_find(id);
	if (donor == NULL)
		reply = broker_reply_error(404, "there is no donor \"%s\"", id);
	else
	{
		if (!donor->draining)
		{
			rbp_log(RBP_LOG_INFO, "donor %s is to be drained", donor->id);
			donor->draining = true;
			broker_donor_touch(donor);
			broker_reclaim_update(donor);
			broker_commit();
		}
		reply = broker_reply_json(200, json_pack("{s:s, s:b, s:i}",
										  "id", donor->id,
										  "draining", 1,
										  "leased", donor->nleased));
	}
	broker_end();
	return reply;
}

static int
reclaiming(const BrokerDonor *donor)
{
	int			asked = 0;

	for (BrokerLease *lease = broker.leases; lease != NULL; lease = lease->next)
	{
		const BrokerHolding *holding = broker_lease_holding(lease, donor);

		if (holding != NULL)
			asked += holding->asked;
	}
	return asked;
}

BrokerReply
broker_donors_list(const char *id, const json_t *body)
{
	json_t	   *list = json_array();
	int64_t		now;

	(void) id;
	(void) body;
	broker_begin();
	now = rbp_mono_ms();
	for (BrokerDonor *donor = broker.donors; donor != NULL; donor = donor->next)
	{
		json_t	   *item = broker_donor_address(donor);
		json_t	   *rest =
		json_pack("{s:s, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I}",
				  "state", broker_donor_status_name(broker_donor_status(donor, now)),
				  "region_size", (json_int_t) donor->region_size,
				  "regions", donor->nregions,
				  "leased", donor->nleased,
				  "free", donor->nregions - donor->nleased - donor->ndirty,
				  "dirty", donor->ndirty,
				  "want_back", donor->want_back,
				  "reclaiming", reclaiming(donor),
				  "revision", (json_int_t) donor->revision,
				  "applied", (json_int_t) donor->applied,
				  "grace_ms", (json_int_t) donor->grace_ms);

		json_object_update(item, rest);
		json_decref(rest);
		json_object_set_new(item, "heard_ms",
							donor->heard ? json_integer(now - donor->last_heard) : json_null());
		json_object_set_new(item, "stats",
							donor->stats ? json_deep_copy(donor->stats) : json_object());
		json_array_append_new(list, item);
	}
	broker_end();
	return broker_reply_json(200, json_pack("{s:o}", "donors", list));
}
