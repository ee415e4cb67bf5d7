/*-------------------------------------------------------------------------
 *
 * statements.c
 *	  remote_bp_stat_statements: what the statements of each kind have used.
 *
 * Statements are told apart as by pg_stat_statements: by user, database and
 * query identifier.  Only those that have used something are noted, so that a
 * statement whose pages are all in shared buffers takes no lock.
 *
 * What was noted is written to a file when the server stops, and read at its
 * next start.  The file is removed then, so that it cannot be read again after
 * a crash.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "catalog/pg_authid.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "utils/acl.h"

#include "base/compat.h"
#include "base/counter_table.h"
#include "base/guc.h"
#include "base/lock.h"
#include "base/sql.h"
#include "base/stats.h"
#include "usage/usage.h"
#include "usage/usage_internal.h"

PG_FUNCTION_INFO_V1(rbp_sql_stat_statements);
PG_FUNCTION_INFO_V1(rbp_sql_stat_statements_reset);

#define FILE_NAME		"pg_stat/remote_bp_statements.stat"
#define FILE_MAGIC		0x52425033	/* incremented when the format changes */

/* The beginning of the file; the rows follow. */
typedef struct FileHeader
{
	uint32		magic;
	uint32		server_version; /* identifiers differ between versions */
	uint32		nvalues;
	uint32		n;				/* rows */
	uint64		hash;			/* of the rows */
} FileHeader;

static RbpCounterTable *table = NULL;	/* NULL if nothing is to be noted */

Size
rbp_statements_shmem_size(void)
{
	return rbp_counter_table_size(rbp_guc_statements_max);
}

/*
 * ---- the file -------------------------------------------------------------------
 */

static uint64
hash_rows(const void *rows, uint32 n)
{
	return hash_bytes_extended(rows, (int) (n * sizeof(RbpCounterRow)), 0);
}

/* The rows of the file, palloc'd; NULL if it is not a file of this server's. */
static RbpCounterRow *
read_rows(FILE *file, FileHeader *header)
{
	RbpCounterRow *rows;
	Size		size;
	char		more;

	if (fread(header, sizeof(FileHeader), 1, file) != 1 || header->magic != FILE_MAGIC ||
		header->server_version != RBP_COMPAT_MAJOR_VERSION ||
		header->nvalues != RBP_COUNTER_VALUES || header->n > RBP_STATEMENTS_MAX)
		return NULL;
	size = header->n * sizeof(RbpCounterRow);
	rows = palloc(Max(size, 1));
	if (fread(rows, 1, size, file) != size || fread(&more, 1, 1, file) != 0 ||
		hash_rows(rows, header->n) != header->hash)
	{
		pfree(rows);
		return NULL;
	}
	return rows;
}

static void
load(void)
{
	FILE	   *file = AllocateFile(FILE_NAME, PG_BINARY_R);
	FileHeader	header;
	RbpCounterRow *rows;

	if (file == NULL)
	{
		if (errno != ENOENT)
			ereport(LOG,
					(errcode_for_file_access(),
					 errmsg("could not read file \"%s\": %m", FILE_NAME)));
		return;
	}
	rows = read_rows(file, &header);
	FreeFile(file);
	if (rows == NULL)
		ereport(LOG,
				(errmsg("ignoring invalid data in file \"%s\"", FILE_NAME)));
	else
	{
		/* as many as there is room for */
		for (uint32 i = 0; i < header.n && i < (uint32) rbp_guc_statements_max; i++)
			rbp_counter_table_add(table, &rows[i]);
		pfree(rows);
	}
	(void) unlink(FILE_NAME);
}

/* Write the file when the postmaster ends, but not after a crash. */
static void
save(int code, Datum arg)
{
	FileHeader	header = {.magic = FILE_MAGIC,.server_version = RBP_COMPAT_MAJOR_VERSION,.nvalues = RBP_COUNTER_VALUES};
	FILE	   *file;
	RbpCounterRow *rows;
	Size		size;
	int			n;

	if (code != 0 || table == NULL)
		return;
	/* who was stopped immediately may have held the lock for ever */
	rows = rbp_counter_table_copy(table, &n, false);
	if (rows == NULL)
		return;
	size = n * sizeof(RbpCounterRow);
	header.n = (uint32) n;
	header.hash = hash_rows(rows, header.n);
	file = AllocateFile(FILE_NAME ".tmp", PG_BINARY_W);
	if (file != NULL && fwrite(&header, sizeof(header), 1, file) == 1 &&
		fwrite(rows, 1, size, file) == size && fflush(file) == 0)
		(void) durable_rename(FILE_NAME ".tmp", FILE_NAME, LOG);
	else
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", FILE_NAME ".tmp")));
		(void) unlink(FILE_NAME ".tmp");
	}
	if (file != NULL)
		FreeFile(file);
}

void
rbp_statements_shmem_init(void *mem)
{
	if (rbp_guc_statements_max == 0)
		return;
	table = rbp_counter_table_init(mem, rbp_guc_statements_max,
								   rbp_lock_tranche("RemoteBpStatements"));
	load();
	/* each time, since a crash of a backend makes the postmaster forget it */
	on_shmem_exit(save, (Datum) 0);
}

/*
 * ---- counting ---------------------------------------------------------------------
 */

bool
rbp_statements_wanted(void)
{
	return table != NULL;
}

void
rbp_statement_used(uint64 query_id, const RbpUsage *usage)
{
	RbpCounterRow row = {
		.key = {.high = (uint64) GetUserId() << 32 | MyDatabaseId,.low = query_id}
	};
	uint64		any = 0;

	memcpy(row.values, usage->item, sizeof(usage->item));
	row.values[RBP_COUNTER_CALLS] = 1;
	/* captures are not shown */
	for (int i = 0; i < RBP_NUM_USAGE_ITEMS; i++)
		any |= i == RBP_COUNT_CAPTURES ? 0 : usage->item[i];
	if (any != 0)
		rbp_counter_table_add(table, &row);
}

/*
 * ---- the view -----------------------------------------------------------------------
 */

static bool
put_statement(const RbpCounterRow *counters, RbpRow *row)
{
	Oid			user = (Oid) (counters->key.high >> 32);

	rbp_row_put(row, "userid", ObjectIdGetDatum(user), false);
	rbp_row_put(row, "dbid", ObjectIdGetDatum((Oid) counters->key.high), false);
	rbp_row_put(row, "queryid", Int64GetDatum((int64) counters->key.low),
				user != GetUserId() && !has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS));
	rbp_row_count(row, "calls", counters->values[RBP_COUNTER_CALLS]);
	return true;
}

Datum
rbp_sql_stat_statements(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);

	if (table != NULL)
		rbp_sql_counter_rows(rsinfo, table, put_statement);
	return (Datum) 0;
}

Datum
rbp_sql_stat_statements_reset(PG_FUNCTION_ARGS)
{
	rbp_sql_require_loaded();
	if (table != NULL)
		rbp_counter_table_clear(table);
	PG_RETURN_VOID();
}
