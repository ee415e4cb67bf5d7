/*-------------------------------------------------------------------------
 *
 * signals.c
 *	  What signals do to a daemon: see signals.h.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/log.h"
#include "broker/common/signals.h"

#include <pthread.h>
#include <string.h>

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

void
rbp_thread_start(void *(*run) (void *arg), void *arg)
{
	pthread_t	thread;
	int			error = pthread_create(&thread, NULL, run, arg);

	if (error != 0)
		rbp_die("could not start a thread: %s", strerror(error));
	pthread_detach(thread);
}
