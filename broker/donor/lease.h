/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  Which lease may use which region, until when; fencing.
 *
 * Threads: the serving threads (donor_serve), the verbs thread (donor_verbs),
 * the janitor (donor_lease), and the control thread, which is the main thread
 * (donor_control).
 *
 * How requests and fences are synchronized.  A serving thread that is about to
 * move bytes to or from a region first enters it: it counts itself in `users`,
 * and only then checks whether the region still belongs to the connection's
 * lease and the lease has not ended.  It leaves right after the system call,
 * which never blocks.  The verbs thread does the same around the registration
 * of an MR, which takes some milliseconds.  A fence clears `owner` first and
 * then waits until `users` is zero.  Both sides use sequentially consistent
 * operations, so either the request sees that the owner is gone, or the fence
 * sees the request and waits for it.  Nothing of the region is touched
 * afterwards on behalf of the old lease, except by RDMA until the janitor has
 * revoked its rkeys.
 *
 * Locks: donor_lock (in lease.c) protects the table of leases and the regions'
 * `state`; it is never held during I/O, zeroing or the wait of a fence.
 * verbs_lock (in verbs_mr.c) may be taken while donor_lock is held, but not
 * the other way round.  A region in DONOR_REGION_DIRTY belongs to the janitor:
 * after start-up it alone changes a region's fd and mapping, while nobody can
 * enter the region.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DONOR_LEASE_H
#define RBP_DONOR_LEASE_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "broker/donor/memory.h"
#include "wire/wire.h"

/* Of all clients: over sockets, and as many over RDMA */
#define DONOR_MAX_CONNECTIONS	16384

struct RbpDonorLease
{
	char		id[RBP_LEASE_ID_LEN];
	uint8_t		key[RBP_SECRET_LEN];	/* under donor_lock */
	atomic_uint key_number;		/* of the keys that it has had */
	atomic_llong deadline_ns;	/* CLOCK_BOOTTIME, which advances while the
								 * machine is suspended, as the broker's time
								 * does */
	atomic_bool ended;
	atomic_int	refs;			/* one for the table, one for each connection */
	char		client[RBP_CLIENT_LEN]; /* whose it is; under donor_lock */
	json_t	   *about;			/* what the broker said of it, for the next
								 * one, or NULL; likewise */
	json_t	   *told;			/* while donor_report_leases() runs; likewise */
	bool		listed;			/* in the latest desired state; under
								 * donor_lock */
	bool		reported;		/* ended, and in the latest report; likewise */
	uint32_t	nregions;		/* likewise */
	uint8_t		digest[RBP_VERBS_DIGEST_LEN];	/* of its id */
	RbpDonorLease *next;
};

/*
 * Callbacks by which leases notify RDMA of regions.
 *
 * granted: The lease was granted this region, so its clients may get an rkey
 * to it.  Called with donor_lock held, when the lease owns the region.  Does
 * not wait for a device.
 *
 * revoke: Every rkey of this region is dead when this returns.  If a device
 * refuses to invalidate one, the region is marked as exposed, and the memory
 * that the rkey leads to is never used again.  Called in the janitor with no
 * lock held, when nobody is in the region or can enter it, and before it is
 * zeroed or given back.
 *
 * Both do nothing if RDMA is not served.
 */
typedef struct RbpDonorRdma
{
	void		(*granted) (uint32_t region, RbpDonorLease *lease);
	void		(*revoke) (uint32_t region);
} RbpDonorRdma;

/* rdma is kept by reference.  To be called before donor_lease_init(). */
extern void donor_lease_set_rdma(const RbpDonorRdma *rdma);

/*
 * Start the janitor thread.  min_free: 0 for never giving memory back.
 * max_connections: of one client; max_of_name: of all whose names are the same before a
 * slash.
 */
extern void donor_lease_init(uint64_t min_free, int max_connections, int max_of_name);

/*
 * Find a lease by id.  The caller gets a reference; NULL if unknown or ended.
 */
extern RbpDonorLease *donor_lease_find(const char *id);

