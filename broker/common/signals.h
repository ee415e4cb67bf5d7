/*-------------------------------------------------------------------------
 *
 * signals.h
 *	  What signals do to a daemon, and its threads.
 *
 * SIGTERM and SIGINT stop it, and SIGHUP has it read again what may change
 * while it runs.  No other signal that is sent for a reason of its own (a log
 * that was rotated, a timer, a reader of its output that went away) ends it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SIGNALS_H
#define RBP_SIGNALS_H

#include <signal.h>

/*
 * Ignore the others, and block SIGTERM, SIGINT and SIGHUP: the set that is
 * returned.  To be called before threads are started, which inherit that; the
 * main thread then waits for these signals, or unblocks them.
 */
extern sigset_t rbp_signals_init(void);

/* Start a thread that nobody waits for.  Ends the process, with a message, on failure. */
extern void rbp_thread_start(void *(*run) (void *arg), void *arg);

#endif							/* RBP_SIGNALS_H */
