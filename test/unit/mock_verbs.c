/*-------------------------------------------------------------------------
 *
 * mock_verbs.c
 *	  See mock_verbs.h.
 *
 * Objects are kept in lists by kind; what the caller holds is the first
 * member of ours.  A queue pair counts the work that was posted to it, what
 * was done of it, and what came free in its queue, all from its beginning.
 *
 *-------------------------------------------------------------------------
 */
#include "mock_verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_query_port

/* What the messages of the connection manager leave for private data. */
#define REQ_DATA		56
#define REP_DATA		196
#define REJ_DATA		148

#define MAX_SGE			4
#define RNR_NS			INT64_C(200000000)	/* how long a sender tries */

typedef struct Mr
{
	struct ibv_mr mr;
	uint64_t	iova;
	int			access;
	bool		stuck;			/* the device did not let go of it */
	struct Mr  *next;
} Mr;

typedef struct Pd
{
	struct ibv_pd pd;
	struct Pd  *next;
} Pd;

typedef struct Comp
{
	struct ibv_comp_channel comp;
	struct ibv_cq *queue[64];	/* whose events are to be fetched */
	int			nqueue;
	struct Comp *next;
} Comp;

typedef struct Cqe
{
	struct ibv_wc wc;
	bool		receive;
	uint64_t	count;			/* of the work, in its queue, from 1 */
} Cqe;

typedef struct Cq
{
	struct ibv_cq cq;
	Cqe		   *ring;
	uint64_t	added;
	uint64_t	polled;
	bool		armed;
	uint32_t	unacked;
	struct Cq  *next;
} Cq;

typedef struct Work
{
	MockWork	seen;
	struct ibv_sge sge[MAX_SGE];
	int			nsge;
	uint8_t    *data;			/* of inline work */
} Work;

typedef struct Receive
{
	uint64_t	wr_id;
	struct ibv_sge sge;
} Receive;

typedef struct Qp
{
	struct ibv_qp qp;
	struct ibv_qp_cap cap;
	bool		sig_all;
	Work	   *works;			/* ring of cap.max_send_wr */
	uint64_t	posted;
	uint64_t	done;
	uint64_t	freed;
	Receive    *receives;		/* ring of cap.max_recv_wr */
	uint64_t	rposted;
	uint64_t	rdone;
	uint64_t	rfreed;
	struct Qp  *peer;			/* NULL: scripted, or gone */
	bool		peer_gone;
	bool		moving;			/* in error, but bytes still move */
	int			flush_polls;
	int64_t		rnr_since;
	struct Qp  *next;
} Qp;

typedef enum IdState
{
	ID_IDLE,
	ID_BOUND,
	ID_LISTENING,
	ID_ADDR_QUERY,
	ID_ADDR_RESOLVED,
	ID_ROUTE_QUERY,
	ID_ROUTE_RESOLVED,
	ID_CONNECTING,
	ID_REQUESTED,				/* a request that waits for accept or reject */
	ID_ACCEPTED,
	ID_CONNECTED,
	ID_OVER
} IdState;

typedef struct Id
{
	struct rdma_cm_id id;
	IdState		state;
	struct Id  *peer;
	uint32_t	unacked;
	uint32_t	event_seq;		/* of its last step */
	int			tos;
	int			ack_timeout;
	struct Id  *next;
} Id;

typedef struct Event
{
	struct rdma_cm_event ev;
	Id		   *counted;		/* whose destruction waits for the ack */
	struct rdma_event_channel *channel;
	int64_t		due;
	uint8_t		data[256];
	struct Event *next;
} Event;

typedef struct Channel
{
	struct rdma_event_channel channel;	/* fd: an epoll of the two below */
	int			now_fd;
	int			timer_fd;
	struct Channel *next;
} Channel;

typedef struct Device
{
	struct ibv_context context;
	struct ibv_device device;
	int			opened;
} Device;

MockHooks	mock_hooks;
struct ibv_device_attr mock_limits;
uint32_t	mock_max_inline = 220;
bool		mock_lazy;
int			mock_poll_max;
int			mock_fail_at;
int			mock_flush_polls;
bool		mock_receives_first;
atomic_int	mock_register_us;
atomic_int	mock_deregister_us;
_Atomic uint64_t mock_calls[MOCK_NCALLS];

static uint32_t fail_nth[MOCK_NCALLS];
static int	fail_error[MOCK_NCALLS];
static bool fail_done[MOCK_NCALLS];

static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static Device devices[MOCK_DEVICES];
static Mr  *mrs;
static Mr  *remote_mrs;
static Pd  *pds;
static Comp *comps;
static Cq  *cqs;
static Qp  *qps;
static Id  *ids;
static Channel *channels;
static Event *queue;			/* to be fetched, in order */
static Event *fetched;			/* to be acknowledged */
static uint32_t next_number = 17;
static uint32_t steps;
static uint32_t violations;

/*
 * ---- common ------------------------------------------------------------------
 */
static int	do_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc);
static int	do_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
						 struct ibv_send_wr **bad);
static int	do_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
						 struct ibv_recv_wr **bad);
static int	do_notify(struct ibv_cq *cq, int solicited);

static void
default_limits(void)
{
	mock_limits = (struct ibv_device_attr) {
		.max_qp = 1000,.max_qp_wr = 1024,.max_sge = 4,.max_cq = 1000,
			.max_cqe = 4096,.max_mr = 100000,.max_pd = 1000,
			.max_mr_size = UINT64_MAX,
			.max_qp_rd_atom = 16,.max_qp_init_rd_atom = 16,.phys_port_cnt = 1,
			.atomic_cap = IBV_ATOMIC_NONE
	};
	mock_max_inline = 220;
}

static void
initialize(void)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&lock, &attr);
	default_limits();
	for (int i = 0; i < MOCK_DEVICES; i++)
	{
		Device	   *d = &devices[i];

		d->context.device = &d->device;
		d->context.cmd_fd = d->context.async_fd = -1;
		d->context.num_comp_vectors = 1;
		d->context.ops.poll_cq = do_poll;
		d->context.ops.post_send = do_post_send;
		d->context.ops.post_recv = do_post_recv;
		d->context.ops.req_notify_cq = do_notify;
		d->device.node_type = IBV_NODE_CA;
		d->device.transport_type = IBV_TRANSPORT_IB;
		snprintf(d->device.name, sizeof(d->device.name), "mock%d", i);
		snprintf(d->device.dev_name, sizeof(d->device.dev_name), "uverbs%d", i);
	}
}

static void
enter(void)
{
	pthread_once(&once, initialize);
	pthread_mutex_lock(&lock);
}

static void
leave(void)
{
	pthread_mutex_unlock(&lock);
}

__attribute__((format(printf, 1, 2))) static void
violation(const char *fmt, ...)
{
	char		text[200];
	va_list		args;

	if (violations++ >= 20)
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	printf("# mock: %s\n", text);
	fflush(stdout);
}

/* The mock itself cannot go on without memory. */
static void *
get(size_t n, size_t size)
{
	void	   *p = calloc(n, size);

	if (p == NULL)
		abort();
	return p;
}

static int64_t
now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Take an object from its list; false if it is not in it. */
#define UNLINK(list, object) __extension__ ({ \
		bool		found_ = false; \
		\
		for (__typeof__(list) *at_ = &(list); *at_ != NULL; at_ = &(*at_)->next) \
			if (*at_ == (object)) \
			{ \
				*at_ = (*at_)->next; \
				found_ = true; \
				break; \
			} \
		found_; })

#define LINK(list, object) \
	do { (object)->next = (list); (list) = (object); } while (0)

static const char *const call_names[MOCK_NCALLS] = {
	"rdma_create_event_channel", "rdma_create_id", "rdma_bind_addr",
	"rdma_listen", "rdma_set_option", "rdma_resolve_addr",
	"rdma_resolve_route", "rdma_create_qp", "rdma_connect", "rdma_accept",
	"rdma_reject", "rdma_disconnect", "rdma_get_cm_event", "rdma_migrate_id",
	"rdma_get_devices", "ibv_open_device", "ibv_query_device",
	"ibv_query_port", "ibv_fork_init", "ibv_alloc_pd", "ibv_reg_mr",
	"ibv_dereg_mr", "ibv_create_comp_channel", "ibv_create_cq",
	"ibv_modify_qp", "ibv_post_send", "ibv_post_recv", "ibv_poll_cq",
	"ibv_req_notify_cq", "malloc", "mmap", "madvise"
};

const char *
mock_call_name(MockCall call)
{
	return call_names[call];
}

void
mock_fail(MockCall call, uint32_t nth, int error)
{
	enter();
	fail_nth[call] = nth;
	fail_error[call] = error;
	fail_done[call] = false;
	leave();
}

bool
mock_failed(MockCall call)
{
	bool		done;

	enter();
	done = fail_done[call];
	leave();
	return done;
}

