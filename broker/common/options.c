/*-------------------------------------------------------------------------
 *
 * options.c
 *	  The command line and the configuration file: one table for each program.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/common/log.h"
#include "broker/common/options.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_OPTIONS		64
#define MAX_CONFIG		65536	/* bytes of a file */

static const char *config_path; /* of --config, or NULL */
static char config_text[MAX_CONFIG + 1];	/* values of options point into it */
static bool given[MAX_OPTIONS];
static int	config_line[MAX_OPTIONS];	/* that set the option; 0: the command
										 * line did */

void
rbp_usage_error(const RbpProgram *prog, const char *fmt,...)
{
	va_list		args;

	fprintf(stderr, "%s: ", prog->name);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fprintf(stderr, "\nTry \"%s --help\" for more information.\n", prog->name);
	exit(RBP_EXIT_USAGE);
}

static const RbpOption *
find_option(const RbpProgram *prog, const char *name)
{
	for (const RbpOption *opt = prog->options; opt->name != NULL; opt++)
	{
		if (strcmp(opt->name, name) == 0)
			return opt;
	}
	return NULL;
}

void
rbp_option_error(const RbpProgram *prog, const char *name, const char *fmt,...)
{
	const RbpOption *opt = find_option(prog, name);
	int			line = opt != NULL ? config_line[opt - prog->options] : 0;
	char		text[1024];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (line != 0)
		rbp_usage_error(prog, "%s:%d: %s: %s", config_path, line, name, text);
	rbp_usage_error(prog, "--%s: %s", name, text);
}

static void
print_help(const RbpProgram *prog)
{
	printf("%s\n\nUsage:\n  %s %s\n\nOptions:\n", prog->summary, prog->name,
		   prog->usage);
	for (const RbpOption *opt = prog->options; opt->name != NULL; opt++)
	{
		char		left[64];

		snprintf(left, sizeof(left), "--%s%s%s", opt->name,
				 opt->metavar ? "=" : "", opt->metavar ? opt->metavar : "");
		printf("  %-28s %s", left, opt->help);
		if (opt->required)
			printf(" (required)");
		else if (opt->def != NULL)
			printf(" (default: %s)", opt->def);
		printf("\n");
	}
	printf("  %-28s %s\n", "-h, --help", "show this help, then exit");
	printf("  %-28s %s\n", "--version", "show the version, then exit");
	if (prog->footer != NULL)
		printf("\n%s\n", prog->footer);
}

/* line: of the file, or 0 for the command line */
static void
set_option(const RbpProgram *prog, const RbpOption *opt, const char *value, int line)
{
	given[opt - prog->options] = true;
	config_line[opt - prog->options] = line;
	switch (opt->type)
	{
		case RBP_OPT_FLAG:
			*(bool *) opt->target = true;
			break;

		case RBP_OPT_CONFIG:
			break;				/* read before */

		case RBP_OPT_STRING:
			*(const char **) opt->target = value;
			break;

		case RBP_OPT_INT:
			{
				char	   *end;
				long long	number;

				errno = 0;
				number = strtoll(value, &end, 10);
				if (errno != 0 || end == value || *end != '\0' ||
					number < opt->min || number > opt->max)
					rbp_option_error(prog, opt->name, "\"%s\" is not a number from %"
									 PRId64 " to %" PRId64, value, opt->min, opt->max);
				*(int *) opt->target = (int) number;
				break;
			}

		case RBP_OPT_SIZE:
			{
				uint64_t	size;
				char		min[32];
				char		max[32];

				if (!rbp_parse_size(value, &size))
					rbp_option_error(prog, opt->name, "\"%s\" is not a size: give bytes, or a number with kB, MB, GB or TB",
									 value);
				if (size < (uint64_t) opt->min ||
					(opt->max != 0 && size > (uint64_t) opt->max))
					rbp_option_error(prog, opt->name, "\"%s\" is out of range (%s to %s)", value,
									 rbp_format_size((uint64_t) opt->min, min, sizeof(min)),
									 opt->max == 0 ? "any" :
									 rbp_format_size((uint64_t) opt->max, max, sizeof(max)));
				*(uint64_t *) opt->target = size;
				break;
			}

		case RBP_OPT_ADDRESS:
			{
				RbpHostPort *address = opt->target;

				if (!rbp_parse_hostport(value, address->host, sizeof(address->host),
										&address->port))
					rbp_option_error(prog, opt->name, "\"%s\" is not HOST:PORT", value);
				address->given = true;
				break;
			}

		case RBP_OPT_LEVEL:
			if (!rbp_log_level_parse(value, opt->target))
				rbp_option_error(prog, opt->name, "\"%s\" is not a level", value);
			break;
	}
}

