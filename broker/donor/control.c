/*-------------------------------------------------------------------------
 *
 * control.c
 *	  The donor's side of the communication with the broker.
 *
 * The control thread, which is the main one, registers and then sends
 * heartbeats.  Each heartbeat is a long poll whose answer has the complete
 * desired state of this donor's leases.  See "Broker API" in docs/protocol.md.
 * If the broker is unreachable, nothing changes for the clients until their
 * leases' deadlines pass.
 *
 * The instance, random for each process, tells the broker that all memory is
 * new.  Before a slash it has the network namespace, in which no two processes
 * listen on the same port: a process that is started again in the place of one
 * that was killed is told from a second one that was given the same id.  An
 * answer is checked completely before any of it is applied.
 *
 * On SIGTERM the donor drains: heartbeats say so, the broker moves the clients
 * away, and when no region is leased any more, or the time for draining is
 * over, the donor deregisters and exits.  A second signal makes it exit at
 * once.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/http_client.h"
#include "broker/common/log.h"
#include "broker/common/secret.h"
#include "broker/donor/control.h"
#include "broker/donor/lease.h"
#include "broker/donor/memory.h"
#include "broker/donor/serve.h"
#include "broker/donor/verbs.h"
#include "common/clock.h"
#include "common/text.h"
#include "common/urls.h"
#include "transport/transport.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#define REQUEST_MS		5000	/* the broker's long poll takes up to 1 s */
#define MOVE_MS			3000	/* likewise, if there is another broker */
#define REGISTER_MS		15000	/* when a broker is lost, all come at once */
#define PROBE_EVERY_MS	5000
#define PROBE_MS		1000
#define WELL_MS			10000	/* how long a former broker must have been
								 * well */
#define RETRY_MIN_MS	200
#define RETRY_MAX_MS	2000
#define CLEAN_WAIT_MS	100
#define MAX_TTL_MS		(INT64_C(1000) * 86400 * 365)

static atomic_int stop_signals;
static atomic_bool stop_now;
static atomic_bool reload_wanted;

static char instance[RBP_BOOT_ID_LEN + 22 + RBP_UUID_LEN];
static char *donor_path;		/* "/v1/donors/ID" */
static char *heartbeat_path;

void
donor_control_stop(void)
{
	if (atomic_fetch_add(&stop_signals, 1) > 0)
		atomic_store(&stop_now, true);
}

void
donor_control_reload(void)
{
	atomic_store(&reload_wanted, true);
}

/* Sleep, or return early when a signal arrives. */
static void
pause_ms(int ms)
{
	(void) poll(NULL, 0, ms);
}

/*
 * Register with a broker, and tell it what it has to know of leases.  revision: the last one
 * that was applied, of whichever broker.  Returns the HTTP status, or -1 if there was no
 * usable answer.
 */
static int
register_donor(RbpHttp *http, const RbpDonorOptions *opt, const RbpEndpoint *ep, int64_t revision, bool draining)
{
	bool		verbs = (ep->transports & RBP_TRANSPORT_VERBS) != 0;
	RbpDonorReport report;
	json_t	   *leases;
	json_t	   *lease;
	json_t	   *body;
	size_t		known;
	size_t		i;
	int			rc;

	/* the broker knows nothing about the regions yet */
	for (uint32_t n = 0; n < donor_nregions; n++)
		donor_report_clean_again(n);
	donor_report_get(&report);
	leases = donor_report_leases();
	known = json_array_size(report.clean);
	json_array_foreach(leases, i, lease)
	{
		known += json_array_size(json_object_get(lease, "regions"));
	}
	body = json_pack("{s:s, s:s, s:i, s:s*, s:o*, s:s, s:s, s:s, s:I, s:I, s:I, s:[s*s*s*], s:O*, s:O, s:I, s:b}",
					 "id", opt->id,
					 "host", ep->host,
					 "port", (int) ep->port,
					 "rdma_host", verbs ? ep->rdma_host : NULL,
					 "rdma_port", verbs ? json_integer(ep->rdma_port) : NULL,
					 "shm_name", ep->shm_name,
					 "boot_id", ep->boot_id,
					 "instance", instance,
					 "region_size", (json_int_t) donor_region_size,
					 "regions", (json_int_t) donor_nregions,
					 "grace_ms", (json_int_t) opt->reclaim_grace * 1000,
					 "transports",
					 ep->transports & RBP_TRANSPORT_SHM ? "shm" : NULL,
					 verbs ? "verbs" : NULL,
					 ep->transports & RBP_TRANSPORT_TCP ? "tcp" : NULL,

	/*
	 * without it, all are clean that are not leased: mostly so, and there may
	 * be many
	 */
					 "clean", known < donor_nregions ? report.clean : NULL,
					 "leases", leases,
					 "revision", (json_int_t) revision,
					 "draining", draining);
	if (body == NULL)
		rbp_die("out of memory");
	rc = rbp_http_request(http, "POST", "/v1/donors", body, NULL);
	if (rc == 200)
	{
		/* the heartbeats need not tell it again, but which leases have ended */
		json_decref(report.ended);
		report.ended = NULL;
		donor_report_acknowledged(&report);
	}
	donor_report_free(&report);
	if ((rc == 400 || rc == 413) && json_array_size(leases) > 0)
	{
		rbp_log(RBP_LOG_ERROR, "the broker does not take %zu leases, which end here: %s",
				json_array_size(leases), rbp_http_error(http));
		donor_apply_begin();
		donor_apply_end();
	}
	json_decref(leases);
	json_decref(body);
	return rc;
}

