/*-------------------------------------------------------------------------
 *
 * remote.h
 *	  Remote slots as the tier sees them: which region of which donor
 *	  carries a slot, connections to donors, and donors' health.
 *
 * Shared state (RbpRemoteShared, remote_internal.h) holds the leases, the table
 * of donors, the table of regions and the map from extents to regions.  The
 * lease worker alone changes it, through the functions under "for the lease
 * worker", each of which takes remote_lock exclusively for a moment; backends
 * read the extent map without a lock and the rest under remote_lock shared.
 * Lock order: remote_lock before partition locks; never while doing I/O.
 *
 * Connections are per process and lazy; their number is bounded, and those
 * that are idle are closed.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_REMOTE_H
#define RBP_REMOTE_H

#include "postgres.h"

#include "miscadmin.h"

#include "base/stats.h"
#include "common/status.h"
#include "common/token.h"
#include "transport/transport.h"

#define RBP_MAX_DONORS		64
#define RBP_ERROR_LEN		320 /* of an error's text for the views */

/*
 * Two pools of extents, each with a lease of its own.  The buffer tier's
 * extents, and slots, have the numbers from 0 on, the temp quota's follow.
 */
typedef enum RbpPool
{
	RBP_POOL_BUFFER,
	RBP_POOL_TEMP
} RbpPool;

#define RBP_POOLS			2

/*
 * What a pool's owner is told about its extents, and asked.  All but evacuate
 * and forget are called in the lease worker, most of them under remote_lock,
 * and neither wait nor take longer when there are more pages.
 */
typedef struct RbpRemotePoolOps
{
	/* NULL, or called before any region of a lease comes into use. */
	void		(*before_use) (void);

	/* May a region be given this extent? */
	bool		(*absent) (uint32 extent);
	/* The region, a number below RBP_MAX_REGIONS, is the extent's account */
	void		(*online) (uint32 extent, uint32 region);
	/* It is gone, or will be when this has returned: nobody reads it again */
	void		(*offline) (uint32 extent);

	/*
	 * What of the region's extents is in use, in pages, and how warm it is: both
	 * a reading.  Content of extents that are offline counts until they are
	 * absent again.
	 */
	uint64		(*used) (uint32 region);
	uint64		(*heat) (uint32 region);

	/* NULL: content is not moved.  drain: put nothing more into it. */
	void		(*drain) (uint32 extent);
	void		(*undrain) (uint32 extent);

	/* Move the content, until the deadline; returns how many pages are left. */
	uint32		(*evacuate) (uint32 extent, int64 deadline_ns);

	/* Pages in use, exactly, of an extent that drains. */
	uint64		(*extent_used) (uint32 extent);

	/* Content is elsewhere, too: what cannot be moved in time is dropped. */
	bool		has_copies;

	/*
	 * NULL if it is not up to the pool when extents that are offline are absent.
	 * Else it needs but further work: do a step of it, false if there is nothing
	 * to do.
	 */
	bool		(*forget) (void);
} RbpRemotePoolOps;

/* max_extents: of each pool. */
extern Size rbp_remote_shmem_size(const uint32 max_extents[RBP_POOLS]);

/*
 * max_extents, ops: of each pool; max_extents is the same as for the size, ops is kept by
 * reference.
 */
extern void rbp_remote_shmem_init(void *mem,
								  const uint32 max_extents[RBP_POOLS],
								  const RbpRemotePoolOps *const ops[RBP_POOLS]);

/*
 * Whom to wake when one of the duties below (probe, report, mind_connections) is to
 * be done at once; in _PG_init.
 */
extern void rbp_remote_set_wake(void (*wake) (void));

/*
 * ---- for the tier and the pusher ------------------------------------------
 */

/*
 * Is the query to end, cancelled or with its process?  Then waits for donors
 * end early, as at their deadlines, but are not held against the donor.  What
 * is nowhere else (RBP_REMOTE_PATIENT) is waited for all the same where that
 * cannot be raised.
 */
static inline bool
rbp_remote_interrupted(void)
{
	return unlikely(InterruptPending) && (QueryCancelPending || ProcDiePending);
}

