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
 * beginning of a hash.  cert: the broker's certificate, for the pin; NULL: the
 * one that it made beside its state, if it has also made the file.  Returns
 * what is wrong with the arguments, or NULL.  Dies if a file cannot be used.
 */
extern const char *ctl_credential(const char *path, const char *cert, bool json,
								  int argc, char **argv);

#endif							/* RBP_CTL_CREDENTIAL_H */
