/*-------------------------------------------------------------------------
 *
 * io.c
 *	  Reads and writes of remote slots, at once or in two steps.
 *
 * A batch has a part for each donor that carries some of its pages.  The
 * requests of a part go over one connection, and are submitted and waited for
 * together.  Pages that are adjacent both in memory and on the donor are one
 * request.
 *
 * rbp_remote_transfer() uses a single static batch that is not visible outside.
 * Batches of rbp_remote_begin() are malloc'ed.  Each part is in its connection's
 * list (RbpFlight) from when it has been submitted until it has been waited for.
 * Before a connection is closed these parts are finished, so that a part that is
 * waiting always has its connection, and any other part has all the answers that
 * it will ever get.
 *
 * An entry of the extent map may be given to another region between any two
 * reads of it.  So what is learnt about a region is learnt before a second
 * look at the map, and is void if that has changed.  A request that was built
 * before such a change may be sent after it.  If the region has left the
 * lease, the donor refuses the request; if the region has been granted anew,
 * the transport does, since the grant number has changed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bitutils.h"

#include "base/choice.h"
#include "base/geometry.h"
#include "base/guc.h"
#include "base/stats.h"
#include "common/clock.h"
#include "common/status.h"
#include "remote/remote.h"
#include "remote/remote_internal.h"
#include "transport/transport.h"

/* Limit on the batches of a process that are in flight */
#define MAX_OUTSTANDING		256

#define NO_REQUEST			0xff
#define NO_PART				0xff

/* The part of a batch that goes to one donor. */
typedef struct Part
{
	RbpLocalConn *c;
	int			pages;
	int			done;			/* pages transferred, at the end */
	RbpFlight	flight;			/* its requests */
	bool		ready;			/* connected, and submitted without failure */
	uint32		incarnation;	/* of the connection */
	const RbpTransportOps *ops;
} Part;

struct RbpRemoteBatch
{
	RbpRemoteIo *ios;			/* the caller's */
	int			n;
	RbpIoKind	kind;
	bool		patient;
	bool		background;		/* made by rbp_remote_begin() */
	int64		start_ns;
	char	   *bounce;			/* pages as they are sealed; NULL: none yet */
	int			nsealed;		/* of them */
	int			nparts;
	int			nrequests;
	Part		parts[RBP_MAX_BATCH];
	RbpIo		requests[RBP_MAX_BATCH];

	/* indexed like ios */
	uint8		part[RBP_MAX_BATCH];
	uint8		request[RBP_MAX_BATCH];
	uint32		word[RBP_MAX_BATCH];	/* the extent map's word for the slot */
	uint32		number[RBP_MAX_BATCH];	/* the donor's number for the region */
	uint32		grant[RBP_MAX_BATCH];
};

static int	noutstanding = 0;	/* batches in flight */
static void *spare_bounces = NULL;	/* a list: memory of batches that are done */

#define shared		rbp_remote_shared

/*
 * ---- building requests ---------------------------------------------------
 */

/*
 * Assign page i to a part.  Returns the part, or NO_PART with the page's
 * status set if it cannot be sent.
 */
static inline uint8
assign_page(RbpRemoteBatch *batch, int i)
{
	RbpRemoteIo *io = &batch->ios[i];
	uint32		word = slot_word(io->slot);
	RbpRemoteRegion *region;
	RbpLocalConn *c;
	int			p;

	batch->request[i] = NO_REQUEST;

	/*
	 * If the memory is not leased any more, that is final for data with no
	 * other copy; otherwise the page is just not sent.
	 */
	io->status = batch->patient ? RBP_DENIED : RBP_CANCELED;
	if (word == MAP_NONE)
		return NO_PART;
	region = word_region(word);
	c = &rbp_remote_conns[conn_index(region->pool, region->donor)];
	batch->word[i] = word;
	batch->number[i] = region->number;
	batch->grant[i] = region->grant;
	pg_read_barrier();
	/* callers of rbp_remote_transfer() check the deadline themselves */
	if (slot_word(io->slot) != word ||
		pg_atomic_read_u32(&region->denied) != 0 ||
		(batch->background &&
		 (int64) pg_atomic_read_u64(&shared->leases[c->pool].deadline) <= batch->start_ns))
		return NO_PART;
	io->status = RBP_CANCELED;
	if (!batch->patient &&
		(donor_is_down(&shared->donors[c->donor]) || rbp_link_is_held(c->donor, ANY_LINK)))
	{
		if (batch->kind == RBP_IO_READ)
			rbp_stats_count(RBP_COUNT_DONOR_DOWN, 1);
		return NO_PART;
	}
	for (p = 0; p < batch->nparts; p++)
		if (batch->parts[p].c == c)
			break;
	if (p == batch->nparts)
	{
		batch->nparts++;
		batch->parts[p] = (Part)
		{
			.c = c
		};
	}
	batch->parts[p].pages++;
	return (uint8) p;
}

