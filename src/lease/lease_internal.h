/*-------------------------------------------------------------------------
 *
 * lease_internal.h
 *	  Declarations shared by the lease worker's files.
 *
 * worker.c		the main loop, and taking over from an earlier worker
 * requests.c	requests to the broker
 * apply.c		using the broker's answers, and retiring regions
 * switch.c		which broker to use
 *
 * All of it belongs to one process, the lease worker: no locks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LEASE_INTERNAL_H
#define RBP_LEASE_INTERNAL_H

#include "postgres.h"

#include "common/clock.h"
#include "lease/broker.h"
#include "lease/plan.h"
#include "remote/remote.h"
#include "transport/transport.h"

#define END_TIMEOUT_MS		1000L

/* No work until the settings change */
#define NEVER_NS			(PG_INT64_MAX / 2)

typedef enum RbpLeaseOutcome
{
	RBP_LEASE_OK,				/* the broker's answer is in use */
	RBP_LEASE_AGAIN,			/* there is more to tell the broker at once */
	RBP_LEASE_FAILED,			/* no usable answer */
	RBP_LEASE_UNSENT			/* the broker's name is being looked up, or
								 * the worker has been asked to end */
} RbpLeaseOutcome;

/* A lease, and what is to be done about it. */
typedef struct RbpHeldLease
{
	RbpPool		pool;
	const char *purpose;		/* in requests */
	const char *suffix;			/* for messages, after "the lease" and the
								 * like: "", or which one */
	const char *max_setting;

	/*
	 * The broker that granted the lease.  Differs from the settings only
	 * while the lease is being closed.
	 */
	RbpBroker  *broker;

	/*
	 * The lease as the broker knows it, less regions released since; NULL if
	 * there is none.  It may be past its deadline: see in_use.
	 */
	RbpLease   *lease;
	bool		in_use;			/* its regions are in shared memory */
	bool		lapsed;			/* nobody uses them, since its deadline has
								 * passed, and that is known */
	bool		changes_secret; /* the next renewal replaces the secret: */
	unsigned char new_secret[RBP_SECRET_LEN];
	bool		recheck;		/* a backend found that it may be invalid */
	int64		deadline;		/* rbp_now_ns() time */

	/* Retired, but not yet confirmed by the broker */
	RbpRegionGrant *released;
	int			nreleased;

	/*
	 * Limit on the size to request, set when more was granted than fits, for
	 * a while (rbp_now_ns() time), and as long as the size setting is the one
	 * that it was set for.
	 */
	uint64		request_max;
	int64		request_max_until;
	uint64		request_max_setting;

	/* Next times of actions, in rbp_now_ns() time */
	int64		request_due;	/* next request to the broker */
	int64		last_request;	/* when the last one ended */
	int64		retire_due;		/* next attempt to retire regions */
	int64		close_deadline; /* end the lease by then; 0: keep it */

	bool		maintenance_pending;	/* call rbp_remote_run_deferred()
										 * again at once */
	int			draining;		/* regions being emptied, or to be */
	int64		replace_until;	/* regions that donors ask for wait until then
								 * to be replaced; 0: none is asked for */
	int			given_back;		/* regions, of one donor, not logged yet */
	char		given_to[RBP_DONOR_ID_LEN];
	uint32		first_demand;	/* which demand to serve first; changes, so
								 * that they take turns */
	bool		has_drained;	/* regions have begun to drain since draining
								 * was last cancelled for all */
	bool		drain_obsolete; /* the demand that regions drain for may have
								 * ended */
	int			failures;		/* consecutive */
	int			failures_logged;	/* FAILED_* of this lease alone */
	uint64		reported_bytes; /* size in the last message */
	bool		namesake_logged;	/* it was logged that others use our
									 * client name */
} RbpHeldLease;

/* The leases, by pool. */
extern RbpHeldLease rbp_leases[RBP_POOLS];

/* This server's name for brokers. */
extern char rbp_lease_client[RBP_DONOR_ID_LEN];

/* The broker that leases are requested from. */
extern RbpBroker *rbp_lease_current_broker;

/*
 * ---- requests.c --------------------------------------------------------
 */

/* Send the requests that are due to the broker, and schedule the next one. */
extern void rbp_lease_send_requests(RbpHeldLease *h);

/* Leave the lease to the next start of the server, lapsed. */
extern void rbp_lease_leave(RbpHeldLease *h);

/*
 * End the lease, if there is one, and tell its broker, with one request of
 * limited duration.
 */
extern void rbp_lease_end(RbpHeldLease *h, bool stop_on_shutdown);

/* For how long the broker keeps the lease beyond its deadline, in ms; 0: it does not. */
extern int64 rbp_lease_keep_ms(const RbpHeldLease *h);

/*
 * ---- apply.c -----------------------------------------------------------
 */

/* How many bytes to request from the lease's broker, by the settings. */
extern uint64 rbp_lease_wanted(RbpHeldLease *h);

/* How many it can be while the server runs. */
extern uint64 rbp_lease_wanted_max(const RbpHeldLease *h);

/*
 * The regions of the lease of that id that are in shared memory, sorted and
 * palloc'ed.
 */
extern RbpRegionGrant *rbp_lease_regions_in_use(const char *lease, int *n);

/*
 * Put the lease that the broker described to use.  Takes ownership of fresh.
 * sent_ns: when the request was sent.  RBP_LEASE_AGAIN if the broker has to be
 * told something at once.
 */
extern RbpLeaseOutcome rbp_lease_adopt(RbpHeldLease *h, RbpLease *fresh, int64 sent_ns);

/*
 * Retire what donors ask for and what exceeds the wanted size, as far as that
 * is possible before the time "until".  Returns the number of regions, which
 * the next renewal reports to the broker.
 */
extern int	rbp_lease_retire_regions(RbpHeldLease *h, int64 until);

/*
 * How many bytes the lease may have beyond what is wanted: replacements of
 * regions that donors ask for, granted before these are released.
 */
extern uint64 rbp_lease_ahead(const RbpHeldLease *h);

/* Release regions of the lease that did not fit. */
extern void rbp_lease_release_unused(RbpHeldLease *h);

/*
 * Called before regions go out of use, all but those of the lease fresh, if
 * there is one: log it if temporary data is lost with them.
 */
extern void rbp_lease_log_losses(RbpHeldLease *h, const RbpLease *fresh);

/* Take all of the lease out of use; the second function also forgets it. */
extern void rbp_lease_stop_use(RbpHeldLease *h);
extern void rbp_lease_drop(RbpHeldLease *h);

/*
 * ---- switch.c ----------------------------------------------------------
 */

/* Do the settings name another broker, or another token file? */
extern bool rbp_lease_settings_changed(void);

/* Apply them.  If a lease is in use, another broker is tried first. */
extern void rbp_lease_apply_settings(void);

/* Request leases from this broker from now on.  Takes ownership of it. */
extern void rbp_lease_switch_broker(RbpBroker *fresh);

/* Use the current broker for this lease from now on. */
extern void rbp_lease_use_current_broker(RbpHeldLease *h);

/* Try the broker that the settings name, and switch to it if it works. */
extern void rbp_lease_try_next_broker(void);

/* When that is due, in rbp_now_ns() time. */
extern int64 rbp_lease_next_broker_due(void);

/* Make it due now: its name has been looked up. */
extern void rbp_lease_hasten_next_broker(void);

/*
 * ---- worker.c, the library's entry point --------------------------------
 */
extern PGDLLEXPORT void rbp_lease_main(Datum arg);

#endif							/* RBP_LEASE_INTERNAL_H */
