/*-------------------------------------------------------------------------
 *
 * rbp_lease.c
 *	  The lease worker: gets memory from the broker, keeps it, follows the
 *	  settings, and gives it back.
 *
 * One lease of purpose "buffer" is held at a time.  Every second, and at once
 * when the settings changed or a backend found that a donor denies access or
 * broke, the worker renews it and says how much memory is wanted; the answer
 * lists all regions of the lease, which become the regions in use.
 *
 * Order.  Memory is given up locally before the broker hears of it, and used
 * only after the broker granted it:
 *	 - what is to be released is retired (rbp_remote_retire_coldest) first,
 *	   then named in the next renewal, and in each until one is answered;
 *	 - a lease is cleared (rbp_remote_clear_lease) first, then ended.
 *
 * Time.  The deadline that backends go by is counted from before the request
 * was sent, so that it passes here before it does at the broker and the
 * donors.  Backends look at it themselves: nothing depends on this process
 * being scheduled, or alive.
 *
 * Without a broker the lease goes on being used until its deadline, then all
 * is taken out of use.  Its id and secret are kept: if the broker is back
 * before the donors have heard of the end, the same memory comes back, else
 * the broker says that there is no such lease, and a new one is asked for.
 * Each request for a new lease carries a new instance id: the broker ends
 * what an earlier instance of the same client holds, be it this worker before
 * it was restarted, or a request whose answer was lost.
 *
 * Who may wait for this process: nobody.  Requests absorb interrupts while
 * they wait (rbp_lease_http), remote_lock is never held during one, and errors
 * are logged: once when the broker goes away, for each kind of failure, and
 * once when it is back.
 *
 * If the worker ends, by SIGTERM or an ERROR, it leaves with exit code 1 and
 * so is started again after a second, except at shutdown.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "rbp_guc.h"
#include "rbp_lease.h"
#include "rbp_lease_http.h"
#include "rbp_lease_plan.h"
#include "rbp_remote.h"

#define NS_PER_MS			INT64CONST(1000000)

#define REQUEST_TIMEOUT_MS	2000L
#define GOODBYE_TIMEOUT_MS	1000L

/* How long a host's address is kept, and that it has none */
#define RESOLVED_NS			(60000 * NS_PER_MS)
#define UNRESOLVED_NS		(5000 * NS_PER_MS)
/* Backends that go on being suspicious make us ask no more often than this */
#define SUSPICION_NS		(200 * NS_PER_MS)
/* Nothing to do until the settings change */
#define NEVER_NS			(PG_INT64_MAX / 2)
/* Requests in a row before the loop's other duties get their turn */
#define MAX_ROUNDS			4

#define MAX_TOKEN			1024

/* Kinds of failure, each logged once while the broker is away */
#define FAILED_TOKEN		0x01
#define FAILED_NETWORK		0x02
#define FAILED_AUTH			0x04
#define FAILED_STATUS		0x08
#define FAILED_ANSWER		0x10

typedef enum Outcome
{
	OUTCOME_OK,					/* the broker answered, all is as it says */
	OUTCOME_AGAIN,				/* and there is more to tell it at once */
	OUTCOME_LOST,				/* there is no such lease any more */
	OUTCOME_FAILED,				/* no usable answer */
	OUTCOME_INTERRUPTED			/* the worker is to end */
} Outcome;

/*
 * The lease that the broker knows of, less what was given up since; NULL if
 * there is none.  It may have passed its deadline: in_use tells.
 */
static RbpLease *lease = NULL;
static bool in_use = false;		/* its regions are in shared memory */
static bool suspected = false;	/* a backend found it to be otherwise */
static int64 deadline = 0;		/* rbp_now_ns() time */

/* Retired, and not yet confirmed by the broker */
static RbpLeaseRegion *released = NULL;
static int	nreleased = 0;

/*
 * The settings that the lease was taken with.  NULL before the first look.
 */
static char *lease_broker = NULL;
static char *lease_token_file = NULL;

/*
 * What of the wanted size can be used at most, as found out by being granted
 * more than fits into the directory; in force until a size setting changes.
 */
