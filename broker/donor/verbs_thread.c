/*-------------------------------------------------------------------------
 *
 * verbs_thread.c
 *	  RDMA: listening, and the thread that serves clients.
 *
 * A client reads and writes by requests to its device, which the donor's
 * device serves without this process or a processor.  What remains to be done
 * is to admit those who have a lease, to hand out rkeys, to answer pings, and
 * above all to deregister MRs when a lease loses its regions.
 *
 * Threads.  The verbs thread sleeps in poll().  It waits for events of rdma_cm
 * (one channel for the listening id and all connections), of the devices, and
 * of an eventfd (grants).  It makes and frees all objects of verbs and
 * rdma_cm, which may wait for a device's firmware, with one exception: the
 * janitor deregisters MRs of regions, too, in revoke_mrs().  It takes turns: at
 * most EVENTS_NS of connection events, then one MR.  The ping thread answers
 * pings, and so never waits for firmware.  The control thread calls granted().
 *
 * Locks: verbs_lock, in verbs_mr.c; ping_lock, in verbs_ping.c.
 *
 * A device's context stays open as long as an id is on it.  That is the
 * anchor, an id with no other purpose, which also gets the event when the
 * device is unplugged.  Then everything on the device is freed, the ids last.
 *
 * Failures of devices affect connecting clients, or one region: they are
 * logged, and the connection is refused, or the registration is tried again a
 * second later.  After start-up, nothing here ends the donor.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/listen.h"
#include "broker/common/log.h"
#include "broker/common/signals.h"
#include "broker/donor/verbs_internal.h"
#include "common/clock.h"
#include "common/kernel.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#define EVENTS_NS		INT64_C(5000000)	/* for events of rdma_cm, per
											 * round */
#define BACKLOG			1024
#define CLOSE_TRIES		10		/* one per second */
#define ASYNC_EVENTS	64		/* of a device, handled per round */
#define TICK_NS			INT64_C(1000000000)

/* used by the verbs thread only */
static struct rdma_event_channel *events;
static struct rdma_cm_id *listener; /* NULL if its device is gone */
static struct sockaddr_storage listen_addr;
static int	close_tries;		/* attempts left to have a removed device's
								 * context closed */

/*
 * ---- listening -----------------------------------------------------------
 */

static bool
is_any(const struct sockaddr *addr)
{
	if (addr->sa_family == AF_INET6)
		return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *) addr)->sin6_addr);
	return ((const struct sockaddr_in *) addr)->sin_addr.s_addr == INADDR_ANY;
}

/*
 * Listen on an address and port (0: any).  Returns NULL on failure, with
 * errno.  Loopback addresses are refused: they belong to no device, and not
 * all devices can be reached by them.
 */
static struct rdma_cm_id *
listen_on(struct sockaddr *addr)
{
	struct rdma_cm_id *id;
	int			save_errno;

	if (rdma_create_id(events, &id, NULL, RDMA_PS_TCP) != 0)
		return NULL;
	if (rdma_bind_addr(id, addr) == 0)
	{
		/* donor_verbs_usable() says what is wrong with a bad device */
		if (id->verbs == NULL ? !is_any(addr) : rbp_verbs_check_device(id) == RBP_OTHER_DEVICE)
			errno = ENODEV;
		else if (rdma_listen(id, BACKLOG) == 0)
			return id;
	}
	save_errno = errno;
	rdma_destroy_id(id);
	errno = save_errno;
	return NULL;
}

/*
 * Listen on a host's address; "": any.  *port is set to the port.  On failure
 * the reason is stored in reason[len].
 */
static bool
start_listening(const char *host, uint16_t *port, char *reason, size_t len)
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
			snprintf(reason, len, "no RDMA device%s%s that can be used leads to \"%s\"",
					 rbp_verbs_config()->device[0] != '\0' ? " " : "",
					 rbp_verbs_config()->device, host);
		else
			snprintf(reason, len, "could not listen on \"%s\" port %u: %s", host,
					 (unsigned) *port, strerror(rc));
		return false;
	}

	if (listener->verbs != NULL &&
		!donor_verbs_usable(listener->verbs, listener->port_num, reason, len))
		return false;

	/* to listen again if the device comes back */
	listen_addr = listener->route.addr.src_storage;
	*port = ntohs(rdma_get_src_port(listener));
	return true;
}

static void
stop_listening(void)
{
	if (listener != NULL)
		(void) rdma_destroy_id(listener);
	listener = NULL;
}

/*
 * ---- devices -------------------------------------------------------------
 */

