/*-------------------------------------------------------------------------
 *
 * buffer.c
 *	  Bytes that come in pieces.
 *
 *-------------------------------------------------------------------------
 */
#include "common/buffer.h"

#include <stdlib.h>
#include <string.h>

bool
rbp_buffer_append(RbpBuffer *buffer, const void *piece, size_t len, size_t max)
{
	if (len > max - buffer->len)
		return false;
	if (buffer->len + len > buffer->size)
	{
		size_t		size = (buffer->len + len) * 2;
		char	   *grown = realloc(buffer->data, size);

		if (grown == NULL)
			return false;
		buffer->data = grown;
		buffer->size = size;
	}
	memcpy(buffer->data + buffer->len, piece, len);
	buffer->len += len;
	return true;
}
