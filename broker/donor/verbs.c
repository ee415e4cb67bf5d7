/*-------------------------------------------------------------------------
 *
 * verbs.c
 *	  RDMA: who may connect, and the keys by which clients reach regions.
 *
 * A client reads and writes by asking its device, which asks ours, which
 * needs neither this process nor a processor for it.  What is left to do here
 * is to let in those who have a lease, to hand out keys, to answer pings, and
 * above all to take keys back.  The handshake, the table of keys and the pings
 * are described under "Over verbs" in docs/protocol.md.
 *
 * A LeaseDevice is one lease on one device: a protection domain, the table,
 * and a registration (RegionKey) for each region that the lease has.  Queue
 * pairs of the lease's clients are made in that domain, so that a key is of no
 * use to anybody else's, and to take a region from all of them is to end one
 * registration: its key is dead when ibv_dereg_mr() returns, and no client has
 * a say in it.  A client whose key died gets a remote access error.
 *
 * Making a key takes milliseconds, since memory has to be pinned.  So the
 * table says PENDING first, and keys are made by the verbs thread, one between
 * any two rounds of events.
 *
 * Threads.  One, the verbs thread, which sleeps in poll(): on rdma_cm's events
 * (one channel for the listening id and all connections), on one completion
 * channel for each device (pings), and on an eventfd (grants).  It alone
 * touches the lists of devices and connections, and all objects of verbs and
 * rdma_cm, but for one thing: registrations of regions are ended by the
 * janitor, in revoke_keys().  The control thread comes by in
 * granted().
 *
 * Locks.  verbs_lock protects the list of LeaseDevices, and in each of them
 * keys, table, npending and pins.  The list is changed by the verbs thread
 * only, which may therefore read it without.  It is held for moments only,
 * never while a device works; so granted() can take it with
 * donor_lock held.  Nothing else is locked while it is held.
 *
 * Why no key outlives a lease.  Keys are made inside of the region (see
 * lease.h), on behalf of its owner, and put into `keys` before leaving it.
 * The janitor calls revoke_keys() when the owner is gone and nobody is
 * inside: all keys that there are have been put where it looks, and no other
 * can be made before the region has an owner again, which only the janitor can
 * bring about, afterwards.  A LeaseDevice that is made meanwhile looks for
 * regions of its own lease.  A key that is just being ended by the verbs
 * thread, because its LeaseDevice or device goes away, is waited for
 * (KEY_DYING).  If a device refuses to end a registration, the region's memory
 * is given up in place of the key: the client can go on with pages that nobody
 * else ever uses.
 *
 * Why nothing is freed too early.  The janitor pins the LeaseDevice whose key
 * it ends; it stays in the list until then.  A device's context stays open as
 * long as an id is on it: the anchor, an id that does nothing else, and that
 * gets the event when the device is unplugged.  Then everything on the device
 * is freed, the ids last.
 *
 * Failures of devices concern those who connect, or one region: they are
 * logged, at most once a minute, and the connection is refused, or the key is
 * tried again a second later.  Nothing here ends the donor after its start.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/common/log.h"
#include "broker/common/secret.h"
#include "broker/donor/lease.h"
#include "broker/donor/memory.h"
#include "broker/donor/verbs.h"
#include "common/clock.h"
#include "common/status.h"
#include "transport/peer.h"
#include "transport/transport.h"
#include "wire/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#define MAX_CONNECTIONS	16384
#define MAX_DEVICES		32
#define EVENTS			64		/* of a kind, in one round */
#define BACKLOG			1024
#define HANDSHAKE_NS	INT64_C(5000000000)
#define ENDED_IDLE_NS	INT64_C(10000000000)
#define BROKEN_NS		INT64_C(1000000000)
#define PROBE_NS		INT64_C(30000000000)
#define COMPLAIN_NS		INT64_C(60000000000)
#define TICK_NS			INT64_C(1000000000)
#define RNR_RETRIES		6
#define CLOSE_TRIES		10		/* one a second */
#define TABLE_ALIGN		4096

/* What a work request was, by its wr_id; below these, receives by their slot */
#define WR_ANSWER		RBP_VERBS_PINGS
#define WR_PROBE		(2 * RBP_VERBS_PINGS)

typedef enum KeyState
{
	KEY_NONE,					/* not the lease's */
	KEY_PENDING,				/* to be made */
	KEY_READY,
	KEY_DYING					/* somebody is ending the registration */
} KeyState;

typedef struct RegionKey
{
	struct ibv_mr *mr;			/* of READY and DYING */
	KeyState	state;
} RegionKey;

typedef struct VerbsDevice
{
	struct VerbsDevice *next;
	struct ibv_context *verbs;	/* rdma_cm's; open because of the anchor */
	struct rdma_cm_id *anchor;	/* NULL: another device has the address too */
	struct ibv_comp_channel *channel;
	int			max_reads;		/* in flight on a queue pair */
} VerbsDevice;

