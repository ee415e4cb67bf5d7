/*-------------------------------------------------------------------------
 *
 * told.c
 *	  Leases that donors tell of when they register: see schema.c.
 *
 * A broker that has just started, or that donors have just begun to follow, knows nothing
 * of leases but what donors tell.  A donor may lie, so each one's word stands for itself:
 * it is about regions of this donor, and is not compared with that of others.  What is true
 * of it shows when the holder comes, since the donor's key is derived from his secret, which
 * no donor knows.  Who invents leases only keeps his own memory from being leased.
 *
 * A lease must not shrink, nor be given other regions instead, because a donor that has
 * regions of it comes later than its holder: hence broker_told_enough().
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/schema.h"
#include "broker/broker/share.h"
#include "broker/broker/state.h"
#include "broker/broker/store.h"
#include "broker/broker/told.h"
#include "broker/common/log.h"
#include "common/limits.h"
#include "common/text.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TOLD		1024	/* leases of a donor */
#define MAX_ABOUT		4096	/* bytes */

/* Donors that follow a broker find another one in its place within this time. */
#define SETTLE_MS		5000
/* They send a heartbeat each second, and go to another broker after three without an answer. */
#define RECENT_MS		3000

static const BrokerMember members_of_told[] = {
	{"lease", BODY_TEXT, true, 1, RBP_LEASE_ID_LEN - 1},
	{"key", BODY_TEXT, true, 2 * RBP_SECRET_LEN, 2 * RBP_SECRET_LEN},
	{"remaining_ms", BODY_INT, true, 0, 2 * BROKER_MAX_TTL_MS},
	{"regions", BODY_ARRAY, true, 0, 0},
	{"revs", BODY_ARRAY, true, 0, 0},
	{.key = NULL}
};

/* What a broker has said about a lease, and donors do not look at */
static const BrokerMember members_of_about[] = {
	{"client", BODY_TEXT, true, 1, RBP_CLIENT_LEN - 1},
	{"instance", BODY_TEXT, true, 1, BROKER_MAX_NAME},
	{"purpose", BODY_TEXT, true, 1, BROKER_MAX_NAME},
	{"wanted", BODY_INT, true, 0, BROKER_MAX_SIZE},
	{"ttl_ms", BODY_INT, true, BROKER_MIN_TTL_MS, BROKER_MAX_TTL_MS},
	{"keep_ms", BODY_INT, true, 0, BROKER_MAX_TTL_MS},
	{"created", BODY_INT, true, 0, INT64_MAX},
	{.key = NULL}
};

static bool
is_within(const json_t *value, int64_t most)
{
	return json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) <= most;
}

/* seen: for each of the donor's regions, whether it was told already; revision: the donor's */
static const char *
fault_of_told(const json_t *told, char *seen, int64_t nregions, int64_t revision)
{
	const json_t *about = json_object_get(told, "about");
	const json_t *revs = json_object_get(told, "revs");
	const char *key = json_string_value(json_object_get(told, "key"));
	const char *purpose = json_string_value(json_object_get(about, "purpose"));
	size_t		i;
	json_t	   *number;

	if (!rbp_valid_id(json_string_value(json_object_get(told, "lease")), RBP_LEASE_ID_LEN) ||
		key[strspn(key, "0123456789abcdef")] != '\0')
		return "\"leases\" must list ids and keys of leases";
	if (json_dumpb(about, NULL, 0, JSON_COMPACT) > MAX_ABOUT ||
		(strcmp(purpose, "buffer") != 0 && strcmp(purpose, "temp") != 0))
		return "\"about\" must be what a broker has said about the lease";
	if (json_array_size(revs) != json_array_size(json_object_get(told, "regions")))
		return "\"revs\" must have a number for each of \"regions\"";
	json_array_foreach(json_object_get(told, "regions"), i, number)
	{
		char	   *mark = is_within(number, nregions - 1) ? &seen[json_integer_value(number)] : NULL;

		if (mark == NULL || *mark != 0)
			return "\"leases\" and \"clean\" must list numbers of regions, each once";
		if (!is_within(json_array_get(revs, i), revision))
			return "\"revs\" must be up to \"revision\"";
		*mark = 1;
	}
	return NULL;
}

