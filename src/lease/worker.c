/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The lease worker: gets memory from the broker, keeps it, follows the
 *	  settings, and gives it back.
 *
 * This file has the loop: what is due, for each of two leases, and what a worker takes
 * over from the one before it.  requests.c talks to the broker, apply.c puts its answers
 * to use, turn.c chooses the broker.
 *
 * Two leases are held, one of purpose "buffer" for the buffer tier and one of
 * purpose "temp" for temporary data, each in a Hold of its own.  Every second,
 * and at once when the settings changed or a backend found that a donor denies
 * access or broke, the worker renews a lease and says how much memory is
 * wanted; the answer lists all regions of the lease, which become the regions
 * in use.  The two know nothing of each other's troubles, but a broker that
 * does not answer is one broker: what is to be logged of it is logged once.
 *
 * Order.  Memory is given up locally before the broker hears of it, and used
 * only after the broker granted it:
 *	 - what is to be released is retired (rbp_remote_retire_coldest) first,
 *	   then named in the next renewal, and in each until one is answered;
 *	 - a lease is cleared (rbp_remote_clear_lease) first, then ended.
 *
 * Temporary data.  It has no copy on disk, so regions are given back only when
 * it was moved out of them: in steps that leave renewals their time, while it
 * takes long.  The lease as a whole goes in the same way when the settings
 * want none, or another broker, for CLOSING_NS at most; it is held at the old
 * broker so long.  What a lost or expired lease carried is lost.  When the worker
 * ends, that lease stays in use, and the next worker goes on with it; but when
 * the server stops there is nobody left to miss anything.
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
 * Settings.  Another broker is tried before it is turned to, and a token that is
 * not accepted, or cannot be read, does not replace the one that was accepted
 * last: a mistyped setting costs nothing but a line in the log.  The broker and
 * token that work are kept in shared memory with each lease: the next worker begins
 * with those.
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
#include <unistd.h>

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
#include "utils/pidfile.h"

#include "base/guc.h"
#include "base/stats.h"
#include "common/clock.h"
#include "lease/broker.h"
#include "lease/http.h"
#include "lease/lease.h"
#include "lease/lease_internal.h"
#include "lease/names.h"
#include "lease/plan.h"
#include "remote/remote.h"
#include "transport/transport.h"

/* Backends that go on being suspicious make us ask no more often than this */
#define SUSPICION_NS		(200 * NS_PER_MS)

/* How long a lease that is not wanted any more is kept for that */
#define CLOSING_NS			(30000 * NS_PER_MS)

Hold rbp_lease_holds[RBP_POOLS] = {
	[RBP_POOL_BUFFER] = {
		.pool = RBP_POOL_BUFFER,
		.purpose = "buffer",
		.suffix = "",
		.max_setting = "remote_bp.buffer_tier_max_size",
		.usable_bytes = PG_UINT64_MAX,
		.step_due = NEVER_NS
	},
	[RBP_POOL_TEMP] = {
		.pool = RBP_POOL_TEMP,
		.purpose = "temp",
		.suffix = " for temporary data",
		.max_setting = "remote_bp.temp_tier_max_size",
		.usable_bytes = PG_UINT64_MAX,
		.step_due = NEVER_NS
	}
};

char rbp_lease_client[RBP_DONOR_ID_LEN];
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

/* Past its deadline, the lease is not used any more. */
static void
expire_if_due(Hold *h, int64 now)
{
	if (!h->in_use || now < h->deadline)
		return;
	ereport(LOG,
			(errmsg("remote_bp: the lease%s could not be renewed in time, its memory is not used any more",
					h->suffix)));
	rbp_stats_error("the lease%s could not be renewed in time", h->suffix);
	rbp_lease_tell_losses(h, NULL);
	rbp_lease_stop_use(h);
}

/*
 * The settings want no such lease, or one of another broker.  True if it is
 * to be kept still, so that temporary data can be moved out of it.
 */