/* Add page i to the part, whose requests are the last ones so far. */
static inline void
add_page(RbpRemoteBatch *batch, Part *part, int i)
{
	uint64		offset = slot_offset(batch->ios[i].slot, batch->word[i]);
	RbpIo	   *io;

	if (part->flight.n > 0)
	{
		/* at most RBP_MAX_BATCH pages, 256 KiB, which any transport takes */
		io = &batch->requests[batch->nrequests - 1];
		if (io->region == batch->number[i] && io->grant == batch->grant[i] &&
			io->offset + io->len == offset &&
			(char *) io->buf + io->len == (char *) batch->ios[i].buf)
		{
			io->len += BLCKSZ;
			batch->request[i] = (uint8) (batch->nrequests - 1);
			return;
		}
	}
	batch->request[i] = (uint8) batch->nrequests;
	part->flight.n++;
	batch->requests[batch->nrequests++] = (RbpIo)
	{
		.kind = batch->kind,.region = batch->number[i],.grant = batch->grant[i],
			.offset = offset,.len = BLCKSZ,.buf = batch->ios[i].buf,.status = RBP_INPROGRESS
	};
}

/* Split the pages into parts and requests. */
static void
build_requests(RbpRemoteBatch *batch)
{
	batch->nparts = 0;
	batch->nrequests = 0;
	batch->nsealed = 0;
	batch->bounce = NULL;
	for (int i = 0; i < batch->n; i++)
		batch->part[i] = assign_page(batch, i);
	for (int p = 0; p < batch->nparts; p++)
	{
		Part	   *part = &batch->parts[p];

		part->flight.ios = &batch->requests[batch->nrequests];
		for (int i = 0; i < batch->n; i++)
			if (batch->part[i] == p)
				add_page(batch, part, i);
	}
}

/*
 * ---- sealing -------------------------------------------------------------
 */

/* This process's sealer, with the key of the pool's lease; NULL if there is none. */
static RbpSealer *
get_sealer(RbpPool pool)
{
	RbpSealer  *s = &rbp_remote_sealers[pool];
	RbpPoolLease *lease = &shared->leases[pool];
	uint32		serial = pg_atomic_read_u32(&lease->serial);
	uint8		key[RBP_SEAL_KEY_LEN];

	if (likely(s->serial == serial))
		return s;

	/*
	 * The serial moves when a new key is complete, and before any region is
	 * used with it.  Halves of two keys are a key that nothing is sealed with
	 * that is found.
	 */
	pg_read_barrier();
	memcpy(key, lease->seal_key, sizeof(key));
	(void) rbp_sealer_set_key(s, key, serial);
	explicit_bzero(key, sizeof(key));
	return s->serial != 0 ? s : NULL;
}

/* Memory for a batch, which is kept when it is done.  NULL if there is none. */
static char *
take_bounce(const RbpRemoteBatch *batch)
{
	void	   *bounce = spare_bounces;

	if (!batch->background)
		return rbp_remote_bounce;
	if (bounce == NULL)
		return malloc(RBP_MAX_BATCH * BLCKSZ);
	memcpy(&spare_bounces, bounce, sizeof(spare_bounces));
	return bounce;
}

static void
put_bounce(const RbpRemoteBatch *batch)
{
	if (!batch->background || batch->bounce == NULL)
		return;
	memcpy(batch->bounce, &spare_bounces, sizeof(spare_bounces));
	spare_bounces = batch->bounce;
}

