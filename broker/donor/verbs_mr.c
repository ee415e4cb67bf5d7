/*-------------------------------------------------------------------------
 *
 * verbs_mr.c
 *	  MRs of leased regions: registered for a lease's clients, and
 *	  deregistered when the lease loses the region.
 *
 * An RbpDonorLeaseDomain belongs to one lease on one device: a protection
 * domain, the table that clients read, and an MR for each region of the lease.
 * Queue pairs of the lease's clients are created in that domain, so that an
 * rkey is of no use to clients of other leases, and a region is taken from all
 * clients by deregistering one MR: its rkey is dead when ibv_dereg_mr()
 * returns, without any cooperation of clients.  A client that uses a dead rkey
 * gets a remote access error.
 *
 * Registering an MR takes milliseconds, since memory has to be pinned.  So the
 * table first says PENDING, and the verbs thread registers MRs, one between
 * any two rounds of events.
 *
 * verbs_lock protects the list of domains, and in each of them regions, table,
 * npending and pins; whatever else changes in a domain is used by the verbs
 * thread only.  The list is changed by the verbs thread only, which may
 * therefore read it without the lock.  The lock is only held for moments,
 * never while a device works; so granted() can take it with donor_lock held.
 * No other lock is taken while it is held.
 *
 * Why no rkey outlives a lease.  The owner of a region is the lease that it
 * belongs to; a thread is in a region between donor_region_enter() and
 * donor_region_leave() (see lease.h).  The verbs thread registers MRs for the
 * owner while it is in the region, and stores them in `regions` before it
 * leaves.  The janitor calls revoke_mrs() when the owner is gone and no thread
 * is in the region.  By then all existing MRs have been stored where it looks,
 * and no other can be registered before the region has an owner again, which
 * it gets only after the janitor has made it free.  A domain that is created
 * meanwhile looks for regions of its own lease.  If the verbs thread is just
 * deregistering an MR, because its domain or device goes away, the janitor
 * waits for that (MR_DEREGISTERING).  If a device refuses to deregister an MR,
 * the region's memory is abandoned instead: the client can continue to use
 * pages that nobody else ever uses.
 *
 * Why no late request finds another key valid.  A device may give a key again
 * that it has just got back, and a client's device repeats a request whose
 * acknowledgement is lost, for seconds.  A write could so reach a region that
 * its lease had, lost and got again meanwhile.  Therefore each registration of
 * a region has addresses of its own (address_of()): the device refuses a
 * request with the key of one and the address of another.  32,768
 * registrations of a region pass before one has the same addresses.
 *
 * The janitor pins the domain whose MR it deregisters; until then the domain
 * stays in the list and is not freed.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/common/log.h"
#include "broker/donor/verbs_internal.h"
#include "common/clock.h"
#include "common/limits.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_ALIGN		4096
#define ADDRESS_BITS	48
#define COUNT_MASK		0x7fff

typedef enum RegionMrState
{
	MR_NONE,					/* the region does not belong to the lease */
	MR_PENDING,					/* to be registered */
	MR_REGISTERED,
	MR_DEREGISTERING			/* by some thread */
} RegionMrState;

struct RbpDonorRegionMr
{
	struct ibv_mr *mr;			/* if REGISTERED or DEREGISTERING */
	atomic_int	state;			/* RegionMrState; read without the lock, too */
};

static pthread_mutex_t verbs_lock = PTHREAD_MUTEX_INITIALIZER;

/* An MR has been deregistered, or a domain unpinned */
static pthread_cond_t mr_ended = PTHREAD_COND_INITIALIZER;

/* under verbs_lock, see above */
static LIST_HEAD(DomainList, RbpDonorLeaseDomain) domains = LIST_HEAD_INITIALIZER(domains);

/* used by the verbs thread only */
static uint64_t turn;
static uint32_t registrations[RBP_DONOR_MAX_REGIONS];	/* of each region */

/*
 * The address by which clients know a region: its own, with the number of its
 * registration above the bits that a process's addresses have.
 */
static uint64_t
address_of(uint32_t region, uint32_t count)
{
	uint64_t	base = (uintptr_t) donor_regions[region].base;

	return (base & ((UINT64_C(1) << ADDRESS_BITS) - 1)) |
		(uint64_t) (count & COUNT_MASK) << ADDRESS_BITS;
}

/* count: of earlier registrations, for address_of(). */
static struct ibv_mr *
register_memory(struct ibv_pd *pd, uint32_t region, uint32_t count)
{
	return ibv_reg_mr_iova(pd, donor_regions[region].base, donor_region_size,
						   address_of(region, count),
						   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
						   IBV_ACCESS_REMOTE_WRITE);
}

