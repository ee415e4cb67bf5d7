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
 * A heartbeat reports only regions that have become clean since the last one that was
 * answered.  If the broker did not count such a report, nothing is lost: each answer
 * lists the regions that it still takes for dirty, and the donor reports those again.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/donors.h"
#include "broker/broker/http.h"
#include "broker/broker/reclaim.h"
#include "broker/broker/schema.h"
#include "broker/broker/state.h"
#include "broker/broker/store.h"
#include "broker/broker/told.h"
#include "broker/common/log.h"
#include "common/limits.h"
#include "common/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONG_POLL_MS	1000
#define MAX_TRANSPORTS	8
#define MAX_DONOR_BYTES	(INT64_C(1) << 50)	/* so that no sum overflows */
#define REGION_UNIT		(INT64_C(1) << 20)	/* region sizes are multiples */

static const char *
text_of(const json_t *body, const char *key)
{
	const char *text = json_string_value(json_object_get(body, key));

	return text ? text : "";
}

static int64_t
int_of(const json_t *body, const char *key)
{
	return json_integer_value(json_object_get(body, key));
}

/* What the routes' table cannot say of a registration; NULL: it is good. */
static const char *
fault_of_registration(const json_t *body)
{
	const json_t *transports = json_object_get(body, "transports");
	size_t		i;
	json_t	   *value;

	if (!rbp_valid_id(text_of(body, "id"), RBP_DONOR_ID_LEN))
		return "\"id\" must consist of letters, digits and . _ : -, and begin with neither . nor -";
	if (int_of(body, "region_size") % REGION_UNIT != 0)
		return "\"region_size\" must be a multiple of 1 MiB";
	if (int_of(body, "region_size") > MAX_DONOR_BYTES / int_of(body, "regions"))
		return "\"regions\" times \"region_size\" must be 1 PiB or less";
	if ((text_of(body, "rdma_host")[0] != '\0') != (int_of(body, "rdma_port") != 0))
		return "\"rdma_host\" and \"rdma_port\" go together";
	if (json_array_size(transports) < 1 || json_array_size(transports) > MAX_TRANSPORTS)
		return "\"transports\" must list 1 to 8 names";
	json_array_foreach(transports, i, value)
	{
		const char *name = json_string_value(value);

		if (name == NULL || !rbp_valid_id(name, 17))
			return "\"transports\" must list names of 1 to 16 letters and digits";
		if (strcmp(name, "tcp") == 0 && int_of(body, "port") == 0)
			return "\"port\" must be given with the transport tcp";
		if (strcmp(name, "verbs") == 0 && int_of(body, "rdma_port") == 0)
			return "\"rdma_host\" and \"rdma_port\" must be given with the transport verbs";
	}
	return NULL;
}

static bool
check_clean(const json_t *clean, int64_t regions, BrokerReply *error)
{
	size_t		i;
	json_t	   *value;
	bool		good = (int64_t) json_array_size(clean) <= regions;

	json_array_foreach(clean, i, value)
	{
		good = good && json_is_integer(value) && json_integer_value(value) >= 0 &&
			json_integer_value(value) < regions;
	}
	if (!good)
		*error = broker_reply_error(400, "\"clean\" must list numbers of regions, 0 to %d, each once",
									(int) regions - 1);
	return good;
}

int
broker_donors_lose(int64_t donor)
{
	int			lost = broker_run("UPDATE region SET lease = NULL WHERE donor = ?1 AND lease IS NOT NULL",
								  INT(donor));

	broker.counters[REGIONS_LOST] += lost;
	return lost;
}

/*
 * Where the process is that has the id of this registration, and is alive: it
 * was heard of lately, and the new one does not listen in its place.  No two
 * processes have the same port in a network namespace, which is what instances
 * have before their slash.  Without a slash that is unknown, and matches any.
 * With a broker that has run for ?2 ms, a process that waited for another one to leave may
 * have come first: the one that has leases is not kept out by one that has none.
 */
