/*-------------------------------------------------------------------------
 *
 * lease_internal.h
 *	  What the lease worker's files know of each other.
 *
 * worker.c		the loop, and taking over from the worker before
 * requests.c	what is said to the broker
 * apply.c		using what it answers, and giving up what is to go
 * turn.c		which broker it is
 *
 * All of it belongs to one process, the lease worker: no locks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LEASE_INTERNAL_H
#define RBP_LEASE_INTERNAL_H

#include "postgres.h"

#include "lease/broker.h"
#include "lease/plan.h"
#include "remote/remote.h"
#include "transport/transport.h"

#define NS_PER_MS			INT64CONST(1000000)
#define END_TIMEOUT_MS	1000L

/* Nothing to do until the settings change */
#define NEVER_NS			(PG_INT64_MAX / 2)

/*
 * Kinds of failure, each logged once until the broker is right again: the
 * first three for all leases together, the others for each.
 */
#define FAILED_TOKEN		0x01
#define FAILED_NETWORK		0x02
#define FAILED_AUTH			0x04
#define FAILED_STATUS		0x08
#define FAILED_ANSWER		0x10
#define FAILED_BROKER		(FAILED_TOKEN | FAILED_NETWORK | FAILED_AUTH)

typedef enum RbpLeaseOutcome
{
	RBP_LEASE_OK,				/* the broker answered, all is as it says */
	RBP_LEASE_AGAIN,			/* and there is more to ask it at once */
	RBP_LEASE_FAILED,			/* no usable answer */
	RBP_LEASE_INTERRUPTED		/* the worker is to end */
} RbpLeaseOutcome;

/* One lease: what is held of it, and what is to be done. */
typedef struct RbpHeldLease
{
	RbpPool		pool;
	const char *purpose;		/* for the broker */
	const char *suffix;			/* for messages */
	const char *max_setting;

	/*
	 * The broker that the lease was taken from.  Another than the settings'
	 * one only while the lease is being closed.
	 */
	RbpBroker  *broker;

	/*
	 * The lease that the broker knows of, less what was given up since; NULL
	 * if there is none.  It may have passed its deadline: in_use tells.
	 */
	RbpLease   *lease;
	bool		in_use;			/* its regions are in shared memory */
	bool		recheck;		/* a backend found it to be otherwise */
	int64		deadline;		/* rbp_now_ns() time */

	/* Retired, and not yet confirmed by the broker */
	RbpLeaseRegion *released;
	int			nreleased;

	/*
	 * What of the wanted size can be used at most, as found out by being
	 * granted more than finds room; in force until a size setting changes.
	 */
	uint64		usable_bytes;
	int64		usable_until;	/* of temporary data; rbp_now_ns() time */
	uint64		usable_for_setting;

	/* When things are due, in rbp_now_ns() time */
	int64		request_due;	/* to talk to the broker */
	int64		last_request;	/* that was last done */
	int64		retire_due;		/* to give up more */
	int64		close_deadline; /* the lease is to end then; 0: it is not */

	bool		maintenance_pending;	/* there is more to be done at once */
	int			draining;		/* regions that are being emptied */
	uint32		first_demand;	/* of the demands that they are emptied for */
	bool		drained;		/* some were, and have not been let go since */
	bool		drained_unneeded;	/* some perhaps for what is wanted no more */
	int			failures;		/* in a row */
	int			failures_logged;	/* FAILED_* of this lease alone */
	uint64		reported_bytes; /* size in the last message */
	bool		namesake_logged;	/* others' leases have our client name */
} RbpHeldLease;

/* The two leases, by pool. */
extern RbpHeldLease rbp_leases[RBP_POOLS];

/* The name that this server goes by at brokers. */
extern char rbp_lease_client[RBP_DONOR_ID_LEN];

/* The broker that leases are taken from. */
extern RbpBroker *rbp_lease_current_broker;

/*
 * ---- requests.c -------------------------------------------------------------
 */

/* Everything there is to say to the broker now; sets when to talk to it next. */
extern void rbp_lease_send_requests(RbpHeldLease *h);

/*
 * End the lease, if there is one, and tell the broker that it was taken from, with one
 * bounded request.
 */
extern void rbp_lease_end(RbpHeldLease *h, bool stop_on_shutdown);

/*
 * ---- apply.c ----------------------------------------------------------------
 */

/* How much memory of the lease's broker the settings ask for, in bytes. */
extern uint64 rbp_lease_wanted(RbpHeldLease *h);

/*
 * Make what the broker described the lease in use.  Takes over fresh.  sent_ns: when
 * it was asked.  RBP_LEASE_AGAIN if there is something to tell the broker at once.
 */
extern RbpLeaseOutcome rbp_lease_adopt(RbpHeldLease *h, RbpLease *fresh, int64 sent_ns);

/*
 * Give up what a donor asks for, and what is above the wanted size: as much as can
 * be until then.  How many regions were; they are to be told to the broker.
 */
extern int	rbp_lease_retire_regions(RbpHeldLease *h, int64 until);

/* Give regions of the lease that found no place back. */
extern void rbp_lease_release_unused(RbpHeldLease *h);

/*
 * Regions go out of use, all but those of the fresh lease, if there is one: log it if
 * temporary data goes with them.
 */
extern void rbp_lease_log_losses(RbpHeldLease *h, const RbpLease *fresh);

/* Stop using all of the lease; and forget it, too. */
extern void rbp_lease_stop_use(RbpHeldLease *h);
extern void rbp_lease_drop(RbpHeldLease *h);

/*
 * ---- turn.c -----------------------------------------------------------------
 */

/* Do the settings name another broker, or another token file? */
extern bool rbp_lease_settings_changed(void);

/* Take them over: another broker is tried first, if there is something to lose. */
extern void rbp_lease_apply_settings(void);

/* Take leases from this broker from now on; it belongs to turn.c then. */
extern void rbp_lease_switch_broker(RbpBroker *fresh);

/* This lease is held, or asked for, at the current broker from now on. */
extern void rbp_lease_use_current_broker(RbpHeldLease *h);

/* Try the broker that the settings name, and turn to it if it works. */
extern void rbp_lease_try_next_broker(void);

/* When that is due, in rbp_now_ns() time; and let it be due now. */
extern int64 rbp_lease_next_broker_due(void);
extern void rbp_lease_next_broker_now(void);

#endif							/* RBP_LEASE_INTERNAL_H */
