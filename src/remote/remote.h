/*-------------------------------------------------------------------------
 *
 * remote.h
 *	  Reads and writes of remote slots, the leases that provide them, and
 *	  what is known of their donors.
 *
 * Shared state (RbpRemoteShared, remote_internal.h) holds the leases, the
 * table of donors, the table of regions and the map from extents to regions.
 * Only the lease worker changes it, through the functions under "for the lease
 * worker", each of which takes remote_lock exclusively for a moment.  Backends
 * read the extent map without a lock, and the rest under remote_lock shared.
 * Lock order: remote_lock before partition locks; it is never held during I/O.
 *
 * Each process has its own connections, made on first use.  Their number is
 * bounded, and idle ones are closed.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_REMOTE_H
#define RBP_REMOTE_H

#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"

#include "base/choice.h"
#include "base/compat.h"
#include "base/layout.h"
#include "base/stats.h"
#include "common/status.h"
#include "common/token.h"
#include "remote/extents.h"
#include "transport/transport.h"

#define RBP_MAX_DONORS		64
#define RBP_ERROR_LEN		320 /* of an error's text in the views */

/*
 * Two pools of extents, each with a lease of its own.  The buffer tier's
 * extents and slots are numbered from 0 on; the temp quota's follow.
 */
typedef enum RbpPool
{
	RBP_POOL_BUFFER,
	RBP_POOL_TEMP
} RbpPool;

#define RBP_POOLS			2

/* Does all content of the pool exist on a disk, too, so that it may be dropped? */
static inline bool
rbp_pool_has_copies(RbpPool pool)
{
	return pool == RBP_POOL_BUFFER;
}

/*
 * What remote asks of a pool's owner, which reads the states of the extents
 * (extents.h).  All except evacuate and drop are called in the lease worker, most
 * of them under remote_lock.  They must not wait, nor take longer when there are
 * more pages.
 */
typedef struct RbpRemotePoolOps
{
	/*
	 * Called when extents have come online; NULL if nothing is to be done
	 * then.
	 */
	void		(*came_online) (void);

	/*
	 * How warm the pages of the region's extents are, and how many are in
	 * use; both are approximate.  Pages of extents that are closed count
	 * until they are dropped.  region: a number below RBP_MAX_REGIONS.
	 */
	uint64		(*heat) (uint32 region, uint64 *used);

	/* The exact number of pages in use, of an extent that is draining */
	uint64		(*count) (uint32 extent);

	/*
	 * Move the pages elsewhere, until the deadline; returns how many are
	 * left. NULL if pages are not moved.
	 */
	uint32		(*evacuate) (uint32 extent, int64 deadline_ns);

	/*
	 * Forget what is known of the pages of these closed extents.  Returns of
	 * how many nothing is left; these come first then.
	 */
	uint32		(*drop) (uint32 *extents, uint32 n);
} RbpRemotePoolOps;

/* max_extents: for each pool. */
extern Size rbp_remote_shmem_size(const uint32 max_extents[RBP_POOLS]);

/*
 * max_extents, ops: for each pool.  max_extents is the same as for the size;
 * ops is kept by reference.  found: mem is as a crash has left it, see base/kept.h.
 */
extern void rbp_remote_shmem_open(void *mem, bool found,
								  const uint32 max_extents[RBP_POOLS],
								  const RbpRemotePoolOps *const ops[RBP_POOLS]);

/*
 * For an image: the tables of the buffer pool, which are copied as they are.  Those from
 * RBP_REMOTE_GROWS on have an element for each extent: they may be copied into longer
 * ones of zeros.
 */
#define RBP_REMOTE_PIECES	4
#define RBP_REMOTE_GROWS	1
extern void rbp_remote_pieces(RbpPiece pieces[RBP_REMOTE_PIECES]);

/*
 * Likewise what is needed to read the page of a slot, RBP_SEALED_BYTES, which are stored with the page,
 * and loaded before anybody reads it or writes to the slot.  NULL if no page of the pool
 * was ever sealed, or there is no such slot.
 */
#define RBP_SEALED_BYTES	12
extern void *rbp_remote_sealed_slot(uint32 slot);

/* For a lease from an image: nobody uses its memory before it is renewed. */
extern void rbp_remote_forget_deadline(RbpPool pool);

/* Is there a lease?  For the postmaster, when no other process is left. */
extern bool rbp_remote_has_lease(RbpPool pool);

