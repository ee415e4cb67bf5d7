/*-------------------------------------------------------------------------
 *
 * mock_verbs.c
 *	  The simulated card: see mock_verbs.h.
 *
 * Objects are kept in lists by kind; what the caller holds is the first
 * member of ours.  A queue pair counts the work that was posted to it, what
 * was done of it, and what came free in its queue, all from its beginning.
 *
 *-------------------------------------------------------------------------
 */
#include "mock_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

#define ACK_NS			INT64_C(2000000000)
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

MockHooks	mock_hooks;
struct ibv_device_attr mock_limits;
uint32_t	mock_max_inline = 220;
bool		mock_lazy;
int			mock_poll_max;
int			mock_fail_at;
int			mock_flush_polls;
bool		mock_receives_first;
bool		mock_same_keys;
atomic_int	mock_register_us;
atomic_int	mock_deregister_us;
atomic_bool mock_hold_create_qp;
atomic_int	mock_held_create_qp;
struct rdma_event_channel *mock_hold_channel;
_Atomic uint64_t mock_calls[MOCK_NCALLS];

static uint32_t fail_nth[MOCK_NCALLS];
static int	fail_error[MOCK_NCALLS];
static bool fail_done[MOCK_NCALLS];

static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;

Device		mock_devices[MOCK_DEVICES];
static Mr  *mrs;
static Mr  *remote_mrs;
static Pd  *pds;
static Comp *comps;
static Cq  *cqs;
static Qp  *qps;
uint32_t	mock_next_number = 17;
static uint32_t violations;
static uint32_t last_rkey;		/* of the last one that was deregistered */

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
	mock_limits = (struct ibv_device_attr)
	{
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
		Device	   *d = &mock_devices[i];

		d->context.device = &d->device;
		d->context.cmd_fd = -1;
		d->context.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
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

void
mock_enter(void)
{
	pthread_once(&once, initialize);
	pthread_mutex_lock(&lock);
}

void
mock_leave(void)
{
	pthread_mutex_unlock(&lock);
}

void
mock_violation(const char *fmt,...)
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

void *
mock_get(size_t n, size_t size)
{
	void	   *p = calloc(n, size);

	if (p == NULL)
		abort();
	return p;
}

int64_t
mock_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

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
	mock_enter();
	fail_nth[call] = nth;
	fail_error[call] = error;
	fail_done[call] = false;
	mock_leave();
}

bool
mock_failed(MockCall call)
{
	bool		done;

	mock_enter();
	done = fail_done[call];
	mock_leave();
	return done;
}

bool
mock_fails(MockCall call)
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

	mock_enter();
	rc = mock_fails(call);
	mock_leave();
	return rc;
}

uint32_t
mock_violations(void)
{
	uint32_t	n;

	mock_enter();
	n = violations;
	mock_leave();
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
	mock_enter();
	for (Mr *mr = mrs; mr != NULL; mr = mr->next)
		if ((char *) mr->mr.addr < (char *) addr + len &&
			(char *) addr < (char *) mr->mr.addr + mr->mr.length)
			mock_violation("munmap of registered memory");
	mock_leave();
	return munmap(addr, len);
}

int
mock_madvise(void *addr, size_t len, int advice)
{
	return fails_alone(MOCK_MADVISE) ? -1 : madvise(addr, len, advice);
}

