/*-------------------------------------------------------------------------
 *
 * status.c
 *	  How a request to a donor ended.
 *
 *-------------------------------------------------------------------------
 */
#include "common/status.h"

const char *
rbp_status_text(RbpStatus status)
{
	static const char *const texts[] = {
		[RBP_OK] = "ok",
		[RBP_INPROGRESS] = "in progress",
		[RBP_TIMEOUT] = "timed out",
		[RBP_CONNLOST] = "connection lost",
		[RBP_DENIED] = "access denied",
		[RBP_PROTOCOL] = "protocol violation",
		[RBP_OTHER_VERSION] = "it speaks another version of the protocol",
		[RBP_UNPROVEN] = "it has not proved that it is this donor",
		[RBP_NOMEM] = "out of memory",
		[RBP_BUSY] = "the donor accepts no more connections",
		[RBP_INVALID] = "invalid request",
		[RBP_NOROUTE] = "no route over RDMA",
		[RBP_OTHER_DEVICE] = "the route is not over the configured RDMA device, port and GID",
		[RBP_BAD_DEVICE] = "the RDMA device is neither InfiniBand nor RoCE",
		[RBP_NOLIBRARY] = "the library remote_bp_verbs cannot be loaded",
		[RBP_NOT_ADMITTED] = "the donor does not admit this server's user (--shm-users)",
		[RBP_CANCELED] = "canceled"
	};

	return (unsigned) status < sizeof(texts) / sizeof(texts[0]) ? texts[status] : "unknown";
}
