/*-------------------------------------------------------------------------
 *
 * pusher.h
 *	  The background worker that writes staged pages to donors.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_PUSHER_H
#define RBP_PUSHER_H

#include "postgres.h"

#include "buffer/directory.h"

/*
 * Tell the pusher that depth pages are ready.  This makes a system call only
 * if the pusher sleeps and the depth is worth waking it.  May be called
 * anywhere.
 */
extern void rbp_pusher_notify(uint32 depth);

/* Count pages that were evicted for others. */
extern void rbp_pusher_count_evicted(const RbpEvicted *evicted);

extern PGDLLEXPORT void rbp_pusher_main(Datum arg);

#endif							/* RBP_PUSHER_H */
