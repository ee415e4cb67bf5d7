/*-------------------------------------------------------------------------
 *
 * service.c
 *	  The service manager, where there is one.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/service.h"

#include <systemd/sd-daemon.h>

void
rbp_notify_ready(void)
{
	sd_notify(0, "READY=1");
}

void
rbp_notify_stopping(void)
{
	sd_notify(0, "STOPPING=1");
}
