/*-------------------------------------------------------------------------
 *
 * common.h
 *	  What the broker, donor and ctl programs share: option tables, logging,
 *	  sizes, addresses, random ids, hex, tokens.
 *
 * No function here includes or needs postgres.h.  Functions that can fail
 * return bool and set their outputs only on success, unless said otherwise.
 *
 * Threads: after rbp_log_init() and rbp_options_parse(), which the main
 * thread calls before it starts others, everything here may be called from
 * any thread.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_COMMON_H
#define RBP_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifndef RBP_VERSION
#error "RBP_VERSION must be given by the build, from remote_bp.control"
#endif

#define RBP_UUID_LEN	37		/* UUID text including the terminating zero */

/* Exit codes of all programs */
#define RBP_EXIT_OK		0
#define RBP_EXIT_FAIL	1		/* it was tried and failed */
#define RBP_EXIT_USAGE	2		/* the command line makes no sense */

/*
 * ---- logging: one line each on stderr, UTC time and level ------------------
 */
typedef enum RbpLogLevel
{
	RBP_LOG_DEBUG,
	RBP_LOG_INFO,
	RBP_LOG_WARNING,
	RBP_LOG_ERROR
} RbpLogLevel;

/* program is kept by reference. */
extern void rbp_log_init(const char *program, RbpLogLevel level);
extern void rbp_log(RbpLogLevel level, const char *fmt,...)
			__attribute__((format(printf, 2, 3)));

/*
 * For what others can bring about as often as they like: each text at most
 * once a minute, and so many different ones.  Further ones are counted;
 * rbp_log_flush_repeated(), to be called every second or so, tells how many
 * they were, when their minute is over or, with all, at once.  True if it was
 * logged now.
 */
extern bool rbp_log_repeated(RbpLogLevel level, const char *fmt,...)
			__attribute__((format(printf, 2, 3)));
extern void rbp_log_flush_repeated(bool all);

/* Logs at ERROR and exits with RBP_EXIT_FAIL.  For start-up only. */
extern void rbp_die(const char *fmt,...)
			__attribute__((format(printf, 1, 2), noreturn));

/* "debug", "info", "warning" or "error" */
extern bool rbp_log_level_parse(const char *text, RbpLogLevel *level);

/*
 * ---- options: one table for each program -----------------------------------
 */
typedef enum RbpOptionType
{
	RBP_OPT_FLAG,				/* bool *: set to true; takes no value */
	RBP_OPT_STRING,				/* const char **: points into argv */
	RBP_OPT_INT,				/* int *: min <= value <= max */
	RBP_OPT_SIZE				/* uint64_t *: bytes, see rbp_parse_size();
								 * min <= value, and value <= max if max is
								 * not 0 */
} RbpOptionType;

typedef struct RbpOption
{
	const char *name;			/* without the dashes; NULL ends the table */
	RbpOptionType type;
	void	   *target;			/* holds the default before parsing */
	const char *metavar;		/* what --help calls the value, or NULL */
	const char *help;			/* one line, without the default */
	const char *def;			/* the default as --help shows it, or NULL */
	bool		required;
	int64_t		min;
	int64_t		max;
} RbpOption;

typedef struct RbpProgram
{
	const char *name;
	const char *summary;		/* a sentence for --help */
	const char *usage;			/* what follows the name in --help */
	const char *footer;			/* more text for --help, or NULL */
	const RbpOption *options;
} RbpProgram;

/*
 * Parse argv by the table.  --help and --version print to stdout and exit 0;
 * a bad option, a bad value or a missing required option prints a message to
 * stderr and exits with RBP_EXIT_USAGE.  Returns the index in argv of the
 * first argument that is no option (options may follow arguments; argv is
 * permuted as getopt_long does).
 */
extern int	rbp_options_parse(const RbpProgram *prog, int argc, char **argv);

/* Prints "NAME: text" and a hint at --help, exits with RBP_EXIT_USAGE. */
extern void rbp_usage_error(const RbpProgram *prog, const char *fmt,...)
			__attribute__((format(printf, 2, 3), noreturn));

/*
 * ---- text ------------------------------------------------------------------
 */

/*
 * "1073741824", "64MB", "1.5GB"; suffixes B, kB, MB, GB, TB in any case, with
 * or without a space before, powers of 1024.  False if it is anything else,
 * negative, or does not fit.
 */
extern bool rbp_parse_size(const char *text, uint64_t *bytes);

/* A size for people: "512 kB", "64 MB", "1.5 GB".  Returns buf. */
extern char *rbp_format_size(uint64_t bytes, char *buf, size_t len);

/*
 * "HOST:PORT", "[V6ADDR]:PORT", ":PORT" (host becomes "").  Port 0 is
 * allowed.  False if malformed, or if the host does not fit.
 */
extern bool rbp_parse_hostport(const char *text, char *host, size_t hostlen,
							   uint16_t *port);

/* The other way round, with brackets where the host has a colon. */
extern char *rbp_format_hostport(const char *host, uint16_t port,
								 char *buf, size_t len);

/* An IP address without its port, for messages.  Returns buf. */
extern char *rbp_format_address(const struct sockaddr *addr, char *buf, size_t len);

/*
 * ---- random bytes and secrets ----------------------------------------------
 */

/* From OpenSSL; ends the process if there is no randomness, never weakens. */
extern void rbp_random_bytes(void *buf, size_t len);

/* A random UUID, version 4, lower case. */
extern void rbp_uuid4(char uuid[RBP_UUID_LEN]);

/*
 * The first line of a file, without white space around it; malloc'ed.  NULL
 * if it cannot be read, is empty, longer than 1,024 bytes or has other than
 * printable characters: then *error is a static or errno text.  Warns in the
 * log if others than the owner and group can read the file.
 */
extern char *rbp_token_load(const char *path, const char **error);

/* Takes the same time wherever, and whether, they differ; also in length. */
extern bool rbp_equal_secret(const void *a, size_t alen,
							 const void *b, size_t blen);

/*
 * ---- service manager --------------------------------------------------
 */

/* sd_notify() without failing where there is no service manager. */
extern void rbp_notify_ready(void);
extern void rbp_notify_stopping(void);

#endif							/* RBP_COMMON_H */
