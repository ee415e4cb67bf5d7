/*-------------------------------------------------------------------------
 *
 * main.c
 *	  The memory broker: who may use which donor's memory, and until when.
 *
 * Threads: main waits for a signal; the ticker does what is due; libmicrohttpd
 * has one for accepting and one for each connection.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/connections.h"
#include "broker/broker/credentials.h"
#include "broker/broker/donors.h"
#include "broker/broker/http.h"
#include "broker/broker/leases.h"
#include "broker/broker/reclaim.h"
#include "broker/broker/schema.h"
#include "broker/broker/share.h"
#include "broker/broker/state.h"
#include "broker/broker/store.h"
#include "broker/broker/tls.h"
#include "broker/common/log.h"
#include "broker/common/options.h"
#include "broker/common/secret.h"
#include "broker/common/signals.h"
#include "common/limits.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>

/* Between two ticks, so that others have their turn when there is much to share. */
#define TICK_PAUSE_MS	50

/* A donor that holds no lease and is silent for so long is forgotten. */
#define FORGET_AFTER_MS		(INT64_C(24) * 3600 * 1000)

/* A tick that comes later than this was held up by more than a busy machine. */
#define LATE_MS				2000

#define REMIND_MS			(INT64_C(3600) * 1000)

static RbpHostPort opt_listen;
static const char *opt_dir;
static const char *opt_state;
static const char *opt_credentials;
static const char *opt_tls_cert;
static const char *opt_tls_key;
static bool opt_insecure;
static int	opt_donor_timeout = 10;
static RbpLogLevel opt_log_level = RBP_LOG_INFO;
static bool opt_check_config;

static const RbpOption options[] = {
	{"config", RBP_OPT_CONFIG, NULL, "FILE",
	"file with options, NAME = VALUE in each line; the command line wins", NULL, false, 0, 0},
	{"check-config", RBP_OPT_FLAG, &opt_check_config, NULL,
	"say whether the options are valid, then exit", NULL, false, 0, 0},
	{"listen", RBP_OPT_ADDRESS, &opt_listen, "HOST:PORT",
	"address to serve HTTP or HTTPS on; port 0: any", NULL, true, 0, 0},
	{"dir", RBP_OPT_STRING, &opt_dir, "DIRECTORY",
	"where credentials, certificate and key are made that are not given", NULL, false, 0, 0},
	{"state", RBP_OPT_STRING, &opt_state, "FILE",
	"of versions up to 1.1: is not read; without --dir, other files are made beside it", NULL, false, 0, 0},
	{"credentials", RBP_OPT_STRING, &opt_credentials, "FILE",
	"file with the credentials to accept", "on loopback none, else broker.credentials in --dir", false, 0, 0},
	{"tls-cert", RBP_OPT_STRING, &opt_tls_cert, "FILE",
	"certificate to serve HTTPS with, and those that lead to its CA", "with credentials, broker.crt in --dir", false, 0, 0},
	{"tls-key", RBP_OPT_STRING, &opt_tls_key, "FILE",
	"its private key", NULL, false, 0, 0},
	{"insecure", RBP_OPT_FLAG, &opt_insecure, NULL,
	"let everybody who reaches the broker do everything", NULL, false, 0, 0},
	{"donor-timeout", RBP_OPT_INT, &opt_donor_timeout, "SECONDS",
		"silence after which a donor gets no new leases; after three times it is given up",
	"10", false, 2, 86400},
	{"log-level", RBP_OPT_LEVEL, &opt_log_level, "LEVEL",
	"debug, info, warning or error", "info", false, 0, 0},
	{NULL, RBP_OPT_FLAG, NULL, NULL, NULL, NULL, false, 0, 0}
};

static const RbpProgram program = {
	.name = "remote_bp_broker",
	.summary = "remote_bp_broker leases the memory of donors to PostgreSQL servers.",
	.usage = "[--config FILE] --listen HOST:PORT [OPTION]...",
	.options = options
};

