/*-------------------------------------------------------------------------
 *
 * process.h
 *	  What modules do at events of a process: see the table in remote_bp.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_PROCESS_H
#define RBP_PROCESS_H

#include "postgres.h"

/* Set what is done when a process exits.  To be called in _PG_init. */
extern void rbp_process_set_exit(void (*callback) (void));

/*
 * This process has something to do at its exit.  The server keeps no callback
 * that a process inherits, so a process registers it before it is needed.
 */
extern void rbp_process_needs_exit(void);

#endif							/* RBP_PROCESS_H */
