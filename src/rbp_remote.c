/*-------------------------------------------------------------------------
 *
 * rbp_remote.c
 *	  Remote slots: which region of which donor carries a slot, connections
 *	  to donors, and donors' health.
 *
 * Concurrency
 * -----------
 * RemoteShared is changed by the lease worker (the lease, the tables of
 * donors and regions, the map of extents), under remote_lock taken
 * exclusively, and read by everyone:
 *
 *	- The extent map is read without a lock, one 32-bit word at a time.  What
 *	  a reader gets may be out of date by the time it is used; then it reads
 *	  memory that is not its own page's, and the hash tells.
 *	- Endpoints and credentials are copied under remote_lock shared, when a
 *	  process connects.  A connection remembers the serials of donor and
 *	  lease, and is closed when they have moved.
 *	- The deadline, the donors' health and the counters are atomics.
 *
 * Health.  A late answer is a miss for the one who waited, and puts the donor
 * in doubt: that process leaves the donor alone until somebody is known to
 * have been answered since, so that a donor that hangs costs each process one
 * wait.  The pusher, woken for it, asks with a ping that is given more time.
 * No answer, or a lost connection, and the donor is "avoided" by all: page
 * reads go to the disk without any wait, and only the pusher talks to it, by
 * probes, at once and then with exponential back-off.
 *
 * A donor that answers, but too late again and again, is told by its debt:
 * each timeout adds what about a hundred answers in time take off.  Above a
 * limit it is avoided too, and each time that this happens without a time of
 * calm between, it is kept off for twice as long although it answers probes.
 *
 * A region whose use was denied is marked, so that nobody tries it again,
 * and the lease worker is told to ask the broker.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"

#include "rbp_compat.h"
#include "rbp_directory.h"
#include "rbp_guc.h"
#include "rbp_mutation.h"
#include "rbp_pusher.h"
#include "rbp_remote.h"

#define EXTENT_BYTES		(RBP_EXTENT_PAGES * (uint64) BLCKSZ)
#define MAX_REGIONS			8192
#define STRIPES				8	/* of donors' counters */

#define BACKOFF_FIRST_NS	INT64CONST(20000000)
#define BACKOFF_LAST_NS		INT64CONST(10000000000)
#define CALM_NS				INT64CONST(10000000000) /* forgives old trouble */
#define RECONNECT_NS		INT64CONST(100000000)
#define CONNECT_LIMIT_NS	INT64CONST(2000000000)
#define NOMEM_RETRY_NS		INT64CONST(1000000000)

/* A wait costs a query about as much as a hundred hits save. */
#define DEBT_OF_TIMEOUT		100
#define DEBT_LIMIT			2000

/* A ping for a donor in doubt is given so many times io_timeout. */
#define DOUBT_FACTOR		5
#define DOUBT_LIMIT_NS		INT64CONST(1000000000)	/* without a pusher */

/* An extent's place: region index + 1 in the high half; 0 is none. */
#define MAP_NONE			0
#define MAP_MAKE(region, ext)	((((uint32) (region) + 1) << 16) | (uint32) (ext))
#define MAP_REGION(word)	((int) ((word) >> 16) - 1)
#define MAP_EXTENT(word)	((word) & 0xffff)

/* Padded, so that no two processes' counters share a cache line. */
typedef struct DonorStripe
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE)
	pg_atomic_uint64 reads;
	pg_atomic_uint64 writes;
	pg_atomic_uint64 failures;
	pg_atomic_uint64 timeouts;
	pg_atomic_uint32 latency[RBP_LATENCY_BUCKETS];
} DonorStripe;

typedef struct Donor
{
	/* under remote_lock */
	RbpEndpoint endpoint;
	bool		known;			/* the lease has regions there */
	uint32		nregions;

	pg_atomic_uint32 serial;	/* moves when connections are of no use */
	pg_atomic_uint32 transport; /* RBP_TRANSPORT_* last used, 0 for none */

	pg_atomic_uint32 avoided;
	pg_atomic_uint64 avoid_until;	/* no use before, though probes succeed */
	pg_atomic_uint64 probe_at;
	pg_atomic_uint32 troubles;	/* in a row, without calm between */
	pg_atomic_uint32 debt;		/* see DEBT_LIMIT */
	pg_atomic_uint32 doubt;		/* a timeout, and no answer seen since */
	pg_atomic_uint64 cleared_at;	/* when a doubt last ended */

	/* the pusher's alone */
	int64		probe_backoff;

	DonorStripe stripes[STRIPES];
} Donor;

typedef struct Region
{
	/* under remote_lock, but stable while an extent maps to it */
	bool		used;
	uint16		donor;			/* index of it */
	uint32		number;			/* the donor's name for it */
	uint32		extents;		/* that are mapped */
	uint64		bytes;
	pg_atomic_uint32 denied;	/* a request was refused */
} Region;

typedef struct RemoteShared
{
	LWLock		remote_lock;

	/* under remote_lock */
	RbpCredentials credentials;
	bool		has_lease;
	Latch	   *lease_latch;

	pg_atomic_uint32 lease_serial;	/* moves when the credentials change */
	pg_atomic_uint64 deadline;	/* CLOCK_MONOTONIC ns; 0 without a lease */
	pg_atomic_uint32 nregions;	/* in use */
	pg_atomic_uint32 suspicion;
	pg_atomic_uint32 avoided;	/* how many donors are, about */
	pg_atomic_uint32 doubts;	/* some donor is in doubt */

	uint32		nextents;
	Donor		donors[RBP_MAX_DONORS];
	Region		regions[MAX_REGIONS];
	pg_atomic_uint32 map[FLEXIBLE_ARRAY_MEMBER];	/* by extent */
} RemoteShared;