/* Without blanks at its ends; the text changes. */
static char *
trim(char *text)
{
	size_t		len;

	text += strspn(text, " \t");
	len = strlen(text);
	while (len > 0 && isblank((unsigned char) text[len - 1]))
		len--;
	text[len] = '\0';
	return text;
}

/* Open the file; -1 if it cannot be used, and why. */
static int
open_config(char *why, size_t size)
{
	/* O_NONBLOCK: nobody may write to a FIFO, which is refused */
	int			fd = open(config_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) != 0)
		snprintf(why, size, "could not open the file: %s", strerror(errno));
	else if (!S_ISREG(st.st_mode))
		snprintf(why, size, "it is not a regular file");
	else if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
		snprintf(why, size, "others than its owner may write the file: chmod go-w it");
	else
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* Cut a line, which changes, into name and value, without a comment.  *value: NULL if there is no "=". */
static char *
split_line(char *line, size_t len, char **value)
{
	for (size_t i = 0; i < len; i++)
	{
		if (line[i] == '#' && (i == 0 || isblank((unsigned char) line[i - 1])))
			len = i;
	}
	line[len] = '\0';
	line = trim(line);
	*value = strchr(line, '=');
	if (*value == NULL)
		return line;
	*(*value)++ = '\0';
	*value = trim(*value);
	return trim(line);
}

/* A line of the file, which changes. */
static void
set_from_line(const RbpProgram *prog, char *line, size_t len, int number)
{
	const RbpOption *opt;
	char	   *value;

	for (size_t i = 0; i < len; i++)
	{
		if (iscntrl((unsigned char) line[i]) && line[i] != '\t')
			rbp_usage_error(prog, "%s:%d: there is a control character (0x%02x)", config_path, number,
							(unsigned char) line[i]);
	}
	line = split_line(line, len, &value);
	if (value == NULL)
	{
		if (*line == '\0')
			return;
		rbp_usage_error(prog, "%s:%d: \"%s\" is not \"option = value\"", config_path, number, line);
	}
	opt = find_option(prog, line);
	if (opt == NULL || opt->type == RBP_OPT_FLAG || opt->type == RBP_OPT_CONFIG)
		rbp_usage_error(prog, "%s:%d: there is no option \"%s\"", config_path, number, line);
	if (*value == '\0')
		rbp_usage_error(prog, "%s:%d: %s has no value", config_path, number, line);
	set_option(prog, opt, value, number);
}

/* Set what the file says. */
static void
read_config(const RbpProgram *prog)
{
	char		why[256];
	int			fd = open_config(why, sizeof(why));
	ssize_t		len;
	int			number = 0;

	if (fd < 0)
		rbp_usage_error(prog, "%s: %s", config_path, why);
	len = read(fd, config_text, sizeof(config_text));
	if (len < 0)
		rbp_usage_error(prog, "%s: could not read the file: %s", config_path, strerror(errno));
	if (len > MAX_CONFIG)
		rbp_usage_error(prog, "%s: the file is larger than %d bytes", config_path, MAX_CONFIG);
	close(fd);
	for (char *line = config_text; line < config_text + len;)
	{
		char	   *end = memchr(line, '\n', (size_t) (config_text + len - line));

		if (end == NULL)
			end = config_text + len;
		set_from_line(prog, line, (size_t) (end - line), ++number);
		line = end + 1;
	}
}

