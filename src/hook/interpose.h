/*-------------------------------------------------------------------------
 *
 * interpose.h
 *	  Stand between the server's executable and libc: point the relocation
 *	  slots of file calls at wrappers.  Knows nothing of pages.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_INTERPOSE_H
#define RBP_INTERPOSE_H

#include "base/libc.h"

/*
 * Point the executable's slots at the wrappers.  All or nothing: if a call
 * that the server must make is not found among the slots, or if it uses one
 * that we do not know how to follow, raises FATAL before any slot has been
 * changed.  Only in the postmaster, before any fork; at most once.
 */
extern void rbp_interpose_install(const RbpLibc *wrappers);

#endif							/* RBP_INTERPOSE_H */
