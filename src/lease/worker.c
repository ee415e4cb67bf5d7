/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The lease worker: obtains memory from the broker, renews its leases,
 *	  follows the settings, and returns memory.
 *
 * This file has the main loop, which does what is due for each of two leases,
 * and takes over what an earlier worker has left.  requests.c talks to the
 * broker, apply.c uses its answers, and switch.c chooses the broker.
 *
 * There are two leases, one of purpose "buffer" for the buffer tier and one of
 * purpose "temp" for temporary data, each in its own RbpHeldLease.  The worker
 * renews each of them every second, and at once when the settings have
 * changed or a backend was denied access by a donor or lost its connection,
 * and says how much memory is wanted.  The answer lists all regions of the
 * lease, which become the regions in use.  The two leases fail independently;
 * but a broker that does not answer is logged only once for both.
 *
 * Order.  Memory is given up locally before the broker is told, and used only
 * after the broker has granted it:
 *	 - a region is retired first (rbp_remote_retire_coldest), then named as
 *	   released in the next renewal, and in each until one is answered;
 *	 - a lease is cleared first (rbp_remote_clear_lease), then ended.
 *
 * Temporary data.  It has no copy on disk, so its regions are released only
 * when it was moved out of them.  That can take long, so it is done in steps
 * that leave time for renewals.  The lease as a whole is closed in the same
 * way when the settings want no memory, or another broker, within CLOSING_NS;
 * it stays with the old broker that long.  Data in a lost or expired lease is
 * lost.
 *
 * Ends.  When the worker ends, its leases stay in use, and the next worker
 * continues with them; that of the buffer tier even after a crash of a backend,
 * after which no worker is started before recovery has ended.  When the server stops,
 * the leases are ended, but for one that the next start goes on with
 * (buffer/image.c).  Which of the two it is is told by who sends the SIGTERM: in
 * a smart shutdown the postmaster sends it after the last session has ended,
 * and whoever else sends it has not asked the sessions to end.
 *
 * Time.  The deadline that backends observe is counted from before the request
 * was sent, so that it passes here before it passes at the broker and the
 * donors.  Backends check it themselves: nothing depends on this process being
 * scheduled, or alive.
 *
 * Without a broker the lease is used until its deadline.  A lease of the buffer tier
 * then lapses: nobody uses its memory, but what is known of it stays until the broker is
 * back.  That of temporary data is taken out of use.  The id and secret are
 * kept: if the lease has not ended at the broker, the same memory is granted again;
 * else the broker says that there is no such lease, and a new one is
 * requested.  Each request for a new lease has a new instance id: the broker
 * ends what an earlier instance of the same client holds, be it this worker
 * before a restart, or a request whose answer was lost.
 *
 * Settings.  Another broker is tried before it is used, and a token that is
 * not accepted, or cannot be read, does not replace the one that was accepted
 * last: a mistyped setting costs nothing but a log message.  The broker and
 * token that work are kept in shared memory with each lease, and the next
 * worker starts with them.
 *
 * No process waits for this one.  A request to the broker processes interrupts
 * while it waits (rbp_lease_http), with no lock held, and errors are
 * logged once for each kind of failure, and once when the broker is back.
 *
 * If the worker ends, by SIGTERM or an ERROR, it exits with code 1 and so is
 * restarted after a second, except at shutdown.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xlog.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

#include "base/guc.h"
#include "base/stats.h"
#include "base/wait.h"
#include "base/workers.h"
#include "common/clock.h"
#include "common/text.h"
#include "lease/broker.h"
#include "lease/http.h"
#include "lease/lease_internal.h"
#include "lease/names.h"
#include "lease/plan.h"
#include "remote/remote.h"
#include "transport/transport.h"

/* The room is a library of its own: no other process needs libcurl and jansson. */
PG_MODULE_MAGIC;

/* Minimum interval of requests caused by backends' reports */
#define RECHECK_NS		(200 * NANOS_PER_MS)

/* How long a lease with temporary data is kept after it is no longer wanted */
#define CLOSING_NS			(30000 * NANOS_PER_MS)