static RemoteShared *shared = NULL;
static RbpDirectory *directory = NULL;
static void (*before_use) (void) = NULL;

/* This process's connection to one donor. */
typedef struct LocalConn
{
	RbpConn    *conn;
	const RbpTransportOps *ops;
	bool		ready;
	uint32		donor_serial;
	uint32		lease_serial;
	int			timeouts;		/* in a row */
	int64		started;		/* connecting since */
	bool		waited;			/* for that, once: from now on only poll */
	int64		doubt_since;	/* when it was late for us; 0: it was not */
	int64		retry_at;
} LocalConn;

static LocalConn conns[RBP_MAX_DONORS];

/*
 * ---- set-up -------------------------------------------------------------
 */

Size
rbp_remote_shmem_size(uint32 max_slots)
{
	return add_size(offsetof(RemoteShared, map),
					mul_size(sizeof(pg_atomic_uint32),
							 max_slots / RBP_EXTENT_PAGES));
}

static void
reset_donor_stats(Donor *d)
{
	for (int s = 0; s < STRIPES; s++)
	{
		pg_atomic_init_u64(&d->stripes[s].reads, 0);
		pg_atomic_init_u64(&d->stripes[s].writes, 0);
		pg_atomic_init_u64(&d->stripes[s].failures, 0);
		pg_atomic_init_u64(&d->stripes[s].timeouts, 0);
		for (int b = 0; b < RBP_LATENCY_BUCKETS; b++)
			pg_atomic_init_u32(&d->stripes[s].latency[b], 0);
	}
}

static void
reset_donor_health(Donor *d)
{
	pg_atomic_init_u32(&d->avoided, 0);
	pg_atomic_init_u64(&d->avoid_until, 0);
	pg_atomic_init_u64(&d->probe_at, 0);
	pg_atomic_init_u32(&d->troubles, 0);
	pg_atomic_init_u32(&d->debt, 0);
	pg_atomic_init_u32(&d->doubt, 0);
	pg_atomic_init_u64(&d->cleared_at, 0);
	d->probe_backoff = 0;
}

void
rbp_remote_shmem_init(void *mem, bool found, uint32 max_slots,
					  RbpDirectory *dir, void (*before_first_use) (void))
{
	static int	tranche = 0;
	RemoteShared *sh = mem;

	shared = sh;
	directory = dir;
	before_use = before_first_use;
	if (found)
		return;
	if (tranche == 0)
	{
		tranche = LWLockNewTrancheId();
		LWLockRegisterTranche(tranche, "RemoteBpRemote");
	}
	memset(sh, 0, rbp_remote_shmem_size(max_slots));
	LWLockInitialize(&sh->remote_lock, tranche);
	pg_atomic_init_u32(&sh->lease_serial, 1);
	pg_atomic_init_u64(&sh->deadline, 0);
	pg_atomic_init_u32(&sh->nregions, 0);
	pg_atomic_init_u32(&sh->suspicion, 0);
	pg_atomic_init_u32(&sh->avoided, 0);
	pg_atomic_init_u32(&sh->doubts, 0);
	sh->nextents = max_slots / RBP_EXTENT_PAGES;
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		pg_atomic_init_u32(&sh->donors[i].serial, 1);
		pg_atomic_init_u32(&sh->donors[i].transport, 0);
		reset_donor_health(&sh->donors[i]);
		reset_donor_stats(&sh->donors[i]);
	}
	for (int i = 0; i < MAX_REGIONS; i++)
		pg_atomic_init_u32(&sh->regions[i].denied, 0);
	for (uint32 e = 0; e < sh->nextents; e++)
		pg_atomic_init_u32(&sh->map[e], MAP_NONE);
}

/* What carries the slot: a word of the map, MAP_NONE if nothing does. No lock. */
static inline uint32
slot_word(uint32 slot)
{
	uint32		extent = slot / RBP_EXTENT_PAGES;

	return extent < shared->nextents ?
		pg_atomic_read_u32(&shared->map[extent]) : MAP_NONE;
}

/* Where the slot is in the region that the word names, in bytes. */
static inline uint64
slot_offset(uint32 slot, uint32 word)
{
	return MAP_EXTENT(word) * EXTENT_BYTES +
		(slot % RBP_EXTENT_PAGES) * (uint64) BLCKSZ;
}

bool
rbp_remote_usable(int64 now)
{
	if (RBP_MUTATED(RBP_MUTATION_NO_LEASE_CHECK))
		return pg_atomic_read_u64(&shared->deadline) != 0;
	return (int64) pg_atomic_read_u64(&shared->deadline) > now &&
		pg_atomic_read_u32(&shared->nregions) > 0;
}

/*
 * ---- health ---------------------------------------------------------------
 */

static inline DonorStripe *
stripe_of(Donor *d)
{
	return &d->stripes[rbp_compat_procno() % STRIPES];
}

static void
suspect(void)
{
	Latch	   *latch = shared->lease_latch;

	if (pg_atomic_exchange_u32(&shared->suspicion, 1) == 0 && latch != NULL)
		SetLatch(latch);
}

/* How long a donor is kept off after this many troubles in a row. */
static int64
hold_off(uint32 troubles)
{
	int64		ns = BACKOFF_FIRST_NS;

	/* the first is forgiven as soon as a probe succeeds */
	if (troubles <= 1)
		return 0;
	for (uint32 i = 2; i < troubles && ns < BACKOFF_LAST_NS; i++)
		ns *= 2;
	return Min(ns, BACKOFF_LAST_NS);
}

