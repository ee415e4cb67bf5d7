/*-------------------------------------------------------------------------
 *
 * secret.h
 *	  Random bytes, tokens, and comparing secrets.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SECRET_H
#define RBP_SECRET_H

#include <stdbool.h>
#include <stddef.h>

#define RBP_UUID_LEN	37		/* UUID text including the terminating zero */

/*
 * Random bytes from OpenSSL.  Ends the process if there are none, rather than
 * returning weaker ones.
 */
extern void rbp_random_bytes(void *buf, size_t len);

/* Create a random UUID, version 4, lower case. */
extern void rbp_uuid4(char uuid[RBP_UUID_LEN]);

/*
 * Read a token: the first line of a file, without surrounding white space;
 * malloc'ed.  NULL if path is NULL.  Ends the process if the file cannot be
 * read, or the token is empty, longer than 1,024 bytes or has characters that
 * are not printable.  Logs a warning if users other than the owner and the
 * group can read the file.
 */
extern char *rbp_token_load(const char *path);

/*
 * Compare two secrets, by their hashes: so the time does not tell whether or
 * where they differ, nor whether they have the same length.
 */
extern bool rbp_equal_secret(const void *a, size_t alen,
							 const void *b, size_t blen);

#endif							/* RBP_SECRET_H */
