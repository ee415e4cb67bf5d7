/*-------------------------------------------------------------------------
 *
 * test_verbs_common.c
 *	  Which address leads through a configured device, by a directory in place
 *	  of sysfs; options of an id; the proof of a lease.
 *
 * The network device is the loopback interface, which every machine has.
 *
 *-------------------------------------------------------------------------
 */
#include "tap.h"

#include "common/status.h"
#include "transport/peer.h"
#include "transport/sock.h"
#include "transport/transport.h"
#include "wire/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ftw.h>
#include <net/if.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/rbp-sysfs.XXXXXX";

/* In place of librdmacm's: what was set, and whether it can be. */
static struct
{
	int			tos;
	int			ack_timeout;
	int			tos_error;
	int			ack_timeout_error;
}			options;

int
rdma_set_option(struct rdma_cm_id *id, int level, int optname, void *optval,
				size_t optlen)
{
	uint8_t		value = *(uint8_t *) optval;

	(void) id;
	if (level != RDMA_OPTION_ID || optlen != 1)
		abort();
	if (optname == RDMA_OPTION_ID_TOS)
		options.tos = value;
	else if (optname == RDMA_OPTION_ID_ACK_TIMEOUT)
		options.ack_timeout = value;
	else
		abort();
	errno = optname == RDMA_OPTION_ID_TOS ? options.tos_error : options.ack_timeout_error;
	return errno != 0 ? -1 : 0;
}

static void
put(const char *path, const char *text)
{
	char		full[512];
	FILE	   *f;

	snprintf(full, sizeof(full), "%s/%s", root, path);
	for (char *slash = full + 1; (slash = strchr(slash, '/')) != NULL; slash++)
	{
		*slash = '\0';
		(void) mkdir(full, 0700);
		*slash = '/';
	}
	f = fopen(full, "w");
	if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0)
	{
		printf("Bail out! cannot write %s\n", full);
		exit(1);
	}
}

static int
remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void) st;
	(void) type;
	(void) ftw;
	return remove(path);
}

/* A RoCE device, rdma0, and two more ports of others. */
static void
make_sysfs(void)
{
	if (mkdtemp(root) == NULL)
		exit(1);
	rbp_verbs_sysfs = root;
	put("rdma0/ports/1/gids/0", "fe80:0000:0000:0000:0200:00ff:fe00:0001\n");
	put("rdma0/ports/1/gid_attrs/ndevs/0", "lo\n");
	put("rdma0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:7f00:0005\n");
	put("rdma0/ports/1/gid_attrs/ndevs/1", "lo\n");
	put("rdma0/ports/1/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000\n");
	put("rdma0/ports/1/gid_attrs/ndevs/2", "");
	put("rdma0/ports/1/gids/3", "2001:0db8:0000:0000:0000:0000:0000:0007\n");
	put("rdma0/ports/1/gid_attrs/ndevs/3", "lo\n");
	put("rdma0/ports/1/gids/4", "fe80:0000:0000:0000:0200:00ff:fe00:0002\n");
	put("rdma0/ports/1/gid_attrs/ndevs/4", "no-such-device\n");
	put("rdma0/ports/1/gids/5", "nonsense\n");
	put("rdma0/ports/1/gid_attrs/ndevs/5", "lo\n");

	/* InfiniBand: GIDs are no addresses, and a port's device is beside it */
	put("ib0/ports/1/gids/0", "fe80:0000:0000:0000:0002:c903:0001:0001\n");
	put("ib0/ports/2/gids/0", "fe80:0000:0000:0000:0002:c903:0001:0002\n");
	put("ib0/device/net/lo/dev_port", "1\n");
}

/* The address as text; "" none is needed, "-" an error. */
static const char *
source(const char *device, int port, int gid_index, int family)
{
	static char text[INET6_ADDRSTRLEN];
	RbpDeviceConfig config = RBP_DEVICE_CONFIG_DEFAULT;
	struct sockaddr_storage addr;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
	socklen_t	len = 99;

	snprintf(config.device, sizeof(config.device), "%s", device);
	config.port = port;
	config.gid_index = gid_index;
	rbp_verbs_configure(&config);
	memset(&addr, 0xEE, sizeof(addr));
	switch (rbp_verbs_source_address(family, &addr, &len))
	{
		case RBP_OK:
			break;
		case RBP_INVALID:
			return "-";
		default:
			return "?";
	}
	if (len == 0)
		return "";
	memcpy(&v4, &addr, sizeof(v4));
	memcpy(&v6, &addr, sizeof(v6));
	if (addr.ss_family == AF_INET && len == sizeof(v4) && v4.sin_port == 0)
		inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
	else if (addr.ss_family == AF_INET6 && len == sizeof(v6) && v6.sin6_port == 0)
	{
		inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
		if (v6.sin6_scope_id != 0)
			snprintf(text + strlen(text), sizeof(text) - strlen(text), "%%%u", v6.sin6_scope_id);
	}
	else
		return "?";
	return text;
}

