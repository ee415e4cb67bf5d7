/*-------------------------------------------------------------------------
 *
 * test_lease_broker.c
 *	  Which of several brokers is asked.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "mock_server.h"

#define MemoryContextStrdup(context, string)		strdup(string)
#define MemoryContextAllocZero(context, size)		calloc(1, size)

#include "lease/broker.c"

#include "tap.h"

#define S				(1000 * NANOS_PER_MS)

#define ONE				"http://one"
#define TWO				"http://two"
#define THREE			"http://three"

/* What each does: an HTTP status; 0: it does not answer; -1: its name is being looked up */
static int	does[3];
static char asked[200];			/* who was, in order */
static long timeout_ms;			/* of the first */

/* What is palloc'ed belongs to the worker's round. */
const char *__lsan_default_suppressions(void);

const char *
__lsan_default_suppressions(void)
{
	return "leak:pstrdup\n";
}

void
rbp_lease_http_request(const char *url, const char *token, const RbpHttpRequest *request,
					   RbpHttpReply *reply)
{
	int			which = strcmp(url, ONE) == 0 ? 0 : strcmp(url, TWO) == 0 ? 1 : 2;

	timeout_ms = asked[0] == '\0' ? request->timeout_ms : timeout_ms;
	strcat(asked, which == 0 ? "1" : which == 1 ? "2" : "3");
	memset(reply, 0, sizeof(*reply));
	reply->status = Max(does[which], 0);
	if (does[which] == 0)
		strcpy(reply->error, "refused");
}

void
rbp_lease_error_text(const char *text, size_t len, char *buf, size_t buflen)
{
	buf[0] = '\0';
}

/* Ask; "WHO WERE ASKED; WHO IS IN USE; STATUS" */
static bool denied_by_all = false;

static const char *
request(RbpBroker *b, bool stops)
{
	static char said[300];
	const RbpHttpRequest r = {.method = "POST",.path = "/v1/leases",.timeout_ms = 2000,.stop_on_shutdown = !stops,.denied_by_all = denied_by_all};
	RbpHttpReply reply;
	char		why[RBP_BROKER_WHY_LEN];
	int			failed;

	asked[0] = '\0';
	failed = rbp_lease_broker_request(b, &r, &reply, why);
	snprintf(said, sizeof(said), "%s; %d; %s%d", asked, b->used + 1, failed != 0 ? "failed " : "", reply.status);
	return said;
}

static void
does_so(int one, int two, int three)
{
	does[0] = one;
	does[1] = two;
	does[2] = three;
}

#define IS(got, expected, name) \
	do { \
		const char *said = (got); \
		if (!ok(strcmp(said, expected) == 0, "%s", name)) \
			diag("\"%s\", not \"%s\"", said, expected); \
	} while (0)

static void
test_lists(void)
{
	char		url[RBP_URL_LEN];

	ok(rbp_urls_valid(ONE) && rbp_urls_valid(ONE "/, https://two:1//") && !rbp_urls_valid("") && !rbp_urls_valid(ONE ",") &&
	   !rbp_urls_valid("," ONE) && !rbp_urls_valid(ONE ",," TWO) && !rbp_urls_valid("one," ONE) && !rbp_urls_valid(ONE ",http://:1") &&
	   !rbp_urls_valid("http://a b") && !rbp_urls_valid("https://"), "lists of URLs");
	ok(rbp_urls_get(ONE "/, https://two:1//", 1, url) && strcmp(url, "https://two:1") == 0, "without blanks and slashes");
	ok(!rbp_urls_get(ONE, 1, url) && url[0] == '\0' && !rbp_urls_get("", 0, url), "up to the last");
}

int
main(void)
{
	RbpBroker  *b = rbp_lease_broker_create(ONE "," TWO "," THREE, "");
	RbpBroker  *other;
	RbpBrokerAccess access;

	mock_init();
	test_lists();

	does_so(200, 200, 200);
	IS(request(b, false), "1; 1; 200", "the first broker is asked");
	does_so(0, 200, 200);
	IS(request(b, false), "12; 2; 200", "the next one if it does not answer");
	ok(strcmp(b->url, TWO) == 0, "which is told");
	IS(request(b, false), "2; 2; 200", "... from then on");
	does_so(200, 200, 200);
	mock_now += 14 * S;
	IS(request(b, false), "2; 2; 200", "not even when the first is back");
	mock_now += 2 * S;
	IS(request(b, false), "1; 1; 200", "but after a while");
	ok(timeout_ms == EARLIER_TIMEOUT_MS, "which takes little time, if it does not answer");

	does_so(503, 200, 200);
	IS(request(b, false), "12; 2; 200", "so is one that does not know yet");
	mock_now += 16 * S;
	IS(request(b, false), "12; 2; 200", "which is tried again");
	mock_now += 4 * S;
	IS(request(b, false), "2; 2; 200", "... not all the time");
	mock_now += 2 * S;
	IS(request(b, false), "12; 2; 200", "... but again");
	does_so(0, 404, 200);
	IS(request(b, false), "2; 2; 404", "an answer is one, whatever it says");
	does_so(503, 503, 0);
	mock_now += 16 * S;
	IS(request(b, false), "123; 2; failed 0", "all are asked once");
	does_so(0, 503, 503);
	IS(request(b, false), "231; 2; failed 0", "beginning with the one in use");
	denied_by_all = true;
	does_so(200, 404, 503);
	IS(request(b, false), "231; 1; 200", "who insists asks others, if one does not know the lease");
	does_so(404, 0, 503);
	IS(request(b, false), "123; 1; 503", "which does not count while another one does not answer");
	does_so(404, 200, 503);
	IS(request(b, false), "12; 2; 200", "nor if it does, and knows it");
	does_so(403, 503, 404);
	IS(request(b, false), "231; 2; failed 403", "nor while one knows nothing yet");
	does_so(403, 404, 404);
	IS(request(b, false), "231; 2; 403", "but when all say so");
	does_so(200, 410, 200);
	IS(request(b, false), "2; 2; 410", "that it has ended is another thing");
	denied_by_all = false;
	does_so(0, -1, 200);
	IS(request(b, false), "2; 2; failed 0", "a name that is being looked up is waited for");
	does_so(200, 0, 200);
	IS(request(b, true), "2; 2; failed 0", "a server that stops asks one");
	IS(request(b, false), "23; 3; 200", "the next one comes first");

	rbp_lease_broker_save(b, &access);
	other = rbp_lease_broker_restore(&access);
	IS(request(other, false), "3; 3; 200", "the next worker goes on with it");
	ok(!rbp_lease_broker_set_urls(b, ONE "," TWO), "a list without the one in use is another broker");
	IS(request(b, false), "3; 3; 200", "which changes nothing");
	ok(rbp_lease_broker_set_urls(b, THREE "/," ONE), "a list with it is not");
	IS(request(b, false), "3; 1; 200", "it stays in use");
	rbp_lease_broker_free(b);
	rbp_lease_broker_free(other);
	is_u64(mock_violations, 0, "no violations");
	return done_testing();
}
