/*-------------------------------------------------------------------------
 *
 * urls.h
 *	  Lists of brokers: URLs, separated by commas, the preferred one first.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_URLS_H
#define RBP_URLS_H

#include <stdbool.h>
#include <string.h>

#define RBP_URL_LEN			1024

/*
 * Copy the n-th URL of the list, from 0, without blanks around it and slashes at its end.
 * Returns false, and "", if there is none, or it is longer.
 */
extern bool rbp_urls_get(const char *urls, int n, char url[RBP_URL_LEN]);

/* Does the list have more than one? */
static inline bool
rbp_urls_several(const char *urls)
{
	return strchr(urls, ',') != NULL;
}

/* Which one of the list that is, or -1. */
extern int	rbp_urls_find(const char *urls, const char *url);

/* Does the list have one URL or more, each "http://" or "https://" and a host? */
extern bool rbp_urls_valid(const char *urls);

#endif							/* RBP_URLS_H */