/* Count a call; true, with errno set, if it is to fail. */
static bool
fails(MockCall call)
{
	mock_calls[call]++;
	if (fail_nth[call] == 0 ||
		(fail_nth[call] != MOCK_ALWAYS && --fail_nth[call] > 0))
		return false;
	fail_done[call] = true;
	errno = fail_error[call];
	return true;
}

/* The same, for what is not under the lock otherwise. */
static bool
fails_alone(MockCall call)
{
	bool		rc;

	enter();
	rc = fails(call);
	leave();
	return rc;
}

uint32_t
mock_violations(void)
{
	uint32_t	n;

	enter();
	n = violations;
	leave();
	return n;
}

/*
 * ---- allocation for sources under test ------------------------------------------
 */
void *
mock_malloc(size_t size)
{
	return fails_alone(MOCK_MALLOC) ? NULL : malloc(size);
}

void *
mock_calloc(size_t n, size_t size)
{
	return fails_alone(MOCK_MALLOC) ? NULL : calloc(n, size);
}

void *
mock_realloc(void *p, size_t size)
{
	return fails_alone(MOCK_MALLOC) ? NULL : realloc(p, size);
}

int
mock_posix_memalign(void **p, size_t alignment, size_t size)
{
	return fails_alone(MOCK_MALLOC) ? errno : posix_memalign(p, alignment, size);
}

void *
mock_aligned_alloc(size_t alignment, size_t size)
{
	return fails_alone(MOCK_MALLOC) ? NULL : aligned_alloc(alignment, size);
}

void *
mock_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
	return fails_alone(MOCK_MMAP) ? MAP_FAILED
		: mmap(addr, len, prot, flags, fd, offset);
}

int
mock_munmap(void *addr, size_t len)
{
	enter();
	for (Mr *mr = mrs; mr != NULL; mr = mr->next)
		if ((char *) mr->mr.addr < (char *) addr + len &&
			(char *) addr < (char *) mr->mr.addr + mr->mr.length)
			violation("munmap of registered memory");
	leave();
	return munmap(addr, len);
}

int
mock_madvise(void *addr, size_t len, int advice)
{
	return fails_alone(MOCK_MADVISE) ? -1 : madvise(addr, len, advice);
}

/*
 * ---- devices, domains, registrations -----------------------------------------------
 */
enum ibv_fork_status
ibv_is_fork_initialized(void)
{
	return IBV_FORK_DISABLED;
}

int
ibv_fork_init(void)
{
	return fails_alone(MOCK_FORK_INIT) ? errno : 0;
}

const char *
ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

struct ibv_device **
ibv_get_device_list(int *num)
{
	struct ibv_device **list = NULL;

	enter();
	if (!fails(MOCK_GET_DEVICES))
	{
		list = get(MOCK_DEVICES + 1, sizeof(*list));
		for (int i = 0; i < MOCK_DEVICES; i++)
			list[i] = &devices[i].device;
		if (num != NULL)
			*num = MOCK_DEVICES;
	}
	leave();
	return list;
}

void
ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

struct ibv_context **
rdma_get_devices(int *num)
{
	struct ibv_context **list = NULL;

	enter();
	if (!fails(MOCK_GET_DEVICES))
	{
		list = get(MOCK_DEVICES + 1, sizeof(*list));
		for (int i = 0; i < MOCK_DEVICES; i++)
			list[i] = &devices[i].context;
		if (num != NULL)
			*num = MOCK_DEVICES;
	}
	leave();
	return list;
}

void
rdma_free_devices(struct ibv_context **list)
{
	free(list);
}

struct ibv_context *
ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *context = NULL;

	enter();
	if (!fails(MOCK_OPEN_DEVICE))
		for (int i = 0; i < MOCK_DEVICES; i++)
			if (device == &devices[i].device)
			{
				devices[i].opened++;
				context = &devices[i].context;
			}
	leave();
	return context;
}

int
ibv_close_device(struct ibv_context *context)
{
	enter();
	for (int i = 0; i < MOCK_DEVICES; i++)
		if (context == &devices[i].context && devices[i].opened-- <= 0)
			violation("a device that is not open is closed");
	leave();
	return 0;
}

int
ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	int			rc = 0;

	(void) context;
	enter();
	if (fails(MOCK_QUERY_DEVICE))
		rc = errno;
	else
		*attr = mock_limits;
	leave();
	return rc;
}

int
ibv_query_port(struct ibv_context *context, uint8_t port,
			   struct _compat_ibv_port_attr *compat)
{
	struct ibv_port_attr *attr = (struct ibv_port_attr *) compat;
	int			rc = 0;

	(void) context;
	enter();
	if (fails(MOCK_QUERY_PORT))
		rc = errno;
	else if (port != 1)
		rc = EINVAL;
	else
	{
		attr->state = IBV_PORT_ACTIVE;
		attr->max_mtu = attr->active_mtu = IBV_MTU_4096;
		attr->gid_tbl_len = 8;
		attr->link_layer = IBV_LINK_LAYER_ETHERNET;
	}
	leave();
	return rc;
}

struct ibv_pd *
ibv_alloc_pd(struct ibv_context *context)
{
	Pd		   *pd = NULL;

	enter();
	if (!fails(MOCK_ALLOC_PD))
	{
		pd = get(1, sizeof(*pd));
		pd->pd.context = context;
		pd->pd.handle = next_number++;
		LINK(pds, pd);
	}
	leave();
	return pd != NULL ? &pd->pd : NULL;
}

int
ibv_dealloc_pd(struct ibv_pd *pd)
{
	int			rc = 0;
	bool		used = false;

	enter();
	for (Mr *mr = mrs; mr != NULL; mr = mr->next)
		if (mr->mr.pd == pd)
		{
			used |= !mr->stuck;
			rc = EBUSY;
		}
	for (Qp *qp = qps; qp != NULL; qp = qp->next)
		used |= qp->qp.pd == pd;
	if (used)
		violation("a protection domain in use is deallocated");
	if (used || rc != 0)
		rc = EBUSY;
	else if (!UNLINK(pds, (Pd *) pd))
		violation("an unknown protection domain is deallocated");
	else
		free(pd);
	leave();
	return rc;
}

static struct ibv_mr *
register_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			unsigned int access)
{
	Mr		   *mr = NULL;

	if (mock_register_us > 0)
		usleep((useconds_t) mock_register_us);
	enter();
	if (!fails(MOCK_REG_MR))
	{
		if (addr == NULL || length == 0 ||
			((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
			 (access & IBV_ACCESS_LOCAL_WRITE) == 0))
		{
			violation("memory is registered with rights that make no sense");
			errno = EINVAL;
		}
		else
		{
			mr = get(1, sizeof(*mr));
			mr->mr.context = pd->context;
			mr->mr.pd = pd;
			mr->mr.addr = addr;
			mr->mr.length = length;
			mr->mr.handle = next_number++;
			mr->mr.lkey = next_number++ << 8 | 1;
			mr->mr.rkey = next_number++ << 8 | 2;
			mr->iova = iova;
			mr->access = (int) access;
			LINK(mrs, mr);
		}
	}
	leave();
	return mr != NULL ? &mr->mr : NULL;
}

struct ibv_mr *
ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return register_mr(pd, addr, length, (uintptr_t) addr, (unsigned int) access);
}

struct ibv_mr *
ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				 unsigned int access)
{
	return register_mr(pd, addr, length, iova, access);
}

int
ibv_dereg_mr(struct ibv_mr *mr)
{
	int			rc = 0;

	if (mock_deregister_us > 0)
		usleep((useconds_t) mock_deregister_us);
	enter();
	if (fails(MOCK_DEREG_MR))
	{
		((Mr *) mr)->stuck = true;
		rc = errno;
	}
	else if (!UNLINK(mrs, (Mr *) mr))
		violation("an unknown registration is removed");
	else
	{
		for (Qp *qp = qps; qp != NULL; qp = qp->next)
		{
			for (uint64_t n = qp->done; n < qp->posted; n++)
			{
				Work	   *work = &qp->works[n % qp->cap.max_send_wr];

				for (int i = 0; i < work->nsge; i++)
					if (work->sge[i].lkey == mr->lkey)
						violation("memory is deregistered that posted work uses");
			}
			for (uint64_t n = qp->rdone; n < qp->rposted; n++)
				if (qp->receives[n % qp->cap.max_recv_wr].sge.lkey == mr->lkey)
					violation("memory is deregistered that a posted receive uses");
		}
		free(mr);
	}
	leave();
	return rc;
}

uint32_t
mock_registrations(uint64_t *bytes)
{
	uint32_t	n = 0;
	uint64_t	sum = 0;

	enter();
	for (Mr *mr = mrs; mr != NULL; mr = mr->next)
	{
		n++;
		sum += mr->mr.length;
	}
	leave();
	if (bytes != NULL)
		*bytes = sum;
	return n;
}