char *
rbp_config_reread(const RbpProgram *prog, const char *name)
{
	char		why[256];
	char	   *found = NULL;
	char	   *line = NULL;
	size_t		size = 0;
	FILE	   *file;
	int			fd;

	if (config_line[find_option(prog, name) - prog->options] == 0)
		return NULL;
	fd = open_config(why, sizeof(why));
	file = fd >= 0 ? fdopen(fd, "r") : NULL;
	if (file == NULL)
	{
		rbp_log(RBP_LOG_WARNING, "%s: %s", config_path, fd >= 0 ? strerror(errno) : why);
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	while (getline(&line, &size, file) > 0)
	{
		char	   *value;
		const char *option = split_line(line, strcspn(line, "\n"), &value);

		if (value == NULL || strcmp(option, name) != 0)
			continue;
		free(found);
		found = strdup(value);
	}
	free(line);
	fclose(file);
	return found;
}

/* Values returned by getopt_long, above any character. */
enum
{
	VAL_VERSION = 1000, VAL_FIRST
};

/*
 * Go through the command line: set options, or else look for --config and for
 * what ends the program.
 */
static void
walk(const RbpProgram *prog, int argc, char **argv, const struct option *longopts, bool set)
{
	int			val;

	optind = 0;					/* begin anew */

	/* getopt_long prints its own message, naming argv[0]. */
	while ((val = getopt_long(argc, argv, "h", longopts, NULL)) != -1)
	{
		const RbpOption *opt;

		if (val == 'h')
		{
			print_help(prog);
			exit(RBP_EXIT_OK);
		}
		if (val == VAL_VERSION)
		{
			printf("%s %s\n", prog->name, RBP_VERSION);
			exit(RBP_EXIT_OK);
		}
		if (val < VAL_FIRST)
		{
			fprintf(stderr, "Try \"%s --help\" for more information.\n",
					prog->name);
			exit(RBP_EXIT_USAGE);
		}
		opt = &prog->options[val - VAL_FIRST];
		if (set)
			set_option(prog, opt, optarg, 0);
		else if (opt->type == RBP_OPT_CONFIG)
			config_path = optarg;
	}
}

int
rbp_options_parse(const RbpProgram *prog, int argc, char **argv)
{
	struct option longopts[MAX_OPTIONS + 3] = {0};
	int			count = 0;

	for (const RbpOption *opt = prog->options; opt->name != NULL; opt++)
	{
		if (count >= MAX_OPTIONS)
			abort();
		longopts[count].name = opt->name;
		longopts[count].has_arg = opt->type == RBP_OPT_FLAG ?
			no_argument : required_argument;
		longopts[count].val = VAL_FIRST + count;
		count++;
	}
	longopts[count].name = "help";
	longopts[count].val = 'h';
	longopts[count + 1].name = "version";
	longopts[count + 1].val = VAL_VERSION;

	walk(prog, argc, argv, longopts, false);
	if (config_path != NULL)
		read_config(prog);
	walk(prog, argc, argv, longopts, true);

	for (int i = 0; i < count; i++)
	{
		const RbpOption *opt = &prog->options[i];

		if (opt->required && !given[i] && config_path != NULL)
			rbp_usage_error(prog, "%s: there is no line \"%s = %s\"", config_path, opt->name, opt->metavar);
		if (opt->required && !given[i])
			rbp_usage_error(prog, "--%s is required", opt->name);
	}
	return optind;
}

void
rbp_config_checked(const RbpProgram *prog, bool only_check)
{
	if (!only_check)
		return;
	printf("%s: the configuration is valid\n", prog->name);
	exit(RBP_EXIT_OK);
}
