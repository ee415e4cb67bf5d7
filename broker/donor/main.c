/*-------------------------------------------------------------------------
 *
 * main.c
 *	  Lends this machine's memory: reserves it, serves it to the holders of
 *	  leases, and follows the broker.
 *
 * memory	 regions: memfds, their reservation, zeroing, giving back
 * lease	 which lease may use which region, until when; fencing
 * serve	 sockets: handshake, reads, writes, over TCP and UNIX sockets
 * verbs	 RDMA: handshake, and MRs of each lease's regions
 * control the broker: registration, heartbeats, memory pressure
 *
 * Threads, locks, and the synchronization of requests and fences: see lease.h.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/common/http_client.h"
#include "broker/common/log.h"
#include "broker/common/options.h"
#include "broker/common/places.h"
#include "broker/common/secret.h"
#include "broker/common/signals.h"
#include "broker/donor/control.h"
#include "broker/donor/lease.h"
#include "broker/donor/memory.h"
#include "broker/donor/serve.h"
#include "broker/donor/verbs.h"
#include "common/status.h"
#include "common/text.h"
#include "common/urls.h"
#include "transport/peer.h"
#include "transport/transport.h"

#include <errno.h>
#include <netdb.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIN_REGION	(INT64_C(1) << 20)
#define MAX_REGION	(INT64_C(1) << 40)

static RbpDonorOptions opt = {
	.transports = "auto",
	.rdma_gid_index = -1,
	.region_size = UINT64_C(64) << 20,
	.min_free = UINT64_MAX,
	.lease_connections = 4096,
	.threads = 2,
	.spin_us = 200,
	.reclaim_grace = 10,
	.drain_timeout = 60,
};
static int	numa_node = -1;
static const char *huge_pages_name = "try";
static const char *shm_users;	/* NULL: the default */
static RbpDonorHugePages huge_pages;
static RbpLogLevel log_level = RBP_LOG_INFO;
static bool check_config;

