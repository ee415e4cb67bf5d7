/*-------------------------------------------------------------------------
 *
 * token.c
 *	  The file that a broker's token is read from.
 *
 *-------------------------------------------------------------------------
 */
#include "common/token.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* The line's status; *start and *len: without white space. */
static RbpTokenStatus
trim(char *line, char **start, size_t *len)
{
	char	   *first = line + strspn(line, " \t");
	size_t		n = strcspn(first, "\r\n");

	while (n > 0 && (first[n - 1] == ' ' || first[n - 1] == '\t'))
		n--;
	*start = first;
	*len = n;
	if (n == 0)
		return RBP_TOKEN_EMPTY;
	if (n >= RBP_TOKEN_LEN)
		return RBP_TOKEN_TOO_LONG;
	for (size_t i = 0; i < n; i++)
		if (first[i] <= ' ' || first[i] > '~')
			return RBP_TOKEN_NOT_PRINTABLE;
	return RBP_TOKEN_OK;
}

RbpTokenStatus
rbp_token_read(const char *path, char token[RBP_TOKEN_LEN])
{
	char		line[RBP_TOKEN_LEN + 2];
	int			fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t		got = fd < 0 ? -1 : read(fd, line, sizeof(line) - 1);
	int			saved_errno = errno;
	RbpTokenStatus status = RBP_TOKEN_UNREADABLE;
	char	   *start;
	size_t		len;

	if (fd >= 0)
		close(fd);
	token[0] = '\0';
	if (got >= 0)
	{
		line[got] = '\0';
		status = trim(line, &start, &len);
		if (status == RBP_TOKEN_OK)
		{
			memcpy(token, start, len);
			token[len] = '\0';
		}
		explicit_bzero(line, sizeof(line));
	}
	errno = saved_errno;
	return status;
}
