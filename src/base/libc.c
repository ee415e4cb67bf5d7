/*-------------------------------------------------------------------------
 *
 * libc.c
 *	  The original libc functions of the file calls that are wrapped.
 *
 *-------------------------------------------------------------------------
 */
#include "base/libc.h"

RbpLibc		rbp_libc;
