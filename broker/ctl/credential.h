/*-------------------------------------------------------------------------
 *
 * credential.h
 *	  The command "credential": the file of the credentials that a broker
 *	  accepts.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CTL_CREDENTIAL_H
#define RBP_CTL_CREDENTIAL_H

#include <stdbool.h>

/*
 * argv: "add", ROLE, NAME; or "list"; or "remove", ROLE, NAME and perhaps the
 * beginning of a hash.  Returns what is wrong with that, or NULL.  Dies if the
 * file cannot be used.
 */
extern const char *ctl_credential(const char *path, bool json, int argc, char **argv);

#endif							/* RBP_CTL_CREDENTIAL_H */
