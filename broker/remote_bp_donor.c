/*-------------------------------------------------------------------------
 *
 * remote_bp_donor.c
 *	  Lends this machine's memory: reserves it, serves it to the holders of
 *	  leases, and does what the broker says.
 *
 * Links: remote_bp_donor.o donor_memory.o donor_lease.o donor_serve.o
 *		  donor_control.o common.o http_client.o, src/wire/rbp_wire.o,
 *		  src/transport/rbp_transport.o transport_sock.o transport_shm.o
 *		  transport_tcp.o; -lcurl -ljansson -lcrypto -lsystemd -lpthread
 *
 * Files and threads: see donor.h.
 *
 *-------------------------------------------------------------------------
 */
#include "common.h"
#include "donor.h"
#include "http_client.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIN_REGION	(INT64_C(1) << 20)
#define MAX_REGION	(INT64_C(1) << 40)

static DonorOptions opt = {
	.transports = "shm,tcp",
	.region_size = UINT64_C(64) << 20,
	.threads = 2,
	.spin_us = 200,
	.reclaim_grace = 10,
	.drain_timeout = 60,
};
static const char *log_level = "info";

static const RbpOption options[] = {
	{"broker", RBP_OPT_STRING, &opt.broker, "URL",
	"the broker's address, http://HOST:PORT", NULL, true, 0, 0},
	{"listen", RBP_OPT_STRING, &opt.listen, "HOST:PORT",
	"address to serve memory on; port 0: any", NULL, true, 0, 0},
	{"memory", RBP_OPT_SIZE, &opt.memory, "SIZE",
	"memory to lend; reserved at the start", NULL, true, MIN_REGION, 0},
	{"region-size", RBP_OPT_SIZE, &opt.region_size, "SIZE",
	"unit of lending, a multiple of 1 MB", "64MB", false, MIN_REGION, MAX_REGION},
	{"id", RBP_OPT_STRING, &opt.id, "NAME",
	"this donor's name", "HOSTNAME:PORT", false, 0, 0},
	{"advertise", RBP_OPT_STRING, &opt.advertise, "HOST:PORT",
	"address that clients are told; port 0: the one listened on", "as --listen", false, 0, 0},
	{"transports", RBP_OPT_STRING, &opt.transports, "LIST",
	"what to serve: shm, tcp, or both, separated by a comma", "shm,tcp", false, 0, 0},
	{"token-file", RBP_OPT_STRING, &opt.token_file, "FILE",
	"file with the token that the broker wants", "none", false, 0, 0},
	{"min-free", RBP_OPT_SIZE, &opt.min_free, "SIZE",
	"give memory back when the machine has less available; 0: never", "0", false, 0, 0},
	{"reclaim-grace", RBP_OPT_INT, &opt.reclaim_grace, "SECONDS",
		"time that holders of leases have to give up regions that are wanted back",
	"10", false, 0, 3600},
	{"drain-timeout", RBP_OPT_INT, &opt.drain_timeout, "SECONDS",
	"time to wait for regions to be given back on SIGTERM", "60", false, 0, 86400},
	{"threads", RBP_OPT_INT, &opt.threads, "N",
	"serving threads", "2", false, 1, 64},
	{"spin-us", RBP_OPT_INT, &opt.spin_us, "MICROSECONDS",
		"how long a thread polls for the next request before it sleeps; 0: never",
	"200", false, 0, 10000},
	{"log-level", RBP_OPT_STRING, &log_level, "LEVEL",
	"debug, info, warning or error", "info", false, 0, 0},
	{NULL, RBP_OPT_FLAG, NULL, NULL, NULL, NULL, false, 0, 0}
};

static const RbpProgram program = {
	.name = "remote_bp_donor",
	.summary = "remote_bp_donor lends this machine's memory to PostgreSQL servers.",
	.usage = "--broker URL --listen HOST:PORT --memory SIZE [OPTION]...",
	.options = options
};

static void
on_stop(int signo)
{
	int			save_errno = errno;

	(void) signo;
	donor_control_stop();
	errno = save_errno;
}

static uint32_t
parse_transports(const char *list)
{
	char		copy[64];
	uint32_t	bits = 0;
	char	   *save = NULL;

	if (strlen(list) >= sizeof(copy))
		rbp_usage_error(&program, "--transports: \"%s\" is too long", list);
	strcpy(copy, list);
	for (char *name = strtok_r(copy, ", ", &save); name != NULL;
		 name = strtok_r(NULL, ", ", &save))
	{
		const RbpTransportOps *ops = rbp_transport_by_name(name);

		if (ops == NULL)
			rbp_usage_error(&program, "--transports: there is no transport \"%s\"", name);
		bits |= ops->bit;
	}
	if (bits == 0)
		rbp_usage_error(&program, "--transports: the list is empty");
	return bits;
}