static bool
is_region(const json_t *number)
{
	return json_is_integer(number) && json_integer_value(number) >= 0 &&
		json_integer_value(number) < donor_nregions;
}

/* Decode the desired state of a lease.  False if it is invalid. */
static bool
parse_desired_lease(const json_t *lease, RbpDonorDesired *desired)
{
	const char *key;
	const json_t *region;
	size_t		i;

	desired->client = NULL;
	if (json_unpack((json_t *) lease, "{s:s, s:s, s:I, s:o, s?s}", "lease", &desired->id,
					"key", &key, "ttl_ms", &desired->ttl_ms, "regions", &desired->regions,
					"client", &desired->client) != 0 ||
		!rbp_valid_id(desired->id, RBP_LEASE_ID_LEN) ||
		desired->ttl_ms < 0 || desired->ttl_ms > MAX_TTL_MS ||
		!json_is_array(desired->regions) ||
		!rbp_hex_decode(key, desired->key, sizeof(desired->key)))
		return false;
	if (desired->client == NULL)
		desired->client = desired->id;
	desired->about = json_object_get(lease, "about");
	desired->revs = json_object_get(lease, "revs");
	if (!json_is_array(desired->revs))
		desired->revs = NULL;
	if (desired->revs != NULL && json_array_size(desired->revs) != json_array_size(desired->regions))
		return false;
	json_array_foreach(desired->regions, i, region)
	{
		if (!is_region(region) ||
			(desired->revs != NULL && !json_is_integer(json_array_get(desired->revs, i))))
			return false;
	}
	return true;
}

/* Is the answer to a heartbeat completely valid? */
static bool
check_desired_state(const json_t *reply)
{
	const json_t *list = json_object_get(reply, "leases");
	const json_t *lease;
	RbpDonorDesired desired;

	/* each has one of the regions at least */
	bool		valid = json_is_integer(json_object_get(reply, "revision")) &&
	json_is_array(list) && json_array_size(list) <= donor_nregions;
	size_t		i;

	json_array_foreach(list, i, lease)
	{
		valid = valid && parse_desired_lease(lease, &desired);
	}
	explicit_bzero(desired.key, sizeof(desired.key));
	return valid;
}

/* Apply an answer that was found valid.  now: the time when it arrived. */
static void
apply_desired_state(const json_t *reply, int64_t now, int64_t *revision)
{
	RbpDonorDesired desired;
	const json_t *item;
	size_t		i;

	donor_apply_begin();
	json_array_foreach(json_object_get(reply, "leases"), i, item)
	{
		if (parse_desired_lease(item, &desired))
			donor_apply_lease(&desired, now);
	}
	donor_apply_end();
	explicit_bzero(desired.key, sizeof(desired.key));

	/* a report that a region is clean may have been lost */
	json_array_foreach(json_object_get(reply, "dirty"), i, item)
	{
		if (is_region(item))
			donor_report_clean_again((uint32_t) json_integer_value(item));
	}
	*revision = json_integer_value(json_object_get(reply, "revision"));
}

/*
 * Send a heartbeat and apply the answer.  Returns the HTTP status, -1 if there
 * was no usable answer, or -2 if it was invalid.
 */
