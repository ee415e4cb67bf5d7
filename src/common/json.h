/*-------------------------------------------------------------------------
 *
 * json.h
 *	  What JSON from others may cost, before it is decoded.
 *
 * A decoded value takes some hundred bytes, however short its text is.  So
 * whoever decodes what came over the network counts its values first.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_JSON_H
#define RBP_JSON_H

#include <stddef.h>

#include "common/limits.h"

/*
 * Of an answer of the broker: a region of a lease takes 4 values and some 70
 * bytes.  These are 16 TB in the default region size.
 */
#define RBP_JSON_ANSWER_BYTES	((size_t) 32 * 1024 * 1024)
#define RBP_JSON_ANSWER_VALUES	((size_t) 2 * 1024 * 1024)

/*
 * Of a request to the broker: the numbers of all regions of a donor, their revs,
 * and as much again
 */
#define RBP_JSON_BODY_BYTES		((size_t) 1024 * 1024)
#define RBP_JSON_BODY_VALUES	((size_t) 3 * RBP_DONOR_MAX_REGIONS)

#define RBP_JSON_LEVELS			8

/*
 * How many values the text has, or somewhat more: each begins the text, or
 * follows a comma or an opening bracket.  SIZE_MAX if it is nested deeper than
 * RBP_JSON_LEVELS.
 */
extern size_t rbp_json_values(const char *text, size_t len);

#endif							/* RBP_JSON_H */