bool
broker_told_check(json_t *body, BrokerReply *error)
{
	const json_t *leases = json_object_get(body, "leases");
	int64_t		nregions = json_integer_value(json_object_get(body, "regions"));
	int64_t		revision = json_integer_value(json_object_get(body, "revision"));
	json_t	   *dirty = json_array();
	char	   *seen = calloc((size_t) nregions, 1);
	const char *fault = NULL;
	bool		good = true;
	size_t		i;
	json_t	   *item;

	if (seen == NULL)
		rbp_die("out of memory");
	json_array_foreach(json_object_get(body, "clean"), i, item)
	{
		seen[json_integer_value(item)] = 1;
	}
	if (json_array_size(leases) > MAX_TOLD)
		fault = "\"leases\" must list 1024 leases or fewer";
	json_array_foreach(leases, i, item)
	{
		good = good && fault == NULL && broker_check_members(item, members_of_told, error) &&
			broker_check_members(json_object_get(item, "about"), members_of_about, error);
		if (good)
			fault = fault_of_told(item, seen, nregions, revision);
	}
	for (json_int_t n = 0; json_object_get(body, "clean") != NULL && n < nregions; n++)
		if (!seen[n] && json_array_append_new(dirty, json_integer(n)) != 0)
			rbp_die("out of memory");
	if (json_object_set_new(body, "dirty", dirty) != 0)
		rbp_die("out of memory");
	json_object_del(body, "clean");
	free(seen);
	if (good && fault == NULL && json_array_size(leases) > 1 &&
		broker_get("SELECT count(*) > count(DISTINCT value ->> 'lease') FROM json_each(?1)", JSON(leases)) != 0)
		fault = "\"leases\" must list each lease once";
	if (fault != NULL)
		*error = broker_reply_error(400, "%s", fault);
	return good && fault == NULL;
}

/*
 * Why its regions are not the lease's (any more): it has ended here, or another instance of
 * its client, on the same machine, has a lease that is newer, since it was made here, or renewed here lately, and
 * is not older by what donors tell: the client may have got this one from another broker since.
 */
static const char *const has_ended =
"SELECT EXISTS (SELECT 1 FROM ended WHERE id = b ->> 'lease' AND how <> '" BROKER_HAS_EXPIRED "')"
" OR EXISTS (SELECT 1 FROM lease WHERE key > 0 AND client = b ->> 'client' AND purpose = b ->> 'purpose'"
"  AND instance <> b ->> 'instance' AND created >= b ->> 'created'"
"  AND EXISTS (SELECT 1 FROM lease_term t WHERE t.lease = lease.key AND now_ms() - (deadline - ttl_ms) < ?2)"
"  AND ifnull(machine = substr(b ->> 'instance', 1, nullif(instr(b ->> 'instance', '/'), 0)), 1))"
" FROM (SELECT ?1 AS b)";

static const char *const put_told =
"INSERT INTO lease (key, id, told_by, told_key, client, instance, purpose, wanted, ttl_ms, keep_ms, created)"
" SELECT (SELECT min(0, ifnull(min(key), 0)) - 1 FROM lease), b ->> 'lease', ?1, b ->> 'key', b ->> 'client',"
"  b ->> 'instance', b ->> 'purpose', b ->> 'wanted', b ->> 'ttl_ms', b ->> 'keep_ms', b ->> 'created'"
" FROM (SELECT ?2 AS b)";

/*
 * The lease that this donor tells of, made if it is not there.  0: it has ended, or is not that
 * donor's.  One that its holder does not renew here may have got another secret elsewhere: then what
 * is known of it here is not true any more.
 */