/* Seal a page behind those that are sealed already; NULL if that fails. */
static char *
seal_page(RbpRemoteBatch *batch, RbpPool pool, const RbpRemoteIo *io)
{
	RbpPoolLease *lease = &shared->leases[pool];
	RbpSealer  *sealer = get_sealer(pool);
	char	   *place;

	if (batch->bounce == NULL)
		batch->bounce = take_bounce(batch);
	if (batch->bounce == NULL || sealer == NULL)
		return NULL;
	place = batch->bounce + batch->nsealed++ * BLCKSZ;
	if (!rbp_seal(sealer, &lease->versions, &rbp_remote_sealed[io->slot], io->slot, io->buf, place))
		return NULL;
	/* with another key versions may have begun anew */
	return sealer->serial == pg_atomic_read_u32(&lease->serial) ? place : NULL;
}

/*
 * Seal the pages that the part writes: nothing else leaves the machine.  Whether a page does
 * is known by the connection that it goes over, and not by what a donor says of
 * itself.  False, with the requests' status set, if a page cannot be sealed.
 */
static bool
seal_part(RbpRemoteBatch *batch, Part *part)
{
	RbpPool		pool = part->c->pool;
	bool		plain = rbp_guc_encrypt != RBP_ENCRYPT_ON &&
	(part->c->ops->local || part->c->conn->same_host);
	int			request = NO_REQUEST;

	if (batch->kind != RBP_IO_WRITE || rbp_guc_encrypt == RBP_ENCRYPT_OFF)
		return true;
	for (int i = 0; i < batch->n; i++)
	{
		const RbpRemoteIo *io = &batch->ios[i];
		char	   *place;

		if (batch->part[i] != part - batch->parts)
			continue;
		if (plain)
		{
			if (slot_is_sealed(pool, io->slot))
				rbp_forget_seal(&rbp_remote_sealed[io->slot]);
			continue;
		}
		place = seal_page(batch, pool, io);
		if (place == NULL)
		{
			rbp_stats_error("could not encrypt a page");
			for (int r = 0; r < part->flight.n; r++)
				part->flight.ios[r].status = RBP_CANCELED;
			return false;
		}
		/* the pages of a request come in order, and after one another */
		if (batch->request[i] != request)
			batch->requests[batch->request[i]].buf = place;
		request = batch->request[i];
	}
	return true;
}

/*
 * Open page i, which was read, in place: also over shared memory this is a copy, which the donor
 * cannot change.  What does not open becomes zeros.  The caller verifies what it
 * gets by the hash of the page that it looks for, and tells by its books whether the slot
 * has that page still; only then the donor is wrong (rbp_remote_wrong_bytes()).
 */
static void
open_page(RbpRemoteBatch *batch, int i)
{
	RbpRemoteIo *io = &batch->ios[i];
	RbpLocalConn *c = batch->parts[batch->part[i]].c;
	RbpSealer  *sealer;

	if (!slot_is_sealed(c->pool, io->slot))
		return;
	if (RBP_INJECTION_POINT("open-shared"))
	{
		RbpIo		again = batch->requests[batch->request[i]];

		again.offset = slot_offset(io->slot, batch->word[i]);
		again.len = BLCKSZ;
		again.buf = io->buf;
		(void) c->ops->submit(c->conn, &again, 1);
		(void) c->ops->wait(c->conn, &again, 1, rbp_now_ns() + rbp_guc_io_timeout_ns());
	}
	sealer = get_sealer(c->pool);
	if (likely(sealer != NULL && rbp_unseal(sealer, &rbp_remote_sealed[io->slot], io->slot, io->buf)))
		return;
	memset(io->buf, 0, BLCKSZ);
	/* the key may be that of another lease already */
	pg_read_barrier();
	if (slot_word(io->slot) != batch->word[i])
		io->status = RBP_DENIED;
}

/*
 * ---- submitting ----------------------------------------------------------
 */

/* Count a failure in the process's counters, unless it was only given up. */
static void
count_failure(const RbpRemoteBatch *batch, RbpStatus status, int64 ns)
{
	if (status != RBP_TIMEOUT)
		rbp_stats_count(RBP_COUNT_IO_ERRORS, 1);
	else if (late_event(batch->patient, ns) != LINK_OTHER)
		rbp_stats_count(RBP_COUNT_TIMEOUTS, 1);
}