typedef struct LeaseDevice
{
	struct LeaseDevice *next;
	DonorLease *lease;			/* referenced */
	VerbsDevice *device;
	struct ibv_pd *pd;
	struct ibv_mr *table_mr;

	/* under verbs_lock */
	_Atomic uint64_t *table;	/* an entry is two words */
	RegionKey  *keys;
	uint32_t	npending;
	int			pins;			/* who uses it without the lock */

	/* the verbs thread's */
	int			nconns;
	uint32_t	cursor;			/* where to look for the next pending key */
	uint64_t	served;			/* turn in which it last got a key */
	bool		stuck;			/* until the next tick */
	int64_t		ended_at;		/* when the lease was seen to have ended, or 0 */
} LeaseDevice;

typedef struct VerbsConn
{
	struct VerbsConn *next,
			   *prev;
	struct rdma_cm_id *id;
	LeaseDevice *ld;
	struct ibv_cq *cq;
	struct ibv_mr *mr;			/* of requests and answers */
	int64_t		since;			/* when it was accepted */
	int64_t		probed_at;
	int64_t		broken_at;		/* when its queue pair failed, or 0 */
	bool		established;
	bool		probing;
	uint32_t	busy;			/* answers that are on their way, a bit each */
	uint32_t	held[RBP_VERBS_PINGS];	/* receives that wait for one of these */
	uint32_t	nheld;
	uint8_t		requests[RBP_VERBS_PINGS][RBP_REQUEST_SIZE];
	uint8_t		answers[RBP_VERBS_PINGS][RBP_ANSWER_SIZE];
} VerbsConn;

static pthread_mutex_t verbs_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t key_died = PTHREAD_COND_INITIALIZER;	/* or was unpinned */

static bool serving;			/* set before there are threads */
static int	wake_fd = -1;
static atomic_bool woken;
static atomic_uint nconnections;
static _Atomic uint64_t denied;
static _Atomic int64_t complained_at;

static LeaseDevice *lease_devices;	/* see above */

/* the verbs thread's */
static struct rdma_event_channel *events;
static struct rdma_cm_id *listener; /* NULL: its device is gone */
static struct sockaddr_storage listen_addr;
static VerbsDevice *devices;
static int	ndevices;
static VerbsConn *conns;
static uint64_t turn;
static int	close_tries;		/* to have a removed device's context closed */

/*
 * Tell that something failed with that errno; others that fail soon after it
 * are for debugging only.
 */
__attribute__((format(printf, 2, 3)))
static void
complain(int error, const char *fmt,...)
{
	int64_t		now = rbp_boottime_ns();
	int64_t		last = atomic_load(&complained_at);
	bool		tell = last == 0 || now - last >= COMPLAIN_NS;
	char		what[128];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	if (tell)
		atomic_store(&complained_at, now);
	rbp_log(tell ? RBP_LOG_WARNING : RBP_LOG_DEBUG, "RDMA: could not %s: %s%s",
			what, strerror(error),
			error == ENOMEM ? "; RLIMIT_MEMLOCK (LimitMEMLOCK= in a unit) may be too low" : "");
}