/* Likewise by the digest of its id. */
extern RbpDonorLease *donor_lease_find_digest(const uint8_t digest[RBP_VERBS_DIGEST_LEN]);

extern void donor_lease_unref(RbpDonorLease *lease);

/*
 * The key that a client has to prove to know, and its number.  For a lease that is
 * not known (NULL), one that nobody knows.
 */
extern unsigned int donor_lease_key(RbpDonorLease *lease, uint8_t key[RBP_SECRET_LEN]);

/* Is the key of that number still the lease's?  Else connections proven by it end. */
static inline bool
donor_lease_has_key(RbpDonorLease *lease, unsigned int key_number)
{
	return atomic_load(&lease->key_number) == key_number;
}

/* Who has connections, over all transports, with one lease or several; under donor_lock */
typedef struct RbpDonorClient
{
	struct RbpDonorClient *next;
	int			connections;	/* above 0 */
	char		name[RBP_CLIENT_LEN];
} RbpDonorClient;

/*
 * The client of the lease connects.  NULL if it has as many connections as it may
 * have; else donor_lease_disconnect() must follow.
 */
extern RbpDonorClient *donor_lease_connect(RbpDonorLease *lease);
extern void donor_lease_disconnect(RbpDonorClient *client);

/* "lease ID of server "CLIENT"", for messages.  Returns text. */
#define DONOR_LEASE_TEXT_LEN	(RBP_LEASE_ID_LEN + RBP_CLIENT_LEN + 32)
extern const char *donor_lease_text(RbpDonorLease *lease, char text[DONOR_LEASE_TEXT_LEN]);

#define DONOR_CLIENT_IS_FULL	"has all the connections that its server may have (--lease-connections)"

/*
 * Enter the region if the lease may use it now; the caller must leave it then.
 */
extern bool donor_region_enter(RbpDonorRegion *region, RbpDonorLease *lease,
							   int64_t now);
extern void donor_region_leave(RbpDonorRegion *region);

/* What the broker desires of a lease; all but the key points into its answer. */
typedef struct RbpDonorDesired
{
	const char *id;
	const char *client;			/* the id, if the broker does not tell */
	uint8_t		key[RBP_SECRET_LEN];
	json_int_t	ttl_ms;
	const json_t *regions;		/* their numbers; those that we do not have
								 * are passed over */
	const json_t *revs;			/* of their grants; NULL: as they were */
	json_t	   *about;			/* for other brokers; NULL: they are told
								 * nothing */
} RbpDonorDesired;

/*
 * Apply the state that the broker desires.  Between donor_apply_begin() and
 * donor_apply_end() name every live lease, whose TTL has begun at that time; all others
 * are fenced.  Called by the control thread only.
 */
extern void donor_apply_begin(void);
extern void donor_apply_lease(const RbpDonorDesired *desired, int64_t now);
extern void donor_apply_end(void);

#define DONOR_REGION_STATES	(DONOR_REGION_RELEASED + 1)

/* Contents of the next heartbeat. */
typedef struct RbpDonorReport
{
	json_t	   *clean;			/* numbers of regions to be reported clean */
	json_t	   *ended;			/* ids of leases ended by our clock; NULL: was
								 * not told */
	uint32_t	want_back;		/* regions needed because memory is short */
	uint32_t	regions[DONOR_REGION_STATES];	/* in each state */
} RbpDonorReport;

extern void donor_report_get(RbpDonorReport *report);

/* What a broker that does not know them is to be told of all leases: an array of objects. */
extern json_t *donor_report_leases(void);

/*
 * The broker considers this region dirty: if it is not, report it clean again.
 */
extern void donor_report_clean_again(uint32_t region);

/* How many regions are in that state? */
extern uint32_t donor_regions_in(RbpDonorRegionState state);

/*
 * The broker has acknowledged the report.  To be called before its answer is
 * applied.
 */
extern void donor_report_acknowledged(const RbpDonorReport *report);
extern void donor_report_free(RbpDonorReport *report);

#endif							/* RBP_DONOR_LEASE_H */
