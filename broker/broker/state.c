/*-------------------------------------------------------------------------
 *
 * state.c
 *	  The lock, transactions, and waiting for what others do: see state.h.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/schema.h"
#include "broker/broker/state.h"
#include "broker/broker/store.h"
#include "broker/common/log.h"
#include "common/clock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

BrokerState broker = {.lock = PTHREAD_MUTEX_INITIALIZER};

_Thread_local int64_t broker_waited_ns;

/*
 * What is waited for: a change of the donor with this key, or, at 0, any change.  Keys that
 * are larger share a place with others, and a waiter may be woken for nothing.
 */
static pthread_cond_t changed[BROKER_MAX_DONORS];

/* When somebody has committed last, which the ticker does each second; and the donors' timeout */
static int64_t committed;
static int64_t donor_timeout;

/*
 * Donors find another broker in the place of one that did not run for so long, and what they
 * tell that one is not known here: this one begins anew, as if it had been started again.
 */
static void
begin(void)
{
	int64_t		gap = rbp_mono_ms() - committed;

	broker_store_begin();
	if (gap <= donor_timeout)
		return;
	rbp_log(RBP_LOG_WARNING, "the broker did not run for %lld ms, and forgets donors and leases until donors tell of them",
			(long long) gap);
	broker_run("DELETE FROM lease");
	broker_run("DELETE FROM donor");
	broker.learns_since = committed = rbp_mono_ms();
}

static void
wake(int64_t donor)
{
	pthread_cond_broadcast(&changed[donor % BROKER_MAX_DONORS]);
}

static void
on_change(void *arg, int operation, const char *database, const char *table, long long row)
{
	broker.wake |= strcmp(database, "main") == 0;
	if (strcmp(table, "donor") == 0)
		wake(row);
}

void
broker_state_open(int64_t donor_timeout_ms)
{
	for (int i = 0; i < BROKER_MAX_DONORS; i++)
		pthread_cond_init(&changed[i], NULL);
	broker.check = getenv("REMOTE_BP_BROKER_CHECK");
	broker.started = time(NULL);
	broker.learns_since = committed = rbp_mono_ms();
	donor_timeout = donor_timeout_ms;
	broker_store_open(on_change);
	broker_begin();
	broker_run("INSERT INTO setting VALUES (?1)", INT(donor_timeout_ms));
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
	begin();
}

static void
commit(void)
{
	char	   *broken = broker.check != NULL ? broker_get_text(broker.check) : NULL;

	if (broken != NULL)
	{
		rbp_log(RBP_LOG_ERROR, "broken invariant: %s", broken);
		abort();
	}
	broker_run("COMMIT");
	if (broker.wake)
		wake(0);
	broker.wake = false;
	committed = rbp_mono_ms();
}

void
broker_end(void)
{
	commit();
	pthread_mutex_unlock(&broker.lock);
}

bool
broker_wait(int64_t donor, int64_t deadline)
{
	struct timespec ts = {
		.tv_sec = deadline / 1000,
		.tv_nsec = deadline % 1000 * 1000000
	};
	bool		early;

	commit();
	early = !broker.stopping && rbp_mono_ms() < deadline;
	if (early)
	{
		int64_t		since = rbp_now_ns();

		pthread_cond_clockwait(&changed[donor % BROKER_MAX_DONORS], &broker.lock, CLOCK_MONOTONIC, &ts);
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
	for (int i = 0; i < BROKER_MAX_DONORS; i++)
		wake(i);
	broker_end();
}