/*
 * A request to the donor failed or was too late: nobody uses it for now.  Of
 * those that notice at the same time, one does the rest.
 */
static void
donor_trouble(Donor *d, bool lost)
{
	int64		now = rbp_now_ns();
	uint32		troubles;

	pg_atomic_fetch_add_u64(lost ? &stripe_of(d)->failures :
							&stripe_of(d)->timeouts, 1);
	if (pg_atomic_read_u32(&d->avoided) != 0 ||
		pg_atomic_exchange_u32(&d->avoided, 1) != 0)
		return;
	if (now - (int64) pg_atomic_read_u64(&d->avoid_until) > CALM_NS)
		pg_atomic_write_u32(&d->troubles, 0);
	troubles = pg_atomic_add_fetch_u32(&d->troubles, 1);
	pg_atomic_write_u64(&d->avoid_until, (uint64) (now + hold_off(troubles)));
	pg_atomic_write_u64(&d->probe_at, (uint64) now);

	/*
	 * What has broken one connection has likely broken all.  With a new
	 * serial the others are closed without being tried, and so without
	 * counting as troubles of their own.
	 */
	if (lost)
	{
		pg_atomic_fetch_add_u32(&d->serial, 1);
		suspect();
	}
	pg_atomic_fetch_add_u32(&shared->avoided, 1);
	rbp_pusher_wake();
}

/*
 * An answer came too late, or none yet.  What takes a donor's processor only
 * now and then, as connecting does, and mapping a region over shm, makes no
 * debt: that it was late says little about reads.
 */
static void
donor_late(Donor *d, LocalConn *c, bool makes_debt)
{
	c->doubt_since = rbp_now_ns();
	if (makes_debt &&
		pg_atomic_add_fetch_u32(&d->debt, DEBT_OF_TIMEOUT) >= DEBT_LIMIT)
	{
		pg_atomic_write_u32(&d->debt, 0);
		donor_trouble(d, false);
		return;
	}
	pg_atomic_fetch_add_u64(&stripe_of(d)->timeouts, 1);
	pg_atomic_write_u32(&d->doubt, 1);
	if (pg_atomic_exchange_u32(&shared->doubts, 1) == 0)
		rbp_pusher_wake();
}

/* Requests were answered in time. */
static inline void
donor_answered(Donor *d)
{
	/* the time after the exchange: who doubts from now on is not cleared */
	if (unlikely(pg_atomic_read_u32(&d->doubt) != 0) &&
		pg_atomic_exchange_u32(&d->doubt, 0) != 0)
		pg_atomic_write_u64(&d->cleared_at, (uint64) rbp_now_ns());
	if (unlikely(pg_atomic_read_u32(&d->debt) != 0))
	{
		uint32		debt = pg_atomic_read_u32(&d->debt);

		if (debt > 0)
			(void) pg_atomic_compare_exchange_u32(&d->debt, &debt, debt - 1);
	}
}

/* Was the donor late for this process, and is not known to have come round? */
static inline bool
in_doubt(Donor *d, LocalConn *c)
{
	int64		now;

	if (likely(c->doubt_since == 0))
		return false;
	now = rbp_now_ns();
	if ((int64) pg_atomic_read_u64(&d->cleared_at) <= c->doubt_since &&
		now - c->doubt_since < Max(DOUBT_LIMIT_NS, 20 * rbp_guc_io_timeout_ns()))
		return true;
	c->doubt_since = 0;
	return false;
}

static void
donor_unavoid(Donor *d)
{
	d->probe_backoff = 0;
	pg_atomic_write_u32(&d->debt, 0);
	pg_atomic_write_u64(&d->cleared_at, (uint64) rbp_now_ns());
	pg_atomic_write_u32(&d->doubt, 0);
	if (pg_atomic_exchange_u32(&d->avoided, 0) == 1)
		pg_atomic_fetch_sub_u32(&shared->avoided, 1);
}

/*
 * ---- connections ------------------------------------------------------------
 */

static void
conn_close(LocalConn *c)
{
	if (c->conn == NULL)
		return;
	c->ops->close(c->conn);
	c->conn = NULL;
	c->ready = false;
}

/* Start to connect; the endpoint and the credentials as they are now. */
static RbpStatus
conn_start(LocalConn *c, Donor *d, int64 now)
{
	RbpEndpoint endpoint;
	RbpCredentials credentials;
	RbpStatus	status;

	/* The lease worker may be long: not a reason for a query to wait. */
	if (!LWLockConditionalAcquire(&shared->remote_lock, LW_SHARED))
		return RBP_CANCELED;
	endpoint = d->endpoint;
	credentials = shared->credentials;
	c->donor_serial = pg_atomic_read_u32(&d->serial);
	c->lease_serial = pg_atomic_read_u32(&shared->lease_serial);
	LWLockRelease(&shared->remote_lock);

	c->timeouts = 0;
	c->started = now;
	c->waited = false;
	c->doubt_since = 0;
	c->ops = rbp_transport_choose(rbp_guc_transport, &endpoint);
	status = c->ops == NULL ? RBP_INVALID :
		c->ops->connect(&endpoint, &credentials, &c->conn);
	memset(&credentials, 0, sizeof(credentials));
	if (status != RBP_OK)
		c->retry_at = rbp_now_ns() + RECONNECT_NS;
	return status;
}

/*
 * A connection to the donor that is ready for requests.  RBP_OK, or why
 * not: RBP_TIMEOUT if it is still being made at the deadline.
 */
