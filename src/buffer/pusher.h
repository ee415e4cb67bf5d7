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

/*
 * Tell the pusher that depth pages are ready.  This makes a system call only
 * if the pusher sleeps and the depth is worth waking it.  May be called
 * anywhere.
 */
extern void rbp_pusher_notify(uint32 depth);

extern PGDLLEXPORT void rbp_pusher_main(Datum arg);

#endif							/* RBP_PUSHER_H */