static bool
set_nonblocking(int fd)
{
	int			flags = fcntl(fd, F_GETFL);

	return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

static void
wake_thread(void)
{
	uint64_t	one = 1;

	/* it can only fail if the thread is awake anyway */
	if (!atomic_exchange(&woken, true))
		(void) !write(wake_fd, &one, sizeof(one));
}

/*
 * ---- keys -------------------------------------------------------------------
 */

/*
 * Clients may be reading the entry: each half changes at once, and they can
 * tell halves that do not belong together.  verbs_lock held.
 */
static void
set_entry(LeaseDevice *ld, uint32_t region, RbpVerbsEntryState state,
		  uint32_t key)
{
	uint8_t		buf[RBP_VERBS_ENTRY_SIZE];
	uint64_t	words[2];

	_Static_assert(sizeof(words) == RBP_VERBS_ENTRY_SIZE, "an entry is two words");
	rbp_wire_put_verbs_entry(buf, state, region,
							 (uintptr_t) donor_regions[region].base, key);
	memcpy(words, buf, sizeof(words));
	atomic_store(&ld->table[2 * region], words[0]);
	atomic_store(&ld->table[2 * region + 1], words[1]);
}

/* The region is the lease's, and stays so while we are here.  verbs_lock held. */
static void
want_key(LeaseDevice *ld, uint32_t region)
{
	if (ld->keys[region].state != KEY_NONE)
		return;
	ld->keys[region].state = KEY_PENDING;
	ld->npending++;
	set_entry(ld, region, RBP_VERBS_ENTRY_WAIT, 0);
}

/*
 * End a key, whatever its state.  Called with verbs_lock held, which it gives
 * up while the device works, and with the LeaseDevice pinned unless by the
 * verbs thread.
 */
static void
kill_key(LeaseDevice *ld, uint32_t region)
{
	RegionKey  *key = &ld->keys[region];
	int			rc;

	while (key->state == KEY_DYING)
		pthread_cond_wait(&key_died, &verbs_lock);
	if (key->state == KEY_NONE)
		return;

	set_entry(ld, region, RBP_VERBS_ENTRY_NONE, 0);
	if (key->state == KEY_PENDING)
	{
		ld->npending--;
		key->state = KEY_NONE;
		return;
	}
	key->state = KEY_DYING;
	pthread_mutex_unlock(&verbs_lock);
	rc = ibv_dereg_mr(key->mr);
	if (rc != 0)
	{
		complain(rc, "take back the key to region %u, whose memory is given up now", region);
		atomic_store(&donor_regions[region].exported, true);
	}
	pthread_mutex_lock(&verbs_lock);
	key->mr = NULL;
	key->state = KEY_NONE;
	pthread_cond_broadcast(&key_died);
}

static void
granted(uint32_t region, DonorLease *lease)
{
	bool		any = false;

	if (!serving)
		return;
	pthread_mutex_lock(&verbs_lock);
	for (LeaseDevice *ld = lease_devices; ld != NULL; ld = ld->next)
		if (ld->lease == lease)
		{
			want_key(ld, region);
			any = true;
		}
	pthread_mutex_unlock(&verbs_lock);
	if (any)
		wake_thread();
}

static void
revoke_keys(uint32_t region)
{
	if (!serving)
		return;
	pthread_mutex_lock(&verbs_lock);
	for (LeaseDevice *ld = lease_devices; ld != NULL; ld = ld->next)
	{
		ld->pins++;
		kill_key(ld, region);
		ld->pins--;
		pthread_cond_broadcast(&key_died);
	}
	pthread_mutex_unlock(&verbs_lock);
}

/* The first pending key at or behind `from`, round the end; nregions: none. */
static uint32_t
next_pending(LeaseDevice *ld, uint32_t from)
{
	uint32_t	found = donor_nregions;

	pthread_mutex_lock(&verbs_lock);
	for (uint32_t i = 0; ld->npending > 0 && i < donor_nregions; i++)
	{
		uint32_t	region = (from + i) % donor_nregions;

		if (ld->keys[region].state == KEY_PENDING)
		{
			found = region;
			break;
		}
	}
	pthread_mutex_unlock(&verbs_lock);
	return found;
}

/*
 * Make a key.  False if that is not possible now: the region or the lease is
 * being taken away, or the device cannot.
 */
static bool
make_key(LeaseDevice *ld, uint32_t region)
{
	DonorRegion *r = &donor_regions[region];
	struct ibv_mr *mr;

	if (!donor_region_enter(r, ld->lease, rbp_boottime_ns()))
		return false;
	mr = ibv_reg_mr(ld->pd, r->base, donor_region_size,
					IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
					IBV_ACCESS_REMOTE_WRITE);
	if (mr != NULL)
	{
		/* still pending: it is revoked when nobody is in the region */
		pthread_mutex_lock(&verbs_lock);
		ld->keys[region].mr = mr;
		ld->keys[region].state = KEY_READY;
		ld->npending--;
		set_entry(ld, region, RBP_VERBS_ENTRY_READY, mr->rkey);
		pthread_mutex_unlock(&verbs_lock);
	}
	else
		complain(errno, "make a key to region %u", region);
	donor_region_leave(r);
	return mr != NULL;
}

/*
 * Make one key, for the LeaseDevice that got none for longest.  Returns
 * whether there may be more to do at once.
 */
static bool
make_some_key(void)
{
	LeaseDevice *next = NULL;
	uint32_t	region;
	uint32_t	tried = 0;

	pthread_mutex_lock(&verbs_lock);
	for (LeaseDevice *ld = lease_devices; ld != NULL; ld = ld->next)
		if (ld->npending > 0 && !ld->stuck &&
			(next == NULL || ld->served < next->served))
			next = ld;
	pthread_mutex_unlock(&verbs_lock);
	if (next == NULL)
		return false;

	next->served = ++turn;
	while (tried < donor_nregions &&
		   (region = next_pending(next, next->cursor)) < donor_nregions)
	{
		tried += (region - next->cursor + donor_nregions) % donor_nregions + 1;
		next->cursor = (region + 1) % donor_nregions;
		if (make_key(next, region))
			return true;
	}
	next->stuck = true;
	return true;
}

/*
 * ---- leases on devices --------------------------------------------------------
 */

/*
 * End all that a lease has on a device; it has no queue pairs there any more,
 * or none that works.
 */
static void
free_lease_device(LeaseDevice *ld)
{
	LeaseDevice **prev = &lease_devices;

	pthread_mutex_lock(&verbs_lock);
	for (uint32_t i = 0; i < donor_nregions; i++)
		kill_key(ld, i);
	while (ld->pins > 0)
		pthread_cond_wait(&key_died, &verbs_lock);
	while (*prev != ld)
		prev = &(*prev)->next;
	*prev = ld->next;
	pthread_mutex_unlock(&verbs_lock);

	(void) ibv_dereg_mr(ld->table_mr);
	(void) ibv_dealloc_pd(ld->pd);
	donor_lease_unref(ld->lease);
	free(ld->table);
	free(ld->keys);
	free(ld);
}

/* What the lease has on the device; takes over the reference.  NULL: failed. */
static LeaseDevice *
get_lease_device(DonorLease *lease, VerbsDevice *device)
{
	size_t		size = (size_t) donor_nregions * RBP_VERBS_ENTRY_SIZE;
	LeaseDevice *ld;
	int			save_errno;

	for (ld = lease_devices; ld != NULL; ld = ld->next)
		if (ld->lease == lease && ld->device == device)
		{
			donor_lease_unref(lease);
			return ld;
		}

	size = (size + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
	ld = calloc(1, sizeof(*ld));
	if (ld == NULL)
		goto no_memory;
	ld->lease = lease;
	ld->device = device;
	ld->keys = calloc(donor_nregions, sizeof(*ld->keys));
	ld->table = aligned_alloc(TABLE_ALIGN, size);
	if (ld->keys == NULL || ld->table == NULL)
		goto no_table;
	memset((void *) ld->table, 0, size);	/* no region is the lease's */
	ld->pd = ibv_alloc_pd(device->verbs);
	if (ld->pd == NULL)
		goto no_table;
	ld->table_mr = ibv_reg_mr(ld->pd, (void *) ld->table, size,
							  IBV_ACCESS_REMOTE_READ);
	if (ld->table_mr == NULL)
		goto no_registration;

	/* from here on we hear of grants; then look for what was granted before */
	pthread_mutex_lock(&verbs_lock);
	ld->next = lease_devices;
	lease_devices = ld;
	pthread_mutex_unlock(&verbs_lock);
	for (uint32_t i = 0; i < donor_nregions; i++)
	{
		DonorRegion *region = &donor_regions[i];

		if (atomic_load(&region->owner) != lease ||
			!donor_region_enter(region, lease, rbp_boottime_ns()))
			continue;
		pthread_mutex_lock(&verbs_lock);
		want_key(ld, i);
		pthread_mutex_unlock(&verbs_lock);
		donor_region_leave(region);
	}
	return ld;

no_registration:
	save_errno = errno;
	(void) ibv_dealloc_pd(ld->pd);
	errno = save_errno;
no_table:
	save_errno = errno;
	free(ld->table);
	free(ld->keys);
	free(ld);
	errno = save_errno;
no_memory:
	complain(errno, "set up a lease on the device");
	donor_lease_unref(lease);
	return NULL;
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
	struct sockaddr_storage addr = {0};
	struct rdma_cm_id *anchor;

	if (rdma_get_local_addr(id)->sa_family == AF_INET6)
	{
		memcpy(&addr, rdma_get_local_addr(id), sizeof(struct sockaddr_in6));
		((struct sockaddr_in6 *) &addr)->sin6_port = 0;
	}
	else
	{
		memcpy(&addr, rdma_get_local_addr(id), sizeof(struct sockaddr_in));
		((struct sockaddr_in *) &addr)->sin_port = 0;
	}
	if (rdma_create_id(events, &anchor, NULL, RDMA_PS_TCP) != 0)
		return NULL;
	if (rdma_bind_addr(anchor, (struct sockaddr *) &addr) == 0 &&
		anchor->verbs == id->verbs)
		return anchor;
	rdma_destroy_id(anchor);
	return NULL;
}

/* The device that an id is on; NULL if it cannot be used. */
static VerbsDevice *
get_device(struct rdma_cm_id *id)
{
	struct ibv_device_attr attr;
	VerbsDevice *device;

	for (device = devices; device != NULL; device = device->next)
		if (device->verbs == id->verbs)
			return device;

	device = ndevices < MAX_DEVICES ? calloc(1, sizeof(*device)) : NULL;
	if (device == NULL)
	{
		complain(ENOMEM, "use another device");
		return NULL;
	}
	device->verbs = id->verbs;
	device->channel = ibv_create_comp_channel(id->verbs);
	if (device->channel == NULL || !set_nonblocking(device->channel->fd) ||
		(errno = ibv_query_device(id->verbs, &attr)) != 0)
	{
		complain(errno, "use device %s", ibv_get_device_name(id->verbs->device));
		if (device->channel != NULL)
			(void) ibv_destroy_comp_channel(device->channel);
		free(device);
		return NULL;
	}
	device->max_reads = attr.max_qp_rd_atom < UINT8_MAX ? attr.max_qp_rd_atom : UINT8_MAX;
	device->anchor = make_anchor(id);
	device->next = devices;
	devices = device;
	ndevices++;
	return device;
}

/*
 * ---- connections ----------------------------------------------------------------
 */

/* All of a connection but its id. */
static void
release_conn(VerbsConn *conn)
{
	if (conn->prev != NULL)
		conn->prev->next = conn->next;
	else
		conns = conn->next;
	if (conn->next != NULL)
		conn->next->prev = conn->prev;

	/* when it returns, the device touches neither buffers nor regions */
	rdma_destroy_qp(conn->id);
	(void) ibv_destroy_cq(conn->cq);
	(void) ibv_dereg_mr(conn->mr);
	conn->ld->nconns--;
	atomic_fetch_sub(&nconnections, 1);
}

static void
close_conn(VerbsConn *conn)
{
	/* so that the client knows; it may be gone, too */
	(void) rdma_disconnect(conn->id);
	release_conn(conn);
	(void) rdma_destroy_id(conn->id);
	free(conn);
}

static bool
post_receive(VerbsConn *conn, uint32_t slot)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t) conn->requests[slot],
		.length = RBP_REQUEST_SIZE,
		.lkey = conn->mr->lkey
	};
	struct ibv_recv_wr wr = {.wr_id = slot,.sg_list = &sge,.num_sge = 1};
	struct ibv_recv_wr *bad;

	errno = ibv_post_recv(conn->id->qp, &wr, &bad);
	return errno == 0;
}

