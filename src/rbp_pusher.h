/*-------------------------------------------------------------------------
 *
 * rbp_pusher.h
 *	  The background worker that writes staged pages to donors.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_PUSHER_H
#define RBP_PUSHER_H

#include "postgres.h"

extern Size rbp_pusher_shmem_size(void);
extern void rbp_pusher_shmem_init(void *mem);

/*
 * What others have to do now and then, done by the pusher between batches in the
 * order given: never waits long.  Returns ns until it is to be called again, -1
 * if that is not before somebody wakes the pusher.
 */
typedef int64 (*RbpDuty) (void);

/* duties: kept by reference, ends with NULL.  In _PG_init. */
extern void rbp_pusher_set_duties(const RbpDuty *duties);

/* Register the worker; from _PG_init. */
extern void rbp_pusher_register(void);

/*
 * Tell the pusher that depth pages are ready.  A system call only if it
 * sleeps and the depth is worth waking it.  May be called anywhere.
 */
extern void rbp_pusher_notify(uint32 depth);

/* Wake the pusher: a duty is to be done now, or pages wait. */
extern void rbp_pusher_wake(void);

extern PGDLLEXPORT void rbp_pusher_main(Datum arg);

#endif							/* RBP_PUSHER_H */
