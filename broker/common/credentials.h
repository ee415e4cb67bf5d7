/*-------------------------------------------------------------------------
 *
 * credentials.h
 *	  The file of the credentials that a broker accepts.
 *
 * Each line is "ROLE NAME HASH", with the SHA-256 of the secret in hex.  So the
 * file proves nothing to anybody.  A role and name may have several lines, each
 * of which is good.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CREDENTIALS_H
#define RBP_CREDENTIALS_H

#include "common/token.h"

#include <stdbool.h>
#include <stddef.h>

/* A line of the file */
typedef struct RbpAccepted
{
	RbpRole		role;
	char		name[RBP_DONOR_ID_LEN]; /* "*": any */
	unsigned char hash[RBP_SECRET_LEN];
} RbpAccepted;

/* All lines, in their order; {0} at first. */
typedef struct RbpAcceptedList
{
	RbpAccepted *lines;
	size_t		n;
} RbpAcceptedList;

#define RBP_CREDENTIALS_WHY_LEN		128

/* Of the file that a broker makes */
#define RBP_CREDENTIALS_SUFFIX		".credentials"

/*
 * Read the file into c.  False, and c is left alone, if it cannot be used; why
 * tells the reason, and the line.
 */
extern bool rbp_credentials_read(RbpAcceptedList *c, const char *path,
								 char why[RBP_CREDENTIALS_WHY_LEN]);

/* See rbp_secret_file_write(). */
extern bool rbp_credentials_write(const RbpAcceptedList *c, const char *path);

/*
 * Make a credential with that pin, and add its line.  The caller must clear
 * token after use.
 */
extern void rbp_credentials_add(RbpAcceptedList *c, RbpRole role, const char *name,
								const char *pin, char token[RBP_TOKEN_LEN]);

/*
 * Is it one of them?  The time does not tell what is wrong with it.  *named: there is
 * one of this role and name, perhaps with another secret.
 */
extern bool rbp_credentials_have(const RbpAcceptedList *c, const RbpCredential *credential, bool *named);

extern void rbp_credentials_free(RbpAcceptedList *c);

#endif							/* RBP_CREDENTIALS_H */
