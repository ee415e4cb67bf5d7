/*-------------------------------------------------------------------------
 *
 * views.c
 *	  remote_bp_stat_donors and remote_bp_leases.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/sql.h"
#include "common/urls.h"
#include "remote/remote.h"

PG_FUNCTION_INFO_V1(rbp_sql_stat_donors);
PG_FUNCTION_INFO_V1(rbp_sql_leases);

Datum
rbp_sql_stat_donors(PG_FUNCTION_ARGS)
{
	static const char *const counts[RBP_DONOR_SAVED_NS] = {"reads", "writes", "failures", "timeouts", "bypassed"};
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);
	int			n;
	RbpDonorInfo *donors = rbp_remote_donor_info(&n);

	for (int i = 0; i < n; i++)
	{
		const RbpDonorInfo *d = &donors[i];
		RbpRow		row = {0};

		rbp_row_text(&row, "donor", d->endpoint.donor);
		rbp_row_put(&row, "host", CStringGetTextDatum(d->endpoint.host), false);
		rbp_row_put(&row, "port", Int32GetDatum(d->endpoint.port), false);
		rbp_row_text(&row, "state", d->state);
		rbp_row_put(&row, "state_since", TimestampTzGetDatum(d->state_since), false);
		rbp_row_text(&row, "last_error", d->last_error);
		rbp_row_put(&row, "last_error_at", TimestampTzGetDatum(d->last_error_at), d->last_error[0] == '\0');
		rbp_row_put(&row, "transport", CStringGetTextDatum(d->transport), false);
		rbp_row_put(&row, "connections", Int32GetDatum(d->connections), false);
		rbp_row_count(&row, "leased_bytes", d->leased_bytes);
		rbp_row_count(&row, "used_bytes", d->used_bytes);
		for (int c = 0; c < RBP_DONOR_SAVED_NS; c++)
			rbp_row_count(&row, counts[c], d->counts[c]);
		rbp_row_count(&row, "saved_us", (uint64) ((int64) d->counts[RBP_DONOR_SAVED_NS] / 1000));
		rbp_row_quantile(&row, "read_p50_us", d->read_latency, 0.50);
		rbp_row_quantile(&row, "read_p99_us", d->read_latency, 0.99);
		rbp_sql_add_row(rsinfo, &row);
	}
	return (Datum) 0;
}

Datum
rbp_sql_leases(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);
	int			n;
	RbpLeaseInfo *leases = rbp_remote_lease_info(&n);
	char		brokers[RBP_POOLS][RBP_URL_LEN] = {0};

	for (int pool = 0; pool < RBP_POOLS; pool++)
	{
		RbpBrokerAccess access;

		if (rbp_remote_get_broker((RbpPool) pool, &access))
			(void) rbp_urls_get(access.urls, access.used, brokers[pool]);
		explicit_bzero(&access, sizeof(access));
	}
	for (int i = 0; i < n; i++)
	{
		const RbpLeaseInfo *l = &leases[i];
		Interval   *remaining = palloc0(sizeof(Interval));
		RbpRow		row = {0};

		remaining->time = l->remaining_ns / 1000;
		rbp_row_text(&row, "lease", l->lease);
		rbp_row_text(&row, "purpose", l->pool == RBP_POOL_BUFFER ? "buffer" : "temp");
		rbp_row_text(&row, "donor", l->grant.donor);
		rbp_row_count(&row, "region", l->grant.region);
		rbp_row_count(&row, "bytes", l->grant.bytes);
		rbp_row_count(&row, "used_bytes", l->used_bytes);
		rbp_row_count(&row, "heat", l->heat);
		rbp_row_put(&row, "expires_in", IntervalPGetDatum(remaining), false);
		rbp_row_text(&row, "broker", brokers[l->pool]);
		rbp_sql_add_row(rsinfo, &row);
	}
	return (Datum) 0;
}
