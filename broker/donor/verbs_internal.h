/*-------------------------------------------------------------------------
 *
 * verbs_internal.h
 *	  What the files of the RDMA service share; see verbs.c for threads,
 *	  verbs_mr.c for locks, and why no rkey outlives a lease.
 *
 * All functions are the verbs thread's, unless said otherwise.  Those that
 * can fail have complained when they return false or NULL.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DONOR_VERBS_INTERNAL_H
#define RBP_DONOR_VERBS_INTERNAL_H

#include "broker/donor/lease.h"
#include "broker/donor/verbs.h"
#include "transport/peer.h"

#include <sys/queue.h>

/*
 * ---- verbs.c -------------------------------------------------------------
 */

/* Log that something failed with that errno.  Any thread. */
extern void donor_verbs_log_failure(int error, const char *fmt,...)
			__attribute__((format(printf, 2, 3)));

/* Let the verbs thread look for MRs to register.  Any thread; does not wait. */
extern void donor_verbs_wake(void);

typedef struct RbpDonorVerbsDevice
{
	struct RbpDonorVerbsDevice *next;
	struct ibv_context *verbs;	/* rdma_cm's; open because of the anchor */
	struct rdma_cm_id *anchor;	/* NULL: another device has the address too */
	struct ibv_comp_channel *channel;
	int			max_reads;		/* in flight on a queue pair */
} RbpDonorVerbsDevice;

/* The device that an id is on; NULL if it cannot be used. */
extern RbpDonorVerbsDevice *donor_verbs_get_device(struct rdma_cm_id *id);

/*
 * ---- verbs_mr.c ----------------------------------------------------------
 */
typedef struct RbpDonorRegionMr RbpDonorRegionMr;

typedef struct RbpDonorLeaseDomain
{
	struct RbpDonorLeaseDomain *next;
	RbpDonorLease *lease;			/* referenced */
	RbpDonorVerbsDevice *device;
	struct ibv_pd *pd;
	struct ibv_mr *table_mr;

	/* under verbs_lock */
	_Atomic uint64_t *table;	/* an entry is two words */
	RbpDonorRegionMr *regions;
	uint32_t	npending;
	int			pins;			/* uses of it without the lock */

	/* the verbs thread's */
	int			nconns;
	uint32_t	cursor;			/* where to look for the next pending MR */
	uint64_t	last_turn;			/* turn in which it last got an MR */
	bool		stuck;			/* until the next tick */
	int64_t		ended_at;		/* when the lease was seen to have ended, or 0 */
} RbpDonorLeaseDomain;

/*
 * Can all memory be registered at once?  Tries with this device (NULL: with
 * the first that can be used), and deregisters it again.  On failure, which it
 * does not complain of, reason[len] says why.
 */
extern bool donor_verbs_try_registration(struct ibv_context *verbs, char *reason, size_t len);

/* The lease's domain on the device; takes over the reference.  NULL: failed. */
extern RbpDonorLeaseDomain *donor_verbs_get_domain(RbpDonorLease *lease, RbpDonorVerbsDevice *device);

/*
 * Register one region, for the domain that got no MR for longest.  Returns
 * whether there may be more to do at once.
 */
extern bool donor_verbs_register_next(void);

/* Free all domains on a device, which has no connections. */
extern void donor_verbs_free_domains(const RbpDonorVerbsDevice *device);

extern bool donor_verbs_have_domains(void);

/* Each second: free domains that nobody needs, and try again what failed. */
extern void donor_verbs_tick_domains(void);

/*
 * ---- verbs_conn.c --------------------------------------------------------
 */
typedef struct RbpDonorVerbsConn RbpDonorVerbsConn;

typedef LIST_HEAD(RbpDonorVerbsConnList, RbpDonorVerbsConn) RbpDonorVerbsConnList;

/* A client wants to connect; hello[len] is its private data. */
extern void donor_verbs_handle_request(struct rdma_cm_id *id, const uint8_t *hello,
									   size_t len, uint32_t qpn, uint8_t reads);

/* The connection of an id (its context; NULL: none) is there, or at its end. */
extern void donor_verbs_established(RbpDonorVerbsConn *conn);
extern void donor_verbs_close(RbpDonorVerbsConn *conn);

/* Look at the CQs of a device that has told of completions. */
extern void donor_verbs_handle_completions(RbpDonorVerbsDevice *device);

/* Each second: close what is over, probe what is silent. */
extern void donor_verbs_tick_conns(int64_t now);

/*
 * Free all of a device's connections but their ids, and put them into gone;
 * then the ids, with the last of which the device's context may be closed.
 */
extern void donor_verbs_release_conns(const RbpDonorVerbsDevice *device, RbpDonorVerbsConnList *gone);
extern void donor_verbs_free_released(RbpDonorVerbsConnList *gone);

#endif							/* RBP_DONOR_VERBS_INTERNAL_H */