bool
mock_exposed(const void *addr, size_t len)
{
	bool		found = false;

	enter();
	for (Mr *mr = mrs; mr != NULL; mr = mr->next)
		found |= (mr->access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)) != 0 &&
			(const char *) mr->mr.addr < (const char *) addr + len &&
			(const char *) addr < (const char *) mr->mr.addr + mr->mr.length;
	leave();
	return found;
}

/*
 * Where an access to memory leads.  pd NULL: memory of scripted peers.  NULL
 * if it is not allowed.
 */
static uint8_t *
reach(struct ibv_pd *pd, bool remote, uint32_t key, uint64_t addr, uint32_t len,
	  int access)
{
	for (Mr *mr = remote && pd == NULL ? remote_mrs : mrs; mr != NULL; mr = mr->next)
	{
		if ((remote ? mr->mr.rkey : mr->mr.lkey) != key)
			continue;
		if (mr->mr.pd != pd || (mr->access & access) != access ||
			addr < mr->iova || len > mr->mr.length ||
			addr - mr->iova > mr->mr.length - len)
			return NULL;
		return (uint8_t *) mr->mr.addr + (addr - mr->iova);
	}
	return NULL;
}

uint32_t
mock_remote_mr(void *addr, size_t len, uint64_t iova, int access)
{
	Mr		   *mr = get(1, sizeof(*mr));
	uint32_t	key;

	enter();
	mr->mr.addr = addr;
	mr->mr.length = len;
	key = mr->mr.rkey = next_number++ << 8 | 3;
	mr->iova = iova;
	mr->access = access;
	LINK(remote_mrs, mr);
	leave();
	return key;
}

void
mock_remote_dereg(uint32_t rkey)
{
	enter();
	for (Mr *mr = remote_mrs; mr != NULL; mr = mr->next)
		if (mr->mr.rkey == rkey)
		{
			(void) UNLINK(remote_mrs, mr);
			free(mr);
			break;
		}
	leave();
}

/*
 * ---- completion queues ----------------------------------------------------------------
 */
struct ibv_comp_channel *
ibv_create_comp_channel(struct ibv_context *context)
{
	Comp	   *comp = NULL;

	enter();
	if (!fails(MOCK_CREATE_COMP))
	{
		comp = get(1, sizeof(*comp));
		comp->comp.context = context;
		comp->comp.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
		if (comp->comp.fd < 0)
			abort();
		LINK(comps, comp);
	}
	leave();
	return comp != NULL ? &comp->comp : NULL;
}

int
ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	int			rc = 0;

	enter();
	for (Cq *cq = cqs; cq != NULL; cq = cq->next)
		if (cq->cq.channel == channel)
			rc = EBUSY;
	if (rc != 0)
		violation("a completion channel in use is destroyed");
	else if (!UNLINK(comps, (Comp *) channel))
		violation("an unknown completion channel is destroyed");
	else
	{
		close(channel->fd);
		free(channel);
	}
	leave();
	return rc;
}

struct ibv_cq *
ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			  struct ibv_comp_channel *channel, int comp_vector)
{
	Cq		   *cq = NULL;

	(void) comp_vector;
	enter();
	if (fails(MOCK_CREATE_CQ))
		;
	else if (cqe < 1 || cqe > mock_limits.max_cqe)
		errno = EINVAL;
	else
	{
		cq = get(1, sizeof(*cq));
		cq->cq.context = context;
		cq->cq.channel = channel;
		cq->cq.cq_context = cq_context;
		cq->cq.handle = next_number++;
		cq->cq.cqe = cqe;
		cq->ring = get((size_t) cqe, sizeof(Cqe));
		LINK(cqs, cq);
	}
	leave();
	return cq != NULL ? &cq->cq : NULL;
}

int
ibv_destroy_cq(struct ibv_cq *ibcq)
{
	Cq		   *cq = (Cq *) ibcq;
	int			rc = 0;

	enter();
	for (Qp *qp = qps; qp != NULL; qp = qp->next)
		if (qp->qp.send_cq == ibcq || qp->qp.recv_cq == ibcq)
			rc = EBUSY;
	if (rc != 0)
		violation("a completion queue in use is destroyed");
	else if (!UNLINK(cqs, cq))
		violation("an unknown completion queue is destroyed");
	else
	{
		Comp	   *comp = (Comp *) ibcq->channel;
		int			n = 0;

		if (cq->unacked > 0)
			violation("a completion queue with unacknowledged events is destroyed");
		for (int i = 0; comp != NULL && i < comp->nqueue; i++)
		{
			uint64_t	one;

			if (comp->queue[i] != ibcq)
				comp->queue[n++] = comp->queue[i];
			else if (read(comp->comp.fd, &one, sizeof(one)) != sizeof(one))
				abort();
		}
		if (comp != NULL)
			comp->nqueue = n;
		free(cq->ring);
		free(cq);
	}
	leave();
	return rc;
}

static int
do_notify(struct ibv_cq *cq, int solicited)
{
	int			rc = 0;

	(void) solicited;
	enter();
	if (fails(MOCK_REQ_NOTIFY))
		rc = errno;
	else
		((Cq *) cq)->armed = true;
	leave();
	return rc;
}

int
ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq,
				 void **cq_context)
{
	Comp	   *comp = (Comp *) channel;
	uint64_t	one;

	if (read(channel->fd, &one, sizeof(one)) != sizeof(one))
		return -1;
	enter();
	if (comp->nqueue == 0)
		abort();
	*cq = comp->queue[0];
	*cq_context = (*cq)->cq_context;
	((Cq *) *cq)->unacked++;
	comp->nqueue--;
	memmove(&comp->queue[0], &comp->queue[1], (size_t) comp->nqueue * sizeof(comp->queue[0]));
	leave();
	return 0;
}

void
ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	enter();
	if (n > ((Cq *) cq)->unacked)
		violation("more completion events are acknowledged than were fetched");
	else
		((Cq *) cq)->unacked -= n;
	leave();
}

static void
add_completion(Qp *qp, bool receive, uint64_t count, uint64_t wr_id,
			   enum ibv_wc_status status, enum ibv_wc_opcode opcode,
			   uint32_t bytes)
{
	Cq		   *cq = (Cq *) (receive ? qp->qp.recv_cq : qp->qp.send_cq);
	Cqe		   *cqe;

	if (cq->added - cq->polled >= (uint64_t) cq->cq.cqe)
	{
		violation("a completion queue of %d overruns", cq->cq.cqe);
		return;
	}
	cqe = &cq->ring[cq->added++ % (uint64_t) cq->cq.cqe];
	memset(&cqe->wc, 0xA5, sizeof(cqe->wc));
	cqe->wc.wr_id = wr_id;
	cqe->wc.status = status;
	cqe->wc.qp_num = qp->qp.qp_num;
	if (status == IBV_WC_SUCCESS)
	{
		/* of one that failed, only what is above is valid */
		cqe->wc.opcode = opcode;
		cqe->wc.byte_len = bytes;
		cqe->wc.wc_flags = 0;
	}
	cqe->receive = receive;
	cqe->count = count;

	if (cq->armed && cq->cq.channel != NULL)
	{
		Comp	   *comp = (Comp *) cq->cq.channel;
		uint64_t	one = 1;

		if (comp->nqueue == (int) (sizeof(comp->queue) / sizeof(comp->queue[0])))
			abort();
		comp->queue[comp->nqueue++] = &cq->cq;
		if (write(comp->comp.fd, &one, sizeof(one)) != sizeof(one))
			abort();
		cq->armed = false;
	}
}

/*
 * ---- queue pairs -------------------------------------------------------------------
 */
static void progress(Qp *qp);

static Qp *
find_qp(uint32_t qp_num)
{
	for (Qp *qp = qps; qp != NULL; qp = qp->next)
		if (qp->qp.qp_num == qp_num)
			return qp;
	return NULL;
}

struct ibv_qp *
mock_qp(void)
{
	return qps != NULL ? &qps->qp : NULL;
}

uint32_t
mock_posted(struct ibv_qp *qp)
{
	return (uint32_t) (((Qp *) qp)->posted - ((Qp *) qp)->done);
}

uint32_t
mock_receives(struct ibv_qp *qp)
{
	return (uint32_t) (((Qp *) qp)->rposted - ((Qp *) qp)->rdone);
}

/* A message comes.  False if nothing is posted for it. */
static bool
deliver(Qp *qp, const uint8_t *data, uint32_t len)
{
	Receive    *receive;
	uint8_t    *to = NULL;
	enum ibv_wc_status status = IBV_WC_SUCCESS;

	if (qp->rdone == qp->rposted)
		return false;
	receive = &qp->receives[qp->rdone++ % qp->cap.max_recv_wr];
	if (receive->sge.length > 0)
		to = reach(qp->qp.pd, false, receive->sge.lkey, receive->sge.addr,
				   receive->sge.length, IBV_ACCESS_LOCAL_WRITE);
	if (len > receive->sge.length)
		status = IBV_WC_LOC_LEN_ERR;
	else if (to == NULL && len > 0)
	{
		violation("a receive into memory that is not registered for it");
		status = IBV_WC_LOC_PROT_ERR;
	}
	else if (len > 0)
		memcpy(to, data, len);
	add_completion(qp, true, qp->rdone, receive->wr_id, status, IBV_WC_RECV, len);
	if (status != IBV_WC_SUCCESS)
		mock_qp_error(&qp->qp);
	return true;
}

