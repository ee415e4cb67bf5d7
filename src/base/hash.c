/*-------------------------------------------------------------------------
 *
 * hash.c
 *	  XXH3-64 of a page: the generic implementation, and the choice of one.
 *
 *-------------------------------------------------------------------------
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/hash.h"

uint64_t	(*rbp_hash_page) (const void *page) = rbp_hash_page_generic;

uint64_t
rbp_hash_page_generic(const void *page)
{
	return XXH3_64bits(page, RBP_HASH_BYTES);
}

uint64_t
rbp_hash_bytes(const void *bytes, size_t n)
{
	return XXH3_64bits(bytes, n);
}

void
rbp_hash_init(void)
{
#if defined(__x86_64__)
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx2"))
		rbp_hash_page = rbp_hash_page_avx2;
#endif
}
