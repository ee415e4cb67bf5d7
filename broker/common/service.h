/*-------------------------------------------------------------------------
 *
 * service.h
 *	  The service manager, where there is one.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SERVICE_H
#define RBP_SERVICE_H

/* sd_notify() without failing where there is no service manager. */
extern void rbp_notify_ready(void);
extern void rbp_notify_stopping(void);

#endif							/* RBP_SERVICE_H */
