/*-------------------------------------------------------------------------
 *
 * stat.c
 *	  remote_bp_stat and remote_bp_stat_spill: the counters of all modules, in
 *	  one row each; remote_bp_stat_backend(): some of those of one process;
 *	  remote_bp_stat_sources: what the choice of a page's source goes by.
 *
 * The functions put each value together with its column's name, and finish_row() takes
 * those that the installed version of the extension has, so a library also serves the
 * columns of an older version.  What a column is a sum of: rbp_stats_column(), and
 * put_counters().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/sysmacros.h>

#include "fmgr.h"
#include "funcapi.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
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

/* A row under construction; the size has room to spare */
#define ROW_COLUMNS		(RBP_NUM_COUNTERS + 32)

typedef struct Row
{
	int			n;
	const char *names[ROW_COLUMNS];
	Datum		values[ROW_COLUMNS];
	bool		nulls[ROW_COLUMNS];
} Row;

static void
put(Row *row, const char *name, Datum value, bool isnull)
{
	Assert(row->n < ROW_COLUMNS);
	row->names[row->n] = name;
	row->values[row->n] = value;
	row->nulls[row->n] = isnull;
	row->n++;
}

/* An empty text becomes null. */
static void
put_text(Row *row, const char *name, const char *text)
{
	put(row, name, CStringGetTextDatum(text), text[0] == '\0');
}

static void
put_count(Row *row, const char *name, uint64 count)
{
	put(row, name, Int64GetDatum((int64) count), false);
}

/* 0 means that the time is not known, and becomes null. */
static void
put_us(Row *row, const char *name, double us)
{
	put(row, name, Float8GetDatum(us), us == 0);
}

/* Put whether a pool is usable, and the reason if it is not. */
static void
put_usable(Row *row, bool unusable, const char *reason)
{
	put(row, "usable", BoolGetDatum(!unusable), false);
	put_text(row, "unusable_reason", unusable ? reason : "");
}

/*
 * Put the counters of temporary data, or the others, and what is kept beside them.
 * Those that remote_bp_stat does not show, such as times, are in no installed version
 * either.
 */
static void
put_counters(Row *row, bool spill)
{
	static const char prefix[] = "spill_";
	uint64		counters[RBP_NUM_COUNTERS];
	RbpStatsInfo info;

	rbp_stats_info(&info);
	put_text(row, "last_error", info.last_error);
	put(row, "last_error_at", TimestampTzGetDatum(info.last_error_at), info.last_error[0] == '\0');
	put(row, "stats_reset", TimestampTzGetDatum(info.reset_time), false);
	rbp_stats_sum(counters);
	for (int c = 0; c < RBP_NUM_COUNTERS; c++)
		if ((strncmp(rbp_counter_names[c], prefix, strlen(prefix)) == 0) == spill)
			put(row, rbp_counter_names[c] + (spill ? strlen(prefix) : 0),
				rbp_sql_counter(counters, c), false);
	put_count(row, "bytes_read", counters[RBP_COUNT_DONOR] * BLCKSZ);
	put_count(row, "bytes_written", counters[RBP_COUNT_PUSHES] * BLCKSZ);
}

static Datum
finish_row(Row *row, FunctionCallInfo fcinfo)
{
	TupleDesc	desc;
	Datum		values[ROW_COLUMNS];
	bool		nulls[ROW_COLUMNS];

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	for (int column = 0; column < desc->natts; column++)
	{
		int			i = 0;

		while (i < row->n && strcmp(NameStr(TupleDescAttr(desc, column)->attname), row->names[i]) != 0)
			i++;
		if (i == row->n)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the installed version of extension \"%s\" is newer than the loaded library", "remote_bp"),
					 errhint("Restart the server.")));
		values[column] = row->values[i];
		nulls[column] = row->nulls[i];
	}
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

Datum
rbp_sql_stat(PG_FUNCTION_ARGS)
{
	char		reason[RBP_LAST_ERROR_LEN];
	RbpTierPages pages;
	Row			row = {0};

	rbp_sql_require_loaded();
	put_usable(&row, rbp_tier_unusable_reason(reason, sizeof(reason)), reason);
	put_text(&row, "page_cache_asked_by", rbp_page_cache_method());
	put_counters(&row, false);

	rbp_tier_pages(&pages);
	put_count(&row, "remote_pages", pages.remote);
	put_count(&row, "kept_pages", pages.kept);
	put_count(&row, "staged_pages", pages.staged);
	put_count(&row, "free_pages", pages.free);
	put_count(&row, "online_pages", pages.online);
	put_count(&row, "max_pages", pages.max);
	PG_RETURN_DATUM(finish_row(&row, fcinfo));
}

Datum
rbp_sql_stat_spill(PG_FUNCTION_ARGS)
{
	char		reason[RBP_LAST_ERROR_LEN];
	RbpSpillUsage usage;
	Row			row = {0};

	rbp_sql_require_loaded();
	put_usable(&row, rbp_remote_unusable_reason(RBP_POOL_TEMP, reason, sizeof(reason)),
			   reason);
	put_counters(&row, true);
	put_us(&row, "file_us", rbp_spill_cost_us(false));
	put_us(&row, "donor_us", rbp_spill_cost_us(true));

	rbp_spill_get_usage(&usage);
	put_count(&row, "pages", usage.used);
	put_count(&row, "free_pages", usage.free);
	put_count(&row, "online_pages", usage.online);
	put_count(&row, "quarantined_pages", usage.quarantined);
	/* slots of lost regions; the counter "lost" is about failed reads */
	put_count(&row, "lost_pages", usage.dead);
	put_count(&row, "files", usage.files);
	PG_RETURN_DATUM(finish_row(&row, fcinfo));
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
	Row			row = {0};

	rbp_sql_require_loaded();
	proc = BackendPidGetProc(pid);
	if (proc == NULL)
		proc = AuxiliaryPidGetProc(pid);
	if (proc == NULL)
		PG_RETURN_NULL();
	rbp_stats_process_usage(rbp_compat_procno_of(proc), pid, &usage);
	for (int i = 0; i < RBP_NUM_USAGE_ITEMS; i++)
		put(&row, rbp_counter_names[i], rbp_sql_counter(usage.item, i), false);
	PG_RETURN_DATUM(finish_row(&row, fcinfo));
}

static void
put_source(ReturnSetInfo *rsinfo, const char *source, const char *device, int fs, int transport)
{
	enum
	{
		SOURCE, DEVICE, COSTS, COLUMNS = COSTS + RBP_COSTS
	};
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS] = {0};
	bool		any = device != NULL && fs != RBP_FILE_SYSTEMS - 1;

	values[SOURCE] = CStringGetTextDatum(source);
	nulls[DEVICE] = device == NULL;
	if (device != NULL)
		values[DEVICE] = CStringGetTextDatum(device);
	for (int cost = 0; cost < RBP_COSTS; cost++)
	{
		nulls[COSTS + cost] = !rbp_cost_known(fs, transport, cost);
		values[COSTS + cost] = Float8GetDatum((double) rbp_cost(fs, transport, cost) / RBP_NS_PER_US);
		any |= !nulls[COSTS + cost];
	}
	if (any)
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

Datum
rbp_sql_stat_sources(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo, 2 + RBP_COSTS);
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
