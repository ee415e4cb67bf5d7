/*-------------------------------------------------------------------------
 *
 * geometry.h
 *	  Sizes that rooms agree on.  No postgres.h.
 *
 * Remote memory comes in regions of donors.  A region is cut into extents of
 * RBP_EXTENT_PAGES slots, each of which has room for a page: slot s is page
 * (s % RBP_EXTENT_PAGES) of extent (s / RBP_EXTENT_PAGES).
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_GEOMETRY_H
#define RBP_GEOMETRY_H

#include <stdint.h>

#define RBP_PAGE_SIZE			8192
#define RBP_EXTENT_PAGES		128
#define RBP_EXTENT_SLOT(extent)	((extent) * RBP_EXTENT_PAGES)	/* its first */
#define RBP_INVALID_SLOT		UINT32_MAX

/* Regions that can be in use at a time; what is counted is counted for each. */
#define RBP_MAX_REGIONS			8192

/* Pages that are read or written in one batch. */
#define RBP_MAX_BATCH			32

/* Limits of databases. */
#define RBP_LIMITS				254

/* Instead of a number of pages: half of those that there is room for. */
#define RBP_KEEP_HALF			UINT64_MAX

/* Of a temporary file's name, with the zero; longer ones are not kept. */
#define RBP_SPILL_NAME_LEN		160

#endif							/* RBP_GEOMETRY_H */