static const RbpOption options[] = {
	{"config", RBP_OPT_CONFIG, NULL, "FILE",
	"file with options, NAME = VALUE in each line; the command line wins", NULL, false, 0, 0},
	{"check-config", RBP_OPT_FLAG, &check_config, NULL,
	"say whether the options are valid, then exit", NULL, false, 0, 0},
	{"broker", RBP_OPT_STRING, &opt.broker, "URL",
	"the broker, as in https://HOST:PORT; several are separated by commas", NULL, true, 0, 0},
	{"listen", RBP_OPT_ADDRESS, &opt.listen, "HOST:PORT",
	"address to serve memory on; port 0: any", NULL, true, 0, 0},
	{"memory", RBP_OPT_SIZE, &opt.memory, "SIZE",
	"memory to lend; reserved at the start", NULL, true, MIN_REGION, 0},
	{"region-size", RBP_OPT_SIZE, &opt.region_size, "SIZE",
	"unit of lending, a multiple of 1 MB", "64MB", false, MIN_REGION, MAX_REGION},
	{"id", RBP_OPT_STRING, &opt.id, "NAME",
	"this donor's name", "HOSTNAME:PORT", false, 0, 0},
	{"advertise", RBP_OPT_ADDRESS, &opt.advertise, "HOST:PORT",
	"address that clients are told; port 0: the one listened on", "as --listen", false, 0, 0},
	{"transports", RBP_OPT_STRING, &opt.transports, "LIST",
		"what to serve: shm, verbs, tcp, separated by commas; auto: all that can be",
	"auto", false, 0, 0},
	{"rdma-listen", RBP_OPT_ADDRESS, &opt.rdma_listen, "HOST:PORT",
	"address to serve RDMA on; port 0: any", "host of --listen, else of --advertise", false, 0, 0},
	{"rdma-advertise", RBP_OPT_ADDRESS, &opt.rdma_advertise, "HOST:PORT",
		"address that RDMA clients are told; port 0: the one listened on",
	"as --rdma-listen", false, 0, 0},
	{"rdma-device", RBP_OPT_STRING, &opt.rdma_device, "NAME",
	"the RDMA device to use", "any", false, 0, 0},
	{"rdma-port", RBP_OPT_INT, &opt.rdma_port, "N",
	"the RDMA device's port, from 1; 0: any", "0", false, 0, 255},
	{"rdma-gid-index", RBP_OPT_INT, &opt.rdma_gid_index, "N",
	"listen on the address of this entry of the port's GID table; -1: any", "-1", false, -1, 65535},
	{"token-file", RBP_OPT_STRING, &opt.token_file, "FILE",
	"file with the credential that the broker wants", "none", false, 0, 0},
	{"broker-ca", RBP_OPT_STRING, &opt.broker_ca, "FILE",
	"CAs that are believed about the broker if the credential has no pin", "the system's", false, 0, 0},
	{"huge-pages", RBP_OPT_STRING, &huge_pages_name, "WHEN",
	"take the memory in huge pages: try (as far as there are some), on or off", "try", false, 0, 0},
	{"numa-node", RBP_OPT_INT, &numa_node, "N",
	"NUMA node to take the memory from, as far as it has some; -1: that of the RDMA card", "-1", false, -1, DONOR_MAX_NODE},
	{"min-free", RBP_OPT_SIZE, &opt.min_free, "SIZE",
	"leave so much to others: do not start with less, and give memory back; 0: never", "a 20th of the machine's memory", false, 0, 0},
	{"reclaim-grace", RBP_OPT_INT, &opt.reclaim_grace, "SECONDS",
		"time that holders of leases have to give up regions that are wanted back",
	"10", false, 0, 3600},
	{"drain-timeout", RBP_OPT_INT, &opt.drain_timeout, "SECONDS",
	"time to wait for regions to be given back on SIGTERM", "60", false, 0, 86400},
	{"lease-connections", RBP_OPT_INT, &opt.lease_connections, "N",
	"connections that one server may have at once, with all its leases", "4096", false, 1, DONOR_MAX_CONNECTIONS},
	{"shm-users", RBP_OPT_STRING, &shm_users, "LIST",
		"users of this machine that may use shared memory: names or numbers, separated by commas",
	"the donor's, root, postgres", false, 0, 0},
	{"threads", RBP_OPT_INT, &opt.threads, "N",
	"serving threads", "2", false, 1, 64},
	{"spin-us", RBP_OPT_INT, &opt.spin_us, "MICROSECONDS",
		"how long a thread polls for the next request before it sleeps; 0: never",
	"200", false, 0, 10000},
	{"log-level", RBP_OPT_LEVEL, &log_level, "LEVEL",
	"debug, info, warning or error", "info", false, 0, 0},
	{NULL, RBP_OPT_FLAG, NULL, NULL, NULL, NULL, false, 0, 0}
};

static const RbpProgram program = {
	.name = "remote_bp_donor",
	.summary = "remote_bp_donor lends this machine's memory to PostgreSQL servers.",
	.usage = "[--config FILE] --broker URL --listen HOST:PORT --memory SIZE [OPTION]...",
	.options = options
};

static char *
reread_broker(void)
{
	return rbp_config_reread(&program, "broker");
}

static void
on_signal(int signo)
{
	int			save_errno = errno;

	if (signo == SIGHUP)
		donor_control_reload();
	else
		donor_control_stop();
	errno = save_errno;
}

/* Parse --transports.  *automatic: use those that are available. */
static uint32_t
parse_transports(const char *list, bool *automatic)
{
	char		copy[64];
	uint32_t	bits = 0;
	char	   *save = NULL;

	*automatic = strcmp(list, "auto") == 0;
	if (*automatic)
		return RBP_TRANSPORT_SHM | RBP_TRANSPORT_TCP | RBP_TRANSPORT_VERBS;
	if (strlen(list) >= sizeof(copy))
		rbp_option_error(&program, "transports", "\"%s\" is too long", list);
	strcpy(copy, list);
	for (char *name = strtok_r(copy, ", ", &save); name != NULL;
		 name = strtok_r(NULL, ", ", &save))
	{
		const RbpTransportOps *ops = rbp_transport_by_name(name);

		if (ops == NULL)
			rbp_option_error(&program, "transports", "there is no transport \"%s\"", name);
		bits |= ops->bit;
	}
	if (bits == 0)
		rbp_option_error(&program, "transports", "the list is empty");
	return bits;
}

