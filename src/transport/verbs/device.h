/*-------------------------------------------------------------------------
 *
 * device.h
 *	  What the verbs connections of a process share: for each device a
 *	  protection domain, and the registrations of callers' memory.
 *
 * Any thread may call anything here.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_VERBS_DEVICE_H
#define RBP_VERBS_DEVICE_H

#include "transport/transport.h"

#include <infiniband/verbs.h>

#define RBP_VERBS_READS_MAX	16	/* on the way at once, on a connection */

typedef struct RbpVerbsDevice
{
	struct ibv_context *verbs;
	struct ibv_pd *pd;
	uint8_t		reads;			/* that a queue pair may have on the way; at
								 * most RBP_VERBS_READS_MAX */
	unsigned int refs;			/* this and what follows: private */
	RbpMr	   *mrs;
	struct RbpVerbsDevice *next;
} RbpVerbsDevice;

struct RbpMr
{
	RbpVerbsDevice *device;
	struct ibv_mr *mr;
	uint8_t    *base;
	size_t		len;
	unsigned int refs;			/* this and what follows: private */
	RbpMr	   *next;
};

/*
 * May this process use RDMA devices?  Not one whose ancestor did before it
 * forked: it would get the ancestor's open devices, which are of no use to it.
 */
extern bool rbp_verbs_usable(void);

/*
 * The same, and from now on children of this process may not.  To be called
 * before librdmacm is.
 */
extern bool rbp_verbs_claim(void);

/*
 * Load the providers' libraries, which takes a process tens of milliseconds,
 * now, for the sake of its children.  Opens no device.
 */
extern void rbp_verbs_preload(void);

/*
 * The device behind an id, with a reference that the caller has to give back
 * while the id still keeps it open; NULL if it yields nothing.
 */
extern RbpVerbsDevice *rbp_verbs_device_get(struct ibv_context *verbs);
extern void rbp_verbs_device_put(RbpVerbsDevice *device);

/*
 * Register memory for local use, or take part in the registration of just this
 * memory that is there.  RBP_NOMEM: also where RLIMIT_MEMLOCK is too low;
 * RBP_INVALID: it is not mapped, or not writable.  To be put back before the
 * caller's reference to the device.
 */
extern RbpStatus rbp_verbs_mr_get(RbpVerbsDevice *device, void *base,
								  size_t len, RbpMr **mr);
extern void rbp_verbs_mr_put(RbpMr *mr);

#endif							/* RBP_VERBS_DEVICE_H */