static const char *const living_namesake =
"SELECT host || iif(port > 0, ':' || port, '')"
" FROM (SELECT *, address ->> 'host' AS host, address ->> 'port' AS port,"
"   substr(instance, 1, nullif(instr(instance, '/'), 0)) AS place FROM donor_now),"
"  (SELECT b, substr(b ->> 'instance', 1, nullif(instr(b ->> 'instance', '/'), 0)) AS new_place"
"   FROM (SELECT ?1 AS b))"
" WHERE id = b ->> 'id' AND instance <> b ->> 'instance' AND silent_ms < donor_timeout_ms"
"  AND NOT (host = b ->> 'host' AND port = ifnull(b ->> 'port', 0) AND port > 0"
"   AND ifnull(place = new_place, 1))"
"  AND NOT (?2 < donor_timeout_ms AND leased = 0 AND ifnull(json_array_length(b, '$.leases'), 0) > 0)";

/* Make room for another donor.  False if there is none, with *error. */
static bool
may_join(BrokerReply *error)
{
	return broker_http_may_hold("donors", broker_get("SELECT count(*) + 1 FROM donor"), BROKER_MAX_DONORS,
								broker_get("SELECT count(*) + 1 FROM donor WHERE id = ?1"
										   " OR (id >= ?1 || ':' AND id < ?1 || ';')", TEXT(broker_http_caller())),
								error);
}

/*
 * If the process is known, and tells of no leases, only its address and grace time change.  Its
 * revisions go on from what it has applied of another broker, and from ?2.  (Without WHERE
 * true, SQLite takes ON for that of a join.)
 */
static const char *const put_donor =
"INSERT INTO donor (id, instance, address, region_size, regions, grace_ms, draining, revision)"
" SELECT b ->> 'id', b ->> 'instance', json_patch(json_object('id', b ->> 'id',"
"   'host', b ->> 'host', 'port', ifnull(b ->> 'port', 0), 'transports', json(b -> 'transports'),"
"   'shm_name', ifnull(b ->> 'shm_name', ''), 'boot_id', ifnull(b ->> 'boot_id', '')),"
"  json_object('rdma_host', nullif(b ->> 'rdma_host', ''), 'rdma_port', nullif(b ->> 'rdma_port', 0))),"
"  b ->> 'region_size', b ->> 'regions', ifnull(b ->> 'grace_ms', 10000), ifnull(b ->> 'draining', 0),"
"  max(ifnull(b ->> 'revision', 0), ?2) + 1"
" FROM (SELECT json_remove(?1, '$.leases', '$.dirty') AS b) WHERE true"
" ON CONFLICT (id) DO UPDATE SET address = excluded.address, grace_ms = excluded.grace_ms";

/*
 * What a donor tells when it registers replaces all that was known of it.  Returns the revision
 * above which it goes on.
 */
static int64_t
forget(int64_t donor, const json_t *body)
{
	const char *id = text_of(body, "id");
	int64_t		revision = broker_get("SELECT revision FROM donor WHERE key = ?1 AND instance = ?2",
									  INT(donor), TEXT(text_of(body, "instance")));

	if (revision != 0)
		broker_run("UPDATE region SET lease = NULL WHERE donor = ?1 AND lease IS NOT NULL", INT(donor));
	else if (donor != 0)
		/* its leases are gone, its memory is new */
		rbp_log(RBP_LOG_INFO, "donor %s is a new process; %d regions leave their leases",
				id, broker_donors_lose(donor));
	broker_run("DELETE FROM donor WHERE key = ?1", INT(donor));
	return revision;
}

