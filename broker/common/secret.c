/*-------------------------------------------------------------------------
 *
 * secret.c
 *	  Random bytes, files with secrets, token files, and comparing secrets.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/log.h"
#include "broker/common/secret.h"
#include "common/text.h"
#include "common/token.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

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

void
rbp_hide_memory(void)
{
	if (prctl(PR_SET_DUMPABLE, 0) != 0)
		rbp_die("could not protect this process's memory: %s", strerror(errno));
}

const char *
rbp_secret_file_fault(const char *path)
{
	struct stat st;

	if (stat(path, &st) != 0)
		return strerror(errno);
	if (!S_ISREG(st.st_mode))
		return "it is not a regular file";
	return (st.st_mode & S_IRWXO) != 0 ? RBP_OPEN_FAULT : NULL;
}

/* Else the machine's crash may take the new name.  The path changes. */
static bool
sync_directory_of(char *path)
{
	int			fd = open(dirname(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool		done = fd >= 0 && fsync(fd) == 0;

	if (fd >= 0)
		close(fd);
	return done;
}

bool
rbp_secret_file_write(const char *path, const char *text)
{
	size_t		len = strlen(text);
	char	   *fresh = NULL;
	struct stat st;
	int			fd;
	bool		done = false;

	if (asprintf(&fresh, "%s.new", path) < 0)
		rbp_die("out of memory");
	fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd >= 0)
	{
		done = fchmod(fd, 0600) == 0 && write(fd, text, len) == (ssize_t) len && fsync(fd) == 0;
		/* the broker's, although root changes it */
		if (done && stat(path, &st) == 0)
			done = fchown(fd, st.st_uid, st.st_gid) == 0 && fchmod(fd, st.st_mode & 0770) == 0;
		close(fd);
	}
	done = done && rename(fresh, path) == 0 && sync_directory_of(fresh);
	free(fresh);
	return done;
}

/* Read the credential of the file; malloc'ed.  NULL, with the reason in *why. */
static char *
load(const char *path, const char **why)
{
	char		token[RBP_TOKEN_LEN];
	char	   *copy;

	*why = rbp_token_read(path, token);
	copy = *why == NULL ? strdup(token) : NULL;
	if (*why == NULL && copy == NULL)
		*why = "out of memory";
	OPENSSL_cleanse(token, sizeof(token));
	return copy;
}

char *
rbp_token_load(const char *path)
{
	const char *why;
	char	   *token = path != NULL ? load(path, &why) : NULL;

	if (path != NULL && token == NULL)
		rbp_die("cannot use token file \"%s\": %s", path, why);
	return token;
}

char *
rbp_token_reload(const char *path)
{
	const char *why;
	char	   *token = NULL;

	if (path == NULL)
		return NULL;
	/* who writes to a pipe may not do so again, and would be waited for */
	why = rbp_secret_file_fault(path);
	if (why == NULL)
		token = load(path, &why);
	if (token == NULL)
		rbp_log_repeated(RBP_LOG_WARNING, "token file \"%s\" is not used: %s", path, why);
	return token;
}

void
rbp_token_free(char *token)
{
	if (token != NULL)
		OPENSSL_cleanse(token, strlen(token));
	free(token);
}

void
rbp_secret_hash(const char *secret, unsigned char hash[RBP_SECRET_LEN])
{
	SHA256((const unsigned char *) secret, strlen(secret), hash);
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