int
main(int argc, char **argv)
{
	RbpLogLevel level;
	struct sigaction sa = {.sa_handler = on_stop};
	char		host[RBP_HOST_LEN];
	char		advertised[RBP_HOST_LEN];
	char		address[RBP_HOST_LEN + 16];
	char		id[RBP_DONOR_ID_LEN + 256];
	char		shm_name[RBP_SHM_NAME_LEN];
	uint16_t	port;
	uint16_t	advertised_port = 0;
	uint32_t	transports;
	sigset_t	signals;
	sigset_t	before;

	if (rbp_options_parse(&program, argc, argv) != argc)
		rbp_usage_error(&program, "there are too many arguments");
	if (!rbp_log_level_parse(log_level, &level))
		rbp_usage_error(&program, "--log-level: \"%s\" is not a level", log_level);
	if (!rbp_parse_hostport(opt.listen, host, sizeof(host), &port))
		rbp_usage_error(&program, "--listen: \"%s\" is not HOST:PORT", opt.listen);
	strcpy(advertised, host);
	if (opt.advertise != NULL &&
		!rbp_parse_hostport(opt.advertise, advertised, sizeof(advertised), &advertised_port))
		rbp_usage_error(&program, "--advertise: \"%s\" is not HOST:PORT", opt.advertise);
	if (opt.region_size % (UINT64_C(1) << 20) != 0)
		rbp_usage_error(&program, "--region-size must be a multiple of 1 MB");
	if (opt.memory < opt.region_size)
		rbp_usage_error(&program, "--memory must be at least one --region-size");
	if (opt.id != NULL && !rbp_valid_id(opt.id, RBP_DONOR_ID_LEN))
		rbp_usage_error(&program, "--id: \"%s\" is not a name (letters, digits and . _ : -, at most %d)",
						opt.id, RBP_DONOR_ID_LEN - 1);
	transports = parse_transports(opt.transports);
	rbp_log_init(program.name, level);
	if (!rbp_http_init())
		rbp_die("could not initialize libcurl");

	/* an address to listen on is not always one to connect to */
	if (advertised[0] == '\0' || strcmp(advertised, "0.0.0.0") == 0 ||
		strcmp(advertised, "::") == 0)
		if (gethostname(advertised, sizeof(advertised)) != 0)
			rbp_die("could not get the host name: %s", strerror(errno));
	advertised[sizeof(advertised) - 1] = '\0';

	/* only the main thread is to be interrupted by signals */
	signal(SIGPIPE, SIG_IGN);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	pthread_sigmask(SIG_BLOCK, &signals, &before);

	rbp_transport_init();
	donor_memory_init(opt.memory, opt.region_size);
	donor_lease_init(opt.min_free);
	donor_serve_init(host, &port, (transports & RBP_TRANSPORT_TCP) != 0,
					 (transports & RBP_TRANSPORT_SHM) != 0, shm_name,
					 opt.threads, opt.spin_us);
	pthread_sigmask(SIG_SETMASK, &before, NULL);

	/* the broker wants a port even of a donor that has none */
	if (advertised_port == 0)
		advertised_port = port != 0 ? port : 1;
	if (transports & RBP_TRANSPORT_TCP)
		rbp_log(RBP_LOG_INFO, "listening on %s",
				rbp_format_hostport(host, port, address, sizeof(address)));
	if (transports & RBP_TRANSPORT_SHM)
		rbp_log(RBP_LOG_INFO, "shared memory by @%s", shm_name);

	if (opt.id == NULL)
	{
		char		name[RBP_DONOR_ID_LEN];

		if (gethostname(name, sizeof(name) - 8) != 0)
			rbp_die("could not get the host name: %s", strerror(errno));
		name[sizeof(name) - 8] = '\0';
		snprintf(id, sizeof(id), "%s:%u", name, (unsigned) port);
		opt.id = id;
		if (!rbp_valid_id(id, RBP_DONOR_ID_LEN))
			rbp_die("the host name makes no donor name; use --id");
	}
	return donor_control_run(&opt, advertised, advertised_port, shm_name,
							 transports);
}
