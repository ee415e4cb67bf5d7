/*-------------------------------------------------------------------------
 *
 * workers.h
 *	  The background workers of the extension that run as long as the server:
 *	  how they begin and are woken, and whether they run.
 *
 * If max_worker_processes is used up by others, a worker does not exist.  One
 * that exists may hang, or end and not come back.  Nobody waits for a worker
 * that is away, and the views say so.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_WORKERS_H
#define RBP_WORKERS_H

#include "postgres.h"

#include "postmaster/bgworker.h"

typedef enum RbpWorker
{
	RBP_WORKER_LEASE,
	RBP_WORKER_PUSHER,
	RBP_WORKER_LAUNCHER,
	RBP_WORKERS
} RbpWorker;

/* A worker waits for work no longer than this before it notes that it runs. */
#define RBP_WORKER_SLEEP_MS		10000

extern Size rbp_workers_shmem_size(void);
extern void rbp_workers_shmem_init(void *mem);

/* Register them, in _PG_init().  Their bgw_extra is the version of the postmaster's code. */
extern void rbp_workers_register(void);

/*
 * A worker of that name and entry point that is started once, on a consistent server, and
 * tells this process when it ends
 */
extern BackgroundWorker rbp_worker_describe(const char *name, const char *library,
											const char *function);

/*
 * For a worker in a library of its own: raise an error if a new version was installed
 * since the server was started.  A name says which it is.
 */
extern void rbp_worker_check_version(const char *name);

/*
 * For the worker itself, first: handle SIGHUP and SIGTERM, which it then unblocks, and
 * let others wake it.
 */
extern void rbp_worker_begin(RbpWorker which);

/* Read the settings again if SIGHUP has come; returns whether it has. */
extern bool rbp_worker_reload(void);

/*
 * Set the worker's latch, if there is such a worker.  May be called anywhere where
 * shared memory is attached.
 */
extern void rbp_worker_wake(RbpWorker which);

/* Has it begun, and not ended?  The pusher is woken when a worker ends. */
extern bool rbp_worker_exists(RbpWorker which);

/* Note that the worker runs, and warn of others that do not. */
extern void rbp_worker_runs(RbpWorker which);

/* If the worker is away, store the reason, and return true. */
extern bool rbp_worker_away(RbpWorker which, char *buf, Size len);

#endif							/* RBP_WORKERS_H */