static void
is(const char *got, const char *expected, const char *what)
{
	if (!ok(strcmp(got, expected) == 0, "%s", what))
		diag("  got \"%s\", expected \"%s\"", got, expected);
}

static void
test_source_address(void)
{
	char		link_local[64];

	snprintf(link_local, sizeof(link_local), "fe80::200:ff:fe00:1%%%u", if_nametoindex("lo"));
	is(source("", 0, -1, AF_INET), "", "nothing configured, nothing needed");
	is(source("rdma0", 0, -1, AF_INET), "127.0.0.1", "a device: its first address");
	is(source("rdma0", 1, -1, AF_UNSPEC), "127.0.0.1", "of any family");
	is(source("rdma0", 2, -1, AF_INET), "-", "not of a port that it does not have");
	is(source("rdma1", 0, -1, AF_INET), "-", "nor of a device that is not there");
	is(source("../rdma0", 0, -1, AF_INET), "-", "nor of a path");
	is(source("rdma0", 0, 1, AF_INET), "127.0.0.5", "a GID that is an IPv4 address");
	is(source("rdma0", 0, 1, AF_INET6), "-", "is no IPv6 address");
	is(source("rdma0", 0, 3, AF_INET6), "2001:db8::7", "one that is an IPv6 address");
	is(source("rdma0", 0, 3, AF_INET), "-", "is no IPv4 address");
	is(source("rdma0", 0, 0, AF_INET6), link_local, "a link-local one has its interface with it");
	is(source("rdma0", 0, 4, AF_INET6), "-", "or is of no use");
	is(source("rdma0", 0, 2, AF_UNSPEC), "-", "an empty place in the table is none");
	is(source("rdma0", 0, 5, AF_UNSPEC), "-", "nor is nonsense");
	is(source("rdma0", 0, 99, AF_UNSPEC), "-", "nor what is behind the table");
	is(source("", 1, 1, AF_INET), "127.0.0.5", "a GID of whichever device has it");
	is(source("ib0", 2, -1, AF_INET), "127.0.0.1", "InfiniBand: the address of the port's network device");
	is(source("ib0", 1, -1, AF_INET), "-", "not of the other port's");
	is(source("ib0", 2, 0, AF_UNSPEC), "-", "its GIDs are no addresses");
}

/* A link-local address of a donor names the interface that leads to it. */
static void
test_scopes(void)
{
	struct sockaddr_storage addr;
	struct sockaddr_in6 v6;
	socklen_t	len;

	ok(rbp_sock_address("fe80::1%lo", 7, &addr, &len) && len == sizeof(v6), "an address with a scope");
	memcpy(&v6, &addr, sizeof(v6));
	ok(v6.sin6_scope_id == if_nametoindex("lo") && v6.sin6_port == htons(7) &&
	   IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr), "has its interface with it");
	ok(!rbp_sock_address("fe80::1%no-such-device", 7, &addr, &len), "an interface that is not there is none");
	ok(!rbp_sock_address("%lo", 7, &addr, &len), "nor is a scope an address");
	ok(!rbp_sock_address("fe80:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0001%lo", 7, &addr, &len),
	   "nor is what is too long");
}

