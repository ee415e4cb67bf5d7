/*-------------------------------------------------------------------------
 *
 * interpose.h
 *	  Redirect the executable's libc calls: point the relocation slots of file
 *	  calls at wrappers.  It knows nothing of relations or pages.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_INTERPOSE_H
#define RBP_INTERPOSE_H

#include "base/libc.h"

/*
 * Point the relocation slots of the executable at the wrappers.  All or
 * nothing: raises FATAL, before any slot has been changed, if no slot is
 * found for a call that the server must make, or if the server uses a call
 * that has no wrapper.  Calls whose wrapper is NULL are not redirected.  Must
 * be called in the postmaster, before any fork, and at most once.
 */
extern void rbp_interpose_install(const RbpLibc *wrappers);

#endif							/* RBP_INTERPOSE_H */
