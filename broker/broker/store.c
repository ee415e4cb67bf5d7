/*-------------------------------------------------------------------------
 *
 * store.c
 *	  Where the broker's state is kept: one SQLite file in WAL mode.
 *
 * synchronous=FULL: a commit survives the machine's crash too.  That costs an
 * fsync only where something changed on disk; the volatile tables are SQLite's
 * temporary ones, in memory.
 *
 * locking_mode=EXCLUSIVE: a second broker on the same file cannot start.
 *
 * secure_delete: secrets of leases that ended are overwritten.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/schema.h"
#include "broker/broker/store.h"
#include "broker/common/log.h"
#include "broker/common/secret.h"
#include "common/clock.h"
#include "common/hmac.h"
#include "common/text.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_STATEMENTS		256
#define CHECKPOINT_PAGES	1000	/* SQLite's default */

static sqlite3 *db;
static const char *file;
static int64_t now;
static bool wrote;				/* the transaction that was committed last */

static struct
{
	const char *sql;
	sqlite3_stmt *stmt;
}			statements[MAX_STATEMENTS];

/*
 * The promise "what was answered is on disk" cannot be kept any more.  _exit,
 * because other threads are running.
 */
static void
__attribute__((noreturn))
give_up(void)
{
	rbp_log(RBP_LOG_ERROR, "cannot use state file \"%s\": %s; stopping, leases live on for their TTL",
			file, sqlite3_errmsg(db));
	_exit(RBP_EXIT_FAIL);
}

/*
 * ---- statements ---------------------------------------------------------------
 */

static sqlite3_stmt *
prepared(const char *sql)
{
	int			i = 0;

	while (statements[i].sql != NULL && statements[i].sql != sql)
		i++;
	if (statements[i].sql == NULL)
	{
		if (i == MAX_STATEMENTS - 1)
			abort();			/* one was not a constant */
		if (sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT,
							   &statements[i].stmt, NULL) != SQLITE_OK)
			give_up();
		statements[i].sql = sql;
	}
	return statements[i].stmt;
}

BrokerRows *
broker_store_query(const char *sql, size_t n, const BrokerValue *values)
{
	sqlite3_stmt *stmt = prepared(sql);

	if ((size_t) sqlite3_bind_parameter_count(stmt) != n)
		abort();
	for (int i = 1; i <= (int) n; i++)
	{
		const BrokerValue *value = &values[i];
		int			rc = SQLITE_OK;

		if (value->kind == VALUE_INT)
			rc = sqlite3_bind_int64(stmt, i, value->number);
		else if (value->kind == VALUE_TEXT)
			rc = sqlite3_bind_text(stmt, i, value->text, -1, SQLITE_TRANSIENT);
		else if (value->json == NULL)
			rc = sqlite3_bind_null(stmt, i);
		else
			rc = sqlite3_bind_text(stmt, i, json_dumps(value->json, JSON_COMPACT), -1, free);
		if (rc != SQLITE_OK)
			give_up();
	}
	return stmt;
}

bool
broker_next(BrokerRows *rows)
{
	int			rc = sqlite3_step(rows);

	if (rc == SQLITE_ROW)
		return true;
	if (rc != SQLITE_DONE)
		give_up();
	sqlite3_reset(rows);
	return false;
}

int64_t
broker_int(BrokerRows *rows, int column)
{
	return sqlite3_column_int64(rows, column);
}

const char *
broker_text(BrokerRows *rows, int column)
{
	return (const char *) sqlite3_column_text(rows, column);
}

int
broker_store_run(const char *sql, size_t n, const BrokerValue *values)
{
	if (broker_next(broker_store_query(sql, n, values)))
		abort();				/* it is a query */
	return sqlite3_changes(db);
}

int64_t
broker_store_get(const char *sql, size_t n, const BrokerValue *values)
{
	BrokerRows *rows = broker_store_query(sql, n, values);
	int64_t		value = broker_next(rows) ? broker_int(rows, 0) : 0;

	sqlite3_reset(rows);
	return value;
}

bool
broker_store_get_all(int64_t *columns, const char *sql, size_t n, const BrokerValue *values)
{
	BrokerRows *rows = broker_store_query(sql, n, values);
	bool		found = broker_next(rows);

	for (int i = 0; found && i < sqlite3_column_count(rows); i++)
		columns[i] = broker_int(rows, i);
	sqlite3_reset(rows);
	return found;
}

