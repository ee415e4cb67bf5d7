/*-------------------------------------------------------------------------
 *
 * rbp_remote.c
 *	  Remote slots: which region of which donor carries a slot; reads and
 *	  writes of slots; the lease.
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
 * A region whose use was denied is marked, so that nobody tries it again,
 * and the lease worker is told to ask the broker.  When it enters a region,
 * also one that it had before, it gives it another grant number: what a
 * transport remembers of the region (a key, a mapping) is of no use then.
 *
 * rbp_remote_conn.c has the connections, rbp_remote_health.c the donors'
 * health.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"

#include "rbp_directory.h"
#include "rbp_guc.h"
#include "rbp_mutation.h"
#include "rbp_pusher.h"
#include "rbp_remote_internal.h"

#define EXTENT_BYTES		(RBP_EXTENT_PAGES * (uint64) BLCKSZ)

/* An extent's place: region index + 1 in the high half; 0 is none. */
#define MAP_NONE			0
#define MAP_MAKE(region, ext)	((((uint32) (region) + 1) << 16) | (uint32) (ext))
#define MAP_REGION(word)	((int) ((word) >> 16) - 1)
#define MAP_EXTENT(word)	((word) & 0xffff)

RemoteShared *rbp_remote_shared = NULL;

#define shared		rbp_remote_shared

static RbpDirectory *directory = NULL;
static void (*before_use) (void) = NULL;

/*
 * ---- set-up -------------------------------------------------------------
 */

/* The size of RemoteShared; the connections' shared memory comes after it. */
static Size
map_end(uint32 max_slots)
{
	return add_size(offsetof(RemoteShared, map),
					mul_size(sizeof(pg_atomic_uint32),
							 max_slots / RBP_EXTENT_PAGES));
}

Size
rbp_remote_shmem_size(uint32 max_slots)
{
	return add_size(map_end(max_slots), rbp_remote_conn_shmem_size());
}

static void
reset_donor_stats(Donor *d)
{
	for (int s = 0; s < RBP_DONOR_STRIPES; s++)
	{
		pg_atomic_init_u64(&d->stripes[s].reads, 0);
		pg_atomic_init_u64(&d->stripes[s].writes, 0);
		pg_atomic_init_u64(&d->stripes[s].failures, 0);
		pg_atomic_init_u64(&d->stripes[s].timeouts, 0);
		for (int b = 0; b < RBP_LATENCY_BUCKETS; b++)
			pg_atomic_init_u32(&d->stripes[s].latency[b], 0);
	}
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
	memset(sh, 0, map_end(max_slots));
	LWLockInitialize(&sh->remote_lock, tranche);
	pg_atomic_init_u32(&sh->lease_serial, 1);
	pg_atomic_init_u32(&sh->stale, 0);
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
		rbp_remote_conn_reset_donor(&sh->donors[i]);
		rbp_remote_health_reset(&sh->donors[i]);
		reset_donor_stats(&sh->donors[i]);
	}
	for (int i = 0; i < RBP_MAX_REGIONS; i++)
		pg_atomic_init_u32(&sh->regions[i].denied, 0);
	for (uint32 e = 0; e < sh->nextents; e++)
		pg_atomic_init_u32(&sh->map[e], MAP_NONE);
	rbp_remote_conn_shmem_init((char *) mem + map_end(max_slots));
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

/*
 * A connection for the batch; false, with the requests' status, if none.  If
 * others have used up the time, one that is not there is not begun: this donor
 * would have had no chance.
 */
static bool
connect_batch(DonorBatch *batch, RbpIoKind kind, int64 start_ns,
			  int64 deadline_ns, bool others)
{
	RbpStatus	status = RBP_CANCELED;

	batch->conn = &rbp_remote_conns[batch->donor];
	if (!others || batch->conn->ready || rbp_now_ns() < deadline_ns)
		status = rbp_remote_conn_get(batch->donor, batch->n, start_ns,
									 deadline_ns, &batch->conn);
	if (status == RBP_OK)
		return true;
	for (int i = 0; i < batch->n; i++)
		batch->ios[i].status = status;
	if (status != RBP_CANCELED)
		rbp_remote_account_failure(batch->donor, status, true);
	else if (kind == RBP_IO_READ && batch->conn->over_limit)
		rbp_stats_count(RBP_COUNT_OVER_LIMIT, batch->n);
	else if (kind == RBP_IO_READ && batch->conn->below_threshold)
		rbp_stats_count(RBP_COUNT_BELOW_THRESHOLD, batch->n);
	return false;
}