/*
 * Would CHECK_FOR_INTERRUPTS() raise that here?  No LWLock is held then, which
 * would hold interrupts off.
 */
static inline bool
rbp_remote_can_raise(void)
{
	return InterruptHoldoffCount == 0 && CritSectionCount == 0 &&
		(ProcDiePending || QueryCancelHoldoffCount == 0);
}

typedef struct RbpRemoteIo
{
	uint32		slot;
	void	   *buf;			/* one page */
	RbpStatus	status;			/* out */
} RbpRemoteIo;

/*
 * This process is a worker: its connections are made at once, and are not
 * counted against remote_bp.max_connections.
 */
extern void rbp_remote_set_worker(void);

/*
 * It is the pusher, which writes pages from that memory.  Devices are told
 * about it, and its connections stay.
 */
extern void rbp_remote_set_pusher(void *base, Size len);

/*
 * Connections that this process has begun so far: if there is one more than
 * before a read, the read took as long as connecting.
 */
extern uint32 rbp_remote_connects(void);

/*
 * Is there a lease with memory, its deadline not passed?  Reads shared
 * memory without a lock; now is rbp_now_ns().
 */
extern bool rbp_remote_usable(RbpPool pool, int64 now);

/*
 * Read or write n pages (n <= RBP_MAX_BATCH), waiting at most until
 * deadline_ns; start_ns is when the caller began; each gets its status.
 * Donors that are down, slots whose extent is not mapped, and connections
 * that there may not be or that are not made by the deadline fail at once or
 * by then.  Updates donors' health and counters.  Never raises.
 */
extern void rbp_remote_read(RbpRemoteIo *ios, int n, int64 start_ns,
							int64 deadline_ns);
extern void rbp_remote_write(RbpRemoteIo *ios, int n, int64 start_ns,
							 int64 deadline_ns);

/*
 * The same in two steps, so that the caller goes on while pages are on their
 * way; several batches can be.  begin() connects if need be, waiting for that
 * until deadline_ns at most, and posts; neighbouring pages with neighbouring
 * slots become one transfer.  ios and their buffers stay in place until
 * end(), which waits until deadline_ns at most (for writes to a donor for whom
 * other batches or donors have left no time, io_timeout), gives each io its
 * status, does the accounts and frees the batch.  After end() nothing touches the buffers.
 * NULL from begin() if there is nothing to wait for: each io has its status
 * then.
 *
 * Of a write, RBP_CANCELED and RBP_DENIED tell that nothing of it arrives any
 * more.  After another failure it may, also if begin() gave NULL: a connection
 * can break while it is posted.
 *
 * Flags: RBP_REMOTE_PATIENT: there is no other copy, so donors that are
 * down or suspect, and those that were just refused, are tried too, and
 * neither thresholds nor the bound on connections apply.
 *
 * A batch lives through the closing of its connection (RBP_CONNLOST), and end()
 * must be called for each, at the latest before the process exits.
 */
#define RBP_REMOTE_PATIENT	0x01

typedef struct RbpRemoteBatch RbpRemoteBatch;

extern RbpRemoteBatch *rbp_remote_begin(RbpRemoteIo *ios, int n, bool write,
										int flags, int64 start_ns,
										int64 deadline_ns);
extern void rbp_remote_end(RbpRemoteBatch *batch, int64 deadline_ns);

/*
 * The donor that carries the slot, as a small number; -1 if none does.  A
 * cheap look, without a lock.
 */
extern int	rbp_remote_slot_donor(uint32 slot);

/*
 * By which transport the slot's donor was last reached, as a number from 0 to
 * RBP_TRANSPORTS - 1.  A cheap look, without a lock.
 */
#define RBP_TRANSPORTS		3

extern int	rbp_remote_slot_transport(uint32 slot);

/*
 * For the books of the slot's donor: so many reads of its pages went to the disk,
 * because it is slower; or reads from it have saved so many ns.
 */
extern void rbp_remote_note_bypass(uint32 slot, int bypassed, int64 saved_ns);

/* Would a write to the slot be tried now? A cheap look, without a lock. */
extern bool rbp_remote_slot_writable(uint32 slot);