/*
 * Get a connection for the part; false, with the requests' status set, if
 * there is none.  A new connection is not begun if other donors have used up
 * the time, since this donor would have no chance.
 */
static bool
connect_part(RbpRemoteBatch *batch, Part *part, int64 deadline_ns, bool others)
{
	RbpLocalConn *c = part->c;
	RbpStatus	status = RBP_CANCELED;

	if (!others || is_ready(c) || rbp_now_ns() < deadline_ns)
		status = rbp_remote_conn_get(c, batch->patient ? USE_PATIENT : USE_NORMAL,
									 batch->start_ns, deadline_ns);
	if (status == RBP_OK)
		return true;
	/* for a write, RBP_CANCELED says that nothing was sent */
	for (int r = 0; r < part->flight.n; r++)
		part->flight.ios[r].status =
			batch->kind == RBP_IO_WRITE && status != RBP_DENIED ? RBP_CANCELED : status;
	if (status != RBP_CANCELED)
		count_failure(batch, status, rbp_now_ns() - batch->start_ns);
	else if (batch->kind == RBP_IO_READ && c->state == CONN_OVER_LIMIT)
		rbp_stats_count(RBP_COUNT_OVER_LIMIT, part->pages);
	return false;
}

/*
 * Account for requests that have failed.  allowed: as for account_part().
 *
 * Over a connection that is lost the requests of which nobody waits for, it is
 * not known how the donor is now.
 */
static void
account_request_failure(const RbpRemoteBatch *batch, const Part *part,
						RbpStatus status, int64 allowed)
{
	RbpLinkEvent event = rbp_link_event(status);

	if (event == LINK_LATE)
		event = late_event(batch->patient, allowed);
	else if (event == LINK_LOST && batch->background && batch->kind == RBP_IO_READ &&
			 !batch->patient && allowed <= 0)
		event = LINK_DROPPED;
	if (event == LINK_OTHER)
		return;
	count_failure(batch, status, allowed);
	(void) rbp_remote_conn_failed(part->c, ON_REQUEST, event, status);
}

/*
 * Mark failed writes that may have been sent.
 *
 * It is unknown how far they came, even if they were flushed with their
 * connection, or could not all be submitted.  RBP_CANCELED is reserved for
 * writes that were never sent.
 */
static void
mark_uncertain_writes(RbpRemoteBatch *batch, const Part *part)
{
	if (batch->kind != RBP_IO_WRITE)
		return;
	for (int r = 0; r < part->flight.n; r++)
		if (part->flight.ios[r].status == RBP_CANCELED)
			part->flight.ios[r].status = RBP_CONNLOST;
}

/* Submit a part's requests; false if that failed, perhaps half-way. */
static bool
submit_part(RbpRemoteBatch *batch, Part *part)
{
	RbpLocalConn *c = part->c;
	RbpIo	   *ios = part->flight.ios;
	RbpStatus	status;

	part->ops = c->ops;
	part->incarnation = c->incarnation;
	if (!seal_part(batch, part))
		return false;
	for (int r = 0; c->mr != NULL && r < part->flight.n; r++)
		if (rbp_remote_is_push_memory(ios[r].buf, ios[r].len))
			ios[r].mr = c->mr;
	status = c->ops->submit(c->conn, ios, part->flight.n);
	if (status != RBP_OK)
	{
		account_request_failure(batch, part, status, 0);
		mark_uncertain_writes(batch, part);
		return false;
	}
	for (int r = 0; r < part->flight.n && !part->flight.waiting; r++)
		part->flight.waiting = ios[r].status == RBP_INPROGRESS;
	if (part->flight.waiting)
		dlist_push_head(&c->flights, &part->flight.node);
	return true;
}

/*
 * Connect and submit.  False if there is nothing to wait for; then the
 * requests have their status.
 */
static bool
submit_batch(RbpRemoteBatch *batch, int64 deadline_ns)
{
	bool		submitted = false;

	rbp_remote_no_other_copy = batch->patient;
	build_requests(batch);

	/* Connecting may wait, so it is done before anything is in flight. */
	for (int p = 0; p < batch->nparts; p++)
		batch->parts[p].ready = connect_part(batch, &batch->parts[p],
											 deadline_ns, p > 0);
	for (int p = 0; p < batch->nparts; p++)
	{
		Part	   *part = &batch->parts[p];

		if (part->ready)
			part->ready = submit_part(batch, part);
		submitted |= part->ready;
	}
	return submitted;
}

