/*-------------------------------------------------------------------------
 *
 * hash_avx2.c
 *	  XXH3-64 of a page with 256-bit vectors.
 *
 * The target is set here and not in the Makefile, so that nothing else can
 * be compiled for it by accident.
 *
 *-------------------------------------------------------------------------
 */
#if defined(__x86_64__)

#pragma GCC target("avx2")

#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX2
#include <xxhash.h>

#include "base/hash.h"

uint64_t
rbp_hash_page_avx2(const void *page)
{
	return XXH3_64bits(page, RBP_HASH_BYTES);
}

#else

/* ISO C wants a translation unit to declare something. */
typedef int rbp_hash_avx2_unused;

#endif
