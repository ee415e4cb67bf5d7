/*-------------------------------------------------------------------------
 *
 * hook.h
 *	  How the server's file calls come to us.
 *
 * A wrapper stands in for each file call of the server.  It looks up what the
 * descriptor or the path is, and passes the call on: to the buffer tier, if it is a
 * relation's file, to the spill, if it is a temporary one, else to libc.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_HOOK_H
#define RBP_HOOK_H

/* Install the wrappers; in the postmaster, from _PG_init. */
extern void rbp_file_install(void);

#endif							/* RBP_HOOK_H */
