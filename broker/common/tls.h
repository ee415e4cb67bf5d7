/*-------------------------------------------------------------------------
 *
 * tls.h
 *	  The pin of a broker's certificate.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_TLS_H
#define RBP_TLS_H

#include "common/token.h"

/* Of the certificate that a broker makes beside its state, and of its key */
#define RBP_CERT_SUFFIX		".crt"
#define RBP_KEY_SUFFIX		".key"

/*
 * Store the SHA-256 of the public key of the file's first certificate, in hex.
 * Returns NULL, or why it cannot be had, in a constant text.
 */
extern const char *rbp_tls_pin(const char *path, char pin[RBP_SECRET_DIGITS + 1]);

#endif							/* RBP_TLS_H */
