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

#include "base/geometry.h"
#include "base/guc.h"
#include "base/page_cache.h"
#include "buffer/directory.h"
#include "buffer/page.h"
#include "buffer/run_cost.h"

/* Where the pages of a window are read from */
typedef enum RbpWindowSource
{
	RBP_WINDOW_ANY,				/* each page by itself */
	RBP_WINDOW_DONORS,			/* donors, as far as they have the pages */
	RBP_WINDOW_FILE				/* the file, whatever donors have */
} RbpWindowSource;

#define RBP_WINDOW_ALL	1024

typedef struct RbpWindow
{
	RbpPageId	first;
	int			n;				/* 0: unused */
	RbpWindowSource source;
	RbpRunCost *cost;			/* by which the source was chosen */
	int			transport;		/* to the donor of its first remote page */
	bool		filling;		/* read from the file to fill the page cache */
	int64		stretch;		/* end of the stretch that it is part of, or 0 */

	/*
	 * It was not looked up, because those before it in the same stretch were,
	 * and are like it.  Donors have that share of its pages, in parts of
	 * RBP_WINDOW_ALL, and one in that slot, about.
	 */
	bool		presumed;
	int			share;
	uint32		slot;

	bool		asked;			/* the page cache was asked, and answered: */
	bool		cached[RBP_READ_AHEAD_MAX];

	/*
	 * It is a window that the page cache has, and not the disk.  The rest of
	 * it is mostly on its way from there, by the kernel's read-ahead.
	 */
	bool		mostly_cached;

	/* measured so far */
	int			pages;			/* read of it */
	int64		ns;				/* that these took */
} RbpWindow;

/* Is page i to be read from the file because the page cache has it? */
static inline bool
rbp_window_prefers_cache(const RbpWindow *w, int i)
{
	return rbp_guc_page_cache_first == RBP_PAGE_CACHE_ON && w->asked && w->cached[i];
}

/* A file, as a read of it knows it */
typedef struct RbpReadFile
{
	int			fd;
	RbpCacheView *cache;
} RbpReadFile;

/*
 * Note that n pages are read, of which this is the first, and read ahead if
 * they are part of a run.  May submit requests to donors; does not connect.
 * Returns the window that has the first page, or NULL.
 */
extern RbpWindow *rbp_read_ahead_plan(const RbpReadFile *file, const RbpPageId *first,
									  int n);

/* Would a page be requested of which the directory has that?  Cheap. */
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