/*
 * ---- mock_devices, domains, registrations -----------------------------------------------
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

	mock_enter();
	if (!mock_fails(MOCK_GET_DEVICES))
	{
		list = mock_get(MOCK_DEVICES + 1, sizeof(*list));
		for (int i = 0; i < MOCK_DEVICES; i++)
			list[i] = &mock_devices[i].device;
		if (num != NULL)
			*num = MOCK_DEVICES;
	}
	mock_leave();
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

	mock_enter();
	if (!mock_fails(MOCK_GET_DEVICES))
	{
		list = mock_get(MOCK_DEVICES + 1, sizeof(*list));
		for (int i = 0; i < MOCK_DEVICES; i++)
			list[i] = &mock_devices[i].context;
		if (num != NULL)
			*num = MOCK_DEVICES;
	}
	mock_leave();
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

	mock_enter();
	if (!mock_fails(MOCK_OPEN_DEVICE))
		for (int i = 0; i < MOCK_DEVICES; i++)
			if (device == &mock_devices[i].device)
			{
				mock_devices[i].opened++;
				context = &mock_devices[i].context;
			}
	mock_leave();
	return context;
}

int
ibv_close_device(struct ibv_context *context)
{
	mock_enter();
	for (int i = 0; i < MOCK_DEVICES; i++)
		if (context == &mock_devices[i].context && mock_devices[i].opened-- <= 0)
			mock_violation("a device that is not open is closed");
	mock_leave();
	return 0;
}

int
ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	int			rc = 0;

	(void) context;
	mock_enter();
	if (mock_fails(MOCK_QUERY_DEVICE))
		rc = errno;
	else
		*attr = mock_limits;
	mock_leave();
	return rc;
}

int
ibv_query_port(struct ibv_context *context, uint8_t port,
			   struct _compat_ibv_port_attr *compat)
{
	struct ibv_port_attr *attr = (struct ibv_port_attr *) compat;
	bool		inactive = context == &mock_devices[0].context ? mock_devices[0].inactive
	: mock_devices[1].inactive;
	int			rc = 0;

	mock_enter();
	if (mock_fails(MOCK_QUERY_PORT))
		rc = errno;
	else if (port != 1)
		rc = EINVAL;
	else
	{
		attr->state = inactive ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
		attr->max_mtu = attr->active_mtu = IBV_MTU_4096;
		attr->gid_tbl_len = 8;
		attr->link_layer = IBV_LINK_LAYER_ETHERNET;
	}
	mock_leave();
	return rc;
}

void
mock_set_device(int device, enum ibv_transport_type type, bool active)
{
	mock_enter();
	mock_devices[device].device.transport_type = type;
	mock_devices[device].inactive = !active;
	mock_leave();
}

void
mock_async(int device, enum ibv_event_type type, struct ibv_qp *qp, int port)
{
	Device	   *d = &mock_devices[device];
	struct ibv_async_event event = {.event_type = type};
	uint64_t	one = 1;

	if (qp != NULL)
		event.element.qp = qp;
	else
		event.element.port_num = port;
	mock_enter();
	if (d->nasync == (int) (sizeof(d->async) / sizeof(d->async[0])) ||
		write(d->context.async_fd, &one, sizeof(one)) != sizeof(one))
		abort();
	d->async[d->nasync++] = event;
	mock_leave();
}

int
ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	Device	   *d = context == &mock_devices[0].context ? &mock_devices[0] : &mock_devices[1];
	uint64_t	one;

	if (read(context->async_fd, &one, sizeof(one)) != sizeof(one))
		return -1;
	mock_enter();
	*event = d->async[0];
	d->nasync--;
	d->unacked++;
	memmove(&d->async[0], &d->async[1], (size_t) d->nasync * sizeof(d->async[0]));
	mock_leave();
	return 0;
}

void
ibv_ack_async_event(struct ibv_async_event *event)
{
	(void) event;
	mock_enter();
	for (int i = 0; i < MOCK_DEVICES; i++)
		if (mock_devices[i].unacked > 0)
		{
			mock_devices[i].unacked--;
			mock_leave();
			return;
		}
	mock_violation("an asynchronous event is acknowledged that was not fetched");
	mock_leave();
}

struct ibv_pd *
ibv_alloc_pd(struct ibv_context *context)
{
	Pd		   *pd = NULL;

	mock_enter();
	if (!mock_fails(MOCK_ALLOC_PD))
	{
		pd = mock_get(1, sizeof(*pd));
		pd->pd.context = context;
		pd->pd.handle = mock_next_number++;
		LINK(pds, pd);
	}
	mock_leave();
	return pd != NULL ? &pd->pd : NULL;
}

int
ibv_dealloc_pd(struct ibv_pd *pd)
{
	int			rc = 0;
	bool		used = false;

	mock_enter();
	for (Mr *mr = mrs; mr != NULL; mr = mr->next)
		if (mr->mr.pd == pd)
		{
			used |= !mr->stuck;
			rc = EBUSY;
		}
	for (Qp *qp = qps; qp != NULL; qp = qp->next)
		used |= qp->qp.pd == pd;
	if (used)
		mock_violation("a protection domain in use is deallocated");
	if (used || rc != 0)
		rc = EBUSY;
	else if (!UNLINK(pds, (Pd *) pd))
		mock_violation("an unknown protection domain is deallocated");
	else
		free(pd);
	mock_leave();
	return rc;
}

static struct ibv_mr *
register_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			unsigned int access)
{
	Mr		   *mr = NULL;

	if (mock_register_us > 0)
		usleep((useconds_t) mock_register_us);
	mock_enter();
	if (!mock_fails(MOCK_REG_MR))
	{
		if (addr == NULL || length == 0 ||
			((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
			 (access & IBV_ACCESS_LOCAL_WRITE) == 0))
		{
			mock_violation("memory is registered with rights that make no sense");
			errno = EINVAL;
		}
		else
		{
			mr = mock_get(1, sizeof(*mr));
			mr->mr.context = pd->context;
			mr->mr.pd = pd;
			mr->mr.addr = addr;
			mr->mr.length = length;
			mr->mr.handle = mock_next_number++;
			mr->mr.lkey = mock_next_number++ << 8 | 1;
			mr->mr.rkey = mock_next_number++ << 8 | 2;
			if (mock_same_keys && last_rkey != 0)
			{
				mr->mr.rkey = last_rkey;
				last_rkey = 0;
			}
			mr->iova = iova;
			mr->access = (int) access;
			LINK(mrs, mr);
		}
	}
	mock_leave();
	return mr != NULL ? &mr->mr : NULL;
}

struct ibv_mr *
ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return register_mr(pd, addr, length, (uintptr_t) addr, (unsigned int) access);
}

struct ibv_mr *
ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				int access)
{
	return register_mr(pd, addr, length, iova, (unsigned int) access);
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
	mock_enter();
	if (mock_fails(MOCK_DEREG_MR))
	{
		((Mr *) mr)->stuck = true;
		rc = errno;
	}
	else if (!UNLINK(mrs, (Mr *) mr))
		mock_violation("an unknown registration is removed");
	else
	{
		for (Qp *qp = qps; qp != NULL; qp = qp->next)
		{
			for (uint64_t n = qp->done; n < qp->posted; n++)
			{
				Work	   *work = &qp->works[n % qp->cap.max_send_wr];

				for (int i = 0; i < work->nsge; i++)
					if (work->sge[i].lkey == mr->lkey)
						mock_violation("memory is deregistered that posted work uses");
			}
			for (uint64_t n = qp->rdone; n < qp->rposted; n++)
				if (qp->receives[n % qp->cap.max_recv_wr].sge.lkey == mr->lkey)
					mock_violation("memory is deregistered that a posted receive uses");
		}
		last_rkey = mr->rkey;
		free(mr);
	}
	mock_leave();
	return rc;
}

uint32_t
mock_registrations(uint64_t *bytes)
{
	uint32_t	n = 0;
	uint64_t	sum = 0;

	mock_enter();
	for (Mr *mr = mrs; mr != NULL; mr = mr->next)
	{
		n++;
		sum += mr->mr.length;
	}
	mock_leave();
	if (bytes != NULL)
		*bytes = sum;
	return n;
}

bool
mock_exposed(const void *addr, size_t len)
{
	bool		found = false;

	mock_enter();
	for (Mr *mr = mrs; mr != NULL; mr = mr->next)
		found |= (mr->access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)) != 0 &&
			(const char *) mr->mr.addr < (const char *) addr + len &&
			(const char *) addr < (const char *) mr->mr.addr + mr->mr.length;
	mock_leave();
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
	Mr		   *mr = mock_get(1, sizeof(*mr));
	uint32_t	key;

	mock_enter();
	mr->mr.addr = addr;
	mr->mr.length = len;
	key = mr->mr.rkey = mock_next_number++ << 8 | 3;
	mr->iova = iova;
	mr->access = access;
	LINK(remote_mrs, mr);
	mock_leave();
	return key;
}

void
mock_remote_dereg(uint32_t rkey)
{
	mock_enter();
	for (Mr *mr = remote_mrs; mr != NULL; mr = mr->next)
		if (mr->mr.rkey == rkey)
		{
			(void) UNLINK(remote_mrs, mr);
			free(mr);
			break;
		}
	mock_leave();
}

/*
 * ---- completion queues ----------------------------------------------------------------
 */