/* Answer the ping in this slot.  False: the client does not keep to the rules. */
static bool
answer_ping(VerbsConn *conn, uint32_t slot)
{
	RbpWireRequest req;
	RbpWireAnswer ans = {.op = RBP_OP_PING,.status = RBP_WIRE_OK};
	struct ibv_sge sge = {.length = RBP_ANSWER_SIZE,.lkey = conn->mr->lkey};
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED
	};
	struct ibv_send_wr *bad;
	uint32_t	answer = 0;

	if (!rbp_wire_get_request(conn->requests[slot], RBP_REQUEST_SIZE, &req) ||
		req.op != RBP_OP_PING)
		return false;
	while (answer < RBP_VERBS_PINGS && (conn->busy & 1u << answer) != 0)
		answer++;
	if (answer == RBP_VERBS_PINGS)
	{
		/* the client has earlier answers, our device does not know that yet */
		conn->held[conn->nheld++] = slot;
		return true;
	}

	/* first a place for the next ping, which the answer allows to come */
	if (!post_receive(conn, slot))
		return false;
	ans.id = req.id;
	rbp_wire_put_answer(conn->answers[answer], &ans);
	sge.addr = (uintptr_t) conn->answers[answer];
	wr.wr_id = WR_ANSWER + answer;
	conn->busy |= 1u << answer;
	return ibv_post_send(conn->id->qp, &wr, &bad) == 0;
}

