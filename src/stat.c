/*-------------------------------------------------------------------------
 *
 * stat.c
 *	  remote_bp_stat and remote_bp_stat_spill: the counters of all modules, in
 *	  one row each; remote_bp_stat_backend(): some of those of one process;
 *	  remote_bp_stat_sources: what the choice of a page's source goes by.
 *
 * What a column is a sum of: rbp_stats_column(), and put_counters().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/sysmacros.h>

#include "fmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/timestamp.h"

#include "base/choice.h"
#include "base/compat.h"
#include "base/page_cache.h"
#include "base/sql.h"
#include "base/stats.h"
#include "buffer/buffer.h"
#include "remote/remote.h"
#include "spill/spill.h"

PG_FUNCTION_INFO_V1(rbp_sql_stat);
PG_FUNCTION_INFO_V1(rbp_sql_stat_spill);
PG_FUNCTION_INFO_V1(rbp_sql_stat_reset);
PG_FUNCTION_INFO_V1(rbp_sql_stat_backend);
PG_FUNCTION_INFO_V1(rbp_sql_stat_sources);

/* 0 means that the time is not known, and becomes null. */
static void
put_us(RbpRow *row, const char *name, double us)
{
	rbp_row_put(row, name, Float8GetDatum(us), us == 0);
}

/* Put whether a pool is usable, and the reason if it is not. */
static void
put_usable(RbpRow *row, bool unusable, const char *reason)
{
	rbp_row_put(row, "usable", BoolGetDatum(!unusable), false);
	rbp_row_text(row, "unusable_reason", unusable ? reason : "");
}

/*
 * Put the counters of temporary data, or the others, and what is kept beside them.
 * Those that remote_bp_stat does not show, such as times, are in no installed version
 * either.
 */
static void
put_counters(RbpRow *row, bool spill)
{
	static const char prefix[] = "spill_";
	uint64		counters[RBP_NUM_COUNTERS];
	RbpStatsInfo info;

	rbp_stats_info(&info);
	rbp_row_text(row, "last_error", info.last_error);
	rbp_row_put(row, "last_error_at", TimestampTzGetDatum(info.last_error_at), info.last_error[0] == '\0');
	rbp_row_put(row, "stats_reset", TimestampTzGetDatum(info.reset_time), false);
	rbp_stats_sum(counters);
	for (int c = 0; c < RBP_NUM_COUNTERS; c++)
		if ((strncmp(rbp_counter_names[c], prefix, strlen(prefix)) == 0) == spill)
			rbp_row_counter(row, rbp_counter_names[c] + (spill ? strlen(prefix) : 0), counters, c);
	rbp_row_count(row, "bytes_read", counters[RBP_COUNT_DONOR] * BLCKSZ);
	rbp_row_count(row, "bytes_written", counters[RBP_COUNT_PUSHES] * BLCKSZ);
}

Datum
rbp_sql_stat(PG_FUNCTION_ARGS)
{
	char		reason[RBP_LAST_ERROR_LEN];
	RbpTierPages pages;
	RbpRow		row = {0};

	rbp_sql_require_loaded();
	put_usable(&row, rbp_tier_unusable_reason(reason, sizeof(reason)), reason);
	rbp_row_text(&row, "page_cache_asked_by", rbp_page_cache_method());
	put_counters(&row, false);

	rbp_tier_pages(&pages);
	rbp_row_count(&row, "remote_pages", pages.remote);
	rbp_row_count(&row, "kept_pages", pages.kept);
	rbp_row_count(&row, "staged_pages", pages.staged);
	rbp_row_count(&row, "free_pages", pages.free);
	rbp_row_count(&row, "online_pages", pages.online);
	rbp_row_count(&row, "max_pages", pages.max);
	PG_RETURN_DATUM(rbp_sql_one_row(fcinfo, &row));
}

Datum
rbp_sql_stat_spill(PG_FUNCTION_ARGS)
{
	char		reason[RBP_LAST_ERROR_LEN];
	RbpSpillUsage usage;
	RbpRow		row = {0};

	rbp_sql_require_loaded();
	put_usable(&row, rbp_remote_unusable_reason(RBP_POOL_TEMP, reason, sizeof(reason)),
			   reason);
	put_counters(&row, true);
	put_us(&row, "file_us", rbp_spill_cost_us(false));
	put_us(&row, "donor_us", rbp_spill_cost_us(true));

	rbp_spill_get_usage(&usage);
	rbp_row_count(&row, "pages", usage.used);
	rbp_row_count(&row, "free_pages", usage.free);
	rbp_row_count(&row, "online_pages", usage.online);
	rbp_row_count(&row, "quarantined_pages", usage.quarantined);
	/* slots of lost regions; the counter "lost" is about failed reads */
	rbp_row_count(&row, "lost_pages", usage.dead);
	rbp_row_count(&row, "files", usage.files);
	PG_RETURN_DATUM(rbp_sql_one_row(fcinfo, &row));
}

Datum
rbp_sql_stat_reset(PG_FUNCTION_ARGS)
{
	rbp_sql_require_loaded();
	rbp_stats_reset();
	rbp_remote_stats_reset();
	rbp_relation_stats_reset();
	PG_RETURN_VOID();
}

Datum
rbp_sql_stat_backend(PG_FUNCTION_ARGS)
{
	int			pid = PG_GETARG_INT32(0);
	PGPROC	   *proc;
	RbpUsage	usage;
	RbpRow		row = {0};

	rbp_sql_require_loaded();
	proc = BackendPidGetProc(pid);
	if (proc == NULL)
		proc = AuxiliaryPidGetProc(pid);
	if (proc == NULL)
		PG_RETURN_NULL();
	rbp_stats_process_usage(rbp_compat_procno_of(proc), pid, &usage);
	rbp_row_usage(&row, usage.item);
	PG_RETURN_DATUM(rbp_sql_one_row(fcinfo, &row));
}

static void
put_source(ReturnSetInfo *rsinfo, const char *source, const char *device, int fs, int transport)
{
	static const char *const columns[RBP_COSTS] = {"page_us", "run_us", "temp_write_us", "temp_read_us"};
	RbpRow		row = {0};
	bool		any = device != NULL && fs != RBP_FILE_SYSTEMS - 1;

	rbp_row_text(&row, "source", source);
	rbp_row_text(&row, "device", device);
	for (int cost = 0; cost < RBP_COSTS; cost++)
	{
		bool		known = rbp_cost_known(fs, transport, cost);

		rbp_row_put(&row, columns[cost],
					Float8GetDatum((double) rbp_cost(fs, transport, cost) / RBP_NS_PER_US), !known);
		any |= known;
	}
	if (any)
		rbp_sql_add_row(rsinfo, &row);
}

Datum
rbp_sql_stat_sources(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);
	uint64		device;

	for (int fs = 0; fs < RBP_FILE_SYSTEMS; fs++)
		if (fs == RBP_FILE_SYSTEMS - 1)
			put_source(rsinfo, "file", "others", fs, RBP_NO_TRANSPORT);
		else if (rbp_choice_device(fs, &device))
			put_source(rsinfo, "file", psprintf("%u:%u", major(device), minor(device)), fs, RBP_NO_TRANSPORT);
	for (int transport = 0; transport < RBP_TRANSPORTS; transport++)
		put_source(rsinfo, rbp_remote_transport_name((uint32) 1 << transport), NULL, 0, transport);
	return (Datum) 0;
}