/*
 * ---- what time brings ----------------------------------------------------------
 */

/*
 * Time during which the broker itself did not run (a stopped process, a
 * paused machine) counts against nobody: holders and donors had no chance to
 * report.  Deadlines here decide no safety, donors have their own.
 */
static void
forgive(int64_t ms)
{
	rbp_log(RBP_LOG_WARNING, "the broker did not run for %" PRId64 " ms; deadlines move by that",
			ms);
	broker_run("UPDATE lease_term SET deadline = deadline + ?1", INT(ms));
	broker_run("UPDATE holding SET taken_at = taken_at + ?1 WHERE taken_at IS NOT NULL", INT(ms));
	broker_run("UPDATE donor_seen SET last_heard = last_heard + ?1, forgiven = forgiven + ?1", INT(ms));
}

static void
expire_leases(void)
{
	int64_t		lease;

	while ((lease = broker_get("SELECT key FROM lease_now WHERE lapsed AND ends <= now_ms() LIMIT 1")) != 0)
	{
		broker_log(RBP_LOG_INFO, "SELECT format('lease %s of %s (%d regions) has expired', id, client,"
				   "  (SELECT sum(regions) FROM holding WHERE lease = key))"
				   " FROM lease WHERE key = ?1", INT(lease));
		broker_leases_end(lease, BROKER_HAS_EXPIRED);
		broker.counters[LEASES_EXPIRED]++;
	}
}

static void
give_up_donors(void)
{
	int64_t		gone[2];		/* a donor, and for how long it has been
								 * silent */

	while (broker_get_all(gone, "SELECT key, silent_ms FROM donor_now"
						  " WHERE state = 'gone' AND (leased > 0 OR silent_ms >= ?1) LIMIT 1",
						  INT(FORGET_AFTER_MS)))
	{
		int			lost = broker_donors_lose(gone[0]);

		if (lost > 0)
			broker_log(RBP_LOG_WARNING, "SELECT format('donor %s has been silent for %lld s: %d regions"
					   " leave their leases', id, ?2, ?3) FROM donor WHERE key = ?1",
					   INT(gone[0]), INT(gone[1] / 1000), INT(lost));
		if (gone[1] >= FORGET_AFTER_MS)
		{
			broker_log(RBP_LOG_INFO, "SELECT format('donor %s is forgotten', id)"
					   " FROM donor WHERE key = ?1", INT(gone[0]));
			broker_run("DELETE FROM donor WHERE key = ?1", INT(gone[0]));
		}
	}
}

/* Each hour, lest it be forgotten. */
static void
remind_of_insecurity(void)
{
	static int64_t due = 0;

	if (!broker.insecure || broker_now() < due)
		return;
	rbp_log(RBP_LOG_WARNING, "--insecure: everybody who reaches the broker can lease memory, and lend it");
	due = broker_now() + REMIND_MS;
}

/*
 * Do what is due: expire leases, take regions past the grace time, drop the
 * leases of donors that are gone, forget old donors.  Returns the time
 * (rbp_mono_ms()) at which to be called again, at most a second ahead.
 */
static int64_t
tick(void)
{
	static int64_t planned = 0;

	if (planned != 0 && broker_now() - planned > LATE_MS)
		forgive(broker_now() - planned);
	expire_leases();
	broker_share_update();
	broker_reclaim_update_all();
	broker_reclaim_take();
	give_up_donors();
	planned = broker_get("SELECT min(at) FROM (SELECT now_ms() + 1000 AS at"
						 " UNION ALL SELECT min(deadline) FROM lease_term WHERE deadline > now_ms()"
						 " UNION ALL SELECT min(taken_at) FROM holding WHERE taken_at IS NOT NULL)");
	return planned;
}

