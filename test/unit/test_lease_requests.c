/*-------------------------------------------------------------------------
 *
 * test_lease_requests.c
 *	  When a lease's next request is due, after a broker that answers, fails,
 *	  or whose name is not known yet.
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

#include "tap.h"

/* What the broker does, and why the lease has no usable answer, "" for none. */
static int	failed;
static const char *reason;
static char broker_error[100];

int
rbp_lease_broker_request(RbpBroker *b, const RbpHttpRequest *request,
						 RbpHttpReply *reply, char why[RBP_BROKER_WHY_LEN])
{
	strlcpy(why, reason, RBP_BROKER_WHY_LEN);
	return failed;
}

void
rbp_remote_set_broker_error(RbpPool pool, const char *error)
{
	snprintf(broker_error, sizeof(broker_error), "%s", error != NULL ? error : "");
}

/* the other files of the lease worker */
RbpHeldLease rbp_leases[RBP_POOLS];
char		rbp_lease_client[RBP_DONOR_ID_LEN] = "client";
RbpBroker  *rbp_lease_current_broker;
int			rbp_guc_lease_ttl = 10000;

uint64
rbp_lease_wanted(RbpHeldLease *h)
{
	return 1 << 20;
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
	abort();
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

int
main(void)
{
	RbpBroker	broker = {.url = "http://broker.test"};
	RbpHeldLease *h = &rbp_leases[RBP_POOL_BUFFER];

	rbp_lease_current_broker = h->broker = &broker;
	h->purpose = "buffer";
	h->suffix = "";

	failed = FAILED_NETWORK;
	reason = "";
	rbp_lease_send_requests(h);
	rbp_lease_send_requests(h);
	ok(h->failures == 0, "a name that is being looked up is no failure");
	ok(broker_error[0] == '\0' && broker.failures_logged == 0, "and is reported as none");
	ok(h->request_due > mock_now && h->request_due <= mock_now + 1000 * NS_PER_MS,
	   "the request is sent again soon");

	reason = "no answer";
	rbp_lease_send_requests(h);
	rbp_lease_send_requests(h);
	ok(h->failures == 2, "a broker that does not answer is one");
	ok(strcmp(broker_error, "no answer") == 0 && broker.failures_logged == FAILED_NETWORK,
	   "and is reported");
	ok(h->request_due > mock_now + 1000 * NS_PER_MS, "it is asked again later each time");
	return done_testing();
}
