/*-------------------------------------------------------------------------
 *
 * apply.c
 *	  Using what the broker says about a lease, and retiring regions.
 *
 * The regions of a granted or renewed lease are put to use (adopt).  Regions
 * that donors ask for, that the settings do not want, or that do not fit are
 * retired, and reported to the broker with the next renewal.
 *
 * Locks: none here; remote takes its own.  An RbpHeldLease belongs to the
 * lease worker's process.  worker.c has the order of things.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/guc.h"
#include "common/clock.h"
#include "common/text.h"
#include "lease/broker.h"
#include "lease/lease_internal.h"
#include "lease/names.h"
#include "lease/plan.h"
#include "remote/remote.h"
#include "transport/transport.h"

/* How long not to ask for more memory after some did not fit */
#define REQUEST_MAX_NS		(30000 * NANOS_PER_MS)

/* Between two steps of moving temporary data out of regions */
#define RETIRE_PAUSE_NS		(50 * NANOS_PER_MS)

uint64
rbp_lease_wanted(RbpHeldLease *h)
{
	uint64		bytes = h->pool == RBP_POOL_TEMP ?
	(uint64) rbp_guc_temp_tier_size << 20 :
	(uint64) rbp_guc_tier_size_wanted() << 20;

	if (h->broker != rbp_lease_current_broker || rbp_lease_current_broker->url[0] == '\0' ||
		(h->in_use && rbp_remote_key_used_up(h->pool)))
		return 0;

	if (bytes != h->request_max_setting)
	{
		h->request_max_setting = bytes;
		h->request_max = PG_UINT64_MAX;
	}

	/*
	 * What did not fit may fit later, when slots of temporary data that was
	 * lost have become free, or the broker grants other regions.
	 */
	return rbp_now_ns() < h->request_max_until ? Min(bytes, h->request_max) : bytes;
}

uint64
rbp_lease_wanted_max(const RbpHeldLease *h)
{
	return (uint64) (h->pool == RBP_POOL_TEMP ? rbp_guc_temp_tier_max_size :
					 rbp_guc_buffer_tier_max_size) << 20;
}

uint64
rbp_lease_ahead(const RbpHeldLease *h)
{
	/* nothing more while something does not fit */
	if (h->pool == RBP_POOL_TEMP || rbp_now_ns() < h->request_max_until)
		return 0;
	return Min(rbp_lease_asked_back(h->lease), (uint64) rbp_guc_tier_size_ahead() << 20);
}

RbpRegionGrant *
rbp_lease_regions_in_use(const char *lease, int *n)
{
	int			ninfos;
	RbpLeaseInfo *infos = rbp_remote_lease_info(&ninfos);
	RbpRegionGrant *regions = palloc0(sizeof(RbpRegionGrant) * (ninfos + 1));

	*n = 0;
	for (int i = 0; i < ninfos; i++)
	{
		if (strcmp(infos[i].lease, lease) == 0)
			regions[(*n)++] = infos[i].grant;
	}
	pfree(infos);
	qsort(regions, *n, sizeof(RbpRegionGrant), rbp_region_compare);
	return regions;
}

void
rbp_lease_log_losses(RbpHeldLease *h, const RbpLease *fresh)
{
	RbpLeaseInfo *infos;
	uint64		bytes = 0;
	int			ninfos;
	int			lost = 0;

	if (h->pool != RBP_POOL_TEMP || h->lease == NULL || !h->in_use)
		return;
	infos = rbp_remote_lease_info(&ninfos);
	for (int i = 0; i < ninfos; i++)
	{
		const RbpRegionGrant *region = &infos[i].grant;

		if (infos[i].pool != h->pool || infos[i].used_bytes == 0)
			continue;

		/*
		 * A region that its donor has denied comes into use as a new one, and
		 * loses its content, even if the broker still lists it.
		 */
		if (fresh != NULL && rbp_lease_find_region(fresh, region) != NULL && !infos[i].denied &&
			!rbp_lease_lost_content(h->lease, fresh, region))
			continue;
		bytes += infos[i].used_bytes;
		lost++;
	}
	if (lost > 0)
		ereport(LOG,
				(errmsg("remote_bp: %llu kB of temporary data are lost with %d region%s",
						(unsigned long long) (bytes >> 10), lost, RBP_PLURAL(lost)),
				 errdetail("Queries that need this data fail, unless there is a second copy.")));
}

void
rbp_lease_stop_use(RbpHeldLease *h)
{
	rbp_remote_clear_lease(h->pool);
	h->in_use = false;
	h->lapsed = false;
	h->changes_secret = false;
	h->recheck = false;
	h->draining = 0;
	h->has_drained = false;
	h->drain_obsolete = false;
	h->retire_due = NEVER_NS;
	h->replace_until = 0;
	h->reported_bytes = 0;
}