static int
heartbeat(RbpHttp *http, int64_t *revision, bool draining, bool *drain)
{
	RbpDonorReport report;
	json_t	   *reply = NULL;
	json_t	   *body;
	int			rc;

	donor_report_get(&report);
	body = json_pack("{s:s, s:I, s:O, s:O, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
					 "instance", instance,
					 "revision", (json_int_t) *revision,
					 "clean", report.clean,
					 "ended", report.ended,
					 "want_back", (json_int_t) report.want_back,
					 "draining", draining,
					 "free_regions", (json_int_t) report.regions[DONOR_REGION_FREE],
					 "leased_regions", (json_int_t) report.regions[DONOR_REGION_LEASED],
					 "released_regions", (json_int_t) report.regions[DONOR_REGION_RELEASED],
					 "connections", (json_int_t) donor_serve_connections + donor_verbs_connections,
					 "rdma_connections", (json_int_t) donor_verbs_connections,
					 "reads", (json_int_t) donor_serve_stat(DONOR_READS),
					 "writes", (json_int_t) donor_serve_stat(DONOR_WRITES),
					 "maps", (json_int_t) donor_serve_stat(DONOR_MAPS),
					 "denied", (json_int_t) (donor_serve_stat(DONOR_DENIED) + donor_verbs_denied),
					 "bytes_read", (json_int_t) donor_serve_stat(DONOR_BYTES_READ),
					 "bytes_written", (json_int_t) donor_serve_stat(DONOR_BYTES_WRITTEN),
					 "locked", (json_int_t) donor_memory_locked);
	if (body == NULL)
		rbp_die("out of memory");

	rc = rbp_http_request(http, "POST", heartbeat_path, body, &reply);
	if (rc == 200)
	{
		int64_t		now = rbp_boottime_ns();

		if (check_desired_state(reply))
		{
			donor_report_acknowledged(&report);
			apply_desired_state(reply, now, revision);
			*drain = json_is_true(json_object_get(reply, "drain"));
		}
		else
			rc = -2;
	}
	json_decref(body);
	json_decref(reply);
	donor_report_free(&report);
	return rc;
}

/*
 * Regions that the last answer has fenced are zeroed quickly.  With some luck
 * the next heartbeat can report that already, instead of one a second later.
 */
static void
wait_for_cleaning(void)
{
	int64_t		until = rbp_mono_ms() + CLEAN_WAIT_MS;

	while (donor_regions_in(DONOR_REGION_DIRTY) > 0 && rbp_mono_ms() < until)
		pause_ms(5);
}

/* The control thread's state. */
typedef struct Control
{
	const RbpDonorOptions *opt;
	char	   *brokers;		/* the list */
	RbpHttp    *http;
	RbpHttp    *probe;			/* asks brokers that come before the one in
								 * use */
	int64_t		probe_due;
	int			well;			/* the first of these that is well; -1: none */
	int64_t		well_since;
	int64_t		revision;		/* last one applied; brokers go on from it */
	int64_t		drain_until;	/* INT64_MAX: not draining */
	int			retry_ms;
	bool		registered;
	bool		replaced;		/* another process has this one's id */
	bool		draining;		/* told to drain */
	bool		broker_drains;	/* the broker is draining this donor */
	char		failure[512];	/* why the last request has failed; "": it has
								 * not */
	bool		failure_logged; /* that, or a reason before it */
} Control;

/* Among brokers */
static bool
has_choice(const Control *c)
{
	return rbp_urls_several(c->brokers);
}

/*
 * Log why the broker cannot be used, if the reason has changed.  Times that
 * libcurl measured are removed first, since they are not part of the reason.
 */
static void
log_failure(Control *c, int rc)
{
	char		reason[512];
	char	   *to;

	snprintf(reason, sizeof(reason), "%s: %s",
			 rc == -1 ? "cannot reach the broker"
			 : rc == -2 ? "the broker's answer is not valid"
			 : "the broker refuses",
			 rc == -2 ? "ignored" : rbp_http_error(c->http));
	to = strstr(reason, " after ");
	if (to != NULL && rc == -1)
	{
		const char *rest = to + strlen(" after ");

		rest += strspn(rest, "0123456789 ");
		rest += strcspn(rest, " :");
		memmove(to, rest, strlen(rest) + 1);
	}
	if (strcmp(reason, c->failure) != 0)
	{
		strcpy(c->failure, reason);
		c->failure_logged |= rbp_log_repeated(RBP_LOG_WARNING, "%s", reason);
	}
}

static void
make_instance(void)
{
	struct stat ns;
	char		uuid[RBP_UUID_LEN];

	if (stat("/proc/self/ns/net", &ns) != 0)
		ns.st_ino = 0;
	rbp_uuid4(uuid);
	snprintf(instance, sizeof(instance), "%s.%ju/%s", rbp_transport_boot_id(),
			 (uintmax_t) ns.st_ino, uuid);
}