/* Parse --huge-pages. */
static RbpDonorHugePages
parse_huge_pages(const char *name)
{
	if (strcmp(name, "try") == 0)
		return DONOR_HUGE_TRY;
	if (strcmp(name, "on") == 0)
		return DONOR_HUGE_ON;
	if (strcmp(name, "off") != 0)
		rbp_option_error(&program, "huge-pages", "\"%s\" is not try, on or off", name);
	return DONOR_HUGE_OFF;
}

static void
admit_shm_user(const char *name)
{
	char	   *end;
	unsigned long number = strtoul(name, &end, 10);
	const struct passwd *user = *end != '\0' ? getpwnam(name) : NULL;

	if ((*end != '\0' && user == NULL) || number >= UINT32_MAX)
		rbp_option_error(&program, "shm-users", "there is no user \"%s\"", name);
	if (donor_shm_nusers == DONOR_MAX_SHM_USERS)
		rbp_option_error(&program, "shm-users", "there are more than %d", DONOR_MAX_SHM_USERS);
	donor_shm_users[donor_shm_nusers++] = user != NULL ? user->pw_uid : (uid_t) number;
}

/* Look up --shm-users. */
static void
admit_shm_users(void)
{
	char	   *copy = shm_users != NULL ? strdup(shm_users) : NULL;
	char	   *save = NULL;

	for (char *name = copy != NULL ? strtok_r(copy, ", ", &save) : NULL; name != NULL;
		 name = strtok_r(NULL, ", ", &save))
		admit_shm_user(name);
	free(copy);
	if (shm_users != NULL && donor_shm_nusers == 0)
		rbp_option_error(&program, "shm-users", "the list is empty");
	if (shm_users != NULL)
		return;
	donor_shm_users[donor_shm_nusers++] = geteuid();
	donor_shm_users[donor_shm_nusers++] = 0;
	if (getpwnam("postgres") != NULL)
		admit_shm_user("postgres");
}

/* Is this an address to listen on that cannot be connected to? */
static bool
is_wildcard(const char *host)
{
	return host[0] == '\0' || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static void
configure_rdma(void)
{
	RbpDeviceConfig config = RBP_DEVICE_CONFIG_DEFAULT;

	if (opt.rdma_device != NULL)
	{
		if (strlen(opt.rdma_device) >= sizeof(config.device))
			rbp_option_error(&program, "rdma-device", "\"%s\" is too long", opt.rdma_device);
		strcpy(config.device, opt.rdma_device);
	}
	config.port = opt.rdma_port;
	config.gid_index = opt.rdma_gid_index;
	rbp_verbs_configure(&config);
}

/* Parse the command line, and check what does not depend on the machine. */
static void
parse_options(int argc, char **argv)
{
	if (rbp_options_parse(&program, argc, argv) != argc)
		rbp_usage_error(&program, "there are too many arguments");
	if (!rbp_urls_valid(opt.broker))
		rbp_option_error(&program, "broker", "\"%s\" is not a URL such as https://HOST:PORT", opt.broker);
	if (opt.rdma_advertise.given && is_wildcard(opt.rdma_advertise.host))
		rbp_option_error(&program, "rdma-advertise", "clients cannot connect to any address");
	if (opt.region_size % (UINT64_C(1) << 20) != 0)
		rbp_option_error(&program, "region-size", "it must be a multiple of 1 MB");
	huge_pages = parse_huge_pages(huge_pages_name);
	if (huge_pages == DONOR_HUGE_ON && opt.region_size % (UINT64_C(2) << 20) != 0)
		rbp_option_error(&program, "huge-pages", "on needs a --region-size that is a multiple of 2 MB");
	if (opt.memory < opt.region_size)
		rbp_option_error(&program, "memory", "it must be at least one --region-size");
	if (opt.id != NULL && !rbp_valid_id(opt.id, RBP_DONOR_ID_LEN))
		rbp_option_error(&program, "id", "\"%s\" is not a name (letters, digits and . _ : -, at most %d)",
						 opt.id, RBP_DONOR_ID_LEN - 1);
}

/* Get this host's name.  len: enough for any (HOST_NAME_MAX). */
static void
get_host_name(char *name, size_t len)
{
	if (gethostname(name, len - 1) != 0)
		rbp_die("could not get the host name: %s", strerror(errno));
	name[len - 1] = '\0';
}

/*
 * Signals are for the main thread only: they are blocked until it unblocks
 * those that are returned, after all threads have been started.
 */
static sigset_t
set_signals(void)
{
	struct sigaction sa = {.sa_handler = on_signal};
	sigset_t	signals = rbp_signals_init();

	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGHUP, &sa, NULL);
	return signals;
}

