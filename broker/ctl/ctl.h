/*-------------------------------------------------------------------------
 *
 * ctl.h
 *	  Declarations shared by the files of remote_bp_ctl.
 *
 * main.c		options and commands
 * top.c		one picture of all of it, refreshed
 * health.c		is all well with a broker, and with a server's tier?
 * brokers.c	each broker of a list
 * credential.c	the file of the credentials that a broker accepts
 * show.c		answers of the broker as text
 * advice.c		rows of remote_bp_advice as a table
 * table.c		tables of JSON objects
 *
 * A file calls those below it, and none above.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CTL_H
#define RBP_CTL_H

#include "broker/common/http_client.h"
#include "broker/server/server.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* Whom to ask; NULL: nobody */
typedef struct CtlSources
{
	RbpServer  *server;
	RbpHttp    *http;
} CtlSources;

/*
 * ---- top.c -----------------------------------------------------------------
 */

/*
 * Print everything, and what has changed since the last call.  Returns false if the
 * server, or the broker, has not answered.
 */
extern bool ctl_top(const CtlSources *sources);

/*
 * ---- health.c --------------------------------------------------------------
 */

/*
 * What is found is an object: "ok", and lists of sentences: "problems" (none if it is
 * ok), "summary", one of each that was asked, and "notes".  Who does not answer is a
 * problem.  New; it is the caller's.
 */
extern json_t *ctl_health(const CtlSources *sources);

/* Problems and summary in one line, as monitoring programs want it; a line for each note. */
extern void ctl_health_print(FILE *out, const json_t *health);

/*
 * ---- brokers.c -------------------------------------------------------------
 */

/* {"brokers": [{"url", "version", "donors", "leases", "error"}]}: donors that follow it, and their leases */
extern json_t *ctl_brokers(RbpHttp *http);

extern void ctl_brokers_print(FILE *out, const json_t *answer);

/*
 * ---- credential.c ----------------------------------------------------------
 */

/*
 * argv: "add", ROLE, NAME; or "list"; or "remove", ROLE, NAME and perhaps the
 * beginning of a hash.  cert: the broker's certificate, for the pin; NULL: the
 * one that it made beside its state, if it has also made the file.  Returns
 * what is wrong with the arguments, or NULL.  Dies if a file cannot be used.
 */
extern const char *ctl_credential(const char *path, const char *cert, bool json,
								  int argc, char **argv);

/*
 * ---- show.c ----------------------------------------------------------------
 */
extern void ctl_show_donors(FILE *out, const json_t *answer);
extern void ctl_show_leases(FILE *out, const json_t *answer);
extern void ctl_show_drain(FILE *out, const json_t *answer);
extern void ctl_show_undrain(FILE *out, const json_t *answer);
extern void ctl_show_forget(FILE *out, const json_t *answer);
extern void ctl_show_revoke(FILE *out, const json_t *answer);

/*
 * ---- advice.c --------------------------------------------------------------
 */

/* A query for the rows, which gives one value of type json; [] if there are none */
#define CTL_ADVICE_QUERY \
	"SELECT coalesce(json_agg(a ORDER BY tier_size), '[]') FROM remote_bp_advice a"

/*
 * Print the table, and how it was made.  The rows are an array of objects, whose
 * members are the columns; there is at least one.
 */
extern void ctl_advice_print(FILE *out, const json_t *rows);

/*
 * ---- table.c ---------------------------------------------------------------
 */

#define CTL_MAX_CELL	160

/* Members of an object; "?", 0 or 0.0 if there is no such member. */
extern const char *ctl_text_of(const json_t *object, const char *key);
extern json_int_t ctl_int_of(const json_t *object, const char *key);
extern double ctl_number_of(const json_t *object, const char *key);

/* Has the donor been silent for so long that its memory is given up? */
extern bool ctl_is_gone(const json_t *donor);

typedef struct CtlColumn
{
	const char *title;			/* NULL at the end of the table */
	const char *key;
	void		(*put) (char *cell, const json_t *object, const char *key);
	bool		right;			/* aligned to the right, as numbers are */
} CtlColumn;

/*
 * Functions for CtlColumn.put: each fills a cell of CTL_MAX_CELL bytes from a
 * member, named by key, of an object.
 */
extern void ctl_put_text(char *cell, const json_t *object, const char *key);
extern void ctl_put_bytes(char *cell, const json_t *object, const char *key);
extern void ctl_put_regions_as_bytes(char *cell, const json_t *donor, const char *key);
extern void ctl_put_ms_as_seconds(char *cell, const json_t *object, const char *key);
extern void ctl_put_ttl_left(char *cell, const json_t *lease, const char *key);
extern void ctl_put_address(char *cell, const json_t *donor, const char *key);
extern void ctl_put_words(char *cell, const json_t *object, const char *key);
extern void ctl_put_donors(char *cell, const json_t *lease, const char *key);
extern void ctl_put_count(char *cell, const json_t *object, const char *key);
extern void ctl_put_us(char *cell, const json_t *object, const char *key);
extern void ctl_put_ms_per_s(char *cell, const json_t *object, const char *key);
extern void ctl_put_percent(char *cell, const json_t *object, const char *key);

/* A line for each object of the list, below a line of titles. */
extern void ctl_table_print(FILE *out, const CtlColumn *columns, const json_t *list);

#endif							/* RBP_CTL_H */
