/*-------------------------------------------------------------------------
 *
 * mock_rdmacm.c
 *	  The simulated connection manager: see mock_verbs.h.
 *
 * An event is queued when its cause happens, and takes effect when it is
 * fetched, as in librdmacm.  A channel's descriptor is an epoll of two: one
 * for what is due, one for what will be.
 *
 *-------------------------------------------------------------------------
 */
#include "mock_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* What the messages of the connection manager leave for private data. */
#define REQ_DATA		56
#define REP_DATA		196
#define REJ_DATA		148

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

static Id  *ids;
static Channel *channels;
static Event *queue;			/* to be fetched, in order */
static Event *fetched;			/* to be acknowledged */
static uint32_t steps;
bool		mock_lose_rtu;

/*
 * ---- event channels ---------------------------------------------------------------
 */

/* Make the descriptor readable if an event is due, now or when it is. */
static void
update_channel(struct rdma_event_channel *channel)
{
	Channel    *ch = (Channel *) channel;
	struct itimerspec when = {0};
	int64_t		now = mock_now_ns();
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

	mock_enter();
	if (!mock_fails(MOCK_CREATE_CHANNEL))
	{
		struct epoll_event ev = {.events = EPOLLIN};

		ch = mock_get(1, sizeof(*ch));
		ch->channel.fd = epoll_create1(EPOLL_CLOEXEC);
		ch->now_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		ch->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
		if (ch->channel.fd < 0 || ch->now_fd < 0 || ch->timer_fd < 0 ||
			epoll_ctl(ch->channel.fd, EPOLL_CTL_ADD, ch->now_fd, &ev) != 0 ||
			epoll_ctl(ch->channel.fd, EPOLL_CTL_ADD, ch->timer_fd, &ev) != 0)
			abort();
		LINK(channels, ch);
	}
	mock_leave();
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
	mock_enter();
	for (Id *id = ids; id != NULL; id = id->next)
		if (id->id.channel == channel)
			mock_violation("an event channel with ids is destroyed");
	if (!UNLINK(channels, (Channel *) channel))
		mock_violation("an unknown event channel is destroyed");
	else
		free_channel((Channel *) channel);
	mock_leave();
}

/* At the end of the queue.  id->id.channel is where it goes. */
static Event *
add_event(Id *id, Id *counted, enum rdma_cm_event_type type, int status,
		  const void *data, size_t len, size_t padded, int64_t delay_ns)
{
	Event	   *e = mock_get(1, sizeof(*e));
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
	e->due = delay_ns > 0 ? mock_now_ns() + delay_ns : 0;
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

	mock_enter();
	(void) add_event((Id *) id, (Id *) id, type, status, data, len, padded, delay_ns);
	mock_leave();
}

void
mock_remove_device(int device)
{
	mock_enter();
	for (Id *id = ids; id != NULL; id = id->next)
		if (id->id.verbs == &mock_devices[device].context)
			(void) add_event(id, id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, NULL, 0, 0, 0);
	mock_leave();
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
								  htons((uint16_t) (30000 + mock_next_number % 10000)), &local);
					memcpy(src, &local, sizeof(local));
				}
				id->id.verbs = &mock_devices[n].context;
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
				if (id->peer != NULL && !mock_lose_rtu)
					(void) add_event(id->peer, id->peer, RDMA_CM_EVENT_ESTABLISHED,
									 0, NULL, 0, 0, 0);
			}
			id->state = ID_CONNECTED;
			break;
		case RDMA_CM_EVENT_REJECTED:
			if (qp != NULL)
				mock_to_error(qp, 0);
			id->state = ID_OVER;
			break;
		default:
			break;
	}
}

int
rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	mock_enter();
	if (mock_hooks.on_get_event != NULL)
		mock_hooks.on_get_event(channel);
	if (mock_fails(MOCK_GET_EVENT))
	{
		mock_leave();
		return -1;
	}
	for (;;)
	{
		int64_t		now = mock_now_ns();

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
			mock_leave();
			return 0;
		}
		if ((fcntl(channel->fd, F_GETFL) & O_NONBLOCK) != 0)
		{
			mock_leave();
			errno = EAGAIN;
			return -1;
		}
		mock_leave();
		{
			struct pollfd pfd = {.fd = channel->fd,.events = POLLIN};

			if (poll(&pfd, 1, 10000) == 0)
			{
				mock_violation("ten seconds of waiting for an event that does not come");
				errno = EINTR;
				return -1;
			}
		}
		mock_enter();
	}
}

