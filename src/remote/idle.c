/*-------------------------------------------------------------------------
 *
 * idle.c
 *	  Connections that are not needed any more: found, and closed.
 *
 * An idle backend runs no code of ours.  So each connected process records in
 * shared memory, in its RbpProcConns, when it last used each connection: one
 * store of a time that is at hand.  The pusher checks these times regularly.
 * It asks a process to close connections if one has been idle for too long or
 * is above a bound that was lowered, and asks all processes when connections
 * have become stale: it sets RbpProcConns.asked and sends the signal by which
 * the server tells a backend that it lags behind with invalidation messages.
 * An idle backend responds with an empty transaction; a backend in a
 * transaction goes on with it.  A callback at the end of each transaction sees
 * "asked" and closes what is not needed.  (A timer in each process would need
 * less shared memory, but the server disables all timers of a process after an
 * error, and an idle process would not get to enable its timer again.)  An I/O
 * worker ends no transactions; it closes connections before it waits for work
 * (remote_bp.c).  Other processes without transactions, such as a standby's
 * startup process, close connections that are stale or above the bound when
 * they would use them next.
 *
 * Descriptors.  The server keeps files open up to a limit, and must know which
 * descriptors are not its own (ReserveExternalFD()).  Telling it may close
 * files, so that is done between file calls only: at the end of a transaction,
 * and by workers between their rounds.  Until then the few descriptors that
 * the server holds in reserve cover new connections.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/fd.h"

#include "base/compat.h"
#include "base/guc.h"
#include "common/clock.h"
#include "remote/remote.h"
#include "remote/remote_internal.h"

/* A device's: of commands, and of events */
#define DEVICE_DESCRIPTORS	2

#define my_conns	rbp_remote_my_conns

static int	descriptors = 0;	/* that the server knows of */

/* Close connections that are idle for too long, stale, or above the bound. */
static void
close_unneeded(void)
{
	int64		idle_ns = (int64) pg_atomic_read_u64(&rbp_remote_shared->idle_ns);
	int64		now = rbp_now_ns();

	for (int ci = 0; ci < RBP_MAX_CONNS; ci++)
	{
		RbpLocalConn *c = &rbp_remote_conns[ci];
		bool		idle;

		/* with requests in flight, it is checked again later */
		if (c->state < CONN_CONNECTING || !dlist_is_empty(&c->flights))
			continue;
		idle = idle_ns > 0 &&
			now - (int64) pg_atomic_read_u64(&my_conns->used_at[ci]) > idle_ns;
		if (!idle && !is_stale(c) && !rbp_remote_conn_yield_slot(c))
			continue;
		rbp_remote_conn_abandon(c);
		if (idle)
			c->lost = 0;		/* it has to be worth it once more */
	}
}

/*
 * Tell the server how many descriptors connections hold: one each, and those
 * of a device, which stays open.  Not within a file call.
 */
static void
account_descriptors(void)
{
	int			n = rbp_remote_has_device ? DEVICE_DESCRIPTORS : 0;

	for (int ci = 0; ci < RBP_MAX_CONNS; ci++)
		n += rbp_remote_conns[ci].state >= CONN_CONNECTING;
	for (; descriptors < n; descriptors++)
		ReserveExternalFD();
	for (; descriptors > n; descriptors--)
		ReleaseExternalFD();
}

pg_attribute_hot void
rbp_remote_transaction_ends(XactEvent event)
{
	if (my_conns == NULL)
		return;

	/*
	 * Before looking at the connections, with a full barrier: the pusher asks
	 * again for what becomes unneeded after that look.
	 */
	if (unlikely(pg_atomic_read_u32(&my_conns->asked) != 0) &&
		pg_atomic_exchange_u32(&my_conns->asked, 0) != 0)
		close_unneeded();
	account_descriptors();
}

/*
 * Ask processes to close connections; called by the pusher.  all: ask every
 * connected process, not only those with something to close.
 */
static void
ask_processes(int64 now, bool all)
{
	int64		idle_ns = rbp_guc_idle_timeout_ns();
	bool		over[RBP_MAX_DONORS];
	int			n = rbp_compat_max_procs();

	for (int i = 0; i < RBP_MAX_DONORS; i++)
		over[i] = pg_atomic_read_u32(&rbp_remote_shared->donors[i].conn_slots) >
			(uint32) rbp_guc_max_connections;
	for (int p = 0; p < n; p++)
	{
		RbpProcConns *proc = &rbp_remote_proc_conns[p];
		uint32		pid = pg_atomic_read_u32(&proc->pid);
		bool		ask = false;

		/*
		 * one that was asked before will check at the end of its transaction
		 */
		if (pid == 0 || pg_atomic_read_u32(&proc->asked) != 0)
			continue;
		for (int ci = 0; ci < RBP_MAX_CONNS && !ask; ci++)
		{
			int64		used_at = (int64) pg_atomic_read_u64(&proc->used_at[ci]);

			ask = used_at != 0 &&
				(all || over[rbp_remote_conns[ci].donor] ||
				 (idle_ns > 0 && now - used_at > idle_ns));
		}
		if (!ask)
			continue;
		(void) pg_atomic_exchange_u32(&proc->asked, 1);
		rbp_compat_signal_catchup((pid_t) pid);
	}
}

int64
rbp_remote_maintain_connections(void)
{
	static int64 next_check = 0;
	static uint32 seen_stale = 0;
	int64		now = rbp_now_ns();
	int64		idle_ns = rbp_guc_idle_timeout_ns();
	uint32		stale = pg_atomic_read_u32(&rbp_remote_shared->stale);
	int64		next = rbp_remote_watch_links(now);

	/* The pusher publishes its settings for all processes. */
	if (pg_atomic_read_u32(&rbp_remote_shared->max_slots) != (uint32) rbp_guc_max_connections ||
		pg_atomic_read_u64(&rbp_remote_shared->idle_ns) != (uint64) idle_ns)
	{
		pg_atomic_write_u32(&rbp_remote_shared->max_slots,
							(uint32) rbp_guc_max_connections);
		pg_atomic_write_u64(&rbp_remote_shared->idle_ns, (uint64) idle_ns);
		next_check = now;
	}
	if (now >= next_check || stale != seen_stale)
	{
		ask_processes(now, stale != seen_stale);
		for (int ci = 0; stale != seen_stale && ci < RBP_MAX_CONNS; ci++)
			if (is_stale(&rbp_remote_conns[ci]))
				rbp_remote_conn_close(&rbp_remote_conns[ci]);
		seen_stale = stale;
		next_check = now + (idle_ns > 0 ? Min(RBP_CHECK_NS, idle_ns / 2) : RBP_CHECK_NS);
	}
	account_descriptors();
	return Min(next, next_check - now);
}