static RbpStatus
conn_get(int donor, int64 deadline_ns, LocalConn **out)
{
	LocalConn  *c = &conns[donor];
	Donor	   *d = &shared->donors[donor];
	RbpStatus	status;
	int64		now;

	if (c->conn != NULL &&
		(c->donor_serial != pg_atomic_read_u32(&d->serial) ||
		 c->lease_serial != pg_atomic_read_u32(&shared->lease_serial)))
	{
		conn_close(c);
		c->retry_at = 0;
	}
	*out = c;
	if (likely(c->ready))
		return RBP_OK;

	now = rbp_now_ns();
	if (c->conn == NULL)
	{
		if (now < c->retry_at)
			return RBP_CANCELED;
		status = conn_start(c, d, now);
		if (status != RBP_OK)
			return status == RBP_INVALID ? RBP_CANCELED : status;
	}
	status = c->ops->connect_wait(c->conn, c->waited ? now : deadline_ns);
	if (status == RBP_INPROGRESS)
	{
		if (!c->waited)
		{
			c->waited = true;
			return RBP_TIMEOUT;
		}
		/* not for ever: the donor may have lost us */
		if (now - c->started > CONNECT_LIMIT_NS)
			conn_close(c);
		return RBP_CANCELED;
	}
	if (status != RBP_OK)
	{
		/* one that lay about half made has ended for reasons of its own */
		if (c->waited && status == RBP_CONNLOST)
			status = RBP_CANCELED;
		conn_close(c);
		c->retry_at = now + RECONNECT_NS;
		return status;
	}
	c->ready = true;
	donor_answered(d);
	pg_atomic_write_u32(&d->transport, c->ops->bit);
	rbp_stats_latency(RBP_LATENCY_CONNECT, rbp_now_ns() - c->started);
	return RBP_OK;
}

/*
 * ---- I/O --------------------------------------------------------------------
 */

/* Requests of one batch to one donor. */
typedef struct DonorBatch
{
	int			donor;
	int			n;
	LocalConn  *conn;
	bool		posted;
	RbpIo		ios[RBP_MAX_BATCH];
	uint8		index[RBP_MAX_BATCH];	/* in the caller's array */
	uint32		slot[RBP_MAX_BATCH];
	uint32		word[RBP_MAX_BATCH];	/* of the map, for the slot */
} DonorBatch;

/* What a final status other than RBP_OK means for donor and connection. */
static void
account_failure(DonorBatch *batch, RbpStatus status, bool connecting)
{
	Donor	   *d = &shared->donors[batch->donor];
	LocalConn  *c = batch->conn;

	switch (status)
	{
		case RBP_TIMEOUT:
			rbp_stats_count(RBP_COUNT_TIMEOUTS, 1);
			donor_late(d, c, !connecting && !c->ops->one_sided);

			/*
			 * A late answer alone leaves the connection in order; after a
			 * second one in a row a new connection is the better bet.
			 */
			if (!connecting && ++c->timeouts >= 2)
				conn_close(c);
			break;
		case RBP_CONNLOST:
		case RBP_PROTOCOL:
			rbp_stats_count(RBP_COUNT_IO_ERRORS, 1);
			if (!connecting)
				conn_close(c);
			/* of an old connection others know already */
			if (c->donor_serial == pg_atomic_read_u32(&d->serial))
				donor_trouble(d, true);
			break;
		case RBP_NOMEM:
			/* a shortage of ours, or of places for clients: others go on */
			rbp_stats_count(RBP_COUNT_IO_ERRORS, 1);
			conn_close(c);
			c->retry_at = rbp_now_ns() + NOMEM_RETRY_NS;
			break;
		case RBP_DENIED:
			rbp_stats_count(RBP_COUNT_IO_ERRORS, 1);
			pg_atomic_fetch_add_u64(&stripe_of(d)->failures, 1);
			suspect();
			break;
		case RBP_CANCELED:
		case RBP_INVALID:
		case RBP_OK:
		case RBP_INPROGRESS:
			break;
	}
}

/*
 * A connection for the batch; false, with the requests' status, if none.  If
 * others have used up the time, one that is not there is not begun: this donor
 * would have had no chance.
 */
static bool
connect_batch(DonorBatch *batch, int64 deadline_ns, bool others)
{
	RbpStatus	status = RBP_CANCELED;

	if (!others || conns[batch->donor].ready || rbp_now_ns() < deadline_ns)
		status = conn_get(batch->donor, deadline_ns, &batch->conn);
	if (status == RBP_OK)
		return true;
	for (int i = 0; i < batch->n; i++)
		batch->ios[i].status = status;
	if (status != RBP_CANCELED)
		account_failure(batch, status, true);
	return false;
}

/* Start a donor's batch on its way. */
static bool
post_batch(DonorBatch *batch)
{
	RbpStatus	status = batch->conn->ops->submit(batch->conn->conn,
												  batch->ios, batch->n);

	if (status != RBP_OK)
		account_failure(batch, status, false);
	return status == RBP_OK;
}

static void
finish_batch(DonorBatch *batch, int64 deadline_ns, bool late)
{
	LocalConn  *c = batch->conn;
	RbpStatus	worst = RBP_OK;

	(void) c->ops->wait(c->conn, batch->ios, batch->n, deadline_ns);
	for (int i = 0; i < batch->n; i++)
	{
		RbpStatus	status = batch->ios[i].status;

		if (likely(status == RBP_OK))
		{
			if (!c->ops->one_sided)
				c->timeouts = 0;
		}
		else if (status == RBP_DENIED)
		{
			uint32		word = batch->word[i];

			/* unless the place belongs to another region by now */
			if (slot_word(batch->slot[i]) == word)
				pg_atomic_write_u32(&shared->regions[MAP_REGION(word)].denied, 1);
			if (worst == RBP_OK)
				worst = status;
		}
		else if (worst == RBP_OK || worst == RBP_DENIED ||
				 status == RBP_CONNLOST)
			worst = status;
	}

	/* If others have used the time up, this donor had no chance. */
	if (worst != RBP_OK && !(late && worst == RBP_TIMEOUT))
		account_failure(batch, worst, false);
}

