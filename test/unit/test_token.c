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

#define EMPTY		"its first line is empty"
#define MALFORMED	"its first line is not ROLE.NAME.SECRET.PIN"
#define NO_SECRET	"its secret is not 64 hex digits, of 32 random bytes"

static char dir[] = "/tmp/rbp_token.XXXXXX";
static char path[64];
static pthread_t reader;

typedef struct Pieces
{
	const char *const *texts;	/* ends with NULL */
	bool		interrupt;		/* a signal between two */
} Pieces;

static bool
says(const char *fault, const char *wanted)
{
	return fault != NULL && strcmp(fault, wanted) == 0;
}

static void
on_signal(int signo)
{
}

/* The text, and n spaces before it, in a regular file. */
static const char *
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

static const char *
read_pipe(const char *const *texts, bool interrupt, char token[RBP_TOKEN_LEN])
{
	Pieces		pieces = {texts, interrupt};
	pthread_t	writer;
	const char *fault;

	unlink(path);
	if (mkfifo(path, 0600) != 0 || pthread_create(&writer, NULL, write_pieces, &pieces) != 0)
		return "no pipe";
	fault = rbp_token_read(path, token);
	pthread_join(writer, NULL);
	unlink(path);
	return fault;
}

static void
test_files(void)
{
	char		token[RBP_TOKEN_LEN];

	ok(says(rbp_token_read("/nonexistent", token), strerror(ENOENT)) && token[0] == '\0', "no file");
	ok(says(rbp_token_read(dir, token), strerror(EISDIR)) && token[0] == '\0', "a directory");
	ok(says(read_file(0, "", token), EMPTY), "an empty file");
	ok(says(read_file(5, "", token), EMPTY), "spaces alone");
	ok(says(read_file(0, " \t\r\n" CREDENTIAL "\n", token), EMPTY), "a second line");
	ok(read_file(0, CREDENTIAL, token) == NULL && strcmp(token, CREDENTIAL) == 0, "no newline at its end");
	ok(read_file(2, "\t" CREDENTIAL " \t\r\nsecond\n", token) == NULL && strcmp(token, CREDENTIAL) == 0,
	   "white space around it, and more lines");
	ok(says(read_file(100000, CREDENTIAL "\n", token), EMPTY) && token[0] == '\0', "behind too many spaces");
	ok(says(read_file(0, CREDENTIAL " y\n", token), MALFORMED) && token[0] == '\0', "more in the line");
	ok(read_file(0, CREDENTIAL "\n", token) == NULL, "a file for its owner alone");
	chmod(path, 0640);
	ok(rbp_token_read(path, token) == NULL, "and its group");
	for (mode_t mode = 1; mode <= S_IROTH; mode <<= 1)
	{
		chmod(path, 0640 | mode);
		ok(says(rbp_token_read(path, token), RBP_OPEN_FAULT) && token[0] == '\0', "others must not use it: %03o", 0640 | mode);
	}
	chmod(path, 0600);
}

static void
test_credentials(void)
{
	static const struct
	{
		const char *text;
		const char *fault;
	}			bad[] = {
		{"", MALFORMED},
		{"donor", MALFORMED},
		{SECRET, MALFORMED},
		{"donor." SECRET ".-", MALFORMED},
		{"donor.." SECRET ".-", MALFORMED},
		{".mem1." SECRET ".-", MALFORMED},
		{"boss.mem1." SECRET ".-", MALFORMED},
		{"Donor.mem1." SECRET ".-", MALFORMED},
		{"donor.-mem1." SECRET ".-", MALFORMED},
		{"donor.m em1." SECRET ".-", MALFORMED},
		{"donor.mem/1." SECRET ".-", MALFORMED},
		{"donor.m*." SECRET ".-", MALFORMED},
		{DONOR SECRET, NO_SECRET},
		{DONOR SECRET ".", MALFORMED},
		{DONOR SECRET ".--", MALFORMED},
		{DONOR SECRET ".0" SECRET, MALFORMED},
		{DONOR ".-", NO_SECRET},
		{DONOR "0123456789abcdef.-", NO_SECRET},
		{DONOR "0" SECRET ".-", NO_SECRET},
		{DONOR "0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef.-", NO_SECRET},
	};
	char		text[1000] = "donor.";
	RbpCredential c;

	ok(rbp_credential_parse(CREDENTIAL, &c) == NULL && c.role == RBP_ROLE_DONOR &&
	   strcmp(c.name, "mem1.example:7401") == 0 && strcmp(c.secret, SECRET) == 0 && strcmp(c.pin, "-") == 0,
	   "a credential, whose name has dots");
	ok(rbp_credential_parse("monitor.*." SECRET "." SECRET, &c) == NULL && c.role == RBP_ROLE_MONITOR &&
	   strcmp(c.name, "*") == 0 && strcmp(c.pin, SECRET) == 0, "one of any name, with a pin");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ok(says(rbp_credential_parse(bad[i].text, &c), bad[i].fault), "\"%s\" is none", bad[i].text);
	memset(text + 6, 'x', RBP_DONOR_ID_LEN - 1);
	strcpy(text + 6 + RBP_DONOR_ID_LEN - 1, "." SECRET "." SECRET);
	ok(rbp_credential_parse(text, &c) == NULL && strlen(c.name) == RBP_DONOR_ID_LEN - 1, "the longest one");
	memset(text + 6, 'x', RBP_DONOR_ID_LEN);
	strcpy(text + 6 + RBP_DONOR_ID_LEN, "." SECRET ".-");
	ok(says(rbp_credential_parse(text, &c), MALFORMED), "a name that is too long by one");
	memset(text + 6, 'x', 900);
	strcpy(text + 900, "." SECRET ".-");
	ok(says(rbp_credential_parse(text, &c), MALFORMED), "and by much");
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
		ok(read_pipe(pipes[i].texts, pipes[i].interrupt, token) == NULL && strcmp(token, CREDENTIAL) == 0,
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