static uint64 usable_bytes = PG_UINT64_MAX;
static uint64 usable_for = 0;

static int	failures = 0;		/* in a row */
static int	complaints = 0;		/* FAILED_* logged since the last success */
static uint64 reported_bytes = 0;	/* size in the last message */

static char client_name[RBP_DONOR_ID_LEN];
static MemoryContext round_context = NULL;

void
rbp_lease_register(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	worker.bgw_restart_time = 1;
	strlcpy(worker.bgw_library_name, "remote_bp", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "rbp_lease_main", BGW_MAXLEN);
	strlcpy(worker.bgw_name, "remote_bp lease worker", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "remote_bp lease worker", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

/*
 * A name that stays for the life of this data directory, and that neither a
 * standby nor a copy of it has, here or on another machine.  The readable
 * part is for whoever looks at the broker's list.
 */
static void
make_client_name(void)
{
	struct
	{
		uint64		system_identifier;
		uint64		device;
		uint64		inode;
		char		host[256];
	}			identity;
	struct stat st;
	char		readable[33];
	int			n = 0;

	memset(&identity, 0, sizeof(identity));
	identity.system_identifier = GetSystemIdentifier();
	if (stat(DataDir, &st) == 0)
	{
		identity.device = (uint64) st.st_dev;
		identity.inode = (uint64) st.st_ino;
	}
	if (gethostname(identity.host, sizeof(identity.host) - 1) != 0)
		identity.host[0] = '\0';

	for (const char *p = identity.host; *p != '\0' && n < sizeof(readable) - 1; p++)
	{
		if ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
			(*p >= '0' && *p <= '9') || *p == '-' || *p == '.' || *p == '_')
			readable[n++] = *p;
	}
	readable[n] = '\0';
	snprintf(client_name, sizeof(client_name), "pg-%s-%016" INT64_MODIFIER "x",
			 n > 0 ? readable : "host",
			 hash_bytes_extended((const unsigned char *) &identity,
								 sizeof(identity), 0));
}

static bool
make_instance(char uuid[37])
{
	uint8		b[16];

	if (!pg_strong_random(b, sizeof(b)))
		return false;
	b[6] = (b[6] & 0x0f) | 0x40;
	b[8] = (b[8] & 0x3f) | 0x80;
	snprintf(uuid, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-"
			 "%02x%02x%02x%02x%02x%02x",
			 b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7],
			 b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
	return true;
}

/*
 * No usable answer.  Whatever the broker does wrong, it is told once, until
 * it has been right again.
 */
static Outcome failed(int kind, const char *fmt,...) pg_attribute_printf(2, 3);

static Outcome
failed(int kind, const char *fmt,...)
{
	char		reason[512];
	va_list		args;

	if ((complaints & kind) == 0)
	{
		va_start(args, fmt);
		vsnprintf(reason, sizeof(reason), fmt, args);
		va_end(args);
		ereport(LOG,
				(errmsg(in_use ?
						"remote_bp: could not renew the lease at broker \"%s\": %s" :
						"remote_bp: could not get a lease from broker \"%s\": %s",
						lease_broker, reason),
				 in_use ? errdetail("Its memory is used until it ends.") : 0));
	}
	complaints |= kind;
	return OUTCOME_FAILED;
}

/*
 * The token to show, read anew for each request so that it can be replaced at
 * any time; NULL in *token if none is configured.  False if there should be
 * one and is not.
 */
static bool
read_token(char **token)
{
	char		buf[MAX_TOKEN + 2];
	char	   *start = buf;
	ssize_t		n;
	int			fd;
	int			len;

	*token = NULL;
	if (lease_token_file[0] == '\0')
		return true;

	fd = open(lease_token_file, O_RDONLY | O_CLOEXEC | PG_BINARY);
	n = fd < 0 ? -1 : read(fd, buf, sizeof(buf) - 1);
	if (n < 0)
	{
		failed(FAILED_TOKEN, "could not read token file \"%s\": %s",
			   lease_token_file, strerror(errno));
		if (fd >= 0)
			close(fd);
		return false;
	}
	close(fd);

	/* the first line, without white space around it */
	buf[n] = '\0';
	start += strspn(start, " \t");
	len = strcspn(start, "\r\n");
	while (len > 0 && (start[len - 1] == ' ' || start[len - 1] == '\t'))
		len--;
	start[len] = '\0';
	if (len == 0 || len > MAX_TOKEN)
	{
		failed(FAILED_TOKEN, "the first line of token file \"%s\" is %s",
			   lease_token_file, len == 0 ? "empty" : "too long");
		return false;
	}
	for (int i = 0; i < len; i++)
	{
		if (start[i] <= ' ' || start[i] > '~')
		{
			failed(FAILED_TOKEN, "the first line of token file \"%s\" has other than printable characters",
				   lease_token_file);
			return false;
		}
	}
	*token = pstrdup(start);
	explicit_bzero(buf, sizeof(buf));
	return true;
}

/*
 * One request to the broker.  False if there was no answer, or one that says
 * nothing about the lease; *outcome is set then.
 */
static bool
ask(const char *method, const char *path, const char *body, RbpHttpReply *reply,
	Outcome *outcome)
{
	StringInfoData url;
	char	   *token;
	char		why[200];

	*outcome = OUTCOME_FAILED;
	if (body == NULL)
	{
		failed(FAILED_NETWORK, "out of memory");
		return false;
	}
	if (!read_token(&token))
		return false;

	initStringInfo(&url);
	appendStringInfoString(&url, lease_broker);
	while (url.len > 0 && url.data[url.len - 1] == '/')
		url.data[--url.len] = '\0';
	appendStringInfoString(&url, path);

	rbp_lease_http_request(method, url.data, token, body, REQUEST_TIMEOUT_MS,
						   true, reply);
	if (token != NULL)
		explicit_bzero(token, strlen(token));

	if (reply->failure == RBP_HTTP_INTERRUPTED)
	{
		*outcome = OUTCOME_INTERRUPTED;
		return false;
	}
	if (reply->failure != RBP_HTTP_ANSWERED)
	{
		failed(FAILED_NETWORK, "%s", reply->error);
		return false;
	}
	if (reply->status == 401)
	{
		failed(FAILED_AUTH, token == NULL ?
			   "it wants a token, and remote_bp.token_file is not set" :
			   "it does not accept the token");
		return false;
	}
	if (reply->status != 200 && reply->status != 201 &&
		reply->status != 403 && reply->status != 404 && reply->status != 410)
	{
		if (!rbp_lease_error_text(reply->body, reply->len, why, sizeof(why)))
			strlcpy(why, "no reason given", sizeof(why));
		failed(FAILED_STATUS, "HTTP status %d: %s", reply->status, why);
		return false;
	}
	return true;
}

/* How much memory the settings ask for. */
static uint64
wanted_bytes(void)
{
	uint64		bytes = (uint64) rbp_guc_tier_size_wanted() << 20;

	if (rbp_guc_broker == NULL || rbp_guc_broker[0] == '\0')
		return 0;
	if (bytes != usable_for)
	{
		usable_for = bytes;
		usable_bytes = PG_UINT64_MAX;
	}
	return Min(bytes, usable_bytes);
}

/* Stop using all of it. */
static void
stop_use(void)
{
	rbp_remote_clear_lease();
	in_use = false;
	suspected = false;
	reported_bytes = 0;
}

/* There is no lease any more. */
static void
drop_lease(void)
{
	stop_use();
	rbp_lease_free(lease);
	lease = NULL;
	free(released);
	released = NULL;
	nreleased = 0;
}

/* Take regions that were given up out of the lease, and note them to tell. */
static void
note_released(const RbpRegionGrant *given, int n)
{
	RbpLeaseRegion *grown;

	if (n <= 0)
		return;
	grown = realloc(released, sizeof(RbpLeaseRegion) * (nreleased + n));
	if (grown == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	released = grown;
	for (int i = 0; i < n; i++)
	{
		RbpLeaseRegion *r = &released[nreleased + i];

		memset(r, 0, sizeof(*r));
		strlcpy(r->donor, given[i].donor, sizeof(r->donor));
		r->region = given[i].region;
		r->bytes = given[i].bytes;
	}
	rbp_lease_forget(lease, released + nreleased, n);
	nreleased += n;
}

/* Retire the coldest regions; how many there were to retire. */
static int
retire(const char *donor, int count)
{
	RbpRegionGrant *given;
	int			n;

	count = Min(count, lease->nregions);
	if (count <= 0 || !in_use)
		return 0;
	given = palloc0(sizeof(RbpRegionGrant) * count);
	n = rbp_remote_retire_coldest(donor, count, given, count);
	note_released(given, n);
	return n;
}

/*
 * Some regions of the lease found no place: give them back, and ask for no
 * more than what found one.
 */
static void
release_unused(void)
{
	RbpRegionGrant *unused = palloc0(sizeof(RbpRegionGrant) * (lease->nregions + 1));
	RbpLeaseInfo *used;
	uint64		kept = 0;
	int			nused;
	int			n = 0;

	used = rbp_remote_lease_info(&nused);
	for (int i = 0; i < lease->nregions; i++)
	{
		const RbpLeaseRegion *r = &lease->regions[i];
		bool		found = false;

		for (int j = 0; j < nused && !found; j++)
			found = used[j].region == r->region &&
				strcmp(used[j].donor, r->donor) == 0;
		if (found)
			kept += r->bytes;
		else
		{
			strlcpy(unused[n].donor, r->donor, sizeof(unused[n].donor));
			unused[n].region = r->region;
			unused[n].bytes = r->bytes;
			n++;
		}
	}
	if (n == 0)
		return;
	usable_bytes = kept;
	note_released(unused, n);
	ereport(LOG,
			(errmsg("remote_bp: %d leased regions find no room under remote_bp.buffer_tier_max_size and are given back", n)));
}

/* Tell when the size of the lease has changed. */
static void
report(bool is_new)
{
	if (lease->bytes == reported_bytes && !is_new)
		return;
	ereport(LOG,
			(errmsg("remote_bp: %s %llu MB of %llu MB wanted, in %d regions on %d donors",
					is_new ? "leased" : "the lease now has",
					(unsigned long long) (lease->bytes >> 20),
					(unsigned long long) (wanted_bytes() >> 20),
					lease->nregions, lease->ndonors)));
	reported_bytes = lease->bytes;
}

/*
 * Put a numeric address in the place of a donor's name, in host[RBP_HOST_LEN].
 * Answers are kept for a while, failures for a shorter one; a host that has
 * no address keeps its name.
 */
static void
resolve_host(const char *donor, char *host)
{
	static struct
	{
		char		name[RBP_HOST_LEN];
		char		numeric[RBP_HOST_LEN];
		int64		until;
	}			cache[2 * RBP_MAX_DONORS];	/* host and rdma_host */
	int64		now = rbp_now_ns();
	int			place = 0;

	if (host[0] == '\0')
		return;
	for (int c = 0; c < lengthof(cache); c++)
	{
		if (strcmp(cache[c].name, host) == 0)
		{
			place = c;
			break;
		}
		if (cache[c].until < cache[place].until)
			place = c;
	}
	if (strcmp(cache[place].name, host) != 0 || cache[place].until < now)
	{
		strlcpy(cache[place].name, host, RBP_HOST_LEN);
		if (rbp_transport_resolve(host, cache[place].numeric))
			cache[place].until = now + RESOLVED_NS;
		else
		{
			ereport(LOG,
					(errmsg("remote_bp: no address for donor \"%s\", host \"%s\"",
							donor, host)));
			strlcpy(cache[place].numeric, host, RBP_HOST_LEN);
			cache[place].until = now + UNRESOLVED_NS;
		}
	}
	memset(host, 0, RBP_HOST_LEN);	/* endpoints are compared as bytes */
	strlcpy(host, cache[place].numeric, RBP_HOST_LEN);
}

/*
 * Backends connect in the middle of a page read and must not wait for a
 * resolver.  A donor whose name has no address is not reached by it.
 */
static void
resolve_donors(RbpLease *fresh)
{
	for (int i = 0; i < fresh->ndonors; i++)
	{
		RbpEndpoint *ep = &fresh->donors[i];

		resolve_host(ep->donor, ep->host);
		resolve_host(ep->donor, ep->rdma_host);
	}
}

/*
 * Make what the broker described the lease in use.  Takes over fresh.
 *
 * Upon a suspicion, shared memory is gone through even if nothing seems to
 * have changed: a region may have been lost and granted again.  The regions
 * of a donor that was started anew are taken out of use in between, since
 * nothing of what they held is left.
 */
static Outcome
adopt(RbpLease *fresh, int64 sent_ns)
{
	bool		is_new = lease == NULL;
	bool		unchanged;
	RbpRegionGrant *grants = palloc0(sizeof(RbpRegionGrant) * (fresh->nregions + 1));
	int			n = 0;
	int			given_up = 0;

	resolve_donors(fresh);
	unchanged = in_use && !suspected && rbp_lease_same_memory(lease, fresh);

	if (!is_new && !fresh->has_secret)
		memcpy(fresh->cred.secret, lease->cred.secret, RBP_SECRET_LEN);

	/* first what may have been in use already, then what is new for certain */
	for (int pass = 0; pass < 2; pass++)
	{
		for (int i = 0; i < fresh->nregions; i++)
		{
			const RbpLeaseRegion *r = &fresh->regions[i];
			bool		lost = !is_new &&
				rbp_lease_donor_restarted(lease, fresh, r->donor);

			if (lost != (pass == 1))
				continue;
			strlcpy(grants[n].donor, r->donor, sizeof(grants[n].donor));
			grants[n].region = r->region;
			grants[n].bytes = r->bytes;
			n++;
		}
		if (pass == 0 && n < fresh->nregions && in_use)
			rbp_remote_set_lease(&fresh->cred,
								 rbp_lease_deadline(sent_ns, fresh->ttl_ms),
								 fresh->donors, fresh->ndonors, grants, n);
	}

	rbp_lease_free(lease);
	lease = fresh;
	nreleased = 0;
	deadline = rbp_lease_deadline(sent_ns, lease->ttl_ms);
	if (unchanged)
		rbp_remote_extend_lease(deadline);
	else
	{
		in_use = true;
		suspected = false;
		if (rbp_remote_set_lease(&lease->cred, deadline,
								 lease->donors, lease->ndonors,
								 grants, lease->nregions) > 0)
			release_unused();
	}
	report(is_new);

	for (int i = 0; i < lease->nreclaims; i++)
	{
		int			given = retire(lease->reclaims[i].donor,
								   lease->reclaims[i].regions);

		if (given > 0)
			ereport(LOG,
					(errmsg("remote_bp: donor \"%s\" asked for memory, and gets %d regions back",
							lease->reclaims[i].donor, given)));
		given_up += given;
	}
	return given_up > 0 || nreleased > 0 ? OUTCOME_AGAIN : OUTCOME_OK;
}

/* Understand a lease object; NULL if it is none, having complained. */
static RbpLease *
understand(const RbpHttpReply *reply)
{
	char		why[200];
	RbpLease   *fresh = rbp_lease_parse(reply->body, reply->len,
										why, sizeof(why));

	if (fresh == NULL)
		failed(FAILED_ANSWER, "its answer is not a lease: %s", why);
	return fresh;
}

/* Ask for a lease. */
static Outcome
request_new(uint64 wanted)
{
	int64		sent_ns = rbp_now_ns();
	char		instance[37];
	char	   *body;
	RbpHttpReply reply;
	RbpLease   *fresh;
	Outcome		outcome;
	bool		answered;

	if (!make_instance(instance))
		return failed(FAILED_NETWORK, "no random numbers");
	body = rbp_lease_new_body(client_name, instance, "buffer", wanted,
							  rbp_guc_lease_ttl);
	answered = ask("POST", "/v1/leases", body, &reply, &outcome);
	free(body);
	if (!answered)
		return outcome;
	if (reply.status != 201 && reply.status != 200)
		return failed(FAILED_STATUS, "HTTP status %d: is this a remote_bp broker?",
					  reply.status);
	fresh = understand(&reply);
	if (fresh == NULL)
		return OUTCOME_FAILED;
	if (!fresh->has_secret)
	{
		rbp_lease_free(fresh);
		return failed(FAILED_ANSWER, "its lease has no secret");
	}
	return adopt(fresh, sent_ns);
}

/* Renew the lease, and tell how much is wanted and what was given up. */
static Outcome
renew(uint64 wanted)
{
	int64		sent_ns = rbp_now_ns();
	char		path[RBP_LEASE_ID_LEN + 32];
	char	   *body;
	RbpHttpReply reply;
	RbpLease   *fresh;
	Outcome		outcome;
	bool		answered;

	snprintf(path, sizeof(path), "/v1/leases/%s/renew", lease->cred.lease);
	body = rbp_lease_renew_body(&lease->cred, wanted, rbp_guc_lease_ttl,
								released, nreleased);
	answered = ask("POST", path, body, &reply, &outcome);
	if (body != NULL)
		explicit_bzero(body, strlen(body));
	free(body);
	if (!answered)
		return outcome;
	if (reply.status == 403 || reply.status == 404 || reply.status == 410)
	{
		ereport(LOG,
				(errmsg("remote_bp: the lease has ended"),
				 errdetail("The broker answered a renewal with HTTP status %d.",
						   reply.status)));
		return OUTCOME_LOST;
	}
	fresh = understand(&reply);
	if (fresh == NULL)
		return OUTCOME_FAILED;
	if (strcmp(fresh->cred.lease, lease->cred.lease) != 0)
	{
		rbp_lease_free(fresh);
		return failed(FAILED_ANSWER, "it answered with another lease");
	}
	return adopt(fresh, sent_ns);
}

/*
 * End the lease and tell the broker, with one bounded request.  It is asked
 * under the settings that the lease was taken with.
 */
static void
give_back(bool heed_shutdown)
{
	char		path[RBP_LEASE_ID_LEN + 16];
	char	   *url;
	char	   *body;
	char	   *token;
	RbpHttpReply reply;

	if (lease == NULL)
		return;
	stop_use();
	snprintf(path, sizeof(path), "/v1/leases/%s", lease->cred.lease);
	body = rbp_lease_end_body(&lease->cred);
	if (body != NULL && read_token(&token))
	{
		int			len = strlen(lease_broker);

		while (len > 0 && lease_broker[len - 1] == '/')
			len--;
		url = psprintf("%.*s%s", len, lease_broker, path);
		rbp_lease_http_request("DELETE", url, token, body, GOODBYE_TIMEOUT_MS,
							   heed_shutdown, &reply);
		if (token != NULL)
			explicit_bzero(token, strlen(token));
		if (reply.failure == RBP_HTTP_ANSWERED &&
			(reply.status / 100 == 2 || reply.status == 404 || reply.status == 410))
			ereport(LOG,
					(errmsg("remote_bp: gave the leased memory back")));
		else
			ereport(LOG,
					(errmsg("remote_bp: could not tell the broker that the lease is given back"),
					 errdetail("It ends by itself within %lld ms.",
							   (long long) lease->ttl_ms)));
	}
	if (body != NULL)
		explicit_bzero(body, strlen(body));
	free(body);
	drop_lease();
}

/*
 * Everything there is to say to the broker now.  Returns when to talk to it
 * next.
 */
static int64
converse(void)
{
	Outcome		outcome = OUTCOME_AGAIN;
	int64		now;

	for (int i = 0; outcome == OUTCOME_AGAIN && i < MAX_ROUNDS; i++)
	{
		uint64		wanted = wanted_bytes();

		if (lease != NULL)
		{
			retire(NULL, rbp_lease_surplus(lease, wanted));
			outcome = renew(wanted);
			if (outcome == OUTCOME_LOST)
			{
				drop_lease();
				outcome = OUTCOME_AGAIN;
				continue;
			}
		}
		else
			outcome = request_new(wanted);
	}

	now = rbp_now_ns();
	switch (outcome)
	{
		case OUTCOME_OK:
		case OUTCOME_AGAIN:
		case OUTCOME_LOST:
			if (complaints != 0)
				ereport(LOG,
						(errmsg("remote_bp: broker \"%s\" is back",
								lease_broker)));
			complaints = 0;
			failures = 0;
			return now + rbp_lease_renew_after(lease != NULL ? lease->ttl_ms :
											   rbp_guc_lease_ttl);
		case OUTCOME_FAILED:
			failures++;
			return now + rbp_lease_retry_after(failures,
											   in_use ? deadline - now : 0);
		case OUTCOME_INTERRUPTED:
			break;
	}
	return now;
}

/* Read the settings; true if the broker is another, or known by another token */
static bool
settings_changed(void)
{
	const char *broker = rbp_guc_broker != NULL ? rbp_guc_broker : "";
	const char *token_file = rbp_guc_token_file != NULL ? rbp_guc_token_file : "";

	return lease_broker == NULL ||
		strcmp(broker, lease_broker) != 0 ||
		strcmp(token_file, lease_token_file) != 0;
}

static void
take_settings(void)
{
	if (lease_broker != NULL)
	{
		pfree(lease_broker);
		pfree(lease_token_file);
	}
	lease_broker = MemoryContextStrdup(TopMemoryContext,
									   rbp_guc_broker ? rbp_guc_broker : "");
	lease_token_file = MemoryContextStrdup(TopMemoryContext,
										   rbp_guc_token_file ? rbp_guc_token_file : "");
	failures = 0;
	complaints = 0;
}

/* Past its deadline, the lease is not used any more. */
static void
expire_if_due(int64 now)
{
	if (!in_use || now < deadline)
		return;
	stop_use();
	ereport(LOG,
			(errmsg("remote_bp: the lease could not be renewed in time, its memory is not used any more")));
}

/* Until something happens, or one of the times. */
static void
wait_until(int64 due)
{
	int64		now = rbp_now_ns();
	int64		until = due;
	long		ms;

	if (in_use)
		until = Min(until, deadline);
	ms = until <= now ? 0 : (long) Min((until - now + NS_PER_MS - 1) / NS_PER_MS,
									   INT64CONST(60000));
	if (ms == 0)
		return;
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
}

static void
forget_latch(int code, Datum arg)
{
	rbp_remote_set_lease_latch(NULL);
}

void
rbp_lease_main(Datum arg)
{
	int64		due = 0;		/* when to talk to the broker */
	int64		last = 0;		/* when that was last done */

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	/*
	 * What a worker before this one leased is not known here any more: the
	 * broker ends it as soon as this one asks for a lease.
	 */
	rbp_remote_clear_lease();
	before_shmem_exit(forget_latch, (Datum) 0);
	rbp_remote_set_lease_latch(MyLatch);

	make_client_name();
	round_context = AllocSetContextCreate(TopMemoryContext,
										  "remote_bp lease worker",
										  ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(round_context);
	if (!rbp_lease_http_init())
		ereport(ERROR,
				(errmsg("remote_bp: could not initialize libcurl")));

	while (!ShutdownRequestPending)
	{
		int64		now;

		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(round_context);

		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			due = 0;
		}
		if (settings_changed())
		{
			give_back(true);
			take_settings();
			due = 0;
		}

		now = rbp_now_ns();
		expire_if_due(now);
		/* asked for in any case, lest an old suspicion speak of a new lease */
		if (rbp_remote_take_suspicion() && in_use)
			suspected = true;
		if (suspected && failures == 0)
			due = Min(due, last + SUSPICION_NS);

		if (wanted_bytes() == 0)
		{
			give_back(true);
			due = NEVER_NS;
		}
		else if (now >= due)
		{
			due = converse();
			last = rbp_now_ns();
		}
		if (ShutdownRequestPending)
			break;
		wait_until(due);
	}

	give_back(false);

	/* Exit code 1: be started again, unless the server is shutting down. */
	proc_exit(1);
}
