/*-------------------------------------------------------------------------
 *
 * device.h
 *	  Resources that the verbs connections of a process share: for each device
 *	  a protection domain, and the registrations of callers' memory.
 *
 * All functions may be called by any thread.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_VERBS_DEVICE_H
#define RBP_VERBS_DEVICE_H

#include "transport/transport.h"

#include <infiniband/verbs.h>
#include <sys/queue.h>

#define RBP_VERBS_READS_MAX	16	/* RDMA reads in flight on a connection */

typedef struct RbpVerbsDevice
{
	struct ibv_context *verbs;
	struct ibv_pd *pd;
	uint8_t		reads;			/* RDMA reads that a queue pair may have in
								 * flight; at most RBP_VERBS_READS_MAX */
	unsigned int refs;			/* this and what follows: private */
				LIST_HEAD(RbpMrList, RbpMr) mrs;
				LIST_ENTRY(RbpVerbsDevice) link;
} RbpVerbsDevice;

struct RbpMr
{
	RbpVerbsDevice *device;
	struct ibv_mr *mr;
	uint8_t    *base;
	size_t		len;
	unsigned int refs;			/* this and what follows: private */
				LIST_ENTRY(RbpMr) link;
};

/*
 * May this process use RDMA devices?  It may not if an ancestor used them
 * before it forked: the process would inherit the ancestor's open devices,
 * which it cannot use.
 */
extern bool rbp_verbs_usable(const RbpEndpoint *ep);

/*
 * Like rbp_verbs_usable(), and from now on children of this process may not
 * use RDMA devices.  Must be called before librdmacm is used.
 */
extern bool rbp_verbs_claim(void);

/*
 * Device of an id, with a reference that the caller must give back while the
 * id still keeps the device open; NULL on failure.
 */
extern RbpVerbsDevice *rbp_verbs_device_get(struct ibv_context *verbs);
extern void rbp_verbs_device_put(RbpVerbsDevice *device);

/*
 * Register memory for local use, or share an existing registration of exactly
 * this memory.  RBP_NOMEM: also where RLIMIT_MEMLOCK is too low; RBP_INVALID:
 * the memory is not mapped, or not writable.  The registration must be given
 * back before the caller's reference to the device.
 */
extern RbpStatus rbp_verbs_mr_get(RbpVerbsDevice *device, void *base,
								  size_t len, RbpMr **mr);
extern void rbp_verbs_mr_put(RbpConn *conn, RbpMr *mr);

#endif							/* RBP_VERBS_DEVICE_H */
