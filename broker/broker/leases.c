/*-------------------------------------------------------------------------
 *
 * leases.c
 *	  What clients ask of the broker: get, renew, resize, give back leases;
 *	  and what operators do with leases: list, revoke.  See docs/protocol.md.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/donors.h"
#include "broker/broker/http.h"
#include "broker/broker/leases.h"
#include "broker/broker/reclaim.h"
#include "broker/broker/schema.h"
#include "broker/broker/share.h"
#include "broker/broker/state.h"
#include "broker/broker/store.h"
#include "broker/broker/told.h"
#include "broker/common/log.h"
#include "broker/common/secret.h"
#include "common/limits.h"
#include "common/text.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REVOKED			"was revoked"
#define DONORS_MISSING	"the broker does not know which regions the lease has now: donors are missing"

int
broker_leases_end(int64_t lease, const char *how)
{
	int64_t		regions = broker_get("SELECT sum(regions) FROM holding WHERE lease = ?1", INT(lease));

	/* of one that is told of, only what is true of all that is told */
	broker_run("INSERT OR REPLACE INTO ended (id, how) SELECT id, ?2 FROM lease"
			   " WHERE key = ?1 AND (key > 0 OR ?2 = '" REVOKED "')", INT(lease), TEXT(how));
	broker_run("DELETE FROM lease WHERE key = ?1", INT(lease));
	return (int) regions;
}

static void
log_lease(RbpLogLevel level, int64_t lease, const char *what)
{
	broker_log(level, "SELECT format('lease %s (%s) of %s %s', id, purpose, client, ?2)"
			   " FROM lease WHERE key = ?1", INT(lease), TEXT(what));
}

/* Why there is no live lease of this id. */
static BrokerReply
no_lease(const char *id)
{
	char	   *how = broker_get_text("SELECT how FROM ended WHERE id = ?1", TEXT(id));
	BrokerReply reply = how == NULL ? broker_reply_error(404, "there is no such lease") :
	broker_reply_error(410, "the lease %s", how);

	free(how);
	return reply;
}

/* The lease of this id that its holder has shown to be his; 0 if there is none, with *error. */
static int64_t
find(const char *id, BrokerReply *error)
{
	int64_t		lease = broker_get("SELECT key FROM lease WHERE id = ?1 AND key > 0", TEXT(id));

	if (lease == 0)
		*error = no_lease(id);
	return lease;
}

/* Is it this lease's secret? */
static bool
is_secret(const json_t *told, const char *secret)
{
	const char *text = json_string_value(told);

	return text != NULL && rbp_equal_secret(text, strlen(text), secret, strlen(secret));
}

/*
 * A lease that is not known here, or that donors tell of.  needs_all: not before all donors
 * are here that may tell of it.  Who names none takes what there is, but it may be too early
 * to say that there is nothing.
 */
static int64_t
find_told(const char *id, const json_t *body, bool needs_all, BrokerReply *error)
{
	bool		enough = broker_told_enough(body);
	bool		early = !broker_told_settled() && json_array_size(json_object_get(body, "donors")) == 0;
	bool		ended = strlen(id) != RBP_UUID_LEN - 1 ||
	broker_get("SELECT EXISTS (SELECT 1 FROM ended WHERE id = ?1 AND how <> '" BROKER_HAS_EXPIRED "')", TEXT(id)) != 0;
	int64_t		lease = enough || !needs_all ? broker_told_prove(id, body) : 0;

	if (lease == 0 && !ended && (!enough || early))
		*error = broker_reply_error(503, DONORS_MISSING);
	else if (lease == 0 && broker_get("SELECT EXISTS (SELECT 1 FROM lease WHERE id = ?1)", TEXT(id)))
		*error = broker_reply_error(403, "the secret is wrong");
	else if (lease == 0)
		*error = no_lease(id);
	return lease;
}