RbpHeldLease rbp_leases[RBP_POOLS] = {
	[RBP_POOL_BUFFER] = {
		.pool = RBP_POOL_BUFFER,
		.purpose = "buffer",
		.suffix = "",
		.max_setting = "remote_bp.buffer_tier_max_size",
		.request_max = PG_UINT64_MAX,
		.retire_due = NEVER_NS
	},
	[RBP_POOL_TEMP] = {
		.pool = RBP_POOL_TEMP,
		.purpose = "temp",
		.suffix = " for temporary data",
		.max_setting = "remote_bp.temp_tier_max_size",
		.request_max = PG_UINT64_MAX,
		.retire_due = NEVER_NS
	}
};

char		rbp_lease_client[RBP_DONOR_ID_LEN];
static MemoryContext round_context = NULL;

/*
 * The lease's deadline may have passed, so that nobody uses its memory.  If the broker
 * keeps it, it is now lapsed, and may be renewed.  Temporary data of such a lease is lost.
 */
static void
expire_if_due(RbpHeldLease *h, int64 now)
{
	bool		lapses = rbp_lease_keep_ms(h) > 0;

	if (!h->in_use || now < h->deadline || (lapses && h->lapsed))
		return;
	ereport(LOG,
			(errmsg("remote_bp: the lease%s could not be renewed in time",
					h->suffix),
			 lapses ? errdetail("Its memory is not used until it is renewed.") :
			 errdetail("Its memory is no longer used.")));
	rbp_stats_error("the lease%s could not be renewed in time", h->suffix);
	h->lapsed = lapses;
	if (!lapses)
	{
		rbp_lease_log_losses(h, NULL);
		rbp_lease_stop_use(h);
	}
}

/*
 * Called when the settings want no such lease, or one of another broker.
 * Returns true if the lease is still needed, because temporary data is being
 * moved out of it; that takes CLOSING_NS at most.
 */
static bool
keep_until_moved(RbpHeldLease *h, int64 now)
{
	if (h->pool != RBP_POOL_TEMP || !h->in_use || h->lease->nregions == 0)
		return false;
	if (h->close_deadline == 0)
	{
		h->close_deadline = now + CLOSING_NS;
		h->retire_due = 0;
	}
	if (now < h->close_deadline)
		return true;
	ereport(LOG,
			(errmsg("remote_bp: temporary data in %d leased region%s could not be moved in time",
					h->lease->nregions, RBP_PLURAL(h->lease->nregions))));
	rbp_lease_log_losses(h, NULL);
	return false;
}

/* How long regions may be emptied before a request is due. */
static int64
step_deadline(int64 now)
{
	int64		request_due = NEVER_NS;

	for (int i = 0; i < RBP_POOLS; i++)
		request_due = Min(request_due, rbp_leases[i].request_due);
	return rbp_lease_step_until(now, request_due);
}

/* Do what is due for a lease. */
static void
maintain_lease(RbpHeldLease *h)
{
	int64		now = rbp_now_ns();
	int			without_room;

	expire_if_due(h, now);

	/*
	 * always reset, so that an old report is not taken for one about a new
	 * lease
	 */
	if (rbp_remote_take_recheck(h->pool) && h->in_use)
		h->recheck = true;
	if (h->recheck && h->failures == 0)
		h->request_due = Min(h->request_due, h->last_request + RECHECK_NS);

	if (rbp_lease_wanted(h) > 0)
		h->close_deadline = 0;
	else if (h->lease == NULL || !keep_until_moved(h, now))
	{
		rbp_lease_end(h, true);
		if (h->broker != rbp_lease_current_broker)
			rbp_lease_use_current_broker(h);

		/*
		 * The current broker may have a new lease at once.  If none is wanted
		 * only because its regions had no room, ask later.
		 */
		h->request_due = rbp_lease_wanted(h) > 0 ? 0 :
			h->request_max < PG_UINT64_MAX ? h->request_max_until : NEVER_NS;
	}

	h->maintenance_pending = rbp_remote_run_deferred(h->pool, step_deadline(now), &without_room);
	if (without_room > 0 && h->lease != NULL)
	{
		rbp_lease_release_unused(h);
		if (h->failures == 0)
			h->request_due = 0;
	}
	now = rbp_now_ns();
	if (now >= h->retire_due && rbp_lease_retire_regions(h, step_deadline(now)) > 0 &&
		h->failures == 0)
		h->request_due = 0;
	if (rbp_now_ns() >= h->request_due && !ShutdownRequestPending)
		rbp_lease_send_requests(h);
}