bool
mock_message(struct ibv_qp *ibqp, const void *data, uint32_t len)
{
	bool		rc;

	enter();
	rc = ibqp->state == IBV_QPS_RTS && deliver((Qp *) ibqp, data, len);
	leave();
	return rc;
}

/* As a device does it: words change at once, and nobody waits for anybody. */
static void
copy(uint8_t *to, const uint8_t *from, uint32_t len)
{
	uint32_t	at = 0;

	if (((uintptr_t) to & 7) == 0 && ((uintptr_t) from & 7) == 0)
		for (; at + 8 <= len; at += 8)
			__atomic_store_n((uint64_t *) (to + at),
							 __atomic_load_n((const uint64_t *) (from + at), __ATOMIC_RELAXED),
							 __ATOMIC_RELAXED);
	for (; at < len; at++)
		__atomic_store_n(to + at, __atomic_load_n(from + at, __ATOMIC_RELAXED),
						 __ATOMIC_RELAXED);
}

/*
 * Move the bytes of a piece of work.  MOCK_HOLD: the peer is not ready for a
 * message.
 */
static int
execute(Qp *qp, Work *work)
{
	struct ibv_pd *pd = qp->peer != NULL ? qp->peer->qp.pd : NULL;
	int			access = work->seen.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0;
	uint8_t    *local[MAX_SGE];
	uint32_t	at = 0;
	uint8_t    *remote;

	for (int i = 0; i < work->nsge; i++)
	{
		local[i] = reach(qp->qp.pd, false, work->sge[i].lkey, work->sge[i].addr,
						 work->sge[i].length, access);
		if (local[i] == NULL)
		{
			violation("work on memory that is not registered for it");
			return IBV_WC_LOC_PROT_ERR;
		}
	}
	if (qp->peer_gone || (qp->peer != NULL && qp->peer->qp.state != IBV_QPS_RTS))
		return IBV_WC_RETRY_EXC_ERR;

	if (work->seen.opcode == IBV_WR_SEND)
	{
		uint8_t    *data = get(1, work->seen.len + 1);
		bool		taken = true;

		if (work->data != NULL)
			memcpy(data, work->data, work->seen.len);
		for (int i = 0; i < work->nsge; i++)
		{
			memcpy(data + at, local[i], work->sge[i].length);
			at += work->sge[i].length;
		}
		if (qp->peer != NULL)
			taken = deliver(qp->peer, data, work->seen.len);
		else if (mock_hooks.on_message != NULL)
			mock_hooks.on_message(&qp->qp, data, work->seen.len);
		free(data);
		if (!taken)
		{
			if (qp->rnr_since == 0)
				qp->rnr_since = now_ns();
			return now_ns() - qp->rnr_since < RNR_NS ? MOCK_HOLD
				: IBV_WC_RNR_RETRY_EXC_ERR;
		}
		qp->rnr_since = 0;
		return IBV_WC_SUCCESS;
	}

	if (work->seen.len == 0)
		return IBV_WC_SUCCESS;	/* its key is not looked at */
	remote = reach(pd, true, work->seen.rkey, work->seen.remote_addr, work->seen.len,
				   work->seen.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ
				   : IBV_ACCESS_REMOTE_WRITE);
	if (remote == NULL)
		return IBV_WC_REM_ACCESS_ERR;
	if (work->data != NULL)
		copy(remote, work->data, work->seen.len);
	for (int i = 0; i < work->nsge; i++)
	{
		if (work->seen.opcode == IBV_WR_RDMA_READ)
			copy(local[i], remote + at, work->sge[i].length);
		else
			copy(remote + at, local[i], work->sge[i].length);
		at += work->sge[i].length;
	}
	return IBV_WC_SUCCESS;
}

static enum ibv_wc_opcode
wc_opcode(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_SEND ? IBV_WC_SEND
		: opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE;
}

static void
finish_work(Qp *qp, enum ibv_wc_status status)
{
	Work	   *work = &qp->works[qp->done++ % qp->cap.max_send_wr];

	if (status != IBV_WC_SUCCESS || work->seen.signalled)
		add_completion(qp, false, qp->done, work->seen.wr_id, status,
					   wc_opcode(work->seen.opcode), work->seen.len);
	free(work->data);
	work->data = NULL;
}

/* The bytes of all that is posted, while it can still be. */
static void
move_the_rest(Qp *qp)
{
	for (uint64_t n = qp->done; n < qp->posted; n++)
	{
		Work	   *work = &qp->works[n % qp->cap.max_send_wr];

		if (work->seen.opcode != IBV_WR_SEND && execute(qp, work) != IBV_WC_SUCCESS)
			break;
	}
	qp->moving = false;
}

static void
flush(Qp *qp)
{
	if (qp->flush_polls > 0)
		return;
	if (qp->moving)
		move_the_rest(qp);
	while (qp->done < qp->posted)
		finish_work(qp, IBV_WC_WR_FLUSH_ERR);
	while (qp->rdone < qp->rposted)
	{
		Receive    *receive = &qp->receives[qp->rdone++ % qp->cap.max_recv_wr];

		add_completion(qp, true, qp->rdone, receive->wr_id, IBV_WC_WR_FLUSH_ERR,
					   IBV_WC_RECV, 0);
	}
}

/*
 * The receives' end, before what was completed by then is polled: the two
 * queues of a pair do not wait for each other.
 */
static void
flush_receives_first(Qp *qp)
{
	Cq		   *cq = (Cq *) qp->qp.recv_cq;
	uint64_t	size = (uint64_t) cq->cq.cqe;
	uint64_t	before = cq->added;

	while (qp->rdone < qp->rposted)
	{
		Receive    *receive = &qp->receives[qp->rdone++ % qp->cap.max_recv_wr];

		add_completion(qp, true, qp->rdone, receive->wr_id, IBV_WC_WR_FLUSH_ERR,
					   IBV_WC_RECV, 0);
	}
	for (uint64_t from = before; from < cq->added; from++)
		for (uint64_t at = from; at > cq->polled + (from - before); at--)
		{
			Cqe			cqe = cq->ring[at % size];

			cq->ring[at % size] = cq->ring[(at - 1) % size];
			cq->ring[(at - 1) % size] = cqe;
		}
}

static void
to_error(Qp *qp, int polls)
{
	if (qp->qp.state == IBV_QPS_ERR)
		return;
	qp->moving = qp->qp.state == IBV_QPS_RTS && polls > 0;
	qp->qp.state = IBV_QPS_ERR;
	qp->flush_polls = polls;
	flush(qp);
}

void
mock_qp_error(struct ibv_qp *qp)
{
	enter();
	to_error((Qp *) qp, 0);
	leave();
}

static void
progress(Qp *qp)
{
	while (qp->qp.state == IBV_QPS_RTS && qp->done < qp->posted)
	{
		Work	   *work = &qp->works[qp->done % qp->cap.max_send_wr];
		int			status = IBV_WC_SUCCESS;

		if (mock_hooks.on_work != NULL)
			status = mock_hooks.on_work(&work->seen);
		if (qp->qp.state != IBV_QPS_RTS)
			break;				/* the hook's doing */
		if (status == IBV_WC_SUCCESS)
			status = execute(qp, work);
		if (status == MOCK_HOLD || qp->qp.state != IBV_QPS_RTS)
			break;
		if (status != IBV_WC_SUCCESS && mock_receives_first)
			flush_receives_first(qp);
		finish_work(qp, (enum ibv_wc_status) status);
		if (status == IBV_WC_REM_ACCESS_ERR && qp->peer != NULL)
			to_error(qp->peer, 0);	/* that ends both */
		if (status != IBV_WC_SUCCESS)
			to_error(qp, 0);
	}
	if (qp->qp.state == IBV_QPS_ERR)
		flush(qp);
}

void
mock_progress(void)
{
	enter();
	for (Qp *qp = qps; qp != NULL; qp = qp->next)
		progress(qp);
	leave();
}