/*
 * The lease of this id, if the body has its secret.  The donors of who can go elsewhere may follow
 * another broker, which then knows better.  Who repeats a change of the secret,
 * because the answer was lost, has the former one and the current one.
 */
static int64_t
find_held(const char *id, const json_t *body, bool needs_all, BrokerReply *error)
{
	int64_t		lease = find(id, error);
	char	   *secret;

	if (lease == 0)
	{
		free(error->text);
		return find_told(id, body, needs_all, error);
	}
	if (json_is_true(json_object_get(body, "elsewhere")) && !broker_told_enough(body))
	{
		*error = broker_reply_error(503, DONORS_MISSING);
		return 0;
	}
	secret = broker_get_text("SELECT secret FROM lease WHERE key = ?1", INT(lease));
	if (!is_secret(json_object_get(body, "secret"), secret) &&
		!is_secret(json_object_get(body, "new_secret"), secret))
	{
		*error = broker_reply_error(403, "the secret is wrong");
		lease = 0;
	}
	free(secret);
	return lease;
}

/* "lease object" of the protocol: with regions that their donors serve */
static const char *const lease_object =
"SELECT json_object('lease', id, 'secret', secret, 'client', client, 'purpose', purpose,"
" 'ttl_ms', ttl_ms, 'keep_ms', keep_ms, 'bytes', bytes, 'wanted', wanted, 'namesakes',"
"  (SELECT count(*) FROM lease o WHERE o.client = l.client"
"    AND o.purpose = l.purpose AND o.machine <> l.machine AND o.key > 0),"
" 'regions',"
"  (SELECT json_group_array(json_object('donor', d.id, 'region', number, 'bytes', region_size, 'rev', rev))"
"   FROM region r JOIN donor d ON d.key = r.donor JOIN donor_seen s ON s.donor = r.donor"
"   WHERE r.lease = l.key AND rev <= applied),"
" 'donors',"
"  (SELECT json_group_array(json(address))"
"   FROM holding h JOIN donor d ON d.key = h.donor WHERE h.lease = l.key),"
" 'reclaim',"
"  (SELECT json_group_array(json_object("
"    'donor', d.id, 'regions', asked, 'shared', min(shared, asked),"
"    'grace_ms', max(taken_at - now_ms(), 0)))"
"   FROM holding h JOIN donor d ON d.key = h.donor WHERE h.lease = l.key AND asked > 0))"
" FROM lease_now l WHERE key = ?1";

/* The answer to its holder, who is told by that what is asked back. */
static BrokerReply
tell(int64_t lease, int status)
{
	broker_reclaim_tell(lease);
	return broker_reply(status, broker_get_text(lease_object, INT(lease)));
}

/* What an answer waits for. */
typedef enum Awaited
{
	AWAIT_CLEAN,				/* regions that are being cleaned are granted,
								 * too */
	AWAIT_GRANT,				/* the donors know what was granted */
	AWAIT_SECRET				/* the donors know the secret */
} Awaited;

/*
 * Have all donors of the lease that are up applied what was granted to it?  Or else all
 * that they were to apply: the secret is in that, though no region has changed.
 * One that is not up would only cost the whole wait.
 */
static bool
applied_by_donors(int64_t lease, Awaited awaited)
{
	return broker_get("SELECT EXISTS (SELECT 1 FROM holding h JOIN donor_now d ON d.key = h.donor"
					  " WHERE h.lease = ?1 AND state IN ('up', 'draining') AND applied < revision AND (?2"
					  "  OR applied < (SELECT max(rev) FROM region r WHERE r.lease = ?1 AND r.donor = h.donor)))",
					  INT(lease), INT(awaited == AWAIT_SECRET)) == 0;
}

/*
 * After a grant, or a new secret: wait until the donors know of it, and for
 * AWAIT_CLEAN, grant what they clean meanwhile.  What was granted by a donor that does
 * not know of it then is taken back: nobody is promised what no donor has promised.
 * Then tell the holder, or that the lease has ended while we waited.
 */
