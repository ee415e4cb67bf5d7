/*-------------------------------------------------------------------------
 *
 * test_token.c
 *	  Credentials, and token files: regular ones, pipes that give the line in
 *	  pieces, lines that are too long, and files that others may use.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/token.h"

#include "tap.h"

#define SECRET		"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define DONOR		"donor.mem1.example:7401."
#define CREDENTIAL	DONOR SECRET ".-"

static char dir[] = "/tmp/rbp_token.XXXXXX";
static char path[64];
static pthread_t reader;

typedef struct Pieces
{
	const char *const *texts;	/* ends with NULL */
	bool		interrupt;		/* a signal between two */
} Pieces;

static void
on_signal(int signo)
{
}

/* The text, and n spaces before it, in a regular file. */
static RbpTokenStatus
read_file(int n, const char *text, char token[RBP_TOKEN_LEN])
{
	FILE	   *file = fopen(path, "w");

	fprintf(file, "%*s%s", n, "", text);
	fclose(file);
	return rbp_token_read(path, token);
}

static void *
write_pieces(void *arg)
{
	const Pieces *pieces = arg;
	FILE	   *pipe = fopen(path, "w");

	for (int i = 0; pieces->texts[i] != NULL; i++)
	{
		usleep(i == 0 ? 0 : 20000);
		if (pieces->interrupt)
			pthread_kill(reader, SIGUSR1);
		fputs(pieces->texts[i], pipe);
		fflush(pipe);
	}
	fclose(pipe);
	return NULL;
}

static RbpTokenStatus
read_pipe(const char *const *texts, bool interrupt, char token[RBP_TOKEN_LEN])
{
	Pieces		pieces = {texts, interrupt};
	pthread_t	writer;
	RbpTokenStatus status;

	unlink(path);
	if (mkfifo(path, 0600) != 0 || pthread_create(&writer, NULL, write_pieces, &pieces) != 0)
		return RBP_TOKEN_UNREADABLE;
	status = rbp_token_read(path, token);
	pthread_join(writer, NULL);
	unlink(path);
	return status;
}

static void
test_files(void)
{
	char		token[RBP_TOKEN_LEN];

	errno = 0;
	ok(rbp_token_read("/nonexistent", token) == RBP_TOKEN_UNREADABLE && errno == ENOENT && token[0] == '\0', "no file");
	ok(rbp_token_read(dir, token) == RBP_TOKEN_UNREADABLE && errno == EISDIR && token[0] == '\0', "a directory");
	ok(read_file(0, "", token) == RBP_TOKEN_EMPTY, "an empty file");
	ok(read_file(5, "", token) == RBP_TOKEN_EMPTY, "spaces alone");
	ok(read_file(0, " \t\r\n" CREDENTIAL "\n", token) == RBP_TOKEN_EMPTY, "a second line");
	ok(read_file(0, CREDENTIAL, token) == RBP_TOKEN_OK && strcmp(token, CREDENTIAL) == 0, "no newline at its end");
	ok(read_file(2, "\t" CREDENTIAL " \t\r\nsecond\n", token) == RBP_TOKEN_OK && strcmp(token, CREDENTIAL) == 0,
	   "white space around it, and more lines");
	ok(read_file(100000, CREDENTIAL "\n", token) == RBP_TOKEN_EMPTY && token[0] == '\0', "behind too many spaces");
	ok(read_file(0, CREDENTIAL " y\n", token) == RBP_TOKEN_MALFORMED && token[0] == '\0', "more in the line");
	ok(read_file(0, CREDENTIAL "\n", token) == RBP_TOKEN_OK, "a file for its owner alone");
	chmod(path, 0640);
	ok(rbp_token_read(path, token) == RBP_TOKEN_OK, "and its group");
	for (mode_t mode = 1; mode <= S_IROTH; mode <<= 1)
	{
		chmod(path, 0640 | mode);
		ok(rbp_token_read(path, token) == RBP_TOKEN_OPEN && token[0] == '\0', "others must not use it: %03o", 0640 | mode);
	}
	chmod(path, 0600);
}

