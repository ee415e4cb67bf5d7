/*-------------------------------------------------------------------------
 *
 * mock_server.c
 *	  See mock_server.h.
 *
 *-------------------------------------------------------------------------
 */
#include "base/choice.h"
#include "base/compat.h"
#include "base/guc.h"
#include "base/injection_point.h"
#include "base/kept.h"
#include "base/stats.h"
#include "base/wait.h"
#include "base/workers.h"
#include "common/clock.h"
#include "common/status.h"
#include "transport/transport.h"
#include "mock_server.h"

#include <stdlib.h>

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "utils/timestamp.h"

#include "tap.h"

#define MAX_IN_FLIGHT		512

MockDonor	mock_donors[MOCK_DONORS];
int64		mock_now = INT64CONST(1000000000000);
int			mock_violations = 0;
int			mock_messages = 0;
bool		mock_lock_taken = false;
uint64		mock_counters[RBP_NUM_COUNTERS];
int			mock_wakes[RBP_WORKERS];
int64		mock_io_timeout_ns = 10 * MS;
int64		mock_temp_io_timeout_ns = 5000 * MS;
int64		mock_idle_timeout_ns = 0;
int64		mock_cancel_at = INT64_MAX;

static void
violation(const char *what)
{
	mock_violations++;
	diag("violation: %s", what);
}

/*
 * ---- the server -------------------------------------------------------------
 */

static PGPROC this_proc;

PGPROC	   *MyProc = &this_proc;
#if PG_VERSION_NUM >= 170000
ProcNumber	MyProcNumber = 0;
#endif
BackendType MyBackendType = B_BACKEND;
int			MyProcPid = 4711;
int			mock_external_fds = 0;
volatile sig_atomic_t InterruptPending = false;
volatile sig_atomic_t QueryCancelPending = false;
volatile sig_atomic_t ProcDiePending = false;
volatile uint32 InterruptHoldoffCount = 0;
volatile uint32 QueryCancelHoldoffCount = 0;
volatile uint32 CritSectionCount = 0;
int			MaxBackends = 4;
int			max_prepared_xacts = 0;

static int	locks_held = 0;
static bool (*give_up) (void) = NULL;
static pg_on_exit_callback at_exit[20];
static int	nat_exit = 0;

void
ReserveExternalFD(void)
{
	mock_external_fds++;
}

void
ReleaseExternalFD(void)
{
	if (mock_external_fds-- == 0)
		violation("a descriptor is released that was not reserved");
}

void
LWLockInitialize(LWLock *lock, int tranche_id)
{
	memset(lock, 0, sizeof(*lock));
	lock->tranche = (uint16) tranche_id;
}

int
LWLockNewTrancheId(void)
{
	return 100;
}

void
LWLockRegisterTranche(int tranche_id, const char *tranche_name)
{
}

bool
LWLockAcquire(LWLock *lock, LWLockMode mode)
{
	if (locks_held++ > 0)
		violation("a lock is taken twice");
	return true;
}

bool
LWLockConditionalAcquire(LWLock *lock, LWLockMode mode)
{
	return !mock_lock_taken && LWLockAcquire(lock, mode);
}

void
LWLockRelease(LWLock *lock)
{
	locks_held--;
}

void
rbp_kept_changing(bool begins)
{
	static bool changing = false;

	if (begins == changing || locks_held != 1)
		violation("changes of what is kept are not told one by one, under a lock");
	changing = begins;
}

bool
mock_lock_held(void)
{
	return locks_held > 0;
}

void
on_shmem_exit(pg_on_exit_callback function, Datum arg)
{
	at_exit[nat_exit++] = function;
}

void
mock_exit(void)
{
	while (nat_exit > 0)
		at_exit[--nat_exit] (0, (Datum) 0);
}

int
SendProcSignal(pid_t pid, ProcSignalReason reason, ProcNumber number)
{
	return 0;
}

bool
rbp_worker_away(RbpWorker which, char *buf, Size len)
{
	return false;
}

void
SendPostmasterSignal(PMSignalReason reason)
{
}

void
rbp_worker_wake(RbpWorker which)
{
	mock_wakes[which]++;
}

bool
rbp_worker_exists(RbpWorker which)
{
	return false;
}

void
pg_usleep(long microsec)
{
	if (mock_lock_held())
		violation("a wait with a lock held");
	mock_now += microsec * 1000;
}

TimestampTz
GetCurrentTimestamp(void)
{
	return mock_now / 1000;
}

const char *
timestamptz_to_str(TimestampTz t)
{
	return "some time";
}