void
rbp_lease_drop(RbpHeldLease *h)
{
	rbp_lease_stop_use(h);
	rbp_lease_free(h->lease);
	h->lease = NULL;
	free(h->released);
	h->released = NULL;
	h->nreleased = 0;
	h->close_deadline = 0;
}

/*
 * Remove regions from the lease, and add them to those to be reported as
 * released.
 */
static void
note_released(RbpHeldLease *h, const RbpRegionGrant *given, int n)
{
	RbpRegionGrant *grown;

	if (n <= 0)
		return;
	grown = realloc(h->released, sizeof(RbpRegionGrant) * (h->nreleased + n));
	if (grown == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	h->released = grown;
	memcpy(h->released + h->nreleased, given, sizeof(RbpRegionGrant) * n);
	rbp_lease_remove_regions(h->lease, given, n);
	h->nreleased += n;
}

/*
 * Retire the coldest regions, of one donor or of any (NULL), moving their
 * content until then.  Returns how many were retired.
 */
static int
retire(RbpHeldLease *h, const char *donor, int count, int64 until, int64 move_ns)
{
	RbpRegionGrant *given;
	RbpRetired	retired;

	count = Min(count, h->lease->nregions);
	given = palloc0(sizeof(RbpRegionGrant) * (count + 1));
	retired = rbp_remote_retire_coldest(h->pool, donor, count, given, until, move_ns);
	note_released(h, given, retired.given);
	pfree(given);
	h->draining += retired.draining;
	h->has_drained |= retired.draining > 0;
	return retired.given;
}

/*
 * Do regions that donors ask for wait for their replacements?  For half of the
 * grace time that is left since the last replacement came, and not if the lease
 * lacks memory from the beginning, since there is none then.  Temporary data does
 * not wait: it goes to disk if there is no other room, and that takes its time.
 */
static bool
awaits_replacements(RbpHeldLease *h, const RbpLeaseReclaim *demands, int ndemands, int replaced)
{
	int64		now = rbp_now_ns();
	int64		patience = NEVER_NS;

	if (h->pool == RBP_POOL_TEMP || ndemands == 0 || demands[0].donor[0] == '\0')
		return false;
	for (int i = 0; i < ndemands; i++)
		patience = Min(patience, rbp_lease_move_time(&demands[i]));
	if (h->replace_until == 0)
	{
		h->replace_until = h->lease->bytes >= rbp_lease_wanted(h) ? now + patience : now;
		h->request_due = 0;
	}
	else if (replaced > 0 && now < h->replace_until)
		h->replace_until = now + patience;
	return now < h->replace_until;
}

/*
 * How many regions have been replaced, and can be emptied.  If all is there that
 * may come ahead, and it is less than a region, that has to do.
 */
static int
replaced_regions(RbpHeldLease *h)
{
	uint64		wanted = rbp_lease_wanted(h);
	uint64		ahead = rbp_lease_ahead(h);
	int			replaced = rbp_lease_surplus(h->lease, wanted);

	if (h->maintenance_pending)
		return 0;
	return replaced == 0 && ahead > 0 && h->lease->bytes >= wanted + ahead ? 1 : replaced;
}

/*
 * Log what was given back, when nothing more is being emptied for it or another
 * donor is next: a drain may take many steps.
 */
static void
log_given_back(RbpHeldLease *h, const char *donor, int n)
{
	bool		same = donor != NULL && strcmp(h->given_to, donor) == 0;

	if (h->given_back > 0 && !same && (donor != NULL || h->draining == 0))
	{
		ereport(LOG,
				(errmsg("remote_bp: gave %d region%s of donor \"%s\" back%s, as the broker asked",
						h->given_back, RBP_PLURAL(h->given_back), h->given_to, h->suffix),
				 errdetail("The donor wants memory back, or other leases have less than their share.")));
		h->given_back = 0;
	}
	h->given_back += n;
	if (donor != NULL)
		strlcpy(h->given_to, donor, sizeof(h->given_to));
}

int
rbp_lease_retire_regions(RbpHeldLease *h, int64 until)
{
	RbpLeaseReclaim *demands;
	int			ndemands;
	int			wanted = 0;
	int			total = 0;
	int			done = 0;
	int			replaced;
	bool		waits;

	h->retire_due = NEVER_NS;
	if (h->lease == NULL || !h->in_use)
		return 0;
	demands = palloc(sizeof(RbpLeaseReclaim) * (h->lease->nreclaims + 1));
	ndemands = rbp_lease_demands(h->lease, rbp_lease_wanted(h), demands);
	for (int i = 0; i < ndemands; i++)
		wanted += demands[i].regions;

	/*
	 * If there is less to retire than is draining, or for other demands,
	 * cancel all draining, as retiring no region does.  Then choose again.
	 */
	if (h->has_drained && (ndemands == 0 || wanted < h->draining || h->drain_obsolete))
	{
		retire(h, NULL, 0, until, 0);
		h->has_drained = false;
	}
	h->drain_obsolete = false;
	h->draining = 0;
	replaced = replaced_regions(h);
	waits = awaits_replacements(h, demands, ndemands, replaced);

	/*
	 * Take turns, since moving data for one demand can take all of the time.
	 * But while regions are being replaced, serve one donor after the other:
	 * go on with the one that was given regions last.
	 */
	h->first_demand = waits ? 0 : h->first_demand + 1;
	for (int i = 0; waits && i < ndemands; i++)
	{
		if (strcmp(demands[i].donor, h->given_to) == 0)
			h->first_demand = (uint32) i;
	}
	for (; done < ndemands && (done == 0 || rbp_now_ns() < until); done++)
	{
		const RbpLeaseReclaim *demand = &demands[(h->first_demand + (uint32) done) % (uint32) ndemands];
		const char *donor = demand->donor[0] != '\0' ? demand->donor : NULL;
		int			count = waits ? Min(demand->regions, demand->shared + replaced) : demand->regions;
		int			n = retire(h, donor, count, until, rbp_lease_move_time(demand));

		replaced -= Max(count - demand->shared, 0);
		h->draining += demand->regions - count;
		if (n > 0 && donor != NULL)
		{
			rbp_lease_reclaimed(h->lease, donor, n);
			log_given_back(h, donor, n);
		}
		total += n;
	}
	log_given_back(h, NULL, 0);
	if (h->draining > 0 || done < ndemands)
		h->retire_due = rbp_now_ns() + RETIRE_PAUSE_NS;
	if (ndemands == 0)
		h->replace_until = 0;
	return total;
}

/*
 * Release regions of the lease that did not fit, and request no more than what
 * fits.
 */
void
rbp_lease_release_unused(RbpHeldLease *h)
{
	RbpLease   *lease = h->lease;
	RbpRegionGrant *unused = palloc0(sizeof(RbpRegionGrant) * (lease->nregions + 1));
	int			nused;
	RbpRegionGrant *used = rbp_lease_regions_in_use(lease->cred.lease, &nused);
	uint64		kept = 0;
	int			n = 0;
	int			beyond = 0;

	for (int i = 0; i < lease->nregions; i++)
	{
		const RbpRegionGrant *r = &lease->regions[i];

		if (bsearch(r, used, nused, sizeof(RbpRegionGrant), rbp_region_compare) != NULL)
			kept += r->bytes;
		else
		{
			unused[n++] = *r;
			if (!rbp_remote_donor_entered(r->donor))
				beyond++;
		}
	}
	if (n == 0)
		return;
	note_released(h, unused, n);
	/* the next attempts may go the same way */
	if (kept != h->request_max && beyond > 0)
		ereport(LOG,
				(errmsg("remote_bp: %d leased region%s given back, because a server uses at most %d donors",
						beyond, beyond == 1 ? " is" : "s are", RBP_MAX_DONORS)));
	n -= beyond;
	if (kept != h->request_max && n > 0)
		ereport(LOG,
				(errmsg("remote_bp: %d leased region%s given back, beyond what %s allows",
						n, n == 1 ? " is" : "s are", h->max_setting)));
	h->request_max = kept;
	h->request_max_until = rbp_now_ns() + REQUEST_MAX_NS;
}

/*
 * Log a changed size of the lease; if it shrinks step by step, only the final
 * one.
 */
static void
log_size(RbpHeldLease *h, bool is_new)
{
	const RbpLease *lease = h->lease;

	if (!is_new && (lease->bytes == h->reported_bytes || h->draining > 0 ||
					h->close_deadline != 0))
		return;
	ereport(LOG,
			(errmsg("remote_bp: %s %llu MB of %llu MB wanted%s, in %d region%s on %d donor%s",
					is_new ? "leased" : "the lease now has",
					(unsigned long long) (lease->bytes >> 20),
					(unsigned long long) (rbp_lease_wanted(h) >> 20),
					h->suffix, lease->nregions, RBP_PLURAL(lease->nregions),
					lease->ndonors, RBP_PLURAL(lease->ndonors))));
	h->reported_bytes = lease->bytes;
}

/* Log, once, that another server has the same client name. */
static void
log_namesakes(RbpHeldLease *h, const RbpLease *fresh)
{
	if (fresh->namesakes > 0 && !h->namesake_logged)
		ereport(LOG,
				(errmsg("remote_bp: another server holds a lease%s under the name \"%s\" of this one",
						h->suffix, rbp_lease_client),
				 errdetail("The broker distinguishes them, and both keep their memory."),
				 errhint("If this machine is a clone, give it its own machine ID and host name. If it was just restarted, the other lease is its own earlier one, and will expire.")));
	h->namesake_logged = fresh->namesakes > 0;
}

/*
 * A donor that was restarted has lost the content of its regions, and the broker may
 * have granted them again under the same numbers, as regions that it has taken.  Those
 * that have not lost it: palloc'ed, and how many.
 */
static RbpRegionGrant *
with_content(const RbpHeldLease *h, const RbpLease *fresh, int *n)
{
	RbpRegionGrant *kept = palloc(sizeof(RbpRegionGrant) * (fresh->nregions + 1));

	*n = 0;
	for (int i = 0; i < fresh->nregions; i++)
	{
		if (!rbp_lease_lost_content(h->lease, fresh, &fresh->regions[i]))
			kept[(*n)++] = fresh->regions[i];
	}
	return kept;
}

/*
 * Put the lease that the broker described to use.  Takes ownership of fresh.
 *
 * If a recheck was requested, shared memory is updated even if nothing seems
 * to have changed: a region may have been lost and granted again.  Regions
 * that have lost their content are taken out of use in between.
 */
RbpLeaseOutcome
rbp_lease_adopt(RbpHeldLease *h, RbpLease *fresh, int64 sent_ns)
{
	RbpLease   *known = h->lease;
	bool		is_new = known == NULL;
	bool		unchanged;

	/* the broker starts to count later than that, so we stop first */
	const RbpLeaseTerms terms = {
		.cred = &fresh->cred,.deadline_ns = sent_ns + fresh->ttl_ms * NANOS_PER_MS,
		.donors = fresh->donors,.ndonors = fresh->ndonors,
		.regions = fresh->regions,.nregions = fresh->nregions
	};
	RbpLeaseTerms content = terms;
	RbpBrokerAccess access;
	int			unused;

	/*
	 * The answer shows that the broker's URL and token work: keep them for
	 * the next worker.
	 */
	rbp_lease_broker_save(h->broker, &access);
	rbp_remote_set_broker(h->pool, &access);
	explicit_bzero(&access, sizeof(access));

	rbp_lease_resolve_donors(fresh);
	if (h->in_use)
		content.regions = with_content(h, fresh, &content.nregions);
	unchanged = h->in_use && !h->recheck && content.nregions == fresh->nregions &&
		rbp_lease_same_regions(known, fresh);

	if (!unchanged)
		rbp_lease_log_losses(h, fresh);
	if (!is_new && !fresh->has_secret)
		memcpy(fresh->cred.secret, known->cred.secret, RBP_SECRET_LEN);

	/*
	 * without regions that have lost their content, which takes them out of
	 * use
	 */
	if (h->in_use && content.nregions < fresh->nregions)
		(void) rbp_remote_set_lease(h->pool, &content);

	/* A donor that did not ask before has a grace time of its own. */
	for (int i = 0; h->replace_until != 0 && i < fresh->nreclaims; i++)
	{
		if (!rbp_lease_has_reclaim(known, fresh->reclaims[i].donor))
			h->replace_until = 0;
	}

	/* If a donor no longer asks, regions that are not empty yet may stay. */
	for (int i = 0; h->has_drained && i < known->nreclaims; i++)
	{
		if (!rbp_lease_has_reclaim(fresh, known->reclaims[i].donor))
			h->drain_obsolete = true;
	}

	rbp_lease_free(known);
	h->lease = fresh;
	h->deadline = terms.deadline_ns;
	if (h->pool == RBP_POOL_BUFFER)
		rbp_remote_set_room(h->pool, rbp_lease_wanted_max(h) + rbp_lease_ahead(h));
	if (unchanged)
		unused = rbp_remote_extend_lease(h->pool, h->deadline);
	else
	{
		h->in_use = true;
		h->recheck = false;
		unused = rbp_remote_set_lease(h->pool, &terms);
	}
	if (h->lapsed)
		ereport(LOG,
				(errmsg("remote_bp: the lapsed lease%s is renewed, and its memory is used again",
						h->suffix)));
	h->lapsed = false;
	if (unused > 0)
		rbp_lease_release_unused(h);
	log_size(h, is_new);
	log_namesakes(h, h->lease);
	h->retire_due = 0;
	return h->nreleased > 0 ? RBP_LEASE_AGAIN : RBP_LEASE_OK;
}
