/*-------------------------------------------------------------------------
 *
 * verbs.h
 *	  RDMA: handshake, and keys to each lease's regions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DONOR_VERBS_H
#define RBP_DONOR_VERBS_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/donor/lease.h"

/*
 * Listen for RDMA connections and start the thread that makes them; the data
 * itself moves without us.  To be called when regions have their memory, and
 * before there is another thread that could take it from them.  host: "" or a
 * wildcard address for any.  *port gets the port.  False, with the reason for a
 * message in *why (static), if there is no device, or none that leads to the
 * address, or memory cannot be registered with it; then nothing is left of it.
 */
extern bool donor_verbs_init(const char *host, uint16_t *port,
							 const char **why);

/* For donor_lease_set_rdma(). */
extern const RbpDonorRdma donor_verbs_rdma;

/* Connections that are open now; and that were denied since the start. */
extern uint64_t donor_verbs_connections(void);
extern uint64_t donor_verbs_denied(void);

#endif							/* RBP_DONOR_VERBS_H */
