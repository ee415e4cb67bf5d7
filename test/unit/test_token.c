/*-------------------------------------------------------------------------
 *
 * test_token.c
 *	  Token files: regular ones, pipes that give the line in pieces, lines that
 *	  are too long for a token, and files with several tokens.
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

/* Text times n, and then an end, into a regular file. */
static RbpTokenStatus
read_file(const char *before, int n, const char *after, char token[RBP_TOKEN_LEN])
{
	FILE	   *file = fopen(path, "w");

	fputs(before, file);
	for (int i = 0; i < n; i++)
		fputc('x', file);
	fputs(after, file);
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
	ok(rbp_token_read("/nonexistent", token) == RBP_TOKEN_UNREADABLE && errno == ENOENT, "no file");
	ok(rbp_token_read("/tmp", token) == RBP_TOKEN_UNREADABLE && errno == EISDIR && token[0] == '\0', "a directory");
	ok(read_file("", 0, "", token) == RBP_TOKEN_EMPTY, "an empty file");
	ok(read_file(" \t", 0, " \r\nsecond\n", token) == RBP_TOKEN_EMPTY, "white space, and a second line");
	ok(read_file("", 3, "", token) == RBP_TOKEN_OK && strcmp(token, "xxx") == 0, "no newline at its end");
	ok(read_file("\t ", 3, " \t\r\nsecond\n", token) == RBP_TOKEN_OK && strcmp(token, "xxx") == 0, "white space around it");
	ok(read_file("", RBP_TOKEN_LEN - 1, "\n", token) == RBP_TOKEN_OK && strlen(token) == RBP_TOKEN_LEN - 1, "the longest one");
	ok(read_file("", RBP_TOKEN_LEN - 1, "", token) == RBP_TOKEN_OK && strlen(token) == RBP_TOKEN_LEN - 1, "... without newline");
	ok(read_file("  ", RBP_TOKEN_LEN - 1, " \r\nmore", token) == RBP_TOKEN_OK && strlen(token) == RBP_TOKEN_LEN - 1, "... with white space around it");
	ok(read_file("", RBP_TOKEN_LEN, "\n", token) == RBP_TOKEN_TOO_LONG && token[0] == '\0', "too long by one");
	ok(read_file("", 100000, "", token) == RBP_TOKEN_TOO_LONG && token[0] == '\0', "much too long");
	ok(read_file("", 3, " y\n", token) == RBP_TOKEN_NOT_PRINTABLE && token[0] == '\0', "a space inside");
	ok(read_file("", 3, "\x80\n", token) == RBP_TOKEN_NOT_PRINTABLE, "another character");
	/* what is cut off is no token, however it looks */
	ok(read_file("   ", 0, "", token) == RBP_TOKEN_EMPTY, "spaces alone");
	memset(token, 'y', sizeof(token));
	{
		FILE	   *file = fopen(path, "w");

		for (int i = 0; i < 10 * RBP_TOKEN_LEN; i++)
			fputc(' ', file);
		fputs("token\n", file);
		fclose(file);
	}
	ok(rbp_token_read(path, token) == RBP_TOKEN_TOO_LONG && token[0] == '\0', "a token behind too many spaces");
}

static RbpTokenStatus
read_all(const char *text, size_t len, char tokens[RBP_TOKENS_LEN])
{
	FILE	   *file = fopen(path, "w");

	fwrite(text, 1, len, file);
	fclose(file);
	return rbp_token_read_all(path, tokens);
}

static bool
all_are(const char *text, const char *expected)
{
	char		tokens[RBP_TOKENS_LEN];

	return read_all(text, strlen(text), tokens) == RBP_TOKEN_OK && strcmp(tokens, expected) == 0;
}

static void
test_several(void)
{
	static char text[2 * RBP_TOKENS_LEN];
	char		tokens[RBP_TOKENS_LEN];

	ok(all_are("old\nnew\n", "old\nnew"), "two tokens");
	ok(all_are("one", "one") && all_are("one\n", "one"), "one, with and without a newline");
	ok(all_are("\n  \r\n\t old \t\r\n\nnew", "old\nnew"), "empty lines and white space do not count");
	ok(read_all("", 0, tokens) == RBP_TOKEN_EMPTY && read_all("\n \n", 3, tokens) == RBP_TOKEN_EMPTY, "none");
	ok(read_all("old\ntwo words\n", 14, tokens) == RBP_TOKEN_NOT_PRINTABLE && tokens[0] == '\0',
	   "one that is no token spoils all");
	memset(text, 'x', sizeof(text));
	for (int i = 1; i <= 16; i++)
		text[i * RBP_TOKEN_LEN - 1] = '\n';
	ok(read_all(text, 15 * RBP_TOKEN_LEN, tokens) == RBP_TOKEN_OK && strlen(tokens) == 15 * RBP_TOKEN_LEN - 1,
	   "many long ones");
	ok(read_all(text, 17 * RBP_TOKEN_LEN, tokens) == RBP_TOKEN_TOO_LONG && tokens[0] == '\0', "too many");
	text[RBP_TOKEN_LEN - 1] = 'x';
	ok(read_all(text, 2 * RBP_TOKEN_LEN, tokens) == RBP_TOKEN_TOO_LONG && tokens[0] == '\0', "one that is too long");
	ok(rbp_token_read_all("/nonexistent", tokens) == RBP_TOKEN_UNREADABLE && errno == ENOENT && tokens[0] == '\0',
	   "no file for several");
}

static void
test_pipes(void)
{
	static const char *const whole[] = {"secret\n", NULL};
	static const char *const pieces[] = {"se", "cr", "et", "\n", NULL};
	static const char *const no_newline[] = {"se", "cret", NULL};
	static const char *const two_lines[] = {"secret\nan", "other\n", NULL};
	char		token[RBP_TOKEN_LEN];

	ok(read_pipe(whole, false, token) == RBP_TOKEN_OK && strcmp(token, "secret") == 0, "a pipe");
	ok(read_pipe(pieces, false, token) == RBP_TOKEN_OK && strcmp(token, "secret") == 0, "... that gives it in pieces");
	ok(read_pipe(pieces, true, token) == RBP_TOKEN_OK && strcmp(token, "secret") == 0, "... between signals");
	ok(read_pipe(no_newline, false, token) == RBP_TOKEN_OK && strcmp(token, "secret") == 0, "... without a newline");
	ok(read_pipe(two_lines, false, token) == RBP_TOKEN_OK && strcmp(token, "secret") == 0, "... of which the first line counts");
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
	sigaction(SIGUSR1, &interrupting, NULL);	/* without SA_RESTART */
	reader = pthread_self();
	if (mkdtemp(dir) == NULL)
		return 1;
	snprintf(path, sizeof(path), "%s/token", dir);
	test_files();
	test_several();
	test_pipes();
	unlink(path);
	rmdir(dir);
	return done_testing();
}
