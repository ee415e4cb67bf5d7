/*-------------------------------------------------------------------------
 *
 * token.h
 *	  The credential by which a program proves to the broker who it is, and the
 *	  token file that has it.
 *
 * A credential is a line ROLE.NAME.SECRET.PIN, of which the broker is sent all.
 * Role and name say who it is, and the secret, 32 random bytes, proves it.  The
 * pin is the SHA-256 of the public key by which the broker is known, or "-".
 * Secret and pin are written as hex digits in lower case.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_TOKEN_H
#define RBP_TOKEN_H

#include "common/limits.h"

#include <stdbool.h>

#define RBP_TOKEN_LEN		256 /* of a credential, with the terminating zero */
#define RBP_SECRET_DIGITS	(2 * RBP_SECRET_LEN)

typedef enum RbpRole
{
	RBP_ROLE_SERVER,
	RBP_ROLE_DONOR,
	RBP_ROLE_OPERATOR,
	RBP_ROLE_MONITOR,
	RBP_ROLES
} RbpRole;

extern const char *const rbp_role_names[RBP_ROLES];

typedef struct RbpCredential
{
	RbpRole		role;
	char		name[RBP_DONOR_ID_LEN]; /* "*": any */
	char		secret[RBP_SECRET_DIGITS + 1];
	char		pin[RBP_SECRET_DIGITS + 1]; /* "-": none */
} RbpCredential;

/* What is wrong with a file of secrets that others than its owner and group may use */
#define RBP_OPEN_FAULT		"others may read it: chmod 640 it"

/* The role of this name.  False if there is none. */
extern bool rbp_role_parse(const char *name, RbpRole *role);

/* Is this "*", or such a name as donors have? */
extern bool rbp_credential_name_valid(const char *name);

/*
 * Parse a credential.  Returns NULL, or what is wrong with it, in a constant text.  The
 * caller must clear it after use; it is undefined if something is wrong.
 */
extern const char *rbp_credential_parse(const char *text, RbpCredential *credential);

/*
 * Read the credential of a token file, which may be a pipe: its first line,
 * without surrounding white space.  Returns NULL, or why that cannot be used, in a text
 * that lasts until strerror() is called again; token is "" then.  The caller must clear
 * token after use.  Waits for the writer of a pipe.
 */
extern const char *rbp_token_read(const char *path, char token[RBP_TOKEN_LEN]);

#endif							/* RBP_TOKEN_H */
