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

/* From OpenSSL; ends the process if there is no randomness, never weakens. */
extern void rbp_random_bytes(void *buf, size_t len);

/* A random UUID, version 4, lower case. */
extern void rbp_uuid4(char uuid[RBP_UUID_LEN]);

/*
 * The first line of a file, without white space around it; malloc'ed.  NULL
 * if path is.  Ends the process if it cannot be read, is empty, longer than
 * 1,024 bytes or has other than printable characters.  Warns in the log if
 * others than the owner and group can read the file.
 */
extern char *rbp_token_load(const char *path);

/* Takes the same time wherever, and whether, they differ; also in length. */
extern bool rbp_equal_secret(const void *a, size_t alen,
							 const void *b, size_t blen);

#endif							/* RBP_SECRET_H */
