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
		[RBP_NOMEM] = "out of memory",
		[RBP_INVALID] = "invalid request",
		[RBP_CANCELED] = "canceled"
	};

	return (unsigned) status < sizeof(texts) / sizeof(texts[0]) ? texts[status] : "unknown";
}