char *
broker_store_get_text(const char *sql, size_t n, const BrokerValue *values)
{
	BrokerRows *rows = broker_store_query(sql, n, values);
	const char *text = broker_next(rows) ? broker_text(rows, 0) : NULL;
	char	   *copy = text ? strdup(text) : NULL;

	sqlite3_reset(rows);
	return copy;
}

void
broker_store_log(RbpLogLevel level, const char *sql, size_t n, const BrokerValue *values)
{
	char	   *text = broker_store_get_text(sql, n, values);

	rbp_log(level, "%s", text);
	free(text);
}

/*
 * ---- transactions -------------------------------------------------------------
 */

void
broker_store_begin(void)
{
	now = rbp_mono_ms();
	broker_run("BEGIN");
}

/*
 * A full disk is SQLITE_FULL or, if it is a quota or a limit, SQLITE_IOERR.  SQLite
 * writes what it could not write, or sync, again with the next commit.
 */
const char *
broker_store_commit(bool *changed)
{
	sqlite3_stmt *stmt = broker_store_query("COMMIT", BROKER_VALUES());
	const char *fault = NULL;
	int			rc;

	wrote = false;
	rc = sqlite3_step(stmt);
	if (rc == SQLITE_IOERR)
		fault = strerror(sqlite3_system_errno(db));
	else if (rc == SQLITE_FULL)
		fault = sqlite3_errstr(rc);
	else if (rc != SQLITE_DONE)
		give_up();
	sqlite3_reset(stmt);
	if (fault != NULL)
		broker_store_rollback();
	*changed = wrote;
	return fault;
}

/* A commit that failed has rolled back by itself, or not. */
void
broker_store_rollback(void)
{
	if (!sqlite3_get_autocommit(db))
		broker_run("ROLLBACK");
}

#define SET_VERSION(n)	"PRAGMA user_version = " #n
#define SET_SAME_VERSION(n)	SET_VERSION(n)

void
broker_store_touch(void)
{
	broker_run(SET_SAME_VERSION(BROKER_SCHEMA_VERSION));
}

int64_t
broker_now(void)
{
	return now;
}

static void
sql_now_ms(sqlite3_context *context, int argc, sqlite3_value **argv)
{
	sqlite3_result_int64(context, now);
}

/* donor_key(SECRET, DONOR), in hex digits: see rbp_donor_key(). */
static void
sql_donor_key(sqlite3_context *context, int argc, sqlite3_value **argv)
{
	unsigned char secret[RBP_SECRET_LEN];
	unsigned char key[RBP_SECRET_LEN];
	char		text[2 * RBP_SECRET_LEN + 1];

	if (!rbp_hex_decode((const char *) sqlite3_value_text(argv[0]), secret, sizeof(secret)) ||
		!rbp_donor_key(secret, (const char *) sqlite3_value_text(argv[1]), key))
		return sqlite3_result_error(context, "a lease's secret is damaged", -1);
	rbp_hex_encode(key, sizeof(key), text);
	sqlite3_result_text(context, text, -1, SQLITE_TRANSIENT);
	explicit_bzero(secret, sizeof(secret));
	explicit_bzero(key, sizeof(key));
	explicit_bzero(text, sizeof(text));
}

