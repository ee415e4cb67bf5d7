/*-------------------------------------------------------------------------
 *
 * layout.h
 *	  Cutting shared memory into pieces.  No postgres.h.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LAYOUT_H
#define RBP_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define RBP_CACHE_LINE			64

/* The next multiple of a cache line. */
static inline size_t
rbp_align_line(size_t n)
{
	return (n + RBP_CACHE_LINE - 1) & ~(size_t) (RBP_CACHE_LINE - 1);
}

/* The offset of a piece of that size, behind those before it, which end at *at. */
static inline size_t
rbp_layout_place(size_t *at, size_t size)
{
	size_t		offset = *at;

	*at += rbp_align_line(size);
	return offset;
}

/* The next piece of the arena; align is a power of two. */
static inline void *
rbp_layout_take(char **arena, size_t size, size_t align)
{
	char	   *piece = (char *) (((uintptr_t) *arena + align - 1) & ~(uintptr_t) (align - 1));

	*arena = piece + size;
	return piece;
}

/* A piece of memory, for what handles it as bytes */
typedef struct RbpPiece
{
	void	   *mem;
	size_t		bytes;
} RbpPiece;

#endif							/* RBP_LAYOUT_H */
