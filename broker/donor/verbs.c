/*-------------------------------------------------------------------------
 *
 * verbs.c
 *	  RDMA: the thread that lets clients in, and hands out rkeys.
 *
 * A client reads and writes by asking its device, which asks ours, which
 * needs neither this process nor a processor for it.  What is left to do here
 * is to let in those who have a lease, to hand out rkeys, to answer pings, and
 * above all to end MRs when a lease loses its regions.
 *
 * verbs_device.c	devices, and listening
 * verbs_conn.c		connections: handshake, pings
 * verbs_mr.c		MRs of regions: registration and fencing; why no rkey
 *					outlives a lease
 *
 * Threads.  One, the verbs thread, which sleeps in poll(): on rdma_cm's events
 * (one channel for the listening id and all connections), on one completion
 * channel for each device (pings), and on an eventfd (grants).  It alone
 * touches the lists of devices and connections, and all objects of verbs and
 * rdma_cm, but for one thing: MRs of regions are ended by the janitor, too, in
 * revoke_mrs().  The control thread comes by in granted().
 *
 * Locks: verbs_lock, in verbs_mr.c.
 *
 * Failures of devices concern those who connect, or one region: they are
 * logged, and the connection is refused, or the registration is tried again a
 * second later.  Nothing here ends the donor after its start.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/log.h"
#include "broker/donor/verbs_internal.h"
#include "common/clock.h"
#include "transport/peer.h"
#include "wire/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TICK_NS			INT64_C(1000000000)

static int	wake_fd = -1;

void
donor_verbs_complain(int error, const char *fmt,...)
{
	char		what[128];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	rbp_log_repeated(RBP_LOG_WARNING, "RDMA: could not %s: %s%s", what, strerror(error),
					 error == ENOMEM ? "; RLIMIT_MEMLOCK (LimitMEMLOCK= in a unit) may be too low" : "");
}

bool
donor_verbs_set_nonblocking(int fd)
{
	int			flags = fcntl(fd, F_GETFL);

	return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

void
donor_verbs_wake(void)
{
	/* fails only if the thread has not read for 2^64 times */
	(void) eventfd_write(wake_fd, 1);
}

/* Returns whether there was an event. */
static bool
handle_event(void)
{
	struct rdma_cm_event *event;
	enum rdma_cm_event_type type;
	struct rdma_cm_id *id;
	VerbsConn  *conn;
	uint8_t		hello[RBP_VERBS_HELLO_SIZE] = {0};
	size_t		len;
	uint32_t	qpn;
	uint8_t		reads;

	if (rdma_get_cm_event(donor_verbs_events, &event) != 0)
		return false;

	/* an id cannot be destroyed before its events are given back */
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
				donor_verbs_established(conn);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
		case RDMA_CM_EVENT_REJECTED:
		case RDMA_CM_EVENT_UNREACHABLE:
		case RDMA_CM_EVENT_CONNECT_ERROR:
			if (conn != NULL)
				donor_verbs_close(conn);
			break;
		case RDMA_CM_EVENT_DEVICE_REMOVAL:
			donor_verbs_handle_removal(id);
			break;
		default:
			break;
	}
	return true;
}

static void *
thread_main(void *arg)
{
	int64_t		ticked_at = rbp_boottime_ns();
	bool		more = false;

	(void) arg;
	for (;;)
	{
		struct pollfd fds[2 + VERBS_MAX_DEVICES];
		VerbsDevice *polled[VERBS_MAX_DEVICES];
		int			n = 0;
		bool		ticks = donor_verbs_have_domains() || donor_verbs_devices_need_ticks();
		int64_t		now;

		fds[0] = (struct pollfd) {.fd = donor_verbs_events->fd,.events = POLLIN};
		fds[1] = (struct pollfd) {.fd = wake_fd,.events = POLLIN};
		for (VerbsDevice *device = donor_verbs_devices; device != NULL; device = device->next)
		{
			polled[n] = device;
			fds[2 + n++] = (struct pollfd) {.fd = device->channel->fd,.events = POLLIN};
		}
		if (poll(fds, (nfds_t) (2 + n), more ? 0 : ticks ? TICK_NS / 1000000 : -1) < 0)
			continue;

		if (fds[1].revents != 0)
		{
			eventfd_t	count;

			(void) eventfd_read(wake_fd, &count);
		}
		for (int i = 0; i < n; i++)
		{
			if (fds[2 + i].revents & POLLIN)
				donor_verbs_handle_completions(polled[i]);
			else if (fds[2 + i].revents != 0)
				donor_verbs_remove_device(polled[i]->verbs);
		}
		for (int i = 0; i < VERBS_EVENTS && handle_event(); i++)
			;

		more = donor_verbs_register_some();
		now = rbp_boottime_ns();
		if (now - ticked_at >= TICK_NS)
		{
			donor_verbs_tick_conns(now);
			donor_verbs_tick_domains();
			donor_verbs_tick_devices();
			ticked_at = now;
		}
	}
	return NULL;
}

bool
donor_verbs_init(const char *host, uint16_t *port, const char **why)
{
	static char reason[256];
	const char *device = rbp_verbs_config()->device;
	pthread_t	thread;

	*why = reason;
	if (!rbp_verbs_present())
	{
		snprintf(reason, sizeof(reason), "there is no RDMA device%s%s",
				 device[0] != '\0' ? " " : "", device);
		return false;
	}
	donor_verbs_events = rdma_create_event_channel();
	if (donor_verbs_events == NULL || !donor_verbs_set_nonblocking(donor_verbs_events->fd))
		snprintf(reason, sizeof(reason), "could not use rdma_cm: %s", strerror(errno));
	else if (donor_verbs_listen(host, port, reason, sizeof(reason)) &&
			 donor_verbs_try_registration(donor_verbs_listening_device(), reason, sizeof(reason)))
	{
		wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (wake_fd < 0)
			rbp_die("could not make an eventfd: %s", strerror(errno));
		if (pthread_create(&thread, NULL, thread_main, NULL) != 0)
			rbp_die("could not start a thread");
		pthread_detach(thread);
		return true;
	}
	donor_verbs_stop_listening();
	if (donor_verbs_events != NULL)
		rdma_destroy_event_channel(donor_verbs_events);
	donor_verbs_events = NULL;
	return false;
}