/* A commit went to the disk. */
static int
on_wal(void *arg, sqlite3 *handle, const char *name, int pages)
{
	wrote = true;
	if (pages >= CHECKPOINT_PAGES)
		sqlite3_wal_checkpoint_v2(handle, name, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
	return SQLITE_OK;
}

/*
 * ---- open and close -----------------------------------------------------------
 */

static void
exec_or_die(const char *sql)
{
	if (sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK)
		return;
	if (sqlite3_errcode(db) == SQLITE_BUSY)
		rbp_die("state file \"%s\" is in use: is another broker running on it?", file);
	rbp_die("cannot use state file \"%s\": %s", file, sqlite3_errmsg(db));
}

/* Make the tables of a new file. */
static void
make_tables(void)
{
	int			version = (int) broker_get("PRAGMA user_version");

	if (version == BROKER_SCHEMA_VERSION)
		return;
	if (version != 0 || broker_get("SELECT count(*) FROM sqlite_schema") > 0)
		rbp_die("state file \"%s\" is not a remote_bp broker's, or of another version (%d)",
				file, version);
	exec_or_die(broker_schema);
	broker_store_touch();
}

/* Add what later versions have added to the tables; others pass it over. */
static void
extend_tables(void)
{
	if (broker_get("SELECT count(*) FROM pragma_table_info('lease') WHERE name = 'keep_ms'") == 0)
		exec_or_die(broker_schema_keep);
}

/* The tables and what belongs to them, as text; malloc'ed.  NULL: they cannot be read. */
static char *
schema_of(sqlite3 *handle)
{
	sqlite3_stmt *stmt = NULL;
	char	   *text = NULL;

	if (sqlite3_prepare_v2(handle, "SELECT group_concat(type || name || tbl_name || ifnull(sql, ''))"
						   " FROM (SELECT * FROM sqlite_schema WHERE name NOT LIKE 'sqlite_stat%' ORDER BY name)",
						   -1, &stmt, NULL) == SQLITE_OK &&
		sqlite3_step(stmt) == SQLITE_ROW && sqlite3_column_type(stmt, 0) == SQLITE_TEXT)
		text = strdup((const char *) sqlite3_column_text(stmt, 0));
	sqlite3_finalize(stmt);
	return text;
}

/* Has the file the tables that a new one gets? */
static bool
has_our_schema(void)
{
	sqlite3    *fresh = NULL;
	char	   *theirs = schema_of(db);
	char	   *ours = NULL;
	bool		same;

	if (sqlite3_open(":memory:", &fresh) == SQLITE_OK &&
		sqlite3_exec(fresh, broker_schema, NULL, NULL, NULL) == SQLITE_OK &&
		sqlite3_exec(fresh, broker_schema_keep, NULL, NULL, NULL) == SQLITE_OK)
		ours = schema_of(fresh);
	sqlite3_close(fresh);
	same = ours != NULL && theirs != NULL && strcmp(ours, theirs) == 0;
	free(ours);
	free(theirs);
	return same;
}

/*
 * Die if the file is not as a broker leaves it.  What is wrong in memory or on the disk
 * shows now, and not when a region has two leases.
 */
static void
check_content(void)
{
	char	   *fault = broker_get_text("PRAGMA integrity_check(1)");

	if (fault != NULL && strcmp(fault, "ok") != 0)
		rbp_die("state file \"%s\" is damaged: %s", file, fault);
	free(fault);
	if (!has_our_schema())
		rbp_die("state file \"%s\" is damaged: its tables are not a broker's", file);
	fault = broker_get_text("SELECT format('a row of %s is of a %s that is not there', \"table\", parent)"
							" FROM pragma_foreign_key_check LIMIT 1");
	if (fault == NULL)
		fault = broker_get_text(broker_schema_damage);
	if (fault != NULL)
		rbp_die("state file \"%s\" is damaged: %s", file, fault);
}

void
broker_store_open(const char *path)
{
	/* it holds the leases' secrets */
	mode_t		old_umask = umask(0077);
	const char *fault = access(path, F_OK) == 0 ? rbp_secret_file_fault(path) : NULL;

	file = path;
	if (fault != NULL)
		rbp_die("cannot use state file \"%s\": %s", path, fault);
	if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE |
						SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
		rbp_die("cannot open state file \"%s\": %s", path, sqlite3_errmsg(db));

	/* the predecessor may be on its way out */
	sqlite3_busy_timeout(db, 2000);
	exec_or_die("PRAGMA locking_mode = EXCLUSIVE");
	exec_or_die("PRAGMA journal_mode = WAL");
	exec_or_die("PRAGMA synchronous = FULL");
	exec_or_die("PRAGMA foreign_keys = ON");
	exec_or_die("PRAGMA secure_delete = ON");
	exec_or_die("PRAGMA temp_store = MEMORY");
	exec_or_die("PRAGMA cache_size = -65536");	/* KiB, at most */
	exec_or_die("PRAGMA cache_spill = OFF");	/* only commits write */
	now = rbp_mono_ms();
	sqlite3_create_function(db, "now_ms", 0, SQLITE_UTF8, NULL, sql_now_ms, NULL, NULL);
	sqlite3_create_function(db, "donor_key", 2, SQLITE_UTF8, NULL, sql_donor_key, NULL, NULL);
	sqlite3_wal_hook(db, on_wal, NULL);

	/* takes the lock now rather than at the first change */
	exec_or_die("BEGIN IMMEDIATE");
	make_tables();
	extend_tables();
	check_content();
	exec_or_die(broker_schema_volatile);
	exec_or_die("COMMIT");
	umask(old_umask);
}

void
broker_store_close(void)
{
	for (int i = 0; statements[i].sql != NULL; i++)
		sqlite3_finalize(statements[i].stmt);
	sqlite3_close(db);
	db = NULL;
}
