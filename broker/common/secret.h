/*-------------------------------------------------------------------------
 *
 * secret.h
 *	  Random bytes, tokens, and comparing secrets.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SECRET_H
#define RBP_SECRET_H

#include "common/text.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * Random bytes from OpenSSL.  Ends the process if there are none, rather than
 * returning weaker ones.
 */
extern void rbp_random_bytes(void *buf, size_t len);

/* Create a random UUID, version 4, lower case. */
extern void rbp_uuid4(char uuid[RBP_UUID_LEN]);

/*
 * Read a token: the first line of a file, without surrounding white space; or
 * all lines that are not empty, with newlines between them.  malloc'ed; NULL if
 * path is NULL.  Ends the process if the file cannot be read, or a token is
 * longer than 1,024 bytes or has characters that are not printable, or there is
 * none.  Logs a warning if users other than the owner and the group can read
 * the file.
 */
extern char *rbp_token_load(const char *path, bool all);

/*
 * Read them again.  NULL, which is logged, if they cannot be used, or if the
 * file is a pipe.  Never waits.
 */
extern char *rbp_token_reload(const char *path, bool all);

/* Overwrite and free what was loaded; it may be NULL. */
extern void rbp_token_free(char *tokens);

/* Is it one of them?  The time does not tell, see rbp_equal_secret(). */
extern bool rbp_token_is_among(const char *tokens, const char *given);

/*
 * Compare two secrets, by their hashes: so the time does not tell whether or
 * where they differ, nor whether they have the same length.
 */
extern bool rbp_equal_secret(const void *a, size_t alen,
							 const void *b, size_t blen);

#endif							/* RBP_SECRET_H */
