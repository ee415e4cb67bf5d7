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
	switch (status)
	{
		case RBP_OK:
			return "ok";
		case RBP_INPROGRESS:
			return "in progress";
		case RBP_TIMEOUT:
			return "timed out";
		case RBP_CONNLOST:
			return "connection lost";
		case RBP_DENIED:
			return "access denied";
		case RBP_PROTOCOL:
			return "protocol violation";
		case RBP_NOMEM:
			return "out of memory";
		case RBP_INVALID:
			return "invalid request";
		case RBP_CANCELED:
			return "canceled";
	}
	return "unknown";
}