/*
 * Will the slot's memory be there, as far as can be told?  For content that the
 * caller still has elsewhere: it says no to memory that is about to be given
 * back as well, provided that until then the pool's owner did not count the
 * slot among those that are used (a full barrier lies between).
 */
extern bool rbp_remote_slot_stays(uint32 slot);

/*
 * Has this process a connection to the slot's donor over which reads and
 * writes are done within the call, as copies (RbpTransportOps.local)?
 */
extern bool rbp_remote_slot_local(uint32 slot);

/*
 * Would a read of the slot be tried now: its donor is not down, and this
 * process has a connection?  A cheap look.
 */
extern bool rbp_remote_slot_readable(uint32 slot);

/*
 * For messages: the donor of that number, if it is not too long ago that it was
 * in the lease.
 */
extern void rbp_remote_donor_name(int donor, char *buf, Size len);

/* The same, its address: "host:port". */
#define RBP_ADDRESS_LEN		(RBP_HOST_LEN + 16)

extern void rbp_remote_donor_address(int donor, char *buf, Size len);

/* For messages: "donor/region+offset" of a slot, into buf. */
extern void rbp_remote_slot_name(uint32 slot, char *buf, Size len);

/*
 * Duties of the process that works in the background: each is called between
 * its batches, waits for nothing unless said otherwise, and returns ns until it is
 * to be called again, or -1 if that is not before it is woken.
 *
 * mind_connections: see that connections nobody needs are closed: of all processes,
 * those that are idle, stale, or above the bound.  Passes the settings on to all.
 *
 * report: tell the log about donors that are down or used again, or that not all
 * can connect to.  Before probe, after which a donor may be used again.
 *
 * probe: probe donors that are suspect, or down and whose time has come.  Waits at most
 * io_timeout for each.
 */
extern int64 rbp_remote_maintain_connections(void);
extern int64 rbp_remote_report(void);
extern int64 rbp_remote_probe(void);

/*
 * ---- for the lease worker -------------------------------------------------
 */

typedef struct RbpRegionGrant
{
	char		donor[RBP_DONOR_ID_LEN];
	uint32		region;			/* the donor's number for it */
	uint64		bytes;			/* a multiple of 1 MiB */
} RbpRegionGrant;

/* A lease, as the broker has granted it. */
typedef struct RbpLeaseTerms
{
	const RbpCredentials *cred;
	int64		deadline_ns;	/* monotonic: until then it may be used */
	const RbpEndpoint *donors;
	int			ndonors;
	const RbpRegionGrant *regions;
	int			nregions;
} RbpLeaseTerms;

/*
 * The pool's lease, donors and regions are these.  Regions that are not in the list
 * are taken out of use before the return; new ones come into use, many of them
 * not with all their memory at once: see rbp_remote_run_deferred().  A lease with a new
 * id or secret takes all old regions out of use first.  Regions past the
 * directory's capacity, or of donors past RBP_MAX_DONORS, are not used; their
 * number is returned.
 */
extern int	rbp_remote_set_lease(RbpPool pool, const RbpLeaseTerms *terms);

/*
 * The lease that is in use, also past its deadline; false if there is none.
 * So a lease worker that was started anew can go on with it.
 */
extern bool rbp_remote_get_lease(RbpPool pool, RbpCredentials *cred,
								 int64 *deadline_ns);

/*
 * How the broker is asked whose lease it is: so that a lease worker that was
 * started anew need not trust the settings.  Set before the lease is, forgotten
 * with it; false if it is not known.  All zero behind the texts.
 */
typedef struct RbpBrokerAccess
{
	char		url[MAXPGPATH];
	char		token_file[MAXPGPATH];
	char		token[RBP_TOKEN_LEN];	/* that was accepted last, "" for none */
} RbpBrokerAccess;

extern void rbp_remote_set_broker(RbpPool pool, const RbpBrokerAccess *access);
extern bool rbp_remote_get_broker(RbpPool pool, RbpBrokerAccess *access);

/* The lease is gone: stop using everything now. */
extern void rbp_remote_clear_lease(RbpPool pool);

