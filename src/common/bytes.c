/*-------------------------------------------------------------------------
 *
 * bytes.c
 *	  Bytes that come in pieces.
 *
 *-------------------------------------------------------------------------
 */
#include "common/bytes.h"

#include <stdlib.h>
#include <string.h>

bool
rbp_bytes_append(RbpBytes *bytes, const void *piece, size_t len, size_t max)
{
	if (len > max - bytes->len)
		return false;
	if (bytes->len + len > bytes->capacity)
	{
		size_t		capacity = (bytes->len + len) * 2;
		char	   *grown = realloc(bytes->data, capacity);

		if (grown == NULL)
			return false;
		bytes->data = grown;
		bytes->capacity = capacity;
	}
	memcpy(bytes->data + bytes->len, piece, len);
	bytes->len += len;
	return true;
}
