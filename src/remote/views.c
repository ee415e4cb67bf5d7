/*-------------------------------------------------------------------------
 *
 * views.c
 *	  remote_bp_stat_donors and remote_bp_leases.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/sql.h"
#include "base/stats.h"
#include "remote/remote.h"

PG_FUNCTION_INFO_V1(rbp_sql_stat_donors);
PG_FUNCTION_INFO_V1(rbp_sql_leases);

Datum
rbp_sql_stat_donors(PG_FUNCTION_ARGS)
{
	enum
	{
		DONOR, HOST, PORT, STATE, STATE_SINCE, LAST_ERROR, LAST_ERROR_AT,
		TRANSPORT, CONNECTIONS, LEASED_BYTES, USED_BYTES,
		COUNTS, SAVED_US = COUNTS + RBP_DONOR_SAVED_NS, READ_P50_US, READ_P99_US, COLUMNS
	};
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo, COLUMNS);
	RbpDonorInfo *donors;
	int			n;

	donors = rbp_remote_donor_info(&n);
	for (int i = 0; i < n; i++)
	{
		const RbpDonorInfo *d = &donors[i];
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};

		values[DONOR] = CStringGetTextDatum(d->endpoint.donor);
		values[HOST] = CStringGetTextDatum(d->endpoint.host);
		values[PORT] = Int32GetDatum(d->endpoint.port);
		values[STATE] = CStringGetTextDatum(d->state);
		values[STATE_SINCE] = TimestampTzGetDatum(d->state_since);
		nulls[LAST_ERROR] = nulls[LAST_ERROR_AT] = d->last_error[0] == '\0';
		values[LAST_ERROR] = CStringGetTextDatum(d->last_error);
		values[LAST_ERROR_AT] = TimestampTzGetDatum(d->last_error_at);
		values[TRANSPORT] = CStringGetTextDatum(d->transport);
		values[CONNECTIONS] = Int32GetDatum(d->connections);
		values[LEASED_BYTES] = Int64GetDatum((int64) d->leased_bytes);
		values[USED_BYTES] = Int64GetDatum((int64) d->used_bytes);
		for (int c = 0; c < RBP_DONOR_SAVED_NS; c++)
			values[COUNTS + c] = Int64GetDatum((int64) d->counts[c]);
		values[SAVED_US] = Int64GetDatum((int64) d->counts[RBP_DONOR_SAVED_NS] / 1000);
		rbp_sql_quantile(d->read_latency, 0.50, &values[READ_P50_US], &nulls[READ_P50_US]);
		rbp_sql_quantile(d->read_latency, 0.99, &values[READ_P99_US], &nulls[READ_P99_US]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

Datum
rbp_sql_leases(PG_FUNCTION_ARGS)
{
	enum
	{
		LEASE, PURPOSE, DONOR, REGION, BYTES, USED_BYTES, HEAT, EXPIRES_IN,
		COLUMNS
	};
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo, COLUMNS);
	RbpLeaseInfo *leases;
	int			n;

	leases = rbp_remote_lease_info(&n);
	for (int i = 0; i < n; i++)
	{
		const RbpLeaseInfo *l = &leases[i];
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};
		Interval   *remaining = palloc0(sizeof(Interval));

		remaining->time = l->remaining_ns / 1000;
		values[LEASE] = CStringGetTextDatum(l->lease);
		values[PURPOSE] = CStringGetTextDatum(l->purpose);
		values[DONOR] = CStringGetTextDatum(l->grant.donor);
		values[REGION] = Int64GetDatum((int64) l->grant.region);
		values[BYTES] = Int64GetDatum((int64) l->grant.bytes);
		values[USED_BYTES] = Int64GetDatum((int64) l->used_bytes);
		values[HEAT] = Int64GetDatum((int64) l->heat);
		values[EXPIRES_IN] = IntervalPGetDatum(remaining);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
