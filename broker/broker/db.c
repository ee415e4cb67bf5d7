/*-------------------------------------------------------------------------
 *
 * db.c
 *	  The broker's state on disk: one SQLite file in WAL mode.
 *
 * Tables: donors, leases (live ones, and the last ones that ended, without
 * secrets), and regions that are leased or dirty; a clean region has no row.
 * Deadlines and what donors report by the second are not kept.
 *
 * synchronous=FULL: a commit survives the machine's crash too.  That costs an
 * fsync only where something changed hands.
 *
 * locking_mode=EXCLUSIVE: a second broker on the same file cannot start.
 *
 * A file that an earlier version wrote is brought up to this version's schema
 * when it is opened; the earlier one cannot use it any more then.
 *
 * Any failure to write ends the process, see state.h.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/db.h"
#include "broker/broker/model.h"
#include "broker/common/log.h"
#include "common/text.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCHEMA_VERSION	2

static sqlite3 *db;
static bool in_transaction;

static const char *const schema =
"CREATE TABLE donors ("
" id TEXT PRIMARY KEY,"
" host TEXT NOT NULL,"
" port INTEGER NOT NULL,"
" shm_name TEXT NOT NULL,"
" boot_id TEXT NOT NULL,"
" transports TEXT NOT NULL,"	/* JSON array */
" region_size INTEGER NOT NULL,"
" regions INTEGER NOT NULL,"
" instance TEXT NOT NULL,"
" revision INTEGER NOT NULL,"
" draining INTEGER NOT NULL,"
" grace_ms INTEGER NOT NULL,"
" rdma_host TEXT NOT NULL DEFAULT '',"
" rdma_port INTEGER NOT NULL DEFAULT 0"
") WITHOUT ROWID;"
"CREATE TABLE leases ("
" id TEXT PRIMARY KEY,"
" secret BLOB NOT NULL,"
" client TEXT NOT NULL,"
" instance TEXT NOT NULL,"
" purpose INTEGER NOT NULL,"
" wanted INTEGER NOT NULL,"
" ttl_ms INTEGER NOT NULL,"
" created INTEGER NOT NULL,"
" ended INTEGER NOT NULL"		/* LeaseEnd */
") WITHOUT ROWID;"
"CREATE TABLE regions ("
" donor TEXT NOT NULL,"
" region INTEGER NOT NULL,"
" state INTEGER NOT NULL,"		/* RegionState, never REGION_CLEAN */
" lease TEXT,"
" rev INTEGER NOT NULL,"
" PRIMARY KEY (donor, region)"
") WITHOUT ROWID;";

/*
 * upgrades[N] leads from version N + 1 to N + 2.  Columns are added at the end,
 * where the schema above has them too.
 */
static const char *const upgrades[SCHEMA_VERSION - 1] = {
	"ALTER TABLE donors ADD COLUMN rdma_host TEXT NOT NULL DEFAULT '';"
	"ALTER TABLE donors ADD COLUMN rdma_port INTEGER NOT NULL DEFAULT 0;",
};

/* Statements that are used again and again, prepared at start. */
typedef enum StatementId
{
	PUT_DONOR, DELETE_DONOR, DELETE_DONOR_REGIONS, PUT_REGION, DELETE_REGION,
	PUT_LEASE, DELETE_LEASE, BEGIN_TX, COMMIT_TX,
	STATEMENT_COUNT
} StatementId;

static sqlite3_stmt *statements[STATEMENT_COUNT];
static const char *const statement_sql[STATEMENT_COUNT] = {
	[PUT_DONOR] = "INSERT OR REPLACE INTO donors VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
	[DELETE_DONOR] = "DELETE FROM donors WHERE id = ?",
	[DELETE_DONOR_REGIONS] = "DELETE FROM regions WHERE donor = ?",
	[PUT_REGION] = "INSERT OR REPLACE INTO regions VALUES (?,?,?,?,?)",
	[DELETE_REGION] = "DELETE FROM regions WHERE donor = ? AND region = ?",
	[PUT_LEASE] = "INSERT OR REPLACE INTO leases VALUES (?,?,?,?,?,?,?,?,?)",
	[DELETE_LEASE] = "DELETE FROM leases WHERE id = ?",
	[BEGIN_TX] = "BEGIN IMMEDIATE",
	[COMMIT_TX] = "COMMIT",
};

