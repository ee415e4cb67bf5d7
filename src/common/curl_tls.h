/*-------------------------------------------------------------------------
 *
 * curl_tls.h
 *	  Which broker libcurl believes, for those who use it: the lease worker
 *	  and the daemons.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CURL_TLS_H
#define RBP_CURL_TLS_H

#include "common/text.h"
#include "common/token.h"

#include <curl/curl.h>
#include <openssl/evp.h>
#include <string.h>
#include <strings.h>

/*
 * Have requests to that URL sent with the credential (NULL: none), and set whom
 * to believe: who has the key of its pin, whatever his certificate says;
 * without a pin, whose certificate is for this host and of one of the CAs in
 * ca_file (NULL: the system's).  Without TLS the credential is not sent, and
 * with a pin, nothing is.  False if there is no memory.
 */
static inline bool
rbp_curl_believe(CURL *curl, const char *url, const char *token, const char *ca_file)
{
	char		pin[64] = "sha256//";
	unsigned char hash[RBP_SECRET_LEN];
	RbpCredential credential;
	bool		secure = strncasecmp(url, "https://", 8) == 0;
	bool		pinned = token != NULL && rbp_credential_parse(token, &credential) == RBP_TOKEN_OK &&
	rbp_hex_decode(credential.pin, hash, sizeof(hash));

	explicit_bzero(&credential, sizeof(credential));
	if (pinned)
		EVP_EncodeBlock((unsigned char *) pin + strlen(pin), hash, sizeof(hash));
	return curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, secure || pinned ? "https" : "http") == CURLE_OK &&
		curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER) == CURLE_OK &&
		curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, secure ? token : NULL) == CURLE_OK &&
		curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long) CURL_SSLVERSION_TLSv1_2) == CURLE_OK &&
		curl_easy_setopt(curl, CURLOPT_PINNEDPUBLICKEY, pinned ? pin : NULL) == CURLE_OK &&
		curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, pinned ? 0L : 1L) == CURLE_OK &&
		curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, pinned ? 0L : 2L) == CURLE_OK &&
		(ca_file == NULL ||
		 (curl_easy_setopt(curl, CURLOPT_CAINFO, ca_file) == CURLE_OK &&
		  curl_easy_setopt(curl, CURLOPT_CAPATH, NULL) == CURLE_OK));
}

/* Has a request failed because of whom to believe? */
static inline bool
rbp_curl_unbelieved(CURLcode result)
{
	return result == CURLE_SSL_PINNEDPUBKEYNOTMATCH || result == CURLE_PEER_FAILED_VERIFICATION ||
		result == CURLE_UNSUPPORTED_PROTOCOL;
}

/* In words */
static inline const char *
rbp_curl_error(CURLcode result)
{
	return result == CURLE_UNSUPPORTED_PROTOCOL ? "the credential has a pin, which needs a URL of https://"
		: curl_easy_strerror(result);
}

#endif							/* RBP_CURL_TLS_H */
