/*-------------------------------------------------------------------------
 *
 * token.c
 *	  Credentials, and the token file that has one: see token.h.
 *
 *-------------------------------------------------------------------------
 */
#include "common/token.h"
#include "common/text.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const rbp_role_names[RBP_ROLES] = {"server", "donor", "operator", "monitor"};

const char *
rbp_token_fault(RbpTokenStatus status)
{
	static const char *const faults[] = {
		[RBP_TOKEN_OPEN] = "others may read it: chmod 640 it",
		[RBP_TOKEN_EMPTY] = "its first line is empty",
		[RBP_TOKEN_MALFORMED] = "its first line is not ROLE.NAME.SECRET.PIN",
		[RBP_TOKEN_SECRET] = "its secret is not 64 hex digits, of 32 random bytes"
	};

	return status == RBP_TOKEN_UNREADABLE ? strerror(errno) : faults[status];
}

bool
rbp_role_parse(const char *name, RbpRole *role)
{
	for (int i = 0; i < RBP_ROLES; i++)
	{
		if (strcmp(name, rbp_role_names[i]) == 0)
		{
			*role = (RbpRole) i;
			return true;
		}
	}
	return false;
}

bool
rbp_credential_name_valid(const char *name)
{
	return strcmp(name, "*") == 0 || rbp_valid_id(name, RBP_DONOR_ID_LEN);
}

static bool
is_hex(const char *text)
{
	return strspn(text, "0123456789abcdef") == RBP_SECRET_DIGITS && text[RBP_SECRET_DIGITS] == '\0';
}

/* Names may have dots, so secret and pin are found from the end. */
RbpTokenStatus
rbp_credential_parse(const char *text, RbpCredential *credential)
{
	char		copy[RBP_TOKEN_LEN];
	char	   *parts[3];		/* name, secret, pin */
	RbpTokenStatus status = RBP_TOKEN_OK;

	if (strlen(text) >= sizeof(copy))
		return RBP_TOKEN_MALFORMED;
	strcpy(copy, text);
	for (int i = 2; i >= 0 && status == RBP_TOKEN_OK; i--)
	{
		char	   *dot = i > 0 ? strrchr(copy, '.') : strchr(copy, '.');

		if (dot == NULL)
			status = RBP_TOKEN_MALFORMED;
		else
		{
			*dot = '\0';
			parts[i] = dot + 1;
		}
	}
	if (status == RBP_TOKEN_OK &&
		(!rbp_role_parse(copy, &credential->role) || !rbp_credential_name_valid(parts[0]) ||
		 !(strcmp(parts[2], "-") == 0 || is_hex(parts[2]))))
		status = RBP_TOKEN_MALFORMED;
	else if (status == RBP_TOKEN_OK && !is_hex(parts[1]))
		status = RBP_TOKEN_SECRET;
	if (status == RBP_TOKEN_OK)
	{
		strcpy(credential->name, parts[0]);
		strcpy(credential->secret, parts[1]);
		strcpy(credential->pin, parts[2]);
	}
	explicit_bzero(copy, sizeof(copy));
	return status;
}

/*
 * Read the file's first line, or as much of it as fits, as a text.  A pipe may
 * deliver it in pieces.
 */
static RbpTokenStatus
read_line(const char *path, char *text, size_t size)
{
	int			fd = open(path, O_RDONLY | O_CLOEXEC);
	RbpTokenStatus status = RBP_TOKEN_UNREADABLE;
	struct stat st;
	size_t		len = 0;
	ssize_t		got = -1;

	if (fd >= 0 && fstat(fd, &st) == 0 && (st.st_mode & S_IRWXO) != 0)
		status = RBP_TOKEN_OPEN;
	while (fd >= 0 && status != RBP_TOKEN_OPEN &&
		   (got = read(fd, text + len, size - 1 - len)) != 0)
	{
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			break;
		len += (size_t) got;
		if (len == size - 1 || memchr(text, '\n', len) != NULL)
			break;
	}
	text[len] = '\0';
	if (fd >= 0)
	{
		int			saved_errno = errno;

		close(fd);
		errno = saved_errno;
	}
	return got >= 0 ? RBP_TOKEN_OK : status;
}

RbpTokenStatus
rbp_token_read(const char *path, char token[RBP_TOKEN_LEN])
{
	char		line[2 * RBP_TOKEN_LEN];	/* has room for white space, too */
	RbpCredential credential;
	RbpTokenStatus status = read_line(path, line, sizeof(line));

	token[0] = '\0';
	if (status == RBP_TOKEN_OK)
	{
		char	   *start = line + strspn(line, " \t");
		size_t		len = strcspn(start, "\r\n");

		while (len > 0 && (start[len - 1] == ' ' || start[len - 1] == '\t'))
			len--;
		start[len] = '\0';
		status = len == 0 ? RBP_TOKEN_EMPTY : rbp_credential_parse(start, &credential);
		if (status == RBP_TOKEN_OK)
			strcpy(token, start);
		explicit_bzero(&credential, sizeof(credential));
	}
	explicit_bzero(line, sizeof(line));
	return status;
}