int
rdma_ack_cm_event(struct rdma_cm_event *event)
{
	mock_enter();
	if (!UNLINK(fetched, (Event *) event))
		mock_violation("an unknown event is acknowledged");
	else
	{
		if (((Event *) event)->counted != NULL)
			((Event *) event)->counted->unacked--;
		free(event);
	}
	mock_leave();
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
static Id  *
new_id(struct rdma_event_channel *channel, void *context)
{
	Id		   *id = mock_get(1, sizeof(*id));

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

	mock_enter();
	if (mock_fails(MOCK_CREATE_ID))
		;
	else if (channel == NULL || ps != RDMA_PS_TCP)
	{
		mock_violation("an id is created in a way that nobody knows");
		errno = EINVAL;
	}
	else
	{
		*id = &new_id(channel, context)->id;
		rc = 0;
	}
	mock_leave();
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

	mock_enter();
	for (Id *other = ids; other != NULL; other = other->next)
		known |= other == id;
	if (!known)
		mock_violation("an unknown id is destroyed");
	else
	{
		if (id->unacked > 0)
			mock_violation("an id with unacknowledged events is destroyed: that hangs");
		if (ibid->qp != NULL)
			mock_violation("an id with a queue pair is destroyed");
		for (Event *e = fetched; e != NULL; e = e->next)
			if (e->counted == id)
				e->counted = NULL;
		destroy_id(id);
	}
	mock_leave();
	return 0;
}

int
rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
	int			rc = -1;

	mock_enter();
	if (!mock_fails(MOCK_MIGRATE_ID))
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
	mock_leave();
	return rc;
}

int
rdma_set_option(struct rdma_cm_id *ibid, int level, int name, void *value, size_t len)
{
	Id		   *id = (Id *) ibid;
	int			rc = -1;

	mock_enter();
	if (mock_fails(MOCK_SET_OPTION))
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
			mock_violation("an option is set in a way that nobody knows");
			errno = EINVAL;
			rc = -1;
		}
	}
	mock_leave();
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

	mock_enter();
	if (mock_fails(MOCK_BIND_ADDR))
		;
	else if (!is_wildcard(addr) && device_of(addr) < 0)
		errno = ENODEV;
	else
	{
		struct sockaddr_in *src = (struct sockaddr_in *) &ibid->route.addr.src_addr;

		memcpy(src, addr, address_len(addr));
		if (src->sin_port == 0)
			src->sin_port = htons((uint16_t) (20000 + mock_next_number++ % 10000));
		if (!is_wildcard(addr))
		{
			ibid->verbs = &mock_devices[device_of(addr)].context;
			ibid->port_num = 1;
		}
		id->state = ID_BOUND;
		rc = 0;
	}
	mock_leave();
	return rc;
}

