/*-------------------------------------------------------------------------
 *
 * verbs.h
 *	  Service over RDMA: handshakes, and rkeys for each lease's regions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DONOR_VERBS_H
#define RBP_DONOR_VERBS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "broker/donor/lease.h"

/*
 * Listen for RDMA connections and start the thread that handles them; data is
 * transferred without this process.
 *
 * To be called when regions have their memory, and before any other thread
 * could take it from them.  host: "" or a wildcard address for any.  *port is
 * set to the port.  Returns false, with the reason for a message in *why
 * (static), if there is no device, none leads to the address, or memory cannot
 * be registered with it; then everything has been undone.
 */
extern bool donor_verbs_init(const char *host, uint16_t *port,
							 const char **why);

/*
 * The NUMA node of the device that leads to this address of the host; -1 if
 * there is none, or the machine has only one.
 */
extern int	donor_verbs_numa_node(const char *host);

/* To be passed to donor_lease_set_rdma() */
extern const RbpDonorRdma donor_verbs_rdma;

/* Numbers of open connections, and of denied ones since the start. */
extern atomic_uint donor_verbs_connections;
extern _Atomic uint64_t donor_verbs_denied;

#endif							/* RBP_DONOR_VERBS_H */