bool
errstart(int elevel, const char *domain)
{
	mock_messages++;
	return false;
}

/* weak: some tests have their own */
__attribute__((weak))
bool
errstart_cold(int elevel, const char *domain)
{
	abort();
}

void
errfinish(const char *filename, int lineno, const char *funcname)
{
}

int
errcode(int sqlerrcode)
{
	return 0;
}

int
errmsg(const char *fmt,...)
{
	return 0;
}

int
errdetail(const char *fmt,...)
{
	return 0;
}

int
errhint(const char *fmt,...)
{
	return 0;
}

/*
 * ---- the rest of the extension ------------------------------------------------
 */

char	   *rbp_guc_transport = "auto";
int			rbp_guc_max_connections = 10;
int			rbp_guc_read_from = RBP_READ_DONOR;
int			rbp_guc_encrypt = RBP_ENCRYPT_AUTO;
char	   *rbp_guc_rdma_device = "";
int			rbp_guc_rdma_port = 0;
int			rbp_guc_rdma_gid_index = -1;
int			rbp_guc_rdma_traffic_class = -1;
int			rbp_guc_rdma_ack_timeout = 12;
int			rbp_guc_rdma_retry_count = 6;
uint32		rbp_guc_connect_settings_version = 1;
char	   *rbp_guc_broker = "http://broker";
char	   *rbp_guc_client_name = "";
int			rbp_guc_temp_tier_size = 1;
uint32		rbp_wait_events[RBP_WAITS];
static uint32 wait_event = 0;
uint32	   *my_wait_event_info = &wait_event;
int			rbp_guc_temp_tier_max_size = 1;

int64
rbp_guc_io_timeout_ns(void)
{
	return mock_io_timeout_ns;
}

int64
rbp_guc_temp_io_timeout_ns(void)
{
	return mock_temp_io_timeout_ns;
}

int64
rbp_guc_idle_timeout_ns(void)
{
	return mock_idle_timeout_ns;
}

int
rbp_guc_tier_size_wanted(void)
{
	return 1;
}

void
rbp_stats_error(const char *fmt,...)
{
}

void
rbp_stats_count(RbpCounter counter, uint64 n)
{
	mock_counters[counter] += n;
}

void
rbp_stats_latency(RbpLatency op, int64 ns)
{
}

int
rbp_latency_bucket(int64 ns)
{
	return 0;
}

/*
 * ---- transports -----------------------------------------------------------------
 */

typedef struct MockConn
{
	RbpConn		base;
	MockDonor  *donor;
	int			lease;
	uint32		life;
	RbpIo	   *in_flight[MAX_IN_FLIGHT];
	int			n;
} MockConn;

int64_t
rbp_now_ns(void)
{
	return mock_now;
}

uint32_t	rbp_transport_accesses = 0;

void
rbp_transport_set_give_up(bool (*callback) (void))
{
	give_up = callback;
}

const char *
rbp_status_text(RbpStatus status)
{
	return "status";
}

uint8 *
mock_memory(int donor, int lease, uint32 region, uint64 offset)
{
	return mock_donors[donor].memory +
		((uint64) lease * MOCK_REGIONS + region) * MOCK_REGION_BYTES + offset;
}

RbpCredentials
mock_credentials(int lease)
{
	RbpCredentials cred = {0};

	snprintf(cred.lease, sizeof(cred.lease), "%d", lease);
	return cred;
}

RbpEndpoint
mock_endpoint(int donor)
{
	RbpEndpoint endpoint = {0};

	strlcpy(endpoint.donor, mock_donors[donor].id, sizeof(endpoint.donor));
	return endpoint;
}

static MockDonor *
donor_by_id(const char *id)
{
	for (int i = 0; i < MOCK_DONORS; i++)
		if (strcmp(mock_donors[i].id, id) == 0)
			return &mock_donors[i];
	abort();
}

static bool
mock_usable(const RbpEndpoint *ep)
{
	return true;
}

static RbpStatus
connect_over(const RbpTransportOps *ops, const RbpEndpoint *ep,
			 const RbpCredentials *cred, RbpConn **out)
{
	MockDonor  *donor = donor_by_id(ep->donor);
	MockConn   *conn;

	if (donor->refuses)
		return RBP_CONNLOST;
	conn = calloc(1, sizeof(*conn));
	conn->base.ops = ops;
	conn->base.same_host = donor->same_host;
	conn->donor = donor;
	conn->lease = atoi(cred->lease);
	conn->life = donor->life;
	donor->open++;
	donor->connects++;
	*out = &conn->base;
	return RBP_OK;
}

