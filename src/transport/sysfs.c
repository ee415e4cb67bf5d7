/*-------------------------------------------------------------------------
 *
 * sysfs.c
 *	  RDMA devices of this host, as sysfs shows them, and which of them are to
 *	  be used: what is known of them without a library.  See transport/peer.h.
 *
 * Devices, ports, GIDs and their network devices are looked up in sysfs, which
 * needs no privilege and opens no device:
 *
 *	  DEV/node_type						"1: CA" for InfiniBand and RoCE
 *	  DEV/ports/P/state					"4: ACTIVE", or another
 *	  DEV/ports/P/gids/I				the GID; zeroes or an error: none
 *	  DEV/ports/P/gid_attrs/ndevs/I		its network device (RoCE)
 *	  DEV/device/net/NAME/dev_port		the device's network devices (IPoIB), and
 *										of which port they are, from 0
 *
 * The configuration is plain memory; it is written only while no thread
 * connects.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/status.h"
#include "transport/peer.h"
#include "transport/transport.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As sysfs has them; the same numbers as in libibverbs */
#define NODE_TYPE_CA	1
#define PORT_ACTIVE		4

/* Tests use a directory tree of their own. */
const char *rbp_verbs_sysfs = "/sys/class/infiniband";

#define SCAN_NS		INT64_C(1000000000)

static RbpDeviceConfig config = RBP_DEVICE_CONFIG_DEFAULT;

/*
 * Time of the last scan of sysfs, in ns; 0: none yet.  Its lowest bits are the
 * result, so that both change together.
 */
#define SCAN_PRESENT	INT64_C(1)	/* a device was found */
#define SCAN_ACTIVE		INT64_C(2)	/* ... with an active port */

static _Atomic int64_t last_scan;

void
rbp_verbs_configure(const RbpDeviceConfig *new_config)
{
	config = *new_config;
	atomic_store(&last_scan, 0);
}

const RbpDeviceConfig *
rbp_verbs_config(void)
{
	return &config;
}

/*
 * ---- devices ----------------------------------------------------------------
 */

/* Build a path below sysfs.  Returns false if it is too long. */
__attribute__((format(printf, 2, 3)))
static bool
sysfs_path(char path[PATH_MAX], const char *fmt,...)
{
	int			n = snprintf(path, PATH_MAX, "%s/", rbp_verbs_sysfs);
	va_list		args;
	int			more;

	if (n < 0 || n >= PATH_MAX)
		return false;
	va_start(args, fmt);
	more = vsnprintf(path + n, (size_t) (PATH_MAX - n), fmt, args);
	va_end(args);
	return more >= 0 && more < PATH_MAX - n;
}

bool
rbp_read_line(const char *path, char *line, size_t size)
{
	int			fd = open(path, O_RDONLY | O_CLOEXEC);
	int			save_errno;
	ssize_t		n;

	if (fd < 0)
		return false;
	n = read(fd, line, size - 1);
	save_errno = errno;
	close(fd);
	errno = save_errno;
	if (n < 0)
		return false;
	line[n] = '\0';
	line[strcspn(line, "\n")] = '\0';
	return true;
}

/* Called for a device (port 0) and for each of its ports; true ends the walk. */
typedef bool (*Visit) (const char *device, int port, void *arg);

/* The kernel numbers ports from 1, without a gap. */
static bool
visit_ports(const char *device, Visit visit, void *arg)
{
	char		path[PATH_MAX];
	bool		ended = visit(device, 0, arg);

	for (int port = 1; !ended && sysfs_path(path, "%s/ports/%d", device, port) &&
		 access(path, F_OK) == 0; port++)
		ended = (config.port == 0 || config.port == port) && visit(device, port, arg);
	return ended;
}

/* Visit the configured device, or all, with the configured port, or all. */
static void
visit_devices(Visit visit, void *arg)
{
	DIR		   *dir = opendir(rbp_verbs_sysfs);
	bool		ended = false;
	struct dirent *entry;

	while (dir != NULL && !ended && (entry = readdir(dir)) != NULL)
		ended = entry->d_name[0] != '.' &&
			(config.device[0] == '\0' || strcmp(entry->d_name, config.device) == 0) &&
			visit_ports(entry->d_name, visit, arg);
	if (dir != NULL)
		closedir(dir);
}

/* *arg: SCAN_* bits */
static bool
scan_port(const char *device, int port, void *arg)
{
	int64_t    *found = arg;
	char		path[PATH_MAX];
	char		text[16];

	if (!sysfs_path(path, "%s/node_type", device) ||
		!rbp_read_line(path, text, sizeof(text)) || atoi(text) != NODE_TYPE_CA)
		return false;
	*found |= SCAN_PRESENT;
	if (port > 0 && sysfs_path(path, "%s/ports/%d/state", device, port) &&
		rbp_read_line(path, text, sizeof(text)) && atoi(text) == PORT_ACTIVE)
		*found |= SCAN_ACTIVE;
	return (*found & SCAN_ACTIVE) != 0;
}

/* The result of a scan that is not older than SCAN_NS. */
static int64_t
scan(void)
{
	int64_t		now = rbp_now_ns();
	int64_t		last = atomic_load_explicit(&last_scan, memory_order_relaxed);
	int64_t		found = 0;

	if (last != 0 && now - last < SCAN_NS)
		return last;
	visit_devices(scan_port, &found);
	last = (now & ~(SCAN_PRESENT | SCAN_ACTIVE)) | found;
	atomic_store_explicit(&last_scan, last, memory_order_relaxed);
	return last;
}