int
rdma_listen(struct rdma_cm_id *ibid, int backlog)
{
	int			rc = -1;

	(void) backlog;
	mock_enter();
	if (mock_fails(MOCK_LISTEN))
		;
	else if (((Id *) ibid)->state != ID_BOUND)
	{
		mock_violation("an id listens that is not bound");
		errno = EINVAL;
	}
	else
	{
		((Id *) ibid)->state = ID_LISTENING;
		rc = 0;
	}
	mock_leave();
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

	mock_enter();
	if (mock_fails(MOCK_RESOLVE_ADDR))
		;
	else if ((id->state != ID_IDLE && id->state != ID_BOUND) || timeout_ms <= 0 ||
			 (src != NULL && src->sa_family != dst->sa_family))
	{
		mock_violation("an address is resolved in a way that nobody knows");
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
	mock_leave();
	return rc;
}

int
rdma_resolve_route(struct rdma_cm_id *ibid, int timeout_ms)
{
	Id		   *id = (Id *) ibid;
	int			rc = -1;

	mock_enter();
	if (mock_fails(MOCK_RESOLVE_ROUTE))
		;
	else if (id->state != ID_ADDR_RESOLVED || timeout_ms <= 0)
	{
		mock_violation("a route is resolved before the address");
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
	mock_leave();
	return rc;
}

static Id  *
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

	mock_enter();
	if (mock_fails(MOCK_CONNECT))
		;
	else if (id->state != ID_ROUTE_RESOLVED || ibid->qp == NULL ||
			 param->private_data_len > REQ_DATA || param->retry_count > 7 ||
			 param->rnr_retry_count > 7 ||
			 param->initiator_depth > mock_limits.max_qp_init_rd_atom ||
			 param->responder_resources > mock_limits.max_qp_rd_atom)
	{
		mock_violation("a connection is requested in a way that is refused");
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
			child->id.verbs = &mock_devices[n].context;
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
	mock_leave();
	return rc;
}

int
rdma_accept(struct rdma_cm_id *ibid, struct rdma_conn_param *param)
{
	Id		   *id = (Id *) ibid;
	int			rc = -1;

	mock_enter();
	if (mock_fails(MOCK_ACCEPT))
		;
	else if (id->state == ID_OVER)
		errno = EINVAL;			/* the other side is gone by now */
	else if (id->state != ID_REQUESTED || ibid->qp == NULL ||
			 param->private_data_len > REP_DATA || param->rnr_retry_count > 7 ||
			 param->responder_resources > mock_limits.max_qp_rd_atom ||
			 param->initiator_depth > mock_limits.max_qp_init_rd_atom)
	{
		mock_violation("a request is accepted in a way that is refused");
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
	mock_leave();
	return rc;
}

/* Only what the connection manager's state allows. */
int
rdma_init_qp_attr(struct rdma_cm_id *ibid, struct ibv_qp_attr *attr, int *mask)
{
	Id		   *id = (Id *) ibid;
	int			rc = 0;

	mock_enter();
	if (attr->qp_state != IBV_QPS_INIT)
	{
		mock_violation("attributes are asked for a state that nobody knows");
		rc = EINVAL;
	}
	else if (id->state != ID_REQUESTED && id->state != ID_CONNECTING &&
			 id->state != ID_ACCEPTED && id->state != ID_CONNECTED)
		rc = EINVAL;			/* the other side is gone by now */
	*mask = IBV_QP_STATE;
	mock_leave();
	if (rc == 0)
		return 0;
	errno = rc;
	return -1;
}

int
rdma_notify(struct rdma_cm_id *ibid, enum ibv_event_type type)
{
	Id		   *id = (Id *) ibid;

	mock_enter();
	if (type == IBV_EVENT_COMM_EST && id->state == ID_ACCEPTED)
	{
		id->state = ID_CONNECTED;
		(void) add_event(id, id, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, 0, 0, 0);
	}
	mock_leave();
	return 0;
}

int
rdma_reject(struct rdma_cm_id *ibid, const void *data, uint8_t len)
{
	Id		   *id = (Id *) ibid;
	int			rc = -1;

	mock_enter();
	if (mock_fails(MOCK_REJECT))
		;
	else if (id->state == ID_OVER)
		errno = EINVAL;
	else if (id->state != ID_REQUESTED || len > REJ_DATA)
	{
		mock_violation("a request is rejected in a way that nobody knows");
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
	mock_leave();
	return rc;
}

int
rdma_disconnect(struct rdma_cm_id *ibid)
{
	Id		   *id = (Id *) ibid;
	int			rc = -1;

	mock_enter();
	if (!mock_fails(MOCK_DISCONNECT))
	{
		if (ibid->qp != NULL)
			mock_to_error((Qp *) ibid->qp, mock_flush_polls);
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
	mock_leave();
	return rc;
}

/*
 * ---- what is left -------------------------------------------------------------------
 */
uint32_t
mock_cm_leaks(bool tell)
{
	uint32_t	n[3] = {0};
	uint32_t	sum = 0;

	COUNT(ids, n[0]);
	COUNT(channels, n[1]);
	COUNT(fetched, n[2]);
	mock_tell_leak(tell, n[0], "ids", &sum);
	mock_tell_leak(tell, n[1], "event channels", &sum);
	mock_tell_leak(tell, n[2], "unacknowledged events", &sum);
	return sum;
}

void
mock_cm_reset(void)
{
	FREE_ALL(queue, free);
	FREE_ALL(fetched, free);
	FREE_ALL(ids, free);
	FREE_ALL(channels, free_channel);
}
