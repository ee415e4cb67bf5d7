/*-------------------------------------------------------------------------
 *
 * options.c
 *	  The command line: one table for each program.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/common/log.h"
#include "broker/common/options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPTIONS		64

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

static void
set_option(const RbpProgram *prog, const RbpOption *opt, const char *value)
{
	switch (opt->type)
	{
		case RBP_OPT_FLAG:
			*(bool *) opt->target = true;
			break;

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
					rbp_usage_error(prog, "--%s: \"%s\" is not a number from %"
									PRId64 " to %" PRId64, opt->name, value,
									opt->min, opt->max);
				*(int *) opt->target = (int) number;
				break;
			}

		case RBP_OPT_SIZE:
			{
				uint64_t	size;
				char		min[32];
				char		max[32];

				if (!rbp_parse_size(value, &size))
					rbp_usage_error(prog, "--%s: \"%s\" is not a size: give bytes, or a number with kB, MB, GB or TB",
									opt->name, value);
				if (size < (uint64_t) opt->min ||
					(opt->max != 0 && size > (uint64_t) opt->max))
					rbp_usage_error(prog, "--%s: \"%s\" is out of range (%s to %s)",
									opt->name, value,
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
					rbp_usage_error(prog, "--%s: \"%s\" is not HOST:PORT", opt->name, value);
				address->given = true;
				break;
			}

		case RBP_OPT_LEVEL:
			if (!rbp_log_level_parse(value, opt->target))
				rbp_usage_error(prog, "--%s: \"%s\" is not a level", opt->name, value);
			break;
	}
}

int
rbp_options_parse(const RbpProgram *prog, int argc, char **argv)
{
	/* Values returned by getopt_long, above any character. */
	enum
	{
		VAL_VERSION = 1000, VAL_FIRST
	};
	struct option longopts[MAX_OPTIONS + 3] = {0};
	bool		seen[MAX_OPTIONS] = {false};
	int			count = 0;
	int			val;

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

	/* getopt_long prints its own message, naming argv[0]. */
	while ((val = getopt_long(argc, argv, "h", longopts, NULL)) != -1)
	{
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
		seen[val - VAL_FIRST] = true;
		set_option(prog, &prog->options[val - VAL_FIRST], optarg);
	}

	for (int i = 0; i < count; i++)
	{
		if (prog->options[i].required && !seen[i])
			rbp_usage_error(prog, "--%s is required", prog->options[i].name);
	}
	return optind;
}
