/*-------------------------------------------------------------------------
 *
 * hook.h
 *	  Interception of the server's file calls.
 *
 * Each file call of the server is replaced by a wrapper.  The wrapper looks
 * up the file by its descriptor or path, and passes the call to the buffer
 * tier if the file belongs to a relation, to the spill if it is temporary,
 * and to libc otherwise.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_HOOK_H
#define RBP_HOOK_H

/*
 * Install the wrappers; in the postmaster, from _PG_init.  on_io_worker_wait
 * is called by each I/O worker of the server before it waits for work.
 */
extern void rbp_hook_install(void (*on_io_worker_wait) (void));

#endif							/* RBP_HOOK_H */
