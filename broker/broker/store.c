/*-------------------------------------------------------------------------
 *
 * store.c
 *	  Where the broker's state is kept: a database of SQLite, in memory.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/schema.h"
#include "broker/broker/store.h"
#include "broker/common/log.h"
#include "common/clock.h"
#include "common/hmac.h"
#include "common/text.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_STATEMENTS		256

static sqlite3 *db;
static int64_t now;

static struct
{
	const char *sql;
	sqlite3_stmt *stmt;
}			statements[MAX_STATEMENTS];

/* Leases live on without this broker.  _exit, because other threads are running. */
static void
__attribute__((noreturn))
give_up(void)
{
	rbp_log(RBP_LOG_ERROR, "SQLite fails: %s; stopping, leases live on for their TTL", sqlite3_errmsg(db));
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
		{
			char	   *text = json_dumps(value->json, JSON_COMPACT);

			rc = text != NULL ? sqlite3_bind_text(stmt, i, text, -1, free) : SQLITE_NOMEM;
		}
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
		return sqlite3_result_error(context, "a lease's secret is none", -1);
	rbp_hex_encode(key, sizeof(key), text);
	sqlite3_result_text(context, text, -1, SQLITE_TRANSIENT);
	explicit_bzero(secret, sizeof(secret));
	explicit_bzero(key, sizeof(key));
	explicit_bzero(text, sizeof(text));
}

/*
 * ---- open and close -----------------------------------------------------------
 */

void
broker_store_open(BrokerOnChange on_change)
{
	now = rbp_mono_ms();
	if (sqlite3_open_v2(":memory:", &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK ||
		sqlite3_create_function(db, "now_ms", 0, SQLITE_UTF8, NULL, sql_now_ms, NULL, NULL) != SQLITE_OK ||
		sqlite3_create_function(db, "donor_key", 2, SQLITE_UTF8, NULL, sql_donor_key, NULL, NULL) != SQLITE_OK ||
		sqlite3_exec(db, "PRAGMA foreign_keys = ON; PRAGMA secure_delete = ON; PRAGMA temp_store = MEMORY",
					 NULL, NULL, NULL) != SQLITE_OK ||
		sqlite3_exec(db, broker_schema, NULL, NULL, NULL) != SQLITE_OK ||
	/* a statement that fails ends the process: nothing is rolled back */
		sqlite3_exec(db, "PRAGMA journal_mode = OFF", NULL, NULL, NULL) != SQLITE_OK)
		rbp_die("cannot use SQLite: %s", sqlite3_errmsg(db));
	sqlite3_update_hook(db, on_change, NULL);
}

void
broker_store_close(void)
{
	for (int i = 0; statements[i].sql != NULL; i++)
		sqlite3_finalize(statements[i].stmt);
	sqlite3_close(db);
	db = NULL;
}