struct ibv_comp_channel *
ibv_create_comp_channel(struct ibv_context *context)
{
	Comp	   *comp = NULL;

	mock_enter();
	if (!mock_fails(MOCK_CREATE_COMP))
	{
		comp = mock_get(1, sizeof(*comp));
		comp->comp.context = context;
		comp->comp.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
		if (comp->comp.fd < 0)
			abort();
		LINK(comps, comp);
	}
	mock_leave();
	return comp != NULL ? &comp->comp : NULL;
}

int
ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	int			rc = 0;

	mock_enter();
	for (Cq *cq = cqs; cq != NULL; cq = cq->next)
		if (cq->cq.channel == channel)
			rc = EBUSY;
	if (rc != 0)
		mock_violation("a completion channel in use is destroyed");
	else if (!UNLINK(comps, (Comp *) channel))
		mock_violation("an unknown completion channel is destroyed");
	else
	{
		close(channel->fd);
		free(channel);
	}
	mock_leave();
	return rc;
}

struct ibv_cq *
ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			  struct ibv_comp_channel *channel, int comp_vector)
{
	Cq		   *cq = NULL;

	(void) comp_vector;
	mock_enter();
	if (mock_fails(MOCK_CREATE_CQ))
		;
	else if (cqe < 1 || cqe > mock_limits.max_cqe)
		errno = EINVAL;
	else
	{
		cq = mock_get(1, sizeof(*cq));
		cq->cq.context = context;
		cq->cq.channel = channel;
		cq->cq.cq_context = cq_context;
		cq->cq.handle = mock_next_number++;
		cq->cq.cqe = cqe;
		cq->ring = mock_get((size_t) cqe, sizeof(Cqe));
		LINK(cqs, cq);
	}
	mock_leave();
	return cq != NULL ? &cq->cq : NULL;
}

