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
 * What is done with a connection does not pass through here: the library's own
 * functions are entered into the table.
 *
 *-------------------------------------------------------------------------
 */
#include "common/status.h"
#include "transport/peer.h"
#include "transport/transport.h"

/* The library's table; NULL before it is loaded */
static const RbpTransportOps *library = NULL;

static void
use(const RbpTransportOps *ops)
{
	library = ops;
	rbp_transport_verbs.connect_wait = ops->connect_wait;
	rbp_transport_verbs.register_memory = ops->register_memory;
	rbp_transport_verbs.deregister_memory = ops->deregister_memory;
	rbp_transport_verbs.submit = ops->submit;
	rbp_transport_verbs.wait = ops->wait;
}

#ifdef RBP_VERBS_LIBRARY

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

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

/* Load it, or set load_error.  Processes of a server have one thread. */
static void
load(void)
{
	const RbpTransportOps *ops;
	const char *version;
	void	   *handle;
	char		path[PATH_MAX];

	if (!library_path(path))
	{
		snprintf(load_error, sizeof(load_error), "it is not known where %s is", RBP_VERBS_LIBRARY);
		return;
	}
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (handle == NULL)
	{
		snprintf(load_error, sizeof(load_error), "%s", dlerror());
		return;
	}
	ops = dlsym(handle, "rbp_verbs_ops");
	version = dlsym(handle, "rbp_verbs_version");
	if (ops == NULL || version == NULL || strcmp(version, RBP_VERSION) != 0)
	{
		snprintf(load_error, sizeof(load_error), "%s is not of version %s, which runs", path, RBP_VERSION);
		(void) dlclose(handle);
		return;
	}
	load_error[0] = '\0';
	use(ops);
}

static const char *
verbs_load_error(void)
{
	return load_error[0] != '\0' ? load_error : NULL;
}

#else

__attribute__((constructor))
static void
load(void)
{
	use(&rbp_verbs_ops);
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
	return ep->rdma_host[0] != '\0' && ep->rdma_port != 0 && rbp_verbs_active() &&
		(library == NULL || library->usable(ep));
}

static RbpStatus
verbs_connect(const RbpEndpoint *ep, const RbpCredentials *cred, RbpConn **conn)
{
	if (library == NULL)
		load();
	return library != NULL ? library->connect(ep, cred, conn) : RBP_NOLIBRARY;
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

RbpTransportOps rbp_transport_verbs = {
	.name = "verbs",
	.bit = RBP_TRANSPORT_VERBS,
	.one_sided = true,
	.costly = true,
	.connect_ns = INT64_C(6000000000),
	.handshake_ns = RBP_VERBS_HANDSHAKE_NS,
	.device = &rdma_device,
	.usable = verbs_usable,
	.connect = verbs_connect,
	.close = verbs_close,
};