static bool
handle_completion(VerbsConn *conn, const struct ibv_wc *wc)
{
	/* the peer is gone, or was refused access, or our device gave up */
	if (wc->status != IBV_WC_SUCCESS)
		return false;
	if (wc->wr_id < WR_ANSWER)
		return wc->byte_len == RBP_REQUEST_SIZE &&
			answer_ping(conn, (uint32_t) wc->wr_id);
	if (wc->wr_id == WR_PROBE)
	{
		conn->probing = false;
		return true;
	}
	conn->busy &= ~(1u << (wc->wr_id - WR_ANSWER));
	return conn->nheld == 0 || answer_ping(conn, conn->held[--conn->nheld]);
}

/* Whatever is in the queue.  False: the connection is to be closed. */
static bool
drain(VerbsConn *conn)
{
	struct ibv_wc wc[2 * RBP_VERBS_PINGS];
	int			n;

	while ((n = ibv_poll_cq(conn->cq, 2 * RBP_VERBS_PINGS, wc)) > 0)
		for (int i = 0; i < n; i++)
			if (!handle_completion(conn, &wc[i]))
				return false;
	return n == 0;
}

static void
handle_completions(VerbsDevice *device)
{
	struct ibv_cq *cq;
	void	   *context;

	for (int i = 0; i < EVENTS && ibv_get_cq_event(device->channel, &cq, &context) == 0; i++)
	{
		VerbsConn  *conn = context;

		/*
		 * First ask for the next event, then look: nothing is missed.  A
		 * connection that failed is closed later, or when the client hangs up:
		 * it is to learn from its device why, and not from rdma_cm that we are
		 * gone.
		 */
		ibv_ack_cq_events(cq, 1);
		if (conn->broken_at == 0 &&
			(ibv_req_notify_cq(cq, 0) != 0 || !drain(conn)))
			conn->broken_at = rbp_boottime_ns();
	}
}

/*
 * Does the client's device still answer?  Without traffic of our own we would
 * never learn that it does not.  A write of no bytes needs no key.
 */
static bool
probe(VerbsConn *conn, int64_t now)
{
	struct ibv_send_wr wr = {
		.wr_id = WR_PROBE,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED
	};
	struct ibv_send_wr *bad;

	conn->probed_at = now;
	conn->probing = true;
	return ibv_post_send(conn->id->qp, &wr, &bad) == 0;
}

/*
 * ---- handshake --------------------------------------------------------------------
 */
static void
refuse(struct rdma_cm_id *id, uint16_t status)
{
	RbpWireVerbsWelcome welcome = {.status = status};
	uint8_t		buf[RBP_VERBS_WELCOME_SIZE];

	rbp_wire_put_verbs_welcome(buf, &welcome);
	(void) rdma_reject(id, buf, sizeof(buf));
	(void) rdma_destroy_id(id);
}

static bool
has_digest(DonorLease *lease, const void *digest)
{
	if (!lease->has_digest)
		lease->has_digest = rbp_verbs_lease_digest(lease->id, lease->digest);
	return lease->has_digest &&
		memcmp(lease->digest, digest, RBP_VERBS_DIGEST_LEN) == 0;
}

/*
 * The lease that the client has proved to know the secret of, with a reference
 * for the caller; NULL if it has not.  An unknown lease takes as long, and
 * fails as, a wrong secret.
 */
