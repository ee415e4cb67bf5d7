/*-------------------------------------------------------------------------
 *
 * credentials.h
 *	  Who asks: the credentials that the broker accepts.
 *
 * All functions are thread-safe but broker_credentials_open().
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_CREDENTIALS_H
#define RBP_BROKER_CREDENTIALS_H

#include "common/token.h"

#include <stdbool.h>

/*
 * Accept those of the file, and nobody without one.  With path NULL, they are
 * in a file whose name begins with prefix, which is made, with a credential of each
 * role and that pin, if it is not there.  Dies with a message if they cannot be
 * had.
 */
extern void broker_credentials_open(const char *path, const char *prefix, const char *pin);

/*
 * Read the file again, if there is one.  If it cannot be used, which is logged,
 * the credentials of before stay in use.
 */
extern void broker_credentials_reload(void);

/*
 * Is this text, or NULL, a credential that is accepted?  *who is set to it,
 * without its secret; its name is "" if nobody needs one.  If it is not accepted, it is
 * set, too, if there is another of its role and name; else its name is "".
 */
extern bool broker_credentials_identify(const char *text, RbpCredential *who);

#endif							/* RBP_BROKER_CREDENTIALS_H */
