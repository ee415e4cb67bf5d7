/*-------------------------------------------------------------------------
 *
 * token.h
 *	  Reads the file with a broker's token, or tokens.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_TOKEN_H
#define RBP_TOKEN_H

#define RBP_TOKEN_LEN		1025	/* with the terminating zero */
#define RBP_TOKENS_LEN		(16 * RBP_TOKEN_LEN)	/* of all in a file */

typedef enum RbpTokenStatus
{
	RBP_TOKEN_OK,
	RBP_TOKEN_UNREADABLE,		/* errno tells why */
	RBP_TOKEN_EMPTY,
	RBP_TOKEN_TOO_LONG,
	RBP_TOKEN_NOT_PRINTABLE		/* has a space, or a character that is not
								 * printable ASCII */
} RbpTokenStatus;

/* Why the file cannot be used, in a constant text; called before errno changes. */
extern const char *rbp_token_fault(RbpTokenStatus status);

/*
 * Read the first line of the file, which may be a pipe, without surrounding
 * white space.  token is "" unless the result is RBP_TOKEN_OK; the caller
 * must clear it after use.  Waits for the writer of a pipe.
 */
extern RbpTokenStatus rbp_token_read(const char *path, char token[RBP_TOKEN_LEN]);

/*
 * Likewise all tokens of the file, one in each line, without empty lines.
 * Waits for the end of a pipe.
 */
extern RbpTokenStatus rbp_token_read_all(const char *path, char tokens[RBP_TOKENS_LEN]);

#endif							/* RBP_TOKEN_H */
