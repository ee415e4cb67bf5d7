/*-------------------------------------------------------------------------
 *
 * log.h
 *	  Logging: one line each on stderr, UTC time and level.
 *
 * After rbp_log_init(), any thread may call what is here.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LOG_H
#define RBP_LOG_H

#include <stdbool.h>

/* Exit codes of all programs */
#define RBP_EXIT_OK		0
#define RBP_EXIT_FAIL	1		/* it was tried and failed */
#define RBP_EXIT_USAGE	2		/* the command line makes no sense */

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

#endif							/* RBP_LOG_H */
