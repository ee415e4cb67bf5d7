/*-------------------------------------------------------------------------
 *
 * common.c
 *	  What the broker, donor and ctl programs share.  See common.h.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common.h"
#include "common/text.h"
#include "common/token.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#define MAX_OPTIONS		64
#define REPEATED_TEXTS	32
#define REPEATED_MS		60000

static const char *log_program = "remote_bp";
static RbpLogLevel log_level = RBP_LOG_INFO;

static const char *const log_level_names[] = {
	"debug", "info", "warning", "error"
};

/*
 * ---- logging ----------------------------------------------------------------
 */

void
rbp_log_init(const char *program, RbpLogLevel level)
{
	log_program = program;
	log_level = level;
}

bool
rbp_log_level_parse(const char *text, RbpLogLevel *level)
{
	for (int i = RBP_LOG_DEBUG; i <= RBP_LOG_ERROR; i++)
	{
		if (strcasecmp(text, log_level_names[i]) == 0)
		{
			*level = (RbpLogLevel) i;
			return true;
		}
	}
	return false;
}

/*
 * The line is built first and written by a single call, so that lines of
 * threads do not mix.  Control characters become spaces: a line stays one.
 */
static void
log_line(RbpLogLevel level, const char *fmt, va_list args)
{
	char		line[2048];
	struct timespec ts;
	struct tm	tm;
	size_t		used;
	size_t		start;
	int			saved_errno = errno;

	clock_gettime(CLOCK_REALTIME, &ts);
	gmtime_r(&ts.tv_sec, &tm);
	used = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &tm);
	used += (size_t) snprintf(line + used, sizeof(line) - used,
							  ".%03ldZ %s: %s: ", ts.tv_nsec / 1000000,
							  log_program, log_level_names[level]);
	start = used;
	errno = saved_errno;
	vsnprintf(line + used, sizeof(line) - used - 1, fmt, args);
	used += strlen(line + used);

	for (size_t i = start; i < used; i++)
	{
		if ((unsigned char) line[i] < 0x20 || line[i] == 0x7f)
			line[i] = ' ';
	}
	line[used++] = '\n';

	/* Nobody is left to tell if standard error cannot be written. */
	(void) !write(STDERR_FILENO, line, used);
	errno = saved_errno;
}

void
rbp_log(RbpLogLevel level, const char *fmt,...)
{
	va_list		args;

	if (level < log_level)
		return;
	va_start(args, fmt);
	log_line(level, fmt, args);
	va_end(args);
}

/* A text that was logged less than a minute ago. */
typedef struct Repeated
{
	char		text[512];		/* empty: this place is free */
	RbpLogLevel level;
	int64_t		logged_at;
	uint64_t	more;			/* of the same since then */
} Repeated;

static pthread_mutex_t repeated_lock = PTHREAD_MUTEX_INITIALIZER;
static Repeated repeated[REPEATED_TEXTS];
static uint64_t repeated_others;	/* found no place */
static int64_t repeated_others_at;

static void
flush_repeated(int64_t now, bool all)
{
	for (int i = 0; i < REPEATED_TEXTS; i++)
	{
		Repeated   *r = &repeated[i];

		if (r->text[0] == '\0' || (!all && now - r->logged_at < REPEATED_MS))
			continue;
		if (r->more > 0)
			rbp_log(r->level, "%s (%" PRIu64 " times more in %" PRId64 " s)",
					r->text, r->more, (now - r->logged_at) / 1000);
		else
			r->text[0] = '\0';
		r->more = 0;
		r->logged_at = now;
	}
	if (repeated_others > 0 && (all || now - repeated_others_at >= REPEATED_MS))
	{
		rbp_log(RBP_LOG_WARNING, "%" PRIu64 " messages of other kinds or about others were not logged",
				repeated_others);
		repeated_others = 0;
	}
}

void
rbp_log_flush_repeated(bool all)
{
	pthread_mutex_lock(&repeated_lock);
	flush_repeated(rbp_mono_ms(), all);
	pthread_mutex_unlock(&repeated_lock);
}