static DonorLease *
authenticate(const RbpWireVerbsHello *hello, const struct sockaddr *client,
			 uint32_t qpn)
{
	DonorLease *lease = donor_lease_match(has_digest, hello->digest);
	uint8_t		nobody[RBP_SECRET_LEN];
	uint8_t		ours[RBP_VERBS_MAC_LEN];

	rbp_random_bytes(nobody, sizeof(nobody));
	if (rbp_verbs_mac(lease != NULL ? lease->secret : nobody, hello->nonce,
					  hello->digest, client, qpn, ours) &&
		CRYPTO_memcmp(ours, hello->mac, RBP_VERBS_MAC_LEN) == 0 &&
		lease != NULL && rbp_boottime_ns() < atomic_load(&lease->deadline_ns))
		return lease;
	donor_lease_unref(lease);
	return NULL;
}

/* A queue pair with what it needs, for the connection; false, and complained, if it fails. */
static bool
make_queue_pair(VerbsConn *conn, VerbsDevice *device)
{
	struct ibv_qp_init_attr qp = {
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = RBP_VERBS_PINGS + 1,
			.max_recv_wr = RBP_VERBS_PINGS,
			.max_send_sge = 1,
			.max_recv_sge = 1
		}
	};

	conn->mr = ibv_reg_mr(conn->ld->pd, conn, sizeof(*conn), IBV_ACCESS_LOCAL_WRITE);
	if (conn->mr == NULL)
	{
		complain(errno, "set up a connection");
		return false;
	}
	conn->cq = ibv_create_cq(device->verbs, 2 * RBP_VERBS_PINGS + 1, conn,
							 device->channel, 0);
	if (conn->cq != NULL && (errno = ibv_req_notify_cq(conn->cq, 0)) == 0)
	{
		qp.send_cq = qp.recv_cq = conn->cq;
		if (rbp_verbs_set_options(conn->id) != RBP_OK)
			complain(errno, "set the ack timeout");
		if (rdma_create_qp(conn->id, conn->ld->pd, &qp) == 0)
			return true;
	}
	complain(errno, "make a queue pair");
	if (conn->cq != NULL)
		(void) ibv_destroy_cq(conn->cq);
	(void) ibv_dereg_mr(conn->mr);
	return false;
}

/*
 * Make the connection's objects and accept it.  Takes over the reference.
 * False if something is missing; the id is left to the caller then.
 */
static bool
accept_client(struct rdma_cm_id *id, DonorLease *lease, uint8_t reads)
{
	VerbsDevice *device = get_device(id);
	struct rdma_conn_param param = {.rnr_retry_count = RNR_RETRIES};
	RbpWireVerbsWelcome welcome = {
		.status = RBP_WIRE_OK,
		.regions = donor_nregions,
		.region_size = donor_region_size
	};
	uint8_t		buf[RBP_VERBS_WELCOME_SIZE];
	LeaseDevice *ld;
	VerbsConn  *conn;
	bool		receives = true;

	if (device == NULL)
	{
		donor_lease_unref(lease);
		return false;
	}
	ld = get_lease_device(lease, device);
	if (ld == NULL)
		return false;			/* complained already */
	conn = calloc(1, sizeof(*conn));
	if (conn == NULL)
	{
		complain(errno, "set up a connection");
		return false;
	}
	conn->id = id;
	conn->ld = ld;
	conn->since = conn->probed_at = rbp_boottime_ns();
	if (!make_queue_pair(conn, device))
	{
		free(conn);
		return false;
	}

	if (conns != NULL)
		conns->prev = conn;
	conn->next = conns;
	conns = conn;
	ld->nconns++;
	atomic_fetch_add(&nconnections, 1);
	for (uint32_t i = 0; i < RBP_VERBS_PINGS && receives; i++)
		receives = post_receive(conn, i);

	welcome.table_key = ld->table_mr->rkey;
	welcome.table_address = (uintptr_t) ld->table;
	rbp_wire_put_verbs_welcome(buf, &welcome);
	param.private_data = buf;
	param.private_data_len = sizeof(buf);
	param.responder_resources = reads < device->max_reads ? reads : (uint8_t) device->max_reads;
	id->context = conn;
	if (receives && rdma_accept(id, &param) == 0)
		return true;

	id->context = NULL;
	complain(errno, "accept a connection");
	release_conn(conn);
	free(conn);
	return false;
}

static void
log_refusal(struct rdma_cm_id *id, RbpLogLevel level, const char *why)
{
	char		address[NI_MAXHOST];

	rbp_log_repeated(level, "RDMA: refused a client from %s: %s",
					 rbp_format_address(rdma_get_peer_addr(id), address, sizeof(address)), why);
}

static void
handle_request(struct rdma_cm_id *id, const uint8_t *hello_bytes, size_t len,
			   uint32_t qpn, uint8_t reads)
{
	RbpWireVerbsHello hello;
	DonorLease *lease;

	if (!rbp_verbs_is_wanted(id))
	{
		/* nothing that we serve: no answer of ours */
		(void) rdma_reject(id, NULL, 0);
		(void) rdma_destroy_id(id);
		return;
	}
	if (!rbp_wire_get_verbs_hello(hello_bytes, len, &hello))
	{
		log_refusal(id, RBP_LOG_WARNING, "it does not speak this protocol");
		atomic_fetch_add(&denied, 1);
		refuse(id, RBP_WIRE_DENIED);
		return;
	}
	if (hello.version != RBP_WIRE_VERSION)
	{
		log_refusal(id, RBP_LOG_WARNING, "it speaks another version of the protocol");
		refuse(id, RBP_WIRE_VERSION_MISMATCH);
		return;
	}
	if (atomic_load(&nconnections) >= MAX_CONNECTIONS)
	{
		log_refusal(id, RBP_LOG_WARNING, "there are too many connections");
		refuse(id, RBP_WIRE_BUSY);
		return;
	}
	lease = authenticate(&hello, rdma_get_peer_addr(id), qpn);
	if (lease == NULL)
	{
		/* most often one that has just ended */
		log_refusal(id, RBP_LOG_INFO, "there is no such lease, or no more, or its proof is wrong");
		atomic_fetch_add(&denied, 1);
		refuse(id, RBP_WIRE_DENIED);
	}
	else if (!accept_client(id, lease, reads))
		refuse(id, RBP_WIRE_BUSY);
}

