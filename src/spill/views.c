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
#include "funcapi.h"
#include "utils/builtins.h"

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
	enum
	{
		TEMP_FILE, TABLESPACE, OWNER, TEMP_RELATION, SIZE, REMOTE_BYTES,
		STAGED_BYTES, MIRRORED_BYTES, COLUMNS
	};
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo, COLUMNS);
	RbpSpillHandle handle;

	for (uint32 i = 0; rbp_spill_shared != NULL && rbp_spill_table_next(i, &handle); i = handle.index + 1)
	{
		RbpSpillFile *file = rbp_spill_file_lock(handle, false, true);
		RbpSpillFile copy;
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};

		if (file == NULL)
			continue;
		copy = *file;
		rbp_spill_file_unlock(file);
		values[TEMP_FILE] = CStringGetTextDatum(copy.name);
		values[TABLESPACE] = ObjectIdGetDatum(tablespace_of_name(copy.name));
		values[OWNER] = Int32GetDatum(copy.owner);
		values[TEMP_RELATION] = BoolGetDatum(copy.relation);
		values[SIZE] = Int64GetDatum(copy.size);
		values[REMOTE_BYTES] = Int64GetDatum((int64) copy.slot_blocks * BLCKSZ);
		values[STAGED_BYTES] = Int64GetDatum((int64) copy.staged_blocks * BLCKSZ);
		values[MIRRORED_BYTES] = Int64GetDatum((int64) copy.mirrored_blocks * BLCKSZ);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