BrokerReply
broker_donors_register(const char *path_id, json_t *body)
{
	const json_t *leases = json_object_get(body, "leases");
	const char *fault = fault_of_registration(body);
	const char *id = text_of(body, "id");
	BrokerReply error;
	int64_t		known[4] = {0}; /* key, and whether it is another process, or
								 * has other regions, or has applied more
								 * since this request was written */
	int64_t		donor;
	int64_t		revision;
	char	   *living;

	if (fault != NULL)
		return broker_reply_error(400, "%s", fault);
	if (!check_clean(json_object_get(body, "clean"), int_of(body, "regions"), &error) ||
		!broker_told_check(body, &error))
		return error;
	living = broker_get_text(living_namesake, JSON(body), INT(broker_now() - broker.learns_since));
	if (living != NULL)
	{
		rbp_log_repeated(RBP_LOG_WARNING, "refused another process as donor %s, which is alive at %s",
						 id, living);
		error = broker_reply_error(409, "another process is donor \"%s\", at %s; this one is taken when that one has left, or was silent for %d s",
								   id, living, (int) (broker_get("SELECT donor_timeout_ms FROM setting") / 1000));
		free(living);
		return error;
	}
	broker_get_all(known, "SELECT key, instance <> ?2, regions <> ?3 OR region_size <> ?4, applied > ?5"
				   " FROM donor d JOIN donor_seen s ON s.donor = d.key WHERE id = ?1",
				   TEXT(id), TEXT(text_of(body, "instance")), INT(int_of(body, "regions")),
				   INT(int_of(body, "region_size")), INT(int_of(body, "revision")));
	if (known[0] == 0 && !may_join(&error))
		return error;
	if (known[0] != 0 && !known[1] && known[2])
		return broker_reply_error(409, "the regions of an instance cannot change");

	if (known[0] == 0 || known[1] || (leases != NULL && !known[3]))
	{
		revision = forget(known[0], body);
		broker_run(put_donor, JSON(body), INT(revision));
		donor = broker_get("SELECT key FROM donor WHERE id = ?1", TEXT(id));
		broker_told_adopt(donor, leases);
		broker_run("INSERT INTO region (donor, number, rev) SELECT donor.key, value, revision FROM donor, json_each(?2)"
				   " WHERE donor.key = ?1", INT(donor), JSON(json_object_get(body, "dirty")));
		broker_run("UPDATE donor_seen SET applied = ?2,"
				   " dirty = (SELECT count(*) FROM region WHERE donor = ?1 AND lease IS NULL) WHERE donor = ?1",
				   INT(donor), INT(int_of(body, "revision")));
		rbp_log(RBP_LOG_INFO, "donor %s has joined: %d regions of %lld MB on %s", id,
				(int) int_of(body, "regions"),
				(long long) (int_of(body, "region_size") / REGION_UNIT), text_of(body, "host"));
	}
	else
		broker_run(put_donor, JSON(body), INT(0));
	broker_run("UPDATE donor_seen SET forgiven = 0, last_heard = now_ms()"
			   " WHERE donor = (SELECT key FROM donor WHERE id = ?1)", TEXT(id));
	broker.counters[REGISTRATIONS]++;
	return broker_reply(200, broker_get_text("SELECT json_object('revision', revision)"
											 " FROM donor WHERE id = ?1", TEXT(id)));
}

/*
 * ---- heartbeat ----------------------------------------------------------------
 */

/*
 * The donor of this id that the body's instance runs; 0 if it is not there any
 * more, then *error says why.
 */
static int64_t
find_instance(const char *id, const json_t *body, BrokerReply *error)
{
	int64_t		donor = broker_get("SELECT key FROM donor WHERE id = ?1 AND instance = ?2",
								   TEXT(id), TEXT(text_of(body, "instance")));

	if (donor == 0)
		*error = broker_get("SELECT key FROM donor WHERE id = ?1", TEXT(id)) == 0 ?
			broker_reply_error(404, "there is no donor \"%s\"", id) :
			broker_reply_error(409, "another process has registered as donor \"%s\"", id);
	return donor;
}

/*
 * Which regions are clean, and which leases the donor ended by its own clock: it may
 * have cleaned their regions already.  Regions that were granted after the report was
 * written (rev > revision) are not affected; those that leave leases now (rev > here) may be
 * clean already.
 */
