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

	rbp_random_bytes(bytes, sizeof(bytes));
	rbp_uuid4_of(bytes, uuid);
}

/*
 * Read the token, or all tokens, of the file; malloc'ed.  NULL, with the
 * reason in *why, if they cannot be used.
 */
static char *
load(const char *path, bool all, const char **why)
{
	char		tokens[RBP_TOKENS_LEN];
	char	   *copy = NULL;
	struct stat st;
	RbpTokenStatus status = all ? rbp_token_read_all(path, tokens) : rbp_token_read(path, tokens);

	if (status != RBP_TOKEN_OK)
		*why = rbp_token_fault(status);
	else if ((copy = strdup(tokens)) == NULL)
		*why = "out of memory";
	OPENSSL_cleanse(tokens, sizeof(tokens));
	if (copy != NULL && stat(path, &st) == 0 && (st.st_mode & S_IRWXO) != 0)
		rbp_log_repeated(RBP_LOG_WARNING, "token file \"%s\" is open to every user: chmod 640 it", path);
	return copy;
}

char *
rbp_token_load(const char *path, bool all)
{
	const char *why;
	char	   *tokens = path != NULL ? load(path, all, &why) : NULL;

	if (path != NULL && tokens == NULL)
		rbp_die("cannot use token file \"%s\": %s", path, why);
	return tokens;
}

char *
rbp_token_reload(const char *path, bool all)
{
	const char *why = "it is not a regular file, and is read only once";
	char	   *tokens = NULL;
	struct stat st;

	if (path == NULL)
		return NULL;
	/* who writes to a pipe may not do so again, and would be waited for */
	if (stat(path, &st) != 0 || S_ISREG(st.st_mode))
		tokens = load(path, all, &why);
	if (tokens == NULL)
		rbp_log_repeated(RBP_LOG_WARNING, "token file \"%s\" is not used: %s", path, why);
	return tokens;
}

void
rbp_token_free(char *tokens)
{
	if (tokens != NULL)
		OPENSSL_cleanse(tokens, strlen(tokens));
	free(tokens);
}

bool
rbp_token_is_among(const char *tokens, const char *given)
{
	bool		found = false;

	/* all are compared, so that the time does not tell which one it is */
	for (const char *token = tokens; *token != '\0';)
	{
		size_t		len = strcspn(token, "\n");

		found |= rbp_equal_secret(given, strlen(given), token, len);
		token += len + (token[len] == '\n');
	}
	return found;
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