/*
 * The promise "what was answered is on disk" cannot be kept any more.  _exit,
 * because other threads hold pointers into the state.
 */
static void
give_up(const char *what)
{
	rbp_log(RBP_LOG_ERROR, "cannot %s the state file: %s; stopping, leases live on for their TTL",
			what, sqlite3_errmsg(db));
	_exit(RBP_EXIT_FAIL);
}

static void
run(StatementId id)
{
	sqlite3_stmt *stmt = statements[id];

	if (sqlite3_step(stmt) != SQLITE_DONE)
		give_up("write");
	sqlite3_reset(stmt);
}

static sqlite3_stmt *
writing(StatementId id)
{
	if (!in_transaction)
	{
		run(BEGIN_TX);
		in_transaction = true;
	}
	return statements[id];
}

static void
bind_text(sqlite3_stmt *stmt, int index, const char *text)
{
	if (sqlite3_bind_text(stmt, index, text, -1, SQLITE_TRANSIENT) != SQLITE_OK)
		give_up("write");
}

static void
bind_int(sqlite3_stmt *stmt, int index, int64_t value)
{
	if (sqlite3_bind_int64(stmt, index, value) != SQLITE_OK)
		give_up("write");
}

void
broker_db_commit(void)
{
	if (!in_transaction)
		return;
	run(COMMIT_TX);
	in_transaction = false;
}

void
broker_db_put_donor(const BrokerDonor *donor)
{
	sqlite3_stmt *stmt = writing(PUT_DONOR);
	char	   *transports = json_dumps(donor->transports, JSON_COMPACT);

	bind_text(stmt, 1, donor->id);
	bind_text(stmt, 2, donor->host);
	bind_int(stmt, 3, donor->port);
	bind_text(stmt, 4, donor->shm_name);
	bind_text(stmt, 5, donor->boot_id);
	bind_text(stmt, 6, transports ? transports : "[]");
	bind_int(stmt, 7, donor->region_size);
	bind_int(stmt, 8, donor->nregions);
	bind_text(stmt, 9, donor->instance);
	bind_int(stmt, 10, donor->revision);
	bind_int(stmt, 11, donor->draining);
	bind_int(stmt, 12, donor->grace_ms);
	bind_text(stmt, 13, donor->rdma_host);
	bind_int(stmt, 14, donor->rdma_port);
	free(transports);
	run(PUT_DONOR);
}

void
broker_db_delete_donor(const BrokerDonor *donor)
{
	bind_text(writing(DELETE_DONOR), 1, donor->id);
	run(DELETE_DONOR);
	bind_text(writing(DELETE_DONOR_REGIONS), 1, donor->id);
	run(DELETE_DONOR_REGIONS);
}

void
broker_db_put_region(const BrokerDonor *donor, int region)
{
	const BrokerRegion *r = &donor->regions[region];
	sqlite3_stmt *stmt;

	if (r->state == REGION_CLEAN)
	{
		stmt = writing(DELETE_REGION);
		bind_text(stmt, 1, donor->id);
		bind_int(stmt, 2, region);
		run(DELETE_REGION);
		return;
	}
	stmt = writing(PUT_REGION);
	bind_text(stmt, 1, donor->id);
	bind_int(stmt, 2, region);
	bind_int(stmt, 3, r->state);
	if (r->lease != NULL)
		bind_text(stmt, 4, r->lease->id);
	else if (sqlite3_bind_null(stmt, 4) != SQLITE_OK)
		give_up("write");
	bind_int(stmt, 5, r->rev);
	run(PUT_REGION);
}

void
broker_db_put_lease(const BrokerLease *lease)
{
	sqlite3_stmt *stmt = writing(PUT_LEASE);

	bind_text(stmt, 1, lease->id);
	if (sqlite3_bind_blob(stmt, 2, lease->secret, sizeof(lease->secret),
						  SQLITE_TRANSIENT) != SQLITE_OK)
		give_up("write");
	bind_text(stmt, 3, lease->client);
	bind_text(stmt, 4, lease->instance);
	bind_int(stmt, 5, lease->purpose);
	bind_int(stmt, 6, lease->wanted);
	bind_int(stmt, 7, lease->ttl_ms);
	bind_int(stmt, 8, lease->created);
	bind_int(stmt, 9, lease->ended);
	run(PUT_LEASE);
}

