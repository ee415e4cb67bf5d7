/*-------------------------------------------------------------------------
 *
 * text.c
 *	  Bytes as hexadecimal text; names and texts that are safe everywhere.
 *
 *-------------------------------------------------------------------------
 */
#include "common/text.h"

#include <stdio.h>
#include <string.h>

void
rbp_hex_encode(const void *data, size_t len, char *hex)
{
	const unsigned char *bytes = data;
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < len; i++)
	{
		hex[2 * i] = digits[bytes[i] >> 4];
		hex[2 * i + 1] = digits[bytes[i] & 15];
	}
	hex[2 * len] = '\0';
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

static int
hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

bool
rbp_hex_decode(const char *hex, void *data, size_t len)
{
	unsigned char *bytes = data;

	if (strnlen(hex, 2 * len + 1) != 2 * len)
		return false;
	for (size_t i = 0; i < 2 * len; i++)
	{
		if (hex_value(hex[i]) < 0)
			return false;
	}
	for (size_t i = 0; i < len; i++)
		bytes[i] = (unsigned char) (hex_value(hex[2 * i]) << 4 |
									hex_value(hex[2 * i + 1]));
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