bool
rbp_log_repeated(RbpLogLevel level, const char *fmt,...)
{
	char		text[sizeof(repeated[0].text)];
	int64_t		now = rbp_mono_ms();
	Repeated   *place = NULL;
	bool		known = false;
	va_list		args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);

	pthread_mutex_lock(&repeated_lock);
	flush_repeated(now, false);
	for (int i = 0; i < REPEATED_TEXTS && !known; i++)
	{
		known = strcmp(repeated[i].text, text) == 0;
		if (known)
			repeated[i].more++;
		else if (repeated[i].text[0] == '\0' && place == NULL)
			place = &repeated[i];
	}
	if (!known && place != NULL)
	{
		strcpy(place->text, text);
		place->level = level;
		place->logged_at = now;
		place->more = 0;
		rbp_log(level, "%s", text);
	}
	else if (!known && repeated_others++ == 0)
		repeated_others_at = now;
	pthread_mutex_unlock(&repeated_lock);
	return !known && place != NULL;
}

void
rbp_die(const char *fmt,...)
{
	va_list		args;

	va_start(args, fmt);
	log_line(RBP_LOG_ERROR, fmt, args);
	va_end(args);
	exit(RBP_EXIT_FAIL);
}

/*
 * ---- options ------------------------------------------------------------------
 */

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
	printf("  %-28s %s\n", "--help", "show this help, then exit");
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
	}
}