/*
 * Renewed with nothing else changed.  Returns how many regions found no room
 * after all, and are out of use.
 */
extern int	rbp_remote_extend_lease(RbpPool pool, int64 deadline_ns);

/*
 * Work on a pool's memory that was put off, so that no step of the lease takes
 * long: memory that went is forgotten, memory that came is brought into use.
 * Goes on until until_ns; true if there is more to do.  *unused: regions that
 * found no room after all, and are out of use.
 */
extern bool rbp_remote_run_deferred(RbpPool pool, int64 until_ns, int *unused);

/* Regions that were to be taken out of use. */
typedef struct RbpRetired
{
	int			given;			/* are, and can be given back to the broker */
	int			draining;		/* are not empty yet */
} RbpRetired;

/*
 * The coldest count regions (of the named donor, or of any if donor is
 * NULL) taken out of use, to be given back to the broker: in given, which has room for
 * count.  Of any donor: if content has copies, such that the donors' shares stay in
 * proportion.
 *
 * Content is moved first (RbpRemotePoolOps.evacuate), for until_ns at most;
 * regions that are not empty by then are not among the given ones and go on
 * draining: call it again.
 * If content has copies, a region is given in any case when its content was
 * gone through once, its donor is down, or move_ns have passed.
 */
extern RbpRetired rbp_remote_retire_coldest(RbpPool pool, const char *donor,
											int count, RbpRegionGrant *given,
											int64 until_ns, int64 move_ns);

/*
 * Is the broker to be asked at once, since a donor has denied access or broken a
 * connection?  Clears the mark.
 */
extern bool rbp_remote_take_recheck(RbpPool pool);

/*
 * Why the broker gave no good answer about the pool's lease, for the view; NULL
 * if it did.  Takes remote_lock.
 */
extern void rbp_remote_set_broker_error(RbpPool pool, const char *error);

/* The lease worker's latch (NULL when it ends), set when the lease is to be rechecked. */
struct Latch;
extern void rbp_remote_set_lease_latch(struct Latch *latch);

/*
 * ---- for the views, and the lease worker --------------------------------------------------------
 */

/* What is counted for each donor. */
typedef enum RbpDonorCount
{
	RBP_DONOR_READS,
	RBP_DONOR_WRITES,
	RBP_DONOR_FAILURES,
	RBP_DONOR_TIMEOUTS,
	RBP_DONOR_BYPASSED,
	RBP_DONOR_SAVED_NS,			/* an int64 */
	RBP_DONOR_COUNTS
} RbpDonorCount;

typedef struct RbpDonorInfo
{
	RbpEndpoint endpoint;
	const char *transport;		/* that is in use, or "none" */
	const char *state;			/* "ok", "down", "unresolved", "gone" */
	TimestampTz state_since;
	char		last_error[RBP_ERROR_LEN];	/* "" if there was none */
	TimestampTz last_error_at;
	int			connections;	/* of backends */
	uint64		leased_bytes;
	uint64		used_bytes;
	uint64		counts[RBP_DONOR_COUNTS];
	RbpHistogram read_latency;
} RbpDonorInfo;

typedef struct RbpLeaseInfo
{
	char		lease[RBP_LEASE_ID_LEN];
	const char *purpose;		/* "buffer" or "temp" */
	char		donor[RBP_DONOR_ID_LEN];
	uint32		region;
	uint64		bytes;
	uint64		used_bytes;
	uint64		heat;
	bool		denied;			/* the donor has refused its use */
	int64		remaining_ns;	/* until the deadline, negative if past */
} RbpLeaseInfo;

/* Each returns a palloc'd array and its length. */
extern RbpDonorInfo *rbp_remote_donor_info(int *n);
extern RbpLeaseInfo *rbp_remote_lease_info(int *n);

/*
 * Can the pool's memory not be used now, since there is no lease with memory or
 * all its donors are down?  Then the reason, as text, into buf.  Takes
 * remote_lock.
 */
extern bool rbp_remote_unusable_reason(RbpPool pool, char *buf, Size len);

/* Donor counters to zero. */
extern void rbp_remote_stats_reset(void);

#endif							/* RBP_REMOTE_H */
