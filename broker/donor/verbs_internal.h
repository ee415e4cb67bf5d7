/*-------------------------------------------------------------------------
 *
 * verbs_internal.h
 *	  Declarations shared by the files of the RDMA service; see verbs.c for
 *	  threads, verbs_mr.c for locks, and for why no rkey outlives a lease.
 *
 * All functions are called by the verbs thread only, unless said otherwise.
 * Those that can fail have logged the failure when they return false or NULL.
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

/* Log a failure with its errno.  Any thread may call this. */
extern void donor_verbs_log_failure(int error, const char *fmt,...)
			__attribute__((format(printf, 2, 3)));

/*
 * Wake the verbs thread to register MRs.  Any thread may call this; does not
 * wait.
 */
extern void donor_verbs_wake(void);

typedef struct RbpDonorVerbsDevice
{
	struct RbpDonorVerbsDevice *next;
	struct ibv_context *verbs;	/* owned by rdma_cm; kept open by the anchor */
	struct rdma_cm_id *anchor;	/* NULL if another device has the same address */
	struct ibv_comp_channel *channel;
	int			max_reads;		/* in flight on one queue pair */
} RbpDonorVerbsDevice;

/* The device of an id; NULL if it cannot be used. */
extern RbpDonorVerbsDevice *donor_verbs_get_device(struct rdma_cm_id *id);

/*
 * ---- verbs_mr.c ----------------------------------------------------------
 */
typedef struct RbpDonorRegionMr RbpDonorRegionMr;

typedef struct RbpDonorLeaseDomain
{
	struct RbpDonorLeaseDomain *next;
	RbpDonorLease *lease;		/* referenced */
	RbpDonorVerbsDevice *device;
	struct ibv_pd *pd;
	struct ibv_mr *table_mr;

	/* under verbs_lock */
	_Atomic uint64_t *table;	/* two words for each entry */
	RbpDonorRegionMr *regions;
	uint32_t	npending;
	int			pins;			/* users that do not hold the lock */

	/* used by the verbs thread only */
	int			nconns;
	uint32_t	cursor;			/* next region to check for a pending MR */
	uint64_t	last_turn;		/* turn in which it last registered an MR */
	bool		stuck;			/* nothing can be registered before the next
								 * tick */
	int64_t		ended_at;		/* when the lease was found to have ended, or
								 * 0 */
} RbpDonorLeaseDomain;

/*
 * Can all memory be registered at once?  Tries it with this device (NULL: the
 * first suitable one), and deregisters it again.  On failure, which is not
 * logged, the reason is stored in reason[len].
 */
extern bool donor_verbs_try_registration(struct ibv_context *verbs, char *reason, size_t len);

/*
 * The lease's domain on the device (NULL if setting that up has failed), made
 * if there is none.  Takes over the caller's reference to the lease.  NULL on
 * failure.
 */
extern RbpDonorLeaseDomain *donor_verbs_get_domain(RbpDonorLease *lease, RbpDonorVerbsDevice *device);

/*
 * Register one region, for the domain whose last MR is the oldest.  Returns
 * whether there may be more to do at once.
 */
extern bool donor_verbs_register_next(void);

/* Free all domains on a device, which must have no connections. */
extern void donor_verbs_free_domains(const RbpDonorVerbsDevice *device);

extern bool donor_verbs_have_domains(void);

/* Called each second: free unused domains, and retry failed registrations. */
extern void donor_verbs_tick_domains(void);

/*
 * ---- verbs_conn.c --------------------------------------------------------
 */
typedef struct RbpDonorVerbsConn RbpDonorVerbsConn;

typedef LIST_HEAD(RbpDonorVerbsConnList, RbpDonorVerbsConn)
RbpDonorVerbsConnList;

/* Handle a request to connect; hello[len] is its private data. */
extern void donor_verbs_handle_request(struct rdma_cm_id *id, const uint8_t *hello,
									   size_t len, uint32_t qpn, uint8_t reads);

/*
 * The connection of an id (its context, NULL for none) is established, or has
 * ended.
 */
extern void donor_verbs_established(RbpDonorVerbsConn *conn);
extern void donor_verbs_close(RbpDonorVerbsConn *conn);

/* Handle completions on a device that has signalled some. */
extern void donor_verbs_handle_completions(RbpDonorVerbsDevice *device);

/* Called each second: close ended connections, probe silent ones. */
extern void donor_verbs_tick_conns(int64_t now);

/*
 * Free all of a device's connections except their ids, which are put into
 * gone; then free those ids.  The device's context may be closed with the last
 * one.
 */
extern void donor_verbs_release_conns(const RbpDonorVerbsDevice *device, RbpDonorVerbsConnList *gone);
extern void donor_verbs_free_released(RbpDonorVerbsConnList *gone);

#endif							/* RBP_DONOR_VERBS_INTERNAL_H */