static int64_t
find_or_make(int64_t donor, const json_t *told)
{
	const char *id = json_string_value(json_object_get(told, "lease"));
	json_t	   *b = json_copy(json_object_get(told, "about"));
	int64_t		here[3] = {0};	/* a lease, whether the donor has its key, and
								 * whether it is renewed here */
	int64_t		lease = 0;

	json_object_set(b, "lease", json_object_get(told, "lease"));
	json_object_set(b, "key", json_object_get(told, "key"));
	broker_get_all(here, "SELECT l.key, client = b ->> 'client' AND donor_key(secret, d.id) = b ->> 'key',"
				   "  now_ms() - (deadline - ttl_ms) < ?3"
				   " FROM (SELECT ?2 AS b) JOIN lease l ON l.id = b ->> 'lease' JOIN lease_term t ON t.lease = l.key"
				   " JOIN donor d ON d.key = ?1 WHERE l.key > 0", INT(donor), JSON(b), INT(BROKER_ALIVE_MS));
	if (here[0] != 0 && !here[1] && !here[2])
		broker_run("DELETE FROM lease WHERE key = ?1", INT(here[0]));
	if (here[1])
	{
		lease = here[0];
		/* it may have been renewed elsewhere */
		broker_run("UPDATE lease_term SET deadline = max(deadline, now_ms() + min(?2 - keep_ms, ttl_ms)) FROM lease"
				   " WHERE lease = ?1 AND key = ?1", INT(lease), INT(json_integer_value(json_object_get(told, "remaining_ms"))));
	}
	else if (!here[2] && broker_get(has_ended, JSON(b), INT(BROKER_ALIVE_MS)) == 0)
	{
		broker_run("DELETE FROM ended WHERE id = ?1", TEXT(id));
		broker_run(put_told, INT(donor), JSON(b));
		lease = broker_get("SELECT key FROM lease WHERE id = ?1 AND told_by = ?2", TEXT(id), INT(donor));
		broker_run("UPDATE lease_term SET deadline = now_ms() + ?2 - (SELECT keep_ms FROM lease WHERE key = ?1)"
				   " WHERE lease = ?1", INT(lease), INT(json_integer_value(json_object_get(told, "remaining_ms"))));
	}
	json_decref(b);
	return lease;
}

void
broker_told_adopt(int64_t donor, const json_t *leases)
{
	int64_t		revision = broker_get("SELECT revision FROM donor WHERE key = ?1", INT(donor));
	size_t		regions = 0;
	size_t		i;
	json_t	   *told;

	json_array_foreach(leases, i, told)
	{
		int64_t		lease = find_or_make(donor, told);
		const json_t *revs = json_object_get(told, "revs");
		size_t		n;
		json_t	   *number;

		json_array_foreach(json_object_get(told, "regions"), n, number)
		{
			int64_t		rev = lease != 0 ? json_integer_value(json_array_get(revs, n)) : revision;

			broker_run("INSERT INTO region (donor, number, lease, rev) VALUES (?1, ?2, nullif(?3, 0), ?4)",
					   INT(donor), INT(json_integer_value(number)), INT(lease), INT(rev));
		}
		regions += n;
		if (lease == 0 || n == 0)
			continue;
		broker_share_hold(donor, lease, (int64_t) n);
	}
	if (regions > 0)
		broker_log(RBP_LOG_INFO, "SELECT format('donor %s tells of %d leases, with %d regions', id, ?2, ?3)"
				   " FROM donor WHERE key = ?1", INT(donor), INT((int64_t) json_array_size(leases)), INT((int64_t) regions));
}

bool
broker_told_settled(void)
{
	return broker_now() - broker.learns_since >= SETTLE_MS;
}

bool
broker_told_enough(const json_t *body)
{
	const json_t *names = json_object_get(body, "donors");

	if (names == NULL)
		return broker_told_settled();
	return broker_get("SELECT EXISTS (SELECT 1 FROM json_each(?1) WHERE value NOT IN"
					  " (SELECT id FROM donor_now WHERE state IN ('up', 'draining') AND silent_ms + forgiven < ?2))", JSON(names),
					  INT(json_is_true(json_object_get(body, "elsewhere")) ? RECENT_MS : INT64_MAX)) == 0;
}

