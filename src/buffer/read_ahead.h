/*-------------------------------------------------------------------------
 *
 * read_ahead.h
 *	  Reads pages of runs from donors before the server asks for them.
 *
 * What is read ahead is kept in memory of this process.  It is a copy that
 * may be out of date, so it is used only if the directory, asked when the page
 * is really read, still has the page in the same slot with the same hash
 * (rule 12 of coherence).
 *
 * Nothing here raises an error or waits, unless said otherwise.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_READ_AHEAD_H
#define RBP_READ_AHEAD_H

#include "postgres.h"

#include "base/choice.h"
#include "base/geometry.h"
#include "base/guc.h"
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

	/* measured so far */
	int			pages;			/* read of it */
	int64		ns;				/* that these took */
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

/* Would rbp_read_ahead_announce() request a page that has this entry?  Cheap. */
extern bool rbp_read_ahead_wants(const RbpLookup *lookup);

/*
 * The server will need the page soon, which is not in the page cache as far as
 * is known, and of which the directory has that.  It is requested with others,
 * if rbp_read_ahead_wants() it.
 */
extern void rbp_read_ahead_announce(const RbpPageId *page, const RbpLookup *lookup);

/* May rbp_read_ahead_take() have any page? */
extern bool rbp_read_ahead_pending(void);

/* The result of rbp_read_ahead_take() */
typedef enum RbpTaken
{
	RBP_TAKEN_NOTHING,			/* there is no copy that may be used */
	RBP_TAKEN_PAGE,				/* the page is in buf */
	RBP_TAKEN_FAILURE,			/* the donor has failed: read the file */
	RBP_TAKEN_LATE				/* likewise, and the wait took all its time */
} RbpTaken;

/*
 * Copy a page that was read ahead to buf, if the copy agrees with the result
 * of a lookup that was made after the read of the page began.  Waits for the
 * page if it is still on its way, but not for a donor that is down or
 * suspect; *deadline_ns bounds all waits for pages that are read together, and
 * is 0 before the first one.
 */
extern RbpTaken rbp_read_ahead_take(const RbpPageId *page, RbpLookup *lookup,
									char *buf, int64 *deadline_ns);

/* A read of n pages, which began in the window, took so many ns. */
extern void rbp_read_ahead_measured(RbpWindow *window, int n, int64 ns);

#endif							/* RBP_READ_AHEAD_H */
