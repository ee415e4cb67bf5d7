/*-------------------------------------------------------------------------
 *
 * token.c
 *	  Reads the file with a broker's token, or tokens.
 *
 *-------------------------------------------------------------------------
 */
#include "common/token.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

const char *
rbp_token_fault(RbpTokenStatus status)
{
	static const char *const faults[] = {
		[RBP_TOKEN_EMPTY] = "it has no token, or its first line is empty",
		[RBP_TOKEN_TOO_LONG] = "a line is too long",
		[RBP_TOKEN_NOT_PRINTABLE] = "a token consists of printable ASCII characters without spaces"
	};

	return status == RBP_TOKEN_UNREADABLE ? strerror(errno) : faults[status];
}

/*
 * Read the file, as far as it fits: all of it, or at least its first line.  The
 * text ends with a zero.  *cut is set to whether what was wanted may go on.
 * A pipe may deliver it in pieces.  Returns false, with errno, on failure.
 */
static bool
read_lines(const char *path, bool all, char *text, size_t size, bool *cut)
{
	int			fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t		len = 0;
	ssize_t		got = -1;

	while (fd >= 0 && (got = read(fd, text + len, size - 1 - len)) != 0)
	{
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			break;
		len += (size_t) got;
		if (len == size - 1 || (!all && memchr(text, '\n', len) != NULL))
			break;
	}
	text[len] = '\0';
	*cut = len == size - 1 && (all || strchr(text, '\n') == NULL);
	if (fd >= 0)
	{
		int			saved_errno = errno;

		close(fd);
		errno = saved_errno;
	}
	return got >= 0;
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
	bool		cut;
	RbpTokenStatus status = RBP_TOKEN_UNREADABLE;
	char	   *start;
	size_t		len;

	token[0] = '\0';
	if (read_lines(path, false, line, sizeof(line), &cut))
	{
		status = find_token(line, cut, &start, &len);
		if (status == RBP_TOKEN_OK)
		{
			memcpy(token, start, len);
			token[len] = '\0';
		}
	}
	explicit_bzero(line, sizeof(line));
	return status;
}

RbpTokenStatus
rbp_token_read_all(const char *path, char tokens[RBP_TOKENS_LEN])
{
	char	   *to = tokens;
	bool		cut;
	RbpTokenStatus status = RBP_TOKEN_OK;

	if (!read_lines(path, true, tokens, RBP_TOKENS_LEN, &cut))
		status = RBP_TOKEN_UNREADABLE;
	else if (cut)
		status = RBP_TOKEN_TOO_LONG;
	for (char *line = tokens, *next; *line != '\0' && status == RBP_TOKEN_OK; line = next)
	{
		char	   *start;
		size_t		len;

		next = line + strcspn(line, "\n");
		next += *next == '\n';
		status = find_token(line, false, &start, &len);
		if (status == RBP_TOKEN_EMPTY)
			status = RBP_TOKEN_OK;
		else if (status == RBP_TOKEN_OK)
		{
			/* in place: it is not longer than its line */
			memmove(to, start, len);
			to += len;
			if (*next != '\0')
				*to++ = '\n';
		}
	}
	if (status == RBP_TOKEN_OK && to == tokens)
		status = RBP_TOKEN_EMPTY;
	explicit_bzero(status == RBP_TOKEN_OK ? to : tokens,
				   RBP_TOKENS_LEN - (status == RBP_TOKEN_OK ? (size_t) (to - tokens) : 0));
	return status;
}