/*
 * Time passes while one waits, until somebody cancels the query and that is
 * heeded; false then.
 */
static bool
pass(int64 until_ns)
{
	if (mock_lock_held())
		violation("a wait with a lock held");
	if (until_ns > mock_cancel_at)
	{
		mock_now = Max(mock_now, mock_cancel_at);
		mock_cancel_at = INT64_MAX;
		InterruptPending = QueryCancelPending = true;
	}
	if (mock_now < until_ns && give_up())
		return false;
	mock_now = Max(mock_now, until_ns);
	return true;
}

static RbpStatus
mock_connect_wait(RbpConn *base, int64_t deadline_ns)
{
	MockConn   *conn = (MockConn *) base;

	if (conn->life != conn->donor->life)
		return RBP_CONNLOST;
	if (conn->donor->hangs || conn->donor->mute)
	{
		(void) pass(deadline_ns);
		return RBP_INPROGRESS;
	}
	if (conn->donor->full)
		return RBP_BUSY;
	return conn->donor->denied[conn->lease] ? RBP_DENIED : RBP_OK;
}

static void
copy_io(MockConn *conn, RbpIo *io)
{
	uint8	   *at = mock_memory((int) (conn->donor - mock_donors), conn->lease,
								 io->region, io->offset);

	conn->donor->requests++;
	conn->donor->bytes += io->len;
	if (io->region >= MOCK_REGIONS ||
		conn->donor->lost[conn->lease][io->region])
		io->status = RBP_DENIED;
	else
	{
		if (io->offset + io->len > MOCK_REGION_BYTES)
			violation("a request past the region's end");
		else if (io->kind == RBP_IO_READ)
			memcpy(io->buf, at, io->len);
		else if (io->kind == RBP_IO_WRITE)
			memcpy(at, io->buf, io->len);
		if (io->kind == RBP_IO_READ && conn->donor->scribbles)
			memset(at, 7, io->len);
		io->status = RBP_OK;
	}
}

static RbpStatus
mock_submit(RbpConn *base, RbpIo *ios, int n)
{
	MockConn   *conn = (MockConn *) base;
	RbpStatus	breaks = conn->donor->breaks;
	bool		lost = conn->life != conn->donor->life;

	for (int i = 0; i < n; i++)
	{
		if (lost)
			ios[i].status = RBP_CONNLOST;
		else if (breaks != RBP_OK)
		{
			copy_io(conn, &ios[i]);
			ios[i].status = breaks;
		}
		else if (base->ops->local && ios[i].kind != RBP_IO_PING)
			copy_io(conn, &ios[i]);
		else if (conn->n == MAX_IN_FLIGHT)
			ios[i].status = RBP_NOMEM;
		else
		{
			ios[i].status = RBP_INPROGRESS;
			conn->in_flight[conn->n++] = &ios[i];
		}
	}
	return lost ? RBP_CONNLOST : breaks;
}

static void
end_io(MockConn *conn, RbpIo *io)
{
	for (int f = 0; f < conn->n; f++)
		if (conn->in_flight[f] == io)
		{
			conn->in_flight[f] = conn->in_flight[--conn->n];
			return;
		}
	violation("a wait for a request that is not in flight");
}

static RbpStatus
mock_wait(RbpConn *base, RbpIo *ios, int n, int64_t deadline_ns)
{
	MockConn   *conn = (MockConn *) base;
	MockDonor  *donor = conn->donor;
	RbpStatus	result = RBP_OK;

	for (int i = 0; i < n; i++)
	{
		if (ios[i].status == RBP_INPROGRESS)
		{
			end_io(conn, &ios[i]);
			if (conn->life != donor->life)
				ios[i].status = RBP_CONNLOST;
			else if (donor->hangs || donor->answers_at > Max(deadline_ns, mock_now))
			{
				(void) pass(deadline_ns);
				ios[i].status = RBP_TIMEOUT;
			}
			else if (pass(donor->answers_at))
				copy_io(conn, &ios[i]);
			else
				ios[i].status = RBP_TIMEOUT;
		}
		if (result == RBP_OK)
			result = ios[i].status;
	}
	return result;
}

static void
mock_close(RbpConn *base)
{
	MockConn   *conn = (MockConn *) base;

	if (conn == NULL)
		return;
	if (conn->n > 0)
		violation("a connection is closed with requests in flight");
	conn->donor->open--;
	free(conn);
}

