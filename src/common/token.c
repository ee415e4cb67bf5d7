/*-------------------------------------------------------------------------
 *
 * token.c
 *	  Reads the file with a broker's token.
 *
 *-------------------------------------------------------------------------
 */
#include "common/token.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/*
 * Read the first line, as far as it fits; *cut is set to whether its end is
 * missing.  A pipe may deliver it in pieces.  Returns the number of bytes, or
 * -1.
 */
static ssize_t
read_line(int fd, char *line, size_t room, bool *cut)
{
	size_t		len = 0;

	for (;;)
	{
		ssize_t		got = read(fd, line + len, room - len);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -1;
		len += (size_t) got;
		*cut = memchr(line, '\n', len) == NULL && len == room;
		if (got == 0 || *cut || memchr(line, '\n', len) != NULL)
			return (ssize_t) len;
	}
}

/*
 * Find the token in the line, that is the line without surrounding white
 * space, and check it.
 */
static RbpTokenStatus
find_token(char *line, bool cut, char **start, size_t *len)
{
	char	   *first = line + strspn(line, " \t");
	size_t		n = strcspn(first, "\r\n");

	while (n > 0 && (first[n - 1] == ' ' || first[n - 1] == '\t'))
		n--;
	*start = first;
	*len = n;
	if (cut || n >= RBP_TOKEN_LEN)
		return RBP_TOKEN_TOO_LONG;
	if (n == 0)
		return RBP_TOKEN_EMPTY;
	for (size_t i = 0; i < n; i++)
		if (first[i] <= ' ' || first[i] > '~')
			return RBP_TOKEN_NOT_PRINTABLE;
	return RBP_TOKEN_OK;
}

RbpTokenStatus
rbp_token_read(const char *path, char token[RBP_TOKEN_LEN])
{
	char		line[2 * RBP_TOKEN_LEN];	/* has room for white space, too */
	bool		cut = false;
	int			fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t		got = fd < 0 ? -1 : read_line(fd, line, sizeof(line) - 1, &cut);
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
		status = find_token(line, cut, &start, &len);
		if (status == RBP_TOKEN_OK)
		{
			memcpy(token, start, len);
			token[len] = '\0';
		}
	}
	explicit_bzero(line, sizeof(line));
	errno = saved_errno;
	return status;
}
