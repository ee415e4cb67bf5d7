/*-------------------------------------------------------------------------
 *
 * signals.c
 *	  What signals do to a daemon: see signals.h.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/signals.h"

#include <stddef.h>

/*
 * SIGXFSZ: a file that must not grow is an error of write(2).  SIGTTOU: a
 * daemon in the background may write to its terminal.
 */
static const int ignored[] = {
	SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR, SIGXFSZ, SIGTTOU
};

static const int taken[] = {SIGTERM, SIGINT, SIGHUP};

sigset_t
rbp_signals_init(void)
{
	sigset_t	set;

	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		signal(ignored[i], SIG_IGN);
	sigemptyset(&set);
	for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
		sigaddset(&set, taken[i]);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	return set;
}
