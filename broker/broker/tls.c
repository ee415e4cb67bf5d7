/*-------------------------------------------------------------------------
 *
 * tls.c
 *	  The broker's certificate and key.
 *
 * A certificate that the broker makes itself is signed by its own key, and for
 * nobody's name: who believes it has its pin, or has been given the certificate.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/tls.h"
#include "broker/common/log.h"
#include "broker/common/secret.h"
#include "broker/common/tls.h"

#include <errno.h>
#include <gnutls/x509.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What a certificate that is made here is for */
#define NAME		"remote-bp-broker"
#define CHAIN_MAX	8

typedef struct Identity
{
	gnutls_pcert_st certs[CHAIN_MAX];
	unsigned int ncerts;
	gnutls_privkey_t key;
} Identity;

static const char *cert_file;
static const char *key_file;	/* NULL: no TLS */

/*
 * One that was replaced is never freed, since a handshake may go on with it;
 * nor is what was read of faulty files.
 */
static _Atomic(Identity *) identity;

static char *
named(const char *prefix, const char *suffix)
{
	char	   *path;

	if (asprintf(&path, "%s%s", prefix, suffix) < 0)
		rbp_die("out of memory");
	return path;
}

static bool
is_there(const char *path)
{
	return access(path, F_OK) == 0 || errno != ENOENT;
}

/* Write what GnuTLS has encoded. */
static void
write_pem(const char *path, gnutls_datum_t *pem)
{
	char	   *text;

	if (asprintf(&text, "%.*s", (int) pem->size, (char *) pem->data) < 0)
		rbp_die("out of memory");
	if (!rbp_secret_file_write(path, text))
		rbp_die("could not write \"%s\": %s", path, strerror(errno));
	rbp_log(RBP_LOG_INFO, "made \"%s\"", path);
	explicit_bzero(text, pem->size);
	explicit_bzero(pem->data, pem->size);
	free(text);
	gnutls_free(pem->data);
}

static int
read_key(gnutls_x509_privkey_t *key)
{
	gnutls_datum_t pem;
	int			rc = gnutls_load_file(key_file, &pem);

	if (rc < 0)
		return rc;
	rc = gnutls_x509_privkey_init(key);
	if (rc >= 0)
		rc = gnutls_x509_privkey_import2(*key, &pem, GNUTLS_X509_FMT_PEM, NULL, 0);
	explicit_bzero(pem.data, pem.size);
	gnutls_free(pem.data);
	return rc;
}

static void
make_key(void)
{
	gnutls_x509_privkey_t key;
	gnutls_datum_t pem;

	if (gnutls_x509_privkey_init(&key) < 0 ||
		gnutls_x509_privkey_generate(key, GNUTLS_PK_ECDSA,
									 GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0) < 0 ||
		gnutls_x509_privkey_export2(key, GNUTLS_X509_FMT_PEM, &pem) < 0)
		rbp_die("cannot make a key");
	write_pem(key_file, &pem);
	gnutls_x509_privkey_deinit(key);
}

/* With the key that is there: its pin stays the same. */
static void
make_cert(void)
{
	gnutls_x509_privkey_t key;
	gnutls_x509_crt_t cert;
	gnutls_datum_t pem;
	unsigned char serial[16];

	rbp_random_bytes(serial, sizeof(serial));
	serial[0] = 1;				/* it is positive */
	if (read_key(&key) < 0 || gnutls_x509_crt_init(&cert) < 0 ||
		gnutls_x509_crt_set_version(cert, 3) < 0 ||
		gnutls_x509_crt_set_serial(cert, serial, sizeof(serial)) < 0 ||
		gnutls_x509_crt_set_activation_time(cert, time(NULL) - 86400) < 0 ||
		gnutls_x509_crt_set_expiration_time(cert, GNUTLS_X509_NO_WELL_DEFINED_EXPIRATION) < 0 ||
		gnutls_x509_crt_set_dn_by_oid(cert, GNUTLS_OID_X520_COMMON_NAME, 0, NAME, strlen(NAME)) < 0 ||
		gnutls_x509_crt_set_subject_alt_name(cert, GNUTLS_SAN_DNSNAME, NAME, strlen(NAME), GNUTLS_FSAN_SET) < 0 ||
		gnutls_x509_crt_set_key(cert, key) < 0 ||
		gnutls_x509_crt_sign2(cert, cert, key, GNUTLS_DIG_SHA256, 0) < 0 ||
		gnutls_x509_crt_export2(cert, GNUTLS_X509_FMT_PEM, &pem) < 0)
		rbp_die("cannot make a certificate with key \"%s\"", key_file);
	write_pem(cert_file, &pem);
	gnutls_x509_crt_deinit(cert);
	gnutls_x509_privkey_deinit(key);
}

