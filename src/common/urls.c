/*-------------------------------------------------------------------------
 *
 * urls.c
 *	  Lists of brokers: see urls.h.
 *
 *-------------------------------------------------------------------------
 */
#include "common/urls.h"

#include <strings.h>

bool
rbp_urls_get(const char *urls, int n, char url[RBP_URL_LEN])
{
	size_t		len;

	url[0] = '\0';
	for (; n > 0; n--)
	{
		urls = strchr(urls, ',');
		if (urls == NULL)
			return false;
		urls++;
	}
	urls += strspn(urls, " ");
	len = strcspn(urls, ",");
	while (len > 0 && (urls[len - 1] == '/' || urls[len - 1] == ' '))
		len--;
	if (len == 0 || len >= RBP_URL_LEN)
		return false;
	memcpy(url, urls, len);
	url[len] = '\0';
	return true;
}

int
rbp_urls_find(const char *urls, const char *url)
{
	char		other[RBP_URL_LEN];
	int			n = 0;

	while (rbp_urls_get(urls, n, other))
	{
		if (strcmp(url, other) == 0)
			return n;
		n++;
	}
	return -1;
}

bool
rbp_urls_valid(const char *urls)
{
	char		url[RBP_URL_LEN];
	int			commas = 0;
	int			n = 0;

	for (const char *c = urls; *c != '\0'; c++)
		commas += *c == ',';
	while (rbp_urls_get(urls, n, url))
	{
		const char *host = url + (strncasecmp(url, "http://", 7) == 0 ? 7 : 8);

		if ((host == url + 8 && strncasecmp(url, "https://", 8) != 0) ||
			strchr(":/", *host) != NULL || strpbrk(url, " \t\r\n\"\\") != NULL)
			return false;
		n++;
	}
	return n == commas + 1;
}