/* Wait until something is due or the latch is set. */
static void
wait_for_work(void)
{
	int64		now = rbp_now_ns();
	int64		until = NEVER_NS;
	long		ms;

	for (int i = 0; i < RBP_POOLS; i++)
	{
		until = Min(until, Min(rbp_leases[i].request_due, rbp_leases[i].retire_due));
		if (rbp_leases[i].in_use && rbp_leases[i].deadline > now)
			until = Min(until, rbp_leases[i].deadline);
		if (rbp_leases[i].maintenance_pending)
			until = now;
	}
	until = Min(until, rbp_lease_lookups_due(now));
	until = Min(until, rbp_lease_next_broker_due());
	ms = until <= now ? 0 : (long) Min((until - now + NANOS_PER_MS - 1) / NANOS_PER_MS,
									   RBP_WORKER_SLEEP_MS);
	if (ms > 0)
		rbp_wait_latch(RBP_WAIT_MAIN, ms);
}

/* While another broker takes over, the two leases may be of two brokers. */
static bool
is_of_current_broker(RbpPool pool)
{
	RbpBrokerAccess access;
	bool		same = rbp_remote_get_broker(pool, &access) &&
	strcmp(access.urls, rbp_lease_current_broker->urls) == 0;

	explicit_bzero(&access, sizeof(access));
	return same;
}

/*
 * An earlier worker may have left a lease, perhaps before a crash.  Continue with it, unless
 * it has lapsed and has temporary data, which is lost then.
 */
