/*-------------------------------------------------------------------------
 *
 * credential.c
 *	  The command "credential": the file of the credentials that a broker
 *	  accepts.  The broker reads it on SIGHUP.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/credentials.h"
#include "broker/common/log.h"
#include "broker/common/tls.h"
#include "broker/ctl/ctl.h"
#include "common/text.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const CtlColumn columns[] = {
	{"ROLE", "role", ctl_put_text, false},
	{"NAME", "name", ctl_put_text, false},
	{"HASH", "hash", ctl_put_text, false},
	{NULL, NULL, NULL, false}
};

static void
write_file(const RbpAcceptedList *c, const char *path)
{
	if (!rbp_credentials_write(c, path))
		rbp_die("could not write \"%s\": %s", path, strerror(errno));
}

/*
 * The pin of the broker's certificate.  All that a broker made
 * begins with the same name, so that of the one file tells that of the other.
 */
static void
find_pin(const char *path, const char *cert, char pin[RBP_SECRET_DIGITS + 1])
{
	size_t		len = strlen(path);
	size_t		suffix = strlen(RBP_CREDENTIALS_SUFFIX);
	char	   *beside = NULL;
	const char *fault;

	if (cert == NULL && len > suffix && strcmp(path + len - suffix, RBP_CREDENTIALS_SUFFIX) == 0 &&
		asprintf(&beside, "%.*s" RBP_CERT_SUFFIX, (int) (len - suffix), path) < 0)
		rbp_die("out of memory");
	fault = cert != NULL || beside != NULL ? rbp_tls_pin(cert != NULL ? cert : beside, pin) : "none is named";
	if (fault != NULL && cert != NULL)
		rbp_die("cannot use certificate \"%s\": %s", cert, fault);
	if (fault != NULL)
	{
		rbp_log(RBP_LOG_WARNING, "without a certificate of the broker (%s), the credential has no pin: see --tls-cert", fault);
		strcpy(pin, "-");
	}
	free(beside);
}

static void
add(RbpAcceptedList *c, const char *path, const char *cert, RbpRole role, const char *name)
{
	char		pin[RBP_SECRET_DIGITS + 1];
	char		token[RBP_TOKEN_LEN];

	find_pin(path, cert, pin);
	rbp_credentials_add(c, role, name, pin, token);
	write_file(c, path);
	printf("%s\n", token);
	OPENSSL_cleanse(token, sizeof(token));
}

static void
list(const RbpAcceptedList *c, bool json)
{
	json_t	   *rows = json_array();

	for (size_t i = 0; i < c->n; i++)
	{
		char		hash[RBP_SECRET_DIGITS + 1];

		rbp_hex_encode(c->lines[i].hash, RBP_SECRET_LEN, hash);
		json_array_append_new(rows, json_pack("{s:s, s:s, s:s}", "role", rbp_role_names[c->lines[i].role],
											  "name", c->lines[i].name, "hash", hash));
	}
	if (json)
		json_dumpf(rows, stdout, JSON_INDENT(2));
	else
		ctl_table_print(stdout, columns, rows);
	if (json)
		printf("\n");
	json_decref(rows);
}

/* begins: of the hash */
static void
remove_lines(RbpAcceptedList *c, const char *path, RbpRole role, const char *name, const char *begins)
{
	size_t		left = 0;

	for (size_t i = 0; i < c->n; i++)
	{
		char		hash[RBP_SECRET_DIGITS + 1];

		rbp_hex_encode(c->lines[i].hash, RBP_SECRET_LEN, hash);
		if (c->lines[i].role != role || strcmp(c->lines[i].name, name) != 0 ||
			strncmp(hash, begins, strlen(begins)) != 0)
			c->lines[left++] = c->lines[i];
	}
	if (left == c->n)
		rbp_die("\"%s\" has no such credential", path);
	if (left == 0)
		rbp_die("\"%s\" has no other credential: add one first", path);
	printf("removed %zu credential%s\n", c->n - left, RBP_PLURAL(c->n - left));
	c->n = left;
	write_file(c, path);
}

const char *
ctl_credential(const char *path, const char *cert, bool json, int argc, char **argv)
{
	bool		adds = argc == 3 && strcmp(argv[0], "add") == 0;
	bool		removes = (argc == 3 || argc == 4) && strcmp(argv[0], "remove") == 0;
	RbpAcceptedList c = {0};
	char		why[RBP_CREDENTIALS_WHY_LEN];
	RbpRole		role = RBP_ROLE_SERVER;

	if (!adds && !removes && !(argc == 1 && strcmp(argv[0], "list") == 0))
		return "credential needs add ROLE NAME, list, or remove ROLE NAME [HASH]";
	if (json && (adds || removes))
		return "credential add and remove do not take --json";
	if (cert != NULL && !adds)
		return "credential list and remove do not take --tls-cert";
	if ((adds || removes) && !rbp_role_parse(argv[1], &role))
		return "the roles are server, donor, operator and monitor";
	if ((adds || removes) && !rbp_credential_name_valid(argv[2]))
		return "a name has letters, digits and . _ : -, at most 63; or it is *, for any";
	/* the first one makes the file */
	if (!(adds && access(path, F_OK) != 0 && errno == ENOENT) && !rbp_credentials_read(&c, path, why))
		rbp_die("cannot use credentials file \"%s\": %s", path, why);
	if (adds)
		add(&c, path, cert, role, argv[2]);
	else if (removes)
		remove_lines(&c, path, role, argv[2], argc == 4 ? argv[3] : "");
	else
		list(&c, json);
	rbp_credentials_free(&c);
	return NULL;
}