/* As libibverbs does; another thread may be about to. */
static void
wait_for_acks(Cq *cq)
{
	int64_t		until = mock_now_ns() + ACK_NS;
	uint32_t	unacked;

	do
	{
		mock_enter();
		unacked = cq->unacked;
		mock_leave();
		if (unacked > 0)
			usleep(100);
	} while (unacked > 0 && mock_now_ns() < until);
}

int
ibv_destroy_cq(struct ibv_cq *ibcq)
{
	Cq		   *cq = (Cq *) ibcq;
	int			rc = 0;

	mock_enter();
	for (Qp *qp = qps; qp != NULL; qp = qp->next)
		if (qp->qp.send_cq == ibcq || qp->qp.recv_cq == ibcq)
			rc = EBUSY;
	if (rc != 0)
		mock_violation("a completion queue in use is destroyed");
	else if (!UNLINK(cqs, cq))
	{
		mock_violation("an unknown completion queue is destroyed");
		rc = EINVAL;
	}
	else if (ibcq->channel != NULL)
	{
		Comp	   *comp = (Comp *) ibcq->channel;
		int			n = 0;

		for (int i = 0; i < comp->nqueue; i++)
		{
			uint64_t	one;

			if (comp->queue[i] != ibcq)
				comp->queue[n++] = comp->queue[i];
			else if (read(comp->comp.fd, &one, sizeof(one)) != sizeof(one))
				abort();
		}
		comp->nqueue = n;
	}
	mock_leave();
	if (rc != 0)
		return rc;

	/* as the library does: nobody can fetch another event from now on */
	wait_for_acks(cq);
	mock_enter();
	if (cq->unacked > 0)
		mock_violation("a completion queue with unacknowledged events is destroyed");
	mock_leave();
	free(cq->ring);
	free(cq);
	return 0;
}

