/*-------------------------------------------------------------------------
 *
 * server.c
 *	  Settings for the whole server, or for a whole database: excluded
 *	  tablespaces and limits.
 *
 * A database's limit is a setting of the database, in pg_db_role_setting.  So
 * pg_dumpall dumps it, standbys have it, and it is dropped with the database.
 *
 * This code runs in the worker, whichever database it visits.  Walks through
 * the directory can be interrupted; the remaining work is recorded, and done
 * by the next worker.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/tablespace.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "base/guc.h"
#include "base/relfile.h"
#include "buffer/buffer.h"
#include "policy/policy_internal.h"

/*
 * ---- tablespaces --------------------------------------------------------------------
 */

/*
 * Read remote_bp.exclude_tablespaces; collect the names of tablespaces that
 * do not exist.
 */
static void
read_excluded(RbpPolicyServer *server)
{
	StringInfoData unknown;
	List	   *names;
	ListCell   *cell;

	initStringInfo(&unknown);
	/* the check hook has checked the syntax */
	(void) SplitIdentifierString(pstrdup(rbp_guc_exclude_tablespaces), ',', &names);
	foreach(cell, names)
	{
		Oid			spc = get_tablespace_oid(lfirst(cell), true);

		if (OidIsValid(spc) && server->nexcluded < RBP_MAX_EXCLUDED)
			server->excluded[server->nexcluded++] = spc;
		else
			appendStringInfo(&unknown, "%s\"%s\"", unknown.len > 0 ? ", " : "",
							 (char *) lfirst(cell));
	}
	server->not_excluded = unknown.data;
}

void
rbp_policy_exclude_tablespaces(const RbpPolicyServer *server)
{
	RbpPolicyShared *shared = rbp_policy_shared;

	if (rbp_residency_set_excluded(server->excluded, server->nexcluded))
		shared->apply_pending = true;

	/* the saved text may be truncated: it only serves for this comparison */
	if (strncmp(shared->unknown_logged, server->not_excluded,
				sizeof(shared->unknown_logged) - 1) == 0)
		return;
	strlcpy(shared->unknown_logged, server->not_excluded, sizeof(shared->unknown_logged));
	if (server->not_excluded[0] != '\0')
		ereport(LOG,
				(errmsg("remote_bp: could not exclude tablespaces: %s", server->not_excluded),
				 errdetail("Names in remote_bp.exclude_tablespaces belong to no tablespace, or there are more than %d.",
						   RBP_MAX_EXCLUDED)));
}

/*
 * ---- limits ------------------------------------------------------------------------
 */

/* Read the limits of all databases, as a list of RbpDatabaseUse *, without pages. */
static List *
read_limits(void)
{
	MemoryContext context = CurrentMemoryContext;
	SPITupleTable *rows = rbp_policy_sql(InvalidOid,
										 "SELECT setdatabase, split_part(setting, '=', 2)"
										 " FROM pg_db_role_setting, unnest(setconfig) AS setting"
										 " WHERE setdatabase <> 0 AND setrole = 0"
										 " AND split_part(setting, '=', 1) = 'remote_bp.database_limit'",
										 0, NULL, NULL, true);
	List	   *limits = NIL;

	MemoryContextSwitchTo(context);
	for (uint64 i = 0; i < rows->numvals; i++)
	{
		RbpDatabaseUse *limit;
		int			mb;

		if (!parse_int(TextDatumGetCString(rbp_policy_value(rows, i, 2)), &mb, GUC_UNIT_MB, NULL) ||
			mb < 0)
			continue;
		limit = palloc0(sizeof(RbpDatabaseUse));
		limit->database = DatumGetObjectId(rbp_policy_value(rows, i, 1));
		limit->max_pages = (int64) Min((uint64) mb * (1024 * 1024 / BLCKSZ), PG_UINT32_MAX - 1);
		limits = lappend(limits, limit);
	}
	SPI_finish();
	return limits;
}

/* The limit of the database in the list; -1 if it has none */
static int64
limit_of(const List *limits, Oid database)
{
	const ListCell *cell;

	foreach(cell, limits)
	{
		const RbpDatabaseUse *limit = lfirst(cell);

		if (limit->database == database)
			return limit->max_pages;
	}
	return -1;
}

/*
 * Pages above a limit are dropped once, when it is set: kept pages stay in spite of
 * it, and others that come make room.
 */
void
rbp_policy_limit_databases(const List *limits)
{
	const ListCell *cell;
	RbpDatabaseUse use;
	uint32		at = 0;

	while (rbp_residency_next_database(&at, &use))
		if (use.max_pages >= 0 && limit_of(limits, use.database) < 0)
			rbp_residency_set_limit(use.database, -1);
	foreach(cell, limits)
	{
		const RbpDatabaseUse *limit = lfirst(cell);

		if (rbp_residency_limit(limit->database) == limit->max_pages)
			continue;
		rbp_policy_shared->trim_pending = true;
		rbp_residency_set_limit(limit->database, limit->max_pages);
	}
	if (rbp_policy_shared->trim_pending)
		foreach(cell, limits)
			rbp_residency_trim(((const RbpDatabaseUse *) lfirst(cell))->database);
	rbp_policy_shared->trim_pending = false;
}

/*
 * ---- all of it ----------------------------------------------------------------------
 */

/* Dropped databases whose files still have policies. */
static List *
dropped_databases(void)
{
	List	   *seen = NIL;
	List	   *dropped = NIL;
	RbpRelFile	file;
	uint32		at = 0;

	while (rbp_residency_next_policy(&at, &file))
	{
		if (list_member_oid(seen, file.db))
			continue;
		seen = lappend_oid(seen, file.db);
		if (!SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(file.db)))
			dropped = lappend_oid(dropped, file.db);
	}
	list_free(seen);
	return dropped;
}

RbpPolicyServer
rbp_policy_read_server(void)
{
	RbpPolicyServer server = {0};

	read_excluded(&server);
	server.limits = read_limits();
	server.dropped = dropped_databases();
	return server;
}

void
rbp_policy_apply_to_pages(void)
{
	rbp_residency_apply_policies();
	rbp_policy_shared->apply_pending = false;
}