bool
broker_told_followed(void)
{
	return broker_get("SELECT EXISTS (SELECT 1 FROM donor_now WHERE silent_ms + forgiven < ?1)", INT(RECENT_MS)) != 0;
}

/*
 * Whose the lease is: who can derive from his secret (?2, or ?3) the key that its donor has,
 * and, if he says which client he is (?5), is the lease's, and permitted to be (?4).
 */
#define HELD \
	"SELECT l.key FROM lease l JOIN donor d ON d.key = l.told_by WHERE l.id = ?1" \
	" AND l.told_key IN (donor_key(?2, d.id), donor_key(?3, d.id)) AND l.client = ifnull(?5, l.client)" \
	" AND (?4 IN ('', '*') OR l.client = ?4 OR substr(l.client, 1, length(?4) + 1) = ?4 || '/')"

static bool
is_secret(const char *text)
{
	return text != NULL && strlen(text) == 2 * RBP_SECRET_LEN && text[strspn(text, "0123456789abcdef")] == '\0';
}

int64_t
broker_told_prove(const char *id, const json_t *body)
{
	const char *secret = json_string_value(json_object_get(body, "secret"));
	const char *fresh = json_string_value(json_object_get(body, "new_secret"));
	const char *client = json_string_value(json_object_get(body, "client"));

	/* with another secret, another client may go on */
	const BrokerValue shown[] = {
		{.kind = VALUE_NULL}, TEXT(id), TEXT(secret), TEXT(is_secret(fresh) ? fresh : secret),
		TEXT(broker_http_caller()), TEXT(fresh == NULL ? client : NULL)
	};
	int64_t		lease;

	if (!is_secret(secret) || broker_store_get(HELD " LIMIT 1", 5, shown) == 0)
		return 0;
	broker_store_run("DELETE FROM lease WHERE id = ?1 AND key NOT IN (" HELD ")", 5, shown);
	broker_run("INSERT INTO lease (key, id, secret, client, instance, purpose, wanted, ttl_ms, keep_ms, created)"
			   " SELECT (SELECT max(0, max(key)) + 1 FROM lease), id, ?2, client, instance, purpose, wanted, ttl_ms, keep_ms, created"
			   " FROM lease l JOIN lease_term t ON t.lease = l.key WHERE id = ?1 ORDER BY deadline DESC LIMIT 1",
			   TEXT(id), TEXT(secret));
	lease = broker_get("SELECT key FROM lease WHERE id = ?1 AND key > 0", TEXT(id));
	broker_run("UPDATE lease_term SET (deadline, bytes) ="
			   "  (SELECT max(deadline), sum(bytes) FROM lease_term t JOIN lease l ON l.key = t.lease WHERE id = ?1 AND l.key < 0)"
			   " WHERE lease = ?2", TEXT(id), INT(lease));
	broker_run("UPDATE region SET lease = ?2 WHERE lease IN (SELECT key FROM lease WHERE id = ?1 AND key < 0)",
			   TEXT(id), INT(lease));
	broker_run("UPDATE holding SET lease = ?2 WHERE lease IN (SELECT key FROM lease WHERE id = ?1 AND key < 0)",
			   TEXT(id), INT(lease));
	broker_run("DELETE FROM lease WHERE id = ?1 AND key < 0", TEXT(id));
	broker.counters[LEASES_ADOPTED]++;
	broker_log(RBP_LOG_INFO, "SELECT format('lease %s (%s) of %s goes on here: %d regions of %d donors', id, purpose, client,"
			   "  (SELECT sum(regions) FROM holding h WHERE h.lease = key), (SELECT count(*) FROM holding h WHERE h.lease = key))"
			   " FROM lease WHERE key = ?1", INT(lease));
	return lease;
}
