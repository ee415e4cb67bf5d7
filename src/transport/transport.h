/*-------------------------------------------------------------------------
 *
 * transport.h
 *	  Access to leased memory on a donor, over any network.
 *
 * A transport is a table of functions (RbpTransportOps).  The extension's
 * backends, its pusher and the test programs use only this table; a connection
 * is an opaque pointer for them.  Nothing here or below includes postgres.h:
 * memory comes from malloc, errors are returned, nothing is logged, nothing
 * longjmps, and no call waits past its deadline.
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
#include <string.h>

/* Bits of RbpEndpoint.transports, and RbpTransportOps.bit */
#define RBP_TRANSPORT_SHM	0x01
#define RBP_TRANSPORT_TCP	0x02
#define RBP_TRANSPORT_VERBS	0x04

/* How a donor can be reached, as told by the broker. */
typedef struct RbpEndpoint
{
	char		donor[RBP_DONOR_ID_LEN];	/* the donor's id, for messages */
	uint32_t	transports;		/* RBP_TRANSPORT_* that the donor offers */
	char		host[RBP_HOST_LEN]; /* tcp: name or address */
	uint16_t	port;			/* tcp */
	char		shm_name[RBP_SHM_NAME_LEN]; /* shm: abstract UNIX socket name,
											 * without the leading zero */
	char		boot_id[RBP_BOOT_ID_LEN];	/* shm: kernel boot id of its host */
	char		rdma_host[RBP_HOST_LEN];	/* verbs: name or address, often
											 * in another network than host */
	uint16_t	rdma_port;		/* verbs: in the port space RDMA_PS_TCP */
} RbpEndpoint;

/*
 * Credentials of a lease.  A donor does not get the secret, but a key that is
 * derived from it: see rbp_donor_key().
 */
typedef struct RbpCredentials
{
	char		lease[RBP_LEASE_ID_LEN];
	uint8_t		secret[RBP_SECRET_LEN];
} RbpCredentials;

/* A region of a donor, as the broker grants it. */
typedef struct RbpRegionGrant
{
	char		donor[RBP_DONOR_ID_LEN];
	uint32_t	region;			/* the donor's number for it */
	uint64_t	bytes;			/* a multiple of 1 MiB */
	uint64_t	rev;			/* another number each time that the region is
								 * granted */
} RbpRegionGrant;

/* For qsort() and bsearch(): order of grants by donor and region. */
static inline int
rbp_region_compare(const void *a, const void *b)
{
	const RbpRegionGrant *ga = a;
	const RbpRegionGrant *gb = b;
	int			order = strcmp(ga->donor, gb->donor);

	return order != 0 ? order : (ga->region > gb->region) - (ga->region < gb->region);
}

typedef struct RbpConn RbpConn; /* opaque: one connection to one donor */
typedef struct RbpMr RbpMr;		/* opaque: local memory registered with the
								 * device */

typedef enum RbpIoKind
{
	RBP_IO_READ,				/* region -> buf */
	RBP_IO_WRITE,				/* buf -> region */
	RBP_IO_PING					/* a round trip without data */
} RbpIoKind;

/*
 * One request.  The caller owns the request and buf, and must keep both in
 * place from submit() until wait() has set a final status.  The content of a
 * read's buffer is undefined until then, and after any other status than
 * RBP_OK.
 */
typedef struct RbpIo
{
	RbpIoKind	kind;
	uint32_t	region;			/* the donor's region number in this lease */
	uint32_t	grant;			/* grant number: changes when the region was
								 * lost and granted again, and whatever the
								 * transport keeps for the region (a key, a
								 * mapping) is invalid then; never sent */
	uint64_t	offset;			/* bytes from the start of the region */
	uint32_t	len;			/* bytes */
	void	   *buf;
	RbpMr	   *mr;				/* registered memory that contains buf, or
								 * NULL */
	RbpStatus	status;			/* out; RBP_INPROGRESS while in flight */
	uint64_t	cookie;			/* private to the transport: which request on
								 * the wire this is (tcp, shm), or how many
								 * bytes of it are posted (verbs) */
} RbpIo;

#define RBP_RDMA_DEVICE_LEN	64	/* as IB_DEVICE_NAME_MAX */