/*
 * ---- listening ----------------------------------------------------------------------
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

	if (rdma_create_id(events, &id, NULL, RDMA_PS_TCP) != 0)
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

/*
 * The device was unplugged, or reset: its memory has no keys there any more.
 */
static void
device_removed(struct ibv_context *verbs)
{
	VerbsDevice **prev = &devices;
	VerbsDevice *device;
	VerbsConn  *gone = NULL;
	VerbsConn  *next;
	LeaseDevice *next_ld;

	while (*prev != NULL && (*prev)->verbs != verbs)
		prev = &(*prev)->next;
	device = *prev;
	if (device == NULL)
		return;
	rbp_log(RBP_LOG_WARNING, "RDMA: device %s is gone",
			ibv_get_device_name(verbs->device));

	for (VerbsConn *conn = conns; conn != NULL; conn = next)
	{
		next = conn->next;
		if (conn->ld->device != device)
			continue;
		release_conn(conn);
		conn->next = gone;
		gone = conn;
	}
	for (LeaseDevice *ld = lease_devices; ld != NULL; ld = next_ld)
	{
		next_ld = ld->next;
		if (ld->device == device)
			free_lease_device(ld);
	}
	*prev = device->next;
	ndevices--;
	(void) ibv_destroy_comp_channel(device->channel);

	/* the context may be closed with the last of these */
	for (; gone != NULL; gone = next)
	{
		next = gone->next;
		(void) rdma_destroy_id(gone->id);
		free(gone);
	}
	if (device->anchor != NULL)
		(void) rdma_destroy_id(device->anchor);
	free(device);
	close_tries = CLOSE_TRIES;
}

/*
 * ---- the thread -----------------------------------------------------------------------
 */

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

	if (rdma_get_cm_event(events, &event) != 0)
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
			handle_request(id, hello, len, qpn, reads);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			if (conn != NULL)
				conn->established = true;
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
		case RDMA_CM_EVENT_REJECTED:
		case RDMA_CM_EVENT_UNREACHABLE:
		case RDMA_CM_EVENT_CONNECT_ERROR:
			if (conn != NULL)
				close_conn(conn);
			break;
		case RDMA_CM_EVENT_DEVICE_REMOVAL:
			device_removed(id->verbs);
			if (id == listener)
			{
				rbp_log(RBP_LOG_WARNING, "RDMA: not listening until the device is back");
				(void) rdma_destroy_id(listener);
				listener = NULL;
			}
			break;
		default:
			break;
	}
	return true;
}

