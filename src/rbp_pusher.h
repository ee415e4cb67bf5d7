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
extern void rbp_pusher_shmem_init(void *mem, bool found);

/* Register the worker; from _PG_init. */
extern void rbp_pusher_register(void);

/*
 * Tell the pusher that depth pages are ready.  A system call only if it
 * sleeps and the depth is worth waking it.  May be called anywhere.
 */
extern void rbp_pusher_notify(uint32 depth);

/* Wake the pusher: a donor has to be probed. */
extern void rbp_pusher_wake(void);

extern PGDLLEXPORT void rbp_pusher_main(Datum arg);

#endif							/* RBP_PUSHER_H */
