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

#define MALFORMED	"its first line is not ROLE.NAME.SECRET.PIN"
#define NO_SECRET	"its secret is not 64 hex digits, of 32 random bytes"

const char *const rbp_role_names[RBP_ROLES] = {"server", "donor", "operator", "monitor"};

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
const char *
rbp_credential_parse(const char *text, RbpCredential *credential)
{
	char		copy[RBP_TOKEN_LEN];
	char	   *parts[3];		/* name, secret, pin */
	const char *fault = NULL;

	if (strlen(text) >= sizeof(copy))
		return MALFORMED;
	strcpy(copy, text);
	for (int i = 2; i >= 0 && fault == NULL; i--)
	{
		char	   *dot = i > 0 ? strrchr(copy, '.') : strchr(copy, '.');

		if (dot == NULL)
			fault = MALFORMED;
		else
		{
			*dot = '\0';
			parts[i] = dot + 1;
		}
	}
	if (fault == NULL &&
		(!rbp_role_parse(copy, &credential->role) || !rbp_credential_name_valid(parts[0]) ||
		 !(strcmp(parts[2], "-") == 0 || is_hex(parts[2]))))
		fault = MALFORMED;
	else if (fault == NULL && !is_hex(parts[1]))
		fault = NO_SECRET;
	if (fault == NULL)
	{
		strcpy(credential->name, parts[0]);
		strcpy(credential->secret, parts[1]);
		strcpy(credential->pin, parts[2]);
	}
	explicit_bzero(copy, sizeof(copy));
	return fault;
}

/*
 * Read the file's first line, or as much of it as fits, as a text.  A pipe may
 * deliver it in pieces.  Returns NULL, or why that is not possible.
 */
static const char *
read_line(const char *path, char *text, size_t size)
{
	int			fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	size_t		len = 0;
	ssize_t		got = -1;
	const char *fault = NULL;

	if (fd >= 0 && fstat(fd, &st) == 0 && (st.st_mode & S_IRWXO) != 0)
		fault = RBP_OPEN_FAULT;
	while (fd >= 0 && fault == NULL && (got = read(fd, text + len, size - 1 - len)) != 0)
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
	if (got < 0 && fault == NULL)
		fault = strerror(errno);
	if (fd >= 0)
		close(fd);
	return fault;
}

const char *
rbp_token_read(const char *path, char token[RBP_TOKEN_LEN])
{
	char		line[2 * RBP_TOKEN_LEN];	/* has room for white space, too */
	RbpCredential credential;
	const char *fault = read_line(path, line, sizeof(line));

	token[0] = '\0';
	if (fault == NULL)
	{
		char	   *start = line + strspn(line, " \t");
		size_t		len = strcspn(start, "\r\n");

		while (len > 0 && (start[len - 1] == ' ' || start[len - 1] == '\t'))
			len--;
		start[len] = '\0';
		fault = len == 0 ? "its first line is empty" : rbp_credential_parse(start, &credential);
		if (fault == NULL)
			strcpy(token, start);
		explicit_bzero(&credential, sizeof(credential));
	}
	explicit_bzero(line, sizeof(line));
	return fault;
}