static BrokerReply
settle(const char *id, Awaited awaited, int status)
{
	int64_t		clean_until = broker_now() + BROKER_SETTLE_MS;
	int64_t		deadline = broker_donors_deadline();
	bool		wait_clean = awaited == AWAIT_CLEAN;
	bool		more;
	bool		applied;
	int64_t		lease;
	int			taken;
	BrokerReply reply;

	while ((lease = find(id, &reply)) != 0)
	{
		if (wait_clean)
			broker_share_grant(lease, 0);
		wait_clean = wait_clean && broker_now() < clean_until;
		more = wait_clean && broker_share_more_coming(lease);
		applied = applied_by_donors(lease, awaited);
		if ((applied && !more) || !broker_wait(0, applied ? clean_until : deadline))
			break;
	}
	if (lease == 0)
		return reply;
	taken = broker_run("UPDATE region SET lease = NULL WHERE lease = ?1"
					   " AND rev > (SELECT applied FROM donor_seen s WHERE s.donor = region.donor)", INT(lease));
	broker.counters[REGIONS_TAKEN] += taken;
	if (taken > 0)
		broker_log(RBP_LOG_WARNING, "SELECT format('lease %s: %d regions are taken back, since their donors did not answer in time',"
				   "  id, ?2) FROM lease WHERE key = ?1", INT(lease), INT(taken));
	return tell(lease, status);
}

/*
 * End what the client's dead self holds.  On another machine, or before a boot
 * of it, that is dead if it has been silent; else it is a clone of the client,
 * and each keeps its own.
 */
static void
take_over(int64_t lease)
{
	int64_t		old[2] = {INT64_MAX};	/* a lease, and whether it is a
										 * clone's */

	/* when one that is told of was renewed is not known */
	while (broker_get_all(old, "SELECT o.key, o.machine <> l.machine AND (o.key < 0 OR now_ms() - (o.deadline - o.ttl_ms) < ?3)"
						  " FROM lease l JOIN lease_now o ON o.client = l.client AND o.purpose = l.purpose"
						  " WHERE l.key = ?1 AND o.instance <> l.instance AND o.key < ?2"
						  " ORDER BY o.key DESC LIMIT 1", INT(lease), INT(old[0]), INT(BROKER_ALIVE_MS)))
	{
		if (old[1])
			log_lease(RBP_LOG_WARNING, old[0], "stays: it is held on another machine, whose clone asks for one");
		else
		{
			log_lease(RBP_LOG_INFO, old[0], "ends: another instance takes over");
			broker_leases_end(old[0], "was taken over by another instance of its client");
			broker.counters[LEASES_TAKEN_OVER]++;
		}
	}
}

/* Its holder has asked for it, from this host. */
static void
prolong(int64_t lease)
{
	char		host[NI_MAXHOST];

	broker_run("UPDATE lease_term SET deadline = now_ms() + (SELECT ttl_ms FROM lease WHERE key = ?1), host = ?2"
			   " WHERE lease = ?1", INT(lease), TEXT(broker_http_caller_host(host, sizeof(host))));
}