/* The pool's extents, which stay where they are. */
extern const RbpExtents *rbp_remote_extents(RbpPool pool);

/*
 * ---- for the tier and the pusher -----------------------------------------
 */

/*
 * Has the query been cancelled, or its process been told to end?
 *
 * If so, waits for donors end early, as at their deadlines, without being
 * counted as the donor's failure.  Data that has no other copy
 * (RBP_REMOTE_PATIENT) is still waited for where the interrupt cannot be
 * raised.
 */
static inline bool
rbp_remote_interrupted(void)
{
	return unlikely(InterruptPending) && (QueryCancelPending || ProcDiePending);
}

/*
 * Would CHECK_FOR_INTERRUPTS() raise the interrupt here?  If so no LWLock is
 * held, since that would hold interrupts off.
 */
static inline bool
rbp_remote_can_raise(void)
{
	return InterruptHoldoffCount == 0 && CritSectionCount == 0 &&
		(ProcDiePending || QueryCancelHoldoffCount == 0);
}

/*
 * May a file call fail with EINTR here?  Where the interrupt can be raised, it
 * is raised in place of that; elsewhere most of the server calls again at
 * once.
 */
static inline bool
rbp_remote_can_fail_with_eintr(void)
{
	return rbp_remote_can_raise() ||
		(RBP_CRITICAL_READS_REPORT_EINTR && CritSectionCount > 0);
}

typedef struct RbpRemoteIo
{
	uint32		slot;
	void	   *buf;			/* one page */
	RbpStatus	status;			/* out */
} RbpRemoteIo;

/*
 * Declare this process a worker: its connections are made at once, and do not
 * count against remote_bp.max_connections.
 */
extern void rbp_remote_set_worker(void);

/*
 * Declare this process the pusher, which writes pages from the staging region,
 * len bytes at base.  That memory is registered with devices, and the
 * process's connections are not closed when they are idle.
 */
extern void rbp_remote_set_pusher(void *base, Size len);

/*
 * The number of connections that this process has begun, and of regions that it
 * got access to.  If it has grown during a read, the time of that read includes
 * connecting.
 */
extern uint32 rbp_remote_connects(void);

/*
 * Is there a lease with memory whose deadline has not passed?  Reads shared
 * memory without a lock; now is rbp_now_ns().
 */
extern bool rbp_remote_usable(RbpPool pool, int64 now);

/*
 * Read or write n pages (n <= RBP_MAX_BATCH), waiting at most until
 * deadline_ns.  start_ns is when the caller began.  Each io gets its status.
 *
 * An io fails at once if its donor is down, its extent is not mapped, or no
 * connection is allowed; it fails by the deadline if the connection is not
 * made by then.  Updates the donors' health and counters.  Never raises.
 */
extern void rbp_remote_transfer(RbpRemoteIo *ios, int n, bool write, int64 start_ns,
								int64 deadline_ns);

/*
 * The same in two steps, so that the caller can go on while pages are on their
 * way.  Several batches can be in flight.
 *
 * begin() connects if necessary, waiting for that until deadline_ns at most,
 * and submits the requests; neighbouring pages with neighbouring slots become
 * one transfer.  ios and their buffers must stay in place until end().  It
 * returns NULL if there is nothing to wait for; each io has its status then.
 *
 * end() waits until deadline_ns at most, gives each io its status, updates the
 * counters and frees the batch; then nothing touches the buffers any more.
 * If the time is used up when it is a donor's turn to be waited for, writes to
 * it are waited for one io_timeout longer, reads from it are not.
 *
 * A write with RBP_CANCELED or RBP_DENIED will not arrive any more.  A write
 * with another failure may still arrive, even if begin() returned NULL, since
 * a connection can break while requests are submitted.
 *
 * The flag RBP_REMOTE_PATIENT says that there is no other copy.  Donors that
 * are down or suspect, or have just refused a connection, are tried too, and
 * the bound on connections does not apply.
 *
 * A batch survives the closing of its connection (RBP_CONNLOST).  end() must
 * be called for each batch, at the latest before the process exits.
 */
#define RBP_REMOTE_PATIENT	0x01

typedef struct RbpRemoteBatch RbpRemoteBatch;

extern RbpRemoteBatch *rbp_remote_begin(RbpRemoteIo *ios, int n, bool write,
										int flags, int64 start_ns,
										int64 deadline_ns);
extern void rbp_remote_end(RbpRemoteBatch *batch, int64 deadline_ns);