/* What is there, with a port, and one that is active; by device and port. */
static void
test_present(void)
{
	static const struct
	{
		const char *type;
		const char *state;
		const char *device;
		int			port;
		bool		present;
		bool		active;
		const char *what;
	}			cases[] = {
		{"1: CA\n", "4: ACTIVE\n", "", 0, true, true, "InfiniBand or RoCE, active"},
		{"1: CA\n", "1: DOWN\n", "", 0, true, false, "its port is down"},
		{"1: CA\n", "2: INIT\n", "", 0, true, false, "its port has no subnet manager"},
		{"1: CA\n", "4: ACTIVE\n", "rdma0", 1, true, true, "device and port are the configured ones"},
		{"1: CA\n", "4: ACTIVE\n", "", 2, true, false, "another port is configured"},
		{"1: CA\n", "4: ACTIVE\n", "rdma1", 0, false, false, "another device is configured"},
		{"4: RNIC\n", "4: ACTIVE\n", "", 0, false, false, "iWARP"},
		{"5: usNIC\n", "4: ACTIVE\n", "", 0, false, false, "usNIC"},
		{"7: <unknown>\n", "4: ACTIVE\n", "", 0, false, false, "EFA"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		RbpDeviceConfig config = RBP_DEVICE_CONFIG_DEFAULT;

		put("rdma0/node_type", cases[i].type);
		put("rdma0/ports/1/state", cases[i].state);
		snprintf(config.device, sizeof(config.device), "%s", cases[i].device);
		config.port = cases[i].port;
		rbp_verbs_configure(&config);
		ok(rbp_verbs_present() == cases[i].present, "%s: present %d", cases[i].what, cases[i].present);
		ok(rbp_verbs_active() == cases[i].active, "%s: active %d", cases[i].what, cases[i].active);
	}
}

static void
test_wanted(void)
{
	struct ibv_device device = {.node_type = IBV_NODE_CA,.transport_type = IBV_TRANSPORT_IB,.name = "rdma0"};
	struct ibv_context context = {.device = &device};
	struct rdma_cm_id id = {.verbs = &context,.port_num = 2};
	RbpDeviceConfig config = RBP_DEVICE_CONFIG_DEFAULT;

	rbp_verbs_configure(&config);
	ok(rbp_verbs_is_configured(&id), "any device is wanted");
	device.transport_type = IBV_TRANSPORT_IWARP;
	ok(rbp_verbs_check_device(&id) == RBP_BAD_DEVICE && !rbp_verbs_is_configured(&id), "but for iWARP");
	device.transport_type = IBV_TRANSPORT_UNSPECIFIED;
	ok(rbp_verbs_check_device(&id) == RBP_BAD_DEVICE, "and EFA");
	device.transport_type = IBV_TRANSPORT_USNIC_UDP;
	ok(rbp_verbs_check_device(&id) == RBP_BAD_DEVICE, "and usNIC");
	device.transport_type = IBV_TRANSPORT_IB;
	device.node_type = IBV_NODE_UNSPECIFIED;
	ok(rbp_verbs_check_device(&id) == RBP_BAD_DEVICE, "and what is no host's channel adapter");
	device.node_type = IBV_NODE_CA;
	config.port = 2;
	rbp_verbs_configure(&config);
	ok(rbp_verbs_is_configured(&id), "this port is");
	config.port = 1;
	rbp_verbs_configure(&config);
	ok(rbp_verbs_check_device(&id) == RBP_OTHER_DEVICE, "another is not");
	config.port = 0;
	strcpy(config.device, "rdma0");
	rbp_verbs_configure(&config);
	ok(rbp_verbs_is_configured(&id), "this device is");
	strcpy(config.device, "rdma01");
	rbp_verbs_configure(&config);
	ok(rbp_verbs_check_device(&id) == RBP_OTHER_DEVICE, "another is not");
	id.verbs = NULL;
	ok(rbp_verbs_check_device(&id) == RBP_OTHER_DEVICE, "nor is none");
}

static void
test_options(void)
{
	RbpDeviceConfig config = RBP_DEVICE_CONFIG_DEFAULT;
	struct rdma_cm_id id;

	memset(&id, 0, sizeof(id));
	options.tos = options.ack_timeout = -1;
	rbp_verbs_configure(&config);
	ok(rbp_verbs_set_options(&id) == RBP_OK && options.tos == -1 && options.ack_timeout == 10,
	   "an ack timeout is always set, a traffic class is not");
	config.traffic_class = 0;
	config.ack_timeout = 18;
	rbp_verbs_configure(&config);
	ok(rbp_verbs_set_options(&id) == RBP_OK && options.tos == 0 && options.ack_timeout == 18,
	   "a configured traffic class is, even 0");
	options.ack_timeout_error = ENOSYS;
	ok(rbp_verbs_set_options(&id) == RBP_OK, "a kernel may know no ack timeout");
	options.ack_timeout_error = EINVAL;
	ok(rbp_verbs_set_options(&id) == RBP_INVALID, "any other refusal is an error");
	options.ack_timeout_error = ENOMEM;
	ok(rbp_verbs_set_options(&id) == RBP_NOMEM, "as is a lack of memory");
	options.ack_timeout_error = 0;
	options.tos_error = ENOSYS;
	ok(rbp_verbs_set_options(&id) == RBP_INVALID, "a traffic class that cannot be set is an error");
	options.tos_error = ENOMEM;
	ok(rbp_verbs_set_options(&id) == RBP_NOMEM, "likewise");
}

static void
test_proof(void)
{
	/* the first half of the SHA-256 of "abc" */
	static const uint8_t abc[RBP_VERBS_DIGEST_LEN] = {
		0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23
	};
	uint8_t		key[RBP_SECRET_LEN] = {1, 2, 3};
	RbpWireVerbsHello hello = {.nonce = {4, 5, 6}};
	RbpWireVerbsWelcome welcome = {.regions = 7,.region_size = 8,.table_key = 9,.table_address = 10};
	uint8_t		macs[12][RBP_MAC_LEN];
	struct sockaddr_in v4 = {.sin_family = AF_INET,.sin_port = htons(1)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
	struct sockaddr other = {.sa_family = AF_UNIX};
	const struct sockaddr *client = (struct sockaddr *) &v4;
	unsigned int same = 0;

	ok(rbp_verbs_lease_digest("abc", hello.digest) && memcmp(hello.digest, abc, sizeof(abc)) == 0,
	   "a lease's digest is that of its id");

	inet_pton(AF_INET, "10.1.2.3", &v4.sin_addr);
	inet_pton(AF_INET6, "::ffff:10.1.2.3", &v6.sin6_addr);
	memset(macs, 0, sizeof(macs));
	ok(rbp_verbs_mac(key, &hello, client, 17, NULL, macs[0]), "a MAC of an IPv4 client");
	v4.sin_port = htons(2);
	ok(rbp_verbs_mac(key, &hello, client, 17, NULL, macs[1]) &&
	   memcmp(macs[0], macs[1], sizeof(macs[0])) == 0, "its port does not matter");
	ok(rbp_verbs_mac(key, &hello, (struct sockaddr *) &v6, 17, NULL, macs[1]) &&
	   memcmp(macs[0], macs[1], sizeof(macs[0])) == 0, "nor that its address is mapped into IPv6");
	ok(!rbp_verbs_mac(key, &hello, &other, 17, NULL, macs[1]), "other addresses have none");

	rbp_verbs_mac(key, &hello, client, 18, NULL, macs[1]);
	v4.sin_addr.s_addr ^= htonl(1);
	rbp_verbs_mac(key, &hello, client, 17, NULL, macs[2]);
	v6.sin6_addr.s6_addr[0] = 1;
	rbp_verbs_mac(key, &hello, (struct sockaddr *) &v6, 17, NULL, macs[3]);
	v4.sin_addr.s_addr ^= htonl(1);
	key[31] ^= 1;
	rbp_verbs_mac(key, &hello, client, 17, NULL, macs[4]);
	key[31] ^= 1;
	hello.nonce[15] ^= 1;
	rbp_verbs_mac(key, &hello, client, 17, NULL, macs[5]);
	hello.nonce[15] ^= 1;
	hello.digest[15] ^= 1;
	rbp_verbs_mac(key, &hello, client, 17, NULL, macs[6]);
	for (int i = 7; i < 12; i++)
	{
		/* the REP's, of which each word counts */
		welcome.regions += i == 8;
		welcome.region_size += i == 9;
		welcome.table_key += i == 10;
		welcome.table_address += i == 11;
		rbp_verbs_mac(key, &hello, client, 17, &welcome, macs[i]);
	}
	for (int i = 0; i < 12; i++)
		for (int j = 0; j < i; j++)
			same += memcmp(macs[i], macs[j], sizeof(macs[i])) == 0;
	is_u64(same, 0, "with queue pair, address, key, nonce, lease or answer another it is another");
}

int
main(void)
{
	make_sysfs();
	test_source_address();
	test_scopes();
	test_present();
	test_wanted();
	test_options();
	test_proof();
	nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	return done_testing();
}