BrokerReply
broker_leases_create(const char *path_id, json_t *body)
{
	const char *purpose = json_string_value(json_object_get(body, "purpose"));
	unsigned char bytes[RBP_SECRET_LEN];
	char		secret[2 * RBP_SECRET_LEN + 1];
	char		id[RBP_UUID_LEN];
	BrokerReply error;
	int64_t		lease;
	int			granted;

	if (strcmp(purpose, "buffer") != 0 && strcmp(purpose, "temp") != 0)
		return broker_reply_error(400, "\"purpose\" must be \"buffer\" or \"temp\"");
	if (json_is_true(json_object_get(body, "elsewhere")) && !broker_told_followed())
		return broker_reply_error(503, "no donor follows this broker");
	rbp_uuid4(id);
	rbp_random_bytes(bytes, sizeof(bytes));
	rbp_hex_encode(bytes, sizeof(bytes), secret);

	broker_run("INSERT INTO lease (key, id, secret, client, instance, purpose, wanted, ttl_ms, keep_ms, created)"
			   " SELECT (SELECT max(0, ifnull(max(key), 0)) + 1 FROM lease), ?1, ?2, b ->> 'client', b ->> 'instance', b ->> 'purpose',"
			   "  b ->> 'bytes', b ->> 'ttl_ms', ifnull(b ->> 'keep_ms', 0), ?4 FROM (SELECT ?3 AS b)",
			   TEXT(id), TEXT(secret), JSON(body), INT(time(NULL)));
	lease = broker_get("SELECT key FROM lease WHERE id = ?1", TEXT(id));
	take_over(lease);
	if (!broker_http_may_hold("leases", broker_get("SELECT count(*) FROM lease WHERE key > 0"), BROKER_MAX_LEASES,
							  broker_get("SELECT count(*) FROM lease WHERE key > 0 AND (client = ?1"
										 " OR (client >= ?1 || '/' AND client < ?1 || '0'))", TEXT(broker_http_caller())),
							  &error))
	{
		broker_run("DELETE FROM lease WHERE key = ?1", INT(lease));
		return error;
	}
	prolong(lease);
	granted = broker_share_grant(lease, 0);
	broker_log(RBP_LOG_INFO, "SELECT format('lease %s (%s) for %s: %d regions granted, %lld of %lld MB',"
			   "  id, purpose, client, ?2, bytes >> 20, wanted >> 20)"
			   " FROM lease_now WHERE key = ?1", INT(lease), INT(granted));
	broker.counters[LEASES_CREATED]++;
	return settle(id, AWAIT_CLEAN, 201);
}

static bool
check_release(const json_t *release, BrokerReply *error)
{
	size_t		i;
	json_t	   *item;

	json_array_foreach(release, i, item)
	{
		if (!json_is_string(json_object_get(item, "donor")) ||
			!json_is_integer(json_object_get(item, "region")) ||
			(json_object_get(item, "rev") != NULL && !json_is_integer(json_object_get(item, "rev"))))
		{
			*error = broker_reply_error(400, "\"release\" must list objects with \"donor\", \"region\" and perhaps \"rev\"");
			return false;
		}
	}
	return true;
}

static bool
check_donors(const json_t *names, BrokerReply *error)
{
	bool		good = json_array_size(names) <= BROKER_MAX_DONORS;
	size_t		i;
	json_t	   *name;

	json_array_foreach(names, i, name)
	{
		good = good && json_is_string(name);
	}
	if (!good)
		*error = broker_reply_error(400, "\"donors\" must list up to %d ids of donors", BROKER_MAX_DONORS);
	return good;
}

/* As the broker writes secrets, and compares them. */
static bool
check_secret(const char *secret, BrokerReply *error)
{
	if (secret == NULL || secret[strspn(secret, "0123456789abcdef")] == '\0')
		return true;
	*error = broker_reply_error(400, "\"new_secret\" must consist of lower-case hex digits");
	return false;
}