static void *
ticker(void *arg)
{
	broker_begin();
	while (!broker.stopping)
	{
		int64_t		next = tick();
		int64_t		soonest = broker_now() + TICK_PAUSE_MS;

		broker_end();
		sd_notify(0, "WATCHDOG=1");
		broker_connections_sweep();
		broker_begin();
		rbp_log_flush_repeated(false);
		remind_of_insecurity();

		/* Each change wakes us too, and may bring new deadlines. */
		while (broker_wait(0, soonest))
		{
			if (broker_now() < soonest)
				next = soonest;
		}
		broker_wait(0, next);
	}
	broker_end();
	return NULL;
}

/*
 * ---- start and stop ------------------------------------------------------------
 */

/* Each connection takes a descriptor, and the default limit is 1,024: see BROKER_ALL_CONNECTIONS. */
static void
raise_file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 4096)
	{
		limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/* What the names of files begin with that the broker makes for itself. */
static const char *
made_files(void)
{
	char	   *prefix = NULL;

	if (opt_dir == NULL && opt_state == NULL)
		rbp_option_error(&program, "dir", "it is needed, or else --credentials, with --tls-cert and --tls-key, or --insecure");
	if (opt_dir != NULL && asprintf(&prefix, "%s/broker", opt_dir) < 0)
		rbp_die("out of memory");
	return prefix != NULL ? prefix : opt_state;
}

int
main(int argc, char **argv)
{
	char		address[RBP_HOST_LEN + 16];
	char		pin[RBP_SECRET_DIGITS + 1];
	bool		loopback;
	bool		credentials;
	bool		tls;
	pthread_t	ticker_thread;
	sigset_t	signals;
	int			signo;
	int			rc;

	if (rbp_options_parse(&program, argc, argv) != argc)
		rbp_usage_error(&program, "there are too many arguments");
	if (opt_insecure && opt_credentials != NULL)
		rbp_option_error(&program, "insecure", "it does not go together with --credentials");
	if ((opt_tls_cert == NULL) != (opt_tls_key == NULL))
		rbp_option_error(&program, "tls-cert", "it goes together with --tls-key");
	rbp_config_checked(&program, opt_check_config);
	rbp_log_init(program.name, opt_log_level);
	rbp_hide_memory();

	signals = rbp_signals_init();
	raise_file_limit();

	if (opt_state != NULL)
		rbp_log(RBP_LOG_WARNING, "--state is not needed any more: \"%s\" is not read; put the credentials beside it into --dir",
				opt_state);
	loopback = broker_http_listen(opt_listen.host, opt_listen.port, address, sizeof(address));
	credentials = opt_credentials != NULL || !(loopback || opt_insecure);
	tls = credentials || opt_tls_cert != NULL;
	if (tls)
		broker_tls_open(opt_tls_cert, opt_tls_key, opt_tls_cert == NULL ? made_files() : NULL, pin);
	if (credentials)
		broker_credentials_open(opt_credentials, opt_credentials == NULL ? made_files() : NULL, pin);
	else if (loopback)
		rbp_log(RBP_LOG_WARNING, "without --credentials everybody on this machine can lease memory");
	/* files are made by now: they may take longer than this */
	broker_state_open((int64_t) opt_donor_timeout * 1000);
	broker.insecure = opt_insecure && !loopback;
	rc = pthread_create(&ticker_thread, NULL, ticker, NULL);
	if (rc != 0)
		rbp_die("cannot start a thread: %s", strerror(rc));
	broker_http_start(broker_routes, tls);
	rbp_log(RBP_LOG_INFO, "listening on %s", address);
	sd_notify(0, "READY=1");

	while (sigwait(&signals, &signo) != 0 || signo == SIGHUP)
	{
		rbp_log(RBP_LOG_INFO, "reloading on SIGHUP");
		broker_credentials_reload();
		broker_tls_reload();
	}

	rbp_log(RBP_LOG_INFO, "stopping on signal %d", signo);
	sd_notify(0, "STOPPING=1");
	broker_stop();
	broker_http_stop();
	pthread_join(ticker_thread, NULL);
	rbp_log_flush_repeated(true);
	broker_store_close();
	return RBP_EXIT_OK;
}
