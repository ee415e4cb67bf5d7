/*-------------------------------------------------------------------------
 *
 * tap.h
 *	  Test results in the Test Anything Protocol, for the C unit tests.
 *
 * Each program prints one line per check and the plan at its end; it exits
 * non-zero if a check failed or none was made.
 *
 *	 ok(cond, "text %d", ...)			a check; true if it held
 *	 is_u64(got, expected, "text", ...) a comparison that shows both
 *	 diag("text", ...)					a remark
 *	 return done_testing();				at the end of main
 *
 *-------------------------------------------------------------------------
 */
#ifndef TAP_H
#define TAP_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* weak: one for the program, whichever of its files include this */
__attribute__((weak))
int			tap_count;

__attribute__((weak))
int			tap_failed;

__attribute__((format(printf, 1, 2), unused)) static void
diag(const char *fmt,...)
{
	va_list		args;

	fputs("# ", stdout);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

__attribute__((format(printf, 4, 5), unused)) static bool
tap_ok(bool cond, const char *file, int line, const char *fmt,...)
{
	va_list		args;

	tap_count++;
	printf("%sok %d - ", cond ? "" : "not ", tap_count);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	putchar('\n');
	if (!cond)
	{
		tap_failed++;
		printf("#   failed at %s:%d\n", file, line);
	}
	fflush(stdout);
	return cond;
}

#define ok(cond, ...)	tap_ok((cond), __FILE__, __LINE__, __VA_ARGS__)

#define is_u64(got, expected, ...) \
	do { \
		uint64_t	tap_got = (got); \
		uint64_t	tap_expected = (expected); \
		\
		if (!tap_ok(tap_got == tap_expected, __FILE__, __LINE__, __VA_ARGS__)) \
			diag("  got %" PRIu64 ", expected %" PRIu64, tap_got, tap_expected); \
	} while (0)

__attribute__((unused)) static int
done_testing(void)
{
	printf("1..%d\n", tap_count);
	if (tap_failed > 0)
		diag("%d of %d failed", tap_failed, tap_count);
	return tap_failed > 0 || tap_count == 0;
}

#endif							/* TAP_H */
