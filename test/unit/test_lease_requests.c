/*-------------------------------------------------------------------------
 *
 * test_lease_requests.c
 *	  When a lease's next request is due, after a broker that answers, fails,
 *	  or whose name is not known yet; which answers are used, and how much one
 *	  request tells.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/guc.h"
#include "mock_server.h"
#include "lease/broker.h"
#include "lease/http.h"
#include "lease/lease_internal.h"
#include "lease/names.h"
#include "lease/requests.c"

#include <jansson.h>
#include <stdio.h>

#include "tap.h"

#define MB				(UINT64CONST(1) << 20)
#define LEASE			"123e4567-e89b-42d3-a456-426614174000"

/* What the broker does, and why the lease has no usable answer, "" for none. */
static int	failed;
static const char *reason;
static char broker_error[200];

/* An answer, and what the last request released. */
static const char *answer;
static RbpRegionGrant *expected;	/* the first of them */
static int	nreleased;
static bool in_order;
static int	nadopted;			/* regions */
static int	keep_ms;			/* asked for */
static int	status = 200;
static char asked_secret[2 * RBP_SECRET_LEN + 1];	/* the new one; "" for
													 * none */
static bool asked_client;		/* ours is to have it */
static int	nchanged;			/* secrets, as others are told */
static bool denied_by_all;		/* all brokers are to say that it has ended */

char		rbp_lease_client[RBP_DONOR_ID_LEN] = "client";

int
rbp_lease_broker_request(RbpBroker *b, const RbpHttpRequest *request,
						 RbpHttpReply *reply, char why[RBP_BROKER_WHY_LEN])
{
	json_t	   *body = json_loads(request->body, 0, NULL);
	const json_t *release = json_object_get(body, "release");

	denied_by_all = request->denied_by_all;
	keep_ms = (int) json_integer_value(json_object_get(body, "keep_ms"));
	snprintf(asked_secret, sizeof(asked_secret), "%s",
			 json_is_string(json_object_get(body, "new_secret")) ? json_string_value(json_object_get(body, "new_secret")) : "");
	asked_client = json_object_get(body, "client") != NULL && json_object_get(body, "instance") != NULL &&
		strcmp(json_string_value(json_object_get(body, "client")), rbp_lease_client) == 0;
	nreleased = (int) json_array_size(release);
	in_order = true;
	for (int i = 0; i < nreleased && expected != NULL; i++)
		in_order = in_order && expected[i].region ==
			json_integer_value(json_object_get(json_array_get(release, i), "region"));
	json_decref(body);
	strlcpy(why, reason, RBP_BROKER_WHY_LEN);
	reply->status = status;
	reply->body = unconstify(char *, answer);
	reply->len = answer != NULL ? strlen(answer) : 0;
	return failed;
}

void
rbp_remote_set_broker_error(RbpPool pool, const char *error)
{
	snprintf(broker_error, sizeof(broker_error), "%s", error != NULL ? error : "");
}

void
rbp_remote_change_secret(RbpPool pool, const RbpCredentials *cred)
{
	nchanged += cred->secret[0] == 0xab;
}

/* the other files of the lease worker */
RbpHeldLease rbp_leases[RBP_POOLS];
RbpBroker  *rbp_lease_current_broker;
int			rbp_guc_lease_ttl = 10000;
int			rbp_guc_keep_time = 1800;

uint64
rbp_lease_wanted(RbpHeldLease *h)
{
	return 1 * MB;
}

uint64
rbp_lease_ahead(const RbpHeldLease *h)
{
	return 0;
}

uint64
rbp_lease_wanted_max(const RbpHeldLease *h)
{
	return 16 * MB;
}

bool
rbp_lease_instance(char instance[RBP_LEASE_INSTANCE_LEN])
{
	strlcpy(instance, "boot/instance", RBP_LEASE_INSTANCE_LEN);
	return true;
}

RbpLeaseOutcome
rbp_lease_adopt(RbpHeldLease *h, RbpLease *fresh, int64 sent_ns)
{
	nadopted = fresh->nregions;
	rbp_lease_free(h->lease);
	h->lease = fresh;
	return h->nreleased > 0 ? RBP_LEASE_AGAIN : RBP_LEASE_OK;
}

