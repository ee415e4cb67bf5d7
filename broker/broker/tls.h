/*-------------------------------------------------------------------------
 *
 * tls.h
 *	  The broker's certificate and key.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_TLS_H
#define RBP_BROKER_TLS_H

#include "common/token.h"

#include <gnutls/abstract.h>

/*
 * Read these files.  With NULL, their names begin with prefix, and they are made if
 * they are not there.  Dies with a message if they cannot be used.  pin gets the
 * certificate's.
 */
extern void broker_tls_open(const char *cert, const char *key, const char *prefix,
							char pin[RBP_SECRET_DIGITS + 1]);

/*
 * Read them again, if there are any.  If they cannot be used, which is logged,
 * what was read before stays in use.
 */
extern void broker_tls_reload(void);

/* For GnuTLS: what to show to a client.  Any thread may call this. */
extern int	broker_tls_identify(gnutls_session_t session, const gnutls_datum_t *cas, int ncas,
								const gnutls_pk_algorithm_t *algorithms, int nalgorithms,
								gnutls_pcert_st **certs, unsigned int *ncerts,
								gnutls_privkey_t *key);

#endif							/* RBP_BROKER_TLS_H */