/*
 * ---- completing ----------------------------------------------------------
 */

/*
 * Some requests of the part were denied: mark their regions, so that no
 * process tries them again.
 */
static void
mark_denied(RbpRemoteBatch *batch, int p)
{
	for (int i = 0; i < batch->n; i++)
	{
		RbpRemoteRegion *region;

		if (batch->part[i] != p ||
			batch->requests[batch->request[i]].status != RBP_DENIED)
			continue;
		region = word_region(batch->word[i]);
		/* unless the entry has been given to another region or grant */
		if (slot_word(batch->ios[i].slot) == batch->word[i] &&
			region->grant == batch->grant[i])
			pg_atomic_write_u32(&region->denied, 1);
	}
}

/* Is the connection that the part was submitted over still open? */
static inline bool
is_open(const Part *part)
{
	return part->c->state >= CONN_CONNECTING && part->c->incarnation == part->incarnation;
}

/*
 * Account for the answers, with respect to regions, donor and connection.
 *
 * RBP_CANCELED says nothing about these.  allowed: for how many ns the donor
 * could have answered; 0 if nothing was waited for, or if others had used up
 * the time.
 */
static void
account_part(RbpRemoteBatch *batch, int p, int64 allowed)
{
	Part	   *part = &batch->parts[p];
	RbpLocalConn *c = part->c;
	RbpStatus	worst = RBP_OK;
	bool		done = false;
	bool		denied = false;

	for (int r = 0; r < part->flight.n; r++)
	{
		RbpStatus	status = part->flight.ios[r].status;

		if (likely(status == RBP_OK))
			done = true;
		else if (status == RBP_DENIED)
			denied = true;
		else if (status != RBP_CANCELED &&
				 (worst == RBP_OK || status == RBP_CONNLOST))
			worst = status;
	}
	if (denied)
		mark_denied(batch, p);

	/* the failure of a closed connection has been accounted for */
	if (unlikely(!is_open(part)))
	{
		if (denied)
			rbp_remote_recheck_lease(c->pool);
		if (denied || worst != RBP_OK)
			rbp_stats_count(RBP_COUNT_IO_ERRORS, 1);
	}
	else
	{
		if (done && !part->ops->local)
			c->timeouts = 0;
		if (denied)
			account_request_failure(batch, part, RBP_DENIED, allowed);
		else if (done && c->state == CONN_DENIED)
			c->state = CONN_READY;	/* the denied request has not ended it */
		if (worst != RBP_OK)
			account_request_failure(batch, part, worst, allowed);
	}

	/*
	 * An answer that was not waited for does not tell how fast the donor is.
	 * One that was would have counted as late if it were.
	 */
	if (done)
		rbp_link_done(c, part->ops, ON_REQUEST,
					  allowed > 0 || !batch->background ? LINK_DONE : LINK_DONE_UNTIMED,
					  batch->start_ns);
}

/*
 * Make sure that late writes of temporary data do not arrive after their slot
 * has been reused: close a connection that may still have to send them.
 */
static void
settle_writes(RbpRemoteBatch *batch, int p)
{
	Part	   *part = &batch->parts[p];
	bool		late = false;

	if (batch->kind != RBP_IO_WRITE)
		return;
	mark_uncertain_writes(batch, part);
	for (int r = 0; r < part->flight.n; r++)
		late |= part->flight.ios[r].status == RBP_TIMEOUT;
	if (late && part->c->pool == RBP_POOL_TEMP && is_open(part))
		rbp_remote_conn_close(part->c);
}