static RbpStatus net_connect(const RbpEndpoint *ep, const RbpCredentials *cred,
							 RbpConn **conn);
static RbpStatus local_connect(const RbpEndpoint *ep,
							   const RbpCredentials *cred, RbpConn **conn);

static const RbpTransportOps net_ops = {
	.name = "tcp",
	.bit = RBP_TRANSPORT_TCP,
	.connect_ns = RBP_CONNECT_NS,
	.handshake_ns = RBP_CONNECT_NS,
	.usable = mock_usable,
	.connect = net_connect,
	.connect_wait = mock_connect_wait,
	.submit = mock_submit,
	.wait = mock_wait,
	.close = mock_close,
};

static RbpStatus costly_connect(const RbpEndpoint *ep, const RbpCredentials *cred,
								RbpConn **conn);

static RbpStatus
costly_connect_wait(RbpConn *base, int64_t deadline_ns)
{
	RbpStatus	fails = ((MockConn *) base)->donor->costly_fails;

	if (fails == RBP_INPROGRESS)
		(void) pass(deadline_ns);
	if (fails == RBP_INPROGRESS || fails == RBP_TIMEOUT)
		return fails;
	return mock_connect_wait(base, deadline_ns);
}

static const RbpTransportOps costly_ops = {
	.name = "verbs",
	.bit = RBP_TRANSPORT_VERBS,
	.one_sided = true,
	.costly = true,
	.connect_ns = 6000 * MS,
	.handshake_ns = RBP_VERBS_HANDSHAKE_NS,
	.usable = mock_usable,
	.connect = costly_connect,
	.connect_wait = costly_connect_wait,
	.submit = mock_submit,
	.wait = mock_wait,
	.close = mock_close,
};

static const RbpTransportOps local_ops = {
	.name = "shm",
	.bit = RBP_TRANSPORT_SHM,
	.connect_ns = RBP_CONNECT_NS,
	.handshake_ns = RBP_CONNECT_NS,
	.one_sided = true,
	.local = true,
	.usable = mock_usable,
	.connect = local_connect,
	.connect_wait = mock_connect_wait,
	.submit = mock_submit,
	.wait = mock_wait,
	.close = mock_close,
};

static RbpStatus
net_connect(const RbpEndpoint *ep, const RbpCredentials *cred, RbpConn **conn)
{
	return connect_over(&net_ops, ep, cred, conn);
}

static RbpStatus
local_connect(const RbpEndpoint *ep, const RbpCredentials *cred, RbpConn **conn)
{
	return connect_over(&local_ops, ep, cred, conn);
}

static RbpStatus
costly_connect(const RbpEndpoint *ep, const RbpCredentials *cred, RbpConn **conn)
{
	RbpStatus	fails = donor_by_id(ep->donor)->costly_fails;

	if (fails != RBP_OK && fails != RBP_INPROGRESS && fails != RBP_TIMEOUT)
		return fails;
	return connect_over(&costly_ops, ep, cred, conn);
}

const RbpTransportOps *
rbp_transport_choose(const char *want, const RbpEndpoint *ep)
{
	if (donor_by_id(ep->donor)->costly)
		return (ep->transports & RBP_TRANSPORT_VERBS) != 0 ? &costly_ops :
			(ep->transports & RBP_TRANSPORT_TCP) != 0 ? &net_ops : NULL;
	if (donor_by_id(ep->donor)->no_way)
		return NULL;
	return donor_by_id(ep->donor)->local ? &local_ops : &net_ops;
}

const RbpTransportOps *
rbp_transport_by_name(const char *name)
{
	return strcmp(name, "tcp") == 0 ? &net_ops :
		strcmp(name, "shm") == 0 ? &local_ops : NULL;
}

const RbpTransportOps *
rbp_transport_by_bit(uint32_t bit)
{
	return bit == net_ops.bit ? &net_ops : bit == local_ops.bit ? &local_ops : NULL;
}

void
mock_init(void)
{
	static uint64 choice[512];

	Assert(rbp_choice_shmem_size() <= sizeof(choice));
	rbp_choice_shmem_open(choice, false);
	for (int i = 0; i < MOCK_DONORS; i++)
	{
		MockDonor  *donor = &mock_donors[i];

		memset(donor, 0, sizeof(*donor));
		snprintf(donor->id, sizeof(donor->id), "donor%d", i);
		donor->memory = calloc(MOCK_LEASES * MOCK_REGIONS, MOCK_REGION_BYTES);
		if (donor->memory == NULL)
			abort();
	}
}
