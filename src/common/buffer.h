/*-------------------------------------------------------------------------
 *
 * buffer.h
 *	  Bytes that come in pieces.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BUFFER_H
#define RBP_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

/* Starts as zeroes; its owner frees data. */
typedef struct RbpBuffer
{
	char	   *data;			/* malloc'ed; NULL as long as len is 0 */
	size_t		len;
	size_t		size;			/* of data */
} RbpBuffer;

/*
 * Append a piece.  False, and nothing is changed, if there would be more than
 * max bytes, or there is no memory.
 */
extern bool rbp_buffer_append(RbpBuffer *buffer, const void *piece, size_t len, size_t max);

#endif							/* RBP_BUFFER_H */