static int
do_notify(struct ibv_cq *cq, int solicited)
{
	int			rc = 0;

	(void) solicited;
	mock_enter();
	if (mock_fails(MOCK_REQ_NOTIFY))
		rc = errno;
	else
		((Cq *) cq)->armed = true;
	mock_leave();
	return rc;
}

int
ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq,
				 void **cq_context)
{
	Comp	   *comp = (Comp *) channel;
	uint64_t	one;

	/* under the lock: another thread may destroy the queue */
	mock_enter();
	while (comp->nqueue == 0)
	{
		struct pollfd pfd = {.fd = channel->fd,.events = POLLIN};

		mock_leave();
		if ((fcntl(channel->fd, F_GETFL) & O_NONBLOCK) != 0)
		{
			errno = EAGAIN;
			return -1;
		}
		(void) poll(&pfd, 1, -1);
		mock_enter();
	}
	if (read(channel->fd, &one, sizeof(one)) != sizeof(one))
		abort();
	*cq = comp->queue[0];
	*cq_context = (*cq)->cq_context;
	((Cq *) *cq)->unacked++;
	comp->nqueue--;
	memmove(&comp->queue[0], &comp->queue[1], (size_t) comp->nqueue * sizeof(comp->queue[0]));
	mock_leave();
	return 0;
}

void
ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	mock_enter();
	if (n > ((Cq *) cq)->unacked)
		mock_violation("more completion events are acknowledged than were fetched");
	else
		((Cq *) cq)->unacked -= n;
	mock_leave();
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
		mock_violation("a completion queue of %d overruns", cq->cq.cqe);
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

static Qp  *
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
		mock_violation("a receive into memory that is not registered for it");
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

	mock_enter();
	rc = ibqp->state == IBV_QPS_RTS && deliver((Qp *) ibqp, data, len);
	mock_leave();
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
			mock_violation("work on memory that is not registered for it");
			return IBV_WC_LOC_PROT_ERR;
		}
	}
	if (qp->peer_gone || (qp->peer != NULL && qp->peer->qp.state != IBV_QPS_RTS))
		return IBV_WC_RETRY_EXC_ERR;

	if (work->seen.opcode == IBV_WR_SEND)
	{
		uint8_t    *data = mock_get(1, work->seen.len + 1);
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
				qp->rnr_since = mock_now_ns();
			return mock_now_ns() - qp->rnr_since < RNR_NS ? MOCK_HOLD
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

void
mock_to_error(Qp *qp, int polls)
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
	mock_enter();
	mock_to_error((Qp *) qp, 0);
	mock_leave();
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
			mock_to_error(qp->peer, 0); /* that ends both */
		if (status != IBV_WC_SUCCESS)
			mock_to_error(qp, 0);
	}
	if (qp->qp.state == IBV_QPS_ERR)
		flush(qp);
}

