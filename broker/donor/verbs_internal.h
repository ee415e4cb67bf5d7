/*-------------------------------------------------------------------------
 *
 * verbs_internal.h
 *	  Declarations shared by the files of the RDMA service.
 *
 * verbs_thread.c	listening, and the verbs thread; which threads there are
 * verbs_conn.c		connections: handshake, end
 * verbs_mr.c		MRs of regions: registration and fencing; why no rkey
 *					outlives a lease
 * verbs_device.c	devices: which can be used, what they refuse
 * verbs_ping.c		connections: pings, failures; the list of devices
 *
 * A file calls those below it, and none above.
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

#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sys/queue.h>

/*
 * ---- verbs_device.c ------------------------------------------------------
 */

/* Log a failure with its errno.  Any thread may call this. */
extern void donor_verbs_log_failure(int error, const char *fmt,...)
			__attribute__((format(printf, 2, 3)));

/* What a message about memory that a device refuses, if this is the error, should end with. */
extern const char *donor_verbs_memory_hint(int error);

/*
 * Can this device and port (0: any) be used?  It must be InfiniBand or RoCE,
 * and the port active.  Otherwise the reason is stored in reason[len].
 */
extern bool donor_verbs_usable(struct ibv_context *verbs, int port, char *reason, size_t len);

/* Never wait in reads from, or writes to, this descriptor. */
extern bool donor_verbs_set_nonblocking(int fd);

/* For poll(): can this descriptor be read? */
static inline struct pollfd
donor_verbs_readable(int fd)
{
	struct pollfd pfd = {.fd = fd,.events = POLLIN};

	return pfd;
}

typedef struct RbpDonorVerbsDevice
{
	LIST_ENTRY(RbpDonorVerbsDevice) link;
	struct ibv_context *verbs;	/* owned by rdma_cm; kept open by the anchor */
	struct rdma_cm_id *anchor;	/* NULL if another device has the same address */
	struct ibv_comp_channel *channel;
	int			max_reads;		/* in flight on one queue pair */
	bool		dead;			/* it has said so */
	atomic_bool failed;			/* its channel is closed */
} RbpDonorVerbsDevice;

#define DONOR_MAX_DEVICES	32

/* The device of an id; NULL if it cannot be used. */
extern RbpDonorVerbsDevice *donor_verbs_get_device(struct rdma_cm_id *id);

/*
 * ---- verbs_mr.c ----------------------------------------------------------
 */
typedef struct RbpDonorRegionMr RbpDonorRegionMr;

typedef struct RbpDonorLeaseDomain
{
	LIST_ENTRY(RbpDonorLeaseDomain) link;
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

/* Completions of a connection: each ping is received and answered, and there is a probe. */
#define DONOR_VERBS_CQ_SIZE		(2 * RBP_VERBS_PINGS + 1)

typedef struct RbpDonorVerbsConn
{
	LIST_ENTRY(RbpDonorVerbsConn) link;
	struct rdma_cm_id *id;
	RbpDonorLeaseDomain *domain;
	RbpDonorClient *client;
	unsigned int key_number;	/* of the key that it was proven by */
	struct ibv_cq *cq;
	struct ibv_mr *mr;			/* for requests and answers */
	int64_t		since;			/* time when it was accepted */
	int64_t		probed_at;

	/* under ping_lock from the moment at which it is accepted */
	bool		stopped;		/* the ping thread leaves it alone */
	atomic_bool established;	/* these three are read without the lock, too */
	atomic_bool probing;		/* a probe is under way */
	_Atomic int64_t broken_at;	/* time when its queue pair failed, or 0 */
	uint32_t	busy;			/* a bit for each answer being sent */
	uint32_t	held[RBP_VERBS_PINGS];	/* requests that wait for a free
										 * answer */
	uint32_t	nheld;
	uint8_t		requests[RBP_VERBS_PINGS][RBP_REQUEST_SIZE];
	uint8_t		answers[RBP_VERBS_PINGS][RBP_ANSWER_SIZE];
} RbpDonorVerbsConn;

typedef LIST_HEAD(RbpDonorVerbsConnList, RbpDonorVerbsConn)
RbpDonorVerbsConnList;

/* Handle a request to connect; hello[len] is its private data. */
extern void donor_verbs_handle_request(struct rdma_cm_id *id, const uint8_t *hello,
									   size_t len, uint32_t qpn, uint8_t reads);

/* The connection of an id (its context, NULL for none) has ended. */
extern void donor_verbs_close(RbpDonorVerbsConn *conn);

/* Called each second: close ended connections, probe silent ones. */
extern void donor_verbs_tick_conns(int64_t now);

/*
 * Free all of a device's connections except their ids, which are put into
 * gone; then free those ids.  The device's context may be closed with the last
 * one.
 */
extern void donor_verbs_release_conns(const RbpDonorVerbsDevice *device, RbpDonorVerbsConnList *gone);
extern void donor_verbs_free_released(RbpDonorVerbsConnList *gone);

/*
 * ---- verbs_ping.c --------------------------------------------------------
 */

/*
 * Wake the verbs thread by the eventfd.  Any thread may call this; does not
 * wait.
 */
extern void donor_verbs_wake(void);
extern int	donor_verbs_wake_fd;

/* Start the ping thread; ends the process on failure. */
extern void donor_verbs_start_pings(void);

/* The list of devices, the first of which is returned; these functions alone change it. */
extern RbpDonorVerbsDevice *donor_verbs_devices(void);
extern void donor_verbs_add_device(RbpDonorVerbsDevice *device);
extern void donor_verbs_remove_device(RbpDonorVerbsDevice *device);

/* Post the receive of a ping.  On failure, errno tells the reason. */
extern bool donor_verbs_post_receive(RbpDonorVerbsConn *conn, uint32_t slot);

/* The ping thread does not use the connection's queue pair any more. */
extern void donor_verbs_stop_pings(RbpDonorVerbsConn *conn);

/*
 * The client has our REP: rdma_cm says so, or else its device; then rdma_cm is
 * told.
 */
extern void donor_verbs_established(RbpDonorVerbsConn *conn, bool by_rdma_cm);

/* The device says that the queue pair or its CQ has failed. */
extern void donor_verbs_broken(RbpDonorVerbsConn *conn);

/*
 * Check whether the client's device still answers.  Without traffic from our
 * side we would never notice if it does not.  A write of no bytes needs no
 * rkey.  False if it cannot be posted.
 */
extern bool donor_verbs_probe(RbpDonorVerbsConn *conn);

#endif							/* RBP_DONOR_VERBS_INTERNAL_H */
