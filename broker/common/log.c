/*-------------------------------------------------------------------------
 *
 * log.c
 *	  Logging to stderr: one line per message, with UTC time and level.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/log.h"
#include "common/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define REPEATED_TEXTS	32
#define REPEATED_MS		60000

static const char *log_program = "remote_bp";
static RbpLogLevel log_level = RBP_LOG_INFO;

static const char *const log_level_names[] = {
	"debug", "info", "warning", "error"
};

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
 * threads do not mix.  Control characters become spaces, so that it is a
 * single line.
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

	/* A failure to write to standard error cannot be reported. */
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

/* A text that was logged less than a minute ago */
typedef struct Repeated
{
	char		text[512];		/* empty if this entry is unused */
	RbpLogLevel level;
	int64_t		logged_at;
	uint64_t	more;			/* repetitions since then */
} Repeated;

static pthread_mutex_t repeated_lock = PTHREAD_MUTEX_INITIALIZER;
static Repeated repeated[REPEATED_TEXTS];
static uint64_t repeated_others;	/* texts without an entry */
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
		rbp_log(RBP_LOG_WARNING, "%" PRIu64 " further messages were not logged",
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
	Repeated   *free_entry = NULL;
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
		else if (repeated[i].text[0] == '\0' && free_entry == NULL)
			free_entry = &repeated[i];
	}
	if (!known && free_entry != NULL)
	{
		strcpy(free_entry->text, text);
		free_entry->level = level;
		free_entry->logged_at = now;
		free_entry->more = 0;
		rbp_log(level, "%s", text);
	}
	else if (!known && repeated_others++ == 0)
		repeated_others_at = now;
	pthread_mutex_unlock(&repeated_lock);
	return !known && free_entry != NULL;
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
