/*-------------------------------------------------------------------------
 *
 * advice.h
 *	  The rows of the view remote_bp_advice, as a table.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CTL_ADVICE_H
#define RBP_CTL_ADVICE_H

#include <jansson.h>
#include <stdio.h>

/* A query for the rows, which gives one value of type json; [] if there are none */
#define CTL_ADVICE_QUERY \
	"SELECT coalesce(json_agg(a ORDER BY tier_size), '[]') FROM remote_bp_advice a"

/*
 * Print the table, and how it was made.  The rows are an array of objects, whose
 * members are the columns; there is at least one.
 */
extern void ctl_advice_print(FILE *out, const json_t *rows);

#endif							/* RBP_CTL_ADVICE_H */