/*
 * ---- pages on their way ----------------------------------------------------
 *
 * Pages that this process requests ahead of their use, in batches, into memory
 * of its own.  They are dropped at the end of the transaction.
 */
#define RBP_AHEAD_PAGES		16	/* in a batch */
#define RBP_AHEAD_BATCHES	64	/* of a pool, at most */

typedef struct RbpAheadRequest
{
	RbpPool		pool;
	int			n;
	uint32		slots[RBP_AHEAD_PAGES];
	uint64		hashes[RBP_AHEAD_PAGES];
	const void *owner;			/* for rbp_ahead_drop(), as is the greatest of */
	uint32		last;			/* the blocks */
} RbpAheadRequest;

/*
 * Request pages.  flags, deadline_ns: as for rbp_remote_begin().  Returns the
 * number of the batch in its pool, from 0 to RBP_AHEAD_BATCHES - 1, or -1 if
 * they are not on their way.
 */
extern int	rbp_ahead_request(const RbpAheadRequest *request, int flags, int64 deadline_ns);

/*
 * A page of the buffer tier will be needed soon: request it together with
 * others, or when it is taken.
 */
extern void rbp_ahead_announce(uint32 slot, uint64 hash);

/* The number of the batch with that page of that slot, or -1. */
extern int	rbp_ahead_find(RbpPool pool, uint32 slot, uint64 hash);

/* The result of rbp_ahead_take() */
typedef enum RbpTaken
{
	RBP_TAKEN_NOTHING,			/* it was not requested, or not sent */
	RBP_TAKEN_PAGE,				/* the page is in buf */
	RBP_TAKEN_AGAIN,			/* likewise, and was taken before: of
								 * temporary data */
	RBP_TAKEN_MISMATCH,			/* the slot had another page */
	RBP_TAKEN_FAILURE,			/* the donor has failed */
	RBP_TAKEN_LATE				/* likewise, and the wait took all its time */
} RbpTaken;

/*
 * Copy the page to buf if it was requested, by a look-up that was made after
 * the read of the page began.  Waits for it until *deadline_ns, which is set
 * if it is 0: then io_timeout is left for all waits with this deadline.
 */
extern RbpTaken rbp_ahead_take(RbpPool pool, uint32 slot, uint64 hash, char *buf,
							   int64 *deadline_ns);

/* Are there pages of the pool that were requested or announced, and not taken? */
extern bool rbp_ahead_waits(RbpPool pool);

/* Drop the owner's batches whose last block is before that one. */
extern void rbp_ahead_drop(const void *owner, uint32 before);

extern void rbp_ahead_transaction_ends(XactEvent event);

/*
 * ---- state of a slot --------------------------------------------------------
 */

/*
 * The index of the donor that carries the slot, or -1.  Cheap; takes no lock.
 */
extern int	rbp_remote_slot_donor(uint32 slot);

/*
 * The transport by which the slot's donor was last reached, as a number from 0
 * to RBP_TRANSPORTS - 1.  Cheap; takes no lock.
 */
extern int	rbp_remote_slot_transport(uint32 slot);

/* Name of a transport (RBP_TRANSPORT_*, 1 shifted by that number), or "none". */
extern const char *rbp_remote_transport_name(uint32 bit);

/*
 * Add to the counters of the slot's donor: n reads of its pages that went to
 * disk because the disk is faster; a read of its pages: the time that it took, or -1
 * if none came or that is not known, and the time that it has saved.
 */
extern void rbp_remote_count_bypassed(uint32 slot, int n);
extern void rbp_remote_count_read(uint32 slot, int64 ns, int64 saved_ns);

/*
 * What was read from the slot does not match its hash, and the slot has not
 * been given to another page: after too many of these its donor is down.
 */
extern void rbp_remote_wrong_bytes(uint32 slot);

/* Would a write to the slot be tried now?  Cheap; takes no lock. */
extern bool rbp_remote_slot_writable(uint32 slot);

/*
 * Is the slot's memory expected to stay?  For content that the caller still
 * has elsewhere.
 *
 * Memory is given back only when none of its slots counts as used.  The caller
 * makes the slot count as used first, with a full barrier before this call.
 * So either the lease worker finds the slot used, or the answer is no.
 */
extern bool rbp_remote_slot_stays(uint32 slot);

/*
 * Does this process have a connection to the slot's donor over which reads and
 * writes are copies, done within the call (RbpTransportOps.local)?
 */
