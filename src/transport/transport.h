/*-------------------------------------------------------------------------
 *
 * transport.h
 *	  One-sided access to leased memory on a donor, whatever the network.
 *
 * A transport is a table of functions (RbpTransportOps).  The extension's
 * backends, its pusher and the test programs speak to this table only; no
 * transport's fields show through it.  Nothing here or below includes
 * postgres.h: memory comes from malloc, errors are returned, nothing is
 * logged, nothing longjmps, and no call waits past the deadline that it was
 * given.
 *
 * Threads: a connection belongs to one thread at a time; different
 * connections are independent.
 *
 * Deadlines are absolute nanoseconds of CLOCK_MONOTONIC, see rbp_now_ns().
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_TRANSPORT_H
#define RBP_TRANSPORT_H

#include "common/limits.h"
#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bits of RbpEndpoint.transports, and RbpTransportOps.bit */
#define RBP_TRANSPORT_SHM	0x01
#define RBP_TRANSPORT_TCP	0x02
#define RBP_TRANSPORT_VERBS	0x04

/* How a donor can be reached; copied from what the broker tells. */
typedef struct RbpEndpoint
{
	char		donor[RBP_DONOR_ID_LEN];	/* the donor's id, for messages */
	uint32_t	transports;		/* RBP_TRANSPORT_* that the donor offers */
	char		host[RBP_HOST_LEN];	/* tcp: name or address */
	uint16_t	port;			/* tcp */
	char		shm_name[RBP_SHM_NAME_LEN];	/* shm: abstract UNIX socket name,
											 * without the leading zero */
	char		boot_id[RBP_BOOT_ID_LEN];	/* shm: kernel boot id of its host */
	char		rdma_host[RBP_HOST_LEN];	/* verbs: name or address, often in
											 * another network than host */
	uint16_t	rdma_port;		/* verbs: in the port space RDMA_PS_TCP */
} RbpEndpoint;

/* Proof of the right to use a lease.  The secret never crosses the wire. */
typedef struct RbpCredentials
{
	char		lease[RBP_LEASE_ID_LEN];
	uint8_t		secret[RBP_SECRET_LEN];
} RbpCredentials;

typedef struct RbpConn RbpConn; /* opaque: one connection to one donor */
typedef struct RbpMr RbpMr;		/* opaque: local memory known to the device */

typedef enum RbpIoKind
{
	RBP_IO_READ,				/* region -> buf */
	RBP_IO_WRITE,				/* buf -> region */
	RBP_IO_PING					/* a round trip that moves nothing */
} RbpIoKind;

/*
 * One request.  The caller owns it and buf, and keeps both in place from
 * submit() until wait() has given it a final status.  What a read's buffer
 * holds meanwhile, and after any other status than RBP_OK, is undefined.
 */
typedef struct RbpIo
{
	RbpIoKind	kind;
	uint32_t	region;			/* the donor's region number in this lease */
	uint32_t	grant;			/* another value when the region was lost and
								 * granted anew: what the transport remembers
								 * of it (a key, a mapping) is of no use then */
	uint64_t	offset;			/* bytes from the start of the region */
	uint32_t	len;			/* bytes */
	void	   *buf;
	RbpMr	   *mr;				/* that holds buf, or NULL */
	RbpStatus	status;			/* out; RBP_INPROGRESS while in flight */
	uint64_t	cookie;			/* private to the transport */
} RbpIo;

typedef struct RbpTransportOps
{
	const char *name;			/* as in remote_bp.transport */
	uint32_t	bit;			/* RBP_TRANSPORT_* */

	/*
	 * Reads and writes need nothing of the donor's processor, so that their
	 * success does not tell that the donor answers; a ping's does.
	 */
	bool		one_sided;

	/*
	 * Reads and writes cross no network, so that they cannot be late, but for
	 * what the donor's processor does now and then (handing out a mapping).
	 */
	bool		local;

	/*
	 * A connection takes long to make and holds resources of a device: worth
	 * it only for a process that makes more than a few requests.
	 */
	bool		costly;

	/*
	 * Can this process reach the donor in this way?  A cheap look at the
	 * endpoint (is the boot id ours?), no connection attempt.
	 */
	bool		(*usable) (const RbpEndpoint *ep);

	/*
	 * Start to connect and authenticate; returns without waiting.  On RBP_OK
	 * *conn is set, owned by the caller, to be given to close(); on any other
	 * result it is not touched.
	 */
	RbpStatus	(*connect) (const RbpEndpoint *ep, const RbpCredentials *cred,
							RbpConn **conn);

	/*
	 * Go on connecting until deadline_ns.  RBP_OK: ready for submit().
	 * RBP_INPROGRESS: not yet; call again later (a deadline in the past just
	 * polls).  Anything else is final, and close() is all that is left.
	 */
	RbpStatus	(*connect_wait) (RbpConn *conn, int64_t deadline_ns);

	/*
	 * Tell the device about local memory from which or into which requests
	 * will move bytes.  shm and tcp accept anything and give a token object;
	 * verbs pins it, and fails with RBP_NOMEM where RLIMIT_MEMLOCK is too low
	 * for that.  The memory must stay mapped until deregister(), which has to
	 * come before close().
	 */
	RbpStatus	(*register_memory) (RbpConn *conn, void *base, size_t len,
									RbpMr **mr);
	void		(*deregister_memory) (RbpConn *conn, RbpMr *mr);

	/*
	 * Post n requests as one batch.  Each gets RBP_INPROGRESS, or at once its
	 * final status.  Never blocks: what the socket does not take yet is sent
	 * by wait().  Returns RBP_OK if the batch was posted, else the reason,
	 * with every request's status set to it.
	 */
	RbpStatus	(*submit) (RbpConn *conn, RbpIo *ios, int n);

	/*
	 * Wait until all of these n requests are final, or until deadline_ns.
	 * Requests that are not final by then become RBP_TIMEOUT, and neither
	 * they nor their buffers are touched after the return: a late answer is
	 * swallowed.  Requests of other batches on the connection make progress
	 * too.  A late answer alone does not break the connection, but giving up
	 * a request on registered memory may (verbs): later ones get RBP_CONNLOST.
	 * Returns RBP_OK if all are RBP_OK, else the first status that is not.
	 */
	RbpStatus	(*wait) (RbpConn *conn, RbpIo *ios, int n, int64_t deadline_ns);

	/* Close and free; requests still in flight are forgotten. NULL is fine. */
	void		(*close) (RbpConn *conn);
} RbpTransportOps;

