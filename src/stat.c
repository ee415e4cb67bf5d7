/*-------------------------------------------------------------------------
 *
 * stat.c
 *	  remote_bp_stat: what all rooms have counted, in one row.
 *
 * Columns are filled by name, so that a library that counts more than the
 * installed version of the extension knows, or less, still serves it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/page_cache.h"
#include "base/sql.h"
#include "base/stats.h"
#include "buffer/buffer.h"
#include "remote/remote.h"
#include "spill/spill.h"

PG_FUNCTION_INFO_V1(rbp_sql_stat);
PG_FUNCTION_INFO_V1(rbp_sql_stat_reset);

typedef struct PageCount
{
	const char *name;
	uint64		value;
} PageCount;

/*
 * The columns that tell what is wrong; false if that column is none of them.  A
 * text that is empty is null.
 */
static bool
trouble_column(const char *name, Datum *value, bool *isnull)
{
	char		text[RBP_LAST_ERROR_LEN] = "";
	TimestampTz at = 0;

	if (strcmp(name, "usable") == 0)
	{
		*value = BoolGetDatum(!rbp_tier_unusable_reason(text, sizeof(text)));
		*isnull = false;
		return true;
	}
	if (strcmp(name, "unusable_reason") == 0)
	{
		if (!rbp_tier_unusable_reason(text, sizeof(text)))
			text[0] = '\0';
	}
	else if (strcmp(name, "temp_unusable_reason") == 0)
	{
		if (!rbp_remote_unusable_reason(RBP_POOL_TEMP, text, sizeof(text)))
			text[0] = '\0';
	}
	else if (strcmp(name, "last_error") == 0 ||
			 strcmp(name, "last_error_at") == 0)
		rbp_stats_last_error(text, sizeof(text), &at);
	else
		return false;
	*isnull = text[0] == '\0';
	if (!*isnull)
		*value = strcmp(name, "last_error_at") == 0 ? TimestampTzGetDatum(at) :
			CStringGetTextDatum(text);
	return true;
}

/* What a temporary block costs here or there; NULL as long as it is not known. */
static bool
spill_cost_column(const char *name, Datum *value, bool *null)
{
	RbpSpillWhere where;
	double		us;

	if (strcmp(name, "spill_file_us") == 0)
		where = RBP_SPILL_FILE;
	else if (strcmp(name, "spill_donor_us") == 0)
		where = RBP_SPILL_DONOR;
	else
		return false;
	us = rbp_spill_cost_us(where);
	*value = Float8GetDatum(us);
	*null = us == 0;
	return true;
}

Datum
rbp_sql_stat(PG_FUNCTION_ARGS)
{
	uint64		counters[RBP_NUM_COUNTERS];
	RbpTierPages tier;
	RbpSpillUse temp;
	TupleDesc	tupdesc;
	Datum	   *values;
	bool	   *nulls;

	rbp_sql_require_loaded();
	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	tupdesc = BlessTupleDesc(tupdesc);
	values = palloc0(sizeof(Datum) * tupdesc->natts);
	nulls = palloc(sizeof(bool) * tupdesc->natts);
	memset(nulls, true, sizeof(bool) * tupdesc->natts);

	rbp_stats_sum(counters);
	rbp_tier_pages(&tier);
	rbp_spill_use(&temp);

	const PageCount pages[] = {
		{"remote_pages", tier.remote},
		{"kept_pages", tier.kept},
		{"staged_pages", tier.staged},
		{"free_pages", tier.free},
		{"online_pages", tier.online},
		{"max_pages", tier.max},
		{"temp_pages", temp.used},
		{"temp_free_pages", temp.free},
		{"temp_online_pages", temp.online},
		{"temp_quarantined_pages", temp.quarantined},
		{"temp_lost_pages", temp.dead},
		{"temp_files", temp.files}
	};

	for (int i = 0; i < tupdesc->natts; i++)
	{
		const char *name = NameStr(TupleDescAttr(tupdesc, i)->attname);
		Oid			type = TupleDescAttr(tupdesc, i)->atttypid;

		if (trouble_column(name, &values[i], &nulls[i]))
			continue;
		if (strcmp(name, "page_cache_asked_by") == 0)
		{
			values[i] = CStringGetTextDatum(rbp_page_cache_method());
			nulls[i] = false;
		}
		if (spill_cost_column(name, &values[i], &nulls[i]))
			continue;
		if (type == TIMESTAMPTZOID && strcmp(name, "stats_reset") == 0)
		{
			values[i] = TimestampTzGetDatum(rbp_stats_reset_time());
			nulls[i] = false;
		}
		else if (type == INT8OID)
		{
			for (int c = 0; c < RBP_NUM_COUNTERS; c++)
			{
				if (strcmp(name, rbp_counter_names[c]) == 0)
				{
					values[i] = Int64GetDatum((int64) counters[c]);
					nulls[i] = false;
				}
			}
			for (int p = 0; p < lengthof(pages); p++)
			{
				if (strcmp(name, pages[p].name) == 0)
				{
					values[i] = Int64GetDatum((int64) pages[p].value);
					nulls[i] = false;
				}
			}
		}
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(tupdesc, values, nulls)));
}

Datum
rbp_sql_stat_reset(PG_FUNCTION_ARGS)
{
	rbp_sql_require_loaded();
	rbp_stats_reset();
	rbp_remote_stats_reset();
	PG_RETURN_VOID();
}
