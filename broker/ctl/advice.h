/*-------------------------------------------------------------------------
 *
 * advice.h
 *	  The rows of the view remote_bp_advice: as text.
 *
 * All functions take the rows as an array of objects, whose members are the
 * columns; there is at least one.
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
 * Why there are no estimates yet, in a string that is valid until the next call;
 * NULL if there are.
 */
extern const char *ctl_advice_unknown(const json_t *rows);

/* A table, and how it was made */
extern void ctl_advice_print(FILE *out, const json_t *rows);

/* A line with a bar for each size, in so many columns */
extern void ctl_advice_bars(FILE *out, const json_t *rows, int width);

#endif							/* RBP_CTL_ADVICE_H */
