/*-------------------------------------------------------------------------
 *
 * hash.h
 *	  XXH3-64 of a page, with the widest vectors that the CPU has.
 *
 * All implementations compute the same value.  libxxhash's header is compiled
 * in, since a call into the shared library takes three times as long.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_HASH_H
#define RBP_HASH_H

#include <stddef.h>
#include <stdint.h>

#define RBP_HASH_BYTES	8192

/* Hash of RBP_HASH_BYTES bytes; any alignment. */
extern uint64_t (*rbp_hash_page) (const void *page);

/* Hash of so many bytes, which need not be quick. */
extern uint64_t rbp_hash_bytes(const void *bytes, size_t n);

/* Choose the implementation for this CPU; before the first use. */
extern void rbp_hash_init(void);

extern uint64_t rbp_hash_page_generic(const void *page);
#if defined(__x86_64__)
extern uint64_t rbp_hash_page_avx2(const void *page);
#endif

#endif							/* RBP_HASH_H */