/*
 * Every implementation's object starts with this header, so that callers
 * need to carry one pointer only.
 */
struct RbpConn
{
	const RbpTransportOps *ops;
};

extern const RbpTransportOps rbp_transport_shm;
extern const RbpTransportOps rbp_transport_tcp;
extern const RbpTransportOps rbp_transport_verbs;

/*
 * The best transport that the donor offers and this process can use
 * ("auto"), or the named one if it is usable; NULL if there is none.
 * want: "auto" or a transport's name.
 */
extern const RbpTransportOps *rbp_transport_choose(const char *want,
												   const RbpEndpoint *ep);

/*
 * Who stands between those who choose a transport and the transport: what
 * rbp_transport_choose() returns goes through it.  NULL: nobody, but in tests.
 */
extern const RbpTransportOps *(*rbp_transport_wrap) (const RbpTransportOps *ops);

/* By name, NULL if unknown. */
extern const RbpTransportOps *rbp_transport_by_name(const char *name);
extern const RbpTransportOps *rbp_transport_by_bit(uint32_t bit);

/*
 * Optional: do the one-time work now, in a process that forks the others,
 * instead of at each one's first connect: libcrypto's set-up takes
 * milliseconds, and so does loading the drivers of RDMA devices, if there are
 * any.
 */
extern void rbp_transport_init(void);

/*
 * The addresses of a host name, as text and separated by commas, as many as
 * there is room for, into numeric[len].  This may take as long as the resolver
 * does, so it is for a thread that can wait; connect() takes numeric hosts
 * only.  False, and "", if there is none.
 */
extern bool rbp_transport_resolve(const char *host, char *numeric, size_t len);

/* Is it an address, so that there is nothing to look up? */
extern bool rbp_transport_is_numeric(const char *host);

/*
 * Optional: give_up says whether whoever waits shall stop waiting, as if the
 * deadline had come.  It is asked before each time that a wait blocks, and
 * every RBP_GIVE_UP_NS while it does.  Of the whole process; called by the
 * thread that waits.  NULL: waits end at their deadlines only.
 */
#define RBP_GIVE_UP_NS		10000000

extern void rbp_transport_set_give_up(bool (*give_up) (void));

/* For transports: what it says now. */
extern bool rbp_transport_give_up(void);

/* This host's boot id, as an endpoint carries it; "" if it cannot be read. */
extern const char *rbp_transport_boot_id(void);

#define RBP_RDMA_DEVICE_LEN	64	/* as IB_DEVICE_NAME_MAX */

/* How this process uses RDMA devices. */
typedef struct RbpVerbsConfig
{
	char		device[RBP_RDMA_DEVICE_LEN];	/* "mlx5_0"; "": whichever the
												 * route to the peer leads to */
	int			port;			/* of the device, from 1; 0: any */
	int			gid_index;		/* in the port's GID table; -1: the one of the
								 * source address */
	int			traffic_class;	/* 0 .. 255; -1: the system's default */
	int			ack_timeout;	/* a packet is sent again after 4.096 us *
								 * 2^this; 1 .. 31 */
	int			retry_count;	/* that often, 0 .. 6 (7 is for ever) */
} RbpVerbsConfig;

#define RBP_VERBS_CONFIG_DEFAULT \
	{.port = 0,.gid_index = -1,.traffic_class = -1,.ack_timeout = 12,.retry_count = 6}

/*
 * The configuration for connections made from now on in this process; it is
 * copied.  Not to be called while another thread connects.
 */
extern void rbp_verbs_configure(const RbpVerbsConfig *config);

#endif							/* RBP_TRANSPORT_H */
