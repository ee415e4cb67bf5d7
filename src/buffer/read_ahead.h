/*-------------------------------------------------------------------------
 *
 * read_ahead.h
 *	  Reads pages of runs from donors before the server asks for them.
 *
 * What is read ahead is a copy that may be out of date, so it is used only if
 * the directory, asked when the page is really read, still has the page in the
 * same slot with the same hash (rule 12 of coherence).
 *
 * Nothing here raises an error or waits, unless said otherwise.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_READ_AHEAD_H
#define RBP_READ_AHEAD_H

#include "postgres.h"

#include "base/geometry.h"
#include "base/page_cache.h"
#include "buffer/directory.h"
#include "buffer/page.h"

/*
 * A window: pages of a run that are read from one source.  That is donors, as
 * far as they have the pages, or the file.
 */
typedef struct RbpWindow
{
	RbpPageId	first;
	int			n;				/* 0: unused */
	int			fs;				/* as in RbpReadFile */
	int			read_from;		/* the setting for which it was planned */
	bool		file;			/* all comes from the file */
	bool		trial;			/* for a trial of it */
	bool		whole;			/* no donor of its pages is down */
	bool		absent;			/* nothing of it need be looked up */
	int			remote;			/* pages that donors have */
	int			holes;			/* before these: pieces that the disk is
								 * waited for */
	int			transport;		/* to the donor of the first of them */

	bool		asked;			/* the page cache was asked, and answered: */
	bool		cached[RBP_READ_AHEAD_MAX];

	/* It has most of the window, and not because the kernel has read ahead */
	bool		mostly_cached;

	/* measured so far, by reads that began in the window */
	int			pages;			/* read of it */
	int64		ns;				/* that these took */
	int64		between;		/* ns between them, */
	int64		ended;			/* and when the last one did */
	uint32		connects;		/* rbp_remote_connects() at its begin */
} RbpWindow;

/* A file, as a read of it knows it */
typedef struct RbpReadFile
{
	int			fd;
	int			fs;				/* its file system's number */
	RbpCacheView *cache;
} RbpReadFile;

/*
 * Note that n pages are read, of which this is the first: read ahead if they are
 * part of a run.  May submit requests to donors; does not connect.  Returns the
 * window that has the first page, or NULL.
 */
extern RbpWindow *rbp_read_ahead_plan(const RbpReadFile *file, const RbpPageId *first,
									  int n);

/* May a page that has this entry be requested ahead?  Cheap. */
extern bool rbp_read_ahead_wants(const RbpLookup *lookup);

/*
 * Copy a page that was read ahead to buf, by a lookup that was made after the
 * read of the page began; see rbp_ahead_take().
 */
extern RbpTaken rbp_read_ahead_take(const RbpPageId *page, RbpLookup *lookup,
									char *buf, int64 *deadline_ns);

#endif							/* RBP_READ_AHEAD_H */
