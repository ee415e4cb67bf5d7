/*-------------------------------------------------------------------------
 *
 * text.h
 *	  Bytes as hexadecimal text; names and texts that are safe everywhere;
 *	  plurals.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_TEXT_H
#define RBP_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* The ending of a noun after this number, for messages. */
#define RBP_PLURAL(n)	((n) == 1 ? "" : "s")

#define RBP_UUID_LEN	37		/* of its text, with the terminating zero */

/* The UUID (version 4) of these random bytes, which change. */
extern void rbp_uuid4_of(unsigned char bytes[16], char uuid[RBP_UUID_LEN]);

/* hex must hold 2 * len + 1 bytes; lower case. */
extern void rbp_hex_encode(const void *data, size_t len, char *hex);

/*
 * Decode a text of exactly 2 * len digits.  Returns false, and leaves data
 * unchanged, for any other text.
 */
extern bool rbp_hex_decode(const char *hex, void *data, size_t len);

/*
 * Is this a valid name, which fits into a buffer of that size?  It must have
 * characters of A-Z a-z 0-9 . _ : - only, at least one, and no leading '-' or
 * '.', so that it is safe in URLs, logs, labels and shell lines.
 */
extern bool rbp_valid_id(const char *id, size_t size);

/*
 * Copy the beginning of a text of len bytes to buf[size], with a question mark
 * for each byte that is not printable ASCII, so that it is safe in logs.
 */
extern void rbp_copy_printable(char *buf, size_t size, const char *text, size_t len);

#endif							/* RBP_TEXT_H */
