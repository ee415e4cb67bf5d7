/*-------------------------------------------------------------------------
 *
 * status.h
 *	  How a request to a donor ended.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_STATUS_H
#define RBP_STATUS_H

typedef enum RbpStatus
{
	RBP_OK = 0,
	RBP_INPROGRESS,				/* not finished yet; only while in flight */
	RBP_TIMEOUT,				/* the deadline passed first */
	RBP_CONNLOST,				/* refused, reset, closed, unreachable */
	RBP_DENIED,					/* lease ended, region not in it, bad secret */
	RBP_PROTOCOL,				/* the peer violated the protocol */
	RBP_OTHER_VERSION,			/* the peer speaks another one */
	RBP_UNPROVEN,				/* the peer does not know the donor's key */
	RBP_NOMEM,					/* no memory or descriptors on this machine */
	RBP_BUSY,					/* the donor accepts no more connections, at
								 * all or for this lease */
	RBP_INVALID,				/* invalid arguments */
	RBP_NOROUTE,				/* verbs: no route from this machine */
	RBP_OTHER_DEVICE,			/* verbs: the route is not over the device,
								 * the port or the GID that is configured */
	RBP_BAD_DEVICE,				/* verbs: the device is neither InfiniBand nor
								 * RoCE */
	RBP_NOLIBRARY,				/* verbs: its library cannot be loaded */
	RBP_NOT_ADMITTED,			/* shm: not this process's user */
	RBP_CANCELED				/* there is no connection to use now, or it
								 * ended because of another request; says
								 * nothing about the donor */
} RbpStatus;

/* A constant text for a status, for logs. */
extern const char *rbp_status_text(RbpStatus status);

#endif							/* RBP_STATUS_H */
