/*-------------------------------------------------------------------------
 *
 * credentials.c
 *	  The file of the credentials that a broker accepts: see credentials.h.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/credentials.h"
#include "broker/common/log.h"
#include "broker/common/secret.h"
#include "common/text.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
append(RbpAcceptedList *c, const RbpAccepted *line)
{
	c->lines = reallocarray(c->lines, c->n + 1, sizeof(RbpAccepted));
	if (c->lines == NULL)
		rbp_die("out of memory");
	c->lines[c->n++] = *line;
}

static bool
parse_line(const char *text, RbpAccepted *line)
{
	char		role[16];
	char		hash[RBP_SECRET_DIGITS + 1];
	char		more;

	return sscanf(text, "%15s %63s %64s %c", role, line->name, hash, &more) == 3 &&
		rbp_role_parse(role, &line->role) && rbp_credential_name_valid(line->name) &&
		rbp_hex_decode(hash, line->hash, sizeof(line->hash));
}

bool
rbp_credentials_read(RbpAcceptedList *c, const char *path, char why[RBP_CREDENTIALS_WHY_LEN])
{
	const char *fault = rbp_secret_file_fault(path);
	FILE	   *file = fault == NULL ? fopen(path, "re") : NULL;
	RbpAcceptedList fresh = {0};
	RbpAccepted line;
	char	   *text = NULL;
	size_t		size = 0;
	ssize_t		len;

	if (file == NULL)
	{
		snprintf(why, RBP_CREDENTIALS_WHY_LEN, "%s", fault != NULL ? fault : strerror(errno));
		return false;
	}
	why[0] = '\0';
	for (int number = 1; why[0] == '\0' && (len = getline(&text, &size, file)) >= 0; number++)
	{
		if (strlen(text) != (size_t) len || !parse_line(text, &line))
			snprintf(why, RBP_CREDENTIALS_WHY_LEN, "line %d is not \"ROLE NAME SHA256-OF-SECRET\"", number);
		else
			append(&fresh, &line);
	}
	if (why[0] == '\0' && (ferror(file) || fresh.n == 0))
		snprintf(why, RBP_CREDENTIALS_WHY_LEN, "%s", ferror(file) ? strerror(errno) : "it is empty");
	fclose(file);
	free(text);
	if (why[0] != '\0')
	{
		rbp_credentials_free(&fresh);
		return false;
	}
	rbp_credentials_free(c);
	*c = fresh;
	return true;
}

bool
rbp_credentials_write(const RbpAcceptedList *c, const char *path)
{
	char	   *text = NULL;
	size_t		len;
	FILE	   *out = open_memstream(&text, &len);
	bool		done;

	if (out == NULL)
		rbp_die("out of memory");
	for (size_t i = 0; i < c->n; i++)
	{
		char		hash[RBP_SECRET_DIGITS + 1];

		rbp_hex_encode(c->lines[i].hash, sizeof(c->lines[i].hash), hash);
		fprintf(out, "%s %s %s\n", rbp_role_names[c->lines[i].role], c->lines[i].name, hash);
	}
	if (fclose(out) != 0)
		rbp_die("out of memory");
	done = rbp_secret_file_write(path, text);
	free(text);
	return done;
}

void
rbp_credentials_add(RbpAcceptedList *c, RbpRole role, const char *name, const char *pin,
					char token[RBP_TOKEN_LEN])
{
	RbpAccepted line = {.role = role};
	unsigned char bytes[RBP_SECRET_LEN];
	char		secret[RBP_SECRET_DIGITS + 1];

	rbp_random_bytes(bytes, sizeof(bytes));
	rbp_hex_encode(bytes, sizeof(bytes), secret);
	rbp_secret_hash(secret, line.hash);
	strcpy(line.name, name);
	append(c, &line);
	snprintf(token, RBP_TOKEN_LEN, "%s.%s.%s.%s", rbp_role_names[role], name, secret, pin);
	OPENSSL_cleanse(bytes, sizeof(bytes));
	OPENSSL_cleanse(secret, sizeof(secret));
}

bool
rbp_credentials_have(const RbpAcceptedList *c, const RbpCredential *credential, bool *named)
{
	unsigned char hash[RBP_SECRET_LEN];
	bool		found = false;

	*named = false;
	rbp_secret_hash(credential->secret, hash);
	for (size_t i = 0; i < c->n; i++)
	{
		const RbpAccepted *line = &c->lines[i];
		bool		same = line->role == credential->role && strcmp(line->name, credential->name) == 0;

		*named |= same;
		found |= CRYPTO_memcmp(hash, line->hash, sizeof(hash)) == 0 && same;
	}
	return found;
}

void
rbp_credentials_free(RbpAcceptedList *c)
{
	free(c->lines);
	*c = (RbpAcceptedList)
	{
		0
	};
}
