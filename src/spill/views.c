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
	RbpSpillFile *files;
	int			n;

	files = rbp_spill_copy_files(&n);
	for (int i = 0; i < n; i++)
	{
		const RbpSpillFile *f = &files[i];
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};

		values[TEMP_FILE] = CStringGetTextDatum(f->name);
		values[TABLESPACE] = ObjectIdGetDatum(tablespace_of_name(f->name));
		values[OWNER] = Int32GetDatum(f->owner);
		values[TEMP_RELATION] = BoolGetDatum(f->relation);
		values[SIZE] = Int64GetDatum(f->size);
		values[REMOTE_BYTES] = Int64GetDatum((int64) f->slot_blocks * BLCKSZ);
		values[STAGED_BYTES] = Int64GetDatum((int64) f->staged_blocks * BLCKSZ);
		values[MIRRORED_BYTES] = Int64GetDatum((int64) f->mirrored_blocks * BLCKSZ);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
