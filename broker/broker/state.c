/*-------------------------------------------------------------------------
 *
 * state.c
 *	  The lock, transactions, and waiting for what others do: see state.h.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/state.h"
#include "broker/broker/store.h"
#include "broker/common/log.h"
#include "common/clock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

BrokerState broker;

_Thread_local int64_t broker_waited_ns;

/* A commit has failed since this thread's broker_begin(). */
static _Thread_local bool failed;

/* As they were when the transaction began */
static int64_t counters[BROKER_COUNTERS];

static void
begin(void)
{
	broker_store_begin();
	memcpy(counters, broker.counters, sizeof(counters));
}

void
broker_state_open(const char *path, int64_t donor_timeout_ms)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&broker.lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&broker.changed, &attr);
	pthread_condattr_destroy(&attr);
	broker.check = getenv("REMOTE_BP_BROKER_CHECK");
	broker.started = time(NULL);
	broker_store_open(path);
	broker_begin();
	broker_run("INSERT INTO setting VALUES (?1)", INT(donor_timeout_ms));
	rbp_log(RBP_LOG_INFO, "state file \"%s\": %d donors, %d leases", path,
			(int) broker_get("SELECT count(*) FROM donor"),
			(int) broker_get("SELECT count(*) FROM lease"));
	broker_end();
}

void
broker_begin(void)
{
	if (pthread_mutex_trylock(&broker.lock) != 0)
	{
		int64_t		since = rbp_now_ns();

		pthread_mutex_lock(&broker.lock);
		broker.lock_wait_ns += rbp_now_ns() - since;
	}
	failed = false;
	begin();
}

static void
commit(void)
{
	const char *broken = broker.check != NULL ? broker_get_text(broker.check) : NULL;
	const char *fault = NULL;
	bool		wrote;

	if (broken != NULL)
	{
		rbp_log(RBP_LOG_ERROR, "broken invariant: %s", broken);
		abort();
	}
	if (!failed && (fault = broker_store_commit(&wrote)) == NULL)
	{
		if (wrote || broker.wake)
			pthread_cond_broadcast(&broker.changed);
		if (wrote && broker.full)
			rbp_log_repeated(RBP_LOG_INFO, "the state file can be written again");
		broker.full = broker.full && !wrote;
	}
	else
	{
		if (fault != NULL && !broker.full)
			rbp_log_repeated(RBP_LOG_ERROR, "could not write the state file: %s; the last change is undone,"
							 " and until it can be written, only renewals go on", fault);
		/* what follows a failed commit is based on it */
		broker_store_rollback();
		memcpy(broker.counters, counters, sizeof(counters));
		failed = broker.full = true;
	}
	broker.wake = false;
}

bool
broker_end(void)
{
	bool		saved;

	commit();
	saved = !failed;
	pthread_mutex_unlock(&broker.lock);
	return saved;
}

void
broker_try_full(void)
{
	if (!broker.full)
		return;
	broker_store_touch();
	commit();
	failed = false;
	begin();
}

bool
broker_wait(int64_t deadline)
{
	struct timespec ts = {
		.tv_sec = deadline / 1000,
		.tv_nsec = deadline % 1000 * 1000000
	};
	bool		early;

	commit();
	early = !failed && !broker.stopping && rbp_mono_ms() < deadline;
	if (early)
	{
		int64_t		since = rbp_now_ns();

		pthread_cond_timedwait(&broker.changed, &broker.lock, &ts);
		broker_waited_ns += rbp_now_ns() - since;
	}
	begin();
	return early;
}

void
broker_stop(void)
{
	broker_begin();
	broker.stopping = true;
	pthread_cond_broadcast(&broker.changed);
	broker_end();
}