static void
control_init(Control *c, const RbpDonorOptions *opt)
{
	*c = (Control)
	{
		.opt = opt,.brokers = strdup(opt->broker),.drain_until = INT64_MAX,.retry_ms = RETRY_MIN_MS,.well = -1
	};
	if (c->brokers == NULL)
		rbp_die("out of memory");
	make_instance();
	c->http = rbp_http_create(c->brokers, opt->token_file, opt->broker_ca, 2000, REQUEST_MS);
	rbp_http_set_abort(c->http, &stop_now);
	c->probe = rbp_http_create(c->brokers, opt->token_file, opt->broker_ca, PROBE_MS, PROBE_MS);
	donor_path = rbp_http_path("/v1/donors/%s", opt->id);
	heartbeat_path = rbp_http_path("/v1/donors/%s/heartbeat", opt->id);
}

/* Deregister if registered, and free everything. */
static void
control_end(Control *c)
{
	if (c->registered)
	{
		json_t	   *body = json_pack("{s:s}", "instance", instance);
		int			rc;

		rbp_http_set_abort(c->http, NULL);
		rbp_http_set_timeout(c->http, 1000);
		rc = rbp_http_request(c->http, "DELETE", donor_path, body, NULL);
		if (rc < 0 || rc >= 500)
			rbp_log(RBP_LOG_WARNING, "could not deregister from the broker: %s",
					rbp_http_error(c->http));
		json_decref(body);
	}
	rbp_log_flush_repeated(true);
	rbp_http_destroy(c->http);
	rbp_http_destroy(c->probe);
	free(c->brokers);
	free(donor_path);
	free(heartbeat_path);
}

/*
 * Start draining if told to.  Is the donor drained, or the time for it over?
 */
static bool
is_drained(Control *c)
{
	c->draining = atomic_load(&stop_signals) > 0;
	if (!c->draining)
		return false;
	if (c->drain_until == INT64_MAX)
	{
		c->drain_until = rbp_mono_ms() + (int64_t) c->opt->drain_timeout * 1000;
		rbp_log(RBP_LOG_INFO, "draining, for at most %d s", c->opt->drain_timeout);
		/* more than control_end() and what is under way take */
		sd_notifyf(0, "STOPPING=1\nEXTEND_TIMEOUT_USEC=%d000000", c->opt->drain_timeout + 30);
	}
	/* not before the broker knows, or it would go on to lease regions */
	if ((c->broker_drains || !c->registered || c->failure[0] != '\0') &&
		donor_regions_in(DONOR_REGION_LEASED) == 0 && donor_regions_in(DONOR_REGION_DIRTY) == 0)
	{
		rbp_log(RBP_LOG_INFO, "drained");
		return true;
	}
	if (rbp_mono_ms() < c->drain_until)
		return false;
	rbp_log(RBP_LOG_WARNING, "not drained in time; exiting with regions still leased");
	return true;
}

/*
 * A request has succeeded.  drain: whether the answer to a heartbeat said that
 * this donor is being drained.
 */
static void
request_succeeded(Control *c, bool drain)
{
	if (!c->registered)
	{
		c->registered = true;
		c->replaced = false;
		if (has_choice(c))
			rbp_log(RBP_LOG_INFO, "registered with the broker as %s, at %s", c->opt->id, rbp_http_url(c->http));
		else
			rbp_log(RBP_LOG_INFO, "registered with the broker as %s", c->opt->id);
	}
	else
	{
		if (c->failure_logged)
			rbp_log(RBP_LOG_INFO, "the broker is back");
		if (drain && !c->broker_drains && !c->draining)
			rbp_log(RBP_LOG_INFO, "the broker drains this donor");
		c->broker_drains = drain;
		wait_for_cleaning();
	}
	c->failure_logged = false;
	c->failure[0] = '\0';
	c->retry_ms = RETRY_MIN_MS;
}

/*
 * ---- several brokers ------------------------------------------------------------
 *
 * A donor follows one of them, the first that works, and applies nothing that another one
 * says.  Who leaves one tells it nothing: its leases go on at the next one.
 */

static void
follow(Control *c, int broker)
{
	(void) rbp_http_use(c->http, broker);
	c->registered = false;
	c->well = -1;
	c->probe_due = rbp_mono_ms() + PROBE_EVERY_MS;
}

/* The broker in use has failed: use the next one.  Returns false after the last one. */
static bool
move_on(Control *c)
{
	int			next = rbp_http_used(c->http) + 1;

	if (!has_choice(c))
		return false;
	if (!rbp_http_use(c->http, next))
		next = 0;
	follow(c, next);
	return next > 0;
}