/* Wait for the requests in flight and set their statuses. */
static void
complete_batch(RbpRemoteBatch *batch, int64 deadline_ns)
{
	rbp_remote_no_other_copy = batch->patient;
	for (int p = 0; p < batch->nparts; p++)
	{
		Part	   *part = &batch->parts[p];
		int64		allowed = 0;

		if (!part->ready)
			continue;
		if (part->flight.waiting)
		{
			int64		now = rbp_now_ns();
			int64		from = batch->background ? now : batch->start_ns;
			int64		until = deadline_ns;

			/*
			 * A write may be only partly sent, and may be the only one of two
			 * copies that arrives.  If other batches have used up the time,
			 * it gets a little of its own.
			 */
			if (batch->background && batch->kind == RBP_IO_WRITE && now >= until)
				until = now + rbp_guc_io_timeout_ns();

			/*
			 * In the background, time counts from here on, since the
			 * transport may not have made progress before.  If others have
			 * used it up, this donor had none.
			 */
			if (batch->background || batch->nparts == 1 || now < until)
				allowed = until - from;
			rbp_remote_conn_wait(part->c, part->flight.ios, part->flight.n, until);
			if (rbp_remote_give_up())
				allowed = Min(allowed, rbp_now_ns() - from);
			part->flight.waiting = false;
			dlist_delete(&part->flight.node);
		}
		account_part(batch, p, allowed);
		settle_writes(batch, p);
	}
}

/* Hand the statuses to the caller and update the donors' counters. */
static void
report_batch(RbpRemoteBatch *batch)
{
	for (int i = 0; i < batch->n; i++)
	{
		if (batch->request[i] == NO_REQUEST)
			continue;
		batch->ios[i].status = batch->requests[batch->request[i]].status;
		if (batch->ios[i].status == RBP_OK && batch->kind == RBP_IO_READ)
			open_page(batch, i);
		if (batch->ios[i].status == RBP_OK)
			batch->parts[batch->part[i]].done++;
	}
	for (int p = 0; p < batch->nparts; p++)
		if (batch->parts[p].done > 0)
			donor_count(&shared->donors[batch->parts[p].c->donor],
						batch->kind == RBP_IO_READ ? RBP_DONOR_READS : RBP_DONOR_WRITES,
						batch->parts[p].done);
	put_bounce(batch);
}

/*
 * ---- at once -------------------------------------------------------------
 */

void
rbp_remote_transfer(RbpRemoteIo *ios, int n, bool write, int64 start_ns, int64 deadline_ns)
{
	/* static since it is large; signal handlers do no page I/O */
	static RbpRemoteBatch batch;

	batch.ios = ios;
	batch.n = n;
	batch.kind = write ? RBP_IO_WRITE : RBP_IO_READ;
	batch.start_ns = start_ns;
	if (submit_batch(&batch, deadline_ns))
		complete_batch(&batch, deadline_ns);
	report_batch(&batch);
}

/*
 * ---- in two steps --------------------------------------------------------
 */

RbpRemoteBatch *
rbp_remote_begin(RbpRemoteIo *ios, int n, bool write, int flags,
				 int64 start_ns, int64 deadline_ns)
{
	RbpRemoteBatch *batch = NULL;

	/* may be called in a critical section: no palloc */
	if (noutstanding < MAX_OUTSTANDING)
		batch = malloc(sizeof(RbpRemoteBatch));
	Assert(n > 0 && n <= RBP_MAX_BATCH);
	if (batch == NULL)
	{
		for (int i = 0; i < n; i++)
			ios[i].status = RBP_NOMEM;
		return NULL;
	}
	batch->ios = ios;
	batch->n = n;
	batch->kind = write ? RBP_IO_WRITE : RBP_IO_READ;
	batch->patient = (flags & RBP_REMOTE_PATIENT) != 0;
	batch->background = true;
	batch->start_ns = start_ns;
	if (!submit_batch(batch, deadline_ns))
	{
		report_batch(batch);
		free(batch);
		return NULL;
	}
	noutstanding++;
	return batch;
}

void
rbp_remote_end(RbpRemoteBatch *batch, int64 deadline_ns)
{
	complete_batch(batch, deadline_ns);
	noutstanding--;
	report_batch(batch);
	free(batch);
}

/*
 * ---- state of a slot -----------------------------------------------------
 */

static inline RbpLocalConn *
region_conn(const RbpRemoteRegion *region)
{
	return &rbp_remote_conns[conn_index(region->pool, region->donor)];
}

/* The region that carries the slot, if it may be used, or NULL. */
static inline RbpRemoteRegion *
usable_region(uint32 slot)
{
	uint32		word = slot_word(slot);
	RbpRemoteRegion *region;

	if (word == MAP_NONE)
		return NULL;
	region = word_region(word);
	return pg_atomic_read_u32(&region->denied) == 0 ? region : NULL;
}

