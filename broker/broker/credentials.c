/*-------------------------------------------------------------------------
 *
 * credentials.c
 *	  Who asks: the credentials that the broker accepts.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/credentials.h"
#include "broker/common/credentials.h"
#include "broker/common/log.h"
#include "broker/common/secret.h"
#include "common/text.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *file;		/* NULL: nobody needs a credential */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static RbpAcceptedList accepted;	/* protected by lock */

/*
 * Make a credential of each role, for whoever needs it to bring to its place.
 * The file of all comes last: without it, all are made again.
 */
static void
make_all(const char *prefix, const char *pin)
{
	static const char *const places[RBP_ROLES] = {
		[RBP_ROLE_SERVER] = "servers, as remote_bp.token_file",
		[RBP_ROLE_DONOR] = "donors, as --token-file",
		[RBP_ROLE_OPERATOR] = "operators, as --token-file of remote_bp_ctl",
		[RBP_ROLE_MONITOR] = "Prometheus, as credentials_file"
	};
	RbpAcceptedList fresh = {0};

	for (int role = 0; role < RBP_ROLES; role++)
	{
		char		token[RBP_TOKEN_LEN];
		char	   *path;

		rbp_credentials_add(&fresh, (RbpRole) role, "*", pin, token);
		if (asprintf(&path, "%s.%s.token", prefix, rbp_role_names[role]) < 0)
			rbp_die("out of memory");
		strcat(token, "\n");
		if (!rbp_secret_file_write(path, token))
			rbp_die("could not write \"%s\": %s", path, strerror(errno));
		rbp_log(RBP_LOG_INFO, "made \"%s\": it goes to %s", path, places[role]);
		OPENSSL_cleanse(token, sizeof(token));
		free(path);
	}
	if (!rbp_credentials_write(&fresh, file))
		rbp_die("could not write \"%s\": %s", file, strerror(errno));
	rbp_credentials_free(&fresh);
}

static void
log_accepted(void)
{
	rbp_log(RBP_LOG_INFO, "accepting %zu credential%s of \"%s\"", accepted.n, RBP_PLURAL(accepted.n), file);
}

void
broker_credentials_open(const char *path, const char *prefix, const char *pin)
{
	char		why[RBP_CREDENTIALS_WHY_LEN];
	char	   *beside = NULL;

	if (path == NULL && asprintf(&beside, "%s" RBP_CREDENTIALS_SUFFIX, prefix) < 0)
		rbp_die("out of memory");
	file = path != NULL ? path : beside;
	if (path == NULL && access(file, F_OK) != 0 && errno == ENOENT)
		make_all(prefix, pin);
	if (!rbp_credentials_read(&accepted, file, why))
		rbp_die("cannot use credentials file \"%s\": %s", file, why);
	log_accepted();
}

void
broker_credentials_reload(void)
{
	char		why[RBP_CREDENTIALS_WHY_LEN];

	if (file == NULL)
		return;
	pthread_mutex_lock(&lock);
	if (rbp_credentials_read(&accepted, file, why))
		log_accepted();
	else
		rbp_log(RBP_LOG_WARNING, "credentials file \"%s\" is not used: %s; those of before stay in use", file, why);
	pthread_mutex_unlock(&lock);
}

bool
broker_credentials_identify(const char *text, RbpCredential *who)
{
	bool		known = file == NULL;
	bool		named = false;

	if (!known && text != NULL && rbp_credential_parse(text, who) == NULL)
	{
		pthread_mutex_lock(&lock);
		known = rbp_credentials_have(&accepted, who, &named);
		pthread_mutex_unlock(&lock);
	}
	OPENSSL_cleanse(who->secret, sizeof(who->secret));
	if (!named)
		who->name[0] = '\0';
	return known;
}
