/*-------------------------------------------------------------------------
 *
 * log.c
 *	  Logging to stderr: one line per message, with UTC time and level.
 *
 * Nobody waits for the log.  A pipe whose reader has stopped, a terminal that
 * hangs or a disk that is full costs messages, which are counted, and not the
 * threads that log.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/log.h"
#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define REPEATED_TEXTS	32
#define REPEATED_LESSER	28		/* the others are for errors, whoever is
								 * refused */
#define REPEATED_MS		60000

static const char *log_program = "remote_bp";
static RbpLogLevel log_level = RBP_LOG_INFO;
static int	log_fd = STDERR_FILENO;

/* protects what follows, and writing */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t dropped;		/* messages since the last line */
static bool cut;				/* the last one of them is there in part */

static const char *const log_level_names[] = {
	"debug", "info", "warning", "error"
};

/*
 * A pipe or a terminal is opened anew, so that O_NONBLOCK is set for us alone
 * and not for others who have the same standard error.  A socket cannot be
 * opened, and what belongs to another user may not be: see put().
 */
void
rbp_log_init(const char *program, RbpLogLevel level)
{
	struct stat st;
	int			fd;

	log_program = program;
	log_level = level;
	if (fstat(STDERR_FILENO, &st) != 0 || !(S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)))
		return;
	fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd >= 0)
		log_fd = fd;
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

/* Begin a line: returns the length of what stands before the text. */
static size_t
begin_line(char *line, size_t len, RbpLogLevel level)
{
	struct timespec ts;
	struct tm	tm;
	size_t		used;

	clock_gettime(CLOCK_REALTIME, &ts);
	gmtime_r(&ts.tv_sec, &tm);
	used = strftime(line, len, "%Y-%m-%dT%H:%M:%S", &tm);
	return used + (size_t) snprintf(line + used, len - used, ".%03ldZ %s: %s: ",
									ts.tv_nsec / 1000000, log_program, log_level_names[level]);
}

/*
 * Write a line, if that needs no waiting.  What poll() finds writable takes a
 * whole line: a pipe has a page or more, and so does a socket.
 */
static bool
put(const char *line, size_t len)
{
	struct pollfd out = {.fd = log_fd,.events = POLLOUT};
	ssize_t		written;

	if (poll(&out, 1, 0) != 1 || (out.revents & POLLOUT) == 0)
		return false;
	written = write(log_fd, line, len);
	cut = written > 0 && (size_t) written < len;
	return written == (ssize_t) len;
}

/* Write a line, and before it, how many could not be written. */
static void
write_line(const char *line, size_t len)
{
	pthread_mutex_lock(&log_lock);
	if (dropped > 0)
	{
		char		note[256] = "\n";
		size_t		start = cut ? 1 : 0;
		size_t		used = start;

		used += begin_line(note + start, sizeof(note) - start, RBP_LOG_WARNING);
		used += (size_t) snprintf(note + used, sizeof(note) - used, "%" PRIu64
								  " messages were dropped, since the log could not be written\n", dropped);
		if (put(note, used))
			dropped = 0;
	}
	if (dropped > 0 || !put(line, len))
		dropped++;
	pthread_mutex_unlock(&log_lock);
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
	size_t		used;
	size_t		start;
	int			saved_errno = errno;

	start = used = begin_line(line, sizeof(line), level);
	errno = saved_errno;
	vsnprintf(line + used, sizeof(line) - used - 1, fmt, args);
	used += strlen(line + used);

	for (size_t i = start; i < used; i++)
	{
		if ((unsigned char) line[i] < 0x20 || line[i] == 0x7f)
			line[i] = ' ';
	}
	line[used++] = '\n';
	write_line(line, used);
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
		else if (repeated[i].text[0] == '\0' && free_entry == NULL &&
				 (i < REPEATED_LESSER || level >= RBP_LOG_ERROR))
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

static void (*tell_of_death) (const char *text);

void
rbp_die(const char *fmt,...)
{
	char		text[1024];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	rbp_log(RBP_LOG_ERROR, "%s", text);
	if (tell_of_death != NULL)
		tell_of_death(text);
	exit(RBP_EXIT_FAIL);
}

void
rbp_on_die(void (*tell) (const char *text))
{
	tell_of_death = tell;
}