static bool
keep_for_now(Hold *h, int64 now)
{
	if (h->pool != RBP_POOL_TEMP || !h->in_use || h->lease->nregions == 0)
		return false;
	if (h->close_by == 0)
	{
		h->close_by = now + CLOSING_NS;
		h->step_due = 0;
	}
	if (now < h->close_by)
		return true;
	ereport(LOG,
			(errmsg("remote_bp: temporary data in %d leased regions could not be moved in time",
					h->lease->nregions)));
	rbp_lease_tell_losses(h, NULL);
	return false;
}

/* Until when memory may be given up before something else is due. */
static int64
step_until(int64 now)
{
	int64		due = NEVER_NS;

	for (int i = 0; i < RBP_POOLS; i++)
		due = Min(due, rbp_lease_holds[i].due);
	return rbp_lease_step_until(now, due);
}

/* Do for a lease what is due. */
static void
tend(Hold *h)
{
	int64		now = rbp_now_ns();
	int			unused;

	expire_if_due(h, now);
	/* asked for in any case, lest an old mark speak of a new lease */
	if (rbp_remote_take_recheck(h->pool) && h->in_use)
		h->suspected = true;
	if (h->suspected && h->failures == 0)
		h->due = Min(h->due, h->last + SUSPICION_NS);

	if (rbp_lease_wanted(h) > 0)
		h->close_by = 0;
	else if (h->lease == NULL || !keep_for_now(h, now))
	{
		rbp_lease_give_back(h, true);
		if (h->broker != rbp_lease_current)
			rbp_lease_turn_to_current(h);
		h->due = rbp_lease_wanted(h) > 0 ? 0 :
			h->usable_bytes < PG_UINT64_MAX && h->pool == RBP_POOL_TEMP ?
			h->usable_until : NEVER_NS;
	}

	h->tending = rbp_remote_run_deferred(h->pool, step_until(now), &unused);
	if (unused > 0 && h->lease != NULL)
	{
		rbp_lease_release_unused(h);
		if (h->failures == 0)
			h->due = 0;
	}
	now = rbp_now_ns();
	if (now >= h->step_due && rbp_lease_give_up(h, step_until(now)) > 0 &&
		h->failures == 0)
		h->due = 0;
	if (rbp_now_ns() >= h->due && !ShutdownRequestPending)
		rbp_lease_converse(h);
}

/* Until something happens, or one of the times. */
static void
wait_for_work(void)
{
	int64		now = rbp_now_ns();
	int64		until = NEVER_NS;
	long		ms;

	for (int i = 0; i < RBP_POOLS; i++)
	{
		until = Min(until, Min(rbp_lease_holds[i].due, rbp_lease_holds[i].step_due));
		if (rbp_lease_holds[i].in_use)
			until = Min(until, rbp_lease_holds[i].deadline);
		if (rbp_lease_holds[i].tending)
			until = now;
	}
	until = Min(until, rbp_lease_lookups_due(now));
	until = Min(until, rbp_lease_next_due());
	ms = until <= now ? 0 : (long) Min((until - now + NS_PER_MS - 1) / NS_PER_MS,
									   INT64CONST(60000));
	if (ms == 0)
		return;
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
}

/*
 * A worker before this one has left a lease.  One for temporary data is gone
 * on with.  The other's id and secret are not worth keeping: the broker ends
 * it as soon as this worker asks for a lease.
 */
