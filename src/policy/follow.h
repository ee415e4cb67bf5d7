/*-------------------------------------------------------------------------
 *
 * follow.h
 *	  Following another server: what its follower (src/follow), the launcher
 *	  and the worker tell each other.
 *
 * The follower of a standby fetches a list of hot pages (base/hot_list.h) into
 * RBP_FOLLOW_FILE, and begins a round.  The launcher has the worker visit the
 * databases that are in the list, until each of them is done, or another round
 * begins.  In a visit, pages that the tier lacks are brought into it (warm.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_FOLLOW_H
#define RBP_FOLLOW_H

#include "postgres.h"

#include "base/hot_list.h"

extern Size rbp_follow_shmem_size(void);
extern void rbp_follow_shmem_init(void *mem);

/*
 * ---- for the follower -----------------------------------------------------------
 */

/*
 * This process is the follower from now on, until it exits.  Returns false if there is one
 * already.
 */
extern bool rbp_follow_begin(void);

/* May it go on?  Not on a primary, nor without the setting. */
extern bool rbp_follow_is_wanted(void);

/* There is a new list, of that server and age: begin a round. */
extern void rbp_follow_new_list(const RbpHotHeader *header, int64 age_ms, const char *server);

/*
 * No list could be had.  The reason is logged if it is not that of the last time.  If the last list
 * is not too old, a round begins with it; otherwise it is not used any more.
 */
extern void rbp_follow_failed(const char *reason);

/* Note how the page cache does, while no pages are being read. */
extern void rbp_follow_watch_cache(void);

/*
 * ---- for the launcher and the worker ----------------------------------------------
 */

/* The current round; 0: none */
extern uint64 rbp_follow_round(void);

/* All databases of that round are done. */
extern void rbp_follow_set_done(uint64 round);

/* Why no pages are read for the moment */
typedef enum RbpFollowWait
{
	RBP_FOLLOW_GOES_ON,
	RBP_FOLLOW_NO_TIER,
	RBP_FOLLOW_LAG,
	RBP_FOLLOW_LOCK,
	RBP_FOLLOW_STAGING,
	RBP_FOLLOW_PAGE_CACHE,
	RBP_FOLLOW_WAITS
} RbpFollowWait;

extern void rbp_follow_set_wait(RbpFollowWait wait);

/* What became of pages in the list */
typedef enum RbpFollowPages
{
	RBP_FOLLOW_READ,			/* brought into the tier */
	RBP_FOLLOW_UNKNOWN,			/* no such relation, by now or yet */
	RBP_FOLLOW_BUSY,			/* the relation is locked, or being built */
	RBP_FOLLOW_EXCLUDED,		/* by policy, tablespace or limit */
	RBP_FOLLOW_FULL,			/* there is no room */
	RBP_FOLLOW_BEYOND,			/* the file does not have them */
	RBP_FOLLOW_ERROR,			/* could not be read, or staged */
	RBP_FOLLOW_OUTCOMES
} RbpFollowPages;

/* Count pages of the class by outcome, and those that are present, besides such as were read. */
extern void rbp_follow_count(RbpHotClass class, uint32 present, const uint32 pages[RBP_FOLLOW_OUTCOMES]);

/* Refaults in a second before pages were read; -1 if not known */
extern int64 rbp_follow_usual_refaults(void);

#endif							/* RBP_FOLLOW_H */