/* Start a donor's batch on its way. */
static bool
post_batch(DonorBatch *batch)
{
	LocalConn  *c = batch->conn;
	RbpStatus	status;

	for (int i = 0; c->mr != NULL && i < batch->n; i++)
		if (rbp_remote_is_push_memory(batch->ios[i].buf, batch->ios[i].len))
			batch->ios[i].mr = c->mr;
	status = c->ops->submit(c->conn, batch->ios, batch->n);
	if (status != RBP_OK)
		rbp_remote_account_failure(batch->donor, status, false);
	return status == RBP_OK;
}

/*
 * Wait for a donor's batch, and see what the answers say about regions,
 * donor and connection.  Those that are RBP_CANCELED say nothing.
 */
static void
finish_batch(DonorBatch *batch, int64 deadline_ns, bool late)
{
	LocalConn  *c = batch->conn;
	RbpStatus	worst = RBP_OK;
	bool		done = false;
	bool		denied = false;

	(void) c->ops->wait(c->conn, batch->ios, batch->n, deadline_ns);
	for (int i = 0; i < batch->n; i++)
	{
		RbpStatus	status = batch->ios[i].status;

		if (likely(status == RBP_OK))
			done = true;
		else if (status == RBP_DENIED)
		{
			uint32		word = batch->word[i];
			Region	   *region = &shared->regions[MAP_REGION(word)];

			/* unless the place belongs to another region, or grant, by now */
			if (slot_word(batch->slot[i]) == word &&
				region->grant == batch->ios[i].grant)
				pg_atomic_write_u32(&region->denied, 1);
			denied = true;
		}
		else if (status != RBP_CANCELED &&
				 (worst == RBP_OK || status == RBP_CONNLOST))
			worst = status;
	}
	if (done && !c->ops->local)
		c->timeouts = 0;
	if (denied)
		rbp_remote_account_failure(batch->donor, RBP_DENIED, false);
	else if (done)
		c->denied = false;		/* what was denied has not ended it */

	/* If others have used the time up, this donor had no chance. */
	if (worst != RBP_OK && !(late && worst == RBP_TIMEOUT))
		rbp_remote_account_failure(batch->donor, worst, false);
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
		Donor	   *donor;
		DonorBatch *batch;
		RbpIo	   *io;
		int			b;

		ios[i].status = RBP_CANCELED;
		if (word == MAP_NONE)
			continue;
		region = &shared->regions[MAP_REGION(word)];
		if (pg_atomic_read_u32(&region->denied) != 0)
			continue;
		donor = &shared->donors[region->donor];
		if (pg_atomic_read_u32(&donor->avoided) != 0 ||
			in_doubt(donor, &rbp_remote_conns[region->donor]))
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
		io->grant = region->grant;
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
		batches[b].posted = connect_batch(&batches[b], kind, start_ns,
										  deadline_ns, b > 0);
	for (int b = 0; b < nbatches; b++)
		if (batches[b].posted)
			batches[b].posted = post_batch(&batches[b]);
	for (int b = 0; b < nbatches; b++)
	{
		DonorBatch *batch = &batches[b];
		Donor	   *donor = &shared->donors[batch->donor];
		DonorStripe *stripe = stripe_of(donor);
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
				donor_answered(donor);
			if (!batch->conn->ops->local)
				donor_in_time(donor);
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
	LocalConn  *c;

	if (word == MAP_NONE)
		return false;
	region = &shared->regions[MAP_REGION(word)];
	c = &rbp_remote_conns[region->donor];
	return pg_atomic_read_u32(&region->denied) == 0 &&
		pg_atomic_read_u32(&shared->donors[region->donor].avoided) == 0 &&
		c->ready && c->doubt_since == 0;
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

	for (r = 0; r < RBP_MAX_REGIONS && shared->regions[r].used; r++)
		 /* look on */ ;
	if (r == RBP_MAX_REGIONS || grant->bytes < EXTENT_BYTES ||
		grant->bytes / EXTENT_BYTES > 0xffff)
		return -1;
	region = &shared->regions[r];
	region->used = true;
	region->donor = (uint16) donor;
	region->number = grant->region;
	region->bytes = grant->bytes;
	region->extents = 0;
	region->grant = ++shared->last_grant;
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
			pg_atomic_write_u32(&d->troubles, 0);
			rbp_remote_conn_new_endpoint(d);
			rbp_remote_unavoid(d);
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
	bool		was_known[RBP_MAX_DONORS];
	int			unused = 0;
	int		   *entered = palloc(sizeof(int) * (nregions + 1));
	int			nentered = 0;

	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	same = shared->has_lease &&
		memcmp(&shared->credentials, cred, sizeof(*cred)) == 0;
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
		if (shared->regions[r].used &&
			(!same || pg_atomic_read_u32(&shared->regions[r].denied) != 0 ||
			 !region_is_granted(&shared->regions[r], regions, nregions)))
			retire_region(r);
	if (!same)
	{
		shared->credentials = *cred;
		shared->has_lease = true;
		(void) rbp_remote_conns_stale(&shared->lease_serial);

		/* what was denied, or lost, may have been the old lease's */
		for (int i = 0; i < RBP_MAX_DONORS; i++)
		{
			pg_atomic_write_u64(&shared->donors[i].refused_until, 0);
			pg_atomic_write_u64(&shared->donors[i].probe_at, 0);
		}
	}

	for (int i = 0; i < RBP_MAX_DONORS; i++)
	{
		was_known[i] = shared->donors[i].known;
		shared->donors[i].known = shared->donors[i].nregions > 0;
	}
	for (int i = 0; i < ndonors; i++)
		(void) donor_place(&donors[i]);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
		if (was_known[i] && !shared->donors[i].known)
			(void) rbp_remote_conns_stale(&shared->donors[i].serial);

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
		for (int r = 0; donor >= 0 && r < RBP_MAX_REGIONS && !have; r++)
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
	rbp_pusher_wake();
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
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
		if (shared->regions[r].used)
			retire_region(r);
	memset(&shared->credentials, 0, sizeof(shared->credentials));
	shared->has_lease = false;
	(void) rbp_remote_conns_stale(&shared->lease_serial);
	for (int i = 0; i < RBP_MAX_DONORS; i++)
		shared->donors[i].known = false;
	LWLockRelease(&shared->remote_lock);
	rbp_pusher_wake();
}

/* Sum of fn over the extents of each region, into sums[RBP_MAX_REGIONS]. */
static void
sum_regions(uint64 *sums, uint64 (*fn) (uint32 extent))
{
	memset(sums, 0, sizeof(uint64) * RBP_MAX_REGIONS);
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
	uint64	   *heat = palloc(sizeof(uint64) * RBP_MAX_REGIONS);
	int			n = 0;

	/* Nobody but the lease worker, that is us, changes the map. */
	sum_regions(heat, extent_heat);
	LWLockAcquire(&shared->remote_lock, LW_EXCLUSIVE);
	while (n < count && n < max)
	{
		int			coldest = -1;

		for (int r = 0; r < RBP_MAX_REGIONS; r++)
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

RbpDonorInfo *
rbp_remote_donor_info(int *n)
{
	RbpDonorInfo *infos = palloc0(sizeof(RbpDonorInfo) * RBP_MAX_DONORS);
	uint64	   *used = palloc(sizeof(uint64) * RBP_MAX_REGIONS);

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
		info->transport = rbp_remote_transport_name(pg_atomic_read_u32(&d->transport));
		info->state = !d->known ? "gone" :
			pg_atomic_read_u32(&d->avoided) != 0 ? "avoided" : "ok";
		info->connections = (int) pg_atomic_read_u32(&d->places);
		for (int r = 0; r < RBP_MAX_REGIONS; r++)
			if (shared->regions[r].used && shared->regions[r].donor == i)
			{
				info->leased_bytes += shared->regions[r].bytes;
				info->used_bytes += used[r] * BLCKSZ;
			}
		for (int s = 0; s < RBP_DONOR_STRIPES; s++)
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
	RbpLeaseInfo *infos = palloc0(sizeof(RbpLeaseInfo) * RBP_MAX_REGIONS);
	uint64	   *used = palloc(sizeof(uint64) * RBP_MAX_REGIONS);
	uint64	   *heat = palloc(sizeof(uint64) * RBP_MAX_REGIONS);
	int64		now = rbp_now_ns();

	sum_regions(used, extent_used);
	sum_regions(heat, extent_heat);
	*n = 0;
	LWLockAcquire(&shared->remote_lock, LW_SHARED);
	for (int r = 0; r < RBP_MAX_REGIONS; r++)
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