/*
 * Put the requests into a batch for each donor; what cannot be sent at all
 * gets its status here.  Returns the number of batches.
 */
static int
make_batches(RbpRemoteIo *ios, int n, RbpIoKind kind, DonorBatch *batches,
			 int max)
{
	int			nbatches = 0;

	for (int i = 0; i < n; i++)
	{
		uint32		word = slot_word(ios[i].slot);
		Region	   *region;
		DonorBatch *batch;
		RbpIo	   *io;
		int			b;

		ios[i].status = RBP_CANCELED;
		if (word == MAP_NONE)
			continue;
		region = &shared->regions[MAP_REGION(word)];
		if (pg_atomic_read_u32(&region->denied) != 0)
			continue;
		if (pg_atomic_read_u32(&shared->donors[region->donor].avoided) != 0 ||
			in_doubt(&shared->donors[region->donor], &conns[region->donor]))
		{
			if (kind == RBP_IO_READ)
				rbp_stats_count(RBP_COUNT_AVOIDED, 1);
			continue;
		}
		for (b = 0; b < nbatches; b++)
			if (batches[b].donor == region->donor)
				break;
		if (b == max)
			continue;			/* more donors than batches: those miss */
		batch = &batches[b];
		if (b == nbatches)
		{
			nbatches++;
			batch->donor = region->donor;
			batch->n = 0;
		}
		io = &batch->ios[batch->n];
		io->kind = kind;
		io->region = region->number;
		io->offset = slot_offset(ios[i].slot, word);
		io->len = BLCKSZ;
		io->buf = ios[i].buf;
		io->mr = NULL;
		io->status = RBP_INPROGRESS;
		batch->index[batch->n] = (uint8) i;
		batch->slot[batch->n] = ios[i].slot;
		batch->word[batch->n] = word;
		batch->n++;
	}
	return nbatches;
}

/* Donors that one batch of requests can go to at once. */
#define MAX_BATCHES		8

static void
transfer(RbpRemoteIo *ios, int n, RbpIoKind kind, int64 start_ns,
		 int64 deadline_ns)
{
	/* not on the stack: signal handlers do no page I/O */
	static DonorBatch batches[MAX_BATCHES];
	int			nbatches = make_batches(ios, n, kind, batches, MAX_BATCHES);

	/* Connecting may wait, so it comes before anything is on its way. */
	for (int b = 0; b < nbatches; b++)
		batches[b].posted = connect_batch(&batches[b], deadline_ns, b > 0);
	for (int b = 0; b < nbatches; b++)
		if (batches[b].posted)
			batches[b].posted = post_batch(&batches[b]);
	for (int b = 0; b < nbatches; b++)
	{
		DonorBatch *batch = &batches[b];
		DonorStripe *stripe = stripe_of(&shared->donors[batch->donor]);
		int			done = 0;

		if (batch->posted)
			finish_batch(batch, deadline_ns,
						 nbatches > 1 && rbp_now_ns() >= deadline_ns);
		for (int i = 0; i < batch->n; i++)
		{
			ios[batch->index[i]].status = batch->ios[i].status;
			if (batch->ios[i].status == RBP_OK)
				done++;
		}
		if (done > 0)
		{
			if (!batch->conn->ops->one_sided)
				donor_answered(&shared->donors[batch->donor]);
			pg_atomic_fetch_add_u64(kind == RBP_IO_READ ? &stripe->reads :
									&stripe->writes, done);
			if (kind == RBP_IO_READ)
				pg_atomic_fetch_add_u32(&stripe->latency[rbp_latency_bucket(rbp_now_ns() - start_ns)], 1);
		}
	}
}

void
rbp_remote_read(RbpRemoteIo *ios, int n, int64 start_ns, int64 deadline_ns)
{
	transfer(ios, n, RBP_IO_READ, start_ns, deadline_ns);
}

void
rbp_remote_write(RbpRemoteIo *ios, int n, int64 start_ns, int64 deadline_ns)
{
	transfer(ios, n, RBP_IO_WRITE, start_ns, deadline_ns);
}

bool
rbp_remote_slot_readable(uint32 slot)
{
	uint32		word = slot_word(slot);
	Region	   *region;

	if (word == MAP_NONE)
		return false;
	region = &shared->regions[MAP_REGION(word)];
	return pg_atomic_read_u32(&region->denied) == 0 &&
		pg_atomic_read_u32(&shared->donors[region->donor].avoided) == 0 &&
		conns[region->donor].ready && conns[region->donor].doubt_since == 0;
}

void
rbp_remote_slot_name(uint32 slot, char *buf, Size len)
{
	uint32		word = slot_word(slot);
	Region	   *region;

	if (word == MAP_NONE)
	{
		snprintf(buf, len, "slot %u", slot);
		return;
	}
	region = &shared->regions[MAP_REGION(word)];
	snprintf(buf, len, "slot %u (donor %s, region %u, offset " UINT64_FORMAT ")",
			 slot, shared->donors[region->donor].endpoint.donor,
			 region->number, slot_offset(slot, word));
}

/*
 * ---- probes -----------------------------------------------------------------
 */