/* Configuration of RDMA devices in this process */
typedef struct RbpDeviceConfig
{
	char		device[RBP_RDMA_DEVICE_LEN];	/* "mlx5_0"; "": whichever the
												 * route to the peer leads to */
	int			port;			/* of the device, from 1; 0: any */
	int			gid_index;		/* in the port's GID table; -1: the one of the
								 * source address */
	int			traffic_class;	/* 0 .. 255; -1: the system's default */
	int			ack_timeout;	/* a packet is retransmitted after 4.096 us *
								 * 2^this; 1 .. 31 */
	int			retry_count;	/* number of retransmissions, 0 .. 6 (7 would
								 * be unlimited) */
} RbpDeviceConfig;

#define RBP_DEVICE_CONFIG_DEFAULT \
	{.port = 0,.gid_index = -1,.traffic_class = -1,.ack_timeout = 10,.retry_count = 6}

/* What a kind of devices has for the transport that needs them. */
typedef struct RbpTransportDevice
{
	const char *name;			/* for messages: "RDMA" */

	/*
	 * Set the configuration, which is copied, for connections that this
	 * process makes from now on.  Must not be called while another thread
	 * connects.
	 */
	void		(*configure) (const RbpDeviceConfig *config);

	/*
	 * Does this host have a device, or the configured one, if one is named;
	 * and one with an active port?  Both read sysfs, at most once a second,
	 * and open no device.
	 */
	bool		(*present) (void);
	bool		(*usable) (void);

	/*
	 * Why this process could not load the transport's library when it was
	 * last needed; NULL if it has not been needed, or is loaded.  And what to
	 * do about it.
	 */
	const char *(*load_error) (void);
	const char *load_hint;
} RbpTransportDevice;

#define RBP_CONNECT_NS		INT64_C(2000000000) /* without a device */

typedef struct RbpTransportOps
{
	const char *name;			/* as in remote_bp.transport */
	uint32_t	bit;			/* RBP_TRANSPORT_* */

	/*
	 * Reads and writes do not involve the donor's processor, so their success
	 * does not show that the donor's process answers; the success of a ping
	 * does.  Over shm, the first one of a region needs the donor, which hands
	 * out a mapping.
	 */
	bool		one_sided;

	/*
	 * Reads and writes cross no network, so they cannot be late, except those
	 * that need a mapping.
	 */
	bool		local;

	/*
	 * A connection takes long to set up and occupies resources of a device,
	 * so it is worthwhile only for a process that makes more than a few
	 * requests.
	 */
	bool		costly;

	/*
	 * How long connecting may take, in ns: while it is polled; and in all,
	 * after which the donor has given it up.
	 */
	int64_t		connect_ns;
	int64_t		handshake_ns;

	/* The kind of device that it needs, NULL for none */
	const RbpTransportDevice *device;

	/*
	 * Can this process reach the donor by this transport?  This only checks
	 * the endpoint (is the boot id ours?), and does not try to connect.
	 */
	bool		(*usable) (const RbpEndpoint *ep);

	/*
	 * Start to connect and authenticate, without waiting.  On RBP_OK *conn is
	 * set; the caller owns it and must call close().  On any other result
	 * *conn is not changed.
	 */
	RbpStatus	(*connect) (const RbpEndpoint *ep, const RbpCredentials *cred,
							RbpConn **conn);

	/*
	 * Continue connecting until deadline_ns.  RBP_OK: ready for submit().
	 * RBP_INPROGRESS: not connected yet; call again later (a deadline in the
	 * past just polls).  Any other result is final, and only close() may be
	 * called after it.
	 */
	RbpStatus	(*connect_wait) (RbpConn *conn, int64_t deadline_ns);

	/*
	 * Register local memory, from which or into which requests will move
	 * bytes, with the device.  NULL for transports without a device (shm and
	 * tcp).  verbs pins the memory, and fails with RBP_NOMEM where
	 * RLIMIT_MEMLOCK is too low for that.  The memory must stay mapped until
	 * deregister_memory(), which must be called before close().
	 */
	RbpStatus	(*register_memory) (RbpConn *conn, void *base, size_t len,
									RbpMr **mr);
	void		(*deregister_memory) (RbpConn *conn, RbpMr *mr);

	/*
	 * Post n requests as one batch.  The status of each becomes
	 * RBP_INPROGRESS or, immediately, final.  Never blocks: wait() sends
	 * whatever the socket does not accept yet.  Returns RBP_OK even if single
	 * requests have failed, and another status if none could be posted: then
	 * all of them have that status.
	 */
	RbpStatus	(*submit) (RbpConn *conn, RbpIo *ios, int n);

	/*
	 * Wait until all of these n requests are final, or until deadline_ns.
	 * Requests that are not final by then become RBP_TIMEOUT, and neither
	 * they nor their buffers are touched after the return: a late answer is
	 * discarded.  Requests of other batches on the connection make progress
	 * too.  A late answer alone does not break the connection, but giving up
	 * a request on registered memory may do so (verbs): later requests become
	 * RBP_CONNLOST.  Returns RBP_OK if all are RBP_OK, else the first status
	 * that is not.
	 */
	RbpStatus	(*wait) (RbpConn *conn, RbpIo *ios, int n, int64_t deadline_ns);

	/* Close and free; requests in flight are dropped.  NULL is allowed. */
	void		(*close) (RbpConn *conn);
} RbpTransportOps;

