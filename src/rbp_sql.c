/*-------------------------------------------------------------------------
 *
 * rbp_sql.c
 *	  The functions behind the extension's views.
 *
 * Columns of remote_bp_stat are filled by name, so that a library that counts
 * more than the installed version of the extension knows, or less, still
 * serves it.
 *
 * None of these takes a lock for longer than a look at shared memory, and
 * none waits for I/O.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_class.h"
#include "catalog/pg_tablespace_d.h"
#include "catalog/pg_type.h"
#include "common/relpath.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "rbp_compat.h"
#include "rbp_directory.h"
#include "rbp_page_cache.h"
#include "rbp_remote.h"
#include "rbp_space.h"
#include "rbp_sql.h"
#include "rbp_spill.h"
#include "rbp_stats.h"
#include "rbp_tier.h"

#define NS_PER_US	1000.0

PG_FUNCTION_INFO_V1(rbp_sql_stat);
PG_FUNCTION_INFO_V1(rbp_sql_stat_donors);
PG_FUNCTION_INFO_V1(rbp_sql_stat_latency);
PG_FUNCTION_INFO_V1(rbp_sql_leases);
PG_FUNCTION_INFO_V1(rbp_sql_relations);
PG_FUNCTION_INFO_V1(rbp_sql_temp_files);
PG_FUNCTION_INFO_V1(rbp_sql_stat_reset);
PG_FUNCTION_INFO_V1(rbp_sql_evict);

void
rbp_sql_require_loaded(void)
{
	if (!rbp_stats_attached() || rbp_dir == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("remote_bp must be loaded via shared_preload_libraries"),
				 errhint("Add remote_bp to shared_preload_libraries and restart the server.")));
}

ReturnSetInfo *
rbp_sql_start_rows(FunctionCallInfo fcinfo, int columns)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	rbp_sql_require_loaded();
	InitMaterializedSRF(fcinfo, 0);
	if (rsinfo->setDesc->natts != columns)
		elog(ERROR, "function is declared with %d columns, the library fills %d",
			 rsinfo->setDesc->natts, columns);
	return rsinfo;
}

void
rbp_sql_check_buffered(Relation rel)
{
	if (!RELKIND_HAS_STORAGE(rel->rd_rel->relkind))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("relation \"%s\" does not have storage",
						RelationGetRelationName(rel)),
				 errdetail_relkind_not_supported(rel->rd_rel->relkind),
				 RELKIND_HAS_PARTITIONS(rel->rd_rel->relkind) ?
				 errhint("Name its partitions instead.") : 0));
	if (rel->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("relation \"%s\" is temporary",
						RelationGetRelationName(rel)),
				 errhint("Its pages are never in the buffer tier; see remote_bp_temp_files.")));
}

/*
 * ---- remote_bp_stat ---------------------------------------------------------
 */

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
	RbpDirectoryCounts counts;
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
	rbp_directory_counts(rbp_dir, &counts);
	rbp_spill_use(&temp);

	const PageCount pages[] = {
		{"remote_pages", counts.remote},
		{"kept_pages", counts.kept},
		{"staged_pages", counts.staged},
		{"free_pages", counts.free},
		{"online_pages", counts.online},
		{"max_pages", rbp_directory_max_slots(rbp_dir)},
		{"temp_pages", temp.slots.used},
		{"temp_free_pages", temp.slots.free},
		{"temp_online_pages", temp.slots.online},
		{"temp_quarantined_pages", temp.slots.quarantined},
		{"temp_lost_pages", temp.slots.dead},
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

/*
 * ---- remote_bp_stat_latency --------------------------------------------------
 */

Datum
rbp_sql_stat_latency(PG_FUNCTION_ARGS)
{
	enum
	{
		OPERATION, CALLS, MEAN_US, P50_US, P90_US, P99_US, BUCKETS_US, COUNTS,
		COLUMNS
	};
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo, COLUMNS);
	RbpHistogram h;

	for (int op = 0; op < RBP_NUM_LATENCIES; op++)
	{
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};
		Datum		lower[RBP_LATENCY_BUCKETS];
		Datum		counts[RBP_LATENCY_BUCKETS];
		int			n = 0;

		rbp_stats_histogram((RbpLatency) op, &h);
		values[OPERATION] = CStringGetTextDatum(rbp_latency_names[op]);
		values[CALLS] = Int64GetDatum((int64) h.count);
		if (h.count > 0)
		{
			values[MEAN_US] = Float8GetDatum(h.sum_ns / (double) h.count / NS_PER_US);
			values[P50_US] = Float8GetDatum(rbp_histogram_quantile(&h, 0.50) / NS_PER_US);
			values[P90_US] = Float8GetDatum(rbp_histogram_quantile(&h, 0.90) / NS_PER_US);
			values[P99_US] = Float8GetDatum(rbp_histogram_quantile(&h, 0.99) / NS_PER_US);
		}
		else
			nulls[MEAN_US] = nulls[P50_US] = nulls[P90_US] = nulls[P99_US] = true;

		/* buckets that have something in them, by their lower bounds */
		for (int b = 0; b < RBP_LATENCY_BUCKETS; b++)
		{
			if (h.bucket[b] == 0)
				continue;
			lower[n] = Float8GetDatum(rbp_latency_lower(b) / NS_PER_US);
			counts[n] = Int64GetDatum((int64) h.bucket[b]);
			n++;
		}
		values[BUCKETS_US] = PointerGetDatum(construct_array(lower, n, FLOAT8OID,
															 sizeof(float8),
															 FLOAT8PASSBYVAL,
															 TYPALIGN_DOUBLE));
		values[COUNTS] = PointerGetDatum(construct_array(counts, n, INT8OID,
														 sizeof(int64),
														 FLOAT8PASSBYVAL,
														 TYPALIGN_DOUBLE));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * ---- remote_bp_stat_donors, remote_bp_leases ---------------------------------
 */

Datum
rbp_sql_stat_donors(PG_FUNCTION_ARGS)
{
	enum
	{
		DONOR, HOST, PORT, STATE, STATE_SINCE, LAST_ERROR, LAST_ERROR_AT,
		TRANSPORT, CONNECTIONS, LEASED_BYTES, USED_BYTES, READS, WRITES, FAILURES, TIMEOUTS, BYPASSED,
		SAVED_US, READ_P50_US, READ_P99_US, COLUMNS
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
		values[READS] = Int64GetDatum((int64) d->reads);
		values[WRITES] = Int64GetDatum((int64) d->writes);
		values[FAILURES] = Int64GetDatum((int64) d->failures);
		values[TIMEOUTS] = Int64GetDatum((int64) d->timeouts);
		values[BYPASSED] = Int64GetDatum((int64) d->bypassed);
		values[SAVED_US] = Int64GetDatum(d->saved_ns / 1000);
		if (d->read_latency.count > 0)
		{
			values[READ_P50_US] =
				Float8GetDatum(rbp_histogram_quantile(&d->read_latency, 0.50) / NS_PER_US);
			values[READ_P99_US] =
				Float8GetDatum(rbp_histogram_quantile(&d->read_latency, 0.99) / NS_PER_US);
		}
		else
			nulls[READ_P50_US] = nulls[READ_P99_US] = true;
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
		values[DONOR] = CStringGetTextDatum(l->donor);
		values[REGION] = Int64GetDatum((int64) l->region);
		values[BYTES] = Int64GetDatum((int64) l->bytes);
		values[USED_BYTES] = Int64GetDatum((int64) l->used_bytes);
		values[HEAT] = Int64GetDatum((int64) l->heat);
		values[EXPIRES_IN] = IntervalPGetDatum(remaining);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * ---- remote_bp_relations ------------------------------------------------------
 *
 * The callback of a directory scan runs under a partition lock and may not
 * allocate: it notes forks in room that was made before, which is large
 * enough for all that a partition can hold.  Counting comes after.
 */

typedef struct ForkKey
{
	uint32		rel;
	uint16		space;
	uint8		fork;
	uint8		pad;			/* zero */
} ForkKey;

typedef struct ForkCount
{
	ForkKey		key;			/* first, for the hash table */
	uint64		remote;
	uint64		staged;
} ForkCount;

typedef struct NotedPage
{
	ForkKey		key;
	bool		staged;
} NotedPage;

typedef struct NotedPages
{
	NotedPage  *pages;
	Size		n;
	Size		room;
} NotedPages;

static void
note_page(const RbpPageId *page, RbpWhere where, uint32_t slot, void *arg)
{
	NotedPages *noted = arg;
	NotedPage  *p;

	if (noted->n == noted->room)
		return;
	p = &noted->pages[noted->n++];
	p->key.rel = page->rel;
	p->key.space = page->space;
	p->key.fork = page->fork;
	p->key.pad = 0;
	p->staged = where == RBP_STAGED;
}

/* Pages of each fork, of every database: a hash table of ForkCount. */
static HTAB *
count_forks(void)
{
	HASHCTL		ctl;
	HTAB	   *forks;
	NotedPages	noted;

	ctl.keysize = sizeof(ForkKey);
	ctl.entrysize = sizeof(ForkCount);
	ctl.hcxt = CurrentMemoryContext;
	forks = hash_create("remote_bp forks", 256, &ctl,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	/* its share of the remote slots, and any of the staged pages */
	noted.room = rbp_directory_max_slots(rbp_dir) / RBP_PARTITIONS +
		(rbp_staging != NULL ? rbp_staging_slots(rbp_staging) : 0);
	noted.pages = MemoryContextAllocHuge(CurrentMemoryContext,
										 Max(noted.room, 1) * sizeof(NotedPage));
	for (int part = 0; part < RBP_PARTITIONS; part++)
	{
		CHECK_FOR_INTERRUPTS();
		noted.n = 0;
		rbp_directory_scan(rbp_dir, part, note_page, &noted);
		for (Size i = 0; i < noted.n; i++)
		{
			ForkCount  *count;
			bool		found;

			count = hash_search(forks, &noted.pages[i].key, HASH_ENTER, &found);
			if (!found)
				count->remote = count->staged = 0;
			if (noted.pages[i].staged)
				count->staged++;
			else
				count->remote++;
		}
	}
	pfree(noted.pages);
	return forks;
}

Datum
rbp_sql_relations(PG_FUNCTION_ARGS)
{
	enum
	{
		RELATION, RELFILENODE, FORK, PAGES, BYTES, STAGED_PAGES, COLUMNS
	};
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo, COLUMNS);
	HASH_SEQ_STATUS seq;
	ForkCount  *count;

	hash_seq_init(&seq, count_forks());
	while ((count = hash_seq_search(&seq)) != NULL)
	{
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};
		Oid			spc;
		Oid			db;
		Oid			relid;

		/* of this database, and what all databases share */
		if (!rbp_space_resolve(count->key.space, &spc, &db) ||
			(db != MyDatabaseId && db != InvalidOid))
			continue;

		/* not found: created or dropped by a transaction that still runs */
		relid = rbp_compat_relid(spc, count->key.rel);
		values[RELATION] = ObjectIdGetDatum(relid);
		nulls[RELATION] = !OidIsValid(relid);
		values[RELFILENODE] = ObjectIdGetDatum(count->key.rel);
		values[FORK] = CStringGetTextDatum(count->key.fork <= MAX_FORKNUM ?
										   forkNames[count->key.fork] : "?");
		values[PAGES] = Int64GetDatum((int64) count->remote);
		values[BYTES] = Int64GetDatum((int64) count->remote * BLCKSZ);
		values[STAGED_PAGES] = Int64GetDatum((int64) count->staged);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * ---- remote_bp_temp_files ------------------------------------------------------
 */

/* The tablespace that a temporary file's name leads to. */
static Oid
tablespace_of_name(const char *name)
{
	static const char prefix[] = "pg_tblspc/";

	if (strncmp(name, prefix, sizeof(prefix) - 1) == 0)
		return (Oid) strtoul(name + sizeof(prefix) - 1, NULL, 10);
	return DEFAULTTABLESPACE_OID;
}

Datum
rbp_sql_temp_files(PG_FUNCTION_ARGS)
{
	enum
	{
		TEMP_FILE, TABLESPACE, OWNER, TEMP_RELATION, SIZE, REMOTE_BYTES,
		STAGED_BYTES, MIRRORED_BYTES, COLUMNS
	};
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo, COLUMNS);
	RbpSpillFileInfo *files;
	int			n;

	files = rbp_spill_file_info(&n);
	for (int i = 0; i < n; i++)
	{
		const RbpSpillFileInfo *f = &files[i];
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};

		values[TEMP_FILE] = CStringGetTextDatum(f->name);
		values[TABLESPACE] = ObjectIdGetDatum(tablespace_of_name(f->name));
		values[OWNER] = Int32GetDatum(f->owner);
		values[TEMP_RELATION] = BoolGetDatum(f->relation);
		values[SIZE] = Int64GetDatum(f->size);
		values[REMOTE_BYTES] = Int64GetDatum(f->remote_bytes);
		values[STAGED_BYTES] = Int64GetDatum(f->staged_bytes);
		values[MIRRORED_BYTES] = Int64GetDatum(f->mirrored_bytes);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * ---- remote_bp_evict ------------------------------------------------------------
 */

Datum
rbp_sql_evict(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	Relation	rel;
	uint16		space;
	uint64		dropped = 0;

	rbp_sql_require_loaded();
	rel = relation_open(relid, AccessShareLock);
	rbp_sql_check_buffered(rel);
	space = rbp_space_find(rbp_compat_rel_space(rel), rbp_compat_rel_db(rel));
	if (space != RBP_INVALID_SPACE)
		dropped = rbp_directory_drop_relation(rbp_dir, rbp_compat_rel_number(rel),
											  space);
	relation_close(rel, AccessShareLock);
	PG_RETURN_INT64((int64) dropped);
}