static int
do_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	Qp		   *qp = (Qp *) ibqp;
	int			rc = 0;
	int			fail_at = -1;

	enter();
	if (fails(MOCK_POST_SEND))
	{
		rc = errno;
		fail_at = mock_fail_at;
	}
	for (int n = 0; wr != NULL; wr = wr->next, n++)
	{
		Work	   *work = &qp->works[qp->posted % qp->cap.max_send_wr];
		uint32_t	len = 0;

		*bad = wr;
		if (n == fail_at)
			break;
		if (qp->qp.state != IBV_QPS_RTS && qp->qp.state != IBV_QPS_ERR)
		{
			violation("work is posted to a queue pair in state %d", qp->qp.state);
			rc = EINVAL;
			break;
		}
		if (qp->posted - qp->freed >= qp->cap.max_send_wr)
		{
			violation("more work is posted than the queue of %u takes",
					  qp->cap.max_send_wr);
			rc = ENOMEM;
			break;
		}
		for (int i = 0; i < wr->num_sge; i++)
			len += wr->sg_list[i].length;
		if (wr->num_sge > (int) qp->cap.max_send_sge || wr->num_sge > MAX_SGE ||
			(wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_RDMA_READ &&
			 wr->opcode != IBV_WR_RDMA_WRITE) ||
			((wr->send_flags & IBV_SEND_INLINE) != 0 &&
			 (len > qp->cap.max_inline_data || wr->opcode == IBV_WR_RDMA_READ)))
		{
			violation("work is posted that the queue pair cannot do");
			rc = EINVAL;
			break;
		}
		memset(work, 0, sizeof(*work));
		work->seen.qp = ibqp;
		work->seen.opcode = wr->opcode;
		work->seen.wr_id = wr->wr_id;
		work->seen.signalled = qp->sig_all || (wr->send_flags & IBV_SEND_SIGNALED) != 0;
		work->seen.len = len;
		work->seen.remote_addr = wr->wr.rdma.remote_addr;
		work->seen.rkey = wr->wr.rdma.rkey;
		if ((wr->send_flags & IBV_SEND_INLINE) != 0)
		{
			uint32_t	at = 0;

			work->data = get(1, len + 1);
			for (int i = 0; i < wr->num_sge; i++)
			{
				memcpy(work->data + at, (void *) (uintptr_t) wr->sg_list[i].addr,
					   wr->sg_list[i].length);
				at += wr->sg_list[i].length;
			}
		}
		else
		{
			work->nsge = wr->num_sge;
			for (int i = 0; i < wr->num_sge; i++)
				work->sge[i] = wr->sg_list[i];
			if (wr->num_sge > 0)
				work->seen.local = (uint8_t *) (uintptr_t) wr->sg_list[0].addr;
		}
		qp->posted++;
	}
	if (!mock_lazy || qp->qp.state == IBV_QPS_ERR)
		progress(qp);
	leave();
	return rc;
}

static int
do_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	Qp		   *qp = (Qp *) ibqp;
	int			rc = 0;

	enter();
	if (fails(MOCK_POST_RECV))
	{
		*bad = wr;
		rc = errno;
		wr = NULL;
	}
	for (; wr != NULL; wr = wr->next)
	{
		Receive    *receive;

		*bad = wr;
		if (qp->qp.state == IBV_QPS_RESET || wr->num_sge > 1)
		{
			violation("a receive is posted that the queue pair cannot do");
			rc = EINVAL;
			break;
		}
		if (qp->rposted - qp->rfreed >= qp->cap.max_recv_wr)
		{
			violation("more receives are posted than the queue of %u takes",
					  qp->cap.max_recv_wr);
			rc = ENOMEM;
			break;
		}
		receive = &qp->receives[qp->rposted++ % qp->cap.max_recv_wr];
		memset(receive, 0, sizeof(*receive));
		receive->wr_id = wr->wr_id;
		if (wr->num_sge == 1)
			receive->sge = wr->sg_list[0];
	}
	if (qp->qp.state == IBV_QPS_ERR)
		flush(qp);
	else if (qp->peer != NULL)
		progress(qp->peer);		/* it may wait for this */
	leave();
	return rc;
}

static int
do_poll(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	Cq		   *cq = (Cq *) ibcq;
	int			count = 0;

	enter();
	if (mock_hooks.on_poll != NULL)
		mock_hooks.on_poll(ibcq);
	if (fails(MOCK_POLL_CQ))
	{
		leave();
		return -1;
	}
	for (Qp *qp = qps; qp != NULL; qp = qp->next)
		if (qp->qp.send_cq == ibcq || qp->qp.recv_cq == ibcq)
		{
			if (qp->qp.state == IBV_QPS_ERR && qp->flush_polls > 0)
				qp->flush_polls--;
			progress(qp);
		}
	if (mock_poll_max > 0 && n > mock_poll_max)
		n = mock_poll_max;
	while (count < n && cq->polled < cq->added)
	{
		Cqe		   *cqe = &cq->ring[cq->polled++ % (uint64_t) cq->cq.cqe];
		Qp		   *qp = find_qp(cqe->wc.qp_num);

		wc[count++] = cqe->wc;
		if (qp != NULL && cqe->receive)
			qp->rfreed = cqe->count;
		else if (qp != NULL)
			qp->freed = cqe->count;
	}
	leave();
	return count;
}

int
rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd,
			   struct ibv_qp_init_attr *attr)
{
	int			rc = -1;

	enter();
	if (fails(MOCK_CREATE_QP))
		;
	else if (id->verbs == NULL || id->qp != NULL || pd == NULL ||
			 pd->context != id->verbs || attr->send_cq == NULL ||
			 attr->recv_cq == NULL || attr->qp_type != IBV_QPT_RC)
	{
		violation("a queue pair is created without what it needs");
		errno = EINVAL;
	}
	else if (attr->cap.max_send_wr > (uint32_t) mock_limits.max_qp_wr ||
			 attr->cap.max_recv_wr > (uint32_t) mock_limits.max_qp_wr ||
			 attr->cap.max_send_sge > (uint32_t) mock_limits.max_sge ||
			 attr->cap.max_inline_data > mock_max_inline)
		errno = EINVAL;
	else
	{
		Qp		   *qp = get(1, sizeof(*qp));

		qp->qp.context = id->verbs;
		qp->qp.qp_context = attr->qp_context;
		qp->qp.pd = pd;
		qp->qp.send_cq = attr->send_cq;
		qp->qp.recv_cq = attr->recv_cq;
		qp->qp.qp_num = next_number++;
		qp->qp.state = IBV_QPS_INIT;
		qp->qp.qp_type = IBV_QPT_RC;
		qp->cap = attr->cap;
		qp->sig_all = attr->sq_sig_all != 0;
		qp->works = get(qp->cap.max_send_wr + 1, sizeof(Work));
		qp->receives = get(qp->cap.max_recv_wr + 1, sizeof(Receive));
		LINK(qps, qp);
		id->qp = &qp->qp;
		id->pd = pd;
		id->send_cq = attr->send_cq;
		id->recv_cq = attr->recv_cq;
		rc = 0;
	}
	leave();
	return rc;
}

static void
free_qp(Qp *qp)
{
	for (uint64_t n = qp->done; n < qp->posted; n++)
		free(qp->works[n % qp->cap.max_send_wr].data);
	for (Qp *other = qps; other != NULL; other = other->next)
		if (other->peer == qp)
		{
			other->peer = NULL;
			other->peer_gone = true;
		}
	free(qp->works);
	free(qp->receives);
	free(qp);
}

void
rdma_destroy_qp(struct rdma_cm_id *id)
{
	Qp		   *qp = (Qp *) id->qp;

	enter();
	if (qp == NULL || !UNLINK(qps, qp))
		violation("an unknown queue pair is destroyed");
	else
	{
		/* the device may have been at it up to now */
		if (qp->qp.state == IBV_QPS_RTS || qp->moving)
			move_the_rest(qp);
		free_qp(qp);
	}
	id->qp = NULL;
	leave();
}

int
ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int			rc = 0;

	enter();
	if (fails(MOCK_MODIFY_QP))
		rc = errno;
	else if ((mask & IBV_QP_STATE) == 0 || attr->qp_state != IBV_QPS_ERR)
	{
		violation("a queue pair is modified in a way that nobody knows");
		rc = EINVAL;
	}
	else
		to_error((Qp *) qp, mock_flush_polls);
	leave();
	return rc;
}

int
ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
			 struct ibv_qp_init_attr *init)
{
	(void) mask;
	enter();
	memset(attr, 0, sizeof(*attr));
	memset(init, 0, sizeof(*init));
	attr->qp_state = attr->cur_qp_state = qp->state;
	attr->cap = init->cap = ((Qp *) qp)->cap;
	leave();
	return 0;
}

const char *
ibv_wc_status_str(enum ibv_wc_status status)
{
	return status == IBV_WC_SUCCESS ? "success" : "failure";
}

/*
 * ---- event channels ---------------------------------------------------------------
 */

