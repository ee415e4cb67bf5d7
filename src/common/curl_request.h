/*-------------------------------------------------------------------------
 *
 * curl_request.h
 *	  A request to a broker by libcurl, and which broker is believed: for the
 *	  lease worker and the daemons.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CURL_REQUEST_H
#define RBP_CURL_REQUEST_H

#include "common/bytes.h"
#include "common/json.h"
#include "common/limits.h"
#include "common/text.h"
#include "common/token.h"

#include <curl/curl.h>
#include <openssl/evp.h>
#include <stdio.h>
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
	bool		pinned = token != NULL && rbp_credential_parse(token, &credential) == NULL &&
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

/* CURLOPT_WRITEFUNCTION; returning less than was given fails the request */
static inline size_t
rbp_curl_receive(char *data, size_t size, size_t nmemb, void *answer)
{
	return rbp_bytes_append(answer, data, size * nmemb, RBP_JSON_ANSWER_BYTES) ? size * nmemb : 0;
}

/*
 * Set all options for a request; those of earlier ones are gone.  body: NULL for none;
 * it and answer, to which the answer is appended, must live until the request ends.
 * token and ca_file: see rbp_curl_believe().  False if there is no memory.
 */
static inline bool
rbp_curl_prepare(CURL *curl, const char *method, const char *url, const char *body,
				 const char *token, const char *ca_file, long connect_ms, long total_ms,
				 RbpBytes *answer)
{
	static struct curl_slist headers[] = {
		{"Content-Type: application/json", &headers[1]},
		{"Accept: application/json", &headers[2]},

		/*
		 * Asking whether a large body is welcome would cost a round trip, and
		 * a second with servers that do not answer it.
		 */
		{"Expect:", NULL}
	};

	curl_easy_reset(curl);
	return curl_easy_setopt(curl, CURLOPT_URL, url) == CURLE_OK &&
		rbp_curl_believe(curl, url, token, ca_file) &&
		(body == NULL || curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body) == CURLE_OK) &&
		curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method) == CURLE_OK &&
		curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers) == CURLE_OK &&
		curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, rbp_curl_receive) == CURLE_OK &&
		curl_easy_setopt(curl, CURLOPT_WRITEDATA, answer) == CURLE_OK &&
		curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
	/* a token is for the broker, not for what http_proxy may name */
		curl_easy_setopt(curl, CURLOPT_PROXY, "") == CURLE_OK &&
		curl_easy_setopt(curl, CURLOPT_USERAGENT, "remote_bp/" RBP_VERSION) == CURLE_OK &&
		curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, connect_ms) == CURLE_OK &&
		curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, total_ms) == CURLE_OK;
}

/*
 * The HTTP status of an answer that has come.  0, with the reason in error, if something
 * else than a broker has answered.
 */
static inline int
rbp_curl_status(CURL *curl, const RbpBytes *answer, char *error, size_t size)
{
	struct curl_header *mark;
	char		text[80];
	long		status = 0;

	curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
	if (curl_easy_header(curl, RBP_BROKER_HEADER, 0, CURLH_HEADER, -1, &mark) == CURLHE_OK)
		return (int) status;
	rbp_copy_printable(text, sizeof(text), answer->data, answer->len);
	snprintf(error, size, "HTTP status %ld, but not from a remote_bp broker: \"%s\"", status, text);
	return 0;
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

#endif							/* RBP_CURL_REQUEST_H */
