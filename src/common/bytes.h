/*-------------------------------------------------------------------------
 *
 * bytes.h
 *	  Bytes that come in pieces.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BYTES_H
#define RBP_BYTES_H

#include <stdbool.h>
#include <stddef.h>

/* Initialize it with {0}; its owner calls free(data). */
typedef struct RbpBytes
{
	char	   *data;			/* malloc'ed; NULL as long as len is 0 */
	size_t		len;
	size_t		capacity;		/* bytes allocated at data */
} RbpBytes;

/*
 * Append a piece.  False, and nothing is changed, if there would be more than
 * max bytes, or there is no memory.
 */
extern bool rbp_bytes_append(RbpBytes *bytes, const void *piece, size_t len, size_t max);

#endif							/* RBP_BYTES_H */
