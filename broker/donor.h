/*-------------------------------------------------------------------------
 *
 * donor.h
 *	  What the modules of remote_bp_donor know of each other.
 *
 * donor_memory	 regions: memfds, their reservation, zeroing, giving back
 * donor_lease	 who may use which region, until when; fencing
 * donor_serve	 sockets: handshake, reads, writes, over TCP and UNIX sockets
 * donor_verbs	 RDMA: handshake, and keys to each lease's regions
 * donor_control the broker: registration, heartbeats, memory pressure
 *
 * Threads: the serving threads (donor_serve), the verbs thread (donor_verbs),
 * the janitor (donor_lease), and the control thread, which is the main thread
 * (donor_control).
 *
 * How a request and a fence meet.  A serving thread that is about to move
 * bytes to or from a region first enters it: counts itself in `users`, and
 * only then looks whether the region still belongs to the connection's lease
 * and the lease has not ended.  It leaves right after the system call, which
 * never blocks; the verbs thread, which makes a key to the region meanwhile,
 * some milliseconds later.  Who fences a region clears `owner` first and then
 * waits until `users` is zero.  Both sides use sequentially consistent
 * operations, so either the request sees that the owner is gone, or the fence
 * sees the request and waits for it.  Nothing of the region is touched
 * afterwards on behalf of the old lease, but by RDMA, until the janitor has
 * revoked its keys.
 *
 * Locks: donor_lock (in donor_lease.c) protects the table of leases and the
 * regions' `state`; it is never held during I/O, zeroing or a fence's wait.
 * verbs_lock (in donor_verbs.c) may be taken with it held, not the other way
 * round.  A region in RBP_REGION_DIRTY belongs to the janitor, who alone
 * changes fd and mapping of a region after the start, while nobody can enter
 * it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DONOR_H
#define RBP_DONOR_H

#include "../src/transport/rbp_transport.h"
#include "../src/wire/rbp_wire.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct DonorOptions
{
	const char *broker;
	const char *listen;
	const char *advertise;
	const char *id;
	const char *token_file;
	const char *transports;
	const char *rdma_listen;
	const char *rdma_advertise;
	const char *rdma_device;
	int			rdma_port;
	int			rdma_gid_index;
	uint64_t	memory;
	uint64_t	region_size;
	uint64_t	min_free;
	int			threads;
	int			spin_us;
	int			reclaim_grace;	/* seconds */
	int			drain_timeout;	/* seconds */
} DonorOptions;

/*
 * ---- donor_memory ------------------------------------------------------------
 */
typedef enum RbpRegionState
{
	RBP_REGION_FREE,			/* reserved, zeroed, belongs to nobody */
	RBP_REGION_LEASED,
	RBP_REGION_DIRTY,			/* fenced; to be zeroed */
	RBP_REGION_RELEASED			/* its memory is given back to the system */
} RbpRegionState;

typedef struct DonorLease DonorLease;

typedef struct DonorRegion
{
	_Atomic(DonorLease *) owner;	/* who may enter, or NULL */
	atomic_int	users;			/* serving threads in it */
	atomic_bool exported;		/* its memfd was given to a client, or a key to
								 * it could not be taken back: to be reused,
								 * it needs other memory */
	RbpRegionState state;
	bool		withdrawn;		/* while DIRTY: out of everybody's reach; under
								 * donor_lock */
	bool		clean_unsaid;	/* the broker does not know yet that it is clean */
	int			fd;				/* -1: none */
	bool		huge;			/* from the pool of huge pages */
	uint8_t    *base;			/* its place in the donor's address space */
} DonorRegion;

extern DonorRegion *donor_regions;
extern uint32_t donor_nregions;
extern uint64_t donor_region_size;

/*
 * Reserve, populate and lock memory for all regions; logs which pages it got.
 * Ends the process if there is not enough, or if less than min_free bytes
 * would be left to others.  From here on the process is the first that the
 * system kills when memory runs out.
 */
extern void donor_memory_init(uint64_t memory, uint64_t region_size,
							  uint64_t min_free);

/* A part of the machine's memory, or of its cgroup's; 0 if it is not known. */
extern uint64_t donor_memory_default_min_free(void);

/*
 * Give a region fresh, zeroed, populated memory, in place of what it has.
 * False if there is none: then it has no memory at all.  For the janitor.
 */
extern bool donor_memory_renew(DonorRegion *region);

/* Give a region's memory back to the system.  For the janitor. */
extern void donor_memory_release(DonorRegion *region);

/*
 * Memory that the system, or one of this process's cgroups if that is
 * tighter, could still hand out; UINT64_MAX if it cannot be found out.
 */
extern uint64_t donor_memory_available(void);

/*
 * ---- donor_lease -------------------------------------------------------------
 */

struct DonorLease
{
	char		id[RBP_LEASE_ID_LEN];
	uint8_t		secret[RBP_SECRET_LEN];
	atomic_llong deadline_ns;	/* CLOCK_BOOTTIME: it goes on in a suspended
								 * machine, as the broker's time does */
	atomic_bool ended;
	atomic_int	refs;			/* the table's, and each connection's */
	bool		listed;			/* in the broker's last word; under donor_lock */
	bool		reported;		/* ended, and in the last report; likewise */
	uint32_t	nregions;		/* likewise */
	bool		has_digest;		/* donor_verbs', likewise */
	uint8_t		digest[RBP_VERBS_DIGEST_LEN];
	DonorLease *next;
};

