/*-------------------------------------------------------------------------
 *
 * format.h
 *	  Sizes and addresses as text.
 *
 * Functions that can fail return bool and set their outputs only on success,
 * unless said otherwise.  All functions are thread-safe.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_FORMAT_H
#define RBP_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/*
 * Parse a size such as "1073741824", "64MB" or "1.5GB".  Suffixes are B, kB,
 * MB, GB, TB in any case, with or without a space before, and powers of 1024.
 * False if it is anything else, negative, or does not fit.
 */
extern bool rbp_parse_size(const char *text, uint64_t *bytes);

/*
 * Format a size for people, as in "512 kB", "64 MB", "1.5 GB".  Returns buf.
 */
extern char *rbp_format_size(uint64_t bytes, char *buf, size_t len);

/*
 * Parse "HOST:PORT", "[V6ADDR]:PORT" or ":PORT" (host becomes "").  Port 0 is
 * allowed.  False if malformed, or if the host does not fit.
 */
extern bool rbp_parse_hostport(const char *text, char *host, size_t hostlen,
							   uint16_t *port);

/* Format "HOST:PORT", with brackets if the host has a colon.  Returns buf. */
extern char *rbp_format_hostport(const char *host, uint16_t port,
								 char *buf, size_t len);

/* Format an IP address without its port, for messages.  Returns buf. */
extern char *rbp_format_address(const struct sockaddr *addr, char *buf, size_t len);

#endif							/* RBP_FORMAT_H */
