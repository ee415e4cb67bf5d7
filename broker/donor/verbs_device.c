/*-------------------------------------------------------------------------
 *
 * verbs_device.c
 *	  RDMA devices: which can be used, how they are opened, and what they
 *	  refuse.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/log.h"
#include "broker/donor/verbs_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

const char *
donor_verbs_memory_hint(int error)
{
	struct rlimit limit;

	if (error != ENOMEM && error != EAGAIN && error != EPERM)
		return "";
	if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
		limit.rlim_cur > 2 * donor_nregions * donor_region_size)
		return "; RLIMIT_MEMLOCK allows it: memory is short, or the device or the cgroup (rdma.max) has no room for more";
	return "; raise RLIMIT_MEMLOCK (LimitMEMLOCK= in a unit)";
}

void
donor_verbs_log_failure(int error, const char *fmt,...)
{
	char		what[128];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	rbp_log_repeated(RBP_LOG_WARNING, "RDMA: could not %s: %s%s", what, strerror(error),
					 donor_verbs_memory_hint(error));
}

bool
donor_verbs_set_nonblocking(int fd)
{
	int			flags = fcntl(fd, F_GETFL);

	return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

bool
donor_verbs_usable(struct ibv_context *verbs, int port, char *reason, size_t len)
{
	const char *name = ibv_get_device_name(verbs->device);
	struct ibv_device_attr attr;
	struct ibv_port_attr port_attr;
	int			last = port;

	if (verbs->device->transport_type != IBV_TRANSPORT_IB ||
		verbs->device->node_type != IBV_NODE_CA)
	{
		snprintf(reason, len, "device %s is neither InfiniBand nor RoCE but %s", name,
				 verbs->device->transport_type == IBV_TRANSPORT_IWARP ? "iWARP"
				 : verbs->device->transport_type == IBV_TRANSPORT_USNIC ||
				 verbs->device->transport_type == IBV_TRANSPORT_USNIC_UDP ? "usNIC"
				 : "something else, such as EFA");
		return false;
	}
	if (port == 0)
	{
		errno = ibv_query_device(verbs, &attr);
		if (errno != 0)
		{
			snprintf(reason, len, "could not query device %s: %s", name, strerror(errno));
			return false;
		}
		port = 1;
		last = attr.phys_port_cnt;
	}
	for (; port <= last; port++)
		if (ibv_query_port(verbs, (uint8_t) port, &port_attr) == 0 &&
			port_attr.state == IBV_PORT_ACTIVE)
			return true;
	snprintf(reason, len, "port %d of device %s is not active", last, name);
	return false;
}

/*
 * Create an id on the same device as this one, which is connected or about to
 * be.  NULL if its address leads to another device.
 */
static struct rdma_cm_id *
make_anchor(struct rdma_cm_id *id)
{
	struct sockaddr_storage addr = id->route.addr.src_storage;
	struct rdma_cm_id *anchor;

	((struct sockaddr_in *) &addr)->sin_port = 0;	/* also sin6_port */
	if (rdma_create_id(id->channel, &anchor, NULL, RDMA_PS_TCP) != 0)
		return NULL;
	if (rdma_bind_addr(anchor, (struct sockaddr *) &addr) == 0 &&
		anchor->verbs == id->verbs)
		return anchor;
	rdma_destroy_id(anchor);
	return NULL;
}

RbpDonorVerbsDevice *
donor_verbs_get_device(struct rdma_cm_id *id)
{
	struct ibv_device_attr attr;
	RbpDonorVerbsDevice *device;
	char		reason[128];
	int			ndevices = 0;

	for (device = donor_verbs_devices(); device != NULL; device = LIST_NEXT(device, link), ndevices++)
		if (device->verbs == id->verbs)
			return device;

	/* listening on any address, this may be any device */
	if (!donor_verbs_usable(id->verbs, id->port_num, reason, sizeof(reason)))
	{
		rbp_log_repeated(RBP_LOG_WARNING, "RDMA: refused a client: %s", reason);
		return NULL;
	}
	device = ndevices < DONOR_MAX_DEVICES ? calloc(1, sizeof(*device)) : NULL;
	if (device == NULL)
	{
		donor_verbs_log_failure(ENOMEM, "use another device");
		return NULL;
	}
	device->verbs = id->verbs;
	device->channel = ibv_create_comp_channel(id->verbs);
	if (device->channel == NULL || !donor_verbs_set_nonblocking(device->channel->fd) ||
		!donor_verbs_set_nonblocking(id->verbs->async_fd) ||
		(errno = ibv_query_device(id->verbs, &attr)) != 0)
	{
		donor_verbs_log_failure(errno, "use device %s", ibv_get_device_name(id->verbs->device));
		if (device->channel != NULL)
			(void) ibv_destroy_comp_channel(device->channel);
		free(device);
		return NULL;
	}
	device->max_reads = attr.max_qp_rd_atom < UINT8_MAX ? attr.max_qp_rd_atom : UINT8_MAX;
	device->anchor = make_anchor(id);
	donor_verbs_add_device(device);
	return device;
}
