/*-------------------------------------------------------------------------
 *
 * mock_verbs.h
 *	  A simulated RDMA card and connection manager, for unit tests.
 *
 * mock_verbs.c defines the functions of librdmacm and libibverbs that the
 * code here calls, so a test linked with it needs neither a device nor the
 * libraries.  It simulates reliable connected queue pairs with the rules that
 * hardware has: work is done in order; unsignalled work that succeeds gives no
 * completion, work that fails always does, and flushes what is behind it;
 * places in the send queue come free only when a later completion is polled;
 * keys, protection domains, ranges and rights are checked at each access.
 * Bytes move when the simulated device gets to it, which may be long after
 * the request was given up.
 *
 * What a card, its driver or the connection manager would hang, crash or
 * corrupt memory upon is a violation: it is told and counted.  So are leaks.
 *
 * The peer of a queue pair is either scripted by the test, which answers
 * on_connect() and on_message() and lends memory by mock_remote_mr(), or
 * another queue pair of the same process, where some id listens at the address.
 *
 * There are two devices, mock0 and mock1, with the addresses 10.0.N.1 and
 * fd00:N::1.  An address leads to the device with its N.
 *
 * One lock protects everything; hooks are called with it held, and may call
 * all functions here.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MOCK_VERBS_H
#define MOCK_VERBS_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define MOCK_DEVICES	2

/*
 * ---- calls, counted, and made to fail ---------------------------------------
 */
typedef enum MockCall
{
	MOCK_CREATE_CHANNEL,
	MOCK_CREATE_ID,
	MOCK_BIND_ADDR,
	MOCK_LISTEN,
	MOCK_SET_OPTION,
	MOCK_RESOLVE_ADDR,
	MOCK_RESOLVE_ROUTE,
	MOCK_CREATE_QP,
	MOCK_CONNECT,
	MOCK_ACCEPT,
	MOCK_REJECT,
	MOCK_DISCONNECT,
	MOCK_GET_EVENT,
	MOCK_MIGRATE_ID,
	MOCK_GET_DEVICES,
	MOCK_OPEN_DEVICE,
	MOCK_QUERY_DEVICE,
	MOCK_QUERY_PORT,
	MOCK_FORK_INIT,
	MOCK_ALLOC_PD,
	MOCK_REG_MR,
	MOCK_DEREG_MR,
	MOCK_CREATE_COMP,
	MOCK_CREATE_CQ,
	MOCK_MODIFY_QP,
	MOCK_POST_SEND,
	MOCK_POST_RECV,
	MOCK_POLL_CQ,
	MOCK_REQ_NOTIFY,
	MOCK_MALLOC,				/* the test's own, see below */
	MOCK_MMAP,
	MOCK_MADVISE,
	MOCK_NCALLS
} MockCall;

extern const char *mock_call_name(MockCall call);

/* Calls since the last mock_reset(). */
extern _Atomic uint64_t mock_calls[MOCK_NCALLS];

/* Let the nth call from now (1 is the next) fail with this errno; 0: none. */
#define MOCK_ALWAYS	UINT32_MAX
extern void mock_fail(MockCall call, uint32_t nth, int error);

/* Has the call that was to fail been made? */
extern bool mock_failed(MockCall call);

/*
 * Allocation for a source that the test includes whole, with these in place
 * of the system's functions.  munmap() of registered memory is a violation.
 */
extern void *mock_malloc(size_t size);
extern void *mock_calloc(size_t n, size_t size);
extern void *mock_realloc(void *p, size_t size);
extern int	mock_posix_memalign(void **p, size_t alignment, size_t size);
extern void *mock_aligned_alloc(size_t alignment, size_t size);
extern void *mock_mmap(void *addr, size_t len, int prot, int flags, int fd,
					   off_t offset);
extern int	mock_munmap(void *addr, size_t len);
extern int	mock_madvise(void *addr, size_t len, int advice);

/*
 * ---- the device -------------------------------------------------------------
 */

/* A piece of work that the device is about to do. */
typedef struct MockWork
{
	struct ibv_qp *qp;
	enum ibv_wr_opcode opcode;
	uint64_t	wr_id;
	bool		signalled;
	uint8_t    *local;			/* of the first element; NULL: inline or none */
	uint32_t	len;
	uint64_t	remote_addr;
	uint32_t	rkey;
} MockWork;

#define MOCK_HOLD	(-1)