static void
take_over_lease(RbpHeldLease *h)
{
	RbpCredentials cred;
	int64		deadline;
	RbpDonorInfo *donors;
	RbpEndpoint *endpoints;
	RbpRegionGrant *regions;
	int			ndonors;
	int			nregions;

	if (!rbp_remote_get_lease(h->pool, &cred, &deadline) ||
		(h->pool == RBP_POOL_TEMP ? deadline <= rbp_now_ns() : !is_of_current_broker(h->pool)))
	{
		rbp_remote_clear_lease(h->pool);
		return;
	}

	donors = rbp_remote_donor_info(&ndonors);
	endpoints = palloc0(sizeof(RbpEndpoint) * (ndonors + 1));
	for (int i = 0; i < ndonors; i++)
		endpoints[i] = donors[i].endpoint;
	regions = rbp_lease_regions_in_use(cred.lease, &nregions);
	h->lease = rbp_lease_restore(&cred, rbp_guc_lease_ttl, endpoints, ndonors,
								 regions, nregions);
	explicit_bzero(cred.secret, sizeof(cred.secret));
	if (h->lease == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	h->in_use = true;
	h->deadline = deadline;
	h->lapsed = deadline <= rbp_now_ns();

	/*
	 * The lease is of an image, of which there may be copies: who changes the
	 * secret first has it.
	 */
	h->changes_secret = deadline == 0;
	if (h->changes_secret && !rbp_remote_new_secret(h->pool, h->new_secret))
		ereport(ERROR,
				(errmsg("remote_bp: no random numbers")));
	h->reported_bytes = h->lease->bytes;
	/* its regions may be draining, for a reason that may have passed */
	h->has_drained = h->drain_obsolete = true;
	h->retire_due = 0;
	ereport(LOG,
			(errmsg("remote_bp: going on with the lease%s, %llu MB in %d region%s",
					h->suffix, (unsigned long long) (h->lease->bytes >> 20),
					nregions, RBP_PLURAL(nregions))));
}

/*
 * Continue with the broker of such a lease, as the earlier worker knew it: it is
 * not known whether the settings work.  False if there is none, so that the
 * settings have to be used.
 */
static bool
take_over_broker(void)
{
	RbpBrokerAccess access;
	bool		known = rbp_remote_get_broker(RBP_POOL_TEMP, &access) ||
	rbp_remote_get_broker(RBP_POOL_BUFFER, &access);

	if (known)
		rbp_lease_switch_broker(rbp_lease_broker_restore(&access));
	explicit_bzero(&access, sizeof(access));
	return known;
}

/*
 * Set when the postmaster asks the worker to end.  It does so when the server
 * stops, but in a smart shutdown not before the last session has ended.
 */
static volatile sig_atomic_t server_stops = false;

static void
handle_sigterm(int signo, siginfo_t *info, void *context)
{
	int			save_errno = errno;

	if (info->si_pid == PostmasterPid)
		server_stops = true;
	SignalHandlerForShutdownRequest(signo);
	errno = save_errno;
}

/*
 * Does the lease go on when the server is started again?  A standby leaves no image of its tier,
 * and without one the broker ends the lease when the next start asks for another.
 */
static bool
is_for_next_start(const RbpHeldLease *h)
{
	return h->pool == RBP_POOL_BUFFER && h->in_use && rbp_lease_keep_ms(h) > 0 &&
		rbp_guc_warm_restart == RBP_WARM_RESTART_ON && !RecoveryInProgress();
}

void
rbp_lease_main(Datum arg)
{
	struct sigaction on_sigterm = {
		.sa_sigaction = handle_sigterm,.sa_flags = SA_SIGINFO | SA_RESTART
	};

	rbp_worker_begin(RBP_WORKER_LEASE);
	sigemptyset(&on_sigterm.sa_mask);
	sigaction(SIGTERM, &on_sigterm, NULL);
	BackgroundWorkerUnblockSignals();

	rbp_worker_check_version("lease worker");

	rbp_remote_set_worker();

	rbp_lease_client_name(rbp_lease_client);
	round_context = AllocSetContextCreate(TopMemoryContext,
										  "remote_bp lease worker",
										  ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(round_context);
	if (!rbp_lease_http_init())
		ereport(ERROR,
				(errmsg("remote_bp: could not initialize libcurl")));

	if (!take_over_broker())
		rbp_lease_apply_settings();
	for (int i = 0; i < RBP_POOLS; i++)
		take_over_lease(&rbp_leases[i]);

	while (!ShutdownRequestPending)
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(round_context);
		rbp_worker_runs(RBP_WORKER_LEASE);

		if (rbp_worker_reload())
		{
			for (int i = 0; i < RBP_POOLS; i++)
			{
				rbp_leases[i].request_due = 0;
				rbp_leases[i].retire_due = 0;
			}
		}
		if (rbp_lease_settings_changed())
			rbp_lease_apply_settings();
		if (rbp_lease_lookups_ended())
		{
			/* a broker, or donors of the next answer, may be reachable now */
			for (int i = 0; i < RBP_POOLS; i++)
				rbp_leases[i].request_due = 0;
			rbp_lease_hasten_next_broker();
		}

		for (int i = 0; i < RBP_POOLS && !ShutdownRequestPending; i++)
			maintain_lease(&rbp_leases[i]);
		if (rbp_now_ns() >= rbp_lease_next_broker_due() && !ShutdownRequestPending)
			rbp_lease_try_next_broker();
		if (!ShutdownRequestPending)
			wait_for_work();
	}

	for (int i = 0; i < RBP_POOLS && server_stops; i++)
	{
		if (is_for_next_start(&rbp_leases[i]))
			rbp_lease_leave(&rbp_leases[i]);
		else
			rbp_lease_end(&rbp_leases[i], false);
	}

	/* Exit code 1: restart, unless the server is shutting down. */
	proc_exit(1);
}