void
rbp_lease_log_losses(RbpHeldLease *h, const RbpLease *fresh)
{
}

void
rbp_lease_stop_use(RbpHeldLease *h)
{
}

void
rbp_lease_drop(RbpHeldLease *h)
{
}

/* An answer with n regions of so many MB, the first of number first. */
static void
make_answer(int first, int n, int megabytes)
{
	static char *text = NULL;
	FILE	   *out;
	size_t		len;

	free(text);
	out = open_memstream(&text, &len);
	fprintf(out, "{\"lease\":\"" LEASE "\",\"secret\":\"%064d\",\"ttl_ms\":10000,\"donors\":[{\"id\":\"d\","
			"\"host\":\"h\",\"port\":1,\"transports\":[]}],\"regions\":[", 0);
	for (int i = 0; i < n; i++)
		fprintf(out, "%s{\"donor\":\"d\",\"region\":%d,\"bytes\":%" PRIu64 ",\"rev\":1}",
				i > 0 ? "," : "", first + i, (uint64_t) megabytes * MB);
	fputs("]}", out);
	fclose(out);
	answer = text;
}

static void
test_answers(RbpHeldLease *h)
{
	failed = 0;
	reason = "";
	h->failures = h->failures_logged = 0;
	make_answer(0, 33, 1);
	rbp_lease_send_requests(h);
	ok(h->lease != NULL && nadopted == 33, "a lease of twice what may be wanted is used, and a region more");
	make_answer(0, 34, 1);
	rbp_lease_send_requests(h);
	ok(h->failures == 1 && h->lease->nregions == 33, "a larger one is no answer");
	ok(strstr(broker_error, "a lease of 34 MB, more than twice remote_bp.max") != NULL, "and is reported (%s)",
	   broker_error);
	make_answer(0, 1, 1 << 20);
	rbp_lease_send_requests(h);
	ok(h->failures == 0 && nadopted == 1, "one region may be as large as it is");
}

/* More regions go than one request can tell. */
static void
test_many_released(RbpHeldLease *h)
{
	const int	n = 2 * MAX_RELEASED + 5;
	RbpRegionGrant *all = calloc((size_t) n, sizeof(RbpRegionGrant));

	for (int i = 0; i < n; i++)
	{
		strcpy(all[i].donor, "d");
		all[i].region = (uint32) (n - i);
		all[i].bytes = MB;
	}
	h->released = malloc(sizeof(RbpRegionGrant) * (size_t) n);
	memcpy(h->released, all, sizeof(RbpRegionGrant) * (size_t) n);
	h->nreleased = n;
	expected = all;
	failed = FAILED_NETWORK;
	rbp_lease_send_requests(h);
	ok(nreleased == MAX_RELEASED && in_order && h->nreleased == n, "a request that failed has told nothing");

	/* the broker has taken the first ones off, and lists some of the others */
	failed = 0;
	make_answer(1, 20, 1);
	rbp_lease_send_requests(h);
	ok(nreleased == 5 && h->nreleased == 0, "all of them are told, in several requests");
	make_answer(1, 20, 1);
	h->nreleased = MAX_RELEASED + 5;
	memcpy(h->released, all + MAX_RELEASED, sizeof(RbpRegionGrant) * (MAX_RELEASED + 5));
	expected = all + MAX_RELEASED;
	(void) renew(h, MB);
	ok(nreleased == MAX_RELEASED && in_order && nadopted == 15, "what was not told yet is not used again");
	free(all);
	expected = NULL;
}

/* Buffer leases are kept when they lapse, temporary data is not. */
static void
test_kept(RbpHeldLease *h)
{
	failed = FAILED_NETWORK;
	(void) renew(h, MB);
	ok(keep_ms == rbp_guc_keep_time * 1000, "a renewal says how long the lease is to be kept");
	(void) request_lease(h, MB);
	ok(keep_ms == rbp_guc_keep_time * 1000, "and so does the request for one");
	h->pool = RBP_POOL_TEMP;
	(void) renew(h, MB);
	ok(keep_ms == 0, "one for temporary data is not kept");
	h->pool = RBP_POOL_BUFFER;
}