/* Does the broker in use answer?  Returns the status, or -1. */
static int
is_well(Control *c)
{
	rbp_http_set_timeout(c->http, PROBE_MS);
	return rbp_http_request(c->http, "GET", "/healthz", NULL, NULL);
}

/* Go back to a broker that comes before the one in use, when it has been well for a while. */
static void
try_earlier(Control *c)
{
	int64_t		now = rbp_mono_ms();
	int			well = 0;

	if (rbp_http_used(c->http) == 0 || now < c->probe_due)
		return;
	while (well < rbp_http_used(c->http) &&
		   (!rbp_http_use(c->probe, well) || rbp_http_request(c->probe, "GET", "/healthz", NULL, NULL) != 200))
		well++;
	/* not all at once */
	c->probe_due = now + PROBE_EVERY_MS + getpid() % 1000;
	if (well == rbp_http_used(c->http))
		c->well = -1;
	else if (c->well != well)
	{
		c->well = well;
		c->well_since = now;
	}
	else if (now - c->well_since >= WELL_MS)
	{
		rbp_log(RBP_LOG_INFO, "broker %s is well again, and is preferred to %s", rbp_http_url(c->probe), rbp_http_url(c->http));
		follow(c, well);
	}
}

/* Read the credential and the list of brokers again.  A broker that is still in the list is not left. */
static void
reload(Control *c)
{
	char	   *urls = c->opt->reread_broker();
	bool		other = urls != NULL && strcmp(urls, c->brokers) != 0;

	rbp_log(RBP_LOG_INFO, "reloading on SIGHUP");
	rbp_http_reload(c->http);
	if (!other || !rbp_urls_valid(urls))
	{
		if (other)
			rbp_log(RBP_LOG_WARNING, "broker: \"%s\" is not a URL such as https://HOST:PORT; those of before stay in use", urls);
		free(urls);
		return;
	}
	rbp_log(RBP_LOG_INFO, "the brokers are %s", urls);
	c->well = -1;
	(void) rbp_http_set_urls(c->probe, urls);
	if (!rbp_http_set_urls(c->http, urls))
		follow(c, 0);
	free(c->brokers);
	c->brokers = urls;
}

/* A request has failed, with that status.  False if the donor must exit. */
static bool
request_failed(Control *c, int status)
{
	if (c->registered && status == 404)
	{
		rbp_log(RBP_LOG_WARNING, "the broker does not know this donor; registering again");
		c->registered = false;
		return true;
	}
	if (c->registered && status == 409)
	{
		/*
		 * by a broker that has just started: who has leases comes before who
		 * has none
		 */
		c->registered = false;
		c->replaced = true;
		return true;
	}
	if (c->replaced && status == 409)
	{
		/* then nothing here is leased */
		donor_apply_begin();
		donor_apply_end();
		rbp_log(RBP_LOG_ERROR, "the broker refuses this donor: %s", rbp_http_error(c->http));
		return false;
	}
	if (!atomic_load(&stop_now))
		log_failure(c, status);
	if (status != 409 && move_on(c))
		return true;
	pause_ms(c->retry_ms);
	c->retry_ms = c->retry_ms * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : c->retry_ms * 2;
	return true;
}

int
donor_control_run(const RbpDonorOptions *opt, const RbpEndpoint *ep)
{
	Control		c;
	int			exit_code = RBP_EXIT_OK;

	control_init(&c, opt);
	/* a start that waits for a broker would be given up, with all the memory */
	sd_notify(0, "READY=1");
	while (!atomic_load(&stop_now))
	{
		bool		drain = false;
		int			status;

		rbp_log_flush_repeated(false);
		sd_notify(0, "WATCHDOG=1");
		if (atomic_exchange(&reload_wanted, false))
			reload(&c);
		if (is_drained(&c))
			break;
		try_earlier(&c);
		/* one that takes connections, and hangs, costs little time */
		if (!c.registered && has_choice(&c) && (status = is_well(&c)) != 200)
		{
			(void) request_failed(&c, status);
			continue;
		}
		rbp_http_set_timeout(c.http, !c.registered ? REGISTER_MS : has_choice(&c) ? MOVE_MS : REQUEST_MS);
		status = c.registered ? heartbeat(c.http, &c.revision, c.draining, &drain) :
			register_donor(c.http, opt, ep, c.revision, c.draining || c.broker_drains);
		if (status == 200)
			request_succeeded(&c, drain);
		else if (!request_failed(&c, status))
		{
			exit_code = RBP_EXIT_FAIL;
			break;
		}
	}
	control_end(&c);
	return exit_code;
}