void
broker_db_delete_lease(const BrokerLease *lease)
{
	bind_text(writing(DELETE_LEASE), 1, lease->id);
	run(DELETE_LEASE);
}

/*
 * ---- opening and loading --------------------------------------------------------
 */

static void
exec_or_die(const char *path, const char *sql)
{
	if (sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK)
		return;
	if (sqlite3_errcode(db) == SQLITE_BUSY)
		rbp_die("state file \"%s\" is in use: is another broker running on it?", path);
	rbp_die("cannot use state file \"%s\": %s", path, sqlite3_errmsg(db));
}

static sqlite3_stmt *
prepare_or_die(const char *path, const char *sql)
{
	sqlite3_stmt *stmt;

	if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) != SQLITE_OK)
		rbp_die("cannot use state file \"%s\": %s", path, sqlite3_errmsg(db));
	return stmt;
}

/* True if there is a row; dies on errors. */
static bool
next_row(const char *path, sqlite3_stmt *stmt)
{
	int			rc = sqlite3_step(stmt);

	if (rc == SQLITE_ROW)
		return true;
	if (rc != SQLITE_DONE)
		rbp_die("cannot read state file \"%s\": %s", path, sqlite3_errmsg(db));
	sqlite3_finalize(stmt);
	return false;
}

static bool
copy_column(sqlite3_stmt *stmt, int column, char *dst, size_t size)
{
	const char *text = (const char *) sqlite3_column_text(stmt, column);

	if (text == NULL || strlen(text) >= size)
		return false;
	strcpy(dst, text);
	return true;
}

static int64_t
query_int(const char *path, const char *sql)
{
	sqlite3_stmt *stmt = prepare_or_die(path, sql);
	int64_t		value = 0;

	while (next_row(path, stmt))
		value = sqlite3_column_int64(stmt, 0);
	return value;
}

static void
load_donors(const char *path, const BrokerLoader *loader)
{
	sqlite3_stmt *stmt = prepare_or_die(path, "SELECT * FROM donors");

	while (next_row(path, stmt))
	{
		int64_t		nregions = sqlite3_column_int64(stmt, 7);
		const char *id = (const char *) sqlite3_column_text(stmt, 0);
		const char *transports = (const char *) sqlite3_column_text(stmt, 5);
		BrokerDonor *donor;

		if (nregions < 1 || nregions > BROKER_MAX_REGIONS || id == NULL ||
			!rbp_valid_id(id, BROKER_DONOR_ID_LEN) || transports == NULL)
			rbp_die("state file \"%s\" is damaged: table donors", path);
		donor = loader->new_donor(id, (int) nregions);
		if (donor == NULL)
			rbp_die("out of memory");
		donor->transports = json_loads(transports, 0, NULL);
		donor->port = sqlite3_column_int(stmt, 2);
		donor->region_size = sqlite3_column_int64(stmt, 6);
		donor->revision = sqlite3_column_int64(stmt, 9);
		donor->draining = sqlite3_column_int(stmt, 10) != 0;
		donor->grace_ms = sqlite3_column_int64(stmt, 11);
		donor->rdma_port = sqlite3_column_int(stmt, 13);
		if (!json_is_array(donor->transports) || donor->region_size <= 0 ||
			!copy_column(stmt, 1, donor->host, sizeof(donor->host)) ||
			!copy_column(stmt, 3, donor->shm_name, sizeof(donor->shm_name)) ||
			!copy_column(stmt, 4, donor->boot_id, sizeof(donor->boot_id)) ||
			!copy_column(stmt, 8, donor->instance, sizeof(donor->instance)) ||
			!copy_column(stmt, 12, donor->rdma_host, sizeof(donor->rdma_host)))
			rbp_die("state file \"%s\" is damaged: table donors", path);
		loader->donor(donor);
	}
}