/* The secret of a lease from an image is replaced, and used when the broker has said so. */
static void
test_new_secret(RbpHeldLease *h)
{
	char		expected_secret[2 * RBP_SECRET_LEN + 1];

	for (int i = 0; i < RBP_SECRET_LEN; i++)
		snprintf(expected_secret + 2 * i, 3, "ab");
	failed = 0;
	make_answer(0, 1, 1);
	(void) renew(h, MB);
	ok(asked_secret[0] == '\0' && !asked_client, "a renewal asks for no secret");
	h->changes_secret = true;
	memset(h->new_secret, 0xab, RBP_SECRET_LEN);
	memset(h->lease->cred.secret, 1, RBP_SECRET_LEN);
	failed = FAILED_NETWORK;
	reason = "no answer";
	ok(renew(h, MB) == RBP_LEASE_FAILED && strcmp(asked_secret, expected_secret) == 0, "the first of a lease from an image does");
	ok(h->changes_secret && h->lease->cred.secret[0] == 1 && nchanged == 0, "without an answer nothing has changed");
	failed = 0;
	status = 503;
	nadopted = 0;
	ok(renew(h, MB) == RBP_LEASE_FAILED && nadopted == 0 && h->changes_secret && nchanged == 0,
	   "a broker that does not know the lease yet has not replaced it, and the memory is not used");
	status = 200;
	ok(renew(h, MB) == RBP_LEASE_OK && strcmp(asked_secret, expected_secret) == 0 && asked_client,
	   "it is asked again for the same, for this client");
	ok(!h->changes_secret && nchanged == 1 && nadopted == 1, "which is used then");
	(void) renew(h, MB);
	ok(asked_secret[0] == '\0' && nchanged == 1, "and not replaced again");
}

/* One broker's word does not end a lease that has memory, and time left. */
static void
test_denied(RbpHeldLease *h)
{
	failed = 0;
	h->in_use = true;
	h->deadline = mock_now + 1000 * NANOS_PER_MS;
	make_answer(0, 1, 1);
	(void) renew(h, MB);
	(void) renew(h, MB);
	ok(denied_by_all, "all brokers are asked before a lease is taken to have ended");
	h->deadline = mock_now - 1;
	(void) renew(h, MB);
	ok(!denied_by_all, "one is enough after its deadline");
	h->deadline = mock_now + 1000 * NANOS_PER_MS;
	make_answer(0, 0, 1);
	(void) renew(h, MB);
	(void) renew(h, MB);
	ok(!denied_by_all, "and if it has no regions, which another broker may have");
	h->in_use = false;
}

int
main(void)
{
	RbpBroker	broker = {.urls = "http://broker.test",.url = "http://broker.test"};
	RbpHeldLease *h = &rbp_leases[RBP_POOL_BUFFER];

	rbp_lease_current_broker = h->broker = &broker;
	h->purpose = "buffer";
	h->suffix = "";
	h->max_setting = "remote_bp.max";

	failed = FAILED_NETWORK;
	reason = "";
	rbp_lease_send_requests(h);
	rbp_lease_send_requests(h);
	ok(h->failures == 0, "a name that is being looked up is no failure");
	ok(broker_error[0] == '\0' && broker.failures_logged == 0, "and is reported as none");
	ok(h->request_due > mock_now && h->request_due <= mock_now + 1000 * NANOS_PER_MS,
	   "the request is sent again soon");

	reason = "no answer";
	rbp_lease_send_requests(h);
	rbp_lease_send_requests(h);
	ok(h->failures == 2, "a broker that does not answer is one");
	ok(strcmp(broker_error, "no answer") == 0 && broker.failures_logged == FAILED_NETWORK,
	   "and is reported");
	ok(h->request_due > mock_now + 1000 * NANOS_PER_MS, "it is asked again later each time");
	test_answers(h);
	test_many_released(h);
	test_kept(h);
	test_new_secret(h);
	test_denied(h);
	return done_testing();
}