void
mock_progress(void)
{
	mock_enter();
	for (Qp *qp = qps; qp != NULL; qp = qp->next)
		progress(qp);
	mock_leave();
}

static int
do_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	Qp		   *qp = (Qp *) ibqp;
	int			rc = 0;
	int			fail_at = -1;

	mock_enter();
	if (mock_fails(MOCK_POST_SEND))
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
			mock_violation("work is posted to a queue pair in state %d", qp->qp.state);
			rc = EINVAL;
			break;
		}
		if (qp->posted - qp->freed >= qp->cap.max_send_wr)
		{
			mock_violation("more work is posted than the queue of %u takes",
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
			mock_violation("work is posted that the queue pair cannot do");
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

			work->data = mock_get(1, len + 1);
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
	mock_leave();
	return rc;
}

static int
do_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	Qp		   *qp = (Qp *) ibqp;
	int			rc = 0;

	mock_enter();
	if (mock_fails(MOCK_POST_RECV))
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
			mock_violation("a receive is posted that the queue pair cannot do");
			rc = EINVAL;
			break;
		}
		if (qp->rposted - qp->rfreed >= qp->cap.max_recv_wr)
		{
			mock_violation("more receives are posted than the queue of %u takes",
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
	mock_leave();
	return rc;
}

static int
do_poll(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	Cq		   *cq = (Cq *) ibcq;
	int			count = 0;

	mock_enter();
	if (mock_hooks.on_poll != NULL)
		mock_hooks.on_poll(ibcq);
	if (mock_fails(MOCK_POLL_CQ))
	{
		mock_leave();
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
	mock_leave();
	return count;
}

void *
mock_release_create_qp(void *us)
{
	usleep(*(useconds_t *) us);
	atomic_store(&mock_hold_create_qp, false);
	return NULL;
}

int
rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd,
			   struct ibv_qp_init_attr *attr)
{
	int			rc = -1;

	atomic_fetch_add(&mock_held_create_qp, 1);
	while (atomic_load(&mock_hold_create_qp) &&
		   (mock_hold_channel == NULL || mock_hold_channel == id->channel))
		usleep(100);
	atomic_fetch_sub(&mock_held_create_qp, 1);
	mock_enter();
	if (mock_fails(MOCK_CREATE_QP))
		;
	else if (id->verbs == NULL || id->qp != NULL || pd == NULL ||
			 pd->context != id->verbs || attr->send_cq == NULL ||
			 attr->recv_cq == NULL || attr->qp_type != IBV_QPT_RC)
	{
		mock_violation("a queue pair is created without what it needs");
		errno = EINVAL;
	}
	else if (attr->cap.max_send_wr > (uint32_t) mock_limits.max_qp_wr ||
			 attr->cap.max_recv_wr > (uint32_t) mock_limits.max_qp_wr ||
			 attr->cap.max_send_sge > (uint32_t) mock_limits.max_sge ||
			 attr->cap.max_inline_data > mock_max_inline)
		errno = EINVAL;
	else
	{
		Qp		   *qp = mock_get(1, sizeof(*qp));

		qp->qp.context = id->verbs;
		qp->qp.qp_context = attr->qp_context;
		qp->qp.pd = pd;
		qp->qp.send_cq = attr->send_cq;
		qp->qp.recv_cq = attr->recv_cq;
		qp->qp.qp_num = mock_next_number++;
		qp->qp.state = IBV_QPS_INIT;
		qp->qp.qp_type = IBV_QPT_RC;
		qp->cap = attr->cap;
		qp->sig_all = attr->sq_sig_all != 0;
		qp->works = mock_get(qp->cap.max_send_wr + 1, sizeof(Work));
		qp->receives = mock_get(qp->cap.max_recv_wr + 1, sizeof(Receive));
		LINK(qps, qp);
		id->qp = &qp->qp;
		id->pd = pd;
		id->send_cq = attr->send_cq;
		id->recv_cq = attr->recv_cq;
		rc = 0;
	}
	mock_leave();
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

	mock_enter();
	if (qp == NULL || !UNLINK(qps, qp))
		mock_violation("an unknown queue pair is destroyed");
	else
	{
		/* the device may have been at it up to now */
		if (qp->qp.state == IBV_QPS_RTS || qp->moving)
			move_the_rest(qp);
		free_qp(qp);
	}
	id->qp = NULL;
	mock_leave();
}

int
ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int			rc = 0;

	mock_enter();
	if (mock_fails(MOCK_MODIFY_QP))
		rc = errno;
	else if ((mask & IBV_QP_STATE) == 0 || attr->qp_state != IBV_QPS_ERR)
	{
		mock_violation("a queue pair is modified in a way that nobody knows");
		rc = EINVAL;
	}
	else
		mock_to_error((Qp *) qp, mock_flush_polls);
	mock_leave();
	return rc;
}

