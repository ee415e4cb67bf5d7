/*-------------------------------------------------------------------------
 *
 * table.h
 *	  Tables of JSON objects, such as donors, leases or rows of a view.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CTL_TABLE_H
#define RBP_CTL_TABLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

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

#endif							/* RBP_CTL_TABLE_H */
