/*-------------------------------------------------------------------------
 *
 * text.c
 *	  Bytes as hexadecimal text; names and texts that are safe everywhere.
 *
 *-------------------------------------------------------------------------
 */
#include "common/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
rbp_hex_encode(const void *data, size_t len, char *hex)
{
	const unsigned char *bytes = data;

	hex[0] = '\0';
	for (size_t i = 0; i < len; i++)
		snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
}

void
rbp_uuid4_of(unsigned char bytes[16], char uuid[RBP_UUID_LEN])
{
	char		hex[33];

	bytes[6] = (unsigned char) ((bytes[6] & 0x0f) | 0x40);
	bytes[8] = (unsigned char) ((bytes[8] & 0x3f) | 0x80);
	rbp_hex_encode(bytes, 16, hex);
	snprintf(uuid, RBP_UUID_LEN, "%.8s-%.4s-%.4s-%.4s-%.12s",
			 hex, hex + 8, hex + 12, hex + 16, hex + 20);
}

bool
rbp_hex_decode(const char *hex, void *data, size_t len)
{
	unsigned char *bytes = data;

	if (strspn(hex, "0123456789abcdefABCDEF") != 2 * len || hex[2 * len] != '\0')
		return false;
	for (size_t i = 0; i < len; i++)
	{
		const char	pair[3] = {hex[2 * i], hex[2 * i + 1]};

		bytes[i] = (unsigned char) strtoul(pair, NULL, 16);
	}
	return true;
}

bool
rbp_valid_id(const char *id, size_t size)
{
	size_t		len = strnlen(id, size);

	if (len == 0 || len >= size || id[0] == '-' || id[0] == '.')
		return false;
	return strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
				  "abcdefghijklmnopqrstuvwxyz0123456789._:-") == len;
}

void
rbp_copy_printable(char *buf, size_t size, const char *text, size_t len)
{
	size_t		n = len < size ? len : size - 1;

	for (size_t i = 0; i < n; i++)
		buf[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
	buf[n] = '\0';
}