typedef struct MockHooks
{
	/*
	 * What becomes of it: IBV_WC_SUCCESS (do it, if keys and all that are
	 * right), another status to fail with, or MOCK_HOLD: not now; ask again
	 * when there is an occasion.
	 */
	int			(*on_work) (const MockWork *work);

	/* A message for a scripted peer. */
	void		(*on_message) (struct ibv_qp *qp, const uint8_t *data, uint32_t len);

	/* A request to connect where nobody in this process listens. */
	void		(*on_connect) (struct rdma_cm_id *id, const struct rdma_conn_param *param);

	/* Before each poll of a completion queue, and of an event channel. */
	void		(*on_poll) (struct ibv_cq *cq);
	void		(*on_get_event) (struct rdma_event_channel *channel);

	/* Connection manager's steps; false: they are not to be answered. */
	bool		(*on_resolve_addr) (struct rdma_cm_id *id);
	bool		(*on_resolve_route) (struct rdma_cm_id *id);
} MockHooks;

extern MockHooks mock_hooks;

/* Limits of both devices; to be changed before something is opened. */
extern struct ibv_device_attr mock_limits;
extern uint32_t mock_max_inline;

extern bool mock_lazy;			/* work is done by polls only, not at once */
extern int	mock_poll_max;		/* completions for one poll at most; 0: any */
extern int	mock_fail_at;		/* a post that fails got that far */

/*
 * A queue pair that is moved to the error state goes on moving bytes of what
 * was posted before, until it has flushed everything; that takes so many
 * polls.  However many, it is over when the queue pair is destroyed.
 */
extern int	mock_flush_polls;

/* When work fails, receives end before anything else is polled. */
extern bool mock_receives_first;

/* The key that was given back last is given again first. */
extern bool mock_same_keys;

/* How long registrations take, and their ends. */
extern atomic_int mock_register_us;
extern atomic_int mock_deregister_us;

/* What a device is, and whether its port is active. */
extern void mock_set_device(int device, enum ibv_transport_type type, bool active);

/*
 * Queue pairs are not created before this is false, if the id is of that event
 * channel (NULL: any); so many are waited for.
 */
extern atomic_bool mock_hold_create_qp;
extern struct rdma_event_channel *mock_hold_channel;
extern atomic_int mock_held_create_qp;

/* Main function of a thread that lets them go after so many us, a useconds_t. */
extern void *mock_release_create_qp(void *us);

/* Do what can be done. */
extern void mock_progress(void);

/*
 * An asynchronous event of a device.  element: the queue pair, or the number
 * of the port.
 */
extern void mock_async(int device, enum ibv_event_type type, struct ibv_qp *qp,
					   int port);

/* As if the queue pair had met an error by itself. */
extern void mock_qp_error(struct ibv_qp *qp);

/* What was posted and has not been completed. */
extern uint32_t mock_posted(struct ibv_qp *qp);
extern uint32_t mock_receives(struct ibv_qp *qp);

/* The one queue pair that there is, or the newest of several; or NULL. */
extern struct ibv_qp *mock_qp(void);

/*
 * ---- scripted peers -----------------------------------------------------------
 */

/* Memory of a donor: a key by which it is found at iova; access as for a MR. */
extern uint32_t mock_remote_mr(void *addr, size_t len, uint64_t iova, int access);
extern void mock_remote_dereg(uint32_t rkey);

/* A message from the peer.  False if no receive is posted for it. */
extern bool mock_message(struct ibv_qp *qp, const void *data, uint32_t len);

/*
 * An event on the id's channel, after a delay.  The id's queue pair follows,
 * as librdmacm has it: ESTABLISHED makes it ready when it is fetched, REJECTED
 * moves it to the error state.
 */
extern void mock_event(struct rdma_cm_id *id, enum rdma_cm_event_type type,
					   int status, const void *data, uint8_t len,
					   int64_t delay_ns);

/* The id whose resolution or connection is under way, or the newest; or NULL. */
extern struct rdma_cm_id *mock_id(void);

/* What was set by rdma_set_option(); -1: nothing. */
extern int	mock_tos(struct rdma_cm_id *id);
extern int	mock_ack_timeout(struct rdma_cm_id *id);

/* A device goes, and all ids on it are told; whoever comes then finds it back. */
extern void mock_remove_device(int device);

/*
 * The RTU does not come: an id that has accepted is not told that it is
 * connected, until rdma_notify() says so.
 */
extern bool mock_lose_rtu;

/* Completion status of a REJECTED event: by the peer, or by the system. */
#define MOCK_REJECTED_BY_PEER	28
#define MOCK_REJECTED_NO_SERVICE 8

/*
 * ---- what is left ---------------------------------------------------------------
 */

/* Violations since the start; the first ones were told. */
extern uint32_t mock_violations(void);

/* Objects that exist, of any kind; told as remarks if tell. */
extern uint32_t mock_leaks(bool tell);

/* Registrations that exist, scripted peers' not counted; and their bytes. */
extern uint32_t mock_registrations(uint64_t *bytes);

/* Can any of this memory be reached by a key that is not scripted? */
extern bool mock_exposed(const void *addr, size_t len);

/*
 * Forget hooks, failures, counts and peers' memory; what leaked is freed, so
 * that one test's leak is not the next one's.
 */
extern void mock_reset(void);

#endif							/* MOCK_VERBS_H */
