/*-------------------------------------------------------------------------
 *
 * libc.c
 *	  The file calls that are wrapped, as they are without wrappers.
 *
 *-------------------------------------------------------------------------
 */
#include "base/libc.h"

RbpLibc		rbp_libc;
