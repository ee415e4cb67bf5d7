/*-------------------------------------------------------------------------
 *
 * libc.c
 *	  The original libc functions of the calls that are wrapped.
 *
 *-------------------------------------------------------------------------
 */
#include "base/libc.h"

RbpLibc		rbp_libc;