/*
 * Find the address to serve RDMA on: one that this donor was told to offer, or
 * that of the named device or GID.  "" and wildcards mean any, which is not
 * offered unasked.  Returns false if there is none, with the reason in *why.
 */
static bool
rdma_address(bool automatic, char host[RBP_HOST_LEN], const char **why)
{
	struct sockaddr_storage addr;
	socklen_t	len;

	if (opt.rdma_listen.given)
		strcpy(host, opt.rdma_listen.host);
	else if (!is_wildcard(opt.listen.host))
		strcpy(host, opt.listen.host);
	else if (opt.rdma_advertise.given)
		strcpy(host, opt.rdma_advertise.host);
	else
		strcpy(host, opt.advertise.given ? opt.advertise.host : "");

	if ((!opt.rdma_listen.given && (opt.rdma_device != NULL || opt.rdma_gid_index >= 0)) ||
		is_wildcard(host))
	{
		*why = "no RDMA device has the given name, port and GID, and an address";
		if (rbp_verbs_source_address(AF_UNSPEC, &addr, &len) != RBP_OK)
			return false;
		if (len > 0 &&
			getnameinfo((struct sockaddr *) &addr, len, host, RBP_HOST_LEN,
						NULL, 0, NI_NUMERICHOST) != 0)
			return false;
	}
	*why = "no address was given to offer it on; use --rdma-listen, or a host in --listen or --advertise";
	return !is_wildcard(host) || !automatic || opt.rdma_listen.given;
}

/*
 * Serve RDMA on this address of the host, and set the one that clients use.
 * ep->host is advertised for a wildcard address.  Returns false if RDMA is not
 * served, with the reason in *why.
 */
static bool
serve_rdma(RbpEndpoint *ep, const char *host, const char **why)
{
	uint16_t	port = opt.rdma_listen.port;
	char		text[RBP_HOST_LEN + 16];

	if (!donor_verbs_init(host, &port, why))
		return false;
	rbp_log(RBP_LOG_INFO, "RDMA on %s", rbp_format_hostport(host, port, text, sizeof(text)));
	strcpy(ep->rdma_host, opt.rdma_advertise.given ? opt.rdma_advertise.host :
		   is_wildcard(host) ? ep->host : host);
	ep->rdma_port = opt.rdma_advertise.port != 0 ? opt.rdma_advertise.port : port;
	return true;
}