/* Make the descriptor readable if an event is due, now or when it is. */
static void
update_channel(struct rdma_event_channel *channel)
{
	Channel    *ch = (Channel *) channel;
	struct itimerspec when = {0};
	int64_t		now = now_ns();
	int64_t		next = INT64_MAX;
	uint64_t	number = 1;
	struct pollfd pfd = {.fd = ch->now_fd,.events = POLLIN};

	for (Event *e = queue; e != NULL; e = e->next)
		if (e->channel == channel && e->due < next)
			next = e->due;
	if (next <= now)
	{
		if (write(ch->now_fd, &number, sizeof(number)) != sizeof(number))
			abort();
	}
	else if (poll(&pfd, 1, 0) == 1 &&
			 read(ch->now_fd, &number, sizeof(number)) != sizeof(number))
		abort();
	if (next > now && next != INT64_MAX)
	{
		when.it_value.tv_sec = next / 1000000000;
		when.it_value.tv_nsec = next % 1000000000;
	}
	if (timerfd_settime(ch->timer_fd, TFD_TIMER_ABSTIME, &when, NULL) != 0)
		abort();
}

struct rdma_event_channel *
rdma_create_event_channel(void)
{
	Channel    *ch = NULL;

	enter();
	if (!fails(MOCK_CREATE_CHANNEL))
	{
		struct epoll_event ev = {.events = EPOLLIN};

		ch = get(1, sizeof(*ch));
		ch->channel.fd = epoll_create1(EPOLL_CLOEXEC);
		ch->now_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		ch->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
		if (ch->channel.fd < 0 || ch->now_fd < 0 || ch->timer_fd < 0 ||
			epoll_ctl(ch->channel.fd, EPOLL_CTL_ADD, ch->now_fd, &ev) != 0 ||
			epoll_ctl(ch->channel.fd, EPOLL_CTL_ADD, ch->timer_fd, &ev) != 0)
			abort();
		LINK(channels, ch);
	}
	leave();
	return ch != NULL ? &ch->channel : NULL;
}

static void
free_channel(Channel *ch)
{
	close(ch->channel.fd);
	close(ch->now_fd);
	close(ch->timer_fd);
	free(ch);
}

void
rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	enter();
	for (Id *id = ids; id != NULL; id = id->next)
		if (id->id.channel == channel)
			violation("an event channel with ids is destroyed");
	if (!UNLINK(channels, (Channel *) channel))
		violation("an unknown event channel is destroyed");
	else
		free_channel((Channel *) channel);
	leave();
}

/* At the end of the queue.  id->id.channel is where it goes. */
static Event *
add_event(Id *id, Id *counted, enum rdma_cm_event_type type, int status,
		  const void *data, size_t len, size_t padded, int64_t delay_ns)
{
	Event	   *e = get(1, sizeof(*e));
	Event	  **at = &queue;

	e->ev.id = &id->id;
	e->ev.event = type;
	e->ev.status = status;
	if (padded > sizeof(e->data) || len > padded)
		abort();
	if (len > 0)
		memcpy(e->data, data, len);
	if (padded > 0)
		e->ev.param.conn.private_data = e->data;
	e->ev.param.conn.private_data_len = (uint8_t) padded;
	e->counted = counted;
	e->channel = counted->id.channel;
	e->due = delay_ns > 0 ? now_ns() + delay_ns : 0;
	while (*at != NULL)
		at = &(*at)->next;
	*at = e;
	update_channel(e->channel);
	return e;
}

void
mock_event(struct rdma_cm_id *id, enum rdma_cm_event_type type, int status,
		   const void *data, uint8_t len, int64_t delay_ns)
{
	size_t		padded = type == RDMA_CM_EVENT_ESTABLISHED ? REP_DATA
		: type == RDMA_CM_EVENT_REJECTED ? REJ_DATA : 0;

	enter();
	(void) add_event((Id *) id, (Id *) id, type, status, data, len, padded, delay_ns);
	leave();
}

void
mock_remove_device(int device)
{
	enter();
	for (Id *id = ids; id != NULL; id = id->next)
		if (id->id.verbs == &devices[device].context)
			(void) add_event(id, id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, NULL, 0, 0, 0);
	leave();
}

/* The device behind an address, or -1. */
static int
device_of(const struct sockaddr *addr)
{
	int			n = -1;

	if (addr->sa_family == AF_INET)
	{
		struct sockaddr_in v4;

		memcpy(&v4, addr, sizeof(v4));
		n = (int) (ntohl(v4.sin_addr.s_addr) >> 8 & 0xff);
	}
	else if (addr->sa_family == AF_INET6)
	{
		struct sockaddr_in6 v6;

		memcpy(&v6, addr, sizeof(v6));
		n = v6.sin6_addr.s6_addr[3];
	}
	return n >= 0 && n < MOCK_DEVICES ? n : -1;
}

static void
local_address(int device, int family, uint16_t port, struct sockaddr_storage *out)
{
	char		text[64];

	memset(out, 0, sizeof(*out));
	if (family == AF_INET)
	{
		struct sockaddr_in v4 = {.sin_family = AF_INET,.sin_port = port};

		snprintf(text, sizeof(text), "10.0.%d.1", device);
		inet_pton(AF_INET, text, &v4.sin_addr);
		memcpy(out, &v4, sizeof(v4));
	}
	else
	{
		struct sockaddr_in6 v6 = {.sin6_family = AF_INET6,.sin6_port = port};

		snprintf(text, sizeof(text), "fd00:%x::1", device);
		inet_pton(AF_INET6, text, &v6.sin6_addr);
		memcpy(out, &v6, sizeof(v6));
	}
}

static __be16
port_of(const struct sockaddr *addr)
{
	/* it is in the same place in both */
	return addr->sa_family == 0 ? 0 : ((const struct sockaddr_in *) addr)->sin_port;
}

static socklen_t
address_len(const struct sockaddr *addr)
{
	return addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
		: sizeof(struct sockaddr_in);
}

/* What librdmacm does when an event is fetched. */
static void
process_event(Event *e)
{
	Id		   *id = (Id *) e->ev.id;
	Qp		   *qp = (Qp *) id->id.qp;

	switch (e->ev.event)
	{
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			{
				struct sockaddr *src = &id->id.route.addr.src_addr;
				int			n = device_of(src->sa_family != 0 ? src
										  : &id->id.route.addr.dst_addr);

				if (n < 0)
					n = 0;
				if (src->sa_family == 0)
				{
					struct sockaddr_storage local;

					local_address(n, id->id.route.addr.dst_addr.sa_family,
								  htons((uint16_t) (30000 + next_number % 10000)), &local);
					memcpy(src, &local, sizeof(local));
				}
				id->id.verbs = &devices[n].context;
				id->id.port_num = 1;
				id->state = ID_ADDR_RESOLVED;
				break;
			}
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			id->state = ID_ROUTE_RESOLVED;
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			if (id->state == ID_CONNECTING)
			{
				if (qp != NULL && qp->qp.state == IBV_QPS_INIT)
					qp->qp.state = IBV_QPS_RTS;
				if (id->peer != NULL)
					(void) add_event(id->peer, id->peer, RDMA_CM_EVENT_ESTABLISHED,
									 0, NULL, 0, 0, 0);
			}
			id->state = ID_CONNECTED;
			break;
		case RDMA_CM_EVENT_REJECTED:
			if (qp != NULL)
				to_error(qp, 0);
			id->state = ID_OVER;
			break;
		default:
			break;
	}
}

int
rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	enter();
	if (mock_hooks.on_get_event != NULL)
		mock_hooks.on_get_event(channel);
	if (fails(MOCK_GET_EVENT))
	{
		leave();
		return -1;
	}
	for (;;)
	{
		int64_t		now = now_ns();

		for (Event *e = queue; e != NULL; e = e->next)
		{
			if (e->channel != channel || e->due > now)
				continue;
			(void) UNLINK(queue, e);
			LINK(fetched, e);
			e->counted->unacked++;
			update_channel(channel);
			process_event(e);
			*event = &e->ev;
			leave();
			return 0;
		}
		if ((fcntl(channel->fd, F_GETFL) & O_NONBLOCK) != 0)
		{
			leave();
			errno = EAGAIN;
			return -1;
		}
		leave();
		{
			struct pollfd pfd = {.fd = channel->fd,.events = POLLIN};

			if (poll(&pfd, 1, 10000) == 0)
			{
				violation("ten seconds of waiting for an event that does not come");
				errno = EINTR;
				return -1;
			}
		}
		enter();
	}
}

int
rdma_ack_cm_event(struct rdma_cm_event *event)
{
	enter();
	if (!UNLINK(fetched, (Event *) event))
		violation("an unknown event is acknowledged");
	else
	{
		if (((Event *) event)->counted != NULL)
			((Event *) event)->counted->unacked--;
		free(event);
	}
	leave();
	return 0;
}

const char *
rdma_event_str(enum rdma_cm_event_type event)
{
	static const char *const names[] = {
		"ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR",
		"CONNECT_REQUEST", "CONNECT_RESPONSE", "CONNECT_ERROR", "UNREACHABLE",
		"REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL",
		"MULTICAST_JOIN", "MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT"
	};

	return names[event];
}

/*
 * ---- ids --------------------------------------------------------------------------
 */
