/*-------------------------------------------------------------------------
 *
 * injection_point.c
 *	  The point at which a test changes what the code does.
 *
 *-------------------------------------------------------------------------
 */
#include "base/injection_point.h"

#if defined(RBP_INJECTION_POINTS) || defined(RBP_UNIT_TEST)
const char *rbp_injection_point = "";
#else
/* ISO C wants a translation unit to declare something. */
typedef int rbp_no_injection_points;
#endif