bool
rbp_remote_slot_readable(uint32 slot)
{
	RbpRemoteRegion *region = usable_region(slot);

	return region != NULL &&
		!donor_is_down(&shared->donors[region->donor]) &&
		is_ready(region_conn(region)) &&
		!is_stale(region_conn(region)) &&
		rbp_link_holds[region->donor][ANY_LINK].until == 0;
}

bool
rbp_remote_slot_writable(uint32 slot)
{
	RbpRemoteRegion *region = usable_region(slot);
	RbpLocalConn *c;

	if (region == NULL ||
		donor_is_down(&shared->donors[region->donor]) ||
		rbp_link_is_held(region->donor, ANY_LINK))
		return false;
	c = region_conn(region);
	return c->state >= CONN_CONNECTING || c->retry_at == 0 || c->retry_at <= rbp_now_ns();
}

bool
rbp_remote_slot_stays(uint32 slot)
{
	uint32		word = slot_word(slot);
	RbpRemoteRegion *region = usable_region(slot);
	bool		stays;

	if (region == NULL)
		return false;
	stays = pg_atomic_read_u32(&region->closing) == 0 &&
		rbp_remote_usable(region->pool, rbp_now_ns());
	/* does the region still carry the slot? */
	pg_read_barrier();
	return stays && slot_word(slot) == word;
}

bool
rbp_remote_slot_local(uint32 slot)
{
	RbpRemoteRegion *region = usable_region(slot);

	return region != NULL && is_ready(region_conn(region)) && region_conn(region)->ops->local;
}

bool
rbp_remote_slot_worth(uint32 slot, int fs, RbpWork work, int n)
{
	RbpRemoteRegion *region = usable_region(slot);

	return region == NULL || rbp_compat_is_io_worker() ||
		rbp_choose_connection(fs, rbp_remote_slot_transport(slot), work, n, &region_conn(region)->lost);
}

int
rbp_remote_slot_donor(uint32 slot)
{
	uint32		word = slot_word(slot);

	return word == MAP_NONE ? -1 : word_region(word)->donor;
}

int
rbp_remote_slot_transport(uint32 slot)
{
	uint32		word = slot_word(slot);
	uint32		bit = word == MAP_NONE ? 0 :
	pg_atomic_read_u32(&shared->donors[word_region(word)->donor].transport);

	/* no process has connected yet: any will do */
	return bit == 0 ? 0 : Min(pg_rightmost_one_pos32(bit), RBP_TRANSPORTS - 1);
}

void
rbp_remote_count_bypassed(uint32 slot, int n)
{
	int			donor = rbp_remote_slot_donor(slot);

	if (donor >= 0)
		donor_count(&shared->donors[donor], RBP_DONOR_BYPASSED, n);
}

void
rbp_remote_count_read(uint32 slot, int64 ns, int64 saved_ns)
{
	int			donor = rbp_remote_slot_donor(slot);

	if (donor < 0)
		return;
	if (ns >= 0)
		pg_atomic_fetch_add_u32(&stripe_of(&shared->donors[donor])->latency[rbp_latency_bucket(ns)], 1);
	if (saved_ns != 0)
		donor_count(&shared->donors[donor], RBP_DONOR_SAVED_NS, saved_ns);
}

void
rbp_remote_donor_text(int donor, char *buf, Size len)
{
	const RbpEndpoint *e = donor >= 0 && donor < RBP_MAX_DONORS ? &shared->donors[donor].endpoint : NULL;

	if (e != NULL)
		snprintf(buf, len, "\"%s\" (%s:%u)", e->donor, e->host, e->port);
	else
		strlcpy(buf, "\"unknown\" (unknown)", len);
}

void
rbp_remote_slot_name(uint32 slot, char *buf, Size len)
{
	uint32		word = slot_word(slot);
	RbpRemoteRegion *region;

	if (word == MAP_NONE)
	{
		snprintf(buf, len, "slot %u", slot);
		return;
	}
	region = word_region(word);
	snprintf(buf, len, "slot %u (donor %s, region %u, offset " UINT64_FORMAT ")",
			 slot, shared->donors[region->donor].endpoint.donor,
			 region->number, slot_offset(slot, word));
}
