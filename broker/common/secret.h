/*-------------------------------------------------------------------------
 *
 * secret.h
 *	  Random bytes, files with secrets, token files, and comparing secrets.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SECRET_H
#define RBP_SECRET_H

#include "common/limits.h"
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
 * No other process of this user may look at this one's memory, and no core file has
 * it.  After that, files of /proc/self that only their owner may use are root's.
 */
extern void rbp_hide_memory(void);

/*
 * Why this file must not be used for what is secret, in a constant text; NULL:
 * it may.  It must be a regular one, which others than its owner and group
 * cannot use.
 */
extern const char *rbp_secret_file_fault(const char *path);

/*
 * Write the text to the file, all at once and for good.  One that is there keeps its owner
 * and mode; another one is for its owner alone.  False, with errno, on failure.
 */
extern bool rbp_secret_file_write(const char *path, const char *text);

/*
 * Read a token file, see rbp_token_read(); malloc'ed, NULL if path is NULL.
 * Ends the process if the file cannot be used.
 */
extern char *rbp_token_load(const char *path);

/*
 * Read it again.  NULL, which is logged, if it cannot be used, or if it is a
 * pipe.  Never waits.
 */
extern char *rbp_token_reload(const char *path);

/* Overwrite and free what was loaded; it may be NULL. */
extern void rbp_token_free(char *token);

/* SHA-256 of a credential's secret, of its hex digits as they are written. */
extern void rbp_secret_hash(const char *secret, unsigned char hash[RBP_SECRET_LEN]);

/*
 * Compare two secrets, by their hashes: so the time does not tell whether or
 * where they differ, nor whether they have the same length.
 */
extern bool rbp_equal_secret(const void *a, size_t alen,
							 const void *b, size_t blen);

#endif							/* RBP_SECRET_H */
