/*-------------------------------------------------------------------------
 *
 * token.h
 *	  The file that a broker's token is read from.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_TOKEN_H
#define RBP_TOKEN_H

#define RBP_TOKEN_LEN		1025	/* with the terminating zero */

typedef enum RbpTokenStatus
{
	RBP_TOKEN_OK,
	RBP_TOKEN_UNREADABLE,		/* errno tells why */
	RBP_TOKEN_EMPTY,
	RBP_TOKEN_TOO_LONG,
	RBP_TOKEN_NOT_PRINTABLE		/* has other than printable ASCII characters,
								 * or a space */
} RbpTokenStatus;

/*
 * The first line of the file, which may be a pipe, without white space around it.  token
 * is "" unless the result is RBP_TOKEN_OK; the caller clears it after use.  Waits for
 * whoever writes into a pipe.
 */
extern RbpTokenStatus rbp_token_read(const char *path, char token[RBP_TOKEN_LEN]);

#endif							/* RBP_TOKEN_H */