static void
take_over(Hold *h)
{
	RbpCredentials cred;
	int64		deadline;
	RbpDonorInfo *donors;
	RbpLeaseInfo *infos;
	RbpEndpoint *endpoints;
	RbpLeaseRegion *regions;
	int			ndonors;
	int			ninfos;
	int			nregions = 0;

	if (h->pool != RBP_POOL_TEMP ||
		!rbp_remote_get_lease(h->pool, &cred, &deadline) ||
		deadline <= rbp_now_ns())
	{
		rbp_remote_clear_lease(h->pool);
		return;
	}

	donors = rbp_remote_donor_info(&ndonors);
	endpoints = palloc0(sizeof(RbpEndpoint) * (ndonors + 1));
	for (int i = 0; i < ndonors; i++)
		endpoints[i] = donors[i].endpoint;
	infos = rbp_remote_lease_info(&ninfos);
	regions = palloc0(sizeof(RbpLeaseRegion) * (ninfos + 1));
	for (int i = 0; i < ninfos; i++)
	{
		if (strcmp(infos[i].lease, cred.lease) != 0)
			continue;
		strlcpy(regions[nregions].donor, infos[i].donor,
				sizeof(regions[nregions].donor));
		regions[nregions].region = infos[i].region;
		regions[nregions].bytes = infos[i].bytes;
		nregions++;
	}
	h->lease = rbp_lease_known(&cred, rbp_guc_lease_ttl, endpoints, ndonors,
							   regions, nregions);
	explicit_bzero(cred.secret, sizeof(cred.secret));
	if (h->lease == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	h->in_use = true;
	h->deadline = deadline;
	h->reported_bytes = h->lease->bytes;
	/* its regions may be draining, for reasons that are not known here */
	h->drained = h->drained_idly = true;
	h->step_due = 0;
	ereport(LOG,
			(errmsg("remote_bp: going on with the lease%s, %llu MB in %d regions",
					h->suffix, (unsigned long long) (h->lease->bytes >> 20),
					nregions)));
}

/*
 * The broker of the lease that is gone on with, as the worker before this one
 * asked it.  Whether what the settings say works is not known; false if only that
 * is to be had.
 */
static bool
take_over_broker(void)
{
	RbpBrokerAccess access;
	bool		known = rbp_remote_get_broker(RBP_POOL_TEMP, &access);

	if (known)
		rbp_lease_turn_to(rbp_lease_broker_known(&access));
	explicit_bzero(&access, sizeof(access));
	return known;
}

/* Does the whole server stop?  The postmaster notes it where pg_ctl looks. */
static bool
server_stops(void)
{
	char		buf[1024];
	char	   *line = buf;
	int			fd = open("postmaster.pid", O_RDONLY | O_CLOEXEC | PG_BINARY);
	ssize_t		n = fd < 0 ? -1 : read(fd, buf, sizeof(buf) - 1);

	if (fd >= 0)
		close(fd);
	if (n < 0)
		return true;
	buf[n] = '\0';
	for (int i = 1; line != NULL && i < LOCK_FILE_LINE_PM_STATUS; i++)
	{
		line = strchr(line, '\n');
		if (line != NULL)
			line++;
	}
	return line == NULL ||
		strncmp(line, PM_STATUS_STOPPING, strlen(PM_STATUS_STOPPING)) == 0;
}

static void
forget_latch(int code, Datum arg)
{
	rbp_remote_set_lease_latch(NULL);
}

void
rbp_lease_main(Datum arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	before_shmem_exit(forget_latch, (Datum) 0);
	rbp_remote_set_lease_latch(MyLatch);
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
		rbp_lease_take_settings();
	for (int i = 0; i < RBP_POOLS; i++)
		take_over(&rbp_lease_holds[i]);

	while (!ShutdownRequestPending)
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(round_context);

		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			for (int i = 0; i < RBP_POOLS; i++)
			{
				rbp_lease_holds[i].due = 0;
				rbp_lease_holds[i].step_due = 0;
			}
		}
		if (rbp_lease_settings_changed())
			rbp_lease_take_settings();
		if (rbp_lease_lookups_ended())
		{
			/* a broker can be asked, or the next answer's donors be reached */
			for (int i = 0; i < RBP_POOLS; i++)
				rbp_lease_holds[i].due = 0;
			rbp_lease_next_soon();
		}

		for (int i = 0; i < RBP_POOLS && !ShutdownRequestPending; i++)
			tend(&rbp_lease_holds[i]);
		if (rbp_now_ns() >= rbp_lease_next_due() && !ShutdownRequestPending)
			rbp_lease_try_next();
		if (!ShutdownRequestPending)
			wait_for_work();
	}

	for (int i = 0; i < RBP_POOLS; i++)
	{
		if (rbp_lease_holds[i].pool != RBP_POOL_TEMP || server_stops())
			rbp_lease_give_back(&rbp_lease_holds[i], false);
	}

	/* Exit code 1: be started again, unless the server is shutting down. */
	proc_exit(1);
}