/*
 * Every implementation's object starts with this header, so that callers
 * need to carry one pointer only.
 */
struct RbpConn
{
	const RbpTransportOps *ops;
	bool		same_host;		/* once connected, over tcp: to an address of
								 * this host */
};

/*
 * How often this process has mapped a region of a donor, after it had to ask for it,
 * which takes far longer than a read.  (Only shm maps regions.)
 */
extern uint32_t rbp_transport_accesses;

extern const RbpTransportOps rbp_transport_shm;
extern const RbpTransportOps rbp_transport_tcp;
extern RbpTransportOps rbp_transport_verbs; /* see library.c */

/* What that loads when it is used; else for tests */
extern const RbpTransportOps rbp_verbs_ops;
extern const char rbp_verbs_version[];

/*
 * The best transport that the donor offers and this process can use
 * ("auto"), or the named one if it is usable; NULL if there is none.
 * want: "auto" or a transport's name.
 */
extern const RbpTransportOps *rbp_transport_choose(const char *want,
												   const RbpEndpoint *ep);

/* All transports, best first, up to a NULL.  Tests replace entries. */
extern const RbpTransportOps *rbp_transports[];

/* Has the endpoint a name whose address is not known yet? */
static inline bool
rbp_endpoint_unresolved(const RbpEndpoint *ep)
{
	return (ep->port != 0 && ep->host[0] == '\0') ||
		(ep->rdma_port != 0 && ep->rdma_host[0] == '\0');
}

/* By name, NULL if unknown. */
extern const RbpTransportOps *rbp_transport_by_name(const char *name);
extern const RbpTransportOps *rbp_transport_by_bit(uint32_t bit);

/*
 * Optional: do one-time work now, in a process that forks the others, instead
 * of at the first connect of each one: initializing libcrypto takes
 * milliseconds.
 */
extern void rbp_transport_init(void);

/*
 * Store the addresses of a host name in numeric[len], as text, separated by
 * commas, as many as fit.  This may take as long as the resolver does, so it
 * is for threads that can wait; connect() accepts numeric hosts only.
 * Returns false, and stores "", if there is no address.
 */
extern bool rbp_transport_resolve(const char *host, char *numeric, size_t len);

/* Is host an address, so that no name has to be resolved? */
extern bool rbp_transport_is_numeric(const char *host);

/*
 * Optional: set a callback that ends waits early, as if the deadline had
 * come, by returning true.  It is called before each time that a wait blocks,
 * and every RBP_GIVE_UP_NS while it blocks, by the waiting thread.  The
 * setting is for the whole process.  NULL: waits end at their deadlines only.
 */
#define RBP_GIVE_UP_NS		10000000

extern void rbp_transport_set_give_up(bool (*give_up) (void));

/* For transports: the callback's current answer. */
extern bool rbp_transport_give_up(void);

/* This host's boot id, as an endpoint carries it; "" if it cannot be read. */
extern const char *rbp_transport_boot_id(void);

/*
 * How long each side of a verbs connection waits for the other one's next step
 * of the handshake before it gives the connection up, in ns.  rdma_cm sends a
 * lost message again after about 4 s.
 */
#define RBP_VERBS_HANDSHAKE_NS	INT64_C(15000000000)

/* For the daemons and tests: see RbpTransportDevice. */
extern void rbp_verbs_configure(const RbpDeviceConfig *config);
extern bool rbp_verbs_present(void);

#endif							/* RBP_TRANSPORT_H */