/* A device was unplugged or reset: there are no MRs on it any more. */
static void
device_removed(struct ibv_context *verbs)
{
	RbpDonorVerbsDevice *device = donor_verbs_devices();
	RbpDonorVerbsConnList gone;

	if (listener != NULL && listener->verbs == verbs)
	{
		rbp_log(RBP_LOG_WARNING, "RDMA: not listening until the device is back");
		stop_listening();
	}
	while (device != NULL && device->verbs != verbs)
		device = LIST_NEXT(device, link);
	if (device == NULL)
		return;
	rbp_log(RBP_LOG_WARNING, "RDMA: device %s is gone",
			ibv_get_device_name(verbs->device));

	donor_verbs_release_conns(device, &gone);
	donor_verbs_free_domains(device);
	donor_verbs_remove_device(device);
	(void) ibv_destroy_comp_channel(device->channel);

	/* the context may be closed with the last id */
	donor_verbs_free_released(&gone);
	if (device->anchor != NULL)
		(void) rdma_destroy_id(device->anchor);
	free(device);
	close_tries = CLOSE_TRIES;
}

/*
 * What a device says of itself.  Connections that fail notice it themselves:
 * what concerns a port is only logged.
 */
static void
handle_async_event(RbpDonorVerbsDevice *device, const struct ibv_async_event *event)
{
	const char *name = ibv_get_device_name(device->verbs->device);

	switch (event->event_type)
	{
		case IBV_EVENT_COMM_EST:
			donor_verbs_established(event->element.qp->qp_context, false);
			break;
		case IBV_EVENT_QP_FATAL:
		case IBV_EVENT_QP_REQ_ERR:
		case IBV_EVENT_QP_ACCESS_ERR:
			donor_verbs_broken(event->element.qp->qp_context);
			break;
		case IBV_EVENT_CQ_ERR:
			donor_verbs_broken(event->element.cq->cq_context);
			break;
		case IBV_EVENT_PORT_ERR:
			rbp_log_repeated(RBP_LOG_WARNING, "RDMA: port %d of device %s is down: clients lose their connections to it",
							 event->element.port_num, name);
			break;
		case IBV_EVENT_PORT_ACTIVE:
			rbp_log_repeated(RBP_LOG_INFO, "RDMA: port %d of device %s is up: clients can connect to it",
							 event->element.port_num, name);
			break;
		case IBV_EVENT_GID_CHANGE:
		case IBV_EVENT_LID_CHANGE:
		case IBV_EVENT_PKEY_CHANGE:
			rbp_log_repeated(RBP_LOG_INFO, "RDMA: addresses of port %d of device %s have changed: clients of old ones have to connect again",
							 event->element.port_num, name);
			break;
		case IBV_EVENT_DEVICE_FATAL:
			rbp_log(RBP_LOG_ERROR, "RDMA: device %s has failed: all connections to it are closed",
					name);
			device->dead = true;
			break;
		default:
			break;
	}
}

static void
handle_async_events(RbpDonorVerbsDevice *device)
{
	struct ibv_async_event event;

	for (int i = 0; i < ASYNC_EVENTS && ibv_get_async_event(device->verbs, &event) == 0; i++)
	{
		handle_async_event(device, &event);
		/* before its object may be destroyed */
		ibv_ack_async_event(&event);
	}
}

/* Handle what the devices say, and free those that are gone. */
static void
handle_devices(void)
{
	RbpDonorVerbsDevice *next;

	for (RbpDonorVerbsDevice *device = donor_verbs_devices(); device != NULL; device = next)
	{
		next = LIST_NEXT(device, link);
		handle_async_events(device);
		if (device->dead || device->failed)
			device_removed(device->verbs);
	}
}

/*
 * ---- the thread ----------------------------------------------------------
 */

/* Handle an event of rdma_cm; returns whether there was one. */
static bool
handle_event(void)
{
	struct rdma_cm_event *event;
	enum rdma_cm_event_type type;
	struct rdma_cm_id *id;
	RbpDonorVerbsConn *conn;
	uint8_t		hello[RBP_VERBS_HELLO_SIZE] = {0};
	size_t		len;
	uint32_t	qpn;
	uint8_t		reads;

	if (rdma_get_cm_event(events, &event) != 0)
		return false;

	/* an id cannot be destroyed before its events are acknowledged */
	type = event->event;
	id = event->id;
	conn = id->context;
	len = event->param.conn.private_data_len;
	if (type != RDMA_CM_EVENT_CONNECT_REQUEST || event->param.conn.private_data == NULL)
		len = 0;
	else if (len > sizeof(hello))
		len = sizeof(hello);
	if (len > 0)
		memcpy(hello, event->param.conn.private_data, len);
	qpn = event->param.conn.qp_num;
	reads = event->param.conn.responder_resources;
	rdma_ack_cm_event(event);

	switch (type)
	{
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			donor_verbs_handle_request(id, hello, len, qpn, reads);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			if (conn != NULL)
				donor_verbs_established(conn, true);
			break;
		case RDMA_CM_EVENT_UNREACHABLE:

			/*
			 * No RTU came.  If the client has sent something nevertheless, it
			 * is connected, and the probe will notice when it is gone.
			 */
			if (conn != NULL && !conn->established)
				donor_verbs_close(conn);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
		case RDMA_CM_EVENT_REJECTED:
		case RDMA_CM_EVENT_CONNECT_ERROR:
			if (conn != NULL)
				donor_verbs_close(conn);
			break;
		case RDMA_CM_EVENT_DEVICE_REMOVAL:
			device_removed(id->verbs);
			break;
		default:
			break;
	}
	return true;
}