/* One round trip to a donor that is avoided or in doubt. */
static RbpStatus
probe(int donor, int64 timeout_ns)
{
	int64		deadline_ns = rbp_now_ns() + timeout_ns;
	LocalConn  *c;
	RbpIo		io = {.kind = RBP_IO_PING,.status = RBP_INVALID};
	RbpStatus	status;

	/* The pusher can afford to wait for a connection each time. */
	conns[donor].retry_at = 0;
	conns[donor].waited = false;
	conns[donor].doubt_since = 0;
	status = conn_get(donor, deadline_ns, &c);
	if (status != RBP_OK)
		return status;
	if (c->ops->submit(c->conn, &io, 1) == RBP_OK)
		(void) c->ops->wait(c->conn, &io, 1, deadline_ns);
	if (io.status == RBP_OK)
		c->timeouts = 0;
	else if (io.status != RBP_TIMEOUT || ++c->timeouts >= 2)
		conn_close(c);
	return io.status;
}

int64
rbp_remote_probe(void)
{
	int64		next = -1;

	if (pg_atomic_read_u32(&shared->doubts) == 0 &&
		pg_atomic_read_u32(&shared->avoided) == 0)
		return -1;
	/* a full barrier: what is doubted from here on sets it again */
	(void) pg_atomic_exchange_u32(&shared->doubts, 0);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		Donor	   *d = &shared->donors[i];
		RbpStatus	status;
		int64		now;
		int64		due;

		if (pg_atomic_read_u32(&d->avoided) == 0)
		{
			if (pg_atomic_read_u32(&d->doubt) == 0)
				continue;
			status = probe(i, rbp_guc_io_timeout_ns() * DOUBT_FACTOR);
			if (status == RBP_OK)
			{
				donor_answered(d);
				continue;
			}
			if (status == RBP_DENIED)
				suspect();
			if (status != RBP_TIMEOUT && status != RBP_CONNLOST &&
				status != RBP_PROTOCOL)
			{
				/* that tells of us or the lease, not of the donor: ask again */
				pg_atomic_write_u32(&shared->doubts, 1);
				if (next < 0 || next > BACKOFF_FIRST_NS)
					next = BACKOFF_FIRST_NS;
				continue;
			}
			donor_trouble(d, status != RBP_TIMEOUT);
		}
		now = rbp_now_ns();
		if (!d->known)
		{
			donor_unavoid(d);
			continue;
		}
		due = (int64) pg_atomic_read_u64(&d->probe_at);
		if (due <= now)
		{
			int64		until = (int64) pg_atomic_read_u64(&d->avoid_until);
			bool		fresh = !conns[i].ready;

			if (until > now)
				due = until;
			else if (probe(i, rbp_guc_io_timeout_ns()) == RBP_OK)
			{
				/*
				 * It took a new connection to reach it, so everybody shall
				 * make one, instead of finding out one by one.
				 */
				if (fresh)
					conns[i].donor_serial =
						pg_atomic_add_fetch_u32(&d->serial, 1);
				donor_unavoid(d);
				continue;
			}
			else if (conns[i].conn != NULL && !conns[i].ready &&
					 rbp_now_ns() - conns[i].started < CONNECT_LIMIT_NS)
				due = rbp_now_ns() + BACKOFF_FIRST_NS;	/* connecting: go on */
			else
			{
				if (!conns[i].ready)
					conn_close(&conns[i]);
				d->probe_backoff = d->probe_backoff == 0 ? BACKOFF_FIRST_NS :
					Min(d->probe_backoff * 2, BACKOFF_LAST_NS);
				due = rbp_now_ns() + d->probe_backoff;
			}
			pg_atomic_write_u64(&d->probe_at, (uint64) due);
		}
		now = rbp_now_ns();
		if (next < 0 || due - now < next)
			next = Max(due - now, 0);
	}
	return next;
}

/*
 * ---- for the lease worker -----------------------------------------------------
 */

void
rbp_remote_set_lease_latch(Latch *latch)
{
	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	shared->lease_latch = latch;
	LWLockRelease(&shared->remote_lock);
}

/*
 * Take a region out of use: lookups miss from the first store on, and when
 * this returns no entry is left in it.  Caller holds remote_lock exclusively.
 */
static void
retire_region(int r)
{
	Region	   *region = &shared->regions[r];

	for (uint32 e = 0; e < shared->nextents && region->extents > 0; e++)
	{
		uint32		word = pg_atomic_read_u32(&shared->map[e]);

		if (word == MAP_NONE || MAP_REGION(word) != r)
			continue;
		(void) rbp_directory_extent_offline(directory, e);
		pg_atomic_write_u32(&shared->map[e], MAP_NONE);
		region->extents--;
	}
	shared->donors[region->donor].nregions--;
	region->used = false;
	pg_atomic_fetch_sub_u32(&shared->nregions, 1);
}

/* Enter a region into the table, with no extents yet; -1 if there is no room. */
static int
enter_region(const RbpRegionGrant *grant, int donor)
{
	Region	   *region;
	int			r;

	for (r = 0; r < MAX_REGIONS && shared->regions[r].used; r++)
		 /* look on */ ;
	if (r == MAX_REGIONS || grant->bytes < EXTENT_BYTES ||
		grant->bytes / EXTENT_BYTES > 0xffff)
		return -1;
	region = &shared->regions[r];
	region->used = true;
	region->donor = (uint16) donor;
	region->number = grant->region;
	region->bytes = grant->bytes;
	region->extents = 0;
	pg_atomic_write_u32(&region->denied, 0);
	shared->donors[donor].nregions++;
	pg_atomic_fetch_add_u32(&shared->nregions, 1);
	return r;
}

/*
 * Give extents to the regions just entered, one to each in turn: the
 * directory takes free slots in about that order, so that a tier that is not
 * full yet loads all donors alike.  Returns how many regions got none.
 */