BrokerReply
broker_leases_renew(const char *id, json_t *body)
{
	const json_t *release = json_object_get(body, "release");
	const char *new_secret = json_string_value(json_object_get(body, "new_secret"));
	int64_t		lease;
	int64_t		ahead;
	BrokerReply error;

	if (!check_release(release, &error) || !check_donors(json_object_get(body, "donors"), &error) ||
		!check_secret(new_secret, &error))
		return error;
	lease = find_held(id, body, true, &error);
	if (lease == 0)
		return error;
	broker_run("UPDATE lease SET wanted = ifnull(b ->> 'bytes', wanted), ttl_ms = ifnull(b ->> 'ttl_ms', ttl_ms),"
			   "  keep_ms = ifnull(b ->> 'keep_ms', keep_ms), secret = ifnull(b ->> 'new_secret', secret),"
			   "  client = ifnull(b ->> 'client', client), instance = ifnull(b ->> 'instance', instance)"
			   " FROM (SELECT ?2 AS b)"
			   " WHERE key = ?1 AND (wanted <> b ->> 'bytes' OR ttl_ms <> b ->> 'ttl_ms'"
			   "  OR keep_ms <> b ->> 'keep_ms' OR secret <> b ->> 'new_secret')",
			   INT(lease), JSON(body));

	/*
	 * Regions that are not in the lease (any more) are passed over: they may
	 * have been taken, perhaps also granted to it again (rev), or the request
	 * is a repetition.
	 */
	if (json_array_size(release) > 0)
		broker.counters[REGIONS_RELEASED] +=
			broker_run("UPDATE region SET lease = NULL FROM"
					   " (SELECT d.key AS holder, value ->> 'region' AS n, value ->> 'rev' AS known"
					   "   FROM json_each(?2) JOIN donor d ON d.id = value ->> 'donor')"
					   " WHERE lease = ?1 AND donor = holder AND number = n AND rev = ifnull(known, rev)",
					   INT(lease), JSON(release));
	prolong(lease);
	broker.counters[LEASES_RENEWED]++;
	if (new_secret != NULL)
		return settle(id, AWAIT_SECRET, 200);
	ahead = json_integer_value(json_object_get(body, "ahead"));
	return broker_share_grant(lease, ahead) > 0 ? settle(id, AWAIT_GRANT, 200) : tell(lease, 200);
}

BrokerReply
broker_leases_release(const char *id, json_t *body)
{
	BrokerReply error;
	int64_t		lease = find_held(id, body, false, &error);

	if (lease == 0)
		return error;
	log_lease(RBP_LOG_INFO, lease, "is given back");
	broker.counters[REGIONS_RELEASED] += broker_leases_end(lease, "was given back");
	broker.counters[LEASES_RELEASED]++;
	return broker_reply(204, NULL);
}

/* All that is told of it, too */
BrokerReply
broker_leases_revoke(const char *id, json_t *body)
{
	char	   *donors = broker_get_text("SELECT json_group_array(donor) FROM holding h JOIN lease l ON l.key = h.lease WHERE id = ?1",
										 TEXT(id));
	BrokerReply reply = no_lease(id);
	int64_t		lease;
	int			regions = 0;
	bool		any = false;

	for (; (lease = broker_get("SELECT key FROM lease WHERE id = ?1 LIMIT 1", TEXT(id))) != 0; any = true)
	{
		log_lease(RBP_LOG_INFO, lease, "is revoked");
		regions += broker_leases_end(lease, REVOKED);
	}
	if (any)
	{
		broker.counters[LEASES_REVOKED]++;
		free(reply.text);
		reply = broker_donors_await(donors, broker_get_text("SELECT json_object('lease', ?1, 'regions', ?2)",
															TEXT(id), INT(regions)));
	}
	free(donors);
	return reply;
}

static const char *const lease_list =
"SELECT json_object('leases', json_group_array(json_object('lease', id, 'client', client, 'host', host,"
" 'purpose', purpose, 'ttl_ms', ttl_ms, 'remaining_ms', max(deadline - now_ms(), 0),"
" 'keep_ms', keep_ms, 'lapsed', json(iif(lapsed, 'true', 'false')),"
" 'bytes', bytes, 'wanted', wanted, 'age_s', max(?1 - created, 0), 'donors',"
"  (SELECT json_group_array(json_object('id', d.id, 'regions', h.regions,"
"    'bytes', h.regions * region_size, 'reclaim', asked))"
"   FROM holding h JOIN donor d ON d.key = h.donor WHERE h.lease = l.key))))"
" FROM (SELECT * FROM lease_now ORDER BY key DESC) l";

BrokerReply
broker_leases_list(const char *id, json_t *body)
{
	return broker_reply(200, broker_get_text(lease_list, INT(time(NULL))));
}