/* Start the janitor thread.  min_free: 0 is never. */
extern void donor_lease_init(uint64_t min_free);

/* By id, with a reference for the caller; NULL if unknown or ended. */
extern DonorLease *donor_lease_find(const char *id);

/* The same for the first that matches, which is asked with donor_lock held. */
extern DonorLease *donor_lease_match(bool (*matches) (DonorLease *lease,
													  const void *arg),
									 const void *arg);
extern void donor_lease_unref(DonorLease *lease);

/*
 * May this lease use the region now?  If so the caller is inside of it, and
 * has to leave.
 */
extern bool donor_region_enter(DonorRegion *region, DonorLease *lease,
							   int64_t now);
extern void donor_region_leave(DonorRegion *region);

/*
 * Make the broker's truth ours: between donor_apply_begin() and
 * donor_apply_end() name every live lease, and its regions.  Whatever is not
 * named is fenced.  Control thread only.
 */
extern void donor_apply_begin(void);
extern void donor_apply_lease(const char *id,
							  const uint8_t secret[RBP_SECRET_LEN],
							  int64_t deadline_ns,
							  const uint32_t *regions, uint32_t nregions);
extern void donor_apply_end(void);

/* The broker forgot us: everything is to be registered anew, nothing leased. */
extern void donor_apply_nothing(void);

/* What the next heartbeat has to say. */
typedef struct DonorReport
{
	uint32_t   *clean;			/* malloc'ed; regions newly clean */
	uint32_t	nclean;
	char	  (*ended)[RBP_LEASE_ID_LEN];	/* malloc'ed; fenced by our clock */
	uint32_t	nended;
	uint32_t	want_back;		/* regions that memory is too short for */
	uint32_t	free_regions;
	uint32_t	leased_regions;
	uint32_t	released_regions;
	uint32_t	dirty_regions;
} DonorReport;

extern void donor_report_get(DonorReport *report);

/* The numbers of all regions that carry nobody's data; malloc'ed. */
extern uint32_t *donor_clean_regions(uint32_t *n);

/* The broker still takes this region for dirty: if it is not, say so again. */
extern void donor_repeat_clean(uint32_t region);

/* Are there regions that wait to be zeroed? */
extern bool donor_cleaning(void);

/*
 * The broker has heard what the report said.  To be called before its answer
 * is applied.
 */
extern void donor_report_said(const DonorReport *report);
extern void donor_report_free(DonorReport *report);

/*
 * ---- donor_serve -------------------------------------------------------------
 */

/*
 * Open the listening sockets and start the serving threads.  Either socket
 * may be unwanted.  *port gets the TCP port, shm_name the abstract name.
 */
extern void donor_serve_init(const char *host, uint16_t *port, bool tcp,
							 bool shm, char shm_name[RBP_SHM_NAME_LEN],
							 int threads, int spin_us);

/* Totals since the start. */
typedef struct DonorServeStats
{
	uint64_t	connections;	/* open now */
	uint64_t	reads;
	uint64_t	writes;
	uint64_t	maps;
	uint64_t	denied;
	uint64_t	bytes_read;
	uint64_t	bytes_written;
} DonorServeStats;

extern void donor_serve_stats(DonorServeStats *stats);

/*
 * ---- donor_verbs -------------------------------------------------------------
 */

/*
 * Listen for RDMA connections and start the thread that makes them; the data
 * itself moves without us.  To be called when regions have their memory, and
 * before there is another thread that could take it from them.  host: "" or a
 * wildcard address for any.  *port gets the port.  False, with the reason for a
 * message in *why (static), if there is no device, or none that leads to the
 * address, or memory cannot be registered with it; then nothing is left of it.
 */
extern bool donor_verbs_init(const char *host, uint16_t *port,
							 const char **why);

/*
 * The lease got this region: its clients may have a key for it.  For
 * donor_apply_end(), with donor_lock held, when the lease owns the region.
 * Does not wait for a device.  This and the two below do nothing if RDMA is
 * not served.
 */
extern void donor_verbs_granted(uint32_t region, DonorLease *lease);

/*
 * Every remote key of this region is dead when this returns; if a device would
 * not let go of one, the region is marked as exported, and what the key leads
 * to is never used again.  For the janitor, with nobody able to enter the
 * region any more, nobody in it, and no lock held; before the region is zeroed
 * or given back.
 */
extern void donor_verbs_revoke(uint32_t region);

/* Connections that are open now; and that were denied since the start. */
extern uint64_t donor_verbs_connections(void);
extern uint64_t donor_verbs_denied(void);

/*
 * ---- donor_control -----------------------------------------------------------
 */

/*
 * Register as what ep says (its donor, the id, is not looked at) and send
 * heartbeats until stopped and drained.  Returns the exit code.
 */
extern int	donor_control_run(const DonorOptions *opt, const RbpEndpoint *ep);

/* From a signal handler: drain (first call), or stop at once (second). */
extern void donor_control_stop(void);

#endif							/* RBP_DONOR_H */