static void
apply_report(int64_t donor, const char *id, const json_t *body)
{
	const json_t *ended = json_object_get(body, "ended");
	const json_t *clean = json_object_get(body, "clean");
	int64_t		revision = int_of(body, "revision");
	int64_t		here = broker_get("SELECT revision FROM donor WHERE key = ?1", INT(donor));
	int			lost = 0;
	int			cleaned = 0;

	if (json_array_size(ended) > 0)
		lost = broker_run("UPDATE region SET lease = NULL WHERE donor = ?1 AND rev <= ?2"
						  "  AND lease IN (SELECT key FROM lease WHERE id IN (SELECT value FROM json_each(?3)))",
						  INT(donor), INT(revision), JSON(ended));
	if (lost > 0)
		rbp_log(RBP_LOG_INFO, "donor %s ended leases by its own clock: %d region%s", id, lost, RBP_PLURAL(lost));
	broker.counters[REGIONS_LOST] += lost;
	/* a donor that has just come repeats all that are clean */
	if (json_array_size(clean) > 0 && broker_get("SELECT dirty FROM donor_seen WHERE donor = ?1", INT(donor)) > 0)
		cleaned = broker_run("DELETE FROM region WHERE donor = ?1 AND lease IS NULL AND (rev <= ?2 OR rev > ?4)"
							 " AND number IN (SELECT value FROM json_each(?3))",
							 INT(donor), INT(revision), JSON(clean), INT(here));
	broker.counters[REGIONS_CLEANED] += cleaned;

	/*
	 * a grant may be waiting for this; and regions have no row numbers, so no
	 * hook has told it
	 */
	broker.wake |= cleaned > 0;
}

static void
set_draining(int64_t donor, const char *id, bool draining)
{
	if (broker_run("UPDATE donor SET draining = ?2, revision = revision + 1"
				   " WHERE key = ?1 AND draining <> ?2", INT(donor), INT(draining)) > 0)
		rbp_log(RBP_LOG_INFO, "donor %s is %s", id, draining ? "draining" : "not draining any more");
}

/* Whatever else is a number is kept to be shown. */
static const char *const put_seen =
"UPDATE donor_seen SET forgiven = 0, last_heard = now_ms(),"
" want_back = min(ifnull(?2 ->> 'want_back', 0), regions),"
" stats = (SELECT json_group_object(key, value)"
"  FROM (SELECT key, value FROM json_each(?2) WHERE type IN ('integer', 'real')"
"   AND length(key) <= 48 AND key NOT GLOB '*[^a-z0-9_]*'"
"   AND key NOT IN ('revision', 'want_back', 'grace_ms') LIMIT 64))"
" FROM donor WHERE donor = ?1 AND donor.key = ?1";

static void
apply_settings(int64_t donor, const char *id, const json_t *body)
{
	broker_run("UPDATE donor SET grace_ms = ?2 ->> 'grace_ms'"
			   " WHERE key = ?1 AND grace_ms <> ?2 ->> 'grace_ms'", INT(donor), JSON(body));
	if (json_is_true(json_object_get(body, "draining")))
		set_draining(donor, id, true);
}

/* What the next heartbeat tells again */
static void
apply_news(int64_t donor, const json_t *body)
{
	broker.counters[HEARTBEATS]++;

	/* likewise; a late request does not undo it */
	if (broker_run("UPDATE donor_seen SET applied = ?2 WHERE donor = ?1 AND applied < ?2"
				   " AND ?2 <= (SELECT revision FROM donor WHERE key = ?1)",
				   INT(donor), INT(int_of(body, "revision"))) > 0)
		broker.wake = true;

	broker_run(put_seen, INT(donor), JSON(body));
	broker_reclaim_update(donor);
}

/*
 * The answer to a heartbeat: all that the donor has to serve, and what it is to tell of that
 * when it registers.  revs are in the order of regions, and told when something has changed.
 */
