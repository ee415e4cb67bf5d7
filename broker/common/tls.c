/*-------------------------------------------------------------------------
 *
 * tls.c
 *	  The pin of a broker's certificate.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/tls.h"
#include "common/text.h"

#include <gnutls/x509.h>

const char *
rbp_tls_pin(const char *path, char pin[RBP_SECRET_DIGITS + 1])
{
	unsigned char id[RBP_SECRET_LEN];
	size_t		len = sizeof(id);
	gnutls_x509_crt_t cert = NULL;
	gnutls_datum_t pem;
	int			rc = gnutls_load_file(path, &pem);

	if (rc < 0)
		return gnutls_strerror(rc);
	rc = gnutls_x509_crt_init(&cert);
	if (rc >= 0)
		rc = gnutls_x509_crt_import(cert, &pem, GNUTLS_X509_FMT_PEM);
	if (rc >= 0)
		rc = gnutls_x509_crt_get_key_id(cert, GNUTLS_KEYID_USE_SHA256, id, &len);
	gnutls_x509_crt_deinit(cert);
	gnutls_free(pem.data);
	if (rc < 0)
		return gnutls_strerror(rc);
	rbp_hex_encode(id, sizeof(id), pin);
	return NULL;
}