static int
bring_regions_online(const int *entered, int n)
{
	uint32		extent = 0;
	int			unused = 0;
	bool		more = true;

	while (more)
	{
		more = false;
		for (int i = 0; i < n; i++)
		{
			Region	   *region = &shared->regions[entered[i]];

			if (region->extents == region->bytes / EXTENT_BYTES)
				continue;
			while (extent < shared->nextents &&
				   pg_atomic_read_u32(&shared->map[extent]) != MAP_NONE)
				extent++;
			if (extent == shared->nextents)
				break;
			pg_atomic_write_u32(&shared->map[extent],
								MAP_MAKE(entered[i], region->extents));
			region->extents++;
			rbp_directory_extent_online(directory, extent);
			more = true;
		}
	}
	for (int i = 0; i < n; i++)
	{
		Region	   *region = &shared->regions[entered[i]];

		if (region->extents > 0)
			continue;
		retire_region(entered[i]);
		unused++;
	}
	return unused;
}

/*
 * The donor's place in the table, given out if it has none; -1 if there is
 * no room.  Caller holds remote_lock exclusively.
 */
static int
donor_place(const RbpEndpoint *endpoint)
{
	int			place = -1;

	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		Donor	   *d = &shared->donors[i];

		if (strcmp(d->endpoint.donor, endpoint->donor) == 0)
		{
			place = i;
			break;
		}
		/* an empty place is better than that of one that is gone */
		if (!d->known && d->nregions == 0 &&
			(place < 0 || (d->endpoint.donor[0] == '\0' &&
						   shared->donors[place].endpoint.donor[0] != '\0')))
			place = i;
	}
	if (place >= 0)
	{
		Donor	   *d = &shared->donors[place];

		if (strcmp(d->endpoint.donor, endpoint->donor) != 0)
			reset_donor_stats(d);
		if (memcmp(&d->endpoint, endpoint, sizeof(*endpoint)) != 0)
		{
			d->endpoint = *endpoint;
			pg_atomic_write_u32(&d->transport, 0);
			pg_atomic_fetch_add_u32(&d->serial, 1);
			pg_atomic_write_u32(&d->troubles, 0);
			donor_unavoid(d);
		}
		d->known = true;
	}
	return place;
}

static bool
region_is_granted(const Region *region, const RbpRegionGrant *grants, int n)
{
	const char *donor = shared->donors[region->donor].endpoint.donor;

	for (int i = 0; i < n; i++)
		if (grants[i].region == region->number &&
			grants[i].bytes == region->bytes &&
			strcmp(grants[i].donor, donor) == 0)
			return true;
	return false;
}

int
rbp_remote_set_lease(const RbpCredentials *cred, int64 deadline_ns,
					 const RbpEndpoint *donors, int ndonors,
					 const RbpRegionGrant *regions, int nregions)
{
	bool		same;
	int			unused = 0;
	int		   *entered = palloc(sizeof(int) * (nregions + 1));
	int			nentered = 0;

	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	same = shared->has_lease &&
		memcmp(&shared->credentials, cred, sizeof(*cred)) == 0;
	for (int r = 0; r < MAX_REGIONS; r++)
		if (shared->regions[r].used &&
			(!same || pg_atomic_read_u32(&shared->regions[r].denied) != 0 ||
			 !region_is_granted(&shared->regions[r], regions, nregions)))
			retire_region(r);
	if (!same)
	{
		shared->credentials = *cred;
		shared->has_lease = true;
		pg_atomic_fetch_add_u32(&shared->lease_serial, 1);
	}

	for (int i = 0; i < RBP_MAX_DONORS; i++)
		shared->donors[i].known = shared->donors[i].nregions > 0;
	for (int i = 0; i < ndonors; i++)
		(void) donor_place(&donors[i]);

	if (nregions > 0)
		before_use();
	pg_atomic_write_u64(&shared->deadline, (uint64) deadline_ns);
	for (int i = 0; i < nregions; i++)
	{
		int			donor = -1;
		bool		have = false;

		for (int k = 0; k < RBP_MAX_DONORS && donor < 0; k++)
			if (shared->donors[k].known &&
				strcmp(shared->donors[k].endpoint.donor, regions[i].donor) == 0)
				donor = k;
		for (int r = 0; donor >= 0 && r < MAX_REGIONS && !have; r++)
			have = shared->regions[r].used &&
				shared->regions[r].donor == donor &&
				shared->regions[r].number == regions[i].region;
		if (have)
			continue;
		entered[nentered] = donor < 0 ? -1 : enter_region(&regions[i], donor);
		if (entered[nentered] < 0)
			unused++;
		else
			nentered++;
	}
	unused += bring_regions_online(entered, nentered);
	LWLockRelease(&shared->remote_lock);
	pfree(entered);
	return unused;
}

void
rbp_remote_extend_lease(int64 deadline_ns)
{
	pg_atomic_write_u64(&shared->deadline, (uint64) deadline_ns);
}

void
rbp_remote_clear_lease(void)
{
	pg_atomic_write_u64(&shared->deadline, 0);
	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	for (int r = 0; r < MAX_REGIONS; r++)
		if (shared->regions[r].used)
			retire_region(r);
	memset(&shared->credentials, 0, sizeof(shared->credentials));
	shared->has_lease = false;
	pg_atomic_fetch_add_u32(&shared->lease_serial, 1);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
		shared->donors[i].known = false;
	LWLockRelease(&shared->remote_lock);
}

/* Sum of fn over the extents of each region, into sums[MAX_REGIONS]. */
static void
sum_regions(uint64 *sums, uint64 (*fn) (uint32 extent))
{
	memset(sums, 0, sizeof(uint64) * MAX_REGIONS);
	for (uint32 e = 0; e < shared->nextents; e++)
	{
		uint32		word = pg_atomic_read_u32(&shared->map[e]);

		if (word != MAP_NONE)
			sums[MAP_REGION(word)] += fn(e);
	}
}

