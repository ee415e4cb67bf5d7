/*-------------------------------------------------------------------------
 *
 * verbs_device.c
 *	  RDMA devices: listening, and devices that come and go.
 *
 * A device's context stays open as long as an id is on it: the anchor, an id
 * that does nothing else, and that gets the event when the device is
 * unplugged.  Then everything on the device is freed, the ids last.
 *
 * All of this is the verbs thread's.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/listen.h"
#include "broker/common/log.h"
#include "broker/donor/verbs_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BACKLOG			1024
#define CLOSE_TRIES		10		/* one a second */

VerbsDevice *donor_verbs_devices;
struct rdma_event_channel *donor_verbs_events;

static int	ndevices;
static struct rdma_cm_id *listener; /* NULL: its device is gone */
static struct sockaddr_storage listen_addr;
static int	close_tries;		/* to have a removed device's context closed */

/*
 * ---- listening ----------------------------------------------------------------
 */

static bool
is_any(const struct sockaddr *addr)
{
	if (addr->sa_family == AF_INET6)
		return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *) addr)->sin6_addr);
	return ((const struct sockaddr_in *) addr)->sin_addr.s_addr == INADDR_ANY;
}

/*
 * Listen on an address and port (0: any).  NULL if that fails, with errno.
 * Loopback addresses belong to no device, and not all can be reached by them.
 */
static struct rdma_cm_id *
listen_on(struct sockaddr *addr)
{
	struct rdma_cm_id *id;
	int			save_errno;

	if (rdma_create_id(donor_verbs_events, &id, NULL, RDMA_PS_TCP) != 0)
		return NULL;
	if (rdma_bind_addr(id, addr) == 0)
	{
		if (id->verbs == NULL ? !is_any(addr) : !rbp_verbs_is_wanted(id))
			errno = ENODEV;
		else if (rdma_listen(id, BACKLOG) == 0)
			return id;
	}
	save_errno = errno;
	rdma_destroy_id(id);
	errno = save_errno;
	return NULL;
}

bool
donor_verbs_listen(const char *host, uint16_t *port, char *reason, size_t len)
{
	struct addrinfo *list;
	int			rc = rbp_listen_addresses(host, *port, &list);

	if (rc != 0)
	{
		snprintf(reason, len, "could not resolve \"%s\": %s", host, gai_strerror(rc));
		return false;
	}
	for (struct addrinfo *ai = list; ai != NULL && listener == NULL; ai = ai->ai_next)
		listener = listen_on(ai->ai_addr);
	rc = errno;
	freeaddrinfo(list);
	if (listener == NULL)
	{
		if (rc == ENODEV || rc == EADDRNOTAVAIL)
			snprintf(reason, len, "no RDMA device%s%s leads to \"%s\"",
					 rbp_verbs_config()->device[0] != '\0' ? " " : "",
					 rbp_verbs_config()->device, host);
		else
			snprintf(reason, len, "could not listen on \"%s\" port %u: %s", host,
					 (unsigned) *port, strerror(rc));
		return false;
	}

	/* the same again if the device comes back */
	listen_addr = listener->route.addr.src_storage;
	*port = ntohs(rdma_get_src_port(listener));
	return true;
}

void
donor_verbs_stop_listening(void)
{
	if (listener != NULL)
		(void) rdma_destroy_id(listener);
	listener = NULL;
}

struct ibv_context *
donor_verbs_listening_device(void)
{
	return listener != NULL ? listener->verbs : NULL;
}

/*
 * ---- devices ------------------------------------------------------------------
 */

/*
 * An id on the same device as this one, which is connected or about to be.
 * NULL if the address leads to another one.
 */
static struct rdma_cm_id *
make_anchor(struct rdma_cm_id *id)
{
	struct sockaddr_storage addr = id->route.addr.src_storage;
	struct rdma_cm_id *anchor;

	((struct sockaddr_in *) &addr)->sin_port = 0;	/* where sin6_port is, too */
	if (rdma_create_id(donor_verbs_events, &anchor, NULL, RDMA_PS_TCP) != 0)
		return NULL;
	if (rdma_bind_addr(anchor, (struct sockaddr *) &addr) == 0 &&
		anchor->verbs == id->verbs)
		return anchor;
	rdma_destroy_id(anchor);
	return NULL;
}

VerbsDevice *
donor_verbs_get_device(struct rdma_cm_id *id)
{
	struct ibv_device_attr attr;
	VerbsDevice *device;

	for (device = donor_verbs_devices; device != NULL; device = device->next)
		if (device->verbs == id->verbs)
			return device;

	device = ndevices < VERBS_MAX_DEVICES ? calloc(1, sizeof(*device)) : NULL;
	if (device == NULL)
	{
		donor_verbs_complain(ENOMEM, "use another device");
		return NULL;
	}
	device->verbs = id->verbs;
	device->channel = ibv_create_comp_channel(id->verbs);
	if (device->channel == NULL || !donor_verbs_set_nonblocking(device->channel->fd) ||
		(errno = ibv_query_device(id->verbs, &attr)) != 0)
	{
		donor_verbs_complain(errno, "use device %s", ibv_get_device_name(id->verbs->device));
		if (device->channel != NULL)
			(void) ibv_destroy_comp_channel(device->channel);
		free(device);
		return NULL;
	}
	device->max_reads = attr.max_qp_rd_atom < UINT8_MAX ? attr.max_qp_rd_atom : UINT8_MAX;
	device->anchor = make_anchor(id);
	device->next = donor_verbs_devices;
	donor_verbs_devices = device;
	ndevices++;
	return device;
}

void
donor_verbs_remove_device(struct ibv_context *verbs)
{
	VerbsDevice **prev = &donor_verbs_devices;
	VerbsDevice *device;
	VerbsConnList gone;

	while (*prev != NULL && (*prev)->verbs != verbs)
		prev = &(*prev)->next;
	device = *prev;
	if (device == NULL)
		return;
	rbp_log(RBP_LOG_WARNING, "RDMA: device %s is gone",
			ibv_get_device_name(verbs->device));

	donor_verbs_release_conns(device, &gone);
	donor_verbs_free_domains(device);
	*prev = device->next;
	ndevices--;
	(void) ibv_destroy_comp_channel(device->channel);

	/* the context may be closed with the last of these */
	donor_verbs_free_released(&gone);
	if (device->anchor != NULL)
		(void) rdma_destroy_id(device->anchor);
	free(device);
	close_tries = CLOSE_TRIES;
}

void
donor_verbs_handle_removal(struct rdma_cm_id *id)
{
	donor_verbs_remove_device(id->verbs);
	if (id == listener)
	{
		rbp_log(RBP_LOG_WARNING, "RDMA: not listening until the device is back");
		donor_verbs_stop_listening();
	}
}

bool
donor_verbs_devices_need_ticks(void)
{
	return listener == NULL || close_tries > 0;
}

void
donor_verbs_tick_devices(void)
{
	/*
	 * A driver may have to wait for us to close the context before the device
	 * can go, and come back.  rdma_cm does it when it looks for devices.
	 */
	if (close_tries > 0)
	{
		struct ibv_context **list = rdma_get_devices(NULL);

		if (list != NULL)
			rdma_free_devices(list);
		close_tries--;
	}
	if (listener == NULL)
	{
		listener = listen_on((struct sockaddr *) &listen_addr);
		if (listener != NULL)
			rbp_log(RBP_LOG_INFO, "RDMA: listening again");
	}
}