static Id *
new_id(struct rdma_event_channel *channel, void *context)
{
	Id		   *id = get(1, sizeof(*id));

	id->id.channel = channel;
	id->id.context = context;
	id->id.ps = RDMA_PS_TCP;
	id->id.qp_type = IBV_QPT_RC;
	id->tos = id->ack_timeout = -1;
	LINK(ids, id);
	return id;
}

struct rdma_cm_id *
mock_id(void)
{
	Id		   *last = NULL;

	for (Id *id = ids; id != NULL; id = id->next)
		if (last == NULL || id->event_seq > last->event_seq)
			last = id;
	return last != NULL ? &last->id : NULL;
}

int
mock_tos(struct rdma_cm_id *id)
{
	return ((Id *) id)->tos;
}

int
mock_ack_timeout(struct rdma_cm_id *id)
{
	return ((Id *) id)->ack_timeout;
}

int
rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id,
			   void *context, enum rdma_port_space ps)
{
	int			rc = -1;

	enter();
	if (fails(MOCK_CREATE_ID))
		;
	else if (channel == NULL || ps != RDMA_PS_TCP)
	{
		violation("an id is created in a way that nobody knows");
		errno = EINVAL;
	}
	else
	{
		*id = &new_id(channel, context)->id;
		rc = 0;
	}
	leave();
	return rc;
}

static void destroy_id(Id *id);

/* What waits on the channel for an id that goes. */
static void
drop_events(Id *id)
{
	for (Event **at = &queue; *at != NULL;)
	{
		Event	   *e = *at;
		Id		   *about = (Id *) e->ev.id;

		if (about != id && e->counted != id)
		{
			at = &e->next;
			continue;
		}
		*at = e->next;
		if (about != id)
			destroy_id(about);	/* a request that nobody has seen */
		update_channel(e->channel);
		free(e);
		at = &queue;
	}
}

static void
destroy_id(Id *id)
{
	Id		   *peer = id->peer;

	(void) UNLINK(ids, id);
	drop_events(id);
	if (peer != NULL)
	{
		peer->peer = NULL;
		switch (id->state)
		{
			case ID_CONNECTING:
				peer->state = ID_OVER;
				(void) add_event(peer, peer, RDMA_CM_EVENT_REJECTED,
								 MOCK_REJECTED_BY_PEER, NULL, 0, REJ_DATA, 0);
				break;
			case ID_REQUESTED:
				(void) add_event(peer, peer, RDMA_CM_EVENT_REJECTED,
								 MOCK_REJECTED_BY_PEER, NULL, 0, REJ_DATA, 0);
				break;
			case ID_ACCEPTED:
			case ID_CONNECTED:
				(void) add_event(peer, peer, RDMA_CM_EVENT_DISCONNECTED, 0,
								 NULL, 0, 0, 0);
				break;
			default:
				break;
		}
	}
	free(id);
}

int
rdma_destroy_id(struct rdma_cm_id *ibid)
{
	Id		   *id = (Id *) ibid;
	bool		known = false;

	enter();
	for (Id *other = ids; other != NULL; other = other->next)
		known |= other == id;
	if (!known)
		violation("an unknown id is destroyed");
	else
	{
		if (id->unacked > 0)
			violation("an id with unacknowledged events is destroyed: that hangs");
		if (ibid->qp != NULL)
			violation("an id with a queue pair is destroyed");
		for (Event *e = fetched; e != NULL; e = e->next)
			if (e->counted == id)
				e->counted = NULL;
		destroy_id(id);
	}
	leave();
	return 0;
}

int
rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
	int			rc = -1;

	enter();
	if (!fails(MOCK_MIGRATE_ID))
	{
		struct rdma_event_channel *old = id->channel;

		id->channel = channel;
		for (Event *e = queue; e != NULL; e = e->next)
			if (e->counted == (Id *) id)
				e->channel = channel;
		update_channel(old);
		update_channel(channel);
		rc = 0;
	}
	leave();
	return rc;
}

int
rdma_set_option(struct rdma_cm_id *ibid, int level, int name, void *value, size_t len)
{
	Id		   *id = (Id *) ibid;
	int			rc = -1;

	enter();
	if (fails(MOCK_SET_OPTION))
		;
	else if (level != RDMA_OPTION_ID)
		errno = ENOSYS;
	else
	{
		rc = 0;
		if (name == RDMA_OPTION_ID_TOS && len == 1)
			id->tos = *(uint8_t *) value;
		else if (name == RDMA_OPTION_ID_ACK_TIMEOUT && len == 1)
			id->ack_timeout = *(uint8_t *) value;
		else if ((name != RDMA_OPTION_ID_REUSEADDR && name != RDMA_OPTION_ID_AFONLY) ||
				 len != sizeof(int))
		{
			violation("an option is set in a way that nobody knows");
			errno = EINVAL;
			rc = -1;
		}
	}
	leave();
	return rc;
}

static bool
is_wildcard(const struct sockaddr *addr)
{
	static const struct in6_addr any6 = IN6ADDR_ANY_INIT;

	if (addr->sa_family == AF_INET)
		return ((const struct sockaddr_in *) addr)->sin_addr.s_addr == 0;
	return memcmp(&((const struct sockaddr_in6 *) addr)->sin6_addr, &any6, sizeof(any6)) == 0;
}

int
rdma_bind_addr(struct rdma_cm_id *ibid, struct sockaddr *addr)
{
	Id		   *id = (Id *) ibid;
	int			rc = -1;

	enter();
	if (fails(MOCK_BIND_ADDR))
		;
	else if (!is_wildcard(addr) && device_of(addr) < 0)
		errno = ENODEV;
	else
	{
		struct sockaddr_in *src = (struct sockaddr_in *) &ibid->route.addr.src_addr;

		memcpy(src, addr, address_len(addr));
		if (src->sin_port == 0)
			src->sin_port = htons((uint16_t) (20000 + next_number++ % 10000));
		if (!is_wildcard(addr))
		{
			ibid->verbs = &devices[device_of(addr)].context;
			ibid->port_num = 1;
		}
		id->state = ID_BOUND;
		rc = 0;
	}
	leave();
	return rc;
}

int
rdma_listen(struct rdma_cm_id *ibid, int backlog)
{
	int			rc = -1;

	(void) backlog;
	enter();
	if (fails(MOCK_LISTEN))
		;
	else if (((Id *) ibid)->state != ID_BOUND)
	{
		violation("an id listens that is not bound");
		errno = EINVAL;
	}
	else
	{
		((Id *) ibid)->state = ID_LISTENING;
		rc = 0;
	}
	leave();
	return rc;
}

__be16
rdma_get_src_port(struct rdma_cm_id *id)
{
	return port_of(&id->route.addr.src_addr);
}

__be16
rdma_get_dst_port(struct rdma_cm_id *id)
{
	return port_of(&id->route.addr.dst_addr);
}

int
rdma_resolve_addr(struct rdma_cm_id *ibid, struct sockaddr *src,
				  struct sockaddr *dst, int timeout_ms)
{
	Id		   *id = (Id *) ibid;
	int			rc = -1;

	enter();
	if (fails(MOCK_RESOLVE_ADDR))
		;
	else if ((id->state != ID_IDLE && id->state != ID_BOUND) || timeout_ms <= 0 ||
			 (src != NULL && src->sa_family != dst->sa_family))
	{
		violation("an address is resolved in a way that nobody knows");
		errno = EINVAL;
	}
	else
	{
		if (src != NULL)
			memcpy(&ibid->route.addr.src_addr, src, address_len(src));
		memcpy(&ibid->route.addr.dst_addr, dst, address_len(dst));
		id->state = ID_ADDR_QUERY;
		id->event_seq = ++steps;
		rc = 0;
		if (mock_hooks.on_resolve_addr == NULL || mock_hooks.on_resolve_addr(ibid))
		{
			bool		ok = device_of(src != NULL ? src : dst) >= 0;

			mock_event(ibid, ok ? RDMA_CM_EVENT_ADDR_RESOLVED : RDMA_CM_EVENT_ADDR_ERROR,
					   ok ? 0 : -ENODEV, NULL, 0, 0);
		}
	}
	leave();
	return rc;
}

int
rdma_resolve_route(struct rdma_cm_id *ibid, int timeout_ms)
{
	Id		   *id = (Id *) ibid;
	int			rc = -1;

	enter();
	if (fails(MOCK_RESOLVE_ROUTE))
		;
	else if (id->state != ID_ADDR_RESOLVED || timeout_ms <= 0)
	{
		violation("a route is resolved before the address");
		errno = EINVAL;
	}
	else
	{
		id->state = ID_ROUTE_QUERY;
		id->event_seq = ++steps;
		rc = 0;
		if (mock_hooks.on_resolve_route == NULL || mock_hooks.on_resolve_route(ibid))
			mock_event(ibid, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL, 0, 0);
	}
	leave();
	return rc;
}

