/*-------------------------------------------------------------------------
 *
 * secret.c
 *	  Random bytes, tokens, and comparing secrets.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/log.h"
#include "broker/common/secret.h"
#include "common/text.h"
#include "common/token.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void
rbp_random_bytes(void *buf, size_t len)
{
	if (RAND_bytes(buf, (int) len) != 1)
	{
		rbp_log(RBP_LOG_ERROR, "could not get random bytes from OpenSSL");
		abort();
	}
}

void
rbp_uuid4(char uuid[RBP_UUID_LEN])
{
	unsigned char bytes[16];
	char		hex[33];

	rbp_random_bytes(bytes, sizeof(bytes));
	bytes[6] = (unsigned char) ((bytes[6] & 0x0f) | 0x40);
	bytes[8] = (unsigned char) ((bytes[8] & 0x3f) | 0x80);
	rbp_hex_encode(bytes, sizeof(bytes), hex);
	snprintf(uuid, RBP_UUID_LEN, "%.8s-%.4s-%.4s-%.4s-%.12s",
			 hex, hex + 8, hex + 12, hex + 16, hex + 20);
}

char *
rbp_token_load(const char *path)
{
	static const char *const errors[] = {
		[RBP_TOKEN_EMPTY] = "its first line is empty",
		[RBP_TOKEN_TOO_LONG] = "its first line is too long",
		[RBP_TOKEN_NOT_PRINTABLE] = "a token consists of printable ASCII characters without spaces"
	};
	char		token[RBP_TOKEN_LEN];
	char	   *copy;
	RbpTokenStatus status;
	struct stat st;

	if (path == NULL)
		return NULL;
	status = rbp_token_read(path, token);
	if (status != RBP_TOKEN_OK)
		rbp_die("cannot use token file \"%s\": %s", path,
				status == RBP_TOKEN_UNREADABLE ? strerror(errno) : errors[status]);
	copy = strdup(token);
	if (copy == NULL)
		rbp_die("out of memory");
	OPENSSL_cleanse(token, sizeof(token));
	if (stat(path, &st) == 0 && (st.st_mode & S_IRWXO) != 0)
		rbp_log(RBP_LOG_WARNING, "token file \"%s\" is open to every user: chmod 640 it", path);
	return copy;
}

/* Digests are equally long, so the time does not depend on which text is longer. */
bool
rbp_equal_secret(const void *a, size_t alen, const void *b, size_t blen)
{
	unsigned char da[SHA256_DIGEST_LENGTH];
	unsigned char db[SHA256_DIGEST_LENGTH];

	SHA256(a, alen, da);
	SHA256(b, blen, db);
	return CRYPTO_memcmp(da, db, sizeof(da)) == 0;
}
