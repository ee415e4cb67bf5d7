/*-------------------------------------------------------------------------
 *
 * format.c
 *	  Sizes and addresses as text.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool
rbp_parse_size(const char *text, uint64_t *bytes)
{
	static const struct
	{
		const char *name;
		uint64_t	unit;
	}			units[] = {
		{"", 1}, {"B", 1}, {"kB", UINT64_C(1) << 10}, {"MB", UINT64_C(1) << 20},
		{"GB", UINT64_C(1) << 30}, {"TB", UINT64_C(1) << 40}
	};
	long double value;
	char	   *end;
	size_t		digits;

	/* strtold alone would accept " -1", "inf" and "0x10" */
	digits = strspn(text, "0123456789.");
	if (digits == 0 || digits > 30 || !isdigit((unsigned char) text[0]))
		return false;
	value = strtold(text, &end);
	if (end != text + digits)
		return false;
	end += strspn(end, " ");

	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
	{
		if (strcasecmp(end, units[i].name) != 0)
			continue;
		value *= (long double) units[i].unit;
		if (value >= 18446744073709551616.0L)
			return false;
		*bytes = (uint64_t) value;
		return true;
	}
	return false;
}

char *
rbp_format_size(uint64_t bytes, char *buf, size_t len)
{
	static const char *const names[] = {"B", "kB", "MB", "GB", "TB"};
	double		value = (double) bytes;
	int			unit = 0;

	while (value >= 1024 && unit < 4)
	{
		value /= 1024;
		unit++;
	}
	if (value == (double) (uint64_t) value)
		snprintf(buf, len, "%.0f %s", value, names[unit]);
	else
		snprintf(buf, len, value < 10 ? "%.2f %s" : "%.1f %s", value, names[unit]);
	return buf;
}

bool
rbp_parse_hostport(const char *text, char *host, size_t hostlen, uint16_t *port)
{
	const char *colon = strrchr(text, ':');
	const char *start = text;
	size_t		len;
	char	   *end;
	unsigned long number;

	if (colon == NULL || !isdigit((unsigned char) colon[1]))
		return false;
	errno = 0;
	number = strtoul(colon + 1, &end, 10);
	if (errno != 0 || *end != '\0' || number > 65535)
		return false;

	len = (size_t) (colon - start);
	if (start[0] == '[')
	{
		if (len < 3 || start[len - 1] != ']')
			return false;
		start++;
		len -= 2;
	}
	else if (memchr(start, ':', len) != NULL)
		return false;			/* "::1:80" is ambiguous; ask for brackets */
	if (len >= hostlen)
		return false;
	memcpy(host, start, len);
	host[len] = '\0';
	*port = (uint16_t) number;
	return true;
}

char *
rbp_format_hostport(const char *host, uint16_t port, char *buf, size_t len)
{
	snprintf(buf, len, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host,
			 (unsigned) port);
	return buf;
}

char *
rbp_format_address(const struct sockaddr *addr, char *buf, size_t len)
{
	socklen_t	addrlen = addr == NULL ? 0 : addr->sa_family == AF_INET6 ?
	sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);

	if (addrlen == 0 ||
		getnameinfo(addr, addrlen, buf, (socklen_t) len, NULL, 0, NI_NUMERICHOST) != 0)
		snprintf(buf, len, "an unknown address");
	return buf;
}