/*
 * Set a table entry, with verbs_lock held.  Clients may be reading it: each
 * half changes atomically, and they can detect halves that do not belong
 * together.
 */
static void
set_entry(RbpDonorLeaseDomain *domain, uint32_t region, RbpVerbsEntryState state,
		  uint64_t address, uint32_t rkey)
{
	uint8_t		buf[RBP_VERBS_ENTRY_SIZE];
	uint64_t	words[2];

	_Static_assert(sizeof(words) == RBP_VERBS_ENTRY_SIZE, "an entry is two words");
	rbp_wire_put_verbs_entry(buf, state, region, address, rkey);
	memcpy(words, buf, sizeof(words));
	atomic_store(&domain->table[2 * region], words[0]);
	atomic_store(&domain->table[2 * region + 1], words[1]);
}

/*
 * Request an MR for a region, which belongs to the lease during the call.
 * verbs_lock held.
 */
static void
request_mr(RbpDonorLeaseDomain *domain, uint32_t region)
{
	if (domain->regions[region].state != MR_NONE)
		return;
	domain->regions[region].state = MR_PENDING;
	domain->npending++;
	set_entry(domain, region, RBP_VERBS_ENTRY_PENDING, 0, 0);
}

/*
 * Deregister a region's MR, whatever its state.  Called with verbs_lock held,
 * which is released while the device works, and with the domain pinned unless
 * by the verbs thread.
 */
static void
end_mr(RbpDonorLeaseDomain *domain, uint32_t region)
{
	RbpDonorRegionMr *entry = &domain->regions[region];
	int			rc;

	while (entry->state == MR_DEREGISTERING)
		pthread_cond_wait(&mr_ended, &verbs_lock);
	if (entry->state == MR_NONE)
		return;

	set_entry(domain, region, RBP_VERBS_ENTRY_NONE, 0, 0);
	if (entry->state == MR_PENDING)
	{
		domain->npending--;
		entry->state = MR_NONE;
		return;
	}
	entry->state = MR_DEREGISTERING;
	pthread_mutex_unlock(&verbs_lock);
	rc = ibv_dereg_mr(entry->mr);
	if (rc != 0)
	{
		donor_verbs_log_failure(rc, "end the MR of region %u, whose memory is given up now", region);
		atomic_store(&donor_regions[region].exposed, true);
	}
	pthread_mutex_lock(&verbs_lock);
	entry->mr = NULL;
	entry->state = MR_NONE;
	pthread_cond_broadcast(&mr_ended);
}

static void
granted(uint32_t region, RbpDonorLease *lease)
{
	bool		any = false;

	pthread_mutex_lock(&verbs_lock);
	for (RbpDonorLeaseDomain *domain = LIST_FIRST(&domains); domain != NULL; domain = LIST_NEXT(domain, link))
		if (domain->lease == lease)
		{
			request_mr(domain, region);
			any = true;
		}
	pthread_mutex_unlock(&verbs_lock);
	if (any)
		donor_verbs_wake();
}

static void
revoke_mrs(uint32_t region)
{
	pthread_mutex_lock(&verbs_lock);
	for (RbpDonorLeaseDomain *domain = LIST_FIRST(&domains); domain != NULL; domain = LIST_NEXT(domain, link))
	{
		domain->pins++;
		end_mr(domain, region);
		domain->pins--;
		pthread_cond_broadcast(&mr_ended);
	}
	pthread_mutex_unlock(&verbs_lock);
}

const RbpDonorRdma donor_verbs_rdma = {.granted = granted,.revoke = revoke_mrs};

/*
 * Register a pending region.  False if that is not possible now, because the
 * region or the lease is being taken away, or the device cannot.
 */
static bool
register_region(RbpDonorLeaseDomain *domain, uint32_t region)
{
	RbpDonorRegion *r = &donor_regions[region];
	uint32_t	count = registrations[region];
	struct ibv_mr *mr;

	if (!donor_region_enter(r, domain->lease, rbp_boottime_ns()))
		return false;
	mr = register_memory(domain->pd, region, count);
	if (mr != NULL)
	{
		/* still pending: it is not revoked while we are in the region */
		pthread_mutex_lock(&verbs_lock);
		domain->regions[region].mr = mr;
		domain->regions[region].state = MR_REGISTERED;
		domain->npending--;
		set_entry(domain, region, RBP_VERBS_ENTRY_READY, address_of(region, count),
				  mr->rkey);
		registrations[region]++;
		pthread_mutex_unlock(&verbs_lock);
	}
	else
		donor_verbs_log_failure(errno, "register region %u", region);
	donor_region_leave(r);
	return mr != NULL;
}