static void
load_leases(const char *path, const BrokerLoader *loader)
{
	sqlite3_stmt *stmt = prepare_or_die(path, "SELECT * FROM leases ORDER BY created");

	while (next_row(path, stmt))
	{
		BrokerLease *lease = calloc(1, sizeof(BrokerLease));
		const void *secret = sqlite3_column_blob(stmt, 1);

		if (lease == NULL)
			rbp_die("out of memory");
		if (secret == NULL ||
			sqlite3_column_bytes(stmt, 1) != BROKER_SECRET_LEN ||
			!copy_column(stmt, 0, lease->id, sizeof(lease->id)) ||
			!copy_column(stmt, 2, lease->client, sizeof(lease->client)) ||
			!copy_column(stmt, 3, lease->instance, sizeof(lease->instance)))
			rbp_die("state file \"%s\" is damaged: table leases", path);
		memcpy(lease->secret, secret, BROKER_SECRET_LEN);
		lease->purpose = sqlite3_column_int(stmt, 4) == PURPOSE_TEMP ?
			PURPOSE_TEMP : PURPOSE_BUFFER;
		lease->wanted = sqlite3_column_int64(stmt, 5);
		lease->ttl_ms = sqlite3_column_int64(stmt, 6);
		lease->created = sqlite3_column_int64(stmt, 7);
		lease->ended = (BrokerLeaseEnd) sqlite3_column_int(stmt, 8);
		loader->lease(lease);
	}
}

static void
load_regions(const char *path, const BrokerLoader *loader)
{
	sqlite3_stmt *stmt = prepare_or_die(path, "SELECT * FROM regions");

	while (next_row(path, stmt))
	{
		const char *donor_id = (const char *) sqlite3_column_text(stmt, 0);
		const char *lease_id = (const char *) sqlite3_column_text(stmt, 3);

		if (donor_id == NULL ||
			!loader->region(donor_id, sqlite3_column_int(stmt, 1),
							(BrokerRegionState) sqlite3_column_int(stmt, 2), lease_id,
							sqlite3_column_int64(stmt, 4)))
			rbp_die("state file \"%s\" is damaged: table regions", path);
	}
}

void
broker_db_open(const char *path, const BrokerLoader *loader)
{
	int64_t		version;
	mode_t		old_umask;
	char		sql[64];

	/* it holds the leases' secrets */
	old_umask = umask(0077);
	if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE |
						SQLITE_OPEN_FULLMUTEX, NULL) != SQLITE_OK)
		rbp_die("cannot open state file \"%s\": %s", path, sqlite3_errmsg(db));

	/* the predecessor may be on its way out */
	sqlite3_busy_timeout(db, 2000);
	exec_or_die(path, "PRAGMA locking_mode = EXCLUSIVE");
	exec_or_die(path, "PRAGMA journal_mode = WAL");
	exec_or_die(path, "PRAGMA synchronous = FULL");
	/* takes the lock now rather than at the first change */
	exec_or_die(path, "BEGIN IMMEDIATE");

	version = query_int(path, "PRAGMA user_version");
	if (version == 0 &&
		query_int(path, "SELECT count(*) FROM sqlite_master") == 0)
		exec_or_die(path, schema);
	else if (version >= 1 && version <= SCHEMA_VERSION)
	{
		for (int64_t v = version; v < SCHEMA_VERSION; v++)
			exec_or_die(path, upgrades[v - 1]);
	}
	else
		rbp_die("state file \"%s\" is not a remote_bp broker's, or of another version (%d)",
				path, (int) version);
	if (version != SCHEMA_VERSION)
	{
		snprintf(sql, sizeof(sql), "PRAGMA user_version = %d", SCHEMA_VERSION);
		exec_or_die(path, sql);
	}
	exec_or_die(path, "COMMIT");
	umask(old_umask);

	for (int i = 0; i < STATEMENT_COUNT; i++)
		statements[i] = prepare_or_die(path, statement_sql[i]);

	load_donors(path, loader);
	load_leases(path, loader);
	load_regions(path, loader);
	/* loading may have thrown out old ended leases */
	broker_db_commit();
}

void
broker_db_close(void)
{
	for (int i = 0; i < STATEMENT_COUNT; i++)
		sqlite3_finalize(statements[i]);
	sqlite3_close(db);
	db = NULL;
}