bool
rbp_verbs_present(void)
{
	return (scan() & SCAN_PRESENT) != 0;
}

bool
rbp_verbs_active(void)
{
	return (scan() & SCAN_ACTIVE) != 0;
}

/*
 * ---- addresses --------------------------------------------------------------
 */

/* Search parameters and result */
typedef struct Search
{
	int			family;			/* AF_UNSPEC: any */
	struct ifaddrs *addresses;	/* addresses of this host */
	struct sockaddr_storage *addr;
	socklen_t  *len;			/* 0: nothing found yet */
	bool		link_local;		/* only a link-local address was found so far */
} Search;

static void
found_address(Search *s, const struct sockaddr *addr, bool link_local)
{
	*s->len = addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
		: sizeof(struct sockaddr_in6);
	memset(s->addr, 0, sizeof(*s->addr));
	memcpy(s->addr, addr, *s->len);
	s->link_local = link_local;
}

static bool
satisfied(const Search *s)
{
	return *s->len != 0 && !s->link_local;
}

/*
 * Find the first address of a network device; a link-local one if there is no
 * other.
 */
static void
search_netdev(Search *s, const char *netdev)
{
	for (struct ifaddrs *i = s->addresses; i != NULL && !satisfied(s); i = i->ifa_next)
	{
		bool		link_local = false;

		if (i->ifa_addr == NULL || strcmp(i->ifa_name, netdev) != 0)
			continue;
		if (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6)
			continue;
		if (s->family != AF_UNSPEC && s->family != i->ifa_addr->sa_family)
			continue;
		if (i->ifa_addr->sa_family == AF_INET6)
		{
			struct sockaddr_in6 v6;

			memcpy(&v6, i->ifa_addr, sizeof(v6));
			link_local = IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
		}
		if (!link_local || *s->len == 0)
			found_address(s, i->ifa_addr, link_local);
	}
}

/*
 * Network device of a GID; "" if it has none.  Returns false past the end of
 * the table.
 */
static bool
gid_netdev(const char *device, int port, int index, char netdev[IF_NAMESIZE])
{
	char		path[PATH_MAX];

	netdev[0] = '\0';
	if (!sysfs_path(path, "%s/ports/%d/gid_attrs/ndevs/%d", device, port, index))
		return false;

	/*
	 * An unused entry has a file that cannot be read; none means the end of
	 * the table.
	 */
	return rbp_read_line(path, netdev, IF_NAMESIZE) || errno != ENOENT;
}

/*
 * Find the address that corresponds to a GID.  Only GIDs of RoCE have one:
 * with InfiniBand nothing is found, so gid_index cannot be used there.
 */
static void
search_gid(Search *s, const char *device, int port)
{
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
	char		path[PATH_MAX];
	char		text[INET6_ADDRSTRLEN + 1];
	char		netdev[IF_NAMESIZE];

	if (!sysfs_path(path, "%s/ports/%d/gids/%d", device, port, config.gid_index) ||
		!rbp_read_line(path, text, sizeof(text)) ||
		inet_pton(AF_INET6, text, &v6.sin6_addr) != 1 ||
		IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr) ||
		!gid_netdev(device, port, config.gid_index, netdev) || netdev[0] == '\0')
		return;

	if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr))
	{
		struct sockaddr_in v4 = {.sin_family = AF_INET};

		memcpy(&v4.sin_addr, &v6.sin6_addr.s6_addr[12], 4);
		if (s->family != AF_INET6)
			found_address(s, (struct sockaddr *) &v4, false);
		return;
	}
	if (s->family == AF_INET)
		return;
	if (IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr))
	{
		v6.sin6_scope_id = if_nametoindex(netdev);
		if (v6.sin6_scope_id == 0)
			return;
	}
	/* the only one there is, even if it is link-local */
	found_address(s, (struct sockaddr *) &v6, false);
}

/* Find the first address of a port's network devices. */
static void
search_port(Search *s, const char *device, int port)
{
	char		path[PATH_MAX];
	char		netdev[IF_NAMESIZE];
	char		last[IF_NAMESIZE] = "";
	char		number[16];

	for (int i = 0; !satisfied(s) && gid_netdev(device, port, i, netdev); i++)
	{
		if (netdev[0] == '\0' || strcmp(netdev, last) == 0)
			continue;
		search_netdev(s, netdev);
		strcpy(last, netdev);
	}

	for (struct ifaddrs *i = s->addresses; i != NULL && !satisfied(s); i = i->ifa_next)
		if (sysfs_path(path, "%s/device/net/%s/dev_port", device, i->ifa_name) &&
			rbp_read_line(path, number, sizeof(number)) && atoi(number) == port - 1)
			search_netdev(s, i->ifa_name);
}

static bool
search(const char *device, int port, void *arg)
{
	Search	   *s = arg;

	if (port > 0 && config.gid_index >= 0)
		search_gid(s, device, port);
	else if (port > 0)
		search_port(s, device, port);
	return satisfied(s);
}

RbpStatus
rbp_verbs_source_address(int family, struct sockaddr_storage *addr,
						 socklen_t *len)
{
	Search		s = {
		.family = family,
		.addr = addr,
		.len = len,
	};

	*len = 0;
	if (config.device[0] == '\0' && config.port == 0 && config.gid_index < 0)
		return RBP_OK;
	if (getifaddrs(&s.addresses) != 0)
		return RBP_NOMEM;
	visit_devices(search, &s);
	freeifaddrs(s.addresses);
	return *len > 0 ? RBP_OK : RBP_INVALID;
}