extern bool rbp_remote_slot_local(uint32 slot);

/*
 * Would a read of the slot be tried now, over the connection that this process
 * has?  That is, it has one, and the donor is not down.  Cheap; takes no lock.
 */
extern bool rbp_remote_slot_readable(uint32 slot);

/*
 * Is it worth a connection to the slot's donor, or is there one, to read n more
 * pages of such work?  See rbp_choose_connection().  Cheap; takes no lock.
 */
extern bool rbp_remote_slot_worth(uint32 slot, int fs, RbpWork work, int n);

/*
 * The donor with that index, for messages: its name in quotes, and its address; may be
 * unknown if it has long left the lease.
 */
#define RBP_DONOR_TEXT_LEN	(RBP_DONOR_ID_LEN + RBP_HOST_LEN + 16)

extern void rbp_remote_donor_text(int donor, char *buf, Size len);

/* A slot with its donor, region and offset as text, for messages. */
extern void rbp_remote_slot_name(uint32 slot, char *buf, Size len);

/*
 * A transaction of this process has ended: close the connections that the
 * pusher has asked it to close.  And its exit, at which it closes all.
 */
extern void rbp_remote_transaction_ends(XactEvent event);
extern void rbp_remote_exits(void);

/*
 * Duties of the pusher, called between its batches.  They do not wait, unless
 * said otherwise, and return ns until the next call, or -1 if there is nothing
 * to do until the pusher is woken.
 *
 * maintain_connections: Have connections closed, in all processes, that are
 * idle, stale, or above the bound.  Publishes this process's settings to all.
 *
 * report: Log which donors are down or in use again, and for which ones
 * connections are lacking.  To be called before probe, after which a donor may
 * be in use again.
 *
 * probe: Probe donors that are suspect, and those that are down when they are
 * due.  Waits at most io_timeout for each.
 */
extern int64 rbp_remote_maintain_connections(void);
extern int64 rbp_remote_report(void);
extern int64 rbp_remote_probe(void);

/*
 * ---- for the lease worker ------------------------------------------------
 */

/* A lease, as the broker has granted it. */
typedef struct RbpLeaseTerms
{
	const RbpCredentials *cred;
	int64		deadline_ns;	/* CLOCK_MONOTONIC; not used after that */
	const RbpEndpoint *donors;
	int			ndonors;
	const RbpRegionGrant *regions;
	int			nregions;
} RbpLeaseTerms;

/*
 * Set the pool's lease with its donors and regions.
 *
 * Regions that are not in the list are taken out of use before this returns.
 * New ones come into use, many of them with only a part of their memory at
 * first: see rbp_remote_run_deferred().  A lease with a new id or secret takes
 * all old regions out of use first.  Returns the number of regions that are
 * not used, because the directory has no room for them or their donor is
 * beyond RBP_MAX_DONORS.
 */
extern int	rbp_remote_set_lease(RbpPool pool, const RbpLeaseTerms *terms);

/*
 * Get the lease in use, even past its deadline, so that a restarted lease
 * worker can go on with it; false if there is none.
 */
extern bool rbp_remote_get_lease(RbpPool pool, RbpCredentials *cred,
								 int64 *deadline_ns);

/*
 * How to reach the broker that granted the lease, so that a restarted lease
 * worker need not rely on the settings.
 *
 * It is set before the lease, and forgotten with it; get returns false if it
 * is not known.  Bytes after the end of each string are zero.
 */
typedef struct RbpBrokerAccess
{
	char		urls[MAXPGPATH];	/* see common/urls.h */
	int			used;			/* of these */
	char		token_file[MAXPGPATH];
	char		token[RBP_TOKEN_LEN];	/* last one accepted, "" for none */
} RbpBrokerAccess;

/*
 * The secret that is to replace the one of a lease from an image, of which there may be
 * copies.  It is chosen once, so that a new lease worker repeats the request whose answer
 * the last one has not seen.  Returns false if there are no random numbers.
 */
extern bool rbp_remote_new_secret(RbpPool pool, uint8 secret[RBP_SECRET_LEN]);

/* The broker has taken the new secret. */
extern void rbp_remote_change_secret(RbpPool pool, const RbpCredentials *cred);

extern void rbp_remote_set_broker(RbpPool pool, const RbpBrokerAccess *access);
extern bool rbp_remote_get_broker(RbpPool pool, RbpBrokerAccess *access);

