/*-------------------------------------------------------------------------
 *
 * format.h
 *	  Sizes and addresses as text.
 *
 * Functions that can fail return bool and set their outputs only on success,
 * unless said otherwise.  Any thread may call them.
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
 * "1073741824", "64MB", "1.5GB"; suffixes B, kB, MB, GB, TB in any case, with
 * or without a space before, powers of 1024.  False if it is anything else,
 * negative, or does not fit.
 */
extern bool rbp_parse_size(const char *text, uint64_t *bytes);

/* A size for people: "512 kB", "64 MB", "1.5 GB".  Returns buf. */
extern char *rbp_format_size(uint64_t bytes, char *buf, size_t len);

/*
 * "HOST:PORT", "[V6ADDR]:PORT", ":PORT" (host becomes "").  Port 0 is
 * allowed.  False if malformed, or if the host does not fit.
 */
extern bool rbp_parse_hostport(const char *text, char *host, size_t hostlen,
							   uint16_t *port);

/* The other way round, with brackets where the host has a colon. */
extern char *rbp_format_hostport(const char *host, uint16_t port,
								 char *buf, size_t len);

/* An IP address without its port, for messages.  Returns buf. */
extern char *rbp_format_address(const struct sockaddr *addr, char *buf, size_t len);

#endif							/* RBP_FORMAT_H */