int
ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
			 struct ibv_qp_init_attr *init)
{
	(void) mask;
	mock_enter();
	memset(attr, 0, sizeof(*attr));
	memset(init, 0, sizeof(*init));
	attr->qp_state = attr->cur_qp_state = qp->state;
	attr->cap = init->cap = ((Qp *) qp)->cap;
	mock_leave();
	return 0;
}

const char *
ibv_wc_status_str(enum ibv_wc_status status)
{
	return status == IBV_WC_SUCCESS ? "success" : "failure";
}

/*
 * ---- what is left -------------------------------------------------------------------
 */
void
mock_tell_leak(bool tell, uint32_t count, const char *name, uint32_t *sum)
{
	*sum += count;
	if (tell && count > 0)
		printf("# mock: %u %s left\n", count, name);
}

uint32_t
mock_leaks(bool tell)
{
	uint32_t	n[6] = {0};
	uint32_t	sum;

	mock_enter();
	COUNT(mrs, n[0]);
	COUNT(pds, n[1]);
	COUNT(comps, n[2]);
	COUNT(cqs, n[3]);
	COUNT(qps, n[4]);
	for (int i = 0; i < MOCK_DEVICES; i++)
		n[5] += (uint32_t) mock_devices[i].opened;
	sum = mock_cm_leaks(tell);
	mock_leave();
	mock_tell_leak(tell, n[0], "registrations", &sum);
	mock_tell_leak(tell, n[1], "protection domains", &sum);
	mock_tell_leak(tell, n[2], "completion channels", &sum);
	mock_tell_leak(tell, n[3], "completion queues", &sum);
	mock_tell_leak(tell, n[4], "queue pairs", &sum);
	mock_tell_leak(tell, n[5], "open mock_devices", &sum);
	return sum;
}

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
	mock_enter();
	FREE_ALL(qps, free_qp);
	FREE_ALL(cqs, free_cq);
	FREE_ALL(comps, free_comp);
	FREE_ALL(mrs, free);
	FREE_ALL(remote_mrs, free);
	FREE_ALL(pds, free);
	mock_cm_reset();
	for (int i = 0; i < MOCK_DEVICES; i++)
	{
		mock_devices[i].opened = 0;
		mock_devices[i].inactive = false;
		mock_devices[i].device.transport_type = IBV_TRANSPORT_IB;
	}
	memset(&mock_hooks, 0, sizeof(mock_hooks));
	for (int i = 0; i < MOCK_NCALLS; i++)
		mock_calls[i] = 0;
	memset(fail_nth, 0, sizeof(fail_nth));
	memset(fail_done, 0, sizeof(fail_done));
	mock_lazy = mock_receives_first = mock_lose_rtu = mock_same_keys = false;
	mock_poll_max = mock_fail_at = mock_flush_polls = 0;
	mock_register_us = mock_deregister_us = 0;
	mock_hold_create_qp = false;
	mock_hold_channel = NULL;
	default_limits();
	mock_leave();
}