static void
test_credentials(void)
{
	static const struct
	{
		const char *text;
		RbpTokenStatus status;
	}			bad[] = {
		{"", RBP_TOKEN_MALFORMED},
		{"donor", RBP_TOKEN_MALFORMED},
		{SECRET, RBP_TOKEN_MALFORMED},
		{"donor." SECRET ".-", RBP_TOKEN_MALFORMED},
		{"donor.." SECRET ".-", RBP_TOKEN_MALFORMED},
		{".mem1." SECRET ".-", RBP_TOKEN_MALFORMED},
		{"boss.mem1." SECRET ".-", RBP_TOKEN_MALFORMED},
		{"Donor.mem1." SECRET ".-", RBP_TOKEN_MALFORMED},
		{"donor.-mem1." SECRET ".-", RBP_TOKEN_MALFORMED},
		{"donor.m em1." SECRET ".-", RBP_TOKEN_MALFORMED},
		{"donor.mem/1." SECRET ".-", RBP_TOKEN_MALFORMED},
		{"donor.m*." SECRET ".-", RBP_TOKEN_MALFORMED},
		{DONOR SECRET, RBP_TOKEN_SECRET},
		{DONOR SECRET ".", RBP_TOKEN_MALFORMED},
		{DONOR SECRET ".--", RBP_TOKEN_MALFORMED},
		{DONOR SECRET ".0" SECRET, RBP_TOKEN_MALFORMED},
		{DONOR ".-", RBP_TOKEN_SECRET},
		{DONOR "0123456789abcdef.-", RBP_TOKEN_SECRET},
		{DONOR "0" SECRET ".-", RBP_TOKEN_SECRET},
		{DONOR "0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef.-", RBP_TOKEN_SECRET},
	};
	char		text[1000] = "donor.";
	RbpCredential c;

	ok(rbp_credential_parse(CREDENTIAL, &c) == RBP_TOKEN_OK && c.role == RBP_ROLE_DONOR &&
	   strcmp(c.name, "mem1.example:7401") == 0 && strcmp(c.secret, SECRET) == 0 && strcmp(c.pin, "-") == 0,
	   "a credential, whose name has dots");
	ok(rbp_credential_parse("monitor.*." SECRET "." SECRET, &c) == RBP_TOKEN_OK && c.role == RBP_ROLE_MONITOR &&
	   strcmp(c.name, "*") == 0 && strcmp(c.pin, SECRET) == 0, "one of any name, with a pin");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ok(rbp_credential_parse(bad[i].text, &c) == bad[i].status, "\"%s\" is none", bad[i].text);
	memset(text + 6, 'x', RBP_DONOR_ID_LEN - 1);
	strcpy(text + 6 + RBP_DONOR_ID_LEN - 1, "." SECRET "." SECRET);
	ok(rbp_credential_parse(text, &c) == RBP_TOKEN_OK && strlen(c.name) == RBP_DONOR_ID_LEN - 1, "the longest one");
	memset(text + 6, 'x', RBP_DONOR_ID_LEN);
	strcpy(text + 6 + RBP_DONOR_ID_LEN, "." SECRET ".-");
	ok(rbp_credential_parse(text, &c) == RBP_TOKEN_MALFORMED, "a name that is too long by one");
	memset(text + 6, 'x', 900);
	strcpy(text + 900, "." SECRET ".-");
	ok(rbp_credential_parse(text, &c) == RBP_TOKEN_MALFORMED, "and by much");
}

static void
test_pipes(void)
{
	static const char *const whole[] = {CREDENTIAL "\n", NULL};
	static const char *const pieces[] = {"donor.mem1.ex", "ample:7401.", SECRET, ".-", "\n", NULL};
	static const char *const no_newline[] = {DONOR, SECRET ".-", NULL};
	static const char *const two_lines[] = {CREDENTIAL "\nan", "other\n", NULL};
	static const struct
	{
		const char *const *texts;
		bool		interrupt;
		const char *name;
	}			pipes[] = {
		{whole, false, "a pipe"},
		{pieces, false, "... that gives it in pieces"},
		{pieces, true, "... between signals"},
		{no_newline, false, "... without a newline"},
		{two_lines, false, "... of which the first line counts"},
	};
	char		token[RBP_TOKEN_LEN];

	for (size_t i = 0; i < sizeof(pipes) / sizeof(pipes[0]); i++)
		ok(read_pipe(pipes[i].texts, pipes[i].interrupt, token) == RBP_TOKEN_OK && strcmp(token, CREDENTIAL) == 0,
		   "%s", pipes[i].name);
}

int
main(void)
{
	struct sigaction interrupting = {.sa_handler = on_signal};

	/*
	 * who reads no more than the first line leaves the writer with a broken
	 * pipe
	 */
	signal(SIGPIPE, SIG_IGN);
	umask(077);
	sigaction(SIGUSR1, &interrupting, NULL);	/* without SA_RESTART */
	reader = pthread_self();
	if (mkdtemp(dir) == NULL)
		return 1;
	snprintf(path, sizeof(path), "%s/token", dir);
	test_files();
	test_credentials();
	test_pipes();
	unlink(path);
	rmdir(dir);
	return done_testing();
}
