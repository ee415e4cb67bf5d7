/*-------------------------------------------------------------------------
 *
 * test_lease_switch.c
 *	  How long another broker may take to answer before it is used: leases in use
 *	  have to be renewed meanwhile.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/guc.h"
#include "mock_server.h"
#include "lease/switch.c"

#include "tap.h"

#define S				(1000 * NANOS_PER_MS)

/* the other files of the lease worker, and the settings */
RbpHeldLease rbp_leases[RBP_POOLS];
char	   *rbp_guc_token_file = "";

static RbpBroker current = {.urls = "http://one",.url = "http://one",.token_file = ""};
static RbpBroker other = {.urls = "http://two",.url = "http://two",.token_file = ""};
static int	nchecks = 0;
static long timeout_ms;			/* of the last check */
static bool answers = false;
static int	nended = 0;			/* leases */

/* What is palloc'ed belongs to the worker's round. */
const char *__lsan_default_suppressions(void);

const char *
__lsan_default_suppressions(void)
{
	return "leak:pstrdup\nleak:psprintf\n";
}

int
rbp_lease_broker_request(RbpBroker *b, const RbpHttpRequest *request,
						 RbpHttpReply *reply, char why[RBP_BROKER_WHY_LEN])
{
	nchecks++;
	timeout_ms = request->timeout_ms;
	strlcpy(why, answers ? "" : "no answer", RBP_BROKER_WHY_LEN);
	reply->status = 404;
	reply->body = "{\"error\":\"there is no such lease\"}";
	reply->len = strlen(reply->body);
	return answers ? 0 : FAILED_NETWORK;
}

RbpBroker *
rbp_lease_broker_create(const char *url, const char *token_file)
{
	return &other;
}

bool
rbp_lease_broker_set_urls(RbpBroker *b, const char *urls)
{
	return strcmp(b->urls, urls) == 0;
}

void
rbp_lease_broker_free(RbpBroker *b)
{
}

void
rbp_lease_broker_set_token_file(RbpBroker *b, const char *token_file)
{
}

void
rbp_lease_end(RbpHeldLease *h, bool stop_on_shutdown)
{
	nended += h->in_use;
	h->in_use = false;
}

void
rbp_remote_set_broker_error(RbpPool pool, const char *error)
{
}

/* The other broker is tried with such leases in use (deadlines; 0: none); the time that it gets. */
static long
try_with(int64 buffer, int64 temp)
{
	const int64 left[RBP_POOLS] = {buffer, temp};

	for (int i = 0; i < RBP_POOLS; i++)
	{
		rbp_leases[i].pool = (RbpPool) i;
		rbp_leases[i].broker = &current;
		rbp_leases[i].in_use = left[i] != 0;
		rbp_leases[i].deadline = mock_now + (left[i] != 0 ? left[i] : S);
	}
	rbp_lease_current_broker = &current;
	next_broker = NULL;
	rbp_lease_apply_settings();
	timeout_ms = -1;
	if (rbp_lease_next_broker_due() != NEVER_NS)
		rbp_lease_try_next_broker();
	return timeout_ms;
}

int
main(void)
{
	rbp_guc_broker = "http://two";
	is_u64(try_with(30 * S, 30 * S), END_TIMEOUT_MS, "another broker is waited for");
	is_u64(try_with(2 * S, 30 * S), 500, "for a quarter of the time that the buffer tier's lease has left");
	is_u64(try_with(30 * S, 2 * S), 500, "or that for temporary data");
	is_u64(try_with(S / 100, 30 * S), 50, "but for a moment in any case");
	is_u64(try_with(-5 * S, 0), END_TIMEOUT_MS, "a lease that has lapsed needs no renewal in time");
	is_u64(try_with(-5 * S, 2 * S), 500, "unlike the other one");
	is_u64(try_with(0, 2 * S), 500, "nor does one that there is not");
	ok(rbp_lease_next_broker_due() > mock_now && rbp_lease_current_broker == &current && nended == 0,
	   "a broker that does not answer is not used, and tried again later");

	answers = true;
	(void) try_with(-5 * S, 0);
	ok(rbp_lease_current_broker == &other && nended == 1, "one that answers is, and the lapsed lease is ended");
	nchecks = 0;
	(void) try_with(0, 0);
	ok(rbp_lease_current_broker == &other && nchecks == 0, "without a lease it is used at once");
	answers = false;
	(void) try_with(30 * S, 0);
	rbp_leases[RBP_POOL_BUFFER].in_use = false;
	nchecks = 0;
	rbp_lease_try_next_broker();
	ok(rbp_lease_current_broker == &other && nchecks == 0, "likewise when the lease has ended");
	is_u64(mock_violations, 0, "no violations");
	return done_testing();
}