/* What is due each second. */
static void
tick(int64_t now)
{
	VerbsConn  *next;
	LeaseDevice *next_ld;

	for (VerbsConn *conn = conns; conn != NULL; conn = next)
	{
		LeaseDevice *ld = conn->ld;

		next = conn->next;
		if (ld->ended_at == 0 && atomic_load(&ld->lease->ended))
			ld->ended_at = now;
		if ((ld->ended_at != 0 && now - ld->ended_at > ENDED_IDLE_NS) ||
			(conn->broken_at != 0 && now - conn->broken_at > BROKEN_NS) ||
			(!conn->established && now - conn->since > HANDSHAKE_NS) ||
			(conn->established && !conn->probing && conn->broken_at == 0 &&
			 now - conn->probed_at > PROBE_NS && !probe(conn, now)))
			close_conn(conn);
	}
	for (LeaseDevice *ld = lease_devices; ld != NULL; ld = next_ld)
	{
		next_ld = ld->next;
		ld->stuck = false;
		if (ld->nconns == 0 && atomic_load(&ld->lease->ended))
			free_lease_device(ld);
	}

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

static void *
thread_main(void *arg)
{
	int64_t		ticked_at = rbp_boottime_ns();
	bool		more = false;

	(void) arg;
	for (;;)
	{
		struct pollfd fds[2 + MAX_DEVICES];
		VerbsDevice *polled[MAX_DEVICES];
		int			n = 0;
		int64_t		now;

		fds[0] = (struct pollfd) {.fd = events->fd,.events = POLLIN};
		fds[1] = (struct pollfd) {.fd = wake_fd,.events = POLLIN};
		for (VerbsDevice *device = devices; device != NULL; device = device->next)
		{
			polled[n] = device;
			fds[2 + n++] = (struct pollfd) {.fd = device->channel->fd,.events = POLLIN};
		}
		if (poll(fds, (nfds_t) (2 + n), more ? 0 :
				 lease_devices != NULL || listener == NULL || close_tries > 0 ? TICK_NS / 1000000 : -1) < 0)
			continue;

		if (fds[1].revents != 0)
		{
			uint64_t	count;

			(void) !read(wake_fd, &count, sizeof(count));
			atomic_store(&woken, false);
		}
		for (int i = 0; i < n; i++)
		{
			if (fds[2 + i].revents & POLLIN)
				handle_completions(polled[i]);
			else if (fds[2 + i].revents != 0)
				device_removed(polled[i]->verbs);
		}
		for (int i = 0; i < EVENTS && handle_event(); i++)
			;

		more = make_some_key();
		now = rbp_boottime_ns();
		if (now - ticked_at >= TICK_NS)
		{
			tick(now);
			ticked_at = now;
		}
	}
	return NULL;
}

/*
 * ---- start ----------------------------------------------------------------------------
 */

/* Listen on a host's address; "": any.  Else the reason. */
static bool
start_listening(const char *host, uint16_t *port, char *reason, size_t len)
{
	struct addrinfo hints = {
		.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
		.ai_socktype = SOCK_STREAM
	};
	struct addrinfo *list;
	char		service[8];
	int			rc;

	snprintf(service, sizeof(service), "%u", *port);
	rc = getaddrinfo(host[0] != '\0' ? host : NULL, service, &hints, &list);
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
			snprintf(reason, len, "could not listen on \"%s\" port %s: %s", host,
					 service, strerror(rc));
		return false;
	}

	/* the same again if the device comes back */
	memcpy(&listen_addr, rdma_get_local_addr(listener),
		   rdma_get_local_addr(listener)->sa_family == AF_INET6
		   ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
	*port = ntohs(rdma_get_src_port(listener));
	return true;
}

/*
 * Register all memory at once, and let go of it again: what is too low a limit
 * should show now, not when it is leased.
 */
static bool
try_registration(char *reason, size_t len)
{
	struct ibv_context *verbs = listener->verbs;
	struct ibv_context **list = NULL;
	struct ibv_pd *pd = NULL;
	struct ibv_mr **mrs = calloc(donor_nregions, sizeof(struct ibv_mr *));
	char		size[32];
	int64_t		start;
	uint32_t	n = 0;
	int			error;

	/* listening on any address: the first device stands for all */
	if (verbs == NULL)
	{
		list = rdma_get_devices(NULL);
		for (int i = 0; list != NULL && verbs == NULL && list[i] != NULL; i++)
			if (list[i]->device->transport_type != IBV_TRANSPORT_IWARP)
				verbs = list[i];
	}
	rbp_format_size(donor_nregions * donor_region_size, size, sizeof(size));
	start = rbp_now_ns();
	if (mrs != NULL && verbs != NULL && (pd = ibv_alloc_pd(verbs)) != NULL)
		for (; n < donor_nregions; n++)
		{
			mrs[n] = ibv_reg_mr(pd, donor_regions[n].base, donor_region_size,
								IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
								IBV_ACCESS_REMOTE_WRITE);
			if (mrs[n] == NULL)
				break;
		}
	error = errno;
	if (n == donor_nregions)
		rbp_log(RBP_LOG_INFO, "RDMA: %s can be registered with device %s, in %.1f ms",
				size, ibv_get_device_name(verbs->device),
				(double) (rbp_now_ns() - start) / 1e6);
	else if (verbs == NULL)
		snprintf(reason, len, "there is no RDMA device that can be used");
	else if (error == ENOMEM || error == EAGAIN || error == EPERM)
		snprintf(reason, len, "could not register %s of memory: %s; raise RLIMIT_MEMLOCK (LimitMEMLOCK= in a unit)",
				 size, strerror(error));
	else
		snprintf(reason, len, "could not register memory: %s", strerror(error));

	for (uint32_t i = 0; i < n; i++)
		(void) ibv_dereg_mr(mrs[i]);
	if (pd != NULL)
		(void) ibv_dealloc_pd(pd);
	if (list != NULL)
		rdma_free_devices(list);
	free(mrs);
	return n == donor_nregions;
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
	events = rdma_create_event_channel();
	if (events == NULL || !set_nonblocking(events->fd))
		snprintf(reason, sizeof(reason), "could not use rdma_cm: %s", strerror(errno));
	else if (start_listening(host, port, reason, sizeof(reason)) &&
			 try_registration(reason, sizeof(reason)))
	{
		wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (wake_fd < 0)
			rbp_die("could not make an eventfd: %s", strerror(errno));
		serving = true;
		if (pthread_create(&thread, NULL, thread_main, NULL) != 0)
			rbp_die("could not start a thread");
		pthread_detach(thread);
		return true;
	}
	if (listener != NULL)
		(void) rdma_destroy_id(listener);
	listener = NULL;
	if (events != NULL)
		rdma_destroy_event_channel(events);
	events = NULL;
	return false;
}

const DonorRdma donor_verbs_rdma = {.granted = granted,.revoke = revoke_keys};

uint64_t
donor_verbs_connections(void)
{
	return atomic_load(&nconnections);
}

uint64_t
donor_verbs_denied(void)
{
	return atomic_load(&denied);
}