static uint64
extent_heat(uint32 extent)
{
	return rbp_directory_extent_heat(directory, extent);
}

static uint64
extent_used(uint32 extent)
{
	return rbp_directory_extent_used(directory, extent);
}

int
rbp_remote_retire_coldest(const char *donor, int count,
						  RbpRegionGrant *given, int max)
{
	uint64	   *heat = palloc(sizeof(uint64) * MAX_REGIONS);
	int			n = 0;

	/* Nobody but the lease worker, that is us, changes the map. */
	sum_regions(heat, extent_heat);
	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	while (n < count && n < max)
	{
		int			coldest = -1;

		for (int r = 0; r < MAX_REGIONS; r++)
		{
			Region	   *region = &shared->regions[r];

			if (region->used &&
				(donor == NULL ||
				 strcmp(shared->donors[region->donor].endpoint.donor, donor) == 0) &&
				(coldest < 0 || heat[r] < heat[coldest]))
				coldest = r;
		}
		if (coldest < 0)
			break;
		strlcpy(given[n].donor,
				shared->donors[shared->regions[coldest].donor].endpoint.donor,
				sizeof(given[n].donor));
		given[n].region = shared->regions[coldest].number;
		given[n].bytes = shared->regions[coldest].bytes;
		n++;
		retire_region(coldest);
	}
	LWLockRelease(&shared->remote_lock);
	pfree(heat);
	return n;
}

bool
rbp_remote_take_suspicion(void)
{
	return pg_atomic_read_u32(&shared->suspicion) != 0 &&
		pg_atomic_exchange_u32(&shared->suspicion, 0) != 0;
}

/*
 * ---- for the views --------------------------------------------------------
 */

static const char *
transport_name(uint32 bit)
{
	static const RbpTransportOps *const all[] = {
		&rbp_transport_shm, &rbp_transport_tcp
	};

	for (size_t i = 0; i < lengthof(all); i++)
		if (all[i]->bit == bit)
			return all[i]->name;
	return "none";
}

RbpDonorInfo *
rbp_remote_donor_info(int *n)
{
	RbpDonorInfo *infos = palloc0(sizeof(RbpDonorInfo) * RBP_MAX_DONORS);
	uint64	   *used = palloc(sizeof(uint64) * MAX_REGIONS);

	sum_regions(used, extent_used);
	*n = 0;
	LWLockAcquire(&shared->remote_lock, LW_SHARED);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		Donor	   *d = &shared->donors[i];
		RbpDonorInfo *info = &infos[*n];

		if (d->endpoint.donor[0] == '\0')
			continue;
		(*n)++;
		info->endpoint = d->endpoint;
		info->transport = transport_name(pg_atomic_read_u32(&d->transport));
		info->state = !d->known ? "gone" :
			pg_atomic_read_u32(&d->avoided) != 0 ? "avoided" : "ok";
		for (int r = 0; r < MAX_REGIONS; r++)
			if (shared->regions[r].used && shared->regions[r].donor == i)
			{
				info->leased_bytes += shared->regions[r].bytes;
				info->used_bytes += used[r] * BLCKSZ;
			}
		for (int s = 0; s < STRIPES; s++)
		{
			DonorStripe *stripe = &d->stripes[s];

			info->reads += pg_atomic_read_u64(&stripe->reads);
			info->writes += pg_atomic_read_u64(&stripe->writes);
			info->failures += pg_atomic_read_u64(&stripe->failures);
			info->timeouts += pg_atomic_read_u64(&stripe->timeouts);
			for (int b = 0; b < RBP_LATENCY_BUCKETS; b++)
			{
				uint32		count = pg_atomic_read_u32(&stripe->latency[b]);

				info->read_latency.bucket[b] += count;
				info->read_latency.count += count;
			}
		}
	}
	LWLockRelease(&shared->remote_lock);
	pfree(used);
	return infos;
}

RbpLeaseInfo *
rbp_remote_lease_info(int *n)
{
	RbpLeaseInfo *infos = palloc0(sizeof(RbpLeaseInfo) * MAX_REGIONS);
	uint64	   *used = palloc(sizeof(uint64) * MAX_REGIONS);
	uint64	   *heat = palloc(sizeof(uint64) * MAX_REGIONS);
	int64		now = rbp_now_ns();

	sum_regions(used, extent_used);
	sum_regions(heat, extent_heat);
	*n = 0;
	LWLockAcquire(&shared->remote_lock, LW_SHARED);
	for (int r = 0; r < MAX_REGIONS; r++)
	{
		Region	   *region = &shared->regions[r];
		RbpLeaseInfo *info = &infos[*n];

		if (!region->used)
			continue;
		(*n)++;
		strlcpy(info->lease, shared->credentials.lease, sizeof(info->lease));
		info->purpose = "buffer";
		strlcpy(info->donor, shared->donors[region->donor].endpoint.donor,
				sizeof(info->donor));
		info->region = region->number;
		info->bytes = region->bytes;
		info->used_bytes = used[r] * BLCKSZ;
		info->heat = heat[r];
		info->remaining_ns = (int64) pg_atomic_read_u64(&shared->deadline) - now;
	}
	LWLockRelease(&shared->remote_lock);
	pfree(used);
	pfree(heat);
	return infos;
}

void
rbp_remote_stats_reset(void)
{
	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
		reset_donor_stats(&shared->donors[i]);
	LWLockRelease(&shared->remote_lock);
}