static const char *const desired_state =
"SELECT json_object('revision', revision, 'leases',"
"  (SELECT json_group_array(json_object('lease', l.id, 'key', coalesce(told_key, donor_key(secret, d.id)), 'client', client,"
"    'about', json_object('client', client, 'instance', instance, 'purpose', purpose, 'wanted', wanted,"
"     'ttl_ms', ttl_ms, 'keep_ms', ends - deadline, 'created', created),"
"    'ttl_ms', max(ends - now_ms(), 0), 'regions',"
"     (SELECT json_group_array(number) FROM region r INDEXED BY region_leased WHERE r.lease = l.key AND r.donor = h.donor),"
"    'revs', iif(d.revision = ?2, NULL,"
"     (SELECT json_group_array(rev) FROM region r INDEXED BY region_leased WHERE r.lease = l.key AND r.donor = h.donor))))"
"   FROM holding h JOIN lease_now l ON l.key = h.lease WHERE h.donor = d.key),"
" 'dirty',"
"  (SELECT json_group_array(number) FROM region r INDEXED BY region_dirty"
"   WHERE r.donor = d.key AND r.lease IS NULL),"
" 'drain', json(iif(draining, 'true', 'false')))"
" FROM donor d WHERE key = ?1";

/* What the routes' table cannot say of a heartbeat. */
static bool
check_heartbeat(int64_t donor, const json_t *body, BrokerReply *error)
{
	int64_t		regions = broker_get("SELECT regions FROM donor WHERE key = ?1", INT(donor));

	/* each has had one of the regions at least */
	if ((int64_t) json_array_size(json_object_get(body, "ended")) > regions)
	{
		*error = broker_reply_error(400, "\"ended\" must list no more leases than there are regions");
		return false;
	}
	return check_clean(json_object_get(body, "clean"), regions, error);
}

/*
 * Answer when there is news, or after a while: well before the shortest TTL is
 * over, since a donor learns of renewals by these answers alone.
 */
static BrokerReply
answer_heartbeat(int64_t donor, const char *id, const json_t *body)
{
	int64_t		revision = int_of(body, "revision");
	BrokerReply error;
	int64_t		deadline = broker_now() +
	broker_get("SELECT min(?2, ifnull(min(ttl_ms) / 4, ?2))"
			   " FROM holding JOIN lease ON key = lease WHERE donor = ?1",
			   INT(donor), INT(LONG_POLL_MS));

	while (broker_get("SELECT revision FROM donor WHERE key = ?1", INT(donor)) == revision &&
		   broker_wait(donor, deadline))
	{
		donor = find_instance(id, body, &error);
		if (donor == 0)
			return error;
	}
	return broker_reply(200, broker_get_text(desired_state, INT(donor), INT(revision)));
}

BrokerReply
broker_donors_heartbeat(const char *id, json_t *body)
{
	BrokerReply error;
	int64_t		donor = find_instance(id, body, &error);

	if (donor == 0 || !check_heartbeat(donor, body, &error))
		return error;
	apply_report(donor, id, body);
	/* it may be long, and SQLite need not see it again */
	json_object_del(body, "clean");
	apply_settings(donor, id, body);
	apply_news(donor, body);
	return answer_heartbeat(donor, id, body);
}

/*
 * ---- leave, drain, list ---------------------------------------------------------
 */

BrokerReply
broker_donors_leave(const char *id, json_t *body)
{
	BrokerReply error;
	int64_t		donor = find_instance(id, body, &error);

	if (donor == 0)
		return error;
	rbp_log(RBP_LOG_INFO, "donor %s has left; %d of its regions left leases",
			id, broker_donors_lose(donor));
	broker_run("DELETE FROM donor WHERE key = ?1", INT(donor));
	return broker_reply(204, NULL);
}

int64_t
broker_donors_deadline(void)
{
	const char *settle = getenv(BROKER_SETTLE_VARIABLE);

	return broker_now() + (settle != NULL ? atoll(settle) : BROKER_SETTLE_MS);
}

/*
 * Of the donors in ?1, those that have not applied that revision.  A new process of a donor serves nothing
 * yet, so it has nothing to undo.  A donor that is not here (any more) has not said that it has applied it.
 */
