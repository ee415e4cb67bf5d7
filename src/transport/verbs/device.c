/*-------------------------------------------------------------------------
 *
 * device.c
 *	  Resources that the verbs connections of a process share: see device.h.
 *
 * One lock protects the lists of devices and registrations, and their
 * reference counts.  It is held while memory is registered, too, which can take
 * milliseconds: the processes of a server use one thread each.
 *
 * Forking.  librdmacm opens a device once and keeps it open, so that a child
 * inherits it, with doorbells and protection domains that belong to the
 * parent.  A process must not use RDMA itself if it is to fork workers that
 * do.
 *
 *-------------------------------------------------------------------------
 */
#include "common/status.h"
#include "transport/transport.h"
#include "transport/verbs/device.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* protected by lock */
static LIST_HEAD(RbpVerbsDeviceList, RbpVerbsDevice) devices = LIST_HEAD_INITIALIZER(devices);
static _Atomic pid_t owner_pid; /* process that uses librdmacm, 0: none yet */

/*
 * A later fork() must not give the child pages that the device works on.
 * Kernels since 5.12 ensure that by themselves; asking for it needlessly
 * would prevent the registration of memory in huge pages.
 */
static void
init_fork(void)
{
	if (ibv_is_fork_initialized() != IBV_FORK_UNNEEDED)
		(void) ibv_fork_init();
}

bool
rbp_verbs_usable(const RbpEndpoint *ep)
{
	return owner_pid == 0 || owner_pid == getpid();
}

bool
rbp_verbs_claim(void)
{
	pid_t		none = 0;

	(void) atomic_compare_exchange_strong(&owner_pid, &none, getpid());
	if (owner_pid != getpid())
		return false;
	(void) pthread_once(&once, init_fork);
	return true;
}

/*
 * Make the entry of a device that no connection uses yet, with a protection
 * domain; NULL on failure.
 */
static RbpVerbsDevice *
device_new(struct ibv_context *verbs)
{
	RbpVerbsDevice *device = calloc(1, sizeof(*device));
	struct ibv_device_attr attr;

	if (device == NULL)
		return NULL;
	device->verbs = verbs;
	if (ibv_query_device(verbs, &attr) != 0)
		goto free_device;
	device->reads = (uint8_t) (attr.max_qp_init_rd_atom < RBP_VERBS_READS_MAX
							   ? attr.max_qp_init_rd_atom : RBP_VERBS_READS_MAX);
	device->pd = ibv_alloc_pd(verbs);
	if (device->pd == NULL)
		goto free_device;
	LIST_INSERT_HEAD(&devices, device, link);
	return device;

free_device:
	free(device);
	return NULL;
}

RbpVerbsDevice *
rbp_verbs_device_get(struct ibv_context *verbs)
{
	RbpVerbsDevice *device;

	pthread_mutex_lock(&lock);
	for (device = LIST_FIRST(&devices); device != NULL; device = LIST_NEXT(device, link))
	{
		if (device->verbs == verbs)
			break;
	}
	if (device == NULL)
		device = device_new(verbs);
	if (device != NULL)
		device->refs++;
	pthread_mutex_unlock(&lock);
	return device;
}

void
rbp_verbs_device_put(RbpVerbsDevice *device)
{
	pthread_mutex_lock(&lock);
	if (--device->refs == 0)
	{
		LIST_REMOVE(device, link);
		(void) ibv_dealloc_pd(device->pd);
		free(device);
	}
	pthread_mutex_unlock(&lock);
}

RbpStatus
rbp_verbs_mr_get(RbpVerbsDevice *device, void *base, size_t len, RbpMr **mr_out)
{
	RbpStatus	status = RBP_OK;
	RbpMr	   *mr;

	pthread_mutex_lock(&lock);
	for (mr = LIST_FIRST(&device->mrs); mr != NULL; mr = LIST_NEXT(mr, link))
	{
		if (mr->base == base && mr->len == len)
			break;
	}
	if (mr == NULL)
	{
		mr = calloc(1, sizeof(*mr));
		if (mr != NULL)
			mr->mr = ibv_reg_mr(device->pd, base, len, IBV_ACCESS_LOCAL_WRITE);
		if (mr == NULL || mr->mr == NULL)
		{
			status = errno == EFAULT || errno == EINVAL ? RBP_INVALID : RBP_NOMEM;
			free(mr);
		}
		else
		{
			mr->device = device;
			mr->base = base;
			mr->len = len;
			LIST_INSERT_HEAD(&device->mrs, mr, link);
		}
	}
	if (status == RBP_OK)
	{
		mr->refs++;
		*mr_out = mr;
	}
	pthread_mutex_unlock(&lock);
	return status;
}

void
rbp_verbs_mr_put(RbpConn *conn, RbpMr *mr)
{
	pthread_mutex_lock(&lock);
	if (--mr->refs == 0)
	{
		LIST_REMOVE(mr, link);
		(void) ibv_dereg_mr(mr->mr);
		free(mr);
	}
	pthread_mutex_unlock(&lock);
}