int
rbp_options_parse(const RbpProgram *prog, int argc, char **argv)
{
	/* Values that getopt_long returns; above any character. */
	enum
	{
		VAL_HELP = 1000, VAL_VERSION, VAL_FIRST
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
	longopts[count].val = VAL_HELP;
	longopts[count + 1].name = "version";
	longopts[count + 1].val = VAL_VERSION;

	/* getopt_long prints its own message, naming argv[0]. */
	while ((val = getopt_long(argc, argv, "", longopts, NULL)) != -1)
	{
		if (val == VAL_HELP)
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

/*
 * ---- text ---------------------------------------------------------------------
 */

bool
rbp_parse_size(const char *text, uint64_t *bytes)
{
	static const struct
	{
		const char *name;
		uint64_t	unit;
	}			units[] = {
		{"", 1}, {"B", 1}, {"kB", UINT64_C(1) << 10}, {"MB", UINT64_C(1) << 20},
		{"GB", UINT64_C(1) << 30}, {"TB", UINT64_C(1) << 40},
		{NULL, 0}
	};
	const char *suffix;
	char	   *end;
	size_t		digits;

	/* strtod alone would take " -1", "inf" and "0x10" */
	digits = strspn(text, "0123456789.");
	if (digits == 0 || digits > 30 || !isdigit((unsigned char) text[0]))
		return false;
	suffix = text + digits;
	suffix += strspn(suffix, " ");

	for (int i = 0; units[i].name != NULL; i++)
	{
		if (strcasecmp(suffix, units[i].name) != 0)
			continue;
		if (memchr(text, '.', digits) == NULL)
		{
			unsigned long long whole;

			errno = 0;
			whole = strtoull(text, &end, 10);
			if (errno != 0 || end != text + digits ||
				whole > UINT64_MAX / units[i].unit)
				return false;
			*bytes = whole * units[i].unit;
		}
		else
		{
			double		value = 0;
			double		scale = 1;
			bool		point = false;

			/* by hand, because strtod follows the locale */
			for (size_t c = 0; c < digits; c++)
			{
				if (text[c] == '.')
				{
					if (point)
						return false;
					point = true;
					continue;
				}
				value = value * 10 + (text[c] - '0');
				if (point)
					scale *= 10;
			}
			value = value / scale * (double) units[i].unit;
			if (!(value < 9.0e18))
				return false;
			*bytes = (uint64_t) value;
		}
		return true;
	}
	return false;
}

char *
rbp_format_size(uint64_t bytes, char *buf, size_t len)
{
	static const char *const names[] = {"B", "kB", "MB", "GB", "TB"};
	double		value = (double) bytes;
	int			unit = 0;

	while (value >= 1024 && unit < 4)
	{
		value /= 1024;
		unit++;
	}
	if (value == (double) (uint64_t) value)
		snprintf(buf, len, "%.0f %s", value, names[unit]);
	else
		snprintf(buf, len, "%.1f %s", value, names[unit]);
	return buf;
}

bool
rbp_parse_hostport(const char *text, char *host, size_t hostlen, uint16_t *port)
{
	const char *colon = strrchr(text, ':');
	const char *start = text;
	size_t		len;
	char	   *end;
	unsigned long number;

	if (colon == NULL || !isdigit((unsigned char) colon[1]))
		return false;
	errno = 0;
	number = strtoul(colon + 1, &end, 10);
	if (errno != 0 || *end != '\0' || number > 65535)
		return false;

	len = (size_t) (colon - start);
	if (start[0] == '[')
	{
		if (len < 3 || start[len - 1] != ']')
			return false;
		start++;
		len -= 2;
	}
	else if (memchr(start, ':', len) != NULL)
		return false;			/* "::1:80" is ambiguous; ask for brackets */
	if (len >= hostlen)
		return false;
	memcpy(host, start, len);
	host[len] = '\0';
	*port = (uint16_t) number;
	return true;
}

char *
rbp_format_hostport(const char *host, uint16_t port, char *buf, size_t len)
{
	snprintf(buf, len, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host,
			 (unsigned) port);
	return buf;
}

char *
rbp_format_address(const struct sockaddr *addr, char *buf, size_t len)
{
	socklen_t	addrlen = addr == NULL ? 0 : addr->sa_family == AF_INET6 ?
	sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);

	if (addrlen == 0 ||
		getnameinfo(addr, addrlen, buf, (socklen_t) len, NULL, 0, NI_NUMERICHOST) != 0)
		snprintf(buf, len, "an unknown address");
	return buf;
}

/*
 * ---- random bytes and secrets ----------------------------------------------------
 */

void
rbp_random_bytes(void *buf, size_t len)
{
	if (RAND_bytes(buf, (int) len) != 1)
	{
		rbp_log(RBP_LOG_ERROR, "no random bytes to be had from OpenSSL");
		abort();
	}
}

void
rbp_uuid4(char uuid[RBP_UUID_LEN])
{
	unsigned char bytes[16];
	char		hex[33];

	rbp_random_bytes(bytes, sizeof(bytes));
	bytes[6] = (unsigned char) ((bytes[6] & 0x0f) | 0x40);
	bytes[8] = (unsigned char) ((bytes[8] & 0x3f) | 0x80);
	rbp_hex_encode(bytes, sizeof(bytes), hex);
	snprintf(uuid, RBP_UUID_LEN, "%.8s-%.4s-%.4s-%.4s-%.12s",
			 hex, hex + 8, hex + 12, hex + 16, hex + 20);
}

char *
rbp_token_load(const char *path, const char **error)
{
	char		token[RBP_TOKEN_LEN];
	char	   *copy = NULL;
	struct stat st;

	switch (rbp_token_read(path, token))
	{
		case RBP_TOKEN_OK:
			copy = strdup(token);
			if (copy == NULL)
				*error = strerror(ENOMEM);
			break;
		case RBP_TOKEN_UNREADABLE:
			*error = strerror(errno);
			break;
		case RBP_TOKEN_EMPTY:
			*error = "its first line is empty";
			break;
		case RBP_TOKEN_TOO_LONG:
			*error = "its first line is too long";
			break;
		case RBP_TOKEN_NOT_PRINTABLE:
			*error = "a token consists of printable ASCII characters without spaces";
			break;
	}
	OPENSSL_cleanse(token, sizeof(token));
	if (stat(path, &st) == 0 && (st.st_mode & S_IRWXO) != 0)
		rbp_log(RBP_LOG_WARNING, "token file \"%s\" is open to every user: chmod 640 it", path);
	return copy;
}

/*
 * Comparing digests instead of the texts hides lengths too.
 */
bool
rbp_equal_secret(const void *a, size_t alen, const void *b, size_t blen)
{
	unsigned char da[SHA256_DIGEST_LENGTH];
	unsigned char db[SHA256_DIGEST_LENGTH];

	SHA256(a, alen, da);
	SHA256(b, blen, db);
	return CRYPTO_memcmp(da, db, sizeof(da)) == 0;
}

/*
 * ---- service manager ----------------------------------------------------------
 */

void
rbp_notify_ready(void)
{
	sd_notify(0, "READY=1");
}

void
rbp_notify_stopping(void)
{
	sd_notify(0, "STOPPING=1");
}