/*
 * Was the key of the pool's lease used so often that another lease, which has
 * another one, is to be requested instead?
 */
extern bool rbp_remote_key_used_up(RbpPool pool);

/* The lease is gone: stop using all of its memory now. */
extern void rbp_remote_clear_lease(RbpPool pool);

/* Use no more extents than have room for these bytes; the surplus may stay. */
extern void rbp_remote_set_room(RbpPool pool, uint64 bytes);

/*
 * The lease was renewed, with nothing else changed.  Returns how many regions
 * turned out to have no room and are not used.
 */
extern int	rbp_remote_extend_lease(RbpPool pool, int64 deadline_ns);

/*
 * Do deferred work on a pool's memory, until until_ns; true if there is more
 * to do.
 *
 * Work is deferred so that no change of the lease takes long: memory that was
 * lost is forgotten, new memory is brought into use.  *unused: the number of
 * regions that turned out to have no room and are not used.
 */
extern bool rbp_remote_run_deferred(RbpPool pool, int64 until_ns, int *unused);

/* Result of retiring regions. */
typedef struct RbpRetired
{
	int			given;			/* out of use, can be given back to the broker */
	int			draining;		/* not empty yet */
} RbpRetired;

/*
 * Take the count coldest regions out of use, to be given back to the broker.
 *
 * donor: only regions of that donor; NULL for any.  With NULL, and if content
 * has copies, the donors' shares stay in proportion.  given: filled with the
 * regions; has room for count.
 *
 * Content is moved first (RbpRemotePoolOps.evacuate), until until_ns.  Regions
 * that are not empty by then are not in given and keep draining; call again
 * for them.  If content has copies, a region is in given although it is not
 * empty when moving each of its pages has been tried, its donor is down or has
 * denied access, or move_ns have passed since it began to drain.
 */
extern RbpRetired rbp_remote_retire_coldest(RbpPool pool, const char *donor,
											int count, RbpRegionGrant *given,
											int64 until_ns, int64 move_ns);

/*
 * Has a donor denied access or broken a connection, so that the broker should
 * be asked at once?  The answer is no until that happens again.
 */
extern bool rbp_remote_take_recheck(RbpPool pool);

/*
 * Is there a donor of that name in the table?  If not, there was no room for
 * it.  And is it down, that is, used by nobody until it answers a probe?
 */
extern bool rbp_remote_donor_entered(const char *donor);
extern bool rbp_remote_donor_is_down(const char *donor);

/*
 * Set, for the view, why there is no usable answer from the broker about the
 * pool's lease; NULL if there is one.  Takes remote_lock.
 */
extern void rbp_remote_set_broker_error(RbpPool pool, const char *error);

/*
 * A duty of the pusher: while temporary data is in use and there is no lease
 * worker, make the postmaster see whether one can be started.
 */
extern int64 rbp_remote_watch_lease_worker(void);

/*
 * ---- for the views, and the lease worker ---------------------------------
 */

/* Counters of each donor. */
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
	const char *transport;		/* last used, or "none" */
	const char *state;			/* "ok", "down", "unresolved", "gone" */
	TimestampTz state_since;
	char		last_error[RBP_ERROR_LEN];	/* "" if there was none */
	TimestampTz last_error_at;
	int			connections;	/* of backends */
	uint64		leased_bytes;
	uint64		used_bytes;
	uint64		counts[RBP_DONOR_COUNTS];
	uint64		read_latency[RBP_LATENCY_BUCKETS];
} RbpDonorInfo;

typedef struct RbpLeaseInfo
{
	char		lease[RBP_LEASE_ID_LEN];
	RbpPool		pool;
	RbpRegionGrant grant;
	uint64		used_bytes;
	uint64		heat;
	bool		denied;			/* the donor has denied its use */
	int64		remaining_ns;	/* until the deadline, negative after it */
} RbpLeaseInfo;

/* Each returns a palloc'd array and its length. */
extern RbpDonorInfo *rbp_remote_donor_info(int *n);
extern RbpLeaseInfo *rbp_remote_lease_info(int *n);

/*
 * Is the pool's memory unusable now, because there is no lease with memory or
 * all donors are down?  If so, store the reason in buf.  Takes remote_lock.
 */
extern bool rbp_remote_unusable_reason(RbpPool pool, char *buf, Size len);

/* Reset the donors' counters. */
extern void rbp_remote_stats_reset(void);

#endif							/* RBP_REMOTE_H */