bool
donor_verbs_register_next(void)
{
	RbpDonorLeaseDomain *next = NULL;

	pthread_mutex_lock(&verbs_lock);
	for (RbpDonorLeaseDomain *domain = LIST_FIRST(&domains); domain != NULL; domain = LIST_NEXT(domain, link))
		if (domain->npending > 0 && !domain->stuck &&
			(next == NULL || domain->last_turn < next->last_turn))
			next = domain;
	pthread_mutex_unlock(&verbs_lock);
	if (next == NULL)
		return false;

	next->last_turn = ++turn;
	for (uint32_t i = 0; i < donor_nregions; i++)
	{
		uint32_t	region = next->cursor;

		next->cursor = (region + 1) % donor_nregions;
		if (next->regions[region].state == MR_PENDING && register_region(next, region))
			return true;
	}
	/* none could be registered: others may have work */
	next->stuck = true;
	return true;
}

/* Free a domain with all its MRs.  It has no working queue pairs any more. */
static void
free_domain(RbpDonorLeaseDomain *domain)
{
	pthread_mutex_lock(&verbs_lock);
	for (uint32_t i = 0; i < donor_nregions; i++)
		end_mr(domain, i);
	while (domain->pins > 0)
		pthread_cond_wait(&mr_ended, &verbs_lock);
	LIST_REMOVE(domain, link);
	pthread_mutex_unlock(&verbs_lock);

	(void) ibv_dereg_mr(domain->table_mr);
	(void) ibv_dealloc_pd(domain->pd);
	donor_lease_unref(domain->lease);
	free(domain->table);
	free(domain->regions);
	free(domain);
}

/*
 * Create a domain, not in the list yet; NULL, with a log message, on failure.
 */