/* Called each second. */
static void
tick_devices(void)
{
	/*
	 * A driver may wait for this process to close the context before the
	 * device can go, and come back.  rdma_cm closes it when it lists devices.
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

/* Wait for something to do, for so long at most (-1: for ever). */
static void
wait_for_work(int timeout_ms)
{
	struct pollfd fds[2 + DONOR_MAX_DEVICES];
	eventfd_t	count;
	int			n = 0;

	fds[n++] = donor_verbs_readable(donor_verbs_wake_fd);
	fds[n++] = donor_verbs_readable(events->fd);
	for (RbpDonorVerbsDevice *device = donor_verbs_devices(); device != NULL; device = LIST_NEXT(device, link))
		fds[n++] = donor_verbs_readable(device->verbs->async_fd);
	if (poll(fds, (nfds_t) n, timeout_ms) > 0 && fds[0].revents != 0)
		(void) eventfd_read(donor_verbs_wake_fd, &count);
}

static void *
thread_main(void *arg)
{
	int64_t		ticked_at = rbp_boottime_ns();
	bool		more = false;

	for (;;)
	{
		bool		ticks = donor_verbs_have_domains() || listener == NULL || close_tries > 0;
		int64_t		now;

		wait_for_work(more ? 0 : ticks ? TICK_NS / 1000000 : -1);
		handle_devices();
		now = rbp_now_ns();
		while (handle_event() && rbp_now_ns() - now < EVENTS_NS)
			;

		more = donor_verbs_register_next();
		now = rbp_boottime_ns();
		if (now - ticked_at >= TICK_NS)
		{
			donor_verbs_tick_conns(now);
			donor_verbs_tick_domains();
			tick_devices();
			ticked_at = now;
		}
	}
	return NULL;
}

/*
 * ---- start ---------------------------------------------------------------
 */
int
donor_verbs_numa_node(const char *host)
{
	struct rdma_event_channel *channel = rbp_verbs_present() ? rdma_create_event_channel() : NULL;
	struct addrinfo *list = NULL;
	int			node = -1;

	if (channel != NULL && rbp_listen_addresses(host, 0, &list) != 0)
		list = NULL;
	for (struct addrinfo *ai = list; ai != NULL && node < 0; ai = ai->ai_next)
	{
		struct rdma_cm_id *id;

		if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) != 0)
			continue;
		if (rdma_bind_addr(id, ai->ai_addr) == 0 && id->verbs != NULL)
		{
			uint64_t	number;

			/* it is -1 on a machine that has only one */
			if (rbp_kernel_number(id->verbs->device->ibdev_path, "device/numa_node", NULL, &number))
				node = (int) number;
		}
		rdma_destroy_id(id);
	}
	if (list != NULL)
		freeaddrinfo(list);
	if (channel != NULL)
		rdma_destroy_event_channel(channel);
	return node;
}

bool
donor_verbs_init(const char *host, uint16_t *port, const char **why)
{
	static char reason[256];
	const char *device = rbp_verbs_config()->device;

	*why = reason;
	if (!rbp_verbs_present())
	{
		snprintf(reason, sizeof(reason), "there is no RDMA device%s%s",
				 device[0] != '\0' ? " " : "", device);
		return false;
	}
	events = rdma_create_event_channel();
	if (events == NULL || !donor_verbs_set_nonblocking(events->fd))
		snprintf(reason, sizeof(reason), "could not use rdma_cm: %s", strerror(errno));
	else if (start_listening(host, port, reason, sizeof(reason)) &&
			 donor_verbs_try_registration(listener->verbs, reason, sizeof(reason)))
	{
		donor_verbs_wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (donor_verbs_wake_fd < 0)
			rbp_die("could not make an eventfd: %s", strerror(errno));
		donor_verbs_start_pings();
		rbp_thread_start(thread_main, NULL);
		return true;
	}
	stop_listening();
	if (events != NULL)
		rdma_destroy_event_channel(events);
	events = NULL;
	return false;
}
