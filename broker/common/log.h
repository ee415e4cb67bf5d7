/*-------------------------------------------------------------------------
 *
 * log.h
 *	  Logging to stderr: one line per message, with UTC time and level.
 *
 * After rbp_log_init(), all functions are thread-safe, and none waits for the
 * log: what cannot be written at once is dropped, and counted.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LOG_H
#define RBP_LOG_H

#include <stdbool.h>

/* Exit codes of all programs */
#define RBP_EXIT_OK		0
#define RBP_EXIT_FAIL	1		/* the operation failed */
#define RBP_EXIT_USAGE	2		/* the command line is invalid */
#define RBP_EXIT_UNREACHABLE	3	/* nobody answered, of remote_bp_ctl */
#define RBP_EXIT_UNWELL	4		/* of remote_bp_ctl: not all is well */

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
 * For messages that others can cause as often as they like: each text is
 * logged at most once a minute, and only a limited number of different ones.
 * Others are counted.  rbp_log_flush_repeated(), to be called about every
 * second, logs the counts after a minute or, with all, at once.  True if the
 * message was logged now.
 */
extern bool rbp_log_repeated(RbpLogLevel level, const char *fmt,...)
			__attribute__((format(printf, 2, 3)));
extern void rbp_log_flush_repeated(bool all);

/* Log at ERROR and exit with RBP_EXIT_FAIL.  For start-up only. */
extern void rbp_die(const char *fmt,...)
			__attribute__((format(printf, 1, 2), noreturn));

/* Have it call this, too, before it exits. */
extern void rbp_on_die(void (*tell) (const char *text));

/* "debug", "info", "warning" or "error" */
extern bool rbp_log_level_parse(const char *text, RbpLogLevel *level);

#endif							/* RBP_LOG_H */