static RbpDonorLeaseDomain *
make_domain(RbpDonorLease *lease, RbpDonorVerbsDevice *device)
{
	size_t		size = (size_t) donor_nregions * RBP_VERBS_ENTRY_SIZE;
	RbpDonorLeaseDomain *domain = calloc(1, sizeof(*domain));

	if (domain == NULL)
	{
		donor_verbs_log_failure(errno, "set up a lease on the device");
		return NULL;
	}
	size = (size + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
	domain->lease = lease;
	domain->device = device;
	domain->regions = calloc(donor_nregions, sizeof(*domain->regions));
	domain->table = aligned_alloc(TABLE_ALIGN, size);
	if (domain->regions != NULL && domain->table != NULL)
	{
		memset((void *) domain->table, 0, size);	/* no region belongs to
													 * the lease */
		domain->pd = ibv_alloc_pd(device->verbs);
	}
	if (domain->pd != NULL)
		domain->table_mr = ibv_reg_mr(domain->pd, (void *) domain->table, size,
									  IBV_ACCESS_REMOTE_READ);
	if (domain->table_mr != NULL)
		return domain;

	donor_verbs_log_failure(errno, "set up a lease on the device");
	if (domain->pd != NULL)
		(void) ibv_dealloc_pd(domain->pd);
	free(domain->table);
	free(domain->regions);
	free(domain);
	return NULL;
}

RbpDonorLeaseDomain *
donor_verbs_get_domain(RbpDonorLease *lease, RbpDonorVerbsDevice *device)
{
	RbpDonorLeaseDomain *domain = LIST_FIRST(&domains);
	bool		known;

	while (domain != NULL && (domain->lease != lease || domain->device != device))
		domain = LIST_NEXT(domain, link);
	known = domain != NULL;
	if (!known && device != NULL)
		domain = make_domain(lease, device);
	if (known || domain == NULL)
	{
		/* only a new domain keeps the reference */
		donor_lease_unref(lease);
		return domain;
	}

	/* from here on we are notified of grants; then look for earlier ones */
	pthread_mutex_lock(&verbs_lock);
	LIST_INSERT_HEAD(&domains, domain, link);
	pthread_mutex_unlock(&verbs_lock);
	for (uint32_t i = 0; i < donor_nregions; i++)
	{
		RbpDonorRegion *region = &donor_regions[i];

		if (atomic_load(&region->owner) != lease ||
			!donor_region_enter(region, lease, rbp_boottime_ns()))
			continue;
		pthread_mutex_lock(&verbs_lock);
		request_mr(domain, i);
		pthread_mutex_unlock(&verbs_lock);
		donor_region_leave(region);
	}
	return domain;
}

void
donor_verbs_free_domains(const RbpDonorVerbsDevice *device)
{
	RbpDonorLeaseDomain *next;

	for (RbpDonorLeaseDomain *domain = LIST_FIRST(&domains); domain != NULL; domain = next)
	{
		next = LIST_NEXT(domain, link);
		if (domain->device == device)
			free_domain(domain);
	}
}

bool
donor_verbs_have_domains(void)
{
	return !LIST_EMPTY(&domains);
}

void
donor_verbs_tick_domains(void)
{
	RbpDonorLeaseDomain *next;

	for (RbpDonorLeaseDomain *domain = LIST_FIRST(&domains); domain != NULL; domain = next)
	{
		next = LIST_NEXT(domain, link);
		domain->stuck = false;
		if (domain->nconns == 0 && atomic_load(&domain->lease->ended))
			free_domain(domain);
	}
}

/*
 * ---- trial ---------------------------------------------------------------
 */

/* A registration of all memory, by several threads */
typedef struct Trial
{
	struct ibv_pd *pd;
	struct ibv_mr **mrs;
	atomic_int	error;			/* errno of the first failure, or 0 */
} Trial;

static bool
try_region(uint32_t region, void *arg)
{
	Trial	   *trial = arg;
	int			none = 0;

	trial->mrs[region] = register_memory(trial->pd, region, 0);
	if (trial->mrs[region] == NULL)
		(void) atomic_compare_exchange_strong(&trial->error, &none, errno);
	return trial->mrs[region] != NULL;
}

static bool
end_trial(uint32_t region, void *arg)
{
	Trial	   *trial = arg;

	if (trial->mrs[region] != NULL)
		(void) ibv_dereg_mr(trial->mrs[region]);
	return true;
}

/* Log a device's limits, and check those that are known to be too low. */
static bool
check_limits(struct ibv_context *verbs, char *reason, size_t len)
{
	const char *name = ibv_get_device_name(verbs->device);
	struct ibv_device_attr attr;
	int			error = ibv_query_device(verbs, &attr);
	char		size[32];

	if (error != 0)
	{
		snprintf(reason, len, "could not query device %s: %s", name, strerror(error));
		return false;
	}
	rbp_format_size(attr.max_mr_size, size, sizeof(size));
	rbp_log(RBP_LOG_INFO, "RDMA: device %s: at most %d MRs (max_mr), of %s each (max_mr_size), %d queue pairs (max_qp), %d reads in flight on each (max_qp_rd_atom)",
			name, attr.max_mr, size, attr.max_qp, attr.max_qp_rd_atom);
	if (donor_region_size > attr.max_mr_size)
		snprintf(reason, len, "device %s registers %s at once (max_mr_size), less than --region-size",
				 name, size);
	else if (attr.max_mr > 0 && donor_nregions > (uint32_t) attr.max_mr)
		snprintf(reason, len, "device %s has %d MRs (max_mr), less than there are regions; use a larger --region-size",
				 name, attr.max_mr);
	else
		return true;
	return false;
}

/*
 * Listening on any address: test only the first device that can be used.  NULL
 * if there is none; *list is for rdma_free_devices().
 */
static struct ibv_context *
first_usable(struct ibv_context ***list, char *reason, size_t len)
{
	*list = rdma_get_devices(NULL);
	snprintf(reason, len, "there is no RDMA device that can be used");
	for (int i = 0; *list != NULL && (*list)[i] != NULL; i++)
		if (donor_verbs_usable((*list)[i], 0, reason, len))
			return (*list)[i];
	return NULL;
}

/*
 * A limit that is too low should be noticed at start-up, not when memory is
 * leased.
 */
bool
donor_verbs_try_registration(struct ibv_context *verbs, char *reason, size_t reason_len)
{
	struct ibv_context **list = NULL;
	Trial		trial = {.mrs = calloc(donor_nregions, sizeof(struct ibv_mr *))};
	char		size[32];
	int64_t		start;
	bool		ok = false;

	if (verbs == NULL)
		verbs = first_usable(&list, reason, reason_len);
	if (trial.mrs == NULL)
		snprintf(reason, reason_len, "out of memory");
	else if (verbs != NULL && check_limits(verbs, reason, reason_len))
	{
		trial.pd = ibv_alloc_pd(verbs);
		start = rbp_now_ns();
		if (trial.pd == NULL)
			atomic_store(&trial.error, errno);
		else
			ok = donor_memory_for_each(try_region, &trial);
		rbp_format_size(donor_nregions * donor_region_size, size, sizeof(size));
		if (ok)
			rbp_log(RBP_LOG_INFO, "RDMA: %s can be registered with device %s, in %.1f ms",
					size, ibv_get_device_name(verbs->device),
					(double) (rbp_now_ns() - start) / 1e6);
		else
		{
			int			error = atomic_load(&trial.error);

			snprintf(reason, reason_len, "could not register %s of memory: %s%s", size,
					 strerror(error), donor_verbs_memory_hint(error));
		}
	}

	if (trial.pd != NULL)
	{
		(void) donor_memory_for_each(end_trial, &trial);
		(void) ibv_dealloc_pd(trial.pd);
	}
	if (list != NULL)
		rdma_free_devices(list);
	free(trial.mrs);
	return ok;
}