static Id *
find_listener(const struct sockaddr *dst)
{
	for (Id *id = ids; id != NULL; id = id->next)
	{
		struct sockaddr *src = &id->id.route.addr.src_addr;

		if (id->state == ID_LISTENING && src->sa_family == dst->sa_family &&
			port_of(src) == port_of(dst) &&
			(is_wildcard(src) || device_of(src) == device_of(dst)))
			return id;
	}
	return NULL;
}

int
rdma_connect(struct rdma_cm_id *ibid, struct rdma_conn_param *param)
{
	Id		   *id = (Id *) ibid;
	int			rc = -1;

	enter();
	if (fails(MOCK_CONNECT))
		;
	else if (id->state != ID_ROUTE_RESOLVED || ibid->qp == NULL ||
			 param->private_data_len > REQ_DATA || param->retry_count > 7 ||
			 param->rnr_retry_count > 7 ||
			 param->initiator_depth > mock_limits.max_qp_init_rd_atom ||
			 param->responder_resources > mock_limits.max_qp_rd_atom)
	{
		violation("a connection is requested in a way that is refused");
		errno = EINVAL;
	}
	else
	{
		Id		   *listener = find_listener(&ibid->route.addr.dst_addr);

		id->state = ID_CONNECTING;
		id->event_seq = ++steps;
		rc = 0;
		if (listener != NULL)
		{
			Id		   *child = new_id(listener->id.channel, listener->id.context);
			int			n = device_of(&ibid->route.addr.dst_addr);
			Event	   *e;

			child->state = ID_REQUESTED;
			child->peer = id;
			id->peer = child;
			child->id.verbs = &devices[n].context;
			child->id.port_num = 1;
			memcpy(&child->id.route.addr.src_addr, &ibid->route.addr.dst_addr,
				   sizeof(struct sockaddr_in6));
			memcpy(&child->id.route.addr.dst_addr, &ibid->route.addr.src_addr,
				   sizeof(struct sockaddr_in6));
			e = add_event(child, listener, RDMA_CM_EVENT_CONNECT_REQUEST, 0,
						  param->private_data, param->private_data_len,
						  REQ_DATA, 0);
			e->ev.listen_id = &listener->id;
			e->ev.param.conn.responder_resources = param->initiator_depth;
			e->ev.param.conn.initiator_depth = param->responder_resources;
			e->ev.param.conn.retry_count = param->retry_count;
			e->ev.param.conn.rnr_retry_count = param->rnr_retry_count;
			e->ev.param.conn.qp_num = ibid->qp->qp_num;
		}
		else if (mock_hooks.on_connect != NULL)
			mock_hooks.on_connect(ibid, param);
		else
			mock_event(ibid, RDMA_CM_EVENT_REJECTED, MOCK_REJECTED_NO_SERVICE,
					   NULL, 0, 0);
	}
	leave();
	return rc;
}

int
rdma_accept(struct rdma_cm_id *ibid, struct rdma_conn_param *param)
{
	Id		   *id = (Id *) ibid;
	int			rc = -1;

	enter();
	if (fails(MOCK_ACCEPT))
		;
	else if (id->state == ID_OVER)
		errno = EINVAL;			/* the other side is gone by now */
	else if (id->state != ID_REQUESTED || ibid->qp == NULL ||
			 param->private_data_len > REP_DATA || param->rnr_retry_count > 7 ||
			 param->responder_resources > mock_limits.max_qp_rd_atom ||
			 param->initiator_depth > mock_limits.max_qp_init_rd_atom)
	{
		violation("a request is accepted in a way that is refused");
		errno = EINVAL;
	}
	else
	{
		Qp		   *mine = (Qp *) ibid->qp;
		Qp		   *theirs = (Qp *) id->peer->id.qp;

		mine->qp.state = IBV_QPS_RTS;
		mine->peer = theirs;
		if (theirs != NULL)
			theirs->peer = mine;
		else
			mine->peer_gone = true;
		id->state = ID_ACCEPTED;
		(void) add_event(id->peer, id->peer, RDMA_CM_EVENT_ESTABLISHED, 0,
						 param->private_data, param->private_data_len, REP_DATA, 0);
		rc = 0;
	}
	leave();
	return rc;
}

int
rdma_reject(struct rdma_cm_id *ibid, const void *data, uint8_t len)
{
	Id		   *id = (Id *) ibid;
	int			rc = -1;

	enter();
	if (fails(MOCK_REJECT))
		;
	else if (id->state == ID_OVER)
		errno = EINVAL;
	else if (id->state != ID_REQUESTED || len > REJ_DATA)
	{
		violation("a request is rejected in a way that nobody knows");
		errno = EINVAL;
	}
	else
	{
		(void) add_event(id->peer, id->peer, RDMA_CM_EVENT_REJECTED,
						 MOCK_REJECTED_BY_PEER, data, len, REJ_DATA, 0);
		id->peer->peer = NULL;
		id->peer = NULL;
		id->state = ID_OVER;
		rc = 0;
	}
	leave();
	return rc;
}

int
rdma_disconnect(struct rdma_cm_id *ibid)
{
	Id		   *id = (Id *) ibid;
	int			rc = -1;

	enter();
	if (!fails(MOCK_DISCONNECT))
	{
		if (ibid->qp != NULL)
			to_error((Qp *) ibid->qp, mock_flush_polls);
		if (id->state != ID_CONNECTED && id->state != ID_ACCEPTED)
			errno = EINVAL;
		else
		{
			id->state = ID_OVER;
			(void) add_event(id, id, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0, 0, 0);
			(void) add_event(id, id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, NULL, 0, 0, 1000000);
			if (id->peer != NULL)
			{
				(void) add_event(id->peer, id->peer, RDMA_CM_EVENT_DISCONNECTED,
								 0, NULL, 0, 0, 0);
				id->peer->peer = NULL;
				id->peer = NULL;
			}
			rc = 0;
		}
	}
	leave();
	return rc;
}

/*
 * ---- what is left -------------------------------------------------------------------
 */
#define COUNT(list, n) \
	for (__typeof__(list) at_ = (list); at_ != NULL; at_ = at_->next) \
		(n)++

static void
tell_leak(bool tell, uint32_t count, const char *name, uint32_t *sum)
{
	*sum += count;
	if (tell && count > 0)
		printf("# mock: %u %s left\n", count, name);
}

uint32_t
mock_leaks(bool tell)
{
	uint32_t	n[9] = {0};
	uint32_t	sum = 0;

	enter();
	COUNT(mrs, n[0]);
	COUNT(pds, n[1]);
	COUNT(comps, n[2]);
	COUNT(cqs, n[3]);
	COUNT(qps, n[4]);
	COUNT(ids, n[5]);
	COUNT(channels, n[6]);
	COUNT(fetched, n[7]);
	for (int i = 0; i < MOCK_DEVICES; i++)
		n[8] += (uint32_t) devices[i].opened;
	leave();
	tell_leak(tell, n[0], "registrations", &sum);
	tell_leak(tell, n[1], "protection domains", &sum);
	tell_leak(tell, n[2], "completion channels", &sum);
	tell_leak(tell, n[3], "completion queues", &sum);
	tell_leak(tell, n[4], "queue pairs", &sum);
	tell_leak(tell, n[5], "ids", &sum);
	tell_leak(tell, n[6], "event channels", &sum);
	tell_leak(tell, n[7], "unacknowledged events", &sum);
	tell_leak(tell, n[8], "open devices", &sum);
	return sum;
}

#define FREE_ALL(list, how) \
	do { \
		while ((list) != NULL) \
		{ \
			__typeof__(list) first_ = (list); \
			\
			(list) = first_->next; \
			how(first_); \
		} \
	} while (0)

static void
free_cq(Cq *cq)
{
	free(cq->ring);
	free(cq);
}

static void
free_comp(Comp *comp)
{
	close(comp->comp.fd);
	free(comp);
}

void
mock_reset(void)
{
	enter();
	FREE_ALL(queue, free);
	FREE_ALL(fetched, free);
	FREE_ALL(qps, free_qp);
	FREE_ALL(ids, free);
	FREE_ALL(cqs, free_cq);
	FREE_ALL(comps, free_comp);
	FREE_ALL(mrs, free);
	FREE_ALL(remote_mrs, free);
	FREE_ALL(pds, free);
	FREE_ALL(channels, free_channel);
	for (int i = 0; i < MOCK_DEVICES; i++)
		devices[i].opened = 0;
	memset(&mock_hooks, 0, sizeof(mock_hooks));
	for (int i = 0; i < MOCK_NCALLS; i++)
		mock_calls[i] = 0;
	memset(fail_nth, 0, sizeof(fail_nth));
	memset(fail_done, 0, sizeof(fail_done));
	mock_lazy = mock_receives_first = false;
	mock_poll_max = mock_fail_at = mock_flush_polls = 0;
	mock_register_us = mock_deregister_us = 0;
	default_limits();
	leave();
}