/* Read the chain of certificates. */
static int
load_certs(Identity *fresh)
{
	gnutls_datum_t pem;
	int			rc = gnutls_load_file(cert_file, &pem);

	if (rc < 0)
		return rc;
	fresh->ncerts = CHAIN_MAX;
	rc = gnutls_pcert_list_import_x509_raw(fresh->certs, &fresh->ncerts, &pem, GNUTLS_X509_FMT_PEM, 0);
	gnutls_free(pem.data);
	return rc;
}

/* Read the private key, which must be that of the certificate with this pin. */
static int
load_key(Identity *fresh, const char *pin)
{
	gnutls_x509_privkey_t key;
	unsigned char id[RBP_SECRET_LEN];
	char		text[RBP_SECRET_DIGITS + 1];
	size_t		len = sizeof(id);
	int			rc = read_key(&key);

	if (rc >= 0)
		rc = gnutls_x509_privkey_get_key_id(key, GNUTLS_KEYID_USE_SHA256, id, &len);
	if (rc >= 0)
	{
		rbp_hex_encode(id, sizeof(id), text);
		if (strcmp(text, pin) != 0)
			rc = GNUTLS_E_CERTIFICATE_KEY_MISMATCH;
	}
	if (rc < 0 || (rc = gnutls_privkey_init(&fresh->key)) < 0)
		return rc;
	return gnutls_privkey_import_x509(fresh->key, key, GNUTLS_PRIVKEY_IMPORT_AUTO_RELEASE);
}

/* Use what is in the files.  Returns NULL, or why that cannot be. */
static const char *
load(char pin[RBP_SECRET_DIGITS + 1])
{
	const char *fault = rbp_secret_file_fault(key_file);
	Identity   *fresh;
	int			rc;

	if (fault == NULL)
		fault = rbp_tls_pin(cert_file, pin);
	if (fault != NULL)
		return fault;
	fresh = calloc(1, sizeof(*fresh));
	if (fresh == NULL)
		rbp_die("out of memory");
	rc = load_certs(fresh);
	if (rc >= 0)
		rc = load_key(fresh, pin);
	if (rc < 0)
		return gnutls_strerror(rc);
	atomic_store(&identity, fresh);
	rbp_log(RBP_LOG_INFO, "serving HTTPS with certificate \"%s\"", cert_file);
	return NULL;
}

void
broker_tls_open(const char *cert, const char *key, const char *prefix,
				char pin[RBP_SECRET_DIGITS + 1])
{
	const char *fault;

	cert_file = cert != NULL ? cert : named(prefix, RBP_CERT_SUFFIX);
	key_file = key != NULL ? key : named(prefix, RBP_KEY_SUFFIX);
	if (cert == NULL && !is_there(cert_file))
	{
		if (!is_there(key_file))
			make_key();
		make_cert();
	}
	fault = load(pin);
	if (fault != NULL)
		rbp_die("cannot use certificate \"%s\" with key \"%s\": %s", cert_file, key_file, fault);
}

void
broker_tls_reload(void)
{
	char		pin[RBP_SECRET_DIGITS + 1];
	const char *fault = key_file != NULL ? load(pin) : NULL;

	if (fault != NULL)
		rbp_log(RBP_LOG_WARNING, "certificate \"%s\" with key \"%s\" is not used: %s; that of before stays in use",
				cert_file, key_file, fault);
}

int
broker_tls_identify(gnutls_session_t session, const gnutls_datum_t *cas, int ncas,
					const gnutls_pk_algorithm_t *algorithms, int nalgorithms,
					gnutls_pcert_st **certs, unsigned int *ncerts, gnutls_privkey_t *key)
{
	Identity   *mine = atomic_load(&identity);

	*certs = mine->certs;
	*ncerts = mine->ncerts;
	*key = mine->key;
	return 0;
}
