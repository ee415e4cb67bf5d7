/*-------------------------------------------------------------------------
 *
 * mutation.c
 *	  Switches that break one coherence rule at a time, for test builds.
 *
 *-------------------------------------------------------------------------
 */
#include "base/mutation.h"

#if defined(RBP_TEST_MUTATIONS) || defined(RBP_UNIT_TEST)
int			rbp_mutation = RBP_MUTATION_NONE;
#else
/* ISO C wants a translation unit to declare something. */
typedef int rbp_no_mutations;
#endif