#define PENDING \
	" FROM json_each(?1) WHERE NOT EXISTS (SELECT 1 FROM donor JOIN donor_seen ON donor = key" \
	"  WHERE id = value ->> 'id' AND (instance <> value ->> 'instance' OR applied >= value ->> 'revision'))"

BrokerReply
broker_donors_await(const char *donors, char *object)
{
	int64_t		deadline = broker_donors_deadline();
	char	   *told = broker_get_text("SELECT json_group_array(json_object('id', id, 'instance', instance, 'revision', revision))"
									   " FROM donor WHERE key IN (SELECT value FROM json_each(?1))", TEXT(donors));
	BrokerReply reply;

	/* one that is not up would only cost the whole wait */
	while (broker_get("SELECT EXISTS (SELECT 1" PENDING " AND value ->> 'id' IN"
					  "  (SELECT id FROM donor_now WHERE state IN ('up', 'draining')))", TEXT(told)) != 0 &&
		   broker_wait(0, deadline))
		 /* look again */ ;
	reply = broker_reply(broker_get("SELECT EXISTS (SELECT 1" PENDING ")", TEXT(told)) != 0 ? 202 : 200,
						 broker_get_text("SELECT json_set(?2, '$.pending', (SELECT json_group_array(value ->> 'id')" PENDING "))",
										 TEXT(told), TEXT(object)));
	free(told);
	free(object);
	return reply;
}

static BrokerReply
drain(const char *id, bool draining)
{
	int64_t		donor = broker_get("SELECT key FROM donor WHERE id = ?1", TEXT(id));
	char		list[24];

	if (donor == 0)
		return broker_reply_error(404, "there is no donor \"%s\"", id);
	set_draining(donor, id, draining);
	broker_reclaim_update(donor);
	snprintf(list, sizeof(list), "[%lld]", (long long) donor);
	return broker_donors_await(list, broker_get_text("SELECT json_object('id', id, 'draining',"
													 "  json(iif(draining, 'true', 'false')), 'leased', leased)"
													 " FROM donor_now WHERE key = ?1", INT(donor)));
}

BrokerReply
broker_donors_drain(const char *id, json_t *body)
{
	return drain(id, true);
}

BrokerReply
broker_donors_undrain(const char *id, json_t *body)
{
	return drain(id, false);
}

/* One that does not come back, before the broker would do so by itself */
BrokerReply
broker_donors_forget(const char *id, json_t *body)
{
	int64_t		donor = broker_get("SELECT key FROM donor WHERE id = ?1", TEXT(id));

	if (donor == 0)
		return broker_reply_error(404, "there is no donor \"%s\"", id);
	if (broker_get("SELECT state <> 'gone' FROM donor_now WHERE key = ?1", INT(donor)) != 0)
		return broker_reply_error(409, "donor \"%s\" is not gone: only one that was silent for three times --donor-timeout is", id);
	rbp_log(RBP_LOG_INFO, "donor %s is forgotten; %d of its regions left leases", id, broker_donors_lose(donor));
	broker_run("DELETE FROM donor WHERE key = ?1", INT(donor));
	return broker_reply(200, broker_get_text("SELECT json_object('id', ?1)", TEXT(id)));
}

static const char *const donor_list =
"SELECT json_object('donors', json_group_array(json_insert("
" json_remove(address, '$.shm_name', '$.boot_id'), '$.state', state,"
" '$.region_size', region_size, '$.regions', regions, '$.leased', leased,"
" '$.free', regions - leased - dirty, '$.dirty', dirty, '$.want_back', want_back,"
" '$.reclaiming', (SELECT ifnull(sum(asked), 0) FROM holding h WHERE h.donor = key),"
" '$.revision', revision, '$.applied', applied, '$.grace_ms', grace_ms,"
" '$.heard_ms', silent_ms, '$.stats', json(stats))))"
" FROM (SELECT * FROM donor_now ORDER BY id)";

BrokerReply
broker_donors_list(const char *id, json_t *body)
{
	return broker_reply(200, broker_get_text(donor_list));
}
