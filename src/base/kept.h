/*-------------------------------------------------------------------------
 *
 * kept.h
 *	  Memory that is kept over the crash of a backend.
 *
 * After a crash the postmaster makes all of the server's shared memory anew.
 * This memory is a mapping of its own, which the postmaster makes at the first
 * start and never unmaps, so what is in it is still there.  It holds no pointer
 * into the server's shared memory, no PID, and no number of a process; its locks are
 * initialized each time.  A process may have been killed at any instruction: each
 * module says what of its memory is right even then, and makes the rest anew.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_KEPT_H
#define RBP_KEPT_H

#include "postgres.h"

/*
 * For the postmaster, at each initialization of shared memory, always with the
 * same size: the memory, at a cache line.  It is zero unless *found, which says that
 * it is as a crash has left it.  If it had to be discarded, *why is the reason, and
 * NULL otherwise.  FATAL if there is no memory.
 */
extern void *rbp_kept_memory(Size size, bool *found, const char **why);

/*
 * Have it discarded at the next crash, since what is in it may then not be believed.
 * The first reason counts.  May be called by any process, and in signal handlers.
 */
extern void rbp_kept_discard(const char *why);

/* The reason for which it will be discarded; NULL if there is none. */
extern const char *rbp_kept_discarded(void);

/*
 * Something that is kept is about to be changed in several steps, or this has been
 * done.  If the process is killed in between, all is discarded.  One process at a time.
 */
extern void rbp_kept_changing(bool begins);

#endif							/* RBP_KEPT_H */
