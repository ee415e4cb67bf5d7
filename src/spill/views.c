/*-------------------------------------------------------------------------
 *
 * views.c
 *	  The view remote_bp_temp_files.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_tablespace_d.h"
#include "fmgr.h"

#include "base/sql.h"
#include "spill/spill_internal.h"

PG_FUNCTION_INFO_V1(rbp_sql_temp_files);

/* The tablespace in which the named temporary file is. */
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
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);
	RbpSpillHandle handle;

	for (uint32 i = 0; rbp_spill_shared != NULL && rbp_spill_table_next(i, &handle); i = handle.index + 1)
	{
		RbpSpillFile *file = rbp_spill_file_lock(handle, false, true);
		RbpSpillFile copy;
		RbpRow		row = {0};

		if (file == NULL)
			continue;
		copy = *file;
		rbp_spill_file_unlock(file);
		rbp_row_text(&row, "file", copy.name);
		rbp_row_put(&row, "tablespace", ObjectIdGetDatum(tablespace_of_name(copy.name)), false);
		rbp_row_put(&row, "owner", Int32GetDatum(copy.owner), false);
		rbp_row_put(&row, "temp_relation", BoolGetDatum(copy.relation), false);
		rbp_row_count(&row, "size", (uint64) copy.size);
		rbp_row_count(&row, "remote_bytes", (uint64) copy.slot_blocks * BLCKSZ);
		rbp_row_count(&row, "staged_bytes", (uint64) copy.staged_blocks * BLCKSZ);
		rbp_row_count(&row, "mirrored_bytes", (uint64) copy.mirrored_blocks * BLCKSZ);
		rbp_sql_add_row(rsinfo, &row);
	}
	return (Datum) 0;
}
