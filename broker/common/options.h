/*-------------------------------------------------------------------------
 *
 * options.h
 *	  The command line and the configuration file: one table for each program.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_OPTIONS_H
#define RBP_OPTIONS_H

#include "common/limits.h"

#include <stdbool.h>
#include <stdint.h>

#ifndef RBP_VERSION
#error "RBP_VERSION must be given by the build, from remote_bp.control"
#endif

typedef enum RbpOptionType
{
	RBP_OPT_FLAG,				/* bool *: set to true; takes no value */
	RBP_OPT_CONFIG,				/* name of a file with options; no target */
	RBP_OPT_STRING,				/* const char **: points into argv, or the
								 * file's text, which is kept */
	RBP_OPT_INT,				/* int *: min <= value <= max */
	RBP_OPT_SIZE,				/* uint64_t *: bytes, see rbp_parse_size();
								 * min <= value, and value <= max if max is
								 * not 0 */
	RBP_OPT_ADDRESS,			/* RbpHostPort *: see rbp_parse_hostport() */
	RBP_OPT_LEVEL				/* RbpLogLevel * */
} RbpOptionType;

/* If the option is not given, host and port are as the program has set them. */
typedef struct RbpHostPort
{
	bool		given;
	char		host[RBP_HOST_LEN]; /* "" for ":PORT" */
	uint16_t	port;
} RbpHostPort;

typedef struct RbpOption
{
	const char *name;			/* without the dashes; NULL at the end of the
								 * table */
	RbpOptionType type;
	void	   *target;			/* holds the default before parsing */
	const char *metavar;		/* name of the value in --help, or NULL */
	const char *help;			/* one line, without the default */
	const char *def;			/* the default as shown in --help, or NULL */
	bool		required;
	int64_t		min;
	int64_t		max;
} RbpOption;

typedef struct RbpProgram
{
	const char *name;
	const char *summary;		/* a sentence for --help */
	const char *usage;			/* text after the name in --help */
	const char *footer;			/* more text for --help, or NULL */
	const RbpOption *options;
} RbpProgram;

/*
 * Parse argv according to the table, and before it the file that an option of
 * type RBP_OPT_CONFIG names: lines "option = value", for all options but flags
 * and that one; "#" begins a comment at the beginning of a line or after white
 * space.  The command line wins.  --help and --version print to stdout and
 * exit with 0; a bad option, a bad value or a missing required option prints a
 * message to stderr and exits with RBP_EXIT_USAGE.  Returns the index in argv
 * of the first argument that is not an option (options may follow arguments;
 * argv is permuted as getopt_long does).
 */
extern int	rbp_options_parse(const RbpProgram *prog, int argc, char **argv);

/*
 * What the file says of this option now, malloc'ed and not checked; NULL if it was not set by the file, if
 * the file has it no more, or, which is logged, if the file cannot be used.
 */
extern char *rbp_config_reread(const RbpProgram *prog, const char *name);

/* Ends the program, if it was only asked whether the options are valid. */
extern void rbp_config_checked(const RbpProgram *prog, bool only_check);

/*
 * The value of this option is wrong: the same as below, with the file and line
 * where the option was set, if it was in a file.
 */
extern void rbp_option_error(const RbpProgram *prog, const char *name, const char *fmt,...)
			__attribute__((format(printf, 3, 4), noreturn));

/* Print "NAME: text" and a hint at --help, and exit with RBP_EXIT_USAGE. */
extern void rbp_usage_error(const RbpProgram *prog, const char *fmt,...)
			__attribute__((format(printf, 2, 3), noreturn));

#endif							/* RBP_OPTIONS_H */
