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

/* Maximum number of regions in use; counters are kept for each region */
#define RBP_MAX_REGIONS			8192

/* Maximum number of pages that are read or written in one batch */
#define RBP_MAX_BATCH			32

/* Maximum number of pages that are read ahead of a run at once */
#define RBP_READ_AHEAD_MAX		64

/* Special number of pages: half of the pages that there is room for */
#define RBP_KEEP_HALF			UINT64_MAX

/*
 * Size of a buffer for a temporary file's name, including the terminating
 * zero; files with longer names are not spilled
 */
#define RBP_SPILL_NAME_LEN		160

#endif							/* RBP_GEOMETRY_H */