/* Get memory, and serve RDMA on it if ep has that transport and it can be. */
static void
start_memory(RbpEndpoint *ep, bool automatic)
{
	bool		wanted = (ep->transports & RBP_TRANSPORT_VERBS) != 0;
	char		host[RBP_HOST_LEN];
	const char *why;
	bool		found = wanted && rdma_address(automatic, host, &why);

	if (opt.min_free == UINT64_MAX)
		opt.min_free = donor_memory_default_min_free();
	if (numa_node >= 0 && !donor_memory_has_node(numa_node))
		rbp_die("--numa-node: this machine has no NUMA node %d", numa_node);
	if (numa_node < 0 && found)
		numa_node = donor_verbs_numa_node(host);
	donor_memory_init(opt.memory, opt.region_size, opt.min_free, huge_pages, numa_node);
	if (!wanted || (found && serve_rdma(ep, host, &why)))
		return;

	if (!automatic)
		rbp_die("could not serve RDMA: %s", why);
	/* only worth a warning on a machine with a device */
	rbp_log(rbp_verbs_present() ? RBP_LOG_WARNING : RBP_LOG_INFO, "without RDMA: %s", why);
	ep->transports &= ~(uint32_t) RBP_TRANSPORT_VERBS;
}

/* Serve by all transports of ep; *port is set to the TCP port. */
static void
start_serving(RbpEndpoint *ep, uint16_t *port)
{
	char		text[RBP_HOST_LEN + 16];

	donor_lease_set_rdma(&donor_verbs_rdma);
	/* nobody has so many that there is none for others */
	donor_lease_init(opt.min_free, opt.lease_connections, donor_serve_places() - RBP_SHARE);
	*port = opt.listen.port;
	donor_serve_init(opt.listen.host, port, ep->transports, ep->shm_name, opt.threads,
					 opt.spin_us);
	if (ep->transports & RBP_TRANSPORT_TCP)
	{
		ep->port = opt.advertise.port != 0 ? opt.advertise.port : *port;
		rbp_log(RBP_LOG_INFO, "listening on %s",
				rbp_format_hostport(opt.listen.host, *port, text, sizeof(text)));
	}
	if (ep->transports & RBP_TRANSPORT_SHM)
		rbp_log(RBP_LOG_INFO, "shared memory by @%s", ep->shm_name);
}

/*
 * This donor's name without --id.  A host name that is too long for it is
 * shortened, and told from others that begin alike by its hash (FNV-1a).
 */
static const char *
default_id(uint16_t port)
{
	static char id[RBP_DONOR_ID_LEN];
	char		name[RBP_HOST_LEN];
	uint32_t	hash = UINT32_C(2166136261);

	get_host_name(name, sizeof(name));
	for (const char *c = name; *c != '\0'; c++)
		hash = (hash ^ (unsigned char) *c) * UINT32_C(16777619);
	if (snprintf(id, sizeof(id), "%s:%u", name, (unsigned) port) >= (int) sizeof(id))
		snprintf(id, sizeof(id), "%.48s-%08x:%u", name, (unsigned) hash, (unsigned) port);
	if (!rbp_valid_id(id, sizeof(id)))
		rbp_die("the host name is not a valid donor name; use --id");
	return id;
}

int
main(int argc, char **argv)
{
	RbpEndpoint ep = {0};
	bool		automatic;
	uint16_t	port;
	sigset_t	signals;

	parse_options(argc, argv);
	opt.reread_broker = reread_broker;
	ep.transports = parse_transports(opt.transports, &automatic);
	configure_rdma();
	admit_shm_users();
	rbp_config_checked(&program, check_config);
	rbp_log_init(program.name, log_level);
	rbp_http_init();

	strcpy(ep.host, opt.advertise.given ? opt.advertise.host : opt.listen.host);
	if (is_wildcard(ep.host))
		get_host_name(ep.host, sizeof(ep.host));
	strcpy(ep.boot_id, rbp_transport_boot_id());

	signals = set_signals();
	rbp_transport_init();
	start_memory(&ep, automatic);
	rbp_hide_memory();			/* and not before: it changes its
								 * oom_score_adj */
	start_serving(&ep, &port);
	pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
	if (opt.id == NULL)
		opt.id = default_id(port);
	return donor_control_run(&opt, &ep);
}
