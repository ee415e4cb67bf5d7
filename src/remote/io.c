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
 * rbp_remote_read() and rbp_remote_write() use a single static batch that is
 * not visible outside.  Batches of rbp_remote_begin() are malloc'ed, and are
 * in a list from when something has been submitted until rbp_remote_end() has
 * waited for it; RbpLocalConn.inflight counts the parts in that list for each
 * connection.  Before a connection is closed these parts are finished, so that
 * a part that is waiting always has its connection, and any other part has all
 * the answers that it will ever get.
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

#include <stdlib.h>

#include "lib/ilist.h"
#include "port/pg_bitutils.h"

#include "base/choice.h"
#include "base/geometry.h"
#include "base/guc.h"
#include "base/stats.h"
#include "base/wait.h"
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
	int			ci;				/* the connection */
	int			pages;
	int			done;			/* pages transferred, at the end */
	int			from;			/* first of its requests */
	int			n;
	bool		ready;			/* connected, and submitted without failure */
	bool		waiting;		/* requests are in flight */
	uint32		incarnation;	/* of the connection */
	const RbpTransportOps *ops;
} Part;

struct RbpRemoteBatch
{
	dlist_node	node;			/* in the list */
	RbpRemoteIo *ios;			/* the caller's */
	int			n;
	RbpIoKind	kind;
	bool		patient;
	bool		background;		/* made by rbp_remote_begin() */
	int64		start_ns;
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

/* Does the data of the current batch have no other copy? */
static bool no_other_copy = false;

static dlist_head outstanding = DLIST_STATIC_INIT(outstanding);
static int	noutstanding = 0;

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
	int			donor;
	int			ci;
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
	donor = region->donor;
	batch->word[i] = word;
	batch->number[i] = region->number;
	batch->grant[i] = region->grant;
	ci = conn_index(region->pool, donor);
	pg_read_barrier();
	/* callers of rbp_remote_read() and _write() check the deadline themselves */
	if (slot_word(io->slot) != word ||
		pg_atomic_read_u32(&region->denied) != 0 ||
		(batch->background &&
		 (int64) pg_atomic_read_u64(&shared->leases[conn_pool(ci)].deadline) <= batch->start_ns))
		return NO_PART;
	io->status = RBP_CANCELED;
	if (!batch->patient &&
		(donor_is_down(&shared->donors[donor]) || is_suspect(donor)))
	{
		if (batch->kind == RBP_IO_READ)
			rbp_stats_count(RBP_COUNT_DONOR_DOWN, 1);
		return NO_PART;
	}
	for (p = 0; p < batch->nparts; p++)
		if (batch->parts[p].ci == ci)
			break;
	if (p == batch->nparts)
	{
		batch->nparts++;
		batch->parts[p] = (Part)
		{
			.ci = ci
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

	if (part->n > 0)
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
	part->n++;
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
	for (int i = 0; i < batch->n; i++)
		batch->part[i] = assign_page(batch, i);
	for (int p = 0; p < batch->nparts; p++)
	{
		Part	   *part = &batch->parts[p];

		part->from = batch->nrequests;
		for (int i = 0; i < batch->n; i++)
			if (batch->part[i] == p)
				add_page(batch, part, i);
	}
}

/*
 * A caller's deadline may be shorter than the timeouts of the settings, so a
 * timeout alone proves nothing about the donor.  The donor is late if it had
 * io_timeout.  It is down if a patient batch has waited for a quarter of
 * temp_io_timeout: few wait for all of it, since readers give each try half of
 * the time that is left (rbp_spill_fetch_page()).
 */
static inline bool
is_late(int64 ns)
{
	return ns >= rbp_guc_io_timeout_ns();
}

static inline bool
proves_down(const RbpRemoteBatch *batch, int64 ns)
{
	return batch->patient && ns >= rbp_guc_temp_io_timeout_ns() / 4;
}

/*
 * Data with another copy is not worth waiting for once the query has been
 * interrupted.
 */
bool
rbp_remote_give_up(void)
{
	return rbp_remote_interrupted() &&
		(!no_other_copy || rbp_remote_can_fail_with_eintr());
}

/*
 * ---- submitting ----------------------------------------------------------
 */

/*
 * Get a connection for the part; false, with the requests' status set, if
 * there is none.  A new connection is not begun if other donors have used up
 * the time, since this donor would have no chance.
 */
static bool
connect_part(RbpRemoteBatch *batch, Part *part, int64 deadline_ns, bool others)
{
	RbpLocalConn *c = &rbp_remote_conns[part->ci];
	RbpStatus	status = RBP_CANCELED;
	int64		took;

	if (!others || is_ready(c) || rbp_now_ns() < deadline_ns)
		status = rbp_remote_conn_get(part->ci, part->pages, batch->patient,
									 batch->start_ns, deadline_ns);
	if (status == RBP_OK)
		return true;
	/* for a write, RBP_CANCELED says that nothing was sent */
	for (int r = part->from; r < part->from + part->n; r++)
		batch->requests[r].status =
			batch->kind == RBP_IO_WRITE && status != RBP_DENIED ? RBP_CANCELED : status;
	took = rbp_now_ns() - batch->start_ns;
	if (status != RBP_CANCELED &&
		(status != RBP_TIMEOUT || is_late(took) || proves_down(batch, took)))
		rbp_remote_account_failure(part->ci, status, true, true,
								   proves_down(batch, took));
	else if (batch->kind == RBP_IO_READ && c->state == CONN_OVER_LIMIT)
		rbp_stats_count(RBP_COUNT_OVER_LIMIT, part->pages);
	else if (batch->kind == RBP_IO_READ && c->state == CONN_BELOW_THRESHOLD)
		rbp_stats_count(RBP_COUNT_BELOW_THRESHOLD, part->pages);
	return false;
}

/*
 * Account for requests that have failed, for donor and connection.  allowed: as
 * for account_part().
 */
static void
account_request_failure(const RbpRemoteBatch *batch, const Part *part,
						RbpStatus status, int64 allowed)
{
	bool		awaited = !batch->background || batch->kind != RBP_IO_READ ||
	batch->patient || allowed > 0;

	rbp_remote_account_failure(part->ci, status, false, awaited, proves_down(batch, allowed));
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
	for (int r = part->from; r < part->from + part->n; r++)
		if (batch->requests[r].status == RBP_CANCELED)
			batch->requests[r].status = RBP_CONNLOST;
}

/* Submit a part's requests; false if that failed, perhaps half-way. */
static bool
submit_part(RbpRemoteBatch *batch, Part *part)
{
	RbpLocalConn *c = &rbp_remote_conns[part->ci];
	RbpIo	   *ios = &batch->requests[part->from];
	RbpStatus	status;

	part->ops = c->ops;
	part->incarnation = c->incarnation;
	for (int r = 0; c->mr != NULL && r < part->n; r++)
		if (rbp_remote_is_push_memory(ios[r].buf, ios[r].len))
			ios[r].mr = c->mr;
	status = c->ops->submit(c->conn, ios, part->n);
	if (status != RBP_OK)
	{
		account_request_failure(batch, part, status, 0);
		mark_uncertain_writes(batch, part);
		return false;
	}
	for (int r = 0; r < part->n && !part->waiting; r++)
		part->waiting = ios[r].status == RBP_INPROGRESS;
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

	no_other_copy = batch->patient;
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
	const RbpLocalConn *c = &rbp_remote_conns[part->ci];

	return c->state >= CONN_CONNECTING && c->incarnation == part->incarnation;
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
	RbpLocalConn *c = &rbp_remote_conns[part->ci];
	RbpRemoteDonor *donor = &shared->donors[conn_donor(part->ci)];
	RbpStatus	worst = RBP_OK;
	bool		done = false;
	bool		denied = false;

	for (int r = part->from; r < part->from + part->n; r++)
	{
		RbpStatus	status = batch->requests[r].status;

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
			rbp_remote_recheck_lease(conn_pool(part->ci));
		if (denied || worst != RBP_OK)
			rbp_stats_count(RBP_COUNT_IO_ERRORS, 1);
	}
	else
	{
		if (done && !part->ops->local)
			c->timeouts = 0;
		if (denied)
			rbp_remote_account_failure(part->ci, RBP_DENIED, false, true, false);
		else if (done && c->state == CONN_DENIED)
			c->state = CONN_READY;	/* the denied request has not ended it */
		if (worst != RBP_OK &&
			(worst != RBP_TIMEOUT || is_late(allowed) || proves_down(batch, allowed)))
			account_request_failure(batch, part, worst, allowed);
	}

	if (done && !part->ops->one_sided)
		rbp_breaker_clear_suspicion(&donor->breaker, batch->start_ns);

	/*
	 * An answer that was not waited for does not tell how fast the donor is.
	 * One that was would have counted as late if it were.
	 */
	if (done && (allowed > 0 || !batch->background) && !part->ops->local)
		breaker_reduce_penalty(&donor->breaker);
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
	for (int r = part->from; r < part->from + part->n; r++)
		late |= batch->requests[r].status == RBP_TIMEOUT;
	if (late && conn_pool(part->ci) == RBP_POOL_TEMP && is_open(part))
		rbp_remote_conn_close(part->ci);
}

/* Wait for the requests of a part. */
static void
wait_for_part(RbpRemoteBatch *batch, Part *part, int64 until_ns)
{
	uint32		wait_event =
	rbp_wait_start(conn_pool(part->ci) == RBP_POOL_TEMP ? RBP_WAIT_SPILL :
				   batch->kind == RBP_IO_READ ? RBP_WAIT_READ : RBP_WAIT_WRITE);

	(void) part->ops->wait(rbp_remote_conns[part->ci].conn,
						   &batch->requests[part->from], part->n, until_ns);
	rbp_wait_end(wait_event);
}

/* Wait for the requests in flight and set their statuses. */
static void
complete_batch(RbpRemoteBatch *batch, int64 deadline_ns)
{
	no_other_copy = batch->patient;
	for (int p = 0; p < batch->nparts; p++)
	{
		Part	   *part = &batch->parts[p];
		int64		allowed = 0;

		if (!part->ready)
			continue;
		if (part->waiting)
		{
			RbpLocalConn *c = &rbp_remote_conns[part->ci];
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
			wait_for_part(batch, part, until);
			if (rbp_remote_give_up())
				allowed = Min(allowed, rbp_now_ns() - from);
			part->waiting = false;
			if (batch->background)
				c->inflight--;
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
		if (batch->ios[i].status == RBP_OK)
			batch->parts[batch->part[i]].done++;
	}
	for (int p = 0; p < batch->nparts; p++)
	{
		Part	   *part = &batch->parts[p];
		RbpRemoteDonor *d = &shared->donors[conn_donor(part->ci)];

		if (part->done == 0)
			continue;
		donor_count(d, batch->kind == RBP_IO_READ ? RBP_DONOR_READS : RBP_DONOR_WRITES,
					part->done);

		/* it is unknown when a batch in the background was answered */
		if (batch->kind == RBP_IO_READ && !batch->background)
			pg_atomic_fetch_add_u32(&stripe_of(d)->latency[rbp_latency_bucket(rbp_now_ns() - batch->start_ns)], 1);
	}
}

/*
 * ---- at once -------------------------------------------------------------
 */

static void
transfer(RbpRemoteIo *ios, int n, RbpIoKind kind, int64 start_ns,
		 int64 deadline_ns)
{
	/* static since it is large; signal handlers do no page I/O */
	static RbpRemoteBatch batch;

	batch.ios = ios;
	batch.n = n;
	batch.kind = kind;
	batch.start_ns = start_ns;
	if (submit_batch(&batch, deadline_ns))
		complete_batch(&batch, deadline_ns);
	report_batch(&batch);
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
	for (int p = 0; p < batch->nparts; p++)
		if (batch->parts[p].ready && batch->parts[p].waiting)
			rbp_remote_conns[batch->parts[p].ci].inflight++;
	dlist_push_head(&outstanding, &batch->node);
	noutstanding++;
	return batch;
}

void
rbp_remote_end(RbpRemoteBatch *batch, int64 deadline_ns)
{
	complete_batch(batch, deadline_ns);
	dlist_delete(&batch->node);
	noutstanding--;
	report_batch(batch);
	free(batch);
}

void
rbp_remote_finish_batches(int ci, int64 until_ns)
{
	RbpLocalConn *c = &rbp_remote_conns[ci];

	dlist_iter	iter;

	dlist_foreach(iter, &outstanding)
	{
		RbpRemoteBatch *batch = dlist_container(RbpRemoteBatch, node, iter.cur);

		for (int p = 0; p < batch->nparts; p++)
		{
			Part	   *part = &batch->parts[p];

			if (part->ci != ci || !part->waiting)
				continue;
			wait_for_part(batch, part, until_ns);
			for (int r = part->from; r < part->from + part->n; r++)
				if (batch->requests[r].status == RBP_TIMEOUT)
					batch->requests[r].status = RBP_CONNLOST;
			part->waiting = false;
			c->inflight--;
		}
	}
	Assert(c->inflight == 0);
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
		!is_stale(conn_index(region->pool, region->donor)) &&
		rbp_remote_suspect_since[region->donor] == 0;
}

bool
rbp_remote_slot_writable(uint32 slot)
{
	RbpRemoteRegion *region = usable_region(slot);
	RbpLocalConn *c;

	if (region == NULL ||
		donor_is_down(&shared->donors[region->donor]) ||
		is_suspect(region->donor))
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
rbp_remote_count_saved(uint32 slot, int64 ns)
{
	int			donor = rbp_remote_slot_donor(slot);

	if (donor >= 0 && ns != 0)
		donor_count(&shared->donors[donor], RBP_DONOR_SAVED_NS, ns);
}

void
rbp_remote_donor_name(int donor, char *buf, Size len)
{
	if (donor >= 0 && donor < RBP_MAX_DONORS)
		strlcpy(buf, shared->donors[donor].endpoint.donor, len);
	else
		strlcpy(buf, "unknown", len);
}

void
rbp_remote_donor_address(int donor, char *buf, Size len)
{
	if (donor >= 0 && donor < RBP_MAX_DONORS)
		snprintf(buf, len, "%s:%u", shared->donors[donor].endpoint.host,
				 shared->donors[donor].endpoint.port);
	else
		strlcpy(buf, "unknown", len);
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
