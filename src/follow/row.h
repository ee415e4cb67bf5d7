/*-------------------------------------------------------------------------
 *
 * row.h
 *	  Rows of remote_bp_hot_pages() and remote_bp_hot_pages_info(), as another
 *	  server sends them.  No postgres.h.
 *
 * They are input from another machine: nothing of them is believed that was not
 * checked here.  Values are in libpq's binary format, NULL if they are null.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_FOLLOW_ROW_H
#define RBP_FOLLOW_ROW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hot_list.h"

/* In this order: */
#define RBP_ROW_COLUMNS		7
#define RBP_ROW_QUERY \
	"SELECT tablespace, database, relfilenode, fork, part, class, bitmap FROM remote_bp_hot_pages()"

#define RBP_INFO_COLUMNS	5
#define RBP_INFO_QUERY \
	"SELECT system_identifier, timeline, format, age_ms, complete FROM remote_bp_hot_pages_info()"

/*
 * Store the part that the row has, and where its bitmap is in it.  Returns NULL, or what is
 * wrong with it.  previous is the part of the row before it, or NULL.
 */
extern const char *rbp_row_parse(const char *const values[RBP_ROW_COLUMNS],
								 const int lengths[RBP_ROW_COLUMNS],
								 const RbpHotPart *previous, RbpHotPart *part,
								 const uint8_t **bitmap);

/* Likewise the header, but for the numbers of pages, and the age of the list. */
extern const char *rbp_row_parse_info(const char *const values[RBP_INFO_COLUMNS],
									  const int lengths[RBP_INFO_COLUMNS],
									  RbpHotHeader *header, int64_t *age_ms);

#endif							/* RBP_FOLLOW_ROW_H */
