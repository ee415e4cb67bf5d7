/*-------------------------------------------------------------------------
 *
 * library.c
 *	  The verbs transport's entry in the table of transports.
 *
 * The transport itself is in verbs/.  It needs libibverbs and librdmacm, which
 * bring drivers with them; each library that a server has loaded makes each of
 * its processes slower to begin and to end.  So in a server it is a library of
 * its own, beside this one, and a process loads it when it connects over verbs
 * for the first time, which it tries only where sysfs shows a device.  Where it
 * cannot be loaded, connecting fails, as it does for other reasons.  The
 * daemons, and tests, are linked with it.
 *
 * A connection carries the library's own table, so that requests need not pass
 * through here.
 *
 *-------------------------------------------------------------------------
 */
#include "common/status.h"
#include "transport/peer.h"
#include "transport/transport.h"

#ifdef RBP_VERBS_LIBRARY

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* protected by lock */
static const RbpTransportOps *loaded = NULL;
static char load_error[PATH_MAX + 200];

/* Path of the library, which is where the one is that this code is in. */
static bool
library_path(char path[PATH_MAX])
{
	static const char here = 0;
	Dl_info		info;
	const char *slash;
	int			n;

	if (dladdr(&here, &info) == 0 || (slash = strrchr(info.dli_fname, '/')) == NULL)
		return false;
	n = snprintf(path, PATH_MAX, "%.*s/%s", (int) (slash - info.dli_fname), info.dli_fname,
				 RBP_VERBS_LIBRARY);
	return n > 0 && n < PATH_MAX;
}

/* Load it; NULL, with load_error, on failure.  The caller holds the lock. */
static const RbpTransportOps *
load(void)
{
	const RbpTransportOps *ops;
	const char *version;
	void	   *handle;
	char		path[PATH_MAX];

	if (!library_path(path))
	{
		snprintf(load_error, sizeof(load_error), "it is not known where %s is", RBP_VERBS_LIBRARY);
		return NULL;
	}
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (handle == NULL)
	{
		snprintf(load_error, sizeof(load_error), "%s", dlerror());
		return NULL;
	}
	ops = dlsym(handle, "rbp_verbs_ops");
	version = dlsym(handle, "rbp_verbs_version");
	if (ops == NULL || version == NULL || strcmp(version, RBP_VERSION) != 0)
	{
		snprintf(load_error, sizeof(load_error), "%s is not of version %s, which runs", path, RBP_VERSION);
		(void) dlclose(handle);
		return NULL;
	}
	load_error[0] = '\0';
	return ops;
}

/* The library's table; NULL if it is not loaded, and is not to be or cannot be. */
static const RbpTransportOps *
library(bool wanted)
{
	const RbpTransportOps *ops;

	pthread_mutex_lock(&lock);
	if (loaded == NULL && wanted)
		loaded = load();
	ops = loaded;
	pthread_mutex_unlock(&lock);
	return ops;
}

static const char *
verbs_load_error(void)
{
	return load_error[0] != '\0' ? load_error : NULL;
}

#else

static inline const RbpTransportOps *
library(bool wanted)
{
	return &rbp_verbs_ops;
}

static const char *
verbs_load_error(void)
{
	return NULL;
}

#endif

/* Before it is loaded, no ancestor of this process can have used a device. */
static bool
verbs_usable(const RbpEndpoint *ep)
{
	const RbpTransportOps *ops = library(false);

	return ep->rdma_host[0] != '\0' && ep->rdma_port != 0 && rbp_verbs_active() &&
		(ops == NULL || ops->usable(ep));
}

static RbpStatus
verbs_connect(const RbpEndpoint *ep, const RbpCredentials *cred, RbpConn **conn)
{
	const RbpTransportOps *ops = library(true);

	return ops != NULL ? ops->connect(ep, cred, conn) : RBP_NOLIBRARY;
}

static RbpStatus
verbs_connect_wait(RbpConn *conn, int64_t deadline_ns)
{
	return conn->ops->connect_wait(conn, deadline_ns);
}

static RbpStatus
verbs_register_memory(RbpConn *conn, void *base, size_t len, RbpMr **mr)
{
	return conn->ops->register_memory(conn, base, len, mr);
}

static void
verbs_deregister_memory(RbpConn *conn, RbpMr *mr)
{
	conn->ops->deregister_memory(conn, mr);
}

static RbpStatus
verbs_submit(RbpConn *conn, RbpIo *ios, int n)
{
	return conn->ops->submit(conn, ios, n);
}

static RbpStatus
verbs_wait(RbpConn *conn, RbpIo *ios, int n, int64_t deadline_ns)
{
	return conn->ops->wait(conn, ios, n, deadline_ns);
}

static void
verbs_close(RbpConn *conn)
{
	if (conn != NULL)
		conn->ops->close(conn);
}

static const RbpTransportDevice rdma_device = {
	.name = "RDMA",
	.configure = rbp_verbs_configure,
	.present = rbp_verbs_present,
	.usable = rbp_verbs_active,
	.load_error = verbs_load_error,
	.load_hint = "Install libibverbs and librdmacm.",
};

const RbpTransportOps rbp_transport_verbs = {
	.name = "verbs",
	.bit = RBP_TRANSPORT_VERBS,
	.one_sided = true,
	.costly = true,
	.connect_ns = INT64_C(6000000000),
	.handshake_ns = RBP_VERBS_HANDSHAKE_NS,
	.device = &rdma_device,
	.usable = verbs_usable,
	.connect = verbs_connect,
	.connect_wait = verbs_connect_wait,
	.register_memory = verbs_register_memory,
	.deregister_memory = verbs_deregister_memory,
	.submit = verbs_submit,
	.wait = verbs_wait,
	.close = verbs_close,
};
