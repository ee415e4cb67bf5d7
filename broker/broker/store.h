/*-------------------------------------------------------------------------
 *
 * store.h
 *	  Where the broker's state is kept: SQL, in transactions.
 *
 * What is behind this knows nothing of donors and leases, and those who use it
 * nothing of SQLite but its SQL.
 *
 * There is one transaction at a time: all of this is under broker.lock.  A failure
 * ends the process.  That is safe: donors tell the next broker what it has to know.
 *
 * A statement is a string literal: it is prepared once, and found again by its
 * address.  Parameters ?1, ?2, ... follow as INT(), TEXT() or JSON().
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_STORE_H
#define RBP_BROKER_STORE_H

#include "broker/common/log.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct BrokerValue
{
	enum
	{
		VALUE_NULL, VALUE_INT, VALUE_TEXT, VALUE_JSON
	}			kind;
	int64_t		number;
	const char *text;
	const json_t *json;
} BrokerValue;

#define INT(n)		((BrokerValue) {.kind = VALUE_INT, .number = (n)})
#define TEXT(t)		((BrokerValue) {.kind = VALUE_TEXT, .text = (t)})
#define JSON(j)		((BrokerValue) {.kind = VALUE_JSON, .json = (j)})	/* NULL: NULL */

/*
 * Two arguments: the number of parameters, and an array in which element n is
 * parameter ?n.
 */
#define BROKER_ARRAY(...) \
	((const BrokerValue[]) {{.kind = VALUE_NULL}, ##__VA_ARGS__})
#define BROKER_VALUES(...) \
	sizeof(BROKER_ARRAY(__VA_ARGS__)) / sizeof(BrokerValue) - 1, BROKER_ARRAY(__VA_ARGS__)

/* Called in the transaction for each row that changes in a table that has a number for each row. */
typedef void (*BrokerOnChange) (void *arg, int operation, const char *database, const char *table, long long row);

/* Makes the tables.  Ends the process, with a message, if that fails. */
extern void broker_store_open(BrokerOnChange on_change);
extern void broker_store_close(void);

extern void broker_store_begin(void);

/* rbp_mono_ms() as it was when the transaction began; now_ms() in SQL. */
extern int64_t broker_now(void);

/* Runs a statement; how many rows it changed, without those of triggers. */
#define broker_run(sql, ...) \
	broker_store_run(sql, BROKER_VALUES(__VA_ARGS__))
extern int	broker_store_run(const char *sql, size_t n, const BrokerValue *values);

/* The first column of the first row; 0 if that is NULL, or there is none. */
#define broker_get(sql, ...) \
	broker_store_get(sql, BROKER_VALUES(__VA_ARGS__))
extern int64_t broker_store_get(const char *sql, size_t n, const BrokerValue *values);

/* All columns of the first row, whole numbers; false if there is none. */
#define broker_get_all(columns, sql, ...) \
	broker_store_get_all(columns, sql, BROKER_VALUES(__VA_ARGS__))
extern bool broker_store_get_all(int64_t *columns, const char *sql,
								 size_t n, const BrokerValue *values);

/* The first column as text, malloc'ed; NULL if it is NULL, or there is none. */
#define broker_get_text(sql, ...) \
	broker_store_get_text(sql, BROKER_VALUES(__VA_ARGS__))
extern char *broker_store_get_text(const char *sql, size_t n, const BrokerValue *values);

/* Logs the first column of the first row, which must be. */
#define broker_log(level, sql, ...) \
	broker_store_log(level, sql, BROKER_VALUES(__VA_ARGS__))
extern void broker_store_log(RbpLogLevel level, const char *sql, size_t n, const BrokerValue *values);

/*
 * Rows one by one: broker_next() steps to the first or next one, and returns false
 * after the last.  It must be called until then, which resets the statement; the same
 * statement must not be run meanwhile.  Texts are good until the next step.
 */
typedef struct sqlite3_stmt BrokerRows;

#define broker_query(sql, ...) \
	broker_store_query(sql, BROKER_VALUES(__VA_ARGS__))
extern BrokerRows *broker_store_query(const char *sql, size_t n, const BrokerValue *values);
extern bool broker_next(BrokerRows *rows);
extern int64_t broker_int(BrokerRows *rows, int column);
extern const char *broker_text(BrokerRows *rows, int column);

#endif							/* RBP_BROKER_STORE_H */
